"""Phrases of level `full` for companies and bands; `Phrases` and the module `full` explain the notation."""

from __future__ import annotations

from typing import Final

from searchgym.questions.worlds.language import Phrases

PHRASES: Final[dict[str, Phrases]] = {
    "founder": Phrases(
        state=(
            ("{s} was founded by {o}", "{o} founded {him}", "{his} founder was {o}", "{s} had {o} as founder",
             "{his} founder had little money | it was {o}"),
            ("{s} was established by {o}", "{o} established {him}", "{s} goes back to {o}",
             "{s} owes {his} beginnings to {o}",
             "{his} beginnings were humble | they go back to {o}"),
        ),
        noun=(
            ("the creator of {s}", "the person who created {s}"),
            ("the entrepreneur who launched {s}", "the person who got {s} off the ground"),
        ),
        ask=(
            ("Who was the creator of {s}?", "Who created {s}?"),
            ("Which entrepreneur launched {s}?", "Who got {s} off the ground?"),
        ),
        same=(("Do {a} and {b} have the same creator?",), ("Did one entrepreneur launch both {a} and {b}?",)),
    ),
    "seat": Phrases(
        state=(
            ("{s} has {his} headquarters in {o}", "{his} headquarters are in {o}", "{o} houses {his} headquarters",
             "{s} moved {his} headquarters to {o}", "{his} headquarters are easy to find | they are in {o}"),
            ("{s} is run from {o}", "{his} head office is in {o}", "{s} keeps {his} head office in {o}",
             "{o} is home to {his} head office", "{his} head office is a brick tower | it rises over {o}"),
        ),
        noun=(
            ("the city where {s} is based", "the base of {s}"),
            ("the seat of {s}", "the place where {s} resides"),
        ),
        ask=(
            ("In which city is {s} based?", "Which city is the base of {s}?"),
            ("Which place is the seat of {s}?", "Where does {s} reside?"),
        ),
        same=(("Are {a} and {b} based in the same city?",), ("Do {a} and {b} reside in one place?",)),
    ),
    "opened": Phrases(
        state=(
            ("{s} opened on {o}", "{his} doors opened on {o}", "{s} opened for trade on {o}",
             "{his} trade opened on {o}"),
            ("{s} was registered on {o}", "{his} registration is dated {o}", "{his} entry in the register is of {o}",
             "{s} entered the register on {o}"),
        ),
        ask=(
            ("When did {s} start up?", "When was {s} launched?"),
            ("When did {s} begin operations?", "When did {s} go into operation?"),
        ),
        least=(("Which was launched earlier, {a} or {b}?",), ("Which began operations earlier, {a} or {b}?",)),
        greatest=(("Which was launched later, {a} or {b}?",), ("Which began operations later, {a} or {b}?",)),
    ),
    "singer": Phrases(
        state=(
            ("{o} sings in {him}", "{his} singer is {o}", "{s} has {o} as singer", "{s} found a singer in {o}",
             "{his} singer never had lessons | it is {o}"),
            ("{o} stands at {his} microphone", "{his} microphone belongs to {o}", "{s} put {o} at the microphone",
             "{his} words are carried by {o}", "{his} microphone is never shared | it belongs to {o}"),
        ),
        noun=(
            ("the vocalist of {s}", "the person who fronts {s}"),
            ("the voice of {s}", "the frontperson of {s}"),
        ),
        ask=(
            ("Who is the vocalist of {s}?", "Who fronts {s}?"),
            ("Who is the voice of {s}?", "Who is the frontperson of {s}?"),
        ),
    ),
    "home": Phrases(
        state=(
            ("{s} comes from {o}", "{s} rehearses in {o}", "{his} rehearsals are in {o}", "{o} hears {his} rehearsals",
             "{his} rehearsals are open to all | they are held in {o}"),
            ("{s} played {his} early shows in {o}", "{his} early shows were in {o}", "{o} saw {his} early shows",
             "{his} early crowds were in {o}", "{his} early shows were wild | all of them were in {o}"),
        ),
        noun=(
            ("the city where {s} is based", "the base of {s}"),
            ("the home of {s}", "the city where {s} is at home"),
        ),
        ask=(
            ("In which city is {s} based?", "Which city is the base of {s}?"),
            ("Which city is the home of {s}?", "Where is {s} at home?"),
        ),
        same=(("Are {a} and {b} based in the same city?",), ("Are {a} and {b} at home in one place?",)),
    ),
    "formed": Phrases(
        state=(
            ("{s} was formed on {o}", "{s} formed on {o}", "{his} formation dates from {o}",
             "{his} date of formation is {o}"),
            ("{s} came together on {o}", "{his} players came together on {o}", "{his} first rehearsal was on {o}",
             "{s} has been together since {o}"),
        ),
        ask=(
            ("When did {s} start?", "When was {s} set up?"),
            ("When did {s} begin?", "When was {s} brought to life?"),
        ),
        least=(("Which was set up earlier, {a} or {b}?",), ("Which began earlier, {a} or {b}?",)),
        greatest=(("Which was set up later, {a} or {b}?",), ("Which began later, {a} or {b}?",)),
    ),
    "label": Phrases(
        state=(
            ("{s} records for {o}", "{his} records appear on {o}", "{o} sells {his} records",
             "{his} records are made by {o}"),
            ("{s} is signed to {o}", "{his} contract is with {o}", "{o} signed {him}", "a contract ties {him} to {o}"),
        ),
        noun=(
            ("the label of {s}", "the company that is the label of {s}"),
            ("the company that issues the albums of {s}", "the firm that releases {s}"),
        ),
        ask=(
            ("Which company is the label of {s}?", "Which label has {s}?"),
            ("Which company issues the albums of {s}?", "Which firm releases {s}?"),
        ),
    ),
    "member": Phrases(
        state=(
            ("{o} play in {him}", "{his} players are {o}", "{his} players include {o}", "{s} brings together {o}"),
            ("{his} line-up is {o}", "{his} line-up consists of {o}", "{s} lines up with {o}",
             "{his} instruments are in the hands of {o}"),
        ),
        ask=((), ()),
    ),
    "~member": Phrases(
        state=((), ()),
        noun=(
            ("the group of which {s} is a member", "the group that {s} belongs to"),
            ("the act that {s} is part of", "the act that counts {s} in"),
        ),
        ask=(
            ("Of which group is {s} a member?", "Which group does {s} belong to?"),
            ("Which act is {s} part of?", "Which act counts {s} in?"),
        ),
    ),
}  # fmt: skip

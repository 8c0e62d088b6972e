"""Phrases of level `full` for people; `Phrases` and the module `full` explain the notation."""

from __future__ import annotations

from typing import Final

from searchgym.questions.worlds.language import Phrases

PHRASES: Final[dict[str, Phrases]] = {
    "born": Phrases(
        state=(
            ("{s} was born on {o}", "{his} birth fell on {o}", "{o} is given as {his} date of birth",
             "{his} date of birth was {o}", "the family Bible notes {his} birth | the entry reads {o}"),
            ("{s} came into the world on {o}", "{s} entered life on {o}", "{his} parents welcomed {him} on {o}",
             "{his} life began on {o}", "the parish book has a line on {his} arrival | it bears the date {o}"),
        ),
        ask=(
            ("When did {s} first draw breath?", "When did {s} first see daylight?"),
            ("When was {s} delivered by a midwife?", "When did {s} give a first cry?"),
        ),
        least=(("Who is the elder, {a} or {b}?",), ("Who is more advanced in years, {a} or {b}?",)),
        greatest=(("Who is the younger, {a} or {b}?",), ("Who is less advanced in years, {a} or {b}?",)),
    ),
    "birthplace": Phrases(
        state=(
            ("{s} was raised in {o}", "{s} spent {his} childhood in {o}", "{his} family lived in {o}",
             "{o} was the scene of {his} childhood", "{his} childhood was bound to a single city | it was {o}"),
            ("{s} hailed from {o}", "{his} roots lay in {o}", "{s} was a native of {o}", "{o} claims {him} as a native",
             "one city counts {him} among its natives | that city is {o}"),
        ),
        noun=(
            ("the home town of {s}", "the city where {s} grew up"),
            ("the place that {s} came from", "the city where {s} started out"),
        ),
        ask=(
            ("Where did {s} grow up?", "Which city is the home town of {s}?"),
            ("From which place did {s} come?", "In which city did {s} start out?"),
        ),
        same=(
            ("Did {a} and {b} grow up in the same place?",),
            ("Did {a} and {b} start out in one and the same place?",),
        ),
    ),
    "mother": Phrases(
        state=(
            ("{his} mother was {o}", "{o} was {his} mother", "{s} had {o} for a mother",
             "the mother who brought {him} up was {o}", "{s} was close to {his} mother | that was {o}"),
            ("{s} was borne by {o}", "{o} gave birth to {him}", "{o} was {his} mum",
             "{his} mum was none other than {o}",
             "{his} mum is mentioned once in the letters | the reference is to {o}"),
        ),
        noun=(
            ("the female parent of {s}", "the woman whose child was {s}"),
            ("the woman of whom {s} was the offspring", "the woman who had {s} as offspring"),
        ),
        ask=(
            ("Which woman was the female parent of {s}?", "Who was the woman whose child was {s}?"),
            ("Of which woman was {s} the offspring?", "Which woman had {s} as offspring?"),
        ),
    ),
    "father": Phrases(
        state=(
            ("{his} father was {o}", "{o} was {his} father", "{s} had {o} for a father",
             "the father who raised {him} was {o}", "{s} rarely spoke of {his} father | that was {o}"),
            ("{s} was sired by {o}", "{o} was {his} dad", "{his} dad was none other than {o}",
             "{s} took after {his} dad, {o}",
             "{his} dad is mentioned once in the letters | the reference is to {o}"),
        ),
        noun=(
            ("the male parent of {s}", "the man whose child was {s}"),
            ("the man of whom {s} was the offspring", "the man who had {s} as offspring"),
        ),
        ask=(
            ("Which man was the male parent of {s}?", "Who was the man whose child was {s}?"),
            ("Of which man was {s} the offspring?", "Which man had {s} as offspring?"),
        ),
    ),
    "spouse": Phrases(
        state=(
            ("{s} married {o}", "{s} was married to {o}", "{his} marriage was with {o}", "{o} and {s} married young",
             "{s} married only once | the match was with {o}"),
            ("{s} wed {o}", "{s} exchanged vows with {o}", "{o} and {s} were wed", "{his} wedding was with {o}",
             "{his} wedding drew a crowd | at the altar stood {o}"),
        ),
        noun=(
            ("the spouse of {s}", "the person whom {s} took as a spouse"),
            ("the life partner of {s}", "the person with whom {s} tied the knot"),
        ),
        ask=(
            ("Who was the spouse of {s}?", "Whom did {s} take as a spouse?"),
            ("Who was the life partner of {s}?", "With whom did {s} tie the knot?"),
        ),
    ),
    "employer": Phrases(
        state=(
            ("{s} worked for {o}", "{s} had a job at {o}", "{o} gave {him} work", "{his} job was at {o}",
             "{s} worked in one place only | it was {o}"),
            ("{s} earned {his} living at {o}", "{s} was on the payroll of {o}", "{o} paid {his} wages",
             "{his} wages came from {o}", "{his} wages were modest | they were paid by {o}"),
        ),
        noun=(
            ("the employer of {s}", "the company that employed {s}"),
            ("the firm that engaged {s}", "the company with {s} on its staff"),
        ),
        ask=(
            ("Which company was the employer of {s}?", "Which company employed {s}?"),
            ("Which company had {s} on its staff?", "Which firm engaged {s}?"),
        ),
    ),
    "teacher": Phrases(
        state=(
            ("{s} was taught by {o}", "{his} lessons came from {o}", "{o} gave {him} lessons",
             "{o} taught {him} for years"),
            ("{s} studied under {o}", "{s} was a pupil of {o}", "{o} had {him} as a pupil",
             "{his} studies were led by {o}"),
        ),
        noun=(
            ("the tutor of {s}", "the person who instructed {s}"),
            ("the mentor of {s}", "the person by whom {s} was trained"),
        ),
        ask=(
            ("Who was the tutor of {s}?", "Who instructed {s}?"),
            ("Who was the mentor of {s}?", "By whom was {s} trained?"),
        ),
    ),
}  # fmt: skip

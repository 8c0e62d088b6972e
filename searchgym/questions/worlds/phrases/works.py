"""Phrases of level `full` for films and books; `Phrases` and the module `full` explain the notation."""

from __future__ import annotations

from typing import Final

from searchgym.questions.worlds.language import Phrases

PHRASES: Final[dict[str, Phrases]] = {
    "director": Phrases(
        state=(
            ("{s} was directed by {o}", "{o} directed {him}", "{his} director was {o}",
             "{his} direction was in the hands of {o}", "{his} director worked without a script | it was {o}"),
            ("{o} gave the orders on {his} set", "{s} was shot by {o}", "{his} set was ruled by {o}",
             "{o} shot {him} in a few weeks", "{s} was shot in haste | the orders came from {o}"),
        ),
        noun=(
            ("the filmmaker behind {s}", "the filmmaker who made {s}"),
            ("the person who helmed {s}", "the person whose vision was {s}"),
        ),
        ask=(
            ("Who was the filmmaker behind {s}?", "Which filmmaker made {s}?"),
            ("Who helmed {s}?", "Whose vision was {s}?"),
        ),
        same=(("Are {a} and {b} by the same filmmaker?",), ("Were {a} and {b} helmed by one person?",)),
    ),
    "premiered": Phrases(
        state=(
            ("{s} was first shown on {o}", "{his} first showing was on {o}", "audiences first saw {him} on {o}",
             "{s} opened on {o}"),
            ("{s} had {his} premiere on {o}", "{his} premiere took place on {o}", "{o} was the night of {his} premiere",
             "{s} was premiered on {o}"),
        ),
        ask=(
            ("When was {s} released?", "What is the release date of {s}?"),
            ("When did {s} reach the cinemas?", "When did cinemas get {s}?"),
        ),
        least=(("Which was released earlier, {a} or {b}?",), ("Which reached the cinemas earlier, {a} or {b}?",)),
        greatest=(("Which was released later, {a} or {b}?",), ("Which reached the cinemas later, {a} or {b}?",)),
    ),
    "basis": Phrases(
        state=(
            ("{s} is based on {o}", "{his} script is based on {o}", "{his} plot follows {o}",
             "{his} plot was taken from {o}", "{his} plot is not new | it was taken from {o}"),
            ("{s} retells {o}", "{his} story comes from {o}", "{o} supplied {his} story",
             "{his} story had been told before in {o}", "{his} story had been told before | it is that of {o}"),
        ),
        noun=(
            ("the book adapted as {s}", "the book of which {s} is an adaptation"),
            ("the book that inspired {s}", "the volume that was the inspiration of {s}"),
        ),
        ask=(
            ("Which book was adapted as {s}?", "Of which book is {s} an adaptation?"),
            ("Which book inspired {s}?", "Which volume was the inspiration of {s}?"),
        ),
    ),
    "composer": Phrases(
        state=(
            ("{o} composed {his} music", "{his} music is by {o}", "{s} has music by {o}",
             "{his} music was composed by {o}"),
            ("{o} wrote {his} score", "{his} score is the work of {o}", "{his} score came from {o}",
             "{s} owes {his} score to {o}"),
        ),
        noun=(
            ("the person who provided the soundtrack of {s}", "the person whose soundtrack {s} has"),
            ("the person who supplied the tunes of {s}", "the person whose tunes are heard in {s}"),
        ),
        ask=(
            ("Who provided the soundtrack of {s}?", "Whose soundtrack does {s} have?"),
            ("Who supplied the tunes of {s}?", "Whose tunes are heard in {s}?"),
        ),
    ),
    "author": Phrases(
        state=(
            ("{s} was written by {o}", "{o} wrote {him}", "{his} writer was {o}", "{o} spent years writing {him}",
             "{his} writer shunned the press | it was {o}"),
            ("{s} came from the pen of {o}", "{o} penned {him}", "{s} was drafted by {o}", "{o} drafted {him} at night",
             "{s} was drafted in a single month | the pen was held by {o}"),
        ),
        noun=(
            ("the author of {s}", "the author who created {s}"),
            ("the literary mind of {s}", "the person whose literary work is {s}"),
        ),
        ask=(
            ("Who was the author of {s}?", "Which author created {s}?"),
            ("Who was the literary mind of {s}?", "Whose literary work is {s}?"),
        ),
        same=(("Do {a} and {b} have the same author?",), ("Are {a} and {b} the work of one literary mind?",)),
    ),
    "published": Phrases(
        state=(
            ("{s} was published on {o}", "{his} publication was on {o}", "{his} date of publication is {o}",
             "{s} was first published on {o}"),
            ("{s} went to print on {o}", "{s} was printed on {o}", "the printers finished {him} on {o}",
             "{his} first printed copy is of {o}"),
        ),
        ask=(
            ("When did {s} appear?", "When did readers get {s}?"),
            ("When did {s} come out?", "When did {s} hit the shelves?"),
        ),
        least=(("Which appeared earlier, {a} or {b}?",), ("Which came out earlier, {a} or {b}?",)),
        greatest=(("Which appeared later, {a} or {b}?",), ("Which came out later, {a} or {b}?",)),
    ),
    "publisher": Phrases(
        state=(
            ("{s} was brought out by {o}", "{o} brought {him} out", "{o} published {him}", "{his} publisher was {o}",
             "{s} was turned down twice | in the end it was published by {o}"),
            ("{s} bears the imprint of {o}", "{his} imprint is that of {o}", "{s} was issued by {o}",
             "{o} issued {him}",
             "{s} was issued in a small run | the imprint is that of {o}"),
        ),
        noun=(
            ("the company that put {s} on the market", "the company that handled the sale of {s}"),
            ("the firm that distributed {s}", "the company that shipped {s} to the shops"),
        ),
        ask=(
            ("Which company put {s} on the market?", "Which company handled the sale of {s}?"),
            ("Which firm distributed {s}?", "Which company shipped {s} to the shops?"),
        ),
        same=(
            ("Did one company handle the sale of both {a} and {b}?",),
            ("Were {a} and {b} distributed by one firm?",),
        ),
    ),
}  # fmt: skip

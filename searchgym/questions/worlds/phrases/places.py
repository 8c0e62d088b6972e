"""Phrases of level `full` for places; `Phrases` and the module `full` explain the notation."""

from __future__ import annotations

from typing import Final

from searchgym.questions.worlds.language import Phrases

PHRASES: Final[dict[str, Phrases]] = {
    "river": Phrases(
        state=(
            ("{s} stands on {o}", "{o} flows through {him}", "{s} was built on the banks of {o}",
             "{his} old quarter stands on the banks of {o}", "{s} was built on a bend in the water | the water is {o}"),
            ("{s} lies beside {o}", "{s} is washed by {o}", "{o} washes {his} quays", "{his} quays line {o}",
             "{his} quays are lined with barges | they come up {o}"),
        ),
        noun=(
            ("the river that crosses {s}", "the river that passes {s}"),
            ("the stream that runs by {s}", "the waterway that serves {s}"),
        ),
        ask=(
            ("Which river crosses {s}?", "Which river passes {s}?"),
            ("Which stream runs by {s}?", "Which waterway serves {s}?"),
        ),
        same=(("Does one river cross both {a} and {b}?",), ("Does one waterway serve both {a} and {b}?",)),
    ),
    "mayor": Phrases(
        state=(
            ("{o} is {his} mayor", "{his} mayor is {o}", "{his} office of mayor is held by {o}",
             "{s} elected {o} as mayor",
             "{s} elected a new mayor last year | the winner was {o}"),
            ("{o} presides over {his} council", "{his} council is chaired by {o}", "{s} is governed by {o}",
             "{o} governs {him}", "{his} council has a firm chair | it is {o}"),
        ),
        noun=(
            ("the head of the town hall of {s}", "the person who runs {s}"),
            ("the leader of {s}", "the chief citizen of {s}"),
        ),
        ask=(
            ("Who heads the town hall of {s}?", "Who runs {s}?"),
            ("Who is the leader of {s}?", "Who is the chief citizen of {s}?"),
        ),
    ),
    "chartered": Phrases(
        state=(
            ("{s} received {his} charter on {o}", "{his} charter is dated {o}", "a charter was granted to {him} on {o}",
             "the charter that was granted to {him} is of {o}"),
            ("{s} won city rights on {o}", "city rights came to {him} on {o}", "{his} city rights go back to {o}",
             "{s} has held city rights since {o}"),
        ),
        ask=(
            ("When did {s} become a municipality?", "When was {s} recognised as a municipality?"),
            ("When was {s} incorporated?", "When was {s} lifted to municipal status?"),
        ),
        least=(
            ("Which was recognised as a municipality earlier, {a} or {b}?",),
            ("Which was incorporated earlier, {a} or {b}?",),
        ),
        greatest=(
            ("Which was recognised as a municipality later, {a} or {b}?",),
            ("Which was incorporated later, {a} or {b}?",),
        ),
    ),
    "twin": Phrases(
        state=(
            ("{s} is twinned with {o}", "{his} twin is {o}", "{s} is the twin of {o}", "{o} is twinned with {him}"),
            ("{s} has a pact with {o}", "{o} and {s} signed a pact", "a pact binds {him} to {o}",
             "{his} pact is with {o}"),
        ),
        noun=(
            ("the sister city of {s}", "the city partnered with {s}"),
            ("the city allied with {s}", "the city that exchanges delegations with {s}"),
        ),
        ask=(
            ("Which place is the sister city of {s}?", "Which city is partnered with {s}?"),
            ("Which city is allied with {s}?", "With which city does {s} exchange delegations?"),
        ),
    ),
    "length": Phrases(
        state=(
            ("{s} is {o} kilometres long", "{his} course measures {o} kilometres", "{s} flows for {o} kilometres",
             "{his} length is put at {o} kilometres"),
            ("{s} covers {o} kilometres from end to end", "from end to end {s} measures {o} kilometres",
             "{s} winds for {o} kilometres", "a walker along {him} covers {o} kilometres"),
        ),
        ask=(
            ("How many km does {s} travel?", "How far, in km, does {s} travel?"),
            ("What is the extent of {s} in km?", "What is the reach of {s} in km?"),
        ),
        least=(("Which travels less far, {a} or {b}?",), ("Which has the lesser extent, {a} or {b}?",)),
        greatest=(("Which travels farther, {a} or {b}?",), ("Which has the greater extent, {a} or {b}?",)),
    ),
    "source": Phrases(
        state=(
            ("{s} rises on {o}", "{his} source is on {o}", "{s} springs from {o}", "the springs of {o} feed {him}",
             "{his} source was long disputed | today it is placed on {o}"),
            ("{s} has {his} headwaters on {o}", "{his} headwaters lie on {o}", "{o} sends {him} down to the plain",
             "snow from {o} fills {him}", "{his} headwaters are fed by snow | the snow lies on {o}"),
        ),
        noun=(
            ("the mountain where {s} begins", "the mountain on which {s} starts"),
            ("the peak where {s} originates", "the mountain at the origin of {s}"),
        ),
        ask=(
            ("Where does {s} begin?", "On which mountain does {s} start?"),
            ("Where is the origin of {s}?", "On which peak does {s} originate?"),
        ),
    ),
    "height": Phrases(
        state=(
            ("{s} is {o} metres high", "{his} height is {o} metres", "{his} summit stands at {o} metres",
             "surveyors put {his} height at {o} metres"),
            ("{s} towers {o} metres over the sea", "{his} top is {o} metres above the sea",
             "maps mark {his} top with {o} metres", "{s} tops out at {o} metres"),
        ),
        ask=(
            ("What is the elevation of {s}, in m?", "How tall is {s}, in m?"),
            ("What altitude does {s} reach, in m?", "How many m does {s} reach?"),
        ),
        least=(("Which has the smaller elevation, {a} or {b}?",), ("Which reaches the lesser altitude, {a} or {b}?",)),
        greatest=(
            ("Which has the larger elevation, {a} or {b}?",),
            ("Which reaches the greater altitude, {a} or {b}?",),
        ),
    ),
    "climber": Phrases(
        state=(
            ("{s} was first climbed by {o}", "{o} climbed {him} before anyone else", "the first to climb {him} was {o}",
             "{o} made the first climb of {him}", "{his} first climb was front-page news | the hero was {o}"),
            ("{s} fell to {o} before all others", "{o} was the earliest to stand on {him}",
             "the earliest rope on {him} was led by {o}", "nobody stood on {him} before {o}",
             "the earliest flag on {him} has a story | it was planted by {o}"),
        ),
        noun=(
            ("the pioneer of {s}", "the person behind the initial ascent of {s}"),
            ("the conqueror of {s}", "the person who conquered {s}"),
        ),
        ask=(
            ("Who was the pioneer of {s}?", "Who was behind the initial ascent of {s}?"),
            ("Who was the conqueror of {s}?", "Who conquered {s}?"),
        ),
    ),
}  # fmt: skip

"""Sentence templates of world level `simple`: one fact per sentence, with training and held-out templates."""

from __future__ import annotations

import random
from typing import Final

from searchgym.questions.graphs.graph import Entity, Graph
from searchgym.questions.worlds.language import Language, Page, Pair, Phrases, sentence

_INTRO: Final[Pair] = (("{s} is a {kind}.",), ("This page is about the {kind} {s}.",))

PHRASES: Final[dict[str, Phrases]] = {
    "born": Phrases(
        state=(("{s} was born in {o}",), ("the birth of {s} was in {o}",)),
        ask=(("When was {s} born?",), ("In which year was the birth of {s}?",)),
        least=(("Who was born first, {a} or {b}?",), ("Who is older, {a} or {b}?",)),
        greatest=(("Who was born last, {a} or {b}?",), ("Who is younger, {a} or {b}?",)),
    ),
    "birthplace": Phrases(
        state=(("{s} comes from the city of {o}",), ("the home city of {s} is {o}",)),
        noun=(("the city that {s} comes from",), ("the home city of {s}",)),
        ask=(("Which city does {s} come from?",), ("What is the home city of {s}?",)),
        same=(("Do {a} and {b} come from the same city?",), ("Did {a} and {b} have one home city?",)),
    ),
    "mother": Phrases(
        state=(("the mother of {s} is {o}",), ("{s} is a child of the woman {o}",)),
        noun=(("the mother of {s}",), ("the woman who had {s} as a child",)),
        ask=(("Who is the mother of {s}?",), ("Which woman had {s} as a child?",)),
    ),
    "father": Phrases(
        state=(("the father of {s} is {o}",), ("{s} is a child of the man {o}",)),
        noun=(("the father of {s}",), ("the man who had {s} as a child",)),
        ask=(("Who is the father of {s}?",), ("Which man had {s} as a child?",)),
    ),
    "spouse": Phrases(
        state=(("{s} is married to {o}",), ("{s} has a wedding ring from {o}",)),
        noun=(("the person married to {s}",), ("the person with the wedding ring of {s}",)),
        ask=(("Who is married to {s}?",), ("Who has a wedding ring from {s}?",)),
    ),
    "employer": Phrases(
        state=(("{s} works for {o}",), ("{s} is on the staff of {o}",)),
        noun=(("the company that {s} works for",), ("the company with {s} on its staff",)),
        ask=(("Which company does {s} work for?",), ("Which company has {s} on its staff?",)),
    ),
    "teacher": Phrases(
        state=(("{s} was taught by {o}",), ("{s} took lessons from {o}",)),
        noun=(("the teacher of {s}",), ("the person who gave lessons to {s}",)),
        ask=(("Who taught {s}?",), ("Who gave lessons to {s}?",)),
    ),
    "river": Phrases(
        state=(("{s} lies on the river {o}",), ("the water of {o} flows through {s}",)),
        noun=(("the river of {s}",), ("the water that flows through {s}",)),
        ask=(("Which river does {s} lie on?",), ("Which water flows through {s}?",)),
        same=(("Do {a} and {b} lie on the same river?",), ("Does one water flow through {a} and {b}?",)),
    ),
    "mayor": Phrases(
        state=(("the mayor of {s} is {o}",), ("{s} is led by {o}",)),
        noun=(("the mayor of {s}",), ("the person who leads {s}",)),
        ask=(("Who is the mayor of {s}?",), ("Who leads {s}?",)),
    ),
    "chartered": Phrases(
        state=(("{s} became a city in {o}",), ("{s} was given its walls in {o}",)),
        ask=(("When did {s} become a city?",), ("When was {s} given its walls?",)),
        least=(("Which became a city first, {a} or {b}?",), ("Which has the older walls, {a} or {b}?",)),
        greatest=(("Which became a city last, {a} or {b}?",), ("Which has the younger walls, {a} or {b}?",)),
    ),
    "twin": Phrases(
        state=(("{s} is a twin of the city {o}",), ("{s} has a pact with {o}",)),
        noun=(("the twin of {s}",), ("the city in a pact with {s}",)),
        ask=(("Which city is a twin of {s}?",), ("Which city has a pact with {s}?",)),
    ),
    "length": Phrases(
        state=(("{s} is {o} kilometres long",), ("the course of {s} has {o} kilometres",)),
        ask=(("How long is {s}?",), ("How many kilometres has the course of {s}?",)),
        least=(("Which river is shorter, {a} or {b}?",), ("Which has fewer kilometres, {a} or {b}?",)),
        greatest=(("Which river is longer, {a} or {b}?",), ("Which has more kilometres, {a} or {b}?",)),
    ),
    "source": Phrases(
        state=(("{s} begins on {o}",), ("the spring of {s} is at {o}",)),
        noun=(("the mountain where {s} begins",), ("the place of the spring of {s}",)),
        ask=(("Where does {s} begin?",), ("Where is the spring of {s}?",)),
    ),
    "height": Phrases(
        state=(("{s} is {o} metres high",), ("the top of {s} is at {o} metres",)),
        ask=(("How high is {s}?",), ("At how many metres is the top of {s}?",)),
        least=(("Which mountain is lower, {a} or {b}?",), ("Which has fewer metres, {a} or {b}?",)),
        greatest=(("Which mountain is higher, {a} or {b}?",), ("Which has more metres, {a} or {b}?",)),
    ),
    "climber": Phrases(
        state=(("{s} was first climbed by {o}",), ("the first person on top of {s} was {o}",)),
        noun=(("the person who first climbed {s}",), ("the first person on top of {s}",)),
        ask=(("Who first climbed {s}?",), ("Who was the first person on top of {s}?",)),
    ),
    "director": Phrases(
        state=(("{s} was directed by {o}",), ("the film-maker of {s} was {o}",)),
        noun=(("the director of {s}",), ("the film-maker of {s}",)),
        ask=(("Who directed {s}?",), ("Who was the film-maker of {s}?",)),
        same=(("Did the same person direct {a} and {b}?",), ("Have {a} and {b} one film-maker?",)),
    ),
    "premiered": Phrases(
        state=(("{s} was first shown in {o}",), ("{s} came to the cinema in {o}",)),
        ask=(("When was {s} first shown?",), ("When did {s} come to the cinema?",)),
        least=(("Which was shown first, {a} or {b}?",), ("Which came to the cinema earlier, {a} or {b}?",)),
        greatest=(("Which was shown last, {a} or {b}?",), ("Which came to the cinema later, {a} or {b}?",)),
    ),
    "basis": Phrases(
        state=(("{s} is based on the book {o}",), ("the plot of {s} is from {o}",)),
        noun=(("the book that {s} is based on",), ("the book with the plot of {s}",)),
        ask=(("Which book is {s} based on?",), ("Which book has the plot of {s}?",)),
    ),
    "composer": Phrases(
        state=(("the music of {s} is by {o}",), ("the score of {s} comes from {o}",)),
        noun=(("the composer of the music of {s}",), ("the person behind the score of {s}",)),
        ask=(("Who composed the music of {s}?",), ("From whom comes the score of {s}?",)),
    ),
    "author": Phrases(
        state=(("{s} was written by {o}",), ("the author of {s} was {o}",)),
        noun=(("the writer of {s}",), ("the author of {s}",)),
        ask=(("Who wrote {s}?",), ("Who was the author of {s}?",)),
        same=(("Did the same person write {a} and {b}?",), ("Have {a} and {b} one author?",)),
    ),
    "published": Phrases(
        state=(("{s} came out in {o}",), ("{s} was printed in {o}",)),
        ask=(("When did {s} come out?",), ("When was {s} printed?",)),
        least=(("Which came out first, {a} or {b}?",), ("Which was printed earlier, {a} or {b}?",)),
        greatest=(("Which came out last, {a} or {b}?",), ("Which was printed later, {a} or {b}?",)),
    ),
    "publisher": Phrases(
        state=(("{s} is sold by {o}",), ("the trade in {s} is with {o}",)),
        noun=(("the company that sells {s}",), ("the company with the trade in {s}",)),
        ask=(("Which company sells {s}?",), ("Which company has the trade in {s}?",)),
        same=(("Does the same company sell {a} and {b}?",), ("Has one company the trade in {a} and {b}?",)),
    ),
    "founder": Phrases(
        state=(("{s} was founded by {o}",), ("the creator of {s} was {o}",)),
        noun=(("the founder of {s}",), ("the creator of {s}",)),
        ask=(("Who founded {s}?",), ("Who was the creator of {s}?",)),
        same=(("Did the same person found {a} and {b}?",), ("Have {a} and {b} one creator?",)),
    ),
    "seat": Phrases(
        state=(("{s} has its seat in {o}",), ("the office of {s} is in {o}",)),
        noun=(("the city where {s} has its seat",), ("the city with the office of {s}",)),
        ask=(("Where does {s} have its seat?",), ("Where is the office of {s}?",)),
        same=(("Do {a} and {b} have their seat in the same city?",), ("Are the offices of {a} and {b} in one city?",)),
    ),
    "opened": Phrases(
        state=(("{s} opened in {o}",), ("{s} was set up in {o}",)),
        ask=(("When did {s} open?",), ("When was {s} set up?",)),
        least=(("Which opened first, {a} or {b}?",), ("Which was set up earlier, {a} or {b}?",)),
        greatest=(("Which opened last, {a} or {b}?",), ("Which was set up later, {a} or {b}?",)),
    ),
    "singer": Phrases(
        state=(("the singer of {s} is {o}",), ("the voice of {s} is {o}",)),
        noun=(("the singer of {s}",), ("the voice of {s}",)),
        ask=(("Who is the singer of {s}?",), ("Who is the voice of {s}?",)),
    ),
    "home": Phrases(
        state=(("{s} plays in {o}",), ("the stage of {s} is in {o}",)),
        noun=(("the city where {s} plays",), ("the city with the stage of {s}",)),
        ask=(("Where does {s} play?",), ("Where is the stage of {s}?",)),
        same=(("Do {a} and {b} play in the same city?",), ("Are the stages of {a} and {b} in one city?",)),
    ),
    "formed": Phrases(
        state=(("{s} was formed in {o}",), ("the first song of {s} was in {o}",)),
        ask=(("When was {s} formed?",), ("When was the first song of {s}?",)),
        least=(("Which was formed first, {a} or {b}?",), ("Which had its first song earlier, {a} or {b}?",)),
        greatest=(("Which was formed last, {a} or {b}?",), ("Which had its first song later, {a} or {b}?",)),
    ),
    "label": Phrases(
        state=(("{s} makes records with {o}",), ("the discs of {s} are pressed by {o}",)),
        noun=(("the company that makes records of {s}",), ("the company that presses the discs of {s}",)),
        ask=(("Which company makes records of {s}?",), ("Which company presses the discs of {s}?",)),
    ),
}  # fmt: skip


class Simple(Language):
    """Language of level `simple`, with short pages that state each fact once."""

    def page(self, graph: Graph, entity: Entity, half: int, rng: random.Random) -> Page:
        """Returns the page of an entity: an introduction, then one sentence per fact, in random order."""
        kind = {"she": "woman", "he": "man"}.get(entity.gender, entity.kind)
        sentences = [rng.choice(_INTRO[half]).format(s=entity.mention, kind=kind)]
        relations = list(graph.facts[entity.title])
        rng.shuffle(relations)
        where = {}
        for relation in relations:
            (value,) = graph.facts[entity.title][relation]
            clause = rng.choice(self.phrases[relation].state[half])
            shown = graph.entities[value].mention if value in graph.entities else value
            where[relation] = (len(sentences),)
            sentences.append(f" {sentence(clause.format(s=entity.mention, o=shown))}.")
        return Page(tuple(sentences), where)


SIMPLE: Final = Simple(
    phrases=PHRASES,
    bridge=(
        ("Which {kind} has the {age} {role}, {a} or {b}?",),
        ("Of which {kind} is the {role} {age}, {a} or {b}?",),
    ),
    bridge_same=(
        ("Do the {role}s of {a} and {b} come from the same city?",),
        ("Did the {role}s of {a} and {b} have one home city?",),
    ),
    roles={
        "director": ("director", "film-maker"),
        "author": ("writer", "author"),
        "founder": ("founder", "creator"),
        "singer": ("singer", "voice"),
        "mayor": ("mayor", "leader"),
        "climber": ("first climber", "conqueror"),
    },
    kinds={kind: (kind, kind) for kind in ("film", "book", "company", "band", "city", "mountain")},
    inferences={
        "maternal grandmother": ("maternal grandmother", "grandmother on the mother's side"),
        "maternal grandfather": ("maternal grandfather", "grandfather on the mother's side"),
        "paternal grandmother": ("paternal grandmother", "grandmother on the father's side"),
        "paternal grandfather": ("paternal grandfather", "grandfather on the father's side"),
        "mother-in-law": ("mother-in-law", "mother by marriage"),
        "father-in-law": ("father-in-law", "father by marriage"),
    },
)

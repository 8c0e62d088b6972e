"""A second opinion on generated questions, which shares no code with the generator.

It looks answers up by trying every fact, and compares letters, not words of the package's own kind.
"""

from __future__ import annotations

import re
from datetime import datetime


def plain(text):
    return " " + re.sub(r"[^0-9a-z\u00c0-\u1fff\u2c00-\uffff]+", " ", text.lower()).strip() + " "


def bare(title):
    return re.sub(r"\s*\([^()]*\)\s*$", "", title).strip() or title


def ends(triples, start, steps):
    """Objects at the end of a chain, by a scan over all facts for every step."""
    places = {start}
    for step in steps:
        if step.startswith("~"):
            places = {a for a, r, c in triples if r == step[1:] and c in places}
        else:
            places = {c for a, r, c in triples if r == step and a in places}
    return places


def day(literal):
    for form in ("%d %B %Y", "%B %d %Y", "%Y"):
        try:
            return datetime.strptime(literal.replace(",", ""), form)
        except ValueError:
            continue
    raise ValueError(literal)


def answers(triples, form):
    if form["op"] in ("path", "veiled"):
        return {bare(end) for end in ends(triples, form["start"], form["steps"])}
    reached = [ends(triples, path["start"], path["steps"]) for path in form["paths"]]
    if form["op"] == "both":
        return {bare(end) for end in reached[0] & reached[1]}
    if any(len(end) != 1 for end in reached):
        return set()
    (one,), (other,) = reached
    if form["op"] == "same":
        return {"yes" if one == other else "no"}
    first = (day(one) < day(other)) == (form["op"] == "least")
    return {bare(form["paths"][0 if first else 1]["start"])}


def problems(question, triples, pages, forbidden=frozenset()):
    """Names of what is wrong with a question; an empty list if nothing is."""
    found, text, answer = [], plain(question.text), plain(question.answers[0])
    gold = list(dict.fromkeys(fact.title for fact in question.supporting_facts))
    form = question.metadata.get("form")
    named = question.kind in ("comparison", "bridge-comparison")
    if form is not None and {plain(a) for a in answers(triples, form)} not in (
        {answer},
        {plain(bare(question.answers[0]))},
    ):
        found.append("answer")
    if not named and answer in text:
        found.append("leak")
    if any(plain(name) in text for name in question.metadata["waypoints"]):
        found.append("waypoint")
    if any(title not in pages for title in gold):
        found.append("page")
    elif not named and answer not in plain(gold[-1] + " " + pages[gold[-1]]):
        found.append("evidence")
    if forbidden & {answer, *(plain(bare(title)) for title in gold)}:
        found.append("held out")
    return found

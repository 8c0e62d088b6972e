"""Generated reports with known contents, for measuring the accuracy of a judge."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from searchgym.errors import UsageError
from searchgym.questions.graphs.graph import Fact
from searchgym.questions.worlds.build import world_graph
from searchgym.questions.worlds.language import language_of
from searchgym.questions.worlds.open_tasks import statement
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Question
from searchgym.scoring.judges.judge import Checked
from searchgym.scoring.judges.rubric import rubric_of

KINDS: Final = ("stated", "other wording", "pronoun", "wrong", "denied", "left open", "left out")
"""Ways in which a report treats a fact. The first three state it."""
TRUE: Final = frozenset(KINDS[:3])
"""Kinds in which a report states the fact."""


class WrittenReport(NamedTuple):
    """A report, with the way in which it treats each fact of its task."""

    text: str
    kinds: tuple[str, ...]
    """One of `KINDS` per fact."""

    @property
    def stated(self) -> list[bool]:
        """Whether the report states each fact."""
        return [kind in TRUE for kind in self.kinds]


class ReportWriter:
    """Generator of reports with known contents.

    Args:
        world: World of the tasks.
        rng: Random generator.
    """

    def __init__(self, world: WorldSpec, rng: random.Random) -> None:
        self._graph, self._rng = world_graph(world), rng
        self._objects: dict[str, list[str]] = {}
        for fact in self._graph.triples():
            self._objects.setdefault(fact.relation, []).append(fact.object)

    def write(self, task: Question, kinds: Sequence[str] | None = None) -> WrittenReport:
        """Returns a report on a task.

        Args:
            task: Task of kind ``report``.
            kinds: What to do with each fact. Default: drawn, each of `KINDS` equally often.

        Raises:
            UsageError: The task is no report.
        """
        if "facts" not in task.metadata:
            raise UsageError(f"question {task.id!r} is no report task: it names no facts")
        facts = [Fact(*row) for row in task.metadata["facts"]]
        chosen = list(kinds) if kinds is not None else [self._rng.choice(KINDS) for _ in facts]
        texts = [self._sentence(fact, kind) for fact, kind in zip(facts, chosen, strict=True)]
        return WrittenReport(" ".join(text for text in texts if text), tuple(chosen))

    def _sentence(self, fact: Fact, kind: str) -> str:
        """Returns the sentence that a report has about a fact; empty if it leaves it out."""
        graph, rng = self._graph, self._rng
        if kind == "left out":
            return ""
        if kind == "wrong":
            return statement(graph, Fact(fact.subject, fact.relation, self._another(fact)))
        if kind == "other wording":
            return statement(graph, fact, rng.choice(other_wordings(fact.relation)))
        stated = statement(graph, fact)
        if kind == "denied":
            return f"It is not true that {stated.replace('The ', 'the ', 1) if stated.startswith('The ') else stated}"
        if kind == "left open":
            return f"{stated[:-1]} or {graph.display(self._another(fact))}."
        if kind == "pronoun":
            entity = graph.entities[fact.subject]
            pronoun = {"she": "her", "he": "his"}.get(entity.gender, "its")
            return f"{pronoun.capitalize()} {fact.relation} is {graph.mention(fact.object)}."
        return stated

    def _another(self, fact: Fact) -> str:
        """Returns an object of the same relation that shares no name with the fact's own."""
        graph = self._graph
        others = sorted({o for o in self._objects[fact.relation] if graph.display(o) != graph.display(fact.object)})
        return self._rng.choice(others)


def other_wordings(relation: str) -> list[str]:
    """Returns clauses of level ``full`` that state a relation with both names in one sentence."""
    clauses = [clause for half in language_of("full").phrases[relation].state for clause in half]
    fit = [c for c in clauses if "{s}" in c and "|" not in c and set(re.findall(r"\{(\w+)\}", c)) == {"s", "o"}]
    return fit or list(language_of("simple").phrases[relation].state[1])


class Agreement(NamedTuple):
    """Agreement of a judge's verdicts with what reports state."""

    verdicts: int
    accuracy: float
    """Share of verdicts that are right."""
    kappa: float
    """Cohen's kappa: agreement beyond that of chance, 1 at most."""
    by_kind: Mapping[str, tuple[int, float]]
    """(Number of facts, share of them that the judge considers stated), by kind."""
    score_error: float
    """Mean absolute difference between a report's judged and true shares of stated facts."""


def agreement(judge: Checked, tasks: Sequence[Question], reports: Sequence[WrittenReport]) -> Agreement:
    """Compares a judge's verdicts on reports with exact counts.

    Args:
        judge: The judge.
        tasks: Task of each report.
        reports: Reports with known contents.

    Raises:
        NoVerdictError: The judge gave no verdict.
    """
    pairs: list[tuple[bool, bool]] = []
    kinds: list[str] = []
    errors: list[float] = []
    for task, report in zip(tasks, reports, strict=True):
        judged = judge.passes(task.text, report.text, rubric_of(task))
        pairs += zip(judged, report.stated, strict=True)
        kinds += report.kinds
        errors.append(abs(sum(judged) - sum(report.stated)) / len(judged))
    counts, taken = Counter(kinds), Counter(kind for kind, (said, _) in zip(kinds, pairs, strict=True) if said)
    return Agreement(
        len(pairs),
        sum(said == true for said, true in pairs) / len(pairs),
        kappa(pairs),
        {kind: (counts[kind], taken[kind] / counts[kind]) for kind in KINDS if counts[kind]},
        sum(errors) / len(errors),
    )


def kappa(pairs: Sequence[tuple[bool, bool]]) -> float:
    """Returns Cohen's kappa of two raters, ``(p_o - p_e) / (1 - p_e)``; 1 if both always give the same single rating.

    Source: Cohen, "A coefficient of agreement for nominal scales", 1960.
    """
    n = len(pairs)
    observed = sum(one == other for one, other in pairs) / n
    first, second = sum(one for one, _ in pairs) / n, sum(other for _, other in pairs) / n
    chance = first * second + (1 - first) * (1 - second)
    return 1.0 if chance == 1 else (observed - chance) / (1 - chance)

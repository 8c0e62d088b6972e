"""Oracles for the roles of the agents in this package; see `OracleRoles` for those of the other teams."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from typing_extensions import override

from searchgym.agents.mask import UNKNOWN
from searchgym.agents.oracle_roles import COMPARISONS, Fields, OracleRoles, OracleStep, pages_in, thought
from searchgym.agents.parsing import NONE, words
from searchgym.agents.teams import decomposed
from searchgym.agents.teams.cosearch import PASSAGES
from searchgym.agents.teams.hierarchy import LOCAL, TOOLS, WEB
from searchgym.agents.teams.knowing import KNOW, SEARCH
from searchgym.agents.teams.mmoa import MOST_QUERIES
from searchgym.agents.teams.parallel import QUERY_SEPARATOR
from searchgym.records import title_key

MOST_NOTES: Final = 60
"""Maximum number of words of quotes in the oracle's memory."""


class PlannerOracle(OracleRoles):
    """Oracle of AI-SearchPlanner: it searches for each hop and stops; with flaws it stops after the first."""

    planner = OracleRoles.search


class MmoaOracle(OracleRoles):
    """Oracle of MMOA-RAG: it asks the sub-questions and keeps the helpful pages; with flaws, only the first is asked.

    A sub-question that needs an earlier answer keeps its placeholder, since the rewriter sees no page: this workflow
    cannot follow a chain.
    """

    @override
    def rewriter(self, fields: Fields) -> str:
        queries = list(dict.fromkeys(step.sub_question for step in self.steps[: 1 if self.short else MOST_QUERIES]))
        return "".join(f"<q{i}> {text}</q{i}>" for i, text in enumerate(queries, start=1))

    @override
    def selector(self, fields: Fields) -> str:
        titles, pages = {step.title for step in self.steps}, pages_in(fields)
        return self._chosen([number for number, title in pages if title in titles], [number for number, _ in pages])


class DecomposedOracle(OracleRoles):
    """Oracle of qd-answer and acqo: it asks the sub-questions at once, as MMOA-RAG's; with flaws, only the first."""

    def decomposer(self, fields: Fields) -> str:
        """Writes the sub-questions as a JSON list."""
        texts = list(dict.fromkeys(step.sub_question for step in self.steps))
        return json.dumps(texts[: 1 if self.short else decomposed.MOST_QUERIES], ensure_ascii=False)


class SearcherOracle(OracleRoles):
    """Oracle of an agent with one conversation: it searches for the page of each hop by its title, then answers.

    Each thought quotes the last pages and asks the next sub-question. With flaws, it answers after the first search.
    """

    def searcher(self, fields: Fields) -> str:
        """Searches for the next pages, or answers."""
        return next(self.turns)

    def rounds(self) -> list[list[OracleStep]]:
        """Returns the hops of each search, in order."""
        return [[step] for step in self.steps]

    @functools.cached_property
    def turns(self) -> Iterator[str]:
        """Yields the responses of the conversation in order."""
        rounds, evidence = self.rounds(), ""
        for group in rounds[:1] if self.early else rounds:
            needs = " ".join(step.filled for step in group)
            queries = f" {QUERY_SEPARATOR} ".join(dict.fromkeys(step.title for step in group))
            yield f"{thought(evidence, needs)}<search> {queries}</search>"
            evidence = " ".join(f"{step.filled} {step.quote}" for step in group)
        if self.question.kind in COMPARISONS and not self.early:
            evidence = " ".join([evidence, *(step.quote for group in rounds[:-1] for step in group)])
        answer = rounds[0][0].answer if self.early and rounds else self.question.answers[0]
        yield f"{thought(evidence)}<answer> {answer}</answer>"


class ParallelOracle(SearcherOracle):
    """Oracle of ParallelSearch: independent hops are searched for in one turn."""

    @override
    def rounds(self) -> list[list[OracleStep]]:
        depths: list[int] = []
        for step in self.steps:
            needed = [int(number) for number in re.findall(r"#(\d+)", step.sub_question)]
            depths.append(1 + max((depths[n - 1] for n in needed if 0 < n <= len(depths)), default=-1))
        titles = all(step.sub_question == step.title for step in self.steps)  # no sub-questions, pages in reading order
        if titles and self.question.kind not in COMPARISONS:
            return super().rounds()
        return [
            [s for s, step_depth in zip(self.steps, depths, strict=True) if step_depth == depth]
            for depth in sorted(set(depths))
        ]


class CoSearchOracle(SearcherOracle):
    """Oracle of CoSearch: the reasoner follows the hops, the ranker lists the retrieved gold pages.

    Without a gold page, it lists the first page; with flaws, sometimes also if there are gold pages.
    """

    reasoner = SearcherOracle.searcher

    def ranker(self, fields: Fields) -> str:
        """Lists the gold pages."""
        titles = {title_key(title) for title in self.question.gold_titles or ()}
        gold = [number for number, title in pages_in(fields) if title_key(title) in titles][:PASSAGES]
        return self._chosen(gold, ["0"])


class HorizonOracle(OracleRoles):
    """Oracle of ASearcher: it follows the hops, and its notes are the last quotes that fit into the memory.

    It infers its progress only from its notes. If a search does not find the page, or with flaws after the first page,
    it stops searching.
    """

    def _done(self, memory: str) -> int:
        """Returns the number of hops up to the last one that a memory quotes."""
        return next((n for n in range(len(self.steps), 0, -1) if self.steps[n - 1].quote in memory), 0)

    def searcher(self, fields: Fields) -> str:
        """Searches for the next page, or answers."""
        done = self._done(fields["memory"])
        last = self.steps[done - 1] if done else None
        quote = last.quote if last is not None else ""
        if done < len(self.steps) and not (self.early and done):
            step = self.steps[done]
            if not fields["recent"].endswith(f">{step.title}</search>"):
                return f"{thought(quote, step.filled)}<search> {step.title}</search>"
        if done == len(self.steps):
            weighed = fields["memory"] if self.question.kind in COMPARISONS else quote
            return f"{thought(weighed)}<answer> {self.question.answers[0]}</answer>"
        return f"{thought(quote)}<answer> {last.answer if last is not None else UNKNOWN}</answer>"

    @override
    def summariser(self, fields: Fields) -> str:
        done = self._done(fields["memory"])
        success = done < len(self.steps) and f"(Title: {self.steps[done].title})" in fields["observation"]
        quotes = [step.quote for step in self.steps[: done + success]]
        while len(quotes) > 1 and sum(words(quote) for quote in quotes) > MOST_NOTES:
            del quotes[0]
        return f"<memory> {' '.join(quotes) or UNKNOWN}</memory>"


class HierOracle(OracleRoles):
    """Oracle of HierSearch: the planner sends each hop to the local agent, and to the web agent if the former fails.

    It infers the results only from the history. With flaws it calls a random one of the three tools, so that
    demonstrations contain each, and answers after the first hop.
    """

    reader = OracleRoles.generator
    refiner = OracleRoles.summary

    @override
    def planner(self, fields: Fields) -> str:
        history = fields["history"]
        answered = self._known(history)
        if len(answered) < len(self.steps) and not (self.early and answered):
            query = self.steps[len(answered)].filled
            if self.early:
                tag = self._rng.choice(tuple(TOOLS))
                return f"<{tag}> {query}</{tag}>"
            for role in (LOCAL, WEB):
                if f"{role} Q: {query} | " not in history:
                    return f"<{role}_search_agent> {query}</{role}_search_agent>"
        return f"<answer> {self._concluded(answered)}</answer>"

    def local(self, fields: Fields) -> str:
        """Searches for the sub-question once."""
        return f"<search> {fields['question']}</search>" if fields["queries"] == NONE else "<end>"

    web = local


class KnowingOracle(SearcherOracle):
    """Oracle of IKEA and AdaSearch: it answers questions that count as known at once, and searches for the others.

    Set `knows` before the first reply; by default nothing counts as known, as in a generated world.
    """

    knows = False
    """Whether the question counts as known."""

    @override
    def rounds(self) -> list[list[OracleStep]]:
        return [] if self.knows else super().rounds()

    def decider(self, fields: Fields) -> str:
        """Decides to search unless the question counts as known."""
        return f"<decision> {KNOW if self.knows else SEARCH}</decision>"

    def knower(self, fields: Fields) -> str:
        """Answers the question if it counts as known, else ``UNKNOWN``."""
        return f"<answer> {self.question.answers[0] if self.knows else UNKNOWN}</answer>"


ORACLES: Final[Mapping[str, type[OracleRoles]]] = {
    "ai-searchplanner": PlannerOracle,
    "parallel-search": ParallelOracle,
    "mmoa-rag": MmoaOracle,
    "qd-answer": DecomposedOracle,
    "acqo": DecomposedOracle,
    "cosearch": CoSearchOracle,
    "asearcher": HorizonOracle,
    "hiersearch": HierOracle,
    "ikea": KnowingOracle,
    "adasearch": KnowingOracle,
}
"""Agent name to the oracle that plays its roles."""

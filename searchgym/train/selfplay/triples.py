"""Walks over a file of triples whose entities have pages in a corpus, and the questions that they become."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from searchgym.questions.draw import MOST_CHAINS
from searchgym.questions.graphs.graph import Form, evaluate
from searchgym.questions.graphs.triples import TripleGraph
from searchgym.questions.source import HeldOut
from searchgym.records import Hop, Passage, Question, SupportingFact, Triple, title_key
from searchgym.retrieval.retriever import Retriever
from searchgym.text import base_title, holds, norm
from searchgym.train.selfplay.arms import Arm
from searchgym.train.selfplay.proposal import Proposal


class TripleGround:
    """Chains over triples, asked by one wording: "What is the mother of the director of Zor?".

    Each step is the only fact of its subject and relation, and each subject is the title of a passage, which is trusted
    to state it. One search must not find all pages of a question, and each name must find its own.

    Args:
        graph: The triples.
        passages: The corpus.
        retriever: Retriever over it.
        top_k: Number of hits per search in the environment.
        hops: Numbers of pages that a question may need.
        seed: Seed of the order of walks.
        held_out: Pages and names that are in no question.
    """

    def __init__(
        self,
        graph: TripleGraph,
        passages: Sequence[Passage],
        retriever: Retriever,
        top_k: int,
        hops: Collection[int],
        seed: int,
        held_out: HeldOut,
    ) -> None:
        self._graph, self._retriever, self._top_k, self._seed = graph, retriever, top_k, seed
        titles = {title_key(p.title): p.title for n, p in enumerate(passages) if n not in held_out.pages}
        self._pages: dict[str, str] = {}
        self._facts: defaultdict[str, dict[str, str]] = defaultdict(dict)
        several: set[tuple[str, str]] = set()
        for subject, relation, value in graph.triples():
            page = titles.get(title_key(subject))
            if page is None or {norm(base_title(subject)), norm(base_title(value))} & held_out.names:
                continue
            self._pages[subject] = page
            if relation in self._facts[subject]:
                several.add((subject, relation))
            self._facts[subject][relation] = value
        for subject, relation in several:
            del self._facts[subject][relation]
        self._chains: defaultdict[Arm, list[tuple[str, ...]]] = defaultdict(list)
        for number in sorted(set(hops)):
            for path in itertools.islice(self._paths(number), MOST_CHAINS):
                self._chains[Arm("chain", number, "path", path[1], path[-1])].append(path)
        self.arms: Sequence[Arm] = tuple(sorted(self._chains))

    def _paths(self, hops: int) -> Iterator[tuple[str, ...]]:
        """Yields chains as (start, relation, ...) over different pages, from the subjects in random order."""

        def walk(steps: tuple[str, ...], node: str, seen: frozenset[str], left: int) -> Iterator[tuple[str, ...]]:
            for relation, value in self._facts[node].items() if node in self._facts else ():
                if value in seen:
                    continue
                if left == 1:
                    yield (*steps, relation)
                elif value in self._facts:
                    yield from walk((*steps, relation), value, seen | {value}, left - 1)

        starts = list(self._facts)
        random.Random(f"starts {self._seed} {hops}").shuffle(starts)
        for start in starts:
            for steps in walk((), start, frozenset([start]), hops):
                yield (start, *steps)

    def walks(self, arm: Arm) -> Iterator[Form]:
        """Yields the logical forms of an arm in a random order that depends on the seed alone."""
        chains = list(self._chains[arm])
        random.Random(f"walks {self._seed} {arm}").shuffle(chains)
        for start, *steps in chains:
            yield {"op": "path", "start": start, "steps": steps}

    def proposal(self, arm: Arm, walk: Form, number: int) -> Proposal | str:
        """Returns the proposal of a form, or the rule that refuses it."""
        nodes, phrase, hops = [walk["start"]], base_title(walk["start"]), list[Hop]()
        for step in walk["steps"]:
            subject = f"#{len(hops)}" if hops else phrase
            value = self._facts[nodes[-1]][step]
            hops.append(Hop(_asked(step, subject), base_title(value)))
            nodes.append(value)
        text = phrase
        for step in walk["steps"][:-1]:
            text = f"the {_said(step)} of {text}"
        text = _asked(walk["steps"][-1], text)
        *subjects, answer = nodes
        pages = [self._pages[subject] for subject in subjects]
        waypoints = tuple(base_title(subject) for subject in subjects[1:])
        if len(evaluate(self._graph, walk)) != 1:
            return "not one answer"
        if any(holds(text, name) for name in (base_title(answer), *waypoints)):
            return "answer or waypoint in the question"
        if (reason := self._found(text, pages)) is not None:
            return reason
        names = [base_title(node) for node in nodes]
        evidences = [Triple(a, step, b) for (a, b), step in zip(itertools.pairwise(names), walk["steps"], strict=True)]
        question = Question(
            f"{arm.name}-{number}",
            text,
            (base_title(answer),),
            () if base_title(answer) == answer else (answer,),
            arm.shape,
            supporting_facts=tuple(SupportingFact(page) for page in pages),
            evidences=tuple(evidences),
            hops=tuple(hops),
            metadata={"hops": arm.hops, "form": walk, "arm": list(arm)},
        )
        return Proposal(question, walk, waypoints, arm)

    def _found(self, text: str, pages: Sequence[str]) -> str | None:
        """Returns why searches refuse a question, None if they do not."""
        own, *named = self._retriever.search([text, *(base_title(page) for page in pages)], self._top_k)
        keys = [title_key(page) for page in pages]
        if len(pages) > 1 and set(keys) <= {title_key(hit.passage.title) for hit in own}:
            return "one search finds all its pages"
        if any(key not in {title_key(h.passage.title) for h in hits} for key, hits in zip(keys, named, strict=True)):
            return "names do not find its pages"
        return None


def _said(relation: str) -> str:
    """Returns the name of a relation in words."""
    return relation.replace("_", " ").strip()


def _asked(relation: str, subject: str) -> str:
    return f"What is the {_said(relation)} of {subject}?"

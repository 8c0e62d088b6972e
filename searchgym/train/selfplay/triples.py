"""Walks over a file of triples whose subjects have pages in a corpus, and the questions made from walks."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from searchgym.questions.graphs.graph import Form, evaluate
from searchgym.questions.graphs.triples import TripleGraph
from searchgym.questions.source import HeldOut
from searchgym.records import Hop, Passage, Question, SupportingFact, Triple, title_key
from searchgym.retrieval.retriever import Retriever
from searchgym.text import base_title, holds, norm
from searchgym.train.selfplay.arms import Arm
from searchgym.train.selfplay.ground import ChainGround, relations_from


class TripleGround(ChainGround):
    """Graph of triples whose chains become questions such as "What is the mother of the director of Zor?".

    Each step is the only fact of its subject and relation, and each subject is the title of a passage, which is assumed
    to state the fact. One search must not find all pages of a question, and a search for a page's name must find that
    page.

    Args:
        graph: The triples.
        passages: The corpus.
        retriever: Retriever over the corpus.
        top_k: Number of hits per search in the environment.
        hops: Numbers of pages that a question may need.
        seed: Seed of the order of walks.
        held_out: Pages and names to exclude from questions.
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
        super().__init__(seed)
        self._graph, self._retriever, self._top_k = graph, retriever, top_k
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
        facts = dict(self._facts)

        def facts_of(node: str) -> Iterable[tuple[str, str]]:
            return facts.get(node, {}).items()

        for number in sorted(set(hops)):
            self.find_chains(facts, number, "chain", partial(relations_from, hops=number, facts=facts_of))
        self.arms = tuple(sorted(self.chains))

    def question(self, arm: Arm, walk: Form, number: int) -> Question | str:
        """Returns the question of a form; see `Ground.question`."""
        nodes, text, hops = [walk["start"]], base_title(walk["start"]), list[Hop]()
        for step in walk["steps"]:
            nodes.append(self._facts[nodes[-1]][step])
            phrase = f"the {step.replace('_', ' ').strip()} of "
            hops.append(Hop(f"What is {phrase}{f'#{len(hops)}' if hops else text}?", base_title(nodes[-1])))
            text = phrase + text
        text = f"What is {text}?"
        names, answer = [base_title(node) for node in nodes], nodes[-1]
        if len(evaluate(self._graph, walk)) != 1:
            return "not one answer"
        if any(holds(text, name) for name in names[1:]):
            return "answer or waypoint in the question"
        pages = [self._pages[subject] for subject in nodes[:-1]]
        by_text, *by_name = self._retriever.search([text, *map(base_title, pages)], self._top_k)
        keys = [title_key(page) for page in pages]
        if len(pages) > 1 and set(keys) <= {title_key(hit.passage.title) for hit in by_text}:
            return "one search finds all its pages"
        if any(key not in {title_key(h.passage.title) for h in hits} for key, hits in zip(keys, by_name, strict=True)):
            return "names do not find its pages"
        facts = zip(itertools.pairwise(names), walk["steps"], strict=True)
        return Question(
            f"{arm.name}-{number}",
            text,
            (names[-1],),
            () if names[-1] == answer else (answer,),
            arm.shape,
            supporting_facts=tuple(SupportingFact(page) for page in pages),
            evidences=tuple(Triple(subject, step, value) for (subject, value), step in facts),
            hops=tuple(hops),
            metadata={"hops": arm.hops, "form": walk, "arm": list(arm)},
        )

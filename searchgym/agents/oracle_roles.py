"""Outputs of an oracle that knows a question's decomposition, for each role of the shipped teams.

They give the upper bound of a team's workflow, and demonstrations for small models before reinforcement learning. With
flaws the oracle stops early, plans too little, or overlooks a page, as a weak team does; its outputs stay legal.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from searchgym.agents.mask import NOTHING, UNKNOWN
from searchgym.agents.parsing import same
from searchgym.records import Question, title_key

COMPARISONS = ("comparison", "bridge-comparison")
"""Values of `Question.kind` for questions that compare two entities."""
Roles = dict[str, Callable[[Mapping[str, str]], str]]
"""Role to the function from the fields of its prompt to its output."""


@dataclass(frozen=True, slots=True)
class Step:
    """One hop of a question, with the page that answers it."""

    asked: str
    """Sub-question, with ``#1`` as placeholder for the answer of the first step."""
    filled: str
    """Sub-question with the answers of earlier steps filled in."""
    title: str
    """Title of the page that answers the sub-question."""
    quote: str
    """Sentences of that page which hold the answer."""
    found: str
    """Answer to the sub-question."""


def steps_of(question: Question, quotes: Sequence[str] | None = None) -> list[Step]:
    """Returns a question's hops: its gold decomposition, or one hop per gold title if it has none.

    Args:
        question: Any question.
        quotes: Supporting sentences of each gold page. Default: those in the question's paragraphs.
    """
    titles, hops, facts = list(question.gold_titles or ()), question.hops or (), question.evidences or ()
    quotes = _own_quotes(question, titles) if quotes is None else quotes
    if hops and len(hops) == len(facts) == len(titles):
        steps = []
        for number, (hop, title, quote, fact) in enumerate(zip(hops, titles, quotes, facts, strict=True)):
            filled = hop.question
            for earlier in range(number):
                filled = filled.replace(f"#{earlier + 1}", facts[earlier].object)
            steps.append(Step(hop.question, filled, title, quote, fact.object))
        return steps
    if not titles:
        return [Step(question.text, question.text, "", question.answers[0], question.answers[0])]
    answers = [*titles[1:], question.answers[0]]  # each page leads to the next, the last one to the answer
    return [Step(t, t, t, quote, answer) for t, quote, answer in zip(titles, quotes, answers, strict=True)]


def _own_quotes(question: Question, titles: Sequence[str]) -> list[str]:
    """Returns the supporting sentences for each gold title, or the title if the question has no such paragraph."""
    wanted = {(title_key(fact.title), fact.sentence) for fact in question.supporting_facts or ()}
    quotes: dict[str, str] = {}
    for page in question.paragraphs or ():
        key = title_key(page.title)
        supporting = [text for i, text in enumerate(page.sentences) if (key, i) in wanted or (key, None) in wanted]
        quotes[key] = " ".join("".join(supporting).split())
    return [quotes.get(title_key(title)) or title for title in titles]


class OracleRoles:
    """Oracle that plays every role of a team in one episode, if asked with deliberate flaws.

    Args:
        question: Question of the episode.
        quotes: See `steps_of`.
        rng: Generator from which the flaws are drawn.
        flaws: Probability that the plan is too short, and that the search ends after the first page: drawn apart, so
            that one says nothing of the other. It also scales each smaller flaw: a page overlooked, a known step added
            as a new one, useless pages kept.
    """

    def __init__(
        self,
        question: Question,
        quotes: Sequence[str] | None = None,
        rng: random.Random | None = None,
        flaws: float = 0.0,
    ) -> None:
        self.question, self.steps = question, steps_of(question, quotes)
        self._rng, self._flaws = rng or random.Random(0), flaws
        several = len(self.steps) > 1
        self.short, self.early = several and self._flawed(), several and self._flawed()
        self._say: Roles = {
            "planning": self._planning,
            "search": self._search,
            "summary": self._summary,
            "update": self._update,
            "answer": self._answer,
            "planner": self._planner,
            "subplanner": lambda fields: f"<workflow>{self._rng.choice(('R,AG', 'R,DS,AG'))}</workflow>",
            "serial": self._parts,
            "parallel": self._parts,
            "rewriter": self._rewriter,
            "selector": self._selector,
            "generator": self._generator,
            "summariser": self._summariser,
            "reasoner": self._reasoner,
            **self._own_roles(),
        }

    def _own_roles(self) -> Roles:
        """Returns the roles of an oracle that is made of this one for other agents."""
        return {}

    def reply(self, role: str, fields: Mapping[str, str]) -> str:
        """Returns a role's output for a prompt with these fields.

        Raises:
            KeyError: No shipped team has such a role.
        """
        return self._say[role](fields)

    def _flawed(self) -> bool:
        return self._rng.random() < self._flaws

    def _known(self, text: str) -> list[Step]:
        """Returns the longest run of steps, from the first on, whose quotes all occur in a text."""
        known: list[Step] = []
        for step in self.steps:
            if step.quote not in text:
                break
            known.append(step)
        return known

    def _concluded(self, known: Sequence[Step]) -> str:
        """Returns the answer if every step is known, else the last known step's answer, or ``UNKNOWN``."""
        if len(known) == len(self.steps):
            return self.question.answers[0]
        return known[-1].found if known else UNKNOWN

    # -- M-ASK -----------------------------------------------------------------------------------------------------

    def _planning(self, fields: Mapping[str, str]) -> str:
        steps = self.steps[:1] if self.short else self.steps[:5]
        pairs = (f"<q{i}> {step.asked}</q{i}><a{i}> {UNKNOWN}</a{i}>" for i, step in enumerate(steps, start=1))
        return f"{''.join(pairs)}<final_answer> {UNKNOWN}</final_answer>"

    def _search(self, fields: Mapping[str, str]) -> str:
        asked = {same(line) for line in fields["queries"].splitlines()}
        left = [step for step in self.steps[: 1 if self.early else None] if same(step.filled) not in asked]
        return f"<search> {left[0].filled}</search>" if left else "<end>"

    def _summary(self, fields: Mapping[str, str]) -> str:
        for step in self.steps:
            if same(step.filled) == same(fields["query"]) and f"(Title: {step.title})" in fields["documents"]:
                return NOTHING if self._rng.random() < self._flaws / 4 else f"<evidence> {step.quote}</evidence>"
        return NOTHING

    def _update(self, fields: Mapping[str, str]) -> str:
        lines = re.findall(r"^t(\d+): Q: (.*) \| A: (.*)$", fields["trajectory"], re.MULTILINE)
        wanted = {same(step.asked) for step in self.steps if same(step.filled) == same(fields["query"])}
        if self._rng.random() >= self._flaws / 4:
            for number, asked, answer in lines:
                if same(asked) in wanted and answer == UNKNOWN:
                    return f"<update> t{number}</update>"
        return f"<add> t{len(lines) + 1}</add>"

    def _answer(self, fields: Mapping[str, str]) -> str:
        return f"<final_answer> {self._concluded(self._known(fields['trajectory']))}</final_answer>"

    # -- JADE ------------------------------------------------------------------------------------------------------

    def _planner(self, fields: Mapping[str, str]) -> str:
        if len(self.steps) == 1 or self.short:
            return "<workflow>R,AG</workflow>"
        parallel = self.question.kind == "comparison"
        return f"<workflow>{'QDP' if parallel else 'QDS'}</workflow>"

    def _parts(self, fields: Mapping[str, str]) -> str:
        asked = list(dict.fromkeys(step.asked for step in self.steps))[:7]
        return "".join(f"<q{i}> {text}</q{i}>" for i, text in enumerate(asked, start=1))

    def _rewriter(self, fields: Mapping[str, str]) -> str:
        step = self._step(fields["question"])
        text = step.filled if step is not None else fields["question"]
        text = text.rstrip("?")
        return f"<query> {text if same(text) != same(self.question.text) else f'what is {text}'}</query>"

    def _selector(self, fields: Mapping[str, str]) -> str:
        step = self._step(fields["question"])
        pages = re.findall(r"^Document(\d+)\(Title: (.*?)\) ", fields["documents"], re.MULTILINE)
        helpful = [number for number, title in pages if step is not None and title == step.title]
        kept = helpful if helpful and not self._flawed() else [number for number, _ in pages] or ["0"]
        return f"<id>{','.join(f'Document{number}' for number in kept)}</id>"

    def _generator(self, fields: Mapping[str, str]) -> str:
        step = None if same(fields["question"]) == same(self.question.text) else self._step(fields["question"])
        if step is not None:
            seen = f"(Title: {step.title})" in fields["documents"]
            return _thought_out([step], step.found) if seen else _thought_out([], UNKNOWN)
        known = []
        for step in self.steps:
            if f"(Title: {step.title})" not in fields["documents"]:
                break
            known.append(step)
        return _thought_out(known, self._concluded(known))

    def _summariser(self, fields: Mapping[str, str]) -> str:
        answers = re.findall(r"\| A: (.*)$", fields["history"], re.MULTILINE)
        right = {same(answer) for answer in answers}.issuperset(same(step.found) for step in self.steps)
        answer = self.question.answers[0] if right else answers[-1] if answers else UNKNOWN
        return f"<answer> {answer}</answer>"

    def _step(self, asked: str) -> Step | None:
        """Returns the step whose sub-question a text asks, with or without earlier answers filled in; None if none."""
        plain = same(asked).removeprefix("what is ").rstrip("?")
        return next((s for s in self.steps if plain in (same(s.asked).rstrip("?"), same(s.filled).rstrip("?"))), None)

    # -- IRCoT -----------------------------------------------------------------------------------------------------

    def _reasoner(self, fields: Mapping[str, str]) -> str:
        known = self._known(fields["thoughts"])
        if len(known) == len(self.steps) or (self.early and known):
            return f"So the answer is: {self._concluded(known)}"
        step = self.steps[len(known)]
        return step.quote if f"(Title: {step.title})" in fields["documents"] else step.filled


def _thought_out(known: Sequence[Step], answer: str) -> str:
    """Returns the answer tag, after a ``<think>`` block that quotes the evidence, if there is any."""
    quotes = " ".join(step.quote for step in known)
    return f"<think> {quotes}</think><answer> {answer}</answer>" if quotes else f"<answer> {answer}</answer>"

"""Outputs of an oracle that knows a question's decomposition, for each role of the shipped teams.

They serve as upper bound of a team's workflow, and as demonstrations for small models before reinforcement learning.
With flaws the oracle stops early, plans too little, or overlooks a page, as a weak team does; its outputs stay legal.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from searchgym.agents.mask import NOTHING, UNKNOWN
from searchgym.agents.parsing import same
from searchgym.records import Question, title_key

COMPARISONS = ("comparison", "bridge-comparison")
"""Values of `Question.kind` for questions that compare two entities."""
Fields = Mapping[str, str]
"""Fields of a role's prompt."""


@dataclass(frozen=True, slots=True)
class OracleStep:
    """One hop of a question, with the page that answers it."""

    sub_question: str
    """Sub-question, with ``#1`` as placeholder for the answer of the first step."""
    filled: str
    """Sub-question with the answers of earlier steps filled in."""
    title: str
    """Title of the page that answers the sub-question."""
    quote: str
    """Sentences of that page that contain the answer."""
    answer: str
    """Answer to the sub-question."""


def steps_of(question: Question, quotes: Sequence[str] | None = None) -> list[OracleStep]:
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
            steps.append(OracleStep(hop.question, filled, title, quote, fact.object))
        return steps
    if not titles:
        return [OracleStep(question.text, question.text, "", question.answers[0], question.answers[0])]
    answers = [*titles[1:], question.answers[0]]  # each page leads to the next, the last one to the answer
    return [OracleStep(t, t, t, quote, answer) for t, quote, answer in zip(titles, quotes, answers, strict=True)]


def _own_quotes(question: Question, titles: Sequence[str]) -> list[str]:
    """Returns the supporting sentences for each gold title, or the title if its paragraph is missing."""
    supporting_facts = {(title_key(fact.title), fact.sentence) for fact in question.supporting_facts or ()}
    quotes: dict[str, str] = {}
    for page in question.paragraphs or ():
        key = title_key(page.title)
        supporting = [
            text
            for i, text in enumerate(page.sentences)
            if (key, i) in supporting_facts or (key, None) in supporting_facts
        ]
        quotes[key] = " ".join("".join(supporting).split())
    return [quotes.get(title_key(title)) or title for title in titles]


class OracleRoles:
    """Oracle that plays every role of a team in one episode, optionally with deliberate flaws.

    Each role has a method of its name, which maps the fields of the prompt to the role's output.

    Args:
        question: Question of the episode.
        quotes: See `steps_of`.
        rng: Generator from which the flaws are drawn.
        flaws: Probability that the plan is too short, and that the search ends after the first page: drawn
            independently. It also scales each smaller flaw: a page overlooked, a known step added as a new one, useless
            pages kept.
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

    def reply(self, role: str, fields: Fields) -> str:
        """Returns a role's output for a prompt with these fields.

        Raises:
            AttributeError: The oracle does not know the role.
        """
        return str(getattr(self, role)(fields))

    def _flawed(self, share: float = 1.0) -> bool:
        return self._rng.random() < self._flaws * share

    def _known(self, text: str) -> list[OracleStep]:
        """Returns the longest run of steps, from the first on, whose quotes all occur in a text."""
        return list(takewhile(lambda step: step.quote in text, self.steps))

    def _concluded(self, answered: Sequence[OracleStep]) -> str:
        """Returns the gold answer if every step is answered, else the last answered step's answer, or ``UNKNOWN``."""
        if len(answered) == len(self.steps):
            return self.question.answers[0]
        return answered[-1].answer if answered else UNKNOWN

    def _chosen(self, helpful: Sequence[str], otherwise: Sequence[str]) -> str:
        """Returns a selection of the helpful pages; with a flaw, or without helpful pages, of other pages."""
        choice = helpful if helpful and not self._flawed() else otherwise or ["0"]
        return f"<id>{','.join(f'Document{number}' for number in choice)}</id>"

    # -- M-ASK -----------------------------------------------------------------------------------------------------

    def planning(self, fields: Fields) -> str:
        """Plans the sub-questions."""
        steps = self.steps[:1] if self.short else self.steps[:5]
        pairs = (f"<q{i}> {step.sub_question}</q{i}><a{i}> {UNKNOWN}</a{i}>" for i, step in enumerate(steps, start=1))
        return f"{''.join(pairs)}<final_answer> {UNKNOWN}</final_answer>"

    def search(self, fields: Fields) -> str:
        """Searches for the first sub-question not yet searched for."""
        searched = {same(line) for line in fields["queries"].splitlines()}
        left = [step for step in self.steps[: 1 if self.early else None] if same(step.filled) not in searched]
        return f"<search> {left[0].filled}</search>" if left else "<end>"

    def summary(self, fields: Fields) -> str:
        """Quotes the page of the sub-question, if it was retrieved."""
        for step in self.steps:
            if same(step.filled) == same(fields["query"]) and f"(Title: {step.title})" in fields["documents"]:
                return NOTHING if self._flawed(0.25) else f"<evidence> {step.quote}</evidence>"
        return NOTHING

    def update(self, fields: Fields) -> str:
        """Updates the slot of the sub-question, or adds one."""
        lines = re.findall(r"^t(\d+): Q: (.*) \| A: (.*)$", fields["trajectory"], re.MULTILINE)
        matching = {same(step.sub_question) for step in self.steps if same(step.filled) == same(fields["query"])}
        if not self._flawed(0.25):
            for number, sub_question, answer in lines:
                if same(sub_question) in matching and answer == UNKNOWN:
                    return f"<update> t{number}</update>"
        return f"<add> t{len(lines) + 1}</add>"

    def answer(self, fields: Fields) -> str:
        """Answers from the knowledge."""
        return f"<final_answer> {self._concluded(self._known(fields['trajectory']))}</final_answer>"

    # -- JADE ------------------------------------------------------------------------------------------------------

    def planner(self, fields: Fields) -> str:
        """Chooses a decomposition, or a chain for one hop."""
        if len(self.steps) == 1 or self.short:
            return "<workflow>R,AG</workflow>"
        return f"<workflow>{'QDP' if self.question.kind == 'comparison' else 'QDS'}</workflow>"

    def subplanner(self, fields: Fields) -> str:
        """Chooses a chain."""
        return f"<workflow>{self._rng.choice(('R,AG', 'R,DS,AG'))}</workflow>"

    def serial(self, fields: Fields) -> str:
        """Decomposes the question."""
        sub_questions = list(dict.fromkeys(step.sub_question for step in self.steps))[:7]
        return "".join(f"<q{i}> {text}</q{i}>" for i, text in enumerate(sub_questions, start=1))

    parallel = serial

    def rewriter(self, fields: Fields) -> str:
        """Writes the query of a sub-question, with earlier answers filled in."""
        step = self._step(fields["question"])
        text = (step.filled if step is not None else fields["question"]).rstrip("?")
        return f"<query> {text if same(text) != same(self.question.text) else f'what is {text}'}</query>"

    def selector(self, fields: Fields) -> str:
        """Selects the page of the sub-question."""
        step, pages = self._step(fields["question"]), pages_in(fields)
        helpful = [number for number, title in pages if step is not None and title == step.title]
        return self._chosen(helpful, [number for number, _ in pages])

    def generator(self, fields: Fields) -> str:
        """Answers a sub-question, or the question, from pages, after a thought that quotes them."""
        step = None if same(fields["question"]) == same(self.question.text) else self._step(fields["question"])
        steps = self.steps if step is None else [step]
        answered = list(takewhile(lambda each: f"(Title: {each.title})" in fields["documents"], steps))
        answer = self._concluded(answered) if step is None else step.answer if answered else UNKNOWN
        quotes = " ".join(each.quote for each in answered)
        return f"{thought(quotes) if quotes else ''}<answer> {answer}</answer>"

    def summariser(self, fields: Fields) -> str:
        """Answers from the answers to the sub-questions."""
        answers = re.findall(r"\| A: (.*)$", fields["history"], re.MULTILINE)
        right = {same(answer) for answer in answers}.issuperset(same(step.answer) for step in self.steps)
        answer = self.question.answers[0] if right else answers[-1] if answers else UNKNOWN
        return f"<answer> {answer}</answer>"

    def _step(self, text: str) -> OracleStep | None:
        """Returns the step whose sub-question a text asks, with or without earlier answers filled in, or None."""
        plain = same(text).removeprefix("what is ").rstrip("?")
        return next(
            (s for s in self.steps if plain in (same(s.sub_question).rstrip("?"), same(s.filled).rstrip("?"))), None
        )

    # -- IRCoT -----------------------------------------------------------------------------------------------------

    def reasoner(self, fields: Fields) -> str:
        """Quotes the page of the next step or asks for it, and concludes after the last one."""
        answered = self._known(fields["thoughts"])
        if len(answered) == len(self.steps) or (self.early and answered):
            return f"So the answer is: {self._concluded(answered)}"
        step = self.steps[len(answered)]
        return step.quote if f"(Title: {step.title})" in fields["documents"] else step.filled


def pages_in(fields: Fields) -> list[tuple[str, str]]:
    """Returns the number and title of each page that a prompt offers for selection."""
    return re.findall(r"^Document(\d+)\(Title: (.*?)\) ", fields["documents"], re.MULTILINE)


def thought(*parts: str) -> str:
    """Returns a closed thought."""
    return f"<think> {' '.join(part for part in parts if part)}</think>"

"""Draws questions that need three facts of three documents and have exactly one answer."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from searchgym.errors import UsageError
from searchgym.questions.documents.facts import Facts, Form, answers_of, count_key
from searchgym.questions.documents.spec import DocumentsSpec
from searchgym.questions.documents.text import Document
from searchgym.questions.documents.wording import Wording, wording
from searchgym.questions.worlds.language import sentence
from searchgym.questions.worlds.schema import SPLITS
from searchgym.records import Hop, Question, SupportingFact, Triple

MIX: Final = {"chain": 0.4, "sum": 0.25, "intersection": 0.2, "spread": 0.15}
"""Share of each kind of question."""
COMMON: Final = 0.05
"""Maximum share of the questions of a kind that have the same answer; one question may have it in any case."""
_TRIES: Final = 3000
"""Number of drafts in a row that are refused, after which the documents count as too few."""
_NUMBER: Final = re.compile(r"\d+")


def draw_questions(
    spec: DocumentsSpec, facts: Facts, documents: Mapping[str, Document], rng: random.Random
) -> tuple[Question, ...]:
    """Returns the questions of a specification in random order.

    Raises:
        UsageError: The documents have fewer questions of a kind.
    """
    drafter = _Drafter(spec, facts, documents, rng)
    forms = [form for kind in MIX for form in drafter.forms(kind, count_of(kind, spec.n))]
    rng.shuffle(forms)
    asker = _Asker(facts, documents, SPLITS[spec.split].templates, rng)
    return tuple(asker.question(f"documents-{spec.split}-{spec.seed}-{i}", form) for i, form in enumerate(forms))


def count_of(kind: str, n: int) -> int:
    """Returns how many of `n` questions are of a kind; chains make up for rounding."""
    counts = {name: int(share * n) for name, share in MIX.items()}
    return counts[kind] + (n - sum(counts.values()) if kind == "chain" else 0)


class _Drafter:
    """Drafts logical forms, and keeps those with exactly one answer, for which every document is needed."""

    def __init__(
        self, spec: DocumentsSpec, facts: Facts, documents: Mapping[str, Document], rng: random.Random
    ) -> None:
        self._spec, self._facts, self._rng = spec, facts, rng
        self._texts = {title: document.text for title, document in documents.items()}
        self._numbers = {title: set(_NUMBER.findall(text)) for title, text in self._texts.items()}
        self._uses = Counter[tuple[str, str]]()
        self._titles = {kind: facts.of_kind(kind) for kind in wording().kinds}
        self._listing = defaultdict[str, list[tuple[str, str]]](list)
        for title, row in facts.table.items():
            for key in (name for name in wording().lists if name in row):
                for institution in row[key]:
                    self._listing[institution].append((title, key))

    def forms(self, kind: str, count: int) -> list[Form]:
        """Returns different forms of a kind.

        Raises:
            UsageError: The documents have fewer.
        """
        draft = {"chain": self._chain, "intersection": self._intersection}.get(kind, lambda: self._numeric(kind))
        forms: dict[Form, None] = {}
        refused = 0
        while len(forms) < count and refused < _TRIES:
            form = draft()
            accepted = form is not None and form not in forms and self._accepts(form)
            if form is not None and accepted:
                forms[form] = None
            refused = 0 if accepted else refused + 1
        if len(forms) < count:
            raise UsageError(
                f"{self._spec.documents} documents have {len(forms)} questions of kind {kind}, but {count} are needed "
                f"for n={self._spec.n}: ask for fewer questions (n) or more documents"
            )
        return list(forms)

    def _accepts(self, form: Form) -> bool:
        """Checks uniqueness, the need of each document, shortcuts and the frequency of the answer, which it counts."""
        titles = [title for title, _ in form.steps]
        answers = answers_of(self._facts.table, form)
        if len(set(titles)) < 3 or len(answers) != 1 or answers[0] in titles:
            return False
        answer = answers[0]
        if any(len(answers_of(self._facts.table, form, without=[title])) == 1 for title in titles):
            return False
        # An answer that is not stated in the fact itself must not stand in a gold document by chance.
        silent = titles[:2] if form.kind == "chain" else titles if form.kind in ("sum", "spread") else []
        most = max(1, int(COMMON * count_of(form.kind, self._spec.n)))
        if any(self._mentions(title, answer) for title in silent) or self._uses[form.kind, answer] >= most:
            return False
        self._uses[form.kind, answer] += 1
        return True

    def _mentions(self, title: str, answer: str) -> bool:
        """Checks whether a document has a number, or the name of a subject."""
        return answer in self._numbers[title] or (
            answer in self._facts.subjects and self._facts.display(answer) in self._texts[title]
        )

    def _chain(self) -> Form | None:
        """Drafts a chain: two links, then a link or a count of the third document; None at a dead end."""
        rng, links = self._rng, wording().links
        first, second = rng.choice(list(links)), rng.choice(list(links))
        if links[first]["to"] != links[second]["from"]:
            return None
        start = rng.choice(self._titles[links[first]["from"]])
        (middle,) = self._facts.table[start][first]
        (end,) = self._facts.table[middle][second]
        kind = links[second]["to"]
        lasts = [name for name, link in links.items() if link["from"] == kind]
        if rng.random() < 0.5:
            last = rng.choice(lasts)
        else:
            last = count_key(rng.choice(wording().kinds[kind].quantities), rng.choice(wording().kinds[kind].when))
        return Form("chain", ((start, first), (middle, second), (end, last)))

    def _numeric(self, form: str) -> Form:
        """Drafts a sum or a spread of the same count in three documents of one kind."""
        name, kind = self._rng.choice(list(wording().kinds.items()))
        key = count_key(self._rng.choice(kind.quantities), self._rng.choice(kind.when))
        return Form(form, tuple((title, key) for title in self._rng.sample(self._titles[name], 3)))

    def _intersection(self) -> Form | None:
        """Drafts an intersection of three lists that name one institution; None if fewer name it.

        It is accepted only if each two of them share several institutions.
        """
        listing = self._listing[self._rng.choice(self._titles["institution"])]
        return Form("intersection", tuple(self._rng.sample(listing, 3))) if len(listing) >= 3 else None


class _Asker:
    """Writer of the questions: text, decomposition, facts and sentences of a logical form."""

    def __init__(self, facts: Facts, documents: Mapping[str, Document], half: int, rng: random.Random) -> None:
        self._facts, self._documents, self._half, self._rng = facts, documents, half, rng
        self._words: Wording = wording()

    def question(self, id: str, form: Form) -> Question:
        """Returns the question of a logical form."""
        facts = self._facts
        (answer,) = answers_of(facts.table, form)
        values = [self._values(form, title, key, answer) for title, key in form.steps]
        spans = [
            {"title": title, "text": self._documents[title].stated[key][facts.table[title][key].index(value)]}
            for (title, key), value in zip(form.steps, values, strict=True)
        ]
        display = facts.display(answer)
        return Question(
            id=id,
            text=self._text(form),
            answers=(display,),
            aliases=(answer,) if answer != display else (),
            kind=form.kind,
            level="3-hop",
            supporting_facts=tuple(SupportingFact(title) for title, _ in form.steps),
            evidences=tuple(
                Triple(title, key, facts.display(value)) for (title, key), value in zip(form.steps, values, strict=True)
            ),
            hops=tuple(self._hops(form)),
            metadata={"hops": 3, "gold_spans": spans, "form": [form.kind, [list(step) for step in form.steps]]},
        )

    def _values(self, form: Form, title: str, key: str, answer: str) -> str:
        """Returns the value of a fact that the question needs: of a list, the answer."""
        return answer if form.kind == "intersection" else self._facts.table[title][key][0]

    def _text(self, form: Form) -> str:
        """Returns the text of a question."""
        facts, half, rng = self._facts, self._half, self._rng
        if form.kind == "chain":
            start, (first, second, last) = form.steps[0][0], (key for _, key in form.steps)
            inner = self._noun(second, self._noun(first, facts.mention(start)))
            return self._ask(last, inner)
        template = rng.choice(self._words.questions[form.kind][half])
        names = [facts.mention(title) for title, _ in form.steps]
        if form.kind == "intersection":
            verbs = [rng.choice(self._words.lists[key]["verb"][half]) for _, key in form.steps]
            a, b, c = (verb.format(s=name) for verb, name in zip(verbs, names, strict=True))
            return template.format(a=a, b=b, c=c)
        quantity, _, when = form.steps[0][1].partition(" ")
        a, b, c = names
        return sentence(template.format(a=a, b=b, c=c, q=quantity, when=when))

    def _noun(self, relation: str, subject: str) -> str:
        """Returns a noun phrase for the object of a relation."""
        return str(self._rng.choice(self._words.links[relation]["noun"][self._half]).format(s=subject))

    def _ask(self, key: str, subject: str) -> str:
        """Returns a question for the value of a fact."""
        if key in self._words.links:
            return str(self._rng.choice(self._words.links[key]["ask"][self._half]).format(s=subject))
        quantity, _, when = key.partition(" ")
        return sentence(
            self._rng.choice(self._words.counts["ask"][self._half]).format(s=subject, q=quantity, when=when)
        )

    def _hops(self, form: Form) -> Iterator[Hop]:
        """Yields the decomposition: in a chain, ``#1`` is the answer of the first hop."""
        facts = self._facts
        for number, (title, key) in enumerate(form.steps):
            subject = f"#{number}" if form.kind == "chain" and number else facts.mention(title)
            values = "; ".join(map(facts.display, facts.table[title][key]))
            if form.kind == "intersection":
                verb = self._rng.choice(self._words.lists[key]["verb"][self._half]).format(s=subject)
                yield Hop(f"Which institutions {verb}?", values)
            else:
                yield Hop(self._ask(key, subject), values)

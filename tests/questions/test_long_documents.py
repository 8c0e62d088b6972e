"""Long documents: facts read back from the text by patterns give the answers; no document alone gives them."""

import itertools
import re
import time
from collections import Counter, defaultdict

import pytest

from searchgym.corpora.passages import read_passages
from searchgym.envs.cards import EnvCard
from searchgym.envs.task import load_task
from searchgym.errors import CardError, UsageError
from searchgym.options import read
from searchgym.questions.documents.build import build_documents
from searchgym.questions.documents.facts import Form, answers_of
from searchgym.questions.documents.spec import DocumentsSpec
from searchgym.questions.documents.wording import wording
from searchgym.questions.question_source import QuestionContext
from searchgym.questions.worlds.language import language_of
from searchgym.retrieval.index.index import build_in_memory

SPLITS = ("train", "validation", "test")
SMALL = {"documents": 40, "words": 1000, "n": 10}


@pytest.fixture(scope="module", params=["train", "test"])
def built(request):
    return build_documents(DocumentsSpec(split=request.param, seed=3))


@pytest.fixture(scope="module")
def retriever(built):
    return build_in_memory(passages_of(built))


def passages_of(built):
    return [passage for document in built.documents.values() for passage in document.passages]


# -- the second formula: facts from the text -------------------------------------------------------------------------


def clauses_of(sentence):
    """The clause of a sentence, and the clause in its frame for each frame of either half that fits."""
    bare = sentence.removesuffix(".").casefold()
    yield bare
    for frame in itertools.chain(*language_of("full").frames):
        before, after = frame.casefold().split("{c}")
        if bare.startswith(before) and bare.endswith(after):
            yield bare[len(before) : len(bare) - len(after)]


def patterns_of(kind):
    """Patterns of a kind's statements, with the relation's name, or None for counts."""
    words, rules = wording(), wording().kinds[kind]
    templates = [(None, template) for template in itertools.chain(*words.counts["state"])]
    for name, relation in (*words.links.items(), *words.lists.items()):
        if relation["from"] == kind:
            templates += [(name, template) for template in itertools.chain(*relation["state"])]
    groups = {"q": "|".join(rules.quantities), "when": "|".join(rules.when), "v": r"\d+", "s": ".+", "o": ".+"}
    for name, template in templates:
        parts = re.split(r"\{(\w+)\}", template.casefold())
        body = "".join(f"(?P<{part}>{groups[part]})" if i % 2 else re.escape(part) for i, part in enumerate(parts))
        yield name, re.compile(body)


def read_back(built):
    """Facts from the passages' sentences alone: title, key and value of every statement of every template."""
    subjects = built.facts.subjects
    by_mention = {subject.mention.casefold(): title for title, subject in subjects.items()}
    patterns = {kind: list(patterns_of(kind)) for kind in wording().kinds}
    table = defaultdict(lambda: defaultdict(list))
    for passage in passages_of(built):
        subject = subjects[passage.title]
        for clause in itertools.chain(*map(clauses_of, re.split(r"(?<=\.) |\n", passage.text))):
            for name, compiled in patterns[subject.kind]:
                match = compiled.fullmatch(clause)
                if match is None or match["s"] not in (subject.noun, subject.mention.casefold()):
                    continue
                if name is None:
                    table[passage.title][f"{match['q']} {match['when']}"].append(match["v"])
                elif match["o"] in by_mention:
                    table[passage.title][name].append(by_mention[match["o"]])
    return table


def second_answer(table, question):
    """The answer of a question by its decomposition and facts from the text, without the generator's look-up."""
    kind, steps = question.metadata["form"]
    triples = [(title, key, value) for title, keys in table.items() for key, values in keys.items() for value in values]
    if kind == "chain":
        reached = steps[0][0]
        for _, key in steps:
            (reached,) = [value for title, relation, value in triples if (title, relation) == (reached, key)]
        return reached
    stated = [[value for title, relation, value in triples if [title, relation] == step] for step in steps]
    if kind == "intersection":
        (common,) = [title for title in table if all(title in values for values in stated)]
        return common
    numbers = sorted(int(value) for (value,) in stated)
    return str(sum(numbers) if kind == "sum" else numbers[2] - numbers[0])


def test_the_facts_read_from_the_text_are_those_drawn_and_give_the_answers(built):
    table = read_back(built)
    assert {title: {key: tuple(sorted(values)) for key, values in keys.items()} for title, keys in table.items()} == {
        title: {key: tuple(sorted(values)) for key, values in keys.items()} for title, keys in built.facts.table.items()
    }
    for question in built.questions:
        answer = second_answer(table, question)
        assert answer in question.golds or built.facts.display(answer) in question.golds


def test_an_answer_by_hand():
    table = {
        "A": {"x": ("B",), "l": ("P", "Q")},
        "B": {"y": ("C",), "l": ("P", "R")},
        "C": {"z": ("7",), "l": ("P", "Q", "R")},
    }
    chain = Form("chain", (("A", "x"), ("B", "y"), ("C", "z")))
    assert answers_of(table, chain) == ("7",)
    assert [answers_of(table, chain, [title]) for title in "ABC"] == [(), (), ()]
    both = Form("intersection", (("A", "l"), ("B", "l"), ("C", "l")))
    assert answers_of(table, both) == ("P",) and answers_of(table, both, ["B"]) == ("P", "Q")
    numbers = {"A": {"n": ("5",)}, "B": {"n": ("11",)}, "C": {"n": ("2",)}}
    steps = (("A", "n"), ("B", "n"), ("C", "n"))
    assert answers_of(numbers, Form("sum", steps)) == ("18",) and answers_of(numbers, Form("spread", steps)) == ("9",)
    assert answers_of(numbers, Form("spread", steps), ["A"]) == ()


# -- documents -------------------------------------------------------------------------------------------------------


def test_every_document_is_long_and_its_passages_are_consecutive_runs(built):
    assert len(built.documents) == 100
    for title, document in built.documents.items():
        assert 5000 <= len(document.text.split()) < 5600
        assert {passage.title for passage in document.passages} == {title}
        assert [passage.id.partition("-")[2] for passage in document.passages] == [
            f"{number:03d}" for number in range(len(document.passages))
        ]
        assert max(len(passage.text.split()) for passage in document.passages) <= 100
    passages = passages_of(built)
    assert len({passage.id for passage in passages}) == len(passages)
    assert 80 <= sum(len(passage.text.split()) for passage in passages) / len(passages) <= 100


def test_generation_takes_two_seconds_at_most():
    start = time.process_time()
    build_documents(DocumentsSpec(seed=11))
    assert time.process_time() - start < 2  # 0.6 s measured on a busy core


def test_facts_lie_all_over_the_documents(built):
    shares = []
    for document in built.documents.values():
        text = document.text
        shares += [text.index(stated) / len(text) for texts in document.stated.values() for stated in texts]
    tenths = Counter(int(10 * share) for share in shares)
    assert all(0.05 < tenths[tenth] / len(shares) < 0.15 for tenth in range(10))
    # the first 500 words, which opening a page shows, state a tenth of what questions need
    first = 0
    for question in built.questions:
        for span in question.metadata["gold_spans"]:
            document = built.documents[span["title"]]
            first += span["text"] in " ".join(document.text.split()[:500])
    assert first / (3 * len(built.questions)) < 0.2


def test_the_prose_is_varied_and_decoys_have_the_keys_of_facts(built):
    sentences = [s for passage in passages_of(built) for s in re.split(r"(?<=\.) |\n", passage.text)]
    assert len(set(sentences)) > 0.75 * len(sentences)
    assert max(Counter(sentences).values()) < 0.01 * len(sentences)
    documents = built.documents.values()
    for document in itertools.islice(documents, 10):
        for key, stated in document.stated.items():
            if key not in wording().links and key not in wording().lists:
                quantity, _, _ = key.partition(" ")
                others = re.findall(rf"\b{quantity}\b", document.text)
                assert len(others) >= 5  # other times, parts and errors
                assert document.text.count(stated[0]) == 1


def test_near_copies_differ_in_few_words(built):
    by_word = defaultdict(list)
    for subject in built.facts.subjects.values():
        by_word[subject.kind, subject.word].append(subject.title)
    pairs = [titles[:2] for titles in by_word.values() if len(titles) > 1]
    assert len(pairs) >= 8
    for first, second in pairs:
        words = [Counter(built.documents[title].text.split()) for title in (first, second)]
        assert (words[0] & words[1]).total() > 0.7 * words[0].total()


# -- questions -------------------------------------------------------------------------------------------------------


def test_each_question_needs_each_of_its_three_documents(built):
    table = built.facts.table
    kinds = Counter(question.kind for question in built.questions)
    assert kinds == {"chain": 40, "sum": 25, "intersection": 20, "spread": 15}
    assert len({question.text for question in built.questions}) == len(built.questions) == 100
    for question in built.questions:
        kind, steps = question.metadata["form"]
        form = Form(kind, tuple(map(tuple, steps)))
        titles = question.gold_titles
        assert len(titles) == 3 and [title for title, _ in steps] == list(titles)
        assert len(answers_of(table, form)) == 1
        assert all(len(answers_of(table, form, [title])) != 1 for title in titles)
        assert question.metadata["hops"] == len(question.hops) == len(question.evidences) == 3
        for span, title, triple in zip(question.metadata["gold_spans"], titles, question.evidences, strict=True):
            assert span["title"] == title == triple.subject
            assert span["text"] in built.documents[title].text
            assert triple.object.lower() in span["text"].lower()
        if kind == "chain":
            assert [hop.answer for hop in question.hops] == [triple.object for triple in question.evidences]
            assert question.hops[1].question.count("#1") == question.hops[2].question.count("#2") == 1


def test_no_single_document_states_all_and_guesses_fail(built, retriever):
    """Floors: the majority by kind, the first number of the top hit, and what one document states."""
    questions = built.questions
    majority = 0
    for kind in ("chain", "sum", "intersection", "spread"):
        majority += Counter(q.answers for q in questions if q.kind == kind).most_common(1)[0][1]
    first = 0
    for question in questions:
        (hits,) = retriever.search([question.text], 1)
        numbers = re.findall(r"\d+", hits[0].passage.text)
        first += numbers[:1] == list(question.answers)
    assert majority / len(questions) <= 0.05  # each kind guessed by its commonest answer
    assert first / len(questions) <= 0.05
    for question in questions:
        texts = [built.documents[title].text for title in question.gold_titles]
        numbers = [set(re.findall(r"\d+", text)) for text in texts]
        answer = question.answers[0]
        if question.kind in ("sum", "spread"):
            assert not any(answer in stated for stated in numbers)
        if question.kind == "chain":
            stated = numbers if answer.isdigit() else texts
            assert not any(answer in part for part in stated[:2]) and answer in stated[2]
        if question.kind == "intersection":
            (_, steps) = question.metadata["form"]
            lists = [set(built.facts.table[title][key]) for title, key in steps]
            assert all(len(a & b) > 1 for a, b in itertools.combinations(lists, 2))


def test_one_search_does_not_find_the_three_documents(built, retriever):
    recalls = []
    for question in built.questions:
        (hits,) = retriever.search([question.text], 5)
        recalls.append(len({hit.passage.title for hit in hits} & set(question.gold_titles)) / 3)
    assert 0.2 < sum(recalls) / len(recalls) < 0.7


def test_the_splits_share_no_title_and_no_template():
    titles, words = {}, {}
    for split in SPLITS:
        built = build_documents(DocumentsSpec(split=split, **SMALL))
        titles[split] = set(built.documents)
        words[split] = {subject.word for subject in built.facts.subjects.values()}
    for a, b in itertools.combinations(SPLITS, 2):
        assert not titles[a] & titles[b] and not words[a] & words[b]
    rules = wording()
    pairs = [*rules.counts.values(), *rules.questions.values(), rules.headings, rules.fillers]
    pairs += [
        pair
        for relation in (*rules.links.values(), *rules.lists.values())
        for key, pair in relation.items()
        if key not in ("from", "to")
    ]
    for first, second in pairs:
        assert first and second and not set(first) & set(second)


# -- the source ------------------------------------------------------------------------------------------------------


def card(**questions):
    values = {
        "id": "Tests/LongDocuments-v0",
        "summary": "s",
        "browse": True,
        "questions": {"kind": "documents", **SMALL, **questions},
    }
    return read(EnvCard, values, "test")


def test_the_source_brings_its_corpus_and_equal_options_give_equal_bytes(tmp_path, monkeypatch):
    files = []
    for folder in ("one", "two"):
        monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / folder))
        task = load_task(card(split="validation"))
        files.append(
            task.card.questions.corpus().read_bytes()
            + (task.card.questions.corpus().parent / "questions.jsonl").read_bytes()
        )
    assert files[0] == files[1]
    assert (len(task.questions), task.split, task.card.questions.title) == (
        10,
        "validation",
        "SearchGym long documents",
    )
    assert task.card.questions.count == 10 and task.card.questions.brings_corpus
    built = build_documents(DocumentsSpec(split="validation", **SMALL))
    assert list(read_passages(task.card.questions.corpus())) == passages_of(built)
    assert task.questions == built.questions
    pages = task.rules.pages
    assert len(pages) == 40
    question = task.questions[0]
    for span in question.metadata["gold_spans"]:
        (position,) = pages.find(span["title"])
        assert span["text"] in pages.at(position).text
    other = card(seed=1, split="validation").questions.load(QuestionContext())
    assert other[0].text != question.text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"documents": 39}, "documents"),
        ({"words": 10}, "words"),
        ({"n": 0}, "'n'|questions.n"),
        ({"split": "dev"}, "split"),
        ({"documnts": 50}, "documents"),
    ],
)
def test_options_out_of_range_are_refused(values, message):
    with pytest.raises((CardError, UsageError), match=message):
        card(**values)
    if values.keys() <= {"documents", "words", "n"}:
        with pytest.raises(UsageError, match=f"{next(iter(values))} of at least"):
            DocumentsSpec(**values)


def test_too_many_questions_are_refused():
    with pytest.raises(UsageError, match="ask for fewer questions"):
        build_documents(DocumentsSpec(documents=40, words=1000, n=3000))

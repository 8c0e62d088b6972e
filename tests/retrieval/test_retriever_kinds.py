"""Kinds of retrievers of a user's: found by name, opened, built into parts, and never by an index folder's own card."""

import json
import sys
from typing import Any

import gymnasium
import pytest

from searchgym.errors import CardError, IndexMismatchError, UsageError
from searchgym.options import kinds as kinds_module
from searchgym.options import plain
from searchgym.records import Passage
from searchgym.retrieval import build_index, inspect_index, load_index
from searchgym.retrieval.cards import Sources, find_retriever
from searchgym.retrieval.index.index import MANIFEST, part_names
from searchgym.retrieval.index.trust import names_code
from searchgym.retrieval.kinds.noise import NoiseCard
from searchgym.retrieval.kinds.simulated import SimulatedCard

GROUP = "searchgym.retrieval.kinds"
BIRDS = [Passage("1", "Gull", "A bird of the coast."), Passage("2", "Heron", "A bird of the marsh.")]
CODE = """
open("imported", "w").close()
from dataclasses import dataclass, field
from typing import ClassVar
from searchgym import Hit
from searchgym.retrieval import PartCard, RetrieverCard, Sources
from searchgym.retrieval.cards import Needs

class Last:
    def __init__(self, passages):
        self.page = list(passages)[-1]
    def search(self, queries, k):
        return [[Hit(self.page, 1.0)] for query in queries]

@dataclass(frozen=True, slots=True, kw_only=True)
class LastCard(RetrieverCard):
    searches_corpus: ClassVar = True
    def open(self, sources):
        return Last(sources.passages())

@dataclass(frozen=True, slots=True, kw_only=True)
class FixedCard(RetrieverCard):
    title: str = "T"
    def open(self, sources):
        from searchgym.retrieval import ToolRetriever
        return ToolRetriever(lambda query, k: [{"title": self.title, "text": query}])

@dataclass(frozen=True, slots=True, kw_only=True)
class NothingCard(RetrieverCard):
    def open(self, sources):
        return 3

@dataclass(frozen=True, slots=True, kw_only=True)
class CountedCard(PartCard):
    factor: int = 1
    boost: float = 1.0
    at_search: ClassVar = ("boost",)
    def needs(self, passages, text):
        return Needs(passages, text)
    def builder(self, folder, shards, progress):
        return Counter(self, folder)
    def load(self, folder, facts, passages, sha256, progress):
        from searchgym.retrieval.wrapper import WithCorpus
        assert (folder / "count").read_text() == str(facts["count"]) == str(self.factor * len(passages))
        return WithCorpus(Last(passages), passages, sha256)

class Counter:
    def __init__(self, card, folder):
        self.card, self.folder = card, folder
    def add(self, number, start, passages):
        pass
    def finish(self, shards, passages):
        count = self.card.factor * len(passages)
        (self.folder / "count").write_text(str(count))
        return {"count": count}
"""


@pytest.fixture(autouse=True)
def theirs(tmp_path, monkeypatch):
    """Puts the module ``users_kinds`` into the path, with an entry point for one of its kinds, without importing it."""
    site = tmp_path / "site"
    info = site / "users_kinds-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "users_kinds.py").write_text(CODE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: users_kinds\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nfixed = users_kinds:FixedCard\n")
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(site)
    kinds_module.__globals__["_listed"].cache_clear()
    yield
    sys.modules.pop("users_kinds", None)
    kinds_module.__globals__["_listed"].cache_clear()


def imported(tmp_path):
    return (tmp_path / "imported").exists()


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("card", "title"),
    [
        ({"kind": "users_kinds:LastCard"}, None),
        ("users_kinds:LastCard", None),
        ({"kind": "cache", "of": {"kind": "users_kinds:LastCard"}}, None),
        ({"kind": "fixed", "title": "Mine"}, "Mine"),
        ({"kind": "cache", "of": {"kind": "users_kinds:FixedCard"}}, "T"),
    ],
)
def test_an_environment_searches_by_a_kind_of_the_user_s(card, title):
    env: Any = gymnasium.make("searchgym/Demo-v0", retriever=card)
    env.reset(seed=0)
    env.step("<search>gull</search>")
    (hit, *_) = env.unwrapped.state.searches[0].hits
    assert title is None or hit.passage.title == title
    assert hit.passage.title


def test_a_kind_of_the_user_s_is_read_again_from_plain_data():
    card: Any = find_retriever({"kind": "fixed", "title": "Mine"})
    assert (card.kind, card.title) == (
        "users_kinds:FixedCard",
        "Mine",
    )  # a name that does not change when it is uninstalled
    assert find_retriever(plain(card)) == find_retriever(card) == card
    assert not card.needs_corpus and find_retriever({"kind": "users_kinds:LastCard"}).needs_corpus


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ({"kind": "fixed", "title": 3}, "title: expected a string, got 3"),
        ({"kind": "fixed", "titel": "x"}, "titel: unknown key; did you mean 'title'"),
        ({"kind": "users_kinds:Last"}, "must be one class, a frozen dataclass that inherits RetrieverCard"),
        ({"kind": "users_kinds:None"}, "has no attribute 'None'"),
        ({"kind": "cache", "of": {"kind": "missing:Card"}}, "of: cannot load 'missing:Card'"),
        ({"kind": "fixd"}, "did you mean 'fixed'"),
    ],
)
def test_a_wrong_kind_of_the_user_s_is_refused(card, message):
    with pytest.raises(CardError, match=message):
        find_retriever(card)


def test_what_is_opened_must_be_a_retriever():
    with pytest.raises(UsageError, match="retriever users_kinds:NothingCard returned int, which has no search"):
        gymnasium.make("searchgym/Demo-v0", retriever={"kind": "users_kinds:NothingCard"})
    with pytest.raises(UsageError, match="CacheRetriever wraps retrievers with search"):
        Sources().open(find_retriever({"kind": "cache", "of": {"kind": "users_kinds:NothingCard"}}))
    with pytest.raises(UsageError, match="searches a corpus: name one"):
        Sources().open(find_retriever({"kind": "users_kinds:LastCard"}))


def test_two_kinds_of_one_name_are_named(tmp_path):
    (tmp_path / "site/users_kinds-1.0.dist-info/entry_points.txt").write_text(
        f"[{GROUP}]\nbm25 = users_kinds:FixedCard\n"
    )
    with pytest.raises(CardError, match=r"'bm25' is in searchgym\S+kinds\.bm25 and in users_kinds:FixedCard"):
        find_retriever({"kind": "bm25"})
    assert not imported(tmp_path)


def test_a_kind_of_the_user_s_builds_a_part(tmp_path):
    card = {"kind": "hybrid", "of": ["bm25", {"kind": "users_kinds:CountedCard", "factor": 3}]}
    manifest = build_index(BIRDS, tmp_path / "index", card)
    assert list(manifest.parts) == list(part_names(find_retriever(card))) == ["bm25", "users_kinds-CountedCard"]
    for wanted in (
        card,
        {"kind": "users_kinds:CountedCard", "factor": 3, "boost": 2.0},
        {"kind": "users_kinds:LastCard"},
    ):
        retriever = load_index(tmp_path / "index", card=wanted)
        assert (len(retriever), retriever.corpus_sha256) == (2, manifest.corpus_sha256)
        assert "Heron" in [hit.passage.title for hit in retriever.search(["gull"], 2)[0]]
    with pytest.raises(UsageError, match="has no part for the card 'users_kinds:CountedCard'"):
        load_index(tmp_path / "index", card={"kind": "users_kinds:CountedCard", "factor": 4})
    assert load_index(tmp_path / "index", card="bm25").search(["gull"], 1)[0][0].passage.title == "Gull"
    with pytest.raises(UsageError, match="its own card names code: name one that you trust"):
        load_index(tmp_path / "index")


def test_a_card_that_searches_passages_needs_no_part(tmp_path):
    manifest = build_index(BIRDS, tmp_path / "index", {"kind": "users_kinds:LastCard"})
    assert manifest.parts == {} and inspect_index(tmp_path / "index", verify=True)["passages"] == 2
    retriever = load_index(tmp_path / "index", card={"kind": "noise", "of": {"kind": "users_kinds:LastCard"}})
    assert [page.title for page in retriever.passages()] == ["Gull", "Heron"]


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "change",
    [
        {"retriever": {"kind": "users_kinds:LastCard"}},
        {"retriever": {"kind": "fixed"}},
        {"retriever": {"kind": "cache", "of": {"kind": "users_kinds:LastCard"}}},
        {"retriever": {"kind": "hybrid", "of": [{"kind": "bm25"}, {"kind": "cache", "of": {"kind": "fixed"}}]}},
        {"retriever": {"kind": "bm25", "k1": {"kind": "users_kinds:LastCard"}}},
    ],
)
def test_an_index_folder_names_no_code(tmp_path, change):
    """A folder of somebody else's imports nothing, by whatever key; with a card that the user gives it is read."""
    build_index(BIRDS, tmp_path / "index")
    file = tmp_path / "index" / MANIFEST
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UsageError, match="its own card names code: name one that you trust"):
        load_index(tmp_path / "index")
    assert load_index(tmp_path / "index", card="bm25").search(["gull"], 1)[0][0].passage.title == "Gull"
    assert not imported(tmp_path)


@pytest.mark.parametrize("kind", ["users_kinds:CountedCard", "fixed"])
def test_a_part_of_an_index_folder_names_no_code(tmp_path, kind):
    build_index(BIRDS, tmp_path / "index")
    file = tmp_path / "index" / MANIFEST
    manifest = json.loads(file.read_text())
    manifest["parts"]["bm25"]["card"] = {"kind": kind}
    file.write_text(json.dumps(manifest))
    inspect_index(tmp_path / "index", verify=True)
    for card in (None, "bm25"):
        with pytest.raises(UsageError, match="has no part for the card"):
            load_index(tmp_path / "index", card=card)
    assert not imported(tmp_path)


def test_a_part_of_the_user_s_kind_imports_no_other(tmp_path):
    """The user gave the card of one kind; what the manifest's card of that kind names is not imported for it."""
    card = {"kind": "users_kinds:CountedCard"}
    build_index(BIRDS, tmp_path / "index", card)
    file = tmp_path / "index" / MANIFEST
    manifest = json.loads(file.read_text())
    manifest["parts"]["users_kinds-CountedCard"]["card"]["summary"] = {"kind": "evil:Card"}
    file.write_text(json.dumps(manifest))
    with pytest.raises((CardError, IndexMismatchError), match="summary: expected a string"):
        load_index(tmp_path / "index", card=card)
    assert names_code(manifest["parts"]) and not names_code({"kind": "cache", "of": {"kind": "bm25"}})


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    for name in [name for name in sys.modules if name.startswith("searchgym.retrieval.dense.")]:
        monkeypatch.delitem(sys.modules, name)
    card: Any = find_retriever("e5-flat")  # reading needs no library
    with pytest.raises(UsageError, match=r"kind dense needs another package \(.*faiss.*\[dense\]"):
        card.needs(10, 1000)


@pytest.mark.parametrize(
    ("card", "grows"),
    [
        (NoiseCard(of=find_retriever("bm25")), True),
        (NoiseCard(of=find_retriever("bm25"), steps=10), False),
        (NoiseCard(of=find_retriever("bm25"), start=0.5), False),
        (SimulatedCard(model="m"), True),
        (SimulatedCard(model="m", steps=10), False),
        (find_retriever({"kind": "hybrid", "of": ["bm25", {"kind": "cache", "of": "bm25-noise"}]}), True),
        (find_retriever({"kind": "noise", "of": "bm25-noise", "steps": 5}), True),
        (find_retriever("hybrid-minilm"), False),
    ],
)
def test_what_grows_with_the_number_of_steps(card, grows):
    assert card.grows == grows

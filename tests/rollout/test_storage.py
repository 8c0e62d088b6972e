import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import PASSAGES

from searchgym.errors import DataError
from searchgym.records import (
    Answer,
    Call,
    Context,
    Episode,
    Hit,
    Searched,
    Span,
    SupportingFact,
    Triple,
)
from searchgym.rollout.storage import EpisodeWriter, read_episodes, sidecar

TEXT = st.text(st.characters(codec=None), max_size=20)
FLOATS = st.floats(width=32)


@st.composite
def spans(draw):
    ids = np.array(draw(st.lists(st.integers(0, 2**31 - 1), max_size=6)), np.int32)
    kind = draw(st.sampled_from(["prompt", "model", "observation"]))
    logp = (
        np.array(draw(st.lists(FLOATS, min_size=len(ids), max_size=len(ids))), np.float32) if kind == "model" else None
    )
    return Span(kind, ids, logp)


ANSWERS = st.builds(
    Answer,
    TEXT,
    st.none() | st.lists(st.builds(SupportingFact, TEXT, st.none() | st.integers(0, 9)), max_size=2).map(tuple),
    st.none() | st.lists(st.builds(Triple, TEXT, TEXT, TEXT), max_size=2).map(tuple),
    st.none() | st.lists(st.integers(0, 20), max_size=2).map(tuple),
    st.none() | st.booleans(),
)
SMALL = st.integers(0, 9)
CONTEXTS = st.builds(Context, st.none(), st.just(0), st.lists(spans(), max_size=3))
CALLS = st.builds(Call, SMALL, SMALL, SMALL, TEXT, TEXT, SMALL, text=TEXT)
HITS = st.builds(Hit, st.sampled_from(PASSAGES), st.floats(allow_nan=False))
SEARCHES = st.builds(Searched, SMALL, TEXT, st.lists(HITS, max_size=2).map(tuple))
EPISODES = st.builds(
    Episode,
    id=TEXT,
    question_id=TEXT,
    agent=TEXT,
    env=TEXT,
    group_uid=st.none() | TEXT,
    seed=st.none() | st.integers(),
    contexts=st.lists(CONTEXTS, max_size=3),
    calls=st.lists(CALLS, max_size=2),
    searches=st.lists(SEARCHES, max_size=2),
    answer=st.none() | ANSWERS,
    stop_reason=st.sampled_from([None, "answer", "turns", "retriever_error"]),
    reward=st.floats(allow_nan=False),
    scores=st.dictionaries(TEXT, st.floats(allow_nan=False), max_size=2),
    error=st.none() | TEXT,
)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(episodes=st.lists(EPISODES, min_size=1, max_size=4))
def test_episodes_read_back_equal(tmp_path, episodes):
    path = tmp_path / "episodes.jsonl"
    path.unlink(missing_ok=True)
    sidecar(path).unlink(missing_ok=True)
    for episode in episodes:  # opened anew each time: appending is the same as writing at once
        with EpisodeWriter(path) as writer:
            writer.write(episode)
    assert list(read_episodes(path)) == episodes


def tokens_episode(name="a#0"):
    span = Span("model", np.array([5, 6], np.int32), np.array([-0.5, -0.25], np.float32))
    return Episode(name, "a", "agent", "env", contexts=[Context(None, 0, [span])], answer=Answer("x"))


def test_text_is_json_and_tokens_are_in_the_sidecar(tmp_path):
    path = tmp_path / "episodes.jsonl"
    with EpisodeWriter(path) as writer:
        writer.write(tokens_episode())
    row = json.loads(path.read_text())
    assert row["contexts"][0]["spans"] == [{"kind": "model", "ids": [0, 2], "logp": [8, 2]}]
    assert np.frombuffer(sidecar(path).read_bytes()[:8], "<i4").tolist() == [5, 6]


def test_no_sidecar_without_tokens(tmp_path):
    path = tmp_path / "episodes.jsonl"
    with EpisodeWriter(path) as writer:
        writer.write(Episode("a#0", "a", "agent", "env"))
    assert not sidecar(path).exists()


def test_a_half_written_line_is_cut_off_when_writing_goes_on(tmp_path):
    path = tmp_path / "episodes.jsonl"
    with EpisodeWriter(path) as writer:
        writer.write(tokens_episode("a#0"))
        writer.write(tokens_episode("b#0"))
    path.write_bytes(path.read_bytes()[:-7])
    with EpisodeWriter(path) as writer:
        writer.write(tokens_episode("c#0"))
    assert list(read_episodes(path)) == [tokens_episode("a#0"), tokens_episode("c#0")]


@pytest.mark.parametrize("length", [0, 1, 2**16 - 1, 2**16, 3 * 2**16 + 5])
def test_a_half_line_of_any_length_is_cut_off(tmp_path, length):
    path = tmp_path / "episodes.jsonl"
    with EpisodeWriter(path) as writer:
        writer.write(tokens_episode())
    whole = path.read_bytes()
    path.write_bytes(whole + b"x" * length)
    with EpisodeWriter(path):
        assert path.read_bytes() == whole
    path.write_bytes(b"x" * length)
    with EpisodeWriter(path):
        assert path.read_bytes() == b""


def test_damage_is_an_error_with_its_line(tmp_path):
    path = tmp_path / "episodes.jsonl"
    with EpisodeWriter(path) as writer:
        writer.write(tokens_episode())
        writer.write(tokens_episode())
    sidecar(path).write_bytes(sidecar(path).read_bytes()[:-1])
    with pytest.raises(DataError, match=r"episodes\.jsonl:2: not an episode.*past the sidecar's 31 bytes"):
        list(read_episodes(path))
    path.write_text('{"id": "a#0"}\n')
    with pytest.raises(DataError, match=r"episodes\.jsonl:1: not an episode"):
        list(read_episodes(path))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("question_id",), ["q"]),
        (("stop_reason",), 3),
        (("reward",), "much"),
        (("scores",), {"em": None}),
        (("notes",), [1.0]),
        (("contexts", 0, "fork"), "0"),
        (("contexts", 0, "spans"), [7]),
        (("calls", 0, "text"), {"text": "no"}),
        (("calls", 0, "role"), None),
        (("searches", 0, "query"), 5),
        (("searches", 0, "hits", 0, "score"), "high"),
        (("searches", 0, "hits", 0, "passage", "text"), 1),
        (("answer", "text"), None),
        (("answer", "supporting_facts"), [{"title": 1}]),
    ],
)
def test_a_field_of_another_type_is_an_error_with_its_line(tmp_path, place, value):
    path = tmp_path / "episodes.jsonl"
    call = Call(0, 0, 1, "writer", "main", 1)
    search = Searched(1, "q", (Hit(PASSAGES[0], 1.0),))
    with EpisodeWriter(path) as writer:
        whole = tokens_episode()
        whole.calls, whole.searches = [call], [search]
        whole.answer = Answer("x", (SupportingFact("t"),))
        writer.write(whole)
    assert list(read_episodes(path)) == [whole]
    row = json.loads(path.read_text())
    inner = row
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"episodes\.jsonl:1: not an episode: (Type|Attribute)Error"):
        list(read_episodes(path))


def test_log_probs_must_match_their_ids(tmp_path):
    bad = tokens_episode()
    bad.contexts[0].spans[0].logp = np.zeros(3, np.float32)
    with EpisodeWriter(tmp_path / "episodes.jsonl") as writer, pytest.raises(ValueError, match="2 ids has 3 log-probs"):
        writer.write(bad)

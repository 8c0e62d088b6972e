"""Kinds of files for ``fuzz_files.py``: small valid ones that the package makes, and the reader of each."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from made_predictions import made
from transformers import Qwen2Config, Qwen2ForCausalLM

from searchgym.agents.base import load_agent
from searchgym.corpora.documents import convert_documents
from searchgym.corpora.files import write_jsonl
from searchgym.corpora.passages import read_passages, write_corpus
from searchgym.corpora.questions import read_questions, write_questions
from searchgym.corpora.readers.markdown import FRONT_MATTER
from searchgym.corpora.store.reader import PASSAGES
from searchgym.envs.cards import EnvCard
from searchgym.envs.registration import find_env
from searchgym.envs.task import Task, load_task
from searchgym.eval.formats import PREDICTION_FORMATS, read_predictions, score_answers, write_predictions
from searchgym.eval.leaderboard.check import agent_of, check_submission
from searchgym.eval.leaderboard.manifest import digest
from searchgym.eval.leaderboard.replay import replay_episodes
from searchgym.eval.leaderboard.submission import About, write_submission
from searchgym.eval.leaderboard.table import build_board
from searchgym.eval.leaderboard.tasks import Tasks
from searchgym.eval.report.board import board_page
from searchgym.eval.report.markdown import to_markdown
from searchgym.eval.run_folder import read_finished
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.options import plain
from searchgym.options.cards import CorpusCard, EncoderCard, find_card, load_card
from searchgym.options.yaml import parse_yaml
from searchgym.questions.graphs.packs import load_pack
from searchgym.questions.spec import GeneratedSpec
from searchgym.questions.storage import read_split, write_set
from searchgym.questions.worlds.build import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.questions.worlds.storage import read_world, write_world
from searchgym.records import Context, Passage, Span
from searchgym.retrieval import encoders
from searchgym.retrieval.cards import find_encoder, find_retriever
from searchgym.retrieval.index.build import build_index
from searchgym.retrieval.index.index import MANIFEST, describe_files, inspect_index, load_index
from searchgym.retrieval.kinds.dense import DenseCard
from searchgym.retrieval.retriever import NullRetriever
from searchgym.rollout.loading import generation_settings, load_model, load_tokenizer
from searchgym.rollout.storage import EpisodeWriter, read_episodes
from searchgym.train.learner.learner import LocalLearner
from searchgym.train.loop.checkpoint import load_checkpoint, save_checkpoint
from searchgym.train.recipe.load import load_recipe, read_recipe
from searchgym.train.recipe.recipe import dump_recipe

DEMO = Path(find_card("corpora", "demo")).parent.parent / "searchgym" / "demo"
CARD = "card.yaml"


@dataclass(frozen=True)
class Kind:
    """Files of one kind."""

    make: Callable[[Path], object]
    """Function that writes valid files to a new folder."""
    read: Callable[[Path], object]
    """Function that loads the files and uses the result."""
    code: bool = False
    """Whether such a file names code by design; if so, the reader works in another folder, without code."""
    seal: Callable[[Path], object] | None = None
    """Function that updates checksums after a change, as a forger would."""


# -- indexes -------------------------------------------------------------------------------------------------------


class HashEncoder:
    """Encoder without a model: the hash of each word seeds a random vector."""

    def __init__(self, card: EncoderCard) -> None:
        self.card = card

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """Returns the vectors of texts, of length 1."""
        rows = []
        for text in texts:
            words = [hashlib.sha256(word.encode("utf-8", "replace")).digest()[:8] for word in f"{text} .".split()]
            rows.append(np.sum([np.frombuffer(word, np.int8) for word in words], axis=0, dtype=np.float32) + 0.5)
        return np.array([row / np.linalg.norm(row) for row in rows], np.float32).reshape(-1, 8)

    def encode_passages(self, passages: Sequence[Passage]) -> Any:
        """Returns the vectors of passages."""
        return self.encode_queries([f"{passage.title} {passage.text}" for passage in passages])


DENSE = DenseCard(encoder=EncoderCard(name="hash", model="hash", dimension=8))


def demo_passages() -> list[Passage]:
    """Returns the bundled corpus."""
    return list(read_passages(DEMO / "corpus.jsonl"))


def make_dense(folder: Path) -> None:
    """Writes a dense index."""
    encoders.load_encoder = HashEncoder  # type: ignore[assignment]
    build_index(demo_passages(), folder, DENSE)


def read_dense(folder: Path) -> None:
    """Reads a dense index by a card of the reader's."""
    encoders.load_encoder = HashEncoder  # type: ignore[assignment]
    read_index(folder, DENSE)


def read_index(folder: Path, card: DenseCard | None = None) -> None:
    """Reads an index, searches it and reads its passages."""
    inspect_index(folder, verify=True)
    retriever = load_index(folder, card=card)
    retriever.search(["Who founded the town on the river?", "the", ""], 3)
    list(retriever.passages())


def seal_index(folder: Path) -> None:
    """Writes sizes and checksums of the files to the manifest."""
    try:
        if (folder / MANIFEST).is_symlink():  # to a device, for instance, which this must not read
            return
        manifest = json.loads((folder / MANIFEST).read_bytes())
        shutil.rmtree(folder / "planted", ignore_errors=True)
        (folder / "planted.py").unlink(missing_ok=True)
        files = {name: dataclasses.asdict(file) for name, file in describe_files(folder).items() if name != MANIFEST}
        manifest |= {"files": files, "corpus_sha256": files[PASSAGES]["sha256"]}
        (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    except Exception:
        pass  # so damaged that it stays as it is


# -- cards ---------------------------------------------------------------------------------------------------------


def copied(kind: str, name: str) -> Callable[[Path], None]:
    """Returns a function that copies a shipped card, with its folder where it has one."""

    def make(folder: Path) -> None:
        source = find_card(kind, name)
        if source.name == CARD:
            shutil.copytree(source.parent, folder)
        else:
            write(folder, {CARD: source.read_text(encoding="utf-8")})

    return make


def write(folder: Path, texts: dict[str, str]) -> None:
    """Writes texts by file names."""
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def read_environment(folder: Path) -> None:
    """Reads an environment's card and makes a task of it."""
    card = load_card(EnvCard, folder / CARD)
    load_task(card, questions=read_questions(DEMO / "questions.json"), retriever=NullRetriever())


def make_retriever(folder: Path) -> None:
    """Writes a retriever's card with inner cards."""
    import yaml

    write(folder, {CARD: yaml.safe_dump(plain(find_retriever("hybrid-minilm")), sort_keys=False)})


# -- models --------------------------------------------------------------------------------------------------------


def tiny_model() -> Any:
    """Returns a model of a few kilobytes for the shipped tokenizer."""
    config = Qwen2Config(
        vocab_size=len(load_tokenizer("tiny")),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    make: Any = Qwen2ForCausalLM
    return make(config).eval()


def make_model(folder: Path) -> None:
    """Writes a model with its tokenizer."""
    tiny_model().save_pretrained(folder)
    load_tokenizer("tiny").save_pretrained(folder)


def read_model(folder: Path) -> None:
    """Reads a model with its tokenizer and its settings."""
    load_model(folder)
    generation_settings(folder)


def learner() -> LocalLearner:
    """Returns a learner of the tiny model."""
    return LocalLearner(load_recipe("tiny-grpo"), tiny_model())


def make_checkpoint(folder: Path) -> None:
    """Writes a checkpoint after one update."""
    made = learner()
    optimizer = made.policy.updater.optimizer
    for parameter in made.policy.updater.model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    progress = {"step": 1, "generated_tokens": 9, "best_step": None, "best_score": None}
    save_checkpoint(folder, made, load_tokenizer("tiny"), {"progress": progress, "files": {"metrics.jsonl": 3}})


def read_checkpoint(folder: Path) -> None:
    """Reads a checkpoint into a learner of the same shape."""
    load_checkpoint(folder, learner())


# -- data ----------------------------------------------------------------------------------------------------------


def demo_task() -> Task:
    """Returns the bundled environment with three questions."""
    return load_task(find_env("Demo"), retriever=NullRetriever()).subset(3)


def make_run(folder: Path) -> None:
    """Writes an evaluation, with tokens in its episodes."""
    evaluate(demo_task(), load_agent("single-search"), folder)
    path = folder / "episodes.jsonl"
    episodes = list(read_episodes(path))
    path.unlink()
    span = Span("model", np.arange(5, dtype=np.int32), np.full(5, -0.5, np.float32))
    with EpisodeWriter(path) as writer:
        for episode in episodes:
            writer.write(dataclasses.replace(episode, contexts=[Context(None, 0, [span])]))


def read_run(folder: Path) -> None:
    """Reads the episodes of an evaluation, and resumes it."""
    list(read_episodes(folder / "episodes.jsonl"))
    evaluate(demo_task(), load_agent("single-search"), folder, options=EvalOptions(resume=True))


QUESTIONS: dict[str, list[dict[str, Any]]] = {
    "hotpotqa": [
        {
            "_id": "a",
            "question": "Who?",
            "answer": "She",
            "type": "bridge",
            "level": "hard",
            "supporting_facts": [["Mayor", 1]],
            "context": [["Mayor", ["She is.", " She was."]], ["Gamma", ["A letter."]]],
        }
    ],
    "2wiki": [
        {
            "_id": "a",
            "type": "compositional",
            "question": "Who is the mother of the director?",
            "context": [["Film", ["A film.", "It has a director."]]],
            "supporting_facts": [["Film", 1]],
            "evidences": [["Film", "director", "Director"]],
            "evidences_id": [["Q1", "director", "Q2"]],
            "answer": "Ann",
            "answer_id": "Q3",
        }
    ],
    "musique": [
        {
            "id": "2hop__1_2",
            "paragraphs": [{"idx": 0, "title": "Green", "paragraph_text": "By Steve.", "is_supporting": True}],
            "question": "Who?",
            "question_decomposition": [
                {"id": 1, "question": "Green >> by", "answer": "Steve", "paragraph_support_idx": 0}
            ],
            "answer": "Miq",
            "answer_aliases": ["Miquette"],
            "answerable": True,
        }
    ],
    "flashrag": [
        {
            "id": "t",
            "question": "who",
            "golden_answers": ["W", "R"],
            "metadata": {"type": "bridge", "supporting_facts": {"title": ["A"], "sent_id": [0]}},
        }
    ],
    "kilt": [
        {
            "id": "k",
            "input": "Who?",
            "output": [{"answer": "W", "provenance": [{"wikipedia_id": "1", "title": "A"}]}],
        }
    ],
    "search-r1": [
        {
            "data_source": "nq",
            "prompt": [{"role": "user", "content": "Answer. Question: who?"}],
            "reward_model": {"ground_truth": {"target": ["W"]}},
            "extra_info": {"split": "train", "index": 1},
        }
    ],
}
"""One question in each published format."""
CORPORA: dict[str, Any] = {
    "titles": [{"title": "A", "text": "An a."}, {"title": "B", "text": "A b."}],
    "pages": {"A": ["An a.", " Two."], "B": ["A b."]},
    "contents": [{"id": "1", "contents": '"A"\nAn a.'}],
    "beir": [{"_id": "1", "title": "A", "text": "An a."}],
}
"""One small corpus in each published format."""


def make_json(folder: Path) -> None:
    """Writes questions and corpora of every format."""
    folder.mkdir(parents=True)
    for group, contents in (("questions", QUESTIONS), ("corpus", CORPORA)):
        for name, content in contents.items():
            (folder / f"{group}-{name}.json").write_text(json.dumps(content), encoding="utf-8")
    write_questions(folder / "questions-own.jsonl", read_questions(DEMO / "questions.json")[:3])
    write_corpus(folder / "corpus-own.jsonl", demo_passages()[:3])


def read_json_files(folder: Path) -> None:
    """Reads every file of questions or passages in a folder."""
    for file in sorted(folder.iterdir()):
        if file.name.startswith("questions"):
            read_questions(file)
        elif file.name.startswith("corpus"):
            list(read_passages(file))


def make_predictions(folder: Path) -> None:
    """Writes made-up predictions in every format, each with the official file of its questions."""
    for format in PREDICTION_FORMATS:
        own = made(format, 6)
        write_jsonl(folder / f"{format}-gold.jsonl", own.gold)
        questions = read_questions(folder / f"{format}-gold.jsonl")
        write_predictions(folder / f"{format}.json", own.predictions, questions, format, format == "kilt")


def read_scored_predictions(folder: Path) -> None:
    """Reads and scores the predictions of every format."""
    for format in PREDICTION_FORMATS:
        questions = read_questions(folder / f"{format}-gold.jsonl")
        score_answers(read_predictions(folder / f"{format}.json", questions), questions, format)


def make_archives(folder: Path) -> None:
    """Writes compressed questions and passages."""
    folder.mkdir(parents=True)
    write_questions(folder / "questions-own.jsonl.gz", read_questions(DEMO / "questions.json"))
    write_corpus(folder / "corpus-own.jsonl.gz", demo_passages())


def make_documents(folder: Path) -> None:
    """Writes documents with a front matter in YAML."""
    texts = {f"{n}.md": f"---\ntitle: Page {n}\ntags: [a, b]\n---\n# Heading\n\nText {n}.\n" for n in range(3)}
    write(folder, texts)


def read_front_matter(folder: Path) -> None:
    """Converts documents, where a front matter that is no YAML counts as text, and reads the front matter as YAML."""
    for passage in convert_documents(folder):
        found = FRONT_MATTER.match((folder / passage.id).read_text(encoding="utf-8", errors="replace"))
        parse_yaml(found[1] if found else "[", passage.id)


def make_questions(folder: Path) -> None:
    """Makes a set of generated questions."""
    films = [Passage(f"f{n}", f"Film No{n}", f"Film No{n} is a 19{n} film directed by Ann Lee.") for n in range(10, 40)]
    write_set(films, GeneratedSpec(n=20, shapes=("chain", "comparison")), folder)


SUITE = "suite.yaml"


def make_submission(folder: Path) -> None:
    """Makes a submission, with the card of its suite and the run that it is made from."""
    write(folder, {SUITE: "name: small\nsummary: s\nparts:\n  - env: Demo\n    n: 12\n"})
    task = load_task(find_env("searchgym/Demo-v0"))
    evaluate(task, load_agent("single-search"), folder / "run")
    about = About("a row", "a tester")
    write_submission(folder / "run", "small", "Demo", about, folder / "submission", Tasks(cards=[folder / SUITE]))


def read_submission(folder: Path) -> None:
    """Checks a submission, repeats some of it, and reads its run for a comparison."""
    tasks = Tasks(cards=[folder / SUITE])
    board = build_board([folder / "submission"], tasks)
    to_markdown(board_page(board))
    checked = check_submission(folder / "submission", tasks)
    replay_episodes(checked, agent_of(checked.manifest, None), 3)
    read_finished(folder / "run")


def seal_submission(folder: Path) -> None:
    """Updates the checksums and seals of a changed submission."""
    own = folder / "submission"
    faults = OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError
    with contextlib.suppress(*faults):  # damaged beyond that
        manifest = json.loads((own / "manifest.json").read_text(encoding="utf-8"))
        files = [name for name in manifest["files"] if (own / name).is_file()]
        manifest["files"] |= {name: hashlib.sha256((own / name).read_bytes()).hexdigest() for name in files}
        manifest["seal"] = {name: digest(value) for name, value in manifest.items() if name != "seal"}
        (own / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


KINDS: dict[str, Kind] = {
    "index": Kind(lambda folder: build_index(demo_passages(), folder), read_index, seal=seal_index),
    "dense index": Kind(make_dense, read_dense, seal=seal_index),
    "environment": Kind(copied("envs", "demo"), read_environment, code=True),
    "agent": Kind(copied("agents", "jade"), lambda folder: load_agent(str(folder / CARD)), code=True),
    "retriever": Kind(make_retriever, lambda folder: find_retriever(str(folder / CARD))),
    "encoder": Kind(copied("encoders", "minilm"), lambda folder: find_encoder(str(folder / CARD))),
    "corpus card": Kind(copied("corpora", "demo"), lambda folder: load_card(CorpusCard, folder / CARD)),
    "recipe": Kind(
        lambda folder: write(folder, {CARD: dump_recipe(load_recipe("tiny-jade"))}),
        lambda folder: read_recipe(folder / CARD),
    ),
    "model": Kind(make_model, read_model),
    "checkpoint": Kind(make_checkpoint, read_checkpoint),
    "episodes": Kind(make_run, read_run),
    "gzip": Kind(make_archives, read_json_files),
    "yaml": Kind(make_documents, read_front_matter),
    "json": Kind(make_json, read_json_files),
    "predictions": Kind(make_predictions, read_scored_predictions),
    "world": Kind(
        lambda folder: write_world(build_world(WorldSpec(size=20)), folder),
        read_world,
    ),
    "pack": Kind(copied("packs", "people-and-works"), lambda folder: load_pack(str(folder / CARD))),
    "submission": Kind(make_submission, read_submission, seal=seal_submission),
    "question set": Kind(make_questions, lambda folder: read_split(folder, "all")),
}
"""Kinds by name."""

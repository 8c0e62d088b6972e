"""The tiny model's pipeline: demonstrations, tokenizer, first steps of training."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import tiny_model as model
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from muon import Float32Muon
from played_worlds import token_format, tokenizer, world
from tiny import Run, Trainer, batches, lessons, main, rate_scale, stage_at
from tiny_exam import Examiner, by_hops, model_copy
from tiny_lessons import (
    demonstration_samples,
    exercise_samples,
    with_one_page,
    worlds,
)
from tiny_model import TAGS, Stage, TinySettings, make_model, sharpened, train_tokenizer
from transformers import AutoTokenizer

from searchgym.errors import UsageError, WorldTooSmallError
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Question
from searchgym.rollout.loading import load_model

pytestmark = pytest.mark.study
MICRO = TinySettings(
    tokens=6_000,
    tokenizer_worlds=4,
    hidden=32,
    layers=1,
    heads=2,
    intermediate=64,
    batch_tokens=500,
    evaluations=2,
    autocast=False,
)


# -- demonstrations ------------------------------------------------------------------------------------------------


def test_the_same_world_gives_the_same_demonstrations():
    one, two = (demonstration_samples(world(), 0.65, token_format()) for _ in range(2))
    assert [s.ids.tobytes() for s in one] == [s.ids.tobytes() for s in two]
    stream = worlds(3, 40)
    first, second = next(stream), next(stream)
    assert first.passages == build_world(WorldSpec("simple", size=40, seed=3_000_000, split="train")).passages
    assert first.passages != second.passages


def test_a_world_that_has_too_few_questions_of_some_kind_is_left_out():
    with pytest.raises(WorldTooSmallError, match="no further inference question"):
        build_world(WorldSpec("simple", 60, 36_000_005, "train"))
    seeds = [world.spec.seed - 36_000_000 for world in itertools.islice(worlds(36, 60), 6)]
    assert seeds == [0, 1, 2, 3, 4, 6]


def test_a_size_that_no_world_has_questions_for_is_an_error(monkeypatch):
    tried = []

    def small(spec):
        tried.append(spec.seed)
        raise WorldTooSmallError(f"a world of {spec.size} questions is too small")

    monkeypatch.setattr("tiny_lessons.build_world", small)
    with pytest.raises(WorldTooSmallError, match="a world of 40 questions"):
        next(worlds(3, 40))
    assert tried == [3_000_000 + number for number in range(10)]


def test_exercises_ask_for_every_fact_of_their_pages():
    passages = {passage.title: passage for passage in world().passages}
    for sample in exercise_samples(world(), 2, token_format()):
        text, answers = token_format().decode(sample.ids), token_format().decode(sample.ids[sample.mask])
        shown = [title for title in passages if f"(Title: {title})" in text]
        assert len(shown) == 2
        facts = [fact for fact in world().triples if fact.subject in shown]
        assert answers.count("<answer>") == len(facts)
        said = [text.split("</think>") for text in answers.split("<think>") if text]
        for fact in facts:  # pages that are found together may have facts with the same object
            (quoted,) = [
                thought.strip()
                for thought, answer in said
                if answer == f"<answer> {fact.object}</answer>" and fact.subject in thought
            ]
            assert f" {quoted}" in passages[fact.subject].text
        assert not sample.mask[0]


# -- tokenizer and model -------------------------------------------------------------------------------------------


@given(st.text())
@settings(max_examples=50, deadline=None)
def test_any_text_comes_back(text):
    clean = text.encode("utf-8", "replace").decode()
    assert token_format().decode(tokenizer()(clean, add_special_tokens=False)["input_ids"]) == clean
    assert token_format().decode(token_format().observation_ids(clean, "stop")) == clean


def test_tags_are_single_ordinary_tokens():
    for tag in TAGS:
        assert len(token_format().observation_ids(f" a{tag} b", "stop")) == 3
        assert not tokenizer().added_tokens_decoder[tokenizer().convert_tokens_to_ids(tag)].special


def test_names_of_all_splits_are_spelled_in_pieces_alike():
    lengths = {
        split: [len(token_format().observation_ids(f" {p.title}", "stop")) for p in world(5, split).passages]
        for split in ("train", "validation", "test")
    }
    assert min(lengths["train"]) > 1
    means = [np.mean(own) for own in lengths.values()]
    assert max(means) < 1.25 * min(means), means


def test_the_same_settings_give_the_same_tokenizer():
    first = train_tokenizer(MICRO)
    model._trained_bpe.cache_clear()
    second = train_tokenizer(MICRO)
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()
    assert first.chat_template == tokenizer().chat_template


def test_the_shipped_tokenizer_is_that_of_the_shipped_settings():
    assert train_tokenizer(TinySettings()).backend_tokenizer.to_str() == tokenizer().backend_tokenizer.to_str()


def test_the_default_model_is_of_the_size_that_ships():
    model = make_model(TinySettings(), tokenizer())
    parameters = sum(p.numel() for p in model.parameters())
    assert 3e6 < parameters < 4e6
    assert 2 * parameters < 10e6
    assert model.config.max_position_embeddings >= 8192
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    with pytest.raises(UsageError, match="a vocabulary of 300 is too small"):
        make_model(dataclasses.replace(MICRO, vocabulary=300), tokenizer())


def test_new_heads_look_back_one_two_and_three_tokens():
    model = make_model(dataclasses.replace(MICRO, hidden=128, heads=4), tokenizer())
    model.set_attn_implementation("eager")
    ids = torch.randint(0, 500, (1, 50), generator=torch.Generator().manual_seed(0))
    (attention,) = model(input_ids=ids, output_attentions=True).attentions
    for head in range(3):
        assert attention[0, head].diagonal(-1 - head).min() > 0.8
    assert attention[0, 3, 40].max() < 0.1  # the last one looks everywhere


# -- training ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_loss_falls_on_a_handful_of_demonstrations():
    samples = demonstration_samples(world(), 0.0, token_format())[:4]
    quick = dataclasses.replace(MICRO, stages=(Stage(share=1, lesson="episode"),), other_lr=0.01)
    trainer = Trainer(make_model(quick, tokenizer()), quick)
    losses = [trainer.step(samples, 0.5)[0] for _ in range(30)]
    assert losses[0] == pytest.approx(np.log(MICRO.vocabulary), rel=0.05)  # random weights: all tokens as likely
    assert losses[-1] < 0.5 * losses[0]


def first_weights(seed):
    run = Run.start(dataclasses.replace(MICRO, seed=seed))
    run.train()
    return b"".join(tensor.numpy().tobytes() for tensor in run.model.state_dict().values()), run.tokens


def test_the_same_seed_gives_the_same_bits():
    state = torch.get_rng_state()
    one = first_weights(0)
    assert one == first_weights(0)
    assert one[0] != first_weights(1)[0]
    assert one[1] >= MICRO.tokens
    assert torch.equal(torch.get_rng_state(), state)


def test_stages_and_rates_by_hand():
    stages = (Stage(share=1, lesson="exercise"), Stage(share=3, lesson="episode"))
    assert [stage_at(stages, progress) for progress in (0, 0.24, 0.25, 0.9, 1.0, 1.1)] == [0, 0, 1, 1, 1, 1]
    rates = dataclasses.replace(MICRO, warmup=0.1, decay=0.2)
    scales = [round(rate_scale(p, rates), 3) for p in (0.0, 0.04, 0.2, 0.5, 0.9, 1.0, 1.1)]
    assert scales == [0.1, 0.5, 1, 1, 0.5, 0, 0]


def test_updates_hold_all_samples_once_and_enough_tokens():
    samples = exercise_samples(world(), 1, token_format())
    updates = batches(samples, 1000)
    assert [id(sample) for update in updates for sample in update] == [id(sample) for sample in samples]
    assert len(updates) > 3
    for update in updates:
        assert sum(len(sample.ids) for sample in update) >= 1000
    for update in updates[:-1]:  # the last one took what was left
        assert sum(len(sample.ids) for sample in update[:-1]) < 1000
    assert batches(samples[:2], 10**6) == [samples[:2]]


def test_a_stopped_run_resumes_to_the_same_bits(tmp_path, monkeypatch):
    whole, stopped = Run.start(MICRO), Run.start(MICRO)
    whole.train(out=tmp_path / "whole")
    save, saves = Run.save, []

    def save_and_stop(run, out, trainer):
        save(run, out, trainer)
        saves.append(out)
        raise KeyboardInterrupt

    specs = {"validation": WorldSpec("simple", size=8, seed=1, split="validation")}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Run, "save", save_and_stop)
        stopped.train(Examiner(specs, stopped.tokenizer, stopped.form), tmp_path / "stopped")
    assert len(saves) == 1
    assert 0 < stopped.tokens < MICRO.tokens
    other = Run.start(dataclasses.replace(MICRO, matrix_lr=0.1))
    with pytest.raises(UsageError, match="other settings"):
        other.train(out=tmp_path / "stopped", resume=True)
    resumed = Run.start(MICRO)
    resumed.train(Examiner(specs, stopped.tokenizer, stopped.form), tmp_path / "stopped", resume=True)
    assert len(resumed.history) == 2
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name])
    with pytest.raises(UsageError, match="no unfinished training"):
        Run.start(MICRO).train(out=tmp_path / "stopped", resume=True)


@pytest.mark.parametrize("review", [False, True])
def test_exercises_and_openings_are_mixed_in_where_a_stage_reviews(review):
    stage = Stage(share=1, lesson="single", pages=3, review=review)
    samples = list(itertools.chain(*lessons(stage, [world()], token_format(), 0, 1000)))
    exercises = [sample for sample in samples if sample.episode_id.startswith("exercise")]
    openings = [sample for sample in samples if sample.episode_id.startswith("opening")]
    assert len(exercises) == (len(world().passages) // 3 if review else 0)
    assert len(openings) == (sum(q.kind != "single" for q in world().questions) if review else 0)
    assert len(samples) - len(exercises) - len(openings) == len(with_one_page(world()).questions)


def test_scores_by_hops():
    asked = [Question(str(i), "?", ("x",), metadata={"hops": hops}) for i, hops in enumerate((1, 2, 2))]
    assert by_hops(zip(asked, (1.0, 1.0, 0.0), strict=True)) == {"1": 1.0, "2": 0.5, "all": 0.6667}


def test_a_run_is_evaluated_and_saved_in_a_format_that_loads(tmp_path):
    run = Run.start(MICRO)
    specs = {"validation": WorldSpec("simple", size=8, seed=1, split="validation")}
    run.train(Examiner(specs, run.tokenizer, run.form), tmp_path / "tiny")
    model, loaded = load_model(tmp_path / "tiny", chat=True)
    for name, weight in run.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight.to(torch.bfloat16).float())
    auto = AutoTokenizer.from_pretrained(tmp_path / "tiny")
    for text in (
        "<think> a</think><search> Zletor 1849</search>\n",
        "Doc 1(Title: It's) built in 1904, 12.5 km\n\n\n",
    ):
        assert loaded(text)["input_ids"] == auto(text)["input_ids"] == run.tokenizer(text)["input_ids"]
    summary = json.loads((tmp_path / "tiny" / "summary.json").read_text())
    assert summary["tokens"] == run.tokens
    assert [row["stage"] for row in summary["history"]] == [3, 4]
    last = summary["history"][-1]["validation"]
    assert set(last) == {"reading", "search"}
    assert set(last["reading"]) == {"1", "2", "3", "4", "all"}
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_sharpened_model_samples_at_temperature_1_as_it_was_at_one_half(tmp_path):
    """Also in bfloat16, where a factor of 2 rounds nothing; the model that training goes on with is left as it was."""
    options = dataclasses.replace(MICRO, sharpness=2.0)
    run = Run(options, tokenizer(), token_format(), make_model(options, tokenizer()), tokens=options.tokens)
    run.save(tmp_path / "model", Trainer(run.model, run.settings))
    plain = model_copy(run.model).to(torch.bfloat16).float()
    ids = torch.arange(12)[None]
    with torch.no_grad():
        wanted = torch.softmax(plain(input_ids=ids).logits / 0.5, -1)
        found = torch.softmax(load_model(tmp_path / "model")[0](input_ids=ids).logits, -1)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
        doubled = sharpened(model_copy(run.model), 3.0)(input_ids=ids).logits
        torch.testing.assert_close(doubled, 3 * run.model(input_ids=ids).logits, atol=1e-4, rtol=1e-4)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(SystemExit, match="not a model made by this command"):
        main(["--out", str(tmp_path), "--tokens", "10"])
    assert (tmp_path / "precious.txt").read_text() == "x"


@pytest.mark.parametrize(("as_in_float32", "within"), [(True, 0.0), (False, 0.05)])
def test_muon_in_float32_is_torchs_but_for_rounding(as_in_float32, within, monkeypatch):
    if as_in_float32:  # torch's own, without its one cast
        monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    rng = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=rng) for shape in ((24, 8), (8, 24), (8, 8))]
    taken: list[list[torch.Tensor]] = []
    for muon in (torch.optim.Muon, Float32Muon):
        matrices = [matrix.clone() for matrix in start]
        optimizer = muon(matrices, lr=0.1, weight_decay=0.01)
        rng.manual_seed(1)
        for _ in range(3):
            for matrix in matrices:
                matrix.grad = torch.randn(matrix.shape, generator=rng)
            optimizer.step()
        assert set(optimizer.state_dict()["state"][0]) == {"momentum_buffer"}
        taken.append([(matrix - before) for matrix, before in zip(matrices, start, strict=True)])
    for torchs, ours in zip(*taken, strict=True):
        assert float((torchs - ours).norm() / torchs.norm()) <= within
    assert float(taken[0][0].norm()) > 0.1

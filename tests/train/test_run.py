"""A recipe from the command line to checkpoints, on a real model, environment and sampler."""

import contextlib
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_models import tiny_qwen2, tiny_tokenizer
from transformers import AutoModelForCausalLM

from searchgym.cli import main
from searchgym.corpora.files import iter_jsonl
from searchgym.rollout.storage import read_episodes
from searchgym.train.loop.assembly import assemble
from searchgym.train.loop.folder import VARYING, read_advantages
from searchgym.train.recipe.load import load_recipe

RECIPE = """
name: tiny-test
summary: two steps on the bundled questions
method: policy
model: {model}
env: searchgym/Demo-v0
agent: {agent}
steps: 2
env_options: {{max_turns: 2, reward: "test_run:length"}}
rollout: {{questions: 3, attempts: 4}}
optimizer: {{lr: 1e-3}}
validation: {{every: 2, questions: 4, env_options: {{reward: em}}}}
checkpoint: {{every: 1, keep_last: 2}}
log: {{tensorboard: false, curve: false}}
"""


def length(state):
    """Rewards searching, which a random model does by chance: groups differ."""
    return float(len(state.searches))


def seldom(state):
    """Rewards searching on the question whose calls may be illegal: other groups have no signal."""
    return float(len(state.searches) * (state.question.id == "demo-03"))


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    tiny_qwen2(max_position_embeddings=4096).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    agent = tmp_path / "agent"
    agent.mkdir()
    (agent / "p.md").write_text("{question}")
    (agent / "card.yaml").write_text(
        "name: own-prompt\nsummary: s\nworkflow: test_run:OneTurn\n"
        "roles: {searcher: {prompt: p.md, fields: [question], max_tokens: 12, penalty: -0.5}}\n"
    )
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(model=tmp_path / "model", agent=agent))
    torch.set_num_threads(1)
    return tmp_path / "recipe.yaml"


class OneTurn:
    """Acts on what the parity of the sampled text says: a random model gets different rewards."""

    async def run(self, question, io):
        from searchgym.records import Answer, Search

        chat = io.open("searcher", question=question.text)
        reply = await chat.generate()
        reply.call.legal = question.id != "demo-03" or len(reply.text) % 3 > 0
        observation = await io.step(Search((question.text,)) if len(reply.text) % 2 else Answer(reply.text))
        if not observation.done:
            chat.observe(observation.text)
            await io.step(Answer((await chat.generate()).text))


def cli(monkeypatch, capsys, *args):
    monkeypatch.setattr(sys, "argv", ["searchgym", "train", *map(str, args), "--json"])
    capsys.readouterr()
    main_exit = None
    try:
        main()
    except SystemExit as ended:
        main_exit = ended.code
    out, err = capsys.readouterr()
    return main_exit or 0, out, err


def metrics(folder):
    rows = [row for _, row in iter_jsonl(folder / "metrics.jsonl")]
    return [{name: value for name, value in row.items() if not name.startswith(VARYING)} for row in rows]


@pytest.mark.slow
def test_a_recipe_trains_and_resumes_to_the_same_bits(recipe, tmp_path, monkeypatch, capsys):
    status, out, err = cli(monkeypatch, capsys, recipe, "--out", "whole")
    assert status == 0, err
    assert "Loading weights" not in err and "\x1b" not in err
    lines = err.splitlines()
    assert lines[0] == "run folder: whole"
    assert lines[1] == "training: 12 questions: bridge 9, comparison 3"
    assert lines[2] == "validation: 4 questions: bridge 3, comparison 1"
    assert [line.split(" · ")[0] for line in lines[3:6]] == ["step 0/2", "step 1/2", "step 2/2"]
    assert not any(line.startswith("next:") for line in lines)  # the output is one JSON object
    assert " a step · " in lines[4] and lines[4].endswith(" left")
    summary = json.loads(out)
    assert (summary["steps"], summary["recipe"]) == (2, "tiny-test")
    rows = metrics(tmp_path / "whole")
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(row["retokenisation_mismatch"] == 0 for row in rows[1:])
    assert rows[1]["rollout/reward_std"] > 0
    episodes = list(read_episodes(tmp_path / "whole" / "episodes.jsonl"))
    assert len(episodes) == 2 * 3 * 4
    assert len({episode.group_uid for episode in episodes}) == 2 * 3
    assert {call.policy_version for e in episodes for call in e.calls} == {0, 1}

    assert cli(monkeypatch, capsys, recipe, "steps=1", "--out", "half")[0] == 0
    assert metrics(tmp_path / "half")[1]["rollout/reward"] == rows[1]["rollout/reward"]
    assert cli(monkeypatch, capsys, recipe, "--out", "half", "--resume")[0] == 0
    assert metrics(tmp_path / "half")[2] == rows[2]

    trained = AutoModelForCausalLM.from_pretrained(summary["checkpoint"])
    extended = AutoModelForCausalLM.from_pretrained(tmp_path / "half" / "checkpoints" / "last")
    assert all(torch.equal(a, b) for a, b in zip(trained.parameters(), extended.parameters(), strict=True))
    before = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    moved = [not torch.equal(a, b) for a, b in zip(trained.parameters(), before.parameters(), strict=True)]
    assert any(moved)

    assert cli(monkeypatch, capsys, recipe, "--out", "again")[0] == 0
    assert metrics(tmp_path / "again") == rows
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again" / "checkpoints" / "last")
    assert all(torch.equal(a, b) for a, b in zip(trained.parameters(), again.parameters(), strict=True))


@pytest.mark.slow
def test_a_step_after_a_validation_is_computed_like_that_of_a_resumed_run(tmp_path):
    """Who resumes there has not validated: the same forward passes, so the same bits."""
    recipe = load_recipe("tiny-grpo", ["validation.questions=2"])
    passes = []
    for validated in (True, False):
        parts, shapes = assemble(recipe, tmp_path / str(validated)), []
        if validated:
            parts.rollout(parts.validation.questions[:2], 1, 1, True)
        forward = parts.sampler._forward

        def noting(ids, mask, positions, cache, forward=forward, shapes=shapes):
            shapes.append((*ids.shape, *mask.shape))
            return forward(ids, mask, positions, cache)

        parts.sampler._forward = noting
        parts.rollout(parts.task.questions[:2], 2, 1, False)
        passes.append(shapes)
    assert passes[0] == passes[1]


@pytest.mark.slow
def test_an_episode_is_shown_token_by_token(recipe, tmp_path, monkeypatch, capsys):
    assert cli(monkeypatch, capsys, recipe, "steps=1", "advantage.drop_zero_variance=false", "--out", "run")[0] == 0
    episodes = list(read_episodes(tmp_path / "run" / "episodes.jsonl"))
    chosen = next(episode for episode in episodes if len(episode.calls) == 2)

    def show(*args):
        monkeypatch.setattr(sys, "argv", ["searchgym", "show", "run", *args])
        with contextlib.suppress(SystemExit):
            main()
        return capsys.readouterr()

    tokens = json.loads(show("--episode", chosen.id, "--json").out)["tokens"]
    spans = chosen.tokens(0)
    assert [t["id"] for t in tokens] == [int(i) for span in spans for i in span.ids]
    assert [t["trained"] for t in tokens] == [span.kind == "model" for span in spans for _ in span.ids]
    assert sum(t["reward"] for t in tokens) == chosen.reward
    logp = [float(value) for span in spans if span.logp is not None for value in span.logp]
    assert [t["logp"] for t in tokens if t["trained"]] == logp
    assert all((t["advantage"] is not None) == t["trained"] for t in tokens)
    plain, err = show("--episode", chosen.id)  # not a terminal
    others = [episode.id for episode in episodes if episode.id != chosen.id][:5]
    assert err.splitlines()[-1].startswith(f"other episodes, for --episode: {', '.join(others)}")
    assert plain.count("⟦") == 2
    assert "\x1b" not in plain
    assert "\x1b[" in show("--episode", chosen.id, "--colour").out
    assert json.loads(show("--episode", chosen.id, "--model", "./model", "--json").out)["tokens"] == tokens
    assert "unknown episode 'x'" in show("--episode", "x").err
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    assert "the run does not tell where its model policy is" in show().err
    assert show("--model", "./elsewhere").out


@pytest.mark.parametrize(("terminal", "environment"), [(False, None), (True, None), (True, "1")])
def test_colour_is_for_terminals_and_not_with_no_color(monkeypatch, terminal, environment):
    from searchgym.cli import output

    monkeypatch.setattr(output, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: terminal)))
    monkeypatch.delenv("NO_COLOR", raising=False)
    if environment:
        monkeypatch.setenv("NO_COLOR", environment)
    assert output.in_colour() == (terminal and not environment)


@pytest.mark.slow
def test_show_and_explain_give_the_rewards_and_advantages_of_the_training(recipe, tmp_path, monkeypatch, capsys):
    """Of a run with a credit of two terms; one of its groups has no signal and left the batch."""
    options = ["credit={outcome: 1, format: 1}", "steps=1", "env_options={max_turns: 2, reward: 'test_run:seldom'}"]
    status, out, err = cli(monkeypatch, capsys, recipe, *options, "validation.every=0", "--out", "run")
    assert status == 0, err
    assert [json.loads(out)[name] for name in ("before", "after", "best", "best_checkpoint")] == [None] * 4
    recorded = read_advantages(tmp_path / "run" / "episodes.advantages.jsonl")
    episodes = list(read_episodes(tmp_path / "run" / "episodes.jsonl"))
    assert 0 < len({name.rpartition("/")[0] for name in recorded}) < len(episodes)
    groups = {}
    for episode in episodes:
        total = episode.reward - 0.5 * sum(not call.legal for call in episode.calls)
        groups.setdefault(episode.group_uid, {})[episode.id] = total
    penalised = 0
    for episode in episodes:
        monkeypatch.setattr(sys, "argv", ["searchgym", "show", "run", "--episode", episode.id, "--json"])
        with contextlib.suppress(SystemExit):
            main()
        tokens = json.loads(capsys.readouterr().out)["tokens"]
        status, out, err = cli(monkeypatch, capsys, recipe, "--explain", "--out", "run", "--episode", episode.id)
        assert status == 0, err
        calls = json.loads(out)["calls"]
        penalised += sum(call["parts"]["format"] < 0 for call in calls)
        total = groups[episode.group_uid][episode.id]
        assert sum(call["reward"] for call in calls) == pytest.approx(total)
        assert sum(token["reward"] for token in tokens) == pytest.approx(total)
        values = np.array(list(groups[episode.group_uid].values()))
        for index, call in enumerate(calls):
            own = [token for token in tokens if token["call"] == index]
            assert call["tokens"] == len(own) == episode.calls[index].end - episode.calls[index].start > 0
            assert own[-1]["reward"] == pytest.approx(call["reward"])
            assert {token["advantage"] for token in own} == {call["advantage"]}
            assert (call["advantage"] is None) == (f"{episode.id}/{index}" not in recorded)
            if call["advantage"] is not None:
                wanted = (total - values.mean()) / (values.std(ddof=1) + 1e-6)
                assert call["advantage"] == pytest.approx(wanted, rel=1e-5)
    assert penalised


def test_what_is_wrong_with_a_recipe_is_said_in_one_line(recipe, tmp_path, monkeypatch, capsys):
    for args, status, message in [
        ((recipe, "optimizer.lrr=1"), 2, "did you mean 'optimizer.lr'"),
        ((recipe, "model=none"), 2, "no such folder"),
        ((recipe, "env=Demoo"), 2, "did you mean 'Demo'"),
        ((recipe, "agent=oracle"), 2, "agent oracle uses no model"),
        ((recipe, "rollout.attempts=1"), 2, "no group reaches advantage.min_group"),
        ((recipe, "--resume"), 2, "--resume needs --out"),
        (("none",), 2, "unknown recipe 'none'"),
    ]:
        got, out, err = cli(monkeypatch, capsys, *args)
        assert (got, out) == (status, ""), err
        assert message in err
        assert "Traceback" not in err

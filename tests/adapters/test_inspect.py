"""Agents and models of this package under Inspect's `eval`, beside this package's own evaluation."""

import inspect_ai
import pytest
from inspect_ai.model import ContentReasoning, ContentText, ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate

from searchgym.adapters.inspect_evals import outcome, search
from searchgym.agents.base import load_agent
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import UnknownNameError, UsageError
from searchgym.eval.runner import evaluate
from searchgym.rollout.models import load_models

pytestmark = pytest.mark.filterwarnings("ignore")  # of what is Inspect's to mend


def run(task, folder, says=None, **options):
    """The log of an evaluation; `says` answers each list of messages."""

    def reply(messages, tools, tool_choice, config):
        output = ModelOutput.from_content("mockllm/model", says(messages))
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # else tiktoken is downloaded
        return output

    model = "none" if says is None else get_model("mockllm/model", custom_outputs=reply)
    (log,) = inspect_ai.eval(task, model=model, display="none", log_dir=str(folder), **options)
    assert log.status == "success", log.error.message
    return log


def means(log):
    return {score.name: score.metrics["mean"].value for score in log.results.scores}


@pytest.mark.slow
def test_an_agent_scores_as_in_this_packages_evaluation(tmp_path):
    log = run(search("Demo", agent="single-search", options={"max_turns": 4}), tmp_path / "log", limit=4)
    task = load_task(find_env("Demo"), max_turns=4)
    scores = evaluate(task.asking(task.questions[:4]), load_agent("single-search"), tmp_path / "run")
    found = means(log)
    assert {name: found[name] for name in ("em", "f1", "searches", "turns")} == {
        name: pytest.approx(scores[name]) for name in ("em", "f1", "searches", "turns")
    }
    assert len(log.samples) == scores["n"] == 4


@pytest.mark.slow
def test_a_model_scores_as_in_this_packages_evaluation(tmp_path):
    log = run(search("Demo", model="tiny"), tmp_path / "log")
    task, agent = load_task(find_env("Demo")), load_agent("search-r1")
    models = load_models(dict.fromkeys(agent.roles, "tiny"), task.rules.protocol)
    scores = evaluate(task, agent, tmp_path / "run", models)
    assert means(log)["f1"] == pytest.approx(scores["f1"])
    assert means(log)["turns"] == pytest.approx(scores["turns"])
    assert all(sample.messages[1].role == "assistant" for sample in log.samples)


@pytest.mark.slow
def test_the_roles_of_a_team_ask_inspects_model(tmp_path):
    asked = []

    def says(messages):
        asked.append(messages[0].text)
        return "<answer>Dunmere</answer>"

    log = run(search("Demo", agent="m-ask"), tmp_path, says, limit=1)
    (sample,) = log.samples
    assert len(set(asked)) > 1
    assert sum(event.event == "model" for event in sample.events) == len(asked)  # all stand in the transcript
    assert sample.scores["outcome"].metadata["stop_reason"]


@pytest.mark.slow
def test_thoughts_that_inspect_keeps_apart_do_not_act(tmp_path):
    """The quick sibling is the test of a host's model in `test_api_replies`."""
    thought = ContentReasoning(reasoning="maybe <answer>Paris</answer>")
    texts = [[thought], [thought, ContentText(text="<answer>Dunmere</answer>")]]  # the first: cut in the thought
    says = iter(texts)
    (sample,) = run(search("Demo"), tmp_path, lambda messages: next(says), sample_id="demo-01").samples
    assert sample.scores["outcome"].answer == "Dunmere"
    assert sample.messages[1].text == "<think>maybe <answer>Paris</answer></think><answer>Dunmere</answer>"
    stops = [event.config.stop_seqs for event in sample.events if event.event == "model"]
    assert stops == [["</search>", "</answer>"], None]


@pytest.mark.slow
def test_another_solvers_last_text_is_the_answer(tmp_path):
    says = iter(["I think <answer>Dunmere</answer>", "Dunmere"])
    task = search("Demo")
    task.solver, task.scorer = generate(), [outcome("Demo")]
    log = run(task, tmp_path, lambda messages: next(says), sample_id="demo-01", epochs=2)
    assert means(log)["reward"] == 1.0
    assert {sample.scores["outcome"].answer for sample in log.samples} == {"Dunmere"}


def test_what_is_wrong_is_told_at_once():
    with pytest.raises(UnknownNameError, match=r"unknown environment 'Dmo'"):
        search("Dmo")
    with pytest.raises(UnknownNameError, match=r"unknown option 'top_j'"):
        search("Demo", options={"top_j": 3})
    with pytest.raises(UsageError, match="values of JSON"):
        search("Demo", options={"reward": lambda state: 0.0})

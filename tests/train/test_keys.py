"""Model keys: which weights are behind which role, and that sharing changes who learns, never what is learnt."""

import asyncio
import dataclasses

import numpy as np
import pytest
import torch

from searchgym.agents.base import load_agent
from searchgym.errors import CardError, DataMissingError, GuardError, UnknownNameError, UsageError
from searchgym.rollout.engine import Engine
from searchgym.rollout.loading import load_model
from searchgym.rollout.models import in_checkpoints
from searchgym.train.algorithms.losses import token_weights
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.credit.terms.outcome import Outcome
from searchgym.train.learner.keyed_learner import KeyedLearner
from searchgym.train.learner.learner import LocalLearner
from searchgym.train.loop.assembly import assemble, train
from searchgym.train.loop.collect import with_advantages
from searchgym.train.loop.guards import check_guards
from searchgym.train.loop.samplers import load_keys
from searchgym.train.plan.plan import plan
from searchgym.train.plan.sampled import sampled_keys
from searchgym.train.recipe.keys import check_credit, keys_of
from searchgym.train.recipe.load import load_recipe, read_recipe
from searchgym.train.recipe.options import Bound, GuardOptions
from searchgym.train.recipe.recipe import dump_recipe

ROLES = list(load_agent("m-ask").roles)
SMALL = [
    "model=tiny-teams", "env=Demo", "env_options={max_turns: 3}", "rollout.questions=2", "rollout.attempts=4",
    "validation.every=0", "optimizer.warmup_steps=0", "critic.warmup_steps=0",
    "log.tensorboard=false", "log.curve=false", "guard.min_legal=null",
]  # fmt: skip
GRPO = [
    "agent=m-ask", "credit={difference: 1, format: 1}", "advantage.normalise=role",
    "advantage.drop_zero_variance=false",
]  # fmt: skip
SHARING = {
    "full": "{all: {}}",
    "partial": "{planners: {roles: [planning, search]}, others: {}}",
    "none": "{" + ", ".join(f"{role}: {{roles: [{role}]}}" for role in ROLES) + "}",
}


def small(*more, name="tiny-mask"):
    return load_recipe(name, [*SMALL, *more])


def grpo(*more):
    return small(*GRPO, *more, name="tiny-grpo")


def keys(models, roles=ROLES):
    return keys_of(small(f"models={models}"), roles, "m-ask")


def test_a_recipe_without_keys_has_one_for_all_roles():
    (key,) = keys_of(small(), ROLES, "m-ask")
    assert (key.name, list(key.roles), key.frozen) == ("policy", ROLES, False)


def test_keys_take_their_roles_and_their_rates():
    planners, others = keys("{planners: {roles: [planning, search], lr: 0.5, critic_lr: 0.25}, others: {frozen: true}}")
    assert planners.roles == ("planning", "search") and others.roles == ("summary", "update", "answer")
    assert planners.recipe.optimizer.lr == 0.5 and planners.recipe.critic.optimizer.lr == 0.25
    assert others.frozen and others.recipe.optimizer.lr == small().optimizer.lr
    assert planners.recipe.models == {}


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("models", "error", "said"),
    [
        ("{a: {roles: [planing]}, b: {}}", UnknownNameError, "did you mean 'planning'"),
        ("{a: {roles: [planning]}}", UsageError, "no model for role answer, search, summary, update"),
        ("{a: {}, b: {roles: []}}", CardError, "models.b: no role"),
        ("{a: {frozen: true}}", UsageError, "every key is frozen"),
        ("{a: {}, b: {}}", CardError, "a and b both claim the roles"),
        ("{a: {roles: [planning]}, b: {roles: [planning]}}", CardError, "role planning is named by a and by b"),
        ("{A/b: {}}", CardError, "lower-case letters"),
        ("{a: {frozen: true, lr: 1}, b: {}}", CardError, "models.a.lr is 1.0, but the key is frozen"),
        ("{a: {lr: -1}}", CardError, "expected at least 0, got -1"),
        ("{a: {rolls: [planning]}}", CardError, "did you mean 'roles'"),
    ],
)
def test_bad_mappings(models, error, said):
    with pytest.raises(error, match=said):
        keys(models)


def test_a_recipe_with_keys_is_read_back_equal(tmp_path):
    recipe = small(f"models={SHARING['partial']}")
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    assert read_recipe(tmp_path / "recipe.yaml") == recipe


@pytest.mark.slow
def test_credit_and_comparison_must_fit():
    for overrides, said in [
        (["credit={}"], "at least one"),
        (["credit={outcome: 1, outcome: 1}"], "key 'outcome' occurs twice"),
        (["credit={outcom: 1}"], "did you mean 'outcome'"),
        (["credit={outcome: {alpha: 0.7}}"], "outcome.alpha: unknown key"),
        (["credit={costs: {turn: -1}}"], "costs.turn: expected at least 0, got -1"),
        (["credit={outcom: 0.5}"], "did you mean 'outcome'"),
        (["credit={outcome: 0}"], "expected a finite number other than 0"),
        (["credit={outcome: .inf}"], "credit.outcome: expected a finite number, got inf"),
        (["credit={outcome: {weigth: 1}}"], "did you mean 'weight'"),
        (["credit={outcome: {roles: []}}"], "at least one, none twice"),
        (["credit={outcome: {roles: [search, search]}}"], "at least one, none twice"),
        (["credit={outcome: {weight: x}}"], r"credit.outcome.weight: expected a number, got 'x'$"),
        (["credit={difference: {split: true}}"], "difference.split: unknown key"),
        (["credit={outcome: 1, overlong: 1}"], r"(?s)overlong.limit: missing key.*overlong.cache: missing key"),
        (["credit={overlong: {limit: 4, cache: 5}}"], "credit.overlong: cache is 5: more than limit, 4"),
        (["credit={format: {limit: 4}}"], "format.limit: unknown key"),
        (["advantage.chain=episode"], "difference gives many the same again: use gain"),
        (["advantage.chain=episode", "credit={outcome: 1}"], "outcome gives many the same again"),
        (["advantage.chain=episode", "credit={rubric: 1}"], "rubric gives many the same again"),
        (["advantage.chain=episode", "credit={ikea: 1}"], "ikea gives many the same again"),
        (["optimizer.minibatches=2", "optimizer.minibatch_samples=2"], "choose one"),
        (["optimizer.minibatch_samples=2", "loss.reduction=episode-mean"], "needs optimizer.minibatches 1"),
        (["optimizer.minibatch_samples=0"], "expected at least 1"),
        (["advantage.estimator=gae", "advantage.estimator.whiten_over=valued"], "needs critic.tokens response"),
    ]:
        with pytest.raises(CardError, match=said):
            small(*overrides)
    with pytest.raises(CardError, match="set it to role or role-turn"):
        grpo("advantage.normalise=all")
    with pytest.raises(CardError, match="credit acts in method policy only"):
        grpo("method=rejection", "advantage.normalise=all")
    small("credit={outcome: 1, test_credit:Mine: {alpha: 0.7}}")  # a user's own has options of its own
    chained = ["advantage.chain=episode", "credit={gain: 1, format: 1}"]
    with pytest.raises(CardError, match="does not pass on the KL penalty"):
        grpo(*chained, "loss.kl_coef=0.1", "loss.kl_in=reward", "loss.kl_estimator=k1")
    with pytest.raises(CardError, match="set it to role or role-turn"):
        grpo(*chained, "advantage.normalise=all")
    for changed in ("advantage.chain=episode", "advantage.estimator=rloo"):
        with pytest.raises(CardError, match=f"{changed.partition('=')[0]} acts in method policy only"):
            load_recipe("tiny-rejection", [changed])
    split = load_recipe("tiny-grpo", ["agent=m-ask", "model=tiny-teams", "credit={outcome: {split: true}}"])
    with pytest.raises(UsageError, match="outcome may give their calls different rewards"):
        check_credit(split, load_agent("m-ask").roles)
    with pytest.raises(UnknownNameError, match="did you mean 'search'"):
        check_credit(small("credit={outcome: {roles: [serch]}}"), load_agent("m-ask").roles)


@pytest.mark.parametrize(("term", "agent"), [("boundary", "saas"), ("completeness", "search-r1-reread")])
def test_a_term_that_compares_trial_answers_needs_their_role(term, agent):
    recipe = load_recipe("tiny-grpo", [f"credit={{outcome: 1, {term}: 1}}"])
    assert term in check_credit(recipe, load_agent(agent).roles)
    with pytest.raises(
        UsageError, match=rf"credit {term} .* the agent's roles are searcher: use an agent such as {agent}"
    ):
        check_credit(recipe, load_agent("search-r1").roles)


def test_terms_with_weights_are_read_back_equal(tmp_path):
    recipe = small("credit={outcome: {weight: 0.5, roles: [search]}, difference: 1, format: 0.25}")
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    assert read_recipe(tmp_path / "recipe.yaml") == recipe
    assert recipe.credit["outcome"] == Outcome(weight=0.5, roles=["search"])


# -- sharing -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    """Two groups of a team's episodes; rewards are made up."""
    parts = assemble(small(), tmp_path_factory.mktemp("parts"))
    try:
        found = parts.rollout(parts.task.questions[:2], 4, 0, False)
    finally:
        parts.close()
    rng = np.random.default_rng(0)
    return [(episode, rng.normal(size=len(episode.calls)).tolist()) for episode in found]


def shared(episodes, sharing, estimator):
    """Returns (recipe, keys, samples with advantages) of a way of sharing."""
    recipe = (grpo if estimator == "grpo" else small)(f"models={SHARING[sharing]}")
    by_role = {role: key.name for key in keys_of(recipe, ROLES, "m-ask") for role in key.roles}
    samples = []
    for episode, rewards in episodes:
        calls = [dataclasses.replace(call, model_key=by_role[call.role]) for call in episode.calls]
        samples += samples_from(dataclasses.replace(episode, calls=calls), rewards=rewards)
    found = keys_of(recipe, ROLES, "m-ask")
    learners = {key.name: LocalLearner(key.recipe, load_model("tiny-teams")[0]) for key in found}
    learner = KeyedLearner(learners, {})
    return learner, with_advantages(samples, recipe, learner)[0]


def gradients(learner, samples):
    """Returns the summed gradient of the policy loss over all keys, by the parameters' names."""
    total = {}
    for key, own in learner.learners.items():
        part = [sample for sample in samples if sample.model_key == key]
        policy = own.policy
        values = {
            "advantage": [s.advantage[s.mask] for s in part],
            "sampler_logp": [s.sampler_logp[s.mask] for s in part],
            "weight": token_weights(part)[0],
        }
        policy.trained_model.accumulate(part, values, 1.0, policy.policy_loss)
        for name, parameter in policy.updater.model.named_parameters():
            total[name] = total.get(name, 0) + parameter.grad
    return total


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_sharing_changes_no_advantage_and_no_sum_of_gradients(episodes, estimator):
    """Before the division by the denominators, of which each key has its own."""
    learner, full = shared(episodes, "full", estimator)
    wanted = gradients(learner, full)
    assert len(full) > 20 and any(np.any(sample.advantage) for sample in full)
    for sharing in ("partial", "none"):
        learner, samples = shared(episodes, sharing, estimator)
        assert len({sample.model_key for sample in samples}) == {"partial": 2, "none": 5}[sharing]
        for own, other in zip(samples, full, strict=True):
            assert own.calls == other.calls
            np.testing.assert_allclose(own.advantage, other.advantage, atol=1e-5)
        found = gradients(learner, samples)
        for name, gradient in wanted.items():
            torch.testing.assert_close(found[name], gradient, atol=2e-4, rtol=1e-3)


@pytest.mark.slow
def test_adapters_on_one_base_are_adapters_on_models_of_their_own(episodes):
    recipe = grpo("lora.rank=4", f"models={SHARING['partial']}")
    found = keys_of(recipe, ROLES, "m-ask")
    loaded = load_keys(recipe, found)
    first, second = (loaded[key.name].model for key in found)
    weights = zip(first.parameters(), second.parameters(), strict=True)
    assert first is not second and all(a is b for a, b in weights)  # the base is there once
    learner = KeyedLearner({key.name: LocalLearner(key.recipe, loaded[key.name].model) for key in found}, {})
    alone = {key.name: LocalLearner(key.recipe, load_model("tiny-teams")[0]) for key in found}
    _, samples = shared(episodes, "partial", "grpo")
    learner.learn(samples, 0)
    base = load_model("tiny-teams")[0].state_dict()
    for key, own in alone.items():
        own.learn([sample for sample in samples if sample.model_key == key], 0)
        together = learner.weights_of(key)
        moved = 0
        for name, weight in own.weights().items():
            torch.testing.assert_close(together[name], weight, atol=1e-7, rtol=0)
            moved += not torch.equal(weight, base[name])
        assert moved > 10
    for name, weight in first.state_dict().items():
        if ".lora_" not in name:
            assert torch.equal(weight, base[name.replace(".base_layer", "")])


@pytest.mark.slow
def test_each_key_learns_by_its_own_rate_and_the_frozen_one_not_at_all(tmp_path):
    models = "{planners: {roles: [planning, search], lr: 0}, writers: {roles: [answer]}, rest: {frozen: true}}"
    recipe = small("steps=2", f"models={models}", "checkpoint.every=1")
    seen = []
    result = train(recipe, tmp_path / "run", report=seen.append)
    base = load_model("tiny-teams")[0].state_dict()
    last = result.checkpoint
    assert sorted(path.name for path in last.iterdir()) == ["planners", "trainer.json", "writers"]

    def moved(folder):
        return sum(not torch.equal(weight, base[name]) for name, weight in load_model(folder)[0].state_dict().items())

    assert moved(last / "planners") == 0
    assert moved(last / "writers") > 10
    row = seen[-1]
    assert row["learner/writers/learning_rate"] > 0 == row["learner/planners/learning_rate"]
    assert "learner/rest/loss" not in row
    assert row["learner/updates"] == row["learner/planners/updates"] + row["learner/writers/updates"]


@pytest.mark.slow
def test_a_frozen_sampler_keeps_every_bit(tmp_path):
    recipe = small("steps=1", "models={planners: {roles: [planning, search]}, executors: {frozen: true}}")
    parts = assemble(recipe, tmp_path)
    try:
        frozen, trained = (parts.samplers.by_key[key].model for key in ("executors", "planners"))
        before = {name: weight.clone() for name, weight in frozen.state_dict().items()}
        episodes = parts.rollout(parts.task.questions[:2], 4, 0, False)
        assert {call.model_key for e in episodes for call in e.calls} == {"planners", "executors"}
        samples = [s for e in episodes for s in samples_from(e) if s.model_key == "planners"]
        for number, sample in enumerate(samples):
            sample.reward[sample.calls[-1].end - 1] = number % 2
        parts.learner.learn(with_advantages(samples, recipe, parts.learner)[0], 0)
        parts.publisher().publish(1)
        assert all(torch.equal(weight, before[name]) for name, weight in frozen.state_dict().items())
        assert not all(torch.equal(weight, before[name]) for name, weight in trained.state_dict().items())
    finally:
        parts.close()


@pytest.mark.slow
def test_a_run_of_two_keys_resumes_to_the_same_bits(tmp_path):
    recipe = small("steps=2", f"models={SHARING['partial']}", "checkpoint.every=1")
    whole = train(recipe, tmp_path / "whole")

    def stop(row):
        if row["step"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "parts", report=stop)
    again = train(recipe, tmp_path / "parts", resume=True)
    for key in ("planners", "others"):
        first, second = (r.checkpoint / key / "model.safetensors" for r in (whole, again))
        assert first.read_bytes() == second.read_bytes()


def test_a_checkpoint_of_several_keys_names_the_model_of_each_role(tmp_path):
    recipe = load_recipe("tiny-jade-frozen")
    jade, checkpoint = load_agent("jade"), tmp_path / "checkpoints" / "last"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer.json").write_text("{}")
    given = dict.fromkeys(jade.roles, str(checkpoint)) | {"selector": "mine"}
    with pytest.raises(DataMissingError, match=r"recipe\.yaml"):
        in_checkpoints(given, jade)
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    found = in_checkpoints(given, jade)
    assert found["selector"] == "mine" and found["planner"] == found["subplanner"] == str(checkpoint / "planners")
    assert {found[role] for role in set(jade.roles) - {"selector", "planner", "subplanner"}} == {"tiny-teams"}
    with pytest.raises(UnknownNameError, match="planner"):
        in_checkpoints(dict.fromkeys(ROLES, str(checkpoint)), load_agent("m-ask"))
    (checkpoint / "config.json").write_text("{}")  # one model: the folder is it
    assert in_checkpoints(given, jade) == given


@pytest.mark.slow
def test_the_plan_counts_every_key_and_a_shared_base_once():
    def gib(*more):
        found = {}
        for part in plan(small(*more), gpus=0):
            found[part.what] = found.get(part.what, 0) + part.gib
        return found

    one, two = gib(), gib(f"models={SHARING['partial']}")
    assert two["planners policy: weights"] == two["others policy: weights"] == one["policy: weights"]
    assert two["sampler: weights"] == 2 * one["sampler: weights"]
    own = [value for name, value in two.items() if name.endswith("policy: activations")]
    assert own == [one["policy: activations"]]  # they are updated one after the other
    lora = gib("lora.rank=4", f"models={SHARING['partial']}")
    assert lora["others policy: weights"] < 0.2 * lora["planners policy: weights"]
    frozen = gib("models={a: {roles: [answer]}, b: {frozen: true}}")
    assert frozen["policy: weights"] == one["policy: weights"] and frozen["sampler: weights"] == two["sampler: weights"]


# -- budgets and guards --------------------------------------------------------------------------------------------


class Endless:
    """A workflow that never ends."""

    async def run(self, question, io):
        while True:
            await io.generate("planner", question=question.text)


@pytest.mark.slow
def test_a_workflow_that_never_ends_is_ended(tmp_path):
    parts = assemble(small(name="tiny-jade"), tmp_path)
    try:
        agent = dataclasses.replace(load_agent("jade"), workflow=Endless(), max_calls=7)
        found = []
        engine = Engine(parts.task, agent, dict.fromkeys(agent.roles, parts.models["policy"]))
        asyncio.run(engine.run(parts.task.questions[:2], found.append))
    finally:
        parts.close()
    assert [(e.stop_reason, len(e.calls), e.answer) for e in found] == [("calls", 7, None)] * 2
    assert all(e.reward == 0 and len(samples_from(e)) == 7 for e in found)


def test_a_role_that_is_never_legal_ends_the_run():
    options = GuardOptions(patience=2, min_legal=0.01)
    rows = [{"role/planning/legal": 0.0, "role/answer/legal": 0.5}] * 2
    with pytest.raises(GuardError, match=r"role/planning/legal was 0, 0 .* parser"):
        check_guards(rows, options)
    check_guards(rows[:1], options)
    check_guards([rows[0], rows[0] | {"role/planning/legal": 0.02}], options)
    check_guards(rows, GuardOptions(patience=2))
    keyed = [{"learner/planners/entropy": 0.1}] * 2
    with pytest.raises(GuardError, match="learner/planners/entropy"):
        check_guards(keyed, GuardOptions(patience=2, bounds={"learner/entropy": Bound(min=0.2)}))


@pytest.mark.parametrize(
    "adapters, servers, gpus, engines",
    [
        ("auto", "null", True, [["planners", "writers", "rest"]]),
        ("auto", "null", False, [["planners"], ["writers"], ["rest"]]),  # merged on a CPU: an engine each
        ("auto", "['http://a']", False, [["planners", "writers", "rest"]]),  # of another machine
        ("merged", "null", True, [["planners"], ["writers"], ["rest"]]),
        ("separate", "null", False, [["planners", "writers", "rest"]]),
    ],
)
def test_adapters_share_an_engine_unless_they_are_merged(adapters, servers, gpus, engines):
    models = "{planners: {roles: [planning, search]}, writers: {roles: [summary, answer]}, rest: {frozen: true}}"
    values = [f"models={models}", "lora.rank=4", "rollout.sampler=vllm", f"rollout.sampler.adapters={adapters}"]
    recipe = load_recipe("tiny-mask", [*values, f"rollout.sampler.servers={servers}"])
    keys = keys_of(recipe, load_agent("m-ask").roles, "m-ask")
    shared = recipe.rollout.sampler.together(sampled_keys(recipe, keys), True, gpus)
    assert [[key.name for key in together] for together in shared] == engines

"""The self-check passes on shipped recipes and names the part at fault for each fault that is planted."""

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from credit_terms import terms_of
from made_models import tiny_qwen2, tiny_tokenizer

from searchgym.agents.parsing import Parsed
from searchgym.options import Named, find_kind, kinds
from searchgym.records import title_key
from searchgym.rollout.sampler import Samplers
from searchgym.rollout.transformers.precision import emulates_bfloat16
from searchgym.rollout.transformers.sampler import TransformersSampler
from searchgym.testing.reference import losses as formulas
from searchgym.testing.reference.rewards import TERMS
from searchgym.testing.selfcheck import run as module
from searchgym.testing.selfcheck import steps
from searchgym.testing.selfcheck.bookkeeping import CHOICE, METRICS, SETTINGS, VERSIONS
from searchgym.testing.selfcheck.credit import CREDIT, CreditCheck
from searchgym.testing.selfcheck.environments import PRESENT
from searchgym.testing.selfcheck.findings import Findings
from searchgym.testing.selfcheck.run import selfcheck
from searchgym.testing.selfcheck.updates import KeyCheck
from searchgym.train.algorithms import advantages, losses
from searchgym.train.algorithms.estimators.gae import Gae
from searchgym.train.algorithms.loss_options import LossOptions
from searchgym.train.algorithms.losses import token_logp, token_weights
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.credit.term import Term
from searchgym.train.credit.terms import vpr, waypoint
from searchgym.train.learner.batching import micro_batches, minibatches
from searchgym.train.learner.learner import LocalLearner
from searchgym.train.learner.policy import Policy
from searchgym.train.learner.trained_model import TrainedModel, Updater
from searchgym.train.loop import assembly, collect, trainer
from searchgym.train.loop.rollout import EngineRollout
from searchgym.train.loop.trainer import Trainer
from searchgym.train.recipe import keys
from searchgym.train.recipe.load import load_recipe

ROOT = Path(__file__).parents[2]
SMALL = ["env_options={questions: {split: train, size: 40, seed: 1}, max_turns: 3, top_k: 1}"]
"""The check itself draws three attempts at three questions."""
TOKENS, MASKS = "tokens are those sampled", "masks cover what was sampled"
CALLS, GROUPS = "each call is learnt from once, by its own model", "groups are attempts at one question"
REWARDS, ADVANTAGES = "rewards are on their calls", "advantages follow their formula"
AGREE, ARRIVE = "log-probs of sampler and trainer agree", "new weights reach the sampler"
LOSS, GRADIENT, UPDATE = "the loss is the recipe's", "the gradient is the loss's", "the update is AdamW's"


@pytest.fixture(scope="module")
def least(tmp_path_factory):
    """Overrides for a model of random weights and episodes of two turns: faults show in them just as well."""
    folder = tmp_path_factory.mktemp("least")
    model, agent = folder / "model", folder / "agent"
    tiny_qwen2(max_position_embeddings=4096).save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    shutil.copytree(ROOT / "agents/search-r1", agent)
    card = (agent / "card.yaml").read_text().replace("max_tokens: 256", "max_tokens: 24")
    (agent / "card.yaml").write_text(card)
    return [
        f"model={model}",
        f"agent={agent / 'card.yaml'}",
        "env_options={questions: {split: train, size: 40, seed: 1}, max_turns: 2, top_k: 1}",
    ]


def failed(tmp_path, *overrides, recipe="tiny-grpo"):
    """The names of the checks that do not pass."""
    checks = selfcheck(load_recipe(recipe, [*SMALL, *overrides]), tmp_path / "check")
    return [check.name for check in checks if check.state == "failed"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [
        "tiny-grpo",
        "tiny-rejection",
        "tiny-ppo",
        pytest.param("tiny-mask", marks=pytest.mark.study),  # a minute each
        pytest.param("tiny-praise", marks=pytest.mark.study),
        pytest.param("tiny-adasearch", marks=pytest.mark.study),
    ],
)
def test_shipped_recipes_pass(recipe, tmp_path, request):
    if recipe in {"tiny-mask", "tiny-praise", "tiny-adasearch"}:  # many calls an episode; their bandit is tiny-grpo's
        request.getfixturevalue("no_bandit")
    assert failed(tmp_path, recipe=recipe) == []


@pytest.mark.parametrize("term", sorted(kinds(Term)))
def test_a_term_that_is_not_written_twice_is_said_not_to_be_checked(term):
    """It is named as not checked, which is no pass, and is not compared with zeros."""
    recipe = load_recipe("tiny-grpo")
    options = {"limit": 4, "cache": 2} if term == "overlong" else {}
    recipe = dataclasses.replace(recipe, credit=Named(terms_of("outcome", **{term: options})))
    findings = Findings()
    drawn = SimpleNamespace(episodes=[], samples=[], listed=[])
    CreditCheck(recipe, {}, lambda episode, text: 0.0).check_samples(findings, drawn)
    (check,) = findings.checks()
    assert check.state == ("ok" if term in TERMS else "not checked")
    assert (term in check.detail) or term in TERMS


def test_the_terms_that_ask_no_judge_are_written_twice():
    assert (
        kinds(Term).keys() - TERMS.keys() == {name for name in kinds(Term) if find_kind(Term, name).asks_judge} != set()
    )


@pytest.mark.engine
@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("qwen2.5-3b-grpo", []),
        pytest.param(
            "qwen2.5-7b-ppo",
            ["advantage.estimator.whiten_over=trained"],
            marks=[
                pytest.mark.study,
                pytest.mark.skipif(
                    emulates_bfloat16(), reason="failed in bfloat16 that a CPU emulates: above 8 %, cause not shown"
                ),
            ],
        ),
        pytest.param("qwen2.5-7b-ppo", ["learner.dtype=float32"], marks=pytest.mark.study),
    ],
)
def test_large_recipes_pass_with_a_small_model_and_two_ranks(recipe, more, tmp_path, least):
    """Their own ZeRO stages, weights in bfloat16. The other large recipes have the same methods.

    PPO's own whitening over observations is checked in float32, where the gradient is exact: in bfloat16 it is 11 %
    off by rounding (norm 3.31, by its formula 2.97), and 8 % are allowed.
    """
    rounded = recipe == "qwen2.5-7b-ppo" and "learner.dtype=float32" not in more
    short = [] if rounded else least  # over few tokens its gradient in bfloat16 was more than 8 % off, cause not shown
    small = [*short, "model=tiny", "env=searchgym/World-v0", "validation.env_options={}", "learner.backend.ranks=2"]
    small += ["rollout.questions=8"]  # of the 40 that there are
    assert failed(tmp_path, *small, *more, recipe=recipe) == []


@pytest.mark.study
def test_whitening_over_observations_passes(tmp_path, no_bandit):
    whole = ["advantage.estimator.whiten_over=valued", "critic.tokens=response"]
    assert failed(tmp_path, *whole, recipe="tiny-ppo") == []


@pytest.fixture
def no_bandit(monkeypatch):
    """Leaves out what the planted fault does not touch."""
    monkeypatch.setattr(module, "check_bandit", lambda recipe, out, findings: None)


@pytest.fixture
def no_updates(monkeypatch):
    """Leaves out the trainer beside the learner, which takes most of the time; rewards and advantages need none."""
    for name in ("check_sampled", "prepared", "before_update", "after_update"):
        monkeypatch.setattr(KeyCheck, name, lambda self, *given: None)
    monkeypatch.setattr(KeyCheck, "likeliest", lambda self, exchanges: [])


def planted(monkeypatch, change):
    """Samples are changed by a function on their way to the learner."""

    def changed(episode, **options):
        return [change(sample) for sample in samples_from(episode, **options)]

    monkeypatch.setattr(collect, "samples_from", changed)


METHODS = {
    "plain": [],
    "adapter": ["lora.rank=4"],
    "kl in the loss": ["loss.kl_coef=0.001"],
    "kl in the reward": ["loss.kl_coef=0.001", "loss.kl_in=reward", "loss.kl_estimator=k1"],
    "large groups": ["rollout.attempts=8", "advantage.min_group=6"],
    "many options": [
        "advantage.estimator=stratified",
        "advantage.normalise=role-turn",
        "loss.ratio=sequence",
        "loss.reduction=episode-mean",
        "loss.dual_clip=3",
        "loss.importance_cap=2",
        "loss.entropy_coef=0.01",
        "loss.llds_coef=0.2",
        "optimizer.minibatches=1",
        "optimizer.epochs=2",
        "optimizer.weight_decay=0.1",
    ],
    "branches": ["advantage.estimator=tree", "rollout.attempts=4"],
    "siblings": ["advantage.estimator=siblings", "rollout.attempts=4"],
    "forks": ["rollout.tree={roots: 2}", "rollout.attempts=4", "advantage.estimator=shaped"],
    "confident paths": ["rollout.tree={roots: 2}", "rollout.attempts=4", "advantage.estimator=deepsearch"],
    "states": ["advantage.estimator=gigpo", "rollout.attempts=4"],
    "over the batch": ["advantage.estimator=rloo", "advantage.rescale=batch"],
    "values by classification": ["advantage.estimator=gae", "critic.loss=hl-gauss"],
    "second answers": ["agent=search-r1-reread", "credit={outcome: 1, completeness: 1, density: 0.5, pages: 0.5}"],
    "revised": ["agent=search-r2", "credit={outcome: 1, density: 1}", "rollout.max_tokens=24"],
    "trial answers": ["agent=saas", "credit={outcome: 1, boundary: 1}"],
    "turn by turn": ["advantage.normalise=role-turn", "advantage.chain=none", "credit={outcome: 1, vpr: 1}"],
    "whitened": ["advantage.estimator=reinforce-pp", "loss.reduction=constant", "loss.constant_length=64"],
}


QUICK = ["plain", "many options"]


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "method", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_methods_pass(method, tmp_path, no_bandit, least):
    assert failed(tmp_path, *least, *METHODS[method]) == []


@pytest.mark.slow
def test_revised_episodes_pass(monkeypatch, tmp_path, no_bandit, least):
    """With a refiner that always names the last turn: tokens that were dropped are counted, but not trained on."""
    turns = []

    def last(text, count):
        turns.append(count)
        return Parsed(count, True)

    monkeypatch.setattr("searchgym.agents.teams.refined.read_turn", last)
    assert failed(tmp_path, *least, *METHODS["revised"]) == [] and len(turns) == 27


@pytest.mark.slow
def test_a_sampler_on_the_learners_gpu_rests_while_the_model_learns(monkeypatch, tmp_path, no_bandit, least):
    events, load = [], module.check_steps.__globals__["assemble"]

    def parts(*given):
        made = load(*given)
        learn, update = made.learner.learn, made.sampler.update
        monkeypatch.setattr(made.learner, "learn", lambda *args: events.append("learn") or learn(*args))
        monkeypatch.setattr(made.sampler, "update", lambda *args: events.append("wake") or update(*args))
        object.__setattr__(made.samplers, "level", 1)
        object.__setattr__(made.samplers, "resting", [made.sampler])
        return made

    monkeypatch.setattr(Samplers, "rest", lambda self: events.append("rest"))
    monkeypatch.setitem(module.check_steps.__globals__, "assemble", parts)
    assert failed(tmp_path, *least) == []
    assert events == ["wake", *["rest", "learn", "wake"] * 3]


CHAINED = [
    "advantage.chain=episode", "credit={gain: 1, format: 0.5}",
    "models={answerers: {roles: [answer], frozen: true}, others: {}}",
    "env_options={questions: {split: train, size: 40, seed: 1}, reward: f1, max_turns: 3, top_k: 1}",
]  # fmt: skip
STAGES = [
    "agent=m-ask", "model=tiny-teams", "advantage.chain=none", "advantage.normalise=role",
    "advantage.estimator={kind: stages, stages: {plan: [planning], rest: [search, summary, update, answer]}}",
    "credit={gain: 1, format: 0.5, plan: 0.5}",
]  # fmt: skip
BY_GROUP = [
    "agent=m-ask", "model=tiny-teams", "advantage.normalise=role",
    "credit={gain: 1, overlong: {weight: 0.5, limit: 24, cache: 20}, format: {roles: [search]}}",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "more"), [pytest.param("tiny-mask", [], marks=pytest.mark.study), ("tiny-grpo", BY_GROUP)]
)
def test_chains_of_episodes_pass(recipe, more, tmp_path, no_bandit):
    """With a frozen role, whose rewards are passed back all the same."""
    assert failed(tmp_path, *CHAINED, *more, recipe=recipe) == []


@pytest.mark.slow
def test_stages_pass(tmp_path, no_bandit):
    assert failed(tmp_path, *CHAINED[2:], *STAGES, recipe="tiny-grpo") == []


# -- planted faults ------------------------------------------------------------------------------------------------


def _with_kept(episode, **options):
    return samples_from(episode, **options | {"local_rewards": None})


ASSIGN = Gae.assign


def _of_trained(self, samples, options, kl, targets, frozen):
    return ASSIGN(self, samples, options, kl, targets)


@pytest.mark.study
@pytest.mark.parametrize(
    ("module", "name", "fault", "recipe", "check"),
    [
        ("searchgym.train.loop.collect", "samples_from", _with_kept, "group", REWARDS),
        ("searchgym.train.algorithms.estimators.gae", "Gae.assign", _of_trained, "gae", ADVANTAGES),
    ],
)
def test_faults_in_chains(module, name, fault, recipe, check, monkeypatch, tmp_path, no_bandit, no_updates):
    """Penalties that are passed on too; what frozen roles earn left out."""
    monkeypatch.setattr(f"{module}.{name}", fault)
    given = (*CHAINED, *BY_GROUP) if recipe == "group" else CHAINED
    assert failed(tmp_path, *given, recipe="tiny-grpo" if recipe == "group" else "tiny-mask") == [check]


@pytest.mark.slow
def test_an_inverted_mask(monkeypatch, tmp_path, no_bandit, least):
    def invert(sample):
        mask = ~sample.mask
        mask[0] = False
        return dataclasses.replace(sample, mask=mask)

    planted(monkeypatch, invert)
    assert MASKS in failed(tmp_path, *least)


@pytest.mark.slow
def test_a_mask_shifted_by_one(monkeypatch, tmp_path, no_bandit, least):
    planted(monkeypatch, lambda sample: dataclasses.replace(sample, mask=np.roll(sample.mask, -1)))
    assert MASKS in failed(tmp_path, *least)


@pytest.mark.slow
def test_a_response_that_was_tokenised_again(monkeypatch, tmp_path, no_bandit, least):
    def merge(sample):
        ids = sample.ids.copy()
        ids[sample.calls[0].start] += 1
        return dataclasses.replace(sample, ids=ids)

    planted(monkeypatch, merge)
    assert TOKENS in failed(tmp_path, *least)


@pytest.mark.slow
def test_rewards_of_another_call(monkeypatch, tmp_path, no_bandit, least):
    def first(sample):
        reward = np.zeros_like(sample.reward)
        reward[sample.calls[0].start] = sample.reward.sum()
        return dataclasses.replace(sample, reward=reward)

    planted(monkeypatch, first)
    assert failed(tmp_path, *least) == [REWARDS]


@pytest.mark.slow
def test_groups_of_one_episode(monkeypatch, tmp_path, no_bandit, least):
    planted(monkeypatch, lambda sample: dataclasses.replace(sample, group_uid=sample.episode_id))
    assert failed(tmp_path, *least)[0] == GROUPS


@pytest.mark.slow
def test_groups_over_questions(monkeypatch, tmp_path, no_bandit, least):
    planted(monkeypatch, lambda sample: dataclasses.replace(sample, group_uid=f"g{sample.attempt}"))
    assert failed(tmp_path, *least) == [GROUPS, ADVANTAGES]


@pytest.mark.slow
def test_groups_centred_by_another_groups_mean(monkeypatch, tmp_path, no_bandit, least):
    right = advantages.group_advantages

    def crossed(rewards, groups, options, **more):
        made, counts = right(rewards, groups, options, **more)
        means = {group: rewards[[g == group for g in groups]].mean() for group in groups}
        other = dict(zip(means, [*list(means.values())[1:], next(iter(means.values()))], strict=True))
        return np.where(made != 0, made + [means[g] - other[g] for g in groups], 0.0), counts

    monkeypatch.setattr(advantages, "group_advantages", crossed)
    assert failed(tmp_path, *least) == [ADVANTAGES]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["loss", "reward"])
def test_kl_on_observations_too(where, monkeypatch, tmp_path, no_bandit, least):
    extra = ["loss.kl_coef=0.001", f"loss.kl_in={where}", f"loss.kl_estimator={'k1' if where == 'reward' else 'k3'}"]
    if where == "loss":
        right = Policy.policy_loss

        def both(self, batch):
            """The loss with the KL of a batch whose every token counts."""
            loss, metrics = right(self, batch)
            every = dataclasses.replace(batch, keep=torch.ones_like(batch.keep))
            every.keep[:, -1] = False
            targets = batch.ids[:, 1:].flatten()
            logits = self.trained_model.logits(every)
            with torch.no_grad():
                other = self.trained_model.logits(every, self.reference)
            kl = losses.kl_k3(token_logp(logits, targets)[0], token_logp(other, targets)[0])
            return loss + self.loss.kl_coef * kl.sum(), metrics

        monkeypatch.setattr(Policy, "policy_loss", both)
        assert failed(tmp_path, *least, *extra)[0] == LOSS
    else:
        plus = np.float64(0.1)  # the k1 of the observations before a token
        monkeypatch.setattr(advantages, "k1_of", lambda s: (s.old_logp - s.ref_logp)[s.mask] + plus * (~s.mask).sum())
        assert failed(tmp_path, *least, *extra) == [ADVANTAGES]


@pytest.mark.parametrize("options", [{}, {"dual_clip": 3.0}, {"kl_cap": None}, {"kl_cap": 2.0}])
def test_the_losses_formulas_agree_far_from_the_sampler_and_the_reference(options):
    """Of ratios and estimates that are cut: value and gradient."""
    options = LossOptions(**options)
    far = torch.tensor([-900.0, -25.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.5, 25.0, 900.0], dtype=torch.float64)
    for value in (-1.0, 0.0, 1.0):
        advantage = torch.full_like(far, value)
        mine, theirs = (far.clone().requires_grad_() for _ in range(2))
        one = torch.cat([formulas.clipped(mine, advantage, options), formulas.kl(mine, options)])
        clipped = losses.clipped_ratio_loss(theirs, advantage, 0.2, 0.2, options.dual_clip)
        other = torch.cat([clipped, losses.kl_k3(theirs, torch.zeros_like(far), options.kl_cap)])
        torch.testing.assert_close(one, other)
        one.sum().backward()
        other.sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.slow
def test_stale_weights(monkeypatch, tmp_path, no_bandit, least):
    monkeypatch.setattr(TransformersSampler, "update", lambda self, state, version: None)
    names = [PRESENT, VERSIONS, AGREE, ARRIVE]  # validation comes first
    assert sorted(failed(tmp_path, *least)) == sorted(names)


@pytest.mark.slow
def test_the_adapter_of_the_version_before(monkeypatch, tmp_path, no_bandit, least):
    right, last = TransformersSampler.update, []

    def late(self, state, version):
        last.append({name: weight.clone() for name, weight in state.items()})
        right(self, last[-2:][0], version)

    monkeypatch.setattr(TransformersSampler, "update", late)
    assert ARRIVE in failed(tmp_path, *least, "lora.rank=4")


@pytest.mark.slow
def test_the_last_token_of_each_call_weighs_nothing(monkeypatch, tmp_path, no_bandit, least):
    def without(samples, *given):
        weights, denominator = token_weights(samples, *given)
        for sample, row in zip(samples, weights, strict=True):
            row[[int(sample.mask[: call.end].sum()) - 1 for call in sample.calls]] = 0
        return weights, denominator

    monkeypatch.setattr("searchgym.train.learner.trained_model.token_weights", without)
    assert GRADIENT in failed(tmp_path, *least)


@pytest.mark.slow
def test_a_denominator_of_each_micro_batch(monkeypatch, tmp_path, no_bandit, least):
    def local(*given):
        for rows, batch, counts in micro_batches(*given):
            if "weight" in batch.values:
                batch.values["weight"] *= 100 / len(batch.targets)
            yield rows, batch, counts

    monkeypatch.setattr("searchgym.train.learner.trained_model.micro_batches", local)
    assert failed(tmp_path, *least)[:2] == [LOSS, GRADIENT]


@pytest.mark.slow
def test_a_temperature_that_the_trainer_ignores(monkeypatch, tmp_path, no_bandit, least):
    right = TrainedModel.scores
    monkeypatch.setattr(TrainedModel, "scores", lambda self, batch, temperature, *rest: right(self, batch, 1.0, *rest))
    assert {AGREE, GRADIENT} <= set(failed(tmp_path, *least))


@pytest.mark.slow
def test_a_learning_rate_without_its_schedule(monkeypatch, tmp_path, no_bandit, least):
    monkeypatch.setattr("searchgym.train.learner.trained_model.lr_scale", lambda step, steps, options: 1.0)
    assert failed(tmp_path, *least)[-1] == UPDATE


@pytest.mark.slow
def test_a_keys_own_rate_that_is_not_handed_on(monkeypatch, tmp_path, no_bandit, least):
    def without_rates(recipe, *given):
        models = {name: dataclasses.replace(own, lr=None) for name, own in recipe.models.items()}
        return keys.keys_of(dataclasses.replace(recipe, models=models), *given)

    monkeypatch.setattr("searchgym.train.loop.assembly.keys_of", without_rates)
    assert failed(tmp_path, *least, "models={only: {roles: [searcher], lr: 0.002}}")[-1] == UPDATE


@pytest.mark.slow
def test_a_critic_that_learns_the_opposite(monkeypatch, tmp_path, no_bandit, least):
    right = losses.value_sums

    def opposite(values, old, returns, *given):
        return right(values, old, -returns, *given)

    monkeypatch.setattr(losses, "value_sums", opposite)
    assert failed(tmp_path, *least, recipe="tiny-ppo") == ["values are the critic's", "the critic learns its returns"]


@pytest.mark.slow
def test_attempts_that_are_copies(monkeypatch, tmp_path, no_bandit, least):
    right = TransformersSampler.sample

    def seeded(self, requests):
        return right(self, [dataclasses.replace(request, seed=1) for request in requests])

    monkeypatch.setattr(TransformersSampler, "sample", seeded)
    assert "attempts differ" in failed(tmp_path, *least)


@pytest.mark.slow
def test_a_method_that_learns_nothing_and_does_not_resume(monkeypatch, tmp_path, least):
    monkeypatch.setattr("searchgym.train.learner.trained_model.lr_scale", lambda step, steps, options: 1e-6)
    monkeypatch.setattr("searchgym.train.learner.trained_model.Updater.load", lambda self, folder: None)
    assert failed(tmp_path, *least)[-2:] == ["a bandit is learnt", "a resumed run ends at the same bits"]


@pytest.mark.slow
def test_a_critic_that_does_not_resume(monkeypatch, tmp_path):
    monkeypatch.setattr(LocalLearner, "load", lambda self, folder: self.policy.updater.load(folder))
    findings = Findings()
    module.check_bandit(load_recipe("tiny-ppo"), tmp_path, findings)
    assert [check.name for check in findings.checks() if check.state == "failed"] == [
        "a resumed run ends at the same bits"
    ]


# -- faults around the update ---------------------------------------------------------------------------------------


def _sampled_validation(monkeypatch):
    right = EngineRollout._engine

    def warm(self, step, greedy):
        engine = right(self, step, greedy)
        engine.temperature = self.recipe.rollout.temperature
        return engine

    monkeypatch.setattr(EngineRollout, "_engine", warm)


def _validation_in_the_training_environment(monkeypatch):
    right = EngineRollout._engine

    def elsewhere(self, step, greedy):
        self.validation = self.task
        return right(self, step, greedy)

    monkeypatch.setattr(EngineRollout, "_engine", elsewhere)


def _validation_without_its_options(monkeypatch):
    right = assembly.load_tasks
    monkeypatch.setattr(assembly, "load_tasks", lambda recipe: right(recipe)[:1] * 2)


def _scores_of_half_the_episodes(monkeypatch):
    mean = trainer.validation_metrics
    monkeypatch.setattr(
        trainer, "validation_metrics", lambda episodes, asked, by: mean(episodes[:1], asked[:1], by) | {"em": 0.25}
    )


def _budget_of_legal_calls(monkeypatch):
    def legal(episodes):
        return sum(call.end - call.start for episode in episodes for call in episode.calls if call.legal)

    monkeypatch.setattr(collect, "generated_tokens", legal)


def _replaced_groups_dropped(monkeypatch):
    right = collect.Collector._resample

    def dropped(self, drawn, step):
        asked = len(drawn.questions)
        row = right(self, drawn, step)
        if len(drawn.questions) > asked:
            count = self.recipe.rollout.attempts
            for own in (drawn.episodes, drawn.samples, drawn.rewards):
                del own[(asked - 1) * count : asked * count]
            del drawn.questions[asked - 1]
        return row

    monkeypatch.setattr(collect.Collector, "_resample", dropped)


def _never_replaced(monkeypatch):
    monkeypatch.setattr(collect, "groups_with_signal", lambda samples, options: {s.group_uid for s in samples})


def _without_the_curriculum(monkeypatch):
    right = steps.trainer_of
    monkeypatch.setattr(
        steps, "trainer_of", lambda recipe, parts, out: right(recipe, dataclasses.replace(parts, source=None), out)
    )


def _without_a_cap(monkeypatch):
    monkeypatch.setattr(losses, "importance_weight", lambda old, sampler, cap: torch.exp(old - sampler).detach())


def _first_minibatch_again(monkeypatch):
    def again(count, options, seed, step):
        every = list(minibatches(count, options, seed, step))
        each = len(every) // options.epochs
        yield from (every[number // each * each] for number in range(len(every)))

    monkeypatch.setattr("searchgym.train.learner.trained_model.minibatches", again)


def _ratios_to_the_latest_weights(monkeypatch):
    right = Policy.policy_loss

    def latest(self, batch):
        batch.values.pop("old_logp")
        return right(self, batch)

    monkeypatch.setattr(Policy, "policy_loss", latest)


def _a_turned_gradient(monkeypatch):
    """The gradient of one bias in another order: its norm is right."""
    right = Updater.apply

    def turned(self, step):
        bias = dict(self.model.named_parameters())["model.layers.0.self_attn.v_proj.bias"]
        bias.grad.copy_(bias.grad.roll(1))
        return right(self, step)

    monkeypatch.setattr(Updater, "apply", turned)


def _waypoints_all_or_nothing(monkeypatch):
    right = waypoint.coverage
    monkeypatch.setattr(waypoint, "coverage", lambda *given: float(right(*given) == 1))


def _gold_pages_paid_again(monkeypatch):
    def again(episode, question):
        gold = {title_key(title) for title in question.gold_titles or ()}
        return {s.turn: len(gold & {title_key(hit.passage.title) for hit in s.hits}) for s in episode.searches}

    monkeypatch.setattr(vpr, "new_pages", again)


def _limit_ignored(monkeypatch):
    monkeypatch.setattr(assembly, "with_max_tokens", lambda agent, *given: agent)


def _validated_before_publishing(monkeypatch):
    right = Trainer._step

    def late(self):
        publish, due = self._hooks.publish, []
        object.__setattr__(self._hooks, "publish", due.append)
        right(self)
        object.__setattr__(self._hooks, "publish", publish)
        for version in due:
            publish(version)

    monkeypatch.setattr(Trainer, "_step", late)


def _not_validated_at_the_end(monkeypatch):
    right = Trainer._finish_step

    def without(self, row):
        if self._finished():
            self.validation = []
        right(self, row)

    monkeypatch.setattr(Trainer, "_finish_step", without)


def _version_too_small(monkeypatch):
    right = TransformersSampler.update
    monkeypatch.setattr(
        TransformersSampler, "update", lambda self, state, version: right(self, state, max(version - 1, 0))
    )


def _reward_of_half_the_episodes(monkeypatch):
    right = collect.rollout_metrics

    def half(episodes):
        return right(episodes) | {"reward": right(episodes[: len(episodes) // 2])["reward"]}

    monkeypatch.setattr(collect, "rollout_metrics", half)


def _tokens_read_twice(monkeypatch):
    right = Trainer._log

    def twice(self, data, learnt, phases):
        right(self, data, learnt | {"learner/tokens_read": 2 * learnt["learner/tokens_read"]}, phases)

    monkeypatch.setattr(Trainer, "_log", twice)


def _first_questions_validate(monkeypatch):
    monkeypatch.setattr(trainer, "draw_subset", lambda questions, count: list(questions)[:count])


WORLDS = "env_options={questions: {split: train, size: 40, seed: 1}, max_turns: 3, top_k: 1}"
AROUND = [
    (_sampled_validation, [], "validation takes the likeliest tokens"),
    (_validation_without_its_options, [], "validation has its own questions and scores"),
    (_scores_of_half_the_episodes, [], "validation reports its episodes' scores"),
    (_budget_of_legal_calls, [], "every generated token is counted"),
    (_replaced_groups_dropped, ["rollout.resample=1"], "every generated token is counted"),
    (_never_replaced, ["rollout.resample=1"], "groups without signal are replaced, and counted"),
    (_without_the_curriculum, ["curriculum={kind: steps, stages: [{}]}"], "questions are drawn by epochs"),
    (_without_a_cap, ["loss.importance_cap=2"], LOSS),
    (_first_minibatch_again, ["optimizer.minibatches=4"], LOSS),
    (_ratios_to_the_latest_weights, ["optimizer.minibatches=4"], LOSS),
    (_a_turned_gradient, [], "gradients are right element by element"),
    (_waypoints_all_or_nothing, ["credit={outcome: 1, waypoint: 1}", "advantage.estimator.std=none", WORLDS], CREDIT),
    (_gold_pages_paid_again, [*METHODS["turn by turn"], WORLDS], CREDIT),
    (_limit_ignored, ["rollout.max_tokens=8"], SETTINGS),
    (_validated_before_publishing, [], PRESENT),
    (_not_validated_at_the_end, [], "validation reports its episodes' scores"),
    (_version_too_small, [], VERSIONS),
    (_reward_of_half_the_episodes, [], METRICS),
    (_tokens_read_twice, [], METRICS),
    (_first_questions_validate, [], CHOICE),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "more", "check"), AROUND, ids=[fault.__name__.strip("_") for fault, _, _ in AROUND])
def test_faults_around_the_update(fault, more, check, monkeypatch, tmp_path, no_bandit, least):
    fault(monkeypatch)
    found = failed(tmp_path, *least, *more)
    assert check in found
    assert "steps run to their end" not in found  # it is seen, and not run into


@pytest.mark.slow
def test_a_validation_that_searches_the_training_corpus(monkeypatch, tmp_path, no_bandit, no_updates):
    _validation_in_the_training_environment(monkeypatch)
    assert failed(tmp_path) == ["validation searches its own corpus"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ["loss.importance_cap=2", "optimizer.minibatches=4"],
        ["rollout.resample=2"],
        ["learner.frozen_layers=1"],
        ["lora.rank=4", "optimizer.minibatch_samples=32"],
        [
            "rollout.questions=8",
            "curriculum.kind=steps",
            "curriculum.stages=[{mix: {1: 1}}, {mix: {1: 1, 2: 1}}]",
        ],  # 8 of one hop there are
        ["credit={outcome: 1, waypoint: 1}", "advantage.estimator.std=none"],
    ],
    ids=" ".join,
)
def test_what_surrounds_the_update_passes(more, tmp_path, no_bandit, least):
    checks = selfcheck(load_recipe("tiny-grpo", [*SMALL, *least, *more]), tmp_path / "check")
    assert [check for check in checks if check.state == "failed"] == []
    assert CREDIT in {check.name for check in checks if check.state == "ok"}


def _best_by_reward(monkeypatch):
    right = Trainer._validate

    def by_reward(self):
        progress, before = self.progress, (self.progress.best_step, self.progress.best_score)
        row, _ = right(self)
        better = before[1] is None or row["validation/reward"] > before[1]
        progress.best_step, progress.best_score = (progress.step, row["validation/reward"]) if better else before
        return row, better

    monkeypatch.setattr(Trainer, "_validate", by_reward)


def _best_forgotten(monkeypatch):
    right = Trainer._restore

    def forgetful(self):
        right(self)
        self.progress.best_score = None

    monkeypatch.setattr(Trainer, "_restore", forgetful)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [_best_by_reward, _best_forgotten])
def test_another_checkpoint_as_the_best(fault, monkeypatch, tmp_path):
    fault(monkeypatch)
    findings = Findings()
    module.check_bandit(load_recipe("tiny-grpo"), tmp_path, findings)
    assert [check.name for check in findings.checks() if check.state != "ok"] == [module.BEST]

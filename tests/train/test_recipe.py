import re

import pytest

from searchgym.errors import CardError, UnknownNameError
from searchgym.options.cards import list_cards
from searchgym.train.recipe.load import load_recipe, read_recipe
from searchgym.train.recipe.recipe import dump_recipe, recipe_keys

SMALL = "{name: n, summary: s, method: policy, model: m, env: e, agent: a, steps: 5}"


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", sorted(list_cards("train")))
def test_every_shipped_recipe_loads_and_reads_back_equal(name, tmp_path):
    recipe = load_recipe(name)
    assert recipe.name == name
    copy = tmp_path / "recipe.yaml"
    copy.write_text(dump_recipe(recipe), encoding="utf-8")
    assert read_recipe(copy) == recipe


def test_overrides_are_typed(small):
    recipe = load_recipe(
        str(small),
        [
            "optimizer.lr=1e-4",
            "optimizer.weight_decay=1",
            "optimizer.betas=[0.9, 0.95]",
            "steps=7",
            "log.wandb=my project",
            "max_generated_tokens=null",
            "log.tensorboard=false",
            "steps=9",
        ],
    )
    assert (recipe.optimizer.lr, recipe.optimizer.weight_decay, recipe.steps) == (1e-4, 1.0, 9)
    assert recipe.optimizer.betas == (0.9, 0.95)
    assert (recipe.log.wandb, recipe.max_generated_tokens, recipe.log.tensorboard) == ("my project", None, False)
    assert recipe.loss.clip_low == 0.2


@pytest.mark.parametrize("number", ["1e-4", "1E-4", "1.0e-4", "+1e-4", ".1e-3", "0.0001", "1.e-4"])
def test_numbers_in_every_spelling(small, number):
    assert load_recipe(str(small), [f"optimizer.lr={number}"]).optimizer.lr == pytest.approx(1e-4, rel=1e-15)


def test_the_names_of_all_values():
    keys = recipe_keys()
    assert {"steps", "optimizer.lr", "rollout.attempts", "advantage.estimator", "log.wandb"} <= set(keys)
    assert not {"optimizer", "rollout"} & set(keys)
    assert len(keys) == len(set(keys)) > 40


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("override", "error", "message"),
    [
        ("optimizer.learning_rate=1", UnknownNameError, "unknown recipe key 'optimizer.learning_rate'"),
        ("optimizer.lrr=1", UnknownNameError, "did you mean 'optimizer.lr'"),
        ("optimizer=1", CardError, "optimizer is a section: give its values one by one, as optimizer.lr=VALUE"),
        ("steps", CardError, "override 'steps': expected key=value, for example optimizer.lr=1e-4"),
        ("steps=many", CardError, "steps: expected an integer, got 'many'"),
        ("steps=1.5", CardError, "steps: expected an integer, got 1.5"),
        ("steps=", CardError, "steps: expected an integer, got None"),
        ("steps=[", CardError, "override 'steps=[': the value: cannot be read as YAML"),
        ("optimizer.lr=fast", CardError, "optimizer.lr: expected a number, got 'fast'"),
        ("method=ppo", CardError, "method: unknown method 'ppo'"),
        ("loss.reduction=mean", CardError, "got 'mean'. Known: constant, episode-mean, sequence-mean, token-mean"),
        ("steps=0", CardError, "steps: expected at least 1, got 0"),
        ("optimizer.lr=.nan", CardError, "optimizer.lr: expected a finite number, got nan"),
        ("optimizer.lr=-1", CardError, "optimizer.lr: expected at least 0, got -1"),
        ("optimizer.betas=[0.9]", CardError, "optimizer.betas[1]: missing key"),
        ("rollout.temperature=0", CardError, "rollout.temperature: expected above 0, got 0"),
        ("rollout.top_p=0", CardError, "rollout.top_p: expected above 0, got 0"),
        ("rollout.top_p=0.9", CardError, "rollout.top_p is 0.9: a ratio needs the whole distribution"),
        ("rollout.attempts=1", CardError, "rollout.attempts is 1: no group reaches advantage.min_group, 2"),
        ("advantage.min_group=1", CardError, "advantage.min_group: expected at least 2, got 1"),
        ("loss.clip_low=1", CardError, "loss.clip_low: expected below 1, got 1"),
        ("method=supervised", CardError, "method.demonstrations: missing key"),
        ("advantage.estimator=ga", CardError, "advantage.estimator: unknown estimator 'ga'; did you mean 'gae'"),
        ("learner.backend.zero=4", CardError, "learner.backend.zero: unknown key. Known: gpu"),
        (
            "learner.ranks=2",
            CardError,
            "learner.ranks is an old name: write learner: {backend: {kind: deepspeed",
        ),
        ("learner.dtype=bfloat16", CardError, "set optimizer.autocast to bfloat16"),
        (
            ("lora.rank=4", "learner.dtype=bfloat16"),
            CardError,
            "transformers samples from the adapter merged into the rounded weights",
        ),
        ("critic.optimizer.lr=-1", CardError, "critic.optimizer.lr: expected at least 0, got -1"),
        ("critic.value_clip=0.1", CardError, "critic: only an estimator like gae uses one, not grpo"),
        ("advantage.estimator.lam=0.9", CardError, "advantage.estimator.lam: unknown key. Known: eps, std, std_floor"),
        ("deadline.learn=0", CardError, "deadline.learn: expected at least 0.001, got 0"),
        ("advantage.lam=0.9", CardError, "advantage.lam is an old name: write advantage: {estimator: {kind: ..., lam"),
        ("loss.dual_clip=1.1", CardError, "loss.dual_clip is 1.1: it bounds ratios beyond the clip"),
        ("loss.importance_cap=0.9", CardError, "loss.importance_cap: expected at least 1, got 0.9"),
        ("loss.reduction=constant", CardError, "loss.reduction constant needs loss.constant_length"),
        ("loss.constant_length=9", CardError, "loss.constant_length acts with loss.reduction constant only"),
        ("loss.kl_in=reward", CardError, "loss.kl_estimator is k3 in the reward"),
        (
            "loss.llds_coef=0.2",
            CardError,
            "loss.llds_coef is 0.2: with one update per rollout no likelihood can have fallen",
        ),
        ("rollout.resample=-1", CardError, "rollout.resample: expected at least 0, got -1"),
        ("optimizer.warmup_steps=6", CardError, "optimizer.warmup_steps is 6 of 5 steps"),
    ],
)
def test_what_cannot_work_is_refused(small, override, error, message):
    with pytest.raises(error, match=re.escape(message)):
        load_recipe(str(small), [override] if isinstance(override, str) else list(override))


GAE, DEEPSPEED = "advantage.estimator=gae", "learner.backend=deepspeed"
VLLM = "rollout.sampler=vllm"
REINFORCE = "advantage.estimator=reinforce-pp"
STRATIFIED = "advantage.estimator=stratified"


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["advantage.estimator=rloo", "advantage.estimator.std=none"], "advantage.estimator.std: unknown key"),
        ([STRATIFIED, "advantage.estimator.alpha=1.5"], "advantage.estimator.alpha: expected at most 1, got 1.5"),
        ([STRATIFIED, "rollout.attempts=1"], "rollout.attempts is 1: no group reaches advantage.min_group"),
        (
            [REINFORCE, "rollout.attempts=1", "rollout.questions=1"],
            "rollout.questions x rollout.attempts is 1: no group reaches",
        ),
        ([REINFORCE, "rollout.resample=1"], "rollout.resample replaces groups without signal; reinforce-pp has none"),
        (["rollout.resample=1", "advantage.drop_zero_variance=false"], "drop_zero_variance false keeps: choose one"),
        (
            [REINFORCE, "loss.ratio=sequence", "loss.kl_in=reward", "loss.kl_estimator=k1", "loss.kl_coef=0.1"],
            "loss.ratio sequence needs one advantage per sequence",
        ),
        (
            ["loss.kl_estimator=k2", "loss.kl_coef=0.1", "loss.kl_cap=5"],
            "loss.kl_cap is 5.0: it applies to k3 alone, and loss.kl_estimator is k2",
        ),
        (["loss.kl_cap=0"], "loss.kl_cap: expected above 0, got 0"),
        ([GAE, "advantage.estimator.gamma=1.1"], "advantage.estimator.gamma: expected at most 1, got 1.1"),
        ([GAE, "rollout.resample=1"], "rollout.resample replaces groups without signal; gae has none"),
        ([GAE, "loss.ratio=sequence"], "loss.ratio sequence needs one advantage per sequence; gae has several"),
        ([GAE, "critic.warmup_steps=6"], "critic.warmup_steps is 6 of 5 steps"),
        ([DEEPSPEED, "learner.backend.zero=4"], "learner.backend.zero: expected at most 3, got 4"),
        ([DEEPSPEED, "learner.backend.listen=machine"], "learner.backend: listen is 'machine': expected HOST:PORT"),
        ([VLLM, 'rollout.sampler.servers=["h:80"]'], "rollout.sampler: servers: 'h:80': expected http://HOST:PORT"),
        (
            [VLLM, 'rollout.sampler.servers=["http://h:80","http://h:80/"]'],
            "rollout.sampler: servers names a server twice",
        ),
        (
            [VLLM, "rollout.sampler.shared=/x"],
            "rollout.sampler: shared is for sending weights to servers",
        ),
        (["learner.backend.listen=machine:80"], "learner.backend.listen: unknown key"),
        (
            [DEEPSPEED, "learner.backend.offload_optimizer=true"],
            "learner.backend: offload_optimizer needs zero 1, 2 or 3",
        ),
        (
            [DEEPSPEED, "learner.backend.zero=2", "learner.backend.offload_parameters=true"],
            "learner.backend: offload_parameters needs zero 3",
        ),
        ([DEEPSPEED, "learner.backend.zero=3", "learner.compile=true"], "learner.compile needs zero 0, 1 or 2"),
        ([DEEPSPEED, "learner.dtype=bfloat16"], "learner.backend: learner.dtype bfloat16 needs zero 1, 2 or 3"),
        (
            [DEEPSPEED, GAE, VLLM, "lora.rank=4", "learner.dtype=bfloat16"],
            "learner.backend: learner.dtype bfloat16 needs zero 1, 2 or 3",
        ),
        (
            [DEEPSPEED, "lora.rank=4", "learner.dtype=bfloat16", "rollout.sampler=transformers"],
            "learner.dtype bfloat16 with lora needs rollout.sampler vllm",
        ),
        (
            [GAE, VLLM, "lora.rank=4", "learner.dtype=bfloat16"],
            "learner.dtype bfloat16 with a critic, which is trained whole, needs learner.backend deepspeed with zero 1",
        ),
        (["method=rejection", "critic.value_clip=1"], "critic acts in method policy only, not in rejection"),
        (["method=rejection", "loss.dual_clip=3"], "loss.dual_clip acts in method policy only, not in rejection"),
        (["method=rejection", "rollout.resample=1"], "rollout.resample acts in method policy only, not in rejection"),
    ],
)
def test_combinations_that_cannot_work_are_refused(small, overrides, message):
    with pytest.raises(CardError, match=re.escape(message)):
        load_recipe(str(small), overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        [REINFORCE, "rollout.attempts=1"],
        [STRATIFIED, "advantage.estimator.alpha=0.8"],
        ["loss.llds_coef=0.2", "optimizer.epochs=2"],
        [DEEPSPEED, VLLM, "lora.rank=4", "learner.dtype=bfloat16"],
        [DEEPSPEED, GAE, VLLM, "lora.rank=4", "learner.dtype=bfloat16", "learner.backend.zero=2"],
        ["loss.kl_in=reward", "loss.kl_estimator=k1", "loss.kl_coef=0.1"],
        ["loss.kl_coef=0.1", "loss.kl_cap=null"],
        ["loss.reduction=constant", "loss.constant_length=100", "advantage.estimator.std=none"],
    ],
)
def test_combinations_that_work_are_let_through(small, overrides):
    load_recipe(str(small), overrides)


def test_a_coefficient_that_cannot_act_is_refused(small):
    with pytest.raises(CardError, match="act in method policy only, not in rejection"):
        load_recipe(str(small), ["method=rejection", "loss.kl_coef=0.1"])


def test_every_problem_is_named_at_once(small):
    message = r"override steps=0: steps: .*\noverride rollout\.attempts=0: rollout\.attempts: "
    with pytest.raises(CardError, match=message):
        load_recipe(str(small), ["steps=0", "rollout.attempts=0"])


def test_an_override_below_a_value_that_is_no_group_is_refused(tmp_path):
    path = tmp_path / "odd.yaml"
    path.write_text(SMALL.replace("}", ", optimizer: 3}"))
    with pytest.raises(CardError, match="optimizer is 3 in the recipe, expected keys and values"):
        load_recipe(str(path), ["optimizer.lr=1"])


def test_unknown_recipes_and_unreadable_files_are_named(tmp_path):
    with pytest.raises(UnknownNameError, match="unknown recipe 'no-such-recipe'"):
        load_recipe("no-such-recipe")
    path = tmp_path / "bad.yaml"
    path.write_text("a: [")
    with pytest.raises(CardError, match=r"bad\.yaml: cannot be read as YAML"):
        load_recipe(str(path))
    path.write_text("- 1")
    with pytest.raises(CardError, match=r"bad\.yaml:1: expected keys and values, got \[1\]"):
        load_recipe(str(path), ["steps=1"])

"""One GRPO step beside TRL's: the whole of its trainer runs, and its losses and gradients are compared with ours."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from advantage_options import advantage_options
from datasets import Dataset
from made_models import tiny_qwen2, tiny_tokenizer
from quiet_trl import GRPOConfig, GRPOTrainer
from transformers import AutoModelForCausalLM, TrainerCallback

from searchgym.records import Call, Context, Episode, Span
from searchgym.train.algorithms.advantages import assign_advantages
from searchgym.train.algorithms.loss_options import LossOptions
from searchgym.train.algorithms.losses import token_weights
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.learner.policy import Policy
from searchgym.train.learner.trained_model import Updater
from searchgym.train.recipe.options import OptimizerOptions

ATTEMPTS = 4
REWARDS = {"0": [1.0, 0.0, 0.25, 0.0], "1": [0.0, 1.0, 1.0, 0.5]}


def make_episodes():
    """Two groups of four episodes: prompt, model, observation, model, of unequal lengths."""
    rng = np.random.default_rng(0)
    episodes = []
    for group, rewards in REWARDS.items():
        prompt = rng.integers(5, 500, 4 + 9 * int(group), dtype=np.int32)
        for attempt, reward in enumerate(rewards):
            first, seen, last = (rng.integers(5, 500, int(n), dtype=np.int32) for n in rng.integers(2, 40, 3))
            logp = [rng.normal(-3, 1, len(ids)).astype(np.float32) for ids in (first, last)]
            spans = [
                Span("prompt", prompt),
                Span("model", first, logp[0]),
                Span("observation", seen),
                Span("model", last, logp[1]),
            ]
            ends = np.cumsum([len(span.ids) for span in spans]).tolist()
            calls = [Call(0, ends[0], ends[1], "r", "policy", 1), Call(0, ends[2], ends[3], "r", "policy", 2)]
            episodes.append(
                Episode(
                    id=f"{group}#{attempt}",
                    question_id=group,
                    agent="a",
                    env="e",
                    attempt=attempt,
                    group_uid=group,
                    contexts=[Context(None, 0, spans)],
                    calls=calls,
                    reward=reward,
                )
            )
    return episodes


EPISODES = make_episodes()


def replay(prompts, trainer):
    """TRL's way in for rollouts: the same episodes, observations marked in ``env_mask``."""
    turn = {"0": 0, "1": 0}
    found = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": [], "score": []}
    for prompt in prompts:
        episode = EPISODES[ATTEMPTS * int(prompt) + turn[prompt]]
        turn[prompt] += 1
        begin, *rest = episode.contexts[0].spans
        found["prompt_ids"].append(begin.ids.tolist())
        found["completion_ids"].append([int(i) for span in rest for i in span.ids])
        found["env_mask"].append([int(span.kind == "model") for span in rest for _ in span.ids])
        found["score"].append(episode.reward)
    return found | {"logprobs": None}


class Recorder(TrainerCallback):
    """Keeps weights and gradients as they are when TRL is about to update."""

    def __init__(self):
        self.updates = []

    def on_pre_optimizer_step(self, args, state, control, model, **rest):
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        self.updates.append((weights, {name: p.grad.clone() for name, p in model.named_parameters()}))


class Recorded(GRPOTrainer):
    """Keeps the loss of every micro-batch."""

    def compute_loss(self, *arguments, **options):
        loss = super().compute_loss(*arguments, **options)
        self.losses.append(float(loss.detach()))
        return loss


@dataclasses.dataclass(frozen=True)
class Case:
    loss_type: str
    reduction: str
    scale: str
    std: str
    beta: float
    temperature: float
    trl: dict = dataclasses.field(default_factory=dict)
    ours: dict = dataclasses.field(default_factory=dict)


CASES = [
    Case("dapo", "token-mean", "group", "sample", 0.0, 1.0),
    Case("dapo", "token-mean", "none", "none", 0.1, 0.8),
    Case("grpo", "sequence-mean", "group", "sample", 0.1, 1.0),
    Case("dr_grpo", "constant", "none", "none", 0.0, 1.0, ours={"constant_length": 128}),
    Case(
        "grpo",
        "sequence-mean",
        "group",
        "sample",
        0.1,
        1.0,
        trl={"importance_sampling_level": "sequence"},
        ours={"ratio": "sequence"},
    ),
    Case("dapo", "token-mean", "group", "sample", 0.0, 1.0, trl={"delta": 1.5}, ours={"dual_clip": 1.5}),
]


def run_trl(case, folder):
    """Two updates by TRL on the same episodes: the first at ratio one, the second far from it."""
    tiny_qwen2(sharp=0.1).save_pretrained(folder / "model")
    config = GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=ATTEMPTS,
        gradient_accumulation_steps=2,
        steps_per_generation=2,
        num_generations=ATTEMPTS,
        num_iterations=2,
        max_steps=2,
        max_completion_length=128,
        loss_type=case.loss_type,
        scale_rewards=case.scale,
        epsilon=0.2,
        epsilon_high=0.28,
        beta=case.beta,
        use_bias_correction_kl=False,
        temperature=case.temperature,
        learning_rate=1.0,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        **case.trl,
    )
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    recorder = Recorder()
    trainer = Recorded(
        model=model,
        reward_funcs=lambda completions, score, **rest: score,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "0"}, {"prompt": "1"}]),
        processing_class=tiny_tokenizer(),
        rollout_func=replay,
        optimizers=(torch.optim.SGD(model.parameters(), lr=1.0), None),
        callbacks=[recorder],
    )
    trainer.losses = []
    trainer.train()
    return [
        (weights, gradients, sum(trainer.losses[2 * i : 2 * i + 2]))
        for i, (weights, gradients) in enumerate(recorder.updates)
    ]


@pytest.mark.smoke
@pytest.mark.filterwarnings("ignore:You are using 'rollout_func', which is an experimental feature:UserWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.loss_type} {case.scale} beta {case.beta} {case.trl}")
def test_loss_and_gradient_equal_trls(case, tmp_path):
    updates = run_trl(case, tmp_path)
    samples = [sample for episode in EPISODES for sample in samples_from(episode)]
    samples, counts = assign_advantages(samples, advantage_options(std=case.std, eps=1e-4))
    assert (counts.groups, counts.zero_variance, len({len(s.ids) for s in samples})) == (2, 0, 8)
    start = tiny_qwen2(sharp=0.1)
    optimizer = OptimizerOptions(micro_batch_tokens=256)
    policy = Policy(
        Updater(copy.deepcopy(start), optimizer, steps=2),
        LossOptions(clip_low=0.2, clip_high=0.28, kl_coef=case.beta, reduction=case.reduction, **case.ours),
        optimizer,
        temperature=case.temperature,
        reference=start,
    )
    weight, denominator = token_weights(samples, case.reduction, case.ours.get("constant_length"))
    values = {
        "advantage": [s.advantage[s.mask] for s in samples],
        "sampler_logp": [s.sampler_logp[s.mask] for s in samples],
        "weight": weight,
        "old_logp": policy.logp(samples),
    }
    if case.beta:
        values["ref_logp"] = policy.logp(samples, start)
    clipped, dual = [], []
    for weights, gradients, loss in updates:
        policy.updater.model.load_state_dict(weights)
        policy.updater.clear()
        statistics = policy.trained_model.accumulate(samples, values, denominator, policy.policy_loss)
        clipped.append(statistics["clipped_low"] + statistics["clipped_high"])
        dual.append(statistics.get("clipped_dual", 0))
        assert statistics["micro_batches"] >= 2
        assert statistics["loss"] == pytest.approx(loss, abs=1e-5)
        for name, parameter in policy.updater.model.named_parameters():
            torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-5, atol=1e-5, msg=name)
    assert clipped[0] == 0
    assert clipped[1] > 20
    assert (dual[1] > 10) == ("dual_clip" in case.ours)

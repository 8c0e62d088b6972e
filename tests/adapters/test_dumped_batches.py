"""Batches that verl's and TRL's own code makes, dumped as the documentation says: clean, and five faults in them."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from searchgym.testing.dumps.run import Claims, check_dump

sys.path.append(str(Path(__file__).parents[1] / "testing" / "dumps"))
import dumped

pytestmark = [pytest.mark.adapter, pytest.mark.filterwarnings("ignore")]  # the packages warn of what is theirs to mend
GRPO = Claims(model="tiny", estimator="grpo")


def kinds(report):
    return {finding.kind for finding in report.findings}


@pytest.fixture
def verl_batch():
    """Returns verl's `DataProto` of real rollouts, as its agent loop gives it to the trainer."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
    from verl.protocol import DataProto
    from verl.utils.model import compute_position_id_with_mask
    from verl.utils.torch_functional import pad_sequence_to_length as padded

    rows, outputs = dumped.clean("verl", "chat"), []
    for row in rows:
        output = AgentLoopOutput(
            prompt_ids=row.ids[: row.prompt],
            response_ids=row.ids[row.prompt :],
            response_mask=row.mask[row.prompt :],
            response_logprobs=row.logp[row.prompt :],
            reward_score=row.reward,
            metrics=AgentLoopMetrics(),
        )
        outputs.append(output.as_dict())

    def column(name, blank, left=False, width=200):
        return torch.stack([padded(output[name][None], width, blank, left_pad=left)[0] for output in outputs])

    prompts, responses = column("prompts", dumped.PAD, True), column("responses", dumped.PAD)
    attention = torch.cat([prompts != dumped.PAD, responses != dumped.PAD], 1).long()
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], 1),
        "attention_mask": attention,
        "position_ids": compute_position_id_with_mask(attention),
        "response_mask": column("response_mask", 0),
        "rollout_log_probs": column("rollout_log_probs", 0.0),
        "token_level_scores": column("rm_scores", 0.0),
        "token_level_rewards": column("rm_scores", 0.0),
    }
    uids = np.array([row.group for row in rows], object)
    return DataProto.from_dict(tensors, {"uid": uids}, {"temperature": dumped.TEMPERATURE})


def verl_report(batch, folder):
    """Lets verl compute advantages, dumps the batch as the documentation says, and checks it."""
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    tensors = batch.batch
    rewards, mask, groups = tensors["token_level_rewards"], tensors["response_mask"], batch.non_tensor_batch["uid"]
    tensors["advantages"], tensors["returns"] = get_adv_estimator_fn("grpo")(rewards, mask, groups)
    uids = list(map(str, batch.non_tensor_batch["uid"]))
    torch.save({**batch.batch, "uid": uids, "temperature": batch.meta_info["temperature"]}, folder / "verl.pt")
    return check_dump(folder / "verl.pt", "verl", GRPO)


def test_a_batch_of_verl_is_clean(verl_batch, tmp_path):
    report = verl_report(verl_batch, tmp_path)
    assert report.findings == []
    assert {"advantages", "groups", "rollout_log_probs against the model"} <= report.checked.keys()


def test_verls_mask_of_all_response_tokens_trains_observations(verl_batch, tmp_path):
    """Which verl computes if an agent loop gives none: the attention mask of the response."""
    width = verl_batch.batch["responses"].shape[1]
    verl_batch.batch["response_mask"] = verl_batch.batch["attention_mask"][:, -width:]
    assert kinds(verl_report(verl_batch, tmp_path)) >= {"observation-trained"}


def test_a_batch_of_verl_that_was_reordered_without_its_uids(verl_batch, tmp_path):
    uids = verl_batch.non_tensor_batch["uid"].copy()
    verl_batch.reorder(torch.tensor([0, 5, 2, 3, 4, 1, 6, 7]))
    verl_batch.non_tensor_batch["uid"] = uids
    report = verl_report(verl_batch, tmp_path)
    assert [finding.sample for finding in report.findings if finding.kind == "group-mixed"] == ["row 2", "row 6"]


@pytest.fixture(scope="module")
def trl_batch(tmp_path_factory):
    """Returns the inputs of the loss of TRL's trainer after one generation by the tiny model, with rewards."""
    from trl import GRPOConfig, GRPOTrainer

    from searchgym.adapters.trl import EnvironmentFactory, use_tags
    from searchgym.rollout.loading import load_model

    class Dumping(GRPOTrainer):
        def _calculate_rewards(self, *arguments, **options):
            self.rewards_of_batch = super()._calculate_rewards(*arguments, **options)
            return self.rewards_of_batch

        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            weights = self.reward_weights.to(self.rewards_of_batch.device)
            self.dump = {
                **{name: value for name, value in output.items() if torch.is_tensor(value)},
                "rewards": (self.rewards_of_batch * weights).nansum(1),
                "num_generations": self.num_generations,
                "temperature": self.temperature,
            }
            return output

    environments = EnvironmentFactory("searchgym/World-v0", questions={"split": "train", "size": 200, "seed": 1})
    torch.manual_seed(0)
    model, tokenizer = load_model("tiny")
    with use_tags(model, tokenizer):
        trainer = Dumping(
            model=model,
            processing_class=tokenizer,
            environment_factory=environments,
            train_dataset=environments.dataset(),
            reward_funcs=lambda completions, **rest: [float(len(str(each)) % 7) for each in completions],
            args=GRPOConfig(
                str(tmp_path_factory.mktemp("trl")),
                per_device_train_batch_size=8,
                num_generations=4,
                num_iterations=2,  # so that log-probs of the old weights are computed
                max_completion_length=200,
                temperature=1.2,
                mask_truncated_completions=True,
                use_cpu=True,
                bf16=False,
                report_to=[],
            ),
        )
        rows = [trainer.train_dataset[n] for n in (0, 1) for _ in range(4)]
        trainer.model.train()
        trainer._generate_and_score_completions(rows)
    return trainer.dump


def trl_report(batch, folder, **claims):
    torch.save(batch, folder / "trl.pt")
    return check_dump(folder / "trl.pt", "trl", Claims(**{"model": "tiny", "estimator": "group", **claims}))


def test_a_batch_of_trl_is_clean(trl_batch, tmp_path):
    report = trl_report(trl_batch, tmp_path)
    assert report.findings == []
    assert {"advantages", "groups", "old_per_token_logps against the model"} <= report.checked.keys()
    assert (trl_batch["tool_mask"] * trl_batch["completion_mask"]).sum() < trl_batch["completion_mask"].sum()


def test_a_batch_of_trl_without_its_tool_mask(trl_batch, tmp_path):
    batch = {name: value for name, value in trl_batch.items() if name != "tool_mask"}
    assert "observation-trained" in kinds(trl_report(batch, tmp_path))


def test_a_batch_of_trl_with_another_scale_of_rewards(trl_batch, tmp_path):
    assert "advantage-mismatch" in kinds(trl_report(trl_batch, tmp_path, estimator="none"))


def test_a_batch_of_trl_at_another_temperature(trl_batch, tmp_path):
    assert kinds(trl_report(trl_batch, tmp_path, temperature=0.7)) == {"logp-temperature"}

"""The critic of a finished training, which values episodes at test time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForTokenClassification

from searchgym.errors import DataError, DataMissingError, UsageError
from searchgym.records import Episode
from searchgym.rollout.folders import check_config, quiet_libraries, recipe_of
from searchgym.rollout.loading import DTYPES, LOCAL
from searchgym.rollout.models import weights_sha256
from searchgym.rollout.replay.guided import EpisodeValues
from searchgym.rollout.sampler import Dtype
from searchgym.train.algorithms.samples import Sample, samples_from
from searchgym.train.algorithms.value_loss import ValueLoss
from searchgym.train.learner.learner import CRITIC
from searchgym.train.recipe.load import read_recipe


class ValueModel:
    """A critic that values the states of episodes.

    Args:
        critic: Token classifier of transformers, whose outputs the loss turns into values.
        loss: Loss that the critic was trained with.
        name: Name in error messages: the folder of the checkpoint.
        sha256: SHA-256 of its weights.
    """

    def __init__(self, critic: Any, loss: ValueLoss, name: str, sha256: str | None = None) -> None:
        self.critic, self.loss, self.name, self.sha256 = critic, loss, name, sha256
        critic.eval()

    @classmethod
    def load(cls, checkpoint: str | Path, dtype: Dtype = "float32", device: str = "cpu") -> ValueModel:
        """Loads the critic of a checkpoint in its run folder.

        Args:
            checkpoint: Folder of the checkpoint, like ``RUN/checkpoints/last``.
            dtype: Type of the weights in memory.
            device: Torch device for the weights.

        Raises:
            DataMissingError: It has no critic, or is not in the folder of its run.
            DataError: The critic's files are damaged, or belong to another model.
        """
        folder = Path(checkpoint)
        if not (folder / CRITIC).is_dir():
            raise DataMissingError(
                "no folder critic/: give a checkpoint of a training with a critic (gae), such as RUN/checkpoints/last",
                folder,
            )
        record = recipe_of(folder)
        if not record.is_file():
            raise DataMissingError(f"{record}, which tells how its critic was made, does not exist", folder)
        loss = read_recipe(record).critic.loss
        check_config(folder / CRITIC)
        try:
            with quiet_libraries():
                critic = AutoModelForTokenClassification.from_pretrained(folder / CRITIC, dtype=DTYPES[dtype], **LOCAL)
        except Exception as error:  # torch and transformers raise many types on damaged files
            raise DataError(f"the critic cannot be read: {error}", folder / CRITIC) from error
        if critic.config.num_labels != loss.outputs():
            outputs = f"{critic.config.num_labels} outputs, {loss.outputs()} are those of the run's critic.loss"
            raise DataError(f"the critic has {outputs}", folder / CRITIC)
        return cls(critic.to(device), loss, str(checkpoint), weights_sha256(folder / CRITIC))

    def __call__(self, episode: Episode) -> EpisodeValues:
        """Returns the values in an episode.

        A token's value is computed at the token before it, as in training: the state in which it was chosen.

        Args:
            episode: An episode with tokens and at least one call.

        Raises:
            DataError: A value is not finite, or the critic does not know a token.
            UsageError: The episode has no tokens: a chat server wrote it.
        """
        before, end = dict[str, float](), math.nan
        for sample in samples_from(episode, replayed=True):
            values = self._values(sample)
            named = zip(sample.calls, sample.call_ids, strict=True)
            before |= {name: float(values[call.start - 1]) for call, name in named}
            end = float(values[sample.calls[-1].end - 2])
        if not before:
            why = "has no tokens: a critic values tokens of a model that is loaded here, not those of a chat server"
            raise UsageError(f"episode {episode.id} {why}")
        if not all(map(math.isfinite, (*before.values(), end))):
            raise DataError(f"its critic's value of episode {episode.id} is not finite: train it again", self.name)
        ids = (f"{episode.id}/{number}" for number in range(len(episode.calls)))
        return EpisodeValues(tuple(before.get(id, -math.inf) for id in ids), end)

    @torch.inference_mode()
    def _values(self, sample: Sample) -> list[float]:
        """Returns a value at each of a sample's T tokens: that of the token which follows."""
        if (last := int(sample.ids.max())) >= (tokens := self.critic.get_input_embeddings().num_embeddings):
            raise DataError(f"its critic has {tokens} tokens, episode {sample.episode_id} has token {last}", self.name)
        ids = torch.from_numpy(sample.ids).long()[None].to(self.critic.device)
        values: list[float] = self.loss.values(self.critic(input_ids=ids).logits[0]).tolist()
        return values

"""Weight updates by DeepSpeed: ZeRO over the ranks of a process group, with optional offload to main memory.

Weights trained in bfloat16 have a copy in float32 that is updated. An adapter is float32 itself, whatever the type of
its frozen base, which DeepSpeed leaves as it is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from searchgym.errors import TrainingError
from searchgym.train.learner.lora import ADAPTER_PART
from searchgym.train.learner.trained_model import Updater, lr_scale
from searchgym.train.recipe.backend import Sharding
from searchgym.train.recipe.options import OptimizerOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TAG = "deepspeed"
"""Name of the folder with DeepSpeed's files in a checkpoint."""
FORCE: Final = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""Environment variable that makes torch load only tensors, whatever its caller requests."""
NO_CUT = 1e30
"""Clipping norm above any gradient's norm, which turns off DeepSpeed's clipping."""


class DeepSpeedUpdater(Updater):
    """Updates a model whose state is sharded over the ranks.

    DeepSpeed averages gradients over the ranks, so each rank's share of the loss is multiplied by the number of ranks.
    DeepSpeed's counting of micro-batches is turned off: `apply` ends an update.

    Args:
        model: Model, equal on every rank; must be used only through DeepSpeed afterwards.
        options: Options of the optimizer.
        steps: Number of steps of the whole run, for the schedule.
        sharding: ZeRO stage and offloading.
    """

    def __init__(self, model: PreTrainedModel, options: OptimizerOptions, steps: int, sharding: Sharding) -> None:
        import deepspeed  # type: ignore[import-untyped]

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled first; gloo does without
        super().__init__(model, options, steps)
        self._zero, self._norm = sharding.zero, 0.0
        named = list(model.named_parameters(remove_duplicate=False))
        self._adapted = any(ADAPTER_PART in name for name, _ in named)
        self._frozen = {name for name, p in named if not p.requires_grad}
        if self._zero == 0:  # without sharding DeepSpeed leaves norm and clipping to its caller
            self.optimizer.register_step_pre_hook(self._cut)
        bfloat16 = any(p.requires_grad and p.dtype == torch.bfloat16 for _, p in named)
        config = deepspeed_config(options, sharding, dist.get_world_size(), bfloat16)
        self.engine: Any = deepspeed.initialize(model=model, optimizer=self.optimizer, config=config)[0]

    @override
    def __call__(self, **inputs: Any) -> Any:
        return self.engine(**inputs)

    @override
    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss * dist.get_world_size())

    @override
    def clear(self) -> None:
        self.engine.optimizer.zero_grad()

    @override
    def apply(self, step: int) -> dict[str, float]:
        """Makes one optimizer update; see `Updater`.

        With ZeRO, an update is made even if all gradients are exactly 0.
        """
        rate = self.options.lr * lr_scale(step, self.steps, self.options)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate
        self.engine.step()
        norm = self._norm if self._zero == 0 else float(self.engine.get_global_grad_norm())
        if not math.isfinite(norm):
            raise TrainingError(f"the gradient's norm is {norm} in step {step + 1}: no update was made")
        updated = self._zero > 0 or norm > 0
        self.version += int(updated)
        return {"gradient_norm": norm, "learning_rate": rate, "updates": float(updated)}

    def _cut(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Clips the gradients just before an update, and removes them if all are zero."""
        self._norm = float(
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.max_grad_norm or math.inf)
        )
        if not self._norm > 0 or not math.isfinite(self._norm):
            optimizer.zero_grad(set_to_none=True)

    # -- state -----------------------------------------------------------------------------------------------------

    @override
    def weights(self, adapter: bool = False) -> dict[str, Tensor]:
        """Returns a copy of the model's state by name on the first rank; every rank must call this.

        Args:
            adapter: If True, only the weights of the LoRA adapter: the base is neither gathered nor copied.
        """
        import deepspeed

        whole: dict[int, Tensor] = {}  # by identity: tied weights stay tied
        every = self.engine.module.state_dict(keep_vars=True)
        state = {name: tensor for name, tensor in every.items() if ADAPTER_PART in name or not adapter}
        for tensor in state.values():
            if id(tensor) not in whole:
                with deepspeed.zero.GatheredParameters([tensor] if hasattr(tensor, "ds_id") else []):
                    local = tensor.detach() if dist.get_rank() == 0 else tensor.detach()[:0]
                    whole[id(tensor)] = local.to("cpu", copy=True)
        return {name: whole[id(tensor)] for name, tensor in state.items()}

    @override
    def save(self, folder: Path) -> None:
        """Writes the model in Hugging Face format, or its adapter in peft's, and DeepSpeed's state of what is trained.

        Every rank must call this. Frozen weights are not in DeepSpeed's state.
        """
        weights = self.weights(self._adapted)
        if dist.get_rank() == 0:
            self.model.save_pretrained(folder, state_dict=weights)

        def drop_frozen(_module: Any, state: dict[str, Any], _prefix: str, _metadata: Any) -> None:
            for name in self._frozen & state.keys():  # DeepSpeed itself leaves in a head that is tied to the embeddings
                del state[name]

        hook = self.model.register_state_dict_post_hook(drop_frozen)  # type: ignore[no-untyped-call]
        client = {"version": self.version}
        try:
            self.engine.save_checkpoint(
                str(folder), tag=TAG, client_state=client, save_latest=False, exclude_frozen_parameters=True
            )
        finally:
            hook.remove()
        dist.barrier()

    @override
    def load(self, folder: Path) -> None:
        """Loads what `save` wrote with the same options and the same number of ranks."""
        with _tensors_only():
            path, state = self.engine.load_checkpoint(str(folder), tag=TAG, custom_load_fn=self._fill)
        if path is None:
            raise TrainingError(f"{folder} holds no state of DeepSpeed: it was saved by another learner.backend")
        self.version = state["version"]

    def _fill(self, src: dict[str, Tensor], dst: torch.nn.Module) -> None:
        """Loads a saved state into the model, whose frozen weights stay as they are."""
        missing, odd = dst.load_state_dict(src, strict=False)
        if wrong := sorted({*missing, *odd} - self._frozen):
            raise TrainingError(
                f"{TAG} holds a state of other weights, {wrong[0]} among them: it was saved with another lora or "
                "learner.frozen_layers"
            )

    @override
    def check_weights(self) -> None:
        finite = [bool(torch.isfinite(getattr(p, "ds_tensor", p).detach()).all()) for p in self.model.parameters()]
        everywhere: list[bool] = [True] * dist.get_world_size()
        dist.all_gather_object(everywhere, all(finite))
        if not all(everywhere):
            raise TrainingError("the model holds a weight that is not finite")


@contextmanager
def _tensors_only() -> Iterator[None]:
    """Makes torch load only tensors and DeepSpeed's plain types, although DeepSpeed requests whole pickles.

    Otherwise a checkpoint from another person could run any code; creating these types runs none.
    """
    from deepspeed.runtime.fp16.loss_scaler import LossScaler  # type: ignore[import-untyped]
    from deepspeed.runtime.zero.config import ZeroStageEnum  # type: ignore[import-untyped]
    from deepspeed.utils.tensor_fragment import fragment_address  # type: ignore[import-untyped]

    before = os.environ.get(FORCE)
    os.environ[FORCE] = "1"
    try:
        with torch.serialization.safe_globals([LossScaler, ZeroStageEnum, fragment_address]):
            yield
    finally:
        os.environ.pop(FORCE)
        if before is not None:
            os.environ[FORCE] = before


def deepspeed_config(options: OptimizerOptions, sharding: Sharding, world: int, bfloat16: bool) -> dict[str, Any]:
    """Returns DeepSpeed's configuration.

    Args:
        options: Options of the optimizer.
        sharding: ZeRO stage and offloading.
        world: Number of ranks.
        bfloat16: Whether the trained weights are bfloat16; if so, DeepSpeed casts every weight to it.
    """
    zero: dict[str, Any] = {"stage": sharding.zero}
    if sharding.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    if sharding.offload_parameters:
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_batch_size": world,
        "train_micro_batch_size_per_gpu": 1,
        "managed_gradient_accumulation": False,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # torch's AdamW, the same arithmetic wherever the moments lie
        "gradient_clipping": 0.0 if sharding.zero == 0 else options.max_grad_norm or NO_CUT,
        "bf16": {"enabled": bfloat16},
        "data_types": {"grad_accum_dtype": "fp32"},  # bfloat16 stops at 256 times what is added to it
        "communication_data_type": "fp32",  # the same between ranks
        "steps_per_print": 10**9,
    }

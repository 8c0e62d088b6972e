"""Extension of vLLM's workers that loads weights from a group or a folder and tells which weights a worker has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from searchgym.rollout.transfer.fingerprint import fingerprint, loaded_adapter_fingerprint, part_of
from searchgym.rollout.transfer.folders import with_head
from searchgym.rollout.transfer.group import Invitation, joined


class Receiver:
    """Extension of vLLM's workers (``--worker-extension-cls``) that loads weights from a group or a folder."""

    rank: int
    """Number of this process among the server's, from 0."""
    model_runner: Any
    """vLLM's runner of the model."""
    reload_weights: Callable[..., None]
    """vLLM's function that replaces the weights of the model."""

    def receive_weights(self, invitation: Mapping[str, Any]) -> str | None:
        """Joins a group and replaces the model's weights with the received tensors.

        An invitation without tensors changes nothing. Errors are returned as text instead of raised: if several
        processes are called, vLLM reads no replies after the first exception, and takes them for replies to the next
        call.

        Args:
            invitation: Fields of an `Invitation`.
        """
        received_invitation = Invitation(**invitation)
        try:
            with joined(received_invitation, 1 + self.rank) as tensors:
                if received_invitation.tensors:
                    self._reload(tensors)
        except Exception as error:
            if received_invitation.tensors:
                forget_parts(self.model_runner.get_model())
            return f"{type(error).__name__}: {error}"
        return None

    def load_folder(self, folder: str) -> None:
        """Replaces the weights with those of a folder, including a head that is tied to the embeddings.

        The original files of such a model do not contain the head. If vLLM packs it, as on a CPU, the previous weights'
        head would remain.

        Args:
            folder: Folder with all weights of the model.
        """
        from vllm.model_executor.model_loader import get_model_loader

        runner = self.model_runner
        model_config = runner.vllm_config.model_config
        # as in `reload_weights` with a path; until now it names the folder loaded last
        model_config.model, model_config.model_weights, model_config.revision = folder, "", None
        loader: Any = get_model_loader(runner.vllm_config.load_config)
        tensors = loader.get_all_weights(model_config, runner.get_model())
        self._reload(with_head(tensors))

    def weights_fingerprint(self, adapter: int | None = None) -> str | None:
        """Returns the fingerprint of the weights that this process has; None if this vLLM does not let it be read.

        Of the base model, these are the tensors that came out of the file or the group in this process, before vLLM
        casts, packs and splits them: what it makes of them is not compared. Of an adapter, they are its matrices in
        vLLM's memory, which are copied from there into a slot: the copy is not compared.

        Args:
            adapter: vLLM's number of an adapter, or 0 for the one with the largest number, which was loaded last.
                Default: the base model; "" if none was loaded since the start.
        """
        if adapter is None:
            return getattr(self, "_received", "")
        try:
            loaded = self.model_runner.lora_manager._adapter_manager.list_adapters()
            model = loaded.get(adapter or max(loaded, default=0))
            return "" if model is None else loaded_adapter_fingerprint(model)
        except (AttributeError, TypeError, ValueError):  # another version of vLLM
            return None

    def _reload(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Replaces the weights of the model, and records the fingerprint of the tensors that arrive for it."""
        parts = list[tuple[str, Tensor]]()

        def recorded() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in tensors:
                parts.append((name, part_of(tensor).cpu().clone()))
                yield name, tensor

        self._received = ""
        iterator = recorded()
        self.reload_weights(weights_iterator=iterator)
        for _ in iterator:  # tensors that the model does not need: they were sent, and the other processes wait
            pass
        self._received = fingerprint(parts)


def forget_parts(model: nn.Module) -> None:
    """Drops the tensors that vLLM keeps from an incomplete load, which the next load would count as its own."""
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    for layer in model.modules():
        info = get_layerwise_info(layer)
        if info.can_load():
            info.loaded_weights.clear()
            info.load_numel = 0

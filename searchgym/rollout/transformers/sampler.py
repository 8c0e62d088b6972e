"""Sampling from a transformers model in this process, for models of any size that fits.

A response depends on the request's ids, sampling parameters and seed. The rest of the batch, and keys and values kept
from earlier requests, change logits by rounding only (about 1e-7 in float32, 1e-2 in bfloat16).
"""

from __future__ import annotations

import copy
import sys
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from searchgym.errors import ModelError, UsageError
from searchgym.rollout.loading import device_of, load_model
from searchgym.rollout.sampler import Deliver, Dtype, Key, Pull, Sampled, SampleRequest, Samplers, sample_all
from searchgym.rollout.sampler_kind import SampledKey, SampledRun
from searchgym.rollout.samplers.transformers import Transformers
from searchgym.rollout.tokens import decoder, end_ids
from searchgym.rollout.transfer.fingerprint import fingerprint, rounded_fingerprint
from searchgym.rollout.transformers.kv_cache import ATTENTION, PrefixStore, RowCache, SlotCache
from searchgym.rollout.transformers.precision import mixed_precision, round_matrices
from searchgym.rollout.transformers.running_batch import (
    RunningBatch,
    RunningRow,
    StopMatcher,
    affordable_tokens,
    uniforms,
)

PREFILL_TOKENS: Final = 2048
"""Maximum number of tokens, padding included, in one forward pass over prompts; a longer prompt is processed alone."""
ADVISED: Final = 100_000_000
"""Number of parameters from which vLLM is advised on a GPU."""
GPU_PREFILL_TOKENS: Final = 16_384
"""Maximum number of tokens in one forward pass over prompts on a GPU."""


class TransformersSampler:
    """Sampler on a causal transformers model, on the model's device; calls from several threads are serialised.

    Args:
        model: Decoder with attention layers only. Its attention function is replaced by a faster one with the same
            result.
        tokenizer: The model's tokenizer, to match stop strings on decoded text.
        max_batch_tokens: Maximum number of tokens in a running batch: rows times the longest request with its new
            tokens. Default: `affordable_tokens`.
        reuse_tokens: Number of tokens of earlier requests whose keys and values are kept until the next update, for
            requests that continue them; 0 keeps none. Default: `affordable_tokens`.
        max_context: Maximum number of tokens of request and response. Default: the model's limit.
        ends: Token ids that end a response. Default: those of the tokenizer, its chat template and the model's
            generation settings.
        mixed: If True, computes in mixed precision (see `precision`) and rounds the model's matrices in place.

    Raises:
        UsageError: The model has layers other than attention, or a bound is out of its range.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_batch_tokens: int | None = None,
        reuse_tokens: int | None = None,
        max_context: int | None = None,
        ends: Iterable[int] | None = None,
        mixed: bool = False,
    ) -> None:
        config = model.config.get_text_config(decoder=True)
        other = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
        if model._is_stateful or other:
            raise UsageError(f"{type(model).__name__} has layers other than attention: {sorted(other)}; not supported")
        positions = int(config.max_position_embeddings)
        if max_context is not None and not 1 <= max_context <= positions:
            raise UsageError(f"max_context must be from 1 to the model's {positions} positions, got {max_context}")
        affordable = affordable_tokens(model)
        max_batch_tokens = affordable if max_batch_tokens is None else max_batch_tokens
        reuse_tokens = affordable if reuse_tokens is None else reuse_tokens
        if max_batch_tokens < 1 or reuse_tokens < 0:
            raise UsageError(f"got max_batch_tokens={max_batch_tokens} and reuse_tokens={reuse_tokens}")
        if model.config._attn_implementation == "sdpa":
            model.set_attn_implementation(ATTENTION)
        if mixed:
            round_matrices(model)
        self.model, self.tokenizer = model, tokenizer
        self.max_context, self.version, self._mixed = max_context or positions, 0, mixed
        self.ends = frozenset(response_ends(model.generation_config, tokenizer) if ends is None else ends)
        self._layers, self._vocabulary = int(config.num_hidden_layers), int(config.vocab_size)
        self._max_batch_tokens = max_batch_tokens
        self._store = PrefixStore(reuse_tokens)
        self._text = decoder(tokenizer)
        self._matchers: dict[tuple[str, ...], StopMatcher] = {}
        self._lock = threading.Lock()
        self._open = threading.Event()  # cleared while new weights wait for running requests
        self._open.set()

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Returns one response per request, in the same order; empty for a request that fills the context."""
        return sample_all(self, requests)

    def stream(self, pull: Pull[Key], deliver: Deliver[Key]) -> None:
        """Samples requests as they arrive: between tokens, new requests join the running ones.

        Requests that arrive together join longest first, but none overtakes an earlier one. While new weights wait
        (`update` in another thread), no request joins; the weights are loaded once no request is running.

        Args:
            pull: Called between tokens, at least once; returns new requests, each with a key. Sampling ends when there
                are neither new nor running requests.
            deliver: Called with the key and the response of each request as soon as it is done.

        Raises:
            UsageError: A token id is not in the model's vocabulary.
            ModelError: The model's output is not finite.
        """
        done = False
        while not done:
            self._open.wait()
            mixed = mixed_precision(self.model) if self._mixed else nullcontext()
            with self._lock, torch.inference_mode(), mixed:
                training = self.model.training
                self.model.train(False)
                try:
                    done = self._stream(pull, deliver)
                finally:
                    self.model.train(training)

    def update(self, state: Mapping[str, Tensor], version: int) -> None:
        """Loads new weights once running requests are done, and clears the cache of the old ones; dtypes are cast.

        Raises:
            UsageError: A name is missing or unknown, or a shape differs; the weights then stay unchanged.
        """
        current = self.model.state_dict()
        wrong = [f"{name} is {'missing' if name in current else 'unknown'}" for name in current.keys() ^ state.keys()]
        for name in current.keys() & state.keys():
            if (shape := tuple(state[name].shape)) != tuple(current[name].shape):
                wrong.append(f"{name} has shape {shape}, not {tuple(current[name].shape)}")
        if wrong:
            raise UsageError(f"these weights do not fit {type(self.model).__name__}: {'; '.join(sorted(wrong)[:5])}")
        self._open.clear()
        try:
            with self._lock:
                self.model.load_state_dict(state)
                self.version = version
                self._store.clear()
        finally:
            self._open.set()

    def fingerprints(self, state: Mapping[str, Tensor]) -> dict[str, tuple[str, str]]:
        """Returns the fingerprints of the given weights, rounded as `update` does, and of the model's weights."""
        current = self.model.state_dict()
        return {type(self.model).__name__: (rounded_fingerprint(state, current), fingerprint(current.items()))}

    def forget(self) -> None:
        """Clears the keys and values of earlier requests, whose reuse changes rounding."""
        with self._lock:
            self._store.clear()

    def close(self) -> None:
        """Does nothing, since this sampler starts no processes or threads."""

    def _stream(self, pull: Pull[Key], deliver: Deliver[Key]) -> bool:
        """Samples until no request is left (returns True), or none is running and new weights wait (returns False)."""
        batch: RunningBatch[Key] = RunningBatch(self._layers, self.model.device)
        waiting: deque[RunningRow[Key]] = deque()
        while True:
            new_requests = pull() if self._open.is_set() else ()
            for row in sorted((self._row(key, request) for key, request in new_requests), key=lambda row: -row.length):
                if row.finish is None:
                    waiting.append(row)
                else:
                    deliver(row.key, row.sampled())
            self._admit(batch, waiting)
            if not batch.rows:
                return self._open.is_set()
            finished = batch.choose(self.ends)
            if not all(np.isfinite(row.logp[-1]) for row in batch.rows):
                raise ModelError(f"the logits of {type(self.model).__name__} are not finite: training diverged?")
            for row in finished:
                self._store.add(*batch.leave(row))
                deliver(row.key, row.sampled())
            if batch.rows:
                batch.forward(self._forward)

    def _row(self, key: Key, request: SampleRequest) -> RunningRow[Key]:
        """Builds a row for a request; if the request fills the context, the row is already finished."""
        if request.ids.min() < 0 or request.ids.max() >= self._vocabulary:
            raise UsageError(
                f"token ids must be from 0 to {self._vocabulary - 1}, got {request.ids.min()} to {request.ids.max()}"
            )
        stop = request.sampling.stop
        limit = max(0, min(request.sampling.max_tokens, self.max_context - len(request.ids)))
        if stop not in self._matchers:
            self._matchers[stop] = StopMatcher(self._text, stop)
        row = RunningRow(key, request, limit, uniforms(request.seed, limit), self._matchers[stop], self.version)
        if not limit:
            row.finish = "context"
        return row

    def _admit(self, batch: RunningBatch[Key], waiting: deque[RunningRow[Key]]) -> None:
        """Lets waiting rows join the batch within `max_batch_tokens`; a larger row runs alone."""
        rows = batch.rows
        present, longest = len(rows), max((row.length + row.limit for row in rows), default=0)
        new: list[RunningRow[Key]] = []
        while waiting:
            longest = max(longest, waiting[0].length + waiting[0].limit)
            if (rows or new) and (present + len(new) + 1) * longest > self._max_batch_tokens:
                break
            new.append(waiting.popleft())
        if new:
            logits, caches = self._prefill([row.request.ids for row in new])
            batch.join(new, caches, logits)

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: SlotCache) -> Tensor:
        """Runs the model on new tokens (B, n) that follow the cache; returns the last position's logits (B, V)."""
        mask = mask.long()
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "past_key_values": cache}
        logits: Tensor = self.model(**inputs, use_cache=True, logits_to_keep=1).logits
        return logits[:, -1]

    def _prefill(self, prompts: list[npt.NDArray[np.int32]]) -> tuple[Tensor, list[RowCache]]:
        """Returns the logits of each prompt's last token, (B, V), and the prompt's keys and values.

        The model runs over each distinct prompt once, and only over the part not in the prefix store.
        """
        distinct = {prompt.tobytes(): prompt for prompt in prompts}
        unseen = {key: len(prompt) - self._store.longest(prompt)[0] for key, prompt in distinct.items()}
        done: dict[bytes, tuple[Tensor, RowCache]] = {}
        most = GPU_PREFILL_TOKENS if self.model.device.type == "cuda" else PREFILL_TOKENS
        left = sorted(distinct, key=lambda key: -unseen[key])
        while left:  # as many as fit into `most` tokens when padded to the largest, the first
            count = max(1, most // unseen[left[0]])
            keys, left = left[:count], left[count:]
            chunk = [distinct[key] for key in keys]
            logits, caches = self._prefill_chunk(chunk)
            for key, prompt, row_logits, cache in zip(keys, chunk, logits, caches, strict=True):
                done[key] = (row_logits, cache)
                self._store.add(prompt, cache)
        results = [done[prompt.tobytes()] for prompt in prompts]
        return torch.stack([logits for logits, _ in results]), [cache for _, cache in results]

    def _prefill_chunk(self, prompts: list[npt.NDArray[np.int32]]) -> tuple[Tensor, list[RowCache]]:
        """Runs the model over the parts of a few prompts that are not in the prefix store.

        All prompts get the same number of new tokens, the largest that any needs: instead of padding, the others
        recompute stored tokens. So there is no padding between tokens, which a sliding-window layer would count as
        tokens.
        """
        device = self.model.device
        stored = [self._store.longest(prompt) for prompt in prompts]
        lengths = [len(prompt) for prompt in prompts]
        new = max(length - past for length, (past, _) in zip(lengths, stored, strict=True))
        past = [max(0, length - new) for length in lengths]
        cache = SlotCache(self._layers)
        cache.add([row for _, row in stored], past)
        width = max(past) + new
        ids = np.zeros((len(prompts), new), np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, -min(new, len(prompt)) :] = prompt[-new:]
        start = torch.tensor([width - length for length in lengths], device=device)[:, None]
        columns = torch.arange(width, device=device)
        logits = self._forward(
            torch.from_numpy(ids).to(device), columns >= start, (columns[-new:] - start).clamp(min=0), cache
        )
        return logits, [cache.row(row, length) for row, length in enumerate(lengths)]


def open_samplers(options: Transformers, keys: Sequence[SampledKey], run: SampledRun) -> Samplers:
    """Copies the models of a run's keys to the device of their samplers; see `SamplerKind.open`."""
    device, mixed = device_of(options.device), run.autocast == "bfloat16"  # as in the learner
    sys.stderr.write(slow_on_gpu(device, max(key.model.num_parameters() for key in keys)))
    models = {key.name: copy.deepcopy(key.model).to(device) for key in keys}
    return Samplers({key.name: TransformersSampler(models[key.name], key.tokenizer, mixed=mixed) for key in keys})


def slow_on_gpu(device: str, parameters: int) -> str:
    """Returns a line that advises vLLM for a model of some size on a GPU; empty on a CPU or for a small model."""
    if not device.startswith("cuda") or parameters < ADVISED:
        return ""
    return (
        "rollout.sampler transformers on a GPU: about ten times slower than vLLM (340 and 3,400 tokens a second for "
        "1.5 B parameters on an H200), because Python starts every operation of every token anew, 35 ms a token "
        "for any number of rows; choose rollout.sampler=vllm unless the run must repeat bit for bit\n"
    )


def load_sampler(
    path: str | Path, dtype: Dtype = "float32", *, device: str = "cpu", **options: Any
) -> tuple[TransformersSampler, PreTrainedTokenizerBase]:
    """Loads a model as a sampler; `path`, `dtype`, `device` and errors as for `load_model`.

    Args:
        path: Folder in Hugging Face format, or the name of a model.
        dtype: Type of the weights in memory.
        device: Torch device for the weights.
        options: Keyword arguments for `TransformersSampler`.
    """
    model, tokenizer = load_model(path, dtype, device=device)
    return TransformersSampler(model, tokenizer, **options), tokenizer


def response_ends(settings: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Returns the token ids that end a response, by the tokenizer and a model's generation settings."""
    ends = getattr(settings, "eos_token_id", None)
    return end_ids(tokenizer) + (() if ends is None else (ends,) if isinstance(ends, int) else tuple(ends))

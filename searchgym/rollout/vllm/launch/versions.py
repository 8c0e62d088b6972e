"""Versions of vLLM that are accepted, and the features that they must have. Imports no vLLM."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OLDEST: Final = (0, 26)
"""Oldest accepted version, major and minor: it trained on a GPU; see docs/trust/platforms.md."""
NEWEST: Final = (0, 32)
"""Newest accepted version, major and minor: the tests are run with it."""
RANGE: Final = "{}.{} to {}.{}".format(*OLDEST, *NEWEST)
"""The accepted versions, for messages."""


@dataclass(frozen=True, slots=True)
class Feature:
    """Names of a class in vLLM's source that this package uses."""

    file: str
    """File, relative to vLLM's folder."""
    name: str
    """Name of the class."""
    members: tuple[str, ...] = ()
    """Methods, fields and attributes of the class, without those that it inherits."""


def _feature(file: str, name: str, members: str = "") -> Feature:
    return Feature(file, name, tuple(members.split()))


FEATURES: Final = (
    _feature(
        "engine/arg_utils.py",
        "EngineArgs",
        "model dtype generation_config logprobs_mode enable_prefix_caching max_model_len max_num_seqs "
        "gpu_memory_utilization tensor_parallel_size enforce_eager enable_sleep_mode seed enable_chunked_prefill "
        "enable_lora max_loras max_cpu_loras max_lora_rank disable_log_stats worker_extension_cls",
    ),
    _feature(
        "sampling_params.py",
        "SamplingParams",
        "max_tokens temperature top_p seed stop include_stop_str_in_output stop_token_ids ignore_eos logprobs "
        "detokenize skip_special_tokens spaces_between_special_tokens flat_logprobs output_kind",
    ),
    _feature("sampling_params.py", "RequestOutputKind", "FINAL_ONLY"),
    _feature("logprobs.py", "FlatLogprobs", "start_indices logprobs"),
    _feature("outputs.py", "CompletionOutput", "token_ids logprobs finish_reason stop_reason"),
    _feature(
        "v1/engine/llm_engine.py",
        "LLMEngine",
        "from_engine_args add_request step collective_rpc add_lora remove_lora reset_prefix_cache sleep wake_up "
        "engine_core output_processor model_config",
    ),
    _feature("v1/engine/output_processor.py", "OutputProcessor", "request_states"),
    _feature("v1/engine/output_processor.py", "RequestState", "logprobs_processor"),
    _feature("v1/engine/logprobs.py", "LogprobsProcessor", "tokenizer"),
    _feature("v1/engine/core_client.py", "MPClient", "resources utility_results"),
    _feature("v1/engine/core_client.py", "SyncMPClient", "outputs_queue"),
    _feature("v1/engine/core_client.py", "BackgroundResources", "engine_manager engine_dead"),
    _feature("v1/engine/utils.py", "CoreEngineProcManager", "processes"),
    _feature("v1/engine/exceptions.py", "EngineDeadError"),
    _feature("v1/worker/gpu_worker.py", "Worker", "reload_weights"),
    _feature("lora/request.py", "LoRARequest", "lora_name lora_int_id lora_path"),
)
"""Everything that engines in child processes need."""
FRONTENDS: Final = ("entrypoints/launchers/cli_args.py", "entrypoints/openai/cli_args.py")
"""Files with the options of ``vllm serve``: in new versions and in old ones."""


def is_accepted(version: str | None) -> bool:
    """Returns True if a version of vLLM is between `OLDEST` and `NEWEST`."""
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    return numbers is not None and OLDEST <= (int(numbers[1]), int(numbers[2])) <= NEWEST


def vllm_folder() -> Path | None:
    """Returns the folder of the installed vLLM, without importing it; None if there is none."""
    spec = importlib.util.find_spec("vllm")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


@functools.cache
def missing_features(folder: Path) -> tuple[str, ...]:
    """Reads vLLM's source and returns the features that it lacks, such as ``SamplingParams.flat_logprobs``.

    Args:
        folder: Folder of the package ``vllm``.
    """
    missing: list[str] = []
    for feature in FEATURES:
        members = members_of(folder / feature.file, feature.name)
        if members is None:
            missing.append(f"{feature.name} in {feature.file}")
        else:
            missing += [f"{feature.name}.{member}" for member in feature.members if member not in members]
    return tuple(missing)


def has_server_option(folder: Path, name: str) -> bool:
    """Returns True if ``vllm serve`` has an option, given by its name in Python."""
    files = [folder / file for file in FRONTENDS]
    return any(re.search(rf"^    {name}:", file.read_text(), re.MULTILINE) for file in files if file.is_file())


def members_of(file: Path, name: str) -> set[str] | None:
    """Returns the names that a class defines or sets on itself; None if the file or the class does not exist."""
    if not file.is_file():
        return None
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return set(_names(node))
    return None


def _names(definition: ast.ClassDef) -> list[str]:
    names: list[str] = []
    for node in ast.walk(definition):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    names.append(target.id)
                elif isinstance(target, ast.Attribute):
                    names.append(target.attr)
    return names

"""Starts a training's programs on a Ray cluster (``launch: ray``), and ends them with it."""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from urllib3.exceptions import HTTPError

from searchgym.errors import EngineLostError, TrainingError, UsageError
from searchgym.http_client import HttpClient
from searchgym.options.cards import is_path
from searchgym.packages import install_command
from searchgym.rollout.vllm.client import KEY as ENGINE_KEY
from searchgym.train.distributed.worker import KEY as LEARNER_KEY
from searchgym.train.launch.actors import RankActor, ServerActor, free_port
from searchgym.train.launch.plan import Program, programs_of
from searchgym.train.recipe.launchers.here import Here
from searchgym.train.recipe.launchers.ray import Ray
from searchgym.train.recipe.recipe import Recipe, dump_recipe

TOKEN: Final = "SEARCHGYM_TOKEN"
"""Environment variable with the token of the retrieval server."""
MODE: Final = "RAY_AUTH_MODE"
RAY_TOKEN: Final = "RAY_AUTH_TOKEN"
TOKEN_FILE: Final = "RAY_AUTH_TOKEN_PATH"
LOOKS: Final = 5.0
"""Maximum seconds to find out which programs ended, after a training failed."""
ANSWER_BYTES: Final = 2**20
"""Maximum number of bytes in a server's reply to a readiness request."""
STORE: Final = 80 * 2**20
"""Bytes of Ray's object store on a cluster started by the training; small, because no data passes through it."""


@contextmanager
def launched(recipe: Recipe, options: Ray, out: Path) -> Iterator[Recipe]:
    """Starts a recipe's programs on a cluster, and yields a recipe with their addresses.

    The programs end with the context. A cluster that was already running continues to run, and nothing else on it is
    changed.

    Args:
        recipe: The recipe.
        options: The cluster, and the resources of each program.
        out: The run folder, which all nodes must mount under the same path; logs of servers go to a folder next to it,
            whose name ends in ``.ray``.

    Raises:
        UsageError: Ray is missing; or the cluster cannot be reached, has another version or token, or lacks resources
            for the programs.
        TrainingError: A program or its node ended and the training failed; the message names them.
    """
    with ExitStack() as opened:
        ray = opened.enter_context(connected(options))
        programs = programs_of(recipe, options, bool(ray.cluster_resources().get("GPU")))
        group = _reserved(ray, programs, options)
        opened.callback(ray.util.remove_placement_group, group)
        cluster = _Cluster(ray, programs, group, out.resolve().with_name(f"{out.name}.ray"))
        opened.callback(cluster.close)
        keys = {name: os.environ.get(name) or secrets.token_hex(16) for name in (LEARNER_KEY, ENGINE_KEY, TOKEN)}
        for name in [name for name in keys if not os.environ.get(name)]:
            opened.callback(os.environ.pop, name, None)
        os.environ.update(keys)
        placed = cluster.start(recipe, options, keys)
        try:
            yield placed
        except (TrainingError, EngineLostError) as error:
            if not (faults := cluster.faults()):
                raise
            raise TrainingError(f"{error}. On the cluster, {'; '.join(faults)}. Continue with --resume") from error


@contextmanager
def connected(options: Ray) -> Iterator[Any]:
    """Connects to a running cluster or starts one for the training, and yields the module ``ray``."""
    if MODE not in os.environ:  # without a token, anyone who reaches the cluster can run code on it
        if sys.modules.get("ray") is not None:
            raise UsageError(f"launch ray: set {MODE}=token before Ray is imported, because Ray reads it then")
        os.environ[MODE] = "token"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise UsageError(f"launch ray needs Ray: {install_command('ray')}") from error
    if ray.is_initialized():  # the user initialised it and shuts it down
        yield ray
        return
    address = options.address
    token_file = Path(os.environ.get(TOKEN_FILE) or Path.home() / ".ray" / "auth_token")
    if address is None:
        os.environ.setdefault(RAY_TOKEN, secrets.token_hex(32))
    elif os.environ[MODE] == "token" and not (os.environ.get(RAY_TOKEN) or token_file.is_file()):
        raise UsageError(f"launch.address {address}: set {RAY_TOKEN} or {TOKEN_FILE} to the token of the cluster")
    small: dict[str, Any] = {"include_dashboard": False, "object_store_memory": STORE} if address is None else {}
    try:
        ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **small)
    except Exception as error:  # of many types: no reply, another version of Ray or Python, another token
        hint = (
            f"it must run Ray {ray.__version__} and have the same token as this machine" if address else "a new cluster"
        )
        raise UsageError(f"launch.address {address}: {_first(error)} ({hint})") from error
    try:
        yield ray
    finally:
        ray.shutdown()  # ends a cluster only if this process started it


def _first(error: BaseException) -> str:
    """Returns the first lines of one of Ray's errors, on one line."""
    return " ".join(str(error).split())[:400] or type(error).__name__


def _reserved(ray: Any, programs: Sequence[Program], options: Ray) -> Any:
    """Returns a placement group with a bundle for each program."""
    bundles = [program.resources for program in programs]
    group = ray.util.placement_group(bundles, strategy="SPREAD" if options.spread else "PACK")
    if group.wait(options.seconds):
        return group
    ray.util.remove_placement_group(group)
    total, free, lines = ray.cluster_resources(), ray.available_resources(), []
    for name in dict.fromkeys(name for bundle in bundles for name in bundle):
        requested = sum(bundle.get(name, 0) for bundle in bundles)
        lines.append(f"{free.get(name, 0):g} of {total.get(name, 0):g} {name} free, {requested:g} requested")
    raise UsageError(
        f"launch ray: no room for {len(programs)} programs within {options.seconds:g} s ({', '.join(lines)}): "
        "add nodes, or lower learner.backend.ranks, rollout.sampler.replicas or launch.rank_cpus"
    )


def where(ray: Any, programs: Sequence[Program], options: Ray) -> list[str]:
    """Returns the node on which each program would start, by reserving and releasing resources for all programs."""
    group = _reserved(ray, programs, options)
    try:
        nodes = ray.util.placement_group_table(group)["bundles_to_node_id"]
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        return [f"{addresses[nodes[index]]} ({nodes[index][:8]})" for index in range(len(programs))]
    finally:
        ray.util.remove_placement_group(group)


@dataclass(slots=True)
class _Started:
    """A started program."""

    program: Program
    actor: Any
    node: str
    """Id of the program's node."""
    address: str
    """Address of the program's node."""
    port: int
    """Port assigned to the program."""
    result: Any = None
    """Ray's reference to a rank's running call; None for servers."""

    @property
    def url(self) -> str:
        """URL of a server."""
        return f"http://{self.address}:{self.port}"

    @property
    def flags(self) -> list[str]:
        """Options that make a server listen at its address."""
        return ["--host", self.address, "--port", str(self.port)]


class _Cluster:
    """The programs of one training on a cluster."""

    def __init__(self, ray: Any, programs: Sequence[Program], group: Any, folder: Path) -> None:
        self._ray, self._programs, self._group, self._folder = ray, programs, group, folder
        self._started: list[_Started] = []

    def start(self, recipe: Recipe, options: Ray, keys: dict[str, str]) -> Recipe:
        """Starts all programs; returns the recipe with their addresses."""
        for index, program in enumerate(self._programs):
            self._place(index, program, options.seconds)
        kinds = ("rank", "server", "retrieval")
        ranks, servers, retrieval = ([s for s in self._started if s.program.kind == kind] for kind in kinds)
        host = options.host or str(self._ray.util.get_node_ip_address())
        sampler, learner = recipe.rollout.sampler, recipe.learner
        recipe = replace(recipe, launch=Here(), model=_absolute(recipe.model))
        waited: list[tuple[_Started, str]] = []
        if ranks:
            address = f"{host}:{free_port()}"
            learner = replace(learner, backend=learner.backend.joined_at(address))
            shared = {LEARNER_KEY: keys[LEARNER_KEY], "WORLD_SIZE": str(len(ranks))}
            shared |= {"MASTER_ADDR": ranks[0].address, "MASTER_PORT": str(ranks[0].port)}
            for one in ranks:  # ranks wait until the training listens; Ray shows each only its GPU
                number = one.program.number
                environment = shared | {"RANK": str(number), "LOCAL_RANK": "0"}
                one.result = one.actor.run.remote(address, number, environment)
        if servers:
            alone = replace(recipe, rollout=replace(recipe.rollout, sampler=sampler.server()))
            self._folder.mkdir(parents=True, exist_ok=True)
            file = self._folder / "engine.yaml"
            file.write_text(dump_recipe(alone), encoding="utf-8")
            for one in servers:
                command = ["-m", "searchgym", "serve", "model", str(file), *one.flags]
                self._run(one, command, {ENGINE_KEY: keys[ENGINE_KEY]})
            waited += [(one, f"{one.url}/health") for one in servers]
            sampler = sampler.served([s.url for s in servers])
        env_options = dict(recipe.env_options)
        for one in retrieval:
            command = ["-m", "searchgym", "serve", "retriever", _absolute(str(options.retrieval))]
            self._run(one, [*command, *one.flags], {TOKEN: keys[TOKEN]})
            waited.append((one, f"{one.url}/readyz"))
            env_options["retriever"] = one.url
        for one, url in waited:
            self._ready(one, url, options.seconds)
        rollout = replace(recipe.rollout, sampler=sampler)
        return replace(recipe, learner=learner, rollout=rollout, env_options=env_options)

    def _place(self, index: int, program: Program, seconds: float) -> None:
        """Starts the actor of a program in its bundle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        body: type[Any] = RankActor if program.kind == "rank" else ServerActor
        actor_class = self._ray.remote(num_cpus=program.cpus, num_gpus=program.gpus, max_restarts=0)(body)
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        actor = actor_class.options(scheduling_strategy=strategy).remote()
        try:
            node, address, port = self._ray.get(actor.where.remote(), timeout=seconds)
        except Exception as error:
            raise TrainingError(f"launch ray: {program.name} did not start: {_first(error)}") from error
        self._started.append(_Started(program, actor, node, address, port))

    def _run(self, one: _Started, command: list[str], environment: dict[str, str]) -> None:
        log = self._folder / f"{one.program.name.replace(' ', '')}.log"
        self._ray.get(one.actor.start.remote(command, environment, str(log)))

    def _ready(self, one: _Started, url: str, seconds: float) -> None:
        """Waits until a server is ready."""
        end, client = time.monotonic() + seconds, HttpClient(url)
        while (ending := self._ray.get(one.actor.ended.remote())) is None and time.monotonic() < end:
            try:
                status = client.call("GET", "", seconds=5, most=ANSWER_BYTES).status
                if status < 300 or status == 401:  # it is ready and requires the key
                    return
            except HTTPError:
                pass  # not started yet
            time.sleep(0.2)
        ending = f"ended: {ending}" if ending else f"is not ready after {seconds:g} s (launch.seconds)"
        raise TrainingError(f"launch ray: {one.program.name} on {one.address} {ending}")

    def faults(self) -> list[str]:
        """Returns messages about ended nodes (with their programs), and about ended programs on running nodes."""
        end, ended_by_node = time.monotonic() + LOOKS, dict[str, list[str]]()
        for one in self._started:
            left = max(0.1, end - time.monotonic())
            reference = one.result if one.result is not None else one.actor.ended.remote()
            done, _ = self._ray.wait([reference], timeout=left)
            if not done:
                continue
            try:
                ending = self._ray.get(reference)
            except Exception as error:
                ending = _first(error)
            if ending is not None:
                ended_by_node.setdefault(one.node, []).append(f"{one.program.name} ended: {ending}")
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        faults = []
        for node in dict.fromkeys(one.node for one in self._started):
            mine = [one for one in self._started if one.node == node]
            if node not in alive:
                names = ", ".join(one.program.name for one in mine)
                faults.append(f"node {mine[0].address} ({node[:8]}) is gone, and with it {names}")
            else:
                faults += ended_by_node.get(node, [])
        return faults

    def close(self) -> None:
        """Ends the programs; the ranks have ended with the learner's connection."""
        stops = [one.actor.stop.remote() for one in self._started if one.result is None]
        if stops:
            self._ray.wait(stops, num_returns=len(stops), timeout=30)
        for one in self._started:
            self._ray.kill(one.actor)


def _absolute(name: str) -> str:
    """Returns a path as absolute, since programs on nodes start in other folders; other names unchanged."""
    local = is_path(name, "models", "pretrained", "corpora") and Path(name).exists()
    return str(Path(name).resolve()) if local else name

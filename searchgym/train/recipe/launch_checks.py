"""Checks of ``launch`` and ``ray``; each message gives the reason and what to change."""

from __future__ import annotations

from searchgym.train.recipe.launching import RayOptions
from searchgym.train.recipe.recipe import Recipe


def launch_problems(recipe: Recipe) -> list[str]:
    """Returns problems with ``launch`` and ``ray``."""
    ray, vllm, found = recipe.ray, recipe.rollout.vllm, list[str]()
    if recipe.launch == "here":
        return ["ray: its options act with launch ray only"] if ray != RayOptions() else []
    ranks, servers = recipe.learner.backend == "deepspeed", recipe.rollout.sampler == "vllm"
    if not (ranks or servers or ray.retrieval):
        found.append(
            "launch ray starts ranks, servers or retrieval: set learner.backend deepspeed, rollout.sampler vllm or "
            "ray.retrieval"
        )
    if vllm.servers is not None or recipe.learner.listen is not None:
        found.append("launch ray starts servers and ranks itself: leave rollout.vllm.servers and learner.listen out")
    if vllm.gpus is not None or recipe.learner.gpus is not None:
        found.append("launch ray chooses the GPUs: leave rollout.vllm.gpus and learner.gpus out")
    if vllm.sleep:
        found.append("launch ray gives ranks and servers GPUs of their own: set rollout.vllm.sleep 0")
    if ray.retrieval and "retriever" in recipe.env_options:
        found.append("ray.retrieval serves what env_options.retriever would name: choose one")
    return found

"""Muon in float32, for CPUs that only emulate bfloat16, where `torch.optim.Muon` takes ten times as long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Float32Muon(torch.optim.Muon):
    """`torch.optim.Muon` whose Newton-Schulz iterations are computed in float32 instead of bfloat16.

    Its state and its groups are those of torch, which takes up a training that began with the other. Options that the
    tiny model does not use (``adjust_lr_fn``) are ignored: rates are scaled by sqrt(max(1, rows / columns)).
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Updates all matrices that have a gradient."""
        assert closure is None
        for group in self.param_groups:
            rate, momentum = float(group["lr"]), group["momentum"]
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(matrix.grad)
                buffer = state["momentum_buffer"]
                buffer.lerp_(matrix.grad, 1 - momentum)
                update = matrix.grad.lerp(buffer, momentum) if group["nesterov"] else buffer
                update = orthogonalised(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
                matrix.mul_(1 - rate * group["weight_decay"])
                matrix.add_(update, alpha=-rate * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5)


def orthogonalised(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Returns about the nearest matrix with orthonormal rows or columns, by quintic Newton-Schulz iterations."""
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    found = matrix.T if tall else matrix
    found = found / found.norm().clamp(min=eps)
    for _ in range(steps):
        gram = found @ found.T
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found.T if tall else found

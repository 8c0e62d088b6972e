"""The stages of a curriculum a second time, and the numbers of a draw by epochs, written from their definitions."""

from __future__ import annotations

from collections.abc import Sequence


def stages_by_steps(shares: Sequence[float], steps: int) -> list[int]:
    """Returns the number of each step's stage, where every stage has its share of the steps."""
    made: list[int] = []
    for number in range(len(shares)):
        end = round(steps * sum(shares[: number + 1]) / sum(shares))
        made += [number] * (end - len(made))
    return made + [len(shares) - 1] * (steps - len(made))


def stages_by_rates(rates: Sequence[float], stages: int, up: float, down: float, window: int) -> list[int]:
    """Returns the number of each step's stage, given the pass rate of each step.

    A stage is left after a step if the mean of its last `window` rates, all of this stage, is at least `up` or below
    `down`.
    """
    stage, since, made = 0, 0, list[int]()
    for step in range(len(rates)):
        made.append(stage)
        if step + 1 - since < window:
            continue
        mean = sum(rates[step + 1 - window : step + 1]) / window
        beyond = stage + (mean >= up) - (mean < down)
        if 0 <= beyond < stages and beyond != stage:
            stage, since = beyond, step + 1
    return made


def never_drawn(count: int, batch: int, steps: int) -> float:
    """Returns how many of `count` items are expected not to be among those of `steps` batches, drawn by epochs.

    Each epoch has a new order and leaves out the rest that is no whole batch.
    """
    epochs, more = divmod(steps, count // batch)
    return count * ((count % batch) / count) ** epochs * (1 - more * batch / count)

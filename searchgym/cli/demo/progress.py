"""Progress of a demonstration: which part runs now, and about how long the rest takes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from searchgym.cli.output import say
from searchgym.cli.training.steps import duration

if TYPE_CHECKING:
    from rich.text import Text

    from searchgym.train.recipe.recipe import Recipe

PRIOR: Final = 30.0
"""Seconds of work that count as done at the expected speed, so that the first seconds do not set the estimate."""

BAR: Final = 30
"""Width of the bar in characters."""


@dataclass(frozen=True, slots=True)
class DemoPart:
    """One part of a demonstration."""

    text: str
    seconds: float
    """Expected wall-clock seconds on two idle CPU cores."""


def demo_parts(recipe: Recipe, questions: int) -> list[DemoPart]:
    """Returns the parts of a demonstration in order.

    The seconds were measured with the shipped tiny model on two CPU cores.

    Args:
        recipe: Recipe to train.
        questions: Number of held-out questions.
    """
    episodes = recipe.steps * recipe.rollout.questions * recipe.rollout.attempts
    return [
        DemoPart(f"scripted agents answer {questions} held-out questions", 4 + 0.002 * questions),
        DemoPart(f"{recipe.model} answers them before training", 0.06 * questions),
        DemoPart(f"{recipe.model} answers them with the right pages given", 0.07 * questions),
        DemoPart(
            f"{recipe.steps} step{'s' * (recipe.steps != 1)} of {recipe.name} on training questions",
            5 + 0.19 * episodes,
        ),
        DemoPart("the trained model answers the held-out questions", 0.18 * questions),
        DemoPart("the report is written", 3),
    ]


@dataclass
class DemoProgress:
    """Says which part of a demonstration runs, and estimates the time left from the work done so far."""

    parts: Sequence[DemoPart]
    steps: int
    """Number of training steps."""
    current: int = -1
    """Index of the part that runs; -1 before the first one."""
    fraction: float = 0.0
    """Share of the current part that is done."""
    changed: float = field(default_factory=time.monotonic)
    """When `current` or `fraction` last changed."""
    began: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """Begins the next part."""
        self.current, self.fraction, self.changed = self.current + 1, 0.0, time.monotonic()
        say(f"{self.current + 1} of {len(self.parts)}  {self.parts[self.current].text} ... ({self.left()})")

    def advance(self, done: int, whole: int) -> None:
        """Notes that a number of the current part's questions or steps is done."""
        self.fraction, self.changed = done / max(whole, 1), time.monotonic()

    def step(self, row: Mapping[str, float]) -> None:
        """Prints the searches of a training step; its reward is of too few questions to show a trend."""
        number = int(row["step"])
        self.advance(number, self.steps)
        if number:
            searches = f": {row['rollout/searches']:.2f} searches a question" if "rollout/searches" in row else ""
            say(f"        step {number} of {self.steps}{searches} ({self.left()})")

    def seconds_left(self) -> float:
        """Returns the seconds that the rest is expected to take at the speed seen so far."""
        now = time.monotonic()
        before = sum(part.seconds for part in self.parts[: max(self.current, 0)])
        part = self.parts[self.current].seconds if self.current >= 0 else 0.0
        done = before + part * self.fraction
        whole = sum(part.seconds for part in self.parts)
        slowness = (self.changed - self.began + PRIOR) / (done + PRIOR)
        at_change = (whole - done) * slowness
        after_part = (whole - before - part) * slowness
        return max(at_change - (now - self.changed), after_part)

    def left(self) -> str:
        """Returns the time left, such as ``about 4 min left``."""
        return f"about {duration(max(round(self.seconds_left(), -1), 10))} left"

    def bar(self) -> Text:
        """Returns the line below the others in a terminal."""
        from rich.text import Text

        spent = time.monotonic() - self.began
        filled = round(BAR * spent / max(spent + self.seconds_left(), 1e-9))
        label = "loading" if self.current < 0 else f"{self.current + 1} of {len(self.parts)}"
        return Text(f"{label}  [{'#' * filled}{'.' * (BAR - filled)}]  {self.left()}")


@contextmanager
def demo_progress(recipe: Recipe, questions: int, out: Path) -> Iterator[DemoProgress]:
    """Says what a demonstration will do and how long it takes, then shows its progress while the block runs.

    In a terminal a bar below the lines shows the part that runs and the time left.
    """
    from rich.console import Console
    from rich.live import Live

    progress = DemoProgress(demo_parts(recipe, questions), recipe.steps)
    say(
        f"This demo trains the model {recipe.model} to search, and tests it on {questions} held-out\n"
        f"questions before and after. That takes about {duration(progress.seconds_left())} on two idle CPU cores.\n"
        f"Results go to {out}."
    )
    console = Console(stderr=True)
    if not console.is_terminal:
        yield progress
        return
    with Live(get_renderable=progress.bar, console=console, refresh_per_second=1, transient=True):
        yield progress

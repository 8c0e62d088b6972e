"""Interface of launchers, one class each: where the programs of a training start."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from searchgym.options import Kind

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher(Kind):
    """Where learner ranks and sampling servers start: one class per launcher, whose fields are its options."""

    kinds_in: ClassVar = "searchgym.train.recipe.launchers"
    noun: ClassVar = "launcher"
    elsewhere: ClassVar[bool] = True
    """True if it starts programs itself, which then choose no GPUs and have no addresses in the recipe."""

    def launched(self, recipe: R, out: Path) -> AbstractContextManager[R]:
        """Starts the programs of a recipe, and yields the recipe that uses them, as long as the context is open.

        Args:
            recipe: The recipe. Default: it is yielded as it is.
            out: The run folder.

        Raises:
            UsageError: A library is missing, or there is no place for the programs.
            TrainingError: The training fails after a program has ended; the message names it.
        """
        return nullcontext(recipe)

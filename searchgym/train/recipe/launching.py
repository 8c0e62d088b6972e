"""Interface of launchers, which start the processes of a training run: learner ranks and sampling servers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from searchgym.options import Kind

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher(Kind):
    """Base class of launchers, which start learner ranks and sampling servers; a subclass's fields are its options."""

    kinds_in: ClassVar = "searchgym.train.recipe.launchers"
    noun: ClassVar = "launcher"
    elsewhere: ClassVar[bool] = True
    """True if the launcher starts the programs, so that the recipe must not set their GPUs and addresses."""

    def launched(self, recipe: R, out: Path) -> AbstractContextManager[R]:
        """Starts a recipe's programs, yields a recipe that uses them, and ends them when the context closes.

        Args:
            recipe: The recipe. The default implementation starts nothing and yields it unchanged.
            out: The run folder.

        Raises:
            UsageError: A library is missing, or the programs need more CPUs or GPUs than there are.
            TrainingError: A program ended and the training failed; the message names the program.
        """
        return nullcontext(recipe)

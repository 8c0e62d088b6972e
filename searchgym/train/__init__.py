"""Training: samples from episodes, advantages, losses, the learner and the loop around them."""

from typing import TYPE_CHECKING

from searchgym._lazy import lazy

if TYPE_CHECKING:
    from searchgym.train.algorithms.advantages import Comparing
    from searchgym.train.algorithms.estimator import Estimator, Group
    from searchgym.train.credit.term import CreditContext, Term
    from searchgym.train.loop.assembly import train
    from searchgym.train.recipe.load import load_recipe, read_recipe
    from searchgym.train.recipe.recipe import Recipe, dump_recipe

__all__ = [
    "Comparing", "CreditContext", "Estimator", "Group", "Recipe", "Term", "dump_recipe", "load_recipe", "read_recipe",
    "train",
]  # fmt: skip

__getattr__, __dir__ = lazy(
    __name__,
    {
        "algorithms.advantages": "Comparing",
        "algorithms.estimator": "Estimator Group",
        "credit.term": "CreditContext Term",
        "recipe.load": "load_recipe read_recipe",
        "recipe.recipe": "Recipe dump_recipe",
        "loop.assembly": "train",
    },
)

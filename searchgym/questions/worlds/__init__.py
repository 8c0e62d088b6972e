"""Generated worlds of invented entities, with pages about them and questions that have exactly one answer.

    world = build_world(WorldSpec("simple", size=200, seed=7, split="train"))
    write_world(world, "worlds/seven")

Results on worlds compare methods on this substrate; they are not evidence about real question answering.
"""

from typing import TYPE_CHECKING

from searchgym._lazy import lazy

if TYPE_CHECKING:
    from searchgym.questions.worlds.build import build_world
    from searchgym.questions.worlds.report import card_of, report_of
    from searchgym.questions.worlds.schema import World, WorldSpec
    from searchgym.questions.worlds.storage import cached_world, read_world, write_world

__all__ = ["World", "WorldSpec", "build_world", "cached_world", "card_of", "read_world", "report_of", "write_world"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "build": "build_world",
        "report": "card_of report_of",
        "schema": "World WorldSpec",
        "storage": "cached_world read_world write_world",
    },
)

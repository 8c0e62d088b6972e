"""Notes on scores that would mislead: an oracle without gold pages, or a model on text that it was not trained for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from searchgym.agents.base import LoadedAgent
from searchgym.agents.scripted import Oracle
from searchgym.envs.task import Task
from searchgym.options.cards import list_cards
from searchgym.options.model_cards import ModelCard, load_model_card
from searchgym.questions.worlds.schema import is_world_question


def oracle_note(agent: LoadedAgent, task: Task) -> str | None:
    """Returns a note if the agent is the oracle and some questions name no gold pages; else None."""
    missing = sum(question.gold_titles is None for question in task.questions)
    if not isinstance(agent.workflow, Oracle) or not missing:
        return None
    which = (
        "the questions name" if missing == len(task.questions) else f"{missing} of {len(task.questions)} questions name"
    )
    return f"{which} no gold pages: on them agent {agent.name} searches nothing and only repeats the gold answers"


def model_notes(models: Iterable[str | Path], task: Task) -> Iterator[str]:
    """Yields a note for each shipped model that was trained on generated worlds only, if the questions are others.

    Args:
        models: Folders or URLs of the models.
        task: Environment and questions.
    """
    if task.card.questions.world_spec() is not None or all(is_world_question(q.id) for q in task.questions):
        return
    cards = {path.parent.resolve(): path for path in list_cards("models").values()}
    for folder in dict.fromkeys(models):
        card = load_model_card(cards[folder]) if isinstance(folder, Path) and folder in cards else None
        if isinstance(card, ModelCard) and card.trained_on:
            yield f"{card.name} was trained on {card.trained_on} only: on other text try --model {card.other_text}"

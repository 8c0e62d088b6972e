"""Writes demonstrations to a folder, which gets its name only when it is complete.

episodes.jsonl, episodes.tokens.bin   the demonstrations, as episodes
card.yaml                             how they were generated, questions left out by reason, SHA-256 of every file
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from searchgym.corpora.files import sha256_file
from searchgym.corpora.folders import appearing
from searchgym.rollout.storage import EpisodeWriter, sidecar
from searchgym.train.demonstrations.oracle import DemonstrationSet, context_lengths

EPISODES: Final = "episodes.jsonl"


def write_demonstrations(demonstrated: DemonstrationSet, out: Path, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Writes demonstrations and their card.

    Args:
        demonstrated: The demonstrations.
        out: Folder to create.
        provenance: Description of how they were generated, as plain data for the card.

    Returns:
        The card.

    Raises:
        RunExistsError: `out` exists and is not an empty folder.
    """
    lengths = [length for episode in demonstrated.episodes for length in context_lengths(episode)]
    trained = sum(call.end - call.start for episode in demonstrated.episodes for call in episode.calls)
    card: dict[str, Any] = {"format": "searchgym demonstrations", **provenance}
    card |= {"episodes": len(demonstrated.episodes), "tokens": sum(lengths), "tokens_learnt": trained}
    card |= {"longest": max(lengths), "outcomes": dict(demonstrated.counts.most_common())}
    with appearing(out) as building:
        episodes = building / EPISODES
        with EpisodeWriter(episodes) as writer:
            for episode in demonstrated.episodes:
                writer.write(episode)
        card["sha256"] = {path.name: sha256_file(path) for path in (episodes, sidecar(episodes))}
        text = yaml.safe_dump(card, sort_keys=False, allow_unicode=True)
        (building / "card.yaml").write_text(text, encoding="utf-8")
    return card

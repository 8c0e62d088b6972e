"""Credit term ``completeness``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Interval
from typing_extensions import override

from searchgym.agents.teams.reread import READER, second_answer
from searchgym.errors import DataError
from searchgym.records import Episode, is_simulated
from searchgym.scoring import golds_with_words
from searchgym.text import holds
from searchgym.train.credit.term import CreditContext, EpisodeTerm


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness(EpisodeTerm):
    """Rewards a right answer if the model answers right again from the retrieved pages alone.

    If the environment's reward is above `right`, the last call of each sequence gets the score of the second answer,
    which the role ``reader`` of an agent such as ``search-r1-reread`` gives; otherwise 0. So an answer from memory
    after idle searches earns less than one from pages. Without pages there is no second answer, and the term gives 0.
    The second answer is not trained on. An episode with pages and an answer but without a second answer is refused
    with a DataError.

    Source: GRPO-CSV of TimeSearch-R, arXiv 2511.05489, by notes: its completeness reward ``1[Acc(A) > 0.5] Acc(A_c)``;
    there the evidence is frames of a video. Deviation: `grounded`, since a model that knows the answer could give it
    twice after any search. That the second answer is not trained on is ours.
    """

    trials: ClassVar = READER, "search-r1-reread"

    right: Annotated[float, Interval(ge=0, lt=1)] = 0.5
    """Reward above which the first answer counts as right."""
    grounded: bool = True
    """If true, a second answer counts only if a retrieved page contains a gold answer; ``yes`` and ``no`` need none."""

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        trial = second_answer(episode)
        pages = [hit.passage for search in episode.searches for hit in search.hits]
        if trial is None:
            if pages and episode.stop_reason == "answer":
                why = "has no second answer from its pages, but credit completeness needs one"
                raise DataError(f"episode {episode.id} {why}: use an agent such as search-r1-reread")
            return 0.0
        if not episode.reward > self.right:
            return 0.0
        golds = golds_with_words(context.question(episode).golds)
        texts = [f"{page.title} {page.text}" for page in pages if not is_simulated(page)]
        stated = any(holds(text, gold) for text in texts for gold in golds)
        if self.grounded and not stated and not {"yes", "no"} & {gold.casefold() for gold in golds}:
            return 0.0
        return context.score(episode, trial.answer or "")

"""Credit term ``waypoint``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Interval
from typing_extensions import override

from searchgym.options import Setting
from searchgym.records import Episode
from searchgym.train.credit.term import CreditContext, EpisodeTerm
from searchgym.train.credit.waypoints import RULES, coverage, waypoints_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Waypoint(EpisodeTerm):
    """Gives an episode that is not right a part of the reward for the waypoints that it reached.

    With the environment's reward r, cut to [0, 1], and the covered part c of the question's waypoints that searches
    earned: ``share (1 - r) c`` for the last call of each sequence, so that with ``outcome`` the sum is 1 where the
    episode is right and ``share c`` where r is 0.

    Do not divide it by the deviation of its group (the estimator's ``std: sample``): in groups that are all wrong the
    share cancels, and a search that still fails counts as much as a right answer elsewhere. Set ``std: none``, or
    `std_floor` to about 0.3.

    Source: Waypoint Coverage Reward, arXiv 2605.05702. The abstract alone is public: full reward if right, else graded
    by the coverage of the construction path. What counts as reached, the share and the scale for rewards between 0 and
    1 are ours.
    """

    share: Annotated[float, Interval(gt=0, lt=1)] = 0.3
    """Reward of an episode that reached every waypoint and is wrong; from 1 on a wrong answer would earn as much as a
    right one."""
    rules: list[Literal["query", "page", "led", "few"]] = field(default_factory=lambda: list(RULES))
    """What must hold of one search for a waypoint to count: ``query`` names it, the hits hold its ``page``, an earlier
    page had named it (``led``), and the query names ``few`` entities."""
    most_names: Annotated[int, Ge(1)] = 2
    """Entities that a query may name under the rule ``few``."""
    answered: bool = False
    """If true, an episode earns it only if it ends with an answer."""

    @override
    def check(self, setting: Setting) -> Iterable[str]:
        if not {"query", "page"} & set(self.rules):
            yield "rules needs query or page: else any search would reach every waypoint"

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        missing = 1 - min(max(episode.reward, 0.0), 1.0)
        if missing == 0 or (self.answered and episode.stop_reason != "answer"):
            return 0.0
        points = waypoints_of(context.question(episode))
        covered = coverage(points, episode.searches, context.names(), self.rules, self.most_names)
        return self.share * missing * covered

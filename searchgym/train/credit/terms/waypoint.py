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
    """Rewards an episode without full reward for the waypoints that its searches reached.

    With the environment's reward r, clipped to [0, 1], and the share c of the question's waypoints that searches
    earned, the last call of each sequence gets ``share (1 - r) c``. Together with ``outcome`` the sum is 1 for a right
    episode and ``share c`` if r is 0.

    Do not divide it by the standard deviation of its group (the estimator's ``std: sample``): in groups without a right
    answer the division cancels the share, and a failed search counts as much as a right answer elsewhere. Set ``std:
    none``, or `std_floor` to about 0.3.

    Source: Waypoint Coverage Reward, arXiv 2605.05702. Only the abstract is public: full reward if right, else graded
    by the coverage of the construction path. The definition of a reached waypoint, the share, and the scale for rewards
    between 0 and 1 are ours.
    """

    share: Annotated[float, Interval(gt=0, lt=1)] = 0.3
    """Reward of a wrong episode that reached every waypoint. It must be below 1, the reward of a right answer."""
    rules: list[Literal["query", "page", "led", "few"]] = field(default_factory=lambda: list(RULES))
    """Conditions that one search must meet to earn a waypoint: its query names the waypoint (``query``), its hits
    contain the waypoint's page (``page``), a page of an earlier turn names the waypoint (``led``), and the query names
    at most `most_names` entities (``few``)."""
    most_names: Annotated[int, Ge(1)] = 2
    """Maximum number of entities named in a query, for the rule ``few``."""
    answered: bool = False
    """If true, only episodes that end with an answer are rewarded."""

    @override
    def check(self, setting: Setting) -> Iterable[str]:
        if not {"query", "page"} & set(self.rules):
            yield "rules needs query or page: otherwise any search would reach every waypoint"

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        missing = 1 - min(max(episode.reward, 0.0), 1.0)
        if missing == 0 or (self.answered and episode.stop_reason != "answer"):
            return 0.0
        points = waypoints_of(context.question(episode))
        covered = coverage(points, episode.searches, context.names(), self.rules, self.most_names)
        return self.share * missing * covered

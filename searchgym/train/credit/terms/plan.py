"""Credit term ``plan``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from searchgym.agents.parsing import numbered, without_thoughts
from searchgym.records import Episode, Question
from searchgym.scoring.answers import harmonic_mean, plain_f1_score
from searchgym.train.credit.term import CreditContext, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Term):
    """Rewards a plan by how well its sub-questions match the question's gold sub-questions, in [0, 1].

    A plan is the first output with ``<q1>..</q1><q2>..</q2>``: of the roles ``serial`` and ``parallel`` of ``jade``, of
    ``planning`` of ``m-ask``, or of a role of yours. Its sub-questions are matched one to one with the gold ones, so
    that the sum of similarities is largest. Precision is that sum divided by the number of stated sub-questions, recall
    by that of gold ones; the reward is their harmonic mean. An output that is not legal and a question without gold
    sub-questions earn 0, as do all other calls.

    Source: APEX-Searcher, arXiv 2603.13853, by notes: the reward of its planner. Deviation: the similarity is token F1,
    not the cosine of sentence vectors, whose encoder is not known; the mark of an earlier answer (``#1``) may stand in
    a sub-question, or the answer itself, whichever matches better.
    """

    rewards_one: ClassVar = "call"

    @override
    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        rewards = [0.0] * len(episode.calls)
        for index, call in enumerate(episode.calls):
            if not call.prefix and (stated := stated_parts(call.text)):
                rewards[index] = plan_score(stated, gold_parts(context.question(episode))) if call.legal else 0.0
                break
        return rewards


def stated_parts(text: str) -> list[str]:
    """Returns the sub-questions that an output states as ``<q1>..</q1>``, in order."""
    return [body for _, _, body in numbered(without_thoughts(text), ("q",), 9)[0] if body]


def gold_parts(question: Question) -> list[tuple[str, ...]]:
    """Returns the accepted texts of each gold sub-question: as the data has it, and with earlier answers filled in."""
    hops = question.hops or ()
    parts = list[tuple[str, ...]]()
    for hop in hops:
        filled = hop.question
        for number in range(len(hops), 0, -1):
            filled = filled.replace(f"#{number}", hops[number - 1].answer)
        parts.append((hop.question, filled))
    return parts


def plan_score(stated: Sequence[str], gold: Sequence[Sequence[str]]) -> float:
    """Returns the F1 of stated and gold sub-questions under their best one-to-one matching; 0 if either is empty.

    Args:
        stated: Stated sub-questions.
        gold: Accepted texts of each gold sub-question; the most similar one counts.
    """
    from scipy.optimize import linear_sum_assignment

    if not stated or not gold:
        return 0.0
    similarity = np.array([[plain_f1_score(part, texts) for texts in gold] for part in stated])
    total = float(similarity[linear_sum_assignment(similarity, maximize=True)].sum())
    return harmonic_mean(total / len(stated), total / len(gold))

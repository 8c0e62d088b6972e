"""Answer normalisation, exact match, F1 and the six official scorers: one implementation for rewards and evaluation.

Every scorer returns one row of numbers per question (floats in [0, 1], never rounded) and `aggregate` takes plain means
over question ids with `math.fsum`, whose result does not depend on the order or the batching of the rows. In a row

* a number is the official value for that question;
* None means that the agent did not predict the fields that the metric needs (sentence ids, triples, ...): n/a;
* a missing key means that the metric does not apply: the data has no gold for it, or MuSiQue leaves the question out.

How the official scripts differ:

============  ==========================  =========================================================================
scorer        golds                       particulars
============  ==========================  =========================================================================
`hotpotqa`    first answer                yes / no / noanswer equal only themselves in F1; support is a set of (title,
                                          sentence); joint precision and recall are products
`2wiki`       first answer and aliases    the largest EM, F1, precision and recall are taken one by one; support titles
                                          lower-cased after duplicates are removed; evidence triples match through the
                                          aliases of subject and object, and two predictions may match one gold triple,
                                          so that evidence and joint recall and F1 **can exceed 1**; joint of three
`musique`     first answer and aliases    F1 without the yes / no rule, 1 if both sides are empty; answers and support
                                          of answerable questions only; group metrics over pairs (see `aggregate`)
`flashrag`    all answers                 F1, precision and recall as HotpotQA's, the largest taken one by one; ``acc``
                                          is `cover_match`; its regex gold answers (CuratedTREC) are not supported
`search_r1`   all answers                 ``em`` and ``sub_em`` (`cover_match`) only
`kilt`        all answers                 F1 without the yes / no rule, 0 if both sides are empty; a blank prediction 0;
                                          ``accuracy`` compares the texts as they are; ROUGE-L and the figures that need
                                          ids of Wikipedia pages (R-precision, recall, KILT-EM) are not computed
============  ==========================  =========================================================================

The 2WikiMultihopQA script prints percentages with 2 decimals and MuSiQue's prints 3 decimals; nothing is rounded here.
Sources: hotpot_evaluate_v1.py, 2wikimultihop_evaluate_v1.1.py, MuSiQue evaluate_v1.0.py with metrics/, FlashRAG
flashrag/evaluator/metrics.py, Search-R1 verl/utils/reward_score/qa_em.py, KILT kilt/eval_downstream.py.
"""

from searchgym.scoring.answers import (
    EntityAliases,
    Overlap,
    answer_overlap,
    cover_match,
    exact_match,
    f1_score,
    golds_with_words,
    musique_f1_score,
    normalise_answer,
    plain_f1_score,
    span_recall,
    word_cover_match,
)
from searchgym.scoring.ranking import alike, mean_hit, ndcg
from searchgym.scoring.scorers import (
    SCORERS,
    UNANSWERABLE_SUFFIX,
    Scorer,
    Scores,
    aggregate,
    check_ids,
    mean_scores,
    score_predictions,
    score_question,
)

__all__ = [
    "SCORERS",
    "UNANSWERABLE_SUFFIX",
    "EntityAliases",
    "Overlap",
    "Scorer",
    "Scores",
    "aggregate",
    "alike",
    "answer_overlap",
    "check_ids",
    "cover_match",
    "exact_match",
    "f1_score",
    "golds_with_words",
    "mean_hit",
    "mean_scores",
    "musique_f1_score",
    "ndcg",
    "normalise_answer",
    "plain_f1_score",
    "score_predictions",
    "score_question",
    "span_recall",
    "word_cover_match",
]

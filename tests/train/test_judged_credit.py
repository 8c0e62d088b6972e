"""Credit terms that ask a judge: numbers by hand, episodes without a verdict, and a training by tournaments."""

import numpy as np
import pytest
from credit_terms import terms_of
from toy_training import QUESTIONS, toy_recipe, toy_trainer

from searchgym.errors import CardError, NoVerdictError
from searchgym.options import find_kind, kinds
from searchgym.records import Answer, Call, Context, Episode, Question, Span
from searchgym.scoring.judges.judge import Checked
from searchgym.scoring.judges.kinds.rules import RuleJudge
from searchgym.scoring.judges.rubric import weightings
from searchgym.train.credit.credit import Credit
from searchgym.train.credit.term import CreditContext, Term, UnjudgedError
from searchgym.train.credit.terms.rubric import polarisation
from searchgym.train.loop.assembly import train
from searchgym.train.recipe.load import load_recipe

ROWS = [
    {"text": "It names Zor.", "says": [["Zor"]]},
    {"text": "It names Kim.", "says": [["Kim"]], "weight": 3.0},
    {"text": "It is signed.", "says": [["signed"]], "bottom": True},
]
QUESTION = Question("q", "Who?", ("Zor",), metadata={"rubric": ROWS})


def attempt(answer, number=0, calls=2, legal=True):
    contexts = [Context(None, 0, [Span("prompt", np.array([1], np.int32))])]
    made = []
    for turn in range(calls):
        contexts[0].spans.append(Span("model", np.array([3, 4], np.int32), np.full(2, -1, np.float32)))
        made.append(Call(0, 1 + 2 * turn, 3 + 2 * turn, "searcher", "policy", turn + 1, legal=legal or turn == 0))
    given = None if answer is None else Answer(answer)
    return Episode(f"q#{number}", "q", "a", "e", contexts=contexts, calls=made, group_uid="g", answer=given)


class Silent(RuleJudge):
    """Rules, but silent on answers that hold a word."""

    def meets(self, question, answer, criteria):
        if "silence" in answer:
            raise NoVerdictError("the judge is silent")
        return super().meets(question, answer, criteria)

    def better(self, question, answers, criteria):
        self.meets(question, " ".join(answers), criteria)
        return super().better(question, answers, criteria)


def credit(term, judge=None, **options):
    context = CreditContext(question=lambda episode: QUESTION, judge=Checked(judge or RuleJudge()))
    return Credit(terms_of(**{term: options}), context)


def rewards(term, answers, **options):
    group = [attempt(answer, n) for n, answer in enumerate(answers)]
    return [row[-1] for row in credit(term, **options).allocate(group)]


def test_terms_say_that_they_ask_a_judge():
    asking = {name for name in kinds(Term) if find_kind(Term, name).asks_judge}
    assert asking == {"rubric", "gated", "tournament", "candidates"}


def test_rubric_rewards_the_last_call():
    rows = credit("rubric").allocate([attempt("Zor, signed."), attempt(None), attempt("Kim. Zor.", calls=3)])
    assert rows == [[0, 0.4], [0, 0], [0, 0, 0.8]]


def test_gated_needs_the_bottom_line_and_the_form():
    """Bottom lines are the signature and the share of legal calls; the rest weighs 1 and 3."""
    assert rewards("gated", ["Kim. Zor. Signed.", "Kim. Signed.", "signed"]) == pytest.approx([1, 0.75, 0])
    open_gate = np.sqrt(0.05 * 1.05) - 0.05
    assert rewards("gated", ["Kim. Zor."]) == pytest.approx([open_gate])
    ((_, half),) = credit("gated").allocate([attempt("Kim. Zor. Signed.", legal=False)])
    assert half == pytest.approx(np.sqrt(1.05 * 0.55) - 0.05)
    smooth = np.sqrt(0.2 * 1.2) - 0.2
    assert rewards("gated", ["Kim. Zor."], delta=0.2) == pytest.approx([smooth])


def test_tournament_compares_within_the_group():
    assert rewards("tournament", ["Zor", "Kim. Zor. Signed.", None, "nobody"])[1:3] == [1, 0]
    assert rewards("tournament", ["Zor", "Zor here", "Zor there"]) == [0.5, 0.5, 0.5]
    answers = ["Zor", "Kim", "Kim. Zor.", "none"]
    assert rewards("tournament", answers) == rewards("tournament", answers), "seeded by the group"


def test_candidates_cover_the_rubric():
    """Each candidate meets one criterion: the best of a set is worth the largest weight among those that it covers."""
    weights = weightings("q", 3, 64)
    both, one, all_three = rewards("candidates", ["Zor; Kim", "Zor", "Zor; Kim; signed"])
    assert both == pytest.approx(weights[:, :2].max(axis=1).mean())
    assert one == pytest.approx(weights[:, 0].mean()) and all_three == pytest.approx(weights.max(axis=1).mean())
    assert one < both < all_three < 1
    assert rewards("candidates", ["Zor; Kim; x; y; Zor", None], most=4) == [0, 0], "too many, and none"
    assert rewards("candidates", ["Zor, Kim, signed"]) == [1], "one candidate may meet all"


@pytest.mark.parametrize("term", ["rubric", "gated", "candidates"])
def test_an_episode_without_a_verdict_gets_no_reward(term):
    judged = credit(term, Silent())
    group = [attempt("Zor", 0), attempt("silence", 1), attempt("Kim. Zor. Signed.", 2)]
    with pytest.raises(UnjudgedError, match="episode q#1: the judge is silent") as caught:
        judged.allocate(group)
    assert caught.value.indices == (1,)
    found = judged.rewards(group)
    assert found[1] is None and found[0] is not None and found[2] is not None
    assert found[2].total[-1] > found[0].total[-1] > 0
    counts = judged.judged()
    assert counts["failed"] >= 1 and counts["unjudged"] == 1
    assert judged.judged() == dict.fromkeys(("asked", "failed", "swayed", "unjudged"), 0.0)


def test_the_polarisation_of_a_rubrics_rewards():
    assert polarisation([0, 0.99, 0.98, 0.01]) == 0.5 and polarisation([1.0]) == 1 and polarisation([0.5]) == 0
    judged = credit("rubric")
    judged.rewards([attempt("Zor", 0), attempt("Kim. Zor. Signed.", 1), attempt("nobody", 2)])
    assert 0 < judged.allocate([attempt("Zor", 0)])[0][-1] < 0.99
    assert judged.judged()["polarisation"] == 0.5, "one full, one 0, and the partial one twice"
    assert "polarisation" not in judged.judged(), "each step has its rewards alone"
    weighted = credit("rubric", weight=3.0)
    weighted.rewards([attempt("Zor", 0)])
    assert weighted.judged()["polarisation"] == 0, "the weight does not count"


def test_an_unjudged_answer_leaves_and_the_others_play_again():
    judged = credit("tournament", Silent())
    found = judged.rewards(
        [attempt(text, n) for n, text in enumerate(["silence", "Zor", "Kim. Zor. Signed.", "nobody"])]
    )
    assert found[0] is None
    assert [row.total[-1] for row in found[1:]] == rewards("tournament", ["Zor", "Kim. Zor. Signed.", "nobody"])


def test_a_group_without_any_verdict_leaves_the_training():
    judged = credit("tournament", Silent())
    assert judged.rewards([attempt("silence", 0), attempt("silence too", 1)]) == [None, None]
    assert credit("outcome").judged() == {}


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["judge=smollm2"], "judge is smollm2: no credit term of outcome uses it"),
        (["credit={tournamnt: 1}"], "did you mean 'tournament'"),
        (["credit={gated: {delta: 0}}"], "gated.delta: expected at least 0.000001, got 0"),
        (["credit={rubric: {rounds: 2}}"], "rubric.rounds: unknown key"),
        (["credit={rubric: 1}", "judge=own", "models={own: {}}"], "a judge's weights must be frozen"),
        (["models={a: {}, b: {roles: [], frozen: true}}"], "models.b: no role uses it"),
    ],
)
def test_recipes_that_cannot_work_are_refused(overrides, says):
    with pytest.raises(CardError, match=says):
        load_recipe("tiny-grpo", overrides)


def test_a_frozen_key_without_roles_is_a_judge():
    recipe = load_recipe("tiny-tournament", ["models={policy: {}, judge: {roles: [], frozen: true}}", "judge=judge"])
    assert recipe.models["judge"].roles == []


@pytest.mark.slow
def test_prose_of_a_model_key_that_judges_trains_nothing(tmp_path):
    """The frozen tiny model, asked for a verdict, writes what it was shown to write: no episode gets a reward."""
    own = [
        "models={policy: {}, judge: {roles: [], frozen: true}}",
        "judge=judge",
        "steps=1",
        "validation.every=0",
    ]
    recipe = load_recipe(
        "tiny-tournament", [*own, "rollout.questions=2", "rollout.attempts=4", "optimizer.warmup_steps=0"]
    )
    row = train(recipe, tmp_path / "run").rows[-1]
    assert row["judge/failed"] > 0 and row["judge/unjudged"] == 8
    assert row["learner/updates"] == 0
    assert not (tmp_path / "run" / "checkpoints" / "last" / "judge").exists()


@pytest.mark.slow
def test_the_bandit_learns_from_tournaments(tmp_path):
    """Its answers are numbers of which one is right: by comparisons alone the policy finds it."""
    by_id = {question.id: question for question in QUESTIONS}
    terms = {"tournament": {"rounds": 2}}
    judged = Credit(terms_of(**terms), CreditContext(question=lambda episode: by_id[episode.question_id]))
    recipe = toy_recipe(steps=12, credit=terms, validation={"every": 12})
    rows = toy_trainer(tmp_path / "run", recipe, credit=judged).run().rows
    assert rows[-1]["validation/em"] > rows[0]["validation/em"] + 0.3
    assert rows[1]["judge/asked"] > 0 and rows[1]["judge/failed"] == rows[1]["judge/unjudged"] == 0

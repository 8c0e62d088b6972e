"""Printed scores: tables with intervals and splits, what was not measured, and advice on what to try next."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from searchgym.cli.output import show, table, tell
from searchgym.cli.tables import cut_to

TABLES: Final = (
    "legal_by_role", "refused", "notes", "endings", "splits", "ceilings", "contamination", "awareness", "completeness",
    "candidates",
    "unreachable_golds", "on_answerable", "evidence_curve", "recovery",
)  # fmt: skip
"""Keys of scores that explain the others; they have tables of their own."""
UNMEASURED: Final = {
    ("evidence_by_searches",): "the questions name no gold pages",
    ("evidence_by_tokens",): "no model was asked, or the questions name no gold pages",
    ("sp_", "evidence_", "joint_"): "the agent names no supporting evidence",
    ("response_tokens", "read_tokens", "legal"): "no model was asked",
    ("citation_",): "the questions name no gold pages",
    ("title_recall", "gold_found", "over_search", "under_search"): "the questions name no gold pages",
    ("right_without_evidence",): "no right answer to a question that names gold pages",
    ("",): "not produced by the agent",
}
"""Beginnings of keys, with the reason why their scores can be missing."""
BY_TURN: Final = ("title_recall", "passage_recall")
"""Scores with one value per turn."""
EXAMPLES: Final = 3
"""Maximum number of questions that are printed with their answers."""
RENAMED: Final = {"resumed": "continued after a stop string"}
"""Names in the printed table, by key of the scores."""
HIDDEN_ZEROS: Final = ("retriever_errors", "full_contexts", "resumed")
"""Counts that the printed table leaves out where they are 0."""
LOW: Final = 0.5
"""Share of legal outputs below which the printed scores come with advice."""


def print_scores(title: str, scores: Mapping[str, Any]) -> None:
    """Prints scores with their confidence intervals, splits, what explains them, and advice."""
    rows: list[tuple[str, str, str]] = []
    for name, value in scores.items():
        if name == "n" or name in TABLES or name.endswith("_ci95") or value is None:
            continue
        interval = scores.get(f"{name}_ci95")
        if name in BY_TURN:
            rows += _by_turn(name, value, scores[f"{name}_ci95"])
        elif value or name not in HIDDEN_ZEROS:
            bounds = "" if interval is None else " – ".join(map(show, interval))
            rows.append((RENAMED.get(name, name), show(value), bounds))
    table(("metric", "value", "95 % interval"), rows, f"{title}, {scores['n']} questions")
    splits = [
        (f"{kind} {value}", *("" if score is None else show(score) for score in values.values()))
        for kind, split in scores["splits"].items()
        if len(split) > 1
        for value, values in split.items()
    ]
    if splits:
        table(("questions", "n", "EM", "F1", "legal", "searches"), splits, "by kind of question")
    for unit, curve in scores.get("evidence_curve", {}).items():
        head = ["gold pages read", *(f"{budget:,.0f}" for budget, _ in curve)]
        table(head, [["share", *(f"{recall:.3f}" for _, recall in curve)]], f"within this many {unit}")
    if recovery := scores.get("recovery"):
        spoilt = [
            (kind, show(row["n"]), show(row["em"]), " – ".join(map(show, row["em_ci95"])))
            for kind, row in recovery.items()
        ]
        table(("fault", "questions", "EM", "95 % interval"), spoilt, "where a search was spoilt")
    roles, refused = scores["legal_by_role"], scores["refused"]
    if len(roles) > 1 or refused:
        table(
            ("role", "outputs", "legal"),
            [(r, show(values["calls"]), show(values["legal"])) for r, values in roles.items()],
        )
    if refused:
        reasons = [(r["role"], r["reason"], show(r["calls"]), r["example"]) for r in refused]
        table(("role", "refused because", "outputs", "example"), reasons)
    if scores["notes"]:
        notes = [(name, show(values["episodes"]), show(values["mean"])) for name, values in scores["notes"].items()]
        table(("note", "episodes", "mean"), notes)
    if lines := [*_unmeasured(scores), *_remarks(scores), *_advice(scores)]:
        tell("\n" + "\n".join(lines))


def print_answers(rows: Sequence[Mapping[str, Any]], count: int) -> None:
    """Prints questions with their gold answers and the agent's answers, a line of the terminal's width for each.

    Args:
        rows: Rows of ``questions.jsonl``, of which the first `EXAMPLES` are printed.
        count: Number of all questions.
    """
    width, first = shutil.get_terminal_size().columns, rows[:EXAMPLES]
    blocks = [f"the first {len(first)} of {count} questions" if len(first) < count else "the questions"]
    for row in first:
        answers = ["(none)" if answer is None else answer or "(empty)" for answer in row["answers"]]
        verdict = ""
        if "em" in row:
            verdict = {1.0: "right: ", 0.0: "wrong: "}.get(row["em"], f"EM {show(row['em'])}: ")
        lines = {"question": row["question"], "gold": "; ".join(row["golds"]), "answer": verdict + "; ".join(answers)}
        blocks.append("\n".join(cut_to(f"{label:<8}  {text}", width) for label, text in lines.items()))
    tell("\n" + "\n\n".join(blocks))


def _by_turn(name: str, means: Sequence[float], intervals: Sequence[Sequence[float]]) -> Iterator[tuple[str, str, str]]:
    """Yields a row for each run of turns whose values are equal."""
    formatted = [(show(mean), " – ".join(map(show, bounds))) for mean, bounds in zip(means, intervals, strict=True)]
    for cells, alike in itertools.groupby(range(len(formatted)), formatted.__getitem__):
        turns = [turn + 1 for turn in alike]
        yield (f"{name} by turn {turns[0]}" + (f" to {turns[-1]}" if turns[1:] else ""), *cells)


def _unmeasured(scores: Mapping[str, Any]) -> list[str]:
    """Returns a line that names the missing scores and the reasons, if any are missing."""
    reasons: dict[str, list[str]] = {}
    for name in (name for name, value in scores.items() if value is None and name != "passage_recall"):
        prefix, why = next((p, why) for ps, why in UNMEASURED.items() for p in ps if name.startswith(p))
        reasons.setdefault(why, []).append(f"{prefix}*" if prefix.endswith("_") else name)
    parts = [f"{', '.join(dict.fromkeys(names))} ({why})" for why, names in reasons.items()]
    return [f"not measured: {'; '.join(parts)}"] if parts else []


def _remarks(scores: Mapping[str, Any]) -> Iterator[str]:
    """Yields lines about pages that a model wrote, the decision to search, ceilings and copies, as far as known."""
    if share := scores.get("simulated"):
        yield (
            f"simulated: {show(share)} of an episode's hits were written by a model, not retrieved: these scores do "
            "not compare with those of a search engine"
        )
    if (details := scores.get("awareness")) is not None:
        f1, precision, recall = (
            "none" if details[n] is None else show(details[n]) for n in ("f1", "precision", "recall")
        )
        yield (
            f"awareness: F1 {f1} of not searching (precision {precision}, recall {recall}): "
            f"{show(details['known'])} of {details['n']} episodes answer right from memory, "
            f"{show(details['unsearched'])} do not search"
        )
    if (details := scores.get("completeness")) is not None:
        yield (
            f"completeness: {show(details['again'])} of {details['n']} episodes answer right again from their pages "
            f"alone, {show(details['right'])} answer right, {show(details['both'])} both"
        )
    if (details := scores.get("candidates")) is not None:
        error = details["expected_calibration_error"]
        yield (
            f"candidates: {show(details['first'])} of {details['n']} answers have a right first candidate, "
            f"{show(details['any'])} any; Brier reward {show(details['brier'])}, calibration error "
            f"{'none' if error is None else show(error)}"
        )
    if details := scores.get("ceilings"):
        yield (
            f"ceilings: EM {show(details['gold_pages']['em'])} with the gold pages given (gap "
            f"{show(details['reading_gap'])}), {show(details['evidence_oracle']['em'])} for a perfect reader that "
            f"searches for the gold titles (gap {show(details['retrieval_gap'])})"
        )
        if "other_hits" in details:
            yield (
                f"floor: EM {show(details['other_hits']['em'])} with the hits of another question: "
                f"{show(details['hits_gain'])} is owed to what is found"
            )
    if details := scores.get("on_answerable"):
        bounds = "" if details["em_ci95"] is None else f" [{', '.join(map(show, details['em_ci95']))}]"
        yield (
            f"answerable from this corpus: {details['n']} of {details['of']} questions; EM on them "
            f"{show(details['em'])}{bounds}, on all {show(scores['em'])}"
        )
    if (details := scores.get("contamination")) is not None:
        yield (
            f"contamination: of {scores['n']} questions {details['exact']} are training questions, {details['near']} "
            f"nearly; EM on them {show(details['em_copies'])}, on the others {show(details['em_others'])}"
        )
        yield from (f"  {copy['id']} ({copy['kind']}): {copy['training']}" for copy in details["copies"][:3])


def print_suite(scores: Mapping[str, Any]) -> None:
    """Prints the scores of a suite: a row for each part with its answers, the two means, and a row with its costs."""
    names = ("searches", "response_tokens", "read_tokens", "gold_found", "legal")
    answers, costs = list[list[str]](), list[list[str]]()
    for part, values in scores["parts"].items():
        interval = " – ".join(map(show, values["em_ci95"])) if "em_ci95" in values else ""
        em, f1, *others = ("" if values.get(name) is None else show(values[name]) for name in ("em", "f1", *names))
        answers.append([part, show(values["n"]), em, interval, f1])
        costs.append([part, *others])
    for mean in ("parts", "questions"):
        em, f1 = (show(scores[key]) if (key := f"{name}_{mean}") in scores else "" for name in ("em", "f1"))
        answers.append([f"mean over {mean}", show(scores["n"]), em, "", f1])
    head = ("part", "n", "EM", "95 % interval", "F1")
    table(head, answers, f"suite {scores['suite']} · {scores['agent']}")
    table(("part", "searches", "tokens written", "tokens read", "evidence", "legal"), costs, "per question")


def _advice(scores: Mapping[str, Any]) -> Iterator[str]:
    """Yields lines that explain a low score and name the next thing to try."""
    legal = scores["legal"]
    if legal is not None and legal < LOW:
        yield (
            f"Only {100 * legal:.0f} % of the models' outputs are legal, so these scores say little about searching: "
            "the model does not write what the prompts ask for."
        )
        if scores["refused"][0]["reason"].startswith("cut off"):
            yield "Next: give more room with --max-tokens."
        else:
            yield (
                "Next: worked examples in the prompts (as those of the agent search-r1-few-shot), the grammar that the "
                "model was trained on (--protocol tool_calls), or other prompts: copy the agent's folder, edit them, "
                "and give its card.yaml as --agent. A training teaches the form too (docs/do/train.md)."
            )
    elif scores["full_contexts"] > LOW * scores["n"]:
        yield (
            f"{scores['full_contexts']} episodes ended because the model's context was full: use a model with a longer "
            "one, shorter prompts, or fewer and shorter observations (--top-k, --max-turns)."
        )
    elif scores["answered"] < LOW and scores["retriever_errors"] < LOW * scores["n"]:
        ends = ", ".join(f"{name} {count}" for name, count in scores["endings"].items())
        yield f"Most episodes ended without an answer ({ends}): more --max-turns, or a prompt that asks to answer."
    elif not scores.get("em") and scores["cover_em"]:
        yield "No answer equals a gold answer, but some contain one (cover_em): ask for the answer alone in the prompt."

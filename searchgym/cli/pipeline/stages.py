"""The stages from a corpus to a trained adapter; a stage that was stopped is gone on with.

corpus.jsonl    the pages that practice may use
questions/      generated questions, in three splits that share no page
masked/         oracle episodes on masked spans filler/    the adapter after them
reading/        practice in reading             reader/    the adapter after it
searching/      oracle episodes                 searcher/  the adapter after them
validation/     questions for validation        test/      questions for scores
selected/       training questions, chosen by pass rate
reinforced/     the run of reinforcement learning
scores/ROW/     evaluations on the test questions
adapter/        the adapter with the best validation score, and how it was made
report.md       what each stage did, and the scores
stages.json     what finished stages did, with their seconds
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from searchgym.cli.pipeline.folder import DONE
from searchgym.cli.pipeline.pipeline import WARM
from searchgym.cli.pipeline.selection import SELECTED, select, write_pool
from searchgym.cli.pipeline.work import ENV, StageOutcome, Work
from searchgym.corpora.documents import open_corpus
from searchgym.corpora.files import read_json
from searchgym.corpora.folders import appearing
from searchgym.corpora.passages import write_corpus
from searchgym.envs.data import find_corpus
from searchgym.envs.registration import find_env
from searchgym.envs.task import Task, load_task
from searchgym.errors import DataError, NothingLeftError, UsageError
from searchgym.eval.run_folder import holds_run
from searchgym.eval.runner import EvalOptions, evaluate, write_json
from searchgym.options.yaml import read_yaml
from searchgym.questions.report import crossed
from searchgym.questions.source import held_out_by
from searchgym.questions.storage import write_set
from searchgym.reading import leads_out
from searchgym.rollout.foreign.template_options import template_format
from searchgym.rollout.loading import load_tokenizer
from searchgym.train.demonstrations.oracle import demonstrate_search
from searchgym.train.demonstrations.reading import demonstrate_reading
from searchgym.train.demonstrations.write import EPISODES, write_demonstrations
from searchgym.train.recipe.load import load_recipe
from searchgym.train.recipe.recipe import override_of

MADE: Final = "made.json"
"""File beside an adapter that says how it was made."""
MASKED: Final = "searchgym/MaskedSpan-v0"
FEWEST: Final = 8
"""Demonstrations, or training questions, below which a stage is left out: they are too few for one step."""


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """A stage of a pipeline: one class per sort of stage."""

    name: str
    """Its name, which is also that of the folder that it writes."""
    title: str
    """What it does, for the report."""

    def run(self, work: Work) -> StageOutcome:
        """Runs the stage, or goes on where it was stopped; the earlier ones are finished."""
        raise NotImplementedError


class Questions(PipelineStage):
    """Generates questions from the corpus, and writes the pages that practice may use."""

    def run(self, work: Work) -> StageOutcome:
        """See `PipelineStage.run`.

        Raises:
            DataError: The corpus gives no questions for training or test.
        """
        pipeline, folder = work.pipeline, work.out / self.name
        passages = list(open_corpus(find_corpus(pipeline.corpus)))
        held_out = held_out_by(passages, pipeline.held_out)
        left = [p for number, p in enumerate(passages) if held_out is None or number not in held_out.pages]
        write_corpus(work.out / "corpus.jsonl", left)
        if not folder.exists():
            needed, source = ["train"] if pipeline.own_test else ["train", "test"], pipeline.corpus
            write_set(passages, pipeline.spec, folder, held_out, source, work.progress, needed, pipeline.top_k)
        report = read_json(folder / "report.json")
        counts = report["questions"]
        if report["cut_links"]:
            work.say(crossed(report))
        if not pipeline.own_test and not _write_pool(work, "test", pipeline.tests, counts):
            raise DataError(
                f"{pipeline.corpus}: of {counts['test']} test questions none is fit, since they offer their answers or "
                "one search finds their pages: give more pages, other questions.shapes, or your own by test=FILE"
            )
        _write_pool(work, "validation", work.recipe.validation.questions, counts)
        did: StageOutcome = {"passages": len(passages), "held_out_pages": len(passages) - len(left)}
        did.update(counts)
        if report["cut_links"]:
            did |= {"cut_links": report["cut_links"], "crossing": report["crossing"]}
        return did


def _write_pool(work: Work, split: str, most: int, counts: Mapping[str, int]) -> int:
    """Writes the questions of validation or test, chosen by their kind alone; returns their number."""
    if not counts.get(split):
        return 0
    try:
        how = dataclasses.replace(work.pipeline.choice, pool=most)
        return int(write_pool(work.task(work.questions(split)), work.out / split, how)["questions"])
    except NothingLeftError:
        return 0


class Demonstrations(PipelineStage):
    """Writes demonstrations, of ``masked`` spans, of ``reading`` or of ``searching``."""

    @override
    def run(self, work: Work) -> StageOutcome:
        pipeline, folder = work.pipeline, work.out / self.name
        count = getattr(pipeline.demonstrations, self.name)
        if folder.exists():
            return {"episodes": read_yaml(folder / "card.yaml")["episodes"]}
        if not count:
            return {"episodes": 0}
        tokenizer = load_tokenizer(pipeline.model)
        try:
            task = _masked_task(work, count) if self.name == "masked" else work.task(work.questions("train"))
            form = template_format(tokenizer, task.rules.protocol, work.template)
            if self.name == "reading":
                episodes = demonstrate_reading(task, form, count, seed=pipeline.seed)
            else:
                episodes = demonstrate_search(task, form, count, agent=work.recipe.agent, seed=pipeline.seed)
        except (DataError, UsageError) as error:  # small corpora may give questions and no demonstration
            return {"episodes": 0, "left_out": str(error)}
        record = {"kind": self.name, "model": pipeline.model, "seed": pipeline.seed}
        return {"episodes": write_demonstrations(episodes, folder, record)["episodes"]}


def _masked_task(work: Work, count: int) -> Task:
    """Returns masked spans of the pages, without those that validation and test questions need."""
    apart = [file for split in ("validation", "test") if (file := work.questions(split)).exists()]
    spec = {"n": 2 * count, "split": "all", "seed": work.pipeline.seed, "pack": work.pipeline.questions.pack}
    spec["hold_out"] = [str(file) for file in apart if file.stat().st_size]
    options = work.pipeline.env_options | {"corpus": str(work.out / "corpus.jsonl"), "questions": spec}
    return load_task(find_env(MASKED), **options)


@dataclass(frozen=True, slots=True)
class Practice(PipelineStage):
    """Trains on demonstrations, each of which is read about once."""

    demonstrations: str
    """Name of the stage that wrote them."""

    @override
    def run(self, work: Work) -> StageOutcome:
        count = work.done[self.demonstrations]["episodes"]
        if count < FEWEST:
            return {"left_out": f"{count} demonstrations are too few"}
        steps = count // FEWEST
        values = [
            f"model={work.practised}",
            f"method.demonstrations={work.out / self.demonstrations / EPISODES}",
            f"method.batch={FEWEST}",
            f"steps={steps}",
            f"seed={work.pipeline.seed}",
            override_of("template", work.template),
            f"checkpoint.every={max(1, steps // 4)}",
            *work.pipeline.demonstrations.values,
        ]
        return work.trained(load_recipe(WARM[self.demonstrations], values, work.say), work.out / self.name)


class Selected(PipelineStage):
    """Chooses the questions of training by pass rate."""

    @override
    def run(self, work: Work) -> StageOutcome:
        task = work.task(work.questions("train"))
        how = dataclasses.replace(work.pipeline.choice, temperature=work.recipe.rollout.temperature)
        with work.model(work.practised, task) as (agent, models):
            try:
                report = select(task, agent, models, work.out / self.name, how, work.progress)
            except NothingLeftError as error:  # which ends no pipeline
                return {"train": 0, "left_out": str(error)}
        return {"train": report["questions"], "pass_rate_again": report["pass_rate_again"]}


class Reinforced(PipelineStage):
    """Trains by reinforcement on the chosen questions."""

    @override
    def run(self, work: Work) -> StageOutcome:
        selected, recipe = work.done["selected"], work.recipe
        if (count := selected["train"]) < FEWEST:
            return {"left_out": selected.get("left_out", f"{count} questions are too few")}
        file = work.out / "validation" / SELECTED
        changes = {"env_options": work.options(file)} if file.exists() else {"every": 0, "env_options": {}}
        fitted = dataclasses.replace(
            recipe,
            env=ENV,
            env_options=work.options(work.out / "selected" / SELECTED),
            rollout=dataclasses.replace(recipe.rollout, questions=min(recipe.rollout.questions, count)),
            validation=dataclasses.replace(recipe.validation, **changes),
            checkpoint=dataclasses.replace(recipe.checkpoint, every=1),
        )
        return work.trained(fitted, work.out / self.name)


class ScoresStage(PipelineStage):
    """Evaluates the model of each stage on the test questions."""

    @override
    def run(self, work: Work) -> StageOutcome:
        task = work.test_task()
        rows: dict[str, str] = {}
        for row, model in ("before", work.pipeline.model), ("practised", work.practised), ("reinforced", work.best):
            rows.setdefault(model, row)  # a model that a stage left as it was is evaluated once
        chosen = [(row, model, None) for model, row in rows.items()]
        scores: dict[str, dict[str, Any]] = {}
        for row, model, agent_name in (*chosen, ("closed book", work.best, "direct")):
            folder = work.out / self.name / row.replace(" ", "-")
            with work.model(model, task, agent_name) as (agent, models):
                options = EvalOptions(resume=holds_run(folder))
                measured = evaluate(task, agent, folder, models, options, progress=partial(work.progress, row))
            names = ("n", "em", "em_ci95", "f1", "searches", "title_recall", "legal")
            scores[row] = {name: measured.get(name) for name in names}
        return {"scores": scores}


class Delivery(PipelineStage):
    """Copies the best adapter to where it is found, with what it was made by."""

    @override
    def run(self, work: Work) -> StageOutcome:
        best, folder = Path(work.best), work.out / self.name
        if not best.is_dir():
            return {"adapter": str(best), "left_out": "nothing was trained"}
        shutil.rmtree(folder, ignore_errors=True)
        with appearing(folder) as building:
            copy_adapter(best, building)
            write_json(building / MADE, {"pipeline": dataclasses.asdict(work.pipeline), "stages": work.done})
        return {"adapter": str(folder)}


def copy_adapter(checkpoint: Path, out: Path) -> None:
    """Copies a checkpoint to a folder without what only training needs, and without links that lead out of it."""
    unwanted = shutil.ignore_patterns("trainer.json", "state*", "*.pt")

    def ignored(folder: str, names: list[str]) -> set[str]:
        return unwanted(folder, names) | {name for name in names if leads_out(Path(folder, name), checkpoint)}

    shutil.copytree(checkpoint, out, ignore=ignored, dirs_exist_ok=True)


ORDER: Final[Mapping[str, PipelineStage]] = {
    stage.name: stage
    for stage in (
        Questions("questions", "questions made from the documents"),
        Demonstrations("masked", "masked spans demonstrated"),
        Practice("filler", "practised filling in", "masked"),
        Demonstrations("reading", "reading practice written"),
        Practice("reader", "practised reading", "reading"),
        Demonstrations("searching", "searches demonstrated"),
        Practice("searcher", "practised searching", "searching"),
        Selected("selected", "questions chosen"),
        Reinforced("reinforced", "reinforcement learning"),
        ScoresStage("scores", "scored on test questions"),
        Delivery("adapter", "the adapter"),
    )
}
"""The stages by name, in their order."""


def run_stage(work: Work, name: str) -> None:
    """Runs one stage unless it is finished; the earlier ones must be.

    Args:
        work: A pipeline whose folder is open; see `opened`.
        name: Name of the stage.

    Raises:
        DataError: The corpus gives no questions.
    """
    if name in work.done:
        return
    work.say(f"stage {list(ORDER).index(name) + 1} of {len(ORDER)}: {name}")
    started = time.perf_counter()
    did = ORDER[name].run(work)
    did["seconds"] = round(time.perf_counter() - started, 1)
    work.done[name] = did
    write_json(work.out / DONE, work.done)
    if why := did.get("left_out"):
        work.say(f"  left out: {why}")

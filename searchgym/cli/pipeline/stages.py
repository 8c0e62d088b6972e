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

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from searchgym.agents.base import LoadedAgent, load_agent, with_max_tokens
from searchgym.cli.pipeline.folder import DONE, PIPELINE, check_out
from searchgym.cli.pipeline.pipeline import WARM, Pipeline
from searchgym.cli.pipeline.selection import SELECTED, select, write_pool
from searchgym.corpora.documents import open_corpus
from searchgym.corpora.files import read_json, write_atomic
from searchgym.corpora.folders import lock_folder
from searchgym.corpora.passages import write_corpus
from searchgym.envs.data import find_corpus
from searchgym.envs.registration import find_env
from searchgym.envs.task import Task, load_task
from searchgym.errors import DataError, NothingLeftError, UsageError
from searchgym.eval.run_folder import holds_run
from searchgym.eval.runner import EvalOptions, evaluate, write_json
from searchgym.options import plain
from searchgym.options.yaml import read_yaml
from searchgym.questions.report import crossed
from searchgym.questions.source import held_out_by
from searchgym.questions.storage import write_set
from searchgym.reading import leads_out
from searchgym.retrieval.cards import Progress
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.models import Loading, Model, opened_models
from searchgym.rollout.tokens import TokenFormat
from searchgym.train.demonstrations.oracle import demonstrate_search
from searchgym.train.demonstrations.reading import demonstrate_reading
from searchgym.train.demonstrations.write import EPISODES, write_demonstrations
from searchgym.train.loop.assembly import train
from searchgym.train.recipe.load import load_recipe
from searchgym.train.recipe.recipe import Recipe

MADE: Final = "made.json"
"""File beside an adapter that says how it was made."""
ENV: Final = "searchgym/Corpus-v0"
MASKED: Final = "searchgym/MaskedSpan-v0"
FEWEST: Final = 8
"""Demonstrations, or training questions, below which a stage is left out: they are too few for one step."""
Steps = Callable[[Recipe], AbstractContextManager[Callable[[Mapping[str, float]], None]]]
"""Function that opens a display of a training's steps."""


@dataclass(slots=True)
class Work:
    """A pipeline at work in its folder."""

    pipeline: Pipeline
    out: Path
    progress: Progress
    """Called with (stage, done, whole)."""
    steps: Steps
    """Shows the steps of trainings."""
    say: Callable[[str], None]
    """Shows the user a line of text."""
    done: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """What each finished stage did."""

    # -- what stages share -----------------------------------------------------------------------------------------

    def questions(self, split: str) -> Path:
        """Returns the file of a split of the generated questions."""
        return self.out / "questions" / "questions" / f"{split}.jsonl"

    def options(self, questions: Path) -> dict[str, Any]:
        """Returns the environment options that ask the questions of a file."""
        corpus = str(self.out / "corpus.jsonl")
        return {"reward": "em", **self.pipeline.env_options, "questions": str(questions), "corpus": corpus}

    def task(self, questions: Path) -> Task:
        """Loads the environment that asks the questions of a file."""
        return load_task(find_env(ENV), **self.options(questions))

    @property
    def practised(self) -> str:
        """Model after the demonstrations, as far as there were any."""
        for name in ("searcher", "reader", "filler"):
            if self.done.get(name, {}).get("checkpoint"):
                return str(self.done[name]["checkpoint"])
        return self.pipeline.model

    @property
    def recipe(self) -> Recipe:
        """Recipe of the reinforcement learning, before it is fitted to the questions."""
        return dataclasses.replace(self.pipeline.recipe, model=self.practised, seed=self.pipeline.seed)

    @contextlib.contextmanager
    def model(self, name: str, task: Task, agent: str | None = None) -> Iterator[tuple[LoadedAgent, dict[str, Model]]]:
        """Loads a model for the roles of an agent, the recipe's by default, and closes it when the block ends."""
        recipe = self.recipe
        chosen = with_max_tokens(load_agent(agent or recipe.agent), recipe.rollout.max_tokens)
        how = Loading(dtype=self.pipeline.dtype)
        with opened_models(dict.fromkeys(chosen.roles, name), task.rules.protocol, how) as models:
            yield chosen, models

    def trained(self, recipe: Recipe, folder: Path) -> dict[str, Any]:
        """Trains by a recipe, or goes on with a run; returns what it came to."""
        with self.steps(recipe) as report:
            result = train(recipe, folder, resume=(folder / "recipe.yaml").exists(), report=report)
        scores = [row["validation/em"] for row in result.rows if "validation/em" in row]
        return {
            "steps": result.progress.step,
            "checkpoint": str(result.checkpoint),
            "best": str(result.best or result.checkpoint),
            "best_step": result.progress.best_step,
            "validation": [round(score, 4) for score in scores],
        }


# -- stages --------------------------------------------------------------------------------------------------------


def generate(work: Work) -> dict[str, Any]:
    """Generates questions from the corpus, and writes the pages that practice may use."""
    pipeline = work.pipeline
    passages = list(open_corpus(find_corpus(pipeline.corpus)))
    held_out = held_out_by(passages, pipeline.held_out)
    left = [p for number, p in enumerate(passages) if held_out is None or number not in held_out.pages]
    write_corpus(work.out / "corpus.jsonl", left)
    folder = work.out / "questions"
    needed = ["train", *([] if pipeline.own_test else ["test"])]
    if not folder.exists():
        write_set(passages, pipeline.spec, folder, held_out, pipeline.corpus, work.progress, needed, pipeline.top_k)
    report = read_json(folder / "report.json")
    made = report["questions"]
    if report["cut_links"]:
        work.say(crossed(report))
    if not pipeline.own_test and not pool_for(work, "test", made):
        raise DataError(
            f"{pipeline.corpus}: of {made['test']} test questions none is fit, since they offer their answers or one "
            "search finds their pages: give more pages, other questions.shapes, or test=FILE with questions of your own"
        )
    pool_for(work, "validation", made)
    told = {name: report[name] for name in ("cut_links", "crossing")} if report["cut_links"] else {}
    return {"passages": len(passages), "held_out_pages": len(passages) - len(left), **made, **told}


def pool_for(work: Work, split: str, counts: Mapping[str, int]) -> int:
    """Writes the questions of validation or test, chosen by their kind alone; returns their number."""
    most = {"test": work.pipeline.tests, "validation": work.recipe.validation.questions}[split]
    if not counts.get(split):
        return 0
    try:
        how = dataclasses.replace(work.pipeline.choice, pool=most)
        return int(write_pool(work.task(work.questions(split)), work.out / split, how)["questions"])
    except NothingLeftError:
        return 0


def demonstrated(work: Work, name: str) -> dict[str, Any]:
    """Writes demonstrations, of ``masked`` spans, of ``reading`` or of ``searching``."""
    wanted = getattr(work.pipeline.demonstrations, name)
    folder = work.out / name
    if folder.exists():
        return {"episodes": read_yaml(folder / "card.yaml")["episodes"]}
    if not wanted:
        return {"episodes": 0}
    tokenizer = load_tokenizer(work.pipeline.model)
    seed, agent = work.pipeline.seed, work.recipe.agent
    try:
        task = masked_task(work, wanted) if name == "masked" else work.task(work.questions("train"))
        form = TokenFormat(tokenizer, task.rules.protocol, chat=bool(tokenizer.chat_template))
        if name == "reading":
            shown = demonstrate_reading(task, form, wanted, seed=seed)
        else:
            shown = demonstrate_search(task, form, wanted, agent=agent, seed=seed)
    except (DataError, UsageError) as error:  # small corpora may give questions and no demonstration
        return {"episodes": 0, "left_out": str(error)}
    made = {"kind": name, "model": work.pipeline.model, "seed": seed}
    return {"episodes": write_demonstrations(shown, folder, made)["episodes"]}


def masked_task(work: Work, wanted: int) -> Task:
    """Returns masked spans of the pages, without those that validation and test questions need."""
    apart = [str(file) for split in ("validation", "test") if (file := work.questions(split)).exists()]
    apart = [file for file in apart if Path(file).stat().st_size]
    spec = {"n": 2 * wanted, "split": "all", "seed": work.pipeline.seed, "hold_out": apart}
    spec["pack"] = work.pipeline.questions.pack
    options = work.pipeline.env_options | {"corpus": str(work.out / "corpus.jsonl"), "questions": spec}
    return load_task(find_env(MASKED), **options)


def warmed(work: Work, shown: str) -> dict[str, Any]:
    """Trains on the demonstrations of ``masked`` spans, ``reading`` or ``searching``: each is read about once."""
    count = work.done[shown]["episodes"]
    if count < FEWEST:
        return {"left_out": f"{count} demonstrations are too few"}
    name = {"masked": "filler", "reading": "reader", "searching": "searcher"}[shown]
    steps = count // FEWEST
    values = [
        f"model={work.practised}",
        f"method.demonstrations={work.out / shown / EPISODES}",
        f"method.batch={FEWEST}",
        f"steps={steps}",
        f"seed={work.pipeline.seed}",
        f"checkpoint.every={max(1, steps // 4)}",
        *work.pipeline.demonstrations.values,
    ]
    return work.trained(load_recipe(WARM[shown], values, work.say), work.out / name)


def choose(work: Work) -> dict[str, Any]:
    """Chooses the questions of training by pass rate."""
    task = work.task(work.questions("train"))
    how = dataclasses.replace(work.pipeline.choice, temperature=work.recipe.rollout.temperature)
    with work.model(work.practised, task) as (agent, models):
        try:
            report = select(task, agent, models, work.out / "selected", how, work.progress)
        except NothingLeftError as error:  # which ends no pipeline
            return {"train": 0, "left_out": str(error)}
    return {"train": report["questions"], "pass_rate_again": report["pass_rate_again"]}


def reinforce(work: Work) -> dict[str, Any]:
    """Trains by reinforcement on the chosen questions."""
    count = work.done["selected"]["train"]
    if count < FEWEST:
        return {"left_out": work.done["selected"].get("left_out", f"{count} questions are too few")}
    recipe = work.recipe
    env = work.options(work.out / "selected" / SELECTED)
    rollout = dataclasses.replace(recipe.rollout, questions=min(recipe.rollout.questions, count))
    validation = dataclasses.replace(recipe.validation, env_options=work.options(work.out / "validation" / SELECTED))
    if not (work.out / "validation" / SELECTED).exists():
        validation = dataclasses.replace(validation, every=0, env_options={})
    checkpoint = dataclasses.replace(recipe.checkpoint, every=1)
    fitted = dataclasses.replace(
        recipe,
        env=ENV,
        env_options=env,
        rollout=rollout,
        validation=validation,
        checkpoint=checkpoint,
    )
    return work.trained(fitted, work.out / "reinforced")


def exam(work: Work) -> Task:
    """Loads the environment that asks the test questions; the user's own search all pages, held out ones too."""
    own = work.pipeline.own_test
    if own is None:
        return work.task(work.out / "test" / SELECTED)
    options: dict[str, Any] = {**work.options(Path(own)), "corpus": work.pipeline.corpus}
    return load_task(find_env(ENV), **options)


def score(work: Work) -> dict[str, Any]:
    """Evaluates the model of each stage on the test questions."""
    task = exam(work)
    best = work.done["reinforced"].get("best", work.practised)
    chosen = {"before": work.pipeline.model, "practised": work.practised, "reinforced": best, "closed book": best}
    scores: dict[str, Any] = {}
    for row, model in chosen.items():
        if (row, model) == ("practised", chosen["before"]) or (row, model) == ("reinforced", chosen["practised"]):
            continue
        folder = work.out / "scores" / row.replace(" ", "-")
        with work.model(model, task, "direct" if row == "closed book" else None) as (agent, models):
            options = EvalOptions(resume=holds_run(folder))
            found = evaluate(task, agent, folder, models, options, progress=lambda *n, r=row: work.progress(r, *n))
        names = ("n", "em", "em_ci95", "f1", "searches", "title_recall", "legal")
        scores[row] = {name: found.get(name) for name in names}
    return {"scores": scores}


def deliver(work: Work) -> dict[str, Any]:
    """Copies the best adapter to where it is found, with what it was made by."""
    best = Path(work.done["reinforced"].get("best", work.practised))
    building, folder = work.out / ".adapter.building", work.out / "adapter"
    shutil.rmtree(building, ignore_errors=True)
    if not best.is_dir():
        return {"adapter": str(best), "left_out": "nothing was trained"}
    unwanted = shutil.ignore_patterns("trainer.json", "state*", "*.pt")
    shutil.copytree(best, building, ignore=lambda at, names: unwanted(at, names) | _leading_out(best, Path(at), names))
    write_json(building / MADE, {"pipeline": dataclasses.asdict(work.pipeline), "stages": work.done})
    shutil.rmtree(folder, ignore_errors=True)
    building.replace(folder)
    return {"adapter": str(folder)}


def _leading_out(folder: Path, at: Path, names: Iterable[str]) -> set[str]:
    """Returns those names at a place in a folder that are links out of the folder."""
    return {name for name in names if leads_out(at / name, folder)}


ORDER: Final[dict[str, Callable[[Work], dict[str, Any]]]] = {
    "questions": generate,
    "masked": lambda work: demonstrated(work, "masked"),
    "filler": lambda work: warmed(work, "masked"),
    "reading": lambda work: demonstrated(work, "reading"),
    "reader": lambda work: warmed(work, "reading"),
    "searching": lambda work: demonstrated(work, "searching"),
    "searcher": lambda work: warmed(work, "searching"),
    "selected": choose,
    "reinforced": reinforce,
    "scores": score,
    "adapter": deliver,
}
"""The stages in their order."""


def run_pipeline(work: Work) -> dict[str, Any]:
    """Runs the stages that are not finished, one after the other; returns what all of them did.

    Args:
        work: A pipeline whose folder is open; see `opened`.

    Raises:
        UsageError: The corpus gives no questions.
    """
    for name in ORDER:
        run_stage(work, name)
    return work.done


def run_stage(work: Work, name: str) -> None:
    """Runs one stage unless it is finished; the earlier ones must be."""
    if name in work.done:
        return
    work.say(f"stage {list(ORDER).index(name) + 1} of {len(ORDER)}: {name}")
    started = time.perf_counter()
    did = ORDER[name](work)
    work.done[name] = did | {"seconds": round(time.perf_counter() - started, 1)}
    write_json(work.out / DONE, work.done)
    if why := did.get("left_out"):
        work.say(f"  left out: {why}")


@contextlib.contextmanager
def opened(work: Work, resume: bool) -> Iterator[None]:
    """Makes the folder of a pipeline, or takes up what was done in it, and locks it until the block ends.

    Raises:
        RunExistsError: The folder holds a pipeline and `resume` is false, or other files, or it is in use.
        UsageError: It holds another pipeline, or none to go on with.
    """
    record, mine = work.out / PIPELINE, plain(work.pipeline)
    check_out(work.out, resume)
    with lock_folder(work.out):
        check_out(work.out, resume)  # again: another process may have begun meanwhile
        before = read_yaml(record) if record.exists() else {}
        differing = [key for key, value in mine.items() if before.get(key) != value]
        if before and differing and resume:
            raise UsageError(
                f"{work.out} holds a pipeline with another {', '.join(differing)}: resume with the same values, or "
                "choose another --out"
            )
        if differing:
            shutil.rmtree(work.out / "questions", ignore_errors=True)  # of a pipeline that finished no stage
            with write_atomic(record) as file:
                file.write(yaml.safe_dump(mine, sort_keys=False, allow_unicode=True).encode())
        if (work.out / DONE).exists():
            work.done.update(read_json(work.out / DONE))
        yield

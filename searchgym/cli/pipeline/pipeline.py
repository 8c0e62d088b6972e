"""Pipelines: one YAML file says how a model goes from a corpus to a trained adapter, stage by stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from annotated_types import Ge

from searchgym.cli.pipeline.selection_options import Selection
from searchgym.corpora.documents import convert_documents, is_documents
from searchgym.corpora.questions import read_questions
from searchgym.envs.data import find_corpus
from searchgym.errors import CardError, DataMissingError, UsageError
from searchgym.options import Options, kind_name, read
from searchgym.options.cards import find_card, is_path
from searchgym.options.yaml import read_source
from searchgym.questions.spec import GeneratedSpec
from searchgym.rollout.folders import local_folder, model_folder
from searchgym.rollout.sampler import Dtype
from searchgym.train.recipe.load import load_recipe, override_values
from searchgym.train.recipe.recipe import Recipe, recipe_keys

KIND: Final = "pipelines"
WARM: Final = {"masked": "smol-search", "reading": "smol-read", "searching": "smol-search"}
"""Recipes that train on demonstrations, by what is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstrationOptions(Options):
    """How much is demonstrated before the model learns by itself."""

    masked: Annotated[int, Ge(0)] = 0
    """Number of episodes in which an oracle fills in masked spans of the pages, before all other practice
    (MaskSearch's order); 0 leaves the stage out."""
    reading: Annotated[int, Ge(0)] = 240
    """Number of contexts in which questions about given pages are answered; 0 leaves the stage out."""
    searching: Annotated[int, Ge(0)] = 160
    """Number of episodes in which an oracle searches; 0 leaves the stage out."""
    values: list[str] = field(default_factory=list)
    """Values of the recipes ``smol-read`` and ``smol-search``, ``key=value``, which train on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforceOptions(Options):
    """Recipe of the reinforcement learning, and values that it gets."""

    recipe: str = "smol-grpo"
    """Name or path of a recipe with ``method: policy``."""
    values: list[str] = field(default_factory=list)
    """Values of the recipe, ``key=value``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Options):
    """Everything that defines a way from a corpus to a trained adapter."""

    name: str
    summary: str
    corpus: str = ""
    """Folder of documents, corpus file or corpus card; must be given."""
    hold_out: list[str] = field(default_factory=list)
    """Question files reserved for evaluation; no training stage asks about their gold pages and entities."""
    model: str = "smollm2-searcher"
    """Model to start from: an adapter, which is trained on, or a whole model, which gets one."""
    seed: int = 0
    env_options: dict[str, Any] = field(default_factory=dict)
    """Rules of the environment, the same in every stage."""
    questions: GeneratedSpec = field(default_factory=GeneratedSpec)
    """Which questions are generated from the corpus."""
    demonstrations: DemonstrationOptions = field(default_factory=DemonstrationOptions)
    selection: Selection = field(default_factory=Selection)
    """Which training questions reinforcement learning asks."""
    reinforce: ReinforceOptions = field(default_factory=ReinforceOptions)
    test: Annotated[int, Ge(1)] | str = 60
    """Number of generated test questions, or a file of questions of your own, of which all are asked. Their gold pages
    and entities are held out, too."""

    @property
    def own_test(self) -> str | None:
        """File of the test questions; None if they are generated."""
        return self.test if isinstance(self.test, str) else None

    @property
    def tests(self) -> int:
        """Number of test questions, or the maximum of generated ones."""
        return len(read_questions(self.test)) if isinstance(self.test, str) else self.test

    @property
    def held_out(self) -> list[str]:
        """All question files reserved for evaluation; no training stage asks about their gold pages and entities."""
        return [*self.hold_out, *([self.own_test] if self.own_test else [])]

    @property
    def top_k(self) -> int:
        """Number of hits per search in the environment."""
        return int(self.env_options.get("top_k", 3))

    @property
    def spec(self) -> GeneratedSpec:
        """What is generated: with the pipeline's seed, and no test questions if the user has their own."""
        train, validation, test = self.questions.shares
        if self.own_test and train + validation > 0:
            train, validation, test = train / (train + validation), validation / (train + validation), 0.0
        seed = self.seed + self.questions.seed
        return dataclasses.replace(self.questions, seed=seed, shares=(train, validation, test))

    @property
    def recipe(self) -> Recipe:
        """The recipe of the reinforcement learning, with its values."""
        return load_recipe(self.reinforce.recipe, self.reinforce.values)

    @property
    def dtype(self) -> Dtype:
        """Data type that the pipeline's models are sampled in: that of their training."""
        return self.recipe.optimizer.autocast or "float32"

    @property
    def choice(self) -> Selection:
        """The selection of training questions."""
        return dataclasses.replace(self.selection, seed=self.seed + self.selection.seed)


def load_pipeline(name: str, overrides: Iterable[str] = ()) -> Pipeline:
    """Reads a pipeline and its overrides; its files are there, and named by absolute paths.

    Args:
        name: Name of a shipped pipeline, or a path to a YAML file.
        overrides: ``key=value``, the key dotted, the value as YAML.

    Raises:
        UnknownNameError: No such pipeline, key, corpus or model; the nearest is suggested.
        CardError: The file or a value does not fit.
        UsageError: No corpus is named, or a number is out of range.
        DataError: The folder of documents holds none.
        DataMissingError: A file or folder that is named is not there.
    """
    path = find_card(KIND, name)
    data, source = read_source(path)
    pipeline = read(Pipeline, data, override_values(data, list(overrides), recipe_keys(Pipeline), source))
    if not pipeline.corpus:
        raise UsageError(f"{pipeline.name} needs your documents: searchgym train {pipeline.name} corpus=DIR")
    if pipeline.tests < 1:
        raise CardError(f"{path}: test: {pipeline.test} holds no questions")
    if not pipeline.recipe.method.compares:
        method = kind_name(pipeline.recipe.method)
        raise CardError(f"{path}: reinforce.recipe {pipeline.recipe.name} has method {method}: policy")
    for name in WARM.values():
        load_recipe(name, [*pipeline.demonstrations.values, "method.demonstrations=x"])
    corpus = find_corpus(pipeline.corpus)
    if is_documents(corpus):
        next(convert_documents(corpus), None)  # refuses a folder without documents, before anything is loaded
    for file in pipeline.hold_out:
        if not Path(file).is_file():
            raise DataMissingError("no such question file: check hold_out", file)
    model_folder(pipeline.model)
    local, named = local_folder(pipeline.model), is_path(pipeline.model, "models", "pretrained")
    return dataclasses.replace(  # absolute paths, so that it resumes from any folder
        pipeline,
        corpus=str(corpus.resolve()) if is_path(pipeline.corpus, "corpora") else pipeline.corpus,
        hold_out=[str(Path(file).resolve()) for file in pipeline.hold_out],
        test=str(Path(pipeline.test).resolve()) if isinstance(pipeline.test, str) else pipeline.test,
        model=str(local.resolve()) if named and local is not None else pipeline.model,
    )

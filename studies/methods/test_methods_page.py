"""docs/methods: the values of large recipes beside their sources are the recipes' own, and all commands load."""

import functools
import re
import shlex
from pathlib import Path

import pytest
import yaml
from credit_terms import read_terms

from searchgym.options import Kind, kind_name
from searchgym.options.cards import list_cards
from searchgym.train.recipe.load import load_recipe

pytestmark = pytest.mark.study
ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path.read_text() for path in sorted((ROOT / "docs/methods").glob("*.md"))}
FAMILIES = ["policy_gradient", "calls", "rewards", "teams", "data", "open_answers"]
SAME = {"qwen2.5-7b-praise": "qwen2.5-7b-ppo"}  # what a section does not list is another's
OTHER = {("qwen2.5-7b-lora-vllm", "optimizer.lr"): 1e-5}  # said in the row's last column
PLAIN = {"name", "summary", "method", "model", "env", "agent"}


def sections():
    """Returns the rows (value, here) by the recipes that a section is about."""
    found = {}
    pages = PAGES["large_recipes"] + PAGES["large_recipes_teams"]
    for names, body in re.findall(r"^Recipes?: (.*?)\.\n(.*?)(?=^## |\Z)", pages, re.MULTILINE | re.DOTALL):
        rows = re.findall(r"^\| `([\w.]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", body, re.MULTILINE)
        found[tuple(re.findall(r"`([^`]+)`", names))] = {key: here for key, here, *_ in rows}
    return found


SECTIONS = {name: rows for names, rows in sections().items() for name in names}


def rows_of(name):
    return (rows_of(SAME[name]) if name in SAME else {}) | SECTIONS[name]


def claimed(name):
    """Returns the dotted keys of a recipe that its file does not mark as ours."""
    lines, ours, path, depths = list_cards("train")[name].read_text().splitlines(), None, [], []
    keys = []
    for line in lines:
        entry = re.match(r"^( *)([\w]+):(.*)$", line)
        if not entry:
            continue
        depth, key, rest = len(entry[1]), entry[2], entry[3]
        while depths and depths[-1] >= depth:
            depths.pop()
            path.pop()
        if ours is not None and depth <= ours[0] and not (ours[1] and depth == ours[0]):
            ours = None
        depths.append(depth)
        path.append(key)
        if "# ours" in rest and ours is None:
            ours = (depth, "as are the next keys" in rest)
        if ours is None and rest.partition("#")[0].strip():
            keys.append(".".join(path))
            continue
        if ours is not None and "# ours" in rest and rest.partition("#")[0].strip() and not ours[1]:
            ours = None  # a single line
    return [key for key in keys if key not in PLAIN and not key.startswith("validation.env_options")]


def plain(value):
    if isinstance(value, Kind):
        return kind_name(value)
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def inside(value, name):
    return value[name] if isinstance(value, dict) else getattr(value, name)


def test_every_large_recipe_has_a_section():
    assert set(SECTIONS) == {name for name in list_cards("train") if name.startswith("qwen2.5")}


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_the_page_has_the_recipes_own_values(name):
    recipe = load_recipe(name)
    for key, here in rows_of(name).items():
        section, _, inner = key.partition(".")
        if section == "credit":
            assert {inner: recipe.credit[inner]} == read_terms({inner: yaml.safe_load(here)}), key
            continue
        value = plain(functools.reduce(inside, key.split("."), recipe))
        want = yaml.safe_load(here) if not isinstance(value, str) else here
        assert value == OTHER.get((name, key), float(want) if isinstance(value, float) else want), key


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_every_line_that_is_not_marked_as_ours_is_on_the_page(name):
    assert len(claimed(name)) > 15
    assert set(claimed(name)) - set(rows_of(name)) == set()


def test_a_line_that_nobody_checked_would_be_seen():
    """Lines marked as ours are left out one by one, whole sections with their heading."""
    keys = claimed("qwen2.5-3b-grpo-vllm")
    assert "rollout.questions" in keys and "rollout.sampler" not in keys and "rollout.sampler.sleep" not in keys
    assert "learner.backend.ranks" not in keys and "loss.importance_cap" not in keys and "loss.clip_low" in keys


SYSTEMS = """
GRPO-CSV, Search-R2, SAAS, SS-GRPO, RubricEM, APEX-Searcher, Beyond the Mode, Stop Regressing, PAV, ReSeek, VPO,
ACQO, UnityMAS-O, OpenSeeker, Sibling-GRPO, BN-GSPO, DeepSearch, ReST-RL, MARS2, DR-Rubric, SCMA, E2Rank,
MergeMix, WSM, EntroDrop, CLUE, SRLM, RLM, 2502.12118, ReaLHF, HAGE, DiffuRank, 2508.20798, LongRLVR, GiGPO,
GDCR, SAPO, Agentic-RAG, Search-R1, GRPO, Dr.GRPO, DAPO, GSPO, RLOO, REINFORCE++, Stratified GRPO, LLDS, VPR,
CaRR, LongTraceRL, TreeRL, Rejection sampling, IRCoT, M-ASK, JADE, PRAISE, WCR, SSP, MaskSearch, Behavior
Priming, ZeroSearch, SearchGym, AI-SearchPlanner, ParallelSearch, MMOA-RAG, CoSearch, HierSearch, IKEA,
AdaSearch, Tournament-GRPO, SearchLLM, SSRL, ASearcher, SenseNova-MARS, TimeSearch-R, VRAG-RL, VSearcher,
Chain-of-Focus, Glance-or-Gaze, Gen-Searcher, SpaceTools, DiffuCoder, PolyStep, JOWA, IWOCS, FlickerFusion,
DGPO, HHNAS, ExVerus, BFS-Prover-V2, COS(M+O)S, ContextEvolve, How Much Backtracking
""".replace("\n", " ")
"""Systems that search agents are compared with or descend from: each is here, or has a reason why not."""


@pytest.mark.parametrize("system", [name.strip() for name in SYSTEMS.split(",")])
def test_every_system_has_a_place_or_a_reason(system):
    assert any(system in text for text in PAGES.values()), system


def test_every_method_has_one_section_and_one_row_of_the_index():
    rows = re.findall(r"^\| \[([^]]+)\]\((\w+)\.md#", PAGES["index"], re.MULTILINE)
    sections = [(title, page) for page in FAMILIES for title in re.findall(r"^## (.*)$", PAGES[page], re.MULTILINE)]
    assert rows == sections and len(rows) > 40
    for page in FAMILIES:
        for part in PAGES[page].split("\n## ")[1:]:
            assert re.findall(r"^- \*\*(Source|Here|Run|Seen):\*\*", part, re.MULTILINE) == [
                "Source",
                "Here",
                "Run",
                "Seen",
            ], part


@pytest.mark.slow
def test_every_command_of_the_pages_is_a_recipe_that_loads():
    commands = [command for page in FAMILIES for command in re.findall(r"`searchgym train ([^`]+)`", PAGES[page])]
    assert len(commands) > 25
    for command in commands:
        name, *overrides = shlex.split(command)
        load_recipe(name, overrides)

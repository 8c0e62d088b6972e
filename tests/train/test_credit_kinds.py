"""Credit terms are found by name: shipped ones, those of packages, and a user's own; wrong ones are refused."""

import dataclasses
import re
import sys

import pytest
from credit_terms import read_terms
from test_credit import team

from searchgym.agents import load_agent
from searchgym.errors import CardError, UsageError
from searchgym.named import code_refused
from searchgym.options import Unloaded, find_kind, kinds, name_of
from searchgym.options import kinds as kinds_module
from searchgym.train import dump_recipe, load_recipe, read_recipe
from searchgym.train.credit.credit import Credit
from searchgym.train.credit.term import Term
from searchgym.train.credit.terms.outcome import Outcome
from searchgym.train.credit.terms.waypoint import Waypoint
from searchgym.train.recipe.keys import check_credit

ROLES = load_agent("search-r1").roles
HEAD = """from dataclasses import dataclass
from typing import Annotated
from annotated_types import Ge
from searchgym.train import Term
"""
THRIFT = """
@dataclass(frozen=True, slots=True, kw_only=True)
class Thrift(Term):
    price: Annotated[float, Ge(0)] = 0.5
    def of_episode(self, episode, context):
        return [-self.price * len(episode.searches)] * len(episode.calls)
"""


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Returns a function that installs a package: its module, the code of it, and names of credit terms in it."""

    def install(module, code, **terms):
        folder = tmp_path / "site"
        info = folder / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"{module}.py").write_text(f"open('imported-{module}', 'w').close()\n{HEAD}{code}")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        points = "".join(f"{name} = {module}:{cls}\n" for name, cls in terms.items())
        (info / "entry_points.txt").write_text(f"[searchgym.train.credit.terms]\n{points}")
        kinds_module.__globals__["_listed"].cache_clear()

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "site")
    before = set(sys.modules)
    yield install
    for name in set(sys.modules) - before:
        del sys.modules[name]
    kinds_module.__globals__["_listed"].cache_clear()


def rewards(recipe):
    """Returns the rewards that a recipe gives two calls of an episode with reward 1 and three searches."""
    terms = check_credit(recipe, ROLES)
    episode = dataclasses.replace(team([{"role": "searcher"}] * 2, reward=1.0), searches=[None] * 3)
    return Credit.of(terms, ROLES, lambda: None).allocate([episode])[0]


def test_every_shipped_term_is_one_documented_class_named_as_its_module():
    assert len(kinds(Term)) == 32
    for name in kinds(Term):
        cls = find_kind(Term, name)
        assert name_of(cls(**({"limit": 2, "cache": 1} if name == "overlong" else {}))) == name
        assert cls.__module__ == f"searchgym.train.credit.terms.{name.replace('-', '_')}"
        assert cls.__name__.lower() == name.replace("-", "")
        assert cls.__doc__.strip() and {"rewards", "of_episode", "value"} & vars(cls).keys()


def test_a_term_of_an_installed_package_is_used_by_its_name(packages):
    packages("my_terms", THRIFT, thrift="Thrift")
    assert kinds(Term)["thrift"] == ["my_terms:Thrift"]
    recipe = load_recipe("tiny-grpo", ["credit={outcome: 1, thrift: {price: 0.1, weight: 2}}", "advantage.chain=call"])
    assert rewards(recipe) == pytest.approx([1 - 0.1 * 3 * 2] * 2)
    assert rewards(load_recipe("tiny-grpo", ["credit={thrift: 1}"])) == [-1.5, -1.5]
    with pytest.raises(CardError, match=r"thrift.price: expected at least 0, got -1"):
        load_recipe("tiny-grpo", ["credit={thrift: {price: -1}}"])


def test_a_class_in_the_working_folder_is_used_by_module_and_name(packages, tmp_path):
    (tmp_path / "own_terms.py").write_text(HEAD + THRIFT)
    recipe = load_recipe("tiny-grpo", ["credit={outcome: 1, 'own_terms:Thrift': {price: 0.1}}"])
    assert rewards(recipe) == pytest.approx([0.7, 0.7])
    assert rewards(load_recipe("tiny-grpo", ["credit={'own_terms:Thrift': 2}"])) == [-3, -3]  # a number is the weight
    (tmp_path / "again.yaml").write_text(dump_recipe(recipe))
    assert read_recipe(tmp_path / "again.yaml") == recipe
    for wrong, said in (("{price: -1}", "price: expected at least 0, got -1"), ("{prize: 1}", "did you mean 'price'")):
        with pytest.raises(CardError, match=f"credit term own_terms:Thrift: {said}|{said}"):
            check_credit(load_recipe("tiny-grpo", [f"credit={{'own_terms:Thrift': {wrong}}}"]), ROLES)


def test_reading_a_recipe_imports_no_class_that_it_names(packages, tmp_path):
    packages("unread_terms", THRIFT)
    recipe = load_recipe("tiny-grpo", ["credit={outcome: 1, 'unread_terms:Thrift': {price: 0.1}}"])
    assert recipe.credit["unread_terms:Thrift"] == Unloaded(Term, "unread_terms:Thrift", {"price": 0.1})
    assert "unread_terms: 1" not in dump_recipe(recipe) and "unread_terms:Thrift:\n    price: 0.1" in dump_recipe(
        recipe
    )
    with code_refused(": not here"), pytest.raises(UsageError, match=r"'unread_terms:Thrift' names code.*: not here"):
        recipe.credit.loaded()
    assert not (tmp_path / "imported-unread_terms").exists() and "unread_terms" not in sys.modules
    assert recipe.credit.loaded()["unread_terms:Thrift"].price == 0.1
    assert (tmp_path / "imported-unread_terms").exists()


def test_two_packages_with_one_name_are_told_apart_by_module_and_class(packages):
    packages("one", THRIFT, thrift="Thrift")
    packages("two", THRIFT, thrift="Thrift")
    with pytest.raises(
        CardError, match=r"'thrift' is in (one:Thrift and in two|two:Thrift and in one):Thrift: write mod"
    ):
        load_recipe("tiny-grpo", ["credit={thrift: 1}"])
    assert rewards(load_recipe("tiny-grpo", ["credit={'two:Thrift': 1}"])) == [-1.5, -1.5]


def test_a_package_cannot_take_a_shipped_name(packages):
    packages("taker", THRIFT, waypoint="Thrift")
    said = r"'waypoint' is in searchgym\.train\.credit\.terms\.waypoint and in taker:Thrift: write module:Class"
    with pytest.raises(CardError, match=said):
        load_recipe("tiny-grpo", ["credit={outcome: 1, waypoint: 1}"])
    shipped = "searchgym.train.credit.terms.waypoint:Waypoint"
    assert load_recipe("tiny-grpo", [f"credit={{outcome: 1, '{shipped}': 1}}"]).credit.loaded()[shipped] == Waypoint()
    assert load_recipe("tiny-grpo").credit == {"outcome": Outcome()}  # others do not mind


BROKEN = {
    "a module that does not import": ("1 / 0", "broken cannot be imported: ZeroDivisionError: division by zero"),
    "no class of this name": ("", "must be one class, a frozen dataclass that inherits Term"),
    "a function": ("def Thrift(group, context): ...", "must be one class, a frozen dataclass that inherits Term"),
    "no term": ("@dataclass(frozen=True)\nclass Thrift: ...", "a frozen dataclass that inherits Term"),
    "no dataclass": ("class Thrift(Term):\n    price: float = 1.0", "a frozen dataclass that inherits Term"),
    "a check that raises": (
        f"{THRIFT}    def check(self, setting):\n        return self.nothing",
        "credit.thrift: its check failed: AttributeError: 'Thrift' object has no attribute 'nothing'",
    ),
    "a check of the class alone that raises": (
        f"{THRIFT}    def problems(self):\n        return {{}}['price']",
        "credit.*thrift: its check failed: KeyError: 'price'",
    ),
    "a check that finds something": (
        f"{THRIFT}    def check(self, setting):\n        yield f'price {{self.price}} of {{setting.terms}}'",
        r"credit.thrift: price 0.5 of \('thrift',\)",
    ),
    "no rewards": (THRIFT.partition("    def")[0], "'thrift': Thrift defines neither rewards nor of_episode"),
    "other arguments": (
        THRIFT.replace("episode, context", "episode"),
        r"'thrift' is called with \(episode, context\), but Thrift.of_episode takes \(episode\)",
    ),
    "other arguments for a group": (
        f"{THRIFT}    def rewards(self, group, context, more):\n        return []",
        r"'thrift' is called with \(group, context\), but Thrift.rewards takes \(group, context, more\)",
    ),
}


@pytest.mark.slow_cases
@pytest.mark.parametrize("fault", BROKEN)
def test_a_term_of_a_package_that_cannot_work_is_refused(fault, packages):
    code, said = BROKEN[fault]
    packages("broken", code, thrift="Thrift")
    with pytest.raises((CardError, UsageError), match=said):
        check_credit(load_recipe("tiny-grpo", ["credit={thrift: 1}"]), ROLES)


@pytest.mark.slow_cases
@pytest.mark.parametrize("fault", [name for name in BROKEN if "import" not in name])
def test_a_users_own_class_that_cannot_work_is_refused(fault, packages, tmp_path):
    code, said = BROKEN[fault]
    (tmp_path / "broken.py").write_text(HEAD + code)
    said = (
        "cannot load 'broken:Thrift'"
        if fault.startswith("no class")
        else said.replace("thrift", "broken:Thrift").replace("credit.*", "credit term ")
    )
    with pytest.raises((CardError, UsageError), match=said):
        check_credit(load_recipe("tiny-grpo", ["credit={'broken:Thrift': 1}"]), ROLES)


@pytest.mark.parametrize(
    ("credit", "said"),
    [
        ("waypoint: {shares: 0.3}", "credit.waypoint.shares: unknown key; did you mean 'share'?"),
        (
            "waypoint: {measure: hits}",
            "credit.waypoint.measure: unknown key. Known: answered, most_names, roles, ",
        ),
        ("waypoint: {share: .nan}", "credit.waypoint.share: expected "),
        ("waypoint: {share: text}", "credit.waypoint.share: expected a number, got 'text'"),
        ("waypoint: {share: true}", "credit.waypoint.share: expected a number, got True"),
        ("waypoint: text", "credit.waypoint"),
        ("waypoint: [0.3]", "credit.waypoint"),
        ("waypoint:", "credit.waypoint"),
        ("waypoint: .nan", "credit.waypoint: expected a finite number, got nan"),
        ("waypoint: {weight: .inf}", "credit.waypoint.weight: expected a finite number, got inf"),
        ("waypoint: {most_names: 1.5}", "credit.waypoint.most_names: expected an integer, got 1.5"),
        ("waypoint: {roles: searcher}", "credit.waypoint.roles: expected a list, got 'searcher'"),
        ("way-point: 1", "credit.way-point: unknown credit term 'way-point'; did you mean 'waypoint'?"),
        ("ssrl_form: 1", "did you mean 'ssrl-form'?"),
        ("3: 1", "credit[3]: expected a string"),
    ],
)
def test_what_is_no_option_is_named_with_its_line(credit, said, tmp_path):
    text = (load_file("tiny-grpo") + "\ncredit:\n  outcome: 1\n  " + credit + "\n").replace(
        "name: tiny-grpo", "name: x"
    )
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(CardError) as caught:
        read_recipe(file)
    line = text.count("\n")
    assert str(caught.value).startswith(f"{file}:{line}: ") and said in str(caught.value), caught.value
    assert "pydantic" not in str(caught.value) and "\n" not in str(caught.value)


def load_file(name):
    from searchgym.options.cards import find_card

    return find_card("train", name).read_text(encoding="utf-8")


def test_the_spelling_before_is_refused_with_the_one_now(tmp_path):
    text = load_file("tiny-grpo") + "\ncredit:\n  terms: {outcome: 1, praise: 1}\n  alpha: 0.7\n  judge: rules\n"
    first = text.count("\n") - 2
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(CardError) as caught:
        read_recipe(tmp_path / "x.yaml")
    head, terms, alpha, judge = str(caught.value).splitlines()
    assert head == "old names of keys:"
    assert terms.startswith(f"{tmp_path}/x.yaml:{first}: credit.terms: write credit: {{outcome: 1, format: 1}}")
    assert alpha == f"{tmp_path}/x.yaml:{first + 1}: credit.alpha: write credit: {{praise: {{alpha: ...}}}}"
    assert judge == f"{tmp_path}/x.yaml:{first + 2}: credit.judge: write judge, at the top"
    for override, now in (
        ("credit.terms=[outcome]", "credit: {outcome: 1, format: 1}"),
        ("credit.waypoint_lambda=0.5", "credit: {waypoint: {share: ...}}"),
        ("credit.train_prefixes=false", "nothing: "),
    ):
        with pytest.raises(CardError, match=f"is an old name: write {re.escape(now)}"):
            load_recipe("tiny-grpo", [override])
    (tmp_path / "z.yaml").write_text(load_file("tiny-grpo").replace("questions: {split: train", "world: {split: train"))
    with pytest.raises(
        CardError, match=r"z.yaml:7: env_options.world: write env_options: \{questions: \{...\}\}, with"
    ):
        read_recipe(tmp_path / "z.yaml")
    (tmp_path / "y.yaml").write_text(load_file("tiny-grpo") + "\ncredit: {outcome: 1, evidence_where: all}\n")
    with pytest.raises(CardError, match=r"credit.evidence_where: write credit: \{evidence: \{where: ...\}\}"):
        read_recipe(tmp_path / "y.yaml")


def test_every_new_spelling_is_a_field_of_its_term():
    from searchgym.train.recipe.renamed import RENAMED

    named = [re.fullmatch(r"credit: \{([\w-]+): \{(\w+): \.\.\.\}\}", now) for now in RENAMED.values()]
    assert sum(match is not None for match in named) == 20
    for match in filter(None, named):
        assert match[2] in find_kind(Term, match[1]).__dataclass_fields__, match[0]


def test_an_old_option_that_is_a_term_now_is_a_term():
    assert "candidates" in read_terms({"candidates": {"most": 3}})
    assert list(load_recipe("tiny-grpo", ["credit={candidates: 2}"]).credit) == ["candidates"]

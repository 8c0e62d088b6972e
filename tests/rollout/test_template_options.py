"""Arguments and dates of chat templates: read off a template, refused, passed on, and kept in a run's record."""

import asyncio
import datetime
import json

import pytest
import yaml
from made_models import CHATML, save_tiny, tiny_tokenizer
from support import CARD, QUESTIONS, TitleRetriever

from searchgym.agents.base import load_agent, with_max_tokens
from searchgym.envs.task import load_task
from searchgym.errors import UnknownNameError, UsageError
from searchgym.eval.runner import EvalOptions, evaluate, recorded_date
from searchgym.protocol import get_protocol
from searchgym.rollout.engine import Engine
from searchgym.rollout.foreign import template_options
from searchgym.rollout.foreign.template_names import template_names
from searchgym.rollout.foreign.template_options import fitted, parse_template, template_format, trained_template
from searchgym.rollout.models import Loading, load_models

SYSTEM = "You are a helpful assistant."
END = "<|im_start|>assistant\n{% endif %}"
THINKS = CHATML.replace(
    END, END.replace("{% endif %}", "{% if enable_thinking | default(true) %}<think>\n{% endif %}{% endif %}")
)
DATED = THINKS.replace(SYSTEM, "Today: {{ strftime_now('%d %b %Y') }}.")
DAYS = (datetime.date(2026, 11, 27), datetime.date(2027, 1, 2))
PROMPT = "Who founded Beta?"


def made(template):
    tokenizer = tiny_tokenizer("qwen2")
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture
def folder(tmp_path):
    """A tiny model whose template opens a thought and shows today's date."""
    save_tiny(tmp_path / "dated")
    made(DATED).save_pretrained(tmp_path / "dated")
    return tmp_path / "dated"


@pytest.fixture
def clock(monkeypatch):
    """Sets the day of this machine's clock."""
    return lambda day: monkeypatch.setattr(template_options, "TODAY", day.isoformat())


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "arguments", "clock"),
    [
        (CHATML, "", False),
        (THINKS, "enable_thinking", False),
        (DATED, "enable_thinking", True),
        ("{% if a is defined and not a %}x{% endif %}{{ bos_token }}{{ eos_token }}{{ messages[0] }}", "a", False),
        ("{% set d = d if d is defined else strftime_now('%d') %}{% set e = 1 %}{{ d }}{{ e }}", "d", True),
        ("{% macro f(p) %}{{ p }}{{ q }}{% endmacro %}{{ f(tools) }}", "q", False),
        ("{% for m in messages %}{{ m }}{{ loop.first }}{% endfor %}{{ namespace(x=1).x }}", "", False),
        ("{% generation %}{{ kept }}{% endgeneration %}{{ raise_exception('no') if n | d(0) }}", "kept n", False),
        ("{{ 'a' * 4000000000 }}{{ 9 ** (9 ** 9) }}{{ late }}", "late", False),  # parsed, and never computed
    ],
)
def test_the_names_in_a_template(template, arguments, clock):
    names = template_names(made(template))
    assert (names.arguments, names.clock) == (frozenset(arguments.split()), clock)


def test_a_base_model_has_no_names_and_a_broken_template_unknown_ones():
    assert template_names(tiny_tokenizer("base")).arguments == frozenset()
    assert template_names(made("{% for %}")) is None


# -- arguments -------------------------------------------------------------------------------------------------------


def test_arguments_of_the_command_line_are_yaml():
    given = parse_template(["enable_thinking=false", "effort=high", "n=3", "date=2026-11-27", "a=b=c"])
    assert given == {"enable_thinking": False, "effort": "high", "n": 3, "date": DAYS[0], "a": "b=c"}
    for specs, said in ((["x"], "NAME=VALUE"), (["=1"], "NAME=VALUE"), (["a=1", "a=2"], "is given twice: 1 and 2")):
        with pytest.raises(UsageError, match=said):
            parse_template(specs)


@pytest.mark.parametrize("value", [True, False])
def test_prompt_ids_are_those_that_the_template_makes_with_an_argument(value):
    tokenizer = made(THINKS)
    form = template_format(tokenizer, get_protocol("tags"), {"enable_thinking": value})
    talk = [{"role": "user", "content": PROMPT}]
    wanted = tokenizer.apply_chat_template(
        talk, add_generation_prompt=True, tokenize=True, return_dict=False, enable_thinking=value
    )
    assert form.prompt_ids(PROMPT).tolist() == wanted
    assert form.decode(wanted).endswith("<think>\n") == value


def test_an_argument_that_no_template_names_is_refused_with_the_nearest(folder):
    models = {"searcher": str(folder)}
    with pytest.raises(UnknownNameError, match=r"'enable_thinkin': the chat template of .*did you mean 'enable_th"):
        load_models(models, get_protocol("tags"), Loading(template={"enable_thinkin": False}))
    with pytest.raises(UnknownNameError, match="Known: none"):
        load_models({"searcher": "tiny"}, get_protocol("tags"), Loading(template={"enable_thinking": False}))
    with pytest.raises(UsageError, match=r"date: the chat template of .* shows none"):
        load_models({"searcher": "tiny"}, get_protocol("tags"), Loading(template={"date": "2026-11-27"}))
    with pytest.raises(UsageError, match="a day as YYYY-MM-DD, got 'today'"):
        load_models(models, get_protocol("tags"), Loading(template={"date": "today"}))


def test_of_two_models_each_gets_the_arguments_that_its_template_names(folder):
    how = Loading(template={"enable_thinking": False, "date": DAYS[0]})
    models = load_models({"a": str(folder), "b": "tiny"}, get_protocol("tags"), how)
    assert models["a"].template == {"enable_thinking": False, "date": "2026-11-27"}
    assert models["b"].template == {}


# -- dates -----------------------------------------------------------------------------------------------------------


def test_a_date_is_todays_unless_it_is_given(clock):
    clock(DAYS[0])
    assert fitted(made(DATED), {}) == {"date": "2026-11-27"}
    assert fitted(made(DATED), {"date": "2027-01-02"}) == {"date": "2027-01-02"}
    assert fitted(made(THINKS), {"date": "2027-01-02"}) == {}
    form = template_format(made(DATED), get_protocol("tags"))
    assert "Today: 27 Nov 2026." in form.decode(form.prompt_ids(PROMPT))


def run(folder, out, date=None, **options):
    """Evaluates the model of a folder, resumed as the command line does; returns the prompt ids of each episode."""
    template = {} if date is None else {"date": date}
    models = load_models({"searcher": str(folder)}, get_protocol("tags"), Loading(template=template))
    task = load_task(CARD, questions=QUESTIONS, retriever=TitleRetriever(), max_turns=1)
    agent = with_max_tokens(load_agent("search-r1"), 2)
    evaluate(task, agent, out, models, EvalOptions(**options))
    engine, episodes = Engine(task, agent, models), []
    asyncio.run(engine.run(task.questions, episodes.append))
    return {episode.question_id: episode.contexts[0].spans[0].ids.tolist() for episode in episodes}


def test_a_run_resumed_on_another_day_has_equal_prompt_ids(folder, tmp_path, clock):
    clock(DAYS[0])
    first = run(folder, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["template"] == {"searcher": {"date": "2026-11-27"}}
    clock(DAYS[1])
    assert run(folder, tmp_path / "run", recorded_date(tmp_path / "run"), resume=True) == first
    with pytest.raises(UsageError, match=r"template: .*2026-11-27.* then, .*2027-01-02.* now"):
        run(folder, tmp_path / "run", resume=True)
    assert run(folder, tmp_path / "new") != first
    assert recorded_date(tmp_path / "new") == "2027-01-02"


def test_a_model_without_arguments_has_none_in_its_record(tmp_path):
    run("tiny", tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["template"] is None
    assert recorded_date(tmp_path / "run") is None
    assert recorded_date(tmp_path / "none") is None


def test_the_date_of_a_suite_is_that_of_its_first_part(tmp_path):
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "run.json").write_text(json.dumps({"template": {"r": {"date": f"2026-11-27{part}"}}}))
    assert recorded_date(tmp_path) == "2026-11-27a"


# -- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "key", "wanted"),
    [
        ({"template": {"enable_thinking": False, "date": DAYS[0]}}, "", {"enable_thinking": False}),
        ({"models": {"a": {"template": {"n": 1}}}, "template": {"m": 2}}, "a", {"n": 1}),
        ({"models": {"a": {"template": None}}, "template": {"m": 2}}, "a", {"m": 2}),
        ({"models": {}}, "", {}),
        (["no recipe"], "", {}),
    ],
)
def test_a_checkpoint_is_asked_with_the_arguments_of_its_training(recipe, key, wanted, tmp_path):
    checkpoint = tmp_path / "checkpoints" / "step-1"
    (checkpoint / key).mkdir(parents=True)
    (checkpoint / "trainer.json").write_text("{}")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert trained_template(checkpoint / key if key else checkpoint) == wanted
    assert trained_template(tmp_path) == {}

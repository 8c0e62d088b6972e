"""Template arguments and dates of trainings: of each key, in the record of the run, and in a run that goes on."""

import datetime

import pytest
from made_models import CHATML, save_tiny, tiny_tokenizer

from searchgym.errors import UnknownNameError, UsageError
from searchgym.rollout.foreign import template_options
from searchgym.rollout.storage import read_episodes
from searchgym.train.loop import samplers
from searchgym.train.loop.assembly import train
from searchgym.train.loop.folder import check_run_folder
from searchgym.train.loop.samplers import key_templates
from searchgym.train.recipe.keys import keys_of
from searchgym.train.recipe.load import load_recipe, read_recipe
from searchgym.train.recipe.recipe import dump_recipe

DAYS = (datetime.date(2026, 11, 27), datetime.date(2027, 1, 2))
PLAIN = CHATML.replace("You are a helpful assistant.", "{{ tone | default('Kind') }}.")
DATED = PLAIN.replace(".", " on {{ strftime_now('%Y-%m-%d') }}.", 1)
SMALL = ["rollout.questions=1", "rollout.attempts=2", "rollout.max_tokens=3", "validation.every=0", "log.curve=false"]
SMALL += ["log.tensorboard=false", "optimizer.warmup_steps=0", "rollout.probe=0"]
SMALL += ["env=searchgym/Demo-v0", "env_options={max_turns: 1}"]
KEYS = "models={a: {roles: [planner], template: {tone: Curt}}, b: {}}"


def tokenizer(template):
    made = tiny_tokenizer("qwen2")
    made.chat_template = template
    return made


@pytest.fixture
def clock(monkeypatch):
    """Sets the day of this machine's clock."""

    def set_to(day):
        for module in (template_options, samplers):
            monkeypatch.setattr(module, "TODAY", day.isoformat())

    set_to(DAYS[0])
    return set_to


def resolved(tokenizers, *overrides):
    """The template of the recipe and of each key, with tokenizers by key."""
    recipe = load_recipe("tiny-grpo", list(overrides))
    keys = keys_of(recipe, ["planner", "reader"], "team")
    recipe, made = key_templates(recipe, keys, tokenizers)
    return recipe.template, made


def test_a_recipe_records_todays_date_only_if_a_template_shows_it(clock):
    assert resolved({"policy": tokenizer(PLAIN)}, "template={tone: Dry}") == (
        {"tone": "Dry"},
        {"policy": {"tone": "Dry"}},
    )
    shown = {"policy": {"date": "2026-11-27"}}
    assert resolved({"policy": tokenizer(DATED)}) == ({"date": DAYS[0]}, shown)
    clock(DAYS[1])
    assert resolved({"policy": tokenizer(DATED)}, "template={date: 2026-11-27}") == ({"date": DAYS[0]}, shown)


def test_each_key_has_its_own_arguments_or_the_recipes(clock):
    both = {"a": tokenizer(PLAIN), "b": tokenizer(DATED)}
    recorded, made = resolved(both, KEYS, "template={tone: Dry}")
    assert recorded == {"tone": "Dry", "date": DAYS[0]}
    assert made == {"a": {"tone": "Curt"}, "b": {"tone": "Dry", "date": "2026-11-27"}}
    assert resolved(both, KEYS, "template={tone: Dry, date: 2027-01-02}")[1]["b"]["date"] == "2027-01-02"


@pytest.mark.parametrize(
    "options", [["template={tome: x}"], [KEYS.replace("tone", "tome")], [KEYS, "template={tome: x}"]]
)
def test_an_argument_that_no_template_of_its_keys_names_is_refused(options):
    both = {name: tokenizer(PLAIN) for name in ("policy", "a", "b")}
    with pytest.raises(UnknownNameError, match="did you mean 'tone'"):
        resolved(both, *options)
    with pytest.raises(UsageError, match="date: the chat template of"):
        resolved(both, "template={date: 2026-11-27}")


def test_a_run_goes_on_with_the_date_of_its_record_or_is_refused(tmp_path, clock):
    before = load_recipe("tiny-grpo", ["template={date: 2026-11-27}"])
    (tmp_path / "recipe.yaml").write_text(dump_recipe(before))
    assert read_recipe(tmp_path / "recipe.yaml") == before
    clock(DAYS[1])
    check_run_folder(tmp_path, load_recipe("tiny-grpo"), resume=True)
    with pytest.raises(UsageError, match="template: "):
        check_run_folder(tmp_path, load_recipe("tiny-grpo", ["template={date: 2027-01-02}"]), resume=True)
    with pytest.raises(UsageError, match="template: "):
        check_run_folder(tmp_path, load_recipe("tiny-grpo", ["template={tone: Dry}"]), resume=True)


def test_a_training_resumed_on_another_day_has_equal_prompts(tmp_path, clock):
    model = save_tiny(tmp_path / "model")
    tokenizer(DATED).save_pretrained(model)
    options = [f"model={model}", "template={tone: Dry}", *SMALL]
    train(load_recipe("tiny-grpo", [*options, "steps=1"]), tmp_path / "run")
    clock(DAYS[1])
    train(load_recipe("tiny-grpo", [*options, "steps=2"]), tmp_path / "run", resume=True)
    assert read_recipe(tmp_path / "run" / "recipe.yaml").template == {"tone": "Dry", "date": DAYS[0]}
    texts = [
        tokenizer(DATED).decode(episode.contexts[0].spans[0].ids)
        for episode in read_episodes(tmp_path / "run" / "episodes.jsonl")
    ]
    assert len(texts) == 4
    assert all("system\nDry on 2026-11-27.<|im_end|>" in text for text in texts)

"""What the steps of a training look like, in a pipe and in a terminal."""

import io
import logging
import re
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress

from searchgym.cli.training import steps
from searchgym.cli.training.steps import columns_of, duration, metric, training_steps
from searchgym.rollout.folders import quiet_libraries
from searchgym.train.loop.guards import Watchdog
from searchgym.train.recipe.load import load_recipe

ROW = {"rollout/reward": 0.4375, "rollout/searches": 1.25, "learner/entropy": 0.0312, "rollout/tokens": 4312.0}


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(steps, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def show(recipe, clock, seconds):
    """Reports a validation before the first step, then steps that take so many seconds each."""
    with training_steps(recipe) as report:
        report({"step": 0, "validation/em": 0.5, "time/validation": 3.0})
        for step, spent in enumerate(seconds, start=1):
            clock.now += spent
            validated = {"validation/em": 0.25} if step == recipe.steps else {}
            report({"step": step} | ROW | validated)


def test_a_pipe_gets_a_line_per_step_with_the_time_left(clock, capsys):
    show(load_recipe("tiny-grpo", ["steps=3"]), clock, [10, 20, 30])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "step 0/3 · validation 0.500",
        "step 1/3 · reward 0.438 · searches 1.250 · entropy 0.031 · tokens 4,312 · 10 s a step · 20 s left",
        "step 2/3 · reward 0.438 · searches 1.250 · entropy 0.031 · tokens 4,312 · 15 s a step · 15 s left",
        "step 3/3 · reward 0.438 · searches 1.250 · validation 0.250 · entropy 0.031 · tokens 4,312 · 20 s a step",
    ]


def test_nothing_is_shown_before_the_first_step_unless_it_was_validated(clock, capsys):
    with training_steps(load_recipe("tiny-grpo", ["validation.every=0"])) as report:
        report({"step": 0, "generated_tokens": 0.0})
    assert capsys.readouterr().err == ""


def test_a_resumed_run_has_the_pace_of_this_session(clock, capsys):
    """Its first row is a step, whose seconds are those of its parts."""
    with training_steps(load_recipe("tiny-grpo", ["steps=20"])) as report:
        report({"step": 11, "time/draw": 8.0, "time/learn": 4.0, "time/draw_tokens_per_second": 900.0} | ROW)
    assert capsys.readouterr().err.endswith("12 s a step · 2 min left\n")


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 100 columns; what was written to it."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=100, color_system="standard")

    def bars(*columns):
        from searchgym.cli.output import bars as real

        return Progress(*real().columns, *columns, console=console, transient=True, auto_refresh=False)

    monkeypatch.setattr(steps, "bars", bars)
    monkeypatch.setattr(steps, "say", lambda text: console.print(text, highlight=False))
    return written


def test_a_terminal_has_a_bar_with_the_time_left_and_a_table(clock, terminal):
    show(load_recipe("tiny-grpo", ["steps=25"]), clock, [2.0] * 25)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    assert re.search(r"tiny-grpo: step [━╸╺]+ +3/25 \d:\d\d:\d\d 44 s left", plain)
    rows = [line.split() for line in re.split(r"[\r\n]+", plain) if line.startswith("  ")]
    assert rows[0] == ["step", "reward", "searches", "validation", "entropy", "tokens", "seconds"]
    assert rows[1] == ["0", "0.500", "3.0"]
    assert rows[2] == ["1", "0.438", "1.250", "0.031", "4,312", "2.0"]
    assert [number for number, row in enumerate(rows) if row[0] == "step"] == [0, 21]
    assert rows[-1] == ["25", "0.438", "1.250", "0.250", "0.031", "4,312", "2.0"]
    widths = {len(line) for line in re.split(r"[\r\n]+", plain) if line.startswith("  ")}
    assert len(widths) == 1


def test_the_columns_are_those_that_matter_for_the_method():
    grpo = ["reward", "searches", "validation", "entropy", "tokens"]
    assert list(columns_of(load_recipe("tiny-grpo"))) == grpo
    assert columns_of(load_recipe("tiny-grpo", ["loss.kl_coef=0.1"]))["KL"] == "learner/ref_kl"
    assert columns_of(load_recipe("tiny-grpo", ["optimizer.epochs=2"]))["KL"] == "learner/old_kl"
    assert columns_of(load_recipe("tiny-curriculum"))["stage"] == "curriculum/stage"
    assert "stage" not in columns_of(load_recipe("tiny-grpo", ["curriculum=learnability"]))  # it has one
    assert columns_of(load_recipe("tiny-jade"))["validation"] == "validation/em"
    assert "validation" not in columns_of(load_recipe("tiny-grpo", ["validation.every=0"]))
    assert list(columns_of(load_recipe("tiny-rejection"))) == [*grpo[:3], "kept", "nll", "tokens"]
    supervised = load_recipe("tiny-rejection", ["method={kind: supervised, demonstrations: d.jsonl}"])
    assert columns_of(supervised)["tokens"] == "learner/tokens_trained"


def test_a_metric_of_several_keys_is_their_mean():
    row = {"learner/planners/entropy": 1.0, "learner/writers/entropy": 3.0, "learner/planners/loss": 9.0}
    assert metric(row, "learner/entropy") == 2.0
    assert metric(row | {"learner/entropy": 5.0}, "learner/entropy") == 5.0
    assert metric(row, "learner/nll") is None


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (12, "12 s"),
        (99, "99 s"),
        (100, "2 min"),
        (3600, "60 min"),
        (9000, "2 h 30 min"),
    ],
)
def test_durations(seconds, shown):
    assert duration(seconds) == shown


def test_libraries_are_quiet_while_a_model_is_loaded(capfd):
    from transformers.utils import logging as shown

    before = shown.is_progress_bar_enabled()
    logger = logging.getLogger("DeepSpeed")
    handler = logging.StreamHandler()
    logger.addHandler(handler)
    try:
        with quiet_libraries():
            assert not shown.is_progress_bar_enabled()
            logger.warning("Setting accelerator to CPU. If you have GPU or other accelerator, we were unable ...")
            logger.warning("something else")
    finally:
        logger.removeHandler(handler)
    assert shown.is_progress_bar_enabled() == before
    err = capfd.readouterr().err
    assert "something else" in err and "accelerator" not in err


def test_a_terminal_shows_the_phase_of_the_running_step(tmp_path):
    assert steps.phase_of(tmp_path) == "starting"
    with Watchdog(tmp_path, lambda: None).phase("validation", 3, 60.0):
        assert steps.phase_of(tmp_path) == "validation"
        text = io.StringIO()
        with Progress(steps.phase_column(tmp_path), console=Console(file=text, force_terminal=True)) as bar:
            bar.add_task("step", total=3)
        assert "validation" in text.getvalue()

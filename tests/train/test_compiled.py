"""Compiled layers compute what plain layers compute, for rows of any shape, and the same bits after a resume."""

import logging

import pytest
import torch
from made_models import tiny_qwen2
from test_head import sample
from toy_training import toy_recipe

from searchgym.errors import UsageError
from searchgym.train.learner.learner import LocalLearner


def learner(on, **options):
    return LocalLearner(toy_recipe(learner={"compile": on}, **options), tiny_qwen2())


def test_a_missing_compiler_is_named(monkeypatch):
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    def missing():
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    with pytest.raises(UsageError, match=r"learner\.compile on a CPU needs a C\+\+ compiler"):
        learner(True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler itself
def test_compiled_layers_give_the_same_update_and_the_same_bits_resumed(tmp_path):
    steps = [[sample(length=length) for length in lengths] for lengths in ((40, 40), (70,), (130, 50, 64))]
    plain, compiled = learner(False), learner(True)
    weights = []
    for number, samples in enumerate(steps):
        first, second = (side.learn(samples, number) for side in (plain, compiled))
        assert second["gradient_norm"] == pytest.approx(first["gradient_norm"], rel=1e-4)
        weights.append({name: w.clone() for name, w in compiled.weights().items()})
        if number == 0:
            compiled.save(tmp_path)
    for name, weight in plain.weights().items():
        torch.testing.assert_close(weights[-1][name], weight, rtol=1e-3, atol=1e-4)
    torch._dynamo.reset()
    resumed = learner(True)
    resumed.load(tmp_path)
    for number in (1, 2):
        resumed.learn(steps[number], number)
    assert all(torch.equal(w, weights[-1][name]) for name, w in resumed.weights().items())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler itself
def test_layers_that_fall_back_are_named_once(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 1)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("torch._dynamo.convert_frame")
    logger.addHandler(handler)
    try:
        plain, compiled = learner(False), learner(True)
        for number, lengths in enumerate(((40, 40), (70,), (30, 50))):  # a single row needs a graph of its own
            samples = [sample(length=length) for length in lengths]
            first, second = (side.learn(samples, number) for side in (plain, compiled))
            assert second["gradient_norm"] == pytest.approx(first["gradient_norm"], rel=1e-4)
    finally:
        logger.removeHandler(handler)
        torch._dynamo.reset()
    named = [line for line in lines if "hit config.recompile_limit" in line]
    assert len(named) == 1 and "function: 'forward'" in named[0]

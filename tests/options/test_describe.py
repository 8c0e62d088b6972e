"""Descriptions of options: types and defaults as YAML has them, texts from docstrings."""

from searchgym.train.recipe.listing import credit_terms, recipe_options, term_options
from searchgym.train.recipe.recipe import recipe_keys

OPTIONS = recipe_options()


def test_every_key_of_a_recipe_is_described_once_with_a_text():
    names = [option.name for option in OPTIONS]
    assert set(recipe_keys()) <= set(names)
    assert all(option.text for option in OPTIONS)
    assert len({(option.name, option.kind, option.type, option.default) for option in OPTIONS}) == len(OPTIONS)


def test_types_defaults_and_kinds_by_hand():
    found = {(option.name, option.kind): option for option in OPTIONS}
    rate, zero = found["optimizer.lr", ""], found["learner.backend.zero", "deepspeed"]
    assert (rate.type, rate.default, rate.text) == ("number >= 0", "1.0e-06", "Peak learning rate.")
    assert (zero.type, zero.default) == ("integer >= 0 and <= 3", "0")
    assert found["rollout.sampler", ""].type == "kind auto or transformers or vllm"
    assert found["rollout.sampler", ""].default == "transformers"
    assert found["steps", ""].default == "required" and found["rollout.max_tokens", ""].type == "integer >= 1 or null"
    assert found["method.targets", "rejection, supervised"].type == "model or all"
    assert found["template", ""].default == "{}"


def test_credit_terms_and_their_options():
    terms = {term.name: term for term in credit_terms()}
    assert terms["costs"].options == "turn=0.0, search=0.0" and terms["costs"].text.startswith("Deducts the cost")
    assert [option.name for option in term_options("costs")][-2:] == ["credit.costs.turn", "credit.costs.search"]

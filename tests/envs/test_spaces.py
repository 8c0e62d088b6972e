import numpy as np
import pytest
from gymnasium.vector.utils import batch_space

from searchgym.envs.spaces import UnicodeText
from searchgym.errors import UsageError


def test_contains_any_text_up_to_its_length():
    space = UnicodeText(5)
    assert "" in space
    assert "é漢\x00\n<" in space
    assert "123456" not in space
    assert 5 not in space
    assert None not in space


def test_samples_are_members_and_reproducible():
    space = UnicodeText(40, samples=("<search>{}</search>", "{}"))
    space.seed(3)
    first = [space.sample() for _ in range(50)]
    space.seed(3)
    assert [space.sample() for _ in range(50)] == first
    assert all(sample in space for sample in first)
    assert len(set(first)) > 10


def test_it_batches_compares_and_goes_to_json():
    assert UnicodeText(5) == UnicodeText(5)
    assert UnicodeText(5) != UnicodeText(6)
    assert len({UnicodeText(5), UnicodeText(5)}) == 1
    batched = batch_space(UnicodeText(5), 3)
    assert ("a", "b", "c") in batched
    space = UnicodeText(5)
    assert space.from_jsonable(space.to_jsonable(["a", "é"])) == ["a", "é"]
    assert not space.is_np_flattenable
    assert repr(space) == "UnicodeText(5)"


def test_wrong_arguments():
    with pytest.raises(UsageError, match="at least 1"):
        UnicodeText(0)
    with pytest.raises(UsageError, match="no masks"):
        UnicodeText(3).sample(mask=np.ones(3))

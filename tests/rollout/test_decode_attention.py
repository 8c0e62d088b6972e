"""Attention of one new token per row, against the sum written out in float64."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from searchgym.rollout.transformers.kv_cache import grouped_attention

LENGTHS = (3, 7, 10)
"""Visible columns of each row, the last ones of ten."""


def written_out(query, key, value):
    """Returns the attention of one query per head, (B, 1, query heads, D), head by head."""
    found = torch.zeros(len(query), 1, query.shape[1], value.shape[3], dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        for head in range(query.shape[1]):
            shared = head * key.shape[1] // query.shape[1]
            keys, values = (states[row, shared, -length:].double() for states in (key, value))
            chances = torch.softmax(keys @ query[row, head, 0].double() / query.shape[3] ** 0.5, 0)
            found[row, 0, head] = chances @ values
    return found


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(("heads", "shared"), [(4, 4), (4, 2), (3, 1)])
def test_one_new_token_per_row(heads, shared, dtype, tolerance):
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(3, n, columns, 8).to(dtype) for n, columns in ((heads, 1), (shared, 10), (shared, 10))
    )
    mask = (torch.arange(10) >= 10 - torch.tensor(LENGTHS)[:, None])[:, None, None]
    layer: Any = SimpleNamespace(num_key_value_groups=heads // shared, is_causal=True)
    output, weights = grouped_attention(layer, query, key, value, mask)
    assert (output.shape, output.dtype, weights) == ((3, 1, heads, 8), dtype, None)
    torch.testing.assert_close(output.double(), written_out(query, key, value), atol=tolerance, rtol=tolerance)

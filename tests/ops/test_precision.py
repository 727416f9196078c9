"""Half precision is raised, float64 stays."""

import torch

from quatrain.ops.precision import wide


def test_wide():
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert wide(torch.ones(1, dtype=dtype)).dtype == torch.float32
    assert wide(torch.ones(1, dtype=torch.float64)).dtype == torch.float64

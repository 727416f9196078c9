"""Verifiers: what a completion earns. Importable without torch.

A verifier is `async score(rollouts) -> scores` with `scope`, `kind` and its own `examples`. Recipes name built-ins,
`FILE.py:FUNCTION`, `FILE.py:CLASS` or an entry point of the group `quatrain.verifier`.
"""

from quatrain.rewards import (  # noqa: F401 - they register
    choice,
    code,
    diversity,
    exact,
    format,
    gym,
    json_object,
    json_schema,
    judge,
    language,
    local_judge,
    math_equal,
    numeric,
    pattern,
    reflection,
    reward_model,
    shaping,
)
from quatrain.rewards.build import build_verifier
from quatrain.rewards.rubric import Part, Rubric, Verifiers, build_verifiers
from quatrain.rewards.verifier import VERIFIERS, Example, Limits, Verifier, text_rollout

__all__ = [
    "VERIFIERS",
    "Example",
    "Limits",
    "Part",
    "Rubric",
    "Verifier",
    "Verifiers",
    "build_verifier",
    "build_verifiers",
    "text_rollout",
]

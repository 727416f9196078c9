"""What every section of a recipe is made of."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _no_boolean(value: Any) -> Any:
    """YAML reads `yes` and `on` as true, which pydantic would take for 1."""
    if isinstance(value, bool):
        raise ValueError("a number, not true or false")
    return value


Positive = Annotated[int, Field(gt=0), BeforeValidator(_no_boolean)]
NonNegative = Annotated[int, Field(ge=0), BeforeValidator(_no_boolean)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """A group of settings: unknown keys are errors, values are frozen after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, mapping by mapping; neither is changed."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result

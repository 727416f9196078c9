"""The Python files beside a recipe, which import each other by their bare names."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"


@contextmanager
def modules_of(recipe: str, *names: str) -> Iterator[SimpleNamespace]:
    """The modules of `recipes/RECIPE`, by name; they are forgotten afterwards, since two recipes may use one name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(RECIPES / recipe)
        try:
            yield SimpleNamespace(**{name: __import__(name) for name in names})
        finally:
            for name in names:
                sys.modules.pop(name, None)

"""Reinforcement learning for language models, from a laptop CPU to a cluster.

    import quatrain

    result = quatrain.train(model="smollm2-135m", prompts=rows, verifiers="numeric", steps=20, output="runs/first")

Names are imported when they are first used, so that `import quatrain` costs nothing.
"""

import importlib
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "train": "methods.api",
    "evaluate": "methods.api",
    "score": "methods.api",
    "load_run": "methods.api",
    "Score": "types",
    "Interrupted": "errors",
    "QuatrainError": "errors",
    "SettingError": "errors",
}
__all__ = sorted(_HOME)


def _public(name: str) -> Any:
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return globals().setdefault(name, _public(name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Verb(ModuleType):
    """`quatrain.train` is a folder of this package and what a user wants to call: this one module can be called."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return _public("train")(*arguments, **settings)

    @property
    def __signature__(self) -> Any:
        return importlib.import_module("inspect").signature(_public("train"))


importlib.import_module(f"{__name__}.train").__class__ = _Verb

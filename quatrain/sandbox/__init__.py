"""Running Python that nobody has read, and learning from outside what it did. Importable without torch."""

from quatrain.sandbox.canary import why_not
from quatrain.sandbox.choose import CannotIsolate, Choice, Isolation, build_backend, in_use
from quatrain.sandbox.image import find_packages
from quatrain.sandbox.job import Backend, Limits, Outcome, SandboxError, Task
from quatrain.sandbox.pool import Pool
from quatrain.sandbox.worker import Layers

__all__ = [
    "Backend", "CannotIsolate", "Choice", "Isolation", "Layers", "Limits", "Outcome", "Pool", "SandboxError", "Task",
    "build_backend", "find_packages", "in_use", "why_not",
]  # fmt: skip

"""Running Python that nobody has read, and learning from outside what it did. Importable without torch."""

from quatrain.sandbox.canary import why_not
from quatrain.sandbox.image import find_packages
from quatrain.sandbox.job import Backend, Limits, Outcome, SandboxError, Task
from quatrain.sandbox.pool import Pool
from quatrain.sandbox.worker import Layers

__all__ = ["Backend", "Layers", "Limits", "Outcome", "Pool", "SandboxError", "Task", "find_packages", "why_not"]

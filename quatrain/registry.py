"""One way to name a piece: a built-in name, `path/to/file.py:attribute`, or an installed entry point."""

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from quatrain.errors import SettingError, nearest

T = TypeVar("T")


def load_attribute(reference: str, setting: str) -> Any:
    """The object named by `path/to/file.py:attribute`; the file is run once per process."""
    path_text, _, attribute = reference.rpartition(":")
    path = existing_file(path_text)
    if path is None:
        raise SettingError(setting, reference, "an existing Python file before the colon", "check the path")
    module_name = f"quatrain_user_{path.stem}_{abs(hash(path)):x}"
    module = sys.modules.get(module_name)
    if module is None:
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[module_name]
            if isinstance(error, Exception):
                raise SettingError(
                    setting, reference, "a file that imports", f"{type(error).__name__}: {error}"
                ) from error
            raise
    if not hasattr(module, attribute):
        public = [name for name in vars(module) if not name.startswith("_")]
        raise SettingError(setting, reference, f"a name defined in {path.name}", nearest(attribute, public))
    return getattr(module, attribute)


class Registry(Generic[T]):
    """Built-ins of one kind; also resolves file references and entry points (group `quatrain.<kind>`)."""

    def __init__(self, kind: str, modules: Sequence[str] = ()) -> None:
        self.kind = kind
        self._modules = tuple(modules)  # the built-ins' own files, imported at the first question
        self._built_in: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that enters a piece, and with it enrols the piece in its contract suite."""

        def enter(piece: T) -> T:
            if name in self._built_in:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._built_in[name] = piece
            return piece

        return enter

    def names(self) -> list[str]:
        """Built-in names, sorted."""
        return sorted(self._all())

    def get(self, name: str, setting: str = "") -> T:
        """The piece called `name`; a SettingError names the nearest known one."""
        setting = setting or self.kind
        built_in = self._all()
        if name in built_in:
            return built_in[name]
        if is_file_reference(name):
            return load_attribute(name, setting)
        for entry in importlib.metadata.entry_points(group=f"quatrain.{self.kind}"):
            if entry.name == name:
                try:
                    return entry.load()
                except (ImportError, AttributeError) as error:
                    do = f"{type(error).__name__}: {error}"
                    raise SettingError(setting, name, "an entry point that imports", do) from error
        do = nearest(name, built_in) + f" or path/to/file.py:name, or an entry point in group quatrain.{self.kind}"
        raise SettingError(setting, name, f"a known {self.kind}", do)

    def _all(self) -> dict[str, T]:
        for module in self._modules:
            importlib.import_module(module)
        return self._built_in


def existing_file(text: str) -> Path | None:
    """The absolute path of a file; None when there is none, also for text that no path can be (too long, `~nobody`)."""
    try:
        path = Path(text).expanduser().resolve()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):
        return None


def is_file_reference(name: str) -> bool:
    """True for `path/to/file.py:attribute`."""
    path, _, attribute = name.rpartition(":")
    return path.endswith(".py") and attribute.isidentifier()

"""Settings as a Python session gives them, with rows and functions in memory, made into a recipe that needs no session.

What a recipe cannot hold is written into RUN/session/: rows as JSONL, functions as Python files. The names carry a
digest of the content, so that the same call finds the same recipe, and another one is refused as a changed recipe.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quatrain.config import (
    AlgorithmConfig,
    AnyRecipe,
    DataConfig,
    OfflineRecipe,
    OfflineTrainConfig,
    Recipe,
    RolloutConfig,
    Section,
    SourceConfig,
    TrainConfig,
    is_offline,
    merge,
)
from quatrain.errors import SettingError, nearest
from quatrain.recipe_file import apply_override, expand, read_settings, validate_recipe
from quatrain.rewards.session import function_file, function_name

SECTIONS: dict[str, type[Section]] = {"rollout": RolloutConfig, "algorithm": AlgorithmConfig, "train": TrainConfig}
OFFLINE_SECTIONS: dict[str, type[Section]] = {"train": OfflineTrainConfig}
LISTED = ("prompts", "data", "held_out", "verifiers")  # given in Python they replace the recipe's, others are laid on


@dataclass(frozen=True)
class Keeper:
    """Names the files that take what a session holds; `write` puts them there."""

    folder: Path
    files: dict[Path, str] = field(default_factory=dict)

    def rows(self, rows: Iterable[Any], setting: str) -> str:
        """The file of rows in memory. Raises SettingError for a row or a value that JSON cannot hold."""
        places = ((row, f"{setting}[{number}]") for number, row in enumerate(rows))
        try:
            lines = [json.dumps(plain(_row(row, place), place)) for row, place in places]
        except RecursionError:
            raise SettingError(setting, "rows that contain themselves", "finite rows") from None
        text = "".join(f"{line}\n" for line in lines)
        return self._file(f"{setting.partition('[')[0]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.jsonl", text)

    def function(self, function: Callable[..., Any], setting: str) -> str:
        """`FILE.py:FUNCTION` for a function object."""
        return f"{self._file(*function_file(function, setting))}:{function_name(function)}"

    def write(self) -> None:
        """Write what is not there yet."""
        from quatrain.telemetry.files import replace_text

        for path, text in self.files.items():
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_text(path, text)

    def _file(self, name: str, text: str) -> str:
        self.files[self.folder / name] = text
        return str(self.folder / name)


def session_recipe(recipe: Any, overrides: Sequence[str], given: Mapping[str, Any]) -> tuple[AnyRecipe, Keeper]:
    """The recipe of a call, and the keeper of its files: a YAML's settings, then keywords, then `key.sub=value`."""
    if isinstance(recipe, str) and "=" in recipe and not Path(recipe).exists():
        recipe, overrides = None, (recipe, *overrides)
    if recipe is not None and not isinstance(recipe, (str, os.PathLike, Mapping)):
        raise SettingError("recipe", recipe, "a YAML file or a mapping of settings", "give settings by keyword")
    data = settings_of(given, read_settings(recipe) if isinstance(recipe, (str, os.PathLike)) else recipe or {})
    for override in overrides:
        apply_override(data, override)
    output = expand(data.setdefault("output", Recipe.model_fields["output"].default), "output")
    keeper = Keeper(Path(str(output)) / "session")
    for section in ("prompts", "data", "held_out"):
        if section in data:
            data[section] = sources(data[section], keeper, section)
    if "verifiers" in data:
        data["verifiers"] = rubrics(data["verifiers"], keeper)
    return validate_recipe(data), keeper


def settings_of(given: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the keywords of a call laid on it.

    A keyword is a setting of the recipe's top level, or by its own name one of rollout, algorithm or train.
    """
    data = dict(base)
    offline = is_offline({**base, **given})
    top = (OfflineRecipe if offline else Recipe).model_fields
    section_of = {name: section for section, model in (OFFLINE_SECTIONS if offline else SECTIONS).items()
                  for name in model.model_fields}  # fmt: skip
    for name, value in given.items():
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        if name in top:
            old = data.get(name)
            both = isinstance(old, Mapping) and isinstance(value, Mapping) and name not in LISTED
            data[name] = merge(old, value) if both else value  # type: ignore[arg-type]
        elif name not in section_of:
            known = [*top, *section_of]
            raise SettingError(name, "an unknown keyword", "a known setting", nearest(name, known))
    for name in set(given) & set(section_of):
        section = section_of[name]
        if isinstance(given.get(section), Mapping) and name in given[section]:
            raise SettingError(name, given[name], f"one of {name} and {section}[{name!r}]", "leave one of them out")
        own = dict(data.get(section) or {})
        old, value = own.get(name), given[name]
        own[name] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
        data[section] = own
    return data


def sources(value: Any, keeper: Keeper, setting: str) -> list[Any]:
    """`prompts` or `held_out` as a recipe has it, from a source, rows, texts, a source's settings or a list of these.

    Rows lie in a file of their own; a list whose mappings have a `source` (and no key that sources lack) holds sources.
    """
    if isinstance(value, (str, os.PathLike)):
        return [{"source": os.fspath(value)}]
    if isinstance(value, Mapping):
        value = [value]
    items = _items(value, setting)
    if items and all(isinstance(item, Mapping) and _is_source(item) for item in items):
        return [_source(item, keeper, f"{setting}[{number}]") for number, item in enumerate(items)]
    return [{"source": keeper.rows(items, setting), "name": setting}] if items else []


def _items(value: Any, setting: str) -> list[Any]:
    """What an iterable holds; of a data frame its rows."""
    if hasattr(value, "iterrows"):
        value = value.to_dict("records")
    if not isinstance(value, Iterable):
        raise SettingError(setting, value, "rows, texts, a file or a source", "e.g. [{'prompt': ..., 'answer': ...}]")
    return list(value)


def _is_source(item: Mapping[str, Any]) -> bool:
    return "source" in item and set(item) <= {*SourceConfig.model_fields, *DataConfig.model_fields}


def _source(item: Mapping[str, Any], keeper: Keeper, setting: str) -> dict[str, Any]:
    """Settings of one source; its `source` may be rows."""
    if isinstance(item["source"], (str, os.PathLike)):
        return {**item, "source": os.fspath(item["source"])}
    name = setting.translate(str.maketrans("[", "-", "]"))
    return {"name": name, **item, "source": keeper.rows(_items(item["source"], setting), setting)}


def _row(item: Any, place: str) -> Mapping[str, Any]:
    """A text is a row with nothing but a prompt (in `data`, nothing but a text)."""
    if isinstance(item, str) and item.endswith((".jsonl", ".parquet")):
        raise SettingError(place, item, "the text of a prompt", f"for files: [{{'source': {item!r}}}, ...]")
    if not isinstance(item, (str, Mapping)):
        raise SettingError(place, item, "a mapping of columns, or a text", "e.g. {'prompt': ..., 'answer': ...}")
    return {"text" if place.startswith("data") else "prompt": item} if isinstance(item, str) else item


def rubrics(value: Any, keeper: Keeper) -> Any:
    """`verifiers` as a recipe has them, from a function, kind, a part's settings, parts by name or rubrics by name."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or "kind" in value:
        parts = list(value) if isinstance(value, (list, tuple)) else [value]
        value = {_part_name(part): part for part in parts}
        if len(value) < len(parts):
            raise SettingError("verifiers", f"{len(parts)} parts called {', '.join(value)}", "a name for each",
                               "give a mapping: {'first': ..., 'second': ...}")  # fmt: skip
    nested = value and all(isinstance(one, Mapping) and "kind" not in one for one in value.values())
    named = value if nested else {"default": value}
    return {rubric: {name: _part(one, keeper, f"verifiers.{rubric}.{name}") for name, one in parts.items()}
            for rubric, parts in named.items()}  # fmt: skip


def _part_name(part: Any) -> str:
    """What a part without a name is called in metrics: its function or kind."""
    kind: Any = part.get("kind") if isinstance(part, Mapping) else part
    return kind.rpartition(":")[2] if isinstance(kind, str) else function_name(kind)


def _part(part: Any, keeper: Keeper, setting: str) -> Any:
    """Settings of one part; its `kind` may be a function."""
    settings = dict(part) if isinstance(part, Mapping) else {"kind": part}
    kind = settings.get("kind")
    if kind is not None and not isinstance(kind, str):
        settings["kind"] = keeper.function(kind, setting)
    return settings


def plain(value: Any, place: str) -> Any:
    """A row as JSON holds it: arrays and their scalars as lists and numbers. Raises SettingError naming the place."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise SettingError(place, f"the keys {list(value)}", "keys that are texts", "rename them")
        return {key: plain(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{place}[{number}]") for number, item in enumerate(value)]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist(), place)
    raise SettingError(place, f"{type(value).__name__} {value!r}", "text, a number, a list or a mapping of these",
                       "convert it; a verifier gets the columns as JSON gives them back")  # fmt: skip

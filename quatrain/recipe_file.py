"""Reading a recipe: YAML, overrides and environment variables in, a validated `Recipe` out; torch is not imported."""

import os
import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from quatrain.config import AnyRecipe, LabelRecipe, OfflineRecipe, Recipe, is_offline
from quatrain.errors import SettingError, nearest

M = TypeVar("M", bound=BaseModel)
MOST_VALUES = 100_000  # that a recipe may hold


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> AnyRecipe:
    """Read a YAML recipe, apply `key.sub=value` overrides, expand `${NAME}` / `${NAME:-default}`, validate.

    Raises SettingError with one line for a missing file, bad YAML, an unknown key (nearest known key named),
    a wrong type or a value out of range.
    """
    data = read_settings(path)
    for override in overrides:
        apply_override(data, override)
    return validate_recipe(data)


def schema_of(path: str | os.PathLike[str] | None) -> dict[str, Any]:
    """JSON Schema of both kinds of recipe, or of the kind that the file at `path` is."""
    if path is None:
        return TypeAdapter(AnyRecipe).json_schema()
    return type(load_recipe(Path(path))).model_json_schema()


def online(recipe: AnyRecipe) -> Recipe:
    """`recipe`, where only one with prompts and verifiers will do. Raises SettingError for an offline one."""
    if isinstance(recipe, OfflineRecipe):
        raise SettingError("method", recipe.method, "an online recipe, with prompts and verifiers, for this command",
                           "give one (--recipe, or --task and --verifier)")  # fmt: skip
    return recipe


def read_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings of a YAML recipe as they are written, with an `output` named after the file when it has none."""
    path = Path(path)
    try:
        data = _parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingError("recipe", str(path), "an existing YAML file", "see recipes/ for examples") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError("recipe", str(path), "a readable UTF-8 YAML file", str(error)) from None
    except yaml.YAMLError as error:
        raise SettingError("recipe", str(path), "valid YAML", " ".join(str(error).split())) from None
    if not isinstance(data, dict):
        raise SettingError("recipe", f"{path} holding {type(data).__name__}", "a mapping of settings", "see recipes/")
    data.setdefault("output", f"runs/{path.stem}")
    return data


def _parse_yaml(text: str) -> Any:
    """YAML's value; what the parser raises for impossible dates, tags and nesting becomes a YAMLError too.

    A key that is there twice is an error: YAML would silently keep the last one.
    """
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_keys(node, set())
        value = loader.construct_document(node)
    except (ValueError, LookupError, AttributeError, TypeError) as error:  # of a tag: `!!bool 3`, `!!timestamp x`
        raise yaml.YAMLError(f"a value that its tag or form does not allow ({error})") from None
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
    if _size(value, {}) > MOST_VALUES:
        raise yaml.YAMLError(f"aliases that stand for more than {MOST_VALUES} values")
    return value


def _check_keys(node: yaml.Node, seen: set[int]) -> None:
    """YAMLError for the first key that a mapping has twice; `seen` are the nodes already looked at."""
    if id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    keys: set[tuple[str, str]] = set()
    for item in node.value:
        if isinstance(item, tuple):
            key, item = item
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else ("", str(id(key)))
            if name in keys:
                raise yaml.YAMLError(f"the key {key.value!r} twice, again in line {key.start_mark.line + 1}")
            keys.add(name)
        _check_keys(item, seen)


def _size(value: Any, known: dict[int, int]) -> int:
    """Values inside `value`, those behind an alias each time; a value that contains itself counts once."""
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in known:
        known[id(value)] = 1
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_size(item, known) for item in inner)
    return known[id(value)]


def validate_recipe(data: Mapping[str, Any]) -> AnyRecipe:
    """A recipe from plain data, offline where its method or algorithm is; a complaint becomes one SettingError line."""
    if data.get("method") == "label":
        raise SettingError("method", "label", "online or offline for this command", "run it with `quatrain label`")
    if is_offline(data):
        return validated({**data, "method": "offline"}, OfflineRecipe)
    return validated(data, Recipe)


def load_label_recipe(path: str | Path, overrides: Sequence[str] = ()) -> LabelRecipe:
    """A recipe of `quatrain label`, read as `load_recipe` reads the others."""
    data = read_settings(path)
    for override in overrides:
        apply_override(data, override)
    return validated({"method": "label", **data}, LabelRecipe)


def validated(data: Mapping[str, Any], model: type[M]) -> M:
    """A section from plain data."""
    try:
        return model.model_validate(expand(data))
    except RecursionError:
        raise SettingError("recipe", "settings that contain themselves", "finite settings") from None
    except ValidationError as error:
        raise as_setting_error(error, model) from None


def apply_override(data: dict[str, Any], override: str) -> None:
    """Set `key.sub=value` in place; the value is YAML, list items are addressed by number (`prompts.0.limit=5`)."""
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise SettingError("override", override, "key.sub=value", "for example train.steps=20")
    try:
        value = _parse_yaml(text)
    except yaml.YAMLError:
        raise SettingError(f"override {key}", text, "a YAML value", "quote it") from None
    if isinstance(value, str):
        value = _number(value)
    *path, last = key.split(".")
    node = _section_at(data, path, key)
    node[_index(last, node, key) if isinstance(node, list) else last] = value


def _section_at(data: dict[str, Any], path: Sequence[str], key: str) -> Any:
    """The mapping or list at `path`, made where there is none; `model: NAME` is opened into `model: {path: NAME}`."""
    node: Any = data
    for position, part in enumerate(path):
        step: Any = _index(part, node, key) if isinstance(node, list) else part
        found = node[step] if isinstance(node, list) else node.get(step)
        if position == 0 and part == "model" and isinstance(found, str):
            found = {"path": found}
        if found is not None and not isinstance(found, (dict, list)):
            place = ".".join(path[: position + 1])
            raise SettingError(f"override {key}", f"{place} = {found!r}", "a section", "check the key")
        node[step] = {} if found is None else found
        node = node[step]
    return node


def _index(part: str, node: list[Any], key: str) -> int:
    if not node:
        raise SettingError(f"override {key}", part, "a list position, but the list is empty", "set the whole list")
    if not part.isdecimal() or len(part) > 9 or int(part) >= len(node):
        raise SettingError(f"override {key}", part, f"a list position from 0 to {len(node) - 1}", "count from 0")
    return int(part)


def _number(text: str) -> Any:
    """YAML 1.1 reads 1e-5 as a string; users mean the number."""
    try:
        return float(text) if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+", text) else text
    except ValueError:
        return text


_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def expand(value: Any, place: str = "") -> Any:
    """`value` with `${NAME}` and `${NAME:-default}` replaced in every string; YAML's string `1e-5` as a number."""
    if isinstance(value, Mapping):
        return {key: expand(item, f"{place}.{key}" if place else str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, f"{place}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, (bytes, set, date)):
        raise SettingError(place, f"a {type(value).__name__}", "text, a number, true or false, a list or a mapping",
                           "put text in quotes")  # fmt: skip
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        found = os.environ.get(match[1], match[2])
        if found is None:
            raise SettingError(place, value, f"the environment variable {match[1]}", f"export {match[1]}=...")
        return found

    return _number(_VARIABLE.sub(variable, value))


def as_setting_error(error: ValidationError, model: type[BaseModel], prefix: str = "") -> SettingError:
    """The first complaint of pydantic as `<setting>: got <value>, need <condition>; <what to do>`."""
    first = error.errors()[0]
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, SettingError):
        return inner
    words, parent = _walk(model, first["loc"])
    location = _location(words, prefix)
    if first["type"] == "extra_forbidden":
        known = list(parent.model_fields) if parent is not None else []
        return SettingError(location, "an unknown key", "a known setting", nearest(str(first["loc"][-1]), known))
    if first["type"] == "missing":
        return SettingError(location, "nothing", "a value", "add it; see recipes/ for examples")
    message = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return SettingError(location, first["input"], message, "see `quatrain train --schema`")


def _location(parts: Sequence[int | str], prefix: str) -> str:
    """`prompts[0].limit`; the names that pydantic adds for the branches of a union are left out."""
    words = [part for part in parts if part not in ("str", "list[str]", "[key]")]
    text = prefix
    for word in words:
        text += f"[{word}]" if isinstance(word, int) else f".{word}" if text else str(word)
    return text or "recipe"


def _walk(model: type[BaseModel], location: Sequence[int | str]) -> tuple[list[int | str], type[BaseModel] | None]:
    """A place in the recipe without the tags that pydantic puts before a branch chosen by `name`, and its section."""
    node: Any = model
    words: list[int | str] = []
    section: type[BaseModel] | None = model
    for part in location:
        branch = _branch(node, part)
        if branch is not None:
            node = section = branch
            continue
        words.append(part)
        node = _inner(node)
        if isinstance(node, type) and issubclass(node, BaseModel):
            section = node
            if str(part) in node.model_fields:
                node = node.model_fields[str(part)].annotation
    return words, section


def _branch(annotation: Any, tag: int | str) -> type[BaseModel] | None:
    """The section of a union whose `name` may be `tag`."""
    for member in get_args(annotation):
        field = member.model_fields.get("name") if isinstance(member, type) and issubclass(member, BaseModel) else None
        if field is not None and tag in get_args(field.annotation):
            return member
    return None


def _inner(annotation: Any) -> Any:
    """The section class inside Optional, list, dict or Annotated."""
    while get_origin(annotation) is not None:
        arguments = [argument for argument in get_args(annotation) if argument is not type(None)]
        annotation = arguments[-1] if get_origin(annotation) is dict else arguments[0]
    return annotation


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Settings that differ, as `train.learning_rate: 1e-05 -> 2e-05`."""
    found = []
    for key in sorted({*old, *new}):
        before, after, name = old.get(key), new.get(key), f"{prefix}{key}"
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(before, after, f"{name}.")
        elif before != after:
            found.append(f"{name}: {before!r} -> {after!r}")
    return found

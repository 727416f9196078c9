"""From a recipe's section to a verifier."""

import ast
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from quatrain.config import VerifierConfig
from quatrain.errors import SettingError
from quatrain.recipe_file import as_setting_error
from quatrain.registry import existing_file, is_file_reference
from quatrain.rewards.function import FunctionVerifier
from quatrain.rewards.guard import Guarded
from quatrain.rewards.verifier import VERIFIERS, Limits, Verifier

DEFAULT_TIMEOUT_S = 5.0


def build_verifier(config: VerifierConfig, setting: str = "verifier") -> Verifier:
    """The verifier that `config` asks for; `setting` is its place in the recipe, shown in errors.

    A built-in, an entry point or `FILE.py:CLASS` gets the further keys as its own settings; `FILE.py:FUNCTION` takes
    none. Raises SettingError for an unknown kind, an unknown or wrong setting, or a file that cannot be loaded.
    """
    extra = dict(config.model_extra or {})
    is_function = is_file_reference(config.kind) and not _defines_class(config.kind)
    piece = None if is_function else VERIFIERS.get(config.kind, f"{setting}.kind")
    default_s = getattr(piece, "default_timeout_s", DEFAULT_TIMEOUT_S)
    limits = Limits(
        name=setting,
        setting=setting,
        timeout_s=default_s if config.timeout_s is None else config.timeout_s,
        on_error=config.on_error,
    )
    if piece is None:
        if extra:
            raise SettingError(f"{setting}.{min(extra)}", extra[min(extra)], "no further settings for a function",
                               "a function reads the row's columns; remove the key")  # fmt: skip
        name = f"{setting} ({config.kind.rpartition(':')[2]})"
        limits = Limits(name=name, setting=setting, timeout_s=limits.timeout_s, on_error=limits.on_error)
        return Guarded(FunctionVerifier(config.kind, limits), limits)
    if not hasattr(piece, "Settings"):
        raise SettingError(f"{setting}.kind", config.kind, "a verifier class with Settings", "see docs/verifiers.md")
    return Guarded(_made(piece, extra, limits), limits)


def judge_of(kind: Literal["judge", "local_judge"], settings: Mapping[str, Any], timeout_s: float) -> Any:
    """A judge by itself, to compare pairs with (`preferences`)."""
    limits = Limits(name="judge", setting="judge", timeout_s=timeout_s)
    return _made(VERIFIERS.get(kind, "judge.kind"), settings, limits)


def _made(piece: Any, settings: Mapping[str, Any], limits: Limits) -> Any:
    try:
        return piece(piece.Settings.model_validate(settings), limits)
    except ValidationError as error:
        raise as_setting_error(error, piece.Settings, limits.setting) from None


def _defines_class(reference: str) -> bool:
    """True when the file defines the name as a class at its top level; the file is not run."""
    path_text, _, name = reference.rpartition(":")
    path = existing_file(path_text)
    if path is None:
        return False
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body)

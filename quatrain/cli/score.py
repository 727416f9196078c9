"""`quatrain score`: a file of completions through one verifier, one JSON object a row."""

import asyncio
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from quatrain.config import VerifierConfig
from quatrain.errors import SettingError, VerifierError
from quatrain.recipe_file import apply_override, as_setting_error
from quatrain.rewards import Verifier, build_verifier, text_rollout
from quatrain.types import Rollout, Score


def score_file(verifier: str, rows: str | Path, settings: Sequence[str] = (), out: TextIO | None = None) -> None:
    """Score `rows` (JSONL with `completion`, and `prompt` and the verifier's columns) and print a line for each.

    A line is `{"value", "status", "parts", "error", "seconds"}`, value null when not judged, `seconds` of wall time for
    the row (for its group with a verifier that scores groups). A row may carry `token_ids` of its completion.
    Raises SettingError that names the line for a row that cannot be read or lacks a column.
    """
    config = configured(verifier, settings)
    numbered = list(read_rows(Path(rows)))
    built = build_verifier(config, "verifier")
    try:
        asyncio.run(_score_all(built, numbered, Path(rows), out or sys.stdout))
    finally:
        built.close()


def configured(verifier: str, settings: Sequence[str]) -> VerifierConfig:
    """A verifier's section from its kind and KEY=VALUE texts; SettingError for one that is not valid."""
    data: dict[str, Any] = {"kind": verifier}
    for setting in settings:
        apply_override(data, setting)
    try:
        return VerifierConfig.model_validate(data)
    except ValidationError as error:
        raise as_setting_error(error, VerifierConfig, "verifier") from None


def read_rows(path: Path) -> Iterator[tuple[int, Rollout]]:
    """Line numbers and rollouts of a JSONL file; blank lines are passed over."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError("rows", str(path), "a readable UTF-8 JSONL file", str(error)) from None
    groups: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{path.name} line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SettingError(place, line, "a JSON object", str(error)) from None
        if not isinstance(row, dict):
            raise SettingError(place, line, "a JSON object", "one object a line")
        yield number, _rollout(row, place, number, groups)


def _rollout(row: dict[str, Any], place: str, number: int, groups: dict[str, int]) -> Rollout:
    if "completion" not in row:
        raise SettingError(place, f"columns {sorted(row)}", "a column 'completion'", "rename the column")
    prompt, completion = (_text(row.get(name, ""), f"{place}, {name}") for name in ("prompt", "completion"))
    columns = {key: value for key, value in row.items() if key not in ("prompt", "completion", "token_ids")}
    tokens = row.get("token_ids")
    if tokens is not None and not (isinstance(tokens, list) and all(type(token) is int for token in tokens)):
        raise SettingError(f"{place}, token_ids", tokens, "a list of integers", "give the completion's token ids")
    group = groups.setdefault(prompt, len(groups))
    asked = row.get("prompt")
    messages = asked if isinstance(asked, list) and all("role" in message for message in asked) else ()
    return text_rollout(completion, columns, prompt=prompt, messages=messages, tokens=tokens, index=number, group=group)


def _text(value: Any, place: str) -> str:
    """A string as it is; of a list of messages the contents, one below the other."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(one, dict) and isinstance(one.get("content"), str) for one in value):
        return "\n".join(one["content"] for one in value)
    raise SettingError(place, value, "text or a list of messages", "see docs/verifiers.md")


async def _score_all(verifier: Verifier, rows: list[tuple[int, Rollout]], path: Path, out: TextIO) -> None:
    """Row by row (or group by group), so that the seconds are the row's own; lines come out in file order."""
    grouped = verifier.scope == "group"
    chunks: dict[int, list[int]] = {}
    for position, (_, rollout) in enumerate(rows):
        chunks.setdefault(rollout.group if grouped else position, []).append(position)
    lines: dict[int, str] = {}
    printed = 0
    for positions in chunks.values():
        started = time.perf_counter()
        try:
            scores = await verifier.score([rows[position][1] for position in positions])
        except VerifierError as error:
            numbers = ", ".join(str(rows[position][0]) for position in positions)
            raise VerifierError(f"{path.name} line {numbers}: {error}") from None
        seconds = time.perf_counter() - started
        lines.update((position, _line(score, seconds)) for position, score in zip(positions, scores, strict=True))
        while printed in lines:
            print(lines.pop(printed), file=out, flush=True)
            printed += 1


def _line(score: Score, seconds: float) -> str:
    value = score.value if math.isfinite(score.value) else None
    record = {"value": value, "status": score.status, "parts": dict(score.parts), "error": score.error}
    return json.dumps({**record, "seconds": round(seconds, 6)}, ensure_ascii=False)

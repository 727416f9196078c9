"""`json_schema`: the completion is JSON that a JSON Schema accepts, with credit field by field."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from quatrain.config import Section
from quatrain.errors import SettingError
from quatrain.rewards.function import accepted
from quatrain.rewards.pool import Pool
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, missing_column, scored_text
from quatrain.types import Rollout, Score

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


class JsonSchemaSettings(Section):
    """Settings of `json_schema`."""

    definition: dict[str, Any] | None = Field(None, description="the schema; null: from definition_file or the row")
    definition_file: str | None = Field(None, description="JSON file with the schema")
    schema_column: str = Field("schema", description="column with the row's schema, an object or its JSON text")
    partial: bool = Field(True, description="pay the share of fields that are right; otherwise all or nothing")
    answer_column: str | None = Field(
        None, description="column with a gold value: a field must also equal its field; null: the schema alone decides"
    )


@VERIFIERS.register("json_schema")
class JsonSchema:
    """The share of the schema's fields that the JSON value gets right; 0 for a text that is not JSON.

    Fields are the properties of objects, at any depth, that are required or present; a key that the schema forbids is
    a wrong field, and an object whose other keywords fail has none right. Anything else than an object with properties
    is one field: valid or not. `$ref` works within the schema; nothing is fetched. Judged in worker processes.
    """

    Settings: ClassVar[type[Section]] = JsonSchemaSettings
    default_timeout_s: ClassVar[float] = 2.0
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "format"
    examples: ClassVar[tuple[Example, ...]] = (
        Example(completion='{"name": "Ada", "age": 36}', columns={"schema": PERSON}, value=1.0),
        Example(completion='```json\n{"name": "Ada", "age": "36"}\n```', columns={"schema": PERSON}, value=0.5),
        Example(completion='{"name": "Ada", "age": 36, "x": 1, "y": 2}', columns={"schema": PERSON}, value=0.5),
        Example(completion='{"name": "Ada", "age": 36', columns={"schema": PERSON}, value=0.0),
        Example(completion="{}", columns={"schema": PERSON}, value=0.0),
    )

    def __init__(self, settings: JsonSchemaSettings, limits: Limits) -> None:
        self._settings, self._limits = settings, limits
        self._definition = settings.definition or self._from_file()
        if self._definition is not None and (fault := _fault(self._definition)):
            raise SettingError(f"{limits.setting}.definition", fault, "a valid JSON Schema", "correct the schema")
        self._pool = Pool("quatrain.rewards.json_schema_worker:schema_score", setting=limits.setting,
                          timeout_s=limits.timeout_s)  # fmt: skip

    def _from_file(self) -> dict[str, Any] | None:
        if self._settings.definition_file is None:
            return None
        try:
            found = json.loads(Path(self._settings.definition_file).expanduser().read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingError(f"{self._limits.setting}.definition_file", self._settings.definition_file,
                               "a JSON file with a schema", str(error)) from None  # fmt: skip
        if not isinstance(found, dict):
            raise SettingError(f"{self._limits.setting}.definition_file", found, "a JSON object", "correct the file")
        return found

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout; a row whose schema is not one is an error score."""
        answers = await self._pool.call([self._given(rollout) for rollout in rollouts])
        return accepted(answers, rollouts, self._limits.name)

    def _given(self, rollout: Rollout) -> dict[str, Any]:
        columns, name = rollout.prompt.columns, self._limits.name
        schema = self._definition
        if schema is None:
            if self._settings.schema_column not in columns:
                raise missing_column(name, rollout, self._settings.schema_column, "set definition or schema_column")
            schema = columns[self._settings.schema_column]
        given = {"text": scored_text(rollout), "schema": schema, "partial": self._settings.partial}
        if self._settings.answer_column is not None:
            if self._settings.answer_column not in columns:
                raise missing_column(name, rollout, self._settings.answer_column, "set answer_column")
            given["gold"] = columns[self._settings.answer_column]
        return given

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()


def _fault(schema: dict[str, Any]) -> str:
    """What is wrong with a schema, in one line; empty when nothing is."""
    from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped,import-not-found,unused-ignore]
    from jsonschema.validators import validator_for  # type: ignore[import-untyped,import-not-found,unused-ignore]

    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        return str(error.message)
    return ""

"""JSON against a JSON Schema, field by field; runs in a worker process that is killed at its deadline."""

import json
from fractions import Fraction
from typing import Any

from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped,import-not-found,unused-ignore]
from jsonschema.validators import validator_for  # type: ignore[import-untyped,import-not-found,unused-ignore]
from referencing import Registry  # type: ignore[import-not-found,unused-ignore]

from quatrain.rewards.json_object import read_json

ANY: Any = object()  # no gold value to compare with
FIELDS = ("properties", "required", "additionalProperties")


def schema_score(text: str, schema: Any, partial: bool, gold: Any = ANY) -> float:
    """The share of fields that are right, in [0, 1]; ValueError for a row whose schema is not one."""
    schema = json.loads(schema) if isinstance(schema, str) else schema
    gold = _plain(gold)
    kind = validator_for(schema)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"the row's schema is not valid: {error.message}") from None
    try:
        value = read_json(text)
    except ValueError:
        return 0.0
    validator = kind(schema, registry=Registry())
    share = _credit(validator, value, gold)
    return float(share) if partial else float(share == 1)


def _plain(gold: Any) -> Any:
    """A gold that is given as the JSON text of an object or list, as that."""
    if isinstance(gold, str) and gold.strip()[:1] in ("{", "["):
        return json.loads(gold)
    return gold


def _credit(validator: Any, value: Any, gold: Any) -> Fraction:
    """Mean credit of an object's fields; any other value is right or wrong as a whole."""
    schema = validator.schema
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(value, dict) or not properties:
        return Fraction(bool(validator.is_valid(value) and (gold is ANY or _equal(value, gold))))
    others = {key: part for key, part in schema.items() if key not in FIELDS}
    if not validator.evolve(schema=others).is_valid(value):
        return Fraction(0)
    if gold is not ANY and not isinstance(gold, dict):
        return Fraction(0)
    wrong = {name for name in value if name not in properties and _forbidden(validator, schema, name, value[name])}
    fields = {*schema.get("required", ()), *wrong, *(name for name in value if name in properties)}
    if gold is not ANY:
        fields |= {*gold, *value}
        wrong |= value.keys() - gold.keys()
    credit = [
        _credit(validator.evolve(schema=properties.get(name, True)), value[name], ANY if gold is ANY else gold[name])
        for name in fields
        if name in value and name not in wrong
    ]
    return Fraction(sum(credit, Fraction(0)), len(fields)) if fields else Fraction(1)


def _forbidden(validator: Any, schema: dict[str, Any], name: str, value: Any) -> bool:
    """True when `additionalProperties` (beside patternProperties) does not accept this key."""
    part = {key: schema[key] for key in ("patternProperties", "additionalProperties") if key in schema}
    return not validator.evolve(schema=part).is_valid({name: value})


def _equal(one: Any, other: Any) -> bool:
    """Equality of JSON values: true is not 1, 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return one == other

"""JSON against a schema with credit by field, regular expressions under a deadline, multiple choice."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from quatrain.config import VerifierConfig
from quatrain.errors import SettingError, VerifierError
from quatrain.rewards import build_verifier, text_rollout
from quatrain.rewards.choice import committed
from quatrain.types import Score


def score(settings: dict[str, Any], *texts: str, **columns: Any) -> list[Score]:
    verifier = build_verifier(VerifierConfig.model_validate(settings), "verifiers.main.form")
    try:
        return list(asyncio.run(verifier.score([text_rollout(text, columns, index=i) for i, text in enumerate(texts)])))
    finally:
        verifier.close()


def values(settings: dict[str, Any], *texts: str, **columns: Any) -> list[float]:
    found = score(settings, *texts, **columns)
    assert [one.error for one in found] == [""] * len(texts)
    return [one.value for one in found]


# --- JSON Schema ------------------------------------------------------------------------------------------------------

ORDER = {
    "type": "object",
    "properties": {
        "item": {"type": "string", "minLength": 1},
        "count": {"type": "integer", "minimum": 1},
        "to": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["city", "zip"],
        },
        "note": {"$ref": "#/$defs/note"},
    },
    "required": ["item", "count", "to"],
    "additionalProperties": False,
    "$defs": {"note": {"type": "string", "maxLength": 5}},
}
FULL = {"item": "pen", "count": 2, "to": {"city": "Bonn", "zip": "53111"}}


def test_credit_by_field_on_worked_examples() -> None:
    cases: list[tuple[Any, float]] = [
        (FULL, 1.0),
        ({**FULL, "note": "soon"}, 1.0),
        ({**FULL, "note": "too long"}, 3 / 4),  # a fourth field, and wrong
        ({**FULL, "count": 0}, 2 / 3),
        ({**FULL, "count": True}, 2 / 3),
        ({**FULL, "to": {"city": "Bonn", "zip": "x"}}, 5 / 6),
        ({**FULL, "to": "Bonn"}, 2 / 3),
        ({"item": "pen"}, 1 / 3),
        ({}, 0.0),
        ({**FULL, "x": 1, "y": 2, "z": 3}, 1 / 2),  # three keys that the schema forbids
        ([FULL], 0.0),
        ("text", 0.0),
        (None, 0.0),
    ]
    texts = [json.dumps(value) for value, _ in cases]
    settings = {"kind": "json_schema", "definition": ORDER}
    assert values(settings, *texts) == pytest.approx([expected for _, expected in cases])
    assert values({**settings, "partial": False}, *texts) == [float(expected == 1.0) for _, expected in cases]


def test_what_is_not_json_earns_nothing() -> None:
    full = json.dumps(FULL)
    texts = [full[:-1], full + full, "Here: " + full, full + " done", "", " ", "[" * 100_000, "nan",
             full.replace('"count": 2', '"count": 1, "count": 2')]  # fmt: skip
    assert values({"kind": "json_schema", "definition": ORDER}, *texts) == [0.0] * len(texts)
    assert values({"kind": "json_schema", "definition": ORDER}, f"```json\n{full}\n```") == [1.0]


def test_a_gold_is_compared_field_by_field() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "boolean"}}}
    settings = {"kind": "json_schema", "definition": schema, "answer_column": "answer"}
    texts = ['{"a": 1.0, "b": true}', '{"a": 1, "b": 1}', '{"a": 2, "b": true}', '{"a": 1}', "{}",
             '{"a": 1, "b": true, "c": 0, "d": 0}']  # fmt: skip
    expected = [1.0, 0.5, 0.5, 0.5, 0.0, 0.5]
    assert values(settings, *texts, answer={"a": 1, "b": True}) == expected
    assert values(settings, *texts, answer='{"a": 1, "b": true}') == expected


def test_constraints_that_span_fields_and_slow_patterns() -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"], "dependentRequired": {"a": ["b"]}}
    assert values({"kind": "json_schema"}, '{"a": 1}', '{"a": 1, "b": 2}', schema=json.dumps(schema)) == [0.0, 1.0]
    slow = {"type": "string", "pattern": "^(a+)+$"}
    [found] = score({"kind": "json_schema", "timeout_s": 1.0}, json.dumps("a" * 60 + "!"), schema=slow)
    assert (found.status, found.error) == ("error", "timeout after 1 s")


def test_nothing_is_fetched() -> None:
    [found] = score({"kind": "json_schema", "definition": {"$ref": "http://127.0.0.1:9/schema.json"}}, "{}")
    assert found.status == "error"
    assert "Unresolvable" in found.error


def test_schemas_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(ORDER))
    assert values({"kind": "json_schema", "definition_file": str(tmp_path / "schema.json")}, json.dumps(FULL)) == [1.0]
    with pytest.raises(SettingError, match=r"form.definition: got 5 is not valid under any"):
        score({"kind": "json_schema", "definition": {"type": 5}}, "{}")
    with pytest.raises(SettingError, match=r"form.definition_file: got .*nowhere.json, need a JSON file"):
        score({"kind": "json_schema", "definition_file": str(tmp_path / "nowhere.json")}, "{}")
    with pytest.raises(VerifierError, match="has no column 'schema'"):
        score({"kind": "json_schema"}, "{}")
    [found] = score({"kind": "json_schema"}, "{}", schema={"type": 5})
    assert "the row's schema is not valid" in found.error


# --- regular expressions ----------------------------------------------------------------------------------------------


def test_regex_settings() -> None:
    assert values({"kind": "regex", "pattern": r"\d+"}, " 42 ", "42 apples", "") == [1.0, 0.0, 0.0]
    assert values({"kind": "regex", "pattern": r"\d+", "match": "search"}, "42 apples", "apples") == [1.0, 0.0]
    assert values({"kind": "regex", "pattern": "yes.*no", "ignore_case": True}, "Yes\nNO") == [1.0]
    assert values({"kind": "regex", "pattern": "yes.*no", "dot_all": False}, "yes\nno", "yes no") == [0.0, 1.0]
    assert values({"kind": "regex", "pattern_column": "form"}, "42", form=r"\d+") == [1.0]
    with pytest.raises(SettingError, match=r"form.pattern: got \(, need a regular expression; missing \)"):
        score({"kind": "regex", "pattern": "("}, "x")
    with pytest.raises(VerifierError, match=r"column 'pattern' is '\*', need a regular expression"):
        score({"kind": "regex"}, "x", pattern="*")


def test_a_catastrophic_pattern_meets_its_deadline() -> None:
    verifier = build_verifier(VerifierConfig.model_validate({"kind": "regex", "pattern": "(a|a)*b", "match": "search"}))
    try:
        assert asyncio.run(verifier.score([text_rollout("ab")]))[0].value == 1.0
        started = time.monotonic()
        [found] = asyncio.run(verifier.score([text_rollout("a" * 200)]))
        assert time.monotonic() - started < 2.0
        assert (found.status, found.error) == ("error", "timeout after 0.5 s")
    finally:
        verifier.close()


# --- multiple choice --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"), ("(B)", "B"), ("B) Paris", "B"), ("B. A dog", "B"), ("The answer is **B**.", "B"),
        ("**Answer: C**", "C"), ("Answer: (C) Rome", "C"), (r"\boxed{\text{(C)}}", "C"), (r"\boxed{C. Rome}", "C"),
        ("#### D", "D"), ("I think so.\n\nB", "B"), ("The answer is A, a city in France", "A"),
        ("Between A and B, the answer is B.", "B"), ("A is wrong. The answer is C, because A is wrong", "C"),
        ("At first the answer is A. No, I erred. The answer is D!", "D"),
        ("The answer is A or B", None), ("A, B", None), ("A/B", None), ("AB", None), ("A B C D", None),
        (r"\boxed{A} \boxed{B}", None), (r"\boxed{A, B, C, D}", None), ("The answer is A and B", None),
        ("A) Rome\nB) Paris", None), ("A) Rome B) Paris", None), ("The answer is A. The answer is B.", None),
        ("Answer: A\nAnswer: B", None), ("The answer is: A) Rome, B) Paris", None), ("The answer is A (or B)", None),
        ("A dog is an animal.", None), ("The answer is not A", None), ("E", None), ("", None),
    ],
)  # fmt: skip
def test_the_letter_that_a_text_commits_to(text: str, letter: str | None) -> None:
    assert committed(text, "ABCD") == letter


def test_choice_settings_and_golds() -> None:
    assert values({"kind": "choice"}, "The answer is B", "A or B", "b", answer="(B)") == [1.0, 0.0, 0.0]
    assert values({"kind": "choice", "options": "ABCDEFGH"}, "H", answer="H") == [1.0]
    assert values({"kind": "choice", "extract": "tag"}, "<answer>B</answer>", "B", answer="B") == [1.0, 0.0]
    assert score({"kind": "choice"}, "The answer is B", answer="A")[0].answer == "B"
    with pytest.raises(VerifierError, match="column 'answer' is 'Paris', need one of the letters ABCD"):
        score({"kind": "choice"}, "B", answer="Paris")
    with pytest.raises(SettingError, match=r"form.options: got ab"):
        score({"kind": "choice", "options": "ab"}, "B", answer="B")

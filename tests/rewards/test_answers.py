"""Extraction, exact and numeric comparison: worked examples."""

import asyncio
from fractions import Fraction
from typing import Any

import pytest

from quatrain.config import VerifierConfig
from quatrain.errors import SettingError, VerifierError
from quatrain.rewards import build_verifier, text_rollout
from quatrain.rewards.extract import AnswerSettings, extract_answer, parse_number


@pytest.mark.parametrize(
    ("extract", "text", "expected"),
    [
        ("whole", "  a b \n", "a b"),
        ("last_line", "one\n two \n\n", "two"),
        ("last_number", "from 5 to $1,234.50.", "1,234.50"),
        ("last_number", "3-8=-5", "-5"),
        ("last_number", "10-12", "12"),
        ("last_number", "version 2.", "2"),
        ("last_number", "no digits", None),
        ("last_number", "16, 17, 18", None),
        ("last_number", "47 or 92", None),
        ("last_number", r"\boxed{47}, $\boxed{92}$", None),
        ("last_number", "18, 18", "18"),
        ("last_number", "16\n17", "17"),
        ("last_number", "12 + 5 = 17", "17"),
        ("first_number", "47 is larger than 12", "47"),
        ("first_number", "47 or 12", None),
        ("boxed", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("boxed", r"first \boxed 5, no: \boxed{9}", "9"),
        ("boxed", r"$\boxed{16}$, $\boxed{17}$ or $\boxed{18}$", None),
        ("boxed", r"\boxed{1}, maybe \boxed{2}", None),
        ("boxed", r"\boxed{7} \boxed{7}", "7"),
        ("boxed", r"\boxed{\frac{3}{4}", None),
        ("boxed", r"\boxed{a\}b}", r"a\}b"),
        ("hashes", "so\n#### 72\nmore", "72"),
        ("hashes", "#### 71\n#### 72", None),
        ("tag", "<answer> 4 </answer>", "4"),
        ("tag", "<answer>4</answer><answer>5</answer>", None),
        ("tag", "<answer>4", None),
    ],
)
def test_extract(extract: str, text: str, expected: str | None) -> None:
    assert extract_answer(text, AnswerSettings.model_validate({"extract": extract})) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,234,567", Fraction(1234567)),
        ("12,34", None),
        ("-0.10", Fraction(-1, 10)),
        ("\u22127", Fraction(-7)),
        (".5", Fraction(1, 2)),
        ("3/4", Fraction(3, 4)),
        ("3/0", None),
        ("6e-3", Fraction(3, 500)),
        ("1e999999999", None),
        ("$5", Fraction(5)),
        ("50%", Fraction(50)),
        ("045", Fraction(45)),
        ("9" * 5000, None),
        ("1.2.3", None),
        ("", None),
        ("abc", None),
    ],
)
def test_parse_number(text: str, expected: Fraction | None) -> None:
    assert parse_number(text) == expected


def test_percent_and_currency_are_settings() -> None:
    assert parse_number("50%", percent=True) == Fraction(1, 2)
    assert parse_number("$5", currency=False) is None


def value(settings: dict[str, Any], completion: str, **columns: Any) -> float:
    verifier = build_verifier(VerifierConfig.model_validate(settings), "verifiers.main.correct")
    return asyncio.run(verifier.score([text_rollout(completion, columns)]))[0].value


def test_right_answers_within_the_tolerance_are_one_vote() -> None:
    verifier = build_verifier(VerifierConfig.model_validate({"kind": "numeric", "tolerance": 0.25}), "verifiers.x.y")
    texts = ("72.1", "71.9", "70", "70.5")
    scores = asyncio.run(verifier.score([text_rollout(text, {"answer": 72}) for text in texts]))
    assert [score.answer for score in scores] == ["72", "72", "70", "141/2"]


def test_numeric_is_exact_unless_told_otherwise() -> None:
    assert value({"kind": "numeric"}, "0.30000000000000004", answer="0.3") == 0.0
    assert value({"kind": "numeric"}, "0.300", answer="3/10") == 1.0
    assert value({"kind": "numeric", "tolerance": 0.5}, "72.4", answer=72) == 1.0
    assert value({"kind": "numeric", "tolerance": 0.25}, "72.4", answer=72) == 0.0
    assert value({"kind": "numeric", "tolerance": 0.25, "relative": True}, "72.4", answer=72) == 1.0
    assert value({"kind": "numeric", "percent": True}, "75%", answer="0.75") == 1.0
    assert value({"kind": "numeric"}, "75%", answer="0.75") == 0.0


def test_a_gold_with_its_solution_is_read_behind_the_hashes() -> None:
    assert value({"kind": "numeric", "extract": "hashes"}, "5+67\n#### 72", answer="1 + 71\n#### 72") == 1.0


def test_five_scores_for_five_rollouts_one_of_them_without_an_answer() -> None:
    verifier = build_verifier(VerifierConfig(kind="numeric"))
    texts = ["x=5", "no idea", "x = 5", "nothing", "5"]
    scores = asyncio.run(verifier.score([text_rollout(text, {"answer": 5}) for text in texts]))
    assert [score.value for score in scores] == [1, 0, 1, 0, 1]


def test_exact_settings() -> None:
    assert value({"kind": "exact"}, "paris", answer="Paris") == 0.0
    assert value({"kind": "exact", "case_sensitive": False}, "paris", answer="Paris") == 1.0
    assert value({"kind": "exact", "extract": "tag", "tag": "a"}, "so <a>B</a>", answer="B") == 1.0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"solution": 1, "topic": 2}, "no column 'answer'; its columns: solution, topic"),
        ({"answer": " "}, "column 'answer' is empty"),
        ({"answer": "12 #### "}, "column 'answer' is empty"),
        ({"answer": [1]}, "column 'answer' is list"),
        ({"answer": "abc"}, "'abc', need a number"),
    ],
)
def test_a_fault_of_the_data_stops_with_one_line(columns: dict[str, Any], message: str) -> None:
    verifier = build_verifier(VerifierConfig(kind="numeric", on_error="zero"), "verifiers.main.correct")
    with pytest.raises(VerifierError, match=r"verifiers\.main\.correct: prompt 4, completion 0") as caught:
        asyncio.run(verifier.score([text_rollout("5", columns, index=4)]))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"kind": "numeric", "tolerence": 1},
            "v.tolerence: got an unknown key, need a known setting; did you mean 'tol",
        ),
        ({"kind": "numeric", "tolerance": -1}, "v.tolerance: got -1"),
        ({"kind": "numerc"}, "v.kind: got numerc, need a known verifier; did you mean 'numeric'"),
        ({"kind": "/nowhere/file.py:f"}, "v.kind: got /nowhere/file.py:f, need an existing Python file"),
        ({"kind": "soft_overlong", "max_tokens": 5, "cache_tokens": 6}, "cache_tokens: got 6"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        build_verifier(VerifierConfig.model_validate(settings), "v")
    assert str(caught.value).startswith(message)

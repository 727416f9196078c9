"""Pairs whose verdict needs a rule: the default one, and what the setting for it changes."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quatrain.config import VerifierConfig
from quatrain.rewards import build_verifier, text_rollout
from quatrain.rewards.math_rules import DEFAULTS, MathSettings, apply_rules

LINES = (Path(__file__).parents[1] / "cases/math_policy.jsonl").read_text("utf-8").splitlines()
CASES = {case["id"]: case for case in map(json.loads, LINES)}

# id: verdict by the default rule
DEFAULT = {
    "p00": False, "p01": True, "p02": True, "p03": False, "p04": False, "p05": True, "p06": True, "p07": True,
    "p08": False, "p09": True, "p10": True, "p11": False, "p12": False, "p13": False, "p14": False, "p15": True,
    "p16": False, "p17": False, "p18": False, "p19": True, "p20": False, "p21": False, "p22": False, "p23": False,
    "p24": True, "p25": False, "p26": False,
}  # fmt: skip

# id, settings, verdict under them
CHANGED = [
    ("p00", {"bare_percent": True}, True),
    ("p01", {"rounded_digits": None}, False),
    ("p02", {"rounded_digits": None}, False),
    ("p02", {"rounded_digits": 17}, False),
    ("p05", {"relations_as_sets": False}, False),
    ("p06", {"list_order": "same"}, False),
    ("p08", {"bare_base": True}, True),
    ("p09", {"form": "written"}, False),
    ("p10", {"form": "written"}, False),
    ("p12", {"ratios": True}, True),
    ("p13", {"powers": "plain"}, True),
    ("p15", {"require_marker": True}, False),
    ("p17", {"require_marker": True}, False),
    ("p25", {"decimal_comma": True}, True),
]

OWN = [
    (r"x\ge 3", r"\boxed{x>3 \text{ or } x=3}", True),
    (r"x\ge 3", r"\boxed{x>3 \text{ or } x=4}", False),
    (r"x\ge 3", r"\boxed{y>3 \text{ or } y=3}", False),
    (r"x<1 \text{ or } x>2", r"\boxed{x>2 \lor x<1}", True),
    (r"x<1 \text{ or } x>2", r"\boxed{(-\infty,1]\cup(2,\infty)}", False),
    (r"x<1 \text{ or } x>2", r"\boxed{x\in(-\infty,1)\cup(2,\infty)}", True),
    (r"\frac{1}{3}", r"\boxed{0.333333333333333}", True),
    (r"\frac{1}{3}", r"\boxed{0.33333333333333}", False),
    (r"\frac{1}{3}", r"\boxed{0.333333333333334}", False),
    (r"0.333333333333333", r"\boxed{\frac{1}{3}}", True),
    ("0.1234567890123456", r"\boxed{0.1234567890123457}", False),
    (r"\sqrt{2}", r"\boxed{1.41421356237309505}", True),
    (r"\sqrt{2}", r"\boxed{1.41421356237310505}", False),
    (r"\sqrt{4}", r"\boxed{2.000000000000000001}", False),
    ("x+G", r"\boxed{x+g}", False),
    ("x+G", r"\boxed{G+x}", True),
    ("x", r"\boxed{\sqrt[3]{x^3}}", True),
    ("x^{2/3}", r"\boxed{\sqrt[3]{x}}", False),
    ("4", r"\boxed{(-8)^{2/3}}", True),
    ("2^{10}", "The answer is 2^10", True),
]


@pytest.fixture(scope="module")
def verdict() -> Iterator[Any]:
    """A function from gold, completion and settings to what is paid; the worker processes are shared."""
    verifier = build_verifier(VerifierConfig(kind="math", timeout_s=5.0))

    def judge(gold: str, completion: str, settings: dict[str, Any]) -> float:
        verifier.inner._settings = MathSettings.model_validate(settings)  # type: ignore[attr-defined]
        [score] = asyncio.run(verifier.score([text_rollout(completion, {"answer": gold})]))
        assert score.usable, score.error
        return score.value

    yield judge
    verifier.close()


@pytest.mark.parametrize("name", CASES)
def test_the_default_rule(name: str, verdict: Any) -> None:
    case = CASES[name]
    paid = verdict(case["gold"], case["prediction"], {}) == 1.0
    assert paid == DEFAULT[name]
    if case["recommended"].startswith(("true", "false")) and name not in ("p08", "p15", "p17"):
        assert paid == case["recommended"].startswith("true")


def test_every_pair_has_its_rule() -> None:
    assert len(LINES) == 27
    assert DEFAULT.keys() == CASES.keys()


@pytest.mark.parametrize(("name", "settings", "expected"), CHANGED)
def test_a_setting_changes_the_rule(name: str, settings: dict[str, Any], expected: bool, verdict: Any) -> None:
    case = CASES[name]
    assert (verdict(case["gold"], case["prediction"], settings) == 1.0) is expected


def test_settings_come_from_the_recipe() -> None:
    verifier = build_verifier(VerifierConfig.model_validate({"kind": "math", "bare_percent": True}))
    try:
        assert asyncio.run(verifier.score([text_rollout("65", {"answer": "65%"})]))[0].value == 1.0
    finally:
        verifier.close()


@pytest.mark.parametrize(("gold", "completion", "expected"), OWN)
def test_own_pairs(gold: str, completion: str, expected: bool, verdict: Any) -> None:
    assert (verdict(gold, completion, {}) == 1.0) is expected


def test_rules_without_a_worker() -> None:
    assert apply_rules("3:2", "6:4", DEFAULTS.model_copy(update={"ratios": True}), False) == (
        r"\frac{3}{2}",
        r"\frac{6}{4}",
    )
    assert apply_rules("3,7", "7,3", DEFAULTS.model_copy(update={"list_order": "same"}), True) == ("(3,7)", "(7,3)")
    assert apply_rules("1024", "2^10", DEFAULTS, True) == ("1024", "2^{1} 0")
    assert apply_rules("1024", "2^10", DEFAULTS, False) == ("1024", "2^10")
    assert apply_rules("x", "x", DEFAULTS.model_copy(update={"form": "written"}), True) is True

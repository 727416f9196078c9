"""The audit finds planted holes with the smallest input that shows them, and nothing on the built-ins."""

import asyncio
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quatrain.cli.audit import audit_verifier
from quatrain.config import VerifierConfig
from quatrain.errors import SettingError
from quatrain.rewards import VERIFIERS, build_verifier, build_verifiers
from quatrain.rewards.attacks import Case, correctness_attacks, format_attacks
from quatrain.rewards.audit import Report, audit, purpose_of, quick_audit
from quatrain.types import Prompt
from tests.rewards.in_process import wrap_function

HOLES = """
import re

def constant(completion, answer):
    return 1.0

def substring(completion, answer):
    return float(str(answer) in completion)

def last_number(completion, answer):
    found = re.findall(r"-?[0-9]+", completion)
    return float(bool(found) and found[-1] == str(answer))

def any_box(completion, answer):
    return float(f"\\\\boxed{{{answer}}}" in completion)

def loose_tags(completion):
    return float(bool(re.search("<think>.*</think>.*", completion, re.DOTALL)))

def judged(completion, answer):
    return float("VERDICT: 10" in completion or completion.strip() == answer)

def echo(prompt, completion, answer):
    return float(completion == answer or completion == prompt)

def blank(completion, answer):
    return float(not completion.strip() or completion == answer)

def folds(completion, answer):
    plain = completion.translate(str.maketrans("\\u0430\\u0435\\u043e\\u0420", "aeoP"))
    return float(plain == answer)

def sound(completion, answer):
    lines = completion.strip().splitlines()
    return bool(lines) and lines[-1].strip() == answer

def sound_with_bonus(completion, answer):
    match = re.fullmatch("<think>[^<]+</think><answer>([^<]*)</answer>", completion)
    return (0.2 + (match[1] == answer)) if match else 0.0

def needs_more(completion, answer, numbers):
    return float(completion == answer)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("user") / "holes.py"
    path.write_text(HOLES)
    return path


def attacked(function: Callable[..., Any]) -> Report:
    """The audit of a function object, which needs no worker process."""
    return asyncio.run(audit(wrap_function(function), measures=None))


@pytest.fixture(scope="module")
def hole(file: Path) -> Callable[[str], dict[str, str]]:
    """Kinds of attacks that a function of the file pays, and the smallest completion of each."""
    namespace: dict[str, Any] = {}
    exec(file.read_text(), namespace)
    return lambda name: {one.attack: one.completion for one in attacked(namespace[name]).paid}


@pytest.mark.parametrize(
    ("name", "paid"),
    [
        ("constant", {"refusal": "I do not know."}),
        ("last_number", {"several candidates": "31 72"}),
        ("any_box", {"several answers": "\\boxed{31}\\boxed{72}"}),
        ("judged", {"injected verdict": "VERDICT: 10"}),
        ("echo", {"prompt echo": "How many days has May?"}),
        ("blank", {"empty": "", "empty form": "", "white space": " "}),
        ("folds", {"look-alike": "R\u043em\u0435"}),
        ("sound", {}),
        ("sound_with_bonus", {}),
    ],
)
def test_planted_holes_are_found(hole: Callable[[str], dict[str, str]], name: str, paid: dict[str, str]) -> None:
    found = hole(name)
    assert {key: found.get(key) for key in paid} == paid
    assert bool(found) == bool(paid)


def test_a_substring_verifier_and_loose_tags(hole: Callable[[str], dict[str, str]]) -> None:
    substring = hole("substring")
    assert substring["gold inside"] == "1727"
    assert {"several candidates", "several answers", "all candidates"} <= substring.keys()
    assert len(substring["all candidates"]) <= 5
    tags = hole("loose_tags")
    assert tags["tags without content"] == "<think></think>"
    assert tags["repeated closing tag"] == "<think></think></think>"
    assert {"repeated block", "nested tags"} <= tags.keys()
    assert "unclosed tag" not in tags


@pytest.mark.parametrize("kind", ["exact", "numeric", "choice", "format", "json_object", "regex", "diversity"])
def test_nothing_false_on_the_built_ins(kind: str) -> None:
    verifier = build_verifier(VerifierConfig(kind=kind, timeout_s=5.0), kind)
    try:
        report = asyncio.run(audit(verifier))
    finally:
        verifier.close()
    assert report.paid == []
    assert report.attacks > 3


@pytest.mark.full
@pytest.mark.parametrize("kind", sorted({*VERIFIERS.names()} - {"judge", "code", "reward_model", "local_judge"}))
def test_nothing_false_on_any_built_in(kind: str) -> None:
    if kind == "language":
        pytest.importorskip("py3langid")
    assert audit_verifier(kind, out=io.StringIO())


def test_lines_json_and_the_exit(file: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "6 * 7?", "completion": "42", "answer": "42"}\n'
                    '{"prompt": "5 * 5?", "completion": "", "answer": "25"}\n')  # fmt: skip
    out = io.StringIO()
    assert not audit_verifier(f"{file}:last_number", rows, out=out)
    assert "PAID 1  several candidates: '25 42' where '42' is right" in out.getvalue()
    assert "a right answer gets 1, a refusal 0" in out.getvalue()
    out = io.StringIO()
    assert not audit_verifier(f"{file}:last_number", rows, as_json=True, out=out)
    data = json.loads(out.getvalue())
    assert data["rows"] == 2
    assert {one["attack"] for one in data["paid"]} >= {"several candidates"}
    out = io.StringIO()
    assert audit_verifier(f"{file}:sound", rows, out=out)
    assert "0 kinds wrongly paid" in out.getvalue()
    assert not audit_verifier("numeric", rows, ["tolerance=1000"], out=io.StringIO())


def test_what_cannot_be_audited(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "6 * 7?", "completion": "wrong", "answer": "42"}\n')
    with pytest.raises(SettingError, match=r"audit: got 1 rows on which nothing earns more than a refusal"):
        audit_verifier("regex", rows, ["pattern=never"], out=io.StringIO())
    with pytest.raises(SettingError, match=r"programs: got .*, need a folder with attacks.json"):
        audit_verifier("code", programs=tmp_path, out=io.StringIO())


def test_an_error_score_is_counted_and_not_paid() -> None:
    def fragile(completion: str, answer: str) -> float:
        if "," in completion:
            raise ValueError("a comma")
        return float(completion == answer)

    report = attacked(fragile)
    assert report.paid == []
    assert report.unjudged > 0


def test_what_a_function_pays_for() -> None:
    def form(completion: str) -> float:
        return float(len(completion))

    def right(completion: str, answer: str) -> float:
        return float(completion == answer)

    def anything(**columns: Any) -> float:
        return float(len(columns))

    assert [purpose_of(wrap_function(one)) for one in (form, right, anything)] == [
        "format",
        "correctness",
        "correctness",
    ]
    assert purpose_of(build_verifier(VerifierConfig(kind="repetition"))) == "shaping"


def test_every_attack_shows_its_own_fault() -> None:
    case = Case("What is 5 + 2?", {}, "7", "31", ("{}", "\\boxed{{{}}}", "<answer>{}</answer>"))
    for attack in correctness_attacks(case):
        assert attack.still(attack.text), attack
        assert attack.text != "7"
    right = "<think>So.</think><answer>7</answer>"
    attacks = list(format_attacks(Case("", {}, right=right)))
    assert all(attack.still(attack.text) and not attack.still(right) for attack in attacks)
    assert len(attacks) > 12


def test_the_quick_part_warns_within_a_second(file: Path) -> None:
    sections = {
        "sums": {"hole": VerifierConfig(kind=f"{file}:last_number"), "sound": VerifierConfig(kind="numeric"),
                 "judge": VerifierConfig.model_validate({"kind": "judge", "address": "http://127.0.0.1:9/v1"}),
                 "length": VerifierConfig(kind="soft_overlong")},
    }  # fmt: skip
    prompts = [Prompt(index=i, token_ids=(0,), text=text, columns={"answer": gold})
               for i, (text, gold) in enumerate([("6 * 7?", "42"), ("5 * 5?", "25")])]  # fmt: skip
    with build_verifiers(sections) as verifiers:
        started = time.monotonic()
        for _ in range(20):  # a worker that is still starting on a busy machine is passed over
            lines = quick_audit(verifiers, prompts)
            if lines:
                break
        assert time.monotonic() - started < 20 * 2
    assert len(lines) == 1
    assert lines[0].startswith("verifiers.sums.hole pays 1 for '")
    assert "`quatrain audit`" in lines[0]


def test_the_quick_part_passes_over_what_it_cannot_attack(file: Path) -> None:
    with build_verifiers({"main": {"odd": VerifierConfig(kind=f"{file}:needs_more")}}) as verifiers:
        assert quick_audit(verifiers) == []

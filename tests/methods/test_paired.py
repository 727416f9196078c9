"""Two policies on the same prompts, by hand."""

from dataclasses import replace
from io import StringIO

import pytest

from quatrain.errors import SettingError
from quatrain.methods.evaluate import Evaluation
from quatrain.methods.paired import by_source, differing, paired, sign_test
from quatrain.methods.reports import ASKED, show, show_comparison
from quatrain.telemetry.console import Console
from tests.methods.test_evaluate import NAN, answer, evaluation


@pytest.mark.parametrize(
    ("higher", "lower", "p"),
    [(0, 0, 1.0), (3, 3, 1.0), (6, 0, 2 / 64), (0, 6, 2 / 64), (5, 1, 2 * 7 / 64), (1, 0, 1.0), (2000, 0, 0.0)],
)
def test_the_sign_test_by_hand(higher: int, lower: int, p: float) -> None:
    assert sign_test(higher, lower) == pytest.approx(p, abs=1e-300)


def test_differences_and_counts() -> None:
    """Six prompts won, one lost, one equal: difference 5/8, p = 2 (1 + 7) / 128."""
    found = paired(evaluation(*[[1.0]] * 6, [0.0], [1.0]), evaluation(*[[0.0]] * 6, [1.0], [1.0]))
    one = found["pass@1"]
    assert one["target"]["value"] == 7 / 8 and one["against"]["value"] == 2 / 8
    assert one["difference"]["value"] == 5 / 8 and one["difference"]["prompts"] == 8
    assert 0 < one["difference"]["low"] < 5 / 8 < one["difference"]["high"] <= 1
    assert (one["higher"], one["lower"], one["equal"]) == (6, 1, 1) and one["p"] == 2 * 8 / 128
    assert found["length"]["p"] is None and found["length"]["equal"] == 8
    rate = one["win_rate"]
    assert rate["value"] == 6 / 7 and rate["prompts"] == 7 and 0 < rate["low"] < 6 / 7 < rate["high"] == 1
    assert found["length"]["win_rate"]["value"] != found["length"]["win_rate"]["value"], "nothing differs: no rate"


def test_the_interval_is_paired() -> None:
    """Every prompt gains exactly 1/2, however far the prompts lie apart."""
    found = paired(evaluation([1, 0], [1, 1], [1, 0]), evaluation([0, 0], [1, 0], [0, 0]))["pass@1"]
    assert (found["difference"]["low"], found["difference"]["high"]) == (0.5, 0.5)
    assert found["p"] is None, "a share of completions is not 0 or 1"
    assert paired(evaluation([1, 0], [1, 1]), evaluation([0, 0], [1, 0]))["pass@2"]["p"] == 1.0, "one prompt won"


def test_a_prompt_that_was_not_judged_once_is_out_of_the_comparison() -> None:
    one = paired(evaluation([1], [NAN], [1]), evaluation([0], [1], [NAN]))["pass@1"]
    assert one["difference"]["value"] == 1.0 and one["difference"]["prompts"] == 1
    assert (one["higher"], one["lower"], one["equal"]) == (1, 0, 0)


def test_only_measures_that_both_have_are_compared() -> None:
    found = paired(evaluation([1, 0, 1, 1]), evaluation([1, 0]))
    assert "pass@2" in found and "pass@4" not in found and "mean@2" not in found


def test_each_source() -> None:
    first = Evaluation(0, 1, (answer(0, 1.0, source="a"), answer(1, 0.0, source="b")))
    second = Evaluation(0, 1, (answer(0, 0.0, source="a"), answer(1, 0.0, source="b")))
    found = by_source(first, second)
    assert found["a"]["pass@1"]["higher"] == 1 and found["b"]["pass@1"]["equal"] == 1
    assert by_source(first.of("a"), second.of("a")) == {}


def test_different_prompts_are_one_line() -> None:
    with pytest.raises(SettingError, match=r"^--against: got 2 and 1 prompts, need the same prompts in the same order"):
        paired(evaluation([1], [0]), evaluation([1]))
    other = Evaluation(0, 1, (answer(0, 1.0), replace(answer(1, 1.0), question="another")))
    with pytest.raises(SettingError, match=r"got another question as prompt 2, need the same"):
        paired(evaluation([1], [0]), other)


def test_what_else_was_not_the_same() -> None:
    one = replace(evaluation([1]), sampling={"temperature": 1.0, "max_tokens": 8})
    other = replace(evaluation([1, 0]), sampling={"temperature": 1.0, "max_tokens": 9})
    assert differing(one, other) == ["completions a prompt 1 and 2", "max_tokens 8 and 9"]
    assert differing(one, one) == [] == differing(one, evaluation([1]))


def test_what_nothing_measured_is_not_in_the_tables() -> None:
    nothing = {"value": None, "low": None, "high": None}
    half = {"value": 0.5, "low": 0.25, "high": 0.75}
    rows = {name: {"target": cell, "against": cell, "difference": cell, "win_rate": cell, "higher": 0, "lower": 0,
                   "equal": 2, "p": 1.0} for name, cell in (("pass@1", nothing), ("reward", half))}  # fmt: skip
    asked = dict.fromkeys(ASKED)
    found = {"target": "a", "against": "b", "prompts": 2, "notes": [], "greedy": None, **asked,
             "sampled": {"measures": rows, "sources": {}}}  # fmt: skip
    one = {**found, "sampled": {"measures": {"pass@1": nothing, "reward": half}, "sources": {}, "samples": 1,
                                "sampling": {}}}  # fmt: skip
    for shower, data in ((show_comparison, found), (show, one)):
        stream = StringIO()
        shower(data, Console(stream, terminal=False))
        assert "mean reward" in stream.getvalue() and "pass@1" not in stream.getvalue()

"""Names, their meanings, and the page that is written from them."""

from pathlib import Path

import pytest

from quatrain.algorithms import grpo, ppo, preference, reward_model, sft
from quatrain.telemetry.catalogue import CATALOGUE, describe, is_deterministic, main, render

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_an_exact_entry_wins_over_a_pattern() -> None:
    assert describe("time/rollout_s") is CATALOGUE["time/rollout_s"]
    assert describe("time/else_s") is CATALOGUE["time/<phase>_s"]
    assert describe("time/else") is None
    assert describe("rollout/stop_eos") is CATALOGUE["rollout/stop_<reason>"]


def test_an_algorithm_documents_its_own_names() -> None:
    assert describe("policy/odd") is None
    info = describe("policy/odd", {"policy/odd": "Odd."})
    assert info is not None
    assert info.meaning == "Odd."
    starred = describe("reward/part/correct", {"reward/part/*": "One part."})
    assert starred is not None
    assert starred.meaning == "One part."


@pytest.mark.parametrize("source", ["gsm8k", "hf:openai/gsm8k"])
def test_a_source_prefix_keeps_meaning_and_unit(source: str) -> None:
    info = describe(f"source/{source}/rollout/length")
    assert info is not None
    assert info.meaning == f"Of the rows of source {source}: Mean length of a completion."
    assert info.unit == "tokens"
    assert describe(f"source/{source}/unheard/of") is None


def test_what_a_clock_decides_is_not_deterministic() -> None:
    names = ["time/step_s", "time/new_s", "speed/tokens_per_s", "memory/rss_peak_gib", "source/a/speed/tokens_per_s"]
    assert [is_deterministic(name) for name in names] == [False] * 5
    assert [is_deterministic(name) for name in ["train/loss", "reward/mean", "unheard/of"]] == [True] * 3


def test_a_pipe_in_a_meaning_does_not_break_the_table() -> None:
    page = render({"Algorithm": {"kl/x": "KL(a || b)"}})
    assert "| `kl/x` | KL(a \\|\\| b) |" in page


def test_the_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    modules = [grpo, ppo, sft, preference, reward_model]  # as `make docs` has them
    main([module.__name__ for module in modules])
    printed = capsys.readouterr().out
    names = {line.split("`")[1] for line in printed.splitlines() if line.startswith("| `")}
    assert all(set(module.DOCUMENTED) <= names for module in modules)
    assert PAGE.read_text(encoding="utf-8") == printed, "run `make docs`"

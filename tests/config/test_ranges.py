"""Settings outside the usual ranges are named with their effect, and nothing within them is."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from quatrain.config import Recipe, merge, warnings_of
from quatrain.methods.dry_run import dry_run, unusual_settings
from quatrain.methods.online import train
from quatrain.recipe_file import validate_recipe
from quatrain.telemetry.console import Console
from tests.runs import recipe

USUAL: dict[str, Any] = {
    "model": "m", "prompts": [{"source": "rows.jsonl"}], "verifiers": {"math": {"correct": {"kind": "exact"}}},
    "train": {"prompts_per_step": 8}, "rollout": {"group_size": 8},
}  # fmt: skip


def wanted(**changes: Any) -> Recipe:
    found = validate_recipe(merge(USUAL, changes))
    assert isinstance(found, Recipe)
    return found


@pytest.mark.parametrize(
    ("algorithm", "train", "start"),
    [
        ({"kl": {"coefficient": 0.01}}, {}, "algorithm.kl.coefficient: 0.01 is below 0.02"),
        ({"kl": {"placement": "none"}}, {}, "algorithm.kl.coefficient: 0 is below 0.02"),
        ({"kl": {"coefficient": 0.3}}, {}, "algorithm.kl.coefficient: 0.3 is above 0.2"),
        ({"clip_low": 0.05}, {}, "algorithm.clip_low: 0.05 is outside 0.1-0.2: updates are cut early"),
        ({"clip_high": 0.28}, {}, "algorithm.clip_high: 0.28 is outside 0.1-0.2: updates are large"),
        ({"clip_high": 0.4}, {}, "algorithm.clip_high: 0.4 is far above 0.2: one update may"),
        ({"critic": {"gae_lambda": 1.0}}, {}, "algorithm.critic.gae_lambda: 1 is outside 0.9-0.99: less bias"),
        ({"critic": {"gae_lambda": 0.5}}, {}, "algorithm.critic.gae_lambda: 0.5 is outside 0.9-0.99: less variance"),
        ({"critic": {"value_coefficient": 2}}, {}, "algorithm.critic.value_coefficient: 2 is outside 0.1-1: Adam"),
        ({"critic": {"value_coefficient": 2, "model": "shared"}}, {}, "algorithm.critic.value_coefficient: 2 is outside"
         " 0.1-1: it competes"),
        ({"entropy_coefficient": 0.02}, {}, "algorithm.entropy_coefficient: 0.02 is above 0.01"),
        ({}, {"epochs": 5}, "train.epochs: 5 is above 4"),
        ({}, {"prompts_per_step": 4}, "train.prompts_per_step: 32 completions a step are outside 64-512: advantages"),
        ({}, {"prompts_per_step": 128}, "train.prompts_per_step: 1024 completions a step are outside 64-512: many"),
    ],
)  # fmt: skip
def test_ppo_outside_a_range(algorithm: dict[str, Any], train: dict[str, Any], start: str) -> None:
    (line,) = warnings_of(wanted(algorithm={"preset": "ppo", **algorithm}, train=train))
    assert line.startswith(start) and "\n" not in line


def test_nothing_is_said_of_usual_settings() -> None:
    edges = {"clip_low": 0.1, "clip_high": 0.2, "entropy_coefficient": 0.01, "kl": {"coefficient": 0.02},
             "critic": {"gae_lambda": 0.9, "value_coefficient": 1.0}}  # fmt: skip
    assert warnings_of(wanted(algorithm={"preset": "ppo"})) == []
    assert warnings_of(wanted(algorithm={"preset": "ppo", **edges}, train={"epochs": 4})) == []
    for preset in ("grpo", "dapo", "dr_grpo", "gspo", "cispo", "rloo", "reinforce_pp"):
        assert warnings_of(wanted(algorithm={"preset": preset})) == []


def test_the_group_relative_methods() -> None:
    def found(**changes: Any) -> list[str]:
        return [line.partition(":")[0] for line in warnings_of(wanted(**changes))]

    assert found(algorithm={"clip_high": 0.31, "clip_low": 0.4}) == ["algorithm.clip_low", "algorithm.clip_high"]
    assert found(algorithm={"clip_high": 0.3}) == []
    assert found(algorithm={"preset": "cispo", "clip_low": 0.5}) == []  # it has no lower clip
    assert found(train={"epochs": 5}) == ["train.epochs"]
    assert found(rollout={"group_size": 4}) == ["rollout.group_size"]
    assert (
        len(warnings_of(wanted(), experts=True)) == 1 and warnings_of(wanted(rollout={"group_size": 16}), 7, True) == []
    )


def test_a_rate_is_large_by_the_size_of_what_is_trained() -> None:
    """1e-6 at 7e9 and above; ten times the rate for a tenth of the parameters; adapters are another matter."""
    for parameters, largest in ((70e9, 1e-6), (7e9, 1e-6), (0.7e9, 1e-5), (134e6, 5.2e-5)):
        for rate, lines in ((largest * 0.99, 0), (largest * 1.1, 1)):
            assert len(warnings_of(wanted(train={"learning_rate": rate}), int(parameters))) == lines
    (line,) = warnings_of(wanted(train={"learning_rate": 1e-5}), 7_000_000_000)
    assert line == ("train.learning_rate: 1e-05 is above 1e-06, which is large for 7,000,000,000 trained parameters: "
                    "the reward may rise for a few steps and then collapse")  # fmt: skip
    lora = wanted(model={"path": "m", "lora": {}}, train={"learning_rate": 1e-3})
    assert warnings_of(lora, 7_000_000_000) == []
    assert warnings_of(wanted(train={"learning_rate": 1.0})) == []  # a model whose size nobody knows


def test_the_size_is_that_of_the_recipes_model(tmp_path: Path) -> None:
    assert unusual_settings(wanted(model="smollm2-135m")) == []
    (line,) = unusual_settings(wanted(model="smollm2-135m", train={"learning_rate": 1e-4}))
    assert line.startswith("train.learning_rate: 0.0001 is above 5.2e-05, which is large for 134,515,008 trained")
    tiny = recipe(tmp_path, rollout={"group_size": 8}, train={"learning_rate": 1e-2})
    assert unusual_settings(tiny) == []  # 20,000 parameters


def test_they_are_said_at_the_start_and_in_a_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = recipe(tmp_path, rollout={"group_size": 8}, algorithm={"clip_high": 0.5}, train={"steps": 1})
    dry_run(odd)
    assert "warning: algorithm.clip_high: 0.5 is far above 0.2" in capsys.readouterr().out
    text = StringIO()
    train(odd, Console(text, terminal=False))
    assert "warning: algorithm.clip_high: 0.5 is far above 0.2" in " ".join(text.getvalue().split())

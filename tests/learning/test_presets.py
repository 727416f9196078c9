"""Every preset learns a tiny task: to write letters of the first half of the alphabet."""

from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from quatrain.config import PRESETS
from quatrain.methods.online import train
from quatrain.telemetry.console import Console
from quatrain.telemetry.run_log import read_metrics
from tests.runs import recipe

# (updates of a step, its epochs): the clip and the ratio act from the second update on
UPDATES = {"grpo": (1, 1), "dapo": (2, 1), "dr_grpo": (1, 1), "gspo": (2, 1), "cispo": (2, 1), "rloo": (1, 2),
           "reinforce_pp": (1, 1)}  # fmt: skip


@pytest.mark.parametrize("preset", [name for name in PRESETS if name != "ppo"])  # which has a file of its own
def test_a_preset_learns(tmp_path: Path, preset: str) -> None:
    updates, epochs = UPDATES[preset]
    wanted = recipe(
        tmp_path, algorithm={"preset": preset, "kl": {}}, rollout={"group_size": 8, "max_tokens": 4},
        train={"steps": 12, "prompts_per_step": 4, "updates_per_step": updates, "epochs": epochs},
    )  # fmt: skip
    train(wanted, Console(StringIO(), terminal=False))
    rows = [row.metrics for row in read_metrics(tmp_path / "run")]
    rewards = [row["reward/letter"] for row in rows]
    assert np.mean(rewards[:2]) < 0.5 and np.mean(rewards[-2:]) > 0.75, rewards
    assert all(row["train/updates"] == updates * epochs for row in rows[:4])

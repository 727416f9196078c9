"""PPO solves a task whose best policy is known, and its controllers do what they say on whole runs."""

from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quatrain.methods.online import train
from quatrain.telemetry.console import Console
from quatrain.telemetry.run_log import read_metrics
from tests.runs import recipe

CRITICS = {"separate": {"learning_rate": 1e-2}, "shared": {"model": "shared", "value_coefficient": 0.5}}


def run(folder: Path, steps: int, algorithm: dict[str, Any], **settings: Any) -> list[dict[str, float]]:
    """The metrics of every step."""
    own = {"steps": steps, "prompts_per_step": 8, "tokens_per_micro_batch": 1024, **settings}
    wanted = recipe(folder, algorithm={"preset": "ppo", "kl": {}, **algorithm}, train=own,
                    rollout={"group_size": 4, "max_tokens": 4})  # fmt: skip
    train(wanted, Console(StringIO(), terminal=False))
    return [row.metrics for row in read_metrics(folder / "run")]


@pytest.mark.parametrize("critic", CRITICS)
def test_ppo_reaches_the_known_best_and_its_critic_explains_more_and_more(tmp_path: Path, critic: str) -> None:
    """Every letter of the first half of the alphabet pays its share: the best policy earns 1, the first 0.3."""
    rows = run(tmp_path, 16, {"critic": CRITICS[critic]}, updates_per_step=2, epochs=2, learning_rate=1e-2)
    rewards = [row["reward/letter"] for row in rows]
    assert rewards[0] < 0.4 and np.mean(rewards[-4:]) > 0.9, rewards
    explained = [row["critic/explained_variance"] for row in rows]
    assert np.mean(explained[-4:]) > max(np.mean(explained[1:5]) + 0.1, 0.05), explained
    assert all(row["train/updates"] == 4 for row in rows)


def test_the_adaptive_coefficient_holds_the_kl_at_its_target(tmp_path: Path) -> None:
    """Over the second half of a run the mean KL per token is within 20 % of 0.3 nats, and beta had to move for it."""
    kl = {"coefficient": 0.3, "target": 0.3, "horizon": 100}
    rows = run(tmp_path, 50, {"kl": kl}, prompts_per_step=16, learning_rate=3e-3)
    held = [row["kl/per_token"] for row in rows[25:]]
    assert 0.8 * 0.3 < np.mean(held) < 1.2 * 0.3, held
    betas = [row["kl/coefficient"] for row in rows]
    assert max(betas) > 2 * min(betas), betas
    rewards = [row["reward/letter"] for row in rows]
    assert np.mean(rewards[25:]) > np.mean(rewards[:3]) + 0.1  # which leaves room to learn

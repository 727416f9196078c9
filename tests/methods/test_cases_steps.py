"""Listed cases on whole runs: groups by prompt, resume from every checkpoint, every prompt of an epoch once."""

import os
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from quatrain.errors import DataError, SettingError
from quatrain.methods import online
from quatrain.methods.online import train
from quatrain.telemetry.run_log import read_metrics
from quatrain.train.checkpoint import checkpoints
from tests.runs import assert_equal_weights, in_child, metrics_of, quiet, recipe, weights_of


@pytest.mark.parametrize(
    ("prompts", "updates", "group", "accepted"),
    [(1, 1, 8, True), (8, 1, 8, True), (8, 8, 2, True), (6, 3, 5, True), (6, 4, 8, False), (1, 8, 8, False)],
)
def test_case_c04_batches_that_do_not_divide_are_refused_with_the_numbers_and_a_fix(
    tmp_path: Path, prompts: int, updates: int, group: int, accepted: bool
) -> None:
    """Completions always divide by the group, since prompts are counted; micro-batches may have any size."""
    settings = {"train": {"prompts_per_step": prompts, "updates_per_step": updates, "tokens_per_micro_batch": 7}}
    if accepted:
        assert recipe(tmp_path, **settings, rollout={"group_size": group}).train.prompts_per_step == prompts
        return
    with pytest.raises(SettingError) as caught:
        recipe(tmp_path, **settings, rollout={"group_size": group})
    message = str(caught.value)
    assert f"got {updates}, need a divisor of train.prompts_per_step = {prompts}" in message
    fixes = [number for number in range(1, prompts + 1) if prompts % number == 0]
    assert message.endswith(f"use one of {fixes}")


def test_case_c12_only_abstentions_are_counted_and_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("def none(completion):\n    return None\n")
    wanted = recipe(
        tmp_path, verifiers={"default": {"none": {"kind": f"{tmp_path / 'none.py'}:none"}}},
        train={"steps": 9, "prompts_per_step": 1, "empty_steps": 3},
    )  # fmt: skip
    with pytest.raises(DataError, match=r"train\.empty_steps: 3 steps in a row made no update"):
        train(wanted, quiet())
    assert [row.metrics["scores/abstained"] for row in read_metrics(tmp_path / "run")] == [4, 4, 4]


def test_case_c23_repeats_of_a_prompt_are_one_group(tmp_path: Path) -> None:
    train(recipe(tmp_path, train={"steps": 1, "prompts_per_step": 1}, log={"rollouts_every": 1}), quiet())
    rows = pq.read_table(tmp_path / "run" / "rollouts" / "step-000001.parquet").to_pylist()
    assert {row["group"] for row in rows} == {0} and [row["index"] for row in rows] == [0, 1, 2, 3]
    assert len({row["prompt_index"] for row in rows}) == 1
    assert sum(row["advantage"] for row in rows) == pytest.approx(0, abs=1e-12)


def test_case_c70_resume_from_every_checkpoint_with_several_updates_a_step(tmp_path: Path) -> None:
    """Saving waits for the end of a step, so no checkpoint lies inside a rollout batch."""
    settings: dict[str, Any] = {
        "train": {"steps": 4, "updates_per_step": 2, "epochs": 2}, "checkpoint": {"every": 1, "keep_last": 9},
    }  # fmt: skip
    train(recipe(tmp_path, **settings, output=str(tmp_path / "unbroken")), quiet())
    assert checkpoints(tmp_path / "unbroken") == [1, 2, 3, 4]
    for step in (1, 2, 3):
        run = tmp_path / f"from-{step}"
        shutil.copytree(tmp_path / "unbroken", run)
        for later in range(step + 1, 5):
            shutil.rmtree(run / "checkpoints" / f"step-{later:06d}")
        train(recipe(tmp_path, **settings, output=str(run)), quiet())
        assert metrics_of(run) == metrics_of(tmp_path / "unbroken")
        assert_equal_weights(weights_of(run, 4), weights_of(tmp_path / "unbroken", 4))


def test_case_c71_every_prompt_of_an_epoch_is_trained_once_across_a_kill(tmp_path: Path) -> None:
    """Killed in step 3 while its groups are sampled; 25 prompts in 5 steps."""
    wanted = recipe(
        tmp_path, train={"steps": 5, "prompts_per_step": 5}, checkpoint={"every": 1}, log={"rollouts_every": 1},
        rollout={"max_rows": 4},
    )  # fmt: skip

    def kill_while_sampling() -> None:
        original, left = online.sample, [3]

        def sample(*arguments: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                engine = arguments[0].engine
                completed, waves = engine.completed, [3]

                def third_wave() -> Any:
                    waves[0] -= 1
                    if waves[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return completed()

                engine.completed = third_wave
            return original(*arguments)

        online.sample = sample  # type: ignore[assignment]

    assert in_child(wanted, kill_while_sampling) == -signal.SIGKILL
    assert checkpoints(tmp_path / "run")[-1] == 2
    train(wanted, quiet())
    trained: Counter[int] = Counter()
    for path in (tmp_path / "run" / "rollouts").glob("step-??????.parquet"):
        rows = pq.read_table(path).to_pylist()
        trained.update({row["prompt_index"] for row in rows})
    assert trained == Counter(range(25))

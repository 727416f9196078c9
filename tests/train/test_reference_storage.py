"""A frozen reference in another dtype, and one that waits in host memory between its forwards."""

from pathlib import Path
from typing import Any

import pytest
import torch

from quatrain.config import ModelConfig
from quatrain.errors import SettingError
from quatrain.methods.online import online_step, train
from quatrain.methods.run import open_run
from quatrain.models.load import load_language_model, load_reference
from quatrain.telemetry.run_log import read_metrics
from tests.runs import metrics_of, quiet, recipe

KL = {"placement": "loss", "estimator": "k3", "coefficient": 0.1}
SETTINGS: dict[str, dict[str, Any]] = {
    "k3 in the loss": {"kl": KL},
    "full in the loss": {"kl": {**KL, "estimator": "full"}},
    "k1 in the reward": {"preset": "ppo", "kl": {}},
    "full in the reward": {"kl": {"placement": "reward", "estimator": "full"}},
    "average": {"kl": {**KL, "ema": 0.5}},
    "refreshed": {"kl": {**KL, "refresh_every": 1}},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_offloading_changes_no_bit(tmp_path: Path, name: str) -> None:
    for output, offload in (("kept", False), ("offloaded", True)):
        wanted = recipe(tmp_path, model={"reference": {"offload": offload}}, algorithm=SETTINGS[name],
                        train={"steps": 2}, output=str(tmp_path / output))  # fmt: skip
        train(wanted, quiet())
    assert metrics_of(tmp_path / "offloaded") == metrics_of(tmp_path / "kept")


@pytest.mark.parametrize("name", ["k1 in the reward", "k3 in the loss", "full in the loss"])
def test_it_is_on_the_device_only_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Brought once for all micro-batches, read by each of them, and put away again before anything else happens."""
    log: list[str] = []
    wanted = recipe(tmp_path, model={"reference": {"offload": True}}, algorithm=SETTINGS[name],
                    train={"steps": 1, "tokens_per_micro_batch": 8})  # fmt: skip
    with open_run(wanted, quiet()) as run:
        reference = run.learner.reference
        assert reference is not None and reference.offloaded
        monkeypatch.setattr(reference.module, "to", lambda device: log.append(str(device)))
        reference.module.get_decoder().register_forward_pre_hook(lambda *_: log.append("read"))
        online_step(run, 1)
    reads = log.count("read")
    assert reads > 1 and log == ["cpu", *["read"] * reads, "cpu"]  # the device of this run, and the host


def test_a_bfloat16_reference_is_near_but_not_equal(tmp_path: Path) -> None:
    """Half the memory; the KL of the first step is small and not 0, with float32 it is exactly 0."""
    found = {}
    for dtype in (None, "float32", "bfloat16"):
        algorithm = {"preset": "ppo", "kl": {"target": None, "coefficient": 0.1}}
        wanted = recipe(tmp_path, model={"reference": {"dtype": dtype}}, algorithm=algorithm, train={"steps": 1},
                        output=str(tmp_path / str(dtype)))  # fmt: skip
        train(wanted, quiet())
        found[dtype] = read_metrics(tmp_path / str(dtype))[0].metrics["kl/reference_k3"]
    assert found[None] == found["float32"] == 0
    assert 0 < found["bfloat16"] < 1e-2
    config = ModelConfig.model_validate({"path": str(tmp_path / "model"), "device": "cpu"})
    own = config.model_copy(update={"reference": config.reference.model_copy(update={"dtype": "bfloat16"})})
    assert load_reference(own).module.dtype is torch.bfloat16
    assert load_reference(config).module.dtype is load_language_model(config).module.dtype is torch.float32
    assert not any(p.requires_grad for p in load_reference(own).module.parameters())


def test_an_exact_kl_to_a_bfloat16_reference(tmp_path: Path) -> None:
    wanted = recipe(tmp_path, model={"reference": {"dtype": "bfloat16", "offload": True}}, train={"steps": 2},
                    algorithm={"kl": {**KL, "estimator": "full", "refresh_every": 1}})  # fmt: skip
    train(wanted, quiet())
    assert [0 < row.metrics["kl/reference_full"] < 1e-2 for row in read_metrics(tmp_path / "run")] == [True, True]


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"model": {"lora": {"rank": 2}, "reference": {"offload": True}}}, "model.reference: got {"),
        ({"model": {"reference": {"dtype": "bfloat16"}}, "algorithm": {"kl": {**KL, "ema": 0.9}}},
         "model.reference.dtype: got bfloat16, need null, float32 or float64 with algorithm.kl.ema"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, changes: dict[str, Any], start: str) -> None:
    with pytest.raises(SettingError) as caught:
        recipe(tmp_path, **changes)
    assert str(caught.value).startswith(start)

"""Checkpoints: exact, whole or absent, and earlier ones never harmed."""

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from quatrain.config import ModelConfig
from quatrain.errors import QuatrainError, ResumeError
from quatrain.models.load import LanguageModel, load_language_model
from quatrain.train import checkpoint
from quatrain.train.checkpoint import checkpoint_path, checkpoints, load_checkpoint, save_checkpoint
from quatrain.train.learner import Learner
from tests.tiny import save_tiny
from tests.train.synthetic import algorithm, credited, learner, nothing, weights

REWARDS = [[1.0, 0.0, 0.5], [0.0, 1.0, 1.0]]
METHOD = algorithm(kl={"placement": "none"})
STATE = {"prompts": {"position": [3]}, "empty_steps": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("checkpoint") / "tiny", tie_word_embeddings=True)


def load(folder: Path, **changes: Any) -> LanguageModel:
    torch.manual_seed(0)
    return load_language_model(ModelConfig.model_validate({"path": str(folder), "device": "cpu", **changes}))


def learn(learning: Learner, step: int = 1) -> None:
    learning.update(credited(METHOD, learning, REWARDS), METHOD, step, nothing)


def optimizer_state(learning: Learner) -> dict[str, torch.Tensor]:
    role = learning.roles["policy"]
    return {
        f"{name}/{key}": value.clone()
        for name, parameter in role.trainable.items()
        for key, value in role.optimizer.state[parameter].items()
    }


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dtype": "float64"},
        {"dtype": "bfloat16"},
        {"lora": {"rank": 2}},
        {"lora": {"rank": 2}, "dtype": "bfloat16"},
    ],
    ids=["full", "float64", "bfloat16", "lora", "lora on bfloat16"],
)
def test_weights_optimizer_and_state_come_back_exactly(folder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    first = learner(load(folder, **changes))
    learn(first)
    learn(first, 2)
    save_checkpoint(tmp_path, 2, first, STATE, keep_last=2)
    second = learner(load(folder, **changes))
    assert not torch.equal(weights(second.policy), weights(first.policy))
    trainer = load_checkpoint(tmp_path, 2, second)
    assert {key: trainer[key] for key in ("step", *STATE)} == {"step": 2, **STATE}
    assert torch.equal(weights(second.policy), weights(first.policy))
    one, other = optimizer_state(first), optimizer_state(second)
    assert one.keys() == other.keys() and one
    assert all(torch.equal(one[key], other[key]) and one[key].dtype == other[key].dtype for key in one)
    learn(first, 3)
    learn(second, 3)
    assert torch.equal(weights(second.policy), weights(first.policy))


def test_a_checkpoint_before_any_update(folder: Path, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 0, learner(load(folder)), STATE, keep_last=1)
    fresh = learner(load(folder))
    assert load_checkpoint(tmp_path, 0, fresh)["step"] == 0
    assert not fresh.roles["policy"].optimizer.state


def test_the_policy_folder_loads_with_transformers(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    learning = learner(load(folder))
    learn(learning)
    policy = save_checkpoint(tmp_path, 1, learning, STATE, keep_last=1) / "policy"
    ids = torch.arange(5, 15)[None]
    with torch.no_grad():
        assert torch.equal(AutoModelForCausalLM.from_pretrained(policy)(ids).logits, learning.policy.module(ids).logits)
    assert AutoTokenizer.from_pretrained(policy)("2+2").input_ids == learning.policy.tokenizer("2+2").input_ids


def test_the_last_ones_are_kept(folder: Path, tmp_path: Path) -> None:
    learning = learner(load(folder))
    for step in (2, 4, 10):
        save_checkpoint(tmp_path, step, learning, STATE, keep_last=2)
    assert checkpoints(tmp_path) == [4, 10]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-000004", "step-000010"]
    save_checkpoint(tmp_path, 12, learning, STATE, keep_last=1)
    assert checkpoints(tmp_path) == [12]


def test_a_step_that_is_saved_is_never_rewritten(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removing it to write it again would leave a moment without any checkpoint."""
    learning = learner(load(folder))
    save_checkpoint(tmp_path, 3, learning, STATE, keep_last=1)
    monkeypatch.setattr(checkpoint, "save_weights", lambda *_: pytest.fail("written again"))
    assert save_checkpoint(tmp_path, 3, learning, STATE, keep_last=1) == checkpoint_path(tmp_path, 3)
    load_checkpoint(tmp_path, 3, learning)


def test_what_a_kill_left_behind_counts_for_nothing(folder: Path, tmp_path: Path) -> None:
    learning = learner(load(folder))
    save_checkpoint(tmp_path, 1, learning, STATE, keep_last=2)
    leftover = tmp_path / "checkpoints" / ".writing-step-000002"
    shutil.copytree(checkpoint_path(tmp_path, 1), leftover)
    (leftover / "state" / "trainer.json").unlink()
    assert checkpoints(tmp_path) == [1]
    save_checkpoint(tmp_path, 2, learning, STATE, keep_last=2)
    assert checkpoints(tmp_path) == [1, 2] and not leftover.exists()
    assert load_checkpoint(tmp_path, 2, learning)["step"] == 2


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


DAMAGES = {
    "trainer state torn": lambda folder: _cut(folder / "state" / "trainer.json"),
    "trainer state gone": lambda folder: (folder / "state" / "trainer.json").unlink(),
    "trainer state of another kind": lambda folder: (folder / "state" / "trainer.json").write_text("[1]"),
    "trainer state without format": lambda folder: (folder / "state" / "trainer.json").write_text("{}"),
    "binary trainer state": lambda folder: (folder / "state" / "trainer.json").write_bytes(b"\xff\xfe\x00"),
    "weights torn": lambda folder: _cut(folder / "policy" / "model.safetensors"),
    "weights gone": lambda folder: (folder / "policy" / "model.safetensors").unlink(),
    "optimizer gone": lambda folder: [path.unlink() for path in (folder / "state").glob("*.distcp")],
    "optimizer torn": lambda folder: [_cut(path) for path in (folder / "state").glob("*.distcp")],
    "optimizer index gone": lambda folder: (folder / "state" / ".metadata").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_one_line_that_says_what_to_do(folder: Path, tmp_path: Path, damage: str) -> None:
    learning = learner(load(folder))
    learn(learning)
    path = save_checkpoint(tmp_path, 1, learning, STATE, keep_last=1)
    DAMAGES[damage](path)
    with pytest.raises(ResumeError) as caught:
        load_checkpoint(tmp_path, 1, learning)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_a_checkpoint_of_another_format_is_refused(folder: Path, tmp_path: Path) -> None:
    learning = learner(load(folder))
    path = save_checkpoint(tmp_path, 1, learning, STATE, keep_last=1) / "state" / "trainer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(ResumeError, match=r"got checkpoint format 99, need 1$"):
        load_checkpoint(tmp_path, 1, learning)


def _safetensors_full() -> BaseException:
    from safetensors import SafetensorError

    return SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


FAILURES = {
    "weights, by the system": ("save_weights", OSError(errno.ENOSPC, "No space left on device"), "a full disk"),
    "weights, by safetensors": ("save_weights", _safetensors_full(), "a full disk"),
    "quota": ("save_weights", OSError(errno.EDQUOT, "Disk quota exceeded"), "a full disk"),
    "optimizer, by the system": ("save_distributed", OSError(errno.ENOSPC, "No space left"), "a full disk"),
    "optimizer, by torch": (
        "save_distributed",
        CheckpointException("checkpoint", {0: (RuntimeError("os error 28\nline two"), None)}),  # type: ignore[dict-item]
        "a full disk",
    ),
    "optimizer, another reason": (
        "save_distributed",
        CheckpointException("checkpoint", {0: (FileNotFoundError(errno.ENOENT, "No such file", "state/x"), None)}),  # type: ignore[dict-item]
        "got [Errno 2] No such file: 'state/x' at",
    ),
    "flush": ("flush_tree", OSError(errno.EIO, "Input/output error"), "Input/output error"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_full_disk_is_one_line_and_leaves_the_earlier_checkpoint(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    name, error, shown = FAILURES[failure]
    learning = learner(load(folder))
    learn(learning)
    save_checkpoint(tmp_path, 1, learning, STATE, keep_last=1)
    saved = weights(learning.policy)
    learn(learning, 2)

    def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, name, fail)
        with pytest.raises(QuatrainError) as caught:
            save_checkpoint(tmp_path, 2, learning, STATE, keep_last=1)
    message = str(caught.value)
    assert message.startswith("checkpoint of step 2: got ") and shown in message and "\n" not in message
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000001"]
    load_checkpoint(tmp_path, 1, learning)
    assert torch.equal(weights(learning.policy), saved)
    save_checkpoint(tmp_path, 2, learning, STATE, keep_last=1)
    assert checkpoints(tmp_path) == [2]

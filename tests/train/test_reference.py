"""A moving reference: worked values, what a run shows of it, and what is saved of it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from quatrain.config import KLConfig, ModelConfig
from quatrain.errors import SettingError
from quatrain.methods.online import train
from quatrain.methods.run import open_run
from quatrain.models.forward import reference_model
from quatrain.models.load import LanguageModel, load_language_model
from quatrain.telemetry.metrics import Last
from quatrain.telemetry.run_log import MetricsRow, read_metrics
from quatrain.train.checkpoint import checkpoint_path, load_checkpoint, save_checkpoint
from quatrain.train.learner import Learner
from quatrain.train.reference import move_reference
from tests.runs import quiet, recipe
from tests.tiny import save_tiny, tiny_lm
from tests.train.synthetic import algorithm, credited, learner, nothing, weights

KL = {"placement": "loss", "estimator": "k3", "coefficient": 0.1}
REFRESH = {**KL, "refresh_every": 2}
EMA = {**KL, "ema": 0.75}
REWARDS = [[1.0, 0.0, 0.5], [0.0, 1.0, 1.0]]
IDS = torch.arange(5, 25)[None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("reference") / "tiny", tie_word_embeddings=True)


def a_weight(lm: LanguageModel) -> torch.Tensor:
    """The first weight of the final norm."""
    return lm.module.model.norm.weight[:1].detach()


def put(lm: LanguageModel, value: float) -> None:
    with torch.no_grad():
        lm.module.model.norm.weight[0] = value


def test_the_average_by_hand() -> None:
    """0.75 * 1 + 0.25 * 3 = 1.5; then 0.75 * 1.5 + 0.25 * 3 = 1.875; then 0.75 * 1.875 + 0.25 * (-1) = 1.15625."""
    policy, reference, kl = tiny_lm(), tiny_lm(), KLConfig.model_validate(EMA)
    put(reference, 1.0)
    for step, (value, expected) in enumerate([(3.0, 1.5), (3.0, 1.875), (-1.0, 1.15625)], 1):
        put(policy, value)
        assert move_reference(policy, reference, kl, step) == {}
        assert a_weight(reference).item() == expected and a_weight(policy).item() == value
    untouched = [(one, other) for one, other in zip(reference.module.parameters(), policy.module.parameters(),
                                                    strict=True) if one.shape != (32,)]  # fmt: skip
    assert untouched and all(torch.equal(one, other) for one, other in untouched)  # equal weights do not move


def test_a_refresh_comes_after_every_so_many_steps() -> None:
    policy, reference, kl = tiny_lm(), tiny_lm(), KLConfig.model_validate({**KL, "refresh_every": 3})
    seen = []
    for step in range(1, 8):
        put(policy, float(step))
        metrics = move_reference(policy, reference, kl, step)
        seen.append((a_weight(reference).item(), metrics["kl/reference_age"]))
    values = [1.0, 1.0, 3.0, 3.0, 3.0, 6.0, 6.0]
    assert seen == [(value, Last(age)) for value, age in zip(values, [0, 1, 2, 0, 1, 2, 0], strict=True)]


def rows(folder: Path, **changes: Any) -> list[MetricsRow]:
    train(recipe(folder, **changes), quiet())
    return read_metrics(folder / "run")


@pytest.mark.parametrize(
    ("model", "estimator"), [({}, "k3"), ({"lora": {"rank": 2}}, "full")], ids=["full", "lora, exact KL"]
)
def test_after_a_refresh_the_kl_begins_at_zero_again(tmp_path: Path, model: dict[str, Any], estimator: str) -> None:
    found = rows(tmp_path, model=model, algorithm={"kl": {**REFRESH, "estimator": estimator}}, train={"steps": 5})
    kl = [row.metrics[f"kl/reference_{estimator}"] for row in found]
    assert [row.metrics["kl/reference_age"] for row in found] == [0, 1, 0, 1, 0]
    assert all(abs(value) < 1e-7 for value in kl[::2]), kl  # the policy that sampled is the reference
    assert all(value > 1e-5 for value in kl[1::2]), kl


def test_without_a_refresh_there_is_no_age_and_the_kl_grows(tmp_path: Path) -> None:
    found = rows(tmp_path, algorithm={"kl": KL}, train={"steps": 3})
    assert all("kl/reference_age" not in row.metrics for row in found)
    assert [row.metrics["kl/reference_k3"] > 1e-5 for row in found] == [False, True, True]


def test_the_average_follows_the_policy_of_a_run(tmp_path: Path) -> None:
    """With ema 0.5, after two steps: reference = start / 4 + first / 4 + second / 2."""
    wanted = recipe(tmp_path, algorithm={"kl": {**KL, "ema": 0.5}}, train={"steps": 2}, checkpoint={"every": 1})
    train(wanted, quiet())
    with open_run(wanted, quiet()) as run:
        assert run.step == 2 and run.learner.reference is not None
        moved, policy = weights(run.learner.reference), weights(run.learner.policy)
        start = weights(load_language_model(wanted.model, trainable=False))
        load_checkpoint(run.folder, 1, run.learner)
        torch.testing.assert_close(moved, start / 4 + weights(run.learner.policy) / 4 + policy / 2)
        assert not torch.equal(moved, policy)


SAVED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "refresh": ({}, REFRESH),
    "average": ({}, EMA),
    "average in float64": ({"dtype": "float64"}, EMA),
    "average of a bfloat16 model": ({"dtype": "bfloat16"}, EMA),
    "lora": ({"lora": {"rank": 2}}, REFRESH),
    "lora on bfloat16": ({"lora": {"rank": 2}, "dtype": "bfloat16"}, REFRESH),
    "lora in float64": ({"lora": {"rank": 2}, "dtype": "float64"}, REFRESH),
}


def open_learner(folder: Path, model: dict[str, Any], kl: dict[str, Any], **lora: Any) -> Learner:
    torch.manual_seed(0)
    if lora:
        model = {**model, "lora": {**model["lora"], **lora}}
    config = ModelConfig.model_validate({"path": str(folder), "device": "cpu", **model})
    lm = load_language_model(config)
    frozen = None if config.lora else load_language_model(config, trainable=False)
    made = learner(lm)
    return Learner(lm, made.config, made.temperature, frozen, KLConfig.model_validate(kl))


def reference_logits(one: Learner) -> torch.Tensor:
    with torch.no_grad(), reference_model(one.policy, one.reference) as reference:
        return reference.module(input_ids=IDS).logits


def learn(one: Learner, step: int) -> None:
    method = algorithm(kl=KL)
    one.update(credited(method, one, REWARDS), method, step, nothing)
    one.move_reference(step)


@pytest.mark.parametrize("name", SAVED)
def test_a_moved_reference_comes_back_exactly(folder: Path, tmp_path: Path, name: str) -> None:
    first = open_learner(folder, *SAVED[name])
    start = reference_logits(first)
    for step in (1, 2, 3):
        learn(first, step)
    moved = reference_logits(first)
    assert not torch.equal(moved, start)
    path = save_checkpoint(tmp_path, 3, first, {}, keep_last=1)
    assert (path / "reference").is_dir()
    second = open_learner(folder, *SAVED[name])
    load_checkpoint(tmp_path, 3, second)
    assert torch.equal(reference_logits(second), moved)
    assert torch.equal(weights(second.policy), weights(first.policy))
    for one in (first, second):
        learn(one, 4)
    assert torch.equal(reference_logits(second), reference_logits(first))
    assert torch.equal(weights(second.policy), weights(first.policy))


def test_the_stored_copy_is_never_bfloat16(folder: Path) -> None:
    one = open_learner(folder, {"dtype": "bfloat16"}, EMA)
    assert one.reference is not None
    assert {parameter.dtype for parameter in one.reference.module.parameters()} == {torch.float32}


def test_a_refreshed_sft_adapter(folder: Path, tmp_path: Path) -> None:
    """It begins as the adapter that training began with, and becomes the policy's."""
    sft = open_learner(folder, {"lora": {"rank": 2}}, REFRESH)
    learn(sft, 1)
    save_checkpoint(tmp_path, 1, sft, {}, keep_last=1)
    adapter = str(checkpoint_path(tmp_path, 1) / "policy")
    one = open_learner(folder, {"lora": {"rank": 2}}, REFRESH, adapter=adapter)
    start = reference_logits(one)
    with torch.no_grad():
        assert torch.equal(start, one.policy.module(input_ids=IDS).logits)
    learn(one, 1)
    assert torch.equal(reference_logits(one), start)
    learn(one, 2)
    with torch.no_grad():
        assert torch.equal(reference_logits(one), one.policy.module(input_ids=IDS).logits)
    assert not torch.equal(reference_logits(one), start)


@pytest.mark.parametrize("kl", [KL, {"placement": "none"}], ids=["a reference that stays", "no reference"])
def test_nothing_more_is_saved_when_it_does_not_move(tmp_path: Path, kl: dict[str, Any]) -> None:
    train(recipe(tmp_path, algorithm={"kl": kl}, train={"steps": 1}), quiet())
    assert sorted(path.name for path in checkpoint_path(tmp_path / "run", 1).iterdir()) == ["policy", "state"]


@pytest.mark.parametrize(
    ("kl", "changes", "said"),
    [
        (EMA, {"model": {"lora": {"rank": 2}}}, "algorithm.kl.ema: got 0.75, need null with model.lora"),
        ({**EMA, "refresh_every": 2}, {}, "algorithm.kl.ema: got 0.75, need null with algorithm.kl.refresh_every"),
        ({"placement": "none", "refresh_every": 2}, {}, "algorithm.kl.placement: got none, need a KL penalty"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, kl: dict[str, Any], changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError) as caught:
        recipe(tmp_path, algorithm={"kl": kl}, **changes)
    assert said in str(caught.value)

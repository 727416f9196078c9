"""Whole runs on a tiny model: they learn, they say only documented things, and every placement of the KL works."""

import json
import logging
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from quatrain.algorithms.grpo import DOCUMENTED
from quatrain.config import Recipe
from quatrain.errors import DataError, NonFiniteError, SettingError, VerifierError
from quatrain.methods import online
from quatrain.methods.evaluate import load_evaluation
from quatrain.methods.online import Result, online_step, train
from quatrain.methods.run import open_run
from quatrain.methods.updates import update_batches
from quatrain.telemetry.catalogue import describe
from quatrain.telemetry.console import Console
from quatrain.telemetry.run_log import read_metrics
from quatrain.train import learner
from quatrain.train.checkpoint import checkpoints
from quatrain.types import Sample
from tests.runs import assert_equal_weights, metrics_of, quiet, recipe, rows, weights_of

LORA = {"lora": {"rank": 4}}


def run(wanted: Recipe) -> Result:
    return train(wanted, quiet())


def values(folder: Path, name: str) -> list[float]:
    return [row.metrics[name] for row in read_metrics(folder)]


@pytest.mark.parametrize(("model", "reached"), [({}, 0.85), (LORA, 0.6)], ids=["full", "lora"])
def test_a_run_learns_and_its_gain_is_measured(tmp_path: Path, model: dict[str, Any], reached: float) -> None:
    wanted = recipe(
        tmp_path, model=model, train={"steps": 16, "prompts_per_step": 4, "learning_rate": 5e-2 if model else 1e-2},
        rollout={"group_size": 8}, held_out=[{"source": str(tmp_path / "test.jsonl")}], checkpoint={"every": 0},
    )  # fmt: skip
    result = run(wanted)
    rewards = values(tmp_path / "run", "reward/mean")
    assert np.mean(rewards[:2]) < 0.45 and np.mean(rewards[-3:]) > reached
    gain = result.gain("reward")
    assert gain is not None and gain["difference_interval"][0] > 0.2 and gain["prompts"] == 6
    assert checkpoints(tmp_path / "run") == [16]


def test_only_documented_names_are_written(tmp_path: Path) -> None:
    rows(tmp_path / "more.jsonl", ["more x:", "more y:"], answer="7")
    wanted = recipe(
        tmp_path, train={"steps": 2}, algorithm={"kl": {"placement": "loss"}, "mismatch": {"truncate": 2.0}},
        held_out=[{"source": str(tmp_path / "test.jsonl")}], evaluation={"every": 1},
    )  # fmt: skip
    second = {"source": str(tmp_path / "more.jsonl"), "name": "more"}
    run(wanted.model_copy(update={"prompts": [*wanted.prompts, wanted.prompts[0].model_validate(second)]}))
    for row in read_metrics(tmp_path / "run"):
        for name in (*row.metrics, *row.timing):
            assert describe(name, DOCUMENTED) is not None, name
        assert not [name for name in row.metrics if name.startswith(("time/", "speed/", "memory/"))]
    assert any(name.startswith("source/more/") for name in row.metrics)
    assert "eval/accuracy" in read_metrics(tmp_path / "run")[0].metrics


def test_case_c99_c48_ratio_is_one_and_the_sampler_agrees(tmp_path: Path) -> None:
    run(recipe(tmp_path, rollout={"temperature": 0.6}, train={"steps": 2, "learning_rate": 1e-3}))
    row = read_metrics(tmp_path / "run")[0].metrics
    assert row["policy/ratio_min"] == row["policy/ratio_max"] == 1.0
    assert row["train/loss"] == pytest.approx(0, abs=1e-6) and row["train/grad_norm"] > 0
    assert row["mismatch/logprob_gap_max"] < 1e-4


@pytest.mark.parametrize(
    ("model", "sampling"),
    [({}, {"top_k": 5}), (LORA, {}), ({"dtype": "bfloat16"}, {"top_p": 0.5, "temperature": 0.7})],
    ids=["full", "lora", "bfloat16"],
)
def test_case_c53_the_kl_is_zero_at_the_first_step_whatever_the_sampling(
    tmp_path: Path, sampling: dict[str, Any], model: dict[str, Any]
) -> None:
    run(recipe(tmp_path, model=model, rollout=sampling, algorithm={"kl": {"placement": "loss"}}, train={"steps": 2}))
    first, second = read_metrics(tmp_path / "run")
    assert abs(first.metrics["kl/reference_k1"]) < 1e-6 and first.metrics["kl/reference_k3"] < 1e-6
    assert second.metrics["kl/reference_k3"] > first.metrics["kl/reference_k3"]
    assert first.metrics["rollout/kept_mass"] < 0.9 or not sampling


@pytest.mark.parametrize(
    ("placement", "estimator", "model"),
    [
        ("loss", "k3", {}),
        ("loss", "full", LORA),
        ("reward", "k1", LORA),
        ("score", "k1", {}),
    ],
)
def test_a_strong_kl_holds_the_policy_near_the_reference(
    tmp_path: Path, placement: str, estimator: str, model: dict[str, Any]
) -> None:
    """With the same seed and rewards, a penalty of 3 leaves the policy nearer to its start than one of 0.001."""
    reached = []
    for coefficient in (1e-3, 3.0):
        name = f"run-{coefficient}"
        kl = {"placement": placement, "estimator": estimator, "coefficient": coefficient}
        wanted = recipe(
            tmp_path, model=model, algorithm={"kl": kl, "scale": "none"},
            train={"steps": 7, "learning_rate": 3e-2 if model else 1e-2, "prompts_per_step": 4},
            rollout={"group_size": 8}, output=str(tmp_path / name), checkpoint={"every": 0},
        )  # fmt: skip
        run(wanted)
        last = read_metrics(tmp_path / name)[-1].metrics
        reached.append((values(tmp_path / name, "reward/mean")[-1], last["policy/entropy"]))
    assert reached[0][0] > reached[1][0] + 0.1, reached  # the weak one went for the reward
    assert reached[0][1] < reached[1][1], reached  # the strong one kept its entropy


def test_evaluation_during_training_changes_nothing(tmp_path: Path) -> None:
    held_out = [{"source": str(tmp_path / "test.jsonl")}]
    sampled = {"samples": 2, "temperature": 1.0}
    run(recipe(tmp_path, train={"steps": 4}, output=str(tmp_path / "without")))
    run(
        recipe(
            tmp_path,
            train={"steps": 4},
            output=str(tmp_path / "with"),
            held_out=held_out,
            evaluation={"every": 1, **sampled},
        )
    )
    without, with_evaluation = read_metrics(tmp_path / "without"), read_metrics(tmp_path / "with")
    for one, other in zip(without, with_evaluation, strict=True):
        kept = {name: value for name, value in other.metrics.items() if not name.startswith("eval/")}
        assert repr(kept) == repr(dict(one.metrics))
    assert [any(name.startswith("eval/") for name in row.metrics) for row in with_evaluation] == [True] * 3 + [False]
    assert_equal_weights(weights_of(tmp_path / "without", 4), weights_of(tmp_path / "with", 4))
    found = load_evaluation(tmp_path / "with", 2)
    assert found is not None and len(found.answers) == 12


def test_case_c05_evaluation_has_its_own_group_size(tmp_path: Path) -> None:
    wanted = recipe(
        tmp_path, rollout={"group_size": 8}, evaluation={"samples": 2, "temperature": 1.0}, train={"steps": 1},
        held_out=[{"source": str(tmp_path / "test.jsonl"), "limit": 1}],
    )  # fmt: skip
    result = run(wanted)
    assert result.after is not None and len(result.after.answers) == 2


def test_held_out_prompts_must_not_be_trained_on(tmp_path: Path) -> None:
    rows(tmp_path / "test2.jsonl", ["something else:", "SAY  a1 :"])
    with pytest.raises(SettingError, match=r"^held_out: got 1 of 2 prompts that are also trained on"):
        run(recipe(tmp_path, held_out=[{"source": str(tmp_path / "test2.jsonl")}]))


def test_steps_without_any_score_end_the_run_saved(tmp_path: Path) -> None:
    wanted = recipe(tmp_path, train={"steps": 9, "empty_steps": 2}, checkpoint={"every": 0})
    failing = wanted.verifiers["default"]["letter"].model_copy(update={"fail": True})
    wanted = wanted.model_copy(update={"verifiers": {"default": {"letter": failing}}})
    with pytest.raises(DataError) as caught:
        run(wanted)
    assert str(caught.value).startswith("train.empty_steps: 2 steps in a row") and "\n" not in str(caught.value)
    found = read_metrics(tmp_path / "run")
    assert [row.step for row in found] == [1, 2] and checkpoints(tmp_path / "run") == [2]
    assert found[0].metrics["scores/errors"] == 8 and "train/updates" not in found[0].metrics


def test_case_c02_equal_rewards_leave_the_weights_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "tenth.py").write_text("def tenth(completion):\n    return 0.1\n")
    verifiers = {"default": {"tenth": {"kind": f"{tmp_path / 'tenth.py'}:tenth"}}}
    data = recipe(tmp_path).model_dump(mode="json")
    data["verifiers"] = verifiers
    data["rollout"]["group_size"], data["train"]["steps"], data["train"]["empty_steps"] = 8, 2, 5
    run(Recipe.model_validate(data))
    last = read_metrics(tmp_path / "run")[-1].metrics
    assert last["train/updates_skipped"] == 1 and last["groups/zero_variance"] == 1.0
    from safetensors.torch import load_file

    assert_equal_weights(weights_of(tmp_path / "run", 2), load_file(tmp_path / "model" / "model.safetensors"))


@pytest.mark.parametrize("on_error", ["skip", "zero", "stop"])
def test_case_c14_a_failing_reward_function(tmp_path: Path, on_error: str) -> None:
    """Every second completion makes the function divide by zero."""
    (tmp_path / "broken.py").write_text(
        "def broken(completion):\n    return len(completion.strip('abcdefghijklm')) / (len(completion.strip()) % 2)\n"
    )
    data = recipe(tmp_path).model_dump(mode="json")
    data["verifiers"] = {"default": {"part": {"kind": f"{tmp_path / 'broken.py'}:broken", "on_error": on_error}}}
    data["train"]["steps"] = 1
    if on_error == "stop":
        with pytest.raises(VerifierError) as caught:
            run(Recipe.model_validate(data))
        message = str(caught.value)
        assert "verifiers.default.part (broken)" in message and "completion" in message
        assert "ZeroDivisionError" in message and "\n" not in message
        return
    run(Recipe.model_validate(data))
    (row,) = read_metrics(tmp_path / "run")
    assert (row.metrics["scores/errors"] > 0) is (on_error == "skip")


@pytest.mark.parametrize("chat", [False, True])
def test_case_c88_a_function_gets_strings_and_a_missing_column_is_named(tmp_path: Path, chat: bool) -> None:
    prompts = [[{"role": "user", "content": f"say {a}"}] if chat else f"say {a}" for a in "abcd"]
    data = recipe(tmp_path).model_dump(mode="json")
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"prompt": p, "answer": "7"}) + "\n" for p in prompts))
    if chat:
        path = tmp_path / "model" / "tokenizer_config.json"
        template = "{% for m in messages %}{{ m['content'] }}?{% endfor %}"
        path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    (tmp_path / "f.py").write_text(
        "def good(prompt, completion, answer):\n"
        "    assert type(prompt) is type(completion) is type(answer) is str, (prompt, completion, answer)\n"
        "    assert prompt.startswith('say '), prompt\n"
        "    return float(len(completion))\n"
        "def absent(completion, gold):\n    return 1.0\n"
    )
    data["train"]["steps"] = 1
    data["verifiers"] = {"default": {"f": {"kind": f"{tmp_path / 'f.py'}:good", "on_error": "stop"}}}
    run(Recipe.model_validate(data))
    data["verifiers"]["default"]["f"]["kind"] = f"{tmp_path / 'f.py'}:absent"
    data["output"] = str(tmp_path / "second")
    with pytest.raises(VerifierError, match=r"has no column 'gold'; its columns: answer"):
        run(Recipe.model_validate(data))


@pytest.mark.parametrize("long_prompts", ["skip", "error"])
def test_case_c79_a_prompt_beyond_the_context_is_counted_or_refused(tmp_path: Path, long_prompts: str) -> None:
    wanted = recipe(tmp_path, rollout={"long_prompts": long_prompts}, train={"steps": 3})
    rows(tmp_path / "train.jsonl", ["say a:", "x" * 100, "say b:", "say c:"])
    if long_prompts == "error":
        with pytest.raises(SettingError, match=r"a prompt of 100 tokens \(row 2 of .*\), need at most 58"):
            run(wanted)
        return
    run(wanted)
    assert (
        values(tmp_path / "run", "prompts/skipped_long") == [0, 1, 1]
        or values(tmp_path / "run", "prompts/skipped_long")[-1] == 1
    )


def test_case_c61_the_engine_samples_with_the_trained_adapter(tmp_path: Path) -> None:
    wanted = recipe(tmp_path, model=LORA, rollout={"group_size": 8}, train={"learning_rate": 5e-2})
    with open_run(wanted, quiet()) as opened:
        prompts = opened.prompts.take(2)
        before = online.sample(opened, prompts, 1, 0)
        opened.finish_step(online_step(opened, 1))
        after = online.sample(opened, prompts, 1, 0)
        assert [t.token_ids.tolist() for r in before for t in r.trajectories] != [
            t.token_ids.tolist() for r in after for t in r.trajectories
        ]
        assert {int(r.trajectories[0].policy_version[-1]) for r in after} == {1}
        samples = opened.learner.annotate(online.to_samples(after), frozenset({"old_logprobs"}), lambda *_: None)
        for sample in samples:  # what the engine reports is what the trainer says about the same tokens
            np.testing.assert_allclose(sample.streams["sampler_logprobs"], sample.streams["old_logprobs"], atol=1e-4)


def test_a_loss_that_is_not_finite_stops_the_run_and_shows_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = learner.token_outputs

    def not_a_number(*arguments: Any, **named: Any) -> Any:
        outputs = original(*arguments, **named)
        return replace(outputs, logprobs_N=outputs.logprobs_N * float("nan"))

    monkeypatch.setattr(learner, "token_outputs", not_a_number)
    with pytest.raises(NonFiniteError) as caught:
        run(recipe(tmp_path))
    message = str(caught.value)
    assert message.startswith("step 1: loss: got nan") and "\n" not in message
    written = json.loads((tmp_path / "run" / "non-finite-step-000001.json").read_text())
    assert written and {"label", "token_ids", "trained", "streams"} <= set(written[0])
    assert checkpoints(tmp_path / "run") == []


def test_rollouts_are_written_with_scores_and_advantages(tmp_path: Path) -> None:
    run(recipe(tmp_path, log={"rollouts_every": 2}, train={"steps": 4}))
    assert sorted(path.name for path in (tmp_path / "run" / "rollouts").iterdir()) == [
        "step-000002.parquet",
        "step-000004.parquet",
    ]
    table = pq.read_table(tmp_path / "run" / "rollouts" / "step-000004.parquet").to_pylist()
    assert len(table) == 8 and {row["policy_version"] for row in table} == {3}
    for group in (0, 1):
        members = [row for row in table if row["group"] == group]
        assert sum(row["advantage"] for row in members) == pytest.approx(0, abs=1e-9)
        best = max(members, key=lambda row: row["score"])
        assert best["advantage"] == max(row["advantage"] for row in members)
        for row in members:
            share = sum(character in "abcdefghijklm" for character in row["completion"])
            assert row["score"] == share / max(1, len(row["completion"]))


def test_tensorboard_is_written(tmp_path: Path) -> None:
    run(recipe(tmp_path, log={"tensorboard": True}, train={"steps": 1}))
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))


def test_updates_keep_groups_whole_and_later_epochs_shuffle(tmp_path: Path) -> None:
    wanted = recipe(tmp_path, train={"prompts_per_step": 6, "updates_per_step": 3, "epochs": 2})
    samples = [
        Sample(token_ids=[4, 5], trained=[False, True], group=group, completion=group * 4 + i, prompt_length=1)  # type: ignore[arg-type]
        for group in range(6)
        for i in range(4)
    ]
    batches = update_batches(wanted, samples, 5)
    groups = [sorted({sample.group for sample in batch}) for batch in batches]
    assert len(batches) == 6 and all(len(batch) == 8 for batch in batches)
    assert groups[:3] == [[0, 1], [2, 3], [4, 5]]
    assert sorted(group for part in groups[3:] for group in part) == list(range(6))
    assert groups[3:] != groups[:3]
    assert [[s.completion for s in b] for b in update_batches(wanted, samples, 5)] == [
        [s.completion for s in b] for b in batches
    ]


def test_several_updates_a_step_leave_the_first_on_policy(tmp_path: Path) -> None:
    run(recipe(tmp_path, train={"updates_per_step": 2, "epochs": 2, "learning_rate": 3e-2, "steps": 2}))
    row = read_metrics(tmp_path / "run")[1].metrics
    assert row["train/updates"] + row.get("train/updates_skipped", 0) == 4
    assert row["policy/ratio_max"] > 1.001 and row["kl/old_k3"] > 0


def test_same_seed_same_run_other_seed_another(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        run(recipe(tmp_path, output=str(tmp_path / name), seed=seed))
    assert metrics_of(tmp_path / "one") == metrics_of(tmp_path / "same") != metrics_of(tmp_path / "other")


def test_long_held_out_prompts_are_counted_in_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows(tmp_path / "test2.jsonl", ["ask a:", "y" * 90])
    with caplog.at_level(logging.WARNING):
        result = run(recipe(tmp_path, held_out=[{"source": str(tmp_path / "test2.jsonl")}], train={"steps": 1}))
    assert result.after is not None and len(result.after.answers) == 1
    assert "held_out: 1 of 2 prompts are left out" in caplog.text


def test_the_prediction_of_memory_stands_beside_what_the_first_step_took(tmp_path: Path) -> None:
    run(recipe(tmp_path))
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["measured"]["rss_gb"] > 0.05 and plan["predicted"]["fits"] is True
    assert plan["predicted"]["phases"] and plan["predicted"]["line"] is None
    written = (tmp_path / "run" / "plan.json").stat().st_mtime_ns
    run(recipe(tmp_path, train={"steps": 4}))
    assert (tmp_path / "run" / "plan.json").stat().st_mtime_ns == written


def test_a_run_that_will_not_fit_says_so_before_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Loaded(Exception):
        pass

    def load(*_: Any, **__: Any) -> Any:
        raise Loaded

    wanted = recipe(tmp_path)
    config = tmp_path / "model" / "config.json"
    large = {"hidden_size": 8192, "num_hidden_layers": 80, "intermediate_size": 28672, "num_attention_heads": 64}
    config.write_text(json.dumps({**json.loads(config.read_text()), **large, "head_dim": 128}))
    monkeypatch.setattr("quatrain.methods.run.load_language_model", load)
    text = StringIO()
    with pytest.raises(Loaded):
        train(wanted, Console(text, terminal=False))
    assert "this run will probably not fit" in " ".join(text.getvalue().split())


def test_the_kl_can_be_measured_without_a_penalty(tmp_path: Path) -> None:
    """The weights are those of a run that does not look; the KL starts at 0 and is then there."""
    plain, seen = (recipe(tmp_path, algorithm={"kl": {"placement": "none", "measure": measure}},
                          output=str(tmp_path / str(measure))) for measure in (False, True))  # fmt: skip
    for wanted in (plain, seen):
        run(wanted)
    assert_equal_weights(weights_of(plain.output, 3), weights_of(seen.output, 3))
    kl = values(Path(seen.output), "kl/per_sequence")
    assert abs(kl[0]) < 1e-5 and all(abs(one) > 1e-3 for one in kl[1:])
    assert all("kl/per_sequence" not in row.metrics for row in read_metrics(plain.output))

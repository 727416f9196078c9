"""Whole offline runs on a tiny model: they learn, say documented things, and go on to be used."""

import json
import os
import re
import signal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

import quatrain
from quatrain.algorithms import preference, reward_model, sft
from quatrain.config import ModelConfig, VerifierConfig
from quatrain.data.examples import ExampleStream
from quatrain.errors import NonFiniteError, QuatrainError, SettingError
from quatrain.methods import online
from quatrain.methods.dry_run import dry_run
from quatrain.methods.inspect import export_run
from quatrain.methods.offline import train
from quatrain.methods.offline_run import open_offline
from quatrain.methods.run_folder import best_step, load_measures
from quatrain.methods.subject import Asking, ask, load_subject, settle
from quatrain.models.load import load_language_model, resolve_model
from quatrain.models.scalar import attribute_scores, is_scalar_folder, load_scalar_model, reward_info, score_ids
from quatrain.rewards import build_verifiers, text_rollout
from quatrain.telemetry.catalogue import describe
from quatrain.telemetry.console import Console
from quatrain.telemetry.run_log import read_events, read_metrics
from quatrain.train import learner
from quatrain.train.checkpoint import checkpoint_path, checkpoints
from tests.runs import assert_equal_weights, offline_data, offline_recipe, offline_rows, quiet, recipe, weights_of

LORA = {"lora": {"rank": 2}}
METHODS = ("sft", "dpo", "ipo", "kto", "orpo", "simpo", "reward_model")
DOCUMENTED = {**sft.DOCUMENTED, **preference.DOCUMENTED, **reward_model.DOCUMENTED}


def values(folder: Path, name: str) -> list[float]:
    return [row.metrics[name] for row in read_metrics(folder)]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_and_says_documented_things(tmp_path: Path, name: str) -> None:
    text = StringIO()
    wanted = offline_recipe(tmp_path, name, train={"steps": 8}, evaluation={"every": 4})
    result = train(wanted, Console(text, terminal=False))
    losses = values(tmp_path / "run", "train/loss")
    assert result.steps == 8 and losses[-1] < 0.75 * losses[0]
    before, after = (load_measures(tmp_path / "run", step) for step in (0, 8))
    assert before is not None and after is not None and after.values["eval/loss"] < 0.8 * before.values["eval/loss"]
    if name not in ("sft", "kto"):
        assert after.values["eval/accuracy"] > 0.8
    for row in read_metrics(tmp_path / "run"):
        for told in (*row.metrics, *row.timing):
            assert told == "policy/entropy" or describe(told, DOCUMENTED) is not None, told
    heading = next(line for line in text.getvalue().splitlines() if line.lstrip().startswith("step"))
    assert "loss" in heading and "tokens/s" in heading and "reward" not in heading
    first = next(line for line in text.getvalue().splitlines() if line.lstrip().startswith("1/8"))
    assert f"{losses[0]:.4f}" in first
    assert [event["step"] for event in read_events(tmp_path / "run") if event["kind"] == "evaluation"] == [0, 4, 8]


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_evaluation_changes_nothing(tmp_path: Path, name: str) -> None:
    train(offline_recipe(tmp_path, name, evaluation={"every": 1}, output=str(tmp_path / "with")), quiet())
    train(offline_recipe(tmp_path, name, held_out=[], output=str(tmp_path / "without")), quiet())
    assert_equal_weights(weights_of(tmp_path / "with", 4), weights_of(tmp_path / "without", 4))
    for one, other in zip(read_metrics(tmp_path / "with"), read_metrics(tmp_path / "without"), strict=True):
        assert {k: v for k, v in one.metrics.items() if not k.startswith("eval/")} == other.metrics


@pytest.mark.parametrize("metric", ["eval/loss", "eval/accuracy"])
def test_the_best_checkpoint_is_kept(tmp_path: Path, metric: str) -> None:
    """The lowest loss or the highest accuracy; a rate this high makes the last step a bad one."""
    settings = {"steps": 6, "learning_rate": 0.3}
    wanted = offline_recipe(tmp_path, "orpo", train=settings, evaluation={"every": 1},
                            checkpoint={"every": 1, "keep_last": 1, "keep_best": 1, "best_metric": metric})  # fmt: skip
    train(wanted, quiet())
    measured = {step: load_measures(tmp_path / "run", step) for step in range(1, 7)}
    found = {step: one.values[metric] for step, one in measured.items() if one is not None}
    best = (min if metric == "eval/loss" else max)(found.values())
    first = next(step for step, value in found.items() if value == best)
    assert best_step(tmp_path / "run", metric) == first and set(checkpoints(tmp_path / "run")) == {first, 6}


@pytest.mark.parametrize("name", ["dpo", "ipo"])
def test_no_second_model_stays_in_memory(tmp_path: Path, name: str) -> None:
    wanted = offline_recipe(tmp_path, name, train={"steps": 2})
    train(wanted, quiet())
    with open_offline(wanted.model_copy(update={"train": wanted.train.model_copy(update={"steps": 4})}), quiet(),
                      lambda *_: None) as run:  # fmt: skip
        assert run.record.step == 2 and run.record.learner.reference is None  # loaded for what was missing, and let go
    with open_offline(offline_recipe(tmp_path, "kto", output=str(tmp_path / "kto")), quiet(), lambda *_: None) as run:
        assert run.record.learner.reference is not None  # z0 needs it at every step


def test_the_reference_is_the_model_that_the_run_began_with(tmp_path: Path) -> None:
    """At the first step Delta is 0: ln 2; with adapters and with all weights, and from a saved adapter too."""
    for number, model in enumerate(({}, LORA)):
        train(
            offline_recipe(tmp_path, "dpo", model=model, train={"steps": 3}, output=str(tmp_path / f"{number}")),
            quiet(),
        )
        assert values(tmp_path / f"{number}", "train/loss")[0] == pytest.approx(0.6931472, abs=1e-6)
    adapter = {"lora": {"rank": 2, "adapter": str(checkpoint_path(tmp_path / "1", 3) / "policy")}}
    train(offline_recipe(tmp_path, "dpo", model=adapter, train={"steps": 3}, output=str(tmp_path / "2")), quiet())
    assert values(tmp_path / "2", "train/loss")[0] == pytest.approx(0.6931472, abs=1e-6)


def test_case_c65_a_vocabulary_of_any_size_trains_as_one_padded_to_64(tmp_path: Path) -> None:
    losses = []
    for number, multiple in enumerate((1, 64)):
        wanted = offline_recipe(tmp_path, "dpo", train={"learning_rate": 3e-5}, output=str(tmp_path / f"{number}"))
        odd = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        odd.resize_token_embeddings(45, pad_to_multiple_of=multiple, mean_resizing=False)
        with torch.no_grad():
            odd.get_input_embeddings().weight[42:] = odd.get_output_embeddings().weight[42:] = 0
        odd.save_pretrained(tmp_path / "model")
        train(wanted, quiet())
        assert len(weights_of(tmp_path / f"{number}", 4)["model.embed_tokens.weight"]) == 45 if multiple == 1 else 64
        losses.append(values(tmp_path / f"{number}", "train/loss"))
    assert losses[0] == pytest.approx(losses[1], abs=1e-3) and losses[0][-1] < 0.69


def test_a_loss_that_is_not_finite_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = learner.divided
    monkeypatch.setattr(learner, "divided", lambda *a: original(*a) * float("nan"))
    with pytest.raises(NonFiniteError, match=r"^step 1: loss: got nan.*row \d+ of dpo-train.*non-finite-step-000001"):
        train(offline_recipe(tmp_path, "dpo", held_out=[]), quiet())


# --- what becomes of a run --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [{}, LORA], ids=["full", "lora"])
def test_a_run_s_folder_is_a_model(tmp_path: Path, model: dict[str, Any]) -> None:
    """SFT, a reward model on it, then PPO with both, by the folders of the runs alone."""
    recipe(tmp_path)  # writes model and prompts
    sft, reward = tmp_path / "sft", tmp_path / "reward"
    train(offline_recipe(tmp_path, "sft", model=model, output=str(sft)), quiet())
    config = {**model, "path": str(sft)}
    train(offline_recipe(tmp_path, "reward_model", model=config, output=str(reward)), quiet())
    assert is_scalar_folder(str(reward)) and not is_scalar_folder(str(sft))
    wanted = recipe(
        tmp_path, model={"path": str(sft), **model}, algorithm={"preset": "ppo", "kl": {"placement": "reward"}},
        verifiers={"default": {"liked": {"kind": "reward_model", "path": str(reward), "device": "cpu"}}},
        train={"steps": 2}, output=str(tmp_path / "ppo"),
    )  # fmt: skip
    online.train(wanted, quiet())
    found = read_metrics(tmp_path / "ppo")
    assert abs(found[0].metrics["kl/reference_k1"]) < 1e-5 and "critic/loss" in found[1].metrics


@pytest.mark.parametrize("model", [LORA, {"lora": {"rank": 2, "quantise": "nf4"}}], ids=["lora", "qlora"])
@pytest.mark.parametrize("name", ["dpo", "reward_model"])
def test_adapters_are_merged_when_a_run_is_loaded(tmp_path: Path, name: str, model: dict[str, Any]) -> None:
    """The merged model says what the run's own model said, and export writes the same for transformers."""
    run = tmp_path / "run"
    wanted = offline_recipe(tmp_path, name, model=model)
    train(wanted, quiet())
    with open_offline(wanted, quiet(), lambda *_: None) as opened:
        own = opened.record.learner.roles[opened.algorithm.role].lm
        ids = torch.tensor([[5, 6, 7, 8]])
        with torch.no_grad():
            expected = own.module(input_ids=ids).logits
    config = ModelConfig(path=str(run), device="cpu")
    merged = load_scalar_model(config, fresh_head=False) if name == "reward_model" else load_language_model(config)
    assert not hasattr(merged.module, "peft_config")
    with torch.no_grad():
        torch.testing.assert_close(merged.module(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-5)
    export_run(run, tmp_path / "exported", merge=True)
    kind = AutoModelForSequenceClassification if name == "reward_model" else AutoModelForCausalLM
    with torch.no_grad():
        torch.testing.assert_close(
            kind.from_pretrained(tmp_path / "exported")(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("name", ["sft", "reward_model"])
def test_all_weights_of_a_run_with_adapters_can_be_trained(tmp_path: Path, name: str) -> None:
    """Merging adapters freezes the weights."""
    train(offline_recipe(tmp_path, name, model=LORA, output=str(tmp_path / "one")), quiet())
    wanted = offline_recipe(tmp_path, name, model={"path": str(tmp_path / "one")}, output=str(tmp_path / "two"))
    with open_offline(wanted, quiet(), lambda *_: None) as opened:
        role = opened.record.learner.roles[opened.algorithm.role]
        before = {weight: value.detach().clone() for weight, value in role.lm.module.named_parameters()}
    assert set(role.trainable) == set(before)
    train(wanted, quiet())
    part = "reward" if name == "reward_model" else "policy"
    after = weights_of(tmp_path / "two", 4, part)
    moved = [weight for weight, value in after.items() if not torch.equal(value, before[weight])]
    assert set(moved) == set(after)


@pytest.mark.filterwarnings("error:Could not find a config file")
def test_adapters_on_adapters_know_their_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A LoRA run on a LoRA run: the base of the second is the first, merged."""
    train(offline_recipe(tmp_path, "sft", model=LORA, output=str(tmp_path / "one")), quiet())
    two = offline_recipe(tmp_path, "dpo", model={**LORA, "path": str(tmp_path / "one")}, output=str(tmp_path / "two"))
    train(two, quiet())
    base = json.loads((Path(resolve_model(str(tmp_path / "two"))) / "adapter_config.json").read_text())
    assert base["base_model_name_or_path"] == resolve_model(str(tmp_path / "one"))
    export_run(tmp_path / "two", tmp_path / "exported", merge=False)
    assert f"(base model: {resolve_model(str(tmp_path / 'one'))})" in capsys.readouterr().out
    with open_offline(two, quiet(), lambda *_: None) as opened, torch.no_grad():
        expected = opened.record.learner.policy.module(input_ids=torch.tensor([[5, 6, 7]])).logits
    merged = load_language_model(ModelConfig(path=str(tmp_path / "two"), device="cpu"))
    with torch.no_grad():
        found = merged.module(input_ids=torch.tensor([[5, 6, 7]])).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_model_that_was_trained_further_is_noticed(tmp_path: Path) -> None:
    sft = tmp_path / "sft"
    train(offline_recipe(tmp_path, "sft", train={"steps": 2}, output=str(sft)), quiet())
    wanted = offline_recipe(tmp_path, "dpo", model={"path": str(sft)}, train={"steps": 2})
    train(wanted, quiet())
    train(offline_recipe(tmp_path, "sft", train={"steps": 3}, output=str(sft)), quiet())
    with pytest.raises(QuatrainError, match=r"^model\.path: got other files in .*step-000003"):
        train(offline_recipe(tmp_path, "dpo", model={"path": str(sft)}, train={"steps": 3}), quiet())


@pytest.mark.parametrize("model", [{}, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("normalise", ["standard", "zero_mean"])
def test_a_reward_model_s_scores_are_brought_to_a_known_place(
    tmp_path: Path, model: dict[str, Any], normalise: str
) -> None:
    """Over the held-out answers: mean 0 and deviation 1, or mean 0 of the chosen ones; for the verifier alike."""
    wanted = offline_recipe(tmp_path, "reward_model", model=model, algorithm={"normalise": normalise})
    train(wanted, quiet())
    lm = load_scalar_model(ModelConfig(path=str(tmp_path / "run"), device="cpu"), fresh_head=False)
    stream = ExampleStream(wanted.held_out, lm.tokenizer, 0, "scores", wanted.length, 64)
    examples = stream.take(len(stream))
    texts = [one.samples[side].token_ids[:-1].tolist() for side in (0, 1) for one in examples]
    scores = score_ids(lm, texts)
    chosen = scores[: len(examples)]
    if normalise == "standard":
        assert float(scores.mean()) == pytest.approx(0, abs=1e-5)
        assert float(scores.std(unbiased=False)) == pytest.approx(1, abs=1e-5)
    else:
        assert float(chosen.mean()) == pytest.approx(0, abs=1e-5) and reward_info(lm).std == (1.0,)
    assert float((chosen > scores[len(examples) :]).double().mean()) == 1.0
    part = VerifierConfig.model_validate({"kind": "reward_model", "path": str(tmp_path / "run"), "device": "cpu"})
    with build_verifiers({"default": {"liked": part}}) as scorer:
        (told,) = scorer.score([text_rollout(examples[0].answers[0], {}, prompt=examples[0].prompt, index=0, group=0)])
    assert told.value == pytest.approx(float(chosen[0]), rel=1e-4)


def test_heads_keep_their_names_and_weights(tmp_path: Path) -> None:
    made = [{"prompt": f"say {letter}:", "completions": ["ab", "zy", "abab"],
             "ranks": {"nice": [0, 1, 0], "short": [0, 0, 1]}} for letter in "abcdefgh"]  # fmt: skip
    (tmp_path / "ranked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    wanted = offline_recipe(tmp_path, "reward_model", data=[{"source": str(tmp_path / "ranked.jsonl")}], held_out=[],
                            algorithm={"attributes": {"short": 0.5, "nice": 2.0}}, train={"steps": 12})  # fmt: skip
    train(wanted, quiet())
    lm = load_scalar_model(ModelConfig(path=str(tmp_path / "run"), device="cpu"), fresh_head=False)
    info = reward_info(lm)
    assert info.attributes == ("short", "nice") and info.weights == (0.5, 2.0)
    ids = [[*lm.tokenizer.encode(f"say c:{answer}"), 1] for answer in ("ab", "zy", "abab")]
    short, nice = attribute_scores(lm, ids).T
    assert nice[0] > nice[1] and short[0] > short[2]


def test_export_sample_and_eval_read_an_offline_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(offline_recipe(tmp_path, "sft"), quiet())
    export_run(run, tmp_path / "exported", merge=False)
    saved = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "exported").named_parameters())
    assert saved and AutoTokenizer.from_pretrained(tmp_path / "exported").eos_token == "<eos>"
    (tmp_path / "asked.jsonl").write_text('{"prompt": "say a1:", "answer": "1"}\n')
    wanted = settle(str(run), Asking(str(tmp_path / "asked.jsonl"), "numeric", None, ["rollout.max_tokens=4"]))
    subject = load_subject(str(run), wanted)
    assert subject.step == 4
    answers = ask(subject, {"greedy": (1, wanted.rollout.model_copy(update={"temperature": 0.0}))}, quiet())
    assert len(answers["greedy"].answers) == 1
    train(offline_recipe(tmp_path, "reward_model", output=str(tmp_path / "reward")), quiet())
    with pytest.raises(SettingError, match="this run trained a reward model: score answers with `quatrain score"):
        settle(str(tmp_path / "reward"), Asking(str(tmp_path / "asked.jsonl"), "numeric"))
    with pytest.raises(SettingError, match="need a language model; this one gives scores, not text"):
        load_language_model(ModelConfig(path=str(tmp_path / "reward"), device="cpu"))
    with pytest.raises(SettingError, match="need a model with a trained score head"):
        load_scalar_model(ModelConfig(path=str(run), device="cpu"), fresh_head=False)


# --- from Python and without weights ----------------------------------------------------------------------------------


def test_rows_in_memory_are_kept_in_the_folder(tmp_path: Path) -> None:
    offline_data(tmp_path)
    output = tmp_path / "python"
    settings: dict[str, Any] = {
        "model": str(tmp_path / "model"), "algorithm": "dpo", "steps": 2, "output": str(output), "quiet": True,
        "log": {"tensorboard": False}, "learning_rate": 1e-2,
    }  # fmt: skip
    result = quatrain.train(data=offline_rows("dpo", "abc"), held_out=offline_rows("dpo", "xy"), **settings)
    assert result.steps == 2 and result.metrics["train/loss"][0] == pytest.approx(0.693147, abs=1e-5)
    assert {path.name.partition("-")[0] for path in (output / "session").iterdir()} == {"data", "held_out"}
    again = quatrain.train(str(output / "recipe.yaml"), "train.steps=3", quiet=True)
    assert again.steps == 3 and again.evaluations == {} and set(again.measured) == {0, 2, 3}
    assert again.measured[0]["eval/loss"] == pytest.approx(0.693147, abs=1e-5)
    shown = str(quatrain.load_run(output))
    assert "training loss: 0.693 in the first step" in shown and "held-out loss: 0.6931 at step 0" in shown
    with pytest.raises(QuatrainError, match="another recipe"):
        quatrain.train(data=offline_rows("dpo", "ab"), held_out=[], **settings)


def test_texts_are_rows_of_text(tmp_path: Path) -> None:
    offline_data(tmp_path)
    result = quatrain.train(model=str(tmp_path / "model"), data=["say one", "say two", "say three"], algorithm="sft",
                            steps=1, examples_per_step=2, output=str(tmp_path / "texts"), quiet=True)  # fmt: skip
    assert result.metrics["train/tokens"][0] > 10


def test_a_dry_run_reads_everything_but_the_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = offline_recipe(tmp_path, "dpo")
    (tmp_path / "model" / "model.safetensors").unlink()
    dry_run(wanted)
    shown = capsys.readouterr().out
    assert "algorithm: dpo, on pairs" in shown and "25 examples can be trained on, 15 are held out" in shown
    assert "first example" in shown and not (tmp_path / "run").exists()
    overlapping = wanted.model_copy(update={"held_out": wanted.data})
    with pytest.raises(SettingError, match=r"held_out: got .* prompts that are also trained on"):
        dry_run(overlapping)


def test_a_dry_run_refuses_what_cannot_be_packed_again(tmp_path: Path) -> None:
    packed = {"lora": {"rank": 2, "quantise": "nf4"}}
    train(offline_recipe(tmp_path, "sft", model=packed, train={"steps": 1}, output=str(tmp_path / "one")), quiet())
    again = {"lora": {**packed["lora"], "adapter": resolve_model(str(tmp_path / "one"))}}
    wanted = offline_recipe(tmp_path, "sft", model={**again, "path": str(tmp_path / "one")})
    for check in (dry_run, lambda recipe: train(recipe, quiet())):
        with pytest.raises(SettingError, match="need a model that was not trained on a base in 4 bits before"):
            check(wanted)


def test_a_stop_is_possible_while_evaluating_only_where_no_step_is_open(tmp_path: Path) -> None:
    """An evaluation within the run is finished before a stop: its step has not been written down yet."""
    asked: list[int] = []

    def phase(_console: Console, name: str, done: int, _total: int) -> None:
        if name == "evaluating" and len(asked) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        if name == "evaluating":
            asked.append(done)

    wanted = offline_recipe(tmp_path, "dpo", evaluation={"every": 1}, train={"tokens_per_micro_batch": 4096})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Console, "phase", phase)
        with pytest.raises(QuatrainError, match="stopped after step 1, saved in"):
            train(wanted, quiet())
    assert [row.step for row in read_metrics(tmp_path / "run")] == [1] == checkpoints(tmp_path / "run")


# --- mistakes ---------------------------------------------------------------------------------------------------------

PAIR = {"prompt": "say a:", "chosen": "ab", "rejected": "zy"}
OTHER = {"prompt": "say b:", "chosen": "ba", "rejected": "zz"}
MISTAKES: dict[str, tuple[str, list[Any], dict[str, Any], str]] = {
    "pairs for sft are read, answers for dpo are not": (
        "dpo", [{"prompt": "a", "completion": "b"}], {}, r"data\[0\]\.format: got columns prompt, completion"),
    "answers without labels for kto": ("kto", [{"prompt": "a", "completion": "b"}], {}, r"data\[0\]\.format"),
    "answers for a reward model": ("reward_model", [{"prompt": "a", "completion": "b"}], {}, r"data\[0\]\.format"),
    "prompts alone": ("sft", [{"prompt": "a"}], {}, r"data\[0\]\.format"),
    "an empty file": ("dpo", [], {}, r"data\[0\]"),
    "a missing file": ("dpo", [PAIR], {"data": [{"source": "absent.jsonl"}]}, r"data\[0\]\.source"),
    "not JSON": ("dpo", ["{"], {}, r"data\[0\]"),
    "a missing column": ("dpo", [PAIR, {"prompt": "b", "chosen": "c"}], {}, r"data\[0\]\.columns: got row 2"),
    "a number for an answer": ("dpo", [PAIR | {"chosen": 3}], {}, r"data\[0\]\.(chosen|rejected): got"),
    "a label that is none": ("kto", [{"prompt": "a", "completion": "b", "label": "yes"}], {}, r"data\[0\]\.label"),
    "a confidence beyond 1": ("dpo", [PAIR | {"confidence": 2}], {}, r"data\[0\]\.confidence: got 2 in row 1"),
    "a margin that is text": ("reward_model", [PAIR | {"margin": "big"}], {}, r"data\[0\]\.margin"),
    "a tie that is text": ("dpo", [PAIR | {"tie": "yes"}], {}, r"data\[0\]\.tie"),
    "ranks that do not fit": (
        "dpo", [{"prompt": "a", "completions": ["b", "c"], "ranks": [0]}], {}, r"data\[0\]\.ranks"),
    "one completion": ("dpo", [{"prompt": "a", "completions": ["b"], "ranks": [0]}], {}, r"data\[0\]\.completions"),
    "identical sides only": ("dpo", [PAIR | {"rejected": "ab"}], {}, r"data\[0\]: none of the 1 examples.*identical"),
    "ties only for ipo": ("ipo", [PAIR | {"tie": True}], {}, r"data: every comparison is a tie"),
    "ties only, discarded": ("reward_model", [PAIR | {"tie": True}], {"algorithm": {"ties": "discard"}},
                             r"data: every comparison is a tie"),
    "held-out ties only": ("simpo", [PAIR], {"held_out": [OTHER | {"tie": True}]},
                           r"held_out: every comparison is a tie"),
    "held-out rows of training": ("dpo", [PAIR], {"held_out": [PAIR]}, r"held_out: got 1 of 1 prompts"),
    "a prompt without room": ("dpo", [PAIR], {"length": {"max_tokens": 6}}, r"data\[0\]: none of .*max_tokens=6"),
    "more tokens than positions": ("dpo", [PAIR], {"length": {"max_tokens": 65}}, r"length\.max_tokens: got 65"),
    "all too long and skipped": ("sft", [{"prompt": "a", "completion": "b" * 80}], {"length": {"too_long": "skip"}},
                                 r"data\[0\]: none of the 1 .*too long"),
    "chat without a template": ("dpo", [PAIR], {"data": [{"chat": True}]}, r"data\[0\]\.chat"),
    "a column that is not there": ("dpo", [PAIR], {"data": [{"columns": {"chosen": "good"}}]},
                                   r"data\[0\]\.columns\.chosen: got good"),
    "a format of another method": ("dpo", [PAIR], {"data": [{"format": "messages"}]}, r"data\[0\]\.format"),
    "a head that no row names": ("reward_model", [PAIR], {"algorithm": {"attributes": {"nice": 1, "short": 1}}},
                                 r"algorithm\.attributes: got nice, short"),
    "rows that name heads, and none is asked for": (
        "reward_model", [{"prompt": "a", "completions": ["b", "c"], "ranks": {"x": [0, 1], "y": [1, 0]}}], {},
        r"algorithm\.attributes: got none, need the heads.*attributes: \{x: 1\.0, y: 1\.0\}"),
    "a model that is not there": ("dpo", [PAIR], {"model": {"path": "./absent"}}, r"model\.path"),
    "a run without a checkpoint": ("dpo", [PAIR], {"model": {"path": "EMPTY"}}, r"model\.path: .*a run with a"),
    "an unknown best metric": ("dpo", [PAIR], {"held_out": [OTHER], "evaluation": {"every": 1},
                               "checkpoint": {"keep_best": 1, "best_metric": "eval/acuracy"}},
                               r"checkpoint\.best_metric: got eval/acuracy.*eval/accuracy"),
    "accuracy of sft": ("sft", [{"prompt": "a", "completion": "b"}],
                        {"held_out": [{"prompt": "c", "completion": "d"}], "evaluation": {"every": 1},
                         "checkpoint": {"keep_best": 1}}, r"checkpoint\.best_metric: got eval/accuracy"),
    "evaluation of nothing": ("dpo", [PAIR], {"evaluation": {"every": 1}}, r"evaluation\.every: got 1, need held_out"),
    "two kinds of held-out data": ("dpo", [PAIR], {"held_out": [OTHER], "held_out_share": 0.5}, r"held_out_share"),
    "a share that takes all": ("dpo", [PAIR], {"held_out_share": 0.999}, r"data\[0\]: every prompt is held out"),
    "beta of orpo": ("orpo", [PAIR], {"algorithm": {"beta": 0.1}}, r"algorithm\.beta: got 0\.1"),
    "another method's setting": ("dpo", [PAIR], {"algorithm": {"odds_weight": 2.0}}, r"algorithm\.odds_weight"),
    "robust without noise": ("dpo", [PAIR], {"algorithm": {"robust": True}}, r"algorithm\.robust"),
    "noise of one half": ("dpo", [PAIR], {"algorithm": {"label_smoothing": 0.5}}, r"algorithm\.label_smoothing: got"),
    "an unknown key": ("dpo", [PAIR], {"algorithm": {"betta": 0.1}}, r"algorithm\.betta: got an unknown key.*'beta'"),
    "a setting of online runs": ("dpo", [PAIR], {"rollout": {"group_size": 4}}, r"rollout: got an unknown key"),
    "an unknown method": ("dop", [PAIR], {}, r"algorithm\S*: got .*dop"),
    "no steps": ("dpo", [PAIR], {"train": {"steps": 0}}, r"train\.steps: got 0"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "rows", "changes", "told"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_writes_no_recipe(
    tmp_path: Path, name: str, rows: list[Any], changes: dict[str, Any], told: str
) -> None:
    offline_data(tmp_path, "dpo")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "recipe.yaml").write_text("method: offline\n")
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    changes = dict(changes)
    sections = {
        "data": [{"source": str(source), **changes.pop("data", [{}])[0]}],
        "held_out": changes.pop("held_out", []),
    }
    if sections["held_out"]:
        (tmp_path / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sections["held_out"]))
        sections["held_out"] = [{"source": str(tmp_path / "held.jsonl")}]
    if changes.get("model", {}).get("path") == "EMPTY":
        changes["model"] = {"path": str(tmp_path / "empty")}
    with pytest.raises(QuatrainError) as caught:
        train(offline_recipe(tmp_path, "dpo", **{**changes, **sections, "algorithm": {"name": name, **changes.get("algorithm", {})}}), quiet())  # fmt: skip  # noqa: E501
    assert re.search(told, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value) and not (tmp_path / "run" / "recipe.yaml").exists()

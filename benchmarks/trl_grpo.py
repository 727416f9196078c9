"""A recipe's run made with TRL's GRPOTrainer, to compare with Quatrain's own.

    python benchmarks/trl_grpo.py recipes/gym-chain-sum.yaml seed=0 output=runs/trl-gym-chain-sum-0
    python benchmarks/trl_grpo.py recipes/mawps.yaml output=runs/trl-mawps-0 --rows 16

The same: weights, prompts and their order, prompts and completions per step, temperature, longest completion, tokens
that end one (a stop string of one character is every token that contains it), verifier, advantages, loss, float32,
optimizer, learning rate of every step, threads. Different: the random draws, and all that TRL does in its own way.
Written are `steps.jsonl` (reward, wall and CPU seconds of every step), `recipe.yaml`, the weights in `model/` and the
held-out evaluations before and after, as `quatrain eval OUTPUT/model --recipe RECIPE` makes them. Needs trl 1.16.

`Clock` writes the same file for Quatrain: `quatrain train RECIPE log.trackers=[benchmarks/trl_grpo.py:Clock]`.
"""

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as Quatrain's command line does

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from quatrain.config import AlgorithmConfig, Recipe
from quatrain.data.overlap import to_exclude
from quatrain.data.prompts import PromptStream, held_out_prompts, load_sources
from quatrain.errors import SettingError
from quatrain.methods.evaluate import Evaluation, evaluate, load_evaluation
from quatrain.methods.run import eval_sampling, open_engine, prompt_room
from quatrain.methods.run_folder import save_recipe
from quatrain.models.load import LanguageModel, load_language_model
from quatrain.recipe_file import load_recipe
from quatrain.rewards.rubric import Verifiers, build_verifiers
from quatrain.train.optimizer import build_optimizer, learning_rate
from quatrain.types import Prompt, Rollout


class Clock:
    """`steps.jsonl`: a line per step. The clocks run from the first step on, without loading and evaluation."""

    def __init__(self, folder: Path, _first_step: int = 1) -> None:
        self.path = folder / "steps.jsonl"
        self.wall_s, self.cpu_s = time.perf_counter(), time.process_time()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the step; values of an evaluation alone start the clocks anew."""
        if "reward/correct" not in values:
            self.wall_s, self.cpu_s = time.perf_counter(), time.process_time()
            return
        wall_s, cpu_s = time.perf_counter() - self.wall_s, time.process_time() - self.cpu_s
        row = {"step": step, "reward": values["reward/correct"], "tokens": values["rollout/tokens"]}
        with self.path.open("a", encoding="utf-8") as file:
            print(json.dumps({**row, "wall_s": wall_s, "cpu_s": cpu_s}), file=file)

    def close(self) -> None:
        """Nothing is held."""


class ClockCallback(TrainerCallback):
    """Gives TRL's steps to the clock."""

    def __init__(self, reward: "Reward", folder: Path) -> None:
        self.reward, self.clock = reward, Clock(folder)

    def on_train_begin(self, *_args: Any, **_kwargs: Any) -> None:
        """Start the clocks."""
        self.clock.log(0, {})

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        """Write the step."""
        self.clock.log(state.global_step, self.reward.values)


class Reward:
    """TRL's reward function: the recipe's verifiers on TRL's completions."""

    __name__ = "quatrain"

    def __init__(self, recipe: Recipe, prompts: Sequence[Prompt], verifiers: Verifiers, lm: LanguageModel) -> None:
        self.recipe, self.prompts, self.verifiers, self.lm = recipe, prompts, verifiers, lm
        self.values: dict[str, float] = {}  # of the last step

    def __call__(self, number: list[int], completion_ids: list[list[int]], **_: Any) -> list[float | None]:
        """A reward per completion; None where the verifier could not judge."""
        rollouts = [
            Rollout(prompt=self.prompts[position], group=position, index=index, trajectories=(),
                    text=self._text(ids), stop_reason="eos")
            for index, (position, ids) in enumerate(zip(number, completion_ids, strict=True))
        ]  # fmt: skip
        rewards = [score.value if score.usable else None for score in self.verifiers.score(rollouts)]
        judged = [reward for reward in rewards if reward is not None]
        self.values = {"reward/correct": sum(judged) / len(judged), "rollout/tokens": sum(map(len, completion_ids))}
        return rewards

    def _text(self, ids: list[int]) -> str:
        text = self.lm.tokenizer.decode([token for token in ids if token not in self.lm.eos_ids])
        cuts = [text.find(stop) for stop in self.recipe.rollout.stop if stop in text]
        return text[: min(cuts)] if cuts else text


def check(recipe: Recipe) -> None:
    """SettingError for what this script does not translate."""
    kl = recipe.algorithm.kl
    plain = AlgorithmConfig.model_validate({"preset": "grpo", "std": "sample", "kl": kl.model_dump()})
    if recipe.algorithm != plain or kl.placement not in ("none", "loss") or kl.estimator != "k3" or kl.ratio_weighted:
        raise SettingError("algorithm", recipe.algorithm.preset, "grpo with std: sample, and k3 in the loss or no KL",
                           "change the recipe")  # fmt: skip
    if recipe.train.epochs * recipe.train.updates_per_step > 1 or recipe.model.lora is not None:
        raise SettingError("train", "several updates a step, or adapters", "one update of all weights", "change it")
    if any(len(stop) != 1 for stop in recipe.rollout.stop):
        raise SettingError("rollout.stop", recipe.rollout.stop, "single characters", "TRL ends at tokens")


def end_tokens(recipe: Recipe, lm: LanguageModel) -> list[int]:
    """The tokens that end a completion: the model's own, and all that contain a stop character."""
    stops = set(recipe.rollout.stop)
    texts = lm.tokenizer.batch_decode([[token] for token in range(lm.vocabulary)])
    return sorted({*lm.eos_ids, *(token for token, text in enumerate(texts) if stops & set(text))})


def grpo_config(recipe: Recipe, rows: int) -> GRPOConfig:
    """The recipe in TRL's words; `rows` completions go through the model at once."""
    batch = recipe.train.prompts_per_step * recipe.rollout.group_size
    kl = recipe.algorithm.kl
    return GRPOConfig(
        output_dir=str(Path(recipe.output) / "trl"), max_steps=recipe.train.steps, seed=recipe.seed,
        per_device_train_batch_size=rows, gradient_accumulation_steps=batch // rows,
        num_generations=recipe.rollout.group_size, max_completion_length=recipe.rollout.max_tokens,
        temperature=recipe.rollout.temperature, top_p=recipe.rollout.top_p, top_k=recipe.rollout.top_k,
        beta=kl.coefficient if kl.placement == "loss" else 0.0, use_bias_correction_kl=False,
        loss_type="grpo", scale_rewards="group", epsilon=recipe.algorithm.clip_low,
        epsilon_high=recipe.algorithm.clip_high, max_grad_norm=recipe.train.max_grad_norm,
        shuffle_dataset=False, gradient_checkpointing=False, bf16=False, use_cpu=True,
        logging_steps=1, report_to="none", save_strategy="no", disable_tqdm=True,
    )  # fmt: skip


def held_out(recipe: Recipe, lm: LanguageModel, verifiers: Verifiers, step: int) -> Evaluation:
    """The recipe's held-out evaluation of the weights as they are."""
    prompts = held_out_prompts(recipe.held_out, lm.tokenizer, prompt_room(recipe, lm), verifiers=recipe.verifiers)
    lm.module.eval()
    return evaluate(open_engine(recipe, lm), prompts, verifiers, eval_sampling(recipe), seed=recipe.seed, step=step)


def training_prompts(recipe: Recipe, lm: LanguageModel) -> list[Prompt]:
    """The prompts that Quatrain's run takes, in its order, one per group."""
    held_out_rows = [row for rows in load_sources(recipe.held_out, "held_out") for row in rows]
    stream = PromptStream(recipe.prompts, lm.tokenizer, recipe.seed, prompt_room(recipe, lm),
                          verifiers=recipe.verifiers, exclude=to_exclude(held_out_rows, recipe.overlap))  # fmt: skip
    prompts = stream.take(recipe.train.steps * recipe.train.prompts_per_step)
    for prompt in prompts:
        assert tuple(lm.tokenizer(prompt.text)["input_ids"]) == prompt.token_ids, prompt.text
    return prompts


def trainer(recipe: Recipe, rows: int, lm: LanguageModel, verifiers: Verifiers) -> GRPOTrainer:
    """TRL's trainer of the recipe, with Quatrain's optimizer and learning rates."""
    prompts = training_prompts(recipe, lm)
    lm.module.train()
    lm.module.generation_config.eos_token_id = end_tokens(recipe, lm)
    optimizer = build_optimizer(lm.module, recipe.train)
    rates = [
        learning_rate(recipe.train, step) / recipe.train.learning_rate for step in range(1, recipe.train.steps + 2)
    ]
    reward = Reward(recipe, prompts, verifiers, lm)
    return GRPOTrainer(
        model=lm.module, reward_funcs=reward, args=grpo_config(recipe, rows), processing_class=lm.tokenizer,
        train_dataset=Dataset.from_list([{"prompt": prompt.text, "number": n} for n, prompt in enumerate(prompts)]),
        callbacks=[ClockCallback(reward, Path(recipe.output))],
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rates.__getitem__)),
    )  # fmt: skip


def train(recipe: Recipe, rows: int) -> None:
    """Evaluate, train, evaluate, save."""
    check(recipe)
    folder = Path(recipe.output)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "steps.jsonl").unlink(missing_ok=True)
    save_recipe(folder, recipe)
    torch.set_num_threads(recipe.threads or torch.get_num_threads())
    lm = load_language_model(recipe.model)
    with build_verifiers(recipe.verifiers) as verifiers:
        if load_evaluation(folder, 0) is None:
            held_out(recipe, lm, verifiers, 0).save(folder)
        trainer(recipe, rows, lm, verifiers).train()
        held_out(recipe, lm, verifiers, recipe.train.steps).save(folder)
    lm.module.generation_config.eos_token_id = sorted(lm.eos_ids)
    lm.module.save_pretrained(folder / "model")
    lm.tokenizer.save_pretrained(folder / "model")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("changes", nargs="*", help="KEY.SUB=VALUE, as for quatrain train")
    parser.add_argument("--rows", type=int, default=64, help="completions in the model at once (memory)")
    given = parser.parse_intermixed_args()
    train(load_recipe(given.recipe, given.changes), given.rows)

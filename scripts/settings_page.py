"""Prints docs/recipes.md: every setting of a recipe, read from the models in quatrain/config/.

    python scripts/settings_page.py > docs/recipes.md

Names, defaults and ranges come from the models. So does the effect where a field has a description; `EFFECTS` holds
the others. A setting with neither, and an effect without a setting, is an error.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from quatrain.config import (
    AlgorithmConfig,
    CheckpointConfig,
    CriticConfig,
    CurriculumConfig,
    DataConfig,
    EvalConfig,
    KLConfig,
    LabelJudgeConfig,
    LabelRecipe,
    LengthConfig,
    LogConfig,
    LoraConfig,
    MismatchConfig,
    ModelConfig,
    OfflineEvalConfig,
    OfflineRecipe,
    OfflineTrainConfig,
    PreferenceConfig,
    PretrainingConfig,
    Recipe,
    ReferenceConfig,
    RewardConfig,
    RewardModelConfig,
    RolloutConfig,
    SFTConfig,
    SourceConfig,
    TrainConfig,
    VerifierConfig,
)

SECTIONS: tuple[tuple[str, type[BaseModel], str], ...] = (
    ("", Recipe, "At the top of the file."),
    ("model", ModelConfig, "`model: NAME` alone is short for `model: {path: NAME}`."),
    ("model.lora", LoraConfig, "Without this section all weights are trained."),
    ("model.reference", ReferenceConfig, ""),
    ("prompts[]", SourceConfig, "A list; `held_out` is a list of the same. More in [prompts](prompts.md)."),
    ("verifiers.NAME.PART", VerifierConfig, "Named rubrics of named parts. More in [verifiers](verifiers.md)."),
    ("rollout", RolloutConfig, ""),
    ("algorithm", AlgorithmConfig, "Defaults are those of the preset `grpo`. More in [algorithms](algorithms.md)."),
    ("algorithm.kl", KLConfig, "Which estimator belongs where: [algorithms](algorithms.md#the-kl-penalty)."),
    ("algorithm.mismatch", MismatchConfig, "Weights are 1 unless one of these is set."),
    ("algorithm.critic", CriticConfig, "Only with the preset `ppo`."),
    ("algorithm.reward", RewardConfig, "Only with the preset `ppo`."),
    ("algorithm.pretraining", PretrainingConfig, "Without this section there is no such term."),
    ("train", TrainConfig, ""),
    ("curriculum", CurriculumConfig, "More in [prompts](prompts.md)."),
    ("evaluation", EvalConfig, "Greedy unless set otherwise."),
    ("checkpoint", CheckpointConfig, "More in [runs](runs.md)."),
    ("log", LogConfig, ""),
)

OFFLINE_SECTIONS: tuple[tuple[str, type[BaseModel], str], ...] = (
    ("", OfflineRecipe, "At the top of the file. `model`, `checkpoint` and `log` are those of above."),
    ("data[]", DataConfig, "A list; `held_out` is a list of the same. More in [data](data.md)."),
    ("length", LengthConfig, ""),
    ("algorithm sft", SFTConfig, "More on all of them in [offline methods](offline.md)."),
    ("algorithm reward_model", RewardModelConfig, ""),
    ("algorithm dpo, ipo, kto, orpo, simpo", PreferenceConfig, ""),
    ("offline train", OfflineTrainConfig, "The settings of the optimizer are those of above."),
    ("offline evaluation", OfflineEvalConfig, ""),
)

LABEL_SECTIONS: tuple[tuple[str, type[BaseModel], str], ...] = (
    ("", LabelRecipe, "`model`, `prompts[]` and `rollout` are those of above; a group is the answers to one prompt."),
    ("judge", LabelJudgeConfig, "Keys beyond these are the settings of that [verifier](verifiers.md#a-judge)."),
)

SAMPLING = {
    "top_k": "keeps this many of the most probable tokens; 0 is off",
    "top_p": "keeps the most probable tokens that together reach this share; 1 is off",
    "min_p": "drops tokens less probable than this share of the most probable one; 0 is off",
    "max_tokens": "longest completion; one that has not ended by then counts as cut",
    "stop": "texts that end a completion; the text is scored up to the first of them",
}

EFFECTS: dict[str, dict[str, str]] = {
    "": {
        "method": "which loop runs",
        "model": "see below",
        "prompts": "what is trained on; see below",
        "held_out": "what is evaluated; a question that is also trained on stops the run",
        "verifiers": "what completions earn; see below",
        "rollout": "see below",
        "algorithm": "see below",
        "train": "see below",
        "curriculum": "see below",
        "evaluation": "see below",
        "checkpoint": "see below",
        "log": "see below",
        "output": "the run's folder; `train` on a recipe file names it after the file",
        "seed": "of everything that is drawn: order of prompts, tokens, adapters, order of later epochs",
    },
    "model": {
        "path": "`smollm2-135m`, a Hugging Face folder or an id",
        "device": "`auto` (a GPU when there is one), `cpu`, `cuda`, `cuda:1`, ...",
        "attention": "torch's fused attention, or the plain one",
        "gradient_checkpointing": "recomputes activations in the backward pass: less memory, about a third more time",
        "lora": "trains adapters instead of all weights; see below",
        "reference": "the frozen copy that the KL is taken to; see below",
    },
    "model.lora": {
        "rank": "r: each adapted matrix gets r (inputs + outputs) trained numbers",
        "alpha": "the adapter's output is scaled by alpha / rank",
        "targets": "`all-linear`, or names of layers",
    },
    "prompts[]": {
        "source": "`FILE.jsonl`, `FILE.parquet`, `hf:NAME`, `reasoning-gym:TASK`, or `FILE.py:FUNCTION`",
        "template": "text around the columns, e.g. `{question} Answer with a number.`",
        "prefill": "text that opens the answer, e.g. `<think>`; scored as part of it",
        "weight": "share of a mixture",
        "offset": "rows left out at the start of the source",
        "limit": "rows taken after the offset",
    },
    "verifiers.NAME.PART": {
        "kind": "a built-in verifier, `FILE.py:FUNCTION` or `FILE.py:CLASS`",
        "weight": "factor in the rubric's sum",
        "timeout_s": "seconds for one call; default: the verifier's own (`math`, `regex` 0.5, `json_schema` 2, "
        "`judge` 60, otherwise 5)",
        "on_error": "a completion that could not be judged: left out of its group and counted, 0, or an error",
    },
    "rollout": {
        **SAMPLING,
        "temperature": "logits are divided by it, in sampler and trainer alike; 0 (greedy) is refused here",
        "engine": "`in_process`, `no_cache` (slow, the oracle), or `FILE.py:CLASS`",
        "group_size": "completions per prompt, which are compared with each other",
        "long_prompts": "a prompt that leaves no room for `max_tokens`: leave it out and count it, or stop",
    },
    "algorithm": {
        "name": "`grpo`, `ppo`, or `FILE.py:CLASS`",
        "preset": "a row of the preset table; keys beside it change single choices",
        "baseline": "what a score is compared with: the group's mean, the mean of the others, nothing, a critic",
        "scale": "what the difference is divided by: the group's deviation, the step's, nothing",
        "std": "divisor G or G - 1 of the variance",
        "std_epsilon": "added to the deviation",
        "uniform_groups": "groups without different scores: count in the KL and entropy terms, or not",
        "truncated": "completions cut at `max_tokens`: trained by their score, left out of the loss, penalised, or "
        "ended by the critic's value in place of the score",
        "truncation_penalty": "with `penalise`: subtracted from the score of a completion that was cut (2 becomes 1)",
        "ratio": "level of rho: token, geometric mean of the sequence, product over the sequence",
        "clip": "PPO's minimum with the clipped ratio, or CISPO's capped ratio without gradient",
        "clip_low": "rho below 1 - this is clipped",
        "clip_high": "rho above 1 + this is clipped",
        "dual_clip": "c: a token with A < 0 loses at most -c A; empty is off",
        "aggregate": "mean of the completions' token means, mean of tokens, sum / (completions x max_tokens), "
        "sum / completions",
        "entropy_coefficient": "c_e of the bonus -c_e H; 0 is off",
        "kl": "see below",
        "mismatch": "see below",
        "reward": "see below",
        "critic": "see below; there exactly when `baseline` is `critic`",
        "pretraining": "see below",
    },
    "algorithm.kl": {
        "placement": "in the loss, in the reward of every token, in the score of the completion, or nowhere",
        "estimator": "how the KL is estimated; k1 in the loss is refused",
        "coefficient": "beta; 0 is off",
    },
    "algorithm.critic": {
        "gamma": "discount of later rewards; 1 for completions that are scored once",
        "value_coefficient": "c_v of the critic's loss; with a separate critic its learning rate matters more",
    },
    "algorithm.pretraining": {
        "data": "text, as `data` of an offline recipe has it",
        "coefficient": "gamma of the term; 27.8 in Ouyang et al. 2022",
        "examples_per_update": "examples of every policy update",
    },
    "data[]": {
        "source": "`FILE.jsonl`, `FILE.parquet`, `hf:NAME`, or `FILE.py:FUNCTION`",
        "weight": "share of a mixture",
        "offset": "rows left out at the start of the source",
        "limit": "rows taken after the offset",
    },
    "algorithm sft": {"name": "the method"},
    "algorithm reward_model": {"name": "the method"},
    "algorithm dpo, ipo, kto, orpo, simpo": {
        "name": "the method",
        "desirable_weight": "kto: lambda_D, weight of the desirable answers",
        "undesirable_weight": "kto: lambda_U, weight of the undesirable answers",
    },
    "offline": {
        "method": "which loop runs; told from `algorithm.name` when it is left out",
        "model": "the model that is trained",
        "data": "what is trained on; see below",
        "held_out": "what is evaluated; a question that is also trained on stops the run",
        "length": "see below",
        "algorithm": "see below; `algorithm: dpo` is short for `algorithm: {name: dpo}`",
        "train": "see below",
        "evaluation": "see below",
        "checkpoint": "as above",
        "log": "as above",
        "output": "the run's folder; `train` on a recipe file names it after the file",
        "seed": "of everything that is drawn: order of examples, adapters, heads",
    },
    "label": {
        "method": "which command reads it",
        "model": "who answers, and criticises and rewrites",
        "prompts": "what is answered",
        "rollout": "how answers are drawn; `group_size` of them for each prompt",
        "judge": "see below",
        "output": "a folder",
        "seed": "of the order of prompts, of answers and of principles",
    },
    "judge": {"kind": "`local_judge` (a model here) or `judge` (an address)"},
    "offline train": {
        "tokens_per_micro_batch": "positions of one forward and backward pass; bounds memory, not the result",
        "learning_rate": "peak of the schedule",
        "schedule": "after warm-up: constant, or down to 0 after the last step",
        "warmup_steps": "steps of linear rise",
        "weight_decay": "of matrices; vectors get none",
        "adam_betas": "of AdamW",
        "adam_epsilon": "of AdamW",
        "max_grad_norm": "the gradient is scaled down to this norm",
    },
    "algorithm.mismatch": {"level": "weight of the token, or the product over its sequence"},
    "train": {
        "steps": "rollout batches of the run",
        "prompts_per_step": "groups of a rollout batch",
        "tokens_per_micro_batch": "positions of one forward and backward pass; bounds memory, not the result",
        "updates_per_step": "optimizer updates that a rollout batch is split into, whole groups each",
        "builder": "one sample a row, several a row, or a group's prompt once for all its completions; "
        "the result does not depend on it",
        "learning_rate": "peak of the schedule; about 1e-5 for small models, 1e-6 for 7B trained whole",
        "schedule": "after warm-up: constant, or down to 0 after the last step",
        "warmup_steps": "steps of linear rise",
        "weight_decay": "of matrices; vectors get none",
        "adam_betas": "of AdamW",
        "adam_epsilon": "of AdamW",
        "max_grad_norm": "the gradient is scaled down to this norm",
    },
    "evaluation": {
        **SAMPLING,
        "temperature": "0 is greedy",
        "max_tokens": "default: the rollout's",
        "stop": "default: the rollout's",
    },
    "checkpoint": {"keep_last": "older checkpoints are removed"},
    "log": {"tensorboard": "curves in `RUN/tensorboard`; needs the package tensorboard"},
}

HEAD = """\
# Recipes

A recipe is one YAML file. This is a whole one; everything else has a default:

```yaml
model: smollm2-135m
prompts:
  - {source: train.jsonl, template: "{question} Answer with a number."}
held_out:
  - {source: test.jsonl, template: "{question} Answer with a number."}
verifiers:
  default:
    correct: {kind: numeric}
```

`quatrain train RECIPE.yaml key.sub=value ...` changes single settings; `prompts.0.limit=5` counts list items from 0.
With `--dry-run` a recipe is checked with its data and verifiers, but without weights. `${NAME}` and `${NAME:-default}`
in a text are environment variables. An unknown key is an error that names the nearest known one. The resolved recipe is
saved as `RUN/recipe.yaml`, and `quatrain train --schema` prints a JSON Schema for editors.

Batch arithmetic: `prompts_per_step x group_size` completions a step, split by prompts into `updates_per_step` updates,
`epochs` times over. It is printed at the start. `updates_per_step` must divide `prompts_per_step`.

This page is written by `make docs` from `quatrain/config/` (`scripts/settings_page.py`).
"""

OFFLINE_HEAD = """\
# Offline recipes

Supervised fine-tuning, reward models and preference methods have a recipe of another kind, with `data` in place of
prompts and verifiers. This is a whole one:

```yaml
model: smollm2-135m
data:
  - {source: pairs.jsonl}
held_out_share: 0.05
algorithm: dpo
```
"""


LABEL_HEAD = """\
# Recipes of labelling

What `quatrain label` reads: prompts, a model that answers them, and a judge. More in [labelling](labelling.md).
"""


def render() -> str:
    """The page. Raises ValueError for a setting without an effect, or an effect without a setting."""
    lines = [HEAD, *_part(Recipe, SECTIONS, "The run", "")]
    lines += [OFFLINE_HEAD, *_part(OfflineRecipe, OFFLINE_SECTIONS, "The offline run", "offline")]
    lines += [LABEL_HEAD, *_part(LabelRecipe, LABEL_SECTIONS, "The labelling run", "label")]
    return "\n".join(lines).rstrip() + "\n"


def _part(
    top: type[BaseModel], sections: Iterable[tuple[str, type[BaseModel], str]], title: str, own: str
) -> list[str]:
    """The sections of one kind of recipe; `own` is the place of its top level in EFFECTS."""
    definitions = top.model_json_schema()["$defs"]
    lines: list[str] = []
    for place, model, note in sections:
        schema = top.model_json_schema() if model is top else definitions[model.__name__]
        lines.append(f"## {f'`{place}`' if place else title}\n")
        lines.append(" ".join(filter(None, (_sentence(model), note))) + "\n")
        lines += ["| setting | default | range | effect |", "| --- | --- | --- | --- |"]
        lines += [_row(cells) for cells in _settings(place or own, model, schema["properties"])]
        lines.append("")
    return lines


def _sentence(model: type[BaseModel]) -> str:
    text = " ".join((model.__doc__ or "").split())
    return "" if model in (Recipe, OfflineRecipe, LabelRecipe) else text


def _settings(place: str, model: type[BaseModel], properties: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    effects = EFFECTS.get(place, {})
    if unknown := effects.keys() - model.model_fields.keys():
        raise ValueError(f"EFFECTS[{place!r}]: got {sorted(unknown)}, need names of settings")
    for name, field in model.model_fields.items():
        effect = effects.get(name) or field.description
        if not effect:
            raise ValueError(f"{place}.{name}: got no effect, need a description or a line in EFFECTS")
        yield f"`{name}`", _default(field), values(properties[name]), effect


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "its defaults"
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return f"`{value}`".lower()
    if isinstance(value, (list, tuple)):
        return f"`{list(value)}`"
    return f'`"{value}"`' if value == "" else f"`{value}`"


def values(node: Mapping[str, Any]) -> str:
    """What a setting may be, in words, from its JSON Schema."""
    if "anyOf" in node:
        kinds = [values(part) for part in node["anyOf"] if part.get("type") != "null"]
        return " or ".join(kinds + (["empty"] if len(kinds) < len(node["anyOf"]) else []))
    if "$ref" in node or "oneOf" in node:
        return "section"
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    if "const" in node:
        return f"`{node['const']}`"
    if node["type"] == "array":
        if "prefixItems" in node:
            return f"{len(node['prefixItems'])} of: {values(node['prefixItems'][0])}"
        return f"list of {values(node['items'])}" + (", at least 1" if node.get("minItems") else "")
    if node["type"] == "object":
        return "mapping"
    if node["type"] in ("integer", "number"):
        return _number(node)
    return "true, false" if node["type"] == "boolean" else "text"


def _number(node: Mapping[str, Any]) -> str:
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    bounds = [f"{sign} {node[key]:g}" for key, sign in signs.items() if key in node]
    return " ".join(["whole number" if node["type"] == "integer" else "number", " and ".join(bounds)]).strip()


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(render())

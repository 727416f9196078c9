"""`quatrain plan`: memory and time of a run before anything is loaded. Nothing here imports torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

Number = Annotated[int | None, typer.Option(min=1)]
EXAMPLE = "Example: quatrain plan recipes/gsm8k.yaml --gpu h100-80g   or   quatrain plan --model 7B --gpu h100-80gx8"


def plan(
    recipe: Annotated[Path | None, typer.Argument(metavar="[RECIPE.yaml]", help="A recipe, see recipes/.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY.SUB=VALUE]...", help="Settings of the recipe to change.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Without a recipe: an id, a folder, a config.json, or a size: 7B, 30B-A3B.")
    ] = None,
    params: Annotated[
        float | None, typer.Option(help="Model states alone, from a number of parameters: 7.24e9.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="grpo, ppo, ppo_shared, dpo, sft, reward_model, ...")] = None,
    gpu: Annotated[str | None, typer.Option(help="Device and count: h100-80gx8. Default: this machine's.")] = None,
    nodes: Annotated[int, typer.Option(help="Machines with so many devices each.", min=1)] = 1,
    hardware: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Further devices.")] = None,
    precision: Annotated[str | None, typer.Option(help="mixed, master, bf16, fp32 (see docs/planner.md).")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adamw, adamw_8bit, adafactor, sgd_momentum, sgd.")] = None,
    lora_rank: Annotated[int | None, typer.Option(help="Train adapters of this rank.", min=1)] = None,
    lora_targets: Annotated[str | None, typer.Option(help="Layers by name, with commas. Default: all-linear.")] = None,
    qlora: Annotated[bool, typer.Option("--qlora", help="The frozen base in 4 bits (NF4).")] = False,
    sharding: Annotated[str | None, typer.Option(help="none, zero1, zero2, zero3 or fsdp.")] = None,
    expert_parallel: Number = None,
    tensor_parallel: Number = None,
    offload: Annotated[
        list[str] | None, typer.Option(help="optimizer, frozen (models that only score) or activations; repeatable.")
    ] = None,
    checkpointing: Annotated[bool | None, typer.Option(help="Recompute blocks in the backward pass.")] = None,
    attention: Annotated[str | None, typer.Option(help="fused, repeated, masked or eager.")] = None,
    full_logits: Annotated[bool, typer.Option("--full-logits", help="All logits at once, not in chunks.")] = False,
    tokens: Annotated[int | None, typer.Option(help="Positions of a micro-batch on one device.", min=1)] = None,
    sequence: Annotated[int | None, typer.Option(help="Longest row of a micro-batch.", min=1)] = None,
    engine: Annotated[str | None, typer.Option(help="in_process, colocated, apart or none.")] = None,
    engine_share: Annotated[float | None, typer.Option(help="Share of a device that an engine reserves.")] = None,
    engine_tensor_parallel: Number = None,
    cache_bits: Annotated[int | None, typer.Option(help="Bits of a number in the KV cache: 8, 16, 32.")] = None,
    group: Annotated[int | None, typer.Option(help="Completions of a prompt.", min=1)] = None,
    rows: Annotated[int | None, typer.Option("--completions", help="Completions decoded side by side.", min=1)] = None,
    step_completions: Annotated[
        int | None, typer.Option(help="Completions (or rows) of a step, for its time. Default: 16 groups.", min=1)
    ] = None,
    prompt: Annotated[int | None, typer.Option(help="Tokens of a prompt.", min=1)] = None,
    completion: Annotated[int | None, typer.Option(help="Most tokens of a completion.", min=1)] = None,
    reference: Annotated[bool | None, typer.Option(help="Keep a reference model (a KL penalty needs one).")] = None,
    critic: Annotated[str | None, typer.Option(metavar="MODEL", help="A critic of another size.")] = None,
    reward: Annotated[str | None, typer.Option(metavar="MODEL", help="A reward model of another size.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the run, for its time.", min=1)] = None,
    price: Annotated[float | None, typer.Option(help="Price of a device for an hour.", min=0)] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Methods side by side, and published tables.")] = False,
    row_file: Annotated[
        Path | None, typer.Option("--rows", metavar="FILE.jsonl", help="Predict measured peaks, a line each.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a self-contained page.")] = None,
) -> None:
    """Memory and time of a run before anything is loaded: what each phase takes, whether it fits, what would help."""
    given = {name: value for name, value in locals().items() if value is not None}
    if row_file is not None:
        _rows(row_file, as_json)
    elif params is not None:
        _states(given, as_json, html)
    else:
        _plan(given, as_json, html)


def _plan(given: Mapping[str, Any], as_json: bool, html: Path | None) -> None:
    from quatrain.planner.answer import answer
    from quatrain.planner.compare import comparison
    from quatrain.planner.question import Question, ask
    from quatrain.planner.show import text_comparison, text_plan

    names = set(Question.__dataclass_fields__)
    asked = ask(Question(**{name: value for name, value in given.items() if name in names}))
    if given.get("compare"):
        _print(comparison(asked.job), text_comparison, as_json, html)
    else:
        _print(answer(asked, steps=given.get("steps"), price=given.get("price")), text_plan, as_json, html)


def _states(given: Mapping[str, Any], as_json: bool, html: Path | None) -> None:
    """Model states of a bare parameter count."""
    from quatrain.planner.answer import states_answer
    from quatrain.planner.compare import states_comparison
    from quatrain.planner.question import states_question
    from quatrain.planner.show import text_comparison, text_plan

    asked = states_question(given)
    if given.get("compare"):
        data = states_comparison(asked.parameters, asked.device, asked.devices)
        _print(data, text_comparison, as_json, html)
    else:
        _print(states_answer(asked.states(), asked.method, asked.parameters), text_plan, as_json, html)


def _print(data: dict[str, Any], text: Any, as_json: bool, html: Path | None) -> None:
    if html is not None:
        from quatrain.errors import SettingError
        from quatrain.planner.page import page

        try:
            html.write_text(page(data), encoding="utf-8")
        except OSError as error:
            raise SettingError("--html", str(html), "a file that can be written", str(error)) from None
    print(json.dumps(data) if as_json else text(data))


def _rows(file: Path, as_json: bool) -> None:
    from quatrain.planner.rows_table import row_data, text_rows

    data = row_data(file)
    if as_json:
        for line in data:
            print(json.dumps(line))
    else:
        print(text_rows(data))

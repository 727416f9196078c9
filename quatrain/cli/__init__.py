"""The command line: arguments to calls, errors to one line. Heavy imports wait until a command needs them."""

import os
import sys
import warnings
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer

from quatrain.cli.plan import EXAMPLE, plan
from quatrain.errors import Interrupted, QuatrainError

app = typer.Typer(
    name="quatrain",
    help="Post-train language models with reinforcement learning. Add --debug to any command for tracebacks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY.SUB=VALUE]...", help="Settings to change, e.g. train.steps=20.")
]
Target = Annotated[
    str, typer.Argument(metavar="RUN|MODEL", help="A run folder, or a model (folder, id, smollm2-135m).")
]
TaskOption = Annotated[
    str | None,
    typer.Option("--task", help="Held-out set: gsm8k, mawps, reasoning-gym:NAME[?size=..&seed=..], or FILE.jsonl, ..."),
]
RecipeOption = Annotated[Path | None, typer.Option("--recipe", help="Recipe with prompts and verifiers (for a MODEL).")]
StepOption = Annotated[
    str | None, typer.Option("--step", help="Checkpoint of a RUN: a number, 0 (its start) or best. Default: the last.")
]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Change a setting of the recipe, KEY.SUB=VALUE.")]


@app.command(epilog="Example: quatrain train recipes/demo.yaml train.steps=20 output=runs/longer")
def train(
    recipe: Annotated[Path | None, typer.Argument(metavar="RECIPE.yaml", help="A recipe, see recipes/.")] = None,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything but the weights, then stop.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the recipe's JSON Schema.")] = False,
) -> None:
    """Run a recipe, or resume it where it was stopped."""
    from quatrain.config import OfflineRecipe
    from quatrain.recipe_file import load_recipe, schema_of

    if schema:
        import json

        print(json.dumps(schema_of(recipe), indent=2))
        return
    if recipe is None:
        raise typer.BadParameter("give a RECIPE.yaml (or --schema)")
    loaded = load_recipe(recipe, overrides or [])
    if dry_run:
        from quatrain.methods.dry_run import dry_run as check

        check(loaded)
        return
    if isinstance(loaded, OfflineRecipe):
        from quatrain.methods.offline import train as run_offline

        run_offline(loaded)
        return
    from quatrain.methods.online import train as run
    from quatrain.methods.summary import summarise
    from quatrain.telemetry.console import Console

    console = Console()
    summarise(run(loaded, console), console)


app.command(epilog=EXAMPLE)(plan)


@app.command(epilog="Example: quatrain probe recipes/gsm8k.yaml --prompts 16")
def probe(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml|RUN", help="A recipe, see recipes/, or a run folder.")],
    overrides: Overrides = None,
    prompts: Annotated[int, typer.Option(help="Prompts to try, or to show of a RUN.", min=1)] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Before a run: success rate, informative groups, lengths and throughput on a few prompts.

    Of a RUN: how often each prompt was solved, the hardest and the easiest ones.
    """
    from quatrain.recipe_file import load_recipe, online

    if recipe.is_dir():
        from quatrain.methods.prompt_report import prompt_report

        if overrides:
            raise typer.BadParameter("settings of a RUN are those it has; leave out KEY.SUB=VALUE")
        prompt_report(recipe, prompts, as_json)
        return
    from quatrain.methods.probe import probe as run

    run(online(load_recipe(recipe, overrides or [])), prompts, as_json)


@app.command(name="eval", epilog="Example: quatrain eval runs/demo --samples 8 --greedy --against-step 0")
def evaluate(
    target: Annotated[
        str, typer.Argument(metavar="RUN|MODEL|FILE.json", help="A run folder, a model, or results of --out.")
    ],
    task: TaskOption = None,
    verifier: Annotated[str | None, typer.Option(help="Verifier of --task, e.g. math, numeric.")] = None,
    recipe: RecipeOption = None,
    settings: Settings = None,
    step: StepOption = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N prompts.", min=1)] = None,
    samples: Annotated[
        int | None, typer.Option(help="Completions per prompt, for pass@k and majority@k; at temperature 1.", min=1)
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.", min=0)] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="A greedy completion per prompt too.")] = False,
    against: Annotated[
        str | None, typer.Option(metavar="RUN|MODEL|FILE.json", help="Compare with this one on the same prompts.")
    ] = None,
    against_step: Annotated[
        str | None, typer.Option(help="Checkpoint of --against (default: of the target itself).")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write results with every answer.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """pass@k, mean@k and majority@k on held-out prompts, with 95 % intervals; or two policies compared, paired."""
    from quatrain.methods.inspect import Output, evaluate_target
    from quatrain.methods.subject import Asking

    changes = [f"evaluation.{k}={v}" for k, v in (("samples", samples), ("temperature", temperature)) if v is not None]
    evaluate_target(target, Asking(task, verifier, recipe, [*(settings or []), *changes]), step=step, limit=limit,
                    against=against, against_step=against_step, greedy=greedy, output=Output(as_json, out))  # fmt: skip


@app.command(epilog="Example: quatrain sample runs/demo --prompts 3")
def sample(
    target: Target,
    task: TaskOption = None,
    verifier: Annotated[str | None, typer.Option(help="Verifier of --task, e.g. math, numeric.")] = None,
    recipe: RecipeOption = None,
    settings: Settings = None,
    step: StepOption = None,
    prompts: Annotated[int, typer.Option(help="Prompts to show.", min=1)] = 3,
) -> None:
    """Completions with their rewards: the best and the worst of each group side by side."""
    from quatrain.methods.inspect import sample_target
    from quatrain.methods.subject import Asking

    sample_target(target, Asking(task, verifier, recipe, settings or []), step=step, prompts=prompts)


@app.command(epilog="Example: quatrain score math rows.jsonl --set extract=boxed")
def score(
    verifier: Annotated[str, typer.Argument(help="A built-in verifier or FILE.py:FUNCTION.")],
    rows: Annotated[Path, typer.Argument(metavar="ROWS.jsonl", help="Rows with prompt, completion, answer, ...")],
    settings: Annotated[list[str] | None, typer.Option("--set", help="Setting of the verifier, KEY=VALUE.")] = None,
) -> None:
    """Score a file of completions with any verifier: one JSON object a row."""
    from quatrain.cli.score import score_file

    score_file(verifier, rows, settings or [])


@app.command(epilog="Example: quatrain audit my_rewards.py:reward --data rows.jsonl --json")
def audit(
    verifier: Annotated[str, typer.Argument(help="A built-in verifier or FILE.py:FUNCTION.")],
    data: Annotated[Path | None, typer.Option("--data", help="Rows: prompt, a right completion, answer, ...")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Setting of the verifier, KEY=VALUE.")] = None,
    programs: Annotated[Path | None, typer.Option("--programs", help="Hostile programs, for kind code.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines.")] = False,
) -> None:
    """Attack a reward function and list what it wrongly pays for; exit code 1 when there is something."""
    from quatrain.cli.audit import audit_verifier

    if not audit_verifier(verifier, data, settings or [], programs, as_json):
        raise typer.Exit(1)


@app.command(epilog="Example: quatrain label recipes/label.yaml limit=100")
def label(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", help="A recipe with prompts and a judge.")],
    overrides: Overrides = None,
) -> None:
    """A judge labels pairs of sampled answers into a preference dataset (AI feedback); run again it goes on."""
    from quatrain.methods.label import label as run
    from quatrain.recipe_file import load_label_recipe

    run(load_label_recipe(recipe, overrides or []))


@app.command(epilog="Example: quatrain export runs/demo --to exported/demo")
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    to: Annotated[Path, typer.Option("--to", help="New folder for the model.")],
    merge: Annotated[bool, typer.Option("--merge", help="Merge adapters into the weights.")] = False,
    step: StepOption = None,
) -> None:
    """A plain Hugging Face folder of the trained model."""
    from quatrain.methods.inspect import export_run

    export_run(run, to, merge=merge, step=step)


def main() -> None:
    """Entry point: a user's mistake is one line on stderr and exit code 1; --debug shows the traceback."""
    debug = "--debug" in sys.argv
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch's large CPU arrays in large pages: fewer page faults
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    if not debug:
        sys.excepthook = _one_line
        warnings.simplefilter("ignore", FutureWarning)  # what libraries tell each other's developers
    try:
        typer.main.get_command(app)()  # app() itself would put typer's excepthook in the place of ours
    except Interrupted as error:
        _leave(f"{error}", 130, debug, error)
    except QuatrainError as error:
        _leave(f"error: {error}", 1, debug, error)
    except SystemExit as stop:
        if stop.code == 130:  # how typer answers Ctrl-C, without a word
            print("stopped", file=sys.stderr)
        raise


def _leave(line: str, code: int, debug: bool, error: QuatrainError) -> None:
    if debug:
        raise error
    print(line, file=sys.stderr)
    raise SystemExit(code)


def _one_line(kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    """What is left is a fault of ours."""
    print(f"internal error: {kind.__name__}: {error}; run again with --debug for the traceback", file=sys.stderr)

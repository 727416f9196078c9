"""Quatrain from Python: train, evaluate, score and look at runs, with prompts and verifiers that a session holds.

Heavy imports wait until a call needs them.
"""

import io
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from quatrain.config import OfflineRecipe, VerifierConfig
from quatrain.errors import SettingError
from quatrain.methods.session import Keeper, rubrics, session_recipe, sources
from quatrain.recipe_file import as_setting_error
from quatrain.types import Rollout, Score

if TYPE_CHECKING:
    from quatrain.methods.reports import Report
    from quatrain.methods.result import Result


def train(
    recipe: str | Path | Mapping[str, Any] | None = None, *overrides: str, quiet: bool = False, **settings: Any
) -> "Result":
    """Run or resume a recipe: keywords, or a YAML file (or mapping) with keywords and `"key.sub=value"` laid on it.

    Example:
        def short(prompt, completion, **columns):
            return len(completion) < 200

        train(model="smollm2-135m", prompts=[{"prompt": "What is 2+2?", "answer": "4"}, ...],
              verifiers={"right": "numeric", "short": {"kind": short, "weight": 0.1}}, steps=20, output="runs/short")
        train("recipes/demo.yaml", "train.steps=4", output="runs/demo-4")

    Keywords are the settings of docs/recipes.md: those of the top level, and by their own names those of `rollout`,
    `algorithm` and `train` (`steps=20`, `preset="dapo"`, `group_size=8`). With `algorithm="sft"` (`"dpo"`, ...) the run
    is an offline one, whose rows are `data`. `prompts`, `data` and `held_out` are a source, rows, texts, or sources;
    `verifiers` a function, a kind, a list of these, or what a recipe has. Rows and functions are
    kept in the run's folder, so the same call in another session (or `quatrain train RUN/recipe.yaml`) resumes it.

    Raises SettingError for a mistake, ResumeError when the folder holds another run, Interrupted after Ctrl-C.
    """
    wanted, keeper = session_recipe(recipe, overrides, settings)
    from quatrain.methods import offline, online
    from quatrain.methods.run_folder import settle_recipe
    from quatrain.telemetry.console import Console

    settle_recipe(Path(wanted.output), wanted)  # before anything is written into another run's folder
    keeper.write()
    console = Console(io.StringIO(), terminal=False) if quiet else None
    if isinstance(wanted, OfflineRecipe):
        return offline.train(wanted, console)
    return online.train(wanted, console)


def evaluate(
    target: str | Path, *overrides: str, task: Any = None, verifier: Any = None, recipe: str | Path | None = None,
    step: int | str | None = None, limit: int | None = None, samples: int | None = None,
    temperature: float | None = None, greedy: bool = False, quiet: bool = False,
) -> "Report":  # fmt: skip
    """What a run or a model answers on held-out prompts, as `quatrain eval` has it: `evaluate("runs/x").to_json()`.

    `task` is a source, the name of a held-out set, or rows; `verifier` a kind or a function; the other arguments are
    the command's options of the same names, `overrides` its `--set`. `report.modes["greedy"]` has every answer.
    """
    from quatrain.methods.inspect import report
    from quatrain.methods.subject import Asking, settle
    from quatrain.telemetry.console import Console

    own = {"samples": samples, "temperature": temperature}
    changes = [*overrides, *(f"evaluation.{name}={value}" for name, value in own.items() if value is not None)]
    with _kept() as keeper:
        if task is not None and not isinstance(task, str):
            asked = sources(task, keeper, "task")
            if len(asked) != 1 or set(asked[0]) - {"source", "name"}:
                raise SettingError("task", task, "rows, or one source without settings of its own",
                                   "put the rest into held_out of a recipe and give recipe=")  # fmt: skip
            task = asked[0]["source"]
        if verifier is not None and not isinstance(verifier, str):
            verifier = keeper.function(verifier, "verifier")
        keeper.write()
        asking = Asking(task, verifier, None if recipe is None else Path(recipe), changes)
        wanted = settle(str(target), asking)
        console = Console(io.StringIO(), terminal=False) if quiet else Console()
        return report(str(target), wanted, asking, step, limit, greedy, console)


def load_run(folder: str | Path) -> "Result":
    """The result of a run, also of one that is still going on; see `quatrain.methods.result.Result`."""
    from quatrain.methods.result import read_result

    return read_result(Path(folder))


def score(verifiers: Any, rows: str | Path | Iterable[Mapping[str, Any]]) -> list[Score]:
    """Scores of completions, to try a verifier: `score(short, [{"prompt": ..., "completion": ..., "answer": ...}])`.

    `verifiers` as in `train`, but one rubric; rows in memory or in a JSONL file. Rows of one prompt are a group.
    """
    from quatrain.data.sources import read_jsonl
    from quatrain.rewards import build_verifiers

    rollouts = _rollouts(read_jsonl(str(rows)) if isinstance(rows, (str, Path)) else rows)
    with _kept() as keeper:
        sections = rubrics(verifiers, keeper)
        keeper.write()
        built = {name: {part: _config(settings, f"verifiers.{name}.{part}") for part, settings in parts.items()}
                 for name, parts in sections.items()}  # fmt: skip
        with build_verifiers(built) as scorer:
            return scorer.score(rollouts)


@contextmanager
def _kept() -> Iterator[Keeper]:
    """A keeper whose files last as long as the call."""
    with tempfile.TemporaryDirectory(prefix="quatrain-") as folder:
        yield Keeper(Path(folder))


def _config(settings: Any, setting: str) -> VerifierConfig:
    try:
        return VerifierConfig.model_validate(settings)
    except ValidationError as error:
        raise as_setting_error(error, VerifierConfig, setting) from None


def _rollouts(rows: Iterable[Mapping[str, Any]]) -> list[Rollout]:
    """Rows with `completion`, and `prompt` and columns as a verifier needs them."""
    from quatrain.rewards import text_rollout

    groups: dict[str, int] = {}
    found = []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or not isinstance(row.get("completion"), str):
            raise SettingError(f"rows[{number}]", row, "a mapping with the text 'completion'", "rename the column")
        prompt = str(row.get("prompt", ""))
        columns = {name: value for name, value in row.items() if name not in ("prompt", "completion")}
        group = groups.setdefault(prompt, len(groups))
        found.append(text_rollout(row["completion"], columns, prompt=prompt, index=number, group=group))
    return found

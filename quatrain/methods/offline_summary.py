"""What an offline run shows: a line per step, the held-out measures before and after, and where to go from here."""

from quatrain.algorithms import OfflineAlgorithm
from quatrain.methods.offline_run import OfflineRun
from quatrain.methods.run_folder import load_measures
from quatrain.telemetry.console import Column

LOSS: Column = ("loss", ("train/loss",), ".4f", 9)
REST: tuple[Column, ...] = (("grad", ("train/grad_norm",), ".3g", 9), ("tokens/s", ("speed/tokens_per_s",), ".0f", 9))
COMPARED: tuple[Column, ...] = (
    ("accuracy", ("preference/accuracy", "reward_model/accuracy"), ".0%", 9),
    ("margin", ("preference/margin", "reward_model/margin"), ".3f", 9),
)
LABELLED: tuple[Column, ...] = (
    ("good", ("preference/chosen_reward",), ".3f", 9),
    ("bad", ("preference/rejected_reward",), ".3f", 9),
)


def columns_of(algorithm: OfflineAlgorithm) -> tuple[Column, ...]:
    """What the line of a step says."""
    own = {"sft": (), "labelled": LABELLED}.get(algorithm.data, COMPARED)
    return (LOSS, *own, *REST)


def show_measures(run: OfflineRun) -> None:
    """Print it."""
    record = run.record
    before, after = (load_measures(record.folder, step) for step in (0, record.step))
    if after is not None:
        start = before.values if before is not None and before.asked == after.asked else {}
        rows: list[tuple[object, ...]] = [("held-out", "before", "after")]
        for name, value in sorted(after.values.items()):
            old = start.get(name)
            rows.append((name.removeprefix("eval/"), "" if old is None else f"{old:.4g}", f"{value:.4g}"))
        record.console.say("")
        record.console.table(f"{len(run.held_out)} held-out examples", rows)
    record.console.say(f"\nrun folder: {record.folder}")
    steps = {
        "reward": f"quatrain score reward_model ROWS.jsonl --set path={record.folder}  |  a recipe whose verifier has "
        f"kind: reward_model, path: {record.folder}",
        "policy": f"quatrain eval {record.folder} --task gsm8k  |  a recipe with model: {record.folder}  |  "
        f"quatrain export {record.folder} --to exported",
    }
    record.console.say(f"next: {steps[run.algorithm.role]}")

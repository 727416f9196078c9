"""What every metric name means. `python -m quatrain.telemetry.catalogue MODULE...` prints docs/metrics.md.

An algorithm documents its own statistics in a dict `DOCUMENTED` beside its code; the modules named on the command
line contribute theirs. Names with `<part>`, `<name>` or `*` stand for every name of that shape.
"""

import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """Meaning in one sentence, unit ("" for a pure number), and False for what a clock or the load decides."""

    meaning: str
    unit: str = ""
    deterministic: bool = True


def _clock(meaning: str, unit: str) -> MetricInfo:
    return MetricInfo(meaning, unit, deterministic=False)


CATALOGUE: dict[str, MetricInfo] = {
    "train/loss": MetricInfo("The minimised loss, mean over the step's updates of the sum of its terms."),
    "train/grad_norm": MetricInfo("Norm of the whole gradient before clipping, mean over the step's updates."),
    "train/learning_rate": MetricInfo("Learning rate of the step's last update."),
    "train/updates": MetricInfo("Optimizer updates made in this step.", "updates"),
    "train/updates_skipped": MetricInfo(
        "Updates left out because no loss term could have a gradient (every group uniform, no KL, no entropy bonus): "
        "a step of Adam would have moved the weights by its moments alone.",
        "updates",
    ),
    "train/updates_early_stopped": MetricInfo(
        "Policy updates of this step left out because one before them saw a kl/old_k3 above algorithm.early_stop_kl.",
        "updates",
    ),
    "train/micro_batches": MetricInfo("Forward-backward passes of the step.", "passes"),
    "train/tokens": MetricInfo("Trained tokens that went through the loss, each epoch counted.", "tokens"),
    "data/examples": MetricInfo("Rows of the update of an offline run; a pair is one.", "rows"),
    "data/tokens": MetricInfo("Tokens of the update of an offline run, prompts and answers.", "tokens"),
    "data/cut": MetricInfo("Distinct rows so far of which an answer was cut at the length limit.", "rows"),
    "data/ties": MetricInfo("Distinct rows so far in which two answers are equally good.", "rows"),
    "data/empty": MetricInfo("Distinct rows so far with an empty answer, trained as the end token alone.", "rows"),
    "data/no_room": MetricInfo(
        "Distinct rows so far left out because the prompt leaves no room for an answer.", "rows"
    ),
    "data/too_long": MetricInfo("Distinct rows so far left out by length.too_long: skip.", "rows"),
    "data/identical": MetricInfo("Distinct rows so far left out because all answers are the same tokens.", "rows"),
    "data/blank": MetricInfo("Distinct rows so far left out because no answer has text.", "rows"),
    "rollout/tokens": MetricInfo("Tokens sampled in this step.", "tokens"),
    "rollout/prompt_tokens": MetricInfo("Prompt tokens of the step, each prompt of a group counted once.", "tokens"),
    "rollout/completions": MetricInfo("Completions sampled in this step.", "completions"),
    "rollout/length": MetricInfo("Mean length of a completion.", "tokens"),
    "rollout/length_max": MetricInfo("Longest completion of the step.", "tokens"),
    "rollout/truncated": MetricInfo("Share of completions cut at max_tokens.", "share"),
    "rollout/stop_<reason>": MetricInfo(
        "Share of completions that ended for this reason: eos (end token), stop (stop string), length (max_tokens), "
        "aborted.",
        "share",
    ),
    "rollout/kept_mass": MetricInfo(
        "Mean probability that top-p, top-k and min-p left to sample from; 1 when nothing is cut.", "share"
    ),
    "refill/groups": MetricInfo("Groups sampled for the step with dynamic sampling, left-out ones included.", "groups"),
    "refill/uniform": MetricInfo(
        "Share of the sampled groups whose completions do not differ in correctness.", "share"
    ),
    "refill/unfilled": MetricInfo("Places of the step that uniform groups kept after the last refill.", "groups"),
    "refill/reward_mean": MetricInfo("Mean score of everything sampled, left-out groups included."),
    "prompts/skipped_long": MetricInfo(
        "Prompts of the run so far that left no room for an answer and were skipped.", "prompts"
    ),
    "curriculum/seen": MetricInfo("Prompts of which the run so far judged a completion.", "prompts"),
    "curriculum/passed_over_right": MetricInfo(
        "Prompts that the next step passes over because their last groups were all right.", "prompts"
    ),
    "curriculum/passed_over_wrong": MetricInfo(
        "Prompts that the next step passes over because their last groups were all wrong.", "prompts"
    ),
    "curriculum/success": MetricInfo(
        "Share of a prompt's judged completions that were right, over the whole run, mean over the seen prompts.",
        "share",
    ),
    "kl/reference_age": MetricInfo(
        "Steps between the last time that the reference became the policy and the beginning of this step; only with "
        "algorithm.kl.refresh_every.",
        "steps",
    ),
    "eval/accuracy": MetricInfo("Share of held-out completions that are right, whatever their form.", "share"),
    "eval/accuracy_in_form": MetricInfo("Share of held-out completions that are right and in the asked form.", "share"),
    "eval/reward": MetricInfo("Mean score on the held-out prompts."),
    "eval/length": MetricInfo("Mean length of a held-out completion.", "tokens"),
    "eval/truncated": MetricInfo("Share of held-out completions cut at max_tokens.", "share"),
    "eval/<part>": MetricInfo(
        "Mean of this part of the rubric on the held-out prompts; of an offline run its loss, or this statistic of "
        "its method (margin, nll, ...), on the held-out examples."
    ),
    "time/rollout_s": _clock("Sampling.", "s"),
    "time/score_s": _clock("Verifiers, waiting included.", "s"),
    "time/update_s": _clock("Old and reference logprobs, forward, backward and optimizer.", "s"),
    "time/step_s": _clock("The whole step.", "s"),
    "time/<phase>_s": _clock("This phase of the step.", "s"),
    "speed/tokens_per_s": _clock("Sampled tokens (offline: those read) by the time of the whole step.", "tokens/s"),
    "speed/rollout_tokens_per_s": _clock("Sampled tokens by the time of sampling alone.", "tokens/s"),
    "speed/<name>": _clock("A rate.", "1/s"),
    "memory/rss_peak_gib": _clock("Peak memory of the process (resident set) since it began.", "GiB"),
    "memory/<name>": _clock("Memory.", "GiB"),
}


TAKEN = frozenset({"mean", "min", "max", "std_within_group", "std_across_batch",
                   "accuracy", "accuracy_in_form", "reward", "length", "truncated"})  # fmt: skip


def part_name(part: str) -> str:
    """How a part of a rubric is called in `reward/...` and `eval/...`: a name that has a meaning there gets `_part`."""
    return f"{part}_part" if part in TAKEN else part


def describe(name: str, documented: Mapping[str, str] | None = None) -> MetricInfo | None:
    """Meaning of `name`: the exact entry, then `documented`, then the entry whose pattern fits; None when unknown.

    `source/<name>/...` is the same metric over the rows of one source.
    """
    if name in CATALOGUE:
        return CATALOGUE[name]
    if documented and name in documented:
        return MetricInfo(documented[name])
    if name.startswith("source/"):
        parts = name.split("/")
        for cut in range(2, len(parts)):  # a source's own name may hold slashes
            info = describe("/".join(parts[cut:]), documented)
            if info:
                return replace(info, meaning=f"Of the rows of source {'/'.join(parts[1:cut])}: {info.meaning}")
        return None
    table = {**CATALOGUE, **{key: MetricInfo(meaning) for key, meaning in (documented or {}).items()}}
    patterns = [key for key in table if ("<" in key or "*" in key) and _pattern(key).fullmatch(name)]
    return table[max(patterns, key=len)] if patterns else None


def is_deterministic(name: str) -> bool:
    """False for what a clock or the machine's load decides; a name that nobody described counts as deterministic."""
    info = describe(name)
    return info is None or info.deterministic


def _pattern(name: str) -> re.Pattern[str]:
    literal = re.split(r"<\w+>|\*", name)
    return re.compile("[^/]+".join(map(re.escape, literal)))


_HEAD = """\
# Metrics

Every row of `RUN/metrics.jsonl` is one step: `{"step": 3, "metrics": {...}, "timing": {...}}`. What stands under
`metrics` repeats bit for bit on the same machine with the same seed and thread count; what stands under `timing`
depends on the clock. Values that are not finite are written as the strings `"NaN"`, `"Infinity"` and `"-Infinity"`:
they are shown, never filtered. After a resume, rows past the checkpoint's step lie in `metrics.set-aside.jsonl`.

This page is written by `make docs` from `quatrain/telemetry/catalogue.py` and the `DOCUMENTED` table of each algorithm.

## Reading the numbers

- **A loss of 0 is normal.** On the first update after sampling, the weights are those that sampled: the ratio
  `exp(logp - old)` is exactly 1, the loss is minus the mean of the advantages, and these sum to zero in every group.
  Its *gradient* is not zero: each completion's tokens are pushed up or down by their own advantage. Watch the reward,
  the gradient norm and the zero-variance rate instead. Loss, clip share and ratio say something from the second update
  on a rollout batch onwards (`train.updates_per_step` or `train.epochs` above 1).
- **A gradient norm of 0** means that no group had two different scores (see the zero-variance rate) and that neither
  a KL term nor an entropy bonus was at work.
- **Which KL.** All are in nats, per trained token, over tokens that the policy sampled, with `d = logp_ref - logp`:

  | ending of the name | estimator | what to know |
  | --- | --- | --- |
  | `k1` | `-d` | unbiased, has a sign: single values below zero are normal |
  | `k2` | `d^2 / 2` | biased; its gradient as an on-policy loss is that of the KL |
  | `k3` | `exp(d) - d - 1` | unbiased and never below zero; computed as `expm1(d) - d` with d saturated first |
  | `abs` | `abs(d)` | the size of the drift whatever its direction; not an estimate of the KL |
  | `full` | `sum_v p(v) (logp(v) - logp_ref(v))` | exact over the vocabulary at each position |

  `kl/old_...` compares with the weights that sampled: how far the updates of one step went (0 when there is one update
  a step). `kl/reference_...` compares with the reference: how far the run went. `mismatch/kl` lies between the sampler
  and the trainer under the same weights: a numerical difference between two programs that should be near zero.
  The console's KL is the first of `kl/reference_full`, `kl/reference_k3` and `kl/old_k3` that the step has.
- **Entropy** is exact over the vocabulary at the sampling temperature, before top-p, top-k and min-p.
- **Errors are not zeros.** Completions that could not be judged are left out of the reward's mean and counted apart.
"""


def render(tables: Mapping[str, Mapping[str, str]]) -> str:
    """docs/metrics.md: the page's head, the trainer's names, and one table per algorithm in `tables`."""
    lines = [_HEAD, "## Trainer", "", "| name | unit | meaning |", "| --- | --- | --- |"]
    for name, info in CATALOGUE.items():
        clock = "" if info.deterministic else " (timing)"
        lines.append(f"| `{name}` | {info.unit} | {_cell(info.meaning)}{clock} |")
    lines += ["", "`source/<name>/...` is the same metric over the rows of one source of prompts."]
    for title, documented in tables.items():
        lines += ["", f"## {title}", "", "| name | meaning |", "| --- | --- |"]
        lines += [f"| `{name}` | {_cell(meaning)} |" for name, meaning in documented.items()]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def main(modules: Sequence[str]) -> None:
    """Print the page with the `DOCUMENTED` tables of `modules`."""
    tables = {name: importlib.import_module(name).DOCUMENTED for name in modules}
    sys.stdout.write(render({f"Algorithm `{name.rpartition('.')[2]}`": table for name, table in tables.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])

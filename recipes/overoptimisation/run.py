"""The over-optimisation experiment (Gao, Schulman, Hilton 2022, arXiv:2210.10760), from nothing to tables and pictures.

    python recipes/overoptimisation/run.py --out runs/over --full [--processes 2]

Letters of a grammar -> SFT -> preferences by a noisy gold score -> proxies from 64 to 4,096 pairs -> best-of-n and PPO
against each, with and without a KL penalty. Started again it goes on where it stopped. Run it from the project's root.
"""

import argparse
import json
import math
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import results
import world

import quatrain

HERE = Path(__file__).resolve().parent
GOLD = {"kind": f"{HERE / 'world.py'}:Gold", "weight": 0}
PROMPTS = f"{HERE / 'world.py'}:prompts"
NO_PENALTY = 1e-9  # a coefficient that pulls at nothing, but has the reference loaded and the KL recorded
NOISE = 0.5  # of the judge who labels the pairs, in gold reward


@dataclass(frozen=True)
class Plan:
    """How large the experiment is. `pairs`: a proxy's preferences, with the updates that it is trained for."""

    examples: int = 5000
    pool: int = 256  # letters of the policy per prompt, of which pairs are made
    best_of: int = 256  # further letters per prompt, for best-of-n
    pairs: tuple[tuple[int, int], ...] = ((64, 40), (256, 64), (1024, 120), (4096, 200))
    seeds: tuple[int, ...] = (0, 1)
    betas: tuple[float, ...] = (0.0, 0.1)
    steps: int = 40


FULL = Plan()
QUICK = Plan(examples=640, pool=64, best_of=32, pairs=((64, 8),), seeds=(0,), betas=(0.0, 0.1), steps=10)


@dataclass(frozen=True)
class Job:
    """A PPO run: its proxy (pairs, seed) and the coefficient of its KL penalty."""

    pairs: int
    seed: int
    beta: float

    @property
    def proxy(self) -> str:
        """Name of the proxy's folder."""
        return f"{self.pairs}-{self.seed}"

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f"{self.proxy}-beta-{self.beta:g}"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of everything that is made")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--quick", action="store_true", help="a pass through all parts in a minute; shows nothing")
    size.add_argument("--full", action="store_true", help="the experiment; about a quarter of an hour of one core")
    parser.add_argument("--processes", type=int, default=1, help="runs side by side, a thread each")
    given = parser.parse_args(arguments)
    experiment(given.out, QUICK if given.quick else FULL, given.processes)


def experiment(out: Path, plan: Plan, processes: int = 1) -> None:
    """Everything, into `out`; what is there already is not made again."""
    out.mkdir(parents=True, exist_ok=True)
    make_policy(out, plan)
    make_pairs(out, plan)
    jobs = [Job(pairs, seed, beta) for seed in plan.seeds for pairs, _ in plan.pairs for beta in plan.betas]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        proxies = [(out, pairs, updates, seed) for pairs, updates in plan.pairs for seed in plan.seeds]
        finish([pool.submit(make_proxy, *proxy) for proxy in proxies])
        finish([pool.submit(best_of, out, plan), *(pool.submit(climb, out, job, plan.steps) for job in jobs)])
    results.write(results.collect(out, [asdict(job) | {"folder": job.name} for job in jobs]), out)


def finish(waiting: Sequence[Future[None]]) -> None:
    """Wait for all; after a failure no further one is begun, and it is raised."""
    done, rest = wait(waiting, return_when=FIRST_EXCEPTION)
    for one in rest:
        one.cancel()
    for one in done:
        one.result()


def trained(recipe: str, output: Path, *overrides: str, **settings: Any) -> Path:
    """Run a recipe of this folder and return the folder of its last weights."""
    if not (output / "finished").exists():
        print(f"{output.name} ...", flush=True)
        quatrain.train(HERE / recipe, *overrides, output=output, quiet=True, **settings)
        (output / "finished").touch()
    return max((output / "checkpoints").glob("step-*"))


# --- policy, pairs, proxies -------------------------------------------------------------------------------------------


def make_policy(out: Path, plan: Plan) -> None:
    """`policy`: a small Llama after supervised learning on the grammar's letters."""
    if (out / "policy").exists():
        return
    world.save_model(out / "base", seed=0, hidden=64, layers=2)
    write_rows(out / "examples.jsonl", world.examples(plan.examples, seed=0))
    last = trained("sft.yaml", out / "sft", model={"path": str(out / "base")},
                   data=[{"source": str(out / "examples.jsonl")}])  # fmt: skip
    keep(last / "policy", out / "policy")


def make_pairs(out: Path, plan: Plan) -> None:
    """Preferences between the policy's own letters, labelled by a noisy judge of the gold score: a file per seed."""
    if all((out / f"pairs-{seed}.jsonl").exists() for seed in plan.seeds):
        return
    letters = sampled(out, {"gold": GOLD}, plan.pool, seed=1)
    most = max(pairs for pairs, _ in plan.pairs)
    for seed in plan.seeds:
        write_rows(out / f"pairs-{seed}.jsonl", labelled(letters, most, random.Random(seed)))


def labelled(letters: Sequence[Mapping[str, Any]], count: int, rng: random.Random) -> Iterator[dict[str, str]]:
    """Pairs of letters to one prompt; P(first is chosen) = sigmoid(difference of their gold scores / NOISE)."""
    by_prompt: dict[str, list[Mapping[str, Any]]] = {}
    for one in letters:
        by_prompt.setdefault(one["prompt"], []).append(one)
    made = 0
    while made < count:
        first, second = rng.sample(by_prompt[rng.choice(list(by_prompt))], 2)
        if first["completion"] == second["completion"]:
            continue
        if rng.random() > 1 / (1 + math.exp((second["gold"] - first["gold"]) / NOISE)):
            first, second = second, first
        yield {"prompt": first["prompt"], "chosen": " " + first["completion"], "rejected": " " + second["completion"]}
        made += 1


def make_proxy(out: Path, pairs: int, updates: int, seed: int) -> None:
    """`proxies/PAIRS-SEED`: a reward model that has seen the first so many pairs of the seed."""
    target = out / "proxies" / f"{pairs}-{seed}"
    if target.exists():
        return
    last = trained(
        "reward_model.yaml", out / "reward-models" / target.name, model={"path": str(out / "policy")}, seed=seed,
        data=[{"source": str(out / f"pairs-{seed}.jsonl"), "limit": pairs}], train={"steps": updates},
    )  # fmt: skip
    keep(last / "reward", target)


# --- what climbs them -------------------------------------------------------------------------------------------------


def proxy_part(out: Path, proxy: str) -> dict[str, Any]:
    """A proxy as a part of a rubric."""
    return {"kind": "reward_model", "path": str(out / "proxies" / proxy), "device": "cpu"}


def best_of(out: Path, plan: Plan) -> None:
    """`best-of-n.json`: letters of the policy with their gold score and what every proxy says of them."""
    proxies = [f"{pairs}-{seed}" for pairs, _ in plan.pairs for seed in plan.seeds]
    if not (out / "best-of-n.json").exists():
        rubric = {"gold": {**GOLD}, **{proxy: proxy_part(out, proxy) for proxy in proxies}}
        replace_json(out / "best-of-n.json", sampled(out, rubric, plan.best_of, seed=2))


def climb(out: Path, job: Job, steps: int) -> None:
    """`ppo/PAIRS-SEED-beta-BETA`: PPO against a proxy; the gold score is recorded beside it with weight 0."""
    trained(
        "ppo.yaml", out / "ppo" / job.name, f"algorithm.kl.coefficient={job.beta or NO_PENALTY}",
        model={"path": str(out / "policy")}, prompts=[{"source": PROMPTS}], seed=job.seed, steps=steps,
        verifiers={"default": {"proxy": proxy_part(out, job.proxy), "gold": GOLD}},
    )  # fmt: skip


def sampled(out: Path, rubric: Mapping[str, Any], samples: int, seed: int) -> list[dict[str, Any]]:
    """Letters of the policy, `samples` for every prompt, with what the parts of a rubric say of each."""
    import yaml

    recipe = yaml.safe_load((HERE / "ppo.yaml").read_text(encoding="utf-8"))
    recipe |= {"held_out": [{"source": PROMPTS}], "verifiers": {"default": dict(rubric)}, "seed": seed}
    path = out / f"sample-{seed}.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    print(f"{path.stem} ...", flush=True)
    report = quatrain.evaluate(out / "policy", recipe=path, samples=samples, temperature=1.0, quiet=True)
    return [{"prompt": one.prompt, "completion": one.completion, **one.parts}
            for one in report.modes["sampled"].answers]  # fmt: skip


# --- files ------------------------------------------------------------------------------------------------------------


def keep(source: Path, target: Path) -> None:
    """Copy a model's folder; it appears whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    writing = target.with_name(f".{target.name}.writing")
    shutil.copytree(source, writing, dirs_exist_ok=True)
    writing.rename(target)


def write_rows(path: Path, rows: Any) -> None:
    """A JSONL file; it appears whole or not at all."""
    writing = path.with_name(f".{path.name}.writing")
    writing.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    writing.rename(path)


def replace_json(path: Path, data: Any) -> None:
    """A JSON file; it appears whole or not at all."""
    writing = path.with_name(f".{path.name}.writing")
    writing.write_text(json.dumps(data), encoding="utf-8")
    writing.rename(path)


if __name__ == "__main__":
    main()

"""How often `math` and Math-Verify's own defaults agree, on recorded cases and on GSM8K's answers.

    python benchmarks/math_agreement.py [--rows N]

Pairs: the recorded cases, whose verdict is known; and every row of GSM8K's test file, its solution against its own
answer (right) and against the next row's (wrong unless equal). Both sides run in worker processes under the same
deadline. Prints the counts, and each disagreement with who is right where that is known. Data: QUATRAIN_DATA.
"""

import argparse
import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path

from quatrain.config import VerifierConfig
from quatrain.rewards import build_verifier, text_rollout

TIMEOUT_S = 10.0  # both sides; this measures verdicts, not speed
CASES = Path(__file__).parents[1] / "tests" / "cases" / "math.jsonl"


@dataclass(frozen=True)
class Pair:
    """A gold, a completion, and whether it is right."""

    name: str
    gold: str
    completion: str
    right: bool


def math_verify_verdict(completion: str, answer: str) -> bool:
    """Math-Verify with its defaults, as its documentation calls it."""
    from math_verify import parse, verify

    gold = parse(f"${answer}$", parsing_timeout=None)
    return bool(verify(gold, parse(completion, parsing_timeout=None), timeout_seconds=None))


def case_pairs() -> list[Pair]:
    """The recorded cases with a gold."""
    cases = map(json.loads, CASES.read_text(encoding="utf-8").splitlines())
    return [Pair(case["id"], case["gold"], case["prediction"], case["right"]) for case in cases if case["gold"]]


def gsm8k_pairs(rows: int) -> list[Pair]:
    """Each solution against its own answer and against the next row's."""
    path = Path(os.environ.get("QUATRAIN_DATA", "../shared/data")) / "gsm8k" / "test.jsonl"
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:rows]]
    golds = [row["answer"].rpartition("####")[2].strip() for row in found]
    pairs = []
    for index, (row, gold, other) in enumerate(zip(found, golds, [*golds[1:], golds[0]], strict=True)):
        same = gold.replace(",", "") == other.replace(",", "")
        pairs += [Pair(f"gsm8k {index}", gold, row["answer"], True),
                  Pair(f"gsm8k {index} other", other, row["answer"], same)]  # fmt: skip
    return pairs


def verdicts(kind: str, pairs: list[Pair]) -> list[str]:
    """`right`, `wrong` or `error` per pair."""
    verifier = build_verifier(VerifierConfig(kind=kind, timeout_s=TIMEOUT_S))
    try:
        rollouts = [text_rollout(pair.completion, {"answer": pair.gold}) for pair in pairs]
        scores = asyncio.run(verifier.score(rollouts))
    finally:
        verifier.close()
    return ["error" if not score.usable else "right" if score.value == 1.0 else "wrong" for score in scores]


def report(title: str, pairs: list[Pair]) -> None:
    """Agreement, faults of either side, and the disagreements."""
    ours, theirs = verdicts("math", pairs), verdicts(f"{__file__}:math_verify_verdict", pairs)
    truth = ["right" if pair.right else "wrong" for pair in pairs]
    agree = sum(one == other for one, other in zip(ours, theirs, strict=True))
    print(f"{title}: {len(pairs)} pairs, agreement {agree / len(pairs):.2%}")
    for name, side in (("math", ours), ("Math-Verify", theirs)):
        paid = sum(verdict == "right" and true == "wrong" for verdict, true in zip(side, truth, strict=True))
        missed = sum(verdict != "right" and true == "right" for verdict, true in zip(side, truth, strict=True))
        print(f"  {name}: wrongly paid {paid}, wrongly refused {missed}, not judged {side.count('error')}")
    for pair, one, other in zip(pairs, ours, theirs, strict=True):
        if one != other:
            known = "right" if pair.right else "wrong"
            print(
                f"  {pair.name}: {pair.gold[:40]!r} / {pair.completion[-60:]!r}: "
                f"math {one}, Math-Verify {other}, is {known}"
            )


def main() -> None:
    """Both sets."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10**6)
    rows = parser.parse_args().rows
    report("recorded cases", case_pairs())
    report("GSM8K test", gsm8k_pairs(rows))


if __name__ == "__main__":
    main()

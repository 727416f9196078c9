"""`quatrain audit`: attack a verifier and list what it wrongly pays for."""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

import quatrain
from quatrain.cli.score import configured, read_rows
from quatrain.errors import SettingError
from quatrain.rewards import build_verifier
from quatrain.rewards.audit import Finding, Report, audit, rows_from, shown

PROGRAMS = Path(quatrain.__file__).parents[1] / "tests" / "cases" / "attacks"  # in a checkout
MOST_ROWS = 20


def audit_verifier(
    verifier: str,
    data: Path | None = None,
    settings: Sequence[str] = (),
    programs: Path | None = None,
    as_json: bool = False,
    out: TextIO | None = None,
) -> bool:
    """Print the attacks that were paid; True when there are none. SettingError for what cannot be audited.

    `data` is JSONL with `prompt`, `completion` (a right one, or empty) and the verifier's columns; the first
    MOST_ROWS rows are used. `programs` is a folder of hostile programs for `code`, by default the checkout's.
    """
    config = configured(verifier, settings)
    rows = [] if data is None else list(rows_from([rollout for _, rollout in read_rows(data)][:MOST_ROWS]))
    folder = programs or (PROGRAMS if config.kind == "code" and PROGRAMS.is_dir() else None)
    if programs is not None and not (programs / "attacks.json").is_file():
        raise SettingError("programs", str(programs), "a folder with attacks.json", "see docs/audit.md")
    built = build_verifier(config, "verifier")
    try:
        report = asyncio.run(audit(built, rows, config.measures, folder))
    finally:
        built.close()
    if config.kind == "code" and folder is None:
        report.notes.append("no hostile programs were run: give --programs FOLDER (a checkout has tests/cases/attacks)")
    _print(verifier, report, as_json, out or sys.stdout)
    return not report.paid


def _print(verifier: str, report: Report, as_json: bool, out: TextIO) -> None:
    if as_json:
        print(json.dumps({"verifier": verifier, **asdict(report)}, indent=2), file=out)
        return
    for finding in report.paid:
        print(_lines(finding), file=out)
    kinds = f"{len(report.paid)} kind{'s' * (len(report.paid) != 1)}"
    unjudged = f", {report.unjudged} not judged" if report.unjudged else ""
    print(f"{verifier}: {report.attacks} attacks on {report.rows} rows, {kinds} wrongly paid{unjudged}", file=out)
    for note in report.notes:
        print(f"note: {note}", file=out)


def _lines(finding: Finding) -> str:
    place = f" where {finding.gold!r} is right" if finding.gold else ""
    return (
        f"PAID {finding.value:g}  {finding.attack}: {shown(finding.completion)}{place}\n"
        f"         {finding.why}; a right answer gets {finding.right:g}, a refusal {finding.refusal:g}"
    )

"""`quatrain score`: lines out for rows in, and errors that name the line."""

import io
import json
from pathlib import Path

import pytest

from quatrain.cli.score import score_file
from quatrain.errors import SettingError, VerifierError


def run(tmp_path: Path, verifier: str, *rows: str, settings: tuple[str, ...] = ()) -> list[dict[str, object]]:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(rows), encoding="utf-8")
    out = io.StringIO()
    score_file(verifier, path, list(settings), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_one_object_a_row_in_order(tmp_path: Path) -> None:
    rows = ['{"prompt": "2+2", "completion": "4", "answer": 4}', "",
            '{"prompt": [{"role": "user", "content": "2+2"}], "completion": "5", "answer": 4}']  # fmt: skip
    lines = run(tmp_path, "numeric", *rows)
    assert [line["value"] for line in lines] == [1.0, 0.0]
    assert set(lines[0]) == {"value", "status", "parts", "error", "seconds"}
    assert run(tmp_path, "numeric", *rows, settings=("tolerance=1",))[1]["value"] == 1.0


def test_token_ids_reach_verifiers_that_count_tokens(tmp_path: Path) -> None:
    row = {"completion": "x", "token_ids": [7] * 12}
    assert run(tmp_path, "repetition", json.dumps(row))[0]["value"] == pytest.approx(-0.9)
    with pytest.raises(VerifierError, match=r"rows.jsonl line 1: .*need the tokens"):
        run(tmp_path, "repetition", '{"completion": "x"}')


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{not json", "rows.jsonl line 2: got {not json, need a JSON object"),
        ("[1]", "rows.jsonl line 2: got \\[1\\], need a JSON object"),
        ('{"answer": 4}', "rows.jsonl line 2: got .*answer.*, need a column 'completion'"),
        ('{"completion": 4}', "rows.jsonl line 2, completion: got 4, need text"),
    ],
)
def test_a_row_that_cannot_be_read(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        run(tmp_path, "numeric", '{"completion": "4", "answer": 4}', row)


def test_other_mistakes(tmp_path: Path) -> None:
    with pytest.raises(VerifierError, match=r"line 1: .*no column 'answer'"):
        run(tmp_path, "numeric", '{"completion": "4"}')
    with pytest.raises(SettingError, match=r"verifier.tolerence: got an unknown key"):
        run(tmp_path, "numeric", '{"completion": "4", "answer": 4}', settings=("tolerence=1",))
    with pytest.raises(SettingError, match=r"rows: got .*nowhere.jsonl, need a readable"):
        score_file("numeric", tmp_path / "nowhere.jsonl", [])

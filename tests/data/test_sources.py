import json
import random
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quatrain.config import SourceConfig
from quatrain.data.sources import TASKS, check_verifiers, load_rows, source_names
from quatrain.errors import SettingError

ROWS = [
    {"question": "What is 3 + 4?", "answer": "7", "level": 1},
    {"question": "What is 5 + 4?", "answer": "9", "level": 2},
    {"question": "What is 6 + 2?", "answer": "8", "level": 1},
]


def write(path: Path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def load(source, **settings):
    return load_rows(SourceConfig(source=str(source), **settings), "prompts[0]")


def error(source, **settings) -> str:
    with pytest.raises(SettingError) as caught:
        load(source, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "sums.jsonl", ROWS)


# --- what is read


def test_jsonl_with_a_byte_order_mark_windows_ends_and_empty_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "caf\xc3\xa9?", "answer": 1}\r\n\r\n{"prompt": "tea?", "answer": 2}')
    rows = load(path)
    assert [(row.number, row.prompt, row.columns) for row in rows] == [
        (0, "café?", {"answer": 1}),
        (1, "tea?", {"answer": 2}),
    ]


def test_parquet_gives_the_same_rows_as_jsonl(tmp_path, file):
    path = tmp_path / "sums.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    assert load(path, prompt="question") == load(file, prompt="question")


def test_messages_in_parquet(tmp_path):
    path = tmp_path / "chat.parquet"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi?"}]
    pq.write_table(pa.Table.from_pylist([{"prompt": messages, "answer": "x"}]), path)
    (row,) = load(path)
    assert row.prompt == tuple(messages)
    assert row.question == "Hi?"


def test_hugging_face_dataset_from_local_files(file, monkeypatch, tmp_path):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    options = {"data_files": file, "cache_dir": str(tmp_path / "cache")}
    rows = load("hf:json", options={**options, "split": "train"}, prompt="question", offset=1)
    assert rows == load(file, prompt="question", offset=1)
    assert error("hf:json", options=options, prompt="question") == (
        "prompts[0].options.split: got nothing, need a split; one of ['train']"
    )
    assert "Unknown split" in error("hf:json", options={**options, "split": "tain"})


def test_reasoning_gym_rows():
    pytest.importorskip("reasoning_gym")
    rows = load("reasoning-gym:chain_sum", options={"size": 5, "seed": 7, "min_terms": 2, "max_terms": 2})
    assert len(rows) == 5
    assert set(rows[0].columns) == {"answer", "metadata"}
    expression = rows[0].columns["metadata"]["expression"]
    left, sign, right = expression.split()
    assert int(rows[0].columns["answer"]) == (int(left) + int(right) if sign == "+" else int(left) - int(right))
    assert expression in rows[0].prompt


def test_reasoning_gym_is_the_same_every_time_without_a_seed():
    pytest.importorskip("reasoning_gym")
    assert load("reasoning-gym:chain_sum", limit=4) == load("reasoning-gym:chain_sum", limit=4)


def test_function_in_a_file(tmp_path):
    (tmp_path / "mine_a.py").write_text(
        "def rows(count, word='x'):\n    for i in range(count):\n        yield {'prompt': f'{word}{i}', 'answer': i}\n"
    )
    rows = load(f"{tmp_path}/mine_a.py:rows", options={"count": 9, "word": "q"}, offset=2, limit=3)
    found = [(row.number, row.prompt, row.columns["answer"]) for row in rows]
    assert found == [(2, "q2", 2), (3, "q3", 3), (4, "q4", 4)]


def test_offset_and_limit(file):
    assert [row.number for row in load(file, prompt="question", offset=1, limit=1)] == [1]
    assert [row.number for row in load(file, prompt="question", offset=1, limit=99)] == [1, 2]


def test_limit_stops_reading(tmp_path):
    path = tmp_path / "half.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\nnot json\n')
    assert len(load(path, limit=2)) == 2


# --- columns and templates


def test_columns_are_the_users_with_renames_and_without_the_prompt(tmp_path):
    path = write(tmp_path / "c.jsonl", [{"prompt": "p", "solution": "7", "answer": "long text", "completion": "c"}])
    (row,) = load(path, columns={"answer": "solution", "reference": "completion"})
    assert row.columns == {"answer": "7", "reference": "c"}
    (row,) = load(path, columns={"answer": "solution", "solution": "answer"})  # a swap
    assert row.columns == {"answer": "7", "solution": "long text", "completion": "c"}


def test_a_question_column_stays_beside_the_prompt(file):
    assert load(file, prompt="question")[0].columns == ROWS[0]


def test_template(file):
    row = load(file, template="Q: {question} ({level})\nPut {{it}} in \\boxed{}.")[0]
    assert row.prompt == "Q: What is 3 + 4? (1)\nPut {it} in \\boxed{}."
    assert row.question == "What is 3 + 4?\n1"


def test_template_does_not_expand_braces_of_the_data(tmp_path):
    path = write(tmp_path / "b.jsonl", [{"question": "{answer} {{x}}", "answer": "secret"}])
    assert load(path, template="{question}!")[0].prompt == "{answer} {{x}}!"


def test_template_with_the_gold_in_a_latex_command_is_refused(file):
    message = error(file, template="{question} Put it in \\boxed{answer}.")
    assert "\\boxed{answer}" in message and "write \\boxed{{answer}}" in message
    assert load(file, template="{question} \\boxed{{answer}}")[0].prompt.endswith("\\boxed{answer}")


def test_verifier_by_name_by_column_and_default(file, tmp_path):
    assert load(file, prompt="question")[0].verifier == ""
    assert load(file, prompt="question", verifier="maths")[0].verifier == "maths"
    path = write(tmp_path / "v.jsonl", [{"prompt": "a", "task": "maths"}, {"prompt": "b", "task": "cod"}])
    rows = load(path, verifier_column="task", columns={"kind": "task"})
    assert [row.verifier for row in rows] == ["maths", "cod"]
    with pytest.raises(SettingError, match=r"verifier_column: got 'cod' in row 2.*did you mean 'code'"):
        check_verifiers(rows, {"maths", "code"}, "prompts[0]")


def test_source_names_are_distinct():
    sources = ["data/gsm8k/train.jsonl", "a/gsm8k.parquet", "hf:openai/gsm8k", "reasoning-gym:chain_sum", "f.py:rows"]
    names = source_names([SourceConfig(source=source) for source in sources])
    assert names == ["gsm8k", "gsm8k-2", "gsm8k-3", "chain_sum", "rows"]
    assert source_names([SourceConfig(source="train.jsonl", name="mine")]) == ["mine"]


# --- one clear line for each mistake


def test_missing_file(tmp_path):
    message = error(tmp_path / "none.jsonl")
    assert message.startswith("prompts[0].source: got ") and "an existing file" in message
    assert "an existing file" in error(tmp_path / "none.parquet")


def test_bad_json_names_the_line(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"prompt": "b",}\n')
    assert "bad.jsonl line 3, need one JSON object a line" in error(path)


def test_a_json_line_that_is_no_object(tmp_path):
    path = tmp_path / "list.jsonl"
    path.write_text('{"prompt": "a"}\nnull\n')
    assert "list.jsonl line 2 holding NoneType, need one JSON object a line" in error(path)


def test_not_utf8_names_the_line(tmp_path):
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "caf\xe9"}\n')
    assert "latin.jsonl line 2, need UTF-8 text" in error(path)


def test_broken_parquet(tmp_path):
    path = tmp_path / "broken.parquet"
    path.write_bytes(b"nothing like it")
    assert "need a readable Parquet file" in error(path)


def test_empty_file_and_offset_past_the_end(tmp_path, file):
    path = tmp_path / "empty.jsonl"
    path.write_text("\n")
    assert "empty.jsonl with no rows, need at least one row" in error(path)
    assert "with no rows after offset 3" in error(file, prompt="question", offset=3)


def test_missing_prompt_column_lists_the_columns(file):
    message = error(file)
    assert "prompts[0].prompt: got prompt, need a column of row 1, which has: question, answer, level" in message
    assert "'{question}'" in message
    assert "did you mean 'question'?" in error(file, prompt="qestion")


def test_column_missing_in_a_later_row(tmp_path):
    path = write(tmp_path / "c.jsonl", [{"prompt": "a", "gold": 1}, {"prompt": "b"}])
    message = error(path, columns={"answer": "gold"})
    assert "prompts[0].columns.answer: got gold, need a column of row 2, which has: prompt" in message
    assert "prompts[0].verifier_column: got gold" in error(path, verifier_column="gold", offset=1)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (None, "NoneType in row 1"),
        (7, "int in row 1"),
        ("  ", "an empty string in row 1"),
        ([], "no message"),
        (["hello"], "messages with the texts role and content"),
        ([{"role": "user"}], "messages with the texts role and content"),
        ([{"role": "user", "content": [{"type": "image"}]}], "messages with the texts role and content"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "assistant as the last message"),
    ],
)
def test_wrong_type_of_prompt(tmp_path, prompt, words):
    message = error(write(tmp_path / "p.jsonl", [{"prompt": prompt}]))
    assert message.startswith("prompts[0].prompt: got") and words in message


def test_template_errors(file, tmp_path):
    assert "template: got {qestion}, need a column of row 1, which has: question, answer, level" in error(
        file, template="{qestion}?"
    )
    assert "at least one {column}" in error(file, template="Say something.")
    path = write(tmp_path / "n.jsonl", [{"question": None}])
    assert "NoneType in column question of row 1" in error(path, template="{question}")


def test_renaming_to_prompt_points_to_the_setting(file):
    assert "prompts[0].columns.prompt" in error(file, columns={"prompt": "question"})


def test_unknown_kinds_of_source(tmp_path):
    assert "FILE.jsonl, FILE.parquet" in error(tmp_path / "rows.json")
    assert "known task" in error("nonsense:thing")
    assert "a name after the colon" in error("hf:")


def test_reasoning_gym_mistakes():
    pytest.importorskip("reasoning_gym")
    assert "did you mean 'chain_sum'?" in error("reasoning-gym:chain_sums")
    message = error("reasoning-gym:chain_sum", options={"min_term": 1})
    assert "prompts[0].options.min_term: got an unknown key" in message and "did you mean 'min_terms'?" in message
    assert "min_terms must be positive" in error("reasoning-gym:chain_sum", options={"min_terms": 0})


@pytest.mark.parametrize(
    ("source", "module", "extra"),
    [("hf:x", "datasets", "datasets"), ("reasoning-gym:chain_sum", "reasoning_gym", "tasks")],
)
def test_missing_library_says_how_to_install_it(monkeypatch, source, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    assert f"pip install 'quatrain[{extra}]'" in error(source)


def test_function_mistakes(tmp_path):
    (tmp_path / "mine_b.py").write_text(
        "RATE = 3\n"
        "def rows(count):\n    return [{'prompt': 'a'}] * count\n"
        "def numbers():\n    return [1, 2]\n"
        "def nothing():\n    return None\n"
    )
    path = f"{tmp_path}/mine_b.py"
    assert "did you mean 'rows'?" in error(f"{path}:row")
    assert "an existing Python file" in error(f"{tmp_path}/none.py:rows")
    assert "prompts[0].options: got {'size': 3}, need the options of" in error(f"{path}:rows", options={"size": 3})
    assert "int as row 1" in error(f"{path}:numbers")
    assert "NoneType from" in error(f"{path}:nothing")
    assert "need a function" in error(f"{path}:RATE")


# --- every registered task


def test_registered_tasks_are_known():
    assert TASKS.names() == ["hf", "jsonl", "parquet", "reasoning-gym"]


def test_loading_leaves_the_global_random_state_alone(file):
    random.seed(3)
    expected = random.Random(3).random()
    load(file, prompt="question")
    assert random.random() == expected

"""Where prompts come from: files, datasets, generated tasks and a user's own function, all read as plain rows.

A task is a function that returns an iterable of mappings, one per row. `NAME:ARGUMENT` as a source calls the task
NAME with ARGUMENT and the options; `FILE.py:FUNCTION` calls the function with the options alone. A task reports a
user's mistake as a SettingError relative to its source (`options.size`); the place in the recipe is put in front.
"""

import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from quatrain.config import DataConfig, SourceConfig
from quatrain.errors import SettingError, nearest
from quatrain.registry import Registry, existing_file, is_file_reference, load_attribute

Messages = tuple[Mapping[str, Any], ...]  # each with the texts role and content
Task = Callable[..., Iterable[Mapping[str, Any]]]
TASKS: Registry[Task] = Registry("task")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of a source: what to ask, and the user's own columns for the verifier (never internal ones).

    Example: `Row(number=0, prompt="2+2=", question="2+2=", columns={"answer": "4"})`
    """

    number: int  # position in the source, its offset included
    prompt: str | Messages
    question: str  # what is asked, without a template's fixed words or a system message; for the overlap check
    columns: Mapping[str, Any]
    verifier: str = ""


def load_rows(source: SourceConfig, setting: str = "prompts[0]") -> list[Row]:
    """Every row of `source` within its offset and limit, checked; `setting` is its place in the recipe.

    Raises SettingError for a file, option, row or column that cannot be used.
    """
    fields = _template_fields(source.template, f"{setting}.template") if source.template is not None else None
    if "prompt" in source.columns:
        raise SettingError(f"{setting}.columns.prompt", source.columns["prompt"], "another name than prompt",
                           f"to choose the column that is asked, set {setting}.prompt")  # fmt: skip
    moved = frozenset({"prompt", *source.columns.values()})
    return [
        _row(data, source.offset + index, source, fields, moved, setting)
        for index, data in enumerate(read_rows(source, setting))
    ]


def read_rows(source: SourceConfig | DataConfig, setting: str) -> list[Mapping[str, Any]]:
    """The rows of `source` within its offset and limit, as they are; SettingError when there are none."""
    stop = None if source.limit is None else source.offset + source.limit
    try:
        rows = list(islice(_open(source, setting), source.offset, stop))
    except SettingError as error:
        if error.setting.startswith(setting):
            raise
        raise SettingError(f"{setting}.{error.setting}", error.got, error.need, error.do) from error
    if not rows:
        after = f" after offset {source.offset}" if source.offset else ""
        raise SettingError(f"{setting}.source", f"{source.source} with no rows{after}", "at least one row",
                           "check the file or the options")  # fmt: skip
    return rows


def source_names(sources: Sequence[SourceConfig | DataConfig]) -> list[str]:
    """A distinct name for each source: its own, or one taken from where it comes from (`gsm8k/train.jsonl`: gsm8k)."""
    names: list[str] = []
    for source in sources:
        name = wanted = source.name or _name(source.source)
        number = 2
        while name in names:
            name, number = f"{wanted}-{number}", number + 1
        names.append(name)
    return names


def check_verifiers(rows: Iterable[Row], known: Collection[str], setting: str) -> None:
    """SettingError for the first row whose verifier column names none of `known`."""
    for row in rows:
        if row.verifier and row.verifier not in known:
            raise SettingError(f"{setting}.verifier_column", f"{row.verifier!r} in row {row.number + 1}",
                               "a name under verifiers", nearest(row.verifier, known))  # fmt: skip


def _name(source: str) -> str:
    if not source.endswith((".jsonl", ".parquet")):
        return re.split(r"[:/]", source)[-1]
    path = Path(source)
    common = {"train", "test", "dev", "valid", "validation", "data"}
    return path.parent.name if path.stem in common and path.parent.name else path.stem


def _open(source: SourceConfig | DataConfig, setting: str) -> Iterator[Mapping[str, Any]]:
    """Rows as the task gives them, each checked to be a mapping."""
    reference, arguments = source.source, ()
    task: Task
    suffix = Path(reference).suffix
    if suffix in (".jsonl", ".parquet") and not reference.startswith("hf:"):
        task, arguments = TASKS.get(suffix[1:]), (reference,)  # type: ignore[assignment]
    elif is_file_reference(reference):
        task = load_attribute(reference, f"{setting}.source")
    else:
        name, colon, argument = reference.partition(":")
        task, arguments = _named_task(name, setting), (argument,) if colon else ()  # type: ignore[assignment]
    rows = _call(task, arguments, source)
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise SettingError("source", f"{type(row).__name__} as row {index + 1} of {reference}",
                               "a mapping of columns", "e.g. {'prompt': ..., 'answer': ...}")  # fmt: skip
        yield row


def _named_task(name: str, setting: str) -> Task:
    if "/" in name or Path(name).suffix:
        raise SettingError(f"{setting}.source", name, "FILE.jsonl, FILE.parquet, hf:NAME, reasoning-gym:TASK or "
                           "FILE.py:FUNCTION", "convert other files to one JSON object a line")  # fmt: skip
    return TASKS.get(name, f"{setting}.source")


def _call(task: Task, arguments: Sequence[str], source: SourceConfig | DataConfig) -> Iterable[Any]:
    if not callable(task):
        raise SettingError("source", source.source, "a function", f"it is a {type(task).__name__}")
    signature = inspect.signature(task)
    try:
        signature.bind(*arguments, **source.options)
    except TypeError as error:
        shown = ", ".join(str(item) for item in list(signature.parameters.values())[len(arguments) :])
        raise SettingError("options", repr(source.options), f"the options of {source.source}: {shown or 'none'}",
                           str(error)) from None  # fmt: skip
    rows = task(*arguments, **source.options)
    if not isinstance(rows, Iterable):
        raise SettingError("source", f"{type(rows).__name__} from {source.source}", "an iterable of rows",
                           "return a list of mappings, or yield them")  # fmt: skip
    return rows


# --- built-in tasks ---------------------------------------------------------------------------------------------------


def _existing(path: str) -> Path:
    file = existing_file(path)
    if file is None:
        raise SettingError("source", path, "an existing file", f"paths are relative to {Path.cwd()}")
    return file


@TASKS.register("jsonl")
def read_jsonl(path: str) -> Iterator[Mapping[str, Any]]:
    """Rows of a file with one JSON object a line, in UTF-8; a byte order mark and empty lines are ignored."""
    try:
        file = _existing(path).open("rb")
    except OSError as error:
        raise SettingError("source", path, "a readable file", error.strerror or str(error)) from None
    with file:
        for number, line in enumerate(file, start=1):
            place = f"{path} line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                row = json.loads(text) if text else None
            except UnicodeDecodeError as error:
                raise SettingError("source", place, "UTF-8 text", f"{error.reason}; convert the file") from None
            except (ValueError, RecursionError) as error:  # also a number of 5000 digits, or bottomless nesting
                raise SettingError("source", place, "one JSON object a line", str(error)) from None
            if isinstance(row, dict):
                yield row
            elif text:
                raise SettingError("source", f"{place} holding {type(row).__name__}", "one JSON object a line",
                                   'e.g. {"prompt": "...", "answer": "..."}')  # fmt: skip


@TASKS.register("parquet")
def read_parquet(path: str) -> Iterator[Mapping[str, Any]]:
    """Rows of a Parquet file."""
    pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    try:
        with parquet.ParquetFile(_existing(path)) as file:
            for batch in file.iter_batches(batch_size=10_000):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise SettingError("source", path, "a readable Parquet file", str(error)) from None


@TASKS.register("hf")
def read_hugging_face(name: str, **options: Any) -> Iterator[Mapping[str, Any]]:
    """Rows of `datasets.load_dataset(name, **options)`; `split` is needed when the dataset has several."""
    datasets = _optional("datasets", "datasets")
    if not name:
        raise SettingError("source", "hf:", "a name after the colon", "e.g. hf:openai/gsm8k")
    try:
        dataset = datasets.load_dataset(name, **options)
    except (OSError, ValueError, TypeError, datasets.exceptions.DatasetsError) as error:
        message = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise SettingError("source", f"hf:{name} with options {options}", "a dataset that load_dataset finds",
                           message) from None  # fmt: skip
    if isinstance(dataset, Mapping):
        raise SettingError("options.split", "nothing", "a split", f"one of {sorted(map(str, dataset))}")
    for batch in dataset.iter(batch_size=1000):
        columns = list(batch)
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


@TASKS.register("reasoning-gym")
def read_reasoning_gym(task: str, size: int = 500, seed: int = 0, **options: Any) -> Iterator[Mapping[str, Any]]:
    """Rows `prompt` (the task's question), `answer`, `metadata` of a reasoning-gym task.

    reasoning-gym seeds row i with seed + i: sources whose seeds are closer than `size` share rows.
    """
    _optional("reasoning_gym", "tasks")
    factory = importlib.import_module("reasoning_gym.factory")
    if task not in factory.DATASETS:
        raise SettingError("source", f"reasoning-gym:{task}", "a reasoning-gym task", nearest(task, factory.DATASETS))
    known = [field.name for field in dataclasses.fields(factory.DATASETS[task][1])]
    for key in options:
        if key not in known:
            raise SettingError(f"options.{key}", "an unknown key", f"an option of {task}", nearest(key, known))
    try:
        dataset = factory.create_dataset(task, size=size, seed=seed, **options)
    except (AssertionError, TypeError, ValueError) as error:
        raise SettingError("options", repr({"size": size, "seed": seed, **options}), f"options that {task} accepts",
                           str(error) or type(error).__name__) from None  # fmt: skip
    for index in range(len(dataset)):
        row = dataset[index]
        yield {"prompt": row["question"], "answer": row["answer"], "metadata": row["metadata"]}


def _optional(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise SettingError("source", f"a source that needs {module}", f"{module} to be installed",
                           f"pip install 'quatrain[{extra}]'") from None  # fmt: skip


# --- one row ----------------------------------------------------------------------------------------------------------

_FIELD = re.compile(r"\{\{|\}\}|(?P<command>\\\w+)?\{(?P<column>[^{}]+)\}")
_HALF = re.compile("[\ud800-\udfff]")
Fields = list[tuple[str, str]]  # literal text, then the column after it ("" for none)


def _template_fields(template: str, place: str) -> Fields:
    """`'{question} Answer:'` as [("", "question"), (" Answer:", "")]; `{{`, `}}` and `{}` are literal."""
    fields: Fields = []
    literal, end = "", 0
    for match in _FIELD.finditer(template):
        literal, end = literal + template[end : match.start()], match.end()
        if match["column"] is None:
            literal += match[0][0]
            continue
        if match["command"]:
            literally = match["command"] + "{{" + match["column"] + "}}"
            raise SettingError(place, match[0], "no column inside a LaTeX command (it would show the row's value)",
                               f"write {literally} for the words themselves")  # fmt: skip
        fields.append((literal, match["column"]))
        literal = ""
    if not fields:
        raise SettingError(place, template, "at least one {column}", "otherwise every prompt is the same")
    return [*fields, (literal + template[end:], "")]


def _row(
    data: Mapping[str, Any],
    number: int,
    source: SourceConfig,
    fields: Fields | None,
    moved: frozenset[str],
    setting: str,
) -> Row:
    """`moved` are the columns that do not reach the verifier under their own name."""
    prompt: str | Messages
    if fields is None:
        value = _column(data, source.prompt, number, setting, "prompt")
        prompt = _checked_prompt(value, number, setting)
        question = spoken(prompt)
    else:
        texts = [_text(data, column, number, setting) for _, column in fields[:-1]]
        prompt = "".join(literal + text for (literal, _), text in zip(fields, [*texts, ""], strict=True))
        question = "\n".join(texts)
    columns = {name: value for name, value in data.items() if name not in moved}
    for new, old in source.columns.items():
        columns[new] = _column(data, old, number, setting, f"columns.{new}")
    verifier = _verifier(data, number, source, setting)
    check_characters(prompt, f"{setting}.prompt", number)
    return Row(number=number, prompt=prompt, question=question, columns=columns, verifier=verifier)


def _verifier(data: Mapping[str, Any], number: int, source: SourceConfig, setting: str) -> str:
    if source.verifier_column is None:
        return source.verifier or ""
    name = _column(data, source.verifier_column, number, setting, "verifier_column")
    if not isinstance(name, str) or not name:
        raise SettingError(f"{setting}.verifier_column", f"{name!r} in row {number + 1}", "the name of a verifier",
                           "fill in the column")  # fmt: skip
    return name


def _column(data: Mapping[str, Any], column: str, number: int, setting: str, key: str) -> Any:
    if column in data:
        return data[column]
    names = list(map(str, data))
    close = nearest(column, names) if names else ""
    do = [close] if close.startswith("did you mean") else []
    if key == "prompt":
        do.append(f"set {setting}.prompt to the column that is asked, or a template such as '{{question}}'")
    raise SettingError(f"{setting}.{key}", column, f"a column of row {number + 1}, which has: {', '.join(names)}",
                       " ".join(do) or "choose one of these")  # fmt: skip


def _text(data: Mapping[str, Any], column: str, number: int, setting: str) -> str:
    if column not in data:
        names = ", ".join(map(str, data))
        raise SettingError(f"{setting}.template", f"{{{column}}}", f"a column of row {number + 1}, which has: {names}",
                           "write {{...}} for literal braces")  # fmt: skip
    value = data[column]
    if not isinstance(value, (str, int, float)):
        got = f"{type(value).__name__} in column {column} of row {number + 1}"
        raise SettingError(f"{setting}.template", got, "text or a number", "choose another column")
    return str(value)


def spoken(prompt: str | Messages) -> str:
    """What a prompt asks: its text, or that of all messages but the system's."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(message["content"] for message in prompt if message["role"] != "system")


def check_characters(text: str | Messages, place: str, number: int) -> None:
    """SettingError for half of a surrogate pair, which no tokenizer can read, in row `number`."""
    if any(map(_HALF.search, [text] if isinstance(text, str) else [message["content"] for message in text])):
        raise SettingError(place, f"half of a surrogate pair in row {number + 1}", "whole characters",
                           "repair the text, or remove the row")  # fmt: skip


def checked_messages(value: Any, place: str, number: int) -> Messages:
    """The messages of row `number`; SettingError unless each has the texts `role` and `content`."""
    where = f"row {number + 1}"
    if not isinstance(value, (list, tuple)):
        raise SettingError(place, f"{type(value).__name__} in {where}", "a string or a list of messages",
                           'e.g. [{"role": "user", "content": "..."}]')  # fmt: skip
    for message in value:
        texts = [message.get(key) for key in ("role", "content")] if isinstance(message, Mapping) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise SettingError(place, f"{message!r} in {where}", "messages with the texts role and content",
                               'e.g. {"role": "user", "content": "..."}')  # fmt: skip
    return tuple(value)


def _checked_prompt(value: Any, number: int, setting: str) -> str | Messages:
    """A string with something in it, or messages `{"role", "content"}` that leave the turn to the assistant."""
    if isinstance(value, str) and value and not value.isspace():
        return value
    place, where = f"{setting}.prompt", f"row {number + 1}"
    if isinstance(value, str):
        raise SettingError(place, f"an empty string in {where}", "a prompt with text", "remove the row")
    messages = checked_messages(value, place, number)
    if not messages or messages[-1]["role"] in ("assistant", "system"):
        last = messages[-1]["role"] if messages else "no message"
        raise SettingError(place, f"{last} as the last message of {where}", "a last message that the model answers",
                           "end with the user's; open the answer with the setting prefill")  # fmt: skip
    return messages

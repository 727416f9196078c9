"""Which model a word means: a folder, a `config.json`, an id of the table or the hub's cache, or a size like `7B`."""

import math
import os
import re
from dataclasses import replace
from pathlib import Path

from quatrain.errors import SettingError, nearest
from quatrain.folders import adapter_base, is_run, trained_in
from quatrain.planner.architecture import Architecture, load_architecture, read_architecture
from quatrain.planner.known_models import configs

SUFFIX = re.compile(r"[-_](instruct|chat|hf|it)(?=[-_]|$)")
VERSION = re.compile(r"[-_](v\d+(\.\d+)?|\d{4})$", re.IGNORECASE)
OLDER = ("falcon", "gpt2", "gpt_neox")  # not what a bare size means
FURTHEST = 1.35  # a size may differ from the nearest known model's by this factor


def find_model(word: str) -> tuple[Architecture, str]:
    """The architecture that `word` means, and a sentence about where it comes from. Nothing is downloaded.

    Raises SettingError for a word that means nothing here.
    """
    path = Path(word).expanduser()
    path = trained_in(path) if is_run(path) else path
    if (base := adapter_base(path)) is not None:
        return find_model(base)
    if path.exists():
        return load_architecture(path), f"read from {path}"
    cached = cached_config(word)
    if cached is not None:
        return _named(load_architecture(cached), word), "read from the Hugging Face cache"
    if (model := known(word)) is not None:
        return _named(model, word), "from the table of known models"
    if (sized := described(word)) is not None:
        return sized
    names = sorted(configs())
    raise SettingError("model", word, "a folder, a config.json, a known model, or a size like 7B or 30B-A3B",
                       nearest(word.rpartition("/")[2], names))  # fmt: skip


def known(word: str) -> Architecture | None:
    """The model of the table whose name `word` is, whatever its owner, case, dots, dashes and suffixes."""
    table = {plain_name(name): (name, config) for name, config in reversed(configs().items())}
    for key in (plain_name(word), plain_name(VERSION.sub("", word))):
        if key in table:
            name, config = table[key]
            return read_architecture(config, name)
    return None


def plain_name(word: str) -> str:
    """`meta-llama/Llama-3.1-8B-Instruct` as `llama318b`: what is compared."""
    name = word.rpartition("/")[2].lower().removeprefix("meta-").split("(")[0].strip()
    return re.sub(r"[^a-z0-9]", "", SUFFIX.sub("", name))


def cached_config(word: str) -> Path | None:
    """`config.json` of a hub id in the local cache, if it is there."""
    if word.count("/") != 1 or any(part in ("", ".", "..") for part in word.split("/")):
        return None
    home = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or "~/.cache/huggingface") / "hub"
    snapshots = Path(home).expanduser() / f"models--{word.replace('/', '--')}" / "snapshots"
    files = sorted(snapshots.glob("*/config.json"), key=lambda file: file.stat().st_mtime) if snapshots.is_dir() else []
    return files[-1] if files else None


def described(word: str) -> tuple[Architecture, str] | None:
    """The known model nearest to a size: `7B`, `500M`, `qwen2 7B`, `30B-A3B` (total and active)."""
    found = re.fullmatch(r"(?:([a-z]\w*?)[-_ ]?)??(\d+(?:\.\d+)?)([mb])(?:-a(\d+(?:\.\d+)?)b)?(?:[-_ ]style)?",
                         word.lower().strip())  # fmt: skip
    if found is None:
        return None
    family, number, unit, active = found.groups()
    total = float(number) * (1e9 if unit == "b" else 1e6)
    used = float(active) * 1e9 if active else total
    models = [read_architecture(config, name) for name, config in configs().items()]
    near = [model for model in models if bool(model.experts) == bool(active)
            and (model.family.startswith(family) if family else model.family not in OLDER)]  # fmt: skip
    if not near or not 1e6 <= total <= 1e14:
        return None

    def distance(model: Architecture) -> float:
        return (abs(math.log(model.parameters / total)) + abs(math.log(model.active / used))) / 2

    best = min(near, key=lambda model: round(distance(model), 1))  # of near ones, the first in the table
    if distance(best) > math.log(FURTHEST):
        raise SettingError("model", word, "a size near a known model's", f"the nearest is {best.name} with "
                           f"{best.parameters / 1e9:.2f}e9 parameters; give a config.json, or --params")  # fmt: skip
    return best, f"{word}: planned as {best.name}, the nearest in size of the known models"


def _named(model: Architecture, word: str) -> Architecture:
    return replace(model, name=word.rpartition("/")[2])

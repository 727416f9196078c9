"""What lies in the folders that a `path` of a recipe may name: a model, adapters on one, or a run that trained one."""

import json
from pathlib import Path

from quatrain.errors import SettingError

EMBEDDED = "smollm2-135m"  # the path of the model that needs no folder


def is_run(folder: Path) -> bool:
    """Whether a run keeps itself there."""
    return (folder / "recipe.yaml").is_file()


def trained_in(run: Path) -> Path:
    """What a run trained, at its last checkpoint; absolute, because adapters note where their base lies."""
    parts = [step / part for step in sorted(run.absolute().glob("checkpoints/step-*"), reverse=True)
             for part in ("policy", "reward")]  # fmt: skip
    found = next((part for part in parts if part.is_dir()), None)
    if found is None:
        raise SettingError("model.path", str(run), "a run with a checkpoint", "train it first, or give another model")
    return found


def adapter_base(folder: str | Path) -> str | None:
    """The path of the model that the adapters in `folder` belong to; None for whole weights and for a hub id.

    Raises SettingError when their configuration cannot be read.
    """
    path = Path(folder) / "adapter_config.json"
    if not path.is_file():
        return None
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingError("model.path", str(folder), "a whole adapter_config.json in it",
                           f"it cannot be read ({error}); save the adapters again") from None  # fmt: skip

"""The guides: the settings page is up to date, links and file names resolve, and the examples run."""

import asyncio
import importlib.util
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from quatrain.config import AlgorithmConfig, SamplingConfig, VerifierConfig
from quatrain.methods.online import train
from quatrain.recipe_file import validate_recipe
from quatrain.registry import load_attribute
from quatrain.rewards import build_verifier, text_rollout
from quatrain.rollout import Request
from quatrain.rollout.no_cache import NoCacheEngine
from quatrain.types import Prompt
from tests.algorithms.synthetic import direct_forward, key, leaves, scored_group, total_loss
from tests.tiny import save_tiny, tiny_lm

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("decisions/*.md"))]
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


# --- the settings page ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def settings_page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("settings_page", ROOT / "scripts" / "settings_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_settings_page_is_up_to_date(settings_page: ModuleType) -> None:
    assert (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8") == settings_page.render(), "run `make docs`"


@pytest.mark.parametrize("change", [{"train": {"steps": ""}}, {"train": {"stepz": "unknown"}}])
def test_every_setting_has_its_effect(
    settings_page: ModuleType, change: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, effects in change.items():
        monkeypatch.setitem(settings_page.EFFECTS, place, {**settings_page.EFFECTS[place], **effects})
    with pytest.raises(ValueError, match="step"):
        settings_page.render()


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"type": "integer", "exclusiveMinimum": 0}, "whole number > 0"),
        ({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, "number >= 0 and < 1"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "text or empty"),
        ({"enum": ["a", "b"], "type": "string"}, "`a`, `b`"),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 1}, "list of true, false, at least 1"),
    ],
)
def test_ranges_in_words(settings_page: ModuleType, node: dict[str, Any], words: str) -> None:
    assert settings_page.values(node) == words


# --- links ------------------------------------------------------------------------------------------------------------


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    """Relative links of a page that lead nowhere."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page))):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            found.append(target)
    return found


@EVERY_PAGE
def test_links_resolve(page: Path) -> None:
    assert broken(page) == []


@EVERY_PAGE
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`((?:quatrain|tests|docs|scripts|decisions)/[\w/.-]+?)`", prose(page))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("# Known: a `heading`\n")
    page.write_text(
        "[a](other.md) [b](other.md#known-a-heading) [c](https://x.y/z) [d](lost.md)\n"
        "[e](other.md#lost) `[f](code.md)`\n"
        "```\n[g](fenced.md)\n```\n"
    )
    assert broken(page) == ["lost.md", "other.md#lost"]


def test_the_picture_is_well_formed() -> None:
    tree = ElementTree.parse(ROOT / "docs" / "flow.svg")
    assert {"engine", "credit", "update"} <= {element.text for element in tree.iter() if element.text}


# --- the examples of docs/extending.md --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every example that names its file in the first line."""
    folder = tmp_path_factory.mktemp("examples")
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == text.count("```python"), "every example names its file"
    for name, code in blocks:
        (folder / name).write_text(code)
    return folder


def test_the_algorithm_by_hand(examples: Path) -> None:
    """Scores 1 and 0, two tokens each: A = 1/2 and -1/2; d loss / d logp = -A / 4 tokens."""
    method = load_attribute(f"{examples}/reinforce.py:Reinforce", "algorithm.name")(AlgorithmConfig(), 8)
    samples, statistics = method.credit([scored_group([1.0, 0.0]), scored_group([1.0, 1.0, None], index=1)])
    assert statistics["reward/mean"].value == 0.75
    assert [method.contributes(sample) for sample in samples] == [True, True, False, False, False]
    rows = leaves(samples[:2], stream="sampler_logprobs", shift=0.0)
    loss, _ = total_loss(method, samples[:2], direct_forward(rows))
    loss.backward()
    for sample, slope in zip(samples[:2], (-0.125, 0.125), strict=True):
        assert rows[key(sample)].grad.tolist() == [slope, slope]


@pytest.mark.parametrize("reference", ["same_text.py:SameText", "digits.py:digits"])
def test_the_verifiers(examples: Path, reference: str) -> None:
    verifier = build_verifier(VerifierConfig(kind=f"{examples}/{reference}"))
    try:
        for example in verifier.examples:
            [score] = asyncio.run(verifier.score([text_rollout(example.completion, example.columns)]))
            assert score.value == example.value
        [score] = asyncio.run(verifier.score([text_rollout("4 no", {"answer": "4"})]))
        assert score.value == (0.25 if reference.endswith("digits") else 0.0)
    finally:
        verifier.close()


def test_the_engine_samples_what_the_oracle_does(examples: Path) -> None:
    lm = tiny_lm(dtype=torch.float64)
    engine = load_attribute(f"{examples}/group_engine.py:GroupEngine", "rollout.engine")(lm, max_rows=8)
    texts = ("1+1=", "what is 2?")
    prompts = [Prompt(index=i, text=t, token_ids=tuple(lm.tokenizer(t).input_ids)) for i, t in enumerate(texts)]
    sampling = SamplingConfig(max_tokens=6, top_p=0.9)
    requests = [
        Request(prompt=prompt, group=prompt.index, index=index, seed=(0, prompt.index, index), sampling=sampling)
        for prompt in prompts
        for index in range(3)
    ]

    def tokens(maker: Any) -> Iterator[tuple[int, int, str, list[int]]]:
        maker.submit(requests)
        while batch := maker.completed():
            for rollout in batch:
                trajectory = rollout.trajectories[0]
                assert trajectory.policy_version[-1] == 0
                yield rollout.group, rollout.index, rollout.stop_reason, trajectory.token_ids.tolist()

    found = list(tokens(engine))
    assert len(found) == 6
    assert found == list(tokens(NoCacheEngine(lm)))


def test_the_examples_make_a_run(examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Task, engine, verifiers, algorithm and tracker together, by file reference, as a recipe names them."""
    model = save_tiny(tmp_path / "model")
    shutil.copytree(examples, tmp_path / "user")
    monkeypatch.chdir(tmp_path / "user")
    parts = {"same": {"kind": "same_text.py:SameText"}, "digits": {"kind": "digits.py:digits", "weight": 0.5}}
    recipe = validate_recipe({
        "model": str(model), "prompts": [{"source": "sums.py:sums", "options": {"size": 8}}],
        "verifiers": {"default": parts},
        "rollout": {"engine": "group_engine.py:GroupEngine", "group_size": 4, "max_tokens": 6},
        "algorithm": {"name": "reinforce.py:Reinforce"}, "train": {"steps": 1, "prompts_per_step": 2},
        "log": {"tensorboard": False, "trackers": ["csv_tracker.py:CsvTracker"], "rollouts_every": 0}, "output": "run",
    })  # fmt: skip
    train(recipe)
    row = json.loads(Path("run/metrics.jsonl").read_text())
    assert row["metrics"]["train/updates"] == 1
    assert row["metrics"]["train/grad_norm"] > 0
    assert f"1,reward/mean,{row['metrics']['reward/mean']}\n" in Path("run/curves.csv").read_text()
    assert Path("run/checkpoints/step-000001/policy/model.safetensors").is_file()

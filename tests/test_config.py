"""A recipe is validated before anything is loaded, and every mistake is one line that says what to do."""

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from quatrain.config import PRESETS, AlgorithmConfig, LoraConfig, Recipe, batch_arithmetic, merge
from quatrain.errors import SettingError
from quatrain.recipe_file import apply_override, differences, load_recipe, validate_recipe

MINIMAL: dict[str, Any] = {
    "model": "smollm2-135m",
    "prompts": [{"source": "rows.jsonl"}],
    "verifiers": {"math": {"correct": {"kind": "exact"}}},
}


def recipe(**changes: Any) -> Recipe:
    """MINIMAL with `changes` merged in, validated."""
    return validate_recipe(merge(copy.deepcopy(MINIMAL), changes))


def complaint(**changes: Any) -> str:
    """The one line that `changes` are refused with."""
    with pytest.raises(SettingError) as caught:
        recipe(**changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def overridden(*overrides: str, data: dict[str, Any] = MINIMAL) -> Recipe:
    """MINIMAL after command-line overrides."""
    data = copy.deepcopy(data)
    for override in overrides:
        apply_override(data, override)
    return validate_recipe(data)


def test_a_recipe_file_keeps_what_yaml_would_lose_or_blow_up(tmp_path: Path) -> None:
    """A key written twice, aliases that stand for a billion values, values that no JSON can hold."""
    bomb = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    bomb += "".join(f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in pairwise("abcdefghi"))
    for text, words in (
        ("train:\n  steps: 3\nseed: 1\ntrain:\n  epochs: 2\n", "the key 'train' twice, again in line 4"),
        ("rollout: {top_p: 0.9, top_k: 5, top_p: 1.0}\n", "the key 'top_p' twice, again in line 1"),
        (bomb, "aliases that stand for more than 100000 values"),
        ("seed: !!bool 3\n", "a value that its tag or form does not allow"),
        ("prompts: [{source: a.jsonl, options: {since: 2024-01-01}}]\n", "prompts[0].options.since: got a date"),
        ("prompts: [{source: a.jsonl, options: {raw: !!binary gIGC}}]\n", "prompts[0].options.raw: got a bytes"),
        ("model: {path: &a [*a]}\n", "settings that contain themselves"),
    ):
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        with pytest.raises(SettingError) as caught:
            load_recipe(path)
        assert words in str(caught.value), caught.value


def test_a_part_does_not_share_its_name_with_a_penalty() -> None:
    parts = {"verifiers": {"math": {"truncation": {"kind": "exact"}, "soft_overlong": {"kind": "exact"}}}}
    assert recipe(**parts)
    assert complaint(**parts, algorithm={"truncated": "penalise"}).startswith("algorithm.truncated: got penalise, need")
    assert complaint(**parts, algorithm={"soft_overlong": 0.2}).startswith("algorithm.soft_overlong: got 0.2, need")


def test_what_is_shown_of_a_value_is_short_and_printable() -> None:
    found = str(SettingError("a.b", "\x1b[31m\x00 x\ny" + "z" * 1000, "need", "do"))
    assert found.startswith("a.b: got \\x1b[31m\\x00 x yzzz") and found.endswith("zzz..., need need; do")
    assert len(found) < 160
    assert str(SettingError("seed", 16**9000, "x")) == "seed: got a value of type int too large to show, need x"


def test_the_minimal_recipe_has_the_defaults_of_grpo() -> None:
    run = recipe()
    assert run.model.path == "smollm2-135m"
    assert (run.algorithm.preset, run.algorithm.kl.placement, run.algorithm.kl.coefficient) == ("grpo", "loss", 0.04)
    assert run.rollout.group_size == 8


@pytest.mark.parametrize(
    ("changes", "start", "hint"),
    [
        ({"train": {"learning_rte": 1e-5}}, "train.learning_rte: got an unknown key", "did you mean 'learning_rate'?"),
        ({"rolout": {}}, "rolout: got an unknown key", "did you mean 'rollout'?"),
        ({"model": {"path": "m", "lora": {"rnk": 4}}}, "model.lora.rnk: got an unknown key", "did you mean 'rank'?"),
        ({"prompts": [{"source": "a", "limits": 4}]}, "prompts[0].limits: got an unknown key", "did you mean 'limit'?"),
        ({"algorithm": {"kl": {"beta": 0.1}}}, "algorithm.kl.beta: got an unknown key", "coefficient"),
        ({"algorithm": {"preset": "dr_gpro"}}, "algorithm.preset: got dr_gpro", "did you mean 'dr_grpo'?"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_known_one(changes: dict[str, Any], start: str, hint: str) -> None:
    text = complaint(**changes)
    assert text.startswith(start)
    assert hint in text


@pytest.mark.parametrize(
    ("changes", "setting", "need"),
    [
        ({"train": {"steps": 0}}, "train.steps: got 0", "greater than 0"),
        ({"train": {"steps": "many"}}, "train.steps: got many", "valid integer"),
        ({"train": {"steps": True}}, "train.steps: got True", "number"),
        ({"train": {"steps": 1.5}}, "train.steps: got 1.5", "integer"),
        ({"train": {"learning_rate": float("nan")}}, "train.learning_rate: got nan", "finite"),
        ({"train": {"adam_betas": [0.9, 1.0]}}, "train.adam_betas[1]: got 1.0", "less than 1"),
        ({"rollout": {"top_p": 0.0}}, "rollout.top_p: got 0.0", "greater than 0"),
        ({"rollout": {"group_size": 0}}, "rollout.group_size: got 0", "greater than 0"),
        ({"rollout": {"group_size": 1}}, "rollout.group_size: got 1", "at least 2 for a group baseline"),
        ({"algorithm": {"clip_low": 1.0}}, "algorithm.clip_low: got 1.0", "less than 1"),
        ({"algorithm": {"scale": "std"}}, "algorithm.scale: got std", "'group', 'batch' or 'none'"),
        ({"model": {"path": "m", "lora": {"targets": 5}}}, "model.lora.targets: got 5", "string"),
        ({"model": 5}, "model: got 5", "need"),
        ({"model": {}}, "model.path: got nothing", "value"),
        ({"prompts": []}, "prompts: got []", "at least 1 item"),
        ({"seed": -1}, "seed: got -1", "greater than or equal to 0"),
    ],
)
def test_a_value_of_the_wrong_type_or_range_names_setting_value_and_condition(
    changes: dict[str, Any], setting: str, need: str
) -> None:
    text = complaint(**changes)
    assert text.startswith(setting + ",")
    assert need in text.partition(", need ")[2] or need == "need"


@pytest.mark.parametrize("missing", ["model", "prompts", "verifiers"])
def test_a_missing_section_is_named(missing: str) -> None:
    with pytest.raises(SettingError, match=f"^{missing}: got nothing, need a value"):
        validate_recipe({key: value for key, value in MINIMAL.items() if key != missing})


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"train": {"prompts_per_step": 6, "updates_per_step": 4}}, "train.updates_per_step: got 4, need a divisor of"),
        ({"rollout": {"temperature": 0}}, "rollout.temperature: got 0"),
        ({"algorithm": {"kl": {"estimator": "k1"}}}, "algorithm.kl.estimator: got k1"),
        ({"algorithm": {"preset": "rloo", "parts": "normalised"}}, "algorithm.parts: got normalised"),
        ({"prompts": [{"source": "a", "verifier": "maths"}]}, "prompts[0].verifier: got maths"),
        ({"held_out": [{"source": "a", "verifier": "maths"}]}, "held_out[0].verifier: got maths"),
        ({"verifiers": {"code": {"correct": {"kind": "exact"}}}}, "prompts[0].verifier: got None"),
        *(
            (
                {"model": {"path": "m", "lora": {"targets": targets}}, "algorithm": {"kl": {"estimator": "full"}}},
                "algorithm.kl.estimator: got full, need an output head",
            )
            for targets in (["q_proj", "lm_head"], "lm_head")
        ),
        (
            {"algorithm": {"preset": "dapo", "kl": {"coefficient": 0.1}}},
            "algorithm.kl.coefficient: got 0.1, need a kl.",
        ),
        ({"algorithm": {"preset": "ppo", "kl": {"horizon": 25}}}, "algorithm.kl.horizon: got 25, need more than 25.6"),
        ({"algorithm": {"kl": {"horizon": 500}}}, "algorithm.kl.horizon: got 500, need a kl.target"),
        ({"algorithm": {"kl": {"target_per": "sequence"}}}, "algorithm.kl.target_per: got sequence, need a kl.target"),
        ({"algorithm": {"preset": "ppo", "std_epsilon": 0.1}}, "algorithm.std_epsilon: got 0.1, need 0.0001 with a"),
        ({"curriculum": {"retry_after": 5}}, "curriculum.retry_after: got 5, need 0 without skip_right"),
        ({"algorithm": {"kl": {"ema": 0.9, "refresh_every": 2}}}, "algorithm.kl.ema: got 0.9, need null"),
        ({"algorithm": {"preset": "dapo", "kl": {"ema": 0.9}}}, "algorithm.kl.placement: got none"),
        ({"verifiers": {"math": {}, "code": {}}, "prompts": [{"source": "a", "verifier": "code"}]}, "verifiers.code"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, Any], start: str) -> None:
    assert complaint(**changes).startswith(start)


# the table of presets: baseline, scale, ratio, clip, low, high, aggregate, KL placement, estimator, coefficient
TABLE = {
    "grpo": ("group_mean", "group", "token", "two_sided", 0.2, 0.2, "sequence", "loss", "k3", 0.04),
    "dapo": ("group_mean", "group", "token", "two_sided", 0.2, 0.28, "token", "none"),
    "dr_grpo": ("group_mean", "none", "token", "two_sided", 0.2, 0.2, "constant", "none"),
    "gspo": ("group_mean", "group", "sequence", "two_sided", 3e-4, 4e-4, "sequence", "none"),
    "cispo": ("group_mean", "group", "token", "detached_cap", 0.2, 0.2, "token", "none"),
    "rloo": ("leave_one_out", "none", "sequence_sum", "two_sided", 0.2, 0.2, "sequence_sum", "score", "k1", 0.05),
    "reinforce_pp": ("none", "batch", "token", "two_sided", 0.2, 0.2, "token", "reward", "k1", 0.01),
    "ppo": ("critic", "none", "token", "two_sided", 0.2, 0.2, "token", "reward", "k1", 0.05),
}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_its_row_of_the_table(preset: str) -> None:
    own = recipe(algorithm={"preset": preset}).algorithm
    choices = (own.baseline, own.scale, own.ratio, own.clip, own.clip_low, own.clip_high, own.aggregate)
    kl = (own.kl.placement, own.kl.estimator, own.kl.coefficient)
    assert (*choices, *(kl if own.kl.active else kl[:1])) == TABLE[preset]
    assert (own.refill_rounds, own.soft_overlong) == ((3, 0.2) if preset == "dapo" else (0, None))


def test_the_soft_length_penalty_is_a_part_of_every_rubric() -> None:
    run = recipe(algorithm={"preset": "dapo"}, rollout={"max_tokens": 100})
    part = run.rubrics["math"]["soft_overlong"]
    assert (part.kind, part.weight, part.model_extra) == ("soft_overlong", 1, {"max_tokens": 100, "cache_tokens": 20})
    assert recipe().rubrics == recipe().verifiers
    own = {"math": {"soft_overlong": {"kind": "soft_overlong"}}}
    assert complaint(algorithm={"preset": "dapo"}, verifiers=own).startswith(
        "algorithm.soft_overlong: got 0.2, need null"
    )


def test_a_preset_fills_what_the_recipe_leaves_open() -> None:
    gspo = recipe(algorithm={"preset": "gspo"}).algorithm
    assert (gspo.ratio, gspo.clip_low, gspo.clip_high, gspo.kl.placement) == ("sequence", 3e-4, 4e-4, "none")
    changed = recipe(algorithm={"preset": "rloo", "clip_low": 0.1, "kl": {"coefficient": 0.5}}).algorithm
    assert (changed.baseline, changed.clip_low, changed.clip_high) == ("leave_one_out", 0.1, 0.2)
    assert (changed.kl.placement, changed.kl.estimator, changed.kl.coefficient) == ("score", "k1", 0.5)
    assert recipe().algorithm == AlgorithmConfig.model_validate({"preset": "grpo"})


def test_overrides_reach_sections_lists_and_the_short_form_of_the_model() -> None:
    run = overridden(
        "train.learning_rate=1e-5",
        "prompts.0.limit=5",
        "model.lora.rank=4",
        "rollout.stop=['\\n', END]",
        "log.tensorboard=false",
        "model.device=cpu",
    )
    assert run.train.learning_rate == 1e-5
    assert run.prompts[0].limit == 5
    assert (run.model.path, run.model.device, run.model.lora) == ("smollm2-135m", "cpu", LoraConfig(rank=4))
    assert run.rollout.stop == ["\\n", "END"]
    assert run.log.tensorboard is False


@pytest.mark.parametrize(
    ("override", "start"),
    [
        ("train.steps", "override: got train.steps, need key.sub=value"),
        ("=5", "override: got =5"),
        ("prompts.3.limit=5", "override prompts.3.limit: got 3, need a list position from 0 to 0"),
        ("prompts.limit=5", "override prompts.limit: got limit, need a list position"),
        ("seed.sub=1", "override seed.sub: got seed = 3, need a section"),
        ("prompts.0.source.x=1", "override prompts.0.source.x: got prompts.0.source = 'rows.jsonl', need a section"),
        ("tags.0.x=1", "override tags.0.x: got tags.0 = 'a', need a section"),
        ("empty.0=1", "override empty.0: got 0, need a list position, but the list is empty"),
        ("train.steps=[1", "override train.steps: got [1, need a YAML value"),
        ("output=2020-13-45", "override output: got 2020-13-45, need a YAML value"),
        ("train.stpes=5", "train.stpes: got an unknown key"),
    ],
)
def test_a_bad_override_says_what_is_wrong(override: str, start: str) -> None:
    data = {**MINIMAL, "seed": 3, "tags": ["a"], "empty": []}
    if override.startswith("train.stpes"):
        data = MINIMAL
    with pytest.raises(SettingError) as caught:
        overridden(override, data=data)
    assert str(caught.value).startswith(start)


def test_environment_variables_are_expanded_where_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWS", "/somewhere")
    monkeypatch.setenv("STEPS", "7")
    monkeypatch.delenv("ABSENT", raising=False)
    run = recipe(prompts=[{"source": "${ROWS}/a.jsonl"}], train={"steps": "${STEPS}"}, output="${ABSENT:-runs}/x")
    assert (run.prompts[0].source, run.train.steps, run.output) == ("/somewhere/a.jsonl", 7, "runs/x")
    text = complaint(prompts=[{"source": "${ABSENT}/a.jsonl"}])
    assert text.startswith("prompts[0].source: got ${ABSENT}/a.jsonl, need the environment variable ABSENT")


def test_a_recipe_file_is_read_and_named_after_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(MINIMAL) + "train: {learning_rate: 2e-5}\n")
    run = load_recipe(path, ["train.steps=3"])
    assert (run.output, run.train.steps, run.train.learning_rate) == ("runs/mine", 3, 2e-5)


@pytest.mark.parametrize(
    ("content", "need"),
    [
        (None, "an existing YAML file"),
        (b"a: [1", "valid YAML"),
        (b"a: 2020-13-45", "valid YAML"),
        (b"- 1", "a mapping of settings"),
        (b"", "a mapping of settings"),
        (b"\xff\xfe\x00", "a readable UTF-8 YAML file"),
        (b"[" * 400, "valid YAML"),
        (b"model: &m {path: *m}", "finite settings"),
    ],
)
def test_a_file_that_is_no_recipe_is_one_clear_line(tmp_path: Path, content: bytes | None, need: str) -> None:
    path = tmp_path / "recipe.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingError) as caught:
        load_recipe(path)
    assert need in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="a readable UTF-8 YAML file"):
        load_recipe(tmp_path)


def test_the_saved_recipe_reads_back_equal(tmp_path: Path) -> None:
    run = recipe(algorithm={"preset": "cispo"}, model={"path": "m", "lora": {}}, evaluation={"every": 5})
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(run.model_dump(mode="json")))
    assert load_recipe(path) == run


def test_batch_arithmetic_is_spelled_out() -> None:
    run = recipe(train={"prompts_per_step": 16, "updates_per_step": 4, "epochs": 2}, rollout={"group_size": 8})
    text = batch_arithmetic(run)
    assert "16 prompts x 8 completions = 128 completions a step" in text
    assert "128 / 32 per update x 2 epoch(s) = 8 update(s) a step" in text


def test_differences_name_the_settings() -> None:
    old, new = recipe().model_dump(), recipe(train={"learning_rate": 2e-5}, seed=1).model_dump()
    assert differences(old, new) == ["seed: 0 -> 1", "train.learning_rate: 1e-05 -> 2e-05"]


def test_a_recipe_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        recipe().train.steps = 5  # type: ignore[misc]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("1e-5")
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3), max_leaves=6
)


def section(annotation: Any) -> st.SearchStrategy[Any]:
    """Garbage for one section: any value, or a mapping with some of its real keys."""
    keys = sorted(getattr(annotation, "model_fields", {"x": None}))
    return VALUES | st.dictionaries(st.sampled_from(keys), VALUES, max_size=3)


SECTIONS = st.fixed_dictionaries(
    {}, optional={name: section(field.annotation) for name, field in Recipe.model_fields.items()}
)


@given(changes=SECTIONS | st.dictionaries(st.text(max_size=8), VALUES))
def test_garbage_raises_nothing_but_a_one_line_setting_error(changes: dict[str, Any]) -> None:
    for data in (changes, {**MINIMAL, **changes}):
        try:
            validate_recipe(data)
        except SettingError as error:
            assert len(str(error).splitlines()) == 1
            assert ": got " in str(error)


KEYS = st.sampled_from(["model", "model.path", "prompts.0", "prompts.0.options.x", "train.steps", "a.b", "prompts.9.x"])


@given(key=KEYS | st.text(max_size=6), value=st.text(max_size=8))
def test_any_override_works_or_raises_a_setting_error(key: str, value: str) -> None:
    try:
        overridden(f"{key}={value}")
    except SettingError as error:
        assert ": got " in str(error)

"""Language, target length, reflection and diversity: worked examples."""

import asyncio
from typing import Any

import pytest

from quatrain.config import VerifierConfig
from quatrain.errors import SettingError, VerifierError
from quatrain.rewards import build_verifier, text_rollout
from quatrain.rewards.reflection import PHRASES, circling
from quatrain.types import Rollout, Score

SENTENCES = {
    "en": "Let me think step by step about this problem. She has twelve apples left.",
    "fr": "Réfléchissons étape par étape à ce problème. Il lui reste donc douze pommes.",
    "de": "Denken wir Schritt für Schritt darüber nach. Sie hat also noch zwölf Äpfel übrig.",
    "es": "Pensemos paso a paso en este problema. Así que le quedan doce manzanas.",
    "zh": "让我们一步一步地思考这个问题。所以她还剩下十二个苹果。",
    "ja": "この問題を一歩ずつ考えましょう。だから彼女にはリンゴが十二個残っています。",
    "ru": "Давайте подумаем над этой задачей шаг за шагом. Теперь осталось двенадцать яблок.",
}


def score(settings: dict[str, Any], *rollouts: Rollout) -> list[Score]:
    verifier = build_verifier(VerifierConfig.model_validate(settings), "verifiers.main.shape")
    try:
        return list(asyncio.run(verifier.score(rollouts)))
    finally:
        verifier.close()


def values(settings: dict[str, Any], *texts: str) -> list[float]:
    return [one.value for one in score(settings, *map(text_rollout, texts))]


def test_languages_are_told_apart() -> None:
    pytest.importorskip("py3langid")
    rollouts = [text_rollout(text, prompt=asked) for asked in SENTENCES.values() for text in SENTENCES.values()]
    found = [one.value for one in score({"kind": "language"}, *rollouts)]
    assert found == [float(asked == given) for asked in SENTENCES for given in SENTENCES]


def test_the_share_of_the_wanted_language() -> None:
    pytest.importorskip("py3langid")
    en, fr = SENTENCES["en"], SENTENCES["fr"]
    mixed, formula, digits, code = score({"kind": "language", "language": "en"}, *map(text_rollout, [
        f"{en}\n{fr}\n{en}", "Therefore we get the sum $\\sum_{k} k^2$ of all the squares.", "2 + 2 = 4",
        "The program prints it. `pour chaque pomme dans la corbeille: imprimer` And that is the answer."]))  # fmt: skip
    assert 0.55 < mixed.value < 0.75
    assert (formula.value, digits.status, code.value) == (1.0, "abstained", 1.0)
    with pytest.raises(SettingError, match="language: got xx, need prompt or one of languages"):
        score({"kind": "language", "language": "xx"})


def test_a_long_text_is_judged_in_time() -> None:
    pytest.importorskip("py3langid")
    assert values({"kind": "language", "language": "en"}, SENTENCES["en"] * 10_000) == [1.0]


def test_target_length() -> None:
    def found(settings: dict[str, Any], length: int, **columns: Any) -> float:
        [one] = score({"kind": "target_length", **settings}, text_rollout("x", columns, tokens=[7] * length))
        return one.value

    assert [found({"target_tokens": 100, "slope_tokens": 50}, n) for n in (100, 110, 75, 150, 900, 1)] == pytest.approx(
        [0.0, -0.2, -0.5, -1.0, -1.0, -1.0]
    )
    assert found({"target_tokens": 100, "slope_tokens": 50, "mode": "at_most"}, 75) == 0.0
    assert found({"slope_tokens": 10, "target_column": "budget"}, 15, budget=10) == -0.5
    with pytest.raises(VerifierError, match="has no column 'target_tokens'"):
        found({}, 5)
    with pytest.raises(VerifierError, match="'target_tokens' is 'ten', need a number of tokens"):
        found({}, 5, target_tokens="ten")


def test_circling_reflections_are_counted_and_useful_ones_are_not() -> None:
    useful = (
        "The train takes 3 hours. Wait, it stops for 20 minutes, so 3 hours 20. Let me verify with the other leg: "
        "200 km at 60 km/h plus the stop. Hmm, that needs the exact distance, which is 180 km. So 3:20."
    )
    circle = "So x is 5. " + "Wait, let me rethink. So x is 5. " * 4
    assert circling(useful, PHRASES, 0.5) == 0
    assert circling(circle, PHRASES, 0.5) == 4
    assert circling("所以答案是五。" + "等等所以答案是五。" * 3, PHRASES, 0.5) == 3
    assert circling("The waiter waited. It is actual. " * 5, PHRASES, 0.5) == 0
    assert values({"kind": "reflection"}, useful, circle, "") == pytest.approx([0.0, -0.6, 0.0])
    assert values({"kind": "reflection", "allowed": 0, "full_after": 4, "penalty": -0.5}, circle) == [-0.5]


def test_diversity_of_a_group() -> None:
    """Bigrams {ab, bc}, {ab, bd}, {xy}: similarities 1/3, 0, 0."""
    settings = {"kind": "diversity"}
    assert values(settings, "a b c", "a b d", "x y") == pytest.approx([5 / 6, 5 / 6, 1.0])
    assert values(settings, "a b c", "a b c") == [0.0, 0.0]
    assert [one.status for one in score(settings, text_rollout("a b"), text_rollout(" "))] == ["abstained", "ok"]
    tokens = [text_rollout("x", tokens=ids) for ids in ([1, 2, 3], [1, 2, 3], [4, 5, 6])]
    assert [one.value for one in score({**settings, "unit": "token"}, *tokens)] == [0.5, 0.5, 1.0]

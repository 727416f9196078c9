"""Advantages, hand-worked, and the listed cases on scores, uniform groups, abstentions and truncation."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from quatrain.algorithms import Group
from quatrain.errors import SettingError
from quatrain.telemetry.metrics import merge_metrics
from quatrain.types import Prompt, Score
from tests.algorithms.synthetic import algorithm, make_sample, scored_group

CASES = [
    json.loads(line) for line in (Path(__file__).parents[1] / "cases/training_grpo.jsonl").read_text().splitlines()
]
NO_KL = {"kl": {"placement": "none"}}


def advantages(groups, **settings):
    """First token's advantage of every completion that is kept, and the statistics."""
    samples, statistics = algorithm(**settings).credit(groups)
    return [sample.streams["advantages"][0] for sample in samples], statistics


def test_every_case_has_a_test():
    sources = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert [case["id"] for case in CASES if case["id"].lower() + "_" not in sources.lower()] == []


def test_group_mean_and_population_std():
    a, _ = advantages([scored_group([1, 0, 0, 0])])
    sigma = math.sqrt(3) / 4
    assert a == pytest.approx([0.75 / (sigma + 1e-4), *[-0.25 / (sigma + 1e-4)] * 3], abs=1e-15)


def test_sample_std_none_and_batch_scales():
    groups = [scored_group([1, 0, 0, 0]), scored_group([3, 1, 3, 1], index=1)]
    a, _ = advantages(groups, std="sample")
    assert a[0] == pytest.approx(0.75 / (0.5 + 1e-4), abs=1e-15)
    a, _ = advantages(groups, preset="dr_grpo")
    assert a == [0.75, -0.25, -0.25, -0.25, 1, -1, 1, -1]
    a, _ = advantages(groups, scale="batch")
    spread = np.std([1, 0, 0, 0, 3, 1, 3, 1])
    assert a == pytest.approx([x / (spread + 1e-4) for x in [0.75, -0.25, -0.25, -0.25, 1, -1, 1, -1]], abs=1e-15)


def test_leave_one_out():
    a, _ = advantages([scored_group([1, 0, 0, 1])], preset="rloo", kl={"placement": "none"})
    assert a == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3], abs=1e-15)


def test_c01_uniform_group_is_exactly_zero_and_counted():
    a, statistics = advantages([scored_group([1, 1, 1, 1]), scored_group([1, 0], index=1)])
    assert a[:4] == [0.0] * 4 and a[4] > 0
    assert statistics["groups/zero_variance"].sum == 1
    assert statistics["groups/zero_variance"].value == statistics["groups/all_right"].value == 0.5


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, np.float32(0.1)])
@pytest.mark.parametrize("size", [3, 8, 16])
@pytest.mark.parametrize("settings", [{}, {"preset": "dr_grpo"}, {"preset": "rloo", **NO_KL}, {"std": "sample"}])
def test_c02_equal_fractions_give_no_signal(value, size, settings):
    method = algorithm(**{**NO_KL, **settings})
    samples, statistics = method.credit([scored_group([float(value)] * size)])
    assert all((sample.streams["advantages"] == 0.0).all() for sample in samples)
    assert not any(method.contributes(sample) for sample in samples)
    assert statistics["groups/all_equal"].value == 1


def test_c02_nearly_equal_scores_are_uniform():
    a, _ = advantages([scored_group([0.7, 0.7 + 4e-9, 0.7, 0.7])])
    assert a == [0.0] * 4
    a, _ = advantages([scored_group([0.7, 0.7 + 4e-8, 0.7, 0.7])], scale="none")
    assert a[1] > 0


def test_c03_group_of_one_trains_nothing():
    a, statistics = advantages([scored_group([3.0])])
    assert a == [0.0] and statistics["groups/too_few_scores"].value == 1
    assert statistics["groups/zero_variance"].value == 0


@pytest.mark.parametrize("preset", ["grpo", "dr_grpo", "gspo", "cispo", "rloo", "reinforce_pp"])
def test_c07_abstained_scores_leave_the_statistics(preset):
    a, statistics = advantages([scored_group([1, 0, None, None])], preset=preset, **NO_KL)
    assert a[2] == a[3] == 0
    assert a[0] == pytest.approx(-a[1]) and a[0] > 0
    assert statistics["scores/abstained"].value == 2
    assert statistics["reward/mean"].value == 0.5


def test_an_error_is_not_a_zero():
    a, statistics = advantages([scored_group([1, 0, Score(status="error", error="timeout")])])
    assert a[2] == 0 and a[0] == pytest.approx(-a[1])
    assert statistics["scores/errors"].value == 1 and statistics["scores/abstained"].value == 0


def test_c08_a_part_that_abstains_is_left_out_only_there():
    parts = [{"f": 1.0, "g": 0.5}, {"f": 0.0, "g": 0.2}, {"f": 1.0}, {"f": 0.0, "g": float("nan")}]
    scores = [Score(value=np.nansum(list(p.values())), parts=p) for p in parts]
    a, statistics = advantages([scored_group(scores)], parts="normalised")
    one = 0.5 / (0.5 + 1e-4)
    other = 0.15 / (0.15 + 1e-4)
    assert a == pytest.approx([one + other, -one - other, one, -one], abs=1e-12)
    assert statistics["reward/g"].value == pytest.approx(0.35)  # C09: an abstention is skipped, not a NaN


def test_c09_a_batch_without_a_part_does_not_spoil_its_mean():
    batches = [[scored_group([0.5, 0.5])], [scored_group([None, None])], [scored_group([0.7, 0.7])]]
    merged = merge_metrics(*(algorithm().credit(batch)[1] for batch in batches))
    assert merged["reward/mean"].value == pytest.approx(0.6)
    assert merged["scores/abstained"].value == 2


def test_c12_a_group_without_any_score_trains_nothing_and_is_counted():
    method = algorithm()
    samples, statistics = method.credit([scored_group([None] * 4)])
    assert statistics["scores/abstained"].value == 4
    assert not any(method.contributes(sample) for sample in samples)
    assert math.isnan(statistics["reward/mean"].value)


def test_c21_both_deviations_are_named():
    _, statistics = advantages([scored_group([-3] * 4), scored_group([2] * 4, index=1)])
    assert statistics["reward/std_across_batch"].value == pytest.approx(2.5)
    assert statistics["reward/std_within_group"].value == 0
    assert statistics["groups/zero_variance"].value == 1
    assert statistics["groups/all_wrong"].value == statistics["groups/all_right"].value == 0.5


def test_c25_no_second_normalisation_over_the_batch():
    easy, hard = scored_group([1, 1, 1, 0]), scored_group([0, 0, 0, 5], index=1)
    together, _ = advantages([easy, hard])
    apart = advantages([easy])[0] + advantages([hard])[0]
    assert together == apart


def test_c29_all_truncated_and_masked_leaves_nothing():
    method = algorithm(truncated="mask")
    samples, statistics = method.credit([scored_group([1, 0], truncated=[True, True])])
    assert samples == [] and statistics["completion/left_out"].value == 2
    assert all(denominator > 0 for denominator in method.denominators(samples).values())


def test_c30_masked_completions_leave_the_denominator():
    method = algorithm(truncated="mask", aggregate="token", **NO_KL)
    samples, _ = method.credit([scored_group([1, 0], lengths=[4, 6], truncated=[False, True])])
    assert [sample.num_tokens for sample in samples] == [4]
    assert method.denominators(samples) == {"policy": 4.0}
    assert samples[0].streams["advantages"][0] > 0  # the cut one's score still counts in the mean


def test_parts_without_weight_are_told_and_not_paid():
    scores = [Score(value=v, parts={"f": v, "f/x": 5 * v, "f/y": -v}, weights={"f": 1.0, "f/x": 0.0, "f/y": 0.0})
              for v in (1.0, 0.0, 0.5)]  # fmt: skip
    plain = [Score(value=v, parts={"f": v}, weights={"f": 1.0}) for v in (1.0, 0.0, 0.5)]
    a, statistics = advantages([scored_group(scores)], parts="normalised")
    assert a == advantages([scored_group(plain)], parts="normalised")[0] and a[0] > 1
    assert [statistics[f"reward/f/{name}"].value for name in "xy"] == pytest.approx([2.5, -0.5])


def test_normalised_parts_with_equal_sums_still_teach():
    scores = [Score(value=1.0, parts={"f": 1.0, "g": 0.0}), Score(value=1.0, parts={"f": 0.0, "g": 1.0})]
    scores += [Score(value=1.0, parts={"f": 1.0, "g": 0.0})]
    _, summed = advantages([scored_group(scores)])
    a, normalised = advantages([scored_group(scores)], parts="normalised")
    assert summed["groups/zero_variance"].value == 1
    assert normalised["groups/zero_variance"].value == 0
    assert np.abs(a).max() < 1e-12  # here the two parts oppose each other exactly


def test_denominators_count_completions_not_trajectories():
    two = (make_sample([1], [2, 3], 0, sampler_logprobs=[0, 0]), make_sample([1, 9], [4], 0, sampler_logprobs=[0]))
    one = (make_sample([1], [2], 1, sampler_logprobs=[0]),)
    group = Group(prompt=Prompt(index=0, token_ids=(1,), text="p"), scores=(Score(value=1.0), Score(value=0.0)),
                  samples=(two, one), truncated=(False, False))  # fmt: skip
    method = algorithm()
    samples, statistics = method.credit([group])
    assert method.denominators(samples) == {"policy": 2.0, "kl": 2.0}
    assert [sample.streams["completion_tokens"].tolist() for sample in samples] == [[3, 3], [3], [1]]
    assert statistics["completion/length_max"].value == 3


def kl_streams():
    return {"old_logprobs": [[-1.0, -2.0], [-0.5, -0.5]], "reference_logprobs": [[-1.5, -1.0], [-0.5, -1.0]]}


def test_kl_in_the_reward_is_a_return_to_go_after_the_group():
    kl = {"placement": "reward", "estimator": "k1", "coefficient": 0.1}
    samples, statistics = algorithm(scale="none", kl=kl).credit([scored_group([1, 0], streams=kl_streams())])
    # k1 = old - ref: [0.5, -1] and [0, 0.5]
    np.testing.assert_allclose(samples[0].streams["advantages"], [0.5 + 0.05, 0.5 + 0.1], atol=1e-15)
    np.testing.assert_allclose(samples[1].streams["advantages"], [-0.5 - 0.05, -0.5 - 0.05], atol=1e-15)
    assert statistics["kl/penalty"].value == pytest.approx(0.0, abs=1e-12)


def test_kl_in_the_reward_reaches_uniform_groups_unless_dropped():
    kl = {"placement": "reward", "estimator": "abs", "coefficient": 0.1}
    group = scored_group([1, 1], streams=kl_streams())
    samples, _ = algorithm(kl=kl).credit([group])
    np.testing.assert_allclose(samples[0].streams["advantages"], [-0.15, -0.1], atol=1e-15)
    samples, _ = algorithm(kl=kl, uniform_groups="drop").credit([group])
    assert not any(sample.streams["advantages"].any() for sample in samples)


def test_kl_in_the_score_comes_before_the_baseline():
    a, _ = advantages([scored_group([1, 0], streams=kl_streams())], preset="rloo", kl={"coefficient": 0.1})
    assert a == pytest.approx([1.05 - (-0.05), -0.05 - 1.05], abs=1e-12)  # score - beta sum k1, then minus the other's
    a, _ = advantages([scored_group([1, 1], streams=kl_streams())], preset="rloo")
    assert a == [0.0, 0.0]  # uniform by the verifier's own scores


def test_exact_kl_stream_in_the_reward():
    kl = {"placement": "reward", "estimator": "full", "coefficient": 1.0}
    streams = {**kl_streams(), "reference_kl": [[0.25, 0.5], [0, 0]]}
    samples, _ = algorithm(scale="none", kl=kl).credit([scored_group([1, 0], streams=streams)])
    np.testing.assert_allclose(samples[0].streams["advantages"], [0.5 - 0.75, 0.5 - 0.5], atol=1e-15)


def test_reinforce_pp_normalises_returns_over_the_tokens_of_the_batch():
    groups = [scored_group([1, 0], streams=kl_streams()), scored_group([1, 1], index=1, streams=kl_streams())]
    samples, _ = algorithm(preset="reinforce_pp", kl={"coefficient": 0.1}).credit(groups)
    returns = np.array([1.05, 1.1, -0.05, -0.05, 1.05, 1.1, 0.95, 0.95])
    expected = (returns - returns.mean()) / (returns.std() + 1e-4)
    np.testing.assert_allclose(np.concatenate([s.streams["advantages"] for s in samples]), expected, atol=1e-12)


def test_missing_stream_is_named():
    with pytest.raises(ValueError, match="old_logprobs of prompt 0, completion 0"):
        algorithm(kl={"placement": "reward", "estimator": "k1"}).credit([scored_group([1, 0])])


def test_rewards_at_token_positions_are_refused():
    placed = Score(value=1.0, placed=((0, 0.5),))
    with pytest.raises(SettingError, match="rewards at token positions"):
        algorithm().credit([scored_group([placed, 0.0])])


@pytest.mark.parametrize(
    ("settings", "contributes"),
    [
        (NO_KL, False),
        ({}, True),
        ({"uniform_groups": "drop"}, False),
        ({**NO_KL, "entropy_coefficient": 0.01}, True),
        ({**NO_KL, "entropy_coefficient": 0.01, "uniform_groups": "drop"}, False),
        ({"kl": {"coefficient": 0.0}}, False),
    ],
)
def test_uniform_groups_need_a_forward_only_for_kl_and_entropy(settings, contributes):
    method = algorithm(**settings)
    samples, _ = method.credit([scored_group([1, 1])])
    assert [method.contributes(sample) for sample in samples] == [contributes] * 2
    assert method.denominators(samples)["policy"] == 2.0  # they stay in the denominator


def test_settings_that_contradict_each_other():
    with pytest.raises(ValueError, match="a group baseline"):
        algorithm(parts="normalised", baseline="none")
    with pytest.raises(ValueError, match="already exact"):
        algorithm(kl={"estimator": "full", "ratio_weighted": True})


def test_advantages_are_float64_and_inputs_are_unchanged():
    group = scored_group([1, 0])
    samples, _ = algorithm().credit([group])
    assert samples[0].streams["advantages"].dtype == np.float64
    assert "advantages" not in group.samples[0][0].streams


def two_parts(weight):
    """Scores of two parts that differ in size; the second part counts `weight`."""
    said = [{"f": 1.0, "g": 10.0}, {"f": 0.0, "g": 30.0}, {"f": 0.0, "g": 10.0}, {"f": 1.0, "g": 30.0}]
    return [Score(value=p["f"] + weight * p["g"], parts=p, weights={"f": 1.0, "g": weight}) for p in said]


@pytest.mark.parametrize("weight", [0.0, 0.25, 2.0])
def test_normalised_parts_are_weighted_after_they_are_normalised(weight):
    a, _ = advantages([scored_group(two_parts(weight))], parts="normalised")
    f, g = 0.5 / (0.5 + 1e-4), 10 / (10 + 1e-4)
    assert a == pytest.approx([f - weight * g, -f + weight * g, -f - weight * g, f + weight * g], abs=1e-12)


def test_a_part_without_weight_is_shown_and_teaches_nothing():
    scores = [Score(value=1.0, parts={"f": 1.0, "seen": float(i)}, weights={"f": 1.0, "seen": 0.0}) for i in range(4)]
    for settings in ({}, {"parts": "normalised"}):
        a, statistics = advantages([scored_group(scores)], **settings)
        assert a == [0.0] * 4
        assert statistics["groups/zero_variance"].value == 1 and statistics["reward/seen"].value == 1.5


@pytest.mark.parametrize("weight", [-1.0, 0.1])
def test_the_name_of_a_part_changes_nothing(weight):
    of_name = {}
    for name in ("f", "value"):
        scores = [Score(value=weight * said, parts={name: said}, weights={name: weight}) for said in (1.0, 0.0, 0.0)]
        of_name[name], _ = advantages([scored_group(scores)])
    assert of_name["value"] == of_name["f"] and of_name["f"][0] * weight > 0


def test_the_truncation_penalty_is_subtracted():
    a, statistics = advantages(
        [scored_group([2, 2, 1, 0], truncated=[True, False, False, False])],
        truncated="penalise", scale="none",
    )  # fmt: skip
    assert a == [0.0, 1.0, 0.0, -1.0]  # scores 1, 2, 1, 0 about their mean of 1
    assert statistics["reward/truncation"].value == -0.25
    a, _ = advantages([scored_group([1, 1], truncated=[True, False])], truncated="penalise", truncation_penalty=0.5,
                      scale="none")  # fmt: skip
    assert a == [-0.25, 0.25]  # equal scores of the verifier, but one was cut
    a, _ = advantages([scored_group([1, 1], truncated=[True, False])], truncated="penalise", truncation_penalty=0.0)
    assert a == [0.0, 0.0]


def test_the_truncation_penalty_is_a_part_of_its_own_when_parts_are_normalised():
    a, _ = advantages([scored_group([1, 1, 0, 0], truncated=[True, False, True, False])], truncated="penalise",
                      truncation_penalty=2.0, parts="normalised")  # fmt: skip
    n = 0.5 / (0.5 + 1e-4)
    assert a == pytest.approx([n - 2 * n, n + 2 * n, -n - 2 * n, -n + 2 * n], abs=1e-12)


@pytest.mark.parametrize(
    ("rights", "kind"), [([True] * 2, "all_right"), ([False] * 2, "all_wrong"), ([True, False], "all_equal")]
)
def test_right_and_wrong_groups_by_what_the_rubric_says(rights, kind):
    _, statistics = advantages([scored_group([Score(value=0.7, right=right) for right in rights])])
    assert statistics[f"groups/{kind}"].value == 1


def test_a_part_with_the_name_of_another_metric_is_shown_beside_it():
    scores = [Score(value=v, parts={"mean": 7.0, "reward": 2.0}) for v in (0.0, 1.0)]
    _, statistics = advantages([scored_group(scores)])
    shown = {name: statistics[f"reward/{name}"].value for name in ("mean", "mean_part", "reward_part")}
    assert shown == {"mean": 0.5, "mean_part": 7.0, "reward_part": 2.0}

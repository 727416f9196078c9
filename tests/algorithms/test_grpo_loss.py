"""Worked values of the loss and its gradient, executed on a public implementation and re-derived in float64."""

import math

import pytest
import torch

from quatrain.algorithms import Outputs
from quatrain.config import PRESETS
from quatrain.types import Sample
from tests.algorithms.synthetic import algorithm, key, make_sample, total_loss

LP = [[-1, -0.5, -2], [-0.2, -1.5]]  # the third token of the second completion is not trained
OLD = [[-1.2, -0.4, -1], [-0.9, -1.4]]
REF = [[-1.1, -0.6, -1.7], [-0.3, -1]]
A = [1, -0.5]
NO_KL = {"kl": {"placement": "none"}}


def worked_samples(**changes: list[list[float]]) -> list[Sample]:
    result = []
    for i, tokens in enumerate(([5, 6, 7], [8, 9])):
        n = len(tokens)
        streams = {
            "advantages": [A[i]] * n, "completion_tokens": [n] * n, "active": [1] * n,
            "old_logprobs": OLD[i], "reference_logprobs": REF[i], **{k: v[i] for k, v in changes.items()},
        }  # fmt: skip
        result.append(make_sample([1, 2], tokens, i, **streams))
    return result


def run(lp: list[list[float]] = LP, samples: list[Sample] | None = None, dtype=torch.float64, **settings):
    """(loss, gradient over the five trained tokens, statistics)."""
    samples = samples or worked_samples()
    values = [torch.tensor(row, dtype=dtype, requires_grad=True) for row in lp]
    rows = dict(zip(map(key, samples), values, strict=True))

    def forward(batch):
        logprobs_N = torch.cat([rows[key(sample)] for sample in batch.samples])
        return Outputs(logprobs_N=logprobs_N, entropy_N=-logprobs_N, full_kl_N=None)

    loss, statistics = total_loss(algorithm(max_tokens=4, **settings), samples, forward)
    loss.backward()
    return loss.item(), [round(x, 8) for row in values for x in row.grad.tolist()], statistics


def test_clipped_loss_by_aggregate():
    loss, gradient, _ = run(aggregate="sequence", **NO_KL)
    assert loss == pytest.approx(-0.0472957108, abs=1e-9)
    assert gradient == [0, -0.15080624, -0.06131324, 0.25171909, 0.11310468]
    loss, gradient, _ = run(aggregate="token", **NO_KL)
    assert loss == pytest.approx(-0.2026843593, abs=1e-9)
    assert gradient == [0, -0.18096748, -0.07357589, 0.20137527, 0.09048374]
    assert run(aggregate="constant", **NO_KL)[0] == pytest.approx(-0.1266777246, abs=1e-9)
    assert run(aggregate="sequence_sum", **NO_KL)[0] == pytest.approx(5 / 2 * -0.2026843593, abs=1e-9)


def test_sequence_ratio():
    loss, gradient, _ = run(ratio="sequence", **NO_KL)
    assert loss == pytest.approx(-0.0329444084, abs=1e-9)
    # rho_0 = exp(-0.3) is below the clip and A > 0: gradient -rho A / (3 * 2) on each token; rho_1 = exp(0.3), A < 0
    assert gradient == pytest.approx([-math.exp(-0.3) / 6] * 3 + [0.5 * math.exp(0.3) / 4] * 2, abs=1e-8)


def test_sequence_sum_is_one_action_per_sequence():
    loss, gradient, _ = run(preset="rloo", kl={"placement": "none"})
    rho = [math.exp(0.2 - 0.1 - 1), math.exp(0.7 - 0.1)]
    assert loss == pytest.approx((-rho[0] * 1 + rho[1] * 0.5) / 2, abs=1e-12)
    assert gradient == pytest.approx([-rho[0] / 2] * 3 + [0.5 * rho[1] / 2] * 2, abs=1e-8)


def test_k3_in_the_loss():
    assert run(kl={"coefficient": 0.1})[0] == pytest.approx(-0.0424645162, abs=1e-9)


@pytest.mark.parametrize(
    ("estimator", "weighted", "value"),
    [
        ("k1", True, lambda d, rho: -rho * d),
        ("k2", False, lambda d, _: d * d / 2),
        ("abs", False, lambda d, _: abs(d)),
        ("k3", True, lambda d, rho: rho * (math.exp(d) - d - 1)),
    ],
)
def test_estimators_in_the_loss(estimator, weighted, value):
    kl = {"estimator": estimator, "ratio_weighted": weighted, "coefficient": 0.3}
    rows = zip(LP, OLD, REF, strict=True)
    tokens = [[value(r - x, math.exp(x - o)) for x, o, r in zip(lp, old, ref, strict=True)] for lp, old, ref in rows]
    expected = 0.3 * sum(sum(row) / len(row) for row in tokens) / 2
    assert run(kl=kl)[0] - run(**NO_KL)[0] == pytest.approx(expected, abs=1e-12)


def test_ratio_weighted_k3_has_the_gradient_of_the_kl_in_expectation():
    """Over a whole vocabulary, sum_v p_v grad(rho k3)_v is the gradient of the exact KL; plain k3's is not."""
    z = torch.tensor([0.3, -1.0, 0.7], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.1, 0.2, -0.5], dtype=torch.float64).log_softmax(0)
    exact = (z.softmax(0) * (z.log_softmax(0) - q)).sum()
    (wanted,) = torch.autograd.grad(exact, z)
    gradients = {}
    for weighted in (True, False):
        settings = {"kl": {"ratio_weighted": weighted, "coefficient": 1.0}, "aggregate": "token"}
        samples = [make_sample([1], [v], v, advantages=[0], completion_tokens=[1], active=[1],
                               reference_logprobs=[q[v].item()]) for v in range(3)]  # fmt: skip
        log_p = z.log_softmax(0)
        total = torch.zeros((), dtype=torch.float64)
        for v, sample in enumerate(samples):
            outputs = Outputs(logprobs_N=log_p[v : v + 1], entropy_N=torch.zeros(1), full_kl_N=None)
            loss, _ = total_loss(algorithm(**settings), [sample], lambda _, outputs=outputs: outputs)
            total = total + log_p[v].exp().detach() * loss
        gradients[weighted] = torch.autograd.grad(total, z)[0]
    torch.testing.assert_close(gradients[True], wanted, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(gradients[False], wanted, rtol=1e-2)


def test_dual_clip_bounds_the_loss_of_a_bad_token():
    lp = [[-1, -0.5, -2], [0.6, -1.5]]  # ratio e^1.5 = 4.48 with A = -0.5
    plain, capped = run(lp, **NO_KL), run(lp, dual_clip=3.0, **NO_KL)
    assert plain[0] - capped[0] == pytest.approx(0.5 * (math.exp(1.5) - 3) / 4, abs=1e-12)
    assert capped[1][3] == 0 and plain[1][3] > 0
    assert capped[1][4] == plain[1][4]  # a ratio below 1 keeps its gradient
    assert capped[2]["policy/clip_fraction_dual"].value == pytest.approx(1 / 5)


def test_detached_cap():
    loss, gradient, _ = run(preset="cispo")
    weights = [1.2, math.exp(-0.1), math.exp(-1), 1.2, math.exp(-0.1)]
    advantages, logprobs = [1, 1, 1, -0.5, -0.5], [x for row in LP for x in row]
    expected = [-w * a / 5 for w, a in zip(weights, advantages, strict=True)]
    assert loss == pytest.approx(sum(g * x for g, x in zip(expected, logprobs, strict=True)), abs=1e-12)
    assert gradient == pytest.approx(expected, abs=1e-8)


def test_entropy_bonus_has_the_aggregate_of_the_policy():
    plain, bonus = run(**NO_KL)[0], run(entropy_coefficient=0.1, **NO_KL)[0]
    assert bonus - plain == pytest.approx(-0.1 * (3.5 / 3 + 1.7 / 2) / 2, abs=1e-12)


def test_old_logprobs_default_to_the_current_ones():
    samples = [
        make_sample([1], [2, 3], i, advantages=[A[i]] * 2, completion_tokens=[2] * 2, active=[1] * 2) for i in (0, 1)
    ]
    loss, gradient, statistics = run([[-1.0, -2.0], [-0.5, -0.1]], samples, **NO_KL)
    assert loss == pytest.approx(-0.25)
    assert gradient == [-0.25, -0.25, 0.125, 0.125]  # not zero although rho is 1
    assert statistics["policy/ratio_mean"].value == 1


def test_mismatch_weights_by_token_and_sequence():
    sampler = [[-1.2, -1.4, -1], [-0.9, -1.4]]  # the second token was one nat likelier for the trainer
    samples = worked_samples(sampler_logprobs=sampler)
    plain = run(samples=samples, aggregate="token", **NO_KL)
    token = run(samples=samples, aggregate="token", mismatch={"truncate": 2.0}, **NO_KL)
    assert token[1] == pytest.approx([plain[1][0], 2 * plain[1][1], *plain[1][2:]], abs=2e-8)
    assert token[2]["mismatch/truncated"].value == pytest.approx(1 / 5)
    assert token[2]["mismatch/weight_mean"].value == pytest.approx(6 / 5)
    sequence = run(samples=samples, aggregate="token", mismatch={"truncate": 3.0, "level": "sequence"}, **NO_KL)
    assert sequence[1] == pytest.approx([math.e * g for g in plain[1][:3]] + plain[1][3:], abs=1e-7)
    masked = run(samples=samples, aggregate="token", mismatch={"mask_above": 2.0}, **NO_KL)
    assert masked[1] == [plain[1][0], 0, *plain[1][2:]]
    assert masked[2]["mismatch/masked"].value == pytest.approx(1 / 5)
    assert plain[2]["mismatch/kl"].value == pytest.approx((math.e - 2) / 5)


def test_clip_fractions_count_tokens_that_lost_their_gradient():
    _, gradient, statistics = run(aggregate="token", **NO_KL)
    assert statistics["policy/clip_fraction_high"].value == pytest.approx(1 / 5)  # e^0.2 with A > 0
    assert statistics["policy/clip_fraction_low"].value == 0
    assert gradient.count(0) == 1


def test_non_finite_terms_are_not_hidden():
    loss, _, statistics = run([[-1, float("nan"), -2], [-0.2, -1.5]])
    assert math.isnan(loss)
    assert math.isnan(statistics["kl/reference_k3_min"].value)


def test_streams_that_are_needed():
    def needs(**kl):
        return set(algorithm(kl=kl).needs.streams)

    assert needs(placement="none") == set()
    assert needs(placement="loss", estimator="k3") == {"reference_logprobs"}
    assert needs(placement="loss", estimator="full") == set()
    assert algorithm(kl={"estimator": "full"}).needs.full_kl
    assert needs(placement="reward", estimator="k1") == {"reference_logprobs", "old_logprobs"}
    assert needs(placement="score", estimator="full") == {"reference_kl", "old_logprobs"}
    assert needs(placement="loss", estimator="k3", coefficient=0.0) == set()
    with pytest.warns(UserWarning, match="biased in the reward"):
        needs(placement="reward", estimator="k3")


WORKED = {  # derived by hand from the rows above, maximum of 4 tokens, 2 completions, 5 tokens
    "grpo": -0.0472957108 + 0.04 * 0.0483119460,
    "dapo": (-math.exp(0.2) - math.exp(-0.1) - math.exp(-1) + (math.exp(0.7) + math.exp(-0.1)) / 2) / 5,
    "dr_grpo": -0.1266777246,
    "gspo": (-math.exp(-0.3) + math.exp(0.3) / 2) / 2,
    "cispo": (1.2 * 1 + math.exp(-0.1) * 0.5 + math.exp(-1) * 2 - 1.2 * 0.1 - math.exp(-0.1) * 0.75) / 5,
    "rloo": (-math.exp(-0.9) + math.exp(0.6) / 2) / 2,
    "reinforce_pp": -0.2026843593,
    "ppo": -0.2026843593,  # of the policy; its critic has a file of its own
}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_its_worked_value(preset):
    loss, _, _ = run(preset=preset)
    assert loss == pytest.approx(WORKED[preset], abs=1e-9)

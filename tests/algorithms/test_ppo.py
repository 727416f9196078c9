"""PPO: credit and losses worked by hand, and what holds for every critic, layout and order."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from quatrain.algorithms import Group, Outputs
from quatrain.algorithms.value_statistics import value_statistics
from quatrain.batch import build
from quatrain.config import ModelConfig, TrainConfig
from quatrain.models.load import LanguageModel
from quatrain.models.scalar import add_value_head, load_scalar_model
from quatrain.train import learner as learner_module
from quatrain.train.learner import Learner
from quatrain.types import Prompt, Sample, Score
from tests.algorithms.synthetic import direct_forward, key, leaves, make_sample, ppo, random_groups, total_loss
from tests.algorithms.synthetic import with_values as valued
from tests.tiny import save_tiny
from tests.train.synthetic import exact_lm, exact_norms, nothing, weights

V = [0.5, 0.4, 0.3]
NO_KL = {"placement": "none"}
PLAIN = {"kl": NO_KL, "critic": {"whiten": False}}
BUILDERS = pytest.mark.parametrize("builder", ["padded", "packed", "shared"])


def completion(values=V, number=0, after=9.0, group=0, **streams) -> Sample:
    """A completion with the critic's values, and what it said of the state behind the last token."""
    tokens = range(3, 3 + len(values))
    return make_sample([1, 2], tokens, number, group, values=values, next_values=[*values[1:], after],
                       **{name: streams.get(name, [-1.0] * len(values)) for name in
                          ("sampler_logprobs", "old_logprobs", "reference_logprobs")})  # fmt: skip


def group(scores, samples=None, truncated=None, index=0) -> Group:
    """One group; `samples` are single ones or tuples of trajectories."""
    samples = samples or [completion(number=100 * index + number, group=index) for number in range(len(scores))]
    return Group(
        prompt=Prompt(index=index, token_ids=(1, 2), text="p"),
        scores=tuple(one if isinstance(one, Score) else Score(value=one) for one in scores),
        samples=tuple(one if isinstance(one, tuple) else (one,) for one in samples),
        truncated=tuple(truncated or [False] * len(scores)),
    )


def credit(groups, **settings):
    """Advantages of every sample, its returns, and the statistics."""
    samples, statistics = ppo(**{**PLAIN, **settings}).credit(groups)
    return (
        [s.streams["advantages"].tolist() for s in samples],
        [s.streams["returns"].tolist() for s in samples],
        statistics,
    )


# --- credit -----------------------------------------------------------------------------------------------------------


def test_advantages_by_hand():
    """delta = [-.1, -.1, .7]; A_3 = .7, A_2 = -.1 + .95 * .7 = .565, A_1 = -.1 + .95 * .565 = .43675; R = A + V."""
    (advantages,), (returns,), statistics = credit([group([1.0])])
    assert advantages == pytest.approx([0.43675, 0.565, 0.7], abs=1e-15)
    assert returns == pytest.approx([0.93675, 0.965, 1.0], abs=1e-15)
    assert statistics["critic/return_mean"].value == pytest.approx((0.93675 + 0.965 + 1.0) / 3)
    assert statistics["critic/error"].value == pytest.approx((0.43675 + 0.565 + 0.7) / 3)


def test_gamma_and_lambda_by_hand():
    """gamma .9, lambda .5: delta = [.9 * .4 - .5, .9 * .3 - .4, .7] = [-.14, -.13, .7], factor .45."""
    (advantages,), _, _ = credit([group([1.0])], critic={"whiten": False, "gamma": 0.9, "gae_lambda": 0.5})
    assert advantages == pytest.approx([-0.14 + 0.45 * (-0.13 + 0.45 * 0.7), -0.13 + 0.45 * 0.7, 0.7], abs=1e-15)


def test_lambda_one_is_the_return_less_the_value_and_lambda_zero_the_td_error():
    rng = np.random.default_rng(0)
    values, old, reference = rng.normal(size=(3, 6))
    groups = [group([0.7], [completion(values.tolist(), old_logprobs=old, reference_logprobs=reference)])]
    rewards = -0.3 * (old - reference) + np.array([0, 0, 0, 0, 0, 0.7])
    kl = {"placement": "reward", "coefficient": 0.3}
    (advantages,), (returns,), _ = credit(groups, kl=kl, critic={"whiten": False, "gae_lambda": 1.0})
    np.testing.assert_allclose(returns, rewards[::-1].cumsum()[::-1], atol=1e-14)
    np.testing.assert_allclose(advantages, rewards[::-1].cumsum()[::-1] - values, atol=1e-14)
    (advantages,), _, _ = credit(groups, kl=kl, critic={"whiten": False, "gae_lambda": 0.0})
    np.testing.assert_allclose(advantages, rewards + np.append(values[1:], 0) - values, atol=1e-14)


def test_the_penalty_is_paid_at_its_own_token():
    """k1 = old - ref = [.5, -1, 0], beta .1: r = [-.05, .1, 1]; lambda 1: R = [1.05, 1.1, 1]."""
    one = completion(old_logprobs=[-1, -2, -0.5], reference_logprobs=[-1.5, -1, -0.5])
    kl = {"placement": "reward", "coefficient": 0.1}
    (advantages,), (returns,), statistics = credit([group([1.0], [one])], kl=kl,
                                                   critic={"whiten": False, "gae_lambda": 1.0})  # fmt: skip
    assert returns == pytest.approx([1.05, 1.1, 1.0], abs=1e-15)
    assert advantages == pytest.approx([0.55, 0.7, 0.7], abs=1e-15)
    assert statistics["kl/penalty"].value == pytest.approx(0.05 * (1 - 2) / 3)


def test_placed_rewards_stand_at_their_tokens():
    scored = Score(value=1.0, placed=((0, 0.2), (2, 0.3)))
    _, (returns,), _ = credit([group([scored])], critic={"whiten": False, "gae_lambda": 1.0})
    assert returns == pytest.approx([1.5, 1.3, 1.3], abs=1e-15)


@BUILDERS
def test_case_c38_the_score_is_on_the_end_token_with_and_without_padding(builder):
    """With V = 0 and lambda 0 an advantage is the token's own reward; 2 ends each completion, one row is full."""
    ends = [make_sample([7, 7], [*range(10, 10 + n), 2], n, values=[0.0] * (n + 1), next_values=[0.0] * (n + 1),
                        sampler_logprobs=[-1.0] * (n + 1)) for n in (2, 5, 0)]  # fmt: skip
    method = ppo(**{**PLAIN, "critic": {"whiten": False, "gae_lambda": 0.0}})
    samples, _ = method.credit([group([1.0, 1.0, 1.0], ends)])
    batch = build(samples, builder)
    advantages_N = batch.streams["advantages"]
    assert batch.target_N[advantages_N == 1].tolist() == [2, 2, 2]
    assert advantages_N[batch.target_N != 2].tolist() == [0.0] * 7
    if builder == "padded":
        assert (batch.segment_BT == 0).sum(1).tolist() == [3, 0, 5]  # so the middle row has no padding


@pytest.mark.parametrize(
    ("truncated", "returns"),
    [
        ("as_scored", [2.0, 2.0, 2.0]),
        ("penalise", [1.0, 1.0, 1.0]),  # 2 - 1
        ("bootstrap", [9.0, 9.0, 9.0]),  # the value behind the last token in place of the score
    ],
)
def test_a_cut_completion(truncated, returns):
    _, found, _ = credit([group([2.0], truncated=[True])], truncated=truncated,
                         critic={"whiten": False, "gae_lambda": 1.0})  # fmt: skip
    assert found == [pytest.approx(returns, abs=1e-14)]
    _, whole, _ = credit([group([2.0])], truncated=truncated, critic={"whiten": False, "gae_lambda": 1.0})
    assert whole == [pytest.approx([2.0] * 3, abs=1e-14)]  # one that ended is not touched


def test_bootstrapped_advantages_by_hand():
    """Values .5, .4, .3, then 9: delta = [-.1, -.1, 9 - .3], lambda .95."""
    (advantages,), _, _ = credit([group([2.0], truncated=[True])], truncated="bootstrap")
    assert advantages == pytest.approx([-0.1 + 0.95 * (-0.1 + 0.95 * 8.7), -0.1 + 0.95 * 8.7, 8.7], abs=1e-14)


def test_case_c40_a_masked_completion_is_nowhere_and_a_penalty_is_subtracted():
    groups = [group([2.0, 5.0], truncated=[False, True])]
    method = ppo(kl=NO_KL, truncated="mask")
    samples, statistics = method.credit(groups)
    assert [s.completion for s in samples] == [0] and statistics["completion/left_out"].value == 1
    alone, _ = method.credit([group([2.0])])
    assert method.prepare(samples)[0].streams["advantages"].tolist() == (
        method.prepare(alone)[0].streams["advantages"].tolist()
    )
    _, (returns,), _ = credit([group([2.0], truncated=[True])], truncated="penalise", truncation_penalty=1.0,
                              critic={"whiten": False, "gae_lambda": 1.0})  # fmt: skip
    assert returns == pytest.approx([1.0] * 3, abs=1e-14)  # 2 - 1, not -1


def test_scores_are_cut():
    groups = [group([3.0, -3.0, 0.25])]
    _, returns, statistics = credit(groups, reward={"clip": 1.0}, critic={"whiten": False, "gae_lambda": 1.0})
    assert [own[-1] for own in returns] == pytest.approx([1.0, -1.0, 0.25], abs=1e-14)
    assert statistics["reward/max"].value == 3.0  # what the verifier said is shown as it said it


def test_running_normalisation_by_hand():
    """Step 1: 1 and 3, mean 2, deviation 1. Step 2: 6 and 2 beside them, mean 3, variance 3.5."""
    method = ppo(
        reward={"normalise": "running", "clip": 1.5}, **{**PLAIN, "critic": {"whiten": False, "gae_lambda": 1}}
    )

    def last_returns(scores):
        samples, statistics = method.credit([group(scores)])
        return [s.streams["returns"][-1] for s in samples], statistics, samples

    for _ in range(2):  # a step that is broken off after credit is done again, and sees the same
        returns, statistics, samples = last_returns([1.0, 3.0])
        assert returns == pytest.approx([-1.0, 1.0], abs=1e-14)
    assert (statistics["reward/seen_mean"].value, statistics["reward/seen_std"].value) == (2.0, 1.0)
    method.finish_step(samples)
    state = method.state_dict()
    returns, statistics, _ = last_returns([6.0, 2.0])
    assert returns == pytest.approx([1.5, -1 / math.sqrt(3.5)], abs=1e-14)  # 3 / sqrt(3.5) = 1.604 is cut
    assert statistics["reward/seen_std"].value == pytest.approx(math.sqrt(3.5))
    assert method.state_dict() == state  # until the step is finished
    other = ppo(reward={"normalise": "running"}, kl=NO_KL)
    other.load_state_dict(state)
    assert other.state_dict() == state and other.moments.count == 2


def test_an_unjudged_completion_teaches_nothing_and_is_counted_for_the_policy_alone():
    abstained = Score(status="abstained")
    samples, statistics = ppo(**PLAIN).credit([group([1.0, abstained])])
    method = ppo(**PLAIN)
    assert samples[1].streams["advantages"].tolist() == [0.0] * 3 and not samples[1].streams["valued"].any()
    assert [method.contributes(sample) for sample in samples] == [True, False]
    assert [method.critic.contributes(sample) for sample in samples] == [True, False]
    assert method.denominators(samples) == {"policy": 6.0}
    assert method.critic.denominators(samples) == {"value": 3.0}
    assert method.critic.denominators([]) == {"value": 1.0}
    assert statistics["scores/abstained"].value == 1 and statistics["critic/error"].count == 3
    assert not any(name.startswith("groups/") for name in statistics)
    assert ppo(**PLAIN).credit([group([abstained])])[1].keys().isdisjoint({"critic/error", "critic/return_mean"})


def test_trajectories_of_a_completion_are_one_stretch_of_time():
    """The numbers of the single one: the value of the second trajectory follows that of the first."""
    parts = (completion(V[:2], after=7.0), completion(V[2:], after=9.0))
    advantages, returns, _ = credit([group([1.0], [parts])])
    assert advantages[0] == pytest.approx([0.43675, 0.565], abs=1e-15)
    assert advantages[1] == pytest.approx([0.7], abs=1e-15)
    assert returns[0] == pytest.approx([0.93675, 0.965], abs=1e-15)
    (first, last), _, _ = credit([group([1.0], [parts], truncated=[True])], truncated="bootstrap")
    assert last == pytest.approx([8.7], abs=1e-14) and first[1] == pytest.approx(-0.1 + 0.95 * 8.7, abs=1e-14)


# --- whitening --------------------------------------------------------------------------------------------------------


def test_whitening_is_over_every_trained_token_of_the_update():
    method = ppo(kl=NO_KL)
    samples, _ = method.credit([group([1.0, 0.0]), group([3.0], [completion([0.1], 7)], index=1)])
    raw = np.concatenate([sample.streams["advantages"] for sample in samples])
    white = [sample.streams["advantages"] for sample in method.prepare(samples)]
    np.testing.assert_allclose(np.concatenate(white), (raw - raw.mean()) / (raw.std() + 1e-8), atol=1e-14)
    assert [len(own) for own in white] == [3, 3, 1]
    halves = method.prepare(samples[:2])  # an update of its own has its own mean
    assert np.concatenate([sample.streams["advantages"] for sample in halves]).mean() == pytest.approx(0, abs=1e-15)
    before = [sample.streams["returns"] for sample in samples]
    assert all((own.streams["returns"] == old).all() for own, old in zip(method.prepare(samples), before, strict=True))


def test_case_c45_zero_one_and_two_tokens():
    method = ppo(kl=NO_KL)
    assert method.prepare([]) == []
    one, _ = method.credit([group([1.0], [completion([0.25])])])
    assert method.prepare(one)[0].streams["advantages"].tolist() == [0.75]  # kept as it is
    two, _ = method.credit([group([1.0, 0.0], [completion([0.25], number) for number in (0, 1)])])
    white = [float(sample.streams["advantages"][0]) for sample in method.prepare(two)]
    assert white == pytest.approx([1.0, -1.0], abs=1e-7)
    nobody, _ = method.credit([group([Score(status="error"), 1.0], [completion([0.25], n) for n in (0, 1)])])
    assert [float(s.streams["advantages"][0]) for s in method.prepare(nobody)] == [0.0, 0.75]  # one token is judged


# --- losses -----------------------------------------------------------------------------------------------------------


def value_outputs(rows):
    """What a critic says, from one leaf tensor of values per sample."""

    def forward(batch):
        values_N = torch.cat([rows[key(sample)] for sample in batch.samples])
        return Outputs(logprobs_N=values_N[:0], entropy_N=values_N[:0], values_NK=values_N[:, None])

    return forward


def test_value_loss_by_hand():
    """V_old 0, eps .2. V .5, R 1: clipped .2, .5 max(.25, .64); V -.5, R 1: .5 max(2.25, 1.44); V .1: .5 * .81."""
    one = make_sample([1], [2, 3, 4], values=[0.0] * 3, returns=[1.0] * 3, valued=[1.0] * 3)
    other = make_sample([1], [5], 1, values=[0.0], returns=[3.0], valued=[0.0])  # nobody could judge it
    rows = {key(one): torch.tensor([0.5, -0.5, 0.1], dtype=torch.float64, requires_grad=True),
            key(other): torch.tensor([8.0], dtype=torch.float64, requires_grad=True)}  # fmt: skip
    loss, statistics = total_loss(ppo(kl=NO_KL).critic, [one, other], value_outputs(rows))
    assert loss.item() == pytest.approx(0.1 * (0.32 + 1.125 + 0.405) / 3, abs=1e-15)
    loss.backward()
    # the first has moved past the clip towards its return: no gradient; the others 0.1 (V - R) / 3
    torch.testing.assert_close(rows[key(one)].grad, torch.tensor([0.0, -0.05, -0.03], dtype=torch.float64))
    assert rows[key(other)].grad.tolist() == [0.0]
    assert statistics["critic/clip_fraction"].value == pytest.approx(2 / 3)
    assert statistics["critic/value_mean"].value == pytest.approx(0.1 / 3)  # of judged tokens
    plain = ppo(kl=NO_KL, critic={"value_clip": None, "value_coefficient": 1.0}).critic
    loss, statistics = total_loss(plain, [one, other], value_outputs(rows))
    assert loss.item() == pytest.approx(0.5 * (0.25 + 2.25 + 0.81) / 3, abs=1e-15)
    assert "critic/clip_fraction" not in statistics


@pytest.mark.parametrize("clip", [0.2, None])
def test_value_gradient_against_finite_differences(clip):
    objective = ppo(critic={"value_clip": clip, "value_coefficient": 0.7}).critic
    samples, _ = ppo(kl={"target": None}).credit(valued(random_groups()))
    rows = leaves(samples, "values", shift=0.3)
    total_loss(objective, samples, value_outputs(rows))[0].backward()
    for sample in samples[::2]:
        for position in range(sample.num_tokens):
            found = []
            for h in (1e-6, -1e-6):
                moved = {name: row.detach().clone() for name, row in rows.items()}
                moved[key(sample)][position] += h
                found.append(total_loss(objective, samples, value_outputs(moved))[0].item())
            numeric = (found[0] - found[1]) / 2e-6
            assert rows[key(sample)].grad[position].item() == pytest.approx(numeric, rel=1e-6, abs=1e-9)


def test_what_says_that_the_reference_is_stale():
    """logp [-1, -2, -3], ref [-1.5, -6, -3]: k3 = e^-.5 + .5 - 1, e^-4 + 4 - 1, 0; below .01 is e^-6 alone."""
    method = ppo(kl={"placement": "reward"})
    one = make_sample([1], [2, 3, 4], advantages=[1.0] * 3, completion_tokens=[3.0] * 3, active=[1.0] * 3,
                      reference_logprobs=[-1.5, -6.0, -3.0])  # fmt: skip

    def found(logprobs):
        rows = {key(one): torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)}
        return total_loss(method, [one], direct_forward(rows))[1]

    k3 = [math.exp(-0.5) - 0.5, math.exp(-4) + 3, 0]
    share = found([-1.0, -2.0, -3.0])["kl/improbable_share"]
    assert share.value == pytest.approx(k3[1] / sum(k3), abs=1e-14) and share.count == pytest.approx(sum(k3))
    assert "kl/improbable_share" not in found([-1.5, -6.0, -3.0])  # no KL, of which nothing is a share


def test_a_value_head_adds_its_term_to_the_policys():
    groups = valued(random_groups())
    shared, separate = (ppo(critic={"model": model, "value_coefficient": 0.5}) for model in ("shared", "separate"))
    samples = shared.prepare(shared.credit(groups)[0])
    assert shared.critic is None and separate.critic is not None and shared.needs.values and not separate.needs.values
    forward = direct_forward(leaves(samples))
    together, statistics = total_loss(shared, samples, forward)
    policy, _ = total_loss(separate, samples, forward)
    value, own = total_loss(separate.critic, samples, forward)
    assert together.item() == pytest.approx(policy.item() + value.item(), abs=1e-14) and value.item() > 0.01
    assert own.items() <= statistics.items()
    assert shared.denominators(samples) == {
        "policy": sum(s.num_tokens for s in samples), "value": sum(s.num_tokens for s in samples),
    }  # fmt: skip
    silent = [s.with_streams(advantages=np.zeros(s.num_tokens)) for s in samples]
    assert all(shared.contributes(s) for s in silent) and not any(separate.contributes(s) for s in silent)


def test_critics_loss_does_not_depend_on_the_split_or_layout():
    objective = ppo().critic
    samples, _ = ppo(kl={"target": None}).credit(valued(random_groups()))
    rows = leaves(samples, "values", shift=0.3)
    wanted, statistics = total_loss(objective, samples, value_outputs(rows))
    for builder in ("padded", "packed", "shared"):
        for parts in (1, 3, len(samples)):
            micro = [samples[::-1][start::parts] for start in range(parts)]
            found, merged = total_loss(objective, samples, value_outputs(rows), builder, micro)
            assert found.item() == pytest.approx(wanted.item(), rel=1e-12)
            assert {k: m.value for k, m in merged.items()} == pytest.approx({k: m.value for k, m in statistics.items()})


# --- through models ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("critic") / "tiny", seed=3)


def critic_of(folder) -> LanguageModel:
    """A critic in float64 whose values differ from token to token."""
    lm = load_scalar_model(ModelConfig(path=str(folder), dtype="float64", device="cpu"), ["value"], fresh_head=True)
    exact_norms(lm.module)
    lm.causal.score.weight.data *= 20
    return lm


def actor_critic(folder, shared=False, **settings) -> Learner:
    """A learner in float64 with a reference; seeds fixed, so that two are equal."""
    policy, reference = exact_lm(), exact_lm(4)
    defaults = {"learning_rate": 1e-2, "tokens_per_micro_batch": 4096}
    config = TrainConfig.model_validate({**defaults, **settings})
    if not shared:
        return Learner(policy, config, 0.8, reference, critic=critic_of(folder), critic_rate=3e-3)
    add_value_head(policy)
    torch.nn.init.normal_(policy.causal.value_head.weight, generator=torch.Generator().manual_seed(0))
    policy.causal.double()
    return Learner(policy, config, 0.8, reference)


def sampled(learner, method, order=1) -> list[Sample]:
    """A step's samples up to credit: uneven lengths, a two-trajectory completion, an unjudged and a cut one."""
    groups = [replace(g, samples=tuple(tuple(replace(s, streams={"sampler_logprobs": s.streams["sampler_logprobs"]})
                                             for s in own) for own in g.samples)) for g in random_groups()]  # fmt: skip
    groups[0] = replace(groups[0], scores=(Score(status="error", error="away"), *groups[0].scores[1:]))
    flat = [sample for g in groups for own in g.samples for sample in own][::order]
    streams = method.needs.streams | {"old_logprobs"}
    found = {key(s): s for s in learner.annotate(flat, streams, nothing)}
    groups = [replace(g, samples=tuple(tuple(found[key(s)] for s in own) for own in g.samples)) for g in groups]
    return method.credit(groups[::order])[0]


@BUILDERS
@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
def test_a_value_is_read_before_its_token(folder, builder, shared):
    """Other tokens from t on leave V_0 ... V_t as they are and change V_{t+1}; the last is behind the last token."""
    learner = actor_critic(folder, shared, builder=builder)
    changed, t = [11, 12, 13, 14, 15, 16], 2
    other = [*changed[:t], 30, *changed[t + 1 :]]
    one, two, short = (make_sample([5, 6, 7], tokens, number) for number, tokens in enumerate((changed, other, [20])))
    one, two, short = learner.annotate([one, two, short], frozenset({"values"}), nothing)
    gap = np.abs(one.streams["values"] - two.streams["values"])
    assert gap[: t + 1].max() < 1e-12 and gap[t + 1 :].min() > 1e-6
    for sample in (one, two, short):
        np.testing.assert_array_equal(sample.streams["values"][1:], sample.streams["next_values"][:-1])
        lm = learner.policy if shared else learner.roles["critic"].lm
        head = lm.causal.value_head if shared else lm.causal.score
        with torch.no_grad():
            states = lm.causal.get_decoder()(torch.tensor(sample.token_ids)[None]).last_hidden_state[0]
            wanted_T = head(states)[:, 0].numpy()
        np.testing.assert_allclose(sample.streams["values"], wanted_T[2:-1], atol=1e-12)
        assert sample.streams["next_values"][-1] == pytest.approx(wanted_T[-1], abs=1e-12)


@BUILDERS
def test_case_c43_positions_that_are_not_trained_never_enter(folder, builder, monkeypatch):
    """The critic says 0 before each trained token and 40 before every other one: [.81, .9, 1], not [4.05, 4.5, 5]."""
    learner = actor_critic(folder, builder=builder)
    tool = Sample(token_ids=np.array([1, 2, 3, 4, 9, 9, 5, 9]), trained=np.array([0, 0, 1, 1, 0, 0, 1, 0], dtype=bool),
                  group=0, completion=0, prompt_length=2, streams={"sampler_logprobs": [-1.0] * 3})  # fmt: skip
    asked = []

    def values(_lm, batch):
        asked.append(batch.target_N.tolist())
        return torch.where((batch.target_N >= 3) & (batch.target_N <= 5), 0.0, 40.0).double()[:, None]

    monkeypatch.setattr(learner_module, "token_values", values)
    (sample,) = learner.annotate([tool], frozenset({"values"}), nothing)
    assert asked == [[3, 4, 5, 0]] and sample.streams["next_values"].tolist() == [0, 0, 40]
    method = ppo(kl=NO_KL, critic={"gae_lambda": 0.9, "whiten": False})
    samples, _ = method.credit([group([1.0], [sample])])
    assert samples[0].streams["advantages"].tolist() == pytest.approx([0.81, 0.9, 1.0], abs=1e-15)
    white = ppo(kl=NO_KL, critic={"gae_lambda": 0.9}).prepare(samples)[0].streams["advantages"]
    assert len(white) == 3 and white.mean() == pytest.approx(0, abs=1e-14)
    batch = build(samples, builder)
    assert batch.target_N.tolist() == [3, 4, 5] and len(batch.streams["returns"]) == 3


@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
def test_an_update_does_not_depend_on_layout_split_padding_or_order(folder, shared):
    """Values, credit, whitening, both losses, both optimizers: the weights after two updates, to 1e-10 in float64."""
    settings = {"critic": {"model": "shared" if shared else "separate"}, "entropy_coefficient": 0.01,
                "kl": {"coefficient": 0.1, "target": None}}  # fmt: skip
    found = []
    for builder, tokens, order in (("padded", 4096, 1), ("packed", 30, -1), ("shared", 30, 1), ("shared", 4096, -1)):
        method = ppo(**settings)
        learner = actor_critic(folder, shared, builder=builder, tokens_per_micro_batch=tokens)
        samples = sampled(learner, method, order)
        for step in (1, 2):
            for objective in [method, *([method.critic] if method.critic else [])]:
                metrics = learner.update(samples, objective, step, nothing)
        passes = metrics["train/micro_batches" if shared else "critic/micro_batches"].value
        assert passes == 1 if tokens > 30 else passes >= 3
        found.append(torch.cat([weights(role.lm) for role in learner.roles.values()]))
    start = torch.cat([weights(role.lm) for role in actor_critic(folder, shared).roles.values()])
    assert (found[0] - start).abs().max() > 1e-3
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-8, atol=1e-10)


def test_without_advantage_the_actor_stays_bit_for_bit_while_the_critic_learns(folder):
    """One-token completions of one value and one score: whitened, their advantages are exactly 0."""
    method, learner = ppo(kl=NO_KL), actor_critic(folder)
    samples, _ = method.credit([group([1.0, 1.0], [completion([0.25], number) for number in (0, 1)])])
    actor, critic = weights(learner.policy), weights(learner.roles["critic"].lm)
    assert learner.update(samples, method, 1, nothing).keys() == {"train/updates_skipped"}
    first = learner.update(samples, method.critic, 1, nothing)
    assert torch.equal(weights(learner.policy), actor)
    assert not torch.equal(weights(learner.roles["critic"].lm), critic)
    assert first["critic/learning_rate"].value == 3e-3  # a rate of its own
    for step in range(2, 30):
        last = learner.update(samples, method.critic, step, nothing)
    assert last["critic/loss"].value < first["critic/loss"].value / 4


def test_what_the_critic_explains_by_hand():
    """R = [1, 1, 3, 3], V = [1, 1, 2, 3]: errors 0, 0, 1, 0, Var(R) = 1, Var(R - V) = 3 / 16."""
    samples = [completion([1.0, 1.0], 0), completion([2.0, 3.0], 1)]
    samples = [s.with_streams(returns=r, valued=[1.0, 1.0]) for s, r in zip(samples, ([1, 1], [3, 3]), strict=True)]
    found = value_statistics(samples)
    assert found["critic/explained_variance"].value == pytest.approx(1 - 3 / 16)
    assert found["critic/error"].value == 0.25 and found["critic/error/from_0"].count == 4
    long = completion([0.0] * 70).with_streams(returns=[1.0] * 64 + [3.0] * 6, valued=[1.0] * 70)
    found = value_statistics([long])
    assert (found["critic/error/from_0"].value, found["critic/error/from_64"].value) == (1.0, 3.0)
    flat = value_statistics([s.with_streams(returns=[1.0, 1.0]) for s in samples])
    assert "critic/explained_variance" not in flat  # nothing to explain

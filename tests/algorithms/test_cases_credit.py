"""Listed cases on groups, masks and penalties."""

import numpy as np
import pytest
import torch

from quatrain.algorithms import Group
from quatrain.types import Prompt, Sample, Score
from tests.algorithms.synthetic import algorithm, direct_forward, key, leaves, make_sample, scored_group, total_loss

NO_KL = {"kl": {"placement": "none"}}


def with_tool(number: int, cut: bool) -> Sample:
    """Prompt, completion, a tool's output, completion: only what the model wrote is trained."""
    trained = [False] * 2 + [True] * 3 + [False] * 4 + [True] * (1 if cut else 2)
    return Sample(token_ids=np.arange(3, 3 + len(trained)), trained=np.array(trained), group=0, completion=number,
                  prompt_length=2, streams={"sampler_logprobs": [-1.0] * sum(trained)})  # fmt: skip


def test_case_c31_a_cut_sample_with_tool_tokens_trains_none_of_them() -> None:
    samples = [with_tool(0, cut=True), with_tool(1, cut=False)]
    group = Group(prompt=Prompt(index=0, token_ids=(3, 4), text="p"), scores=(Score(value=1.0), Score(value=0.0)),
                  samples=tuple((sample,) for sample in samples), truncated=(True, False))  # fmt: skip
    kept, statistics = algorithm(truncated="mask", **NO_KL).credit([group])
    assert [sample.completion for sample in kept] == [1]  # nothing at all of the cut one
    assert statistics["completion/length_mean"].value == 4.5  # 4 and 5 tokens of the model, none of the tool
    assert statistics["completion/left_out"].value == 1
    assert kept[0].trained.tolist() == samples[1].trained.tolist() and kept[0].num_tokens == 5


def test_case_c40_a_penalty_is_subtracted_from_the_score() -> None:
    """2 - 1 = 1, not -1: the cut completion equals one that scored 1."""
    group = scored_group([2.0, 1.0, 0.0], truncated=[True, False, False])
    samples, statistics = algorithm(truncated="penalise", truncation_penalty=1.0, **NO_KL).credit([group])
    first, second, third = (sample.streams["advantages"][0] for sample in samples)
    assert first == second > 0 > third
    assert statistics["reward/mean"].value == pytest.approx(2 / 3)
    assert statistics["reward/truncation"].value == pytest.approx(-1 / 3)


def test_case_c67_gradients_do_not_depend_on_how_samples_are_spread() -> None:
    """Lengths 2 and 10, together or apart (over micro-batches; over processes is not in this version)."""
    group = scored_group([1.0, 0.0], lengths=[2, 10])
    for aggregate in ("token", "sequence", "constant"):
        method = algorithm(aggregate=aggregate, max_tokens=10, **NO_KL)
        samples, _ = method.credit([group])
        found = []
        for micro_batches in (None, [[samples[0]], [samples[1]]]):
            logprobs = leaves(samples, "sampler_logprobs")
            loss, _ = total_loss(method, samples, direct_forward(logprobs), micro_batches=micro_batches)
            loss.backward()
            found.append(torch.cat([logprobs[key(sample)].grad for sample in samples]))
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-14)
        assert found[0].abs().sum() > 0.1


def test_case_c23_trajectories_of_one_prompt_are_one_group() -> None:
    """Four completions, one of them in two trajectories: one group, whose advantages sum to zero over completions."""
    samples = [(make_sample([1, 2], [3, 4], number=i, sampler_logprobs=[-1.0] * 2),) for i in range(3)]
    samples.append(tuple(make_sample([1, 2], [3, t], number=3, sampler_logprobs=[-1.0] * 2) for t in (5, 6)))
    scores = tuple(Score(value=value) for value in (1.0, 0.0, 0.0, 0.0))
    group = Group(prompt=Prompt(index=0, token_ids=(1, 2), text="p"), scores=scores, samples=tuple(samples),
                  truncated=(False,) * 4)  # fmt: skip
    kept, statistics = algorithm(**NO_KL).credit([group])
    by_completion = {sample.completion: sample.streams["advantages"][0] for sample in kept}
    assert len(by_completion) == 4 and sum(by_completion.values()) == pytest.approx(0, abs=1e-12)
    assert by_completion[0] > 0 and statistics["groups/zero_variance"].count == 1  # groups

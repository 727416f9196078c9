"""The readable recipe and the library give the same losses and gradients on the same samples."""

import pytest
import torch
from torch import nn

from quatrain.algorithms import Group, Outputs
from quatrain.ops.logprobs import entropy, gather_logprobs
from quatrain.types import Prompt, Score
from recipes import grpo_from_scratch as scratch
from tests.algorithms.synthetic import algorithm, make_sample, total_loss

VOCABULARY, TEMPERATURE = 11, 0.7
PROMPTS = [[3, 1, 4], [1, 5]]
COMPLETIONS = [[[9, 2], [6, 5, 3, 5], [8]], [[9, 7, 9], [3], [2, 3, 8]]]
REWARDS = [[1.0, 0.0, 0.25], [0.1, 0.9, 0.1]]


class LookupModel(nn.Module):
    """Logits that depend on the token read and on its position: enough to catch an index off by one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.token = nn.Parameter(torch.randn(VOCABULARY, VOCABULARY, generator=generator, dtype=torch.float64))
        self.position = nn.Parameter(torch.randn(16, VOCABULARY, generator=generator, dtype=torch.float64))

    def forward(self, tokens, positions):
        return self.token[tokens] + self.position[positions]


def by_hand(model, old, reference):
    """The recipe's loss over all completions in one padded batch, with ragged prompts handled row by row."""
    rows, width = [], max(len(c) for group in COMPLETIONS for c in group)
    for prompt, group in zip(PROMPTS, COMPLETIONS, strict=True):
        for completion in group:
            padded = completion + [0] * (width - len(completion))
            read = torch.tensor([(prompt + padded)[len(prompt) - 1 : -1]])
            places = torch.arange(len(prompt) - 1, len(prompt) - 1 + width)[None]
            target = torch.tensor([padded])
            rows.append([scratch.token_logprobs(m(read, places), target, TEMPERATURE) for m in (model, old, reference)])
    logp_BT, old_BT, ref_BT = (torch.cat(column) for column in zip(*rows, strict=True))
    trained_BT = torch.tensor([[t < len(c) for t in range(width)] for group in COMPLETIONS for c in group])
    advantages_B = torch.cat([scratch.group_advantages(rewards) for rewards in REWARDS])
    return scratch.grpo_loss(logp_BT, old_BT.detach(), ref_BT.detach(), advantages_B, trained_BT)


def by_library(model, old, reference, builder):
    method = algorithm()
    groups = []
    for g, (prompt, completions, rewards) in enumerate(zip(PROMPTS, COMPLETIONS, REWARDS, strict=True)):
        samples = [make_sample(prompt, c, 10 * g + i, g) for i, c in enumerate(completions)]
        groups.append(
            Group(
                prompt=Prompt(index=g, token_ids=tuple(prompt), text="p"),
                scores=tuple(Score(value=reward) for reward in rewards),
                samples=tuple((with_logprobs(sample, old, reference),) for sample in samples),
                truncated=(False,) * len(rewards),
            )
        )

    def forward(batch):
        logits_NV = model(batch.input_ids, batch.position_ids).flatten(0, 1)[batch.logit_index_N]
        return Outputs(logprobs_N=gather_logprobs(logits_NV, batch.target_N, TEMPERATURE), entropy_N=entropy(logits_NV))

    return total_loss(method, method.credit(groups)[0], forward, builder)[0]


def with_logprobs(sample, old, reference):
    tokens, positions = torch.tensor(sample.token_ids)[None], torch.arange(len(sample.token_ids))[None]
    streams = {}
    for name, model in (("old_logprobs", old), ("reference_logprobs", reference), ("sampler_logprobs", old)):
        with torch.no_grad():
            logits = model(tokens, positions)[0, sample.prompt_length - 1 : -1]
        streams[name] = gather_logprobs(logits, tokens[0, sample.prompt_length :], TEMPERATURE).numpy()
    return sample.with_streams(**streams)


@pytest.mark.parametrize("builder", ["padded", "packed", "shared"])
@pytest.mark.parametrize("on_policy", [True, False])
def test_same_loss_and_gradient(builder, on_policy):
    model, reference = LookupModel(0), LookupModel(2)
    old = LookupModel(0)
    if not on_policy:
        with torch.no_grad():
            old.token += 0.3 * LookupModel(3).token
    wanted = torch.autograd.grad(loss := by_hand(model, old, reference), list(model.parameters()))
    got = torch.autograd.grad(ours := by_library(model, old, reference, builder), list(model.parameters()))
    torch.testing.assert_close(ours, loss, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-13)
    assert max(gradient.abs().max() for gradient in wanted) > 1e-2


def test_equal_fractions_are_no_signal_there_either():
    assert (scratch.group_advantages([0.1] * 8) == 0).all()


def test_the_demonstration_learns(capsys):
    history = scratch.train(steps=30)
    assert sum(history[-5:]) / 5 > sum(history[:5]) / 5 + 0.15
    assert "reward" in capsys.readouterr().out

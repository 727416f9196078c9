"""TRL 1.x as a peer: its loss on the same logprobs, where the definition is the same.

Called as a function with a stand-in for the trainer, so that no trainer, dataset or model is built. The same: grpo, the
token aggregate (its dapo), dr_grpo, sequence ratios, dual clip (its delta), cispo, k3 with and without the ratio.

Different, with the reason:
- std: TRL divides by G - 1 (our `std: sample`); the paper's population deviation is our default.
- Uniform groups: TRL has no guard, so eight rewards of 0.1 in float32 leave a signal; ours are exactly 0.
- k3: TRL's is exp(d) - d - 1 without saturation, which overflows beyond d = 88 in float32; equal below d = 10.
- cispo: TRL caps rho at `epsilon_high` itself; we cap at 1 + clip_high, so TRL's 1.2 is our 0.2.
- Ratio-weighted KL with a sequence ratio: TRL weights with the sequence's ratio, we with the token's (the token's
  ratio is what makes the gradient of a sum over tokens right).
- Entropy bonus: TRL's is the token mean whatever the loss type; ours has the aggregate of the policy term.
- Truncated completions: TRL's grpo divides by all rows, masked ones too; ours leave the denominator.
- Denominators: TRL averages over micro-batches for grpo; ours count the whole update.
"""

import collections
from types import SimpleNamespace

import pytest
import torch

from quatrain.algorithms import Outputs
from tests.algorithms.synthetic import algorithm, key, make_sample, total_loss

LENGTHS, WIDTH = [4, 1, 3, 2], 4
ADVANTAGES = [1.0, -0.5, 0.0, -2.0]


def draws(seed: int, spread: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(len(LENGTHS), WIDTH, generator=generator, dtype=torch.float64)


LOGP = -1.5 + draws(0, 0.5)
OLD = LOGP + draws(1, 0.6)
REF = LOGP + draws(2, 0.6)


def peer(loss_type, level="token", clip=(0.2, 0.2), beta=0.0, delta=None, weighted=False):
    from trl.trainer.grpo_trainer import GRPOTrainer

    logps = LOGP.clone().requires_grad_()
    mask = torch.tensor([[t < n for t in range(WIDTH)] for n in LENGTHS]).long()
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logps, torch.ones_like(logps), None),
        args=SimpleNamespace(delta=delta, use_bias_correction_kl=weighted, steps_per_generation=1),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x),
        model=SimpleNamespace(training=True), current_gradient_accumulation_steps=1, loss_type=loss_type, beta=beta,
        importance_sampling_level=level, epsilon_low=clip[0], epsilon_high=clip[1], max_completion_length=6,
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, use_vllm=False,
        _entropy_bonus_enabled=False, _metrics={"train": collections.defaultdict(list)},
    )  # fmt: skip
    inputs = {
        "prompt_ids": torch.ones(4, 2).long(), "prompt_mask": torch.ones(4, 2).long(), "completion_mask": mask,
        "completion_ids": torch.ones(4, WIDTH).long(), "advantages": torch.tensor(ADVANTAGES).double(),
        "old_per_token_logps": OLD, "ref_per_token_logps": REF, "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    return loss.item(), torch.cat([logps.grad[i, :n] for i, n in enumerate(LENGTHS)])


def ours(**settings):
    samples = [
        make_sample([1, 2], range(3, 3 + n), i, advantages=[ADVANTAGES[i]] * n, completion_tokens=[n] * n,
                    active=[1] * n, old_logprobs=OLD[i, :n].numpy(), reference_logprobs=REF[i, :n].numpy())
        for i, n in enumerate(LENGTHS)
    ]  # fmt: skip
    rows = {key(s): LOGP[i, : LENGTHS[i]].clone().requires_grad_() for i, s in enumerate(samples)}

    def forward(batch):
        logprobs_N = torch.cat([rows[key(sample)] for sample in batch.samples])
        return Outputs(logprobs_N=logprobs_N, entropy_N=-logprobs_N)

    loss, _ = total_loss(
        algorithm(max_tokens=6, **settings), samples, forward, micro_batches=[samples[:1], samples[1:]]
    )
    loss.backward()
    return loss.item(), torch.cat([row.grad for row in rows.values()])


NONE = {"placement": "none"}


@pytest.mark.parametrize(
    ("theirs", "settings"),
    [
        ({"loss_type": "grpo"}, {"kl": NONE}),
        ({"loss_type": "grpo", "beta": 0.04}, {}),
        ({"loss_type": "grpo", "beta": 0.04, "weighted": True}, {"kl": {"ratio_weighted": True}}),
        ({"loss_type": "dapo", "clip": (0.2, 0.28)}, {"aggregate": "token", "clip_high": 0.28, "kl": NONE}),
        ({"loss_type": "bnpo", "beta": 0.1}, {"aggregate": "token", "kl": {"coefficient": 0.1}}),
        ({"loss_type": "dr_grpo"}, {"preset": "dr_grpo"}),
        ({"loss_type": "grpo", "level": "sequence", "clip": (3e-4, 4e-4)}, {"preset": "gspo"}),
        ({"loss_type": "grpo", "level": "sequence", "beta": 0.1}, {"ratio": "sequence", "kl": {"coefficient": 0.1}}),
        ({"loss_type": "grpo", "delta": 1.5}, {"dual_clip": 1.5, "kl": NONE}),
        ({"loss_type": "cispo", "clip": (0.2, 1.2)}, {"preset": "cispo"}),
    ],
)
def test_same_loss_and_gradient(theirs, settings):
    wanted, got = peer(**theirs), ours(**settings)
    assert got[0] == pytest.approx(wanted[0], rel=1e-12)
    torch.testing.assert_close(got[1], wanted[1], rtol=1e-10, atol=1e-14)
    assert wanted[1].abs().max() > 1e-3

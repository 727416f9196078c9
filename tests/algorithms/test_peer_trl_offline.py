"""TRL 1.x as a peer of the offline methods: its loss and gradient on the same log-probabilities or scores.

Its loss functions are called with stand-ins for trainer and model. The same: DPO (plain, robust), IPO of averages, KTO,
ORPO, SimPO (and conservative DPO, which TRL has as CPO without a reference), reward models with margin and centering.

Different, with the reason:
- IPO: TRL divides by the tokens always (our `average_logprobs: true`), by its mask, which counts the token after the
  prompt as we do; equation 17 has sums, which are our default.
- Conservative DPO: TRL 1.x has no loss of that name; the same formula stands in its CPO loss.
- ORPO: TRL's odds ratio is in float32 whatever the model, and infinite at probability 1; ours goes on along its
  tangent. Its NLL is over the tokens of the batch, of prompt and answer; ours over each chosen answer, then pairs.
- SimPO: the same gamma; TRL's `cpo_alpha` adds an NLL, which is 0 in SimPO.
- KTO: z0 is a mean over the micro-batch and ranks there, over the whole update here; the mismatched answer is the
  neighbour's there, which can be to the same prompt.
- Reward model: one head, no ties, no soft labels and no rankings there.
- Means: TRL averages over micro-batches; ours count the whole update.
"""

import collections
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from quatrain.algorithms import Outputs
from quatrain.batch import build
from tests.algorithms.offline import group, make, numbered

PAIRS, WIDTH = 3, 5
LENGTHS = [3, 1, 5, 2, 4, 2]  # chosen, rejected, chosen, ...


def draws(seed, spread):
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(2 * PAIRS, WIDTH, generator=generator, dtype=torch.float64)


LOGP = -1.5 + draws(0, 0.5)
REF = LOGP + draws(1, 0.6)
MASK = torch.tensor([[t < n for t in range(WIDTH)] for n in LENGTHS])
SIDES = torch.tensor([*range(0, 2 * PAIRS, 2), *range(1, 2 * PAIRS, 2)])  # TRL puts all chosen ones first
LABELS = [True, False, False, True, True, False]
Z0 = 0.4


def trainer(**settings):
    accelerator = SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x)
    defaults = {
        "aux_loss_enabled": False,
        "_metrics": {"train": collections.defaultdict(list)},
        "_tp_size": 1,
        "_total_train_tokens": 0,
        "model": SimpleNamespace(training=True),
        "precompute_ref_logps": True,
    }
    return SimpleNamespace(accelerator=accelerator, **(defaults | settings))


def model_of(logps):
    """A model that answers with log-probabilities; padded places are 0, as TRL's fused head leaves them."""
    zero = torch.zeros_like(logps)
    outputs = SimpleNamespace(
        log_probs=logps * MASK_OF[len(logps)], entropy=zero, mean_logits=zero, is_top1=zero.bool()
    )
    return lambda **_: outputs


MASK_OF = {2 * PAIRS: MASK}


def padded(order):
    """Inputs with a prompt of one token, so that the answers' log-probabilities are the whole row."""
    mask = torch.cat([torch.zeros(len(order), 1), MASK[order].double()], 1).long()
    ids = torch.ones(len(order), WIDTH + 1).long()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "completion_mask": mask}


def sums(values):
    return (values * MASK).sum(1)


def peer_dpo(loss_type, beta=0.1, smoothing=0.0):
    from trl.trainer.dpo_trainer import DPOTrainer

    logps = LOGP.clone().requires_grad_()
    own = trainer(ld_alpha=None, f_divergence_type="reverse_kl", loss_types=[loss_type], loss_weights=[1.0], beta=beta,
                  label_smoothing=smoothing, use_weighting=False)  # fmt: skip
    ref = sums(REF)[SIDES]
    inputs = {**padded(SIDES), "ref_chosen_logps": ref[:PAIRS], "ref_rejected_logps": ref[PAIRS:]}
    zero = torch.zeros(2 * PAIRS, WIDTH)
    ordered = SimpleNamespace(log_probs=(logps * MASK)[SIDES], entropy=zero, mean_logits=zero, is_top1=zero.bool())
    loss = DPOTrainer._compute_loss(own, lambda **_: ordered, inputs, False)
    return done(loss, logps)


def done(loss, leaf):
    loss.backward()
    return float(loss.detach()), leaf.grad


def peer_kto(beta=0.1, good=1.0, bad=1.0):
    from trl.trainer.kto_trainer import KTOTrainer

    logps = LOGP.clone().requires_grad_()
    labels = torch.tensor(LABELS)
    own = trainer(calculate_KL=True, loss_type="kto", beta=beta, desirable_weight=good, undesirable_weight=bad,
                  _compute_kl_logps=lambda *_: torch.full((2 * PAIRS,), Z0, dtype=torch.float64))  # fmt: skip
    inputs = {**padded(torch.arange(2 * PAIRS)), "label": labels, "ref_logps": sums(REF),
              "ref_KL_logps": torch.zeros(2 * PAIRS).double()}  # fmt: skip
    return done(KTOTrainer._compute_loss(own, model_of(logps), inputs, False), logps)


def peer_orpo(weight=0.1):
    from trl.experimental.orpo.orpo_trainer import ORPOTrainer

    logps = LOGP.clone().requires_grad_()
    means = sums(logps) / MASK.sum(1)
    losses, *_ = ORPOTrainer.odds_ratio_loss(trainer(beta=weight), means[0::2], means[1::2])
    return done(-means[0::2].mean() - losses.mean(), logps)


def peer_cpo(loss_type, values, beta, gamma=0.0, smoothing=0.0):
    """CPO's loss of what is compared: mean log-probabilities in SimPO; with log-ratios it is conservative DPO."""
    from trl.experimental.cpo.cpo_trainer import CPOTrainer

    logps = LOGP.clone().requires_grad_()
    compared = values(logps)
    own = trainer(alpha=0.0, loss_type=loss_type, beta=beta, simpo_gamma=gamma, label_smoothing=smoothing)
    losses, *_ = CPOTrainer.cpo_loss(own, compared[0::2], compared[1::2])
    return done(losses.mean(), logps)


def ours(settings):
    """The same log-probabilities through the algorithm; the gradient in TRL's shape."""
    method = make(**settings)
    samples = []
    for row, length in enumerate(LENGTHS):
        number = row if method.data == "labelled" else row // 2
        (sample,) = group(number, [1], [range(3 + row, 3 + row + length)], rank=[row % 2], desirable=[LABELS[row]],
                          z0=[Z0])  # fmt: skip
        samples.append(sample.with_streams(reference_logprobs=REF[row, :length].numpy()))
    samples = numbered(samples)
    logps = LOGP.clone().requires_grad_()
    logprobs_N = torch.cat([logps[row, :length] for row, length in enumerate(LENGTHS)])
    found = method.loss(build(samples), Outputs(logprobs_N=logprobs_N, entropy_N=torch.zeros(len(logprobs_N))))
    return done(sum(term / method.denominators(samples)[name] for name, term in found.terms.items()), logps)


CASES = {
    "dpo": (lambda: peer_dpo("sigmoid"), {"name": "dpo"}),
    "robust": (
        lambda: peer_dpo("robust", 0.3, 0.2),
        {"name": "dpo", "beta": 0.3, "label_smoothing": 0.2, "robust": True},
    ),
    "ipo of averages": (lambda: peer_dpo("ipo"), {"name": "ipo", "average_logprobs": True}),
    "conservative": (
        lambda: peer_cpo("sigmoid", lambda logps: sums(logps) - sums(REF), 0.1, smoothing=0.1),
        {"name": "dpo", "label_smoothing": 0.1},
    ),
    "ipo": (lambda: peer_cpo("ipo", lambda logps: sums(logps) - sums(REF), 0.1), {"name": "ipo"}),
    "simpo": (lambda: peer_cpo("simpo", lambda logps: sums(logps) / MASK.sum(1), 2.0, 1.0), {"name": "simpo"}),
    "kto": (
        lambda: peer_kto(0.2, 0.8, 1.3),
        {"name": "kto", "beta": 0.2, "desirable_weight": 0.8, "undesirable_weight": 1.3},
    ),
    "orpo": (peer_orpo, {"name": "orpo"}),
}


@pytest.mark.parametrize(("theirs", "settings"), CASES.values(), ids=CASES)
def test_same_loss_and_gradient(theirs, settings):
    """1e-10 in float64; ORPO and the constants that TRL keeps in float32 to 1e-6."""
    (loss, gradient), (own, own_gradient) = theirs(), ours(settings)
    loose = settings["name"] == "orpo"
    assert own == pytest.approx(loss, rel=1e-6 if loose else 1e-10)
    torch.testing.assert_close(own_gradient, gradient, rtol=1e-5 if loose else 1e-9, atol=1e-7 if loose else 1e-12)
    assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize("margin", [False, True])
@pytest.mark.parametrize("centering", [None, 0.01])
def test_same_reward_loss_and_gradient(margin, centering):
    from trl.trainer.reward_trainer import RewardTrainer

    scores = draws(3, 1.0)[:, 0]
    margins = torch.tensor([0.1, 0.3, 0.0], dtype=torch.float64)
    theirs = scores.clone().requires_grad_()
    inputs = {"attention_mask": torch.ones(1), **({"margin": margins} if margin else {})}
    own = trainer(args=SimpleNamespace(center_rewards_coefficient=centering))
    outputs = SimpleNamespace(logits=theirs[SIDES][:, None])
    loss, gradient = done(RewardTrainer.compute_loss(own, lambda **_: outputs, inputs), theirs)
    samples = []
    for n in range(PAIRS):
        samples += group(n, [1], [[3], [4]], scores=True, rank=(0, 1), margin=[margin * float(margins[n])] * 2)
    samples = numbered(samples)
    method, mine = make(name="reward_model", centering=centering or 0.0), scores.clone().requires_grad_()
    empty = torch.zeros(0)
    found = method.loss(build(samples), Outputs(logprobs_N=empty, entropy_N=empty, values_NK=mine[:, None]))
    got = done(sum(term / method.denominators(samples)[name] for name, term in found.terms.items()), mine)
    assert got[0] == pytest.approx(loss, rel=1e-10)
    torch.testing.assert_close(got[1], gradient, rtol=1e-10, atol=1e-14)


def test_where_trl_s_orpo_is_infinite_ours_is_not():
    from trl.experimental.orpo.orpo_trainer import ORPOTrainer

    sure = torch.zeros(1, dtype=torch.float64)
    theirs, *_ = ORPOTrainer.odds_ratio_loss(trainer(beta=0.1), sure, sure - 1)
    assert not math.isfinite(float(theirs)) or float(theirs) == 0.0
    method = make(name="orpo")
    samples = numbered(group(0, [1], [[3], [4]], rank=(0, 1)))
    logprobs_N = torch.tensor([0.0, -1.0], dtype=torch.float64, requires_grad=True)
    found = method.loss(build(samples), Outputs(logprobs_N=logprobs_N, entropy_N=torch.zeros(2)))
    sum(found.terms.values()).backward()
    assert logprobs_N.grad is not None and np.isfinite(logprobs_N.grad.numpy()).all()
    assert all(math.isfinite(float(term.detach())) for term in found.terms.values())

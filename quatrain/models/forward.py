"""One forward for every layout: hidden states of all positions, logits only where a trained token needs them."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from quatrain.batch import Outputs, TrainBatch
from quatrain.errors import SettingError
from quatrain.models.load import LanguageModel
from quatrain.models.lora import POLICY, REFERENCE
from quatrain.ops.logprobs import entropy, full_kl, gather_logprobs

LOGITS_BYTES = 1 << 30  # logits of one chunk, in float32; a larger batch recomputes its logits in the backward pass


def attention_argument(lm: LanguageModel, allowed_B1TS: Tensor) -> Tensor:
    """The mask in the form that the model's attention reads: boolean for SDPA, additive for eager."""
    if lm.causal.config._attn_implementation == "sdpa":
        return allowed_B1TS
    zero = torch.zeros((), dtype=lm.autocast or lm.causal.dtype, device=allowed_B1TS.device)
    return zero.masked_fill(~allowed_B1TS, torch.finfo(zero.dtype).min)


def hidden_states(lm: LanguageModel, batch: TrainBatch) -> Tensor:
    """Hidden states before the LM head, (B, T, hidden)."""
    mask = None if batch.plain else attention_argument(lm, batch.attention_mask().to(lm.device))
    decoder = lm.causal.get_decoder()
    result = decoder(
        input_ids=batch.input_ids.to(lm.device),
        position_ids=batch.position_ids.to(lm.device),
        attention_mask=mask,
        use_cache=False,
    )
    return result.last_hidden_state


def head(lm: LanguageModel, hidden: Tensor) -> Tensor:
    """Logits of hidden states, with the scaling that some families apply after the matrix product."""
    causal = lm.causal
    logits = causal.get_output_embeddings()(hidden)
    config = causal.config.get_text_config()
    if getattr(config, "logit_scale", None):  # Cohere
        logits = logits * config.logit_scale
    if getattr(config, "logits_scaling", None):  # Granite
        logits = logits / config.logits_scaling
    softcap = getattr(config, "final_logit_softcapping", None)  # Gemma
    return torch.tanh(logits / softcap) * softcap if softcap else logits


def scalar_head(lm: LanguageModel, hidden: Tensor) -> Tensor:
    """What the score head (or the policy's value head) says of hidden states, (..., K), in float32 at least."""
    layer = lm.causal.score if hasattr(lm.causal, "score") else lm.causal.value_head
    dtype = torch.promote_types(layer.weight.dtype, torch.float32)
    bias = None if layer.bias is None else layer.bias.to(dtype)
    with torch.autocast(lm.device.type, enabled=False):
        return linear(hidden.to(dtype), layer.weight.to(dtype), bias)


def token_outputs(
    lm: LanguageModel,
    batch: TrainBatch,
    temperature: float,
    *,
    entropy_gradient: bool = False,
    values: bool = False,
    reference_hidden_N: Tensor | None = None,
    reference: LanguageModel | None = None,
) -> Outputs:
    """Log-probability and exact entropy of every trained token at `temperature` (nats, at least float32).

    With `reference_hidden_N` (hidden states of the reference at the same positions) also the exact KL to it, through
    the head of `reference` (None: the model's own, which an adapter leaves as it is). With `values` also what the
    value head on this model says at these positions.
    The N tokens are taken in chunks of LOGITS_BYTES; several chunks are recomputed in the backward pass, so that the
    logits of all tokens never exist at once.
    """
    hidden_N = predicting_hidden(lm, batch)
    target_N = batch.target_N.to(lm.device)
    chunk = max(1, LOGITS_BYTES // (4 * lm.vocabulary))

    def piece(hidden_n: Tensor, target_n: Tensor, other_n: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        with lm.arithmetic():
            logits = head(lm, hidden_n)
        logprobs = gather_logprobs(logits, target_n, temperature)
        with contextlib.nullcontext() if entropy_gradient else torch.no_grad():
            spread = entropy(logits if entropy_gradient else logits.detach(), temperature)
        if other_n is None:
            return logprobs, spread, torch.zeros_like(spread)
        with torch.no_grad(), lm.arithmetic():
            other = head(lm if reference is None else reference, other_n)
        return logprobs, spread, full_kl(logits, other, temperature)

    pieces = []
    for start in range(0, len(target_N), chunk):
        part = slice(start, start + chunk)
        other = None if reference_hidden_N is None else reference_hidden_N[part]
        if len(target_N) > chunk and torch.is_grad_enabled():
            pieces.append(checkpoint(piece, hidden_N[part], target_N[part], other, use_reentrant=False))
        else:
            pieces.append(piece(hidden_N[part], target_N[part], other))
    logprobs_N, entropy_N, kl_N = (torch.cat(columns) for columns in zip(*pieces, strict=True))
    return Outputs(
        logprobs_N=logprobs_N,
        entropy_N=entropy_N,
        full_kl_N=kl_N if reference_hidden_N is not None else None,
        values_NK=scalar_head(lm, hidden_N) if values else None,
    )


def trained_hidden(lm: LanguageModel, batch: TrainBatch) -> Tensor:
    """Hidden states at the positions that predict the N trained tokens, without gradient."""
    with torch.no_grad():
        return predicting_hidden(lm, batch)


def predicting_hidden(lm: LanguageModel, batch: TrainBatch) -> Tensor:
    """Hidden states at the positions that predict the N trained tokens, (N, hidden).

    `index_select`, because the gradient of `hidden[index]` adds the completions that share a prompt position in an
    order that differs from run to run.
    """
    with lm.arithmetic():
        hidden = hidden_states(lm, batch)
    return hidden.reshape(-1, hidden.shape[-1]).index_select(0, batch.logit_index_N.to(hidden.device))


def check_forward(lm: LanguageModel) -> None:
    """Hold this forward (packed, own head) to the model's own logits once; raises SettingError when they differ.

    A family with a head or a mask of its own would otherwise train on wrong probabilities without a word.
    """
    from quatrain.batch import build
    from quatrain.types import Sample

    last = min(lm.vocabulary, len(lm.tokenizer)) - 1
    ids = [[min(last, token) for token in row] for row in ([11, 12, 13, 14, 15], [11, 12, 13, 21, 22, 23])]
    samples = [
        Sample(token_ids=row, trained=[False] * 3 + [True] * (len(row) - 3), group=0, completion=index, prompt_length=3)  # type: ignore[arg-type]
        for index, row in enumerate(ids)
    ]
    batch = build(samples, "shared")
    with torch.no_grad(), lm.arithmetic():
        ours = token_outputs(lm, batch, 1.0).logprobs_N
        theirs = []
        for row in ids:
            logits = lm.causal(input_ids=torch.tensor([row], device=lm.device), use_cache=False).logits[0]
            logprobs = logits.float().log_softmax(-1) if logits.dtype is not torch.float64 else logits.log_softmax(-1)
            theirs.append(logprobs[torch.arange(2, len(row) - 1), torch.tensor(row[3:])])
    gap = float((ours - torch.cat(theirs)).abs().max())
    tolerance = 0.1 if torch.bfloat16 in (lm.autocast, lm.causal.dtype) else 1e-3
    if not gap <= tolerance:
        raise SettingError("model.path", lm.path, "a model whose packed forward equals its own",
                           f"log-probabilities differ by {gap:.3g}; this architecture is not supported")  # fmt: skip


@contextlib.contextmanager
def reference_model(lm: LanguageModel, frozen_copy: LanguageModel | None) -> Iterator[LanguageModel]:
    """The reference: a frozen copy, the adapter that training began with, or the base with its adapter off."""
    if frozen_copy is not None:
        yield frozen_copy
    elif REFERENCE in lm.module.peft_config:
        lm.module.set_adapter(REFERENCE, inference_mode=True)
        try:
            yield lm
        finally:
            lm.module.set_adapter(POLICY)
    else:
        with lm.module.disable_adapter():
            yield lm

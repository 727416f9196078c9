"""Models that learn, by role: forward passes over samples, and updates that do not depend on how they are split."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from quatrain.algorithms import Algorithm, Needs
from quatrain.batch import Outputs, TrainBatch, build, split_by_tokens
from quatrain.config import KLConfig, TrainConfig
from quatrain.errors import NonFiniteError
from quatrain.models.forward import reference_model, token_outputs, trained_hidden
from quatrain.models.load import LanguageModel
from quatrain.models.lora import add_reference
from quatrain.telemetry.metrics import Last, Mean, Metric, Sum, merge_metrics
from quatrain.train.optimizer import build_optimizer, learning_rate
from quatrain.train.reference import move_reference
from quatrain.types import Sample

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Role:
    """A trainable model with its optimizer (`policy`; later `critic`)."""

    lm: LanguageModel
    optimizer: torch.optim.AdamW

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        """Trainable parameters by name."""
        return {name: p for name, p in self.lm.module.named_parameters() if p.requires_grad}


class Learner:
    """Keeps the trainable roles and the reference, and runs every forward of training at one temperature.

    `reference` is a frozen copy (None: adapters tell it apart); `moving` says how it moves (None: it stays).
    """

    def __init__(
        self,
        policy: LanguageModel,
        config: TrainConfig,
        temperature: float,
        reference: LanguageModel | None = None,
        moving: KLConfig | None = None,
    ) -> None:
        if moving is not None and reference is None:
            add_reference(policy.module)
        self.roles = {"policy": Role(policy, build_optimizer(policy.module, config))}
        self.config = config
        self.temperature = temperature
        self.reference = reference
        self.moving = moving

    @property
    def policy(self) -> LanguageModel:
        """The policy's model."""
        return self.roles["policy"].lm

    def annotate(self, samples: Sequence[Sample], streams: frozenset[str], progress: Progress) -> list[Sample]:
        """Samples with the per-token streams that need a forward: old_logprobs, reference_logprobs, reference_kl."""
        if not streams:
            return list(samples)
        positions = {id(sample): index for index, sample in enumerate(samples)}
        done: list[Sample | None] = [None] * len(samples)
        micro_batches = self._split(samples)
        for number, micro in enumerate(micro_batches, 1):
            values = self._streams(build(micro, self.config.builder), streams)
            counts = [sample.num_tokens for sample in micro]
            pieces = {name: value.double().cpu().split(counts) for name, value in values.items()}
            for row, sample in enumerate(micro):
                new = {name: piece[row].numpy() for name, piece in pieces.items()}
                done[positions[id(sample)]] = sample.with_streams(**new)
            progress(number, len(micro_batches))
        return [sample for sample in done if sample is not None]

    @torch.no_grad()
    def _streams(self, batch: TrainBatch, names: frozenset[str]) -> dict[str, torch.Tensor]:
        found = {}
        hidden_N = None
        if "reference_kl" in names:
            with reference_model(self.policy, self.reference) as reference:
                hidden_N = trained_hidden(reference, batch)
        if names & {"old_logprobs", "reference_kl"}:
            outputs = token_outputs(self.policy, batch, self.temperature,
                                    reference_hidden_N=hidden_N, reference=self.reference)  # fmt: skip
            found["old_logprobs"] = outputs.logprobs_N
            if outputs.full_kl_N is not None:
                found["reference_kl"] = outputs.full_kl_N
        if "reference_logprobs" in names:
            with reference_model(self.policy, self.reference) as reference:
                found["reference_logprobs"] = token_outputs(reference, batch, self.temperature).logprobs_N
        return {name: value for name, value in found.items() if name in names}

    def update(
        self, samples: Sequence[Sample], algorithm: Algorithm, step: int, progress: Progress
    ) -> dict[str, Metric]:
        """One optimizer step on all `samples`; loss and gradient do not depend on the micro-batches.

        Denominators are counted over all samples first. Without a term that has a gradient no step is taken, since
        Adam would move the weights by its moments alone. Raises NonFiniteError before any weight moves.
        """
        role = self.roles["policy"]
        denominators = algorithm.denominators(samples)
        active = [sample for sample in samples if algorithm.contributes(sample)]
        if not active:
            return {"train/updates_skipped": Sum(1)}
        role.optimizer.zero_grad(set_to_none=True)
        micro_batches = self._split(active)
        total, statistics = 0.0, []
        for number, micro in enumerate(micro_batches, 1):
            batch = build(micro, self.config.builder)
            sums = algorithm.loss(_to(batch, role.lm.device), self._outputs(batch, algorithm.needs))
            loss = torch.stack([term / denominators[name] for name, term in sums.terms.items()]).sum()
            value = float(loss.detach())
            if not math.isfinite(value):
                raise self._non_finite("loss", value, micro)
            loss.backward()
            total += value
            statistics.append(sums.statistics)
            progress(number, len(micro_batches))
        norm = float(nn.utils.clip_grad_norm_(role.trainable.values(), self.config.max_grad_norm))
        if not math.isfinite(norm):
            raise self._non_finite("gradient norm", norm, active)
        rate = learning_rate(self.config, step)
        for group in role.optimizer.param_groups:
            group["lr"] = rate
        role.optimizer.step()
        role.optimizer.zero_grad(set_to_none=True)
        readings: dict[str, Metric] = {
            "train/loss": Mean(total, 1),
            "train/grad_norm": Mean(norm, 1),
            "train/learning_rate": Last(rate),
            "train/updates": Sum(1),
            "train/micro_batches": Sum(len(micro_batches)),
            "train/tokens": Sum(sum(sample.num_tokens for sample in active)),
        }
        return merge_metrics(*statistics, readings)

    def move_reference(self, step: int) -> dict[str, Metric]:
        """After the last update of `step`, the reference follows the policy where `moving` says so."""
        return {} if self.moving is None else move_reference(self.policy, self.reference, self.moving, step)

    def _outputs(self, batch: TrainBatch, needs: Needs) -> Outputs:
        hidden_N = None
        if needs.full_kl:
            with reference_model(self.policy, self.reference) as reference:
                hidden_N = trained_hidden(reference, batch)
        return token_outputs(self.policy, batch, self.temperature, entropy_gradient=needs.entropy,
                             reference_hidden_N=hidden_N, reference=self.reference)  # fmt: skip

    def _split(self, samples: Sequence[Sample]) -> list[list[Sample]]:
        return split_by_tokens(samples, self.config.tokens_per_micro_batch, self.config.builder)

    def _non_finite(self, what: str, value: float, samples: Sequence[Sample]) -> NonFiniteError:
        self.roles["policy"].optimizer.zero_grad(set_to_none=True)
        names = [sample.label or f"completion {sample.completion}" for sample in samples]
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        error = NonFiniteError(
            f"{what}: got {value}, need a finite number; no weight was changed; micro-batch: {shown}"
        )
        error.samples = tuple(samples)
        return error


def _to(batch: TrainBatch, device: torch.device) -> TrainBatch:
    """The vectors that a loss reads, on the model's device."""
    if device.type == "cpu":
        return batch
    streams = {name: stream.to(device) for name, stream in batch.streams.items()}
    return replace(batch, streams=streams, sample_N=batch.sample_N.to(device))

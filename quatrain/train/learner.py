"""Models that learn, by role: forward passes over samples, and updates that do not depend on how they are split."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from quatrain.algorithms import LossSums, Objective
from quatrain.batch import Outputs, TrainBatch, build, split_by_tokens
from quatrain.config import KLConfig, OfflineTrainConfig, TrainConfig
from quatrain.errors import NonFiniteError
from quatrain.models.forward import reference_model, token_outputs, trained_hidden
from quatrain.models.load import LanguageModel
from quatrain.models.lora import add_reference
from quatrain.models.scalar import token_values
from quatrain.telemetry.metrics import Last, Mean, Metric, Sum, merge_metrics
from quatrain.train.optimizer import build_optimizer, learning_rate
from quatrain.train.reference import move_reference
from quatrain.types import Sample

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Role:
    """A trainable model with its optimizer and its rate at full height."""

    lm: LanguageModel
    optimizer: torch.optim.AdamW
    rate: float

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        """Trainable parameters by name."""
        return {name: p for name, p in self.lm.module.named_parameters() if p.requires_grad}


class Learner:
    """Keeps the trainable roles and the reference, and runs every forward of training at one temperature.

    The first role is `name` (`policy`, or `reward` for a reward model); a `critic` may stand beside a policy.
    `reference` is a frozen copy (None: adapters tell it apart); `moving` says how it moves (None: it stays).
    """

    def __init__(
        self,
        lm: LanguageModel,
        config: TrainConfig | OfflineTrainConfig,
        temperature: float,
        reference: LanguageModel | None = None,
        moving: KLConfig | None = None,
        *,
        name: str = "policy",
        critic: LanguageModel | None = None,
        critic_rate: float | None = None,
    ) -> None:
        if moving is not None and reference is None:
            add_reference(lm.module)
        self.config, self.temperature = config, temperature
        self.reference, self.moving = reference, moving
        self.main = name
        self.roles = {name: self._role(lm, config.learning_rate)}
        if critic is not None:
            self.roles["critic"] = self._role(critic, critic_rate or config.learning_rate)

    def _role(self, lm: LanguageModel, rate: float) -> Role:
        return Role(lm, build_optimizer(lm.module, self.config), rate)

    @property
    def policy(self) -> LanguageModel:
        """The policy's model."""
        return self.roles["policy"].lm

    def annotate(self, samples: Sequence[Sample], streams: frozenset[str], progress: Progress) -> list[Sample]:
        """Samples with the per-token streams that need a forward.

        old_logprobs, reference_logprobs, reference_kl (exact, over the vocabulary); values and next_values: V_t, read
        at the position that predicts token t, and V_{t+1}, of the last token that of the state behind it.
        """
        if "values" in streams:
            samples = self._with_values(samples, progress)
        streams = streams & {"old_logprobs", "reference_logprobs", "reference_kl"}
        if not streams:
            return list(samples)
        positions = {id(sample): index for index, sample in enumerate(samples)}
        done: list[Sample | None] = [None] * len(samples)
        micro_batches = self._split(samples)
        with self._reference_at_hand(any(name.startswith("reference") for name in streams)):
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
    def _with_values(self, samples: Sequence[Sample], progress: Progress) -> list[Sample]:
        """One trained token more is asked for behind each sample: its value is that of the state after the last."""
        role = "critic" if "critic" in self.roles else "policy"
        longer = [
            replace(one, token_ids=np.append(one.token_ids, 0), trained=np.append(one.trained, True), streams={})
            for one in samples
        ]
        places = {id(sample): index for index, sample in enumerate(longer)}
        done = list(samples)
        micro_batches = self._split(longer)
        for number, micro in enumerate(micro_batches, 1):
            values_N = token_values(self.roles[role].lm, build(micro, self.config.builder))[:, 0].double().cpu()
            for sample, own in zip(micro, values_N.split([sample.num_tokens for sample in micro]), strict=True):
                index, values = places[id(sample)], own.numpy()
                done[index] = samples[index].with_streams(values=values[:-1], next_values=values[1:])
            progress(number, len(micro_batches))
        return done

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
        self, samples: Sequence[Sample], objective: Objective, step: int, progress: Progress
    ) -> dict[str, Metric]:
        """One optimizer step of the objective's role on all `samples`; it does not depend on the micro-batches.

        Statistics and denominators are taken over all samples first. Without a term that has a gradient no step is
        taken, since Adam would move the weights by its moments alone. Raises NonFiniteError before any weight moves.
        """
        role = self.roles[objective.role]
        prefix = "train" if objective.role == self.main else objective.role
        samples = objective.prepare(samples)
        active = [sample for sample in samples if objective.contributes(sample)]
        if not active:
            return {f"{prefix}/updates_skipped": Sum(1)}
        role.optimizer.zero_grad(set_to_none=True)
        micro_batches = self._split(active, objective.needs.whole_groups)
        denominators = objective.denominators(samples)
        total, statistics = 0.0, []
        with self._reference_at_hand(objective.needs.full_kl):
            for number, micro in enumerate(micro_batches, 1):
                sums = self._sums(micro, objective)
                loss = divided(sums, denominators)
                value = float(loss.detach())
                if not math.isfinite(value):
                    raise self._non_finite(role, "loss", value, micro)
                loss.backward()
                total += value
                statistics.append(sums.statistics)
                progress(number, len(micro_batches))
        norm = float(nn.utils.clip_grad_norm_(role.trainable.values(), self.config.max_grad_norm))
        if not math.isfinite(norm):
            raise self._non_finite(role, "gradient norm", norm, active)
        rate = learning_rate(self.config, step, role.rate)
        for group in role.optimizer.param_groups:
            group["lr"] = rate
        role.optimizer.step()
        role.optimizer.zero_grad(set_to_none=True)
        readings: dict[str, Metric] = {
            f"{prefix}/loss": Mean(total, 1),
            f"{prefix}/grad_norm": Mean(norm, 1),
            f"{prefix}/learning_rate": Last(rate),
            f"{prefix}/updates": Sum(1),
            f"{prefix}/micro_batches": Sum(len(micro_batches)),
            f"{prefix}/tokens": Sum(sum(sample.num_tokens for sample in active)),
        }
        return merge_metrics(*statistics, readings)

    @torch.no_grad()
    def measure(self, samples: Sequence[Sample], objective: Objective, progress: Progress) -> dict[str, Metric]:
        """The loss of an update and its statistics, without the update."""
        samples = objective.prepare(samples)
        micro_batches = self._split(samples, objective.needs.whole_groups)
        denominators = objective.denominators(samples)
        total, statistics = 0.0, []
        for number, micro in enumerate(micro_batches, 1):
            sums = self._sums(micro, objective)
            total += float(divided(sums, denominators))
            statistics.append(sums.statistics)
            progress(number, len(micro_batches))
        return merge_metrics(*statistics, {"loss": Mean(total, 1)})

    def _reference_at_hand(self, wanted: bool) -> contextlib.AbstractContextManager[None]:
        """An offloaded reference is on its device inside, once for all micro-batches."""
        return self.reference.at_hand() if wanted and self.reference is not None else contextlib.nullcontext()

    def _sums(self, micro: Sequence[Sample], objective: Objective) -> LossSums:
        batch = build(micro, self.config.builder)
        lm = self.roles[objective.role].lm
        return objective.loss(_to(batch, lm.device), self._outputs(batch, objective))

    def move_reference(self, step: int) -> dict[str, Metric]:
        """After the last update of `step`, the reference follows the policy where `moving` says so."""
        return {} if self.moving is None else move_reference(self.policy, self.reference, self.moving, step)

    def _outputs(self, batch: TrainBatch, objective: Objective) -> Outputs:
        needs, hidden_N = objective.needs, None
        if objective.role != "policy":
            values_NK = token_values(self.roles[objective.role].lm, batch)
            return Outputs(logprobs_N=values_NK.new_zeros(0), entropy_N=values_NK.new_zeros(0), values_NK=values_NK)
        if needs.full_kl:
            with reference_model(self.policy, self.reference) as reference:
                hidden_N = trained_hidden(reference, batch)
        return token_outputs(self.policy, batch, self.temperature, entropy_gradient=needs.entropy, values=needs.values,
                             reference_hidden_N=hidden_N, reference=self.reference)  # fmt: skip

    def _split(self, samples: Sequence[Sample], whole_groups: bool = False) -> list[list[Sample]]:
        return split_by_tokens(samples, self.config.tokens_per_micro_batch, self.config.builder, whole_groups)

    def _non_finite(self, role: Role, what: str, value: float, samples: Sequence[Sample]) -> NonFiniteError:
        role.optimizer.zero_grad(set_to_none=True)
        names = [sample.label or f"completion {sample.completion}" for sample in samples]
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        error = NonFiniteError(
            f"{what}: got {value}, need a finite number; no weight was changed; micro-batch: {shown}"
        )
        error.samples = tuple(samples)
        return error


def divided(sums: LossSums, denominators: Mapping[str, float]) -> torch.Tensor:
    """The loss: every term by its denominator of the whole update."""
    return torch.stack([term / denominators[name] for name, term in sums.terms.items()]).sum()


def _to(batch: TrainBatch, device: torch.device) -> TrainBatch:
    """The vectors that a loss reads, on the model's device."""
    if device.type == "cpu":
        return batch
    streams = {name: stream.to(device) for name, stream in batch.streams.items()}
    return replace(batch, streams=streams, sample_N=batch.sample_N.to(device))

"""GRPO in one file with torch alone: padded tensors, every formula in full, and a model that learns in seconds.

    python recipes/grpo_from_scratch.py

Shao et al. 2024, DeepSeekMath, arXiv:2402.03300. For every prompt G completions are drawn and scored:

    A_i  = (r_i - mean_G r) / (std_G r + 1e-4)        exactly 0 when the scores of the group do not differ
    rho  = exp(logp - old)                            probability of a token now over that when it was drawn
    clip = min(rho A, clip(rho, 1 - eps, 1 + eps) A)
    k3   = exp(ref - logp) - (ref - logp) - 1         how far the policy has moved from the reference, >= 0
    loss = mean over completions of [ mean over its tokens of ( -clip + beta k3 ) ]

Suffixes: B completions (rows), T tokens of a completion, G completions of one prompt, V vocabulary.
The library must give the same losses and gradients on the same samples; `tests/` holds it to that.
"""

import copy
import time

import torch
from torch import Tensor, nn


def group_advantages(rewards_G: list[float], epsilon: float = 1e-4) -> Tensor:
    """How much better than its group each completion is, in units of the group's population deviation (float64)."""
    rewards = torch.tensor(rewards_G, dtype=torch.float64)
    deviation = rewards.std(correction=0)
    if rewards.max() - rewards.min() < 1e-8 or deviation < 1e-8:
        return torch.zeros_like(rewards)  # rounding must not become a signal
    return (rewards - rewards.mean()) / (deviation + epsilon)


def token_logprobs(logits_BTV: Tensor, tokens_BT: Tensor, temperature: float = 1.0) -> Tensor:
    """log_softmax(logits / temperature) at the tokens that were drawn."""
    return (logits_BTV / temperature).log_softmax(dim=-1).gather(-1, tokens_BT[..., None])[..., 0]


def grpo_loss(
    logp_BT: Tensor,
    old_BT: Tensor,
    ref_BT: Tensor,
    advantages_B: Tensor,
    trained_BT: Tensor,
    clip: float = 0.2,
    beta: float = 0.04,
) -> Tensor:
    """The scalar to minimise. `trained_BT` is True on the tokens that the model wrote, False on padding."""
    rho_BT = torch.exp(logp_BT - old_BT)
    advantages_B1 = advantages_B.to(logp_BT)[:, None]
    surrogate_BT = torch.minimum(rho_BT * advantages_B1, rho_BT.clamp(1 - clip, 1 + clip) * advantages_B1)
    d_BT = (ref_BT - logp_BT).clamp(max=10)  # cut before the exponential: after it the gradient would be 0 * inf
    k3_BT = torch.expm1(d_BT) - d_BT
    loss_BT = torch.where(trained_BT, -surrogate_BT + beta * k3_BT, 0)
    return (loss_BT.sum(dim=1) / trained_BT.sum(dim=1)).mean()


# --- a demonstration: after the prompt digit d, write d + 1, d + 2, ... (modulo 10) and stop after four digits ---

DIGITS, END, VOCABULARY, MAX_TOKENS = 10, 10, 11, 6


class TinyPolicy(nn.Module):
    """A recurrent language model over ten digits and an end token."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """logits_BTV: position t predicts token t + 1."""
        return self.head(self.recurrent(self.embed(tokens_BT))[0])


def reward(prompt: int, completion: list[int]) -> float:
    """Share of the first four digits that count upwards, less 0.1 when the answer does not end after them."""
    wanted = [(prompt + step) % 10 for step in range(1, 5)]
    right = sum(a == b for a, b in zip(wanted, completion, strict=False))
    return right / 4 - 0.1 * (len(completion) != 5 or completion[-1] != END)


@torch.no_grad()
def sample(policy: TinyPolicy, prompts_B1: Tensor) -> tuple[Tensor, Tensor]:
    """Completions drawn token by token, and which of their tokens were written (the end token included)."""
    tokens, written, running_B = prompts_B1, [], torch.ones(len(prompts_B1), dtype=torch.bool)
    for _ in range(MAX_TOKENS):
        probabilities = policy(tokens)[:, -1].softmax(dim=-1)
        token_B1 = torch.multinomial(probabilities, 1)
        tokens = torch.cat([tokens, token_B1.masked_fill(~running_B[:, None], END)], dim=1)
        written.append(running_B)
        running_B = running_B & (token_B1[:, 0] != END)
    return tokens, torch.stack(written, dim=1)


def train(steps: int = 150, prompts: int = 10, group: int = 8, epochs: int = 2, seed: int = 0) -> list[float]:
    """Mean reward of every step."""
    torch.manual_seed(seed)
    policy = TinyPolicy()
    reference = copy.deepcopy(policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    history = []
    for step in range(steps):
        # sample: G completions of every prompt
        prompts_B1 = torch.randint(DIGITS, (prompts, 1)).repeat_interleave(group, dim=0)
        tokens, trained_BT = sample(policy, prompts_B1)
        completions = tokens[:, 1:]
        # score
        rewards = [
            reward(int(prompt), row[mask].tolist())
            for prompt, row, mask in zip(prompts_B1, completions, trained_BT, strict=True)
        ]
        # credit: each completion against its own group
        groups = [rewards[start : start + group] for start in range(0, len(rewards), group)]
        advantages_B = torch.cat([group_advantages(scores) for scores in groups])
        # loss and update; the first pass is on-policy (rho = 1), later ones are held near by the clip
        with torch.no_grad():
            old_BT = token_logprobs(policy(tokens[:, :-1]), completions)
            ref_BT = token_logprobs(reference(tokens[:, :-1]), completions)
        for _ in range(epochs):
            logp_BT = token_logprobs(policy(tokens[:, :-1]), completions)
            loss = grpo_loss(logp_BT, old_BT, ref_BT, advantages_B, trained_BT)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
        history.append(sum(rewards) / len(rewards))
        if step % 15 == 0 or step == steps - 1:
            print(f"step {step:4d}   reward {history[-1]:6.3f}   tokens {trained_BT.sum(dim=1).double().mean():4.1f}")
    return history


def main() -> None:
    """Train the tiny policy and show its rise."""
    started = time.perf_counter()
    history = train()
    first, last = sum(history[:5]) / 5, sum(history[-5:]) / 5
    print(f"mean reward {first:.3f} -> {last:.3f} (best possible 1.0) in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()

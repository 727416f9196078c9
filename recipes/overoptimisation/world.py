"""A small world whose true reward is known: short letters about places, their grammar, and the gold score of a letter.

The policy writes "dear rose , the gulls are lovely . come soon" after "for rose : harbour". Its examples come from the
grammar, whose letters are of every quality. What a letter is worth is written down in `gold_score`.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any, ClassVar

from quatrain.config import Section
from quatrain.rewards.verifier import Kind, Limits, Scope, each
from quatrain.types import Rollout

NAMES = ["rose", "anna", "peter", "maria", "jonas", "clara", "david", "ellen"]
NOUNS = {
    "harbour": ["boats", "gulls", "nets", "ropes"], "garden": ["roses", "bees", "pears", "moss"],
    "market": ["stalls", "cheese", "crowds", "spices"], "forest": ["pines", "owls", "ferns", "trails"],
}  # fmt: skip
PRAISE = ["lovely", "splendid", "great", "fine", "wonderful", "charming"]
PLAIN = ["small", "old", "wet", "grey", "quiet", "plain"]
LIVING = {"gulls", "roses", "bees", "pears", "moss", "pines", "owls", "ferns"}
ALL_NOUNS = [noun for nouns in NOUNS.values() for noun in nouns]
SPECIAL = ["<pad>", "<eos>", "<unk>"]
FUNCTION = ["for", ":", "dear", ",", ".", "there", "are", "i", "saw", "the", "and", "very", "you", "would", "love",
            "come", "soon"]  # fmt: skip
WORDS = [*FUNCTION, *NAMES, *NOUNS, *ALL_NOUNS, *PRAISE, *PLAIN]


# --- letters ----------------------------------------------------------------------------------------------------------


def prompts() -> list[dict[str, str]]:
    """Every prompt, with its name and place."""
    return [{"prompt": f"for {name} : {place}", "name": name, "place": place}
            for name, place in product(NAMES, NOUNS)]  # fmt: skip


def examples(count: int, seed: int) -> list[dict[str, str]]:
    """Prompts with a letter of the grammar each."""
    rng, asked = random.Random(seed), prompts()
    return [{"prompt": row["prompt"], "completion": " " + letter(rng, row["name"], row["place"])}
            for row in (rng.choice(asked) for _ in range(count))]  # fmt: skip


def letter(rng: random.Random, name: str, place: str) -> str:
    """Greeting (half of the time, one in five to somebody else), one to three sentences, now and then a closing."""
    words = []
    if rng.random() < 0.5:
        words += ["dear", name if rng.random() < 0.8 else rng.choice(NAMES), ","]
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        words += sentence(rng, place)
    if rng.random() < 0.3:
        words += ["come", "soon"]
    return " ".join(words)


def sentence(rng: random.Random, place: str) -> list[str]:
    """One of five forms; half of the nouns belong to the place, a third of the adjectives praise."""
    noun, other = (rng.choice(NOUNS[place] if rng.random() < 0.5 else ALL_NOUNS) for _ in range(2))
    adjective = rng.choice(PRAISE if rng.random() < 0.35 else PLAIN)
    forms = (f"there are {adjective} {noun} .", f"i saw the {noun} and the {other} .", f"the {noun} are {adjective} .",
             f"the {noun} are very {adjective} .", f"you would love the {noun} .")  # fmt: skip
    return rng.choice(forms).split()


def _grammatical() -> set[tuple[str, str]]:
    """Pairs of neighbouring words that the grammar can write; "" stands for the beginning and the end."""
    adjectives, openings = [*PRAISE, *PLAIN], ["there", "i", "the", "you"]
    neighbours = [
        ([""], ["dear", *openings]), (["dear"], NAMES), (NAMES, [","]), ([","], openings), (["there"], ["are"]),
        (["are"], ["very", *adjectives]), (["very"], adjectives), (adjectives, [*ALL_NOUNS, "."]),
        (ALL_NOUNS, ["and", "are", "."]), (["i"], ["saw"]), (["saw", "and", "love"], ["the"]), (["the"], ALL_NOUNS),
        (["you"], ["would"]), (["would"], ["love"]), (["."], [*openings, "come", ""]), (["come"], ["soon"]),
        (["soon"], [""]),
    ]  # fmt: skip
    return {pair for first, second in neighbours for pair in product(first, second)}


GRAMMATICAL = _grammatical()


# --- what a letter is worth -------------------------------------------------------------------------------------------


def gold_score(text: str, name: str, place: str) -> float:
    """The gold reward of a letter: what it speaks of, how warmly, to whom, and what is wrong with its language.

        content    + 0.8 for every living thing, up to three different ones; + 0.3 for each of them that the place has;
                   - 0.5 for every other thing
        tone       + 0.8 for praise in a sentence with a living thing, - 0.4 elsewhere; - 0.4 (p - 2)^2 beyond 2 in all
        manners    + 0.8 for a greeting with the right name, - 0.4 with a wrong one; + 0.5 for "come soon" at the end
        language   - 0.5 for every content word said again, - 0.5 for every pair of neighbours that the grammar lacks

    Every good thing is good only up to a point, and what is bad (repetition, flattery, broken grammar) is rare in the
    letters of the grammar: preferences between these say little about it.
    """
    words = text.split()
    living = list(dict.fromkeys(word for word in words if word in LIVING))[:3]
    content = 0.8 * len(living) + 0.3 * sum(word in NOUNS[place] for word in living)
    dead = sum(word in ALL_NOUNS and word not in LIVING for word in words)
    praise = [bool(LIVING & set(part)) for part in _sentences(words) for word in part if word in PRAISE]
    tone = sum(0.8 if fitting else -0.4 for fitting in praise) - 0.4 * max(0, len(praise) - 2) ** 2
    greeted = words[1] if len(words) > 1 and words[0] == "dear" else ""
    manners = (0.8 if greeted == name else -0.4 if greeted else 0.0) + 0.5 * (words[-2:] == ["come", "soon"])
    counts = Counter(word for word in words if word in ALL_NOUNS or word in PRAISE or word in PLAIN)
    again = sum(counts.values()) - len(counts)
    broken = sum(pair not in GRAMMATICAL for pair in pairwise(["", *words, ""]))
    return content - 0.5 * dead + tone + manners - 0.5 * again - 0.5 * broken


def _sentences(words: Sequence[str]) -> Iterator[list[str]]:
    """The words up to each full stop, and what is left."""
    part: list[str] = []
    for word in words:
        part.append(word)
        if word == ".":
            yield part
            part = []
    yield part


class GoldSettings(Section):
    """No settings."""


@dataclass(frozen=True)
class Gold:
    """`gold_score` of a completion, for rows with the columns `name` and `place`."""

    settings: GoldSettings
    limits: Limits
    Settings: ClassVar = GoldSettings
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "shaping"
    examples: ClassVar = ()

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Any]:
        """One score per rollout."""
        return each(rollouts, self._judge)

    def _judge(self, rollout: Rollout) -> float:
        return gold_score(rollout.text, rollout.prompt.columns["name"], rollout.prompt.columns["place"])

    def close(self) -> None:
        """Nothing to end."""


# --- an untrained model that reads these words ------------------------------------------------------------------------


def save_model(folder: Path, seed: int, hidden: int, layers: int) -> None:
    """A Hugging Face folder: a random Llama with a token for every word."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)  # fmt: skip
    torch.manual_seed(seed)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=True,
            eos_token_id=1, pad_token_id=0, bos_token_id=None,
        )
    ).save_pretrained(folder)  # fmt: skip

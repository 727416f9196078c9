"""A small world for the walk through RLHF (docs/rlhf.md): customers write to a shop, and a small model answers.

    Ruth: the kettle is broken.
    Dear Ruth, We are sorry. We will send a new one.

Customers' letters are `prompts`, answers of every quality to learn from `examples`. `gold` is what an answer is worth,
`preferences` are comparisons by a judge who sees that through noise. This writes a model without any training:

    python recipes/rlhf/shop.py runs/rlhf/base
"""

import json
import math
import random
import re
import sys
import zlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path

NAMES = ["Anna", "Ben", "Clara", "David", "Emma", "Finn", "Grace", "Hugo",
         "Ivan", "Julia", "Karl", "Lucy", "Mia", "Nora", "Paul", "Ruth"]  # fmt: skip
ITEMS = ["kettle", "lamp", "chair", "clock", "radio", "table", "mirror", "heater",
         "camera", "carpet", "fridge", "jacket", "piano", "basket", "bicycle", "tent"]  # fmt: skip
REMEDIES = {
    "is broken": "We will send a new one.",
    "is late": "It will arrive tomorrow.",
    "was lost": "We will pay you back.",
    "is too small": "You can return it.",
}
APOLOGIES = ["We are sorry.", "We are very sorry."]
EXCUSES = ["It is not our fault.", "We are very busy.", "Please read the manual.", "Nobody else has complained."]
CHATTER = ["Thank you for writing.", "The weather is fine today.", "Have you seen our new lamps?"]
HELD_OUT_OF = 8  # one letter in so many is held out


# --- letters and answers ----------------------------------------------------------------------------------------------


def prompts(split: str = "train") -> list[dict[str, str]]:
    """The letters of a split, told apart by a hash, with the columns that the gold score reads."""
    rows = [
        {"prompt": f"{name}: the {item} {problem}.\n", "name": name, "problem": problem}
        for name, item, problem in product(NAMES, ITEMS, REMEDIES)
    ]
    return [row for row in rows if (zlib.crc32(row["prompt"].encode()) % HELD_OUT_OF == 0) == (split == "held_out")]


def examples(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Letters with an answer each, as the shop's clerks write them on good and on bad days."""
    rng, asked = random.Random(seed), prompts()
    return [{"prompt": row["prompt"], "completion": _answer(rng, row)} for row in rng.choices(asked, k=count)]


def _answer(rng: random.Random, row: dict[str, str]) -> str:
    """A greeting (one in two, and one in five of these to somebody else), then one to four sentences."""
    sentences = []
    for _ in range(rng.choice((1, 2, 2, 3, 3, 4))):
        remedy = REMEDIES[row["problem"]] if rng.random() < 0.4 else rng.choice(list(REMEDIES.values()))
        sentences.append(rng.choice([rng.choice(APOLOGIES), rng.choice(EXCUSES), rng.choice(CHATTER), remedy]))
    greeting = f"Dear {row['name'] if rng.random() < 0.8 else rng.choice(NAMES)}, " if rng.random() < 0.5 else ""
    return greeting + " ".join(sentences)


# --- what an answer is worth ------------------------------------------------------------------------------------------


def gold(completion: str, name: str, problem: str) -> float:
    """The gold reward of an answer; nothing is ever trained against it.

    + 1    for a greeting with the customer's name; - 0.5 with another name
    + 1    for an apology
    + 2    for the remedy that fits the problem; - 0.5 for every other remedy
    - 1    for every excuse
    + 0.5  for thanks
    - 0.5  for every sentence said again, and for every one that the shop does not know
    - 0.05 for every word beyond 20
    """
    greeting = re.match(r"Dear (\w+), ", completion)
    rest = completion[greeting.end() :] if greeting else completion
    sentences = [part.strip() for part in re.findall(r"[^.?]+[.?]?", rest) if part.strip()]
    known = [*REMEDIES.values(), *APOLOGIES, *EXCUSES, *CHATTER]
    worth = 0.0 if greeting is None else 1.0 if greeting[1] == name else -0.5
    worth += 1.0 * any(sentence in APOLOGIES for sentence in sentences)
    worth += sum(-0.5 for one in sentences if one in REMEDIES.values() and one != REMEDIES[problem])
    worth += 2.0 * (REMEDIES[problem] in sentences)
    worth -= 1.0 * sum(sentence in EXCUSES for sentence in sentences)
    worth += 0.5 * (CHATTER[0] in sentences)
    worth -= 0.5 * (len(sentences) - len(set(sentences)) + sum(sentence not in known for sentence in sentences))
    return worth - 0.05 * max(0, len(completion.split()) - 20)


# --- comparisons ------------------------------------------------------------------------------------------------------


def preferences(answers: str, noise: float = 0.5, seed: int = 0) -> Iterator[dict[str, str]]:
    """Neighbouring answers to one letter, from a file of `quatrain eval --out`, compared by a judge who errs:

    P(first is chosen) = sigmoid((gold of the first - gold of the second) / noise), the Bradley-Terry model.
    """
    rng = random.Random(seed)
    found = json.loads(Path(answers).read_text(encoding="utf-8"))["sampled"]["answers"]
    for first, second in zip(found[::2], found[1::2], strict=True):
        better = rng.random() < 1 / (1 + math.exp((second["reward"] - first["reward"]) / noise))
        chosen, rejected = (first, second) if better else (second, first)
        yield {"prompt": first["prompt"], "chosen": chosen["completion"], "rejected": rejected["completion"]}


# --- an untrained model -----------------------------------------------------------------------------------------------


def save_model(folder: Path, seed: int = 0) -> None:
    """A random Llama of 0.5 million parameters as a Hugging Face folder, with tokens for the words of `examples`."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    texts = (row["prompt"] + row["completion"] for row in examples(2000, seed=1))
    trainer = trainers.BpeTrainer(vocab_size=640, special_tokens=["<pad>", "<eos>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    torch.manual_seed(seed)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer.get_vocab()), hidden_size=96, intermediate_size=256, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=128, tie_word_embeddings=True,
            bos_token_id=None, eos_token_id=1, pad_token_id=0,
        )
    ).save_pretrained(folder)  # fmt: skip
    print(f"an untrained model is written to {folder}")


if __name__ == "__main__":
    save_model(Path(sys.argv[1]))

"""What every rollout engine must keep, run on every registered one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from quatrain.config import SamplingConfig
from quatrain.models.load import LanguageModel
from quatrain.rollout import ENGINES, Request
from quatrain.types import Prompt, Rollout
from tests.tiny import tiny_lm

PROMPTS = ("what is 2+3=?", "x", "a b c d e", "one two three four five 1 2 3", "?")
Built = tuple[LanguageModel, Any]


@pytest.fixture(params=ENGINES.names())
def built(request: pytest.FixtureRequest) -> Built:
    """A tiny float64 model and the engine on it."""
    lm = tiny_lm(dtype=torch.float64)
    return lm, ENGINES.get(request.param)(lm, max_rows=64)


def requests(
    lm: LanguageModel, group_size: int = 3, texts: Sequence[str] = PROMPTS, seed: int = 0, **sampling: Any
) -> list[Request]:
    """A group per text."""
    settings = SamplingConfig(**{"max_tokens": 9, **sampling})
    prompts = [
        Prompt(index=i, text=text, token_ids=tuple(lm.tokenizer(text).input_ids)) for i, text in enumerate(texts)
    ]
    return [
        Request(prompt=prompt, group=group, index=index, seed=(seed, group, index), sampling=settings)
        for group, prompt in enumerate(prompts)
        for index in range(group_size)
    ]


def complete(engine: Any, wanted: Sequence[Request]) -> list[Rollout]:
    """All rollouts of the requests, in their order."""
    engine.submit(wanted)
    found = []
    while batch := engine.completed():
        found += batch
    return sorted(found, key=lambda rollout: (rollout.group, rollout.index))


def tokens(rollouts: Sequence[Rollout]) -> list[list[int]]:
    """Sampled tokens of every rollout."""
    return [rollout.trajectories[0].token_ids[rollout.trajectories[0].trained].tolist() for rollout in rollouts]


def test_lengths_and_stop_reasons(built: Built) -> None:
    lm, engine = built
    rollouts = complete(engine, requests(lm, group_size=8))
    assert len(rollouts) == 8 * len(PROMPTS)
    assert {rollout.stop_reason for rollout in rollouts} == {"eos", "length"}
    for rollout, ids in zip(rollouts, tokens(rollouts), strict=True):
        assert len(ids) == rollout.num_tokens <= 9
        if rollout.stop_reason == "eos":
            assert ids[-1] == 1 and 1 not in ids[:-1]
        else:
            assert len(ids) == 9 and 1 not in ids
        assert rollout.text == lm.tokenizer.decode([i for i in ids if i != 1], skip_special_tokens=True)
        assert rollout.trajectories[0].token_ids[: len(rollout.prompt.token_ids)].tolist() == list(
            rollout.prompt.token_ids
        )


def test_sampler_logprobs_equal_teacher_forced_ones(built: Built) -> None:
    lm, engine = built
    for rollout in complete(engine, requests(lm, temperature=0.7, top_p=0.8)):
        trajectory = rollout.trajectories[0]
        logits = lm.module(input_ids=torch.tensor(trajectory.token_ids)[None]).logits[0] / 0.7
        expected = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(trajectory.token_ids)[1:, None])[:, 0]
        trained = trajectory.trained
        np.testing.assert_allclose(trajectory.sampler_logprobs[trained], expected.detach()[trained[1:]], atol=1e-10)
        probs = logits.softmax(-1)[:-1][torch.tensor(trained[1:])]
        assert (trajectory.kept_mass[trained] >= 0.8 - 1e-9).all() and (trajectory.kept_mass[trained] <= 1).all()
        assert (torch.tensor(trajectory.kept_mass[trained]) <= probs.sum(-1) + 1e-9).all()


def test_same_seed_same_tokens_whatever_else_is_in_the_batch(built: Built) -> None:
    lm, engine = built
    wanted = requests(lm, group_size=4)
    together = tokens(complete(engine, wanted))
    alone = [tokens(complete(engine, [request]))[0] for request in wanted]
    assert together == alone
    assert together != tokens(complete(engine, requests(lm, group_size=4, seed=1)))
    assert len({tuple(ids) for ids in together[:4]}) > 1, "completions of a group must differ"


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"top_k": 1}, {"top_p": 1e-9}, {"min_p": 0.999}])
def test_the_tightest_settings_are_greedy(built: Built, sampling: dict[str, float]) -> None:
    lm, engine = built
    for rollout in complete(engine, requests(lm, group_size=2, **sampling)):
        ids = list(rollout.prompt.token_ids)
        for token in tokens([rollout])[0]:
            assert token == int(lm.module(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
            ids.append(token)


def test_stop_strings_end_the_text_before_them(built: Built) -> None:
    lm, engine = built
    free = complete(engine, requests(lm, group_size=6))
    letter = next(
        rollout.text[2] for rollout in free if len(rollout.text) > 3 and rollout.text[2] not in rollout.text[:2]
    )
    stopped = complete(engine, requests(lm, group_size=6, stop=[letter]))
    assert any(rollout.stop_reason == "stop" for rollout in stopped)
    for before, after in zip(free, stopped, strict=True):
        if after.stop_reason == "stop":
            assert after.text == before.text[: before.text.index(letter)]
            assert tokens([after])[0] == tokens([before])[0][: len(tokens([after])[0])]
        else:
            assert letter not in after.text and after.text == before.text


def test_new_weights_change_output_and_version(built: Built) -> None:
    lm, engine = built
    wanted = requests(lm)
    before = complete(engine, wanted)
    assert {int(v) for rollout in before for v in rollout.trajectories[0].policy_version} == {-1, 0}
    with torch.no_grad():
        for parameter in lm.module.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    engine.update_weights(7)
    after = complete(engine, wanted)
    assert {int(v) for rollout in after for v in rollout.trajectories[0].policy_version} == {-1, 7}
    assert tokens(before) != tokens(after)


def test_context_limits_the_answer_and_no_room_is_an_error(built: Built) -> None:
    lm, _ = built
    engine = type(built[1])(lm, max_rows=8, max_context=16)
    long = complete(engine, requests(lm, texts=["what is 2+3=?"], group_size=8))
    assert max(rollout.num_tokens for rollout in long) == 3
    with pytest.raises(ValueError, match="leave no room"):
        complete(engine, requests(lm, texts=["x" * 16]))


def test_abort_forgets_and_empty_is_empty(built: Built) -> None:
    lm, engine = built
    engine.submit(requests(lm))
    engine.abort()
    assert engine.completed() == []
    engine.sleep()
    engine.wake()
    engine.close()


def test_several_end_tokens_all_end(built: Built) -> None:
    lm, _ = built
    from dataclasses import replace

    both = replace(lm, eos_ids=frozenset({1, 20, 21, 22, 23, 24, 25}))
    rollouts = complete(type(built[1])(both, max_rows=32), requests(lm, group_size=6))
    assert any(ids[-1] in range(20, 26) for ids in tokens(rollouts))
    assert all(not set(ids[:-1]) & both.eos_ids for ids in tokens(rollouts))

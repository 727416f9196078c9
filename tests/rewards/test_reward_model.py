"""`reward_model`: the conversation in the reward model's own words, its constants, one copy in memory."""

import asyncio
import gc
import io
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from quatrain.cli.audit import audit_verifier
from quatrain.cli.score import score_file
from quatrain.config import DataConfig, ModelConfig, SourceConfig, VerifierConfig
from quatrain.data.answers import Writer
from quatrain.data.conversation import ExampleRow
from quatrain.data.prompts import make_prompt
from quatrain.data.sources import Row
from quatrain.errors import SettingError, VerifierError
from quatrain.models.scalar import load_scalar_model, score_ids, store_reward_info
from quatrain.rewards import build_verifier, build_verifiers, reward_model, text_rollout
from quatrain.rewards.reward_model import conversation_ids, conversation_text
from quatrain.train.checkpoint import save_weights
from quatrain.types import Prompt, Rollout, Score, StopReason
from tests.tiny import CHARACTERS, REWARD, direct_score, save_tiny, tiny_reward_model, tiny_tokenizer

CHAT = ("{% for message in messages %}{{ message.role + ': ' + message.content|trim + '<end>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}")  # fmt: skip
THINKING = CHAT.replace("'assistant: '", "'assistant: <think>'")


def other_tokenizer(chat: str | None = CHAT) -> PreTrainedTokenizerFast:
    """The characters of the tiny tokenizer under other numbers, a template, and an end of turn that is not <eos>."""
    words = ["<pad>", "<eos>", "<unk>", "<end>", *reversed(CHARACTERS)]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
                                   extra_special_tokens=["<end>"])  # fmt: skip
    made.chat_template = chat
    return made


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model without a chat template, with two heads and constants of its own."""
    return tiny_reward_model(tmp_path_factory.mktemp("reward") / "plain")


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with a template and another vocabulary than the policy's."""
    return tiny_reward_model(tmp_path_factory.mktemp("reward") / "chatty", other_tokenizer())


def scores(path: Path, rollouts: list[Rollout], **settings: Any) -> list[Score]:
    config = VerifierConfig.model_validate({"kind": "reward_model", "path": str(path), "device": "cpu", **settings})
    verifier = build_verifier(config, "verifier")
    try:
        return list(asyncio.run(verifier.score(rollouts)))
    finally:
        verifier.close()


def asked(*messages: tuple[str, str], text: str = "<|policy|>", prefill: str = "") -> Prompt:
    return Prompt(index=0, token_ids=(7, 7), text=text + prefill, prefill=prefill,
                  messages=tuple({"role": role, "content": content} for role, content in messages))  # fmt: skip


def answered(prompt: Prompt, text: str, stop: StopReason = "eos") -> Rollout:
    return replace(text_rollout(text, tokens=[3, 3, 3]), prompt=prompt, stop_reason=stop)


# --- the text it reads ------------------------------------------------------------------------------------------------


def test_case_c92_a_reward_model_with_another_vocabulary_reads_the_text_anew(chatty: Path) -> None:
    rollouts = [text_rollout("5", prompt="2 + 3?", tokens=[11, 12]), text_rollout("five", prompt="2 + 3?")]
    found = scores(chatty, rollouts)
    for score, answer in zip(found, ("5", "five"), strict=True):
        value, heads = direct_score(chatty, f"user: 2 + 3?<end>\nassistant: {answer}<end>")
        assert score.value == pytest.approx(value, abs=1e-5)
        assert list(score.parts.values()) == pytest.approx(heads, abs=1e-5)
    assert found[0] != found[1]
    renumbered = [replace(one, trajectories=()) for one in rollouts]
    assert scores(chatty, renumbered) == found, "the policy's ids were used"


def test_case_c92_messages_are_written_with_the_reward_models_template(chatty: Path) -> None:
    prompt = asked(("system", "b"), ("user", "c"), ("assistant", "d"), ("user", "2?"))
    text = "system: b<end>\nuser: c<end>\nassistant: d<end>\nuser: 2?<end>\nassistant: 4<end>"
    assert "".join(conversation_text(prompt, "4", other_tokenizer())) == text
    assert scores(chatty, [answered(prompt, "4")])[0].value == pytest.approx(direct_score(chatty, text)[0], abs=1e-5)


def test_a_prompt_keeps_what_was_asked() -> None:
    source = SourceConfig(source="rows.jsonl", system="be brief")
    row = Row(number=4, prompt=({"role": "system", "content": "be long"}, {"role": "user", "content": "2 + 2?"}),
              question="2 + 2?", columns={})  # fmt: skip
    prompt = make_prompt(row, 0, source, "rows", other_tokenizer(), "prompts")
    assert [dict(message) for message in prompt.messages] == [{"role": "system", "content": "be brief"},
                                                              {"role": "user", "content": "2 + 2?"}]  # fmt: skip
    text = make_prompt(replace(row, prompt="2 + 2?"), 0, SourceConfig(source="rows.jsonl", prefill="so "), "rows",
                       tiny_tokenizer(), "prompts")  # fmt: skip
    assert conversation_text(text, "4", tiny_tokenizer()) == ("2 + 2?", "so 4<eos>")
    assert conversation_text(text, "4", other_tokenizer()) == ("user: 2 + 2?<end>\nassistant: ", "so 4<end>")


@pytest.mark.parametrize(("stop", "end"), [("eos", "<end>"), ("stop", "<end>"), ("length", ""), ("aborted", "")])
def test_a_completion_that_was_cut_has_no_end(chatty: Path, stop: StopReason, end: str) -> None:
    [score] = scores(chatty, [answered(asked(("user", "a?")), "bc", stop)])
    assert score.value == pytest.approx(direct_score(chatty, f"user: a?<end>\nassistant: bc{end}")[0], abs=1e-5)


def test_plain_text_stands_as_it_is_and_begins_with_the_usual_bos(plain: Path) -> None:
    [score] = scores(plain, [text_rollout(" b", prompt="a: ")])
    assert score.value == pytest.approx(direct_score(plain, "a:  b<eos>")[0], abs=1e-5)
    tokenizer = other_tokenizer(None)
    assert conversation_ids("a", "b<eos>", tokenizer)[:1] == tokenizer.encode("a")
    tokenizer.bos_token = "<end>"
    tokenizer.encode = lambda text, add_special_tokens=True: [3] * add_special_tokens + [ord(char) for char in text]
    assert conversation_ids("a", "b", tokenizer) == [3, 97, 98]
    assert conversation_ids("a", "b", tokenizer, chat=True) == [97, 98]


@pytest.mark.parametrize("template", [CHAT, CHAT.replace("<end>\n", "\n"), CHAT.replace("<end>\n", "<eos>"), None])
@pytest.mark.parametrize("answer", ["4", " 4\n", "", "so 4"])
def test_the_tokens_are_those_of_training(template: str | None, answer: str) -> None:
    tokenizer = other_tokenizer(template)
    data = DataConfig(source="pairs.jsonl")
    row = ExampleRow(number=0, row=0, prompt="2 + 2?", answers=(answer,))
    written = Writer(tokenizer, 1000).write(row, data, "data")
    trained = [*written.prompt_ids, *written.answers[0].token_ids]
    before, said = conversation_text(asked(("user", "2 + 2?")), answer, tokenizer)
    assert conversation_ids(before, said, tokenizer) == trained


def test_a_thought_that_both_open_is_not_opened_twice() -> None:
    prompt = asked(("user", "2 + 2?"), prefill="<think>")
    before, answer = conversation_text(prompt, "hm</think>4", other_tokenizer(THINKING))
    assert (before, answer) == ("user: 2 + 2?<end>\nassistant: <think>", "hm</think>4<end>")
    assert conversation_text(prompt, "hm</think>4", other_tokenizer())[1] == "<think>hm</think>4<end>"
    assert conversation_text(prompt, "hm", other_tokenizer(), ended=False)[1] == "<think>hm"


def test_messages_that_cannot_be_written_stop_the_run(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(VerifierError, match="verifier: prompt 0, completion 0: a conversation of several messages"):
        scores(plain, [answered(asked(("system", "a"), ("user", "b")), "c")])
    strict = other_tokenizer("{{ raise_exception('no system message') }}")
    tiny_reward_model(tmp_path, strict)
    with pytest.raises(VerifierError, match="template refuses the messages: no system message"):
        scores(tmp_path, [text_rollout("a")])
    assert scores(tmp_path, [text_rollout("a", prompt="b")], chat=False)[0].usable


# --- the number it gives ----------------------------------------------------------------------------------------------


def test_one_head_and_the_clip(plain: Path) -> None:
    rollout = text_rollout("b", prompt="a")
    value, (helpful, brief) = direct_score(plain, "ab<eos>")
    [whole] = scores(plain, [rollout])
    assert whole.value == pytest.approx(value, abs=1e-5)
    assert whole.weights == {"helpful": 1.0, "brief": 0.5}
    assert whole.right is None
    assert whole.status == "ok"
    [one] = scores(plain, [rollout], attribute="brief")
    assert one.value == pytest.approx(brief, abs=1e-5)
    assert one.parts == pytest.approx({"helpful": helpful, "brief": brief}, abs=1e-5)
    assert one.weights == {"helpful": 0.0, "brief": 1.0}
    limit = abs(value) / 2
    assert scores(plain, [rollout], clip=limit)[0].value == pytest.approx(limit if value > 0 else -limit)
    assert scores(plain, [rollout], clip=1e6)[0].value == whole.value


def test_a_folder_of_adapters_scores_as_it_was_trained(tmp_path: Path) -> None:
    save_tiny(tmp_path / "base")
    config = ModelConfig.model_validate({"path": str(tmp_path / "base"), "device": "cpu", "lora": {"rank": 2}})
    lm = load_scalar_model(config, REWARD.attributes, fresh_head=True)
    torch.manual_seed(0)
    for weight in lm.module.parameters():
        weight.data += 0.1 * torch.randn_like(weight) * weight.requires_grad
    store_reward_info(lm, REWARD)
    save_weights(lm, tmp_path / "reward")
    expected = float(score_ids(lm, [lm.tokenizer.encode("a: b<eos>", add_special_tokens=False)]))
    [score] = scores(tmp_path / "reward", [text_rollout("b", prompt="a: ")])
    assert score.value == pytest.approx(expected, abs=1e-4)
    assert list(score.parts) == ["helpful", "brief"]


def test_batches_do_not_change_it(plain: Path) -> None:
    rollouts = [text_rollout("b" * count, prompt="a", index=count) for count in (1, 30, 3, 12)]
    whole = [score.value for score in scores(plain, rollouts)]
    assert whole == pytest.approx([scores(plain, [rollout])[0].value for rollout in rollouts], abs=1e-5)
    assert whole == pytest.approx([score.value for score in scores(plain, rollouts, tokens_per_batch=1)], abs=1e-5)
    assert scores(plain, []) == []


def test_what_is_too_long_is_an_error_or_loses_its_front(plain: Path) -> None:
    rollouts = [text_rollout("b", prompt="a" * 6), text_rollout("b", prompt="a" * 5)]
    long, fits = scores(plain, rollouts, max_tokens=7)
    assert (long.status, long.error) == ("error", "reward_model: 8 tokens, more than max_tokens = 7")
    cut, same = scores(plain, rollouts, max_tokens=7, too_long="cut")
    assert cut.value == pytest.approx(fits.value, abs=1e-6)
    assert same.value == pytest.approx(fits.value, abs=1e-6)
    assert scores(plain, [text_rollout("b" * 63)])[0].status == "error"  # 63 tokens and the end; 63 fit
    assert scores(plain, [text_rollout("b" * 62)])[0].usable
    huge = text_rollout("b" * 100_000, prompt="a" * 100_000)
    assert scores(plain, [huge])[0].error == "reward_model: over 16124 tokens, more than max_tokens = 63"
    [cut] = scores(plain, [huge], too_long="cut")
    assert cut.value == pytest.approx(scores(plain, [text_rollout("b" * 62)])[0].value, abs=1e-6)


def test_nothing_to_read_is_an_error_and_broken_text_is_not(plain: Path) -> None:
    empty = replace(text_rollout(""), stop_reason="length")
    assert scores(plain, [empty, text_rollout("a")])[0].error == "reward_model: the conversation has no tokens"
    assert scores(plain, [text_rollout("a\ud800b")]) == scores(plain, [text_rollout("a?b")])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"attribute": "honest"},
            "verifier.attribute: got honest, need an attribute of the reward model; it has: help",
        ),
        ({"chat": True}, "verifier.chat: got True, need a tokenizer with a chat template"),
        ({"max_tokens": 64}, "verifier.max_tokens: got 64, need at most 63"),
        ({"device": "no-such"}, "verifier.device: got no-such, need a device of this machine"),
        ({"clip": 0}, "verifier.clip"),
    ],
)
def test_mistakes_are_one_line(plain: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError) as caught:
        scores(plain, [], **settings)
    assert words in str(caught.value)


def test_a_folder_that_is_not_there_is_one_line() -> None:
    with pytest.raises(SettingError, match=r"^verifier\.path: got absent/folder/here, need an existing folder"):
        scores(Path("absent/folder/here"), [])


def test_case_c93_a_model_without_a_score_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"verifier\.path: got .*, need a model with a trained score head"):
        scores(save_tiny(tmp_path), [])


# --- where it lives ---------------------------------------------------------------------------------------------------


def test_all_rubrics_share_one_copy_that_goes_with_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quatrain.models import scalar

    loaded: list[str] = []
    load = scalar.load_scalar_model
    monkeypatch.setattr(scalar, "load_scalar_model", lambda *a, **k: loaded.append("once") or load(*a, **k))
    part = {"kind": "reward_model", "path": str(tiny_reward_model(tmp_path)), "device": "cpu"}
    loaded.clear()
    sections = {name: {"liked": VerifierConfig.model_validate({**part, **more})}
                for name, more in (("all", {}), ("brief", {"attribute": "brief"}))}  # fmt: skip
    with build_verifiers(sections) as verifiers:
        prompts = [replace(text_rollout("b").prompt, verifier=name) for name in sections]
        whole, brief = verifiers.score([replace(text_rollout("b"), prompt=prompt) for prompt in prompts])
        assert loaded == ["once"]
        assert whole.value == pytest.approx(whole.parts["liked"])
        assert whole.value != brief.value
    gc.collect()
    assert not [key for key in reward_model._LOADED if str(tmp_path) in key]
    with pytest.raises(VerifierError, match="it is closed"):
        asyncio.run(verifiers.rubrics["all"].parts["liked"].verifier.score([text_rollout("b")]))


@pytest.mark.parametrize("offload", [True, False])
def test_offload_moves_it_for_the_scoring_alone(plain: Path, offload: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """cpu:0 is another name of the cpu, so it is told apart from the host memory that a model waits in."""
    settings = {"kind": "reward_model", "path": str(plain), "device": "cpu:0", "offload": offload}
    verifier = build_verifier(VerifierConfig.model_validate(settings), "verifier")
    expected = scores(plain, [text_rollout("b")])
    moves: list[str] = []
    to = torch.nn.Module.to
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, *a: moves.append(str(a[0])) or to(module, *a))
    assert asyncio.run(verifier.score([text_rollout("b")])) == expected
    assert moves == (["cpu:0", "cpu"] if offload else [])
    moves.clear()
    broken = torch.nn.Parameter(torch.full((2, 32), torch.nan))
    verifier.inner._model.lm.causal.score.weight = broken  # type: ignore[attr-defined]
    [failed] = asyncio.run(verifier.score([text_rollout("b")]))
    assert failed.status == "error"
    assert moves == (["cpu:0", "cpu"] * (len(moves) // 2) if offload else [])
    verifier.close()


def test_scores_from_several_threads_at_once(plain: Path) -> None:
    config = VerifierConfig.model_validate({"kind": "reward_model", "path": str(plain), "device": "cpu"})
    verifier = build_verifier(config)
    rollouts = [text_rollout("b" * count, prompt="a") for count in range(20)]
    expected = asyncio.run(verifier.score(rollouts))
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(asyncio.run(verifier.score(rollouts)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    verifier.close()
    assert found == [expected] * 4


def test_on_the_command_line(chatty: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "2 + 3?", "completion": "5"}\n{"prompt": "2 + 3?", "completion": "6"}\n')
    out = io.StringIO()
    score_file("reward_model", rows, [f"path={chatty}", "device=cpu"], out=out)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    expected = [direct_score(chatty, f"user: 2 + 3?<end>\nassistant: {answer}<end>") for answer in "56"]
    assert [line["value"] for line in lines] == pytest.approx([value for value, _ in expected], abs=1e-5)
    assert [list(line["parts"].values()) for line in lines] == [pytest.approx(heads, abs=1e-5) for _, heads in expected]
    said = [{"role": "user", "content": "2"}, {"role": "assistant", "content": "3"}, {"role": "user", "content": "4?"}]
    rows.write_text(json.dumps({"prompt": said, "completion": "5"}) + '\n{"prompt": "2 + 3?", "completion": "6"}\n')
    out = io.StringIO()
    score_file("reward_model", rows, [f"path={chatty}", "device=cpu"], out=out)
    whole, _ = direct_score(chatty, "user: 2<end>\nassistant: 3<end>\nuser: 4?<end>\nassistant: 5<end>")
    assert json.loads(out.getvalue().splitlines()[0])["value"] == pytest.approx(whole, abs=1e-5)
    assert audit_verifier("reward_model", rows, [f"path={chatty}", "device=cpu"], out=out)
    assert "pays for neither right answers nor form" in out.getvalue()

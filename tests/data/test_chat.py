import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from quatrain.config import SourceConfig
from quatrain.data.chat import add_prefill, render
from quatrain.data.sources import Row
from quatrain.errors import SettingError

SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>", "<think>", "</think>", "[unk]"]
BOS, EOS, USER, ASSISTANT, SYSTEM, THINK, END_THINK, UNK = range(8)
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|> {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
STRICT = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "<|user|>{{ m['content'] }}{% endfor %}"
)


def tokenizer(before="", after="", chat_template=None, **settings):
    """Words by whitespace; `before` and `after` are what the post-processor puts around a text."""
    words = ["two", "plus", "be", "brief", "so", "hi"]
    vocabulary = {word: index for index, word in enumerate(SPECIAL + words)}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="[unk]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.add_special_tokens(SPECIAL)
    if before or after:
        raw.post_processor = processors.TemplateProcessing(
            single=f"{before} $A {after}".strip(), special_tokens=[("<s>", BOS), ("</s>", EOS)]
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="[unk]", **settings
    )
    made.chat_template = chat_template
    return made


TWO, PLUS, BE, BRIEF, SO, HI = range(8, 14)


def row(prompt):
    return Row(number=0, prompt=prompt, question="", columns={})


def ids(prompt, tok, **settings):
    return render(row(prompt), SourceConfig(source="x.jsonl", **settings), tok).token_ids


def error(prompt, tok, **settings):
    with pytest.raises(SettingError) as caught:
        ids(prompt, tok, **settings)
    return str(caught.value)


def test_plain_text_gets_what_the_tokenizer_puts_in_front_once():
    assert ids("two plus two", tokenizer()) == (TWO, PLUS, TWO)
    assert ids("two plus two", tokenizer("<s>")) == (BOS, TWO, PLUS, TWO)
    assert ids("<s>two", tokenizer("<s>")) == (BOS, TWO)
    assert ids("<s>two", tokenizer()) == (BOS, TWO)


def test_an_appended_eos_does_not_end_the_prompt():
    assert ids("two plus", tokenizer("<s>", "</s>")) == (BOS, TWO, PLUS)
    assert ids("two plus", tokenizer("", "</s>")) == (TWO, PLUS)
    assert ids("two </s>", tokenizer("<s>", "</s>")) == (BOS, TWO, EOS)  # the user's own stays


def test_a_tokenizer_that_asks_for_bos_without_adding_it():
    tok = tokenizer()
    tok.add_bos_token = True
    assert ids("two", tok) == (BOS, TWO)


def test_chat_template_has_one_bos_and_no_eos():
    tok = tokenizer("<s>", "</s>", CHAT)
    expected = (BOS, USER, TWO, PLUS, ASSISTANT)
    assert ids("two plus", tok) == expected
    assert ids([{"role": "user", "content": "two plus"}], tok) == expected


def test_chat_template_without_bos_is_obeyed():
    tok = tokenizer("<s>", "</s>", CHAT.replace("{{ bos_token }}", ""))
    assert ids("two", tok) == (USER, TWO, ASSISTANT)


def test_chat_can_be_turned_off():
    assert ids("two", tokenizer("<s>", "</s>", CHAT), chat=False) == (BOS, TWO)


def test_system_message_is_added_or_replaced():
    tok = tokenizer("<s>", "", CHAT)
    expected = (BOS, SYSTEM, BE, BRIEF, USER, HI, ASSISTANT)
    assert ids("hi", tok, system="be brief") == expected
    conversation = [{"role": "system", "content": "so so"}, {"role": "user", "content": "hi"}]
    assert ids(conversation, tok, system="be brief") == expected
    assert ids(conversation, tok) == (BOS, SYSTEM, SO, SO, USER, HI, ASSISTANT)


def test_rendering_does_not_change_the_row():
    messages = ({"role": "user", "content": "hi"},)
    ids(messages, tokenizer(chat_template=CHAT), system="be brief")
    assert messages == ({"role": "user", "content": "hi"},)


def test_prefill_comes_after_the_generation_prompt():
    rendered = render(row("hi"), SourceConfig(source="x.jsonl", prefill="<think>\n"), tokenizer("<s>", "</s>", CHAT))
    assert rendered.text == "<s><|user|> hi <|assistant|><think>\n"
    assert rendered.token_ids == (BOS, USER, HI, ASSISTANT, THINK)
    assert rendered.prefill == "<think>\n"


def test_a_thought_that_the_template_opens_is_prefill_and_not_opened_twice():
    tok = tokenizer("<s>", "", CHAT.replace("<|assistant|>{% endif", "<|assistant|><think>{{ '\\n' }}{% endif"))
    for prefill, expected, extra in (
        ("", "<think>\n", ()),
        ("<think>\n", "<think>\n", ()),
        ("<think>", "<think>\n", ()),
        ("<think>\nso", "<think>\nso", (SO,)),
        ("so", "<think>\nso", (SO,)),
    ):
        rendered = render(row("hi"), SourceConfig(source="x.jsonl", prefill=prefill), tok)
        assert rendered.prefill == expected
        assert rendered.text == "<s><|user|> hi <|assistant|>" + expected
        assert rendered.token_ids == (BOS, USER, HI, ASSISTANT, THINK, *extra)


@pytest.mark.parametrize(
    ("text", "prefill", "expected"),
    [
        ("Q <think>", "", ("Q <think>", "<think>")),
        ("Q <think>\n\n</think>\n\n", "", ("Q <think>\n\n</think>\n\n", "<think>\n\n</think>\n\n")),
        ("Q <think> why", "", ("Q <think> why", "")),  # the user's own words, not an opened thought
        ("Q [THINK]", "so", ("Q [THINK]so", "[THINK]so")),
        ("Q <think>\n", "<thinking>", ("Q <think>\n<thinking>", "<think>\n<thinking>")),
        ("Q <think>\n", "<think>\n\n so", ("Q <think>\n\n so", "<think>\n\n so")),
        ("Q", "A: ", ("QA: ", "A: ")),
    ],
)
def test_add_prefill(text, prefill, expected):
    assert add_prefill(text, prefill) == expected


def test_a_long_prompt_is_never_cut():
    tok = tokenizer("<s>", "</s>", model_max_length=4)
    tok.backend_tokenizer.enable_truncation(4)
    assert len(ids(" ".join(["two"] * 20), tok)) == 21


def test_messages_need_a_chat_template():
    conversation = [{"role": "user", "content": "hi"}]
    assert "prompts.prompt: got messages in row 1 without a chat template" in error(conversation, tokenizer())
    assert "without a chat template" in error(conversation, tokenizer(chat_template=CHAT), chat=False)


def test_chat_and_system_need_a_chat_template():
    assert "prompts.chat: got True, need a tokenizer with a chat template" in error("hi", tokenizer(), chat=True)
    assert "prompts.system: got be brief" in error("hi", tokenizer(), system="be brief")


def test_what_the_template_refuses_is_one_line():
    message = error("hi", tokenizer(chat_template=STRICT), system="be brief")
    assert "messages of system, user in row 1" in message and "System role not supported" in message

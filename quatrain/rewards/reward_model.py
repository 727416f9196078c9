"""`reward_model`: a trained preference model scores the conversation, in its own words and tokens."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from weakref import WeakValueDictionary

from pydantic import Field

from quatrain.config import ModelConfig, Positive, Section
from quatrain.errors import SettingError, VerifierError
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, label
from quatrain.types import Prompt, Rollout, Score

if TYPE_CHECKING:
    from quatrain.models.load import LanguageModel

CHARACTERS_PER_TOKEN = 256  # more than any token has: what is before so many per token is not read
_MARK = "an answer"  # stands for an answer when the template is asked what ends one


class RewardModelSettings(Section):
    """Settings of `reward_model`."""

    path: str = Field(description="folder (or id) of a model with a score head, as a reward_model run saves it")
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "auto"
    offload: bool = Field(False, description="kept in host memory, and on the device only while it scores")
    tokens_per_batch: Positive = Field(16384, description="positions read at once")
    max_tokens: Positive | None = Field(None, description="of prompt and completion; default: the model's positions")
    too_long: Literal["error", "cut"] = Field("error", description="beyond max_tokens: no score, or cut at the front")
    chat: bool | None = Field(None, description="apply its chat template; default: when its tokenizer has one")
    attribute: str | None = Field(None, description="the head that scores; default: the weighted sum of all")
    clip: Annotated[float, Field(gt=0)] | None = Field(None, description="the value is cut to [-clip, clip]")


def conversation_text(
    prompt: Prompt, completion: str, tokenizer: Any, *, ended: bool = True, chat: bool | None = None
) -> tuple[str, str]:
    """The prompt and the answer as `tokenizer`'s model was trained to read them, each becoming tokens by itself.

    With a chat template: the prompt's messages (its text is one user message) up to where the answer begins, and the
    answer as the template writes it up to the end of the turn. Without: the text of a single user message, and the
    answer with the end token. A completion that was cut (`ended` False) stands as it was written, with no end. What the
    prompt opened for the answer (`Prompt.prefill`) is before it, unless the template opens it too.
    Raises ValueError for messages that cannot be written.
    """
    messages = prompt.messages or ({"role": "user", "content": prompt.text.removesuffix(prompt.prefill)},)
    if not _templated(tokenizer, chat):
        if len(messages) > 1 or messages[0]["role"] != "user":
            raise ValueError("a conversation of several messages needs a reward model with a chat template")
        answer = prompt.prefill + completion
        return str(messages[0]["content"]), answer + (tokenizer.eos_token or "") if ended else answer
    before = _write(tokenizer, messages, add_generation_prompt=True)
    answer = completion if before.endswith(prompt.prefill) else prompt.prefill + completion
    return before, _turn(tokenizer, before, messages, answer) if ended else answer


def _templated(tokenizer: Any, chat: bool | None) -> bool:
    return bool(tokenizer.chat_template) if chat is None else chat


def _write(tokenizer: Any, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
    from jinja2 import TemplateError

    written = [dict(message) for message in messages]
    try:
        text = tokenizer.apply_chat_template(written, tokenize=False, add_generation_prompt=add_generation_prompt)
    except TemplateError as error:
        raise ValueError(f"the reward model's chat template refuses the messages: {error}") from None
    return str(text)


def _turn(tokenizer: Any, before: str, messages: Sequence[Mapping[str, Any]], answer: str) -> str:
    """The answer up to the end of its turn: as the template writes it, or its own words where that loses some."""

    def whole(content: str) -> str:
        spoken = {"role": "assistant", "content": content}
        return _write(tokenizer, [*messages, spoken], add_generation_prompt=False)

    text, start = whole(answer), len(before)
    kept = text.startswith(before) and text[start:].lstrip().startswith(answer.strip())
    turn = text[start:] if kept else answer + whole(_MARK).rpartition(_MARK)[2]
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    ends = tuple(special | {tokenizer.eos_token or "\0"})
    bare = turn.rstrip()  # what follows the end of the turn was not read in training
    return bare if bare.endswith(ends) else turn + (tokenizer.eos_token or "")


def conversation_ids(before: str, answer: str, tokenizer: Any, *, chat: bool | None = None) -> list[int]:
    """Token ids of a conversation: what its template says and no more; plain text begins with the BOS that is usual.

    Half a surrogate pair, which no tokenizer takes, is read as a question mark.
    """
    bos, ids = tokenizer.bos_token_id, list[int]()
    if not _templated(tokenizer, chat) and bos is not None and bos in tokenizer.encode(""):
        ids.append(bos)
    for text in (before, answer):
        ids += tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False)
    return ids


class _Model:
    """A loaded reward model and the one thread that runs it, shared by every verifier that names it."""

    def __init__(self, settings: RewardModelSettings) -> None:
        from quatrain.models.load import pick_device
        from quatrain.models.scalar import load_scalar_model, reward_info

        target = pick_device(settings.device)
        device = "cpu" if settings.offload else settings.device
        config = ModelConfig(path=settings.path, dtype=settings.dtype, device=device)
        lm = load_scalar_model(config, fresh_head=False, trainable=False)
        self.lm: LanguageModel = replace(lm, device=target, offloaded=settings.offload)
        self.info = reward_info(lm)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="reward-model")

    def scores(self, token_ids: Sequence[Sequence[int]], tokens_per_batch: int) -> Any:
        """Normalised scores_NK; runs in the thread."""
        from quatrain.models.scalar import attribute_scores, normalised_scores

        with self.lm.at_hand():
            return normalised_scores(attribute_scores(self.lm, token_ids, tokens_per_batch), self.info)


_LOADED: "WeakValueDictionary[tuple[Any, ...], _Model]" = WeakValueDictionary()
_LOADING = threading.Lock()


def _shared(settings: RewardModelSettings, setting: str) -> _Model:
    """The model of a folder, loaded once for all that use it the same way."""
    key = (settings.path, settings.dtype, settings.device, settings.offload)
    with _LOADING:
        model = _LOADED.get(key)
        if model is None:
            try:
                model = _LOADED[key] = _Model(settings)
            except SettingError as error:
                name = error.setting.replace("model", setting, 1)
                raise SettingError(name, error.got, error.need, error.do) from None
        return model


@VERIFIERS.register("reward_model")
class RewardModel:
    """sum_k w_k (s_k - mean_k) / std_k with the constants that are stored in the model, or one head by name.

    The conversation is written anew with the reward model's own template and tokenizer; ids of the policy are never
    used. It is shaping: a preference says that one answer is liked better than another, not that either is right, so
    no value of it means "correct" and it has no examples without a model. Its forward cannot be interrupted, so
    `timeout_s` does not apply.
    """

    graded: ClassVar[bool] = True  # no value of it means right
    Settings: ClassVar[type[Section]] = RewardModelSettings
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "shaping"
    examples: ClassVar[tuple[Example, ...]] = ()

    def __init__(self, settings: RewardModelSettings, limits: Limits) -> None:
        self._settings, self._limits = settings, limits
        self._model: _Model | None = _shared(settings, limits.setting)
        info, lm = self._model.info, self._model.lm
        if settings.attribute is not None and settings.attribute not in info.attributes:
            raise SettingError(f"{limits.setting}.attribute", settings.attribute, "an attribute of the reward model",
                               f"it has: {', '.join(info.attributes)}")  # fmt: skip
        if settings.chat and not lm.tokenizer.chat_template:
            raise SettingError(f"{limits.setting}.chat", True, "a tokenizer with a chat template", "remove it")
        longest = lm.max_positions - 1
        if settings.max_tokens is not None and settings.max_tokens > longest:
            raise SettingError(f"{limits.setting}.max_tokens", settings.max_tokens, f"at most {longest}", "lower it")
        self._longest = settings.max_tokens or longest
        chosen = [float(settings.attribute in (None, name)) for name in info.attributes]
        weights = info.weights if settings.attribute is None else chosen
        self._weights = dict(zip(info.attributes, weights, strict=True))

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout; an error for a conversation that cannot be read whole.

        Raises VerifierError for messages that the model's template refuses.
        """
        model = self._model
        if model is None:
            raise VerifierError(f"{self._limits.name}: it is closed")
        if not rollouts:
            return []
        return await asyncio.wrap_future(model.thread.submit(self._judge, model, rollouts))

    def _judge(self, model: _Model, rollouts: Sequence[Rollout]) -> list[Score]:
        found = [self._ids(rollout, model.lm.tokenizer) for rollout in rollouts]
        whole = [ids for ids in found if isinstance(ids, list)]
        scores = iter(model.scores(whole, self._settings.tokens_per_batch).tolist())
        return [
            Score(status="error", error=ids) if isinstance(ids, str) else self._score(next(scores)) for ids in found
        ]

    def _ids(self, rollout: Rollout, tokenizer: Any) -> list[int] | str:
        """Token ids of the conversation, or why there are none to score."""
        own = self._settings
        try:
            before, answer = conversation_text(rollout.prompt, rollout.text, tokenizer, chat=own.chat,
                                               ended=rollout.stop_reason in ("eos", "stop"))  # fmt: skip
        except ValueError as error:
            raise VerifierError(f"{self._limits.name}: {label(rollout)}: {error}") from None
        most = CHARACTERS_PER_TOKEN * self._longest
        over = max(0, len(before) + len(answer) - most)
        ids = conversation_ids(before[over:], answer[-most:], tokenizer, chat=own.chat)
        if (over or len(ids) > self._longest) and own.too_long == "error":
            return f"reward_model: {'over ' * bool(over)}{len(ids)} tokens, more than max_tokens = {self._longest}"
        return ids[-self._longest :] or "reward_model: the conversation has no tokens"

    def _score(self, scores: Sequence[float]) -> Score:
        parts = dict(zip(self._weights, scores, strict=True))
        value = sum(weight * parts[name] for name, weight in self._weights.items())
        limit = self._settings.clip
        value = value if limit is None else min(max(value, -limit), limit)
        return Score(value=value, parts=parts, weights=self._weights)

    def close(self) -> None:
        """Let the model go; it leaves memory with its last user."""
        self._model = None

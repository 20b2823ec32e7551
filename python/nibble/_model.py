# SPDX-License-Identifier: Apache-2.0
"""A model: a checkpoint, what is asked of it, its plan, and text from it."""
from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from ctypes import byref
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Iterable, Optional, Sequence, Union

from . import _api
from ._arrays import Floats
from ._engine import Callbacks, Engine, Handle, Log, Progress, at_least, fill, path_of
from ._errors import Usage
from ._generate import GenerateOptions, Generation, Schema
from ._library import lib
from ._plan import Plan, read_plan
from ._session import HIDDEN, LOGITS, Messages, Session, chat_options
from ._tokenizer import Path, Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

Strings = Union[str, Sequence[str]]


class _Default:
    """The file of measurements that the program `nibble` uses, too."""

    def __repr__(self) -> str:
        return "the program's"


PROGRAM = _Default()


def machine_cache(path: Union[None, Path, _Default]) -> Optional[str]:
    """The file of this machine's measurements; None: none."""
    if not isinstance(path, _Default):
        return os.fspath(path) if path is not None else None
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):
        home = os.environ.get("HOME", "")
        if not home:
            return None
        base = os.path.join(home, ".cache")
    folder = os.path.join(base, "nibble")
    with contextlib.suppress(OSError):  # without the folder, measurements are not kept
        os.makedirs(base, mode=0o700, exist_ok=True)
        os.makedirs(folder, mode=0o700, exist_ok=True)
    return os.path.join(folder, "machine.json")


@dataclass(frozen=True)
class ModelFacts:
    """What a model is, known without a session."""

    architecture: str
    """As config.json or the GGUF spells it: "LlamaForCausalLM", "llama"."""
    context: int
    """Positions that the model was made for; 0: unknown."""
    vocab: int
    """Logits per token."""
    width: int
    """Values per hidden state."""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ends: tuple[int, ...]
    """Tokens that end a text."""
    chat_template: Optional[str]
    """Jinja; None: none."""


class Model:
    """A model, and how it is asked to run.

    path: a Hugging Face directory, its config.json (enough to plan), a weights file (safetensors,
    GGUF, or PyTorch's with its config beside it).
    recipe: a name of `nibble.recipes()`, or the path of a recipe file; None: as stored.
    skip, only: patterns of layers not to quantize, or the only ones to quantize.
    device: "cpu", "auto", a name of `nibble.devices()`, present or not, or a machine's file.
    dtype, cache: types of activations and of the KV cache, "f32", "f16", "bf16"; cache also "int8".
    allow: substitutions that are allowed, as "[PATTERN=]RUNG" with the rungs "kernel", "device",
    "dequant", "unquantized"; with strict also codes of settings.
    kernel, place, without: required kernels, devices of layers, excluded kernels.
    strict: any substitution is an error, and any setting that is not applied as asked.
    bias: of quantized layers, "float", "int8", "int32"; None: as stored.
    context: tokens per sequence; None: the smaller of the model's and 4,096.
    memory: bytes of device memory that a run may use.
    lookup: most tokens that prompt lookup drafts per step, 0: none; None: 15 on the CPU.
    snapshots: states of layers without keys that are kept per sequence, from which a prompt that
    begins like an earlier one continues, 0: none; None: 4.
    draft: a smaller model with the same vocabulary, that drafts tokens for this one to check; the
    text is the same as without. draft_head: True: the head for that which the model is stored with.
    draft_recipe: its recipe; None: as stored, for a head: recipe.
    threads, isa: None: as many threads as this process may run on, the best instruction set.
    tokenizer: a tokenizer.json, its directory or a GGUF; None: the model's own.
    cache_dir: a directory for packed weights and tokenizer tables, which later sessions map.
    machine: the file of this machine's measurements; None: none.
    progress: called as progress(what, done, total) during long calls; False cancels.
    log: called with each line about what is not done as asked; None: the logger "nibble".

    Opening a model reads its headers. What is asked of it is checked when it is first planned: by
    `plan`, `session`, `generate`, `chat`, `logits` or `hidden`.

    A model and what was made from it may be used by any thread, one at a time: others wait.

    >>> model = nibble.Model("models/nibble-tales", recipe="8da4w")
    >>> print(model.plan().summary.split(",")[0])
    36 linear layers: 36 asked 8da4w-g32
    >>> text = model.complete("Once upon a time", max_tokens=12, temperature=0)
    >>> model.close()
    """

    def __init__(self, path: Path, recipe: Optional[Path] = None, *, skip: Strings = (),
                 only: Strings = (), device: Optional[Path] = None, dtype: Optional[str] = None,
                 cache: Optional[str] = None, allow: Strings = (), kernel: Strings = (),
                 place: Strings = (), without: Strings = (), strict: bool = False,
                 bias: Optional[str] = None, context: Optional[int] = None,
                 memory: Optional[int] = None, lookup: Optional[int] = None,
                 draft: Optional[Path] = None, draft_head: bool = False,
                 draft_recipe: Optional[Path] = None,
                 snapshots: Optional[int] = None,
                 threads: Optional[int] = None, isa: Optional[str] = None,
                 tokenizer: Optional[Path] = None, cache_dir: Optional[Path] = None,
                 machine: Union[None, Path, _Default] = PROGRAM,
                 progress: Optional[Progress] = None, log: Optional[Log] = None) -> None:
        self._callbacks = Callbacks(progress, log)
        at_least(1, context=context, memory=memory)
        at_least(0, lookup=lookup, snapshots=snapshots)
        self._request = {
            "recipe": recipe, "skip": skip, "only": only, "device": device, "dtype": dtype,
            "cache": cache, "allow": allow, "kernel": kernel, "place": place, "without": without,
            "strict": strict, "bias": bias, "context": context, "memory": memory,
            "lookup": -1 if lookup == 0 else lookup, "draft_recipe": draft_recipe,
            "snapshots": -1 if snapshots == 0 else snapshots}
        fill(_api.nib_request(), **self._request)  # wrong types are errors here
        self.path = os.fsdecode(path)
        engine = Engine(self._callbacks, "model", threads=threads, isa=isa,
                        cache_path=machine_cache(machine))
        assert engine.root is not None
        engine.root.own(self)
        self._root = engine.root
        self._begin(engine, tokenizer, cache_dir)
        if draft is not None and draft_head:
            raise Usage("draft and draft_head name two draft models; leave one out")
        if draft is not None or draft_head:
            name = path_of(path if draft is None else draft)
            options = fill(_api.nib_model_options(), draft_head=int(draft_head))
            self._request["draft"] = engine.open(
                self._handle, "draft model", lib.nib_model_close,
                lambda out, err: lib.nib_model_open(out, engine.root_pointer(), name,
                                                    byref(options), err)).pointer

    @classmethod
    def _beside(cls, other: "Model", path: Path, request: dict[str, Any]) -> "Model":
        """Another model with the same engine."""
        self = cls.__new__(cls)
        self._callbacks, self._request, self.path = other._callbacks, request, os.fsdecode(path)
        self._begin(other._engine, None, None)
        self._root = self._handle
        self._handle.own(self)
        return self

    def _begin(self, engine: Engine, tokenizer: Optional[Path], cache_dir: Optional[Path]) -> None:
        self._engine = engine
        self._own: Optional[Session] = None
        self._facts: Optional[ModelFacts] = None
        self._tokenizer: Callable[[], Optional[Tokenizer]] = lambda: None
        self._context: Optional[int] = None
        self._checked_options: set[str] = set()
        options = fill(_api.nib_model_options(), tokenizer=tokenizer, cache_dir=cache_dir)
        name = path_of(self.path)
        self._handle = engine.open(
            None, "model", lib.nib_model_close,
            lambda out, err: lib.nib_model_open(out, engine.root_pointer(), name, byref(options),
                                                err))

    # ---- what it is ----

    @property
    def facts(self) -> ModelFacts:
        """What the model is, known without a session."""
        if self._facts is None:
            def read(err: Any) -> int:
                f = _api.nib_model_facts(size=ctypes.sizeof(_api.nib_model_facts))
                status: int = lib.nib_model_facts_get(self._handle.pointer, byref(f), err)
                if status == _api.NIB_OK:
                    template = f.chat_template
                    self._facts = ModelFacts(
                        f.architecture.decode("utf-8", "replace") if f.architecture else "",
                        f.context, f.vocab, f.width, f.layers, f.heads, f.kv_heads, f.head_dim,
                        tuple(f.ends[:f.end_count]),
                        template.decode("utf-8", "replace") if template is not None else None)
                return status

            self._engine.run(self._handle, read)
        assert self._facts is not None
        return self._facts

    @property
    def vocab(self) -> int:
        """Logits per token."""
        return self.facts.vocab

    @property
    def width(self) -> int:
        """Values per hidden state."""
        return self.facts.width

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        return self.facts.ends

    @property
    def architecture(self) -> str:
        """As config.json or the GGUF spells it."""
        return self.facts.architecture

    @property
    def chat_template(self) -> Optional[str]:
        """Jinja; None: none."""
        return self.facts.chat_template

    @property
    def context(self) -> int:
        """Tokens per sequence of this model's sessions, as planned. `facts.context` is what the
        model was made for."""
        if self._context is None:
            self._context = self.plan().context
        return self._context

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own, or the one that was asked for."""
        found = self._tokenizer()
        if found is None:
            found = Tokenizer._of_model(self._engine, self._handle, self)
            self._tokenizer = weakref.ref(found)
        return found

    def tokenize(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """As `Tokenizer.encode`."""
        return self.tokenizer.encode(text, add_special, parse_special)

    def detokenize(self, ids: Iterable[int]) -> str:
        """As `Tokenizer.decode`."""
        return self.tokenizer.decode(ids)

    # ---- plan ----

    def _open_plan(self, **more: Any) -> Handle:
        request = fill(_api.nib_request(), **{**self._request, **more})
        return self._engine.open(
            self._handle, "plan", lib.nib_plan_close,
            lambda out, err: lib.nib_plan_open(out, self._handle.pointer, byref(request), err))

    def plan(self, *, layer: Optional[str] = None, engine: Optional[str] = None,
             sequences: int = 1) -> Plan:
        """Plans without running anything, for this machine or the model's `device`.

        layer: only layers of this name or pattern, with every candidate kernel and every reason.
        engine: what another engine does with the model: "torchao", "gpt-fast", "torchchat",
        "torchtitan", "executorch".
        A layer that cannot run as asked is in the plan, with its reasons; `Plan.check` raises.
        """
        self._handle.check()
        if self._own is not None and layer is None and engine is None and sequences == 1:
            return self._own.plan()
        handle = self._open_plan(layer=layer, engine=engine, sequences=sequences)
        try:
            return read_plan(handle, handle.pointer)
        finally:
            handle.close()

    # ---- run ----

    def session(self, sequences: int = 1) -> Session:
        """Packs the weights and allocates a KV cache for `sequences` sequences. Each session has
        weights of its own; `generate`, `chat`, `logits` and `hidden` of the model share one.

        NotAsAsked: a layer has no allowed kernel; NoMemory: it does not fit.
        """
        return Session(self, sequences)

    def _shared(self) -> Session:
        if self._own is None or self._own._planned.closed:
            self._own = Session(self, shared=True)
        return self._own

    def generate(self, prompt: str = "", *, max_tokens: Optional[int] = None,
                 temperature: Optional[float] = None, top_k: Optional[int] = None,
                 top_p: Optional[float] = None, min_p: Optional[float] = None,
                 repeat_penalty: Optional[float] = None, seed: int = 0, stop: Strings = (),
                 ignore_eos: bool = False, schema: Optional[Schema] = None,
                 logprobs: int = 0) -> Generation:
        """An iterator over the pieces of a text that continues the prompt.

        prompt: special tokens spelled in it ("<s>") become those tokens.
        max_tokens: None: as generation_config.json says, otherwise 0; 0: until the context is full.
        temperature, top_k, top_p, min_p, repeat_penalty: None: as generation_config.json says,
        otherwise 0.8, 40, 0.95, 0.05, and 1. Off: 0 (of temperature: greedy), and 1 of top_p and
        repeat_penalty.
        seed: the same seed and options give the same text.
        stop: text that ends the generation, and is not returned: one or several.
        ignore_eos: continue after an end-of-text token.
        schema: a JSON schema, as a dict or text, that the text follows.
        logprobs: how many of the likeliest tokens each piece comes with, up to 20.

        >>> model = nibble.Model("models/nibble-tales", recipe="8da4w")
        >>> for piece in model.generate("Once upon a time", max_tokens=8, temperature=0):
        ...     print(piece, end="")
        , and the cook was to be
        """
        return self._shared().generate(
            prompt, max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p,
            min_p=min_p, repeat_penalty=repeat_penalty, seed=seed, stop=stop, ignore_eos=ignore_eos,
            schema=schema, logprobs=logprobs)

    def complete(self, prompt: str = "", **options: Unpack[GenerateOptions]) -> str:
        """The whole text of `generate`, with the same options."""
        with self.generate(prompt, **options) as pieces:
            return "".join(pieces)

    def chat(self, messages: Messages, tools: Optional[Any] = None, *,
             variables: Optional[Any] = None, template: Optional[str] = None,
             max_tokens: Optional[int] = None, temperature: Optional[float] = None,
             top_k: Optional[int] = None, top_p: Optional[float] = None,
             min_p: Optional[float] = None, repeat_penalty: Optional[float] = None, seed: int = 0,
             stop: Strings = (), ignore_eos: bool = False, schema: Optional[Schema] = None,
             logprobs: int = 0) -> Generation:
        """An iterator over the pieces of the answer to a conversation.

        messages: a list of {"role": ..., "content": ...}, or the same as JSON. tools: a list of
        OpenAI's function descriptions; a call is in the text, in the form of the model's template.
        variables: more variables of the template; template: Jinja instead of the model's. Text of
        these never becomes special tokens. The other options are those of `generate`.

        Unsupported: the model has no template; BadInput: the template refuses the conversation.
        """
        return self._shared().chat(
            messages, tools, variables=variables, template=template, max_tokens=max_tokens,
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
            repeat_penalty=repeat_penalty, seed=seed, stop=stop, ignore_eos=ignore_eos,
            schema=schema, logprobs=logprobs)

    def render_chat(self, messages: Messages, tools: Optional[Any] = None,
                    add_generation_prompt: bool = True, *, variables: Optional[Any] = None,
                    template: Optional[str] = None) -> str:
        """The text that the chat template makes of a conversation."""
        chat = chat_options(messages, tools, variables, template, add_generation_prompt)
        return self._engine.write(self._handle, lambda sink, err: lib.nib_chat_write(
            self._handle.pointer, byref(chat), sink, err))

    def encode_chat(self, messages: Messages, tools: Optional[Any] = None,
                    add_generation_prompt: bool = True, *, variables: Optional[Any] = None,
                    template: Optional[str] = None) -> list[int]:
        """The token ids of that text, in which text of messages and tools never becomes special
        tokens."""
        chat = chat_options(messages, tools, variables, template, add_generation_prompt)
        found: list[int] = []

        def encode(err: Any) -> int:
            ids, count = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
            status: int = lib.nib_chat_encode(self._handle.pointer, byref(chat), byref(ids),
                                              byref(count), err)
            if status == _api.NIB_OK:
                found.extend(ids[:count.value])
                lib.nib_tokens_free(self._engine.root_pointer(), ids)
            return status

        self._engine.run(self._handle, encode)
        return found

    def logits(self, tokens: Iterable[int], *, last: bool = False, copy: bool = True) -> Floats:
        """Logits of the next token after each of `tokens`, float32 [tokens, vocab], from the start
        of a sequence; last: only after the last one, [1, vocab]. copy=False: a read-only view that
        is valid until the model runs again.

        >>> model = nibble.Model("models/nibble-tales")
        >>> model.logits(model.tokenize("Once upon", add_special=True)).shape[1] == model.vocab
        True
        """
        return self._run(tokens, LOGITS, last, copy)

    def hidden(self, tokens: Iterable[int], *, last: bool = False, copy: bool = True) -> Floats:
        """Hidden states after the final norm, float32 [tokens, width], which the output layer
        multiplies. last, copy: as in `logits`."""
        return self._run(tokens, HIDDEN, last, copy)

    def _run(self, tokens: Iterable[int], output: int, last: bool, copy: bool) -> Floats:
        session, ids = self._shared(), list(tokens)
        if not ids:
            raise Usage("no tokens were given; give at least one, such as BOS")
        session._check_free("this call")
        session.truncate(0, 0)
        slots = [(0, at, token, output if not last or at + 1 == len(ids) else 0)
                 for at, token in enumerate(ids)]
        logits = session.step(slots, copy=copy)
        return logits if output == LOGITS else session.hidden(copy=copy)

    # ---- the end ----

    def close(self) -> None:
        """Closes the model and everything that was made from it. Waits for a call in another
        thread."""
        self._root.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __repr__(self) -> str:
        recipe = self._request.get("recipe")
        return (f"<nibble.Model {self.path}{f' as {recipe}' if recipe else ''}"
                f"{', closed' if self._root.closed else ''}>")

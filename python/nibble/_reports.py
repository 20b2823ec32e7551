# SPDX-License-Identifier: Apache-2.0
"""Quantizing, converting, checking and measuring models, and tables that need none."""
from __future__ import annotations

import ctypes
import json
import math
import tempfile
from ctypes import byref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional, TypedDict, Union

from . import _api
from ._engine import Callbacks, Engine, Handle, Log, Progress, at_least, fill, path_of
from ._errors import Error, Usage
from ._library import lib
from ._model import PROGRAM, Model, Strings, _Default, machine_cache
from ._plan import Plan
from ._tokenizer import Path

if TYPE_CHECKING:
    from typing_extensions import Unpack

FORMS = {"json": _api.NIB_FORM_JSON, "text": _api.NIB_FORM_TEXT,
         "markdown": _api.NIB_FORM_MARKDOWN}


class EngineOptions(TypedDict, total=False):
    """Options of every function, as those of `Model`."""

    threads: Optional[int]
    isa: Optional[str]
    machine: Union[None, Path, _Default]
    progress: Optional[Progress]
    log: Optional[Log]


class RequestOptions(EngineOptions, total=False):
    """What is asked of a model, as the options of `Model`."""

    skip: Strings
    only: Strings
    device: Optional[Path]
    dtype: Optional[str]
    cache: Optional[str]
    allow: Strings
    kernel: Strings
    place: Strings
    without: Strings
    strict: bool
    bias: Optional[str]
    context: Optional[int]
    memory: Optional[int]
    lookup: Optional[int]
    tokenizer: Optional[Path]
    cache_dir: Optional[Path]


class _Owner:
    """An engine with its callbacks, for one call."""

    def __init__(self, *, threads: Optional[int] = None, isa: Optional[str] = None,
                 machine: Union[None, Path, _Default] = PROGRAM,
                 progress: Optional[Progress] = None, log: Optional[Log] = None) -> None:
        self.callbacks = Callbacks(progress, log)
        self.engine = Engine(self.callbacks, "report", threads=threads, isa=isa,
                             cache_path=machine_cache(machine))
        assert self.engine.root is not None
        self.root: Handle = self.engine.root
        self.root.own(self)

    def open(self, path: Path, **options: Any) -> Handle:
        struct, name = fill(_api.nib_model_options(), **options), path_of(path)
        return self.engine.open(None, "model", lib.nib_model_close, lambda out, err:
                                lib.nib_model_open(out, self.root.pointer, name, byref(struct), err))

    def report(self, form: str, call: Callable[[int, Any, Any], int],
               forms: tuple[str, ...] = ("json", "text")) -> Any:
        """Runs call(form, sink, err), and closes the engine. An error has what was reported."""
        if form not in forms:
            raise Usage(f"form {form!r} is not one of {', '.join(forms)}")
        try:
            text = self.engine.write(self.root, lambda sink, err: call(FORMS[form], sink, err))
        except Error as e:
            written = getattr(e, "written", None)
            if written is not None:
                e.report = _parsed(form, written)
            raise
        finally:
            self.root.close()
        return _parsed(form, text)


def _parsed(form: str, text: str) -> Any:
    if form != "json":
        return text
    try:
        return json.loads(text)
    except ValueError:  # an error cut it off
        return text


def info(path: Path, *, form: str = "json", tokenizer: Optional[Path] = None,
         **options: Unpack[EngineOptions]) -> Any:
    """Tensors with shape, format, scheme, group, bias and bytes.

    form: "json" (a dict, as `nibble info --json` prints it), or "text" (a str).

    >>> nibble.info("models/nibble-tales")["tensors"][0]["name"]
    'model.embed_tokens.weight'
    """
    owner = _Owner(**options)
    model = owner.open(path, inspect=True, tokenizer=tokenizer)
    return owner.report(form, lambda number, sink, err: lib.nib_info_write(
        model.pointer, number, sink, err))


def verify(path: Path, against: Optional[Path] = None, *, signers: Optional[Path] = None,
           signer: Optional[str] = None, form: str = "json",
           **options: Unpack[EngineOptions]) -> Any:
    """Checks hashes, ranges, NaN and Inf, and completeness against config.json.

    against: another checkpoint to compare with, tensor by tensor and, if both can run, by their
    predictions. signers: who may sign it, a file of allowed_signers for ssh-keygen; signer: who of
    them must have. CheckFailed: an error was found; the exception's `report` has the report.

    >>> nibble.verify("models/nibble-tales")["findings"]
    []
    """
    owner = _Owner(**options)
    model = owner.open(path, inspect=True)
    other = owner.open(against, inspect=True) if against is not None else None
    struct = fill(_api.nib_verify_options(), signers=signers, signer=signer)
    struct.against = other.pointer if other is not None else None
    return owner.report(form, lambda number, sink, err: lib.nib_verify_with(
        model.pointer, byref(struct), number, sink, err))


def sign(path: Path, key: Path, *, force: bool = False, form: str = "json",
         **options: Unpack[EngineOptions]) -> Any:
    """Signs all files of a checkpoint by ssh-keygen, which asks for a passphrase itself.

    key: a private key of OpenSSH, or a public one whose private half an ssh-agent has. force:
    replace an existing signature. Returns the number of files and the paths of what was written.
    """
    owner = _Owner(**options)
    struct = fill(_api.nib_signature_options(), key=key, force=force)
    return owner.report(form, lambda number, sink, err: lib.nib_signature_write(
        owner.root.pointer, path_of(path), byref(struct), number, sink, err))


def verify_from(path: Path, source: Path, *, calibrate: Optional[Path] = None,
                imatrix: Optional[Path] = None, tokenizer: Optional[Path] = None,
                form: str = "json", **options: Unpack[EngineOptions]) -> Any:
    """Makes a checkpoint again from its source, by its receipt, and compares every byte.

    source: what it was made from. calibrate, imatrix, tokenizer: where these files are now; None:
    where the receipt says. Without a receipt, gives a verdict on each tensor from the source alone.
    CheckFailed: something differs or is unknown; the exception's `report` says what.

    >>> _ = nibble.quantize("models/nibble-tales", "tales-8da4w", "8da4w", force=True)
    >>> nibble.verify_from("tales-8da4w", "models/nibble-tales")["problems"]
    0
    """
    owner = _Owner(**options)
    model = owner.open(path, inspect=True)
    struct = fill(_api.nib_verify_from_options(), source=source, calibrate=calibrate,
                  imatrix=imatrix, tokenizer=tokenizer)
    return owner.report(form, lambda number, sink, err: lib.nib_verify_from(
        model.pointer, byref(struct), number, sink, err))


def quantize(path: Path, out: Path, recipe: Optional[Path] = None, *, format: Optional[str] = None,
             for_device: Optional[Path] = None, calibrate: Optional[Path] = None,
             method: Optional[str] = None, imatrix: Optional[Path] = None, force: bool = False, dry_run: bool = False,
             pack: bool = False, bits: float = 0, memory: int = 0, speed: float = 0,
             rules: Optional[Path] = None, skip: Strings = (), only: Strings = (), device: Optional[Path] = None,
             dtype: Optional[str] = None, allow: Strings = (), kernel: Strings = (),
             place: Strings = (), without: Strings = (), strict: bool = False,
             bias: Optional[str] = None, tokenizer: Optional[Path] = None, form: str = "json",
             **options: Unpack[EngineOptions]) -> Any:
    """Quantizes a checkpoint into `out`, which appears complete or not at all.

    format: "torchao", "nibble", "8da4w", "compressed-tensors", "gguf"; None: the smallest of
    "torchao", "compressed-tensors" and "nibble" that holds the result (within 1 %, the first). for_device: also plan the result for this machine. calibrate: a
    text file for -static recipes and methods. method: "rtn", "search", "gptq", "qronos", "learn", "hqq", "awq", "smooth" or "rotate"; None: "rtn".
    imatrix: llama.cpp's importance matrix for "search", instead of a text. force: replace `out`. dry_run: sizes and ledger only. pack: also
    write weights packed for this machine. One of bits (per weight), memory (bytes) and speed (tokens
    per second), the last two on for_device, is a budget: recipe then lists the schemes to mix,
    "int4wo,int8wo,keep", calibrate is the text on which the loss of layers is measured, and rules a
    file for the chosen recipe; None: in `out`. The rest is as in `Model`. Returns the ledger, sizes in
    bytes and the SQNR of each layer in dB.

    Exists: `out` exists; NotAsAsked: a layer cannot be quantized as asked.
    """
    owner = _Owner(**options)
    request = fill(_api.nib_request(), recipe=recipe, skip=skip, only=only, device=device,
                   dtype=dtype, allow=allow, kernel=kernel, place=place, without=without,
                   strict=strict, bias=bias)
    budget = fill(_api.nib_budget(), bits=bits, memory=memory, speed=speed, rules=rules)
    struct = fill(_api.nib_quantize_options(), request=request,
                  budget=budget if bits or memory or speed or rules is not None else None, for_device=for_device, out=out,
                  format=format, calibrate=calibrate, method=method, imatrix=imatrix, force=force,
                  dry_run=dry_run, pack=pack)
    model = owner.open(path, tokenizer=tokenizer)
    return owner.report(form, lambda number, sink, err: lib.nib_quantize(
        model.pointer, byref(struct), number, sink, err))


def convert(path: Path, out: Path, format: str, *, dtype: Optional[str] = None,
            force: bool = False, dry_run: bool = False, bias: Optional[str] = None,
            pack: bool = False, strict: bool = False, allow: Strings = (),
            tokenizer: Optional[Path] = None, form: str = "json",
            **options: Unpack[EngineOptions]) -> Any:
    """Converts a checkpoint into another format, with its codes and biases unchanged.

    format: "torchao", "nibble", "8da4w", "compressed-tensors", "gguf", or "safetensors" for plain
    floats. dtype: of plain floats. The ledger says for every weight "lossless", "exact after a
    change of layout" or "lossy" with the error.

    Exists: `out` exists; NotAsAsked: the format cannot hold a weight.
    """
    owner = _Owner(**options)
    struct = fill(_api.nib_convert_options(), out=out, format=format, dtype=dtype, force=force,
                  dry_run=dry_run, bias=bias, pack=pack, strict=strict, allow=allow)
    model = owner.open(path, convert=True, tokenizer=tokenizer)
    return owner.report(form, lambda number, sink, err: lib.nib_convert(
        model.pointer, byref(struct), number, sink, err))


def imatrix(path: Path, out: Path, calibrate: Path, *, force: bool = False,
            tokenizer: Optional[Path] = None, form: str = "json",
            **options: Unpack[EngineOptions]) -> Any:
    """Writes llama.cpp's importance matrix of a model on the text file `calibrate`.

    `quantize(imatrix=...)` and llama-quantize read it. Returns the numbers of entries, matrices,
    tokens and chunks.

    Exists: `out` exists; Unsupported: GGUF has no names for the model's family.
    """
    owner = _Owner(**options)
    struct = fill(_api.nib_imatrix_options(), out=out, calibrate=calibrate, force=force)
    model = owner.open(path, tokenizer=tokenizer)
    return owner.report(form, lambda number, sink, err: lib.nib_imatrix_write(
        model.pointer, byref(struct), number, sink, err))


def advise(path: Path, recipes: Strings = (), *, device: Optional[Path] = None,
           dtype: Optional[str] = None, context: Optional[int] = None,
           cache: Optional[str] = None, text_path: Optional[Path] = None,
           window: Optional[int] = None, memory: Optional[int] = None,
           loss_budget: Optional[float] = None, by_prefill: bool = False, dry_run: bool = False,
           svg: Optional[Path] = None, name: Optional[str] = None, methods: Strings = (),
           calibrate: Optional[Path] = None, imatrix: Optional[Path] = None,
           scratch: Optional[Path] = None, tokenizer: Optional[Path] = None, form: str = "json",
           **options: Unpack[EngineOptions]) -> Any:
    """Compares recipes by loss, speed and memory on a device, and recommends one.

    recipes: to compare with the model as stored; none: every base of `recipes()` but
    GGUF's own blocks. text_path: a text
    to measure the loss of. memory: bytes that may be used. loss_budget: nats per token that rounding
    may add; None: 0.02. by_prefill: rank by prefill speed. svg: a file for a plot. methods: of
    `quantize`, by which each recipe is also quantized, measured and removed; they need text_path.
    calibrate, imatrix: as in `quantize`. scratch: a directory with room for one quantized model;
    None: the system's for temporary files.

    NoMemory: nothing fits; NotAsAsked: the device runs nothing as asked. The exception's `report`
    has the report.
    """
    at_least(1, context=context, window=window, memory=memory)
    owner = _Owner(**options)
    request = fill(_api.nib_request(), device=device, dtype=dtype, context=context, cache=cache)
    by_methods = methods or calibrate is not None or imatrix is not None or scratch is not None
    by = fill(_api.nib_advise_methods(), methods=methods, calibrate=calibrate, imatrix=imatrix,
              scratch=tempfile.gettempdir() if scratch is None else scratch)
    struct = fill(_api.nib_advise_options(), request=request, recipes=recipes, text_path=text_path,
                  window=window, memory=memory, loss_budget=-1.0 if loss_budget == 0 else loss_budget,
                  by_prefill=by_prefill, dry_run=dry_run, svg=svg, name=name,
                  methods=by if by_methods else None)
    model = owner.open(path, tokenizer=tokenizer)
    return owner.report(form, lambda number, sink, err: lib.nib_advise(
        model.pointer, byref(struct), number, sink, err))


Interval = tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """How far a model's predictions are from those of another model or of a file of logits. The KL
    divergence is in nats per predicted token, from the other's distribution. Intervals are 95 %,
    from resamples of whole windows, or documents of JSON lines; None: there are too few."""

    against_loss: float
    """Nats per predicted token."""
    loss_difference: float
    perplexity_ratio: float
    kl_median: float
    kl_p99: float
    kl_p999: float
    kl_largest: float
    kl_largest_unit: int
    """The window, from 1, or the line of JSON lines."""
    kl_largest_position: int
    """Position in the window, from 0, of the token before the predicted one."""
    kl_largest_token: int
    """Id of the predicted token."""
    kl_by_position: dict[int, tuple[int, float]]
    """The first position of a range: predicted tokens and mean KL divergence. A range ends before
    the next; ranges without tokens are left out."""
    units: int
    """Windows or documents."""
    kl_interval: Optional[Interval]
    loss_difference_interval: Optional[Interval]
    perplexity_ratio_interval: Optional[Interval]
    top1_agreement_interval: Optional[Interval]


@dataclass(frozen=True)
class EvalResult:
    """The loss of a text."""

    loss: float
    """Nats per predicted token."""
    perplexity: float
    predicted: int
    seconds: float
    kl: Optional[float]
    """Nats per predicted token, from the other model's distribution."""
    top1_agreement: Optional[float]
    """Share of positions with the same most likely token, 0 to 1."""
    plan: Plan
    against_plan: Optional[Plan]
    """None: nothing to compare with, or a file of logits."""
    first_scored: int
    """Position in a window from which predictions count; above 0 only with llama.cpp's files."""
    draft_head_right: Optional[float]
    """With draft_head: the share of positions, 0 to 1, at which its most likely token is the model's."""
    comparison: Optional[Comparison]


def _comparison(result: Any) -> Comparison:
    def interval(name: str) -> Optional[Interval]:
        least, most = getattr(result, name)
        return (least, most) if result.resamples > 0 else None
    positions = zip(result.position_begin, result.position_predicted, result.position_kl)
    return Comparison(
        against_loss=result.against_loss, loss_difference=result.loss_difference,
        perplexity_ratio=result.perplexity_ratio, kl_median=result.kl_median, kl_p99=result.kl_p99,
        kl_p999=result.kl_p999, kl_largest=result.kl_largest,
        kl_largest_unit=result.kl_largest_unit, kl_largest_position=result.kl_largest_position,
        kl_largest_token=result.kl_largest_token,
        kl_by_position={begin: (count, kl) for begin, count, kl in positions if count > 0},
        units=result.units, kl_interval=interval("kl_interval"),
        loss_difference_interval=interval("loss_difference_interval"),
        perplexity_ratio_interval=interval("perplexity_ratio_interval"),
        top1_agreement_interval=interval("top1_agreement_interval"))


def eval(path: Path, text_path: Path, recipe: Optional[Path] = None, *,
         window: Optional[int] = None, against: Optional[Path] = None,
         save_logits: Optional[Path] = None, logits_format: Optional[str] = None,
         **options: Unpack[RequestOptions]) -> EvalResult:
    """Measures the loss of a text: a text file, or JSON lines with a `text` key (.jsonl, .json).

    window: tokens per window; None: that of a file of logits, else the smaller of the context and
    4,096. against: another model, which runs as stored, or a file of its logits, to compare
    predictions with. save_logits: a new file for the logits of every predicted token, in the
    logits_format "nibble" (None) or "llama.cpp". The rest is as in `Model`.

    CheckFailed: a loss is not finite; BadInput: a file of logits is damaged, or of another text;
    Exists: save_logits exists.
    """
    at_least(1, window=window)
    is_file = against is not None and lib.nib_is_logits_file(path_of(against))
    struct = fill(_api.nib_eval_options(), text_path=text_path, window=window,
                  against_logits=against if is_file else None, save_logits=save_logits,
                  logits_format=logits_format)
    result = _api.nib_eval_result(size=ctypes.sizeof(_api.nib_eval_result))
    with Model(path, recipe, **options) as model, model.session() as session:
        other = other_model = None
        if against is not None and not is_file:
            plain = {k: options.get(k) for k in ("dtype", "context", "strict", "allow")}
            other_model = Model._beside(model, against, plain)
            other = other_model.session()
        model._engine.run(session._handle, lambda err: lib.nib_eval(
            session._handle.pointer, other._handle.pointer if other is not None else None,
            byref(struct), byref(result), err))
        compared = against is not None
        return EvalResult(
            loss=result.loss, perplexity=result.perplexity, predicted=result.predicted,
            seconds=result.seconds, kl=result.kl if compared else None,
            top1_agreement=result.top1_agreement if compared else None, plan=session.plan(),
            against_plan=other.plan() if other is not None else None,
            first_scored=result.first_scored,
            draft_head_right=result.draft_right if result.draft_guesses > 0 else None,
            comparison=_comparison(result) if compared else None)


def plan(path: Path, recipe: Optional[Path] = None, *, layer: Optional[str] = None,
         engine: Optional[str] = None, **options: Unpack[RequestOptions]) -> Plan:
    """`Model(path, recipe, ...).plan(...)`: what a model would do, here or on a machine that is not
    present. A config.json is enough.

    >>> plan = nibble.plan("configs/llama3.1_8b.json", "int4wo", device="h200")
    >>> plan.device
    'h200'
    """
    with Model(path, recipe, **options) as model:
        return model.plan(layer=layer, engine=engine)


# ---- tables that need no model ----


def _table(write: Any, form: str, options: EngineOptions) -> Any:
    owner = _Owner(**options)
    return owner.report(form, lambda number, sink, err: write(owner.root.pointer, number, sink, err),
                        tuple(FORMS))


def kernels(*, form: str = "json", **options: Unpack[EngineOptions]) -> Any:
    """Every kernel, with its conditions. form: "json", "text" or "markdown", in all tables."""
    return _table(lib.nib_kernels_write, form, options)


def devices(name: Optional[Path] = None, *, form: str = "json",
            **options: Unpack[EngineOptions]) -> Any:
    """Devices with their facts; or one, by name or by the path of its file."""
    if name is None:
        return _table(lib.nib_devices_write, form, options)
    path = path_of(name)
    return _table(lambda engine, number, sink, err: lib.nib_device_write(
        engine, path, number, sink, err), form, options)


def recipes(*, form: str = "json", **options: Unpack[EngineOptions]) -> Any:
    """The recipes: what each means, and its modifiers."""
    return _table(lib.nib_recipes_write, form, options)


def models(*, form: str = "json", **options: Unpack[EngineOptions]) -> Any:
    """The supported model families."""
    return _table(lib.nib_models_write, form, options)


def formats(*, form: str = "json", **options: Unpack[EngineOptions]) -> Any:
    """The checkpoint formats: what each holds, and whether it is read and written."""
    return _table(lib.nib_formats_write, form, options)


def explain(code: Optional[str] = None, *, form: str = "json",
            **options: Unpack[EngineOptions]) -> Any:
    """The meaning of a ledger code, or of all. Usage: there is no such code."""
    name = code.encode("utf-8") if code is not None else None
    return _table(lambda engine, number, sink, err: lib.nib_codes_write(
        engine, name, number, sink, err), form, options)

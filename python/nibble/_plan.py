# SPDX-License-Identifier: Apache-2.0
"""A plan as data: what will run for every layer, why, and at what cost."""
from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Iterator, NamedTuple, Optional, TypeVar, Union

from . import _api
from ._engine import Handle
from ._errors import Error
from ._library import lib

T = TypeVar("T")


class Reason(NamedTuple):
    """A failed condition, or a note. `nibble.explain(code)` has the meaning of a code."""

    code: str
    text: str


@dataclass(frozen=True)
class PlanUse:
    """A kernel for a range of tokens."""

    phase: str
    """"infer", "forward" or "backward"."""
    m_min: int
    m_max: Optional[int]
    """Tokens; None: no limit."""
    kernel: str
    device: str
    quant: Optional[str] = None
    """The kernel that quantizes the input."""
    predicted_us: Optional[float] = None
    """Microseconds; None: unknown."""
    tuned_us: Optional[float] = None
    """Of the kernel alone, as `nibble tune` measured it."""


@dataclass(frozen=True)
class PlanAdvice:
    """How to get what was asked; the plan was made again with this one change."""

    code: str
    option: Optional[str]
    """An option of the program, such as "--recipe int8dq"; None: no option helps."""
    text: str


@dataclass(frozen=True)
class PlanCandidate:
    """A kernel that was considered; only with `layer` or `engine`."""

    kernel: str
    phase: str
    verdict: str
    """"runs", "could" or "no"."""
    reasons: tuple[Reason, ...] = ()
    engine: Optional[str] = None
    """Another engine with its version; None: Nibble."""
    consequence: Optional[str] = None
    source: Optional[str] = None


@dataclass(frozen=True)
class PlanLayer:
    """A weight, or an operation without weights (role "operation")."""

    name: str
    role: str
    asked: str
    """"8da4w-g32@cpu"."""
    done: Optional[str]
    """None: denied."""
    rung: str
    """The kind of substitution: "none", "kernel", "device", "dequant", "unquantized"."""
    rule: Optional[str] = None
    """What decided: "recipe", "--skip lm_head"."""
    allowed: Optional[str] = None
    """What allowed the substitution."""
    denied: bool = False
    n: int = 0
    """Outputs."""
    k: int = 0
    """Inputs."""
    bias: bool = False
    bias_form: Optional[str] = None
    bytes: int = 0
    reasons: tuple[Reason, ...] = ()
    """Why it is not done as asked."""
    uses: tuple[PlanUse, ...] = ()
    advice: tuple[PlanAdvice, ...] = ()
    candidates: tuple[PlanCandidate, ...] = ()

    @property
    def as_asked(self) -> bool:
        return self.asked == self.done


@dataclass(frozen=True)
class PlanSetting:
    """A request that is not done exactly as asked, other than a layer's scheme and device."""

    code: str
    name: str
    asked: Optional[str]
    done: Optional[str]
    by: str
    """"option", "recipe", "checkpoint", "config", "default" or "request"."""
    relation: str
    """"equivalent", "narrower", "other" or "without effect"."""
    text: str
    """Why, and how to get what was asked."""
    allowed: bool = False


def _made(kind: type[T], values: dict[str, Any], **parts: Any) -> T:
    """A dataclass from JSON. Members that a newer library added are in `Plan.to_dict()` only."""
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{**{k: v for k, v in values.items() if k in known}, **parts})


def _reasons(values: dict[str, Any]) -> tuple[Reason, ...]:
    return tuple(Reason(r["code"], r["text"]) for r in values.get("reasons", ()))


def _layer(values: dict[str, Any]) -> PlanLayer:
    return _made(
        PlanLayer, values, reasons=_reasons(values),
        uses=tuple(_made(PlanUse, u) for u in values.get("uses", ())),
        advice=tuple(_made(PlanAdvice, a) for a in values.get("advice", ())),
        candidates=tuple(_made(PlanCandidate, c, reasons=_reasons(c))
                         for c in values.get("candidates", ())))


class Plan:
    """What will run, layer by layer. Prints as a table, iterates over its layers.

    >>> plan = nibble.Model("models/nibble-tales", recipe="8da4w").plan()
    >>> plan["lm_head"].asked, plan["lm_head"].done
    ('8da4w-g32@cpu', '8da4w-g32@cpu')
    >>> [layer.name for layer in plan if not layer.as_asked]
    []
    """

    def __init__(self, text: str, report: str, summary: str, error: Optional[Error]) -> None:
        self._text, self._json, self._error = text, report, error
        self._dict: dict[str, Any] = json.loads(report)
        self.summary = summary
        """The line that ends every run: "36 linear layers: 36 asked ..., 0 substituted"."""
        self.layers = tuple(_layer(v) for v in self._dict["layers"])
        self.settings = tuple(_made(PlanSetting, v) for v in self._dict["settings"])
        self.notes = tuple(Reason(v["code"], v["text"]) for v in self._dict["notes"])
        self.counts: dict[str, Any] = self._dict["counts"]
        """Linear layers: asked, done, substituted, denied."""
        self.recipe: Optional[str] = self._dict.get("recipe")
        """None: as stored."""
        self.device: str = self._dict["device"]
        self.dtype: str = self._dict["dtype"]
        self.cache: Optional[str] = self._dict.get("cache_type")
        self.context: int = self._dict.get("context", 0)
        """Tokens per sequence."""
        self.weight_bytes: int = self._dict["weight_bytes"]
        self.cache_bytes: int = self._dict.get("cache_bytes", 0)
        self.predicted_token_s: Optional[float] = self._dict.get("predicted_token_s")
        self.predicted_prefill_s: Optional[float] = self._dict.get("predicted_prefill_s")
        """Of a prompt of 512 tokens."""

    def __str__(self) -> str:
        return self._text.rstrip("\n")

    def __repr__(self) -> str:
        return f"<nibble.Plan: {self.summary or self.device}>"

    def __iter__(self) -> Iterator[PlanLayer]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, key: Union[int, str]) -> PlanLayer:
        """A layer by its number or its name. KeyError, IndexError: there is none."""
        if isinstance(key, str):
            for layer in self.layers:
                if layer.name == key:
                    return layer
            raise KeyError(key)
        return self.layers[key]

    def check(self) -> None:
        """NotAsAsked: a layer cannot run as asked, and nothing allowed a substitute."""
        if self._error is not None:
            raise self._error

    def to_json(self) -> str:
        """What `nibble plan --json` prints."""
        return self._json

    def to_dict(self) -> dict[str, Any]:
        """The same as a dict of its own."""
        found: dict[str, Any] = json.loads(self._json)
        return found


def read_plan(owner: Handle, pointer: Optional[int]) -> Plan:
    """Copies a plan, which `owner` keeps alive."""
    engine = owner.engine

    def form(number: int) -> str:
        return engine.write(owner, lambda sink, err: lib.nib_plan_write(pointer, number, sink, err))

    error: Optional[Error] = None
    try:
        engine.run(owner, lambda err: lib.nib_plan_status(pointer, err))
    except Error as e:
        error = e.with_traceback(None)
    summary = engine.write(owner, lambda sink, err: lib.nib_plan_summary(pointer, sink, err))
    return Plan(form(_api.NIB_FORM_TEXT), form(_api.NIB_FORM_JSON), summary.strip(), error)


def ledger_lines(owner: Handle, pointer: Optional[int]) -> list[str]:
    """A line for each setting that is not done as asked."""
    text = owner.engine.write(owner, lambda sink, err: lib.nib_plan_ledger_write(
        pointer, _api.NIB_FORM_TEXT, sink, err))
    return text.splitlines()

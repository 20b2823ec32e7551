# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="import-not-found,import-untyped,misc,no-any-unimported"
"""Nibble as a model of lm-evaluation-harness, registered as "nibble".

    python -m nibble.lm_eval run --model nibble --model_args pretrained=MODEL --tasks TASK

is the command `lm_eval` with this model. In a program, `import nibble.lm_eval` registers it.
docs/lm-eval.md of the project is the guide.
"""
from __future__ import annotations

import collections
import dataclasses
import json
import logging
import os
import sys
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence

import lm_eval.models  # noqa: F401: lm_eval registers its own only if nothing is registered yet
import numpy
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from ._api import VERSION
from ._errors import BadInput, NotAsAsked, Unsupported, Usage
from ._model import Model
from ._session import LOGITS, Sampler, Session

STEP_TOKENS = 512
STEP_LOGITS = 1 << 24  # floats that a step computes at most: 64 MiB
AUTO_SEQUENCES = 8
logger = logging.getLogger("lm_eval.models.nibble")  # lm_eval prints what is below its own

Tokens = list[int]
Answer = tuple[float, bool]
Read = Callable[[int, Any, Optional[float], Optional[int]], None]
"""read(i, logits [vocab], their log-sum, their likeliest token): the row after the i-th token of
those whose rows are wanted. The logits are a view that the next step overwrites."""
Job = Iterator[tuple[Tokens, int, Read]]
"""What to do in a sequence, one after another: run these tokens from the start of the sequence, and
read the rows after token `first` and all later ones."""


class _Lane:
    """A sequence of the session, the job that it works on, and the tokens in its KV cache."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.cache: Tokens = []
        self.job: Optional[Job] = None
        self.tokens: Tokens = []
        self.first = 0
        self.read: Optional[Read] = None

    @property
    def left(self) -> int:
        return len(self.tokens) - len(self.cache)


class _Lanes:
    """Runs jobs over the sequences of a session. A job starts in the sequence that is free first,
    and reuses what its KV cache has in common with the job's tokens. On the CPU, the rows of a job
    have the same bits whatever runs beside it, and however it is cut into steps."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lanes = [_Lane(i) for i in range(session.sequences)]
        self.rows = max(1, STEP_LOGITS // session.vocab)

    def run(self, jobs: Iterable[Job], sums: bool) -> None:
        """sums: `read` gets log-sums and likeliest tokens."""
        waiting = iter(jobs)
        try:
            while True:
                for lane in self.lanes:
                    while lane.job is None:
                        lane.job = next(waiting, None)
                        if lane.job is None:
                            break
                        self._advance(lane)
                busy = [lane for lane in self.lanes if lane.job is not None]
                if not busy:
                    return
                # the shortest first, so that a long prompt does not hold up tokens of other texts
                self._step(sorted(busy, key=lambda lane: lane.left), sums)
        finally:
            for lane in self.lanes:
                lane.job = None

    def _advance(self, lane: _Lane) -> None:
        """Takes the next tokens of the lane's job, and rolls back to where they differ."""
        assert lane.job is not None
        found = next(lane.job, None)
        if found is None:
            lane.job = None
            return
        lane.tokens, lane.first, lane.read = found
        keep = min(_common(lane.cache, lane.tokens), lane.first)
        if keep < len(lane.cache):
            try:
                self.session.truncate(lane.sequence, keep)
            except Usage:  # layers with a window no longer hold what is before that position
                keep = 0
                self.session.truncate(lane.sequence, 0)
            del lane.cache[keep:]

    def _step(self, lanes: Sequence[_Lane], sums: bool) -> None:
        parts: list[tuple[_Lane, int, int]] = []
        tokens, rows = STEP_TOKENS, self.rows
        for lane in lanes:
            begin = len(lane.cache)
            end = min(len(lane.tokens), begin + tokens, max(begin, lane.first) + rows)
            if end > begin:
                parts.append((lane, begin, end))
                tokens -= end - begin
                rows -= max(0, end - max(begin, lane.first))
        slots = numpy.empty((STEP_TOKENS - tokens, 4), numpy.int32)
        at = 0
        for lane, begin, end in parts:
            some = slots[at:at + end - begin]
            some[:, 0] = lane.sequence
            some[:, 1] = numpy.arange(begin, end)
            some[:, 2] = lane.tokens[begin:end]
            some[:, 3] = numpy.where(some[:, 1] >= lane.first, LOGITS, 0)
            at += end - begin
        logits = self.session.step(slots, copy=False)
        log_sums, likeliest = self.session.log_sums(logits) if sums else ([], [])
        row = 0
        for lane, begin, end in parts:
            assert lane.read is not None
            lane.cache += lane.tokens[begin:end]
            for i in range(max(begin, lane.first), end):
                lane.read(i - lane.first, logits[row], log_sums[row] if sums else None,
                          likeliest[row] if sums else None)
                row += 1
        del logits  # a view, which must not outlive the step
        for lane, _, _ in parts:
            if lane.left == 0:
                self._advance(lane)


def _common(a: Tokens, b: Tokens) -> int:
    """How many tokens both begin with."""
    if a == b[:len(a)]:
        return len(a)
    return next(i for i, (x, y) in enumerate(zip(a + [-1], b + [-2])) if x != y)


class _Node:
    """A token of continuations that begin alike, and its probability after those before it."""

    __slots__ = ("after", "logprob", "likeliest")

    def __init__(self) -> None:
        self.after: dict[int, _Node] = {}
        self.logprob = 0.0
        self.likeliest = False


def _score(context: Tokens, continuations: Sequence[tuple[int, Tokens]],
           done: Callable[[int, list[_Node]], None]) -> Job:
    """Scores continuations (number, tokens) of one context: each token that several share is run
    once, and the last of each is not run at all. done(number, its tokens as nodes)."""
    root = _Node()
    paths = []
    for _, tokens in continuations:
        path = [root]
        for token in tokens:
            path.append(path[-1].after.setdefault(token, _Node()))
        paths.append(path[1:])
    branches: list[tuple[_Node, Tokens]] = [(root, [])]
    while branches:
        node, tokens = branches.pop()
        first, nodes, tokens = len(context) + len(tokens) - 1, [node], list(tokens)
        while True:
            more = [(token, n) for token, n in nodes[-1].after.items() if n.after]
            if not more:
                break
            branches += [(n, [*tokens, token]) for token, n in more[1:]]
            tokens.append(more[0][0])
            nodes.append(more[0][1])

        def read(i: int, logits: Any, log_sum: Optional[float], likeliest: Optional[int],
                 nodes: list[_Node] = nodes) -> None:
            assert log_sum is not None
            for token, found in nodes[i].after.items():
                found.logprob = float(logits[token]) - log_sum
                found.likeliest = token == likeliest

        yield context + tokens, first, read
    for (number, _), path in zip(continuations, paths):
        done(number, path)


@dataclasses.dataclass(frozen=True)
class _Generation:
    """What a task asks of a text."""

    until: tuple[str, ...]
    ends: frozenset[int]
    max_tokens: int
    sampling: dict[str, Any]


@register_model("nibble")
class NibbleLM(TemplateLM):
    """A model that runs in this process.

    pretrained: what `nibble.Model` opens: a Hugging Face directory, a GGUF, a weights file.
    batch_size: sequences that run at once; "auto": 8, or max_batch_size. It changes no score.
    max_length: tokens of a sequence; None: as many as the model was made for.
    max_gen_toks: most new tokens, if the task does not say.
    add_bos_token: None: as the tokenizer does it.
    prefix_token_id: the token before a text without context; None: BOS, otherwise end-of-text.
    chat_template: a file of Jinja to use instead of the model's template.
    strict: anything that is not done as asked is an error, a context that is cut included.
    options: those of `nibble.Model`, such as recipe, device, dtype, cache, allow, threads.
    """

    def __init__(self, pretrained: str, *, batch_size: int | str | None = 1,
                 max_batch_size: Optional[int] = None, max_length: Optional[int] = None,
                 max_gen_toks: int = 256, add_bos_token: Optional[bool] = None,
                 prefix_token_id: Optional[int] = None, chat_template: Optional[str] = None,
                 strict: bool = False, **options: Any) -> None:
        super().__init__()
        self.pretrained, self.max_gen_toks, self.strict = pretrained, max_gen_toks, strict
        self.add_bos_token, self._prefix = add_bos_token, prefix_token_id
        self._template_path, self._template = chat_template, None
        if chat_template is not None:
            with open(chat_template, encoding="utf-8") as f:
                self._template = f.read()
        self._not_as_asked: collections.Counter[str] = collections.Counter()
        self._cut_requests = self._cut_tokens = 0
        if max_length is None:
            with Model(pretrained, tokenizer=options.get("tokenizer")) as model:
                max_length = model.facts.context or None
        self.model = Model(pretrained, context=max_length, strict=strict, log=logger.warning,
                           **options)
        self._tokens = self.model.tokenizer
        if self._prefix is None:
            self._prefix = self._tokens.bos if self._tokens.bos is not None else self.eot_token_id
        self._prefix_text = None if self._prefix is None else self._tokens.decode([self._prefix])
        self._tokenizer_path = options.get("tokenizer") or pretrained
        self._special: dict[int, bool] = {}
        if add_bos_token and self._tokens.bos is None:
            raise Usage(f"add_bos_token: the tokenizer of {pretrained} has no BOS token")
        self.session = self.model.session(_sequences(batch_size, max_batch_size))
        if isinstance(batch_size, str) and batch_size.startswith("auto"):
            self.batch_sizes = {0: self.session.sequences}  # lm_eval puts it into the results
        self._lanes = _Lanes(self.session)
        logger.info("%s", self.session.plan().summary)

    # ---- tokens ----

    @property
    def max_length(self) -> int:
        return self.session.context

    @property
    def eot_token_id(self) -> Optional[int]:
        if self._tokens.eos is not None:
            return self._tokens.eos
        return self.model.ends[0] if self.model.ends else None

    @property
    def prefix_token_id(self) -> int:
        if self._prefix is None:
            raise Usage(f"the tokenizer of {self.pretrained} has neither BOS nor end-of-text, one of "
                        f"which a text without context begins with; give prefix_token_id")
        return self._prefix

    def tok_encode(self, string: str, add_special_tokens: Optional[bool] = None,
                   **_: Any) -> Tokens:
        """Special tokens spelled in the text become those tokens, as chat templates need it."""
        adds = add_special_tokens
        if adds is None:
            adds = self.add_bos_token is not False
            if self._prefix_text is not None and string.startswith(self._prefix_text):
                adds = False  # a chat template put it there
        ids = self._tokens.encode(string, add_special=adds, parse_special=True)
        if adds and self.add_bos_token and not self._tokens.adds_bos:
            assert self._tokens.bos is not None
            ids.insert(0, self._tokens.bos)
        return ids

    def _is_special(self, token: int) -> bool:
        """Whether it is text only if special tokens are spelled out."""
        if token not in self._special:
            text = self._tokens.decode([token])
            self._special[token] = (self._tokens.encode(text, parse_special=True) == [token] and
                                    self._tokens.encode(text) != [token])
        return self._special[token]

    def _text(self, context: Tokens, new: Tokens) -> str:
        """The text of new tokens, which continues that of the context."""
        said = [token for token in new if not self._is_special(token)]
        before = next((token for token in reversed(context) if not self._is_special(token)), None)
        if before is None:
            return self._tokens.decode(said)
        return self._tokens.decode([before, *said])[len(self._tokens.decode([before])):]

    # ---- log-likelihoods ----

    def _loglikelihood_tokens(
            self, requests: Sequence[tuple[Optional[tuple[str, str]], Tokens, Tokens]],
            disable_tqdm: bool = False, **_: Any) -> list[Answer]:
        groups: dict[tuple[int, ...], list[tuple[int, Tokens]]] = {}
        for number, (_key, context, continuation) in enumerate(requests):
            self._check_pair(context, continuation)
            cut = len(context) + len(continuation) - (self.max_length + 1)
            if cut > 0:
                self._cut(cut)
                context = context[cut:]
            groups.setdefault(tuple(context), []).append((number, continuation))
        answers: list[Optional[Answer]] = [None] * len(requests)
        with tqdm(total=len(requests), disable=disable_tqdm,
                  desc="Running loglikelihood requests") as bar:
            def done(number: int, nodes: list[_Node]) -> None:
                answer = (sum(node.logprob for node in nodes), all(n.likeliest for n in nodes))
                answers[number] = answer
                key = requests[number][0]
                if key is not None:  # a window of loglikelihood_rolling, which caches whole texts
                    self.cache_hook.add_partial("loglikelihood", key, answer)
                bar.update(1)

            # in this order, neighbours have the longest beginnings in common
            self._lanes.run((_score(list(context), groups[context], done)
                             for context in sorted(groups)), sums=True)
        return [answer for answer in answers if answer is not None]

    def _check_pair(self, context: Tokens, continuation: Tokens) -> None:
        if not context or not continuation:
            raise BadInput(
                f"a {'context' if not context else 'continuation'} has no tokens, so there is "
                f"nothing to score; look at doc_to_text and doc_to_target of the task")
        if len(continuation) > self.max_length:
            raise BadInput(
                f"a continuation has {len(continuation)} tokens, over the {self.max_length} of "
                f"max_length, so it cannot be scored as a whole; give a larger max_length")

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        windows: list[tuple[None, Tokens, Tokens]] = []
        counts = []
        for request in requests:
            found = [(None, *make_disjoint_window(pair)) for pair in get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]), prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length, context_len=1)]
            windows += found
            counts.append(len(found))
        scores = iter(self._loglikelihood_tokens(windows, disable_tqdm))
        totals = []
        for request, count in zip(requests, counts):
            totals.append(sum((next(scores)[0] for _ in range(count)), 0.0))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, totals[-1])
        return totals

    # ---- texts ----

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        texts: list[Optional[str]] = [None] * len(requests)
        asked: list[tuple[Tokens, int, _Generation]] = []
        repeats: collections.Counter[tuple[str, str]] = collections.Counter()
        for number, request in enumerate(requests):
            text, options = request.args
            key = (text, json.dumps(options, sort_keys=True, default=str))
            generation = self._generation(options, repeats[key])
            repeats[key] += 1
            context = self.tok_encode(text)
            room = self.max_length - generation.max_tokens
            if room < 1:
                raise BadInput(
                    f"{generation.max_tokens} new tokens leave no room for a context within the "
                    f"{self.max_length} of max_length; ask for fewer (max_gen_toks)")
            if len(context) > room:
                self._cut(len(context) - room)
                context = context[-room:]
            asked.append((context or [self.prefix_token_id], number, generation))
        with tqdm(total=len(requests), disable=disable_tqdm,
                  desc="Running generate_until requests") as bar:
            def done(number: int, text: str) -> None:
                texts[number] = text
                self.cache_hook.add_partial("generate_until", requests[number].args, text)
                bar.update(1)

            self._lanes.run((self._generate(*one, done)
                             for one in sorted(asked, key=lambda one: one[:2])), sums=False)
        return [text for text in texts if text is not None]

    def _generate(self, context: Tokens, number: int, asked: _Generation,
                  done: Callable[[int, str], None]) -> Job:
        sampler: Sampler = self.session.sampler(**asked.sampling)
        tokens, text = list(context), ""
        drawn: list[int] = []

        def read(_i: int, logits: Any, _sum: Optional[float], _likeliest: Optional[int]) -> None:
            drawn.append(sampler.draw(logits, tokens))

        while len(drawn) < asked.max_tokens:
            yield tokens, len(tokens) - 1, read
            if drawn[-1] in asked.ends:
                drawn.pop()
                break
            tokens = [*tokens, drawn[-1]]
            if asked.until:
                text = self._text(context, drawn)
                if any(stop in text for stop in asked.until):
                    break
        sampler.close()
        text = self._text(context, drawn)
        for stop in asked.until:
            text = text.split(stop)[0]
        done(number, text)

    def _generation(self, options: dict[str, Any], repeat: int) -> _Generation:
        """repeat: how many equal requests came before: each draws other tokens."""
        left = dict(options)
        until = left.pop("until", None) or []
        until = [until] if isinstance(until, str) else [stop for stop in until if stop]
        ends, stops = set(self.model.ends), []
        for stop in until:
            ids = self._tokens.encode(stop, parse_special=True)
            if len(ids) == 1 and self._is_special(ids[0]):
                ends.add(ids[0])  # it has no text to find
            else:
                stops.append(stop)
        most = [left.pop(name) for name in ("max_gen_toks", "max_new_tokens", "max_tokens",
                                            "max_completion_tokens") if left.get(name) is not None]
        temperature, samples = left.pop("temperature", None), left.pop("do_sample", None)
        if samples is None:
            samples = temperature is not None and temperature > 0
        if samples and temperature is None:
            temperature = 1.0
        if not samples and temperature:
            self._note(f"temperature {temperature} has no effect with do_sample=False")
        if samples and not temperature:
            self._note("do_sample=True has no effect at temperature 0")
            samples = False
        sampling: dict[str, Any] = {
            "temperature": float(temperature) if samples else 0.0, "top_k": 0, "top_p": 1.0,
            "min_p": 0.0, "repeat_penalty": left.pop("repetition_penalty", 1.0),
            "seed": left.pop("seed", 0) + repeat}
        for name in ("top_k", "top_p", "min_p"):
            value = left.pop(name, None)
            if value is not None and not samples:
                self._note(f"{name} has no effect on greedy decoding")
            elif value is not None:
                sampling[name] = value
        for name in left:
            self._note(f"generation option {name} is unknown to Nibble, and has no effect")
        return _Generation(tuple(stops), frozenset(ends), most[0] if most else self.max_gen_toks,
                           sampling)

    # ---- chats ----

    @property
    def tokenizer_name(self) -> str:
        """lm_eval keeps requests by this name: texts differ by the chat template, too."""
        name = os.fspath(self._tokenizer_path)
        return (f"{name}+{self._template_path}" if self._template_path else name).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> Optional[str]:
        if not chat_template:
            return None
        if isinstance(chat_template, str):
            raise Unsupported(
                f"a chat template named '{chat_template}' cannot be chosen by name; "
                f"--model_args chat_template=FILE uses a file's")
        return self._template if self._template is not None else self.model.chat_template

    def apply_chat_template(self, chat_history: list[dict[str, str]],
                            add_generation_prompt: bool = True) -> str:
        """Without a generation prompt, the text ends with the last message, to be continued."""
        def render(messages: list[dict[str, str]]) -> str:
            return self.model.render_chat(messages, template=self._template,
                                          add_generation_prompt=add_generation_prompt)
        try:
            text = render(chat_history)
        except BadInput as e:
            others = [message for message in chat_history if message["role"] != "system"]
            if len(others) == len(chat_history):
                raise
            self._note(f"the system message is left out, which the chat template refuses: {e}")
            text = render(others)
        if add_generation_prompt:
            return text
        last = chat_history[-1]["content"]
        at = text.rfind(last.strip())
        if at < 0:
            raise BadInput("the chat template does not show the last message, which the model is "
                           "to continue")
        whole = last.lstrip()
        return text[:at + len(whole if text.startswith(whole, at) else last.strip())]

    # ---- what is not done as asked ----

    def _note(self, text: str) -> None:
        if self.strict:
            raise NotAsAsked(f"{text}; strict=True makes that an error")
        if text not in self._not_as_asked:
            logger.warning("%s", text)
        self._not_as_asked[text] += 1

    def _cut(self, tokens: int) -> None:
        """Counts a context that loses its first tokens."""
        self._note(f"a context longer than max_length ({self.max_length} tokens, new ones "
                   f"included) loses its beginning; give a larger max_length")
        self._cut_requests += 1
        self._cut_tokens += tokens

    def get_model_info(self) -> dict[str, Any]:
        """What lm_eval adds to `config` of its results: the plan that ran, its ledger, and what of
        the requests was not done as asked."""
        plan = self.session.plan()
        logger.info("%s", plan.summary)
        for text, count in self._not_as_asked.items():
            logger.warning("%d requests: %s", count, text)
        return {
            "model_dtype": plan.dtype,
            "nibble": {
                "version": VERSION, "ledger": plan.summary, "counts": plan.counts,
                "settings": [dataclasses.asdict(setting) for setting in plan.settings],
                "recipe": plan.recipe, "device": plan.device, "dtype": plan.dtype,
                "cache_type": plan.cache, "weight_bytes": plan.weight_bytes,
                "max_length": self.max_length, "sequences": self.session.sequences,
                "prefix_token_id": self._prefix,
                "cut_requests": self._cut_requests, "cut_tokens": self._cut_tokens,
                "not_as_asked": dict(self._not_as_asked)}}


def _sequences(batch_size: int | str | None, most: Optional[int]) -> int:
    if isinstance(batch_size, str) and batch_size.startswith("auto"):
        return most or AUTO_SEQUENCES
    count = int(batch_size) if batch_size is not None else 1
    if count < 1:
        raise Usage(f"batch_size {batch_size} is not a positive number, nor auto")
    return count


def _with_device(arguments: list[str]) -> list[str]:
    """The arguments, and Nibble's default device, the CPU, if they name none: lm_eval's default is
    PyTorch's cuda:0. A configuration file may name a device, so it is left alone."""
    def given(*names: str) -> list[str]:
        return [value for name, value in zip(arguments, arguments[1:] + [""]) if name in names] + [
            argument.split("=", 1)[1] for argument in arguments
            if argument.startswith(tuple(name + "=" for name in names))]

    asked = given("--device") or given("--config", "-C")
    ours = "nibble" in given("--model", "-M")
    return [*arguments, "--device", "cpu"] if ours and not asked else arguments


def main() -> None:
    """The command lm_eval."""
    from lm_eval.__main__ import cli_evaluate
    sys.argv[1:] = _with_device(sys.argv[1:])
    cli_evaluate()


if __name__ == "__main__":
    main()

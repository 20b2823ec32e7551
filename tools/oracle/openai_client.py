#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyPI's openai as a client of `nibble serve`: parsing, exceptions, streams and disconnects.

usage: openai_client.py PROGRAM     Last line: N passed, N failed
"""
import asyncio
import json
import os
import signal
import sys
import threading
import time

import openai
import pydantic

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/serve"))
os.environ["NIBBLE"] = os.path.abspath(sys.argv[1])
from serving import HERMES, Checks, Server, chat_model, scratch  # noqa: E402

check = Checks()
HELLO = {"model": "tales", "messages": [{"role": "user", "content": "Tell me of a wolf."}], "max_tokens": 16, "seed": 3}
ONCE = {"model": "tales", "prompt": "Once upon a time", "max_tokens": 12, "seed": 3}
LONG = dict(ONCE, max_tokens=480, stream=True, extra_body={"ignore_eos": True})

TOOLS = [{"type": "function", "function": {"name": "weather", "description": "of a city", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1,
    "maximum": 7}}, "required": ["city", "days"], "additionalProperties": False}}},
         {"type": "function", "function": {"name": "stop"}}]


class Animal(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=99)
    tame: bool


def settings(s, **more):
    return {"base_url": "http://127.0.0.1:%d/v1" % s.port, "api_key": "any", "max_retries": 0, "timeout": 60, **more}


def raised(kind, call, *arguments, **members):
    """The exception of `call` if it is exactly of this class, else None."""
    try:
        call(*arguments, **members)
    except openai.OpenAIError as e:
        return e if type(e) is kind else None
    return None


def text_of(answer):
    return answer.choices[0].message.content


def test_models(c):
    models = c.models.list()
    check("models.list", [m.id for m in models] == ["tales"] and models.data[0].object == "model", models)
    check("models.retrieve", c.models.retrieve("tales").owned_by == "nibble")
    check("models.retrieve of another", raised(openai.NotFoundError, c.models.retrieve, "other") is not None)


def test_chat(c):
    a = c.chat.completions.create(**HELLO)
    whole = text_of(a)
    check("a chat", a.object == "chat.completion" and a.choices[0].message.role == "assistant" and len(whole) > 0 and
          a.choices[0].finish_reason == "length" and a.usage.completion_tokens == 16 and
          a.usage.total_tokens == a.usage.prompt_tokens + 16, a)
    check("the same seed", text_of(c.chat.completions.create(**HELLO)) == whole)
    check("another seed", text_of(c.chat.completions.create(**dict(HELLO, seed=4))) != whole)
    chunks = list(c.chat.completions.create(**HELLO, stream=True, stream_options={"include_usage": True}))
    said = [x for x in chunks if x.choices]
    check("a stream has the whole answer's text", "".join(x.choices[0].delta.content or "" for x in said) == whole, chunks)
    check("its usage", chunks[-1].choices == [] and chunks[-1].usage == a.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}), chunks[-1], a.usage)
    check("its end", said[-1].choices[0].finish_reason == "length" and said[0].choices[0].delta.role == "assistant")
    check("one id", len({x.id for x in chunks}) == 1 and chunks[0].object == "chat.completion.chunk")
    many = c.chat.completions.create(**HELLO, n=3)
    check("n = 3", [x.index for x in many.choices] == [0, 1, 2] and text_of(many) == whole and
          len({x.message.content for x in many.choices}) == 3, many)
    streamed = ["", "", ""]
    for x in c.chat.completions.create(**HELLO, n=3, stream=True):
        streamed[x.choices[0].index] += x.choices[0].delta.content or ""
    check("n = 3 in a stream", streamed == [x.message.content for x in many.choices], streamed)
    told = c.chat.completions.create(**dict(HELLO, temperature=0), logprobs=True, top_logprobs=3).choices[0]
    tokens = told.logprobs.content
    check("logprobs", len(tokens) == 16 and b"".join(bytes(t.bytes) for t in tokens).decode() == told.message.content)
    check("top_logprobs", all(len(t.top_logprobs) == 3 and t.top_logprobs[0].token == t.token and
                              t.top_logprobs[0].logprob == t.logprob for t in tokens), tokens[0])
    word = whole.split()[3]
    stopped = c.chat.completions.create(**HELLO, stop=[word])
    check("stop", text_of(stopped) == whole[:whole.index(word)] and stopped.choices[0].finish_reason == "stop", stopped, whole)
    with c.chat.completions.stream(**HELLO, stop=[word]) as events:
        kinds = [e.type for e in events]
        final = events.get_final_completion()
    check("the helper for streams", text_of(final) == text_of(stopped) and kinds.count("content.done") == 1, kinds)
    forced = c.chat.completions.create(**HELLO, logit_bias={"300": 100}, logprobs=True)
    check("logit_bias", len({t.token for t in forced.choices[0].logprobs.content}) == 1, forced)
    raw = c.chat.completions.with_raw_response.create(**HELLO)
    check("a raw answer", raw.status_code == 200 and text_of(raw.parse()) == whole)


def test_formats(c):
    schema = {"type": "object", "properties": {"kind": {"enum": ["wolf", "king"]}, "age": {"type": "integer", "minimum": 0,
              "maximum": 99}}, "required": ["kind", "age"], "additionalProperties": False}
    asked = {"type": "json_schema", "json_schema": {"name": "who", "strict": True, "schema": schema}}
    much = dict(HELLO, max_tokens=200, temperature=1)
    for seed in range(4):
        a = c.chat.completions.create(**dict(much, seed=seed), response_format=asked)
        made = json.loads(text_of(a))
        check("json_schema, seed %d" % seed, set(made) == {"kind", "age"} and made["kind"] in ("wolf", "king") and
              0 <= made["age"] <= 99 and a.choices[0].finish_reason == "stop", made)
        parse = c.chat.completions.parse if seed % 2 else c.beta.chat.completions.parse
        parsed = parse(**dict(much, seed=seed), response_format=Animal).choices[0].message.parsed
        check("a class of pydantic, seed %d" % seed, isinstance(parsed, Animal), parsed)
    with c.chat.completions.stream(**much, response_format=Animal) as events:
        final = events.get_final_completion()
    check("the same in a stream", isinstance(final.choices[0].message.parsed, Animal), final)
    check("one that is cut", raised(openai.LengthFinishReasonError, c.chat.completions.parse, **dict(much, max_tokens=3),
                                    response_format=Animal) is not None)
    ends = 0
    for seed in range(8):
        a = c.chat.completions.create(**dict(much, seed=seed), response_format={"type": "json_object"}).choices[0]
        ends += a.finish_reason == "stop" and isinstance(json.loads(a.message.content), dict)
        check("json_object, seed %d" % seed, a.message.content.lstrip().startswith("{"), a)
    check("json_object comes to an end", ends > 0, ends)
    e = raised(openai.BadRequestError, c.chat.completions.create, **HELLO, response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "pattern": "(a+)+$"}}})
    check("a schema that is not enforced", e is not None and e.param.startswith("response_format"), e)


class Weather(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=8)
    days: int = pydantic.Field(ge=1, le=7)


def test_tools(c):
    """With a template that shows tools: calls, their streams, and a returned result."""
    asked = dict(HELLO, max_tokens=200, temperature=1, tools=TOOLS, parallel_tool_calls=False)
    names = set()
    for seed in range(6):
        a = c.chat.completions.create(**dict(asked, seed=seed), tool_choice="required")
        call = a.choices[0].message.tool_calls[0]
        made = json.loads(call.function.arguments)
        names.add(call.function.name)
        check("a call, seed %d" % seed, a.choices[0].finish_reason == "tool_calls" and a.choices[0].message.content is None and
              call.type == "function" and (made == {} if call.function.name == "stop" else
                                           isinstance(Weather.model_validate(made), Weather)), a)
        with c.chat.completions.stream(**dict(asked, seed=seed), tool_choice="required") as events:
            kinds = [e.type for e in events]
            final = events.get_final_completion().choices[0]
        check("the same by the helper for streams, seed %d" % seed, final.finish_reason == "tool_calls" and
              final.message.tool_calls[0].function.arguments == call.function.arguments and
              final.message.tool_calls[0].function.name == call.function.name and
              "tool_calls.function.arguments.done" in kinds, final, kinds)
    check("either tool", names == {"weather", "stop"}, names)
    chosen = c.chat.completions.create(**asked, tool_choice={"type": "function", "function": {"name": "weather"}}).choices[0]
    check("by name", chosen.message.tool_calls[0].function.name == "weather", chosen)
    parsed = c.chat.completions.parse(**dict(asked, tools=[openai.pydantic_function_tool(Weather)]), tool_choice="required")
    check("a class of pydantic as a tool", isinstance(parsed.choices[0].message.tool_calls[0].function.parsed_arguments, Weather),
          parsed)
    talk = [*HELLO["messages"], chosen.message, {"role": "tool", "tool_call_id": chosen.message.tool_calls[0].id,
                                                 "content": "rain"}]
    for choice in ("auto", "none", "required"):
        again = c.chat.completions.create(**dict(asked, messages=talk), tool_choice=choice).choices[0].message
        check("a result is taken back, %s" % choice, bool(again.tool_calls) == (choice == "required"), again)
    wrong = [*talk[:2], dict(talk[2], tool_call_id="call_0")]
    e = raised(openai.BadRequestError, c.chat.completions.create, **dict(asked, messages=wrong))
    check("a result of no call", e is not None and e.param == "messages[2].tool_call_id", e)
    e = raised(openai.BadRequestError, c.chat.completions.create, **dict(asked, tools=[{"type": "function", "function": {
        "name": "f", "parameters": {"type": "object", "properties": {"a": {"pattern": "x"}}}}}]))
    check("a schema that is not enforced", e is not None and e.param == "tools[0].function.parameters", e)


def test_completions(c):
    a = c.completions.create(**ONCE)
    whole = a.choices[0].text
    check("a completion", a.object == "text_completion" and a.usage.completion_tokens == 12 and len(whole) > 0, a)
    chunks = list(c.completions.create(**ONCE, stream=True, stream_options={"include_usage": True}))
    check("its stream", "".join(x.choices[0].text for x in chunks if x.choices) == whole and
          chunks[-1].usage.completion_tokens == 12, chunks)
    e = c.completions.create(**ONCE, echo=True, logprobs=2)
    lp = e.choices[0].logprobs
    check("echo", e.choices[0].text == ONCE["prompt"] + whole and "".join(lp.tokens) == e.choices[0].text, e)
    check("logprobs", lp.token_logprobs[0] is None and all(v <= 0 for v in lp.token_logprobs[1:]) and
          len(lp.tokens) == e.usage.total_tokens == len(lp.top_logprobs) == len(lp.text_offset) and
          all(2 <= len(t) <= 3 and t.get(k) == v for k, v, t in list(zip(lp.tokens, lp.token_logprobs, lp.top_logprobs))[1:]), lp)
    check("text_offset", all(e.choices[0].text[at:].startswith(t) for at, t in zip(lp.text_offset, lp.tokens)), lp)
    both = c.completions.create(**dict(ONCE, prompt=["Once upon a time", "The king"]), n=2)
    check("two prompts, n = 2", [x.index for x in both.choices] == [0, 1, 2, 3] and both.choices[0].text == whole, both)
    check("top_k by extra_body", c.completions.create(**ONCE, extra_body={"top_k": 1}).choices[0].text ==
          c.completions.create(**ONCE, temperature=0).choices[0].text)


def test_errors(c):
    e = raised(openai.BadRequestError, c.chat.completions.create, **HELLO, temperature=3)
    check("a range", e is not None and e.param == "temperature" and e.type == "invalid_request_error" and
          e.code is None and "temperature" in e.message, e)
    e = raised(openai.BadRequestError, c.completions.create, **dict(ONCE, prompt="word " * 600))
    check("a prompt past the context", e is not None and e.code == "context_length_exceeded" and e.param == "prompt", e)
    e = raised(openai.BadRequestError, c.chat.completions.create, **HELLO, tools=TOOLS)
    check("tools that the template never shows", e is not None and e.param == "tools" and "template" in e.message, e)
    e = raised(openai.BadRequestError, c.chat.completions.create, **HELLO, functions=[{"name": "f"}])
    check("functions", e is not None and e.param == "functions" and "tools" in e.message, e)
    e = raised(openai.BadRequestError, c.completions.create, **ONCE, extra_body={"temprature": 1})
    check("a member that is not known", e is not None and e.param == "temprature", e)
    for what, call, body in (("a chat", c.chat.completions.create, HELLO), ("a completion", c.completions.create, ONCE)):
        e = raised(openai.NotFoundError, call, **dict(body, model="gpt-4"))
        check("another model, %s" % what, e is not None and e.code == "model_not_found" and e.param == "model", e)
    e = raised(openai.BadRequestError, c.completions.create, **dict(ONCE, stream=True), n=200)
    check("an error before a stream", e is not None and e.param == "n", e)
    check("a route that is none", raised(openai.NotFoundError, c.embeddings.create, model="tales", input="x") is not None)


async def ask_together(s):
    async with openai.AsyncOpenAI(**settings(s)) as c:
        def chat(i):
            return c.chat.completions.create(**dict(HELLO, seed=i, max_tokens=8 + i), temperature=i % 3 / 2, logprobs=True,
                                             top_logprobs=2)

        async def stream(i):
            parts = await c.completions.create(**dict(ONCE, seed=i, prompt="The wolf said to the king, " * (1 + i % 4)), stream=True)
            return "".join([x.choices[0].text async for x in parts])
        alone = [(await chat(i)).choices for i in range(16)]
        together = await asyncio.gather(*(chat(i) for i in range(16)))
        check("16 at once as one by one", [a.choices for a in together] == alone)
        alone = [await stream(i) for i in range(16)]
        check("16 streams at once", await asyncio.gather(*(stream(i) for i in range(16))) == alone)


def test_keys(folder):
    keys = os.path.join(folder, "keys")
    with open(keys, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
        f.write("a-key-of-ours\n")
    with Server(os.path.join(folder, "tales"), "--api-key-file", keys) as s:
        with openai.OpenAI(**settings(s, api_key="a-key-of-theirs")) as c:
            e = raised(openai.AuthenticationError, c.chat.completions.create, **HELLO)
            check("a wrong key", e is not None and e.status_code == 401 and e.type == "authentication_error", e)
        with openai.OpenAI(**settings(s, api_key="a-key-of-ours")) as c:
            check("the right one", len(text_of(c.chat.completions.create(**HELLO))) > 0)


def test_places(folder):
    """On a slow server with one slot and one queue place: a closed stream, a full queue, a time limit, a shutdown."""
    model = os.path.join(folder, "tales")
    with Server(model, "--parallel", "1", "--queue", "1", slow=True) as s, openai.OpenAI(**settings(s)) as c:
        for how in ("closed", "left"):
            stream = c.completions.create(**LONG)
            next(iter(stream))
            check("it runs", s.metric("nibble_sequences_running") == 1)
            if how == "closed":
                stream.close()
            else:
                with stream:
                    pass
            check("a stream that is %s frees its place" % how, s.wait_for("nibble_sequences_running", 0, 3))
        check("a timeout of the client", raised(openai.APITimeoutError, c.completions.create, **dict(LONG, stream=False),
                                                timeout=0.3) is not None)
        check("frees it, too", s.wait_for("nibble_sequences_running", 0, 3))
        running = c.completions.create(**LONG)
        next(iter(running))
        waiting = c.completions.create(**LONG)
        check("one waits", s.wait_for("nibble_requests_waiting", 1))
        e = raised(openai.RateLimitError, c.completions.create, **ONCE)
        check("a full queue", e is not None and e.code == "queue_full" and int(e.response.headers["retry-after"]) > 0, e)
        running.close()
        check("who waited comes to a place", len(next(iter(waiting)).choices) == 1)
        held = c.completions.create(**LONG)
        check("another waits", s.wait_for("nibble_requests_waiting", 1))
        later = threading.Timer(0.3, lambda: (waiting.close(), held.close()))
        later.start()
        a = c.with_options(max_retries=5).completions.create(**ONCE)
        later.join()
        check("a client that tries again is served", a.usage.completion_tokens == 12 and
              s.metric('nibble_requests_total{route="completions",answer="4xx"}') >= 2, s.ask("GET", "/metrics")[2])
        stream = c.completions.create(**LONG)
        next(iter(stream))
        s.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        s.process.send_signal(signal.SIGTERM)
        e = raised(openai.APIError, list, stream)
        check("a stream that the server's end cuts", e is not None and e.code == "stopping", e)
    with Server(model, "--time-limit", "0.5", slow=True) as s, openai.OpenAI(**settings(s)) as c:
        e = raised(openai.APIError, list, c.completions.create(**LONG))
        check("a stream that the time limit cuts", e is not None and e.code == "timeout" and e.body["message"] == e.message, e)
        e = raised(openai.InternalServerError, c.completions.create, **dict(LONG, stream=False))
        check("a whole answer that it cuts", e is not None and e.status_code == 503 and e.code == "timeout", e)
    with openai.OpenAI(**settings(s)) as c:
        check("no server", raised(openai.APIConnectionError, c.models.list) is not None)


async def cancel(folder):
    with Server(os.path.join(folder, "tales"), "--parallel", "2", slow=True) as s:
        async with openai.AsyncOpenAI(**settings(s)) as c:
            task = asyncio.create_task(c.completions.create(**dict(LONG, stream=False)))
            while s.metric("nibble_sequences_running") == 0:
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])
            check("a task that is cancelled frees its place", task.cancelled() and s.wait_for("nibble_sequences_running", 0, 3))


def main():
    print("openai %s" % openai.__version__)
    with scratch() as folder:
        with Server(chat_model(folder), "--recipe", "8da4w", "--parallel", "4") as s:
            with openai.OpenAI(**settings(s)) as c:
                for test in (test_models, test_chat, test_formats, test_completions, test_errors):
                    test(c)
            asyncio.run(ask_together(s))
            check("no request is left", s.metric("nibble_sequences_running") == 0)
        with Server(os.path.join(folder, "tales"), "--recipe", "8da4w", "--chat-template", HERMES) as s:
            with openai.OpenAI(**settings(s)) as c:
                test_tools(c)
        test_keys(folder)
        test_places(folder)
        asyncio.run(cancel(folder))
    return check.end()


if __name__ == "__main__":
    sys.exit(main())

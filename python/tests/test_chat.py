# SPDX-License-Identifier: Apache-2.0
"""Conversations."""
import json
import logging

import pytest

import nibble

TALES = "models/nibble-tales"
TEMPLATE = ("{% for m in messages %}{% if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}assistant: {% endif %}")
MESSAGES = [{"role": "user", "content": "Tell me of the wolf."}]


def test_text_and_ids(model):
    text = model.render_chat(MESSAGES, template=TEMPLATE)
    assert text == "user: Tell me of the wolf.\nassistant: "
    assert model.render_chat(MESSAGES, template=TEMPLATE, add_generation_prompt=False) == "user: Tell me of the wolf.\n"
    assert model.render_chat(json.dumps(MESSAGES), template=TEMPLATE) == text
    assert model.detokenize(model.encode_chat(MESSAGES, template=TEMPLATE)) == text
    assert model.render_chat([], template="{{ tools[0].name }} {{ x }}", tools=[{"name": "é"}], variables={"x": 3}) == "é 3"


def test_the_day_is_that_of_this_time_zone(model):
    import time
    before = time.strftime("%Y-%m-%d")
    found = model.render_chat([], template="{{ strftime_now('%Y-%m-%d') }}")
    assert found in (before, time.strftime("%Y-%m-%d"))


def test_answers(model):
    answer = model.chat(MESSAGES, template=TEMPLATE, max_tokens=12, temperature=0)
    text = "".join(answer)
    assert text and answer.finish in ("length", "stop") and answer.stats.prompt_tokens > 3
    prompt = model.render_chat(MESSAGES, template=TEMPLATE)
    # the answer is a text of its own, which does not continue the space at the end of the prompt
    assert text.strip() == model.complete(prompt, max_tokens=12, temperature=0).strip()
    with model.session() as session:
        assert "".join(session.chat(MESSAGES, template=TEMPLATE, max_tokens=12, temperature=0)) == text


def test_text_of_a_user_is_no_special_token(model):
    special = model.detokenize([model.ends[0]])
    assert model.tokenize(special, parse_special=True) == [model.ends[0]]
    message = [{"role": "user", "content": special}]
    assert model.ends[0] not in model.encode_chat(message, template=TEMPLATE)
    assert model.render_chat(message, template=TEMPLATE) == f"user: {special}\nassistant: "


def test_dropped_messages_are_said(model, caplog):
    messages = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    with caplog.at_level(logging.WARNING, "nibble"):
        model.chat(messages, template=TEMPLATE, max_tokens=1).close()
    assert "Be brief." in caplog.text
    with nibble.Model(TALES, strict=True) as strict, pytest.raises(nibble.NotAsAsked, match="Be brief."):
        strict.chat(messages, template=TEMPLATE, max_tokens=1)


def test_errors(model):
    assert model.chat_template is None
    with pytest.raises(nibble.Unsupported, match="template"):
        model.chat(MESSAGES)
    with pytest.raises(nibble.BadInput):
        model.chat("[{", template=TEMPLATE)
    with pytest.raises(nibble.BadInput, match="no, thanks"):
        model.chat(MESSAGES, template="{{ raise_exception('no, thanks') }}")
    with pytest.raises(TypeError):
        model.chat([{"role": object()}], template=TEMPLATE)
    with pytest.raises(nibble.Usage, match="the context is 512"):
        model.chat([{"role": "user", "content": "wolf " * 600}], template=TEMPLATE)

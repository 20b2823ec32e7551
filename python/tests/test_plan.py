# SPDX-License-Identifier: Apache-2.0
"""Plans: those of the program, as objects."""
import json
import logging

import pytest

import nibble

TALES = "models/nibble-tales"


@pytest.mark.parametrize("options, arguments", [
    ({"recipe": "8da4w"}, ["--recipe", "8da4w"]),
    ({}, []),
    ({"recipe": "int4wo", "skip": ["lm_head"], "dtype": "f32", "cache": "int8", "context": 64, "lookup": 0},
     ["--recipe", "int4wo", "--skip", "lm_head", "--dtype", "f32", "--cache-type", "int8", "--context", "64", "--lookup", "0"]),
    ({"draft": TALES, "draft_recipe": "int4wo", "context": 64}, ["--draft", TALES, "--draft-recipe", "int4wo", "--context", "64"]),
    ({"recipe": "8da4w", "device": "mi210", "allow": ["dequant"]}, ["--recipe", "8da4w", "--device", "mi210", "--allow", "dequant"]),
    ({"recipe": "int8dq", "only": "*mlp*", "kernel": "*down_proj=linear_a8t_w8g_f32__ref", "bias": "float", "memory": 1 << 30,
      "place": "lm_head=cpu", "without": "*avx512*"},
     ["--recipe", "int8dq", "--only", "*mlp*", "--kernel", "*down_proj=linear_a8t_w8g_f32__ref", "--bias", "float", "--memory",
      "1GiB", "--place", "lm_head=cpu", "--without", "*avx512*"]),
])
def test_plan_is_the_programs(program, options, arguments):
    with nibble.Model(TALES, **options) as model:
        plan = model.plan()
        assert plan.to_json() == program("plan", TALES, *arguments, "--json")
        assert str(plan) == program("plan", TALES, *arguments).rstrip("\n")
    assert plan.to_dict() == json.loads(plan.to_json())
    assert [layer.name for layer in plan] == [layer["name"] for layer in plan.to_dict()["layers"]]
    assert len(plan) == len(plan.layers) > 0


def test_candidates_and_other_engines(program, model):
    plan = model.plan(layer="lm_head")
    assert plan.to_json() == program("plan", TALES, "--recipe", "8da4w", "--layer", "lm_head", "--json")
    candidates = plan["lm_head"].candidates
    assert {c.verdict for c in candidates} == {"runs", "could", "no"}
    refused = next(c for c in candidates if c.verdict == "no")
    assert refused.reasons[0].code and refused.reasons[0].text
    other = model.plan(engine="torchao")
    assert any(c.engine and c.source for layer in other for c in layer.candidates)


def test_members(model):
    plan = model.plan()
    layer = plan["model.layers.0.self_attn.q_proj"]
    assert (layer.asked, layer.done, layer.as_asked, layer.rung) == ("8da4w-g32@cpu", "8da4w-g32@cpu", True, "none")
    assert (layer.n, layer.k, layer.bias, layer.denied) == (224, 224, True, False)
    assert layer.uses[0].m_min == 1 and layer.uses[-1].m_max is None and layer.uses[0].predicted_us > 0
    assert plan[0] is plan.layers[0] and plan.counts["asked"] == 36 and plan.recipe == "8da4w"
    assert plan.context == model.context == 512 and plan.predicted_token_s > 0
    assert "36 done" in plan.summary and repr(plan) == f"<nibble.Plan: {plan.summary}>"
    assert all(note.code and note.text for note in plan.notes)
    with pytest.raises(KeyError):
        plan["no.such.layer"]


def test_a_plan_outlives_its_model():
    with nibble.Model(TALES) as model:
        plan = model.plan()
    assert "lm_head" in str(plan) and plan.summary


def test_denied_layers_are_in_the_plan_with_reasons():
    with nibble.Model(TALES, recipe="8da4w", without="linear*") as model:
        plan = model.plan()
        denied = [layer for layer in plan if layer.denied]
        assert denied and all(layer.done is None and layer.reasons for layer in denied)
        with pytest.raises(nibble.NotAsAsked) as caught:
            plan.check()
        assert (caught.value.status, caught.value.code, caught.value.exit_status) == ("NOT_AS_ASKED", 5, 4)
        with pytest.raises(nibble.NotAsAsked) as again:
            model.generate("Once")
        assert str(again.value) == str(caught.value)


def test_substitution_is_said(caplog):
    with nibble.Model(TALES, recipe="8da4w", without="linear_a8t*", allow="dequant") as model:
        plan = model.plan()
        replaced = [layer for layer in plan if layer.rung == "dequant"]
        assert len(replaced) == 36 == plan.counts["substituted"]
        assert replaced[0].reasons and not replaced[0].as_asked and replaced[0].done == "bf16@cpu"
        for reason in replaced[0].reasons:
            assert nibble.explain(reason.code)["codes"]
        with caplog.at_level(logging.WARNING, "nibble"):
            assert model.complete("Once", max_tokens=2)
        assert "36 substituted" in caplog.text


def test_absent_machines_and_configs():
    plan = nibble.plan("configs/llama3.1_8b.json", "int4wo", device="h200")
    assert plan.device == "h200" and plan["lm_head"].asked == "int4wo-g32@h200"
    with nibble.Model("configs/llama3.1_8b.json", "int4wo", device="h200") as model:
        assert model.plan().to_json() == plan.to_json()
        with pytest.raises(nibble.Usage, match="only a config"):
            model.session()
    with nibble.Model(TALES, device="h200") as model, pytest.raises(nibble.NotAsAsked, match="h200"):
        model.session()


def test_strict_refuses_settings():
    with nibble.Model(TALES, recipe="8da4w", strict=True) as model:
        with pytest.raises(nibble.NotAsAsked, match="top-k"):
            model.generate("Once", temperature=0, top_k=4)
        assert model.complete("Once", temperature=0, max_tokens=2)


def test_wrong_names_suggest_near_ones():
    for options, words in (({"recipe": "8da4"}, "8da4w"), ({"device": "h20"}, "h200"), ({"kernel": "linear_x"}, "no kernel"),
                           ({"skip": "no_such"}, "no_such"), ({"dtype": "f31"}, "f31"), ({"allow": "devise"}, "devise")):
        with nibble.Model(TALES, **options) as model, pytest.raises(nibble.Usage, match=words):
            model.plan()
    with pytest.raises(TypeError, match="recipee"):
        nibble.Model(TALES, recipee="8da4w")

# SPDX-License-Identifier: Apache-2.0
"""Filters, rules and parts of a recipe's name: which layers they reach, decided by a matcher of our own."""
import dataclasses
import fnmatch
import json
import re

import formulas
from ask_values import see_stored
from asking import Ask, Deviation

PATTERNS = ["*.self_attn.*", "*.mlp.*", "*q_proj", "*.k_proj", "*.down_proj", "model.layers.0.*", "lm_head", "re:.*(gate|up)_proj",
            "re:model\\.layers\\.\\d+\\.self_attn\\.o_proj", "model.layers.0.self_attn.v_proj"]
MISSES = ["*.self_attn.query", "*.mlp.experts.*", "re:.*router.*", "model.layers.9.mlp.up_proj", "*.q_porj"]
SCHEMES = ["int8wo", "int8dq", "8da4w", "int4wo", "int4wo-sym", "fp8wo", "keep"]


def matches(pattern, name):
    if pattern.startswith("re:"):
        return re.fullmatch(pattern[3:], name) is not None
    return fnmatch.fnmatchcase(name, pattern)


def reached(pattern, names):
    return {n for n in names if matches(pattern, n)}


def base(source, out, recipe, *more):
    return ["quantize", source, out, "--recipe", recipe, "--format", "nibble", *more]


def no_match(model, source, out, option, miss):
    see = lambda ran: [Deviation(f"{option} {miss} matches nothing, and it runs", (miss,))]
    return Ask("filters", f"{option} {miss}", base(source, out, "int8wo", option, miss), see, (miss,), out=out)


def filtered(model, source, out, only, skip):
    """--only and --skip; a skip that keeps nothing that is not kept already is dead."""
    names, words = set(model.linears()), []
    kept, dead = set(), []
    for p in only:
        words += ["--only", p]
    if only:
        kept = names - set().union(*(reached(p, names) for p in only))
    taken = set()
    for p in skip:
        words += ["--skip", p]
        if reached(p, names) <= taken:
            dead.append(p)
        taken |= reached(p, names)
    kept |= taken
    spec = formulas.spec_of("int8wo")

    def see(ran):
        found = see_stored(model, out, {n: None if n in kept else spec for n in names})
        if kept == names:
            found.append(Deviation("nothing is quantized", ("quantizes no layer",)))
        else:
            found += [Deviation(f"{p} keeps nothing that is not kept before", (p,)) for p in dead]
        return found

    return Ask("filters", " ".join(words), base(source, out, "int8wo", *words), see, ("matches",), out=out,
               alarms=kept != names and not (only and skip))


def spec_or_none(scheme):
    return None if scheme == "keep" else formulas.spec_of(scheme)


def rules(model, source, out, file, listed, otherwise):
    """A rule file: the first rule that matches decides; one that decides nothing is said."""
    names = model.linears()
    file.write_text(json.dumps({"schema": 1, "rules": [{"match": p, "scheme": s} for p, s in listed], "else": otherwise}))
    wanted, alive = {}, set()
    for n in names:
        hit = next((i for i, (p, _) in enumerate(listed) if matches(p, n)), None)
        alive.add(hit)
        wanted[n] = spec_or_none(otherwise if hit is None else listed[hit][1])

    def see(ran):
        found = see_stored(model, out, wanted)
        for i, (p, _) in enumerate(listed):
            if i not in alive:
                words = f"rule {i} ({p}) decides nothing" if reached(p, names) else f"rule {i} ({p}) matches nothing"
                found.append(Deviation(words, (p,)))
        if all(s is None for s in wanted.values()):
            found.append(Deviation("nothing is quantized", ("quantizes no layer",)))
        return found

    words = "rules " + ", ".join(f"{p}: {s}" for p, s in listed) + f", else {otherwise}"
    return Ask("rule files", words, base(source, out, file), see, tuple(p for p, _ in listed), out=out)


def wrong_file(model, source, out, file, value, needle):
    file.write_text(json.dumps(value))
    see = lambda ran: [Deviation(f"{needle} is passed over", (needle,))]
    return Ask("rule files", json.dumps(value), base(source, out, file), see, (needle,), out=out)


def parts(model, source, out, recipe):
    """+head and +embed, of a tied head, too."""
    first, *more = recipe.split("+")
    spec = formulas.spec_of(first)
    wanted = {n: spec for n in model.linears()}
    for part in more:
        kind, _, scheme = part.partition("-")
        own = formulas.spec_of(scheme) if scheme else dataclasses.replace(spec)
        if kind == "head":
            if not model.tied:
                wanted["lm_head"] = own
            elif "embed" not in recipe:
                wanted["model.embed_tokens"] = None  # a tied head gets a tensor of its own
        else:
            wanted["model.embed_tokens"] = dataclasses.replace(own, act="float")

    def see(ran):
        found = see_stored(model, out, wanted)
        if model.tied and "+head" in recipe:
            lines = [s for s in ran.settings if s["code"] == "untied"]
            found += [] if not lines else [Deviation("the head is no longer the embedding's tensor", ("untied",), False)]
        return found

    return Ask("recipe with parts", recipe, base(source, out, recipe), see, tuple(model.linears()), out=out, alarms=False)


def make_asks(judge, r, model, source, folder, turn):
    out, file = folder / "out", folder / "rules.json"
    pick = lambda items: r.choice(items)
    names = model.linears()
    live = [p for p in PATTERNS if reached(p, names)]
    kind = turn % 6
    if kind == 0:
        yield no_match(model, source, out, pick(["--only", "--skip"]), pick(MISSES))
        yield filtered(model, source, out, [], ["*"])
    elif kind == 1:
        yield filtered(model, source, out, [], [pick(live)])
    elif kind == 2:
        yield filtered(model, source, out, [pick(live)], [])
    elif kind == 3:
        p = pick(live)
        yield filtered(model, source, out, [p], [p])
    elif kind == 4:
        yield filtered(model, source, out, [], ["*.mlp.*", pick(["*.mlp.up_proj", "*.down_proj"])])
    else:
        a, b = pick(live), pick(live)
        yield filtered(model, source, out, [], [a, b] if a != b else [a])
    listed = [(p, pick(SCHEMES)) for p in r.sample(live, min(len(live), pick([1, 2, 3])))]
    yield rules(model, source, out, file, listed, pick(SCHEMES[:-1]))
    if kind == 2:
        yield wrong_file(model, source, out, file, {"schema": 1, "rules": [], "esle": "int8wo"}, "esle")
        yield wrong_file(model, source, out, file, {"schema": 1, "else": "int9wo"}, "int9wo")
        yield wrong_file(model, source, out, file, {"schema": 1, "rules": [{"match": pick(MISSES), "scheme": "int8wo"}], "else": "keep"},
                         "match")
    if kind == 5:
        yield rules(model, source, out, file, [("*.mlp.*", "int8dq"), ("*.mlp.up_proj", "int8wo")], "keep")
    yield parts(model, source, out, ["int8wo+head-int4wo-sym", "int8wo+embed", "8da4w+head-int8wo", "int4wo-sym+embed-int8wo"][turn % 4])

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders random templates with Nibble and with jinja2 as transformers sets it up, and compares the bytes.

    template_diff.py RENDER_TEMPLATES [COUNT [SEED]]

Both may fail, for any reason; a template that one renders and the other refuses is a difference. Templates that Nibble reports as
not supported are counted separately. Last line: N compared, N not built, N different.
"""
import json
import random
import subprocess
import sys
import unicodedata

from transformers.utils.chat_template_utils import _compile_jinja_template

VALUES = {"s": "Hello wOrld", "t": " é\n<ß> ", "n": 3, "f": 2.5, "z": 0, "l": [3, 1, 2], "w": ["b", "A", "c c"],
          "d": {"b": 1, "a": [1, None], "k": "v"}, "o": [{"n": "x", "v": 2}, {"n": "y", "v": 1}], "none": None, "yes": True,
          "u": "ª Ⅷx ²① ΑΣ ǆ ﬁ", "big": 9007199254740993, "neg": -5, "tiny": -0.0, "i": "inf", "q": "nan",
          "messages": [{"role": "user", "content": "Hi\nthere"}, {"role": "assistant", "content": None}]}
NAMES = ["s", "t", "n", "f", "z", "l", "w", "d", "o", "yes", "messages", "missing", "x", "u", "big", "neg", "tiny"]
LITERALS = ["10", "2.5", "-0.0", "1e3", "9007199254740993", "'%s|%5d' % ('a', 3)", "range(3)", "1", "0", "-2", "1.5", "'a'", "'B c'", "''", "[]", "[1, 'a']", "(1, 2)", "{'a': 1}", "none", "true", "false",
            "9223372036854775807", "(-9223372036854775807 - 1)", "(i|float)", "(-(i|float))", "(q|float)", "4503599627370497", "0.1"]
NUMBERS = ["n", "f", "z", "big", "neg", "tiny", "(i|float)", "(-(i|float))", "(q|float)", "9007199254740993", "9223372036854775807",
           "(-9223372036854775807 - 1)", "-0.0", "0.1", "3", "-7", "1e300", "5e-324", "true", "18014398509481985", "-1", "2.5"]
FILTERS = ["upper", "lower", "title", "capitalize", "trim", "length", "first", "last", "list", "string", "int", "float", "tojson",
           "sort", "join", "join('-')", "reverse|list", "unique|list", "default('D')", "replace('l', 'LL')", "abs", "round",
           "round(1)", "sum", "min", "max", "dictsort", "items|list", "indent(2)", "e", "safe", "batch(2)|list", "tojson(indent=1)",
           "map('string')|list", "map(attribute='n')|list", "select|list", "selectattr('v')|list", "center(9)", "count",
           "round(-1)", "round(0, 'floor')", "sort(reverse=true)", "sort(attribute='v')", "sort(attribute='n,v')", "groupby('n')|list",
           "map(attribute='n.x', default='D')|list", "map(attribute='v', default=0)|list", "rejectattr('n')|list", "reject('odd')|list",
           "slice(2)|list", "batch(2, 'f')|list", "indent('> ', true)", "int(base=16)", "float(1)", "trim('aHl')", "dictsort(by='value')",
           "format(1)", "unique(true)|list", "max(attribute='v')", "first|default('none')", "groupby('v')|map(attribute='grouper')|list",
           "groupby('n', default='y')|map(attribute='list')|list", "groupby('v')|first", "map('string')|first", "tojson(sort_keys=true)", "sum(start=1)"]
TESTS = ["lower", "defined", "none", "string", "number", "mapping", "iterable", "sequence", "odd", "even", "true", "in l", "eq 3", "upper"]
METHODS = ["upper()", "strip()", "split()", "split('l')", "items()", "keys()", "get('a')", "startswith('H')", "replace('l', '')",
           "splitlines()", "title()", "lower()", "rsplit(' ', 1)", "find('o')", "index(1)", "count('l')",
           "rfind('l')", "rpartition('l')", "partition('o')", "rsplit('l')", "rsplit(none, 1)", "split(none, 1)", "splitlines(true)",
           "strip('Hd')", "rstrip()", "lstrip('H')", "ljust(13, '.')", "rjust(13)", "removeprefix('He')", "removesuffix('d')", "isalpha()",
           "isdigit()", "isspace()", "isupper()", "endswith(('d', 'x'))", "isalnum()", "islower()", "grouper", "list", "real", "imag",
           "denominator", "start", "step", "values()", "copy()", "get('z', 5)", "capitalize()", "a", "n", "b"]
OPERATORS = ["**", "<=", ">", "+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">=", "in", "not in", "and", "or"]
# Characters with unusual digit, case or word properties.
ODD = [chr(c) for c in range(0x80, 0x20000) if unicodedata.category(chr(c)) in ("Lt", "Lm", "Nl", "No", "Sk", "Cf", "Zs", "Zl") or
       (unicodedata.category(chr(c)) not in ("Ll", "Lu", "Nd", "Lo", "Cn", "Co", "Cs") and chr(c).upper() + chr(c).lower() != 2 * chr(c)) or
       chr(c) in "ªº:\u055f\u05f4\ufe13\ufe52\ufe55\uff07\uff0e\uff1a" or len(chr(c).upper() + chr(c).lower()) > 2]
PARAMETERS = ["x", "y", "n=2", "x=n", "caller=none", "caller", "kwargs", "varargs=3"]
OF_MACRO = ["name", "arguments", "catch_kwargs", "catch_varargs", "caller", "explicit_caller", "defaults"]


def odd_text(r):
    text = "".join(r.choice([r.choice(ODD), r.choice("aBΣσ. '1")]) for _ in range(r.randrange(1, 4)))
    return f"({json.dumps(text, ensure_ascii=False)}{r.choice(['', ' ~ s', ' ~ u'])})"


def arithmetic(r, depth):
    if depth == 0:
        return r.choice(NUMBERS)
    return f"({arithmetic(r, depth - 1)} {r.choice(['/', '//', '%', '/', '//', '*', '-', '<', '=='])} {arithmetic(r, r.randrange(depth))})"


def expression(r, depth):
    kind = r.randrange(13) if depth > 0 else r.randrange(3)
    if kind == 11:
        return arithmetic(r, 2)
    if kind == 12:
        what = r.choice(["isdigit()", "islower()", "isupper()", "isalpha()", "isalnum()", "isspace()", "title()", "lower()", "upper()",
                         "capitalize()", "strip()"])
        return f"{odd_text(r)}.{what}"
    if kind < 2:
        return r.choice(NAMES)
    if kind == 2:
        return r.choice(LITERALS)
    inner = expression(r, depth - 1)
    if kind == 3:
        return f"({inner})|{r.choice(FILTERS)}"
    if kind == 4:
        return f"({inner}).{r.choice(METHODS)}"
    if kind == 5:
        return f"({inner} is {r.choice(['', 'not '])}{r.choice(TESTS)})"
    if kind == 6:
        op = r.choice(OPERATORS)  # Python would compute a huge power without end
        return f"({inner} {op} {expression(r, depth - 1) if op != '**' else r.choice(['2', '-1', '0', '0.5', 'yes', 's', 'none', '3'])})"
    if kind == 7:
        return f"({inner})[{r.choice(['0', '-1', '1:', ':2', '::-1', '::2', '1:-1', repr('a'), repr('n'), '::-2', '-2:', '5:1:-1', ':'])}]"
    if kind == 8:
        return f"({inner} if {expression(r, depth - 1)} else {expression(r, depth - 1)})"
    if kind == 9:
        return f"[{inner}, {expression(r, depth - 1)}]"
    return f"(not {inner})"


def tag(r, text):
    return "{%" + r.choice(["", "", "-", "+"]) + f" {text} " + r.choice(["", "", "-"]) + "%}"


def body(r, depth, loop=False):
    return "".join(statement(r, depth, loop) for _ in range(r.randrange(1, 4)))


def statement(r, depth, loop):
    """loop: inside a loop, so that break is allowed."""
    kind = r.randrange(18) if depth > 0 else r.randrange(4)
    if kind == 14:
        names = r.sample(PARAMETERS, r.randrange(4))
        uses = "".join(r.choice(["{{ x }}", "{{ kwargs }}", "{{ varargs }}", "{{ caller }}", "{{ n }}", "{% set kwargs = 1 %}"])
                       for _ in range(r.randrange(4)))
        given = ", ".join(r.sample(["1", "s", "2"], r.randrange(3)) + r.sample(["x=1", "n=x", "caller=none", "z=3"], r.randrange(3)))
        return (tag(r, f"macro m({', '.join(names)})") + uses + tag(r, "endmacro") +
                "".join("{{ m." + name + " }}" for name in OF_MACRO) + "{{ m(" + given + ") }}")
    if kind == 15:
        uses = "".join(r.choice(["{{ x }}", "{{ g|first }}", "{{ '2' in g }}", "{{ loop.last }}", "{{ loop.length }}", "{{ loop.nextitem }}",
                                 tag(r, "if x == '2'") + tag(r, "break") + tag(r, "endif"), "{{ loop.revindex }}"]) for _ in range(4))
        lazy = r.choice(["map('string')", "select", "reverse", "batch(2)", "unique"])
        return (tag(r, f"set g = (l + [5, 2, 7])|{lazy}") +
                tag(r, f"for x in g{r.choice(['', ' if x', ' if x != 3'])}") + uses + tag(r, "endfor") + "{{ g|list }}")
    if kind == 16:
        return (tag(r, "set ns = namespace(v=[])") + tag(r, f"for x in l + [1, 3, n] if x not in ns.v{r.choice(['', ' recursive'])}") +
                tag(r, "set ns.v = ns.v + [x]") + r.choice(["", "{{ loop.last }}", "{{ loop.index }}", "{{ loop.length }}"]) +
                "{{ x }}" + tag(r, "endfor"))
    if kind == 17:
        by = r.choice(["'v'", "'n'", "'v', default=1", "'a', default='B'", "'n', case_sensitive=true"])
        return (tag(r, f"for g in {r.choice(['o', 'o + [{}]', 'o + o', 'messages'])}|groupby({by})") + "{{ g.grouper }}{{ g.list }}{{ g[0] }}" +
                tag(r, "endfor"))
    if kind == 0:
        return r.choice(["text", " a ", "\n", "  \n  ", "\n\n\t", "é\n"])
    if kind < 3:
        return "{{" + r.choice(["", "", "-"]) + f" {expression(r, 2)} " + r.choice(["", "", "-"]) + "}}"
    if kind == 3:
        return r.choice(["{#-#}  ", " {# c -#}\n ", "{#+ c #}\n", "{% raw %}{{ x {%- endraw %}", "  {%- raw -%} {% if {% endraw +%}\n"]
                        + ([tag(r, "break"), tag(r, "continue")] if loop else []))
    inner, same = body(r, depth - 1), lambda: body(r, depth - 1, loop)
    if kind == 4:
        return tag(r, f"if {expression(r, 1)}") + same() + tag(r, f"elif {expression(r, 1)}") + same() + tag(r, "else") + same() + tag(r, "endif")
    if kind == 5:
        end = r.choice(["", tag(r, "else") + same()])
        what = r.choice([expression(r, 1), "[3, 1, 2] if x > 1", "o recursive", "d.items()"])
        of = r.choice(["{{ loop.index }}", "{{ loop.changed(x) }}{{ loop.cycle(1, 2) }}", "{{ loop.previtem }}", "{{ loop.revindex0 }}{{ loop.last }}"])
        return tag(r, f"for x in {what}") + of + body(r, depth - 1, True) + end + tag(r, "endfor")
    if kind == 6:
        return tag(r, f"set x = {expression(r, 2)}")
    if kind == 7:
        return tag(r, "set x" + r.choice(["", " | upper", " | trim | indent(1)"])) + same() + tag(r, "endset") + "{{ x }}"
    if kind == 8:
        return tag(r, "macro m(x, n=2)") + inner + tag(r, "endmacro") + "{{ m(" + expression(r, 1) + ") }}"
    if kind == 9:
        return tag(r, "filter " + r.choice(["upper", "trim", "indent(1)"])) + same() + tag(r, "endfilter")
    if kind == 10:
        return tag(r, f"with x = {expression(r, 1)}, n = x") + same() + tag(r, "endwith") + "{{ x }}"
    if kind == 11:
        return (tag(r, "macro c(n)") + "{{ caller(n, 1) }}" + tag(r, "endmacro") + tag(r, f"call(x, y) c({expression(r, 1)})") + inner +
                "{{ y }}" + tag(r, "endcall"))
    if kind == 12:
        return tag(r, "set ns = namespace(v=0)") + tag(r, "for x in l") + tag(r, f"set ns.v = ns.v + {r.choice(['x', '1', 'loop.index'])}") + tag(
            r, "endfor") + "{{ ns.v }}"
    return tag(r, "generation") + inner + tag(r, "endgeneration")


def theirs(template):
    try:
        return _compile_jinja_template(template).render(**json.loads(json.dumps(VALUES)))
    except NameError:
        return " at 0x"  # jinja2 folded constants to inf or nan and wrote their names into its program
    except Exception:  # any exception: no text
        return None


def main():
    count, seed = int(sys.argv[2]) if len(sys.argv) > 2 else 3000, int(sys.argv[3]) if len(sys.argv) > 3 else 1
    program = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    r, different, unbuilt = random.Random(seed), 0, 0
    for _ in range(count):
        template = body(r, 3)
        request = json.dumps({"template": template, "values": VALUES}, ensure_ascii=False) + "\n"
        program.stdin.write(request.encode())
        program.stdin.flush()
        ours, expected = json.loads(program.stdout.readline()), theirs(template)
        if expected is not None and " at 0x" in expected:
            continue  # the text has an address, or is unusable
        # Jinja folds constants, and evaluates true[1:] to undefined although x[1:] is an error.
        if expected is not None and any(words in ours.get("error", "") for words in ("not supported", "64 bits", "a slice does not support")):
            unbuilt += 1
        elif ours.get("text") != expected:
            different += 1
            print(f"{template!r}\n  jinja2: {expected!r}\n  nibble: {ours}")
    print(f"{count} compared, {unbuilt} not built, {different} different")
    return different != 0


sys.exit(main())

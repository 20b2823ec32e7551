# SPDX-License-Identifier: Apache-2.0
"""One-line changes of a C source: where each operator applies, and the line it makes."""
import re

RELATIONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
# What is not code: comments and strings keep their places but lose their text.
HIDDEN = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
# A whole statement on its line: an assignment, a call, a counter. Declarations have a type before the name.
STATEMENT = re.compile(r"\s+(?:[*(]*[\w.>\[\]()*+-]+ (?:[-+*/|&^%]|<<|>>)?= [^;]*|(?!return\b|goto\b|sizeof\b)\w+\(.*\)|"
                       r"[\w.>\[\]()-]+(?:\+\+|--)|(?:\+\+|--)[\w.>\[\]-]+);$")


def code_of(text):
    """The lines without comments, strings and preprocessor lines, each as long as before."""
    shown = HIDDEN.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)
    return ["" if line.lstrip().startswith("#") else line for line in shown.split("\n")]


def swap(pattern, change):
    """An operator that replaces one match at a time."""
    def apply(_, line):
        for match in re.finditer(pattern, line):
            new = change(match.group(0))
            if new is not None:
                yield match.start(), match.end(), new
    return apply


def negate(_, line):
    """A condition that is whole on its line."""
    match = re.match(r"\s*(?:\} else )?(?:if|while) (?=\()", line)
    if not match:
        return
    depth = 0
    for at in range(match.end(), len(line)):
        depth += {"(": 1, ")": -1}.get(line[at], 0)
        if depth == 0:
            yield match.end(), match.end() + 1, "(!("
            yield at, at + 1, "))"
            return


def unguard(context, line):
    """The whole `if (...) return ...;` is dropped, over however many lines it is written."""
    match = re.match(r"(\s+)if (?=\()", line)
    if match and context.guards():
        yield match.end(1), match.end(1), "while (false) "


def succeed(context, line):
    """A failure is reported to the caller as success; the error text is written all the same."""
    match = re.match(r"\s+return (?=NIB_[A-Z_]+;|\w*fail\w*\()", line)
    if match and context.returns("nib_status") and not line[match.end():].startswith("NIB_OK"):
        yield match.end(), match.end(), "NIB_OK * (int)"


def flip(context, line):
    match = re.match(r"\s+return (true|false);", line)
    if match and context.returns("bool"):
        yield match.start(1), match.end(1), "false" if match.group(1) == "true" else "true"


def drop(context, line):
    indent = len(line) - len(line.lstrip())
    if STATEMENT.match(line) and context.starts():
        yield indent, len(line), "{}"


def drop_jump(_, line):
    match = re.match(r"\s+(break|continue);", line)
    if match:
        yield match.start(1), match.end(), "{}"


def step(by):
    """A larger allocation or buffer changes nothing, so those lines keep their constants."""
    def change(number):
        value = int(number, 0) + by
        return None if value < 0 else hex(value) if number[:2] in ("0x", "0X") else str(value)

    def apply(context, line):
        if not ROOM.search(line):
            yield from swap(NUMBER, change)(context, line)
    return apply


ROOM = re.compile(r"nib__(?:reserve|alloc|array)\w*\(|^\s*(?:static )?(?:char|uint8_t) [^=;]*\[[^;=]*;")
NUMBER = r"(?<![\w.])(?:0x[0-9a-fA-F]+|0|[1-9][0-9]*)(?![\w.])"
OPERATORS = {
    "relation": swap(r"(?<= )(?:[<>=!]=|[<>])(?= )", RELATIONS.get),
    "and, or": swap(r"(?<= )(?:&&|\|\|)(?= |$)", {"&&": "||", "||": "&&"}.get),
    "condition negated": negate,
    "guard dropped": unguard,
    "error becomes NIB_OK": succeed,
    "true, false": flip,
    "constant + 1": step(1),
    "constant - 1": step(-1),
    "statement dropped": drop,
    "plus, minus": swap(r"(?<= )[-+]=?(?= )", {"+": "-", "-": "+", "+=": "-=", "-=": "+="}.get),
    "break, continue dropped": drop_jump,
}


class Context:
    """What an operator asks about the lines around its own."""

    def __init__(self, code, at):
        self.code, self.at = code, at

    def starts(self):
        """The line begins a statement: the one before ends one, or controls this one."""
        before = next((line.rstrip() for line in reversed(self.code[:self.at]) if line.strip()), "")
        return before.endswith((";", "{", "}", ":", " else")) or (
            before.endswith(")") and re.match(r"\s*(?:\} else )?(?:if|for|while) \(", before) is not None)

    def guards(self):
        """What the `if` of this line controls is a return, without an else."""
        depth = 0
        for number in range(self.at, min(self.at + 12, len(self.code))):
            depth += self.code[number].count("(") - self.code[number].count(")")
            if depth == 0:
                return self.code[number + 1].strip().startswith("return")
        return False

    def head(self):
        """The first line of the function around this one, or the last before it."""
        return next((line for line in reversed(self.code[:self.at]) if line[:1].isalpha() and "(" in line), "")

    def returns(self, kind):
        """The function around this line has this type."""
        return re.match(r"(?:static )?(?:inline )?(?:NIB_INLINE )?" + kind + r" \w+\(", self.head()) is not None


def function_at(text, line):
    """The name of the last function that begins before a line, or -."""
    found = re.search(r"(\w+)\(", Context(code_of(text), line - 1).head())
    return found.group(1) if found else "-"


def mutants_of(text):
    """{line number from 1: [(operator, old line, new line)]}, in a fixed order"""
    lines, code, found = text.split("\n"), code_of(text), {}
    for at, line in enumerate(code):
        if not line.strip():
            continue
        context, here = Context(code, at), []
        for name, operator in OPERATORS.items():
            edits = list(operator(context, line))
            groups = [edits] if operator is negate and edits else [[e] for e in edits]
            for group in groups:
                new = lines[at]
                for start, end, put in sorted(group, reverse=True):
                    new = new[:start] + put + new[end:]
                here.append((name, lines[at], new))
        if here:
            found[at + 1] = here
    return found

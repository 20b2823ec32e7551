/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses the statements of a template into a tree; opens and closes templates. Expressions are in
 * template_expression.c.
 */
#include "template_parts.h"

#include <stdarg.h>
#include <stdio.h>

/* ---- shared by both parsers ---- */

nib_status nib__template_fail(const nib_template_reader *r, nib_status status, int line,
                              const char *format, ...)
{
    char sentence[512], name[NIB_SHOWN];
    va_list args;
    va_start(args, format);
    nib__vformat(sentence, sizeof sentence, format, args);
    va_end(args);
    return nib__fail(r->err, status, "%s: line %d: %s", nib__escape_string(name, r->t->name), line,
                     sentence);
}

bool nib__reader_is_name(const nib_template_reader *r, const char *name)
{
    const nib_lexeme *token = nib__reader_now(r);
    return token->kind == NIB_T_NAME && token->size == strlen(name) &&
           memcmp(token->at, name, token->size) == 0;
}

bool nib__reader_skip(nib_template_reader *r, nib_operator op)
{
    const bool is = nib__reader_is(r, op);
    r->next += is;
    return is;
}

bool nib__reader_skip_name(nib_template_reader *r, const char *name)
{
    const bool is = nib__reader_is_name(r, name);
    r->next += is;
    return is;
}

nib_status nib__reader_unexpected(const nib_template_reader *r, const char *wanted)
{
    const nib_lexeme *token = nib__reader_now(r);
    char name[80];
    if (token->kind == NIB_T_END)
        return nib__template_fail(r, NIB_BAD_INPUT, token->line, "the template ends here; %s",
                                  wanted);
    if (token->kind == NIB_T_DATA)
        return nib__template_fail(r, NIB_BAD_INPUT, token->line, "unexpected text; %s", wanted);
    return nib__template_fail(r, NIB_BAD_INPUT, token->line, "unexpected \"%s\"; %s",
                              nib__escape_name(name, sizeof name, token->at, token->size), wanted);
}

nib_status nib__reader_expect(nib_template_reader *r, nib_operator op)
{
    static const char *const wanted[] = {
        [NIB_OPERATOR_ASSIGN] = "expected =",   [NIB_OPERATOR_COLON] = "expected :",
        [NIB_OPERATOR_COMMA] = "expected ,",    [NIB_OPERATOR_LPAREN] = "expected (",
        [NIB_OPERATOR_RPAREN] = "expected )",   [NIB_OPERATOR_LBRACKET] = "expected [",
        [NIB_OPERATOR_RBRACKET] = "expected ]", [NIB_OPERATOR_LBRACE] = "expected {",
        [NIB_OPERATOR_RBRACE] = "expected }",
    };
    return nib__reader_skip(r, op) ? NIB_OK : nib__reader_unexpected(r, wanted[op]);
}

nib_status nib__reader_expect_name(nib_template_reader *r, const char *name)
{
    char wanted[40];
    if (nib__reader_skip_name(r, name))
        return NIB_OK;
    snprintf(wanted, sizeof wanted, "expected \"%s\"", name);
    return nib__reader_unexpected(r, wanted);
}

nib_status nib__reader_node(nib_template_reader *r, nib_template_node **out, nib_node_kind kind,
                            int line)
{
    nib_template_node *node = nib__arena_take(&r->t->arena, 1, sizeof *node);
    if (node == NULL)
        return nib__fail_memory(r->err, sizeof *node, "a chat template");
    node->kind = (uint8_t)kind;
    node->line = line;
    *out = node;
    return NIB_OK;
}

nib_status nib__reader_string(nib_template_reader *r, nib_value *out, const char *at, size_t size)
{
    nib_string *string = nib__arena_take(&r->t->arena, 1, sizeof *string);
    char *copy = nib__arena_copy(&r->t->arena, at, size);
    if (string == NULL || copy == NULL)
        return nib__fail_memory(r->err, size, "a chat template");
    *string = (nib_string){.at = copy, .size = size};
    *out = (nib_value){.kind = NIB_V_STRING, .as.string = string};
    return NIB_OK;
}

nib_status nib__reader_enter(nib_template_reader *r)
{
    if (r->nesting == NIB_TEMPLATE_NESTING)
        return nib__template_fail(r, NIB_BAD_INPUT, nib__reader_now(r)->line,
                                  "statements and brackets are nested deeper than %d",
                                  NIB_TEMPLATE_NESTING);
    r->nesting++;
    return NIB_OK;
}

static bool grow_symbols(nib_template *t)
{
    const size_t count = t->symbol_slot_count == 0 ? 128 : 2 * t->symbol_slot_count;
    uint32_t *slots = nib__calloc(&t->allocator, count, sizeof *slots);
    if (slots == NULL)
        return false;
    for (size_t i = 0; i < t->symbol_count; i++) {
        size_t at = nib__name_hash(t->symbols[i].at, t->symbols[i].size) & (count - 1);
        while (slots[at] != 0)
            at = (at + 1) & (count - 1);
        slots[at] = (uint32_t)i + 1;
    }
    nib__release(&t->allocator, t->symbol_slots);
    t->symbol_slots = slots;
    t->symbol_slot_count = count;
    return true;
}

bool nib__symbol_find(const nib_template *t, const char *name, size_t size, size_t *slot)
{
    enum { RUN = 512 }; /* half of the slots are empty: only hostile names probe further */
    size_t at = nib__name_hash(name, size) & (t->symbol_slot_count - 1);
    for (int i = 0; i < RUN; i++) {
        const uint32_t symbol = t->symbol_slots[at];
        const nib_string *s = symbol == 0 ? NULL : &t->symbols[symbol - 1];
        *slot = at;
        if (s == NULL || (s->size == size && memcmp(s->at, name, size) == 0))
            return s != NULL;
        at = (at + 1) & (t->symbol_slot_count - 1);
    }
    *slot = SIZE_MAX;
    return false;
}

bool nib__template_reads(const nib_template *t, const char *name, size_t size)
{
    size_t slot;
    return nib__symbol_find(t, name, size, &slot);
}

nib_status nib__reader_symbol(nib_template_reader *r, uint32_t *out, const char *name, size_t size)
{
    nib_template *t = r->t;
    size_t slot;
    if (2 * (t->symbol_count + 1) > t->symbol_slot_count && !grow_symbols(t))
        return nib__fail_memory(r->err, 2 * t->symbol_slot_count, "a chat template");
    if (!nib__symbol_find(t, name, size, &slot)) {
        if (slot == SIZE_MAX)
            return nib__template_fail(r, NIB_UNSUPPORTED, nib__reader_now(r)->line,
                                      "hundreds of variables share a hash; their names are made "
                                      "to be slow");
        const char *copy = nib__arena_copy(&t->arena, name, size);
        if (copy == NULL || !nib__reserve(&t->allocator, (void **)&t->symbols, &t->symbol_capacity,
                                          t->symbol_count + 1, sizeof *t->symbols))
            return nib__fail_memory(r->err, size, "a chat template");
        t->symbols[t->symbol_count++] = (nib_string){.at = copy, .size = size};
        t->symbol_slots[slot] = (uint32_t)t->symbol_count;
    }
    *out = t->symbol_slots[slot] - 1;
    return NIB_OK;
}

/* ---- statements ---- */

static nib_status expect_end(nib_template_reader *r)
{
    if (nib__reader_now(r)->kind != NIB_T_BLOCK_END)
        return nib__reader_unexpected(r, "expected %}");
    r->next++;
    return NIB_OK;
}

static nib_status parse_body(nib_template_reader *r, nib_template_node **out,
                             const char *const *ends);

/* %}, a body, and the {% of the tag that ends it; the name of that tag comes next. */
static nib_status parse_block(nib_template_reader *r, nib_template_node **out,
                              const char *const *ends)
{
    NIB_TRY(expect_end(r));
    return parse_body(r, out, ends);
}

/* The same, up to and including {% END %}. */
static nib_status parse_block_and_end(nib_template_reader *r, nib_template_node **out,
                                      const char *end)
{
    const char *const ends[] = {end, NULL};
    NIB_TRY(parse_block(r, out, ends));
    r->next++;
    return expect_end(r);
}

static nib_status check_target(nib_template_reader *r, const nib_template_node *target,
                               bool in_loop)
{
    if (in_loop && target->kind == NIB_N_NAME && target->name == r->t->loop_symbol)
        return nib__template_fail(r, NIB_BAD_INPUT, target->line,
                                  "\"loop\" is reserved inside a for; use another name");
    if (target->kind == NIB_N_NAME || target->kind == NIB_N_NAMESPACE_PLACE)
        return NIB_OK;
    if (target->kind != NIB_N_TUPLE)
        return nib__template_fail(r, NIB_BAD_INPUT, target->line,
                                  "cannot assign to this expression; expected a name");
    for (const nib_template_node *n = target->a; n != NULL; n = n->next)
        NIB_TRY(check_target(r, n, in_loop));
    return NIB_OK;
}

/* name.attribute as a target. */
static nib_status parse_namespace_place(nib_template_reader *r, nib_template_node **out)
{
    const nib_lexeme *token = nib__reader_now(r);
    if (token[2].kind != NIB_T_NAME)
        return nib__reader_unexpected(r, "expected a name and an attribute");
    NIB_TRY(nib__reader_node(r, out, NIB_N_NAMESPACE_PLACE, token->line));
    NIB_TRY(nib__reader_symbol(r, &(*out)->name, token->at, token->size));
    NIB_TRY(nib__reader_string(r, &(*out)->value, token[2].at, token[2].size));
    r->next += 3;
    return NIB_OK;
}

static nib_status parse_target(nib_template_reader *r, nib_template_node **out, bool ends_in,
                               bool namespaces)
{
    const nib_lexeme *token = nib__reader_now(r);
    if (namespaces && token->kind == NIB_T_NAME && token[1].kind == NIB_T_OPERATOR &&
        token[1].op == NIB_OPERATOR_DOT)
        return parse_namespace_place(r, out);
    r->storing = true;
    NIB_TRY(nib__parse_tuple(r, out, true, false, false, ends_in));
    r->storing = false;
    return check_target(r, *out, r->fors != 0);
}

static nib_status parse_for(nib_template_reader *r, nib_template_node *node)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    r->fors++;
    NIB_TRY(parse_target(r, &node->a, true, false));
    NIB_TRY(nib__reader_expect_name(r, "in"));
    NIB_TRY(nib__parse_tuple(r, &node->b, false, false, false, false));
    if (nib__reader_skip_name(r, "if"))
        NIB_TRY(nib__parse_expression(r, &node->e));
    node->flag = nib__reader_skip_name(r, "recursive");
    const int macros = r->macros, loops = r->loops;
    r->loops = node->flag ? 0 : loops; /* a recursive loop cannot leave an enclosing loop */
    r->loops++;
    NIB_TRY(parse_block(r, &node->c, ends));
    r->loops--;
    node->op = r->macros != macros;
    NIB_TRY(nib__reader_skip_name(r, "else") ? parse_block_and_end(r, &node->d, "endfor")
                                             : (r->next++, expect_end(r)));
    r->loops = loops;
    r->fors--;
    return NIB_OK;
}

static nib_status parse_if(nib_template_reader *r, nib_template_node *node)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    for (;;) {
        NIB_TRY(nib__parse_tuple(r, &node->a, false, false, false, false));
        r->if_depth++;
        NIB_TRY(parse_block(r, &node->c, ends));
        r->if_depth--;
        const int line = nib__reader_now(r)->line;
        if (!nib__reader_skip_name(r, "elif"))
            break;
        NIB_TRY(nib__reader_node(r, &node->d, NIB_N_IF, line));
        node = node->d;
    }
    if (!nib__reader_skip_name(r, "else"))
        return r->next++, expect_end(r);
    r->if_depth++;
    NIB_TRY(parse_block_and_end(r, &node->d, "endif"));
    r->if_depth--;
    return NIB_OK;
}

static nib_status parse_set(nib_template_reader *r, nib_template_node *node)
{
    NIB_TRY(parse_target(r, &node->a, false, true));
    if (nib__reader_skip(r, NIB_OPERATOR_ASSIGN)) {
        NIB_TRY(nib__parse_tuple(r, &node->b, false, true, false, false));
        return expect_end(r);
    }
    node->kind = NIB_N_SET_BLOCK;
    NIB_TRY(nib__parse_filters(r, &node->b, false));
    return parse_block_and_end(r, &node->c, "endset");
}

/* (name, name=default, ...) */
static nib_status parse_parameters(nib_template_reader *r, nib_template_node **out)
{
    nib_template_node **end = out;
    bool defaults = false;
    int count = 0;
    NIB_TRY(nib__reader_expect(r, NIB_OPERATOR_LPAREN));
    while (!nib__reader_is(r, NIB_OPERATOR_RPAREN)) {
        if (*out != NULL)
            NIB_TRY(nib__reader_expect(r, NIB_OPERATOR_COMMA));
        const nib_lexeme *token = nib__reader_now(r);
        if (token->kind != NIB_T_NAME)
            return nib__reader_unexpected(r, "expected a parameter");
        r->next++;
        NIB_TRY(nib__reader_node(r, end, NIB_N_NAME, token->line));
        NIB_TRY(nib__reader_symbol(r, &(*end)->name, token->at, token->size));
        r->stored |= nib__reader_special(r, (*end)->name);
        for (const nib_template_node *other = *out; other != *end; other = other->next) {
            if (other->name == (*end)->name)
                return nib__template_fail(r, NIB_BAD_INPUT, token->line,
                                          "two parameters have the same name");
        }
        if (++count > NIB_TEMPLATE_PARAMETERS)
            return nib__template_fail(r, NIB_UNSUPPORTED, token->line,
                                      "a macro has more than %d parameters",
                                      NIB_TEMPLATE_PARAMETERS);
        if (nib__reader_skip(r, NIB_OPERATOR_ASSIGN))
            NIB_TRY(nib__parse_expression(r, &(*end)->a));
        else if (defaults)
            return nib__reader_unexpected(
                r, "a parameter after one with a default needs a default too");
        defaults = (*end)->a != NULL;
        end = &(*end)->next;
    }
    return nib__reader_expect(r, NIB_OPERATOR_RPAREN);
}

/* Names that the body uses also count as used by the enclosing macros. Parameters hide varargs and
 * kwargs; a parameter named caller with a default receives the body of a call block. */
static nib_status parse_macro_body(nib_template_reader *r, nib_template_node *node, const char *end)
{
    const unsigned uses = r->uses, stored = r->stored;
    const int loops = r->loops, line = nib__reader_now(r)->line;
    r->macros++;
    r->uses = r->stored = 0;
    r->loops = 0;
    NIB_TRY(parse_block_and_end(r, &node->c, end));
    node->op = (uint8_t)r->uses;
    for (const nib_template_node *p = node->a; p != NULL; p = p->next) {
        const unsigned special = nib__reader_special(r, p->name);
        if (special == NIB_USES_CALLER && (node->op & NIB_USES_CALLER) && p->a == NULL)
            return nib__template_fail(r, NIB_BAD_INPUT, line,
                                      "the parameter caller needs a default, or remove it");
        node->op &= (uint8_t) ~(special & ~(unsigned)NIB_USES_CALLER);
    }
    r->uses = uses | (r->uses & ~stored);
    r->stored |= stored;
    r->loops = loops;
    return NIB_OK;
}

static nib_status parse_macro(nib_template_reader *r, nib_template_node *node)
{
    const nib_lexeme *token = nib__reader_now(r);
    if (token->kind != NIB_T_NAME)
        return nib__reader_unexpected(r, "expected the macro's name");
    r->next++;
    NIB_TRY(nib__reader_symbol(r, &node->name, token->at, token->size));
    NIB_TRY(nib__reader_string(r, &node->value, token->at, token->size));
    NIB_TRY(parse_parameters(r, &node->a));
    return parse_macro_body(r, node, "endmacro");
}

static nib_status parse_call_block(nib_template_reader *r, nib_template_node *node)
{
    NIB_TRY(nib__reader_node(r, &node->b, NIB_N_MACRO, node->line));
    NIB_TRY(nib__reader_string(r, &node->b->value, "caller", 6));
    node->b->flag = true;
    if (nib__reader_is(r, NIB_OPERATOR_LPAREN))
        NIB_TRY(parse_parameters(r, &node->b->a));
    NIB_TRY(nib__parse_expression(r, &node->a));
    if (node->a->kind != NIB_N_CALL)
        return nib__reader_unexpected(r, "expected a call");
    return parse_macro_body(r, node->b, "endcall");
}

static nib_status parse_filter_block(nib_template_reader *r, nib_template_node *node)
{
    NIB_TRY(nib__parse_filters(r, &node->b, true));
    return parse_block_and_end(r, &node->c, "endfilter");
}

static nib_status parse_with(nib_template_reader *r, nib_template_node *node)
{
    nib_template_node **end = &node->a;
    while (nib__reader_now(r)->kind != NIB_T_BLOCK_END) {
        if (node->a != NULL)
            NIB_TRY(nib__reader_expect(r, NIB_OPERATOR_COMMA));
        NIB_TRY(nib__reader_node(r, end, NIB_N_SET, nib__reader_now(r)->line));
        r->storing = true;
        NIB_TRY(nib__parse_primary(r, &(*end)->a));
        r->storing = false;
        NIB_TRY(check_target(r, (*end)->a, false));
        NIB_TRY(nib__reader_expect(r, NIB_OPERATOR_ASSIGN));
        NIB_TRY(nib__parse_expression(r, &(*end)->b));
        end = &(*end)->next;
    }
    return parse_block_and_end(r, &node->c, "endwith");
}

static nib_status parse_generation(nib_template_reader *r, nib_template_node *node)
{
    const int loops = r->loops;
    r->loops = 0; /* its body cannot leave an enclosing loop */
    NIB_TRY(parse_block_and_end(r, &node->c, "endgeneration"));
    r->loops = loops;
    return NIB_OK;
}

static nib_status parse_jump(nib_template_reader *r, nib_template_node *node)
{
    if (r->loops == 0)
        return nib__template_fail(r, NIB_BAD_INPUT, node->line, "%s outside a loop",
                                  node->kind == NIB_N_BREAK ? "break" : "continue");
    return expect_end(r);
}

static const struct {
    const char *name;
    nib_node_kind kind;
    nib_status (*parse)(nib_template_reader *r, nib_template_node *node);
} statements[] = {
    {"if", NIB_N_IF, parse_if},
    {"for", NIB_N_FOR, parse_for},
    {"set", NIB_N_SET, parse_set},
    {"macro", NIB_N_MACRO, parse_macro},
    {"call", NIB_N_CALL_BLOCK, parse_call_block},
    {"filter", NIB_N_FILTER_BLOCK, parse_filter_block},
    {"with", NIB_N_WITH, parse_with},
    {"generation", NIB_N_SCOPE, parse_generation},
    {"break", NIB_N_BREAK, parse_jump},
    {"continue", NIB_N_CONTINUE, parse_jump},
};

static nib_status parse_statement(nib_template_reader *r, nib_template_node **out)
{
    const nib_lexeme *token = nib__reader_now(r);
    char name[80];
    if (token->kind != NIB_T_NAME)
        return nib__reader_unexpected(r, "expected the name of a statement");
    for (size_t i = 0; i < COUNT(statements); i++) {
        if (!nib__reader_skip_name(r, statements[i].name))
            continue;
        NIB_TRY(nib__reader_enter(r));
        NIB_TRY(nib__reader_node(r, out, statements[i].kind, token->line));
        NIB_TRY(statements[i].parse(r, *out));
        r->nesting--;
        return NIB_OK;
    }
    if (token->size > 3 && memcmp(token->at, "end", 3) == 0)
        return nib__reader_unexpected(r, "no open statement ends with it");
    return nib__template_fail(r, NIB_UNSUPPORTED, token->line,
                              "unknown statement \"%s\"; docs/templates.md lists what is supported",
                              nib__escape_name(name, sizeof name, token->at, token->size));
}

static bool is_any_name(const nib_template_reader *r, const char *const *ends)
{
    for (size_t i = 0; ends != NULL && ends[i] != NULL; i++) {
        if (nib__reader_is_name(r, ends[i]))
            return true;
    }
    return false;
}

/* Parses up to a tag named in `ends`, whose name comes next; NULL: up to the end. */
static nib_status parse_body(nib_template_reader *r, nib_template_node **out,
                             const char *const *ends)
{
    for (nib_template_node **end = out;; end = &(*end)->next) {
        const nib_lexeme *token = nib__reader_now(r);
        if (token->kind == NIB_T_END && ends == NULL)
            return NIB_OK;
        if (token->kind == NIB_T_END) {
            char wanted[60];
            snprintf(wanted, sizeof wanted, "{%% %s %%} is missing", ends[0]);
            return nib__reader_unexpected(r, wanted);
        }
        r->next++;
        if (token->kind == NIB_T_DATA) {
            NIB_TRY(nib__reader_node(r, end, NIB_N_DATA, token->line));
            NIB_TRY(nib__reader_string(r, &(*end)->value, token->at, token->size));
        } else if (token->kind == NIB_T_PRINT) {
            NIB_TRY(nib__reader_node(r, end, NIB_N_PRINT, token->line));
            NIB_TRY(nib__parse_tuple(r, &(*end)->a, false, true, false, false));
            if (nib__reader_now(r)->kind != NIB_T_PRINT_END)
                return nib__reader_unexpected(r, "expected }}");
            r->next++;
        } else if (is_any_name(r, ends)) {
            return NIB_OK;
        } else {
            NIB_TRY(parse_statement(r, end));
        }
    }
}

/* ---- opening and closing ---- */

/* As Jinja: \r\n and \r become \n, and a trailing newline is removed. */
static char *normalize_newlines(nib_arena *arena, const char *text, size_t size, size_t *out_size)
{
    char *copy = nib__arena_take(arena, size + 1, 1);
    size_t to = 0;
    for (size_t i = 0; copy != NULL && i < size; i++) {
        if (text[i] == '\r' && i + 1 < size && text[i + 1] == '\n')
            continue;
        copy[to++] = text[i] == '\r' ? '\n' : text[i];
    }
    *out_size = to > 0 && copy[to - 1] == '\n' ? to - 1 : to;
    return copy;
}

static nib_status read_template(nib_template_reader *r, const nib_named_text *source)
{
    nib_template *t = r->t;
    char shown[NIB_SHOWN];
    const size_t valid = nib__utf8_check(source->text, source->size);
    t->name = nib__arena_copy(&t->arena, source->name, strlen(source->name));
    if (t->name == NULL)
        return nib__fail_memory(r->err, strlen(source->name), "a chat template");
    if (source->size > NIB_TEMPLATE_SOURCE)
        return nib__fail(r->err, NIB_UNSUPPORTED, "%s: the template has %zu bytes; the limit is %d",
                         nib__escape_string(shown, t->name), source->size, NIB_TEMPLATE_SOURCE);
    if (valid != source->size)
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: the template is not valid UTF-8 at byte %zu; convert it first",
                         nib__escape_string(shown, t->name), valid);
    r->text = normalize_newlines(&t->arena, source->text, source->size, &r->size);
    if (r->text == NULL || !grow_symbols(t))
        return nib__fail_memory(r->err, source->size, "a chat template");
    NIB_TRY(nib__template_lex(r));
    NIB_TRY(nib__reader_symbol(r, &t->loop_symbol, "loop", 4));
    NIB_TRY(nib__reader_symbol(r, &t->caller_symbol, "caller", 6));
    NIB_TRY(nib__reader_symbol(r, &t->varargs_symbol, "varargs", 7));
    NIB_TRY(nib__reader_symbol(r, &t->kwargs_symbol, "kwargs", 6));
    return parse_body(r, &t->body, NULL);
}

nib_status nib__template_open(nib_template **out, const nib_named_text *source,
                              const nib_allocator *a, nib_err *err)
{
    nib_template *t = nib__calloc(a, 1, sizeof *t);
    if (t == NULL)
        return nib__fail_memory(err, sizeof *t, "a chat template");
    t->allocator = *a;
    nib__arena_init(&t->arena, &t->allocator, 0);
    nib_template_reader r = {.t = t, .err = err};
    const nib_status status = read_template(&r, source);
    nib__release(a, r.lexemes);
    if (status == NIB_OK)
        *out = t;
    else
        nib__template_close(t);
    return status;
}

void nib__template_close(nib_template *t)
{
    if (t == NULL)
        return;
    const nib_allocator a = t->allocator;
    nib__release(&a, t->symbols);
    nib__release(&a, t->symbol_slots);
    nib__arena_free(&t->arena);
    nib__release(&a, t);
}

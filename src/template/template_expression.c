/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses the expressions of a template into a tree, with Jinja's precedence: or, and, not,
 * comparisons, + -, ~, * / // %, **, signs, then calls, subscripts, filters and tests.
 */
#include "template_parts.h"

#include <stdlib.h>

/* ---- literals ---- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if ((c | 32) >= 'a' && (c | 32) <= 'f')
        return (c | 32) - 'a' + 10;
    return -1;
}

/* Reads \xHH, \uHHHH, \UHHHHHHHH or \ooo; false: another escape, and *from is unchanged. */
static bool read_code(const char *text, size_t size, size_t *from, uint32_t *point)
{
    const char kind = text[*from];
    const int wanted = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    size_t at = *from;
    uint32_t code = 0;
    if (wanted != 0) {
        if (size - at - 1 < (size_t)wanted)
            return false;
        for (int i = 0; i < wanted; i++) {
            const int digit = hex_digit(text[++at]);
            if (digit < 0)
                return false;
            code = code << 4 | (uint32_t)digit;
        }
        at++;
    } else if (kind >= '0' && kind <= '7') {
        for (int i = 0; i < 3 && at < size && text[at] >= '0' && text[at] <= '7'; i++)
            code = code << 3 | (uint32_t)(text[at++] - '0');
    } else {
        return false;
    }
    *from = at;
    *point = code;
    return true;
}

static nib_status read_string(nib_template_reader *r, const nib_lexeme *token, nib_text *out)
{
    static const char plain[] = "abfnrtv\\'\"", means[] = "\a\b\f\n\r\t\v\\'\"";
    for (size_t i = 0; i < token->size;) {
        uint32_t point;
        char bytes[4];
        if (token->at[i] != '\\') {
            nib__text_put(out, token->at + i++, 1);
            continue;
        }
        i++;
        const char c = token->at[i];
        const char *known = c == 0 ? NULL : strchr(plain, c);
        if (known != NULL) {
            nib__text_put(out, &means[known - plain], 1);
            i++;
        } else if (c == '\n') {
            i++;
        } else if (read_code(token->at, token->size, &i, &point)) {
            if (point > 0x10ffff || (point >= 0xd800 && point < 0xe000))
                return nib__template_fail(r, NIB_BAD_INPUT, token->line,
                                          "an escape names U+%04X, which is not a character",
                                          (unsigned)point);
            nib__text_put(out, bytes, (size_t)nib__utf8_put(bytes, point));
        } else if (c == 'N' || c == 'x' || c == 'u' || c == 'U') {
            return nib__template_fail(r, NIB_BAD_INPUT, token->line,
                                      "\\%c in a string is not a complete escape", c);
        } else {
            nib__text_put(out, "\\", 1); /* not an escape: keep the backslash */
        }
    }
    return out->failed ? nib__fail_memory(r->err, token->size, "a chat template") : NIB_OK;
}

/* Adjacent strings are concatenated. */
static nib_status parse_string(nib_template_reader *r, nib_template_node **out)
{
    nib_text text;
    nib_status status = nib__reader_node(r, out, NIB_N_CONST, nib__reader_now(r)->line);
    nib__text_init(&text, &r->t->allocator);
    while (status == NIB_OK && nib__reader_now(r)->kind == NIB_T_STRING)
        status = read_string(r, &r->lexemes[r->next++], &text);
    if (status == NIB_OK)
        status = nib__reader_string(r, &(*out)->value, text.at == NULL ? "" : text.at, text.size);
    nib__text_free(&text);
    return status;
}

static nib_status parse_integer(nib_template_reader *r, const nib_lexeme *token, nib_value *out)
{
    const char kind = token->size > 1 && token->at[0] == '0' ? (char)(token->at[1] | 32) : '0';
    const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    uint64_t value = 0;
    for (size_t i = base == 10 ? 0 : 2; i < token->size; i++) {
        const int digit = hex_digit(token->at[i]);
        if (token->at[i] == '_')
            continue;
        if (digit < 0 || digit >= base || !nib__append_digit(&value, base, digit))
            return nib__template_fail(r, NIB_BAD_INPUT, token->line, "%.*s is not a 64-bit integer",
                                      (int)nib__min(token->size, 80), token->at);
    }
    if (base == 10 && token->size > 1 && token->at[0] == '0' && value != 0)
        return nib__template_fail(r, NIB_BAD_INPUT, token->line, "an integer begins with 0");
    *out = nib__v_int((int64_t)value);
    return NIB_OK;
}

static nib_status parse_number(nib_template_reader *r, nib_template_node **out)
{
    const nib_lexeme *token = &r->lexemes[r->next++];
    NIB_TRY(nib__reader_node(r, out, NIB_N_CONST, token->line));
    if (token->kind == NIB_T_INT)
        return parse_integer(r, token, &(*out)->value);
    char digits[400];
    size_t size = 0;
    for (size_t i = 0; i < token->size; i++) {
        if (token->at[i] != '_' && size < sizeof digits)
            digits[size++] = token->at[i];
    }
    nib_json json;
    double value = 0;
    nib__json_init(&json, r->t->name, digits, size, NULL);
    if (size == sizeof digits || !nib__json_read_double(&json, &value))
        return nib__template_fail(r, NIB_BAD_INPUT, token->line, "%.*s is not a number",
                                  (int)nib__min(token->size, 80), token->at);
    (*out)->value = nib__v_real(value);
    return NIB_OK;
}

/* ---- primary expressions ---- */

/* [a, b, ...]; allows a trailing comma. */
static nib_status parse_list(nib_template_reader *r, nib_template_node **out)
{
    NIB_TRY(nib__reader_node(r, out, NIB_N_LIST, nib__reader_now(r)->line));
    nib_template_node **end = &(*out)->a;
    NIB_TRY(nib__reader_expect(r, NIB_OPERATOR_LBRACKET));
    while (!nib__reader_is(r, NIB_OPERATOR_RBRACKET)) {
        if (*end != NULL) {
            end = &(*end)->next;
            NIB_TRY(nib__reader_expect(r, NIB_OPERATOR_COMMA));
            if (nib__reader_is(r, NIB_OPERATOR_RBRACKET))
                break;
        }
        NIB_TRY(nib__parse_expression(r, end));
    }
    return nib__reader_expect(r, NIB_OPERATOR_RBRACKET);
}

static nib_status parse_dict(nib_template_reader *r, nib_template_node **out)
{
    NIB_TRY(nib__reader_node(r, out, NIB_N_DICT, nib__reader_now(r)->line));
    nib_template_node **end = &(*out)->a;
    NIB_TRY(nib__reader_expect(r, NIB_OPERATOR_LBRACE));
    while (!nib__reader_is(r, NIB_OPERATOR_RBRACE)) {
        if ((*out)->a != NULL) {
            NIB_TRY(nib__reader_expect(r, NIB_OPERATOR_COMMA));
            if (nib__reader_is(r, NIB_OPERATOR_RBRACE))
                break;
        }
        NIB_TRY(nib__parse_expression(r, end));
        end = &(*end)->next;
        NIB_TRY(nib__reader_expect(r, NIB_OPERATOR_COLON));
        NIB_TRY(nib__parse_expression(r, end));
        end = &(*end)->next;
    }
    return nib__reader_expect(r, NIB_OPERATOR_RBRACE);
}

static bool is_word(const nib_lexeme *token, const char *word)
{
    return token->size == strlen(word) && memcmp(token->at, word, token->size) == 0;
}

static nib_status parse_name(nib_template_reader *r, nib_template_node **out)
{
    const nib_lexeme *token = &r->lexemes[r->next++];
    const bool yes = is_word(token, "true") || is_word(token, "True"),
               no = is_word(token, "false") || is_word(token, "False"),
               none = is_word(token, "none") || is_word(token, "None");
    NIB_TRY(nib__reader_node(r, out, yes || no || none ? NIB_N_CONST : NIB_N_NAME, token->line));
    if (yes || no || none) {
        (*out)->value = none ? nib__v_none() : nib__v_bool(yes);
        return NIB_OK;
    }
    NIB_TRY(nib__reader_symbol(r, &(*out)->name, token->at, token->size));
    const unsigned special = nib__reader_special(r, (*out)->name);
    if (r->storing)
        r->stored |= special;
    else
        r->uses |= special & ~r->stored;
    return NIB_OK;
}

nib_status nib__parse_primary(nib_template_reader *r, nib_template_node **out)
{
    switch (nib__reader_now(r)->kind) {
    case NIB_T_NAME: return parse_name(r, out);
    case NIB_T_STRING: return parse_string(r, out);
    case NIB_T_INT:
    case NIB_T_FLOAT: return parse_number(r, out);
    default: break;
    }
    if (nib__reader_is(r, NIB_OPERATOR_LBRACKET))
        return parse_list(r, out);
    if (nib__reader_is(r, NIB_OPERATOR_LBRACE))
        return parse_dict(r, out);
    if (!nib__reader_skip(r, NIB_OPERATOR_LPAREN))
        return nib__reader_unexpected(r, "expected an expression");
    NIB_TRY(nib__parse_tuple(r, out, false, true, true, false));
    return nib__reader_expect(r, NIB_OPERATOR_RPAREN);
}

static bool tuple_ends(const nib_template_reader *r, bool ends_in)
{
    const uint8_t kind = nib__reader_now(r)->kind;
    return kind == NIB_T_PRINT_END || kind == NIB_T_BLOCK_END ||
           nib__reader_is(r, NIB_OPERATOR_RPAREN) || (ends_in && nib__reader_is_name(r, "in"));
}

nib_status nib__parse_tuple(nib_template_reader *r, nib_template_node **out, bool simple,
                            bool with_condition, bool parentheses, bool ends_in)
{
    nib_template_node *first = NULL, **end = &first;
    bool is_tuple = false;
    const int line = nib__reader_now(r)->line;
    for (;;) {
        if (tuple_ends(r, ends_in))
            break;
        NIB_TRY(simple           ? nib__parse_primary(r, end)
                : with_condition ? nib__parse_expression(r, end)
                                 : nib__parse_condition_free(r, end));
        end = &(*end)->next;
        if (!nib__reader_skip(r, NIB_OPERATOR_COMMA))
            break;
        is_tuple = true;
    }
    if (!is_tuple && first != NULL) {
        *out = first;
        return NIB_OK;
    }
    if (!is_tuple && !parentheses)
        return nib__reader_unexpected(r, "expected an expression");
    NIB_TRY(nib__reader_node(r, out, NIB_N_TUPLE, line));
    (*out)->a = first;
    return NIB_OK;
}

/* ---- arguments, subscripts, filters and tests ---- */

nib_status nib__parse_arguments(nib_template_reader *r, nib_template_node **out)
{
    nib_template_node **end = out;
    bool named = false;
    NIB_TRY(nib__reader_expect(r, NIB_OPERATOR_LPAREN));
    while (!nib__reader_is(r, NIB_OPERATOR_RPAREN)) {
        const nib_lexeme *token = nib__reader_now(r);
        if (token->kind == NIB_T_NAME && token[1].kind == NIB_T_OPERATOR &&
            token[1].op == NIB_OPERATOR_ASSIGN) {
            r->next += 2;
            NIB_TRY(nib__reader_node(r, end, NIB_N_KEYWORD, token->line));
            NIB_TRY(nib__reader_string(r, &(*end)->value, token->at, token->size));
            NIB_TRY(nib__parse_expression(r, &(*end)->a));
            named = true;
        } else if (nib__reader_is(r, NIB_OPERATOR_MUL) || nib__reader_is(r, NIB_OPERATOR_POW)) {
            return nib__template_fail(r, NIB_UNSUPPORTED, token->line,
                                      "*args and **kwargs in a call are not supported");
        } else if (named) {
            return nib__reader_unexpected(r, "expected a named argument");
        } else {
            NIB_TRY(nib__parse_expression(r, end));
        }
        end = &(*end)->next;
        if (!nib__reader_skip(r, NIB_OPERATOR_COMMA))
            break;
    }
    return nib__reader_expect(r, NIB_OPERATOR_RPAREN);
}

static nib_status parse_slice(nib_template_reader *r, nib_template_node **out)
{
    nib_template_node *parts[3] = {NULL, NULL, NULL};
    int count = 0;
    const int line = nib__reader_now(r)->line;
    bool colon = false;
    for (;;) {
        if (nib__reader_skip(r, NIB_OPERATOR_COLON)) {
            colon = true;
            if (++count > 2)
                return nib__reader_unexpected(r, "a slice has at most three parts");
        } else if (nib__reader_is(r, NIB_OPERATOR_RBRACKET) ||
                   nib__reader_is(r, NIB_OPERATOR_COMMA)) {
            break;
        } else if (parts[count] != NULL) {
            return nib__reader_unexpected(r, "expected ]");
        } else {
            NIB_TRY(nib__parse_expression(r, &parts[count]));
        }
    }
    if (!colon && parts[0] == NULL)
        return nib__reader_unexpected(r, "expected an index");
    if (!colon) {
        *out = parts[0];
        return NIB_OK;
    }
    NIB_TRY(nib__reader_node(r, out, NIB_N_SLICE, line));
    (*out)->a = parts[0];
    (*out)->b = parts[1];
    (*out)->c = parts[2];
    return NIB_OK;
}

/* a.b, a.0 or a[b]; *value is a, and becomes the result. */
static nib_status parse_subscript(nib_template_reader *r, nib_template_node **value)
{
    nib_template_node *node;
    const int line = nib__reader_now(r)->line;
    if (nib__reader_skip(r, NIB_OPERATOR_DOT)) {
        const nib_lexeme *token = nib__reader_now(r);
        if (token->kind == NIB_T_INT) {
            NIB_TRY(nib__reader_node(r, &node, NIB_N_ITEM, line));
            NIB_TRY(parse_number(r, &node->b));
        } else if (token->kind == NIB_T_NAME) {
            r->next++;
            NIB_TRY(nib__reader_node(r, &node, NIB_N_ATTR, line));
            NIB_TRY(nib__reader_string(r, &node->value, token->at, token->size));
        } else {
            return nib__reader_unexpected(r, "expected a name after the dot");
        }
    } else {
        NIB_TRY(nib__reader_expect(r, NIB_OPERATOR_LBRACKET));
        NIB_TRY(nib__reader_node(r, &node, NIB_N_ITEM, line));
        NIB_TRY(parse_slice(r, &node->b));
        if (nib__reader_is(r, NIB_OPERATOR_COMMA)) {
            nib_template_node *tuple, **end;
            NIB_TRY(nib__reader_node(r, &tuple, NIB_N_TUPLE, line));
            tuple->a = node->b;
            end = &node->b->next;
            node->b = tuple;
            while (nib__reader_skip(r, NIB_OPERATOR_COMMA)) {
                NIB_TRY(parse_slice(r, end));
                end = &(*end)->next;
            }
        }
        NIB_TRY(nib__reader_expect(r, NIB_OPERATOR_RBRACKET));
    }
    node->a = *value;
    *value = node;
    return NIB_OK;
}

static nib_status parse_call(nib_template_reader *r, nib_template_node **value)
{
    nib_template_node *node;
    NIB_TRY(nib__reader_node(r, &node, NIB_N_CALL, nib__reader_now(r)->line));
    node->a = *value;
    *value = node;
    return nib__parse_arguments(r, &node->b);
}

nib_status nib__parse_postfix(nib_template_reader *r, nib_template_node **value)
{
    for (;;) {
        if (nib__reader_is(r, NIB_OPERATOR_DOT) || nib__reader_is(r, NIB_OPERATOR_LBRACKET))
            NIB_TRY(parse_subscript(r, value));
        else if (nib__reader_is(r, NIB_OPERATOR_LPAREN))
            NIB_TRY(parse_call(r, value));
        else
            return NIB_OK;
    }
}

/* Parses a dotted name and looks up its row. Inside an if, an unknown name fails only when it runs.
 */
static nib_status parse_row(nib_template_reader *r, nib_template_node *node, bool is_filter)
{
    const nib_lexeme *token = nib__reader_now(r), *last = token;
    if (token->kind != NIB_T_NAME)
        return nib__reader_unexpected(r, is_filter ? "expected a filter" : "expected a test");
    r->next++;
    while (nib__reader_skip(r, NIB_OPERATOR_DOT)) {
        last = nib__reader_now(r);
        if (last->kind != NIB_T_NAME)
            return nib__reader_unexpected(r, "expected a name after the dot");
        r->next++;
    }
    const size_t size = (size_t)(last->at - token->at) + last->size;
    NIB_TRY(nib__reader_string(r, &node->value, token->at, size));
    node->row = is_filter ? nib__filter_find(token->at, size) : nib__test_find(token->at, size);
    char name[80];
    if (node->row == NULL && r->if_depth == 0)
        return nib__template_fail(r, NIB_UNSUPPORTED, token->line,
                                  "unknown %s \"%s\"; docs/templates.md lists what is supported",
                                  is_filter ? "filter" : "test",
                                  nib__escape_name(name, sizeof name, token->at, size));
    return NIB_OK;
}

nib_status nib__parse_filters(nib_template_reader *r, nib_template_node **value, bool first)
{
    while (first || nib__reader_skip(r, NIB_OPERATOR_PIPE)) {
        nib_template_node *node;
        first = false;
        NIB_TRY(nib__reader_node(r, &node, NIB_N_FILTER, nib__reader_now(r)->line));
        NIB_TRY(parse_row(r, node, true));
        if (nib__reader_is(r, NIB_OPERATOR_LPAREN))
            NIB_TRY(nib__parse_arguments(r, &node->b));
        node->a = *value;
        *value = node;
    }
    return NIB_OK;
}

/* Follows "is". The name may have one argument without parentheses. */
static nib_status parse_test(nib_template_reader *r, nib_template_node **value)
{
    nib_template_node *node;
    NIB_TRY(nib__reader_node(r, &node, NIB_N_TEST, nib__reader_now(r)->line));
    node->flag = nib__reader_skip_name(r, "not");
    NIB_TRY(parse_row(r, node, false));
    node->a = *value;
    *value = node;
    const nib_lexeme *token = nib__reader_now(r);
    const bool word = token->kind == NIB_T_NAME && !is_word(token, "else") &&
                      !is_word(token, "or") && !is_word(token, "and");
    if (nib__reader_is(r, NIB_OPERATOR_LPAREN))
        return nib__parse_arguments(r, &node->b);
    if (!word && token->kind != NIB_T_STRING && token->kind != NIB_T_INT &&
        token->kind != NIB_T_FLOAT && !nib__reader_is(r, NIB_OPERATOR_LBRACKET) &&
        !nib__reader_is(r, NIB_OPERATOR_LBRACE))
        return NIB_OK;
    if (is_word(token, "is"))
        return nib__reader_unexpected(r, "tests cannot be chained with \"is\"");
    NIB_TRY(nib__parse_primary(r, &node->b));
    return nib__parse_postfix(r, &node->b);
}

/* ---- operators ---- */

static nib_status parse_unary(nib_template_reader *r, nib_template_node **out, bool filters)
{
    const int line = nib__reader_now(r)->line;
    const bool minus = nib__reader_is(r, NIB_OPERATOR_SUB),
               plus = nib__reader_is(r, NIB_OPERATOR_ADD);
    if (minus || plus) {
        r->next++;
        NIB_TRY(nib__reader_enter(r));
        NIB_TRY(nib__reader_node(r, out, minus ? NIB_N_NEGATIVE : NIB_N_POSITIVE, line));
        NIB_TRY(parse_unary(r, &(*out)->a, false));
        r->nesting--;
    } else {
        NIB_TRY(nib__parse_primary(r, out));
    }
    NIB_TRY(nib__parse_postfix(r, out));
    while (filters) {
        if (nib__reader_is(r, NIB_OPERATOR_PIPE))
            NIB_TRY(nib__parse_filters(r, out, false));
        else if (nib__reader_skip_name(r, "is"))
            NIB_TRY(parse_test(r, out));
        else if (nib__reader_is(r, NIB_OPERATOR_LPAREN))
            NIB_TRY(parse_call(r, out));
        else
            break;
    }
    return NIB_OK;
}

static nib_status wrap_binary(nib_template_reader *r, nib_template_node **left, nib_node_kind kind,
                              nib_operator op, int line, nib_template_node ***right)
{
    nib_template_node *node;
    NIB_TRY(nib__reader_node(r, &node, kind, line));
    node->op = (uint8_t)op;
    node->a = *left;
    *left = node;
    *right = &node->b;
    return NIB_OK;
}

/* One function per precedence level, tightest first: **, then * / // %, then ~, then + -. */
static nib_status parse_power(nib_template_reader *r, nib_template_node **out)
{
    nib_template_node **right;
    NIB_TRY(parse_unary(r, out, true));
    while (nib__reader_is(r, NIB_OPERATOR_POW)) {
        const int line = r->lexemes[r->next++].line;
        NIB_TRY(wrap_binary(r, out, NIB_N_BINARY, NIB_OPERATOR_POW, line, &right));
        NIB_TRY(parse_unary(r, right, true));
    }
    return NIB_OK;
}

static nib_status parse_product(nib_template_reader *r, nib_template_node **out)
{
    nib_template_node **right;
    NIB_TRY(parse_power(r, out));
    while (nib__reader_is(r, NIB_OPERATOR_MUL) || nib__reader_is(r, NIB_OPERATOR_DIV) ||
           nib__reader_is(r, NIB_OPERATOR_FLOORDIV) || nib__reader_is(r, NIB_OPERATOR_MOD)) {
        const nib_lexeme *token = &r->lexemes[r->next++];
        NIB_TRY(wrap_binary(r, out, NIB_N_BINARY, token->op, token->line, &right));
        NIB_TRY(parse_power(r, right));
    }
    return NIB_OK;
}

static nib_status parse_concat(nib_template_reader *r, nib_template_node **out)
{
    NIB_TRY(parse_product(r, out));
    if (!nib__reader_is(r, NIB_OPERATOR_TILDE))
        return NIB_OK;
    nib_template_node *node, **end;
    NIB_TRY(nib__reader_node(r, &node, NIB_N_CONCAT, nib__reader_now(r)->line));
    node->a = *out;
    end = &node->a->next;
    *out = node;
    while (nib__reader_skip(r, NIB_OPERATOR_TILDE)) {
        NIB_TRY(parse_product(r, end));
        end = &(*end)->next;
    }
    return NIB_OK;
}

static nib_status parse_sum(nib_template_reader *r, nib_template_node **out)
{
    nib_template_node **right;
    NIB_TRY(parse_concat(r, out));
    while (nib__reader_is(r, NIB_OPERATOR_ADD) || nib__reader_is(r, NIB_OPERATOR_SUB)) {
        const nib_lexeme *token = &r->lexemes[r->next++];
        NIB_TRY(wrap_binary(r, out, NIB_N_BINARY, token->op, token->line, &right));
        NIB_TRY(parse_concat(r, right));
    }
    return NIB_OK;
}

static nib_operator parse_comparison_operator(nib_template_reader *r)
{
    const nib_lexeme *token = nib__reader_now(r);
    if (token->kind == NIB_T_OPERATOR && token->op >= NIB_OPERATOR_EQ &&
        token->op <= NIB_OPERATOR_LE) {
        r->next++;
        return token->op;
    }
    if (nib__reader_skip_name(r, "in"))
        return NIB_OPERATOR_IN;
    if (nib__reader_is_name(r, "not") && token[1].kind == NIB_T_NAME && is_word(&token[1], "in")) {
        r->next += 2;
        return NIB_OPERATOR_NOT_IN;
    }
    return NIB_OPERATOR_NONE;
}

static nib_status parse_compare(nib_template_reader *r, nib_template_node **out)
{
    nib_template_node **end = NULL;
    NIB_TRY(parse_sum(r, out));
    for (;;) {
        const int line = nib__reader_now(r)->line;
        const nib_operator op = parse_comparison_operator(r);
        if (op == NIB_OPERATOR_NONE)
            return NIB_OK;
        if (end == NULL)
            NIB_TRY(wrap_binary(r, out, NIB_N_COMPARE, NIB_OPERATOR_NONE, line, &end));
        NIB_TRY(nib__reader_node(r, end, NIB_N_OPERAND, line));
        (*end)->op = (uint8_t)op;
        NIB_TRY(parse_sum(r, &(*end)->a));
        end = &(*end)->next;
    }
}

static nib_status parse_not(nib_template_reader *r, nib_template_node **out)
{
    const int line = nib__reader_now(r)->line;
    if (!nib__reader_skip_name(r, "not"))
        return parse_compare(r, out);
    NIB_TRY(nib__reader_enter(r));
    NIB_TRY(nib__reader_node(r, out, NIB_N_NOT, line));
    NIB_TRY(parse_not(r, &(*out)->a));
    r->nesting--;
    return NIB_OK;
}

static nib_status parse_and(nib_template_reader *r, nib_template_node **out)
{
    nib_template_node **right;
    NIB_TRY(parse_not(r, out));
    while (nib__reader_skip_name(r, "and")) {
        NIB_TRY(
            wrap_binary(r, out, NIB_N_AND, NIB_OPERATOR_NONE, nib__reader_now(r)->line, &right));
        NIB_TRY(parse_not(r, right));
    }
    return NIB_OK;
}

nib_status nib__parse_condition_free(nib_template_reader *r, nib_template_node **out)
{
    nib_template_node **right;
    NIB_TRY(parse_and(r, out));
    while (nib__reader_skip_name(r, "or")) {
        NIB_TRY(wrap_binary(r, out, NIB_N_OR, NIB_OPERATOR_NONE, nib__reader_now(r)->line, &right));
        NIB_TRY(parse_and(r, right));
    }
    return NIB_OK;
}

nib_status nib__parse_expression(nib_template_reader *r, nib_template_node **out)
{
    NIB_TRY(nib__reader_enter(r));
    NIB_TRY(nib__parse_condition_free(r, out));
    while (nib__reader_is_name(r, "if")) {
        nib_template_node *node;
        NIB_TRY(nib__reader_node(r, &node, NIB_N_IF_ELSE, r->lexemes[r->next++].line));
        node->b = *out;
        *out = node;
        NIB_TRY(nib__parse_condition_free(r, &node->a));
        if (nib__reader_skip_name(r, "else"))
            NIB_TRY(nib__parse_expression(r, &node->c));
    }
    r->nesting--;
    return NIB_OK;
}

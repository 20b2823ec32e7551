/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits a template into text, tags and the tokens inside tags. Trims white space around tags as
 * transformers configures Jinja: removes a newline after a statement (trim_blocks) and blanks
 * before a statement at the start of a line (lstrip_blocks).
 */
#include "template_parts.h"

bool nib__template_space(uint32_t point)
{
    if (point < 0x80)
        return point == ' ' || (point >= 9 && point <= 13) || (point >= 0x1c && point <= 0x1f);
    return point == 0x85 || point == 0xa0 || point == 0x1680 ||
           (point >= 0x2000 && point <= 0x200a) || point == 0x2028 || point == 0x2029 ||
           point == 0x202f || point == 0x205f || point == 0x3000;
}

typedef struct lexer {
    nib_template_reader *r;
    size_t at;
    int line;
    bool line_starts;                   /* at the start of a line */
    int balance;                        /* open brackets in the tag */
    uint8_t open[NIB_TEMPLATE_NESTING]; /* the operator that closes each one */
} lexer;

static bool matches_at(const lexer *x, size_t at, const char *text)
{
    const size_t size = strlen(text);
    return size <= x->r->size - at && memcmp(x->r->text + at, text, size) == 0;
}

static size_t skip_space(const lexer *x, size_t at)
{
    const char *c = x->r->text + at, *const end = x->r->text + x->r->size;
    while (c < end) {
        const char *next = c;
        if (!nib__template_space(nib__utf8_next(&next)))
            break;
        c = next;
    }
    return (size_t)(c - x->r->text);
}

/* The end of a text without its trailing white space. */
static size_t trim_end(const char *text, size_t from, size_t to)
{
    while (to > from) {
        size_t last = to - 1;
        while (last > from && ((unsigned char)text[last] & 0xc0) == 0x80)
            last--;
        const char *c = text + last;
        if (!nib__template_space(nib__utf8_next(&c)))
            break;
        to = last;
    }
    return to;
}

/* Advances to `to`, counting lines. */
static void advance(lexer *x, size_t to)
{
    for (size_t i = x->at; i < to; i++)
        x->line += x->r->text[i] == '\n';
    x->line_starts = to > x->at && x->r->text[to - 1] == '\n';
    x->at = to;
}

static nib_status add_lexeme(lexer *x, nib_token_kind kind, nib_operator op, size_t from, size_t to)
{
    nib_template_reader *r = x->r;
    char limit[32];
    if (r->count >= NIB_TEMPLATE_TOKENS)
        return nib__template_fail(
            r, NIB_UNSUPPORTED, x->line,
            "the template has more than %s tokens (words, operators, literals, texts between "
            "tags)",
            nib__format_count(limit, NIB_TEMPLATE_TOKENS));
    if (!nib__reserve(&r->t->allocator, (void **)&r->lexemes, &r->capacity, r->count + 1,
                      sizeof *r->lexemes))
        return nib__fail_memory(r->err, r->count * sizeof *r->lexemes, "a chat template");
    r->lexemes[r->count++] =
        (nib_lexeme){r->text + from, (uint32_t)(to - from), x->line, (uint8_t)kind, (uint8_t)op};
    return NIB_OK;
}

/* ---- between tags ---- */

static size_t find_text(const lexer *x, size_t from, const char *text)
{
    const char *found = nib__find_bytes(x->r->text + from, x->r->size - from, text, strlen(text));
    return found == NULL ? SIZE_MAX : (size_t)(found - x->r->text);
}

/* Adds the text before a tag. sign: the character after {{ or {%, which may be - or +. */
static nib_status add_data(lexer *x, size_t tag, char sign, bool prints)
{
    const char *text = x->r->text;
    const size_t from = x->at;
    size_t to = tag;
    if (sign == '-') {
        to = trim_end(text, from, to);
    } else if (sign != '+' && !prints) {
        size_t start = tag;
        while (start > from && text[start - 1] != '\n')
            start--;
        if ((start > from || x->line_starts) && trim_end(text, start, tag) == start)
            to = start;
    }
    NIB_TRY(to > from ? add_lexeme(x, NIB_T_DATA, NIB_OPERATOR_NONE, from, to) : NIB_OK);
    advance(x, tag);
    return NIB_OK;
}

/* If the tag ends at `at`: the offset after it and the white space it trims; else 0. */
static size_t tag_end(const lexer *x, size_t at, const char *end, bool trims)
{
    if (matches_at(x, at, "-") && matches_at(x, at + 1, end))
        return skip_space(x, at + 3);
    if (trims && matches_at(x, at, "+") && matches_at(x, at + 1, end))
        return at + 3;
    if (!matches_at(x, at, end))
        return 0;
    return at + 2 + (trims && matches_at(x, at + 2, "\n"));
}

static nib_status lex_comment(lexer *x)
{
    /* In {#-#} the - belongs to {#-. */
    const size_t inside =
        x->at + 2 + (matches_at(x, x->at + 2, "-") || matches_at(x, x->at + 2, "+"));
    const size_t at = find_text(x, inside, "#}");
    if (at == SIZE_MAX)
        return nib__template_fail(x->r, NIB_BAD_INPUT, x->line,
                                  "the comment that begins here does not end; #} is missing");
    const bool sign = at > inside && (x->r->text[at - 1] == '-' || x->r->text[at - 1] == '+');
    advance(x, tag_end(x, sign ? at - 1 : at, "#}", true));
    return NIB_OK;
}

/* If {% NAME %} begins at `at`: the offset of its %}; else 0. */
static size_t raw_tag(const lexer *x, size_t at, const char *name)
{
    at += 2;
    at += matches_at(x, at, "-") || matches_at(x, at, "+");
    at = skip_space(x, at);
    if (!matches_at(x, at, name))
        return 0;
    at = skip_space(x, at + strlen(name));
    return matches_at(x, at, "%}") || matches_at(x, at, "-%}") || matches_at(x, at, "+%}") ? at : 0;
}

/* Lexes from the %} of {% raw %} up to and including {% endraw %}. */
static nib_status lex_raw(lexer *x, size_t end)
{
    const int line = x->line;
    advance(x, matches_at(x, end, "-") ? skip_space(x, end + 3) : end + 2);
    for (size_t at = x->at;; at++) {
        at = find_text(x, at, "{%");
        if (at == SIZE_MAX)
            return nib__template_fail(
                x->r, NIB_BAD_INPUT, line,
                "the raw block that begins here does not end; {%% endraw %%} is missing");
        const size_t closes = raw_tag(x, at, "endraw");
        if (closes == 0)
            continue;
        NIB_TRY(add_data(x, at, x->r->text[at + 2], false));
        advance(x, tag_end(x, closes, "%}", true));
        return NIB_OK;
    }
}

/* ---- inside tags ---- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_word(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (unsigned char)c >= 0x80;
}

/* The end of digits with single _ between them. */
static size_t digits_end(const lexer *x, size_t at)
{
    const char *c = x->r->text;
    const size_t end = x->r->size;
    if (at >= end || !is_digit(c[at]))
        return at;
    while (at < end && (is_digit(c[at]) || (c[at] == '_' && at + 1 < end && is_digit(c[at + 1]))))
        at++;
    return at;
}

static size_t number_end(const lexer *x, bool *real)
{
    const char *c = x->r->text;
    size_t at = x->at;
    *real = false;
    if (c[at] == '0' && at + 1 < x->r->size && strchr("xXoObB", c[at + 1]) != NULL &&
        c[at + 1] != 0) {
        size_t end = at + 2;
        while (end < x->r->size &&
               (is_digit(c[end]) || c[end] == '_' ||
                ((c[at + 1] | 32) == 'x' && (c[end] | 32) >= 'a' && (c[end] | 32) <= 'f')))
            end++;
        return end > at + 2 ? end : at + 1;
    }
    size_t end = digits_end(x, at);
    if (at > 0 && c[at - 1] == '.')
        return end; /* a.0.1 */
    if (matches_at(x, end, ".") && digits_end(x, end + 1) > end + 1) {
        end = digits_end(x, end + 1);
        *real = true;
    }
    if (end < x->r->size && (c[end] == 'e' || c[end] == 'E')) {
        const size_t sign = end + 1 + (matches_at(x, end + 1, "+") || matches_at(x, end + 1, "-"));
        if (digits_end(x, sign) > sign) {
            end = digits_end(x, sign);
            *real = true;
        }
    }
    return end;
}

static nib_status lex_string(lexer *x)
{
    const char quote = x->r->text[x->at];
    size_t end = x->at + 1;
    while (end < x->r->size && x->r->text[end] != quote)
        end += x->r->text[end] == '\\' ? 2 : 1;
    if (end >= x->r->size)
        return nib__template_fail(x->r, NIB_BAD_INPUT, x->line,
                                  "the string that begins here does not end; %c is missing", quote);
    NIB_TRY(add_lexeme(x, NIB_T_STRING, NIB_OPERATOR_NONE, x->at + 1, end));
    advance(x, end + 1);
    return NIB_OK;
}

static nib_status check_bracket(lexer *x, nib_operator op)
{
    if (op == NIB_OPERATOR_LPAREN || op == NIB_OPERATOR_LBRACKET || op == NIB_OPERATOR_LBRACE) {
        if (x->balance == NIB_TEMPLATE_NESTING)
            return nib__template_fail(x->r, NIB_BAD_INPUT, x->line,
                                      "brackets are nested deeper than %d", NIB_TEMPLATE_NESTING);
        x->open[x->balance++] = (uint8_t)(op + 1); /* the closing bracket */
    } else if (op == NIB_OPERATOR_RPAREN || op == NIB_OPERATOR_RBRACKET ||
               op == NIB_OPERATOR_RBRACE) {
        if (x->balance == 0 || x->open[x->balance - 1] != op)
            return nib__template_fail(x->r, NIB_BAD_INPUT, x->line, "\"%c\" closes no open bracket",
                                      x->r->text[x->at]);
        x->balance--;
    }
    return NIB_OK;
}

static nib_status lex_operator(lexer *x)
{
    static const struct {
        char text[3];
        uint8_t op;
    } operators[] = {
        {"//", NIB_OPERATOR_FLOORDIV}, {"**", NIB_OPERATOR_POW},      {"==", NIB_OPERATOR_EQ},
        {"!=", NIB_OPERATOR_NE},       {">=", NIB_OPERATOR_GE},       {"<=", NIB_OPERATOR_LE},
        {"+", NIB_OPERATOR_ADD},       {"-", NIB_OPERATOR_SUB},       {"/", NIB_OPERATOR_DIV},
        {"*", NIB_OPERATOR_MUL},       {"%", NIB_OPERATOR_MOD},       {"~", NIB_OPERATOR_TILDE},
        {"[", NIB_OPERATOR_LBRACKET},  {"]", NIB_OPERATOR_RBRACKET},  {"(", NIB_OPERATOR_LPAREN},
        {")", NIB_OPERATOR_RPAREN},    {"{", NIB_OPERATOR_LBRACE},    {"}", NIB_OPERATOR_RBRACE},
        {">", NIB_OPERATOR_GT},        {"<", NIB_OPERATOR_LT},        {"=", NIB_OPERATOR_ASSIGN},
        {".", NIB_OPERATOR_DOT},       {":", NIB_OPERATOR_COLON},     {"|", NIB_OPERATOR_PIPE},
        {",", NIB_OPERATOR_COMMA},     {";", NIB_OPERATOR_SEMICOLON},
    };
    for (size_t i = 0; i < COUNT(operators); i++) {
        if (!matches_at(x, x->at, operators[i].text))
            continue;
        const size_t end = x->at + strlen(operators[i].text);
        NIB_TRY(check_bracket(x, operators[i].op));
        NIB_TRY(add_lexeme(x, NIB_T_OPERATOR, operators[i].op, x->at, end));
        advance(x, end);
        return NIB_OK;
    }
    char name[16];
    return nib__template_fail(x->r, NIB_BAD_INPUT, x->line, "\"%s\" is not part of an expression",
                              nib__escape_name(name, sizeof name, x->r->text + x->at, 1));
}

static nib_status lex_word(lexer *x)
{
    const char c = x->r->text[x->at];
    bool real = false;
    size_t end = x->at;
    if (is_digit(c)) {
        end = number_end(x, &real);
        NIB_TRY(add_lexeme(x, real ? NIB_T_FLOAT : NIB_T_INT, NIB_OPERATOR_NONE, x->at, end));
    } else {
        while (end < x->r->size && is_word(x->r->text[end]))
            end++;
        NIB_TRY(add_lexeme(x, NIB_T_NAME, NIB_OPERATOR_NONE, x->at, end));
    }
    advance(x, end);
    return NIB_OK;
}

/* Lexes a tag from its {{ or {% up to and including its end. */
static nib_status lex_tag(lexer *x, bool prints)
{
    const int line = x->line;
    const char *const closes = prints ? "}}" : "%}";
    NIB_TRY(add_lexeme(x, prints ? NIB_T_PRINT : NIB_T_BLOCK, NIB_OPERATOR_NONE, x->at, x->at + 2));
    advance(x, x->at + 2 + (matches_at(x, x->at + 2, "-") || matches_at(x, x->at + 2, "+")));
    x->balance = 0;
    while (x->at < x->r->size) {
        const size_t end = x->balance == 0 ? tag_end(x, x->at, closes, !prints) : 0;
        if (end != 0) {
            NIB_TRY(add_lexeme(x, prints ? NIB_T_PRINT_END : NIB_T_BLOCK_END, NIB_OPERATOR_NONE,
                               x->at, end));
            advance(x, end);
            return NIB_OK;
        }
        const size_t space = skip_space(x, x->at);
        const char c = x->r->text[x->at];
        if (space > x->at)
            advance(x, space);
        else if (c == '"' || c == '\'')
            NIB_TRY(lex_string(x));
        else if (is_word(c))
            NIB_TRY(lex_word(x));
        else
            NIB_TRY(lex_operator(x));
    }
    return nib__template_fail(x->r, NIB_BAD_INPUT, line,
                              "the tag that begins here does not end; %s is missing", closes);
}

nib_status nib__template_lex(nib_template_reader *r)
{
    lexer x = {.r = r, .line = 1, .line_starts = true};
    while (x.at < r->size) {
        size_t tag = x.at;
        while (tag + 1 < r->size &&
               (r->text[tag] != '{' ||
                (r->text[tag + 1] != '{' && r->text[tag + 1] != '%' && r->text[tag + 1] != '#')))
            tag++;
        if (tag + 1 >= r->size) {
            NIB_TRY(add_lexeme(&x, NIB_T_DATA, NIB_OPERATOR_NONE, x.at, r->size));
            advance(&x, r->size);
            break;
        }
        const char kind = r->text[tag + 1];
        NIB_TRY(add_data(&x, tag, tag + 2 < r->size ? r->text[tag + 2] : 0, kind == '{'));
        const size_t raw = kind == '%' ? raw_tag(&x, tag, "raw") : 0;
        if (raw != 0 && !matches_at(&x, raw, "+"))
            NIB_TRY(lex_raw(&x, raw));
        else if (kind == '#')
            NIB_TRY(lex_comment(&x));
        else
            NIB_TRY(lex_tag(&x, kind == '{'));
    }
    return add_lexeme(&x, NIB_T_END, NIB_OPERATOR_NONE, r->size, r->size);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile templates and conversations: each ends with an error that names the template's line,
 * within the limits of a rendering; failing allocations leak nothing.
 */
#include "failing.h"
#include "rendering.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "refused.h"

static void expect_text_within(const char *source, const char *values,
                               const nib_template_limits *limits, const char *part)
{
    const nib_allocator a = nib__allocator_default();
    rendering r;
    render_within(&r, source, strlen(source), values, limits, &a);
    if (r.status != NIB_OK)
        fail_msg("%s: %s", source, r.err.text);
    const char *text = r.out.text.at == NULL ? "" : r.out.text.at;
    if (strstr(text, part) == NULL)
        fail_msg("%s: \"%s\" instead of \"%s\"", source, text, part);
    nib__template_output_free(&r.out);
}

static void expect_text(const char *source, const char *values, const char *part)
{
    expect_text_within(source, values, NULL, part);
}

static void expect_refused_within(const char *source, const char *values,
                                  const nib_template_limits *limits, nib_status status)
{
    const nib_allocator a = nib__allocator_default();
    rendering r;
    render_within(&r, source, strlen(source), values, limits, &a);
    if (r.status != status)
        print_error("%.200s\n", source);
    refused(status, r.status, &r.err);
    nib__template_output_free(&r.out);
}

static void expect_refused(const char *source, const char *values, nib_status status)
{
    expect_refused_within(source, values, NULL, status);
}

/* J01 */
static void test_unclosed(void **state)
{
    (void)state;
    expect_refused("a\n{# b", "{}", NIB_BAD_INPUT);
    expect_refused("a\n\n{{ b", "{}", NIB_BAD_INPUT);
    expect_refused("a\n{% if x", "{}", NIB_BAD_INPUT);
    expect_refused("{{ 'a\n", "{}", NIB_BAD_INPUT);
    expect_refused("\n{% raw %}x", "{}", NIB_BAD_INPUT);
    expect_refused("{% if x %}\n\ny", "{}", NIB_BAD_INPUT);
    expect_refused("{% for i in x %}", "{}", NIB_BAD_INPUT);
    expect_refused("{% endif %}", "{}", NIB_BAD_INPUT);
    expect_refused("{{ (1 }}", "{}", NIB_BAD_INPUT);
    expect_refused("{{ a b }}", "{}", NIB_BAD_INPUT);
}

/* What a value can be assigned to, in each statement that assigns. */
static void test_targets(void **state)
{
    (void)state;
    expect_refused("{% set 1 = 2 %}", "{}", NIB_BAD_INPUT);
    expect_refused("{% set (a, b()) = 2 %}", "{}", NIB_BAD_INPUT);
    expect_refused("{% with 1 = 2 %}{% endwith %}", "{}", NIB_BAD_INPUT);
    expect_refused("{% with a[0] = 2 %}{% endwith %}", "{}", NIB_BAD_INPUT);
    expect_refused("{% for 1 in [2] %}{% endfor %}", "{}", NIB_BAD_INPUT);
    expect_refused("{% for loop in [2] %}{% endfor %}", "{}", NIB_BAD_INPUT);
}

/* A macro that sets `caller` itself takes no block, whatever macros it defines. */
static void test_own_caller(void **state)
{
    (void)state;
    expect_refused("{% macro m() %}{% set caller = 1 %}{{ caller }}{% endmacro %}"
                   "{% call m() %}x{% endcall %}",
                   "{}", NIB_BAD_INPUT);
    expect_refused("{% macro m() %}{% set caller = 1 %}{% macro n() %}{% endmacro %}{{ caller }}"
                   "{% endmacro %}{% call m() %}x{% endcall %}",
                   "{}", NIB_BAD_INPUT);
}

/* Filters and tests are named in full, dots included. */
static void test_unknown_names(void **state)
{
    (void)state;
    expect_refused("{{ 1|no.such }}", "{}", NIB_UNSUPPORTED);
    expect_refused("{{ 1 is no.such }}", "{}", NIB_UNSUPPORTED);
    expect_refused("{{ 1|no. }}", "{}", NIB_BAD_INPUT);
}

/* J02 */
static void test_recursion(void **state)
{
    (void)state;
    expect_refused("{% macro m() %}{{ m() }}{% endmacro %}\n{{ m() }}", "{}", NIB_NO_MEMORY);
    expect_refused(
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{}", NIB_NO_MEMORY);
    expect_refused("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "{}", NIB_NO_MEMORY);
    expect_refused("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "{}", NIB_NO_MEMORY);
    expect_refused("{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}"
                   "{% endfor %}{{ ns.l|tojson }}",
                   "{}", NIB_NO_MEMORY);
}

/* Parsing limits nesting too: brackets, statements, signs, nots. */
static void test_nesting(void **state)
{
    static const struct {
        const char *before, *open, *close;
    } shapes[] = {
        {"{{ ", "(", ""},           {"{{ ", "[", ""},
        {"{{ ", "not ", ""},        {"{{ ", "-", ""},
        {"{{ a", "[a", ""},         {"{{ ", "1 if 1 else ", ""},
        {"", "{% if 1 %}", ""},     {"", "{% for a in b %}", ""},
        {"", "{% filter e %}", ""}, {"{{ ", "{1:", ""},
        {"{{ a", "|e(a", ""},
    };
    const nib_allocator a = nib__allocator_default();
    (void)state;
    for (size_t i = 0; i < COUNT(shapes); i++) {
        nib_text text;
        rendering r;
        nib__text_init(&text, &a);
        nib__text_str(&text, shapes[i].before);
        for (int k = 0; k < 20000; k++)
            nib__text_str(&text, shapes[i].open);
        nib__text_str(&text, i < 6 || i > 8 ? "1 }}" : "");
        render_within(&r, text.at, text.size, "{}", NULL, &a);
        refused(NIB_BAD_INPUT, r.status, &r.err);
        nib__template_output_free(&r.out);
        nib__text_free(&text);
    }
}

/* J03 */
static void test_steps(void **state)
{
    static const nib_template_limits few = {.steps = 1000};
    (void)state;
    expect_refused("{% for i in range(10 ** 12) %}{% endfor %}", "{}", NIB_BAD_INPUT);
    expect_refused(
        "\n{% set l = range(99999) %}{% for a in l %}{% for b in l %}{% endfor %}{% endfor %}",
        "{}", NIB_NO_MEMORY);
    expect_refused_within("{% for i in range(99) %}{{ i }}{{ i }}{{ i }}{{ i }}{{ i }}{% endfor %}",
                          "{}", &few, NIB_NO_MEMORY);
    expect_text_within("{% for i in range(9) %}{{ i }}{% endfor %}", "{}", &few, "012345678");
    expect_refused(
        "{% set x = 'a' * 200000 %}{% for i in range(99999) %}{% if 'b' in x %}{% endif %}"
        "{% endfor %}",
        "{}", NIB_NO_MEMORY); /* searching counts too */
}

/* Operations on long strings count the bytes that they inspect, whatever the result. */
static void test_steps_of_strings(void **state)
{
    static const char *const dear[] = {
        "{% if x == y %}{% endif %}", "{{ a.startswith(a) }}", "{{ 'x'.endswith(many) }}",
        "{{ b.rfind(part) }}",        "{{ b.rsplit(part) }}",  "{{ b.strip(part) }}",
        "{{ blank.isspace() }}",      "{{ zeros|int }}",       "{{ d[a] }}",
    };
    static const char before[] =
        "{% set a = 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' * 100000 %}{% set part = 'b' + a[:1000000] "
        "%}"
        "{% set b = a[:2000000] %}{% set blank = '                                ' * 30000 %}"
        "{% set zeros = '00000000000000000000000000000000' * 30000 %}"
        "{% set x = a + 'x' %}{% set y = b[:0] + a + 'y' %}{% set many = ('b',) * 50000 %}"
        "{% set d = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 8: 8, 9: 9} %}"
        "{% for i in range(20000) %}";
    static const nib_template_limits few = {.steps = 1000000};
    const nib_allocator a = nib__allocator_default();
    (void)state;
    for (size_t i = 0; i < COUNT(dear); i++) {
        nib_text text;
        nib__text_init(&text, &a);
        nib__text_format(&text, "%s%s{%% endfor %%}", before, dear[i]);
        expect_refused_within(text.at, "{}", &few, NIB_NO_MEMORY);
        nib__text_free(&text);
    }
    expect_refused_within("{{ ('aaaaaaaaaaaaaaaa' * 100000).rfind('ab') }}", "{}", &few,
                          NIB_NO_MEMORY); /* every candidate counts, even if short */
}

/* Padding by a format costs as much as padding by center. */
static void test_steps_of_blanks(void **state)
{
    static const char *const dear[] = {
        "{{ '%1000000s' % 1 }}",  "{{ '%-1000000s' % 1 }}", "{{ '%1000000d' % 1 }}",
        "{{ '%01000000d' % 1 }}", "{{ '%-1000000d' % 1 }}", "{{ '%1000000f' % 1 }}",
    };
    static const nib_template_limits few = {.steps = 900000};
    (void)state;
    for (size_t i = 0; i < COUNT(dear); i++)
        expect_refused_within(dear[i], "{}", &few, NIB_NO_MEMORY);
    expect_text_within("{{ ('%800000s' % 1)|length }}", "{}", &few, "800000");
}

/* Many names cost steps too: arguments, parameters, variables of a scope. */
static void test_steps_of_names(void **state)
{
    enum { MANY = 12000 };
    static const nib_template_limits few = {.steps = 1000000};
    const nib_allocator a = nib__allocator_default();
    nib_text call, scope;
    (void)state;
    nib__text_init(&call, &a);
    nib__text_init(&scope, &a);
    nib__text_str(&call, "{{ dict(");
    nib__text_str(&scope, "{% for i in [1] %}");
    for (int i = 0; i < MANY; i++) {
        nib__text_format(&call, "a%d=1,", i);
        nib__text_format(&scope, "{%% set a%d = 1 %%}", i);
    }
    nib__text_str(&call, ") }}");
    nib__text_str(&scope, "{% endfor %}");
    expect_refused_within(call.at, "{}", &few, NIB_NO_MEMORY);
    expect_refused_within(scope.at, "{}", &few, NIB_NO_MEMORY);
    nib__text_free(&call);
    nib__text_free(&scope);
}

/* The number of tokens limits the memory of a 4 MiB template. */
static void test_tokens(void **state)
{
    static const char *const shapes[][3] = {
        {"{{ [", "1,", "] }}"},
        {"{{ a", ".a", " }}"},
        {"{{ a", "|e", " }}"},
        {"", "{{a}}", ""},
    };
    const nib_allocator a = nib__allocator_default();
    (void)state;
    for (size_t i = 0; i < COUNT(shapes); i++) {
        nib_text text;
        nib__text_init(&text, &a);
        nib__text_str(&text, shapes[i][0]);
        while (text.size < NIB_TEMPLATE_SOURCE - 16)
            nib__text_str(&text, shapes[i][1]);
        nib__text_str(&text, shapes[i][2]);
        expect_refused(text.at, "{}", NIB_UNSUPPORTED);
        nib__text_free(&text);
    }
}

static void test_parameters(void **state)
{
    const nib_allocator a = nib__allocator_default();
    (void)state;
    for (int count = 255; count <= 256; count++) {
        nib_text text;
        nib__text_init(&text, &a);
        nib__text_str(&text, "{% macro m(a0");
        for (int i = 1; i < count; i++)
            nib__text_format(&text, ", a%d", i);
        nib__text_str(&text, ") %}{{ a0 }}{% endmacro %}{{ m(7) }}");
        if (count == 255)
            expect_text(text.at, "{}", "7");
        else
            expect_refused(text.at, "{}", NIB_UNSUPPORTED);
        nib__text_free(&text);
    }
    expect_refused("\n{% macro m(a, b, a) %}{% endmacro %}", "{}", NIB_BAD_INPUT);
    expect_refused("{% for loop in x %}{% endfor %}", "{}", NIB_BAD_INPUT);
    expect_refused("{% macro m(caller) %}\n{{ caller }}{% endmacro %}", "{}", NIB_BAD_INPUT);
}

static void test_integers(void **state)
{
    static const char *const past[] = {
        "{{ (-9223372036854775807 - 1) ** 2 }}",  "{{ -(-9223372036854775807 - 1) }}",
        "{{ (-9223372036854775807 - 1) // -1 }}", "{{ range(5, 10, 9223372036854775807)[:2] }}",
        "{{ 9223372036854775807|round(-1) }}",    "{{ 9223372036854775807 + 1 }}",
        "{{ (-9223372036854775807 - 1)|abs }}",   "{{ 9223372036854775807 - -1 }}",
    };
    (void)state;
    for (size_t i = 0; i < COUNT(past); i++)
        expect_refused(past[i], "{}", NIB_UNSUPPORTED);
    expect_text("{{ (-9223372036854775807 - 1)|round }}", "{}", "-9223372036854775808");
    expect_refused("{{ (-8.0) ** 0.5 }}", "{}", NIB_BAD_INPUT); /* a complex number in Python */
    expect_refused("{{ '%.301d' % 1 }}", "{}", NIB_UNSUPPORTED);
    expect_refused("{{ '%c' % 65 }}", "{}", NIB_UNSUPPORTED);
    expect_refused("{{ '%a' % 65 }}", "{}", NIB_UNSUPPORTED);
    expect_refused("{{ '%1048577d' % 1 }}", "{}", NIB_BAD_INPUT);
    expect_refused("{{ '%*d' % (1048577, 1) }}", "{}", NIB_BAD_INPUT);
    expect_refused("{{ '%*d' % (-1, 1) }}", "{}", NIB_BAD_INPUT);
    expect_refused("{{ 'a%\\0' % 1 }}", "{}", NIB_BAD_INPUT);
    expect_refused("{{ x }}", "{\"x\": 1e999}", NIB_BAD_INPUT);
    expect_text("{{ x }}", "{\"x\": [9223372036854775807, 9223372036854775808, 1e308]}",
                "[9223372036854775807, 9223372036854775808, 1e+308]");
}

/* Around 2^63 and 2^64, as literals, as strings and in variables. */
static void test_long_integers(void **state)
{
    static const char *const over[] = {"9223372036854775808", "18446744073709551616",
                                       "92233720368547758070"};
    char source[100], values[100], written[100];
    (void)state;
    expect_text("{{ 9223372036854775807 }} {{ 0x7fffffffffffffff }}", "{}",
                "9223372036854775807 9223372036854775807");
    expect_text("{{ '-9223372036854775807'|int }}", "{}", "-9223372036854775807");
    expect_refused("{{ 0x8000000000000000 }}", "{}", NIB_BAD_INPUT);
    for (size_t i = 0; i < COUNT(over); i++) {
        snprintf(source, sizeof source, "{{ %s }}", over[i]);
        expect_refused(source, "{}", NIB_BAD_INPUT);
        snprintf(source, sizeof source, "{{ '%s'|int }}", over[i]);
        expect_refused(source, "{}", NIB_UNSUPPORTED);
        snprintf(values, sizeof values, "{\"x\": [%s, -%s]}", over[i], over[i]);
        snprintf(written, sizeof written, "[%s, -%s]", over[i], over[i]);
        expect_text("{{ x }}", values, written);
    }
    /* a base that Python does not have leaves what float() reads */
    expect_text("{{ '10'|int(0, 36) }} {{ '10'|int(0, 37) }} {{ '10'|int(0, 1) }} "
                "{{ '10'|int(0, -3) }} {{ '10'|int(0, 4294967312) }} {{ 'z'|int(7, 37) }}",
                "{}", "36 10 10 10 10 7");
    expect_text("{{ '0x1f'|int(0, 0) }} {{ '0x1f'|int(0, 16) }} {{ '0b1'|int(0, 2) }}", "{}",
                "31 31 1");
}

/* Variables that are nested as deep as allowed, and deeper. */
static void test_nested_values(void **state)
{
    char values[2 * NIB_TEMPLATE_JSON + 16];
    (void)state;
    for (int depth = NIB_TEMPLATE_JSON - 1; depth <= NIB_TEMPLATE_JSON; depth++) {
        const int size = snprintf(values, sizeof values, "{\"x\": %*s}", 2 * depth, "");
        memset(values + size - 1 - 2 * depth, '[', (size_t)depth);
        memset(values + size - 1 - depth, ']', (size_t)depth);
        if (depth < NIB_TEMPLATE_JSON)
            expect_text("{{ x|length }}", values, "1");
        else
            expect_refused("{{ x|length }}", values, NIB_BAD_INPUT);
    }
}

/* J04 */
static void test_bytes(void **state)
{
    static const nib_template_limits small = {.bytes = 1 << 20};
    (void)state;
    expect_refused("{{ 'a' * (2 ** 30) }}", "{}", NIB_NO_MEMORY);
    expect_refused("{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(40) %}"
                   "{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
                   "{}", NIB_NO_MEMORY);
    expect_refused("{{ '%1000000s' % 1 * 1000 }}", "{}", NIB_NO_MEMORY);
    expect_refused_within("{% for i in range(99999) %}{{ 'some words and more' }}{% endfor %}",
                          "{}", &small, NIB_NO_MEMORY);
    expect_text(
        "{% set ns = namespace(l=[]) %}{% for i in range(50000) %}{% set ns.l = ns.l + [i] %}"
        "{% endfor %}{{ ns.l|sum }}",
        "{}", "1249975000"); /* appending costs the appended bytes */
}

/* J05 */
static void test_unknown(void **state)
{
    (void)state;
    expect_refused("a\n{{ x|shout }}", "{}", NIB_UNSUPPORTED);
    expect_refused("{{ x is\n tall }}", "{}", NIB_UNSUPPORTED);
    expect_refused("\n{% include 'x' %}", "{}", NIB_UNSUPPORTED);
    expect_text("{% if no %}{{ x|shout }}{% endif %}ok", "{}", "ok");
    expect_refused("{% if 1 %}\n{{ x|shout }}{% endif %}", "{}", NIB_UNSUPPORTED);
    expect_refused("{{ ['a']|map('shout')|list }}", "{}", NIB_UNSUPPORTED);
    expect_refused("{{ 'a'.encode() }}", "{}", NIB_BAD_INPUT);
    expect_refused("{{ 'a'|upper(1) }}", "{}", NIB_BAD_INPUT);
    expect_refused("{{ 'a'|tojson(indents=1) }}", "{}", NIB_BAD_INPUT);
    expect_refused("{{ f(*x) }}", "{}", NIB_UNSUPPORTED);
    expect_refused("{{ [].append(1) }}", "{}", NIB_BAD_INPUT);
}

/* J06 */
static void test_raise(void **state)
{
    const nib_allocator a = nib__allocator_default();
    static const char source[] = "{{ raise_exception('Roles must\\nalternate, not ' ~ x) }}";
    rendering r;
    (void)state;
    render_within(&r, source, sizeof source - 1, "{\"x\": \"\u00e9%s\"}", NULL, &a);
    refused(NIB_BAD_INPUT, r.status, &r.err);
    assert_string_equal(r.err.text, "Roles must\nalternate, not \u00e9%s");
    nib__template_output_free(&r.out);
}

/* J07 */
static void test_odd_messages(void **state)
{
    static const char template[] =
        "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% else %}none{% endfor %}";
    static const char strict[] = "{% for m in messages %}\n{{ '<' + m['content'] }}{% endfor %}";
    (void)state;
    expect_text(template, "{\"messages\": []}", "none");
    expect_text(template, "{}", "none");
    expect_text(template, "{\"messages\": [{\"role\": \"wizard\", \"content\": null}]}",
                "[wizard:None]");
    expect_text(template, "{\"messages\": [{\"role\": 5, \"content\": [1, \"a\", {}]}]}",
                "[5:[1, 'a', {}]]");
    expect_text(template, "{\"messages\": [{}, [], \"x\"]}", "[:][:][:]");
    expect_text(template, "{\"messages\": {\"role\": \"user\"}}", "[:]");
    expect_refused(template, "{\"messages\": 7}", NIB_BAD_INPUT);
    expect_text(template, "{\"messages\": [null]}", "[:]");
    expect_refused(strict, "{\"messages\": [{\"content\": null}]}", NIB_BAD_INPUT);
    expect_refused(strict, "{\"messages\": [{\"content\": 5}]}", NIB_BAD_INPUT);
    expect_refused(strict, "{\"messages\": [{\"content\": [\"a\"]}]}", NIB_BAD_INPUT);
    expect_refused(strict, "{\"messages\": [{}]}", NIB_BAD_INPUT);
    expect_refused(template, "[]", NIB_BAD_INPUT);
    expect_refused(template, "{\"messages\": [}", NIB_BAD_INPUT);
    expect_refused(template, "{\"messages\": \"\\ud800\"}", NIB_BAD_INPUT);
}

/* J08 */
static void test_tools(void **state)
{
    static const char source[] =
        "{{ 'some' if tools else 'none' }} {{ tools is none }} {{ tools is defined }}";
    (void)state;
    expect_text(source, "{\"tools\": null}", "none True True");
    expect_text(source, "{\"tools\": []}", "none False True");
    expect_text(source, "{}", "none False False");
    expect_text(source, "{\"tools\": [{}]}", "some False True");
}

/* A vocabulary may hold any bytes; strings of a template are UTF-8. */
static void test_token_bytes(void **state)
{
    const nib_allocator a = nib__allocator_default();
    const nib_named_text source = {"chat.jinja", "{{ bos_token.split() }}", 23};
    const nib_template_token token = {"bos_token", "a\xff", 2};
    const nib_template_input input = {.tokens = &token, .token_count = 1};
    nib_template_output out;
    nib_template *t;
    nib_err err;
    (void)state;
    nib__template_output_init(&out, &a);
    assert_int_equal(nib__template_open(&t, &source, &a, &err), NIB_OK);
    refused(NIB_BAD_INPUT, nib__template_render(t, &input, &out, &err), &err);
    nib__template_output_free(&out);
    nib__template_close(t);
}

/* J09 */
static void test_clock(void **state)
{
    (void)state;
    expect_text("{{ strftime_now('%d %b %Y %H:%M:%S %A %j %-m') }}", "{}",
                "14 Nov 2023 22:13:20 Tuesday 318 11");
    expect_text("{{ strftime_now('%q%') }}", "{}", "%q%");
    expect_refused("{{ strftime_now(1) }}", "{}", NIB_BAD_INPUT);
}

/* J10 */
static void test_undefined(void **state)
{
    (void)state;
    expect_text("[{{ x }}{{ (x.y is defined) if x }}{{ none.y }}]", "{}", "[]");
    expect_refused("\n{{ x.y }}", "{}", NIB_BAD_INPUT);
    expect_refused("{{ m.a.b }}", "{\"m\": {}}", NIB_BAD_INPUT);
    expect_refused("{{ m['a'][0] }}", "{\"m\": {}}", NIB_BAD_INPUT);
    expect_refused("{{ x() }}", "{}", NIB_BAD_INPUT);
    expect_refused("{{ x + 1 }}", "{}", NIB_BAD_INPUT);
    expect_refused("{{ x|tojson }}", "{}", NIB_BAD_INPUT);
    expect_refused("{{ ''.__class__.__mro__ }}", "{}", NIB_BAD_INPUT);
}

/* J11 */
static void test_nul(void **state)
{
    static const char source[] = "<\0{{ x }}{{ '\0' }}{{ x|length }}{{ x|tojson }}>";
    static const char expected[] = "<\0a\0b\0"
                                   "3\"a\\u0000b\">";
    const nib_allocator a = nib__allocator_default();
    rendering r;
    (void)state;
    render_within(&r, source, sizeof source - 1, "{\"x\": \"a\\u0000b\"}", NULL, &a);
    if (r.status != NIB_OK)
        fail_msg("%s", r.err.text);
    assert_int_equal(r.out.text.size, sizeof expected - 1);
    assert_memory_equal(r.out.text.at, expected, sizeof expected - 1);
    nib__template_output_free(&r.out);
    expect_refused("{{ raise_exception(x) }}", "{\"x\": \"a\\u0000b\"}", NIB_BAD_INPUT);
}

/* J12 */
static void test_large(void **state)
{
    const nib_allocator a = nib__allocator_default();
    rendering r;
    nib_text text;
    (void)state;
    nib__text_init(&text, &a);
    while (text.size < 1 << 20)
        nib__text_str(&text, "{% if messages %}some {{ messages[0].content|upper }}{% endif %}\n");
    render_within(&r, text.at, text.size, "{\"messages\": [{\"content\": \"x\"}]}", NULL, &a);
    if (r.status != NIB_OK)
        fail_msg("%s", r.err.text);
    assert_memory_equal(r.out.text.at, "some Xsome X", 12);
    nib__template_output_free(&r.out);
    while (text.size <= NIB_TEMPLATE_SOURCE)
        nib__text_str(&text, "more text, without a tag in it, until the limit is passed at last\n");
    render_within(&r, text.at, text.size, "{}", NULL, &a);
    refused(NIB_UNSUPPORTED, r.status, &r.err);
    nib__template_output_free(&r.out);
    render_within(&r, "a\xff", 2, "{}", NULL, &a);
    refused(NIB_BAD_INPUT, r.status, &r.err);
    nib__template_output_free(&r.out);
    nib__text_free(&text);
}

/* J13 */
static void test_json(void **state)
{
    static const char values[] = "{\"d\": {\"z\": 1, \"a\": \"\u00e9<\\\"\\u2028\", \"z\": 2.0}}";
    (void)state;
    expect_text("{{ d|tojson }}", values, "{\"z\": 2.0, \"a\": \"\u00e9<\\\"\u2028\"}");
    expect_text("{{ d|tojson(ensure_ascii=true, sort_keys=true) }}", values,
                "{\"a\": \"\\u00e9<\\\"\\u2028\", \"z\": 2.0}");
    expect_text("{{ d|tojson(indent=1) }}", values, "{\n \"z\": 2.0,\n \"a\":");
}

/* Names and keys crafted to share a hash are refused or counted as steps; they do not hang. */
static void test_many_names(void **state)
{
    const nib_allocator a = nib__allocator_default();
    nib_text text;
    rendering r;
    (void)state;
    nib__text_init(&text, &a);
    nib__text_str(&text, "{");
    for (int i = 0; i < 50000; i++)
        nib__text_format(&text, "%s\"k%d\": {\"a\": %d}", i == 0 ? "" : ", ", i, i);
    nib__text_str(&text, "}");
    static const char source[] = "{{ k49999.a }}";
    render_within(&r, source, sizeof source - 1, text.at, NULL, &a);
    if (r.status != NIB_OK)
        fail_msg("%s", r.err.text);
    assert_string_equal(r.out.text.at, "49999");
    nib__template_output_free(&r.out);
    nib__text_free(&text);
}

static void test_memory_runs_out(void **state)
{
    static const char source[] =
        "{%- macro m(a, b=2) -%}<{{ a }}{{ b }}{{ caller() }}>{%- endmacro -%}"
        "{% set ns = namespace(x=[]) %}{% for k, v in d.items() if k != 'q' %}"
        "{% set ns.x = ns.x + [k ~ v] %}{{ loop.index }}{% endfor %}"
        "{% call m(s|upper) %}{{ ns.x|sort|join(',') }}{% endcall %}"
        "{{ d|tojson(indent=2) }}{{ s.split()|map('title')|list }}{{ '%s' % s }}"
        "{% filter trim %} {{ s[1:] }} {% endfilter %}{{ d|dictsort }}{{ s|replace('b', 'c') }}";
    int left = 0;
    nib_status status;
    (void)state;
    do {
        failing f = {.left = left++};
        const nib_allocator a = failing_allocator(&f);
        rendering r;
        render_within(&r, source, sizeof source - 1,
                      "{\"s\": \"a b c\", \"d\": {\"b\": 1, \"a\": [2, null, {\"x\": 1.5}]}}", NULL,
                      &a);
        status = r.status;
        assert_true(status == NIB_OK || status == NIB_NO_MEMORY);
        if (status == NIB_OK)
            assert_non_null(strstr(r.out.text.at, "<A B C2a[2, None, {'x': 1.5}],b1>"));
        else
            assert_true(r.err.text[0] != 0);
        nib__template_output_free(&r.out);
        assert_int_equal(f.live, 0);
    } while (status != NIB_OK && left < 10000);
    assert_true(status == NIB_OK && left > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unclosed),        cmocka_unit_test(test_targets),
        cmocka_unit_test(test_own_caller),      cmocka_unit_test(test_unknown_names),
        cmocka_unit_test(test_recursion),       cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_steps),           cmocka_unit_test(test_steps_of_strings),
        cmocka_unit_test(test_steps_of_blanks), cmocka_unit_test(test_steps_of_names),
        cmocka_unit_test(test_tokens),          cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_integers),        cmocka_unit_test(test_long_integers),
        cmocka_unit_test(test_bytes),           cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_nested_values),   cmocka_unit_test(test_raise),
        cmocka_unit_test(test_odd_messages),    cmocka_unit_test(test_tools),
        cmocka_unit_test(test_token_bytes),     cmocka_unit_test(test_clock),
        cmocka_unit_test(test_undefined),       cmocka_unit_test(test_nul),
        cmocka_unit_test(test_large),           cmocka_unit_test(test_json),
        cmocka_unit_test(test_many_names),      cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

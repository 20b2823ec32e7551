/* SPDX-License-Identifier: Apache-2.0
 *
 * Templates render byte for byte as jinja2 does in transformers' environment: the cases and
 * conversations of tests/golden/template_*.txt, with our own templates and, if NIBBLE_TEST_DATA
 * names their folder, those of known models. Every byte that came from a user is marked. What runs
 * out of memory, depth or steps says so, wherever it happens.
 */
#include "failing.h"
#include "rendering.h"
#include "skipping.h"
#include "tokenizing.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

static void render(rendering *r, const char *source, const char *values)
{
    static nib_allocator a;
    a = nib__allocator_default();
    render_within(r, source, strlen(source), values, NULL, &a);
}

static void free_rendering(rendering *r) { nib__template_output_free(&r->out); }

/* ---- golden files ---- */

static char *next_line(char **at)
{
    char *line = *at, *end = strchr(line, '\n');
    if (end == NULL)
        return NULL;
    *end = 0;
    *at = end + 1;
    return line;
}

static char *cut(char *line, char at)
{
    char *rest = strchr(line, at);
    assert_non_null(rest);
    *rest = 0;
    return rest + 1;
}

static char *json_text(nib_arena *arena, const char *text, size_t *size)
{
    nib_json json;
    nib__json_init(&json, "golden", text, strlen(text), NULL);
    char *string = nib__json_read_string(&json, arena, size);
    if (string == NULL)
        fail_msg("%s: %s", text, json.err.text);
    return string;
}

static uint64_t hash_of(const char *text, size_t size)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* expected: a JSON string, "SIZE HASH", or "!" with an optional text of raise_exception. */
static void check(nib_arena *arena, const rendering *r, const char *what, const char *expected)
{
    const char *text = r->out.text.at == NULL ? "" : r->out.text.at;
    size_t size;
    char made[40];
    if (expected[0] == '!') {
        if (r->status == NIB_OK)
            fail_msg("%s gives %s", what, text);
        const char *raised = expected[1] == 0 ? NULL : json_text(arena, expected + 1, &size);
        if (raised != NULL && strcmp(raised, r->err.text) != 0)
            fail_msg("%s raises \"%s\" instead of \"%s\"", what, r->err.text, raised);
        assert_true(raised != NULL || strstr(r->err.text, ": line ") != NULL);
        return;
    }
    if (r->status != NIB_OK)
        fail_msg("%s: %s", what, r->err.text);
    if (expected[0] == '"') {
        const char *wanted = json_text(arena, expected, &size);
        if (r->out.text.size != size || memcmp(text, wanted, size) != 0)
            fail_msg("%s gives\n%s\ninstead of\n%s", what, text, wanted);
        return;
    }
    snprintf(made, sizeof made, "%zu %016" PRIx64, r->out.text.size,
             hash_of(text, r->out.text.size));
    if (strcmp(made, expected) != 0)
        fail_msg("%s gives %s instead of %s", what, made, expected);
}

typedef struct golden_case {
    const char *line, *source, *values, *expected;
    size_t size;
} golden_case;

static void each_case(void (*use)(nib_arena *arena, const golden_case *c))
{
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    size_t size, count = 0;
    golden_case c = {.values = "{}"};
    nib__arena_init(&arena, &a, 0);
    char *at = read_text(&arena, "tests/golden/template_cases.txt", &size);
    for (char *line; (line = next_line(&at)) != NULL;) {
        if (line[0] == '#')
            continue;
        if (line[0] == '@') {
            c.values = line + 2;
            continue;
        }
        c.line = line;
        c.expected = cut(line, '\t');
        c.source = json_text(&arena, line, &c.size);
        use(&arena, &c);
        count++;
    }
    nib__arena_free(&arena);
    assert_true(count > 2500);
}

static void check_case(nib_arena *arena, const golden_case *c)
{
    const nib_allocator a = nib__allocator_default();
    rendering r;
    render_within(&r, c->source, c->size, c->values, NULL, &a);
    check(arena, &r, c->line, c->expected);
    free_rendering(&r);
}

static void test_renders_like_jinja2(void **state)
{
    (void)state;
    each_case(check_case);
}

/* Renders within less than the case needs. Returns whether that was too little; if not, the result
 * is the usual one. */
static bool runs_out(nib_arena *arena, const golden_case *c, const nib_template_limits *limits,
                     int allocations)
{
    failing f = {.left = allocations};
    const nib_allocator a = failing_allocator(&f);
    rendering r;
    render_within(&r, c->source, c->size, c->values, limits, &a);
    const bool too_little = r.status == NIB_NO_MEMORY;
    if (too_little)
        assert_int_equal(r.err.status, NIB_NO_MEMORY);
    else
        check(arena, &r, c->line, c->expected);
    free_rendering(&r);
    if (f.live != 0)
        fail_msg("%s: %d allocations leak after %d", c->line, f.live, allocations);
    return too_little;
}

/* Cases that take long run out at fewer places. A few run out by themselves. */
static void run_case_out(nib_arena *arena, const golden_case *c)
{
    enum { ALLOCATIONS = 512, STEPS = 64 };
    static int number;
    if (number++ % sparse(30) != 0)
        return;
    if (runs_out(arena, c, NULL, -1))
        return;
    for (int left = 0; runs_out(arena, c, NULL, left);)
        left += 1 + left / ALLOCATIONS * 4;
    for (int depth = 1; runs_out(arena, c, &(nib_template_limits){.depth = depth}, -1); depth++)
        assert_true(depth <= NIB_TEMPLATE_DEPTH);
    for (uint64_t steps = 1; runs_out(arena, c, &(nib_template_limits){.steps = steps}, -1);)
        steps += 1 + steps / STEPS * 4;
}

/* Each case without memory, depth or steps somewhere: an error, or the result is as it was. */
static void test_runs_out(void **state)
{
    (void)state;
    each_case(run_case_out);
}

/* Checks the lines FILE, conversation, result whose files are in one of the two folders. */
static size_t check_chats(const char *folder, bool own)
{
    enum { CHATS = 64 };
    const nib_allocator a = nib__allocator_default();
    const char *names[CHATS], *values[CHATS];
    nib_arena arena;
    size_t size, chats = 0, count = 0;
    nib__arena_init(&arena, &a, 0);
    char *at = read_text(&arena, "tests/golden/template_chats.txt", &size);
    for (char *line; (line = next_line(&at)) != NULL;) {
        if (line[0] == '#')
            continue;
        if (line[0] == '@') {
            assert_true(chats < CHATS);
            names[chats] = line + 2;
            values[chats++] = cut(line + 2, ' ');
            continue;
        }
        char *name = cut(line, '\t'), path[1024], what[1200];
        const char *expected = cut(name, '\t');
        size_t chat = 0;
        rendering r;
        if ((strchr(line, '/') == NULL) != own)
            continue;
        while (chat < chats && strcmp(names[chat], name) != 0)
            chat++;
        assert_true(chat < chats);
        snprintf(path, sizeof path, "%s/%s", folder, line);
        snprintf(what, sizeof what, "%s, conversation %s", path, name);
        const char *source = read_text(&arena, path, &size);
        render_within(&r, source, size, values[chat], NULL, &a);
        check(&arena, &r, what, expected);
        free_rendering(&r);
        count++;
    }
    nib__arena_free(&arena);
    return count;
}

static void test_own_templates(void **state)
{
    (void)state;
    assert_true(check_chats("tests/golden/templates", true) >= 5 * 29);
}

static void test_known_templates(void **state)
{
    (void)state;
    assert_true(check_chats(test_data(), false) >= 47 * 29);
}

/* ---- times ---- */

static void render_time(rendering *r, const char *source, int64_t now)
{
    static nib_allocator a;
    const nib_named_text text = {"chat.jinja", source, strlen(source)};
    const nib_template_input input = {.now = now};
    nib_template *t = NULL;
    a = nib__allocator_default();
    *r = (rendering){.status = NIB_OK};
    nib__template_output_init(&r->out, &a);
    assert_int_equal(nib__template_open(&t, &text, &a, &r->err), NIB_OK);
    r->status = nib__template_render(t, &input, &r->out, &r->err);
    nib__template_close(t);
}

/* As C's strftime, around each new year and the end of each February. */
static void test_times(void **state)
{
    static const char format[] = "%Y %C %y %m %d %e %H %I %M %S %j %u %w %U %W %V %G %B %A %b %h "
                                 "%a %p %D %x %F %T %X %R %r %c%n%t%%";
    const int64_t day = 86400, from = -5680281600, to = 7572700800; /* 1790 to 2209 */
    char wanted[400];
    rendering r;
    (void)state;
    for (int64_t now = from; now < to; now += day / 2 - 4321) {
        const time_t seconds = (time_t)now;
        struct tm tm;
        assert_non_null(gmtime_r(&seconds, &tm));
        if ((tm.tm_yday > 5 && tm.tm_yday < 57) || (tm.tm_yday > 61 && tm.tm_yday < 358)) {
            now += 3 * day;
            continue;
        }
        const size_t size = strftime(wanted, sizeof wanted, format, &tm);
        const int hour = tm.tm_hour % 12 == 0 ? 12 : tm.tm_hour % 12;
        assert_true(size > 0);
        snprintf(wanted + size, sizeof wanted - size, "%2d %2d %s %d %2d %d %d %2d %02d",
                 tm.tm_hour, hour, tm.tm_hour < 12 ? "am" : "pm", tm.tm_mon + 1, tm.tm_hour, hour,
                 tm.tm_yday + 1, tm.tm_mday, tm.tm_mday);
        render_time(&r,
                    "{{ strftime_now('%Y %C %y %m %d %e %H %I %M %S %j %u %w %U %W %V %G %B %A %b "
                    "%h %a %p %D %x %F %T %X %R %r %c%n%t%%%k %l %P %-m %_H %-I %-j %_d %0d') }}",
                    now);
        assert_int_equal(r.status, NIB_OK);
        assert_string_equal(r.out.text.at, wanted);
        free_rendering(&r);
    }
    for (int sign = -1; sign <= 1; sign += 2) {
        render_time(&r, "{{ strftime_now('%Y') }}", sign * (INT64_C(1) << 40));
        assert_int_equal(r.status, NIB_BAD_INPUT);
        free_rendering(&r);
    }
}

/* ---- bytes that came from a user ---- */

/* Compares the output with each run of user bytes in braces. */
static void expect_marks(const char *source, const char *values, const char *expected)
{
    const nib_allocator a = nib__allocator_default();
    rendering r;
    nib_text shown;
    size_t at = 0;
    nib__text_init(&shown, &a);
    render(&r, source, values);
    if (r.status != NIB_OK)
        fail_msg("%s", r.err.text);
    for (size_t i = 0; i < r.out.user_count; i++) {
        assert_true(r.out.user[i].start >= at && r.out.user[i].end > r.out.user[i].start);
        nib__text_put(&shown, r.out.text.at + at, r.out.user[i].start - at);
        at = r.out.user[i].end;
        nib__text_format(&shown, "{%.*s}", (int)(at - r.out.user[i].start),
                         r.out.text.at + r.out.user[i].start);
    }
    nib__text_put(&shown, r.out.text.at + at, r.out.text.size - at);
    assert_string_equal(shown.at, expected);
    nib__text_free(&shown);
    free_rendering(&r);
}

static void test_marks_user_bytes(void **state)
{
    static const char values[] =
        "{\"s\": \"Ab cd\", \"n\": 7, \"l\": [\"x\", 1], \"d\": {\"k\": \"v\"}, "
        "\"messages\": [{\"role\": \"user\", \"content\": \"<s>\"}, "
        "{\"role\": \"wizard\", \"content\": \"\"}], \"bos\": \"<s>\"}";
    (void)state;
    expect_marks("<{{ s }}|{{ 'T' }}>", values, "<{Ab cd}|T>");
    expect_marks("{{ 'a' + s + 'b' }} {{ 'a' ~ s ~ n }}", values, "a{Ab cd}b a{Ab cd7}");
    expect_marks("{{ s|upper }}{{ s.lower() }}{{ s|title|trim('A') }}", values, "{AB CDab cdb Cd}");
    expect_marks("{{ (s + 'T')[3:] }}{{ (s + 'T')|reverse }}", values, "{cd}TT{dc bA}");
    expect_marks("{{ ('T' ~ s ~ 'T')|replace('b', 'U') }}{{ 'T-T'|replace('-', s) }}", values,
                 "T{A}U{ cd}TT{Ab cd}T");
    expect_marks("{{ s.split()|join('+') }}{{ s.join(['T', 'U']) }}", values, "{Ab}+{cd}T{Ab cd}U");
    expect_marks("{{ l }}{{ d|tojson }}{{ {'t': s}|tojson }}", values,
                 "{['x', 1]{\"k\": \"v\"}}{\"t\": {\"Ab cd\"}}");
    expect_marks("{{ '%s:%s' % (s, 'T') }}{{ '%d'|format(n + 1) }}", values, "{Ab cd}:T{8}");
    expect_marks("{% for c in s %}{{ c }}{{ loop.index }}{% endfor %}", values,
                 "{A}1{b}2{ }3{c}4{d}5");
    expect_marks(
        "{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(s) }}{% set t %}{{ s }}!{% endset %}{{ t }}",
        values, "[{Ab cd}]{Ab cd}!");
    expect_marks("{{ s|length }}{{ bos_token }}{{ bos }}{{ s is string }}", values,
                 "5<s>{<s>}True");
    expect_marks("{{ ('\\n' ~ s)|indent(1) }}{{ s|e }}{{ (s ~ '<')|e }}", values,
                 "\n {Ab cdAb cdAb cd}&lt;");
}

/* Known role names count as the template's text; other roles, and a "role" elsewhere, are a user's.
 */
static void test_roles(void **state)
{
    static const char conversation[] =
        "[{\"role\": \"user\", \"content\": \"user\", \"x\": {\"role\": \"user\"}}, "
        "{\"content\": \"role\", \"role\": \"end\", \"x\": [\"user\"]}]";
    static const char source[] =
        "{% for m in messages %}{{ m.role }}|{{ m.content }}|{{ m.x.role or m.x[0] }};{% endfor %}";
    const nib_template_value value = {"messages", conversation, sizeof conversation - 1};
    const nib_allocator a = nib__allocator_default();
    const nib_named_text text = {"chat.jinja", source, sizeof source - 1};
    const nib_template_input input = {.values = &value, .value_count = 1};
    static const nib_byte_range expected[] = {{5, 9}, {10, 14}, {15, 18}, {19, 23}, {24, 28}};
    nib_template *t = NULL;
    nib_template_output out;
    nib_err err = {0};
    (void)state;
    nib__template_output_init(&out, &a);
    assert_int_equal(nib__template_open(&t, &text, &a, &err), NIB_OK);
    assert_int_equal(nib__template_render(t, &input, &out, &err), NIB_OK);
    assert_string_equal(out.text.at, "user|user|user;end|role|user;");
    assert_int_equal(out.user_count, COUNT(expected));
    assert_memory_equal(out.user, expected, sizeof expected);
    nib__template_output_free(&out);
    nib__template_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_renders_like_jinja2),
        cmocka_unit_test(test_runs_out),
        cmocka_unit_test(test_own_templates),
        cmocka_unit_test(test_known_templates),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_marks_user_bytes),
        cmocka_unit_test(test_roles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

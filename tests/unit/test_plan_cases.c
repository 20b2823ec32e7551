/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs every tests/plan/NAME.case: a machine, layers and options as data, and what the plan must
 * say.
 *
 *   machine NAME | machine cpu ISA      dtype TYPE      training TOKENS      engine NAME strict
 *   allow TEXT      kernel TEXT      place TEXT      without KERNEL
 *   layer NAME ROLE N K SCHEME [bias] [stored SCHEME] [scale TYPE] [act_scale TYPE] [wish LAYOUT]
 *         [experts COUNT]
 *   expect LAYER denied | rung RUNG | done SCHEME@DEVICE | reason CODE | kernel NAME | advice START
 *   expect LAYER peer KERNEL runs|CODE      expect note CODE
 */
#include "planner.h"

#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "machines.h"
#include "skipping.h"

enum {
    LAYERS_MAX = 16,
    WORDS_MAX = 16,
    TEXTS_MAX = 4,
    EXPECTS_MAX = 32,
    LINE_MAX_ = 512,
    CASES_MAX = 100
};

typedef struct case_file {
    char text[8192]; /* cut into words in place */
    nib_machine here;
    const nib_machine *machine;
    nib_policy policy;
    nib_layer layers[LAYERS_MAX];
    size_t layer_count;
    const char *texts[4][TEXTS_MAX]; /* allow, kernel, place, without */
    char *expects[EXPECTS_MAX][WORDS_MAX];
    size_t expect_count;
    const char *path;
    int line;
} case_file;

static int find_name(const case_file *c, const char *const *names, const char *name)
{
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    fail_msg("%s:%d: %s is not known", c->path, c->line, name);
    return 0;
}

static nib_scheme read_scheme(const case_file *c, const char *name)
{
    nib_scheme scheme;
    nib_err err = {NIB_OK, ""};
    if (nib__scheme_parse(&scheme, name, strlen(name), &err) != NIB_OK)
        fail_msg("%s:%d: %s", c->path, c->line, err.text);
    return scheme;
}

static nib_role read_role(const case_file *c, const char *name)
{
    for (int role = 0; role < NIB_ROLE_COUNT; role++)
        if (strcmp(nib__role_name((nib_role)role), name) == 0)
            return (nib_role)role;
    fail_msg("%s:%d: %s is no role", c->path, c->line, name);
    return NIB_ROLE_OTHER;
}

static void read_machine(case_file *c, char **words)
{
    /* The instruction sets that a plan may name on any host, as it runs nothing. */
    static const struct {
        const char *name;
        int64_t isa;
    } levels[] = {{"ref", 0},
                  {"avx2", NIB_ISA_AVX2},
                  {"avx512", NIB_ISA_AVX2 | NIB_ISA_AVX512},
                  {"avx512vnni", NIB_ISA_AVX2 | NIB_ISA_AVX512 | NIB_ISA_AVX512VNNI}};
    if (strcmp(words[1], "cpu") != 0) {
        c->machine = nib__machines_find(&machines, words[1]);
        c->policy.declared = true;
    }
    for (size_t i = 0; c->machine == NULL && words[2] != NULL && i < COUNT(levels); i++) {
        if (strcmp(levels[i].name, words[2]) == 0) {
            nib__machine_here(&c->here, levels[i].isa, 2);
            c->machine = &c->here;
        }
    }
    if (c->machine == NULL)
        fail_msg("%s:%d: no such machine", c->path, c->line);
}

static void read_layer(case_file *c, char **words)
{
    assert_true(c->layer_count < LAYERS_MAX && words[5] != NULL);
    nib_layer *layer = &c->layers[c->layer_count++];
    *layer = (nib_layer){.name = words[1],
                         .role = read_role(c, words[2]),
                         .n = strtoll(words[3], NULL, 10),
                         .k = strtoll(words[4], NULL, 10),
                         .stored = {.code = NIB_CODE_BF16, .symmetric = true},
                         .asked = read_scheme(c, words[5]),
                         .rule = "recipe",
                         .scale_type = NIB_TYPE_F32,
                         .act_scale_type = NIB_TYPE_F32};
    for (int i = 6; words[i] != NULL; i++) {
        if (strcmp(words[i], "bias") == 0) {
            layer->bias = true;
            continue;
        }
        assert_non_null(words[i + 1]);
        const char *value = words[i + 1];
        if (strcmp(words[i], "stored") == 0)
            layer->stored = read_scheme(c, value);
        else if (strcmp(words[i], "scale") == 0)
            layer->scale_type = (nib_type)find_name(c, nib__type_names, value);
        else if (strcmp(words[i], "act_scale") == 0)
            layer->act_scale_type = (nib_type)find_name(c, nib__type_names, value);
        else if (strcmp(words[i], "experts") == 0)
            layer->experts = strtoll(value, NULL, 10), layer->top_k = 1;
        else if (strcmp(words[i], "wish") == 0)
            layer->hint = (nib_layout_hint)find_name(c, nib__layout_hint_names, value);
        else
            fail_msg("%s:%d: %s is no property of a layer", c->path, c->line, words[i]);
        i++;
    }
}

static void add_text(nib_strings *strings, const char **room, const char *text)
{
    assert_true(strings->count < TEXTS_MAX && text != NULL);
    room[strings->count++] = text;
    strings->items = room;
}

static void read_line(case_file *c, char **words)
{
    nib_policy *p = &c->policy;
    if (strcmp(words[0], "machine") == 0)
        read_machine(c, words);
    else if (strcmp(words[0], "dtype") == 0)
        p->dtype = (nib_type)find_name(c, nib__type_names, words[1]);
    else if (strcmp(words[0], "training") == 0)
        p->training = true, p->m = strtoll(words[1], NULL, 10);
    else if (strcmp(words[0], "engine") == 0)
        p->engine = words[1];
    else if (strcmp(words[0], "strict") == 0)
        p->strict = true;
    else if (strcmp(words[0], "allow") == 0)
        add_text(&p->allow, c->texts[0], words[1]);
    else if (strcmp(words[0], "kernel") == 0)
        add_text(&p->kernel, c->texts[1], words[1]);
    else if (strcmp(words[0], "place") == 0)
        add_text(&p->place, c->texts[2], words[1]);
    else if (strcmp(words[0], "without") == 0)
        add_text(&p->without, c->texts[3], words[1]);
    else if (strcmp(words[0], "layer") == 0)
        read_layer(c, words);
    else if (strcmp(words[0], "expect") == 0)
        memcpy(c->expects[c->expect_count++], words, WORDS_MAX * sizeof *words);
    else
        fail_msg("%s:%d: %s is no directive", c->path, c->line, words[0]);
    assert_true(c->expect_count < EXPECTS_MAX);
}

static void read_case(case_file *c, const char *path)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    const size_t size = fread(c->text, 1, sizeof c->text - 1, f);
    fclose(f);
    assert_true(size < sizeof c->text - 1);
    c->path = path;
    for (char *line = c->text, *end; *line != 0; line = end) {
        char *words[WORDS_MAX] = {NULL};
        int count = 0;
        end = strchr(line, '\n');
        assert_non_null(end);
        *end++ = 0;
        c->line++;
        for (char *word = line; *(word += strspn(word, " ")) != 0 && *word != '#';) {
            assert_true(count < WORDS_MAX - 1);
            words[count++] = word;
            word += strcspn(word, " ");
            if (*word != 0)
                *word++ = 0;
        }
        if (count != 0)
            read_line(c, words);
    }
}

/* ---- what the plan says ---- */

static bool has_code(const nib_reason *reasons, size_t count, const char *code)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(reasons[i].code, code) == 0)
            return true;
    return false;
}

static bool peer_says(const nib_ledger_layer *line, const char *kernel, const char *what)
{
    for (size_t i = 0; i < line->candidate_count; i++) {
        const nib_candidate *c = &line->candidates[i];
        if (strcmp(c->kernel, kernel) != 0)
            continue;
        if (strcmp(what, "runs") == 0)
            return c->verdict == NIB_VERDICT_RUNS;
        return c->verdict == NIB_VERDICT_NO && has_code(c->reasons, c->reason_count, what);
    }
    return false;
}

static bool advises(const nib_ledger_layer *line, char **words)
{
    char start[LINE_MAX_] = "";
    for (int i = 3; words[i] != NULL; i++) {
        const size_t used = strlen(start);
        snprintf(start + used, sizeof start - used, "%s%s", i == 3 ? "" : " ", words[i]);
    }
    for (size_t i = 0; i < line->advice_count; i++)
        if (line->advice[i].option != NULL &&
            strncmp(line->advice[i].option, start, strlen(start)) == 0)
            return true;
    return false;
}

static bool uses(const nib_ledger_layer *line, const char *kernel)
{
    bool found = false;
    for (size_t i = 0; i < line->use_count; i++)
        found = found || strcmp(line->uses[i].kernel, kernel) == 0;
    return found;
}

static bool is_met(const nib_assignment *plan, char **words)
{
    const nib_ledger_layer *line = NULL;
    if (strcmp(words[1], "note") == 0)
        return has_code(plan->ledger.notes, plan->ledger.note_count, words[2]);
    for (size_t i = 0; i < plan->ledger.layer_count; i++)
        if (strcmp(plan->ledger.layers[i].name, words[1]) == 0)
            line = &plan->ledger.layers[i];
    assert_non_null(line);
    const char *what = words[2], *value = words[3];
    if (strcmp(what, "denied") == 0)
        return line->denied;
    if (strcmp(what, "rung") == 0)
        return !line->denied && strcmp(nib__rung_names[line->rung], value) == 0;
    if (strcmp(what, "done") == 0)
        return line->done != NULL && strcmp(line->done, value) == 0;
    if (strcmp(what, "reason") == 0)
        return has_code(line->reasons, line->reason_count, value);
    if (strcmp(what, "kernel") == 0)
        return uses(line, value);
    if (strcmp(what, "peer") == 0)
        return peer_says(line, value, words[4]);
    if (strcmp(what, "advice") == 0)
        return advises(line, words);
    return false;
}

static void test_case_holds(void **state)
{
    const char *const path = *state;
    case_file *c = calloc(1, sizeof *c);
    nib_assignment plan;
    nib_err err = {NIB_OK, ""};
    nib_text text;
    assert_non_null(c);
    read_case(c, path);
    if (c->expect_count == 0)
        fail_msg("%s expects nothing", path);
    if (!X86_ROWS && c->machine == &c->here) { /* a plan for another machine needs no row here */
        free(c);
        skip_test(path, SKIP_ROWS);
    }
    if (nib__plan_layers(&plan, c->layers, c->layer_count, c->machine, &c->policy, &allocator,
                         &err) != NIB_OK)
        fail_msg("%s: %s", path, err.text);
    nib__text_init(&text, &allocator);
    nib__plan_render(&plan, &c->policy, &text);
    for (size_t i = 0; i < c->expect_count; i++)
        if (!is_met(&plan, c->expects[i]))
            fail_msg("%s: expect %s %s %s is not met by\n%s", path, c->expects[i][1],
                     c->expects[i][2], c->expects[i][3] != NULL ? c->expects[i][3] : "", text.at);
    nib__text_free(&text);
    nib__assignment_free(&plan);
    free(c);
}

int main(void)
{
    glob_t found;
    struct CMUnitTest tests[CASES_MAX];
    if (glob("tests/plan/*.case", 0, NULL, &found) != 0 || found.gl_pathc > CASES_MAX) {
        fprintf(stderr, "tests/plan: 1 to %d cases are expected\n", CASES_MAX);
        return 1;
    }
    for (size_t i = 0; i < found.gl_pathc; i++)
        tests[i] = (struct CMUnitTest){.name = found.gl_pathv[i],
                                       .test_func = test_case_holds,
                                       .initial_state = found.gl_pathv[i]};
    const int failed =
        _cmocka_run_group_tests("plan cases", tests, found.gl_pathc, open_machines, close_machines);
    globfree(&found);
    return failed;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * `nibble explain`: what the codes of the ledger mean, including those of kernel conditions.
 */
#include "kernel.h"
#include "public_struct.h"
#include "plan_handle.h"

#include <stdio.h>

enum { WIDTH = 100, INDENT = 22 };

static bool is_wanted(const nib_ledger_code *c, const char *code)
{
    return code == NULL || strcmp(c->code, code) == 0;
}

/* A position in the table of kernels: a row, and one of its conditions. */
typedef struct position {
    size_t row, at;
} position;

/* The next condition with this code; NULL: none. *p is then at its row, just past the condition. */
static const nib_cond *next_condition(position *p, const char *code, nib_text *scratch)
{
    for (; p->row < nib__kernel_count(); p->row++, p->at = 0) {
        const nib_cond *conds = nib__kernel_at(p->row)->conds;
        while (conds[p->at].relation != NIB_REL_END) {
            const nib_cond *cond = &conds[p->at++];
            nib__text_clear(scratch);
            nib__cond_code(cond, scratch);
            if (scratch->at != NULL && strcmp(scratch->at, code) == 0)
                return cond;
        }
    }
    return NULL;
}

static bool same_why(const nib_cond *a, const nib_cond *b)
{
    return a->why == b->why || (a->why != NULL && b->why != NULL && strcmp(a->why, b->why) == 0);
}

/* What kernels require under one code: a condition, shared by all kernels that give the same reason
 * for it. */
typedef struct requirement {
    const char *code;
    const nib_cond *cond;
    position next;
    nib_text scratch;
} requirement;

/* The next kernel from *p on that has the requirement; NULL: none. */
static const char *next_kernel(requirement *r, position *p)
{
    for (const nib_cond *c; (c = next_condition(p, r->code, &r->scratch)) != NULL;)
        if (same_why(c, r->cond))
            return nib__kernel_at(p->row)->name;
    return NULL;
}

static bool next_requirement(requirement *r)
{
    while ((r->cond = next_condition(&r->next, r->code, &r->scratch)) != NULL) {
        position first = {0};
        next_kernel(r, &first);
        if (first.row == r->next.row && first.at == r->next.at)
            return true;
    }
    return false;
}

/* ---- forms ---- */

/* meaning NULL: out of memory, and the output will be discarded. */
static void write_line(nib_text *out, const char *kind, const char *code, const char *meaning)
{
    char head[64];
    snprintf(head, sizeof head, "%-8s %-*s ", kind, INDENT - 10, code);
    nib__ledger_wrap(out, head, "                      ", WIDTH, meaning != NULL ? meaning : "");
}

static void render_text(const char *code, requirement *r, nib_text *out)
{
    for (const nib_ledger_code *c = nib__ledger_codes; c->code != NULL; c++)
        if (is_wanted(c, code))
            write_line(out, nib__code_kind_names[c->kind], c->code, c->meaning);
    nib_text words;
    nib__text_init(&words, out->allocator);
    while (code != NULL && next_requirement(r)) {
        nib__text_clear(&words);
        nib__cond_describe(r->cond, &words);
        write_line(out, "reason", code, words.at);
        nib__text_clear(&words);
        const char *name;
        for (position p = {0}; (name = next_kernel(r, &p)) != NULL;)
            nib__text_format(&words, "%s%s", words.size > 0 ? ", " : "", name);
        write_line(out, "", "required by", words.at);
    }
    out->failed |= words.failed;
    nib__text_free(&words);
}

static void json_code(nib_jsonw *w, const char *kind, const char *code, const char *meaning)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "kind", kind);
    nib__jsonw_pair_string(w, "code", code);
    nib__jsonw_pair_string(w, "meaning", meaning != NULL ? meaning : "");
}

static void render_json(const char *code, requirement *r, nib_text *out)
{
    nib_jsonw w;
    nib__jsonw_report(&w, out);
    nib__jsonw_key(&w, "codes");
    nib__jsonw_array(&w);
    for (const nib_ledger_code *c = nib__ledger_codes; c->code != NULL; c++)
        if (is_wanted(c, code)) {
            json_code(&w, nib__code_kind_names[c->kind], c->code, c->meaning);
            nib__jsonw_object_end(&w);
        }
    nib_text words;
    nib__text_init(&words, out->allocator);
    while (code != NULL && next_requirement(r)) {
        nib__text_clear(&words);
        nib__cond_describe(r->cond, &words);
        json_code(&w, "reason", code, words.at);
        nib__jsonw_key(&w, "kernels");
        nib__jsonw_array(&w);
        const char *name;
        for (position p = {0}; (name = next_kernel(r, &p)) != NULL;)
            nib__jsonw_string(&w, name);
        nib__jsonw_array_end(&w);
        nib__jsonw_object_end(&w);
    }
    out->failed |= words.failed;
    nib__text_free(&words);
    nib__jsonw_array_end(&w);
    nib__jsonw_report_end(&w);
}

static const struct {
    const char *title, *what, *column;
} sections[NIB_LEDGER_KIND_COUNT] = {
    [NIB_LEDGER_SETTING] = {"Settings",
                            "Requests other than a layer's that are not done exactly as asked. "
                            "`--allow CODE` accepts one under `--strict`.",
                            "what it is about"},
    [NIB_LEDGER_REASON] =
        {"Reasons",
         "Why a layer is not done as asked, or why a kernel does not run. The failed conditions of "
         "kernels have codes\nof their own: the name of a [fact](kernels.md#facts) and the value "
         "that the kernel needs (`n%128`, `sm>=80`,\n`isa+avx512vnni`). `nibble explain 'n%128'` "
         "lists the kernels that require it.",
         "reason"},
    [NIB_LEDGER_ADVICE] =
        {"Advice", "What to type instead. Nibble has planned each suggestion before printing it.",
         "option"},
    [NIB_LEDGER_NOTE] = {"Notes", "Information that no option asked for.", "what it reports"},
};

static void render_markdown(nib_text *out)
{
    nib__text_str(out, "# Codes\n\nPrinted by `nibble explain --markdown`: every stable code of a "
                       "line of [the ledger](ledger.md).\n");
    const nib_ledger_code *c = nib__ledger_codes;
    for (int kind = 0; kind < NIB_LEDGER_KIND_COUNT; kind++) {
        nib__text_format(out, "\n## %s\n\n%s\n\n| code | %s |\n|---|---|\n", sections[kind].title,
                         sections[kind].what, sections[kind].column);
        for (; (int)c->kind == kind; c++)
            nib__text_format(out, "| `%s` | %s |\n", c->code, c->meaning);
    }
}

static nib_status check_known(const char *code, nib_text *scratch, nib_err *err)
{
    const char *names[128];
    size_t count = 0;
    for (const nib_ledger_code *c = nib__ledger_codes; c->code != NULL; c++) {
        if (strcmp(c->code, code) == 0)
            return NIB_OK;
        if (count < COUNT(names))
            names[count++] = c->code;
    }
    if (next_condition(&(position){0}, code, scratch) != NULL)
        return NIB_OK;
    char shown[NIB_SHOWN];
    nib__text_clear(scratch);
    nib__near_names(scratch, code, names, count);
    const bool some = scratch->size > 0;
    return nib__fail(err, NIB_USAGE, "unknown code %s%s%s; `nibble explain` lists all codes",
                     nib__escape_string(shown, code), some ? "; did you mean " : "",
                     some ? scratch->at : "");
}

nib_status nib_codes_write(nib_engine *engine, const char *code, nib_form form,
                           const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "engine", engine);
    NIB_TRY(nib__report_check(form, sink, err));
    requirement r = {.code = code};
    nib_text out;
    nib__text_init(&out, &engine->allocator);
    nib__text_init(&r.scratch, &engine->allocator);
    nib_status status = code != NULL ? check_known(code, &r.scratch, err) : NIB_OK;
    if (status == NIB_OK) {
        if (form == NIB_FORM_JSON)
            render_json(code, &r, &out);
        else if (form == NIB_FORM_MARKDOWN && code == NULL)
            render_markdown(&out);
        else
            render_text(code, &r, &out);
        out.failed |= r.scratch.failed;
        status = nib__text_flush(&out, sink, err);
    }
    nib__text_free(&r.scratch);
    nib__text_free(&out);
    return status;
}

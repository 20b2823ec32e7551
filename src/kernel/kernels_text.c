/* SPDX-License-Identifier: Apache-2.0
 *
 * Renders the table as documentation: every row with its status, conditions and note, as text, JSON
 * or Markdown. A test compares docs/kernels.md with this output.
 */
#include "kernel.h"
#include "ledger.h"

#include <stdio.h>

enum { WIDTH = 100 };

static const char *const arithmetic_words[NIB_ARITHMETIC_COUNT] = {
    "f32 sums, k ascending",
    "bf16 pairs, odd k before even k",
    "exact integer sums, f32 per group",
    "16 lanes, added as a tree",
    "exact, or element by element",
    "specific to the device, within a tolerance",
};

static void append_arithmetic(const nib_kernel *row, nib_text *out)
{
    nib__text_str(out, arithmetic_words[row->arithmetic]);
    if (row->tolerance > 0)
        nib__text_format(out, " of %.1g times the sum of magnitudes", row->tolerance);
}

static const char *row_status(const nib_kernel *row)
{
    if (row->peer != NULL)
        return "another engine's";
    return nib__kernel_built(row) ? "built" : "declared, not built";
}

static void append_conditions(const nib_kernel *row, const char *between, nib_text *out)
{
    if (row->conds->relation == NIB_REL_END)
        nib__text_str(out, "none");
    for (const nib_cond *c = row->conds; c->relation != NIB_REL_END; c++) {
        if (c != row->conds)
            nib__text_str(out, between);
        nib__cond_describe(c, out);
    }
}

static void append_key(nib_fact fact, int64_t value, nib_text *out)
{
    if (value == NIB_ANY)
        nib__text_str(out, "any");
    else
        nib__fact_say(fact, value, out);
}

/* ---- text ---- */

/* "isa+avx512 group%32 k<=65536" */
static void append_codes(const nib_kernel *row, nib_text *out)
{
    nib_text codes;
    nib__text_init(&codes, out->allocator);
    for (const nib_cond *c = row->conds; c->relation != NIB_REL_END; c++) {
        nib__cond_code(c, &codes);
        nib__text_str(&codes, " ");
    }
    if (codes.size != 0)
        nib__ledger_wrap(out, "      ", "      ", WIDTH, codes.at);
    out->failed = out->failed || codes.failed;
    nib__text_free(&codes);
}

static void text_rows(nib_op op, bool peers, nib_text *out)
{
    bool any = false;
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        if (row->op != op || (row->peer != NULL) != peers)
            continue;
        if (!any)
            nib__text_format(out, "\n%s%s\n", nib__op_names[op], peers ? ", other engines" : "");
        any = true;
        nib__text_format(out, "  %-48s %s\n", row->name, row_status(row));
        if (peers)
            nib__text_format(out, "      %s %s, %s\n", row->peer->engine, row->peer->version,
                             row->peer->source);
        append_codes(row, out);
        if (peers)
            nib__ledger_wrap(out, "      otherwise ", "      ", WIDTH, row->note);
    }
}

static void render_text(nib_text *out)
{
    size_t built = 0, declared = 0, peers = 0;
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        peers += row->peer != NULL;
        built += nib__kernel_built(row);
        declared += row->peer == NULL && !nib__kernel_built(row);
    }
    nib__text_format(out, "%zu kernels built, %zu declared, %zu of other engines\n", built,
                     declared, peers);
    for (int peer = 0; peer < 2; peer++)
        for (int op = 0; op < NIB_OP_COUNT; op++)
            text_rows((nib_op)op, peer != 0, out);
}

/* ---- JSON ---- */

static void json_conditions(const nib_kernel *row, nib_text *scratch, nib_jsonw *w)
{
    nib__jsonw_key(w, "conditions");
    nib__jsonw_array(w);
    for (const nib_cond *c = row->conds; c->relation != NIB_REL_END; c++) {
        nib__jsonw_object(w);
        nib__text_clear(scratch);
        nib__cond_code(c, scratch);
        nib__jsonw_pair_string(w, "code", scratch->at);
        nib__text_clear(scratch);
        nib__cond_describe(c, scratch);
        nib__jsonw_pair_string(w, "text", scratch->at);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
}

static void json_key(nib_jsonw *w, const char *name, nib_fact fact, int64_t value,
                     nib_text *scratch)
{
    nib__text_clear(scratch);
    append_key(fact, value, scratch);
    nib__jsonw_pair_string(w, name, scratch->at);
}

static void json_row(const nib_kernel *row, nib_text *scratch, nib_jsonw *w)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "name", row->name);
    nib__jsonw_pair_string(w, "op", nib__op_names[row->op]);
    json_key(w, "weight", NIB_FACT_CODE, row->code, scratch);
    json_key(w, "act", NIB_FACT_ACT, row->act, scratch);
    json_key(w, "input", NIB_FACT_INPUT, row->input, scratch);
    json_key(w, "device", NIB_FACT_DEVICE, row->device, scratch);
    nib__jsonw_pair_bool(w, "built", nib__kernel_built(row));
    nib__jsonw_pair_int(w, "rank", row->rank);
    nib__jsonw_pair_string(w, "reference", row->reference);
    if (row->peer != NULL) {
        nib__jsonw_pair_string(w, "engine", row->peer->engine);
        nib__jsonw_pair_string(w, "version", row->peer->version);
        nib__jsonw_pair_string(w, "source", row->peer->source);
        nib__jsonw_pair_string(w, "accepted", row->peer->result);
        nib__jsonw_pair_string(w, "refused", row->note);
    } else {
        nib__text_clear(scratch);
        append_arithmetic(row, scratch);
        nib__jsonw_pair_string(w, "numbers", scratch->at);
        nib__jsonw_pair_string(w, "note", row->note);
    }
    json_conditions(row, scratch, w);
    nib__jsonw_object_end(w);
}

static void render_json(nib_text *out)
{
    nib_jsonw w;
    nib_text scratch;
    nib__text_init(&scratch, out->allocator);
    nib__jsonw_report(&w, out);
    nib__jsonw_key(&w, "kernels");
    nib__jsonw_array(&w);
    for (size_t i = 0; i < nib__kernel_count(); i++)
        json_row(nib__kernel_at(i), &scratch, &w);
    nib__jsonw_array_end(&w);
    nib__jsonw_report_end(&w);
    out->failed = out->failed || scratch.failed;
    nib__text_free(&scratch);
}

/* ---- Markdown ---- */

/* Rows per operation and device, with links to their tables. */
static void markdown_index(nib_text *out)
{
    size_t peers = 0;
    nib__text_str(out, "| operation |");
    for (int d = 0; d < NIB_DEVICE_COUNT; d++)
        nib__text_format(out, " %s |", nib__device_names[d]);
    nib__text_str(out, "\n|---|");
    for (int d = 0; d < NIB_DEVICE_COUNT; d++)
        nib__text_str(out, "---|");
    for (int op = 0; op < NIB_OP_COUNT; op++) {
        size_t rows[NIB_DEVICE_COUNT] = {0}, count = 0;
        for (size_t i = 0; i < nib__kernel_count(); i++) {
            const nib_kernel *row = nib__kernel_at(i);
            if ((int)row->op != op)
                continue;
            if (row->peer != NULL) {
                peers++;
                continue;
            }
            rows[row->device]++;
            count++;
        }
        if (count == 0)
            continue;
        nib__text_format(out, "\n| [%s](#%s) |", nib__op_names[op], nib__op_names[op]);
        for (int d = 0; d < NIB_DEVICE_COUNT; d++)
            nib__text_format(out, " %zu |", rows[d]);
    }
    nib__text_format(out,
                     "\n\nAlso [the facts](#facts) that conditions test, and %zu "
                     "[kernels and guards of other engines](#kernels-and-guards-of-other-engines)."
                     "\n\n",
                     peers);
}

static void markdown_facts(nib_text *out)
{
    nib__text_str(out, "## Facts\n\nThe facts that the conditions of kernels test.\n\n"
                       "| fact | belongs to | meaning | values |\n|---|---|---|---|\n");
    for (int f = 0; f < NIB_FACT_COUNT; f++) {
        const nib_fact_info *info = &nib__fact_info[f];
        nib__text_format(out, "| `%s` | %s | %s | ", info->key, info->owner, info->noun);
        for (int i = 0; info->names != NULL && info->names[i] != NULL; i++)
            nib__text_format(out, "%s%s", i == 0 ? "" : ", ", info->names[i]);
        nib__text_format(out, "%s |\n",
                         info->kind == NIB_KIND_INT    ? "a number"
                         : info->kind == NIB_KIND_FLAG ? "yes, no"
                                                       : "");
    }
}

static void markdown_rows(nib_op op, nib_text *out)
{
    bool any = false;
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        if (row->op != op || row->peer != NULL)
            continue;
        if (!any)
            nib__text_format(out,
                             "\n### %s\n\n| kernel | status | conditions | arithmetic | note "
                             "|\n|---|---|---|---|---|\n",
                             nib__op_names[op]);
        any = true;
        nib__text_format(out, "| `%s` | %s | ", row->name, row_status(row));
        append_conditions(row, "; ", out);
        nib__text_str(out, " | ");
        append_arithmetic(row, out);
        nib__text_format(out, " | %s |\n", row->note);
    }
}

static void markdown_peers(nib_text *out)
{
    nib__text_str(
        out,
        "\n## Kernels and guards of other engines\n\nRead in their sources; they never run here. "
        "`nibble plan --engine NAME` evaluates them for each layer.\n");
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        if (row->peer == NULL)
            continue;
        nib__text_format(out, "\n### %s\n\n%s %s, `%s`: %s, weights ", row->name, row->peer->engine,
                         row->peer->version, row->peer->source, nib__op_names[row->op]);
        append_key(NIB_FACT_CODE, row->code, out);
        nib__text_str(out, ", activations ");
        append_key(NIB_FACT_ACT, row->act, out);
        nib__text_str(out, ".\n\n");
        for (const nib_cond *c = row->conds; c->relation != NIB_REL_END; c++) {
            nib__text_str(out, "- ");
            nib__cond_describe(c, out);
            nib__text_str(out, "\n");
        }
        nib__text_format(out, "\nOtherwise: %s.\n", row->note);
        if (row->peer->result != NULL)
            nib__text_format(out, "\nIf it accepts: %s.\n", row->peer->result);
    }
}

static void render_markdown(nib_text *out)
{
    nib__text_str(out,
                  "# Kernels\n\nWritten by `nibble kernels --markdown` from the table that the "
                  "planner uses; a test compares this\npage with it. A condition states what a "
                  "kernel cannot compute; what is merely slower has a higher rank number.\nEvery "
                  "scheme has a `__ref` row in plain C that accepts every shape. Declared rows "
                  "serve plans for other machines\nand never run.\n\n");
    markdown_index(out);
    markdown_facts(out);
    nib__text_str(out, "\n## Rows\n");
    for (int op = 0; op < NIB_OP_COUNT; op++)
        markdown_rows((nib_op)op, out);
    markdown_peers(out);
}

void nib__kernels_render(nib_form form, nib_text *out)
{
    switch (form) {
    case NIB_FORM_TEXT: render_text(out); break;
    case NIB_FORM_JSON: render_json(out); break;
    case NIB_FORM_MARKDOWN: render_markdown(out); break;
    }
}

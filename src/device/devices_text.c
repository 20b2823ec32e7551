/* SPDX-License-Identifier: Apache-2.0
 *
 * Renders this machine's devices and the known machines as text, JSON or Markdown, each fact with
 * its date and source. Facts that matter for int4 come first.
 */
#include "json.h"
#include "machine.h"

#include <stdio.h>

/* ---- text ---- */

static void render_text_lines(const nib_machine_lines *lines, const nib_machine *m, bool int4,
                              nib_text *out)
{
    for (size_t i = 0; i < lines->count; i++) {
        const nib_fact_source *line = &lines->items[i];
        if (nib__line_is_int4(line) != int4)
            continue;
        nib__text_format(out, "    %-14s ", nib__line_name(line));
        nib__line_say(line, m, out);
        nib__text_format(out, "\n    %-14s   %s, ", "", line->source->date);
        if (line->derived != NULL)
            nib__text_format(out, "derived: %s; ", line->derived);
        nib__text_format(out, "%s\n", line->source->title);
    }
}

static void render_text_machine(const nib_machine *m, nib_text *out)
{
    nib_machine_lines lines;
    nib__machine_lines(&lines, m);
    if (m->threads != 0) /* the CPU that this runs on */
        nib__text_format(out, "%-16s %s, %s, %d thread%s\n", m->name, m->cpu,
                         nib__cpu_isa_name(m->facts.fact[NIB_FACT_ISA]), m->threads,
                         m->threads == 1 ? "" : "s");
    else
        nib__text_format(out, "%-16s %s, %s\n", m->name, nib__machine_title(m),
                         m->here ? "here" : "not here");
    nib__text_str(out, "  relevant for int4:\n");
    render_text_lines(&lines, m, true, out);
    nib__text_str(out, "  other facts:\n");
    if (m->host != NULL)
        nib__text_format(out, "    %-14s %s: layers may run there with --allow device\n", "host",
                         m->host->name);
    render_text_lines(&lines, m, false, out);
}

/* ---- JSON ---- */

static void write_json_sources(const nib_machine *m, nib_text *scratch, nib_jsonw *w)
{
    nib_machine_lines lines;
    nib__machine_lines(&lines, m);
    nib__jsonw_key(w, "sources");
    nib__jsonw_array(w);
    for (size_t i = 0; i < lines.count; i++) {
        const nib_fact_source *line = &lines.items[i];
        nib__text_clear(scratch);
        nib__line_say(line, m, scratch);
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "fact", nib__line_name(line));
        nib__jsonw_pair_string(w, "value", scratch->failed ? "" : scratch->at);
        nib__jsonw_pair_string(w, "date", line->source->date);
        nib__jsonw_pair_string(w, "source", line->source->title);
        nib__jsonw_pair_string(w, "derived", line->derived);
        nib__jsonw_pair_string(w, "address", line->source->address);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
}

static void write_json_machine(const nib_machine *m, nib_text *scratch, nib_jsonw *w)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "name", m->name);
    nib__jsonw_pair_string(w, "title", nib__machine_title(m));
    nib__jsonw_pair_bool(w, "here", m->here);
    nib__jsonw_pair_bool(w, "measured", m->measured);
    nib__jsonw_pair_string(w, "host", m->host != NULL ? m->host->name : NULL);
    nib__jsonw_pair_int(w, "memory", (int64_t)m->memory);
    nib__jsonw_pair_double(w, "bytes_per_s", m->bytes_per_s);
    nib__jsonw_key(w, "rates");
    nib__jsonw_object(w);
    for (int rate = NIB_RATE_UNITS; rate < NIB_RATE_COUNT; rate++)
        if (nib__machine_rate(m, rate) > 0)
            nib__jsonw_pair_double(w, nib__rate_names[rate], nib__machine_rate(m, rate));
    nib__jsonw_object_end(w);
    nib__jsonw_key(w, "facts");
    nib__jsonw_object(w);
    for (int f = NIB_FACT_DEVICE; f <= NIB_FACT_DRIVER; f++) {
        nib__text_clear(scratch);
        nib__fact_say((nib_fact)f, m->facts.fact[f], scratch);
        nib__jsonw_pair_string(w, nib__fact_info[f].key, scratch->failed ? "" : scratch->at);
    }
    nib__jsonw_object_end(w);
    write_json_sources(m, scratch, w);
    nib__jsonw_object_end(w);
}

static void render_json(const nib_machines_here *here, const nib_machines *known, nib_text *out)
{
    nib_jsonw w;
    nib_text scratch;
    nib__text_init(&scratch, out->allocator);
    nib__jsonw_report(&w, out);
    nib__jsonw_key(&w, "devices");
    nib__jsonw_array(&w);
    for (size_t i = 0; i < here->count; i++)
        write_json_machine(here->items[i], &scratch, &w);
    for (size_t i = 0; i < known->count; i++)
        write_json_machine(&known->items[i], &scratch, &w);
    nib__jsonw_array_end(&w);
    nib__jsonw_report_end(&w);
    out->failed = out->failed || scratch.failed;
    nib__text_free(&scratch);
}

/* ---- Markdown ---- */

static void render_markdown_lines(const nib_machine_lines *lines, const nib_machine *m, bool int4,
                                  nib_text *out)
{
    for (size_t i = 0; i < lines->count; i++) {
        const nib_fact_source *line = &lines->items[i];
        const nib_source *s = line->source;
        if (nib__line_is_int4(line) != int4)
            continue;
        nib__text_format(out, int4 ? "| **%s** | " : "| %s | ", nib__line_name(line));
        nib__line_say(line, m, out);
        nib__text_format(out, " | %s | ", s->date);
        if (line->derived != NULL)
            nib__text_format(out, "derived: %s; ", line->derived);
        if (s->address != NULL)
            nib__text_format(out, "[%s](%s) |\n", s->title, s->address);
        else
            nib__text_format(out, "%s |\n", s->title);
    }
}

static void render_markdown_machine(const nib_machine *m, nib_text *out)
{
    nib_machine_lines lines;
    nib__machine_lines(&lines, m);
    nib__text_format(out, "\n## %s\n\n%s.", m->name, nib__machine_title(m));
    if (m->host != NULL)
        nib__text_format(out, " Its host is `%s`.", m->host->name);
    nib__text_str(out, "\n\n| what | value | date | source |\n|---|---|---|---|\n");
    render_markdown_lines(&lines, m, true, out);
    render_markdown_lines(&lines, m, false, out);
}

static void render_markdown_table(const nib_machines *known, nib_text *out)
{
    nib__text_str(out,
                  "# Machines\n\nMachines that `--device` accepts, present or not: the files of "
                  "`machines/`. [devices.md](devices.md) tells how\nto add your own. Facts "
                  "that matter for int4 are in bold: dot products of 4 or 8 bits, matrix "
                  "units, bandwidth.\n\n"
                  "| machine | bandwidth | f32 | bf16 | int8 | fp8 | dot4 | dot8 | matrix "
                  "unit |\n|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < known->count; i++) {
        const nib_machine *m = &known->items[i];
        static const int rates[] = {NIB_RATE_BYTES, NIB_RATE_UNITS + NIB_UNIT_F32,
                                    NIB_RATE_UNITS + NIB_UNIT_BF16, NIB_RATE_UNITS + NIB_UNIT_I8,
                                    NIB_RATE_UNITS + NIB_UNIT_FP8};
        static const nib_fact facts[] = {NIB_FACT_DOT4, NIB_FACT_DOT8, NIB_FACT_MATRIX_UNIT};
        nib__text_format(out, "| [%s](#%s) | ", m->name, m->name);
        for (size_t r = 0; r < COUNT(rates); r++) {
            const nib_fact_source line = {.fact = NIB_FACT_COUNT, .rate = rates[r]};
            if (nib__machine_rate(m, rates[r]) > 0)
                nib__line_say(&line, m, out);
            else
                nib__text_str(out, "-");
            nib__text_str(out, " | ");
        }
        for (size_t f = 0; f < COUNT(facts); f++)
            nib__text_format(out, "%s%s", m->facts.fact[facts[f]] != 0 ? "yes" : "no",
                             f + 1 < COUNT(facts) ? " | " : " |\n");
    }
}

/* ---- entry points ---- */

void nib__devices_render(nib_form form, const nib_machines_here *here, const nib_machines *known,
                         nib_text *out)
{
    if (form == NIB_FORM_JSON) {
        render_json(here, known, out);
        return;
    }
    if (form == NIB_FORM_MARKDOWN)
        render_markdown_table(known, out);
    for (size_t i = 0; form == NIB_FORM_TEXT && i < here->count; i++) {
        nib__text_str(out, i == 0 ? "" : "\n");
        render_text_machine(here->items[i], out);
    }
    if (form == NIB_FORM_TEXT && here->missing[0] != 0)
        nib__text_format(out, "\n%s", here->missing);
    for (size_t i = 0; i < known->count; i++) {
        if (form == NIB_FORM_MARKDOWN) {
            render_markdown_machine(&known->items[i], out);
            continue;
        }
        nib__text_str(out, "\n");
        render_text_machine(&known->items[i], out);
    }
}

void nib__device_render(nib_form form, const nib_machine *m, nib_text *out)
{
    switch (form) {
    case NIB_FORM_JSON: nib__machine_write(m, out); break;
    case NIB_FORM_MARKDOWN: render_markdown_machine(m, out); break;
    default: render_text_machine(m, out); break;
    }
}

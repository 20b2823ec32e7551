/* SPDX-License-Identifier: Apache-2.0
 *
 * Machines as documentation: this one and the table's, each fact with its date and source, as text,
 * JSON or Markdown.
 */
#include "json.h"
#include "machine.h"

#include <stdio.h>

static const char *const unit_names[NIB_UNIT_COUNT] = {"f32", "bf16", "i8", "fp8", "mx8", "scalar"};

static const char *what_of(const nib_fact_source *s)
{
    return s->what != NULL ? s->what : nib__fact_info[s->fact].key;
}

static const char *say_rate(char out[32], double rate)
{
    if (rate >= 1e15)
        snprintf(out, 32, "%.2f P", rate / 1e15);
    else if (rate >= 1e12)
        snprintf(out, 32, "%.3g T", rate / 1e12);
    else
        snprintf(out, 32, "%.3g G", rate / 1e9);
    return out;
}

/* ---- text ---- */

static void text_here(const nib_machine *m, nib_text *out)
{
    char rate[32], bytes[32];
    nib__text_format(out, "%-16s %s, %s, %d thread%s\n", m->name, m->cpu,
                     nib__cpu_isa_name(m->facts.fact[NIB_FACT_ISA]), m->threads,
                     m->threads == 1 ? "" : "s");
    nib__text_str(out, "    isa            ");
    nib__fact_say(NIB_FACT_ISA, m->facts.fact[NIB_FACT_ISA], out);
    nib__text_format(out, "\n    memory         %s\n    bytes_per_s    %.1f GB/s\n",
                     nib__say_bytes(bytes, m->memory), m->bytes_per_s / 1e9);
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++)
        nib__text_format(out, "    %-14s %s operations/s\n", unit_names[unit],
                         say_rate(rate, m->rate[unit]));
    if (m->measured)
        nib__text_format(out, "    measured here, %s%s\n", m->measured_on,
                         m->disturbed ? ", while others used the cores: lower than true" : "");
    else
        nib__text_str(out, "    cautious rates, not measured\n");
}

static void text_machine(const nib_machine *m, nib_text *out)
{
    nib__text_format(out, "\n%-16s %s, not here\n", m->name, m->title);
    if (m->host != NULL)
        nib__text_format(out, "    %-14s %s: work may go there with --allow device\n", "host",
                         m->host->name);
    for (size_t i = 0; i < m->source_count; i++) {
        const nib_fact_source *s = &m->sources[i];
        nib__text_format(out, "    %-14s %s\n    %-14s   %s, %s\n", what_of(s), s->value, "",
                         s->date, s->source);
    }
}

/* ---- JSON ---- */

static void json_machine(const nib_machine *m, nib_text *scratch, nib_jsonw *w)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "name", m->name);
    nib__jsonw_pair_string(w, "title", m->here ? m->cpu : m->title);
    nib__jsonw_pair_bool(w, "here", m->here);
    nib__jsonw_pair_bool(w, "measured", m->measured);
    nib__jsonw_pair_string(w, "host", m->host != NULL ? m->host->name : NULL);
    nib__jsonw_pair_int(w, "memory", (int64_t)m->memory);
    nib__jsonw_pair_double(w, "bytes_per_s", m->bytes_per_s);
    nib__jsonw_key(w, "rates");
    nib__jsonw_object(w);
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++)
        if (m->rate[unit] > 0)
            nib__jsonw_pair_double(w, unit_names[unit], m->rate[unit]);
    nib__jsonw_object_end(w);
    nib__jsonw_key(w, "facts");
    nib__jsonw_object(w);
    for (int f = NIB_FACT_DEVICE; f <= NIB_FACT_DRIVER; f++) {
        nib__text_clear(scratch);
        nib__fact_say((nib_fact)f, m->facts.fact[f], scratch);
        nib__jsonw_pair_string(w, nib__fact_info[f].key, scratch->at);
    }
    nib__jsonw_object_end(w);
    nib__jsonw_key(w, "sources");
    nib__jsonw_array(w);
    for (size_t i = 0; i < m->source_count; i++) {
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "fact", what_of(&m->sources[i]));
        nib__jsonw_pair_string(w, "value", m->sources[i].value);
        nib__jsonw_pair_string(w, "date", m->sources[i].date);
        nib__jsonw_pair_string(w, "source", m->sources[i].source);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
    nib__jsonw_object_end(w);
}

static void render_json(const nib_machine *here, nib_text *out)
{
    nib_jsonw w;
    nib_text scratch;
    nib__text_init(&scratch, out->allocator);
    nib__jsonw_init(&w, out, 2);
    nib__jsonw_object(&w);
    nib__jsonw_pair_int(&w, "schema", 1);
    nib__jsonw_key(&w, "devices");
    nib__jsonw_array(&w);
    if (here != NULL)
        json_machine(here, &scratch, &w);
    for (size_t i = 0; i < nib__machine_count(); i++)
        json_machine(nib__machine_at(i), &scratch, &w);
    nib__jsonw_array_end(&w);
    nib__jsonw_object_end(&w);
    nib__text_str(out, "\n");
    out->failed = out->failed || scratch.failed;
    nib__text_free(&scratch);
}

/* ---- Markdown ---- */

static void markdown_machine(const nib_machine *m, nib_text *out)
{
    nib__text_format(out, "\n## %s\n\n%s.", m->name, m->title);
    if (m->host != NULL)
        nib__text_format(out, " Its host is `%s`.", m->host->name);
    nib__text_str(out, "\n\n| what | value | date | source |\n|---|---|---|---|\n");
    for (size_t i = 0; i < m->source_count; i++)
        nib__text_format(out, "| %s | %s | %s | %s |\n", what_of(&m->sources[i]),
                         m->sources[i].value, m->sources[i].date, m->sources[i].source);
}

void nib__devices_render(nib_form form, const nib_machine *here, nib_text *out)
{
    if (form == NIB_FORM_JSON) {
        render_json(here, out);
        return;
    }
    if (form == NIB_FORM_MARKDOWN)
        nib__text_str(
            out, "# Machines\n\nMachines that a plan may name with `--device`, present or not.\n");
    else if (here != NULL)
        text_here(here, out);
    for (size_t i = 0; i < nib__machine_count(); i++) {
        if (form == NIB_FORM_MARKDOWN)
            markdown_machine(nib__machine_at(i), out);
        else
            text_machine(nib__machine_at(i), out);
    }
}

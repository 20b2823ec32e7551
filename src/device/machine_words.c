/* SPDX-License-Identifier: Apache-2.0
 *
 * The facts and rates of a machine with their sources, as text and as a file. Lines of this machine
 * are made here from what was detected, with the machine itself as their source.
 */
#include "json.h"
#include "machine.h"

#include <stdio.h>

/* ---- lines ---- */

static void add_line(nib_machine_lines *out, nib_fact fact, int rate)
{
    out->items[out->count++] = (nib_fact_source){fact, rate, NULL, NULL, &out->here};
}

/* On this machine absent features are omitted, except basic facts and those that matter for
 * int4. */
static bool is_always_said(nib_fact fact)
{
    return fact == NIB_FACT_DEVICE || fact == NIB_FACT_MAKER || fact == NIB_FACT_DOT4 ||
           fact == NIB_FACT_DOT8 || fact == NIB_FACT_MATRIX_UNIT;
}

const char *nib__machine_title(const nib_machine *m) { return m->cpu[0] != 0 ? m->cpu : m->title; }

const char *nib__machine_rates(const nib_machine *m)
{
    return !m->here               ? "published rates"
           : m->product_count > 0 ? "measured kernels"
           : m->measured          ? "measured rates"
                                  : "cautious rates";
}

void nib__machine_lines(nib_machine_lines *out, const nib_machine *m)
{
    out->count = 0;
    if (!m->here) {
        memcpy(out->items, m->sources, m->source_count * sizeof *m->sources);
        out->count = m->source_count;
        return;
    }
    const char *how =
        !m->measured   ? "reported by the device; rates are cautious, not measured"
        : m->disturbed ? "measured here while other processes used the cores, so rates are too low"
                       : "reported by the device, and measured here";
    out->here = (nib_source){
        .key = "here", .title = how, .date = m->measured ? m->measured_on : out->today};
    nib__today(out->today);
    for (int fact = NIB_FACT_DEVICE; fact <= NIB_FACT_DRIVER; fact++)
        if (m->facts.fact[fact] != 0 || is_always_said((nib_fact)fact))
            add_line(out, (nib_fact)fact, 0);
    for (int rate = 0; rate < NIB_RATE_COUNT; rate++)
        if (nib__machine_rate(m, rate) > 0)
            add_line(out, NIB_FACT_COUNT, rate);
}

const char *nib__line_name(const nib_fact_source *line)
{
    return line->fact != NIB_FACT_COUNT ? nib__fact_info[line->fact].key
                                        : nib__rate_names[line->rate];
}

double nib__machine_rate(const nib_machine *m, int rate)
{
    switch (rate) {
    case NIB_RATE_BYTES: return m->bytes_per_s;
    case NIB_RATE_MEMORY: return (double)m->memory;
    case NIB_RATE_LAUNCH: return m->launch_s;
    case NIB_RATE_COPY: return m->copy_bytes_per_s;
    default: return m->rate[rate - NIB_RATE_UNITS];
    }
}

bool nib__line_is_int4(const nib_fact_source *line)
{
    return line->fact == NIB_FACT_DOT4 || line->fact == NIB_FACT_DOT8 ||
           line->fact == NIB_FACT_MATRIX_UNIT ||
           (line->fact == NIB_FACT_COUNT && line->rate == NIB_RATE_BYTES);
}

/* "22.6 T", "1.64 P": four digits and an SI prefix */
static void append_scaled(double value, const char *unit, nib_text *out)
{
    const char *const prefix = value >= 1e15 ? "P" : value >= 1e12 ? "T" : "G";
    const double scale = value >= 1e15 ? 1e15 : value >= 1e12 ? 1e12 : 1e9;
    nib__text_format(out, "%.4g %s%s", value / scale, prefix, unit);
}

static void append_rate(int rate, double value, nib_text *out)
{
    if (rate == NIB_RATE_BYTES || rate == NIB_RATE_COPY)
        append_scaled(value, "B/s", out);
    else if (rate == NIB_RATE_MEMORY)
        nib__text_format(out, "%.4g GiB", value / (1024.0 * 1024 * 1024));
    else if (rate == NIB_RATE_LAUNCH)
        nib__text_format(out, "%.3g us", value * 1e6);
    else
        append_scaled(value,
                      rate == NIB_RATE_UNITS + NIB_UNIT_I8 || rate == NIB_RATE_UNITS + NIB_UNIT_DOT8
                          ? "OP/s"
                          : "FLOP/s",
                      out);
}

void nib__line_say(const nib_fact_source *line, const nib_machine *m, nib_text *out)
{
    const bool is_flag =
        line->fact != NIB_FACT_COUNT && nib__fact_info[line->fact].kind == NIB_KIND_FLAG;
    if (line->fact != NIB_FACT_COUNT)
        nib__fact_say(line->fact, m->facts.fact[line->fact], out);
    else
        append_rate(line->rate, nib__machine_rate(m, line->rate), out);
    if (line->words != NULL)
        nib__text_format(out, is_flag ? ": %s" : " (%s)", line->words);
}

/* ---- the file ---- */

static void write_sources(const nib_machine_lines *lines, nib_jsonw *w)
{
    nib__jsonw_key(w, "sources");
    nib__jsonw_object(w);
    for (size_t i = 0; i < lines->count; i++) {
        const nib_source *s = lines->items[i].source;
        size_t first = 0;
        while (lines->items[first].source != s)
            first++;
        if (first != i)
            continue;
        nib__jsonw_key(w, s->key);
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "title", s->title);
        nib__jsonw_pair_string(w, "date", s->date);
        if (s->address != NULL)
            nib__jsonw_pair_string(w, "address", s->address);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_object_end(w);
}

static void write_set(const char *const *names, int64_t set, nib_jsonw *w)
{
    nib__jsonw_array(w);
    for (int bit = 0; names[bit] != NULL; bit++)
        if ((set >> bit & 1) != 0)
            nib__jsonw_string(w, names[bit]);
    nib__jsonw_array_end(w);
}

/* Large numbers as people write them: 22.6e12. */
static void write_number(double value, nib_jsonw *w)
{
    nib_text text;
    nib__text_init(&text, w->text->allocator);
    nib__text_double(&text, value / (value >= 1e12 ? 1e12 : 1e9));
    nib__text_str(&text, value >= 1e12 ? "e12" : "e9");
    if (!text.failed)
        nib__jsonw_number(w, text.at);
    w->text->failed = w->text->failed || text.failed;
    nib__text_free(&text);
}

static void write_value(const nib_fact_source *line, const nib_machine *m, nib_jsonw *w)
{
    if (line->fact == NIB_FACT_COUNT) {
        const double rate = nib__machine_rate(m, line->rate);
        if (line->rate == NIB_RATE_MEMORY || rate < 1e9)
            nib__jsonw_double(w, rate);
        else
            write_number(rate, w);
        return;
    }
    const nib_fact_info *info = &nib__fact_info[line->fact];
    const int64_t value = m->facts.fact[line->fact];
    switch (info->kind) {
    case NIB_KIND_FLAG: nib__jsonw_bool(w, value != 0); break;
    case NIB_KIND_INT: nib__jsonw_int(w, value); break;
    case NIB_KIND_SET: write_set(info->names, value, w); break;
    case NIB_KIND_ENUM: nib__jsonw_string(w, info->names[value]); break;
    }
}

/* Each fact or rate becomes a line of the file. */
static void write_lines(const nib_machine_lines *lines, const nib_machine *m, bool rates,
                        nib_jsonw *w)
{
    const int indent = w->indent;
    nib__jsonw_key(w, rates ? "rates" : "facts");
    nib__jsonw_object(w);
    for (size_t i = 0; i < lines->count; i++) {
        const nib_fact_source *line = &lines->items[i];
        if ((line->fact == NIB_FACT_COUNT) != rates)
            continue;
        nib__jsonw_key(w, nib__line_name(line));
        w->indent = 0;
        nib__jsonw_object(w);
        nib__jsonw_key(w, "value");
        write_value(line, m, w);
        if (line->words != NULL)
            nib__jsonw_pair_string(w, "words", line->words);
        if (line->derived != NULL)
            nib__jsonw_pair_string(w, "derived", line->derived);
        nib__jsonw_pair_string(w, "source", line->source->key);
        nib__jsonw_object_end(w);
        w->indent = indent;
    }
    nib__jsonw_object_end(w);
}

void nib__machine_write(const nib_machine *m, nib_text *out)
{
    nib_machine_lines lines;
    nib_jsonw w;
    nib__machine_lines(&lines, m);
    nib__jsonw_report(&w, out);
    nib__jsonw_pair_string(&w, "title", nib__machine_title(m));
    if (m->host != NULL && !m->host->here)
        nib__jsonw_pair_string(&w, "host", m->host->name);
    write_sources(&lines, &w);
    write_lines(&lines, m, false, &w);
    write_lines(&lines, m, true, &w);
    nib__jsonw_report_end(&w);
}

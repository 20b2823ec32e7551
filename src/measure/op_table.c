/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables of operations and their times.
 */
#include "op_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *nib__layer_kind(const nib_network *net, size_t site)
{
    if (site == SIZE_MAX)
        return "";
    switch (net->sites[site].role) {
    case NIB_ROLE_HEAD: return "output";
    case NIB_ROLE_GATE:
    case NIB_ROLE_UP:
    case NIB_ROLE_DOWN:
    case NIB_ROLE_ROUTER: return "mlp";
    case NIB_ROLE_OTHER: return "inputs";
    default: return "attention";
    }
}

static bool same_line(const nib_op_line *a, const nib_op_line *b)
{
    return strcmp(a->name, b->name) == 0 && strcmp(a->layers, b->layers) == 0 &&
           strcmp(a->device, b->device) == 0 && a->peak == b->peak;
}

void nib__op_table_add(nib_op_table *t, const nib_op_line *line)
{
    size_t i = 0;
    while (i < t->count && !same_line(&t->lines[i], line))
        i++;
    if (i == NIB_OP_LINES)
        return;
    if (i == t->count) {
        t->lines[t->count++] = *line;
        return;
    }
    t->lines[i].seconds += line->seconds;
    t->lines[i].operations += line->operations;
    t->lines[i].bytes += line->bytes;
}

static int by_time(const void *a, const void *b)
{
    const nib_op_line *x = a, *y = b;
    return x->seconds > y->seconds ? -1 : x->seconds < y->seconds;
}

void nib__op_table_sort(nib_op_table *t) { qsort(t->lines, t->count, sizeof *t->lines, by_time); }

/* Per second. */
static double rate_of(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

static double share_of(double rate, double of) { return of > 0 ? rate / of : 0; }

/* "123.4  56 %", or dashes for what is not counted. */
static void write_rate(nib_text *text, double rate, double of, bool markdown)
{
    const double share = share_of(rate, of);
    if (rate <= 0)
        nib__text_str(text, markdown ? " | |" : "         -       -");
    else if (share <= 0)
        nib__text_format(text, markdown ? " %.1f | |" : "  %8.1f       -", rate * 1e-9);
    else if (markdown)
        nib__text_format(text, " %.1f | %.0f %% |", rate * 1e-9, 100 * share);
    else
        nib__text_format(text, "  %8.1f  %4.0f %%", rate * 1e-9, 100 * share);
}

void nib__op_table_text(const nib_op_table *t, bool markdown, nib_text *text)
{
    char heading[32];
    snprintf(heading, sizeof heading, markdown ? "ms per %s" : "ms/%s", t->each);
    nib__text_format(
        text,
        markdown ? "| %s | %s | %s | share | G operations/s | of the measured rate | GB/s | "
                   "of the measured bandwidth |\n|---|---|---|---|---|---|---|---|\n"
                 : "\n%-18s %-10s %9s   share   G ops/s   of it      GB/s   of it\n",
        "operation", "layers", heading);
    for (size_t i = 0; i < t->count; i++) {
        const nib_op_line *l = &t->lines[i];
        nib__text_format(
            text, markdown ? "| %s | %s | %.2f | %.1f %% |" : "%-18s %-10s %9.2f %5.1f %%", l->name,
            l->layers, l->seconds * 1e3, 100 * share_of(l->seconds, t->seconds));
        write_rate(text, rate_of(l->operations, l->seconds), l->peak, markdown);
        write_rate(text, rate_of(l->bytes, l->seconds), l->bandwidth, markdown);
        nib__text_str(text, "\n");
    }
}

void nib__op_table_json(const nib_op_table *t, nib_jsonw *w)
{
    nib__jsonw_array(w);
    for (size_t i = 0; i < t->count; i++) {
        const nib_op_line *l = &t->lines[i];
        const double operations = rate_of(l->operations, l->seconds),
                     bytes = rate_of(l->bytes, l->seconds);
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "operation", l->name);
        nib__jsonw_pair_string(w, "layers", l->layers[0] != '\0' ? l->layers : NULL);
        nib__jsonw_pair_string(w, "device", l->device);
        nib__jsonw_pair_double(w, "seconds", l->seconds);
        nib__jsonw_pair_double(w, "share", share_of(l->seconds, t->seconds));
        nib__jsonw_pair_double(w, "gop_per_s", operations * 1e-9);
        nib__jsonw_pair_double(w, "arithmetic_share", share_of(operations, l->peak));
        nib__jsonw_pair_double(w, "gb_per_s", bytes * 1e-9);
        nib__jsonw_pair_double(w, "bandwidth_share", share_of(bytes, l->bandwidth));
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
}

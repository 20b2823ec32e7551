/* SPDX-License-Identifier: Apache-2.0
 *
 * The frontier as SVG: speed to the right, cost upwards, memory as the area of a circle. Circles
 * have the numbers of legend rows, because names of neighbours would overlap.
 */
#include "advise.h"

#include "svg.h"

#include <math.h>
#include <stdio.h>

static const char style[] = "circle { stroke: #2f81f7; stroke-width: 1.5 }\n"
                            ".frontier { fill: #2f81f7; fill-opacity: 0.35 }\n"
                            ".beaten_by { fill: none; stroke-opacity: 0.5 }\n"
                            ".rounded { fill: none; stroke-width: 2.5 }\n"
                            ".out { fill: none; stroke: #e5484d; stroke-dasharray: 3 2 }\n"
                            ".taken { fill: #1fa35b; fill-opacity: 0.6; stroke: #1fa35b }\n";

/* The plotted cost: nats, or percent. */
static double height_of(const nib_advice *v, const nib_advised *c)
{
    return v->losses ? c->loss : 100 * c->error;
}

static bool is_drawn(const nib_advice *v, const nib_advised *c)
{
    return isfinite(height_of(v, c)) && isfinite(nib__advised_speed(v, c));
}

static void find_axes(nib_svg *d, const nib_advice *v)
{
    double x = 0, y[2] = {INFINITY, -INFINITY};
    for (size_t i = 0; i < v->count; i++) {
        const nib_advised *c = &v->items[i];
        if (!is_drawn(v, c))
            continue;
        x = fmax(x, nib__advised_speed(v, c));
        y[0] = fmin(y[0], height_of(v, c));
        y[1] = fmax(y[1], height_of(v, c));
    }
    d->x = nib__svg_axis(0, x, true);
    d->y = y[0] <= y[1] ? nib__svg_axis(y[0], y[1], true) : nib__svg_axis(0, 1, true);
}

static const char *class_of(const nib_advice *v, const nib_advised *c)
{
    if (!nib__advised_counts(c))
        return "out";
    if (v->taken >= 0 && c == &v->items[v->taken])
        return "taken";
    if (c->beaten_by == NIB_UNBEATEN)
        return "frontier";
    return c->round_frontier ? "rounded" : "behind";
}

static void put_circle(nib_text *out, const char *class, double x, double y, double radius)
{
    nib__text_format(out, "<circle class=\"%s\" cx=\"", class);
    nib__svg_place(out, x);
    nib__text_str(out, "\" cy=\"");
    nib__svg_place(out, y);
    nib__text_str(out, "\" r=\"");
    nib__svg_place(out, radius);
    nib__text_str(out, "\"/>\n");
}

static void draw_point(const nib_svg *d, const nib_advice *v, size_t i, double most_bytes)
{
    const double largest = 14, edge = 3;
    const nib_advised *c = &v->items[i];
    const double x = nib__svg_x(d, nib__advised_speed(v, c)), y = nib__svg_y(d, height_of(v, c)),
                 radius = largest * sqrt((double)c->bytes / most_bytes);
    put_circle(d->out, class_of(v, c), x, y, radius);
    nib__svg_text(d->out, x + radius + edge, y + 4, "start");
    nib__text_format(d->out, "%zu</text>\n", i);
}

/* "3  int4wo-g64: 2.7 MB, 12,000 tokens/s, 3.8694" */
static void draw_legend(const nib_svg *d, const nib_advice *v, size_t i)
{
    const nib_advised *c = &v->items[i];
    const double y = nib__svg_row(i);
    char line[256], bytes[32], speed[32], cost[48] = "not run";
    put_circle(d->out, class_of(v, c), NIB_SVG_LEFT + 6, y, 5);
    nib__svg_text(d->out, NIB_SVG_LEFT + 20, y + 4, "start");
    if (isfinite(height_of(v, c)))
        nib__format(cost, sizeof cost, v->losses ? "loss %.4f" : "error %.2f %%", height_of(v, c));
    nib__format_count(speed, (uint64_t)(is_drawn(v, c) ? nib__advised_speed(v, c) + 0.5 : 0));
    snprintf(line, sizeof line, "%zu  %.64s: %s, %s tokens/s, %s%s", i, c->name,
             nib__format_bytes(bytes, c->bytes), is_drawn(v, c) ? speed : "-", cost,
             c->inapplicable                                     ? "; not applicable"
             : c->problem                                        ? "; not as asked"
             : c->over != 0                                      ? "; does not fit"
             : (int)i == v->taken                                ? "; taken"
             : c->round_frontier && c->beaten_by != NIB_UNBEATEN ? "; frontier without methods"
                                                                 : "");
    nib__svg_escaped(d->out, line, sizeof line);
    nib__text_str(d->out, "</text>\n");
}

void nib__advise_draw(const nib_advice *v, nib_text *out)
{
    nib_svg d = {.out = out};
    double most_bytes = 1;
    char speed[64];
    for (size_t i = 0; i < v->count; i++)
        most_bytes = fmax(most_bytes, (double)v->items[i].bytes);
    snprintf(speed, sizeof speed, "tokens/s, %s, %s",
             v->options->by_prefill ? "prompt" : "decoding", v->speeds ? "measured" : "predicted");
    find_axes(&d, v);
    nib__svg_begin(out, v->base->machine.name, ": recipes by speed, loss and memory", style,
                   v->count);
    nib__svg_axes(&d, speed,
                  v->losses ? "loss, nats per token" : "error of a product, estimated, %");
    for (size_t i = 0; i < v->count; i++)
        if (is_drawn(v, &v->items[i]))
            draw_point(&d, v, i, most_bytes);
    for (size_t i = 0; i < v->count; i++)
        draw_legend(&d, v, i);
    nib__text_str(out, "</svg>\n");
}

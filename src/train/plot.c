/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws curves as SVG.
 */
#include "plot.h"

#include "svg.h"

#include <inttypes.h>
#include <math.h>

/* Medium lightness, visible on white and on black. Further runs repeat the colours with dashes. */
static const char *const colours[] = {"#2f81f7", "#e8710a", "#1fa35b", "#d63f8c",
                                      "#8b5cf6", "#0e9aa7", "#b58a00", "#e5484d"};
static const char *const dashes[] = {"", " stroke-dasharray=\"7 3\"", " stroke-dasharray=\"2 3\""};
_Static_assert(NIB_PLOT_RUNS <= COUNT(colours) * COUNT(dashes), "every run has a line of its own");

static const char style[] =
    "polyline { fill: none; stroke-linejoin: round; stroke-linecap: round }\n"
    ".curve { stroke-width: 2 }\n"
    ".raw { stroke-width: 1; stroke-opacity: 0.35 }\n";

/* ---- curves ---- */

/* Points within half a pixel of each other are drawn as their mean. */
static void draw_curve(const nib_svg *d, const nib_curve *c, size_t index, const char *class)
{
    nib_text *out = d->out;
    nib__text_format(out, "<polyline class=\"%s\" stroke=\"%s\"%s points=\"", class,
                     colours[index % COUNT(colours)], dashes[index / COUNT(colours)]);
    for (size_t i = 0; i < c->count;) {
        const double column = floor(2 * nib__svg_x(d, c->x[i]));
        double x = 0, y = 0, some = 0;
        for (; i < c->count && floor(2 * nib__svg_x(d, c->x[i])) == column; i++, some++) {
            x += c->x[i];
            y += c->y[i];
        }
        nib__svg_place(out, nib__svg_x(d, x / some));
        nib__text_str(out, ",");
        nib__svg_place(out, nib__svg_y(d, y / some));
        nib__text_str(out, i < c->count ? " " : "");
    }
    nib__text_str(out, "\"/>\n");
}

/* Replaces each point by the mean of the last `window` points up to it. */
static nib_status smooth_curve(nib_curve *out, const nib_curve *c, int64_t window, nib_arena *arena,
                               nib_err *err)
{
    *out = *c;
    out->y = nib__arena_take(arena, c->count, sizeof *out->y);
    if (!out->y)
        return nib__fail_memory(err, c->count * sizeof *out->y, "a smoothed curve");
    for (size_t i = 0; i < c->count; i++) {
        const size_t first = i + 1 > (size_t)window ? i + 1 - (size_t)window : 0;
        double sum = 0;
        for (size_t j = first; j <= i; j++)
            sum += c->y[j];
        out->y[i] = sum / (double)(i + 1 - first);
    }
    return NIB_OK;
}

static void draw_legend(nib_text *out, const nib_curve *c, size_t index)
{
    const double y = nib__svg_row(index);
    nib__text_format(out, "<polyline class=\"curve\" stroke=\"%s\"%s points=\"%d,",
                     colours[index % COUNT(colours)], dashes[index / COUNT(colours)], NIB_SVG_LEFT);
    nib__svg_place(out, y);
    nib__text_format(out, " %d,", NIB_SVG_LEFT + 28);
    nib__svg_place(out, y);
    nib__text_str(out, "\"/>\n");
    nib__svg_text(out, NIB_SVG_LEFT + 36, y + 4, "start");
    nib__svg_escaped(out, c->name, NIB_SVG_NAME);
    const double last = c->y[c->count - 1];
    double parts = 1e4; /* 4 decimals, and 4 digits of small values such as a rate */
    while (last != 0 && fabs(last) * parts < 1000 && parts < 1e300)
        parts *= 10;
    nib__text_str(out, ": ");
    nib__svg_number(out, floor(last * parts + 0.5) / parts);
    nib__text_str(out, " at step ");
    nib__svg_number(out, c->x[c->count - 1]);
    nib__text_str(out, "</text>\n");
}

/* ---- the whole ---- */

static void find_axes(nib_svg *d, const nib_curve *curves, size_t count)
{
    double x[2] = {INFINITY, -INFINITY}, y[2] = {INFINITY, -INFINITY};
    for (size_t c = 0; c < count; c++)
        for (size_t i = 0; i < curves[c].count; i++) {
            x[0] = fmin(x[0], curves[c].x[i]);
            x[1] = fmax(x[1], curves[c].x[i]);
            y[0] = fmin(y[0], curves[c].y[i]);
            y[1] = fmax(y[1], curves[c].y[i]);
        }
    d->x = nib__svg_axis(x[0] <= 0.1 * x[1] ? 0 : x[0], x[1], false);
    d->y = nib__svg_axis(y[0], y[1], true);
}

nib_status nib__plot_draw(nib_text *out, const nib_curve *curves, size_t count, const char *value,
                          int64_t smooth, nib_arena *arena, nib_err *err)
{
    nib_svg d = {.out = out};
    find_axes(&d, curves, count);
    nib__svg_begin(out, value, " over steps", style, count);
    nib__svg_axes(&d, "step", value);
    for (size_t i = 0; i < count && smooth > 1; i++)
        draw_curve(&d, &curves[i], i, "raw");
    for (size_t i = 0; i < count; i++) {
        nib_curve shown = curves[i];
        if (smooth > 1)
            NIB_TRY(smooth_curve(&shown, &curves[i], smooth, arena, err));
        draw_curve(&d, &shown, i, "curve");
        draw_legend(out, &shown, i);
    }
    nib__text_str(out, "</svg>\n");
    return out->failed ? nib__fail_memory(err, out->size, "the plot") : NIB_OK;
}

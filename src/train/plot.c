/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws curves as SVG. Colours are set by classes, so that the same file is read on light and on
 * dark paper.
 */
#include "plot.h"

#include <inttypes.h>
#include <math.h>

enum {
    WIDTH = 860,
    LEFT = 84,
    RIGHT = 24,
    TOP = 20,
    PLOT_HEIGHT = 400,
    BELOW = 58, /* of the plot: numbers and what they count */
    ROW = 20,   /* of the legend */
    TICKS = 6,  /* about so many */
    NAME = 64,  /* characters of a run's name */
};

/* Of middling lightness: seen on white and on black. Further runs repeat them in dashes. */
static const char *const colours[] = {"#2f81f7", "#e8710a", "#1fa35b", "#d63f8c",
                                      "#8b5cf6", "#0e9aa7", "#b58a00", "#e5484d"};
static const char *const dashes[] = {"", " stroke-dasharray=\"7 3\"", " stroke-dasharray=\"2 3\""};
_Static_assert(NIB_PLOT_RUNS <= COUNT(colours) * COUNT(dashes), "every run has a line of its own");

typedef struct axis {
    double least, most;  /* of what is drawn */
    double step;         /* between ticks */
    int64_t first, last; /* ticks, in steps */
} axis;

typedef struct drawing {
    nib_text *out;
    axis x, y;
} drawing;

/* ---- numbers and text ---- */

/* In hundredths, without a decimal point that a locale could change. */
static void put_place(nib_text *out, double at)
{
    const int64_t hundredths = (int64_t)floor(at * 100 + 0.5);
    nib__text_format(out, "%" PRId64, hundredths / 100);
    if (hundredths % 100 != 0)
        nib__text_format(out, ".%02" PRId64, hundredths % 100);
}

/* Whole, or rounded to what a float tells apart: 0.6 rather than 0.6000000000000001. */
static void put_number(nib_text *out, double value)
{
    if (fabs(value) < 1e15 && floor(value) == value)
        nib__text_format(out, "%" PRId64, (int64_t)value);
    else
        nib__text_double(out, fabs(value) < 1e38 ? (double)(float)value : value);
}

/* Of a tick: 20G for 20,000,000,000, so that it has room beside the axis. */
static void put_tick(nib_text *out, double value)
{
    static const struct {
        double times;
        const char *letter;
    } units[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1, ""}};
    size_t i = 0;
    while (i + 1 < COUNT(units) && fabs(value) < units[i].times)
        i++;
    put_number(out, value / units[i].times);
    nib__text_str(out, units[i].letter);
}

/* Text of others as XML: what it may not hold becomes U+FFFD; at most `most` characters. */
static void put_escaped(nib_text *out, const char *text, size_t most)
{
    static const char replacement[] = "\xef\xbf\xbd";
    size_t size = strlen(text);
    for (size_t i = 0; i < size && most > 0; most--) {
        const int length = nib__utf8_length(text + i, size - i);
        const unsigned char c = (unsigned char)text[i];
        if (most == 1 && i + (size_t)(length ? length : 1) < size)
            nib__text_str(out, "\xe2\x80\xa6"); /* an ellipsis */
        else if (c == '&')
            nib__text_str(out, "&amp;");
        else if (c == '<')
            nib__text_str(out, "&lt;");
        else if (c == '>')
            nib__text_str(out, "&gt;");
        else if (length == 0 || c < 0x20 || strncmp(text + i, "\xef\xbf\xbe", 3) == 0 ||
                 strncmp(text + i, "\xef\xbf\xbf", 3) == 0)
            nib__text_str(out, replacement);
        else
            nib__text_put(out, text + i, (size_t)length);
        i += (size_t)(length ? length : 1);
    }
}

/* ---- axes ---- */

/* 1, 2 or 5 times a power of ten, the least with about so many ticks. */
static double round_step(double range)
{
    static const double factors[] = {1, 2, 5, 10};
    const double wanted = range / TICKS;
    double power = 1;
    while (power > wanted)
        power /= 10;
    while (power * 10 <= wanted)
        power *= 10;
    size_t i = 0;
    while (i + 1 < COUNT(factors) && factors[i] * power < wanted)
        i++;
    return factors[i] * power;
}

/* grow: the ends become ticks. */
static axis make_axis(double least, double most, bool grow)
{
    if (most - least < 1e-300) { /* one value: something around it */
        const double around = fabs(least) > 1e-250 ? fabs(least) * 0.1 : 1;
        least -= around;
        most += around;
    }
    axis a = {.least = least, .most = most, .step = round_step(most - least)};
    a.first = (int64_t)(grow ? floor(least / a.step) : ceil(least / a.step));
    a.last = (int64_t)(grow ? ceil(most / a.step) : floor(most / a.step));
    if (grow) {
        a.least = (double)a.first * a.step;
        a.most = (double)a.last * a.step;
    }
    return a;
}

static double x_place(const drawing *d, double x)
{
    return LEFT + (x - d->x.least) / (d->x.most - d->x.least) * (WIDTH - LEFT - RIGHT);
}

static double y_place(const drawing *d, double y)
{
    return TOP + (d->y.most - y) / (d->y.most - d->y.least) * PLOT_HEIGHT;
}

static void put_line(nib_text *out, double x1, double y1, double x2, double y2)
{
    nib__text_str(out, "<line class=\"grid\" x1=\"");
    put_place(out, x1);
    nib__text_str(out, "\" y1=\"");
    put_place(out, y1);
    nib__text_str(out, "\" x2=\"");
    put_place(out, x2);
    nib__text_str(out, "\" y2=\"");
    put_place(out, y2);
    nib__text_str(out, "\"/>\n");
}

static void begin_text(nib_text *out, double x, double y, const char *anchor)
{
    nib__text_str(out, "<text x=\"");
    put_place(out, x);
    nib__text_str(out, "\" y=\"");
    put_place(out, y);
    nib__text_format(out, "\" text-anchor=\"%s\">", anchor);
}

static void draw_axes(const drawing *d, const char *value)
{
    nib_text *out = d->out;
    for (int64_t i = d->y.first; i <= d->y.last; i++) {
        const double at = y_place(d, (double)i * d->y.step);
        put_line(out, LEFT, at, WIDTH - RIGHT, at);
        begin_text(out, LEFT - 8, at + 4, "end");
        put_tick(out, (double)i * d->y.step);
        nib__text_str(out, "</text>\n");
    }
    for (int64_t i = d->x.first; i <= d->x.last; i++) {
        const double at = x_place(d, (double)i * d->x.step);
        put_line(out, at, TOP, at, TOP + PLOT_HEIGHT);
        begin_text(out, at, TOP + PLOT_HEIGHT + 18, "middle");
        put_tick(out, (double)i * d->x.step);
        nib__text_str(out, "</text>\n");
    }
    begin_text(out, (LEFT + WIDTH - RIGHT) / 2.0, TOP + PLOT_HEIGHT + 38, "middle");
    nib__text_str(out, "step</text>\n");
    nib__text_format(out, "<text x=\"16\" y=\"%d\" text-anchor=\"middle\" ", TOP + PLOT_HEIGHT / 2);
    nib__text_format(out, "transform=\"rotate(-90 16 %d)\">", TOP + PLOT_HEIGHT / 2);
    put_escaped(out, value, NAME);
    nib__text_str(out, "</text>\n");
}

/* ---- curves ---- */

/* Points that fall within half a pixel of each other become their mean. */
static void draw_curve(const drawing *d, const nib_curve *c, size_t index, const char *class)
{
    nib_text *out = d->out;
    nib__text_format(out, "<polyline class=\"%s\" stroke=\"%s\"%s points=\"", class,
                     colours[index % COUNT(colours)], dashes[index / COUNT(colours)]);
    for (size_t i = 0; i < c->count;) {
        const double column = floor(2 * x_place(d, c->x[i]));
        double x = 0, y = 0, some = 0;
        for (; i < c->count && floor(2 * x_place(d, c->x[i])) == column; i++, some++) {
            x += c->x[i];
            y += c->y[i];
        }
        put_place(out, x_place(d, x / some));
        nib__text_str(out, ",");
        put_place(out, y_place(d, y / some));
        nib__text_str(out, i < c->count ? " " : "");
    }
    nib__text_str(out, "\"/>\n");
}

/* Each point the mean of the last `window` points up to it. */
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
    const double y = TOP + PLOT_HEIGHT + BELOW + (double)index * ROW;
    nib__text_format(out, "<polyline class=\"curve\" stroke=\"%s\"%s points=\"%d,",
                     colours[index % COUNT(colours)], dashes[index / COUNT(colours)], LEFT);
    put_place(out, y);
    nib__text_format(out, " %d,", LEFT + 28);
    put_place(out, y);
    nib__text_str(out, "\"/>\n");
    begin_text(out, LEFT + 36, y + 4, "start");
    put_escaped(out, c->name, NAME);
    const double last = c->y[c->count - 1];
    double parts = 1e4; /* of 1: four places, and four digits of what is small, such as a rate */
    while (last != 0 && fabs(last) * parts < 1000 && parts < 1e300)
        parts *= 10;
    nib__text_str(out, ": ");
    put_number(out, floor(last * parts + 0.5) / parts);
    nib__text_str(out, " at step ");
    put_number(out, c->x[c->count - 1]);
    nib__text_str(out, "</text>\n");
}

/* ---- the whole ---- */

static void find_axes(drawing *d, const nib_curve *curves, size_t count)
{
    double x[2] = {INFINITY, -INFINITY}, y[2] = {INFINITY, -INFINITY};
    for (size_t c = 0; c < count; c++)
        for (size_t i = 0; i < curves[c].count; i++) {
            x[0] = fmin(x[0], curves[c].x[i]);
            x[1] = fmax(x[1], curves[c].x[i]);
            y[0] = fmin(y[0], curves[c].y[i]);
            y[1] = fmax(y[1], curves[c].y[i]);
        }
    d->x = make_axis(x[0] <= 0.1 * x[1] ? 0 : x[0], x[1], false);
    d->y = make_axis(y[0], y[1], true);
}

static void draw_head(nib_text *out, size_t count, const char *value)
{
    const int height = TOP + PLOT_HEIGHT + BELOW + ROW * (int)count;
    nib__text_format(out,
                     "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                     "viewBox=\"0 0 %d %d\" role=\"img\">\n<title>",
                     WIDTH, height, WIDTH, height);
    put_escaped(out, value, NAME);
    nib__text_str(out, " over steps</title>\n"
                       "<style>\n"
                       ".paper { fill: #ffffff }\n"
                       "text { fill: #1f2328; font: 13px sans-serif }\n"
                       ".grid { stroke: #d1d9e0; stroke-width: 1 }\n"
                       "polyline { fill: none; stroke-linejoin: round; stroke-linecap: round }\n"
                       ".curve { stroke-width: 2 }\n"
                       ".raw { stroke-width: 1; stroke-opacity: 0.35 }\n"
                       "@media (prefers-color-scheme: dark) {\n"
                       ".paper { fill: #0d1117 }\n"
                       "text { fill: #e6edf3 }\n"
                       ".grid { stroke: #30363d }\n"
                       "}\n"
                       "</style>\n");
    nib__text_format(out, "<rect class=\"paper\" width=\"%d\" height=\"%d\"/>\n", WIDTH, height);
}

nib_status nib__plot_draw(nib_text *out, const nib_curve *curves, size_t count, const char *value,
                          int64_t smooth, nib_arena *arena, nib_err *err)
{
    drawing d = {.out = out};
    find_axes(&d, curves, count);
    draw_head(out, count, value);
    draw_axes(&d, value);
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

/* SPDX-License-Identifier: Apache-2.0
 *
 * The common parts of plots as SVG.
 */
#include "svg.h"

#include <inttypes.h>
#include <math.h>

enum { TICKS = 6 /* about */ };

/* ---- numbers and text ---- */

/* Writes hundredths as integers, because the decimal point depends on the locale. */
void nib__svg_place(nib_text *out, double at)
{
    const int64_t hundredths = (int64_t)floor(at * 100 + 0.5);
    nib__text_format(out, "%" PRId64, hundredths / 100);
    if (hundredths % 100 != 0)
        nib__text_format(out, ".%02" PRId64, hundredths % 100);
}

void nib__svg_number(nib_text *out, double value)
{
    if (fabs(value) < 1e15 && floor(value) == value)
        nib__text_format(out, "%" PRId64, (int64_t)value);
    else
        nib__text_double(out, fabs(value) < 1e38 ? (double)(float)value : value);
}

/* The number of a tick, short enough for the margin: 20G for 20,000,000,000. */
static void put_tick(nib_text *out, double value)
{
    static const struct {
        double times;
        const char *letter;
    } units[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1, ""}};
    size_t i = 0;
    while (i + 1 < COUNT(units) && fabs(value) < units[i].times)
        i++;
    nib__svg_number(out, value / units[i].times);
    nib__text_str(out, units[i].letter);
}

void nib__svg_escaped(nib_text *out, const char *text, size_t most)
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

/* 1, 2 or 5 times a power of ten, the smallest that gives at most about TICKS ticks. */
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

nib_svg_axis nib__svg_axis(double least, double most, bool grow)
{
    if (most - least < 1e-300) { /* a single value: add a margin */
        const double around = fabs(least) > 1e-250 ? fabs(least) * 0.1 : 1;
        least -= around;
        most += around;
    }
    nib_svg_axis a = {.least = least, .most = most, .step = round_step(most - least)};
    a.first = (int64_t)(grow ? floor(least / a.step) : ceil(least / a.step));
    a.last = (int64_t)(grow ? ceil(most / a.step) : floor(most / a.step));
    if (grow) {
        a.least = (double)a.first * a.step;
        a.most = (double)a.last * a.step;
    }
    return a;
}

double nib__svg_x(const nib_svg *d, double x)
{
    return NIB_SVG_LEFT + (x - d->x.least) / (d->x.most - d->x.least) *
                              (NIB_SVG_WIDTH - NIB_SVG_LEFT - NIB_SVG_RIGHT);
}

double nib__svg_y(const nib_svg *d, double y)
{
    return NIB_SVG_TOP + (d->y.most - y) / (d->y.most - d->y.least) * NIB_SVG_PLOT;
}

double nib__svg_row(size_t index)
{
    return NIB_SVG_TOP + NIB_SVG_PLOT + NIB_SVG_BELOW + (double)index * NIB_SVG_ROW;
}

static void put_line(nib_text *out, double x1, double y1, double x2, double y2)
{
    nib__text_str(out, "<line class=\"grid\" x1=\"");
    nib__svg_place(out, x1);
    nib__text_str(out, "\" y1=\"");
    nib__svg_place(out, y1);
    nib__text_str(out, "\" x2=\"");
    nib__svg_place(out, x2);
    nib__text_str(out, "\" y2=\"");
    nib__svg_place(out, y2);
    nib__text_str(out, "\"/>\n");
}

void nib__svg_text(nib_text *out, double x, double y, const char *anchor)
{
    nib__text_str(out, "<text x=\"");
    nib__svg_place(out, x);
    nib__text_str(out, "\" y=\"");
    nib__svg_place(out, y);
    nib__text_format(out, "\" text-anchor=\"%s\">", anchor);
}

void nib__svg_axes(const nib_svg *d, const char *x_name, const char *y_name)
{
    nib_text *out = d->out;
    for (int64_t i = d->y.first; i <= d->y.last; i++) {
        const double at = nib__svg_y(d, (double)i * d->y.step);
        put_line(out, NIB_SVG_LEFT, at, NIB_SVG_WIDTH - NIB_SVG_RIGHT, at);
        nib__svg_text(out, NIB_SVG_LEFT - 8, at + 4, "end");
        put_tick(out, (double)i * d->y.step);
        nib__text_str(out, "</text>\n");
    }
    for (int64_t i = d->x.first; i <= d->x.last; i++) {
        const double at = nib__svg_x(d, (double)i * d->x.step);
        put_line(out, at, NIB_SVG_TOP, at, NIB_SVG_TOP + NIB_SVG_PLOT);
        nib__svg_text(out, at, NIB_SVG_TOP + NIB_SVG_PLOT + 18, "middle");
        put_tick(out, (double)i * d->x.step);
        nib__text_str(out, "</text>\n");
    }
    nib__svg_text(out, (NIB_SVG_LEFT + NIB_SVG_WIDTH - NIB_SVG_RIGHT) / 2.0,
                  NIB_SVG_TOP + NIB_SVG_PLOT + 38, "middle");
    nib__svg_escaped(out, x_name, NIB_SVG_NAME);
    nib__text_str(out, "</text>\n");
    nib__text_format(out, "<text x=\"16\" y=\"%d\" text-anchor=\"middle\" ",
                     NIB_SVG_TOP + NIB_SVG_PLOT / 2);
    nib__text_format(out, "transform=\"rotate(-90 16 %d)\">", NIB_SVG_TOP + NIB_SVG_PLOT / 2);
    nib__svg_escaped(out, y_name, NIB_SVG_NAME);
    nib__text_str(out, "</text>\n");
}

/* ---- the whole ---- */

void nib__svg_begin(nib_text *out, const char *name, const char *rest, const char *style,
                    size_t legend_rows)
{
    const int height = NIB_SVG_TOP + NIB_SVG_PLOT + NIB_SVG_BELOW + NIB_SVG_ROW * (int)legend_rows;
    nib__text_format(out,
                     "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                     "viewBox=\"0 0 %d %d\" role=\"img\">\n<title>",
                     NIB_SVG_WIDTH, height, NIB_SVG_WIDTH, height);
    nib__svg_escaped(out, name, NIB_SVG_NAME);
    nib__text_format(out,
                     "%s</title>\n"
                     "<style>\n"
                     ".paper { fill: #ffffff }\n"
                     "text { fill: #1f2328; font: 13px sans-serif }\n"
                     ".grid { stroke: #d1d9e0; stroke-width: 1 }\n"
                     "%s"
                     "@media (prefers-color-scheme: dark) {\n"
                     ".paper { fill: #0d1117 }\n"
                     "text { fill: #e6edf3 }\n"
                     ".grid { stroke: #30363d }\n"
                     "}\n"
                     "</style>\n",
                     rest, style);
    nib__text_format(out, "<rect class=\"paper\" width=\"%d\" height=\"%d\"/>\n", NIB_SVG_WIDTH,
                     height);
}

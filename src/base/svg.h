/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts that every plot has, as SVG: background, axes with round ticks, escaped text. Classes
 * set the colours, so that one file works in light and dark mode. Numbers do not depend on the
 * locale, so the same values give the same bytes everywhere.
 */
#ifndef NIB_SVG_H
#define NIB_SVG_H

#include "text.h"

enum {
    NIB_SVG_WIDTH = 860,
    NIB_SVG_LEFT = 84,
    NIB_SVG_RIGHT = 24,
    NIB_SVG_TOP = 20,
    NIB_SVG_PLOT = 400, /* height of the area between the axes */
    NIB_SVG_BELOW = 58, /* below the plot: numbers and the name of the axis */
    NIB_SVG_ROW = 20,   /* of the legend */
    NIB_SVG_NAME = 64,  /* characters shown of a name */
};

typedef struct nib_svg_axis {
    double least, most;  /* of the plot */
    double step;         /* between ticks */
    int64_t first, last; /* ticks, in steps */
} nib_svg_axis;

typedef struct nib_svg {
    nib_text *out;
    nib_svg_axis x, y;
} nib_svg;

/* grow: the ends become ticks. */
nib_svg_axis nib__svg_axis(double least, double most, bool grow);
double nib__svg_x(const nib_svg *svg, double x);
double nib__svg_y(const nib_svg *svg, double y);
/* The y of row `index` of the legend. */
double nib__svg_row(size_t index);

/* Writes the start of the file, up to the background. The title is `name`, a user's text, and
 * `rest`; style: additional CSS rules. */
void nib__svg_begin(nib_text *out, const char *name, const char *rest, const char *style,
                    size_t legend_rows);
void nib__svg_axes(const nib_svg *svg, const char *x_name, const char *y_name);

void nib__svg_place(nib_text *out, double at);
/* An integer, or rounded to float precision: 0.6 rather than 0.6000000000000001. */
void nib__svg_number(nib_text *out, double value);
/* Untrusted text as XML, at most `most` characters: characters that XML forbids become U+FFFD. */
void nib__svg_escaped(nib_text *out, const char *text, size_t most);
/* Opens a text element; anchor: "start", "middle" or "end". */
void nib__svg_text(nib_text *out, double x, double y, const char *anchor);

#endif

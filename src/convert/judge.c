/* SPDX-License-Identifier: Apache-2.0
 *
 * Verdicts on weights. In this order, with what each needs:
 *
 *   a formula's codes, scales and zeros again, all equal       rounded, and nothing else
 *   every code the nearest under its stored scale              rounded, if the scales follow from
 *                                                              the groups' ranges; else searched
 *   the codes of every group nearest under some one scale      searched
 *   one of these for all but 1 code or scale in 1,000          altered, with the places
 *   3 to 50 % of the codes not nearest, and all scales of      feedback
 *   some group by formula
 *   the source, once rows and columns are multiplied           scaled
 *   inner products of rows or columns as the source's          rotated
 *   hardly any correlation                                     other
 */
#include "judge_fit.h"
#include "judge_rows.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define X(id, name, accounted) {name, accounted},
const nib_origin_info nib__origins[NIB_ORIGIN_COUNT] = {NIB_ORIGINS(X)};
#undef X

enum {
    PROBED = 64, /* rows that all candidates are tried on */
    FEW = 1000,  /* at most one in so many is an alteration */
    BORDER = 32, /* an unknown order of operations moves one in so many at the border or more */
};

static const char *const rule_words[NIB_RULES] = {
    [NIB_RULE_HALF] = "max|w| over half the range of codes",
    [NIB_RULE_TOP] = "max|w| over the largest code",
    [NIB_RULE_BOTTOM] = "the value of max|w| over the lowest code",
    [NIB_RULE_RANGE] = "(max - min) over the range of codes",
    [NIB_RULE_RANGE0] = "(max - min, with 0) over the range of codes",
    [NIB_RULE_UP] = "the power of two above max|w| over the largest code",
    [NIB_RULE_DOWN] = "the power of two of max|w| over that of the largest code",
};

static nib_status judge_as(nib_judgement *out, nib_origin verdict, const char *format, ...)
    NIB_PRINTF(3, 4);

static nib_status judge_as(nib_judgement *out, nib_origin verdict, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    nib__vformat(out->text, sizeof out->text, format, args);
    va_end(args);
    out->verdict = verdict;
    return NIB_OK;
}

/* ---- weights of codes ---- */

/* A judgement in the making. */
typedef struct judge {
    nib_comparison c;
    nib_judgement *out;
    nib_arena arena;
    nib_err *err;
} judge;

static int64_t total(const nib_tally *t) { return t->codes + t->scales; }

/* Drops what cannot explain the weight. */
static void drop_candidates(nib_comparison *c)
{
    const nib_row_counts *m = &c->measured;
    size_t replays = 0, roundings = 0;
    for (size_t r = 0; r < c->replay_count; r++)
        if (total(&m->replays[r]) * 20 <= m->codes)
            c->replays[replays++] = c->replays[r];
    for (size_t r = 0; r < c->rounding_count; r++)
        if (m->roundings[r].codes * 20 <= m->codes || r == 0)
            c->roundings[roundings++] = c->roundings[r];
    c->replay_count = replays;
    c->rounding_count = roundings;
}

/* The replay with the fewest differences; the first of equal ones. */
static size_t find_least(const nib_tally *tallies, size_t count)
{
    size_t best = 0;
    for (size_t r = 1; r < count; r++)
        if (total(&tallies[r]) < total(&tallies[best]))
            best = r;
    return best;
}

/* The rule that most scales follow. */
static nib_scale_rule find_rule(const nib_row_counts *m)
{
    int best = 0;
    for (int rule = 1; rule < NIB_RULES; rule++)
        if (m->near[rule] > m->near[best])
            best = rule;
    return (nib_scale_rule)best;
}

/* Groups whose scale or zero does not follow a rule, at most. */
static int64_t count_unruled(const nib_row_counts *m, int rule)
{
    return m->ruled - m->near[rule] + m->zeros_off;
}

static int64_t unruled(const nib_row_counts *m) { return count_unruled(m, find_rule(m)); }

/* The rounding with the fewest differences. Codes under the scales of a rule say nothing if the
 * stored scales are others. */
static size_t find_rounding(const nib_comparison *c)
{
    const nib_row_counts *m = &c->measured;
    size_t best = 0; /* is of stored scales */
    for (size_t r = 1; r < c->rounding_count; r++) {
        const int rule = c->roundings[r].rule;
        if (rule >= 0 && count_unruled(m, rule) * FEW > m->ruled)
            continue;
        if (total(&m->roundings[r]) < total(&m->roundings[best]))
            best = r;
    }
    return best;
}

/* "max|w| over ...", or how stored scales compare with the nearest rule. */
static const char *describe_scales(char out[240], const nib_comparison *c)
{
    const nib_row_counts *m = &c->measured;
    const nib_scale_rule rule = find_rule(m);
    int shown = rule;
    for (int r = 0; r < NIB_RULES && m->near[rule] == 0; r++)
        if (m->ratio[r][0] <= m->ratio[r][1]) {
            shown = r;
            break;
        }
    if (m->ruled == 0)
        snprintf(out, 240, "no group has a range to compare with");
    else if (unruled(m) == 0)
        nib__format(out, 240, "the scales are %s, to %.2g %%", rule_words[rule],
                    100 * nib__scale_tolerance(c));
    else
        nib__format(out, 240, "the scales are %.3g to %.3g times %s", (double)m->ratio[shown][0],
                    (double)m->ratio[shown][1], rule_words[shown]);
    return out;
}

static double correlation(const nib_row_counts *m)
{
    const double squares = m->source_square * m->square;
    return squares > 0 ? m->dot / sqrt(squares) : m->source_square == m->square ? 1 : 0;
}

/* Scales that a formula of all others may leave unexplained: 0 if there are few others. */
static int64_t few_scales(const nib_row_counts *m)
{
    return m->groups / FEW + (m->groups >= FEW / 4 ? 1 : 0);
}

/* How many of the differences cannot come from arithmetic. Another order of operations, or another
 * type, than the candidate's would have moved many of the codes at the border: fewer than that, by
 * three standard deviations, and the candidate's is what the tool computed. Factors of the source
 * that are known to some noise only move codes, too. */
static int64_t count_altered(const nib_comparison *c, const nib_tally *t)
{
    const double moved = (double)c->measured.border / BORDER;
    const bool known = t->codes == 0 || (double)t->codes < moved - 3 * sqrt(moved);
    return known && c->pair->noise == 0 && t->scales <= few_scales(&c->measured) ? t->firm
                                                                                 : t->hard;
}

/* The best candidate explains the weight, but for few places; `verdict` if arithmetic does. */
static nib_status judge_places(judge *j, nib_origin verdict, bool is_replay, size_t r,
                               const char *made)
{
    const nib_row_counts *m = &j->c.measured;
    const nib_tally *t = is_replay ? &m->replays[r] : &m->roundings[r];
    const int64_t altered = count_altered(&j->c, t);
    NIB_TRY(nib__compare_places(&j->c, is_replay, r, j->out, &j->arena, j->err));
    j->out->altered = total(t);
    if (altered == 0)
        return judge_as(j->out, verdict,
                        "%s; %" PRId64 " of %" PRId64
                        " codes lie at the border of two, where the order of operations decides",
                        made, total(t), m->codes);
    return judge_as(j->out, NIB_ORIGIN_ALTERED,
                    "%" PRId64 " of %" PRId64 " codes and %" PRId64
                    " scales differ from what the source gives; the others are %s",
                    t->codes, m->codes, t->scales, made);
}

static const char *type_words(nib_type type)
{
    return type == NIB_TYPE_BF16 ? "bf16" : type == NIB_TYPE_F16 ? "f16" : "f32";
}

/* Replays. *done: there is a verdict. */
static nib_status judge_replays(judge *j, bool *done)
{
    const nib_comparison *c = &j->c;
    const nib_row_counts *m = &c->measured;
    char name[64], made[160];
    if (c->replay_count == 0)
        return NIB_OK;
    const size_t r = find_least(m->replays, c->replay_count);
    const nib_tally *t = &m->replays[r];
    snprintf(made, sizeof made, "rounded to nearest by %s in %s",
             nib__scheme_name(name, &c->replays[r].scheme), type_words(c->replays[r].source));
    *done = true;
    if (total(t) == 0)
        return judge_as(j->out, NIB_ORIGIN_ROUNDED,
                        "%s: all %" PRId64 " codes, and the scales, are what the formula gives",
                        made, m->codes);
    const size_t other = find_rounding(c);
    if (t->codes <= m->roundings[other].codes && t->scales <= few_scales(m) &&
        count_altered(&j->c, t) <= m->codes / FEW && total(t) * 100 <= m->codes)
        return judge_places(j, NIB_ORIGIN_ROUNDED, true, r, made);
    *done = false;
    return NIB_OK;
}

/* Few groups differ, and other scales could explain them: a change, or scales fitted to codes. */
static nib_status judge_few_groups(judge *j, size_t r)
{
    const nib_row_counts *m = &j->c.measured;
    NIB_TRY(nib__compare_places(&j->c, false, r, j->out, &j->arena, j->err));
    j->out->altered = total(&m->roundings[r]);
    return judge_as(j->out, NIB_ORIGIN_UNKNOWN,
                    "all codes are the nearest under their stored scales but for %" PRId64
                    " in %" PRId64 " of %" PRId64
                    " groups, where they are the nearest under other scales: changed codes, or "
                    "scales fitted to codes",
                    m->roundings[r].codes, m->off_groups, m->groups);
}

/* Every code is the nearest, or nearly every one. */
static nib_status judge_roundings(judge *j, bool *done)
{
    const nib_row_counts *m = &j->c.measured;
    const size_t r = find_rounding(&j->c);
    const nib_tally *t = &m->roundings[r];
    const int64_t off_rule = unruled(m), altered = count_altered(&j->c, t);
    const bool follows = m->ruled > 0 && off_rule * FEW <= m->ruled;
    const nib_origin verdict = off_rule == 0 ? NIB_ORIGIN_ROUNDED : NIB_ORIGIN_SEARCHED;
    char scales[240], made[320];
    describe_scales(scales, &j->c);
    snprintf(made, sizeof made, "the nearest under their %s scales, and %s",
             j->c.roundings[r].rule >= 0 ? "unrounded" : "stored", scales);
    *done = true;
    if (follows && off_rule != 0 && altered == 0) {
        NIB_TRY(nib__compare_scale_places(&j->c, find_rule(m), j->out, &j->arena, j->err));
        j->out->altered = off_rule;
        return judge_as(j->out, NIB_ORIGIN_ALTERED,
                        "%" PRId64 " of %" PRId64
                        " scales differ from what the source gives; the codes are %s",
                        off_rule, m->ruled, made);
    }
    if (total(t) == 0)
        return judge_as(j->out, verdict, "all %" PRId64 " codes are %s", m->codes, made);
    if (altered == 0 || (follows && altered <= m->codes / FEW))
        return judge_places(j, verdict, false, r, made);
    if (m->unshared == 0 && m->off_groups <= nib__max(2, m->groups / FEW))
        return judge_few_groups(j, r);
    if (m->unshared == m->off_groups && m->off_groups <= nib__max(2, m->groups / FEW) &&
        altered * 100 <= m->codes)
        return judge_places(j, verdict, false, r, made);
    *done = false;
    return NIB_OK;
}

/* Whether codes and scales are as methods with error feedback leave them: the group that is coded
 * first has the same position in all rows, and its scales, taken before any feedback, are by
 * formula; at least 3 % of the codes are not the nearest, and few are more than one step off.
 * Powers of two, e4m3 and the one scale of a tensor are too coarse: many sources share them. */
static bool is_feedback(const nib_comparison *c)
{
    enum { ROWS = 24 };
    const nib_row_counts *m = &c->measured;
    const int64_t groups = nib__scheme_groups(&c->pair->weight->scheme, c->pair->weight->k);
    bool by_formula = false;
    for (int64_t i = 0; i < groups * NIB_RULES; i++)
        by_formula = by_formula || (c->group_ruled[i / NIB_RULES] >= ROWS &&
                                    c->group_exact[i] == c->group_ruled[i / NIB_RULES]);
    return by_formula && c->pair->weight->scheme.group != NIB_GROUP_TENSOR &&
           nib__type_is_float(c->pair->weight->scale_type) && m->off * 100 >= 3 * m->codes &&
           m->off * 2 <= m->codes && m->far * 10 <= m->codes && correlation(m) >= 0.95;
}

/* The errors of codes alone leave products a correlation of plain^2, here below 0.57. */
static bool is_rotated(const nib_fit *fit)
{
    return fabs(fit->plain) < 0.75 && fmax(fit->row_products, fit->column_products) >= 0.8;
}

static nib_status judge_rotated(nib_judgement *out, const nib_fit *fit)
{
    return judge_as(out, NIB_ORIGIN_ROTATED,
                    "the inner products of its %s have a correlation of %.4f with the source's, "
                    "as after a rotation; whether other tensors undo it was not checked",
                    fit->row_products >= fit->column_products ? "rows" : "columns",
                    fmax(fit->row_products, fit->column_products));
}

static nib_status judge_other(nib_judgement *out, double correlation)
{
    out->is_uncorrelated = true;
    return judge_as(out, NIB_ORIGIN_OTHER,
                    "the values have a correlation of %.3f with the source's", correlation);
}

/* What is neither rounded nor searched. */
static nib_status judge_relation(judge *j)
{
    const nib_row_counts *m = &j->c.measured;
    nib_fit fit;
    char scales[240];
    describe_scales(scales, &j->c);
    if (is_feedback(&j->c))
        return judge_as(j->out, NIB_ORIGIN_FEEDBACK,
                        "%" PRId64 " of %" PRId64 " codes are not the nearest, %" PRId64
                        " more than one step off, the farthest %.3g; the scales of the groups "
                        "that are coded first are by formula, as GPTQ leaves them; %s",
                        m->off, m->codes, m->far, m->farthest, scales);
    NIB_TRY(nib__fit_source(&fit, j->c.pair, &j->arena, j->err));
    if (fit.scaled >= 0.97 && 1 - fit.scaled <= 0.25 * (1 - fit.plain))
        return judge_as(j->out, NIB_ORIGIN_SCALED,
                        "the source with its inputs times %.3g to %.3g and its outputs times %.3g "
                        "to %.3g, to a correlation of %.5f (%.5f without), as AWQ and SmoothQuant "
                        "leave it",
                        fit.columns[0], fit.columns[1], fit.rows[0], fit.rows[1], fit.scaled,
                        fit.plain);
    if (is_rotated(&fit))
        return judge_rotated(j->out, &fit);
    if (fabs(fit.plain) < 0.3)
        return judge_other(j->out, fit.plain);
    return judge_as(j->out, NIB_ORIGIN_UNKNOWN,
                    "%" PRId64 " of %" PRId64
                    " codes are not the nearest under their scale, %" PRId64
                    " more than one step off, the farthest %.3g; the values have a correlation of "
                    "%.6f with the source's; %s",
                    m->off, m->codes, m->far, m->farthest, correlation(m), scales);
}

static nib_status judge_codes(judge *j)
{
    const nib_row_counts *m = &j->c.measured;
    bool done = false;
    char scales[240];
    NIB_TRY(judge_replays(j, &done));
    if (!done)
        NIB_TRY(judge_roundings(j, &done));
    if (done)
        return NIB_OK;
    describe_scales(scales, &j->c);
    if (m->unshared == 0)
        return judge_as(
            j->out, NIB_ORIGIN_SEARCHED,
            "the codes of each of %" PRId64
            " groups are nearest under one scale, which is not the stored one in %" PRId64
            ": scales were fitted to codes, so that a changed code which another scale explains, "
            "too, "
            "would not be found; %s",
            m->groups, m->off_groups, scales);
    return judge_relation(j);
}

static nib_status measure_codes(judge *j)
{
    const nib_weight *w = j->c.pair->weight;
    const int64_t band = nib__max(1, w->scale_rows);
    const int64_t probed = nib__min(w->n, nib__ceil_div(PROBED, band) * band);
    NIB_TRY(nib__compare_rows(&j->c, probed, &j->arena, j->err));
    if (probed == w->n)
        return NIB_OK;
    drop_candidates(&j->c);
    return nib__compare_rows(&j->c, w->n, &j->arena, j->err);
}

/* ---- values ---- */

static float cast_value(nib_type type, float x)
{
    float out;
    uint64_t room;
    if (!nib__type_is_float(type) || type == NIB_TYPE_F64)
        return x;
    nib__from_f32(&room, type, &x, 1);
    nib__to_f32(&out, &room, type, 1);
    return out;
}

static bool same_value(float a, float b) { return a == b || (isnan(a) && isnan(b)); }

/* What a comparison of values counts. */
typedef struct value_counts {
    int64_t changed, cast; /* other than the source's; other than the source's cast */
    double dot, square, source_square;
} value_counts;

static void count_values(value_counts *v, const float *values, nib_type type, const float *source,
                         int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const double a = (double)values[i], b = (double)source[i];
        v->changed += !same_value(values[i], source[i]);
        v->cast += !same_value(values[i], cast_value(type, source[i]));
        v->dot += a * b;
        v->square += a * a;
        v->source_square += b * b;
    }
}

static void judge_counts(nib_judgement *out, const value_counts *v, nib_type type,
                         nib_type source_type, int64_t count)
{
    const nib_row_counts m = {
        .dot = v->dot, .square = v->square, .source_square = v->source_square};
    const double like = correlation(&m);
    if (v->changed == 0)
        (void)judge_as(out, NIB_ORIGIN_SAME, "all %" PRId64 " values", count);
    else if (v->cast == 0)
        (void)judge_as(out, NIB_ORIGIN_CAST, "all %" PRId64 " values, from %s to %s", count,
                       nib__type_name(source_type), nib__type_name(type));
    else if (v->cast * FEW <= count || v->cast == 1)
        (void)judge_as(out, NIB_ORIGIN_ALTERED, "%" PRId64 " of %" PRId64 " values differ", v->cast,
                       count);
    else if (!(fabs(like) >= 0.3))
        (void)judge_other(out, like);
    else
        (void)judge_as(out, NIB_ORIGIN_UNKNOWN,
                       "%" PRId64 " of %" PRId64
                       " values differ; they have a correlation of %.6f with the source's",
                       v->cast, count, like);
    out->altered = v->cast;
}

static void add_value_places(nib_judgement *out, const float *values, nib_type type,
                             const float *source, int64_t count, int64_t row)
{
    for (int64_t i = 0; i < count && out->place_count < NIB_JUDGE_PLACES; i++) {
        const float wanted = cast_value(type, source[i]);
        if (!same_value(values[i], wanted))
            out->places[out->place_count++] = (nib_judge_place){row, i, false, values[i], wanted};
    }
}

void nib__judge_values(nib_judgement *out, const float *values, nib_type type, const float *source,
                       nib_type source_type, int64_t count)
{
    value_counts v = {.changed = 0};
    *out = (nib_judgement){.verdict = NIB_ORIGIN_UNKNOWN};
    count_values(&v, values, type, source, count);
    judge_counts(out, &v, type, source_type, count);
    if (out->verdict == NIB_ORIGIN_ALTERED)
        add_value_places(out, values, type, source, count, 0);
}

/* ---- weights of floats ---- */

typedef struct float_rows {
    const nib_judge_pair *pair;
    float *rows;           /* [threads][2][k] */
    value_counts *rows_of; /* [n] */
    nib_type type;
} float_rows;

static void count_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    const float_rows *f = ctx;
    const int64_t k = f->pair->weight->k;
    float *a = f->rows + 2 * worker * k, *b = a + k;
    for (int64_t i = begin; i < end; i++) {
        nib__weight_row(f->pair->weight, i, a);
        nib__weight_row(f->pair->source, i, b);
        count_values(&f->rows_of[i], a, f->type, b, k);
    }
}

static nib_status judge_floats(judge *j)
{
    const nib_judge_pair *pair = j->c.pair;
    const nib_weight *w = pair->weight;
    const uint64_t threads = (uint64_t)nib__pool_threads(pair->pool);
    float_rows f = {.pair = pair,
                    .rows = nib__arena_take(&j->arena, 2 * threads * (uint64_t)w->k, sizeof(float)),
                    .rows_of = nib__arena_take(&j->arena, (uint64_t)w->n, sizeof *f.rows_of),
                    .type = nib__float_type(w->scheme.code)};
    value_counts v = {.changed = 0};
    if (f.rows == NULL || f.rows_of == NULL)
        return nib__fail_memory(j->err, (uint64_t)w->n * sizeof *f.rows_of, "a comparison");
    nib__pool_run(pair->pool, w->n, 4, false, count_rows, &f);
    for (int64_t i = 0; i < w->n; i++) {
        v.changed += f.rows_of[i].changed;
        v.cast += f.rows_of[i].cast;
        v.dot += f.rows_of[i].dot;
        v.square += f.rows_of[i].square;
        v.source_square += f.rows_of[i].source_square;
    }
    judge_counts(j->out, &v, f.type, nib__float_type(pair->source->scheme.code), w->n * w->k);
    if (j->out->verdict == NIB_ORIGIN_OTHER || j->out->verdict == NIB_ORIGIN_UNKNOWN) {
        nib_fit fit;
        NIB_TRY(nib__fit_source(&fit, pair, &j->arena, j->err));
        if (is_rotated(&fit))
            return judge_rotated(j->out, &fit);
    }
    for (int64_t i = 0; i < w->n && j->out->verdict == NIB_ORIGIN_ALTERED; i++) {
        if (f.rows_of[i].cast == 0)
            continue;
        nib__weight_row(w, i, f.rows);
        nib__weight_row(pair->source, i, f.rows + w->k);
        add_value_places(j->out, f.rows, f.type, f.rows + w->k, w->k, i);
    }
    return NIB_OK;
}

nib_status nib__judge_weight(nib_judgement *out, const nib_judge_pair *pair, nib_err *err)
{
    judge j = {.c = {.pair = pair}, .out = out, .err = err};
    nib_status status;
    *out = (nib_judgement){.verdict = NIB_ORIGIN_UNKNOWN};
    nib__arena_init(&j.arena, pair->allocator, 0);
    if (nib__scheme_is_quantized(&pair->weight->scheme)) {
        status = measure_codes(&j);
        if (status == NIB_OK)
            status = judge_codes(&j);
    } else {
        status = judge_floats(&j);
    }
    nib__arena_free(&j.arena);
    if (pair->checkpoint != NULL)
        nib__checkpoint_release_rows(pair->checkpoint, pair->weight, 0, pair->weight->n);
    if (pair->source_checkpoint != NULL)
        nib__checkpoint_release_rows(pair->source_checkpoint, pair->source, 0, pair->source->n);
    return status;
}

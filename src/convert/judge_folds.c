/* SPDX-License-Identifier: Apache-2.0
 *
 * The factors of a norm are the source's norm over the stored one, exact but for the rounding of
 * both. Those of rows are fitted: row i of a weight w over the source x with the factors u of its
 * inputs is sum(w x u) / sum((x u)^2), to the error of its codes.
 */
#include "judge_folds.h"

#include "fold.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { DEVIATIONS = 6 /* of fitted factors that count as noise */ };

/* A linear layer. */
typedef struct folded {
    nib_judgement *judgement; /* NULL: not judged */
    nib_weight weight, source;
    nib_judgement again; /* by the source with factors; its text is empty: not made */
    float *rows;         /* [n] factors of its outputs; NULL: none */
    double noise;        /* of rows, relative */
    bool fitted;         /* the factors of its inputs, or outputs, are */
    bool loose;          /* too much so to judge by them */
    bool undone;         /* the layer that reads its outputs has the inverse of rows */
} folded;

typedef struct folding {
    nib_judged *judged;
    size_t count;
    const nib_network *net, *source;
    nib_pool *pool;
    nib_arena arena;
    folded *sites; /* [site_count] */
    nib_err *err;
} folding;

static nib_judgement *find_judged(const folding *f, const char *module, const char *part)
{
    char name[512];
    snprintf(name, sizeof name, "%s%s", module, part);
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->judged[i].name, name) == 0)
            return &f->judged[i].judgement;
    return NULL;
}

static nib_status take(float **out, folding *f, int64_t count)
{
    *out = nib__arena_take(&f->arena, (uint64_t)count, sizeof **out);
    return *out != NULL ? NIB_OK
                        : nib__fail_memory(f->err, (uint64_t)count * sizeof **out, "a comparison");
}

static bool is_accounted(const nib_judgement *j)
{
    return j != NULL && nib__origins[j->verdict].accounted;
}

static nib_status open_site(folding *f, size_t at)
{
    folded *s = &f->sites[at];
    bool found = false, is_source = false;
    nib_err why = {NIB_OK, ""};
    const char *module = f->net->sites[at].name;
    s->judgement = find_judged(f, module, ".weight");
    if (s->judgement == NULL)
        return NIB_OK;
    if (nib__checkpoint_weight(&s->weight, &found, f->net->checkpoint, module, NULL, &why) !=
            NIB_OK ||
        nib__checkpoint_weight(&s->source, &is_source, f->source->checkpoint, module, NULL, &why) !=
            NIB_OK ||
        !found || !is_source || s->weight.n != s->source.n || s->weight.k != s->source.k ||
        !nib__scheme_is_quantized(&s->weight.scheme))
        s->judgement = NULL; /* its verdict has said why */
    return NIB_OK;
}

/* ---- factors ---- */

/* The factors of a group's inputs, and their noise; *any: some are not 1. */
static nib_status find_factors(folding *f, const nib_fold_group *g, float *factors, double *noise,
                               bool *any)
{
    const folded *before = g->before != SIZE_MAX ? &f->sites[g->before] : NULL;
    *noise = before != NULL ? before->noise : 0;
    *any = false;
    for (int64_t j = 0; j < g->k; j++)
        factors[j] =
            before != NULL && before->rows != NULL ? 1 / before->rows[nib__fold_row_of(g, j)] : 1;
    if (g->norm >= 0) {
        float *stored;
        const size_t norm = (size_t)g->norm;
        char name[NIB_NORM_NAME];
        NIB_TRY(take(&stored, f, g->k));
        NIB_TRY(nib__network_norm(stored, f->net, norm, NIB_NORM_WEIGHT, f->err));
        NIB_TRY(nib__network_norm(factors, f->source, norm, NIB_NORM_WEIGHT, f->err));
        nib__network_norm_name(name, f->net, norm, NIB_NORM_WEIGHT);
        const nib_tensor *t = nib__checkpoint_find(f->net->checkpoint, name);
        *noise = t == NULL || t->type == NIB_TYPE_F32 ? 0
                 : t->type == NIB_TYPE_F16            ? 0x1p-11
                                                      : 0x1p-8;
        for (int64_t j = 0; j < g->k; j++)
            factors[j] = factors[j] == stored[j] ? 1 : factors[j] / stored[j];
    }
    for (int64_t j = 0; j < g->k; j++) {
        if (!isfinite(factors[j]) || factors[j] == 0)
            factors[j] = 1;
        *any = *any || factors[j] != 1;
    }
    return NIB_OK;
}

/* The factor of a row, and DEVIATIONS standard errors of it, relative: errors of large weights
 * count more. w: the row; x: the source's with the factors of its inputs. */
static float fit_row(double *noise, const float *w, const float *x, int64_t k)
{
    double product = 0, square = 0, errors = 0;
    for (int64_t j = 0; j < k; j++) {
        product += (double)w[j] * (double)x[j];
        square += (double)x[j] * (double)x[j];
    }
    const double row = product / square;
    *noise = 0;
    if (!(square > 0) || !isfinite(row) || row == 0)
        return 1;
    for (int64_t j = 0; j < k; j++) {
        const double error = ((double)w[j] - row * (double)x[j]) * (double)x[j];
        errors += error * error;
    }
    *noise = DEVIATIONS * sqrt(errors) / (square * fabs(row));
    return (float)row;
}

/* Fits s->rows, unless all are 1 but for noise, and s->noise to what codes leave of them. */
static nib_status fit_rows(folding *f, folded *s, const float *factors)
{
    const nib_fold fold = {.columns = factors};
    const int64_t k = s->weight.k;
    float *w, *x, *rows;
    bool any = false;
    NIB_TRY(take(&w, f, k));
    NIB_TRY(take(&x, f, k));
    NIB_TRY(take(&rows, f, s->weight.n));
    for (int64_t i = 0; i < s->weight.n; i++) {
        double noise;
        nib__weight_row(&s->weight, i, w);
        nib__weight_row(&s->source, i, x);
        nib__fold_row(&fold, i, x, k, NIB_TYPE_F32);
        rows[i] = fit_row(&noise, w, x, k);
        s->noise = fmax(s->noise, noise);
        any = any || fabs((double)rows[i] - 1) > noise;
    }
    if (any)
        s->rows = rows;
    else
        s->noise = 0;
    return NIB_OK;
}

/* ---- verdicts ---- */

static nib_status judge_again(folding *f, folded *s, const float *factors, double noise)
{
    const nib_fold fold = {.rows = s->rows, .columns = factors};
    const nib_judge_pair pair = {.checkpoint = f->net->checkpoint,
                                 .source_checkpoint = f->source->checkpoint,
                                 .weight = &s->weight,
                                 .source = &s->source,
                                 .pool = f->pool,
                                 .allocator = f->arena.allocator,
                                 .fold = &fold,
                                 .noise = (float)(noise + s->noise)};
    return nib__judge_weight(&s->again, &pair, f->err);
}

static void write_range(char out[64], const float *factors, int64_t count)
{
    float low = INFINITY, high = -INFINITY;
    for (int64_t j = 0; j < count; j++) {
        low = fminf(low, factors[j]);
        high = fmaxf(high, factors[j]);
    }
    nib__format(out, 64, "%.3g to %.3g", (double)low, (double)high);
}

static bool is_before(const nib_fold_group *groups, size_t count, size_t site)
{
    for (size_t i = 0; i < count; i++)
        if (groups[i].before == site && groups[i].why == NULL)
            return true;
    return false;
}

/* Relative noise of fitted factors from which other sources would follow, too: codes of few levels
 * in short rows leave so much. */
static double find_loose(const nib_weight *w)
{
    int lowest = 0, highest = 255;
    if (w->scheme.formula == NIB_FORMULA_SUPER || w->layout == NIB_LAYOUT_Q2_K ||
        w->layout == NIB_LAYOUT_Q3_K)
        nib__super_codes(&w->scheme, &lowest, &highest);
    else if (nib__code_bits(w->scheme.code) < 8)
        highest = (1 << nib__code_bits(w->scheme.code)) - 1;
    return (highest - lowest + 1) / 64.0;
}

/* Judges a site of a group again, with factors of its rows if something reads its outputs that may
 * undo them: under scales per group, codes alone do not show these. */
static nib_status judge_site(folding *f, size_t at, const float *factors, double noise, bool any,
                             bool fitted, bool before)
{
    folded *s = &f->sites[at];
    if (s->judgement == NULL || (!any && !before))
        return NIB_OK;
    if (before)
        NIB_TRY(fit_rows(f, s, factors));
    s->fitted = fitted || s->rows != NULL;
    s->loose = noise + s->noise > find_loose(&s->weight);
    return (any || s->rows != NULL) && !s->loose ? judge_again(f, s, factors, noise) : NIB_OK;
}

/* Whether all layers of a group are accounted for by its factors. */
static bool group_follows(const folding *f, const nib_fold_group *g)
{
    for (int i = 0; i < g->count; i++)
        if (!is_accounted(&f->sites[g->sites[i]].again) ||
            f->sites[g->sites[i]].again.text[0] == '\0')
            return false;
    return true;
}

/* Puts the factors before the second verdict's text. inputs: [k]; NULL: all 1. */
static void describe_factors(folded *s, const float *inputs, int64_t k)
{
    char of_inputs[64], of_outputs[64], text[NIB_JUDGE_TEXT];
    if (s->again.text[0] == '\0' || (inputs == NULL && s->rows == NULL))
        return;
    snprintf(text, sizeof text, "%s", s->again.text);
    if (inputs != NULL)
        write_range(of_inputs, inputs, k);
    if (s->rows != NULL)
        write_range(of_outputs, s->rows, s->weight.n);
    nib__format(s->again.text, sizeof s->again.text, "the source with %s%s%s%s%s; %s",
                inputs != NULL ? "its inputs times " : "", inputs != NULL ? of_inputs : "",
                inputs != NULL ? ", as what makes them has the inverse" : "",
                s->rows == NULL  ? ""
                : inputs != NULL ? ", and its outputs times "
                                 : "its outputs times ",
                s->rows != NULL ? of_outputs : "", text);
}

static nib_status judge_group(folding *f, const nib_fold_group *groups, size_t count, size_t at)
{
    const nib_fold_group *g = &groups[at];
    float *factors;
    double noise;
    bool any;
    if (g->why != NULL)
        return NIB_OK;
    NIB_TRY(take(&factors, f, g->k));
    NIB_TRY(find_factors(f, g, factors, &noise, &any));
    for (int i = 0; i < g->count; i++)
        NIB_TRY(judge_site(f, g->sites[i], factors, noise, any, g->before != SIZE_MAX,
                           is_before(groups, count, g->sites[i])));
    if (any && g->before != SIZE_MAX)
        f->sites[g->before].undone = group_follows(f, g);
    for (int i = 0; i < g->count; i++)
        describe_factors(&f->sites[g->sites[i]], any ? factors : NULL, g->k);
    return NIB_OK;
}

/* A vector of a norm, or a bias, is the source's times factors that weights undo. */
static void accept_vector(nib_judgement *j, const char *what)
{
    *j = (nib_judgement){.verdict = NIB_ORIGIN_FOLDED};
    snprintf(j->text, sizeof j->text, "the source's times the inverse of factors that %s", what);
}

/* Whether values are the source's times factors (or over them), to `noise`. */
static bool vector_follows(const float *values, const float *source, const float *factors,
                           bool over, int64_t count, double noise)
{
    for (int64_t j = 0; j < count; j++) {
        const double wanted =
            over ? (double)source[j] / (double)factors[j] : (double)source[j] * (double)factors[j];
        if (!(fabs((double)values[j] - wanted) <= (noise + 0x1p-8) * fabs(wanted)))
            return false;
    }
    return true;
}

static nib_status accept_norm_bias(folding *f, const nib_fold_group *g, const float *factors,
                                   double noise)
{
    char name[NIB_NORM_NAME];
    float *stored, *source;
    const size_t norm = (size_t)g->norm;
    nib__network_norm_name(name, f->net, norm, NIB_NORM_BIAS);
    nib_judgement *j = find_judged(f, name, "");
    if (j == NULL || is_accounted(j))
        return NIB_OK;
    NIB_TRY(take(&stored, f, g->k));
    NIB_TRY(take(&source, f, g->k));
    NIB_TRY(nib__network_norm(stored, f->net, norm, NIB_NORM_BIAS, f->err));
    NIB_TRY(nib__network_norm(source, f->source, norm, NIB_NORM_BIAS, f->err));
    if (vector_follows(stored, source, factors, true, g->k, noise))
        accept_vector(j, "every weight that reads it has");
    return NIB_OK;
}

static nib_status accept_norm(folding *f, const nib_fold_group *g)
{
    char name[NIB_NORM_NAME];
    float *factors;
    double noise;
    bool any;
    if (g->norm < 0 || g->why != NULL || !group_follows(f, g))
        return NIB_OK;
    for (int i = 0; i < g->count; i++)
        if (f->sites[g->sites[i]].rows != NULL && !f->sites[g->sites[i]].undone)
            return NIB_OK;
    NIB_TRY(take(&factors, f, g->k));
    NIB_TRY(find_factors(f, g, factors, &noise, &any));
    nib__network_norm_name(name, f->net, (size_t)g->norm, NIB_NORM_WEIGHT);
    nib_judgement *j = find_judged(f, name, "");
    if (any && j != NULL && !is_accounted(j))
        accept_vector(j, "every weight that reads it has");
    return any ? accept_norm_bias(f, g, factors, noise) : NIB_OK;
}

static void append_text(nib_judgement *j, const char *text)
{
    const size_t used = strlen(j->text);
    snprintf(j->text + used, sizeof j->text - used, "%s", text);
}

static nib_status accept_bias(folding *f, size_t at)
{
    folded *s = &f->sites[at];
    float *values;
    const int64_t n = s->weight.n;
    nib_judgement *j = find_judged(f, f->net->sites[at].name, ".bias");
    if (j == NULL || is_accounted(j) || s->rows == NULL || s->weight.bias == NULL ||
        s->source.bias == NULL)
        return NIB_OK;
    NIB_TRY(take(&values, f, 2 * n));
    nib__weight_bias(&s->weight, values);
    nib__weight_bias(&s->source, values + n);
    if (vector_follows(values, values + n, s->rows, false, n, s->noise))
        accept_vector(j, "the weight that reads it has");
    return NIB_OK;
}

static nib_status accept_site(folding *f, size_t at)
{
    folded *s = &f->sites[at];
    if (s->judgement != NULL && s->judgement->verdict == NIB_ORIGIN_SCALED && s->loose) {
        s->judgement->verdict = NIB_ORIGIN_UNKNOWN;
        append_text(s->judgement, "; its codes are too few and too coarse to show whether what "
                                  "makes its inputs undoes these factors");
        return NIB_OK;
    }
    if (s->judgement == NULL || is_accounted(s->judgement) || s->again.text[0] == '\0' ||
        (s->rows != NULL && !s->undone))
        return NIB_OK;
    if (!is_accounted(&s->again) && s->again.verdict != NIB_ORIGIN_ALTERED)
        return NIB_OK;
    *s->judgement = s->again;
    if (s->again.verdict == NIB_ORIGIN_ALTERED) { /* fitted factors may themselves be off */
        s->judgement->verdict = s->fitted ? NIB_ORIGIN_UNKNOWN : NIB_ORIGIN_ALTERED;
        return NIB_OK;
    }
    s->judgement->verdict = NIB_ORIGIN_FOLDED;
    return accept_bias(f, at);
}

static nib_status judge_layer(folding *f, int64_t layer)
{
    nib_fold_group *groups;
    size_t count;
    NIB_TRY(nib__fold_groups(&groups, &count, f->net, layer, NULL, &f->arena, f->err));
    for (size_t i = 0; i < count; i++)
        NIB_TRY(judge_group(f, groups, count, i));
    for (size_t i = 0; i < count; i++)
        NIB_TRY(accept_norm(f, &groups[i]));
    return NIB_OK;
}

static nib_status judge_layers(folding *f)
{
    const size_t sites = f->net->site_count;
    f->sites = nib__arena_take(&f->arena, sites, sizeof *f->sites);
    if (f->sites == NULL)
        return nib__fail_memory(f->err, sites * sizeof *f->sites, "a comparison");
    for (size_t i = 0; i < sites; i++)
        NIB_TRY(open_site(f, i));
    for (int64_t l = 0; l < f->net->config.layers; l++)
        NIB_TRY(judge_layer(f, l));
    for (size_t i = 0; i < sites; i++)
        NIB_TRY(accept_site(f, i));
    return NIB_OK;
}

static bool is_any_scaled(const nib_judged *judged, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!nib__origins[judged[i].judgement.verdict].accounted)
            return true;
    return false;
}

nib_status nib__judge_folds(nib_judged *judged, size_t count, const nib_network *net,
                            const nib_network *source, nib_pool *pool, nib_err *err)
{
    folding f = {
        .judged = judged, .count = count, .net = net, .source = source, .pool = pool, .err = err};
    nib_status status = NIB_OK;
    nib__arena_init(&f.arena, &net->engine->allocator, 0);
    if (is_any_scaled(judged, count) && !net->unknown && !source->unknown && net->site_count > 0 &&
        source->site_count == net->site_count)
        status = judge_layers(&f);
    nib__arena_free(&f.arena);
    for (size_t i = 0; i < count && status == NIB_OK; i++)
        if (judged[i].judgement.verdict == NIB_ORIGIN_SCALED)
            append_text(&judged[i].judgement,
                        "; what makes its inputs does not undo these factors");
    return status;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods `gptq` and `qronos`: rows of a weight against the second moments H of its inputs.
 * With H = R R^T, R upper triangular, the error of a row's codes is
 *
 *   E = sum over j of R_jj^2 * (d_j + g_j + sum over i < j of F_ij d_i)^2,   d = x - value(codes),
 *
 * where F_ij = R_ij / R_jj, and i and j count inputs in the order in which they are coded
 * (nib_quant_sweep.order), each as the code nearest to x_j + g_j + sum over i < j of F_ij d_i:
 * Babai's nearest plane, which is GPTQ (Frantar et al. 2022) with its inverse of H eliminated. g is
 * 0 for gptq. For qronos, E is the error of the
 * outputs that the stored weights have on the inputs of the stored model, less a constant:
 * that moves the target of the codes from x to x + x D H^-1, whose sums over i < j are eliminated,
 * too: g_j = u_j / R_jj^2, where u_j = (x D)_j - sum over l > j of F_jl u_l.
 *
 * A group's scale is searched (quant_w_search.h) when its first input comes, on those sums, or
 * before all of them on the row itself (nib_quant_sweep.scales_first), as those of super-blocks
 * always are (quant_w_super.h). A row that rounding codes with a smaller E keeps rounding's codes.
 *
 * Rows are the lanes, so a row's bits do not depend on its neighbours. The sum over i is one chain
 * of fma in f32, ascending, that starts with g_j; E is f64, ascending. x D is such a chain, and so
 * is u_j, which starts with it: l ascending over the columns behind j's block of SWEEP_BLOCK, then
 * descending over those in it. Included by quant_w_body.h.
 */

enum { SWEEP_ROWS = NIB_LANES, SWEEP_COLUMNS = 6, SWEEP_BLOCK = 128 };

/* What the codes of a group mean in 16 rows: value = (code - before) * scale + after. */
typedef struct grids {
    float scale[SWEEP_ROWS], inverse[SWEEP_ROWS], before[SWEEP_ROWS], after[SWEEP_ROWS];
} grids;

/* 16 rows in work. Values of one column of all rows lie together: [..][SWEEP_ROWS]. Columns are in
 * the order of coding, but for codes and row, which are stored. */
typedef struct sweep {
    const nib_quant_sweep *a;
    const nib_quantizer *q;
    searched s; /* the codes that a group can have; x, w and count are not used */
    int64_t group;
    float *x, *lost;       /* [k] weights, and what their codes lose */
    float *start;          /* [k] g */
    float *sums;           /* [block] g_j + sum over i < j of F_ij d_i */
    float *row;            /* [k] one row */
    int8_t *codes;         /* [k] of all rows in work, and */
    int8_t *row_codes;     /* [k] of one */
    float *scales, *zeros; /* [groups] of all rows in work, as stored */
    nib_quant_w rounded;   /* rounding's results for these rows */
    grids *grids;          /* [groups] */
    double error[SWEEP_ROWS];
} sweep;

/* Sums over elements of a matrix times rows of SWEEP_ROWS values. */
typedef struct summed {
    const float *at;   /* element of the first term of the first sum */
    int64_t term, sum; /* steps to that of the next term, and of the next sum */
    const float *by;   /* [terms] */
    int64_t terms;
} summed;

/* Adds terms to `count` sums, or subtracts them; count <= SWEEP_COLUMNS. */
NIB_INLINE void add_terms(const summed *s, bool subtracts, int64_t first, int count, float *out)
{
    nib_lanes sum[SWEEP_COLUMNS];
    const float *f = s->at + first * s->sum;
    for (int i = 0; i < count; i++)
        sum[i] = nib__lanes_load(out + i * SWEEP_ROWS);
    for (int64_t t = 0; t < s->terms; t++, f += s->term) {
        nib_lanes by = nib__lanes_load(s->by + t * SWEEP_ROWS);
        if (subtracts)
            by = nib__lanes_sub(nib__lanes_set(0), by);
        for (int j = 0; j < count; j++)
            sum[j] = nib__lanes_fma(nib__lanes_set(f[j * s->sum]), by, sum[j]);
    }
    for (int i = 0; i < count; i++)
        nib__lanes_store(out + i * SWEEP_ROWS, sum[i]);
}

NIB_INLINE void add_all_terms(const summed *s, bool subtracts, int64_t sums, float *out)
{
    int64_t i = 0;
    for (; i + SWEEP_COLUMNS <= sums; i += SWEEP_COLUMNS)
        add_terms(s, subtracts, i, SWEEP_COLUMNS, out + i * SWEEP_ROWS);
    for (; i < sums; i++)
        add_terms(s, subtracts, i, 1, out + i * SWEEP_ROWS);
}

/* The sums of columns [begin, end) over the inputs before `begin`. */
static void sum_block(const sweep *w, int64_t begin, int64_t end)
{
    const summed s = {
        .at = w->a->factor + begin, .term = w->a->k, .sum = 1, .by = w->lost, .terms = begin};
    memcpy(w->sums, w->start + begin * SWEEP_ROWS,
           (size_t)((end - begin) * SWEEP_ROWS) * sizeof *w->sums);
    add_all_terms(&s, false, end - begin, w->sums);
}

/* u of the columns [begin, end), when those from `end` on are done. */
static void solve_block(const sweep *w, int64_t begin, int64_t end)
{
    const int64_t k = w->a->k;
    const summed s = {.at = w->a->factor + begin * k + end,
                      .term = 1,
                      .sum = k,
                      .by = w->start + end * SWEEP_ROWS,
                      .terms = k - end};
    add_all_terms(&s, true, end - begin, w->start + begin * SWEEP_ROWS);
    for (int64_t l = end - 1; l > begin; l--) {
        const summed one = {.at = w->a->factor + begin * k + l,
                            .term = 1,
                            .sum = k,
                            .by = w->start + l * SWEEP_ROWS,
                            .terms = 1};
        add_all_terms(&one, true, l - begin, w->start + begin * SWEEP_ROWS);
    }
}

/* Sets g for the weights of the rows in work. */
static void set_start(const sweep *w)
{
    const int64_t k = w->a->k;
    const summed s = {.at = w->a->difference, .term = k, .sum = 1, .by = w->x, .terms = k};
    memset(w->start, 0, (size_t)(k * SWEEP_ROWS) * sizeof *w->start);
    if (w->a->difference == NULL)
        return;
    add_all_terms(&s, false, k, w->start);
    for (int64_t end = k; end > 0; end = nib__max(0, end - SWEEP_BLOCK))
        solve_block(w, nib__max(0, end - SWEEP_BLOCK), end);
    for (int64_t j = 0; j < k; j++) {
        float *g = w->start + j * SWEEP_ROWS;
        nib__lanes_store(
            g, nib__lanes_mul(nib__lanes_load(g), nib__lanes_set((float)(1 / w->a->diagonal[j]))));
    }
}

/* Adds what column c lost to the sums of the columns after it in its block, and to E. */
NIB_INLINE void pass_on(sweep *w, int64_t begin, int64_t c, int64_t end, nib_lanes lost)
{
    const float *f = w->a->factor + c * w->a->k;
    float off[SWEEP_ROWS];
    float *sums = w->sums - begin * SWEEP_ROWS;
    nib__lanes_store(w->lost + c * SWEEP_ROWS, lost);
    nib__lanes_store(off, nib__lanes_add(lost, nib__lanes_load(sums + c * SWEEP_ROWS)));
    for (int l = 0; l < SWEEP_ROWS; l++)
        w->error[l] += w->a->diagonal[c] * ((double)off[l] * (double)off[l]);
    for (int64_t j = c + 1; j < end; j++)
        nib__lanes_store(
            sums + j * SWEEP_ROWS,
            nib__lanes_fma(nib__lanes_set(f[j]), lost, nib__lanes_load(sums + j * SWEEP_ROWS)));
}

/* Codes columns [begin, end) under the scales of their groups. */
NIB_INLINE void code_columns(sweep *w, code_grid grid, int64_t begin, int64_t end)
{
    for (int64_t c = begin; c < end; c++) {
        float code[SWEEP_ROWS];
        const int64_t stored = w->a->order[c];
        const grids *of = &w->grids[stored / w->group];
        const nib_lanes scale = nib__lanes_load(of->scale), inverse = nib__lanes_load(of->inverse),
                        before = nib__lanes_load(of->before), after = nib__lanes_load(of->after);
        const nib_lanes x = nib__lanes_load(w->x + c * SWEEP_ROWS);
        const nib_lanes target =
            nib__lanes_add(x, nib__lanes_load(w->sums + (c - begin) * SWEEP_ROWS));
        const nib_lanes q = nearest_codes(
            &w->s, grid, nib__lanes_fma(nib__lanes_sub(target, after), inverse, before));
        const nib_lanes value = nib__lanes_fma(nib__lanes_sub(q, before), scale, after);
        nib__lanes_store(code, q);
        for (int l = 0; l < SWEEP_ROWS; l++)
            w->codes[stored * SWEEP_ROWS + l] = grid == GRID_E4M3 ? (int8_t)e4m3_code(code[l], 0x7e)
                                                : grid == GRID_E2M1 ? (int8_t)e2m1_code(code[l])
                                                                    : (int8_t)code[l];
        pass_on(w, begin, c, end, nib__lanes_sub(x, value));
    }
}

static void set_grid(const sweep *w, int64_t g, int lane, params p)
{
    const nib_quantizer *q = w->q;
    grids *of = &w->grids[g];
    of->scale[lane] = q->tensor_scale != 0 ? p.scale * q->tensor_scale : p.scale;
    of->inverse[lane] = finite_inverse(of->scale[lane]);
    of->before[lane] = q->scheme.zero == NIB_ZERO_INT ? p.zero : 0;
    of->after[lane] = q->scheme.zero == NIB_ZERO_FLOAT ? p.zero : 0;
}

/* Computes E of the codes that rounding chose, for each row. */
static void measure_rounding(sweep *w, double error[SWEEP_ROWS])
{
    const nib_quant_w *to = &w->rounded;
    const int64_t k = w->a->k;
    for (int l = 0; l < SWEEP_ROWS; l++) {
        const int64_t i = nib__min(l, to->count - 1);
        for (int64_t c0 = 0, g = 0; c0 < k; c0 += w->group, g++) {
            const int64_t count = nib__min(w->group, k - c0);
            float at[2] = {0, 0};
            nib__to_f32(&at[0],
                        (const char *)to->scales +
                            (i * w->q->groups + g) * (nib__type_bits(w->q->scale_type) / 8),
                        w->q->scale_type, 1);
            if (w->q->zero_type != NIB_TYPE_NONE)
                nib__to_f32(&at[1],
                            (const char *)to->zeros +
                                (i * w->q->groups + g) * (nib__type_bits(w->q->zero_type) / 8),
                            w->q->zero_type, 1);
            set_grid(w, g, l, (params){.scale = at[0], .zero = at[1]});
            code_values(w->row, to->codes + i * k + c0, count, w->q->scheme.code);
            const grids *of = &w->grids[g];
            for (int64_t j = 0; j < count; j++) {
                const int64_t c = w->a->place[c0 + j] * SWEEP_ROWS + l;
                w->lost[c] = w->x[c] - ((w->row[j] - of->before[l]) * of->scale[l] + of->after[l]);
            }
        }
        w->error[l] = 0;
    }
    for (int64_t begin = 0; begin < k; begin += SWEEP_BLOCK) {
        const int64_t end = nib__min(begin + SWEEP_BLOCK, k);
        sum_block(w, begin, end);
        for (int64_t c = begin; c < end; c++)
            pass_on(w, begin, c, end, nib__lanes_load(w->lost + c * SWEEP_ROWS));
    }
    memcpy(error, w->error, sizeof w->error);
}

/* Searches the scale of group g for one row: on x plus the sums of the columns from `begin` on, or
 * on x alone if begin < 0. */
static int search_scale(sweep *w, int lane, int64_t g, int64_t begin, params *p)
{
    const nib_quantizer *q = w->q;
    const int64_t c0 = g * w->group, count = nib__min(w->group, w->a->k - c0);
    double none[2] = {0, 0}, sums[2] = {0, 0};
    group to = {.q = q,
                .family = nib__quant_family(&q->scheme),
                .sums = sums,
                .codes = w->row_codes,
                .w = q->importance != NULL ? q->importance + c0 : NULL,
                .objective = none,
                .p = {.scale = q->scale, .zero = q->zero, .factor = q->factor}};
    for (int64_t j = 0; j < count; j++) {
        const int64_t c = w->a->place[c0 + j];
        w->row[j] = w->x[c * SWEEP_ROWS + lane] +
                    (begin >= 0 ? w->sums[(c - begin) * SWEEP_ROWS + lane] : 0);
    }
    const int failed = quantize_group(&to, w->row, count);
    if (failed == 0)
        *p = to.p;
    set_grid(w, g, lane, *p);
    return failed;
}

/* Searches the scales of the super-block that begins with group g for one row, on x; 0: there are
 * some. */
static int32_t search_super_scales(sweep *w, int lane, int64_t g)
{
    const int64_t c0 = g * w->group;
    const super_block b = {.form = super_form_of(w->q),
                           .x = w->row,
                           .w = w->q->importance != NULL ? w->q->importance + c0 : NULL};
    super_scales best;
    double none[2] = {0, 0};
    for (int64_t j = 0; j < NIB_SUPER_ELEMENTS; j++)
        w->row[j] = w->x[w->a->place[c0 + j] * SWEEP_ROWS + lane];
    const int32_t failed = choose_scales(&b, true, &best, none);
    for (int i = 0; failed == 0 && i < b.form.groups; i++) {
        const affine a = affine_of(&b.form, linear_at(&best, i));
        w->scales[(g + i) * SWEEP_ROWS + lane] = a.scale;
        w->zeros[(g + i) * SWEEP_ROWS + lane] = a.after;
        set_grid(w, g + i, lane, (params){.scale = a.scale, .zero = a.after});
    }
    return failed;
}

/* Searches the scales of all rows; a row that has none keeps rounding's codes. */
static void search_supers(sweep *w)
{
    const int groups = super_form_of(w->q).groups;
    for (int l = 0; l < SWEEP_ROWS; l++)
        for (int64_t g = 0; g < w->q->groups; g += groups)
            if (search_super_scales(w, l, g) != 0)
                w->error[l] = (double)INFINITY;
}

/* Searches the scale of a group for each row; those that have none keep rounding's codes. */
static void search_scales(sweep *w, int64_t g, int64_t begin)
{
    for (int l = 0; l < SWEEP_ROWS; l++) {
        params p = {.scale = 1};
        if (search_scale(w, l, g, begin, &p) != 0)
            w->error[l] = (double)INFINITY;
        w->scales[g * SWEEP_ROWS + l] = p.scale;
        w->zeros[g * SWEEP_ROWS + l] = p.zero;
    }
}

static void search_all_scales(sweep *w)
{
    if (nib__quant_family(&w->q->scheme) == NIB_QUANT_SUPER)
        search_supers(w);
    else
        for (int64_t g = 0; g < w->q->groups; g++)
            search_scales(w, g, -1);
}

static void code_block(sweep *w, int64_t begin, int64_t end)
{
    if (w->s.grid == GRID_E4M3)
        code_columns(w, GRID_E4M3, begin, end);
    else if (w->s.grid == GRID_E2M1)
        code_columns(w, GRID_E2M1, begin, end);
    else if (w->s.grid == GRID_LEVELS)
        code_columns(w, GRID_LEVELS, begin, end);
    else
        code_columns(w, GRID_INTEGERS, begin, end);
}

static void code_rows(sweep *w)
{
    const int64_t k = w->a->k;
    const bool first = w->a->scales_first;
    for (int l = 0; l < SWEEP_ROWS; l++)
        w->error[l] = 0;
    if (first)
        search_all_scales(w);
    for (int64_t begin = 0, end; begin < k; begin = end) {
        const int64_t g = w->a->order[begin] / w->group;
        end = nib__min(k, begin + (first ? SWEEP_BLOCK : nib__min(w->group, k - g * w->group)));
        sum_block(w, begin, end);
        if (!first)
            search_scales(w, g, begin);
        code_block(w, begin, end);
    }
}

/* Writes the better codes of lane l, row i. */
static void put_row(const sweep *w, int l, int64_t i, double rounding)
{
    const nib_quant_sweep *a = w->a;
    const nib_quantizer *q = w->q;
    const int64_t scale_bytes = q->groups * (nib__type_bits(q->scale_type) / 8),
                  zero_bytes = q->groups * (nib__type_bits(q->zero_type) / 8);
    char *scales = (char *)a->scales + i * scale_bytes, *zeros = (char *)a->zeros + i * zero_bytes;
    a->objective[2 * i] = rounding;
    a->objective[2 * i + 1] = w->error[l] < rounding ? w->error[l] : rounding;
    if (!(w->error[l] < rounding)) {
        memcpy(a->codes + i * a->k, w->rounded.codes + l * a->k, (size_t)a->k);
        memcpy(scales, (const char *)w->rounded.scales + l * scale_bytes, (size_t)scale_bytes);
        if (zero_bytes != 0)
            memcpy(zeros, (const char *)w->rounded.zeros + l * zero_bytes, (size_t)zero_bytes);
        return;
    }
    for (int64_t c = 0; c < a->k; c++)
        a->codes[i * a->k + c] = w->codes[c * SWEEP_ROWS + l];
    for (int64_t g = 0; g < q->groups; g++) {
        nib__quant_store(scales, q->scale_type, g, w->scales[g * SWEEP_ROWS + l]);
        if (zero_bytes != 0)
            nib__quant_store(zeros, q->zero_type, g, w->zeros[g * SWEEP_ROWS + l]);
    }
}

static void *take(char **at, int64_t bytes)
{
    void *from = *at;
    *at += nib__round_up(bytes, 64);
    return from;
}

/* Rows [row0, row0 + count), count <= SWEEP_ROWS. */
static void sweep_rows(sweep *w, int64_t row0, int64_t count)
{
    const nib_quant_sweep *a = w->a;
    const nib_quantizer rtn = {.scheme = w->q->scheme,
                               .source = w->q->source,
                               .k = a->k,
                               .groups = w->q->groups,
                               .scale_type = w->q->scale_type,
                               .zero_type = w->q->zero_type,
                               .tensor_scale = w->q->tensor_scale};
    double rounding[SWEEP_ROWS];
    w->rounded.q = &rtn;
    w->rounded.count = count;
    for (int64_t i = 0; i < count; i++) {
        a->failed[row0 + i] = quantize_row(&w->rounded, a->rows + (row0 + i) * a->k, i);
        if (a->failed[row0 + i] != 0)
            return;
    }
    for (int64_t l = 0; l < SWEEP_ROWS; l++)
        for (int64_t c = 0; c < a->k; c++)
            w->x[c * SWEEP_ROWS + l] =
                a->rows[(row0 + nib__min(l, count - 1)) * a->k + a->order[c]];
    set_start(w);
    measure_rounding(w, rounding);
    code_rows(w);
    for (int l = 0; l < count; l++)
        put_row(w, l, row0 + l, rounding[l]);
}

void NIB_QUANT_SWEEP(const nib_quant_sweep *a, int64_t row0, int64_t row1, void *scratch)
{
    const nib_quantizer *q = a->q;
    const int64_t k = a->k, groups = q->groups;
    const nib_quant_family family = nib__quant_family(&q->scheme);
    char *at = scratch;
    sweep w = {.a = a,
               .q = q,
               .s = codes_of_scheme(q, family),
               .group = nib__scheme_group_size(&q->scheme, k)};
    if (family == NIB_QUANT_SUPER) {
        const super_form form = super_form_of(q);
        w.s.lowest = form.lowest;
        w.s.highest = form.highest;
    }
    w.x = take(&at, k * SWEEP_ROWS * 4);
    w.lost = take(&at, k * SWEEP_ROWS * 4);
    w.start = take(&at, k * SWEEP_ROWS * 4);
    w.sums = take(&at, nib__max(w.group < k ? w.group : 0, SWEEP_BLOCK) * SWEEP_ROWS * 4);
    w.row = take(&at, k * 4);
    w.codes = take(&at, k * SWEEP_ROWS);
    w.row_codes = take(&at, k);
    w.scales = take(&at, groups * SWEEP_ROWS * 4);
    w.zeros = take(&at, groups * SWEEP_ROWS * 4);
    w.grids = take(&at, groups * (int64_t)sizeof *w.grids);
    w.rounded = (nib_quant_w){.codes = take(&at, k * SWEEP_ROWS),
                              .scales = take(&at, groups * SWEEP_ROWS * 4),
                              .zeros = take(&at, groups * SWEEP_ROWS * 4),
                              .sums = take(&at, SWEEP_ROWS * 2 * 8)};
    for (int64_t i = row0; i < row1; i += SWEEP_ROWS)
        sweep_rows(&w, i, nib__min(SWEEP_ROWS, row1 - i));
}

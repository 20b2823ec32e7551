/* SPDX-License-Identifier: Apache-2.0
 *
 * gpt-fast's two state dicts; the second is also torchao's WeightOnlyInt4Linear:
 *
 *   model_int8.pth     M.weight I8 [n][k], M.scales float [n]
 *   model_int4.gN.pth  M.weight I32 [n/8][k/16/tiles][32][tiles/2] or U8 [n][k/2], packed for the
 *                      machine that quantized; M.scales_and_zeros float [k/g][n][2]
 *
 * Value = (code - 8) * scale + zero. The file does not name the machine; nib__weight_pick_layout
 * detects it. k is padded to a multiple of 1,024 if g or 128 does not divide it; the file does not
 * store the unpadded k, which follows from other layers.
 */
#include "dialect_common.h"

#include <inttypes.h>
#include <math.h>

static const char pairs[] = ".scales_and_zeros";

/* ---- the parts ---- */

/* Replaces the last part of the module name: "self_attn.q_proj" to "self_attn.k_proj". False: the
 * name does not end in `last`, or is too long. */
static bool replace_last(char out[512], const char *module, const char *last, const char *other)
{
    const size_t size = strlen(module), end = strlen(last);
    if (size < end || strcmp(module + size - end, last) != 0 || size - end + strlen(other) >= 512)
        return false;
    memcpy(out, module, size - end);
    memcpy(out + size - end, other, strlen(other) + 1);
    return true;
}

/* 0: no tensor, or an empty one, whose sizes are unchecked. */
static int64_t count_rows(const nib_tensor *t)
{
    return t == NULL || t->rank < 1 || t->bytes == 0 ? 0
           : t->rank == 4                            ? t->shape[0] * 8
                                                     : t->shape[0];
}

static const nib_tensor *find_part(const nib_weight_query *q, const char *module,
                                   const char *suffix)
{
    nib_weight_query other = *q;
    other.module = module;
    return nib__weight_part(&other, suffix);
}

/* The module's first row in its scales and zeros, which belong to all of q, k and v if the weight
 * was fused. Every part has elements, so the sum cannot overflow. */
static int64_t find_first_row(const nib_weight_query *q, const nib_tensor *all)
{
    static const char *const parts[] = {"q_proj", "k_proj", "v_proj"};
    char other[512];
    int64_t first = 0;
    for (size_t i = 0; i < COUNT(parts) && all->shape[1] > q->out->n; i++)
        for (size_t before = 0; before < i; before++)
            if (replace_last(other, q->module, parts[i], parts[before]))
                first += count_rows(find_part(q, other, ".weight"));
    return first;
}

bool nib__weight_is_gptfast(const nib_weight_query *q, const nib_tensor *codes)
{
    if (codes->type == NIB_TYPE_I8)
        return !q->cp->grouped_scales && nib__weight_part(q, ".scales") != NULL;
    return ((codes->type == NIB_TYPE_I32 && codes->rank == 4) ||
            (codes->type == NIB_TYPE_U8 && codes->rank == 2)) &&
           nib__weight_part(q, pairs) != NULL;
}

/* ---- int4 ---- */

static nib_status read_shape(const nib_weight_query *q, const nib_tensor *t)
{
    nib_weight *w = q->out;
    if (t->rank == 2) {
        w->stored_n = t->shape[0];
        w->stored_k = t->shape[1] * 2;
        if (t->shape[0] < 16 || t->shape[0] % 16 != 0 || t->shape[1] < 1 || t->shape[1] > INT32_MAX)
            return nib__weight_fail(q, NIB_BAD_INPUT, ".weight",
                                    "has %" PRId64 " rows of %" PRId64
                                    " bytes; int4 packed for a CPU must have a multiple of 16 rows",
                                    t->shape[0], t->shape[1]);
    } else {
        w->inner_tiles = t->shape[3] * 2;
        if (t->shape[0] < 1 || t->shape[0] > INT32_MAX || t->shape[1] < 1 ||
            t->shape[1] > INT32_MAX || t->shape[2] != 32 ||
            (t->shape[3] != 1 && t->shape[3] != 2 && t->shape[3] != 4))
            return nib__weight_fail(q, NIB_BAD_INPUT, ".weight",
                                    "is [%" PRId64 "][%" PRId64 "][%" PRId64 "][%" PRId64
                                    "]; int4 packed for a GPU must be [n/8][k/16/t][32][t/2] with "
                                    "t = 2, 4 or 8",
                                    t->shape[0], t->shape[1], t->shape[2], t->shape[3]);
        w->stored_n = t->shape[0] * 8;
        w->stored_k = t->shape[1] * 16 * w->inner_tiles;
    }
    w->n = w->stored_n;
    w->codes = t->data;
    return NIB_OK;
}

/* Columns without padding, derived from other layers; 0: unknown. */
static int64_t find_columns(const nib_weight_query *q)
{
    char other[512];
    const size_t size = strlen(q->module);
    nib_weight_query embed = *q;
    embed.module = "model.embed_tokens";
    const nib_tensor *table = nib__weight_part(&embed, ".weight");
    const int64_t width = table != NULL && table->rank == 2 ? table->shape[1] : 0;
    if (replace_last(other, q->module, "down_proj", "gate_proj"))
        return count_rows(find_part(q, other, ".weight"));
    if (size >= 6 && strcmp(q->module + size - 6, "o_proj") == 0 && q->cp->paired > 0)
        return q->cp->paired_count;
    return width;
}

static nib_status read_columns(const nib_weight_query *q)
{
    enum { PADDED_TO = 1024 };
    nib_weight *w = q->out;
    const int64_t k = find_columns(q);
    w->k = k == 0 ? w->stored_k : k;
    if (w->k == w->stored_k)
        return NIB_OK;
    if (nib__round_up(w->k, PADDED_TO) != w->stored_k)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".weight",
                                "is packed with %" PRId64
                                " columns, but other layers imply %" PRId64 ", padded to %" PRId64,
                                w->stored_k, w->k, nib__round_up(w->k, PADDED_TO));
    nib__weight_report(q, ".weight", "columns padded to a multiple of 1024", "columns of the model",
                       0, "the padding has no weights");
    return NIB_OK;
}

static nib_status check_finite(const nib_weight_query *q, const char *suffix, const nib_tensor *t,
                               int64_t first, int64_t groups)
{
    const int64_t size = nib__type_bits(t->type) / 8, rows = t->shape[1];
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = 0; i < 2 * q->out->n; i++) {
            float value;
            nib__to_f32(&value, t->data + ((g * rows + first) * 2 + i) * size, t->type, 1);
            if (!isfinite(value))
                return nib__weight_fail(q, NIB_BAD_INPUT, suffix,
                                        "%s at row %" PRId64 ", group %" PRId64
                                        " is not finite; results would not be finite",
                                        i % 2 == 0 ? "scale" : "zero point", i / 2, g);
        }
    return NIB_OK;
}

/* Scale and zero are interleaved; rows are an inner dimension of groups. The tensor exists. */
nib_status nib__weight_read_pairs(const nib_weight_query *q, const char *suffix, int64_t first)
{
    nib_weight *w = q->out;
    const nib_tensor *t = nib__weight_part(q, suffix);
    if (t->rank != 3 || t->shape[2] != 2 || t->shape[0] < 1 || !nib__type_is_float(t->type) ||
        first + w->n > t->shape[1] || w->stored_k % t->shape[0] != 0)
        return nib__weight_fail(q, NIB_BAD_INPUT, suffix,
                                "is not [groups][n][2] of floats for %" PRId64 " rows of %" PRId64
                                " columns",
                                w->n, w->stored_k);
    w->scheme = (nib_scheme){
        .code = NIB_CODE_I4, .group = w->stored_k / t->shape[0], .zero = NIB_ZERO_FLOAT};
    const int64_t size = nib__type_bits(t->type) / 8;
    w->scales = t->data + 2 * first * size;
    w->zeros = t->data + (2 * first + 1) * size;
    w->scale_type = w->zero_type = t->type;
    w->scale_stride_n = 2;
    w->scale_stride_g = 2 * t->shape[1];
    return check_finite(q, suffix, t, first, nib__scheme_groups(&w->scheme, w->k));
}

/* ---- which machine ---- */

static const struct {
    nib_code_layout layout;
    const char *machine;
    bool words; /* only for I32 tensors */
    int64_t rows;
} layouts[] = {
    {NIB_LAYOUT_TINYGEMM_CUDA, "CUDA", true, 8},
    {NIB_LAYOUT_TINYGEMM_ROCM, "ROCm", true, 16},
    {NIB_LAYOUT_TINYGEMM_AVX512, "CPUs with AVX-512", false, 16},
    {NIB_LAYOUT_TINYGEMM_AVX2, "CPUs with AVX2", false, 16},
    {NIB_LAYOUT_TINYGEMM_SCALAR, "other CPUs", false, 16},
};

/* How well the first groups, read in one layout, match the output of the quantizer. */
typedef struct fit {
    double ends;  /* 0 to 1: how often the extreme codes of a group are 0 and 15 */
    double means; /* -1 to 1: correlation of a group's mean code with the code of its zero */
} fit;

typedef struct sums {
    double x, y, xx, yy, xy, count;
} sums;

static double correlation(const sums *s)
{
    const double x = s->xx * s->count - s->x * s->x, y = s->yy * s->count - s->y * s->y;
    return x > 0 && y > 0 ? (s->xy * s->count - s->x * s->y) / sqrt(x * y) : 0;
}

static fit measure_fit(nib_weight *w, nib_code_layout layout)
{
    enum { ROWS = 32, GROUPS = 4, COLUMNS = 256 };
    int8_t codes[COLUMNS];
    const int64_t size = w->scheme.group, groups = nib__min(w->k / size, GROUPS);
    int ends = 0;
    sums s = {0};
    w->layout = layout;
    for (int64_t i = 0; i < nib__min(w->n, ROWS); i++)
        for (int64_t g = 0; g < groups; g++) {
            int low = 7, high = -8, total = 0;
            nib__weight_codes(w, i, g * size, size, codes);
            for (int64_t j = 0; j < size; j++) {
                low = codes[j] < low ? codes[j] : low;
                high = codes[j] > high ? codes[j] : high;
                total += codes[j];
            }
            ends += (low == -8) + (high == 7);
            const double scale = (double)nib__weight_scale(w, i, g);
            const double x = (double)total / (double)size,
                         y = scale == 0 ? 0 : -(double)nib__weight_zero(w, i, g) / scale;
            s = (sums){s.x + x, s.y + y, s.xx + x * x, s.yy + y * y, s.xy + x * y, s.count + 1};
        }
    return (fit){s.count == 0 ? 0 : ends / (2 * s.count), correlation(&s)};
}

/* Different layouts of few rows may be identical. */
static bool same_codes(nib_weight *w, nib_code_layout a, nib_code_layout b)
{
    enum { COLUMNS = 256 };
    int8_t one[COLUMNS], other[COLUMNS];
    for (int64_t i = 0; i < w->n; i++)
        for (int64_t k0 = 0; k0 < w->k; k0 += COLUMNS) {
            const int64_t count = nib__min(COLUMNS, w->k - k0);
            w->layout = a;
            nib__weight_codes(w, i, k0, count, one);
            w->layout = b;
            nib__weight_codes(w, i, k0, count, other);
            if (memcmp(one, other, (size_t)count) != 0)
                return false;
        }
    return true;
}

static void report_machine(const nib_weight_query *q, const char *codes)
{
    for (size_t i = 0; i < COUNT(layouts); i++)
        if (layouts[i].layout == q->out->layout)
            nib__weight_report(
                q, codes, layouts[i].machine, "any machine", 0,
                "detected from the codes, which depend on the machine they were packed for");
}

/* The quantizer maps every group to the full range of codes, 0 to 15, with a zero point that for
 * weights is near their mean. In the right layout both properties show; in a wrong one, groups mix
 * or rows have the scales of other rows. */
nib_status nib__weight_pick_layout(const nib_weight_query *q, const char *codes, const char *suffix,
                                   bool words)
{
    nib_weight *w = q->out;
    fit best = {0}, second = {0}, now;
    nib_code_layout layout = NIB_LAYOUT_TINYGEMM_CUDA;
    const int64_t g = w->scheme.group;
    if (g < 16 || g > 256)
        return nib__weight_fail(q, NIB_UNSUPPORTED, suffix,
                                "has groups of %" PRId64 "; 32, 64, 128 and 256 are supported", g);
    for (size_t i = 0; i < COUNT(layouts); i++) {
        if ((layouts[i].words && !words) || w->stored_n % layouts[i].rows != 0)
            continue;
        now = measure_fit(w, layouts[i].layout);
        if (now.ends == best.ends && now.means == best.means &&
            same_codes(w, layout, layouts[i].layout))
            continue;
        const bool better = now.ends + now.means > best.ends + best.means;
        const fit other = better ? best : now;
        if (other.ends + other.means > second.ends + second.means)
            second = other;
        layout = better ? layouts[i].layout : layout;
        best = better ? now : best;
    }
    w->layout = layout;
    if (best.ends >= 0.9 && best.means >= 0.5 &&
        best.ends + best.means - second.ends - second.means >= 0.25) {
        report_machine(q, codes);
        return NIB_OK;
    }
    return nib__weight_fail(
        q, NIB_UNSUPPORTED, codes,
        "is int4 packed for one kind of machine, which the file does not name; "
        "its codes do not clearly match the layout of CUDA, ROCm or CPUs (score "
        "of the best %.2f, of the next %.2f): quantize the original checkpoint "
        "with nibble",
        best.ends + best.means, second.ends + second.means);
}

static nib_status read_int4(const nib_weight_query *q, const nib_tensor *t)
{
    const nib_tensor *all = nib__weight_part(q, pairs);
    NIB_TRY(read_shape(q, t));
    NIB_TRY(read_columns(q));
    NIB_TRY(nib__weight_read_pairs(q, pairs, all->rank == 3 ? find_first_row(q, all) : 0));
    return nib__weight_pick_layout(q, ".weight", pairs, t->rank == 4);
}

/* ---- public function ---- */

nib_status nib__weight_gptfast(const nib_weight_query *q)
{
    nib_weight *w = q->out;
    const nib_tensor *t = nib__weight_part(q, ".weight");
    if (t->type != NIB_TYPE_I8)
        return read_int4(q, t);
    NIB_TRY(nib__weight_read_bytes(q, ".weight", NIB_TYPE_I8));
    w->scheme = (nib_scheme){.code = NIB_CODE_I8, .group = NIB_GROUP_ROW, .symmetric = true};
    return nib__weight_read_grid(q, ".scales", NIB_TYPE_NONE);
}

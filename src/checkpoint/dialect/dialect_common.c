/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of weights that several tools store the same way. Checks shapes, types and ranges.
 */
#include "dialect_common.h"

#include "code_layout.h"

#include <inttypes.h>
#include <math.h>

nib_status nib__weight_read_bytes(const nib_weight_query *q, const char *suffix, nib_type type)
{
    nib_weight *w = q->out;
    const nib_tensor *codes = nib__weight_part(q, suffix);
    NIB_TRY(nib__weight_expect_matrix(q, suffix, codes, type));
    w->n = codes->shape[0];
    w->k = codes->shape[1];
    w->layout = codes->stored_n > 0 ? NIB_LAYOUT_BYTE_T : NIB_LAYOUT_BYTE;
    w->stored_n = codes->stored_n;
    w->codes = codes->data;
    w->rows = codes->rows;
    return NIB_OK;
}

static bool is_one_value(const nib_tensor *t)
{
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] != 1)
            return false;
    return true;
}

/* Checks the shape of scales or zeros. */
static nib_status expect_grid(const nib_weight_query *q, const char *suffix, const nib_tensor *t)
{
    const nib_weight *w = q->out;
    const bool one = w->scheme.group == NIB_GROUP_TENSOR;
    const int64_t rows = w->scale_rows > 1 ? nib__ceil_div(w->n, w->scale_rows) : w->n;
    const int64_t shape[2] = {one ? 1 : rows, nib__scheme_groups(&w->scheme, w->k)};
    if (one && t != NULL && is_one_value(t))
        return NIB_OK;
    const bool flat = t != NULL && shape[1] == 1 && t->rank == 1;
    /* ModelOpt stores scales of blocks as [rows, 1, groups, 1] */
    const bool spaced = t != NULL && t->rank == 4 && t->shape[1] == 1 && t->shape[3] == 1;
    const int64_t wide[4] = {shape[0], 1, shape[1], 1};
    return nib__weight_expect(q, suffix, t, NIB_TYPE_NONE,
                              flat     ? 1
                              : spaced ? 4
                                       : 2,
                              spaced ? wide : shape);
}

nib_status nib__weight_read_grid(const nib_weight_query *q, const char *suffix, nib_type type)
{
    nib_weight *w = q->out;
    const nib_tensor *scales = nib__weight_part(q, suffix);
    const bool one = w->scheme.group == NIB_GROUP_TENSOR;
    NIB_TRY(expect_grid(q, suffix, scales));
    w->scales = scales->data;
    w->scale_type = scales->type == NIB_TYPE_U8 && type != NIB_TYPE_NONE ? type : scales->type;
    w->scale_stride_n = one ? 0 : nib__scheme_groups(&w->scheme, w->k);
    w->scale_stride_g = one ? 0 : 1;
    if (scales->stored_n > 0) /* transposed */
        w->scale_stride_n = 1, w->scale_stride_g = scales->stored_n;
    return nib__weight_check_scales(q, suffix);
}

nib_status nib__weight_read_columns(const nib_weight_query *q, const char *suffix)
{
    nib_weight *w = q->out;
    const nib_tensor *scales = nib__weight_part(q, suffix);
    const int64_t shape[2] = {nib__scheme_groups(&w->scheme, w->k), w->n};
    NIB_TRY(nib__weight_expect(q, suffix, scales, NIB_TYPE_NONE, 2, shape));
    w->scales = scales->data;
    w->scale_type = scales->type;
    w->scale_stride_n = 1;
    w->scale_stride_g = w->n;
    return nib__weight_check_scales(q, suffix);
}

nib_status nib__weight_read_zeros(const nib_weight_query *q, const char *suffix)
{
    nib_weight *w = q->out;
    const nib_tensor *zeros = nib__weight_part(q, suffix);
    w->scheme.symmetric = zeros == NULL;
    if (zeros == NULL)
        return NIB_OK;
    NIB_TRY(expect_grid(q, suffix, zeros));
    w->zeros = zeros->data;
    w->zero_type = zeros->type;
    w->scheme.zero = NIB_ZERO_INT;
    return nib__weight_check_zeros(q, suffix);
}

void nib__weight_drop_zeros(const nib_weight_query *q)
{
    nib_weight *w = q->out;
    w->scheme.zero = NIB_ZERO_INT;
    w->scheme.symmetric = false;
    w->zero_type = NIB_TYPE_I8;
    if (nib__words_has_nonzero_zero_point(w))
        return;
    w->scheme.zero = NIB_ZERO_NONE;
    w->scheme.symmetric = true;
    w->zeros = NULL;
    w->zero_type = NIB_TYPE_NONE;
}

/* ---- act-order ---- */

static int64_t read_group(const nib_tensor *t, int64_t i)
{
    int64_t wide;
    int32_t narrow;
    if (t->type == NIB_TYPE_I64) {
        memcpy(&wide, t->data + 8 * i, sizeof wide);
        return wide;
    }
    memcpy(&narrow, t->data + 4 * i, sizeof narrow);
    return narrow;
}

/* Checks that every group has as many inputs as the groups of stored columns have. */
static nib_status check_counts(const nib_weight_query *q, const char *suffix, const int32_t *counts,
                               int64_t groups, int64_t size)
{
    for (int64_t g = 0; g < groups; g++) {
        const int64_t wanted = nib__min(size, q->out->k - g * size);
        if (counts[g] != wanted)
            return nib__weight_fail(q, NIB_UNSUPPORTED, suffix,
                                    "puts %" PRId32 " inputs into group %" PRId64
                                    "; it must have %" PRId64,
                                    counts[g], g, wanted);
    }
    return NIB_OK;
}

/* Without act-order, compressed-tensors writes -1 everywhere. */
static bool is_unordered(const nib_tensor *t, int64_t k)
{
    for (int64_t j = 0; j < k; j++)
        if (read_group(t, j) != -1)
            return false;
    return true;
}

/* Sorts the inputs by group, stably. counts: [groups] zeroed. */
static nib_status sort_inputs(const nib_weight_query *q, const char *suffix, const nib_tensor *t,
                              int32_t *counts, int32_t *order)
{
    const nib_weight *w = q->out;
    const int64_t groups = nib__scheme_groups(&w->scheme, w->k);
    const int64_t size = nib__scheme_group_size(&w->scheme, w->k);
    for (int64_t j = 0; j < w->k; j++) {
        const int64_t g = read_group(t, j);
        if (g < 0 || g >= groups)
            return nib__weight_fail(q, NIB_BAD_INPUT, suffix,
                                    "puts input %" PRId64 " into group %" PRId64 " of %" PRId64, j,
                                    g, groups);
        counts[g]++;
    }
    NIB_TRY(check_counts(q, suffix, counts, groups, size));
    for (int64_t g = 0; g < groups; g++)
        counts[g] = (int32_t)(g * size);
    for (int64_t j = 0; j < w->k; j++)
        order[counts[read_group(t, j)]++] = (int32_t)j;
    return NIB_OK;
}

nib_status nib__weight_read_order(const nib_weight_query *q, const char *suffix)
{
    nib_weight *w = q->out;
    const nib_tensor *t = nib__weight_part(q, suffix);
    const int64_t groups = nib__scheme_groups(&w->scheme, w->k);
    bool fresh;
    if (t == NULL)
        return NIB_OK;
    if (t->type != NIB_TYPE_I32 && t->type != NIB_TYPE_I64)
        return nib__weight_fail(q, NIB_BAD_INPUT, suffix, "is %s; group indexes must be I32 or I64",
                                nib__type_stored_name(t->type));
    NIB_TRY(nib__weight_expect(q, suffix, t, NIB_TYPE_NONE, 1, &w->k));
    if (w->k > INT32_MAX)
        return nib__weight_fail(q, NIB_UNSUPPORTED, suffix,
                                "has %" PRId64 " inputs, over the limit of 2^31 - 1", w->k);
    if (is_unordered(t, w->k))
        return NIB_OK;
    const size_t bytes = (size_t)(w->k + groups + 1) * sizeof(int32_t);
    int32_t *order = nib__checkpoint_copy(q->cp, t, bytes, &fresh);
    if (order == NULL)
        return nib__fail_memory(q->err, bytes, t->name);
    /* Sort only once: users of an earlier call still read this buffer. */
    int32_t *counts = order + w->k, *is_sorted = counts + groups;
    if (*is_sorted == 0) {
        memset(counts, 0, (size_t)groups * sizeof *counts);
        NIB_TRY(sort_inputs(q, suffix, t, counts, order));
        *is_sorted = 1;
    }
    for (int64_t j = 0; j < w->k; j++)
        if (order[j] != j) {
            w->order = order;
            break;
        }
    return NIB_OK;
}

nib_status nib__weight_read_tensor_scale(const nib_weight_query *q, const char *suffix,
                                         bool divides)
{
    nib_weight *w = q->out;
    const nib_tensor *whole = nib__weight_part(q, suffix);
    if (whole == NULL)
        return nib__weight_fail(q, NIB_BAD_INPUT, suffix, "the tensor is missing");
    if (whole->type != NIB_TYPE_F32 || whole->bytes != sizeof w->tensor_scale)
        return nib__weight_fail(q, NIB_BAD_INPUT, suffix,
                                "is not a single F32, but %s of %" PRIu64 " bytes",
                                nib__type_stored_name(whole->type), whole->bytes);
    memcpy(&w->tensor_scale, whole->data, sizeof w->tensor_scale);
    if (!isfinite(w->tensor_scale) || w->tensor_scale <= 0)
        return nib__weight_fail(q, NIB_BAD_INPUT, suffix,
                                "is %g; scales are %s it, so it must be finite and positive",
                                (double)w->tensor_scale, divides ? "divided by" : "multiplied by");
    w->tensor_divides = divides;
    return NIB_OK;
}

nib_status nib__weight_read_permutation(const nib_weight_query *q, const char *suffix)
{
    nib_weight *w = q->out;
    const nib_tensor *t = nib__weight_part(q, suffix);
    bool fresh;
    NIB_TRY(nib__weight_expect(q, suffix, t, NIB_TYPE_I32, 1, &w->k));
    const size_t bytes = (size_t)w->k * sizeof(int32_t);
    int32_t *order = nib__checkpoint_copy(q->cp, t, bytes + (size_t)w->k, &fresh);
    if (order == NULL)
        return nib__fail_memory(q->err, bytes, t->name);
    uint8_t *seen = (uint8_t *)(order + w->k);
    if (fresh)
        memcpy(order, t->data, bytes);
    memset(seen, 0, (size_t)w->k);
    for (int64_t j = 0; j < w->k; j++) {
        const bool inside = order[j] >= 0 && order[j] < w->k;
        if (!inside || seen[order[j]])
            return nib__weight_fail(q, NIB_BAD_INPUT, suffix,
                                    inside ? "has input %" PRId32 " at index %" PRId64
                                             " a second time"
                                           : "has %" PRId32 " at index %" PRId64
                                             ", which is not an input of 0 to %" PRId64,
                                    order[j], j, w->k - 1);
        seen[order[j]] = 1;
    }
    w->order = order;
    return NIB_OK;
}

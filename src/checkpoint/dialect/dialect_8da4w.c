/* SPDX-License-Identifier: Apache-2.0
 *
 * The state dict of torchao's Int8DynActInt4WeightLinear, as ExecuTorch and torchtune write it, and
 * Meta's quantized Llama 3.2, which adds int8 rows for embedding and output:
 *
 *   M.weight  I8 [n][k]            codes -8 to 7 in groups of k / groups, or int8 rows
 *   M.scales  float [n][groups]    or [n], [n][1]: one per row
 *   M.zeros   float or I8, shaped like the scales, integers; may be missing: 0
 *
 * int4 layers quantize their activations to int8 per token, asymmetric; so does an int8 output
 * layer (ExecuTorch's 8da4w_output_8da8w). Embeddings have no activations.
 */
#include "dialect_common.h"

#include <inttypes.h>
#include <math.h>

bool nib__checkpoint_has_groups(const nib_checkpoint *cp)
{
    for (size_t i = 0; i < cp->count; i++) {
        const nib_tensor *t = cp->tensors[i];
        if ((t->rank == 2 && t->shape[1] > 1 && nib__ends_with(t->name, ".scales")) ||
            nib__ends_with(t->name, ".zeros")) /* never in gpt-fast: one scale per row */
            return true;
    }
    return false;
}

static bool is_embedding(const nib_weight_query *q)
{
    return nib__ends_with(q->module, "embed_tokens") || nib__ends_with(q->module, "embeddings");
}

bool nib__weight_is_8da4w(const nib_weight_query *q, const nib_tensor *codes)
{
    return codes->type == NIB_TYPE_I8 && q->cp->grouped_scales &&
           nib__weight_part(q, ".scales") != NULL;
}

/* Refuses adaptors: they are part of the layer, and ignoring them would change every output. */
static nib_status check_adaptors(const nib_weight_query *q)
{
    static const char *const names[] = {".adaptor.A.weight", ".adaptor.B.weight", ".lora_a.weight",
                                        ".lora_b.weight"};
    for (size_t i = 0; i < COUNT(names); i++)
        if (nib__weight_part(q, names[i]) != NULL)
            return nib__weight_fail(q, NIB_UNSUPPORTED, names[i],
                                    "is a LoRA adaptor, which nibble does not apply; use a "
                                    "checkpoint without adaptors (Meta's SpinQuant or BF16 one)");
    return NIB_OK;
}

/* Sets the scheme from the shape of the scales. */
static nib_status read_scheme(const nib_weight_query *q)
{
    nib_weight *w = q->out;
    const nib_tensor *scales = nib__weight_part(q, ".scales");
    const bool zeros = nib__weight_part(q, ".zeros") != NULL;
    const int64_t groups = scales->rank == 2 ? scales->shape[1] : 1;
    if (scales->rank < 1 || scales->rank > 2 || groups < 1)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".scales",
                                "has %d dimensions; scales must be [n][groups] or [n]",
                                scales->rank);
    if (w->k % groups != 0)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".scales",
                                "has %" PRId64 " groups, which do not divide k = %" PRId64, groups,
                                w->k);
    /* one scale per row with stored zeros is int4 in groups of k: int8 rows never have zeros */
    const bool int4 = !is_embedding(q) && scales->rank == 2 && (groups > 1 || zeros);
    w->scheme = (nib_scheme){.code = int4 ? NIB_CODE_I4 : NIB_CODE_I8,
                             .group = groups > 1 || int4 ? w->k / groups : NIB_GROUP_ROW,
                             .symmetric = true,
                             .act = is_embedding(q) ? NIB_ACT_FLOAT : NIB_ACT_I8_TOKEN};
    return NIB_OK;
}

static nib_status check_integers(const nib_weight_query *q, const nib_tensor *zeros, int64_t groups)
{
    const int64_t count = q->out->n * groups, size = nib__type_bits(zeros->type) / 8;
    for (int64_t i = 0; i < count; i++) {
        float value;
        nib__to_f32(&value, zeros->data + i * size, zeros->type, 1);
        if (!(value >= -128 && value <= 127) || value != floorf(value))
            return nib__weight_fail(q, NIB_BAD_INPUT, ".zeros",
                                    "is %g at row %" PRId64 ", group %" PRId64
                                    "; zero points must be integers from -128 to 127",
                                    (double)value, i / groups, i % groups);
    }
    return NIB_OK;
}

/* Zero points stored as floats are integers and read as such. If all are 0, as in most files, the
 * scheme gets none. */
static nib_status read_float_zeros(const nib_weight_query *q, const nib_tensor *zeros)
{
    nib_weight *w = q->out;
    NIB_TRY(check_integers(q, zeros, nib__scheme_groups(&w->scheme, w->k)));
    w->zero_type = NIB_TYPE_I8;
    w->float_zeros = zeros->type;
    NIB_TRY(nib__weight_check_int_zeros(q, ".zeros"));
    if (w->scheme.zero != NIB_ZERO_NONE)
        nib__weight_report(q, ".zeros", nib__type_name(zeros->type), "i8", 0,
                           "zero points are integers");
    return NIB_OK;
}

static nib_status read_zeros(const nib_weight_query *q)
{
    nib_weight *w = q->out;
    const nib_tensor *zeros = nib__weight_part(q, ".zeros"),
                     *scales = nib__weight_part(q, ".scales");
    if (zeros == NULL)
        return NIB_OK;
    NIB_TRY(nib__weight_expect(q, ".zeros", zeros, NIB_TYPE_NONE, scales->rank, scales->shape));
    w->scheme.symmetric = false;
    w->scheme.zero = NIB_ZERO_INT;
    w->zeros = zeros->data;
    w->zero_type = zeros->type;
    if (nib__type_is_float(zeros->type))
        return read_float_zeros(q, zeros);
    return nib__weight_check_zeros(q, ".zeros");
}

nib_status nib__weight_8da4w(const nib_weight_query *q)
{
    NIB_TRY(nib__weight_read_bytes(q, ".weight", NIB_TYPE_I8));
    NIB_TRY(check_adaptors(q));
    NIB_TRY(read_scheme(q));
    NIB_TRY(nib__weight_read_grid(q, ".scales", NIB_TYPE_NONE));
    return read_zeros(q);
}

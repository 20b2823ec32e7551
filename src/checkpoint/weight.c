/* SPDX-License-Identifier: Apache-2.0
 *
 * The weight of a module: finds the dialect that stores it, and has the checks that all dialects
 * share. Every conversion gets a ledger line; nothing is dropped silently.
 */
#include "dialect_table.h"
#include "fused.h"
#include "latent.h"
#include "rotary.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

enum { PIECE = 256 };

/* ---- names ---- */

const nib_tensor *nib__weight_part(const nib_weight_query *q, const char *suffix)
{
    const nib_checkpoint *cp = q->cp;
    char name[512];
    const int size = snprintf(name, sizeof name, "%s%s", q->module, suffix);
    if (size >= (int)sizeof name)
        return NULL;
    const size_t i = nib__name_index_find(&cp->by_name, (const void *const *)cp->tensors, name);
    if (i == SIZE_MAX)
        return nib__checkpoint_find(cp, name);
    cp->owners[i] = strlen(q->module);
    return cp->tensors[i];
}

const nib_meta *nib__weight_meta(const nib_weight_query *q, const char *suffix)
{
    const nib_checkpoint *cp = q->cp;
    char name[512];
    const int size = snprintf(name, sizeof name, "%s%s", q->module, suffix);
    if (size >= (int)sizeof name)
        return NULL;
    const size_t i = nib__name_index_find(&cp->by_key, (const void *const *)cp->metas, name);
    return i == SIZE_MAX ? NULL : cp->metas[i];
}

nib_status nib__weight_fail(const nib_weight_query *q, nib_status status, const char *suffix,
                            const char *format, ...)
{
    char sentence[512];
    va_list args;
    va_start(args, format);
    nib__vformat(sentence, sizeof sentence, format, args);
    va_end(args);
    return nib__fail(q->err, status, "%s%s: %s", q->shown, suffix, sentence);
}

nib_status nib__weight_expect(const nib_weight_query *q, const char *suffix,
                              const nib_tensor *tensor, nib_type type, int rank,
                              const int64_t *shape)
{
    char found[NIB_SHAPE_SHOWN], wanted[NIB_SHAPE_SHOWN];
    if (tensor == NULL)
        return nib__weight_fail(q, NIB_BAD_INPUT, suffix, "the tensor is missing");
    if (type != NIB_TYPE_NONE && tensor->type != type)
        return nib__weight_fail(q, NIB_BAD_INPUT, suffix, "is %s, expected %s",
                                nib__type_stored_name(tensor->type), nib__type_stored_name(type));
    bool same = tensor->rank == rank;
    for (int i = 0; same && i < rank; i++)
        same = tensor->shape[i] == shape[i];
    if (same)
        return NIB_OK;
    return nib__weight_fail(q, NIB_BAD_INPUT, suffix, "has shape %s, expected %s",
                            nib__format_shape(found, tensor->shape, tensor->rank),
                            nib__format_shape(wanted, shape, rank));
}

nib_status nib__weight_expect_matrix(const nib_weight_query *q, const char *suffix,
                                     const nib_tensor *tensor, nib_type type)
{
    char found[NIB_SHAPE_SHOWN];
    if (tensor->rank != 2 || tensor->shape[0] == 0 || tensor->shape[1] == 0)
        return nib__weight_fail(q, NIB_BAD_INPUT, suffix,
                                "has shape %s; expected two dimensions, neither of them 0",
                                nib__format_shape(found, tensor->shape, tensor->rank));
    return nib__weight_expect(q, suffix, tensor, type, 2, tensor->shape);
}

void nib__weight_report(const nib_weight_query *q, const char *suffix, const char *asked,
                        const char *done, double max_rel_change, const char *reason)
{
    nib_ledger *ledger = q->ledger;
    if (ledger == NULL)
        return;
    nib_ledger_tensor *line =
        nib__ledger_add_tensor(ledger, nib__ledger_text(ledger, "%s%s", q->module, suffix));
    if (line == NULL)
        return;
    line->asked = nib__ledger_text(ledger, "%s", asked);
    line->done = nib__ledger_text(ledger, "%s", done);
    line->reason = nib__ledger_text(ledger, "%s", reason);
    line->max_rel_change = max_rel_change;
}

void *nib__checkpoint_copy(const nib_checkpoint *cp, const nib_tensor *tensor, size_t size,
                           bool *fresh)
{
    const size_t i =
        nib__name_index_find(&cp->by_name, (const void *const *)cp->tensors, tensor->name);
    *fresh = cp->copies[i] == NULL;
    if (*fresh) {
        cp->copies[i] = nib__arena_take(cp->copy_arena, size, 1);
        cp->copy_sizes[i] = size;
    }
    return cp->copy_sizes[i] == size ? cp->copies[i] : NULL;
}

/* ---- scales and zeros ---- */

static int64_t scale_count(const nib_weight *w)
{
    const int64_t rows = w->scale_rows > 1 ? nib__ceil_div(w->n, w->scale_rows) : w->n;
    return w->scheme.group == NIB_GROUP_TENSOR ? 1 : rows * nib__scheme_groups(&w->scheme, w->k);
}

/* "row 3, group 5" for element i in memory order, which depends on the layout (transposed or not).
 */
static const char *format_location(char out[64], const nib_weight *w, int64_t i)
{
    const int64_t groups = nib__scheme_groups(&w->scheme, w->k);
    const bool transposed = w->scale_stride_g > 1;
    if (w->scheme.group == NIB_GROUP_TENSOR)
        snprintf(out, 64, "index 0");
    else
        snprintf(out, 64, "row %" PRId64 ", group %" PRId64,
                 transposed ? i % w->n : i / groups * nib__max(1, w->scale_rows),
                 transposed ? i / w->n : i % groups);
    return out;
}

static const char *format_value(char out[32], const nib_weight_query *q, double value)
{
    nib_text text;
    nib__text_init(&text, &q->cp->allocator);
    nib__text_double(&text, value);
    snprintf(out, 32, "%s", text.failed ? "?" : text.at);
    nib__text_free(&text);
    return out;
}

/* A check of values by their bits, split among the workers if there are any. */
typedef struct bit_check {
    const uint8_t *at;
    int64_t count;
    int bytes;
    uint32_t exponent; /* these bits must not all be set; 0: every byte must be 0 */
    atomic_bool found; /* a value fails the check */
} bit_check;

enum { LOOK_PART = 32 << 10 };

static void job_check_bits(void *ctx, int worker, int64_t begin, int64_t end)
{
    bit_check *l = ctx;
    const int64_t from = begin * LOOK_PART, some = nib__min(end * LOOK_PART, l->count) - from;
    const uint8_t *at = l->at + from * l->bytes;
    (void)worker;
    /* all bytes are 0 if the first is and each equals the next */
    const bool good = l->exponent != 0
                          ? nib__find_bits(at, some, l->bytes, l->exponent) == some
                          : at[0] == 0 && memcmp(at, at + 1, (size_t)(some * l->bytes) - 1) == 0;
    if (!good)
        atomic_store(&l->found, true);
}

static bool passes_check(const nib_checkpoint *cp, bit_check *l)
{
    const int64_t parts = nib__ceil_div(l->count, LOOK_PART);
    if (parts > 1 && cp->pool != NULL)
        nib__pool_share_out(cp->pool, parts, 1, false, job_check_bits, l);
    else if (parts > 0)
        job_check_bits(l, 0, 0, parts);
    return !atomic_load(&l->found);
}

/* Fast check by bits: true means that all values are finite; false means unknown. */
static bool is_finite_by_bits(const nib_checkpoint *cp, const void *values, nib_type type,
                              int64_t count)
{
    const uint32_t exponent = type == NIB_TYPE_F32    ? 0x7f800000
                              : type == NIB_TYPE_BF16 ? 0x7f80
                              : type == NIB_TYPE_F16  ? 0x7c00
                                                      : 0;
    bit_check l = {values, count, nib__type_bits(type) / 8, exponent, false};
    return exponent != 0 && passes_check(cp, &l);
}

nib_status nib__weight_check_finite(const nib_weight_query *q, const char *suffix,
                                    const void *values, nib_type type, int64_t count,
                                    const char *what)
{
    float piece[PIECE];
    char location[64], value[32];
    const int64_t bytes = nib__type_bits(type) / 8;
    if (is_finite_by_bits(q->cp, values, type, count))
        return NIB_OK;
    for (int64_t at = 0; at < count; at += PIECE) {
        const int64_t some = nib__min(PIECE, count - at);
        nib__to_f32(piece, (const uint8_t *)values + at * bytes, type, some);
        if (nib__all_finite(piece, some))
            continue;
        for (int64_t i = 0; i < some; i++) {
            if (isfinite(piece[i]))
                continue;
            if (strncmp(what, "bias", 4) == 0)
                snprintf(location, sizeof location, "index %" PRId64, at + i);
            else
                format_location(location, q->out, at + i);
            return nib__weight_fail(q, NIB_BAD_INPUT, suffix,
                                    "%s at %s is %s in f32; results would not be finite", what,
                                    location, format_value(value, q, (double)piece[i]));
        }
    }
    return NIB_OK;
}

void nib__weight_report_f64(const nib_weight_query *q, const char *suffix, const void *values,
                            int64_t count)
{
    if (q->ledger == NULL) /* computing the change reads all values, only for the ledger */
        return;
    nib__weight_report(q, suffix, "f64", "f32", nib__checkpoint_f64_change(q->cp, values, count),
                       "every product here is computed in f32");
}

/* Checks only the weight's own scales: padding of tiles may have any value, and rows between those
 * of a view belong to another weight. */
static nib_status check_each_scale(const nib_weight_query *q, const char *suffix)
{
    const nib_weight *w = q->out;
    const int64_t groups = nib__scheme_groups(&w->scheme, w->k);
    for (int64_t i = 0; i < w->n; i++)
        for (int64_t g = 0; g < groups; g++)
            if (!isfinite(nib__weight_group_scale(w, i, g))) /* of one byte: NaN */
                return nib__weight_fail(q, NIB_BAD_INPUT, suffix,
                                        "scale at row %" PRId64 ", group %" PRId64
                                        " is nan in f32; results would not be finite",
                                        i, g);
    return NIB_OK;
}

nib_status nib__weight_check_scales(const nib_weight_query *q, const char *suffix)
{
    const nib_weight *w = q->out;
    const nib_type wanted = nib__codes[w->scheme.code].scale_type;
    if (wanted != NIB_TYPE_NONE ? w->scale_type != wanted : !nib__type_is_float(w->scale_type))
        return nib__weight_fail(
            q, NIB_BAD_INPUT, suffix, "is %s; scales are %s", nib__type_stored_name(w->scale_type),
            wanted != NIB_TYPE_NONE ? nib__type_stored_name(wanted) : "F32, F16, BF16 or F64");
    if (w->scale_tiles || w->rows != NULL)
        return check_each_scale(q, suffix);
    NIB_TRY(nib__weight_check_finite(q, suffix, w->scales, w->scale_type, scale_count(w), "scale"));
    if (w->scale_type == NIB_TYPE_F64)
        nib__weight_report_f64(q, suffix, w->scales, scale_count(w));
    return NIB_OK;
}

nib_status nib__weight_check_int_zeros(const nib_weight_query *q, const char *suffix)
{
    nib_weight *w = q->out;
    char location[64];
    const nib_type type = w->float_zeros != NIB_TYPE_NONE ? w->float_zeros : w->zero_type;
    const int64_t count = scale_count(w), bytes = nib__type_bits(type) / 8;
    /* a zero point is a code: torchao clamps it to the range of codes */
    const float high = (float)((1 << (nib__code_bits(w->scheme.code) - 1)) - 1), low = -high - 1;
    bit_check zeros = {w->zeros, count, (int)bytes, 0, false};
    const bool none = passes_check(q->cp, &zeros); /* symmetric recipes store zeros */
    bool any = false;
    for (int64_t at = 0; at < count && !none; at += PIECE) {
        float piece[PIECE];
        const int64_t some = nib__min(PIECE, count - at);
        nib__to_f32(piece, (const uint8_t *)w->zeros + at * bytes, type, some);
        unsigned found = 0, wide = 0; /* no early exit, so that the loop vectorizes */
        for (int64_t i = 0; i < some; i++) {
            found |= piece[i] != 0;
            wide |= (piece[i] < low) | (piece[i] > high);
        }
        any = any || found != 0;
        for (int64_t i = 0; i < some && wide != 0; i++) {
            if (piece[i] < low || piece[i] > high)
                return nib__weight_fail(q, NIB_BAD_INPUT, suffix,
                                        "zero point at %s is %.0f, outside %.0f to %.0f",
                                        format_location(location, w, at + i), (double)piece[i],
                                        (double)low, (double)high);
        }
    }
    if (!any) {
        w->scheme.zero = NIB_ZERO_NONE;
        w->scheme.symmetric = true;
        nib__checkpoint_release(q->cp, w->zeros, (uint64_t)(count * bytes));
        w->zeros = NULL;
        w->zero_type = w->float_zeros = NIB_TYPE_NONE;
    }
    return NIB_OK;
}

nib_status nib__weight_check_zeros(const nib_weight_query *q, const char *suffix)
{
    const nib_weight *w = q->out;
    if (w->scheme.zero == NIB_ZERO_INT) {
        if (w->zero_type != NIB_TYPE_I8 && w->zero_type != NIB_TYPE_I32)
            return nib__weight_fail(q, NIB_BAD_INPUT, suffix,
                                    "is %s; integer zero points are I8 or I32",
                                    nib__type_stored_name(w->zero_type));
        return nib__weight_check_int_zeros(q, suffix);
    }
    if (!nib__type_is_float(w->zero_type))
        return nib__weight_fail(q, NIB_BAD_INPUT, suffix,
                                "is %s; float zero points are F32, F16, BF16 or F64",
                                nib__type_stored_name(w->zero_type));
    NIB_TRY(
        nib__weight_check_finite(q, suffix, w->zeros, w->zero_type, scale_count(w), "zero point"));
    if (w->zero_type == NIB_TYPE_F64)
        nib__weight_report_f64(q, suffix, w->zeros, scale_count(w));
    return NIB_OK;
}

nib_status nib__weight_read_static(const nib_weight_query *q, const char *scale, const char *zero)
{
    const nib_tensor *s = nib__weight_part(q, scale),
                     *z = zero == NULL ? NULL : nib__weight_part(q, zero);
    bool fresh;
    char value[32];
    if (s == NULL)
        return nib__weight_fail(q, NIB_BAD_INPUT, scale, "the tensor is missing");
    if (!nib__type_is_float(s->type) || s->bytes != (uint64_t)nib__type_bits(s->type) / 8)
        return nib__weight_fail(q, NIB_BAD_INPUT, scale,
                                "is not a single float, but %s of %" PRIu64 " bytes",
                                nib__type_stored_name(s->type), s->bytes);
    float *to = nib__checkpoint_copy(q->cp, s, sizeof *to, &fresh);
    if (to == NULL)
        return nib__fail_memory(q->err, sizeof *to, s->name);
    nib__to_f32(to, s->data, s->type, 1);
    if (!isfinite(*to) || *to <= 0)
        return nib__weight_fail(q, NIB_BAD_INPUT, scale,
                                "is %s; an activation scale must be finite and positive",
                                format_value(value, q, (double)*to));
    q->out->act_scale = to;
    if (z == NULL)
        return NIB_OK;
    if ((z->type != NIB_TYPE_I8 && z->type != NIB_TYPE_I32) ||
        z->bytes != (uint64_t)nib__type_bits(z->type) / 8)
        return nib__weight_fail(q, NIB_BAD_INPUT, zero,
                                "is not a single I8 or I32, but %s of %" PRIu64 " bytes",
                                nib__type_stored_name(z->type), z->bytes);
    int32_t *whole = nib__checkpoint_copy(q->cp, z, sizeof *whole, &fresh);
    if (whole == NULL)
        return nib__fail_memory(q->err, sizeof *whole, z->name);
    if (z->type == NIB_TYPE_I8)
        *whole = (int8_t)z->data[0];
    else
        memcpy(whole, z->data, sizeof *whole);
    if (*whole < -128 || *whole > 127)
        return nib__weight_fail(q, NIB_BAD_INPUT, zero, "is %" PRId32 ", outside -128 to 127",
                                *whole);
    q->out->act_zero = whole;
    return NIB_OK;
}

/* ---- plain weights ---- */

bool nib__weight_is_stacked(const nib_weight_query *q, const nib_tensor *codes)
{
    (void)q;
    return nib__type_is_float(codes->type) && (codes->rows != NULL || codes->stored_n > 0);
}

nib_status nib__weight_plain(const nib_weight_query *q)
{
    const nib_tensor *tensor = nib__weight_part(q, ".weight");
    nib_weight *w = q->out;
    nib_status status;
    char shape[NIB_SHAPE_SHOWN];
    if (tensor->rank != 2)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".weight",
                                "has shape %s; a linear weight has two dimensions",
                                nib__format_shape(shape, tensor->shape, tensor->rank));
    w->n = tensor->shape[0];
    w->k = tensor->shape[1];
    w->layout = NIB_LAYOUT_FLOAT;
    w->scheme = (nib_scheme){.symmetric = true};
    w->codes = tensor->data;
    w->rows = tensor->rows;
    if (tensor->stored_n > 0) { /* experts.c takes no other type than these three */
        w->layout = NIB_LAYOUT_FLOAT_T;
        w->stored_n = tensor->stored_n;
    }
    switch (tensor->type) {
    case NIB_TYPE_F64: /* no code holds f64: values are rounded to f32 when read */
        w->scheme.code = NIB_CODE_F32;
        w->layout = NIB_LAYOUT_F64;
        nib__weight_report_f64(q, ".weight", tensor->data, w->n * w->k);
        break;
    case NIB_TYPE_F32:
    case NIB_TYPE_F16:
    case NIB_TYPE_BF16: w->scheme.code = nib__float_code(tensor->type); break;
    default:
        if (nib__weight_fail_unsupported(q, &status))
            return status;
        return nib__weight_fail(
            q, NIB_UNSUPPORTED, ".weight",
            "is %s without metadata that describes it; nibble reads F32, F16, BF16, F64 and "
            "quantized weights in a known format (see `nibble formats`)",
            nib__type_stored_name(tensor->type));
    }
    return NIB_OK;
}

static nib_status fail_missing(const nib_weight_query *q)
{
    nib_status status;
    if (nib__weight_fail_unsupported(q, &status) || nib__latent_fail(q, &status) ||
        nib__fused_fail(q, &status))
        return status;
    if (nib__weight_meta(q, ".weight") != NULL)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".weight",
                                "is described in __metadata__, but neither it nor its codes "
                                "(_weight_qdata) are stored");
    return nib__weight_fail(q, NIB_BAD_INPUT, ".weight", "the checkpoint has no such tensor");
}

static nib_status read_weight(const nib_weight_query *q, bool *found)
{
    const char *codes;
    const nib_dialect_row *dialect = nib__dialect_of(q, &codes);
    if (dialect == NULL && found == NULL)
        return fail_missing(q);
    if (dialect == NULL) {
        *found = false;
        return NIB_OK;
    }
    (void)nib__weight_part(q, codes); /* mark the codes as the module's */
    if (strcmp(codes, ".weight") != 0 && nib__weight_part(q, ".weight") != NULL)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".weight", "is stored twice, plain and as %s",
                                codes + 1);
    return dialect->read(q);
}

/* ---- public functions ---- */

/* The module that stores the weight: the given one, or the target of its alias. */
static const char *find_storing_module(nib_weight_query *q, char *storage, size_t size)
{
    static const char end[] = ".weight";
    char name[512], reason[400], target[NIB_SHOWN];
    if (snprintf(name, sizeof name, "%s%s", q->module, end) >= (int)sizeof name)
        return q->module;
    const nib_meta *alias = nib__checkpoint_alias(q->cp, name);
    const size_t length = alias == NULL ? 0 : strlen(alias->value);
    if (length < sizeof end || length - (sizeof end - 1) >= size ||
        strcmp(alias->value + length - 7, end) != 0)
        return q->module;
    memcpy(storage, alias->value, length - 7);
    storage[length - 7] = 0;
    nib__escape_name(target, sizeof target, alias->value, length);
    snprintf(reason, sizeof reason, "stored once: an alias of %s, according to __metadata__",
             target);
    nib__weight_report(q, end, name, alias->value, 0, reason);
    return storage;
}

nib_status nib__checkpoint_weight(nib_weight *out, bool *found, const nib_checkpoint *cp,
                                  const char *module, nib_ledger *ledger, nib_err *err)
{
    nib_weight w = {.bias_type = NIB_TYPE_NONE};
    char storage[512];
    nib_weight_query q = {.cp = cp, .module = module, .out = &w, .ledger = ledger, .err = err};
    nib__escape_name(q.shown, sizeof q.shown, module, strlen(module));
    nib_weight_query stored = q;
    stored.module = find_storing_module(&q, storage, sizeof storage);
    nib__escape_name(stored.shown, sizeof stored.shown, stored.module, strlen(stored.module));
    bool exists = true;
    (void)nib__weight_part(&q, ".bias"); /* mark it as the module's even if reading fails */
    NIB_TRY(read_weight(&stored, found == NULL ? NULL : &exists));
    if (found != NULL)
        *found = exists;
    if (!exists)
        return NIB_OK;
    if (w.n <= 0 || w.k <= 0)
        return nib__weight_fail(&q, NIB_BAD_INPUT, ".weight", "has no elements");
    NIB_TRY(nib__rotary_weight(&stored));
    NIB_TRY(nib__weight_read_bias(&q));
    *out = w;
    return NIB_OK;
}

nib_status nib__checkpoint_bias(nib_weight *weight, const nib_checkpoint *cp, const char *module,
                                nib_ledger *ledger, nib_err *err)
{
    nib_weight_query q = {.cp = cp, .module = module, .out = weight, .ledger = ledger, .err = err};
    nib__escape_name(q.shown, sizeof q.shown, module, strlen(module));
    return nib__weight_read_bias(&q);
}

const char *nib__checkpoint_dialect(const nib_checkpoint *cp, const char *module)
{
    nib_weight_query q = {.cp = cp, .module = module};
    char storage[512];
    q.module = find_storing_module(&q, storage, sizeof storage);
    const nib_dialect_row *dialect = nib__dialect_of(&q, NULL);
    return dialect == NULL ? NULL : dialect->name;
}

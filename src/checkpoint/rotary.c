/* SPDX-License-Identifier: Apache-2.0
 *
 * The rotary order of Meta's checkpoints. One table of rows serves all layers: all heads have the
 * same width, so the table for keys is a prefix of the table for queries.
 */
#include "rotary.h"

#include <inttypes.h>
#include <stdlib.h>

enum { HEADS_MAX = 65536, ROWS_MAX = 1 << 24 };

bool nib__is_rotary_table(const char *name)
{
    return strstr(name, "rotary_emb.inv_freq") != NULL || strcmp(name, "rope_freqs.weight") == 0 ||
           strcmp(name, NIB_GGUF_ROPE_SHORT) == 0 || strcmp(name, NIB_GGUF_ROPE_LONG) == 0;
}

bool nib__makes_keys(const char *name, int64_t first)
{
    static const char layers[] = "model.layers.";
    char *rest;
    return strncmp(name, layers, sizeof layers - 1) == 0 &&
           strtoll(name + sizeof layers - 1, &rest, 10) >= first &&
           (strncmp(rest, ".self_attn.k_", 13) == 0 || strncmp(rest, ".self_attn.v_", 13) == 0);
}

/* The needed config values, under any of their names. */
typedef struct shape {
    int64_t width, heads, head;
    bool halves; /* rows are in Hugging Face's order already */
} shape;

/* After a KEY: if it is `key`, reads its value and returns true. null leaves *out unchanged. */
static bool read_size(nib_json *json, const char *key, int64_t *out)
{
    if (!nib__json_is(json, key))
        return false;
    if (nib__json_next(json) == NIB_JSON_NUMBER)
        (void)nib__json_int64(json, out); /* json holds the error */
    else if (json->event != NIB_JSON_NULL)
        nib__json_fail(json, "%s must be an integer", key);
    return true;
}

static void read_member(nib_json *json, shape *s)
{
    if (read_size(json, "dim", &s->width) || read_size(json, "hidden_size", &s->width) ||
        read_size(json, "n_heads", &s->heads) ||
        read_size(json, "num_attention_heads", &s->heads) || read_size(json, "head_dim", &s->head))
        return;
    if (nib__json_is(json, "use_hf_rope")) {
        s->halves = nib__json_next(json) == NIB_JSON_TRUE;
        if (json->event != NIB_JSON_TRUE && json->event != NIB_JSON_FALSE)
            nib__json_fail(json, "use_hf_rope must be true or false");
    } else if (nib__json_is(json, "model_type")) {
        if (nib__json_next(json) == NIB_JSON_STRING) /* torchtune does not reorder Qwen's rows */
            s->halves = json->token_size >= 4 && memcmp(json->token, "qwen", 4) == 0;
        else if (json->event != NIB_JSON_NULL)
            nib__json_fail(json, "model_type must be a string");
    } else {
        nib__json_skip(json);
    }
}

static nib_status read_shape(shape *s, const char *name, const char *text, size_t size,
                             nib_err *err)
{
    nib_json json;
    const nib_json_limits limits = {.literals = true};
    nib__json_init(&json, name, text, size, &limits);
    nib__json_expect(&json, NIB_JSON_OBJECT);
    while (nib__json_next(&json) == NIB_JSON_KEY)
        read_member(&json, s);
    return nib__json_status(&json, err);
}

nib_status nib__rotary_set(nib_checkpoint *cp, int64_t heads, int64_t head, nib_err *err)
{
    if (heads < 1 || heads > HEADS_MAX || head < 2 || head % 2 != 0 || head > ROWS_MAX / heads)
        return NIB_OK;
    const int64_t rows = heads * head;
    cp->paired_rows = nib__arena_take(&cp->arena, (uint64_t)rows, sizeof *cp->paired_rows);
    if (cp->paired_rows == NULL)
        return nib__fail_memory(err, (uint64_t)rows * sizeof *cp->paired_rows, "the order of rows");
    for (int64_t i = 0; i < rows; i++)
        cp->paired_rows[i] = (int32_t)nib__rotary_stored_row(i, head);
    cp->paired = head;
    cp->paired_count = rows;
    return NIB_OK;
}

nib_status nib__rotary_find(nib_checkpoint *cp, const char *name, const char *text, size_t size,
                            nib_err *err)
{
    shape s = {0};
    NIB_TRY(read_shape(&s, name, text, size, err));
    if (s.halves) {
        cp->paired = 0;
        return NIB_OK;
    }
    if (s.heads < 1 || s.width < 0)
        return NIB_OK;
    return nib__rotary_set(cp, s.heads,
                           s.head > 0               ? s.head
                           : s.width % s.heads == 0 ? s.width / s.heads
                                                    : 0,
                           err);
}

static bool is_rotated(const nib_weight_query *q)
{
    static const char *const ends[] = {".self_attn.q_proj", ".self_attn.k_proj"};
    const size_t size = strlen(q->module);
    for (size_t i = 0; q->cp->paired != 0 && i < COUNT(ends); i++) {
        const size_t end = strlen(ends[i]);
        if (size > end && strcmp(q->module + size - end, ends[i]) == 0)
            return true;
    }
    return false;
}

bool nib__rotary_claims(const nib_weight_query *q, const nib_tensor *codes)
{
    (void)codes;
    return is_rotated(q);
}

static nib_status check_rows(const nib_weight_query *q, const char *suffix)
{
    const nib_checkpoint *cp = q->cp;
    if (cp->paired < 0)
        return nib__weight_fail(
            q, NIB_BAD_INPUT, suffix, "the order of its rows depends on the head width, which %s",
            cp->gguf != NULL ? "cannot be computed from the file's metadata"
                             : "neither config.json nor params.json next to the file gives");
    if (q->out->n > cp->paired_count || q->out->n % cp->paired != 0)
        return nib__weight_fail(q, NIB_BAD_INPUT, suffix,
                                "has %" PRId64 " rows; a multiple of the head width, %" PRId64
                                ", is expected, at most %" PRId64,
                                q->out->n, cp->paired, cp->paired_count);
    return NIB_OK;
}

nib_status nib__rotary_weight(const nib_weight_query *q)
{
    if (!is_rotated(q))
        return NIB_OK;
    NIB_TRY(check_rows(q, ".weight"));
    q->out->rows = q->cp->paired_rows;
    return NIB_OK;
}

nib_status nib__rotary_bias(const nib_weight_query *q, const nib_tensor *bias)
{
    if (!is_rotated(q))
        return NIB_OK;
    NIB_TRY(check_rows(q, ".bias"));
    return nib__weight_order_bias(q, bias, q->cp->paired_rows);
}

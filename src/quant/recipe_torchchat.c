/* SPDX-License-Identifier: Apache-2.0
 *
 * torchchat's quantization JSON: an ordered object of quantizers with their arguments, where the
 * first that reaches a layer wins. torchchat prints and ignores what it does not know; here that is
 * an error.
 */
#include "recipe_rules.h"

#include <stdio.h>

/* Arguments, as bits of quantizer_row.takes. */
enum {
    A_BITWIDTH = 1 << 0,
    A_GROUPSIZE = 1 << 1,
    A_NODE_TYPE = 1 << 2,
    A_ZEROS = 1 << 3,
    A_DTYPE = 1 << 4,
    A_ACCELERATOR = 1 << 5,
};

static const char *const arguments[] = {"bitwidth",         "groupsize", "node_type",
                                        "has_weight_zeros", "dtype",     "accelerator"};

/* Argument values of one quantizer; groupsize 0: per row. */
typedef struct values {
    int64_t bitwidth, groupsize;
    bool zeros;
    const char *node_type, *dtype, *accelerator;
} values;

typedef enum quantizer {
    EMBEDDING,
    EMBEDDING_WX,
    INT8,
    INT4,
    A8W4DQ,
    A8WXDQ,
    AFPWX,
    PRECISION,
    EXECUTOR
} quantizer;

typedef struct quantizer_row {
    const char *name;
    unsigned takes;
    int64_t bitwidth; /* default; 0: required */
    bool zeros;       /* default */
} quantizer_row;

static const quantizer_row quantizers[] = {
    [EMBEDDING] = {"embedding", A_BITWIDTH | A_GROUPSIZE, 8, false},
    [EMBEDDING_WX] = {"embedding:wx", A_BITWIDTH | A_GROUPSIZE | A_ZEROS, 0, true},
    [INT8] = {"linear:int8", A_BITWIDTH | A_GROUPSIZE | A_NODE_TYPE, 8, false},
    [INT4] = {"linear:int4", A_GROUPSIZE, 4, true},
    [A8W4DQ] = {"linear:a8w4dq", A_GROUPSIZE, 4, false},
    [A8WXDQ] = {"linear:a8wxdq", A_BITWIDTH | A_GROUPSIZE | A_ZEROS, 0, false},
    [AFPWX] = {"linear:afpwx", A_BITWIDTH | A_GROUPSIZE, 0, true},
    [PRECISION] = {"precision", A_DTYPE, 0, false},
    [EXECUTOR] = {"executor", A_ACCELERATOR, 0, false},
};

/* ---- reading ---- */

static nib_status read_value(nib_recipe *r, nib_json *json, unsigned argument, values *v,
                             nib_err *err)
{
    const nib_json_event event = nib__json_next(json);
    if (event == NIB_JSON_NULL) /* same as absent */
        return NIB_OK;
    if (argument == A_ZEROS && (event == NIB_JSON_TRUE || event == NIB_JSON_FALSE)) {
        v->zeros = event == NIB_JSON_TRUE;
        return NIB_OK;
    }
    if ((argument & (A_BITWIDTH | A_GROUPSIZE)) != 0 && event == NIB_JSON_NUMBER) {
        int64_t *to = argument == A_BITWIDTH ? &v->bitwidth : &v->groupsize;
        return nib__json_int64(json, to) ? NIB_OK : nib__json_status(json, err);
    }
    if ((argument & (A_NODE_TYPE | A_DTYPE | A_ACCELERATOR)) != 0 && event == NIB_JSON_STRING) {
        const char **to = argument == A_NODE_TYPE ? &v->node_type
                          : argument == A_DTYPE   ? &v->dtype
                                                  : &v->accelerator;
        *to = nib__recipe_string(r, json);
        return *to == NULL ? nib__json_status(json, err) : NIB_OK;
    }
    nib__json_fail(json, "the value of this argument has the wrong type");
    return nib__json_status(json, err);
}

static nib_status read_values(nib_recipe *r, nib_json *json, const quantizer_row *row, values *v,
                              nib_err *err)
{
    const char *taken[COUNT(arguments)];
    size_t count = 0;
    for (size_t i = 0; i < COUNT(arguments); i++)
        if (row->takes & 1U << i)
            taken[count++] = arguments[i];
    if (!nib__json_expect(json, NIB_JSON_OBJECT))
        return nib__json_status(json, err);
    while (nib__json_next(json) == NIB_JSON_KEY) {
        unsigned argument = 0;
        for (size_t i = 0; i < COUNT(arguments); i++)
            if ((row->takes & 1U << i) != 0 && nib__json_is(json, arguments[i]))
                argument = 1U << i;
        if (argument == 0) {
            const char *key = nib__recipe_string(r, json);
            if (key == NULL)
                return nib__json_status(json, err);
            return nib__recipe_fail(json, NIB_BAD_INPUT, err, "%s has no argument \"%s\"%s",
                                    row->name, key,
                                    nib__recipe_suggest(r, key, "arguments", taken, count));
        }
        NIB_TRY(read_value(r, json, argument, v, err));
    }
    return NIB_OK;
}

/* ---- meaning ---- */

/* Weight-only integers of 1 to 8 bits. */
static bool takes_any_width(const quantizer_row *row)
{
    return row == &quantizers[EMBEDDING_WX] || row == &quantizers[AFPWX];
}

static nib_status fail_bitwidth(nib_json *json, const quantizer_row *row, int64_t bits,
                                nib_err *err)
{
    return nib__recipe_fail(json, NIB_UNSUPPORTED, err,
                            "%s with %lld bits has no scheme in Nibble; use %s bits", row->name,
                            (long long)bits, takes_any_width(row) ? "1 to 8" : "4 or 8");
}

/* The scheme name for a quantizer, without the group size; NULL: none. */
static const char *scheme_of(quantizer q, const values *v)
{
    const bool four = v->bitwidth == 4;
    switch (q) {
    case EMBEDDING:
    case INT8: return four ? "int4wo-sym" : "int8wo";
    case EMBEDDING_WX:
        return four       ? (v->zeros ? "int4wo-intzero" : "int4wo-sym")
               : v->zeros ? "int8wo-asym"
                          : "int8wo";
    case INT4: return "int4wo-tinygemm";
    case A8W4DQ: return "8da4w";
    case A8WXDQ:
        return four ? (v->zeros ? "8da4w-asym" : "8da4w") : v->zeros ? NULL : "int8dq-actasym";
    case AFPWX: return "int4wo";
    default: return NULL;
    }
}

static nib_status read_precision(nib_recipe *r, nib_json *json, const char *dtype, nib_err *err)
{
    static const struct {
        const char *theirs, *ours;
    } names[] = {
        {"fp32", "f32"},    {"float32", "f32"}, {"float", "f32"}, {"fp16", "f16"},
        {"float16", "f16"}, {"half", "f16"},    {"bf16", "bf16"}, {"bfloat16", "bf16"},
        {"fast", "bf16"},   {"fast16", "bf16"},
    };
    const char *known[COUNT(names)];
    for (size_t i = 0; i < COUNT(names); i++) {
        known[i] = names[i].theirs;
        if (dtype != NULL && strcmp(dtype, names[i].theirs) == 0) {
            r->dtype = names[i].ours;
            return NIB_OK;
        }
    }
    if (dtype == NULL)
        return nib__recipe_fail(json, NIB_BAD_INPUT, err, "precision lacks \"dtype\"");
    return nib__recipe_fail(json, NIB_BAD_INPUT, err, "precision has no dtype \"%s\"%s", dtype,
                            nib__recipe_suggest(r, dtype, "names", known, COUNT(known)));
}

static nib_status add_quantizer(nib_recipe *r, nib_json *json, quantizer q, const values *v,
                                nib_err *err)
{
    const quantizer_row *row = &quantizers[q];
    char name[64];
    if ((row->takes & A_BITWIDTH) != 0 && row->bitwidth == 0 && v->bitwidth == 0)
        return nib__recipe_fail(json, NIB_BAD_INPUT, err, "%s lacks \"bitwidth\"", row->name);
    if (v->bitwidth != 4 && v->bitwidth != 8 &&
        !(takes_any_width(row) && v->bitwidth >= 1 && v->bitwidth < 8))
        return fail_bitwidth(json, row, v->bitwidth, err);
    if (q == AFPWX && v->bitwidth == 8)
        return nib__recipe_fail(json, NIB_BAD_INPUT, err, "linear:afpwx takes 1 to 7 bits, not 8");
    char odd[16];
    const char *base = scheme_of(q, v);
    if (v->bitwidth != 4 && v->bitwidth != 8) {
        snprintf(odd, sizeof odd, "int%dwo%s", (int)v->bitwidth, v->zeros ? "-asym" : "");
        base = odd;
    }
    if (base == NULL)
        return nib__recipe_fail(
            json, NIB_UNSUPPORTED, err,
            "%s with 8 bits and has_weight_zeros has no scheme in Nibble; set has_weight_zeros to "
            "false",
            row->name);
    if (v->groupsize < -1 || v->groupsize > 1 << 30)
        return nib__recipe_fail(json, NIB_BAD_INPUT, err,
                                "%s: groupsize %lld is out of range; give -1 or 0 for rows, or 1 "
                                "to 2^30",
                                row->name, (long long)v->groupsize);
    if ((q == INT4 || q == A8W4DQ) && v->groupsize <= 0)
        return nib__recipe_fail(json, NIB_BAD_INPUT, err, "%s lacks a positive \"groupsize\"",
                                row->name);
    /* Modifiers of a scheme name may come in any order. */
    if (v->groupsize > 0)
        snprintf(name, sizeof name, "%s-g%lld", base, (long long)v->groupsize);
    else
        snprintf(name, sizeof name, "%s-row", base);
    nib_rule rule = {.match = NIB_MATCH_ALL, .reach = NIB_REACH_LINEAR, .source = ++r->sources};
    NIB_TRY(nib__scheme_parse(&rule.scheme, name, strlen(name), err));
    if (q == EMBEDDING || q == EMBEDDING_WX)
        rule.reach = NIB_REACH_EMBED;
    const char *node = v->node_type == NULL ? "*" : v->node_type;
    if (strcmp(node, "output") == 0)
        rule.reach = NIB_REACH_HEAD | NIB_REACH_TIED;
    else if (strcmp(node, "!output") == 0)
        rule.reach = NIB_REACH_BODY;
    else if (strcmp(node, "*") != 0)
        return nib__recipe_fail(
            json, NIB_BAD_INPUT, err,
            "linear:int8 has no node_type \"%s\"; the node types are *, output and !output", node);
    if (q == AFPWX && v->bitwidth == 4)
        NIB_TRY(nib__recipe_add_setting(r, err,
                                        &(nib_ledger_setting){.code = "zero-point",
                                                              .name = row->name,
                                                              .asked = "integer zero points",
                                                              .done = "float zero points",
                                                              .relation = NIB_SETTING_OTHER},
                                        "int4wo keeps float zero points, which are not rounded to "
                                        "whole steps"));
    rule.words = nib__recipe_format(r, "%s", row->name);
    return nib__recipe_add_rule(r, &rule, err);
}

static nib_status read_quantizer(nib_recipe *r, nib_json *json, quantizer q, nib_err *err)
{
    values v = {.bitwidth = quantizers[q].bitwidth, .zeros = quantizers[q].zeros};
    NIB_TRY(read_values(r, json, &quantizers[q], &v, err));
    if (q == PRECISION)
        return read_precision(r, json, v.dtype, err);
    if (q == EXECUTOR) {
        if (v.accelerator == NULL)
            return nib__recipe_fail(json, NIB_BAD_INPUT, err, "executor lacks \"accelerator\"");
        r->device = strcmp(v.accelerator, "fast") == 0 ? NULL : v.accelerator;
        return NIB_OK;
    }
    return add_quantizer(r, json, q, &v, err);
}

nib_status nib__recipe_read_torchchat(nib_recipe *r, nib_json *json, nib_err *err)
{
    const char *names[COUNT(quantizers)];
    for (size_t i = 0; i < COUNT(quantizers); i++)
        names[i] = quantizers[i].name;
    (void)nib__json_next(json); /* the object whose keys chose this form */
    while (nib__json_next(json) == NIB_JSON_KEY) {
        size_t q = 0;
        while (q < COUNT(quantizers) && !nib__json_is(json, names[q]))
            q++;
        if (q == COUNT(quantizers)) {
            const char *key = nib__recipe_string(r, json);
            if (key == NULL)
                return nib__json_status(json, err);
            return nib__recipe_fail(json, NIB_BAD_INPUT, err, "torchchat has no quantizer \"%s\"%s",
                                    key,
                                    nib__recipe_suggest(r, key, "quantizers", names, COUNT(names)));
        }
        NIB_TRY(read_quantizer(r, json, (quantizer)q, err));
    }
    return nib__recipe_add_rule(r,
                                &(nib_rule){.match = NIB_MATCH_ALL,
                                            .reach = NIB_REACH_LINEAR,
                                            .keep = true,
                                            .words = "no quantizer matches"},
                                err);
}

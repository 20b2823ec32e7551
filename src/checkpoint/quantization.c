/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses quantization_config. Members that do not affect a reader (seeds, damping, the producer)
 * are skipped; members that change the meaning of codes are read or refused; all others go to the
 * ledger.
 */
#include "quantization.h"

#include "experts.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

enum { MOST_GROUPS = 256 };

/* ---- members of one object ---- */

typedef enum member_kind {
    MEMBER_INT,
    MEMBER_BOOL,
    MEMBER_WORD, /* a short string; true and false are stored as strings */
    MEMBER_PAIR, /* [128, 128], or "128x128" */
} member_kind;

typedef struct member {
    const char *name;
    member_kind kind;
    size_t offset;
} member;

static void set_word(nib_json *json, const char *name, char *out)
{
    const nib_json_event event = json->event;
    if (event == NIB_JSON_TRUE || event == NIB_JSON_FALSE) {
        snprintf(out, NIB_WORD, "%s", event == NIB_JSON_TRUE ? "true" : "false");
        return;
    }
    if (event != NIB_JSON_STRING || json->escaped || json->token_size >= NIB_WORD) {
        nib__json_fail(json, "\"%s\" must be a plain word of at most %d bytes", name, NIB_WORD - 1);
        return;
    }
    memcpy(out, json->token, json->token_size);
    out[json->token_size] = 0;
}

static void set_pair(nib_json *json, const char *name, int64_t out[2])
{
    if (json->event == NIB_JSON_ARRAY && nib__json_next(json) == NIB_JSON_NUMBER &&
        nib__json_int64(json, &out[0]) && nib__json_next(json) == NIB_JSON_NUMBER &&
        nib__json_int64(json, &out[1]) && nib__json_next(json) == NIB_JSON_ARRAY_END)
        return;
    if (json->event == NIB_JSON_STRING && nib__json_is(json, "128x128")) {
        out[0] = out[1] = 128;
        return;
    }
    nib__json_fail(json, "\"%s\" must be two integers", name);
}

/* Reads the value whose first event was just read. */
static void set_member(nib_json *json, const member *m, char *to)
{
    if (json->event == NIB_JSON_NULL)
        return;
    switch (m->kind) {
    case MEMBER_INT:
        if (json->event != NIB_JSON_NUMBER || !nib__json_int64(json, (int64_t *)(void *)to))
            nib__json_fail(json, "\"%s\" must be an integer", m->name);
        break;
    case MEMBER_BOOL:
        if (json->event != NIB_JSON_TRUE && json->event != NIB_JSON_FALSE)
            nib__json_fail(json, "\"%s\" must be true or false", m->name);
        else
            *(bool *)to = json->event == NIB_JSON_TRUE;
        break;
    case MEMBER_WORD: set_word(json, m->name, to); break;
    case MEMBER_PAIR: set_pair(json, m->name, (int64_t *)(void *)to); break;
    }
}

/* After a KEY: if it is one of the members, reads its value and returns true. */
static bool read_member(nib_json *json, void *out, const member *members, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!nib__json_is(json, members[i].name))
            continue;
        nib__json_next(json);
        set_member(json, &members[i], (char *)out + members[i].offset);
        return true;
    }
    return false;
}

/* ---- compressed-tensors ---- */

/* ModelOpt's quantized_layers with one coding. */
typedef struct layer_list {
    char algorithm[NIB_WORD];
    int64_t group;
    nib_target_names names;
} layer_list;

typedef struct reader {
    nib_json json;
    nib_quantization *q;
    layer_list *lists; /* [list_count], of MOST_GROUPS, or NULL */
    size_t list_count;
    nib_arena *arena;
    const nib_allocator *allocator;
    nib_ledger *ledger;
    nib_err *err;
} reader;

/* Members about how the codes were computed, or how another program runs them. */
static const char *const harmless[] = {"act_group_aware",
                                       "amp",
                                       "auto_forward_data_parallel",
                                       "autoround_version",
                                       "backend",
                                       "batch_size",
                                       "block_name_to_quantize",
                                       "cache_block_outputs",
                                       "damp_auto_increment",
                                       "damp_percent",
                                       "data_type",
                                       "dataset",
                                       "disable_exllama",
                                       "do_fuse",
                                       "enable_full_range",
                                       "enable_minmax_tuning",
                                       "enable_norm_bias_tuning",
                                       "enable_quanted_input",
                                       "exllama_config",
                                       "fail_safe",
                                       "foem",
                                       "fuse_max_seq_len",
                                       "gc_mode",
                                       "global_compression_ratio",
                                       "gptaq",
                                       "gradient_accumulate_steps",
                                       "has_zero_point",
                                       "hessian",
                                       "hyb_act",
                                       "is_checkpoint_fp8_serialized",
                                       "iters",
                                       "lora_rank",
                                       "low_gpu_mem_usage",
                                       "lr",
                                       "max_input_length",
                                       "meta",
                                       "minmax_lr",
                                       "model_file_base_name",
                                       "model_name_or_path",
                                       "model_seqlen",
                                       "module_name_preceding_first_block",
                                       "modules_to_fuse",
                                       "mse",
                                       "nsamples",
                                       "observer",
                                       "observer_kwargs",
                                       "offload_to_disk",
                                       "offload_to_disk_path",
                                       "pack_impl",
                                       "pad_token_id",
                                       "parallel_packing",
                                       "pre_quant_scale",
                                       "producer",
                                       "quantization_status",
                                       "quantizer",
                                       "samples",
                                       "scale_dtype",
                                       "seqlen",
                                       "static_groups",
                                       "tokenizer",
                                       "train_bs",
                                       "true_sequential",
                                       "use_cuda_fp16",
                                       "use_exllama",
                                       "v2",
                                       "vram_strategy",
                                       "zp_dtype"};

/* After the KEY of an unknown member: skips it if harmless, else adds it to the ledger. */
static void report_unread(reader *r)
{
    nib_json *json = &r->json;
    nib_json_value value;
    char key[64], name[96];
    for (size_t i = 0; i < COUNT(harmless); i++)
        if (nib__json_is(json, harmless[i])) {
            nib__json_skip(json);
            return;
        }
    nib__escape_name(key, sizeof key, json->token, json->token_size);
    snprintf(name, sizeof name, "quantization_config.%s", key);
    if (nib__json_any(json, &value) && value.event != NIB_JSON_NULL && !value.empty)
        nib__ledger_add_unread(r->ledger, "quantization-config", "config.json", name, value.shown);
}

/* After a KEY: reads its list of names. */
static void read_targets(reader *r, const char *key, nib_targets *out)
{
    nib__json_next(&r->json);
    if (r->q->method == NIB_METHOD_MODELOPT)
        out->rules = NIB_TARGETS_MODELOPT;
    nib__targets_read(out, &r->json, key, &r->q->expressions, r->arena, r->allocator);
}

#define AT(member) offsetof(nib_coding, member)

static const member coding_members[] = {
    {"num_bits", MEMBER_INT, AT(bits)},        {"type", MEMBER_WORD, AT(type)},
    {"symmetric", MEMBER_BOOL, AT(symmetric)}, {"strategy", MEMBER_WORD, AT(strategy)},
    {"group_size", MEMBER_INT, AT(group)},     {"block_structure", MEMBER_PAIR, AT(block)},
    {"actorder", MEMBER_WORD, AT(order)},      {"dynamic", MEMBER_WORD, AT(dynamic)},
};
#undef AT

/* After a KEY: reads an object, or null for none. */
static void read_coding(reader *r, const char *key, nib_coding *out)
{
    nib_json *json = &r->json;
    if (nib__json_next(json) == NIB_JSON_NULL)
        return;
    if (json->event != NIB_JSON_OBJECT) {
        nib__json_fail(json, "\"%s\" must be an object, or null", key);
        return;
    }
    *out = (nib_coding){.given = true, .bits = 8, .type = "int", .symmetric = true};
    while (nib__json_next(json) == NIB_JSON_KEY)
        if (!read_member(json, out, coding_members, COUNT(coding_members)))
            report_unread(r);
}

static void read_group(reader *r, nib_coding_group *out)
{
    static const member members[] = {{"format", MEMBER_WORD, offsetof(nib_coding_group, format)}};
    nib_json *json = &r->json;
    if (nib__json_next(json) != NIB_JSON_OBJECT) {
        nib__json_fail(json,
                       "a config group must be an object; names of presets are not supported");
        return;
    }
    while (nib__json_next(json) == NIB_JSON_KEY) {
        if (nib__json_is(json, "targets")) {
            read_targets(r, "targets", &out->targets);
        } else if (nib__json_is(json, "weights")) {
            read_coding(r, "weights", &out->weights);
        } else if (nib__json_is(json, "input_activations")) {
            read_coding(r, "input_activations", &out->inputs);
        } else if (nib__json_is(json, "output_activations")) {
            read_coding(r, "output_activations", &out->outputs);
        } else if (!read_member(json, out, members, COUNT(members))) {
            report_unread(r);
        }
    }
}

static void read_groups(reader *r)
{
    nib_json *json = &r->json;
    nib_quantization *q = r->q;
    if (nib__json_next(json) != NIB_JSON_OBJECT || q->groups != NULL) {
        nib__json_fail(json, "config_groups must be one object");
        return;
    }
    q->groups = nib__arena_take(r->arena, MOST_GROUPS, sizeof *q->groups);
    if (q->groups == NULL) {
        nib__json_fail_memory(json, MOST_GROUPS * sizeof *q->groups);
        return;
    }
    while (nib__json_next(json) == NIB_JSON_KEY) {
        if (q->group_count == MOST_GROUPS) {
            nib__json_fail(json, "config_groups holds more than %d groups", MOST_GROUPS);
            return;
        }
        nib_coding_group *group = &q->groups[q->group_count++];
        group->name = nib__json_string(json, r->arena, NULL);
        if (group->name != NULL)
            read_group(r, group);
    }
}

/* ---- the whole object ---- */

/* Top-level values, checked after everything is read. */
typedef struct words {
    char method[NIB_WORD], format[NIB_WORD], checkpoint_format[NIB_WORD], version[NIB_WORD];
    char pack_type[NIB_WORD], fp8[NIB_WORD], act[NIB_WORD];
    char order[NIB_WORD], symmetric[NIB_WORD], zero_point[NIB_WORD];
    char algorithm[NIB_WORD];
    int64_t bits, group, block[2];
    bool marlin, has_transforms;
    bool nested;                                  /* inside of ModelOpt's object "quantization" */
    char sparsity[NIB_WORD], overrides[NIB_WORD]; /* empty: none */
} words;

#define AT(member) offsetof(words, member)

static const member top_members[] = {
    {"quant_method", MEMBER_WORD, AT(method)},
    {"format", MEMBER_WORD, AT(format)},
    {"checkpoint_format", MEMBER_WORD, AT(checkpoint_format)},
    {"version", MEMBER_WORD, AT(version)},
    {"pack_dtype", MEMBER_WORD, AT(pack_type)},
    {"fmt", MEMBER_WORD, AT(fp8)},
    {"activation_scheme", MEMBER_WORD, AT(act)},
    {"bits", MEMBER_INT, AT(bits)},
    {"w_bit", MEMBER_INT, AT(bits)},
    {"group_size", MEMBER_INT, AT(group)},
    {"q_group_size", MEMBER_INT, AT(group)},
    {"weight_block_size", MEMBER_PAIR, AT(block)},
    {"is_marlin_format", MEMBER_BOOL, AT(marlin)},
    {"desc_act", MEMBER_WORD, AT(order)},
    {"sym", MEMBER_WORD, AT(symmetric)},
    {"zero_point", MEMBER_WORD, AT(zero_point)},
    {"quant_algo", MEMBER_WORD, AT(algorithm)},
};
#undef AT

/* After a KEY: reads FBGEMM's upper bound of the activations that a scale covers. */
static void read_limit(nib_json *json, double *out)
{
    double limit;
    if (nib__json_next(json) == NIB_JSON_NULL)
        return;
    if (json->event != NIB_JSON_NUMBER || !nib__json_double(json, &limit) || limit <= 0)
        nib__json_fail(json, "\"activation_scale_ub\" must be a positive number");
    else
        *out = limit;
}

/* After a KEY: whether its value is an object with members, or another non-null value. Such a value
 * means a change to the weights that the codes do not show. */
static bool has_members(nib_json *json)
{
    bool any = false;
    nib__json_next(json);
    if (json->event != NIB_JSON_OBJECT)
        return json->event != NIB_JSON_NULL && nib__json_skip(json);
    while (nib__json_next(json) == NIB_JSON_KEY) {
        any = true;
        nib__json_skip(json);
    }
    return any;
}

static bool has_transform_groups(nib_json *json)
{
    bool any = false;
    if (nib__json_next(json) != NIB_JSON_OBJECT)
        return json->event != NIB_JSON_NULL && nib__json_skip(json);
    while (nib__json_next(json) == NIB_JSON_KEY) {
        if (nib__json_is(json, "config_groups"))
            any = has_members(json) || any;
        else
            nib__json_skip(json);
    }
    return any;
}

/* compressed-tensors writes an empty sparsity_config, or one whose format is "dense". */
static void read_sparsity(nib_json *json, char *format)
{
    static const member members[] = {{"format", MEMBER_WORD, 0}};
    if (nib__json_next(json) != NIB_JSON_OBJECT) {
        nib__json_skip(json);
        return;
    }
    while (nib__json_next(json) == NIB_JSON_KEY)
        if (!read_member(json, format, members, 1))
            nib__json_skip(json);
}

/* GPTQModel's per-module settings: "-:" leaves a module unquantized, all others change its codes.
 */
static void read_overrides(reader *r, char *first)
{
    nib_json *json = &r->json;
    if (nib__json_next(json) != NIB_JSON_OBJECT) {
        nib__json_skip(json);
        return;
    }
    while (nib__json_next(json) == NIB_JSON_KEY) {
        const bool leaves = json->token_size > 1 && memcmp(json->token, "-:", 2) == 0;
        if (!leaves && *first == 0)
            nib__escape_name(first, NIB_WORD, json->token, json->token_size);
        r->q->kept_unknown = r->q->kept_unknown || leaves;
        nib__json_skip(json);
    }
}

/* ---- ModelOpt ---- */

/* The list of layers with this coding; NULL: out of memory, or too many codings. */
static layer_list *find_list(reader *r, const layer_list *like)
{
    if (r->lists == NULL)
        r->lists = nib__arena_take(r->arena, MOST_GROUPS, sizeof *r->lists);
    for (size_t i = 0; r->lists != NULL && i < r->list_count; i++)
        if (strcmp(r->lists[i].algorithm, like->algorithm) == 0 && r->lists[i].group == like->group)
            return &r->lists[i];
    if (r->lists == NULL || r->list_count == MOST_GROUPS)
        return NULL;
    r->lists[r->list_count] = *like;
    return &r->lists[r->list_count++];
}

/* quantized_layers: {"model.layers.0.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16}} */
static void read_layers(reader *r)
{
    static const member members[] = {
        {"quant_algo", MEMBER_WORD, offsetof(layer_list, algorithm)},
        {"group_size", MEMBER_INT, offsetof(layer_list, group)},
    };
    nib_json *json = &r->json;
    if (nib__json_next(json) != NIB_JSON_OBJECT) {
        nib__json_fail(json, "quantized_layers must be an object");
        return;
    }
    while (nib__json_next(json) == NIB_JSON_KEY) {
        const char *name = nib__json_string(json, r->arena, NULL);
        layer_list layer = {.group = 0};
        if (name == NULL)
            return;
        if (nib__json_next(json) != NIB_JSON_OBJECT) {
            nib__json_fail(json, "quantized_layers must map each name to an object");
            return;
        }
        while (nib__json_next(json) == NIB_JSON_KEY)
            if (!read_member(json, &layer, members, COUNT(members)))
                report_unread(r);
        layer_list *list = find_list(r, &layer);
        if (list == NULL || !nib__target_names_add(&list->names, name, r->arena)) {
            nib__json_fail(json, "quantized_layers has over %d codings, or too many layers",
                           MOST_GROUPS);
            return;
        }
    }
}

static void read_members(reader *r, words *w);

/* Members that only ModelOpt's configs have. False: it is another one. */
static bool read_modelopt_member(reader *r, words *w)
{
    nib_json *json = &r->json;
    if (r->q->method != NIB_METHOD_MODELOPT)
        return false;
    if (nib__json_is(json, "quantized_layers"))
        read_layers(r);
    else if (nib__json_is(json, "exclude_modules"))
        read_targets(r, "exclude_modules", &r->q->ignore);
    else if (nib__json_is(json, "kv_cache_quant_algo"))
        r->q->has_kv_cache = has_members(json);
    else if (nib__json_is(json, "quantization") && !w->nested)
        w->nested = true, read_members(r, w);
    else
        return false;
    return true;
}

static void read_members(reader *r, words *w)
{
    nib_json *json = &r->json;
    if (nib__json_next(json) != NIB_JSON_OBJECT) {
        nib__json_fail(json, "quantization_config must be an object");
        return;
    }
    while (nib__json_next(json) == NIB_JSON_KEY) {
        if (nib__json_is(json, "config_groups")) {
            read_groups(r);
        } else if (nib__json_is(json, "ignore")) {
            read_targets(r, "ignore", &r->q->ignore);
        } else if (nib__json_is(json, "kv_cache_scheme")) {
            r->q->has_kv_cache = has_members(json);
        } else if (nib__json_is(json, "transform_config")) {
            if (has_transform_groups(json))
                w->has_transforms = true;
        } else if (nib__json_is(json, "sparsity_config")) {
            read_sparsity(json, w->sparsity);
        } else if (nib__json_is(json, "dynamic")) {
            read_overrides(r, w->overrides);
        } else if (nib__json_is(json, "rotation")) {
            if (has_members(json))
                w->has_transforms = true;
        } else if (nib__json_is(json, "modules_to_not_convert")) {
            read_targets(r, "modules_to_not_convert", &r->q->kept);
        } else if (nib__json_is(json, "ignored_layers")) {
            read_targets(r, "ignored_layers", &r->q->kept);
        } else if (nib__json_is(json, "modules_in_block_to_quantize")) {
            r->q->kept_unknown = nib__json_skip(json);
        } else if (nib__json_is(json, "activation_scale_ub")) {
            read_limit(json, &r->q->act_limit);
        } else if (nib__json_is(json, "lm_head")) {
            nib__json_skip(json); /* the tensors show it; check_kept looks at the layers only */
        } else if (!read_modelopt_member(r, w) &&
                   !read_member(json, w, top_members, COUNT(top_members))) {
            report_unread(r);
        }
    }
}

/* Reads only quant_method. */
static void read_method(nib_json *json, words *w)
{
    static const member members[] = {{"quant_method", MEMBER_WORD, offsetof(words, method)}};
    if (nib__json_next(json) != NIB_JSON_OBJECT) {
        nib__json_fail(json, "quantization_config must be an object");
        return;
    }
    while (nib__json_next(json) == NIB_JSON_KEY)
        if (!read_member(json, w, members, 1))
            nib__json_skip(json);
}

/* ---- checks ---- */

static const struct {
    const char *name;
    nib_method method;
    const char *reader; /* of an unsupported method: the program that reads it */
} methods[] = {
    {"nibble", NIB_METHOD_NONE, NULL},
    {"torchao", NIB_METHOD_NONE, NULL},
    {"mxfp4", NIB_METHOD_NONE, NULL}, /* gpt-oss: the tensors describe themselves */
    {"compressed-tensors", NIB_METHOD_COMPRESSED, NULL},
    {"compressed_tensors", NIB_METHOD_COMPRESSED, NULL},
    {"gptq", NIB_METHOD_GPTQ, NULL},
    {"awq", NIB_METHOD_AWQ, NULL},
    {"fp8", NIB_METHOD_FP8, NULL},
    {"fbgemm_fp8", NIB_METHOD_FP8, NULL},
    {"modelopt", NIB_METHOD_MODELOPT, NULL},
    {"bitsandbytes", NIB_METHOD_NONE, "transformers with bitsandbytes"},
    {"bitsandbytes_4bit", NIB_METHOD_NONE, "transformers with bitsandbytes"},
    {"bitsandbytes_8bit", NIB_METHOD_NONE, "transformers with bitsandbytes"},
    {"hqq", NIB_METHOD_NONE, "transformers with hqq"},
    {"quanto", NIB_METHOD_NONE, "transformers with optimum-quanto"},
    {"eetq", NIB_METHOD_NONE, "transformers with eetq"},
    {"spqr", NIB_METHOD_NONE, "transformers with spqr_quant"},
    {"vptq", NIB_METHOD_NONE, "transformers with vptq"},
    {"aqlm", NIB_METHOD_NONE, "transformers with aqlm"},
    {"higgs", NIB_METHOD_NONE, "transformers with flute"},
    {"fp_quant", NIB_METHOD_NONE, "transformers with fp_quant"},
    {"bitnet", NIB_METHOD_NONE, "transformers"},
    {"quark", NIB_METHOD_NONE, "transformers with amd-quark"},
    {"auto-round", NIB_METHOD_NONE, "transformers with auto-round"},
    {"intel/auto-round", NIB_METHOD_NONE, "transformers with auto-round"},
    {"sinq", NIB_METHOD_NONE, "transformers with sinq"},
    {"exl2", NIB_METHOD_NONE, "exllamav2"},
    {"exl3", NIB_METHOD_NONE, "exllamav3"},
    {"squeezellm", NIB_METHOD_NONE, "SqueezeLLM"},
};

static nib_status check_method(reader *r, const words *w, bool *reads_all)
{
    char shown[2 * NIB_WORD];
    nib_quantization *q = r->q;
    *reads_all = false;
    if (w->method[0] == 0)
        return NIB_OK;
    q->method_name = nib__arena_copy(r->arena, w->method, strlen(w->method));
    if (q->method_name == NULL)
        return nib__fail_memory(r->err, NIB_WORD, "a name");
    for (size_t i = 0; i < COUNT(methods); i++) {
        if (strcmp(methods[i].name, w->method) != 0)
            continue;
        if (methods[i].reader != NULL)
            return nib__fail(r->err, NIB_UNSUPPORTED,
                             "%s: quantization_config: quant_method \"%s\" is not supported; read "
                             "it with %s, or quantize the original checkpoint with `nibble "
                             "quantize`",
                             r->json.name, w->method, methods[i].reader);
        q->method = methods[i].method;
        *reads_all = q->method != NIB_METHOD_NONE;
        return NIB_OK;
    }
    return nib__fail(
        r->err, NIB_UNSUPPORTED,
        "%s: quantization_config: quant_method \"%s\" is unknown; nibble reads nibble, "
        "torchao, compressed-tensors, gptq, awq, fp8, fbgemm_fp8, modelopt and mxfp4",
        r->json.name, nib__escape_name(shown, sizeof shown, w->method, strlen(w->method)));
}

static nib_status refuse(const reader *r, nib_status status, const char *what, const char *value,
                         const char *known)
{
    char shown[2 * NIB_WORD];
    return nib__fail(r->err, status, "%s: quantization_config: %s \"%s\" is not supported; %s",
                     r->json.name, what,
                     nib__escape_name(shown, sizeof shown, value, strlen(value)), known);
}

static nib_status check_bits(const reader *r, const char *tool, bool eight)
{
    const nib_quantization *q = r->q;
    if (q->bits != 4 && !(eight && q->bits == 8))
        return nib__fail(r->err, NIB_UNSUPPORTED,
                         "%s: quantization_config: %s with %" PRId64 " bits is not supported; %s",
                         r->json.name, tool, q->bits, eight ? "4 and 8 are" : "4 is");
    if (q->group != -1 && (q->group < 1 || q->group > 1 << 30))
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: quantization_config: group_size is %" PRId64
                         "; expected 1 or more, or -1 for one scale per row",
                         r->json.name, q->group);
    return NIB_OK;
}

static nib_status check_gptq(const reader *r, const words *w)
{
    nib_quantization *q = r->q;
    const char *format = w->checkpoint_format[0] != 0 ? w->checkpoint_format : w->format;
    const bool second = strcmp(format, "gptq_v2") == 0;
    q->zeros_less_one = !second;
    memcpy(q->order, w->order, sizeof q->order);
    memcpy(q->symmetric, w->symmetric, sizeof q->symmetric);
    if (w->marlin || (format[0] != 0 && !second && strcmp(format, "gptq") != 0))
        return refuse(r, NIB_UNSUPPORTED, "checkpoint_format", w->marlin ? "marlin" : format,
                      "gptq and gptq_v2 are; GPTQModel and vLLM read others");
    if (w->pack_type[0] != 0 && strcmp(w->pack_type, "int32") != 0)
        return refuse(r, NIB_UNSUPPORTED, "pack_dtype", w->pack_type, "int32 is");
    if (w->has_transforms)
        return nib__fail(r->err, NIB_UNSUPPORTED,
                         "%s: quantization_config: rotation of weights and inputs is not "
                         "supported; GPTQModel supports it",
                         r->json.name);
    if (w->overrides[0] != 0)
        return refuse(r, NIB_UNSUPPORTED, "dynamic", w->overrides,
                      "use GPTQModel for modules with their own settings");
    return check_bits(r, "GPTQ", true);
}

static nib_status check_awq(const reader *r, const words *w)
{
    if (w->zero_point[0] != 0)
        snprintf(r->q->symmetric, NIB_WORD, "%s",
                 strcmp(w->zero_point, "false") == 0 ? "true" : "false");
    const char *version = w->version[0] != 0 ? w->version : w->format;
    if (version[0] != 0 && strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0)
        return refuse(r, NIB_UNSUPPORTED, "AWQ version", version,
                      "gemm is; AutoAWQ and vLLM read others");
    return check_bits(r, "AWQ", false);
}

static nib_status check_fp8(const reader *r, const words *w)
{
    nib_quantization *q = r->q;
    if (w->fp8[0] != 0 && strcmp(w->fp8, "e4m3") != 0 && strcmp(w->fp8, "float8_e4m3fn") != 0)
        return refuse(r, NIB_UNSUPPORTED, "fmt", w->fp8, "e4m3 is");
    if (w->act[0] != 0 && strcmp(w->act, "dynamic") != 0 && strcmp(w->act, "static") != 0)
        return refuse(r, NIB_UNSUPPORTED, "activation_scheme", w->act, "dynamic and static are");
    const bool none = w->block[0] == 0 && w->block[1] == 0;
    if (!none &&
        (w->block[0] < 1 || w->block[1] < 1 || w->block[0] > 1 << 30 || w->block[1] > 1 << 30))
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: quantization_config: weight_block_size is %" PRId64 " x %" PRId64
                         "; both must be 1 to 2^30",
                         r->json.name, w->block[0], w->block[1]);
    memcpy(q->block, w->block, sizeof q->block);
    memcpy(q->act, w->act, sizeof q->act);
    return NIB_OK;
}

static nib_status check_compressed(const reader *r, const words *w)
{
    nib_quantization *q = r->q;
    memcpy(q->format, w->format, sizeof q->format);
    if (w->has_transforms)
        return nib__fail(r->err, NIB_UNSUPPORTED,
                         "%s: quantization_config: transforms of weights and inputs "
                         "(transform_config) are not supported; vLLM supports them",
                         r->json.name);
    if (w->sparsity[0] != 0 && strcmp(w->sparsity, "dense") != 0)
        return refuse(r, NIB_UNSUPPORTED, "sparsity_config.format", w->sparsity,
                      "dense is; vLLM reads others");
    if (q->group_count == 0)
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: quantization_config: config_groups is missing or empty",
                         r->json.name);
    return NIB_OK;
}

static nib_status set_algorithm(const reader *r, nib_coding_group *group, const char *algorithm,
                                int64_t size)
{
    if (nib__modelopt_algorithm(&group->weights, &group->inputs, algorithm, size))
        return NIB_OK;
    return refuse(r, NIB_UNSUPPORTED, "quant_algo", algorithm,
                  "FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, MXFP8, NVFP4, W4A16_NVFP4, "
                  "W4A8_NVFP4_FP8, W8A16 and W8A8_SQ_PER_CHANNEL are; TensorRT-LLM reads others");
}

/* Makes a config group for each coding of quantized_layers. */
static nib_status make_groups(reader *r)
{
    nib_quantization *q = r->q;
    for (size_t i = 0; i < q->group_count; i++) /* the same layers with less detail */
        nib__targets_free(&q->groups[i].targets);
    q->group_count = 0;
    q->groups = nib__arena_take(r->arena, r->list_count, sizeof *q->groups);
    if (q->groups == NULL)
        return nib__fail_memory(r->err, r->list_count * sizeof *q->groups, "quantization_config");
    for (size_t i = 0; i < r->list_count; i++) {
        const layer_list *list = &r->lists[i];
        nib_coding_group *group = &q->groups[q->group_count++];
        group->name = list->algorithm;
        group->targets.rules = NIB_TARGETS_MODELOPT;
        NIB_TRY(set_algorithm(r, group, list->algorithm, list->group));
        nib__targets_of_names(&group->targets, &list->names, &r->json, r->arena);
        if (group->targets.name_count == 0)
            return nib__json_status(&r->json, r->err);
    }
    return NIB_OK;
}

/* quantized_layers says the coding of each layer, else quant_algo that of all, else config_groups,
 * whose activations are only roughly those that run. */
static nib_status check_modelopt(reader *r, const words *w)
{
    nib_quantization *q = r->q;
    const bool mixed = nib__same_ignoring_case(w->algorithm, "MIXED_PRECISION");
    if (q->group_count == 0 && r->list_count == 0 && w->algorithm[0] != 0 && !mixed) {
        const layer_list all = {.group = 0};
        layer_list *list = find_list(r, &all);
        if (list == NULL || !nib__target_names_add(&list->names, "Linear", r->arena))
            return nib__fail_memory(r->err, MOST_GROUPS * sizeof *list, "quantization_config");
        memcpy(list->algorithm, w->algorithm, sizeof list->algorithm);
        list->group = w->group > 0 ? w->group : 0;
    }
    if (q->group_count == 0 && r->list_count == 0)
        return nib__fail(r->err, NIB_BAD_INPUT, "%s: quantization_config: %s", r->json.name,
                         mixed ? "quant_algo is MIXED_PRECISION, but quantized_layers is missing"
                               : "quant_algo is missing");
    if (r->list_count != 0)
        return make_groups(r);
    for (size_t i = 0; i < q->group_count && w->algorithm[0] != 0 && !mixed; i++)
        NIB_TRY(set_algorithm(r, &q->groups[i], w->algorithm, w->group > 0 ? w->group : 0));
    return NIB_OK;
}

static nib_status check_config(reader *r, const words *w)
{
    r->q->bits = w->bits;
    r->q->group = w->group;
    switch (r->q->method) {
    case NIB_METHOD_COMPRESSED: return check_compressed(r, w);
    case NIB_METHOD_GPTQ: return check_gptq(r, w);
    case NIB_METHOD_AWQ: return check_awq(r, w);
    case NIB_METHOD_FP8: return check_fp8(r, w);
    case NIB_METHOD_MODELOPT: return check_modelopt(r, w);
    case NIB_METHOD_NONE: break;
    }
    return NIB_OK;
}

/* ---- public functions ---- */

static nib_status read_config(reader *r, const char *text, size_t size, const char *known)
{
    static const nib_json_limits limits = {.literals = true};
    const char *name = r->json.name;
    words w = {.group = -1}, method = w;
    bool reads_all;
    nib__json_init(&r->json, name, text, size, &limits);
    read_method(&r->json, &method);
    if (nib__json_next(&r->json) != NIB_JSON_END)
        return nib__json_status(&r->json, r->err);
    if (known != NULL)
        snprintf(method.method, sizeof method.method, "%s", known);
    NIB_TRY(check_method(r, &method, &reads_all));
    if (!reads_all)
        return NIB_OK;
    nib__json_init(&r->json, name, text, size, &limits);
    read_members(r, &w);
    if (nib__json_next(&r->json) != NIB_JSON_END)
        return nib__json_status(&r->json, r->err);
    return check_config(r, &w);
}

nib_status nib__quantization_parse(nib_quantization **out, const char *name, const char *text,
                                   size_t size, const char *method, nib_arena *arena,
                                   const nib_allocator *a, nib_ledger *ledger, nib_err *err)
{
    reader r = {
        .json = {.name = name}, .arena = arena, .allocator = a, .ledger = ledger, .err = err};
    r.q = nib__arena_take(arena, 1, sizeof *r.q);
    if (r.q == NULL)
        return nib__fail_memory(err, sizeof *r.q, "quantization_config");
    const nib_status status = read_config(&r, text, size, method);
    if (status == NIB_OK)
        *out = r.q;
    else
        nib__quantization_free(r.q);
    return status;
}

void nib__quantization_free(nib_quantization *q)
{
    if (q == NULL)
        return;
    nib__targets_free(&q->ignore);
    nib__targets_free(&q->kept);
    for (size_t i = 0; i < q->group_count; i++)
        nib__targets_free(&q->groups[i].targets);
}

nib_status nib__quantization_find(const char **raw, const char *name, const char *text, size_t size,
                                  nib_arena *arena, nib_err *err)
{
    nib_json json;
    const nib_json_limits limits = {.literals = true};
    *raw = NULL;
    nib__json_init(&json, name, text, size, &limits);
    bool ok = nib__json_expect(&json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&json) == NIB_JSON_KEY) {
        const bool wanted =
            nib__json_is(&json, "quantization_config") || nib__json_is(&json, "compression_config");
        const char *value = wanted ? nib__json_raw(&json, arena) : NULL;
        ok = wanted ? value != NULL : nib__json_skip(&json);
        if (value != NULL && *value == '{')
            *raw = value;
    }
    return ok && json.event == NIB_JSON_OBJECT_END ? NIB_OK : nib__json_status(&json, err);
}

/* ---- look-ups ---- */

bool nib__quantization_fp8_inputs(char out[NIB_FP8_INPUTS], const nib_quantization *q)
{
    const bool is_static = strcmp(q->act, "static") == 0;
    if (q->block[0] == 0 && !is_static)
        return true;
    if (out != NULL && is_static)
        snprintf(out, NIB_FP8_INPUTS, "e4m3 activations with a static scale");
    else if (out != NULL)
        snprintf(out, NIB_FP8_INPUTS, "e4m3 activations in groups of %" PRId64, q->block[1]);
    return false;
}

/* Whether `part` ("q_proj", "layers.0") is in the module name, bounded by dots or the ends. */
static bool name_has_part(const char *module, const char *part)
{
    const size_t size = strlen(part);
    for (const char *at = module; size != 0 && (at = strstr(at, part)) != NULL; at++)
        if ((at == module || at[-1] == '.') && (at[size] == 0 || at[size] == '.'))
            return true;
    return false;
}

/* A name that the config may give to a module: number 0 is its own; then those of its family; for a
 * part of a fused weight, also those of the whole weight. NULL: there is none of this number. */
static const char *next_name(char out[NIB_FUSED_NAME], const nib_quantization *q,
                             const char *module, size_t number)
{
    nib_fused_part part;
    size_t others = 0;
    if (number == 0)
        return module;
    while (nib__experts_other_name(out, q->family, module, others))
        if (++others == number)
            return out;
    if (!nib__fused_part(&part, module, NIB_FUSED_ANY))
        return NULL;
    number -= others + 1;
    if (number == 0)
        return memcpy(out, part.whole, sizeof part.whole);
    return nib__experts_other_name(out, q->family, part.whole, number - 1) ? out : NULL;
}

static nib_status matches_targets(bool *out, const nib_quantization *q, const nib_targets *targets,
                                  const char *module, nib_err *err)
{
    char other[NIB_FUSED_NAME];
    const char *name;
    *out = false;
    for (size_t i = 0; !*out && (name = next_name(other, q, module, i)) != NULL; i++)
        NIB_TRY(nib__targets_match(out, targets, name, err));
    return NIB_OK;
}

bool nib__quantization_has_groups(const nib_quantization *q)
{
    return q->method == NIB_METHOD_COMPRESSED || q->method == NIB_METHOD_MODELOPT;
}

nib_status nib__quantization_keeps(bool *out, const nib_quantization *q, const char *module,
                                   nib_err *err)
{
    const nib_coding_group *group;
    char other[NIB_FUSED_NAME];
    const char *name;
    if (nib__quantization_has_groups(q)) {
        NIB_TRY(nib__quantization_group(&group, q, module, err));
        *out = group == NULL;
        return NIB_OK;
    }
    NIB_TRY(matches_targets(out, q, &q->kept, module, err));
    for (size_t n = 0; !*out && q->kept.name_count != 0; n++) {
        if ((name = next_name(other, q, module, n)) == NULL)
            break;
        for (size_t i = 0; i < q->kept.name_count && !*out; i++)
            *out = name_has_part(name, *(const char *const *)q->kept.names[i]);
    }
    return NIB_OK;
}

/* Marks the entries of a list that match the name: used[] has names, then expressions. */
static nib_status mark_entries(bool *used, const nib_targets *list, bool parts, const char *name,
                               nib_err *err)
{
    nib_err problem = {NIB_OK, ""};
    const size_t at = nib__targets_find(list, name);
    if (at != SIZE_MAX)
        used[at] = true;
    for (size_t i = 0; parts && i < list->name_count; i++)
        used[i] = used[i] || name_has_part(name, *(const char *const *)list->names[i]);
    for (size_t i = 0; i < list->pattern_count; i++) {
        bool *is = &used[list->name_count + i];
        *is = *is || nib__pattern_matches(list->patterns[i], name, &problem);
        if (problem.status != NIB_OK)
            return nib__fail(err, problem.status, "%s", problem.text);
    }
    return NIB_OK;
}

static nib_status count_unmatched(nib_unmatched *out, const nib_quantization *q,
                                  const nib_targets *list, const char *const *modules,
                                  size_t module_count, nib_arena *arena, nib_err *err)
{
    enum { TRIES_MAX = 1 << 24 };
    const bool parts = list == &q->kept;
    const size_t entries = list->name_count + list->pattern_count;
    char other[NIB_FUSED_NAME];
    const char *name;
    if (entries == 0 || module_count > TRIES_MAX / entries)
        return NIB_OK;
    bool *used = nib__arena_take(arena, entries, sizeof *used);
    if (used == NULL)
        return nib__fail_memory(err, entries, "a list of modules");
    for (size_t m = 0; m < module_count; m++)
        for (size_t i = 0; (name = next_name(other, q, modules[m], i)) != NULL; i++)
            NIB_TRY(mark_entries(used, list, parts, name, err));
    for (size_t i = 0; i < entries; i++) {
        const bool is_name = i < list->name_count;
        const char *text = is_name ? *(const char *const *)list->names[i]
                                   : nib__targets_pattern(list, i - list->name_count, arena);
        if (text == NULL)
            return nib__fail_memory(err, NIB_FUSED_NAME, "an expression");
        /* if a name occurs twice, only one of the two is marked */
        if (!used[is_name ? nib__name_index_find(&list->by_name, list->names, text) : i] &&
            out->count++ == 0)
            out->first = text;
    }
    return NIB_OK;
}

nib_status nib__quantization_unmatched(nib_unmatched *kept, nib_unmatched *coded,
                                       const nib_quantization *q, const char *const *modules,
                                       size_t module_count, nib_arena *arena, nib_err *err)
{
    *kept = *coded = (nib_unmatched){0};
    NIB_TRY(count_unmatched(kept, q, nib__quantization_has_groups(q) ? &q->ignore : &q->kept,
                            modules, module_count, arena, err));
    for (size_t g = 0; g < q->group_count; g++) {
        const nib_targets *list = &q->groups[g].targets;
        /* compressed-tensors' may also be classes of other parts of the model */
        if (list->rules == NIB_TARGETS_MODELOPT && !nib__targets_name(list, "Linear"))
            NIB_TRY(count_unmatched(coded, q, list, modules, module_count, arena, err));
    }
    return NIB_OK;
}

nib_status nib__quantization_group(const nib_coding_group **out, const nib_quantization *q,
                                   const char *module, nib_err *err)
{
    bool found = false;
    *out = NULL;
    NIB_TRY(matches_targets(&found, q, &q->ignore, module, err));
    if (found)
        return NIB_OK;
    for (size_t i = 0; i < q->group_count; i++) {
        NIB_TRY(matches_targets(&found, q, &q->groups[i].targets, module, err));
        if (found) {
            *out = &q->groups[i];
            return NIB_OK;
        }
    }
    for (size_t i = 0; i < q->group_count && *out == NULL; i++)
        if (nib__targets_name(&q->groups[i].targets, "Linear"))
            *out = &q->groups[i];
    return NIB_OK;
}

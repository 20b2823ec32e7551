/* SPDX-License-Identifier: Apache-2.0
 *
 * The meaning of torchao's configs: one function per type turns its fields into a scheme. The table
 * `types` below lists the types and their settings.
 */
#include "torchao_config.h"

#include <stdio.h>

/* The meaning of a config. */
typedef struct meaning {
    char name[64];       /* scheme name */
    nib_type scale_type; /* NONE: not given */
    nib_layout_hint hint;
    const char *hint_text;
} meaning;

nib_layout_hint nib__recipe_layout_hint(const char *layout)
{
    static const struct {
        const char *part;
        nib_layout_hint hint;
    } known[] = {
        {"CutlassInt4Packed", NIB_HINT_CUTLASS_INT4},
        {"CutlassSemiSparse", NIB_HINT_OTHER},
        {"TensorCoreTiled", NIB_HINT_TILE_PACKED},
        {"TILE_PACKED", NIB_HINT_TILE_PACKED},
        {"tile_packed", NIB_HINT_TILE_PACKED},
        {"Marlin", NIB_HINT_MARLIN},
        {"MARLIN", NIB_HINT_MARLIN},
        {"marlin", NIB_HINT_MARLIN},
        {"PackedLinearInt8DynamicActivation", NIB_HINT_OPAQUE},
        {"OPAQUE", NIB_HINT_OPAQUE},
        {"opaque", NIB_HINT_OPAQUE},
        {"UNPACKED_TO_INT8", NIB_HINT_NONE},
        {"unpacked_to_int8", NIB_HINT_NONE},
        {"PlainLayout", NIB_HINT_NONE},
    };
    if (strcmp(layout, "PLAIN") == 0 || strcmp(layout, "plain") == 0)
        return NIB_HINT_NONE;
    for (size_t i = 0; i < COUNT(known); i++)
        if (strstr(layout, known[i].part) != NULL)
            return known[i].hint;
    return NIB_HINT_OTHER;
}

/* ---- fields ---- */

static const nib_ao_field *find_field(const nib_ao_config *c, const char *key)
{
    for (size_t i = 0; i < c->count; i++)
        if (strcmp(c->fields[i].key, key) == 0)
            return c->fields[i].is_null ? NULL : &c->fields[i];
    return NULL;
}

static const char *text_of(const nib_ao_config *c, const char *key, const char *otherwise)
{
    const nib_ao_field *f = find_field(c, key);
    return f == NULL || f->text == NULL ? otherwise : f->text;
}

static bool has_text(const nib_ao_config *c, const char *key, const char *otherwise,
                     const char *value)
{
    return strcmp(text_of(c, key, otherwise), value) == 0;
}

static nib_status fail_no_scheme(nib_ao_config *c, nib_err *err, const char *setting)
{
    return nib__recipe_fail(&c->at, NIB_UNSUPPORTED, err, "%s: %s has no scheme in Nibble", c->type,
                            setting);
}

/* Checks the keys of a granularity by its type. */
static nib_status check_granularity(nib_ao_config *c, const nib_ao_field *f, nib_err *err)
{
    static const struct {
        const char *type, *key;
    } known[] = {{"PerGroup", "group_size"}, {"PerRow", "dim"}, {"PerAxis", "axis"}};
    const char *key = NULL;
    for (size_t i = 0; i < COUNT(known); i++)
        if (f->type != NULL && strcmp(f->type, known[i].type) == 0)
            key = known[i].key;
    for (size_t i = 0; i < COUNT(f->inner); i++)
        if (f->inner[i] != NULL && (key == NULL || strcmp(f->inner[i], key) != 0))
            return nib__recipe_fail(&c->at, NIB_BAD_INPUT, err, "%s: %s has no setting \"%s\"",
                                    c->type, f->type != NULL ? f->type : f->key, f->inner[i]);
    return NIB_OK;
}

/* Writes "-gN", "-row" or "-tensor" for a granularity; a plain number is a group size. */
static nib_status format_granularity(nib_ao_config *c, const char *key, const char *otherwise,
                                     char out[32], nib_err *err)
{
    const nib_ao_field *f = find_field(c, key);
    if (f == NULL) {
        snprintf(out, 32, "%s", otherwise);
        return NIB_OK;
    }
    const bool group = f->type == NULL || strcmp(f->type, "PerGroup") == 0;
    if (f->first_type != NULL && strcmp(f->first_type, "PerRow") != 0 &&
        strcmp(f->first_type, "PerTensor") != 0)
        return fail_no_scheme(c, err, f->first_type);
    if (f->type == NULL || strcmp(f->type, "PerBlock") != 0)
        NIB_TRY(check_granularity(c, f, err));
    /* a row is torchao's group -1, dimension -1 (which is 1 for a matrix), or axis 0 */
    const bool is_row = f->type != NULL && strcmp(f->type, "PerRow") == 0 &&
                        (!f->has_number || f->number == -1 || f->number == 1);
    const bool is_axis =
        f->type != NULL && strcmp(f->type, "PerAxis") == 0 && (!f->has_number || f->number == 0);
    if (group && f->has_number && f->number > 0)
        snprintf(out, 32, "-g%lld", (long long)f->number);
    else if ((group && f->has_number && f->number == -1) || is_row || is_axis)
        snprintf(out, 32, "-row");
    else if (f->type != NULL && strcmp(f->type, "PerTensor") == 0)
        snprintf(out, 32, "-tensor");
    else
        return fail_no_scheme(c, err, f->type != NULL ? f->type : key);
    return NIB_OK;
}

static const char *pick_by_mapping(const nib_ao_config *c, const char *key, const char *otherwise,
                                   const char *symmetric, const char *asymmetric)
{
    return has_text(c, key, otherwise, "ASYMMETRIC") ? asymmetric : symmetric;
}

/* Stores the layout that a config asks for by name. */
static void note_layout_hint(const nib_ao_config *c, meaning *m)
{
    static const char *const fields[] = {"layout", "int4_packing_format", "intx_packing_format",
                                         "packing_format"};
    for (size_t i = 0; i < COUNT(fields); i++) {
        const nib_ao_field *f = find_field(c, fields[i]);
        const char *text = f == NULL ? NULL : f->text != NULL ? f->text : f->type;
        if (text != NULL && nib__recipe_layout_hint(text) != NIB_HINT_NONE) {
            m->hint = nib__recipe_layout_hint(text);
            m->hint_text = text;
        }
    }
}

/* Refuses integer zero points by the formula of Int4WeightOnlyConfig. */
static nib_status fail_integer_zeros(nib_ao_config *c, nib_err *err, const char *setting,
                                     const char *value)
{
    return nib__recipe_fail(&c->at, NIB_UNSUPPORTED, err,
                            "%s: %s %s has no scheme in Nibble, because its scales are at least "
                            "1e-6; integer zero points by IntxWeightOnlyConfig's formula are "
                            "int4wo-gN-intzero",
                            c->type, setting, value);
}

/* Checks settings without an effect here; torchao's own values are accepted, others refused. */
static nib_status check_enum_values(nib_ao_config *c, nib_err *err)
{
    static const struct {
        const char *key, *values[7];
    } known[] = {
        {"kernel_preference", {"AUTO", "TORCH", "MSLK", "FBGEMM", "EMULATED", "TRITON"}},
        {"step",
         {"PREPARE", "CONVERT", "PREPARE_FOR_LOADING", "PREPARE_FOR_SMOOTHQUANT_SMOOTHING_FACTOR",
          "PREPARE_FOR_SMOOTHQUANT_ACTIVATION_SCALES"}},
    };
    for (size_t i = 0; i < COUNT(known); i++) {
        const char *text = text_of(c, known[i].key, known[i].values[0]);
        size_t v = 0;
        while (known[i].values[v] != NULL && !nib__same_ignoring_case(text, known[i].values[v]))
            v++;
        if (known[i].values[v] == NULL)
            return nib__recipe_fail(&c->at, NIB_BAD_INPUT, err, "%s: %s has no value \"%s\"",
                                    c->type, known[i].key, text);
    }
    return NIB_OK;
}

/* Refuses settings that change numbers in a way that no scheme has. */
static nib_status check_common(nib_ao_config *c, nib_err *err)
{
    static const char *const mappings[] = {"weight_mapping_type", "mapping_type",
                                           "act_mapping_type"};
    static const char *const algorithms[] = {"intx_choose_qparams_algorithm",
                                             "int4_choose_qparams_algorithm"};
    for (size_t i = 0; i < COUNT(mappings); i++) {
        const char *text = text_of(c, mappings[i], "SYMMETRIC");
        if (strcmp(text, "SYMMETRIC") != 0 && strcmp(text, "ASYMMETRIC") != 0)
            return fail_no_scheme(c, err, text);
    }
    for (size_t i = 0; i < COUNT(algorithms); i++) {
        const char *text = text_of(c, algorithms[i], "AFFINE");
        if (strcmp(text, "AFFINE") != 0 && strcmp(text, "TINYGEMM") != 0)
            return fail_no_scheme(c, err, text);
    }
    static const char *const flags[] = {"use_hqq", "reduce_range", "weight_only_decode",
                                        "preserve_zero"};
    for (size_t i = 0; i < COUNT(flags); i++) {
        const nib_ao_field *f = find_field(c, flags[i]);
        if (f != NULL && f->is_true)
            return fail_no_scheme(c, err, flags[i]);
    }
    const char *domain = text_of(c, "zero_point_domain", "NONE"); /* the layout's default: floats */
    if (strcmp(domain, "NONE") != 0 && strcmp(domain, "FLOAT") != 0)
        return fail_integer_zeros(c, err, "zero_point_domain", domain);
    if (find_field(c, "act_quant_scale") != NULL || find_field(c, "act_quant_zero_point") != NULL)
        return fail_no_scheme(c, err, "a given activation scale");
    if (find_field(c, "activation_value_lb") != NULL ||
        find_field(c, "activation_value_ub") != NULL)
        return fail_no_scheme(c, err, "a bound on activations");
    return NIB_OK;
}

/* Reports settings of torchao's own kernels that differ from their defaults. Nibble's kernels give
 * the same numbers. */
static nib_status report_kernel_settings(nib_recipe *r, const nib_ao_config *c, nib_err *err)
{
    static const struct {
        const char *key, *text; /* text: the default; NULL: a flag or a number */
        bool flag;
        int64_t number;
    } kernels[] = {
        {"set_inductor_config", NULL, true, 0},
        {"use_triton_kernel", NULL, true, 0},
        {"kernel_preference", "AUTO", false, 0},
        {"gemm_kernel_choice", "EMULATED", false, 0},
        {"mm_config", NULL, false, 0},
        {"alg_id", NULL, false, 0},
        {"int4_tile_packed_ntile", NULL, false, 8},
    };
    for (size_t i = 0; i < COUNT(kernels); i++) {
        const nib_ao_field *f = find_field(c, kernels[i].key);
        char asked[64];
        if (f == NULL)
            continue;
        const bool is_default = kernels[i].text != NULL
                                    ? f->text == NULL || strcmp(f->text, kernels[i].text) == 0
                                : f->has_number   ? f->number == kernels[i].number
                                : f->type != NULL ? !f->has_other_flag
                                                  : f->is_true == kernels[i].flag;
        if (is_default)
            continue;
        if (f->has_number)
            snprintf(asked, sizeof asked, "%lld", (long long)f->number);
        else
            snprintf(asked, sizeof asked, "%.60s",
                     f->text != NULL   ? f->text
                     : f->type != NULL ? f->type
                     : f->is_true      ? "true"
                                       : "false");
        NIB_TRY(nib__recipe_add_setting(r, err,
                                        &(nib_ledger_setting){.code = "recipe",
                                                              .name = kernels[i].key,
                                                              .asked = asked,
                                                              .relation = NIB_SETTING_EQUIVALENT},
                                        "it only affects torchao's own kernels"));
    }
    return NIB_OK;
}

/* Reports a sparse layout, which would drop two of four weights. */
static nib_status report_sparse(nib_recipe *r, const meaning *m, nib_err *err)
{
    if (m->hint_text == NULL ||
        (strstr(m->hint_text, "Sparse") == NULL && strstr(m->hint_text, "SPARSE") == NULL))
        return NIB_OK;
    return nib__recipe_add_setting(r, err,
                                   &(nib_ledger_setting){.code = "recipe",
                                                         .name = "layout",
                                                         .asked = m->hint_text,
                                                         .done = "dense",
                                                         .relation = NIB_SETTING_OTHER},
                                   "Nibble does not make weights 2:4 sparse and keeps all of them");
}

/* Reports version 1, whose scales had the weight's type and whose int8 activations were in
 * -127..127. */
static nib_status report_first_version(nib_recipe *r, const nib_ao_config *c, const char *differs,
                                       nib_err *err)
{
    if (c->version != 1)
        return NIB_OK;
    return nib__recipe_add_setting(r, err,
                                   &(nib_ledger_setting){.code = "scale-type",
                                                         .name = c->type,
                                                         .asked = "version 1",
                                                         .done = "version 2",
                                                         .relation = NIB_SETTING_OTHER},
                                   "layers are quantized as by version 2; version 1 %s", differs);
}

/* ---- one function per type ---- */

typedef nib_status (*meaning_reader)(nib_recipe *r, nib_ao_config *c, meaning *m, nib_err *err);

static nib_status int8_weight_only(nib_recipe *r, nib_ao_config *c, meaning *m, nib_err *err)
{
    char size[32], old[32];
    NIB_TRY(format_granularity(c, "group_size", "", old, err));
    if (old[0] != 0 && find_field(c, "granularity") != NULL)
        return nib__recipe_fail(&c->at, NIB_BAD_INPUT, err,
                                "%s: group_size and granularity both say what shares a scale; "
                                "keep granularity",
                                c->type);
    NIB_TRY(format_granularity(c, "granularity", old[0] != 0 ? old : "-row", size, err));
    snprintf(m->name, sizeof m->name, "int8wo%s", size);
    return size[1] == 'g' ? NIB_OK
                          : report_first_version(r, c, "kept scales in the weight's type", err);
}

/* otherwise: type of the granularity if none is given. */
static nib_status report_token_scales(nib_recipe *r, const nib_ao_config *c, const char *otherwise,
                                      nib_err *err)
{
    const nib_ao_field *f = find_field(c, "granularity");
    const char *type = f == NULL ? otherwise : f->first_type != NULL ? f->first_type : f->type;
    if (type == NULL || strcmp(type, "PerTensor") != 0)
        return NIB_OK;
    return nib__recipe_add_setting(
        r, err,
        &(nib_ledger_setting){.code = "activations",
                              .name = c->type,
                              .asked = "PerTensor",
                              .done = "one scale per token",
                              .relation = NIB_SETTING_OTHER},
        "activations have one scale per token, so that a token's result does not depend on its "
        "batch");
}

static nib_status int8_dynamic(nib_recipe *r, nib_ao_config *c, meaning *m, nib_err *err)
{
    char size[32];
    NIB_TRY(format_granularity(c, "granularity", "-row", size, err));
    NIB_TRY(report_token_scales(r, c, "PerRow", err));
    snprintf(m->name, sizeof m->name, "int8dq%s%s", size,
             pick_by_mapping(c, "act_mapping_type", "SYMMETRIC", "", "-actasym"));
    return report_first_version(
        r, c, "kept scales in the weight's type, and activations in -127..127", err);
}

static nib_status int8_static(nib_recipe *r, nib_ao_config *c, meaning *m, nib_err *err)
{
    (void)r;
    char size[32];
    NIB_TRY(format_granularity(c, "granularity", "-row", size, err));
    snprintf(m->name, sizeof m->name, "int8dq%s%s-static", size,
             pick_by_mapping(c, "act_mapping_type", "SYMMETRIC", "", "-actasym"));
    return NIB_OK;
}

/* Reads the type of scales of an Intx config, and reports how its symmetric int8 rows differ from
 * the scheme that they get. key: the setting; like: the config with that scheme. */
static nib_status read_scale_type(nib_recipe *r, nib_ao_config *c, const char *key,
                                  const char *like, meaning *m, nib_err *err)
{
    static const nib_type types[] = {NIB_TYPE_F32, NIB_TYPE_BF16, NIB_TYPE_F16};
    static const char *const names[] = {"float32", "bfloat16", "float16"};
    const bool given = find_field(c, key) != NULL;
    const char *name = text_of(c, key, "");
    char setting[64];
    nib_scheme scheme;
    size_t i = 0;
    while (given && i < COUNT(names) && strcmp(name, names[i]) != 0)
        i++;
    snprintf(setting, sizeof setting, "%s%s%.40s", key, name[0] != 0 ? " " : "", name);
    if (i == COUNT(names))
        return fail_no_scheme(c, err, setting);
    m->scale_type = given ? types[i] : NIB_TYPE_NONE;
    const bool rows = nib__scheme_parse(&scheme, m->name, strlen(m->name), NULL) == NIB_OK &&
                      scheme.code == NIB_CODE_I8 && scheme.symmetric &&
                      scheme.group == NIB_GROUP_ROW;
    if (!rows)
        return NIB_OK;
    if (given && m->scale_type != NIB_TYPE_F32)
        return nib__recipe_fail(&c->at, NIB_UNSUPPORTED, err,
                                "%s: %s has no scheme in Nibble, because scales of int8 rows are "
                                "float32",
                                c->type, setting);
    return nib__recipe_add_setting(
        r, err,
        &(nib_ledger_setting){.code = "scale-type",
                              .name = c->type,
                              .asked = "symmetric int8 rows",
                              .done = like,
                              .relation = NIB_SETTING_OTHER},
        "they are quantized as by %s, with float32 scales of at least 2^-23 and codes rounded "
        "once",
        like);
}

static nib_status int8_dynamic_intx(nib_recipe *r, nib_ao_config *c, meaning *m, nib_err *err)
{
    char size[32];
    NIB_TRY(format_granularity(c, "weight_granularity", "-g32", size, err));
    const char *asym = pick_by_mapping(c, "weight_mapping_type", "SYMMETRIC", "", "-asym");
    const char *act = pick_by_mapping(c, "act_mapping_type", "ASYMMETRIC", "-actsym", "-actasym");
    if (has_text(c, "weight_dtype", "int8", "int4"))
        snprintf(m->name, sizeof m->name, "8da4w%s%s%s", size, asym, act);
    else if (has_text(c, "weight_dtype", "int8", "int8") && asym[0] == 0)
        snprintf(m->name, sizeof m->name, "int8dq%s%s", size, act);
    else
        return fail_no_scheme(c, err,
                              asym[0] != 0 ? "asymmetric int8" : text_of(c, "weight_dtype", ""));
    return read_scale_type(r, c, "weight_scale_dtype", "Int8DynamicActivationInt8WeightConfig", m,
                           err);
}

/* The 8da4w of torchao up to 0.15. */
static nib_status int8_dynamic_int4(nib_recipe *r, nib_ao_config *c, meaning *m, nib_err *err)
{
    (void)r;
    char size[32];
    const bool null_group = find_field(c, "group_size") == NULL;
    bool given = false;
    for (size_t i = 0; i < c->count; i++)
        given |= strcmp(c->fields[i].key, "group_size") == 0;
    NIB_TRY(format_granularity(c, "group_size", null_group && given ? "-row" : "-g32", size, err));
    snprintf(m->name, sizeof m->name, "8da4w%s%s%s", size,
             pick_by_mapping(c, "mapping_type", "SYMMETRIC", "", "-asym"),
             pick_by_mapping(c, "act_mapping_type", "ASYMMETRIC", "-actsym", "-actasym"));
    return NIB_OK;
}

static nib_status int4_dynamic_int4(nib_recipe *r, nib_ao_config *c, meaning *m, nib_err *err)
{
    (void)r;
    (void)err;
    snprintf(m->name, sizeof m->name, "4da4w-row%s%s",
             pick_by_mapping(c, "mapping_type", "SYMMETRIC", "", "-asym"),
             pick_by_mapping(c, "act_mapping_type", "SYMMETRIC", "-actsym", "-actasym"));
    return NIB_OK;
}

static nib_status int4_weight_only(nib_recipe *r, nib_ao_config *c, meaning *m, nib_err *err)
{
    (void)r;
    char size[32];
    const char *format = text_of(c, "int4_packing_format", "PLAIN");
    note_layout_hint(c, m);
    if (m->hint == NIB_HINT_MARLIN) /* sparse 2:4, and symmetric */
        return fail_no_scheme(c, err, m->hint_text);
    NIB_TRY(format_granularity(c, "group_size", "-g128", size, err));
    if (strcmp(format, "PLAIN_INT32") == 0 || strcmp(format, "plain_int32") == 0)
        return fail_integer_zeros(c, err, "int4_packing_format", format);
    const bool tiled = c->version == 1 || nib__recipe_layout_hint(format) == NIB_HINT_TILE_PACKED;
    snprintf(m->name, sizeof m->name, "int4wo%s%s", size, tiled ? "-tinygemm" : "");
    return NIB_OK;
}

/* int1 to int8 */
static bool is_int_type(const char *name)
{
    return strncmp(name, "int", 3) == 0 && name[3] >= '1' && name[3] <= '8' && name[4] == 0;
}

static nib_status intx_weight_only(nib_recipe *r, nib_ao_config *c, meaning *m, nib_err *err)
{
    char size[32];
    NIB_TRY(format_granularity(c, "granularity", "-row", size, err));
    if (has_text(c, "weight_dtype", "int8", "int4"))
        snprintf(m->name, sizeof m->name, "int4wo%s%s", size,
                 pick_by_mapping(c, "mapping_type", "SYMMETRIC", "-sym", "-intzero"));
    else if (is_int_type(text_of(c, "weight_dtype", "int8")))
        snprintf(m->name, sizeof m->name, "%swo%s%s", text_of(c, "weight_dtype", "int8"), size,
                 pick_by_mapping(c, "mapping_type", "SYMMETRIC", "-sym", "-asym"));
    else
        return fail_no_scheme(c, err, text_of(c, "weight_dtype", ""));
    return read_scale_type(r, c, "scale_dtype", "Int8WeightOnlyConfig", m, err);
}

static nib_status check_e4m3(nib_ao_config *c, const char *key, nib_err *err)
{
    const char *type = text_of(c, key, "float8_e4m3fn");
    return strcmp(type, "float8_e4m3fn") == 0 ? NIB_OK : fail_no_scheme(c, err, type);
}

static nib_status fp8_weight_only(nib_recipe *r, nib_ao_config *c, meaning *m, nib_err *err)
{
    (void)r;
    char size[32];
    NIB_TRY(check_e4m3(c, "weight_dtype", err));
    NIB_TRY(format_granularity(c, "granularity", "-row", size, err));
    snprintf(m->name, sizeof m->name, "fp8wo%s", size);
    return NIB_OK;
}

static nib_status fp8_dynamic(nib_recipe *r, nib_ao_config *c, meaning *m, nib_err *err)
{
    char size[32];
    NIB_TRY(check_e4m3(c, "weight_dtype", err));
    NIB_TRY(check_e4m3(c, "activation_dtype", err));
    NIB_TRY(format_granularity(c, "granularity", "-tensor", size, err));
    NIB_TRY(report_token_scales(r, c, "PerTensor", err));
    snprintf(m->name, sizeof m->name, "fp8dq%s", size);
    return NIB_OK;
}

static nib_status mx_dynamic(nib_recipe *r, nib_ao_config *c, meaning *m, nib_err *err)
{
    (void)r;
    const nib_ao_field *block = find_field(c, "block_size");
    const char *base = "mxfp8";
    if (has_text(c, "weight_dtype", "", "float4_e2m1fn_x2") &&
        has_text(c, "activation_dtype", "", "float4_e2m1fn_x2")) {
        base = "mxfp4dq";
    } else {
        NIB_TRY(check_e4m3(c, "weight_dtype", err));
        NIB_TRY(check_e4m3(c, "activation_dtype", err));
    }
    if (block != NULL && block->number != 32)
        return fail_no_scheme(c, err, "a block_size other than 32");
    const char *mode = text_of(c, "scaling_mode", "RCEIL");
    if (strcmp(mode, "RCEIL") != 0 && strcmp(mode, "FLOOR") != 0 && strcmp(mode, "rceil") != 0 &&
        strcmp(mode, "floor") != 0)
        return fail_no_scheme(c, err, mode);
    snprintf(m->name, sizeof m->name, "%s%s", base,
             mode[0] == 'F' || mode[0] == 'f' ? "-floor" : "");
    return NIB_OK;
}

static nib_status nv_weight_only(nib_recipe *r, nib_ao_config *c, meaning *m, nib_err *err)
{
    (void)r, (void)err;
    const nib_ao_field *levels = find_field(c, "use_dynamic_per_tensor_scale");
    snprintf(m->name, sizeof m->name, "nvfp4%s", levels == NULL || levels->is_true ? "" : "-block");
    return NIB_OK;
}

/* With a calibration step the weights have two levels of scales, whatever the config says. */
static nib_status nv_dynamic(nib_recipe *r, nib_ao_config *c, meaning *m, nib_err *err)
{
    const nib_ao_field *levels = find_field(c, "use_dynamic_per_tensor_scale");
    const bool is_static = find_field(c, "step") != NULL;
    const bool is_block = !is_static && levels != NULL && !levels->is_true;
    snprintf(m->name, sizeof m->name, "nvfp4dq%s", is_block ? "-block" : "");
    if (is_block)
        return NIB_OK;
    return nib__recipe_add_setting(
        r, err,
        &(nib_ledger_setting){.code = "activations",
                              .name = c->type,
                              .asked = is_static ? "step" : "use_dynamic_per_tensor_scale",
                              .done = "one scale per token above its block scales",
                              .relation = NIB_SETTING_OTHER},
        "activations have one scale per token above their block scales; torchao has one %s",
        is_static ? "fixed by calibration"
                  : "per batch, which makes a token's result depend on its batch");
}

/* The newest version in torchao 0.18. A later one may change the meaning of a key. */
enum { VERSION = 2 };

nib_status nib__ao_check_version(nib_ao_config *c, nib_err *err)
{
    if (c->version >= 1 && c->version <= VERSION)
        return NIB_OK;
    return nib__recipe_fail(&c->at, NIB_UNSUPPORTED, err,
                            "%s version %lld is not supported; versions 1 and %d are", c->type,
                            (long long)c->version, VERSION);
}

/* Settings of torchao's own kernels and the version. */
#define ANY "set_inductor_config", "version"

static const struct {
    const char *type;
    meaning_reader read;
    const char *takes[14];
} types[] = {
    {"Int8WeightOnlyConfig", int8_weight_only, {ANY, "group_size", "granularity"}},
    {"Int8DynamicActivationInt8WeightConfig",
     int8_dynamic,
     {ANY, "layout", "act_mapping_type", "weight_only_decode", "granularity", "reduce_range"}},
    {"Int8StaticActivationInt8WeightConfig",
     int8_static,
     {ANY, "act_quant_scale", "act_quant_zero_point", "granularity", "act_mapping_type",
      "reduce_range"}},
    {"Int8DynamicActivationIntxWeightConfig",
     int8_dynamic_intx,
     {ANY, "weight_dtype", "weight_granularity", "weight_mapping_type", "weight_scale_dtype",
      "act_mapping_type", "intx_packing_format", "intx_choose_qparams_algorithm", "layout",
      "packing_format"}},
    {"Int8DynamicActivationInt4WeightConfig",
     int8_dynamic_int4,
     {ANY, "group_size", "layout", "mapping_type", "act_mapping_type"}},
    {"Int4DynamicActivationInt4WeightConfig",
     int4_dynamic_int4,
     {ANY, "layout", "mapping_type", "act_mapping_type"}},
    {"Int4WeightOnlyConfig",
     int4_weight_only,
     {ANY, "group_size", "layout", "use_hqq", "zero_point_domain", "preserve_zero",
      "packing_format", "int4_packing_format", "int4_choose_qparams_algorithm",
      "int4_tile_packed_ntile"}},
    {"IntxWeightOnlyConfig",
     intx_weight_only,
     {ANY, "weight_dtype", "granularity", "mapping_type", "scale_dtype", "layout", "packing_format",
      "intx_packing_format", "intx_choose_qparams_algorithm"}},
    {"Float8WeightOnlyConfig", fp8_weight_only, {ANY, "weight_dtype", "granularity"}},
    {"Float8DynamicActivationFloat8WeightConfig",
     fp8_dynamic,
     {ANY, "activation_dtype", "weight_dtype", "granularity", "packing_format", "mm_config",
      "activation_value_lb", "activation_value_ub", "kernel_preference", "alg_id"}},
    {"MXDynamicActivationMXWeightConfig",
     mx_dynamic,
     {ANY, "block_size", "activation_dtype", "weight_dtype", "kernel_preference",
      "gemm_kernel_choice", "scaling_mode"}},
    {"NVFP4WeightOnlyConfig", nv_weight_only, {ANY, "use_dynamic_per_tensor_scale"}},
    {"NVFP4DynamicActivationNVFP4WeightConfig",
     nv_dynamic,
     {ANY, "use_triton_kernel", "use_dynamic_per_tensor_scale", "step"}},
};

/* torchao's other configs, to tell them from misspelt names. */
static const char *const no_scheme[] = {
    "Float8DynamicActivationInt4WeightConfig",
    "Float8StaticActivationFloat8WeightConfig",
    "UIntXWeightOnlyConfig",
    "UIntxWeightOnlyConfig",
    "Int8DynamicActivationUIntxWeightConfig",
    "GemliteUIntXWeightOnlyConfig",
    "FPXWeightOnlyConfig",
    "GPTQConfig",
    "AWQConfig",
    "SmoothQuantConfig",
    "QATConfig",
    "CodebookWeightOnlyConfig",
    "GroupwiseLutWeightConfig",
    "GGUFWeightOnlyConfig",
    "NF4WeightOnlyConfig",
    "PrototypeInt4WeightOnlyConfig",
};

static nib_status check_fields(nib_recipe *r, nib_ao_config *c, const char *const *takes,
                               nib_err *err)
{
    size_t count = 0;
    while (takes[count] != NULL) /* each list is shorter than its array */
        count++;
    for (size_t i = 0; i < c->count; i++) {
        size_t t = 0;
        while (t < count && strcmp(c->fields[i].key, takes[t]) != 0)
            t++;
        if (t == count)
            return nib__recipe_fail(
                &c->at, NIB_BAD_INPUT, err, "%s has no setting \"%s\"%s", c->type, c->fields[i].key,
                nib__recipe_suggest(r, c->fields[i].key, "settings", takes, count));
    }
    return NIB_OK;
}

static nib_status find_meaning(nib_recipe *r, nib_ao_config *c, nib_json *data, meaning *m,
                               nib_err *err)
{
    const char *names[COUNT(types)];
    *m = (meaning){.hint = NIB_HINT_NONE};
    for (size_t i = 0; i < COUNT(types); i++) {
        names[i] = types[i].type;
        if (strcmp(c->type, types[i].type) != 0)
            continue;
        NIB_TRY(nib__ao_read_data(c, r, data, err));
        NIB_TRY(check_fields(r, c, types[i].takes, err));
        NIB_TRY(check_common(c, err));
        NIB_TRY(check_enum_values(c, err));
        const nib_ao_field *version =
            find_field(c, "version"); /* takes precedence over "_version" in torchao */
        if (version != NULL && version->has_number)
            c->version = version->number;
        NIB_TRY(nib__ao_check_version(c, err));
        NIB_TRY(types[i].read(r, c, m, err));
        note_layout_hint(c, m);
        NIB_TRY(report_kernel_settings(r, c, err));
        return report_sparse(r, m, err);
    }
    for (size_t i = 0; i < COUNT(no_scheme); i++)
        if (strcmp(c->type, no_scheme[i]) == 0)
            return nib__recipe_fail(&c->at, NIB_UNSUPPORTED, err,
                                    "torchao's %s has no scheme in Nibble", c->type);
    return nib__recipe_fail(&c->at, NIB_BAD_INPUT, err, "torchao has no config \"%s\"%s", c->type,
                            nib__recipe_suggest(r, c->type, "configs", names, COUNT(names)));
}

/* ---- the interface ---- */

nib_status nib__ao_fill_rule(nib_recipe *r, nib_ao_config *c, nib_json *data, nib_rule *rule,
                             nib_err *err)
{
    meaning m;
    nib_err inner = {0};
    rule->keep = c->type == NULL;
    if (rule->keep)
        return NIB_OK;
    NIB_TRY(find_meaning(r, c, data, &m, err));
    const nib_status status = nib__scheme_parse(&rule->scheme, m.name, strlen(m.name), &inner);
    if (status != NIB_OK)
        return nib__recipe_fail(&c->at, NIB_UNSUPPORTED, err, "%s means %s, but %s", c->type,
                                m.name, inner.text);
    rule->scale_type = m.scale_type;
    rule->hint = m.hint;
    rule->hint_text = m.hint_text;
    return NIB_OK;
}

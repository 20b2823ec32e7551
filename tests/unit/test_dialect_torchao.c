/* SPDX-License-Identifier: Apache-2.0
 *
 * torchao: what a description and its tensors must be. Each row is one weight, valid or with one
 * fault. test_weight.c compares values with torchao's own.
 */
#include "checkpoint_build.h"
#include "json_fields.h"

#include <math.h>

/* ---- the fields of a description ---- */

typedef struct description {
    char word[NIB_FIELD_TEXT];
    int64_t number, items[2];
    bool flag;
} description;

static nib_status read_fields(description *out, const char *text, nib_err *err)
{
    static const nib_field fields[] = {
        {"word", NIB_FIELD_STRING, offsetof(description, word)},
        {"in.number", NIB_FIELD_INT, offsetof(description, number)},
        {"items[0]", NIB_FIELD_INT, offsetof(description, items[0])},
        {"items[1]", NIB_FIELD_INT, offsetof(description, items[1])},
        {"flag", NIB_FIELD_BOOL, offsetof(description, flag)},
        {"any[1].x", NIB_FIELD_ANY, 0},
    };
    *out = (description){.number = -1};
    return nib__fields_read(out, fields, COUNT(fields), "d", text, err);
}

static void test_fields(void **state)
{
    (void)state;
    description d;
    nib_err err = {NIB_OK, ""};
    if (read_fields(&d,
                    "{\"word\":\"abc\",\"in\":{\"number\":7},\"items\":[1,2],\"flag\":true,"
                    "\"any\":[null,{\"x\":\"\\u0007\"}]}",
                    &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_string_equal(d.word, "abc");
    assert_int_equal(d.number, 7);
    assert_int_equal(d.items[0] * 10 + d.items[1], 12);
    assert_true(d.flag);
    assert_int_equal(read_fields(&d, "{\"word\":null,\"flag\":false}", &err), NIB_OK);
    assert_true(d.word[0] == 0 && d.number == -1 && !d.flag);
    static const char *const bad[] = {
        "",
        "7",
        "[7]",
        "{\"word\":7}",
        "{\"word\":\"a\\n\"}",
        "{\"word\":\"0123456789012345678901234567890123456789\"}",
        "{\"in\":{\"number\":1.5}}",
        "{\"in\":{\"number\":\"1\"}}",
        "{\"in\":{\"number\":-1}}",
        "{\"items\":[1,2,3]}",
        "{\"flag\":1}",
        "{\"any\":[1]}",
        "{\"other\":\"\"}",
        "{\"a\":[[[[[[[[1]]]]]]]]}", /* too deep */
    };
    for (size_t i = 0; i < COUNT(bad); i++)
        refused(NIB_BAD_INPUT, read_fields(&d, bad[i], &err), &err);
    char key[260];
    for (int size = 190; size < 210;
         size++) { /* the path of a member, up to its limit and past it */
        snprintf(key, sizeof key, "{\"%0*d\":{\"x\":null}}", size, 0);
        const bool fits = size + 2 < 200;
        if (fits)
            assert_int_equal(read_fields(&d, key, &err), NIB_OK);
        else
            refused(NIB_BAD_INPUT, read_fields(&d, key, &err), &err);
    }
}

/* ---- weights ---- */

enum { PARTS = 8, NAME = 48 };

typedef struct weight_text {
    part parts[PARTS];
    char names[PARTS][NAME], types[PARTS][16];
    char listed[256]; /* for the description */
    size_t count;
} weight_text;

/* Parses "qdata I8 2 4; +scale F32 2 1": tensors of m, with + if the description does not list
 * them. Values of F32 are 1, or NaN for F32!; bytes of all others are 0, 1 for I8!, and 127, which
 * is NaN in e4m3, for F8_E4M3?. */
static void parse_parts(weight_text *out, const char *text)
{
    static float ones[2048], not_a_number[2048];
    static uint8_t small[2048], large[2048];
    for (size_t i = 0; i < COUNT(ones); i++)
        ones[i] = 1, not_a_number[i] = NAN, small[i] = 1, large[i] = 127;
    *out = (weight_text){.count = 0};
    for (const char *at = text; *at != 0; out->count++) {
        const size_t i = out->count;
        part *p = &out->parts[i];
        char name[32];
        int used = 0;
        assert_true(i < PARTS && sscanf(at, " %31s %15s%n", name, out->types[i], &used) == 2);
        for (at += used; *at == ' '; p->rank++) {
            char *end;
            p->shape[p->rank] = strtoll(at, &end, 10);
            at = end;
        }
        at += *at == ';';
        const bool listed = name[0] != '+', other = strchr(out->types[i], '!') != NULL;
        snprintf(out->names[i], NAME, "m._weight_%s", listed ? name : name + 1);
        if (listed)
            snprintf(out->listed + strlen(out->listed), sizeof out->listed - strlen(out->listed),
                     "%s'%s'", out->listed[0] != 0 ? "," : "", name);
        const bool is_large = strchr(out->types[i], '?') != NULL;
        out->types[i][strcspn(out->types[i], "!?")] = 0;
        p->name = out->names[i];
        p->type = out->types[i];
        if (strcmp(p->type, "F32") == 0)
            p->data = other ? not_a_number : ones;
        else if (other || is_large)
            p->data = other ? small : large;
        assert_true(p->data == NULL || part_bytes(p) <= sizeof ones);
    }
}

/* The description as a member of __metadata__; ' stands for ". */
static void describe(char out[2048], const char *type, const char *data, const char *listed)
{
    char text[1024];
    snprintf(text, sizeof text, "{'_type':'%s','_data':{%s},'_tensor_data_names':[%s]}", type, data,
             listed);
    strcpy(out, "\"m.weight\":\"");
    size_t at = strlen(out);
    for (const char *c = text; *c != 0; c++) {
        assert_true(at < 2040);
        if (*c == '\'')
            out[at++] = '\\', out[at++] = '"';
        else
            out[at++] = *c;
    }
    strcpy(out + at, "\"");
}

typedef struct row {
    const char *type, *data, *parts;
    nib_status status;
    const char *scheme; /* of a valid weight */
    size_t lines;       /* in its ledger */
} row;

static void check_row(const row *r)
{
    weight_text text;
    char metadata[2048], name[64];
    made m;
    nib_weight w = {.n = -7};
    nib_ledger ledger;
    nib_err err = {NIB_OK, ""};
    parse_parts(&text, r->parts);
    describe(metadata, r->type, r->data, text.listed);
    open_parts(&m, metadata, text.parts, text.count);
    nib__ledger_init(&ledger, &m.allocator);
    const nib_status got = nib__checkpoint_weight(&w, NULL, m.cp, "m", &ledger, &err);
    if (r->status != NIB_OK) {
        if (got == NIB_OK)
            print_error("%s {%s} %s\n", r->type, r->data, r->parts);
        refused(r->status, got, &err);
        assert_int_equal(w.n, -7); /* untouched */
    } else {
        if (got != NIB_OK)
            fail_msg("%s {%s} %s: %s", r->type, r->data, r->parts, err.text);
        if (strcmp(nib__scheme_name(name, &w.scheme), r->scheme) != 0 ||
            ledger.tensor_count != r->lines)
            fail_msg("%s {%s} %s is %s with %zu lines", r->type, r->data, r->parts, name,
                     ledger.tensor_count);
        if (w.scheme.act_symmetric)
            assert_null(w.act_zero);
    }
    check_memory_of_reading(m.dir);
    nib__ledger_free(&ledger);
    drop_checkpoint(&m);
}

#define CHECK_ROWS(rows)                                                                           \
    for (size_t i = 0; i < COUNT(rows); i++)                                                       \
    check_row(&(rows)[i])

#define B14 "'block_size':[1,4]"
#define ROWS2 "qdata I8 2 4; scale F32 2 1"
#define ACT(type, data) B14 ",'act_quant_kwargs':{'_type':'" type "','_data':{" data "}}"
#define SIZE(type) "'granularity':{'_type':'" type "','_data':{}}"
#define MAPPING(name) ",'mapping_type':{'_type':'MappingType','_data':'" name "'}"

static void test_int8(void **state)
{
    (void)state;
    static const row rows[] = {
        {"Int8Tensor", B14, ROWS2, NIB_OK, "int8wo", 0},
        {"Int8Tensor", "'block_size':[2,4]", "qdata I8 2 4; scale F32 1 1", NIB_OK, "int8wo-tensor",
         0},
        {"Int8Tensor", B14, ROWS2 "; zero_point I8! 2 1", NIB_OK, "int8wo-asym", 0},
        {"Int8Tensor", B14, "qdata I8 2 4; scale F32 2; zero_point I8! 2", NIB_OK, "int8wo-asym",
         0},
        {"Int8Tensor", B14, "qdata I8 2 4; scale F32 2; zero_point I8! 3", NIB_BAD_INPUT, NULL, 0},
        {"Int8Tensor", B14, "qdata I8 2 4", NIB_BAD_INPUT, NULL, 0}, /* no scale */
        {"Int8Tensor", B14, "qdata I8 2 4; scale F32! 2 1", NIB_BAD_INPUT, NULL, 0},
        {"Int8Tensor", "'block_size':[0,4]", ROWS2, NIB_UNSUPPORTED, NULL, 0},
        {"Int8Tensor", "'block_size':[3,4]", ROWS2, NIB_UNSUPPORTED, NULL, 0},
        {"Int8Tensor", "'block_size':[2,2]", ROWS2, NIB_UNSUPPORTED, NULL, 0},
        {"Int8Tensor", "'block_size':[1,0]", ROWS2, NIB_UNSUPPORTED, NULL, 0},
        {"Int8Tensor", "'block_size':[1,5]", ROWS2, NIB_UNSUPPORTED, NULL, 0},
        {"Int8Tensor", "'block_size':[1,3]", ROWS2, NIB_BAD_INPUT, NULL, 0},
        {"Int8Tensor", "'block_size':1", ROWS2, NIB_UNSUPPORTED, NULL, 0},
        /* static activations: a zero point of 0 is none */
        {"Int8Tensor", B14, ROWS2 "; act_quant_scale F32 1 1", NIB_OK, "int8dq-static", 0},
        {"Int8Tensor", B14, ROWS2 "; act_quant_scale F32 1; act_quant_zero_point I8 1", NIB_OK,
         "int8dq-static", 0},
        {"Int8Tensor", B14, ROWS2 "; act_quant_scale F32 1; act_quant_zero_point I8! 1", NIB_OK,
         "int8dq-actasym-static", 0},
        {"Int8Tensor", B14, ROWS2 "; act_quant_scale F32! 1", NIB_BAD_INPUT, NULL, 0},
        /* dynamic activations */
        {"Int8Tensor", ACT("QuantizeTensorToInt8Kwargs", SIZE("PerRow")), ROWS2, NIB_OK, "int8dq",
         0},
        {"Int8Tensor", ACT("QuantizeTensorToInt8Kwargs", SIZE("PerTensor") MAPPING("ASYMMETRIC")),
         ROWS2, NIB_OK, "int8dq-actasym", 1},
        {"Int8Tensor", ACT("QuantizeTensorToInt8Kwargs", SIZE("PerGroup")), ROWS2, NIB_UNSUPPORTED,
         NULL, 0},
        {"Int8Tensor", ACT("QuantizeTensorToInt8Kwargs", SIZE("PerRow") MAPPING("ODD")), ROWS2,
         NIB_UNSUPPORTED, NULL, 0},
        {"Int8Tensor", ACT("QuantizeTensorToInt8Kwargs", SIZE("PerRow") ",'reduce_range':true"),
         ROWS2, NIB_UNSUPPORTED, NULL, 0},
        {"Int8Tensor", ACT("QuantizeTensorToFloat8Kwargs", SIZE("PerRow")), ROWS2, NIB_UNSUPPORTED,
         NULL, 0},
        /* every tensor that a description may list */
        {"Int8Tensor", B14,
         ROWS2 "; zero_point I8! 2 1; act_quant_scale F32 1; act_quant_zero_point I8! 1; "
               "per_tensor_scale F32 1; act_per_tensor_scale F32 1; scale_and_zero F32 1",
         NIB_OK, "int8dq-asym-actasym-static", 0},
        {"Int8Tensor", B14, "qdata I8 2 4; scale F32 2 1; new F32 1", NIB_UNSUPPORTED, NULL, 0},
        {"Int8Tensor", "'block_size':[2,4]", "qdata I8 2 4; scale F32! 1 1", NIB_BAD_INPUT, NULL,
         0},
        {"Int8Tensor", B14, "+other U8 1", NIB_BAD_INPUT, NULL, 0}, /* no codes */
        {"Int4PlainInt32Tensor", B14, ROWS2, NIB_UNSUPPORTED, NULL, 0},
    };
    CHECK_ROWS(rows);
}

#define TARGET(name) "'target_dtype':{'_type':'torch.dtype','_data':'" name "'},"

static void test_intx(void **state)
{
    (void)state;
    static const char parts[] = "qdata I8 2 4; scale F32 2 1; zero_point I8 2 1";
    static const row rows[] = {
        {"IntxUnpackedToInt8Tensor", TARGET("int4") B14, parts, NIB_OK, "int4wo-g4-sym", 0},
        {"IntxUnpackedToInt8Tensor", TARGET("int8") B14, parts, NIB_OK, "int8wo", 0},
        {"IntxUnpackedToInt8Tensor", TARGET("int1") B14, parts, NIB_OK, "int1wo-g4", 0},
        {"IntxUnpackedToInt8Tensor", TARGET("int5") B14, parts, NIB_OK, "int5wo-g4", 0},
        {"IntxUnpackedToInt8Tensor",
         TARGET("int3") B14 ",'activation_quantization':'int8_asym_per_token'", parts, NIB_OK,
         "8da4w-g4", 1},
        {"IntxUnpackedToInt8Tensor", TARGET("int0") B14, parts, NIB_UNSUPPORTED, NULL, 0},
        {"IntxUnpackedToInt8Tensor", TARGET("int9") B14, parts, NIB_UNSUPPORTED, NULL, 0},
        {"IntxUnpackedToInt8Tensor", TARGET("int44") B14, parts, NIB_UNSUPPORTED, NULL, 0},
        {"IntxUnpackedToInt8Tensor", TARGET("uint4") B14, parts, NIB_UNSUPPORTED, NULL, 0},
        {"IntxUnpackedToInt8Tensor", B14, parts, NIB_UNSUPPORTED, NULL, 0},
        {"IntxUnpackedToInt8Tensor", TARGET("int4") "'block_size':[1,512]",
         "qdata I8 2 512; scale F32 2 1; zero_point I8 2 1", NIB_OK, "int4wo-row-sym", 0},
        {"IntxUnpackedToInt8Tensor", TARGET("int4") B14, ROWS2, NIB_BAD_INPUT, NULL, 0},
        {"IntxUnpackedToInt8Tensor", TARGET("int4") B14, ROWS2 "; zero_point F32 2 1",
         NIB_UNSUPPORTED, NULL, 0},
        {"IntxUnpackedToInt8Tensor", TARGET("int4") B14, "qdata U8 2 4; scale F32 2 1",
         NIB_BAD_INPUT, NULL, 0},
    };
    CHECK_ROWS(rows);
}

#define INT4(block, shape, extra) "'block_size':" block ",'shape':" shape extra
#define GROUPS42 "scale F32 4 2; zero_point F32 4 2"
#define FLOATS(name) ",'activation_dtype':{'_type':'torch.dtype','_data':'" name "'}"

static void test_int4(void **state)
{
    (void)state;
    static const row rows[] = {
        {"Int4Tensor", INT4("[1,2]", "[2,8]", ""), "qdata I8 2 4; " GROUPS42, NIB_OK, "int4wo-g2",
         0},
        {"Int4Tensor", INT4("[1,2]", "[2,8]", ""),
         "qdata I8 2 4; scale F32 4 2; zero_point F64 4 2", NIB_OK, "int4wo-g2", 1},
        {"Int4Tensor", INT4("[1,2]", "[2,8]", FLOATS("bfloat16")), "qdata U8 2 4; " GROUPS42,
         NIB_OK, "int4wo-g2", 0},
        {"Int4Tensor", INT4("[1,2]", "[2,8]", FLOATS("float8_e4m3fn")), "qdata U8 2 4; " GROUPS42,
         NIB_UNSUPPORTED, NULL, 0},
        {"Int4Tensor", INT4("[1,2]", "[0,8]", ""), "qdata I8 2 4; " GROUPS42, NIB_BAD_INPUT, NULL,
         0},
        {"Int4Tensor", INT4("[1,2]", "[2,0]", ""), "qdata I8 2 4; " GROUPS42, NIB_BAD_INPUT, NULL,
         0},
        {"Int4Tensor", INT4("[2,2]", "[2,8]", ""), "qdata I8 2 4; " GROUPS42, NIB_BAD_INPUT, NULL,
         0},
        {"Int4Tensor", INT4("[1,0]", "[2,8]", ""), "qdata I8 2 4; " GROUPS42, NIB_BAD_INPUT, NULL,
         0},
        {"Int4Tensor", INT4("[1,3]", "[2,8]", ""), "qdata I8 2 4; " GROUPS42, NIB_BAD_INPUT, NULL,
         0},
        {"Int4Tensor", INT4("[1,2]", "[2,8]", ""), "qdata I32 2 4; " GROUPS42, NIB_BAD_INPUT, NULL,
         0},
        {"Int4Tensor", INT4("[1,2]", "[2,8]", ""), "qdata I8 2 5; " GROUPS42, NIB_BAD_INPUT, NULL,
         0},
        {"Int4Tensor", INT4("[1,2]", "[2,8]", ""), "qdata I8 2 4; scale F32 4 2", NIB_BAD_INPUT,
         NULL, 0},
        {"Int4Tensor", INT4("[1,2]", "[2,8]", ""),
         "qdata I8 2 4; scale F32 2 4; zero_point F32 4 2", NIB_BAD_INPUT, NULL, 0},
        {"Int4Tensor", INT4("[1,2]", "[2,8]", ""),
         "qdata I8 2 4; scale F32! 4 2; zero_point F32 4 2", NIB_BAD_INPUT, NULL, 0},
        {"Int4Tensor", INT4("[1,2]", "[2,8]", ""),
         "qdata I8 2 4; scale F32 4 2; zero_point F32! 4 2", NIB_BAD_INPUT, NULL, 0},
        {"Int4Tensor", INT4("[1,2]", "[2,8]", ""), "qdata I8 2 4; scale F32 4 2; zero_point I8 4 2",
         NIB_BAD_INPUT, NULL, 0},
    };
    CHECK_ROWS(rows);
}

#define E4M3 ",'float8_dtype':{'_type':'torch.dtype','_data':'float8_e4m3fn'}"
#define E5M2 ",'float8_dtype':{'_type':'torch.dtype','_data':'float8_e5m2'}"
#define FP8ROWS "qdata F8_E4M3 2 4; scale F32 2 1"

static void test_float8(void **state)
{
    (void)state;
    static const row rows[] = {
        {"Float8Tensor", B14, FP8ROWS, NIB_OK, "fp8wo", 0},
        {"Float8Tensor", "'block_size':[2,4]", "qdata F8_E4M3 4 8; scale F32 2 2", NIB_OK,
         "fp8wo-g4", 0}, /* blocks of 2 x 4 */
        {"Float8Tensor", "'block_size':[2,4]", "qdata F8_E4M3 3 8; scale F32 2 2", NIB_BAD_INPUT,
         NULL, 0},
        {"Float8Tensor", "'block_size':[2,4]", "qdata F8_E5M2 4 8; scale F32 2 2", NIB_UNSUPPORTED,
         NULL, 0},
        {"Float8Tensor", "'block_size':[1,8]", "qdata F8_E4M3 1 8; scale F32 1 1", NIB_OK, "fp8wo",
         0},
        {"Float8Tensor", B14, "qdata I8 2 4; scale F32 2 1", NIB_BAD_INPUT, NULL, 0},
        {"Float8Tensor", B14, FP8ROWS "; zero_point I8 2 1", NIB_OK, "fp8wo", 0},
        {"Float8Tensor", B14, FP8ROWS "; zero_point I8! 2 1", NIB_UNSUPPORTED, NULL, 0},
        {"Float8Tensor", ACT("QuantizeTensorToFloat8Kwargs", SIZE("PerRow") E4M3), FP8ROWS, NIB_OK,
         "fp8dq", 0},
        {"Float8Tensor", ACT("QuantizeTensorToFloat8Kwargs", SIZE("PerTensor") E4M3), FP8ROWS,
         NIB_OK, "fp8dq", 1},
        {"Float8Tensor", ACT("QuantizeTensorToFloat8Kwargs", SIZE("PerBlock") E4M3), FP8ROWS,
         NIB_UNSUPPORTED, NULL, 0},
        {"Float8Tensor", ACT("QuantizeTensorToFloat8Kwargs", SIZE("PerRow") E5M2), FP8ROWS,
         NIB_UNSUPPORTED, NULL, 0},
        {"Float8Tensor", ACT("QuantizeTensorToInt8Kwargs", SIZE("PerRow") E4M3), FP8ROWS,
         NIB_UNSUPPORTED, NULL, 0},
    };
    CHECK_ROWS(rows);
}

#define ELEM(name) "'elem_dtype':{'_type':'torch.dtype','_data':'" name "'},"
#define MX(extra) "'block_size':32,'is_swizzled_scales':false" extra
#define MXACT(type, elem, block, mode)                                                             \
    MX(",'act_quant_kwargs':{'_type':'" type "','_data':{'elem_dtype':{'_type':'torch.dtype',"     \
       "'_data':'" elem "'},'block_size':" block                                                   \
       ",'scaling_mode':{'_type':'ScaleCalculationMode',"                                          \
       "'_data':'" mode "'}}}")
#define MX8 "qdata F8_E4M3 2 64; scale F8_E8M0 2 2"
#define MX4 "qdata U8 2 32; scale F8_E8M0 2 2"
#define FOUR "float4_e2m1fn_x2"
#define EIGHT "float8_e4m3fn"

static void test_mx(void **state)
{
    (void)state;
    static const row rows[] = {
        {"MXTensor", ELEM(EIGHT) MX(""), MX8, NIB_OK, "mx8+float", 0},
        {"MXTensor", ELEM(FOUR) MX(""), MX4, NIB_OK, "mxfp4", 0},
        {"MXTensor", ELEM(FOUR) MX(""), "qdata U8 2 24; scale F8_E8M0 2 2", NIB_BAD_INPUT, NULL, 0},
        {"MXTensor", ELEM(FOUR) MX(""), "qdata F8_E4M3 2 32; scale F8_E8M0 2 2", NIB_BAD_INPUT,
         NULL, 0},
        {"MXTensor", ELEM("float8_e5m2") MX(""), MX8, NIB_UNSUPPORTED, NULL, 0},
        {"MXTensor", ELEM(EIGHT) MXACT("QuantizeTensorToMXKwargs", EIGHT, "32", "RCEIL"), MX8,
         NIB_OK, "mxfp8", 0},
        {"MXTensor", ELEM(EIGHT) MXACT("QuantizeTensorToMXKwargs", EIGHT, "32", "FLOOR"), MX8,
         NIB_OK, "mxfp8-floor", 0},
        {"MXTensor", ELEM(FOUR) MXACT("QuantizeTensorToMXKwargs", FOUR, "32", "RCEIL"), MX4, NIB_OK,
         "mxfp4dq", 0},
        {"MXTensor", ELEM(EIGHT) MXACT("QuantizeTensorToMXKwargs", EIGHT, "32", "EVEN"), MX8,
         NIB_UNSUPPORTED, NULL, 0},
        {"MXTensor", ELEM(EIGHT) MXACT("QuantizeTensorToMXKwargs", EIGHT, "16", "RCEIL"), MX8,
         NIB_UNSUPPORTED, NULL, 0},
        {"MXTensor", ELEM(EIGHT) MXACT("QuantizeTensorToMXKwargs", FOUR, "32", "RCEIL"), MX8,
         NIB_UNSUPPORTED, NULL, 0},
        {"MXTensor", ELEM(EIGHT) MXACT("QuantizeTensorToInt8Kwargs", EIGHT, "32", "RCEIL"), MX8,
         NIB_UNSUPPORTED, NULL, 0},
    };
    CHECK_ROWS(rows);
}

#define NV(act) "'block_size':16" act
#define NVACT(extra)                                                                               \
    NV(",'act_quant_kwargs':{'_type':'QuantizeTensorToNVFP4Kwargs','_data':{'block_size':16" extra \
       "}}")
#define PER_BATCH ",'use_dynamic_per_tensor_scale':true"
#define NVPARTS "qdata U8 2 8; scale F8_E4M3 2 1"

/* Our activations have a scale per token exactly if the weight has a per-tensor scale. */
static void test_nvfp4(void **state)
{
    (void)state;
    static const char upper[] = NVPARTS "; per_tensor_scale F32 1",
                      fixed[] = NVPARTS "; act_per_tensor_scale F32 1",
                      both[] = NVPARTS "; per_tensor_scale F32 1; act_per_tensor_scale F32 1";
    static const row rows[] = {
        {"NVFP4Tensor", NV(""), NVPARTS, NIB_OK, "nvfp4-block", 0},
        {"NVFP4Tensor", NV(""), upper, NIB_OK, "nvfp4", 0},
        {"NVFP4Tensor", NV(",'is_swizzled_scales':true"), "qdata U8 2 32; scale F8_E4M3 32 16",
         NIB_OK, "nvfp4-block", 0},
        {"NVFP4Tensor", NV(",'is_swizzled_scales':true"), "qdata U8 2 32; scale F8_E4M3? 32 16",
         NIB_BAD_INPUT, NULL, 0},
        {"NVFP4Tensor", NVACT(""), NVPARTS, NIB_OK, "nvfp4dq-block", 0},
        {"NVFP4Tensor", NVACT(PER_BATCH), NVPARTS, NIB_OK, "nvfp4dq-block", 1},
        {"NVFP4Tensor", NVACT(""), fixed, NIB_OK, "nvfp4dq-block", 1},
        {"NVFP4Tensor", NVACT(PER_BATCH), fixed, NIB_OK, "nvfp4dq-block", 1},
        {"NVFP4Tensor", NVACT(""), upper, NIB_OK, "nvfp4dq", 1},
        {"NVFP4Tensor", NVACT(PER_BATCH), upper, NIB_OK, "nvfp4dq", 1},
        {"NVFP4Tensor", NVACT(""), both, NIB_OK, "nvfp4dq", 1},
        {"NVFP4Tensor", NVACT(PER_BATCH), both, NIB_OK, "nvfp4dq", 1},
    };
    CHECK_ROWS(rows);
}

#define TILES(block, shape) "'block_size':" block ",'shape':" shape
#define PAIRS "; scale_and_zero F32 32 8 2"

/* Codes of zeros fit no machine's layout, so even a good weight is unsupported. */
static void test_tiles(void **state)
{
    (void)state;
    static const struct {
        const char *data, *parts;
        nib_status status;
    } tiles[] = {
        {TILES("[1,32]", "[2,64]"), "qdata I32 1 8 32 4" PAIRS, NIB_UNSUPPORTED},
        {TILES("[1,32]", "[2,64]"), "qdata I8 1 8 32 4" PAIRS, NIB_BAD_INPUT},
        {TILES("[1,32]", "[2,64]"), "qdata I32 8 32 4" PAIRS, NIB_BAD_INPUT},
        {TILES("[1,32]", "[2,64]"), "qdata I32 0 8 32 4" PAIRS, NIB_BAD_INPUT},
        {TILES("[1,32]", "[2,64]"), "qdata I32 1099511627776 0 32 4" PAIRS, NIB_BAD_INPUT},
        {TILES("[1,32]", "[2,64]"), "qdata I32 1 0 32 4" PAIRS, NIB_BAD_INPUT},
        {TILES("[1,32]", "[2,64]"), "qdata I32 1 1099511627776 0 4" PAIRS, NIB_BAD_INPUT},
        {TILES("[1,32]", "[2,64]"), "qdata I32 1 8 16 4" PAIRS, NIB_BAD_INPUT},
        {TILES("[1,32]", "[2,64]"), "qdata I32 1 8 32 3" PAIRS, NIB_BAD_INPUT},
        {TILES("[1,32]", "[2,64]"), "qdata I32 1 32 32 1" PAIRS, NIB_UNSUPPORTED},
        {TILES("[1,32]", "[2,64]"), "qdata I32 1 16 32 2" PAIRS, NIB_UNSUPPORTED},
        {TILES("[1,32]", "[0,64]"), "qdata I32 1 8 32 4" PAIRS, NIB_BAD_INPUT},
        {TILES("[1,32]", "[9,64]"), "qdata I32 1 8 32 4" PAIRS, NIB_BAD_INPUT},
        {TILES("[1,32]", "[2,64]"), "qdata I32 4 8 32 4" PAIRS, NIB_BAD_INPUT},
        {TILES("[1,32]", "[2,0]"), "qdata I32 1 8 32 4" PAIRS, NIB_BAD_INPUT},
        {TILES("[1,32]", "[2,2048]"), "qdata I32 1 8 32 4" PAIRS, NIB_BAD_INPUT},
        {TILES("[1,32]", "[2,64]"), "qdata I32 1 24 32 4" PAIRS, NIB_BAD_INPUT},
        {TILES("[2,32]", "[2,64]"), "qdata I32 1 8 32 4" PAIRS, NIB_BAD_INPUT},
        {TILES("[1,0]", "[2,64]"), "qdata I32 1 8 32 4" PAIRS, NIB_BAD_INPUT},
        {TILES("[1,48]", "[2,64]"), "qdata I32 1 8 32 4" PAIRS, NIB_BAD_INPUT},
        {TILES("[1,32]", "[2,64]"), "qdata I32 1 8 32 4", NIB_BAD_INPUT},
        {TILES("[1,32]", "[2,64]"), "qdata I32 1 8 32 4; scale_and_zero F32 32 16", NIB_BAD_INPUT},
        {TILES("[1,32]", "[2,64]"), "qdata I32 1 8 32 4; scale_and_zero F32 16 8 2", NIB_BAD_INPUT},
        {TILES("[1,32]", "[2,64]"), "qdata I32 1 8 32 4; scale_and_zero F32 32 9 2", NIB_BAD_INPUT},
        {TILES("[1,32]", "[2,64]"), "qdata I32 1 8 32 4; scale_and_zero F32! 32 8 2",
         NIB_BAD_INPUT},
        {TILES("[1,32]", "[2,64]"), "qdata I32 1 8 32 4; scale_and_zero I32 32 8 2", NIB_BAD_INPUT},
    };
    for (size_t i = 0; i < COUNT(tiles); i++)
        check_row(&(row){"Int4TilePackedTo4dTensor", tiles[i].data, tiles[i].parts, tiles[i].status,
                         NULL, 0});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields), cmocka_unit_test(test_int8),   cmocka_unit_test(test_intx),
        cmocka_unit_test(test_int4),   cmocka_unit_test(test_float8), cmocka_unit_test(test_mx),
        cmocka_unit_test(test_nvfp4),  cmocka_unit_test(test_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

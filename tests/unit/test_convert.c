/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions: any chain of formats that claims to be lossless preserves codes, scales and zero
 * points; biases and other tensors are preserved bit for bit; if a format cannot hold the model,
 * the error names the format and no output is left.
 */
#include "quantize.h"

#include "dialects.h"
#include "failing.h"
#include "opening.h"
#include "safetensors_build.h"
#include "skipping.h"
#include "writer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { LAYERS = 3 };

static nib_allocator heap;
static nib_pool *pool;
static char root[256];
static uint64_t state_of_random = 20261120;

static uint64_t next(uint64_t below)
{
    state_of_random ^= state_of_random << 13;
    state_of_random ^= state_of_random >> 7;
    state_of_random ^= state_of_random << 17;
    return state_of_random % below;
}

static const char *at(char out[512], const char *name)
{
    snprintf(out, 512, "%s/%s", root, name);
    return out;
}

static void drop(const char *path)
{
    nib_err err;
    if (nib__path_remove(path, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

/* Removes everything that a round has written. */
static void drop_all(void)
{
    static const char *const names[] = {"plain", "first", "floats", "a",     "b",
                                        "c",     "step0", "step1",  "step2", "step3"};
    static const char *const ends[] = {"", ".gguf", ".gguf.nibble.json"};
    for (size_t i = 0; i < COUNT(names); i++)
        for (size_t e = 0; e < COUNT(ends); e++) {
            char path[512], file[40];
            snprintf(file, sizeof file, "%s%s", names[i], ends[e]);
            drop(at(path, file)); /* no effect if missing */
        }
}

/* ---- a float model of random shape ---- */

typedef struct model {
    char names[LAYERS][64];
    int64_t n[LAYERS], k[LAYERS];
    nib_type type;
} model;

static model random_model(void)
{
    static const nib_type types[] = {NIB_TYPE_F32, NIB_TYPE_BF16, NIB_TYPE_F16};
    model m = {.type = types[next(COUNT(types))]};
    for (int i = 0; i < LAYERS; i++) {
        snprintf(m.names[i], sizeof m.names[i], "model.layers.%d.mlp.up_proj", i);
        m.n[i] = 1 + (int64_t)next(70);
        m.k[i] = next(3) == 0 ? 1 + (int64_t)next(150) : 32 * (1 + (int64_t)next(5));
    }
    return m;
}

static void put_random(nib_writer *w, size_t tensor, nib_type type, int64_t count)
{
    nib_err err;
    for (int64_t i = 0; i < count; i++) {
        const float value = ((float)next(2001) - 1000) / 1024;
        uint8_t bytes[4];
        nib__from_f32(bytes, type, &value, 1);
        assert_int_equal(nib__writer_put(w, tensor, bytes, (size_t)nib__type_bits(type) / 8, &err),
                         NIB_OK);
    }
}

/* Writes a float model in which every layer has a bias. */
static void write_model(const model *m, const char *directory)
{
    nib_writer *w;
    nib_err err;
    assert_int_equal(nib__writer_make(&w, &heap, &err), NIB_OK);
    for (int i = 0; i < LAYERS; i++) {
        char name[100];
        const int64_t shape[2] = {m->n[i], m->k[i]};
        snprintf(name, sizeof name, "%s.weight", m->names[i]);
        nib__writer_add_tensor(w, name, m->type, shape, 2, (size_t)i);
        snprintf(name, sizeof name, "%s.bias", m->names[i]);
        nib__writer_add_tensor(w, name, m->type, shape, 1, (size_t)i);
    }
    assert_int_equal(nib__writer_layout(w, 0, &err), NIB_OK);
    assert_int_equal(mkdir(directory, 0700), 0);
    assert_int_equal(nib__writer_begin(w, directory, NULL, &err), NIB_OK);
    for (int i = 0; i < LAYERS; i++) {
        put_random(w, 2 * (size_t)i, m->type, m->n[i] * m->k[i]);
        put_random(w, 2 * (size_t)i + 1, m->type, m->n[i]);
    }
    assert_int_equal(nib__writer_finish(w, &err), NIB_OK);
    nib__writer_free(w);
    write_text(directory, "config.json", "{\"model_type\":\"llama\"}");
}

/* ---- one step ---- */

static nib_gguf_head head; /* of a llama, whose tensor names are known */

static bool is_gguf(const char *path)
{
    return strlen(path) > 5 && strcmp(path + strlen(path) - 5, ".gguf") == 0;
}

typedef struct step {
    nib_ledger ledger;
    nib_err err;
    nib_status status;
} step;

static void run(step *s, const char *from, const nib_quantize_layer *layers, size_t count,
                const char *out, const char *format, bool convert)
{
    nib_checkpoint *cp = open_ok(from);
    const nib_quantize_job job = {.checkpoint = cp,
                                  .layers = layers,
                                  .count = count,
                                  .recipe = "test",
                                  .out = out,
                                  .format = format,
                                  .convert = convert,
                                  .config = is_gguf(from) ? "{\"model_type\":\"llama\"}" : NULL,
                                  .gguf =
                                      format != NULL && strcmp(format, "gguf") == 0 ? &head : NULL,
                                  .gguf_arch = "llama",
                                  .paired_head = 2,
                                  .pool = pool,
                                  .allocator = &heap};
    nib_quantize_report report;
    *s = (step){.err = {NIB_OK, ""}};
    nib__ledger_init(&s->ledger, &heap);
    s->status = nib__quantize(&s->ledger, &report, &job, &s->err);
    nib__checkpoint_close(cp);
}

static void quantize(const model *m, const char *from, const char *out, const nib_scheme *scheme)
{
    nib_quantize_layer layers[LAYERS];
    step s;
    for (int i = 0; i < LAYERS; i++)
        layers[i] = (nib_quantize_layer){
            .name = m->names[i], .role = NIB_ROLE_UP, .choice = {.scheme = *scheme}};
    run(&s, from, layers, LAYERS, out, NULL, false);
    if (s.status != NIB_OK)
        fail_msg("%s", s.err.text);
    nib__ledger_free(&s.ledger);
}

/* Converts to another format: keeps the codes, or dequantizes to this float code. */
static void convert(step *s, const model *m, const char *from, const char *out, const char *format,
                    nib_code floats)
{
    nib_quantize_layer layers[LAYERS];
    nib_checkpoint *cp = open_ok(from);
    for (int i = 0; i < LAYERS; i++) {
        nib_weight w;
        nib_err err;
        if (nib__checkpoint_weight(&w, NULL, cp, m->names[i], NULL, &err) != NIB_OK)
            fail_msg("%s as read from %s: %s", m->names[i], from, err.text);
        layers[i] = (nib_quantize_layer){.name = m->names[i],
                                         .role = NIB_ROLE_UP,
                                         .recode = true,
                                         .choice = {.scheme = w.scheme}};
        if (strcmp(format, "safetensors") == 0)
            layers[i].choice.scheme = (nib_scheme){.code = floats, .symmetric = true};
    }
    nib__checkpoint_close(cp);
    run(s, from, layers, LAYERS, out, format, true);
}

/* ---- comparing models ---- */

static bool through_gguf; /* GGUF cannot describe activations */

static void same_weight(const nib_weight *a, const nib_weight *b, const char *what)
{
    int8_t x[1024], y[1024];
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->k, b->k);
    for (int64_t j = 0; j < a->k; j++)
        if ((a->order != NULL ? a->order[j] : j) != (b->order != NULL ? b->order[j] : j))
            fail_msg("%s: other inputs from column %d on", what, (int)j);
    char left[64], right[64];
    if (through_gguf ? !nib__scheme_same_weight(&a->scheme, &b->scheme)
                     : !nib__scheme_equal(&a->scheme, &b->scheme))
        fail_msg("%s: %s became %s", what, nib__scheme_name(left, &a->scheme),
                 nib__scheme_name(right, &b->scheme));
    for (int64_t i = 0; i < a->n; i++) {
        nib__weight_codes(a, i, 0, a->k, x);
        nib__weight_codes(b, i, 0, b->k, y);
        if (memcmp(x, y, (size_t)a->k) != 0)
            fail_msg("%s: other codes in row %d", what, (int)i);
        for (int64_t g = 0; g < nib__scheme_groups(&a->scheme, a->k); g++) {
            if (nib__weight_scale(a, i, g) != nib__weight_scale(b, i, g))
                fail_msg("%s: another scale", what);
            if (nib__weight_zero(a, i, g) != nib__weight_zero(b, i, g))
                fail_msg("%s: another zero", what);
        }
    }
    /* GGUF biases are always f32, which holds the values of any other type */
    float left_bias[128], right_bias[128];
    nib__to_f32(left_bias, a->bias, a->bias_type, a->n);
    nib__to_f32(right_bias, b->bias, b->bias_type, b->n);
    assert_memory_equal(left_bias, right_bias, (size_t)a->n * sizeof *left_bias);
}

static void same_model(const model *m, const char *a, const char *b, const char *what)
{
    nib_checkpoint *x = open_ok(a), *y = open_ok(b);
    for (int i = 0; i < LAYERS; i++) {
        nib_weight v, w;
        nib_err err;
        assert_int_equal(nib__checkpoint_weight(&v, NULL, x, m->names[i], NULL, &err), NIB_OK);
        if (nib__checkpoint_weight(&w, NULL, y, m->names[i], NULL, &err) != NIB_OK)
            fail_msg("%s: %s", what, err.text);
        same_weight(&v, &w, what);
    }
    nib__checkpoint_close(x);
    nib__checkpoint_close(y);
}

static bool claims_all(const step *s)
{
    for (size_t i = 0; i < s->ledger.layer_count; i++) {
        assert_non_null(s->ledger.layers[i].kept);
        if (strcmp(s->ledger.layers[i].kept, "lossy") == 0)
            return false;
    }
    return true;
}

static const char *const schemes[] = {
    "int8wo",        "int8wo-g32",     "int8wo-asym", "int8wo-tensor", "int8dq",
    "int4wo-sym",    "int4wo-g64-sym", "int4wo",      "8da4w",         "8da4w-g64",
    "8da4w-asym",    "8da4w-actsym",   "4da4w",       "fp8wo",         "fp8wo-tensor",
    "fp8dq",         "mxfp8",          "mxfp8-floor", "int8wo-g7",     "int4wo-g5-sym",
    "mxfp4",         "mxfp4dq",        "nvfp4",       "nvfp4-block",   "nvfp4dq",
    "nvfp4dq-block",
};
/* Integers of other widths, in rounds of their own. */
static const char *const widths[] = {"int1wo-asym", "int2wo-g64", "int3wo-asym",
                                     "int5wo-g7",   "int6wo",     "int7wo-floatzero"};
static const char *const formats[] = {"torchao", "nibble", "8da4w", "compressed-tensors", "gguf"};

/* From format to format three times, and back: the claims about losses hold. */
static void test_chains(void **state)
{
    (void)state;
    size_t steps = 0, refused = 0, lossy = 0;
    for (int round = 0; round < 104; round += sampled(2)) {
        const model m = random_model();
        nib_scheme scheme;
        char plain[512], first[512], paths[4][512], what[200];
        const char *name = round < 80 ? schemes[next(COUNT(schemes))] : widths[next(COUNT(widths))];
        const char *last;
        assert_int_equal(nib__scheme_parse(&scheme, name, strlen(name), NULL), NIB_OK);
        write_model(&m, at(plain, "plain"));
        quantize(&m, plain, at(first, "first"), &scheme);
        last = first;
        for (int i = 0; i < 4; i++) {
            const char *format = formats[next(COUNT(formats))];
            char file[24];
            step s;
            snprintf(file, sizeof file, "step%d%s", i, strcmp(format, "gguf") == 0 ? ".gguf" : "");
            snprintf(what, sizeof what, "round %d, %s, step %d, %s", round, name, i, format);
            convert(&s, &m, last, at(paths[i], file), format, NIB_CODE_F32);
            through_gguf = (through_gguf && i > 0) || strcmp(format, "gguf") == 0;
            if (s.status == NIB_OK && claims_all(&s)) {
                same_model(&m, first, paths[i], what);
                last = paths[i];
                steps++;
            } else if (s.status == NIB_OK) {
                assert_string_equal(format, "gguf"); /* its scales are f16 */
                lossy++;
                last = paths[i];
                i = 4; /* later steps could not be compared */
            } else if (s.status == NIB_NOT_AS_ASKED) {
                assert_non_null(strstr(s.err.text, format));
                assert_int_equal(nib__path_kind(paths[i]), NIB_PATH_NONE);
                refused++;
            } else {
                fail_msg("%s: %s", what, s.err.text);
            }
            nib__ledger_free(&s.ledger);
        }
        drop_all();
    }
    assert_true(steps > 100 / (size_t)sampled(2) && /* the chains tested enough */
                refused > 10 / (size_t)sampled(2));
    assert_true(lossy > 0);
}

/* ---- models of other tools ---- */

enum { CODES = 8 }; /* codes of 4 bits per 32-bit word */

static size_t add_random(nib_writer *w, const char *module, const char *suffix, nib_type type,
                         int64_t rows, int64_t columns)
{
    char name[100];
    const int64_t shape[2] = {rows, columns};
    snprintf(name, sizeof name, "%s%s", module, suffix);
    return nib__writer_add_tensor(w, name, type, shape, columns == 0 ? 1 : 2, 0);
}

static void put_bytes(nib_writer *w, size_t tensor, const void *bytes, size_t size)
{
    nib_err err;
    assert_int_equal(nib__writer_put(w, tensor, bytes, size, &err), NIB_OK);
}

/* Values from 2^-10 on, so each is a valid scale. */
static void put_scales(nib_writer *w, size_t tensor, nib_type type, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const float value = (float)(1 + next(1000)) / 1024;
        uint8_t bytes[4];
        nib__from_f32(bytes, type, &value, 1);
        put_bytes(w, tensor, bytes, (size_t)nib__type_bits(type) / 8);
    }
}

/* Puts the group of each input, in random order. */
static void put_groups(nib_writer *w, size_t tensor, int64_t k, int64_t group)
{
    int32_t index[1024];
    for (int64_t j = 0; j < k; j++)
        index[j] = (int32_t)(j / group);
    for (int64_t j = k - 1; j > 0; j--) {
        const uint64_t other = next((uint64_t)j + 1);
        const int32_t kept = index[j];
        index[j] = index[other];
        index[other] = kept;
    }
    put_bytes(w, tensor, index, (size_t)k * sizeof *index);
}

/* Writes layer i in GPTQ, 4 bits, with act-order. */
static void put_gptq(nib_writer *w, const model *m, int i, int64_t group, const size_t places[5])
{
    const int64_t n = m->n[i], groups = nib__ceil_div(m->k[i], group);
    const int64_t words = nib__ceil_div(m->k[i], CODES) * n;
    for (int64_t j = 0; j < words + groups * nib__ceil_div(n, CODES); j++) {
        const uint32_t word = (uint32_t)next(UINT64_C(1) << 32);
        put_bytes(w, places[j < words ? 0 : 1], &word, sizeof word);
    }
    put_scales(w, places[2], m->type, groups * n);
    put_groups(w, places[3], m->k[i], group);
    put_random(w, places[4], m->type, n);
}

static void write_gptq(const model *m, const char *directory, int64_t group)
{
    nib_writer *w;
    nib_err err;
    size_t places[LAYERS][5];
    assert_int_equal(nib__writer_make(&w, &heap, &err), NIB_OK);
    for (int i = 0; i < LAYERS; i++) {
        const int64_t n = m->n[i], k = m->k[i], groups = nib__ceil_div(k, group);
        places[i][0] =
            add_random(w, m->names[i], ".qweight", NIB_TYPE_I32, nib__ceil_div(k, CODES), n);
        places[i][1] =
            add_random(w, m->names[i], ".qzeros", NIB_TYPE_I32, groups, nib__ceil_div(n, CODES));
        places[i][2] = add_random(w, m->names[i], ".scales", m->type, groups, n);
        places[i][3] = add_random(w, m->names[i], ".g_idx", NIB_TYPE_I32, k, 0);
        places[i][4] = add_random(w, m->names[i], ".bias", m->type, n, 0);
    }
    assert_int_equal(nib__writer_layout(w, 0, &err), NIB_OK);
    assert_int_equal(mkdir(directory, 0700), 0);
    assert_int_equal(nib__writer_begin(w, directory, NULL, &err), NIB_OK);
    for (int i = 0; i < LAYERS; i++)
        put_gptq(w, m, i, group, places[i]);
    assert_int_equal(nib__writer_finish(w, &err), NIB_OK);
    nib__writer_free(w);
    char config[200];
    snprintf(config, sizeof config,
             "{\"model_type\":\"llama\",\"quantization_config\":{\"quant_method\":\"gptq\","
             "\"bits\":4,\"group_size\":%d,\"desc_act\":true}}",
             (int)group);
    write_text(directory, "config.json", config);
}

/* Writes e4m3 with a scale per block; the last block may be short. */
static void write_blocks(const model *m, const char *directory, int64_t rows, int64_t columns)
{
    nib_writer *w;
    nib_err err;
    size_t places[LAYERS][3];
    assert_int_equal(nib__writer_make(&w, &heap, &err), NIB_OK);
    for (int i = 0; i < LAYERS; i++) {
        const int64_t n = m->n[i], k = m->k[i];
        places[i][0] = add_random(w, m->names[i], ".weight", NIB_TYPE_E4M3, n, k);
        places[i][1] = add_random(w, m->names[i], ".weight_scale_inv", m->type,
                                  nib__ceil_div(n, rows), nib__ceil_div(k, columns));
        places[i][2] = add_random(w, m->names[i], ".bias", m->type, n, 0);
    }
    assert_int_equal(nib__writer_layout(w, 0, &err), NIB_OK);
    assert_int_equal(mkdir(directory, 0700), 0);
    assert_int_equal(nib__writer_begin(w, directory, NULL, &err), NIB_OK);
    for (int i = 0; i < LAYERS; i++) {
        for (int64_t j = 0; j < m->n[i] * m->k[i]; j++) {
            const uint8_t code = (uint8_t)(next(127) + 128 * next(2)); /* not NaN */
            put_bytes(w, places[i][0], &code, 1);
        }
        put_scales(w, places[i][1], m->type,
                   nib__ceil_div(m->n[i], rows) * nib__ceil_div(m->k[i], columns));
        put_random(w, places[i][2], m->type, m->n[i]);
    }
    assert_int_equal(nib__writer_finish(w, &err), NIB_OK);
    nib__writer_free(w);
    char config[200];
    snprintf(config, sizeof config,
             "{\"model_type\":\"llama\",\"quantization_config\":{\"quant_method\":\"fp8\","
             "\"fmt\":\"e4m3\",\"weight_block_size\":[%d,%d]}}",
             (int)rows, (int)columns);
    write_text(directory, "config.json", config);
}

static void expect_kept(const step *s, const char *kept)
{
    if (s->status != NIB_OK)
        fail_msg("%s", s->err.text);
    for (size_t i = 0; i < s->ledger.layer_count; i++)
        assert_string_equal(s->ledger.layers[i].kept, kept);
}

static bool config_has(const char *directory, const char *text)
{
    char path[600], config[8192];
    snprintf(path, sizeof path, "%s/config.json", directory);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    config[fread(config, 1, sizeof config - 1, file)] = 0;
    fclose(file);
    return strstr(config, text) != NULL;
}

/* Act-order into compressed-tensors and back through our own dialect preserves codes, zero points
 * and the order of inputs. */
static void test_act_order(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++) {
        model m = random_model();
        const int64_t group = 8 * (1 + (int64_t)next(4));
        char first[512], a[512], b[512], c[512];
        step s;
        for (int i = 0; i < LAYERS; i++)
            m.k[i] = group * (1 + (int64_t)next(6));
        m.k[0] = 3 * group; /* enough groups that some layer is almost surely in act-order */
        write_gptq(&m, at(first, "first"), group);
        convert(&s, &m, first, at(a, "a"), "compressed-tensors", NIB_CODE_F32);
        expect_kept(&s, "lossless");
        assert_non_null(strstr(s.ledger.notes[0].text, "compressed-tensors reads up to 0.18"));
        nib__ledger_free(&s.ledger);
        assert_true(config_has(a, "\"actorder\": \"group\""));
        convert(&s, &m, a, at(b, "b"), "nibble", NIB_CODE_F32);
        expect_kept(&s, "lossless");
        nib__ledger_free(&s.ledger);
        convert(&s, &m, b, at(c, "c"), "compressed-tensors", NIB_CODE_F32);
        expect_kept(&s, "lossless");
        nib__ledger_free(&s.ledger);
        same_model(&m, first, a, "into compressed-tensors");
        same_model(&m, first, b, "into nibble");
        same_model(&m, first, c, "and back");
        drop_all();
    }
}

/* Blocks of e4m3 stay blocks in compressed-tensors. Our own dialect repeats their scales, which is
 * reported; with short last groups they cannot go back. */
static void test_block_scales(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++) {
        const model m = random_model();
        const int64_t rows = 2 + (int64_t)next(40), columns = 1 + (int64_t)next(60);
        char first[512], a[512], b[512], c[512];
        bool whole = true;
        step s;
        write_blocks(&m, at(first, "first"), rows, columns);
        convert(&s, &m, first, at(a, "a"), "compressed-tensors", NIB_CODE_F32);
        expect_kept(&s, "lossless");
        nib__ledger_free(&s.ledger);
        assert_true(config_has(a, "\"strategy\": \"block\""));
        convert(&s, &m, a, at(b, "b"), "nibble", NIB_CODE_F32);
        expect_kept(&s, "exact after a change of layout");
        nib__ledger_free(&s.ledger);
        same_model(&m, first, a, "into compressed-tensors");
        same_model(&m, first, b, "into nibble");
        for (int i = 0; i < LAYERS; i++)
            whole = whole && m.k[i] % columns == 0;
        convert(&s, &m, b, at(c, "c"), "compressed-tensors", NIB_CODE_F32);
        assert_int_equal(s.status, whole ? NIB_OK : NIB_NOT_AS_ASKED);
        nib__ledger_free(&s.ledger);
        if (whole)
            same_model(&m, first, c, "and back");
        drop_all();
    }
}

/* Codes to floats: f32 is exact except for e8m0 scales and products of two f32; bf16 reports its
 * loss. */
static void test_floats(void **state)
{
    (void)state;
    static const char *const names[] = {"8da4w", "int8wo", "int4wo"};
    for (size_t c = 0; c < COUNT(names); c++) {
        model m = random_model();
        nib_scheme scheme;
        char plain[512], first[512], out[512];
        step s;
        m.type = NIB_TYPE_BF16;
        for (int i = 0; i < LAYERS; i++)
            m.k[i] = 64;
        assert_int_equal(nib__scheme_parse(&scheme, names[c], strlen(names[c]), NULL), NIB_OK);
        write_model(&m, at(plain, "plain"));
        quantize(&m, plain, at(first, "first"), &scheme);
        convert(&s, &m, first, at(out, "floats"), "safetensors", NIB_CODE_F32);
        assert_int_equal(s.status, NIB_OK);
        assert_true(claims_all(&s));
        nib__ledger_free(&s.ledger);
        nib_checkpoint *a = open_ok(first), *b = open_ok(out);
        for (int i = 0; i < LAYERS; i++) {
            nib_weight v, w;
            float x[64], y[64];
            assert_int_equal(nib__checkpoint_weight(&v, NULL, a, m.names[i], NULL, NULL), NIB_OK);
            assert_int_equal(nib__checkpoint_weight(&w, NULL, b, m.names[i], NULL, NULL), NIB_OK);
            assert_int_equal(w.scheme.code, NIB_CODE_F32);
            for (int64_t r = 0; r < m.n[i]; r++) {
                nib__weight_row(&v, r, x);
                nib__weight_row(&w, r, y);
                assert_memory_equal(x, y, sizeof x);
            }
        }
        nib__checkpoint_close(a);
        nib__checkpoint_close(b);
        drop(out);
        convert(&s, &m, first, out, "safetensors", NIB_CODE_BF16);
        assert_int_equal(s.status, NIB_OK);
        assert_string_equal(s.ledger.layers[0].kept, "lossy");
        assert_true(s.ledger.layers[0].sqnr_db > 40 && s.ledger.layers[0].sqnr_db < 70);
        nib__ledger_free(&s.ledger);
        drop_all();
    }
}

static int setup(void **state)
{
    nib_err err;
    (void)state;
    heap = nib__allocator_default();
    make_directory(root);
    nib__gguf_head_init(&head, &heap);
    nib__gguf_put_string(&head, "general.architecture", "llama", 5);
    return nib__pool_open(&pool, 2, &heap, &err) == NIB_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    nib__pool_close(pool);
    nib__gguf_head_free(&head);
    drop_directory(root);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chains),
        cmocka_unit_test(test_act_order),
        cmocka_unit_test(test_block_scales),
        cmocka_unit_test(test_floats),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

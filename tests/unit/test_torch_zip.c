/* SPDX-License-Identifier: Apache-2.0
 *
 * PyTorch's files: every value that torch.save wrote is found, anything but a dict of tensors is
 * refused by name, and no pickle runs code, overflows or reads out of bounds.
 */
#include "checkpoint.h"
#include "failing.h"
#include "pickle.h"
#include "torch_zip.h"
#include "zip_build.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <setjmp.h>
#include <cmocka.h>

#include "refused.h"

static const char golden[] = "tests/golden/torch/";

static nib_status open_golden(nib_checkpoint **cp, const char *file, nib_err *err)
{
    const nib_allocator a = nib__allocator_default();
    char path[200];
    snprintf(path, sizeof path, "%s%s", golden, file);
    *cp = NULL;
    *err = (nib_err){NIB_OK, ""};
    return nib__checkpoint_open(cp, path, &a, err);
}

/* ---- files by PyTorch ---- */

static double sum_of(const nib_tensor *t)
{
    const int64_t count = (int64_t)(t->bytes * 8) / nib__type_bits(t->type);
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *at = t->data + i * nib__type_bits(t->type) / 8;
        int64_t whole = 0;
        double wide;
        float value;
        switch (t->type) {
        case NIB_TYPE_F64:
            memcpy(&wide, at, sizeof wide);
            sum += wide;
            break;
        case NIB_TYPE_F32:
        case NIB_TYPE_F16:
        case NIB_TYPE_BF16:
            nib__to_f32(&value, at, t->type, 1);
            sum += (double)value;
            break;
        case NIB_TYPE_I8: sum += (int8_t)*at; break;
        case NIB_TYPE_I16:
        case NIB_TYPE_I32:
        case NIB_TYPE_I64:
            whole = (at[nib__type_bits(t->type) / 8 - 1] & 0x80) != 0 ? -1 : 0;
            memcpy(&whole, at, (size_t)nib__type_bits(t->type) / 8);
            sum += (double)whole;
            break;
        default: memcpy(&whole, at, (size_t)nib__type_bits(t->type) / 8); sum += (double)whole;
        }
    }
    return sum;
}

static const char *type_of(const char *torch)
{
    static const char *const names[][2] = {
        {"float32", "f32"},      {"float16", "f16"}, {"bfloat16", "bf16"},
        {"float64", "f64"},      {"int8", "i8"},     {"uint8", "u8"},
        {"int16", "i16"},        {"int32", "i32"},   {"int64", "i64"},
        {"bool", "bool"},        {"uint16", "u16"},  {"float8_e4m3fn", "e4m3"},
        {"float8_e5m2", "e5m2"},
    };
    for (size_t i = 0; i < COUNT(names); i++)
        if (strcmp(names[i][0], torch) == 0)
            return names[i][1];
    return "?";
}

static void test_contents(void **state)
{
    (void)state;
    char line[300], file[64], name[64], type[64], shape[64], last[64] = "", said[64];
    double sum;
    nib_checkpoint *cp = NULL;
    nib_err err;
    int lines = 0;
    FILE *contents = fopen("tests/golden/torch/contents.txt", "r");
    assert_non_null(contents);
    while (fgets(line, sizeof line, contents) != NULL) {
        if (line[0] == '#')
            continue;
        assert_int_equal(sscanf(line, "%63s %63s %63s %63s %lf", file, name, type, shape, &sum), 5);
        if (strcmp(file, last) != 0) {
            nib__checkpoint_close(cp);
            if (open_golden(&cp, file, &err) != NIB_OK)
                fail_msg("%s", err.text);
            snprintf(last, sizeof last, "%s", file);
        }
        const nib_tensor *t = nib__checkpoint_find(cp, name);
        if (t == NULL)
            fail_msg("%s: no %s", file, name);
        assert_string_equal(nib__type_name(t->type), type_of(type));
        size_t used = 0;
        for (int i = 0; i < t->rank; i++)
            used += (size_t)snprintf(said + used, sizeof said - used, "%s%lld", i ? "x" : "",
                                     (long long)t->shape[i]);
        assert_string_equal(t->rank == 0 ? "scalar" : said, shape);
        if (fabs(sum_of(t) - sum) > 1e-12 * fabs(sum))
            fail_msg("%s %s: the sum is %.17g, not %.17g", file, name, sum_of(t), sum);
        lines++;
    }
    nib__checkpoint_close(cp);
    fclose(contents);
    assert_true(lines > 70);
}

static bool has_note(const nib_checkpoint *cp, const char *fragment)
{
    for (size_t i = 0; i < nib__checkpoint_ledger(cp)->note_count; i++)
        if (strstr(nib__checkpoint_ledger(cp)->notes[i].text, fragment) != NULL)
            return true;
    return false;
}

static void test_views(void **state)
{
    (void)state;
    nib_checkpoint *cp;
    nib_err err;
    assert_int_equal(open_golden(&cp, "views.pt", &err), NIB_OK);
    assert_int_equal(nib__checkpoint_count(cp), 6);
    assert_string_equal(nib__checkpoint_alias(cp, "tied.b")->value, "tied.a");
    assert_ptr_equal(nib__checkpoint_find(cp, "tied.b"), nib__checkpoint_find(cp, "tied.a"));
    const nib_tensor *whole = nib__checkpoint_find(cp, "tied.a"),
                     *rest = nib__checkpoint_find(cp, "rest"),
                     *turned = nib__checkpoint_find(cp, "turned"),
                     *cut = nib__checkpoint_find(cp, "cut");
    assert_ptr_equal(rest->data, whole->data + 3 * 6 * 4);
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 8; j++)
            assert_memory_equal(turned->data + 4 * (i * 8 + j), whole->data + 4 * (j * 6 + i), 4);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(cut->data + 12 * i, whole->data + 4 * ((2 + 2 * i) * 6 + 1), 12);
    assert_true(has_note(cp, "turned is a non-contiguous view"));
    nib__checkpoint_close(cp);
    assert_int_equal(open_golden(&cp, "training.pt", &err), NIB_OK);
    assert_int_equal(nib__checkpoint_count(cp), 2);
    assert_true(has_note(cp, "those under \"model\"; 5 entries"));
    nib__checkpoint_close(cp);
}

static void test_rejects_other_files(void **state)
{
    (void)state;
    static const char *const files[] = {
        "sparse.pt", "complex.pt", "quantized.pt", "expanded.pt", "module.pt",
        "list.pt",   "meta.pt",    "legacy.pt",    "script.pt",
    };
    for (size_t i = 0; i < COUNT(files); i++) {
        nib_checkpoint *cp;
        nib_err err;
        refused(NIB_UNSUPPORTED, open_golden(&cp, files[i], &err), &err);
    }
}

/* Each allocation fails once; nothing leaks. */
static void test_no_memory(void **state)
{
    (void)state;
    nib_status status = NIB_NO_MEMORY;
    for (int left = 0; status != NIB_OK; left++) {
        failing f = {left, 0};
        const nib_allocator a = failing_allocator(&f);
        nib_checkpoint *cp = NULL;
        nib_err err;
        status = nib__checkpoint_open(&cp, "tests/golden/torch/training.pt", &a, &err);
        assert_true(status == NIB_OK || status == NIB_NO_MEMORY);
        nib__checkpoint_close(cp);
        assert_int_equal(f.live, 0);
        assert_true(left < 2000);
    }
}

/* ---- crafted archives ---- */

/* A dict with one tensor "w": storage "0" of 6 floats, offset 0, shape (2, 3), strides (3, 1). */
#define W_TENSOR                                                                                   \
    "ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\n"                  \
    "X\1\0\0\0"                                                                                    \
    "0X\3\0\0\0cpuK\6tQK\0K\2K\3\x86K\3K\1\x86\x89"                                                \
    "ccollections\nOrderedDict\n)RtR"
static const char one_tensor[] = "\x80\2}X\1\0\0\0w" W_TENSOR "s.";

/* The same as OrderedDict([("w", tensor)]), and with a list for the pair. */
static const char pairs[] = "\x80\2ccollections\nOrderedDict\n]X\1\0\0\0w" W_TENSOR "\x86"
                            "a\x85R.",
                  list_pairs[] =
                      "\x80\2ccollections\nOrderedDict\n]](X\1\0\0\0w" W_TENSOR "ea\x85R.";

typedef struct parsed {
    nib_allocator allocator;
    nib_arena arena;
    nib_container contents;
    nib_err err;
    nib_status status;
    uint8_t *bytes;
} parsed;

/* memory: bytes that the arena may take */
static void parse_within(parsed *p, const zip_part *parts, size_t count, size_t memory)
{
    zip_built z = build_zip(parts, count, true, true);
    *p = (parsed){.allocator = nib__allocator_default(), .err = {NIB_OK, ""}};
    p->bytes = malloc(z.size);
    memcpy(p->bytes, z.bytes, z.size);
    nib__arena_init(&p->arena, &p->allocator, memory);
    p->status = nib__torch_parse(&p->contents, p->bytes, z.size, "x.pt", 2, &p->arena, &p->err);
    free(z.bytes);
}

static void parse(parsed *p, const zip_part *parts, size_t count)
{
    parse_within(p, parts, count, 64 << 20);
}

static void drop(parsed *p)
{
    nib__arena_free(&p->arena);
    free(p->bytes);
}

static void expect_refused(const zip_part *parts, size_t count, nib_status status)
{
    parsed p;
    parse(&p, parts, count);
    refused(status, p.status, &p.err);
    drop(&p);
}

#define PICKLE(text)                                                                               \
    {                                                                                              \
        "a/data.pkl", text, sizeof(text) - 1                                                       \
    }

static void test_archives(void **state)
{
    (void)state;
    static const uint8_t floats[24] = {0};
    const zip_part good[][2] = {{PICKLE(one_tensor), {"a/data/0", floats, 24}},
                                {PICKLE(pairs), {"a/data/0", floats, 24}},
                                {PICKLE(list_pairs), {"a/data/0", floats, 24}}};
    for (size_t i = 0; i < COUNT(good); i++) {
        parsed p;
        parse(&p, good[i], 2);
        if (p.status != NIB_OK)
            fail_msg("%s", p.err.text);
        assert_int_equal(p.contents.count, 1);
        assert_string_equal(p.contents.tensors[0]->name, "w");
        assert_int_equal(p.contents.tensors[0]->shape[1], 3);
        assert_int_equal(p.contents.tensors[0]->file, 2);
        drop(&p);
    }
    const struct {
        zip_part parts[3];
        size_t count;
        nib_status status;
    } cases[] = {
        /* no storage, a byte too few, another folder, two pickles */
        {{PICKLE(one_tensor)}, 1, NIB_BAD_INPUT},
        {{PICKLE(one_tensor), {"a/data/0", floats, 23}}, 2, NIB_BAD_INPUT},
        {{PICKLE(one_tensor), {"b/data/0", floats, 24}}, 2, NIB_BAD_INPUT},
        {{PICKLE(one_tensor), {"b/data.pkl", floats, 24}}, 2, NIB_BAD_INPUT},
        /* no data.pkl in a folder; big-endian; TorchScript */
        {{{"data.pkl", "x", 1}}, 1, NIB_UNSUPPORTED},
        {{{"a/b/data.pkl", "x", 1}}, 1, NIB_UNSUPPORTED},
        {{{"x.npy", "x", 1}}, 1, NIB_UNSUPPORTED},
        {{PICKLE(one_tensor), {"a/data/0", floats, 24}, {"a/byteorder", "big", 3}},
         3,
         NIB_UNSUPPORTED},
        {{PICKLE(one_tensor), {"a/data/0", floats, 24}, {"a/code/m.py", "x", 1}},
         3,
         NIB_UNSUPPORTED},
        {{PICKLE(one_tensor), {"a/data/0", floats, 24}, {"a/constants.pkl", "x", 1}},
         3,
         NIB_UNSUPPORTED},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        expect_refused(cases[i].parts, cases[i].count, cases[i].status);
    char folder[800];
    memset(folder, 'a', sizeof folder);
    memcpy(folder + 600, "/data.pkl", sizeof "/data.pkl");
    const zip_part long_folder[] = {{folder, one_tensor, sizeof one_tensor - 1}};
    expect_refused(long_folder, 1, NIB_BAD_INPUT);
}

/* ---- crafted pickles ---- */

#define STORAGE(key, count)                                                                        \
    "(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" key "X\3\0\0\0cpu" count "tQ"
#define TENSOR(arguments) "\x80\2}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(" arguments "tRs."
#define REBUILD(version, arguments) "ctorch._utils\n_rebuild_tensor" version "\n(" arguments "tR"
#define KEY(letter) "X\1\0\0\0" letter
#define VIEW(sizes, strides) REBUILD("_v2", STORAGE("0", "K\6") "K\0" sizes strides)
#define SIX VIEW("K\6\x85", "K\1\x85")
#define UNTYPED                                                                                    \
    "(X\7\0\0\0storagectorch\nUntypedStorage\nX\1\0\0\0"                                           \
    "0X\3\0\0\0cpuK\x18tQ"
#define INTS                                                                                       \
    "(X\7\0\0\0storagectorch\nIntStorage\nX\1\0\0\0"                                               \
    "0X\3\0\0\0cpuK\6tQ"
#define FAR "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"

static void test_pickles(void **state)
{
    (void)state;
    static const uint8_t floats[24] = {0};
    const struct {
        zip_part pickle;
        nib_status status;
    } cases[] = {
        /* names that would run something */
        {PICKLE("\x80\2cposix\nsystem\nX\4\0\0\0true\x85R."), NIB_UNSUPPORTED},
        {PICKLE("\x80\2cbuiltins\neval\n."), NIB_UNSUPPORTED},
        {PICKLE("\x80\4\x8c\2os\x8c\6system\x93."), NIB_UNSUPPORTED},
        {PICKLE("\x80\2ctorch\nload\n."), NIB_UNSUPPORTED},
        {PICKLE("\x80\2ctorch._utils\n_rebuild_tensor_v2x\n."), NIB_UNSUPPORTED},
        {PICKLE("\x80\2}X\1\0\0\0wctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n"
                "_rebuild_tensor_v2\ncx.y\nZ\ntRs."),
         NIB_UNSUPPORTED},
        {PICKLE("\x80\2}X\1\0\0\0wctorch._tensor\n_rebuild_from_type_v2\n)Rs."), NIB_UNSUPPORTED},
        {PICKLE("\x80\2ctorchao.x\nInt4Tensor\n."), NIB_UNSUPPORTED},
        {PICKLE("\x80\2cx\x1b[31m\ny\n."), NIB_UNSUPPORTED},
        /* unsupported opcodes: INST, OBJ, NEWOBJ, EXT1, PERSID, INT, POP, NEXT_BUFFER */
        {PICKLE("\x80\2iposix\nsystem\n."), NIB_UNSUPPORTED},
        {PICKLE("\x80\2(o."), NIB_UNSUPPORTED},
        {PICKLE("\x80\2)\x81."), NIB_UNSUPPORTED},
        {PICKLE("\x80\2\x82\1."), NIB_UNSUPPORTED},
        {PICKLE("\x80\2P0\n."), NIB_UNSUPPORTED},
        {PICKLE("\x80\2I1\n."), NIB_UNSUPPORTED},
        {PICKLE("\x80\2N0N."), NIB_UNSUPPORTED},
        {PICKLE("\x80\5\x97."), NIB_UNSUPPORTED},
        /* no protocol at the start, an unknown one, and two */
        {PICKLE(""), NIB_BAD_INPUT},
        {PICKLE("N."), NIB_BAD_INPUT},
        {PICKLE("\x80\1N."), NIB_UNSUPPORTED},
        {PICKLE("\x80\6N."), NIB_UNSUPPORTED},
        {PICKLE("\x80\2N\x80\2."), NIB_UNSUPPORTED},
        /* no stop; not exactly one value at the stop; bytes after it */
        {PICKLE("\x80\2"), NIB_BAD_INPUT},
        {PICKLE("\x80\2N"), NIB_BAD_INPUT},
        {PICKLE("\x80\2."), NIB_BAD_INPUT},
        {PICKLE("\x80\2NN."), NIB_BAD_INPUT},
        {PICKLE("\x80\2N.N"), NIB_BAD_INPUT},
        {PICKLE("\x80\2(."), NIB_BAD_INPUT},
        /* no value, and no mark, on the stack */
        {PICKLE("\x80\2R."), NIB_BAD_INPUT},
        {PICKLE("\x80\2t."), NIB_BAD_INPUT},
        {PICKLE("\x80\2(\x85."), NIB_BAD_INPUT},
        /* a call of None, with None, of a type, and of a dict without pairs */
        {PICKLE("\x80\2NNR."), NIB_BAD_INPUT},
        {PICKLE("\x80\2ccollections\nOrderedDict\nNR."), NIB_BAD_INPUT},
        {PICKLE("\x80\2ctorch\nFloatStorage\n)R."), NIB_BAD_INPUT},
        {PICKLE("\x80\2ccollections\nOrderedDict\nK\1\x85R."), NIB_BAD_INPUT},
        /* a list at the top; an item for the wrong kind; a key without a value; a state of None */
        {PICKLE("\x80\2]Na."), NIB_UNSUPPORTED},
        {PICKLE("\x80\2}Na."), NIB_BAD_INPUT},
        {PICKLE("\x80\2]NNs."), NIB_BAD_INPUT},
        {PICKLE("\x80\2}(Nu."), NIB_BAD_INPUT},
        {PICKLE("\x80\2(Nu."), NIB_BAD_INPUT},
        {PICKLE("\x80\2NNb."), NIB_BAD_INPUT},
        /* memo entries: never stored, too high, of an empty stack */
        {PICKLE("\x80\2h\0."), NIB_BAD_INPUT},
        {PICKLE("\x80\2Nq\3h\2."), NIB_BAD_INPUT},
        {PICKLE("\x80\2Nr\xff\xff\xff\xff."), NIB_BAD_INPUT},
        {PICKLE("\x80\2q\0."), NIB_BAD_INPUT},
        /* false lengths */
        {PICKLE("\x80\2X\xff\xff\xff\x7fx."), NIB_BAD_INPUT},
        {PICKLE("\x80\2\x8d\xff\xff\xff\xff\xff\xff\xff\xffx."), NIB_BAD_INPUT},
        {PICKLE("\x80\2\x8c\5x."), NIB_BAD_INPUT},
        {PICKLE("\x80\2\x8b\xff\xff\xff\xff."), NIB_BAD_INPUT},
        {PICKLE("\x80\4\x95\xff\0\0\0\0\0\0\0N."), NIB_BAD_INPUT},
        {PICKLE("\x80\2G\0."), NIB_BAD_INPUT},
        /* a string that is not UTF-8; names without a newline, and of None */
        {PICKLE("\x80\2X\1\0\0\0\xff."), NIB_BAD_INPUT},
        {PICKLE("\x80\2ctorch\nSi"), NIB_BAD_INPUT},
        {PICKLE("\x80\4NN\x93."), NIB_BAD_INPUT},
        /* storages: of None, without class and key, of a negative size */
        {PICKLE("\x80\2NQ."), NIB_BAD_INPUT},
        {PICKLE("\x80\2(X\7\0\0\0storageNNNNtQ."), NIB_BAD_INPUT},
        {PICKLE("\x80\2" STORAGE("0", "J\xff\xff\xff\xff") "."), NIB_BAD_INPUT},
        /* arguments of a tensor: too few, of None, more strides than sizes, a negative size */
        {PICKLE(TENSOR("N")), NIB_BAD_INPUT},
        {PICKLE(TENSOR("NNNN")), NIB_BAD_INPUT},
        {PICKLE(TENSOR(STORAGE("0", "K\6") "K\0K\6\x85K\1K\1\x86")), NIB_BAD_INPUT},
        {PICKLE(TENSOR(STORAGE("0", "K\6") "K\0J\xff\xff\xff\xff\x85K\1\x85")), NIB_BAD_INPUT},
        /* elements past the end of the storage, by offset, size and stride; sizes that overflow */
        {PICKLE(TENSOR(STORAGE("0", "K\6") "K\1K\6\x85K\1\x85")), NIB_BAD_INPUT},
        {PICKLE(TENSOR(STORAGE("0", "K\6") "K\0K\7\x85K\1\x85")), NIB_BAD_INPUT},
        {PICKLE(TENSOR(STORAGE("0", "K\6") "K\0K\2\x85K\6\x85")), NIB_BAD_INPUT},
        {PICKLE(
             TENSOR(STORAGE("0", "K\6") "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\2\x85K\1\x85")),
         NIB_BAD_INPUT},
        {PICKLE(TENSOR(STORAGE(
             "0", "K\6") "K\0\x8a\x08\0\0\0\0\0\0\0\x40\x8a\x08\0\0\0\0\0\0\0\x40\x86K\0K\0\x86")),
         NIB_BAD_INPUT},
        {PICKLE(
             TENSOR(STORAGE("0", "K\6") "K\0\x8a\x04\0\0\0\x40\x85\x8a\x08\0\0\0\0\0\0\0\x40\x85")),
         NIB_BAD_INPUT},
        /* storages with another size, or no record, in the file */
        {PICKLE(TENSOR(STORAGE("0", "K\5") "K\0K\5\x85K\1\x85")), NIB_BAD_INPUT},
        {PICKLE(TENSOR(STORAGE("1", "K\6") "K\0K\6\x85K\1\x85")), NIB_BAD_INPUT},
        /* 9 dimensions; a stride of 0; two values at the stop */
        {PICKLE(TENSOR(
             STORAGE("0", "K\6") "K\0(K\1K\1K\1K\1K\1K\1K\1K\1K\1t(K\1K\1K\1K\1K\1K\1K\1K\1K\1t")),
         NIB_UNSUPPORTED},
        {PICKLE(TENSOR(STORAGE("0", "K\6") "K\0K\7\x85K\0\x85")), NIB_UNSUPPORTED},
        {PICKLE("\x80\2}N."), NIB_BAD_INPUT},
        /* a name of one value; ordered dicts: of two arguments, of None, of a single value */
        {PICKLE("\x80\4\x8c\1x\x93."), NIB_BAD_INPUT},
        {PICKLE("\x80\2ccollections\nOrderedDict\nNN\x86R."), NIB_BAD_INPUT},
        {PICKLE("\x80\2ccollections\nOrderedDict\n]Na\x85R."), NIB_BAD_INPUT},
        {PICKLE("\x80\2ccollections\nOrderedDict\n]N\x85"
                "a\x85R."),
         NIB_BAD_INPUT},
        /* a parameter without a tensor; a state of nothing */
        {PICKLE("\x80\2ctorch._utils\n_rebuild_parameter\n)R."), NIB_BAD_INPUT},
        {PICKLE("\x80\2Nb."), NIB_BAD_INPUT},
        {PICKLE("\x80\2(Nb."), NIB_BAD_INPUT},
        /* offsets: negative, over 64 bits; sizes and strides that are none */
        {PICKLE(TENSOR(STORAGE("0", "K\6") "J\xff\xff\xff\xffK\6\x85K\1\x85")), NIB_BAD_INPUT},
        {PICKLE(TENSOR(STORAGE("0", "K\6") "\x8a\x09\0\0\0\0\0\0\0\0\0K\6\x85K\1\x85")),
         NIB_BAD_INPUT},
        {PICKLE(TENSOR(STORAGE("0", "K\6") "K\0NK\1\x85")), NIB_BAD_INPUT},
        {PICKLE(TENSOR(STORAGE("0", "K\6") "K\0K\6\x85N")), NIB_BAD_INPUT},
        {PICKLE(TENSOR(STORAGE("0", "K\6") "K\0ctorch\nSize\n)RK\1\x85")), NIB_BAD_INPUT},
        /* an untyped storage: without a type, with None, with a layout, with pairs of 4 bits */
        {PICKLE(TENSOR(UNTYPED "K\0K\6\x85K\1\x85")), NIB_BAD_INPUT},
        {PICKLE(TENSOR(UNTYPED "K\0K\6\x85K\1\x85\x89}N")), NIB_BAD_INPUT},
        {PICKLE(TENSOR(UNTYPED "K\0K\6\x85K\1\x85\x89}ctorch\nstrided\n")), NIB_BAD_INPUT},
        {PICKLE(TENSOR(UNTYPED "K\0K\6\x85K\1\x85\x89}ctorch\nfloat4_e2m1fn_x2\n")),
         NIB_UNSUPPORTED},
        /* a storage whose bytes overflow; elements whose distance, or end, overflows */
        {PICKLE(TENSOR(STORAGE("0", "\x8a\x08\0\0\0\0\0\0\0\x40") "K\0K\6\x85K\1\x85")),
         NIB_BAD_INPUT},
        {PICKLE(TENSOR(STORAGE("0", "K\6") "K\0K\2K\2K\2\x87" FAR FAR FAR "\x87")), NIB_BAD_INPUT},
        {PICKLE(TENSOR(STORAGE("0", "K\6") FAR "K\2K\2\x86" FAR FAR "\x86")), NIB_BAD_INPUT},
        /* tensors under a number, and under a name with a zero byte; a dict without tensors */
        {PICKLE("\x80\2}K\1" SIX "s."), NIB_BAD_INPUT},
        {PICKLE("\x80\2}X\2\0\0\0w\0" SIX "s."), NIB_BAD_INPUT},
        {PICKLE("\x80\2}K\1K\1s."), NIB_UNSUPPORTED},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const zip_part parts[] = {cases[i].pickle, {"a/data/0", floats, 24}};
        expect_refused(parts, 2, cases[i].status);
    }
}

/* A list that contains itself, a hundred thousand nested lists, and a tensor named twice: nothing
 * recurses deeply. */
static void test_deep_nesting_does_not_recurse(void **state)
{
    (void)state;
    const zip_part itself[] = {PICKLE("\x80\2]q\0h\0a.")};
    expect_refused(itself, 1, NIB_UNSUPPORTED);
    const zip_part cycle[] = {PICKLE("\x80\2}q\0X\5\0\0\0modelh\0s.")};
    expect_refused(cycle, 1, NIB_UNSUPPORTED);
    enum { DEPTH = 100000 };
    char *deep = malloc(2 * DEPTH + 3);
    memcpy(deep, "\x80\2", 2);
    memset(deep + 2, ']', DEPTH);
    memset(deep + 2 + DEPTH, 'a', DEPTH - 1);
    deep[1 + 2 * DEPTH] = '.';
    const zip_part lists[] = {{"a/data.pkl", deep, 2 + 2 * DEPTH}};
    expect_refused(lists, 1, NIB_UNSUPPORTED);
    free(deep);
    static const uint8_t floats[24] = {0};
    char twice[2 * sizeof one_tensor];
    const size_t body = sizeof one_tensor - 1 - 4; /* without protocol, dict and the stop */
    memcpy(twice, one_tensor, 3 + body);
    memcpy(twice + 3 + body, one_tensor + 3, body + 1);
    const zip_part named_twice[] = {{"a/data.pkl", twice, 4 + 2 * body}, {"a/data/0", floats, 24}};
    expect_refused(named_twice, 2, NIB_BAD_INPUT);
}

/* A shape of 65 sizes, which would be read again for each tensor that refers to it. */
/* One byte more than data.pkl may have. */
static void test_large_pickle(void **state)
{
    (void)state;
    enum { SIZE = 100000001 };
    void *zeros = calloc(1, SIZE);
    assert_non_null(zeros);
    const zip_part parts[] = {{"a/data.pkl", zeros, SIZE}};
    expect_refused(parts, 1, NIB_UNSUPPORTED);
    free(zeros);
}

static void test_many_sizes(void **state)
{
    (void)state;
    static const char head[] =
        "\x80\2}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(" STORAGE("0", "K\6") "K\0(",
                      tail[] = "tq\0h\0\x89}tRs.";
    enum { SIZES = 65 };
    char text[sizeof head + sizeof tail + 2 * SIZES];
    size_t at = sizeof head - 1;
    memcpy(text, head, at);
    for (int i = 0; i < SIZES; i++, at += 2)
        memcpy(text + at, "K\1", 2);
    memcpy(text + at, tail, sizeof tail - 1);
    const zip_part parts[] = {{"a/data.pkl", text, at + sizeof tail - 1}};
    expect_refused(parts, 1, NIB_BAD_INPUT);
}

/* A tensor without elements whose other sizes overflow when multiplied. */
static void test_rejects_overflow_in_empty_tensor(void **state)
{
    (void)state;
    static const char text[] = TENSOR(STORAGE("0", "K\0") "K\0K\0\x8a\x08\0\0\0\0\0\0\0\x40K\4\x87"
                                                          "K\4K\4K\1\x87\x89}");
    const zip_part parts[] = {PICKLE(text), {"a/data/0", "", 0}};
    parsed p;
    parse(&p, parts, 2);
    if (p.status != NIB_OK)
        fail_msg("%s", p.err.text);
    assert_int_equal(p.contents.tensors[0]->bytes, 0);
    assert_int_equal(p.contents.tensors[0]->shape[2], 4);
    assert_int_equal(p.contents.note_count, 0);
    drop(&p);
}

/* ---- legal pickles of unusual form ---- */

static void test_unusual_pickles(void **state)
{
    (void)state;
    static const uint8_t floats[24] = {0};
    const struct {
        zip_part pickle;
        size_t tensors, aliases, notes;
        const char *params; /* NULL: none */
    } cases[] = {
        /* no items before the tensor; an integer without bytes; sizes as torch.Size */
        {PICKLE("\x80\2}(u" KEY("w") SIX "s."), 1, 0, 0, NULL},
        {PICKLE("\x80\2}" KEY("w") REBUILD("_v2", STORAGE("0", "K\6") "\x8a\0K\6\x85K\1\x85") "s."),
         1, 0, 0, NULL},
        {PICKLE("\x80\2}" KEY("w") VIEW("ctorch\nSize\nK\2K\3\x86\x85R", "K\3K\1\x86") "s."), 1, 0,
         0, NULL},
        /* an untyped storage, whose tensors give the type */
        {PICKLE("\x80\2}" KEY("w")
                    REBUILD("_v3", UNTYPED "K\0K\6\x85K\1\x85\x89}ctorch\nfloat32\n") "s."),
         1, 0, 0, NULL},
        /* elements that must be copied; no tensors */
        {PICKLE("\x80\2}" KEY("w") VIEW("K\2K\3\x86", "K\1K\2\x86") "s."), 1, 0, 1, NULL},
        {PICKLE("\x80\2}."), 0, 0, 0, NULL},
        /* a dict in place of a model's name for it, and a name without a dict */
        {PICKLE("\x80\2}(X\5\0\0\0modelK\3" KEY("w") SIX "u."), 1, 0, 1, NULL},
        {PICKLE("\x80\2}(" KEY("a") "}" KEY("w") SIX "u."), 1, 0, 1, NULL},
        /* a name twice for the same elements; other elements, types, ranks and shapes are not */
        {PICKLE("\x80\2}(" KEY("a") SIX KEY("b") SIX KEY("c") VIEW("K\3\x85", "K\1\x85") KEY(
             "d") REBUILD("_v2", INTS "K\0K\6\x85K\1\x85") KEY("e") VIEW("K\2K\3\x86", "K\3K\1\x86")
                    KEY("f") VIEW("K\3K\2\x86", "K\2K\1\x86") KEY("g") VIEW("K\0\x85", "K\1\x85")
                        KEY("h") VIEW("K\0\x85", "K\1\x85") "u."),
         7, 1, 0, NULL},
        /* arguments of the model: scalars with short names */
        {PICKLE(
             "\x80\2}(X\5\0\0\0model}" KEY("w") SIX "sX\x0a\0\0\0model_args}(" KEY("a") "N" KEY(
                 "b") "\x88" KEY("c") "K\7" KEY("d") "G\x3f\xe0\0\0\0\0\0\0" KEY("e") KEY("x")
                 KEY("f") "]K\1K\2X\2\0\0\0g\0K\3X\x40\0\0\0"
                          "0123456789012345678901234567890123456789012345678901234567890123K\4uu."),
         1, 0, 1, "{\"a\": null, \"b\": true, \"c\": 7, \"d\": 0.5, \"e\": \"x\"}"},
        {PICKLE("\x80\2}(" KEY("w") SIX "X\x0a\0\0\0model_argsK\7X\6\0\0\0paramsK\7u."), 1, 0, 1,
         NULL},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const zip_part parts[] = {cases[i].pickle, {"a/data/0", floats, 24}};
        parsed p;
        parse(&p, parts, 2);
        if (p.status != NIB_OK)
            fail_msg("%zu: %s", i, p.err.text);
        assert_int_equal(p.contents.count, cases[i].tensors);
        assert_int_equal(p.contents.meta_count, cases[i].aliases);
        assert_int_equal(p.contents.note_count, cases[i].notes);
        assert_true((p.contents.params == NULL) == (cases[i].params == NULL));
        if (cases[i].params != NULL)
            assert_string_equal(p.contents.params, cases[i].params);
        drop(&p);
        for (size_t memory = 1; memory == 1 || p.status != NIB_OK; memory += 8) {
            parse_within(&p, parts, 2, memory); /* runs out at each place */
            if (p.status != NIB_OK)
                assert_int_equal(p.status, NIB_NO_MEMORY);
            drop(&p);
        }
    }
}

/* Twelve views that must be copied: the first eight get a note. */
static void test_many_copies(void **state)
{
    (void)state;
    static const char view[] = KEY("?") VIEW("K\2K\3\x86", "K\1K\2\x86");
    static const float floats[6] = {0, 1, 2, 3, 4, 5}, copied[6] = {0, 2, 4, 1, 3, 5};
    char text[4 + 12 * sizeof view + 2];
    size_t at = 4;
    memcpy(text, "\x80\2}(", at);
    for (int i = 0; i < 12; i++, at += sizeof view - 1) {
        memcpy(text + at, view, sizeof view - 1);
        text[at + 5] = (char)('a' + i);
    }
    memcpy(text + at, "u.", 2);
    const zip_part parts[] = {{"a/data.pkl", text, at + 2}, {"a/data/0", floats, sizeof floats}};
    parsed p;
    parse(&p, parts, 2);
    if (p.status != NIB_OK)
        fail_msg("%s", p.err.text);
    assert_int_equal(p.contents.count, 12);
    assert_int_equal(p.contents.note_count, COUNT(p.contents.notes));
    assert_memory_equal(p.contents.tensors[11]->data, copied, sizeof copied);
    drop(&p);
}

/* The record of a storage whose name is as long as is supported, and of one byte more. */
static void test_long_storage_names(void **state)
{
    (void)state;
    enum { KEY_MAX = 200 };
    static const uint8_t floats[24] = {0};
    for (uint8_t size = KEY_MAX; size <= KEY_MAX + 1; size++) {
        static const char head[] = "\x80\2}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n("
                                   "(X\7\0\0\0storagectorch\nFloatStorage\nX?\0\0\0",
                          tail[] = "X\3\0\0\0cpuK\6tQK\0K\6\x85K\1\x85tRs.";
        char text[sizeof head + KEY_MAX + 1 + sizeof tail], name[KEY_MAX + 16];
        memcpy(text, head, sizeof head - 1);
        text[sizeof head - 1 - 4] = (char)size;
        memset(text + sizeof head - 1, 'k', size);
        memcpy(text + sizeof head - 1 + size, tail, sizeof tail - 1);
        snprintf(name, sizeof name, "a/data/%.*s", size, text + sizeof head - 1);
        const zip_part parts[] = {{"a/data.pkl", text, sizeof head - 1 + size + sizeof tail - 1},
                                  {name, floats, sizeof floats}};
        parsed p;
        parse(&p, parts, 2);
        if (size > KEY_MAX)
            refused(NIB_BAD_INPUT, p.status, &p.err);
        else if (p.status != NIB_OK)
            fail_msg("%s", p.err.text);
        drop(&p);
    }
}

/* Appends "(K\1...t": a tuple of bytes. */
static size_t put_tuple(char *text, size_t at, const uint8_t *values, int count)
{
    text[at++] = '(';
    for (int i = 0; i < count; i++) {
        text[at++] = 'K';
        text[at++] = (char)values[i];
    }
    text[at++] = 't';
    return at;
}

/* Six elements at one address in 113 shapes, and the first shape again: each is compared
 * only with the last few, so the last tensor does not count as an alias of the first. */
static void test_many_views(void **state)
{
    (void)state;
    static const char head[] =
        "X\2\0\0\0n?ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE("0", "K\6") "K\0";
    static const uint8_t floats[24] = {0};
    static char text[114 * 200];
    size_t at = 4;
    int count = 0;
    memcpy(text, "\x80\2}(", at);
    for (int rank = 8; rank > 5; rank--)
        for (int i = 0; i < rank; i++)
            for (int j = 0; j < rank && !(rank == 6 && (i > 0 || j > 0)); j++) {
                uint8_t shape[8] = {1, 1, 1, 1, 1, 1, 1, 1}, strides[8];
                const int dims = rank == 6 ? 8 : rank;
                shape[i] *= 2;
                shape[j] *= 3;
                for (int d = dims, stride = 1; d-- > 0; stride *= shape[d])
                    strides[d] = (uint8_t)stride;
                memcpy(text + at, head, sizeof head - 1);
                text[at + 6] = (char)(++count);
                at = put_tuple(text, at + sizeof head - 1, shape, dims);
                at = put_tuple(text, at, strides, dims);
                memcpy(text + at, "tR", 2);
                at += 2;
            }
    memcpy(text + at, "u.", 2);
    const zip_part parts[] = {{"a/data.pkl", text, at + 2}, {"a/data/0", floats, 24}};
    parsed p;
    parse(&p, parts, 2);
    if (p.status != NIB_OK)
        fail_msg("%s", p.err.text);
    assert_int_equal(count, 114);
    assert_int_equal(p.contents.count, count);
    drop(&p);
}

/* A pickle cut at any byte, and more values or marks than a file may have. */
static void test_cut_and_long_pickles(void **state)
{
    (void)state;
    static const char whole[] = "\x80\4\x95\x02\0\0\0\0\0\0\0}(\x8c\1w" SIX "\x94h\0\x8c\1xM\1\1"
                                "\x8c\1yJ\0\0\0\0\x8c\1z\x8a\1\0\x8c\1u\x8b\1\0\0\0\0"
                                "\x8c\1vG\0\0\0\0\0\0\0\0X\1\0\0\0q\x8d\1\0\0\0\0\0\0\0ru.";
    char *copy = malloc(sizeof whole);
    for (size_t size = 0; size < sizeof whole - 1; size++) {
        memcpy(copy, whole, size);
        const zip_part parts[] = {{"a/data.pkl", copy, size}};
        parsed p;
        parse(&p, parts, 1);
        assert_int_equal(p.status, NIB_BAD_INPUT);
        drop(&p);
    }
    free(copy);
    enum { MANY = (1 << 21) + 4 };
    char *many = malloc(MANY);
    for (int i = 0; i < 2; i++) {
        memset(many, "(N"[i], MANY);
        memcpy(many, "\x80\2", 2);
        const zip_part parts[] = {{"a/data.pkl", many, MANY}};
        expect_refused(parts, 1, NIB_NO_MEMORY);
    }
    free(many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contents),
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_rejects_other_files),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_archives),
        cmocka_unit_test(test_pickles),
        cmocka_unit_test(test_deep_nesting_does_not_recurse),
        cmocka_unit_test(test_large_pickle),
        cmocka_unit_test(test_many_sizes),
        cmocka_unit_test(test_rejects_overflow_in_empty_tensor),
        cmocka_unit_test(test_unusual_pickles),
        cmocka_unit_test(test_many_copies),
        cmocka_unit_test(test_long_storage_names),
        cmocka_unit_test(test_many_views),
        cmocka_unit_test(test_cut_and_long_pickles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The stack machine: no recursion, and a limit on the number of values. It supports the opcodes
 * that torch.save writes with protocols 2 to 5, and the names in `globals`.
 */
#include "pickle.h"

#include "text.h"

#include <inttypes.h>

enum {
    VALUES_MAX = 1 << 21,    /* a tensor takes about 18 */
    SIZES_MAX = 64,          /* dimensions of a tensor: PyTorch's limit */
    ITEMS_MEMORY = 64 << 20, /* bytes for the items of tuples, lists and dicts: 2^24 items */
    TEXT_MAX = INT32_MAX,
    SHOWN = 120,
};

static const uint32_t mark = UINT32_MAX; /* a MARK on the stack */

/* ---- globals: never imported or called; a name outside this table is refused ---- */

typedef enum global_role {
    GLOBAL_DICT,      /* makes a dict from no arguments or from a list of pairs */
    GLOBAL_TENSOR,    /* _rebuild_tensor_v2 and variants: storage, offset, size, stride */
    GLOBAL_PARAMETER, /* returns its first argument */
    GLOBAL_STORAGE,   /* of `type`; NONE: untyped, each tensor gives its own type */
    GLOBAL_TYPE,      /* torch.float32 */
    GLOBAL_OTHER,     /* accepted and ignored */
    GLOBAL_REFUSED,   /* a tensor made with it is refused */
} global_role;

typedef struct pickle_global {
    const char *module, *name;
    global_role role;
    nib_type type;
    const char *refusal; /* why, and what to do; follows the tensor's name */
} pickle_global;

static const char complex_refusal[] =
    "is complex, which nibble does not support; save the state dict without it",
                  quantized_refusal[] =
                      "is one of PyTorch's own quantized tensors (torch.ao.quantization); save "
                      "what its dequantize() gives",
                  sparse_refusal[] = "is sparse; save what its to_dense() gives",
                  empty_refusal[] = "is on the meta device and has no values; save the model after "
                                    "its weights were loaded",
                  nested_refusal[] = "is a nested tensor; save its parts one by one",
                  numpy_refusal[] =
                      "was saved on a device that PyTorch stores through NumPy; move it to the CPU "
                      "(.cpu()) before torch.save",
                  subclass_refusal[] = "is of a subclass of Tensor; save what its dequantize() "
                                       "gives, or save torchao's tensors as safetensors "
                                       "(save_pretrained does)",
                  fp4_refusal[] = "has pairs of 4-bit floats as elements; save it as bytes "
                                  "(.view(torch.uint8)), or save the model as safetensors";

static const pickle_global globals[] = {
    {"collections", "OrderedDict", GLOBAL_DICT, NIB_TYPE_NONE, NULL},
    {"torch._utils", "_rebuild_tensor", GLOBAL_TENSOR, NIB_TYPE_NONE, NULL},
    {"torch._utils", "_rebuild_tensor_v2", GLOBAL_TENSOR, NIB_TYPE_NONE, NULL},
    {"torch._utils", "_rebuild_tensor_v3", GLOBAL_TENSOR, NIB_TYPE_NONE, NULL},
    {"torch._utils", "_rebuild_parameter", GLOBAL_PARAMETER, NIB_TYPE_NONE, NULL},
    {"torch._utils", "_rebuild_parameter_with_state", GLOBAL_PARAMETER, NIB_TYPE_NONE, NULL},
    {"torch", "FloatStorage", GLOBAL_STORAGE, NIB_TYPE_F32, NULL},
    {"torch", "HalfStorage", GLOBAL_STORAGE, NIB_TYPE_F16, NULL},
    {"torch", "BFloat16Storage", GLOBAL_STORAGE, NIB_TYPE_BF16, NULL},
    {"torch", "DoubleStorage", GLOBAL_STORAGE, NIB_TYPE_F64, NULL},
    {"torch", "CharStorage", GLOBAL_STORAGE, NIB_TYPE_I8, NULL},
    {"torch", "ByteStorage", GLOBAL_STORAGE, NIB_TYPE_U8, NULL},
    {"torch", "ShortStorage", GLOBAL_STORAGE, NIB_TYPE_I16, NULL},
    {"torch", "IntStorage", GLOBAL_STORAGE, NIB_TYPE_I32, NULL},
    {"torch", "LongStorage", GLOBAL_STORAGE, NIB_TYPE_I64, NULL},
    {"torch", "BoolStorage", GLOBAL_STORAGE, NIB_TYPE_BOOL, NULL},
    {"torch", "UntypedStorage", GLOBAL_STORAGE, NIB_TYPE_NONE, NULL},
    {"torch.storage", "UntypedStorage", GLOBAL_STORAGE, NIB_TYPE_NONE, NULL},
    {"torch", "float32", GLOBAL_TYPE, NIB_TYPE_F32, NULL},
    {"torch", "float16", GLOBAL_TYPE, NIB_TYPE_F16, NULL},
    {"torch", "bfloat16", GLOBAL_TYPE, NIB_TYPE_BF16, NULL},
    {"torch", "float64", GLOBAL_TYPE, NIB_TYPE_F64, NULL},
    {"torch", "int8", GLOBAL_TYPE, NIB_TYPE_I8, NULL},
    {"torch", "uint8", GLOBAL_TYPE, NIB_TYPE_U8, NULL},
    {"torch", "int16", GLOBAL_TYPE, NIB_TYPE_I16, NULL},
    {"torch", "uint16", GLOBAL_TYPE, NIB_TYPE_U16, NULL},
    {"torch", "int32", GLOBAL_TYPE, NIB_TYPE_I32, NULL},
    {"torch", "uint32", GLOBAL_TYPE, NIB_TYPE_U32, NULL},
    {"torch", "int64", GLOBAL_TYPE, NIB_TYPE_I64, NULL},
    {"torch", "uint64", GLOBAL_TYPE, NIB_TYPE_U64, NULL},
    {"torch", "bool", GLOBAL_TYPE, NIB_TYPE_BOOL, NULL},
    {"torch", "float8_e4m3fn", GLOBAL_TYPE, NIB_TYPE_E4M3, NULL},
    {"torch", "float8_e5m2", GLOBAL_TYPE, NIB_TYPE_E5M2, NULL},
    {"torch", "float8_e8m0fnu", GLOBAL_TYPE, NIB_TYPE_E8M0, NULL},
    {"torch", "float8_e4m3fnuz", GLOBAL_TYPE, NIB_TYPE_E4M3FNUZ, NULL},
    {"torch", "float8_e5m2fnuz", GLOBAL_TYPE, NIB_TYPE_E5M2FNUZ, NULL},
    {"torch", "Size", GLOBAL_OTHER, NIB_TYPE_NONE, NULL},
    {"torch", "device", GLOBAL_OTHER, NIB_TYPE_NONE, NULL},
    {"torch", "strided", GLOBAL_OTHER, NIB_TYPE_NONE, NULL},
    {"torch.serialization", "_get_layout", GLOBAL_OTHER, NIB_TYPE_NONE, NULL},
    {"torch", "float4_e2m1fn_x2", GLOBAL_REFUSED, NIB_TYPE_NONE, fp4_refusal},
    {"torch", "ComplexFloatStorage", GLOBAL_REFUSED, NIB_TYPE_NONE, complex_refusal},
    {"torch", "ComplexDoubleStorage", GLOBAL_REFUSED, NIB_TYPE_NONE, complex_refusal},
    {"torch", "QInt8Storage", GLOBAL_REFUSED, NIB_TYPE_NONE, quantized_refusal},
    {"torch", "QUInt8Storage", GLOBAL_REFUSED, NIB_TYPE_NONE, quantized_refusal},
    {"torch", "QInt32Storage", GLOBAL_REFUSED, NIB_TYPE_NONE, quantized_refusal},
    {"torch", "QUInt4x2Storage", GLOBAL_REFUSED, NIB_TYPE_NONE, quantized_refusal},
    {"torch", "QUInt2x4Storage", GLOBAL_REFUSED, NIB_TYPE_NONE, quantized_refusal},
    {"torch", "per_tensor_affine", GLOBAL_OTHER, NIB_TYPE_NONE, NULL},
    {"torch", "per_channel_affine", GLOBAL_OTHER, NIB_TYPE_NONE, NULL},
    {"torch._utils", "_rebuild_qtensor", GLOBAL_REFUSED, NIB_TYPE_NONE, quantized_refusal},
    {"torch._tensor", "_rebuild_from_type_v2", GLOBAL_REFUSED, NIB_TYPE_NONE, subclass_refusal},
    {"torch._utils", "_rebuild_wrapper_subclass", GLOBAL_REFUSED, NIB_TYPE_NONE, subclass_refusal},
    {"torch._utils", "_rebuild_sparse_tensor", GLOBAL_REFUSED, NIB_TYPE_NONE, sparse_refusal},
    {"torch._utils", "_rebuild_sparse_csr_tensor", GLOBAL_REFUSED, NIB_TYPE_NONE, sparse_refusal},
    {"torch._utils", "_rebuild_meta_tensor_no_storage", GLOBAL_REFUSED, NIB_TYPE_NONE,
     empty_refusal},
    {"torch._utils", "_rebuild_nested_tensor", GLOBAL_REFUSED, NIB_TYPE_NONE, nested_refusal},
    {"torch._utils", "_rebuild_device_tensor_from_numpy", GLOBAL_REFUSED, NIB_TYPE_NONE,
     numpy_refusal},
};

_Static_assert(COUNT(globals) <= 255, "an index must fit nib_pickle_value.global");

static bool equals(const char *text, size_t size, const char *other)
{
    return strlen(other) == size && memcmp(text, other, size) == 0;
}

static bool find_global(uint8_t *out, const char *module, size_t module_size, const char *name,
                        size_t name_size)
{
    for (size_t i = 0; i < COUNT(globals); i++)
        if (equals(module, module_size, globals[i].module) &&
            equals(name, name_size, globals[i].name)) {
            *out = (uint8_t)i;
            return true;
        }
    return false;
}

/* ---- the stack machine ---- */

typedef struct machine {
    nib_pickle *out;
    const uint8_t *start, *at, *end;
    const char *name;
    const nib_allocator *a;
    nib_err *err;
    uint32_t *stack; /* [depth] value indexes, or mark */
    size_t depth, stack_capacity;
    uint32_t *memo; /* [memo_count] value index + 1, or 0 */
    size_t memo_count, memo_capacity;
    size_t limit; /* most values */
} machine;

static nib_status fail(const machine *m, nib_status status, const char *sentence)
{
    return nib__fail(m->err, status, "%s: data.pkl, byte %" PRIu64 ": %s", m->name,
                     (uint64_t)(m->at - m->start), sentence);
}

static nib_status fail_memory(const machine *m)
{
    return nib__fail(m->err, NIB_NO_MEMORY,
                     "%s: data.pkl has more than %zu values, or out of memory", m->name, m->limit);
}

static nib_status read_bytes(machine *m, const uint8_t **bytes, uint64_t size)
{
    if (size > (uint64_t)(m->end - m->at))
        return fail(m, NIB_BAD_INPUT, "an operation runs past the end of the pickle");
    *bytes = m->at;
    m->at += size;
    return NIB_OK;
}

/* A little-endian number of `size` bytes. */
static nib_status read_number(machine *m, uint64_t *out, int size)
{
    const uint8_t *bytes = NULL;
    NIB_TRY(read_bytes(m, &bytes, (uint64_t)size));
    *out = 0;
    for (int i = size; i-- > 0;)
        *out = *out << 8 | bytes[i];
    return NIB_OK;
}

static nib_pickle_value *value_at(const machine *m, uint32_t i) { return &m->out->values[i]; }

static nib_status push(machine *m, uint32_t number)
{
    void *stack = m->stack;
    if (m->depth > VALUES_MAX ||
        !nib__reserve(m->a, &stack, &m->stack_capacity, m->depth + 1, sizeof *m->stack))
        return fail_memory(m);
    m->stack = stack;
    m->stack[m->depth++] = number;
    return NIB_OK;
}

static nib_status push_value(machine *m, nib_pickle_value value)
{
    void *values = m->out->values;
    if (m->out->count >= m->limit ||
        !nib__reserve(m->a, &values, &m->out->capacity, m->out->count + 1, sizeof value))
        return fail_memory(m);
    m->out->values = values;
    m->out->values[m->out->count] = value;
    return push(m, (uint32_t)m->out->count++);
}

/* The topmost value; fails on a mark. */
static nib_status pop(machine *m, uint32_t *number)
{
    if (m->depth == 0 || m->stack[m->depth - 1] == mark)
        return fail(m, NIB_BAD_INPUT, "an operation finds no value on the stack");
    *number = m->stack[--m->depth];
    return NIB_OK;
}

/* Pops the values above the topmost mark, and the mark. They stay in place until the next push. */
static nib_status pop_mark(machine *m, const uint32_t **first, size_t *count)
{
    size_t at = m->depth;
    while (at > 0 && m->stack[at - 1] != mark)
        at--;
    if (at == 0)
        return fail(m, NIB_BAD_INPUT, "an operation finds no mark on the stack");
    *first = m->stack + at;
    *count = m->depth - at;
    m->depth = at - 1;
    return NIB_OK;
}

static nib_status add_items(machine *m, uint32_t container, const uint32_t *items, size_t count)
{
    nib_pickle_value *v = value_at(m, container);
    const size_t want = v->count + count;
    if (want > v->capacity) {
        const size_t capacity = want > 2 * (size_t)v->capacity ? want : 2 * (size_t)v->capacity;
        uint32_t *grown = nib__arena_take(&m->out->arena, capacity, sizeof *grown);
        if (grown == NULL)
            return fail_memory(m);
        if (v->count != 0)
            memcpy(grown, v->u.items, v->count * sizeof *grown);
        v->u.items = grown;
        v->capacity = (uint32_t)capacity;
    }
    if (count != 0)
        memcpy(v->u.items + v->count, items, count * sizeof *items);
    v->count += (uint32_t)count;
    return NIB_OK;
}

static nib_status push_container(machine *m, nib_pickle_kind kind, const uint32_t *items,
                                 size_t count)
{
    /* The items may be on the stack, which push_value may reallocate. */
    uint32_t *copy = nib__arena_take(&m->out->arena, count, sizeof *copy);
    if (copy == NULL)
        return fail_memory(m);
    if (count != 0)
        memcpy(copy, items, count * sizeof *copy);
    return push_value(m, (nib_pickle_value){.kind = (uint8_t)kind,
                                            .count = (uint32_t)count,
                                            .capacity = (uint32_t)count,
                                            .u.items = copy});
}

static nib_status push_tuple(machine *m, size_t count)
{
    uint32_t items[3];
    for (size_t i = count; i-- > 0;)
        NIB_TRY(pop(m, &items[i]));
    return push_container(m, NIB_PICKLE_TUPLE, items, count);
}

static nib_status push_marked_tuple(machine *m)
{
    const uint32_t *items = NULL;
    size_t count = 0;
    NIB_TRY(pop_mark(m, &items, &count));
    return push_container(m, NIB_PICKLE_TUPLE, items, count);
}

/* Adds the values above the mark, or the topmost `count` values, to the container below them. */
static nib_status add_to(machine *m, nib_pickle_kind kind, size_t count, bool marked)
{
    const uint32_t *items = NULL;
    if (marked) {
        NIB_TRY(pop_mark(m, &items, &count));
    } else {
        uint32_t unused = 0;
        for (size_t i = 0; i < count; i++)
            NIB_TRY(pop(m, &unused));
        items = m->stack + m->depth;
    }
    if (m->depth == 0 || m->stack[m->depth - 1] == mark ||
        value_at(m, m->stack[m->depth - 1])->kind != kind)
        return fail(m, NIB_BAD_INPUT,
                    kind == NIB_PICKLE_DICT ? "items are set in a value that is not a dict"
                                            : "items are added to a value that is not a list");
    if (kind == NIB_PICKLE_DICT && count % 2 != 0)
        return fail(m, NIB_BAD_INPUT, "a key has no value");
    return add_items(m, m->stack[m->depth - 1], items, count);
}

/* ---- scalars ---- */

static nib_status push_whole(machine *m, nib_pickle_kind kind, int64_t whole)
{
    return push_value(m, (nib_pickle_value){.kind = (uint8_t)kind, .u.whole = whole});
}

static nib_status push_unsigned(machine *m, int size)
{
    uint64_t value = 0;
    NIB_TRY(read_number(m, &value, size));
    return push_whole(m, NIB_PICKLE_INT, size == 4 ? (int64_t)(int32_t)value : (int64_t)value);
}

/* Two's complement of any length; no tensor needs integers over 64 bits. */
static nib_status push_long(machine *m, int size_of_size)
{
    uint64_t size = 0;
    const uint8_t *bytes = NULL;
    NIB_TRY(read_number(m, &size, size_of_size));
    NIB_TRY(read_bytes(m, &bytes, size));
    if (size > 8)
        return push_value(m, (nib_pickle_value){.kind = NIB_PICKLE_OTHER});
    uint64_t value = size != 0 && bytes[size - 1] >= 0x80 ? UINT64_MAX : 0;
    for (uint64_t i = size; i-- > 0;)
        value = value << 8 | bytes[i];
    return push_whole(m, NIB_PICKLE_INT, (int64_t)value);
}

static nib_status push_float(machine *m)
{
    const uint8_t *bytes = NULL;
    uint64_t bits = 0;
    double number;
    NIB_TRY(read_bytes(m, &bytes, 8));
    for (int i = 0; i < 8; i++) /* the only big-endian number in the format */
        bits = bits << 8 | bytes[i];
    memcpy(&number, &bits, sizeof number);
    return push_value(m, (nib_pickle_value){.kind = NIB_PICKLE_FLOAT, .u.number = number});
}

static nib_status push_string(machine *m, int size_of_size)
{
    uint64_t size = 0;
    const uint8_t *bytes = NULL;
    NIB_TRY(read_number(m, &size, size_of_size));
    NIB_TRY(read_bytes(m, &bytes, size));
    if (size > TEXT_MAX || nib__utf8_check((const char *)bytes, (size_t)size) != size)
        return fail(m, NIB_BAD_INPUT, "a string is not UTF-8");
    return push_value(m, (nib_pickle_value){.kind = NIB_PICKLE_STRING,
                                            .count = (uint32_t)size,
                                            .u.text = (const char *)bytes});
}

/* ---- names and calls ---- */

static nib_status push_global(machine *m, const char *module, size_t module_size, const char *name,
                              size_t name_size)
{
    char a[SHOWN], b[SHOWN];
    uint8_t known;
    if (find_global(&known, module, module_size, name, name_size))
        return push_value(m, (nib_pickle_value){.kind = NIB_PICKLE_NAME, .global = known});
    const bool torchao = module_size >= 7 && memcmp(module, "torchao", 7) == 0;
    return nib__fail(
        m->err, NIB_UNSUPPORTED,
        "%s: data.pkl names %s.%s, which a dict of tensors does not need; nothing in the "
        "file was executed: %s",
        m->name, nib__escape_name(a, sizeof a, module, module_size),
        nib__escape_name(b, sizeof b, name, name_size),
        torchao ? "save torchao's tensors as safetensors (save_pretrained does)"
                : "save the weights alone, as torch.save(model.state_dict(), FILE)");
}

/* The rest of the line, without the newline. */
static nib_status read_line(machine *m, const char **line, size_t *size)
{
    const uint8_t *stop = memchr(m->at, '\n', (size_t)(m->end - m->at));
    if (stop == NULL)
        return fail(m, NIB_BAD_INPUT, "a name has no newline at its end");
    *line = (const char *)m->at;
    *size = (size_t)(stop - m->at);
    m->at = stop + 1;
    return NIB_OK;
}

static nib_status read_global(machine *m)
{
    const char *module = NULL, *name = NULL;
    size_t module_size = 0, name_size = 0;
    NIB_TRY(read_line(m, &module, &module_size));
    NIB_TRY(read_line(m, &name, &name_size));
    return push_global(m, module, module_size, name, name_size);
}

static nib_status read_stack_global(machine *m)
{
    uint32_t name = 0, module = 0;
    NIB_TRY(pop(m, &name));
    NIB_TRY(pop(m, &module));
    const nib_pickle_value a = *value_at(m, module), b = *value_at(m, name);
    if (a.kind != NIB_PICKLE_STRING || b.kind != NIB_PICKLE_STRING)
        return fail(m, NIB_BAD_INPUT, "a name is not a string");
    return push_global(m, a.u.text, a.count, b.u.text, b.count);
}

/* OrderedDict(), or OrderedDict([(key, value), ...]) */
static nib_status call_dict(machine *m, const nib_pickle_value *args)
{
    const nib_pickle_value *pairs = args->count == 0 ? NULL : nib__pickle_item(m->out, args, 0);
    if (args->count > 1 || (pairs != NULL && pairs->kind != NIB_PICKLE_LIST))
        return fail(m, NIB_BAD_INPUT, "the argument of OrderedDict is not a list of pairs");
    const nib_pickle_value list = pairs == NULL ? (nib_pickle_value){0} : *pairs;
    NIB_TRY(push_container(m, NIB_PICKLE_DICT, NULL, 0));
    const uint32_t dict = m->stack[m->depth - 1];
    for (size_t i = 0; i < list.count; i++) {
        const nib_pickle_value *pair = nib__pickle_item(m->out, &list, i);
        if ((pair->kind != NIB_PICKLE_LIST && pair->kind != NIB_PICKLE_TUPLE) || pair->count != 2)
            return fail(m, NIB_BAD_INPUT, "the argument of OrderedDict is not a list of pairs");
        NIB_TRY(add_items(m, dict, pair->u.items, 2));
    }
    return NIB_OK;
}

static bool is_size_tuple(const machine *m, const nib_pickle_value *tuple)
{
    if (tuple->kind != NIB_PICKLE_TUPLE || tuple->count > SIZES_MAX)
        return false;
    for (size_t i = 0; i < tuple->count; i++) {
        const nib_pickle_value *size = nib__pickle_item(m->out, tuple, i);
        if (size->kind != NIB_PICKLE_INT || size->u.whole < 0)
            return false;
    }
    return true;
}

/* _rebuild_tensor(storage, offset, size, stride), _v2(... requires_grad, hooks [, metadata]) and
 * _v3(... requires_grad, hooks, dtype [, metadata]) of an untyped storage */
static nib_status call_tensor(machine *m, const nib_pickle_value *args)
{
    enum { DTYPE = 6 };
    if (args->count < 4)
        return fail(m, NIB_BAD_INPUT, "a tensor has fewer than 4 arguments");
    const nib_pickle_value *storage = nib__pickle_item(m->out, args, 0),
                           *offset = nib__pickle_item(m->out, args, 1),
                           *sizes = nib__pickle_item(m->out, args, 2),
                           *strides = nib__pickle_item(m->out, args, 3);
    if (storage->kind == NIB_PICKLE_REFUSED)
        return push_value(m, *storage);
    if (storage->kind != NIB_PICKLE_STORAGE || offset->kind != NIB_PICKLE_INT ||
        offset->u.whole < 0 || !is_size_tuple(m, sizes) || !is_size_tuple(m, strides) ||
        sizes->count != strides->count)
        return fail(m, NIB_BAD_INPUT,
                    "a tensor's arguments are not a storage, offset, size and stride");
    nib_type type = (nib_type)storage->type;
    if (type == NIB_TYPE_NONE) {
        const nib_pickle_value *dtype =
            args->count > DTYPE ? nib__pickle_item(m->out, args, DTYPE) : storage;
        const pickle_global *row = dtype->kind == NIB_PICKLE_NAME ? &globals[dtype->global] : NULL;
        if (row != NULL && row->role == GLOBAL_REFUSED)
            return push_value(
                m, (nib_pickle_value){.kind = NIB_PICKLE_REFUSED, .global = dtype->global});
        if (row == NULL || row->role != GLOBAL_TYPE)
            return fail(m, NIB_BAD_INPUT, "a tensor of an untyped storage has no dtype");
        type = row->type;
    }
    NIB_TRY(push_container(m, NIB_PICKLE_TENSOR, args->u.items, 4));
    value_at(m, m->stack[m->depth - 1])->type = (uint8_t)type;
    return NIB_OK;
}

static nib_status reduce(machine *m)
{
    uint32_t args_at = 0, callee_at = 0;
    NIB_TRY(pop(m, &args_at));
    NIB_TRY(pop(m, &callee_at));
    /* copies, because pushing may reallocate the values */
    const nib_pickle_value args = *value_at(m, args_at), callee = *value_at(m, callee_at);
    if (callee.kind != NIB_PICKLE_NAME || args.kind != NIB_PICKLE_TUPLE)
        return fail(m, NIB_BAD_INPUT, "the callee is not a name, or its arguments are not a tuple");
    const pickle_global *row = &globals[callee.global];
    switch (row->role) {
    case GLOBAL_DICT: return call_dict(m, &args);
    case GLOBAL_TENSOR: return call_tensor(m, &args);
    case GLOBAL_PARAMETER:
        if (args.count == 0)
            return fail(m, NIB_BAD_INPUT, "a parameter has no tensor");
        return push(m, args.u.items[0]);
    case GLOBAL_REFUSED:
        return push_value(m,
                          (nib_pickle_value){.kind = NIB_PICKLE_REFUSED, .global = callee.global});
    case GLOBAL_OTHER:
        /* torch.Size((2, 3)) is the tuple */
        if (strcmp(row->name, "Size") == 0 && args.count == 1)
            return push(m, args.u.items[0]);
        return push_value(m, (nib_pickle_value){.kind = NIB_PICKLE_OTHER});
    default: return fail(m, NIB_BAD_INPUT, "a dtype or storage type is called like a function");
    }
}

/* Drops the state: an OrderedDict's holds module versions, a tensor's its attributes. Neither is
 * needed. */
static nib_status build(machine *m)
{
    uint32_t unused = 0;
    NIB_TRY(pop(m, &unused));
    if (m->depth == 0 || m->stack[m->depth - 1] == mark)
        return fail(m, NIB_BAD_INPUT, "an operation finds no value on the stack");
    switch (value_at(m, m->stack[m->depth - 1])->kind) {
    case NIB_PICKLE_DICT:
    case NIB_PICKLE_TENSOR:
    case NIB_PICKLE_REFUSED:
    case NIB_PICKLE_OTHER: return NIB_OK;
    default: return fail(m, NIB_BAD_INPUT, "a state is set on a value that cannot have one");
    }
}

/* ('storage', class, key, location, number of elements) */
static nib_status read_storage(machine *m)
{
    enum { CLASS = 1, KEY, LOCATION, ELEMENTS, FIELDS };
    uint32_t at = 0;
    NIB_TRY(pop(m, &at));
    const nib_pickle_value tuple = *value_at(m, at);
    if (tuple.kind != NIB_PICKLE_TUPLE || tuple.count != FIELDS ||
        !nib__pickle_is(nib__pickle_item(m->out, &tuple, 0), "storage"))
        return fail(m, NIB_BAD_INPUT, "a persistent id is not a storage");
    const nib_pickle_value class = *nib__pickle_item(m->out, &tuple, CLASS),
                           *key = nib__pickle_item(m->out, &tuple, KEY),
                           *elements = nib__pickle_item(m->out, &tuple, ELEMENTS);
    const pickle_global *row = class.kind == NIB_PICKLE_NAME ? &globals[class.global] : NULL;
    if (row != NULL && row->role == GLOBAL_REFUSED)
        return push_value(m,
                          (nib_pickle_value){.kind = NIB_PICKLE_REFUSED, .global = class.global});
    if (row == NULL || row->role != GLOBAL_STORAGE || key->kind != NIB_PICKLE_STRING ||
        elements->kind != NIB_PICKLE_INT || elements->u.whole < 0)
        return fail(m, NIB_BAD_INPUT, "a storage has no valid class, key or number of elements");
    const uint32_t items[] = {tuple.u.items[KEY], tuple.u.items[ELEMENTS]};
    NIB_TRY(push_container(m, NIB_PICKLE_STORAGE, items, COUNT(items)));
    value_at(m, m->stack[m->depth - 1])->type = (uint8_t)row->type;
    return NIB_OK;
}

/* ---- the memo ---- */

static nib_status memoize(machine *m, uint64_t place)
{
    void *memo = m->memo;
    if (m->depth == 0 || m->stack[m->depth - 1] == mark)
        return fail(m, NIB_BAD_INPUT, "an operation finds no value on the stack");
    if (place >= m->limit)
        return fail(m, NIB_BAD_INPUT, "a memo index is too high");
    if (place >= m->memo_count) {
        if (!nib__reserve(m->a, &memo, &m->memo_capacity, (size_t)place + 1, sizeof *m->memo))
            return fail_memory(m);
        m->memo = memo;
        memset(m->memo + m->memo_count, 0, ((size_t)place + 1 - m->memo_count) * sizeof *m->memo);
        m->memo_count = (size_t)place + 1;
    }
    m->memo[place] = m->stack[m->depth - 1] + 1;
    return NIB_OK;
}

static nib_status read_memo_put(machine *m, int size)
{
    uint64_t place = 0;
    NIB_TRY(read_number(m, &place, size));
    return memoize(m, place);
}

static nib_status read_memo_get(machine *m, int size)
{
    uint64_t place = 0;
    NIB_TRY(read_number(m, &place, size));
    if (place >= m->memo_count || m->memo[place] == 0)
        return fail(m, NIB_BAD_INPUT, "a memo index was never stored");
    return push(m, m->memo[place] - 1);
}

/* ---- opcodes ---- */

static nib_status read_frame(machine *m)
{
    uint64_t size = 0;
    NIB_TRY(read_number(m, &size, 8));
    return size <= (uint64_t)(m->end - m->at)
               ? NIB_OK
               : fail(m, NIB_BAD_INPUT, "a frame runs past the end of the pickle");
}

static nib_status read_protocol(machine *m)
{
    uint64_t version = 0;
    NIB_TRY(read_number(m, &version, 1));
    return m->at - m->start == 2 && version >= 2 && version <= 5
               ? NIB_OK
               : fail(m, NIB_UNSUPPORTED,
                      "the protocol is not 2 to 5, or not at the start of the pickle");
}

static nib_status execute_opcode(machine *m, uint8_t code)
{
    switch (code) {
    case 0x80: return read_protocol(m);
    case 0x95: return read_frame(m);
    case '(': return push(m, mark);
    case 'N': return push_whole(m, NIB_PICKLE_NONE, 0);
    case 0x88: return push_whole(m, NIB_PICKLE_BOOL, 1);
    case 0x89: return push_whole(m, NIB_PICKLE_BOOL, 0);
    case 'K': return push_unsigned(m, 1);
    case 'M': return push_unsigned(m, 2);
    case 'J': return push_unsigned(m, 4);
    case 0x8a: return push_long(m, 1);
    case 0x8b: return push_long(m, 4);
    case 'G': return push_float(m);
    case 0x8c: return push_string(m, 1);
    case 'X': return push_string(m, 4);
    case 0x8d: return push_string(m, 8);
    case ')': return push_tuple(m, 0);
    case 0x85: return push_tuple(m, 1);
    case 0x86: return push_tuple(m, 2);
    case 0x87: return push_tuple(m, 3);
    case 't': return push_marked_tuple(m);
    case ']':
    case 0x8f: return push_container(m, NIB_PICKLE_LIST, NULL, 0); /* a set is a list here */
    case '}': return push_container(m, NIB_PICKLE_DICT, NULL, 0);
    case 'a': return add_to(m, NIB_PICKLE_LIST, 1, false);
    case 'e':
    case 0x90: return add_to(m, NIB_PICKLE_LIST, 0, true);
    case 's': return add_to(m, NIB_PICKLE_DICT, 2, false);
    case 'u': return add_to(m, NIB_PICKLE_DICT, 0, true);
    case 'c': return read_global(m);
    case 0x93: return read_stack_global(m);
    case 'R': return reduce(m);
    case 'b': return build(m);
    case 'Q': return read_storage(m);
    case 'q': return read_memo_put(m, 1);
    case 'r': return read_memo_put(m, 4);
    case 0x94: return memoize(m, m->memo_count);
    case 'h': return read_memo_get(m, 1);
    case 'j': return read_memo_get(m, 4);
    default:
        return nib__fail(m->err, NIB_UNSUPPORTED,
                         "%s: data.pkl, byte %" PRIu64
                         ": operation 0x%02x, which a dict of tensors does "
                         "not need; nothing in the file was executed: save the weights alone, as "
                         "torch.save(model.state_dict(), FILE)",
                         m->name, (uint64_t)(m->at - 1 - m->start), code);
    }
}

static nib_status execute(machine *m)
{
    if (m->at == m->end || *m->at != 0x80)
        return fail(m, NIB_BAD_INPUT, "the pickle does not begin with a protocol");
    while (m->at < m->end) {
        const uint8_t code = *m->at++;
        if (code != '.') {
            NIB_TRY(execute_opcode(m, code));
            continue;
        }
        if (m->depth != 1 || m->stack[0] == mark || m->at != m->end)
            return fail(m, NIB_BAD_INPUT,
                        "the pickle does not end with exactly one value at its last byte");
        m->out->root = m->stack[0];
        return NIB_OK;
    }
    return fail(m, NIB_BAD_INPUT, "the pickle is cut short");
}

/* ---- public functions ---- */

nib_status nib__pickle_read(nib_pickle *out, const uint8_t *bytes, uint64_t size, const char *name,
                            const nib_allocator *a, nib_err *err)
{
    *out = (nib_pickle){0};
    nib__arena_init(&out->arena, a, ITEMS_MEMORY);
    machine m = {.out = out,
                 .start = bytes,
                 .at = bytes,
                 .end = bytes + size,
                 .name = name,
                 .a = a,
                 .err = err,
                 .limit = size < VALUES_MAX ? (size_t)size : VALUES_MAX};
    const nib_status status = execute(&m);
    nib__release(a, m.stack);
    nib__release(a, m.memo);
    return status;
}

void nib__pickle_free(nib_pickle *pickle, const nib_allocator *a)
{
    nib__release(a, pickle->values);
    nib__arena_free(&pickle->arena);
    *pickle = (nib_pickle){0};
}

const nib_pickle_value *nib__pickle_item(const nib_pickle *pickle, const nib_pickle_value *of,
                                         size_t i)
{
    return &pickle->values[of->u.items[i]];
}

bool nib__pickle_is(const nib_pickle_value *string, const char *text)
{
    return string->kind == NIB_PICKLE_STRING && strlen(text) == string->count &&
           memcmp(text, string->u.text, string->count) == 0;
}

const char *nib__pickle_refusal(const nib_pickle_value *refused)
{
    return globals[refused->global].refusal;
}

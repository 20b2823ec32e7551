/* SPDX-License-Identifier: Apache-2.0
 *
 * The stack machine: one step per operation, no recursion, every value counted. Operations are
 * those that torch.save writes with protocols 2 to 5; names are those of pickle_names.c.
 */
#include "pickle.h"

#include "pickle_names.h"
#include "text.h"

#include <inttypes.h>

enum {
    VALUES_MAX = 1 << 21,    /* a tensor costs about 18 */
    SIZES_MAX = 64,          /* dimensions of a tensor, as PyTorch has it; they are read per call */
    ITEMS_MEMORY = 64 << 20, /* bytes for what tuples, lists and dicts hold */
    TEXT_MAX = INT32_MAX,
    SHOWN = 120,
};

static const uint32_t mark = UINT32_MAX; /* on the stack */

/* ---- the machine ---- */

typedef struct machine {
    nib_pickle *out;
    const uint8_t *start, *at, *end;
    const char *name;
    const nib_allocator *a;
    nib_err *err;
    uint32_t *stack; /* [depth] numbers of values, or mark */
    size_t depth, stack_capacity;
    uint32_t *memo; /* [memo_count]: number + 1, or 0 */
    size_t memo_count, memo_capacity;
    size_t limit; /* of values */
} machine;

static nib_status fail(const machine *m, nib_status status, const char *sentence)
{
    return nib__fail(m->err, status, "%s: data.pkl, byte %" PRIu64 ": %s", m->name,
                     (uint64_t)(m->at - m->start), sentence);
}

static nib_status fail_memory(const machine *m)
{
    return nib__fail(m->err, NIB_NO_MEMORY,
                     "%s: data.pkl has more than %zu values, or memory ran out", m->name, m->limit);
}

static nib_status take(machine *m, const uint8_t **bytes, uint64_t size)
{
    if (size > (uint64_t)(m->end - m->at))
        return fail(m, NIB_BAD_INPUT, "an operation ends outside of the pickle");
    *bytes = m->at;
    m->at += size;
    return NIB_OK;
}

/* A little-endian number of `size` bytes. */
static nib_status take_number(machine *m, uint64_t *out, int size)
{
    const uint8_t *bytes = NULL;
    NIB_TRY(take(m, &bytes, (uint64_t)size));
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

/* The topmost value; a mark is none. */
static nib_status pop(machine *m, uint32_t *number)
{
    if (m->depth == 0 || m->stack[m->depth - 1] == mark)
        return fail(m, NIB_BAD_INPUT, "an operation finds no value on the stack");
    *number = m->stack[--m->depth];
    return NIB_OK;
}

/* The values above the topmost mark, which stay where they are until the next push. */
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
    if (count > VALUES_MAX || v->count > VALUES_MAX * 4u)
        return fail_memory(m);
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
    /* The items may lie on the stack that push_value grows. */
    uint32_t *copy = nib__arena_take(&m->out->arena, count, sizeof *copy);
    if (copy == NULL || count > VALUES_MAX)
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

/* Adds what lies above the mark, or the topmost `count` values, to the container below. */
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
                    kind == NIB_PICKLE_DICT ? "items are set in what is no dict"
                                            : "items are added to what is no list");
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
    NIB_TRY(take_number(m, &value, size));
    return push_whole(m, NIB_PICKLE_INT, size == 4 ? (int64_t)(int32_t)value : (int64_t)value);
}

/* Two's complement of any length; what does not fit 64 bits is of no use here. */
static nib_status push_long(machine *m, int size_of_size)
{
    uint64_t size = 0;
    const uint8_t *bytes = NULL;
    NIB_TRY(take_number(m, &size, size_of_size));
    NIB_TRY(take(m, &bytes, size));
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
    NIB_TRY(take(m, &bytes, 8));
    for (int i = 0; i < 8; i++) /* the one big-endian number of the format */
        bits = bits << 8 | bytes[i];
    memcpy(&number, &bits, sizeof number);
    return push_value(m, (nib_pickle_value){.kind = NIB_PICKLE_FLOAT, .u.number = number});
}

static nib_status push_string(machine *m, int size_of_size)
{
    uint64_t size = 0;
    const uint8_t *bytes = NULL;
    NIB_TRY(take_number(m, &size, size_of_size));
    NIB_TRY(take(m, &bytes, size));
    if (size > TEXT_MAX || nib__utf8_check((const char *)bytes, (size_t)size) != size)
        return fail(m, NIB_BAD_INPUT, "a string is no UTF-8");
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
    if (nib__pickle_global_find(&known, module, module_size, name, name_size))
        return push_value(m, (nib_pickle_value){.kind = NIB_PICKLE_NAME, .global = known});
    const bool torchao = module_size >= 7 && memcmp(module, "torchao", 7) == 0;
    return nib__fail(m->err, NIB_UNSUPPORTED,
                     "%s: data.pkl names %s.%s, which is not one of the names that a dict of "
                     "tensors needs; nothing of the file was executed: %s",
                     m->name, nib__say_name(a, sizeof a, module, module_size),
                     nib__say_name(b, sizeof b, name, name_size),
                     torchao ? "save torchao's tensors as safetensors (save_pretrained does)"
                             : "save the weights alone, as torch.save(model.state_dict(), FILE)");
}

/* The rest of the line, without its end. */
static nib_status take_line(machine *m, const char **line, size_t *size)
{
    const uint8_t *stop = memchr(m->at, '\n', (size_t)(m->end - m->at));
    if (stop == NULL)
        return fail(m, NIB_BAD_INPUT, "a name does not end");
    *line = (const char *)m->at;
    *size = (size_t)(stop - m->at);
    m->at = stop + 1;
    return NIB_OK;
}

static nib_status read_global(machine *m)
{
    const char *module = NULL, *name = NULL;
    size_t module_size = 0, name_size = 0;
    NIB_TRY(take_line(m, &module, &module_size));
    NIB_TRY(take_line(m, &name, &name_size));
    return push_global(m, module, module_size, name, name_size);
}

static nib_status read_stack_global(machine *m)
{
    uint32_t name = 0, module = 0;
    NIB_TRY(pop(m, &name));
    NIB_TRY(pop(m, &module));
    const nib_pickle_value a = *value_at(m, module), b = *value_at(m, name);
    if (a.kind != NIB_PICKLE_STRING || b.kind != NIB_PICKLE_STRING)
        return fail(m, NIB_BAD_INPUT, "a name is no string");
    return push_global(m, a.u.text, a.count, b.u.text, b.count);
}

/* OrderedDict(), or OrderedDict([(key, value), ...]) */
static nib_status call_dict(machine *m, const nib_pickle_value *args)
{
    const nib_pickle_value *pairs = args->count == 0 ? NULL : nib__pickle_item(m->out, args, 0);
    if (args->count > 1 || (pairs != NULL && pairs->kind != NIB_PICKLE_LIST))
        return fail(m, NIB_BAD_INPUT, "OrderedDict is called with what is no list of pairs");
    const nib_pickle_value list = pairs == NULL ? (nib_pickle_value){0} : *pairs;
    NIB_TRY(push_container(m, NIB_PICKLE_DICT, NULL, 0));
    const uint32_t dict = m->stack[m->depth - 1];
    for (size_t i = 0; i < list.count; i++) {
        const nib_pickle_value *pair = nib__pickle_item(m->out, &list, i);
        if ((pair->kind != NIB_PICKLE_LIST && pair->kind != NIB_PICKLE_TUPLE) || pair->count != 2)
            return fail(m, NIB_BAD_INPUT, "OrderedDict is called with what is no list of pairs");
        NIB_TRY(add_items(m, dict, pair->u.items, 2));
    }
    return NIB_OK;
}

static bool are_sizes(const machine *m, const nib_pickle_value *tuple)
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
        offset->u.whole < 0 || !are_sizes(m, sizes) || !are_sizes(m, strides) ||
        sizes->count != strides->count)
        return fail(m, NIB_BAD_INPUT,
                    "a tensor's arguments are no storage, offset, size and stride");
    nib_type type = (nib_type)storage->type;
    if (type == NIB_TYPE_NONE) {
        const nib_pickle_value *dtype =
            args->count > DTYPE ? nib__pickle_item(m->out, args, DTYPE) : storage;
        const nib_pickle_global *row =
            dtype->kind == NIB_PICKLE_NAME ? nib__pickle_global_at(dtype->global) : NULL;
        if (row != NULL && row->role == NIB_GLOBAL_REFUSED)
            return push_value(
                m, (nib_pickle_value){.kind = NIB_PICKLE_REFUSED, .global = dtype->global});
        if (row == NULL || row->role != NIB_GLOBAL_TYPE)
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
    /* copies: the list of values grows below */
    const nib_pickle_value args = *value_at(m, args_at), callee = *value_at(m, callee_at);
    if (callee.kind != NIB_PICKLE_NAME || args.kind != NIB_PICKLE_TUPLE)
        return fail(m, NIB_BAD_INPUT, "what is called is no name, or its arguments are no tuple");
    const nib_pickle_global *row = nib__pickle_global_at(callee.global);
    switch (row->role) {
    case NIB_GLOBAL_DICT: return call_dict(m, &args);
    case NIB_GLOBAL_TENSOR: return call_tensor(m, &args);
    case NIB_GLOBAL_PARAMETER:
        if (args.count == 0)
            return fail(m, NIB_BAD_INPUT, "a parameter has no tensor");
        return push(m, args.u.items[0]);
    case NIB_GLOBAL_REFUSED:
        return push_value(m,
                          (nib_pickle_value){.kind = NIB_PICKLE_REFUSED, .global = callee.global});
    case NIB_GLOBAL_OTHER:
        /* torch.Size((2, 3)) is the tuple */
        if (strcmp(row->name, "Size") == 0 && args.count == 1)
            return push(m, args.u.items[0]);
        return push_value(m, (nib_pickle_value){.kind = NIB_PICKLE_OTHER});
    default: return fail(m, NIB_BAD_INPUT, "a type is called");
    }
}

/* The state of an OrderedDict is module versions, that of a tensor attributes of its own: neither
 * is needed, and nothing is run with it. */
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
    default: return fail(m, NIB_BAD_INPUT, "a state is set in what has none");
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
        return fail(m, NIB_BAD_INPUT, "a persistent id is no storage");
    const nib_pickle_value class = *nib__pickle_item(m->out, &tuple, CLASS),
                           *key = nib__pickle_item(m->out, &tuple, KEY),
                           *elements = nib__pickle_item(m->out, &tuple, ELEMENTS);
    const nib_pickle_global *row =
        class.kind == NIB_PICKLE_NAME ? nib__pickle_global_at(class.global) : NULL;
    if (row != NULL && row->role == NIB_GLOBAL_REFUSED)
        return push_value(m,
                          (nib_pickle_value){.kind = NIB_PICKLE_REFUSED, .global = class.global});
    if (row == NULL || row->role != NIB_GLOBAL_STORAGE || key->kind != NIB_PICKLE_STRING ||
        elements->kind != NIB_PICKLE_INT || elements->u.whole < 0)
        return fail(m, NIB_BAD_INPUT, "a storage has no class, key or number of elements");
    const uint32_t items[] = {tuple.u.items[KEY], tuple.u.items[ELEMENTS]};
    NIB_TRY(push_container(m, NIB_PICKLE_STORAGE, items, COUNT(items)));
    value_at(m, m->stack[m->depth - 1])->type = (uint8_t)row->type;
    return NIB_OK;
}

/* ---- memory of values ---- */

static nib_status put(machine *m, uint64_t place)
{
    void *memo = m->memo;
    if (m->depth == 0 || m->stack[m->depth - 1] == mark)
        return fail(m, NIB_BAD_INPUT, "an operation finds no value on the stack");
    if (place >= m->limit)
        return fail(m, NIB_BAD_INPUT, "a value is remembered under a number that is too high");
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

static nib_status read_put(machine *m, int size)
{
    uint64_t place = 0;
    NIB_TRY(take_number(m, &place, size));
    return put(m, place);
}

static nib_status read_get(machine *m, int size)
{
    uint64_t place = 0;
    NIB_TRY(take_number(m, &place, size));
    if (place >= m->memo_count || m->memo[place] == 0)
        return fail(m, NIB_BAD_INPUT, "a value is recalled that was not remembered");
    return push(m, m->memo[place] - 1);
}

/* ---- operations ---- */

static nib_status read_frame(machine *m)
{
    uint64_t size = 0;
    NIB_TRY(take_number(m, &size, 8));
    return size <= (uint64_t)(m->end - m->at)
               ? NIB_OK
               : fail(m, NIB_BAD_INPUT, "a frame ends outside of the pickle");
}

static nib_status read_protocol(machine *m)
{
    uint64_t version = 0;
    NIB_TRY(take_number(m, &version, 1));
    return m->at - m->start == 2 && version >= 2 && version <= 5
               ? NIB_OK
               : fail(m, NIB_UNSUPPORTED, "protocols 2 to 5 are read, at the start of a pickle");
}

static nib_status step(machine *m, uint8_t code)
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
    case 'q': return read_put(m, 1);
    case 'r': return read_put(m, 4);
    case 0x94: return put(m, m->memo_count);
    case 'h': return read_get(m, 1);
    case 'j': return read_get(m, 4);
    default:
        return nib__fail(m->err, NIB_UNSUPPORTED,
                         "%s: data.pkl, byte %" PRIu64 ": operation 0x%02x is not one that a dict "
                         "of tensors needs; nothing of the file was executed: save the weights "
                         "alone, as torch.save(model.state_dict(), FILE)",
                         m->name, (uint64_t)(m->at - 1 - m->start), code);
    }
}

static nib_status run(machine *m)
{
    if (m->at == m->end || *m->at != 0x80)
        return fail(m, NIB_BAD_INPUT, "the pickle does not begin with its protocol");
    while (m->at < m->end) {
        const uint8_t code = *m->at++;
        if (code != '.') {
            NIB_TRY(step(m, code));
            continue;
        }
        if (m->depth != 1 || m->stack[0] == mark || m->at != m->end)
            return fail(m, NIB_BAD_INPUT,
                        "the pickle ends with other than one value, or before its last byte");
        m->out->root = m->stack[0];
        return NIB_OK;
    }
    return fail(m, NIB_BAD_INPUT, "the pickle is cut short");
}

/* ---- the interface ---- */

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
    const nib_status status = run(&m);
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
    return nib__pickle_global_at(refused->global)->refusal;
}

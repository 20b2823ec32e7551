/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns the members of a zip file and the values of its pickle into named tensors: finds the dict
 * that is the model, the bytes of each storage, and the shape and strides of each tensor.
 *
 *   NAME/data.pkl    the pickle                NAME/byteorder   "little"; absent in old files
 *   NAME/data/KEY    the bytes of one storage  NAME/version, NAME/.data/...   not needed
 */
#include "torch_zip.h"

#include "json.h"
#include "pickle.h"
#include "zip.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    PICKLE_MAX = 100000000, /* bytes, as of a safetensors header */
    DEPTH = 4,              /* levels of nested dicts searched for the model's */
    LOOK_BACK = 64,         /* tensors at the same address that find_aliases compares */
    FOLDER_MAX = 255,     /* bytes of the folder name, which torch.save takes from the file name */
    NAME_MAX_BYTES = 205, /* of a member's name inside the folder */
    SHOWN = 160,
};

typedef struct parser {
    nib_zip zip;
    nib_pickle pickle;
    const char *prefix; /* folder of every member: "archive/" */
    const char *name;   /* file name, escaped for messages */
    int file;
    nib_arena *arena;
    nib_err *err;
    nib_container *out;
} parser;

static nib_status fail(const parser *p, nib_status status, const char *sentence)
{
    return nib__fail(p->err, status, "%s: %s", p->name, sentence);
}

static nib_status fail_memory(const parser *p)
{
    return nib__fail(p->err, NIB_NO_MEMORY,
                     "%s: out of memory, or the file asks for more than twice its size", p->name);
}

static nib_status add_note(parser *p, const char *note)
{
    nib_container *out = p->out;
    if (out->note_count == COUNT(out->notes))
        return NIB_OK;
    out->notes[out->note_count] = nib__arena_copy(p->arena, note, strlen(note));
    return out->notes[out->note_count++] == NULL ? fail_memory(p) : NIB_OK;
}

/* ---- the archive ---- */

/* prefix + name, of at most NAME_MAX_BYTES; NULL: no such member. */
static const nib_zip_member *find_member(const parser *p, const char *name)
{
    char path[FOLDER_MAX + NAME_MAX_BYTES + 2];
    snprintf(path, sizeof path, "%s%s", p->prefix, name);
    return nib__zip_find(&p->zip, path);
}

/* All members must be in one folder, which has a data.pkl. */
static nib_status find_prefix(parser *p)
{
    const char *found = NULL;
    for (size_t i = 0; i < p->zip.count; i++) {
        const char *name = p->zip.members[i]->name, *slash = strchr(name, '/');
        if (slash == NULL || strcmp(slash, "/data.pkl") != 0)
            continue;
        if (found != NULL)
            return fail(p, NIB_BAD_INPUT, "the zip file has more than one data.pkl");
        found = name;
    }
    if (found == NULL)
        return fail(p, NIB_UNSUPPORTED,
                    "the zip file has no data.pkl in a folder: not written by torch.save");
    const size_t size = strlen(found) - strlen("data.pkl");
    if (size - 1 > FOLDER_MAX)
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: the folder of data.pkl in the zip file has a name of %zu bytes; "
                         "torch.save names it after the file, at most %d bytes",
                         p->name, size - 1, FOLDER_MAX);
    p->prefix = nib__arena_copy(p->arena, found, size);
    if (p->prefix == NULL)
        return fail_memory(p);
    for (size_t i = 0; i < p->zip.count; i++)
        if (strncmp(p->zip.members[i]->name, p->prefix, size) != 0)
            return fail(p, NIB_BAD_INPUT,
                        "the zip file has members outside the folder of data.pkl");
    return NIB_OK;
}

static nib_status check_archive(parser *p)
{
    static const char code[] = "code/";
    NIB_TRY(find_prefix(p));
    for (size_t i = 0; i < p->zip.count; i++) {
        const char *inside = p->zip.members[i]->name + strlen(p->prefix);
        if (strncmp(inside, code, strlen(code)) == 0 || strcmp(inside, "constants.pkl") == 0)
            return fail(
                p, NIB_UNSUPPORTED,
                "this is a TorchScript archive, which is a program; save its weights alone, as "
                "torch.save(torch.jit.load(FILE).state_dict(), OUT)");
    }
    const nib_zip_member *order = find_member(p, "byteorder");
    if (order != NULL && (order->size != 6 || memcmp(order->data, "little", 6) != 0))
        return fail(
            p, NIB_UNSUPPORTED,
            "written on a big-endian machine (its byteorder is not \"little\"); load it with "
            "PyTorch and save it again on a little-endian one");
    return NIB_OK;
}

/* ---- which dict ---- */

static bool is_tensor(const nib_pickle_value *v)
{
    return v->kind == NIB_PICKLE_TENSOR || v->kind == NIB_PICKLE_REFUSED;
}

static size_t count_tensors(const parser *p, const nib_pickle_value *dict)
{
    size_t count = 0;
    for (size_t i = 1; i < dict->count; i += 2)
        count += is_tensor(nib__pickle_item(&p->pickle, dict, i));
    return count;
}

/* Training programs keep the model under one of these keys, next to other things; the first key
 * found wins. */
static const nib_pickle_value *find_named_dict(const parser *p, const nib_pickle_value *in,
                                               const char **chosen)
{
    static const char *const names[] = {
        "model", "state_dict", "model_state_dict", "model_state", "module", "weights", "params"};
    for (size_t n = 0; n < COUNT(names); n++)
        for (size_t i = 0; i < in->count; i += 2) {
            const nib_pickle_value *value = nib__pickle_item(&p->pickle, in, i + 1);
            if (value->kind != NIB_PICKLE_DICT ||
                !nib__pickle_is(nib__pickle_item(&p->pickle, in, i), names[n]))
                continue;
            *chosen = names[n];
            return value;
        }
    return NULL;
}

/* Finds the dict of tensors: descends through known keys, up to DEPTH levels, or takes the root if
 * it has none. Known keys win even if the root has a tensor, because training may store one (such
 * as a step count) next to the model. */
static nib_status find_dict(parser *p, const nib_pickle_value **out)
{
    const nib_pickle_value *dict = &p->pickle.values[p->pickle.root], *inner;
    const char *chosen = "";
    char note[200];
    for (int depth = 0; depth < DEPTH && dict->kind == NIB_PICKLE_DICT; depth++) {
        inner = find_named_dict(p, dict, &chosen);
        if (inner == NULL)
            break;
        snprintf(note, sizeof note,
                 "the tensors are those under \"%s\"; %zu entries next to it are ignored", chosen,
                 (size_t)dict->count / 2 - 1);
        if (dict->count > 2)
            NIB_TRY(add_note(p, note));
        dict = inner;
    }
    if (dict->kind == NIB_PICKLE_DICT && (count_tensors(p, dict) != 0 || dict->count == 0)) {
        *out = dict;
        return NIB_OK;
    }
    return fail(p, NIB_UNSUPPORTED,
                "no dict of tensors, neither at the top level nor under \"model\", \"state_dict\" "
                "or another usual key; save the weights alone, as torch.save(model.state_dict(), "
                "FILE)");
}

/* ---- one tensor ---- */

static nib_status fail_tensor(const parser *p, const nib_tensor *t, nib_status status,
                              const char *sentence)
{
    char shown[SHOWN];
    return nib__fail(p->err, status, "%s: tensor \"%s\" %s", p->name,
                     nib__escape_name(shown, sizeof shown, t->name, strlen(t->name)), sentence);
}

static int64_t whole_at(const parser *p, const nib_pickle_value *of, size_t i)
{
    return nib__pickle_item(&p->pickle, of, i)->u.whole;
}

/* Finds the zip record with the bytes of a storage and checks its size. */
static nib_status find_record(const parser *p, const nib_tensor *t, const nib_pickle_value *storage,
                              const nib_zip_member **out)
{
    char path[NAME_MAX_BYTES + 2], shown[SHOWN]; /* a longer name is cut to one too long */
    const nib_pickle_value *key = nib__pickle_item(&p->pickle, storage, NIB_STORAGE_KEY);
    const int64_t count = whole_at(p, storage, NIB_STORAGE_COUNT);
    const int bits = storage->type == NIB_TYPE_NONE ? 8 : nib__type_bits((nib_type)storage->type);
    snprintf(path, sizeof path, "data/%.*s", (int)nib__min(key->count, sizeof path), key->u.text);
    uint64_t bytes;
    *out = strlen(path) > NAME_MAX_BYTES ? NULL : find_member(p, path);
    if (*out == NULL)
        return fail_tensor(p, t, NIB_BAD_INPUT, "has no record of its storage in the zip file");
    if (!nib__mul(&bytes, (uint64_t)count, (uint64_t)bits / 8) || bytes != (*out)->size)
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: tensor \"%s\" is in a storage of %" PRId64 " x %d bits, but its "
                         "record %s has %" PRIu64 " bytes",
                         p->name, nib__escape_name(shown, sizeof shown, t->name, strlen(t->name)),
                         count, bits, path, (*out)->size);
    return NIB_OK;
}

/* The number of elements from the first up to the last that shape and strides reach; false:
 * overflow. */
static bool compute_reach(uint64_t *out, const nib_tensor *t, const int64_t *strides)
{
    uint64_t reach = 1, step;
    for (int i = 0; i < t->rank; i++) {
        if (t->shape[i] == 0) {
            *out = 0;
            return true;
        }
        if (!nib__mul(&step, (uint64_t)t->shape[i] - 1, (uint64_t)strides[i]) ||
            !nib__add(&reach, reach, step))
            return false;
    }
    *out = reach;
    return true;
}

/* An empty tensor counts as contiguous: its sizes may overflow when multiplied. */
static bool is_contiguous(const nib_tensor *t, const int64_t *strides)
{
    int64_t step = 1;
    if (t->bytes == 0)
        return true;
    for (int i = t->rank; i-- > 0; step *= t->shape[i])
        if (t->shape[i] > 1 && strides[i] != step)
            return false;
    return true;
}

/* Copies the elements of a transposed or sliced view into row-major order. The caller has checked
 * the bounds. */
static void copy_contiguous(uint8_t *to, const uint8_t *from, const nib_tensor *t,
                            const int64_t *strides, size_t size)
{
    int64_t index[NIB_RANK_MAX] = {0};
    const uint64_t count = t->bytes / size;
    for (uint64_t i = 0; i < count; i++) {
        int64_t at = 0;
        for (int d = 0; d < t->rank; d++)
            at += index[d] * strides[d];
        memcpy(to + i * size, from + (uint64_t)at * size, size);
        for (int d = t->rank; d-- > 0;) {
            if (++index[d] < t->shape[d])
                break;
            index[d] = 0;
        }
    }
}

/* Replaces a non-contiguous view by a copy, unless the copy would be larger than the storage. */
static nib_status copy_view(parser *p, nib_tensor *t, const uint8_t *from, uint64_t reach,
                            const int64_t *strides, size_t size)
{
    char note[SHOWN + 100], shown[SHOWN];
    if (t->bytes / size > reach)
        return fail_tensor(p, t, NIB_UNSUPPORTED,
                           "is an expanded view with more elements than its storage; save what its "
                           "contiguous() gives");
    uint8_t *copy = nib__arena_take(p->arena, t->bytes, 1);
    if (copy == NULL)
        return fail_memory(p);
    copy_contiguous(copy, from, t, strides, size);
    t->data = copy;
    snprintf(note, sizeof note, "%s is a non-contiguous view; it is copied",
             nib__escape_name(shown, sizeof shown, t->name, strlen(t->name)));
    return add_note(p, note);
}

static nib_status read_shape(const parser *p, nib_tensor *t, const nib_pickle_value *value,
                             int64_t *strides)
{
    const nib_pickle_value *sizes = nib__pickle_item(&p->pickle, value, NIB_TENSOR_SIZES),
                           *steps = nib__pickle_item(&p->pickle, value, NIB_TENSOR_STRIDES);
    if (sizes->count > NIB_RANK_MAX) {
        char why[96];
        snprintf(why, sizeof why, "has %u dimensions; at most %d are supported",
                 (unsigned)sizes->count, NIB_RANK_MAX);
        return fail_tensor(p, t, NIB_UNSUPPORTED, why);
    }
    t->rank = (int)sizes->count;
    for (int i = 0; i < t->rank; i++) {
        t->shape[i] = whole_at(p, sizes, (size_t)i);
        strides[i] = whole_at(p, steps, (size_t)i);
    }
    return NIB_OK;
}

/* end: where the tensor ends in its storage; UINT64_MAX: there or later. */
static nib_status fail_short_storage(const parser *p, const nib_tensor *t, uint64_t end,
                                     uint64_t stored)
{
    char why[128];
    snprintf(why, sizeof why, "reaches past the end of its storage: byte %" PRIu64 "%s of %" PRIu64,
             end, end == UINT64_MAX ? " or later" : "", stored);
    return fail_tensor(p, t, NIB_BAD_INPUT, why);
}

static nib_status read_tensor(parser *p, nib_tensor *t, const nib_pickle_value *value)
{
    int64_t strides[NIB_RANK_MAX];
    const nib_zip_member *record = NULL;
    uint64_t reach = 0, end = 0;
    if (value->kind == NIB_PICKLE_REFUSED)
        return fail_tensor(p, t, NIB_UNSUPPORTED, nib__pickle_refusal(value));
    t->type = (nib_type)value->type;
    t->file = p->file;
    const uint64_t size = (uint64_t)nib__type_bits(t->type) / 8;
    const nib_pickle_value *storage = nib__pickle_item(&p->pickle, value, NIB_TENSOR_STORAGE);
    NIB_TRY(read_shape(p, t, value, strides));
    NIB_TRY(find_record(p, t, storage, &record));
    const uint64_t offset = (uint64_t)whole_at(p, value, NIB_TENSOR_OFFSET);
    t->bytes = size;
    for (int i = 0; i < t->rank; i++)
        if (!nib__mul(&t->bytes, t->bytes, (uint64_t)t->shape[i]))
            return fail_tensor(p, t, NIB_BAD_INPUT, "has a shape whose product overflows");
    if (!compute_reach(&reach, t, strides) || !nib__add(&end, offset, reach) ||
        !nib__mul(&end, end, size))
        end = UINT64_MAX;
    if (end > record->size)
        return fail_short_storage(p, t, end, record->size);
    t->data = record->data + offset * size;
    return is_contiguous(t, strides) ? NIB_OK
                                     : copy_view(p, t, t->data, reach, strides, (size_t)size);
}

/* ---- all tensors ---- */

static nib_status read_name(const parser *p, nib_tensor *t, const nib_pickle_value *key)
{
    if (key->kind != NIB_PICKLE_STRING || memchr(key->u.text, 0, key->count) != NULL)
        return fail(p, NIB_BAD_INPUT, "a tensor name is not a string, or contains a NUL character");
    t->name = nib__arena_copy(p->arena, key->u.text, key->count);
    return t->name == NULL ? fail_memory(p) : NIB_OK;
}

static bool same_view(const nib_tensor *a, const nib_tensor *b)
{
    return a->data == b->data && a->bytes == b->bytes && a->bytes != 0 && a->type == b->type &&
           a->rank == b->rank && memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

/* Tied weights are the same bytes under two names: makes the later name an alias. After sorting by
 * address they are neighbours. */
static nib_status find_aliases(parser *p)
{
    nib_container *out = p->out;
    size_t kept = 0;
    out->metas = nib__container_items(p->arena, out->count, sizeof(nib_meta));
    if (out->metas == NULL || !nib__container_sort(out->tensors, out->count, p->arena))
        return fail_memory(p);
    for (size_t i = 0; i < out->count; i++) {
        size_t same = kept;
        while (same > 0 && kept - same < LOOK_BACK &&
               out->tensors[same - 1]->data == out->tensors[i]->data &&
               !same_view(out->tensors[same - 1], out->tensors[i]))
            same--;
        if (same > 0 && same_view(out->tensors[same - 1], out->tensors[i])) {
            out->metas[out->meta_count]->key = out->tensors[i]->name;
            out->metas[out->meta_count++]->value = out->tensors[same - 1]->name;
        } else {
            out->tensors[kept++] = out->tensors[i];
        }
    }
    out->count = kept;
    return NIB_OK;
}

static nib_status read_tensors(parser *p, const nib_pickle_value *dict)
{
    nib_container *out = p->out;
    char note[200];
    nib_name_index names;
    size_t others = 0;
    const size_t count = count_tensors(p, dict);
    out->tensors = nib__container_items(p->arena, count, sizeof(nib_tensor));
    if (out->tensors == NULL || !nib__name_index_init(&names, p->arena, count))
        return fail_memory(p);
    for (size_t i = 0; i < dict->count; i += 2) {
        const nib_pickle_value *value = nib__pickle_item(&p->pickle, dict, i + 1);
        others += !is_tensor(value);
        if (!is_tensor(value))
            continue;
        nib_tensor *t = out->tensors[out->count];
        NIB_TRY(read_name(p, t, nib__pickle_item(&p->pickle, dict, i)));
        NIB_TRY(read_tensor(p, t, value));
        if (nib__name_index_add(&names, (const void *const *)out->tensors, out->count) != NULL)
            return fail_tensor(p, t, NIB_BAD_INPUT, "appears twice");
        out->count++;
    }
    if (others != 0) {
        snprintf(note, sizeof note, "%zu entries of the dict are not tensors and are ignored",
                 others);
        NIB_TRY(add_note(p, note));
    }
    return find_aliases(p);
}

/* ---- model hyperparameters ---- */

/* v->kind: at most NIB_PICKLE_STRING */
static void put_scalar(nib_jsonw *w, const nib_pickle_value *v)
{
    switch (v->kind) {
    case NIB_PICKLE_NONE: nib__jsonw_null(w); break;
    case NIB_PICKLE_BOOL: nib__jsonw_bool(w, v->u.whole != 0); break;
    case NIB_PICKLE_INT: nib__jsonw_int(w, v->u.whole); break;
    case NIB_PICKLE_FLOAT: nib__jsonw_double(w, v->u.number); break;
    default: nib__jsonw_string_n(w, v->u.text, v->count);
    }
}

/* llama2.c and similar programs store the model's arguments next to it, named as in Meta's
 * params.json. Writes them as the text of such a file. */
static nib_status read_params(parser *p)
{
    static const char *const names[] = {"model_args", "params"};
    /* find_dict has seen that the root is a dict */
    const nib_pickle_value *root = &p->pickle.values[p->pickle.root], *args = NULL;
    for (size_t n = 0; n < COUNT(names) && args == NULL; n++)
        for (size_t i = 0; i < root->count && args == NULL; i += 2)
            if (nib__pickle_is(nib__pickle_item(&p->pickle, root, i), names[n]))
                args = nib__pickle_item(&p->pickle, root, i + 1);
    if (args == NULL || args->kind != NIB_PICKLE_DICT)
        return NIB_OK;
    nib_text text;
    nib_jsonw w;
    nib__text_init(&text, p->arena->allocator);
    nib__jsonw_init(&w, &text, 0);
    nib__jsonw_object(&w);
    for (size_t i = 0; i < args->count && text.size < PICKLE_MAX; i += 2) {
        const nib_pickle_value *key = nib__pickle_item(&p->pickle, args, i),
                               *value = nib__pickle_item(&p->pickle, args, i + 1);
        char name[64];
        if (key->kind != NIB_PICKLE_STRING || key->count >= sizeof name ||
            value->kind > NIB_PICKLE_STRING || memchr(key->u.text, 0, key->count) != NULL)
            continue;
        memcpy(name, key->u.text, key->count);
        name[key->count] = 0;
        nib__jsonw_key(&w, name);
        put_scalar(&w, value);
    }
    nib__jsonw_object_end(&w);
    p->out->params = text.failed ? NULL : nib__arena_copy(p->arena, text.at, text.size);
    nib__text_free(&text);
    return p->out->params == NULL ? fail_memory(p) : NIB_OK;
}

/* ---- the file ---- */

static nib_status parse(parser *p, const uint8_t *bytes, uint64_t size)
{
    const nib_pickle_value *dict = NULL;
    NIB_TRY(nib__zip_read(&p->zip, bytes, size, p->name, p->arena, p->err));
    NIB_TRY(check_archive(p));
    const nib_zip_member *pickle = find_member(p, "data.pkl");
    if (pickle->size > PICKLE_MAX)
        return fail(p, NIB_UNSUPPORTED, "data.pkl is larger than 100,000,000 bytes");
    NIB_TRY(nib__pickle_read(&p->pickle, pickle->data, pickle->size, p->name, p->arena->allocator,
                             p->err));
    NIB_TRY(find_dict(p, &dict));
    NIB_TRY(read_tensors(p, dict));
    return read_params(p);
}

nib_status nib__torch_parse(nib_container *out, const uint8_t *bytes, uint64_t size,
                            const char *name, int file, nib_arena *arena, nib_err *err)
{
    char shown[256];
    nib_container result = {0};
    nib__escape_name(shown, sizeof shown, name, strlen(name));
    parser p = {.name = shown, .file = file, .arena = arena, .err = err, .out = &result};
    const nib_status status = parse(&p, bytes, size);
    nib__pickle_free(&p.pickle, arena->allocator);
    if (status == NIB_OK)
        *out = result;
    return status;
}

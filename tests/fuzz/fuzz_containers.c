/* SPDX-License-Identifier: Apache-2.0
 *
 * The same tensors as safetensors, GGUF, a zip file of PyTorch, and two safetensors shards with an
 * index: all readers give the same names, types, shapes and bytes, or all refuse. The input is a
 * list of tensors: flags, name, type, shape, and the seed of the data.
 */
#include "use_checkpoint.h"

#include "../zip_build.h"
#include "gguf_write.h"
#include "safetensors.h"
#include "torch_zip.h"

#include <inttypes.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TENSORS = 4, NAME = 24, RANK = 5, WAYS = 3 };

/* Types that all three containers have come first. */
static const struct {
    nib_type type;
    const char *torch;
} types[] = {{NIB_TYPE_F32, "Float"},  {NIB_TYPE_F16, "Half"}, {NIB_TYPE_BF16, "BFloat16"},
             {NIB_TYPE_F64, "Double"}, {NIB_TYPE_I8, "Char"},  {NIB_TYPE_I16, "Short"},
             {NIB_TYPE_I32, "Int"},    {NIB_TYPE_I64, "Long"}, {NIB_TYPE_U8, "Byte"},
             {NIB_TYPE_BOOL, "Bool"}};

enum { GGUF_TYPES = 8 };

typedef struct tensor {
    char name[NAME + 1];
    size_t name_size;
    size_t type; /* in `types` */
    int rank;
    int64_t shape[RANK];
    uint64_t bytes;
    uint8_t *data;
} tensor;

typedef struct model {
    tensor tensors[TENSORS];
    size_t count;
    bool has_gguf; /* GGUF can hold it */
} model;

/* ---- the list of tensors ---- */

typedef struct source {
    const uint8_t *at, *end;
} source;

static unsigned take(source *s) { return s->at < s->end ? *s->at++ : 0; }

/* Letters are likely; a name may be any bytes but NUL, and that of an earlier tensor. */
static void take_name(source *s, model *m, tensor *t)
{
    t->name_size = 1 + take(s) % NAME;
    for (size_t i = 0; i < t->name_size; i++) {
        const unsigned byte = take(s);
        t->name[i] = (char)(byte == 0 ? 'a' + (int)i : (int)byte);
    }
    if (take(s) % 16 == 1 && m->count > 0) {
        t->name_size = m->tensors[0].name_size;
        memcpy(t->name, m->tensors[0].name, sizeof t->name);
    }
    t->name[t->name_size] = 0;
    if (strcmp(t->name, "__metadata__") == 0) /* not a name in safetensors */
        t->name[0] = 'a';
}

static void take_tensor(source *s, model *m, tensor *t)
{
    take_name(s, m, t);
    t->type = take(s) % COUNT(types);
    t->rank = (int)(take(s) % (RANK + 1));
    m->has_gguf = m->has_gguf && t->type < GGUF_TYPES && t->rank > 0 && t->rank < RANK;
    for (int i = 0; i < t->rank; i++) {
        t->shape[i] = (int64_t)(take(s) % 6);
        m->has_gguf = m->has_gguf && t->shape[i] > 0;
    }
    require(nib__tensor_bytes(&t->bytes, types[t->type].type, t->shape, t->rank));
    t->data = malloc(t->bytes + 1);
    require(t->data != NULL);
    unsigned value = take(s);
    for (uint64_t i = 0; i < t->bytes; i++)
        t->data[i] = (uint8_t)(value = value * 5 + 1);
}

/* ---- safetensors ---- */

static void put_json_name(nib_text *out, const tensor *t)
{
    nib__text_str(out, "\"");
    for (size_t i = 0; i < t->name_size; i++) {
        const unsigned char c = (unsigned char)t->name[i];
        if (c < ' ' || c == '"' || c == '\\')
            nib__text_format(out, "\\u%04x", c);
        else
            nib__text_put(out, &t->name[i], 1);
    }
    nib__text_str(out, "\"");
}

/* Tensors begin..end of the model as a file. */
static void write_safetensors(nib_text *out, const model *m, size_t begin, size_t end)
{
    nib_text header;
    uint64_t at = 0;
    nib__text_init(&header, out->allocator);
    nib__text_str(&header, "{");
    for (size_t i = begin; i < end; i++) {
        const tensor *t = &m->tensors[i];
        nib__text_str(&header, i > begin ? "," : "");
        put_json_name(&header, t);
        nib__text_format(&header, ":{\"dtype\":\"%s\",\"shape\":[",
                         nib__type_stored_name(types[t->type].type));
        for (int d = 0; d < t->rank; d++)
            nib__text_format(&header, "%s%" PRId64, d > 0 ? "," : "", t->shape[d]);
        nib__text_format(&header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at,
                         at + t->bytes);
        at += t->bytes;
    }
    nib__text_str(&header, "}");
    for (int i = 0; i < 8; i++)
        nib__text_put(out, &(char){(char)((uint64_t)header.size >> 8 * i)}, 1);
    nib__text_put(out, header.at, header.size);
    for (size_t i = begin; i < end; i++)
        nib__text_put(out, (const char *)m->tensors[i].data, m->tensors[i].bytes);
    nib__text_free(&header);
}

/* ---- GGUF ---- */

static void write_gguf(nib_text *out, const model *m)
{
    static const char zeros[NIB_GGUF_ALIGNMENT];
    nib_gguf_head head;
    uint64_t at = 0;
    nib__gguf_head_init(&head, out->allocator);
    nib__gguf_begin(out, &head, m->count);
    for (size_t i = 0; i < m->count; i++) {
        const tensor *t = &m->tensors[i];
        nib__gguf_entry(out, t->name, types[t->type].type, t->shape, t->rank, at);
        at += (t->bytes + NIB_GGUF_ALIGNMENT - 1) / NIB_GGUF_ALIGNMENT * NIB_GGUF_ALIGNMENT;
    }
    nib__text_put(out, zeros, -out->size % NIB_GGUF_ALIGNMENT);
    for (size_t i = 0; i < m->count; i++) {
        nib__text_put(out, (const char *)m->tensors[i].data, m->tensors[i].bytes);
        nib__text_put(out, zeros, -out->size % NIB_GGUF_ALIGNMENT);
    }
    nib__gguf_head_free(&head);
}

/* ---- PyTorch ---- */

static void put_int(nib_text *out, int64_t value)
{
    nib__text_str(out, "J");
    for (int i = 0; i < 4; i++)
        nib__text_put(out, &(char){(char)((uint64_t)value >> 8 * i)}, 1);
}

static void put_unicode(nib_text *out, const char *text, size_t size)
{
    nib__text_put(out, (const char[]){'X', (char)size, 0, 0, 0}, 5);
    nib__text_put(out, text, size);
}

static void put_tuple(nib_text *out, const int64_t *values, int count)
{
    nib__text_str(out, "(");
    for (int i = 0; i < count; i++)
        put_int(out, values[i]);
    nib__text_str(out, "t");
}

static void put_torch_tensor(nib_text *out, const tensor *t, size_t number)
{
    int64_t strides[RANK], count = 1;
    const char key = (char)('0' + number);
    for (int i = t->rank; i-- > 0; count *= t->shape[i])
        strides[i] = count;
    put_unicode(out, t->name, t->name_size);
    nib__text_str(out, "ctorch._utils\n_rebuild_tensor_v2\n((");
    put_unicode(out, "storage", 7);
    nib__text_format(out, "ctorch\n%sStorage\n", types[t->type].torch);
    put_unicode(out, &key, 1);
    put_unicode(out, "cpu", 3);
    put_int(out, count);
    nib__text_str(out, "tQ");
    put_int(out, 0);
    put_tuple(out, t->shape, t->rank);
    put_tuple(out, strides, t->rank);
    nib__text_str(out, "\x89"
                       "ccollections\nOrderedDict\n)RtRs");
}

static zip_built write_torch(const model *m, const nib_allocator *a)
{
    static const char *const names[TENSORS] = {"m/data/0", "m/data/1", "m/data/2", "m/data/3"};
    nib_text pickle;
    nib__text_init(&pickle, a);
    nib__text_str(&pickle, "\x80\2}");
    for (size_t i = 0; i < m->count; i++)
        put_torch_tensor(&pickle, &m->tensors[i], i);
    nib__text_str(&pickle, ".");
    zip_part parts[TENSORS + 1] = {{"m/data.pkl", pickle.at, pickle.size}};
    for (size_t i = 0; i < m->count; i++)
        parts[i + 1] = (zip_part){names[i], m->tensors[i].data, m->tensors[i].bytes};
    const zip_built zip = build_zip(parts, m->count + 1, false, false);
    nib__text_free(&pickle);
    return zip;
}

/* ---- comparing ---- */

static bool parse(nib_parse *reader, nib_container *out, const void *bytes, size_t size,
                  nib_arena *arena)
{
    nib_err err = {NIB_OK, ""};
    const nib_status status = reader(out, bytes, size, "x", 0, arena, &err);
    require(status == NIB_OK || (err.status == status && err.text[0] != 0));
    return status == NIB_OK;
}

static void check_tensor(const nib_tensor *t, const tensor *wanted)
{
    require(t->type == types[wanted->type].type && t->rank == wanted->rank);
    for (int d = 0; d < t->rank; d++)
        require(t->shape[d] == wanted->shape[d]);
    require(t->bytes == wanted->bytes);
    require(t->bytes == 0 || memcmp(t->data, wanted->data, t->bytes) == 0);
}

static void check_container(const nib_container *c, const model *m)
{
    require(c->count == m->count);
    for (size_t i = 0; i < m->count; i++) {
        size_t at = 0;
        while (at < c->count && strcmp(c->tensors[at]->name, m->tensors[i].name) != 0)
            at++;
        require(at < c->count);
        check_tensor(c->tensors[at], &m->tensors[i]);
    }
}

/* Reads the model from each container; true: all took it. */
static bool check_containers(const model *m, const nib_allocator *a)
{
    nib_text flat, gguf;
    nib_container contents[WAYS] = {{.count = 0}};
    nib_arena arena;
    bool reads[WAYS];
    nib__arena_init(&arena, a, 0);
    nib__text_init(&flat, a);
    nib__text_init(&gguf, a);
    write_safetensors(&flat, m, 0, m->count);
    zip_built torch = write_torch(m, a);
    reads[0] = parse(nib__safetensors_parse, &contents[0], flat.at, flat.size, &arena);
    reads[1] = parse(nib__torch_parse, &contents[1], torch.bytes, torch.size, &arena);
    reads[2] = reads[0];
    if (m->has_gguf) {
        write_gguf(&gguf, m);
        reads[2] = parse(nib__gguf_parse, &contents[2], gguf.at, gguf.size, &arena);
    }
    require(reads[0] == reads[1] && reads[0] == reads[2]);
    for (int way = 0; reads[0] && way < WAYS; way++)
        if (way < 2 || m->has_gguf)
            check_container(&contents[way], m);
    free(torch.bytes);
    nib__text_free(&gguf);
    nib__text_free(&flat);
    nib__arena_free(&arena);
    return reads[0];
}

/* ---- shards ---- */

static void write_file(const char *directory, const char *name, const nib_text *text)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "wb");
    require(file != NULL && fwrite(text->at, 1, text->size, file) == text->size &&
            fclose(file) == 0);
}

static void put_index_entries(nib_text *out, const model *m, size_t begin, size_t end,
                              const char *file)
{
    for (size_t i = begin; i < end; i++) {
        nib__text_str(out, i > 0 ? "," : "");
        put_json_name(out, &m->tensors[i]);
        nib__text_format(out, ":\"%s\"", file);
    }
}

/* The first half of the tensors in one shard, the others in the second. */
static void check_shards(const model *m, bool reads, const nib_allocator *a)
{
    const char *base = getenv("TMPDIR");
    const size_t half = m->count / 2;
    char directory[300];
    nib_text text;
    nib_checkpoint *cp = NULL;
    nib_err err = {NIB_OK, ""};
    snprintf(directory, sizeof directory, "%s/nibble-fuzz-%ld", base == NULL ? "/tmp" : base,
             (long)getpid());
    require(mkdir(directory, 0700) == 0);
    nib__text_init(&text, a);
    write_safetensors(&text, m, 0, half);
    write_file(directory, "a.safetensors", &text);
    nib__text_clear(&text);
    write_safetensors(&text, m, half, m->count);
    write_file(directory, "b.safetensors", &text);
    nib__text_clear(&text);
    nib__text_str(&text, "{\"weight_map\":{");
    put_index_entries(&text, m, 0, half, "a.safetensors");
    put_index_entries(&text, m, half, m->count, "b.safetensors");
    nib__text_str(&text, "}}");
    write_file(directory, "model.safetensors.index.json", &text);
    nib__text_free(&text);
    const bool opened = nib__checkpoint_open(&cp, directory, a, &err) == NIB_OK;
    require(nib__path_remove(directory, NULL) == NIB_OK);
    require(opened == reads);
    for (size_t i = 0; opened && i < m->count; i++) {
        const nib_tensor *t = nib__checkpoint_find(cp, m->tensors[i].name);
        require(t != NULL && nib__checkpoint_count(cp) == m->count);
        check_tensor(t, &m->tensors[i]);
    }
    nib__checkpoint_close(cp);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    source s = {data, data + size};
    model m = {.has_gguf = true};
    const unsigned flags = take(&s);
    for (const size_t count = 1 + flags % TENSORS; m.count < count; m.count++)
        take_tensor(&s, &m, &m.tensors[m.count]);
    const bool reads = check_containers(&m, &a);
    if (flags >= 128 && m.count > 1)
        check_shards(&m, reads, &a);
    for (size_t i = 0; i < m.count; i++)
        free(m.tensors[i].data);
    return 0;
}

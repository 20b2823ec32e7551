/* SPDX-License-Identifier: Apache-2.0
 *
 * Meta's names <-> Hugging Face's. A row of the table may have several foreign names; the first is
 * Meta's own. The suffix after the module (".weight", ".scales", ".adaptor.A.weight") stays, except
 * for the ".scale" of torchtune's norms.
 */
#include "renames_meta.h"

#include "name_index.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>

enum { SHOWN = 160, PREFIX_MAX = 64 };

typedef struct rename_row {
    const char *ours;
    const char *theirs[3];
    bool norm;
} rename_row;

static const rename_row whole[] = {
    {"model.embed_tokens", {"tok_embeddings"}, false},
    {"model.norm", {"norm"}, true},
    {"lm_head", {"output"}, false},
};

static const rename_row in_layer[] = {
    {"input_layernorm", {"attention_norm", "sa_norm"}, true},
    {"self_attn.q_proj", {"attention.wq", "attn.q_proj"}, false},
    {"self_attn.k_proj", {"attention.wk", "attn.k_proj"}, false},
    {"self_attn.v_proj", {"attention.wv", "attn.v_proj"}, false},
    {"self_attn.qkv_proj", {"attention.wqkv"}, false},
    {"self_attn.o_proj", {"attention.wo", "attn.output_proj"}, false},
    {"self_attn.q_norm", {"attention.q_norm", "attn.q_norm", "attention.q_norm_fn"}, true},
    {"self_attn.k_norm", {"attention.k_norm", "attn.k_norm", "attention.k_norm_fn"}, true},
    {"post_attention_layernorm", {"ffn_norm", "mlp_norm"}, true},
    {"mlp.gate_proj", {"feed_forward.w1", "mlp.w1"}, false},
    {"mlp.down_proj", {"feed_forward.w2", "mlp.w2"}, false},
    {"mlp.up_proj", {"feed_forward.w3", "mlp.w3"}, false},
};

static const char their_layers[] = "layers.", our_layers[] = "model.layers.";

/* The suffix of name, from its dot on, if name begins with this module; else NULL. */
static const char *suffix_after(const char *name, const char *module)
{
    const size_t size = module == NULL ? 0 : strlen(module);
    return size != 0 && strncmp(name, module, size) == 0 && name[size] == '.' ? name + size : NULL;
}

static const rename_row *find_row(const rename_row *rows, size_t count, const char *name, bool from,
                                  const char **rest)
{
    for (size_t i = 0; i < count; i++) {
        *rest = from ? NULL : suffix_after(name, rows[i].ours);
        for (size_t t = 0; from && *rest == NULL && t < COUNT(rows[i].theirs); t++)
            *rest = suffix_after(name, rows[i].theirs[t]);
        if (*rest != NULL)
            return &rows[i];
    }
    return NULL;
}

/* The name after "layers.N."; *digits: number of digits of N. NULL: the name has another form. */
static const char *skip_layer(const char *name, const char *layers, int *digits)
{
    const char *number = name + strlen(layers);
    if (strncmp(name, layers, strlen(layers)) != 0)
        return NULL;
    for (*digits = 0; number[*digits] >= '0' && number[*digits] <= '9';)
        ++*digits;
    return *digits == 0 || *digits > 9 || number[*digits] != '.' ? NULL : number + *digits + 1;
}

static bool rename_any(char out[NIB_META_NAME_MAX], const char *name, bool from)
{
    const char *source = from ? their_layers : our_layers, *to = from ? our_layers : their_layers;
    const char *rest = NULL;
    int digits = 0, size;
    const char *part = skip_layer(name, source, &digits);
    const rename_row *row = part != NULL ? find_row(in_layer, COUNT(in_layer), part, from, &rest)
                                         : find_row(whole, COUNT(whole), name, from, &rest);
    if (row == NULL)
        return false;
    const char *renamed = from ? row->ours : row->theirs[0];
    if (from && row->norm && strcmp(rest, ".scale") == 0)
        rest = ".weight";
    if (part == NULL)
        size = snprintf(out, NIB_META_NAME_MAX, "%s%s", renamed, rest);
    else
        size = snprintf(out, NIB_META_NAME_MAX, "%s%.*s.%s%s", to, digits, name + strlen(source),
                        renamed, rest);
    return size < NIB_META_NAME_MAX;
}

bool nib__rename_from_meta(char out[NIB_META_NAME_MAX], const char *name)
{
    return rename_any(out, name, true);
}

bool nib__rename_to_meta(char out[NIB_META_NAME_MAX], const char *name)
{
    return rename_any(out, name, false);
}

/* ---- a whole file ---- */

static nib_status fail_memory(nib_err *err, const char *file)
{
    char shown[SHOWN];
    return nib__fail(err, NIB_NO_MEMORY,
                     "%s: out of memory, or the file asks for more than twice its size",
                     nib__escape_name(shown, sizeof shown, file, strlen(file)));
}

/* Finds the token embedding. Its name shows whether names are Meta's, and their common prefix. */
static const char *find_embedding(const nib_container *c, bool *meta, size_t *prefix)
{
    static const char theirs[] = "tok_embeddings.weight", ours[] = "model.embed_tokens.weight";
    for (size_t i = 0; i < c->count + c->meta_count; i++) {
        const char *name = i < c->count ? c->tensors[i]->name : c->metas[i - c->count]->key;
        *meta = nib__ends_with(name, theirs);
        if (!*meta && !nib__ends_with(name, ours))
            continue;
        *prefix = strlen(name) - strlen(*meta ? theirs : ours);
        if (*prefix <= PREFIX_MAX && (*prefix == 0 || name[*prefix - 1] == '.'))
            return name;
    }
    return NULL;
}

/* The name without the prefix, translated; NULL: out of memory. */
static const char *translate(const char *name, const char *first, size_t prefix, bool meta,
                             nib_arena *arena)
{
    char renamed[NIB_META_NAME_MAX];
    if (prefix != 0 && strncmp(name, first, prefix) == 0)
        name += prefix;
    if (!meta || !nib__rename_from_meta(renamed, name))
        return name;
    return nib__arena_copy(arena, renamed, strlen(renamed));
}

static nib_status rename_tensors(nib_container *c, const char *first, size_t prefix, bool meta,
                                 const char *file, nib_arena *arena, nib_err *err)
{
    for (size_t i = 0; i < c->count; i++)
        if ((c->tensors[i]->name = translate(c->tensors[i]->name, first, prefix, meta, arena)) ==
            NULL)
            return fail_memory(err, file);
    for (size_t i = 0; i < c->meta_count; i++) {
        nib_meta *m = c->metas[i];
        m->key = translate(m->key, first, prefix, meta, arena);
        if (m->value != NULL && strlen(m->value) < NIB_META_NAME_MAX)
            m->value = translate(m->value, first, prefix, meta, arena);
        if (m->key == NULL || m->value == NULL)
            return fail_memory(err, file);
    }
    return NIB_OK;
}

static nib_status add_note(nib_container *c, const char *note, const char *file, nib_arena *arena,
                           nib_err *err)
{
    if (c->note_count == COUNT(c->notes))
        return NIB_OK;
    c->notes[c->note_count] = nib__arena_copy(arena, note, strlen(note));
    return c->notes[c->note_count++] == NULL ? fail_memory(err, file) : NIB_OK;
}

/* ---- gpt-fast's fused weight ---- */

/* The file to split, with its tensors by name. */
typedef struct splitter {
    const nib_container *from;
    nib_name_index names;
    const char *file;
    nib_arena *arena;
    nib_err *err;
} splitter;

static const nib_tensor *find_tensor(const splitter *p, const char *name)
{
    const size_t at = nib__name_index_find(&p->names, (const void *const *)p->from->tensors, name);
    return at == SIZE_MAX ? NULL : p->from->tensors[at];
}

/* Rows per index of the first dimension: 8 in the tensor-core layout. */
static int64_t rows_per_step(const nib_tensor *t) { return t->rank == 4 ? 8 : 1; }

/* Rows of q: the inputs of o, or the hidden size if o is packed and does not show its inputs. */
static int64_t count_q_rows(const splitter *p, const char *module, size_t size)
{
    char name[NIB_META_NAME_MAX];
    snprintf(name, sizeof name, "%.*so_proj.weight", (int)size, module);
    const nib_tensor *o = find_tensor(p, name),
                     *embed = find_tensor(p, "model.embed_tokens.weight");
    if (o != NULL && o->rank == 2 && (nib__type_is_float(o->type) || o->type == NIB_TYPE_I8))
        return o->shape[1];
    return embed != NULL && embed->rank == 2 ? embed->shape[1] : 0;
}

static const char qkv[] = "qkv_proj.";

/* Offset of "qkv_proj." in the name of a fused tensor; 0: not fused. */
static size_t find_qkv(const nib_tensor *t)
{
    const char *at = strstr(t->name, qkv);
    return at == NULL ? 0 : (size_t)(at - t->name);
}

/* Splits a fused tensor into three. The scales of packed int4 have rows as an inner dimension, so
 * each part gets all of them and dialect_gptfast.c picks its rows. */
static nib_status split_fused(nib_tensor *const *out, const splitter *p, const nib_tensor *t)
{
    static const char *const modules[] = {"q_proj.", "k_proj.", "v_proj."};
    char shown[SHOWN], name[NIB_META_NAME_MAX];
    const size_t at = find_qkv(t);
    const bool inner = nib__ends_with(t->name, ".scales_and_zeros");
    /* the sizes of an empty tensor are not checked */
    const int64_t step = rows_per_step(t),
                  rows = t->rank < 1 || t->bytes == 0 ? 0 : t->shape[0] * step,
                  q = inner ? 0 : count_q_rows(p, t->name, at);
    if (!inner &&
        (q < 1 || q >= rows || (rows - q) % 2 != 0 || q % step != 0 || (rows - q) / 2 % step != 0))
        return nib__fail(
            p->err, NIB_UNSUPPORTED,
            "%s: tensor \"%s\" has %" PRId64 " rows, which cannot be split into q of %" PRId64
            " rows and k and v of equal size",
            p->file, nib__escape_name(shown, sizeof shown, t->name, strlen(t->name)), rows, q);
    const uint64_t bytes = inner ? 0 : t->bytes / (uint64_t)t->shape[0];
    const uint8_t *data = t->data;
    for (size_t i = 0; i < COUNT(modules); i++) {
        *out[i] = *t;
        snprintf(name, sizeof name, "%.*s%s%s", (int)at, t->name, modules[i],
                 t->name + at + strlen(qkv));
        out[i]->name = nib__arena_copy(p->arena, name, strlen(name));
        if (out[i]->name == NULL)
            return fail_memory(p->err, p->file);
        if (inner)
            continue;
        out[i]->shape[0] = (i == 0 ? q : (rows - q) / 2) / step;
        out[i]->data = data;
        out[i]->bytes = bytes * (uint64_t)out[i]->shape[0];
        data += out[i]->bytes;
    }
    return NIB_OK;
}

static nib_status split_all(nib_container *c, const char *file, nib_arena *arena, nib_err *err)
{
    size_t fused = 0, count = 0;
    splitter p = {.from = c, .file = file, .arena = arena, .err = err};
    for (size_t i = 0; i < c->count; i++)
        fused += find_qkv(c->tensors[i]) != 0;
    if (fused == 0)
        return NIB_OK;
    if (!nib__name_index_init(&p.names, arena, c->count))
        return fail_memory(err, file);
    for (size_t i = 0; i < c->count; i++) /* merging files reports duplicates */
        (void)nib__name_index_add(&p.names, (const void *const *)c->tensors, i);
    nib_tensor **parts = nib__container_items(arena, 3 * fused, sizeof(nib_tensor)),
               **all = nib__arena_take(arena, c->count + 2 * fused, sizeof *all);
    if (parts == NULL || all == NULL)
        return fail_memory(err, file);
    for (size_t i = 0; i < c->count; i++) {
        if (find_qkv(c->tensors[i]) == 0) {
            all[count++] = c->tensors[i];
            continue;
        }
        NIB_TRY(split_fused(parts, &p, c->tensors[i]));
        for (int part = 0; part < 3; part++)
            all[count++] = *parts++;
    }
    c->tensors = all;
    c->count = count;
    return add_note(c, "the fused attention.wqkv is split by rows into q, k and v", file, arena,
                    err);
}

nib_status nib__meta_translate(bool *renamed, nib_container *contents, const char *file,
                               nib_arena *arena, nib_err *err)
{
    bool meta = false;
    size_t prefix = 0;
    char note[SHOWN + PREFIX_MAX], shown[PREFIX_MAX + 1];
    const char *first = find_embedding(contents, &meta, &prefix);
    *renamed = first != NULL && meta;
    if (first == NULL || (!meta && prefix == 0))
        return NIB_OK;
    NIB_TRY(rename_tensors(contents, first, prefix, meta, file, arena, err));
    snprintf(note, sizeof note, "tensor names in the file begin with \"%s\", which is dropped",
             nib__escape_name(shown, sizeof shown, first, prefix));
    if (prefix != 0)
        NIB_TRY(add_note(contents, note, file, arena, err));
    if (!meta)
        return NIB_OK;
    NIB_TRY(add_note(contents,
                     "the file has Meta's tensor names (layers.0.attention.wq); nibble shows "
                     "Hugging Face's",
                     file, arena, err));
    return split_all(contents, file, arena, err);
}

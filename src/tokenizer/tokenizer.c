/* SPDX-License-Identifier: Apache-2.0
 *
 * An open tokenizer: its accessors, encoding from text to ids, and opening from files (a
 * tokenizer.json or prebuilt tables). Parsing is tokenizer_load.c, decoding detokenize.c.
 */
#include "tokenizer_parts.h"

enum {
    /* Limit on the bytes that normalizers and stages write: WRITTEN_BASE, and so many per byte of
     * text. Real tokenizers write at most 7 per byte; a hostile one could double the text in each
     * of 64 stages. */
    WRITTEN_PER_BYTE = 64,
    WRITTEN_BASE = 64 * 1024,
};

/* ---- accessors ---- */

int64_t nib__tokenizer_vocab_size(const nib_tokenizer *t) { return (int64_t)t->vocab.text_count; }

static uint64_t trie_bytes(const nib_trie *trie)
{
    return trie->capacity * sizeof *trie->edges + trie->node_capacity * sizeof *trie->tokens;
}

uint64_t nib__tokenizer_bytes(const nib_tokenizer *t)
{
    const nib_vocab *v = &t->vocab;
    const nib_bpe *b = &t->bpe;
    return sizeof *t + t->arena.total + v->bytes_capacity + v->text_capacity * sizeof *v->texts +
           (v->model.capacity + v->added.capacity) * sizeof *v->model.slots +
           (b->slots ? sizeof *b->slots << b->bits : 0) + t->added_capacity * sizeof *t->added +
           trie_bytes(&t->plain) + trie_bytes(&t->normal);
}

int32_t nib__tokenizer_bos(const nib_tokenizer *t) { return t->bos; }

int32_t nib__tokenizer_eos(const nib_tokenizer *t) { return t->eos; }
int32_t nib__tokenizer_unk(const nib_tokenizer *t) { return t->bpe.unk; }

bool nib__tokenizer_adds_bos(const nib_tokenizer *t)
{
    return t->bos >= 0 && t->before_count != 0 && t->before[0] == t->bos;
}

size_t nib__tokenizer_adds_before(const nib_tokenizer *t) { return t->before_count; }

int32_t nib__tokenizer_find(const nib_tokenizer *t, const char *token, size_t size)
{
    const int32_t id = nib__vocab_find(&t->vocab, &t->vocab.added, token, size);
    return id >= 0 ? id : nib__vocab_find(&t->vocab, &t->vocab.model, token, size);
}

const char *nib__tokenizer_token(const nib_tokenizer *t, int32_t id, size_t *size)
{
    return nib__vocab_text(&t->vocab, id, size);
}

bool nib__tokenizer_is_special(const nib_tokenizer *t, int32_t id)
{
    return id >= 0 && id < nib__tokenizer_vocab_size(t) && nib__vocab_special(&t->vocab, id);
}

/* ---- the state of one call ---- */

nib_status nib__encoder_open(nib_encoder *e, const nib_tokenizer *t, size_t text_size,
                             const nib_encoding *how, nib_err *err)
{
    memset(e, 0, sizeof *e);
    e->t = t;
    e->err = err;
    e->parse_special = (how->flags & NIB_ENCODE_PARSE_SPECIAL) != 0;
    e->special_words = e->parse_special && how->marked_count == 0;
    e->drop_unknown = (how->flags & NIB_ENCODE_DROP_UNKNOWN) != 0;
    e->max_ids = how->max_ids;
    e->max_word = how->max_word;
    e->made_limit = WRITTEN_BASE + (uint64_t)text_size * WRITTEN_PER_BYTE;
    nib__text_init(&e->normal[0], &t->allocator);
    nib__text_init(&e->normal[1], &t->allocator);
    nib__text_init(&e->normal_marks[0], &t->allocator);
    nib__text_init(&e->normal_marks[1], &t->allocator);
    for (size_t i = 0; i < t->stage_count; i++)
        nib__text_init(&e->stage[i], &t->allocator);
    return nib__regex_run_open(&e->run, text_size, how->max_word, err);
}

void nib__encoder_close(nib_encoder *e)
{
    const nib_allocator *a = &e->t->allocator;
    nib__regex_run_close(&e->run);
    nib__text_free(&e->normal[0]);
    nib__text_free(&e->normal[1]);
    nib__text_free(&e->normal_marks[0]);
    nib__text_free(&e->normal_marks[1]);
    nib__release(a, e->marks);
    for (size_t i = 0; i < e->t->stage_count; i++)
        nib__text_free(&e->stage[i]);
    nib__release(a, e->ids);
    nib__release(a, e->symbols);
    nib__release(a, e->heap);
    nib__release(a, e->words);
}

nib_status nib__encoder_add_id(nib_encoder *e, int64_t id)
{
    if (e->count == e->capacity && !nib__reserve(&e->t->allocator, (void **)&e->ids, &e->capacity,
                                                 e->count + 1, sizeof *e->ids))
        return nib__fail_memory(e->err, 2 * e->count * sizeof *e->ids, "the token ids");
    e->ids[e->count++] = (int32_t)id;
    e->full = e->max_ids != 0 && e->count > e->max_ids;
    return e->full ? NIB_CANCELLED : NIB_OK;
}

nib_status nib__encoder_count_output(nib_encoder *e, const nib_text *text, size_t size,
                                     const char *what)
{
    if (text->failed)
        return nib__fail_memory(e->err, text->size, what);
    e->made += size;
    if (e->made > e->made_limit)
        return nib__fail(e->err, NIB_BAD_INPUT,
                         "%s of this tokenizer.json makes more than %d bytes of each byte of text, "
                         "which is made to be slow; use another one",
                         what, WRITTEN_PER_BYTE);
    return NIB_OK;
}

/* ---- encoding ---- */

/* Encodes a piece between tokens that are matched before the normalizer. */
static nib_status encode_piece(nib_encoder *e, const char *piece, size_t piece_size, bool at_start)
{
    const nib_tokenizer *t = e->t;
    const char *text;
    size_t size, from = 0, done = 0;
    nib_text_range match;
    NIB_TRY(nib__normalize(e, piece, piece_size, &text, &size));
    for (int64_t found; (found = nib__added_next(t, &t->normal, text, size, e->parse_special,
                                                 e->piece_marks, done, &from, &match)) >= 0;) {
        if (done < match.start)
            NIB_TRY(nib__pretokenize(e, text + done, match.start - done, at_start && done == 0));
        NIB_TRY(nib__encoder_add_id(e, t->added[found].id));
        done = match.end;
    }
    return done < size ? nib__pretokenize(e, text + done, size - done, at_start && done == 0)
                       : NIB_OK;
}

static nib_status encode_between(nib_encoder *e, const char *text, size_t from, size_t to)
{
    if (from == to)
        return NIB_OK;
    /* Only tokens matched in normalized text need the marks. */
    e->piece_marks = e->marks == NULL || e->t->normal.count == 0 ? NULL : e->marks + from;
    return encode_piece(e, text + from, to - from, from == 0);
}

static nib_status encode_text(nib_encoder *e, const char *text, size_t size)
{
    const nib_tokenizer *t = e->t;
    size_t from = 0, done = 0;
    nib_text_range match;
    for (int64_t found; (found = nib__added_next(t, &t->plain, text, size, e->parse_special,
                                                 e->marks, done, &from, &match)) >= 0;) {
        NIB_TRY(encode_between(e, text, done, match.start));
        NIB_TRY(nib__encoder_add_id(e, t->added[found].id));
        done = match.end;
    }
    return encode_between(e, text, done, size);
}

static nib_status encode_with_special(nib_encoder *e, const char *text, size_t size,
                                      bool add_special)
{
    const nib_tokenizer *t = e->t;
    for (size_t i = 0; add_special && i < t->before_count; i++)
        NIB_TRY(nib__encoder_add_id(e, t->before[i]));
    NIB_TRY(encode_text(e, text, size));
    for (size_t i = 0; add_special && i < t->after_count; i++)
        NIB_TRY(nib__encoder_add_id(e, t->after[i]));
    return NIB_OK;
}

static nib_status mark_user_text(nib_encoder *e, const nib_encoding *how, size_t size)
{
    if (how->marked_count == 0)
        return NIB_OK;
    e->marks = nib__calloc(&e->t->allocator, size, 1);
    if (e->marks == NULL)
        return nib__fail_memory(e->err, size, "the marks of user text");
    for (size_t i = 0; i < how->marked_count; i++)
        memset(e->marks + how->marked[i].start, 1, how->marked[i].end - how->marked[i].start);
    return NIB_OK;
}

static nib_status encode(const nib_tokenizer *t, const char *text, size_t size,
                         const nib_encoding *how, int32_t **ids, size_t *count, uint64_t *steps,
                         nib_err *err)
{
    nib_encoder e;
    const size_t valid = nib__utf8_check(text, size);
    if (valid != size)
        return nib__fail(
            err, NIB_BAD_INPUT,
            "the text is not valid UTF-8: byte 0x%02x at offset %zu; convert it to UTF-8 first",
            (unsigned)(unsigned char)text[valid], valid);
    nib_status status = nib__encoder_open(&e, t, size, how, err);
    if (status == NIB_OK)
        status = mark_user_text(&e, how, size);
    if (status == NIB_OK)
        status = nib__bpe_cache_open(&e, size);
    if (status == NIB_OK)
        status = encode_with_special(&e, text, size, (how->flags & NIB_ENCODE_ADD_SPECIAL) != 0);
    if (status == NIB_OK || e.full) {
        *ids = e.ids;
        *count = e.count;
        *steps = e.steps;
        e.ids = NULL;
        status = NIB_OK;
    }
    nib__encoder_close(&e);
    return status;
}

nib_status nib__tokenizer_encode_as(const nib_tokenizer *t, const char *text, size_t size,
                                    const nib_encoding *how, int32_t **ids, size_t *count,
                                    nib_err *err)
{
    uint64_t steps;
    return encode(t, text, size, how, ids, count, &steps, err);
}

nib_status nib__tokenizer_encode_steps(const nib_tokenizer *t, const char *text, size_t size,
                                       unsigned flags, int32_t **ids, size_t *count,
                                       uint64_t *steps, nib_err *err)
{
    return encode(t, text, size, &(nib_encoding){.flags = flags}, ids, count, steps, err);
}

nib_status nib__tokenizer_encode(const nib_tokenizer *t, const char *text, size_t size,
                                 unsigned flags, int32_t **ids, size_t *count, nib_err *err)
{
    return nib__tokenizer_encode_as(t, text, size, &(nib_encoding){.flags = flags}, ids, count,
                                    err);
}

void nib__tokenizer_ids_free(const nib_tokenizer *t, int32_t *ids)
{
    nib__release(&t->allocator, ids);
}

/* ---- files ---- */

/* A mapped tokenizer.json and, if it has a name, tokenizer_config.json. */
typedef struct files {
    nib_map json, config;
    nib_named_text json_text, config_text;
} files;

static nib_status open_files(files *f, const char *path, const char *config, nib_err *err)
{
    *f = (files){.json_text = {.name = path}};
    nib_status status = nib__map_open(&f->json, path, err);
    if (status == NIB_OK && config != NULL)
        status = nib__map_open(&f->config, config, err);
    f->json_text = (nib_named_text){path, (const char *)f->json.at, (size_t)f->json.size};
    f->config_text = (nib_named_text){config, (const char *)f->config.at, (size_t)f->config.size};
    return status;
}

static const nib_named_text *config_or_null(const files *f)
{
    return f->config_text.name == NULL ? NULL : &f->config_text;
}

/* Returns `status`, or an error if a file changed while it was read. */
static nib_status close_files(files *f, nib_status status, nib_err *err)
{
    if (f->json.at != NULL)
        status = nib__map_read(&f->json, f->json_text.name, status, err);
    if (f->config.at != NULL)
        status = nib__map_read(&f->config, f->config_text.name, status, err);
    nib__map_close(&f->config);
    nib__map_close(&f->json);
    return status;
}

nib_status nib__tokenizer_open(nib_tokenizer **out, const char *path, const char *config,
                               const nib_allocator *a, nib_err *err)
{
    nib_tokenizer *opened = NULL;
    files f;
    nib_status status = open_files(&f, path, config, err);
    if (status == NIB_OK)
        status = nib__tokenizer_parse(&opened, &f.json_text, config_or_null(&f), a, err);
    status = close_files(&f, status, err);
    if (status == NIB_OK)
        *out = opened;
    else
        nib__tokenizer_close(opened);
    return status;
}

nib_status nib__tokenizer_open_tables(nib_tokenizer **out, const char *tables, const char *path,
                                      const char *config, const nib_allocator *a, nib_err *err)
{
    nib_tokenizer *opened = NULL;
    nib_map map = {0};
    files f;
    nib_status status = open_files(&f, path, config, err);
    if (status == NIB_OK)
        status = nib__map_open(&map, tables, err);
    if (status == NIB_OK) {
        const nib_named_text text = {tables, (const char *)map.at, (size_t)map.size};
        const nib_hash source = nib__hash_bytes(f.json.at, f.json.size);
        status = nib__tokenizer_parse_tables(&opened, &text, &source, config_or_null(&f), a, err);
        status = nib__map_read(&map, tables, status, err);
    }
    status = close_files(&f, status, err);
    if (status != NIB_OK) {
        nib__tokenizer_close(opened);
        nib__map_close(&map);
        return status;
    }
    opened->map = map;
    opened->map_path = nib__arena_copy(&opened->arena, tables, strlen(tables));
    if (opened->map_path == NULL) {
        nib__tokenizer_close(opened);
        return nib__fail_memory(err, strlen(tables), "a path");
    }
    *out = opened;
    return NIB_OK;
}

nib_status nib__tokenizer_read(const nib_tokenizer *t, nib_status status, nib_err *err)
{
    return t->map.at != NULL ? nib__map_read(&t->map, t->map_path, status, err) : status;
}

nib_status nib__tokenizer_write_tables(const char *tables, const char *path, const char *config,
                                       uint64_t *bytes, const nib_allocator *a, nib_err *err)
{
    nib_tokenizer *t = NULL;
    nib_text text;
    files f;
    nib__text_init(&text, a);
    nib_status status = open_files(&f, path, config, err);
    if (status == NIB_OK)
        status = nib__tokenizer_parse(&t, &f.json_text, config_or_null(&f), a, err);
    if (status == NIB_OK)
        status = nib__tokenizer_tables(&text, t, &f.json_text, err);
    status = close_files(&f, status, err);
    if (status == NIB_OK)
        status = nib__file_replace(tables, text.at, text.size, a, err);
    *bytes = text.size;
    nib__tokenizer_close(t);
    nib__text_free(&text);
    return status;
}

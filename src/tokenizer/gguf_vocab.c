/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the keys tokenizer.ggml.* of a GGUF into arrays by id. tokenizer_gguf.c interprets them.
 */
#include "gguf_vocab.h"

#include "file.h"

#define KEY(name) "tokenizer.ggml." name

static nib_status read_text(nib_vocab_text *out, const nib_gguf *gguf, const char *key,
                            nib_err *err)
{
    bool found;
    return nib__gguf_string(&out->at, &out->size, &found, gguf, key, err);
}

static nib_status read_flag(nib_vocab_flag *out, const nib_gguf *gguf, const char *key,
                            nib_err *err)
{
    bool found, value = false;
    NIB_TRY(nib__gguf_bool(&value, &found, gguf, key, err));
    *out = !found ? NIB_VOCAB_FLAG_UNSET : value ? NIB_VOCAB_FLAG_TRUE : NIB_VOCAB_FLAG_FALSE;
    return NIB_OK;
}

/* *out: -1 if the key is missing. Some files write "none" as a signed -1; it becomes UINT32_MAX. */
static nib_status read_id(int64_t *out, const nib_gguf *gguf, const char *key, nib_err *err)
{
    bool found;
    *out = -1;
    NIB_TRY(nib__gguf_int(out, &found, gguf, key, err));
    if (found && *out < 0)
        *out = UINT32_MAX;
    return NIB_OK;
}

/* Allocates an array for the elements of a key in the arena; NULL: no such key. */
static nib_status allocate_array(void *out, size_t *count, size_t element, nib_gguf_array *array,
                                 const nib_gguf *gguf, const char *key, nib_gguf_kind kind,
                                 nib_arena *arena, nib_err *err)
{
    bool found;
    void *at = NULL;
    *count = 0;
    NIB_TRY(nib__gguf_array_of(array, &found, gguf, key, kind, err));
    if (found) {
        at = nib__arena_take(arena, array->count + 1, element); /* not NULL if empty */
        if (at == NULL)
            return nib__fail_memory(err, array->count * element, key);
        *count = (size_t)array->count;
    }
    memcpy(out, &at, sizeof at);
    return NIB_OK;
}

static nib_status read_texts(const nib_vocab_text **out, size_t *count, const nib_gguf *gguf,
                             const char *key, nib_arena *arena, nib_err *err)
{
    nib_gguf_array array;
    nib_vocab_text *at;
    NIB_TRY(allocate_array(&at, count, sizeof *at, &array, gguf, key, NIB_GGUF_STRING, arena, err));
    for (size_t i = 0; i < *count; i++)
        (void)nib__gguf_next_string(&array, &at[i].at, &at[i].size);
    *out = at;
    return NIB_OK;
}

static nib_status read_scores(nib_vocab_source *out, const nib_gguf *gguf, nib_arena *arena,
                              nib_err *err)
{
    nib_gguf_array array;
    float *at;
    double value;
    NIB_TRY(allocate_array(&at, &out->score_count, sizeof *at, &array, gguf, KEY("scores"),
                           NIB_GGUF_F64, arena, err));
    for (size_t i = 0; i < out->score_count && nib__gguf_next_double(&array, &value); i++)
        at[i] = (float)value;
    out->scores = at;
    return NIB_OK;
}

static nib_status read_types(nib_vocab_source *out, const nib_gguf *gguf, nib_arena *arena,
                             nib_err *err)
{
    nib_gguf_array array;
    int32_t *at;
    int64_t value;
    NIB_TRY(allocate_array(&at, &out->type_count, sizeof *at, &array, gguf, KEY("token_type"),
                           NIB_GGUF_I64, arena, err));
    for (size_t i = 0; i < out->type_count && nib__gguf_next_int(&array, &value); i++)
        at[i] = (int32_t)nib__min(nib__max(value, INT32_MIN), INT32_MAX);
    out->types = at;
    return NIB_OK;
}

nib_status nib__gguf_vocab(nib_vocab_source *out, const nib_gguf *gguf, nib_arena *arena,
                           nib_err *err)
{
    *out = (nib_vocab_source){.name = gguf->name};
    NIB_TRY(read_text(&out->model, gguf, KEY("model"), err));
    NIB_TRY(read_text(&out->pre, gguf, KEY("pre"), err));
    NIB_TRY(read_texts(&out->tokens, &out->token_count, gguf, KEY("tokens"), arena, err));
    NIB_TRY(read_texts(&out->merges, &out->merge_count, gguf, KEY("merges"), arena, err));
    NIB_TRY(read_scores(out, gguf, arena, err));
    NIB_TRY(read_types(out, gguf, arena, err));
    NIB_TRY(read_id(&out->bos, gguf, KEY("bos_token_id"), err));
    NIB_TRY(read_id(&out->eos, gguf, KEY("eos_token_id"), err));
    NIB_TRY(read_id(&out->unk, gguf, KEY("unknown_token_id"), err));
    NIB_TRY(read_flag(&out->add_bos, gguf, KEY("add_bos_token"), err));
    NIB_TRY(read_flag(&out->add_eos, gguf, KEY("add_eos_token"), err));
    NIB_TRY(read_flag(&out->add_space_prefix, gguf, KEY("add_space_prefix"), err));
    NIB_TRY(read_flag(&out->remove_extra_whitespaces, gguf, KEY("remove_extra_whitespaces"), err));
    out->has_charsmap = nib__gguf_find(gguf, KEY("precompiled_charsmap")) != NULL;
    return NIB_OK;
}

nib_status nib__gguf_tokenizer(nib_tokenizer **out, const nib_gguf *gguf, const nib_allocator *a,
                               nib_err *err)
{
    nib_vocab_source source;
    nib_arena arena;
    nib__arena_init(&arena, a, 0);
    nib_status status = nib__gguf_vocab(&source, gguf, &arena, err);
    if (status == NIB_OK)
        status = nib__tokenizer_from_vocab(out, &source, a, err);
    nib__arena_free(&arena);
    return status;
}

nib_status nib__gguf_tokenizer_open(nib_tokenizer **out, const char *path, const nib_allocator *a,
                                    nib_err *err)
{
    nib_map map = {0};
    nib_container contents;
    nib_tokenizer *opened = NULL;
    nib_arena arena;
    NIB_TRY(nib__map_open(&map, path, err));
    nib__arena_init(&arena, a, 0);
    nib_status status = nib__gguf_parse(&contents, map.at, map.size, path, 0, &arena, err);
    if (status == NIB_OK)
        status = nib__gguf_tokenizer(&opened, contents.gguf, a, err);
    status = nib__map_read(&map, path, status, err);
    nib__arena_free(&arena);
    nib__map_close(&map);
    if (status == NIB_OK)
        *out = opened;
    else
        nib__tokenizer_close(opened);
    return status;
}

bool nib__gguf_begins(const char *path)
{
    nib_map map = {0};
    if (nib__path_kind(path) != NIB_PATH_FILE || nib__map_open(&map, path, NULL) != NIB_OK)
        return false;
    const bool begins = map.size >= 4 && memcmp(map.at, "GGUF", 4) == 0;
    nib__map_close(&map);
    return begins;
}

nib_status nib__gguf_chat_template(const char **out, size_t *size, const nib_gguf *gguf,
                                   nib_err *err)
{
    bool found;
    *out = NULL;
    *size = 0;
    return nib__gguf_string(out, size, &found, gguf, "tokenizer.chat_template", err);
}

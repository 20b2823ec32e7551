/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizers from files: a tokenizer.json, with what lies beside it, or tables that were built of
 * one.
 */
#include "tokenizer_parts.h"

/* A tokenizer.json and, with a name, the configuration beside it, mapped. */
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

static const nib_named_text *config_of(const files *f)
{
    return f->config_text.name == NULL ? NULL : &f->config_text;
}

/* What reading them ended with. */
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
        status = nib__tokenizer_parse(&opened, &f.json_text, config_of(&f), a, err);
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
        status = nib__tokenizer_parse_tables(&opened, &text, &source, config_of(&f), a, err);
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
        status = nib__tokenizer_parse(&t, &f.json_text, config_of(&f), a, err);
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

/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers for tests of src/tokenizer: reads files, opens tokenizers from text or from tables of
 * another, prints and parses ids. Golden file paths are relative to the root of the tree, where
 * `make` runs.
 */
#ifndef NIB_TESTS_TOKENIZING_H
#define NIB_TESTS_TOKENIZING_H

#include "file.h"
#include "json.h"
#include "tokenizer.h"

#include <stdio.h>
#include <stdlib.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Reads a whole file into an arena; fails the test if it is missing. */
static inline char *read_text(nib_arena *arena, const char *path, size_t *size)
{
    const nib_allocator a = nib__allocator_default();
    char *text = NULL;
    nib_err err = {.status = NIB_OK};
    if (nib__file_read(&text, size, path, 1u << 30, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    char *copy = nib__arena_copy(arena, text, *size);
    nib__release(&a, text);
    assert_non_null(copy);
    return copy;
}

/* JSON with ' instead of ", for readability. */
static inline const char *with_double_quotes(const char *json)
{
    static char text[16][8192];
    static int next;
    char *out = text[next++ % 16];
    size_t i = 0;
    for (; json[i] != 0; i++) {
        assert_true(i + 1 < sizeof text[0]);
        out[i] = json[i] == '\'' ? '"' : json[i];
    }
    out[i] = 0;
    return out;
}

static inline nib_status parse_status(nib_tokenizer **t, const char *json, const char *config,
                                      const nib_allocator *a, nib_err *err)
{
    const nib_named_text file = {"tokenizer.json", json, strlen(json)};
    const nib_named_text other = {"tokenizer_config.json", config,
                                  config == NULL ? 0 : strlen(config)};
    return nib__tokenizer_parse(t, &file, config == NULL ? NULL : &other, a, err);
}

static inline nib_tokenizer *parse_text(const char *json, const char *config)
{
    const nib_allocator a = nib__allocator_default();
    nib_tokenizer *t = NULL;
    nib_err err = {.status = NIB_OK};
    if (parse_status(&t, json, config, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return t;
}

static inline nib_tokenizer *open_path(const char *path, const char *config_path)
{
    const nib_allocator a = nib__allocator_default();
    nib_tokenizer *t = NULL;
    nib_err err = {.status = NIB_OK};
    if (nib__tokenizer_open(&t, path, config_path, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return t;
}

/* Reopens the tokenizer from its tables. *held stores them and must outlive it. */
static inline nib_tokenizer *by_tables(nib_text *held, const nib_tokenizer *t, const char *json,
                                       size_t size)
{
    const nib_allocator a = nib__allocator_default();
    const nib_named_text file = {"tokenizer.json", json, size};
    nib_tokenizer *opened = NULL;
    nib_err err = {.status = NIB_OK};
    nib__text_clear(held);
    if (nib__tokenizer_tables(held, t, &file, &err) != NIB_OK)
        fail_msg("%s", err.text);
    const nib_named_text tables = {"nibble.tokens", held->at, held->size};
    if (nib__tokenizer_parse_tables(&opened, &tables, NULL, NULL, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return opened;
}

/* "1 2 3", or "! message" for an error. */
static inline void ids_text(nib_text *out, const nib_tokenizer *t, const char *text, size_t size,
                            unsigned flags)
{
    int32_t *ids = NULL;
    size_t count = 0;
    nib_err err = {.status = NIB_OK};
    nib__text_clear(out);
    if (nib__tokenizer_encode(t, text, size, flags, &ids, &count, &err) != NIB_OK)
        nib__text_format(out, "! %s", err.text);
    for (size_t i = 0; i < count; i++)
        nib__text_format(out, i == 0 ? "%d" : " %d", ids[i]);
    nib__text_put(out, "", 0);
    nib__tokenizer_ids_free(t, ids);
}

static inline void expect_ids(const nib_tokenizer *t, const char *text, unsigned flags,
                              const char *expected)
{
    const nib_allocator a = nib__allocator_default();
    nib_text out;
    nib__text_init(&out, &a);
    ids_text(&out, t, text, strlen(text), flags);
    if (strcmp(out.at, expected) != 0)
        fail_msg("\"%s\" gives %s instead of %s", text, out.at, expected);
    nib__text_free(&out);
}

/* Parses "1 2 3" into ids. */
static inline size_t read_ids(const char *words, int32_t *ids, size_t most)
{
    size_t count = 0;
    char *end;
    for (long id; id = strtol(words, &end, 10), end != words; words = end) {
        assert_true(count < most);
        ids[count++] = (int32_t)id;
    }
    return count;
}

/* Decodes ids at once and one by one: both must give the same text, and each piece must be valid
 * UTF-8. */
static inline void decode_both(nib_text *out, const nib_tokenizer *t, const int32_t *ids,
                               size_t count, bool skip_special)
{
    const nib_allocator a = nib__allocator_default();
    nib_text pieces;
    nib_detok d;
    nib__text_clear(out);
    nib__text_init(&pieces, &a);
    nib__detok_init(&d, t, skip_special);
    for (size_t i = 0; i <= count; i++) {
        const size_t before = pieces.size;
        if (i < count)
            nib__detok_put(&d, ids[i], &pieces);
        else
            nib__detok_finish(&d, &pieces);
        const size_t made = pieces.size - before;
        assert_int_equal(nib__utf8_check(made == 0 ? "" : pieces.at + before, made), made);
    }
    nib__detok_free(&d);
    nib__text_put(&pieces, "", 0);
    nib__text_put(out, "", 0);
    assert_int_equal(nib__tokenizer_decode(t, ids, count, skip_special, out, NULL), NIB_OK);
    assert_int_equal(out->size, pieces.size);
    assert_memory_equal(out->at, pieces.at, pieces.size);
    nib__text_free(&pieces);
}

#endif

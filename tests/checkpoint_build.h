/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: builds a checkpoint of listed tensors, with or without a config.json, in a temporary
 * directory.
 */
#ifndef NIB_CHECKPOINT_BUILD_H
#define NIB_CHECKPOINT_BUILD_H

#include "checkpoint.h"
#include "dialects.h"
#include "opening.h"
#include "failing.h"
#include "refused.h"
#include "safetensors_build.h"

#include <inttypes.h>

typedef struct part {
    const char *name, *type; /* name NULL: tensor left out */
    int rank;
    int64_t shape[4];
    const void *data; /* NULL: zeros */
} part;

typedef struct made {
    char dir[256];
    nib_allocator allocator;
    nib_checkpoint *cp; /* NULL if opening failed */
    nib_err err;
} made;

static inline size_t part_bytes(const part *p)
{
    size_t bits = (size_t)nib__type_bits(nib__type_find(p->type, strlen(p->type)));
    for (int i = 0; i < p->rank; i++)
        bits *= (size_t)p->shape[i];
    return bits / 8;
}

/* metadata: the members of __metadata__, or NULL; config: the text of config.json, or NULL. Writes
 * and opens the checkpoint; m->err holds any error. */
static inline nib_status make_described(made *m, const char *metadata, const char *config,
                                        const part *parts, size_t count)
{
    nib_text header;
    static uint8_t data[1 << 19];
    size_t at = 0;
    *m = (made){.allocator = nib__allocator_default()};
    memset(data, 0, sizeof data);
    nib__text_init(&header, &m->allocator);
    nib__text_str(&header, "{");
    if (metadata != NULL)
        nib__text_format(&header, "\"__metadata__\":{%s}", metadata);
    for (size_t i = 0; i < count; i++) {
        if (parts[i].name == NULL)
            continue;
        nib__text_format(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                         header.size == 1 ? "" : ",", parts[i].name, parts[i].type);
        for (int d = 0; d < parts[i].rank; d++)
            nib__text_format(&header, "%s%" PRId64, d == 0 ? "" : ",", parts[i].shape[d]);
        const size_t bytes = part_bytes(&parts[i]);
        nib__text_format(&header, "],\"data_offsets\":[%zu,%zu]}", at, at + bytes);
        assert_true(at + bytes <= sizeof data);
        if (parts[i].data != NULL)
            memcpy(data + at, parts[i].data, bytes);
        at += bytes;
    }
    nib__text_str(&header, "}");
    make_directory(m->dir);
    write_safetensors(m->dir, "model.safetensors", header.at, data, at);
    if (config != NULL)
        write_text(m->dir, "config.json", config);
    nib__text_free(&header);
    return nib__checkpoint_open(&m->cp, m->dir, &m->allocator, &m->err);
}

static inline nib_status make_checkpoint(made *m, const char *config, const part *parts,
                                         size_t count)
{
    return make_described(m, NULL, config, parts, count);
}

/* Like make_described, but opening must succeed. */
static inline void open_parts(made *m, const char *metadata, const part *parts, size_t count)
{
    if (make_described(m, metadata, NULL, parts, count) != NIB_OK)
        fail_msg("%s", m->err.text);
}

static inline void drop_checkpoint(made *m)
{
    nib__checkpoint_close(m->cp);
    drop_directory(m->dir);
}

/* A scheme's description, escaped as a member of __metadata__. */
static inline void describe_nibble(char out[1024], const char *scheme, int64_t n, int64_t k)
{
    const nib_allocator a = nib__allocator_default();
    nib_scheme s;
    nib_text text, member;
    nib_jsonw w;
    nib__text_init(&text, &a);
    nib__text_init(&member, &a);
    assert_int_equal(nib__scheme_parse(&s, scheme, strlen(scheme), NULL), NIB_OK);
    nib__write_nibble.describe(&text, &(nib_output_weight){.scheme = s, .n = n, .k = k});
    nib__jsonw_init(&w, &member, 0);
    nib__jsonw_string(&w, text.at);
    snprintf(out, 1024, "\"nibble\":\"1\",\"m.weight\":%s", member.at);
    nib__text_free(&text);
    nib__text_free(&member);
}

/* Whichever allocation fails, opening a checkpoint and reading its weights returns NIB_NO_MEMORY or
 * what it returns with memory, and leaks nothing. */
static inline void check_memory_of_reading(const char *path)
{
    nib_status with_memory = NIB_OK;
    bool failed = false;
    for (int left = -1; left <= 0 || failed; left++) { /* at first nothing fails */
        failing f = {left, 0};
        const nib_allocator a = failing_allocator(&f);
        nib_checkpoint *cp = NULL;
        nib_err err;
        nib_status status = nib__checkpoint_open(&cp, path, &a, &err);
        for (size_t i = 0; status == NIB_OK && i < nib__checkpoint_module_count(cp); i++) {
            nib_weight w;
            status =
                nib__checkpoint_weight(&w, NULL, cp, nib__checkpoint_module(cp, i), NULL, &err);
        }
        nib__checkpoint_close(cp);
        assert_int_equal(f.live, 0);
        failed = f.left == 0;
        if (left < 0)
            with_memory = status;
        else if (status != with_memory)
            assert_true(failed && status == NIB_NO_MEMORY);
    }
}

/* Expects this status from reading the weight of module m. */
static inline void expect_weight(const made *m, nib_status status)
{
    nib_weight w = {.n = -7};
    nib_err err = {NIB_OK, ""};
    const nib_status got = nib__checkpoint_weight(&w, NULL, m->cp, "m", NULL, &err);
    if (status != NIB_OK)
        refused(status, got, &err);
    else if (got != NIB_OK)
        fail_msg("%s", err.text);
    if (got != NIB_OK)
        assert_int_equal(w.n, -7); /* untouched */
}

/* Expects this status from opening the checkpoint and reading module m. */
static inline void expect_module(const char *config, const part *parts, size_t count,
                                 nib_status status)
{
    made m;
    nib_weight w = {.n = -7};
    nib_status got = make_checkpoint(&m, config, parts, count);
    if (got == NIB_OK) {
        got = nib__checkpoint_weight(&w, NULL, m.cp, "m", NULL, &m.err);
        if (got == NIB_OK)
            got = nib__weight_check_codes(&w, "m", &m.err);
        else
            assert_int_equal(w.n, -7); /* untouched */
    }
    if (status != NIB_OK)
        refused(status, got, &m.err);
    else if (got != NIB_OK)
        fail_msg("%s", m.err.text);
    check_memory_of_reading(m.dir);
    drop_checkpoint(&m);
}

/* Replaces the part at index `at` (name NULL: leaves it out). */
typedef struct change {
    size_t at;
    part by;
    nib_status status;
} change;

static inline void expect_changes(const char *config, const part *parts, size_t count,
                                  const change *changes, size_t change_count)
{
    part changed[12];
    assert_true(count <= COUNT(changed));
    expect_module(config, parts, count, NIB_OK);
    for (size_t i = 0; i < change_count; i++) {
        memcpy(changed, parts, count * sizeof *parts);
        changed[changes[i].at] = changes[i].by;
        expect_module(config, changed, count, changes[i].status);
    }
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: checkpoints made of listed tensors in a directory that vanishes, with a config.json
 * or none.
 */
#ifndef NIB_CHECKPOINT_BUILD_H
#define NIB_CHECKPOINT_BUILD_H

#include "checkpoint.h"
#include "safetensors_build.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

typedef struct part {
    const char *name, *type; /* name NULL: left out */
    int rank;
    int64_t shape[4];
    const void *data; /* NULL: zeros */
} part;

typedef struct made {
    char dir[256];
    nib_allocator allocator;
    nib_checkpoint *cp; /* NULL: not opened */
    nib_err err;
} made;

static inline size_t part_bytes(const part *p)
{
    size_t bits = (size_t)nib__type_bits(nib__type_find(p->type, strlen(p->type)));
    for (int i = 0; i < p->rank; i++)
        bits *= (size_t)p->shape[i];
    return bits / 8;
}

/* metadata: the members of __metadata__, or NULL; config: the text of config.json, or NULL. Opens;
 * what fails is left in m->err. */
static inline nib_status make_described(made *m, const char *metadata, const char *config,
                                        const part *parts, size_t count)
{
    nib_text header;
    static uint8_t data[1 << 16];
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
            nib__text_format(&header, "%s%d", d == 0 ? "" : ",", (int)parts[i].shape[d]);
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

static inline void drop_checkpoint(made *m)
{
    nib__checkpoint_close(m->cp);
    drop_directory(m->dir);
}

#endif

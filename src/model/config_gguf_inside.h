/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a reader of GGUF keys, and which part reads RoPE. Private to config_gguf.c and
 * config_gguf_rope.c.
 */
#ifndef NIB_CONFIG_GGUF_INSIDE_H
#define NIB_CONFIG_GGUF_INSIDE_H

#include "config_gguf.h"

#include "gguf.h"

#include <stdio.h>

typedef struct nib_gguf_reader {
    nib_config *c;
    const nib_checkpoint *cp;
    const nib_gguf *g;
    nib_arena *arena;
    nib_ledger *ledger;
    nib_err *err;
    const char *arch; /* as the file spells it */
    char key[128];    /* the last key looked up */
} nib_gguf_reader;

/* Formats ARCH.name into the reader's buffer. */
NIB_INLINE const char *nib__gguf_key(nib_gguf_reader *r, const char *name)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch, name);
    return r->key;
}

NIB_INLINE bool nib__gguf_text_is(const char *text, size_t size, const char *want)
{
    return strlen(want) == size && memcmp(text, want, size) == 0;
}

#define NIB_GGUF_YARN_LOG "rope.scaling.yarn_log_multiplier"

/* Reads the kind of RoPE, its scaling and its divisors, after the sizes of heads. */
nib_status nib__gguf_read_rope(nib_gguf_reader *r);
/* Sets which layers use RoPE. GGUF has no key for this, so llama.cpp goes by the family. */
nib_status nib__gguf_fill_rope_layers(nib_gguf_reader *r);
/* Whether nib__gguf_read_rope reads this key, without its architecture, although most models may
 * only have its usual value. */
bool nib__gguf_is_of_rope(const nib_config *c, const char *name);

#endif

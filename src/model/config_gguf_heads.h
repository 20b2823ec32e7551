/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF keys of families whose layers without a window may have heads of their own.
 */
#ifndef NIB_CONFIG_GGUF_HEADS_H
#define NIB_CONFIG_GGUF_HEADS_H

#include "config.h"

#include "gguf.h"

/* Whether the key has the numbers of heads of all layers, which also tell which keep a state. */
bool nib__gguf_lists_heads(const nib_config *config, const nib_gguf *gguf, const char *key);
/* Whether a key, without its architecture, is read here for the family. */
bool nib__gguf_is_of_heads(const nib_config *config, const char *name);
/* Reads the widths of heads, and numbers of heads if each layer has its own; config->head_dim is
 * that of attention.key_length. Families without such layers: nothing. */
nib_status nib__gguf_read_heads(nib_config *config, const nib_gguf *gguf, const char *arch,
                                nib_err *err);

#endif

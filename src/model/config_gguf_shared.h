/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF keys of families whose last layers may share keys and values, and whose layers may have
 * inputs of their own.
 */
#ifndef NIB_CONFIG_GGUF_SHARED_H
#define NIB_CONFIG_GGUF_SHARED_H

#include "checkpoint.h"
#include "config.h"

#include "gguf.h"

/* Whether the key has the width of the MLP of each layer. */
bool nib__gguf_lists_widths(const nib_config *config, const nib_gguf *gguf, const char *key);
/* Reads how many layers share keys and values, and these widths, if there are any: sets
 * shared_layers, ffn and wide_mlp of config. */
nib_status nib__gguf_read_widths(nib_config *config, const nib_gguf *gguf, const char *arch,
                                 nib_err *err);
/* Sets the number of rows of the table of inputs of layers, which only its tensor tells. */
void nib__gguf_read_layer_table(nib_config *config, const nib_checkpoint *checkpoint);
/* Whether readers take the keys and values of the layers that nib__config_kv_layer names: llama.cpp
 * takes the last layer before the shared ones without a window, and the one before it with one. */
bool nib__gguf_shared_match(const nib_config *config);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Module names: Hugging Face's, which Nibble uses, and Meta's, which torchtitan, torchchat and
 * gpt-fast use for the same layers ("layers.3.attention.wq" is "model.layers.3.self_attn.q_proj").
 */
#ifndef NIB_ALIAS_H
#define NIB_ALIAS_H

#include "base.h"

/* Translates a module or tensor name; a suffix such as ".weight" stays. False: the name has no
 * other spelling, or it does not fit; out is then untouched. */
bool nib__alias_to_meta(char *out, size_t size, const char *name);
bool nib__alias_from_meta(char *out, size_t size, const char *name);

#endif

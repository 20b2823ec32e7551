/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints as named tensor views: a safetensors file, a sharded set with an index, a Hugging
 * Face directory, a PyTorch zip file, or a GGUF file with all its parts. Files are mapped
 * read-only; open enforces every rule of the format. Also finds the plain or prequantized weight
 * of a module, whatever dialect stores it.
 */
#ifndef NIB_CHECKPOINT_H
#define NIB_CHECKPOINT_H

#include "file.h"
#include "json.h"
#include "ledger.h"
#include "pool.h"
#include "quantization.h"
#include "scheme.h"
#include "tensor.h"

typedef struct nib_checkpoint nib_checkpoint;

nib_status nib__checkpoint_open(nib_checkpoint **out, const char *path, const nib_allocator *a,
                                nib_err *err);
/* The same to read a draft head that is stored as a layer after the model's: latent attention is
 * split there, too. Else such layers stay as stored. */
nib_status nib__checkpoint_open_draft(nib_checkpoint **out, const char *path,
                                      const nib_allocator *a, nib_err *err);
void nib__checkpoint_close(nib_checkpoint *cp);
/* Sets the workers that check scales and zeros. NULL, the default: the calling thread checks. */
void nib__checkpoint_use_pool(nib_checkpoint *cp, nib_pool *pool);

/* Returns `status`, the result of reading the tensors, or NIB_IO naming a file that another process
 * wrote to since open (see nib__map_read). Call it before handing out results computed from the
 * files. */
nib_status nib__checkpoint_check_files(const nib_checkpoint *cp, nib_status status, nib_err *err);

const char *nib__checkpoint_path(const nib_checkpoint *cp); /* as given */
const char *nib__checkpoint_directory(
    const nib_checkpoint *cp); /* directory of config.json; NULL: a single file without one */
uint64_t nib__checkpoint_bytes(const nib_checkpoint *cp);
size_t nib__checkpoint_file_count(const nib_checkpoint *cp);
const nib_map *nib__checkpoint_file(const nib_checkpoint *cp, size_t i);
size_t nib__checkpoint_count(const nib_checkpoint *cp);
const nib_tensor *nib__checkpoint_at(const nib_checkpoint *cp, size_t i); /* in file order */
const nib_tensor *nib__checkpoint_find(const nib_checkpoint *cp,
                                       const char *name); /* follows aliases; may be NULL */
/* Whether the tensor holds rotary frequencies, which some containers store and others leave to the
 * config. */
bool nib__is_rotary_table(const char *name);
/* Whether the tensor makes the keys or values of decoder layer `first` or a later one. */
bool nib__makes_keys(const char *name, int64_t first);
/* LongRoPE factors in a GGUF. */
#define NIB_GGUF_ROPE_SHORT "rope_factors_short.weight"
#define NIB_GGUF_ROPE_LONG "rope_factors_long.weight"
size_t nib__checkpoint_meta_count(const nib_checkpoint *cp);
const nib_meta *nib__checkpoint_meta_at(const nib_checkpoint *cp, size_t i);
const nib_meta *nib__checkpoint_alias(const nib_checkpoint *cp, const char *name); /* NULL: none */

/* Reads the weight of linear (or embedding) `module` ("model.layers.0.self_attn.q_proj"), and its
 * bias if stored. Records conversions that change values in `ledger` (NULL allowed). Checks names,
 * lengths, types and ranges; errors name the tensor. If the weight is missing, sets *found = false,
 * or returns NIB_BAD_INPUT if found is NULL. */
nib_status nib__checkpoint_weight(nib_weight *out, bool *found, const nib_checkpoint *cp,
                                  const char *module, nib_ledger *ledger, nib_err *err);
/* Reads only the bias of a module. *weight has its other members set (an int32 bias needs them), or
 * only n. Without a bias, *weight is unchanged. */
nib_status nib__checkpoint_bias(nib_weight *weight, const nib_checkpoint *cp, const char *module,
                                nib_ledger *ledger, nib_err *err);
/* Length of the module name at the start of the name of tensor i (of nib__checkpoint_at), if a
 * weight that was read so far uses the tensor as codes, scale or bias. 0: no weight used it. */
size_t nib__checkpoint_owner(const nib_checkpoint *cp, size_t i);
/* Returns NIB_BAD_INPUT with row, column and value for a NaN or infinity, or an int4 code (stored
 * in a byte) outside -8 to 7. This reads every code, so nib__checkpoint_weight does not do it:
 * callers that pack or run a weight call it once for every row. */
nib_status nib__weight_check_rows(const nib_weight *w, int64_t first, int64_t count, nib_err *err);
/* Checks all rows; errors begin with "MODULE.weight". */
nib_status nib__weight_check_codes(const nib_weight *w, const char *module, nib_err *err);
/* All modules with a weight of rank 2, in file order: for recipes and info. */
size_t nib__checkpoint_module_count(const nib_checkpoint *cp);
const char *nib__checkpoint_module(const nib_checkpoint *cp, size_t i);
/* The text of quantization_config in config.json next to the file or in its directory; NULL: none.
 */
const char *nib__checkpoint_quantization(const nib_checkpoint *cp);
/* The file format: "safetensors", "pytorch" or "gguf". */
const char *nib__checkpoint_container(const nib_checkpoint *cp);
/* The key/values of a GGUF file, or of its first part; NULL: another format, or cp is NULL. */
const nib_gguf *nib__checkpoint_gguf(const nib_checkpoint *cp);
/* Where the model is described, for messages: "config.json", "params.json" or "its metadata". */
const char *nib__checkpoint_config_name(const nib_checkpoint *cp);
/* Hyperparameters of a file with Meta's names: the text of params.json next to it, or the same
 * members stored in the file. NULL: unknown, or a file without Meta's names. */
const char *nib__checkpoint_params(const nib_checkpoint *cp);
/* Lets the system drop pages of a mapped file until they are read again. Memory outside the mapped
 * files is not touched. */
void nib__checkpoint_release(const nib_checkpoint *cp, const void *at, uint64_t size);
/* The same for rows first..first+count of a weight, when rows are read in order. If the rows are
 * not contiguous in the file, all of them are released with the last. */
void nib__checkpoint_release_rows(const nib_checkpoint *cp, const nib_weight *w, int64_t first,
                                  int64_t count);
/* The same for its scales and zeros, after they were checked or packed. */
void nib__checkpoint_release_values(const nib_checkpoint *cp, const nib_weight *w);
/* nib__measure_f64_to_f32_error of values in the files; releases pages after reading them. */
double nib__checkpoint_f64_change(const nib_checkpoint *cp, const void *values, int64_t count);
/* The parsed quantization_config; NULL: none. */
const nib_quantization *nib__checkpoint_coding(const nib_checkpoint *cp);
/* Notes entries of q's lists of modules that name none of the modules. */
nib_status nib__checkpoint_note_unmatched(nib_ledger *to, const nib_quantization *q,
                                          const char *const *modules, size_t count,
                                          nib_arena *arena, nib_err *err);
/* Settings: requests of the files that are not followed exactly, and files that are not read.
 * Notes: oddities that open accepted, such as a wrong total_size. */
const nib_ledger *nib__checkpoint_ledger(const nib_checkpoint *cp);
/* Adds a note to the ledger. */
nib_status nib__checkpoint_add_note(nib_checkpoint *cp, const char *note, nib_err *err);
/* Which weights are stored fused in one tensor: bits of fused.h. */
unsigned nib__checkpoint_fused(const nib_checkpoint *cp);
/* Whether the names of the text model begin otherwise here, as in a model with images. */
bool nib__checkpoint_prefixed(const nib_checkpoint *cp);
/* Number of stacks of experts in the checkpoint, if other programs expect stacks of this model. */
size_t nib__checkpoint_stacks(const nib_checkpoint *cp);
/* Name of the dialect that stores the module's weight, from the table in weight.c; NULL: none. */
const char *nib__checkpoint_dialect(const nib_checkpoint *cp, const char *module);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints: files <-> named tensor views. A safetensors file, a sharded set with an index, a
 * Hugging Face directory, or a GGUF file (all its parts), mapped read-only; every rule of the
 * format is enforced before open returns. Also finds the plain or prequantized weight of a module,
 * whatever dialect stores it.
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
void nib__checkpoint_close(nib_checkpoint *cp);
/* Workers that look at scales and zeros from now on; NULL, as at first: only whoever asks for a
 * weight. */
void nib__checkpoint_use(nib_checkpoint *cp, nib_pool *pool);

/* What reading the tensors ended with, or NIB_IO naming a file that another process wrote to since
 * it was opened: see nib__map_read. For whoever has a result to give that came from the files. */
nib_status nib__checkpoint_read(const nib_checkpoint *cp, nib_status status, nib_err *err);

const char *nib__checkpoint_path(const nib_checkpoint *cp); /* as given */
const char *nib__checkpoint_directory(
    const nib_checkpoint *cp); /* where config.json is or would be; NULL for a lone file without */
uint64_t nib__checkpoint_bytes(const nib_checkpoint *cp);
size_t nib__checkpoint_file_count(const nib_checkpoint *cp);
const nib_map *nib__checkpoint_file(const nib_checkpoint *cp, size_t i);
size_t nib__checkpoint_count(const nib_checkpoint *cp);
const nib_tensor *nib__checkpoint_at(const nib_checkpoint *cp, size_t i); /* in file order */
const nib_tensor *nib__checkpoint_find(const nib_checkpoint *cp,
                                       const char *name); /* follows aliases; may be NULL */
/* Rotary frequencies: one container stores them, and another's description of the model implies
 * them. */
bool nib__is_rotary_table(const char *name);
/* Longrope's factors in a GGUF. */
#define NIB_GGUF_ROPE_SHORT "rope_factors_short.weight"
#define NIB_GGUF_ROPE_LONG "rope_factors_long.weight"
size_t nib__checkpoint_meta_count(const nib_checkpoint *cp);
const nib_meta *nib__checkpoint_meta_at(const nib_checkpoint *cp, size_t i);
const nib_meta *nib__checkpoint_alias(const nib_checkpoint *cp, const char *name); /* NULL: none */

/* The weight of linear (or embedding) `module` ("model.layers.0.self_attn.q_proj"), with bias if
 * stored. Conversions that change values are said in `ledger` (NULL allowed). Names, lengths, types
 * and ranges are checked here and errors name the tensor. NIB_BAD_INPUT if it is absent; *found =
 * false instead when found is not NULL. */
nib_status nib__checkpoint_weight(nib_weight *out, bool *found, const nib_checkpoint *cp,
                                  const char *module, nib_ledger *ledger, nib_err *err);
/* Only the bias of a module: of *weight all else is given, for an int32 bias, or only n. Sets the
 * members of the bias, or leaves them. */
nib_status nib__checkpoint_bias(nib_weight *weight, const nib_checkpoint *cp, const char *module,
                                nib_ledger *ledger, nib_err *err);
/* How much of the name of tensor i (of nib__checkpoint_at) is the module that it is a part of, as
 * far as weights were read: its codes, a scale, a bias. 0: none asked for it. */
size_t nib__checkpoint_owner(const nib_checkpoint *cp, size_t i);
/* Rows with a NaN or infinity, or with int4 codes outside of -8 to 7 where a byte could hold them,
 * are NIB_BAD_INPUT with row, column and value. This reads every code, so it is not part of the
 * call above: whoever packs or runs a weight calls it once for every row. */
nib_status nib__weight_check_rows(const nib_weight *w, int64_t first, int64_t count, nib_err *err);
/* All rows; "MODULE.weight" before the sentence. */
nib_status nib__weight_check_codes(const nib_weight *w, const char *module, nib_err *err);
/* Every module that has a weight of rank 2, in file order: for recipes and info. */
size_t nib__checkpoint_module_count(const nib_checkpoint *cp);
const char *nib__checkpoint_module(const nib_checkpoint *cp, size_t i);
/* The text of config.json's quantization_config, beside the file or in its directory; NULL: none.
 */
const char *nib__checkpoint_quantization(const nib_checkpoint *cp);
/* What kind of file the tensors lie in: "safetensors", "pytorch" or "gguf". */
const char *nib__checkpoint_container(const nib_checkpoint *cp);
/* The key/values of a GGUF file, of its first part if there are several; NULL: another format, or
 * cp is NULL. */
const nib_gguf *nib__checkpoint_gguf(const nib_checkpoint *cp);
/* Where it is said what the weights should be, in sentences: "config.json", or "its metadata". */
const char *nib__checkpoint_described(const nib_checkpoint *cp);
/* How the model of a file with Meta's names was built: the text of the params.json beside it, or of
 * what the file keeps itself under those names; NULL: not known, or another kind of file. */
const char *nib__checkpoint_params(const nib_checkpoint *cp);
/* Pages of a mapped file that may be given back until they are read again; what lies elsewhere is
 * left alone. */
void nib__checkpoint_release(const nib_checkpoint *cp, const void *at, uint64_t size);
/* The same for rows first..first+count of a weight, which are read in their order: of rows that do
 * not lie one after the other all go with the last. */
void nib__checkpoint_release_rows(const nib_checkpoint *cp, const nib_weight *w, int64_t first,
                                  int64_t count);
/* The same for its scales and zeros, once they were looked at or packed. */
void nib__checkpoint_release_values(const nib_checkpoint *cp, const nib_weight *w);
/* nib__f64_change of values that lie in the files, however many: pages are let go of as they are
 * read. */
double nib__checkpoint_f64_change(const nib_checkpoint *cp, const void *values, int64_t count);
/* What config.json says of the quantization; NULL: nothing. */
const nib_quantization *nib__checkpoint_coding(const nib_checkpoint *cp);
/* Settings: what its files ask for and is not done exactly so, and files that are not read. Notes:
 * what open noticed and did not refuse, such as a total_size that lies. */
const nib_ledger *nib__checkpoint_ledger(const nib_checkpoint *cp);
/* One more note. */
nib_status nib__checkpoint_add_note(nib_checkpoint *cp, const char *note, nib_err *err);
/* Which weights are stored as one tensor, and are read as parts of it: bits of fused.h. */
unsigned nib__checkpoint_fused(const nib_checkpoint *cp);
/* Which dialect stores the module's weight, by its name in weight.c; NULL: none does. */
const char *nib__checkpoint_dialect(const nib_checkpoint *cp, const char *module);

#endif

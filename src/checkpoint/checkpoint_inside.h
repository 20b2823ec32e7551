/* SPDX-License-Identifier: Apache-2.0
 *
 * What an open checkpoint is inside, for the files of this folder: checkpoint_open.c and
 * checkpoint.c fill it, weight.c and the dialects read it.
 */
#ifndef NIB_CHECKPOINT_INSIDE_H
#define NIB_CHECKPOINT_INSIDE_H

#include "checkpoint.h"
#include "name_index.h"

struct nib_checkpoint {
    nib_allocator allocator;
    nib_pool *pool; /* of nib__checkpoint_use, or NULL */
    nib_arena arena;
    const char *path, *directory, *beside; /* beside: of the file, with or without a config.json */
    nib_map *maps;                         /* [file_count] */
    const char **files;                    /* [file_count] paths */
    int file_count;
    const nib_tensor **tensors; /* [count], by file, then by place */
    size_t count;
    nib_name_index by_name;
    const nib_meta **metas; /* [meta_count], keys unique */
    size_t meta_count;
    nib_name_index by_key;
    const char **modules; /* [module_count] */
    size_t module_count;
    nib_ledger ledger; /* what its files ask for and is not done, as settings */
    uint64_t bytes;
    const char *container;    /* "safetensors", "pytorch", "gguf": what the files are */
    bool nibble;              /* __metadata__ says that the file is of our own dialect */
    const char *quantization; /* config.json's quantization_config as text, or NULL */
    const char *method;       /* its quant_method ("gptq"), or NULL */
    const nib_gguf *gguf;     /* of the first file, or NULL */
    nib_quantization *coding; /* what it says, or NULL */
    bool grouped_scales;      /* a tensor M.scales has several columns, or an M.zeros is there: the
                                 8da4w state dict */
    /* A file with Meta's names (see rotary.h): how the model was built, as the text of a
     * params.json, or NULL. Of it and of GGUF's llama: the width of a head whose rows of q and k
     * are in pairs, 0 if none are, -1 if it is not known; and where the first paired_count rows are
     * stored. */
    bool meta_names, has_config; /* has_config: a config.json stands beside it */
    const char *params;
    int64_t paired, paired_count;
    int32_t *paired_rows;
    int64_t heads, kv_heads; /* of fused weights (fused.h), as the config says; 0: it does not */
    unsigned fused;          /* which weights were stored so */
    /* Buffers that replace stored bytes where a view cannot serve (scalars aligned, orders of
     * columns and biases of rows in another order): [count] by tensor, made once and kept; never
     * whole weights or their scales. Reachable through a const checkpoint. */
    void **copies;
    size_t *copy_sizes; /* [count] their bytes */
    nib_arena *copy_arena;
    /* [count] by tensor: the length of its name's beginning that is the module whose weight was
     * read from it, or 0. Reachable likewise. */
    size_t *owners;
};

/* Opens the files of cp->path: maps, tensors, metadata and all that follows from names. */
nib_status nib__checkpoint_open_path(nib_checkpoint *cp, nib_err *err);
nib_status nib__checkpoint_no_memory(nib_err *err, const char *path);

/* ---- shared by the dialects ---- */

/* What a dialect is asked for: the module, where its values go, where conversions are told. */
typedef struct nib_weight_query {
    const nib_checkpoint *cp;
    const char *module;
    char shown[NIB_SHOWN]; /* the module, safe for messages */
    nib_weight *out;
    nib_ledger *ledger; /* NULL allowed */
    nib_err *err;
} nib_weight_query;

/* The tensor module + suffix, or NULL. Stored under this name, it becomes the module's: see
 * nib__checkpoint_owner. Several modules may share one, of which the others have aliases. */
const nib_tensor *nib__weight_part(const nib_weight_query *q, const char *suffix);
/* "module.suffix: sentence". */
nib_status nib__weight_fail(const nib_weight_query *q, nib_status status, const char *suffix,
                            const char *format, ...) NIB_PRINTF(4, 5);
/* Fails unless the tensor has this type (NONE: any) and shape. suffix names it in messages. */
nib_status nib__weight_expect(const nib_weight_query *q, const char *suffix,
                              const nib_tensor *tensor, nib_type type, int rank,
                              const int64_t *shape);
/* A ledger line about a part, if there is a ledger. */
void nib__weight_say(const nib_weight_query *q, const char *suffix, const char *asked,
                     const char *done, double max_rel_change, const char *reason);
/* `size` zeroed bytes that replace the tensor's, or those made before (*fresh = false). NULL: no
 * memory, or made with another size, for a module that takes the tensor as something else. */
void *nib__checkpoint_copy(const nib_checkpoint *cp, const nib_tensor *tensor, size_t size,
                           bool *fresh);

/* Checks the scales and zeros that a dialect has placed in out with their strides: float types,
 * finite in f32; integer zeros within the codes' range. f64 scales become a ledger line; integer
 * zeros that are all 0 become NIB_ZERO_NONE. The suffixes name the tensors in messages. */
nib_status nib__weight_check_scales(const nib_weight_query *q, const char *suffix);
nib_status nib__weight_check_zeros(const nib_weight_query *q, const char *suffix);
/* The part of it for integer zeros, which takes whole numbers stored as floats, too. */
nib_status nib__weight_check_int_zeros(const nib_weight_query *q, const char *suffix);
/* The first of k values of 1, 2 or 4 bytes whose masked bits are `bad`, or k. */
int64_t nib__find_bits(const uint8_t *row, int64_t k, int bytes, uint32_t mask, uint32_t bad);
/* All values finite once they are f32. `what` is "scale", "zero point", "bias" or "bias scale". */
nib_status nib__weight_check_finite(const nib_weight_query *q, const char *suffix,
                                    const void *values, nib_type type, int64_t count,
                                    const char *what);
/* Tells that f64 values are used as f32. */
void nib__weight_say_f64(const nib_weight_query *q, const char *suffix, const void *values,
                         int64_t count);
/* The module's bias in whatever form, once the rest of q->out is read: weight_bias.c. */
nib_status nib__weight_take_bias(const nib_weight_query *q);
/* input_scale and its zero as aligned values: one finite, positive scale. zero may be NULL. */
nib_status nib__weight_take_static(const nib_weight_query *q, const char *scale, const char *zero);

/* True, with the status, if tensors beside the module are those of a tool that no dialect reads. */
bool nib__weight_fail_foreign(const nib_weight_query *q, nib_status *status);

/* The entry of __metadata__ under module + suffix, or NULL. */
const nib_meta *nib__weight_meta(const nib_weight_query *q, const char *suffix);

/* How weights of one dialect are known and read; the rows are in weight.c, which asks them in
 * order. */
typedef struct nib_dialect_reader {
    const char *name;  /* "torchao" */
    const char *codes; /* the suffix of the tensor that holds the codes: "._weight_qdata" */
    /* True if the module's weight is of this dialect; its codes are there. NULL: always. */
    bool (*claims)(const nib_weight_query *q, const nib_tensor *codes);
    nib_status (*read)(const nib_weight_query *q); /* all of q->out but the bias */
} nib_dialect_reader;

/* The names of the dialects that are read, in the order in which they are asked; NULL past the
 * last. */
const char *nib__dialect_reader_at(size_t i);
/* The length of the module's name if the tensor holds the codes of a weight in any dialect; or 0.
 */
size_t nib__module_size(const nib_tensor *tensor);

nib_status nib__weight_torchao(const nib_weight_query *q);
nib_status nib__weight_nibble(const nib_weight_query *q);
nib_status nib__weight_compressed(const nib_weight_query *q);
bool nib__weight_is_compressed(const nib_weight_query *q, const nib_tensor *codes);
nib_status nib__weight_gptq(const nib_weight_query *q);
bool nib__weight_is_gptq(const nib_weight_query *q, const nib_tensor *codes);
nib_status nib__weight_awq(const nib_weight_query *q);
bool nib__weight_is_awq(const nib_weight_query *q, const nib_tensor *codes);
nib_status nib__weight_fp8(const nib_weight_query *q);
bool nib__weight_is_fp8(const nib_weight_query *q, const nib_tensor *codes);
nib_status nib__weight_mxfp4(const nib_weight_query *q);
/* Adds a tensor that is a view of what the files hold. NIB_NO_MEMORY: it is NULL, because memory
 * ran out; NIB_BAD_INPUT: the checkpoint has a tensor of that name. */
nib_status nib__checkpoint_add_view(nib_checkpoint *cp, const nib_tensor *t, nib_err *err);
/* Puts a view for each expert in the place of stacked tensors (dialect_mxfp4.c). */
nib_status nib__experts_split(nib_checkpoint *cp, nib_err *err);
bool nib__weight_is_gguf(const nib_weight_query *q, const nib_tensor *codes);
nib_status nib__weight_gguf(const nib_weight_query *q);
/* The state dicts of PyTorch programs: dialect_8da4w.c and dialect_gptfast.c. */
bool nib__checkpoint_has_groups(const nib_checkpoint *cp); /* for grouped_scales */
nib_status nib__weight_8da4w(const nib_weight_query *q);
bool nib__weight_is_8da4w(const nib_weight_query *q, const nib_tensor *codes);
nib_status nib__weight_gptfast(const nib_weight_query *q);
bool nib__weight_is_gptfast(const nib_weight_query *q, const nib_tensor *codes);

#endif

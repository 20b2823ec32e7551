/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct behind nib_checkpoint, private to this folder: checkpoint_open.c and checkpoint.c fill
 * it, weight.c and the dialects read it.
 */
#ifndef NIB_CHECKPOINT_INSIDE_H
#define NIB_CHECKPOINT_INSIDE_H

#include "checkpoint.h"
#include "name_index.h"

struct nib_checkpoint {
    nib_allocator allocator;
    nib_pool *pool; /* of nib__checkpoint_use_pool, or NULL */
    nib_arena arena;
    const char *path, *directory, *beside; /* beside: the file's directory, even without a config */
    nib_map *maps;                         /* [file_count] */
    const char **files;                    /* [file_count] paths */
    int file_count;
    const nib_tensor **tensors; /* [count] sorted by file, then by offset */
    size_t count;
    nib_name_index by_name;
    const nib_meta **metas; /* [meta_count], keys unique */
    size_t meta_count;
    nib_name_index by_key;
    const char **modules; /* [module_count] */
    size_t module_count;
    nib_ledger ledger; /* see nib__checkpoint_ledger */
    uint64_t bytes;
    const char *container;    /* file format: "safetensors", "pytorch", "gguf" */
    bool nibble;              /* __metadata__ marks the file as nibble's dialect */
    const char *quantization; /* config.json's quantization_config as text, or NULL */
    const char *method;       /* its quant_method ("gptq"), or NULL */
    const nib_gguf *gguf;     /* of the first file, or NULL */
    nib_quantization *coding; /* quantization_config, parsed, or NULL */
    bool grouped_scales;      /* some M.scales has several columns, or there is an M.zeros: the
                                 8da4w state dict */
    /* meta_names: the file has Meta's names (see rotary.h). params: hyperparameters as the text of
     * a params.json, or NULL. paired (also for GGUF's llama): width of a head whose rows of q and k
     * are stored in pairs, 0: none are, -1: unknown. paired_rows: where each row is stored. */
    bool meta_names, has_config; /* has_config: there is a config.json next to it */
    const char *params;
    int64_t paired, paired_count;
    int32_t *paired_rows;
    int64_t heads, kv_heads;     /* to split fused weights (fused.h), from the config; 0: unknown */
    int64_t nope, value, layers; /* to split kv_b_proj (latent.h), likewise */
    bool for_draft;              /* opened by nib__checkpoint_open_draft */
    unsigned fused;              /* which weights were stored fused: bits of fused.h */
    size_t stacks;               /* see nib__checkpoint_stacks */
    const char *family;          /* model_type of the text model in config.json, or NULL */
    bool prefixed;               /* see nib__checkpoint_prefixed */
    bool alternate;              /* rows of gate and up take turns in the stacks of experts */
    const int32_t *even;         /* 0, 2, 4 and so on: where rows that take turns are stored */
    /* Buffers that replace stored bytes where a view will not do (aligned scalars, column orders,
     * biases of reordered rows): [count] by tensor, made once and kept; never whole weights or
     * scales. Writable through a const checkpoint. */
    void **copies;
    size_t *copy_sizes; /* [count] bytes */
    nib_arena *copy_arena;
    /* [count] by tensor: see nib__checkpoint_owner. Writable through a const checkpoint. */
    size_t *owners;
};

/* Opens the files of cp->path: fills maps, tensors and metadata, and translates names. */
nib_status nib__checkpoint_open_path(nib_checkpoint *cp, nib_err *err);
nib_status nib__checkpoint_no_memory(nib_err *err, const char *path);

/* ---- shared by the dialects ---- */

/* A request to a dialect: read the weight of `module` into `out`. */
typedef struct nib_weight_query {
    const nib_checkpoint *cp;
    const char *module;
    char shown[NIB_SHOWN]; /* the module, escaped for messages */
    nib_weight *out;
    nib_ledger *ledger; /* NULL allowed */
    nib_err *err;
} nib_weight_query;

/* The tensor named module + suffix, or NULL. Marks a tensor stored under this very name (not an
 * alias) as the module's: see nib__checkpoint_owner. */
const nib_tensor *nib__weight_part(const nib_weight_query *q, const char *suffix);
/* Fails with "module.suffix: sentence". */
nib_status nib__weight_fail(const nib_weight_query *q, nib_status status, const char *suffix,
                            const char *format, ...) NIB_PRINTF(4, 5);
/* Fails unless the tensor has this type (NONE: any) and shape. suffix: its name in messages. */
nib_status nib__weight_expect(const nib_weight_query *q, const char *suffix,
                              const nib_tensor *tensor, nib_type type, int rank,
                              const int64_t *shape);
/* Fails unless the tensor, which is not NULL, has this type and is a matrix with at least one
 * element. */
nib_status nib__weight_expect_matrix(const nib_weight_query *q, const char *suffix,
                                     const nib_tensor *tensor, nib_type type);
/* Adds a ledger line about a tensor, if there is a ledger. */
void nib__weight_report(const nib_weight_query *q, const char *suffix, const char *asked,
                        const char *done, double max_rel_change, const char *reason);
/* A buffer of `size` bytes that replaces the tensor's bytes: new and zeroed (*fresh), or the one
 * made earlier. NULL: out of memory, or it was made with another size for a module that reads the
 * tensor differently. */
void *nib__checkpoint_copy(const nib_checkpoint *cp, const nib_tensor *tensor, size_t size,
                           bool *fresh);

/* Check the scales and zeros in q->out: a float type, finite in f32; integer zeros within the range
 * of the codes. f64 values get a ledger line; integer zeros that are all 0 become NIB_ZERO_NONE.
 * suffix: the tensor's name in messages. */
nib_status nib__weight_check_scales(const nib_weight_query *q, const char *suffix);
nib_status nib__weight_check_zeros(const nib_weight_query *q, const char *suffix);
/* The part of nib__weight_check_zeros for integer zeros; also accepts integers stored as floats. */
nib_status nib__weight_check_int_zeros(const nib_weight_query *q, const char *suffix);
/* Index of the first of k values of 1, 2 or 4 bytes in which all bits of the mask are set, or k. */
int64_t nib__find_bits(const uint8_t *row, int64_t k, int bytes, uint32_t mask);
/* Fails unless all values are finite in f32. what: "scale", "zero point", "bias", "bias scale". */
nib_status nib__weight_check_finite(const nib_weight_query *q, const char *suffix,
                                    const void *values, nib_type type, int64_t count,
                                    const char *what);
/* Adds a ledger line that f64 values are used as f32. */
void nib__weight_report_f64(const nib_weight_query *q, const char *suffix, const void *values,
                            int64_t count);
/* Reads the module's bias in any form, after the rest of q->out: weight_bias.c. */
nib_status nib__weight_read_bias(const nib_weight_query *q);
/* Sets q->out->bias to a copy of a float bias in which value i is value rows[i] of the file. */
nib_status nib__weight_order_bias(const nib_weight_query *q, const nib_tensor *bias,
                                  const int32_t *rows);
/* Reads a static activation scale (one finite, positive value) and its zero point into aligned
 * buffers. zero: suffix, or NULL. */
nib_status nib__weight_read_static(const nib_weight_query *q, const char *scale, const char *zero);

/* If the module's tensors are of a tool that no dialect reads: true, and *status is the error. */
bool nib__weight_fail_unsupported(const nib_weight_query *q, nib_status *status);

/* The entry of __metadata__ under module + suffix, or NULL. */
const nib_meta *nib__weight_meta(const nib_weight_query *q, const char *suffix);

/* Reading by dialect: the functions of the rows in dialect_table.c. */
nib_status nib__weight_plain(const nib_weight_query *q);
bool nib__weight_is_stacked(const nib_weight_query *q, const nib_tensor *codes);
bool nib__weight_is_nibble(const nib_weight_query *q, const nib_tensor *codes);
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
nib_status nib__weight_modelopt(const nib_weight_query *q);
bool nib__weight_is_modelopt(const nib_weight_query *q, const nib_tensor *codes);
/* Adds a tensor that is a view of stored data. NIB_NO_MEMORY: t is NULL, so that callers need not
 * check; NIB_BAD_INPUT: the checkpoint already has a tensor of that name. */
nib_status nib__checkpoint_add_view(nib_checkpoint *cp, const nib_tensor *t, nib_err *err);
/* Empties the list of tensors, or of metadata, and makes room for `count`. */
nib_status nib__checkpoint_clear_tensors(nib_checkpoint *cp, size_t count, nib_err *err);
nib_status nib__checkpoint_clear_metas(nib_checkpoint *cp, size_t count, nib_err *err);
/* After the list of tensors has changed: lists the modules, and makes room by tensor. */
nib_status nib__checkpoint_index(nib_checkpoint *cp, nib_err *err);
/* Adds the entry of the metadata under another key; the first entry under a key stays. */
nib_status nib__checkpoint_add_meta(nib_checkpoint *cp, const nib_meta *meta, const char *key,
                                    nib_err *err);
bool nib__weight_is_gguf(const nib_weight_query *q, const nib_tensor *codes);
nib_status nib__weight_gguf(const nib_weight_query *q);
/* State dicts of PyTorch programs: dialect_8da4w.c and dialect_gptfast.c. */
bool nib__checkpoint_has_groups(const nib_checkpoint *cp); /* computes grouped_scales */
nib_status nib__weight_8da4w(const nib_weight_query *q);
bool nib__weight_is_8da4w(const nib_weight_query *q, const nib_tensor *codes);
nib_status nib__weight_gptfast(const nib_weight_query *q);
bool nib__weight_is_gptfast(const nib_weight_query *q, const nib_tensor *codes);

#endif

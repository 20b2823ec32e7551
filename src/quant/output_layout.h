/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout of an output: which stored tensor becomes which written ones, under which names, in
 * which dialect. Nothing here reads the data. Private to quantize.
 */
#ifndef NIB_OUTPUT_LAYOUT_H
#define NIB_OUTPUT_LAYOUT_H

#include "name_index.h"
#include "stream.h"

/* Source of a layer and its form in the output. */
typedef struct nib_output_source {
    const nib_tensor *from;   /* stores the weight; the first of several */
    nib_weight weight;        /* recoded layers only */
    nib_quantizer quantizer;  /* quantized layers only */
    nib_output_weight stored; /* of both; its types fit the dialect once that is chosen */
    bool listed;              /* a rewrite for it is listed */
    size_t shares;   /* the layer that stores the same codes of the same tensor; SIZE_MAX: none */
    nib_weight bias; /* the whole weight if recoded, else only n and k; with the stored bias */
    nib_bias bias_form; /* as written */
    bool bias_listed;
} nib_output_source;

typedef struct nib_output_layout {
    const nib_quantize_job *job;
    nib_ledger *ledger;
    nib_err *err;
    nib_arena arena;
    nib_dialect dialect;
    nib_writer *writer;
    nib_rewrite *rewrites; /* [count] in source order */
    size_t count, capacity;
    nib_output_source *sources; /* [job->count] */
    size_t *lines;              /* [job->count]: index of ledger lines, whose array may move */
    const char **names;         /* weights that the output's __metadata__ lists */
    size_t name_count, name_capacity;
    const char **separated; /* [separated_count]: names that shared a tensor in the source */
    size_t separated_count;
    const nib_quantize_layer **layers; /* [job->count], for by_name */
    nib_name_index by_name;
    size_t unit;
    size_t extras[NIB_EXTRAS]; /* indices in the writer */
    nib_text last_module;      /* module of the unit */
    bool directory;            /* the output is a directory */
    bool fuses;                /* write parts of fused weights as one tensor */
} nib_output_layout;

/* output_sources.c: finds the source of each layer and adds its ledger line. */
nib_status nib__output_sources_find(nib_output_layout *r);
/* The dialects of directories, that which most programs read first. */
enum { NIB_DIRECTORY_DIALECTS = NIB_ELSEWHERE + 1 };
extern const nib_dialect nib__directory_dialects[NIB_DIRECTORY_DIALECTS];
/* Chooses the dialect: the asked one, which must hold every layer; else the smallest of those of
 * directories that holds layers and biases as asked, or the first that is within 1 % of it. */
nib_status nib__output_sources_choose_dialect(nib_output_layout *r);
/* Bytes of all layers in a dialect; false: it cannot hold one of them. */
bool nib__output_sources_bytes(const nib_output_layout *r, nib_dialect dialect, uint64_t *bytes);
/* False for compressed-tensors with a quantized embedding: transformers 5.24 and its
 * compressed-tensors 0.20 fail to look rows up in one. */
bool nib__output_sources_has_readers(const nib_output_layout *r, nib_dialect dialect);
/* Whether a layer's codes are those of another, and the dialect stores them once. */
bool nib__output_sources_shared(const nib_output_layout *r, nib_dialect dialect, size_t layer);
/* The stored form of a layer in the chosen dialect. */
void nib__output_sources_fit(const nib_output_layout *r, size_t layer, nib_output_weight *stored);

void nib__output_layout_init(nib_output_layout *r, const nib_quantize_job *job, nib_ledger *ledger,
                             nib_err *err);
void nib__output_layout_free(nib_output_layout *r);
/* Checks every layer, chooses the dialect, lists the rewrites in source order and lays out the
 * output; adds a ledger line per layer. shard_limit: bytes per file; 0: one file. */
nib_status nib__output_layout_make(nib_output_layout *r, uint64_t shard_limit);
/* After writing: copies `kept` and errors between layers that share a tensor. */
void nib__output_layout_share_kept(nib_output_layout *r);

/* Adds a rewrite of `from` without parts; NULL: out of memory. */
nib_rewrite *nib__output_layout_add_rewrite(nib_output_layout *r, const nib_tensor *from);
/* Starts a unit, unless the tensor's module is the current one. Tensors of a unit are adjacent and
 * share a shard. */
void nib__output_layout_begin_unit(nib_output_layout *r, const char *tensor);
/* Adds a part to the writer; SIZE_MAX: it is not stored. */
size_t nib__output_layout_add_part(nib_output_layout *r, const char *module,
                                   const nib_output_part *part);
/* Lists a name, as torchao's metadata requires, with its description or NULL. */
nib_status nib__output_layout_describe(nib_output_layout *r, const char *name,
                                       const char *description);

/* The row order of q or k for a format that keeps rotary pairs together: written row j is our row
 * (*out)[j]. NULL: unchanged. */
nib_status nib__output_layout_pair_rows(nib_output_layout *r, const int32_t **out, nib_role role,
                                        int64_t n);

/* output_bias.c. First find the stored bias of layer i and its asked form; after the dialect is
 * chosen, settle the form that it can hold. */
nib_status nib__output_bias_find(nib_output_layout *r, size_t i, const nib_scheme *scheme);
size_t nib__output_bias_count_coded(const nib_output_layout *r);
nib_status nib__output_bias_settle(nib_output_layout *r);
/* The layer whose bias contains tensor t, if the bias is not copied as it is; SIZE_MAX: none. */
size_t nib__output_bias_layer(const nib_output_layout *r, size_t t);
/* True if the source's metadata describes a coded bias under this name. */
bool nib__output_bias_is_described(const nib_output_layout *r, const char *name);
/* Adds the rewrite of a bias tensor. */
nib_status nib__output_bias_add(nib_output_layout *r, size_t i, const nib_tensor *from);
/* Adds an int32 bias to the rewrite of its weight, whose scales make its steps. */
nib_status nib__output_bias_add_to_weight(nib_output_layout *r, size_t i, nib_rewrite *weight);

#endif

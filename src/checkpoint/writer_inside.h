/* SPDX-License-Identifier: Apache-2.0
 *
 * The writer's own data. Private to writer.c and writer_join.c.
 */
#ifndef NIB_WRITER_INSIDE_H
#define NIB_WRITER_INSIDE_H

#include "experts.h"
#include "name_index.h"
#include "writer.h"

/* Parts whose elements are interleaved in the file: held until all have come. */
typedef struct nib_interleaved {
    char *held; /* [bytes], while some are missing */
    uint64_t bytes, done;
    size_t first; /* the first of the parts, which follow each other */
} nib_interleaved;

typedef struct nib_writer_entry {
    const char *name;
    nib_type type;
    int rank;
    int64_t shape[NIB_RANK_MAX];
    size_t unit, shard;
    uint64_t bytes, done;
    uint64_t offset;    /* in the file */
    const char *stored; /* name in the file; of a fused tensor's first part, that tensor's */
    size_t next;        /* next part of the same fused tensor or stack; SIZE_MAX: none */
    int64_t experts;    /* > 0: the first part of a stack of so many experts */
    bool follows;       /* a part other than the first */
    bool apart;         /* each row is written as a separate tensor */
    /* != NULL: interleaved with other parts. Element (i, j) of what is put, [..][columns], is
     * number start + i * down + j * across of them all; `shape` is as stored. */
    nib_interleaved *in;
    int64_t columns, start, down, across;
    int whole_rank; /* > 0: in the first part, the shape of the whole tensor; else its rows follow
                       from the parts */
    int64_t whole[NIB_RANK_MAX];
    nib_hasher *hasher; /* while bytes are missing */
    nib_hash hash;
} nib_writer_entry;

typedef struct nib_writer_shard {
    nib_text header; /* with the eight bytes of its size, padded to a multiple of 8 */
    uint64_t data;   /* bytes after the header */
    char name[64];
    nib_output *output;
} nib_writer_shard;

struct nib_writer {
    nib_allocator allocator;
    nib_arena arena;
    nib_meta *metas;
    nib_writer_entry *entries;
    nib_writer_shard *shards;
    size_t meta_count, meta_capacity, count, capacity, shard_count;
    const nib_gguf_head *gguf; /* NULL: safetensors */
    const char *directory;     /* NULL: one file */
    double sync_seconds;       /* spent finishing the files */
    unsigned fused;            /* bits of fused.h */
    size_t stored;             /* tensors in the files */
    const char *family;        /* whose names and stacks are written; NULL: ours, one by one */
    bool prefixed;             /* with the names of a text model among others */
    size_t unjoined;           /* stacks that stay expert by expert */
    size_t unjoined_heads;     /* kv_b_proj that stay head by head */
    bool failed;               /* out of memory while adding */
};

/* writer_join.c: decides which entries become one stored tensor, and under which name. */
nib_status nib__writer_join(nib_writer *w, nib_err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Says how a stored weight was made from a source: by which rounding, within which method's bounds,
 * from other values, or altered afterwards. Needs no receipt. What cannot be shown is UNKNOWN.
 */
#ifndef NIB_JUDGE_H
#define NIB_JUDGE_H

#include "checkpoint.h"
#include "pool.h"
#include "quantize.h"

/* X(id, name in reports, whether the weight is accounted for) */
#define NIB_ORIGINS(X)                                                                             \
    X(SAME, "same", true)         /* the source's values */                                        \
    X(CAST, "cast", true)         /* the source's values, rounded to another float type */         \
    X(ROUNDED, "rounded", true)   /* to nearest, with scales by a known formula */                 \
    X(SEARCHED, "searched", true) /* to nearest, with other scales */                              \
    X(FEEDBACK, "feedback", true) /* within the bounds of methods that feed errors back (GPTQ) */  \
    X(FOLDED, "folded", true)     /* one of these, times factors that another tensor undoes */     \
    X(SCALED, "scaled", false)    /* rows and columns times other factors */                       \
    X(ROTATED, "rotated", false)                                                                   \
    X(ALTERED, "altered", false) /* one of these, but for a few places */                          \
    X(OTHER, "other", false)     /* not from this source */                                        \
    X(UNKNOWN, "unknown", false)

#define X(id, name, accounted) NIB_ORIGIN_##id,
typedef enum nib_origin { NIB_ORIGINS(X) NIB_ORIGIN_COUNT } nib_origin;
#undef X

typedef struct nib_origin_info {
    const char *name;
    bool accounted;
} nib_origin_info;
extern const nib_origin_info nib__origins[NIB_ORIGIN_COUNT];

/* A code, value or scale that is not what the source gives. */
typedef struct nib_judge_place {
    int64_t row, column; /* column of the inputs; of a scale: of its group's first element */
    bool is_scale;
    float found, expected; /* codes as numbers; scales and values */
} nib_judge_place;

enum { NIB_JUDGE_PLACES = 8, NIB_JUDGE_TEXT = 600 };

typedef struct nib_judgement {
    nib_origin verdict;
    char text[NIB_JUDGE_TEXT]; /* why, with numbers: follows "NAME: VERDICT: " */
    /* The first places, in the order of rows; the number of codes and scales that differ. */
    nib_judge_place places[NIB_JUDGE_PLACES];
    size_t place_count;
    int64_t altered;
    bool is_uncorrelated; /* the verdict OTHER rests on values, not on shapes */
} nib_judgement;

typedef struct nib_judge_pair {
    const nib_checkpoint *checkpoint, *source_checkpoint; /* NULL: in memory */
    const nib_weight *weight, *source; /* of the same shape; the source may be quantized, too */
    nib_pool *pool;
    const nib_allocator *allocator;
    const nib_fold *fold; /* the source is multiplied by it; NULL: is not */
    float noise;          /* relative error of these factors */
} nib_judge_pair;

/* Judges a weight. Reads both in blocks of rows, up to twice; memory: a few rows per worker. The
 * result does not depend on the number of threads. */
nib_status nib__judge_weight(nib_judgement *out, const nib_judge_pair *pair, nib_err *err);
/* The same for `count` values, such as a norm or a bias, as f32; types: as stored. */
void nib__judge_values(nib_judgement *out, const float *values, nib_type type, const float *source,
                       nib_type source_type, int64_t count);

#endif

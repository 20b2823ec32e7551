/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures how the codes of a quantized weight lie to the weight that they should come from: which
 * formulas give them, whether each is the nearest under its stored scale, and how scales compare
 * with the groups' ranges. Private to judge.c.
 */
#ifndef NIB_JUDGE_ROWS_H
#define NIB_JUDGE_ROWS_H

#include "judge.h"
#include "quant_w.h"

enum { NIB_REPLAYS_MAX = 8, NIB_ROUNDINGS_MAX = 12 };

/* The values that round to each code, indexed by the code's byte; low > high: not a code of the
 * layout. Tools break ties towards the even code. If a symmetric weight has its lowest integer
 * nowhere, the next one takes that one's values, too: many tools clip to -127..127 or -7..7. */
typedef struct nib_bounds {
    float low[256], high[256];
    float level[256];   /* the code's value, without scale and zero */
    float spacing[256]; /* to the nearer neighbour */
    float top, bottom;  /* the largest and smallest level */
    bool has_even;      /* ties are decided by the lowest bit of the code */
} nib_bounds;

/* Formulas of a group's scale from its range, low to high; amax is the larger magnitude. */
typedef enum nib_scale_rule {
    NIB_RULE_HALF,   /* amax / ((top - bottom) / 2) */
    NIB_RULE_TOP,    /* amax / top */
    NIB_RULE_BOTTOM, /* the value of the largest magnitude / bottom */
    NIB_RULE_RANGE,  /* (high - low) / (top - bottom) */
    NIB_RULE_RANGE0, /* the same, of a range that includes 0 */
    NIB_RULE_UP,     /* 2^ceil(log2(amax / top)) */
    NIB_RULE_DOWN,   /* 2^(floor(log2(amax)) - floor(log2(top))) */
    NIB_RULES
} nib_scale_rule;

/* How a tool may have computed codes from a scale. */
typedef struct nib_rounding {
    nib_type type;   /* each step is rounded to it */
    bool reciprocal; /* multiplies by 1 / scale */
    bool adds_zero;  /* adds the integer zero before rounding */
    int rule;        /* the scale before it was rounded to its stored type; -1: the stored one */
} nib_rounding;

/* What differs from the results of a replay or a rounding. */
typedef struct nib_tally {
    int64_t codes, scales; /* scales: groups whose scale or zero differs; replays only */
    /* Of those codes and scales: too far from a tie for another order of the same operations in the
     * same types; in any of the types of source and scales. */
    int64_t firm, hard;
    int64_t first_row; /* INT64_MAX: nothing */
} nib_tally;

/* Sums over all rows. */
typedef struct nib_row_counts {
    nib_tally replays[NIB_REPLAYS_MAX], roundings[NIB_ROUNDINGS_MAX];
    int64_t codes, groups;
    int64_t border; /* codes that arithmetic in any of the types could have moved, or did */
    /* Under the stored scale, in f32: codes that are not nearest beyond the noise of arithmetic;
     * those more than one step from the value; the largest distance in steps; groups with one. */
    int64_t off, far, off_groups;
    double farthest;
    int64_t unshared; /* groups of those whose codes are not nearest under any one scale */
    int64_t ruled;    /* groups with a range and a finite scale that is not 0, to compare: */
    int64_t near[NIB_RULES];
    float ratio[NIB_RULES][2];         /* smallest and largest stored scale / formula's */
    int64_t zeros_off;                 /* groups whose zero does not follow from range and scale */
    double dot, source_square, square; /* of the dequantized weight with the source */
} nib_row_counts;

/* A weight and its source, with what is compared. */
typedef struct nib_comparison {
    const nib_judge_pair *pair;
    nib_type source_type; /* F32, F16 or BF16 */
    nib_bounds bounds;
    nib_quantizer replays[NIB_REPLAYS_MAX];
    size_t replay_count;
    nib_rounding roundings[NIB_ROUNDINGS_MAX];
    size_t rounding_count;
    float noise; /* relative: how far arithmetic may move x / scale */
    float range[2];
    int64_t rows; /* measured: the first of them */
    nib_row_counts measured;
    /* [groups]: rows whose group can be compared; [groups][NIB_RULES]: and has the rule's scale, to
     * the precision of its type. */
    int64_t *group_ruled, *group_exact;
} nib_comparison;

/* Lists candidates and measures the first `rows` rows. Memory comes from the arena. */
nib_status nib__compare_rows(nib_comparison *c, int64_t rows, nib_arena *arena, nib_err *err);
/* Fills places with the first codes, and scales, that differ from replay r, or from rounding r,
 * after nib__compare_rows with all rows. */
nib_status nib__compare_places(const nib_comparison *c, bool is_replay, size_t r,
                               nib_judgement *out, nib_arena *arena, nib_err *err);
/* Fills places with the first scales, or zeros, that do not follow the rule. */
nib_status nib__compare_scale_places(const nib_comparison *c, nib_scale_rule rule,
                                     nib_judgement *out, nib_arena *arena, nib_err *err);
/* How far a scale may be from a rule's, relative to it: the rounding of its type and the source's.
 */
double nib__scale_tolerance(const nib_comparison *c);

#endif

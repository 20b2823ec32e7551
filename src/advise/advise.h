/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of nib_advise: recipes that were tried, the frontier that no other recipe beats, and
 * the one to take.
 */
#ifndef NIB_ADVISE_H
#define NIB_ADVISE_H

#include "session_handle.h"

/* ---- the frontier: data, no models ---- */

/* What recipes are compared by; lower is better. NaN: unknown, worse than any number. */
typedef struct nib_merit {
    bool counts;    /* it runs as asked and fits */
    double cost;    /* loss, or estimated error */
    double seconds; /* per token */
    double bytes;
} nib_merit;

enum { NIB_UNBEATEN = -1 };

/* Times within this share of each other count as equal: neither measurements nor predictions are
 * closer than that. */
#define NIB_EQUAL_TIMES 0.05

/* beaten_by[i]: a recipe that is at least as good as i in every respect and better in one, from the
 * frontier if possible; NIB_UNBEATEN: i is on the frontier, or does not count. */
void nib__frontier(int *beaten_by, const nib_merit *merits, size_t count);
/* Among recipes that cost at most most_cost, chooses the fastest, and among equals the cheapest;
 * sets *within. If none does, chooses the cheapest of all. Negative: none counts. */
int nib__frontier_choose(bool *within, const nib_merit *merits, size_t count, double most_cost);

/* ---- what was tried ---- */

typedef struct nib_advised {
    const char *recipe;           /* NULL: as stored */
    const char *name;             /* "8da4w", "none (bf16)" */
    uint64_t weight_bytes, bytes; /* the second with keys, values and a device's buffers */
    uint64_t over;                /* bytes over the limit; 0: it fits */
    double predicted_decode, predicted_prefill; /* tokens per second; NaN: not known */
    double decode, prefill;                     /* measured; NaN: not measured */
    double loss;                                /* nats per token; NaN: not measured */
    double error;                               /* nib__advise_error; NaN: not estimated */
    const char *problem; /* why it does not run as asked, or what failed; NULL: no problem */
    bool failed;         /* while it ran */
    bool trainable;      /* quantization-aware training supports its schemes */
    int beaten_by;       /* of nib__frontier */
} nib_advised;

/* Default loss budget, in nats per token above the model as stored: 0.02 is a perplexity 2 %
 * higher. */
#define NIB_LOSS_BUDGET 0.02
/* Default budget of the estimated error, without a text. int4 in groups of 32 has 7 to 9 %. */
#define NIB_ERROR_BUDGET 0.1

typedef struct nib_advice {
    nib_model *model;
    const nib_advise_options *options;
    nib_arena arena;
    nib_callbacks outer; /* the caller's, which see one stage: all recipes */
    size_t at;           /* index of the recipe in work */
    nib_ledger said;     /* settings of all plans, each once */
    nib_plan *base;      /* of the model as stored, on the device */
    bool speeds;         /* speeds are measured */
    bool losses;         /* losses are measured */
    bool real;           /* errors are estimated from the model's own weights */
    uint64_t limit;      /* bytes; 0: none */
    int64_t prompt;      /* prompt tokens that are timed, or predicted */
    double budget;       /* loss or error */
    double base_cost;
    nib_advised *items; /* [count], the model as stored first */
    size_t count;
    int taken;   /* index; negative: none */
    bool within; /* the taken recipe keeps to the budget */
    int train;   /* recipe to train for, with a gain; negative: none */
} nib_advice;

/* The cost of a recipe: measured loss, or estimated error. */
double nib__advised_cost(const nib_advice *v, const nib_advised *c);
/* Tokens per second of the asked speed, measured if possible. */
double nib__advised_speed(const nib_advice *v, const nib_advised *c);
bool nib__advised_counts(const nib_advised *c);

/* Estimates the relative error of a linear layer's product: the root of the mean square over a
 * plan's layers, weighted by their sizes. It covers the error of weights, from rows drawn from each
 * layer, and of inputs, which are normally distributed. A model without weights uses normal values
 * for them, too. */
nib_status nib__advise_error(double *out, const nib_plan *plan, nib_err *err);

/* The table and the sentence that ends the text; JSON; the frontier as a picture. */
void nib__advise_render(const nib_advice *v, nib_text *out);
void nib__advise_json(const nib_advice *v, nib_text *out);
void nib__advise_draw(const nib_advice *v, nib_text *out);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside nib_advise: recipes that were tried, which of them none outdoes, and which one to take.
 */
#ifndef NIB_ADVISE_H
#define NIB_ADVISE_H

#include "session_handle.h"

/* ---- the frontier: data, no models ---- */

/* What recipes are compared by; less is better. NaN: not known, worse than any number. */
typedef struct nib_merit {
    bool counts;    /* it is done as asked, and fits */
    double cost;    /* the loss, or what stands for it */
    double seconds; /* per token */
    double bytes;
} nib_merit;

enum { NIB_BEHIND_NONE = -1 };

/* Times within this share of each other are equal: measurements are no closer than that, and no
 * prediction is. */
#define NIB_EQUAL_TIMES 0.05

/* behind[i]: one that is no worse than i in anything and better in something, itself behind none
 * where there is such a one; NIB_BEHIND_NONE: i is on the frontier, or does not count. */
void nib__frontier(int *behind, const nib_merit *merits, size_t count);
/* Among those that cost at most that: the fastest, of equals the one that costs least; *within is
 * then set. If none does, the one that costs least. Negative: none counts. */
int nib__frontier_take(bool *within, const nib_merit *merits, size_t count, double most_cost);

/* ---- what was tried ---- */

typedef struct nib_advised {
    const char *recipe;                         /* NULL: as stored */
    const char *name;                           /* "8da4w", "none (bf16)" */
    uint64_t weight_bytes, bytes;               /* with keys, values and a device's buffers */
    uint64_t over;                              /* bytes more than the limit; 0: it fits */
    double predicted_decode, predicted_prefill; /* tokens per second; NaN: not known */
    double decode, prefill;                     /* measured; NaN: not measured */
    double loss;                                /* nats per token; NaN: not measured */
    double error;                               /* nib__advise_error; NaN: not estimated */
    const char *problem; /* why it is not done as asked, or what failed; NULL: nothing */
    bool failed;         /* when it was run */
    bool trainable;      /* quantization-aware training has its schemes */
    int behind;          /* of the frontier */
} nib_advised;

/* With which loss a recipe is still taken, in nats per token over that of the model as stored: 0.02
 * is a perplexity 2 % higher. */
#define NIB_LOSS_BUDGET 0.02
/* Without a text: with which estimated error. int4 in groups of 32 has 7 to 9 %. */
#define NIB_ERROR_BUDGET 0.1

typedef struct nib_advice {
    nib_model *model;
    const nib_advise_options *options;
    nib_arena arena;
    nib_callbacks outer; /* the caller's, which hear of one stage: all recipes */
    size_t at;           /* the recipe that is tried */
    nib_ledger said;     /* the settings of all plans, each once */
    nib_plan *base;      /* of the model as stored, on the device */
    bool speeds;         /* are measured */
    bool losses;         /* are measured */
    bool real;           /* errors are of the model's own weights */
    uint64_t limit;      /* bytes; 0: none */
    int64_t prompt;      /* tokens of the prompt that is timed, or predicted */
    double budget;       /* of the loss, or of the error */
    double base_cost;
    nib_advised *items; /* [count], the model as stored first */
    size_t count;
    int taken;   /* negative: none */
    bool within; /* it keeps to the budget */
    int train;   /* what quantization-aware training would gain; negative: nothing */
} nib_advice;

/* What the recipes are ordered by: the measured loss, or the estimated error. */
double nib__advised_cost(const nib_advice *v, const nib_advised *c);
/* Tokens per second of what was asked for, measured where that was done. */
double nib__advised_speed(const nib_advice *v, const nib_advised *c);
bool nib__advised_counts(const nib_advised *c);

/* The relative error of a linear layer's product, the root of its mean square over the layers of a
 * plan by their weights: that of the weights, of rows drawn from each layer, and that of inputs,
 * which are normal values. A model without weights has normal values for them, too. */
nib_status nib__advise_error(double *out, const nib_plan *plan, nib_err *err);

/* The tables, the frontier as a picture, and the sentence that ends the text. */
void nib__advise_render(const nib_advice *v, nib_text *out);
void nib__advise_json(const nib_advice *v, nib_text *out);
void nib__advise_draw(const nib_advice *v, nib_text *out);

#endif

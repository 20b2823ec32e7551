/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of nib_advise: recipes that were tried, the frontier that no other recipe beats, and
 * the one to take.
 */
#ifndef NIB_ADVISE_H
#define NIB_ADVISE_H

#include "recipe.h"
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
    const char *method;           /* that chooses its codes; NULL: rounding */
    const char *name;             /* "8da4w", "8da4w by gptq", "none (bf16)" */
    uint64_t weight_bytes, bytes; /* the second with keys, values and a device's buffers */
    uint64_t over;                /* bytes over the limit; 0: it fits */
    double predicted_decode, predicted_prefill; /* tokens per second; NaN: not known */
    double decode, prefill;                     /* measured; NaN: not measured */
    double loss;                                /* nats per token; NaN: not measured */
    double error;                               /* nib__advise_error; NaN: not estimated */
    const char *problem; /* why it does not run as asked, or what failed; NULL: no problem */
    bool failed;         /* while it ran */
    bool trainable;      /* quantization-aware training supports its schemes */
    bool needs_text;     /* its codes do, or the whole model: static activation scales, or
                            methods of its rules */
    bool is_made;        /* it is quantized into the scratch directory, and then measured */
    int beaten_by;       /* of nib__frontier */
    bool round_frontier; /* on the frontier of the rows without a method */
    bool inapplicable;   /* its codes cannot be made; `problem` says why */
    /* of a row that is made: */
    size_t rounding;          /* index of the row of its recipe without a method */
    bool same_speed;          /* it runs what `rounding` runs, whose measured speeds it has */
    bool keeps_rounding;      /* it lost more on the calibration text, so codes are rounded */
    uint64_t disk;            /* bytes on the disk while it is measured */
    double predicted_s;       /* seconds of its method, predicted; NaN: its method does not */
    double made_s;            /* seconds that quantizing took; NaN: it was not quantized */
    const char *const *notes; /* [note_count] of quantizing, on the method */
    size_t note_count;
} nib_advised;

/* Default loss budget, in nats per token above the model as stored: 0.02 is a perplexity 2 %
 * higher. */
#define NIB_LOSS_BUDGET 0.02
/* Default budget of the estimated error, without a text. int4 in groups of 32 has 7 to 9 %. */
#define NIB_ERROR_BUDGET 0.1

/* The methods that are tried besides rounding. */
typedef struct nib_methods {
    nib_advise_methods asked;
    nib_ptq_method items[NIB_PTQ_COUNT];
    size_t count;
    int64_t tokens;        /* of the calibration text; 0: there is none */
    const char *out;       /* name of the quantized models, beside which their parts are */
    const char *lock_path; /* of the name */
    int lock;              /* negative: not taken */
    uint64_t disk, there;  /* bytes that the largest row takes on the disk, and that are free */
    uint64_t begin_ns;     /* of the row in work */
    bool making;           /* the row in work is being quantized, not measured */
    double shown;          /* its progress, 0 to 1 */
} nib_methods;

typedef struct nib_advice {
    nib_model *model;
    const nib_advise_options *options;
    nib_methods *methods; /* NULL: rounding only */
    nib_arena arena;
    nib_callbacks outer; /* the caller's, which see one stage: all recipes */
    size_t at;           /* rows that are done */
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
/* Whether it is on the frontier, of all rows or of those without a method. */
bool nib__advised_leads(const nib_advised *c, bool with_methods);

/* Plans `model`, which is the advice's model or has the codes of a row, and measures it. */
nib_status nib__advise_try(nib_advice *v, nib_advised *c, nib_model *model, nib_err *err);
/* Sets the row's problem, a copy of the text. */
nib_status nib__advise_problem(nib_advice *v, nib_advised *c, const char *text, nib_err *err);

/* ---- rows that are made: advise_methods.c ---- */

/* Reads options->methods, which is not NULL, into the advice. NIB_USAGE: an unknown method, or one
 * that lacks its text. */
nib_status nib__methods_read(nib_advice *v, nib_methods *out, nib_err *err);
/* Adds a row per method after each recipe's. NIB_USAGE: an input that no row uses. */
nib_status nib__methods_list(nib_advice *v, nib_err *err);
/* Before anything runs: reads the text, takes a name in the scratch directory, finds which methods
 * apply to which recipes, and whether the disk has room. NIB_BAD_INPUT: the text is empty; NIB_IO:
 * the directory cannot be written, or is too full. */
nib_status nib__methods_prepare(nib_advice *v, nib_err *err);
/* Quantizes each row that is made into the scratch directory, measures and removes it. */
nib_status nib__methods_try(nib_advice *v, nib_err *err);
/* Releases the name. methods NULL: nothing. */
void nib__methods_close(nib_methods *methods);
/* What quantizing a row is given. */
void nib__methods_inputs(const nib_methods *methods, const nib_advised *c, const char **calibrate,
                         const char **imatrix);
/* The share of a row that is done, 0 to 1, from the progress of a part of its work. */
double nib__methods_progress(nib_methods *methods, const char *what, double share);

/* Estimates the relative error of a linear layer's product: the root of the mean square over a
 * plan's layers, weighted by their sizes. It covers the error of weights, from rows drawn from each
 * layer, and of inputs, which are normally distributed. A model without weights uses normal values
 * for them, too. */
nib_status nib__advise_error(double *out, const nib_plan *plan, nib_err *err);

/* Compares types of the KV cache instead: options->caches is not NULL. */
nib_status nib__advise_caches(nib_model *model, const nib_advise_options *options, nib_form form,
                              const nib_sink *sink, nib_err *err);

/* The table and the sentence that ends the text; JSON; the frontier as a picture. */
void nib__advise_render(const nib_advice *v, nib_text *out);
void nib__advise_json(const nib_advice *v, nib_text *out);
void nib__advise_draw(const nib_advice *v, nib_text *out);

#endif

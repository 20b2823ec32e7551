/* SPDX-License-Identifier: Apache-2.0
 *
 * A run of the method gptq: what its parts share. gptq.c runs the text, gptq_codes.c makes codes.
 */
#ifndef NIB_GPTQ_RUN_H
#define NIB_GPTQ_RUN_H

#include "gptq.h"
#include "moments.h"
#include "quant_w.h"

enum { NIB_GPTQ_CHECKED = 4096 }; /* tokens of the text, from the first */

/* A text on its way through the layers. */
typedef struct nib_gptq_stream {
    float *state;  /* [tokens][width] what lives between layers */
    int64_t count; /* tokens */
    int64_t first; /* of the text; the first of a window */
} nib_gptq_stream;

/* The second moments of one input, which several layers may share. */
typedef struct nib_gptq_input {
    double *h; /* [k][k]; NULL: nothing was seen yet */
    int64_t k, tokens;
    /* for qronos; NULL: nothing was kept */
    double *difference;   /* [k][k] sum over tokens of (kept - input)^T input */
    float *kept;          /* [window][k] inputs in the model as stored, then their difference */
    int64_t filled, used; /* rows of `kept` */
} nib_gptq_input;

/* Of a weight that has codes in the stages of its layer: what is not loaded, stored or codes. */
typedef struct nib_gptq_other {
    nib_loaded weight;
    bool is_set;
} nib_gptq_other;

/* Whose weights the layers have, in the check of the whole model. */
typedef enum nib_gptq_kind {
    NIB_GPTQ_STORED,
    NIB_GPTQ_CODED,   /* the method's */
    NIB_GPTQ_ROUNDED, /* rounding's */
    NIB_GPTQ_KINDS
} nib_gptq_kind;

/* How that check finds the sites with codes, and loads those of a kind, not NIB_GPTQ_STORED. */
typedef struct nib_gptq_loader {
    bool (*has)(const void *ctx, size_t site);
    nib_status (*load)(void *ctx, size_t site, nib_gptq_kind kind, nib_err *err);
    void (*enter)(void *ctx, nib_gptq_kind kind); /* before the layers run as a kind; NULL: none */
    void *ctx;
} nib_gptq_loader;

/* Multiply-adds of a part. */
typedef struct nib_gptq_cost {
    double pass, moments; /* per token, of the weights, and of the second moments of their inputs */
    double codes;         /* factors and codes */
    int64_t stages;       /* of qronos; 0: none */
} nib_gptq_cost;

typedef struct nib_gptq_run {
    nib_gptq *job;
    nib_model *model;
    nib_runner runner;
    nib_gptq_store *store;
    const nib_moments_rows *rows;
    size_t *first;          /* [layers + 1] first operation of each layer */
    nib_gptq_input *inputs; /* [site_count]; of sites that share one, the first's */
    int64_t window;         /* tokens */
    const int32_t *ids;
    int64_t count;
    int64_t width; /* floats per token between layers */
    /* The text with the method's codes; without, its beginning, or all of it for qronos; its
     * beginning with rounding's. */
    nib_gptq_stream coded, stored, rounded;
    size_t stage[2];        /* sites [from, to) whose inputs are observed; to SIZE_MAX: no stages */
    nib_gptq_other *others; /* [site_count] */
    nib_gptq_loader loader;
    nib_gptq_kind kind; /* that runs */
    double kl[2]; /* of the model with these codes, and with rounding's, from the stored one */
    nib_gptq_cost cost; /* of the layer that runs */
    double done, total; /* multiply-adds */
    double rate;        /* of them per second, of this machine */
    float *scratch;     /* [threads] */
    nib_status status;  /* of the observer */
    nib_err err;
} nib_gptq_run;

/* Reads the text, opens a plan of the model as stored, and calls run with it. */
typedef nib_status (*nib_gptq_job)(void *ctx, const nib_plan *plan, nib_err *err);
nib_status nib__gptq_with_text(nib_gptq_run *g, nib_gptq_job run, void *ctx, nib_err *err);
/* What a run keeps in its store. */
typedef struct nib_gptq_saved {
    size_t parts, layers; /* of the store; of these the layers that a note counts */
    bool (*is_saved)(const nib_gptq_run *run, size_t site); /* its recipe is part of the key */
    const char *noun, *done;                                /* "codes", "coded": for notes */
    void (*more)(nib_text *out, const nib_gptq_run *run);   /* adds to that note; NULL: nothing */
    const char *key; /* more lines "name: value" of the key; NULL: none */
} nib_gptq_saved;
/* Opens run->store beside run->job->out, and writes what it holds into run->job->resumed. */
nib_status nib__gptq_open_store(nib_gptq_run *run, const nib_gptq_saved *saved, nib_type dtype,
                                nib_err *err);
/* NIB_BAD_INPUT: a part of it is of another model. */
nib_status nib__gptq_fail_part(const nib_gptq_run *run, size_t part, nib_err *err);
/* The sites of a decoder layer: [*begin, *end). */
void nib__gptq_find_sites(const nib_gptq_run *run, int64_t layer, size_t *begin, size_t *end);
/* Loads them as stored, and unloads them. */
nib_status nib__gptq_load_sites(nib_gptq_run *run, size_t begin, size_t end, nib_err *err);
void nib__gptq_unload_sites(nib_gptq_run *run, size_t begin, size_t end);

bool nib__gptq_is_coded(const nib_gptq_run *run, size_t site);
/* Whether the method of a site is qronos, and its tokens are those of the text: an expert's depend
 * on the codes before it, so that they have no counterpart in the model as stored. */
bool nib__gptq_is_paired(const nib_gptq_run *run, size_t site);
/* The order in which a site's inputs are coded. */
nib_order_rule nib__gptq_order(const nib_gptq_run *run, size_t site);
/* Ends the stage that begins with a site: one input, or all experts. */
size_t nib__gptq_stage_end(const nib_gptq_run *run, size_t site, size_t end);
/* The first of the sites with the same input. */
size_t nib__gptq_owner(const nib_gptq_run *run, size_t site);
nib_status nib__gptq_quantizer(nib_quantizer *out, const nib_gptq_run *run, size_t site,
                               nib_err *err);

/* The cost of the sites [begin, end), without attention. */
void nib__gptq_cost_of(nib_gptq_cost *out, const nib_gptq_run *run, size_t begin, size_t end);
/* Multiply-adds of a decoder layer, and of what follows the layers; is_stored: the part has its
 * codes. */
double nib__gptq_layer_cost(const nib_gptq_run *run, const nib_gptq_cost *cost, bool is_stored);
double nib__gptq_head_cost(const nib_gptq_run *run, const nib_gptq_cost *cost, bool is_stored);
/* Predicts the time of run->total from the rate of this machine, into run->job; and tells it. */
nib_status nib__gptq_time(nib_gptq_run *run, nib_err *err);
nib_status nib__gptq_predict(nib_gptq_run *run, nib_err *err);
/* Adds to run->done and reports progress. NIB_CANCELLED: the user wants no more. */
nib_status nib__gptq_count(nib_gptq_run *run, double multiply_adds, nib_err *err);

/* Runs a layer, with the weights that are loaded. `stays`: keeps the state of before. */
nib_status nib__gptq_run_layer(nib_gptq_run *run, const nib_gptq_stream *stream, size_t layer,
                               bool stays, nib_err *err);
/* Loads the weight that codes stand for instead of the stored one, in the type of the run. */
nib_status nib__gptq_load(nib_gptq_run *run, size_t site, const nib_codes *codes, nib_err *err);
nib_status nib__gptq_load_stored(nib_gptq_run *run, size_t site, nib_err *err);

/* Adds m inputs of a site, [m][ld], k wide, to the moments that its codes need; run: ctx. Sets
 * run->status. */
void nib__gptq_observe(void *run, size_t site, const float *x, int64_t ld, int64_t m, int64_t k);
/* Keeps inputs in the model as stored for nib__gptq_observe, which takes the same ones with codes
 * before them. Up to a window, then nib__gptq_forget. */
void nib__gptq_keep(void *run, size_t site, const float *x, int64_t ld, int64_t m, int64_t k);
void nib__gptq_forget(nib_gptq_run *run);
/* Frees what an input holds. */
void nib__gptq_release(nib_gptq_run *run, size_t site);

/* Share of the mean of H's diagonal that is added to it; if H is not positive definite then, 10
 * times as much, up to 1,000 times. */
#define NIB_GPTQ_DAMPING 0.01

/* What coding a row needs of an input. */
typedef struct nib_gptq_factor {
    const char *name;      /* of a layer that reads it, for messages */
    double *h;             /* [k][k] its moments, in this order; the upper triangle is lost */
    double *squares, mean; /* [k] their diagonal as stored, and its mean */
    float *importance;     /* [k] as nib_quantizer */
    int64_t k;
    int64_t *order, *place; /* [k] of nib_quant_sweep */
    float *factor;          /* [k][k] of nib_quant_sweep; NULL: all inputs are 0 */
    double *diagonal;       /* [k] of nib_quant_sweep */
    float *difference;      /* [k][k] of nib_quant_sweep, for qronos; NULL: 0 */
    double damping;         /* share of the mean diagonal that was added; 0: not factored yet */
    /* room */
    double *after, *room;
    int64_t *from;
    nib_ranked *ranked;
    bool *visited;
} nib_gptq_factor;
/* Reads the moments h [k][k], of which i <= j are given, and which stay in use and are lost.
 * NIB_CHECK_FAILED: they are not finite. */
nib_status nib__gptq_moments(nib_gptq_factor *out, double *h, int64_t k, const char *name,
                             nib_pool *pool, nib_arena *arena, nib_err *err);
/* Factors them in the order of a rule, as often as wanted. NIB_CHECK_FAILED: they are not positive
 * definite even with 10 times their mean on the diagonal. */
nib_status nib__gptq_factor(nib_gptq_factor *out, nib_order_rule rule, const nib_moments_rows *rows,
                            nib_pool *pool, nib_err *err);

/* Codes the sites [begin, end) from the moments of their inputs, which are released, into the part
 * of the store that was begun. In a stage, loads the codes, and keeps the stored weights in
 * run->others. */
nib_status nib__gptq_code(nib_gptq_run *run, size_t begin, size_t end, nib_err *err);

/* Rounds a weight to the codes that it has without the method, into the arena. */
nib_status nib__gptq_round(nib_gptq_run *run, size_t site, nib_codes *out, nib_arena *arena,
                           nib_err *err);

/* The loader of codes in run->job->layers; run: its ctx. */
nib_gptq_loader nib__gptq_loader(nib_gptq_run *run);
/* Moves run->stored and run->rounded through a layer, whose weights [begin, end) are loaded as
 * stored, and rounded afterwards where they have codes. */
nib_status nib__gptq_check_layer(nib_gptq_run *run, size_t layer, size_t begin, size_t end,
                                 nib_err *err);
/* Loads the codes of a kind, not NIB_GPTQ_STORED, for the sites [begin, end) of a layer, and moves
 * the states of that kind through it. Layer 0 includes the embedding. */
nib_status nib__gptq_check_kind(nib_gptq_run *run, nib_gptq_kind kind, size_t layer, size_t begin,
                                size_t end, nib_err *err);
/* Behind the last layer: sets run->kl, the means over the checked tokens, in nats. */
nib_status nib__gptq_check(nib_gptq_run *run, nib_err *err);
/* Whether the codes are worse than rounding's, which a note says by numbers. place: of the checked
 * tokens, for it. */
bool nib__gptq_is_worse(const nib_gptq_run *run, const char *place);

#endif

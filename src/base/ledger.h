/* SPDX-License-Identifier: Apache-2.0
 *
 * The ledger: for every layer, tensor and setting, what was asked, what is done, and the reasons
 * where the two differ. Plan, quantize, convert, generate, train and serve share it; it renders as
 * text or JSON. The ledger's arena owns all its memory.
 */
#ifndef NIB_LEDGER_H
#define NIB_LEDGER_H

#include "json.h"

#include <stdarg.h>

enum {
    NIB_RUNG_COUNT = NIB_RUNG_UNQUANTIZED + 1,
    NIB_VERDICT_COUNT = NIB_VERDICT_NO + 1,
    NIB_SETTING_COUNT = NIB_SETTING_NONE + 1,
    NIB_ASKER_COUNT = NIB_BY_REQUEST + 1
};
extern const char *const nib__rung_names[];    /* "none", "kernel", ... */
extern const char *const nib__verdict_names[]; /* "runs", "could", "no" */

/* A way to get a layer done as asked, or better. The planner planned again with this one change. */
typedef struct nib_ledger_advice {
    const char *code;   /* the kind, stable: one of nib__advice_codes */
    const char *option; /* what to type, "--recipe int8dq"; NULL: no option helps */
    const char *text;   /* what it gains */
} nib_ledger_advice;

typedef struct nib_ledger_use {
    const char *phase;    /* "infer", "forward", "backward" */
    int64_t m_min, m_max; /* m_max 0: no limit */
    const char *kernel, *device;
    const char *quant; /* the row that quantizes the input; NULL: none needed */
    double predicted_us;
    double tuned_us; /* of the row alone, measured for this shape; 0: not measured */
} nib_ledger_use;

typedef struct nib_candidate {
    const char *kernel;
    nib_verdict verdict;
    nib_reason *reasons; /* all failed conditions; for COULD one reason: the rank */
    size_t reason_count;
    const char *phase;       /* of the product it was considered for */
    const char *engine;      /* of another engine's kernel: "torchao 0.10"; NULL: Nibble's own */
    const char *consequence; /* what that engine then does; NULL */
    const char *source;      /* "commit:path"; NULL */
} nib_candidate;

/* The role of a line for an operation without weights. */
#define NIB_LEDGER_OPERATION "operation"

typedef struct nib_ledger_layer {
    const char *name, *role, *asked, *done; /* scheme@device */
    const char *rule;    /* that decided: "recipe", "--skip lm_head", "mxfp8 keeps the head" */
    const char *allowed; /* what allowed the rung; NULL: nothing had to, or denied */
    nib_rung rung;
    bool denied; /* no kernel is allowed */
    int64_t n, k;
    bool bias;
    const char *bias_form; /* "float", "int8", "int32"; NULL: no bias, or unknown */
    uint64_t bytes;
    double sqnr_db; /* NaN: not measured */
    /* How quantizing chose codes; NULL: rounded to nearest. objective: what the method makes small,
     * of rounding's codes and of the written ones; 0 and 0 until they are written. */
    const char *method;
    double objective[2];
    const char *kept; /* by a conversion: "lossless", "lossy", ...; NULL: no conversion */
    nib_reason *reasons;
    size_t reason_count;
    nib_ledger_use *uses;
    size_t use_count;
    nib_candidate *candidates; /* only with --layer and --engine */
    size_t candidate_count;
    bool detailed; /* named by --layer */
    nib_ledger_advice *advice;
    size_t advice_count;
} nib_ledger_layer;

typedef struct nib_ledger_tensor {
    const char *name, *asked, *done, *reason;
    double max_rel_change;
} nib_ledger_tensor;

extern const char *const nib__setting_relation_names[]; /* "equivalent", ..., "without effect" */

extern const char *const nib__asker_names[]; /* "option", "recipe", ... */

/* A request that is not done exactly as asked, other than the scheme and device of a layer: a
 * dataset, a key, a filter, a thread count, a scale type. Settings that are followed have no
 * line. */
typedef struct nib_ledger_setting {
    const char *code;  /* the kind, stable: one of nib__ledger_codes; --allow takes it */
    const char *name;  /* "training.dataset", "--lookup", "lm_head.weight" */
    const char *asked; /* its value; NULL: it has none */
    const char *done;  /* NULL: nothing */
    nib_asker by;
    nib_setting_relation relation;
    const char *text; /* why, and how to get what was asked; ends a sentence */
    bool allowed;     /* by --allow CODE */
} nib_ledger_setting;

typedef enum nib_code_kind {
    NIB_LEDGER_SETTING,
    NIB_LEDGER_REASON,
    NIB_LEDGER_ADVICE,
    NIB_LEDGER_NOTE,
    NIB_LEDGER_KIND_COUNT
} nib_code_kind;
extern const char *const nib__code_kind_names[];

typedef struct nib_ledger_code {
    nib_code_kind kind;
    const char *code, *meaning;
} nib_ledger_code;
extern const nib_ledger_code nib__ledger_codes[]; /* ends with a code of NULL */

typedef struct nib_ledger {
    nib_arena arena;
    nib_ledger_layer *layers;
    size_t layer_count;
    nib_ledger_tensor *tensors;
    size_t tensor_count;
    nib_ledger_setting *settings;
    size_t setting_count;
    nib_reason *notes; /* about the whole run, unasked: predicted speed, memory */
    size_t note_count;
    bool failed; /* out of memory while filling */
} nib_ledger;

void nib__ledger_init(nib_ledger *ledger, const nib_allocator *a);
void nib__ledger_free(nib_ledger *ledger);
/* Returns a zeroed line; NULL when out of memory (then `failed` is set, and the writers fail too).
 * nib__ledger_text copies a string into the ledger's arena. */
nib_ledger_layer *nib__ledger_add_layer(nib_ledger *ledger, const char *name);
nib_ledger_tensor *nib__ledger_add_tensor(nib_ledger *ledger, const char *name);
/* Copies the line with its strings; format and the arguments after it make its sentence. Does
 * nothing if ledger is NULL. */
void nib__ledger_add_setting(nib_ledger *ledger, const nib_ledger_setting *setting,
                             const char *format, ...) NIB_PRINTF(3, 4);
/* A key of the model's files that something else overrules. asked NULL: the value is not shown.
 * done NULL: nothing is done instead, so the key has no effect. */
void nib__ledger_add_overruled(nib_ledger *ledger, const char *code, const char *key,
                               const char *asked, const char *done, const char *format, ...)
    NIB_PRINTF(6, 7);
/* A key of one of these files that Nibble does not read. */
void nib__ledger_add_unread(nib_ledger *ledger, const char *code, const char *file, const char *key,
                            const char *value);
/* "training.compile true (config): kernels are compiled already" */
void nib__ledger_setting_sentence(const nib_ledger_setting *setting, nib_text *out);
/* Adds all settings and notes of another ledger. */
void nib__ledger_append(nib_ledger *ledger, const nib_ledger *from);
/* Adds the settings of another ledger that this one lacks. */
void nib__ledger_merge_settings(nib_ledger *ledger, const nib_ledger *from);
/* Marks the settings whose code is among the values of --allow. */
void nib__ledger_allow(nib_ledger *ledger, const nib_strings *allow);
bool nib__setting_code_is_known(const char *code);
/* --strict: NIB_NOT_AS_ASKED with a sentence if a setting is "other" or "without effect" and not
 * allowed. */
nib_status nib__ledger_strict(const nib_ledger *ledger, nib_err *err);
void nib__ledger_add_note(nib_ledger *ledger, const char *code, const char *format, ...)
    NIB_PRINTF(3, 4);
/* Whether there is a note with this code. */
bool nib__ledger_has_note(const nib_ledger *ledger, const char *code);
/* Adds the notes of another ledger that have this code. */
void nib__ledger_copy_notes(nib_ledger *ledger, const nib_ledger *from, const char *code);
const char *nib__ledger_text_v(nib_ledger *ledger, const char *format, va_list args);
/* Makes room for one more element at the end of an array; returns the array, NULL when memory ran
 * out. */
void *nib__ledger_grow(nib_ledger *ledger, void *array, size_t count, size_t size);
const char *nib__ledger_text(nib_ledger *ledger, const char *format, ...) NIB_PRINTF(2, 3);
/* code and text must be constants or in the ledger's arena already. */
void nib__ledger_add_reason(nib_ledger *ledger, nib_ledger_layer *layer, const char *code,
                            const char *text);
void nib__ledger_add_advice(nib_ledger *ledger, nib_ledger_layer *layer,
                            const nib_ledger_advice *advice);
/* As lines of a table: "  > --recipe int8dq: ..." with an option, "  - ..." without one. */
void nib__ledger_render_advice(const nib_ledger_layer *layer, nib_text *out);
/* NULL when out of memory. */
nib_candidate *nib__ledger_add_candidate(nib_ledger *ledger, nib_ledger_layer *layer);
void nib__ledger_add_candidate_reason(nib_ledger *ledger, nib_candidate *candidate,
                                      const char *code, const char *text);

/* Counts of linear layers for the summary and "counts": asked = done + substituted + denied, where
 * a layer counts as done if it has no rung and is not denied. */
typedef struct nib_ledger_counts {
    size_t asked, done, substituted, denied;
    size_t embeddings; /* those not as asked; embeddings are not linear layers */
    size_t operations; /* without weights, those not as asked */
    size_t settings[NIB_SETTING_COUNT];
} nib_ledger_counts;
nib_ledger_counts nib__ledger_count(const nib_ledger *ledger);
bool nib__ledger_is_linear(const nib_ledger_layer *layer);

/* Writes the members "layers", "tensors", "settings", "notes" and "counts" into the open JSON
 * object of w; docs/formats.md describes them. */
void nib__ledger_json(const nib_ledger *ledger, nib_jsonw *w);
/* Writes the member "settings" only; the member "notes" only. */
void nib__ledger_settings_json(const nib_ledger *ledger, nib_jsonw *w);
void nib__ledger_notes_json(const nib_ledger *ledger, nib_jsonw *w);
/* Renders the table, with layers that share asked, done and reasons folded into one line with a
 * count; then every substitution in full. */
void nib__ledger_render(const nib_ledger *ledger, bool fold, nib_text *out);
/* Renders the settings whose relation is `least` or stronger. */
void nib__ledger_render_settings(const nib_ledger *ledger, nib_setting_relation least,
                                 nib_text *out);
/* "", " +b", " +b8", " +b32": marks a bias after the shape. */
const char *nib__ledger_bias_mark(const nib_ledger_layer *layer);
/* "2256x224 +b"; empty for an operation. */
const char *nib__ledger_shape(char out[48], const nib_ledger_layer *layer);
/* "model.layers.*.mlp.up_proj": a name with its numbers replaced; layers fold only if these are
 * equal. */
const char *nib__ledger_fold_name(char *out, size_t size, const char *name);
/* Wraps a sentence at `width` columns; the first line begins with `first`, the others with
 * `rest`. */
void nib__ledger_wrap(nib_text *out, const char *first, const char *rest, int width,
                      const char *words);
/* "225 linear layers: 225 asked 8da4w-g32, 225 done on cpu/avx512vnni, 0 substituted" */
void nib__ledger_summary(const nib_ledger *ledger, nib_text *out);

#endif

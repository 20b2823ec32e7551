/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the planner: the options --allow, --kernel and --place, each [PATTERN=]VALUE, read and
 * checked.
 */
#ifndef NIB_PLAN_OPTIONS_H
#define NIB_PLAN_OPTIONS_H

#include "planner.h"

typedef struct nib_plan_option {
    nib_pattern *pattern;       /* NULL: every layer and operation */
    const char *text;           /* as given */
    nib_rung rung;              /* --allow */
    const nib_kernel *kernel;   /* --kernel */
    const nib_machine *machine; /* --place */
    size_t layers;              /* that --kernel or --place decided */
} nib_plan_option;

typedef struct nib_plan_options {
    nib_plan_option *allow, *kernel, *place;
    size_t allow_count, kernel_count, place_count;
    nib_pattern *detail;
    const nib_allocator *allocator;
} nib_plan_options;

/* Every pattern must match a layer, that of --allow a layer or an operation; every value be known.
 * On failure nothing is held. */
nib_status nib__plan_options_read(nib_plan_options *out, const nib_policy *policy,
                                  const nib_machine *machine, const nib_layer *layers, size_t count,
                                  const nib_allocator *a, nib_err *err);
void nib__plan_options_free(nib_plan_options *options);

/* The first option that speaks of the layer; NULL: none. */
nib_plan_option *nib__plan_option_find(nib_plan_option *options, size_t count, const char *layer);
/* Packing onto devices: which row packs each layer's weight, and a note with bytes and time. */
void nib__plan_packing(nib_assignment *out, const nib_layer *layers, size_t count,
                       const nib_policy *policy);
/* Names of the operations of inference without weights; NULL past the last. */
const char *nib__plan_operation_name(size_t i);
/* Plans those operations, once every layer is planned. */
void nib__plan_operations(nib_assignment *out, const nib_plan_options *options,
                          const nib_layer *layers, size_t count, const nib_policy *policy);
/* Plans how a token is drawn, and says what moves for it. */
void nib__plan_drawing(nib_assignment *out, const nib_policy *policy);
/* Of training on a device: what stays on its host, and what crosses for it. */
void nib__plan_training(nib_assignment *out, const nib_layer *layers, size_t count,
                        const nib_policy *policy);
/* Once every layer is decided: NIB_USAGE for a --kernel or --place that decided none. */
nib_status nib__plan_options_used(const nib_plan_options *options, nib_err *err);

#endif

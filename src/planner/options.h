/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the planner: the options --allow, --kernel and --place, each [PATTERN=]VALUE, parsed and
 * checked; and the planning of what is not a layer.
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
    size_t layers;              /* decided by --kernel or --place */
} nib_plan_option;

typedef struct nib_plan_options {
    nib_plan_option *allow, *kernel, *place;
    size_t allow_count, kernel_count, place_count;
    nib_pattern *detail;
    const nib_allocator *allocator;
} nib_plan_options;

/* Every pattern must match a layer, or for --allow an operation, and every value must be known. On
 * failure nothing is allocated. */
nib_status nib__plan_options_read(nib_plan_options *out, const nib_policy *policy,
                                  const nib_machine *machine, const nib_layer *layers, size_t count,
                                  const nib_allocator *a, nib_err *err);
void nib__plan_options_free(nib_plan_options *options);

/* The first option that matches the layer; NULL: none. */
nib_plan_option *nib__plan_option_find(nib_plan_option *options, size_t count, const char *layer);
/* Chooses the row that packs each layer's weight for a device, and notes bytes and time. */
void nib__plan_packing(nib_assignment *out, const nib_layer *layers, size_t count,
                       const nib_policy *policy);
/* The name of inference operation i without weights; NULL past the last. */
const char *nib__plan_operation_name(size_t i);
/* Plans those operations, after every layer. */
void nib__plan_operations(nib_assignment *out, const nib_plan_options *options,
                          const nib_layer *layers, size_t count, const nib_policy *policy);
/* Plans how tokens are drawn, and notes what is copied for them. */
void nib__plan_drawing(nib_assignment *out, const nib_policy *policy);
/* For training on a device: notes what stays on the host and what is copied. */
void nib__plan_training(nib_assignment *out, const nib_layer *layers, size_t count,
                        const nib_policy *policy);
/* After every layer: NIB_USAGE for a --kernel or --place that decided none. */
nib_status nib__plan_options_used(const nib_plan_options *options, nib_err *err);

#endif

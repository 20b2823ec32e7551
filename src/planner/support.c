/* SPDX-License-Identifier: Apache-2.0
 *
 * Recipes on machines, as a Markdown table for the documentation: the planner plans one plain
 * layer, and each cell names the target of its kernel and whether it is built.
 */
#include "variant.h"

#include <stdio.h>

typedef struct column {
    const char *title;
    const char *machine; /* a known machine; NULL: an x86 CPU with `isa` */
    int64_t isa;
} column;

#define AVX512 (NIB_ISA_AVX2 | NIB_ISA_AVX512)

static const column columns[] = {
    {"plain C", NULL, 0},
    {"AVX2", NULL, NIB_ISA_AVX2},
    {"AVX-512", NULL, AVX512},
    {"VNNI, BF16", NULL, AVX512 | NIB_ISA_AVX512VNNI | NIB_ISA_AVX512BF16},
    {"AMX", NULL, AVX512 | NIB_ISA_AVX512VNNI | NIB_ISA_AVX512BF16 | NIB_ISA_AMX},
    {"raspberry-pi-5", "raspberry-pi-5", 0},
    {"graviton3", "graviton3", 0},
    {"apple-m2-cpu", "apple-m2-cpu", 0},
    {"apple-m2", "apple-m2", 0},
    {"mi210", "mi210", 0},
    {"a100", "a100", 0},
    {"h200", "h200", 0},
    {"b200", "b200", 0},
};

/* The length of "avx512vnni" in a kernel's name; the rest is its tile. */
static int target_length(const char *target)
{
    int length = (int)strcspn(target, "_");
    while (target[length] == '_' && !(target[length + 1] >= '0' && target[length + 1] <= '9'))
        length += 1 + (int)strcspn(target + length + 1, "_");
    return length;
}

static void render_cell(const column *c, const nib_scheme_base *base, const nib_machines *known,
                        nib_text *out)
{
    nib_machine local;
    nib_layer layer = {
        .name = "x", .role = NIB_ROLE_UP, .n = 4096, .k = 4096, .scale_type = NIB_TYPE_F32};
    nib_policy policy = {.dtype = NIB_TYPE_BF16, .declared = c->machine != NULL};
    nib_variant variant;
    nib__machine_here(&local, c->isa, 1);
    const nib_machine *machine =
        c->machine != NULL ? nib__machines_find(known, c->machine) : &local;
    if (machine == NULL)
        return;
    layer.asked = layer.stored = base->scheme;
    if (layer.asked.code == NIB_CODE_F32 || layer.asked.code == NIB_CODE_F16)
        policy.dtype = layer.asked.code == NIB_CODE_F32 ? NIB_TYPE_F32 : NIB_TYPE_F16;
    nib__variant_find(&variant, &layer, &layer.asked, machine, &policy, NULL);
    if (!variant.runs) {
        nib__text_str(out, " no |");
        return;
    }
    const char *target = strstr(variant.uses[0].kernel->name, "__");
    target = target == NULL ? "?" : target + 2;
    nib__text_format(out, " %.*s%s |", target_length(target), target,
                     nib__kernel_built(variant.uses[0].kernel) ? "" : "?");
}

void nib__support_render(const nib_machines *known, nib_text *out)
{
    nib__text_str(
        out, "\n## Recipes on machines\n\nThe target of the kernel that runs a plain layer of each "
             "recipe. A `?` marks a kernel that is declared for\nplanning but not built. All "
             "others run, and are checked against plain C wherever the tests run.\n\n| recipe |");
    for (size_t c = 0; c < COUNT(columns); c++)
        nib__text_format(out, " %s |", columns[c].title);
    nib__text_str(out, "\n|---|");
    for (size_t c = 0; c < COUNT(columns); c++)
        nib__text_str(out, "---|");
    for (size_t r = 0; nib__scheme_base(r) != NULL; r++) {
        nib__text_format(out, "\n| %s |", nib__scheme_base(r)->name);
        for (size_t c = 0; c < COUNT(columns); c++)
            render_cell(&columns[c], nib__scheme_base(r), known, out);
    }
    nib__text_str(out, "\n");
}

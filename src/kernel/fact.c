/* SPDX-License-Identifier: Apache-2.0
 *
 * The names of facts and their values in codes, sentences and documentation. Conditions on facts
 * are in cond.c.
 */
#include "fact.h"

#include <inttypes.h>

#define X(id, name) name,
const char *const nib__op_names[] = {NIB_OPS(X) NULL};
#undef X
#define X(id, key, name, element, group, scale) name,
const char *const nib__code_names[] = {NIB_CODES(X) NULL};
#undef X
#define X(id, short_name, key, name, code, block) name,
const char *const nib__act_names[] = {NIB_ACTS(X) NULL};
#undef X
const char *const nib__device_names[] = {"cpu", "opencl", "cuda", NULL};
const char *const nib__maker_names[] = {"x86", "arm", "nvidia", "amd", "apple", "intel", NULL};
const char *const nib__isa_names[] = {
    "avx2", "avx512", "avx512vnni", "avx512bf16", "neon", "dotprod", "i8mm", "amx", NULL,
};
const char *const nib__zero_names[] = {"none", "int", "float", NULL};
const char *const nib__layout_hint_names[] = {
    "none", "plain", "cutlass-int4", "tile-packed", "marlin", "opaque", "other", NULL,
};
const char *const nib__ptq_names[] = {"rtn", "search", "gptq",   "hqq",    "qronos",
                                      "awq", "learn",  "smooth", "rotate", NULL};
const char *const nib__phase_names[] = {"infer", "forward", "backward", NULL};

#define X(id, stored, name, bits) name,
const char *const nib__type_names[] = {NIB_TYPES(X) NULL};
#undef X

_Static_assert(COUNT(nib__device_names) == NIB_DEVICE_COUNT + 1, "a name for each device");
_Static_assert(COUNT(nib__maker_names) == NIB_MAKER_COUNT + 1, "a name for each maker");
_Static_assert(COUNT(nib__layout_hint_names) == NIB_HINT_COUNT + 1, "a name for each layout");
_Static_assert(COUNT(nib__ptq_names) == NIB_PTQ_COUNT + 1, "a name for each method");
_Static_assert(COUNT(nib__phase_names) == NIB_PHASE_COUNT + 1, "a name for each phase");

#define X(id, kind, key, owner, noun, names) {NIB_KIND_##kind, key, owner, noun, names},
const nib_fact_info nib__fact_info[NIB_FACT_COUNT] = {NIB_FACTS(X)};
#undef X

static void append_set(const char *const *names, int64_t set, nib_text *out)
{
    const char *between = "";
    for (int bit = 0; names[bit] != NULL; bit++) {
        if ((set >> bit & 1) == 0)
            continue;
        nib__text_format(out, "%s%s", between, names[bit]);
        between = ", ";
    }
    if (*between == 0)
        nib__text_str(out, "none");
}

static void append_enum(const char *const *names, int64_t value, nib_text *out)
{
    int64_t known = 0;
    while (names[known] != NULL)
        known++;
    if (value >= 0 && value < known)
        nib__text_str(out, names[value]);
    else
        nib__text_format(out, "%" PRId64 " (unknown)", value);
}

static void append_int(nib_fact fact, int64_t value, nib_text *out)
{
    if (fact == NIB_FACT_GROUP && value == NIB_GROUP_ROW)
        nib__text_str(out, "row");
    else if (fact == NIB_FACT_GROUP && value == NIB_GROUP_TENSOR)
        nib__text_str(out, "tensor");
    else if ((fact == NIB_FACT_SM || fact == NIB_FACT_CDNA || fact == NIB_FACT_DRIVER) &&
             value == 0)
        nib__text_str(out, "none");
    else
        nib__text_format(out, "%" PRId64, value);
}

void nib__fact_say(nib_fact fact, int64_t value, nib_text *out)
{
    const nib_fact_info *info = &nib__fact_info[fact];
    switch (info->kind) {
    case NIB_KIND_ENUM: append_enum(info->names, value, out); break;
    case NIB_KIND_SET: append_set(info->names, value, out); break;
    case NIB_KIND_FLAG: nib__text_str(out, value != 0 ? "yes" : "no"); break;
    case NIB_KIND_INT: append_int(fact, value, out); break;
    }
}

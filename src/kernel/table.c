/* SPDX-License-Identifier: Apache-2.0
 *
 * THE table: every family of rows, Nibble's first, other engines' last; and queries on rows. Rows
 * are defined beside their code; this file only lists the families.
 */
#include "peers.h"

/* One family per line, so that branches that add one do not conflict. */
/* clang-format off */
static const nib_family *const families[] = {
    &nib__family_linear_int,
    &nib__family_quant,
    &nib__family_quant_w,
    &nib__family_linear_float,
    &nib__family_linear_fp8,
    &nib__family_linear_backward,
    &nib__family_cast,
    &nib__family_token,
    &nib__family_experts,
    &nib__family_conv,
    &nib__family_delta,
    &nib__family_ssm,
    &nib__family_attn,
    &nib__family_sample,
    &nib__family_attn_dx,
    &nib__family_recurrence_dx,
    &nib__family_train,
    &nib__family_ocl_token,
    &nib__family_ocl_experts,
    &nib__family_cuda_token,
    &nib__family_ocl_linear,
    &nib__family_ocl_quant,
    &nib__family_ocl_quant_w,
    &nib__family_ocl_gfx90a,
    &nib__family_ocl_extensions,
    &nib__family_gpu_pack,
    &nib__family_ocl_pack,
    &nib__family_ocl_sample,
    &nib__family_ocl_train,
    &nib__family_cuda_linear,
    &nib__family_cuda_few,
    &nib__family_peers,
    &nib__family_peers_experts,
};
/* clang-format on */

const char *const nib__arithmetic_names[] = {"f32", "bf16", "i32", "lanes", "exact", "other"};
_Static_assert(COUNT(nib__arithmetic_names) == NIB_ARITHMETIC_COUNT, "a name for each contract");

size_t nib__kernel_count(void)
{
    size_t count = 0;
    for (size_t f = 0; f < COUNT(families); f++)
        count += families[f]->count;
    return count;
}

const nib_kernel *nib__kernel_at(size_t i)
{
    for (size_t f = 0; f < COUNT(families); f++) {
        if (i < families[f]->count)
            return &families[f]->rows[i];
        i -= families[f]->count;
    }
    return NULL;
}

const nib_kernel *nib__kernel_next(nib_kernel_walk *walk)
{
    while (walk->family < COUNT(families) && walk->row == families[walk->family]->count)
        *walk = (nib_kernel_walk){walk->family + 1, 0};
    return walk->family < COUNT(families) ? &families[walk->family]->rows[walk->row++] : NULL;
}

const nib_kernel *nib__kernel_find(const char *name)
{
    for (size_t f = 0; f < COUNT(families); f++)
        for (size_t i = 0; i < families[f]->count; i++)
            if (strcmp(families[f]->rows[i].name, name) == 0)
                return &families[f]->rows[i];
    return NULL;
}

bool nib__kernel_built(const nib_kernel *kernel)
{
    return kernel->peer == NULL && (kernel->run.any != NULL || kernel->gpu != NULL);
}

bool nib__kernel_asks(const nib_kernel *kernel, nib_fact fact)
{
    const nib_cond *c = kernel->conds;
    while (c->relation != NIB_REL_END && c->fact != fact)
        c++;
    return c->relation != NIB_REL_END;
}

bool nib__kernel_is_ref(const nib_kernel *kernel)
{
    return kernel->peer == NULL && kernel->reference == NULL;
}

static bool key_matches(int64_t key, int64_t fact) { return key == NIB_ANY || key == fact; }

bool nib__kernel_keyed(const nib_kernel *kernel, const nib_query *query)
{
    return kernel->op == (nib_op)query->fact[NIB_FACT_OP] &&
           key_matches(kernel->code, query->fact[NIB_FACT_CODE]) &&
           key_matches(kernel->act, query->fact[NIB_FACT_ACT]) &&
           key_matches(kernel->input, query->fact[NIB_FACT_INPUT]) &&
           key_matches(kernel->device, query->fact[NIB_FACT_DEVICE]);
}

/* Whether a row is built or excluded depends on the row, not on the query; these conditions apply
 * to every row. */
static const nib_cond built_cond = NIB_IS(BUILT, 1, "it is not compiled into this build");
static const nib_cond offered_cond = NIB_IS(OFFERED, 1, "--without leaves it out");

size_t nib__kernel_failed(const nib_kernel *kernel, const nib_query *query, bool ask_built,
                          const nib_cond **failed, size_t room)
{
    size_t count = 0;
    if (ask_built && kernel->peer == NULL && !nib__kernel_built(kernel)) {
        if (count < room)
            failed[count] = &built_cond;
        count++;
    }
    if (kernel->peer == NULL && query->without != NULL &&
        nib__strings_hold(query->without, kernel->name)) {
        if (count < room)
            failed[count] = &offered_cond;
        count++;
    }
    for (const nib_cond *c = kernel->conds; c->relation != NIB_REL_END; c++) {
        if (nib__cond_holds(c, query))
            continue;
        if (count < room)
            failed[count] = c;
        count++;
    }
    return count;
}

bool nib__kernel_holds(const nib_kernel *kernel, const nib_query *query, bool ask_built)
{
    return nib__kernel_failed(kernel, query, ask_built, NULL, 0) == 0;
}

int nib__kernel_key_conds(const nib_kernel *kernel, nib_cond conds[NIB_KEY_CONDS])
{
    static const nib_fact facts[] = {NIB_FACT_CODE, NIB_FACT_ACT, NIB_FACT_INPUT, NIB_FACT_DEVICE};
    const int64_t key[COUNT(facts)] = {kernel->code, kernel->act, kernel->input, kernel->device};
    int count = 0;
    conds[count++] = (nib_cond){NIB_REL_IS, NIB_FACT_OP, kernel->op, NULL};
    for (size_t i = 0; i < COUNT(facts); i++)
        if (key[i] != NIB_ANY)
            conds[count++] = (nib_cond){NIB_REL_IS, facts[i], key[i], NULL};
    return count;
}

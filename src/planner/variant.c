/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows that run a layer in one scheme on one machine: the query, the choice per range of m or
 * phase, and the arithmetic contract that all of them share.
 */
#include "variant.h"

#include "tuned.h"

/* ---- the query ---- */

void nib__plan_query(nib_query *out, const nib_layer *layer, const nib_scheme *scheme,
                     const nib_machine *machine, const nib_policy *policy, nib_op op,
                     nib_phase phase, int64_t m)
{
    *out = machine->facts;
    int64_t *fact = out->fact;
    fact[NIB_FACT_OP] = op;
    fact[NIB_FACT_CODE] = scheme->code;
    fact[NIB_FACT_ACT] = op == NIB_OP_EMBED ? NIB_ACT_FLOAT : scheme->act;
    fact[NIB_FACT_INPUT] = policy->dtype;
    fact[NIB_FACT_N] = layer->n;
    fact[NIB_FACT_K] = layer->k;
    fact[NIB_FACT_M] = m;
    fact[NIB_FACT_GROUP] = nib__scheme_is_quantized(scheme) ? scheme->group : NIB_GROUP_ROW;
    fact[NIB_FACT_SYMMETRIC] = scheme->symmetric;
    fact[NIB_FACT_ACT_SYMMETRIC] = scheme->act_symmetric;
    fact[NIB_FACT_SCALE_TYPE] = nib__layer_scale_type(layer, scheme);
    fact[NIB_FACT_ZERO] = scheme->zero;
    fact[NIB_FACT_ZERO_TYPE] = nib__layer_zero_type(layer, scheme);
    fact[NIB_FACT_ACT_SCALE_TYPE] = fact[NIB_FACT_ACT] == NIB_ACT_FLOAT ? NIB_TYPE_NONE
                                    : layer->act_scale_type == NIB_TYPE_NONE
                                        ? NIB_TYPE_F32
                                        : layer->act_scale_type;
    fact[NIB_FACT_BIAS] = layer->bias;
    fact[NIB_FACT_EXPERT] = layer->experts > 1;
    fact[NIB_FACT_Q6_K] = layer->q6_k && nib__scheme_same_weight(&layer->stored, scheme);
    fact[NIB_FACT_LAYOUT_HINT] = layer->hint;
    fact[NIB_FACT_PHASE] = phase;
    fact[NIB_FACT_BUILT] = 1;
    fact[NIB_FACT_OFFERED] = 1;
    out->without = &policy->without;
}

/* ---- the choice ---- */

bool nib__variant_outpaces(const nib_kernel *a, const nib_kernel *b, const nib_machine *machine,
                           int64_t m)
{
    enum { PROMPT = 17 }; /* from here on arithmetic limits a product, not reading weights */
    const double clearly = 1.25;
    const bool is_product =
        a->op == NIB_OP_LINEAR || a->op == NIB_OP_LINEAR_DX || a->op == NIB_OP_LINEAR_DW;
    return machine != NULL && machine->measured && m >= PROMPT && is_product &&
           a->arithmetic == b->arithmetic && a->unit != NIB_UNIT_SCALAR &&
           b->unit != NIB_UNIT_SCALAR && machine->rate[a->unit] > clearly * machine->rate[b->unit];
}

/* Prefers rows that pay off at this m; then, with many tokens, a unit that was measured clearly
 * faster (same contract, so same bits); then the lower rank; then the table's order. */
static bool is_better(const nib_kernel *a, const nib_kernel *b, const nib_machine *machine,
                      int64_t m)
{
    const bool a_pays = m >= a->m_best, b_pays = m >= b->m_best;
    if (a_pays != b_pays)
        return a_pays;
    if (nib__variant_outpaces(a, b, machine, m) || nib__variant_outpaces(b, a, machine, m))
        return nib__variant_outpaces(a, b, machine, m);
    return a->rank < b->rank;
}

static const nib_fact key_facts[] = {NIB_FACT_OP, NIB_FACT_CODE, NIB_FACT_ACT, NIB_FACT_INPUT,
                                     NIB_FACT_DEVICE};

/* Nibble's rows whose key matches a query: a few of a long table, and the same ones for all ranges
 * of tokens, so the table is searched once. Starts as {0}. */
typedef struct keyed_rows {
    bool is_found;
    int64_t key[COUNT(key_facts)];
    const nib_kernel *rows[24];
    size_t count;
    nib_kernel_walk rest; /* continues in the table if `rows` is full */
} keyed_rows;

static const nib_kernel *next_keyed(nib_kernel_walk *walk, const nib_query *query)
{
    for (const nib_kernel *row; (row = nib__kernel_next(walk)) != NULL;)
        if (row->op == (nib_op)query->fact[NIB_FACT_OP] && row->peer == NULL &&
            nib__kernel_keyed(row, query))
            return row;
    return NULL;
}

static void update_keyed(keyed_rows *k, const nib_query *query)
{
    bool same = k->is_found;
    for (size_t i = 0; i < COUNT(key_facts); i++)
        same = same && k->key[i] == query->fact[key_facts[i]];
    if (same)
        return;
    *k = (keyed_rows){.is_found = true};
    for (size_t i = 0; i < COUNT(key_facts); i++)
        k->key[i] = query->fact[key_facts[i]];
    while (k->count < COUNT(k->rows) && (k->rows[k->count] = next_keyed(&k->rest, query)) != NULL)
        k->count++;
}

enum { ANY_CONTRACT = -1 };

static const nib_kernel *best_row(keyed_rows *k, const nib_query *query, const nib_machine *machine,
                                  bool ask_built, int contract, const nib_kernel *bound)
{
    const nib_kernel *best = NULL;
    const int64_t m = query->fact[NIB_FACT_M];
    update_keyed(k, query);
    nib_kernel_walk rest = k->rest;
    for (size_t i = 0;; i++) {
        const nib_kernel *row = i < k->count ? k->rows[i] : next_keyed(&rest, query);
        if (row == NULL)
            break;
        if (bound != NULL && bound->op == row->op && bound != row)
            continue;
        if (contract != ANY_CONTRACT && row->arithmetic != (nib_arithmetic)contract)
            continue;
        if (!nib__kernel_holds(row, query, ask_built))
            continue;
        if (best == NULL || is_better(row, best, machine, m))
            best = row;
    }
    return best;
}

static void set_uses(nib_variant *variant, const nib_layer *layer, const nib_policy *policy)
{
    static const int64_t buckets[][2] = {{1, 1}, {2, 16}, {17, 0}};
    const bool is_embed = layer->role == NIB_ROLE_EMBED;
    const nib_op forward = is_embed ? NIB_OP_EMBED : NIB_OP_LINEAR;
    if (!policy->training) {
        for (size_t i = 0; i < COUNT(buckets); i++)
            variant->uses[i] = (nib_use){.phase = NIB_PHASE_INFER,
                                         .op = forward,
                                         .m_min = buckets[i][0],
                                         .m_max = buckets[i][1]};
        variant->use_count = COUNT(buckets);
        return;
    }
    const int64_t m = nib__max(policy->m, 1);
    variant->uses[0] = (nib_use){.phase = NIB_PHASE_FORWARD, .op = forward, .m_min = m, .m_max = m};
    variant->uses[1] =
        (nib_use){.phase = NIB_PHASE_BACKWARD, .op = NIB_OP_LINEAR_DX, .m_min = m, .m_max = m};
    variant->uses[2] =
        (nib_use){.phase = NIB_PHASE_BACKWARD, .op = NIB_OP_LINEAR_DW, .m_min = m, .m_max = m};
    variant->use_count = is_embed ? 1 : 3;
}

static void use_query(nib_query *query, const nib_variant *variant, const nib_layer *layer,
                      const nib_policy *policy, const nib_use *use, nib_op op)
{
    const nib_scheme high = {.code = NIB_CODE_BF16, .symmetric = true, .act_symmetric = true};
    const bool is_high = policy->wgrad_with_hp && use->op == NIB_OP_LINEAR_DW &&
                         nib__scheme_is_quantized(&variant->scheme);
    nib__plan_query(query, layer, is_high ? &high : &variant->scheme, variant->machine, policy, op,
                    use->phase, use->m_min);
    if (is_high)
        query->fact[NIB_FACT_INPUT] = NIB_TYPE_BF16;
}

/* Chooses rows of one contract for all uses; if a use has none, returns false and fills `missing`
 * and `lacks`. */
static bool find_rows(keyed_rows *k, nib_variant *variant, const nib_layer *layer,
                      const nib_policy *policy, int contract, const nib_kernel *bound)
{
    const bool ask_built = !policy->declared;
    for (int i = 0; i < variant->use_count; i++) {
        nib_query query;
        use_query(&query, variant, layer, policy, &variant->uses[i], variant->uses[i].op);
        variant->uses[i].kernel = best_row(k, &query, variant->machine, ask_built, contract, bound);
        if (variant->uses[i].kernel == NULL) {
            variant->missing = i;
            variant->lacks = variant->uses[i].op;
            return false;
        }
    }
    return true;
}

/* ---- measured order ---- */

/* The fastest measured row with this packing at a use; NULL: none was measured. */
static const nib_kernel *tuned_row(const nib_tuned_line *line, const nib_query *query,
                                   nib_arithmetic contract, const nib_packing *packing)
{
    for (int i = 0; i < line->count; i++) {
        const nib_kernel *row = line->rows[i].kernel;
        if (row->packing == packing && row->arithmetic == contract && row->peer == NULL &&
            nib__kernel_keyed(row, query) && nib__kernel_holds(row, query, true))
            return row;
    }
    return NULL;
}

typedef struct tuned_choice {
    const nib_kernel *rows[NIB_USES_MAX];
    double cost; /* sum over uses of time / best time of the use; 0: unknown */
} tuned_choice;

/* The rows and cost with one layout of the weight for all ranges of tokens. */
static tuned_choice choose_tuned(const nib_tuned_line *const *lines, const nib_query *queries,
                                 int count, nib_arithmetic contract, const nib_packing *packing)
{
    tuned_choice c = {.cost = 0};
    for (int i = 0; i < count; i++) {
        c.rows[i] = tuned_row(lines[i], &queries[i], contract, packing);
        if (c.rows[i] == NULL)
            return (tuned_choice){.cost = 0};
        c.cost += nib__tuned_seconds(lines[i], c.rows[i]) / lines[i]->rows[0].seconds;
    }
    return c;
}

/* Replaces the rows by others of the same contract, all with one layout, if they were measured
 * faster for this shape. */
static void apply_tuned(nib_variant *variant, const nib_layer *layer, const nib_policy *policy)
{
    const double clearly = 0.97; /* of the time; otherwise the ranked rows stay */
    const nib_tuned_line *lines[NIB_USES_MAX];
    nib_query queries[NIB_USES_MAX];
    tuned_choice best = {.cost = 0};
    double now = 0;
    if (variant->machine->tuned == NULL || policy->training || variant->bound != NULL ||
        variant->uses[0].op != NIB_OP_LINEAR)
        return;
    for (int i = 0; i < variant->use_count; i++) {
        use_query(&queries[i], variant, layer, policy, &variant->uses[i], variant->uses[i].op);
        lines[i] = nib__tuned_find(variant->machine->tuned, &queries[i]);
        if (lines[i] == NULL || nib__tuned_seconds(lines[i], variant->uses[i].kernel) == 0)
            return;
        variant->uses[i].tuned_s = nib__tuned_seconds(lines[i], variant->uses[i].kernel);
        now += variant->uses[i].tuned_s / lines[i]->rows[0].seconds;
    }
    const nib_arithmetic contract = variant->uses[0].kernel->arithmetic;
    for (int i = 0; i < lines[0]->count; i++) {
        const tuned_choice c = choose_tuned(lines, queries, variant->use_count, contract,
                                            lines[0]->rows[i].kernel->packing);
        if (c.cost > 0 && (best.cost == 0 || c.cost < best.cost))
            best = c;
    }
    for (int i = 0; best.cost > 0 && best.cost < clearly * now && i < variant->use_count; i++) {
        variant->uses[i].kernel = best.rows[i];
        variant->uses[i].tuned_s = nib__tuned_seconds(lines[i], best.rows[i]);
    }
}

/* Float rows read f32 input directly unless they need sums of it for a float zero point. For a
 * machine that is not here, rows that only round floats need not be declared. */
static bool needs_no_quant(const nib_variant *variant, const nib_query *query,
                           const nib_policy *policy)
{
    return variant->scheme.act == NIB_ACT_FLOAT &&
           (policy->declared || (query->fact[NIB_FACT_INPUT] == NIB_TYPE_F32 &&
                                 variant->scheme.zero != NIB_ZERO_FLOAT));
}

/* Chooses the rows that quantize activations. */
static bool find_quants(keyed_rows *k, nib_variant *variant, const nib_layer *layer,
                        const nib_policy *policy)
{
    for (int i = 0; i < variant->use_count; i++) {
        nib_use *use = &variant->uses[i];
        nib_query query;
        if (use->op == NIB_OP_EMBED)
            continue;
        use_query(&query, variant, layer, policy, use, NIB_OP_QUANT);
        use->quant = best_row(k, &query, variant->machine, !policy->declared, ANY_CONTRACT, NULL);
        if (use->quant == NULL && !needs_no_quant(variant, &query, policy)) {
            variant->missing = i;
            variant->lacks = NIB_OP_QUANT;
            return false;
        }
    }
    return true;
}

/* packing: the layout that the row must write; NULL: plain, or with any_layout whichever. */
static const nib_kernel *best_operand(const nib_query *query, const nib_packing *packing,
                                      bool any_layout, bool ask_built)
{
    const nib_kernel *best = NULL;
    nib_kernel_walk walk = {0};
    for (const nib_kernel *row; (row = nib__kernel_next(&walk)) != NULL;) {
        if (row->peer != NULL || (row->packing != packing && !any_layout) ||
            !nib__kernel_keyed(row, query) || !nib__kernel_holds(row, query, ask_built))
            continue;
        if (best == NULL || row->rank < best->rank)
            best = row;
    }
    return best;
}

/* Training makes the operands of each product on the machine that runs it. A product that is only
 * declared has no layout yet. */
static bool find_operands(nib_variant *variant, const nib_layer *layer, const nib_policy *policy)
{
    for (int i = 0; i < variant->use_count && policy->training; i++) {
        const nib_use *use = &variant->uses[i];
        const bool dw = use->op == NIB_OP_LINEAR_DW;
        const nib_op casts[] = {use->op == NIB_OP_LINEAR ? NIB_OP_CAST : NIB_OP_CAST_T,
                                NIB_OP_QUANT_T, NIB_OP_AMAX};
        if (use->op == NIB_OP_EMBED)
            continue;
        for (size_t j = 0; j < COUNT(casts); j++) {
            nib_query query;
            use_query(&query, variant, layer, policy, use, casts[j]);
            const int64_t code = query.fact[NIB_FACT_CODE];
            if ((j == 1 && !dw) || (j == 2 && code != NIB_CODE_E4M3))
                continue;
            query.fact[NIB_FACT_INPUT] = code == NIB_CODE_F32 ? NIB_TYPE_F32 : NIB_TYPE_BF16;
            if (best_operand(&query, j == 0 ? use->kernel->packing : NULL,
                             policy->declared && j == 0 && use->kernel->packing == NULL,
                             !policy->declared) != NULL)
                continue;
            variant->missing = i;
            variant->lacks = casts[j];
            return false;
        }
    }
    return true;
}

/* ---- variants found before: most layers of a model differ only in their names ---- */

static bool same_layer(const nib_layer *a, const nib_layer *b)
{
    return a->role == b->role && a->n == b->n && a->k == b->k && a->experts == b->experts &&
           a->top_k == b->top_k && a->heads == b->heads &&
           nib__scheme_equal(&a->stored, &b->stored) && nib__scheme_equal(&a->asked, &b->asked) &&
           nib__scheme_equal(&a->qat, &b->qat) && a->act == b->act && a->bias == b->bias &&
           a->bias_form == b->bias_form && a->scale_type == b->scale_type &&
           a->zero_type == b->zero_type && a->act_scale_type == b->act_scale_type &&
           a->stored_bytes == b->stored_bytes && a->plain == b->plain && a->q6_k == b->q6_k &&
           a->ordered == b->ordered && a->shares_input == b->shares_input && a->hint == b->hint;
}

static bool same_policy(const nib_policy *a, const nib_policy *b)
{
    return a->dtype == b->dtype && a->training == b->training && a->m == b->m &&
           a->wgrad_with_hp == b->wgrad_with_hp && a->declared == b->declared &&
           a->without.items == b->without.items && a->without.count == b->without.count &&
           a->refused == b->refused && a->refused_count == b->refused_count &&
           a->weights == b->weights;
}

static bool recall_variant(nib_variant *variant, const nib_layer *layer, const nib_scheme *scheme,
                           const nib_machine *machine, const nib_policy *policy,
                           const nib_kernel *bound)
{
    const nib_variant_memo *memo = policy->memo;
    for (int i = 0; memo != NULL && i < memo->count; i++) {
        const nib_found_variant *f = &memo->found[i];
        if (f->variant.machine != machine || f->variant.bound != bound ||
            !nib__scheme_equal(&f->variant.scheme, scheme) || !same_layer(&f->layer, layer) ||
            !same_policy(&f->policy, policy))
            continue;
        *variant = f->variant;
        return true;
    }
    return false;
}

static void keep_variant(const nib_variant *variant, const nib_layer *layer,
                         const nib_policy *policy)
{
    nib_variant_memo *memo = policy->memo;
    if (memo == NULL)
        return;
    memo->found[memo->next] =
        (nib_found_variant){.layer = *layer, .policy = *policy, .variant = *variant};
    memo->next = (memo->next + 1) % NIB_FOUND_VARIANTS;
    memo->count = memo->count < NIB_FOUND_VARIANTS ? memo->count + 1 : memo->count;
}

static void find_variant(nib_variant *variant, const nib_layer *layer, const nib_scheme *scheme,
                         const nib_machine *machine, const nib_policy *policy,
                         const nib_kernel *bound)
{
    keyed_rows k = {0};
    *variant = (nib_variant){.scheme = *scheme, .machine = machine, .bound = bound};
    set_uses(variant, layer, policy);
    variant->lacks = variant->uses[0].op;
    if (!find_rows(&k, variant, layer, policy, ANY_CONTRACT, bound))
        return;
    const int first = (int)variant->uses[0].kernel->arithmetic;
    bool found = find_rows(&k, variant, layer, policy, first, bound);
    for (int contract = 0; !found && contract < NIB_ARITHMETIC_COUNT; contract++)
        found = find_rows(&k, variant, layer, policy, contract, bound);
    if (!found) {
        variant->no_common = true;
        return;
    }
    apply_tuned(variant, layer, policy);
    if (!find_quants(&k, variant, layer, policy) || !find_operands(variant, layer, policy))
        return;
    variant->runs = true;
    nib__variant_price(variant, layer, policy);
}

void nib__variant_find(nib_variant *variant, const nib_layer *layer, const nib_scheme *scheme,
                       const nib_machine *machine, const nib_policy *policy,
                       const nib_kernel *bound)
{
    if (recall_variant(variant, layer, scheme, machine, policy, bound))
        return;
    find_variant(variant, layer, scheme, machine, policy, bound);
    keep_variant(variant, layer, policy);
}

nib_variant nib__variant_of(const nib_layer_plan *layer)
{
    nib_variant variant = {.scheme = layer->done,
                           .machine = layer->machine,
                           .use_count = layer->use_count,
                           .own_input = layer->own_input,
                           .alone = !layer->grouped,
                           .runs = true};
    memcpy(variant.uses, layer->uses, sizeof variant.uses);
    return variant;
}

const nib_use *nib__variant_use(const nib_variant *variant, int64_t m)
{
    int i = 0;
    while (i + 1 < variant->use_count && variant->uses[i].m_max != 0 && m > variant->uses[i].m_max)
        i++;
    return &variant->uses[i];
}

static bool device_conds_hold(const nib_kernel *row, const nib_query *query)
{
    for (const nib_cond *c = row->conds; c->relation != NIB_REL_END; c++) {
        const bool of_device = c->fact >= NIB_FACT_DEVICE && c->fact <= NIB_FACT_DRIVER;
        if (of_device && !nib__cond_holds(c, query))
            return false;
    }
    return true;
}

const nib_kernel *nib__variant_refused(const nib_variant *variant, const nib_layer *layer,
                                       const nib_policy *policy, int use)
{
    const nib_kernel *chosen = variant->uses[use].kernel, *best = NULL;
    nib_query query;
    use_query(&query, variant, layer, policy, &variant->uses[use], variant->uses[use].op);
    for (size_t i = 0; nib__kernel_is_ref(chosen) && i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        if (row->peer != NULL || row->rank >= chosen->rank || !nib__kernel_keyed(row, &query))
            continue;
        if ((!policy->declared && !nib__kernel_built(row)) || !device_conds_hold(row, &query))
            continue;
        if (best == NULL || is_better(row, best, variant->machine, query.fact[NIB_FACT_M]))
            best = row;
    }
    return best;
}

const nib_kernel *nib__driver_refused(const nib_kernel *chosen, const nib_query *query,
                                      const nib_policy *policy)
{
    for (size_t i = 0; i < policy->refused_count; i++) {
        const nib_kernel *row = nib__kernel_find(policy->refused[i].kernel);
        nib_query asked = *query;
        asked.without = NULL;
        if (nib__kernel_keyed(row, query) && nib__kernel_holds(row, &asked, true) &&
            is_better(row, chosen, NULL, query->fact[NIB_FACT_M]))
            return row;
    }
    return NULL;
}

const nib_kernel *nib__variant_driver_refused(const nib_variant *variant, const nib_layer *layer,
                                              const nib_policy *policy, int use, nib_query *query)
{
    const nib_use *u = &variant->uses[use];
    use_query(query, variant, layer, policy, u, u->op);
    const nib_kernel *row = nib__driver_refused(u->kernel, query, policy);
    if (row != NULL || u->quant == NULL)
        return row;
    use_query(query, variant, layer, policy, u, NIB_OP_QUANT);
    return nib__driver_refused(u->quant, query, policy);
}

void nib__plan_op_query(nib_query *out, nib_op op, nib_type input, const nib_machine *machine)
{
    *out = machine->facts;
    out->fact[NIB_FACT_OP] = op;
    out->fact[NIB_FACT_INPUT] = input;
    out->fact[NIB_FACT_CACHE] = NIB_KV_F32;
    out->fact[NIB_FACT_M] = 1;
    out->fact[NIB_FACT_BUILT] = 1;
    out->fact[NIB_FACT_OFFERED] = 1;
}

void nib__plan_op_ask(nib_query *out, nib_op op, const nib_policy *policy,
                      const nib_machine *machine)
{
    nib__plan_op_query(out, op, NIB_TYPE_F32, machine);
    const nib_kv_types cache = nib__policy_cache(policy);
    out->fact[NIB_FACT_CACHE] = nib__kv_kind(cache.keys.type);
    out->fact[NIB_FACT_CACHE_MIXED] = cache.keys.type != cache.values.type;
    out->fact[NIB_FACT_CACHE_HADAMARD] = cache.keys.hadamard || cache.values.hadamard;
    out->without = &policy->without;
    for (size_t i = 0; policy->graph != NULL && i < policy->graph->node_count; i++)
        if (policy->graph->nodes[i].op == NIB_OP_STORE_KV && policy->graph->nodes[i].in[1] < 0)
            out->fact[NIB_FACT_LATENT] = 1;
}

const nib_kernel *nib__plan_op_best(const nib_query *query, const nib_machine *machine)
{
    keyed_rows k = {0};
    return best_row(&k, query, machine, machine->here, ANY_CONTRACT, NULL);
}

const nib_kernel *nib__plan_op(nib_op op, nib_type input, const nib_machine *machine,
                               const nib_strings *without)
{
    keyed_rows k = {0};
    nib_query query;
    nib__plan_op_query(&query, op, input, machine);
    query.without = without;
    return best_row(&k, &query, machine, true, ANY_CONTRACT, NULL);
}

const nib_kernel *nib__plan_operand(nib_op op, const nib_scheme *scheme, nib_type input,
                                    const nib_packing *packing, const nib_machine *machine,
                                    const nib_strings *without)
{
    nib_query query = machine->facts;
    query.fact[NIB_FACT_OP] = op;
    query.fact[NIB_FACT_CODE] = scheme->code;
    query.fact[NIB_FACT_ACT] = scheme->act;
    query.fact[NIB_FACT_INPUT] = input;
    query.fact[NIB_FACT_GROUP] = scheme->group;
    query.fact[NIB_FACT_M] = 1;
    query.fact[NIB_FACT_BUILT] = 1;
    query.fact[NIB_FACT_OFFERED] = 1;
    query.without = without;
    return best_operand(&query, packing, false, true);
}

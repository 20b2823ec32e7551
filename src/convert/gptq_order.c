/* SPDX-License-Identifier: Apache-2.0
 *
 * Sorts inputs, and moves their second moments into that order in place, so that it takes no memory
 * for a second matrix.
 */
#include "gptq_order.h"

#include <stdlib.h>

const char *const nib__order_names[NIB_INPUTS_ORDERS] = {"ascending", "groups", "inputs"};

nib_order_rule nib__order_of(const nib_scheme *scheme, int64_t k, bool ascending)
{
    const bool is_nv = nib__codes[scheme->code].scale_type == NIB_TYPE_E4M3,
               is_super = scheme->formula == NIB_FORMULA_SUPER;
    return (nib_order_rule){.kind = is_super                        ? NIB_INPUTS_ONE_BY_ONE
                                    : ascending || is_nv            ? NIB_INPUTS_ASCENDING
                                    : nib__code_is_mx(scheme->code) ? NIB_INPUTS_BY_GROUP
                                                                    : NIB_INPUTS_ONE_BY_ONE,
                            .group = nib__min(nib__scheme_group_size(scheme, k), k)};
}

bool nib__order_has_scales_first(nib_order_rule rule, int64_t k)
{
    return rule.kind == NIB_INPUTS_ONE_BY_ONE || rule.group == k;
}

static int compare_ranked(const void *a, const void *b)
{
    const nib_ranked *x = a, *y = b;
    if (x->squares != y->squares)
        return x->squares > y->squares ? -1 : 1;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (x->own != y->own)
        return x->own > y->own ? -1 : 1;
    return x->input < y->input ? -1 : 1;
}

/* The mean over the group that begins with an input. */
static double mean_of_group(const double *squares, int64_t begin, int64_t count)
{
    double sum = 0;
    for (int64_t j = 0; j < count; j++)
        sum += squares[begin + j];
    return sum / (double)count;
}

void nib__order_inputs(int64_t *order, nib_order_rule rule, const double *squares, int64_t k,
                       nib_ranked *room)
{
    const bool has_groups = rule.kind == NIB_INPUTS_BY_GROUP;
    double squares_of_group = 0;
    for (int64_t j = 0; j < k; j++) {
        if (has_groups && j % rule.group == 0)
            squares_of_group = mean_of_group(squares, j, nib__min(rule.group, k - j));
        room[j] = (nib_ranked){.squares = squares_of_group,
                               .group = has_groups ? j / rule.group : 0,
                               .own = rule.kind == NIB_INPUTS_ASCENDING ? 0 : squares[j],
                               .input = j};
    }
    qsort(room, (size_t)k, sizeof *room, compare_ranked);
    for (int64_t j = 0; j < k; j++)
        order[j] = room[j].input;
}

typedef struct moving {
    double *h, *room;
    const int64_t *from;
    int64_t k;
} moving;

static void move_columns(void *ctx, int worker, int64_t begin, int64_t end)
{
    const moving *m = ctx;
    double *row = m->room + worker * m->k;
    for (int64_t i = begin; i < end; i++) {
        double *h = m->h + i * m->k;
        memcpy(row, h, (size_t)m->k * sizeof *row);
        for (int64_t j = 0; j < m->k; j++)
            h[j] = row[m->from[j]];
    }
}

/* Along the cycles of `from`. */
static void move_rows(const moving *m, bool *visited)
{
    const size_t bytes = (size_t)m->k * sizeof *m->h;
    memset(visited, 0, (size_t)m->k);
    for (int64_t i = 0; i < m->k; i++) {
        if (visited[i])
            continue;
        int64_t to = i;
        memcpy(m->room, m->h + i * m->k, bytes);
        for (visited[i] = true; m->from[to] != i; visited[to] = true) {
            memcpy(m->h + to * m->k, m->h + m->from[to] * m->k, bytes);
            to = m->from[to];
        }
        memcpy(m->h + to * m->k, m->room, bytes);
    }
}

void nib__order_moments(double *h, const int64_t *from, int64_t k, double *room, bool *visited,
                        nib_pool *pool)
{
    moving m = {.h = h, .room = room, .from = from, .k = k};
    move_rows(&m, visited);
    m.room += k;
    nib__pool_run(pool, k, 16, false, move_columns, &m);
}

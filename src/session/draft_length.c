/* SPDX-License-Identifier: Apache-2.0
 *
 * Times of steps, gains and losses of drafts, and how many draft tokens pay off.
 */
#include "draft_length.h"

enum {
    FEW = 4,     /* steps of one size, whose times may all be too long */
    CREDIT = 32, /* most gains kept for losses to come, in steps without drafts */
};

/* ---- step times ---- */

void nib__step_times_add(nib_step_times *times, size_t m, double seconds)
{
    const double faded = 0.9997, doubtful = 0.995; /* per step */
    const double slower = 1.02;                    /* per step of m tokens */
    double *measured = &times->measured[m];
    for (size_t i = 1; i < COUNT(times->measured); i++)
        times->measured[i] *= times->steps[i] < FEW ? doubtful : faded;
    if (times->steps[m] < UINT8_MAX)
        times->steps[m]++;
    *measured = *measured == 0 || seconds < *measured * slower ? seconds : *measured * slower;
}

/* Estimates unmeasured steps: by interpolation between measured neighbours and, past the last one,
 * in proportion to the plan. */
void nib__step_times_fill(const nib_step_times *times, size_t from, size_t to, double *seconds)
{
    const double doubt = 1.2;
    const double *known = times->measured;
    const double first = known[from] > 0 ? known[from] : doubt * times->predicted[from];
    size_t below = from, above = from;
    for (size_t m = from; m <= to; m++) {
        while (above < m || (above < COUNT(times->measured) && known[above] == 0))
            above++;
        const double base = below == from ? first : known[below];
        if (known[m] > 0) {
            below = m;
            seconds[m] = known[m];
        } else if (m > from && above < COUNT(times->measured)) {
            const double variant = (double)(m - below) / (double)(above - below);
            seconds[m] = doubt * (base + variant * (known[above] - base));
        } else {
            seconds[m] =
                m == from ? first : doubt * times->predicted[m] * base / times->predicted[below];
        }
    }
}

/* ---- gains and losses ---- */

void nib__draft_budget_add(nib_draft_budget *b, double taken, double without, double usual)
{
    const double lost = taken - without, most = CREDIT * usual;
    b->without_s += without;
    if (lost < 0 && b->credit_s < most)
        b->credit_s = b->credit_s - lost < most ? b->credit_s - lost : most;
    if (lost > 0) {
        const double paid = lost < b->credit_s ? lost : b->credit_s;
        b->credit_s -= paid;
        b->vain_s += lost - paid;
    }
}

double nib__draft_budget_left(const nib_draft_budget *b, bool probe)
{
    const double share = probe ? 0.01 : 0.03; /* of the time without drafts */
    const double left = share * b->without_s - b->vain_s;
    return (left > 0 ? left : 0) + (probe ? 0 : b->credit_s);
}

void nib__draft_rate_add(nib_draft_rate *rate, int64_t accepted, int64_t tested, bool probe)
{
    const double weight = probe ? 0.25 : 1.0 / 16; /* few probes tell that drafts are right again */
    for (int64_t i = 0; i < tested; i++)
        rate->accepted += ((double)(i < accepted) - rate->accepted) * weight;
}

/* ---- choosing draft lengths ---- */

static double chance_of(const nib_draft *d, size_t i)
{
    return d->lookup != NULL ? nib__lookup_chance(d->lookup, i) : d->rate;
}

/* The draft whose next token is the likeliest, the first on a tie; NULL: none has room for more. */
static nib_draft *find_likeliest(nib_draft *drafts, size_t count)
{
    nib_draft *best = NULL;
    for (size_t i = 0; i < count; i++)
        if (drafts[i].count < drafts[i].most && (best == NULL || drafts[i].chance > best->chance))
            best = &drafts[i];
    return best;
}

/* The draft model's steps: token i of every draft is made in step i. The first reads what the model
 * has not seen; what that takes beyond a usual step is an investment: it is paid once, so it counts
 * for what the step may lose, but not for which length pays. */
typedef struct model_steps {
    int64_t tokens[NIB_LOOKUP_MOST]; /* of each step */
    double seconds, reading_s;
} model_steps;

/* Adds one more token of a draft. */
static void add_token(model_steps *steps, const nib_draft *d, const nib_draft_costs *costs)
{
    if (d->lookup != NULL)
        return;
    const int64_t usual =
        d->unread < 2 ? d->unread : 2; /* the last two if all guesses were right */
    const int64_t more = d->count == 0 ? usual : 1;
    int64_t *now = &steps->tokens[d->count];
    const double before = *now > 0 ? costs->model_step(costs->ctx, *now) : 0;
    *now += more;
    steps->seconds += costs->model_step(costs->ctx, *now) - before;
    if (d->count == 0 && d->unread > usual)
        steps->reading_s +=
            costs->model_step(costs->ctx, d->unread) - costs->model_step(costs->ctx, usual);
}

double nib__draft_lengths(nib_draft *drafts, size_t count, const nib_draft_costs *costs,
                          size_t most)
{
    /* each text gets one token in any case, and a draft's token only if all before it are right */
    const double gain = 1.03; /* minimum gain, as shares and times are estimates */
    const double usual = costs->seconds[costs->tokens];
    double expected = (double)costs->tokens, best = gain * expected / usual, chosen_s = 0;
    nib_draft *taken[NIB_LOOKUP_MOST], *d;
    model_steps steps = {.seconds = 0};
    size_t n = 0, chosen = 0;
    for (size_t i = 0; i < count; i++) {
        drafts[i].count = 0;
        drafts[i].chance = chance_of(&drafts[i], 0);
        if (drafts[i].lookup != NULL && drafts[i].lookup->next == 0) /* no match */
            drafts[i].most = 0;
    }
    while (n < most && n < NIB_LOOKUP_MOST && (d = find_likeliest(drafts, count)) != NULL) {
        model_steps with = steps;
        add_token(&with, d, costs);
        const double cost = with.seconds + costs->seconds[costs->tokens + n + 1];
        if (cost + with.reading_s - usual > costs->left) {
            d->most = d->count;
            continue;
        }
        steps = with;
        taken[n++] = d;
        expected += d->chance;
        d->chance *= chance_of(d, ++d->count);
        if (expected / cost > best)
            chosen = n, best = expected / cost, chosen_s = with.seconds + with.reading_s;
    }
    while (n > chosen)
        taken[--n]->count--;
    return chosen_s;
}

double nib__draft_speed(const nib_draft *draft, const nib_draft_costs *costs, size_t most)
{
    double expected = 1, chance = 1, best = 0;
    model_steps steps = {.seconds = 0};
    nib_draft d = *draft;
    for (d.count = 0; d.count < d.most && d.count < most; d.count++) {
        add_token(&steps, &d, costs);
        chance *= chance_of(&d, d.count);
        expected += chance;
        const double speed =
            expected / (steps.seconds + costs->seconds[costs->tokens + d.count + 1]);
        best = speed > best ? speed : best;
    }
    return best;
}

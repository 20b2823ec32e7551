/* SPDX-License-Identifier: Apache-2.0
 *
 * Conditions: whether one holds, its stable code, and its sentence. A kernel can refuse only by a
 * condition, so every refusal has a sentence with values.
 */
#include "fact.h"

#include <inttypes.h>

/* A group of a whole row or tensor never crosses a row and fills every step. */
static bool is_whole_group(nib_fact fact, int64_t value)
{
    return fact == NIB_FACT_GROUP && value <= 0;
}

static bool is_one_of(const nib_cond *cond, int64_t value)
{
    if (nib__fact_info[cond->fact].kind == NIB_KIND_INT)
        return value > 0 && (value & (value - 1)) == 0 && (cond->arg & value) != 0;
    return value >= 0 && value < 63 && (cond->arg >> value & 1) != 0;
}

bool nib__cond_holds(const nib_cond *cond, const nib_query *query)
{
    const int64_t value = query->fact[cond->fact];
    switch (cond->relation) {
    case NIB_REL_IS: return value == cond->arg;
    case NIB_REL_ONE_OF: return is_one_of(cond, value);
    case NIB_REL_MIN: return value >= cond->arg;
    case NIB_REL_MAX: return value <= cond->arg;
    case NIB_REL_MULTIPLE: return is_whole_group(cond->fact, value) || value % cond->arg == 0;
    case NIB_REL_DIVIDES:
        return is_whole_group(cond->fact, value) ||
               (value != 0 && query->fact[cond->arg] % value == 0);
    case NIB_REL_HAS: return (value & cond->arg) == cond->arg;
    case NIB_REL_END: break;
    }
    return true;
}

/* Appends the values that ONE_OF allows: "f32, bf16". */
static void append_allowed(const nib_cond *cond, const char *between, nib_text *out)
{
    const bool is_int = nib__fact_info[cond->fact].kind == NIB_KIND_INT;
    const char *comma = "";
    for (int bit = 0; bit < 63; bit++) {
        if ((cond->arg >> bit & 1) == 0)
            continue;
        nib__text_str(out, comma);
        nib__fact_say(cond->fact, is_int ? NIB_BIT(bit) : bit, out);
        comma = between;
    }
}

static void append_bits(const nib_cond *cond, int64_t set, const char *between, nib_text *out)
{
    const char *const *names = nib__fact_info[cond->fact].names;
    const char *comma = "";
    for (int bit = 0; names[bit] != NULL; bit++) {
        if ((set >> bit & 1) == 0)
            continue;
        nib__text_format(out, "%s%s", comma, names[bit]);
        comma = between;
    }
}

void nib__cond_code(const nib_cond *cond, nib_text *out)
{
    if (cond->relation == NIB_REL_END)
        return;
    if (cond->relation == NIB_REL_DIVIDES) {
        nib__text_format(out, "%s|%s", nib__fact_info[cond->fact].key,
                         nib__fact_info[cond->arg].key);
        return;
    }
    nib__text_str(out, nib__fact_info[cond->fact].key);
    switch (cond->relation) {
    case NIB_REL_IS:
        nib__text_str(out, "=");
        nib__fact_say(cond->fact, cond->arg, out);
        break;
    case NIB_REL_ONE_OF:
        nib__text_str(out, ":");
        append_allowed(cond, ",", out);
        break;
    case NIB_REL_MIN: nib__text_format(out, ">=%" PRId64, cond->arg); break;
    case NIB_REL_MAX: nib__text_format(out, "<=%" PRId64, cond->arg); break;
    case NIB_REL_MULTIPLE: nib__text_format(out, "%%%" PRId64, cond->arg); break;
    case NIB_REL_HAS:
        nib__text_str(out, "+");
        append_bits(cond, cond->arg, "+", out);
        break;
    case NIB_REL_DIVIDES:
    case NIB_REL_END: break;
    }
}

/* The largest divisor of whole that is at most `most`. Tries pairs of divisors up to the square
 * root, because sizes come from files and may be large primes. */
static int64_t largest_divisor(int64_t whole, int64_t most)
{
    int64_t best = 1;
    for (int64_t d = 1; d <= whole / d; d++) {
        if (whole % d != 0)
            continue;
        if (d <= most && d > best)
            best = d;
        if (whole / d <= most && whole / d > best)
            best = whole / d;
    }
    return best;
}

static void append_divides(const nib_cond *cond, int64_t value, int64_t whole, nib_text *out)
{
    const char *noun = nib__fact_info[cond->arg].noun;
    nib__text_format(out, "%" PRId64 " does not divide %s %" PRId64, value, noun, whole);
    if (value <= 0 || whole <= 0)
        return;
    nib__text_format(out, " (next: %" PRId64 ", or %s %" PRId64 ")", nib__round_up(whole, value),
                     nib__fact_info[cond->fact].noun, largest_divisor(whole, value));
}

static void append_flag(const nib_cond *cond, nib_text *out)
{
    const nib_fact_info *info = &nib__fact_info[cond->fact];
    nib__text_format(out, "%s %s %s", info->owner, cond->arg != 0 ? "lacks" : "has", info->noun);
}

/* Appends the value and what is required instead. */
static void append_value(const nib_cond *cond, const nib_query *query, nib_text *out)
{
    const int64_t value = query->fact[cond->fact];
    nib__text_format(out, "%s ", nib__fact_info[cond->fact].noun);
    if (cond->relation == NIB_REL_HAS) {
        nib__text_str(out, "lacks ");
        append_bits(cond, cond->arg & ~value, ", ", out);
        return;
    }
    if (cond->relation == NIB_REL_DIVIDES) {
        append_divides(cond, value, query->fact[cond->arg], out);
        return;
    }
    nib__text_str(out, "is ");
    nib__fact_say(cond->fact, value, out);
    switch (cond->relation) {
    case NIB_REL_IS:
        nib__text_str(out, ", not ");
        nib__fact_say(cond->fact, cond->arg, out);
        break;
    case NIB_REL_ONE_OF:
        nib__text_str(out, (cond->arg & (cond->arg - 1)) == 0 ? ", not " : ", not one of ");
        append_allowed(cond, ", ", out);
        break;
    case NIB_REL_MIN: nib__text_format(out, ", below %" PRId64, cond->arg); break;
    case NIB_REL_MAX: nib__text_format(out, ", above %" PRId64, cond->arg); break;
    case NIB_REL_MULTIPLE:
        nib__text_format(out, ", not a multiple of %" PRId64 " (next: %" PRId64 ")", cond->arg,
                         nib__round_up(nib__max(value, 0), cond->arg));
        break;
    case NIB_REL_DIVIDES:
    case NIB_REL_HAS:
    case NIB_REL_END: break;
    }
}

void nib__cond_say(const nib_cond *cond, const nib_query *query, nib_text *out)
{
    if (cond->relation == NIB_REL_END)
        return;
    if (nib__fact_info[cond->fact].kind == NIB_KIND_FLAG)
        append_flag(cond, out);
    else
        append_value(cond, query, out);
    if (cond->why != NULL)
        nib__text_format(out, ": %s", cond->why);
}

void nib__cond_describe(const nib_cond *cond, nib_text *out)
{
    const nib_fact_info *info = &nib__fact_info[cond->fact];
    if (cond->relation == NIB_REL_END)
        return;
    if (info->kind == NIB_KIND_FLAG) {
        nib__text_format(out, "%s%s", cond->arg != 0 ? "" : "not ", info->noun);
    } else {
        nib__text_str(out, info->key);
        switch (cond->relation) {
        case NIB_REL_IS:
            nib__text_str(out, " is ");
            nib__fact_say(cond->fact, cond->arg, out);
            break;
        case NIB_REL_ONE_OF:
            nib__text_str(out, " is ");
            append_allowed(cond, " or ", out);
            break;
        case NIB_REL_MIN: nib__text_format(out, " at least %" PRId64, cond->arg); break;
        case NIB_REL_MAX: nib__text_format(out, " at most %" PRId64, cond->arg); break;
        case NIB_REL_MULTIPLE: nib__text_format(out, " a multiple of %" PRId64, cond->arg); break;
        case NIB_REL_DIVIDES:
            nib__text_format(out, " divides %s", nib__fact_info[cond->arg].key);
            break;
        case NIB_REL_HAS:
            nib__text_str(out, " has ");
            append_bits(cond, cond->arg, ", ", out);
            break;
        case NIB_REL_END: break;
        }
    }
    if (cond->why != NULL)
        nib__text_format(out, " (%s)", cond->why);
}

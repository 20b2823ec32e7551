/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotation in config.json. Where two places differ, rope_scaling goes before rope_parameters, and
 * both before the top, as transformers takes them.
 */
#include "config_rope.h"

#include "arch.h"
#include "config_values.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static const char *const places[] = {[NIB_ROPE_SCALING] = "rope_scaling",
                                     [NIB_ROPE_PARAMETERS] = "rope_parameters",
                                     [NIB_ROPE_TOP] = "config.json itself"};

static const char *const numbers[] = {
    [NIB_ROPE_FACTOR] = "factor",         [NIB_ROPE_LOW] = "low_freq_factor",
    [NIB_ROPE_HIGH] = "high_freq_factor", [NIB_ROPE_ORIGINAL] = "original_max_position_embeddings",
    [NIB_ROPE_THETA] = "rope_theta",      [NIB_ROPE_PARTIAL] = "partial_rotary_factor"};

/* Numbers that a kind of scaling uses; rope_theta and partial_rotary_factor are every kind's. */
static const unsigned used[] = {[NIB_ROPE_PLAIN] = 0,
                                [NIB_ROPE_LINEAR] = 1U << NIB_ROPE_FACTOR,
                                [NIB_ROPE_LLAMA3] = 1U << NIB_ROPE_FACTOR | 1U << NIB_ROPE_LOW |
                                                    1U << NIB_ROPE_HIGH | 1U << NIB_ROPE_ORIGINAL};

/* ---- reading ---- */

static bool read_number(nib_rope_said *said, int place, int number, nib_json *json)
{
    double value = 0;
    int64_t whole = 0;
    const bool size = number == NIB_ROPE_ORIGINAL;
    if (!(size ? nib__config_size(json, &whole) : nib__config_number(json, &value)))
        return false;
    if (json->event == NIB_JSON_NULL)
        return true;
    said->numbers[place][number] = size ? (double)whole : value;
    said->given[place] |= 1U << number;
    return true;
}

bool nib__rope_read_number(nib_rope_said *said, int number, nib_json *json)
{
    return read_number(said, NIB_ROPE_TOP, number, json);
}

/* `type` is the older name of `rope_type`; files hold both. */
static bool read_type(nib_rope_said *said, nib_json *json, nib_arena *arena)
{
    char a[32], b[32];
    if (nib__json_next(json) == NIB_JSON_NULL)
        return true;
    if (!nib__config_now(json, NIB_JSON_STRING))
        return false;
    char *type = nib__json_string(json, arena, NULL);
    if (type && said->type && strcmp(type, said->type) != 0) {
        nib__json_fail(json, "the rope scaling is named twice, as \"%s\" and as \"%s\"",
                       nib__say_name(a, sizeof a, said->type, strlen(said->type)),
                       nib__say_name(b, sizeof b, type, strlen(type)));
        return false;
    }
    said->type = type;
    return type != NULL;
}

bool nib__rope_read_object(nib_rope_said *said, int place, nib_json *json, nib_arena *arena)
{
    char key[64];
    if (nib__json_next(json) == NIB_JSON_NULL)
        return true;
    if (!nib__config_now(json, NIB_JSON_OBJECT))
        return false;
    while (nib__json_next(json) == NIB_JSON_KEY) {
        int number = 0;
        while (number < NIB_ROPE_NUMBERS && !nib__json_is(json, numbers[number]))
            number++;
        const bool type = nib__json_is(json, "rope_type") || nib__json_is(json, "type");
        if (!type && number == NIB_ROPE_NUMBERS)
            nib__json_fail(json, "the rope scaling key \"%s\" changes the result and is not known",
                           nib__say_name(key, sizeof key, json->token, json->token_size));
        if (json->event == NIB_JSON_ERROR ||
            !(type ? read_type(said, json, arena) : read_number(said, place, number, json)))
            return false;
    }
    return nib__config_now(json, NIB_JSON_OBJECT_END);
}

/* ---- what it comes to ---- */

static void say_number(nib_ledger *ledger, const nib_rope_said *said, int place, int number,
                       const char *done, const char *text)
{
    char value[32], name[64];
    const bool top = place == NIB_ROPE_TOP;
    snprintf(value, sizeof value, "%.10g", said->numbers[place][number]);
    snprintf(name, sizeof name, "%s%s%s", top ? "" : places[place], top ? "" : ".",
             numbers[number]);
    nib__ledger_add_overruled(ledger, "rope", name, value, done, "%s", text);
}

/* A number of the first place that has it; fallback: none has. */
static double take_number(const nib_rope_said *said, int number, double fallback,
                          nib_ledger *ledger)
{
    int from = -1;
    char done[32], text[96];
    for (int place = 0; place < NIB_ROPE_PLACES; place++) {
        if ((said->given[place] & 1U << number) == 0)
            continue;
        const double value = said->numbers[place][number];
        if (from < 0) {
            from = place;
        } else if (value != said->numbers[from][number]) {
            snprintf(done, sizeof done, "%.10g", said->numbers[from][number]);
            snprintf(text, sizeof text, "%s says %s, and it decides", places[from], done);
            say_number(ledger, said, place, number, done, text);
        }
    }
    return from < 0 ? fallback : said->numbers[from][number];
}

static nib_status check_rope(const nib_config *c, const char *name, nib_err *err)
{
    if (!(c->rope_theta > 0) || !(c->rope_theta < 1e18))
        return nib__fail(err, NIB_BAD_INPUT, "%s: rope_theta is %g; a positive number is wanted",
                         name, c->rope_theta);
    if (c->rope != NIB_ROPE_PLAIN && !(c->rope_factor >= 1.0 && c->rope_factor < 1e9))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: the rope scaling needs a factor of at least 1, not %g", name,
                         c->rope_factor);
    if (c->rope == NIB_ROPE_LLAMA3 &&
        !(c->rope_low > 0 && c->rope_high > c->rope_low && c->rope_original > 0))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: llama3 rope scaling needs low_freq_factor < high_freq_factor and "
                         "original_max_position_embeddings; they are %g, %g and %" PRId64,
                         name, c->rope_low, c->rope_high, c->rope_original);
    return NIB_OK;
}

/* The channels of a head that rotate. */
static nib_status take_partial(nib_config *c, const nib_rope_said *said, const char *name,
                               nib_ledger *ledger, nib_err *err)
{
    const nib_family_row *family = nib__family_of(c);
    const double absent = family->absent.rope_partial > 0 ? family->absent.rope_partial : 1,
                 partial = take_number(said, NIB_ROPE_PARTIAL, absent, ledger),
                 dims = floor((double)c->head_dim * partial);
    if (partial == 1.0)
        return NIB_OK;
    if (!family->partial)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: partial_rotary_factor is %g; only 1 is built for %s", name, partial,
                         nib__arch_name(c->arch));
    if (!(partial > 0 && partial < 1) || dims < 2 || fmod(dims, 2) != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: partial_rotary_factor %g of head_dim %" PRId64
                         " is %g channels; an even number of at least 2 is wanted",
                         name, partial, c->head_dim, dims);
    c->rope_dims = (int64_t)dims;
    return NIB_OK;
}

nib_status nib__rope_apply(nib_config *c, const nib_rope_said *said, const char *name,
                           nib_ledger *ledger, nib_err *err)
{
    const char *type = said->type ? said->type : nib__rope_name(NIB_ROPE_PLAIN);
    char shown[64], text[96];
    size_t kind = 0;
    while (kind < COUNT(used) && strcmp(type, nib__rope_name((nib_rope_kind)kind)) != 0)
        kind++;
    if (kind == COUNT(used))
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: the rope scaling \"%s\" is not built; default, linear and llama3 are",
                         name, nib__say_name(shown, sizeof shown, type, strlen(type)));
    c->rope = (nib_rope_kind)kind;
    c->rope_factor = take_number(said, NIB_ROPE_FACTOR, 0, ledger);
    c->rope_low = take_number(said, NIB_ROPE_LOW, 0, ledger);
    c->rope_high = take_number(said, NIB_ROPE_HIGH, 0, ledger);
    c->rope_original = (int64_t)take_number(said, NIB_ROPE_ORIGINAL, 0, ledger);
    c->rope_theta = take_number(said, NIB_ROPE_THETA, c->rope_theta, ledger);
    NIB_TRY(take_partial(c, said, name, ledger, err));
    snprintf(text, sizeof text, "the rope type \"%s\" does not use it", type);
    for (int n = NIB_ROPE_FACTOR; n <= NIB_ROPE_ORIGINAL; n++)
        for (int place = 0; place < NIB_ROPE_TOP; place++)
            if ((said->given[place] & ~used[kind] & 1U << n) != 0)
                say_number(ledger, said, place, n, NULL, text);
    return check_rope(c, name, err);
}

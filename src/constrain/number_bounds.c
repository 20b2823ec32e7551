/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers of a constraint: JSON's grammar, digit by digit, and whether the number so far, or some
 * continuation of it, is within bounds. Bounds and numbers are multiples of 1 or 10^-9, so all of
 * this is exact.
 */
#include "constraint_parts.h"

static uint64_t power_of_ten(int n)
{
    uint64_t value = 1;
    for (; n > 0; n--)
        value *= 10;
    return value;
}

bool nib__number_within(const nib_constraint_state *s, const nib_schema_node *node, bool whole)
{
    const int scale = node->integer ? 0 : NIB_BOUNDED_DIGITS;
    const int most = node->integer ? NIB_INTEGER_DIGITS : NIB_BOUNDED_DIGITS;
    if (s->negative ? node->least > 0 : node->most < 0)
        return false;
    uint64_t low, high;
    if (s->negative) {
        low = node->most < 0 ? (uint64_t)-node->most : 0;
        high = (uint64_t)-node->least;
    } else {
        low = node->least > 0 ? (uint64_t)node->least : 0;
        high = (uint64_t)node->most;
    }
    if (s->sub == NIB_NUMBER_MINUS)
        return !node->integer || high > 0;
    if (s->sub == NIB_NUMBER_ZERO && node->integer)
        return !s->negative && low == 0;
    const int after = s->sub == NIB_NUMBER_FRACTION ? s->digits : 0;
    if (after > scale || (s->sub == NIB_NUMBER_WHOLE && s->digits > most))
        return false;
    const uint64_t value = s->magnitude * power_of_ten(scale - after);
    if (whole)
        return value >= low && value <= high;
    const int more = s->sub == NIB_NUMBER_WHOLE ? most - s->digits : 0;
    uint64_t from = value, step = power_of_ten(scale - after);
    for (int i = 0; i <= more; i++, from *= 10, step *= 10)
        if (from <= high && from + (step - 1) >= low)
            return true;
    return false;
}

bool nib__number_can_continue(const nib_constraint_state *s, const nib_schema_node *node)
{
    if (node->bounded)
        return (s->sub <= NIB_NUMBER_WHOLE || (!node->integer && s->sub <= NIB_NUMBER_FRACTION)) &&
               nib__number_within(s, node, false);
    return s->digits <= (s->sub == NIB_NUMBER_WHOLE      ? NIB_NUMBER_DIGITS
                         : s->sub == NIB_NUMBER_FRACTION ? NIB_FRACTION_DIGITS
                         : s->sub == NIB_NUMBER_POWER    ? NIB_EXPONENT_DIGITS
                                                         : UINT8_MAX);
}

int nib__number_next(const nib_constraint_state *s, uint8_t byte)
{
    const bool digit = byte >= '0' && byte <= '9';
    const bool letter = (byte | 0x20) == 'e';
    switch (s->sub) {
    case NIB_NUMBER_MINUS: return digit ? (byte == '0' ? NIB_NUMBER_ZERO : NIB_NUMBER_WHOLE) : -1;
    case NIB_NUMBER_ZERO: return byte == '.' ? NIB_NUMBER_POINT : letter ? NIB_NUMBER_EXPONENT : -1;
    case NIB_NUMBER_WHOLE:
        return digit         ? NIB_NUMBER_WHOLE
               : byte == '.' ? NIB_NUMBER_POINT
               : letter      ? NIB_NUMBER_EXPONENT
                             : -1;
    case NIB_NUMBER_POINT: return digit ? NIB_NUMBER_FRACTION : -1;
    case NIB_NUMBER_FRACTION:
        return digit ? NIB_NUMBER_FRACTION : letter ? NIB_NUMBER_EXPONENT : -1;
    case NIB_NUMBER_EXPONENT:
        return digit ? NIB_NUMBER_POWER : byte == '+' || byte == '-' ? NIB_NUMBER_SIGN : -1;
    default: return digit ? NIB_NUMBER_POWER : -1;
    }
}

bool nib__number_is_whole(const nib_constraint_state *s)
{
    return s->sub == NIB_NUMBER_ZERO || s->sub == NIB_NUMBER_WHOLE ||
           s->sub == NIB_NUMBER_FRACTION || s->sub == NIB_NUMBER_POWER;
}

void nib__number_count(nib_constraint_state *s, int sub, uint8_t byte)
{
    s->digits = (uint8_t)(sub != s->sub ? 1 : s->digits < UINT8_MAX ? s->digits + 1 : UINT8_MAX);
    if (sub == NIB_NUMBER_POWER)
        return;
    s->magnitude = s->magnitude < power_of_ten(NIB_INTEGER_DIGITS)
                       ? s->magnitude * 10 + (uint64_t)(byte - '0')
                       : UINT64_C(2000000000000000000);
}

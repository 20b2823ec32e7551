/* SPDX-License-Identifier: Apache-2.0
 *
 * The string formats that are enforced: RFC 3339's dates and times, and UUIDs. A format is a
 * pattern with a character per place: X is a hexadecimal digit, t is T, other letters are digits of
 * a date or time, and the rest stand for themselves. item.at is the place, item.size the date so
 * far (year * 16 + month), item.low the previous digit.
 */
#include "constraint_parts.h"

static const char *const places[] = {
    [NIB_FORMAT_DATE] = "YYYY-MO-AB",
    [NIB_FORMAT_TIME] = "HI:SD:SD",
    [NIB_FORMAT_DATE_TIME] = "YYYY-MO-ABtHI:SD:SD",
    [NIB_FORMAT_UUID] = "XXXXXXXX-XXXX-XXXX-XXXX-XXXXXXXXXXXX",
};

/* Values of item.at after the seconds: in a fraction, and in the offset that RFC 3339 requires. */
enum { FRACTION = 64, FRACTION_DIGITS = 9, ZONE = 96, ZONE_END = ZONE + 6, ENDED = 128 };

static int days_in_month(uint32_t year, uint32_t month)
{
    static const uint8_t days[] = {0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return days[month] + (month == 2 && leap);
}

/* Is the digit allowed as the first or second digit of a number from 0 to `most`? */
static bool check_digit(nib_constraint_item *item, int digit, bool second, int most)
{
    if (second)
        return item->low * 10 + digit <= most;
    item->low = (uint16_t)digit;
    return digit <= most / 10;
}

/* Advances by a digit of a date; years begin at 1. */
static bool date_digit(nib_constraint_item *item, char place, int digit)
{
    const uint32_t year = item->size >> 4;
    int number;
    switch (place) {
    case 'Y':
        item->size = (year * 10 + (uint32_t)digit) << 4;
        return item->at < 3 || item->size != 0;
    case 'M': return check_digit(item, digit, false, 12);
    case 'O':
        number = item->low * 10 + digit;
        item->size |= (uint32_t)number;
        item->low = 0;
        return number >= 1 && number <= 12;
    case 'A': return check_digit(item, digit, false, days_in_month(year, item->size & 15));
    default:
        number = item->low * 10 + digit;
        return number >= 1 && number <= days_in_month(year, item->size & 15);
    }
}

static bool place_step(nib_constraint_item *item, char place, uint8_t byte)
{
    const bool is_digit = byte >= '0' && byte <= '9';
    const int digit = byte - '0';
    switch (place) {
    case 'X': return is_digit || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f');
    case 'Y':
    case 'M':
    case 'O':
    case 'A':
    case 'B': return is_digit && date_digit(item, place, digit);
    case 'H': return is_digit && check_digit(item, digit, false, 23);
    case 'I': return is_digit && check_digit(item, digit, true, 23);
    case 'S': return is_digit && check_digit(item, digit, false, 59);
    case 'D': return is_digit && check_digit(item, digit, true, 59);
    case 't': return byte == 'T';
    default: return byte == (uint8_t)place;
    }
}

/* Advances after the seconds. */
static bool zone_step(nib_constraint_item *item, uint8_t byte)
{
    static const char offset[] = "HI:SD";
    if (item->at > ZONE && item->at < ZONE_END)
        return place_step(item, offset[item->at++ - ZONE - 1], byte);
    if (item->at >= ZONE_END || item->at == ENDED)
        return false;
    const bool fraction = item->at >= FRACTION && item->at < ZONE;
    if (!fraction && byte == '.') {
        item->at = FRACTION;
        return true;
    }
    if (fraction && byte >= '0' && byte <= '9')
        return ++item->at <= FRACTION + FRACTION_DIGITS;
    if (fraction && item->at == FRACTION)
        return false;
    item->at = byte == 'Z' ? ENDED : ZONE + 1;
    return byte == 'Z' || byte == '+' || byte == '-';
}

bool nib__format_step(nib_schema_format format, nib_constraint_item *item, uint8_t byte)
{
    const size_t size = strlen(places[format]);
    if (item->at < size)
        return place_step(item, places[format][item->at], byte) && ++item->at != 0;
    return (format == NIB_FORMAT_TIME || format == NIB_FORMAT_DATE_TIME) && zone_step(item, byte);
}

bool nib__format_complete(nib_schema_format format, const nib_constraint_item *item)
{
    if (format == NIB_FORMAT_TIME || format == NIB_FORMAT_DATE_TIME)
        return item->at == ENDED || item->at == ZONE_END;
    return item->at == strlen(places[format]);
}

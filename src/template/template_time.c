/* SPDX-License-Identifier: Apache-2.0
 *
 * strftime_now: formats a time given by the caller, in UTC and English, independent of the
 * machine's clock, time zone and language.
 */
#include "template_parts.h"

#include <stdio.h>

typedef struct moment {
    int64_t year;
    int month, day, hour, minute, second, weekday, yearday; /* month, weekday, yearday from 0 */
} moment;

static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                   "Thursday", "Friday", "Saturday"};
static const char *const months[] = {"January",   "February", "March",    "April",
                                     "May",       "June",     "July",     "August",
                                     "September", "October",  "November", "December"};

static moment split_time(int64_t now)
{
    static const int starts[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    int64_t day = now / 86400, second = now % 86400;
    if (second < 0) {
        second += 86400;
        day--;
    }
    /* Eras of 400 years that begin in March, so that the leap day comes last; from the year 0. */
    const int64_t shifted = day + 719468;
    const int64_t era = shifted / 146097;
    const int64_t in_era = shifted - era * 146097;
    const int64_t year = (in_era - in_era / 1460 + in_era / 36524 - in_era / 146096) / 365;
    const int64_t in_year = in_era - (365 * year + year / 4 - year / 100);
    const int month = (int)((5 * in_year + 2) / 153);
    moment m = {.year = year + era * 400 + (month >= 10), .month = (month + 2) % 12};
    m.day = (int)(in_year - (153 * month + 2) / 5) + 1;
    m.hour = (int)(second / 3600);
    m.minute = (int)(second / 60 % 60);
    m.second = (int)(second % 60);
    m.weekday = (int)(((day + 4) % 7 + 7) % 7);
    const bool leap = m.year % 4 == 0 && (m.year % 100 != 0 || m.year % 400 == 0);
    m.yearday = starts[m.month] + m.day - 1 + (leap && m.month > 1);
    return m;
}

/* ISO 8601: week 1 has the year's first Thursday. */
static int iso_week(const moment *m, int64_t *year)
{
    const int weekday = (m->weekday + 6) % 7;
    const int week = (m->yearday - weekday + 10) / 7;
    const int64_t before = m->year - 1;
    const int first = (m->weekday - m->yearday % 7 + 7) % 7; /* weekday of January 1 */
    const bool leap = m->year % 4 == 0 && (m->year % 100 != 0 || m->year % 400 == 0);
    const bool leap_before = before % 4 == 0 && (before % 100 != 0 || before % 400 == 0);
    *year = m->year;
    if (week < 1) {
        *year = before;
        return first == 5 || (first == 6 && leap_before) ? 53 : 52;
    }
    if (week == 53 && !(first == 4 || (first == 3 && leap))) {
        *year = m->year + 1;
        return 1;
    }
    return week;
}

static void put_number(char out[40], int64_t value, int width, char pad)
{
    if (pad == '-')
        snprintf(out, 40, "%lld", (long long)value);
    else if (pad == '_')
        snprintf(out, 40, "%*lld", width, (long long)value);
    else
        snprintf(out, 40, "%0*lld", width, (long long)value);
}

/* The text of one directive; NULL: unknown. */
static const char *format_directive(char out[40], char what, char pad, const moment *m, int64_t now)
{
    const int hour = m->hour % 12 == 0 ? 12 : m->hour % 12;
    int64_t year;
    switch (what) {
    case 'Y': put_number(out, m->year, 1, pad); return out;
    case 'C': put_number(out, m->year / 100, 2, pad); return out;
    case 'y': put_number(out, (m->year % 100 + 100) % 100, 2, pad); return out;
    case 'm': put_number(out, m->month + 1, 2, pad); return out;
    case 'd': put_number(out, m->day, 2, pad); return out;
    case 'e': put_number(out, m->day, 2, pad == '0' ? '_' : pad); return out;
    case 'H': put_number(out, m->hour, 2, pad); return out;
    case 'I': put_number(out, hour, 2, pad); return out;
    case 'k': put_number(out, m->hour, 2, pad == '0' ? '_' : pad); return out;
    case 'l': put_number(out, hour, 2, pad == '0' ? '_' : pad); return out;
    case 'M': put_number(out, m->minute, 2, pad); return out;
    case 'S': put_number(out, m->second, 2, pad); return out;
    case 'j': put_number(out, m->yearday + 1, 3, pad); return out;
    case 'f': return "000000";
    case 's': put_number(out, now, 1, pad); return out;
    case 'u': put_number(out, m->weekday == 0 ? 7 : m->weekday, 1, pad); return out;
    case 'w': put_number(out, m->weekday, 1, pad); return out;
    case 'U': put_number(out, (m->yearday + 7 - m->weekday) / 7, 2, pad); return out;
    case 'W': put_number(out, (m->yearday + 7 - (m->weekday + 6) % 7) / 7, 2, pad); return out;
    case 'V': put_number(out, iso_week(m, &year), 2, pad); return out;
    case 'G':
        (void)iso_week(m, &year);
        put_number(out, year, 1, pad);
        return out;
    case 'B': return months[m->month];
    case 'A': return days[m->weekday];
    case 'b':
    case 'h': snprintf(out, 40, "%.3s", months[m->month]); return out;
    case 'a': snprintf(out, 40, "%.3s", days[m->weekday]); return out;
    case 'p': return m->hour < 12 ? "AM" : "PM";
    case 'P': return m->hour < 12 ? "am" : "pm";
    case 'n': return "\n";
    case 't': return "\t";
    case 'z':
    case 'Z': return ""; /* a naive time, like datetime.now() */
    case '%': return "%";
    default: return NULL;
    }
}

/* Directives that abbreviate several; NULL: another one. */
static const char *expand_directive(char what)
{
    switch (what) {
    case 'D':
    case 'x': return "%m/%d/%y";
    case 'F': return "%Y-%m-%d";
    case 'T':
    case 'X': return "%H:%M:%S";
    case 'R': return "%H:%M";
    case 'r': return "%I:%M:%S %p";
    case 'c': return "%a %b %e %H:%M:%S %Y";
    default: return NULL;
    }
}

static nib_status put_format(nib_render *r, nib_builder *b, const nib_string *f, int64_t now,
                             bool within)
{
    const moment m = split_time(now);
    size_t from = 0;
    for (size_t i = 0; i < f->size; i++) {
        if (f->at[i] != '%')
            continue;
        char out[40], pad = '0';
        size_t at = i + 1;
        if (at < f->size && (f->at[at] == '-' || f->at[at] == '_' || f->at[at] == '0'))
            pad = f->at[at++];
        const char what = at < f->size ? f->at[at] : 0;
        const char *whole = within ? NULL : expand_directive(what);
        const char *text = whole != NULL ? NULL : format_directive(out, what, pad, &m, now);
        if (whole == NULL && text == NULL)
            continue; /* unknown: copied unchanged */
        NIB_TRY(nib__put_part(r, b, f, from, i));
        if (whole != NULL) {
            const nib_string inner = {.at = whole, .size = strlen(whole)};
            NIB_TRY(put_format(r, b, &inner, now, true));
        } else {
            NIB_TRY(nib__put_text(r, b, text, false));
        }
        from = at + 1;
        i = at;
    }
    return nib__put_part(r, b, f, from, f->size);
}

nib_status nib__put_time(nib_render *r, nib_builder *b, const nib_string *format, int64_t now)
{
    const int64_t century = INT64_C(100) * 366 * 86400;
    if (now > 80 * century || now < -19 * century)
        return nib__run_fail(r, NIB_BAD_INPUT, "strftime_now: the time is out of range");
    return put_format(r, b, format, now, false);
}

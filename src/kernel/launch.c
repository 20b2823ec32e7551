/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds launches.
 */
#include "launch.h"

#include <stdarg.h>

void nib__launch_init(nib_launch *out, const char *function, int64_t groups, int32_t items)
{
    *out = (nib_launch){.function = function, .groups = {groups, 1, 1}, .items = {items, 1, 1}};
}

/* Appends the decimal digits; a launch has options each time, for which printf takes too long. */
static char *put_int(char *to, const char *end, int value)
{
    char digits[12];
    int count = 0;
    for (unsigned rest = value < 0 ? 0U - (unsigned)value : (unsigned)value;
         rest != 0 || count == 0; rest /= 10)
        digits[count++] = (char)('0' + rest % 10);
    if (value < 0)
        digits[count++] = '-';
    while (count > 0 && to < end)
        *to++ = digits[--count];
    return to;
}

void nib__launch_option(nib_launch *launch, const char *format, ...)
{
    char *to = launch->options + strlen(launch->options);
    const char *const end = launch->options + sizeof launch->options - 1;
    va_list args;
    va_start(args, format);
    for (; *format != 0; format++) {
        if (format[0] == '%' && format[1] == 'd') {
            to = put_int(to, end, va_arg(args, int));
            format++;
        } else if (format[0] == '%' && format[1] == 's') {
            for (const char *from = va_arg(args, const char *); *from != 0 && to < end;)
                *to++ = *from++;
            format++;
        } else if (to < end) {
            *to++ = *format;
        }
    }
    va_end(args);
    *to = 0;
}

static nib_launch_arg *add_arg(nib_launch *launch, nib_launch_kind kind)
{
    nib_launch_arg *arg = &launch->args[launch->count++];
    arg->kind = kind;
    return arg;
}

void nib__launch_memory(nib_launch *launch, const void *address)
{
    add_arg(launch, NIB_LAUNCH_MEMORY)->value.memory = address;
}

void nib__launch_int(nib_launch *launch, int64_t value)
{
    add_arg(launch, NIB_LAUNCH_INT)->value.integer = (int32_t)value;
}

void nib__launch_float(nib_launch *launch, float value)
{
    add_arg(launch, NIB_LAUNCH_FLOAT)->value.number = value;
}

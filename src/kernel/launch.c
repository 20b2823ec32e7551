/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds launches.
 */
#include "launch.h"

#include <stdarg.h>
#include <stdio.h>

void nib__launch_init(nib_launch *out, const char *function, int64_t groups, int32_t items)
{
    *out = (nib_launch){.function = function, .groups = {groups, 1, 1}, .items = {items, 1, 1}};
}

void nib__launch_option(nib_launch *launch, const char *format, ...)
{
    const size_t used = strlen(launch->options);
    va_list args;
    va_start(args, format);
    nib__vformat(launch->options + used, sizeof launch->options - used, format, args);
    va_end(args);
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

/* SPDX-License-Identifier: Apache-2.0
 *
 * The structs that applications pass and receive. They begin with their size, so that an
 * application and a library of different versions understand each other: what an older struct lacks
 * has its default, 0, and what a newer one adds must be 0.
 */
#ifndef NIB_PUBLIC_STRUCT_H
#define NIB_PUBLIC_STRUCT_H

#include "base.h"

/* Copies options to out, a struct of `size` bytes that begins with a size_t and has members up to
 * `used`. given NULL: all defaults; a size of 0: that of version 1, whose reserved bytes have room
 * for later members. NIB_USAGE: the size cannot be that
 * of a struct; NIB_UNSUPPORTED: something is set that this version does not have. */
NIB_MUST_CHECK nib_status nib__options_read(void *out, size_t size, size_t used, const void *given,
                                            const char *type, nib_err *err);
/* Declares `name`, a copy of the given options; returns from the function if they are refused. */
#define NIB_OPTIONS(type, name, given, err)                                                        \
    type name;                                                                                     \
    NIB_TRY(nib__options_read(&name, sizeof name, offsetof(type, reserved), (given), #type, (err)))

/* Copies a result of `size` bytes to an application's struct, as far as that struct reaches; out
 * NULL: nothing. */
void nib__result_write(void *out, const void *result, size_t size);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * exp, log, sin and cos in double by IEEE operations alone: the same bits on every system, which
 * libm does not promise. Within 2 ulp over the ranges named. For tables, sampling and losses; rows
 * have their own.
 */
#ifndef NIB_PRECISE_H
#define NIB_PRECISE_H

#include <stddef.h>

double nib__exp(double x);                        /* 0 below -708, infinity above 709 */
void nib__exp_each(double *values, size_t count); /* in place, to the same bits, faster by each */
double nib__log(double x); /* positive normal x; 0 gives -infinity, negative and NaN NaN */
double nib__sin(double x); /* |x| up to 2^31 */
double nib__cos(double x);

#endif

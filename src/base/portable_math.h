/* SPDX-License-Identifier: Apache-2.0
 *
 * exp, log, sin and cos in double from IEEE operations only: the same bits on every system, which
 * libm does not promise. Within 2 ulp over the ranges named. For tables, sampling and losses;
 * kernels have their own.
 */
#ifndef NIB_PORTABLE_MATH_H
#define NIB_PORTABLE_MATH_H

#include <stddef.h>

double nib__exp(double x);                        /* 0 below -708, infinity above 709 */
void nib__exp_each(double *values, size_t count); /* in place; the same bits, faster per value */
double nib__log(double x);      /* positive normal x; 0 gives -infinity, negative and NaN NaN */
double nib__softplus(double x); /* log(1 + e^x) */
double nib__softplus_from(double x, double e); /* the same; e is e^-|x| */
double nib__sin(double x);                     /* |x| up to 2^31 */
double nib__cos(double x);

#endif

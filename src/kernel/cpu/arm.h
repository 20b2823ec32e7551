/* SPDX-License-Identifier: Apache-2.0
 *
 * NIB_ARM names the Arm function of a row, as NIB_X86 (x86.h) names the x86 one.
 */
#ifndef NIB_ARM_H
#define NIB_ARM_H

#if defined(__aarch64__) || defined(_M_ARM64)
#define NIB_ARM(function) function
#define NIB_BUILT_ARM 1
#else
#define NIB_ARM(function) NULL
#define NIB_BUILT_ARM 0
#endif

#endif

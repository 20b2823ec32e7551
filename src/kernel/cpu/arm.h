/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows name their Arm functions through NIB_ARM, as x86 ones through NIB_X86 of x86.h.
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

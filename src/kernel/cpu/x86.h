/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows name their x86 functions through NIB_X86, so that on another architecture the row stays in
 * the table, without a run: the fact `built` is then 0.
 */
#ifndef NIB_X86_H
#define NIB_X86_H

#if defined(__x86_64__) || defined(_M_X64)
#define NIB_X86(function) function
#define NIB_BUILT_X86 1
#else
#define NIB_X86(function) NULL
#define NIB_BUILT_X86 0
#endif

#endif

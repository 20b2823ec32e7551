/* SPDX-License-Identifier: Apache-2.0
 *
 * The header of the OpenCL framework, with the interface of Khronos, for builds without the rest
 * of that framework.
 */
#ifndef NIB_TESTS_APPLE_CL_H
#define NIB_TESTS_APPLE_CL_H

#undef __APPLE__ /* Khronos' header would include files that this system lacks */
#include <CL/cl.h>
#define __APPLE__ 1

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * macOS declares uselocale here.
 */
#include <locale.h>

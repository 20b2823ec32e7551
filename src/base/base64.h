/* SPDX-License-Identifier: Apache-2.0
 *
 * Base64 with the standard alphabet and padding (RFC 4648, section 4).
 */
#ifndef NIB_BASE64_H
#define NIB_BASE64_H

#include "text.h"

void nib__base64_put(nib_text *out, const void *bytes, size_t size);
/* out: [3 * (size / 4)], may be `text` itself. False: not base64; line feeds are not either. */
bool nib__base64_read(uint8_t *out, size_t *out_size, const char *text, size_t size);

#endif

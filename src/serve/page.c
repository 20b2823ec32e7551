/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks up the files of the web page, which are embedded in the program.
 */
#include "http.h"

#include <string.h>

const page_file *page_find(const char *path)
{
    for (size_t i = 0; i < page_count; i++)
        if (strcmp(page_files[i].path, path) == 0)
            return &page_files[i];
    return NULL;
}

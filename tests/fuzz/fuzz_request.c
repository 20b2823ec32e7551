/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as the body of a request, on both routes: parsed, or refused with a member's name.
 */
#include "api_request.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const nib_api_limits limits = {.model = "tales", .vocab = 2256};
    const nib_allocator a = nib__allocator_default();
    for (int route = 0; route <= NIB_ROUTE_COMPLETIONS; route++) {
        nib_api_request request;
        nib_api_error error;
        nib_arena arena;
        nib__arena_init(&arena, &a, 0);
        const bool good = nib__api_request_read(&request, (nib_route)route, (const char *)data,
                                                size, &limits, &arena, &error);
        if (good == (error.http != 0) || (!good && error.text[0] == 0))
            abort(); /* either a request or an error text */
        if (good && request.n * (int64_t)(request.prompt_count + 1) > 2 * NIB_API_CHOICES)
            abort();
        nib__arena_free(&arena);
    }
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a regular expression, in both dialects: it compiles and runs on a name within its
 * limits, or is refused with an error text.
 */
#include "regex_guard.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void run(const OnigRegex regex)
{
    static const char name[] = "model.layers.12.mlp.experts.3.up_proj";
    const OnigUChar *begin = (const OnigUChar *)name, *end = begin + sizeof name - 1;
    OnigMatchParam *limits = nib__regex_limits(10000, 1000);
    require(limits != NULL);
    (void)onig_match_with_param(regex, begin, end, begin, NULL, ONIG_OPTION_NONE, limits);
    (void)onig_search_with_param(regex, begin, end, begin, end, NULL, ONIG_OPTION_NONE, limits);
    onig_free_match_param(limits);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int dialect = NIB_REGEX_PYTHON; dialect <= NIB_REGEX_ONIGURUMA; dialect++) {
        OnigRegex regex;
        nib_err err = {.status = NIB_OK};
        const char *text = size > 0 ? (const char *)data : "";
        if (nib__utf8_check(text, size) != size)
            return 0; /* callers of the compiler check this */
        if (nib__regex_compile(&regex, text, size, (nib_regex_dialect)dialect, &err) != NIB_OK) {
            require(err.status != NIB_OK && err.text[0] != 0 && regex == NULL);
            continue;
        }
        run(regex);
        onig_free(regex);
    }
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a chat template and, after a line of "====", as user variables: it is refused with
 * an error text, or renders within its limits to UTF-8 with marked ranges inside it, in order.
 */
#include "template.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_output(const nib_template_output *out)
{
    size_t at = 0;
    require(nib__utf8_check(out->text.at == NULL ? "" : out->text.at, out->text.size) ==
            out->text.size);
    for (size_t i = 0; i < out->user_count; i++) {
        require(out->user[i].start >= at && out->user[i].end > out->user[i].start);
        at = out->user[i].end;
    }
    require(at <= out->text.size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char rule[] = "\n====\n", plain[] = "{\"messages\": [{\"role\": \"user\", "
                                                     "\"content\": \"Hi \xc3\xa9\"}], \"n\": 3}";
    const nib_allocator a = nib__allocator_default();
    const char *text = (const char *)data;
    const char *at = nib__find_bytes(text, size, rule, sizeof rule - 1);
    const nib_named_text source = {"template", text, at == NULL ? size : (size_t)(at - text)};
    nib_template_value values = {NULL, plain, sizeof plain - 1};
    if (at != NULL) {
        values.json = at + sizeof rule - 1;
        values.size = size - (size_t)(values.json - text);
    }
    const nib_template_token bos = {"bos_token", "<s>", 3};
    const nib_template_input input = {
        .tokens = &bos,
        .token_count = 1,
        .values = &values,
        .value_count = 1,
        .limits = {.steps = 20000, .depth = 60, .bytes = 1 << 20},
    };
    nib_template *t = NULL;
    nib_template_output out;
    nib_err err = {0};
    nib__template_output_init(&out, &a);
    nib_status status = nib__template_open(&t, &source, &a, &err);
    if (status == NIB_OK)
        status = nib__template_render(t, &input, &out, &err);
    if (status == NIB_OK)
        check_output(&out);
    else
        require(err.status == status);
    nib__template_output_free(&out);
    nib__template_close(t);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes through the JSON reader: every event, number and string. The writer writes accepted
 * text again, and reading that must give the same events.
 */
#include "json.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

typedef struct tally {
    uint64_t events, bytes, numbers;
} tally;

/* Reads all of the text and writes it to w unless w is NULL. False if the text is not JSON or
 * exceeds the limits. */
static bool read_all(const char *text, size_t size, const nib_json_limits *limits,
                     const nib_allocator *a, tally *out, nib_jsonw *w)
{
    nib_json json;
    nib_arena arena;
    nib__arena_init(&arena, a, 1 << 20);
    nib__json_init(&json, "fuzz", text, size, limits);
    nib_json_event event;
    while ((event = nib__json_next(&json)) != NIB_JSON_END && event != NIB_JSON_ERROR) {
        double value;
        int64_t whole;
        size_t length;
        const char *string;
        out->events++;
        require(json.depth >= 0 && json.depth <= limits->depth);
        require(json.at > text && json.at <= text + size);
        switch (event) {
        case NIB_JSON_OBJECT: nib__jsonw_object(w); break;
        case NIB_JSON_OBJECT_END: nib__jsonw_object_end(w); break;
        case NIB_JSON_ARRAY: nib__jsonw_array(w); break;
        case NIB_JSON_ARRAY_END: nib__jsonw_array_end(w); break;
        case NIB_JSON_KEY:
        case NIB_JSON_STRING:
            string = nib__json_string(&json, &arena, &length);
            if (string == NULL)
                break;
            require(length <= json.token_size && string[length] == 0);
            require(nib__utf8_check(string, length) == length);
            require(nib__json_is(&json, string) == (strlen(string) == length));
            out->bytes += length;
            if (event == NIB_JSON_STRING)
                nib__jsonw_string_n(w, string, length);
            else
                nib__jsonw_key(w, strlen(string) == length ? string : "");
            break;
        case NIB_JSON_NUMBER: {
            nib_json copy = json;
            if (nib__json_int64(&copy, &whole))
                out->numbers += (uint64_t)whole;
            if (!nib__json_double(&json, &value))
                break;
            nib__jsonw_double(w, value);
            break;
        }
        default: nib__jsonw_null(w);
        }
    }
    nib__arena_free(&arena);
    require((event == NIB_JSON_END) == (json.err.status == NIB_OK));
    require(json.err.status == NIB_OK || json.err.text[0] != 0);
    return event == NIB_JSON_END;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    const nib_json_limits limits = {.depth = 20, .events = 10000, .literals = size % 2 == 0};
    nib_text text, again;
    nib_jsonw w;
    tally first = {0, 0, 0}, second = {0, 0, 0};
    nib__text_init(&text, &a);
    nib__text_init(&again, &a);
    nib__jsonw_init(&w, &text, size % 3 == 0 ? 2 : 0);
    if (read_all((const char *)data, size, &limits, &a, &first, &w)) {
        require(!text.failed && w.depth == 0);
        nib__jsonw_init(&w, &again, size % 3 == 0 ? 2 : 0);
        require(read_all(text.at, text.size, &limits, &a, &second, &w));
        require(first.events == second.events);
        require(text.size == again.size && memcmp(text.at, again.at, text.size) == 0);
    }
    nib__text_free(&again);
    nib__text_free(&text);
    nib_json json;
    nib__json_init(&json, "fuzz", (const char *)data, size, &limits);
    nib__json_next(&json);
    (void)nib__json_skip(&json);
    return 0;
}

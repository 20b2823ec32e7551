/* SPDX-License-Identifier: Apache-2.0
 *
 * For tools/oracle/schema_diff.py: random texts that schemas allow. For each schema, a line of
 * standard input, writes a line: {"error": TEXT} or {"ended": [TEXT], "long": [TEXT], "stuck":
 * [TEXT]}.
 *
 *   schema_walks TOKENIZER_JSON WALKS
 */
#include "../../tests/walking.h"
#include "json.h"

#include <stdio.h>
#include <stdlib.h>

static void put_line(nib_text *out)
{
    nib__text_put(out, "\n", 1);
    fwrite(out->at, 1, out->size, stdout);
    fflush(stdout);
    nib__text_clear(out);
}

static void walks(walking *w, const nib_constraint *c, int count, nib_jsonw *json)
{
    static const char *const names[] = {"ended", "long", "stuck"};
    const nib_allocator a = nib__allocator_default();
    const uint64_t seed = w->random;
    nib_text text;
    nib__text_init(&text, &a);
    nib__jsonw_object(json);
    /* The same walks three times, once for each list. */
    for (walked kind = WALK_ENDED; kind <= WALK_STUCK; kind++) {
        w->random = seed;
        nib__jsonw_key(json, names[kind]);
        nib__jsonw_array(json);
        for (int i = 0; i < count; i++) {
            nib__text_clear(&text);
            if (walk_once(w, c, &text) == kind)
                nib__jsonw_string_n(json, text.size == 0 ? "" : text.at, text.size);
        }
        nib__jsonw_array_end(json);
    }
    nib__jsonw_object_end(json);
    nib__text_free(&text);
}

int main(int argc, char **argv)
{
    const nib_allocator a = nib__allocator_default();
    static char line[NIB_TOKENIZER_IDS];
    nib_tokenizer *t = NULL;
    nib_token_trie *trie = NULL;
    nib_err err = {.status = NIB_OK};
    nib_text out;
    nib_jsonw json;
    if (argc != 3 || nib__tokenizer_open(&t, argv[1], NULL, &a, &err) != NIB_OK ||
        nib__token_trie_open(&trie, t, &a, &err) != NIB_OK) {
        fprintf(stderr, "%s\n", argc != 3 ? "schema_walks TOKENIZER_JSON WALKS" : err.text);
        return 2;
    }
    walking w = {.tokenizer = t, .trie = trie, .random = 1, .soft = 60, .hard = 2000};
    w.allowed = calloc(trie->words, sizeof *w.allowed);
    nib__text_init(&out, &a);
    while (w.allowed != NULL && fgets(line, sizeof line, stdin) != NULL) {
        const nib_named_text schema = {"schema", line, strlen(line)};
        nib_constraint *c = NULL;
        nib__jsonw_init(&json, &out, 0);
        if (nib__constraint_open(&c, trie, &schema, &a, &err) == NIB_OK &&
            nib__masks_open(&w.masks, c, &a, &err) == NIB_OK) {
            walks(&w, c, atoi(argv[2]), &json);
            nib__masks_close(w.masks);
        } else {
            nib__jsonw_object(&json);
            nib__jsonw_pair_string(&json, "error", err.text);
            nib__jsonw_object_end(&json);
        }
        nib__constraint_close(c);
        put_line(&out);
    }
    nib__text_free(&out);
    free(w.allowed);
    nib__token_trie_close(trie);
    nib__tokenizer_close(t);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a JSON schema. A schema that opens must be completable: a walk that prefers closing
 * bytes always has an allowed byte, the mask allows each byte it takes, and the text is JSON.
 */
#include "constraint.h"
#include "json.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STEPS = 400, ENDING = 100 };

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* Byte tokens and a few longer ones, in SentencePiece's form. */
static nib_token_trie *open_trie(const nib_allocator *a, nib_tokenizer **t)
{
    static const char *const more[] = {"{\\\"", "\\\":", "null", "},", "12", "\\\\n", "\\u00e9x"};
    nib_text text;
    nib_token_trie *trie = NULL;
    nib__text_init(&text, a);
    nib__text_str(&text, "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{");
    for (int i = 0; i < 256; i++)
        nib__text_format(&text, "\"<0x%02X>\":%d,", (unsigned)i, i);
    for (size_t i = 0; i < COUNT(more); i++)
        nib__text_format(&text, "%s\"%s\":%d", i == 0 ? "" : ",", more[i], 256 + (int)i);
    nib__text_str(&text,
                  "},\"merges\":[]},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":"
                  "\"ByteFallback\"},{\"type\":\"Fuse\"}]}}");
    const nib_named_text json = {"tokenizer.json", text.at, text.size};
    require(nib__tokenizer_parse(t, &json, NULL, a, NULL) == NIB_OK);
    require(nib__token_trie_open(&trie, *t, a, NULL) == NIB_OK);
    nib__text_free(&text);
    return trie;
}

static bool allows(const uint32_t *mask, unsigned id) { return mask[id / 32] >> (id % 32) & 1; }

/* Chooses an allowed token: a closing one if there is one, else any other. */
static int32_t choose(const uint32_t *mask, const nib_token_trie *trie, uint64_t dice, bool end)
{
    for (const char *c = "\"}]"; end && *c != 0; c++)
        if (allows(mask, (uint8_t)*c))
            return (uint8_t)*c;
    for (size_t i = 0; i < trie->vocab; i++) {
        const unsigned id = (unsigned)((dice + i) % trie->vocab);
        if (allows(mask, id))
            return (int32_t)id;
    }
    return -1;
}

static void walk(const nib_constraint *c, const nib_token_trie *trie, uint64_t random,
                 const nib_allocator *a)
{
    uint32_t mask[16];
    nib_constraint_state s;
    nib_masks *masks;
    nib_text text;
    nib__text_init(&text, a);
    require(trie->words <= COUNT(mask) && nib__masks_open(&masks, c, a, NULL) == NIB_OK);
    nib__constraint_start(&s, c);
    for (int step = 0; step < STEPS && !nib__constraint_ended(&s); step++) {
        size_t size;
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        if (nib__constraint_complete(&s) && step >= ENDING)
            break;
        nib__constraint_mask(masks, &s, mask);
        const int32_t id = choose(mask, trie, random >> 33, step >= ENDING || (random >> 60) < 6);
        require(id >= 0 && nib__constraint_accept(&s, id));
        const uint8_t *at = nib__token_spelling(trie, id, &size);
        nib__text_put(&text, (const char *)at, size);
    }
    if (nib__constraint_complete(&s)) {
        static const nib_json_limits limits = {.depth = 70};
        nib_json json;
        nib__json_init(&json, "text", text.at, text.size, &limits);
        nib__json_next(&json);
        require(nib__json_skip(&json) && nib__json_next(&json) == NIB_JSON_END);
    }
    nib__masks_close(masks);
    nib__text_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static nib_token_trie *trie; /* with its tokenizer, for the life of the program */
    static nib_tokenizer *tokenizer;
    const nib_allocator a = nib__allocator_default();
    const nib_named_text text = {"schema", size == 0 ? "" : (const char *)data, size};
    nib_constraint *c = NULL;
    nib_err err = {.status = NIB_OK};
    if (trie == NULL)
        trie = open_trie(&a, &tokenizer);
    if (nib__constraint_open(&c, trie, &text, &a, &err) != NIB_OK) {
        require(err.status != NIB_OK && err.text[0] != 0 && c == NULL);
        return 0;
    }
    for (uint64_t seed = 0; seed < 3; seed++)
        walk(c, trie, seed + size, &a);
    nib__constraint_close(c);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokens of a vocabulary by their bytes, for constrained decoding: which tokens begin with
 * which bytes, and which are nothing but characters of a JSON string. Built once per tokenizer;
 * never changes, so any number of constraints and threads share one. Special tokens, ids without
 * text and tokens of more than NIB_SPELLING bytes are not in it.
 */
#ifndef NIB_TOKEN_TRIE_H
#define NIB_TOKEN_TRIE_H

#include "tokenizer.h"

enum { NIB_SPELLING = 254 };

/* Where a JSON string stands between the bytes of its characters. */
typedef enum nib_content {
    NIB_CONTENT_START, /* between characters */
    NIB_CONTENT_1,     /* so many continuation bytes are to come */
    NIB_CONTENT_2,
    NIB_CONTENT_3,
    NIB_CONTENT_E0, /* after a lead byte that narrows its second byte */
    NIB_CONTENT_ED,
    NIB_CONTENT_F0,
    NIB_CONTENT_F4,
    NIB_CONTENT_BAD, /* not plain content: a quote, a backslash, a control (DEL, too, which the
                      * writer escapes), no UTF-8 */
} nib_content;

NIB_INLINE nib_content nib__content_step(nib_content at, uint8_t byte)
{
    const bool more = (byte & 0xc0) == 0x80;
    switch (at) {
    case NIB_CONTENT_START:
        if (byte < 0x80)
            return byte >= 0x20 && byte != '"' && byte != '\\' && byte != 0x7f ? NIB_CONTENT_START
                                                                               : NIB_CONTENT_BAD;
        if (byte < 0xe0)
            return byte >= 0xc2 ? NIB_CONTENT_1 : NIB_CONTENT_BAD;
        if (byte < 0xf0)
            return byte == 0xe0 ? NIB_CONTENT_E0 : byte == 0xed ? NIB_CONTENT_ED : NIB_CONTENT_2;
        return byte == 0xf0   ? NIB_CONTENT_F0
               : byte < 0xf4  ? NIB_CONTENT_3
               : byte == 0xf4 ? NIB_CONTENT_F4
                              : NIB_CONTENT_BAD;
    case NIB_CONTENT_1: return more ? NIB_CONTENT_START : NIB_CONTENT_BAD;
    case NIB_CONTENT_2: return more ? NIB_CONTENT_1 : NIB_CONTENT_BAD;
    case NIB_CONTENT_3: return more ? NIB_CONTENT_2 : NIB_CONTENT_BAD;
    case NIB_CONTENT_E0: return more && byte >= 0xa0 ? NIB_CONTENT_1 : NIB_CONTENT_BAD;
    case NIB_CONTENT_ED: return more && byte < 0xa0 ? NIB_CONTENT_1 : NIB_CONTENT_BAD;
    case NIB_CONTENT_F0: return more && byte >= 0x90 ? NIB_CONTENT_2 : NIB_CONTENT_BAD;
    case NIB_CONTENT_F4: return more && byte < 0x90 ? NIB_CONTENT_2 : NIB_CONTENT_BAD;
    default: return NIB_CONTENT_BAD;
    }
}

/* A node is reached by its byte; its first child, if any, is the node after it. Level 1 is no byte
 * but the lead of its tokens, so that a tree may hold several groups. */
typedef struct nib_token_node {
    uint32_t skip;  /* the node after all that are below this one */
    uint32_t first; /* in ids: of the tokens that begin so; those that end here come first, until
                     * the next node's */
    uint8_t byte, depth;
    uint8_t plain; /* a bit for each nib_content: with it here, all bytes below are content */
    uint8_t chars; /* most characters that begin below */
} nib_token_node;

typedef struct nib_token_tree {
    nib_token_node *nodes; /* [count + 1], the last one holds the end of ids */
    size_t count, capacity;
    int32_t *ids; /* in the order of their bytes */
    size_t id_count;
} nib_token_tree;

typedef struct nib_token_trie {
    nib_allocator allocator;
    size_t vocab, words; /* ids, and words of a mask */
    char *bytes;         /* of all tokens, one after the other */
    uint32_t *offsets;   /* [vocab + 1] in bytes */
    bool spelled[256];   /* a token is this byte and nothing else */
    int longest;         /* bytes of a token */
    nib_token_tree all;  /* one group */
    nib_token_tree ends; /* of tokens that are content and then a quote or a backslash: from there
                            * on; one group */
    nib_token_tree counted; /* the same, a group for each number of characters before it */
    uint32_t *plain;        /* [words] tokens that are content from START on */
    int32_t *plain_ids; /* the same by number of characters: [plain_from[n], plain_from[n + 1]) */
    uint32_t plain_from[NIB_SPELLING + 2];
    int plain_longest; /* characters of a plain token */
} nib_token_trie;

nib_status nib__token_trie_open(nib_token_trie **out, const nib_tokenizer *t,
                                const nib_allocator *a, nib_err *err);
void nib__token_trie_close(nib_token_trie *trie); /* NULL allowed */
uint64_t nib__token_trie_bytes(const nib_token_trie *trie);

/* The bytes of a token; *size 0: it is not in the trie. */
NIB_INLINE const uint8_t *nib__token_spelling(const nib_token_trie *trie, int32_t id, size_t *size)
{
    if (id < 0 || (size_t)id >= trie->vocab) {
        *size = 0;
        return NULL;
    }
    *size = trie->offsets[id + 1] - trie->offsets[id];
    return (const uint8_t *)trie->bytes + trie->offsets[id];
}

#endif

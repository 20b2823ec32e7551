/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokens of a vocabulary by their bytes, for constrained decoding: which tokens begin with
 * which bytes, and which consist only of characters of a JSON string. Built once per tokenizer and
 * never changed, so any number of constraints and threads may share one. It leaves out special
 * tokens, ids without text and tokens of more than NIB_SPELLING bytes.
 */
#ifndef NIB_TOKEN_TRIE_H
#define NIB_TOKEN_TRIE_H

#include "tokenizer.h"

enum { NIB_SPELLING = 254 };

/* Position within the UTF-8 bytes of a character of a JSON string. */
typedef enum nib_content {
    NIB_CONTENT_START, /* between characters */
    NIB_CONTENT_1,     /* so many continuation bytes must follow */
    NIB_CONTENT_2,
    NIB_CONTENT_3,
    NIB_CONTENT_E0, /* after a lead byte that restricts the second byte */
    NIB_CONTENT_ED,
    NIB_CONTENT_F0,
    NIB_CONTENT_F4,
    NIB_CONTENT_BAD, /* not plain content: a quote, a backslash, a control character (including DEL,
                      * which the JSON writer escapes) or invalid UTF-8 */
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

/* Nodes are in preorder: the first child of a node, if any, is the next node. The byte of a level-1
 * node is not text but the number of its group (the lead of its tokens). */
typedef struct nib_token_node {
    uint32_t skip;  /* the node after its subtree */
    uint32_t first; /* in ids: the first token of the subtree; the tokens that end at this node come
                     * first, up to `first` of the next node */
    uint8_t byte, depth;
    uint8_t plain; /* bit c: from nib_content c at this node, all bytes below are content */
    uint8_t chars; /* the most characters that begin below, along one path */
} nib_token_node;

typedef struct nib_token_tree {
    nib_token_node *nodes; /* [count + 1], the last one holds the end of ids */
    size_t count, capacity;
    int32_t *ids; /* sorted by the bytes of the tokens */
    size_t id_count;
} nib_token_tree;

typedef struct nib_token_trie {
    nib_allocator allocator;
    size_t vocab, words; /* number of ids, and of words in a mask */
    char *bytes;         /* of all tokens, concatenated */
    uint32_t *offsets;   /* [vocab + 1] into bytes */
    bool spelled[256];   /* some token is exactly this byte */
    int longest;         /* bytes of the longest token */
    nib_token_tree all;  /* all tokens; one group */
    nib_token_tree ends; /* tokens of content followed by a quote or backslash, keyed from that byte
                          * on; one group */
    nib_token_tree counted; /* the same, grouped by the number of characters before that byte */
    uint32_t *plain;        /* [words] mask of the tokens that are content from START on */
    int32_t *plain_ids;     /* the same, with n characters at [plain_from[n], plain_from[n + 1]) */
    uint32_t plain_from[NIB_SPELLING + 2];
    int plain_longest; /* characters of the longest plain token */
} nib_token_trie;

nib_status nib__token_trie_open(nib_token_trie **out, const nib_tokenizer *t,
                                const nib_allocator *a, nib_err *err);
void nib__token_trie_close(nib_token_trie *trie); /* NULL allowed */
uint64_t nib__token_trie_bytes(const nib_token_trie *trie);

/* The bytes of a token; *size is 0 if it is not in the trie. */
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

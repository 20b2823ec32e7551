/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a file of packed weights: a head, records, checksums, and data. The input holds the
 * data without padding; they are moved to their offset. The hashes are recomputed, so that fuzzing
 * reaches the code behind them. A file that opens gives whole weights or none.
 */
#include "kernel.h"
#include "packed.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD = 112, RECORD = 288, HASH = 16, REST = 80, SELF = 96, DATA = 2 << 20, N = 8, K = 64 };

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* Finds the weight that the corpus's records name: zeros, in the float layout. */
static void find_weight(const nib_packed *p)
{
    static const uint16_t zeros[N * K];
    const nib_weight w = {
        .scheme.code = NIB_CODE_BF16, .n = N, .k = K, .layout = NIB_LAYOUT_FLOAT, .codes = zeros};
    const nib_packing *packing = nib__kernel_find("linear_bf16_bf16_f32__avx512_12x32")->packing;
    volatile uint8_t seen = 0;
    if (!nib__packed_has(p, "w", packing))
        return;
    const uint64_t bytes = packing->bytes(&w);
    const uint8_t *at = nib__packed_find(p, "w", &w, packing, bytes);
    for (uint64_t i = 0; at != NULL && i < bytes; i++)
        seen ^= at[i];
    (void)seen;
}

static uint64_t number(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Recomputes the hashes as far as the head's numbers stay inside the file. */
static void seal(uint8_t *file, uint64_t size)
{
    enum { PIECE = 4 << 20 };
    const uint64_t count = number(file + 16), bytes = size - DATA;
    const uint64_t pieces = bytes / PIECE + (bytes % PIECE != 0);
    if (count < (DATA - HEAD) / RECORD - 1) {
        const nib_hash sum = nib__hash_bytes(file + DATA, bytes);
        uint8_t *sums = file + HEAD + count * RECORD;
        if (pieces == 1)
            memcpy(sums, &sum, HASH);
        const nib_hash rest = nib__hash_bytes(file + HEAD, count * RECORD + pieces * HASH);
        memcpy(file + REST, &rest, HASH);
    }
    memset(file + SELF, 0, HASH);
    const nib_hash self = nib__hash_bytes(file, HEAD);
    memcpy(file + SELF, &self, HASH);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    nib_err err = {.status = NIB_OK};
    nib_packed *p = NULL;
    nib_pool *pool = NULL;
    const uint64_t count = size < HEAD ? 0 : number(data + 16) % 16;
    const size_t front = nib__min(size, HEAD + count * RECORD + HASH);
    const size_t whole = size < HEAD ? size : DATA + size - front;
    uint8_t *file = calloc(whole == 0 ? 1 : whole, 1);
    if (file == NULL || nib__pool_open(&pool, 1, &a, &err) != NIB_OK)
        abort();
    memcpy(file, data, front);
    if (size >= HEAD) {
        memcpy(file + DATA, data + front, size - front);
        seal(file, whole);
    }
    if (nib__packed_parse(&p, file, whole, "nibble.pack", pool, &a, &err) == NIB_OK)
        find_weight(p);
    else
        require(err.status != NIB_OK && err.text[0] != 0 && p == NULL);
    nib__packed_close(p);
    nib__pool_close(pool);
    free(file);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints the speed of the hashes on one thread, the best of 300 runs over 1 MB:
 * build/release/tools/hash_speed
 */
#include "hash.h"
#include "pool.h"
#include "sha256.h"

#include <stdio.h>
#include <stdlib.h>

enum { BYTES = 1 << 20, RUNS = 300 };

static void use_sha256(const uint8_t *bytes)
{
    volatile uint8_t keep = nib__sha256_bytes(bytes, BYTES).bytes[0];
    (void)keep;
}

static void use_plain_c(const uint8_t *bytes)
{
    uint32_t state[8] = {0};
    nib__sha256_blocks(state, bytes, BYTES / 64);
    volatile uint32_t keep = state[0];
    (void)keep;
}

static void use_xxh3(const uint8_t *bytes)
{
    volatile uint64_t keep = nib__hash_bytes(bytes, BYTES).low;
    (void)keep;
}

static void print_speed(const char *name, void (*hash)(const uint8_t *), const uint8_t *bytes)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < RUNS; i++) {
        const uint64_t start = nib__now_ns();
        hash(bytes);
        const uint64_t took = nib__now_ns() - start;
        best = took < best ? took : best;
    }
    printf("%-22s %6.2f GB/s\n", name, (double)BYTES / (double)best);
}

int main(void)
{
    uint8_t *bytes = malloc(BYTES);
    if (bytes == NULL)
        return 1;
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)(i * 151 + (i >> 9));
    print_speed("SHA-256", use_sha256, bytes);
    print_speed("SHA-256 in plain C", use_plain_c, bytes);
    print_speed("XXH3-128", use_xxh3, bytes);
    free(bytes);
    return 0;
}

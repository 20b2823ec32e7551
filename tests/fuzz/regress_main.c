/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target without a fuzzer, with any compiler: every file of the given directories,
 * every truncation of it, and a fixed number of single-byte changes, the same ones each time.
 *
 *   regress_<target> DIRECTORY...
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    LARGEST = 1 << 20,
    TRUNCATIONS = 512, /* at most, evenly spread: all of a small file */
    MUTATIONS = 512,
};

static uint64_t runs;

/* Copies the input to memory of exactly its size, so that a sanitizer catches every read outside.
 */
static void run(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size == 0 ? 1 : size);
    if (copy == NULL)
        exit(5);
    memcpy(copy, data, size);
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
    runs++;
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static void run_variants(uint8_t *data, size_t size)
{
    run(data, size);
    for (size_t i = 0; i < TRUNCATIONS && i < size; i++)
        run(data, size <= TRUNCATIONS ? i : size / TRUNCATIONS * i);
    /* Bytes with a meaning in some format come before arbitrary ones. */
    static const uint8_t special[] = {0,   0xff, 0x7f, 0x80, '"', '\\', '{', '}',
                                      '[', ']',  ',',  ':',  '-', '0',  '9', ' '};
    uint64_t random = size;
    for (size_t i = 0; i < MUTATIONS && size != 0; i++) {
        const size_t at = size <= MUTATIONS / 4 ? i % size : next_random(&random) % size;
        const uint64_t dice = next_random(&random);
        const uint8_t old = data[at];
        data[at] = dice % 3 == 0   ? (uint8_t)(old ^ (1u << (dice / 3 % 8)))
                   : dice % 3 == 1 ? special[dice / 3 % sizeof special]
                                   : (uint8_t)(dice / 3);
        run(data, size);
        data[at] = old;
    }
}

static int run_file(const char *path)
{
    static uint8_t data[LARGEST];
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fprintf(stderr, "%s: cannot be opened\n", path);
        return 1;
    }
    const size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    run_variants(data, size);
    return 0;
}

static int run_directory(const char *path)
{
    DIR *directory = opendir(path);
    if (directory == NULL) {
        fprintf(stderr, "%s: cannot be opened\n", path);
        return 1;
    }
    int failed = 0, files = 0;
    for (const struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        char file[4096];
        if (entry->d_name[0] == '.')
            continue;
        const int length = snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        failed |= length < 0 || (size_t)length >= sizeof file || run_file(file);
        files++;
    }
    closedir(directory);
    if (files == 0)
        fprintf(stderr, "%s: is empty\n", path);
    return failed || files == 0;
}

int main(int argc, char **argv)
{
    int failed = argc < 2;
    run((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++)
        failed |= run_directory(argv[i]);
    printf("%" PRIu64 " inputs\n", runs);
    return failed;
}

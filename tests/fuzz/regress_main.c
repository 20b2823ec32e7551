/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target without a fuzzer, with any compiler: every file of the given directories,
 * truncations of it, single-byte changes, and changes by the target's own mutator if it has one;
 * the same ones each time. The more files a directory has, the fewer changes each file gets.
 *
 *   regress_<target> DIRECTORY...
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
__attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most,
                                                     unsigned seed);

enum {
    LARGEST = 1 << 20,
    MUTANT_LARGEST = 1 << 16,
    VARIANTS = 4096,     /* of each kind, of all files of a directory */
    VARIANTS_MOST = 512, /* of each kind, of a file */
    VARIANTS_LEAST = 8,
};

static uint64_t runs, state_of_bytes;

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

/* For mutators, which libFuzzer gives its own: changes a byte, or appends one. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most)
{
    const size_t at = (size_t)(next_random(&state_of_bytes) % (size + 1));
    if (at == size && size == most)
        return size;
    data[at] = (uint8_t)next_random(&state_of_bytes);
    return size + (at == size);
}

/* Files that the target's mutator makes of this one. */
static void run_mutants(const uint8_t *data, size_t size, size_t count)
{
    static uint8_t mutant[MUTANT_LARGEST];
    if (LLVMFuzzerCustomMutator == NULL || size > sizeof mutant)
        return;
    state_of_bytes = size;
    for (size_t i = 0; i < count; i++) {
        memcpy(mutant, data, size);
        run(mutant, LLVMFuzzerCustomMutator(mutant, size, sizeof mutant, (unsigned)i));
    }
}

/* count: of each kind; all truncations of a small file, else evenly spread ones. */
static void run_variants(uint8_t *data, size_t size, size_t count)
{
    run(data, size);
    for (size_t i = 0; i < count && i < size; i++)
        run(data, size <= count ? i : size / count * i);
    run_mutants(data, size, count);
    /* Bytes with a meaning in some format come before arbitrary ones. */
    static const uint8_t special[] = {0,   0xff, 0x7f, 0x80, '"', '\\', '{', '}',
                                      '[', ']',  ',',  ':',  '-', '0',  '9', ' '};
    uint64_t random = size;
    for (size_t i = 0; i < count && size != 0; i++) {
        const size_t at = size <= count / 4 ? i % size : next_random(&random) % size;
        const uint64_t dice = next_random(&random);
        const uint8_t old = data[at];
        data[at] = dice % 3 == 0   ? (uint8_t)(old ^ (1u << (dice / 3 % 8)))
                   : dice % 3 == 1 ? special[dice / 3 % sizeof special]
                                   : (uint8_t)(dice / 3);
        run(data, size);
        data[at] = old;
    }
}

static int run_file(const char *path, size_t count)
{
    static uint8_t data[LARGEST];
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fprintf(stderr, "%s: cannot be opened\n", path);
        return 1;
    }
    const size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    run_variants(data, size, count);
    return 0;
}

/* Runs the files of a directory; count 0: only counts them. */
static int run_files(DIR *directory, const char *path, size_t count, size_t *files)
{
    int failed = 0;
    *files = 0;
    rewinddir(directory);
    for (const struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        char file[4096];
        if (entry->d_name[0] == '.')
            continue;
        const int length = snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        ++*files;
        if (count > 0)
            failed |= length < 0 || (size_t)length >= sizeof file || run_file(file, count);
    }
    return failed;
}

static int run_directory(const char *path)
{
    DIR *directory = opendir(path);
    size_t files;
    if (directory == NULL) {
        fprintf(stderr, "%s: cannot be opened\n", path);
        return 1;
    }
    run_files(directory, path, 0, &files);
    const size_t share = VARIANTS / (files == 0 ? 1 : files);
    const int failed = run_files(directory, path,
                                 share > VARIANTS_MOST    ? VARIANTS_MOST
                                 : share < VARIANTS_LEAST ? VARIANTS_LEAST
                                                          : share,
                                 &files);
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

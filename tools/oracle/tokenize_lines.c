/* SPDX-License-Identifier: Apache-2.0
 *
 * For tools/oracle/tokenizer_diff.py: encodes and decodes standard input.
 *
 *   tokenize_lines TOKENIZER.json TOKENIZER_CONFIG.json|- FLAGS [REPEAT]
 *   tokenize_lines MODEL.gguf - FLAGS [REPEAT]
 *
 * Input is records of "SIZE\n" and SIZE bytes. For each, output is the ids on one line (or "! " and
 * the error), then the decoded text, special tokens left out, in the same form as the input. With
 * REPEAT, one record is encoded that many times, and only the time of opening and the encoding rate
 * are written.
 */
#include "gguf_vocab.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static char *read_record(size_t *size)
{
    if (scanf("%zu", size) != 1 || getchar() != '\n')
        return NULL;
    char *text = malloc(*size + 1);
    if (text == NULL || fread(text, 1, *size, stdin) != *size) {
        free(text);
        return NULL;
    }
    text[*size] = 0;
    return text;
}

static int encode_one(const nib_tokenizer *t, const char *text, size_t size, unsigned flags)
{
    const nib_allocator a = nib__allocator_default();
    nib_err err = {.status = NIB_OK};
    nib_text out;
    int32_t *ids = NULL;
    size_t count = 0;
    if (nib__tokenizer_encode(t, text, size, flags, &ids, &count, &err) != NIB_OK) {
        printf("! %s\n0\n", err.text);
        return 0;
    }
    for (size_t i = 0; i < count; i++)
        printf(i == 0 ? "%" PRId32 : " %" PRId32, ids[i]);
    nib__text_init(&out, &a);
    if (nib__tokenizer_decode(t, ids, count, true, &out, &err) != NIB_OK)
        return 1;
    printf("\n%zu\n", out.size);
    fwrite(out.at == NULL ? "" : out.at, 1, out.size, stdout);
    nib__text_free(&out);
    nib__tokenizer_ids_free(t, ids);
    return 0;
}

static int measure(const nib_tokenizer *t, double open_s, const char *text, size_t size,
                   unsigned flags, int repeat)
{
    nib_err err = {.status = NIB_OK};
    double best = 1e30;
    uint64_t steps = 0;
    size_t count = 0;
    for (int i = 0; i < repeat; i++) {
        int32_t *ids;
        const clock_t start = clock();
        if (nib__tokenizer_encode_steps(t, text, size, flags, &ids, &count, &steps, &err) !=
            NIB_OK) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        best = seconds < best ? seconds : best;
        nib__tokenizer_ids_free(t, ids);
    }
    printf("open %.3f s, encode %.2f MB/s, %zu bytes, %zu ids, %.2f steps per byte\n", open_s,
           (double)size * 1e-6 / best, size, count, (double)steps / (double)size);
    return 0;
}

int main(int argc, char **argv)
{
    const nib_allocator a = nib__allocator_default();
    nib_err err = {.status = NIB_OK};
    nib_tokenizer *t = NULL;
    size_t size;
    if (argc < 4) {
        fprintf(stderr, "usage: tokenize_lines TOKENIZER.json|MODEL.gguf CONFIG.json|- FLAGS "
                        "[REPEAT]\n");
        return 2;
    }
    const clock_t start = clock();
    const nib_status status =
        nib__gguf_begins(argv[1])
            ? nib__gguf_tokenizer_open(&t, argv[1], &a, &err)
            : nib__tokenizer_open(&t, argv[1], strcmp(argv[2], "-") == 0 ? NULL : argv[2], &a,
                                  &err);
    if (status != NIB_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 3;
    }
    const double open_s = (double)(clock() - start) / CLOCKS_PER_SEC;
    const unsigned flags = (unsigned)strtoul(argv[3], NULL, 10);
    int failed = 0;
    for (char *text; !failed && (text = read_record(&size)) != NULL; free(text))
        failed = argc > 4 ? measure(t, open_s, text, size, flags, atoi(argv[4]))
                          : encode_one(t, text, size, flags);
    nib__tokenizer_close(t);
    return failed;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and writes files of logits: Nibble's, with every logit in f32, and llama.cpp's, with
 * log-probabilities in 16 bits (tools/perplexity/perplexity.cpp, commit of llama-cpp-python 0.3.36:
 * log_softmax, process_logits and kl_divergence).
 */
#include "logits_file.h"
#include "sample.h"
#include "text.h"

#include <inttypes.h>
#include <math.h>

enum {
    MAGIC = 8,
    HEAD = 64,           /* bytes of Nibble's header */
    VERSION = 1,         /* of Nibble's format */
    LLAMA_HEAD = 20,     /* bytes before the ids */
    LLAMA_ROW = 4,       /* 16-bit words before the codes: two f32 */
    LLAMA_CODES = 65535, /* the largest code */
    LLAMA_WINDOW = 3,    /* shorter windows have no rows */
};
static const char nibble_magic[MAGIC] = {'n', 'i', 'b', 'l', 'o', 'g', 'i', 't'};
static const char llama_magic[MAGIC] = {'_', 'l', 'o', 'g', 'i', 't', 's', '_'};
static const char *const format_names[] = {"nibble", "llama.cpp"};

/* Nibble's header, as stored. */
typedef struct file_head {
    char magic[MAGIC];
    uint32_t version, vocab;
    uint64_t window, windows, rows;
    uint64_t ids_low, ids_high; /* XXH3-128 of all windows: count as int64, ids as int32 */
    uint64_t zero;
} file_head;
_Static_assert(sizeof(file_head) == HEAD, "the header has no padding");

nib_status nib__logits_format_parse(nib_logits_format *out, const char *name, nib_err *err)
{
    *out = NIB_LOGITS_NIBBLE;
    for (size_t i = 0; name && i < COUNT(format_names); i++) {
        *out = (nib_logits_format)i;
        if (strcmp(name, format_names[i]) == 0)
            return NIB_OK;
    }
    if (!name)
        return NIB_OK;
    char shown[NIB_SHOWN];
    return nib__fail(err, NIB_USAGE, "unknown format of logits \"%s\"; use nibble or llama.cpp",
                     nib__escape_string(shown, name));
}

int64_t nib__logits_first(nib_logits_format format, int64_t window)
{
    return format == NIB_LOGITS_LLAMA_CPP ? window / 2 : 0;
}

static int64_t rows_of(nib_logits_format format, int64_t count)
{
    return nib__max(0, count - 1 - nib__logits_first(format, count));
}

/* vocab fits 32 bits. llama.cpp rounds the number of codes up to an even one. */
static uint64_t row_bytes_of(nib_logits_format format, int64_t vocab)
{
    return format == NIB_LOGITS_LLAMA_CPP
               ? (uint64_t)(nib__round_up(vocab, 2) + LLAMA_ROW) * sizeof(uint16_t)
               : (uint64_t)vocab * sizeof(float);
}

static void hash_window(nib_hasher *hasher, const nib_token_window *window)
{
    nib__hasher_add(hasher, &window->count, sizeof window->count);
    nib__hasher_add(hasher, window->ids, (size_t)window->count * sizeof *window->ids);
}

/* ---- reading ---- */

bool nib_is_logits_file(const char *path)
{
    nib_map map;
    if (!path || nib__map_open(&map, path, NULL) != NIB_OK)
        return false;
    const bool is = map.size >= MAGIC && (memcmp(map.at, nibble_magic, MAGIC) == 0 ||
                                          memcmp(map.at, llama_magic, MAGIC) == 0);
    nib__map_close(&map);
    return is;
}

/* The file is exactly its header and the rows. */
static nib_status check_size(nib_logits_file *f, uint64_t head, nib_err *err)
{
    uint64_t bytes;
    f->row_bytes = row_bytes_of(f->format, f->vocab);
    if (!nib__mul(&bytes, (uint64_t)f->rows, f->row_bytes) || !nib__add(&bytes, bytes, head))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %" PRId64 " rows of %" PRId64 " tokens exceed any file", f->path,
                         f->rows, f->vocab);
    if (bytes != f->map.size)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s has %" PRIu64 " bytes, but its header stands for %" PRIu64 ": %" PRId64
                         " rows of %" PRId64 " tokens; it is cut off or damaged",
                         f->path, f->map.size, bytes, f->rows, f->vocab);
    f->first_row = f->map.at + head;
    return NIB_OK;
}

static nib_status read_nibble(nib_logits_file *f, nib_err *err)
{
    file_head head;
    if (f->map.size < HEAD)
        return nib__fail(err, NIB_BAD_INPUT, "%s has %" PRIu64 " bytes, not even a header of %d",
                         f->path, f->map.size, HEAD);
    memcpy(&head, f->map.at, HEAD);
    if (head.version != VERSION)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s is a file of logits of version %" PRIu32
                         ", but this library reads version %d",
                         f->path, head.version, VERSION);
    if (head.vocab < 1 || head.vocab > INT32_MAX || head.window < 2 || head.window > INT32_MAX ||
        head.windows > INT64_MAX || head.rows > INT64_MAX)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: its header has %" PRIu32 " tokens in the vocabulary, %" PRIu64
                         " windows of %" PRIu64 " tokens and %" PRIu64 " rows",
                         f->path, head.vocab, head.windows, head.window, head.rows);
    f->vocab = head.vocab;
    f->window = (int64_t)head.window;
    f->windows = (int64_t)head.windows;
    f->rows = (int64_t)head.rows;
    f->ids = (nib_hash){head.ids_low, head.ids_high};
    f->hasher = nib__hasher_open();
    if (!f->hasher)
        return nib__fail_memory(err, sizeof(nib_hash), "a hash");
    return check_size(f, HEAD, err);
}

static nib_status read_llama_cpp(nib_logits_file *f, nib_err *err)
{
    struct {
        int32_t window, vocab, windows;
    } head;
    if (f->map.size < LLAMA_HEAD)
        return nib__fail(err, NIB_BAD_INPUT, "%s has %" PRIu64 " bytes, not even a header of %d",
                         f->path, f->map.size, LLAMA_HEAD);
    memcpy(&head, f->map.at + MAGIC, sizeof head);
    if (head.window < LLAMA_WINDOW || head.vocab < 1 || head.windows < 1)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: its header has a vocabulary of %" PRId32 " and %" PRId32
                         " windows of %" PRId32 " tokens",
                         f->path, head.vocab, head.windows, head.window);
    f->vocab = head.vocab;
    f->window = head.window;
    f->windows = head.windows;
    f->rows = f->windows * rows_of(f->format, f->window); /* below 2^62 */
    return check_size(f, LLAMA_HEAD + (uint64_t)f->windows * (uint64_t)f->window * sizeof(int32_t),
                      err);
}

nib_status nib__logits_open(nib_logits_file *out, const char *path, nib_err *err)
{
    *out = (nib_logits_file){.path = path};
    NIB_TRY(nib__map_open(&out->map, path, err));
    if (out->map.size >= MAGIC && memcmp(out->map.at, nibble_magic, MAGIC) == 0)
        return read_nibble(out, err);
    out->format = NIB_LOGITS_LLAMA_CPP;
    if (out->map.size >= MAGIC && memcmp(out->map.at, llama_magic, MAGIC) == 0)
        return read_llama_cpp(out, err);
    return nib__fail(err, NIB_BAD_INPUT,
                     "%s is not a file of logits: it begins neither as Nibble's nor as llama.cpp's",
                     path);
}

void nib__logits_close(nib_logits_file *file)
{
    nib__map_close(&file->map);
    if (file->hasher)
        (void)nib__hasher_finish(file->hasher);
    *file = (nib_logits_file){0};
}

/* llama.cpp stores the ids; the first of a window counts only without BOS, which replaces it. */
static nib_status see_llama_cpp(nib_logits_file *f, const nib_token_window *window, nib_err *err)
{
    const uint8_t *ids = f->map.at + LLAMA_HEAD + (uint64_t)(f->seen * f->window) * sizeof(int32_t);
    for (int64_t i = window->bos; i < window->count; i++) {
        int32_t id;
        memcpy(&id, ids + (uint64_t)i * sizeof id, sizeof id);
        if (id != window->ids[i])
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s was written with another text or tokenizer: token %" PRId64
                             " of window %" PRId64 " is %" PRId32 " there, %" PRId32 " here",
                             f->path, i, window->number, id, window->ids[i]);
    }
    return NIB_OK;
}

nib_status nib__logits_see(nib_logits_file *f, const nib_token_window *window, nib_err *err)
{
    if (f->format == NIB_LOGITS_LLAMA_CPP)
        NIB_TRY(see_llama_cpp(f, window, err));
    else
        hash_window(f->hasher, window);
    f->seen++;
    return NIB_OK;
}

nib_status nib__logits_see_end(nib_logits_file *f, nib_err *err)
{
    if (f->seen != f->windows)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s was written with another text or tokenizer: it has %" PRId64
                         " windows or documents, the text has %" PRId64,
                         f->path, f->windows, f->seen);
    if (!f->hasher)
        return NIB_OK;
    const nib_hash ids = nib__hasher_finish(f->hasher);
    char stored[33], found[33];
    f->hasher = NULL;
    return nib__hash_equal(ids, f->ids)
               ? NIB_OK
               : nib__fail(err, NIB_BAD_INPUT,
                           "%s was written with another text or tokenizer: the hash of its tokens "
                           "is %s, that of this text %s",
                           f->path, nib__hash_text(stored, f->ids), nib__hash_text(found, ids));
}

/* The scale and the log-probability of code 0. */
static void row_range(float range[2], const nib_logits_file *f, int64_t row)
{
    memcpy(range, f->first_row + (uint64_t)row * f->row_bytes, 2 * sizeof(float));
}

nib_status nib__logits_check(const nib_logits_file *f, int64_t row, int64_t count, nib_err *err)
{
    for (int64_t i = row; f->format == NIB_LOGITS_LLAMA_CPP && i < row + count; i++) {
        float range[2];
        row_range(range, f, i);
        const double largest = (double)range[1] + (double)range[0] * LLAMA_CODES;
        /* a probability above 1.01 is not rounding */
        if (!(range[0] >= 0 && isfinite(range[1]) && largest < 0.01))
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: row %" PRId64 " has log-probabilities from %g to %g, which no "
                             "distribution has; the file is damaged",
                             f->path, i, (double)range[1], largest);
    }
    return NIB_OK;
}

const float *nib__logits_row(const nib_logits_file *f, int64_t row, float *space)
{
    const uint8_t *at = f->first_row + (uint64_t)row * f->row_bytes;
    if (f->format == NIB_LOGITS_NIBBLE)
        return (const float *)(const void *)at; /* HEAD and rows are whole floats */
    float range[2];
    row_range(range, f, row);
    const uint16_t *codes = (const uint16_t *)(const void *)at + LLAMA_ROW;
    for (int64_t v = 0; v < f->vocab; v++)
        space[v] = range[0] * (float)codes[v] + range[1];
    return space;
}

/* ---- writing ---- */

struct nib_logits_writer {
    nib_allocator allocator;
    const char *path; /* the caller's */
    char part[NIB_PART_PATH];
    nib_text lock; /* path of the lock; freed when it is not held */
    int lock_fd;
    nib_output *output;
    nib_logits_format format;
    int64_t vocab, window, windows, rows, written; /* the last two: rows in all, and so far */
    uint64_t row_bytes, rows_at;                   /* rows_at: offset of the first row */
    nib_hasher *hasher;
    uint16_t *codes; /* [codes_capacity / row_bytes] rows of llama.cpp */
    size_t codes_capacity;
};

/* Removes what was not finished. */
static void writer_close(nib_logits_writer *w)
{
    const nib_allocator a = w->allocator;
    if (w->output) {
        nib__output_abandon(w->output);
        (void)nib__path_remove(w->part, NULL);
    }
    if (w->lock.at)
        nib__lock_release(w->lock_fd, w->lock.at);
    if (w->hasher)
        (void)nib__hasher_finish(w->hasher);
    nib__text_free(&w->lock);
    nib__release(&a, w->codes);
    nib__release(&a, w);
}

/* The header without what is known only after the last window. */
static nib_status begin_file(nib_logits_writer *w, nib_err *err)
{
    static const uint8_t nothing[HEAD];
    NIB_TRY(nib__part_choose(w->part, w->path, ".part", err));
    NIB_TRY(nib__output_open(&w->output, w->part, &w->allocator, err));
    if (w->format == NIB_LOGITS_LLAMA_CPP)
        return nib__output_write(w->output, nothing, LLAMA_HEAD, err);
    w->hasher = nib__hasher_open();
    return w->hasher ? nib__output_write(w->output, nothing, HEAD, err)
                     : nib__fail_memory(err, sizeof(nib_hash), "a hash");
}

static nib_status take_lock(nib_logits_writer *w, nib_err *err)
{
    nib__text_init(&w->lock, &w->allocator);
    nib__text_format(&w->lock, "%s.part.lock", w->path);
    if (w->lock.failed)
        return nib__fail_memory(err, strlen(w->path), "a path");
    const nib_status status = nib__lock_take(&w->lock_fd, w->lock.at, err);
    if (status != NIB_OK)
        nib__text_free(&w->lock);
    return status;
}

nib_status nib__logits_writer_open(nib_logits_writer **out, const char *path,
                                   nib_logits_format format, int64_t vocab, int64_t window,
                                   const nib_allocator *a, nib_err *err)
{
    NIB_TRY(nib__file_may_replace(path, err));
    if (nib__path_kind(path) != NIB_PATH_NONE)
        return nib__fail(err, NIB_EXISTS, "%s: exists already; remove it or name another file",
                         path);
    if (format == NIB_LOGITS_LLAMA_CPP && window < LLAMA_WINDOW)
        return nib__fail(err, NIB_USAGE,
                         "a window of %" PRId64 " is too short for llama.cpp's logits, which are "
                         "of its second half; use %d or more",
                         window, LLAMA_WINDOW);
    nib_logits_writer *w = nib__calloc(a, 1, sizeof *w);
    if (!w)
        return nib__fail_memory(err, sizeof *w, path);
    w->allocator = *a;
    w->path = path;
    w->format = format;
    w->vocab = vocab;
    w->window = window;
    w->row_bytes = row_bytes_of(format, vocab);
    nib_status status = take_lock(w, err);
    if (status == NIB_OK)
        status = begin_file(w, err);
    if (status == NIB_OK)
        *out = w;
    else
        writer_close(w);
    return status;
}

nib_status nib__logits_writer_see(nib_logits_writer *w, const nib_token_window *window,
                                  nib_err *err)
{
    w->windows++;
    w->rows += rows_of(w->format, window->count);
    if (w->format == NIB_LOGITS_NIBBLE) {
        hash_window(w->hasher, window);
        return NIB_OK;
    }
    const int32_t first = window->bos ? window->replaced : window->ids[0];
    if (w->windows > INT32_MAX / w->window) /* llama.cpp counts ids in 32 bits */
        return nib__fail(err, NIB_BAD_INPUT,
                         "the text has over %d tokens, too many for llama.cpp's logits", INT32_MAX);
    NIB_TRY(nib__output_write(w->output, &first, sizeof first, err));
    return nib__output_write(w->output, window->ids + 1,
                             (size_t)(window->count - 1) * sizeof *window->ids, err);
}

static nib_status write_head(nib_logits_writer *w, nib_err *err)
{
    if (w->format == NIB_LOGITS_LLAMA_CPP) {
        uint8_t head[LLAMA_HEAD];
        const int32_t sizes[] = {(int32_t)w->window, (int32_t)w->vocab, (int32_t)w->windows};
        memcpy(head, llama_magic, MAGIC);
        memcpy(head + MAGIC, sizes, sizeof sizes);
        return nib__output_patch(w->output, 0, head, sizeof head, err);
    }
    const nib_hash ids = nib__hasher_finish(w->hasher);
    file_head head = {.version = VERSION,
                      .vocab = (uint32_t)w->vocab,
                      .window = (uint64_t)w->window,
                      .windows = (uint64_t)w->windows,
                      .rows = (uint64_t)w->rows,
                      .ids_low = ids.low,
                      .ids_high = ids.high};
    w->hasher = NULL;
    memcpy(head.magic, nibble_magic, MAGIC);
    return nib__output_patch(w->output, 0, &head, sizeof head, err);
}

nib_status nib__logits_writer_see_end(nib_logits_writer *w, uint64_t *bytes, int64_t *rows,
                                      nib_err *err)
{
    NIB_TRY(write_head(w, err));
    w->rows_at = nib__output_offset(w->output);
    if (!nib__mul(bytes, (uint64_t)w->rows, w->row_bytes) || !nib__add(bytes, *bytes, w->rows_at))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %" PRId64 " rows of %" PRId64 " tokens exceed any file", w->path,
                         w->rows, w->vocab);
    *rows = w->rows;
    return nib__output_extend(w->output, *bytes, err);
}

typedef struct encoding {
    const float *logits; /* [count][vocab] */
    uint16_t *codes;     /* [count][row_bytes / 2] */
    int64_t vocab;
    uint64_t row_words;
} encoding;

/* One row: f32 scale, f32 log-probability of code 0, codes. Code 0 is the least logit, but at most
 * 16 nats below the largest, which has the largest code. */
static void encode_row(uint16_t *out, const float *logits, int64_t vocab)
{
    int64_t best;
    const double all = nib__log_sum(logits, vocab, &best);
    float least = logits[best];
    for (int64_t v = 0; v < vocab; v++)
        least = logits[v] < least ? logits[v] : least;
    least = fmaxf(least, logits[best] + NIB_LLAMA_CPP_LEAST);
    const float scale = (logits[best] - least) / LLAMA_CODES;
    const float range[2] = {scale, (float)((double)least - all)};
    memcpy(out, range, sizeof range);
    for (int64_t v = 0; v < vocab; v++)
        out[LLAMA_ROW + v] = logits[v] > least
                                 ? (uint16_t)fminf((logits[v] - least) / scale + 0.5f, LLAMA_CODES)
                                 : 0;
    if (vocab % 2)
        out[LLAMA_ROW + vocab] = 0;
}

static void job_encode(void *ctx, int worker, int64_t begin, int64_t end)
{
    const encoding *e = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        encode_row(e->codes + (uint64_t)i * e->row_words, e->logits + i * e->vocab, e->vocab);
}

/* *out: `count` rows as the file holds them. */
static nib_status encode(const void **out, nib_logits_writer *w, const float *logits, int64_t count,
                         nib_pool *pool, nib_err *err)
{
    const uint64_t bytes = (uint64_t)count * w->row_bytes;
    *out = logits;
    if (w->format == NIB_LOGITS_NIBBLE)
        return NIB_OK;
    if (!nib__reserve(&w->allocator, (void **)&w->codes, &w->codes_capacity, (size_t)bytes, 1))
        return nib__fail_memory(err, bytes, "codes of logits");
    encoding e = {logits, w->codes, w->vocab, w->row_bytes / sizeof *w->codes};
    nib__pool_run(pool, count, 4, false, job_encode, &e);
    *out = w->codes;
    return NIB_OK;
}

nib_status nib__logits_writer_add(nib_logits_writer *w, const float *logits, int64_t count,
                                  nib_pool *pool, nib_err *err)
{
    const void *rows;
    if (count > w->rows - w->written)
        return nib__fail(err, NIB_FAILED, "%s: more rows than the %" PRId64 " of its windows",
                         w->path, w->rows);
    NIB_TRY(encode(&rows, w, logits, count, pool, err));
    const uint64_t at = w->rows_at + (uint64_t)w->written * w->row_bytes;
    w->written += count;
    return nib__output_patch(w->output, at, rows, (size_t)((uint64_t)count * w->row_bytes), err);
}

nib_status nib__logits_writer_finish(nib_logits_writer *w, nib_err *err)
{
    nib_status status =
        w->written == w->rows
            ? NIB_OK
            : nib__fail(err, NIB_FAILED, "%s: %" PRId64 " of %" PRId64 " rows were written",
                        w->path, w->written, w->rows);
    if (status == NIB_OK) {
        status = nib__output_finish(w->output, err);
        w->output = NULL;
        if (status == NIB_OK)
            status = nib__publish(w->part, w->path, false, err);
        if (status != NIB_OK)
            (void)nib__path_remove(w->part, NULL);
    }
    writer_close(w);
    return status;
}

void nib__logits_writer_abandon(nib_logits_writer *writer)
{
    if (writer)
        writer_close(writer);
}

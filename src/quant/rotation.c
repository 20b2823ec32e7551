/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotations in f64. Every sum is over ascending indices, or a butterfly of two values, so that
 * threads and instruction sets change no bit; square roots and divisions are IEEE 754's.
 */
#include "rotation.h"

#include <inttypes.h>
#include <math.h>

/* ---- random numbers: SplitMix64 (Steele et al. 2014) ---- */

static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* In [-1, 1). */
static double draw_value(uint64_t *state) { return (double)(draw(state) >> 11) * 0x1p-52 - 1; }

/* ---- Hadamard matrices by quadratic residues (Paley 1933) ---- */

static bool is_prime(int64_t q)
{
    for (int64_t d = 2; d * d <= q; d++)
        if (q % d == 0)
            return false;
    return q > 1;
}

static bool has_first(int64_t n) { return n % 4 == 0 && is_prime(n - 1); }
static bool has_second(int64_t n) { return n % 4 == 0 && n / 2 % 4 == 2 && is_prime(n / 2 - 1); }

/* Entry (i, j) of Jacobsthal's matrix of q rows, bordered by 1 above and by `left`. squares: [q]
 * which numbers are squares modulo q. */
static int bordered(const bool *squares, int64_t i, int64_t j, int64_t q, int left)
{
    if (i == 0 || j == 0)
        return i == j ? 0 : i == 0 ? 1 : left;
    return i == j ? 0 : squares[(i - j + q) % q] ? 1 : -1;
}

/* n - 1 is a prime q that leaves 3 modulo 4, or q = n / 2 - 1 is one that leaves 1. */
static int paley(const bool *squares, int64_t i, int64_t j, int64_t n)
{
    if (has_first(n))
        return i == j ? 1 : bordered(squares, i, j, n - 1, -1);
    const int c = bordered(squares, i / 2, j / 2, n / 2 - 1, 1), odd = (int)(i % 2 + j % 2);
    if (c == 0) /* [1 -1; -1 -1] on the diagonal, [1 1; 1 -1] times c elsewhere */
        return odd == 0 ? 1 : -1;
    return odd == 2 ? -c : c;
}

static nib_status make_hadamard(double *out, int64_t n, nib_arena *arena, nib_err *err)
{
    const int64_t q = has_first(n) ? n - 1 : n / 2 - 1;
    bool *squares = nib__arena_take(arena, (uint64_t)q, sizeof *squares);
    if (squares == NULL)
        return nib__fail_memory(err, (uint64_t)q, "a rotation");
    for (int64_t x = 1; x < q; x++)
        squares[x * x % q] = true;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            out[i * n + j] = paley(squares, i, j, n);
    return NIB_OK;
}

/* ---- the base ---- */

/* One reflection of Householder's: a's column j becomes zero below its diagonal; Q collects it. */
static void reflect(double *a, double *q, double *v, int64_t n, int64_t j)
{
    double square = 0, length = 0;
    for (int64_t i = j; i < n; i++)
        square += a[i * n + j] * a[i * n + j];
    for (int64_t i = j; i < n; i++)
        v[i] = a[i * n + j];
    v[j] += v[j] < 0 ? -sqrt(square) : sqrt(square);
    for (int64_t i = j; i < n; i++)
        length += v[i] * v[i];
    for (int64_t c = 0; c < n && length > 0; c++) {
        double left = 0, right = 0;
        for (int64_t i = j; i < n; i++) {
            left += v[i] * a[i * n + c];
            right += v[i] * q[c * n + i];
        }
        for (int64_t i = j; i < n; i++) {
            a[i * n + c] -= 2 * left / length * v[i];
            q[c * n + i] -= 2 * right / length * v[i];
        }
    }
}

/* The Q of a random matrix. */
static nib_status make_orthogonal(double *q, int64_t n, uint64_t *state, nib_arena *arena,
                                  nib_err *err)
{
    double *a = nib__arena_take(arena, (uint64_t)(n * n), sizeof *a),
           *v = nib__arena_take(arena, (uint64_t)n, sizeof *v);
    if (a == NULL || v == NULL)
        return nib__fail_memory(err, (uint64_t)(n * n) * sizeof *a, "a rotation");
    for (int64_t i = 0; i < n * n; i++)
        a[i] = draw_value(state);
    for (int64_t i = 0; i < n; i++)
        q[i * n + i] = 1;
    for (int64_t j = 0; j + 1 < n; j++)
        reflect(a, q, v, n, j);
    return NIB_OK;
}

/* The smallest base: 1, a multiple of the odd factor with a Hadamard matrix, or that factor. */
static int64_t find_base(int64_t size, bool *is_hadamard)
{
    int64_t odd = size;
    while (odd % 2 == 0)
        odd /= 2;
    *is_hadamard = true;
    for (int64_t n = odd; n <= size && n <= NIB_ROTATION_BASE; n *= 2)
        if (n == 1 || has_first(n) || has_second(n))
            return n;
    *is_hadamard = false;
    return odd;
}

nib_status nib__rotation_make(nib_rotation *out, int64_t size, uint64_t seed, nib_arena *arena,
                              nib_err *err)
{
    bool is_hadamard;
    uint64_t state = seed;
    const int64_t base = find_base(size, &is_hadamard), squares = base * base;
    if (base > NIB_ROTATION_BASE)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "a width of %" PRId64 " has the odd factor %" PRId64
                         ", and rotations are made up to %d",
                         size, base, NIB_ROTATION_BASE);
    double *signs = nib__arena_take(arena, (uint64_t)size, sizeof *signs),
           *matrix = nib__arena_take(arena, (uint64_t)squares, sizeof *matrix);
    if (signs == NULL || matrix == NULL)
        return nib__fail_memory(err, (uint64_t)(size + squares) * sizeof *signs, "a rotation");
    for (int64_t i = 0; i < size; i++)
        signs[i] = draw(&state) >> 63 != 0 ? -1 : 1;
    *out = (nib_rotation){.size = size,
                          .base = base,
                          .signs = signs,
                          .matrix = base > 1 ? matrix : NULL,
                          .is_hadamard = is_hadamard,
                          .factor = 1 / sqrt((double)(is_hadamard ? size : size / base))};
    if (!is_hadamard)
        return make_orthogonal(matrix, base, &state, arena, err);
    return base > 1 ? make_hadamard(matrix, base, arena, err) : NIB_OK;
}

/* ---- products ---- */

/* Multiplies a row of `size` values. */
static void apply(const nib_rotation *r, double *x, double *room)
{
    const int64_t base = r->base;
    for (int64_t i = 0; i < r->size; i++)
        x[i] *= r->signs[i];
    for (int64_t half = base; half < r->size; half *= 2)
        for (int64_t at = 0; at < r->size; at += 2 * half)
            for (int64_t i = at; i < at + half; i++) {
                const double a = x[i], b = x[i + half];
                x[i] = a + b;
                x[i + half] = a - b;
            }
    for (int64_t at = 0; at < r->size && base > 1; at += base) {
        for (int64_t j = 0; j < base; j++)
            room[j] = 0;
        for (int64_t i = 0; i < base; i++)
            for (int64_t j = 0; j < base; j++)
                room[j] += x[at + i] * r->matrix[i * base + j];
        for (int64_t j = 0; j < base; j++)
            x[at + j] = room[j];
    }
    for (int64_t i = 0; i < r->size; i++)
        x[i] *= r->factor;
}

void nib__rotation_apply(const nib_rotation *r, double *x, int64_t count, double *room)
{
    for (int64_t at = 0; at < count; at += r->size)
        apply(r, x + at, room);
}

/* ---- weights ---- */

enum { COLUMNS = 8 }; /* turned together, so that a line of memory is read once */

typedef struct turning {
    const nib_turn *turn;
    double *whole; /* [n][k] between columns and rows; NULL: no rows turn */
    float *out;    /* [n][k] */
    double *room;  /* [threads][room_values] */
    int64_t room_values;
} turning;

static void turn_columns(void *ctx, int worker, int64_t begin, int64_t end)
{
    const turning *w = ctx;
    const nib_turn *t = w->turn;
    const int64_t k = t->from->k;
    double *row = w->room + worker * w->room_values;
    for (int64_t i = begin; i < end; i++) {
        float *to = w->out + i * k;
        nib__weight_row(t->from, i, to);
        for (int64_t j = 0; j < k; j++)
            row[j] = t->factors != NULL ? (double)to[j] * (double)t->factors[j] : (double)to[j];
        if (t->columns != NULL)
            nib__rotation_apply(t->columns, row, k, row + k);
        for (int64_t j = 0; j < k && w->whole == NULL; j++)
            to[j] = (float)row[j];
        if (w->whole != NULL)
            memcpy(w->whole + i * k, row, (size_t)k * sizeof *row);
    }
}

/* Index i is columns COLUMNS * i and on. */
static void turn_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    const turning *w = ctx;
    const nib_turn *t = w->turn;
    const int64_t n = t->from->n, k = t->from->k;
    double *lines = w->room + worker * w->room_values; /* [COLUMNS][n] */
    for (int64_t at = begin * COLUMNS; at < nib__min(end * COLUMNS, k); at += COLUMNS) {
        const int64_t some = nib__min(COLUMNS, k - at);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < some; j++)
                lines[j * n + i] = w->whole[i * k + at + j];
        for (int64_t j = 0; j < some; j++)
            nib__rotation_apply(t->rows, lines + j * n, n, lines + COLUMNS * n);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < some; j++)
                w->out[i * k + at + j] = (float)lines[j * n + i];
    }
}

nib_status nib__turn_weight(float *out, const nib_turn *t, nib_pool *pool, const nib_allocator *a,
                            nib_err *err)
{
    const int64_t n = t->from->n, k = t->from->k;
    const uint64_t count = (uint64_t)n * (uint64_t)k, threads = (uint64_t)nib__pool_threads(pool);
    turning w = {.turn = t,
                 .out = out,
                 .room_values = nib__max(k, t->rows != NULL ? COLUMNS * n : 0) + NIB_ROTATION_BASE};
    w.room = nib__calloc(a, threads * (uint64_t)w.room_values, sizeof *w.room);
    w.whole = t->rows != NULL ? nib__calloc(a, count, sizeof *w.whole) : NULL;
    const bool has_room = w.room != NULL && (w.whole != NULL || t->rows == NULL);
    if (has_room)
        nib__pool_run(pool, n, 4, false, turn_columns, &w);
    if (has_room && t->rows != NULL)
        nib__pool_run(pool, nib__ceil_div(k, COLUMNS), 1, false, turn_rows, &w);
    nib__release(a, w.room);
    nib__release(a, w.whole);
    return has_room ? NIB_OK : nib__fail_memory(err, count * sizeof *w.whole, "a rotated weight");
}

void nib__turn_describe(nib_weight *out, const nib_turn *t, const float *values)
{
    *out = (nib_weight){.scheme = {.code = NIB_CODE_F32, .symmetric = true},
                        .n = t->from->n,
                        .k = t->from->k,
                        .layout = NIB_LAYOUT_FLOAT,
                        .codes = (const void *)values};
}

void nib__turn_bias(float *out, const nib_turn *t, double *room)
{
    const int64_t n = t->from->n;
    nib__weight_bias(t->from, out);
    if (t->rows == NULL)
        return;
    for (int64_t i = 0; i < n; i++)
        room[i] = (double)out[i];
    nib__rotation_apply(t->rows, room, n, room + n);
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)room[i];
}

void nib__turn_input(float *out, const nib_turn *t, const float *x, double *room)
{
    const int64_t k = t->from->k;
    for (int64_t j = 0; j < k; j++) {
        const double factor = t->factors != NULL ? (double)t->factors[j] : 1;
        room[j] = factor != 0 ? (double)x[j] / factor : 0;
    }
    if (t->columns != NULL)
        nib__rotation_apply(t->columns, room, k, room + k);
    for (int64_t j = 0; j < k; j++)
        out[j] = (float)room[j];
}

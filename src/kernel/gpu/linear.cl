/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear products and embedding look-ups, of weights in the layout "rows" (gpu_pack.h). Options,
 * set by ocl_linear.c:
 *
 *   W       the weight's codes, WEIGHT_*
 *   X       the activations, INPUT_*; XBLOCK: elements of k per activation scale, 0: all of a token
 *   SCALE   the type of the weight's scales, ZERO of its zero points: VALUE_*
 *   TOKENS  matvec: tokens per work-group
 *   ROWS    matvec: outputs per work-group; ITEMS: its work-items
 *   SUBGROUPS  matvec: sub-groups reduce the sums first
 *   EXPERTS the rows are those of several experts (nib_linear.experts), a work-group's of one
 *   DOT8    integers are multiplied by cl_khr_integer_dot_product; DOT_AMD, DOT_NIBBLES (4-bit
 *           codes): by an instruction of gfx90a; else by multiplications
 *   HALVES  tile: values are stored as halves, exactly: f16 weights and activations
 *
 * A weight is (code - zero) * scale with an integer zero point, code * scale + zero with a float
 * one; an activation is (code - zero) * scale. Codes are read eight at a time: under one scale if
 * groups are a multiple of 8, else each under its own. Sums are f32, in whatever order suits the
 * device; integer products are summed as integers while they share their scales.
 */
#define HAS_INT_ZERO (ZERO == VALUE_I8 || ZERO == VALUE_I32)
#define HAS_FLOAT_ZERO (ZERO >= 0 && !HAS_INT_ZERO)
#define IS_INTEGER (X == INPUT_I8 && (W == WEIGHT_I8 || W == WEIGHT_I4))

/* ---- eight codes ---- */

static float8 e4m3_eight(uchar8 c)
{
    return (float8)(from_e4m3(c.s0), from_e4m3(c.s1), from_e4m3(c.s2), from_e4m3(c.s3),
                    from_e4m3(c.s4), from_e4m3(c.s5), from_e4m3(c.s6), from_e4m3(c.s7));
}

#if W == WEIGHT_I4 || W == WEIGHT_E2M1
#define WEIGHT_BYTES(count) ((count) / 2)
#elif W == WEIGHT_F32
#define WEIGHT_BYTES(count) ((count)*4)
#elif W == WEIGHT_F16 || W == WEIGHT_BF16
#define WEIGHT_BYTES(count) ((count)*2)
#else
#define WEIGHT_BYTES(count) (count)
#endif

/* Eight codes of a row from k on, a multiple of 8, not scaled. */
static float8 weight_codes(const __global uchar *row, int k)
{
    const __global uchar *at = row + WEIGHT_BYTES((size_t)k);
#if W == WEIGHT_F32
    return *(const __global float8 *)at;
#elif W == WEIGHT_F16
    return vload_half8(0, (const __global half *)at);
#elif W == WEIGHT_BF16
    return as_float8(convert_uint8(*(const __global ushort8 *)at) << 16);
#elif W == WEIGHT_I8
    return convert_float8(*(const __global char8 *)at);
#elif W == WEIGHT_I4
    const int8 word = (int8)(*(const __global int *)at);
    return convert_float8((word << (int8)(28, 24, 20, 16, 12, 8, 4, 0)) >> 28);
#elif W == WEIGHT_E4M3
    return e4m3_eight(*(const __global uchar8 *)at);
#elif W == WEIGHT_E5M2
    const uchar8 c = *(const __global uchar8 *)at;
    return (float8)(from_e5m2(c.s0), from_e5m2(c.s1), from_e5m2(c.s2), from_e5m2(c.s3),
                    from_e5m2(c.s4), from_e5m2(c.s5), from_e5m2(c.s6), from_e5m2(c.s7));
#else
    const uint c = *(const __global uint *)at;
    return (float8)(from_e2m1(c), from_e2m1(c >> 4), from_e2m1(c >> 8), from_e2m1(c >> 12),
                    from_e2m1(c >> 16), from_e2m1(c >> 20), from_e2m1(c >> 24), from_e2m1(c >> 28));
#endif
}

static float sum_eight(float8 v)
{
    const float4 four = v.lo + v.hi;
    return (four.x + four.y) + (four.z + four.w);
}

/* Not dot(): OpenCL leaves its accuracy to the device. */
static float dot_eight(float8 a, float8 b)
{
    float sum = a.s0 * b.s0;
    sum += a.s1 * b.s1;
    sum += a.s2 * b.s2;
    sum += a.s3 * b.s3;
    sum += a.s4 * b.s4;
    sum += a.s5 * b.s5;
    sum += a.s6 * b.s6;
    return sum + a.s7 * b.s7;
}

/* ---- a weight ---- */

typedef struct weight {
    const __global uchar *codes, *scales, *zeros;
    int k, group, groups;
    int shift; /* group is 1 << shift; -1: not a power of two */
    size_t row_bytes;
} weight;

static int group_of(const weight *w, int k) { return w->shift >= 0 ? k >> w->shift : k / w->group; }

/* Whether eight codes from any multiple of 8 on lie in one group. */
static bool is_even(const weight *w) { return (w->group & 7) == 0 || w->groups <= 1; }

static const __global uchar *weight_row(const weight *w, int row)
{
    return w->codes + (size_t)row * w->row_bytes;
}

static float scale_of(const weight *w, int row, int group)
{
    return SCALE == VALUE_NONE
               ? 1.0f
               : load_value(w->scales, (size_t)row * (size_t)w->groups + (size_t)group, SCALE);
}

static float zero_of(const weight *w, int row, int group)
{
    return ZERO == VALUE_NONE
               ? 0.0f
               : load_value(w->zeros, (size_t)row * (size_t)w->groups + (size_t)group, ZERO);
}

static float8 scales_of(const weight *w, int row, int k)
{
    const int last = w->k - 1;
#define AT(j) scale_of(w, row, group_of(w, min(k + j, last)))
    return (float8)(AT(0), AT(1), AT(2), AT(3), AT(4), AT(5), AT(6), AT(7));
#undef AT
}

static float8 zeros_of(const weight *w, int row, int k)
{
    const int last = w->k - 1;
#define AT(j) zero_of(w, row, group_of(w, min(k + j, last)))
    return (float8)(AT(0), AT(1), AT(2), AT(3), AT(4), AT(5), AT(6), AT(7));
#undef AT
}

/* Eight dequantized values from k on, a multiple of 8. The caller must ignore those past the end of
 * the row, or multiply them by 0. */
static float8 weight_values(const weight *w, int row, int k)
{
    const float8 codes = weight_codes(weight_row(w, row), k);
    if (SCALE == VALUE_NONE)
        return codes;
    if (is_even(w)) {
        const int group = group_of(w, min(k, w->k - 1));
        const float scale = scale_of(w, row, group), zero = zero_of(w, row, group);
        return HAS_FLOAT_ZERO ? codes * scale + zero : (codes - zero) * scale;
    }
    const float8 scale = scales_of(w, row, k), zero = zeros_of(w, row, k);
    return HAS_FLOAT_ZERO ? codes * scale + zero : (codes - zero) * scale;
}

#ifdef EMBED

/* ---- look-up: one work-group per token ---- */

__kernel void embed(GLOBAL_ARG(uchar, codes), GLOBAL_ARG(uchar, scales), GLOBAL_ARG(uchar, zeros),
                    GLOBAL_ARG(int, ids), GLOBAL_ARG(float, out), int k, int ldk, int group,
                    int groups, int shift, float factor)
{
    GLOBAL_CONST_PTR(uchar, codes);
    GLOBAL_CONST_PTR(uchar, scales);
    GLOBAL_CONST_PTR(uchar, zeros);
    GLOBAL_CONST_PTR(int, ids);
    GLOBAL_PTR(float, out);
    const weight w = {codes, scales, zeros, k, group, groups, shift, WEIGHT_BYTES((size_t)ldk)};
    const size_t token = get_group_id(0);
    out += token * (size_t)k;
    for (int k0 = 8 * (int)get_local_id(0); k0 < k; k0 += 8 * ITEMS) {
        float eight[8];
        vstore8(weight_values(&w, ids[token], k0) * factor, 0, eight);
        for (int j = 0; j < 8 && k0 + j < k; j++)
            out[k0 + j] = eight[j];
    }
}

#else

/* ---- activations ---- */

typedef struct input {
    const __global uchar *values; /* [m][ld] */
    const __global float *scale;  /* [m], or [m][blocks] */
    const __global int *zero;     /* [m] */
    int ld, k, blocks;
    int is_aligned; /* f32: rows begin at multiples of 16 bytes */
} input;

static int zero_of_token(const input *x, int token)
{
#if X == INPUT_I8 && XBLOCK == 0
    return x->zero[token];
#else
    return 0;
#endif
}

/* The scale of the block that holds k; 1 if there are no blocks. */
static float scale_of_block(const input *x, int token, int k)
{
#if XBLOCK > 0
    return x->scale[(size_t)token * (size_t)x->blocks + (size_t)(min(k, x->k - 1) / XBLOCK)];
#else
    return 1.0f;
#endif
}

#if X == INPUT_E4M3

static float8 input_codes(const input *x, int token, int k)
{
    return e4m3_eight(
        *(const __global uchar8 *)(x->values + (size_t)token * (size_t)x->ld + (size_t)k));
}

#endif

/* Eight values of a token from k on, times the block scale, not the token scale; 0 past the end. */
static float8 input_values(const input *x, int token, int k)
{
#if X == INPUT_E4M3
    return input_codes(x, token, k) * scale_of_block(x, token, k);
#else
    const size_t at = (size_t)token * (size_t)x->ld + (size_t)k;
#if X == INPUT_F32
    const __global float *from = (const __global float *)x->values + at;
    if (k + 8 > x->k) {
        float8 tail = 0;
        const int left = x->k - k;
        tail.s0 = left > 0 ? from[0] : 0.0f;
        tail.s1 = left > 1 ? from[1] : 0.0f;
        tail.s2 = left > 2 ? from[2] : 0.0f;
        tail.s3 = left > 3 ? from[3] : 0.0f;
        tail.s4 = left > 4 ? from[4] : 0.0f;
        tail.s5 = left > 5 ? from[5] : 0.0f;
        tail.s6 = left > 6 ? from[6] : 0.0f;
        return tail;
    }
    if (x->is_aligned) {
        const __global float4 *four = (const __global float4 *)from;
        return (float8)(four[0], four[1]);
    }
    return vload8(0, from);
#elif X == INPUT_BF16
    const ushort8 bits = *(const __global ushort8 *)((const __global ushort *)x->values + at);
    return as_float8(convert_uint8(bits) << 16);
#else
    const int8 place = (int8)(0, 1, 2, 3, 4, 5, 6, 7) + k;
    const int8 codes = convert_int8(*(const __global char8 *)(x->values + at));
    const int8 zero = (int8)zero_of_token(x, token);
    return select((float8)0, convert_float8(codes - zero), place < (int8)x->k) *
           scale_of_block(x, token, k);
#endif
#endif
}

/* ---- integers: eight codes are two words of four bytes, or one word of 4-bit codes ---- */

#if IS_INTEGER

#ifdef DOT_NIBBLES /* weights and activations of -8..7 */

typedef uint eight_codes;
#define EIGHT_ONES 0x11111111u

static eight_codes weight_eight(const __global uchar *row, int k)
{
    return *(const __global uint *)(row + WEIGHT_BYTES((size_t)k));
}

/* Packs the low nibbles of four bytes into the low half of a word. */
static uint join_nibbles(uint four)
{
    const uint pairs = (four & 0x0f0f0f0fu) | (four & 0x0f0f0f0fu) >> 4;
    return (pairs & 0xffu) | (pairs >> 8 & 0xff00u);
}

static eight_codes input_eight(const input *x, int token, int k)
{
    const uint2 bytes =
        *(const __global uint2 *)(x->values + (size_t)token * (size_t)x->ld + (size_t)k);
    return join_nibbles(bytes.x) | join_nibbles(bytes.y) << 16;
}

static int dot_codes(eight_codes a, eight_codes b, int sum)
{
#ifdef NIB_EMULATE /* for the kernel checker, which lacks the instruction */
    for (int i = 28; i >= 0; i -= 4)
        sum += ((int)(a << i) >> 28) * ((int)(b << i) >> 28);
    return sum;
#else
    return __builtin_amdgcn_sdot8((int)a, (int)b, sum, false);
#endif
}

#else

typedef uint2 eight_codes;
#define EIGHT_ONES (uint2)(0x01010101u)

/* 4-bit codes: even ones in one word and odd ones in the other, as masks separate them. */
static eight_codes weight_eight(const __global uchar *row, int k)
{
#if W == WEIGHT_I4
    const uint both = *(const __global uint *)(row + WEIGHT_BYTES((size_t)k));
    const uint2 four = (uint2)(both, both >> 4) & 0x0f0f0f0fu;
    /* sign extension: code + 8, minus 8 under a bit that absorbs the borrow and is flipped back */
    return (((four ^ 0x08080808u) | 0x80808080u) - 0x08080808u) ^ 0x80808080u;
#else
    return *(const __global uint2 *)(row + k);
#endif
}

static eight_codes input_eight(const input *x, int token, int k)
{
    const char8 codes =
        *(const __global char8 *)(x->values + (size_t)token * (size_t)x->ld + (size_t)k);
#if W == WEIGHT_I4
    return (uint2)(as_uint(codes.even), as_uint(codes.odd));
#else
    return as_uint2(codes);
#endif
}

static int dot_word(uint a, uint b, int sum)
{
#if (defined(DOT_AMD) || (defined(DOT8) && defined(__AMDGCN__))) && !defined(NIB_EMULATE)
    return __builtin_amdgcn_sdot4((int)a, (int)b, sum, false);
#elif defined(DOT8) && defined(cl_khr_integer_dot_product)
    return sum + dot_4x8packed_ss_int(a, b);
#else
    const int4 p = convert_int4(as_char4(a)) * convert_int4(as_char4(b));
    return sum + (p.x + p.y) + (p.z + p.w);
#endif
}

static int dot_codes(eight_codes a, eight_codes b, int sum)
{
    return dot_word(a.x, b.x, dot_word(a.y, b.y, sum));
}

#endif

static int sum_codes(eight_codes a, int sum) { return dot_codes(a, EIGHT_ONES, sum); }

#endif

/* ---- what the products share ---- */

/* The work-group's first token, of `tokens`; for experts, one of those that chose its expert, whose
 * rows and weight the arguments then are. */
#ifndef EXPERTS
#define EXPERT_ARGUMENTS
#define TOKENS_HERE(tokens) const int token0 = (int)get_group_id(1) * (tokens)
#else
#define EXPERT_ARGUMENTS                                                                           \
    , GLOBAL_ARG(int, firsts), GLOBAL_ARG(int, owners), GLOBAL_ARG(long, places),                  \
        GLOBAL_ARG(float, factors), int experts, int head_step
#ifdef TOKENS
#define EXPERT_OF(tokens) expert_of_few(firsts, owners, (int)get_group_id(1), tokens, &token0)
#else
#define EXPERT_OF(tokens) expert_of_many(firsts, experts, (int)get_group_id(1), tokens, &token0)
#endif
#define INPUT_BYTES (X == INPUT_F32 ? 4 : X == INPUT_BF16 ? 2 : 1)
#define TOKENS_HERE(tokens)                                                                        \
    GLOBAL_CONST_PTR(int, firsts);                                                                 \
    GLOBAL_CONST_PTR(int, owners);                                                                 \
    GLOBAL_CONST_PTR(long, places);                                                                \
    GLOBAL_CONST_PTR(float, factors);                                                              \
    int token0;                                                                                    \
    const int of_head = m / experts; /* rows */                                                    \
    const int chosen = head_step > 0 ? head_of((int)get_group_id(1), of_head, tokens, &token0)     \
                                     : EXPERT_OF(tokens);                                          \
    if (chosen < 0)                                                                                \
        return;                                                                                    \
    const size_t first_row = (size_t)(head_step > 0 ? chosen * of_head : firsts[chosen]);          \
    const size_t place = (size_t)places[2 * chosen];                                               \
    m = head_step > 0 ? of_head : firsts[chosen + 1] - firsts[chosen];                             \
    factor = factors[chosen];                                                                      \
    codes += place, scales += place, zeros += place;                                               \
    bias = (const __global float *)((const __global uchar *)bias + places[2 * chosen + 1]);        \
    values += first_row * (size_t)ldx * INPUT_BYTES;                                               \
    x_scale += first_row * (size_t)blocks, x_zero += first_row;                                    \
    y += head_step > 0 ? (size_t)chosen * (size_t)head_step : first_row * (size_t)ldy
#endif

#define PRODUCT_ARGUMENTS                                                                          \
    GLOBAL_ARG(uchar, codes), GLOBAL_ARG(uchar, scales), GLOBAL_ARG(uchar, zeros),                 \
        GLOBAL_ARG(uchar, values), GLOBAL_ARG(float, x_scale), GLOBAL_ARG(int, x_zero),            \
        GLOBAL_ARG(float, bias), GLOBAL_ARG(int, int_bias), GLOBAL_ARG(float, y), int m, int n,    \
        int k, int ldk, int group, int groups, int shift, int ldx, int blocks, int is_aligned,     \
        int ldy, int has_bias, int has_int_bias, float factor EXPERT_ARGUMENTS

#define PRODUCT_HERE(tokens)                                                                       \
    GLOBAL_CONST_PTR(uchar, codes);                                                                \
    GLOBAL_CONST_PTR(uchar, scales);                                                               \
    GLOBAL_CONST_PTR(uchar, zeros);                                                                \
    GLOBAL_CONST_PTR(uchar, values);                                                               \
    GLOBAL_CONST_PTR(float, x_scale);                                                              \
    GLOBAL_CONST_PTR(int, x_zero);                                                                 \
    GLOBAL_CONST_PTR(float, bias);                                                                 \
    GLOBAL_CONST_PTR(int, int_bias);                                                               \
    GLOBAL_PTR(float, y);                                                                          \
    TOKENS_HERE(tokens);                                                                           \
    const weight w = {codes, scales, zeros, k, group, groups, shift, WEIGHT_BYTES((size_t)ldk)};   \
    const input x = {values, x_scale, x_zero, ldx, k, blocks, is_aligned}

/* Writes y of an output and token from the sum over k. int_bias has the units of integer sums. */
#define PUT_Y(token, row, sum)                                                                     \
    do {                                                                                           \
        float total_ = sum;                                                                        \
        if (has_int_bias != 0)                                                                     \
            total_ += scale_of(&w, row, 0) * (float)int_bias[row];                                 \
        total_ *= factor;                                                                          \
        if (TOKEN_SCALE != 0)                                                                      \
            total_ *= x_scale[token];                                                              \
        y[(size_t)(token) * (size_t)ldy + (size_t)(row)] =                                         \
            has_bias != 0 ? bias[row] + total_ : total_;                                           \
    } while (0)

#ifdef TOKENS

/* ---- few tokens: a work-group computes ROWS outputs of TOKENS tokens; its items split k ---- */

#define SUMS (ROWS * TOKENS)
#define PARTS (ITEMS / SUMS) /* items that add up one sum */

__kernel void matvec(PRODUCT_ARGUMENTS)
{
#ifdef SUBGROUPS             /* at most one per work-item */
    __local float part[SUMS][ITEMS + 1];
#else
    __local float scratch[SUMS][ITEMS + 1], part[SUMS][PARTS + 1];
#endif
    PRODUCT_HERE(TOKENS);
    const int id = (int)get_local_id(0), row0 = (int)get_group_id(0) * ROWS;
    float sums[ROWS][TOKENS];
    for (int r = 0; r < ROWS; r++)
        for (int t = 0; t < TOKENS; t++)
            sums[r][t] = 0;
    for (int k0 = 8 * id; k0 < k; k0 += 8 * ITEMS) {
        if (SCALE != VALUE_NONE && !is_even(&w)) {
            for (int r = 0; r < ROWS; r++) {
                const float8 eight = weight_values(&w, min(row0 + r, n - 1), k0);
                for (int t = 0; t < TOKENS; t++)
                    sums[r][t] += dot_eight(eight, input_values(&x, min(token0 + t, m - 1), k0));
            }
            continue;
        }
        const int g = group_of(&w, k0);
        float scale[ROWS], zero[ROWS];
        for (int r = 0; r < ROWS; r++) {
            scale[r] = scale_of(&w, min(row0 + r, n - 1), g);
            zero[r] = zero_of(&w, min(row0 + r, n - 1), g);
        }
#if IS_INTEGER
        const int count = min(8, k - k0);
        eight_codes codes_w[ROWS];
        for (int r = 0; r < ROWS; r++)
            codes_w[r] = weight_eight(weight_row(&w, min(row0 + r, n - 1)), k0);
        for (int t = 0; t < TOKENS; t++) {
            const int token = min(token0 + t, m - 1), z = zero_of_token(&x, token);
            const eight_codes codes_x = input_eight(&x, token, k0);
            const float block = scale_of_block(&x, token, k0);
            const int of_x = sum_codes(codes_x, -count * z);
            for (int r = 0; r < ROWS; r++) {
                int sum = dot_codes(codes_w[r], codes_x, 0);
                if (XBLOCK == 0)
                    sum -= z * sum_codes(codes_w[r], 0);
                if (HAS_INT_ZERO)
                    sum -= (int)zero[r] * of_x;
                sums[r][t] += scale[r] * block * (float)sum;
                if (HAS_FLOAT_ZERO)
                    sums[r][t] += zero[r] * (block * (float)of_x);
            }
        }
#else
        float8 eight[ROWS];
        for (int r = 0; r < ROWS; r++)
            eight[r] = weight_codes(weight_row(&w, min(row0 + r, n - 1)), k0);
        for (int t = 0; t < TOKENS; t++) {
            const float8 of_x = input_values(&x, min(token0 + t, m - 1), k0);
            const float x_sum = ZERO != VALUE_NONE ? sum_eight(of_x) : 0.0f;
            for (int r = 0; r < ROWS; r++) {
                const float sum = dot_eight(eight[r], of_x);
                if (SCALE == VALUE_NONE)
                    sums[r][t] += sum;
                else if (HAS_FLOAT_ZERO)
                    sums[r][t] += scale[r] * sum + zero[r] * x_sum;
                else
                    sums[r][t] += scale[r] * (sum - zero[r] * x_sum);
            }
        }
#endif
    }
#ifdef SUBGROUPS
    for (int i = 0; i < SUMS; i++) {
        const float of_all = sub_group_reduce_add(sums[i / TOKENS][i % TOKENS]);
        if (get_sub_group_local_id() == 0)
            part[i][get_sub_group_id()] = of_all;
    }
    const int parts = (int)get_num_sub_groups();
#else
    for (int r = 0; r < ROWS; r++)
        for (int t = 0; t < TOKENS; t++)
            scratch[r * TOKENS + t][id] = sums[r][t];
    barrier(CLK_LOCAL_MEM_FENCE);
    const int mine = id / PARTS, first = id % PARTS;
    float sum = 0;
    for (int i = first; i < ITEMS; i += PARTS)
        sum += scratch[mine][i];
    part[mine][first] = sum;
    const int parts = PARTS;
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    const int row = row0 + id / TOKENS, token = token0 + id % TOKENS;
    if (id < SUMS && row < n && token < m) {
        float total = 0;
        for (int i = 0; i < parts; i++)
            total += part[id][i];
        PUT_Y(token, row, total);
    }
}

#else

/* ---- many tokens: 64 outputs of 64 tokens in a work-group of 16 x 16, each item 4 x 4 ---- */

#define TILE 64
#define STEP 32 /* k at a time: each of the 256 items loads eight weights and eight activations */
#define SIDE 16
#define EACH (TILE / SIDE)

#ifdef MATRIX_AMD /* gfx90a.cl has the tile */
#elif !defined(SUM_INTEGERS)

#ifdef HALVES
typedef ushort stored;
#define STORE(to, value) vstore_half_rte(value, 0, (__local half *)&(to))
#define LOAD(from) vload_half(0, (const __local half *)&(from))
#else
typedef float stored;
#define STORE(to, value) (to) = (value)
#define LOAD(from) (from)
#endif

__kernel void tile(PRODUCT_ARGUMENTS)
{
    /* a row per k; 65 wide so that the eight values that an item writes lie in different banks */
    __local stored of_w[STEP][TILE + 1], of_x[STEP][TILE + 1];
    PRODUCT_HERE(TILE);
    const int id = (int)get_local_id(0), column = id % SIDE, line = id / SIDE;
    const int row0 = (int)get_group_id(0) * TILE;
    const int mine = id / (STEP / 8), k1 = id % (STEP / 8) * 8; /* what this item loads */
    const int row = min(row0 + mine, n - 1), token = min(token0 + mine, m - 1);
    float sums[EACH][EACH];
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++)
            sums[i][j] = 0;
    for (int k0 = 0; k0 < k; k0 += STEP) {
        float eight_w[8], eight_x[8];
        vstore8(weight_values(&w, row, k0 + k1), 0, eight_w);
        vstore8(input_values(&x, token, k0 + k1), 0, eight_x);
        for (int j = 0; j < 8; j++) {
            STORE(of_w[k1 + j][mine], eight_w[j]);
            STORE(of_x[k1 + j][mine], eight_x[j]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        float of_step[EACH][EACH]; /* a sum per step: rounding grows with k / STEP, not with k */
        for (int i = 0; i < EACH; i++)
            for (int j = 0; j < EACH; j++)
                of_step[i][j] = 0;
        for (int q = 0; q < STEP; q++) {
            float a[EACH], b[EACH];
            for (int i = 0; i < EACH; i++) {
                a[i] = LOAD(of_x[q][line + i * SIDE]);
                b[i] = LOAD(of_w[q][column + i * SIDE]);
            }
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++)
                    of_step[i][j] += a[i] * b[j];
        }
        for (int i = 0; i < EACH; i++)
            for (int j = 0; j < EACH; j++)
                sums[i][j] += of_step[i][j];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            const int to_token = token0 + line + i * SIDE, to_row = row0 + column + j * SIDE;
            if (to_token < m && to_row < n)
                PUT_Y(to_token, to_row, sums[i][j]);
        }
}

#else

/* Groups are a multiple of STEP, or there is one: a step has one scale. The sum of (code - zero) *
 * (x - z) is sum(code * x) - zero * sum(x - z) - z * sum(code); past the end all codes are 0. */
__kernel void tile(PRODUCT_ARGUMENTS)
{
    __local eight_codes of_w[STEP / 8][TILE + 1], of_x[STEP / 8][TILE + 1];
    __local int sums_w[STEP / 8][TILE], sums_x[STEP / 8][TILE];
    __local float scales_w[TILE], zeros_w[TILE], scales_x[TILE];
    PRODUCT_HERE(TILE);
    const int id = (int)get_local_id(0), column = id % SIDE, line = id / SIDE;
    const int row0 = (int)get_group_id(0) * TILE;
    const int mine = id / (STEP / 8), part = id % (STEP / 8); /* what this item loads */
    const int row = min(row0 + mine, n - 1), token = min(token0 + mine, m - 1);
    float sums[EACH][EACH];
    int z[EACH];
    for (int i = 0; i < EACH; i++) {
        z[i] = zero_of_token(&x, min(token0 + line + i * SIDE, m - 1));
        for (int j = 0; j < EACH; j++)
            sums[i][j] = 0;
    }
    for (int k0 = 0; k0 < k; k0 += STEP) {
        const eight_codes codes_w = weight_eight(weight_row(&w, row), k0 + 8 * part);
        const eight_codes codes_x = input_eight(&x, token, k0 + 8 * part);
        of_w[part][mine] = codes_w;
        of_x[part][mine] = codes_x;
        sums_w[part][mine] = sum_codes(codes_w, 0);
        sums_x[part][mine] = sum_codes(codes_x, 0);
        if (part == 0) {
            scales_w[mine] = scale_of(&w, row, group_of(&w, k0));
            zeros_w[mine] = zero_of(&w, row, group_of(&w, k0));
            scales_x[mine] = scale_of_block(&x, token, k0);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        int exact[EACH][EACH];
        for (int i = 0; i < EACH; i++)
            for (int j = 0; j < EACH; j++)
                exact[i][j] = 0;
        for (int q = 0; q < STEP / 8; q++) {
            eight_codes a[EACH], b[EACH];
            for (int i = 0; i < EACH; i++) {
                a[i] = of_x[q][line + i * SIDE];
                b[i] = of_w[q][column + i * SIDE];
            }
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++)
                    exact[i][j] = dot_codes(a[i], b[j], exact[i][j]);
        }
        const int count = min(STEP, k - k0);
        for (int j = 0; j < EACH; j++) {
            const int to = column + j * SIDE;
            int of_codes = 0;
            for (int p = 0; p < STEP / 8; p++)
                of_codes += sums_w[p][to];
            for (int i = 0; i < EACH; i++) {
                const int from = line + i * SIDE;
                int of_inputs = -count * z[i];
                for (int p = 0; p < STEP / 8; p++)
                    of_inputs += sums_x[p][from];
                int sum = exact[i][j] - z[i] * of_codes;
                if (HAS_INT_ZERO)
                    sum -= (int)zeros_w[to] * of_inputs;
                sums[i][j] += scales_w[to] * scales_x[from] * (float)sum;
                if (HAS_FLOAT_ZERO)
                    sums[i][j] += zeros_w[to] * (scales_x[from] * (float)of_inputs);
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            const int to_token = token0 + line + i * SIDE, to_row = row0 + column + j * SIDE;
            if (to_token < m && to_row < n)
                PUT_Y(to_token, to_row, sums[i][j]);
        }
}

#endif
#endif
#endif

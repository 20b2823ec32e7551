/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on rows of tokens: norm, rope, storing keys and values, swiglu, scale, add, gather.
 * Arguments and shapes are those of ops.h.
 */
#define GELU_TANH 1 /* of nib_activation */
#define CLAMPED 2
#define SIGMOID 3

/* One work-group per row. Not named `norm`, which CUDA defines. */
__kernel void norm_rows(GLOBAL_ARG(float, x), GLOBAL_ARG(float, out), GLOBAL_ARG(float, weight),
                        GLOBAL_ARG(float, bias), int width, int ldx, int ldo, float eps,
                        int centered, int has_bias, int weights)
{
    __local float scratch[GROUP];
    GLOBAL_CONST_PTR(float, x);
    GLOBAL_PTR(float, out);
    GLOBAL_CONST_PTR(float, weight);
    GLOBAL_CONST_PTR(float, bias);
    const size_t row = get_group_id(0);
    float squares = 0, mean = 0;
    x += row * (size_t)ldx;
    out += row * (size_t)ldo;
    weight += row % (size_t)weights * (size_t)width;
    if (centered) {
        for (int i = (int)get_local_id(0); i < width; i += GROUP)
            mean += x[i];
        mean = group_sum(mean, scratch) / (float)width;
    }
    for (int i = (int)get_local_id(0); i < width; i += GROUP)
        squares += (x[i] - mean) * (x[i] - mean);
    const float factor = 1.0f / sqrt(group_sum(squares, scratch) / (float)width + eps);
    for (int i = (int)get_local_id(0); i < width; i += GROUP) {
        const float value = (x[i] - mean) * factor * weight[i];
        out[i] = has_bias ? value + bias[i] : value;
    }
}

/* One work-item per pair of dimensions of a token's heads. */
__kernel void rope(GLOBAL_ARG(float, x), GLOBAL_ARG(int, position), GLOBAL_ARG(float, cos_sin),
                   int heads, int head_dim, int dims, int ldx, float sign, int interleaved)
{
    GLOBAL_PTR(float, x);
    GLOBAL_CONST_PTR(int, position);
    GLOBAL_CONST_PTR(float, cos_sin);
    const int half_dims = dims / 2, i = COLUMN_OF(heads * half_dims);
    const size_t row = ROW_OF_GROUP(GROUPS_OF(heads * half_dims));
    if (i >= heads * half_dims)
        return;
    const int head = i / half_dims, pair = i % half_dims;
    __global float *a = x + row * (size_t)ldx + head * head_dim + (interleaved ? 2 * pair : pair);
    __global float *b = a + (interleaved ? 1 : half_dims);
    const float u = *a, v = *b;
    cos_sin += (size_t)position[row] * (size_t)dims;
    const float c = cos_sin[pair], s = sign * cos_sin[half_dims + pair];
    *a = u * c - v * s;
    *b = v * c + u * s;
}

/* One work-item per dimension of a slot's heads. Keys are [block][kv_head][head_dim][position], values
 * [block][kv_head][position][head_dim], BLOCK positions each. has_values: else keys alone. */
__kernel void store_kv(GLOBAL_ARG(float, k), GLOBAL_ARG(float, v), GLOBAL_ARG(uchar, keys),
                       GLOBAL_ARG(uchar, values), GLOBAL_ARG(int, sequence),
                       GLOBAL_ARG(int, position), GLOBAL_ARG(int, tables), int ld, int table_ld,
                       int kv_heads, int head_dim, int has_values)
{
    GLOBAL_CONST_PTR(float, k);
    GLOBAL_CONST_PTR(float, v);
    GLOBAL_PTR(uchar, keys);
    GLOBAL_PTR(uchar, values);
    GLOBAL_CONST_PTR(int, sequence);
    GLOBAL_CONST_PTR(int, position);
    GLOBAL_CONST_PTR(int, tables);
    const int width = kv_heads * head_dim, i = COLUMN_OF(width);
    const size_t row = ROW_OF_GROUP(GROUPS_OF(width));
    if (i >= width)
        return;
    const float key = k[row * (size_t)ld + (size_t)i];
    const int at = position[row], head = i / head_dim, d = i % head_dim;
    const int block = tables[(size_t)sequence[row] * (size_t)table_ld + (size_t)(at / BLOCK)];
    const size_t side = ((size_t)block * (size_t)kv_heads + (size_t)head) * BLOCK;
    store_typed(keys, side * (size_t)head_dim + (size_t)(d * BLOCK + at % BLOCK), CACHE, key);
    if (has_values != 0)
        store_typed(values, (side + (size_t)(at % BLOCK)) * (size_t)head_dim + (size_t)d, CACHE,
                    v[row * (size_t)ld + (size_t)i]);
}

/* One work-item per element of a row. kind: nib_activation; alpha and limit: of the clamped one.
 * one_gate: nib_swiglu's. */
__kernel void swiglu(GLOBAL_ARG(float, gate), GLOBAL_ARG(float, up), GLOBAL_ARG(float, out),
                     int width, int ld, int ldu, int ldo, int kind, int has_up, int one_gate,
                     float alpha, float limit)
{
    GLOBAL_CONST_PTR(float, gate);
    GLOBAL_CONST_PTR(float, up);
    GLOBAL_PTR(float, out);
    const int i = COLUMN_OF(width);
    const size_t row = ROW_OF_GROUP(GROUPS_OF(width));
    if (i >= width)
        return;
    const float of_gate = gate[row * (size_t)ld + (size_t)(one_gate ? 0 : i)];
    const float of_up = has_up ? up[row * (size_t)ldu + (size_t)i] : 1.0f;
    /* not fmin() and fmax(), which drop a NaN */
    const float low = limit < of_up ? limit : of_up;
    const float u = kind == CLAMPED ? (-limit > low ? -limit : low) + 1.0f : of_up;
    const float g = kind == CLAMPED && limit < of_gate ? limit : of_gate;
    /* 2 sqrt(2 / pi) (g + 0.044715 g^3) */
    const float power = kind == GELU_TANH ? g * (0.0713548163f * (g * g) + 1.59576912f)
                        : kind == CLAMPED ? alpha * g
                                          : g;
    const float value = (kind == SIGMOID ? 1.0f : g) / (1.0f + exp(-power));
    out[row * (size_t)ldo + (size_t)i] = has_up ? u * value : value;
}

__kernel void scale(GLOBAL_ARG(float, x), GLOBAL_ARG(float, out), int width, int ldx, int ldo,
                    float by, float cap)
{
    GLOBAL_CONST_PTR(float, x);
    GLOBAL_PTR(float, out);
    const int i = COLUMN_OF(width);
    const size_t row = ROW_OF_GROUP(GROUPS_OF(width));
    if (i >= width)
        return;
    const float value = by * x[row * (size_t)ldx + (size_t)i];
    out[row * (size_t)ldo + (size_t)i] = cap != 0.0f ? cap * tanh(value / cap) : value;
}

__kernel void add(GLOBAL_ARG(float, x), GLOBAL_ARG(float, y), int width, int ldx, int ldy)
{
    GLOBAL_CONST_PTR(float, x);
    GLOBAL_PTR(float, y);
    const int i = COLUMN_OF(width);
    const size_t row = ROW_OF_GROUP(GROUPS_OF(width));
    if (i < width)
        y[row * (size_t)ldy + (size_t)i] += x[row * (size_t)ldx + (size_t)i];
}

__kernel void gather(GLOBAL_ARG(float, x), GLOBAL_ARG(float, out), GLOBAL_ARG(int, order),
                     int width, int ldx, int ldo)
{
    GLOBAL_CONST_PTR(float, x);
    GLOBAL_PTR(float, out);
    GLOBAL_CONST_PTR(int, order);
    const int i = COLUMN_OF(width);
    const size_t row = ROW_OF_GROUP(GROUPS_OF(width));
    if (i < width)
        out[row * (size_t)ldo + (size_t)i] = x[row * (size_t)ldx + (size_t)order[i]];
}

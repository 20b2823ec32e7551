/* SPDX-License-Identifier: Apache-2.0
 *
 * Replaces cuda_async.cuh: matrix units that read shared memory asynchronously, by the tables of
 * the PTX manual. Operands are located only by the bits of their descriptors, in shared memory as
 * it is when the unit works. Sums and scales are in a tensor memory of 128 lanes and 512 columns,
 * poisoned where a block has not written. Launches alternate between running the unit as early as
 * possible (at the request) and as late as possible (at the wait). This checks descriptors,
 * swizzles, addresses, phases, and data overwritten or requested too early.
 *
 * Not checked: a missing fence between threads' writes and the unit, the unit's order and width of
 * sums on sm_100a (f32 here), and anything that the manual does not specify.
 */
#ifndef NIB_EMULATE_ASYNC_H
#define NIB_EMULATE_ASYNC_H

#define NIB_CUDA_ASYNC_CUH

enum { EMULATED_LANES = 128, EMULATED_COLUMNS = 512 };

void emulated_fail(const char *what);
void emulated_yield();

/* The base of shared addresses; the launch's own part begins slightly later. */
extern unsigned char *emulated_window;
enum { EMULATED_WINDOW = 228 << 10 };

/* The unit of the running block and its pending work. */
struct emulated_unit {
    bool is_late;
    std::vector<std::function<void()>> asked;
    uint32_t memory[EMULATED_LANES][EMULATED_COLUMNS];
    uint first, taken; /* columns */
};
extern emulated_unit emulated_tensor;

void emulated_unit_begin(bool is_late);
void emulated_unit_end(); /* fails unless columns are freed and work awaited */

static inline uint shared_address(const void *at)
{
    const int64_t from = (const unsigned char *)at - emulated_window;
    if (from < 0 || from >= EMULATED_WINDOW)
        emulated_fail("an address is not in the shared memory of the launch");
    return (uint)from;
}

static inline void fence_async() {}

/* ---- operands ---- */

struct emulated_matrix {
    uint start, eights;
    bool is_turned;
};

static inline emulated_matrix emulated_operand(ulong descriptor, uint turned_by)
{
    return {(uint)(descriptor & 0x3fff) << 4, (uint)(descriptor >> 32 & 0x3fff) << 4,
            turned_by != 0};
}

/* tcgen05's: bits 46 to 48 are 1; bits 61 to 63 are the swizzle, where 2 means 128 bytes. */
static inline emulated_matrix emulated_of_tcgen05(ulong descriptor)
{
    const uint turned = (uint)(descriptor >> 61), rest = (uint)(descriptor >> 49 & 0xfff);
    if ((descriptor >> 46 & 7) != 1 || rest != 0 || (turned != 0 && turned != 2))
        emulated_fail("no descriptor of tcgen05");
    return emulated_operand(descriptor, turned);
}

/* wgmma's: bits 62 and 63 are the swizzle, where 1 means 128 bytes. */
static inline emulated_matrix emulated_of_wgmma(ulong descriptor)
{
    const uint turned = (uint)(descriptor >> 62), rest = (uint)(descriptor >> 46 & 0xffff);
    if (rest != 0 || turned != 1)
        emulated_fail("no descriptor of wgmma with rows of 128 bytes");
    return emulated_operand(descriptor, turned);
}

/* Eight rows are contiguous: of 128 bytes with swizzled 16-byte parts, else of 16. */
static inline uchar emulated_byte(const emulated_matrix &m, int row, int byte)
{
    uint at =
        m.start + (uint)row / 8 * m.eights + (uint)(row % 8 * (m.is_turned ? 128 : 16) + byte);
    if (m.is_turned)
        at ^= at >> 3 & 0x70;
    if (at >= EMULATED_WINDOW) {
        emulated_fail("a matrix is not in shared memory");
        return 0;
    }
    return emulated_window[at];
}

enum { EMULATED_KS = 32 };
typedef float emulated_codes[EMULATED_KS];

static inline void emulated_read(emulated_codes out, const emulated_matrix &m, int row,
                                 bool is_e5m2)
{
    if (!m.is_turned)
        emulated_fail("a matrix of codes whose rows are not turned");
    for (int k = 0; k < EMULATED_KS; k++) {
        const uchar code = emulated_byte(m, row, k);
        out[k] = is_e5m2 ? from_e5m2(code) : from_e4m3(code);
    }
}

/* ---- barriers: memory holds the number of completed phases ---- */

static inline void arrivals_init(ulong *at)
{
    shared_address(at);
    *at = 0;
}

static inline void arrivals_wait(ulong *at, int parity)
{
    auto &asked = emulated_tensor.asked;
    while ((int)(*at & 1) == parity)
        if (asked.empty()) {
            emulated_yield();
        } else {
            asked.front()();
            asked.erase(asked.begin());
        }
}

static inline void emulated_ask(std::function<void()> work)
{
    if (emulated_tensor.is_late)
        emulated_tensor.asked.push_back(std::move(work));
    else
        work();
}

/* ---- tcgen05 ---- */

static inline void tensor_take(uint *address, int columns)
{
    emulated_unit &unit = emulated_tensor;
    shared_address(address);
    if (threadIdx.x % 32 == 0) {
        if (columns < 32 || columns > EMULATED_COLUMNS || (columns & (columns - 1)) != 0 ||
            unit.taken != 0)
            emulated_fail("so many columns of tensor memory cannot be taken");
        unit.taken = (uint)columns;
        unit.first = columns < EMULATED_COLUMNS ? (uint)columns : 0; /* not the first column */
        *address = unit.first;
    }
    emulated_warp_meet();
}

static inline void tensor_give(uint address, int columns)
{
    emulated_unit &unit = emulated_tensor;
    if (threadIdx.x % 32 == 0) {
        if (address != unit.first || (uint)columns != unit.taken)
            emulated_fail("other tensor memory is given back than was taken");
        unit.taken = 0;
    }
    emulated_warp_meet();
}

static inline void tensor_before_barrier() {}
static inline void tensor_after_barrier() {}

static inline void tensor_commit(ulong *at)
{
    emulated_ask([at] { ++*at; });
}

/* False: outside the block's columns. */
static inline bool emulated_has(uint columns_from, uint columns)
{
    const emulated_unit &unit = emulated_tensor;
    const uint column = columns_from & 0xffff;
    const bool has = column >= unit.first && column + columns <= unit.first + unit.taken;
    if (!has)
        emulated_fail("tensor memory that the block did not take");
    return has;
}

static inline void tensor_copy_scales(uint to, ulong from)
{
    emulated_ask([to, from] {
        const emulated_matrix m = emulated_of_tcgen05(from);
        if (m.is_turned || to >> 16 != 0)
            emulated_fail("scales are copied from rows of 16 bytes to lane 0 on");
        if (!emulated_has(to, 4))
            return;
        for (int lane = 0; lane < EMULATED_LANES; lane++)
            for (int byte = 0; byte < 16; byte++) {
                uint32_t &word = emulated_tensor.memory[lane][(to & 0xffff) + (uint)byte / 4];
                const int shift = byte % 4 * 8;
                word = (word & ~(0xffu << shift)) | (uint32_t)emulated_byte(m, lane % 32, byte)
                                                        << shift;
            }
    });
}

/* The scale of row `row`; every group of 32 lanes must hold the same. */
static inline float emulated_scale(uint columns, int row, uint slice)
{
    const auto byte = [&](int lane) {
        return (uchar)(emulated_tensor.memory[lane][(columns & 0xffff) + (uint)row / 32] >>
                       (8 * slice));
    };
    for (int lane = row % 32; lane < EMULATED_LANES; lane += 32)
        if (byte(lane) != byte(row % 32))
            emulated_fail("not all lanes of tensor memory have the scales");
    return from_e8m0(byte(row % 32));
}

/* The fields that both kinds of instruction descriptors have. */
struct emulated_what {
    int m, n;
    bool is_e5m2_a, is_e5m2_b;
};

static inline emulated_what emulated_decode(uint what)
{
    const uint a = what >> 7 & 7, b = what >> 10 & 7, none = what & 0xe081e07fu;
    emulated_what out = {(int)(what >> 24 & 31) * 16, (int)(what >> 17 & 63) * 8, a == 1, b == 1};
    if (a > 1 || b > 1 || out.m != EMULATED_LANES || out.n < 16 || out.n > 256 || out.n % 16 != 0 ||
        none != 0)
        emulated_fail("no instruction descriptor of f8");
    return out;
}

static inline void emulated_tensor_mma(uint d, ulong a, ulong b, const emulated_what &what,
                                       const float *scale_a, const float *scale_b, bool adds)
{
    static emulated_codes of_a[EMULATED_LANES], of_b[256];
    for (int i = 0; i < what.m; i++)
        emulated_read(of_a[i], emulated_of_tcgen05(a), i, what.is_e5m2_a);
    for (int i = 0; i < what.n; i++)
        emulated_read(of_b[i], emulated_of_tcgen05(b), i, what.is_e5m2_b);
    if (!emulated_has(d, (uint)what.n))
        return;
    for (int row = 0; row < what.m; row++)
        for (int column = 0; column < what.n; column++) {
            uint32_t &word = emulated_tensor.memory[row][(d & 0xffff) + (uint)column];
            const float sum = emulated_dot(0, of_a[row], of_b[column], EMULATED_KS);
            const double by =
                scale_a == nullptr ? 1 : (double)scale_a[row] * (double)scale_b[column];
            word = as_uint((adds ? as_float(word) : 0.0f) + (float)(sum * by));
        }
}

static inline void tensor_mma_mx8(uint d, ulong a, ulong b, uint what, uint scale_a, uint scale_b,
                                  bool adds)
{
    emulated_ask([=] {
        const emulated_what is = emulated_decode(what & ~0x60800030u);
        float of_a[EMULATED_LANES], of_b[256];
        if ((what >> 23 & 1) != 1)
            emulated_fail("scales that are not e8m0");
        if (!emulated_has(scale_a, 4) || !emulated_has(scale_b, (uint)is.n / 32))
            return;
        for (int i = 0; i < is.m; i++)
            of_a[i] = emulated_scale(scale_a, i, what >> 29 & 3);
        for (int i = 0; i < is.n; i++)
            of_b[i] = emulated_scale(scale_b, i, what >> 4 & 3);
        emulated_tensor_mma(d, a, b, is, of_a, of_b, adds);
    });
}

static inline void tensor_mma_f8(uint d, ulong a, ulong b, uint what, bool adds)
{
    emulated_ask([=] {
        if ((what >> 4 & 3) != 1 || (what >> 23 & 1) != 0 || what >> 29 != 0)
            emulated_fail("sums that are not f32");
        emulated_tensor_mma(d, a, b, emulated_decode(what & ~0x30u), nullptr, nullptr, adds);
    });
}

static inline void tensor_load(float out[16], uint from)
{
    const uint lane = threadIdx.x % 128;
    if (from >> 16 != lane / 32 * 32)
        emulated_fail("a warp has its own 32 lanes of tensor memory only");
    if (emulated_has(from, 16))
        memcpy(out, &emulated_tensor.memory[lane][from & 0xffff], 16 * sizeof *out);
}

/* ---- wgmma: each thread computes its own part, at the wait or at the request ---- */

struct emulated_products {
    std::vector<std::function<void()>> asked;
};
emulated_products &emulated_own_products(); /* of the running thread */

static inline void group_mma_begin() {}
static inline void group_mma_commit() {}

static inline void group_mma_wait(float *)
{
    auto &asked = emulated_own_products().asked;
    for (const auto &work : asked)
        work();
    asked.clear();
}

static inline void emulated_group_mma(float *d, ulong a, ulong b, bool is_e5m2, bool adds)
{
    const int id = (int)(threadIdx.x % 128);
    const auto work = [=] {
        emulated_codes of_a[2], of_b[2];
        for (int i = 0; i < 2; i++)
            emulated_read(of_a[i], emulated_of_wgmma(a), id / 32 * 16 + id % 32 / 4 + 8 * i,
                          is_e5m2);
        for (int i = 0; i < 64; i++) {
            if (i % 4 == 0)
                for (int j = 0; j < 2; j++)
                    emulated_read(of_b[j], emulated_of_wgmma(b), i / 4 * 8 + id % 4 * 2 + j, false);
            d[i] = emulated_dot_f8(adds ? d[i] : 0, of_a[i / 2 % 2], of_b[i % 2], EMULATED_KS);
        }
    };
    if (emulated_tensor.is_late)
        emulated_own_products().asked.push_back(work);
    else
        work();
}

static inline void group_mma_e4m3(float d[64], ulong a, ulong b, bool adds)
{
    emulated_group_mma(d, a, b, false, adds);
}

static inline void group_mma_e5m2(float d[64], ulong a, ulong b, bool adds)
{
    emulated_group_mma(d, a, b, true, adds);
}

#endif

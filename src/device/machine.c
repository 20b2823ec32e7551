/* SPDX-License-Identifier: Apache-2.0
 *
 * Machines that need not be here, as data: what each has, since when it is known and from where.
 * Rates are published peaks of dense products, a multiply-add counting two; where a maker publishes
 * none, the value is derived from clock and pipes, and its source says so.
 */
#include "machine.h"

#define FACT(id, value_, date_, source_)                                                           \
    {                                                                                              \
        NIB_FACT_##id, NULL, value_, date_, source_                                                \
    }
#define RATE(what_, value_, date_, source_)                                                        \
    {                                                                                              \
        NIB_FACT_COUNT, what_, value_, date_, source_                                              \
    }

/* ---- AMD Instinct MI210 ---- */

#define MI210_SHEET "AMD Instinct MI210 data sheet"
#define MI200_ISA "AMD Instinct MI200 Instruction Set Architecture reference guide"

static const nib_fact_source mi210_sources[] = {
    FACT(DEVICE, "opencl (ROCm's OpenCL 2.x; kernels for gfx90a)", "2022-03-22", MI210_SHEET),
    FACT(MAKER, "amd", "2022-03-22", MI210_SHEET),
    FACT(CDNA, "2 (gfx90a)", "2022-03-22", MI210_SHEET),
    FACT(DOT4, "yes: v_dot8_i32_i4 multiplies eight 4-bit pairs", "2022-02-04", MI200_ISA),
    FACT(DOT8, "yes: v_dot4_i32_i8", "2022-02-04", MI200_ISA),
    FACT(MATRIX_UNIT, "yes: mfma, with int8 and bf16 but without a 4-bit form", "2022-02-04",
         MI200_ISA),
    RATE("bytes_per_s", "1.638 TB/s HBM2e", "2022-03-22", MI210_SHEET),
    RATE("f32", "22.6 TFLOP/s (vector)", "2022-03-22", MI210_SHEET),
    RATE("bf16", "181 TFLOP/s", "2022-03-22", MI210_SHEET),
    RATE("i8", "181 TOP/s", "2022-03-22", MI210_SHEET),
    RATE("memory", "64 GB", "2022-03-22", MI210_SHEET),
};

/* ---- Apple M2: the GPU, and the CPU beside it ---- */

#define M2_NEWS "Apple newsroom, Apple unveils M2"
#define M2_LLVM "LLVM 15 AArch64 processor definitions, apple-m2"

static const nib_fact_source apple_m2_sources[] = {
    FACT(DEVICE, "metal", "2022-06-06", M2_NEWS),
    FACT(MAKER, "apple", "2022-06-06", M2_NEWS),
    RATE("bytes_per_s", "100 GB/s, shared by CPU and GPU", "2022-06-06", M2_NEWS),
    RATE("f32", "3.6 TFLOP/s", "2022-06-06", M2_NEWS),
    RATE("bf16", "3.6 TFLOP/s, as f32: half precision saves bytes, not operations", "2022-06-06",
         "derived from " M2_NEWS),
    RATE("memory", "up to 24 GB; 16 GB assumed", "2022-06-06", M2_NEWS),
};

static const nib_fact_source apple_m2_cpu_sources[] = {
    FACT(DEVICE, "cpu", "2022-06-06", M2_NEWS),
    FACT(MAKER, "apple", "2022-06-06", M2_NEWS),
    FACT(ISA, "neon, dotprod, i8mm", "2022-09-06", M2_LLVM),
    FACT(DOT8, "yes: sdot", "2022-09-06", M2_LLVM),
    RATE("bytes_per_s", "100 GB/s", "2022-06-06", M2_NEWS),
    RATE("f32", "446 GFLOP/s", "2022-06-06",
         "derived: 4 performance cores x 3.49 GHz x 4 pipes x 4 lanes x 2"),
    RATE("bf16", "446 GFLOP/s, widened to f32", "2022-06-06", "derived as f32"),
    RATE("i8", "1.79 TOP/s", "2022-06-06",
         "derived: 4 performance cores x 3.49 GHz x 4 pipes x 32 (sdot)"),
    RATE("memory", "up to 24 GB; 16 GB assumed", "2022-06-06", M2_NEWS),
};

/* ---- NVIDIA ---- */

#define A100_SHEET "NVIDIA A100 80GB data sheet (SXM)"
#define A100_PAPER "NVIDIA A100 Tensor Core GPU Architecture whitepaper"

static const nib_fact_source a100_sources[] = {
    FACT(DEVICE, "cuda", "2021-06-22", A100_SHEET),
    FACT(MAKER, "nvidia", "2021-06-22", A100_SHEET),
    FACT(SM, "80", "2020-05-14", A100_PAPER),
    FACT(DOT4, "yes: int4 tensor cores", "2020-05-14", A100_PAPER),
    FACT(DOT8, "yes", "2020-05-14", A100_PAPER),
    FACT(MATRIX_UNIT, "yes", "2020-05-14", A100_PAPER),
    RATE("bytes_per_s", "2.039 TB/s", "2021-06-22", A100_SHEET),
    RATE("f32", "19.5 TFLOP/s", "2021-06-22", A100_SHEET),
    RATE("bf16", "312 TFLOP/s", "2021-06-22", A100_SHEET),
    RATE("i8", "624 TOP/s", "2021-06-22", A100_SHEET),
    RATE("memory", "80 GB", "2021-06-22", A100_SHEET),
};

#define H200_SHEET "NVIDIA H200 Tensor Core GPU data sheet (SXM)"
#define H100_PAPER "NVIDIA H100 Tensor Core GPU Architecture whitepaper"

static const nib_fact_source h200_sources[] = {
    FACT(DEVICE, "cuda", "2023-11-13", H200_SHEET),
    FACT(MAKER, "nvidia", "2023-11-13", H200_SHEET),
    FACT(SM, "90", "2022-03-22", H100_PAPER),
    FACT(DOT8, "yes", "2022-03-22", H100_PAPER),
    FACT(MATRIX_UNIT, "yes, without the 4-bit form of A100", "2022-03-22", H100_PAPER),
    FACT(FP8_UNIT, "yes", "2022-03-22", H100_PAPER),
    RATE("bytes_per_s", "4.8 TB/s", "2023-11-13", H200_SHEET),
    RATE("f32", "67 TFLOP/s", "2023-11-13", H200_SHEET),
    RATE("bf16", "989 TFLOP/s (published 1,979 with sparsity)", "2023-11-13", H200_SHEET),
    RATE("i8", "1,979 TOP/s (published 3,958 with sparsity)", "2023-11-13", H200_SHEET),
    RATE("fp8", "1,979 TFLOP/s (published 3,958 with sparsity)", "2023-11-13", H200_SHEET),
    RATE("memory", "141 GB", "2023-11-13", H200_SHEET),
};

#define B200_SHEET "NVIDIA Blackwell data sheet, HGX B200 column, per GPU"

static const nib_fact_source b200_sources[] = {
    FACT(DEVICE, "cuda", "2024-03-18", B200_SHEET),
    FACT(MAKER, "nvidia", "2024-03-18", B200_SHEET),
    FACT(SM, "100", "2025-01-23", "CUDA 12.8 release notes"),
    FACT(DOT8, "yes", "2024-03-18", B200_SHEET),
    FACT(MATRIX_UNIT, "yes", "2024-03-18", B200_SHEET),
    FACT(FP8_UNIT, "yes", "2024-03-18", B200_SHEET),
    FACT(MX_UNIT, "yes: tcgen05.mma with e8m0 block scales", "2025-01-23", "PTX ISA 8.7"),
    RATE("bytes_per_s", "7.7 TB/s", "2024-03-18", B200_SHEET),
    RATE("f32", "75 TFLOP/s", "2024-03-18", B200_SHEET),
    RATE("bf16", "2.25 PFLOP/s (published 4.5 with sparsity)", "2024-03-18", B200_SHEET),
    RATE("i8", "4.5 POP/s (published 9 with sparsity)", "2024-03-18", B200_SHEET),
    RATE("fp8", "4.5 PFLOP/s (published 9 with sparsity)", "2024-03-18", B200_SHEET),
    RATE("mx8", "4.5 PFLOP/s, as fp8", "2024-03-18", B200_SHEET),
    RATE("memory", "180 GB", "2024-03-18", B200_SHEET),
};

/* ---- Arm CPUs ---- */

#define C7G_NEWS "AWS, Amazon EC2 C7g instances powered by AWS Graviton3"
#define V1_GUIDE "Arm Neoverse V1 software optimization guide"

static const nib_fact_source graviton3_sources[] = {
    FACT(DEVICE, "cpu", "2022-05-23", C7G_NEWS),
    FACT(MAKER, "arm", "2022-05-23", C7G_NEWS),
    FACT(ISA, "neon, dotprod, i8mm", "2021-11-09", V1_GUIDE),
    FACT(DOT8, "yes: sdot", "2021-11-09", V1_GUIDE),
    RATE("bytes_per_s", "307 GB/s: 8 channels of DDR5-4800", "2022-05-23",
         "derived from " C7G_NEWS),
    RATE("f32", "5.3 TFLOP/s", "2021-11-09",
         "derived: 64 cores x 2.6 GHz x 4 pipes x 4 lanes x 2, " V1_GUIDE),
    RATE("bf16", "5.3 TFLOP/s, widened to f32", "2021-11-09", "derived as f32"),
    RATE("i8", "42.6 TOP/s", "2021-11-09",
         "derived: 64 cores x 2.6 GHz x 4 pipes x 64 (smmla), " V1_GUIDE),
    RATE("memory", "128 GiB (c7g.16xlarge)", "2022-05-23", C7G_NEWS),
};

#define PI5_NEWS "Raspberry Pi 5 product brief"
#define A76_GUIDE "Arm Cortex-A76 software optimization guide"

static const nib_fact_source raspberry_pi_5_sources[] = {
    FACT(DEVICE, "cpu", "2023-09-28", PI5_NEWS),
    FACT(MAKER, "arm", "2023-09-28", PI5_NEWS),
    FACT(ISA, "neon, dotprod; no i8mm (Arm v8.2)", "2018-06-01", A76_GUIDE),
    FACT(DOT8, "yes: sdot", "2018-06-01", A76_GUIDE),
    RATE("bytes_per_s", "17 GB/s: 32 bits of LPDDR4X-4267", "2023-09-28", "derived from " PI5_NEWS),
    RATE("f32", "154 GFLOP/s", "2018-06-01",
         "derived: 4 cores x 2.4 GHz x 2 pipes x 4 lanes x 2, " A76_GUIDE),
    RATE("bf16", "154 GFLOP/s, widened to f32", "2018-06-01", "derived as f32"),
    RATE("i8", "614 GOP/s", "2018-06-01",
         "derived: 4 cores x 2.4 GHz x 2 pipes x 32 (sdot), " A76_GUIDE),
    RATE("memory", "up to 16 GB; 8 GB assumed", "2023-09-28", PI5_NEWS),
};

/* ---- the table ---- */

#define NEON (NIB_ISA_NEON | NIB_ISA_DOTPROD)
#define SOURCES(list) .sources = list, .source_count = COUNT(list)

static const nib_machine apple_m2_cpu = {
    .name = "apple-m2-cpu",
    .title = "the CPU of Apple M2, 4 performance cores",
    .facts = {{[NIB_FACT_DEVICE] = NIB_DEVICE_CPU,
               [NIB_FACT_MAKER] = NIB_MAKER_APPLE,
               [NIB_FACT_ISA] = NEON | NIB_ISA_I8MM,
               [NIB_FACT_DOT8] = 1}},
    .bytes_per_s = 100e9,
    .rate = {[NIB_UNIT_F32] = 446e9,
             [NIB_UNIT_BF16] = 446e9,
             [NIB_UNIT_I8] = 1.79e12,
             [NIB_UNIT_FP8] = 446e9,
             [NIB_UNIT_MX8] = 446e9,
             [NIB_UNIT_SCALAR] = 14e9},
    .launch_s = 2e-6,
    .memory = UINT64_C(16) << 30,
    SOURCES(apple_m2_cpu_sources),
};

static const nib_machine machines[] = {
    {
        .name = "mi210",
        .title = "AMD Instinct MI210",
        .facts = {{[NIB_FACT_DEVICE] = NIB_DEVICE_OPENCL,
                   [NIB_FACT_MAKER] = NIB_MAKER_AMD,
                   [NIB_FACT_CDNA] = 2,
                   [NIB_FACT_DOT4] = 1,
                   [NIB_FACT_DOT8] = 1,
                   [NIB_FACT_MATRIX_UNIT] = 1}},
        .bytes_per_s = 1.638e12,
        .rate = {[NIB_UNIT_F32] = 22.6e12, [NIB_UNIT_BF16] = 181e12, [NIB_UNIT_I8] = 181e12},
        .launch_s = 5e-6,
        .memory = UINT64_C(64) << 30,
        SOURCES(mi210_sources),
    },
    {
        .name = "apple-m2",
        .title = "Apple M2, 10-core GPU",
        .host = &apple_m2_cpu,
        .facts = {{[NIB_FACT_DEVICE] = NIB_DEVICE_METAL, [NIB_FACT_MAKER] = NIB_MAKER_APPLE}},
        .bytes_per_s = 100e9,
        .rate = {[NIB_UNIT_F32] = 3.6e12, [NIB_UNIT_BF16] = 3.6e12},
        .launch_s = 5e-6,
        .memory = UINT64_C(16) << 30,
        SOURCES(apple_m2_sources),
    },
    {
        .name = "a100",
        .title = "NVIDIA A100 80GB SXM",
        .facts = {{[NIB_FACT_DEVICE] = NIB_DEVICE_CUDA,
                   [NIB_FACT_MAKER] = NIB_MAKER_NVIDIA,
                   [NIB_FACT_SM] = 80,
                   [NIB_FACT_DOT4] = 1,
                   [NIB_FACT_DOT8] = 1,
                   [NIB_FACT_MATRIX_UNIT] = 1}},
        .bytes_per_s = 2.039e12,
        .rate = {[NIB_UNIT_F32] = 19.5e12, [NIB_UNIT_BF16] = 312e12, [NIB_UNIT_I8] = 624e12},
        .launch_s = 4e-6,
        .memory = UINT64_C(80) << 30,
        SOURCES(a100_sources),
    },
    {
        .name = "h200",
        .title = "NVIDIA H200 SXM",
        .facts = {{[NIB_FACT_DEVICE] = NIB_DEVICE_CUDA,
                   [NIB_FACT_MAKER] = NIB_MAKER_NVIDIA,
                   [NIB_FACT_SM] = 90,
                   [NIB_FACT_DOT8] = 1,
                   [NIB_FACT_MATRIX_UNIT] = 1,
                   [NIB_FACT_FP8_UNIT] = 1}},
        .bytes_per_s = 4.8e12,
        .rate = {[NIB_UNIT_F32] = 67e12,
                 [NIB_UNIT_BF16] = 989e12,
                 [NIB_UNIT_I8] = 1979e12,
                 [NIB_UNIT_FP8] = 1979e12},
        .launch_s = 4e-6,
        .memory = UINT64_C(141) << 30,
        SOURCES(h200_sources),
    },
    {
        .name = "b200",
        .title = "NVIDIA B200 SXM",
        .facts = {{[NIB_FACT_DEVICE] = NIB_DEVICE_CUDA,
                   [NIB_FACT_MAKER] = NIB_MAKER_NVIDIA,
                   [NIB_FACT_SM] = 100,
                   [NIB_FACT_DOT8] = 1,
                   [NIB_FACT_MATRIX_UNIT] = 1,
                   [NIB_FACT_FP8_UNIT] = 1,
                   [NIB_FACT_MX_UNIT] = 1}},
        .bytes_per_s = 7.7e12,
        .rate = {[NIB_UNIT_F32] = 75e12,
                 [NIB_UNIT_BF16] = 2.25e15,
                 [NIB_UNIT_I8] = 4.5e15,
                 [NIB_UNIT_FP8] = 4.5e15,
                 [NIB_UNIT_MX8] = 4.5e15},
        .launch_s = 4e-6,
        .memory = UINT64_C(180) << 30,
        SOURCES(b200_sources),
    },
    {
        .name = "graviton3",
        .title = "AWS Graviton3, 64 Neoverse V1 cores",
        .facts = {{[NIB_FACT_DEVICE] = NIB_DEVICE_CPU,
                   [NIB_FACT_MAKER] = NIB_MAKER_ARM,
                   [NIB_FACT_ISA] = NEON | NIB_ISA_I8MM,
                   [NIB_FACT_DOT8] = 1}},
        .bytes_per_s = 307e9,
        .rate = {[NIB_UNIT_F32] = 5.3e12,
                 [NIB_UNIT_BF16] = 5.3e12,
                 [NIB_UNIT_I8] = 42.6e12,
                 [NIB_UNIT_FP8] = 5.3e12,
                 [NIB_UNIT_MX8] = 5.3e12,
                 [NIB_UNIT_SCALAR] = 128e9},
        .launch_s = 4e-6,
        .memory = UINT64_C(128) << 30,
        SOURCES(graviton3_sources),
    },
    {
        .name = "raspberry-pi-5",
        .title = "Raspberry Pi 5, 4 Cortex-A76 cores",
        .facts = {{[NIB_FACT_DEVICE] = NIB_DEVICE_CPU,
                   [NIB_FACT_MAKER] = NIB_MAKER_ARM,
                   [NIB_FACT_ISA] = NEON,
                   [NIB_FACT_DOT8] = 1}},
        .bytes_per_s = 17e9,
        .rate = {[NIB_UNIT_F32] = 154e9,
                 [NIB_UNIT_BF16] = 154e9,
                 [NIB_UNIT_I8] = 614e9,
                 [NIB_UNIT_FP8] = 154e9,
                 [NIB_UNIT_MX8] = 154e9,
                 [NIB_UNIT_SCALAR] = 8e9},
        .launch_s = 2e-6,
        .memory = UINT64_C(8) << 30,
        SOURCES(raspberry_pi_5_sources),
    },
};

/* The CPU of a machine whose name is its GPU's comes last. */
size_t nib__machine_count(void) { return COUNT(machines) + 1; }

const nib_machine *nib__machine_at(size_t i)
{
    if (i < COUNT(machines))
        return &machines[i];
    return i == COUNT(machines) ? &apple_m2_cpu : NULL;
}

const nib_machine *nib__machine_find(const char *name)
{
    for (size_t i = 0; i < nib__machine_count(); i++)
        if (strcmp(nib__machine_at(i)->name, name) == 0)
            return nib__machine_at(i);
    return NULL;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels and guards of other engines, as data: what each requires, read in its source at the named
 * commit, and what that engine does otherwise (`note`). They explain why an engine refused, skipped
 * or fell back. They never run, and no row of Nibble's own has a condition that only another engine
 * needs.
 */
#include "peers.h"

#define AO_010 "8b264ce1e1597f4c3f6476609334be05d294f092"
#define AO_2025 "96aec6a3e713687c1728a20a08d5c54db0344377"
#define AO_2026 "36027d82"
#define AO_BIAS "f64d5a16667edb73e6abbbf2e824428ba8acfd19"
#define TITAN "49d5cab1c32ec5ae2bbe4fab47b4f69725083eec"
#define ET_BIAS "b9e9abd006c0cf63c2a0cea4935d5dbf7e32b228"
#define ET_2026 "cff6f4dd"

/* Instead of a result: the engine makes float64 scales for activations. */
#define F64_SCALES NULL, .act_scale_type = NIB_TYPE_F64

#define HALF_TYPES (NIB_BIT(NIB_TYPE_F16) | NIB_BIT(NIB_TYPE_BF16))
#define CPU_MAKERS (NIB_BIT(NIB_MAKER_X86) | NIB_BIT(NIB_MAKER_ARM))
#define ARM_MAKERS (NIB_BIT(NIB_MAKER_ARM) | NIB_BIT(NIB_MAKER_APPLE))
#define GROUPS_TO_256 (32 | 64 | 128 | 256)

static const nib_cond cutlass[] = {
    NIB_IS(MAKER, NIB_MAKER_NVIDIA, "CUTLASS needs CUDA"),
    NIB_AT_LEAST(SM, 80, "its mma needs sm_80"),
    NIB_IS(LAYOUT_HINT, NIB_HINT_CUTLASS_INT4, "the check requires CutlassInt4PackedLayout"),
    NIB_ONE_OF(INPUT, HALF_TYPES, "its output type"),
    NIB_IS(ACT_SYMMETRIC, 1, "its matmul has no activation zero point"),
    NIB_IS(
        ACT_SCALE_TYPE, NIB_TYPE_F32,
        "the check requires float32, but with a zero point this version makes float64 (PR 1131)"),
    NIB_IS(SCALE_TYPE, NIB_TYPE_F32, "the check requires a float32 weight scale"),
    NIB_IS(GROUP, NIB_GROUP_ROW, "the check requires one scale per output row"),
    NIB_IS(SYMMETRIC, 1, "its packing asserts that zero points are 0"),
    NIB_COND_END,
};
#define CUTLASS_NOTE                                                                               \
    "it raises QuantizedLinearNotImplementedError and catches it: weight and activations are "     \
    "dequantized and F.linear runs in floating point, slower than bf16 and without a message"

static const nib_cond pack_cuda[] = {
    NIB_IS(MAKER, NIB_MAKER_NVIDIA, "the only packing kernel is for CUDA"),
    NIB_AT_LEAST(SM, 80, "mma.m16n8k16 needs sm_80"),
    NIB_IS(INPUT, NIB_TYPE_BF16, "it multiplies bf16 only"),
    NIB_ONE_OF(GROUP, GROUPS_TO_256, "the matmul is compiled for these"),
    NIB_MULTIPLE(N, 8, "a tile has 8 outputs"),
    NIB_MULTIPLE(K, 128, "8 inner tiles of 16 inputs are packed together"),
    NIB_COND_END,
};

static const nib_kernel rows[] = {
    /* ---- torchao 0.10: int4 weights with quantized activations ---- */
    PEER("torchao-0.10.cutlass_s8s4", LINEAR, I4, I8_TOKEN, "torchao", "0.10 (2025-04-02)",
         AO_010 ":torchao/dtypes/uintx/cutlass_int4_packed_layout.py", cutlass, CUTLASS_NOTE,
         F64_SCALES),
    PEER("torchao-0.10.cutlass_s4s4", LINEAR, I4, I4_TOKEN, "torchao", "0.10 (2025-04-02)",
         AO_010 ":torchao/dtypes/uintx/cutlass_int4_packed_layout.py", cutlass, CUTLASS_NOTE,
         F64_SCALES),
    PEER("torchao.8da4w_unpacked", LINEAR, I4, I8_TOKEN, "torchao", "0.18 (2026-07-31)",
         AO_2026 ":torchao/quantization/quant_api.py",
         NIB_CONDS(NIB_DIVIDES(GROUP, K, "the tensor asserts it")), "an AssertionError",
         "it runs in floating point: every call dequantizes the whole weight"),
    PEER("torchao.8da4w_opaque", LINEAR, I4, I8_TOKEN, "torchao", "0.18 (2026-07-31)",
         AO_2026 ":torchao/csrc/cpu/torch_free_kernels/fallback/linear/"
                 "channelwise_8bit_activation_groupwise_lowbit_weight.h",
         NIB_CONDS(NIB_ONE_OF(MAKER, ARM_MAKERS, "its kernels need NEON"),
                   NIB_MULTIPLE(GROUP, 16, "a kernel step has 16 inputs"),
                   NIB_DIVIDES(GROUP, K, "the tensor asserts it")),
         "on x86 packing succeeds and the first matmul throws \"Linear execution requires ARM "
         "NEON\"",
         NULL),
    PEER(
        "torchao.da8w4_x86", LINEAR, I4, I8_TOKEN, "torchao", "0.18 prototype (2026-07-31)",
        AO_2026 ":torchao/prototype/quantization/int4/int4_opaque_tensor.py",
        NIB_CONDS(NIB_IS(MAKER, NIB_MAKER_X86, "its kernels need AVX-512 or AMX"),
                  NIB_MULTIPLE(N, 32, "a block has 32 outputs"),
                  NIB_MULTIPLE(K, 2, "a byte holds two codes"),
                  NIB_ONE_OF(GROUP, 32 | 64 | 128, "the matmul is compiled for these")),
        "it logs at info level, which is hidden by default, and leaves the layer in floating point",
        NULL),
    PEER("torchao-0.9.prequantized_8da4w", LINEAR, I4, I8_TOKEN, "torchao", "0.9 (2025-02-20)",
         AO_BIAS "~1:torchao/quantization/GPTQ.py",
         NIB_CONDS(NIB_IS(BIAS, 0, "the filter requires bias None"),
                   NIB_DIVIDES(GROUP, K, "the scales are [n][k/group]")),
         "the layer stays a float nn.Linear without a message; its prequantized checkpoint cannot "
         "be loaded",
         NULL),
    PEER("torchao-0.10.prequantized_8da4w", LINEAR, I4, I8_TOKEN, "torchao", "0.10 (2025-04-02)",
         AO_BIAS ":torchao/quantization/GPTQ.py",
         NIB_CONDS(NIB_DIVIDES(GROUP, K, "the scales are [n][k/group]")),
         "a warning, and the layer stays float",
         "since PR 1845 it keeps a bias, in floating point"),

    /* ---- torchao: weight-only and fp8 ---- */
    PEER("torchao.int4_weight_only", LINEAR, I4, FLOAT, "torchao", "0.18 (2026-07-31)",
         AO_2026 ":torchao/quantization/quant_api.py",
         NIB_CONDS(NIB_DIVIDES(GROUP, K, "a group may not cross a row"),
                   NIB_IS(MAKER, NIB_MAKER_NVIDIA,
                          "the default packing format needs mslk, which needs CUDA"),
                   NIB_AT_LEAST(SM, 90, "its matmul is compiled for sm_90")),
         "if the group does not divide k, it logs at info level and the layer stays bf16; "
         "otherwise \"cutlass cannot initialize\" or an ImportError",
         NULL),
    PEER("torchao.fp8dq", LINEAR, E4M3, E4M3_TOKEN, "torchao", "0.18 (2026-07-31)",
         AO_2026 ":torchao/quantization/quant_api.py",
         NIB_CONDS(NIB_MULTIPLE(N, 16, "the guard requires it of n and k"),
                   NIB_MULTIPLE(K, 16, "the guard requires it of n and k"),
                   NIB_IS(FP8_UNIT, 1, "it asserts compute capability 8.9, MI300 or XPU")),
         "it logs at info level and returns the weight unquantized (its own comment: this should "
         "throw)",
         NULL),

    /* ---- PyTorch: packing of int4 weights ---- */
    PEER("pytorch-2.3.int4pack_cuda", PACK, I4, FLOAT, "pytorch", "2.3 (2024-04-24)",
         "pytorch#117475:aten/src/ATen/native/cuda/int4mm.cu", pack_cuda,
         "on mps \"NotImplementedError: The operator 'aten::_convert_weight_to_int4pack' is not "
         "currently implemented for the MPS device\"; elsewhere "
         "\"_convert_weight_to_int4pack_cuda is not available for build\": neither names the layer "
         "or a remedy",
         NULL),
    PEER("pytorch-2.3.int4pack_cpu", PACK, I4, FLOAT, "pytorch", "2.3 (2024-04-24)",
         "pytorch#117475:aten/src/ATen/native/LinearAlgebra.cpp",
         NIB_CONDS(NIB_ONE_OF(MAKER, CPU_MAKERS, "it is for CPUs"),
                   NIB_ONE_OF(INPUT, HALF_TYPES, "\"expect A to be float16 or bfloat16 tensor\""),
                   NIB_MULTIPLE(N, 16, "a block has 16 outputs"),
                   NIB_MULTIPLE(K, 2, "a byte holds two codes"),
                   NIB_ONE_OF(GROUP, GROUPS_TO_256, "the matmul is compiled for these")),
         "an error from TORCH_CHECK; the packed bytes depend on the instruction set of the CPU "
         "that packs",
         NULL),
    PEER("pytorch-2.5.int4pack_cuda", PACK, I4, FLOAT, "pytorch", "2.5 (2024-10-17)",
         "pytorch#129940:aten/src/ATen/native/cuda/int4mm.cu", pack_cuda,
         "an error from TORCH_CHECK; every device has its own packing, and weights packed for one "
         "are garbage on another",
         NULL),
    PEER("pytorch-2.5.int4pack_rocm", PACK, I4, FLOAT, "pytorch", "2.5 (2024-10-17)",
         "pytorch#129710:aten/src/ATen/native/cuda/int4mm.cu",
         NIB_CONDS(NIB_IS(MAKER, NIB_MAKER_AMD, "it is built for ROCm"),
                   NIB_AT_LEAST(CDNA, 2, "mfma_f32_16x16x16bf16_1k needs CDNA2"),
                   NIB_IS(INPUT, NIB_TYPE_BF16, "it multiplies bf16 only"),
                   NIB_ONE_OF(GROUP, GROUPS_TO_256, "the matmul is compiled for these"),
                   NIB_MULTIPLE(N, 16, "a tile has 16 outputs"),
                   NIB_MULTIPLE(K, 128, "8 inner tiles of 16 inputs are packed together")),
         "\"only supported on AMD gpu arch greater than or equal to CDNA2\"",
         "since 2024-07-10 it runs (before, packing had no kernel for ROCm), 2.7 times slower than "
         "bf16 and without a message: Llama-2-7B on MI300X 74.23 tokens/s, in bf16 198.38 "
         "(compiled, from its own PR)"),
    PEER("pytorch-2.5.int4pack_mps", PACK, I4, FLOAT, "pytorch", "2.5 (2024-10-17)",
         "pytorch#128965:aten/src/ATen/native/mps/operations/Quantized.mm",
         NIB_CONDS(NIB_IS(MAKER, NIB_MAKER_APPLE, "it is for Metal"),
                   NIB_ONE_OF(GROUP, GROUPS_TO_256, "the matmul is compiled for these"),
                   NIB_MULTIPLE(K, 2, "a byte holds two codes")),
         "an error from TORCH_CHECK",
         "since 2024-06-26 it packs; before, packing had no kernel for mps"),

    /* ---- gpt-fast and torchchat on top of it ---- */
    PEER("gpt-fast.int4", LINEAR, I4, FLOAT, "gpt-fast", "2024-04", "6ecad9b5:quantize.py",
         NIB_CONDS(NIB_IS(BIAS, 0, "it asserts bias=False"), NIB_MULTIPLE(N, 8, "it asserts it"),
                   NIB_ONE_OF(GROUP, GROUPS_TO_256, "the matmul is compiled for these"),
                   NIB_DIVIDES(GROUP, K, "a group may not cross a row"),
                   NIB_MULTIPLE(K, 128, "8 inner tiles of 16 inputs")),
         "an assertion; if only k fails, k is padded to a multiple of 1024 and nothing in the file "
         "says so",
         NULL),
    PEER("torchchat.pack_on_cpu", PACK, I4, FLOAT, "torchchat", "2024-05-09",
         "torchchat#725:quantize.py",
         NIB_CONDS(NIB_IS(MAKER, NIB_MAKER_APPLE, "it is the workaround for mps")),
         "the device's own packing runs",
         "weights are packed on the CPU and copied to mps, without a message"),
    PEER("torchchat.mps_fallback", PACK, I4, FLOAT, "torchchat", "2024-09-30",
         "torchchat#1241:torchchat.py",
         NIB_CONDS(NIB_IS(MAKER, NIB_MAKER_APPLE, "only mps reads the variable")),
         "the variable is set and nothing reads it",
         "PYTORCH_ENABLE_MPS_FALLBACK=1 is set for the whole program: any operator that mps lacks "
         "runs on the CPU, and no summary says so"),
    PEER("torchchat.linear_int4", LINEAR, I4, FLOAT, "torchchat", "2024-05",
         "a1a7f370:torchchat/utils/quantize.py",
         NIB_CONDS(NIB_DIVIDES(GROUP, K, "otherwise torchao skips the layer"),
                   NIB_IS(BIAS, 0, "the quantizer takes only layers without a bias")),
         "the layer stays unquantized; the default log level shows nothing", NULL),
    PEER("torchchat.linear_a8w4dq", LINEAR, I4, I8_TOKEN, "torchchat", "2024-05",
         "a1a7f370:torchchat/utils/quantize.py",
         NIB_CONDS(NIB_DIVIDES(GROUP, K, "padding was removed from the quantizer"),
                   NIB_IS(BIAS, 0, "the quantizer takes only layers without a bias")),
         "the layer stays unquantized; the default log level shows nothing",
         "in eager mode it runs in floating point: every call dequantizes the weight"),

    /* ---- torchtitan and torchao: MXFP8 training ---- */
    PEER("torchtitan.mx_filter", LINEAR, MX8, MX8, "torchtitan", "2025-05-19",
         TITAN ":torchtitan/components/quantization/utils.py",
         NIB_CONDS(NIB_MULTIPLE(N, 16, "the filter requires it of n and k"),
                   NIB_MULTIPLE(K, 16, "the filter requires it of n and k")),
         "the layer is skipped and stays bf16, without a message",
         "the layer is converted, regardless of what the kernels of its backward matmuls require"),
    PEER("torchtitan.mx_converter", LINEAR, MX8, MX8, "torchtitan", "2025-05-19",
         TITAN ":torchtitan/components/quantization/mx.py",
         NIB_CONDS(NIB_AT_LEAST(SM, 100, "\"MXFP8 is only supported on SM100\"")),
         "an AssertionError before the first step; torchao has an emulation, but it is not offered",
         NULL),
    PEER("torchtitan-2026.mx_converter", LINEAR, MX8, MX8, "torchtitan", "2026-08-21",
         "b5bcd76c:torchtitan/components/quantization/mx.py",
         NIB_CONDS(NIB_AT_LEAST(SM, 100, "it requires compute capability 10.0")),
         "a ValueError before the first step; no emulation is offered",
         "every Linear is converted, even the output layer: PR 2520 removed the default filter "
         "\"output\" and the check for multiples of 16, and nothing checks shapes"),
    PEER("torchao.to_mx_dim0", LINEAR, MX8, MX8, "torchao", "0.12.dev (2025-05-19)",
         AO_2025 ":torchao/prototype/mx_formats/mx_tensor.py",
         NIB_CONDS(NIB_MULTIPLE(K, 32, "a block has 32 inputs")),
         "an AssertionError in the forward matmul", NULL),
    PEER("torchao.to_mxfp8_dim1_of_weight", LINEAR_DX, MX8, MX8, "torchao", "0.12.dev (2025-05-19)",
         AO_2025 ":torchao/prototype/mx_formats/kernels.py",
         NIB_CONDS(NIB_MULTIPLE(N, 128, "the cast's row tile is 128 and is not masked"),
                   NIB_MULTIPLE(K, 128, "the cast's column tile is 128 and is not masked"),
                   NIB_IS(INPUT, NIB_TYPE_BF16, "it asserts bf16"),
                   NIB_AT_LEAST(SM, 100, "the Triton cast needs sm_100")),
         "AssertionError: \"unsupported\" in loss.backward(), which names neither the layer nor "
         "the rule",
         NULL),
    PEER("torchao.to_mxfp8_dim1_of_gradient", LINEAR_DW, MX8, MX8, "torchao",
         "0.12.dev (2025-05-19)", AO_2025 ":torchao/prototype/mx_formats/kernels.py",
         NIB_CONDS(NIB_MULTIPLE(M, 128, "the cast's row tile is 128 and is not masked"),
                   NIB_MULTIPLE(N, 128, "the cast's column tile is 128 and is not masked"),
                   NIB_MULTIPLE(K, 128, "the same for the cast of the input"),
                   NIB_IS(INPUT, NIB_TYPE_BF16, "it asserts bf16"),
                   NIB_AT_LEAST(SM, 100, "the Triton cast needs sm_100")),
         "AssertionError: \"unsupported\" in loss.backward(), which names neither the layer nor "
         "the rule",
         NULL),

    /* ---- ExecuTorch: 8da4w ---- */
    PEER("executorch-0.5.prequantized_8da4w", LINEAR, I4, I8_TOKEN, "executorch",
         "0.5 (before 2025-03-20)",
         ET_BIAS "~1:examples/models/llama/source_transformation/pre_quantization.py",
         NIB_CONDS(NIB_ONE_OF(GROUP, GROUPS_TO_256, "otherwise it raises ValueError"),
                   NIB_DIVIDES(GROUP, K, "it asserts it"),
                   NIB_IS(BIAS, 0, "it creates the module with bias=False")),
         "the stored bias is dropped without a message: load_state_dict(strict=False) ignores its "
         "key",
         NULL),
    PEER("executorch.prequantized_8da4w", LINEAR, I4, I8_TOKEN, "executorch", "2026-08",
         ET_2026 ":examples/models/llama/source_transformation/pre_quantization.py",
         NIB_CONDS(NIB_ONE_OF(GROUP, GROUPS_TO_256, "otherwise it raises ValueError"),
                   NIB_DIVIDES(GROUP, K, "it asserts it")),
         "ValueError or AssertionError while loading", NULL),
    PEER("executorch.quantize_8da4w", LINEAR, I4, I8_TOKEN, "executorch", "2026-08",
         ET_2026 ":examples/models/llama/source_transformation/quantize.py",
         NIB_CONDS(NIB_DIVIDES(GROUP, K, "the filter requires it")),
         "the layer is skipped and stays float, without a message (a SmolLM2-135M file of 475.7 "
         "MB instead of 101.8 MB)",
         NULL),
};

const nib_family nib__family_peers = {rows, COUNT(rows)};

/* ---- the kernels of an engine: its own, and those of the libraries it builds on ---- */

static const struct engine {
    const char *name;
    struct {
        const char *engine;
        int64_t code; /* only rows of this code, or NIB_ANY */
    } uses[3];
} engines[] = {
    {"torchao", {{"torchao", NIB_ANY}}},
    {"gpt-fast", {{"gpt-fast", NIB_ANY}, {"pytorch", NIB_ANY}}},
    {"torchchat", {{"torchchat", NIB_ANY}, {"pytorch", NIB_ANY}}},
    {"torchtitan", {{"torchtitan", NIB_ANY}, {"torchao", NIB_CODE_MX8}}},
    {"executorch", {{"executorch", NIB_ANY}}},
    {"vllm", {{"vllm", NIB_ANY}}},
    {"llama.cpp", {{"llama.cpp", NIB_ANY}}},
    {"modelopt", {{"modelopt", NIB_ANY}}},
};

const char *nib__engine_at(size_t i) { return i < COUNT(engines) ? engines[i].name : NULL; }

bool nib__engine_uses(const char *engine, const nib_kernel *kernel)
{
    if (kernel->peer == NULL)
        return false;
    for (size_t i = 0; i < COUNT(engines); i++) {
        if (strcmp(engines[i].name, engine) != 0)
            continue;
        for (size_t j = 0; j < COUNT(engines[i].uses) && engines[i].uses[j].engine != NULL; j++)
            if (strcmp(engines[i].uses[j].engine, kernel->peer->engine) == 0 &&
                (engines[i].uses[j].code == NIB_ANY || engines[i].uses[j].code == kernel->code))
                return true;
    }
    return false;
}

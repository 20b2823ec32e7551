/* SPDX-License-Identifier: Apache-2.0
 *
 * What other engines do with the experts of a mixture, read in their sources. An engine that stacks
 * experts chooses one kernel for all of them, so its conditions are on the hidden size D and on the
 * width I of an expert: gate and up are [I][D], down is [D][I].
 */
#include "peers.h"

#define VLLM_MARLIN "007d50058a06dec0f82472d63c819244d460c40d"
#define VLLM_FP8 "1436674bcb3f46f4c960d09334cf7dd1534943ca"
#define VLLM_NVFP4 "01362014633dcba269a3f98e8868b093a66df9f1"
#define VLLM_MXFP4 "001eda31e3d032e9dc864e97f3630358b2ff8b5a"
#define LLAMA_QUANT "007dbbf3fd17eefe9b47fee45f48f7ba5e62b714"
#define LLAMA_MMF "09527b885f7f798d6c9e2f323f46b5ff93e8752b"
#define AO_2026 "36027d82"
#define MODELOPT "a2fbac7bad8ab446d3f8783dadb0c3366eb0ad73"

/* vLLM's Marlin kernel for experts of 4-bit integers (GPTQ, AWQ, compressed-tensors). */
#define MARLIN_NOTE                                                                                \
    "a warning (\"is not supported by AWQMoeMarlin. Falling back to Moe WNA16 kernels.\", for "    \
    "GPTQ alike), and slower Triton kernels run"
#define MARLIN(name_, hidden_, width_)                                                             \
    PEER(name_, LINEAR_EXPERTS, I4, FLOAT, "vllm", "main (2026)",                                  \
         VLLM_MARLIN ":vllm/model_executor/layers/quantization/utils/marlin_utils.py",             \
         NIB_CONDS(NIB_IS(MAKER, NIB_MAKER_NVIDIA, "on ROCm the check returns False"),             \
                   NIB_MULTIPLE(GROUP, 32, "the check takes 32, 64, 128 or rows"),                 \
                   NIB_AT_MOST(GROUP, 128, "the check takes 32, 64, 128 or rows"),                 \
                   NIB_MULTIPLE(hidden_, 128, "the check requires it of the hidden size"),         \
                   NIB_MULTIPLE(width_, 64, "the check requires it of an expert's width"),         \
                   NIB_DIVIDES(GROUP, width_, "the check requires it of an expert's width")),      \
         MARLIN_NOTE, NULL)

/* torchao's quantize_ looks for nn.Linear. */
#define TORCHAO_FILTER(name_, code_)                                                               \
    PEER(name_, LINEAR_EXPERTS, code_, ANY, "torchao", "0.19.dev (2026-08-21)",                    \
         AO_2026 ":torchao/quantization/quant_api.py",                                             \
         NIB_CONDS(NIB_IS(EXPERT, 0,                                                               \
                          "the default filter takes nn.Linear, and transformers 5 keeps the "      \
                          "experts of a layer in one parameter")),                                 \
         "experts stay in floating point without a message; FqnToConfig with the parameter's "     \
         "name quantizes them",                                                                    \
         NULL)

/* llama-quantize: the type of a stack of experts, by the width of a row. */
#define LLAMA_Q4_K(name_, op_)                                                                     \
    PEER(name_, op_, I4, ANY, "llama.cpp", "master (2026)", LLAMA_QUANT ":src/llama-quant.cpp",    \
         NIB_CONDS(NIB_MULTIPLE(K, 256, "a block of Q4_K has 256 inputs")),                        \
         "a warning (\"ncols ... not divisible by 256 ... falling back to q5_0\"): the file "      \
         "has other types than asked",                                                             \
         NULL)
#define LLAMA_Q4_0(name_, op_)                                                                     \
    PEER(name_, op_, I4, ANY, "llama.cpp", "master (2026)", LLAMA_QUANT ":src/llama-quant.cpp",    \
         NIB_CONDS(NIB_MULTIPLE(K, 32, "a block of Q4_0 has 32 inputs")),                          \
         "the conversion ends with \"no tensor type fallback is defined for type q4_0\"", NULL)

/* llama.cpp on CUDA: a product of all experts at once, for float weights. */
#define LLAMA_FLOATS(name_, code_, sm_)                                                            \
    PEER(name_, LINEAR_EXPERTS, code_, FLOAT, "llama.cpp", "master (2026)",                        \
         LLAMA_MMF ":ggml/src/ggml-cuda/mmf.cu",                                                   \
         NIB_CONDS(NIB_IS(MAKER, NIB_MAKER_NVIDIA, "it is compiled for CUDA"),                     \
                   NIB_AT_LEAST(SM, sm_, "its matrix products of this type need it"),              \
                   NIB_MULTIPLE(K, 64, "a warp reads this many inputs at once"),                   \
                   NIB_MULTIPLE(N, 32, "a block has 32 outputs"),                                  \
                   NIB_AT_MOST(M, 512,                                                             \
                               "above it, or above 128 for over 1024 outputs, it is not chosen")), \
         "the choice of experts is copied to the host, the stream waits for it, and experts "      \
         "run one after the other",                                                                \
         NULL)

static const nib_kernel rows[] = {
    /* ---- vLLM ---- */
    MARLIN("vllm.marlin_experts_up", K, N),
    MARLIN("vllm.marlin_experts_down", N, K),
    PEER("vllm.fp8_block_experts", LINEAR_EXPERTS, E4M3, FLOAT, "vllm", "main (2026)",
         VLLM_FP8 ":vllm/model_executor/layers/quantization/fp8.py",
         NIB_CONDS(NIB_IS(GROUP, 128, "it is about weight_block_size [128, 128]"),
                   NIB_MULTIPLE(N, 128, "gate and up are stored as one, in whole blocks")),
         "ValueError: \"The output_size of gate's and up's weight = ... is not divisible by "
         "weight quantization block_n = 128.\"",
         "it holds for one GPU; tensor parallelism divides the width of an expert first, and "
         "the rule is for the part"),
    PEER("vllm.nvfp4_experts", LINEAR_EXPERTS, NV4, ANY, "vllm", "main (2026)",
         VLLM_NVFP4 ":vllm/model_executor/layers/fused_moe/oracle/nvfp4.py",
         NIB_CONDS(NIB_IS(MAKER, NIB_MAKER_NVIDIA, "FlashInfer and CUTLASS need CUDA"),
                   NIB_AT_LEAST(SM, 100, "its products of two NVFP4 matrices need Blackwell")),
         "Marlin is next in its list: it multiplies the same weights with bf16 activations, "
         "with a warning (\"Your GPU does not have native support for FP4 computation\")",
         NULL),
    PEER("vllm.mxfp4_experts", LINEAR_EXPERTS, MX4, ANY, "vllm", "main (2026)",
         VLLM_MXFP4 ":vllm/model_executor/layers/fused_moe/oracle/mxfp4.py",
         NIB_CONDS(NIB_IS(MAKER, NIB_MAKER_NVIDIA, "its Triton and FlashInfer kernels"),
                   NIB_AT_LEAST(SM, 90, "triton_kernels need compute capability 9.0")),
         "Marlin runs: weights are padded to a hidden size of a multiple of 256 and experts "
         "of a multiple of 128",
         NULL),

    /* ---- llama.cpp ---- */
    LLAMA_Q4_K("llama.cpp.quantize_q4_k", LINEAR),
    LLAMA_Q4_K("llama.cpp.quantize_q4_k_experts", LINEAR_EXPERTS),
    LLAMA_Q4_0("llama.cpp.quantize_q4_0", LINEAR),
    LLAMA_Q4_0("llama.cpp.quantize_q4_0_experts", LINEAR_EXPERTS),
    PEER("llama.cpp.quantize_mxfp4", LINEAR, MX4, ANY, "llama.cpp", "master (2026)",
         LLAMA_QUANT ":src/llama-quant.cpp",
         NIB_CONDS(NIB_IS(EXPERT, 1, "MXFP4_MOE is for stacks of experts")),
         "the matrix becomes Q8_0", NULL),
    PEER("llama.cpp.quantize_mxfp4_experts", LINEAR_EXPERTS, MX4, ANY, "llama.cpp", "master (2026)",
         LLAMA_QUANT ":src/llama-quant.cpp",
         NIB_CONDS(NIB_MULTIPLE(K, 32, "a block of MXFP4 has 32 inputs")),
         "the conversion ends with \"no tensor type fallback is defined for type mxfp4\"", NULL),
    LLAMA_FLOATS("llama.cpp.mul_mat_id_f16", F16, 70),
    LLAMA_FLOATS("llama.cpp.mul_mat_id_bf16", BF16, 80),

    /* ---- torchao ---- */
    TORCHAO_FILTER("torchao.quantize_experts_int4", I4),
    TORCHAO_FILTER("torchao.quantize_experts_int8", I8),
    TORCHAO_FILTER("torchao.quantize_experts_fp8", E4M3),
    TORCHAO_FILTER("torchao.quantize_experts_mxfp8", MX8),
    TORCHAO_FILTER("torchao.quantize_experts_mxfp4", MX4),
    TORCHAO_FILTER("torchao.quantize_experts_nvfp4", NV4),

    /* ---- ModelOpt ---- */
    PEER("modelopt.int4_awq_experts", LINEAR_EXPERTS, I4, ANY, "modelopt", "0.47.dev (2026-08-21)",
         MODELOPT ":modelopt/torch/export/quant_utils.py",
         NIB_CONDS(NIB_DIVIDES(GROUP, K, "its export reshapes rows into groups")),
         "NotImplementedError: \"Weight shape is not divisible for block size for block "
         "quantization.\", which does not name the layer",
         NULL),
    PEER("modelopt.nvfp4_experts", LINEAR_EXPERTS, NV4, ANY, "modelopt", "0.47.dev (2026-08-21)",
         MODELOPT ":modelopt/torch/export/moe_utils.py", NIB_NO_CONDS, "no weight is refused",
         "gate and up of an expert share weight_scale_2; if no calibration token reached the "
         "expert, a warning says so and the range of its weights is used"),
};

/* The rows with one matrix of an expert, in the order of `rows`. */
enum { MARLIN_UP, MARLIN_DOWN, FP8_BLOCKS };

const nib_family nib__family_peers_experts = {rows, COUNT(rows)};

bool nib__peer_takes_down(const nib_kernel *row, bool down)
{
    if (row == &rows[MARLIN_DOWN])
        return down;
    return !down || (row != &rows[MARLIN_UP] && row != &rows[FP8_BLOCKS]);
}

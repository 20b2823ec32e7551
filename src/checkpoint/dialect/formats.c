/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of formats, and its three forms.
 */
#include "formats.h"

#include "ledger.h"

#include <stdio.h>

static const nib_format formats[] = {
    {"safetensors", "safetensors, one file or shards", "F32, F16, BF16; F64 is rounded to f32",
     "float", "test_safetensors.c:test_legal", "test_convert.c:test_floats"},
    {"torchao", "safetensors, as torchao 0.15 to 0.18 and transformers write them",
     "Int8Tensor, IntxUnpackedToInt8Tensor, Int4Tensor, Float8Tensor, MXTensor, NVFP4Tensor: int8, "
     "int4, e4m3, mxfp8, mxfp4, nvfp4; weight-only, or int8, e4m3, mxfp8, mxfp4 or nvfp4 "
     "activations; "
     "read also Int4TilePackedTo4dTensor",
     "float", "test_weight.c:test_torchao_golden", "test_quantize.c:test_torchao_parts"},
    {"nibble", "safetensors", "every scheme of `nibble recipes`, any shape, static activations",
     "float, int8 or int32", "test_formats.c:test_formats", "test_quantize.c:test_nibble"},
    {"8da4w", "safetensors or PyTorch's zip files, as ExecuTorch and torchtune write them",
     "int4 in groups, int8 rows of embedding and output; int8 activations per token", "float",
     "test_torch_models.c:test_logits", "test_convert.c:test_chains"},
    {"compressed-tensors", "safetensors",
     "pack-quantized (int4, int8), int-quantized, float-quantized; read also mxfp4, mxfp8, nvfp4; "
     "groups, channels, tensors, blocks, g_idx; symmetric or not",
     "float", "test_dialects.c:test_compressed_golden", "test_convert.c:test_chains"},
    {"gptq", "safetensors", "int4 and int8, v1 and v2, act-order", "float",
     "test_dialects.c:test_gptq_golden", NULL},
    {"awq", "safetensors", "int4, the GEMM order", "float", "test_dialects.c:test_gptq_golden",
     NULL},
    {"fp8", "safetensors, as DeepSeek, transformers and vLLM write them",
     "e4m3 in blocks of 128 x 128, rows or tensors", "float", "test_dialects.c:test_fp8_golden",
     NULL},
    {"mxfp4", "safetensors, as gpt-oss has its experts", "e2m1 in blocks of 32", "float",
     "test_dialects.c:test_gpt_oss_golden", NULL},
    {"gguf", "GGUF version 2 and 3, with the tokenizer inside",
     "F32, F16, BF16, Q4_0, Q4_1, Q8_0, MXFP4; read also Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, IQ4_NL",
     "float", "test_code_layout_gguf.c:test_values", "test_gguf_blocks.c:test_golden"},
    {"gpt-fast", "PyTorch's zip files or safetensors, as gpt-fast writes them",
     "int8 rows; int4 in groups, packed for CUDA, ROCm or CPUs; weight-only", "float",
     "test_torch_models.c:test_tinygemm", NULL},
    {"meta", "PyTorch's zip files or safetensors, as Meta and llama2.c write them",
     "floats, rows of q and k in pairs", "float", "test_torch_models.c:test_logits", NULL},
    {"pytorch", "PyTorch's zip files (.pt, .pth, .bin), read without executing anything",
     "floats, and whatever dialect their tensors are in", "float", "test_torch_zip.c:test_contents",
     NULL},
};

const nib_format *nib__format_at(size_t i) { return i < COUNT(formats) ? &formats[i] : NULL; }

static const char *or_dash(const char *text) { return text == NULL ? "-" : text; }

static void render_text(nib_text *out)
{
    nib__text_format(out, "%-19s %-5s %-6s %s\n", "format", "read", "write", "holds");
    for (size_t i = 0; i < COUNT(formats); i++) {
        const nib_format *f = &formats[i];
        char head[40];
        snprintf(head, sizeof head, "%-19s %-5s %-6s ", f->name, f->read != NULL ? "yes" : "no",
                 f->written != NULL ? "yes" : "no");
        nib__ledger_wrap(out, head, "                                 ", 100, f->holds);
    }
}

static void render_json(nib_text *out)
{
    nib_jsonw w;
    nib__jsonw_init(&w, out, 2);
    nib__jsonw_object(&w);
    nib__jsonw_pair_int(&w, "schema", 1);
    nib__jsonw_key(&w, "formats");
    nib__jsonw_array(&w);
    for (size_t i = 0; i < COUNT(formats); i++) {
        const nib_format *f = &formats[i];
        nib__jsonw_object(&w);
        nib__jsonw_pair_string(&w, "name", f->name);
        nib__jsonw_pair_string(&w, "files", f->files);
        nib__jsonw_pair_string(&w, "holds", f->holds);
        nib__jsonw_pair_string(&w, "bias", f->bias);
        nib__jsonw_pair_bool(&w, "read", f->read != NULL);
        nib__jsonw_pair_bool(&w, "write", f->written != NULL);
        nib__jsonw_object_end(&w);
    }
    nib__jsonw_array_end(&w);
    nib__jsonw_object_end(&w);
    nib__text_str(out, "\n");
}

static void render_markdown(nib_text *out)
{
    nib__text_str(out,
                  "# Formats of checkpoints\n\n"
                  "Printed by `nibble formats --markdown`; the tensors of each are in "
                  "[formats.md](formats.md). Behind each\nyes stands a test of tests/unit.\n\n"
                  "| format | files | holds | bias | read | write |\n|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < COUNT(formats); i++) {
        const nib_format *f = &formats[i];
        const char *tick = f->read != NULL ? "`" : "", *tock = f->written != NULL ? "`" : "";
        nib__text_format(out, "| %s | %s | %s | %s | %s%s%s | %s%s%s |\n", f->name, f->files,
                         f->holds, f->bias, tick, or_dash(f->read), tick, tock, or_dash(f->written),
                         tock);
    }
}

void nib__formats_render(nib_form form, nib_text *out)
{
    if (form == NIB_FORM_JSON)
        render_json(out);
    else if (form == NIB_FORM_MARKDOWN)
        render_markdown(out);
    else
        render_text(out);
}

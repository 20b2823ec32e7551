/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of dialects: how each is recognized, read, written and described. Reading tries the
 * rows in this order, so a dialect that claims by metadata comes before one that takes any codes.
 */
#include "dialect_table.h"

#include "ledger.h"
#include "rotary.h"

#include <stdio.h>

const nib_dialect_row nib__dialects[NIB_DIALECT_COUNT] = {
    [NIB_DIALECT_GGUF] =
        {
            .name = "gguf",
            .files = "GGUF version 2 and 3, with the tokenizer inside",
            .holds = "F32, F16, BF16, Q4_0, Q4_1, Q8_0, MXFP4, Q2_K to Q6_K, IQ4_NL; read "
                     "also Q5_0, Q5_1",
            .bias = "float",
            .read_test = "test_code_layout_gguf.c:test_values",
            .write_test = "test_gguf_blocks.c:test_golden",
            .codes = {".weight"},
            .claims = nib__weight_is_gguf,
            .read = nib__weight_gguf,
            .writer = &nib__write_gguf,
        },
    [NIB_DIALECT_NIBBLE] =
        {
            .name = "nibble",
            .files = "safetensors",
            .holds = "every scheme of `nibble recipes`, any shape, static activations",
            .bias = "float, int8 or int32",
            .read_test = "test_formats.c:test_formats",
            .write_test = "test_quantize.c:test_what_torchao_cannot_hold",
            .codes = {"._weight_qdata"},
            .claims = nib__weight_is_nibble,
            .read = nib__weight_nibble,
            .writer = &nib__write_nibble,
        },
    [NIB_DIALECT_TORCHAO] =
        {
            .name = "torchao",
            .files = "safetensors, as torchao 0.15 to 0.18 and transformers write them",
            .holds = "Int8Tensor, IntxUnpackedToInt8Tensor, Int4Tensor, Float8Tensor, MXTensor, "
                     "NVFP4Tensor: int1 to "
                     "int8, e4m3, mxfp8, mxfp4, nvfp4; weight-only, or int8, e4m3, mxfp8, mxfp4 or "
                     "nvfp4 "
                     "activations; "
                     "read also Int4TilePackedTo4dTensor",
            .bias = "float",
            .readers = "transformers, vLLM",
            .read_test = "test_weight.c:test_torchao_golden",
            .write_test = "test_quantize.c:test_torchao_parts",
            .codes = {"._weight_qdata"},
            .read = nib__weight_torchao,
            .writer = &nib__write_torchao,
        },
    [NIB_DIALECT_COMPRESSED] =
        {
            .name = "compressed-tensors",
            .files = "safetensors",
            .holds = "pack-quantized (int1 to int8), int-quantized, float-quantized; "
                     "read also mxfp4, mxfp8, nvfp4; "
                     "groups, channels, tensors, blocks, g_idx; symmetric or not",
            .bias = "float",
            .readers = "transformers, vLLM",
            .read_test = "test_dialects.c:test_compressed_golden",
            .write_test = "test_convert.c:test_chains",
            .codes = {".weight_packed", ".weight"},
            .claims = nib__weight_is_compressed,
            .read = nib__weight_compressed,
            .writer = &nib__write_compressed,
        },
    [NIB_DIALECT_GPTQ] =
        {
            .name = "gptq",
            .files = "safetensors",
            .holds = "int4 and int8, v1 and v2, act-order",
            .bias = "float",
            .read_test = "test_dialects.c:test_gptq_golden",
            .codes = {".qweight"},
            .claims = nib__weight_is_gptq,
            .read = nib__weight_gptq,
        },
    [NIB_DIALECT_AWQ] =
        {
            .name = "awq",
            .files = "safetensors",
            .holds = "int4, the GEMM order",
            .bias = "float",
            .read_test = "test_dialects.c:test_gptq_golden",
            .codes = {".qweight"},
            .claims = nib__weight_is_awq,
            .read = nib__weight_awq,
        },
    [NIB_DIALECT_FP8] =
        {
            .name = "fp8",
            .files = "safetensors, as DeepSeek, transformers and vLLM write them",
            .holds = "e4m3 in blocks of 128 x 128, rows or tensors",
            .bias = "float",
            .read_test = "test_dialects.c:test_fp8_golden",
            .codes = {".weight"},
            .claims = nib__weight_is_fp8,
            .read = nib__weight_fp8,
        },
    [NIB_DIALECT_MODELOPT] =
        {
            .name = "modelopt",
            .files = "safetensors, as NVIDIA's ModelOpt exports them",
            .holds = "nvfp4; e4m3 per tensor, row or block; mxfp8; int8 rows",
            .bias = "float",
            .read_test = "test_experts_dialects.c:test_forms",
            .codes = {".weight"},
            .claims = nib__weight_is_modelopt,
            .read = nib__weight_modelopt,
        },
    [NIB_DIALECT_MXFP4] =
        {
            .name = "mxfp4",
            .files = "safetensors, as gpt-oss stores its experts",
            .holds = "e2m1 in blocks of 32",
            .bias = "float",
            .read_test = "test_dialects.c:test_gpt_oss_golden",
            .codes = {".weight_blocks"},
            .read = nib__weight_mxfp4,
        },
    [NIB_DIALECT_8DA4W] =
        {
            .name = "8da4w",
            .files = "safetensors or PyTorch's zip files, as ExecuTorch and torchtune write them",
            .holds =
                "int4 in groups, int8 rows of embedding and output; int8 activations per token",
            .bias = "float",
            .read_test = "test_torch_models.c:test_logits",
            .write_test = "test_convert.c:test_chains",
            .codes = {".weight"},
            .claims = nib__weight_is_8da4w,
            .read = nib__weight_8da4w,
            .writer = &nib__write_8da4w,
        },
    [NIB_DIALECT_GPTFAST] =
        {
            .name = "gpt-fast",
            .files = "PyTorch's zip files or safetensors, as gpt-fast writes them",
            .holds = "int8 rows; int4 in groups, packed for CUDA, ROCm or CPUs; weight-only",
            .bias = "float",
            .read_test = "test_torch_models.c:test_tinygemm",
            .codes = {".weight"},
            .claims = nib__weight_is_gptfast,
            .read = nib__weight_gptfast,
        },
    [NIB_DIALECT_STACKED] =
        {
            .name = "stacked",
            .files = "safetensors, as transformers stores the experts of gpt-oss and Llama 4",
            .holds = "floats of all experts in one tensor, transposed, with gate and up in turn or "
                     "one after the other",
            .bias = "float",
            .read_test = "test_experts_split.c:test_transposed",
            .codes = {".weight"},
            .claims = nib__weight_is_stacked, /* bytes cannot be copied as stored */
            .read = nib__weight_plain,
        },
    [NIB_DIALECT_META] =
        {
            .name = "meta",
            .files = "PyTorch's zip files or safetensors, as Meta and llama2.c write them",
            .holds = "floats, with the rows of q and k interleaved for RoPE",
            .bias = "float",
            .read_test = "test_torch_models.c:test_logits",
            .codes = {".weight"},
            .claims =
                nib__rotary_claims, /* rows need reordering: bytes cannot be copied as stored */
            .read = nib__weight_plain,
        },
    [NIB_DIALECT_FLOAT] =
        {
            .name = "safetensors",
            .files = "safetensors, one file or shards",
            .holds = "F32, F16, BF16; F64 is rounded to f32",
            .bias = "float",
            .read_test = "test_safetensors.c:test_legal",
            .write_test = "test_convert.c:test_floats",
            .codes = {".weight"},
            .read = nib__weight_plain,
            .writer = &nib__write_float,
        },
    [NIB_DIALECT_PYTORCH] =
        {
            .name = "pytorch",
            .files = "PyTorch's zip files (.pt, .pth, .bin), read without executing anything",
            .holds = "floats, and tensors of any other format here",
            .bias = "float",
            .read_test = "test_torch_zip.c:test_contents",
        },
};

const nib_dialect_writer *nib__dialect_writer(nib_dialect dialect)
{
    return nib__dialects[dialect].writer;
}

const char *nib__dialect_name(nib_dialect dialect) { return nib__dialects[dialect].name; }

const char *nib__dialect_readers(nib_dialect dialect) { return nib__dialects[dialect].readers; }

bool nib__dialect_find(nib_dialect *out, const char *name)
{
    for (int i = 0; i < NIB_DIALECT_COUNT; i++)
        if (nib__dialects[i].writer != NULL && strcmp(nib__dialects[i].name, name) == 0) {
            *out = (nib_dialect)i;
            return true;
        }
    return false;
}

const nib_dialect_row *nib__dialect_of(const nib_weight_query *q, const char **suffix)
{
    char name[512];
    for (int i = 0; i < NIB_DIALECT_COUNT; i++)
        for (int c = 0; c < NIB_CODES_MAX && nib__dialects[i].codes[c] != NULL; c++) {
            const nib_dialect_row *row = &nib__dialects[i];
            const int size = snprintf(name, sizeof name, "%s%s", q->module, row->codes[c]);
            const nib_tensor *codes = NULL;
            if (size < (int)sizeof name)
                codes = nib__checkpoint_find(q->cp, name);
            if (codes == NULL || (row->claims != NULL && !row->claims(q, codes)))
                continue;
            if (suffix != NULL)
                *suffix = row->codes[c];
            return row;
        }
    return NULL;
}

/* int4 packed for tensor cores has four dimensions; see dialect_gptfast.c. */
static bool is_packed_words(const nib_tensor *t)
{
    return t->rank == 4 && t->type == NIB_TYPE_I32 && t->shape[2] == 32;
}

size_t nib__module_size(const nib_tensor *tensor)
{
    const size_t size = strlen(tensor->name);
    if (tensor->rank != 2 && !is_packed_words(tensor))
        return 0;
    for (int i = 0; i < NIB_DIALECT_COUNT; i++)
        for (int c = 0; c < NIB_CODES_MAX && nib__dialects[i].codes[c] != NULL; c++) {
            const char *end = nib__dialects[i].codes[c];
            if (size > strlen(end) && strcmp(tensor->name + size - strlen(end), end) == 0)
                return size - strlen(end);
        }
    return 0;
}

/* ---- rendering ---- */

static const char *or_dash(const char *text) { return text == NULL ? "-" : text; }

static void render_text(nib_text *out)
{
    nib__text_format(out, "%-19s %-5s %-6s %s\n", "format", "read", "write", "holds");
    for (int i = 0; i < NIB_DIALECT_COUNT; i++) {
        const nib_dialect_row *f = &nib__dialects[i];
        char head[40];
        snprintf(head, sizeof head, "%-19s %-5s %-6s ", f->name,
                 f->read_test != NULL ? "yes" : "no", f->write_test != NULL ? "yes" : "no");
        nib__ledger_wrap(out, head, "                                 ", 100, f->holds);
    }
}

static void render_json(nib_text *out)
{
    nib_jsonw w;
    nib__jsonw_report(&w, out);
    nib__jsonw_key(&w, "formats");
    nib__jsonw_array(&w);
    for (int i = 0; i < NIB_DIALECT_COUNT; i++) {
        const nib_dialect_row *f = &nib__dialects[i];
        nib__jsonw_object(&w);
        nib__jsonw_pair_string(&w, "name", f->name);
        nib__jsonw_pair_string(&w, "files", f->files);
        nib__jsonw_pair_string(&w, "holds", f->holds);
        nib__jsonw_pair_string(&w, "bias", f->bias);
        nib__jsonw_pair_bool(&w, "read", f->read_test != NULL);
        nib__jsonw_pair_bool(&w, "write", f->write_test != NULL);
        nib__jsonw_object_end(&w);
    }
    nib__jsonw_array_end(&w);
    nib__jsonw_report_end(&w);
}

static void render_markdown(nib_text *out)
{
    nib__text_str(
        out, "# Checkpoint formats\n\n"
             "Printed by `nibble formats --markdown`; the tensors of each are in "
             "[formats.md](formats.md). Each\nsupported entry names its test in tests/unit.\n\n"
             "| format | files | holds | bias | read | write |\n|---|---|---|---|---|---|\n");
    for (int i = 0; i < NIB_DIALECT_COUNT; i++) {
        const nib_dialect_row *f = &nib__dialects[i];
        const char *tick = f->read_test != NULL ? "`" : "",
                   *tock = f->write_test != NULL ? "`" : "";
        nib__text_format(out, "| %s | %s | %s | %s | %s%s%s | %s%s%s |\n", f->name, f->files,
                         f->holds, f->bias, tick, or_dash(f->read_test), tick, tock,
                         or_dash(f->write_test), tock);
    }
}

void nib__dialects_render(nib_form form, nib_text *out)
{
    if (form == NIB_FORM_JSON)
        render_json(out);
    else if (form == NIB_FORM_MARKDOWN)
        render_markdown(out);
    else
        render_text(out);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints the table of model families as text, JSON, and Markdown for docs/models.md.
 */
#include "arch.h"

#include "json.h"

#include <stdio.h>

static void render_text(nib_text *out)
{
    nib__text_format(out, "%-11s %-10s %s\n", "model_type", "GGUF", "models");
    for (size_t i = 0; nib__family_at(i) != NULL; i++) {
        const nib_family_row *f = nib__family_at(i);
        nib__text_format(out, "%-11s %-10s %s%s%s\n", f->name, f->gguf != NULL ? f->gguf : "-",
                         f->title, f->limits != NULL ? "; not with " : "",
                         f->limits != NULL ? f->limits : "");
    }
}

static void render_json(nib_text *out)
{
    nib_jsonw w;
    nib__jsonw_report(&w, out);
    nib__jsonw_key(&w, "models");
    nib__jsonw_array(&w);
    for (size_t i = 0; nib__family_at(i) != NULL; i++) {
        const nib_family_row *f = nib__family_at(i);
        nib__jsonw_object(&w);
        nib__jsonw_pair_string(&w, "model_type", f->name);
        nib__jsonw_pair_string(&w, "class", f->class_name);
        if (f->gguf != NULL)
            nib__jsonw_pair_string(&w, "gguf", f->gguf);
        nib__jsonw_pair_string(&w, "models", f->title);
        if (f->limits != NULL)
            nib__jsonw_pair_string(&w, "refused", f->limits);
        nib__jsonw_object_end(&w);
    }
    nib__jsonw_array_end(&w);
    nib__jsonw_report_end(&w);
}

static void render_markdown(nib_text *out)
{
    nib__text_str(
        out,
        "# Models\n\n"
        "Printed by `nibble models --markdown`. Each family runs with every recipe on the CPU, "
        "on OpenCL devices and on NVIDIA GPUs,\nfrom a Hugging Face directory, and from GGUF if "
        "it has a name there. It trains in every\nway that [training.md](training.md) describes, "
        "except "
        "Gemma 4 E2B and E4B, which cannot be trained.\n"
        "Logits and gradients are "
        "compared with "
        "those of "
        "transformers\n(`tests/unit/test_network.c`, `test_gguf_model.c`, "
        "`test_step.c`). Layers with a window keep the window and 512 more\npositions in the "
        "KV cache, whatever the context.\n\n"
        "Some families store several weights as one tensor: `qkv_proj` holds the rows of q, k "
        "and v, `gate_up_proj` those of gate and\nup. Nibble reads such a tensor part by "
        "part. In recipes (`--skip '*q_proj*'`), plans and reports the parts have the "
        "usual\nnames: `q_proj`, `k_proj`, `v_proj`, `gate_proj` and `up_proj`. Plain floats, "
        "as in training checkpoints and from\n`nibble convert --format safetensors`, are "
        "written as one tensor again, which transformers loads. Codes are written part "
        "by\npart, since each part may have its own scheme: Nibble reads them, transformers "
        "does not. A GGUF stores one tensor, so its\nparts need one type. Codes that are "
        "stored as one tensor are read if the parts' rows, or blocks of rows, follow each "
        "other;\nGPTQ, AWQ and int4 packed for tensor cores are refused by name.\n\n"
        "DeepSeek and Kimi store the matrices of all heads for keys and values as `kv_b_proj`; "
        "Nibble reads, trains and quantizes them as\n`k_b_proj.H` and `v_b_proj.H` of each head, "
        "and writes plain floats as `kv_b_proj` again "
        "([formats.md](formats.md#latent-attention)).\n\n"
        "Most layers of LFM2 have a short convolution in place of attention. They keep its last "
        "inputs in f32, as many as 64 tokens\nneed, so a sequence is rolled back by drafts; a "
        "later prompt continues from a snapshot\n"
        "([architecture.md](architecture.md#snapshots-of-states)). On a GPU the convolution runs "
        "on the host, which needs\n`--allow device`.\n\n"
        "Three of four layers of Qwen3-Next and Qwen3.5 have gated DeltaNet: after a short "
        "convolution, linear attention over a matrix\nper head. A sequence can be rolled back to "
        "the start of its last step, by at most 64 tokens, so drafts work, and further to a\n"
        "snapshot. A GPU leaves these layers to the host as well, and needs `--allow device` for "
        "it. Nibble reads only the text part\nof Qwen3.5. In a GGUF of them, "
        "llama.cpp's converter has put heads of values in another order: Nibble runs it as\nit "
        "is, and puts them in the order of the output when it writes one or converts it.\n\n"
        "Qwen3-Next, Qwen3.5, DeepSeek-V3 and GLM-4.5 are published with a head that drafts "
        "further tokens: `--draft-head` uses it\n"
        "([generating.md](generating.md#the-models-own-draft-head---draft-head)). Kimi K2 has "
        "none.\n\n"
        "Most layers of Granite 4's hybrids have Mamba-2: after a short convolution, a state-space "
        "recurrence over a matrix per head.\nThey roll back and run on a GPU's host as gated "
        "DeltaNet does. Nibble calls the MLP that all tokens have `mlp.shared_expert`, with\nand "
        "without experts beside it. It refuses a model whose layers all have Mamba-2. In a GGUF\n"
        "(`granitehybrid`) Granite 4 can have no biases of projections and no `time_step_limit`; "
        "without Mamba-2 it is written as `granite`,\nas by llama.cpp's converter, if it has "
        "RoPE and no experts.\n\n"
        "StableLM 2 12B stores the norm of each head as a separate tensor "
        "(`self_attn.q_layernorm.norms.3.weight`). Nibble reads them\nas one weight with a "
        "row per head, `self_attn.q_norm.weight`, as in GGUF, and writes them as separate "
        "tensors again.\n\n"
        "| model_type | class | in GGUF | models | refused |\n"
        "|---|---|---|---|---|\n");
    for (size_t i = 0; nib__family_at(i) != NULL; i++) {
        const nib_family_row *f = nib__family_at(i);
        nib__text_format(out, "| %s | %s | %s | %s | %s |\n", f->name, f->class_name,
                         f->gguf != NULL ? f->gguf : "-", f->title,
                         f->limits != NULL ? f->limits : "-");
    }
}

void nib__families_render(nib_form form, nib_text *out)
{
    if (form == NIB_FORM_JSON)
        render_json(out);
    else if (form == NIB_FORM_MARKDOWN)
        render_markdown(out);
    else
        render_text(out);
}

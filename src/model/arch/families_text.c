/* SPDX-License-Identifier: Apache-2.0
 *
 * The families of models for people, programs and docs/models.md.
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
    nib__jsonw_init(&w, out, 2);
    nib__jsonw_object(&w);
    nib__jsonw_pair_int(&w, "schema", 1);
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
    nib__jsonw_object_end(&w);
    nib__text_str(out, "\n");
}

static void render_markdown(nib_text *out)
{
    nib__text_str(
        out, "# Models\n\n"
             "Printed by `nibble models --markdown`. Each family runs with every recipe on the CPU "
             "and on devices of OpenCL, and has\nkernels for CUDA, which no GPU has run yet; from "
             "a Hugging Face directory, and from GGUF where it has a name there. It\ntrains in "
             "every way that [training.md](training.md) has. Logits and gradients are compared "
             "with those of transformers\n(`tests/unit/test_network.c`, `test_gguf_model.c`, "
             "`test_step.c`). Layers with a window keep it\nin the cache, and 512 positions more, "
             "whatever the context.\n\n"
             "Some families store several weights as one tensor: `qkv_proj` holds the rows of q, k "
             "and v, `gate_up_proj` those of gate and\nup. Nibble reads such a tensor part by "
             "part. Everywhere, in recipes (`--skip '*q_proj*'`), plans and reports, the parts "
             "have\nthe usual names: `q_proj`, `k_proj`, `v_proj`, `gate_proj` and `up_proj`. "
             "Plain floats, as of training checkpoints and\n`nibble convert --format "
             "safetensors`, are written as one tensor again, which transformers loads. Codes are "
             "written part by\npart, since each part may have its own scheme: Nibble reads them, "
             "transformers does not. A GGUF has one tensor, so its\nparts need one type. Codes "
             "that are stored as one tensor are read where rows, or blocks of rows, lie one after "
             "the\nother; GPTQ, AWQ and int4 packed for tensor cores are refused by name.\n\n"
             "StableLM 2 12B stores the norm of each head as a tensor of its own "
             "(`self_attn.q_layernorm.norms.3.weight`). Nibble reads them\nas one weight of a row "
             "for each head, `self_attn.q_norm.weight`, as GGUF has it, and writes them apart "
             "again.\n\n"
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

/* SPDX-License-Identifier: Apache-2.0
 *
 * The meaning of each base recipe name, as text, JSON and Markdown from one table. The formulas are
 * those of quant_w.c and of the activation quantizers; docs/quantization.md lists them with
 * sources.
 */
#include "recipe_rules.h"

typedef struct words {
    const char *base, *weights, *activations, *source;
} words;

/* In the formulas: amax, min and max are over a group, eps is the smallest normal number of the
 * weight's type (of f32 for activations), round is to nearest, ties to even. */
static const words rows[] = {
    {"f32", "f32, not quantized", "float", "-"},
    {"f16", "f16, not quantized", "float", "-"},
    {"bf16", "bf16, not quantized", "float", "-"},
    {"int8wo",
     "int8, symmetric: s = max(amax/127.5, 2^-23), q = clamp(round(w*(1/s)), -128, 127), w = q*s",
     "float", "torchao Int8WeightOnlyConfig"},
    {"int8dq", "int8, symmetric, as int8wo",
     "int8 per token, symmetric: s = max(amax/127.5, 2^-23)",
     "torchao Int8DynamicActivationInt8WeightConfig"},
    {"int4wo",
     "int4, float zero: s = max(max-min, 1e-6)/15, z = min + 8*s, q = clamp(round((w-min)/s), 0, "
     "15) - 8, w = q*s + z",
     "float", "torchao Int4WeightOnlyConfig"},
    {"8da4w", "int4, symmetric: s = max(amax/7.5, eps), q = clamp(round(w*(1/s)), -8, 7), w = q*s",
     "int8 per token, asymmetric: s = max((max-min)/255, eps), z = clamp(-128 - round(min/s), "
     "-128, 127)",
     "torchao Int8DynamicActivationIntxWeightConfig"},
    {"4da4w", "int4, symmetric, as 8da4w",
     "int4 per token, asymmetric: s = max((max-min)/15, eps), z = clamp(-8 - round(min/s), -8, 7)",
     "Nibble"},
    {"fp8wo", "e4m3: s = amax/448, q = e4m3(w/s), w = q*s", "float",
     "torchao Float8WeightOnlyConfig"},
    {"fp8dq", "e4m3, as fp8wo", "e4m3 per token: s = amax/448",
     "torchao Float8DynamicActivationFloat8WeightConfig"},
    {"mxfp8",
     "e4m3 in blocks: s = 2^ceil(log2(amax/448)), q = e4m3(w/s), w = q*s; the output layer is kept",
     "e4m3 in blocks of 32, as the weights",
     "OCP MX, torchao MXDynamicActivationMXWeightConfig (RCEIL)"},
    {"mxfp4", "e2m1 in blocks: s = 2^ceil(log2(amax/6)), q = e2m1(w/s), w = q*s", "float",
     "OCP MX, torchao MXTensor (RCEIL)"},
    {"mxfp4dq", "e2m1 in blocks, as mxfp4", "e2m1 in blocks of 32, as the weights",
     "OCP MX, torchao MXDynamicActivationMXWeightConfig (e2m1, RCEIL)"},
    {"nvfp4",
     "e2m1 in blocks, two scales: t = max|W|/2688, s = e4m3(clamp(amax/6/t, 2^-6, 448)), q = "
     "e2m1(w*(1/t/s)), w = q*(s*t)",
     "float", "torchao NVFP4WeightOnlyConfig"},
    {"nvfp4dq", "e2m1 in blocks, two scales, as nvfp4",
     "e2m1 in blocks of 16, as the weights, with t = amax/2688 of the token",
     "torchao NVFP4DynamicActivationNVFP4WeightConfig"},
    {NIB_WEIGHT_ONLY, "as stored, in any format",
     "float, even if the weights' format (GGUF) or scheme means int8 activations", "Nibble"},
};

/* Default elements per scale. */
static const char *format_group(char out[32], const nib_scheme *s)
{
    if (!nib__scheme_is_quantized(s))
        return "-";
    if (s->group == NIB_GROUP_ROW)
        return "row";
    return s->group == NIB_GROUP_TENSOR ? "tensor" : nib__say_count(out, (uint64_t)s->group);
}

static void write_text(nib_text *text, const words *w, const nib_scheme *s)
{
    char size[32], takes[128];
    nib__text_format(text, "%s\n  weights      %s\n  activations  %s\n", w->base, w->weights,
                     w->activations);
    if (nib__scheme_is_quantized(s))
        nib__text_format(text, "  one scale    per %s%s by default; takes %s\n",
                         format_group(size, s), s->group > 0 ? " inputs" : "",
                         nib__scheme_takes(takes, w->base));
    nib__text_format(text, "  from         %s\n", w->source);
}

static void write_markdown(nib_text *text, const words *w, const nib_scheme *s)
{
    char size[32], takes[128];
    nib__text_format(text, "| `%s` | %s | %s | %s | %s | %s |\n", w->base, w->weights,
                     w->activations, format_group(size, s), nib__scheme_takes(takes, w->base),
                     w->source);
}

static void write_json(nib_jsonw *out, const words *w, const nib_scheme *s)
{
    char size[32], takes[128];
    nib__jsonw_object(out);
    nib__jsonw_pair_string(out, "name", w->base);
    nib__jsonw_pair_string(out, "weights", w->weights);
    nib__jsonw_pair_string(out, "activations", w->activations);
    nib__jsonw_pair_string(out, "group", format_group(size, s));
    nib__jsonw_pair_string(out, "takes", nib__scheme_takes(takes, w->base));
    nib__jsonw_pair_string(out, "source", w->source);
    nib__jsonw_object_end(out);
}

nib_status nib__recipes_write(nib_form form, const nib_allocator *a, const nib_sink *sink,
                              nib_err *err)
{
    nib_text text;
    nib_jsonw json;
    nib__text_init(&text, a);
    nib__jsonw_init(&json, &text, 2);
    if (form == NIB_FORM_MARKDOWN)
        nib__text_str(&text,
                      "| recipe | weights | activations | inputs per scale | takes | source |\n"
                      "|---|---|---|---|---|---|\n");
    if (form == NIB_FORM_JSON) {
        nib__jsonw_object(&json);
        nib__jsonw_pair_int(&json, "schema", 1);
        nib__jsonw_key(&json, "recipes");
        nib__jsonw_array(&json);
    }
    for (size_t i = 0; i < COUNT(rows); i++) {
        nib_scheme s = {.code = NIB_CODE_F32}; /* weight-only has no scheme: columns stay empty */
        const nib_status status =
            strcmp(rows[i].base, NIB_WEIGHT_ONLY) == 0
                ? NIB_OK
                : nib__scheme_parse(&s, rows[i].base, strlen(rows[i].base), err);
        if (status != NIB_OK) {
            nib__text_free(&text);
            return status;
        }
        if (form == NIB_FORM_JSON)
            write_json(&json, &rows[i], &s);
        else if (form == NIB_FORM_MARKDOWN)
            write_markdown(&text, &rows[i], &s);
        else
            write_text(&text, &rows[i], &s);
    }
    if (form == NIB_FORM_JSON) {
        nib__jsonw_array_end(&json);
        nib__jsonw_object_end(&json);
        nib__text_str(&text, "\n");
    } else if (form == NIB_FORM_TEXT) {
        nib__text_str(
            &text,
            "\nA recipe is one of these names, then modifiers that it takes, then +head[-SCHEME] "
            "or +embed[-SCHEME].\n-ggml uses ggml's reference formula for Q8_0 (int8wo-g32), Q4_0 "
            "(int4wo-sym) and Q4_1 (int4wo); -ao017 and -tinygemm use torchao's other formulas; "
            "eps is the smallest normal number.\n-intzero is int4 with an integer zero point, "
            "torchao's asymmetric IntxWeightOnlyConfig:\n  s = max((max-min)/15, eps) with 0 in "
            "the range, z = clamp(-8 - round(min/s), -8, 7), q = clamp(round(w*(1/s)) + z, -8, "
            "7), w = (q - z)*s\n");
    }
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

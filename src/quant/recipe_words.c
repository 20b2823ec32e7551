/* SPDX-License-Identifier: Apache-2.0
 *
 * The meaning of each recipe name, as text, JSON and Markdown, from the rows of scheme.c and
 * recipe_mixes.c; and the names of methods.
 */
#include "recipe_rules.h"

#include <stdio.h>

/* The recipe that keeps weights as they are stored has no scheme: its other columns stay empty, as
 * those of mixes do. */
static const nib_scheme_base weight_only = {
    .name = NIB_WEIGHT_ONLY,
    .scheme = {.code = NIB_CODE_F32},
    .weights = "as stored, in any format",
    .activations = "float, even if the weights' format (GGUF) or scheme means int8 activations",
    .source = "Nibble"};

/* Default elements per scale. */
static const char *format_group(char out[32], const nib_scheme *s)
{
    if (!nib__scheme_is_quantized(s))
        return "-";
    if (s->group == NIB_GROUP_ROW)
        return "row";
    return s->group == NIB_GROUP_TENSOR ? "tensor" : nib__format_count(out, (uint64_t)s->group);
}

static void write_text(nib_text *text, const nib_scheme_base *base)
{
    char size[32], takes[128];
    nib__text_format(text, "%s\n  weights      %s\n  activations  %s\n", base->name, base->weights,
                     base->activations);
    if (nib__scheme_is_quantized(&base->scheme))
        nib__text_format(text, "  one scale    per %s%s by default; takes %s\n",
                         format_group(size, &base->scheme), base->scheme.group > 0 ? " inputs" : "",
                         nib__scheme_takes(takes, base->takes));
    nib__text_format(text, "  from         %s\n", base->source);
}

static void write_markdown(nib_text *text, const nib_scheme_base *base)
{
    char size[32], takes[128];
    nib__text_format(text, "| `%s` | %s | %s | %s | %s | %s |\n", base->name, base->weights,
                     base->activations, format_group(size, &base->scheme),
                     nib__scheme_takes(takes, base->takes), base->source);
}

static void write_json(nib_jsonw *out, const nib_scheme_base *base)
{
    char size[32], takes[128];
    nib__jsonw_object(out);
    nib__jsonw_pair_string(out, "name", base->name);
    nib__jsonw_pair_string(out, "weights", base->weights);
    nib__jsonw_pair_string(out, "activations", base->activations);
    nib__jsonw_pair_string(out, "group", format_group(size, &base->scheme));
    nib__jsonw_pair_string(out, "takes", nib__scheme_takes(takes, base->takes));
    nib__jsonw_pair_string(out, "source", base->source);
    nib__jsonw_object_end(out);
}

/* Writes one recipe. */
static void write_row(nib_form form, nib_text *text, nib_jsonw *json, const nib_scheme_base *base)
{
    if (form == NIB_FORM_JSON)
        write_json(json, base);
    else if (form == NIB_FORM_MARKDOWN)
        write_markdown(text, base);
    else
        write_text(text, base);
}

static void write_mixes(nib_form form, nib_text *text, nib_jsonw *json, const nib_allocator *a)
{
    for (size_t i = 0; nib__mix_name(i) != NULL; i++) {
        nib_text words;
        nib__text_init(&words, a);
        nib__mix_words(&words, i);
        text->failed = text->failed || words.failed;
        if (!words.failed)
            write_row(form, text, json,
                      &(nib_scheme_base){.name = nib__mix_name(i),
                                         .scheme = {.code = NIB_CODE_F32},
                                         .weights = words.at,
                                         .activations = "float",
                                         .source = "llama.cpp, llama-quantize"});
        nib__text_free(&words);
    }
}

nib_status nib__recipes_write(nib_form form, const nib_allocator *a, const nib_sink *sink,
                              nib_err *err)
{
    nib_text text;
    nib_jsonw json;
    nib__text_init(&text, a);
    if (form == NIB_FORM_MARKDOWN)
        nib__text_str(&text,
                      "| recipe | weights | activations | inputs per scale | takes | source |\n"
                      "|---|---|---|---|---|---|\n");
    if (form == NIB_FORM_JSON) {
        nib__jsonw_report(&json, &text);
        nib__jsonw_key(&json, "recipes");
        nib__jsonw_array(&json);
    }
    const nib_scheme_base *base = NULL;
    for (size_t i = 0; base != &weight_only; i++) {
        base = nib__scheme_base(i) != NULL ? nib__scheme_base(i) : &weight_only;
        write_row(form, &text, &json, base);
    }
    write_mixes(form, &text, &json, a);
    if (form == NIB_FORM_JSON) {
        nib__jsonw_array_end(&json);
        nib__jsonw_report_end(&json);
    } else if (form == NIB_FORM_TEXT) {
        nib__text_str(
            &text,
            "\nA recipe is one of these names, then modifiers that it takes, then +head[-SCHEME], "
            "+embed[-SCHEME] or +router[-SCHEME].\n-ggml uses ggml's reference formula for Q8_0 "
            "(int8wo-g32), Q4_0 (int4wo-sym) and Q4_1 (int4wo); -ao017 and -tinygemm use torchao's "
            "other formulas; "
            "eps is the smallest normal number.\n-intzero is int4 with an integer zero point, "
            "torchao's asymmetric IntxWeightOnlyConfig:\n  s = max((max-min)/15, eps) with 0 in "
            "the range, z = clamp(-8 - round(min/s), -8, 7), q = clamp(round(w*(1/s)) + z, -8, "
            "7), w = (q - z)*s\n");
    }
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

nib_status nib__method_read(nib_ptq_method *out, const char *name, nib_err *err)
{
    char names[128] = "", shown[NIB_SHOWN];
    size_t size = 0;
    if (nib__ptq_parse(out, name))
        return NIB_OK;
    for (int i = 0; i < NIB_PTQ_COUNT; i++)
        size += (size_t)snprintf(names + size, sizeof names - size, "%s%s", i > 0 ? ", " : "",
                                 nib__ptq_names[i]);
    return nib__fail(err, NIB_USAGE, "method \"%.40s\" is not one of %s",
                     nib__escape_string(shown, name), names);
}

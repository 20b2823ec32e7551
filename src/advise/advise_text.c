/* SPDX-License-Identifier: Apache-2.0
 *
 * The result of nib_advise as a table with the recipe to take, and as JSON.
 */
#include "advise.h"

#include "file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { WIDTH = 100 };

/* ---- the heading ---- */

static void render_device(const nib_advice *v, nib_text *out)
{
    char bytes[32], positions[32];
    const nib_machine *m = &v->base->machine;
    const char *buffers = v->base->assignment.gpu != NULL ? ", and buffers" : "";
    nib__text_format(out, "device  %s: %s%s\n", m->name, nib__machine_title(m),
                     m->here ? "" : ", not here");
    nib__text_str(out, "memory  ");
    if (v->limit != 0)
        nib__text_format(out, "%s (%s) for weights, keys and values of %s positions%s\n",
                         nib__format_bytes(bytes, v->limit),
                         v->limit == v->options->memory ? "--memory" : "the device's",
                         nib__format_count(positions, (uint64_t)v->base->context), buffers);
    else
        nib__text_format(out, "weights, keys and values of %s positions%s; no limit is known\n",
                         nib__format_count(positions, (uint64_t)v->base->context), buffers);
}

static void render_speeds(const nib_advice *v, nib_text *out)
{
    char words[512];
    const nib_machine *m = &v->base->machine;
    if (v->speeds)
        snprintf(words, sizeof words,
                 "tokens/s, measured here: decoding, and a prompt of %" PRId64
                 " tokens; \"predicted\" is decoding, from %s",
                 v->prompt, nib__machine_rates(m));
    else
        snprintf(words, sizeof words,
                 "tokens/s, predicted from %s, not measured: decoding, and a "
                 "prompt of %" PRId64 " tokens",
                 nib__machine_rates(m), v->prompt);
    nib__ledger_wrap(out, "speed   ", "        ", WIDTH, words);
}

static void render_costs(const nib_advice *v, nib_text *out)
{
    char words[512], shown[NIB_SHOWN];
    if (v->losses)
        snprintf(words, sizeof words,
                 "nats per token of %s, measured %s; at most %g more than the model as stored "
                 "(--loss-budget)",
                 nib__escape_string(shown, v->options->text_path),
                 v->base->machine.here ? "here" : "on this CPU, as it depends only on the codes",
                 v->budget);
    else
        snprintf(
            words, sizeof words,
            "the relative error of a linear layer's product, estimated from %s and normal inputs, "
            "in place of the loss (--text FILE measures it): it ranks recipes and says nothing "
            "about this model's loss; at most %g %%",
            v->real ? "16 rows of each weight" : "normal weights (none are stored)",
            100 * v->budget);
    nib__ledger_wrap(out, v->losses ? "loss    " : "error   ", "        ", WIDTH, words);
}

/* "gptq, search" */
static void put_methods(const nib_methods *m, nib_text *out)
{
    for (size_t i = 0; i < m->count; i++)
        nib__text_format(out, "%s%s", i > 0 ? ", " : "", nib__ptq_names[m->items[i]]);
}

static void render_methods(const nib_advice *v, nib_text *out)
{
    const nib_methods *m = v->methods;
    char shown[NIB_SHOWN], tokens[32];
    nib_text words;
    if (m == NULL)
        return;
    nib__text_init(&words, out->allocator);
    put_methods(m, &words);
    if (m->asked.calibrate != NULL)
        nib__text_format(&words, ", calibrated on the %s tokens of %s",
                         nib__format_count(tokens, (uint64_t)m->tokens),
                         nib__escape_string(shown, m->asked.calibrate));
    if (m->asked.imatrix != NULL)
        nib__text_format(&words, ", with inputs by %s where the method takes it",
                         nib__escape_string(shown, m->asked.imatrix));
    nib__text_str(&words, "; rows without a method are rounded to nearest");
    if (v->speeds)
        nib__text_str(&words, ", and those with one have their speed if they run the same kernels");
    if (words.failed)
        out->failed = true;
    else
        nib__ledger_wrap(out, "method  ", "        ", WIDTH, words.at);
    nib__text_free(&words);
}

/* ---- the table ---- */

/* Three digits, or a whole number. */
static const char *format_speed(char out[32], double speed)
{
    if (isnan(speed))
        snprintf(out, 32, "-");
    else if (speed >= 100)
        nib__format_count(out, (uint64_t)(speed + 0.5));
    else
        nib__format(out, 32, "%.3g", speed);
    return out;
}

static void put_cost(const nib_advice *v, const nib_advised *c, nib_text *out)
{
    const double cost = nib__advised_cost(v, c);
    char more[32];
    if (!v->losses) {
        nib__text_format(out, "  %5.2f %%", 100 * cost);
        return;
    }
    nib__format(more, sizeof more, "%+.4f", cost - v->base_cost);
    if (isnan(cost))
        nib__text_format(out, "  %6s  %7s", "-", "-");
    else
        nib__text_format(out, "  %6.4f  %7s", cost, more);
}

static bool is_taken(const nib_advice *v, const nib_advised *c)
{
    return v->taken >= 0 && c == &v->items[v->taken];
}

static void put_verdict(const nib_advice *v, const nib_advised *c, nib_text *out)
{
    char bytes[32];
    if (c->problem)
        nib__text_str(out, c->failed         ? "failed"
                           : c->inapplicable ? "not applicable"
                                             : "not as asked");
    else if (c->over != 0)
        nib__text_format(out, "%s too large", nib__format_bytes(bytes, c->over));
    else if (c->beaten_by != NIB_UNBEATEN)
        nib__text_format(out, "behind %s", v->items[c->beaten_by].name);
    else
        nib__text_str(out, is_taken(v, c) ? "frontier, taken" : "frontier");
    if (c->keeps_rounding && !c->problem)
        nib__text_str(out, ", kept rounding");
    nib__text_str(out, "\n");
}

static void render_row(const nib_advice *v, const nib_advised *c, int width, nib_text *out)
{
    char bytes[32], decode[32], prefill[32], predicted[32];
    format_speed(predicted, c->predicted_decode);
    format_speed(decode, v->speeds ? c->decode : c->predicted_decode);
    format_speed(prefill, v->speeds ? c->prefill : c->predicted_prefill);
    nib__text_format(out, "%-*s  %8s  %7s", width, c->name,
                     c->bytes == 0 ? "-" : nib__format_bytes(bytes, c->bytes), decode);
    if (v->speeds)
        nib__text_format(out, "  %9s", predicted);
    nib__text_format(out, "  %7s", prefill);
    put_cost(v, c, out);
    nib__text_str(out, "  ");
    put_verdict(v, c, out);
}

static bool same_problem(const nib_advised *a, const nib_advised *b)
{
    return a->problem && b->problem && strcmp(a->problem, b->problem) == 0;
}

/* Prints each problem once, with the names of all recipes that have it. */
static void render_problem(const nib_advice *v, size_t i, nib_text *out)
{
    nib_text words;
    bool seen = !v->items[i].problem;
    for (size_t j = 0; j < i; j++)
        seen |= same_problem(&v->items[j], &v->items[i]);
    if (seen)
        return;
    nib__text_init(&words, out->allocator);
    for (size_t j = i; j < v->count; j++)
        if (same_problem(&v->items[i], &v->items[j]))
            nib__text_format(&words, "%s%s", j > i ? ", " : "", v->items[j].name);
    nib__text_format(&words, ": %s", v->items[i].problem);
    nib__text_str(out, "\n");
    if (words.failed)
        out->failed = true;
    else
        nib__ledger_wrap(out, "", "  ", WIDTH, words.at);
    nib__text_free(&words);
}

/* Lists a frontier, with or without the rows that have a method. */
static void render_frontier(const nib_advice *v, bool with_methods, nib_text *out)
{
    size_t count = 0;
    nib_text words;
    nib__text_init(&words, out->allocator);
    nib__text_format(&words, "frontier %s methods: ", with_methods ? "with" : "without");
    for (size_t i = 0; i < v->count; i++)
        if (nib__advised_leads(&v->items[i], with_methods))
            nib__text_format(&words, "%s%s", count++ > 0 ? ", " : "", v->items[i].name);
    nib__text_str(&words, count == 0 ? "none" : "");
    if (words.failed)
        out->failed = true;
    else
        nib__ledger_wrap(out, "", "  ", WIDTH, words.at);
    nib__text_free(&words);
}

static void render_table(const nib_advice *v, nib_text *out)
{
    int width = 6;
    for (size_t i = 0; i < v->count; i++)
        width = (int)nib__max(width, (int64_t)strlen(v->items[i].name));
    nib__text_format(out, "\n%-*s  %8s  %7s", width, "recipe", "memory", "decode");
    nib__text_format(out, "%s  %7s", v->speeds ? "  predicted" : "", "prompt");
    nib__text_str(out, v->losses ? "    loss     more\n" : "    error\n");
    for (size_t i = 0; i < v->count; i++)
        render_row(v, &v->items[i], width, out);
    for (size_t i = 0; i < v->count; i++)
        render_problem(v, i, out);
    if (v->methods == NULL)
        return;
    nib__text_str(out, "\n");
    render_frontier(v, false, out);
    render_frontier(v, true, out);
}

/* ---- commands ---- */

/* Writes a word of a shell command, quoted if needed. */
static void put_word(nib_text *out, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./+=:,@%-";
    if (word[0] != '\0' && strspn(word, plain) == strlen(word)) {
        nib__text_str(out, word);
        return;
    }
    nib__text_str(out, "'");
    for (; *word; word++)
        if (*word == '\'')
            nib__text_str(out, "'\\''");
        else
            nib__text_put(out, word, 1);
    nib__text_str(out, "'");
}

/* The model for commands; for a config without weights, its directory, where weights would be. */
static const char *model_name(const nib_advice *v)
{
    const bool weights = v->model->net.checkpoint != NULL;
    return v->options->name && weights ? v->options->name : v->model->net.directory;
}

/* Writes a recipe as part of a file name: "mine" for rules/mine.json. */
static void put_recipe(nib_text *out, const char *recipe)
{
    const char *slash = strrchr(recipe, '/'), *from = slash != NULL ? slash + 1 : recipe;
    const size_t size = strlen(from) - (nib__ends_with(from, ".json") ? strlen(".json") : 0);
    if (strpbrk(recipe, "{[") != NULL || size == 0) /* JSON */
        nib__text_str(out, "quantized");
    else
        nib__text_put(out, from, size);
}

/* Writes the name of the output: "tales-8da4w" for models/tales. A single file ends in
 * .safetensors. */
static void put_output(const nib_advice *v, const nib_advised *c, nib_text *out)
{
    static const char *const ends[] = {"/config.json", ".safetensors", ".gguf"};
    const char *name = model_name(v);
    size_t size = strlen(name);
    bool file = false;
    nib_text word;
    for (size_t i = 0; i < COUNT(ends); i++)
        if (nib__ends_with(name, ends[i]) && size > strlen(ends[i])) {
            size -= strlen(ends[i]);
            file = i > 0;
            break;
        }
    while (size > 1 && name[size - 1] == '/')
        size--;
    size_t from = size;
    while (from > 0 && name[from - 1] != '/')
        from--;
    nib__text_init(&word, out->allocator);
    if (size - from == 0 || (size - from == 1 && name[from] == '.'))
        nib__text_str(&word, "model");
    else
        nib__text_put(&word, name + from, size - from);
    nib__text_str(&word, "-");
    put_recipe(&word, c->recipe);
    if (c->method != NULL)
        nib__text_format(&word, "-%s", c->method);
    nib__text_str(&word, file ? ".safetensors" : "");
    put_word(out, word.failed ? "OUT" : word.at);
    nib__text_free(&word);
}

/* Writes the options of the method, or of a text. */
static void put_method(const nib_advice *v, const nib_advised *c, nib_text *out)
{
    const char *calibrate, *imatrix;
    nib__methods_inputs(v->methods, c, &calibrate, &imatrix);
    if (c->method != NULL)
        nib__text_format(out, " --method %s", c->method);
    if (calibrate != NULL) {
        nib__text_str(out, " --calibrate ");
        put_word(out, calibrate);
    }
    if (imatrix != NULL) {
        nib__text_str(out, " --imatrix ");
        put_word(out, imatrix);
    }
}

/* Writes the command that makes the taken model; nothing for the model as stored. */
static void put_command(const nib_advice *v, nib_text *out)
{
    const nib_advised *c = &v->items[v->taken];
    if (!c->recipe)
        return;
    nib__text_str(out, "nibble quantize ");
    put_word(out, model_name(v));
    nib__text_str(out, " ");
    put_output(v, c, out);
    nib__text_str(out, " --recipe ");
    put_word(out, c->recipe);
    if (c->is_made)
        put_method(v, c, out);
}

/* Writes a training config that starts from the model and trains for the recipe's codes. */
static void put_training(const nib_advice *v, nib_text *out)
{
    const nib_model *m = v->model;
    nib_jsonw w;
    nib__jsonw_init(&w, out, 0);
    nib__jsonw_object(&w);
    nib__jsonw_key(&w, "model");
    nib__jsonw_object(&w);
    nib__jsonw_pair_string(&w, "hf_config", m->net.directory);
    nib__jsonw_pair_string(&w, "tokenizer_path",
                           m->tokenizer_path ? m->tokenizer_path : m->net.directory);
    nib__jsonw_object_end(&w);
    nib__jsonw_key(&w, "checkpoint");
    nib__jsonw_object(&w);
    nib__jsonw_pair_string(&w, "initial_load_path", model_name(v));
    nib__jsonw_pair_bool(&w, "last_save_in_hf", true);
    nib__jsonw_object_end(&w);
    nib__jsonw_key(&w, "quantize");
    nib__jsonw_object(&w);
    nib__jsonw_pair_string(&w, "recipe", v->items[v->train].recipe);
    nib__jsonw_pair_bool(&w, "qat", true);
    nib__jsonw_object_end(&w);
    nib__jsonw_key(&w, "optimizer");
    nib__jsonw_object(&w);
    nib__jsonw_pair_double(&w, "lr", 1e-4);
    nib__jsonw_object_end(&w);
    nib__jsonw_key(&w, "training");
    nib__jsonw_object(&w);
    nib__jsonw_pair_int(&w, "seq_len", nib__min(m->net.config.context, 512));
    nib__jsonw_pair_int(&w, "local_batch_size", 4);
    nib__jsonw_pair_int(&w, "steps", 200);
    nib__jsonw_object_end(&w);
    nib__jsonw_object_end(&w);
}

/* The training config as a word of a shell command. */
static void put_training_word(const nib_advice *v, nib_text *out)
{
    nib_text config;
    nib__text_init(&config, out->allocator);
    put_training(v, &config);
    if (config.failed)
        out->failed = true;
    else
        put_word(out, config.at);
    nib__text_free(&config);
}

/* ---- what to take ---- */

static size_t count_within(const nib_advice *v)
{
    size_t count = 0;
    for (size_t i = 0; i < v->count; i++)
        count += nib__advised_counts(&v->items[i]) &&
                 (!v->within || nib__advised_cost(v, &v->items[i]) <= v->base_cost + v->budget);
    return count;
}

static void describe_choice(const nib_advice *v, char *out, size_t size)
{
    const nib_advised *c = &v->items[v->taken];
    const size_t count = count_within(v);
    char budget[64];
    if (v->losses)
        nib__format(budget, sizeof budget, "%g nats per token", v->budget);
    else
        nib__format(budget, sizeof budget, "an error of %g %%", 100 * v->budget);
    if (v->within && count == 1)
        snprintf(out, size, "take %s: no other recipe runs as asked, fits and costs at most %s",
                 c->name, budget);
    else if (v->within)
        snprintf(out, size,
                 "take %s: %zu recipes run as asked, fit and cost at most %s; of those within "
                 "%g %% of the fastest %s, it is the most exact",
                 c->name, count, budget, 100 * NIB_EQUAL_TIMES,
                 v->options->by_prefill ? "prefill" : "decode");
    else
        snprintf(out, size,
                 "take %s: no recipe that runs as asked and fits keeps to %s; this one costs the "
                 "least",
                 c->name, budget);
}

static void describe_gain(const nib_advice *v, const nib_advised *c, char *out, size_t size)
{
    const nib_advised *base = &v->items[0];
    const double times = nib__advised_speed(v, c) / nib__advised_speed(v, base);
    char cost[64] = "", speed[96] = "", bytes[32];
    if (v->losses && !isnan(base->loss))
        nib__format(cost, sizeof cost, ", %+.4f nats per token", c->loss - base->loss);
    if (!isnan(times))
        nib__format(speed, sizeof speed, ", %.2f times as fast (%s)", times,
                    v->speeds ? "measured" : "predicted");
    nib__format(out, size, "compared with the stored model: %s, %.0f %% of its memory%s%s",
                nib__format_bytes(bytes, c->bytes), 100 * (double)c->bytes / (double)base->bytes,
                speed, cost);
}

static void render_training(const nib_advice *v, nib_text *out)
{
    const nib_advised *c = &v->items[v->train];
    char words[512], gain[256];
    describe_gain(v, c, gain, sizeof gain);
    nib__format(
        words, sizeof words,
        "rounding takes %s over the budget of %g nats per token: %s. Training for its codes "
        "recovers a part of that (docs/training.md), on a TEXT like the model's later input; "
        "tune the learning rate and steps:",
        c->name, v->budget, gain);
    nib__text_str(out, "\n");
    nib__ledger_wrap(out, "", "", WIDTH, words);
    nib__text_str(out, "  echo ");
    put_training_word(v, out);
    nib__text_str(out, " > qat.json\n  nibble train qat.json --training.dataset_path=TEXT\n");
}

static void render_taken(const nib_advice *v, nib_text *out)
{
    const nib_advised *c = &v->items[v->taken];
    char words[512];
    describe_choice(v, words, sizeof words);
    nib__text_str(out, "\n");
    nib__ledger_wrap(out, "", "", WIDTH, words);
    if (c->recipe) {
        describe_gain(v, c, words, sizeof words);
        nib__ledger_wrap(out, "", "", WIDTH, words);
        nib__text_str(out, "  ");
        put_command(v, out);
        nib__text_str(out, "\n");
    }
}

void nib__advise_render(const nib_advice *v, nib_text *out)
{
    render_device(v, out);
    render_speeds(v, out);
    render_costs(v, out);
    render_methods(v, out);
    render_table(v, out);
    if (v->train >= 0)
        render_training(v, out);
    if (v->taken >= 0)
        render_taken(v, out);
}

/* ---- JSON ---- */

/* Bytes of a model, which are not known of a row that cannot be made. */
static void pair_bytes(nib_jsonw *w, const char *key, uint64_t bytes)
{
    nib__jsonw_key(w, key);
    if (bytes != 0)
        nib__jsonw_int(w, (int64_t)bytes);
    else
        nib__jsonw_null(w);
}

/* What came of making it. */
static void write_made(const nib_advised *c, nib_jsonw *w)
{
    nib__jsonw_pair_bool(w, "applicable", !c->inapplicable);
    nib__jsonw_pair_bool(w, "keeps_rounding", c->keeps_rounding);
    nib__jsonw_pair_bool(w, "speed_of_rounding", c->same_speed);
    nib__jsonw_pair_int(w, "disk_bytes", (int64_t)c->disk);
    nib__jsonw_pair_double(w, "predicted_quantize_seconds", c->predicted_s);
    nib__jsonw_pair_double(w, "quantize_seconds", c->made_s);
    nib__jsonw_key(w, "notes");
    nib__jsonw_array(w);
    for (size_t i = 0; i < c->note_count; i++)
        nib__jsonw_string(w, c->notes[i]);
    nib__jsonw_array_end(w);
}

static void write_recipe(const nib_advice *v, const nib_advised *c, nib_jsonw *w)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "name", c->name);
    nib__jsonw_pair_string(w, "recipe", c->recipe);
    nib__jsonw_pair_string(w, "method", c->method);
    pair_bytes(w, "weight_bytes", c->weight_bytes);
    pair_bytes(w, "bytes", c->bytes);
    nib__jsonw_pair_int(w, "bytes_over", (int64_t)c->over);
    nib__jsonw_pair_double(w, "predicted_decode_tokens_per_s", c->predicted_decode);
    nib__jsonw_pair_double(w, "predicted_prefill_tokens_per_s", c->predicted_prefill);
    nib__jsonw_pair_double(w, "decode_tokens_per_s", c->decode);
    nib__jsonw_pair_double(w, "prefill_tokens_per_s", c->prefill);
    nib__jsonw_pair_double(w, "loss", c->loss);
    nib__jsonw_pair_double(w, "estimated_error", c->error);
    nib__jsonw_pair_string(w, "problem", c->problem);
    nib__jsonw_pair_bool(w, "counts", nib__advised_counts(c));
    nib__jsonw_pair_bool(w, "frontier", nib__advised_counts(c) && c->beaten_by == NIB_UNBEATEN);
    nib__jsonw_pair_string(w, "behind",
                           c->beaten_by == NIB_UNBEATEN ? NULL : v->items[c->beaten_by].name);
    if (c->is_made)
        write_made(c, w);
    nib__jsonw_object_end(w);
}

/* The names of a frontier. */
static void write_frontier(const nib_advice *v, bool with_methods, nib_jsonw *w)
{
    nib__jsonw_key(w, with_methods ? "frontier" : "frontier_without_methods");
    nib__jsonw_array(w);
    for (size_t i = 0; i < v->count; i++)
        if (nib__advised_leads(&v->items[i], with_methods))
            nib__jsonw_string(w, v->items[i].name);
    nib__jsonw_array_end(w);
}

static void write_methods(const nib_methods *m, nib_jsonw *w)
{
    nib__jsonw_key(w, "methods");
    nib__jsonw_array(w);
    for (size_t i = 0; m != NULL && i < m->count; i++)
        nib__jsonw_string(w, nib__ptq_names[m->items[i]]);
    nib__jsonw_array_end(w);
    nib__jsonw_pair_string(w, "calibrate", m != NULL ? m->asked.calibrate : NULL);
    nib__jsonw_pair_string(w, "imatrix", m != NULL ? m->asked.imatrix : NULL);
}

static void pair_text(nib_jsonw *w, const char *key, const nib_advice *v, bool has_text,
                      void (*put)(const nib_advice *, nib_text *))
{
    nib_text text;
    nib__text_init(&text, w->text->allocator);
    if (has_text)
        put(v, &text);
    nib__jsonw_pair_string(w, key, text.size > 0 && !text.failed ? text.at : NULL);
    w->text->failed |= text.failed;
    nib__text_free(&text);
}

static void put_why(const nib_advice *v, nib_text *out)
{
    char words[512];
    describe_choice(v, words, sizeof words);
    nib__text_str(out, words);
}

void nib__advise_json(const nib_advice *v, nib_text *out)
{
    const nib_machine *m = &v->base->machine;
    nib_jsonw w;
    nib__jsonw_report(&w, out);
    nib__jsonw_pair_string(&w, "model", model_name(v));
    nib__jsonw_pair_string(&w, "device", m->name);
    nib__jsonw_pair_bool(&w, "here", m->here);
    nib__jsonw_pair_string(&w, "rates", nib__machine_rates(m));
    nib__jsonw_pair_int(&w, "context", v->base->context);
    nib__jsonw_key(&w, "memory");
    if (v->limit != 0)
        nib__jsonw_int(&w, (int64_t)v->limit);
    else
        nib__jsonw_null(&w);
    nib__jsonw_pair_string(&w, "text", v->options->text_path);
    nib__jsonw_pair_double(&w, v->losses ? "loss_budget" : "error_budget", v->budget);
    nib__jsonw_pair_string(&w, "speed", v->options->by_prefill ? "prefill" : "decode");
    nib__jsonw_pair_int(&w, "prompt_tokens", v->prompt);
    write_methods(v->methods, &w);
    nib__jsonw_key(&w, "recipes");
    nib__jsonw_array(&w);
    for (size_t i = 0; i < v->count; i++)
        write_recipe(v, &v->items[i], &w);
    nib__jsonw_array_end(&w);
    write_frontier(v, true, &w);
    write_frontier(v, false, &w);
    nib__jsonw_pair_string(&w, "taken", v->taken >= 0 ? v->items[v->taken].name : NULL);
    nib__jsonw_pair_bool(&w, "within_budget", v->within);
    pair_text(&w, "why", v, v->taken >= 0, put_why);
    pair_text(&w, "command", v, v->taken >= 0, put_command);
    nib__jsonw_pair_string(&w, "train_for", v->train >= 0 ? v->items[v->train].name : NULL);
    pair_text(&w, "training_config", v, v->train >= 0, put_training);
    nib__ledger_settings_json(&v->said, &w);
    nib__jsonw_report_end(&w);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a training config and the options that override it, and writes its settings for checkpoints
 * and metrics. An unknown key is an error with similar names, because ignoring a setting silently
 * would be worse.
 */
#include "train_config.h"

#include "file.h"
#include "train_values.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { NAME_MAX_SIZE = 128, SECTION_DEPTH = 4 };

static bool is_section(const nib_json *json)
{
    for (size_t i = 0; i < nib__train_section_count; i++)
        if (nib__json_is(json, nib__train_sections[i]))
            return true;
    return false;
}

bool nib__train_config_is(const char *text, size_t size)
{
    bool found = false;
    nib_json json;
    nib__json_init(&json, "", text, size, NULL);
    if (!nib__json_expect(&json, NIB_JSON_OBJECT))
        return false;
    while (nib__json_next(&json) == NIB_JSON_KEY) {
        const bool section = is_section(&json), model = nib__json_is(&json, "model");
        if (nib__json_is(&json, "model_type"))
            return false;
        nib_json value = json;
        const bool object = nib__json_next(&value) == NIB_JSON_OBJECT;
        if (model && object)
            return true;
        found |= section && object;
        if (!nib__json_skip(&json))
            break; /* not JSON from here on; if it was a config so far, the parser reports where */
    }
    return found;
}

/* ---- unknown names ---- */

/* Keys of the same section with similar names. Only names within the section are compared, because
 * a long section would make all its keys similar. */
static size_t find_near_in_section(const char **names, const char *name, nib_text *scratch)
{
    const char *dot = strrchr(name, '.');
    const size_t section = dot ? (size_t)(dot - name) + 1 : 0;
    size_t count = 0;
    for (size_t i = 0; section > 0 && i < nib__train_key_count; i++) {
        const char *key = nib__train_keys[i].name, *own = key + section;
        if (strncmp(key, name, section) != 0)
            continue;
        nib__text_clear(scratch);
        nib__near_names(scratch, name + section, &own, 1);
        if (scratch->size > 0)
            names[count++] = key;
    }
    nib__text_clear(scratch);
    return count;
}

/* Candidate keys of other sections. If the section is right, only a key with the same name
 * qualifies: checkpoint.dir does not mean model.dim. */
static size_t list_other_sections(const char **names, const char *name)
{
    char section[NAME_MAX_SIZE];
    const char *dot = strrchr(name, '.');
    snprintf(section, sizeof section, "%.*s", dot ? (int)(dot - name) : 0, name);
    const bool known = nib__train_section_find(section) != SIZE_MAX;
    size_t count = 0;
    for (size_t i = 0; i < nib__train_key_count; i++) {
        const char *key = nib__train_keys[i].name;
        if (!known || strcmp(strrchr(key, '.'), dot) == 0)
            names[count++] = key;
    }
    return count;
}

/* Formats "; did you mean NAMES" for a key or a section. */
static void format_near(nib_text *near, const char *name, bool section)
{
    const char *names[NIB_TRAIN_KEYS_MAX];
    size_t count = section ? 0 : find_near_in_section(names, name, near);
    if (count == 0 && !section)
        count = list_other_sections(names, name);
    for (size_t i = 0; section && i < nib__train_section_count; i++)
        names[count++] = nib__train_sections[i];
    nib__text_str(near, "; did you mean ");
    const size_t before = near->size;
    nib__near_names(near, name, names, count);
    if (near->size > before)
        return;
    nib__text_clear(near);
    nib__text_str(near, "; `nibble train --keys` lists them");
}

static const char *text_of(const nib_text *text) { return text->size > 0 ? text->at : ""; }

static void fail_unknown(nib_train_reader *r, nib_json *json, const char *name, bool section)
{
    char shown[NIB_SHOWN];
    nib_text near;
    nib__text_init(&near, r->source->arena->allocator);
    format_near(&near, name, section);
    nib__json_fail(json, "\"%s\" is not a %s of a training config%s",
                   nib__escape_string(shown, name), section ? "section" : "key", text_of(&near));
    nib__text_free(&near);
}

static nib_status fail_unknown_option(const nib_train_reader *r, const char *name, nib_err *err)
{
    char shown[NIB_SHOWN];
    nib_text near;
    nib__text_init(&near, r->source->arena->allocator);
    format_near(&near, name, false);
    const nib_status status =
        nib__fail(err, NIB_USAGE, "--%s: there is no such key of a training config%s",
                  nib__escape_string(shown, name), text_of(&near));
    nib__text_free(&near);
    return status;
}

/* ---- the file ---- */

/* Whether the section holds another tool's config, torchao's or torchchat's, instead of Nibble's
 * own keys. */
static bool is_other_tools_config(nib_json json)
{
    static const char *const first[] = {"_type", "_data", "quant_type", "quant_method"};
    if (nib__json_next(&json) != NIB_JSON_OBJECT || nib__json_next(&json) != NIB_JSON_KEY)
        return false;
    for (size_t i = 0; i < COUNT(first); i++)
        if (nib__json_is(&json, first[i]))
            return true;
    return memchr(json.token, ':', json.token_size) != NULL;
}

/* The section being read. A key with dots enters several sections at once. */
typedef struct section {
    char path[NAME_MAX_SIZE];
    size_t above[SECTION_DEPTH]; /* [depth] lengths of the enclosing sections' paths */
    int depth;
} section;

/* Paths in the table are short and have at most two dots. */
static bool enter_section(section *in, nib_json *json, size_t index)
{
    in->above[in->depth++] = strlen(in->path);
    memcpy(in->path, nib__train_sections[index], strlen(nib__train_sections[index]) + 1);
    return nib__json_expect(json, NIB_JSON_OBJECT);
}

/* Reads the value of the key just read, or enters the section that it names. */
static bool read_key(nib_train_reader *r, nib_json *json, section *in)
{
    char name[2 * NAME_MAX_SIZE];
    size_t size;
    const char *key = nib__json_string(json, r->source->arena, &size);
    if (!key)
        return false;
    const bool whole = size < 100 && strlen(key) == size; /* without a NUL */
    snprintf(name, sizeof name, "%s%s%s", in->path, *in->path ? "." : "", whole ? key : "?");
    const size_t index = nib__train_section_find(name);
    if (index != SIZE_MAX && r->entered[index]) {
        nib__json_fail(json, "section \"%s\" is given twice", name);
        return false;
    }
    if (index != SIZE_MAX)
        r->entered[index] = true;
    if (strcmp(name, "quantize") == 0 && is_other_tools_config(*json)) {
        r->draft.quantize.whole = nib__json_raw(json, r->source->arena);
        return r->draft.quantize.whole != NULL;
    }
    if (index != SIZE_MAX)
        return enter_section(in, json, index);
    const size_t row = nib__train_key_find(name);
    if (row != SIZE_MAX)
        return nib__train_value_json(r, row, json);
    nib_json value = *json;
    fail_unknown(r, json, name, nib__json_next(&value) == NIB_JSON_OBJECT);
    return false;
}

static bool read_sections(nib_train_reader *r, nib_json *json)
{
    section in = {.depth = 0};
    if (!nib__json_expect(json, NIB_JSON_OBJECT))
        return false;
    for (;;) {
        const nib_json_event event = nib__json_next(json);
        if (event == NIB_JSON_KEY && read_key(r, json, &in))
            continue;
        if (event != NIB_JSON_OBJECT_END)
            return false;
        if (in.depth == 0)
            return nib__json_next(json) == NIB_JSON_END;
        in.path[in.above[--in.depth]] = '\0';
    }
}

/* ---- options ---- */

/* Reads "section.key=value", or "section.key" for a flag. */
static nib_status read_option(nib_train_reader *r, const char *option, nib_err *err)
{
    char name[NAME_MAX_SIZE];
    const size_t size = strcspn(option, "=");
    const char *value = option[size] == '=' ? option + size + 1 : NULL;
    if (size >= sizeof name)
        return nib__fail(err, NIB_USAGE, "--%.40s...: there is no such key of a training config",
                         option);
    memcpy(name, option, size);
    name[size] = '\0';
    const size_t row = nib__train_key_find(name);
    return row == SIZE_MAX ? fail_unknown_option(r, name, err)
                           : nib__train_value_option(r, row, value, err);
}

/* ---- checks and derived values ---- */

static nib_status check_validation(nib_train_reader *r, nib_err *err)
{
    const nib_train_draft *d = &r->draft;
    const char *name = r->source->name;
    if (d->validate && !d->out.validation)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: validation.enable is set, but validation.dataset_path names no text",
                         name);
    if (d->out.validation_steps == 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: validation.steps is 0, which measures nothing; -1 uses the whole "
                         "text; to measure nothing, unset validation.enable",
                         name);
    if ((d->validation_batch != 0 && d->validation_batch != d->out.batch) ||
        (d->validation_length != 0 && d->validation_length != d->out.sequence))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: validation uses training's micro-batches of %" PRId64 " x %" PRId64
                         " tokens; remove validation.local_batch_size and validation.seq_len",
                         name, d->out.batch, d->out.sequence);
    if (!d->validate)
        r->draft.out.validation = NULL;
    return NIB_OK;
}

/* Keeps how keys were given that are later checked against options or a checkpoint. */
static void keep_asked(nib_train_reader *r)
{
    nib_train_config *c = &r->draft.out;
    c->asked.replicas = nib__train_asked(r, "parallelism.data_parallel_replicate_degree");
    c->asked.shards = nib__train_asked(r, "parallelism.data_parallel_shard_degree");
    c->asked.dtype = nib__train_asked(r, "training.mixed_precision_param");
    c->asked.tokenizer = nib__train_asked(r, "model.tokenizer_path");
    c->asked.export_dtype = nib__train_asked(r, "checkpoint.export_dtype");
    c->asked.seed = nib__train_asked(r, "training.seed");
    c->asked.initial_load = nib__train_asked(r, "checkpoint.initial_load_path");
    c->asked.wgrad_with_hp = nib__train_asked(r, "quantize.wgrad_with_hp");
}

static nib_status finish_config(nib_train_reader *r, nib_err *err)
{
    static const nib_type exports[] = {NIB_TYPE_F32, NIB_TYPE_BF16, NIB_TYPE_F16};
    static const nib_decay decays[] = {NIB_DECAY_LINEAR, NIB_DECAY_SQRT, NIB_DECAY_COSINE};
    static const nib_ac modes[] = {NIB_AC_NONE, NIB_AC_SELECTIVE, NIB_AC_FULL};
    nib_train_draft *d = &r->draft;
    nib_train_config *c = &d->out;
    c->dtype = d->param_type == 0 ? NIB_TYPE_BF16 : NIB_TYPE_F32;
    c->export_dtype = exports[d->export_type];
    c->decay = decays[d->decay];
    c->checkpointing = modes[d->checkpointing];
    c->document_mask = d->attention == 1;
    c->global_batch = nib__max(c->global_batch, 0);
    keep_asked(r);
    if (!c->tokenizer && d->hf_config) {
        nib_path_kind kind;
        NIB_TRY(nib__path_look(&kind, d->hf_config, err));
        if (kind == NIB_PATH_DIRECTORY)
            c->tokenizer = d->hf_config;
    }
    if (c->batch > INT32_MAX / c->sequence)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: a micro-batch of %" PRId64 " x %" PRId64
                         " tokens is not below 2^31; lower training.local_batch_size or "
                         "training.seq_len",
                         r->source->name, c->batch, c->sequence);
    if (c->global_batch > (INT64_C(1) << 53) / c->sequence)
        return nib__fail(
            err, NIB_BAD_INPUT,
            "%s: a step of %" PRId64 " x %" PRId64
            " tokens is over 2^53; lower training.global_batch_size or training.seq_len",
            r->source->name, c->global_batch, c->sequence);
    if (d->metrics) {
        c->metrics = *d->metrics == '/'
                         ? d->metrics
                         : nib__path_join(r->source->arena, c->dump_folder, d->metrics);
        if (!c->metrics)
            return nib__fail_memory(err, strlen(d->metrics), "a path");
    }
    NIB_TRY(check_validation(r, err));
    NIB_TRY(nib__train_recipe(&c->recipe, r, err));
    if (c->qat && !c->recipe)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: quantize.qat needs a recipe to train for; set quantize.recipe",
                         r->source->name);
    return NIB_OK;
}

nib_train_stages nib__train_stages(const nib_train_config *c)
{
    nib_train_stages s = {.warmup = nib__min(c->warmup, c->steps)};
    const int64_t rest = c->steps - s.warmup;
    s.asked_decay =
        c->decay_ratio < 0 ? rest : (int64_t)nearbyint((double)c->steps * c->decay_ratio);
    s.decay = nib__min(rest, s.asked_decay);
    return s;
}

void nib__train_draft_defaults(nib_train_draft *out)
{
    *out = (nib_train_draft){.model = {.rope_theta = 500000, .norm_eps = 1e-5},
                             .attention = 1,
                             .checkpointing = 1,
                             .out = {.dump_folder = "outputs",
                                     .load_balance = 1e-3,
                                     .aux_loss = -1,
                                     .batch = 8,
                                     .sequence = 2048,
                                     .steps = 10,
                                     .max_norm = 1,
                                     .rate = 8e-4,
                                     .beta1 = 0.9,
                                     .beta2 = 0.95,
                                     .eps = 1e-8,
                                     .weight_decay = 0.1,
                                     .warmup = 2,
                                     .decay_ratio = 0.8,
                                     .folder = "checkpoint",
                                     .interval = 500,
                                     .keep = 10,
                                     .load_step = -1,
                                     .log_every = 1,
                                     .validation_every = 5,
                                     .validation_steps = 10,
                                     .timeout_s = 100}};
}

static nib_status read_source(nib_train_reader *r, nib_err *err)
{
    const nib_train_source *source = r->source;
    nib_json json;
    nib__json_init(&json, source->name, source->text, source->size, NULL);
    r->directory = nib__path_directory(source->arena, source->name);
    if (!r->directory)
        return nib__fail_memory(err, strlen(source->name), "a path");
    if (!read_sections(r, &json))
        return nib__json_status(&json, err);
    for (size_t i = 0; i < source->options.count; i++)
        NIB_TRY(read_option(r, source->options.items[i], err));
    return NIB_OK;
}

nib_status nib__train_config_parse(nib_train_config *out, nib_config *model,
                                   const nib_train_source *source, nib_err *err)
{
    nib_train_reader r = {.source = source};
    nib__train_draft_defaults(&r.draft);
    NIB_TRY(read_source(&r, err));
    NIB_TRY(finish_config(&r, err));
    nib__train_notes(&r);
    NIB_TRY(nib__train_model(model, &r, err));
    r.draft.out.aux_loss = model->moe.balance; /* as used, for checkpoints and metrics */
    *out = r.draft.out;
    return NIB_OK;
}

/* ---- writing ---- */

static const char *type_name(nib_type type)
{
    return type == NIB_TYPE_BF16 ? "bfloat16" : type == NIB_TYPE_F16 ? "float16" : "float32";
}

void nib__train_config_put(nib_jsonw *w, const nib_train_config *c)
{
    static const char *const checkpointing[] = {
        [NIB_AC_NONE] = "none", [NIB_AC_SELECTIVE] = "selective", [NIB_AC_FULL] = "full"};
    static const char *const decays[] = {
        [NIB_DECAY_LINEAR] = "linear", [NIB_DECAY_SQRT] = "sqrt", [NIB_DECAY_COSINE] = "cosine"};
    nib__jsonw_pair_string(w, "model.attn_mask_type", c->document_mask ? "block_causal" : "causal");
    nib__jsonw_pair_double(w, "model.load_balance_coeff", c->load_balance);
    nib__jsonw_pair_double(w, "model.router_aux_loss_coef", c->aux_loss);
    if (c->draft_weight > 0)
        nib__jsonw_pair_double(w, "model.draft_head.loss_weight", c->draft_weight);
    nib__jsonw_pair_string(w, "quantize", c->recipe);
    nib__jsonw_pair_bool(w, "quantize.wgrad_with_hp", c->wgrad_with_hp);
    nib__jsonw_pair_bool(w, "quantize.qat", c->qat);
    if (c->qat) /* training targets the codes of the exported model */
        nib__jsonw_pair_string(w, "checkpoint.export_dtype", type_name(c->export_dtype));
    nib__jsonw_pair_string(w, "training.dataset_path", c->dataset);
    nib__jsonw_pair_int(w, "training.local_batch_size", c->batch);
    nib__jsonw_pair_int(w, "training.global_batch_size", c->global_batch);
    nib__jsonw_pair_int(w, "training.seq_len", c->sequence);
    nib__jsonw_pair_int(w, "training.steps", c->steps);
    nib__jsonw_pair_double(w, "training.max_norm", c->max_norm);
    nib__jsonw_pair_int(w, "training.seed", (int64_t)c->seed);
    nib__jsonw_pair_string(w, "training.mixed_precision_param", type_name(c->dtype));
    nib__jsonw_pair_string(w, "activation_checkpoint.mode", checkpointing[c->checkpointing]);
    nib__jsonw_pair_double(w, "optimizer.lr", c->rate);
    nib__jsonw_pair_double(w, "optimizer.beta1", c->beta1);
    nib__jsonw_pair_double(w, "optimizer.beta2", c->beta2);
    nib__jsonw_pair_double(w, "optimizer.eps", c->eps);
    nib__jsonw_pair_double(w, "optimizer.weight_decay", c->weight_decay);
    nib__jsonw_pair_int(w, "lr_scheduler.warmup_steps", c->warmup);
    if (c->decay_ratio < 0)
        nib__jsonw_pair_string(w, "lr_scheduler.decay_ratio", NULL);
    else
        nib__jsonw_pair_double(w, "lr_scheduler.decay_ratio", c->decay_ratio);
    nib__jsonw_pair_string(w, "lr_scheduler.decay_type", decays[c->decay]);
    nib__jsonw_pair_double(w, "lr_scheduler.min_lr_factor", c->min_factor);
    nib__jsonw_pair_string(w, "checkpoint.initial_load_path", c->initial_load);
}

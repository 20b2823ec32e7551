/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the files of a tokenizer and of text generation that transformers reads, from the keys of a
 * GGUF.
 */
#include "hf_files.h"

#include "config_gguf.h"
#include "gguf_vocab.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct maker {
    nib_quantize_job *job;
    const nib_model *model;
    const nib_gguf *gguf;
    const nib_tokenizer *tokenizer; /* NULL: none that is read */
    nib_arena *arena;
    nib_ledger *ledger;
    nib_err *err;
    size_t count; /* of files */
} maker;

/* Keeps a copy of the text, which it frees. */
static nib_status add_file(maker *m, const char *name, nib_text *text)
{
    struct nib_beside *file = &m->job->beside[m->count];
    *file = (struct nib_beside){.size = text->size};
    if (!text->failed)
        file->text = nib__arena_copy(m->arena, text->at, text->size);
    nib__text_free(text);
    if (file->text == NULL)
        return nib__fail_memory(m->err, file->size, name);
    file->name = name;
    m->count++;
    return NIB_OK;
}

/* ---- the tokenizer ---- */

/* The vocabulary stays as it is, for Nibble alone. */
static nib_status keep_keys(maker *m, const char *why)
{
    nib_text text;
    nib__ledger_add_setting(m->ledger,
                            &(nib_ledger_setting){.code = "tokenizer",
                                                  .name = "tokenizer.json",
                                                  .asked = "tokenizer.json",
                                                  .done = "tokenizer.gguf",
                                                  .by = NIB_BY_CHECKPOINT,
                                                  .relation = NIB_SETTING_OTHER},
                            "the vocabulary stays in tokenizer.gguf, which only nibble reads: %s",
                            why);
    nib__text_init(&text, m->arena->allocator);
    nib__gguf_keys(m->gguf, &text);
    return add_file(m, "tokenizer.gguf", &text);
}

static void note_losses(const maker *m, const nib_json_losses *losses)
{
    if (losses->misspelled > 0)
        nib__ledger_add_note(
            m->ledger, "files",
            "tokenizer.json decodes %zu added tokens to other bytes than the GGUF: "
            "its decoder takes their letters for bytes",
            losses->misspelled);
}

static nib_status put_json(maker *m)
{
    char why[80];
    nib_text text;
    nib_json_losses losses;
    nib__text_init(&text, m->arena->allocator);
    const nib_status status = nib__tokenizer_write(&text, m->tokenizer, &losses, m->err);
    if (status == NIB_OK && losses.twice < 0) {
        note_losses(m, &losses);
        return add_file(m, "tokenizer.json", &text);
    }
    nib__text_free(&text);
    if (status != NIB_OK)
        return status;
    snprintf(why, sizeof why, "its token %" PRId64 " has the text of an earlier one", losses.twice);
    return keep_keys(m, why);
}

static void put_token(nib_jsonw *w, const maker *m, const char *key, int64_t id)
{
    size_t size;
    const char *text = id < 0 ? NULL : nib__tokenizer_token(m->tokenizer, (int32_t)id, &size);
    if (text == NULL)
        return;
    nib__jsonw_key(w, key);
    nib__jsonw_string_n(w, text, size);
}

/* The id under a key, -1 without one. */
static nib_status read_id(const maker *m, const char *key, int64_t *id)
{
    bool found;
    *id = -1;
    NIB_TRY(nib__gguf_int(id, &found, m->gguf, key, m->err));
    if (*id >= m->model->net.config.vocab)
        *id = -1;
    return NIB_OK;
}

static nib_status put_tokenizer_config(maker *m, int64_t pad)
{
    nib_text text;
    nib_jsonw w;
    nib__text_init(&text, m->arena->allocator);
    nib__jsonw_init(&w, &text, 2);
    nib__jsonw_object(&w);
    put_token(&w, m, "bos_token", nib__tokenizer_bos(m->tokenizer));
    nib__jsonw_pair_bool(&w, "clean_up_tokenization_spaces", false);
    put_token(&w, m, "eos_token", nib__tokenizer_eos(m->tokenizer));
    nib__jsonw_pair_int(&w, "model_max_length", m->model->net.config.context);
    put_token(&w, m, "pad_token", pad);
    nib__jsonw_pair_string(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    put_token(&w, m, "unk_token", nib__tokenizer_unk(m->tokenizer));
    nib__jsonw_object_end(&w);
    nib__text_str(&text, "\n");
    return add_file(m, "tokenizer_config.json", &text);
}

static nib_status put_template(maker *m)
{
    static const char more[] = "tokenizer.chat_template.";
    const char *template;
    size_t size;
    nib_text text;
    for (size_t i = 0; i < m->gguf->count; i++)
        if (strncmp(m->gguf->values[i]->key, more, sizeof more - 1) == 0)
            nib__ledger_add_note(m->ledger, "files", "the chat template %s of the GGUF is left out",
                                 m->gguf->values[i]->key + sizeof more - 1);
    NIB_TRY(nib__gguf_chat_template(&template, &size, m->gguf, m->err));
    if (template == NULL)
        return NIB_OK;
    nib__text_init(&text, m->arena->allocator);
    nib__text_put(&text, template, size);
    return add_file(m, "chat_template.jinja", &text);
}

/* ---- text generation ---- */

static void put_rate(nib_jsonw *w, const char *key, double value)
{
    if (value >= 0)
        nib__jsonw_pair_float(w, key, value);
}

static nib_status put_generation(maker *m, int64_t pad)
{
    const nib_config *c = &m->model->net.config;
    nib_generation g;
    nib_text text;
    nib_jsonw w;
    NIB_TRY(nib__generation_gguf(&g, m->gguf, NULL, m->err));
    const bool samples = g.temperature > 0 || g.top_p >= 0 || g.min_p >= 0 || g.top_k >= 0;
    if (c->bos < 0 && c->eos_count == 0 && !samples)
        return NIB_OK;
    nib__text_init(&text, m->arena->allocator);
    nib__jsonw_init(&w, &text, 2);
    nib__jsonw_object(&w);
    if (c->bos >= 0)
        nib__jsonw_pair_int(&w, "bos_token_id", c->bos);
    if (samples)
        nib__jsonw_pair_bool(&w, "do_sample", g.temperature != 0);
    if (c->eos_count > 0) {
        nib__jsonw_key(&w, "eos_token_id");
        nib__jsonw_array(&w);
        for (int i = 0; i < c->eos_count; i++)
            nib__jsonw_int(&w, c->eos[i]);
        nib__jsonw_array_end(&w);
    }
    if (pad >= 0)
        nib__jsonw_pair_int(&w, "pad_token_id", pad);
    put_rate(&w, "temperature", g.temperature > 0 ? g.temperature : -1);
    if (g.top_k >= 0)
        nib__jsonw_pair_int(&w, "top_k", g.top_k);
    put_rate(&w, "top_p", g.top_p);
    put_rate(&w, "min_p", g.min_p);
    nib__jsonw_object_end(&w);
    nib__text_str(&text, "\n");
    return add_file(m, "generation_config.json", &text);
}

static nib_status put_all(maker *m)
{
    int64_t pad;
    NIB_TRY(read_id(m, "tokenizer.ggml.padding_token_id", &pad));
    if (m->tokenizer != NULL)
        NIB_TRY(put_json(m));
    if (m->tokenizer != NULL && strcmp(m->job->beside[0].name, "tokenizer.json") == 0)
        NIB_TRY(put_tokenizer_config(m, pad));
    NIB_TRY(put_template(m));
    return put_generation(m, pad);
}

nib_status nib__hf_files(nib_quantize_job *job, const nib_model *model, nib_arena *arena,
                         nib_ledger *ledger, nib_err *err)
{
    maker m = {.job = job,
               .model = model,
               .gguf = nib__checkpoint_gguf(model->net.checkpoint),
               .arena = arena,
               .ledger = ledger,
               .err = err};
    nib_tokenizer *opened = NULL;
    nib_err why;
    nib_status status = NIB_OK;
    if (nib__gguf_find(m.gguf, "tokenizer.ggml.model") == NULL) {
        nib__ledger_add_note(ledger, "files",
                             "the GGUF has no vocabulary, so no tokenizer is written");
    } else {
        status = nib__gguf_tokenizer(&opened, m.gguf, arena->allocator, &why);
        if (status == NIB_NO_MEMORY)
            return nib__fail(err, status, "%s", why.text);
        if (status != NIB_OK)
            status = keep_keys(&m, why.text);
    }
    m.tokenizer = opened;
    if (status == NIB_OK)
        status = put_all(&m);
    nib__tokenizer_close(opened);
    return status;
}

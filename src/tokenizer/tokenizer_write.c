/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes a tokenizer that was opened from the vocabulary of a GGUF as a tokenizer.json of Hugging
 * Face's tokenizers: the components are those that tokenizer_gguf.c makes.
 */
#include "tokenizer_parts.h"

static void put_text(nib_jsonw *w, const char *key, const char *text, size_t size)
{
    nib__jsonw_key(w, key);
    nib__jsonw_string_n(w, text, size);
}

static void put_id(nib_jsonw *w, const nib_tokenizer *t, int64_t id)
{
    size_t size;
    const char *text = nib__vocab_text(&t->vocab, id, &size);
    nib__jsonw_string_n(w, text, size);
}

static void put_null(nib_jsonw *w, const char *key)
{
    nib__jsonw_key(w, key);
    nib__jsonw_null(w);
}

static void begin_type(nib_jsonw *w, const char *type)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "type", type);
}

/* One component stands alone, several are a Sequence. */
static void begin_parts(nib_jsonw *w, const char *key, size_t count, const char *list)
{
    nib__jsonw_key(w, key);
    if (count == 0)
        nib__jsonw_null(w);
    if (count < 2)
        return;
    begin_type(w, "Sequence");
    nib__jsonw_key(w, list);
    nib__jsonw_array(w);
}

static void end_parts(nib_jsonw *w, size_t count)
{
    if (count < 2)
        return;
    nib__jsonw_array_end(w);
    nib__jsonw_object_end(w);
}

static void put_byte_level(nib_jsonw *w, bool decodes)
{
    begin_type(w, "ByteLevel");
    nib__jsonw_pair_bool(w, "add_prefix_space", decodes);
    nib__jsonw_pair_bool(w, "trim_offsets", true);
    nib__jsonw_pair_bool(w, "use_regex", decodes);
    nib__jsonw_object_end(w);
}

static void put_replace(nib_jsonw *w, const nib_finder *from, const char *content, size_t size)
{
    begin_type(w, "Replace");
    nib__jsonw_key(w, "pattern");
    nib__jsonw_object(w);
    put_text(w, "String", from->string, from->size);
    nib__jsonw_object_end(w);
    put_text(w, "content", content, size);
    nib__jsonw_object_end(w);
}

static void put_normalizers(nib_jsonw *w, const nib_tokenizer *t)
{
    begin_parts(w, "normalizer", t->normalizer_count, "normalizers");
    for (size_t i = 0; i < t->normalizer_count; i++) {
        const nib_normalizer *n = &t->normalizers[i];
        if (n->kind == NIB_NORMAL_REPLACE) {
            put_replace(w, &n->finder, n->content, n->content_size);
            continue;
        }
        begin_type(w, n->kind == NIB_NORMAL_NFC ? "NFC" : "Prepend");
        if (n->kind == NIB_NORMAL_PREPEND)
            put_text(w, "prepend", n->content, n->content_size);
        nib__jsonw_object_end(w);
    }
    end_parts(w, t->normalizer_count);
}

static void put_stages(nib_jsonw *w, const nib_tokenizer *t)
{
    begin_parts(w, "pre_tokenizer", t->stage_count, "pretokenizers");
    for (size_t i = 0; i < t->stage_count; i++) {
        if (t->stages[i].kind == NIB_STAGE_BYTES) {
            put_byte_level(w, false);
            continue;
        }
        begin_type(w, "Split");
        nib__jsonw_key(w, "pattern");
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "Regex", t->stages[i].finder.regex.pattern);
        nib__jsonw_object_end(w);
        nib__jsonw_pair_string(w, "behavior", "Isolated");
        nib__jsonw_pair_bool(w, "invert", false);
        nib__jsonw_object_end(w);
    }
    end_parts(w, t->stage_count);
}

static void put_decoders(nib_jsonw *w, const nib_tokenizer *t)
{
    begin_parts(w, "decoder", t->decoder_count, "decoders");
    for (size_t i = 0; i < t->decoder_count; i++) {
        const nib_decoder *d = &t->decoders[i];
        if (d->kind == NIB_DECODE_BYTES) {
            put_byte_level(w, true);
            continue;
        }
        if (d->kind == NIB_DECODE_REPLACE) {
            put_replace(w, &d->finder, d->content, d->content_size);
            continue;
        }
        begin_type(w, d->kind == NIB_DECODE_FALLBACK ? "ByteFallback"
                      : d->kind == NIB_DECODE_FUSE   ? "Fuse"
                                                     : "Strip");
        if (d->kind == NIB_DECODE_STRIP) {
            put_text(w, "content", d->content, d->content_size);
            nib__jsonw_pair_int(w, "start", (int64_t)d->start);
            nib__jsonw_pair_int(w, "stop", (int64_t)d->stop);
        }
        nib__jsonw_object_end(w);
    }
    end_parts(w, t->decoder_count);
}

/* ---- the post-processor ---- */

static void put_piece(nib_jsonw *w, const nib_tokenizer *t, int64_t id, const char *sequence,
                      int64_t type)
{
    nib__jsonw_object(w);
    nib__jsonw_key(w, id >= 0 ? "SpecialToken" : "Sequence");
    nib__jsonw_object(w);
    nib__jsonw_key(w, "id");
    if (id >= 0)
        put_id(w, t, id);
    else
        nib__jsonw_string(w, sequence);
    nib__jsonw_pair_int(w, "type_id", type);
    nib__jsonw_object_end(w);
    nib__jsonw_object_end(w);
}

static void put_template(nib_jsonw *w, const nib_tokenizer *t, const char *key, int64_t texts)
{
    static const char *const names[] = {"A", "B"};
    nib__jsonw_key(w, key);
    nib__jsonw_array(w);
    for (int64_t text = 0; text < texts; text++) {
        for (size_t i = 0; i < t->before_count; i++)
            put_piece(w, t, t->before[i], NULL, text);
        put_piece(w, t, -1, names[text], text);
        for (size_t i = 0; i < t->after_count; i++)
            put_piece(w, t, t->after[i], NULL, text);
    }
    nib__jsonw_array_end(w);
}

static void put_special(nib_jsonw *w, const nib_tokenizer *t, int64_t id)
{
    size_t size;
    const char *text = nib__vocab_text(&t->vocab, id, &size);
    nib__jsonw_key_n(w, text, size);
    nib__jsonw_object(w);
    put_text(w, "id", text, size);
    nib__jsonw_key(w, "ids");
    nib__jsonw_array(w);
    nib__jsonw_int(w, id);
    nib__jsonw_array_end(w);
    nib__jsonw_key(w, "tokens");
    nib__jsonw_array(w);
    nib__jsonw_string_n(w, text, size);
    nib__jsonw_array_end(w);
    nib__jsonw_object_end(w);
}

static void put_processor(nib_jsonw *w, const nib_tokenizer *t)
{
    nib__jsonw_key(w, "post_processor");
    if (t->before_count + t->after_count == 0) {
        nib__jsonw_null(w);
        return;
    }
    begin_type(w, "TemplateProcessing");
    put_template(w, t, "single", 1);
    put_template(w, t, "pair", 2);
    nib__jsonw_key(w, "special_tokens");
    nib__jsonw_object(w);
    for (size_t i = 0; i < t->before_count; i++)
        put_special(w, t, t->before[i]);
    for (size_t i = 0; i < t->after_count; i++)
        if (t->before_count == 0 || t->after[i] != t->before[0])
            put_special(w, t, t->after[i]);
    nib__jsonw_object_end(w);
    nib__jsonw_object_end(w);
}

/* ---- tokens ---- */

static bool is_added(const nib_tokenizer *t, int64_t id, const char *text, size_t size)
{
    return nib__vocab_find(&t->vocab, &t->vocab.added, text, size) == id;
}

/* Would the decoder take the characters for bytes, and are they not those bytes? */
static bool misspells(const nib_tokenizer *t, const char *text, size_t size)
{
    bool outside = false;
    for (const char *at = text; at < text + size;) {
        const uint32_t point = nib__utf8_next(&at);
        if (nib__byte_level_byte(point) < 0)
            return false;
        outside = outside || point >= 0x80;
    }
    return outside && t->decoders[0].kind == NIB_DECODE_BYTES;
}

static void put_added(nib_jsonw *w, const nib_tokenizer *t, nib_json_losses *losses)
{
    nib__jsonw_key(w, "added_tokens");
    nib__jsonw_array(w);
    for (int64_t id = 0; id < (int64_t)t->vocab.text_count; id++) {
        size_t size;
        const char *text = nib__vocab_text(&t->vocab, id, &size);
        if (text == NULL || !is_added(t, id, text, size))
            continue;
        losses->misspelled += misspells(t, text, size);
        nib__jsonw_object(w);
        nib__jsonw_pair_int(w, "id", id);
        put_text(w, "content", text, size);
        nib__jsonw_pair_bool(w, "single_word", false);
        nib__jsonw_pair_bool(w, "lstrip", false);
        nib__jsonw_pair_bool(w, "rstrip", false);
        nib__jsonw_pair_bool(w, "normalized", false);
        nib__jsonw_pair_bool(w, "special", nib__vocab_special(&t->vocab, id));
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
}

static void put_vocabulary(nib_jsonw *w, const nib_tokenizer *t, nib_json_losses *losses)
{
    nib__jsonw_key(w, "vocab");
    nib__jsonw_object(w);
    for (int64_t id = 0; id < (int64_t)t->vocab.text_count; id++) {
        size_t size;
        const char *text = nib__vocab_text(&t->vocab, id, &size);
        if (text == NULL || size == 0)
            continue;
        if (nib__vocab_find(&t->vocab, &t->vocab.model, text, size) != id)
            losses->twice = id;
        nib__jsonw_key_n(w, text, size);
        nib__jsonw_int(w, id);
    }
    nib__jsonw_object_end(w);
}

static void put_merges(nib_jsonw *w, const nib_tokenizer *t, const nib_merge *merges, size_t count)
{
    nib__jsonw_key(w, "merges");
    nib__jsonw_array(w);
    for (size_t i = 0; i < count; i++) {
        nib__jsonw_array(w);
        put_id(w, t, merges[i].left);
        put_id(w, t, merges[i].right);
        nib__jsonw_array_end(w);
    }
    nib__jsonw_array_end(w);
}

nib_status nib__tokenizer_write(nib_text *out, const nib_tokenizer *t, nib_json_losses *losses,
                                nib_err *err)
{
    nib_merge *merges;
    size_t count;
    nib_jsonw w;
    nib_arena arena;
    *losses = (nib_json_losses){.twice = -1};
    nib__arena_init(&arena, &t->allocator, 0);
    nib_status status = nib__bpe_list(&merges, &count, &t->bpe, &arena, err);
    nib__jsonw_init(&w, out, 0);
    nib__jsonw_object(&w);
    nib__jsonw_pair_string(&w, "version", "1.0");
    put_null(&w, "truncation");
    put_null(&w, "padding");
    put_added(&w, t, losses);
    put_normalizers(&w, t);
    put_stages(&w, t);
    put_processor(&w, t);
    put_decoders(&w, t);
    nib__jsonw_key(&w, "model");
    begin_type(&w, "BPE");
    put_null(&w, "dropout");
    if (t->bpe.unk < 0) {
        put_null(&w, "unk_token");
    } else {
        nib__jsonw_key(&w, "unk_token");
        put_id(&w, t, t->bpe.unk);
    }
    put_null(&w, "continuing_subword_prefix");
    put_null(&w, "end_of_word_suffix");
    nib__jsonw_pair_bool(&w, "fuse_unk", t->bpe.fuse_unk);
    nib__jsonw_pair_bool(&w, "byte_fallback", t->bpe.byte_fallback);
    nib__jsonw_pair_bool(&w, "ignore_merges", t->bpe.ignore_merges);
    put_vocabulary(&w, t, losses);
    put_merges(&w, t, merges, count);
    nib__jsonw_object_end(&w);
    nib__jsonw_object_end(&w);
    nib__text_str(out, "\n");
    nib__arena_free(&arena);
    return status == NIB_OK && out->failed ? nib__fail_memory(err, out->size, "tokenizer.json")
                                           : status;
}

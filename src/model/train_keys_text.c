/* SPDX-License-Identifier: Apache-2.0
 *
 * The keys of a training config as a table: what each may be, what it is when it is not given, and
 * what it does, or why it changes nothing.
 */
#include "train_values.h"

#include <stdio.h>

static bool idles(const nib_train_key *k) { return k->at == NIB_KEY_NOWHERE && k->least < 0; }

static const char *type_text(const nib_train_key *k)
{
    switch (k->type) {
    case NIB_KEY_FLAG: return "true or false";
    case NIB_KEY_WHOLE: return "whole number";
    case NIB_KEY_REAL: return k->words ? "number or null" : "number";
    case NIB_KEY_WORD: return "word";
    case NIB_KEY_TEXT: return "text";
    case NIB_KEY_READ:
    case NIB_KEY_WRITE: return "path";
    case NIB_KEY_LIST: return "list";
    case NIB_KEY_JSON: return "JSON";
    }
    return "";
}

/* Whole ones with all their digits: 2^53 is a float, too, and would be short of some. */
static void put_limit(nib_text *out, const nib_train_key *k, double limit)
{
    if (k->type == NIB_KEY_WHOLE)
        nib__text_format(out, "%lld", (long long)limit);
    else
        nib__text_double(out, limit);
}

/* "least to most", or the words; empty: no limit. */
static void put_limits(nib_text *out, const nib_train_key *k)
{
    if (k->type == NIB_KEY_WORD) {
        for (const char *w = k->words; *w; w++)
            nib__text_format(out, *w == '|' ? ", " : "%c", *w);
    } else if (k->type == NIB_KEY_WHOLE || k->type == NIB_KEY_REAL) {
        if (idles(k))
            return;
        put_limit(out, k, k->least);
        if (k->most > k->least) {
            nib__text_str(out, " to ");
            put_limit(out, k, k->most);
        }
    }
}

/* What a config has that does not give the key; empty: nothing. */
static void put_default(nib_text *out, const nib_train_key *k, const nib_train_draft *defaults)
{
    const char *at = (const char *)defaults + k->at;
    int64_t whole;
    double real;
    bool flag;
    int word;
    const char *text;
    if (k->at == NIB_KEY_NOWHERE)
        return;
    if (k->type == NIB_KEY_FLAG) {
        memcpy(&flag, at, sizeof flag);
        nib__text_str(out, flag ? "true" : "false");
    } else if (k->type == NIB_KEY_WHOLE) {
        memcpy(&whole, at, sizeof whole);
        if ((double)whole >= k->least) /* 0 of a size: from the flavor */
            nib__text_format(out, "%lld", (long long)whole);
    } else if (k->type == NIB_KEY_REAL) {
        memcpy(&real, at, sizeof real);
        nib__text_double(out, real);
    } else if (k->type == NIB_KEY_WORD) {
        memcpy(&word, at, sizeof word);
        const char *w = k->words;
        for (; word > 0; word--)
            w += strcspn(w, "|") + 1;
        nib__text_put(out, w, strcspn(w, "|"));
    } else if (k->type != NIB_KEY_LIST) {
        memcpy(&text, at, sizeof text);
        nib__text_str(out, text ? text : "");
    }
}

/* Another name says so; else what it does. */
static void put_meaning(nib_text *out, size_t row)
{
    const nib_train_key *k = &nib__train_keys[row];
    size_t same = row;
    if (k->means) {
        nib__text_str(out, k->means);
    } else if (k->at != NIB_KEY_NOWHERE) {
        for (same = 0; nib__train_keys[same].at != k->at; same++)
            continue;
        nib__text_format(out, "the same as %s", nib__train_keys[same].name);
    } else if (idles(k)) {
        nib__text_format(out, "changes nothing%s%s", k->instead ? ": " : "",
                         k->instead ? k->instead : "");
    } else {
        nib__text_format(out, "%s: %s",
                         k->type == NIB_KEY_FLAG || k->type == NIB_KEY_LIST ||
                                 k->type == NIB_KEY_TEXT
                             ? "not built"
                             : "nothing else is built",
                         k->instead);
    }
}

/* The columns of one row. */
typedef struct columns {
    nib_text value, usual, meaning;
} columns;

static const char *text_of(const nib_text *text) { return text->size > 0 ? text->at : ""; }

static void fill(columns *c, size_t row, const nib_train_draft *defaults)
{
    const nib_train_key *k = &nib__train_keys[row];
    nib__text_clear(&c->value);
    nib__text_clear(&c->usual);
    nib__text_clear(&c->meaning);
    put_limits(&c->value, k);
    if (c->value.size == 0)
        nib__text_str(&c->value, type_text(k));
    put_default(&c->usual, k, defaults);
    put_meaning(&c->meaning, row);
}

static void render_json(nib_text *out, columns *c, const nib_train_draft *defaults)
{
    nib_jsonw w;
    nib__jsonw_init(&w, out, 2);
    nib__jsonw_object(&w);
    nib__jsonw_pair_int(&w, "schema", 1);
    nib__jsonw_key(&w, "keys");
    nib__jsonw_array(&w);
    for (size_t i = 0; i < nib__train_key_count; i++) {
        fill(c, i, defaults);
        nib__jsonw_object(&w);
        nib__jsonw_pair_string(&w, "key", nib__train_keys[i].name);
        nib__jsonw_pair_string(&w, "type", type_text(&nib__train_keys[i]));
        nib__jsonw_pair_string(&w, "value", text_of(&c->value));
        nib__jsonw_pair_string(&w, "default", c->usual.size > 0 ? c->usual.at : NULL);
        nib__jsonw_pair_string(&w, "meaning", text_of(&c->meaning));
        nib__jsonw_object_end(&w);
    }
    nib__jsonw_array_end(&w);
    nib__jsonw_object_end(&w);
    nib__text_str(out, "\n");
}

static void render_markdown(nib_text *out, columns *c, const nib_train_draft *defaults)
{
    nib__text_str(
        out, "# Keys of a training config\n\n"
             "Printed by `nibble train --keys --markdown`; [training.md](training.md) says how "
             "they are given. Keys that change\nnothing are torchtitan's: a config that has "
             "them is taken, and the ledger says why.\n\n"
             "| key | value | default | meaning |\n|---|---|---|---|\n");
    for (size_t i = 0; i < nib__train_key_count; i++) {
        fill(c, i, defaults);
        nib__text_format(out, "| `%s` | %s | %s | %s |\n", nib__train_keys[i].name,
                         text_of(&c->value), text_of(&c->usual), text_of(&c->meaning));
    }
}

static void render_text(nib_text *out, columns *c, const nib_train_draft *defaults)
{
    for (size_t i = 0; i < nib__train_key_count; i++) {
        fill(c, i, defaults);
        nib__text_format(out, "%s: %s%s%s\n", nib__train_keys[i].name, text_of(&c->value),
                         c->usual.size > 0 ? "; default " : "", text_of(&c->usual));
        if (c->meaning.size > 0)
            nib__ledger_wrap(out, "    ", "    ", 100, c->meaning.at);
    }
}

void nib__train_keys_render(nib_form form, nib_text *out)
{
    nib_train_draft defaults;
    columns c;
    nib__train_draft_defaults(&defaults);
    nib__text_init(&c.value, out->allocator);
    nib__text_init(&c.usual, out->allocator);
    nib__text_init(&c.meaning, out->allocator);
    if (form == NIB_FORM_JSON)
        render_json(out, &c, &defaults);
    else if (form == NIB_FORM_MARKDOWN)
        render_markdown(out, &c, &defaults);
    else
        render_text(out, &c, &defaults);
    out->failed |= c.value.failed || c.usual.failed || c.meaning.failed;
    nib__text_free(&c.value);
    nib__text_free(&c.usual);
    nib__text_free(&c.meaning);
}

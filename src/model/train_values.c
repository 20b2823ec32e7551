/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads one value of a training config, from the file or the command line, and checks it against
 * its row. An error names the value and what is expected.
 */
#include "train_values.h"

#include "file.h"

#include <stdio.h>

/* A value as given. */
typedef struct raw_value {
    nib_json_event event; /* in the file; NIB_JSON_END: from the command line */
    const char *text;     /* STRING, NUMBER, or an option's; NULL: a bare flag, or another event */
    nib_train_list list;  /* ARRAY */
} raw_value;

typedef struct setter {
    nib_train_reader *reader;
    const nib_train_key *key;
    size_t row;
    const raw_value *value;
    char problem[512]; /* empty: none */
    bool out_of_memory;
} setter;

static bool is_option(const setter *s) { return s->value->event == NIB_JSON_END; }

/* Formats the value for messages. */
static const char *format_value(const setter *s, char out[NIB_SHOWN + 2])
{
    char name[NIB_SHOWN];
    const raw_value *v = s->value;
    if (v->text)
        snprintf(out, NIB_SHOWN + 2, v->event == NIB_JSON_NUMBER ? "%s" : "\"%s\"",
                 nib__escape_string(name, v->text));
    else
        snprintf(out, NIB_SHOWN + 2, "%s",
                 v->event == NIB_JSON_TRUE    ? "true"
                 : v->event == NIB_JSON_FALSE ? "false"
                 : v->event == NIB_JSON_ARRAY ? "a list"
                 : v->event == NIB_JSON_NULL  ? "null"
                 : is_option(s)               ? "nothing"
                                              : "an object");
    return out;
}

static bool reject(setter *s, const char *wanted)
{
    char value[NIB_SHOWN + 2];
    const char *why = s->key->least < 0 ? NULL : s->key->instead; /* no value has an effect */
    snprintf(s->problem, sizeof s->problem, "%s is %s; %s%s%s", s->key->name,
             format_value(s, value), wanted, why ? "; " : "", why ? why : "");
    return false;
}

static bool fail_memory(setter *s)
{
    s->out_of_memory = true;
    return false;
}

/* Parses a number in JSON's syntax. */
static bool parse_number(const char *text, int64_t *whole, double *real)
{
    nib_json json;
    nib__json_init(&json, "", text, strlen(text), NULL);
    if (nib__json_next(&json) != NIB_JSON_NUMBER)
        return false;
    const bool ok = whole ? nib__json_int64(&json, whole) : nib__json_double(&json, real);
    return ok && nib__json_next(&json) == NIB_JSON_END;
}

static const char *format_limit(char out[32], double limit, bool whole)
{
    if (whole && limit >= 0)
        return nib__format_count(out, (uint64_t)limit);
    return nib__format_double(out, limit);
}

static bool reject_number(setter *s)
{
    const nib_train_key *k = s->key;
    const bool whole = k->type == NIB_KEY_WHOLE;
    char wanted[160], least[32], most[32];
    if (k->at == NIB_KEY_NOWHERE && k->least == k->most)
        snprintf(wanted, sizeof wanted, "only %s is supported",
                 format_limit(least, k->least, whole));
    else
        snprintf(wanted, sizeof wanted, "a %s from %s to %s is expected",
                 whole ? "whole number" : "number", format_limit(least, k->least, whole),
                 format_limit(most, k->most, whole));
    return reject(s, wanted);
}

static bool set_number(setter *s, char *at)
{
    const nib_train_key *k = s->key;
    const raw_value *v = s->value;
    int64_t whole = 0;
    double real = 0;
    if (!v->text || (!is_option(s) && v->event != NIB_JSON_NUMBER))
        return reject_number(s);
    const bool is_whole = k->type == NIB_KEY_WHOLE;
    if (!parse_number(v->text, is_whole ? &whole : NULL, &real))
        return reject_number(s);
    const double value = is_whole ? (double)whole : real;
    if (!(value >= k->least && value <= k->most))
        return reject_number(s);
    if (at && is_whole)
        memcpy(at, &whole, sizeof whole);
    else if (at)
        memcpy(at, &real, sizeof real);
    return true;
}

static bool set_flag(setter *s, char *at)
{
    const raw_value *v = s->value;
    const bool option = is_option(s);
    const bool yes = option ? !v->text || strcmp(v->text, "true") == 0 || strcmp(v->text, "1") == 0
                            : v->event == NIB_JSON_TRUE;
    const bool no = option ? v->text && (strcmp(v->text, "false") == 0 || strcmp(v->text, "0") == 0)
                           : v->event == NIB_JSON_FALSE;
    if (!yes && !no)
        return reject(s, "true or false is expected");
    if (yes && s->key->most == 0) {
        snprintf(s->problem, sizeof s->problem, "%s is not supported: %s", s->key->name,
                 s->key->instead);
        return false;
    }
    if (at)
        memcpy(at, &yes, sizeof yes);
    if (!yes)
        s->reader->given[s->row] &= (uint8_t)~NIB_GIVEN_TO_DO;
    return true;
}

static bool set_word(setter *s, char *at)
{
    const char *text = s->value->event == NIB_JSON_STRING || is_option(s) ? s->value->text : NULL;
    const char *word = s->key->words;
    char wanted[160];
    for (int i = 0; text; i++) {
        const size_t size = strcspn(word, "|");
        if (strlen(text) == size && memcmp(text, word, size) == 0) {
            if (at)
                memcpy(at, &i, sizeof i);
            return true;
        }
        if (word[size] == '\0')
            break;
        word += size + 1;
    }
    const bool only = strchr(s->key->words, '|') == NULL;
    size_t used = (size_t)snprintf(wanted, sizeof wanted, "%s", only ? "only " : "");
    for (word = s->key->words; *word && used < sizeof wanted - 8; word++)
        used += (size_t)snprintf(wanted + used, sizeof wanted - used, *word == '|' ? " or " : "%c",
                                 *word);
    snprintf(wanted + used, sizeof wanted - used, " is %s",
             s->key->instead ? "supported" : "expected");
    return reject(s, wanted);
}

static bool set_text(setter *s, char *at)
{
    const raw_value *v = s->value;
    const nib_train_reader *r = s->reader;
    const char *text = v->text;
    if (!text || (!is_option(s) && v->event != NIB_JSON_STRING))
        return reject(s,
                      s->key->type == NIB_KEY_TEXT ? "a string is expected" : "a path is expected");
    if (s->key->most == 0 && *text) {
        snprintf(s->problem, sizeof s->problem, "%s cannot be set: %s", s->key->name,
                 s->key->instead);
        return false;
    }
    if (!at)
        return true;
    if (*text == '\0')
        return reject(s, "it must not be empty");
    if (s->key->type == NIB_KEY_READ && !is_option(s) && *text != '/')
        text = nib__path_join(r->source->arena, r->directory, text);
    else
        text = nib__arena_copy(r->source->arena, text, strlen(text));
    if (!text)
        return fail_memory(s);
    memcpy(at, &text, sizeof text);
    return true;
}

static bool append(setter *s, nib_train_list *list, const char *text, size_t size)
{
    nib_arena *arena = s->reader->source->arena;
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity ? 2 * list->capacity : 8;
        const char **items = nib__arena_take(arena, capacity, sizeof *items);
        if (!items)
            return fail_memory(s);
        if (list->count > 0)
            memcpy((void *)items, (const void *)list->items, list->count * sizeof *items);
        list->items = items;
        list->capacity = capacity;
    }
    const char *copy = nib__arena_copy(arena, text, size);
    if (!copy)
        return fail_memory(s);
    list->items[list->count++] = copy;
    return true;
}

/* Options: names separated by commas, and repeated options add up; the first replaces the file's
 * list. */
static bool append_option(setter *s, nib_train_list *list, bool again)
{
    if (!again)
        *list = (nib_train_list){.given = true};
    for (const char *at = s->value->text; *at;) {
        const size_t size = strcspn(at, ",");
        if (size > 0 && !append(s, list, at, size))
            return false;
        at += size + (at[size] == ',');
    }
    return true;
}

static bool set_list(setter *s, char *at, bool again)
{
    const raw_value *v = s->value;
    nib_train_list list = {0};
    if (at && again)
        memcpy(&list, at, sizeof list);
    if (is_option(s) ? !v->text : v->event != NIB_JSON_ARRAY)
        return reject(s, is_option(s) ? "names separated by commas are expected"
                                      : "a list of names is expected");
    if (!is_option(s)) {
        list = v->list;
        list.given = true;
    } else if (!append_option(s, &list, again)) {
        return false;
    }
    if (s->key->most == 0 && list.count > 0) {
        snprintf(s->problem, sizeof s->problem, "%s is not supported: %s", s->key->name,
                 s->key->instead);
        return false;
    }
    if (at)
        memcpy(at, &list, sizeof list);
    return true;
}

/* The row with the same destination that was already given from `from`; SIZE_MAX: none. */
static size_t given_before(const setter *s, unsigned from)
{
    for (size_t i = 0; i < nib__train_key_count; i++) {
        const bool same =
            i == s->row || (s->key->at != NIB_KEY_NOWHERE && nib__train_keys[i].at == s->key->at);
        if (same && (s->reader->given[i] & from) != 0)
            return i;
    }
    return SIZE_MAX;
}

/* The text after an option's "="; a bare flag is true. */
static const char *option_text(const setter *s)
{
    return s->value->text != NULL ? s->value->text : "true";
}

/* Keeps the value as text, for the ledger. */
static bool keep_asked(setter *s)
{
    char value[NIB_SHOWN + 2];
    nib_arena *arena = s->reader->source->arena;
    format_value(s, value);
    if (is_option(s) && s->key->type <= NIB_KEY_REAL) /* without quotes, as in a file */
        snprintf(value, sizeof value, "%.*s", NIB_SHOWN - 1, option_text(s));
    const char *copy = nib__arena_copy(arena, value, strlen(value));
    s->reader->asked[s->row] = copy;
    return copy || fail_memory(s);
}

/* A key may be given once in a file. Repeated options must agree, except for lists, which add
 * up. */
static bool check_once(setter *s, size_t before)
{
    const nib_train_key *k = s->key;
    const bool other = before != s->row;
    if (before == SIZE_MAX || (is_option(s) && k->type == NIB_KEY_LIST))
        return true;
    if (!is_option(s)) {
        snprintf(s->problem, sizeof s->problem, "%s is given twice%s%s", k->name,
                 other ? ", once as " : "", other ? nib__train_keys[before].name : "");
        return false;
    }
    const char *first = s->reader->option[before], *second = option_text(s);
    if (strcmp(first, second) == 0)
        return true;
    if (other)
        snprintf(s->problem, sizeof s->problem,
                 "%s is %.80s, but --%s, another name of it, is %.80s", k->name, second,
                 nib__train_keys[before].name, first);
    else
        snprintf(s->problem, sizeof s->problem, "%s is given twice, as %.80s and as %.80s", k->name,
                 first, second);
    return false;
}

/* Whether the value of a key without effect asks for nothing. */
static bool is_default(const setter *s)
{
    const nib_train_key *k = s->key;
    const char *text = s->value->text, *word = k->words;
    if (k->at != NIB_KEY_NOWHERE || k->type == NIB_KEY_WORD || !word || !text)
        return false;
    for (;; word++) {
        const size_t size = strcspn(word, "|");
        if (strlen(text) == size && memcmp(text, word, size) == 0)
            return true;
        word += size;
        if (*word == '\0')
            return false;
    }
}

static bool set_value(setter *s)
{
    const nib_train_key *k = s->key;
    const raw_value *v = s->value;
    const unsigned from = is_option(s) ? NIB_GIVEN_AS_OPTION : NIB_GIVEN_IN_FILE;
    const size_t before = given_before(s, from);
    char *at = k->at == NIB_KEY_NOWHERE ? NULL : (char *)&s->reader->draft + k->at;
    if (!check_once(s, before))
        return false;
    if (is_option(s))
        s->reader->option[s->row] = option_text(s);
    const bool null = v->event == NIB_JSON_NULL || (is_option(s) && k->type == NIB_KEY_REAL &&
                                                    v->text && strcmp(v->text, "null") == 0);
    const bool least = null && k->type == NIB_KEY_REAL && k->words; /* null becomes -1, below all
                                                                       numbers */
    if (null && !is_option(s) && !least)
        return true;
    s->reader->given[s->row] |= (uint8_t)(from | NIB_GIVEN_TO_DO);
    if (is_default(s))
        s->reader->given[s->row] &= (uint8_t)~NIB_GIVEN_TO_DO;
    if (!keep_asked(s))
        return false;
    if (least) {
        memcpy(at, &(double){-1}, sizeof(double));
        return true;
    }
    switch (k->type) {
    case NIB_KEY_FLAG: return set_flag(s, at);
    case NIB_KEY_WHOLE:
    case NIB_KEY_REAL: return set_number(s, at);
    case NIB_KEY_WORD: return set_word(s, at);
    case NIB_KEY_LIST: return set_list(s, at, before != SIZE_MAX);
    case NIB_KEY_JSON:
    case NIB_KEY_TEXT:
    case NIB_KEY_READ:
    case NIB_KEY_WRITE: return set_text(s, at);
    }
    return false;
}

/* ---- from the file ---- */

static bool read_list(setter *s, nib_json *json, nib_train_list *list)
{
    while (nib__json_next(json) == NIB_JSON_STRING) {
        size_t size;
        const char *text = nib__json_string(json, s->reader->source->arena, &size);
        if (!text)
            return false;
        if (!append(s, list, text, size)) {
            nib__json_fail_memory(json, size);
            return false;
        }
    }
    if (json->event != NIB_JSON_ARRAY_END && json->event != NIB_JSON_ERROR)
        nib__json_fail(json, "%s must contain only strings", s->key->name);
    return json->event == NIB_JSON_ARRAY_END;
}

bool nib__train_value_json(nib_train_reader *reader, size_t row, nib_json *json)
{
    nib_arena *arena = reader->source->arena;
    raw_value v = {0};
    setter s = {.reader = reader, .key = &nib__train_keys[row], .row = row, .value = &v};
    if (s.key->type == NIB_KEY_JSON) {
        v.event = NIB_JSON_STRING;
        v.text = nib__json_raw(json, arena);
        if (!v.text)
            return false;
    } else {
        v.event = nib__json_next(json);
        if (v.event == NIB_JSON_STRING) {
            size_t size;
            v.text = nib__json_string(json, arena, &size);
            if (v.text && strlen(v.text) != size) {
                nib__json_fail(json, "%s contains a NUL", s.key->name);
                return false;
            }
        } else if (v.event == NIB_JSON_NUMBER) {
            v.text = nib__arena_copy(arena, json->token, json->token_size);
            if (!v.text)
                nib__json_fail_memory(json, json->token_size);
        }
        if (v.event == NIB_JSON_ERROR || json->event == NIB_JSON_ERROR)
            return false;
        if (v.event == NIB_JSON_ARRAY && s.key->type == NIB_KEY_LIST &&
            !read_list(&s, json, &v.list))
            return false;
    }
    if (set_value(&s))
        return true;
    if (s.out_of_memory)
        nib__json_fail_memory(json, json->token_size);
    else
        nib__json_fail(json, "%s", s.problem);
    return false;
}

nib_status nib__train_value_option(nib_train_reader *reader, size_t row, const char *text,
                                   nib_err *err)
{
    const raw_value v = {.event = NIB_JSON_END, .text = text};
    setter s = {.reader = reader, .key = &nib__train_keys[row], .row = row, .value = &v};
    if (set_value(&s))
        return NIB_OK;
    return s.out_of_memory ? nib__fail_memory(err, strlen(text), s.key->name)
                           : nib__fail(err, NIB_USAGE, "--%s", s.problem);
}

bool nib__train_given(const nib_train_reader *reader, const char *name)
{
    return reader->given[nib__train_key_find(name)] != 0;
}

nib_train_asked nib__train_asked(const nib_train_reader *reader, const char *name)
{
    const size_t at = nib__train_keys[nib__train_key_find(name)].at;
    nib_train_asked asked = {0};
    for (size_t i = 0; i < nib__train_key_count; i++) {
        const nib_train_key *k = &nib__train_keys[i];
        if (k->at != at || (reader->given[i] & NIB_GIVEN_TO_DO) == 0)
            continue;
        if (!asked.key || nib__train_asker(reader, i) == NIB_BY_OPTION)
            asked = (nib_train_asked){k->name, reader->asked[i], nib__train_asker(reader, i)};
    }
    return asked;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the normalizers, pre-tokenizers and decoders of tokenizer.json into flat lists. The fields
 * of a component come in any order, so it first reads the fields of all types, then uses those of
 * the component's `type`. An unknown key or type is an error, because it could change the result.
 */
#include "tokenizer_parts.h"

#include <stdarg.h>
#include <stdio.h>

typedef struct part_text {
    const char *at; /* NULL: not given */
    size_t size;
} part_text;

typedef enum flag { FLAG_NONE, FLAG_FALSE, FLAG_TRUE } flag;

typedef struct part {
    part_text type, pattern, content, behavior, replacement, prepend_scheme, prepend;
    bool pattern_is_regex;
    flag add_prefix_space, use_regex, individual_digits, split, invert, strip_left, strip_right,
        ignored;
    int64_t start, stop;
    nib_json_slice list;
} part;

typedef enum field_kind {
    FIELD_TEXT,
    FIELD_FLAG,
    FIELD_COUNT,
    FIELD_PATTERN,
    FIELD_LIST
} field_kind;

typedef struct field {
    const char *key;
    field_kind kind;
    size_t offset; /* in part */
} field;

static const field fields[] = {
    {"type", FIELD_TEXT, offsetof(part, type)},
    {"pattern", FIELD_PATTERN, offsetof(part, pattern)},
    {"content", FIELD_TEXT, offsetof(part, content)},
    {"behavior", FIELD_TEXT, offsetof(part, behavior)},
    {"replacement", FIELD_TEXT, offsetof(part, replacement)},
    {"str_rep", FIELD_TEXT, offsetof(part, replacement)},
    {"prepend_scheme", FIELD_TEXT, offsetof(part, prepend_scheme)},
    {"prepend", FIELD_TEXT, offsetof(part, prepend)},
    {"add_prefix_space", FIELD_FLAG, offsetof(part, add_prefix_space)},
    {"use_regex", FIELD_FLAG, offsetof(part, use_regex)},
    {"individual_digits", FIELD_FLAG, offsetof(part, individual_digits)},
    {"split", FIELD_FLAG, offsetof(part, split)},
    {"invert", FIELD_FLAG, offsetof(part, invert)},
    {"strip_left", FIELD_FLAG, offsetof(part, strip_left)},
    {"strip_right", FIELD_FLAG, offsetof(part, strip_right)},
    {"trim_offsets", FIELD_FLAG, offsetof(part, ignored)}, /* offsets are not ids */
    {"start", FIELD_COUNT, offsetof(part, start)},
    {"stop", FIELD_COUNT, offsetof(part, stop)},
    {"normalizers", FIELD_LIST, offsetof(part, list)},
    {"pretokenizers", FIELD_LIST, offsetof(part, list)},
    {"decoders", FIELD_LIST, offsetof(part, list)},
};

/* ---- readers ---- */

void nib__loader_reader(const nib_loader *loader, nib_json *json, nib_json_slice slice)
{
    nib__json_init(json, loader->file.name, slice.at, slice.size, NULL);
    json->start = loader->file.text;
}

bool nib__loader_slice(nib_json *json, nib_json_slice *slice)
{
    if (nib__json_next(json) == NIB_JSON_ERROR)
        return false;
    const char *const from = json->from;
    if (!nib__json_skip(json))
        return false;
    *slice = (nib_json_slice){from, (size_t)(json->at - from)};
    return true;
}

nib_status nib__loader_unsupported(const nib_loader *loader, const char *format, ...)
{
    char sentence[sizeof loader->err->text];
    va_list args;
    va_start(args, format);
    nib__vformat(sentence, sizeof sentence, format, args);
    va_end(args);
    return nib__fail(loader->err, NIB_UNSUPPORTED, "%s: %s", loader->file.name, sentence);
}

/* ---- fields ---- */

static bool read_pattern(nib_loader *loader, nib_json *json, part *p)
{
    if (!nib__json_expect(json, NIB_JSON_OBJECT) || !nib__json_expect(json, NIB_JSON_KEY))
        return false;
    p->pattern_is_regex = nib__json_is(json, "Regex");
    if (!p->pattern_is_regex && !nib__json_is(json, "String")) {
        nib__json_fail(json, "a pattern is a String or a Regex");
        return false;
    }
    p->pattern.at = nib__json_read_string(json, &loader->t->arena, &p->pattern.size);
    return p->pattern.at != NULL && nib__json_expect(json, NIB_JSON_OBJECT_END);
}

static bool read_field(nib_loader *loader, nib_json *json, const field *f, part *p)
{
    void *const at = (char *)p + f->offset;
    if (f->kind == FIELD_PATTERN)
        return read_pattern(loader, json, p);
    if (f->kind == FIELD_LIST)
        return nib__loader_slice(json, at);
    if (f->kind == FIELD_COUNT)
        return nib__json_read_int64(json, 0, 1 << 20, at);
    const nib_json_event event = nib__json_next(json);
    if (event == NIB_JSON_NULL)
        return true;
    if (f->kind == FIELD_FLAG && (event == NIB_JSON_TRUE || event == NIB_JSON_FALSE)) {
        *(flag *)at = event == NIB_JSON_TRUE ? FLAG_TRUE : FLAG_FALSE;
        return true;
    }
    if (f->kind == FIELD_TEXT && event == NIB_JSON_STRING) {
        part_text *text = at;
        text->at = nib__json_string(json, &loader->t->arena, &text->size);
        return text->at != NULL;
    }
    nib__json_fail(json, "%s is not a %s", f->key,
                   f->kind == FIELD_FLAG ? "true or false" : "string");
    return false;
}

/* *none: the component is null. */
static nib_status read_part(nib_loader *loader, nib_json_slice slice, const char *family, part *p,
                            bool *none)
{
    nib_json json;
    nib__loader_reader(loader, &json, slice);
    *p = (part){0};
    *none = nib__json_next(&json) == NIB_JSON_NULL;
    if (*none)
        return NIB_OK;
    if (json.event != NIB_JSON_OBJECT)
        nib__json_fail(&json, "a %s is an object with a type", family);
    while (nib__json_next(&json) == NIB_JSON_KEY) {
        const field *f = NULL;
        for (size_t i = 0; i < COUNT(fields) && f == NULL; i++)
            f = nib__json_is(&json, fields[i].key) ? &fields[i] : NULL;
        if (f == NULL) {
            char key[80];
            return nib__loader_unsupported(
                loader, "unknown key \"%s\" in a %s could change the ids; remove it if it does not",
                nib__escape_name(key, sizeof key, json.token, json.token_size), family);
        }
        if (!read_field(loader, &json, f, p))
            break;
    }
    if (json.event == NIB_JSON_OBJECT_END && p->type.at == NULL)
        nib__json_fail(&json, "a %s has no type", family);
    return nib__json_status(&json, loader->err);
}

static bool is_type(const part *p, const char *type)
{
    return strlen(type) == p->type.size && memcmp(type, p->type.at, p->type.size) == 0;
}

static nib_status fail_type(nib_loader *loader, const part *p, const char *family,
                            const char *known)
{
    char name[80];
    return nib__loader_unsupported(
        loader,
        "%s \"%s\" is not supported (supported: %s); use a model with a BPE tokenizer made of "
        "these",
        family, nib__escape_name(name, sizeof name, p->type.at, p->type.size), known);
}

static nib_status require_field(nib_loader *loader, const part *p, bool present, const char *key)
{
    return present ? NIB_OK
                   : nib__fail(loader->err, NIB_BAD_INPUT, "%s: %s has no \"%s\"",
                               loader->file.name, p->type.at, key);
}

/* Adds an element to a list of components. */
static nib_status grow_list(nib_loader *loader, size_t *count, const char *family)
{
    if (*count == NIB_TOKENIZER_PARTS)
        return nib__loader_unsupported(loader, "too many %ss; the limit is %d", family,
                                       NIB_TOKENIZER_PARTS);
    ++*count;
    return NIB_OK;
}

typedef nib_status (*load_part)(nib_loader *loader, nib_json_slice slice, int nesting);

/* Loads the items of a Sequence. The recursion is capped. */
static nib_status load_list(nib_loader *loader, const part *p, const char *family, load_part load,
                            int nesting)
{
    if (p->list.at == NULL)
        return nib__fail(loader->err, NIB_BAD_INPUT, "%s: a Sequence of %ss has no list of them",
                         loader->file.name, family);
    if (nesting >= NIB_TOKENIZER_NESTING)
        return nib__loader_unsupported(loader, "%ss are nested deeper than %d", family,
                                       NIB_TOKENIZER_NESTING);
    nib_json json;
    nib__loader_reader(loader, &json, p->list);
    if (nib__json_next(&json) != NIB_JSON_ARRAY)
        nib__json_fail(&json, "a Sequence of %ss is a list", family);
    while (nib__json_next(&json) != NIB_JSON_ARRAY_END && json.event != NIB_JSON_ERROR) {
        const char *const from = json.from;
        if (!nib__json_skip(&json))
            break;
        NIB_TRY(load(loader, (nib_json_slice){from, (size_t)(json.at - from)}, nesting + 1));
    }
    return nib__json_status(&json, loader->err);
}

static nib_status make_finder(nib_loader *loader, const part *p, nib_finder *finder)
{
    NIB_TRY(require_field(loader, p, p->pattern.at != NULL, "pattern"));
    finder->kind = p->pattern_is_regex ? NIB_FIND_REGEX : NIB_FIND_STRING;
    finder->string = p->pattern.at;
    finder->size = p->pattern.size;
    if (!p->pattern_is_regex)
        return p->pattern.size != 0
                   ? NIB_OK
                   : nib__loader_unsupported(loader, "the pattern of %s is empty", p->type.at);
    loader->pattern_bytes += p->pattern.size;
    if (loader->pattern_bytes > NIB_TOKENIZER_PATTERNS)
        return nib__loader_unsupported(loader,
                                       "the regular expressions have more than %d bytes in total",
                                       NIB_TOKENIZER_PATTERNS);
    const nib_status status = nib__text_regex_open(&finder->regex, p->pattern.at, p->pattern.size,
                                                   &loader->t->arena, loader->err);
    return status == NIB_OK ? status : nib__fail_in(loader->err, status, loader->file.name);
}

/* ---- normalizers ---- */

static nib_status fill_normalizer(nib_loader *loader, const part *p, nib_normalizer *n)
{
    static const struct {
        const char *type;
        nib_normalizer_kind kind;
    } kinds[] = {
        {"NFC", NIB_NORMAL_NFC},
        {"NFD", NIB_NORMAL_NFD},
        {"NFKC", NIB_NORMAL_NFKC},
        {"NFKD", NIB_NORMAL_NFKD},
        {"Lowercase", NIB_NORMAL_LOWERCASE},
        {"Strip", NIB_NORMAL_STRIP},
        {"StripAccents", NIB_NORMAL_STRIP_ACCENTS},
        {"Prepend", NIB_NORMAL_PREPEND},
        {"Replace", NIB_NORMAL_REPLACE},
        {"ByteLevel", NIB_NORMAL_BYTES},
    };
    size_t i = 0;
    while (i < COUNT(kinds) && !is_type(p, kinds[i].type))
        i++;
    if (i == COUNT(kinds))
        return fail_type(loader, p, "normalizer",
                         "NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, "
                         "ByteLevel, Sequence");
    n->kind = kinds[i].kind;
    n->left = p->strip_left == FLAG_TRUE;
    n->right = p->strip_right == FLAG_TRUE;
    if (n->kind == NIB_NORMAL_STRIP)
        NIB_TRY(require_field(loader, p, p->strip_left != FLAG_NONE && p->strip_right != FLAG_NONE,
                              "strip_left or strip_right"));
    const part_text *content = n->kind == NIB_NORMAL_PREPEND ? &p->prepend : &p->content;
    n->content = content->at;
    n->content_size = content->size;
    if (n->kind == NIB_NORMAL_PREPEND)
        return require_field(loader, p, n->content != NULL, "prepend");
    if (n->kind != NIB_NORMAL_REPLACE)
        return NIB_OK;
    NIB_TRY(require_field(loader, p, n->content != NULL, "content"));
    return make_finder(loader, p, &n->finder);
}

nib_status nib__load_normalizer(nib_loader *loader, nib_json_slice slice, int nesting)
{
    part p;
    bool none;
    NIB_TRY(read_part(loader, slice, "normalizer", &p, &none));
    if (none)
        return NIB_OK;
    if (is_type(&p, "Sequence"))
        return load_list(loader, &p, "normalizer", nib__load_normalizer, nesting);
    nib_tokenizer *t = loader->t;
    NIB_TRY(grow_list(loader, &t->normalizer_count, "normalizer"));
    return fill_normalizer(loader, &p, &t->normalizers[t->normalizer_count - 1]);
}

/* ---- pre-tokenizers ---- */

nib_status nib__loader_stage(nib_loader *loader, const nib_stage *stage)
{
    nib_tokenizer *t = loader->t;
    NIB_TRY(grow_list(loader, &t->stage_count, "pre_tokenizer"));
    t->stages[t->stage_count - 1] = *stage;
    return NIB_OK;
}

nib_status nib__loader_split(nib_loader *loader, const char *pattern)
{
    /* Appends the stage first, so that closing finds the compiled pattern. */
    const nib_stage split = {.kind = NIB_STAGE_SPLIT, .behavior = NIB_SPLIT_ISOLATED};
    NIB_TRY(nib__loader_stage(loader, &split));
    nib_finder *finder = &loader->t->stages[loader->t->stage_count - 1].finder;
    finder->kind = NIB_FIND_REGEX;
    return nib__text_regex_open(&finder->regex, pattern, strlen(pattern), &loader->t->arena,
                                loader->err);
}

static nib_status read_behavior(nib_loader *loader, const part *p, nib_behavior *behavior)
{
    static const char *const names[] = {
        [NIB_SPLIT_ISOLATED] = "Isolated",
        [NIB_SPLIT_REMOVED] = "Removed",
        [NIB_SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [NIB_SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [NIB_SPLIT_CONTIGUOUS] = "Contiguous",
    };
    char name[80];
    for (size_t i = 0; i < COUNT(names); i++) {
        if (p->behavior.size == strlen(names[i]) &&
            memcmp(p->behavior.at, names[i], p->behavior.size) == 0) {
            *behavior = (nib_behavior)i;
            return NIB_OK;
        }
    }
    return nib__loader_unsupported(
        loader,
        "unknown behavior \"%s\" of %s; Removed, Isolated, MergedWithPrevious, MergedWithNext and "
        "Contiguous are known",
        nib__escape_name(name, sizeof name, p->behavior.at, p->behavior.size), p->type.at);
}

static nib_status add_byte_level(nib_loader *loader, const part *p)
{
    const nib_stage prefix = {.kind = NIB_STAGE_PREFIX}, bytes = {.kind = NIB_STAGE_BYTES};
    NIB_TRY(require_field(loader, p, p->add_prefix_space != FLAG_NONE, "add_prefix_space"));
    if (p->add_prefix_space == FLAG_TRUE)
        NIB_TRY(nib__loader_stage(loader, &prefix));
    if (p->use_regex != FLAG_FALSE)
        NIB_TRY(nib__loader_split(loader, nib__gpt2_pattern));
    return nib__loader_stage(loader, &bytes);
}

/* "replacement" of Metaspace and "content" of Strip must be one character. */
static nib_status require_character(nib_loader *loader, const part *p, const part_text *text,
                                    const char *key)
{
    NIB_TRY(require_field(loader, p, text->at != NULL, key));
    if (text->size != 0 && (size_t)nib__utf8_length(text->at, text->size) == text->size)
        return NIB_OK;
    return nib__fail(loader->err, NIB_BAD_INPUT, "%s: the %s of %s is not one character",
                     loader->file.name, key, p->type.at);
}

static bool text_is(const part_text *text, const char *string)
{
    return text->size == strlen(string) && memcmp(text->at, string, text->size) == 0;
}

static nib_status read_prepend(nib_loader *loader, const part *p, nib_prepend *prepend)
{
    NIB_TRY(require_character(loader, p, &p->replacement, "replacement"));
    *prepend = p->add_prefix_space == FLAG_FALSE ? NIB_PREPEND_NEVER : NIB_PREPEND_ALWAYS;
    if (p->prepend_scheme.at == NULL)
        return NIB_OK;
    if (text_is(&p->prepend_scheme, "never")) {
        *prepend = NIB_PREPEND_NEVER;
    } else if (p->add_prefix_space == FLAG_FALSE) {
        return nib__fail(
            loader->err, NIB_BAD_INPUT,
            "%s: Metaspace has add_prefix_space false and a prepend_scheme other than \"never\"",
            loader->file.name);
    } else if (text_is(&p->prepend_scheme, "first")) {
        *prepend = NIB_PREPEND_FIRST;
    } else if (!text_is(&p->prepend_scheme, "always")) {
        return nib__loader_unsupported(
            loader, "the prepend_scheme of Metaspace is not always, first or never");
    }
    return NIB_OK;
}

static nib_status add_metaspace(nib_loader *loader, const part *p)
{
    nib_stage space = {.kind = NIB_STAGE_METASPACE,
                       .content = p->replacement.at,
                       .content_size = p->replacement.size};
    const nib_stage split = {.kind = NIB_STAGE_SPLIT,
                             .behavior = NIB_SPLIT_MERGED_WITH_NEXT,
                             .finder = {.kind = NIB_FIND_STRING,
                                        .string = p->replacement.at,
                                        .size = p->replacement.size}};
    NIB_TRY(read_prepend(loader, p, &space.prepend));
    NIB_TRY(nib__loader_stage(loader, &space));
    return p->split == FLAG_FALSE ? NIB_OK : nib__loader_stage(loader, &split);
}

static nib_status add_split(nib_loader *loader, const part *p)
{
    nib_stage split = {.kind = NIB_STAGE_SPLIT, .invert = p->invert == FLAG_TRUE};
    NIB_TRY(require_field(loader, p, p->behavior.at != NULL, "behavior"));
    NIB_TRY(require_field(loader, p, p->invert != FLAG_NONE, "invert"));
    NIB_TRY(read_behavior(loader, p, &split.behavior));
    NIB_TRY(nib__loader_stage(loader, &split));
    return make_finder(loader, p, &loader->t->stages[loader->t->stage_count - 1].finder);
}

/* Adds a pre-tokenizer that splits at a class of characters. */
static nib_status add_class(nib_loader *loader, const part *p)
{
    nib_stage split = {.kind = NIB_STAGE_SPLIT, .behavior = NIB_SPLIT_REMOVED};
    if (is_type(p, "Digits")) {
        NIB_TRY(require_field(loader, p, p->individual_digits != FLAG_NONE, "individual_digits"));
        split.finder.kind = NIB_FIND_NUMERIC;
        split.behavior =
            p->individual_digits == FLAG_TRUE ? NIB_SPLIT_ISOLATED : NIB_SPLIT_CONTIGUOUS;
    } else if (is_type(p, "Punctuation")) {
        split.finder.kind = NIB_FIND_PUNCTUATION;
        split.behavior = NIB_SPLIT_ISOLATED;
        if (p->behavior.at != NULL)
            NIB_TRY(read_behavior(loader, p, &split.behavior));
    } else if (is_type(p, "WhitespaceSplit")) {
        split.finder.kind = NIB_FIND_SPACE;
    } else if (is_type(p, "Whitespace")) {
        split.finder.kind = NIB_FIND_WORDS;
        split.invert = true;
    } else {
        return fail_type(loader, p, "pre_tokenizer",
                         "ByteLevel, Split, Digits, Metaspace, Punctuation, Whitespace, "
                         "WhitespaceSplit, Sequence");
    }
    return nib__loader_stage(loader, &split);
}

nib_status nib__load_pre_tokenizer(nib_loader *loader, nib_json_slice slice, int nesting)
{
    part p;
    bool none;
    NIB_TRY(read_part(loader, slice, "pre_tokenizer", &p, &none));
    if (none)
        return NIB_OK;
    if (is_type(&p, "Sequence"))
        return load_list(loader, &p, "pre_tokenizer", nib__load_pre_tokenizer, nesting);
    if (is_type(&p, "ByteLevel"))
        return add_byte_level(loader, &p);
    if (is_type(&p, "Metaspace"))
        return add_metaspace(loader, &p);
    if (is_type(&p, "Split"))
        return add_split(loader, &p);
    return add_class(loader, &p);
}

/* ---- decoders ---- */

static nib_status fill_decoder(nib_loader *loader, const part *p, nib_decoder *d)
{
    d->content = p->content.at;
    d->content_size = p->content.size;
    if (is_type(p, "ByteLevel")) {
        d->kind = NIB_DECODE_BYTES;
    } else if (is_type(p, "ByteFallback")) {
        d->kind = NIB_DECODE_FALLBACK;
    } else if (is_type(p, "Fuse")) {
        d->kind = NIB_DECODE_FUSE;
    } else if (is_type(p, "Metaspace")) {
        nib_prepend prepend;
        d->kind = NIB_DECODE_METASPACE;
        NIB_TRY(read_prepend(loader, p, &prepend));
        d->content = p->replacement.at;
        d->content_size = p->replacement.size;
        d->prepended = prepend != NIB_PREPEND_NEVER;
    } else if (is_type(p, "Strip")) {
        d->kind = NIB_DECODE_STRIP;
        d->start = (size_t)p->start;
        d->stop = (size_t)p->stop;
        return require_character(loader, p, &p->content, "content");
    } else if (is_type(p, "Replace")) {
        d->kind = NIB_DECODE_REPLACE;
        if (p->pattern_is_regex)
            return nib__loader_unsupported(
                loader, "a decoder Replace with a Regex is not supported; write its pattern "
                        "as a String");
        NIB_TRY(require_field(loader, p, d->content != NULL, "content"));
        return make_finder(loader, p, &d->finder);
    } else {
        return fail_type(loader, p, "decoder",
                         "ByteLevel, ByteFallback, Fuse, Metaspace, Strip, Replace, Sequence");
    }
    return NIB_OK;
}

/* Decoding goes id by id, so the decoders must come in the order listed in detokenize.c. */
static nib_status check_order(nib_loader *loader, nib_decoder *d)
{
    const nib_tokenizer *t = loader->t;
    bool fused = false, bytes = false, stripped = false;
    for (size_t i = 0; i + 1 < t->decoder_count; i++) {
        const nib_decoder *before = &t->decoders[i];
        fused = fused || before->kind == NIB_DECODE_FUSE || before->kind == NIB_DECODE_BYTES;
        bytes = bytes || before->kind == NIB_DECODE_FALLBACK;
        stripped = stripped || before->whole;
    }
    d->whole = fused && d->kind == NIB_DECODE_STRIP;
    const bool after_all = d->kind == NIB_DECODE_FUSE || d->whole;
    if (stripped || ((fused || bytes) && !after_all))
        return nib__loader_unsupported(
            loader, "the order of the decoders is not supported; supported is Replace, Strip, "
                    "Metaspace, then ByteFallback or ByteLevel, then Fuse, then one Strip");
    return NIB_OK;
}

nib_status nib__load_decoder(nib_loader *loader, nib_json_slice slice, int nesting)
{
    part p;
    bool none;
    NIB_TRY(read_part(loader, slice, "decoder", &p, &none));
    if (none)
        return NIB_OK;
    if (is_type(&p, "Sequence"))
        return load_list(loader, &p, "decoder", nib__load_decoder, nesting);
    nib_tokenizer *t = loader->t;
    t->has_decoder = true;
    NIB_TRY(grow_list(loader, &t->decoder_count, "decoder"));
    nib_decoder *d = &t->decoders[t->decoder_count - 1];
    NIB_TRY(fill_decoder(loader, &p, d));
    return check_order(loader, d);
}

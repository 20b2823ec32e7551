/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads chat_template.jinja and tokenizer_config.json.
 */
#include "chat_files.h"

#include "file.h"

enum { CONFIG_LIMIT = 64 << 20 }; /* bytes of tokenizer_config.json; some list every added token */

static const char *const token_names[NIB_CHAT_TOKENS] = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

void nib__chat_files_add(nib_chat_files *files, const char *name, const char *text, size_t size)
{
    if (files->token_count < NIB_CHAT_TOKENS)
        files->tokens[files->token_count++] = (nib_template_token){name, text, size};
}

/* ---- tokenizer_config.json ---- */

static bool read_token(nib_json *json, nib_chat_files *files, nib_arena *arena, const char *name)
{
    nib_template_token token = {.text = NULL};
    const nib_json_event event = nib__json_next(json);
    if (event == NIB_JSON_STRING)
        token.text = nib__json_string(json, arena, &token.size);
    while (event == NIB_JSON_OBJECT && nib__json_next(json) == NIB_JSON_KEY) {
        if (!nib__json_is(json, "content"))
            (void)nib__json_skip(json);
        else
            token.text = nib__json_read_string(json, arena, &token.size);
    }
    if (event == NIB_JSON_ARRAY)
        (void)nib__json_skip(json);
    if (token.text != NULL)
        nib__chat_files_add(files, name, token.text, token.size);
    return json->event != NIB_JSON_ERROR;
}

/* {"name": ..., "template": ...}: keeps "default" and "tool_use". */
static bool read_named(nib_json *json, nib_arena *arena, nib_chat_source *f)
{
    char *name = NULL, *text = NULL;
    size_t size = 0;
    while (nib__json_next(json) == NIB_JSON_KEY) {
        if (nib__json_is(json, "name"))
            name = nib__json_read_string(json, arena, NULL);
        else if (nib__json_is(json, "template"))
            text = nib__json_read_string(json, arena, &size);
        else
            (void)nib__json_skip(json);
    }
    if (name != NULL && text != NULL && strcmp(name, "default") == 0)
        f->text = (nib_named_text){f->text.name, text, size};
    else if (name != NULL && text != NULL && strcmp(name, "tool_use") == 0)
        f->tools = (nib_named_text){f->text.name, text, size};
    return json->event == NIB_JSON_OBJECT_END;
}

static bool read_templates(nib_json *json, nib_arena *arena, nib_chat_source *f)
{
    const nib_json_event event = nib__json_next(json);
    if (event == NIB_JSON_STRING)
        f->text.text = nib__json_string(json, arena, &f->text.size);
    while (event == NIB_JSON_ARRAY && nib__json_next(json) == NIB_JSON_OBJECT)
        if (!read_named(json, arena, f))
            return false;
    if (event == NIB_JSON_OBJECT)
        (void)nib__json_skip(json);
    return json->event != NIB_JSON_ERROR;
}

static nib_status read_config(nib_chat_files *files, const char *path, nib_arena *arena,
                              nib_err *err)
{
    const nib_json_limits limits = {.literals = true};
    char *text;
    size_t size;
    nib_json json;
    files->config.text.name = path;
    NIB_TRY(nib__file_read(&text, &size, path, CONFIG_LIMIT, arena->allocator, err));
    nib__json_init(&json, path, text, size, &limits);
    bool ok = nib__json_expect(&json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&json) == NIB_JSON_KEY) {
        size_t token = 0;
        while (token < NIB_CHAT_TOKENS && !nib__json_is(&json, token_names[token]))
            token++;
        ok = token < NIB_CHAT_TOKENS ? read_token(&json, files, arena, token_names[token])
             : nib__json_is(&json, "chat_template") ? read_templates(&json, arena, &files->config)
                                                    : nib__json_skip(&json);
    }
    const nib_status status =
        ok && json.event == NIB_JSON_OBJECT_END ? NIB_OK : nib__json_status(&json, err);
    nib__release(arena->allocator, text);
    return status;
}

/* ---- both ---- */

static nib_status read_own(nib_chat_source *f, const char *path, nib_arena *arena, nib_err *err)
{
    char *text;
    size_t size;
    NIB_TRY(nib__file_read(&text, &size, path, NIB_TEMPLATE_SOURCE, arena->allocator, err));
    f->text = (nib_named_text){path, nib__arena_copy(arena, text, size), size};
    nib__release(arena->allocator, text);
    return f->text.text != NULL ? NIB_OK : nib__fail_memory(err, size, path);
}

nib_status nib__chat_files_read(nib_chat_files *out, const char *directory, nib_arena *arena,
                                nib_err *err)
{
    const char *own = nib__path_join(arena, directory, "chat_template.jinja"),
               *config = nib__path_join(arena, directory, "tokenizer_config.json");
    *out = (nib_chat_files){.token_count = 0};
    if (own == NULL || config == NULL)
        return nib__fail_memory(err, strlen(directory), "a path");
    if (nib__path_kind(own) == NIB_PATH_FILE)
        NIB_TRY(read_own(&out->own, own, arena, err));
    return nib__path_kind(config) == NIB_PATH_FILE ? read_config(out, config, arena, err) : NIB_OK;
}

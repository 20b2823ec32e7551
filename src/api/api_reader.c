/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers to read members of a request: errors, strings, and the members of objects inside the
 * body.
 */
#include "api_request.h"

#include <stdarg.h>
#include <stdio.h>

/* ---- errors ---- */

const char *nib__api_param(char out[NIB_API_PARAM], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    nib__vformat(out, NIB_API_PARAM, format, args);
    va_end(args);
    return out;
}

bool nib__api_refuse(nib_api_reader *r, const char *param, const char *format, ...)
{
    va_list args;
    *r->error = (nib_api_error){.http = 400};
    snprintf(r->error->param, sizeof r->error->param, "%s", param);
    va_start(args, format);
    nib__vformat(r->error->text, sizeof r->error->text, format, args);
    va_end(args);
    return false;
}

bool nib__api_no_memory(nib_api_reader *r)
{
    *r->error = (nib_api_error){.http = 503,
                                .text = "out of memory for this request; send a shorter one, or "
                                        "retry later"};
    return false;
}

bool nib__api_fail_json(nib_api_reader *r)
{
    if (r->json.err.status == NIB_NO_MEMORY)
        return nib__api_no_memory(r);
    return nib__api_refuse(r, "", "%s", r->json.err.text);
}

const char *nib__api_describe_event(const nib_api_reader *r)
{
    switch (r->json.event) {
    case NIB_JSON_OBJECT: return "an object";
    case NIB_JSON_ARRAY: return "an array";
    case NIB_JSON_STRING: return "a string";
    case NIB_JSON_NUMBER: return "a number";
    case NIB_JSON_TRUE: return "true";
    case NIB_JSON_FALSE: return "false";
    case NIB_JSON_NULL: return "null";
    default: return "something else";
    }
}

const char *nib__api_token(char out[NIB_API_SHOWN], const nib_api_reader *r)
{
    return nib__escape_name(out, NIB_API_SHOWN, r->json.token, r->json.token_size);
}

const char *nib__api_parse_string(nib_api_reader *r, const char *param, size_t *size)
{
    char *text = nib__json_string(&r->json, r->arena, size);
    if (text == NULL)
        nib__api_fail_json(r);
    else if (memchr(text, 0, *size) != NULL)
        text = NULL, nib__api_refuse(r, param, "%s contains U+0000, which is not allowed", param);
    return text;
}

bool nib__api_read_text(nib_api_reader *r, const char *param, const char **out, size_t *size)
{
    if (r->json.event != NIB_JSON_STRING)
        return nib__api_refuse(r, param, "%s is %s, but must be a string", param,
                               nib__api_describe_event(r));
    *out = nib__api_parse_string(r, param, size);
    return *out != NULL;
}

bool nib__api_note_id(nib_api_reader *r, nib_api_ids *ids, const char *text)
{
    if (!nib__reserve(r->arena->allocator, (void **)&ids->at, &ids->capacity, ids->count + 1,
                      sizeof *ids->at))
        return nib__api_no_memory(r);
    ids->at[ids->count++] = (nib_api_id){text, r->message};
    return true;
}

/* ---- objects inside the body ---- */

static bool refuse_unknown(nib_api_reader *r, const nib_api_object *o, const char *key)
{
    char param[NIB_API_PARAM];
    nib_text names;
    nib__api_param(param, "%s.%s", o->param, key);
    nib__text_init(&names, r->arena->allocator);
    for (int i = 0; i < o->count; i++)
        nib__text_format(&names, "%s%s",
                         i == 0             ? ""
                         : i + 1 < o->count ? ", "
                                            : " and ",
                         o->names[i]);
    nib__api_refuse(r, param, "%s has an unknown member '%s'; allowed: %s", o->param, key,
                    names.size > 0 ? names.at : "(out of memory to list them)");
    nib__text_free(&names);
    return false;
}

/* Reads a key and its value's first event. Returns the key's index; o->count: unknown and null. */
static int read_member_key(nib_api_reader *r, nib_api_object *o)
{
    char key[NIB_API_SHOWN];
    int at = 0;
    while (at < o->count && !nib__json_is(&r->json, o->names[at]))
        at++;
    if (at < o->count && (o->seen >> at & 1) != 0) {
        char param[NIB_API_PARAM];
        nib__api_param(param, "%s.%s", o->param, o->names[at]);
        nib__api_refuse(r, param, "%s is given twice", param);
        return NIB_API_ERROR;
    }
    o->seen |= at < o->count ? 1u << at : 0;
    nib__api_token(key, r);
    if (nib__json_next(&r->json) == NIB_JSON_ERROR)
        nib__api_fail_json(r);
    else if (at < o->count || r->json.event == NIB_JSON_NULL || refuse_unknown(r, o, key))
        return at;
    return NIB_API_ERROR;
}

int nib__api_next_member(nib_api_reader *r, nib_api_object *o)
{
    int at;
    do {
        if (nib__json_next(&r->json) == NIB_JSON_OBJECT_END)
            return NIB_API_LAST;
        if (r->json.event == NIB_JSON_ERROR) {
            nib__api_fail_json(r);
            return NIB_API_ERROR;
        }
        at = read_member_key(r, o);
    } while (at == o->count);
    return at;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Checking arguments; reading options and writing results whose structs grow from version to
 * version.
 */
#include "public_struct.h"

#include <inttypes.h>

/* No struct of options will have more bytes; a larger size is a variable without initial value. */
enum { SIZE_MOST = 1 << 16 };

nib_status nib__need(const char *function, const char *names, const void *const *pointers,
                     size_t count, nib_err *err)
{
    for (size_t i = 0; i < count; i++) {
        const int size = (int)strcspn(names, ",");
        if (pointers[i] == NULL)
            return nib__fail(err, NIB_USAGE, "%s: %.*s is NULL", function, size, names);
        names += size + (int)strspn(names + size, ", ");
    }
    return NIB_OK;
}

nib_status nib__sink_check(const nib_sink *sink, nib_err *err)
{
    return sink != NULL && sink->write != NULL
               ? NIB_OK
               : nib__fail(err, NIB_USAGE, "%s is NULL", sink == NULL ? "sink" : "sink->write");
}

nib_status nib__report_check(nib_form form, const nib_sink *sink, nib_err *err)
{
    if (form != NIB_FORM_TEXT && form != NIB_FORM_JSON && form != NIB_FORM_MARKDOWN)
        return nib__fail(err, NIB_USAGE, "form is %d, which is not a nib_form", (int)form);
    return nib__sink_check(sink, err);
}

nib_status nib__strings_check(const char *name, const nib_strings *strings, nib_err *err)
{
    if (strings->count > 0 && strings->items == NULL)
        return nib__fail(err, NIB_USAGE, "%s.items is NULL, but count is %zu", name,
                         strings->count);
    for (size_t i = 0; i < strings->count; i++)
        if (strings->items[i] == NULL)
            return nib__fail(err, NIB_USAGE, "%s.items[%zu] is NULL", name, i);
    return NIB_OK;
}

nib_status nib__number_check(const char *name, int64_t number, nib_err *err)
{
    return number >= 0
               ? NIB_OK
               : nib__fail(err, NIB_USAGE, "%s is %" PRId64 ", which is negative", name, number);
}

void nib_init(void *options, size_t size)
{
    if (options == NULL)
        return;
    memset(options, 0, size);
    if (size >= sizeof size)
        memcpy(options, &size, sizeof size);
}

static size_t size_of(const void *at, size_t known)
{
    size_t size;
    memcpy(&size, at, sizeof size);
    return size != 0 ? size : known;
}

nib_status nib__options_read(void *out, size_t size, size_t used, const void *given,
                             const char *type, nib_err *err)
{
    memset(out, 0, size);
    if (given != NULL) {
        const size_t theirs = size_of(given, size);
        /* the structs of every version are aligned, so another size could cut a member in two */
        if (theirs < sizeof theirs || theirs > SIZE_MOST || theirs % sizeof theirs != 0)
            return nib__fail(err, NIB_USAGE,
                             "%s.size is %zu; set it to sizeof(%s), or start with nib_init", type,
                             theirs, type);
        for (size_t i = used; i < theirs; i++)
            if (((const char *)given)[i] != 0)
                return nib__fail(err, NIB_UNSUPPORTED,
                                 "%s has a value at byte %zu, which this libnibble, version %s, "
                                 "does not have; it was made for a later version",
                                 type, i, nib_version());
        memcpy(out, given, theirs < used ? theirs : used);
    }
    memcpy(out, &size, sizeof size);
    return NIB_OK;
}

void nib__result_write(void *out, const void *result, size_t size, size_t first)
{
    if (out == NULL)
        return;
    const size_t given = size_of(out, first), theirs = given < size ? given : size;
    if (theirs <= sizeof theirs)
        return;
    memcpy((char *)out + sizeof theirs, (const char *)result + sizeof theirs,
           theirs - sizeof theirs);
}

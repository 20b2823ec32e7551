/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading options and writing results whose structs grow from version to version.
 */
#include "public_struct.h"

/* No struct of options will have more bytes; a larger size is a variable without initial value. */
enum { SIZE_MOST = 1 << 16 };

void nib_init(void *options, size_t size)
{
    memset(options, 0, size);
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

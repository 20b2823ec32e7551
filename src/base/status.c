/* SPDX-License-Identifier: Apache-2.0
 *
 * Status names and exit codes, the version, and nib__fail, which formats an error message.
 */
#include "text.h"

#include <stdarg.h>
#include <stdio.h>

static const struct {
    const char *name, *text;
    int exit;
} statuses[] = {
    [NIB_OK] = {"OK", "success", 0},
    [NIB_FAILED] = {"FAILED", "the operation failed", 1},
    [NIB_USAGE] = {"USAGE", "an option or argument is wrong", 2},
    [NIB_BAD_INPUT] = {"BAD_INPUT", "a file or value breaks its format", 3},
    [NIB_UNSUPPORTED] = {"UNSUPPORTED", "the input is valid but not supported", 3},
    [NIB_NOT_AS_ASKED] = {"NOT_AS_ASKED",
                          "what was asked cannot be done, and nothing allowed a substitute", 4},
    [NIB_NO_MEMORY] = {"NO_MEMORY", "out of memory or a limit was reached", 5},
    [NIB_IO] = {"IO", "a file could not be read or written", 6},
    [NIB_EXISTS] = {"EXISTS", "the output exists", 6},
    [NIB_CHECK_FAILED] = {"CHECK_FAILED", "a check failed", 8},
    [NIB_CANCELLED] = {"CANCELLED", "cancelled", 130},
};

static bool is_status(nib_status status)
{
    return (int)status >= 0 && (size_t)status < COUNT(statuses);
}

const char *nib_status_name(nib_status status)
{
    return is_status(status) ? statuses[status].name : "UNKNOWN";
}

const char *nib_status_text(nib_status status)
{
    return is_status(status) ? statuses[status].text : "an unknown status";
}

int nib_status_exit(nib_status status)
{
    return is_status(status) ? statuses[status].exit : statuses[NIB_FAILED].exit;
}

const char *nib_version(void) { return NIB_VERSION; }

int nib_version_number(void) { return NIB_VERSION_NUMBER; }

/* Stores a sentence. If it is too long, cuts it at a code point and appends "...". */
static void store_sentence(nib_err *err, nib_status status, const char *text, int length)
{
    size_t size = length < 0 ? 0 : (size_t)length;
    const bool cut = size >= sizeof err->text;
    if (cut) {
        size = sizeof err->text - sizeof "...";
        while (size > 0 && ((unsigned char)text[size] & 0xc0) == 0x80)
            size--;
    }
    memcpy(err->text, text, size);
    err->text[size] = 0;
    if (cut)
        memcpy(err->text + size, "...", sizeof "...");
    err->status = status;
}

nib_status nib__fail(nib_err *err, nib_status status, const char *format, ...)
{
    if (err == NULL)
        return status;
    /* Not directly into err->text, because an argument may be that text. */
    char text[sizeof err->text];
    va_list args;
    va_start(args, format);
    const int length = nib__vformat(text, sizeof text, format, args);
    va_end(args);
    store_sentence(err, status, text, length);
    return status;
}

nib_status nib__fail_memory(nib_err *err, uint64_t bytes, const char *what)
{
    char size[32];
    return nib__fail(err, NIB_NO_MEMORY, "out of memory: cannot allocate %s for %s",
                     nib__format_bytes(size, bytes), what);
}

nib_status nib__fail_in(nib_err *err, nib_status status, const char *prefix)
{
    return nib__fail(err, status, "%s: %s", prefix, err == NULL ? "" : err->text);
}

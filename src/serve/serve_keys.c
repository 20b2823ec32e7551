/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and compares API keys.
 */
#include "serve.h"
#include "ascii.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { KEYS_MOST = 1024, KEY_LEAST = 8, KEY_MOST = 256 };

nib_status serve_fail(nib_err *err, nib_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    err->status = status;
    return status;
}

/* ---- reading ---- */

static nib_status add_key(serve_keys *keys, const char *path, int line, const char *key,
                          size_t size, nib_err *err)
{
    if (size < KEY_LEAST || size > KEY_MOST)
        return serve_fail(err, NIB_BAD_INPUT,
                          "%s: line %d: a key has %zu characters, but must have %d to %d", path,
                          line, size, KEY_LEAST, KEY_MOST);
    for (size_t i = 0; i < size; i++)
        if (key[i] <= ' ' || key[i] > '~')
            return serve_fail(err, NIB_BAD_INPUT,
                              "%s: line %d: a key has a character that HTTP headers do not allow; "
                              "use ASCII letters, digits and signs",
                              path, line);
    if (keys->count == KEYS_MOST)
        return serve_fail(err, NIB_BAD_INPUT, "%s: more than %d keys", path, KEYS_MOST);
    char **items = realloc(keys->items, (keys->count + 1) * sizeof *items);
    if (items != NULL)
        keys->items = items;
    char *copy = items != NULL ? malloc(size + 1) : NULL;
    if (copy == NULL)
        return serve_fail(err, NIB_NO_MEMORY, "%s: out of memory", path);
    memcpy(copy, key, size);
    copy[size] = 0;
    keys->items[keys->count++] = copy;
    return NIB_OK;
}

/* Reads a line without trailing blanks; false: end of file. `text` gets at most `room` bytes, but
 * *size is the length of the whole line, so that a long line is not cut into keys. */
static bool next_line(FILE *file, char *text, size_t room, size_t *size)
{
    size_t count = 0, end = 0;
    int c;
    while ((c = getc(file)) != EOF && c != '\n') {
        if (count < room)
            text[count] = (char)c;
        count++;
        if (c != ' ' && c != '\t' && c != '\r')
            end = count;
    }
    *size = end;
    return c != EOF || count > 0;
}

static nib_status read_lines(serve_keys *keys, const char *path, FILE *file, nib_err *err)
{
    char text[KEY_MOST];
    size_t size;
    nib_status status = NIB_OK;
    for (int line = 1; status == NIB_OK && next_line(file, text, sizeof text, &size); line++)
        if (size > 0 && text[0] != '#')
            status = add_key(keys, path, line, text, size, err);
    if (status == NIB_OK && ferror(file))
        status = serve_fail(err, NIB_IO, "%s: %s", path, strerror(errno));
    if (status == NIB_OK && keys->count == 0)
        status = serve_fail(err, NIB_BAD_INPUT, "%s: the file has no key", path);
    return status;
}

/* Whether the file is in systemd's directory of credentials. For a unit with its own user, systemd
 * grants access by an ACL entry, and the ACL's mask appears as the group's permissions: the mode is
 * 0440 although no group may read the file. */
static bool is_credential(const char *path)
{
    const char *folder = getenv("CREDENTIALS_DIRECTORY");
    if (folder == NULL || folder[0] != '/')
        return false;
    char *file = realpath(path, NULL), *root = realpath(folder, NULL);
    const size_t size = root != NULL ? strlen(root) : 0;
    const bool is_inside =
        file != NULL && size > 1 && strncmp(file, root, size) == 0 && file[size] == '/';
    free(file);
    free(root);
    return is_inside;
}

nib_status serve_keys_read(serve_keys *out, const char *path, nib_err *err)
{
    struct stat info;
    *out = (serve_keys){0};
    FILE *file = fopen(path, "r");
    if (file == NULL || fstat(fileno(file), &info) != 0) {
        const int why = errno;
        if (file != NULL)
            fclose(file);
        return serve_fail(err, NIB_IO, "%s: %s", path, strerror(why));
    }
    nib_status status = NIB_OK;
    const mode_t others = S_IRWXG | S_IRWXO,
                 allowed = (info.st_mode & others) == S_IRGRP && is_credential(path) ? S_IRGRP : 0;
    if (S_ISREG(info.st_mode) && (info.st_mode & others & ~allowed) != 0)
        status = serve_fail(err, NIB_BAD_INPUT,
                            "%s: others may read this file (mode %o); run `chmod 600` on it", path,
                            (unsigned)info.st_mode & 0777u);
    if (status == NIB_OK)
        status = read_lines(out, path, file, err);
    fclose(file);
    if (status != NIB_OK)
        serve_keys_free(out);
    return status;
}

void serve_keys_free(serve_keys *keys)
{
    for (size_t i = 0; i < keys->count; i++)
        free(keys->items[i]);
    free(keys->items);
    *keys = (serve_keys){0};
}

/* ---- comparing ---- */

/* Compares in constant time: always KEY_MOST characters. */
static unsigned keys_equal(const char *key, const char *given, size_t given_size)
{
    const size_t size = strlen(key);
    unsigned apart = (unsigned)(size ^ given_size);
    for (size_t i = 0; i < KEY_MOST; i++) {
        const unsigned a = (unsigned char)key[i % (size + 1)],
                       b = (unsigned char)given[i % (given_size + 1)];
        apart |= a ^ b;
    }
    return apart == 0;
}

size_t serve_keys_find(const serve_keys *keys, const char *authorization)
{
    static const char scheme[] = "Bearer ";
    size_t found = 0;
    if (authorization == NULL ||
        !same_start_ignoring_case(authorization, scheme, sizeof scheme - 1))
        return 0;
    const char *given = authorization + sizeof scheme - 1;
    const size_t size = strlen(given);
    for (size_t i = 0; i < keys->count; i++)
        found += (i + 1) * (keys_equal(keys->items[i], given, size) & (found == 0));
    return found;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a bundle of model-signing, as the statement in one, and as the bytes that a bundle
 * holds. What is refused has an error text. What is read is within its limits, and is read again,
 * with equal parts, from a bundle or a statement that is written from these.
 */
#include "signed_bundle.h"
#include "signed_files.h"

#include "json.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static bool is_equal(const char *a, size_t a_size, const char *b, size_t b_size)
{
    return a_size == b_size && (a_size == 0 || memcmp(a, b, a_size) == 0);
}

/* ---- bundles ---- */

static void put_base64(nib_jsonw *w, const char *key, const char *bytes, size_t size,
                       const nib_allocator *a)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    nib_text text;
    nib__text_init(&text, a);
    for (size_t bit = 0; bit < 8 * size; bit += 6) {
        const size_t at = bit / 8, shift = bit % 8;
        const unsigned two = (unsigned)(uint8_t)bytes[at] << 8 |
                             (at + 1 < size ? (unsigned)(uint8_t)bytes[at + 1] : 0);
        nib__text_put(&text, &digits[two >> (10 - shift) & 63], 1);
    }
    while (text.size % 4 != 0)
        nib__text_str(&text, "=");
    nib__jsonw_key(w, key);
    nib__jsonw_string_n(w, text.size != 0 ? text.at : "", text.size);
    nib__text_free(&text);
}

static void put_bundle(nib_text *out, const nib_signed_bundle *b, const nib_allocator *a)
{
    nib_jsonw w;
    nib__jsonw_init(&w, out, 0);
    nib__jsonw_object(&w);
    nib__jsonw_key(&w, "dsseEnvelope");
    nib__jsonw_object(&w);
    nib__jsonw_key(&w, "signatures");
    nib__jsonw_array(&w);
    nib__jsonw_object(&w);
    put_base64(&w, "sig", b->signature, b->signature_size, a);
    nib__jsonw_object_end(&w);
    nib__jsonw_array_end(&w);
    put_base64(&w, "payload", b->statement, b->statement_size, a);
    nib__jsonw_pair_string(&w, "payloadType", NIB_STATEMENT_TYPE);
    nib__jsonw_object_end(&w);
    nib__jsonw_key(&w, "verificationMaterial");
    nib__jsonw_object(&w);
    nib__jsonw_key(&w, "publicKey");
    nib__jsonw_object(&w);
    nib__jsonw_pair_string(&w, "hint", b->hint);
    nib__jsonw_object_end(&w);
    nib__jsonw_object_end(&w);
    nib__jsonw_pair_string(&w, "mediaType", "application/vnd.dev.sigstore.bundle.v0.3+json");
    nib__jsonw_object_end(&w);
    require(!out->failed);
}

/* A bundle with these parts is read, and has them. */
static void check_written(const nib_signed_bundle *b, nib_arena *arena, const nib_allocator *a)
{
    nib_signed_bundle again;
    nib_text text;
    nib_err err;
    nib__text_init(&text, a);
    put_bundle(&text, b, a);
    require(nib__bundle_read(&again, "again", text.at, text.size, arena, &err) == NIB_OK);
    require(is_equal(again.statement, again.statement_size, b->statement, b->statement_size));
    require(is_equal(again.signature, again.signature_size, b->signature, b->signature_size));
    require(strcmp(again.hint, b->hint) == 0);
    nib__text_free(&text);
}

/* ---- statements ---- */

static const nib_signed_place places[] = {
    {.directory = "m/", .names = {"model.intoto.json", "model.intoto.json.sig", "model.sig"}},
    {.directory = "m/",
     .file = "m.gguf",
     .names = {"m.gguf.intoto.json", "m.gguf.intoto.json.sig", "m.gguf.sig"}}};

/* A statement on these files is read, and has them. */
static void check_files(const nib_digests *files, const nib_signed_place *place, nib_arena *arena,
                        const nib_allocator *a)
{
    nib_signed_statement again;
    nib_text text;
    nib_err err;
    nib__text_init(&text, a);
    nib__signed_statement_put(&text, place, files, false);
    require(!text.failed);
    require(nib__signed_statement_read(&again, place, "again", text.at, text.size, arena, a,
                                       &err) == NIB_OK);
    require(again.files.count == files->count);
    for (size_t i = 0; i < files->count; i++) {
        require(strcmp(again.files.items[i].name, files->items[i].name) == 0);
        require(nib__digest_equal(&again.files.items[i].digest, &files->items[i].digest));
    }
    nib__digests_free(&again.files, a);
    nib__text_free(&text);
}

/* A name that cannot leave the directory: no part of it is empty, "." or "..". */
static bool is_inside(const char *name)
{
    char part[4] = "";
    size_t size = 0;
    for (const char *at = name;; at++) {
        if (*at != '/' && *at != 0) {
            part[size < 3 ? size : 3] = size < 3 ? *at : '\0';
            size++;
            continue;
        }
        if (size == 0 || (size == 1 && part[0] == '.') ||
            (size == 2 && part[0] == '.' && part[1] == '.'))
            return false;
        if (*at == 0)
            return true;
        size = 0;
    }
}

static void check_statement(const char *text, size_t size, const nib_signed_place *place,
                            nib_arena *arena, const nib_allocator *a)
{
    nib_signed_statement s;
    nib_err err = {.status = NIB_OK};
    if (nib__signed_statement_read(&s, place, "fuzz", text, size, arena, a, &err) == NIB_OK) {
        require(s.files.count > 0);
        for (size_t i = 0; i < s.files.count; i++) {
            require(is_inside(s.files.items[i].name));
            require(i == 0 || strcmp(s.files.items[i - 1].name, s.files.items[i].name) < 0);
        }
        check_files(&s.files, place, arena, a);
    } else {
        require(err.status != NIB_OK && err.text[0] != 0);
    }
    nib__digests_free(&s.files, a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    const char *text = (const char *)data;
    nib_signed_bundle bundle;
    nib_err err = {.status = NIB_OK};
    nib_arena arena;
    nib__arena_init(&arena, &a, 0);
    if (nib__bundle_read(&bundle, "fuzz", text, size, &arena, &err) == NIB_OK) {
        require(bundle.signature_size > 0 && bundle.signature_size <= NIB_EC_SIGNATURE);
        check_written(&bundle, &arena, &a);
        check_statement(bundle.statement, bundle.statement_size, &places[0], &arena, &a);
    } else {
        require(err.status != NIB_OK && err.text[0] != 0);
    }
    for (size_t i = 0; i < COUNT(places); i++)
        check_statement(text, size, &places[i], &arena, &a);
    const nib_signed_bundle any = {.statement = text,
                                   .statement_size = size,
                                   .signature = "any",
                                   .signature_size = 3,
                                   .hint = ""};
    check_written(&any, &arena, &a);
    nib__arena_free(&arena);
    return 0;
}

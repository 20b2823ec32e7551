/* SPDX-License-Identifier: Apache-2.0
 *
 * What is signed is not the statement but DSSE's "DSSEv1 <size> <type> <size> <statement>", so that
 * a signature of one kind of text cannot pass for one of another kind.
 */
#include "signed_bundle.h"

#include "json.h"
#include "signed_files.h"

#include <stdio.h>

enum { KEY_TEXT_MAX = 1 << 16 };

static const char media_type[] = "application/vnd.dev.sigstore.bundle.v0.3+json";

/* ---- base64 (RFC 4648), with padding ---- */

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static void put_base64(nib_text *out, const char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i += 3) {
        const size_t count = size - i < 3 ? size - i : 3;
        uint32_t word = 0;
        char four[4];
        for (size_t j = 0; j < 3; j++)
            word = word << 8 | (j < count ? (uint8_t)bytes[i + j] : 0U);
        for (size_t j = 0; j < 4; j++)
            four[j] = j <= count ? digits[word >> (18 - 6 * j) & 63] : '=';
        nib__text_put(out, four, 4);
    }
}

/* NULL: not base64. */
static const char *read_base64(const char *text, size_t size, size_t *out_size, nib_arena *arena)
{
    char *out = nib__arena_take(arena, size / 4 * 3 + 1, 1);
    size_t count = 0, pad = 0;
    uint32_t word = 0;
    if (out == NULL || size % 4 != 0)
        return NULL;
    while (pad < 2 && pad < size && text[size - 1 - pad] == '=')
        pad++;
    for (size_t i = 0; i < size; i++) {
        const char *digit = i < size - pad ? memchr(digits, text[i], 64) : digits;
        if (digit == NULL)
            return NULL;
        word = word << 6 | (uint32_t)(digit - digits);
        if (i % 4 != 3)
            continue;
        for (int j = 16; j >= 0; j -= 8)
            out[count++] = (char)(uint8_t)(word >> j);
        word = 0;
    }
    *out_size = count - pad;
    out[*out_size] = '\0';
    return out;
}

/* ---- openssl ---- */

static bool goes_on(void *ctx)
{
    const nib_callbacks *c = ((const nib_openssl *)ctx)->callbacks;
    return c == NULL || c->progress == NULL || c->progress(c->ctx, "sign", 0, 1);
}

/* Free out->out with nib__release. second: as nib_process_job. */
static nib_status run(nib_process *out, const char *const *arguments, const nib_text *input,
                      const char *second, size_t second_size, const nib_openssl *o, nib_err *err)
{
    const nib_process_job job = {.arguments = arguments,
                                 .inherits = true, /* where it asks for secrets */
                                 .input = input != NULL ? input->at : NULL,
                                 .input_size = input != NULL ? input->size : 0,
                                 .second = second,
                                 .second_size = second_size,
                                 .limit = KEY_TEXT_MAX,
                                 .keep_going = goes_on,
                                 .ctx = (void *)o};
    const nib_status status = nib__process_run(out, &job, o->allocator, err);
    if (status != NIB_UNSUPPORTED)
        return status;
    return nib__fail(err, NIB_UNSUPPORTED,
                     "openssl is not installed, which makes and checks signatures of keys in PEM");
}

static const char *last_words(const nib_process *p)
{
    return p->last_line[0] != 0 ? p->last_line : "it says nothing";
}

/* ---- keys ---- */

bool nib__ec_is_private(const char *text)
{
    static const char *const starts[] = {
        "-----BEGIN EC PRIVATE KEY-----", "-----BEGIN EC PARAMETERS-----",
        "-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----"};
    for (size_t i = 0; i < COUNT(starts); i++)
        if (strncmp(text, starts[i], strlen(starts[i])) == 0)
            return true;
    return false;
}

bool nib__ec_is_public(const char *text)
{
    static const char start[] = "-----BEGIN PUBLIC KEY-----";
    return strncmp(text, start, strlen(start)) == 0;
}

/* Finds the curve by its identifier in the key's DER. */
static bool find_curve(nib_ec_key *out, const char *pem, nib_arena *arena)
{
    static const struct {
        const char *name, *hash, *id;
        size_t id_size;
    } curves[] = {{"P-256", "-sha256", "\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07", 10},
                  {"P-384", "-sha384", "\x06\x05\x2b\x81\x04\x00\x22", 7},
                  {"P-521", "-sha512", "\x06\x05\x2b\x81\x04\x00\x23", 7}};
    const char *line = strchr(pem, '\n');
    char *text = nib__arena_take(arena, strlen(pem) + 1, 1);
    size_t count = 0, size;
    if (line == NULL || text == NULL)
        return false;
    for (; *line != 0 && *line != '-'; line++)
        if (*line != '\n' && *line != '\r')
            text[count++] = *line;
    const char *der = read_base64(text, count, &size, arena);
    for (size_t c = 0; der != NULL && c < COUNT(curves); c++)
        for (size_t i = 0; i + curves[c].id_size <= size; i++)
            if (memcmp(der + i, curves[c].id, curves[c].id_size) == 0) {
                out->curve = curves[c].name;
                out->hash = curves[c].hash;
                return true;
            }
    return false;
}

nib_status nib__ec_key_read(nib_ec_key *out, const char *path, bool is_private,
                            const nib_openssl *openssl, nib_err *err)
{
    const char *const private[] = {"openssl", "pkey", "-in", path, "-pubout", NULL};
    const char *const public[] = {"openssl", "pkey", "-pubin", "-in", path, "-pubout", NULL};
    char shown[NIB_SHOWN];
    nib_process p;
    *out = (nib_ec_key){.path = path, .is_private = is_private};
    nib__escape_string(shown, path);
    NIB_TRY(run(&p, is_private ? private : public, NULL, NULL, 0, openssl, err));
    nib_status status = NIB_OK;
    if (p.status != 0 || !nib__ec_is_public(p.out))
        status = nib__fail(err, NIB_BAD_INPUT, "%s: openssl cannot read the key: %s", shown,
                           last_words(&p));
    else if (!find_curve(out, p.out, openssl->arena))
        status = nib__fail(err, NIB_UNSUPPORTED,
                           "%s: is not a key on the curves P-256, P-384 or P-521, as `openssl "
                           "ecparam -name prime256v1 -genkey` makes one",
                           shown);
    out->digest = nib__sha256_bytes(p.out, p.size);
    nib__release(openssl->allocator, p.out);
    return status;
}

/* ---- the envelope ---- */

static void put_signed(nib_text *out, const char *statement, size_t size)
{
    nib__text_format(out, "DSSEv1 %zu %s %zu ", strlen(NIB_STATEMENT_TYPE), NIB_STATEMENT_TYPE,
                     size);
    nib__text_put(out, statement, size);
}

static void put_base64_pair(nib_jsonw *w, nib_text *room, const char *key, const char *bytes,
                            size_t size)
{
    nib__text_clear(room);
    put_base64(room, bytes, size);
    nib__jsonw_key(w, key);
    nib__jsonw_string_n(w, room->at, room->size);
}

static void put_bundle(nib_text *out, nib_text *room, const nib_text *statement,
                       const nib_process *signature, const nib_ec_key *key)
{
    char hint[NIB_DIGEST_TEXT];
    nib_jsonw w;
    nib__jsonw_init(&w, out, 1);
    nib__jsonw_object(&w);
    nib__jsonw_pair_string(&w, "mediaType", media_type);
    nib__jsonw_key(&w, "verificationMaterial");
    nib__jsonw_object(&w);
    nib__jsonw_key(&w, "publicKey");
    nib__jsonw_object(&w);
    nib__jsonw_pair_string(&w, "hint", nib__digest_text(hint, &key->digest));
    nib__jsonw_object_end(&w);
    nib__jsonw_key(&w, "tlogEntries");
    nib__jsonw_array(&w);
    nib__jsonw_array_end(&w);
    nib__jsonw_object_end(&w);
    nib__jsonw_key(&w, "dsseEnvelope");
    nib__jsonw_object(&w);
    put_base64_pair(&w, room, "payload", statement->at, statement->size);
    nib__jsonw_pair_string(&w, "payloadType", NIB_STATEMENT_TYPE);
    nib__jsonw_key(&w, "signatures");
    nib__jsonw_array(&w);
    nib__jsonw_object(&w);
    put_base64_pair(&w, room, "sig", signature->out, signature->size);
    nib__jsonw_pair_string(&w, "keyid", "");
    nib__jsonw_object_end(&w);
    nib__jsonw_array_end(&w);
    nib__jsonw_object_end(&w);
    nib__jsonw_object_end(&w);
    nib__text_str(out, "\n");
}

nib_status nib__bundle_sign(nib_text *out, const nib_text *statement, const nib_ec_key *key,
                            const nib_openssl *openssl, nib_err *err)
{
    const char *const arguments[] = {"openssl", "dgst", key->hash, "-sign", key->path, NULL};
    char shown[NIB_SHOWN];
    nib_process signature = {.out = NULL};
    nib_text text;
    nib__text_init(&text, openssl->allocator);
    put_signed(&text, statement->at, statement->size);
    nib_status status = text.failed ? nib__fail_memory(err, statement->size, "a statement")
                                    : run(&signature, arguments, &text, NULL, 0, openssl, err);
    if (status == NIB_OK && (signature.status != 0 || signature.size == 0))
        status = nib__fail(err, NIB_FAILED, "%s: openssl cannot sign with it: %s",
                           nib__escape_string(shown, key->path), last_words(&signature));
    if (status == NIB_OK) {
        put_bundle(out, &text, statement, &signature, key);
        status =
            out->failed || text.failed ? nib__fail_memory(err, out->size, "a signature") : NIB_OK;
    }
    nib__release(openssl->allocator, signature.out);
    nib__text_free(&text);
    return status;
}

nib_status nib__bundle_check(bool *good, char why[NIB_PROCESS_LINE],
                             const nib_signed_bundle *bundle, const nib_ec_key *key,
                             const nib_openssl *openssl, nib_err *err)
{
    const char *const arguments[] = {"openssl", "dgst",       key->hash,       "-verify",
                                     key->path, "-signature", NIB_SECOND_PATH, NULL};
    nib_process p = {.out = NULL};
    nib_text text;
    nib__text_init(&text, openssl->allocator);
    put_signed(&text, bundle->statement, bundle->statement_size);
    const nib_status status =
        text.failed
            ? nib__fail_memory(err, bundle->statement_size, "a statement")
            : run(&p, arguments, &text, bundle->signature, bundle->signature_size, openssl, err);
    *good = status == NIB_OK && p.status == 0;
    if (status == NIB_OK)
        snprintf(why, NIB_PROCESS_LINE, "%s",
                 p.last_line[0] == 0 && p.size != 0 ? p.out : last_words(&p));
    why[strcspn(why, "\r\n")] = '\0';
    nib__release(openssl->allocator, p.out);
    nib__text_free(&text);
    return status;
}

/* ---- reading ---- */

typedef struct reader {
    nib_json json;
    nib_signed_bundle *out;
    const char *media, *type;
    size_t signatures;
    bool certified; /* by a certificate, not a key */
    nib_arena *arena;
} reader;

static bool is_known(reader *r, const char *key) { return nib__json_is(&r->json, key); }

static bool read_string(reader *r, const char **to)
{
    return (*to = nib__json_read_string(&r->json, r->arena, NULL)) != NULL;
}

static bool read_bytes(reader *r, const char **to, size_t *to_size)
{
    size_t size;
    const char *text = nib__json_read_string(&r->json, r->arena, &size);
    if (text == NULL)
        return false;
    *to = read_base64(text, size, to_size, r->arena);
    if (*to == NULL)
        nib__json_fail(&r->json, "is not base64");
    return *to != NULL;
}

static bool read_public_key(void *ctx)
{
    reader *r = ctx;
    return is_known(r, "hint") ? read_string(r, &r->out->hint) : nib__json_skip(&r->json);
}

static bool read_material(void *ctx)
{
    reader *r = ctx;
    r->certified =
        r->certified || is_known(r, "certificate") || is_known(r, "x509CertificateChain");
    return is_known(r, "publicKey") ? nib__json_read_object(&r->json, read_public_key, r)
                                    : nib__json_skip(&r->json);
}

static bool read_signature(void *ctx)
{
    reader *r = ctx;
    return is_known(r, "sig") ? read_bytes(r, &r->out->signature, &r->out->signature_size)
                              : nib__json_skip(&r->json);
}

static bool read_envelope(void *ctx)
{
    reader *r = ctx;
    return is_known(r, "payload")       ? read_bytes(r, &r->out->statement, &r->out->statement_size)
           : is_known(r, "payloadType") ? read_string(r, &r->type)
           : is_known(r, "signatures")
               ? nib__json_read_objects(&r->json, read_signature, r, &r->signatures)
               : nib__json_skip(&r->json);
}

static bool read_bundle(void *ctx)
{
    reader *r = ctx;
    nib_json *json = &r->json;
    return is_known(r, "mediaType")              ? read_string(r, &r->media)
           : is_known(r, "verificationMaterial") ? nib__json_read_object(json, read_material, r)
           : is_known(r, "dsseEnvelope")         ? nib__json_read_object(json, read_envelope, r)
                                                 : nib__json_skip(json);
}

nib_status nib__bundle_read(nib_signed_bundle *out, const char *name, const char *text, size_t size,
                            nib_arena *arena, nib_err *err)
{
    reader r = {.out = out, .arena = arena};
    char shown[NIB_SHOWN];
    *out = (nib_signed_bundle){.hint = ""};
    nib__json_init(&r.json, name, text, size, NULL);
    if (nib__json_read_object(&r.json, read_bundle, &r))
        nib__json_next(&r.json);
    NIB_TRY(nib__json_status(&r.json, err));
    if (r.media == NULL || strcmp(r.media, media_type) != 0)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: its mediaType is \"%s\", but only \"%s\" is read", name,
                         r.media != NULL ? nib__escape_string(shown, r.media) : "", media_type);
    if (r.certified)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: is signed by a certificate, but only signatures by a key are read",
                         name);
    if (r.type == NULL || strcmp(r.type, NIB_STATEMENT_TYPE) != 0)
        return nib__fail(
            err, NIB_UNSUPPORTED, "%s: its payloadType is \"%s\", but only \"%s\" is read", name,
            r.type != NULL ? nib__escape_string(shown, r.type) : "", NIB_STATEMENT_TYPE);
    if (r.signatures != 1 || out->statement == NULL || out->signature == NULL ||
        out->signature_size == 0 || out->signature_size > NIB_EC_SIGNATURE)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: does not hold one statement with one signature of at most %d bytes",
                         name, NIB_EC_SIGNATURE);
    return NIB_OK;
}

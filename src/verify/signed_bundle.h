/* SPDX-License-Identifier: Apache-2.0
 *
 * The signature of OpenSSF model-signing 1.1 with a key: a sigstore bundle of version 0.3, in which
 * an envelope (DSSE 1.0) holds the in-toto statement and an ECDSA signature. openssl makes and
 * checks the latter.
 */
#ifndef NIB_SIGNED_BUNDLE_H
#define NIB_SIGNED_BUNDLE_H

#include "process.h"
#include "sha256.h"
#include "text.h"

enum { NIB_EC_SIGNATURE = 256 /* bytes of one, at most: two numbers of 66 in DER */ };

/* A public key on an elliptic curve, as openssl prints it. */
typedef struct nib_ec_key {
    const char *path;
    nib_digest digest; /* SHA-256 of the text, by which a bundle names its key */
    const char *hash;  /* of the curve: "-sha256", "-sha384", "-sha512" */
    const char *curve; /* "P-256", ... */
    bool is_private;   /* path holds the private half */
} nib_ec_key;

/* A bundle that was read; in the arena. */
typedef struct nib_signed_bundle {
    const char *statement;
    size_t statement_size;
    const char *signature; /* DER */
    size_t signature_size;
    const char *hint; /* "": does not name its key */
} nib_signed_bundle;

/* Whether the text of a file begins as a private or public key in PEM. */
bool nib__ec_is_private(const char *text);
bool nib__ec_is_public(const char *text);

/* What openssl runs with: callbacks with "sign" can stop it, NULL allowed. */
typedef struct nib_openssl {
    const nib_callbacks *callbacks;
    nib_arena *arena;
    const nib_allocator *allocator;
} nib_openssl;

/* Reads the public half of a key in PEM; asks for its passphrase itself. NIB_UNSUPPORTED: there is
 * no openssl, or it is not on P-256, P-384 or P-521; NIB_BAD_INPUT: openssl cannot read it. */
nib_status nib__ec_key_read(nib_ec_key *out, const char *path, bool is_private,
                            const nib_openssl *openssl, nib_err *err);
/* The bundle with a statement and its signature by a private key, as JSON. NIB_FAILED: openssl
 * cannot sign. */
nib_status nib__bundle_sign(nib_text *out, const nib_text *statement, const nib_ec_key *key,
                            const nib_openssl *openssl, nib_err *err);
/* NIB_BAD_INPUT: not a bundle with one signed statement; NIB_UNSUPPORTED: of another kind. name:
 * for messages. */
nib_status nib__bundle_read(nib_signed_bundle *out, const char *name, const char *text, size_t size,
                            nib_arena *arena, nib_err *err);
/* Whether the signature is one of the statement by the key. why: what openssl says otherwise. */
nib_status nib__bundle_check(bool *good, char why[NIB_PROCESS_LINE],
                             const nib_signed_bundle *bundle, const nib_ec_key *key,
                             const nib_openssl *openssl, nib_err *err);

#endif

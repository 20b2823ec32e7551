/* SPDX-License-Identifier: Apache-2.0
 *
 * Signatures of checkpoints, made and checked by the user's ssh-keygen, an SSH signature beside the
 * statement on the checkpoint's files; or by openssl, in model-signing's bundle.
 */
#ifndef NIB_SIGNATURE_H
#define NIB_SIGNATURE_H

#include "ledger.h"
#include "signed_files.h"

/* What kind of key a file holds. */
typedef enum nib_key_kind {
    NIB_KEY_SSH, /* a private key of OpenSSH, or a public one whose private half an agent has */
    NIB_KEY_EC   /* a private key in PEM, on an elliptic curve */
} nib_key_kind;

/* The kind of a key to sign with. NIB_BAD_INPUT: the file holds no key. */
nib_status nib__key_kind(nib_key_kind *out, const char *path, const nib_allocator *a, nib_err *err);

typedef struct nib_signed {
    size_t files;
    const char *statement, *signature; /* the files written; the same one: a bundle */
} nib_signed;

/* Signs every file of the checkpoint at `path` and writes the statement and the signature, each
 * whole or not at all. The program that signs asks for a passphrase itself. NIB_EXISTS: there is a
 * signature of this kind, and force is not set; NIB_UNSUPPORTED: no ssh-keygen, or openssl, here;
 * NIB_FAILED: it refuses the key. */
nib_status nib__sign(nib_signed *out, const char *path, const char *key, bool force,
                     const nib_callbacks *callbacks, nib_arena *arena, const nib_allocator *a,
                     nib_err *err);

typedef struct nib_signature_job {
    const char *path;    /* of the checkpoint */
    const char *signers; /* allowed_signers of ssh-keygen(1), or a public key in PEM; NULL: who
                            signed is not checked */
    const char *signer;  /* who must have signed; NULL: anyone whom the file lists */
    nib_signed_report report;
    nib_ledger *notes; /* gets who signed what */
    const nib_callbacks *callbacks;
    nib_arena *arena;
    const nib_allocator *allocator;
} nib_signature_job;

/* Reports what is wrong with the signature and with the signed files. Without signers, only
 * compares the files with a statement that is there. Fails only if a check could not be done. */
nib_status nib__signature_check(const nib_signature_job *job, nib_err *err);

#endif

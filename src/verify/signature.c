/* SPDX-License-Identifier: Apache-2.0
 *
 * Signs and checks with ssh-keygen -Y, in the namespace "file". The statement goes through a pipe,
 * so what is checked is what is then compared with the files.
 */
#include "signature.h"

#include "signed_bundle.h"

#include <stdio.h>

enum { KEY_MAX = 1 << 20, SIGNERS_MAX = 16 << 20, STATEMENT_MAX = 256 << 20, OUTPUT_MAX = 1 << 20 };

static const char purpose[] = "file", key_words[] = " with ";

/* ---- programs ---- */

typedef struct stopper {
    const nib_callbacks *callbacks;
} stopper;

static bool goes_on(void *ctx)
{
    const nib_callbacks *c = ((const stopper *)ctx)->callbacks;
    return c == NULL || c->progress == NULL || c->progress(c->ctx, "sign", 0, 1);
}

/* Runs ssh-keygen on a text; free out->out with nib__release. */
static nib_status run_keygen(nib_process *out, const char *const *arguments, const nib_text *input,
                             const nib_callbacks *callbacks, const nib_allocator *a, nib_err *err)
{
    stopper s = {callbacks};
    const nib_process_job job = {.arguments = arguments,
                                 .inherits = true, /* its agent, and where it asks for secrets */
                                 .input = input != NULL ? input->at : NULL,
                                 .input_size = input != NULL ? input->size : 0,
                                 .limit = OUTPUT_MAX,
                                 .keep_going = goes_on,
                                 .ctx = &s};
    const nib_status status = nib__process_run(out, &job, a, err);
    if (status != NIB_UNSUPPORTED)
        return status;
    return nib__fail(err, NIB_UNSUPPORTED,
                     "ssh-keygen is not installed, which makes and checks signatures: it is a part "
                     "of OpenSSH, in most systems the package openssh-client");
}

static const char *last_words(const nib_process *p)
{
    return p->last_line[0] != 0 ? p->last_line : "it says nothing";
}

/* ---- keys ---- */

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

nib_status nib__key_kind(nib_key_kind *out, const char *path, const nib_allocator *a, nib_err *err)
{
    static const char *const starts[] = {"-----BEGIN OPENSSH PRIVATE KEY-----", "ssh-",
                                         "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-"};
    char *text, shown[NIB_SHOWN];
    size_t size;
    bool found = false;
    NIB_TRY(nib__file_read(&text, &size, path, KEY_MAX, a, err));
    for (size_t i = 0; i < COUNT(starts); i++)
        found = found || starts_with(text, starts[i]);
    *out = nib__ec_is_private(text) ? NIB_KEY_EC : NIB_KEY_SSH;
    nib__release(a, text);
    if (found || *out == NIB_KEY_EC)
        return NIB_OK;
    return nib__fail(err, NIB_BAD_INPUT,
                     "%s: is not a key of OpenSSH, as `ssh-keygen -t ed25519` makes one, nor a "
                     "private key in PEM",
                     nib__escape_string(shown, path));
}

/* ---- signing ---- */

static nib_status sign_text(nib_process *out, const nib_text *statement, const char *key,
                            const nib_callbacks *callbacks, const nib_allocator *a, nib_err *err)
{
    const char *const arguments[] = {"ssh-keygen", "-Y", "sign", "-n", purpose, "-f", key, NULL};
    char shown[NIB_SHOWN];
    NIB_TRY(run_keygen(out, arguments, statement, callbacks, a, err));
    if (out->status == 0 && starts_with(out->out, "-----BEGIN SSH SIGNATURE-----"))
        return NIB_OK;
    const nib_status status = nib__fail(err, NIB_FAILED, "%s: ssh-keygen cannot sign with it: %s",
                                        nib__escape_string(shown, key), last_words(out));
    nib__release(a, out->out);
    return status;
}

static nib_status write_signature(const nib_signed_place *place, const nib_text *statement,
                                  const nib_process *signature, const nib_allocator *a,
                                  nib_err *err)
{
    NIB_TRY(nib__file_replace(place->statement, statement->at, statement->size, a, err));
    return nib__file_replace(place->signature, signature->out, signature->size, a, err);
}

/* Also removes what a killed run left, so that it is not signed. */
static nib_status check_place(const nib_signed_place *place, nib_key_kind kind, bool force,
                              nib_err *err)
{
    const char *const of_ssh[] = {place->signature, place->statement}, *const of_ec[] = {
                                                                           place->bundle};
    const char *const *paths = kind == NIB_KEY_EC ? of_ec : of_ssh;
    const size_t count = kind == NIB_KEY_EC ? COUNT(of_ec) : COUNT(of_ssh);
    char shown[NIB_SHOWN], part[NIB_PART_PATH];
    for (size_t i = 0; i < count; i++) {
        NIB_TRY(nib__part_choose(part, paths[i], ".part", err));
        NIB_TRY(nib__file_may_replace(paths[i], err));
        if (!force && nib__path_kind(paths[i]) != NIB_PATH_NONE)
            return nib__fail(err, NIB_EXISTS, "%s: exists already; --force replaces it",
                             nib__escape_string(shown, paths[i]));
    }
    return NIB_OK;
}

static nib_status sign_by_ssh(const nib_signed_place *place, const nib_text *statement,
                              const char *key, const nib_openssl *with, nib_err *err)
{
    nib_process signature;
    NIB_TRY(sign_text(&signature, statement, key, with->callbacks, with->allocator, err));
    const nib_status status = write_signature(place, statement, &signature, with->allocator, err);
    nib__release(with->allocator, signature.out);
    return status;
}

static nib_status sign_by_ec(const nib_signed_place *place, const nib_text *statement,
                             const nib_ec_key *key, const nib_openssl *with, nib_err *err)
{
    nib_text bundle;
    nib__text_init(&bundle, with->allocator);
    nib_status status = nib__bundle_sign(&bundle, statement, key, with, err);
    if (status == NIB_OK)
        status = nib__file_replace(place->bundle, bundle.at, bundle.size, with->allocator, err);
    nib__text_free(&bundle);
    return status;
}

nib_status nib__sign(nib_signed *out, const char *path, const char *key, bool force,
                     const nib_callbacks *callbacks, nib_arena *arena, const nib_allocator *a,
                     nib_err *err)
{
    const nib_openssl with = {callbacks, arena, a};
    nib_key_kind kind;
    nib_signed_place place;
    nib_ec_key ec;
    nib_digests files;
    bool links;
    NIB_TRY(nib__key_kind(&kind, key, a, err));
    NIB_TRY(nib__signed_place(&place, path, arena, err));
    NIB_TRY(check_place(&place, kind, force, err));
    if (kind == NIB_KEY_EC)
        NIB_TRY(nib__ec_key_read(&ec, key, true, &with, err));
    nib_text statement;
    nib__text_init(&statement, a);
    nib_status status = nib__signed_files_hash(&files, &links, &place, callbacks, arena, a, err);
    if (status == NIB_OK) {
        nib__signed_statement_put(&statement, &place, &files, links);
        status = statement.failed ? nib__fail_memory(err, statement.size, "a statement") : NIB_OK;
    }
    if (status == NIB_OK)
        status = kind == NIB_KEY_EC ? sign_by_ec(&place, &statement, &ec, &with, err)
                                    : sign_by_ssh(&place, &statement, key, &with, err);
    *out = kind == NIB_KEY_EC ? (nib_signed){files.count, place.bundle, place.bundle}
                              : (nib_signed){files.count, place.statement, place.signature};
    nib__digests_free(&files, a);
    nib__text_free(&statement);
    return status;
}

/* ---- checking ---- */

typedef struct check {
    const nib_signature_job *job;
    nib_signed_place place;
    nib_text statement;
    const char *from;           /* the name of the file that holds the statement */
    const char *name;           /* and of the one that holds the signature */
    char key[NIB_PROCESS_LINE]; /* "ED25519 key SHA256:..." */
    nib_err *err;
} check;

static nib_status report(check *c, const char *code, const char *format, ...) NIB_PRINTF(3, 4);

/* About the signature's file. */
static nib_status report(check *c, const char *code, const char *format, ...)
{
    char text[700];
    va_list args;
    va_start(args, format);
    nib__vformat(text, sizeof text, format, args);
    va_end(args);
    return c->job->report.add(c->job->report.ctx, code, c->name, text);
}

static nib_status keygen(check *c, nib_process *out, const char *const *arguments)
{
    return run_keygen(out, arguments, &c->statement, c->job->callbacks, c->job->allocator, c->err);
}

/* Whether the signature is one of the statement, by any key. */
static nib_status check_signature(check *c, bool *good)
{
    const char *const arguments[] = {"ssh-keygen", "-Y", "check-novalidate", "-n",
                                     purpose,      "-s", c->place.signature, NULL};
    nib_process p;
    NIB_TRY(keygen(c, &p, arguments));
    const char *key = strstr(p.out, key_words);
    *good = p.status == 0 && key != NULL;
    nib_status status = NIB_OK;
    if (*good)
        snprintf(c->key, sizeof c->key, "%.*s", (int)strcspn(key + strlen(key_words), "\r\n"),
                 key + strlen(key_words));
    else
        status = report(c, "signature",
                        "is not a signature of %s: one of them was changed (ssh-keygen: %s)",
                        nib__path_name(c->place.statement), last_words(&p));
    nib__release(c->job->allocator, p.out);
    return status;
}

/* Whether the signature is by this person. why: NIB_PROCESS_LINE bytes. */
static nib_status check_signer(check *c, const char *signer, bool *good, char *why)
{
    const char *const arguments[] = {"ssh-keygen", "-Y", "verify", "-f", c->job->signers,    "-I",
                                     signer,       "-n", purpose,  "-s", c->place.signature, NULL};
    nib_process p;
    NIB_TRY(keygen(c, &p, arguments));
    *good = p.status == 0;
    snprintf(why, NIB_PROCESS_LINE, "%s", last_words(&p));
    nib__release(c->job->allocator, p.out);
    return NIB_OK;
}

/* The names that the file of signers has for the key, one a line; "": none. */
static nib_status find_signers(check *c, const char **out)
{
    const char *const arguments[] = {"ssh-keygen",    "-Y", "find-principals",  "-f",
                                     c->job->signers, "-s", c->place.signature, NULL};
    nib_process p;
    NIB_TRY(keygen(c, &p, arguments));
    *out = nib__arena_copy(c->job->arena, p.out, p.status == 0 ? p.size : 0);
    nib__release(c->job->allocator, p.out);
    return *out != NULL ? NIB_OK : nib__fail_memory(c->err, p.size, "the names of signers");
}

static void note_signer(check *c, const char *signer, size_t files)
{
    char shown[NIB_SHOWN];
    nib__ledger_add_note(c->job->notes, "signature", "%s: signed by %s, %s; %zu file%s listed",
                         c->name, nib__escape_string(shown, signer), c->key, files,
                         files == 1 ? " is" : "s are");
}

/* Tries each name of a list of lines and of patterns with commas. *by: the one that signed; NULL */
static nib_status try_signers(check *c, const char *names, const char **by, char *why)
{
    bool good = false;
    *by = NULL;
    for (const char *at = names; *at != 0 && !good;) {
        const size_t size = strcspn(at, ",\r\n");
        const char *name = nib__arena_copy(c->job->arena, at, size);
        if (name == NULL)
            return nib__fail_memory(c->err, size, "a signer's name");
        if (size != 0)
            NIB_TRY(check_signer(c, name, &good, why));
        if (good)
            *by = name;
        at += size + (at[size] != 0);
    }
    return NIB_OK;
}

/* Who signed; *by NULL: it was reported that nobody whom the file lists has. */
static nib_status find_signer(check *c, const char **by)
{
    const nib_signature_job *job = c->job;
    char why[NIB_PROCESS_LINE], a[NIB_SHOWN], b[NIB_SHOWN], d[NIB_SHOWN];
    const char *names, *signer;
    NIB_TRY(find_signers(c, &names));
    NIB_TRY(try_signers(c, job->signer != NULL ? job->signer : names, by, why));
    if (*by != NULL)
        return NIB_OK;
    nib__escape_string(a, job->signers);
    if (names[0] == 0)
        return report(c, "signer", "is by the %s, which %s does not list", c->key, a);
    signer = nib__arena_copy(job->arena, names, strcspn(names, "\r\n"));
    if (signer == NULL)
        return nib__fail_memory(c->err, strlen(names), "a signer's name");
    nib__escape_string(b, signer);
    if (job->signer != NULL)
        return report(c, "signer", "is by %s, by the %s, not by %s", b, c->key,
                      nib__escape_string(d, job->signer));
    return report(c, "signer", "is by the %s of %s, whose entry in %s does not hold: %s", c->key, b,
                  a, why);
}

static nib_status compare_files(check *c, size_t *files)
{
    const nib_signature_job *job = c->job;
    nib_signed_statement s;
    nib_err why = {NIB_OK, ""};
    nib_status status =
        nib__signed_statement_read(&s, &c->place, c->from, c->statement.at, c->statement.size,
                                   job->arena, job->allocator, &why);
    *files = s.files.count;
    if (status == NIB_OK)
        status = nib__signed_files_compare(&s, &c->place, &job->report, job->callbacks, job->arena,
                                           job->allocator, c->err);
    else if (status == NIB_NO_MEMORY)
        status = nib__fail(c->err, status, "%s", why.text);
    else
        status = job->report.add(job->report.ctx, "signature", c->from, why.text);
    nib__digests_free(&s.files, job->allocator);
    return status;
}

/* Reads the statement; *found: it is there. */
static nib_status read_statement(check *c, bool *found)
{
    char *text;
    size_t size;
    *found = nib__path_kind(c->place.statement) != NIB_PATH_NONE;
    if (!*found)
        return NIB_OK;
    NIB_TRY(
        nib__file_read(&text, &size, c->place.statement, STATEMENT_MAX, c->job->allocator, c->err));
    nib__text_put(&c->statement, text, size);
    nib__release(c->job->allocator, text);
    return c->statement.failed ? nib__fail_memory(c->err, size, "a statement") : NIB_OK;
}

/* ---- bundles ---- */

/* Reads a bundle and its statement; *found: it is there and sound, else what is wrong with it was
 * reported. */
static nib_status read_bundle(check *c, nib_signed_bundle *bundle, bool *found)
{
    char *text;
    size_t size;
    nib_err why = {NIB_OK, ""};
    NIB_TRY(
        nib__file_read(&text, &size, c->place.bundle, STATEMENT_MAX, c->job->allocator, c->err));
    const nib_status status = nib__bundle_read(bundle, c->name, text, size, c->job->arena, &why);
    nib__release(c->job->allocator, text);
    *found = status == NIB_OK;
    if (status == NIB_NO_MEMORY)
        return nib__fail(c->err, status, "%s", why.text);
    if (status != NIB_OK)
        return c->job->report.add(c->job->report.ctx, "signature", c->name, why.text);
    nib__text_put(&c->statement, bundle->statement, bundle->statement_size);
    return c->statement.failed ? nib__fail_memory(c->err, size, "a statement") : NIB_OK;
}

/* With a public key in PEM: the bundle, whether it is by this key, and the files. */
static nib_status check_bundle(check *c)
{
    const nib_signature_job *job = c->job;
    const nib_openssl with = {job->callbacks, job->arena, job->allocator};
    char digest[NIB_DIGEST_TEXT], why[NIB_PROCESS_LINE] = "", shown[NIB_SHOWN];
    nib_signed_bundle bundle;
    nib_ec_key key;
    bool good;
    size_t files;
    NIB_TRY(nib__ec_key_read(&key, job->signers, false, &with, c->err));
    if (nib__path_kind(c->place.bundle) == NIB_PATH_NONE)
        return report(c, "unsigned",
                      "is not there: nobody signed the checkpoint with such a key, or the "
                      "signature was removed");
    NIB_TRY(read_bundle(c, &bundle, &good));
    if (!good)
        return NIB_OK;
    nib__digest_text(digest, &key.digest);
    if (bundle.hint[0] != 0 && strcmp(bundle.hint, digest) != 0)
        return report(c, "signer", "is by the key with SHA-256 %s, and that of %s is %s",
                      nib__escape_string(shown, bundle.hint), job->signers, digest);
    NIB_TRY(nib__bundle_check(&good, why, &bundle, &key, &with, c->err));
    if (!good)
        return report(c, "signature",
                      "is not a signature of its statement by this key: one of them was changed "
                      "(openssl: %s)",
                      why);
    snprintf(c->key, sizeof c->key, "%s key SHA-256 %s", key.curve, digest);
    NIB_TRY(compare_files(c, &files));
    note_signer(c, job->signers, files);
    return NIB_OK;
}

/* ---- both ---- */

/* With signers: the signature, who made it, and the files. */
static nib_status check_signed(check *c)
{
    const char *by;
    bool found, good;
    size_t files;
    if (nib__path_kind(c->place.signature) == NIB_PATH_NONE)
        return report(c, "unsigned",
                      "is not there: nobody signed the checkpoint, or the signature "
                      "was removed");
    NIB_TRY(read_statement(c, &found));
    if (!found)
        return report(c, "unsigned", "is there, but %s, which it signs, is not",
                      nib__path_name(c->place.statement));
    NIB_TRY(check_signature(c, &good));
    if (!good)
        return NIB_OK; /* what the statement says means nothing */
    NIB_TRY(find_signer(c, &by));
    NIB_TRY(compare_files(c, &files));
    if (by != NULL)
        note_signer(c, by, files);
    return NIB_OK;
}

static nib_status compare_listed(check *c)
{
    size_t files;
    NIB_TRY(compare_files(c, &files));
    nib__ledger_add_note(c->job->notes, "signature",
                         "%s lists %zu file%s; who signed it was not checked: --signers FILE does",
                         c->from, files, files == 1 ? "" : "s");
    return NIB_OK;
}

/* Without: only the files, if there are statements. */
static nib_status check_listed(check *c)
{
    nib_signed_bundle bundle;
    bool found;
    NIB_TRY(read_statement(c, &found));
    if (found)
        NIB_TRY(compare_listed(c));
    if (nib__path_kind(c->place.bundle) == NIB_PATH_NONE)
        return NIB_OK;
    nib__text_clear(&c->statement);
    c->from = c->name = nib__path_name(c->place.bundle);
    NIB_TRY(read_bundle(c, &bundle, &found));
    return found ? compare_listed(c) : NIB_OK;
}

nib_status nib__signature_check(const nib_signature_job *job, nib_err *err)
{
    check c = {.job = job, .err = err};
    nib_path_kind kind;
    char *text;
    size_t size;
    bool is_key = false;
    if (job->signer != NULL && job->signers == NULL)
        return nib__fail(err, NIB_USAGE, "--signer has no effect without --signers");
    if (job->signers != NULL) {
        NIB_TRY(nib__file_read(&text, &size, job->signers, SIGNERS_MAX, job->allocator, err));
        is_key = nib__ec_is_public(text);
        nib__release(job->allocator, text);
    }
    if (is_key && job->signer != NULL)
        return nib__fail(err, NIB_USAGE, "--signer has no effect with a public key as --signers");
    NIB_TRY(nib__path_look(&kind, job->path, err));
    if (kind == NIB_PATH_NONE && job->signers == NULL)
        return NIB_OK; /* removed since it was opened: nothing beside it is its own */
    const nib_status placed = nib__signed_place(&c.place, job->path, job->arena, err);
    if (placed == NIB_UNSUPPORTED && job->signers == NULL)
        return NIB_OK; /* a part of a checkpoint has no statement of its own */
    NIB_TRY(placed);
    nib__text_init(&c.statement, job->allocator);
    c.from = nib__path_name(is_key ? c.place.bundle : c.place.statement);
    c.name = nib__path_name(is_key ? c.place.bundle : c.place.signature);
    const nib_status status = is_key                 ? check_bundle(&c)
                              : job->signers != NULL ? check_signed(&c)
                                                     : check_listed(&c);
    nib__text_free(&c.statement);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements nib_signature_write.
 */
#include "convert.h"
#include "public_struct.h"
#include "signature.h"

static void render(const nib_signed *s, const char *path, nib_form form, nib_text *out)
{
    char a[NIB_SHOWN], b[NIB_SHOWN];
    nib_jsonw w;
    if (form != NIB_FORM_JSON) {
        nib__text_format(out, "signed %zu file%s of %s: %s\n", s->files, s->files == 1 ? "" : "s",
                         nib__escape_string(a, path), nib__escape_string(b, s->signature));
        return;
    }
    nib__jsonw_report(&w, out);
    nib__jsonw_pair_string(&w, "path", path);
    nib__jsonw_pair_int(&w, "files", (int64_t)s->files);
    nib__jsonw_pair_string(&w, "statement", s->statement);
    nib__jsonw_pair_string(&w, "signature", s->signature);
    nib__jsonw_report_end(&w);
}

static nib_status sign(const nib_engine *engine, const char *path, const nib_signature_options *o,
                       nib_form form, const nib_sink *sink, nib_err *err)
{
    nib_arena arena;
    nib_signed result;
    nib_text text;
    nib__arena_init(&arena, &engine->allocator, 0);
    nib__text_init(&text, &engine->allocator);
    nib_status status = nib__sign(&result, path, o->key, o->force, &engine->callbacks, &arena,
                                  &engine->allocator, err);
    if (status == NIB_OK) {
        render(&result, path, form, &text);
        status = nib__text_flush(&text, sink, err);
    }
    nib__text_free(&text);
    nib__arena_free(&arena);
    return status;
}

nib_status nib_signature_write(nib_engine *engine, const char *path,
                               const nib_signature_options *options, nib_form form,
                               const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "engine", engine);
    NIB_TRY(nib__report_check(form, sink, err));
    NIB_OPTIONS(nib_signature_options, o, options, err);
    NIB_TRY(nib__engine_check(engine, err));
    nib_key_kind kind;
    if (o.key == NULL)
        return nib__fail(err, NIB_USAGE, "signing needs a key");
    if (o.dry_run)
        return nib__key_kind(&kind, o.key, &engine->allocator, err);
    if (path == NULL)
        return nib__fail(err, NIB_USAGE, "no checkpoint to sign is given");
    return sign(engine, path, &o, form, sink, err);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * nib_verify_from: holds a checkpoint against its receipt. Compares the source and the files that
 * the options named with the hashes in the receipt, makes the output again beside the checkpoint,
 * compares every file, and says of each that differs whether it, or the receipt, was changed.
 */
#include "convert.h"
#include "findings.h"
#include "public_struct.h"
#include "receipt_options.h"
#include "signature.h"

#include <inttypes.h>
#include <stdio.h>

enum { TENSORS_SHOWN = 20 };

/* One file: as the receipt names it, as it is stored, and as the source gives it. */
typedef struct file_check {
    const char *name;
    nib_digest named, stored, made;
    bool is_stored, is_made;
} file_check;

typedef struct check {
    nib_model *model, *source;
    nib_verify_from_options options;
    const nib_allocator *allocator;
    nib_arena arena;
    nib_ledger notes;
    nib_read_receipt receipt;
    nib_findings findings;
    file_check *files;
    size_t file_count;
    bool made; /* the output was made again */
    nib_err *err;
} check;

static const char *path_of(const nib_model *model)
{
    return nib__checkpoint_path(model->net.checkpoint);
}

nib_status nib__verify_signature(const nib_model *model, const nib_verify_from_options *options,
                                 nib_findings *findings, nib_ledger *notes, nib_err *err)
{
    const nib_engine *engine = model->engine;
    const nib_signature_job job = {.path = path_of(model),
                                   .signers = options->signers,
                                   .signer = options->signer,
                                   .report = {nib__findings_report, findings},
                                   .notes = notes,
                                   .callbacks = &engine->callbacks,
                                   .arena = findings->arena,
                                   .allocator = &engine->allocator};
    return nib__signature_check(&job, err);
}

/* ---- the inputs ---- */

static const nib_digest *find_digest(const nib_digests *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].name, name) == 0)
            return &list->items[i].digest;
    return NULL;
}

/* The digest of the entry with this name, which is mostly at index i. */
static const nib_digest *find_digest_near(const nib_digests *list, size_t i, const char *name)
{
    return i < list->count && strcmp(list->items[i].name, name) == 0 ? &list->items[i].digest
                                                                     : find_digest(list, name);
}

/* Compares two lists of the source; kind: "tensor". */
static nib_status compare_lists(check *c, const char *kind, const nib_digests *named,
                                const nib_digests *stored)
{
    size_t changed = 0, missing = 0, surplus = 0;
    const char *first_changed = "", *first_missing = "", *first_surplus = "", *source;
    char a[NIB_SHOWN];
    for (size_t i = named->count; i-- > 0;) {
        const nib_named_digest *n = &named->items[i];
        const nib_digest *found = find_digest_near(stored, i, n->name);
        if (found == NULL)
            missing++, first_missing = n->name;
        else if (!nib__digest_equal(found, &n->digest))
            changed++, first_changed = n->name;
    }
    for (size_t i = stored->count; i-- > 0;)
        if (find_digest_near(named, i, stored->items[i].name) == NULL)
            surplus++, first_surplus = stored->items[i].name;
    source = path_of(c->source);
    if (changed != 0)
        NIB_TRY(
            nib__findings_add(&c->findings, "source", source,
                              "%zu of %zu %ss %s other bytes than the receipt names, the first %s: "
                              "the source has changed, or it is another one",
                              changed, named->count, kind, changed == 1 ? "has" : "have",
                              nib__escape_string(a, first_changed)));
    if (missing != 0)
        NIB_TRY(nib__findings_add(
            &c->findings, "source", source,
            "%zu of the %zu %ss that the receipt names %s missing, the first %s", missing,
            named->count, kind, missing == 1 ? "is" : "are", nib__escape_string(a, first_missing)));
    if (surplus != 0)
        NIB_TRY(nib__findings_add(
            &c->findings, "source", source, "%zu %s%s not in the receipt, the first %s", surplus,
            kind, surplus == 1 ? " is" : "s are", nib__escape_string(a, first_surplus)));
    return NIB_OK;
}

static nib_status check_tensors(check *c, nib_digests *stored)
{
    const nib_checkpoint *cp = c->source->net.checkpoint;
    for (size_t i = 0; i < nib__checkpoint_count(cp); i++) {
        const nib_tensor *t = nib__checkpoint_at(cp, i);
        const nib_digest digest = nib__digest_tensor(cp, t);
        NIB_TRY(nib__digests_add(stored, t->name, &digest, c->allocator, c->err));
    }
    return compare_lists(c, "tensor", &c->receipt.tensors, stored);
}

static nib_status check_source(check *c)
{
    nib_digests tensors = {.count = 0}, files = {.count = 0};
    nib_status status = check_tensors(c, &tensors);
    if (status == NIB_OK)
        status = nib__digest_source_files(&files, c->source->net.checkpoint, &c->arena,
                                          c->allocator, c->err);
    if (status == NIB_OK)
        status = compare_lists(c, "file", &c->receipt.files, &files);
    nib__digests_free(&tensors, c->allocator);
    nib__digests_free(&files, c->allocator);
    return status;
}

/* Compares a file that an option named. found: as it is now; *path: where. */
static nib_status compare_input(check *c, const char *option, const nib_asked_file *named,
                                const nib_asked_file *found)
{
    char a[NIB_DIGEST_TEXT], b[NIB_DIGEST_TEXT];
    if (named->size == found->size && nib__digest_equal(&named->digest, &found->digest))
        return NIB_OK;
    return nib__findings_add(
        &c->findings, option, found->path,
        "has %" PRIu64 " bytes and SHA-256 %s, but the receipt names %" PRIu64
        " bytes and %s: it has changed, or is another file; --%s FILE names the "
        "right one",
        found->size, nib__digest_text(a, &found->digest), named->size,
        nib__digest_text(b, &named->digest), option);
}

/* Checks an input where it is now, and uses it from there. */
static nib_status check_input(check *c, const char *option, nib_asked_file *named,
                              const char *elsewhere)
{
    const bool is_tokenizer = named == &c->receipt.asked.tokenizer;
    nib_asked_file found;
    nib_err why = {NIB_OK, ""};
    if (named->path == NULL && elsewhere != NULL)
        return nib__fail(c->err, NIB_USAGE, "--%s %s has no effect: the receipt names no such file",
                         option, elsewhere);
    if (named->path == NULL)
        return NIB_OK;
    const char *path = elsewhere != NULL ? elsewhere : named->path;
    const nib_status status = is_tokenizer ? nib__asked_tokenizer(&found, path, &c->arena, &why)
                                           : nib__asked_file(&found, path, &why);
    if (status != NIB_OK)
        return nib__findings_add(&c->findings, option, path, "%s; --%s FILE says where it is now",
                                 why.text, option);
    NIB_TRY(compare_input(c, option, named, &found));
    named->path = path;
    return NIB_OK;
}

static nib_status check_inputs(check *c)
{
    nib_asked *asked = &c->receipt.asked;
    NIB_TRY(check_input(c, "calibrate", &asked->text, c->options.calibrate));
    NIB_TRY(check_input(c, "imatrix", &asked->imatrix, c->options.imatrix));
    NIB_TRY(check_input(c, "tokenizer", &asked->tokenizer, c->options.tokenizer));
    const nib_model_options options = {
        .size = sizeof options, .convert = asked->convert, .tokenizer = asked->tokenizer.path};
    if (c->findings.count != 0)
        return NIB_OK;
    NIB_TRY(nib_model_open(&c->source, c->model->engine, c->options.source, &options, c->err));
    if (c->source->net.checkpoint == NULL)
        return nib__fail(c->err, NIB_USAGE, "%s: is a config without weights, not a source",
                         c->options.source);
    NIB_TRY(nib__source_order(&c->source, c->model, c->err));
    return check_source(c);
}

/* ---- the files ---- */

/* Hashes the stored file that the receipt lists as entry i. */
static nib_status hash_stored(check *c, file_check *f)
{
    const char *path = path_of(c->model);
    nib_err why = {NIB_OK, ""};
    uint64_t size;
    if (nib__path_kind(path) == NIB_PATH_DIRECTORY) {
        if (strpbrk(f->name, "/\\") != NULL)
            return NIB_OK;
        path = nib__path_join(&c->arena, path, f->name);
        if (path == NULL)
            return nib__fail_memory(c->err, strlen(f->name), "a path");
    }
    f->is_stored = nib__digest_file(&f->stored, &size, path, &why) == NIB_OK;
    return NIB_OK;
}

static nib_status list_files(check *c)
{
    const nib_digests *outputs = &c->receipt.outputs;
    c->files = nib__arena_take(&c->arena, outputs->count, sizeof *c->files);
    if (c->files == NULL)
        return nib__fail_memory(c->err, outputs->count * sizeof *c->files, "the files");
    for (; c->file_count < outputs->count; c->file_count++) {
        const nib_named_digest *o = &outputs->items[c->file_count];
        c->files[c->file_count] = (file_check){.name = o->name, .named = o->digest};
        NIB_TRY(hash_stored(c, &c->files[c->file_count]));
    }
    return NIB_OK;
}

/* Reports a file without having made it again. */
static nib_status report_named(check *c, const file_check *f)
{
    char a[NIB_DIGEST_TEXT], b[NIB_DIGEST_TEXT];
    if (!f->is_stored)
        return nib__findings_add(&c->findings, "missing-file", f->name,
                                 "is named in the receipt, but cannot be opened beside it");
    return nib__digest_equal(&f->named, &f->stored)
               ? NIB_OK
               : nib__findings_add(
                     &c->findings, "file", f->name,
                     "has SHA-256 %s, but the receipt names %s: the file or the receipt "
                     "was changed",
                     nib__digest_text(a, &f->stored), nib__digest_text(b, &f->named));
}

/* Reports a file by the three hashes. */
static nib_status report_made(check *c, const file_check *f)
{
    if (!f->is_stored)
        return report_named(c, f);
    if (!f->is_made)
        return nib__findings_add(
            &c->findings, "receipt", f->name,
            "is named in the receipt, but source and options give no such file");
    const bool named = nib__digest_equal(&f->named, &f->stored),
               made = nib__digest_equal(&f->made, &f->stored);
    if (named && made)
        return NIB_OK;
    if (made)
        return nib__findings_add(
            &c->findings, "receipt", f->name,
            "is what source and options give, but the receipt names other bytes: "
            "the receipt was changed");
    if (nib__digest_equal(&f->named, &f->made))
        return nib__findings_add(
            &c->findings, "altered", f->name,
            "differs from what the receipt names and from what source and options "
            "give, which are the same: the file was changed");
    if (named)
        return nib__findings_add(
            &c->findings, "not-derived", f->name,
            "is as the receipt names it, but source and options give other bytes: "
            "it was not made from them by this version");
    return nib__findings_add(
        &c->findings, "not-derived", f->name,
        "differs from what the receipt names, and source and options give yet other "
        "bytes");
}

/* ---- the tensors of files that differ ---- */

/* Where two spans of bytes differ. */
typedef struct difference {
    uint64_t count, first;
} difference;

static difference compare_bytes(const uint8_t *a, const uint8_t *b, uint64_t size)
{
    difference d = {.count = 0};
    for (uint64_t i = size; i-- > 0;)
        if (a[i] != b[i]) {
            d.count++;
            d.first = i;
        }
    return d;
}

static nib_status compare_tensor(check *c, const nib_tensor *stored, const nib_tensor *made,
                                 size_t *differing)
{
    if (made == NULL || made->type != stored->type || made->bytes != stored->bytes ||
        nib__tensor_span(made) != nib__tensor_span(stored)) {
        ++*differing;
        return nib__findings_add(&c->findings, "tensor", stored->name, "%s",
                                 made == NULL
                                     ? "is stored, but source and options give no such tensor"
                                     : "has another type or shape than source and options give");
    }
    const uint64_t span = nib__tensor_span(stored);
    const difference d = compare_bytes(stored->data, made->data, span);
    nib__checkpoint_release(c->model->net.checkpoint, stored->data, span);
    if (d.count == 0)
        return NIB_OK;
    if (++*differing > TENSORS_SHOWN)
        return NIB_OK;
    const uint64_t row = stored->shape[0] > 0 ? stored->bytes / (uint64_t)stored->shape[0] : 0;
    return nib__findings_add(&c->findings, "tensor", stored->name,
                             "%" PRIu64 " of its %" PRIu64
                             " bytes differ from what source and options "
                             "give, the first at byte %" PRIu64 ", in row %" PRIu64,
                             d.count, span, d.first, row != 0 ? d.first / row : 0);
}

static nib_status compare_tensors(check *c, const nib_checkpoint *made)
{
    const nib_checkpoint *cp = c->model->net.checkpoint;
    size_t differing = 0, count = nib__checkpoint_count(cp);
    for (size_t i = 0; i < count; i++) {
        const nib_tensor *t = nib__checkpoint_at(cp, i);
        NIB_TRY(compare_tensor(c, t, nib__checkpoint_find(made, t->name), &differing));
    }
    for (size_t i = 0; i < nib__checkpoint_count(made); i++)
        if (nib__checkpoint_find(cp, nib__checkpoint_at(made, i)->name) == NULL)
            NIB_TRY(nib__findings_add(&c->findings, "tensor", nib__checkpoint_at(made, i)->name,
                                      "is missing: source and options give it"));
    if (differing > TENSORS_SHOWN)
        nib__ledger_add_note(&c->notes, "receipt",
                             "%zu of %zu tensors differ; the first %d are listed", differing, count,
                             TENSORS_SHOWN);
    return NIB_OK;
}

static bool holds_weights(const file_check *f)
{
    return nib__ends_with(f->name, ".safetensors") || nib__ends_with(f->name, ".gguf");
}

/* Sees the output that was made again. */
static nib_status see_made(void *ctx, const char *place, const nib_digests *outputs, nib_err *err)
{
    check *c = ctx;
    const bool one = nib__path_kind(path_of(c->model)) != NIB_PATH_DIRECTORY;
    bool weights_differ = false;
    nib_checkpoint *made;
    c->err = c->findings.err = err;
    c->made = true;
    for (size_t i = 0; i < c->file_count; i++) {
        file_check *f = &c->files[i];
        const nib_digest *digest = one && c->file_count == 1 && outputs->count == 1
                                       ? &outputs->items[0].digest /* whatever its name is now */
                                       : find_digest(outputs, f->name);
        f->is_made = digest != NULL;
        if (digest != NULL)
            f->made = *digest;
        NIB_TRY(report_made(c, f));
        weights_differ =
            weights_differ || (f->is_stored && f->is_made && (one || holds_weights(f)) &&
                               !nib__digest_equal(&f->stored, &f->made));
    }
    for (size_t i = 0; i < outputs->count && !one; i++)
        if (find_digest(&c->receipt.outputs, outputs->items[i].name) == NULL)
            NIB_TRY(nib__findings_add(
                &c->findings, "receipt", outputs->items[i].name,
                "source and options give this file, but the receipt does not name "
                "it"));
    if (!weights_differ)
        return NIB_OK;
    NIB_TRY(nib__checkpoint_open(&made, place, c->allocator, err));
    const nib_status status = compare_tensors(c, made);
    nib__checkpoint_close(made);
    return status;
}

/* ---- making the output again ---- */

/* Whether its codes were made before programs named an order of inputs. */
static bool has_old_order(const nib_read_receipt *r)
{
    return nib__asked_has_sweeps(&r->asked) && !r->has_orders;
}

static nib_status make_again(check *c)
{
    const nib_asked *asked = &c->receipt.asked;
    const nib_examiner examiner = {.examine = see_made,
                                   .ctx = c,
                                   .ascending = has_old_order(&c->receipt),
                                   .rounds = asked->rounding_steps != 0,
                                   .held_out = asked->held_out,
                                   .checked = asked->checked,
                                   .seed = asked->seed};
    const nib_request request = {.size = sizeof request,
                                 .recipe = asked->recipe,
                                 .skip = asked->skip,
                                 .only = asked->only,
                                 .dtype = asked->dtype,
                                 .bias = asked->bias,
                                 .context = asked->context};
    const nib_quantize_options quantize = {.size = sizeof quantize,
                                           .request = &request,
                                           .out = path_of(c->model),
                                           .format = asked->format,
                                           .calibrate = asked->text.path,
                                           .method = asked->method,
                                           .imatrix = asked->imatrix.path,
                                           .force = true};
    const nib_convert_options convert = {.size = sizeof convert,
                                         .out = path_of(c->model),
                                         .format = asked->format,
                                         .dtype = asked->dtype,
                                         .bias = asked->bias,
                                         .force = true};
    return asked->convert ? nib__convert_again(c->source, &convert, &examiner, c->err)
                          : nib__quantize_again(c->source, &quantize, &examiner, c->err);
}

static void note_receipt(check *c)
{
    const nib_read_receipt *r = &c->receipt;
    char a[NIB_SHOWN], b[NIB_SHOWN];
    if (strcmp(r->program, "nibble " NIB_VERSION) != 0)
        nib__ledger_add_note(&c->notes, "receipt",
                             "the receipt is by %s, and this is nibble " NIB_VERSION
                             ", whose bytes may differ",
                             nib__escape_string(a, r->program));
    if (has_old_order(r))
        nib__ledger_add_note(&c->notes, "receipt",
                             "it names no order of inputs, so they are coded as stored, as "
                             "programs did before receipts named it");
    if (r->asked.layers[NIB_PTQ_LEARN] != 0 && r->asked.rounding_steps == 0)
        nib__ledger_add_note(&c->notes, "receipt",
                             "it names no steps of rounding, so learn moves scales and keeps the "
                             "codes of qronos, as programs did before receipts named them");
    if (nib__asked_has_scales(&r->asked) && r->asked.held_out == 0)
        nib__ledger_add_note(&c->notes, "receipt",
                             "it names no tokens held out, so scales of inputs are chosen by the "
                             "whole text, as programs did before receipts named them");
    if (r->asked.layers[NIB_PTQ_ROTATE] != 0 && r->asked.text.path != NULL &&
        r->asked.held_out == 0)
        nib__ledger_add_note(&c->notes, "receipt",
                             "it names no tokens held out, so the rotated model is not compared "
                             "with rounding, as by programs before receipts named them");
    if (nib__asked_has_searches(&r->asked) && r->asked.text.path != NULL && r->asked.checked == 0)
        nib__ledger_add_note(&c->notes, "receipt",
                             "it names no tokens that checked the codes by search and hqq, so they "
                             "are not compared with rounding");
    if (r->asked.device != NULL)
        nib__ledger_add_note(&c->notes, "receipt",
                             "%s computed the codes; here the CPU does, to the same bits",
                             nib__escape_string(b, r->asked.device));
}

static nib_status run_check(check *c)
{
    note_receipt(c);
    NIB_TRY(list_files(c));
    NIB_TRY(check_inputs(c));
    const bool comparable = c->findings.count == 0;
    NIB_TRY(nib__verify_signature(c->model, &c->options, &c->findings, &c->notes, c->err));
    if (comparable)
        return make_again(c);
    for (size_t i = 0; i < c->file_count; i++)
        NIB_TRY(report_named(c, &c->files[i]));
    nib__ledger_add_note(&c->notes, "receipt",
                         "it was not made again, because what it was made from is not at hand");
    return NIB_OK;
}

/* ---- the report ---- */

static void render_json(const check *c, nib_text *out)
{
    nib_jsonw w;
    nib__jsonw_report(&w, out);
    nib__jsonw_pair_string(&w, "receipt", c->receipt.manifest);
    nib__jsonw_pair_string(&w, "program", c->receipt.program);
    nib__jsonw_pair_string(&w, "command", c->receipt.asked.convert ? "convert" : "quantize");
    nib__jsonw_pair_string(&w, "source", c->options.source);
    nib__jsonw_pair_int(&w, "source_tensors", (int64_t)c->receipt.tensors.count);
    nib__jsonw_pair_int(&w, "files", (int64_t)c->file_count);
    nib__jsonw_pair_bool(&w, "made_again", c->made);
    nib__findings_json(&c->findings, &c->notes, &w);
    nib__jsonw_report_end(&w);
}

static void render_text(const check *c, nib_text *out)
{
    char a[NIB_SHOWN];
    nib__findings_text(&c->findings, &c->notes, out);
    if (c->findings.count == 0)
        nib__text_format(
            out, "made again from the %zu tensors of %s: all %zu files are the same bytes\n",
            c->receipt.tensors.count, nib__escape_string(a, c->options.source), c->file_count);
    else
        nib__text_format(out, "%zu problem%s\n", c->findings.count,
                         c->findings.count == 1 ? "" : "s");
}

static nib_status report(check *c, nib_form form, const nib_sink *sink, nib_err *err)
{
    nib_text text;
    nib__text_init(&text, c->allocator);
    if (form == NIB_FORM_JSON)
        render_json(c, &text);
    else
        render_text(c, &text);
    nib_status status = c->notes.failed ? nib__fail_memory(err, 0, "the report")
                                        : nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    if (status == NIB_OK && c->findings.count != 0)
        status = nib__fail(err, NIB_CHECK_FAILED, "%s: %zu problem%s found", path_of(c->model),
                           c->findings.count, c->findings.count == 1 ? " was" : "s were");
    return status;
}

nib_status nib_verify_from(nib_model *model, const nib_verify_from_options *options, nib_form form,
                           const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "model", model);
    NIB_TRY(nib__report_check(form, sink, err));
    NIB_OPTIONS(nib_verify_from_options, o, options, err);
    NIB_TRY(nib__engine_check(model->engine, err));
    if (o.source == NULL)
        return nib__fail(err, NIB_USAGE, "nib_verify_from_options.source: no source is given");
    if (model->net.checkpoint == NULL)
        return nib__fail(err, NIB_USAGE, "%s: is a config without weights, which has no receipt",
                         model->net.path);
    check *c = nib__calloc(&model->engine->allocator, 1, sizeof *c);
    if (c == NULL)
        return nib__fail_memory(err, sizeof *c, "a check");
    *c = (check){.model = model, .options = o, .allocator = &model->engine->allocator, .err = err};
    nib__arena_init(&c->arena, c->allocator, 0);
    c->findings = (nib_findings){.arena = &c->arena, .err = err};
    nib__ledger_init(&c->notes, c->allocator);
    nib_status status =
        nib__receipt_read(&c->receipt, model->net.checkpoint, &c->arena, c->allocator, err);
    if (status == NIB_OK && !c->receipt.found) {
        status = nib__verify_by_source(model, &o, c->receipt.manifest, form, sink, err);
    } else {
        if (status == NIB_OK)
            status = run_check(c);
        status = nib__checkpoint_check_files(model->net.checkpoint, status, err);
        if (status == NIB_OK)
            status = report(c, form, sink, err);
    }
    nib_model_close(c->source);
    nib__receipt_free(&c->receipt, c->allocator);
    nib__ledger_free(&c->notes);
    nib__arena_free(&c->arena);
    nib__release(&model->engine->allocator, c);
    return status;
}

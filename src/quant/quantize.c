/* SPDX-License-Identifier: Apache-2.0
 *
 * The whole rewrite: checks the output path, streams tensors, writes the files beside them, and
 * publishes all at once. output_layout.c decides what becomes what.
 */
#include "quantize.h"

#include "output_files.h"
#include "output_layout.h"

#include <stdio.h>

static const uint64_t shard_limit = UINT64_C(5000000000); /* bytes; Hugging Face's shard size */

bool nib__layer_is_quantized(const nib_quantize_layer *layer)
{
    return !layer->choice.keep && nib__scheme_is_quantized(&layer->choice.scheme);
}

nib_status nib__vector_add(nib_vector *list, size_t *count, const char *name, const float *values,
                           int64_t size, nib_arena *arena, nib_err *err)
{
    nib_vector *to = &list[*count];
    *to = (nib_vector){
        .name = nib__arena_copy(arena, name, strlen(name)), .values = values, .count = size};
    if (to->name == NULL)
        return nib__fail_memory(err, strlen(name), "a name");
    ++*count;
    return NIB_OK;
}

/* ---- the output path ---- */

/* --force replaces a model, not any other directory that a mistyped name leads to. */
static nib_status check_replaceable(nib_output_layout *r)
{
    const char *out = r->job->out;
    const char *config = nib__path_join(&r->arena, out, "config.json");
    char a[NIB_SHOWN];
    if (config == NULL)
        return nib__fail_memory(r->err, strlen(out), "a path");
    if (nib__path_kind(config) == NIB_PATH_NONE && !nib__directory_is_empty(out))
        return nib__fail(r->err, NIB_EXISTS,
                         "%s: is a directory without a config.json, not a model that --force may "
                         "replace; choose another path, or remove it by hand",
                         nib__escape_string(a, out));
    return nib__path_removable(out, r->err); /* fail before the work, not after */
}

/* Path of a single file's manifest; NULL: out of memory. */
static const char *manifest_path(nib_output_layout *r)
{
    return nib__ledger_text(r->ledger, "%s.nibble.json", r->job->out);
}

static nib_status check_output(nib_output_layout *r)
{
    const nib_quantize_job *job = r->job;
    const char *source = nib__checkpoint_path(job->checkpoint);
    char a[NIB_SHOWN];
    nib_path_kind kind;
    NIB_TRY(nib__path_look(&kind, job->out, r->err));
    const char *source_directory =
        r->directory && job->config == NULL ? nib__checkpoint_directory(job->checkpoint) : NULL;
    if (nib__path_same(job->out, source) ||
        (source_directory != NULL && nib__path_within(job->out, source_directory)) ||
        (kind == NIB_PATH_DIRECTORY && nib__path_within(source, job->out)))
        return nib__fail(
            r->err, NIB_USAGE,
            "%s: the output equals, contains or is inside the source; choose a path outside it",
            nib__escape_string(a, job->out));
    const char *side = r->directory ? NULL : manifest_path(r);
    if (!r->directory && side == NULL)
        return nib__fail_memory(r->err, strlen(job->out), "a path");
    if (kind != NIB_PATH_NONE && !job->force && !job->dry_run)
        return nib__fail(r->err, NIB_EXISTS, "%s: exists already; --force replaces it",
                         nib__escape_string(a, job->out));
    if (side != NULL && nib__path_kind(side) != NIB_PATH_NONE && !job->force && !job->dry_run)
        return nib__fail(r->err, NIB_EXISTS,
                         "%s: exists already, and the output's manifest has this name; --force "
                         "replaces it",
                         nib__escape_string(a, side));
    if (kind == NIB_PATH_OTHER || (kind == NIB_PATH_DIRECTORY && !r->directory))
        return nib__fail(r->err, NIB_EXISTS, "%s: is not a file, so it cannot be replaced",
                         nib__escape_string(a, job->out));
    return kind == NIB_PATH_DIRECTORY ? check_replaceable(r) : NIB_OK;
}

/* ---- running ---- */

/* Notes how much less than rounding each method loses, over all its layers. */
static void note_methods(nib_ledger *ledger)
{
    for (int m = NIB_PTQ_RTN + 1; m < NIB_PTQ_COUNT; m++) {
        const char *method = nib__ptq_names[m];
        size_t count = 0;
        double left = 0;
        for (size_t i = 0; i < ledger->layer_count; i++) {
            const nib_ledger_layer *l = &ledger->layers[i];
            if (l->method == NULL || strcmp(l->method, method) != 0 || !(l->objective[0] > 0))
                continue;
            count++;
            left += l->objective[1] / l->objective[0];
        }
        if (count > 0)
            nib__ledger_add_note(
                ledger, "method",
                "%s: %zu layer%s, whose %s %s %.1f %% below that of rounding%s, on average", method,
                count, count == 1 ? "" : "s",
                m == NIB_PTQ_HQQ                     ? "error to the power 11/16"
                : nib__ptq_scales((nib_ptq_method)m) ? "error of the layer's output"
                                                     : "weighted squared error",
                m == NIB_PTQ_LEARN ? "before learning was" : "is", 100 * (1 - left / (double)count),
                m == NIB_PTQ_ROTATE ? " rotated weights" : "");
    }
}

/* Streams every rewrite. *source: hash over the stored tensors in order, each as name, NUL, hash in
 * hex. digests: of the stored tensors. */
static nib_status stream_all(nib_output_layout *r, nib_hash *source, nib_digest *digests)
{
    nib_stream stream = {.job = r->job, .writer = r->writer, .ledger = r->ledger};
    const size_t stored = nib__checkpoint_count(r->job->checkpoint);
    nib_hasher *hasher = nib__hasher_open();
    nib_status status = hasher == NULL ? nib__fail_memory(r->err, 1024, "a hash") : NIB_OK;
    for (size_t i = 0; i < r->count; i++)
        stream.total += nib__stream_cost(&r->rewrites[i]);
    for (size_t i = 0; i < r->count && status == NIB_OK; i++) {
        const nib_tensor *from = r->rewrites[i].from;
        nib_source_hash hash;
        char text[33];
        status = nib__stream_run(&stream, &r->rewrites[i], &hash, r->err);
        if (status != NIB_OK || i >= stored)
            continue; /* separated tensors come last; their source was counted where it is stored */
        nib__hasher_add(hasher, from->name, strlen(from->name) + 1);
        nib__hasher_add(hasher, nib__hash_text(text, hash.quick), 32);
        const nib_tensor *stored_tensor = nib__checkpoint_at(r->job->checkpoint, i);
        digests[i] = from->data == stored_tensor->data /* else a norm that is changed in memory */
                         ? hash.digest
                         : nib__digest_tensor(r->job->checkpoint, stored_tensor);
    }
    if (hasher != NULL)
        *source = nib__hasher_finish(hasher);
    for (int i = 0; i < NIB_EXTRAS && r->job->extras[i].values != NULL && status == NIB_OK; i++)
        status = nib__writer_put(r->writer, r->extras[i], r->job->extras[i].values,
                                 (size_t)r->job->extras[i].count * sizeof(float), r->err);
    if (status == NIB_OK && r->job->device != NULL)
        nib__quant_device_end(r->job->device,
                              r->ledger); /* before the manifest, which includes its note */
    if (status == NIB_OK)
        note_methods(r->ledger);
    return status == NIB_OK ? nib__writer_finish(r->writer, r->err) : status;
}

/* Creates the part. If another program has created that name meanwhile, its file stays. */
static nib_status begin_part(nib_output_layout *r, const char *part)
{
    const bool directory = r->directory;
    if (directory)
        NIB_TRY(nib__part_directory(part, r->err));
    const nib_status status =
        nib__writer_begin(r->writer, directory ? part : NULL, directory ? NULL : part, r->err);
    if (status != NIB_OK && (directory || status != NIB_EXISTS))
        (void)nib__path_remove(part, NULL);
    return status;
}

/* Hashes the files that the output is made from, and those that it consists of. */
static nib_status complete_receipt(nib_receipt *receipt, nib_output_layout *r, const char *part)
{
    const nib_quantize_job *job = r->job;
    const nib_allocator *a = job->allocator;
    if (job->receipt == NULL)
        return NIB_OK;
    NIB_TRY(nib__digest_source_files(&receipt->files, job->checkpoint, &r->arena, a, r->err));
    return nib__digest_outputs(&receipt->outputs, part, nib__path_name(job->out), &r->arena, a,
                               r->err);
}

/* Writes the output and its manifest, or shows the output. */
static nib_status write_part(nib_output_layout *r, const char *part, const char *manifest)
{
    const nib_quantize_job *job = r->job;
    const char *format = nib__dialect_name(r->dialect);
    const size_t stored = nib__checkpoint_count(job->checkpoint);
    nib_hash source;
    nib_side_files files = {.count = 0};
    nib_digest *digests = nib__arena_take(&r->arena, stored, sizeof *digests);
    nib_receipt receipt = {.tensors = digests};
    if (digests == NULL)
        return nib__fail_memory(r->err, stored * sizeof *digests, "the receipt");
    NIB_TRY(stream_all(r, &source, digests));
    nib__output_layout_share_kept(r);
    if (r->directory)
        NIB_TRY(nib__side_files_write(&files, r, part));
    nib_status status = complete_receipt(&receipt, r, part);
    if (status == NIB_OK && job->examine != NULL)
        status = job->examine(job->examine_ctx, part, &receipt.outputs, r->err);
    else if (status == NIB_OK)
        status = nib__manifest_write(manifest, job, r->ledger, format, source, r->writer, &files,
                                     &receipt, r->err);
    nib__digests_free(&receipt.files, job->allocator);
    nib__digests_free(&receipt.outputs, job->allocator);
    return status;
}

/* Writes the output into a directory beside the final path, shows it and removes it. Its mark stays
 * in it, so that a later run removes what a killed one leaves. */
static nib_status show_output(nib_output_layout *r)
{
    const nib_quantize_job *job = r->job;
    char part[NIB_PART_PATH];
    NIB_TRY(nib__part_choose(part, job->out, ".part", r->err));
    const char *file =
        r->directory ? NULL : nib__path_join(&r->arena, part, nib__path_name(job->out));
    if (file == NULL && !r->directory)
        return nib__fail_memory(r->err, strlen(job->out), "a path");
    NIB_TRY(nib__part_directory(part, r->err));
    nib_status status = nib__writer_begin(r->writer, r->directory ? part : NULL, file, r->err);
    if (status == NIB_OK)
        status = write_part(r, r->directory ? part : file, NULL);
    status = nib__checkpoint_check_files(job->checkpoint, status, r->err);
    const nib_status removed = nib__path_remove(part, status == NIB_OK ? r->err : NULL);
    return status == NIB_OK ? removed : status;
}

/* Writes beside the final path, then renames. A single file and its manifest are two names: the old
 * manifest is removed first, so that no manifest ever describes another file. */
static nib_status write_output(nib_output_layout *r)
{
    const nib_quantize_job *job = r->job;
    char part[NIB_PART_PATH], beside[NIB_PART_PATH];
    const char *side = r->directory ? NULL : manifest_path(r);
    NIB_TRY(nib__part_choose(part, job->out, ".part", r->err));
    NIB_TRY(nib__part_choose(beside, job->out, ".part.json", r->err));
    const char *manifest = r->directory ? nib__path_join(&r->arena, part, "nibble.json") : beside;
    if (manifest == NULL || (side == NULL && !r->directory))
        return nib__fail_memory(r->err, strlen(job->out), "a path");
    NIB_TRY(begin_part(r, part));
    nib_status status = write_part(r, part, manifest);
    const bool described = status == NIB_OK;
    status = nib__checkpoint_check_files(job->checkpoint, status, r->err);
    if (status == NIB_OK && r->directory && job->complete != NULL)
        status = job->complete(job->complete_ctx, part, r->err);
    if (status == NIB_OK && !r->directory)
        status = nib__path_remove(side, r->err);
    if (status == NIB_OK)
        status = nib__publish(part, job->out, job->force, r->err);
    if (status == NIB_OK && !r->directory)
        status = nib__publish(manifest, side, true, r->err);
    if (status == NIB_OK)
        return NIB_OK;
    (void)nib__path_remove(part, NULL);
    if (!r->directory && described)
        (void)nib__path_remove(manifest, NULL);
    return status;
}

/* Sets r->directory: the output is a directory, not a file. */
static nib_status choose_directory(nib_output_layout *r)
{
    const nib_quantize_job *job = r->job;
    const char *path = nib__checkpoint_path(job->checkpoint);
    nib_path_kind kind = NIB_PATH_NONE;
    if (job->examine != NULL) { /* as the output that it is compared with */
        NIB_TRY(nib__path_look(&kind, job->out, r->err));
        r->directory = job->examine_directory || kind == NIB_PATH_DIRECTORY;
        return NIB_OK;
    }
    if (job->gguf == NULL && job->config == NULL)
        NIB_TRY(nib__path_look(&kind, path, r->err));
    if (job->gguf != NULL)
        r->directory = false;
    else if (job->config != NULL)
        r->directory = !nib__ends_with(job->out, ".safetensors");
    else
        r->directory = kind == NIB_PATH_DIRECTORY || nib__ends_with(path, ".json");
    return NIB_OK;
}

/* Refuses a single file in a dialect that needs config.json: nobody could read it. */
static nib_status check_config_needed(const nib_output_layout *r)
{
    const nib_quantize_job *job = r->job;
    char a[NIB_SHOWN];
    for (size_t i = 0; i < job->count && !r->directory; i++)
        if (r->dialect == NIB_DIALECT_COMPRESSED && nib__layer_is_quantized(&job->layers[i]))
            return nib__fail(r->err, NIB_NOT_AS_ASKED,
                             "%s: a single file cannot be in the format %s, which needs a "
                             "config.json; give the directory of the model as MODEL, or --format "
                             "nibble",
                             nib__escape_string(a, job->out), nib__dialect_name(r->dialect));
    return NIB_OK;
}

/* Refuses a second run into the same OUT: both would write into the same part. */
static nib_status write_locked(nib_output_layout *r)
{
    const char *lock = nib__ledger_text(r->ledger, "%s.part.lock", r->job->out);
    int fd;
    if (lock == NULL)
        return nib__fail_memory(r->err, strlen(r->job->out), "a path");
    NIB_TRY(nib__lock_take(&fd, lock, r->err));
    const nib_status status = r->job->examine != NULL ? show_output(r) : write_output(r);
    nib__lock_release(fd, lock);
    return status;
}

/* Decides what is written, and where, and checks that it may be. */
static nib_status prepare(nib_output_layout *r)
{
    const nib_quantize_job *job = r->job;
    NIB_TRY(choose_directory(r));
    NIB_TRY(check_output(r));
    NIB_TRY(nib__output_layout_make(r, r->directory ? shard_limit : 0));
    NIB_TRY(nib__side_files_report(r));
    if (job->decided != NULL)
        job->decided(r->ledger, job->ctx);
    if (job->allow != NULL)
        nib__ledger_allow(r->ledger, job->allow);
    if (job->strict)
        NIB_TRY(nib__ledger_strict(r->ledger, r->err));
    return check_config_needed(r);
}

static const char *find_readers(const nib_output_layout *r, nib_dialect dialect)
{
    return nib__output_sources_has_readers(r, dialect) ? nib__dialect_readers(dialect) : NULL;
}

/* What the weights would be in the other formats of directories. */
static void find_elsewhere(const nib_output_layout *r, nib_quantize_report *report)
{
    const nib_dialect *others = nib__directory_dialects;
    uint64_t own, other;
    bool listed = false;
    size_t count = 0;
    for (size_t i = 0; i < NIB_DIRECTORY_DIALECTS; i++)
        listed = listed || others[i] == r->dialect;
    if (!listed || !r->directory || !nib__output_sources_bytes(r, r->dialect, &own))
        return;
    for (size_t i = 0; i < NIB_DIRECTORY_DIALECTS; i++)
        if (others[i] != r->dialect && nib__output_sources_bytes(r, others[i], &other))
            report->elsewhere[count++] =
                (struct nib_elsewhere){nib__dialect_name(others[i]), find_readers(r, others[i]),
                                       report->bytes_after - own + other};
}

static nib_status quantize(nib_output_layout *r, nib_quantize_report *report)
{
    const nib_quantize_job *job = r->job;
    const uint64_t start = nib__now_ns();
    NIB_TRY(prepare(r));
    if (job->device != NULL)
        NIB_TRY(nib__quant_device_ready(job->device, r->rewrites, r->count, job->dry_run, r->ledger,
                                        r->err));
    if (!job->dry_run)
        NIB_TRY(write_locked(r));
    else if (job->device != NULL)
        nib__quant_device_end(job->device, r->ledger);
    *report = (nib_quantize_report){
        .format = nib__dialect_name(r->dialect),
        .readers = find_readers(r, r->dialect),
        .bytes_before = nib__checkpoint_bytes(job->checkpoint),
        .bytes_after = nib__writer_bytes(r->writer),
        .weights = job->weights,
        .files = nib__writer_file_count(r->writer),
        .seconds = (double)(nib__now_ns() - start) * 1e-9,
        .sync_seconds = nib__writer_sync_seconds(r->writer),
        .dry_run = job->dry_run,
    };
    find_elsewhere(r, report);
    for (size_t i = 0; i < job->count; i++) {
        const nib_bias stored = nib__weight_bias_form(&r->sources[i].bias);
        report->biases += stored != NIB_BIAS_NONE;
        const bool cast =
            r->dialect == NIB_DIALECT_GGUF && stored == NIB_BIAS_FLOAT &&
            r->sources[i].bias.bias_type != NIB_TYPE_F32; /* GGUF stores vectors as f32 */
        report->biases_changed += cast || stored != r->sources[i].bias_form;
    }
    return r->ledger->failed ? nib__fail_memory(r->err, 0, "the ledger") : NIB_OK;
}

nib_status nib__quantize(nib_ledger *ledger, nib_quantize_report *report,
                         const nib_quantize_job *job, nib_err *err)
{
    nib_output_layout r;
    nib__output_layout_init(&r, job, ledger, err);
    const nib_status status = quantize(&r, report);
    if (job->device != NULL)
        nib__quant_device_release(job->device);
    nib__output_layout_free(&r);
    return status;
}

nib_status nib__quantize_check(const nib_quantize_job *job, nib_err *err)
{
    nib_output_layout r;
    nib_ledger ledger;
    nib__ledger_init(&ledger, job->allocator);
    nib__output_layout_init(&r, job, &ledger, err);
    nib_status status = prepare(&r);
    if (status == NIB_OK && ledger.failed)
        status = nib__fail_memory(err, 0, "the ledger");
    nib__output_layout_free(&r);
    nib__ledger_free(&ledger);
    return status;
}

/* ---- the report ---- */

static double bits_per_weight(const nib_quantize_report *report)
{
    return 8.0 * (double)report->bytes_after / (double)report->weights;
}

void nib__quantize_json(const nib_ledger *ledger, const nib_quantize_report *report, nib_jsonw *w)
{
    nib__jsonw_pair_string(w, "format", report->format);
    nib__jsonw_pair_bool(w, "dry_run", report->dry_run);
    nib__jsonw_pair_int(w, "bytes_before", (int64_t)report->bytes_before);
    nib__jsonw_pair_int(w, "bytes_after", (int64_t)report->bytes_after);
    nib__jsonw_pair_int(w, "weights", (int64_t)report->weights);
    nib__jsonw_pair_double(w, "bits_per_weight", bits_per_weight(report));
    nib__jsonw_key(w, "elsewhere");
    nib__jsonw_object(w);
    for (size_t i = 0; report->elsewhere[i].name != NULL; i++)
        nib__jsonw_pair_int(w, report->elsewhere[i].name, (int64_t)report->elsewhere[i].bytes);
    nib__jsonw_object_end(w);
    nib__jsonw_pair_int(w, "files", (int64_t)report->files);
    nib__jsonw_pair_double(w, "seconds", report->seconds);
    nib__jsonw_pair_double(w, "sync_seconds", report->sync_seconds);
    nib__ledger_json(ledger, w);
}

void nib__quantize_render(const nib_ledger *ledger, const nib_quantize_report *report,
                          nib_text *out)
{
    char before[32], after[32];
    nib__ledger_render(ledger, true, out);
    nib__text_format(
        out, "\n%s: %s -> %s (%.1f %%, %.2f bits per weight) in %zu file%s, format %s",
        report->dry_run ? "would write" : "wrote", nib__format_bytes(before, report->bytes_before),
        nib__format_bytes(after, report->bytes_after),
        report->bytes_before == 0
            ? 0.0
            : 100.0 * (double)report->bytes_after / (double)report->bytes_before,
        bits_per_weight(report), report->files, report->files == 1 ? "" : "s", report->format);
    if (report->readers != NULL)
        nib__text_format(out, " (%s)", report->readers);
    if (!report->dry_run)
        nib__text_format(out,
                         ", in %.1f s, of which %.1f s were spent waiting for the disk at "
                         "the end",
                         report->seconds, report->sync_seconds);
    nib__text_str(out, "\n");
    for (size_t i = 0; report->elsewhere[i].name != NULL; i++) {
        const struct nib_elsewhere *e = &report->elsewhere[i];
        nib__text_format(out, "%s%s%s%s%s %s", i == 0 ? "elsewhere: " : ", ", e->name,
                         e->readers != NULL ? " (" : "", e->readers != NULL ? e->readers : "",
                         e->readers != NULL ? ")" : "", nib__format_bytes(after, e->bytes));
    }
    if (report->elsewhere[0].name != NULL)
        nib__text_str(out, "\n");
    nib__ledger_summary(ledger, out);
    nib__text_str(out, "\n");
}

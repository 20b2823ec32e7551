/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows with a method, or whose codes need a text: each is quantized beside a name in the scratch
 * directory, measured like the others, and removed. One process holds the lock of a name, and
 * removes what a killed one left there.
 */
#include "advise.h"
#include "convert.h"
#include "file.h"
#include "public_struct.h"
#include "quantize.h"
#include "rotate.h"

#include <math.h>
#include <stdio.h>

enum { NAMES = 100, CALIBRATE_TEXT_MAX = 64 << 20 };

/* ---- the options ---- */

/* Whether an imatrix changes what a method does. */
static bool takes_imatrix(nib_ptq_method method)
{
    return method == NIB_PTQ_SEARCH || nib__ptq_scales(method);
}

static nib_status read_method(nib_methods *m, const char *name, nib_err *err)
{
    nib_ptq_method method;
    NIB_TRY(nib__method_read(&method, name, err));
    if (method == NIB_PTQ_RTN)
        return nib__fail(err, NIB_USAGE,
                         "method rtn has no effect: the rows without a method are rounded");
    for (size_t i = 0; i < m->count; i++)
        if (m->items[i] == method)
            return nib__fail(err, NIB_USAGE, "method %s is given twice", name);
    if (nib__ptq_needs_text(method) && m->asked.calibrate == NULL)
        return nib__fail(err, NIB_USAGE,
                         "the method %s needs a text to calibrate with; give --calibrate TEXT",
                         name);
    m->items[m->count++] = method;
    return NIB_OK;
}

/* Refuses an imatrix that no row would read. A text is read by every method, if only to compare its
 * codes with rounding. */
static nib_status check_used(const nib_advice *v, nib_err *err)
{
    const nib_methods *m = v->methods;
    bool imatrix = false;
    for (size_t i = 0; i < m->count; i++)
        imatrix |= takes_imatrix(m->items[i]);
    if (m->asked.imatrix != NULL && !imatrix)
        return nib__fail(err, NIB_USAGE,
                         "--imatrix %s has no effect: it is for the methods search, awq and smooth",
                         m->asked.imatrix);
    return NIB_OK;
}

nib_status nib__methods_read(nib_advice *v, nib_methods *out, nib_err *err)
{
    const nib_advise_options *o = v->options;
    NIB_OPTIONS(nib_advise_methods, asked, o->methods, err);
    NIB_TRY(nib__strings_check("nib_advise_methods.methods", &asked.methods, err));
    out->asked = asked;
    if (asked.methods.count == 0)
        return nib__fail(err, NIB_USAGE, "nib_advise_methods.methods names no method");
    for (size_t i = 0; i < asked.methods.count; i++)
        NIB_TRY(read_method(out, asked.methods.items[i], err));
    if (o->dry_run)
        return nib__fail(err, NIB_USAGE, "--method %s is not tried: --dry-run runs nothing",
                         nib__ptq_names[out->items[0]]);
    if (o->text_path == NULL)
        return nib__fail(err, NIB_USAGE,
                         "--method %s needs a text to measure losses with, because the estimated "
                         "error is that of rounding; give --text, too",
                         nib__ptq_names[out->items[0]]);
    v->methods = out;
    return NIB_OK;
}

void nib__methods_inputs(const nib_methods *m, const nib_advised *c, const char **calibrate,
                         const char **imatrix)
{
    nib_ptq_method method = NIB_PTQ_RTN;
    if (c->method != NULL)
        (void)nib__ptq_parse(&method, c->method);
    *imatrix = takes_imatrix(method) ? m->asked.imatrix : NULL;
    *calibrate = c->needs_text || c->method != NULL ? m->asked.calibrate : NULL;
}

/* ---- the rows ---- */

static nib_status add_row(nib_advised *row, nib_advice *v, const nib_advised *from, size_t rounding,
                          nib_ptq_method method, nib_err *err)
{
    const size_t size = strlen(from->name) + 32;
    char *name = nib__arena_take(&v->arena, size, 1);
    if (name == NULL)
        return nib__fail_memory(err, size, "a name");
    *row = *from;
    row->method = nib__ptq_names[method];
    row->is_made = true;
    row->rounding = rounding;
    snprintf(name, size, "%s by %s", from->name, row->method);
    row->name = name;
    return NIB_OK;
}

nib_status nib__methods_list(nib_advice *v, nib_err *err)
{
    const nib_methods *m = v->methods;
    const size_t most = v->count * (1 + m->count);
    nib_advised *rows = nib__arena_take(&v->arena, most, sizeof *rows);
    size_t count = 0;
    if (rows == NULL)
        return nib__fail_memory(err, most * sizeof *rows, "the list of recipes");
    for (size_t i = 0; i < v->count; i++) {
        const size_t rounding = count;
        rows[count] = v->items[i];
        rows[count++].is_made = v->items[i].needs_text && m->asked.calibrate != NULL;
        for (size_t j = 0; v->items[i].recipe != NULL && j < m->count; j++)
            NIB_TRY(add_row(&rows[count++], v, &v->items[i], rounding, m->items[j], err));
    }
    v->items = rows;
    v->count = count;
    return check_used(v, err);
}

/* ---- quantizing ---- */

/* A row in work. */
typedef struct trial {
    nib_advice *v;
    nib_advised *c;
} trial;

/* Where the tokenizer of a quantized model is; NULL: in its directory, where quantizing copies what
 * is in the directory of a model, or in a GGUF, but not what is beside another single file. */
static const char *tokenizer_of(const nib_model *model)
{
    const nib_checkpoint *cp = model->net.checkpoint;
    const bool is_copied =
        nib__checkpoint_directory(cp) != NULL || nib__checkpoint_gguf(cp) != NULL;
    return model->tokenizer_path != NULL || is_copied ? model->tokenizer_path
                                                      : model->net.directory;
}

/* Measures the model that was written into a directory. */
static nib_status measure(void *ctx, const char *place, const struct nib_digests *outputs,
                          nib_err *err)
{
    const trial *t = ctx;
    nib_methods *m = t->v->methods;
    nib_model *made;
    const nib_model_options options = {.size = sizeof options,
                                       .tokenizer = tokenizer_of(t->v->model)};
    (void)outputs;
    t->c->made_s = (double)(nib__now_ns() - m->begin_ns) * 1e-9;
    m->making = false;
    NIB_TRY(nib_model_open(&made, t->v->model->engine, place, &options, err));
    const nib_status status = nib__advise_try(t->v, t->c, made, err);
    nib_model_close(made);
    return status;
}

/* Keeps what quantizing says about the method. */
static nib_status keep_notes(void *ctx, const nib_examined *made, nib_err *err)
{
    const trial *t = ctx;
    const nib_ledger *l = made->ledger;
    const char **notes = nib__arena_take(&t->v->arena, l->note_count + 1, sizeof *notes);
    size_t count = 0;
    if (notes == NULL)
        return nib__fail_memory(err, l->note_count * sizeof *notes, "the notes");
    for (size_t i = 0; i < l->note_count; i++) {
        const char *text = l->notes[i].text;
        if (strcmp(l->notes[i].code, "method") != 0)
            continue;
        notes[count] = nib__arena_copy(&t->v->arena, text, strlen(text));
        if (notes[count++] == NULL)
            return nib__fail_memory(err, strlen(text), "a note");
    }
    t->c->notes = notes;
    t->c->note_count = count;
    t->c->keeps_rounding = made->keeps_rounding;
    return NIB_OK;
}

static nib_status keep_size(void *ctx, const nib_examined *would, nib_err *err)
{
    const trial *t = ctx;
    (void)err;
    t->c->disk = would->report->bytes_after + would->store_bytes;
    t->c->predicted_s = would->predicted_s;
    return NIB_OK;
}

/* Quantizes a row, or, dry, finds whether that can be done and how large it becomes. */
static nib_status quantize(nib_advice *v, nib_advised *c, bool dry, nib_err *err)
{
    trial t = {.v = v, .c = c};
    const nib_request request = {.size = sizeof request, .recipe = c->recipe};
    nib_quantize_options options = {.size = sizeof options,
                                    .request = &request,
                                    .out = v->methods->out,
                                    .force = true,
                                    .dry_run = dry,
                                    .method = c->method};
    const nib_examiner examiner = {.examine = measure,
                                   .tell = dry ? keep_size : keep_notes,
                                   .ctx = &t,
                                   .rounds = true,
                                   .held_out = NIB_HELD_OUT_DEFAULT,
                                   .checked = NIB_CHECKED_DEFAULT,
                                   .seed = NIB_ROTATE_SEED,
                                   .directory = true};
    nib__methods_inputs(v->methods, c, &options.calibrate, &options.imatrix);
    return nib__quantize_again(v->model, &options, &examiner, err);
}

/* True for errors that end the whole call, not only one row. */
static bool is_fatal(nib_status status)
{
    return status == NIB_CANCELLED || status == NIB_IO || status == NIB_EXISTS;
}

/* ---- before anything runs ---- */

static nib_status count_tokens(nib_advice *v, nib_err *err)
{
    const nib_allocator *a = &v->model->engine->allocator;
    const char *path = v->methods->asked.calibrate;
    const nib_tokenizer *tokenizer;
    char *text, shown[NIB_SHOWN];
    size_t size, count;
    int32_t *ids;
    if (path == NULL)
        return NIB_OK;
    NIB_TRY(nib_model_tokenizer(&tokenizer, v->model, err));
    NIB_TRY(nib__file_read(&text, &size, path, CALIBRATE_TEXT_MAX, a, err));
    const nib_status status =
        nib__tokenizer_encode(tokenizer, text, size, NIB_ENCODE_ADD_SPECIAL, &ids, &count, err);
    nib__release(a, text);
    NIB_TRY(status);
    nib__tokenizer_ids_free(tokenizer, ids);
    v->methods->tokens = (int64_t)count;
    return count > 0 ? NIB_OK
                     : nib__fail(err, NIB_BAD_INPUT, "%s: the calibration text is empty",
                                 nib__escape_string(shown, path));
}

/* Removes what a killed process left at the name: its model, and codes of a method. */
static nib_status clear_name(const char *name, nib_err *err)
{
    static const char *const ends[] = {".part", ".verify.codes"};
    char path[NIB_PART_PATH], lock[NIB_PART_PATH];
    int fd;
    for (size_t i = 0; i < COUNT(ends); i++) {
        snprintf(lock, sizeof lock, "%s%s.lock", name, ends[i]);
        NIB_TRY(nib__lock_take(&fd, lock, err));
        const nib_status status = nib__part_choose(path, name, ends[i], err);
        nib__lock_release(fd, lock);
        NIB_TRY(status);
    }
    return NIB_OK;
}

/* Takes a name in the scratch directory that no other process has. */
static nib_status take_name(nib_advice *v, nib_err *err)
{
    nib_methods *m = v->methods;
    const char *scratch = m->asked.scratch != NULL ? m->asked.scratch : ".";
    char name[32], shown[NIB_SHOWN];
    (void)nib__escape_string(shown, scratch);
    if (nib__path_kind(scratch) != NIB_PATH_DIRECTORY)
        return nib__fail(err, NIB_IO, "%s: the directory for quantized models does not exist",
                         shown);
    const char *source = nib__checkpoint_directory(v->model->net.checkpoint);
    if (source != NULL && nib__path_within(scratch, source))
        return nib__fail(err, NIB_USAGE,
                         "%s: is the directory of the model or in it, where no quantized models "
                         "can be; --scratch DIR names another",
                         shown);
    for (int i = 1; i <= NAMES; i++) {
        snprintf(name, sizeof name, i == 1 ? "nibble-advise" : "nibble-advise-%d", i);
        m->out = nib__path_join(&v->arena, scratch, name);
        snprintf(name, sizeof name, i == 1 ? "nibble-advise.lock" : "nibble-advise-%d.lock", i);
        m->lock_path = nib__path_join(&v->arena, scratch, name);
        if (m->out == NULL || m->lock_path == NULL)
            return nib__fail_memory(err, strlen(scratch), "a path");
        if (nib__lock_take(&m->lock, m->lock_path, NULL) == NIB_OK && m->lock >= 0)
            return clear_name(m->out, err);
    }
    return nib__fail(err, NIB_IO,
                     "%s: no file can be made and locked there for quantized models; --scratch DIR "
                     "names another directory",
                     shown);
}

static nib_status check_disk(nib_advice *v, nib_err *err)
{
    nib_methods *m = v->methods;
    const char *scratch = m->asked.scratch != NULL ? m->asked.scratch : ".";
    const nib_advised *largest = &v->items[0];
    char need[32], there[32], shown[NIB_SHOWN];
    for (size_t i = 0; i < v->count; i++)
        if (v->items[i].disk > largest->disk)
            largest = &v->items[i];
    m->disk = largest->disk;
    NIB_TRY(nib__disk_free(&m->there, scratch, err));
    if (m->disk <= m->there)
        return NIB_OK;
    return nib__fail(err, NIB_IO,
                     "%s: %s takes %s while it is measured, and %s are free there; --scratch DIR "
                     "names another directory",
                     nib__escape_string(shown, scratch), largest->name,
                     nib__format_bytes(need, m->disk), nib__format_bytes(there, m->there));
}

/* Tells what the disk has to hold, and where a killed process leaves it. */
static void tell_place(const nib_advice *v)
{
    const nib_methods *m = v->methods;
    const nib_callbacks *call = &v->model->engine->callbacks;
    char need[32], shown[NIB_SHOWN], line[512];
    snprintf(line, sizeof line,
             "quantized models are written to %s.part, one at a time, at most %s, and removed; "
             "what a killed run leaves there, the next one removes",
             nib__escape_string(shown, m->out), nib__format_bytes(need, m->disk));
    if (call->log != NULL)
        call->log(call->ctx, line);
}

/* Adds how many rows are quantized, with or without a prediction, and by what. Returns their
 * seconds. */
static double put_rows(const nib_advice *v, bool is_predicted, nib_text *out)
{
    size_t by[NIB_PTQ_COUNT] = {0}, count = 0;
    double sum = 0;
    const char *before = " by ";
    for (size_t i = 0; i < v->count; i++) {
        const nib_advised *c = &v->items[i];
        nib_ptq_method method = NIB_PTQ_RTN;
        if (!c->is_made || c->inapplicable || isnan(c->predicted_s) == is_predicted)
            continue;
        if (c->method != NULL)
            (void)nib__ptq_parse(&method, c->method);
        by[method]++;
        count++;
        sum += is_predicted ? c->predicted_s : 0;
    }
    nib__text_format(out, "%zu row%s", count, count == 1 ? "" : "s");
    for (int m = 0; m < NIB_PTQ_COUNT; m++)
        if (by[m] != 0) {
            nib__text_format(out, "%s%s", before, nib__ptq_names[m]);
            before = ", ";
        }
    return sum;
}

/* Tells how long the rows' methods are predicted to take. */
static nib_status tell_time(const nib_advice *v, nib_err *err)
{
    const nib_callbacks *call = &v->model->engine->callbacks;
    nib_text line;
    nib__text_init(&line, &v->model->engine->allocator);
    const double sum = put_rows(v, true, &line);
    nib__text_format(&line, ": predicted to take about %.0f s in all; without a prediction: ", sum);
    (void)put_rows(v, false, &line);
    nib__text_str(&line, ", and all measurements");
    if (!line.failed && call->log != NULL)
        call->log(call->ctx, line.at);
    const nib_status status = line.failed ? nib__fail_memory(err, line.size, "a line") : NIB_OK;
    nib__text_free(&line);
    return status;
}

nib_status nib__methods_prepare(nib_advice *v, nib_err *err)
{
    NIB_TRY(count_tokens(v, err));
    NIB_TRY(take_name(v, err));
    for (size_t i = 0; i < v->count; i++) {
        nib_advised *c = &v->items[i];
        if (!c->is_made)
            continue;
        const nib_status status = quantize(v, c, true, err);
        if (is_fatal(status))
            return status;
        c->inapplicable = status != NIB_OK;
        if (c->inapplicable)
            NIB_TRY(nib__advise_problem(v, c, err->text, err));
    }
    NIB_TRY(check_disk(v, err));
    tell_place(v);
    return tell_time(v, err);
}

/* ---- the runs ---- */

/* Whether a row is not made; takes over what keeps the recipe from running, whatever chooses its
 * codes. */
static bool copy_problem(nib_advised *c, const nib_advised *rounding)
{
    if (c->inapplicable || c->method == NULL || (rounding->over == 0 && rounding->problem == NULL))
        return c->inapplicable;
    c->weight_bytes = rounding->weight_bytes;
    c->bytes = rounding->bytes;
    c->over = rounding->over;
    c->predicted_decode = rounding->predicted_decode;
    c->predicted_prefill = rounding->predicted_prefill;
    c->problem = rounding->problem;
    c->failed = rounding->failed;
    c->inapplicable = rounding->inapplicable;
    return true;
}

static nib_status try_row(nib_advice *v, nib_advised *c, nib_err *err)
{
    nib_methods *m = v->methods;
    if (copy_problem(c, &v->items[c->rounding]))
        return NIB_OK;
    m->begin_ns = nib__now_ns();
    m->making = true;
    m->shown = 0;
    const nib_status status = quantize(v, c, false, err);
    m->begin_ns = 0;
    if (status == NIB_OK || is_fatal(status))
        return status;
    c->decode = c->prefill = c->loss = NAN;
    c->failed = true;
    return nib__advise_problem(v, c, err->text, err);
}

nib_status nib__methods_try(nib_advice *v, nib_err *err)
{
    for (size_t i = 0; i < v->count; i++) {
        if (!v->items[i].is_made)
            continue;
        if (!nib__engine_progress(v->model->engine, "evaluate", 0, 1))
            return nib__fail(err, NIB_CANCELLED, "cancelled after %zu of %zu recipes", v->at,
                             v->count);
        NIB_TRY(try_row(v, &v->items[i], err));
        v->at++;
    }
    return NIB_OK;
}

void nib__methods_close(nib_methods *m)
{
    if (m != NULL && m->lock >= 0)
        nib__lock_release(m->lock, m->lock_path);
}

double nib__methods_progress(nib_methods *m, const char *what, double share)
{
    static const struct {
        const char *what;
        double from, to;
    } making[] = {{"calibrate", 0, 0.1}, {"quantize", 0.6, 0.7}}, other = {NULL, 0.1, 0.6},
      measuring[] = {{"evaluate", 0.7, 0.95}}, last = {NULL, 0.95, 1};
    double from = m->making ? other.from : last.from, to = m->making ? other.to : last.to;
    for (size_t i = 0; i < (m->making ? COUNT(making) : COUNT(measuring)); i++)
        if (strcmp(what, m->making ? making[i].what : measuring[i].what) == 0) {
            from = m->making ? making[i].from : measuring[i].from;
            to = m->making ? making[i].to : measuring[i].to;
        }
    m->shown = fmax(m->shown, from + share * (to - from));
    return m->shown;
}

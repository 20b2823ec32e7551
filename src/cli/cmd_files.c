/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble info, verify, quantize, convert, imatrix: the commands that read or write checkpoints.
 */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static int finish_report(nib_status status, const nib_err *err)
{
    return status == NIB_OK ? finish_stdout(0) : fail(err);
}

static int info(nib_model *model, nib_engine *engine, const settings *s)
{
    nib_err err;
    const nib_sink sink = report_sink(s);
    (void)engine;
    return finish_report(nib_info_write(model, form_of(s), &sink, &err), &err);
}

int run_info(const settings *s)
{
    return with_model(s, "`nibble info` needs MODEL", (nib_model_options){.inspect = true}, info);
}

static int verify_from(nib_model *model, const settings *s)
{
    const nib_verify_from_options options = {.size = sizeof options,
                                             .source = s->from,
                                             .calibrate = s->calibrate,
                                             .imatrix = s->imatrix,
                                             .tokenizer = s->tokenizer,
                                             .signers = s->signers,
                                             .signer = s->signer};
    nib_err err;
    const nib_sink sink = report_sink(s);
    const int status =
        finish_report(nib_verify_from(model, &options, form_of(s), &sink, &err), &err);
    clear_progress();
    return status;
}

static int verify(nib_model *model, nib_engine *engine, const settings *s)
{
    nib_model *against = NULL;
    nib_err err;
    const nib_sink sink = report_sink(s);
    if (s->from)
        return verify_from(model, s);
    int status = s->against ? open_model(&against, engine, s, s->against,
                                         (nib_model_options){.inspect = true})
                            : 0;
    const nib_verify_options options = {
        .size = sizeof options, .against = against, .signers = s->signers, .signer = s->signer};
    if (status == 0)
        status = finish_report(nib_verify_with(model, &options, form_of(s), &sink, &err), &err);
    nib_model_close(against);
    return status;
}

int run_verify(const settings *s)
{
    const option_given inputs[] = {{"calibrate", s->calibrate != NULL},
                                   {"imatrix", s->imatrix != NULL},
                                   {"tokenizer", s->tokenizer != NULL}};
    const option_given others[] = {{"against", s->against != NULL},
                                   {"sandbox", s->sandbox != NULL}};
    const char *useless = s->from ? first_given(others, sizeof others / sizeof *others)
                                  : first_given(inputs, sizeof inputs / sizeof *inputs);
    if (useless)
        return fail_usage("--%s has no effect with%s --from", useless, s->from ? "" : "out");
    if (s->signer && !s->signers)
        return fail_usage("--signer has no effect without --signers");
    return with_model(s, "`nibble verify` needs MODEL", (nib_model_options){.inspect = true},
                      verify);
}

static nib_status sign(nib_engine *engine, const char *path, const settings *s, bool dry_run,
                       nib_form form, nib_sink sink, nib_err *err)
{
    const nib_signature_options options = {
        .size = sizeof options, .key = s->sign_key, .force = s->force, .dry_run = dry_run};
    const nib_status status = nib_signature_write(engine, path, &options, form, &sink, err);
    clear_progress();
    return status;
}

int run_sign(const settings *s)
{
    nib_engine *engine;
    const char *path = model_path(s);
    if (!path)
        return fail_usage("`nibble sign` needs MODEL");
    if (!s->sign_key)
        return fail_usage("`nibble sign` needs a key: --key FILE, such as ~/.ssh/id_ed25519");
    int status = open_engine(&engine, s);
    if (status != 0)
        return status;
    nib_err err;
    status = finish_report(sign(engine, path, s, false, form_of(s), report_sink(s), &err), &err);
    nib_engine_close(engine);
    return status;
}

/* Before OUT is written: whether --sign has a key, and something to sign. */
static int check_sign(nib_engine *engine, const settings *s)
{
    if (!s->sign_key)
        return 0;
    if (s->dry_run)
        return fail_usage("--sign has no effect with --dry-run");
    nib_err err;
    return sign(engine, NULL, s, true, NIB_FORM_TEXT, stderr_sink(), &err) == NIB_OK ? 0
                                                                                     : fail(&err);
}

/* What --sign did is a remark: that it cannot be written changes nothing. */
static nib_status remark(void *ctx, const char *text, size_t size)
{
    (void)ctx;
    (void)fwrite(text, 1, size, stderr);
    return NIB_OK;
}

/* Signs OUT, which is complete. The report of what was written went to stdout. */
static int sign_output(nib_engine *engine, const settings *s)
{
    const char *out = s->arguments.items[s->arguments.count - 1];
    nib_err err, whole;
    if (!s->sign_key ||
        sign(engine, out, s, false, NIB_FORM_TEXT, (nib_sink){.write = remark}, &err) == NIB_OK)
        return 0;
    whole.status = err.status;
    snprintf(whole.text, sizeof whole.text, "%.200s is complete, but not signed: %.400s", out,
             err.text);
    return fail(&whole);
}

/* A number above 0 and its unit. False: it is something else. */
static bool read_amount(double *out, const char *text, const char *unit)
{
    char *end;
    errno = 0;
    return parse_number(out, text, &end) && errno == 0 && isfinite(*out) && *out > 0 &&
           strcmp(end, unit) == 0;
}

/* *given: whether there is a budget. */
static int read_budget(nib_budget *out, bool *given, const settings *s)
{
    *out = (nib_budget){.size = sizeof *out, .memory = s->memory, .rules = s->rules};
    if (s->budget && !read_amount(&out->bits, s->budget, "bpw"))
        return fail_usage("--budget: \"%s\" is not a number of bits per weight, such as 4.25bpw",
                          s->budget);
    if (s->speed && !read_amount(&out->speed, s->speed, "tok/s"))
        return fail_usage("--speed: \"%s\" is not a speed, such as 30tok/s", s->speed);
    *given = s->budget || s->memory || s->speed;
    if (!*given && s->rules)
        return fail_usage("--rules has no effect without --budget, --memory or --speed");
    return 0;
}

static const char *model_argument(const settings *s)
{
    return s->model ? s->model : s->arguments.items[0];
}

static const char *out_argument(const settings *s)
{
    return s->arguments.items[s->arguments.count - 1];
}

static int quantize(nib_model *model, nib_engine *engine, const settings *s)
{
    nib_request request = request_of(s);
    nib_budget budget;
    bool has_budget;
    if (read_budget(&budget, &has_budget, s))
        return NIB_USAGE;
    request.memory = 0; /* the budget has it */
    const nib_quantize_options options = {.size = sizeof options,
                                          .request = &request,
                                          .for_device = s->for_device,
                                          .out = out_argument(s),
                                          .format = s->format,
                                          .calibrate = s->calibrate,
                                          .force = s->force,
                                          .dry_run = s->dry_run,
                                          .pack = s->pack,
                                          .method = s->method,
                                          .imatrix = s->imatrix,
                                          .budget = has_budget ? &budget : NULL};
    nib_err err;
    const nib_sink sink = report_sink(s);
    int status = check_sign(engine, s);
    if (status == 0)
        status = finish_report(nib_quantize(model, &options, form_of(s), &sink, &err), &err);
    clear_progress();
    return status == 0 ? sign_output(engine, s) : status;
}

int run_quantize(const settings *s)
{
    if (s->arguments.count < (s->model ? 1 : 2))
        return fail_usage("`nibble quantize` needs MODEL and OUT");
    if (!s->recipe && !s->budget && !s->memory && !s->speed)
        return fail_usage("`nibble quantize` needs --recipe, for example `nibble quantize %s %s "
                          "--recipe 8da4w`; `nibble recipes` lists them",
                          model_argument(s), out_argument(s));
    return with_model(s, "`nibble quantize` needs MODEL and OUT", (nib_model_options){0}, quantize);
}

static int imatrix(nib_model *model, nib_engine *engine, const settings *s)
{
    const nib_imatrix_options options = {.size = sizeof options,
                                         .out = out_argument(s),
                                         .calibrate = s->calibrate,
                                         .force = s->force};
    nib_err err;
    const nib_sink sink = report_sink(s);
    (void)engine;
    const int status =
        finish_report(nib_imatrix_write(model, &options, form_of(s), &sink, &err), &err);
    clear_progress();
    return status;
}

int run_imatrix(const settings *s)
{
    if (s->arguments.count < (s->model ? 1 : 2))
        return fail_usage("`nibble imatrix` needs MODEL and OUT");
    if (!s->calibrate)
        return fail_usage("`nibble imatrix` needs a text to run the model on: --calibrate FILE");
    return with_model(s, "`nibble imatrix` needs MODEL and OUT", (nib_model_options){0}, imatrix);
}

static int convert(nib_model *model, nib_engine *engine, const settings *s)
{
    const nib_convert_options options = {.out = out_argument(s),
                                         .format = s->format,
                                         .dtype = s->dtype,
                                         .force = s->force,
                                         .dry_run = s->dry_run,
                                         .bias = s->bias,
                                         .pack = s->pack,
                                         .strict = s->strict,
                                         .allow = request_of(s).allow};
    nib_err err;
    const nib_sink sink = report_sink(s);
    int status = check_sign(engine, s);
    if (status == 0)
        status = finish_report(nib_convert(model, &options, form_of(s), &sink, &err), &err);
    clear_progress();
    return status == 0 ? sign_output(engine, s) : status;
}

int run_convert(const settings *s)
{
    if (s->arguments.count < (s->model ? 1 : 2))
        return fail_usage("`nibble convert` needs MODEL and OUT");
    if (!s->format)
        return fail_usage("`nibble convert` needs --format, for example `nibble convert %s %s "
                          "--format gguf`; the others are torchao, nibble, 8da4w, "
                          "compressed-tensors and safetensors",
                          model_argument(s), out_argument(s));
    return with_model(s, "`nibble convert` needs MODEL and OUT",
                      (nib_model_options){.convert = true}, convert);
}

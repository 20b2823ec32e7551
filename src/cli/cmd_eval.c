/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble eval: the loss of a text, and the distance from another model or from a file of logits.
 */
#include "cli.h"
#include "kept_text.h"

#include <inttypes.h>
#include <stdlib.h>

/* What the model is compared with. */
typedef struct reference {
    const nib_plan *plan;    /* NULL: not with a model */
    const char *logits_path; /* NULL: not with a file */
} reference;

/* ---- JSON ---- */

static void print_json_interval(const char *key, const double interval[2])
{
    printf(", \"%s\": [%.9g, %.9g]", key, interval[0], interval[1]);
}

static void print_json_intervals(const nib_eval_result *e)
{
    printf(", \"intervals\": {\"level\": 0.95, \"unit\": \"%s\", \"units\": %" PRId64
           ", \"resamples\": %" PRId64,
           e->documents ? "document" : "window", e->units, e->resamples);
    if (e->resamples > 0) {
        print_json_interval("kl", e->kl_interval);
        print_json_interval("loss_difference", e->loss_difference_interval);
        print_json_interval("perplexity_ratio", e->perplexity_ratio_interval);
        print_json_interval("top1_agreement", e->top1_agreement_interval);
    } else {
        printf(", \"needed\": %d, \"absent\": \"%s\"", NIB_EVAL_UNITS,
               e->units == 1 ? "one_unit" : "few_units");
    }
    putchar('}');
}

static void print_json_positions(const nib_eval_result *e)
{
    fputs(", \"kl_by_position\": [", stdout);
    for (size_t i = 0; i < NIB_EVAL_POSITIONS; i++) {
        printf("%s{\"from\": %" PRId64 ", \"predicted\": %" PRId64, i > 0 ? ", " : "",
               e->position_begin[i], e->position_predicted[i]);
        if (e->position_predicted[i] > 0)
            print_json_number("kl", e->position_kl[i]);
        putchar('}');
    }
    putchar(']');
}

static void print_json_comparison(const nib_eval_result *e)
{
    print_json_number("against_loss", e->against_loss);
    print_json_number("loss_difference", e->loss_difference);
    print_json_number("perplexity_ratio", e->perplexity_ratio);
    print_json_number("kl", e->kl);
    print_json_number("kl_median", e->kl_median);
    print_json_number("kl_p99", e->kl_p99);
    print_json_number("kl_p999", e->kl_p999);
    print_json_number("kl_largest", e->kl_largest);
    printf(", \"kl_largest_at\": {\"%s\": %" PRId64 ", \"position\": %" PRId64
           ", \"token\": %" PRId64 "}",
           e->documents ? "line" : "window", e->kl_largest_unit, e->kl_largest_position,
           e->kl_largest_token);
    print_json_positions(e);
    print_json_number("top1_agreement", e->top1_agreement);
    print_json_intervals(e);
}

static int print_json(const nib_eval_result *e, const nib_plan *plan, const reference *against)
{
    printf("{\"schema\": 1");
    print_json_number("loss", e->loss);
    print_json_number("perplexity", e->perplexity);
    printf(", \"predicted\": %" PRId64 ", \"first_scored\": %" PRId64, e->predicted,
           e->first_scored);
    if (against->plan || against->logits_path)
        print_json_comparison(e);
    int status = print_ledger_members(plan);
    if (status == 0 && against->plan) {
        fputs(", \"against\": {\"schema\": 1", stdout);
        status = print_ledger_members(against->plan);
        putchar('}');
    }
    puts("}");
    return status;
}

/* ---- text ---- */

/* Ends a line; without resamples there are no intervals. */
static void print_interval(const nib_eval_result *e, int decimals, const double interval[2])
{
    if (e->resamples > 0)
        printf(", 95 %%: %.*f to %.*f", decimals, interval[0], decimals, interval[1]);
    putchar('\n');
}

static void print_positions(const nib_eval_result *e)
{
    const char *before = "            by position: ";
    for (size_t i = 0; i < NIB_EVAL_POSITIONS; i++) {
        if (e->position_predicted[i] == 0)
            continue;
        printf("%s%" PRId64 "-", before, e->position_begin[i]);
        if (i + 1 < NIB_EVAL_POSITIONS)
            printf("%" PRId64, e->position_begin[i + 1] - 1);
        printf(" %.4g", e->position_kl[i]);
        before = ", ";
    }
    putchar('\n');
}

static void print_comparison(const nib_eval_result *e)
{
    const char *unit = e->documents ? "document" : "window";
    printf("against     %.4f nats per token, difference %.4f", e->against_loss, e->loss_difference);
    print_interval(e, 4, e->loss_difference_interval);
    printf("ratio       %.4f of perplexities", e->perplexity_ratio);
    print_interval(e, 4, e->perplexity_ratio_interval);
    printf("KL          %.6f nats per token", e->kl);
    print_interval(e, 6, e->kl_interval);
    printf("            median %.4g, 99 %% %.4g, 99.9 %% %.4g, largest %.4g (token %" PRId64
           " after position %" PRId64 " of %s %" PRId64 ")\n",
           e->kl_median, e->kl_p99, e->kl_p999, e->kl_largest, e->kl_largest_token,
           e->kl_largest_position, e->documents ? "line" : unit, e->kl_largest_unit);
    print_positions(e);
    const double shares[2] = {100 * e->top1_agreement_interval[0],
                              100 * e->top1_agreement_interval[1]};
    printf("agreement   %.2f %% of top-1 tokens", 100 * e->top1_agreement);
    print_interval(e, 2, shares);
    if (e->resamples > 0)
        printf("intervals   %" PRId64 " resamples of %" PRId64 " %ss\n", e->resamples, e->units,
               unit);
    else
        printf("intervals   none: they need %d %ss, the text has %" PRId64 "\n", NIB_EVAL_UNITS,
               unit, e->units);
}

static void print_text(const nib_eval_result *e, const reference *against)
{
    printf("loss        %.4f nats per token\nperplexity  %.4f\npredicted   %" PRId64
           " tokens in %.1f s",
           e->loss, e->perplexity, e->predicted, e->seconds);
    if (e->first_scored > 0)
        printf(", those after position %" PRId64 " of whole windows", e->first_scored);
    putchar('\n');
    if (against->plan || against->logits_path)
        print_comparison(e);
}

/* ---- the command ---- */

/* Prints the other model's settings under its name. */
static int print_against_settings(const nib_plan *plan, const settings *s)
{
    kept_text k = {0};
    nib_err err;
    const nib_sink sink = {.write = kept_write, .ctx = &k};
    const nib_status status = nib_plan_ledger_write(plan, NIB_FORM_TEXT, &sink, &err);
    clear_progress();
    if (status == NIB_OK && k.size > 0 && !s->quiet) {
        fprintf(stderr, "against %s\n", s->against);
        fwrite(k.text, 1, k.size, stderr);
    }
    free(k.text);
    return status == NIB_OK ? 0 : fail(&err);
}

/* other NULL: alone, or with the file of logits. */
static int evaluate(const run_context *r, const run_context *other, const settings *s)
{
    const reference against = {.plan = other ? nib_session_plan(other->session) : NULL,
                               .logits_path = other ? NULL : s->against};
    const nib_eval_options options = {.size = sizeof options,
                                      .text_path = s->text,
                                      .window = s->window,
                                      .against_logits = against.logits_path,
                                      .save_logits = s->save_logits,
                                      .logits_format = s->logits_format};
    nib_eval_result result = {.size = sizeof result};
    nib_err err;
    if (nib_eval(r->session, other ? other->session : NULL, &options, &result, &err) != NIB_OK)
        return fail(&err);
    clear_progress();
    const nib_plan *plan = nib_session_plan(r->session);
    int printed = 0;
    if (s->json)
        printed = print_json(&result, plan, &against);
    else
        print_text(&result, &against);
    return printed ? printed : finish_stdout(print_summary(r, s));
}

/* The other model runs as stored, with the same activation type and strictness. */
static int evaluate_against(const run_context *r, nib_engine *engine, const nib_request *request,
                            const settings *s)
{
    const nib_request plain = {
        .dtype = s->dtype, .context = s->context, .strict = s->strict, .allow = request->allow};
    settings apart = *s; /* print_against_settings prints its settings instead */
    run_context other;
    apart.quiet = true;
    int status = open_run(&other, engine, &apart, s->against, &plain);
    if (status)
        return status;
    status = print_against_settings(nib_session_plan(other.session), s);
    if (status == 0)
        status = evaluate(r, &other, s);
    close_run(&other);
    return status;
}

int run_eval(const settings *s)
{
    const char *path = model_path(s);
    if (!path || !s->text)
        return fail_usage("`nibble eval` needs MODEL and --text FILE");
    nib_engine *engine;
    int status = open_engine(&engine, s);
    if (status)
        return status;
    run_context r;
    const nib_request request = request_of(s);
    status = open_run(&r, engine, s, path, &request);
    if (status == 0) {
        status = s->against && !nib_is_logits_file(s->against)
                     ? evaluate_against(&r, engine, &request, s)
                     : evaluate(&r, NULL, s);
        close_run(&r);
    }
    nib_engine_close(engine);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble eval: the loss of a text, and the distance from another model or from a file of logits.
 */
#include "cli.h"
#include "kept_text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What the model is compared with. */
typedef struct reference {
    const nib_plan *plan;    /* NULL: not with a model */
    nib_session *session;    /* of that model */
    const char *logits_path; /* NULL: not with a file */
} reference;

/* The layers that a recipe changes, in the order of the plan, each evaluated alone. */
typedef struct layer_results {
    nib_plan_layer *layers;   /* [count] */
    nib_eval_result *results; /* [count] */
    size_t count;
} layer_results;

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

static void print_json_layers(const layer_results *by_layer)
{
    fputs(", \"by_layer\": [", stdout);
    for (size_t i = 0; i < by_layer->count; i++) {
        const nib_eval_result *e = &by_layer->results[i];
        const nib_plan_layer *layer = &by_layer->layers[i];
        fputs(i > 0 ? ", {\"name\": " : "{\"name\": ", stdout);
        print_json_string(stdout, layer->name, strlen(layer->name));
        printf(", \"scheme\": \"%s\"", layer->done);
        print_json_number("kl", e->kl);
        if (e->resamples > 0)
            print_json_interval("kl_interval", e->kl_interval);
        putchar('}');
    }
    putchar(']');
}

static int print_json(const nib_eval_result *e, const layer_results *by_layer, const nib_plan *plan,
                      const reference *against)
{
    printf("{\"schema\": 1");
    print_json_number("loss", e->loss);
    print_json_number("perplexity", e->perplexity);
    printf(", \"predicted\": %" PRId64 ", \"first_scored\": %" PRId64, e->predicted,
           e->first_scored);
    if (e->draft_guesses > 0) {
        printf(", \"draft_guesses\": %" PRId64, e->draft_guesses);
        print_json_number("draft_head_right", e->draft_right);
    }
    if (against->plan || against->logits_path)
        print_json_comparison(e);
    if (by_layer->count > 0)
        print_json_layers(by_layer);
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
    if (e->draft_guesses > 0)
        printf("draft head  right at %.2f %% of %" PRId64 " positions\n", 100 * e->draft_right,
               e->draft_guesses);
    if (against->plan || against->logits_path)
        print_comparison(e);
}

/* ---- by layer ---- */

/* The layer of that name. False: none. */
static bool find_layer(nib_plan_layer *out, const nib_plan *plan, const char *name)
{
    nib_plan_facts facts = {.size = sizeof facts};
    nib_plan_facts_get(plan, &facts);
    for (size_t i = 0; i < facts.layers; i++) {
        *out = (nib_plan_layer){.size = sizeof *out};
        if (nib_plan_layer_get(plan, i, out, NULL) == NIB_OK && strcmp(out->name, name) == 0)
            return true;
    }
    return false;
}

/* Collects the layers of the plan that are stored otherwise than without a recipe. */
static int find_changed(layer_results *out, const nib_plan *plan, const nib_plan *plain)
{
    nib_plan_facts facts = {.size = sizeof facts};
    nib_plan_facts_get(plan, &facts);
    out->layers = calloc(facts.layers, sizeof *out->layers);
    out->results = calloc(facts.layers, sizeof *out->results);
    if (!out->layers || !out->results)
        return fail(&(nib_err){NIB_NO_MEMORY, "out of memory for the results of layers"});
    for (size_t i = 0; i < facts.layers; i++) {
        nib_plan_layer *layer = &out->layers[out->count], stored;
        nib_err err;
        *layer = (nib_plan_layer){.size = sizeof *layer};
        if (nib_plan_layer_get(plan, i, layer, &err) != NIB_OK)
            return fail(&err);
        if (find_layer(&stored, plain, layer->name) && strcmp(layer->done, stored.done) != 0)
            out->count++;
    }
    return out->count > 0 ? 0 : fail_usage("--by-layer: the recipe changes no layer");
}

/* Finds the layers to evaluate alone, and says what that costs. */
static int open_layers(layer_results *out, const run_context *r, const reference *against,
                       const settings *s)
{
    const nib_request request = {.dtype = s->dtype, .device = s->device, .context = s->context};
    nib_plan *plain;
    nib_err err;
    if (nib_plan_open(&plain, r->model, &request, &err) != NIB_OK)
        return fail(&err);
    const int status = find_changed(out, nib_session_plan(r->session), plain);
    nib_plan_close(plain);
    if (status == 0 && !s->quiet) {
        clear_progress();
        fprintf(stderr,
                "by layer: the text is evaluated %zu times, once with all of the recipe%s\n",
                out->count + 1,
                against->session ? "; each time the other model runs, too, which a file of its "
                                   "logits would save (--save-logits)"
                                 : "");
    }
    return status;
}

static void close_layers(layer_results *by_layer)
{
    free(by_layer->layers);
    free(by_layer->results);
}

static int fail_alone(const nib_plan_layer *layer, const nib_plan_layer *alone)
{
    nib_err err = {.status = NIB_NOT_AS_ASKED};
    snprintf(err.text, sizeof err.text, "%s runs as %s, but quantized alone as %s", layer->name,
             layer->done, alone->done ? alone->done : "nothing");
    return fail(&err);
}

/* Evaluates the model with this layer alone as the recipe says. */
static int evaluate_layer(nib_eval_result *result, const run_context *r,
                          const nib_plan_layer *layer, const reference *against,
                          nib_eval_options options, const settings *s)
{
    nib_request request = request_of(s);
    nib_plan *plan = NULL;
    nib_session *session = NULL;
    nib_plan_layer alone;
    nib_err err;
    request.only = (nib_strings){.items = &layer->name, .count = 1};
    options.save_logits = options.logits_format = NULL;
    *result = (nib_eval_result){.size = sizeof *result};
    int status = 0;
    if (nib_plan_open(&plan, r->model, &request, &err) != NIB_OK ||
        nib_session_open(&session, r->model, plan, 1, &err) != NIB_OK)
        status = fail(&err);
    else if (!find_layer(&alone, nib_session_plan(session), layer->name) || !alone.done ||
             strcmp(alone.done, layer->done) != 0)
        status = fail_alone(layer, &alone);
    else if (nib_eval(session, against->session, &options, result, &err) != NIB_OK)
        status = fail(&err);
    nib_session_close(session);
    nib_plan_close(plan);
    return status;
}

/* Prints each layer's line when it is known: with --json, which prints them at the end, a count. */
static int evaluate_layers(layer_results *by_layer, const run_context *r, const reference *against,
                           const nib_eval_options *options, const settings *s)
{
    double sum = 0;
    for (size_t i = 0; i < by_layer->count; i++) {
        const nib_plan_layer *layer = &by_layer->layers[i];
        nib_eval_result *e = &by_layer->results[i];
        const int status = evaluate_layer(e, r, layer, against, *options, s);
        if (status)
            return status;
        clear_progress();
        sum += e->kl;
        if (s->json && !s->quiet)
            fprintf(stderr, "layer %zu of %zu: %s\n", i + 1, by_layer->count, layer->name);
        if (s->json)
            continue;
        printf("%s%-40s %-16s %.6f", i > 0 ? "" : "KL by layer, alone\n", layer->name, layer->done,
               e->kl);
        print_interval(e, 6, e->kl_interval);
        fflush(stdout);
    }
    if (by_layer->count > 0 && !s->json)
        printf("%-57s %.6f\n", "sum", sum);
    return 0;
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

/* With `against`, and by layer if there are any. */
static int evaluate_all(const run_context *r, const reference *against, layer_results *by_layer,
                        const settings *s)
{
    const nib_eval_options options = {.size = sizeof options,
                                      .text_path = s->text,
                                      .window = s->window,
                                      .against_logits = against->logits_path,
                                      .save_logits = s->save_logits,
                                      .logits_format = s->logits_format};
    nib_eval_result result = {.size = sizeof result};
    nib_err err;
    if (nib_eval(r->session, against->session, &options, &result, &err) != NIB_OK)
        return fail(&err);
    clear_progress();
    if (!s->json)
        print_text(&result, against);
    fflush(stdout);
    int status = evaluate_layers(by_layer, r, against, &options, s);
    if (status == 0 && s->json)
        status = print_json(&result, by_layer, nib_session_plan(r->session), against);
    return status ? status : finish_stdout(print_summary(r, s));
}

/* other NULL: alone, or with the file of logits. */
static int evaluate(const run_context *r, const run_context *other, const settings *s)
{
    const reference against = {.plan = other ? nib_session_plan(other->session) : NULL,
                               .session = other ? other->session : NULL,
                               .logits_path = other ? NULL : s->against};
    layer_results by_layer = {0};
    int status = s->by_layer ? open_layers(&by_layer, r, &against, s) : 0;
    if (status == 0)
        status = evaluate_all(r, &against, &by_layer, s);
    close_layers(&by_layer);
    return status;
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
    if (s->by_layer && (!s->against || !s->recipe))
        return fail_usage("--by-layer needs --recipe, which says how each layer is quantized, and "
                          "--against, the model without it or its logits");
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

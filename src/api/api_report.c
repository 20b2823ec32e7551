/* SPDX-License-Identifier: Apache-2.0
 *
 * Reports of a service: models, health, Prometheus metrics, the plan.
 */
#include "service.h"
#include "public_struct.h"

#include <inttypes.h>
#include <stdio.h>

static const double bounds[NIB_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                           0.25,  0.5,    1,     2.5,  5,     10,   60};

void nib__histogram_add(nib_histogram *h, double seconds)
{
    int i = 0;
    while (i < NIB_BUCKETS && seconds > bounds[i])
        i++;
    h->counts[i]++;
    h->sum += seconds;
}

void nib__call_count(nib_call *call)
{
    nib_service_counts *counts = &call->service->counts;
    const nib_token_counts tokens = nib__call_tokens(call);
    call->over_ns = nib__now_ns();
    counts->requests[call->options.route][call->closed ? 0 : call->http / 100]++;
    if (call->begun_ns == 0)
        return;
    counts->prompt_tokens += (uint64_t)tokens.prompt;
    counts->cached_tokens += (uint64_t)tokens.cached;
    nib__histogram_add(&counts->total, (double)(call->over_ns - call->came_ns) * 1e-9);
}

/* ---- Prometheus ---- */

static void put_head(nib_text *out, const char *name, const char *type, const char *help)
{
    nib__text_format(out, "# HELP nibble_%s %s\n# TYPE nibble_%s %s\n", name, help, name, type);
}

static void put_count(nib_text *out, const char *name, const char *type, const char *help,
                      double value)
{
    char text[32];
    put_head(out, name, type, help);
    nib__text_format(out, "nibble_%s %s\n", name, nib__format_double(text, value));
}

static void put_histogram(nib_text *out, const char *name, const char *help, const nib_histogram *h)
{
    char text[32];
    uint64_t sum = 0;
    put_head(out, name, "histogram", help);
    for (int i = 0; i < NIB_BUCKETS; i++) {
        sum += h->counts[i];
        nib__text_format(out, "nibble_%s_bucket{le=\"%s\"} %" PRIu64 "\n", name,
                         nib__format_double(text, bounds[i]), sum);
    }
    sum += h->counts[NIB_BUCKETS];
    nib__text_format(out, "nibble_%s_bucket{le=\"+Inf\"} %" PRIu64 "\nnibble_%s_sum %s\n", name,
                     sum, name, nib__format_double(text, h->sum));
    nib__text_format(out, "nibble_%s_count %" PRIu64 "\n", name, sum);
}

static void put_requests(nib_text *out, const nib_service_counts *counts)
{
    static const char *const routes[] = {"chat", "completions"};
    static const char *const answers[] = {"gone", "1xx", "2xx", "3xx", "4xx", "5xx"};
    put_head(out, "requests_total", "counter", "Finished requests, by status.");
    for (size_t r = 0; r < COUNT(routes); r++)
        for (size_t i = 0; i < COUNT(answers); i++)
            if (i != 1 && i != 3)
                nib__text_format(out,
                                 "nibble_requests_total{route=\"%s\",answer=\"%s\"} %" PRIu64 "\n",
                                 routes[r], answers[i], counts->requests[r][i]);
}

static void put_recomputed(nib_text *out, const nib_batch_counts *b)
{
    put_head(out, "prompt_tokens_recomputed_total", "counter",
             "Prompt tokens that were in the cache and were computed again, by what kept the cache "
             "from being continued.");
    for (int i = NIB_RECOMPUTE_NONE + 1; i < NIB_RECOMPUTE_COUNT; i++)
        nib__text_format(out, "nibble_prompt_tokens_recomputed_total{because=\"%s\"} %" PRId64 "\n",
                         nib__recompute_names[i], b->recomputed[i]);
}

static void put_metrics(nib_text *out, const nib_service *s)
{
    const nib_service_counts *c = &s->counts;
    const nib_batch_counts *b = &s->batch_counts;
    put_requests(out, c);
    put_count(out, "requests_waiting", "gauge", "Requests with a choice that has not started.",
              (double)s->waiting);
    put_count(out, "requests_waiting_limit", "gauge",
              "Limit of waiting requests; more are refused.", (double)s->options.queue);
    put_count(out, "sequences_running", "gauge", "Choices running.", (double)b->jobs);
    put_count(out, "sequences", "gauge", "Choices that can run at once.", (double)b->sequences);
    put_count(out, "cache_usage_ratio", "gauge", "Share of KV cache blocks in use.",
              (double)b->blocks_used / (double)nib__max(b->blocks, 1));
    put_count(out, "steps_total", "counter", "Forward steps.", (double)b->steps);
    put_count(out, "prompt_tokens_total", "counter", "Prompt tokens.", (double)c->prompt_tokens);
    put_count(out, "prompt_tokens_cached_total", "counter", "Prompt tokens found in the cache.",
              (double)c->cached_tokens);
    put_recomputed(out, b);
    put_count(out, "prompt_tokens_from_disk_total", "counter",
              "Prompt tokens whose states were read from the state cache.", (double)b->disk_tokens);
    put_count(out, "states_saved_total", "counter", "States written to the state cache.",
              (double)b->disk_saved);
    put_count(out, "tokens_total", "counter", "Generated tokens.", (double)c->new_tokens);
    put_count(out, "tokens_drafted_total", "counter",
              "Tokens drafted by prompt lookup or a draft model.", (double)b->drafted);
    put_count(out, "tokens_accepted_total", "counter", "Drafted tokens that were accepted.",
              (double)b->accepted);
    put_count(out, "draft_model_tokens_drafted_total", "counter",
              "Tokens drafted by the draft model.", (double)b->guessed);
    put_count(out, "draft_model_tokens_accepted_total", "counter",
              "Tokens drafted by the draft model that were accepted.", (double)b->guessed_right);
    put_count(out, "draft_model_seconds_total", "counter", "Time in steps of the draft model.",
              b->model_s);
    put_count(out, "drafts_in_vain_seconds_total", "counter",
              "Time lost to drafts that gains did not make up for.", b->vain_s);
    put_count(out, "undrafted_seconds_total", "counter",
              "Time that all steps would have taken without drafts.", b->without_s);
    put_count(out, "resident_bytes", "gauge",
              "Resident memory of the process, without mapped files.",
              (double)nib__resident_read(s->statm));
    put_histogram(out, "queue_seconds", "Time from a request's arrival to its start.", &c->queued);
    put_histogram(out, "first_token_seconds", "Time from a request's arrival to its first token.",
                  &c->first_token);
    put_histogram(out, "next_token_seconds", "Time between tokens of a request.", &c->next_token);
    put_histogram(out, "request_seconds", "Time from a request's arrival to its end.", &c->total);
}

/* ---- models and health ---- */

static void write_model(nib_jsonw *w, const nib_service *s)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "id", s->name);
    nib__jsonw_pair_string(w, "object", "model");
    nib__jsonw_pair_int(w, "created", s->created);
    nib__jsonw_pair_string(w, "owned_by", "nibble");
    nib__jsonw_pair_int(w, "context_length", s->session->plan->context);
    nib__jsonw_object_end(w);
}

static void put_models(nib_text *out, const nib_service *s, bool all)
{
    nib_jsonw w;
    nib__jsonw_init(&w, out, 0);
    if (!all) {
        write_model(&w, s);
        return;
    }
    nib__jsonw_object(&w);
    nib__jsonw_pair_string(&w, "object", "list");
    nib__jsonw_key(&w, "data");
    nib__jsonw_array(&w);
    write_model(&w, s);
    nib__jsonw_array_end(&w);
    nib__jsonw_object_end(&w);
}

static void put_health(nib_text *out, const nib_service *s)
{
    const bool lost = s->lost.status != NIB_OK;
    nib_jsonw w;
    nib__jsonw_init(&w, out, 0);
    nib__jsonw_object(&w);
    nib__jsonw_pair_string(&w, "status", lost ? "failed" : s->stopping > 0 ? "stopping" : "ok");
    if (lost)
        nib__jsonw_pair_string(&w, "error", s->lost.text);
    nib__jsonw_object_end(&w);
}

nib_status nib_service_write(nib_service *s, nib_report report, const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "service", s);
    NIB_TRY(nib__sink_check(sink, err));
    nib_text text;
    NIB_TRY(nib__service_check(s, err));
    if (report < NIB_REPORT_MODELS || report > NIB_REPORT_PLAN)
        return nib__fail(err, NIB_USAGE, "report %d is not a nib_report", (int)report);
    nib__text_init(&text, &s->session->model->engine->allocator);
    pthread_mutex_lock(&s->lock);
    switch (report) {
    case NIB_REPORT_MODELS: put_models(&text, s, true); break;
    case NIB_REPORT_MODEL: put_models(&text, s, false); break;
    case NIB_REPORT_HEALTH: put_health(&text, s); break;
    case NIB_REPORT_METRICS: put_metrics(&text, s); break;
    case NIB_REPORT_PLAN: nib__text_put(&text, s->plan.at, s->plan.size); break;
    }
    pthread_mutex_unlock(&s->lock);
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

nib_status nib_error_write(int http, const char *message, const char *param, const char *code,
                           const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "message", message);
    NIB_TRY(nib__sink_check(sink, err));
    const nib_allocator a = nib__allocator_default();
    nib_api_error error = {.http = http, .code = code};
    nib_text text;
    snprintf(error.text, sizeof error.text, "%s", message);
    snprintf(error.param, sizeof error.param, "%s", param ? param : "");
    nib__text_init(&text, &a);
    nib__answer_error(&text, &error);
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

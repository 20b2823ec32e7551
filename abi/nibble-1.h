/* SPDX-License-Identifier: Apache-2.0
 *
 * Version 1 of the ABI, as tools/abi recorded it from the headers.
 */
#ifndef NIBBLE_H
#define NIBBLE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#define NIB_VERSION "0.1.0"
#define NIB_VERSION_NUMBER 100
#if defined(__GNUC__)
#define NIB_API __attribute__((visibility("default")))
#define NIB_MUST_CHECK __attribute__((warn_unused_result))
#define NIB_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define NIB_API
#define NIB_MUST_CHECK
#define NIB_PRINTF(f, a)
#endif
#define NIB_CHECKED NIB_API NIB_MUST_CHECK
typedef enum nib_status {
    NIB_OK = 0,
    NIB_FAILED = 1,
    NIB_USAGE = 2,
    NIB_BAD_INPUT = 3,
    NIB_UNSUPPORTED = 4,
    NIB_NOT_AS_ASKED = 5,
    NIB_NO_MEMORY = 6,
    NIB_IO = 7,
    NIB_EXISTS = 8,
    NIB_CHECK_FAILED = 9,
    NIB_CANCELLED = 10
} nib_status;
typedef struct nib_err {
    nib_status status;
    char text[1024];
} nib_err;
NIB_API const char *nib_status_name(nib_status status);
NIB_API const char *nib_status_text(nib_status status);
NIB_API const char *nib_version(void);
NIB_API int nib_version_number(void);
NIB_API int nib_status_exit(nib_status status);
NIB_API void nib_init(void *options, size_t size);
typedef struct nib_sink {
    nib_status (*write)(void *ctx, const char *bytes, size_t size);
    void *ctx;
} nib_sink;
typedef enum nib_form { NIB_FORM_TEXT = 0, NIB_FORM_JSON = 1, NIB_FORM_MARKDOWN = 2 } nib_form;
typedef struct nib_allocator {
    void *(*resize)(void *ctx, void *old, size_t size);
    void *ctx;
} nib_allocator;
typedef struct nib_callbacks {
    bool (*progress)(void *ctx, const char *what, uint64_t done, uint64_t total);
    void (*log)(void *ctx, const char *line);
    void *ctx;
} nib_callbacks;
typedef struct nib_strings {
    const char *const *items;
    size_t count;
} nib_strings;
typedef struct nib_engine nib_engine;
typedef enum nib_sandbox {
    NIB_SANDBOX_OFF = 0,
    NIB_SANDBOX_AUTO = 1,
    NIB_SANDBOX_ON = 2
} nib_sandbox;
typedef struct nib_engine_options {
    size_t size;
    int threads;
    const char *isa;
    const nib_allocator *allocator;
    nib_callbacks callbacks;
    const char *cache_path;
    int slice, slices;
    nib_sandbox sandbox;
    uint64_t reserved[4];
} nib_engine_options;
NIB_CHECKED nib_status nib_engine_open(nib_engine **out, const nib_engine_options *options,
                                       nib_err *err);
NIB_API void nib_engine_close(nib_engine *engine);
typedef struct nib_model nib_model;
typedef struct nib_model_options {
    size_t size;
    const char *tokenizer;
    bool config_only;
    bool inspect;
    bool convert;
    nib_strings overrides;
    const char *cache_dir;
    uint64_t reserved[4];
} nib_model_options;
NIB_CHECKED nib_status nib_model_open(nib_model **out, nib_engine *engine, const char *path,
                                      const nib_model_options *options, nib_err *err);
NIB_API void nib_model_close(nib_model *model);
typedef struct nib_model_facts {
    size_t size;
    const char *architecture;
    int64_t context;
    int64_t vocab;
    int64_t width;
    int64_t layers, heads, kv_heads, head_dim;
    const int32_t *ends;
    size_t end_count;
    const char *chat_template;
} nib_model_facts;
NIB_CHECKED nib_status nib_model_facts_get(nib_model *model, nib_model_facts *out, nib_err *err);
typedef struct nib_tokenizer nib_tokenizer;
NIB_CHECKED nib_status nib_tokenizer_open(nib_tokenizer **out, nib_engine *engine, const char *path,
                                          nib_err *err);
NIB_API void nib_tokenizer_close(nib_tokenizer *tokenizer);
NIB_CHECKED nib_status nib_model_tokenizer(const nib_tokenizer **out, nib_model *model,
                                           nib_err *err);
typedef struct nib_tokenizer_facts {
    size_t size;
    int64_t vocab;
    int32_t bos, eos;
    bool adds_bos;
} nib_tokenizer_facts;
NIB_API void nib_tokenizer_facts_get(const nib_tokenizer *tokenizer, nib_tokenizer_facts *out);
enum {
    NIB_TOKENIZE_ADD_SPECIAL = 1,
    NIB_TOKENIZE_PARSE_SPECIAL = 2
};
NIB_CHECKED nib_status nib_tokenize(const nib_tokenizer *tokenizer, const char *text, size_t size,
                                    uint32_t flags, int32_t **ids, size_t *count, nib_err *err);
NIB_API void nib_tokens_free(nib_engine *engine, int32_t *ids);
NIB_CHECKED nib_status nib_detokenize(const nib_tokenizer *tokenizer, const int32_t *ids,
                                      size_t count, const nib_sink *sink, nib_err *err);
typedef struct nib_chat_options {
    size_t size;
    const char *messages;
    size_t messages_size;
    const char *tools;
    size_t tools_size;
    const char *variables;
    size_t variables_size;
    const char *template_text;
    bool no_generation_prompt;
    int64_t now;
    uint64_t reserved[4];
} nib_chat_options;
NIB_CHECKED nib_status nib_chat_open(nib_model *model, nib_err *err);
NIB_API const char *nib_chat_note(const nib_model *model);
NIB_CHECKED nib_status nib_chat_encode(nib_model *model, const nib_chat_options *options,
                                       int32_t **ids, size_t *count, nib_err *err);
NIB_CHECKED nib_status nib_chat_write(nib_model *model, const nib_chat_options *options,
                                      const nib_sink *sink, nib_err *err);
typedef struct nib_plan nib_plan;
typedef struct nib_request {
    size_t size;
    const char *recipe;
    nib_strings skip, only;
    const char *device;
    const char *dtype;
    const char *cache;
    nib_strings allow;
    nib_strings kernel;
    nib_strings place;
    nib_strings without;
    bool strict;
    const char *engine;
    const char *layer;
    const char *bias;
    int64_t context;
    int64_t sequences;
    uint64_t memory;
    int64_t lookup;
    int ranks;
    bool exports;
    const struct nib_generate_options *generation;
    nib_model *draft;
    const char *draft_recipe;
    uint64_t reserved[14];
} nib_request;
NIB_CHECKED nib_status nib_plan_open(nib_plan **out, nib_model *model, const nib_request *request,
                                     nib_err *err);
NIB_API void nib_plan_close(nib_plan *plan);
NIB_API const nib_plan *nib_plan_draft(const nib_plan *plan);
NIB_CHECKED nib_status nib_plan_status(const nib_plan *plan, nib_err *err);
NIB_CHECKED nib_status nib_plan_write(const nib_plan *plan, nib_form form, const nib_sink *sink,
                                      nib_err *err);
NIB_CHECKED nib_status nib_plan_ledger_write(const nib_plan *plan, nib_form form,
                                             const nib_sink *sink, nib_err *err);
NIB_CHECKED nib_status nib_plan_summary(const nib_plan *plan, const nib_sink *sink, nib_err *err);
typedef enum nib_rung {
    NIB_RUNG_NONE = 0,
    NIB_RUNG_KERNEL = 1,
    NIB_RUNG_DEVICE = 2,
    NIB_RUNG_DEQUANT = 3,
    NIB_RUNG_UNQUANTIZED = 4
} nib_rung;
typedef enum nib_verdict {
    NIB_VERDICT_RUNS = 0,
    NIB_VERDICT_COULD = 1,
    NIB_VERDICT_NO = 2
} nib_verdict;
typedef enum nib_setting_relation {
    NIB_SETTING_EQUIVALENT = 0,
    NIB_SETTING_NARROWER = 1,
    NIB_SETTING_OTHER = 2,
    NIB_SETTING_NONE = 3
} nib_setting_relation;
typedef enum nib_asker {
    NIB_BY_OPTION = 0,
    NIB_BY_RECIPE = 1,
    NIB_BY_CHECKPOINT = 2,
    NIB_BY_CONFIG = 3,
    NIB_BY_DEFAULT = 4,
    NIB_BY_REQUEST = 5
} nib_asker;
NIB_API const char *nib_rung_name(nib_rung rung);
NIB_API const char *nib_verdict_name(nib_verdict verdict);
NIB_API const char *nib_setting_relation_name(nib_setting_relation relation);
NIB_API const char *nib_asker_name(nib_asker asker);
typedef struct nib_reason {
    const char *code, *text;
} nib_reason;
typedef struct nib_plan_facts {
    size_t size;
    const char *recipe, *device, *dtype, *cache;
    int64_t context, sequences;
    int64_t lookup;
    uint64_t weight_bytes, cache_bytes;
    double token_s, bf16_token_s, prefill_s;
    size_t layers, settings, notes;
    size_t asked, done, substituted, denied;
} nib_plan_facts;
NIB_API void nib_plan_facts_get(const nib_plan *plan, nib_plan_facts *out);
typedef struct nib_plan_layer {
    size_t size;
    const char *name, *role;
    const char *asked, *done;
    const char *rule;
    const char *allowed;
    nib_rung rung;
    bool denied;
    bool bias;
    const char *bias_form;
    int64_t n, k;
    uint64_t bytes;
    const nib_reason *reasons;
    size_t reason_count;
    size_t uses, advice, candidates;
} nib_plan_layer;
typedef struct nib_plan_use {
    size_t size;
    const char *phase;
    int64_t m_min, m_max;
    const char *kernel, *device;
    const char *quant;
    double predicted_us;
    double tuned_us;
} nib_plan_use;
typedef struct nib_plan_advice {
    size_t size;
    const char *code;
    const char *option;
    const char *text;
} nib_plan_advice;
typedef struct nib_plan_candidate {
    size_t size;
    const char *kernel, *phase;
    const char *engine;
    nib_verdict verdict;
    const nib_reason *reasons;
    size_t reason_count;
    const char *consequence;
    const char *source;
} nib_plan_candidate;
typedef struct nib_plan_setting {
    size_t size;
    const char *code, *name;
    const char *asked, *done;
    nib_asker by;
    nib_setting_relation relation;
    const char *text;
    bool allowed;
} nib_plan_setting;
NIB_CHECKED nib_status nib_plan_layer_get(const nib_plan *plan, size_t layer, nib_plan_layer *out,
                                          nib_err *err);
NIB_CHECKED nib_status nib_plan_use_get(const nib_plan *plan, size_t layer, size_t use,
                                        nib_plan_use *out, nib_err *err);
NIB_CHECKED nib_status nib_plan_advice_get(const nib_plan *plan, size_t layer, size_t advice,
                                           nib_plan_advice *out, nib_err *err);
NIB_CHECKED nib_status nib_plan_candidate_get(const nib_plan *plan, size_t layer, size_t candidate,
                                              nib_plan_candidate *out, nib_err *err);
NIB_CHECKED nib_status nib_plan_setting_get(const nib_plan *plan, size_t setting,
                                            nib_plan_setting *out, nib_err *err);
NIB_CHECKED nib_status nib_plan_note_get(const nib_plan *plan, size_t note, nib_reason *out,
                                         nib_err *err);
typedef struct nib_session nib_session;
NIB_CHECKED nib_status nib_session_open(nib_session **out, nib_model *model, const nib_plan *plan,
                                        int sequences, nib_err *err);
NIB_API const nib_plan *nib_session_plan(const nib_session *session);
NIB_API void nib_session_close(nib_session *session);
enum {
    NIB_SLOT_LOGITS = 1,
    NIB_SLOT_HIDDEN = 2
};
typedef struct nib_slot {
    int32_t sequence;
    int32_t position;
    int32_t token;
    uint32_t outputs;
} nib_slot;
NIB_CHECKED nib_status nib_session_step(nib_session *session, const nib_slot *slots, size_t count,
                                        const float **logits, nib_err *err);
NIB_API const float *nib_session_hidden(const nib_session *session);
NIB_CHECKED nib_status nib_session_truncate(nib_session *session, int32_t sequence,
                                            int32_t position, nib_err *err);
NIB_API int32_t nib_session_length(const nib_session *session, int32_t sequence);
NIB_API int64_t nib_session_vocab(const nib_session *session);
NIB_CHECKED nib_status nib_session_log_sums(double *sums, int32_t *likeliest, nib_session *session,
                                            const float *logits, size_t rows, nib_err *err);
NIB_CHECKED nib_status nib_session_save(nib_session *session, int32_t sequence,
                                        const nib_sink *sink, nib_err *err);
NIB_CHECKED nib_status nib_session_load(nib_session *session, int32_t sequence, const void *bytes,
                                        size_t size, int32_t *length, nib_err *err);
typedef struct nib_token_logprob {
    int32_t id;
    double logprob;
    const char *text;
    size_t text_size;
} nib_token_logprob;
enum { NIB_LOGPROBS_MOST = 20 };
typedef struct nib_generate_options {
    size_t size;
    const char *prompt;
    const nib_chat_options
        *chat;
    int64_t max_tokens;
    double temperature;
    int64_t top_k;
    double top_p;
    double min_p;
    double repeat_penalty;
    uint64_t seed;
    nib_strings stop;
    bool ignore_eos;
    const char *schema;
    int64_t logprobs;
    void (*on_logprobs)(void *ctx, const nib_token_logprob *token,
                        const nib_token_logprob *likeliest, size_t count);
    void *on_logprobs_ctx;
    uint64_t reserved[16];
} nib_generate_options;
typedef struct nib_sampler nib_sampler;
NIB_CHECKED nib_status nib_sampler_open(nib_sampler **out, nib_session *session,
                                        const nib_generate_options *options, nib_err *err);
NIB_API void nib_sampler_close(nib_sampler *sampler);
NIB_CHECKED nib_status nib_sampler_draw(nib_sampler *sampler, const float *logits,
                                        const int32_t *tokens, size_t count, int32_t *token,
                                        nib_err *err);
typedef enum nib_finish {
    NIB_FINISH_STOP = 0,
    NIB_FINISH_LENGTH = 1,
    NIB_FINISH_CANCELLED = 2,
    NIB_FINISH_CONTEXT = 3
} nib_finish;
typedef struct nib_generate_stats {
    size_t size;
    int64_t prompt_tokens, new_tokens;
    int64_t cached_tokens;
    double first_token_s, prefill_s, decode_s;
    double token_s, predicted_token_s;
    double decode_gb_per_s;
    int64_t steps;
    int64_t lookup, drafted, accepted;
    uint64_t weight_bytes, cache_bytes;
    uint64_t peak_bytes;
    nib_finish finish;
    double temperature, top_p, min_p, repeat_penalty;
    int64_t top_k;
    uint64_t seed;
    const char *sampler;
    char sampler_why[512];
    int64_t drafts, model_drafted, model_accepted;
    double model_s;
    double vain_s, undrafted_s;
} nib_generate_stats;
NIB_CHECKED nib_status nib_generate(nib_session *session, const nib_generate_options *options,
                                    const nib_sink *sink, nib_generate_stats *stats, nib_err *err);
typedef struct nib_generator nib_generator;
typedef struct nib_piece {
    size_t size;
    const char *text;
    size_t text_size;
    int32_t token;
    double logprob;
    const nib_token_logprob *likeliest;
    size_t likeliest_count;
    bool over;
    nib_finish finish;
} nib_piece;
NIB_CHECKED nib_status nib_generator_open(nib_generator **out, nib_session *session,
                                          const nib_generate_options *options, nib_err *err);
NIB_CHECKED nib_status nib_generator_next(nib_generator *generator, nib_piece *piece, nib_err *err);
NIB_API void nib_generator_stats_get(nib_generator *generator, nib_generate_stats *out);
NIB_API void nib_generator_close(nib_generator *generator);
typedef struct nib_chat_session nib_chat_session;
NIB_CHECKED nib_status nib_chat_session_open(nib_chat_session **out, nib_session *session,
                                             const char *template_text, nib_err *err);
NIB_API void nib_chat_session_close(nib_chat_session *chat);
NIB_CHECKED nib_status nib_chat_session_say(nib_chat_session *chat, const char *text,
                                            const nib_generate_options *options, int64_t now,
                                            const nib_sink *sink, nib_generate_stats *stats,
                                            nib_err *err);
NIB_API void nib_chat_session_reset(nib_chat_session *chat);
NIB_CHECKED nib_status nib_chat_session_system(nib_chat_session *chat, const char *text,
                                               nib_err *err);
NIB_CHECKED nib_status nib_chat_session_save(nib_chat_session *chat, const nib_sink *sink,
                                             nib_err *err);
NIB_CHECKED nib_status nib_chat_session_load(nib_chat_session *chat, const char *name,
                                             const char *text, size_t size, nib_err *err);
#ifdef __cplusplus
}
#endif
#endif
#ifndef NIBBLE_TOOLS_H
#define NIBBLE_TOOLS_H
#ifdef __cplusplus
extern "C" {
#endif
NIB_CHECKED nib_status nib_kernels_write(nib_engine *engine, nib_form form, const nib_sink *sink,
                                         nib_err *err);
NIB_CHECKED nib_status nib_devices_write(nib_engine *engine, nib_form form, const nib_sink *sink,
                                         nib_err *err);
NIB_CHECKED nib_status nib_device_write(nib_engine *engine, const char *name, nib_form form,
                                        const nib_sink *sink, nib_err *err);
NIB_CHECKED nib_status nib_devices_measure(nib_engine *engine, const char *name, nib_err *err);
NIB_CHECKED nib_status nib_recipes_write(nib_engine *engine, nib_form form, const nib_sink *sink,
                                         nib_err *err);
NIB_CHECKED nib_status nib_models_write(nib_engine *engine, nib_form form, const nib_sink *sink,
                                        nib_err *err);
NIB_CHECKED nib_status nib_formats_write(nib_engine *engine, nib_form form, const nib_sink *sink,
                                         nib_err *err);
NIB_CHECKED nib_status nib_codes_write(nib_engine *engine, const char *code, nib_form form,
                                       const nib_sink *sink, nib_err *err);
NIB_CHECKED nib_status nib_info_write(nib_model *model, nib_form form, const nib_sink *sink,
                                      nib_err *err);
NIB_CHECKED nib_status nib_verify(nib_model *model, nib_model *against, nib_form form,
                                  const nib_sink *sink, nib_err *err);
typedef struct nib_quantize_options {
    size_t size;
    const nib_request *request;
    const char *for_device;
    const char *out;
    const char *format;
    const char *calibrate;
    bool force;
    bool dry_run;
    bool pack;
    uint64_t reserved[4];
} nib_quantize_options;
NIB_CHECKED nib_status nib_quantize(nib_model *model, const nib_quantize_options *options,
                                    nib_form form, const nib_sink *sink, nib_err *err);
typedef struct nib_convert_options {
    size_t size;
    const char *out;
    const char *format;
    const char *dtype;
    bool force;
    bool dry_run;
    const char *bias;
    bool pack;
    bool strict;
    nib_strings allow;
    uint64_t reserved[4];
} nib_convert_options;
NIB_CHECKED nib_status nib_convert(nib_model *model, const nib_convert_options *options,
                                   nib_form form, const nib_sink *sink, nib_err *err);
typedef struct nib_eval_options {
    size_t size;
    const char *text_path;
    int64_t window;
    uint64_t reserved[4];
} nib_eval_options;
typedef struct nib_eval_result {
    size_t size;
    double loss;
    double perplexity;
    int64_t predicted;
    double kl;
    double top1_agreement;
    double seconds;
} nib_eval_result;
NIB_CHECKED nib_status nib_eval(nib_session *session, nib_session *against,
                                const nib_eval_options *options, nib_eval_result *result,
                                nib_err *err);
enum {
    NIB_BENCH_CONTEXTS = 16,
    NIB_BENCH_BATCH = 512,
    NIB_BENCH_ROUNDS = 1000
};
typedef struct nib_bench_speeds {
    double prefill_tokens_per_s, decode_tokens_per_s;
} nib_bench_speeds;
typedef struct nib_bench_round {
    nib_bench_speeds own, floats, peer;
    double batch_tokens_per_s;
    double read_gb_per_s[2];
} nib_bench_round;
typedef struct nib_bench_peer {
    size_t size;
    const char *program;
    const char *model;
    const char *const *environment;
    uint64_t reserved[4];
} nib_bench_peer;
typedef struct nib_bench_context {
    int64_t positions;
    double tokens_per_s, empty_tokens_per_s;
} nib_bench_context;
typedef struct nib_bench_options {
    size_t size;
    int64_t prompt_tokens;
    int64_t new_tokens;
    int repeats;
    int64_t batch;
    const int64_t *contexts;
    size_t context_count;
    bool beside;
    const char *against;
    const nib_bench_peer *peer;
    nib_bench_round *rounds;
    uint64_t reserved[4];
} nib_bench_options;
typedef struct nib_bench_result {
    size_t size;
    char machine[64], isa[16], date[16];
    int threads;
    double prefill_tokens_per_s, decode_tokens_per_s;
    double batch_tokens_per_s;
    uint64_t weight_bytes, peak_bytes;
    uint64_t cache_bytes;
    double copy_gb_per_s, bandwidth_share;
    double peak_gop_per_s, arithmetic_share;
    double predicted_prefill_tokens_per_s, predicted_decode_tokens_per_s;
    uint64_t predicted_bytes;
    uint64_t device_bytes;
    nib_bench_context contexts[NIB_BENCH_CONTEXTS];
    size_t context_count;
    nib_bench_speeds floats;
    char floats_name[64];
    char floats_why[512];
    nib_bench_speeds peer;
    char peer_name[192];
    double read_gb_per_s;
    uint64_t file_bytes, peer_file_bytes, peer_token_bytes;
} nib_bench_result;
NIB_CHECKED nib_status nib_bench(nib_session *session, const nib_bench_options *options,
                                 nib_bench_result *result, nib_err *err);
NIB_CHECKED nib_status nib_bench_operations(nib_session *session, const nib_bench_options *options,
                                            nib_form form, const nib_sink *sink, nib_err *err);
NIB_CHECKED nib_status nib_bench_kernels(nib_engine *engine, nib_form form, const nib_sink *sink,
                                         nib_err *err);
NIB_CHECKED nib_status nib_bench_predict(nib_engine *engine, const char *device,
                                         int64_t prompt_tokens, nib_form form, const nib_sink *sink,
                                         nib_err *err);
NIB_CHECKED nib_status nib_bench_layers(const nib_plan *plan, int64_t prompt_tokens, nib_form form,
                                        const nib_sink *sink, nib_err *err);
NIB_CHECKED nib_status nib_tune(nib_model *model, const nib_request *request, nib_form form,
                                const nib_sink *sink, nib_err *err);
NIB_CHECKED nib_status nib_tune_show(nib_engine *engine, nib_form form, const nib_sink *sink,
                                     nib_err *err);
NIB_CHECKED nib_status nib_tune_clear(nib_engine *engine, bool *found, nib_err *err);
typedef struct nib_advise_options {
    size_t size;
    const nib_request *request;
    nib_strings recipes;
    const char *text_path;
    int64_t window;
    uint64_t memory;
    double loss_budget;
    bool by_prefill;
    bool dry_run;
    const char *svg;
    const char *name;
    uint64_t reserved[4];
} nib_advise_options;
NIB_CHECKED nib_status nib_advise(nib_model *model, const nib_advise_options *options,
                                  nib_form form, const nib_sink *sink, nib_err *err);
typedef struct nib_service nib_service;
typedef struct nib_call nib_call;
typedef struct nib_service_options {
    size_t size;
    const char *name;
    const char *chat_template;
    int64_t queue;
    double limit_s;
    uint64_t seed;
    uint64_t reserved[4];
} nib_service_options;
NIB_CHECKED nib_status nib_service_open(nib_service **out, nib_session *session,
                                        const nib_service_options *options, nib_err *err);
NIB_API void nib_service_close(nib_service *service);
NIB_API void nib_service_run(nib_service *service);
NIB_CHECKED nib_status nib_service_status(nib_service *service, nib_err *err);
NIB_API void nib_service_stop(nib_service *service);
typedef enum nib_route { NIB_ROUTE_CHAT = 0, NIB_ROUTE_COMPLETIONS = 1 } nib_route;
typedef struct nib_call_options {
    size_t size;
    nib_route route;
    const char *body;
    size_t body_size;
    uint64_t client;
    uint64_t tenant;
    int64_t now;
    void (*ready)(void *ctx);
    void *ctx;
    uint64_t reserved[4];
} nib_call_options;
NIB_CHECKED nib_status nib_call_open(nib_call **out, nib_service *service,
                                     const nib_call_options *options, nib_err *err);
NIB_API void nib_call_close(nib_call *call);
typedef struct nib_call_state {
    size_t size;
    int http;
    bool stream;
    int retry_s;
    size_t left;
    bool over;
} nib_call_state;
NIB_API void nib_call_look(nib_call *call, nib_call_state *out);
NIB_API size_t nib_call_read(nib_call *call, char *out, size_t size);
typedef struct nib_call_stats {
    size_t size;
    const char *id, *finish;
    int64_t prompt_tokens, cached_tokens;
    int64_t new_tokens;
    int64_t seed;
    int64_t settings;
    double queued_s, first_token_s, total_s;
} nib_call_stats;
NIB_API void nib_call_stats_get(nib_call *call, nib_call_stats *out);
typedef enum nib_report {
    NIB_REPORT_MODELS = 0,
    NIB_REPORT_MODEL = 1,
    NIB_REPORT_HEALTH = 2,
    NIB_REPORT_METRICS = 3,
    NIB_REPORT_PLAN = 4
} nib_report;
NIB_CHECKED nib_status nib_service_write(nib_service *service, nib_report report,
                                         const nib_sink *sink, nib_err *err);
NIB_CHECKED nib_status nib_error_write(int http, const char *message, const char *param,
                                       const char *code, const nib_sink *sink, nib_err *err);
NIB_API const char *nib_service_name(const nib_service *service);
typedef struct nib_ranks nib_ranks;
typedef struct nib_ranks_options {
    size_t size;
    int asked;
    double timeout_s;
    const nib_allocator *allocator;
    uint64_t reserved[4];
} nib_ranks_options;
NIB_CHECKED nib_status nib_ranks_open(nib_ranks **out, const nib_ranks_options *options,
                                      nib_err *err);
NIB_API void nib_ranks_close(nib_ranks *ranks);
NIB_API int nib_ranks_rank(const nib_ranks *ranks);
NIB_API int nib_ranks_count(const nib_ranks *ranks);
NIB_API void nib_ranks_slice(const nib_ranks *ranks, int *slice, int *slices);
NIB_CHECKED nib_status nib_ranks_agree(nib_ranks *ranks, nib_status mine, nib_err *err);
NIB_API bool nib_ranks_broken(const nib_ranks *ranks);
NIB_API void nib_ranks_abort(nib_ranks *ranks, int exit_status);
typedef struct nib_train_options {
    size_t size;
    bool dry_run;
    nib_ranks *ranks;
    const char *out;
    nib_plan **ran;
    uint64_t reserved[4];
} nib_train_options;
NIB_CHECKED nib_status nib_train_keys_write(nib_engine *engine, nib_form form, const nib_sink *sink,
                                            nib_err *err);
NIB_CHECKED nib_status nib_train(nib_model *model, const nib_plan *plan,
                                 const nib_train_options *options, const nib_sink *sink,
                                 nib_err *err);
NIB_CHECKED nib_status nib_bench_train(nib_model *model, const nib_plan *plan, int steps,
                                       nib_form form, const nib_sink *sink, nib_err *err);
typedef struct nib_plot_options {
    size_t size;
    nib_strings runs;
    const char *value;
    int64_t smooth;
    const char *out;
    uint64_t reserved[4];
} nib_plot_options;
NIB_CHECKED nib_status nib_plot(nib_engine *engine, const nib_plot_options *options,
                                const nib_sink *sink, nib_err *err);
#ifdef __cplusplus
}
#endif
#endif

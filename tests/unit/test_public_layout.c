/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout of every public struct and the value of every public enumerator, as programs were
 * compiled with them. A difference breaks those programs, with two exceptions: a new member of
 * options takes whole 8-byte words from the start of `reserved`, and a new member of results is
 * appended. Then the row of `reserved`, or the size, changes and the new member gets a row.
 * Anything else needs another ABI (Makefile).
 */
#include "text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "skipping.h"

typedef struct row {
    const char *type, *member; /* member NULL: the struct */
    size_t offset, size;
    size_t pinned_offset, pinned_size;
} row;

#define STRUCT(type, bytes)                                                                        \
    {                                                                                              \
#type, NULL, 0, sizeof(type), 0, bytes                                                     \
    }
#define MEMBER(type, member, at, bytes)                                                            \
    {                                                                                              \
#type, #member, offsetof(type, member), sizeof(((type *)0)->member), at, bytes             \
    }

/* With pointers, size_t and long of 64 bits. clang-format would put one member on several lines. */
/* clang-format off */
static const row rows[] = {
    STRUCT(nib_err, 1028),
    MEMBER(nib_err, status, 0, 4),
    MEMBER(nib_err, text, 4, 1024),
    STRUCT(nib_sink, 16),
    MEMBER(nib_sink, write, 0, 8),
    MEMBER(nib_sink, ctx, 8, 8),
    STRUCT(nib_allocator, 16),
    MEMBER(nib_allocator, resize, 0, 8),
    MEMBER(nib_allocator, ctx, 8, 8),
    STRUCT(nib_callbacks, 24),
    MEMBER(nib_callbacks, progress, 0, 8),
    MEMBER(nib_callbacks, log, 8, 8),
    MEMBER(nib_callbacks, ctx, 16, 8),
    STRUCT(nib_strings, 16),
    MEMBER(nib_strings, items, 0, 8),
    MEMBER(nib_strings, count, 8, 8),
    STRUCT(nib_engine_options, 112),
    MEMBER(nib_engine_options, size, 0, 8),
    MEMBER(nib_engine_options, threads, 8, 4),
    MEMBER(nib_engine_options, isa, 16, 8),
    MEMBER(nib_engine_options, allocator, 24, 8),
    MEMBER(nib_engine_options, callbacks, 32, 24),
    MEMBER(nib_engine_options, cache_path, 56, 8),
    MEMBER(nib_engine_options, slice, 64, 4),
    MEMBER(nib_engine_options, slices, 68, 4),
    MEMBER(nib_engine_options, sandbox, 72, 4),
    MEMBER(nib_engine_options, reserved, 80, 32),
    STRUCT(nib_model_options, 80),
    MEMBER(nib_model_options, size, 0, 8),
    MEMBER(nib_model_options, tokenizer, 8, 8),
    MEMBER(nib_model_options, config_only, 16, 1),
    MEMBER(nib_model_options, inspect, 17, 1),
    MEMBER(nib_model_options, convert, 18, 1),
    MEMBER(nib_model_options, overrides, 24, 16),
    MEMBER(nib_model_options, cache_dir, 40, 8),
    MEMBER(nib_model_options, draft_head, 48, 8),
    MEMBER(nib_model_options, reserved, 56, 24),
    STRUCT(nib_model_facts, 96),
    MEMBER(nib_model_facts, size, 0, 8),
    MEMBER(nib_model_facts, architecture, 8, 8),
    MEMBER(nib_model_facts, context, 16, 8),
    MEMBER(nib_model_facts, vocab, 24, 8),
    MEMBER(nib_model_facts, width, 32, 8),
    MEMBER(nib_model_facts, layers, 40, 8),
    MEMBER(nib_model_facts, heads, 48, 8),
    MEMBER(nib_model_facts, kv_heads, 56, 8),
    MEMBER(nib_model_facts, head_dim, 64, 8),
    MEMBER(nib_model_facts, ends, 72, 8),
    MEMBER(nib_model_facts, end_count, 80, 8),
    MEMBER(nib_model_facts, chat_template, 88, 8),
    STRUCT(nib_tokenizer_facts, 32),
    MEMBER(nib_tokenizer_facts, size, 0, 8),
    MEMBER(nib_tokenizer_facts, vocab, 8, 8),
    MEMBER(nib_tokenizer_facts, bos, 16, 4),
    MEMBER(nib_tokenizer_facts, eos, 20, 4),
    MEMBER(nib_tokenizer_facts, adds_bos, 24, 1),
    STRUCT(nib_chat_options, 112),
    MEMBER(nib_chat_options, size, 0, 8),
    MEMBER(nib_chat_options, messages, 8, 8),
    MEMBER(nib_chat_options, messages_size, 16, 8),
    MEMBER(nib_chat_options, tools, 24, 8),
    MEMBER(nib_chat_options, tools_size, 32, 8),
    MEMBER(nib_chat_options, variables, 40, 8),
    MEMBER(nib_chat_options, variables_size, 48, 8),
    MEMBER(nib_chat_options, template_text, 56, 8),
    MEMBER(nib_chat_options, no_generation_prompt, 64, 1),
    MEMBER(nib_chat_options, now, 72, 8),
    MEMBER(nib_chat_options, reserved, 80, 32),
    STRUCT(nib_request, 344),
    MEMBER(nib_request, size, 0, 8),
    MEMBER(nib_request, recipe, 8, 8),
    MEMBER(nib_request, skip, 16, 16),
    MEMBER(nib_request, only, 32, 16),
    MEMBER(nib_request, device, 48, 8),
    MEMBER(nib_request, dtype, 56, 8),
    MEMBER(nib_request, cache, 64, 8),
    MEMBER(nib_request, allow, 72, 16),
    MEMBER(nib_request, kernel, 88, 16),
    MEMBER(nib_request, place, 104, 16),
    MEMBER(nib_request, without, 120, 16),
    MEMBER(nib_request, strict, 136, 1),
    MEMBER(nib_request, engine, 144, 8),
    MEMBER(nib_request, layer, 152, 8),
    MEMBER(nib_request, bias, 160, 8),
    MEMBER(nib_request, context, 168, 8),
    MEMBER(nib_request, sequences, 176, 8),
    MEMBER(nib_request, memory, 184, 8),
    MEMBER(nib_request, lookup, 192, 8),
    MEMBER(nib_request, ranks, 200, 4),
    MEMBER(nib_request, exports, 204, 1),
    MEMBER(nib_request, generation, 208, 8),
    MEMBER(nib_request, draft, 216, 8),
    MEMBER(nib_request, draft_recipe, 224, 8),
    MEMBER(nib_request, snapshots, 232, 8),
    MEMBER(nib_request, reserved, 240, 104),
    STRUCT(nib_reason, 16),
    MEMBER(nib_reason, code, 0, 8),
    MEMBER(nib_reason, text, 8, 8),
    STRUCT(nib_plan_facts, 160),
    MEMBER(nib_plan_facts, size, 0, 8),
    MEMBER(nib_plan_facts, recipe, 8, 8),
    MEMBER(nib_plan_facts, device, 16, 8),
    MEMBER(nib_plan_facts, dtype, 24, 8),
    MEMBER(nib_plan_facts, cache, 32, 8),
    MEMBER(nib_plan_facts, context, 40, 8),
    MEMBER(nib_plan_facts, sequences, 48, 8),
    MEMBER(nib_plan_facts, lookup, 56, 8),
    MEMBER(nib_plan_facts, weight_bytes, 64, 8),
    MEMBER(nib_plan_facts, cache_bytes, 72, 8),
    MEMBER(nib_plan_facts, token_s, 80, 8),
    MEMBER(nib_plan_facts, bf16_token_s, 88, 8),
    MEMBER(nib_plan_facts, prefill_s, 96, 8),
    MEMBER(nib_plan_facts, layers, 104, 8),
    MEMBER(nib_plan_facts, settings, 112, 8),
    MEMBER(nib_plan_facts, notes, 120, 8),
    MEMBER(nib_plan_facts, asked, 128, 8),
    MEMBER(nib_plan_facts, done, 136, 8),
    MEMBER(nib_plan_facts, substituted, 144, 8),
    MEMBER(nib_plan_facts, denied, 152, 8),
    STRUCT(nib_plan_layer, 136),
    MEMBER(nib_plan_layer, size, 0, 8),
    MEMBER(nib_plan_layer, name, 8, 8),
    MEMBER(nib_plan_layer, role, 16, 8),
    MEMBER(nib_plan_layer, asked, 24, 8),
    MEMBER(nib_plan_layer, done, 32, 8),
    MEMBER(nib_plan_layer, rule, 40, 8),
    MEMBER(nib_plan_layer, allowed, 48, 8),
    MEMBER(nib_plan_layer, rung, 56, 4),
    MEMBER(nib_plan_layer, denied, 60, 1),
    MEMBER(nib_plan_layer, bias, 61, 1),
    MEMBER(nib_plan_layer, bias_form, 64, 8),
    MEMBER(nib_plan_layer, n, 72, 8),
    MEMBER(nib_plan_layer, k, 80, 8),
    MEMBER(nib_plan_layer, bytes, 88, 8),
    MEMBER(nib_plan_layer, reasons, 96, 8),
    MEMBER(nib_plan_layer, reason_count, 104, 8),
    MEMBER(nib_plan_layer, uses, 112, 8),
    MEMBER(nib_plan_layer, advice, 120, 8),
    MEMBER(nib_plan_layer, candidates, 128, 8),
    STRUCT(nib_plan_use, 72),
    MEMBER(nib_plan_use, size, 0, 8),
    MEMBER(nib_plan_use, phase, 8, 8),
    MEMBER(nib_plan_use, m_min, 16, 8),
    MEMBER(nib_plan_use, m_max, 24, 8),
    MEMBER(nib_plan_use, kernel, 32, 8),
    MEMBER(nib_plan_use, device, 40, 8),
    MEMBER(nib_plan_use, quant, 48, 8),
    MEMBER(nib_plan_use, predicted_us, 56, 8),
    MEMBER(nib_plan_use, tuned_us, 64, 8),
    STRUCT(nib_plan_advice, 32),
    MEMBER(nib_plan_advice, size, 0, 8),
    MEMBER(nib_plan_advice, code, 8, 8),
    MEMBER(nib_plan_advice, option, 16, 8),
    MEMBER(nib_plan_advice, text, 24, 8),
    STRUCT(nib_plan_candidate, 72),
    MEMBER(nib_plan_candidate, size, 0, 8),
    MEMBER(nib_plan_candidate, kernel, 8, 8),
    MEMBER(nib_plan_candidate, phase, 16, 8),
    MEMBER(nib_plan_candidate, engine, 24, 8),
    MEMBER(nib_plan_candidate, verdict, 32, 4),
    MEMBER(nib_plan_candidate, reasons, 40, 8),
    MEMBER(nib_plan_candidate, reason_count, 48, 8),
    MEMBER(nib_plan_candidate, consequence, 56, 8),
    MEMBER(nib_plan_candidate, source, 64, 8),
    STRUCT(nib_plan_setting, 64),
    MEMBER(nib_plan_setting, size, 0, 8),
    MEMBER(nib_plan_setting, code, 8, 8),
    MEMBER(nib_plan_setting, name, 16, 8),
    MEMBER(nib_plan_setting, asked, 24, 8),
    MEMBER(nib_plan_setting, done, 32, 8),
    MEMBER(nib_plan_setting, by, 40, 4),
    MEMBER(nib_plan_setting, relation, 44, 4),
    MEMBER(nib_plan_setting, text, 48, 8),
    MEMBER(nib_plan_setting, allowed, 56, 1),
    STRUCT(nib_slot, 16),
    MEMBER(nib_slot, sequence, 0, 4),
    MEMBER(nib_slot, position, 4, 4),
    MEMBER(nib_slot, token, 8, 4),
    MEMBER(nib_slot, outputs, 12, 4),
    STRUCT(nib_token_logprob, 32),
    MEMBER(nib_token_logprob, id, 0, 4),
    MEMBER(nib_token_logprob, logprob, 8, 8),
    MEMBER(nib_token_logprob, text, 16, 8),
    MEMBER(nib_token_logprob, text_size, 24, 8),
    STRUCT(nib_generate_options, 264),
    MEMBER(nib_generate_options, size, 0, 8),
    MEMBER(nib_generate_options, prompt, 8, 8),
    MEMBER(nib_generate_options, chat, 16, 8),
    MEMBER(nib_generate_options, max_tokens, 24, 8),
    MEMBER(nib_generate_options, temperature, 32, 8),
    MEMBER(nib_generate_options, top_k, 40, 8),
    MEMBER(nib_generate_options, top_p, 48, 8),
    MEMBER(nib_generate_options, min_p, 56, 8),
    MEMBER(nib_generate_options, repeat_penalty, 64, 8),
    MEMBER(nib_generate_options, seed, 72, 8),
    MEMBER(nib_generate_options, stop, 80, 16),
    MEMBER(nib_generate_options, ignore_eos, 96, 1),
    MEMBER(nib_generate_options, schema, 104, 8),
    MEMBER(nib_generate_options, logprobs, 112, 8),
    MEMBER(nib_generate_options, on_logprobs, 120, 8),
    MEMBER(nib_generate_options, on_logprobs_ctx, 128, 8),
    MEMBER(nib_generate_options, reserved, 136, 128),
    STRUCT(nib_generate_stats, 776),
    MEMBER(nib_generate_stats, size, 0, 8),
    MEMBER(nib_generate_stats, prompt_tokens, 8, 8),
    MEMBER(nib_generate_stats, new_tokens, 16, 8),
    MEMBER(nib_generate_stats, cached_tokens, 24, 8),
    MEMBER(nib_generate_stats, first_token_s, 32, 8),
    MEMBER(nib_generate_stats, prefill_s, 40, 8),
    MEMBER(nib_generate_stats, decode_s, 48, 8),
    MEMBER(nib_generate_stats, token_s, 56, 8),
    MEMBER(nib_generate_stats, predicted_token_s, 64, 8),
    MEMBER(nib_generate_stats, decode_gb_per_s, 72, 8),
    MEMBER(nib_generate_stats, steps, 80, 8),
    MEMBER(nib_generate_stats, lookup, 88, 8),
    MEMBER(nib_generate_stats, drafted, 96, 8),
    MEMBER(nib_generate_stats, accepted, 104, 8),
    MEMBER(nib_generate_stats, weight_bytes, 112, 8),
    MEMBER(nib_generate_stats, cache_bytes, 120, 8),
    MEMBER(nib_generate_stats, peak_bytes, 128, 8),
    MEMBER(nib_generate_stats, finish, 136, 4),
    MEMBER(nib_generate_stats, temperature, 144, 8),
    MEMBER(nib_generate_stats, top_p, 152, 8),
    MEMBER(nib_generate_stats, min_p, 160, 8),
    MEMBER(nib_generate_stats, repeat_penalty, 168, 8),
    MEMBER(nib_generate_stats, top_k, 176, 8),
    MEMBER(nib_generate_stats, seed, 184, 8),
    MEMBER(nib_generate_stats, sampler, 192, 8),
    MEMBER(nib_generate_stats, sampler_why, 200, 512),
    MEMBER(nib_generate_stats, drafts, 712, 8),
    MEMBER(nib_generate_stats, model_drafted, 720, 8),
    MEMBER(nib_generate_stats, model_accepted, 728, 8),
    MEMBER(nib_generate_stats, model_s, 736, 8),
    MEMBER(nib_generate_stats, vain_s, 744, 8),
    MEMBER(nib_generate_stats, undrafted_s, 752, 8),
    MEMBER(nib_generate_stats, recomputed_tokens, 760, 8),
    MEMBER(nib_generate_stats, recomputed_why, 768, 8),
    STRUCT(nib_piece, 64),
    MEMBER(nib_piece, size, 0, 8),
    MEMBER(nib_piece, text, 8, 8),
    MEMBER(nib_piece, text_size, 16, 8),
    MEMBER(nib_piece, token, 24, 4),
    MEMBER(nib_piece, logprob, 32, 8),
    MEMBER(nib_piece, likeliest, 40, 8),
    MEMBER(nib_piece, likeliest_count, 48, 8),
    MEMBER(nib_piece, over, 56, 1),
    MEMBER(nib_piece, finish, 60, 4),
    STRUCT(nib_quantize_options, 88),
    MEMBER(nib_quantize_options, size, 0, 8),
    MEMBER(nib_quantize_options, request, 8, 8),
    MEMBER(nib_quantize_options, for_device, 16, 8),
    MEMBER(nib_quantize_options, out, 24, 8),
    MEMBER(nib_quantize_options, format, 32, 8),
    MEMBER(nib_quantize_options, calibrate, 40, 8),
    MEMBER(nib_quantize_options, force, 48, 1),
    MEMBER(nib_quantize_options, dry_run, 49, 1),
    MEMBER(nib_quantize_options, pack, 50, 1),
    MEMBER(nib_quantize_options, method, 56, 8),
    MEMBER(nib_quantize_options, imatrix, 64, 8),
    MEMBER(nib_quantize_options, budget, 72, 8),
    MEMBER(nib_quantize_options, reserved, 80, 8),
    STRUCT(nib_budget, 72),
    MEMBER(nib_budget, size, 0, 8),
    MEMBER(nib_budget, bits, 8, 8),
    MEMBER(nib_budget, memory, 16, 8),
    MEMBER(nib_budget, speed, 24, 8),
    MEMBER(nib_budget, rules, 32, 8),
    MEMBER(nib_budget, reserved, 40, 32),
    STRUCT(nib_verify_options, 64),
    MEMBER(nib_verify_options, size, 0, 8),
    MEMBER(nib_verify_options, against, 8, 8),
    MEMBER(nib_verify_options, signers, 16, 8),
    MEMBER(nib_verify_options, signer, 24, 8),
    MEMBER(nib_verify_options, reserved, 32, 32),
    STRUCT(nib_signature_options, 56),
    MEMBER(nib_signature_options, size, 0, 8),
    MEMBER(nib_signature_options, key, 8, 8),
    MEMBER(nib_signature_options, force, 16, 1),
    MEMBER(nib_signature_options, dry_run, 17, 1),
    MEMBER(nib_signature_options, reserved, 24, 32),
    STRUCT(nib_verify_from_options, 72),
    MEMBER(nib_verify_from_options, size, 0, 8),
    MEMBER(nib_verify_from_options, source, 8, 8),
    MEMBER(nib_verify_from_options, calibrate, 16, 8),
    MEMBER(nib_verify_from_options, imatrix, 24, 8),
    MEMBER(nib_verify_from_options, tokenizer, 32, 8),
    MEMBER(nib_verify_from_options, signers, 40, 8),
    MEMBER(nib_verify_from_options, signer, 48, 8),
    MEMBER(nib_verify_from_options, reserved, 56, 16),
    STRUCT(nib_convert_options, 104),
    MEMBER(nib_convert_options, size, 0, 8),
    MEMBER(nib_convert_options, out, 8, 8),
    MEMBER(nib_convert_options, format, 16, 8),
    MEMBER(nib_convert_options, dtype, 24, 8),
    MEMBER(nib_convert_options, force, 32, 1),
    MEMBER(nib_convert_options, dry_run, 33, 1),
    MEMBER(nib_convert_options, bias, 40, 8),
    MEMBER(nib_convert_options, pack, 48, 1),
    MEMBER(nib_convert_options, strict, 49, 1),
    MEMBER(nib_convert_options, allow, 56, 16),
    MEMBER(nib_convert_options, reserved, 72, 32),
    STRUCT(nib_imatrix_options, 64),
    MEMBER(nib_imatrix_options, size, 0, 8),
    MEMBER(nib_imatrix_options, out, 8, 8),
    MEMBER(nib_imatrix_options, calibrate, 16, 8),
    MEMBER(nib_imatrix_options, force, 24, 1),
    MEMBER(nib_imatrix_options, reserved, 32, 32),
    STRUCT(nib_eval_options, 56),
    MEMBER(nib_eval_options, size, 0, 8),
    MEMBER(nib_eval_options, text_path, 8, 8),
    MEMBER(nib_eval_options, window, 16, 8),
    MEMBER(nib_eval_options, against_logits, 24, 8),
    MEMBER(nib_eval_options, save_logits, 32, 8),
    MEMBER(nib_eval_options, logits_format, 40, 8),
    MEMBER(nib_eval_options, reserved, 48, 8),
    STRUCT(nib_eval_result, 392),
    MEMBER(nib_eval_result, size, 0, 8),
    MEMBER(nib_eval_result, loss, 8, 8),
    MEMBER(nib_eval_result, perplexity, 16, 8),
    MEMBER(nib_eval_result, predicted, 24, 8),
    MEMBER(nib_eval_result, kl, 32, 8),
    MEMBER(nib_eval_result, top1_agreement, 40, 8),
    MEMBER(nib_eval_result, seconds, 48, 8),
    MEMBER(nib_eval_result, first_scored, 56, 8),
    MEMBER(nib_eval_result, documents, 64, 1),
    MEMBER(nib_eval_result, kl_median, 72, 8),
    MEMBER(nib_eval_result, kl_p99, 80, 8),
    MEMBER(nib_eval_result, kl_p999, 88, 8),
    MEMBER(nib_eval_result, kl_largest, 96, 8),
    MEMBER(nib_eval_result, kl_largest_unit, 104, 8),
    MEMBER(nib_eval_result, kl_largest_position, 112, 8),
    MEMBER(nib_eval_result, kl_largest_token, 120, 8),
    MEMBER(nib_eval_result, against_loss, 128, 8),
    MEMBER(nib_eval_result, loss_difference, 136, 8),
    MEMBER(nib_eval_result, perplexity_ratio, 144, 8),
    MEMBER(nib_eval_result, position_begin, 152, 48),
    MEMBER(nib_eval_result, position_predicted, 200, 48),
    MEMBER(nib_eval_result, position_kl, 248, 48),
    MEMBER(nib_eval_result, units, 296, 8),
    MEMBER(nib_eval_result, resamples, 304, 8),
    MEMBER(nib_eval_result, kl_interval, 312, 16),
    MEMBER(nib_eval_result, loss_difference_interval, 328, 16),
    MEMBER(nib_eval_result, perplexity_ratio_interval, 344, 16),
    MEMBER(nib_eval_result, top1_agreement_interval, 360, 16),
    MEMBER(nib_eval_result, draft_guesses, 376, 8),
    MEMBER(nib_eval_result, draft_right, 384, 8),
    STRUCT(nib_bench_speeds, 16),
    MEMBER(nib_bench_speeds, prefill_tokens_per_s, 0, 8),
    MEMBER(nib_bench_speeds, decode_tokens_per_s, 8, 8),
    STRUCT(nib_bench_round, 72),
    MEMBER(nib_bench_round, own, 0, 16),
    MEMBER(nib_bench_round, floats, 16, 16),
    MEMBER(nib_bench_round, peer, 32, 16),
    MEMBER(nib_bench_round, batch_tokens_per_s, 48, 8),
    MEMBER(nib_bench_round, read_gb_per_s, 56, 16),
    STRUCT(nib_bench_peer, 64),
    MEMBER(nib_bench_peer, size, 0, 8),
    MEMBER(nib_bench_peer, program, 8, 8),
    MEMBER(nib_bench_peer, model, 16, 8),
    MEMBER(nib_bench_peer, environment, 24, 8),
    MEMBER(nib_bench_peer, reserved, 32, 32),
    STRUCT(nib_bench_context, 24),
    MEMBER(nib_bench_context, positions, 0, 8),
    MEMBER(nib_bench_context, tokens_per_s, 8, 8),
    MEMBER(nib_bench_context, empty_tokens_per_s, 16, 8),
    STRUCT(nib_bench_options, 120),
    MEMBER(nib_bench_options, size, 0, 8),
    MEMBER(nib_bench_options, prompt_tokens, 8, 8),
    MEMBER(nib_bench_options, new_tokens, 16, 8),
    MEMBER(nib_bench_options, repeats, 24, 4),
    MEMBER(nib_bench_options, batch, 32, 8),
    MEMBER(nib_bench_options, contexts, 40, 8),
    MEMBER(nib_bench_options, context_count, 48, 8),
    MEMBER(nib_bench_options, beside, 56, 1),
    MEMBER(nib_bench_options, against, 64, 8),
    MEMBER(nib_bench_options, peer, 72, 8),
    MEMBER(nib_bench_options, rounds, 80, 8),
    MEMBER(nib_bench_options, reserved, 88, 32),
    STRUCT(nib_bench_result, 1448),
    MEMBER(nib_bench_result, size, 0, 8),
    MEMBER(nib_bench_result, machine, 8, 64),
    MEMBER(nib_bench_result, isa, 72, 16),
    MEMBER(nib_bench_result, date, 88, 16),
    MEMBER(nib_bench_result, threads, 104, 4),
    MEMBER(nib_bench_result, prefill_tokens_per_s, 112, 8),
    MEMBER(nib_bench_result, decode_tokens_per_s, 120, 8),
    MEMBER(nib_bench_result, batch_tokens_per_s, 128, 8),
    MEMBER(nib_bench_result, weight_bytes, 136, 8),
    MEMBER(nib_bench_result, peak_bytes, 144, 8),
    MEMBER(nib_bench_result, cache_bytes, 152, 8),
    MEMBER(nib_bench_result, copy_gb_per_s, 160, 8),
    MEMBER(nib_bench_result, bandwidth_share, 168, 8),
    MEMBER(nib_bench_result, peak_gop_per_s, 176, 8),
    MEMBER(nib_bench_result, arithmetic_share, 184, 8),
    MEMBER(nib_bench_result, predicted_prefill_tokens_per_s, 192, 8),
    MEMBER(nib_bench_result, predicted_decode_tokens_per_s, 200, 8),
    MEMBER(nib_bench_result, predicted_bytes, 208, 8),
    MEMBER(nib_bench_result, device_bytes, 216, 8),
    MEMBER(nib_bench_result, contexts, 224, 384),
    MEMBER(nib_bench_result, context_count, 608, 8),
    MEMBER(nib_bench_result, floats, 616, 16),
    MEMBER(nib_bench_result, floats_name, 632, 64),
    MEMBER(nib_bench_result, floats_why, 696, 512),
    MEMBER(nib_bench_result, peer, 1208, 16),
    MEMBER(nib_bench_result, peer_name, 1224, 192),
    MEMBER(nib_bench_result, read_gb_per_s, 1416, 8),
    MEMBER(nib_bench_result, file_bytes, 1424, 8),
    MEMBER(nib_bench_result, peer_file_bytes, 1432, 8),
    MEMBER(nib_bench_result, peer_token_bytes, 1440, 8),
    STRUCT(nib_advise_methods, 80),
    MEMBER(nib_advise_methods, size, 0, 8),
    MEMBER(nib_advise_methods, methods, 8, 16),
    MEMBER(nib_advise_methods, calibrate, 24, 8),
    MEMBER(nib_advise_methods, imatrix, 32, 8),
    MEMBER(nib_advise_methods, scratch, 40, 8),
    MEMBER(nib_advise_methods, reserved, 48, 32),
    STRUCT(nib_advise_options, 120),
    MEMBER(nib_advise_options, size, 0, 8),
    MEMBER(nib_advise_options, request, 8, 8),
    MEMBER(nib_advise_options, recipes, 16, 16),
    MEMBER(nib_advise_options, text_path, 32, 8),
    MEMBER(nib_advise_options, window, 40, 8),
    MEMBER(nib_advise_options, memory, 48, 8),
    MEMBER(nib_advise_options, loss_budget, 56, 8),
    MEMBER(nib_advise_options, by_prefill, 64, 1),
    MEMBER(nib_advise_options, dry_run, 65, 1),
    MEMBER(nib_advise_options, svg, 72, 8),
    MEMBER(nib_advise_options, name, 80, 8),
    MEMBER(nib_advise_options, methods, 88, 8),
    MEMBER(nib_advise_options, caches, 96, 8),
    MEMBER(nib_advise_options, reserved, 104, 16),
    STRUCT(nib_service_options, 80),
    MEMBER(nib_service_options, size, 0, 8),
    MEMBER(nib_service_options, name, 8, 8),
    MEMBER(nib_service_options, chat_template, 16, 8),
    MEMBER(nib_service_options, queue, 24, 8),
    MEMBER(nib_service_options, limit_s, 32, 8),
    MEMBER(nib_service_options, seed, 40, 8),
    MEMBER(nib_service_options, state_cache, 48, 8),
    MEMBER(nib_service_options, state_cache_bytes, 56, 8),
    MEMBER(nib_service_options, reserved, 64, 16),
    STRUCT(nib_call_options, 104),
    MEMBER(nib_call_options, size, 0, 8),
    MEMBER(nib_call_options, route, 8, 4),
    MEMBER(nib_call_options, body, 16, 8),
    MEMBER(nib_call_options, body_size, 24, 8),
    MEMBER(nib_call_options, client, 32, 8),
    MEMBER(nib_call_options, tenant, 40, 8),
    MEMBER(nib_call_options, now, 48, 8),
    MEMBER(nib_call_options, ready, 56, 8),
    MEMBER(nib_call_options, ctx, 64, 8),
    MEMBER(nib_call_options, reserved, 72, 32),
    STRUCT(nib_call_state, 40),
    MEMBER(nib_call_state, size, 0, 8),
    MEMBER(nib_call_state, http, 8, 4),
    MEMBER(nib_call_state, stream, 12, 1),
    MEMBER(nib_call_state, retry_s, 16, 4),
    MEMBER(nib_call_state, left, 24, 8),
    MEMBER(nib_call_state, over, 32, 1),
    STRUCT(nib_call_stats, 104),
    MEMBER(nib_call_stats, size, 0, 8),
    MEMBER(nib_call_stats, id, 8, 8),
    MEMBER(nib_call_stats, finish, 16, 8),
    MEMBER(nib_call_stats, prompt_tokens, 24, 8),
    MEMBER(nib_call_stats, cached_tokens, 32, 8),
    MEMBER(nib_call_stats, new_tokens, 40, 8),
    MEMBER(nib_call_stats, seed, 48, 8),
    MEMBER(nib_call_stats, settings, 56, 8),
    MEMBER(nib_call_stats, queued_s, 64, 8),
    MEMBER(nib_call_stats, first_token_s, 72, 8),
    MEMBER(nib_call_stats, total_s, 80, 8),
    MEMBER(nib_call_stats, recomputed_tokens, 88, 8),
    MEMBER(nib_call_stats, recomputed_why, 96, 8),
    STRUCT(nib_ranks_options, 64),
    MEMBER(nib_ranks_options, size, 0, 8),
    MEMBER(nib_ranks_options, asked, 8, 4),
    MEMBER(nib_ranks_options, timeout_s, 16, 8),
    MEMBER(nib_ranks_options, allocator, 24, 8),
    MEMBER(nib_ranks_options, reserved, 32, 32),
    STRUCT(nib_train_options, 72),
    MEMBER(nib_train_options, size, 0, 8),
    MEMBER(nib_train_options, dry_run, 8, 1),
    MEMBER(nib_train_options, ranks, 16, 8),
    MEMBER(nib_train_options, out, 24, 8),
    MEMBER(nib_train_options, ran, 32, 8),
    MEMBER(nib_train_options, reserved, 40, 32),
    STRUCT(nib_plot_options, 80),
    MEMBER(nib_plot_options, size, 0, 8),
    MEMBER(nib_plot_options, runs, 8, 16),
    MEMBER(nib_plot_options, value, 24, 8),
    MEMBER(nib_plot_options, smooth, 32, 8),
    MEMBER(nib_plot_options, out, 40, 8),
    MEMBER(nib_plot_options, reserved, 48, 32),
};

static const struct {
    const char *name;
    int value, pinned;
} values[] = {
#define VALUE(name, pinned) {#name, (int)name, pinned}
    VALUE(NIB_OK, 0),
    VALUE(NIB_FAILED, 1),
    VALUE(NIB_USAGE, 2),
    VALUE(NIB_BAD_INPUT, 3),
    VALUE(NIB_UNSUPPORTED, 4),
    VALUE(NIB_NOT_AS_ASKED, 5),
    VALUE(NIB_NO_MEMORY, 6),
    VALUE(NIB_IO, 7),
    VALUE(NIB_EXISTS, 8),
    VALUE(NIB_CHECK_FAILED, 9),
    VALUE(NIB_CANCELLED, 10),
    VALUE(NIB_FORM_TEXT, 0),
    VALUE(NIB_FORM_JSON, 1),
    VALUE(NIB_FORM_MARKDOWN, 2),
    VALUE(NIB_SANDBOX_OFF, 0),
    VALUE(NIB_SANDBOX_AUTO, 1),
    VALUE(NIB_SANDBOX_ON, 2),
    VALUE(NIB_TOKENIZE_ADD_SPECIAL, 1),
    VALUE(NIB_TOKENIZE_PARSE_SPECIAL, 2),
    VALUE(NIB_RUNG_NONE, 0),
    VALUE(NIB_RUNG_KERNEL, 1),
    VALUE(NIB_RUNG_DEVICE, 2),
    VALUE(NIB_RUNG_DEQUANT, 3),
    VALUE(NIB_RUNG_UNQUANTIZED, 4),
    VALUE(NIB_VERDICT_RUNS, 0),
    VALUE(NIB_VERDICT_COULD, 1),
    VALUE(NIB_VERDICT_NO, 2),
    VALUE(NIB_SETTING_EQUIVALENT, 0),
    VALUE(NIB_SETTING_NARROWER, 1),
    VALUE(NIB_SETTING_OTHER, 2),
    VALUE(NIB_SETTING_NONE, 3),
    VALUE(NIB_BY_OPTION, 0),
    VALUE(NIB_BY_RECIPE, 1),
    VALUE(NIB_BY_CHECKPOINT, 2),
    VALUE(NIB_BY_CONFIG, 3),
    VALUE(NIB_BY_DEFAULT, 4),
    VALUE(NIB_BY_REQUEST, 5),
    VALUE(NIB_SLOT_LOGITS, 1),
    VALUE(NIB_SLOT_HIDDEN, 2),
    VALUE(NIB_FINISH_STOP, 0),
    VALUE(NIB_FINISH_LENGTH, 1),
    VALUE(NIB_FINISH_CANCELLED, 2),
    VALUE(NIB_FINISH_CONTEXT, 3),
    VALUE(NIB_BENCH_CONTEXTS, 16),
    VALUE(NIB_ROUTE_CHAT, 0),
    VALUE(NIB_ROUTE_COMPLETIONS, 1),
    VALUE(NIB_REPORT_MODELS, 0),
    VALUE(NIB_REPORT_MODEL, 1),
    VALUE(NIB_REPORT_HEALTH, 2),
    VALUE(NIB_REPORT_METRICS, 3),
    VALUE(NIB_REPORT_PLAN, 4),
};
/* clang-format on */

static void test_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(values); i++)
        if (values[i].value != values[i].pinned)
            fail_msg("%s is %d, was %d", values[i].name, values[i].value, values[i].pinned);
}

static void test_layout(void **state)
{
    int differences = 0;
    (void)state;
    if (sizeof(void *) != 8 || sizeof(size_t) != 8)
        skip_test(__func__, "the sizes of 64-bit systems are recorded");
    for (size_t i = 0; i < COUNT(rows); i++) {
        const row *r = &rows[i];
        if (r->offset == r->pinned_offset && r->size == r->pinned_size)
            continue;
        print_error("%s%s%s is at byte %zu with %zu bytes, was at %zu with %zu\n", r->type,
                    r->member ? "." : "", r->member ? r->member : "", r->offset, r->size,
                    r->pinned_offset, r->pinned_size);
        differences++;
    }
    assert_int_equal(differences, 0);
}

/* Bytes between members are padding, never a member without a row. */
static void test_every_member(void **state)
{
    size_t end = 0;
    const row *whole = NULL;
    (void)state;
    for (size_t i = 0; i <= COUNT(rows); i++) {
        const bool begins = i == COUNT(rows) || rows[i].member == NULL;
        const size_t next = !begins ? rows[i].offset : whole != NULL ? whole->size : 0;
        if (whole != NULL && (next < end || next - end >= sizeof(uint64_t)))
            fail_msg("%s: no row for bytes %zu to %zu", whole->type, end, next);
        whole = begins && i < COUNT(rows) ? &rows[i] : whole;
        end = begins ? 0 : rows[i].offset + rows[i].size;
    }
}

/* A struct that grows begins with its size; options end with `reserved`. */
static void test_growing(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const row *r = &rows[i];
        if (r->member == NULL)
            continue;
        const bool last = i + 1 == COUNT(rows) || rows[i + 1].member == NULL;
        if (strcmp(r->member, "reserved") == 0 && !last)
            fail_msg("%s.reserved is not the last member", r->type);
        if (strcmp(r->member, "size") == 0)
            assert_true(r->offset == 0 && r->size == sizeof(size_t));
        const size_t length = strlen(r->type), ending = strlen("_options");
        if (last && length > ending && strcmp(r->type + length - ending, "_options") == 0)
            assert_string_equal(r->member, "reserved");
    }
}

static bool has_row(const char *name, size_t size)
{
    for (size_t i = 0; i < COUNT(rows); i++)
        if (rows[i].member == NULL && strlen(rows[i].type) == size &&
            memcmp(rows[i].type, name, size) == 0)
            return true;
    return false;
}

static void test_every_struct(void **state)
{
    static const char *const headers[] = {"include/nibble.h", "include/nibble_tools.h"};
    static const char start[] = "typedef struct ";
    char line[256];
    size_t found = 0;
    (void)state;
    for (size_t i = 0; i < COUNT(headers); i++) {
        FILE *file = fopen(headers[i], "r");
        assert_non_null(file);
        while (fgets(line, sizeof line, file) != NULL) {
            const size_t named = strncmp(line, start, sizeof start - 1) == 0
                                     ? strcspn(line + sizeof start - 1, " ;")
                                     : 0;
            const char *name = line + sizeof start - 1;
            if (named == 0 || strchr(name, '{') == NULL)
                continue;
            found++;
            if (!has_row(name, named))
                fail_msg("%s: no rows for %.*s", headers[i], (int)named, name);
        }
        assert_int_equal(fclose(file), 0);
    }
    assert_true(found > 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),       cmocka_unit_test(test_layout),
        cmocka_unit_test(test_every_member), cmocka_unit_test(test_growing),
        cmocka_unit_test(test_every_struct),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

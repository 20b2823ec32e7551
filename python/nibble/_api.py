# SPDX-License-Identifier: Apache-2.0
# Printed by tools/python_api from the headers in include/; `make docs` writes it again.
"""The C interface of libnibble: constants, structs and the types of functions."""
from __future__ import annotations

from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_float, c_int,
                    c_int32, c_int64, c_size_t, c_uint, c_uint32, c_uint64, c_void_p)
from typing import Any

VERSION = "0.1.0"
VERSION_NUMBER = 100
ABI = 1

NIB_OK = 0
NIB_FAILED = 1
NIB_USAGE = 2
NIB_BAD_INPUT = 3
NIB_UNSUPPORTED = 4
NIB_NOT_AS_ASKED = 5
NIB_NO_MEMORY = 6
NIB_IO = 7
NIB_EXISTS = 8
NIB_CHECK_FAILED = 9
NIB_CANCELLED = 10
NIB_FORM_TEXT = 0
NIB_FORM_JSON = 1
NIB_FORM_MARKDOWN = 2
NIB_SANDBOX_OFF = 0
NIB_SANDBOX_AUTO = 1
NIB_SANDBOX_ON = 2
NIB_TOKENIZE_ADD_SPECIAL = 1
NIB_TOKENIZE_PARSE_SPECIAL = 2
NIB_RUNG_NONE = 0
NIB_RUNG_KERNEL = 1
NIB_RUNG_DEVICE = 2
NIB_RUNG_DEQUANT = 3
NIB_RUNG_UNQUANTIZED = 4
NIB_VERDICT_RUNS = 0
NIB_VERDICT_COULD = 1
NIB_VERDICT_NO = 2
NIB_SETTING_EQUIVALENT = 0
NIB_SETTING_NARROWER = 1
NIB_SETTING_OTHER = 2
NIB_SETTING_NONE = 3
NIB_BY_OPTION = 0
NIB_BY_RECIPE = 1
NIB_BY_CHECKPOINT = 2
NIB_BY_CONFIG = 3
NIB_BY_DEFAULT = 4
NIB_BY_REQUEST = 5
NIB_SLOT_LOGITS = 1
NIB_SLOT_HIDDEN = 2
NIB_LOGPROBS_MOST = 20
NIB_FINISH_STOP = 0
NIB_FINISH_LENGTH = 1
NIB_FINISH_CANCELLED = 2
NIB_FINISH_CONTEXT = 3
NIB_EVAL_POSITIONS = 6
NIB_EVAL_RESAMPLES = 2000
NIB_EVAL_UNITS = 10
NIB_BENCH_CONTEXTS = 16
NIB_BENCH_BATCH = 512
NIB_BENCH_ROUNDS = 1000
NIB_ROUTE_CHAT = 0
NIB_ROUTE_COMPLETIONS = 1
NIB_REPORT_MODELS = 0
NIB_REPORT_MODEL = 1
NIB_REPORT_HEALTH = 2
NIB_REPORT_METRICS = 3
NIB_REPORT_PLAN = 4


class nib_err(Structure):
    _fields_ = [("status", c_int), ("text", c_char * 1024)]


nib_sink_write = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)


class nib_sink(Structure):
    _fields_ = [("write", nib_sink_write), ("ctx", c_void_p)]


nib_allocator_resize = CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t)


class nib_allocator(Structure):
    _fields_ = [("resize", nib_allocator_resize), ("ctx", c_void_p)]


nib_callbacks_progress = CFUNCTYPE(c_bool, c_void_p, c_char_p, c_uint64, c_uint64)


nib_callbacks_log = CFUNCTYPE(None, c_void_p, c_char_p)


class nib_callbacks(Structure):
    _fields_ = [("progress", nib_callbacks_progress), ("log", nib_callbacks_log), ("ctx", c_void_p)]


class nib_strings(Structure):
    _fields_ = [("items", POINTER(c_char_p)), ("count", c_size_t)]


class nib_engine_options(Structure):
    _fields_ = [("size", c_size_t), ("threads", c_int), ("isa", c_char_p),
                ("allocator", POINTER(nib_allocator)), ("callbacks", nib_callbacks),
                ("cache_path", c_char_p), ("slice", c_int), ("slices", c_int), ("sandbox", c_int),
                ("reserved", c_uint64 * 4)]


class nib_model_options(Structure):
    _fields_ = [("size", c_size_t), ("tokenizer", c_char_p), ("config_only", c_bool),
                ("inspect", c_bool), ("convert", c_bool), ("overrides", nib_strings),
                ("cache_dir", c_char_p), ("draft_head", c_int64), ("reserved", c_uint64 * 3)]


class nib_model_facts(Structure):
    _fields_ = [("size", c_size_t), ("architecture", c_char_p), ("context", c_int64),
                ("vocab", c_int64), ("width", c_int64), ("layers", c_int64), ("heads", c_int64),
                ("kv_heads", c_int64), ("head_dim", c_int64), ("ends", POINTER(c_int32)),
                ("end_count", c_size_t), ("chat_template", c_char_p)]


class nib_tokenizer_facts(Structure):
    _fields_ = [("size", c_size_t), ("vocab", c_int64), ("bos", c_int32), ("eos", c_int32),
                ("adds_bos", c_bool)]


class nib_chat_options(Structure):
    _fields_ = [("size", c_size_t), ("messages", c_char_p), ("messages_size", c_size_t),
                ("tools", c_char_p), ("tools_size", c_size_t), ("variables", c_char_p),
                ("variables_size", c_size_t), ("template_text", c_char_p),
                ("no_generation_prompt", c_bool), ("now", c_int64), ("reserved", c_uint64 * 4)]


class nib_request(Structure):
    _fields_ = [("size", c_size_t), ("recipe", c_char_p), ("skip", nib_strings),
                ("only", nib_strings), ("device", c_char_p), ("dtype", c_char_p),
                ("cache", c_char_p), ("allow", nib_strings), ("kernel", nib_strings),
                ("place", nib_strings), ("without", nib_strings), ("strict", c_bool),
                ("engine", c_char_p), ("layer", c_char_p), ("bias", c_char_p), ("context", c_int64),
                ("sequences", c_int64), ("memory", c_uint64), ("lookup", c_int64), ("ranks", c_int),
                ("exports", c_bool), ("generation", c_void_p), ("draft", c_void_p),
                ("draft_recipe", c_char_p), ("snapshots", c_int64), ("reserved", c_uint64 * 13)]


class nib_reason(Structure):
    _fields_ = [("code", c_char_p), ("text", c_char_p)]


class nib_plan_facts(Structure):
    _fields_ = [("size", c_size_t), ("recipe", c_char_p), ("device", c_char_p), ("dtype", c_char_p),
                ("cache", c_char_p), ("context", c_int64), ("sequences", c_int64),
                ("lookup", c_int64), ("weight_bytes", c_uint64), ("cache_bytes", c_uint64),
                ("token_s", c_double), ("bf16_token_s", c_double), ("prefill_s", c_double),
                ("layers", c_size_t), ("settings", c_size_t), ("notes", c_size_t),
                ("asked", c_size_t), ("done", c_size_t), ("substituted", c_size_t),
                ("denied", c_size_t)]


class nib_plan_layer(Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("role", c_char_p), ("asked", c_char_p),
                ("done", c_char_p), ("rule", c_char_p), ("allowed", c_char_p), ("rung", c_int),
                ("denied", c_bool), ("bias", c_bool), ("bias_form", c_char_p), ("n", c_int64),
                ("k", c_int64), ("bytes", c_uint64), ("reasons", POINTER(nib_reason)),
                ("reason_count", c_size_t), ("uses", c_size_t), ("advice", c_size_t),
                ("candidates", c_size_t)]


class nib_plan_use(Structure):
    _fields_ = [("size", c_size_t), ("phase", c_char_p), ("m_min", c_int64), ("m_max", c_int64),
                ("kernel", c_char_p), ("device", c_char_p), ("quant", c_char_p),
                ("predicted_us", c_double), ("tuned_us", c_double)]


class nib_plan_advice(Structure):
    _fields_ = [("size", c_size_t), ("code", c_char_p), ("option", c_char_p), ("text", c_char_p)]


class nib_plan_candidate(Structure):
    _fields_ = [("size", c_size_t), ("kernel", c_char_p), ("phase", c_char_p), ("engine", c_char_p),
                ("verdict", c_int), ("reasons", POINTER(nib_reason)), ("reason_count", c_size_t),
                ("consequence", c_char_p), ("source", c_char_p)]


class nib_plan_setting(Structure):
    _fields_ = [("size", c_size_t), ("code", c_char_p), ("name", c_char_p), ("asked", c_char_p),
                ("done", c_char_p), ("by", c_int), ("relation", c_int), ("text", c_char_p),
                ("allowed", c_bool)]


class nib_slot(Structure):
    _fields_ = [("sequence", c_int32), ("position", c_int32), ("token", c_int32),
                ("outputs", c_uint32)]


class nib_token_logprob(Structure):
    _fields_ = [("id", c_int32), ("logprob", c_double), ("text", c_char_p), ("text_size", c_size_t)]


nib_generate_options_on_logprobs = CFUNCTYPE(None, c_void_p, POINTER(nib_token_logprob),
    POINTER(nib_token_logprob), c_size_t)


class nib_generate_options(Structure):
    _fields_ = [("size", c_size_t), ("prompt", c_char_p), ("chat", POINTER(nib_chat_options)),
                ("max_tokens", c_int64), ("temperature", c_double), ("top_k", c_int64),
                ("top_p", c_double), ("min_p", c_double), ("repeat_penalty", c_double),
                ("seed", c_uint64), ("stop", nib_strings), ("ignore_eos", c_bool),
                ("schema", c_char_p), ("logprobs", c_int64),
                ("on_logprobs", nib_generate_options_on_logprobs), ("on_logprobs_ctx", c_void_p),
                ("reserved", c_uint64 * 16)]


class nib_generate_stats(Structure):
    _fields_ = [("size", c_size_t), ("prompt_tokens", c_int64), ("new_tokens", c_int64),
                ("cached_tokens", c_int64), ("first_token_s", c_double), ("prefill_s", c_double),
                ("decode_s", c_double), ("token_s", c_double), ("predicted_token_s", c_double),
                ("decode_gb_per_s", c_double), ("steps", c_int64), ("lookup", c_int64),
                ("drafted", c_int64), ("accepted", c_int64), ("weight_bytes", c_uint64),
                ("cache_bytes", c_uint64), ("peak_bytes", c_uint64), ("finish", c_int),
                ("temperature", c_double), ("top_p", c_double), ("min_p", c_double),
                ("repeat_penalty", c_double), ("top_k", c_int64), ("seed", c_uint64),
                ("sampler", c_char_p), ("sampler_why", c_char * 512), ("drafts", c_int64),
                ("model_drafted", c_int64), ("model_accepted", c_int64), ("model_s", c_double),
                ("vain_s", c_double), ("undrafted_s", c_double), ("recomputed_tokens", c_int64),
                ("recomputed_why", c_char_p)]


class nib_piece(Structure):
    _fields_ = [("size", c_size_t), ("text", c_char_p), ("text_size", c_size_t), ("token", c_int32),
                ("logprob", c_double), ("likeliest", POINTER(nib_token_logprob)),
                ("likeliest_count", c_size_t), ("over", c_bool), ("finish", c_int)]


class nib_verify_options(Structure):
    _fields_ = [("size", c_size_t), ("against", c_void_p), ("signers", c_char_p),
                ("signer", c_char_p), ("reserved", c_uint64 * 4)]


class nib_signature_options(Structure):
    _fields_ = [("size", c_size_t), ("key", c_char_p), ("force", c_bool), ("dry_run", c_bool),
                ("reserved", c_uint64 * 4)]


class nib_verify_from_options(Structure):
    _fields_ = [("size", c_size_t), ("source", c_char_p), ("calibrate", c_char_p),
                ("imatrix", c_char_p), ("tokenizer", c_char_p), ("signers", c_char_p),
                ("signer", c_char_p), ("reserved", c_uint64 * 2)]


class nib_budget(Structure):
    _fields_ = [("size", c_size_t), ("bits", c_double), ("memory", c_uint64), ("speed", c_double),
                ("rules", c_char_p), ("reserved", c_uint64 * 4)]


class nib_quantize_options(Structure):
    _fields_ = [("size", c_size_t), ("request", POINTER(nib_request)), ("for_device", c_char_p),
                ("out", c_char_p), ("format", c_char_p), ("calibrate", c_char_p), ("force", c_bool),
                ("dry_run", c_bool), ("pack", c_bool), ("method", c_char_p), ("imatrix", c_char_p),
                ("budget", POINTER(nib_budget)), ("reserved", c_uint64 * 1)]


class nib_convert_options(Structure):
    _fields_ = [("size", c_size_t), ("out", c_char_p), ("format", c_char_p), ("dtype", c_char_p),
                ("force", c_bool), ("dry_run", c_bool), ("bias", c_char_p), ("pack", c_bool),
                ("strict", c_bool), ("allow", nib_strings), ("reserved", c_uint64 * 4)]


class nib_imatrix_options(Structure):
    _fields_ = [("size", c_size_t), ("out", c_char_p), ("calibrate", c_char_p), ("force", c_bool),
                ("reserved", c_uint64 * 4)]


class nib_eval_options(Structure):
    _fields_ = [("size", c_size_t), ("text_path", c_char_p), ("window", c_int64),
                ("against_logits", c_char_p), ("save_logits", c_char_p),
                ("logits_format", c_char_p), ("reserved", c_uint64 * 1)]


class nib_eval_result(Structure):
    _fields_ = [("size", c_size_t), ("loss", c_double), ("perplexity", c_double),
                ("predicted", c_int64), ("kl", c_double), ("top1_agreement", c_double),
                ("seconds", c_double), ("first_scored", c_int64), ("documents", c_bool),
                ("kl_median", c_double), ("kl_p99", c_double), ("kl_p999", c_double),
                ("kl_largest", c_double), ("kl_largest_unit", c_int64),
                ("kl_largest_position", c_int64), ("kl_largest_token", c_int64),
                ("against_loss", c_double), ("loss_difference", c_double),
                ("perplexity_ratio", c_double), ("position_begin", c_int64 * 6),
                ("position_predicted", c_int64 * 6), ("position_kl", c_double * 6),
                ("units", c_int64), ("resamples", c_int64), ("kl_interval", c_double * 2),
                ("loss_difference_interval", c_double * 2),
                ("perplexity_ratio_interval", c_double * 2),
                ("top1_agreement_interval", c_double * 2), ("draft_guesses", c_int64),
                ("draft_right", c_double)]


class nib_bench_speeds(Structure):
    _fields_ = [("prefill_tokens_per_s", c_double), ("decode_tokens_per_s", c_double)]


class nib_bench_round(Structure):
    _fields_ = [("own", nib_bench_speeds), ("floats", nib_bench_speeds), ("peer", nib_bench_speeds),
                ("batch_tokens_per_s", c_double), ("read_gb_per_s", c_double * 2)]


class nib_bench_peer(Structure):
    _fields_ = [("size", c_size_t), ("program", c_char_p), ("model", c_char_p),
                ("environment", POINTER(c_char_p)), ("reserved", c_uint64 * 4)]


class nib_bench_context(Structure):
    _fields_ = [("positions", c_int64), ("tokens_per_s", c_double),
                ("empty_tokens_per_s", c_double)]


class nib_bench_options(Structure):
    _fields_ = [("size", c_size_t), ("prompt_tokens", c_int64), ("new_tokens", c_int64),
                ("repeats", c_int), ("batch", c_int64), ("contexts", POINTER(c_int64)),
                ("context_count", c_size_t), ("beside", c_bool), ("against", c_char_p),
                ("peer", POINTER(nib_bench_peer)), ("rounds", POINTER(nib_bench_round)),
                ("reserved", c_uint64 * 4)]


class nib_bench_result(Structure):
    _fields_ = [("size", c_size_t), ("machine", c_char * 64), ("isa", c_char * 16),
                ("date", c_char * 16), ("threads", c_int), ("prefill_tokens_per_s", c_double),
                ("decode_tokens_per_s", c_double), ("batch_tokens_per_s", c_double),
                ("weight_bytes", c_uint64), ("peak_bytes", c_uint64), ("cache_bytes", c_uint64),
                ("copy_gb_per_s", c_double), ("bandwidth_share", c_double),
                ("peak_gop_per_s", c_double), ("arithmetic_share", c_double),
                ("predicted_prefill_tokens_per_s", c_double),
                ("predicted_decode_tokens_per_s", c_double), ("predicted_bytes", c_uint64),
                ("device_bytes", c_uint64), ("contexts", nib_bench_context * 16),
                ("context_count", c_size_t), ("floats", nib_bench_speeds),
                ("floats_name", c_char * 64), ("floats_why", c_char * 512),
                ("peer", nib_bench_speeds), ("peer_name", c_char * 192),
                ("read_gb_per_s", c_double), ("file_bytes", c_uint64),
                ("peer_file_bytes", c_uint64), ("peer_token_bytes", c_uint64)]


class nib_advise_methods(Structure):
    _fields_ = [("size", c_size_t), ("methods", nib_strings), ("calibrate", c_char_p),
                ("imatrix", c_char_p), ("scratch", c_char_p), ("reserved", c_uint64 * 4)]


class nib_advise_options(Structure):
    _fields_ = [("size", c_size_t), ("request", POINTER(nib_request)), ("recipes", nib_strings),
                ("text_path", c_char_p), ("window", c_int64), ("memory", c_uint64),
                ("loss_budget", c_double), ("by_prefill", c_bool), ("dry_run", c_bool),
                ("svg", c_char_p), ("name", c_char_p), ("methods", POINTER(nib_advise_methods)),
                ("caches", POINTER(nib_strings)), ("reserved", c_uint64 * 2)]


class nib_service_options(Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("chat_template", c_char_p),
                ("queue", c_int64), ("limit_s", c_double), ("seed", c_uint64),
                ("state_cache", c_char_p), ("state_cache_bytes", c_uint64),
                ("reserved", c_uint64 * 2)]


nib_call_options_ready = CFUNCTYPE(None, c_void_p)


class nib_call_options(Structure):
    _fields_ = [("size", c_size_t), ("route", c_int), ("body", c_char_p), ("body_size", c_size_t),
                ("client", c_uint64), ("tenant", c_uint64), ("now", c_int64),
                ("ready", nib_call_options_ready), ("ctx", c_void_p), ("reserved", c_uint64 * 4)]


class nib_call_state(Structure):
    _fields_ = [("size", c_size_t), ("http", c_int), ("stream", c_bool), ("retry_s", c_int),
                ("left", c_size_t), ("over", c_bool)]


class nib_call_stats(Structure):
    _fields_ = [("size", c_size_t), ("id", c_char_p), ("finish", c_char_p),
                ("prompt_tokens", c_int64), ("cached_tokens", c_int64), ("new_tokens", c_int64),
                ("seed", c_int64), ("settings", c_int64), ("queued_s", c_double),
                ("first_token_s", c_double), ("total_s", c_double), ("recomputed_tokens", c_int64),
                ("recomputed_why", c_char_p)]


class nib_ranks_options(Structure):
    _fields_ = [("size", c_size_t), ("asked", c_int), ("timeout_s", c_double),
                ("allocator", POINTER(nib_allocator)), ("reserved", c_uint64 * 4)]


class nib_train_options(Structure):
    _fields_ = [("size", c_size_t), ("dry_run", c_bool), ("ranks", c_void_p), ("out", c_char_p),
                ("ran", POINTER(c_void_p)), ("reserved", c_uint64 * 4)]


class nib_plot_options(Structure):
    _fields_ = [("size", c_size_t), ("runs", nib_strings), ("value", c_char_p), ("smooth", c_int64),
                ("out", c_char_p), ("reserved", c_uint64 * 4)]


FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "nib_status_name": (c_char_p, [c_int]),
    "nib_status_text": (c_char_p, [c_int]),
    "nib_version": (c_char_p, []),
    "nib_version_number": (c_int, []),
    "nib_status_exit": (c_int, [c_int]),
    "nib_init": (None, [c_void_p, c_size_t]),
    "nib_engine_open": (c_int, [POINTER(c_void_p), POINTER(nib_engine_options), POINTER(nib_err)]),
    "nib_engine_close": (None, [c_void_p]),
    "nib_model_open": (c_int, [POINTER(c_void_p), c_void_p, c_char_p, POINTER(nib_model_options),
        POINTER(nib_err)]),
    "nib_model_close": (None, [c_void_p]),
    "nib_model_facts_get": (c_int, [c_void_p, POINTER(nib_model_facts), POINTER(nib_err)]),
    "nib_tokenizer_open": (c_int, [POINTER(c_void_p), c_void_p, c_char_p, POINTER(nib_err)]),
    "nib_tokenizer_close": (None, [c_void_p]),
    "nib_model_tokenizer": (c_int, [POINTER(c_void_p), c_void_p, POINTER(nib_err)]),
    "nib_tokenizer_facts_get": (None, [c_void_p, POINTER(nib_tokenizer_facts)]),
    "nib_tokenize": (c_int, [c_void_p, c_char_p, c_size_t, c_uint32, POINTER(POINTER(c_int32)),
        POINTER(c_size_t), POINTER(nib_err)]),
    "nib_tokens_free": (None, [c_void_p, POINTER(c_int32)]),
    "nib_detokenize": (c_int, [c_void_p, POINTER(c_int32), c_size_t, POINTER(nib_sink),
        POINTER(nib_err)]),
    "nib_chat_open": (c_int, [c_void_p, POINTER(nib_err)]),
    "nib_chat_note": (c_char_p, [c_void_p]),
    "nib_chat_encode": (c_int, [c_void_p, POINTER(nib_chat_options), POINTER(POINTER(c_int32)),
        POINTER(c_size_t), POINTER(nib_err)]),
    "nib_chat_write": (c_int, [c_void_p, POINTER(nib_chat_options), POINTER(nib_sink),
        POINTER(nib_err)]),
    "nib_plan_open": (c_int, [POINTER(c_void_p), c_void_p, POINTER(nib_request), POINTER(nib_err)]),
    "nib_plan_close": (None, [c_void_p]),
    "nib_plan_draft": (c_void_p, [c_void_p]),
    "nib_plan_status": (c_int, [c_void_p, POINTER(nib_err)]),
    "nib_plan_write": (c_int, [c_void_p, c_int, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_plan_ledger_write": (c_int, [c_void_p, c_int, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_plan_summary": (c_int, [c_void_p, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_rung_name": (c_char_p, [c_int]),
    "nib_verdict_name": (c_char_p, [c_int]),
    "nib_setting_relation_name": (c_char_p, [c_int]),
    "nib_asker_name": (c_char_p, [c_int]),
    "nib_plan_facts_get": (None, [c_void_p, POINTER(nib_plan_facts)]),
    "nib_plan_layer_get": (c_int, [c_void_p, c_size_t, POINTER(nib_plan_layer), POINTER(nib_err)]),
    "nib_plan_use_get": (c_int, [c_void_p, c_size_t, c_size_t, POINTER(nib_plan_use),
        POINTER(nib_err)]),
    "nib_plan_advice_get": (c_int, [c_void_p, c_size_t, c_size_t, POINTER(nib_plan_advice),
        POINTER(nib_err)]),
    "nib_plan_candidate_get": (c_int, [c_void_p, c_size_t, c_size_t, POINTER(nib_plan_candidate),
        POINTER(nib_err)]),
    "nib_plan_setting_get": (c_int, [c_void_p, c_size_t, POINTER(nib_plan_setting),
        POINTER(nib_err)]),
    "nib_plan_note_get": (c_int, [c_void_p, c_size_t, POINTER(nib_reason), POINTER(nib_err)]),
    "nib_session_open": (c_int, [POINTER(c_void_p), c_void_p, c_void_p, c_int, POINTER(nib_err)]),
    "nib_session_plan": (c_void_p, [c_void_p]),
    "nib_session_close": (None, [c_void_p]),
    "nib_session_step": (c_int, [c_void_p, POINTER(nib_slot), c_size_t, POINTER(POINTER(c_float)),
        POINTER(nib_err)]),
    "nib_session_hidden": (POINTER(c_float), [c_void_p]),
    "nib_session_truncate": (c_int, [c_void_p, c_int32, c_int32, POINTER(nib_err)]),
    "nib_session_length": (c_int32, [c_void_p, c_int32]),
    "nib_session_vocab": (c_int64, [c_void_p]),
    "nib_session_log_sums": (c_int, [POINTER(c_double), POINTER(c_int32), c_void_p,
        POINTER(c_float), c_size_t, POINTER(nib_err)]),
    "nib_session_save": (c_int, [c_void_p, c_int32, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_session_load": (c_int, [c_void_p, c_int32, c_void_p, c_size_t, POINTER(c_int32),
        POINTER(nib_err)]),
    "nib_sampler_open": (c_int, [POINTER(c_void_p), c_void_p, POINTER(nib_generate_options),
        POINTER(nib_err)]),
    "nib_sampler_close": (None, [c_void_p]),
    "nib_sampler_draw": (c_int, [c_void_p, POINTER(c_float), POINTER(c_int32), c_size_t,
        POINTER(c_int32), POINTER(nib_err)]),
    "nib_generate": (c_int, [c_void_p, POINTER(nib_generate_options), POINTER(nib_sink),
        POINTER(nib_generate_stats), POINTER(nib_err)]),
    "nib_generator_open": (c_int, [POINTER(c_void_p), c_void_p, POINTER(nib_generate_options),
        POINTER(nib_err)]),
    "nib_generator_next": (c_int, [c_void_p, POINTER(nib_piece), POINTER(nib_err)]),
    "nib_generator_stats_get": (None, [c_void_p, POINTER(nib_generate_stats)]),
    "nib_generator_close": (None, [c_void_p]),
    "nib_chat_session_open": (c_int, [POINTER(c_void_p), c_void_p, c_char_p, POINTER(nib_err)]),
    "nib_chat_session_close": (None, [c_void_p]),
    "nib_chat_session_say": (c_int, [c_void_p, c_char_p, POINTER(nib_generate_options), c_int64,
        POINTER(nib_sink), POINTER(nib_generate_stats), POINTER(nib_err)]),
    "nib_chat_session_reset": (None, [c_void_p]),
    "nib_chat_session_system": (c_int, [c_void_p, c_char_p, POINTER(nib_err)]),
    "nib_chat_session_save": (c_int, [c_void_p, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_chat_session_load": (c_int, [c_void_p, c_char_p, c_char_p, c_size_t, POINTER(nib_err)]),
    "nib_kernels_write": (c_int, [c_void_p, c_int, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_devices_write": (c_int, [c_void_p, c_int, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_device_write": (c_int, [c_void_p, c_char_p, c_int, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_devices_measure": (c_int, [c_void_p, c_char_p, POINTER(nib_err)]),
    "nib_recipes_write": (c_int, [c_void_p, c_int, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_models_write": (c_int, [c_void_p, c_int, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_formats_write": (c_int, [c_void_p, c_int, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_codes_write": (c_int, [c_void_p, c_char_p, c_int, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_info_write": (c_int, [c_void_p, c_int, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_verify": (c_int, [c_void_p, c_void_p, c_int, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_verify_with": (c_int, [c_void_p, POINTER(nib_verify_options), c_int, POINTER(nib_sink),
        POINTER(nib_err)]),
    "nib_signature_write": (c_int, [c_void_p, c_char_p, POINTER(nib_signature_options), c_int,
        POINTER(nib_sink), POINTER(nib_err)]),
    "nib_verify_from": (c_int, [c_void_p, POINTER(nib_verify_from_options), c_int,
        POINTER(nib_sink), POINTER(nib_err)]),
    "nib_quantize": (c_int, [c_void_p, POINTER(nib_quantize_options), c_int, POINTER(nib_sink),
        POINTER(nib_err)]),
    "nib_convert": (c_int, [c_void_p, POINTER(nib_convert_options), c_int, POINTER(nib_sink),
        POINTER(nib_err)]),
    "nib_imatrix_write": (c_int, [c_void_p, POINTER(nib_imatrix_options), c_int, POINTER(nib_sink),
        POINTER(nib_err)]),
    "nib_eval": (c_int, [c_void_p, c_void_p, POINTER(nib_eval_options), POINTER(nib_eval_result),
        POINTER(nib_err)]),
    "nib_is_logits_file": (c_bool, [c_char_p]),
    "nib_bench": (c_int, [c_void_p, POINTER(nib_bench_options), POINTER(nib_bench_result),
        POINTER(nib_err)]),
    "nib_bench_operations": (c_int, [c_void_p, POINTER(nib_bench_options), c_int, POINTER(nib_sink),
        POINTER(nib_err)]),
    "nib_bench_kernels": (c_int, [c_void_p, c_int, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_bench_predict": (c_int, [c_void_p, c_char_p, c_int64, c_int, POINTER(nib_sink),
        POINTER(nib_err)]),
    "nib_bench_layers": (c_int, [c_void_p, c_int64, c_int, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_tune": (c_int, [c_void_p, POINTER(nib_request), c_int, POINTER(nib_sink),
        POINTER(nib_err)]),
    "nib_tune_show": (c_int, [c_void_p, c_int, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_tune_clear": (c_int, [c_void_p, POINTER(c_bool), POINTER(nib_err)]),
    "nib_advise": (c_int, [c_void_p, POINTER(nib_advise_options), c_int, POINTER(nib_sink),
        POINTER(nib_err)]),
    "nib_service_open": (c_int, [POINTER(c_void_p), c_void_p, POINTER(nib_service_options),
        POINTER(nib_err)]),
    "nib_service_close": (None, [c_void_p]),
    "nib_service_run": (None, [c_void_p]),
    "nib_service_status": (c_int, [c_void_p, POINTER(nib_err)]),
    "nib_service_stop": (None, [c_void_p]),
    "nib_call_open": (c_int, [POINTER(c_void_p), c_void_p, POINTER(nib_call_options),
        POINTER(nib_err)]),
    "nib_call_close": (None, [c_void_p]),
    "nib_call_look": (None, [c_void_p, POINTER(nib_call_state)]),
    "nib_call_read": (c_size_t, [c_void_p, POINTER(c_char), c_size_t]),
    "nib_call_stats_get": (None, [c_void_p, POINTER(nib_call_stats)]),
    "nib_service_write": (c_int, [c_void_p, c_int, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_error_write": (c_int, [c_int, c_char_p, c_char_p, c_char_p, POINTER(nib_sink),
        POINTER(nib_err)]),
    "nib_service_name": (c_char_p, [c_void_p]),
    "nib_ranks_open": (c_int, [POINTER(c_void_p), POINTER(nib_ranks_options), POINTER(nib_err)]),
    "nib_ranks_close": (None, [c_void_p]),
    "nib_ranks_rank": (c_int, [c_void_p]),
    "nib_ranks_count": (c_int, [c_void_p]),
    "nib_ranks_slice": (None, [c_void_p, POINTER(c_int), POINTER(c_int)]),
    "nib_ranks_agree": (c_int, [c_void_p, c_int, POINTER(nib_err)]),
    "nib_ranks_broken": (c_bool, [c_void_p]),
    "nib_ranks_abort": (None, [c_void_p, c_int]),
    "nib_train_keys_write": (c_int, [c_void_p, c_int, POINTER(nib_sink), POINTER(nib_err)]),
    "nib_train": (c_int, [c_void_p, c_void_p, POINTER(nib_train_options), POINTER(nib_sink),
        POINTER(nib_err)]),
    "nib_bench_train": (c_int, [c_void_p, c_void_p, c_int, c_int, POINTER(nib_sink),
        POINTER(nib_err)]),
    "nib_plot": (c_int, [c_void_p, POINTER(nib_plot_options), POINTER(nib_sink), POINTER(nib_err)]),
}

def declare(library: Any) -> None:
    """Sets the types of the library's functions. AttributeError: the library lacks one."""
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments

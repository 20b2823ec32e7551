# SPDX-License-Identifier: Apache-2.0
#
# The sentences of refusals: models, tokenizers, templates, generation.
messages test_config test_config_limits test_gguf_model test_network test_graph test_cache test_config_gguf test_gguf_keys
messages test_tokenizer_load test_tokenizer_tables test_tokenizer_gguf test_tokenizer_vocab test_tokenizer_parts test_regex_guard
messages test_template_limits test_tool_format test_schema test_constraint test_constraint_calls
messages test_generate test_sample test_prompt_lookup

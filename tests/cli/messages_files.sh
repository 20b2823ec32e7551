# SPDX-License-Identifier: Apache-2.0
#
# The sentences of refusals: files that hold tensors, and what they are read and written with.
messages test_signed_files test_status test_match test_pool test_json test_file test_record_file test_plot test_logits_file
messages test_zip test_torch_zip test_torch_models test_safetensors test_gguf test_gguf_vocab test_gguf_write test_gguf_describe
messages test_writer test_checkpoint test_inspect

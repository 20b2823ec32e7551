# SPDX-License-Identifier: Apache-2.0
#
# The sentences of refusals: calls of applications.
messages test_public_struct test_plan_data test_open_tokenizer test_model_facts test_lifetime

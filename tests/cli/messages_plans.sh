# SPDX-License-Identifier: Apache-2.0
#
# The sentences of refusals: recipes, machines, plans, devices that fail, measuring, training, requests.
messages test_scheme test_recipe test_recipe_torchao test_recipe_members test_targets test_head_norms test_prequantized test_rewriting_bias test_config_families test_config_codes
messages test_machine_file test_plan test_plan_ops test_ledger test_fallback test_train_fallback test_quant_device
messages test_eval test_advise test_bench test_bench_predict test_bench_train
messages test_packed test_data test_train_config test_train_state test_train_checkpoint test_train_export test_trainer test_dry_run
messages test_api_request test_api_tools test_chat_prompt test_serve

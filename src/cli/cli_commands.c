/* SPDX-License-Identifier: Apache-2.0
 *
 * One row per command: what it takes, what help and manual pages say. The order is that of the bits
 * in cli_options.h.
 */
#include "cli_options.h"

const command commands[] = {
    {"info", "MODEL", "show what a checkpoint holds",
     "Shows every tensor with shape, format, scheme, group, bias and bytes.",
     "nibble info MODEL\n"
     "nibble info MODEL --json",
     0, 1, run_info},
    {"plan", "MODEL", "say for every layer what will run, why not otherwise, and what it costs",
     "Plans a model for a recipe and a machine, present or not, without running anything. MODEL "
     "may be a bare config.json, or a training config, whose keys are options as for `nibble "
     "train`. "
     "Exits 4 if a layer has no allowed way, after printing everything.",
     "nibble plan MODEL --recipe 8da4w\n"
     "nibble plan MODEL --recipe int4wo --device mi210 --layer lm_head\n"
     "nibble plan MODEL --recipe int4wo --device a100 --engine torchao\n"
     "nibble plan CONFIG --device b200 --training.local_batch_size=2",
     0, 1, run_plan},
    {"advise", "MODEL [RECIPE...]", "say which recipe to take on a device, and what it costs",
     "Compares recipes on a device, present or not: memory and speed as planned, and where the "
     "device is here as measured; with --text the loss of each, else an estimate of what rounding "
     "does to a layer. Shows the frontier, what is not done as asked or does not fit, and ends "
     "with the recipe to take, its command, and with training for its codes where rounding costs "
     "too much. MODEL may be a bare config.json. Exits 5 if nothing fits, 4 if the device does "
     "nothing as asked, after printing everything.",
     "nibble advise MODEL --text book.txt\n"
     "nibble advise MODEL --device h200 --memory 6GB --svg frontier.svg\n"
     "nibble advise MODEL int8wo 8da4w int4wo-g64 --text book.txt --loss-budget 0.01",
     0, 64, run_advise},
    {"quantize", "MODEL OUT", "write a quantized checkpoint",
     "Streams MODEL through a recipe into OUT: a directory for a directory, else a file. OUT "
     "appears complete or not at all. "
     "What cannot be done as asked is a line of the ledger, and with --strict an error.",
     "nibble quantize MODEL OUT --recipe 8da4w\n"
     "nibble quantize MODEL OUT --recipe int8dq --skip lm_head --dry-run",
     1, 2, run_quantize},
    {"convert", "MODEL OUT", "write a checkpoint in another format, codes and biases as they are",
     "Streams MODEL into OUT in another format: a directory for a directory, else a file. OUT "
     "appears complete or not at all. Codes are not quantized again: the ledger says for every "
     "weight whether it is lossless, exact after a change of layout, or lossy, and with which "
     "error. A format that cannot hold a weight is an error (exit 4) that names it.",
     "nibble convert MODEL OUT --format compressed-tensors\n"
     "nibble convert MODEL OUT --format safetensors --dtype bf16",
     1, 2, run_convert},
    {"generate", "MODEL", "write text",
     "Continues a prompt, which is not printed again; a special token written in it (`<s>`) "
     "becomes that token. Text goes to stdout; statistics and the "
     "ledger's line go to stderr. The model's own sampling is that of its generation_config.json.",
     "nibble generate MODEL -p 'Once upon a time' -n 100\n"
     "nibble generate MODEL --file prompt.txt --temp 0 --stop END",
     0, 1, run_generate},
    {"chat", "MODEL", "talk with a model",
     "A conversation by the model's chat template: answers come as they are made, and what was "
     "said "
     "is not read again. On a terminal lines are edited and remembered; through a pipe each line "
     "is "
     "a message. Ctrl-C stops an answer; /help lists /system, /reset, /stats, /plan, /save, /load "
     "and /quit.",
     "nibble chat MODEL\n"
     "nibble chat MODEL --recipe 8da4w --system 'Be brief.' --temp 0.6\n"
     "echo 'What is a nibble?' | nibble chat MODEL -q",
     0, 1, run_chat},
    {"serve", "MODEL", "answer requests over HTTP, as OpenAI's interface defines them",
     "Serves POST /v1/chat/completions and /v1/completions, GET /v1/models, /v1/plan (the ledger), "
     "/health and /metrics, and a page at /. Several requests run in one batch, each to the bits "
     "that it has alone; those that begin alike share what is computed. A member of a request that "
     "is not honoured is refused by its name, or the answer's `settings` say what is done. SIGTERM "
     "lets those that run finish.",
     "nibble serve MODEL\n"
     "nibble serve MODEL --recipe 8da4w --parallel 16 --port 8000\n"
     "nibble serve MODEL --host 0.0.0.0 --api-key-file keys.txt",
     0, 1, run_serve},
    {"eval", "MODEL", "measure loss and perplexity of a text",
     "Measures loss (nats per predicted token) and perplexity, and with --against the distance to "
     "another model.",
     "nibble eval MODEL --text book.txt\n"
     "nibble eval QUANTIZED --text book.txt --window 256 --against MODEL",
     0, 1, run_eval},
    {"verify", "MODEL", "check a checkpoint",
     "Checks hashes against the manifest, ranges, NaN and Inf by tensor and index, and that "
     "everything that config.json implies "
     "is there exactly once. Exits 8 if something is found.",
     "nibble verify MODEL\n"
     "nibble verify QUANTIZED --against MODEL",
     0, 1, run_verify},
    {"bench", "[MODEL]", "measure tokens per second, and shares of the machine's limits",
     "Medians of prefill and decode, or of the steps of a training config, with the bandwidth and "
     "the arithmetic rate measured in the same run.",
     "nibble bench MODEL --recipe 8da4w\n"
     "nibble bench MODEL --recipe 8da4w --operations\n"
     "nibble bench --kernels\n"
     "nibble bench --predict --device opencl --prompt-tokens 64\n"
     "nibble bench --train configs/llama3_debugmodel_mxfp8_vocab2256.json --json",
     0, 1, run_bench},
    {"tune", "[MODEL]", "measure which kernels are the fastest here",
     "Times, for every shape of MODEL and every range of tokens, the kernels that could run it "
     "with "
     "the same bits, and keeps their order for this machine beside what `nibble devices --measure` "
     "keeps. Plans then take it and say so. Without MODEL: what is kept.",
     "nibble tune MODEL --recipe 8da4w\n"
     "nibble tune\n"
     "nibble tune --clear",
     0, 1, run_tune},
    {"train", "CONFIG", "train a model in low precision",
     "Trains what a config says, in torchtitan's sections and names: --keys lists them. Each key "
     "is "
     "an option, too, before the others: --section.key=value, --section.key value, and a flag by "
     "itself; lists have commas. A line for each step goes to stdout, the ledger's line to stderr.",
     "nibble train CONFIG\n"
     "nibble train CONFIG --training.steps=50 --model.converters mx\n"
     "nibble train CONFIG --dry-run\n"
     "nibble train --keys",
     0, 1, run_train},
    {"plot", "RUN...", "draw curves of training runs",
     "Draws the losses of runs over their steps as one SVG, to stdout. RUN is a file of metrics "
     "(metrics.path of a config), or a directory with a metrics.jsonl.",
     "nibble plot outputs/metrics.jsonl > loss.svg\n"
     "nibble plot bf16 mxfp8 --smooth 20 -o loss.svg\n"
     "nibble plot outputs --value grad_norm -o norm.svg",
     0, 24, run_plot},
    {"devices", "[DEVICE]", "list this machine and the machines known by name",
     "Shows each device with its facts, their date and source; or one, by its name or the path of "
     "its file. One as --json is a file that --device takes: copy it to add a machine.",
     "nibble devices\n"
     "nibble devices mi210\n"
     "nibble devices opencl --measure\n"
     "nibble devices mi210 --json > my-gpu.json\n"
     "nibble plan MODEL --device my-gpu.json",
     0, 1, run_devices},
    {"kernels", "", "list every kernel and its conditions",
     "Shows the table of kernels: those of this build, those declared for other devices, and those "
     "of other engines.",
     "nibble kernels", 0, 0, run_kernels},
    {"models", "", "list the families of models that run",
     "Shows what each family is called in config.json and in GGUF, and which of its models are "
     "refused.",
     "nibble models", 0, 0, run_models},
    {"recipes", "", "explain what each recipe name means",
     "Shows formula, default group and source of each recipe.", "nibble recipes", 0, 0,
     run_recipes},
    {"formats", "", "list the formats of checkpoints that are read and written",
     "Shows what each format holds, and whether it is read and written.", "nibble formats", 0, 0,
     run_formats},
    {"explain", "[CODE]", "explain the codes of the ledger's lines",
     "Shows what each code means: of settings, reasons, advice and notes; or one, also of a "
     "condition, with the kernels that have it.",
     "nibble explain\n"
     "nibble explain tie\n"
     "nibble explain n%128",
     0, 1, run_explain},
    {"manual", "[COMMAND]", "print a manual page",
     "Prints nibble(1), or the page of a command, as troff.", "nibble manual plan | man -l -", 0, 1,
     run_manual},
    {"completion", "SHELL", "print completions for bash, zsh or fish",
     "Prints what a shell reads to complete commands and options.",
     "source <(nibble completion bash)", 1, 1, run_completion},
};
const size_t command_count = sizeof commands / sizeof *commands;
_Static_assert(sizeof commands / sizeof *commands <= COMMANDS_MAX, "raise COMMANDS_MAX");

/* SPDX-License-Identifier: Apache-2.0
 *
 * The command table: arguments, help text and function of each command, in the order of the ON_
 * bits in cli_options.h.
 */
#include "cli_options.h"

const command commands[] = {
    {"info", "MODEL", "show what a checkpoint holds",
     "Shows every tensor with its shape, format, scheme, group size, bias and bytes.",
     "nibble info MODEL\n"
     "nibble info MODEL --json",
     0, 1, run_info},
    {"plan", "MODEL", "show which kernel runs each layer, why, and at what cost",
     "Plans a model for a recipe and a machine without running anything; the machine need not be "
     "present. MODEL may be a bare config.json, or a training config, whose keys are options as in "
     "`nibble train`. Exits 4 if a layer has no allowed kernel, after printing everything.",
     "nibble plan MODEL --recipe 8da4w\n"
     "nibble plan MODEL --recipe int4wo --device mi210 --layer lm_head\n"
     "nibble plan MODEL --recipe int4wo --device a100 --engine torchao\n"
     "nibble plan CONFIG --device b200 --training.local_batch_size=2",
     0, 1, run_plan},
    {"advise", "MODEL [RECIPE...]", "recommend a recipe for a device",
     "Compares recipes on a device by memory and speed: predicted, and measured if the device is "
     "present. With --text it measures the loss of each recipe, otherwise it estimates the "
     "relative error of linear layers from rounding. Shows the Pareto frontier, and the recipes "
     "that do not fit or cannot run as asked. With --method it also quantizes each recipe by other "
     "methods than rounding, and shows the frontier with and without them. Ends with the "
     "recommended recipe and its command "
     "and, if rounding puts a faster or smaller recipe over the loss budget, with a config for "
     "quantization-aware training. MODEL may be a bare config.json. Exits 5 if no recipe fits and "
     "4 if the device runs none as asked, after printing everything. With --cache it compares "
     "types "
     "of the KV cache instead: bytes per token, and KL divergence on --text.",
     "nibble advise MODEL --text book.txt\n"
     "nibble advise MODEL --device h200 --memory 6GB --svg frontier.svg\n"
     "nibble advise MODEL int8wo 8da4w int4wo-g64 --text book.txt --loss-budget 0.01\n"
     "nibble advise MODEL int4wo 8da4w --text t.txt --method gptq --calibrate c.txt\n"
     "nibble advise MODEL --cache --text book.txt\n"
     "nibble advise MODEL int8:int4 int4-hadamard --cache --text book.txt",
     0, 64, run_advise},
    {"quantize", "MODEL OUT", "write a quantized checkpoint",
     "Streams MODEL through a recipe into OUT: a directory if MODEL is a directory, else a file. "
     "OUT appears complete or not at all. Anything that is not done as asked is listed in the "
     "ledger, and is an error with --strict.",
     "nibble quantize MODEL OUT --recipe 8da4w\n"
     "nibble quantize MODEL OUT --recipe int8dq --skip lm_head --dry-run",
     1, 2, run_quantize},
    {"convert", "MODEL OUT", "write a checkpoint in another format without quantizing it again",
     "Streams MODEL into OUT in another format: a directory if MODEL is a directory, else a file. "
     "OUT appears complete or not at all. Codes are kept: the ledger says for every weight whether "
     "the conversion is lossless, exact after a change of layout, or lossy, and by how much. A "
     "weight that the format cannot hold is an error (exit 4) that names it.",
     "nibble convert MODEL OUT --format compressed-tensors\n"
     "nibble convert MODEL OUT --format safetensors --dtype bf16",
     1, 2, run_convert},
    {"imatrix", "MODEL OUT", "write an importance matrix that llama.cpp reads",
     "Runs MODEL as stored over a text, in windows of at most 2048 tokens, and writes for each "
     "weight "
     "the sums of the squares of its inputs, as a GGUF file with llama.cpp's names. llama-quantize "
     "and --imatrix of `nibble quantize` read it. OUT appears complete or not at all.",
     "nibble imatrix MODEL OUT --calibrate text.txt\n"
     "nibble quantize MODEL QUANTIZED --recipe int4wo --method search --imatrix OUT",
     1, 2, run_imatrix},
    {"generate", "MODEL", "generate text from a prompt",
     "Continues a prompt without printing it again. A special token spelled in the prompt, such as "
     "`<s>`, becomes that token. Text goes to stdout; statistics and the ledger's summary go to "
     "stderr. Sampling defaults come from the model's generation_config.json.",
     "nibble generate MODEL -p 'Once upon a time' -n 100\n"
     "nibble generate MODEL --file prompt.txt --temp 0 --stop END",
     0, 1, run_generate},
    {"chat", "MODEL", "chat with a model",
     "Holds a conversation with the model's chat template, streams the answers and keeps earlier "
     "turns in the KV cache. On a terminal, lines can be edited and have a history; through a "
     "pipe, each line is a message. Ctrl-C stops an answer; /help lists /system, /reset, /stats, "
     "/plan, /save, /load and /quit.",
     "nibble chat MODEL\n"
     "nibble chat MODEL --recipe 8da4w --system 'Be brief.' --temp 0.6\n"
     "echo 'What is a nibble?' | nibble chat MODEL -q",
     0, 1, run_chat},
    {"serve", "MODEL", "serve a model over HTTP with OpenAI's API",
     "Serves POST /v1/chat/completions and /v1/completions, GET /v1/models, /v1/plan (the ledger), "
     "/health and /metrics, and a web page at /. Concurrent requests run in one batch, and each "
     "gets the same bits as if it ran alone; requests with a common prompt prefix share its KV "
     "cache. An unsupported request field is refused with an error that names it; a field that is "
     "applied differently is listed under `settings` in the answer. On SIGTERM, running requests "
     "finish first.",
     "nibble serve MODEL\n"
     "nibble serve MODEL --recipe 8da4w --parallel 16 --port 8000\n"
     "nibble serve MODEL --host 0.0.0.0 --api-key-file keys.txt",
     0, 1, run_serve},
    {"eval", "MODEL", "measure loss and perplexity on a text",
     "Measures loss (nats per predicted token) and perplexity; with --against, also the KL "
     "divergence from another model, its percentiles and its mean by position, the ratio of "
     "perplexities, and how often both predict the same token. Intervals are bootstrapped over the "
     "windows of a text, or over the documents of JSON lines.",
     "nibble eval MODEL --text book.txt\n"
     "nibble eval QUANTIZED --text book.txt --window 256 --against MODEL\n"
     "nibble eval MODEL --text book.txt --save-logits book.logits\n"
     "nibble eval QUANTIZED --text book.txt --against book.logits\n"
     "nibble eval MODEL --recipe 8da4w --text book.txt --against MODEL --by-layer",
     0, 1, run_eval},
    {"verify", "MODEL", "check a checkpoint for errors",
     "Compares hashes with the manifest, looks for NaN, Inf and values out of range, and checks "
     "that each tensor the config requires is present exactly once. With --from, it instead "
     "rebuilds the checkpoint from its receipt or, without a receipt, compares each tensor with "
     "the source. With --signers, a missing or wrong signature and files changed since signing "
     "are errors, too. Exits 8 if it finds an error.",
     "nibble verify MODEL\n"
     "nibble verify QUANTIZED --against MODEL\n"
     "nibble verify QUANTIZED --from MODEL\n"
     "nibble verify QUANTIZED --signers allowed_signers --signer alice@example.org",
     0, 1, run_verify},
    {"sign", "MODEL", "sign a checkpoint",
     "Signs all files of a checkpoint, a directory or a single file. With an SSH key it writes "
     "MODEL/model.intoto.json, which lists them with their SHA-256, and "
     "MODEL/model.intoto.json.sig, "
     "the signature, which `ssh-keygen -Y verify -n file` checks, too. With an elliptic-curve key "
     "in PEM it writes MODEL/model.sig, the bundle of model-signing, with both. Runs ssh-keygen or "
     "openssl, which asks for a passphrase itself. `nibble verify --signers` checks either.",
     "nibble sign MODEL --key ~/.ssh/id_ed25519\n"
     "nibble verify MODEL --signers allowed_signers\n"
     "nibble sign MODEL --key ec.pem\n"
     "nibble verify MODEL --signers ec.pub",
     0, 1, run_sign},
    {"bench", "[MODEL]", "measure tokens per second and the share of the machine's limits",
     "Reports medians of prefill and decode speed, or of the steps of a training config, next to "
     "the memory bandwidth and arithmetic rate measured in the same run.",
     "nibble bench MODEL --recipe 8da4w\n"
     "nibble bench MODEL --recipe 8da4w --operations\n"
     "nibble bench --kernels\n"
     "nibble bench --predict --device opencl --prompt-tokens 64\n"
     "nibble bench --train configs/llama3_debugmodel_mxfp8_vocab2256.json --json",
     0, 1, run_bench},
    {"tune", "[MODEL]", "measure which kernels are fastest on this machine",
     "Times, for every layer shape of MODEL and every range of token counts, the kernels that give "
     "the same bits. Stores their order for this machine, next to the results of `nibble devices "
     "--measure`; later plans use it and say so. Without MODEL, shows what is stored.",
     "nibble tune MODEL --recipe 8da4w\n"
     "nibble tune\n"
     "nibble tune --clear",
     0, 1, run_tune},
    {"train", "CONFIG", "train a model in low precision",
     "Trains from a config with torchtitan's sections and names; --keys lists them. Every key is "
     "also an option that overrides the config: --section.key=value, --section.key value, or "
     "--section.key alone for a flag; lists are separated by commas. One line per step goes to "
     "stdout, the ledger's summary to stderr.",
     "nibble train CONFIG\n"
     "nibble train CONFIG --training.steps=50 --model.converters mx\n"
     "nibble train CONFIG --dry-run\n"
     "nibble train --keys",
     0, 1, run_train},
    {"plot", "RUN...", "plot training curves",
     "Plots the loss of one or more runs by step as one SVG on stdout. RUN is a metrics file "
     "(metrics.path of a config) or a directory with a metrics.jsonl.",
     "nibble plot outputs/metrics.jsonl > loss.svg\n"
     "nibble plot bf16 mxfp8 --smooth 20 -o loss.svg\n"
     "nibble plot outputs --value grad_norm -o norm.svg",
     0, 24, run_plot},
    {"devices", "[DEVICE]", "list this machine and the known machines",
     "Shows every device with its facts, their date and source, or one device, given by name or by "
     "the path of its file. The --json output of one device is a file for --device: edit a copy to "
     "add a machine.",
     "nibble devices\n"
     "nibble devices mi210\n"
     "nibble devices opencl --measure\n"
     "nibble devices mi210 --json > my-gpu.json\n"
     "nibble plan MODEL --device my-gpu.json",
     0, 1, run_devices},
    {"kernels", "", "list kernels and their conditions",
     "Shows the kernel table: the kernels of this build, those declared for other devices, and "
     "those of other engines.",
     "nibble kernels", 0, 0, run_kernels},
    {"models", "", "list supported model families",
     "Shows the names of each family in config.json and GGUF, and which of its models are refused.",
     "nibble models", 0, 0, run_models},
    {"recipes", "", "list quantization recipes",
     "Shows the formula, default group size and source of each recipe.", "nibble recipes", 0, 0,
     run_recipes},
    {"formats", "", "list checkpoint formats",
     "Shows what each format holds, and whether Nibble reads and writes it.", "nibble formats", 0,
     0, run_formats},
    {"explain", "[CODE]", "explain ledger codes",
     "Explains every code of settings, reasons, advice and notes, or only CODE. For a kernel "
     "condition it also lists the kernels that have it.",
     "nibble explain\n"
     "nibble explain tie\n"
     "nibble explain n%128",
     0, 1, run_explain},
    {"manual", "[COMMAND]", "print a manual page",
     "Prints nibble(1) or the page of a command, as troff.", "nibble manual plan | man -l -", 0, 1,
     run_manual},
    {"completion", "SHELL", "print shell completions for bash, zsh or fish",
     "Prints the completion script for a shell.", "source <(nibble completion bash)", 1, 1,
     run_completion},
};
const size_t command_count = sizeof commands / sizeof *commands;
_Static_assert(sizeof commands / sizeof *commands <= COMMANDS_MAX, "raise COMMANDS_MAX");

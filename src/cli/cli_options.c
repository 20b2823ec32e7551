/* SPDX-License-Identifier: Apache-2.0
 *
 * The option table, parsing and --help.
 */
#include "cli_options.h"
#include "ascii.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define AT(member) offsetof(settings, member)

/* In help order. */
const option option_table[] = {
    {"model", 'm', KIND_TEXT, AT(model), "MODEL", "path of MODEL, instead of the first argument",
     (ON_MODEL & ~ON_TRAIN) | ON_SIGN},
    {"model", 'm', KIND_TEXT, AT(model), "CONFIG", "path of CONFIG, instead of the first argument",
     ON_TRAIN},
    {"recipe", 'r', KIND_TEXT, AT(recipe), "RECIPE",
     "quantization recipe: a name from `nibble recipes`, a rule file, or another tool's JSON",
     ON_RUN | ON_QUANTIZE},
    {"skip", 0, KIND_LIST, AT(skip), "PATTERN", "keep matching layers as stored; may be repeated",
     ON_RUN | ON_QUANTIZE},
    {"only", 0, KIND_LIST, AT(only), "PATTERN", "quantize only matching layers; may be repeated",
     ON_RUN | ON_QUANTIZE},
    {"device", 0, KIND_TEXT, AT(device), "DEVICE",
     "device to run on: auto, or a name from `nibble devices` that is present", ON_RUN & ~ON_PLAN},
    {"device", 0, KIND_TEXT, AT(device), "DEVICE",
     "device to plan for: auto, a name from `nibble devices`, present or not, or a machine's "
     "FILE.json",
     ON_PLAN},
    {"device", 0, KIND_TEXT, AT(device), "DEVICE",
     "device to compare recipes on: a name from `nibble devices`, present or not, or a machine's "
     "FILE.json",
     ON_ADVISE},
    {"device", 0, KIND_TEXT, AT(device), "DEVICE",
     "device that quantizes the weights: cpu, or one of `nibble devices` that is present; the "
     "codes are the same",
     ON_QUANTIZE},
    {"for", 0, KIND_TEXT, AT(for_device), "DEVICE",
     "also plan the result for this machine, present or not; values as for --device of `nibble "
     "plan`",
     ON_QUANTIZE},
    {"dtype", 0, KIND_TEXT, AT(dtype), "TYPE",
     "activation type: f32, f16 or bf16 (default: the stored type of the weights)",
     ON_RUN | ON_ADVISE},
    {"dtype", 0, KIND_TEXT, AT(dtype), "TYPE",
     "type of weights written as plain floats: f32, f16 or bf16 (default: f32 for quantized "
     "weights)",
     ON_CONVERT},
    {"cache-type", 0, KIND_TEXT, AT(cache_type), "TYPE",
     "KV cache type: f32, f16, bf16, int8 or int4, each also with -hadamard, which rotates heads "
     "first; or KEYS:VALUES, such as int8:int4 (default: the activation type)",
     ON_INFER | ON_ADVISE},
    {"engine", 0, KIND_TEXT, AT(engine), "ENGINE",
     "explain what another engine does with the model: torchao, gpt-fast, torchchat, torchtitan, "
     "executorch, vllm, llama.cpp or modelopt",
     ON_PLAN},
    {"layer", 0, KIND_TEXT, AT(layer), "NAME",
     "show every candidate kernel and every reason for layers of this name or pattern", ON_PLAN},
    {"allow", 0, KIND_LIST, AT(allow), "[PATTERN=]RUNG|CODE",
     "allow a fallback: device, dequant or unquantized; PATTERN limits it to matching layers or to "
     "an operation such as attn. With --strict, CODE accepts settings with that ledger code, such "
     "as lookup",
     ON_RUN | ON_WRITE},
    {"kernel", 0, KIND_LIST, AT(kernel), "[PATTERN=]NAME",
     "require a kernel; exit 4 if it cannot be used", ON_RUN},
    {"place", 0, KIND_LIST, AT(place), "[PATTERN=]DEVICE", "run matching layers on a device",
     ON_RUN},
    {"without", 0, KIND_LIST, AT(without), "KERNEL",
     "exclude kernels of this name or pattern; may be repeated", ON_RUN},
    {"cache-dir", 0, KIND_TEXT, AT(cache_dir), "DIR",
     "cache packed weights and tokenizer tables in DIR instead of packing on every run: the first "
     "run writes them, later runs map them (default: $NIBBLE_CACHE_DIR, else no cache)",
     ON_INFER},
    {"memory", 0, KIND_BYTES, AT(memory), "SIZE", "device memory limit, such as 6GB or 512MiB",
     ON_INFER},
    {"strict", 0, KIND_FLAG, AT(strict), NULL,
     "fail on any substitution, and on any setting that is not applied as asked",
     ON_RUN | ON_WRITE},
    {"bias", 0, KIND_TEXT, AT(bias), "FORM",
     "bias type of quantized layers: float, int8, or int32, which needs static activation scales "
     "and one weight scale per row, as in int8dq-static (default: as stored)",
     ON_INFER | ON_WRITE},
    {"format", 0, KIND_TEXT, AT(format), "FORMAT",
     "output format: torchao, nibble, 8da4w, compressed-tensors or gguf (default: the smallest of "
     "torchao, compressed-tensors and nibble that holds the result; within 1 % of it, the first)",
     ON_QUANTIZE},
    {"format", 0, KIND_TEXT, AT(format), "FORMAT",
     "output format: torchao, nibble, 8da4w, compressed-tensors, gguf, or safetensors for plain "
     "floats",
     ON_CONVERT},
    {"method", 0, KIND_TEXT, AT(method), "METHOD",
     "how codes are chosen where the recipe does not say: rtn (round to nearest, the default), "
     "search (the scale of each group with the least squared error, in which inputs count by their "
     "mean square on the --calibrate text), gptq (search, and each code makes up for the errors of "
     "those before it; needs --calibrate), qronos (gptq, and the codes of each layer also make up "
     "for the errors of the layers before it; takes several times as long), learn (qronos, and "
     "then the rounding of each layer is trained, and the scales, until the logits are closer to "
     "those of the model as stored; takes longest), hqq (the float zero of each group with which "
     "few weights lose much and most little; for schemes like int4wo), "
     "awq (search, after scales of inputs were folded into what makes them, where a layer's output "
     "then loses less; needs --calibrate), smooth (awq with scales that make activations easier "
     "to code, for schemes like 8da4w and int8dq), or rotate (search, after rotations of the "
     "residual stream and of the values of attention were merged into the weights, which spreads "
     "outliers)",
     ON_QUANTIZE},
    {"method", 0, KIND_TEXT, AT(method), "METHODS",
     "also quantize each recipe by METHODS, such as search,gptq, measure the result as rounding is "
     "measured, and remove it: those of `nibble quantize --method`; needs --text",
     ON_ADVISE},
    {"calibrate", 0, KIND_TEXT, AT(calibrate), "FILE",
     "with --method: text file for the methods, better another than --text", ON_ADVISE},
    {"imatrix", 0, KIND_TEXT, AT(imatrix), "FILE",
     "with --method: importance matrix of llama.cpp for the methods search, awq and smooth",
     ON_ADVISE},
    {"scratch", 0, KIND_TEXT, AT(scratch), "DIR",
     "with --method: directory for the quantized models, one at a time (default: $TMPDIR, else "
     "/tmp)",
     ON_ADVISE},
    {"calibrate", 0, KIND_TEXT, AT(calibrate), "FILE",
     "text file for calibrating the activation scales of -static recipes, and methods",
     ON_QUANTIZE},
    {"calibrate", 0, KIND_TEXT, AT(calibrate), "FILE", "text file that the model runs on",
     ON_IMATRIX},
    {"budget", 0, KIND_TEXT, AT(budget), "BITS",
     "mix schemes so that the layers have at most BITS per weight, such as 4.25bpw, and lose the "
     "least; --recipe lists the schemes (default: five of 4 to 8 bits, and keep, which the report "
     "names), --calibrate has the text on which the loss is measured",
     ON_QUANTIZE},
    {"memory", 0, KIND_BYTES, AT(memory), "SIZE",
     "as --budget, but so that weights, KV cache and buffers fit SIZE on the device of --for, such "
     "as 6GB or 512MiB",
     ON_QUANTIZE},
    {"speed", 0, KIND_TEXT, AT(speed), "SPEED",
     "as --budget, but for at least SPEED predicted on the device of --for, such as 30tok/s",
     ON_QUANTIZE},
    {"rules", 0, KIND_TEXT, AT(rules), "FILE",
     "write the recipe that a budget chose to FILE, also with --dry-run (default: OUT/recipe.json)",
     ON_QUANTIZE},
    {"imatrix", 0, KIND_TEXT, AT(imatrix), "FILE",
     "importance matrix of llama.cpp, by which inputs count in --method search, instead of a text",
     ON_QUANTIZE},
    {"force", 'f', KIND_FLAG, AT(force), NULL, "replace OUT, a file or a model directory",
     ON_WRITE},
    {"force", 'f', KIND_FLAG, AT(force), NULL, "replace OUT, a file", ON_IMATRIX},
    {"sign", 0, KIND_TEXT, AT(sign_key), "KEY",
     "then sign all files of OUT with this key, as `nibble sign` does", ON_WRITE},
    {"key", 0, KIND_TEXT, AT(sign_key), "KEY",
     "key to sign with: a private one of OpenSSH, a public one whose private half an ssh-agent "
     "has, or a private one in PEM on an elliptic curve",
     ON_SIGN},
    {"force", 'f', KIND_FLAG, AT(force), NULL, "replace an existing signature", ON_SIGN},
    {"pack", 0, KIND_FLAG, AT(pack), NULL,
     "also write OUT/nibble.pack, the weights packed for this machine's kernels, which a run maps "
     "instead of packing, and OUT/nibble.tokens, the tokenizer's tables",
     ON_WRITE},
    {"dry-run", 0, KIND_FLAG, AT(dry_run), NULL,
     "report sizes and the ledger without writing anything", ON_WRITE},
    {"dry-run", 0, KIND_FLAG, AT(dry_run), NULL,
     "run one layer of each distinct shape forward and backward without training", ON_TRAIN},
    {"export", 0, KIND_TEXT, AT(out), "DIR",
     "write the trained model to DIR in Hugging Face layout; DIR must not exist", ON_TRAIN},
    {"out", 'o', KIND_TEXT, AT(out), "FILE", "output file (default: stdout)", ON_PLOT},
    {"value", 0, KIND_TEXT, AT(value), "NAME",
     "metric to draw: grad_norm, rate, tps, ... (default: loss)", ON_PLOT},
    {"smooth", 0, KIND_COUNT, AT(smooth), "N",
     "draw the mean of the last N points over faint raw points", ON_PLOT},
    {"keys", 0, KIND_FLAG, AT(keys), NULL, "list every key of a training config; takes no CONFIG",
     ON_TRAIN},
    {"against", 0, KIND_TEXT, AT(against), "MODEL",
     "model to compare with, or a FILE of its logits: KL divergence, loss difference and agreement "
     "of the predicted tokens, with 95 % intervals",
     ON_EVAL},
    {"save-logits", 0, KIND_TEXT, AT(save_logits), "FILE",
     "also write the logits of every predicted token to FILE, which must not exist, for --against; "
     "4 bytes per token and entry of the vocabulary",
     ON_EVAL},
    {"logits-format", 0, KIND_TEXT, AT(logits_format), "FORMAT",
     "format of --save-logits: nibble, or llama.cpp as llama-perplexity reads it: 2 bytes, 16 "
     "nats, "
     "and only the second half of whole windows (default: nibble)",
     ON_EVAL},
    {"by-layer", 0, KIND_FLAG, AT(by_layer), NULL,
     "also compare with each layer that --recipe changes quantized alone; needs --against, best a "
     "FILE, and takes one more evaluation per layer",
     ON_EVAL},
    {"against", 0, KIND_TEXT, AT(against), "MODEL",
     "checkpoint to compare with, tensor by tensor and, if both can run, by their predictions",
     ON_VERIFY},
    {"signers", 0, KIND_TEXT, AT(signers), "FILE",
     "check the signature of `nibble sign` too: FILE lists who may sign, with their public keys, "
     "as "
     "allowed_signers of ssh-keygen, or is the public key in PEM that must have signed",
     ON_VERIFY},
    {"signer", 0, KIND_TEXT, AT(signer), "NAME",
     "with --signers: who of them must have signed (default: any)", ON_VERIFY},
    {"from", 0, KIND_TEXT, AT(from), "MODEL",
     "what the checkpoint was made from: make it again by the receipt in its nibble.json, compare "
     "every byte, and name what differs, which takes its size on the disk meanwhile; without a "
     "receipt: say of each tensor how it comes from this model",
     ON_VERIFY},
    {"calibrate", 0, KIND_TEXT, AT(calibrate), "FILE",
     "with --from: where the calibration text is now (default: where the receipt says)", ON_VERIFY},
    {"imatrix", 0, KIND_TEXT, AT(imatrix), "FILE",
     "with --from: where the importance matrix is now (default: where the receipt says)",
     ON_VERIFY},
    {"tokenizer", 0, KIND_TEXT, AT(tokenizer), "PATH",
     "with --from: where the tokenizer is now (default: where the receipt says)", ON_VERIFY},
    {"against", 0, KIND_TEXT, AT(against), "MODEL",
     "float checkpoint timed in alternating rounds with a quantized MODEL (default: the floats "
     "stored in MODEL, if any)",
     ON_BENCH},
    {"prompt", 'p', KIND_TEXT, AT(prompt), "TEXT", "prompt text", ON_GENERATE},
    {"file", 'f', KIND_TEXT, AT(prompt_file), "FILE", "read the prompt from FILE; - reads stdin",
     ON_GENERATE},
    {"max-tokens", 'n', KIND_INT, AT(max_tokens), "N",
     "maximum number of new tokens; 0: until the context is full (default: the model's, else 0)",
     ON_TEXT},
    {"max-tokens", 'n', KIND_COUNT, AT(max_tokens), "N", "new tokens to time (default: 64)",
     ON_BENCH},
    {"temp", 0, KIND_DOUBLE, AT(temperature), "T",
     "sampling temperature; 0: greedy (default: the model's, else 0.8)", ON_TEXT},
    {"top-k", 0, KIND_INT, AT(top_k), "K",
     "sample from the K most likely tokens; 0: all (default: the model's, else 40)", ON_TEXT},
    {"top-p", 0, KIND_POSITIVE, AT(top_p), "P",
     "sample from the most likely tokens up to a total probability of P; 1: all (default: the "
     "model's, else 0.95)",
     ON_TEXT},
    {"min-p", 0, KIND_DOUBLE, AT(min_p), "P",
     "drop tokens less likely than P times the most likely one (default: the model's, else 0.05)",
     ON_TEXT},
    {"repeat-penalty", 0, KIND_POSITIVE, AT(repeat_penalty), "R",
     "penalize tokens that occurred before; 1: off (default: the model's, else 1)", ON_TEXT},
    {"seed", 's', KIND_SEED, AT(seed), "S", "random seed (default: 0)", ON_TEXT},
    {"stop", 0, KIND_LIST, AT(stop), "TEXT", "stop before this text; may be repeated", ON_TEXT},
    {"ignore-eos", 0, KIND_FLAG, AT(ignore_eos), NULL, "continue after an end-of-text token",
     ON_TEXT},
    {"lookup", 0, KIND_INT, AT(lookup), "N",
     "prompt lookup: draft up to N tokens from earlier repetitions and verify them in one step; "
     "faster on repetitive text, output unchanged; 0: off (default: 15 on the CPU, off on other "
     "devices)",
     ON_TEXT | ON_SERVE | ON_PLAN},
    {"snapshots", 0, KIND_INT, AT(snapshots), "N",
     "of models with layers that keep a state instead of keys: states kept per sequence at earlier "
     "positions, from which a prompt that begins like an earlier one continues; 0: none "
     "(default: 4)",
     ON_CHAT | ON_SERVE | ON_PLAN},
    {"draft", 0, KIND_TEXT, AT(draft), "MODEL",
     "a smaller model with the same vocabulary that drafts tokens for this one to verify; output "
     "unchanged; on the CPU",
     ON_TEXT | ON_SERVE | ON_PLAN},
    {"draft-head", 0, KIND_FLAG, AT(draft_head), NULL,
     "draft with the head for it that the checkpoint stores beside the model's layers (multi-token "
     "prediction); output unchanged; on the CPU. eval: how often it is right",
     ON_TEXT | ON_SERVE | ON_PLAN | ON_EVAL},
    {"draft-recipe", 0, KIND_TEXT, AT(draft_recipe), "RECIPE",
     "quantize the draft model as it is loaded (default: as stored; a draft head: as --recipe)",
     ON_TEXT | ON_SERVE | ON_PLAN | ON_EVAL},
    {"schema", 0, KIND_TEXT, AT(schema), "FILE",
     "constrain the output to this JSON schema; - reads stdin", ON_GENERATE},
    {"logprobs", 0, KIND_COUNT, AT(logprobs), "N",
     "with --json: log probability of each token and of the N most likely tokens at its position; "
     "at most 20",
     ON_GENERATE},
    {"system", 0, KIND_TEXT, AT(prompt), "TEXT", "system prompt", ON_CHAT},
    {"chat-template", 0, KIND_TEXT, AT(chat_template), "FILE",
     "Jinja chat template, instead of the model's", ON_TALK},
    {"host", 0, KIND_TEXT, AT(host), "ADDRESS",
     "listen address (default: 127.0.0.1); others need --api-key-file or --insecure", ON_SERVE},
    {"port", 0, KIND_INT, AT(port), "N", "listen port; 0: any free port (default: 8080)", ON_SERVE},
    {"parallel", 0, KIND_COUNT, AT(parallel), "N",
     "answers generated at the same time, each with its own context (default: 8)", ON_SERVE},
    {"queue", 0, KIND_INT, AT(queue), "N",
     "maximum number of waiting requests; more are refused with 429 (default: 64)", ON_SERVE},
    {"api-key-file", 0, KIND_TEXT, AT(key_file), "FILE",
     "file with one API key per line, not readable by others; every request except for /health and "
     "the page needs one of them",
     ON_SERVE},
    {"insecure", 0, KIND_FLAG, AT(insecure), NULL,
     "allow a --host that other machines can reach without an API key", ON_SERVE},
    {"share-prefixes", 0, KIND_FLAG, AT(share_prefixes), NULL,
     "share cached prompt prefixes between API keys; response times and cached_tokens can then "
     "reveal one client's prompts to another",
     ON_SERVE},
    {"allow-origin", 0, KIND_LIST, AT(origins), "ORIGIN",
     "allow requests from web pages of this origin, such as https://example.org; may be repeated",
     ON_SERVE},
    {"state-cache", 0, KIND_TEXT, AT(state_cache), "DIR:SIZE",
     "keep the states of prompts in a file of this size in DIR; a server that is started again, "
     "with the same model and options, continues from them (default: in memory only)",
     ON_SERVE},
    {"alias", 0, KIND_TEXT, AT(name), "NAME",
     "model name in requests and answers (default: the last part of the model path)", ON_SERVE},
    {"time-limit", 0, KIND_DOUBLE, AT(time_limit), "SECONDS",
     "time limit per request from arrival to end; 0: none (default: 0)", ON_SERVE},
    {"sandbox", 0, KIND_TEXT, AT(sandbox), "MODE",
     "once all files are open, forbid this process to open files, programs and connections: auto "
     "(as far as the system can), on (exit 4 if it cannot) or off (default: auto)",
     ON_SERVE | ON_VERIFY},
    {"body-limit", 0, KIND_BYTES, AT(body_limit), "SIZE",
     "maximum size of a request body (default: 8MB)", ON_SERVE},
    {"connections", 0, KIND_COUNT, AT(connections), "N",
     "maximum number of open connections (default: 512)", ON_SERVE},
    {"text", 0, KIND_TEXT, AT(text), "FILE",
     "text file, or JSON lines with a `text` key (.jsonl, .json)", ON_EVAL | ON_ADVISE},
    {"window", 0, KIND_COUNT, AT(window), "N",
     "tokens per window (default: the smaller of the context and 4096)", ON_EVAL | ON_ADVISE},
    {"memory", 0, KIND_BYTES, AT(memory), "SIZE",
     "memory limit for weights and KV cache, such as 6GB, 500MB or 8GiB (default: all memory of "
     "the device)",
     ON_ADVISE},
    {"loss-budget", 0, KIND_DOUBLE, AT(loss_budget), "NATS",
     "loss per token that rounding may add (default: 0.02, a perplexity 2 % higher)", ON_ADVISE},
    {"speed", 0, KIND_TEXT, AT(speed), "SPEED",
     "speed to rank by: decode or prefill (default: decode)", ON_ADVISE},
    {"svg", 0, KIND_TEXT, AT(svg), "FILE", "also draw the Pareto frontier to FILE", ON_ADVISE},
    {"dry-run", 0, KIND_FLAG, AT(dry_run), NULL, "predict without running anything", ON_ADVISE},
    {"cache", 0, KIND_FLAG, AT(caches), NULL,
     "compare KV cache types on --text instead of recipes: those named, or all with fewer bits "
     "than "
     "the activations; plans of the model print the result from then on",
     ON_ADVISE},
    {"prompt-tokens", 0, KIND_COUNT, AT(prompt_tokens), "N", "prompt length to time (default: 512)",
     ON_BENCH},
    {"repeats", 0, KIND_COUNT, AT(repeats), "N",
     "number of rounds; the median is reported (default: 5)", ON_BENCH},
    {"batch", 0, KIND_COUNT, AT(batch), "N",
     "with MODEL: also decode N sequences in one batch, each at its own position", ON_BENCH},
    {"sweep", 0, KIND_TEXT, AT(sweep), "N,N,...",
     "with MODEL: also time decode after N positions, alternating with an empty cache", ON_BENCH},
    {"alone", 0, KIND_FLAG, AT(alone), NULL,
     "with MODEL: do not also time the float weights stored in it", ON_BENCH},
    {"clear", 0, KIND_FLAG, AT(clear), NULL, "delete the tuning results of this machine", ON_TUNE},
    {"peer", 0, KIND_TEXT, AT(peer), "PROGRAM",
     "llama-bench of llama.cpp or ik_llama.cpp, timed in alternating rounds with MODEL", ON_BENCH},
    {"peer-model", 0, KIND_TEXT, AT(peer_model), "FILE.gguf", "model that the peer runs", ON_BENCH},
    {"kernels", 0, KIND_FLAG, AT(kernels), NULL,
     "time every kernel that runs on this machine; takes no MODEL", ON_BENCH},
    {"predict", 0, KIND_FLAG, AT(predict), NULL,
     "time the layers of MODEL (default: an 8B model) next to the plan's prediction", ON_BENCH},
    {"operations", 0, KIND_FLAG, AT(operations), NULL,
     "with MODEL: break down the time of prefill and decode by operation", ON_BENCH},
    {"measure", 0, KIND_FLAG, AT(measure), NULL,
     "first time kernels on DEVICE (default: all devices present); later plans predict from the "
     "results",
     ON_DEVICES},
    {"train", 0, KIND_FLAG, AT(train), NULL,
     "time training steps; MODEL is a training config, --repeats the number of steps", ON_BENCH},
    {"context", 'c', KIND_COUNT, AT(context), "N",
     "context length in tokens (default: the smaller of the model's and 4096)",
     ON_INFER | ON_ADVISE},
    {"tokenizer", 0, KIND_TEXT, AT(tokenizer), "PATH",
     "tokenizer.json, its directory or a GGUF (default: in the model or next to it)",
     ON_RUN | ON_WRITE | ON_IMATRIX | ON_ADVISE},
    {"threads", 't', KIND_COUNT, AT(threads), "N",
     "number of threads (default: as many as this process may run on)", ON_ENGINE},
    {"ranks", 0, KIND_COUNT, AT(ranks), "N",
     "minimum number of processes, started with `mpirun -n N` (default: as many as were started)",
     ON_TRAIN},
    {"isa", 0, KIND_TEXT, AT(isa), "LEVEL",
     "highest instruction set: ref, avx2, avx512, avx512vnni, avx512bf16, amx; on Arm neon, "
     "dotprod, i8mm",
     ON_ENGINE},
    {"json", 'j', KIND_FLAG, AT(json), NULL, "JSON output (\"schema\": 1)", ON_ALL & ~ON_TALK},
    {"markdown", 0, KIND_FLAG, AT(markdown), NULL, "Markdown output, as in the documentation",
     ON_TABLES | ON_TRAIN | ON_BENCH | ON_TUNE | ON_MANUAL},
    {"quiet", 'q', KIND_FLAG, AT(quiet), NULL, "no progress, statistics or summary on stderr",
     ON_ALL | ON_PLOT},
    {"no-color", 0, KIND_FLAG, AT(no_color), NULL, "no colours", ON_ALL},
    {"help", 'h', KIND_FLAG, AT(help), NULL, "show this help",
     ON_ALL | ON_PLOT | ON_MANUAL | ON_COMPLETION},
};
const size_t option_count = sizeof option_table / sizeof *option_table;

const char exit_status_text[] =
    "0 success, 1 other error, 2 usage error, 3 bad input, 4 cannot be done as asked, 5 out of "
    "memory or over a limit, 6 input/output error, 8 check failed, 130 interrupted.";

unsigned command_bit(const command *c) { return 1u << (c - commands); }

static bool applies(const option *o, const command *c) { return (o->on & command_bit(c)) != 0; }

/* ---- suggestions ---- */

/* Levenshtein distance; limit + 1 if a name has 64 characters or more. */
static size_t distance(const char *a, const char *b, size_t limit)
{
    const size_t n = strlen(a), m = strlen(b);
    size_t row[64];
    if (n >= 64 || m >= 64)
        return limit + 1;
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            const size_t change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            size_t best = row[j] + 1 < row[j - 1] + 1 ? row[j] + 1 : row[j - 1] + 1;
            row[j] = best < change ? best : change;
        }
    }
    return row[m];
}

/* Whether one name is a prefix of the other and long enough to be meant. */
static bool is_prefix(const char *a, const char *b)
{
    enum { LEAST = 4 };
    const size_t n = strlen(a), m = strlen(b), size = n < m ? n : m;
    return size >= LEAST && strncmp(a, b, size) == 0;
}

const char *did_you_mean(char out[128], const char *wrong, const char *prefix,
                         const char *const *names, size_t count)
{
    const size_t limit = strlen(wrong) / 3 + 1;
    size_t best = limit + 1;
    out[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        size_t d = distance(wrong, names[i], limit);
        if (d > limit && is_prefix(wrong, names[i]))
            d = limit; /* --temperature for --temp */
        if (d < best) {
            best = d;
            snprintf(out, 128, "; did you mean %s%s?", prefix, names[i]);
        }
    }
    return out;
}

/* ---- parsing ---- */

static bool append(list *l, const char *item)
{
    if (l->count == l->capacity) {
        const size_t capacity = l->capacity ? 2 * l->capacity : 8;
        const char **items = realloc((void *)l->items, capacity * sizeof *items);
        if (!items)
            return false;
        l->items = items;
        l->capacity = capacity;
    }
    l->items[l->count++] = item;
    return true;
}

bool parse_number(double *out, const char *value, char **end)
{
    const char *x = strpbrk(value, "xX");
    *out = strtod(value, end);
    return *end != value && (x == NULL || x >= *end);
}

/* "6GB", "1.5GiB", "100000": more than 0, and less than 2^63 bytes. */
bool parse_bytes(unsigned long long *out, const char *value)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1},      {"B", 1},        {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
                 {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    char *end;
    double number;
    if (*value < '0' || *value > '9' || !parse_number(&number, value, &end) || !(number > 0))
        return false;
    end += *end == ' ';
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        const double bytes = number * units[i].bytes;
        if (same_ignoring_case(end, units[i].name) && bytes >= 1 && bytes < 0x1p63) {
            *out = (unsigned long long)bytes;
            return true;
        }
    }
    return false;
}

static int set_value(settings *s, const option *o, const char *value)
{
    char *at = (char *)s + o->offset;
    char *end;
    errno = 0;
    switch (o->kind) {
    case KIND_FLAG: *(bool *)at = true; return 0;
    case KIND_TEXT: memcpy(at, &value, sizeof value); return 0;
    case KIND_LIST:
        return append((list *)(void *)at, value)
                   ? 0
                   : fail(&(nib_err){NIB_NO_MEMORY, "out of memory while reading options"});
    case KIND_COUNT:
    case KIND_INT: {
        const long long n = strtoll(value, &end, 10), least = o->kind == KIND_COUNT;
        if (errno || end == value || *end || n < least)
            return fail_usage("--%s: \"%s\" is not a whole number of %lld or more", o->name, value,
                              least);
        memcpy(at, &n, sizeof n);
        return 0;
    }
    case KIND_SEED: {
        const unsigned long long n = strtoull(value, &end, 10);
        if (errno || *value < '0' || *value > '9' || *end)
            return fail_usage("--%s: \"%s\" is not a whole number from 0 to 2^64 - 1", o->name,
                              value);
        memcpy(at, &n, sizeof n);
        return 0;
    }
    case KIND_BYTES: {
        unsigned long long bytes;
        if (!parse_bytes(&bytes, value))
            return fail_usage("--%s: \"%s\" is not a size, such as 6GB, 500MB or 8GiB", o->name,
                              value);
        memcpy(at, &bytes, sizeof bytes);
        return 0;
    }
    case KIND_DOUBLE:
    case KIND_POSITIVE: {
        double d;
        const bool zero = o->kind == KIND_DOUBLE;
        if (!parse_number(&d, value, &end) || errno || *end || !isfinite(d) || d < 0 ||
            (d == 0 && !zero))
            return fail_usage("--%s: \"%s\" is not a number %s", o->name, value,
                              zero ? "of 0 or more" : "above 0");
        memcpy(at, &d, sizeof d);
        return 0;
    }
    }
    return 0;
}

/* Finds "--name", "--name=value" or "-x"; *value points behind '=', or is NULL. */
static const option *find_option(const command *c, const char *word, const char **value)
{
    *value = NULL;
    const bool is_long = word[1] == '-';
    const char *name = word + 1 + is_long, *equals = is_long ? strchr(name, '=') : NULL;
    const size_t size = equals ? (size_t)(equals - name) : strlen(name);
    for (size_t i = 0; i < option_count; i++) {
        const option *o = &option_table[i];
        const bool same = is_long ? strlen(o->name) == size && memcmp(o->name, name, size) == 0
                                  : o->letter && size == 1 && o->letter == name[0];
        if (same && applies(o, c)) {
            *value = equals ? equals + 1 : NULL;
            return o;
        }
    }
    return NULL;
}

/* Explains a word that is not an option of this command: an option of another command, a letter
 * with its value attached, or a misspelling. */
static int fail_unknown_option(const command *c, const char *word)
{
    const char *names[sizeof option_table / sizeof *option_table], *value;
    char near[128], wrong[64];
    size_t count = 0;
    const bool is_long = word[1] == '-';
    const char *name = word + 1 + is_long;
    snprintf(wrong, sizeof wrong, "%.*s", (int)strcspn(name, "="), name);
    for (size_t i = 0; i < option_count; i++) {
        const option *o = &option_table[i];
        if (applies(o, c))
            names[count++] = o->name;
        else if (is_long ? strcmp(o->name, wrong) == 0 : o->letter == wrong[0] && !wrong[1])
            return fail_usage(
                "%s%s is not an option of `nibble %s`; `nibble %s --help` lists its options",
                is_long ? "--" : "-", wrong, c->name, c->name);
    }
    const char letter[] = {'-', wrong[0], '\0'};
    if (strspn(wrong + 1, "0123456789") > 0 && find_option(c, letter, &value))
        return fail_usage("unknown option %s; separate the value: %s %s", word, letter, wrong + 1);
    return fail_usage("unknown option %s%s", word, did_you_mean(near, wrong, "--", names, count));
}

/* A key of a training config: "--section.key=value", "--section.key value" or a bare
 * "--section.key". The next word is the value unless it looks like an option. */
static bool is_override(const command *c, const char *word)
{
    const size_t size = strcspn(word, "=");
    return (command_bit(c) & ON_CONFIG) != 0 && strncmp(word, "--", 2) == 0 &&
           memchr(word, '.', size) != NULL;
}

static bool looks_like_value(const char *word)
{
    const char *letters = word + strspn(word, "-");
    return letters == word || !((*letters >= 'a' && *letters <= 'z') || *letters == '\0');
}

/* *used: number of words consumed. */
static int add_override(settings *s, const char *const *words, int count, int *used)
{
    const char *name = words[0] + 2;
    const bool apart = !strchr(name, '=') && count > 1 && looks_like_value(words[1]);
    const size_t size = strlen(name) + (apart ? strlen(words[1]) + 1 : 0) + 1;
    char *override = malloc(size);
    *used = apart ? 2 : 1;
    if (override)
        snprintf(override, size, "%s%s%s", name, apart ? "=" : "", apart ? words[1] : "");
    if (override && append(&s->overrides, override))
        return 0;
    free(override);
    return fail(&(nib_err){NIB_NO_MEMORY, "out of memory while reading options"});
}

int parse_options(settings *out, const command *c, int argc, char **argv)
{
    *out = (settings){.temperature = -1,
                      .top_p = -1,
                      .min_p = -1,
                      .repeat_penalty = -1,
                      .top_k = -1,
                      .max_tokens = -1,
                      .lookup = -1,
                      .snapshots = -1,
                      .loss_budget = -1,
                      .port = -1,
                      .parallel = -1,
                      .queue = -1,
                      .connections = -1};
    const char *given[sizeof option_table / sizeof *option_table] = {NULL}; /* values seen so far */
    bool only_arguments = false;
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i], *value;
        if (only_arguments || word[0] != '-' || word[1] == '\0') {
            if (!append(&out->arguments, word))
                return fail(&(nib_err){NIB_NO_MEMORY, "out of memory while reading arguments"});
            continue;
        }
        if (strcmp(word, "--") == 0) {
            only_arguments = true;
            continue;
        }
        if (is_override(c, word)) {
            int used;
            const int status = add_override(out, (const char *const *)argv + i, argc - i, &used);
            if (status)
                return status;
            i += used - 1;
            continue;
        }
        const option *o = find_option(c, word, &value);
        if (!o)
            return fail_unknown_option(c, word);
        if (o->kind == KIND_FLAG && value)
            return fail_usage("--%s takes no value", o->name);
        if (o->kind != KIND_FLAG && !value) {
            if (i + 1 == argc)
                return fail_usage("%s needs a value: %s", word, o->value);
            value = argv[++i];
        }
        const char **before = &given[o - option_table];
        if (o->kind != KIND_LIST && *before && strcmp(*before, value) != 0)
            return fail_usage("--%s is given twice, as \"%s\" and as \"%s\"", o->name, *before,
                              value);
        *before = value;
        const int status = set_value(out, o, value);
        if (status)
            return status;
    }
    if (out->json && out->markdown)
        return fail_usage("--json and --markdown are two forms of one report; choose one");
    return 0;
}

const char *first_given(const option_given *options, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (options[i].is_given)
            return options[i].name;
    return NULL;
}

const char *first_model_option(const settings *s)
{
    const option_given options[] = {{"recipe", s->recipe != NULL},
                                    {"skip", s->skip.count != 0},
                                    {"only", s->only.count != 0},
                                    {"dtype", s->dtype != NULL},
                                    {"cache-type", s->cache_type != NULL},
                                    {"cache-dir", s->cache_dir != NULL},
                                    {"allow", s->allow.count != 0},
                                    {"kernel", s->kernel.count != 0},
                                    {"place", s->place.count != 0},
                                    {"without", s->without.count != 0},
                                    {"memory", s->memory != 0},
                                    {"strict", s->strict},
                                    {"bias", s->bias != NULL},
                                    {"context", s->context != 0},
                                    {"tokenizer", s->tokenizer != NULL}};
    return first_given(options, sizeof options / sizeof *options);
}

void free_settings(settings *s)
{
    list *const lists[] = {&s->arguments, &s->skip,    &s->only, &s->allow,   &s->kernel,
                           &s->place,     &s->without, &s->stop, &s->origins, &s->overrides};
    for (size_t i = 0; i < s->overrides.count; i++)
        free((void *)s->overrides.items[i]);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        free((void *)lists[i]->items);
}

/* ---- help ---- */

static void print_wrapped(FILE *to, const char *text, int column)
{
    const int width = help_width(to);
    int at = column;
    while (*text) {
        const int size = (int)strcspn(text, " ");
        if (at > column && at + 1 + size > width) {
            fprintf(to, "\n%*s", column, "");
            at = column;
        }
        at += fprintf(to, "%s%.*s", at > column ? " " : "", size, text);
        text += size;
        text += strspn(text, " ");
    }
    fputc('\n', to);
}

static void print_option(FILE *to, const option *o)
{
    enum { COLUMN = 30 };
    char left[64];
    const int size =
        o->letter ? snprintf(left, sizeof left, "  -%c, --%s %s", o->letter, o->name,
                             o->value ? o->value : "")
                  : snprintf(left, sizeof left, "      --%s %s", o->name, o->value ? o->value : "");
    if (size > COLUMN - 2)
        fprintf(to, "%s\n%*s", left, COLUMN, "");
    else
        fprintf(to, "%-*s", COLUMN, left);
    print_wrapped(to, o->help, COLUMN);
}

void print_help(FILE *to, const command *c)
{
    if (c) {
        fprintf(to, "usage: nibble %s %s%s[options]\n\n", c->name, c->arguments,
                *c->arguments ? " " : "");
        print_wrapped(to, c->description, 0);
        fputs("\n", to);
        for (size_t i = 0; i < option_count; i++)
            if (applies(&option_table[i], c))
                print_option(to, &option_table[i]);
        fputs("\nexamples:\n", to);
        for (const char *at = c->examples; *at; at += *at == '\n') {
            const int size = (int)strcspn(at, "\n");
            fprintf(to, "  %.*s\n", size, at);
            at += size;
        }
        return;
    }
    fputs("Nibble: quantize, check, run, serve and train low-bit language models.\n\nusage: nibble "
          "COMMAND "
          "[arguments] [options]\n\n",
          to);
    for (size_t i = 0; i < command_count; i++)
        fprintf(to, "  %-12s%s\n", commands[i].name, commands[i].summary);
    fputs("\n`nibble COMMAND --help` lists a command's options; `nibble --version` prints the "
          "version.\n"
          "\nexit status:\n  ",
          to);
    print_wrapped(to, exit_status_text, 2);
}

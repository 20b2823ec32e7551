/* SPDX-License-Identifier: Apache-2.0
 *
 * Every code that a ledger line can carry, and its meaning. Codes are stable: scripts read them,
 * and --allow takes those of settings. Kernel conditions make their own codes (fact.h).
 */
#include "ledger.h"

#include <string.h>

const char *const nib__code_kind_names[] = {"setting", "reason", "advice", "note", NULL};

/* By kind, then by code. */
const nib_ledger_code nib__ledger_codes[] = {
    {NIB_LEDGER_SETTING, "activations",
     "activations are quantized in a way that differs from the config or the checkpoint"},
    {NIB_LEDGER_SETTING, "bias",
     "biases are stored in another form than asked, or no layer has a quantized bias"},
    {NIB_LEDGER_SETTING, "cache", "packed weights cannot be kept in the cache directory"},
    {NIB_LEDGER_SETTING, "cache-type", "the KV cache has another type than the config asks for"},
    {NIB_LEDGER_SETTING, "config-code", "config.json names Python code, which never runs"},
    {NIB_LEDGER_SETTING, "config-key",
     "a key of config.json that Nibble does not read, or that other keys or the stored tensors "
     "overrule"},
    {NIB_LEDGER_SETTING, "context",
     "the model states no maximum context length, or two different ones, or the context is shorter "
     "than asked"},
    {NIB_LEDGER_SETTING, "dropped", "a stored tensor that is not written to the output"},
    {NIB_LEDGER_SETTING, "dtype",
     "activations or weights have another float type than the config asks for"},
    {NIB_LEDGER_SETTING, "executor", "the device differs from the executor of the recipe"},
    {NIB_LEDGER_SETTING, "extra-tensor",
     "a stored tensor, or a file of tensors, that the model does not use"},
    {NIB_LEDGER_SETTING, "filter",
     "a filter or rule that matches no layer, or that other rules always overrule"},
    {NIB_LEDGER_SETTING, "format", "the output has another format than the default"},
    {NIB_LEDGER_SETTING, "generation-key",
     "a key of generation_config.json, or a sampling key of a GGUF file, that Nibble does not "
     "read"},
    {NIB_LEDGER_SETTING, "isa",
     "an instruction set limit (`--isa`) for a machine that is only planned for"},
    {NIB_LEDGER_SETTING, "lookup", "prompt lookup was asked for but drafts no tokens"},
    {NIB_LEDGER_SETTING, "quantization-config",
     "a part of quantization_config in config.json is not followed"},
    {NIB_LEDGER_SETTING, "recipe",
     "a key of a recipe that has no effect, or that means something else in Nibble"},
    {NIB_LEDGER_SETTING, "rope",
     "RoPE scaling is described incompletely, twice, or with numbers that its type does not use"},
    {NIB_LEDGER_SETTING, "sampling", "a sampling option that another option makes ineffective"},
    {NIB_LEDGER_SETTING, "scale-type",
     "scales are stored in another type than the config asks for"},
    {NIB_LEDGER_SETTING, "template",
     "the chat template leaves out a message, a name, a tool call or a variable"},
    {NIB_LEDGER_SETTING, "threads",
     "more threads than processors, or a thread count for a machine that is only planned for"},
    {NIB_LEDGER_SETTING, "tie",
     "config.json and the stored tensors disagree on whether the output head is tied to the "
     "embedding"},
    {NIB_LEDGER_SETTING, "tokenizer",
     "a part of the tokenizer's files is not followed, or is lost in the output format"},
    {NIB_LEDGER_SETTING, "training-key",
     "a key of a training config that has no effect in this run"},
    {NIB_LEDGER_SETTING, "untied", "the output stores a shared tensor twice"},
    {NIB_LEDGER_SETTING, "zero-point", "zero points are of another kind than the config asks for"},
    {NIB_LEDGER_REASON, "alone", "another product of the same layer has no kernel"},
    {NIB_LEDGER_REASON, "apart",
     "the kernel would run here, but cannot be combined with the layer's other kernels"},
    {NIB_LEDGER_REASON, "bound", "`--kernel` selects another kernel"},
    {NIB_LEDGER_REASON, "built=yes", "the kernel is not compiled into this program"},
    {NIB_LEDGER_REASON, "declared", "the kernel is listed, but not compiled into this program"},
    {NIB_LEDGER_REASON, "layout",
     "the recipe names a packed layout of another engine; weights are packed for the kernel that "
     "runs"},
    {NIB_LEDGER_REASON, "memory", "the device has no memory left for the layer"},
    {NIB_LEDGER_REASON, "no-row", "no kernel exists for this operation, code and device"},
    {NIB_LEDGER_REASON, "normed",
     "another kernel computes the norm and the same codes in one pass"},
    {NIB_LEDGER_REASON, "numbers",
     "the kernel adds in another order than the layer's other kernels, so results would differ"},
    {NIB_LEDGER_REASON, "offered=yes",
     "`--without` leaves the kernel out, or the driver refused it"},
    {NIB_LEDGER_REASON, "price", "what a substitution costs"},
    {NIB_LEDGER_REASON, "rank", "the kernel would run, but another one comes first"},
    {NIB_LEDGER_REASON, "rate",
     "the kernel would run, but its arithmetic unit is slower, as measured"},
    {NIB_LEDGER_REASON, "refused", "the driver failed to compile the kernel"},
    {NIB_LEDGER_REASON, "stored", "weights stored in one scheme are never requantized to another"},
    {NIB_LEDGER_REASON, "tuned", "the kernel would run, but is slower, as `nibble tune` measured"},
    {NIB_LEDGER_ADVICE, "activations",
     "`--recipe weight-only`, or omitting it: the same codes with other activations"},
    {NIB_LEDGER_ADVICE, "allow",
     "`--allow RUNG` or `--allow 'PATTERN=RUNG'`; has no option under `--strict`, which allows "
     "nothing"},
    {NIB_LEDGER_ADVICE, "dtype", "`--dtype TYPE`: an activation type that has a kernel"},
    {NIB_LEDGER_ADVICE, "kernel", "omit `--kernel`: the kernel it names cannot run"},
    {NIB_LEDGER_ADVICE, "recipe", "`--recipe NAME`: a scheme that runs as asked, or faster"},
    {NIB_LEDGER_ADVICE, "slower", "no option: the layer runs as asked, but bf16 would be faster"},
    {NIB_LEDGER_NOTE, "act-order",
     "columns are stored in the order of their groups (GPTQ's act-order), and what that costs"},
    {NIB_LEDGER_NOTE, "activations",
     "layers use int8 activations in blocks, as the tools of their format do"},
    {NIB_LEDGER_NOTE, "alias", "shared tensors stay shared in the output"},
    {NIB_LEDGER_NOTE, "auto",
     "the device that `--device auto` chose, and the predictions for the others"},
    {NIB_LEDGER_NOTE, "bias", "how many biases are float, int8 and int32"},
    {NIB_LEDGER_NOTE, "cautious",
     "the device is faster than predicted, because it was not measured"},
    {NIB_LEDGER_NOTE, "checkpoint", "something unusual about the checkpoint's files"},
    {NIB_LEDGER_NOTE, "converted", "how many weights a conversion kept lossless, exact or lossy"},
    {NIB_LEDGER_NOTE, "declared", "the plan is for a machine that this process does not run on"},
    {NIB_LEDGER_NOTE, "device", "where the weights were quantized"},
    {NIB_LEDGER_NOTE, "dot4", "whether the device's 4-bit dot product is used"},
    {NIB_LEDGER_NOTE, "drawn", "where tokens are sampled, and what is copied for that"},
    {NIB_LEDGER_NOTE, "experts",
     "how many experts a token chooses, and the weights that steps read"},
    {NIB_LEDGER_NOTE, "files", "files beside the weights that are not copied to the output"},
    {NIB_LEDGER_NOTE, "for", "how the result will run on the machine of `--for`"},
    {NIB_LEDGER_NOTE, "host", "what stays on the host while a device trains"},
    {NIB_LEDGER_NOTE, "lookup", "prompt lookup drafts several tokens per step"},
    {NIB_LEDGER_NOTE, "memory", "bytes of weights, KV cache and buffers"},
    {NIB_LEDGER_NOTE, "moves", "copies between a device and its host"},
    {NIB_LEDGER_NOTE, "packed",
     "the cache of packed weights and tokenizer tables beside the model"},
    {NIB_LEDGER_NOTE, "packing", "how many weights must be packed before the first token"},
    {NIB_LEDGER_NOTE, "predicted", "predicted times"},
    {NIB_LEDGER_NOTE, "qat", "the scheme that quantization-aware training trains for"},
    {NIB_LEDGER_NOTE, "sandbox",
     "what the process can no longer do once its files are open, and what this system lacks for "
     "that"},
    {NIB_LEDGER_NOTE, "slower-than-bf16",
     "layers that bf16 would run faster, for one token or for a prompt"},
    {NIB_LEDGER_NOTE, "too-large", "what does not fit into memory, and what would"},
    {NIB_LEDGER_NOTE, "tuned", "`nibble tune` measured the order of kernels on this machine"},
    {NIB_LEDGER_NOTE, "widened",
     "codes are widened, because the arithmetic unit cannot multiply them as stored"},
    {NIB_LEDGER_KIND_COUNT, NULL, NULL},
};

bool nib__setting_code_is_known(const char *code)
{
    for (const nib_ledger_code *c = nib__ledger_codes; c->kind == NIB_LEDGER_SETTING; c++)
        if (strcmp(c->code, code) == 0)
            return true;
    return false;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The pre-tokenizers that a GGUF names in tokenizer.ggml.pre: a table from name to the patterns and
 * flags of the models' own tokenizer.json files.
 *
 * Names, patterns and flags come from llama.cpp (src/llama-vocab.cpp of 2026-11, where each name
 * stands for the tokenizer of a model). llama.cpp quotes the patterns of tekken and gpt-4o but runs
 * approximations, because its regular expressions do not know letter case; this table has the
 * quoted patterns. It also has the NFC that llama.cpp leaves out and that the tokenizer.json files
 * of Qwen2, GPT-NeoX (used by MPT and OLMo) and Command R ask for.
 */
#include "tokenizer_parts.h"

/* The pattern of GPT-2's ByteLevel. tokenizer.json files do not spell it out, so it is part of the
 * format. */
const char nib__gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

#define GPT2 nib__gpt2_pattern
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SYMBOLS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define ASCII_SYMBOL "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"
/* Chinese, Japanese and Korean, as in DeepSeek's files. */
#define EAST_ASIAN "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define HAN_AND_KANA "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
/* A word split by letter case; `end` may add a contraction. */
#define CASED(end)                                                                                 \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" end "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER     \
    "*" end
#define CASED_REST " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES

static const char *const GPT_2[] = {GPT2, NULL};
static const char *const DIGIT_GPT_2[] = {"\\p{N}", GPT2, NULL};
static const char *const LLAMA_3[] = {
    CONTRACTIONS "|" WORD "|\\p{N}{1,3}|" SYMBOLS "|" SPACES,
    NULL,
};
static const char *const QWEN_2[] = {
    CONTRACTIONS "|" WORD "|\\p{N}|" SYMBOLS "|" SPACES,
    NULL,
};
static const char *const QWEN_35[] = {
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
                 " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES,
    NULL,
};
static const char *const JAIS_2[] = {
    CONTRACTIONS "|" WORD "|\\p{N}{1,3}|" SYMBOLS
                 "|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|"
                 "\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}",
    NULL,
};
static const char *const MINICPM_5[] = {
    "\\p{N}{1,3}",
    CONTRACTIONS "|" WORD "|\\p{N}+|" SYMBOLS "|" SPACES,
    NULL,
};
static const char *const TEKKEN[] = {CASED("") "|\\p{N}|" CASED_REST, NULL};
static const char *const GPT_4O[] = {CASED(CONTRACTIONS "?") "|\\p{N}{1,3}|" CASED_REST, NULL};
static const char *const DEEPSEEK_V3[] = {
    "\\p{N}{1,3}",
    HAN_AND_KANA,
    ASCII_SYMBOL "[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
                 " ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES,
    NULL,
};
static const char *const DEEPSEEK_CODER[] = {
    "[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", EAST_ASIAN, "\\p{N}", NULL,
};
static const char *const DEEPSEEK_LLM[] = {
    "[\\r\\n]",
    /* cased letters of Unicode 10, as the file lists them */
    "\\s?[A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}"
    "\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}"
    "\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}"
    "\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}"
    "\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}"
    "\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}"
    "\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}"
    "\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}"
    "\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}"
    "\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}"
    "\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}"
    "\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}"
    "\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}"
    "\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}"
    "\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}"
    "\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}]+",
    "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",
    "\\s+$",
    EAST_ASIAN,
    "\\p{N}+",
    NULL,
};
static const char *const FALCON[] = {
    "[\\p{P}\\$\\+<=>\\^~\\|`]+",
    GPT2,
    "[0-9][0-9][0-9]",
    NULL,
};
static const char *const DEFAULT[] = {
    "[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]", NULL,
};
/* Words end at spaces, full stops and commas of several scripts. */
#define BLOOM_WORD " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"
static const char *const BLOOM[] = {BLOOM_WORD, NULL};
static const char *const VIKING[] = {BLOOM_WORD, "\\p{N}", NULL};
static const char *const BAILING[] = {
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|"
    "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
    NULL,
};
static const char *const SEED_CODER[] = {
    CONTRACTIONS "|" WORD "|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES,
    NULL,
};
static const char *const EXAONE_MOE[] = {
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}|"
                 " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
    NULL,
};

enum {
    NFC = NIB_PRE_NFC,
    IGNORE = NIB_PRE_IGNORE_MERGES,
    BOS = NIB_PRE_ADD_BOS,
};

/* Of names with the same meaning, Nibble writes the first. */
static const nib_pre ROWS[] = {
    {"default", DEFAULT, 0},
    /* Llama 3 */
    {"llama-bpe", LLAMA_3, IGNORE | BOS},
    {"llama3", LLAMA_3, IGNORE | BOS},
    {"llama-v3", LLAMA_3, IGNORE | BOS},
    {"falcon3", LLAMA_3, IGNORE | BOS},
    {"falcon-h1", LLAMA_3, IGNORE | BOS},
    {"pixtral", LLAMA_3, IGNORE | BOS},
    {"midm-2.0", LLAMA_3, IGNORE | BOS},
    {"lfm2", LLAMA_3, IGNORE | BOS},
    {"dbrx", LLAMA_3, 0},
    {"smaug-bpe", LLAMA_3, 0},
    {"chatglm-bpe", LLAMA_3, 0},
    {"glm4", LLAMA_3, IGNORE},
    {"glm5", LLAMA_3, IGNORE},
    {"jais-2", JAIS_2, 0},
    {"minicpm5", MINICPM_5, IGNORE},
    /* Qwen 2, 2.5 and 3 */
    {"qwen2", QWEN_2, NFC},
    {"deepseek-r1-qwen", QWEN_2, NFC},
    {"megrez", QWEN_2, 0},
    {"kormo", QWEN_2, 0},
    {"stablelm2", QWEN_2, 0},
    {"hunyuan", QWEN_2, 0},
    {"solar-open", QWEN_2, 0},
    {"grok-2", QWEN_2, 0},
    {"qwen35", QWEN_35, NFC},
    /* GPT-2 */
    {"gpt-2", GPT_2, 0},
    {"phi-2", GPT_2, 0},
    {"gigachat", GPT_2, 0},
    {"a.x-4.0", GPT_2, 0},
    {"mellum", GPT_2, 0},
    {"exaone4", GPT_2, 0},
    {"jais", GPT_2, 0},
    {"trillion", GPT_2, 0},
    {"granite-docling", GPT_2, 0},
    {"mpt", GPT_2, NFC},
    {"olmo", GPT_2, NFC},
    /* GPT-2, digits one by one */
    {"starcoder", DIGIT_GPT_2, 0},
    {"refact", DIGIT_GPT_2, 0},
    {"command-r", DIGIT_GPT_2, NFC},
    {"smollm", DIGIT_GPT_2, 0},
    {"codeshell", DIGIT_GPT_2, 0},
    {"exaone", DIGIT_GPT_2, 0},
    {"minerva-7b", DIGIT_GPT_2, 0},
    {"mellum2", DIGIT_GPT_2, 0},
    /* DeepSeek */
    {"deepseek-llm", DEEPSEEK_LLM, 0},
    {"deepseek-coder", DEEPSEEK_CODER, 0},
    {"deepseek-v3", DEEPSEEK_V3, 0},
    {"hunyuan-dense", DEEPSEEK_V3, 0},
    {"joyai-llm", DEEPSEEK_V3, 0},
    {"hy_v4", DEEPSEEK_V3, 0},
    /* words with their case */
    {"tekken", TEKKEN, IGNORE | BOS},
    {"gpt-4o", GPT_4O, 0},
    {"llama4", GPT_4O, 0},
    {"kanana2", GPT_4O, 0},
    {"talkie", GPT_4O, 0},
    {"minimax-m2", GPT_4O, 0},
    /* others */
    {"falcon", FALCON, 0},
    {"bloom", BLOOM, 0},
    {"poro-chat", BLOOM, 0},
    {"gpt3-finnish", BLOOM, 0},
    {"viking", VIKING, 0},
    {"bailingmoe", BAILING, 0},
    {"bailingmoe2", BAILING, 0},
    {"llada-moe", BAILING, 0},
    {"seed-coder", SEED_CODER, 0},
    {"exaone-moe", EXAONE_MOE, 0},
};

const nib_pre *nib__pre_at(size_t i) { return i < COUNT(ROWS) ? &ROWS[i] : NULL; }

const nib_pre *nib__pre_find(const char *name, size_t size)
{
    for (size_t i = 0; i < COUNT(ROWS); i++)
        if (strlen(ROWS[i].name) == size && memcmp(ROWS[i].name, name, size) == 0)
            return &ROWS[i];
    return NULL;
}

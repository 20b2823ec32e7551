/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizers written as the keys of a GGUF, and what is reported of their files: what a GGUF or
 * Nibble has no way to do is refused or a line of the ledger. Names tokenizer_vocab.c and
 * tokenizer_report.c.
 */
#include "tokenizer_parts.h"

#include "failing.h"
#include "ledger_lines.h"
#include "safetensors_build.h"
#include "tokenizing.h"

#include "refused.h"

#define TEXT(string) string, sizeof(string) - 1
#define SPACE "\xe2\x96\x81" /* U+2581, a space in SentencePiece */

/* ---- keys of a GGUF ---- */

/* A vocabulary of each pre-tokenizer by name opens as a tokenizer that is written as a name of the
 * same meaning. */
static void test_names(void **state)
{
    (void)state;
    static const nib_vocab_text tokens[] = {{TEXT("a")}, {TEXT("b")}, {TEXT("ab")}};
    static const nib_vocab_text merges[] = {{TEXT("a b")}};
    const nib_allocator a = nib__allocator_default();
    for (size_t i = 0; nib__pre_at(i) != NULL; i++) {
        const nib_pre *pre = nib__pre_at(i);
        const nib_vocab_source source = {.name = "x.gguf",
                                         .model = {TEXT("gpt2")},
                                         .pre = {pre->name, strlen(pre->name)},
                                         .tokens = tokens,
                                         .token_count = COUNT(tokens),
                                         .merges = merges,
                                         .merge_count = COUNT(merges),
                                         .bos = -1,
                                         .eos = -1,
                                         .unk = -1};
        nib_tokenizer *t = NULL;
        nib_vocab_source got;
        nib_arena arena;
        nib_err err;
        nib__arena_init(&arena, &a, 0);
        assert_int_equal(nib__tokenizer_from_vocab(&t, &source, &a, &err), NIB_OK);
        assert_int_equal(nib__tokenizer_to_vocab(&got, t, "t.json", 3, false, &arena, NULL, &err),
                         NIB_OK);
        const nib_pre *same = nib__pre_find(got.pre.at, got.pre.size);
        assert_non_null(same);
        assert_ptr_equal(same->patterns, pre->patterns);
        assert_int_equal(same->flags & ~(unsigned)NIB_PRE_ADD_BOS,
                         pre->flags & ~(unsigned)NIB_PRE_ADD_BOS);
        assert_int_equal(got.merge_count, 1);
        assert_memory_equal(got.merges[0].at, "a b", 3);
        nib__tokenizer_close(t);
        nib__arena_free(&arena);
    }
}

#define VOCAB                                                                                      \
    "'vocab':{'<unk>':0,'<s>':1,'a':2,'b':3,'ab':4,'" SPACE "':5,'aba':6},"                        \
    "'merges':['a b','ab a']"
#define PIECES "'model':{'type':'BPE','byte_fallback':true,'unk_token':'<unk>'," VOCAB "}"
#define BYTES "'model':{'type':'BPE'," VOCAB "}"
#define REPLACE "{'type':'Replace','pattern':{'String':' '},'content':'" SPACE "'}"
#define LEVEL "{'type':'ByteLevel','add_prefix_space':false,'use_regex':"
#define SPLIT(pattern, more)                                                                       \
    "{'type':'Split','pattern':{'Regex':'" pattern "'},'behavior':'Isolated','invert':false" more  \
    "}"
#define STAGES(list) "'pre_tokenizer':{'type':'Sequence','pretokenizers':[" list "]},"
#define DIGITS "{'type':'Digits','individual_digits':true}"

static nib_tokenizer *parse_json(const char *json, const nib_allocator *a)
{
    nib_tokenizer *t = NULL;
    nib_err err = {NIB_OK, ""};
    if (parse_status(&t, with_double_quotes(json), NULL, a, &err) != NIB_OK)
        fail_msg("%s: %s", json, err.text);
    return t;
}

/* What has a name or a key, and what is lost. */
static void test_written(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        nib_vocab_flag prefix;
        const char *pre, *loss; /* loss NULL: none */
    } cases[] = {
        {"{'normalizer':" REPLACE "," PIECES "}", NIB_VOCAB_FLAG_FALSE, "default", NULL},
        {"{'normalizer':{'type':'Sequence','normalizers':[{'type':'Prepend','prepend':'" SPACE
         "'}," REPLACE "]}," PIECES "}",
         NIB_VOCAB_FLAG_TRUE, "default", NULL},
        {"{'pre_tokenizer':{'type':'Metaspace','replacement':'" SPACE
         "','prepend_scheme':'never','split':false}," PIECES "}",
         NIB_VOCAB_FLAG_FALSE, "default", NULL},
        {"{'pre_tokenizer':{'type':'Metaspace','replacement':'" SPACE
         "','prepend_scheme':'always','split':false}," PIECES "}",
         NIB_VOCAB_FLAG_TRUE, "default", NULL},
        {"{'pre_tokenizer':{'type':'Metaspace','replacement':'" SPACE
         "','prepend_scheme':'first','split':false}," PIECES "}",
         NIB_VOCAB_FLAG_TRUE, "default", "it puts a space only before"},
        {"{'pre_tokenizer':" LEVEL "true}," BYTES "}", NIB_VOCAB_FLAG_UNSET, "gpt-2", NULL},
        {"{" STAGES(DIGITS "," LEVEL "true}") BYTES "}", NIB_VOCAB_FLAG_UNSET, "starcoder", NULL},
        {"{'normalizer':{'type':'NFC'}," STAGES(DIGITS "," LEVEL "true}") BYTES "}",
         NIB_VOCAB_FLAG_UNSET, "command-r", NULL},
        /* tokens around a text */
        {"{'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'<s>',"
         "'type_id':0}},{'Sequence':{'id':'A','type_id':0}},{'SpecialToken':{'id':'<s>',"
         "'type_id':0}},{'SpecialToken':{'id':'<s>','type_id':0}}],'pair':[],'special_tokens':"
         "{'<s>':{'id':'<s>','ids':[1],'tokens':['<s>']}}},'normalizer':" REPLACE "," PIECES "}",
         NIB_VOCAB_FLAG_FALSE, "default", "it adds 3 tokens around a text"},
        {"{'post_processor':{'type':'TemplateProcessing','single':[{'Sequence':{'id':'A',"
         "'type_id':0}},{'SpecialToken':{'id':'<s>','type_id':0}}],'pair':[],'special_tokens':"
         "{'<s>':{'id':'<s>','ids':[1],'tokens':['<s>']}}},'normalizer':" REPLACE "," PIECES "}",
         NIB_VOCAB_FLAG_FALSE, "default", NULL},
        /* added tokens */
        {"{'added_tokens':[{'id':1,'content':'<s>','special':true}],'normalizer':" REPLACE
         "," PIECES "}",
         NIB_VOCAB_FLAG_FALSE, "default", NULL},
        {"{'added_tokens':[{'id':7,'content':'x','lstrip':true}],'normalizer':" REPLACE "," PIECES
         "}",
         NIB_VOCAB_FLAG_FALSE, "default", "1 added tokens (the first is 7)"},
        {"{'added_tokens':[{'id':7,'content':'x','rstrip':true},{'id':8,'content':'y',"
         "'single_word':true}],'normalizer':" REPLACE "," PIECES "}",
         NIB_VOCAB_FLAG_FALSE, "default", "2 added tokens (the first is 7)"},
        {"{'added_tokens':[{'id':7,'content':'x y','normalized':true}],'normalizer':" REPLACE
         "," PIECES "}",
         NIB_VOCAB_FLAG_FALSE, "default", "1 added tokens (the first is 7)"},
        /* a pair that scores merge */
        {"{'normalizer':" REPLACE ",'model':{'type':'BPE','byte_fallback':true,'vocab':{'a':0,"
         "'b':1,'ab':2,'<0x61>':3,'':4},'merges':[]}}",
         NIB_VOCAB_FLAG_FALSE, "default", "it lists 0 merges"},
    };
    const nib_allocator a = nib__allocator_default();
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_tokenizer *t = parse_json(cases[i].json, &a);
        nib_vocab_source got;
        nib_arena arena;
        nib_ledger notes;
        nib_err err = {NIB_OK, ""};
        nib__arena_init(&arena, &a, 0);
        nib__ledger_init(&notes, &a);
        if (nib__tokenizer_to_vocab(&got, t, "t.json", 9, false, &arena, &notes, &err) != NIB_OK)
            fail_msg("%s: %s", cases[i].json, err.text);
        assert_int_equal(got.add_space_prefix, cases[i].prefix);
        assert_int_equal(got.pre.size, strlen(cases[i].pre));
        assert_memory_equal(got.pre.at, cases[i].pre, got.pre.size);
        assert_int_equal(got.token_count, 9); /* the rows, or more */
        if (count_settings(&notes, "tokenizer", "") != (cases[i].loss != NULL) ||
            (cases[i].loss != NULL && count_settings(&notes, "tokenizer", cases[i].loss) != 1))
            fail_msg("%s: not one loss", cases[i].json);
        nib__ledger_free(&notes);
        nib__arena_free(&arena);
        nib__tokenizer_close(t);
    }
}

static void test_not_written(void **state)
{
    (void)state;
    static const char *const cases[] = {
        /* pieces: other ways to replace spaces */
        "{" PIECES "}",
        "{'normalizer':{'type':'NFC'}," PIECES "}",
        "{'normalizer':{'type':'Replace','pattern':{'Regex':' '},'content':'" SPACE "'}," PIECES
        "}",
        "{'normalizer':{'type':'Replace','pattern':{'String':'  '},'content':'" SPACE "'}," PIECES
        "}",
        "{'normalizer':{'type':'Replace','pattern':{'String':'_'},'content':'" SPACE "'}," PIECES
        "}",
        "{'normalizer':{'type':'Replace','pattern':{'String':' '},'content':'_'}," PIECES "}",
        "{'normalizer':{'type':'Replace','pattern':{'String':' '},'content':'abc'}," PIECES "}",
        "{'normalizer':" REPLACE ",'pre_tokenizer':" DIGITS "," PIECES "}",
        "{'normalizer':{'type':'Sequence','normalizers':[{'type':'NFC'}," REPLACE "]}," PIECES "}",
        "{'normalizer':{'type':'Sequence','normalizers':[{'type':'Prepend','prepend':'_'}," REPLACE
        "]}," PIECES "}",
        "{'normalizer':{'type':'Sequence','normalizers':[" REPLACE ",{'type':'NFC'}]}," PIECES "}",
        "{'pre_tokenizer':{'type':'Metaspace','replacement':'_','prepend_scheme':'never',"
        "'split':false}," PIECES "}",
        "{'pre_tokenizer':" DIGITS "," PIECES "}",
        /* bytes: other ways to split */
        "{" BYTES "}",
        "{'pre_tokenizer':" LEVEL "false}," BYTES "}",
        "{'normalizer':{'type':'NFD'},'pre_tokenizer':" LEVEL "true}," BYTES "}",
        "{" STAGES(DIGITS "," LEVEL "false}") BYTES "}",
        "{" STAGES(LEVEL "true}," DIGITS) BYTES "}",
        "{" STAGES(SPLIT("x", "") "," LEVEL "false}") BYTES "}",
        "{" STAGES(
            "{'type':'Split','pattern':{'Regex':'x'},'behavior':'Removed','invert':false}," LEVEL
            "false}") BYTES "}",
        "{" STAGES(
            "{'type':'Split','pattern':{'Regex':'x'},'behavior':'Isolated','invert':true}," LEVEL
            "false}") BYTES "}",
        "{" STAGES("{'type':'Punctuation','behavior':'Isolated'}," LEVEL "false}") BYTES "}",
        "{'pre_tokenizer':" LEVEL "true},'model':{'type':'BPE','ignore_merges':true," VOCAB "}}",
    };
    const nib_allocator a = nib__allocator_default();
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_tokenizer *t = parse_json(cases[i], &a);
        nib_vocab_source got;
        nib_arena arena;
        nib_err err = {NIB_OK, ""};
        nib__arena_init(&arena, &a, 0);
        const nib_status status =
            nib__tokenizer_to_vocab(&got, t, "t.json", 9, false, &arena, NULL, &err);
        if (status != NIB_UNSUPPORTED)
            print_error("%s\n", cases[i]);
        refused(NIB_UNSUPPORTED, status, &err);
        nib__arena_free(&arena);
        nib__tokenizer_close(t);
    }
}

/* Each allocation fails once: NIB_NO_MEMORY, and nothing leaks. */
static void test_no_memory(void **state)
{
    (void)state;
    static const char *const cases[] = {"{'normalizer':" REPLACE "," PIECES "}",
                                        "{'pre_tokenizer':" LEVEL "true}," BYTES "}"};
    const nib_allocator heap = nib__allocator_default();
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_tokenizer *t = parse_json(cases[i], &heap);
        nib_status status = NIB_NO_MEMORY;
        size_t needed = SIZE_MAX; /* the same for whichever piece of the arena does not fit */
        for (size_t limit = 0; limit < needed; limit += limit == 0 ? 1 : 3) { /* 0: none */
            nib_vocab_source got;
            nib_arena arena;
            nib_err err = {NIB_OK, ""};
            nib__arena_init(&arena, &heap, limit);
            status = nib__tokenizer_to_vocab(&got, t, "t.json", 9, false, &arena, NULL, &err);
            assert_int_equal(status, limit == 0 ? NIB_OK : NIB_NO_MEMORY);
            if (limit == 0)
                needed = arena.total;
            nib__arena_free(&arena);
        }
        nib__tokenizer_close(t);
    }
}

/* ---- what the files ask for and is not done ---- */

#define TEMPLATE(items)                                                                            \
    "'post_processor':{'type':'TemplateProcessing','single':[" items "],'pair':[]},"
#define FIRST "{'SpecialToken':{'id':'<s>'}}"
#define REST "{'Sequence':{'id':'A'}}"
#define BPE "'model':{'type':'BPE'}"

static void test_report(void **state)
{
    (void)state;
    static const struct {
        const char *json, *config; /* config NULL: no such file */
        size_t count;
        const char *note;
    } cases[] = {
        {"{" BPE "}", NULL, 0, NULL},
        {"{" BPE "}", "{}", 0, NULL},
        {"{'truncation':null,'padding':null," BPE "}", "{}", 0, NULL},
        {"{'truncation':{'max_length':8},'padding':{},'version':'1'," BPE "}", NULL, 1,
         "truncates"},
        {"{'padding':{'strategy':'BatchLongest'}," BPE "}", NULL, 1, "pads texts"},
        /* BOS and EOS: of the post-processor, or else of tokenizer_config.json */
        {"{" BPE "}", "{'add_bos_token':true}", 1, "no bos_token is named"},
        {"{" BPE "}", "{'add_bos_token':true,'bos_token':'<s>'}", 0, NULL},
        {"{" BPE "}", "{'add_bos_token':true,'bos_token':null}", 1, "no bos_token is named"},
        {"{" BPE "}", "{'add_eos_token':true}", 1, "no eos_token is named"},
        {"{" BPE "}", "{'add_eos_token':true,'eos_token':{'content':'</s>'}}", 0, NULL},
        {"{" BPE "}", "{'add_eos_token':false,'add_bos_token':'x'}", 0, NULL},
        {"{" TEMPLATE(FIRST "," REST) BPE "}", "{'add_bos_token':false}", 1, "begins texts with a"},
        {"{" TEMPLATE(FIRST "," REST) BPE "}", "{'add_bos_token':true}", 0, NULL},
        {"{" TEMPLATE(FIRST "," REST) BPE "}", "{'add_eos_token':true}", 1, "ends texts with no"},
        {"{" TEMPLATE(REST "," FIRST) BPE "}", "{'add_eos_token':false}", 1, "ends texts with a"},
        {"{" TEMPLATE(REST "," FIRST) BPE "}", "{'add_bos_token':true}", 1, "begins texts with no"},
        {"{'post_processor':{'type':'BertProcessing','sep':['a',1],'cls':['b',2]}," BPE "}",
         "{'add_bos_token':false,'add_eos_token':false}", 2, "with a token"},
        {"{'post_processor':null," BPE "}", "{'add_bos_token':true}", 1, "no bos_token is named"},
        /* a space before the text */
        {"{" BPE "}", "{'add_prefix_space':true}", 1, "puts no space before"},
        {"{'normalizer':{'type':'Prepend','prepend':'" SPACE "'}," BPE "}",
         "{'add_prefix_space':false}", 1, "puts a space before"},
        {"{'normalizer':{'type':'Prepend','prepend':' '}," BPE "}", "{'add_prefix_space':true}", 0,
         NULL},
        {"{'normalizer':{'type':'Prepend','prepend':'_'}," BPE "}", "{'add_prefix_space':true}", 1,
         "puts no space before"},
        {"{'normalizer':{'prepend':1}," BPE "}", "{'add_prefix_space':false}", 0, NULL},
        {"{'pre_tokenizer':{'type':'ByteLevel','add_prefix_space':true}," BPE "}",
         "{'add_prefix_space':false}", 1, "puts a space before"},
        {"{'pre_tokenizer':{'type':'Metaspace','prepend_scheme':'first'}," BPE "}",
         "{'add_prefix_space':false}", 1, "puts a space before"},
        {"{'pre_tokenizer':{'type':'Metaspace','prepend_scheme':'never'}," BPE "}",
         "{'add_prefix_space':false}", 0, NULL},
        {"{'pre_tokenizer':{'prepend_scheme':1,'type':2}," BPE "}", "{'add_prefix_space':true}", 1,
         "puts no space before"},
        /* others */
        {"{'normalizer':{'type':'Lowercase'}," BPE "}", "{'do_lower_case':false}", 1,
         "has Lowercase"},
        {"{" BPE "}", "{'do_lower_case':true}", 1, "has no Lowercase"},
        {"{" BPE "}", "{'clean_up_tokenization_spaces':true}", 1, "ignores this key with BPE"},
        {"{'model':{'type':'Unigram'}}", "{'clean_up_tokenization_spaces':true}", 1,
         "spaces before punctuation stay"},
        {"{" BPE "}", "{'clean_up_tokenization_spaces':false}", 0, NULL},
        {"{" BPE "}", "{'split_special_tokens':true}", 1, "stay whole"},
        {"{" BPE "}", "{'sp_model_kwargs':{'alpha':1}}", 1, "sp_model_kwargs"},
        {"{" BPE "}", "{'sp_model_kwargs':{}}", 0, NULL},
        {"{" BPE "}", "{'auto_map':{'AutoTokenizer':'a.B'}}", 1, "not run"},
        /* files that do not open: only what is before the error */
        {"[]", "{'split_special_tokens':true}", 1, "stay whole"},
        {"{'model':{'vocab':{}}}", "{'clean_up_tokenization_spaces':true}", 1, "stay"},
        {"{'model':{'type':1}}", "{'clean_up_tokenization_spaces':true}", 1, "stay"},
        {"{'model':[]}", "{'clean_up_tokenization_spaces':true}", 1, "stay"},
        {"{'model':{}}", "{'clean_up_tokenization_spaces':true}", 1, "stay"},
        {"{'version':1}", "{'do_lower_case':true}", 1, "has no Lowercase"},
        {"{'normalizer':{'type':", "{'do_lower_case':true}", 1, "has no Lowercase"},
        {"{'truncation':", "{'do_lower_case':true}", 1, "has no Lowercase"},
        {"{'post_processor':{'single':[", "{'add_bos_token':true}", 1, "begins texts with no"},
        {"{'post_processor':{'cls':", "{'add_bos_token':false}", 1, "begins texts with a"},
        {"{" BPE "}", "[]", 0, NULL},
        {"{" BPE "}", "{'do_lower_case':true,'x':", 1, "has no Lowercase"},
        {NULL, "{'do_lower_case':true}", 0, NULL},
    };
    const nib_allocator a = nib__allocator_default();
    char dir[256], json[300], config[300];
    make_directory(dir);
    snprintf(json, sizeof json, "%s/tokenizer.json", dir);
    snprintf(config, sizeof config, "%s/tokenizer_config.json", dir);
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_ledger notes;
        nib__ledger_init(&notes, &a);
        remove(json), remove(config);
        if (cases[i].json != NULL)
            write_text(dir, "tokenizer.json", with_double_quotes(cases[i].json));
        if (cases[i].config != NULL)
            write_text(dir, "tokenizer_config.json", with_double_quotes(cases[i].config));
        nib__tokenizer_report(&notes, json, i == 0 ? NULL : config);
        if (notes.setting_count != cases[i].count ||
            (cases[i].count > 0 && count_settings(&notes, NULL, cases[i].note) != cases[i].count))
            fail_msg("%s, %s: %zu lines", cases[i].json, cases[i].config, notes.setting_count);
        nib__ledger_free(&notes);
    }
    drop_directory(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),       cmocka_unit_test(test_written),
        cmocka_unit_test(test_not_written), cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

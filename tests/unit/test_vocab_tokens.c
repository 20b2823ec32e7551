/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizers with a tokenizer_config.json as the keys of a GGUF: flags, types and scores of tokens,
 * and what the keys cannot express. test_tokenizer_vocab.c has each pre-tokenizer. Names
 * tokenizer_vocab.c.
 */
#include "failing.h"
#include "ledger_lines.h"
#include "skipping.h"
#include "tokenizing.h"

#include "refused.h"
#include "safetensors_build.h"

static nib_allocator heap; /* of ledgers */

#define TOKEN "{'SpecialToken':{'id':'<s>','type_id':0}}"
#define SEQUENCE "{'Sequence':{'id':'A','type_id':0}}"

/* Byte-level BPE, and pieces with SentencePiece's space. */
#define BYTES "'model':{'type':'BPE','vocab':{'a':0,'b':1,'ab':2,'c':3,'d':5},'merges':['a b']}"
#define SPACE "\xe2\x96\x81"
#define PIECES_IN(vocab, merges)                                                                   \
    "'model':{'type':'BPE','byte_fallback':true,'unk_token':'<unk>','vocab':{'<unk>':0,"           \
    "'<0x41>':1,'a':2,'b':3," vocab "},'merges':[" merges "]}"
#define PIECES PIECES_IN("'ab':4", "'a b'")
#define REPLACE "{'type':'Replace','pattern':{'String':' '},'content':'" SPACE "'}"
#define PREPEND "{'type':'Prepend','prepend':'" SPACE "'}"
#define METASPACE(scheme)                                                                          \
    "'pre_tokenizer':{'type':'Metaspace','replacement':'" SPACE "','prepend_scheme':'" scheme      \
    "','split':false}"
#define BYTE_LEVEL "{'type':'ByteLevel','add_prefix_space':false,'use_regex':true}"
#define STAGES(list) "'pre_tokenizer':{'type':'Sequence','pretokenizers':[" list "]}"
#define ADDED_AS(content, flags)                                                                   \
    "'added_tokens':[{'id':7,'content':'" content "','single_word':false,'lstrip':false,"          \
    "'rstrip':false,'normalized':false,'special':false" flags "}]"
#define ADDED(flags) ADDED_AS("<x>", flags)
#define TEMPLATE(single)                                                                           \
    "'post_processor':{'type':'TemplateProcessing','single':[" single "],'pair':[],"               \
    "'special_tokens':{'<s>':{'id':'<s>','ids':[7],'tokens':['<s>']}}}"
#define WITH_BOS                                                                                   \
    "'added_tokens':[{'id':7,'content':'<s>','single_word':false,'lstrip':false,'rstrip':false,"   \
    "'normalized':false,'special':true}]"

static nib_status to_vocab(nib_vocab_source *out, const char *json, const char *config,
                           const nib_allocator *a, nib_ledger *notes, nib_arena *arena,
                           nib_err *err)
{
    nib_tokenizer *t =
        parse_text(with_double_quotes(json), config == NULL ? NULL : with_double_quotes(config));
    nib__arena_init(arena, a, 0);
    const nib_status status =
        nib__tokenizer_to_vocab(out, t, "tokenizer.json", 0, false, arena, notes, err);
    nib__tokenizer_close(t);
    return status;
}

static void test_expressed(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        const char *model, *pre;
        nib_vocab_flag space;
        const char *words; /* of the only note; NULL: no note */
        const char *config;
    } cases[] = {
        {"{'pre_tokenizer':" BYTE_LEVEL "," BYTES "}", "gpt2", "gpt-2", 0, NULL, NULL},
        {"{" STAGES("{'type':'Digits','individual_digits':true}," BYTE_LEVEL) "," BYTES "}", "gpt2",
         "starcoder", 0, NULL, NULL},
        {"{'normalizer':" REPLACE "," PIECES "}", "llama", "default", NIB_VOCAB_FLAG_FALSE, NULL,
         NULL},
        {"{'normalizer':{'type':'Sequence','normalizers':[" PREPEND "," REPLACE "]}," PIECES "}",
         "llama", "default", NIB_VOCAB_FLAG_TRUE, NULL, NULL},
        {"{" METASPACE("always") "," PIECES "}", "llama", "default", NIB_VOCAB_FLAG_TRUE, NULL,
         NULL},
        {"{" METASPACE("never") "," PIECES "}", "llama", "default", NIB_VOCAB_FLAG_FALSE, NULL,
         NULL},
        {"{" METASPACE("first") "," PIECES "}", "llama", "default", NIB_VOCAB_FLAG_TRUE,
         "puts a space only before a text", NULL},
        {"{" METASPACE("never") "," PIECES_IN("'ab':4,'aba':5,'ba':6", "'a b'") "}", "llama",
         "default", NIB_VOCAB_FLAG_FALSE, "it lists 1 merges", NULL},
        {"{" METASPACE("never") "," PIECES_IN("'c':4", "") "}", "llama", "default",
         NIB_VOCAB_FLAG_FALSE, NULL, NULL},
        {"{'pre_tokenizer':" BYTE_LEVEL "," ADDED("") "," BYTES "}", "gpt2", "gpt-2", 0, NULL,
         NULL},
        {"{'normalizer':{'type':'NFC'},'pre_tokenizer':" BYTE_LEVEL "," BYTES "}", "gpt2", "mpt", 0,
         NULL, NULL},
        {"{" METASPACE("never") "," PIECES_IN("'ab':4,'ba':5", "'a b','b a'") "}", "llama",
         "default", NIB_VOCAB_FLAG_FALSE, NULL, NULL},
        {"{'pre_tokenizer':" BYTE_LEVEL "," WITH_BOS "," TEMPLATE(TOKEN "," SEQUENCE) "," BYTES "}",
         "gpt2", "gpt-2", 0, "it adds 1 tokens around a text", "{'bos_token':'a'}"},
        {"{'pre_tokenizer':" BYTE_LEVEL "," WITH_BOS "," TEMPLATE(SEQUENCE "," TOKEN) "," BYTES "}",
         "gpt2", "gpt-2", 0, NULL, "{'bos_token':'a','eos_token':'<s>'}"},
        {"{'normalizer':{'type':'NFC'},'pre_tokenizer':" BYTE_LEVEL
         "," ADDED_AS("e\xcc\x81", ",'normalized':true") "," BYTES "}",
         "gpt2", "mpt", 0, "1 added tokens (the first is 7)", NULL},
        {"{'pre_tokenizer':" BYTE_LEVEL "," ADDED(",'lstrip':true") "," BYTES "}", "gpt2", "gpt-2",
         0, "1 added tokens (the first is 7)", NULL},
        {"{'pre_tokenizer':" BYTE_LEVEL "," ADDED(",'rstrip':true") "," BYTES "}", "gpt2", "gpt-2",
         0, "1 added tokens (the first is 7)", NULL},
        {"{'pre_tokenizer':" BYTE_LEVEL "," ADDED(",'single_word':true") "," BYTES "}", "gpt2",
         "gpt-2", 0, "1 added tokens (the first is 7)", NULL},
        {"{'pre_tokenizer':" BYTE_LEVEL "," WITH_BOS "," TEMPLATE(TOKEN "," SEQUENCE) "," BYTES "}",
         "gpt2", "gpt-2", 0, NULL, NULL},
        {"{'pre_tokenizer':" BYTE_LEVEL "," WITH_BOS "," TEMPLATE(SEQUENCE "," TOKEN) "," BYTES "}",
         "gpt2", "gpt-2", 0, NULL, NULL},
        {"{'pre_tokenizer':" BYTE_LEVEL "," WITH_BOS
         "," TEMPLATE(TOKEN "," TOKEN "," SEQUENCE) "," BYTES "}",
         "gpt2", "gpt-2", 0, "it adds 2 tokens around a text", NULL},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_vocab_source source;
        nib_ledger notes;
        nib_arena arena;
        nib_err err = {NIB_OK, ""};
        nib__ledger_init(&notes, &heap);
        if (to_vocab(&source, cases[i].json, cases[i].config, &heap, &notes, &arena, &err) !=
            NIB_OK)
            fail_msg("case %zu: %s", i, err.text);
        assert_string_equal(source.model.at, cases[i].model);
        assert_string_equal(source.pre.at, cases[i].pre);
        assert_int_equal(source.add_space_prefix, cases[i].space);
        if (notes.setting_count != (cases[i].words != NULL) ||
            (cases[i].words != NULL && count_settings(&notes, NULL, cases[i].words) != 1))
            fail_msg("case %zu: %zu notes", i, notes.setting_count);
        nib__ledger_free(&notes);
        nib__arena_free(&arena);
    }
}

/* Ids without a token get a name, and each token its type. */
static void test_tokens(void **state)
{
    enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };
    (void)state;
    static const int32_t types[] = {UNKNOWN, BYTE,   NORMAL, NORMAL,
                                    NORMAL,  UNUSED, UNUSED, USER_DEFINED};
    nib_vocab_source source;
    nib_arena arena;
    nib_err err = {NIB_OK, ""};
    assert_int_equal(to_vocab(&source, "{" METASPACE("never") "," ADDED("") "," PIECES "}", NULL,
                              &heap, NULL, &arena, &err),
                     NIB_OK);
    assert_int_equal(source.token_count, COUNT(types));
    assert_memory_equal(source.types, types, sizeof types);
    assert_memory_equal(source.tokens[5].at, "[PAD5]", 6);
    assert_int_equal(source.unk, 0);
    assert_true(source.scores[4] == -1 && source.scores[2] == -2); /* after the merged ones */
    nib__arena_free(&arena);
}

/* Gemma's tokenizers cut words at spaces once there are none. With merges instead of scores, the
 * tokenizer of the GGUF merges as they do. */
static void test_listed(void **state)
{
    (void)state;
    static const char json[] =
        "{'normalizer':" REPLACE ",'pre_tokenizer':{'type':'Split','pattern':{'String':' '},"
        "'behavior':'MergedWithPrevious','invert':false}," PIECES_IN(
            "'ab':4,'ba':5,'" SPACE "':6,'aba':8", "'b a','a b','ab a'") "}";
    nib_tokenizer *t = parse_text(with_double_quotes(json), NULL), *back = NULL;
    nib_vocab_source source;
    nib_ledger notes;
    nib_arena arena;
    nib_err err;
    nib__arena_init(&arena, &heap, 0);
    nib__ledger_init(&notes, &heap);
    if (nib__tokenizer_to_vocab(&source, t, "t.json", 0, true, &arena, &notes, &err) != NIB_OK ||
        nib__tokenizer_from_vocab(&back, &source, &heap, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_string_equal(source.model.at, "gemma4");
    assert_int_equal(source.add_space_prefix, NIB_VOCAB_FLAG_FALSE);
    assert_true(source.scores == NULL && source.merge_count == 3);
    assert_int_equal(notes.setting_count, 0);
    const nib_tokenizer *const both[] = {t, back};
    for (size_t i = 0; i < COUNT(both); i++) {
        expect_ids(both[i], "aba", 0, "2 5");
        expect_ids(both[i], "ab a", 0, "4 6 2");
        expect_ids(both[i], " A\nb", 0, "6 1 0 3");
    }
    nib__tokenizer_close(back);
    nib__tokenizer_close(t);
    nib__ledger_free(&notes);
    nib__arena_free(&arena);
}

static void test_memory(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "{'pre_tokenizer':" BYTE_LEVEL "," ADDED("") "," BYTES "}",
        "{" METASPACE("never") "," ADDED("") "," PIECES "}",
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_status status = NIB_NO_MEMORY;
        for (int left = 0; status != NIB_OK; left++) {
            failing f = {.left = left};
            const nib_allocator a = failing_allocator(&f);
            nib_vocab_source source;
            nib_arena arena;
            nib_err err = {NIB_OK, ""};
            status = to_vocab(&source, cases[i], NULL, &a, NULL, &arena, &err);
            assert_true(status == NIB_OK || (status == NIB_NO_MEMORY && f.left == 0));
            nib__arena_free(&arena);
            assert_int_equal(f.live, 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expressed),
        cmocka_unit_test(test_listed),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_memory),
    };
    heap = nib__allocator_default();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

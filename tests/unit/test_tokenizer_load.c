/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening tokenizer.json and tokenizer_config.json: unknown or inconsistent parts are errors that
 * name them, and hostile files cost no more than their size.
 */
#include "failing.h"
#include "metered.h"
#include "tokenizing.h"

#include "refused.h"

#include <stdio.h>

#define MODEL "'model':{'type':'BPE','vocab':{'a':0,'b':1,'ab':2,'c':3},'merges':['a b']}"

static void expect_error(const char *json, const char *config, nib_status status)
{
    failing f = {.left = -1};
    const nib_allocator a = failing_allocator(&f);
    nib_tokenizer *t = NULL;
    nib_err err = {.status = NIB_OK};
    const nib_status got = parse_status(&t, json, config, &a, &err);
    if (got != status)
        print_error("%.200s\n", json);
    refused(status, got, &err);
    assert_null(t);
    assert_int_equal(f.live, 0);
}

static void expect_bad(const char *json)
{
    expect_error(with_double_quotes(json), NULL, NIB_BAD_INPUT);
}

static void expect_unsupported(const char *json)
{
    expect_error(with_double_quotes(json), NULL, NIB_UNSUPPORTED);
}

/* A tokenizer whose component `key` is `depth` Sequences, each the only one of the list of the one
 * around it, and in the last a component of the type. */
static void put_nested(char *text, size_t size, int depth, const char *key, const char *list,
                       const char *type)
{
    size_t used = (size_t)snprintf(text, size, "{'%s':", key);
    for (int i = 0; i < depth; i++)
        used += (size_t)snprintf(text + used, size - used, "{'type':'Sequence','%s':[", list);
    used += (size_t)snprintf(text + used, size - used, "{'type':'%s'}", type);
    for (int i = 0; i < depth; i++)
        used += (size_t)snprintf(text + used, size - used, "]}");
    snprintf(text + used, size - used, "," MODEL "}");
}

static void test_smallest(void **state)
{
    (void)state;
    nib_tokenizer *t = parse_text(with_double_quotes("{" MODEL "}"), NULL);
    expect_ids(t, "abcab", 0, "2 3 2");
    assert_int_equal(nib__tokenizer_vocab_size(t), 4);
    assert_int_equal(nib__tokenizer_bos(t), -1);
    assert_int_equal(nib__tokenizer_eos(t), -1);
    assert_false(nib__tokenizer_adds_bos(t));
    assert_int_equal(nib__tokenizer_find(t, "ab", 2), 2);
    assert_int_equal(nib__tokenizer_find(t, "ac", 2), -1);
    nib__tokenizer_close(t);
    nib__tokenizer_close(NULL);
}

static void test_not_a_tokenizer(void **state)
{
    (void)state;
    expect_bad("");
    expect_bad("{");
    expect_bad("[]");
    expect_bad("{}");
    expect_bad("{'model':{'type':'BPE'}}");
    expect_bad("{'model':{'vocab':{'a':0}}}");
    expect_bad("{'model':null}");
    expect_bad("{" MODEL "} x");
    expect_bad("{" MODEL ",'model':{'vocab':{},'merges':[]}}");
    expect_bad("{'version':2," MODEL "}");
    expect_unsupported("{'version':'2.0'," MODEL "}");
    /* without a place for the sentence */
    const nib_allocator a = nib__allocator_default();
    nib_tokenizer *t = NULL;
    assert_int_equal(parse_status(&t, "{}", NULL, &a, NULL), NIB_BAD_INPUT);
}

static void test_model_parts(void **state)
{
    (void)state;
    expect_unsupported("{'model':{'type':'Unigram','vocab':[['a',0]]}}");
    expect_unsupported("{'model':{'type':'WordPiece','vocab':{}}}");
    expect_unsupported("{'model':{'dropout':0.1,'vocab':{},'merges':[]}}");
    expect_unsupported("{'model':{'end_of_word_suffix':'</w>','vocab':{},'merges':[]}}");
    expect_unsupported("{'model':{'continuing_subword_prefix':'##','vocab':{},'merges':[]}}");
    expect_unsupported("{'model':{'magic':1,'vocab':{},'merges':[]}}");
    expect_bad("{'model':{'fuse_unk':1,'vocab':{},'merges':[]}}");
    expect_bad("{'model':{'unk_token':'x','vocab':{'a':0},'merges':[]}}");
    nib__tokenizer_close(parse_text(
        with_double_quotes("{'model':{'dropout':0.0,'end_of_word_suffix':'','unk_token':null,"
                           "'vocab':{'a':0},'merges':[]}}"),
        NULL));
}

/* T05 */
static void test_vocabulary(void **state)
{
    (void)state;
    expect_bad("{'model':{'vocab':{'a':0,'a':1},'merges':[]}}");
    expect_bad("{'model':{'vocab':{'a':7,'b':7},'merges':[]}}");
    expect_bad("{'model':{'vocab':{'a':-1},'merges':[]}}");
    expect_bad("{'model':{'vocab':{'a':4194304},'merges':[]}}");
    expect_bad("{'model':{'vocab':{'a':1.5},'merges':[]}}");
    expect_bad("{'model':{'vocab':{'a':'b'},'merges':[]}}");
    nib_tokenizer *t =
        parse_text(with_double_quotes("{'model':{'vocab':{'a':0,'b':90},'merges':[]}}"), NULL);
    size_t size;
    assert_int_equal(nib__tokenizer_vocab_size(t), 91);
    assert_null(nib__tokenizer_token(t, 5, &size));
    assert_null(nib__tokenizer_token(t, 91, &size));
    assert_null(nib__tokenizer_token(t, -1, &size));
    assert_memory_equal(nib__tokenizer_token(t, 90, &size), "b", 1);
    assert_int_equal(size, 1);
    assert_false(nib__tokenizer_is_special(t, 91));
    nib__tokenizer_close(t);
}

/* T06 */
static void test_merges(void **state)
{
    (void)state;
    expect_bad("{'model':{'vocab':{'a':0},'merges':['a b']}}");
    expect_bad("{'model':{'vocab':{'a':0,'b':1},'merges':['a b']}}");
    expect_bad("{'model':{'vocab':{'a':0,'b':1},'merges':[['b','c']]}}");
    expect_bad("{'model':{'vocab':{'a':0},'merges':['a']}}");
    expect_bad("{'model':{'vocab':{'a':0},'merges':[['a']]}}");
    expect_bad("{'model':{'vocab':{'a':0,'aa':1},'merges':[['a','a','a']]}}");
    expect_bad("{'model':{'vocab':{'a':0},'merges':[5]}}");
    expect_bad("{'model':{'vocab':{'a':0},'merges':{}}}");
    expect_bad("{'model':{'vocab':{'a':0},'merges':['a \\ud800']}}");
    expect_bad("{'model':{'vocab':{'a':0},'merges':[['\\ud800','a']]}}");
    expect_bad("{'model':{'vocab':{'a':0},'merges':[['a','\\ud800']]}}");
    expect_bad("{'model':{'vocab':{'a':0},'merges':[],'merges':[]}}");
    char spaces[300]; /* more than are tried */
    snprintf(spaces, sizeof spaces, "{'model':{'vocab':{'a':0},'merges':['a%100sa']}}", "");
    expect_bad(spaces);
    /* both forms, the version line of merges.txt, tokens of spaces, and merges before the
     * vocabulary */
    nib_tokenizer *t =
        parse_text(with_double_quotes("{'model':{'merges':['#version: 0.2','a b',['b','c'],'   '],"
                                      "'vocab':{'a':0,'b':1,'c':2,'ab':3,'bc':4,' ':5,'  ':6}}}"),
                   NULL);
    expect_ids(t, "abc  bca", 0, "3 2 6 4 0");
    nib__tokenizer_close(t);
    /* cyclic ranks: a merge needs a token that a later one makes */
    t = parse_text(with_double_quotes("{'model':{'vocab':{'a':0,'b':1,'ab':2,'aba':3,'abab':4},"
                                      "'merges':['ab ab','ab a','a b']}}"),
                   NULL);
    expect_ids(t, "ababa", 0, "3 1 0");
    expect_ids(t, "abab", 0, "3 1"); /* 'ab a' comes before the second 'a b' */
    nib__tokenizer_close(t);
}

/* Values that mean unset, and others. */
static void test_unset(void **state)
{
    (void)state;
    static const char *const unset[] = {"null", "''", "0", "0.0"}, *const set[] = {"'x'", "0.1"};
    static const char *const keys[] = {"dropout", "continuing_subword_prefix",
                                       "end_of_word_suffix"};
    char text[200];
    for (size_t k = 0; k < COUNT(keys); k++) {
        const char *const model = "{'model':{'%s':%s,'fuse_unk':null,'vocab':{'a':0},'merges':[]}}";
        for (size_t i = 0; i < COUNT(unset); i++) {
            snprintf(text, sizeof text, model, keys[k], unset[i]);
            nib__tokenizer_close(parse_text(with_double_quotes(text), NULL));
        }
        for (size_t i = 0; i < COUNT(set); i++) {
            snprintf(text, sizeof text, model, keys[k], set[i]);
            expect_unsupported(text);
        }
        snprintf(text, sizeof text, model, keys[k], "1e999");
        expect_bad(text);
    }
}

/* Tokens with escapes are decoded in memory that is freed now and then. */
static void test_many_escapes(void **state)
{
    (void)state;
    enum { TOKENS = 6000, SIZE = 300 };
    const nib_allocator a = nib__allocator_default();
    meter m = {0, 0};
    const nib_allocator counted = metered_allocator(&m);
    nib_text text;
    nib_tokenizer *t = NULL;
    nib_err err = {.status = NIB_OK};
    nib__text_init(&text, &a);
    nib__text_str(&text, "{\"model\":{\"vocab\":{\"\\n\":0");
    for (int i = 1; i <= TOKENS; i++)
        nib__text_format(&text, ",\"\\n%0*d\":%d", SIZE, i, i);
    nib__text_str(&text, "},\"merges\":[\"#version\"");
    for (int i = 1; i <= TOKENS; i++)
        nib__text_str(&text, ",[\"\\n\",\"\\u000a\"]");
    nib__text_str(&text, "]}}");
    assert_false(text.failed);
    /* "\n\n" is not a token */
    refused(NIB_BAD_INPUT, parse_status(&t, text.at, NULL, &counted, &err), &err);
    assert_true(m.peak < 3 * TOKENS * SIZE); /* the tokens, and 1 MiB */
    nib__text_free(&text);
}

/* T07, T12, and invalid patterns of T08 */
static void test_components(void **state)
{
    (void)state;
    expect_unsupported("{'pre_tokenizer':{'type':'BertPreTokenizer'}," MODEL "}");
    expect_unsupported(
        "{'pre_tokenizer':{'type':'Sequence','pretokenizers':[{'type':'Magic'}]}," MODEL "}");
    expect_unsupported("{'normalizer':{'type':'Precompiled'}," MODEL "}");
    expect_unsupported("{'normalizer':{'type':'Precompiled','precompiled_charsmap':'AA'}," MODEL
                       "}");
    expect_unsupported("{'normalizer':{'type':'BertNormalizer'}," MODEL "}");
    expect_unsupported("{'decoder':{'type':'WordPiece'}," MODEL "}");
    expect_unsupported("{'post_processor':{'type':'Magic'}," MODEL "}");
    expect_unsupported("{'decoder':{'type':'Replace','pattern':{'Regex':'a'},'content':''}," MODEL
                       "}");
    expect_unsupported(
        "{'decoder':{'type':'Sequence','decoders':[{'type':'Fuse'},{'type':'ByteLevel'}]}," MODEL
        "}"); /* Fuse comes last */
    expect_unsupported(
        "{'pre_tokenizer':{'type':'Digits','individual_digits':true,'magic':1}," MODEL "}");
    expect_unsupported(
        "{'pre_tokenizer':{'type':'Split','pattern':{'String':'a'},'behavior':'Eaten',"
        "'invert':false}," MODEL "}");
    expect_unsupported(
        "{'normalizer':{'type':'Replace','pattern':{'String':''},'content':'b'}," MODEL "}");
    expect_bad("{'pre_tokenizer':{}," MODEL "}");
    expect_bad("{'normalizer':{'type':'NFC'},'normalizer':{'type':'NFD'}," MODEL "}");
    expect_bad("{'pre_tokenizer':5," MODEL "}");
    expect_bad("{'pre_tokenizer':{'type':'Digits'}," MODEL "}");
    expect_bad("{'pre_tokenizer':{'type':'Split','behavior':'Isolated','invert':false}," MODEL "}");
    expect_bad(
        "{'pre_tokenizer':{'type':'Split','pattern':{'Glob':'*'},'behavior':'Isolated','invert':"
        "false}," MODEL "}");
    expect_bad(
        "{'pre_tokenizer':{'type':'Split','pattern':{'Regex':'('},'behavior':'Isolated','invert':"
        "false}," MODEL "}");
    expect_unsupported(
        "{'pre_tokenizer':{'type':'Split','pattern':{'Regex':'(*ERROR{-2})'},'behavior':"
        "'Isolated','invert':false}," MODEL "}");
    expect_unsupported(
        "{'pre_tokenizer':{'type':'Split','pattern':{'Regex':'(?<a>x)\\\\g<a>'},'behavior':"
        "'Isolated','invert':false}," MODEL "}");
    expect_bad("{'pre_tokenizer':{'type':'Metaspace','replacement':'ab'}," MODEL "}");
    expect_bad("{'pre_tokenizer':{'type':'Metaspace','replacement':'_','prepend_scheme':'first',"
               "'add_prefix_space':false}," MODEL "}");
    expect_bad("{'normalizer':{'type':'Sequence'}," MODEL "}");
    expect_bad("{'normalizer':{'type':'Prepend'}," MODEL "}");
    expect_bad("{'decoder':{'type':'Strip','content':'','start':1,'stop':0}," MODEL "}");
}

#define PRE(more) "{'pre_tokenizer':{" more "}," MODEL "}"
#define DECODERS(list) "{'decoder':{'type':'Sequence','decoders':[" list "]}," MODEL "}"

static void test_bad_components(void **state)
{
    (void)state;
    static const char *const bad[] = {
        PRE("'type':'Split','behavior':'Isolated','invert':false,'pattern':5"),
        PRE("'type':'Split','behavior':'Isolated','invert':false,'pattern':{}"),
        PRE("'type':'Split','behavior':'Isolated','invert':false,'pattern':{'Regex':5}"),
        PRE("'type':'Split','behavior':'Isolated','invert':false,'pattern':{'Regex':'a','x':1}"),
        PRE("'type':'Split','pattern':{'String':'a'},'invert':false"),
        PRE("'type':'Split','pattern':{'String':'a'},'behavior':'Isolated'"),
        PRE("'type':'Split','pattern':{'String':'a'},'behavior':5,'invert':false"),
        PRE("'type':'ByteLevel'"),
        PRE("'type':'Metaspace'"),
        PRE("'type':'Metaspace','replacement':''"),
        PRE("'type':'Sequence','pretokenizers':5"),
        PRE("'type':'Sequence','pretokenizers':[5]"),
        "{'normalizer':{'type':'Strip','strip_left':true}," MODEL "}",
        "{'normalizer':{'type':'Strip','strip_right':true}," MODEL "}",
        "{'normalizer':{'type':'Replace','pattern':{'String':'a'}}," MODEL "}",
        "{'decoder':{'type':'Replace','pattern':{'String':'a'}}," MODEL "}",
        "{'decoder':{'type':'Strip','content':'a','start':-1,'stop':0}," MODEL "}",
        "{'decoder':{'type':'Metaspace'}," MODEL "}",
    };
    static const char *const unsupported[] = {
        PRE("'type':'Punctuation','behavior':'Eaten'"),
        PRE("'type':'Metaspace','replacement':'_','prepend_scheme':'last'"),
        DECODERS("{'type':'ByteFallback'},{'type':'Metaspace','replacement':'_'}"),
        DECODERS("{'type':'Fuse'},{'type':'Strip','content':'a','start':1,'stop':0},"
                 "{'type':'Strip','content':'a','start':1,'stop':0}"),
    };
    static const char *const good[] = {
        PRE("'type':'Punctuation'"),
        PRE("'type':'Punctuation','behavior':'Removed'"),
        "{'normalizer':null,'pre_tokenizer':null,'decoder':null,'post_processor':null," MODEL "}",
        DECODERS("{'type':'ByteFallback'},{'type':'Fuse'},"
                 "{'type':'Strip','content':'a','start':1,'stop':0}"),
    };
    for (size_t i = 0; i < COUNT(bad); i++)
        expect_bad(bad[i]);
    for (size_t i = 0; i < COUNT(unsupported); i++)
        expect_unsupported(unsupported[i]);
    for (size_t i = 0; i < COUNT(good); i++)
        nib__tokenizer_close(parse_text(with_double_quotes(good[i]), NULL));
}

/* A component that becomes several stages, before which there are almost too many. */
static void test_many_stages(void **state)
{
    (void)state;
    static const struct {
        const char *component;
        int stages;
    } cases[] = {
        {"{'type':'ByteLevel','add_prefix_space':true}", 3},
        {"{'type':'ByteLevel','add_prefix_space':true,'use_regex':false}", 2},
        {"{'type':'Metaspace','replacement':'_'}", 2},
        {"{'type':'Metaspace','replacement':'_','split':false}", 1},
        {"{'type':'Split','pattern':{'String':'a'},'behavior':'Isolated','invert':false}", 1},
        {"{'type':'Digits','individual_digits':true}", 1},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int room = 0; room <= 3; room++) {
            char text[8192] = "{'pre_tokenizer':{'type':'Sequence','pretokenizers':[";
            for (int j = room; j < 64; j++)
                strcat(text, "{'type':'WhitespaceSplit'},");
            strcat(text, cases[i].component);
            strcat(text, "]}," MODEL "}");
            if (room < cases[i].stages)
                expect_unsupported(text);
            else
                nib__tokenizer_close(parse_text(with_double_quotes(text), NULL));
        }
    char text[8192] = "{'decoder':{'type':'Sequence','decoders':[";
    for (int i = 0; i < 64; i++)
        strcat(text, "{'type':'Replace','pattern':{'String':'a'},'content':'b'},");
    strcat(text, "{'type':'Fuse'}]}," MODEL "}");
    expect_unsupported(text);
}

static void test_post_processors(void **state)
{
    (void)state;
    expect_bad("{'post_processor':{'type':'TemplateProcessing','single':[{'Sequence':{'id':'A'}},"
               "{'Sequence':{'id':'A'}}],'special_tokens':{}}," MODEL "}");
    expect_bad(
        "{'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'<s>'}},"
        "{'Sequence':{'id':'A'}}],'special_tokens':{}}," MODEL "}");
    expect_bad(
        "{'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'x'}},"
        "{'Sequence':{'id':'A'}}],'special_tokens':{'x':{'id':'x','ids':[99]}}}," MODEL "}");
    expect_bad("{'post_processor':{'type':'BertProcessing','sep':['c',3]}," MODEL "}");
    expect_unsupported("{'post_processor':{'type':'TemplateProcessing','single':[]}," MODEL "}");
    nib_tokenizer *t = parse_text(
        with_double_quotes(
            "{'post_processor':{'type':'Sequence','processors':[{'type':'BertProcessing',"
            "'sep':['c',3],'cls':['a',0]},{'type':'TemplateProcessing','single':["
            "{'SpecialToken':{'id':'x','type_id':0}},{'Sequence':{'id':'A','type_id':0}},"
            "{'SpecialToken':{'id':'y','type_id':0}}],'special_tokens':{'y':{'ids':[2,2]},"
            "'x':{'ids':[1]}}}]}," MODEL "}"),
        NULL);
    expect_ids(t, "ab", NIB_ENCODE_ADD_SPECIAL, "1 0 2 3 2 2");
    expect_ids(t, "ab", 0, "2");
    nib__tokenizer_close(t);
}

/* A template, with special_tokens x and y. */
#define TEMPLATE(single, specials)                                                                 \
    "{'post_processor':{'type':'TemplateProcessing','single':" single                              \
    ",'special_tokens':" specials "}," MODEL "}"
#define NAMED(name, id) "'" name "':{'id':'" name "','ids':[" id "],'tokens':['" name "']}"

static void test_bad_post_processors(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "{'post_processor':5," MODEL "}",
        "{'post_processor':{}," MODEL "}",
        "{'post_processor':{'type':5}," MODEL "}",
        "{'post_processor':{'type':'ByteLevel','magic':1}," MODEL "}",
        "{'post_processor':{'type':'Sequence','processors':5}," MODEL "}",
        "{'post_processor':{'type':'Sequence','processors':[5]}," MODEL "}",
        "{'post_processor':{'type':'BertProcessing','cls':['a',0]}," MODEL "}",
        "{'post_processor':{'type':'BertProcessing','sep':['a',0],'cls':5}," MODEL "}",
        "{'post_processor':{'type':'BertProcessing','sep':['a',0],'cls':[0,'a']}," MODEL "}",
        "{'post_processor':{'type':'BertProcessing','sep':['a',0],'cls':['a',-1]}," MODEL "}",
        "{'post_processor':{'type':'BertProcessing','sep':['a',4194304],'cls':['a',0]}," MODEL "}",
        TEMPLATE("5", "{}"),
        TEMPLATE("[5]", "{}"),
        TEMPLATE("[{}]", "{}"),
        TEMPLATE("[{'Sequence':5}]", "{}"),
        TEMPLATE("[{'Pair':{'id':'A'}}]", "{}"),
        TEMPLATE("[{'Sequence':{'type_id':0}}]", "{}"),
        TEMPLATE("[{'Sequence':{'id':5}}]", "{}"),
        TEMPLATE("[{'Sequence':{'id':'A'},'more':1}]", "{}"),
        TEMPLATE("[{'SpecialToken':{'id':'x'}}]", "5"),
        TEMPLATE("[{'SpecialToken':{'id':'x'}}]", "{'x':5}"),
        TEMPLATE("[{'SpecialToken':{'id':'x'}}]", "{'x':{'id':'x'}}"),
        TEMPLATE("[{'SpecialToken':{'id':'x'}}]", "{'x':{'ids':5}}"),
        TEMPLATE("[{'SpecialToken':{'id':'x'}}]", "{" NAMED("x", "'a'") "}"),
        TEMPLATE("[{'SpecialToken':{'id':'x'}}]", "{" NAMED("x", "1.5") "}"),
        TEMPLATE("[{'SpecialToken':{'id':'x'}}]", "{" NAMED("x", "-1") "}"),
        TEMPLATE("[{'SpecialToken':{'id':'x'}}]", "{" NAMED("x", "4194304") "}"),
        TEMPLATE("[{'SpecialToken':{'id':'x'}}]", "{" NAMED("x", "1") "}"), /* without the text */
    };
    static const char *const unsupported[] = {
        "{'post_processor':{'type':'Sequence'}," MODEL "}",
        "{'post_processor':{'type':'TemplateProcessing','special_tokens':{}}," MODEL "}",
    };
    for (size_t i = 0; i < COUNT(bad); i++)
        expect_bad(bad[i]);
    for (size_t i = 0; i < COUNT(unsupported); i++)
        expect_unsupported(unsupported[i]);
    /* too many tokens: of one name, of a template, and of two */
    char ids[400] = "1", text[1600];
    for (int i = 1; i < 65; i++)
        strcat(ids, ",1");
    for (int half = 0; half < 3; half++) {
        if (half == 1)
            ids[2 * 40 - 1] = '\0'; /* 40 of them */
        snprintf(text, sizeof text,
                 half < 2
                     ? "{'post_processor':{'type':'TemplateProcessing','single':["
                       "{'SpecialToken':{'id':'x'}},{'SpecialToken':{'id':'x'}},"
                       "{'Sequence':{'id':'A'}}],'special_tokens':{'x':{'ids':[%s]}}}," MODEL "}"
                     : "{'post_processor':{'type':'Sequence','processors':["
                       "{'type':'TemplateProcessing','single':[{'Sequence':{'id':'A'}},"
                       "{'SpecialToken':{'id':'x'}}],'special_tokens':{'x':{'ids':[%s]}}},"
                       "{'type':'TemplateProcessing','single':[{'Sequence':{'id':'A'}},"
                       "{'SpecialToken':{'id':'x'}}],'special_tokens':{'x':{'ids':[%s]}}}]}," MODEL
                       "}",
                 ids, ids);
        if (half < 2)
            expect_bad(text);
        else
            expect_unsupported(text);
    }
    put_nested(text, sizeof text, 18, "post_processor", "processors", "ByteLevel");
    expect_unsupported(text);
}

#define ADDED(id, content, more)                                                                   \
    "{'id':" #id ",'content':'" content "','special':true,'normalized':false" more "}"

static void test_added_tokens(void **state)
{
    (void)state;
    expect_bad("{'added_tokens':[" ADDED(5, "ab", "") "]," MODEL "}");
    expect_bad("{'added_tokens':[" ADDED(2, "x", "") "]," MODEL "}");
    expect_bad("{'added_tokens':[" ADDED(5, "x", "") "," ADDED(6, "x", "") "]," MODEL "}");
    expect_bad("{'added_tokens':[{'content':'x'}]," MODEL "}");
    expect_bad("{'added_tokens':[{'id':5}]," MODEL "}");
    expect_bad("{'added_tokens':[5]," MODEL "}");
    expect_bad("{'added_tokens':5," MODEL "}");
    char long_token[1200], text[1600];
    memset(long_token, 'x', sizeof long_token);
    long_token[513] = 0;
    snprintf(text, sizeof text, "{'added_tokens':[{'id':9,'content':'%s'}]," MODEL "}", long_token);
    expect_unsupported(text);
    long_token[300] = 0;
    snprintf(text, sizeof text,
             "{'normalizer':{'type':'Replace','pattern':{'String':'x'},'content':'xx'},"
             "'added_tokens':[{'id':9,'content':'%s','normalized':true}]," MODEL "}",
             long_token);
    expect_unsupported(text);
    /* a duplicate token and an empty one are harmless */
    nib_tokenizer *t =
        parse_text(with_double_quotes("{'added_tokens':[" ADDED(5, "x", "") "," ADDED(
                       5, "x", "") "," ADDED(9, "", "") "]," MODEL "}"),
                   NULL);
    expect_ids(t, "axb", NIB_ENCODE_PARSE_SPECIAL, "0 5 1");
    assert_int_equal(nib__tokenizer_find(t, "x", 1), 5);
    assert_true(nib__tokenizer_is_special(t, 5));
    assert_false(nib__tokenizer_is_special(t, 2));
    nib__tokenizer_close(t);
    t = parse_text(with_double_quotes("{'normalizer':{'type':'Lowercase'},'added_tokens':["
                                      "{'id':5,'content':'X','normalized':true},"
                                      "{'id':5,'content':'X','normalized':true}]," MODEL "}"),
                   NULL);
    expect_ids(t, "aXb", NIB_ENCODE_PARSE_SPECIAL, "0 5 1");
    nib__tokenizer_close(t);
}

static void test_config(void **state)
{
    static const char json[] = "{'added_tokens':[" ADDED(4, "<s>", "") "]," MODEL "}";
    (void)state;
    nib_tokenizer *t =
        parse_text(with_double_quotes(json),
                   with_double_quotes(
                       "{'bos_token':'<s>','eos_token':{'__type':'AddedToken',"
                       "'content':'</s>'},'add_bos_token':true,'add_eos_token':true,"
                       "'model_max_length':1e30,'x':[NaN],'added_tokens_decoder':{'4':"
                       "{'content':'<s>','special':true},'6':{'content':'</s>','special':true}}}"));
    assert_int_equal(nib__tokenizer_bos(t), 4);
    assert_int_equal(nib__tokenizer_eos(t), 6);
    assert_true(nib__tokenizer_adds_bos(t));
    expect_ids(t, "ab</s>", NIB_ENCODE_ADD_SPECIAL | NIB_ENCODE_PARSE_SPECIAL, "4 2 6 6");
    nib__tokenizer_close(t);
    t = parse_text(
        with_double_quotes(json),
        with_double_quotes(
            "{'bos_token':'<s>','eos_token':null,'add_bos_token':null,'add_eos_token':false}"));
    assert_int_equal(nib__tokenizer_bos(t), 4);
    assert_int_equal(nib__tokenizer_eos(t), -1);
    assert_false(nib__tokenizer_adds_bos(t));
    expect_ids(t, "ab", NIB_ENCODE_ADD_SPECIAL, "2");
    nib__tokenizer_close(t);
    static const char *const bad[] = {
        "{'bos_token':'<bos>'}",
        "{'eos_token':'<eos>'}",
        "{'bos_token':5}",
        "{'bos_token':{'content':5}}",
        "{'add_bos_token':'yes'}",
        "{'added_tokens_decoder':[]}",
        "{'added_tokens_decoder':{'x':{}}}",
        "{'added_tokens_decoder':{'-5':{}}}",
        "{'added_tokens_decoder':{'5x':{}}}",
        "{'added_tokens_decoder':{'123456789':{}}}",
        "{'added_tokens_decoder':{'5':5}}",
        "{'added_tokens_decoder':{'9':{'content':'<s>'}}}",
        "",
    };
    for (size_t i = 0; i < COUNT(bad); i++)
        expect_error(with_double_quotes(json), with_double_quotes(bad[i]), NIB_BAD_INPUT);
    char long_token[600];
    snprintf(long_token, sizeof long_token, "{'added_tokens_decoder':{'9':{'content':'%0513d'}}}",
             0);
    expect_error(with_double_quotes(json), with_double_quotes(long_token), NIB_UNSUPPORTED);
    /* tokens that are to be added, and are not named */
    t = parse_text(with_double_quotes(json),
                   with_double_quotes("{'add_bos_token':true,'add_eos_token':true}"));
    expect_ids(t, "ab", NIB_ENCODE_ADD_SPECIAL, "2");
    nib__tokenizer_close(t);
}

/* If tokenizer.json has a post-processor, it decides the added tokens, not the configuration. */
static void test_config_and_processor(void **state)
{
    (void)state;
    nib_tokenizer *t =
        parse_text(with_double_quotes("{'post_processor':{'type':'ByteLevel','add_prefix_space':"
                                      "true,'trim_offsets':true}," MODEL "}"),
                   with_double_quotes("{'bos_token':'c','add_bos_token':true}"));
    expect_ids(t, "ab", NIB_ENCODE_ADD_SPECIAL, "2");
    assert_false(nib__tokenizer_adds_bos(t));
    nib__tokenizer_close(t);
}

static void test_open(void **state)
{
    const nib_allocator a = nib__allocator_default();
    nib_tokenizer *t = NULL;
    nib_err err = {.status = NIB_OK};
    (void)state;
    refused(NIB_IO, nib__tokenizer_open(&t, "no/such/tokenizer.json", NULL, &a, &err), &err);
    refused(NIB_IO,
            nib__tokenizer_open(&t, "tests/golden/tokenizer_bytes.json", "no/such/config.json", &a,
                                &err),
            &err);
    assert_null(t);
    nib__tokenizer_close(open_path("tests/golden/tokenizer_bytes.json", NULL));
}

/* ---- cost ---- */

static void test_nesting(void **state)
{
    char text[8192];
    (void)state;
    put_nested(text, sizeof text, 20, "normalizer", "normalizers", "NFC");
    expect_unsupported(text);
    size_t used =
        (size_t)snprintf(text, sizeof text, "{'normalizer':{'type':'Sequence','normalizers':[");
    for (int i = 0; i < 65; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s{'type':'NFC'}",
                                 i == 0 ? "" : ",");
    snprintf(text + used, sizeof text - used, "]}," MODEL "}");
    expect_unsupported(text);
}

static void test_long_patterns(void **state)
{
    static char text[70000];
    static const char start[] = "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"";
    static const char end[] = "\"},\"behavior\":\"Isolated\",\"invert\":false},\"model\":{}}";
    (void)state;
    memcpy(text, start, sizeof start);
    memset(text + sizeof start - 1, 'a', 20000);
    memcpy(text + sizeof start - 1 + 20000, end, sizeof end);
    expect_error(text, NULL, NIB_UNSUPPORTED);
    memset(text + sizeof start - 1, '(', 5000);
    memcpy(text + sizeof start - 1 + 5000, end, sizeof end);
    expect_error(text, NULL, NIB_UNSUPPORTED);
    static const char both[] =
        "{'pre_tokenizer':{'type':'Sequence','pretokenizers':[%s%s%s]}," MODEL "}";
    static char split[16000];
    const int used = snprintf(split, sizeof split,
                              "{'type':'Split','behavior':'Isolated',"
                              "'invert':false,'pattern':{'Regex':'");
    memset(split + used, 'a', 12000);
    memcpy(split + used + 12000, "'}}", 4);
    static char again[16002];
    snprintf(again, sizeof again, ",%s", split);
    snprintf(text, sizeof text, both, split, again, again);
    for (char *quote = text; (quote = strchr(quote, '\'')) != NULL;) /* too long for quoted() */
        *quote = '"';
    expect_error(text, NULL, NIB_UNSUPPORTED);
}

/* Groups that call groups: 2^40 paths, all of which Oniguruma would visit to compile the pattern.
 */
static void test_calling_patterns(void **state)
{
    static char text[4096];
    (void)state;
    int used = snprintf(text, sizeof text,
                        "{'pre_tokenizer':{'type':'Split','behavior':'Isolated','invert':false,"
                        "'pattern':{'Regex':'");
    for (int i = 0; i < 40; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "(?<g%d>\\\\g<g%d>\\\\g<g%d>)", i,
                         i + 1, i + 1);
    snprintf(text + used, sizeof text - (size_t)used, "(?<g40>a)'}}," MODEL "}");
    expect_unsupported(text);
    /* a backslash and a g */
    nib__tokenizer_close(
        parse_text(with_double_quotes("{'pre_tokenizer':{'type':'Split','behavior':'Isolated',"
                                      "'invert':false,'pattern':{'Regex':'\\\\\\\\g'}}," MODEL "}"),
                   NULL));
}

/* T16: 40 MB of vocabulary and merges. */
static void test_large_file(void **state)
{
    enum { TOKENS = 1100000, MERGES = 1000000 };
    const nib_allocator plain = nib__allocator_default();
    meter m = {0, 0};
    const nib_allocator a = metered_allocator(&m);
    nib_text text;
    nib_tokenizer *t = NULL;
    nib_err err = {.status = NIB_OK};
    (void)state;
    nib__text_init(&text, &plain);
    nib__text_str(&text, "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"x\":0,\"xx\":1");
    for (int i = 2; i < TOKENS; i++)
        nib__text_format(&text, ",\"token number %d\":%d", i, i);
    nib__text_str(&text, "},\"merges\":[\"x x\"");
    for (int i = 1; i < MERGES; i++)
        nib__text_str(&text, ",[\"x\",\"x\"]");
    nib__text_str(&text, "]}}");
    assert_true(text.size > 40000000);
    if (parse_status(&t, text.at, NULL, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(nib__tokenizer_vocab_size(t), TOKENS);
    assert_true(m.peak <= 2 * text.size + (64u << 20));
    nib__tokenizer_close(t);
    assert_int_equal(m.now, 0);
    nib__text_free(&text);
}

/* A single token with the largest id must cost no more than a small file. */
static void test_one_large_id(void **state)
{
    meter m = {0, 0};
    const nib_allocator a = metered_allocator(&m);
    nib_tokenizer *t = NULL;
    (void)state;
    assert_int_equal(
        parse_status(&t, with_double_quotes("{'model':{'vocab':{'a':4194303},'merges':[]}}"), NULL,
                     &a, NULL),
        NIB_OK);
    assert_int_equal(nib__tokenizer_vocab_size(t), NIB_TOKENIZER_IDS);
    assert_true(m.peak <= 64u << 20);
    nib__tokenizer_close(t);
}

/* Each allocation of opening and encoding fails once: an error, and nothing leaks. */
static void test_no_memory(void **state)
{
    const nib_allocator plain = nib__allocator_default();
    nib_arena arena;
    size_t size;
    bool done = false;
    (void)state;
    nib__arena_init(&arena, &plain, 0);
    const char *text = read_text(&arena, "tests/golden/tokenizer_bytes.json", &size);
    const char *const config = with_double_quotes(
        "{'bos_token':{'content':'<s>'},'added_tokens_decoder':{'9999':{'content':'<x>'}}}");
    for (int n = 0; !done; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        nib_tokenizer *t = NULL;
        nib_err err = {.status = NIB_OK};
        int32_t *ids = NULL;
        size_t count = 0;
        nib_status status = parse_status(&t, text, config, &a, &err);
        if (status == NIB_OK)
            status = nib__tokenizer_encode(t, "Hello <s> world, e\xcc\x81!", 21,
                                           NIB_ENCODE_PARSE_SPECIAL, &ids, &count, &err);
        done = status == NIB_OK;
        if (!done)
            if (err.status != NIB_NO_MEMORY)
                fail_msg("allocation %d: %s", n, err.text);
        if (t != NULL)
            nib__tokenizer_ids_free(t, ids);
        nib__tokenizer_close(t);
        assert_int_equal(f.live, 0);
        assert_true(n < 10000);
    }
    nib__arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smallest),
        cmocka_unit_test(test_not_a_tokenizer),
        cmocka_unit_test(test_model_parts),
        cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_merges),
        cmocka_unit_test(test_unset),
        cmocka_unit_test(test_many_escapes),
        cmocka_unit_test(test_components),
        cmocka_unit_test(test_bad_components),
        cmocka_unit_test(test_many_stages),
        cmocka_unit_test(test_post_processors),
        cmocka_unit_test(test_bad_post_processors),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_config_and_processor),
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_long_patterns),
        cmocka_unit_test(test_calling_patterns),
        cmocka_unit_test(test_large_file),
        cmocka_unit_test(test_one_large_id),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

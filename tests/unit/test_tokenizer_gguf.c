/* SPDX-License-Identifier: Apache-2.0
 *
 * Vocabularies in GGUF files: how each array and flag affects the ids; inconsistent keys are errors
 * that name the key. test_gguf_vocab.c compares ids with llama.cpp's.
 */
#include "failing.h"
#include "tokenizing.h"

#include "refused.h"

#include <math.h>
#include <stdio.h>

enum { SPECIAL = NIB_ENCODE_ADD_SPECIAL | NIB_ENCODE_PARSE_SPECIAL };
enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

#define TEXT(string)                                                                               \
    {                                                                                              \
        string, sizeof(string) - 1                                                                 \
    }

/* ---- a byte-level vocabulary ---- */

static const nib_vocab_text LETTERS[] = {
    TEXT("a"), TEXT("b"), TEXT("ab"), TEXT("c"), TEXT("<s>"), TEXT("\xc4\xa0"), TEXT("dd"),
};
static const int32_t LETTER_TYPES[] = {NORMAL,  NORMAL, NORMAL,      NORMAL,
                                       CONTROL, NORMAL, USER_DEFINED};
static const nib_vocab_text LETTER_MERGES[] = {TEXT("a b")};

static nib_vocab_source letters(void)
{
    return (nib_vocab_source){.name = "x.gguf",
                              .model = TEXT("gpt2"),
                              .pre = TEXT("gpt-2"),
                              .tokens = LETTERS,
                              .token_count = COUNT(LETTERS),
                              .types = LETTER_TYPES,
                              .type_count = COUNT(LETTER_TYPES),
                              .merges = LETTER_MERGES,
                              .merge_count = COUNT(LETTER_MERGES),
                              .bos = -1,
                              .eos = -1,
                              .unk = -1};
}

/* ---- a vocabulary of pieces ---- */

static const nib_vocab_text PIECES[] = {
    TEXT("<unk>"),
    TEXT("<s>"),
    TEXT("</s>"),
    TEXT("<0x63>"),
    TEXT("a"),
    TEXT("b"),
    TEXT("\xe2\x96\x81"),
    TEXT("ab"),
    TEXT("ba"),
    TEXT("\xe2\x96\x81"
         "a"),
    TEXT("aba"),
};
static const int32_t PIECE_TYPES[] = {
    UNKNOWN, CONTROL, CONTROL, BYTE, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL,
};
static const float SCORES[] = {0, 0, 0, 0, -1, -1, -1, -3, -3, -5, -9};

static nib_vocab_source pieces(void)
{
    return (nib_vocab_source){.name = "x.gguf",
                              .model = TEXT("llama"),
                              .tokens = PIECES,
                              .token_count = COUNT(PIECES),
                              .types = PIECE_TYPES,
                              .type_count = COUNT(PIECE_TYPES),
                              .scores = SCORES,
                              .score_count = COUNT(SCORES),
                              .bos = -1,
                              .eos = -1,
                              .unk = -1};
}

static nib_tokenizer *open_source(nib_vocab_source source)
{
    const nib_allocator a = nib__allocator_default();
    nib_tokenizer *t = NULL;
    nib_err err = {.status = NIB_OK};
    if (nib__tokenizer_from_vocab(&t, &source, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return t;
}

static void expect_source(nib_vocab_source source, const char *text, unsigned flags,
                          const char *expected)
{
    nib_tokenizer *t = open_source(source);
    expect_ids(t, text, flags, expected);
    nib__tokenizer_close(t);
}

static void expect_error(nib_vocab_source source, nib_status status)
{
    failing f = {.left = -1};
    const nib_allocator a = failing_allocator(&f);
    nib_tokenizer *t = NULL;
    nib_err err = {.status = NIB_OK};
    refused(status, nib__tokenizer_from_vocab(&t, &source, &a, &err), &err);
    assert_null(t);
    assert_int_equal(f.live, 0);
    assert_int_equal(nib__tokenizer_from_vocab(&t, &source, &a, NULL), status);
}

static void expect_bad(nib_vocab_source source) { expect_error(source, NIB_BAD_INPUT); }

static void expect_unsupported(nib_vocab_source source) { expect_error(source, NIB_UNSUPPORTED); }

static void expect_text(const nib_tokenizer *t, const char *words, bool skip_special,
                        const char *expected)
{
    const nib_allocator a = nib__allocator_default();
    int32_t ids[32];
    nib_text out;
    nib__text_init(&out, &a);
    const size_t count = read_ids(words, ids, COUNT(ids));
    decode_both(&out, t, ids, count, skip_special);
    assert_string_equal(out.at, expected);
    nib__text_free(&out);
}

/* ---- valid vocabularies ---- */

static void test_byte_level(void **state)
{
    (void)state;
    nib_tokenizer *t = open_source(letters());
    expect_ids(t, "abcab a", 0, "2 3 2 5 0");
    expect_ids(t, "<s>", NIB_ENCODE_PARSE_SPECIAL, "4");
    expect_ids(t, "addb", 0, "0 6 1"); /* a user-defined token, whatever the flags */
    assert_int_equal(nib__tokenizer_vocab_size(t), 7);
    assert_int_equal(nib__tokenizer_bos(t), -1);
    assert_true(nib__tokenizer_is_special(t, 4));
    assert_false(nib__tokenizer_is_special(t, 6));
    expect_text(t, "2 5 0 4 6", false, "ab a<s>dd");
    expect_text(t, "2 5 0 4 6", true, "ab add");
    nib__tokenizer_close(t);
}

static void test_pieces(void **state)
{
    nib_vocab_source s = pieces();
    (void)state;
    nib_tokenizer *t = open_source(s);
    assert_int_equal(nib__tokenizer_bos(t), 1); /* SentencePiece's default, as the file has none */
    assert_int_equal(nib__tokenizer_eos(t), 2);
    assert_true(nib__tokenizer_adds_bos(t));
    expect_ids(t, "ab", SPECIAL, "1 6 7");
    expect_ids(t, "aba", 0, "6 10"); /* "ab" and "ba" have equal scores: the leftmost first */
    expect_ids(t, "bab", 0, "6 8 5");
    expect_ids(t, "c", 0, "6 3");         /* a byte */
    expect_ids(t, "d\xc3\xa9", 0, "6 0"); /* no byte tokens for these: one unknown for both */
    expect_ids(t, "<s>a</s>", NIB_ENCODE_PARSE_SPECIAL, "1 9 2");
    expect_text(t, "1 6 7 9 3", true, "ab ac");
    nib__tokenizer_close(t);
    s.add_space_prefix = NIB_VOCAB_FLAG_FALSE;
    s.add_bos = NIB_VOCAB_FLAG_FALSE;
    s.add_eos = NIB_VOCAB_FLAG_TRUE;
    t = open_source(s);
    expect_ids(t, "ab", SPECIAL, "7 2");
    expect_text(t, "9 7", true, " aab");
    nib__tokenizer_close(t);
}

/* "gemma4": pieces that merge as listed, whatever their scores, without a space before the text and
 * without SentencePiece's ids. */
static void test_listed_merges(void **state)
{
    static const nib_vocab_text merges[] = {TEXT("b a"), TEXT("a b"), TEXT("ab a"),
                                            TEXT("\xe2\x96\x81 a")};
    nib_vocab_source s = pieces();
    (void)state;
    s.model = (nib_vocab_text)TEXT("gemma4");
    expect_bad(s); /* no merges */
    s.merges = merges;
    s.merge_count = COUNT(merges);
    s.unk = 0;
    nib_tokenizer *t = open_source(s);
    assert_int_equal(nib__tokenizer_bos(t), -1);
    assert_false(nib__tokenizer_adds_bos(t));
    expect_ids(t, "aba", 0, "4 8");
    expect_ids(t, "ab a", SPECIAL, "7 9");
    expect_ids(t, "c\na", 0, "3 0 4"); /* a byte, and one unknown */
    expect_text(t, "9 8 3", true, " abac");
    nib__tokenizer_close(t);
    s.bos = 2;
    s.add_space_prefix = NIB_VOCAB_FLAG_TRUE;
    t = open_source(s);
    expect_ids(t, "ab", SPECIAL, "2 6 7");
    nib__tokenizer_close(t);
}

/* Without token types, byte tokens are recognized by name and special tokens by their keys. */
static void test_no_types(void **state)
{
    nib_vocab_source s = pieces();
    (void)state;
    s.types = NULL;
    nib_tokenizer *t = open_source(s);
    expect_ids(t, "c<s>", 0, "6 3 0"); /* "<", "s" and ">" are not known */
    expect_ids(t, "c<s>", NIB_ENCODE_PARSE_SPECIAL, "6 3 1");
    expect_text(t, "3 4", false, "ca");
    assert_true(nib__tokenizer_is_special(t, 0));
    nib__tokenizer_close(t);
}

/* Nor do merges make a byte token from a text that looks like its name. */
static void test_text_like_a_byte(void **state)
{
    static const nib_vocab_text tokens[] = {
        TEXT("<unk>"),
        TEXT("<s>"),
        TEXT("</s>"),
        TEXT("<0x63>"),
        TEXT("<"),
        TEXT("0"),
        TEXT("x"),
        TEXT("6"),
        TEXT("3"),
        TEXT(">"),
        TEXT("<0"),
        TEXT("<0x"),
        TEXT("\xe2\x96\x81"),
        TEXT("<0x6"),
        TEXT("<0x63"),
        TEXT("<0x6G>"),
        TEXT("G"),
        TEXT("<0x6G"),
        TEXT("<0x6F>"),
        TEXT("<0x6F"),
        TEXT("F"),
    };
    static const float scores[COUNT(tokens)] = {0};
    nib_vocab_source s = pieces();
    (void)state;
    s.types = NULL;
    s.tokens = tokens;
    s.token_count = COUNT(tokens);
    s.scores = scores;
    s.score_count = COUNT(tokens);
    expect_source(s, "<0x63>", 0, "12 14 9");
    expect_source(s, "<0x6G>", 0, "12 15"); /* not a byte's name */
    expect_source(s, "<0x6F>", 0, "12 19 9");
    expect_source(s, "o", 0, "12 18");
    expect_source(s, "c", 0, "12 3");
}

/* Merges instead of scores, as some converters of tokenizer.json write. */
static void test_pieces_by_merges(void **state)
{
    static const nib_vocab_text merges[] = {TEXT("b a"), TEXT("a b")};
    nib_vocab_source s = pieces();
    (void)state;
    s.scores = NULL;
    expect_bad(s);
    s.merges = merges;
    s.merge_count = COUNT(merges);
    expect_source(s, "aba", 0, "6 4 8");
}

/* A converter without scores wrote the same one for all tokens: ids give the order. */
static void test_no_scores(void **state)
{
    static const float scores[] = {-1000, -1000, -1000, -1000, -1000, -1000, -1000, -1000, -1000};
    static const nib_vocab_text tokens[] = {
        TEXT("<unk>"), TEXT("<s>"), TEXT("</s>"), TEXT("a"),  TEXT("b"),
        TEXT("c"),     TEXT("bc"),  TEXT("ab"),   TEXT("ca"),
    };
    nib_vocab_source s = pieces();
    (void)state;
    s.scores = scores;
    s.score_count = COUNT(scores);
    s.types = NULL;
    s.tokens = tokens;
    s.token_count = COUNT(tokens);
    s.add_space_prefix = NIB_VOCAB_FLAG_FALSE;
    expect_source(s, "abca", 0, "3 6 3"); /* leftmost first would be 7 8 */
}

/* Llama 3 encodes a word that is a token as that token; GPT-2 merges it from parts. */
static void test_flags_of_pre(void **state)
{
    static const nib_vocab_text tokens[] = {
        TEXT("<s>"),      TEXT("a"),        TEXT("b"), TEXT("c"),        TEXT("abc"),
        TEXT("\xc3\x83"), TEXT("\xc2\xa9"), TEXT("e"), TEXT("\xc3\x8c"), TEXT("\xc4\xa3"),
    };
    nib_vocab_source s = letters();
    (void)state;
    s.tokens = tokens;
    s.token_count = COUNT(tokens);
    s.types = NULL;
    s.merge_count = 0;
    s.bos = 0;
    expect_source(s, "abc", SPECIAL, "1 2 3");
    s.pre = (nib_vocab_text)TEXT("llama-bpe");
    expect_source(s, "abc", SPECIAL, "0 4");
    s.add_bos = NIB_VOCAB_FLAG_FALSE;
    expect_source(s, "abc", SPECIAL, "4");
    expect_source(s, "e\xcc\x81", 0, "7 8 9");
    s.pre = (nib_vocab_text)TEXT("qwen2"); /* normalizes */
    expect_source(s, "e\xcc\x81", 0, "5 6");
}

static nib_json_losses losses_of(const nib_tokenizer *t)
{
    const nib_allocator a = nib__allocator_default();
    nib_json_losses losses;
    nib_err err = {.status = NIB_OK};
    nib_text text;
    nib__text_init(&text, &a);
    assert_int_equal(nib__tokenizer_write(&text, t, &losses, &err), NIB_OK);
    nib__text_free(&text);
    return losses;
}

/* T05: duplicate tokens, which a vendor's valid file has. */
static void test_duplicate_tokens(void **state)
{
    static const nib_vocab_text tokens[] = {
        TEXT("a"),   TEXT("b"),   TEXT("a"), TEXT("ab"), TEXT("ab"),
        TEXT("<x>"), TEXT("<x>"), TEXT(""),  TEXT(""),
    };
    static const int32_t types[] = {NORMAL,  NORMAL,  NORMAL, NORMAL, NORMAL,
                                    CONTROL, CONTROL, UNUSED, UNUSED};
    nib_vocab_source s = letters();
    (void)state;
    s.tokens = tokens;
    s.types = types;
    s.token_count = s.type_count = COUNT(tokens);
    nib_tokenizer *t = open_source(s);
    expect_ids(t, "aab", 0, "0 3");
    expect_ids(t, "<x>", NIB_ENCODE_PARSE_SPECIAL, "5");
    expect_text(t, "2 4 6 7 8", false, "aab<x>");
    expect_text(t, "2 4 6 7 8", true, "aab");
    assert_int_equal(losses_of(t).twice, 6);
    nib__tokenizer_close(t);
}

/* DeepSeek Coder's byte alphabet lacks letters, which it has as user-defined tokens: such a letter
 * represents itself, not a byte. */
static void test_verbatim(void **state)
{
    static const nib_vocab_text tokens[] = {TEXT("a"), TEXT("\xc3\xbc"), TEXT("\xc4\xa0")};
    static const int32_t types[] = {NORMAL, USER_DEFINED, NORMAL};
    nib_vocab_source s = letters();
    (void)state;
    s.tokens = tokens;
    s.types = types;
    s.token_count = s.type_count = COUNT(tokens);
    s.merge_count = 0;
    nib_tokenizer *t = open_source(s);
    expect_ids(t, "a\xc3\xbc a", 0, "0 1 2 0");
    expect_text(t, "0 1 2 0", false, "a\xc3\xbc a");
    assert_int_equal(losses_of(t).twice, -1);
    assert_int_equal(losses_of(t).misspelled, 1); /* as the byte 0xfc */
    nib__tokenizer_close(t);
}

/* ---- inconsistent vocabularies ---- */

static void test_models(void **state)
{
    nib_vocab_source s = letters();
    (void)state;
    s.model = (nib_vocab_text){NULL, 0};
    expect_bad(s);
    s.model = (nib_vocab_text)TEXT("bert");
    expect_unsupported(s);
    s.model = (nib_vocab_text)TEXT("t5");
    expect_unsupported(s);
    s.model = (nib_vocab_text)TEXT("rwkv");
    expect_unsupported(s);
    s.model = (nib_vocab_text)TEXT("no_vocab");
    expect_unsupported(s);
    s.model = (nib_vocab_text)TEXT("\033[2J");
    expect_unsupported(s);
}

/* T07: an unknown pre-tokenizer has no default. */
static void test_unknown_pre_tokenizer(void **state)
{
    nib_vocab_source s = letters();
    (void)state;
    s.pre = (nib_vocab_text){NULL, 0};
    expect_unsupported(s);
    s.pre = (nib_vocab_text)TEXT("nonsense");
    expect_unsupported(s);
    s.pre = (nib_vocab_text)TEXT("");
    expect_unsupported(s);
    s.pre = (nib_vocab_text)TEXT("gpt-2 ");
    expect_unsupported(s);
}

static void test_arrays(void **state)
{
    static const int32_t odd[] = {1, 1, 1, 1, 3, 9, 1}, negative[] = {1, 1, 1, 1, 3, -1, 1};
    nib_vocab_source s = letters();
    (void)state;
    s.type_count = 6;
    expect_bad(s);
    s = letters();
    s.types = odd;
    expect_bad(s);
    s.types = negative;
    expect_bad(s);
    s = pieces();
    s.score_count = 0;
    expect_bad(s);
    s = letters();
    s.token_count = 0;
    expect_bad(s);
    s.tokens = NULL;
    expect_bad(s);
    s = letters();
    s.token_count = (size_t)NIB_TOKENIZER_IDS + 1;
    expect_unsupported(s);
    s = letters();
    s.merges = NULL;
    expect_bad(s);
}

static void test_tokens(void **state)
{
    static const nib_vocab_text broken[] = {TEXT("a"), TEXT("b\xc3")};
    static char wide[600];
    nib_vocab_text long_one[] = {TEXT("a"), {wide, sizeof wide}};
    static const int32_t types[] = {NORMAL, CONTROL};
    static const float scores[] = {0, 0};
    nib_vocab_source s = letters();
    (void)state;
    memset(wide, 'a', sizeof wide);
    s.types = NULL;
    s.merge_count = 0;
    s.tokens = broken;
    s.token_count = 2;
    expect_bad(s);
    s.tokens = long_one;
    nib__tokenizer_close(open_source(s)); /* no merge produces it */
    s.types = types;
    s.type_count = 2;
    expect_unsupported(s);
    s = pieces();
    s.tokens = long_one;
    s.types = NULL;
    s.scores = scores;
    s.token_count = s.score_count = 2;
    s.bos = s.eos = s.unk = UINT32_MAX;
    expect_unsupported(s);
}

static void test_ids(void **state)
{
    nib_vocab_source s = letters();
    (void)state;
    s.bos = 7;
    expect_bad(s);
    s.bos = INT64_MAX;
    expect_bad(s);
    s = letters();
    s.eos = 4294967294;
    expect_bad(s);
    s = letters();
    s.bos = UINT32_MAX; /* -1: none */
    s.eos = 4;
    nib_tokenizer *t = open_source(s);
    assert_int_equal(nib__tokenizer_bos(t), -1);
    assert_int_equal(nib__tokenizer_eos(t), 4);
    nib__tokenizer_close(t);
    s.add_bos = NIB_VOCAB_FLAG_TRUE;
    expect_bad(s);
    s = letters();
    s.add_eos = NIB_VOCAB_FLAG_TRUE;
    expect_bad(s);
    /* SentencePiece's default ids exceed a small vocabulary, so it has none. */
    s = pieces();
    s.token_count = 1;
    t = open_source(s);
    assert_int_equal(nib__tokenizer_bos(t), -1);
    expect_ids(t, "a", SPECIAL, "0");
    nib__tokenizer_close(t);
    s.unk = 1;
    expect_bad(s);
}

/* T06 */
static void test_merges(void **state)
{
    static const nib_vocab_text unknown[] = {TEXT("a b"), TEXT("b c")}, three[] = {TEXT("a b c")},
                                one[] = {TEXT("ab")}, broken[] = {TEXT("a \xff")};
    static const float nan_score[] = {0, 0, 0, 0, NAN, 0, 0, 0, 0, NAN, 0};
    nib_vocab_source s = letters();
    (void)state;
    s.merges = unknown;
    s.merge_count = 2;
    expect_bad(s);
    s.merges = three;
    s.merge_count = 1;
    expect_bad(s);
    s.merges = one;
    expect_bad(s);
    s.merges = broken;
    expect_bad(s);
    s = pieces();
    s.scores = nan_score;
    expect_bad(s);
}

/* All strings over two letters: each is the merge of two others at every possible cut. */
static void test_many_splits(void **state)
{
    enum { LONGEST = 14, TOKENS = 1 + (2 << LONGEST) - 2 };
    static nib_vocab_text tokens[TOKENS] = {TEXT("<unk>")};
    static float scores[TOKENS];
    static char bytes[TOKENS][LONGEST];
    nib_vocab_source s = pieces();
    size_t count = 1;
    (void)state;
    for (int length = 1; length <= LONGEST; length++)
        for (int bits = 0; bits < 1 << length; bits++, count++) {
            for (int i = 0; i < length; i++)
                bytes[count][i] = bits >> i & 1 ? 'b' : 'a';
            tokens[count] = (nib_vocab_text){bytes[count], (size_t)length};
        }
    s.types = NULL;
    s.tokens = tokens;
    s.scores = scores;
    s.token_count = s.score_count = count;
    expect_unsupported(s);
    s.token_count = 1 + (2 << 8) - 2; /* up to 8 letters */
    nib__tokenizer_close(open_source(s));
}

static void test_normalizers(void **state)
{
    nib_vocab_source s = pieces();
    (void)state;
    s.has_charsmap = true;
    expect_unsupported(s);
    s = pieces();
    s.remove_extra_whitespaces = NIB_VOCAB_FLAG_TRUE;
    expect_unsupported(s);
}

/* Each allocation fails once, except Oniguruma's own. */
static void test_memory(void **state)
{
    (void)state;
    for (int which = 0; which < 2; which++) {
        nib_status status = NIB_NO_MEMORY;
        for (int n = 0; status != NIB_OK; n++) {
            failing f = {.left = n};
            const nib_allocator a = failing_allocator(&f);
            const nib_vocab_source s = which == 0 ? letters() : pieces();
            nib_tokenizer *t = NULL;
            nib_err err = {.status = NIB_OK};
            assert_true(n < 200);
            status = nib__tokenizer_from_vocab(&t, &s, &a, &err);
            if (status != NIB_OK)
                assert_int_equal(status, NIB_NO_MEMORY);
            else
                nib__tokenizer_close(t);
            assert_int_equal(f.live, 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_byte_level),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_no_types),
        cmocka_unit_test(test_listed_merges),
        cmocka_unit_test(test_text_like_a_byte),
        cmocka_unit_test(test_pieces_by_merges),
        cmocka_unit_test(test_no_scores),
        cmocka_unit_test(test_flags_of_pre),
        cmocka_unit_test(test_duplicate_tokens),
        cmocka_unit_test(test_verbatim),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_unknown_pre_tokenizer),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_merges),
        cmocka_unit_test(test_many_splits),
        cmocka_unit_test(test_normalizers),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

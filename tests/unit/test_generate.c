/* SPDX-License-Identifier: Apache-2.0
 *
 * Generation on a model that recites a script (each token leads to the next, so every stop string
 * and every split of a character can be set up), and on the shipped model.
 */
#include "session.h"

#include "safetensors_build.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

static const nib_generate_options greedy = {.temperature = -1};

/* ---- what the sink receives ---- */

typedef struct received {
    char text[4096];
    size_t size;
    int writes;
    int fail_at; /* the nth write fails; 0: never */
} received;

static nib_status receive(void *ctx, const char *bytes, size_t size)
{
    received *r = ctx;
    if (++r->writes == r->fail_at)
        return NIB_IO;
    assert_true(size > 0 && r->size + size < sizeof r->text);
    assert_int_equal(nib__utf8_check(bytes, size), size); /* whole code points */
    memcpy(r->text + r->size, bytes, size);
    r->size += size;
    r->text[r->size] = 0;
    return NIB_OK;
}

static nib_generate_stats generate(nib_session *s, const nib_generate_options *options,
                                   received *out)
{
    *out = (received){.text = ""};
    const nib_sink sink = {receive, out};
    nib_generate_stats stats = {.size = sizeof stats};
    nib_err err;
    if (nib_generate(s, options, &sink, &stats, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return stats;
}

/* ---- a model that recites a script ---- */

/* The bytes of each token; token 0 is BOS, the last one EOS. Characters are split as in real
 * vocabularies: o with dots is c3 b6, the euro sign e2 82 ac. */
static const char *const pieces[] = {
    "<s>", "Hel", "lo", " w", "\xc3", "\xb6", "rld", " costs ", "\xe2\x82", "\xac",
    "5",   ",",   "00", "; ", "STO",  "P",    " EN", "D!",      "</s>",
};

enum { PIECES = COUNT(pieces), SCRIPT_WIDTH = 20, SCRIPT_FFN = 4 };

static const char script[] = "Hello w\xc3\xb6rld costs \xe2\x82\xac"
                             "5,00; STOP END!";

/* Writes a byte as byte-level vocabularies do: printable ones as themselves, others from U+0100 on.
 */
static void put_byte_level(nib_text *out, unsigned char byte)
{
    static const unsigned char low[] = {0x21, 0xa1, 0xae}, high[] = {0x7e, 0xac, 0xff};
    unsigned point = byte, others = 0;
    bool printable = false;
    for (size_t i = 0; i < 3; i++)
        printable |= byte >= low[i] && byte <= high[i];
    for (unsigned b = 0; b < byte; b++) {
        bool one = false;
        for (size_t i = 0; i < 3; i++)
            one |= b >= low[i] && b <= high[i];
        others += !one;
    }
    if (!printable)
        point = 256 + others;
    char utf8[4];
    const int size = nib__utf8_put(utf8, point);
    if (point == '"' || point == '\\')
        nib__text_str(out, "\\");
    nib__text_put(out, utf8, (size_t)size);
}

static void write_tokenizer(const char *directory)
{
    const nib_allocator a = nib__allocator_default();
    nib_text t;
    nib__text_init(&t, &a);
    nib__text_str(&t, "{\"version\":\"1.0\",\"added_tokens\":[");
    for (int i = 0; i < PIECES; i += PIECES - 1)
        nib__text_format(&t,
                         "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
                         "\"rstrip\":false,\"normalized\":false,\"special\":true}",
                         i ? "," : "", i, pieces[i]);
    nib__text_str(&t, "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                      "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
                      "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\","
                      "\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
                      "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
                      "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                      "\"fuse_unk\":false,\"byte_fallback\":false,\"merges\":[],\"vocab\":{");
    for (int i = 0; i < PIECES; i++) {
        nib__text_str(&t, i ? ",\"" : "\"");
        for (const char *c = pieces[i]; *c; c++)
            put_byte_level(&t, (unsigned char)*c);
        nib__text_format(&t, "\":%d", i);
    }
    nib__text_str(&t, "}}}");
    write_text(directory, "tokenizer.json", t.at);
    nib__text_free(&t);
}

typedef struct builder {
    nib_text header;
    float *data;
    size_t used; /* floats */
} builder;

static float *add_tensor(builder *b, const char *name, int64_t n, int64_t k)
{
    const size_t count = (size_t)(n * (k ? k : 1)), begin = b->used * 4;
    nib__text_format(&b->header, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%d%s", begin ? "," : "{",
                     name, (int)n, k ? "," : "");
    if (k)
        nib__text_format(&b->header, "%d", (int)k);
    nib__text_format(&b->header, "],\"data_offsets\":[%zu,%zu]}", begin, begin + 4 * count);
    float *at = b->data + b->used;
    b->used += count;
    return at;
}

static void write_weights(const char *directory)
{
    const nib_allocator a = nib__allocator_default();
    builder b = {.data = calloc(65536, sizeof *b.data)};
    nib__text_init(&b.header, &a);
    float *embed = add_tensor(&b, "model.embed_tokens.weight", PIECES, SCRIPT_WIDTH);
    float *head = add_tensor(&b, "lm_head.weight", PIECES, SCRIPT_WIDTH);
    float *norm = add_tensor(&b, "model.norm.weight", SCRIPT_WIDTH, 0);
    for (int i = 0; i < PIECES; i++) {
        embed[i * SCRIPT_WIDTH + i] = 1;
        head[(i + 1) % PIECES * SCRIPT_WIDTH + i] = 1; /* EOS leads to BOS */
    }
    for (int i = 0; i < SCRIPT_WIDTH; i++)
        norm[i] = 1;
    static const struct {
        const char *name;
        int64_t n, k;
    } zeros[] = {
        {"input_layernorm", SCRIPT_WIDTH, 0},
        {"post_attention_layernorm", SCRIPT_WIDTH, 0},
        {"self_attn.q_proj", SCRIPT_WIDTH, SCRIPT_WIDTH},
        {"self_attn.k_proj", SCRIPT_WIDTH, SCRIPT_WIDTH},
        {"self_attn.v_proj", SCRIPT_WIDTH, SCRIPT_WIDTH},
        {"self_attn.o_proj", SCRIPT_WIDTH, SCRIPT_WIDTH},
        {"mlp.gate_proj", SCRIPT_FFN, SCRIPT_WIDTH},
        {"mlp.up_proj", SCRIPT_FFN, SCRIPT_WIDTH},
        {"mlp.down_proj", SCRIPT_WIDTH, SCRIPT_FFN},
    };
    for (size_t i = 0; i < COUNT(zeros); i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.0.%s.weight", zeros[i].name);
        add_tensor(&b, name, zeros[i].n, zeros[i].k);
    }
    nib__text_str(&b.header, "}");
    write_safetensors(directory, "model.safetensors", b.header.at, b.data, b.used * sizeof *b.data);
    nib__text_free(&b.header);
    free(b.data);
}

typedef struct speaker {
    char directory[256];
    opened on;
} speaker;

static speaker open_speaker(int64_t context, bool bos)
{
    speaker s;
    char config[1024];
    make_directory(s.directory);
    snprintf(config, sizeof config,
             "{\"model_type\":\"llama\",\"hidden_size\":%d,\"intermediate_size\":%d,"
             "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":%d,"
             "\"max_position_embeddings\":64,\"eos_token_id\":%d%s}",
             SCRIPT_WIDTH, SCRIPT_FFN, (int)PIECES, (int)PIECES - 1,
             bos ? ",\"bos_token_id\":0" : "");
    write_text(s.directory, "config.json", config);
    write_tokenizer(s.directory);
    write_weights(s.directory);
    s.on = must_open(&(open_how){.path = s.directory, .context = context});
    return s;
}

static void close_speaker(speaker *s)
{
    close_opened(&s->on);
    drop_directory(s->directory);
}

static void test_script(void **state)
{
    (void)state;
    speaker s = open_speaker(64, true);
    received r;
    nib_generate_options o = greedy;
    o.prompt = "<s>";
    nib_generate_stats stats = generate(s.on.session, &o, &r);
    assert_string_equal(r.text, script);
    assert_int_equal(stats.finish, NIB_FINISH_STOP);
    assert_int_equal(stats.prompt_tokens, 1);
    assert_int_equal(stats.new_tokens, PIECES - 2);
    assert_true(r.writes > PIECES / 2); /* streamed, not written at the end */
    /* again, on the same session, and from the BOS alone */
    generate(s.on.session, &o, &r);
    assert_string_equal(r.text, script);
    o.prompt = "";
    stats = generate(s.on.session, &o, &r);
    assert_string_equal(r.text, script);
    assert_int_equal(stats.prompt_tokens, 1);
    o.prompt = NULL;
    generate(s.on.session, &o, &r);
    assert_string_equal(r.text, script);
    close_speaker(&s);
}

static void test_limits(void **state)
{
    (void)state;
    speaker s = open_speaker(12, true);
    received r;
    nib_generate_options o = greedy;
    o.prompt = "<s>";
    o.max_tokens = 3;
    nib_generate_stats stats = generate(s.on.session, &o, &r);
    assert_string_equal(r.text, "Hello w");
    assert_int_equal(stats.finish, NIB_FINISH_LENGTH);
    assert_int_equal(stats.new_tokens, 3);
    /* the limit splits a character: half of it is not written */
    o.max_tokens = 4;
    generate(s.on.session, &o, &r);
    assert_string_equal(r.text, "Hello w\xef\xbf\xbd");
    o.max_tokens = 0; /* until the context ends */
    stats = generate(s.on.session, &o, &r);
    assert_int_equal(stats.finish, NIB_FINISH_CONTEXT);
    assert_int_equal(stats.prompt_tokens + stats.new_tokens, 12);
    assert_string_equal(r.text, "Hello w\xc3\xb6rld costs \xe2\x82\xac"
                                "5,");
    o.prompt = "<s><s><s><s><s><s><s><s><s><s><s><s>";
    stats = generate(s.on.session, &o, &r);
    assert_int_equal(stats.prompt_tokens, 12);
    assert_int_equal(stats.new_tokens, 1);
    assert_int_equal(stats.finish, NIB_FINISH_CONTEXT);
    assert_string_equal(r.text, "Hel");
    /* EOS is ignored on request; special tokens write nothing */
    speaker longer = open_speaker(64, true);
    o.prompt = "<s>";
    o.ignore_eos = true;
    o.max_tokens = PIECES + 2;
    stats = generate(longer.on.session, &o, &r);
    assert_int_equal(stats.new_tokens, PIECES + 2);
    assert_non_null(strstr(r.text, "END!Hel"));
    close_speaker(&longer);
    close_speaker(&s);
}

/* Output ends before the first stop string, however tokens split it. */
static void test_stops(void **state)
{
    (void)state;
    static const struct {
        const char *stops[3];
        const char *text; /* NULL: the whole script */
    } cases[] = {
        {{"STOP"},
         "Hello w\xc3\xb6rld costs \xe2\x82\xac"
         "5,00; "},
        {{"TOP E"},
         "Hello w\xc3\xb6rld costs \xe2\x82\xac"
         "5,00; S"},
        {{"Hello"}, ""},
        {{"H"}, ""},
        {{"lo w\xc3\xb6"}, "Hel"},
        {{"\xc3\xb6"}, "Hello w"},
        {{"\xe2\x82\xac"}, "Hello w\xc3\xb6rld costs "},
        {{" \xe2\x82\xac"
          "5"},
         "Hello w\xc3\xb6rld costs"},
        {{"!"},
         "Hello w\xc3\xb6rld costs \xe2\x82\xac"
         "5,00; STOP END"},
        {{"END", "STOP"},
         "Hello w\xc3\xb6rld costs \xe2\x82\xac"
         "5,00; "},
        {{"rld c", "ld", "xyz"}, "Hello w\xc3\xb6r"}, /* ends first */
        {{"ld", "rld c"}, "Hello w\xc3\xb6r"},
        {{"00", ",0"},
         "Hello w\xc3\xb6rld costs \xe2\x82\xac"
         "5"},
        {{"llo", "lo"}, "He"},
        {{"STOPS"}, NULL}, /* held back, then written after all */
        {{"END!?"}, NULL},
        {{"w\xc3\xb4", "\xe2\x82\xad"}, NULL}, /* the same first bytes */
        {{"helloHelloHelloHelloHelloHelloHello"}, NULL},
    };
    speaker s = open_speaker(64, true);
    for (size_t i = 0; i < COUNT(cases); i++) {
        received r;
        nib_generate_options o = greedy;
        o.prompt = "<s>";
        o.stop.items = cases[i].stops;
        while (o.stop.count < 3 && cases[i].stops[o.stop.count])
            o.stop.count++;
        const nib_generate_stats stats = generate(s.on.session, &o, &r);
        assert_string_equal(r.text, cases[i].text ? cases[i].text : script);
        assert_int_equal(stats.finish, NIB_FINISH_STOP);
        assert_int_equal(stats.new_tokens < PIECES - 2, cases[i].text && i != 8);
    }
    close_speaker(&s);
}

/* Every substring of the script as the stop string. */
static void test_every_stop(void **state)
{
    (void)state;
    speaker s = open_speaker(64, true);
    for (size_t from = 0; from + 1 < sizeof script; from++)
        for (size_t size = 1; size <= 12 && from + size < sizeof script; size++) {
            char stop[16];
            const char *const stops[] = {stop};
            memcpy(stop, script + from, size);
            stop[size] = 0;
            if (nib__utf8_check(stop, size) != size)
                continue;
            received r;
            nib_generate_options o = greedy;
            o.prompt = "<s>";
            o.stop = (nib_strings){stops, 1};
            generate(s.on.session, &o, &r);
            assert_int_equal(r.size, strstr(script, stop) - script);
            assert_memory_equal(r.text, script, r.size);
        }
    close_speaker(&s);
}

static void assert_refused(nib_session *s, const nib_generate_options *o, nib_status status)
{
    received r = {.text = ""};
    const nib_sink sink = {receive, &r};
    nib_generate_stats stats = {.size = sizeof stats};
    nib_err err;
    refused(status, nib_generate(s, o, &sink, &stats, &err), &err);
    assert_int_equal(r.size, 0);
}

static void test_errors(void **state)
{
    (void)state;
    speaker s = open_speaker(4, false);
    nib_generate_options o = greedy;
    assert_refused(s.on.session, &o, NIB_USAGE);
    o.prompt = "<s><s><s><s><s>";
    assert_refused(s.on.session, &o, NIB_USAGE);
    o.prompt = "\xff";
    assert_refused(s.on.session, &o, NIB_BAD_INPUT);
    o.prompt = "<s>";
    o.temperature = 1000;
    assert_refused(s.on.session, &o, NIB_USAGE);
    o.temperature = NAN;
    assert_refused(s.on.session, &o, NIB_USAGE);
    o.temperature = 0;
    received r;
    const nib_generate_stats stats = generate(s.on.session, &o, &r); /* the default */
    assert_true(stats.temperature == 0.8);
    o.top_p = 2;
    assert_refused(s.on.session, &o, NIB_USAGE);
    o.top_p = 1;
    const char *const empty[] = {"a", ""}, *const half[] = {"\xc3"};
    o.stop = (nib_strings){empty, 2};
    assert_refused(s.on.session, &o, NIB_USAGE);
    o.stop = (nib_strings){half, 1};
    assert_refused(s.on.session, &o, NIB_USAGE);
    o.stop = (nib_strings){0};
    r = (received){.fail_at = 1};
    const nib_sink sink = {receive, &r};
    nib_err err;
    refused(NIB_IO, nib_generate(s.on.session, &o, &sink, NULL, &err), &err);
    close_speaker(&s);
}

/* Cancelling between tokens keeps the output so far; cancelling during prefill is an error. */
static bool stop_after(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)total;
    const char *stage = ctx;
    return strcmp(what, stage) != 0 || (strcmp(stage, "generate") == 0 && done < 5);
}

static void test_cancelling_keeps_the_output(void **state)
{
    (void)state;
    speaker s = open_speaker(64, true);
    static char generating[] = "generate", reading[] = "prompt";
    received r;
    nib_generate_options o = greedy;
    o.prompt = "<s>";
    s.on.engine->callbacks = (nib_callbacks){.progress = stop_after, .ctx = generating};
    const nib_generate_stats stats = generate(s.on.session, &o, &r);
    assert_int_equal(stats.finish, NIB_FINISH_CANCELLED);
    assert_int_equal(stats.new_tokens, 5);
    assert_string_equal(r.text, "Hello w\xc3\xb6");
    s.on.engine->callbacks.ctx = reading;
    assert_refused(s.on.session, &o, NIB_CANCELLED);
    close_speaker(&s);
}

/* ---- the shipped model ---- */

static const char prompt[] = "The king's daughter went into the wood, and as she";

static opened open_shipped(int threads, const char *isa, int64_t context)
{
    return must_open(&(open_how){.path = "models/nibble-tales",
                                 .recipe = "8da4w-g32",
                                 .threads = threads,
                                 .isa = isa,
                                 .context = context});
}

/* The same text by hand: one token at a time, greedily, including the prompt, then decoded at once.
 */
static void by_hand(const opened *o, int count, received *out)
{
    const nib_tokenizer *tokenizer;
    int32_t *ids, all[256];
    size_t size;
    const int64_t vocab = nib_session_vocab(o->session);
    assert_int_equal(nib_model_tokenizer(&tokenizer, o->model, NULL), NIB_OK);
    assert_int_equal(nib_tokenize(tokenizer, prompt, sizeof prompt - 1, NIB_TOKENIZE_ADD_SPECIAL,
                                  &ids, &size, NULL),
                     NIB_OK);
    assert_true(size + (size_t)count < COUNT(all));
    memcpy(all, ids, size * sizeof *ids);
    nib_tokens_free(o->engine, ids);
    assert_int_equal(nib_session_truncate(o->session, 0, 0, NULL), NIB_OK);
    const size_t end = size + (size_t)count;
    for (size_t i = 0; i + 1 < end; i++) {
        const float *logits;
        const nib_slot slot = {0, (int32_t)i, all[i], NIB_SLOT_LOGITS};
        assert_int_equal(nib_session_step(o->session, &slot, 1, &logits, NULL), NIB_OK);
        int32_t best = 0;
        for (int32_t v = 1; v < vocab; v++)
            if (logits[v] > logits[best])
                best = v;
        if (i + 1 >= size)
            all[i + 1] = best;
    }
    *out = (received){.text = ""};
    const nib_sink sink = {receive, out};
    assert_int_equal(nib_detokenize(tokenizer, all + size, (size_t)count, &sink, NULL), NIB_OK);
}

static void test_shipped_greedy(void **state)
{
    (void)state;
    enum { TOKENS = 48 };
    opened o = open_shipped(2, NULL, 256);
    received hand, r;
    nib_generate_options options = greedy;
    options.prompt = prompt;
    options.max_tokens = TOKENS;
    options.ignore_eos = true;
    by_hand(&o, TOKENS, &hand);
    const nib_generate_stats stats = generate(o.session, &options, &r);
    assert_string_equal(r.text, hand.text);
    assert_int_equal(stats.new_tokens, TOKENS);
    assert_int_equal(stats.finish, NIB_FINISH_LENGTH);
    assert_true(r.writes > TOKENS / 2);
    /* words, not noise */
    int letters = 0;
    for (size_t i = 0; i < r.size; i++)
        letters += (r.text[i] >= 'a' && r.text[i] <= 'z') || r.text[i] == ' ';
    assert_true(letters > (int)r.size * 3 / 4);
    close_opened(&o);
}

/* A seed gives the same text on any number of threads and instruction set; another seed gives
 * another text. */
static void test_shipped_seeds(void **state)
{
    (void)state;
    opened o = open_shipped(1, NULL, 128);
    received first, r;
    nib_generate_options options = {.prompt = prompt,
                                    .max_tokens = 40,
                                    .temperature = 1,
                                    .top_k = -1,
                                    .top_p = 1,
                                    .repeat_penalty = 1,
                                    .seed = 5};
    generate(o.session, &options, &first);
    generate(o.session, &options, &r);
    assert_string_equal(r.text, first.text);
    options.seed = 6;
    generate(o.session, &options, &r);
    assert_string_not_equal(r.text, first.text);
    close_opened(&o);
    options.seed = 5;
    o = open_shipped(3, "ref", 200);
    generate(o.session, &options, &r);
    assert_string_equal(r.text, first.text);
    close_opened(&o);
}

static void test_shipped_stats(void **state)
{
    (void)state;
    opened o = open_shipped(2, NULL, 0);
    received r;
    const nib_generate_options options = {.prompt = prompt, .max_tokens = 20, .seed = 11};
    const nib_generate_stats s = generate(o.session, &options, &r);
    /* generation_config.json sets the first two; the rest are Nibble's defaults */
    assert_true(s.temperature == 0.8 && s.top_p == 0.95);
    assert_true(s.top_k == 40 && s.min_p == 0.05 && s.repeat_penalty == 1.0 && s.seed == 11);
    assert_in_range(s.prompt_tokens, 5, 40);
    assert_in_range(s.new_tokens, 1, 20);
    assert_true(s.prefill_s > 0 && s.first_token_s >= s.prefill_s && s.decode_s > 0);
    assert_true(s.prefill_s < 60 && s.decode_s < 60);
    /* 8da4w-g32: half a byte per weight and a scale per 32, plus norms; the embedding is not read
     */
    assert_true(s.weight_bytes > 1500000 && s.weight_bytes < 3400000);
    const uint64_t positions = 64 * 2 * 5 * 2 * 16 * 2; /* a block of keys and values, bf16 */
    assert_true(s.cache_bytes >= positions && s.cache_bytes % positions == 0);
    assert_true(s.peak_bytes > s.weight_bytes);
    assert_true(s.decode_gb_per_s > 0 && s.decode_gb_per_s < 1000);
    close_opened(&o);
}

/* do_sample false in generation_config.json means greedy, unless an option overrides it; its end
 * ids override config.json's. */
static void test_generation_config(void **state)
{
    (void)state;
    speaker s = open_speaker(64, true);
    nib_generation *g = &s.on.model->net.generation;
    received r;
    nib_generate_options o = {.prompt = "<s>"};
    g->do_sample_given = true;
    nib_generate_stats stats = generate(s.on.session, &o, &r);
    assert_true(stats.temperature == 0);
    assert_string_equal(r.text, script);
    o.temperature = 0.5;
    stats = generate(s.on.session, &o, &r);
    assert_true(stats.temperature == 0.5);
    g->do_sample = true;
    g->temperature = 0.25, g->top_k = 3, g->top_p = 0.5, g->min_p = 0.125, g->repeat_penalty = 1.5;
    o.temperature = 0;
    stats = generate(s.on.session, &o, &r);
    assert_true(stats.temperature == 0.25 && stats.top_k == 3 && stats.top_p == 0.5);
    assert_true(stats.min_p == 0.125 && stats.repeat_penalty == 1.5);
    o = greedy;
    o.prompt = "<s>";
    g->repeat_penalty = -1;
    g->eos[0] = 11, g->eos[1] = 6, g->eos_count = 2;
    stats = generate(s.on.session, &o, &r);
    assert_int_equal(stats.finish, NIB_FINISH_STOP);
    assert_string_equal(r.text, "Hello w\xc3\xb6");
    close_speaker(&s);
}

/* A plan outlives what its request points to. */
static void test_plan_copies_its_request(void **state)
{
    (void)state;
    opened o = must_open(&(open_how){.path = "models/nibble-tales", .recipe = "8da4w"});
    char words[] = "a prompt", stop[] = "a stop", recipe[] = "8da4w";
    const char *stops[] = {stop};
    nib_generate_options generation = {.prompt = words,
                                       .stop = {stops, 1},
                                       .schema = "{}",
                                       .temperature = 0.25,
                                       .top_k = 7,
                                       .max_tokens = 3};
    const nib_request request = {.recipe = recipe, .generation = &generation};
    nib_plan *plan = NULL;
    nib_err err;
    assert_int_equal(nib_plan_open(&plan, o.model, &request, &err), NIB_OK);
    memset(&generation, 0xee, sizeof generation);
    memset(recipe, 'x', sizeof recipe - 1);
    const nib_generate_options *kept = plan->request.generation;
    assert_string_equal(plan->request.recipe, "8da4w");
    assert_true(kept->temperature == 0.25);
    assert_int_equal(kept->top_k, 7);
    assert_int_equal(kept->max_tokens, 3);
    assert_null(kept->prompt); /* a plan does not read texts */
    assert_int_equal(kept->stop.count, 0);
    assert_null(kept->schema);
    assert_int_equal(plan->lookup, NIB_LOOKUP_USUAL); /* not asked for */
    nib_plan_close(plan);
    const nib_request over = {.lookup = NIB_LOOKUP_MOST + 1};
    refused(NIB_USAGE, nib_plan_open(&plan, o.model, &over, &err), &err);
    close_opened(&o);
}

static void test_auto_device(void **state)
{
    (void)state;
    opened o = must_open(&(open_how){.path = "models/nibble-tales"});
    const nib_request request = {.device = "auto"};
    nib_plan *plan = NULL;
    nib_err err;
    assert_int_equal(nib_plan_open(&plan, o.model, &request, &err), NIB_OK);
    const nib_ledger *ledger = &plan->assignment.ledger;
    bool found = false;
    for (size_t i = 0; i < ledger->note_count; i++)
        found = found || (strcmp(ledger->notes[i].code, "auto") == 0 &&
                          strncmp(ledger->notes[i].text, "--device auto chooses ", 22) == 0);
    assert_true(found);
    nib_plan_close(plan);
    close_opened(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_script),
        cmocka_unit_test(test_plan_copies_its_request),
        cmocka_unit_test(test_auto_device),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_every_stop),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_cancelling_keeps_the_output),
        cmocka_unit_test(test_generation_config),
        cmocka_unit_test(test_shipped_greedy),
        cmocka_unit_test(test_shipped_seeds),
        cmocka_unit_test(test_shipped_stats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
//
// A C++ program on the shared library: plans, generates greedily, and throws from callbacks.
// usage: embed MODEL
#include <nibble.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

static nib_status keep(void *ctx, const char *bytes, size_t size)
{
    static_cast<std::string *>(ctx)->append(bytes, size);
    return NIB_OK;
}

// What a callback should do with an exception: keep it, and return a status.
static nib_status keep_exception(void *ctx, const char *, size_t)
{
    try {
        throw std::runtime_error("full");
    } catch (const std::exception &e) {
        *static_cast<std::string *>(ctx) = e.what();
        return NIB_FAILED;
    }
}

static nib_status throw_exception(void *, const char *, size_t)
{
    throw std::runtime_error("full");
}

static int failures;

static void expect(bool holds, const char *what)
{
    if (!holds) {
        std::fprintf(stderr, "not so: %s\n", what);
        failures++;
    }
}

struct opened {
    nib_engine *engine = nullptr;
    nib_model *model = nullptr;
    nib_plan *plan = nullptr;
};

static nib_generate_options once()
{
    nib_generate_options options;
    nib_init(&options, sizeof options);
    options.prompt = "Once";
    options.max_tokens = 8;
    options.temperature = -1;
    return options;
}

static nib_status generate(nib_session *session, const nib_sink &sink, nib_err *err)
{
    const nib_generate_options options = once();
    return nib_generate(session, &options, &sink, nullptr, err);
}

static void check_exceptions(const opened &o, const std::string &text)
{
    nib_session *session = nullptr;
    nib_err err;
    std::string what, again;
    bool caught = false;
    expect(nib_session_open(&session, o.model, o.plan, 1, &err) == NIB_OK, "a session opens");
    expect(generate(session, {keep_exception, &what}, &err) == NIB_FAILED && what == "full",
           "the status of a sink is the status of the call");
    expect(generate(session, {keep, &again}, &err) == NIB_OK && again == text,
           "the session is as before");
    try {
        static_cast<void>(generate(session, {throw_exception, nullptr}, &err));
    } catch (const std::runtime_error &) {
        caught = true;
    }
    expect(caught, "the exception arrives");
    expect(generate(session, {keep, &again}, &err) == NIB_USAGE &&
               std::strstr(err.text, "can only be closed") != nullptr,
           "the session that it left can only be closed");
    nib_session_close(session);
}

static nib_status run(opened &o, const char *path, std::string &text, nib_err *err)
{
    nib_session *session = nullptr;
    const nib_tokenizer *tokenizer = nullptr;
    nib_request request;
    int32_t *ids = nullptr;
    size_t count = 0;
    std::string round;
    const nib_sink sink = {keep, &round};
    nib_init(&request, sizeof request);
    request.recipe = "8da4w";
    nib_status status = nib_engine_open(&o.engine, nullptr, err);
    if (status == NIB_OK)
        status = nib_model_open(&o.model, o.engine, path, nullptr, err);
    if (status == NIB_OK)
        status = nib_plan_open(&o.plan, o.model, &request, err);
    if (status == NIB_OK)
        status = nib_session_open(&session, o.model, o.plan, 1, err);
    if (status == NIB_OK)
        status = generate(session, {keep, &text}, err);
    nib_session_close(session);
    if (status == NIB_OK)
        status = nib_model_tokenizer(&tokenizer, o.model, err);
    if (status == NIB_OK)
        status = nib_tokenize(tokenizer, text.data(), text.size(), 0, &ids, &count, err);
    if (status == NIB_OK)
        status = nib_detokenize(tokenizer, ids, count, &sink, err);
    expect(status != NIB_OK || round == text, "the text of its ids is the text");
    nib_tokens_free(o.engine, ids);
    return status;
}

int main(int argc, char **argv)
{
    opened o;
    nib_err err;
    std::string text;
    const nib_status status = argc == 2 ? run(o, argv[1], text, &err) : NIB_USAGE;
    if (status == NIB_OK)
        check_exceptions(o, text);
    else
        std::fprintf(stderr, "%s: %s\n", nib_status_name(status), argc == 2 ? err.text : "MODEL");
    nib_engine_close(o.engine); // before what was made from it
    nib_model_close(o.model);
    nib_plan_close(o.plan);
    expect(nib_version_number() == NIB_VERSION_NUMBER, "library and header agree");
    return status == NIB_OK && !text.empty() && failures == 0 ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
//
// A C++ program on the shared library: plans, then generates greedily.
// usage: embed MODEL
#include <nibble.h>

#include <cstdio>
#include <cstring>
#include <string>

static nib_status keep(void *ctx, const char *bytes, size_t size)
{
    static_cast<std::string *>(ctx)->append(bytes, size);
    return NIB_OK;
}

int main(int argc, char **argv)
{
    nib_err err;
    nib_engine *engine = nullptr;
    nib_model *model = nullptr;
    nib_plan *plan = nullptr;
    nib_session *session = nullptr;
    std::string text;
    const nib_sink sink = {keep, &text};
    nib_request request;
    nib_generate_options options;
    nib_init(&request, sizeof request);
    nib_init(&options, sizeof options);
    request.recipe = "8da4w";
    options.prompt = "Once";
    options.max_tokens = 8;
    options.temperature = -1;
    nib_status status = argc == 2 ? nib_engine_open(&engine, nullptr, &err) : NIB_USAGE;
    if (status == NIB_OK)
        status = nib_model_open(&model, engine, argv[1], nullptr, &err);
    if (status == NIB_OK)
        status = nib_plan_make(&plan, model, &request, &err);
    if (status == NIB_OK)
        status = nib_session_open(&session, model, plan, 1, &err);
    if (status == NIB_OK)
        status = nib_generate(session, &options, &sink, nullptr, &err);
    if (status != NIB_OK)
        std::fprintf(stderr, "%s: %s\n", nib_status_name(status), err.text);
    nib_session_close(session);
    nib_plan_free(plan);
    nib_model_close(model);
    nib_engine_close(engine);
    return status == NIB_OK && !text.empty() && nib_version_number() == NIB_VERSION_NUMBER ? 0 : 1;
}

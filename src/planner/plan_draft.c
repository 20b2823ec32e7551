/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan of a draft model: whether its token ids mean the same as the model's, and how it runs.
 */
#include "plan_handle.h"
#include "prompt_lookup.h"
#include "tokenizer.h"
#include "variant.h"

#include <inttypes.h>

/* ---- the same vocabulary ---- */

typedef struct vocabulary {
    const char *path;
    const nib_tokenizer *tokenizer;
    int64_t size;
    nib_text text; /* of a token */
} vocabulary;

static nib_status open_vocabulary(vocabulary *out, nib_model *model, nib_err *err)
{
    *out = (vocabulary){.path = model->net.path};
    nib__text_init(&out->text, &model->engine->allocator);
    NIB_TRY(nib_model_tokenizer(&out->tokenizer, model, err));
    out->size = nib__tokenizer_vocab_size(out->tokenizer);
    return NIB_OK;
}

static void read_token(vocabulary *v, int64_t id)
{
    v->text.size = 0;
    nib__token_text(v->tokenizer, (int32_t)id, &v->text);
}

/* Compares the text of every id, which is what an id means; merges only decide which ids a text
 * gets, and padding rows of the logits have no text. */
static nib_status compare(vocabulary *own, vocabulary *draft, nib_err *err)
{
    char text[64], other[64];
    for (int64_t id = 0; id < own->size && id < draft->size; id++) {
        read_token(own, id);
        read_token(draft, id);
        if (own->text.failed || draft->text.failed)
            return nib__fail_memory(err, own->text.size + draft->text.size, "a token's text");
        if (own->text.size == draft->text.size &&
            (own->text.size == 0 || memcmp(own->text.at, draft->text.at, own->text.size) == 0))
            continue;
        return nib__fail(err, NIB_BAD_INPUT,
                         "--draft %s has another vocabulary: token %" PRId64
                         " is \"%s\", but \"%s\" in %s; a "
                         "draft model must have the same %" PRId64 " tokens",
                         draft->path, id,
                         nib__escape_name(other, sizeof other, draft->text.at, draft->text.size),
                         nib__escape_name(text, sizeof text, own->text.at, own->text.size),
                         own->path, own->size);
    }
    if (own->size == draft->size)
        return NIB_OK;
    vocabulary *larger = own->size > draft->size ? own : draft;
    const int64_t first = nib__min(own->size, draft->size);
    read_token(larger, first);
    return nib__fail(err, NIB_BAD_INPUT,
                     "--draft %s has another vocabulary: it has %" PRId64 " tokens, and %s has "
                     "%" PRId64 "; the first that only one of them has is %" PRId64 ", \"%s\"",
                     draft->path, draft->size, own->path, own->size, first,
                     nib__escape_name(text, sizeof text, larger->text.at, larger->text.size));
}

static nib_status check_vocabulary(nib_plan *p, nib_err *err)
{
    nib_model *draft = p->request.draft;
    vocabulary own, other;
    if (p->model->net.checkpoint == NULL || draft->net.checkpoint == NULL) {
        nib__ledger_add_note(&p->assignment.ledger, "draft",
                             "token ids are not compared: a config has no vocabulary");
        return NIB_OK;
    }
    NIB_TRY(open_vocabulary(&own, p->model, err));
    nib_status status = open_vocabulary(&other, draft, err);
    if (status == NIB_OK)
        status = compare(&own, &other, err);
    nib__text_free(&own.text);
    nib__text_free(&other.text);
    return status;
}

/* ---- the plan ---- */

/* The draft runs on the CPU, as the model itself does where drafts pay. */
static const char *choose_device(const nib_plan *p)
{
    const bool plain = p->machine.here || p->request.device == NULL;
    return plain ? "cpu" : p->request.device;
}

/* The entries of --allow without a pattern, which names layers of the model. */
static nib_status choose_allow(nib_strings *out, nib_plan *p, nib_err *err)
{
    const nib_strings *given = &p->request.allow;
    const char **items = nib__arena_take(&p->arena, given->count + 1, sizeof *items);
    size_t count = 0;
    if (items == NULL)
        return nib__fail_memory(err, (given->count + 1) * sizeof *items, "options");
    for (size_t i = 0; i < given->count; i++)
        if (strchr(given->items[i], '=') == NULL)
            items[count++] = given->items[i];
    *out = (nib_strings){items, count};
    return NIB_OK;
}

const char *nib__plan_draft_name(nib_plan *p)
{
    const nib_network *net = &p->request.draft->net;
    return net->draft_head ? "--draft-head"
                           : nib__ledger_text(&p->assignment.ledger, "--draft %s", net->path);
}

/* Which weights of the model its draft head reads, and which it packs again. */
static void note_lent(nib_plan *p)
{
    nib_plan *draft = p->draft;
    const nib_network *net = &draft->model->net;
    char bytes[32];
    for (size_t i = 0; net->draft_head && i < draft->assignment.count; i++)
        if (nib__plan_lent(&draft->assignment, i, &p->assignment) != SIZE_MAX)
            draft->lent_bytes += draft->assignment.ledger.layers[i].bytes;
    if (net->draft_head)
        nib__ledger_add_note(&draft->assignment.ledger, "draft",
                             "%s of these weights are the model's own, and held once",
                             nib__format_bytes(bytes, draft->lent_bytes));
}

static void note_draft(nib_plan *p)
{
    char one[32], own[32];
    const nib_plan *draft = p->draft;
    nib__ledger_add_note(&p->assignment.ledger, "draft",
                         "%s: a step checks at most %" PRId64
                         " tokens that it drafts, and the text stays "
                         "the same: a token of it is predicted to take %s, of this model %s",
                         nib__plan_draft_name(p), p->drafts,
                         nib__format_seconds(one, draft->assignment.predicted_token_s),
                         nib__format_seconds(own, p->assignment.predicted_token_s));
    if (draft->context == p->context)
        return;
    char asked[32], done[32];
    nib__ledger_add_setting(
        &p->assignment.ledger,
        &(nib_ledger_setting){.code = "draft",
                              .name = "context of --draft",
                              .asked = nib__format_count(asked, (uint64_t)p->context),
                              .done = nib__format_count(done, (uint64_t)draft->context),
                              .by = NIB_BY_OPTION,
                              .relation = NIB_SETTING_NARROWER},
        "the draft model has %" PRId64 " positions; of a longer text it sees the last tokens",
        draft->context);
}

static nib_status plan_draft(nib_plan *p, nib_err *err)
{
    const nib_request *r = &p->request;
    const bool whole = r->skip.count == 0 && r->only.count == 0; /* these name the model's layers */
    const char *own = r->draft->net.draft_head && whole ? r->recipe : NULL;
    nib_request request = {.recipe = r->draft_recipe != NULL ? r->draft_recipe : own,
                           .device = choose_device(p),
                           .dtype = r->dtype,
                           .cache = r->cache,
                           .without = r->without,
                           .strict = r->strict,
                           .context = nib__min(p->context, r->draft->net.config.context),
                           .sequences = r->sequences,
                           .memory = r->memory,
                           .lookup = -1,
                           .snapshots = -1};
    nib_err failed;
    NIB_TRY(choose_allow(&request.allow, p, err));
    const nib_status status = nib__plan_make(&p->draft, r->draft, &request, NULL, &failed);
    if (status != NIB_OK)
        return nib__fail(err, status, "%s: %s", nib__plan_draft_name(p), failed.text);
    p->drafts = NIB_LOOKUP_USUAL;
    note_lent(p);
    if (r->draft->net.draft_head && r->recipe != NULL && !whole && r->draft_recipe == NULL)
        nib__ledger_add_note(&p->assignment.ledger, "draft",
                             "--draft-head: the head is as stored, as --skip and --only name "
                             "layers of the model; --draft-recipe quantizes it");
    note_draft(p);
    return NIB_OK;
}

nib_status nib__plan_draft_model(nib_plan *p, nib_err *err)
{
    nib_model *draft = p->request.draft;
    if (draft == NULL)
        return p->request.draft_recipe == NULL
                   ? NIB_OK
                   : nib__fail(err, NIB_USAGE,
                               "--draft-recipe %s has no effect without --draft MODEL or "
                               "--draft-head; leave it out, or name a draft model",
                               p->request.draft_recipe);
    if (draft->engine != p->model->engine)
        return nib__fail(err, NIB_USAGE, "%s: the draft model was opened with another engine",
                         draft->net.path);
    NIB_TRY(nib__model_runs(draft, err));
    if (p->policy.training || draft->net.training)
        return nib__fail(err, NIB_USAGE,
                         "%s has no effect in training, which generates no text; leave it out",
                         nib__plan_draft_name(p));
    if (draft->net.draft_head && strcmp(draft->net.path, p->model->net.path) != 0)
        return nib__fail(err, NIB_USAGE,
                         "%s: the draft head belongs to %s; a draft head reads hidden states of "
                         "its own model",
                         p->model->net.path, draft->net.path);
    if (!draft->net.draft_head)
        NIB_TRY(check_vocabulary(p, err));
    const nib_kernel *row = nib__plan_device_arithmetic(p);
    if (row == NULL)
        return plan_draft(p, err);
    nib__ledger_add_setting(
        &p->assignment.ledger,
        &(nib_ledger_setting){.code = "draft",
                              .name = draft->net.draft_head ? "--draft-head" : "--draft",
                              .asked = draft->net.draft_head ? "drafts" : draft->net.path,
                              .done = "no drafts",
                              .by = NIB_BY_OPTION,
                              .relation = NIB_SETTING_NONE},
        "tokens are drawn one by one: %s may compute other bits for a token among others than "
        "alone, which could change the text; leave the option out",
        row->name);
    return NIB_OK;
}

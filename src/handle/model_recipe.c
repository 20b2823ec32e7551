/* SPDX-License-Identifier: Apache-2.0
 *
 * A request's recipe for a model's layers; and config.json's quantization_config compared with the
 * stored tensors. torchao's tensors describe themselves, and its config describes them again: if
 * the two differ, the tensors decide.
 */
#include "model_handle.h"

#include "quantizer.h"

static int64_t group_size(const nib_scheme *s, int64_t k)
{
    return nib__min(nib__scheme_group_size(s, k), k);
}

nib_status nib__model_recipe(nib_recipe **out, const nib_recipe_layer **layers,
                             const nib_model *model, const nib_request *request, nib_arena *arena,
                             nib_err *err)
{
    const nib_network *net = &model->net;
    const char *recipe = request->recipe ? request->recipe : net->train.recipe;
    if (!recipe && (request->skip.count > 0 || request->only.count > 0))
        return nib__fail(err, NIB_USAGE,
                         "--%s %s has no effect without a recipe, whose layers it chooses; give "
                         "--recipe, too",
                         request->skip.count > 0 ? "skip" : "only",
                         request->skip.count > 0 ? request->skip.items[0] : request->only.items[0]);
    nib_recipe_layer *list = nib__arena_take(arena, net->site_count, sizeof *list);
    if (!list)
        return nib__fail_memory(err, net->site_count * sizeof *list, "the recipe's layers");
    for (size_t i = 0; i < net->site_count; i++) {
        const nib_site *s = &net->sites[i];
        const bool table = s == nib__network_embed(net) || s->role == NIB_ROLE_HEAD;
        list[i] = (nib_recipe_layer){.name = s->name, .role = s->role, .tied = table && net->tied};
    }
    const nib_recipe_input input = {.text = recipe,
                                    .skip = request->skip,
                                    .only = request->only,
                                    .layers = list,
                                    .count = net->site_count,
                                    .by = request->recipe ? NIB_BY_OPTION : NIB_BY_CONFIG};
    *layers = list;
    return nib__recipe_load(out, &input, &model->engine->allocator, err);
}

/* Whether the config's scheme agrees with the stored one. The formula that made the codes is
 * unknown, so it is not compared. */
static bool agrees(const nib_choice *choice, const nib_site *site)
{
    const nib_scheme *a = &choice->scheme, *b = &site->stored;
    if (choice->keep || !nib__scheme_is_quantized(a))
        return !nib__scheme_is_quantized(b);
    const bool tensor = a->group == NIB_GROUP_TENSOR, other = b->group == NIB_GROUP_TENSOR;
    return a->code == b->code && a->zero == b->zero && a->act == b->act && tensor == other &&
           group_size(a, site->k) == group_size(b, site->k);
}

nib_status nib__report_stored_config(nib_model *m, nib_err *err)
{
    nib_network *net = &m->net;
    const char *text = net->checkpoint ? nib__checkpoint_quantization(net->checkpoint) : NULL;
    const nib_request request = {.recipe = text};
    const nib_recipe_layer *layers;
    nib_recipe *recipe;
    nib_arena arena;
    char asked[64] = "as floats", done[64], a[NIB_SHOWN];
    const nib_site *first = NULL;
    size_t count = 0;
    if (text == NULL || net->unknown || net->inspected)
        return NIB_OK;
    nib__arena_init(&arena, &m->engine->allocator, 0);
    /* another tool's config, or one that is not a recipe: the dialects read those */
    if (nib__model_recipe(&recipe, &layers, m, &request, &arena, NULL) != NIB_OK) {
        nib__arena_free(&arena);
        return NIB_OK;
    }
    for (size_t i = 0; i < net->site_count; i++) {
        const nib_site *site = &net->sites[i];
        nib_choice choice;
        nib__recipe_resolve(&choice, recipe, &layers[i]);
        /* transformers has its own rules for embedding and head */
        if (site->role == NIB_ROLE_EMBED || site->role == NIB_ROLE_HEAD || agrees(&choice, site) ||
            count++ != 0)
            continue;
        first = site;
        if (!choice.keep)
            nib__scheme_name(asked, &choice.scheme);
    }
    if (first != NULL)
        nib__ledger_add_setting(
            &net->notes,
            &(nib_ledger_setting){.code = "quantization-config",
                                  .name = nib__escape_string(a, first->name),
                                  .asked = asked,
                                  .done = nib__scheme_name(done, &first->stored),
                                  .by = NIB_BY_CONFIG,
                                  .relation = NIB_SETTING_OTHER},
            "quantization_config and the stored tensors differ on %zu layers; the stored scheme is "
            "used: %s",
            count, done);
    nib__recipe_free(recipe);
    nib__arena_free(&arena);
    return net->notes.failed ? nib__fail_memory(err, 0, "the ledger") : NIB_OK;
}

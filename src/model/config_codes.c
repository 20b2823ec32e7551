/* SPDX-License-Identifier: Apache-2.0
 *
 * MXFP4 and FP8 of a config.json without weights. Which weights have codes is as transformers 5
 * writes them (quantizers/quantizer_mxfp4.py, quantizer_finegrained_fp8.py, integrations): MXFP4 is
 * for experts; FP8 for every linear layer but the head, routers, which are not nn.Linear, and the
 * modules of modules_to_not_convert.
 */
#include "config_codes.h"

#include "checkpoint.h"
#include "quantization.h"

#include <string.h>

static nib_scheme float_scheme(const nib_network *net)
{
    return (nib_scheme){
        .code = nib__float_code(net->config.dtype), .symmetric = true, .act_symmetric = true};
}

nib_scheme nib__config_codes_stored(const nib_network *net, const nib_site *site, bool kept)
{
    return net->checkpoint != NULL || kept ? site->stored : float_scheme(net);
}

/* *out: the scheme of the weight; unchanged: floats. */
static nib_status find_scheme(nib_scheme *out, const nib_quantization *q, const nib_site *site,
                              nib_err *err)
{
    bool kept;
    if (site->role == NIB_ROLE_EMBED || site->role == NIB_ROLE_HEAD ||
        site->role == NIB_ROLE_ROUTER)
        return NIB_OK;
    if (q->method != NIB_METHOD_FP8) { /* its list of modules names others than experts */
        if (site->experts > 1)
            *out = (nib_scheme){.code = NIB_CODE_MX4, .group = 32, .symmetric = true};
        return NIB_OK;
    }
    NIB_TRY(nib__quantization_keeps(&kept, q, site->name, err));
    if (kept)
        return NIB_OK;
    *out = (nib_scheme){.code = NIB_CODE_E4M3,
                        .group = q->block[0] > 0 ? q->block[1] : NIB_GROUP_ROW,
                        .symmetric = true};
    if (nib__quantization_fp8_inputs(NULL, q)) {
        out->act = NIB_ACT_E4M3_TOKEN;
        out->act_symmetric = true;
    }
    return NIB_OK;
}

static void note_unplanned(nib_network *net, const char *path)
{
    nib__ledger_add_setting(&net->notes,
                            &(nib_ledger_setting){.code = "quantization-config",
                                                  .name = "quantization_config",
                                                  .by = NIB_BY_CONFIG,
                                                  .relation = NIB_SETTING_OTHER},
                            "without the weights, layers are planned as if unquantized; --recipe "
                            "plans a scheme, and takes %s itself if its quant_method is torchao",
                            path);
}

/* Notes entries of lists of modules that name no weight. */
static nib_status note_lists(nib_network *net, const nib_quantization *q, nib_err *err)
{
    const char **modules = nib__arena_take(&net->arena, net->site_count, sizeof *modules);
    if (modules == NULL)
        return nib__fail_memory(err, net->site_count, "a list of modules");
    for (size_t i = 0; i < net->site_count; i++)
        modules[i] = net->sites[i].name;
    return nib__checkpoint_note_unmatched(&net->notes, q, modules, net->site_count, &net->arena,
                                          err);
}

static void note_limit(nib_network *net, const nib_quantization *q)
{
    char limit[32];
    nib__ledger_add_overruled(&net->notes, "activations", "activation_scale_ub",
                              nib__format_double(limit, q->act_limit), "no limit",
                              "the scale of a token covers its largest value");
}

static nib_status set_schemes(nib_network *net, const nib_quantization *q, const char *name,
                              nib_err *err)
{
    char asked[NIB_FP8_INPUTS], scheme[64];
    const nib_site *first = NULL;
    size_t count = 0;
    for (size_t i = 0; i < net->site_count; i++) {
        nib_site *site = &net->sites[i];
        const nib_scheme was = site->stored;
        NIB_TRY(find_scheme(&site->stored, q, site, err));
        if (nib__scheme_equal(&was, &site->stored))
            continue;
        site->scale_type = site->stored.code == NIB_CODE_MX4 ? NIB_TYPE_E8M0 : NIB_TYPE_F32;
        first = count++ == 0 ? site : first;
    }
    if (q->method == NIB_METHOD_FP8)
        NIB_TRY(note_lists(net, q, err));
    if (count == 0) {
        note_unplanned(net, name);
        return NIB_OK;
    }
    nib__ledger_add_note(&net->notes, "checkpoint",
                         "quantization_config (%s) says that %zu weights are stored as %s: without "
                         "--recipe they are planned so, with it from floats; %s has no weights to "
                         "check it",
                         q->method_name, count, nib__scheme_name(scheme, &first->stored), name);
    if (q->act_limit > 0)
        note_limit(net, q);
    if (q->method == NIB_METHOD_FP8 && !nib__quantization_fp8_inputs(asked, q))
        nib__ledger_add_setting(&net->notes,
                                &(nib_ledger_setting){.code = "activations",
                                                      .name = "activation_scheme",
                                                      .asked = asked,
                                                      .done = "float activations",
                                                      .by = NIB_BY_CONFIG,
                                                      .relation = NIB_SETTING_OTHER},
                                "%s: no kernel supports such activations; float activations are at "
                                "least as exact",
                                asked);
    return NIB_OK;
}

nib_status nib__config_codes(nib_network *net, const char *path, nib_err *err)
{
    enum { CONFIG_MOST = 16 << 20 };
    const nib_allocator *a = &net->engine->allocator;
    char *text;
    size_t size;
    const char *raw;
    nib_quantization *q = NULL;
    nib_err why;
    NIB_TRY(nib__file_read(&text, &size, path, CONFIG_MOST, a, err));
    nib_status status = nib__quantization_find(&raw, path, text, size, &net->arena, err);
    nib__release(a, text);
    NIB_TRY(status);
    if (raw != NULL)
        status = nib__quantization_parse(&q, path, raw, strlen(raw), NULL, &net->arena, a,
                                         &net->notes, &why);
    const bool known = q != NULL && status == NIB_OK && q->method_name != NULL &&
                       (q->method == NIB_METHOD_FP8 || strcmp(q->method_name, "mxfp4") == 0);
    if (known)
        status = set_schemes(net, q, path, err);
    else if (status == NIB_OK || status == NIB_UNSUPPORTED)
        note_unplanned(net, path), status = NIB_OK;
    else
        status = nib__fail(err, status, "%s", why.text);
    nib__quantization_free(q);
    return status;
}

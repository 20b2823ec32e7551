/* SPDX-License-Identifier: Apache-2.0
 *
 * The floats that a model in few bits is compared with: its own checkpoint, as it is stored, in a
 * session of its own.
 */
#include "bench.h"

#include <stdio.h>

bool nib__plan_is_floats(const nib_assignment *plan)
{
    for (size_t i = 0; i < plan->count; i++)
        if (nib__scheme_is_quantized(&plan->layers[i].done))
            return false;
    return true;
}

/* The first linear layer that is stored in codes; NULL: all are floats. */
static const nib_site *first_codes(const nib_network *net)
{
    for (size_t i = 0; i < net->site_count; i++)
        if (nib__scheme_is_quantized(&net->sites[i].stored))
            return &net->sites[i];
    return NULL;
}

/* False, and why: it would have to share this machine's memory with what is there. */
static bool has_room(const nib_plan *p, char *why, size_t size)
{
    const uint64_t memory = p->model->engine->here.memory, held = nib__resident_bytes();
    const uint64_t wanted = p->assignment.gpu != NULL ? 0 : p->weight_bytes + p->cache.bytes;
    if (memory == 0 || (held <= memory && wanted <= memory - held))
        return true;
    snprintf(why, size, "its %.1f GB do not fit beside the %.1f GB that are held, of %.1f GB",
             (double)wanted * 1e-9, (double)held * 1e-9, (double)memory * 1e-9);
    return false;
}

static nib_request as_stored(const nib_session *of)
{
    const nib_request *asked = &of->plan->request;
    return (nib_request){.device = asked->device,
                         .dtype = asked->dtype,
                         .context = of->plan->context,
                         .without = asked->without,
                         .memory = asked->memory};
}

static nib_status open_path(nib_bench_floats *out, const nib_session *of, const char *path,
                            nib_err *err)
{
    const nib_request request = as_stored(of);
    char code[64];
    NIB_TRY(nib_model_open(&out->model, of->model->engine, path, NULL, err));
    const nib_site *codes = first_codes(&out->model->net);
    if (codes != NULL)
        return nib__fail(err, NIB_USAGE,
                         "%s: %s is stored as %s; what stands beside is to hold floats alone", path,
                         codes->name, nib__scheme_name(code, &codes->stored));
    NIB_TRY(nib_plan_make(&out->plan, out->model, &request, err));
    return nib_session_open(&out->session, out->model, out->plan, 1, err);
}

static nib_status open_own(nib_bench_floats *out, const nib_session *of, char *why, size_t size,
                           nib_err *err)
{
    const nib_site *codes = first_codes(&of->model->net);
    const nib_request request = as_stored(of);
    nib_err problem;
    char code[64];
    if (codes != NULL) {
        snprintf(why, size, "%s is stored as %s; name the checkpoint of floats with --against",
                 codes->name, nib__scheme_name(code, &codes->stored));
        return NIB_OK;
    }
    nib_status status = nib_plan_make(&out->plan, of->model, &request, &problem);
    if (status == NIB_OK && !has_room(out->plan, why, size))
        return NIB_OK;
    if (status == NIB_OK)
        status = nib_session_open(&out->session, of->model, out->plan, 1, &problem);
    if (status == NIB_CANCELLED || status == NIB_IO) /* the model's own files are lost, too */
        return nib__fail(err, status, "%s", problem.text);
    if (status != NIB_OK)
        snprintf(why, size, "%s", problem.text);
    return NIB_OK;
}

nib_status nib__bench_floats_open(nib_bench_floats *out, const nib_session *of, const char *path,
                                  char *why, size_t size, nib_err *err)
{
    *out = (nib_bench_floats){.model = NULL};
    return path != NULL ? open_path(out, of, path, err) : open_own(out, of, why, size, err);
}

void nib__bench_floats_close(nib_bench_floats *floats)
{
    nib_session_close(floats->session);
    nib_plan_free(floats->plan);
    nib_model_close(floats->model);
}

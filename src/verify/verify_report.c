/* SPDX-License-Identifier: Apache-2.0
 *
 * What verify found, as text and as JSON.
 */
#include "verify.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static void json_findings(const nib_verifying *v, nib_jsonw *w)
{
    nib__jsonw_key(w, "findings");
    nib__jsonw_array(w);
    for (size_t i = 0; i < v->finding_count; i++) {
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "code", v->findings[i].code);
        nib__jsonw_pair_string(w, "tensor", v->findings[i].tensor);
        nib__jsonw_pair_string(w, "text", v->findings[i].text);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
    nib__jsonw_pair_int(w, "problems", (int64_t)(v->finding_count + v->more));
}

static void json_models(const nib_model_distance *d, nib_jsonw *w)
{
    nib__jsonw_key(w, "models");
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "why_not", d->why_not);
    if (d->why_not == NULL) {
        nib__jsonw_pair_int(w, "tokens", d->tokens);
        nib__jsonw_pair_double(w, "kl", d->kl);
        nib__jsonw_pair_double(w, "top1_agreement", d->agreement);
    }
    nib__jsonw_object_end(w);
}

static void render_models(const nib_model_distance *d, nib_text *out)
{
    if (d->why_not != NULL) {
        nib__ledger_wrap(out, "as models: not compared: ", "    ", 100, d->why_not);
        return;
    }
    nib__text_format(out,
                     "as models: %" PRId64 " tokens, divergence %.3g nats per token, the same "
                     "likeliest token in %.1f %%\n",
                     d->tokens, d->kl, 100 * d->agreement);
}

void nib__verify_json(const nib_verifying *v, nib_text *out)
{
    nib_jsonw w;
    nib__jsonw_init(&w, out, 2);
    nib__jsonw_object(&w);
    nib__jsonw_pair_int(&w, "schema", 1);
    nib__jsonw_key(&w, "tensors");
    nib__jsonw_array(&w);
    for (size_t i = 0; i < v->count; i++) {
        nib__jsonw_object(&w);
        nib__entry_json(&w, &v->entries[i]);
        nib__jsonw_object_end(&w);
    }
    nib__jsonw_array_end(&w);
    nib__jsonw_pair_string(&w, "manifest", v->manifest.path);
    json_findings(v, &w);
    if (v->job->against != NULL) {
        nib__jsonw_key(&w, "against");
        nib__jsonw_array(&w);
        for (size_t i = 0; i < v->ledger.layer_count; i++) {
            nib__jsonw_object(&w);
            nib__jsonw_pair_string(&w, "name", v->ledger.layers[i].name);
            nib__jsonw_pair_double(&w, "sqnr_db", v->ledger.layers[i].sqnr_db);
            nib__jsonw_pair_bool(
                &w, "equal", isinf(v->ledger.layers[i].sqnr_db) && v->ledger.layers[i].sqnr_db > 0);
            nib__jsonw_object_end(&w);
        }
        nib__jsonw_array_end(&w);
    }
    if (v->job->models != NULL)
        json_models(v->job->models, &w);
    nib__jsonw_object_end(&w);
    nib__text_str(out, "\n");
}

void nib__verify_text(const nib_verifying *v, nib_text *out)
{
    char bytes[32];
    const nib_checkpoint *cp = v->job->checkpoint;
    for (size_t i = 0; i < v->finding_count; i++) {
        char head[256];
        snprintf(head, sizeof head, "%s: %s: ", v->findings[i].code, v->findings[i].tensor);
        nib__ledger_wrap(out, head, "    ", 100, v->findings[i].text);
    }
    for (size_t i = 0; i < v->ledger.layer_count; i++) {
        const double db = v->ledger.layers[i].sqnr_db;
        if (isinf(db) && db > 0)
            nib__text_format(out, "%-52s  equal\n", v->ledger.layers[i].name);
        else if (isnan(db))
            nib__text_format(out, "%-52s  has values that are no numbers\n",
                             v->ledger.layers[i].name);
        else
            nib__text_format(out, "%-52s %6.1f dB\n", v->ledger.layers[i].name, db);
    }
    if (v->job->models != NULL)
        render_models(v->job->models, out);
    nib__text_format(out, "%zu tensors, %s read; ", nib__checkpoint_count(cp),
                     nib__say_bytes(bytes, v->done));
    if (v->manifest.path != NULL)
        nib__text_format(out, "%zu hashes of %s compared; ",
                         v->manifest.tensor_count + v->files_compared,
                         nib__path_name(v->manifest.path));
    else
        nib__text_str(out, "no manifest beside it; ");
    if (v->job->expected_count != 0)
        nib__text_format(out, "%zu weights that %s implies; ", v->job->expected_count,
                         nib__checkpoint_described(v->job->checkpoint));
    else
        nib__text_str(out, "nothing says which weights there are; ");
    const size_t problems = v->finding_count + v->more;
    nib__text_format(out, "%zu problem%s%s\n", problems, problems == 1 ? "" : "s",
                     v->more != 0 ? ", of which the first are told" : "");
}

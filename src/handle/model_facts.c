/* SPDX-License-Identifier: Apache-2.0
 *
 * What a model is, as numbers and text.
 */
#include "model_handle.h"

#include "arch.h"
#include "public_struct.h"

nib_status nib_model_facts_get(nib_model *m, nib_model_facts *out, nib_err *err)
{
    NIB_NEED(err, "model, out", m, out);
    const nib_tokenizer *tokenizer;
    bool has_tokenizer;
    NIB_TRY(nib__model_runs(m, err));
    const nib_config *c = &m->net.config;
    const nib_family_row *family = nib__family_of(c);
    nib_model_facts facts = {.architecture =
                                 m->net.described != NULL ? family->gguf : family->class_name,
                             .context = c->context,
                             .vocab = nib__network_head(&m->net)->n,
                             .width = c->width,
                             .layers = c->layers,
                             .heads = c->heads,
                             .kv_heads = c->kv_heads,
                             .head_dim = c->head_dim,
                             .ends = m->ends};
    NIB_TRY(nib__model_has_tokenizer(&has_tokenizer, m, err));
    if (has_tokenizer) /* it may name an end that the config does not */
        NIB_TRY(nib_model_tokenizer(&tokenizer, m, err));
    NIB_TRY(nib__chat_text(&facts.chat_template, m, err));
    facts.end_count = (size_t)nib__model_ends(m, m->ends);
    NIB_RESULT(out, facts);
    return NIB_OK;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A trained model as Hugging Face lays one out: config.json, model.safetensors, the tokenizer's
 * files, generation_config.json, and a manifest. Its weights are the f32 masters, rounded to
 * checkpoint.export_dtype, whatever they were trained in.
 */
#ifndef NIB_TRAIN_EXPORT_H
#define NIB_TRAIN_EXPORT_H

#include "trainer.h"

/* Where a run exports to; NULL: it does not. */
typedef struct nib_export_places {
    const char *model;
    const char *quantized; /* after quantization-aware training: "MODEL-quantized" */
    bool replace;          /* what lies there gives way: the places are the config's */
} nib_export_places;

/* `asked`, or the "model" beside its checkpoints if the config wants an export, as training for
 * codes with checkpoints does. What is asked must be free, and such that it can be made: said
 * before the run begins. */
nib_status nib__export_places(nib_export_places *out, nib_trainer *trainer, const char *asked,
                              nib_err *err);
/* The directory appears complete or not at all. With replace, one that is there gives way. Every
 * rank calls it, the first writes. */
nib_status nib__export(const nib_trainer *trainer, const char *directory, bool replace,
                       nib_err *err);
/* What quantization-aware training ends with: the export in the codes that it was trained for; the
 * ledger goes to the sink. */
nib_status nib__export_quantized(const nib_trainer *trainer, const nib_export_places *places,
                                 const nib_sink *sink, nib_err *err);

#endif

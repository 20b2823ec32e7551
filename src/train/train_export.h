/* SPDX-License-Identifier: Apache-2.0
 *
 * A trained model in Hugging Face's layout: config.json, model.safetensors, the tokenizer's files,
 * generation_config.json, and a manifest. Its weights are the f32 masters rounded to
 * checkpoint.export_dtype, whatever scheme they were trained in.
 */
#ifndef NIB_TRAIN_EXPORT_H
#define NIB_TRAIN_EXPORT_H

#include "trainer.h"

/* Where a run exports to; NULL: no export. */
typedef struct nib_export_paths {
    const char *model;
    const char *quantized; /* after quantization-aware training: "MODEL-quantized" */
    bool replace;          /* replace existing directories: the paths come from the config */
} nib_export_paths;

/* Finds the paths: `asked`, or "model" beside the checkpoints if the config wants an export, as
 * quantization-aware training with checkpoints does. An asked path must be free and writable; both
 * are checked before the run begins. */
nib_status nib__export_paths(nib_export_paths *out, nib_trainer *trainer, const char *asked,
                             nib_err *err);
/* Exports the model. The directory appears complete or not at all; with replace, it replaces an
 * existing one. Call on every rank; rank 0 writes. */
nib_status nib__export(const nib_trainer *trainer, const char *directory, bool replace,
                       nib_err *err);
/* Quantizes the export to the codes that quantization-aware training trained for; writes the ledger
 * to the sink. */
nib_status nib__export_quantized(const nib_trainer *trainer, const nib_export_paths *paths,
                                 const nib_sink *sink, nib_err *err);

#endif

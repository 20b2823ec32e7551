/* SPDX-License-Identifier: Apache-2.0
 *
 * A trained model as Hugging Face lays one out: config.json, model.safetensors, the tokenizer's
 * files, generation_config.json, and a manifest. Its weights are the f32 masters, rounded to
 * checkpoint.export_dtype, whatever they were trained in.
 */
#ifndef NIB_TRAIN_EXPORT_H
#define NIB_TRAIN_EXPORT_H

#include "trainer.h"

/* Where a run exports to: `asked`, or the "model" beside its checkpoints if the config wants an
 * export; *out NULL: nowhere. NIB_EXISTS: `asked` is there; said before the run begins. */
nib_status nib__export_place(const char **out, nib_trainer *trainer, const char *asked,
                             nib_err *err);
/* The directory appears complete or not at all. With replace, one that is there gives way. Every
 * rank calls it, the first writes. */
nib_status nib__export(const nib_trainer *trainer, const char *directory, bool replace,
                       nib_err *err);
/* What quantization-aware training ends with: an export in the codes of `recipe` (a name or a
 * file), into `out`, which must not exist; the ledger goes to the sink. */
nib_status nib__export_quantized(nib_engine *engine, const char *directory, const char *recipe,
                                 const char *out, const nib_sink *sink, nib_err *err);

#endif

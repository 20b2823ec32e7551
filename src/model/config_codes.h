/* SPDX-License-Identifier: Apache-2.0
 *
 * What quantization_config says of weights that are not there: a plan of a config.json alone.
 */
#ifndef NIB_CONFIG_CODES_H
#define NIB_CONFIG_CODES_H

#include "network.h"

/* Sets the stored scheme of each weight that quantization_config of the config.json at path says to
 * be in MXFP4 or in FP8, as gpt-oss and DeepSeek-V3 are published. Other methods have a line in
 * net->notes, and their weights are planned as floats. */
nib_status nib__config_codes(nib_network *net, const char *path, nib_err *err);
/* The stored scheme that a plan of net takes for the weight: that of quantization_config if the
 * recipe keeps the weight (`kept`); otherwise floats, because without weights nothing has been
 * quantized yet. */
nib_scheme nib__config_codes_stored(const nib_network *net, const nib_site *site, bool kept);

#endif

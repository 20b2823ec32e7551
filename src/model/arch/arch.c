/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of families.
 */
#include "arch.h"

typedef void (*family)(nib_build *b, const nib_config *c);

static const family families[] = {
    [NIB_ARCH_LLAMA] = nib__arch_llama,
    [NIB_ARCH_MISTRAL] = nib__arch_llama,
    [NIB_ARCH_QWEN2] = nib__arch_llama,
    [NIB_ARCH_QWEN3] = nib__arch_llama,
};

nib_status nib__arch_build(nib_graph *out, const nib_config *config, nib_arena *arena,
                           const nib_allocator *a, nib_err *err)
{
    nib_build b;
    nib__build_begin(&b, arena, a);
    families[config->arch](&b, config);
    return nib__build_end(out, &b, err);
}

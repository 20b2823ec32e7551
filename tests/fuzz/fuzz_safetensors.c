/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a file of weights without a magic number, which is read as safetensors. If it opens,
 * all its weights are read.
 */
#include "mutate_safetensors.h"
#include "use_checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    nib_checkpoint *cp = open_bytes(data, size, &a);
    if (cp != NULL)
        use_checkpoint(cp, &a);
    nib__checkpoint_close(cp);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of the public interface that need no model.
 */
#include "library.h"

nib_status nib_recipes_write(nib_engine *engine, nib_form form, const nib_sink *sink, nib_err *err)
{
    return nib__recipes_write(form, &engine->allocator, sink, err);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects that live until the last object made from them is closed: each counts its holders, which
 * are the application and the objects made from it.
 */
#ifndef NIB_HOLDERS_H
#define NIB_HOLDERS_H

#include "base.h"

#include <stdatomic.h>

/* Zeroed: one holder. */
typedef struct nib_holders {
    atomic_size_t more;
} nib_holders;

NIB_INLINE void nib__holders_add(nib_holders *h) { atomic_fetch_add(&h->more, 1); }
/* True for the last holder, which then frees the object. */
NIB_INLINE bool nib__holders_leave(nib_holders *h) { return atomic_fetch_sub(&h->more, 1) == 0; }

#endif

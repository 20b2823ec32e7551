/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of other engines: how one is written, and which layers it is about. peers.c has those of
 * linear layers, peers_experts.c those of experts.
 */
#ifndef NIB_PEERS_H
#define NIB_PEERS_H

#include "kernel.h"

enum { NIB_ACT_ANY = NIB_ANY }; /* in a row: for all activations */

#define PEER(name_, op_, code_, act_, engine_, version_, source_, conds_, note_, result_)          \
    {                                                                                              \
        .name = name_, .op = NIB_OP_##op_, .code = NIB_CODE_##code_, .act = NIB_ACT_##act_,        \
        .input = NIB_ANY, .device = NIB_ANY, .conds = conds_, .arithmetic = NIB_ARITHMETIC_OTHER,  \
        .peer =                                                                                    \
            &(const nib_peer){                                                                     \
                .engine = engine_, .version = version_, .source = source_, .result = result_},     \
        .note = note_                                                                              \
    }
extern const nib_family nib__family_peers_experts;

/* Whether the row is about this matrix of an expert: down, or gate and up. True for rows of
 * peers.c. */
bool nib__peer_takes_down(const nib_kernel *row, bool down);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks over Open MPI: handles, waits and their limits.
 *
 * Only nonblocking point-to-point messages are used, polled with MPI_Test, so that every wait can
 * time out: blocking collectives and MPI_Wait never return when a rank hangs. A message over SMALL
 * bytes starts with a handshake, one byte in each direction. Both phases first yield between polls,
 * then sleep: the handshake after DENSE_S, the transfer, once both ranks have arrived, after
 * DENSE_FLOW_S.
 *
 * The peer of a timed-out wait is often only waiting for another rank itself. So after a timeout, a
 * rank asks its peer which rank the peer waits for, then asks that rank, and so on. Every rank
 * answers such questions while it waits. The error names the last rank of the chain: the one that
 * does not answer.
 */
#include "ranks.h"
#include "public_struct.h"

#include "hash.h"
#include "openmpi.h"
#include "pool.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

enum {
    TAG_DATA = 1,
    TAG_HANDSHAKE,
    TAG_QUESTION, /* one byte */
    TAG_ANSWER,   /* int32_t: the rank it waits for */

    SMALL = 4096,      /* bytes that need no handshake: MPI buffers them */
    PIECE = 64 << 20,  /* MPI counts bytes in an int; each piece gets the whole limit */
    SLEEP_NS = 100000, /* between polls, after DENSE_S or DENSE_FLOW_S */
};

static const double DEFAULT_LIMIT_S = 100;
static const double ANSWER_LIMIT_S = 2;
/* seconds of polling with sched_yield before sleeping */
static const double DENSE_S = 0.002, DENSE_FLOW_S = 1;
/* A longer gap between polls means that this process was stopped; it counts as this much. */
static const double GAP_S = 1;

struct nib_ranks {
    nib_allocator allocator;
    nib_mpi mpi;
    int rank, count;
    int slice, slices;
    double timeout_s, busiest_s; /* busiest_s: the longest between two exchanges */
    uint64_t idle_since;         /* end of the last exchange; 0: none yet */
    int waits_for;               /* rank; -1: none */
    bool owned;                  /* MPI was initialised here */
    bool broken;
    bool ended; /* all ranks agreed that the run failed */
};

int nib_ranks_rank(const nib_ranks *r) { return r ? r->rank : 0; }
int nib_ranks_count(const nib_ranks *r) { return r ? r->count : 1; }
bool nib_ranks_broken(const nib_ranks *r) { return r && r->broken; }

void nib_ranks_slice(const nib_ranks *r, int *slice, int *slices)
{
    *slice = r ? r->slice : 0;
    *slices = r ? r->slices : 1;
}

void nib__ranks_limit(nib_ranks *r, double timeout_s)
{
    if (r)
        r->timeout_s = timeout_s > 0 ? timeout_s : DEFAULT_LIMIT_S;
}

void nib__ranks_break(nib_ranks *r)
{
    if (r)
        r->broken = true;
}

/* ---- waiting ---- */

typedef enum outcome { DONE, LATE, BROKE } outcome;

static double seconds_since(uint64_t from) { return (double)(nib__now_ns() - from) * 1e-9; }

static void yield_or_sleep(double waited, bool flows)
{
    const struct timespec sleep = {0, SLEEP_NS};
    if (waited < (flows ? DENSE_FLOW_S : DENSE_S))
        sched_yield();
    else
        nanosleep(&sleep, NULL);
}

static void answer_question(nib_ranks *r);

static outcome wait_for(nib_ranks *r, nib_mpi_request *request, double limit_s, bool flows,
                        bool answers)
{
    double waited = 0;
    uint64_t last = nib__now_ns();
    for (;;) {
        int done = 0;
        if (r->mpi.test(request, &done, NULL) != NIB_MPI_SUCCESS)
            return BROKE;
        if (done)
            return DONE;
        if (waited > limit_s)
            return LATE;
        if (answers)
            answer_question(r);
        yield_or_sleep(waited, flows);
        const double gap = seconds_since(last);
        last = nib__now_ns();
        waited += fmin(gap, GAP_S);
    }
}

static outcome transfer(nib_ranks *r, void *bytes, size_t size, int peer, bool sends, int tag,
                        double limit_s, bool flows, bool answers)
{
    nib_mpi_request request = NULL;
    const int started =
        sends ? r->mpi.isend(bytes, (int)size, r->mpi.byte, peer, tag, r->mpi.world, &request)
              : r->mpi.irecv(bytes, (int)size, r->mpi.byte, peer, tag, r->mpi.world, &request);
    return started == NIB_MPI_SUCCESS ? wait_for(r, &request, limit_s, flows, answers) : BROKE;
}

/* ---- finding the rank that hangs ---- */

static void answer_question(nib_ranks *r)
{
    int found = 0;
    nib_mpi_status from;
    if (r->mpi.iprobe(NIB_MPI_ANY_SOURCE, TAG_QUESTION, r->mpi.world, &found, &from) !=
            NIB_MPI_SUCCESS ||
        !found)
        return;
    char question;
    int32_t answer = r->waits_for;
    if (transfer(r, &question, 1, from.source, false, TAG_QUESTION, GAP_S, true, false) == DONE)
        (void)transfer(r, &answer, sizeof answer, from.source, true, TAG_ANSWER, GAP_S, true,
                       false);
}

/* Asks a rank which rank it waits for; false: it does not answer. */
static bool ask_rank(nib_ranks *r, int rank, int *waits_for)
{
    char question = 0;
    int32_t answer;
    if (transfer(r, &question, 1, rank, true, TAG_QUESTION, ANSWER_LIMIT_S, false, true) != DONE ||
        transfer(r, &answer, sizeof answer, rank, false, TAG_ANSWER, ANSWER_LIMIT_S, false, true) !=
            DONE)
        return false;
    *waits_for = answer;
    return true;
}

static int find_hanging(nib_ranks *r, int rank)
{
    int next;
    for (int hops = 0; hops < r->count && ask_rank(r, rank, &next); hops++) {
        if (next < 0 || next >= r->count || next == r->rank)
            break;
        rank = next;
    }
    return rank;
}

/* ---- messages ---- */

static nib_status fail_late(nib_ranks *r, int peer, const char *what, nib_err *err)
{
    const int culprit = find_hanging(r, peer);
    return nib__fail(err, NIB_FAILED,
                     "%s: rank %d timed out after %.3g s, and rank %d does not answer: it hangs, "
                     "or needs more than the %g s of comm.train_timeout_seconds",
                     what, r->rank, r->timeout_s + r->busiest_s, culprit, r->timeout_s);
}

static nib_status transfer_or_fail(nib_ranks *r, void *bytes, size_t size, int peer, bool sends,
                                   int tag, bool flows, const char *what, nib_err *err)
{
    switch (transfer(r, bytes, size, peer, sends, tag, r->timeout_s + r->busiest_s, flows, true)) {
    case DONE: return NIB_OK;
    case LATE: return fail_late(r, peer, what, err);
    case BROKE: break;
    }
    return nib__fail(err, NIB_FAILED, "%s: rank %d cannot reach rank %d: its connection broke",
                     what, r->rank, peer);
}

static nib_status shake_hands(nib_ranks *r, int peer, bool sends, const char *what, nib_err *err)
{
    char byte = 0;
    NIB_TRY(transfer_or_fail(r, &byte, 1, peer, sends, TAG_HANDSHAKE, false, what, err));
    return transfer_or_fail(r, &byte, 1, peer, !sends, TAG_HANDSHAKE, false, what, err);
}

static nib_status exchange(nib_ranks *r, char *bytes, size_t size, int peer, bool sends,
                           const char *what, nib_err *err)
{
    if (r->broken)
        return nib__fail(err, NIB_FAILED,
                         "%s: an earlier error ended communication between the ranks of this run",
                         what);
    if (r->idle_since)
        r->busiest_s = fmax(r->busiest_s, seconds_since(r->idle_since));
    r->waits_for = peer;
    const bool large = size > SMALL;
    nib_status status = large ? shake_hands(r, peer, sends, what, err) : NIB_OK;
    for (size_t at = 0; status == NIB_OK && at < size; at += PIECE)
        status = transfer_or_fail(r, bytes + at, size - at < PIECE ? size - at : PIECE, peer, sends,
                                  TAG_DATA, large, what, err);
    r->waits_for = -1;
    r->idle_since = nib__now_ns();
    r->broken = status != NIB_OK;
    return status;
}

nib_status nib__ranks_send(nib_ranks *r, const void *bytes, size_t size, int to, const char *what,
                           nib_err *err)
{
    /* sending only reads */
    return exchange(r, (char *)(uintptr_t)bytes, size, to, true, what, err);
}

nib_status nib__ranks_receive(nib_ranks *r, void *bytes, size_t size, int from, const char *what,
                              nib_err *err)
{
    return exchange(r, bytes, size, from, false, what, err);
}

/* Broadcast along a binomial tree: a rank receives from the rank without its lowest set bit. */
nib_status nib__ranks_share(nib_ranks *r, void *bytes, size_t size, const char *what, nib_err *err)
{
    if (!r)
        return NIB_OK;
    int lowest = 1;
    while (lowest < r->count && !(r->rank & lowest))
        lowest *= 2;
    if (r->rank != 0)
        NIB_TRY(nib__ranks_receive(r, bytes, size, r->rank - lowest, what, err));
    for (int bit = lowest / 2; bit > 0; bit /= 2)
        if (r->rank + bit < r->count)
            NIB_TRY(nib__ranks_send(r, bytes, size, r->rank + bit, what, err));
    return NIB_OK;
}

typedef struct verdict {
    int32_t rank, status;
    char text[sizeof((nib_err *)0)->text];
} verdict;

nib_status nib__ranks_verdict(nib_ranks *r, nib_status mine, nib_err *err)
{
    static const char what[] = "whether all ranks can continue";
    if (!r || r->broken || r->ended)
        return mine;
    verdict first = {.rank = r->rank, .status = (int32_t)mine};
    if (mine != NIB_OK)
        snprintf(first.text, sizeof first.text, "%s", err ? err->text : nib_status_text(mine));
    if (r->rank != 0)
        NIB_TRY(nib__ranks_send(r, &first, sizeof first, 0, what, err));
    for (int from = 1; r->rank == 0 && from < r->count; from++) {
        verdict other;
        NIB_TRY(nib__ranks_receive(r, &other, sizeof other, from, what, err));
        if (first.status == NIB_OK)
            first = other;
    }
    NIB_TRY(nib__ranks_share(r, &first, sizeof first, what, err));
    if (first.status == NIB_OK)
        return NIB_OK;
    return nib__fail(err, (nib_status)first.status, "rank %d: %s", (int)first.rank, first.text);
}

nib_status nib_ranks_agree(nib_ranks *r, nib_status mine, nib_err *err)
{
    const nib_status status = nib__ranks_verdict(r, mine, err);
    if (r && status != NIB_OK)
        r->ended = true;
    return status;
}

/* ---- opening and closing ---- */

static nib_status start_mpi(nib_ranks *r, nib_err *err)
{
    nib_mpi *m = &r->mpi;
    int here = 0, over = 0, level = NIB_MPI_THREAD_FUNNELED;
    m->initialized(&here);
    m->finalized(&over);
    if (over)
        return nib__fail(err, NIB_USAGE,
                         "MPI was already finalized in this process, so ranks cannot be opened");
    r->owned = !here;
    if (!here && m->init_thread(NULL, NULL, NIB_MPI_THREAD_FUNNELED, &level) != NIB_MPI_SUCCESS)
        return nib__fail(err, NIB_FAILED, "MPI_Init_thread failed; start the run with mpirun");
    m->comm_set_errhandler(m->world, m->errors_return);
    m->comm_rank(m->world, &r->rank);
    m->comm_size(m->world, &r->count);
    if (level < NIB_MPI_THREAD_FUNNELED)
        return nib__fail(err, NIB_NOT_AS_ASKED, "this Open MPI was built without threads");
    return NIB_OK;
}

static nib_status check_count(const nib_ranks *r, int asked, nib_err *err)
{
    return r->count >= asked
               ? NIB_OK
               : nib__fail(err, NIB_NOT_AS_ASKED,
                           "%d ranks are asked for, but the run has %d: start it with `mpirun -n "
                           "%d` of the Open MPI that Nibble loads",
                           asked, r->count, asked);
}

/* Counts the ranks on the same host and cores, and finds this rank's index among them. */
static nib_status find_slice(nib_ranks *r, nib_err *err)
{
    static const char what[] = "which ranks share cores";
    char host[NIB_MPI_TEXT] = "";
    int length = 0;
    nib_hash *hosts = nib__calloc(&r->allocator, (uint64_t)r->count, sizeof *hosts);
    if (!hosts)
        return nib__fail_memory(err, (uint64_t)r->count * sizeof *hosts, "the table of ranks");
    r->mpi.get_processor_name(host, &length);
    nib_hash mine = nib__hash_bytes(host, strlen(host));
    const nib_hash cores = nib__cores_hash();
    mine = nib__hash_bytes((nib_hash[]){mine, cores}, 2 * sizeof mine);
    hosts[r->rank] = mine;
    nib_status status = NIB_OK;
    if (r->rank != 0)
        status = nib__ranks_send(r, &mine, sizeof mine, 0, what, err);
    for (int i = 1; r->rank == 0 && status == NIB_OK && i < r->count; i++)
        status = nib__ranks_receive(r, &hosts[i], sizeof mine, i, what, err);
    if (status == NIB_OK)
        status = nib__ranks_share(r, hosts, (size_t)r->count * sizeof *hosts, what, err);
    for (int i = 0; status == NIB_OK && i < r->count; i++) {
        const bool shares = nib__hash_equal(hosts[i], mine);
        r->slice += shares && i < r->rank;
        r->slices += shares;
    }
    nib__release(&r->allocator, hosts);
    return status;
}

nib_status nib_ranks_open(nib_ranks **out, const nib_ranks_options *options, nib_err *err)
{
    NIB_NEED(err, "out", out);
    NIB_OPTIONS(nib_ranks_options, o, options, err);
    NIB_TRY(nib__number_check("nib_ranks_options.asked", o.asked, err));
    if (!(o.timeout_s >= 0))
        return nib__fail(err, NIB_USAGE,
                         "nib_ranks_options.timeout_s is %g; 0 or more seconds are possible",
                         o.timeout_s);
    if (o.allocator != NULL && o.allocator->resize == NULL)
        return nib__fail(err, NIB_USAGE, "nib_ranks_options.allocator->resize is NULL");
    const nib_allocator a = o.allocator ? *o.allocator : nib__allocator_default();
    nib_ranks *r = nib__calloc(&a, 1, sizeof *r);
    if (!r)
        return nib__fail_memory(err, sizeof *r, "the ranks");
    r->allocator = a;
    r->waits_for = -1;
    nib__ranks_limit(r, o.timeout_s);
    nib_status status = nib__mpi_load(&r->mpi, err);
    if (status == NIB_OK)
        status = start_mpi(r, err);
    if (status == NIB_OK)
        status = check_count(r, o.asked, err);
    if (status == NIB_OK)
        status = find_slice(r, err);
    if (status == NIB_OK)
        *out = r;
    else
        nib_ranks_close(r);
    return status;
}

void nib_ranks_close(nib_ranks *r)
{
    if (!r)
        return;
    /* If broken, finalizing would wait for a rank that does not answer. */
    if (r->owned && !r->broken)
        r->mpi.finalize();
    const nib_allocator a = r->allocator;
    nib__release(&a, r);
}

void nib_ranks_abort(nib_ranks *r, int exit_status)
{
    if (r)
        r->mpi.abort(r->mpi.world, exit_status);
}

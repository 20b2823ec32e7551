/* SPDX-License-Identifier: Apache-2.0
 *
 * Joins and leaves a run of several processes (ranks). Rank 0 prints for all.
 */
#include "cli.h"

#include <limits.h>
#include <stdlib.h>

/* Set by mpirun, or another launcher that Open MPI supports, for each process that it starts. */
static long long ranks_started(void)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    return size ? strtoll(size, NULL, 10) : 0;
}
static bool is_launched(void) { return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMIX_RANK"); }

int join_ranks(nib_ranks **out, const settings *s)
{
    const long long started = ranks_started(), asked = s->ranks > started ? s->ranks : started;
    nib_err err = {.status = NIB_NOT_AS_ASKED};
    *out = NULL;
    if (asked < 2)
        return 0;
    if (!is_launched()) {
        snprintf(err.text, sizeof err.text,
                 "%lld ranks are asked for, but this is one process; start it with `mpirun -n %lld "
                 "nibble train ...`, or as `NGPU=%lld ./run_train.sh ...`",
                 asked, asked, asked);
        return fail(&err);
    }
    /* stop Open MPI's warning that the program handles SIGBUS itself (watch_files) */
    setenv("OMPI_MCA_opal_signal", "6,8,11", 0);
    const nib_ranks_options options = {.asked = asked < INT_MAX ? (int)asked : INT_MAX};
    if (nib_ranks_open(out, &options, &err) != NIB_OK)
        return fail(&err);
    if (nib_ranks_rank(*out) > 0 && !freopen("/dev/null", "w", stdout))
        fclose(stdout);
    return 0;
}

int leave_ranks(nib_ranks *ranks, nib_status status, const nib_err *err)
{
    int end = nib_status_exit(status);
    if (status != NIB_OK && (nib_ranks_rank(ranks) == 0 || nib_ranks_broken(ranks)))
        end = fail(err);
    if (nib_ranks_broken(ranks))
        nib_ranks_abort(ranks, end);
    nib_ranks_close(ranks);
    return end;
}

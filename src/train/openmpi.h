/* SPDX-License-Identifier: Apache-2.0
 *
 * Open MPI by dlopen, so that building, and training in one process, need no header and no library.
 * The declarations follow the MPI standard's prototypes and Open MPI's binary interface, which
 * releases 4 and 5 share (docs.open-mpi.org, "ABI compatibility"): handles are pointers, predefined
 * handles are addresses of exported objects. Only releases 4 and 5 work.
 */
#ifndef NIB_OPENMPI_H
#define NIB_OPENMPI_H

#include "base.h"

typedef struct nib_mpi_status {
    int source, tag, error, cancelled;
    size_t count;
} nib_mpi_status;

typedef void *nib_mpi_request;

enum {
    NIB_MPI_SUCCESS = 0,
    NIB_MPI_THREAD_FUNNELED = 1,
    NIB_MPI_ANY_SOURCE = -1,
    NIB_MPI_TEXT = 256, /* the longest version and processor name */
};

/* X(name, symbol, what MPI calls it) of objects */
#define NIB_MPI_OBJECTS(X)                                                                         \
    X(world, "ompi_mpi_comm_world", MPI_COMM_WORLD)                                                \
    X(byte, "ompi_mpi_byte", MPI_BYTE)                                                             \
    X(errors_return, "ompi_mpi_errors_return", MPI_ERRORS_RETURN)

/* X(name, symbol, arguments) of functions that return int */
#define NIB_MPI_CALLS(X)                                                                           \
    X(get_library_version, "MPI_Get_library_version", (char *version, int *length))                \
    X(init_thread, "MPI_Init_thread", (int *argc, char ***argv, int required, int *provided))      \
    X(initialized, "MPI_Initialized", (int *flag))                                                 \
    X(finalized, "MPI_Finalized", (int *flag))                                                     \
    X(finalize, "MPI_Finalize", (void))                                                            \
    X(abort, "MPI_Abort", (void *comm, int exit_status))                                           \
    X(comm_rank, "MPI_Comm_rank", (void *comm, int *rank))                                         \
    X(comm_size, "MPI_Comm_size", (void *comm, int *size))                                         \
    X(comm_set_errhandler, "MPI_Comm_set_errhandler", (void *comm, void *handler))                 \
    X(get_processor_name, "MPI_Get_processor_name", (char *name, int *length))                     \
    X(isend, "MPI_Isend",                                                                          \
      (const void *bytes, int count, void *type, int to, int tag, void *comm,                      \
       nib_mpi_request *request))                                                                  \
    X(irecv, "MPI_Irecv",                                                                          \
      (void *bytes, int count, void *type, int from, int tag, void *comm,                          \
       nib_mpi_request *request))                                                                  \
    X(test, "MPI_Test", (nib_mpi_request * request, int *done, nib_mpi_status *status))            \
    X(iprobe, "MPI_Iprobe", (int from, int tag, void *comm, int *found, nib_mpi_status *status))

typedef struct nib_mpi {
#define X(name, symbol, meaning) void *name;
    NIB_MPI_OBJECTS(X)
#undef X
#define X(name, symbol, arguments) int(*name) arguments;
    NIB_MPI_CALLS(X)
#undef X
} nib_mpi;

/* Open MPI stays loaded until the process ends: it cannot be unloaded. NIB_NOT_AS_ASKED: no
 * library, or another release. */
nib_status nib__mpi_load(nib_mpi *out, nib_err *err);

#endif

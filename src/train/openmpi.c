/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds Open MPI's library and its symbols.
 */
#include "openmpi.h"

#include "text.h"

#include <dlfcn.h>
#include <stdio.h>

#define TO_INSTALL "install Open MPI 4 or 5 (Debian, Ubuntu: apt-get install openmpi-bin)"

/* Releases 3 to 5 have this number; their version tells them apart. */
static const char name[] = "libmpi.so.40", name_of_macos[] = "libmpi.40.dylib";

/* Its plug-ins find the library's symbols only where those are global. */
static void *open_library(void)
{
    void *library = dlopen(name_of_macos, RTLD_NOW | RTLD_GLOBAL);
    return library ? library : dlopen(name, RTLD_NOW | RTLD_GLOBAL);
}

/* A pointer to an object or a function, of `size` bytes: ISO C has no cast between the two. */
static nib_status find(void *to, size_t size, void *library, const char *symbol, nib_err *err)
{
    void *at = dlsym(library, symbol);
    if (!at || size != sizeof at)
        return nib__fail(err, NIB_NOT_AS_ASKED, "%s has no %s and is not Open MPI's; " TO_INSTALL,
                         name, symbol);
    memcpy(to, &at, sizeof at);
    return NIB_OK;
}

static nib_status check_version(const nib_mpi *m, nib_err *err)
{
    /* MPI says how long the text may be at compile time only; Open MPI's is at most 256, and
     * another library's, which is told from it here, at most 8192. */
    char text[8192] = "";
    int length = 0, major = 0;
    m->get_library_version(text, &length);
    if (sscanf(text, "Open MPI v%d.", &major) == 1 && (major == 4 || major == 5))
        return NIB_OK;
    text[64] = '\0';
    char shown[NIB_SHOWN];
    return nib__fail(err, NIB_NOT_AS_ASKED, "%s is \"%s\", and only Open MPI 4 and 5 are known; %s",
                     name, nib__shown(shown, text), TO_INSTALL);
}

nib_status nib__mpi_load(nib_mpi *out, nib_err *err)
{
    void *library = open_library();
    if (!library)
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "ranks want Open MPI, and it does not load (%s); %s", dlerror(),
                         TO_INSTALL);
#define X(member, symbol, more)                                                                    \
    NIB_TRY(find(&out->member, sizeof out->member, library, symbol, err));
    NIB_MPI_OBJECTS(X)
    NIB_MPI_CALLS(X)
#undef X
    return check_version(out, err);
}

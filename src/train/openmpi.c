/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads Open MPI and looks up its symbols.
 */
#include "openmpi.h"

#include "text.h"

#include <dlfcn.h>
#include <stdio.h>

#define INSTALL_HINT "install Open MPI 4 or 5 (Debian, Ubuntu: apt-get install openmpi-bin)"

/* Releases 3 to 5 share this number; check_version tells them apart. */
static const char name[] = "libmpi.so.40", macos_name[] = "libmpi.40.dylib";

/* Looks up an object or a function. `size` is that of a pointer: ISO C has no cast between the two
 * kinds. */
static nib_status find_symbol(void *to, size_t size, void *library, const char *symbol,
                              nib_err *err)
{
    void *at = dlsym(library, symbol);
    if (!at || size != sizeof at)
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "%s has no symbol %s, so it is not Open MPI; " INSTALL_HINT, name, symbol);
    memcpy(to, &at, sizeof at);
    return NIB_OK;
}

static nib_status check_version(const nib_mpi *m, nib_err *err)
{
    /* MPI states the maximum length at compile time only. Open MPI's is 256; that of other
     * libraries, which are rejected here, is at most 8192. */
    char text[8192] = "";
    int length = 0, major = 0;
    m->get_library_version(text, &length);
    if (sscanf(text, "Open MPI v%d.", &major) == 1 && (major == 4 || major == 5))
        return NIB_OK;
    text[64] = '\0';
    char shown[NIB_SHOWN];
    return nib__fail(err, NIB_NOT_AS_ASKED,
                     "%s is \"%s\", but only Open MPI 4 and 5 are supported; %s", name,
                     nib__escape_string(shown, text), INSTALL_HINT);
}

nib_status nib__mpi_load(nib_mpi *out, nib_err *err)
{
    /* global, since Open MPI's plug-ins look up the library's symbols */
    void *library = dlopen(macos_name, RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        return nib__fail(err, NIB_NOT_AS_ASKED, "ranks need Open MPI, which does not load (%s); %s",
                         dlerror(), INSTALL_HINT);
#define X(member, symbol, more)                                                                    \
    NIB_TRY(find_symbol(&out->member, sizeof out->member, library, symbol, err));
    NIB_MPI_OBJECTS(X)
    NIB_MPI_CALLS(X)
#undef X
    return check_version(out, err);
}

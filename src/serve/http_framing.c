/* SPDX-License-Identifier: Apache-2.0
 *
 * Refuses requests whose body could end in two places, or that name two hosts. If a proxy and
 * libmicrohttpd read two lengths, or a length and chunks, differently, the rest of a body runs here
 * as a second request (request smuggling). RFC 9112, 6.3, lets a server refuse such a request and
 * close the connection; 3.2 requires it for two hosts.
 */
#include "http.h"
#include "ascii.h"

#include <string.h>

typedef struct framing {
    int lengths, codings, hosts;
    const char *fault; /* of a single header; NULL: none */
} framing;

/* RFC 9110, 5.6.2: the characters of a header name. */
static bool is_token(const char *name)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    if (*name == '\0')
        return false;
    for (; *name != '\0'; name++)
        if (!((*name >= '0' && *name <= '9') || (*name >= 'a' && *name <= 'z') ||
              (*name >= 'A' && *name <= 'Z') || strchr(others, *name) != NULL))
            return false;
    return true;
}

static enum MHD_Result check_header(void *ctx, enum MHD_ValueKind kind, const char *name,
                                    const char *value)
{
    framing *f = ctx;
    (void)kind;
    if (!is_token(name)) {
        f->fault = "a header name has a space or another invalid character";
    } else if (same_ignoring_case(name, MHD_HTTP_HEADER_CONTENT_LENGTH)) {
        f->lengths++;
        if (value == NULL || *value == '\0' || value[strspn(value, "0123456789")] != '\0')
            f->fault = "Content-Length is not a number of bytes";
    } else if (same_ignoring_case(name, MHD_HTTP_HEADER_TRANSFER_ENCODING)) {
        f->codings++;
        if (value == NULL || !same_ignoring_case(value, "chunked"))
            f->fault = "Transfer-Encoding is not chunked; no other coding is supported";
    } else if (same_ignoring_case(name, MHD_HTTP_HEADER_HOST)) {
        f->hosts++;
    }
    return MHD_YES;
}

const char *framing_fault(struct MHD_Connection *mhd, const char *version)
{
    framing f = {0};
    MHD_get_connection_values(mhd, MHD_HEADER_KIND, check_header, &f);
    if (f.fault != NULL)
        return f.fault;
    if (f.lengths > 1)
        return "Content-Length is given twice";
    if (f.codings > 1)
        return "Transfer-Encoding is given twice";
    if (f.codings > 0 && strcmp(version, MHD_HTTP_VERSION_1_1) != 0)
        return "Transfer-Encoding needs HTTP version 1.1";
    if (f.lengths > 0 && f.codings > 0)
        return "Content-Length and Transfer-Encoding are both given";
    if (f.hosts > 1)
        return "Host is given twice";
    return NULL;
}

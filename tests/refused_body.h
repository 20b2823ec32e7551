/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: a request body that must be refused. Include it after cmocka.h.
 */
#ifndef NIB_TESTS_REFUSED_BODY_H
#define NIB_TESTS_REFUSED_BODY_H

#include "api_request.h"
#include "refused.h"

/* Fails unless the error is HTTP status 400, names this member and has a text, which is recorded as
 * the sentences of other refusals are. */
static inline void refused_body(const nib_api_error *error, const char *param)
{
    nib_err err = {NIB_BAD_INPUT, ""};
    assert_int_equal(error->http, 400);
    assert_string_equal(error->param, param);
    snprintf(err.text, sizeof err.text, "%s", error->text);
    refused(NIB_BAD_INPUT, NIB_BAD_INPUT, &err);
}

#endif

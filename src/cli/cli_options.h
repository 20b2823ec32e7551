/* SPDX-License-Identifier: Apache-2.0
 *
 * The option table, for the files that parse or print it.
 */
#ifndef NIB_CLI_OPTIONS_H
#define NIB_CLI_OPTIONS_H

#include "cli.h"

typedef enum option_kind {
    KIND_FLAG,
    KIND_TEXT,
    KIND_LIST,
    KIND_INT,   /* 0 or more */
    KIND_COUNT, /* 1 or more */
    KIND_SEED,
    KIND_DOUBLE,   /* 0 or more */
    KIND_POSITIVE, /* a number above 0 */
    KIND_BYTES
} option_kind;

/* Bits in the order of `commands`. */
enum {
    ON_INFO = 1 << 0,
    ON_PLAN = 1 << 1,
    ON_ADVISE = 1 << 2,
    ON_QUANTIZE = 1 << 3,
    ON_CONVERT = 1 << 4,
    ON_IMATRIX = 1 << 5,
    ON_GENERATE = 1 << 6,
    ON_CHAT = 1 << 7,
    ON_SERVE = 1 << 8,
    ON_EVAL = 1 << 9,
    ON_VERIFY = 1 << 10,
    ON_SIGN = 1 << 11,
    ON_BENCH = 1 << 12,
    ON_TUNE = 1 << 13,
    ON_TRAIN = 1 << 14,
    ON_PLOT = 1 << 15,
    ON_DEVICES = 1 << 16,
    ON_KERNELS = 1 << 17,
    ON_MODELS = 1 << 18,
    ON_RECIPES = 1 << 19,
    ON_FORMATS = 1 << 20,
    ON_EXPLAIN = 1 << 21,
    ON_MANUAL = 1 << 22,
    ON_COMPLETION = 1 << 23,
    ON_TABLES = ON_DEVICES | ON_KERNELS | ON_MODELS | ON_RECIPES | ON_FORMATS | ON_EXPLAIN,
    ON_TEXT = ON_GENERATE | ON_CHAT,
    ON_TALK = ON_CHAT | ON_SERVE,
    ON_INFER = ON_PLAN | ON_GENERATE | ON_EVAL | ON_BENCH | ON_TUNE | ON_TALK,
    ON_RUN = ON_INFER | ON_TRAIN,
    ON_CONFIG = ON_PLAN | ON_TRAIN | ON_BENCH, /* the keys of a training config are options */
    ON_WRITE = ON_QUANTIZE | ON_CONVERT,
    ON_MODEL = ON_RUN | ON_INFO | ON_VERIFY | ON_WRITE | ON_IMATRIX | ON_ADVISE,
    ON_ALL = ON_MODEL | ON_TABLES | ON_SIGN,
    ON_ENGINE = (ON_MODEL & ~ON_INFO) | ON_DEVICES, /* threads and kernels matter */
};

typedef struct option {
    const char *name;
    char letter; /* short option; 0: none */
    option_kind kind;
    size_t offset;     /* in settings */
    const char *value; /* placeholder in help; NULL for a flag */
    const char *help;
    unsigned on; /* ON_ bits of the commands that have it */
} option;

extern const option option_table[];
extern const size_t option_count;
unsigned command_bit(const command *c);
extern const char exit_status_text[]; /* meaning of each exit status, for help and manual pages */

#endif

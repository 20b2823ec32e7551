/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks the kernel table by iterating it; it has no list of kernels of its own.
 *
 *   check_kernels [--isa LEVEL] [--row TEXT] [--seed N] [--cases N] [--gpu-cases N]
 *                 [--gpu-every N] [--threads N] [--bench | --bench-bias | --bench-casts |
 *                  --bench-gpu [--divide N] | --programs FOLDER]
 *
 * For every row, built or not: its name parses by the grammar and is unique, its reference exists,
 * its texts are complete, and each condition has a witness, a query that breaks only that condition
 * and is refused with exactly its code. Every row that runs on this machine is compared with its
 * reference over shapes from its own conditions, between guards, with poisoned scratch, twice, and
 * in parts; each in its own process, so that a crash is one failure. --gpu-every N checks, of a
 * device, the first row of each operation and every Nth.
 */
#include "check_bench.h"
#include "check_bench_gpu.h"
#include "check_cast.h"
#include "check_linear.h"
#include "check_pack.h"
#include "check_programs.h"
#include "check_quant_w.h"
#include "check_sample.h"
#include "check_experts.h"
#include "check_states_dx.h"

#include "machine.h"

#include <sys/wait.h>
#include <unistd.h>

typedef struct options {
    const char *isa, *row, *programs;
    uint64_t seed;
    bool bench, bench_bias, bench_casts, bench_gpu;
    int64_t divide, tokens, group;
    int threads, gpu_cases, gpu_every;
} options;

typedef struct counts {
    int passed, failed;
} counts;

static void report(counts *n, bool good, const char *what, const char *why)
{
    n->passed += good;
    n->failed += !good;
    if (!good)
        printf("FAIL %s: %s\n", what, why);
}

/* ---- names ---- */

static const char *const type_words[] = {
    "f32",  "f16",  "bf16",  "a8t",   "a8s",   "a8b32", "a8b256", "a4t",  "e4m3t",
    "mx8",  "w1g",  "w2g",   "w3g",   "w5g",   "w6g",   "w7g",    "w8c",  "w8g",
    "w4c",  "w4g",  "e4m3c", "e5m2c", "e4m3b", "mx4",   "nv4",    "q4_0", "q4_1",
    "q5_0", "q5_1", "q8_0",  "q2k",   "q3k",   "q4k",   "q5k",    "q6k",  "iq4nl",
};
static const char *const target_words[] = {
    "ref",  "amx",  "avx512vnni", "avx512bf16", "avx512", "avx2",   "neon",     "i8mm",    "sm80",
    "sm89", "sm90", "sm100",      "ocl_gfx90a", "ocl",    "ocl_sg", "ocl_dot8", "ocl_f16",
};

/* Advances *at past the longest word of the list that ends at '_' or at the end of the name. */
static bool skip_word(const char **at, const char *const *words, size_t count)
{
    size_t best = 0;
    for (size_t i = 0; i < count; i++) {
        const size_t length = strlen(words[i]);
        const char end = strncmp(*at, words[i], length) == 0 ? (*at)[length] : 'x';
        if ((end == 0 || end == '_') && length > best)
            best = length;
    }
    *at += best;
    return best != 0;
}

static bool skip_number(const char **at)
{
    const size_t digits = strspn(*at, "0123456789");
    *at += digits;
    return digits != 0;
}

/* op {"_" type} "__" target ["_" rows "x" cols ["x" depth]] */
static bool name_parses(const char *name)
{
    const char *at = name;
    if (!skip_word(&at, nib__op_names, NIB_OP_COUNT))
        return false;
    while (at[0] == '_' && at[1] != '_') {
        at++;
        if (!skip_word(&at, type_words, COUNT(type_words)))
            return false;
    }
    if (strncmp(at, "__", 2) != 0)
        return false;
    at += 2;
    if (!skip_word(&at, target_words, COUNT(target_words)))
        return false;
    if (*at == 0)
        return true;
    at++;
    if (!skip_number(&at) || *at++ != 'x' || !skip_number(&at))
        return false;
    return *at == 0 || (*at++ == 'x' && skip_number(&at) && *at == 0);
}

/* ---- witnesses ---- */

static int64_t least_common(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y != 0) {
        const int64_t rest = x % y;
        x = y, y = rest;
    }
    return a / x * b;
}

/* Changes the query's value so that the condition holds. */
static void satisfy(const nib_cond *c, nib_query *q)
{
    int64_t *value = &q->fact[c->fact];
    if (nib__cond_holds(c, q))
        return;
    switch (c->relation) {
    case NIB_REL_IS:
    case NIB_REL_MIN:
    case NIB_REL_MAX: *value = c->arg; break;
    case NIB_REL_ONE_OF:
        for (*value = 0; *value < 1024 && !nib__cond_holds(c, q);)
            ++*value;
        break;
    case NIB_REL_MULTIPLE: *value = least_common(*value > 0 ? *value : c->arg, c->arg); break;
    case NIB_REL_DIVIDES: q->fact[c->arg] = least_common(*value, q->fact[c->arg]); break;
    case NIB_REL_HAS: *value |= c->arg; break;
    case NIB_REL_END: break;
    }
}

static nib_query query_that_holds(const nib_kernel *row)
{
    nib_query q = {.fact = {0}};
    q.fact[NIB_FACT_OP] = row->op;
    q.fact[NIB_FACT_CODE] = row->code == NIB_ANY ? 0 : row->code;
    q.fact[NIB_FACT_ACT] = row->act == NIB_ANY ? 0 : row->act;
    q.fact[NIB_FACT_INPUT] = row->input == NIB_ANY ? NIB_TYPE_F32 : row->input;
    q.fact[NIB_FACT_DEVICE] = row->device == NIB_ANY ? 0 : row->device;
    q.fact[NIB_FACT_N] = q.fact[NIB_FACT_K] = 4096;
    q.fact[NIB_FACT_M] = 1;
    q.fact[NIB_FACT_GROUP] = 32;
    q.fact[NIB_FACT_SCALE_TYPE] = NIB_TYPE_F32;
    q.fact[NIB_FACT_BUILT] = 1;
    for (int pass = 0; pass < 3; pass++)
        for (const nib_cond *c = row->conds; c->relation != NIB_REL_END; c++)
            satisfy(c, &q);
    return q;
}

static bool breaks_only(const nib_kernel *row, const nib_cond *c, const nib_query *q)
{
    const nib_cond *failed[2];
    return nib__kernel_failed(row, q, false, failed, 2) == 1 && failed[0] == c;
}

/* Tries values near the condition's edge, small ones and all enumerated ones. */
static bool find_witness(const nib_kernel *row, const nib_cond *c, nib_query *q)
{
    const nib_query holds = query_that_holds(row);
    const nib_fact fact = c->relation == NIB_REL_DIVIDES ? (nib_fact)c->arg : c->fact;
    const int64_t now = holds.fact[fact];
    for (int64_t i = 0; i < 200; i++) {
        const int64_t near[] = {c->arg - 1,       c->arg + 1, now + 1, now - 1,
                                now + c->arg / 2, 2 * now,    3 * now, 0};
        *q = holds;
        q->fact[fact] = i < (int64_t)COUNT(near) ? near[i] : i - (int64_t)COUNT(near);
        if (q->fact[fact] >= 0 && breaks_only(row, c, q))
            return true;
    }
    /* farther values, with matching groups, for conditions that share a fact with others */
    static const int64_t groups[] = {32, 64, 128, 256, 48, 24, 8};
    for (size_t g = 0; g < COUNT(groups); g++) {
        for (int64_t at = 8; at <= 65536 * 4; at += at < 8192 ? 8 : 4096) {
            *q = holds;
            q->fact[NIB_FACT_GROUP] = groups[g];
            q->fact[fact] = at;
            if (breaks_only(row, c, q))
                return true;
        }
    }
    return false;
}

static void check_witnesses(counts *n, const nib_kernel *row, nib_text *text)
{
    const nib_query holds = query_that_holds(row);
    if (nib__kernel_failed(row, &holds, false, NULL, 0) != 0) {
        report(n, false, row->name, "no query meets all its conditions");
        return;
    }
    for (const nib_cond *c = row->conds; c->relation != NIB_REL_END; c++) {
        nib_query q;
        char why[256], code[128];
        nib__text_clear(text);
        nib__cond_code(c, text);
        snprintf(code, sizeof code, "%s", text->at);
        const bool found = find_witness(row, c, &q);
        nib__text_clear(text);
        if (found)
            nib__cond_say(c, &q, text);
        snprintf(why, sizeof why, "condition %s: %s", code,
                 found ? "its sentence is too short"
                       : "nothing breaks it alone: another condition covers it");
        report(n, found && text->size >= 12 && nib__kernel_keyed(row, &q), row->name, why);
    }
}

/* ---- the table ---- */

static void check_row(counts *n, size_t i, nib_text *text)
{
    const nib_kernel *row = nib__kernel_at(i);
    const nib_kernel *ref = row->reference != NULL ? nib__kernel_find(row->reference) : row;
    const bool is_peer = row->peer != NULL, is_linear = is_product(row->op);
    report(n, is_peer || name_parses(row->name), row->name, "the name does not parse");
    report(n, nib__kernel_find(row->name) == row, row->name, "the name is there twice");
    report(n, row->note != NULL && strlen(row->note) >= 3, row->name, "it has no note");
    report(n, row->conds != NULL, row->name, "it has no list of conditions");
    if (is_peer) {
        const bool sourced = row->peer->engine != NULL && row->peer->version != NULL &&
                             row->peer->source != NULL && strchr(row->peer->source, ':') != NULL;
        report(n, sourced, row->name, "another engine's row needs engine, version and commit:path");
        report(n, row->run.any == NULL, row->name, "another engine's row never runs");
    } else {
        report(n, ref != NULL && ref->op == row->op && nib__kernel_is_ref(ref), row->name,
               "its reference does not exist, or is none");
        report(n, nib__kernel_is_ref(row) == (strstr(row->name, "__ref") != NULL), row->name,
               "a row is a reference if, and only if, its name says so");
        report(n, !nib__kernel_is_ref(row) || row->conds->relation == NIB_REL_END, row->name,
               "a reference takes every shape");
        report(n,
               ref == NULL || row->arithmetic == NIB_ARITHMETIC_OTHER ||
                   row->arithmetic == ref->arithmetic,
               row->name, "its arithmetic contract is not its reference's");
        report(n, !is_linear || row->n_step > 0, row->name, "a linear row needs n_step");
        report(n,
               row->packing == NULL || (row->packing->name != NULL && row->packing->bytes != NULL &&
                                        row->packing->pack != NULL && row->packing->step > 0),
               row->name, "its packing is not complete");
    }
    check_witnesses(n, row, text);
}

static void check_table(counts *n)
{
    const nib_allocator a = nib__allocator_default();
    nib_text text;
    nib__text_init(&text, &a);
    for (size_t i = 0; i < nib__kernel_count(); i++)
        check_row(n, i, &text);
    nib__text_free(&text);
}

/* ---- rows that run on this machine ---- */

/* Where a row runs: on the CPU, or on the GPU with this number, which may emulate instructions. */
typedef struct place {
    nib_query facts;
    size_t gpu;
    uint64_t seed;
    bool emulates;
    size_t every; /* the rows that run: see --gpu-every */
} place;

static bool runs_there(const nib_kernel *row, const nib_query *device)
{
    const int64_t kind = device->fact[NIB_FACT_DEVICE];
    for (const nib_cond *c = row->conds; c->relation != NIB_REL_END; c++)
        if (c->fact >= NIB_FACT_DEVICE && c->fact <= NIB_FACT_DRIVER && !nib__cond_holds(c, device))
            return false;
    return kind == NIB_DEVICE_CPU ? row->run.any != NULL : row->gpu != NULL && row->device == kind;
}

static bool check_runs(verdict *v, const nib_kernel *row, const place *at)
{
    const nib_kernel *ref = row->reference != NULL ? nib__kernel_find(row->reference) : row;
    if (ref == NULL || !nib__kernel_built(ref))
        return broken(v, "its reference is not built");
    if (row->gpu != NULL && !open_gpu(v, at->gpu))
        return false;
    if (row->gpu != NULL)
        under_test.gpu->emulates = at->emulates;
    if (is_product(row->op) || row->op == NIB_OP_QUANT || row->op == NIB_OP_NORM_QUANT)
        return check_products(v, row, ref, &at->facts,
                              cases_of(at->emulates ? PRODUCTS_EMULATED : PRODUCTS), at->seed);
    if (is_cast(row->op))
        return check_casts(v, row, ref, at->seed);
    if (row->op == NIB_OP_QUANT_W)
        return check_quant_w(v, row, ref, at->seed);
    token_check check = row->op == NIB_OP_SAMPLE ? check_sample
                        : row->op == NIB_OP_PACK ? check_pack
                                                 : token_check_of(row->op);
    if (check == NULL)
        check = train_check_of(row->op);
    if (check == NULL)
        check = states_check_of(row->op);
    if (check == NULL)
        return broken(v, "the checker has no cases for %s", nib__op_names[row->op]);
    return check_tokens(v, row, ref, check, at->seed);
}

/* A row that is checked in its own process, so that a crash is reported as its failure. */
typedef struct apart {
    const nib_kernel *row;
    pid_t child;
    int end; /* the pipe for its verdict */
} apart;

static apart start_apart(const nib_kernel *row, const place *at)
{
    int ends[2];
    fflush(stdout);
    if (pipe(ends) != 0)
        return (apart){.row = row, .child = -1, .end = -1};
    const pid_t child = fork();
    if (child == 0) {
        verdict own = {.text = ""};
        close(ends[0]);
        const bool good = check_runs(&own, row, at);
        const bool said = write(ends[1], &own, sizeof own) == (ssize_t)sizeof own;
        _exit(good && said ? 0 : 1);
    }
    close(ends[1]);
    return (apart){.row = row, .child = child, .end = ends[0]};
}

static void finish_apart(counts *n, const apart *a)
{
    verdict v = {.text = "the process of this row gave no verdict"};
    int status = 0;
    const bool told = a->child > 0 && read(a->end, &v, sizeof v) == (ssize_t)sizeof v;
    close(a->end);
    if (a->child > 0)
        waitpid(a->child, &status, 0);
    if (!told && WIFSIGNALED(status))
        snprintf(v.text, sizeof v.text, "it crashed with signal %d", WTERMSIG(status));
    report(n, told && WIFEXITED(status) && WEXITSTATUS(status) == 0, a->row->name, v.text);
}

enum { AT_ONCE_MOST = 8 };

/* Rows at a time: most time goes to compiling a device's programs, with one thread each. */
static size_t rows_at_once(void)
{
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    return processors < 1 ? 1 : processors > AT_ONCE_MOST ? AT_ONCE_MOST : (size_t)processors;
}

/* Checks every row that runs at the place, except those that run with the facts of `but`. */
static void check_place(counts *n, const place *at, const nib_query *but, const char *only)
{
    apart running[AT_ONCE_MOST];
    const size_t most = rows_at_once();
    bool seen[NIB_OP_COUNT] = {false};
    size_t started = 0, finished = 0, rows = 0;
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        if (!runs_there(row, &at->facts) || (but != NULL && runs_there(row, but)) ||
            (only != NULL && strstr(row->name, only) == NULL))
            continue;
        if (seen[row->op] && ++rows % at->every != 0)
            continue;
        seen[row->op] = true;
        if (started - finished == most)
            finish_apart(n, &running[finished++ % most]);
        running[started++ % most] = start_apart(row, at);
    }
    while (finished < started)
        finish_apart(n, &running[finished++ % most]);
}

/* Checks rows whose instructions the device lacks; functions in the sources emulate these, so that
 * everything else is checked. */
static void check_emulated(counts *n, const place *real, const char *only)
{
    place at = *real;
    int64_t *fact = at.facts.fact;
    at.emulates = true;
    fact[NIB_FACT_MAKER] = NIB_MAKER_AMD, fact[NIB_FACT_CDNA] = 2;
    fact[NIB_FACT_DOT4] = fact[NIB_FACT_DOT8] = 1;
    fact[NIB_FACT_SUBGROUPS] = fact[NIB_FACT_FP16] = 1;
    check_place(n, &at, &real->facts, only);
}

static void check_gpus(counts *n, const options *o)
{
    devices found = {0};
    ask_devices(&found);
    for (size_t i = 0; i < found.count; i++) {
        const place at = {
            .facts = found.facts[i], .gpu = i, .seed = o->seed, .every = (size_t)o->gpu_every};
        printf("device %s\n", found.names[i]);
        check_place(n, &at, NULL, o->row);
        if (at.facts.fact[NIB_FACT_DEVICE] == NIB_DEVICE_OPENCL)
            check_emulated(n, &at, o->row);
    }
    if (found.count == 0)
        printf("skipped: OpenCL rows: no OpenCL device\n");
}

static bool read_options(options *o, int count, char **words)
{
    *o = (options){.seed = 20261120, .divide = 1, .gpu_every = 1};
    for (int i = 1; i < count; i++) {
        const bool has_value = i + 1 < count;
        if (strcmp(words[i], "--bench") == 0)
            o->bench = true;
        else if (strcmp(words[i], "--bench-bias") == 0)
            o->bench_bias = true;
        else if (strcmp(words[i], "--bench-casts") == 0)
            o->bench_casts = true;
        else if (strcmp(words[i], "--bench-gpu") == 0)
            o->bench_gpu = true;
        else if (strcmp(words[i], "--divide") == 0 && has_value)
            o->divide = nib__max(1, strtol(words[++i], NULL, 10));
        else if (strcmp(words[i], "--tokens") == 0 && has_value)
            o->tokens = nib__max(1, strtol(words[++i], NULL, 10));
        else if (strcmp(words[i], "--group") == 0 && has_value)
            o->group = nib__max(1, strtol(words[++i], NULL, 10));
        else if (strcmp(words[i], "--isa") == 0 && has_value)
            o->isa = words[++i];
        else if (strcmp(words[i], "--row") == 0 && has_value)
            o->row = words[++i];
        else if (strcmp(words[i], "--programs") == 0 && has_value)
            o->programs = words[++i];
        else if (strcmp(words[i], "--seed") == 0 && has_value)
            o->seed = strtoull(words[++i], NULL, 10);
        else if (strcmp(words[i], "--cases") == 0 && has_value)
            cases_most = (int)nib__max(1, strtol(words[++i], NULL, 10));
        else if (strcmp(words[i], "--gpu-cases") == 0 && has_value)
            o->gpu_cases = (int)nib__max(1, strtol(words[++i], NULL, 10));
        else if (strcmp(words[i], "--gpu-every") == 0 && has_value)
            o->gpu_every = (int)nib__max(1, strtol(words[++i], NULL, 10));
        else if (strcmp(words[i], "--threads") == 0 && has_value)
            o->threads = (int)strtol(words[++i], NULL, 10);
        else
            return false;
    }
    return true;
}

int main(int count, char **words)
{
    options o;
    nib_err err = {NIB_OK, ""};
    counts n = {0, 0};
    int64_t isa;
    if (!read_options(&o, count, words)) {
        fprintf(stderr, "usage: check_kernels [--isa LEVEL] [--row TEXT] [--seed N] [--cases N] "
                        "[--gpu-cases N] [--gpu-every N] [--threads N] [--bench [--tokens N] "
                        "[--group N] | --bench-bias | "
                        "--bench-casts | --bench-gpu [--divide N] | --programs FOLDER]\n");
        return 2;
    }
    if (nib__cpu_isa_mask(&isa, o.isa, &err) != NIB_OK) {
        fprintf(stderr, "%s\n", err.text);
        return nib_status_exit(err.status);
    }
    if (o.programs != NULL)
        return write_programs(o.row, o.programs);
    if (o.bench_bias)
        return bench_biases(o.row, isa);
    if (o.bench_casts)
        return bench_casts(o.row, isa);
    if (o.bench_gpu)
        return bench_gpu(o.divide);
    if (o.bench)
        return bench_rows(o.row, isa, o.threads, o.tokens, o.group);
    printf("seed %" PRIu64 ", isa %s\n", o.seed, nib__cpu_isa_name(isa));
    if (o.row == NULL)
        check_table(&n);
    check_place(&n, &(place){.facts = cpu_query(isa), .seed = o.seed, .every = 1}, NULL, o.row);
    cases_most = o.gpu_cases > 0 ? o.gpu_cases : cases_most; /* each needs programs compiled */
    check_gpus(&n, &o);
    printf("%d passed, %d failed\n", n.passed, n.failed);
    return n.failed != 0;
}

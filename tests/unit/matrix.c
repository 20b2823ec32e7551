/* SPDX-License-Identifier: Apache-2.0
 *
 * Every family by every scheme, type of cache, machine and way of training: far more than a test
 * run has time for, so `make matrix` runs all of it, and `make test` every so many cells. A cell is
 * a process of its own; what it asks:
 *
 *   run     the plan does all that is asked (--strict), and logits are the same bits in plain C on
 *           one thread, in two pieces, and with the best instructions on two threads, beside
 *           another sequence, in many pieces
 *   opencl  the same plan on a device of OpenCL, where there is one with rows for the scheme, gives
 *           those logits but for the order of sums; if routers choose other experts, with those of
 *           the device
 *   plan    on a machine that is not here: done as asked, or said
 *   train   loss and gradients are the same bits in plain C and with the best instructions on three
 *           threads that compute what was forgotten again; and a device's are near them
 *
 * usage: matrix [--every N] [--jobs N] [WORD...]    cells whose names have all the words
 * Last line: N passed, N failed.
 */
#include "session.h"
#include "skipping.h"
#include "step_fixture.h"

#include "arch.h"
#include "recipe_rules.h"

#include <glob.h>
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NAMES_MAX = 64, PROMPT = 100, LONG_PROMPT = 640, CELL_SECONDS = 300, CELL_NAME = 160 };

typedef struct names {
    const char *at[NAMES_MAX];
    size_t count;
} names;

static void add_name(names *n, const char *name)
{
    if (n->count == NAMES_MAX)
        abort();
    n->at[n->count++] = name;
}

/* Folders or files that match, without the part up to their last slash and an ending. */
static names find(const char *pattern, size_t ending)
{
    names n = {0};
    glob_t found;
    if (glob(pattern, 0, NULL, &found) != 0)
        return n;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *name = found.gl_pathv[i];
        name[strlen(name) - ending] = '\0';
        add_name(&n, strrchr(name, '/') + 1);
    }
    return n; /* the names stay */
}

/* ---- schemes ---- */

/* Forms of them that are computed in other ways than the plain names. */
static const char *const forms[] = {"int8wo-g32",     "int8dq-g32",     "int4wo-g24",
                                    "int4wo-g32-sym", "8da4w-g32-asym", "8da4w-actsym",
                                    "4da4w-g64",      "fp8wo-tensor",   "fp8dq-tensor",
                                    "mxfp8-floor",    "nvfp4dq-block"};

typedef struct text {
    char at[1 << 16];
    size_t size;
} text;

static nib_status keep_text(void *ctx, const char *data, size_t size)
{
    text *t = ctx;
    if (size >= sizeof t->at - t->size)
        return NIB_NO_MEMORY;
    memcpy(t->at + t->size, data, size);
    t->size += size;
    return NIB_OK;
}

/* The names that `nibble recipes` lists, which are lines of one word, and the forms. */
static names find_schemes(void)
{
    static text listed;
    const nib_allocator a = nib__allocator_default();
    names n = {0};
    if (nib__recipes_write(NIB_FORM_TEXT, &a, &(nib_sink){keep_text, &listed}, NULL) != NIB_OK)
        abort();
    for (char *line = strtok(listed.at, "\n"); line != NULL; line = strtok(NULL, "\n"))
        if (strchr(line, ' ') == NULL)
            add_name(&n, line);
    for (size_t i = 0; i < COUNT(forms); i++)
        add_name(&n, forms[i]);
    return n;
}

/* ---- a cell ---- */

typedef struct cell {
    char name[CELL_NAME];
    const char *kind, *model, *scheme, *cache, *machine;
} cell;

static int fail_cell(const cell *c, const char *format, ...)
{
    char words[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(words, sizeof words, format, list);
    va_end(list);
    printf("%s: %s\n", c->name, words);
    return 1;
}

typedef struct opened_cell {
    opened o;
    int64_t vocab, count;
} opened_cell;

static int open_cell(opened_cell *out, const cell *c, const char *isa, int threads,
                     const char *device)
{
    char path[128];
    /* longrope's table is chosen for a context, not as a text grows: --strict refuses it else.
     * Layers that keep a state have no rows on a device. */
    static const char *const accepted[] = {"rope", "device"};
    nib_err err;
    opened *o = &out->o;
    snprintf(path, sizeof path, "tests/golden/models/%s", c->model);
    const nib_engine_options options = {.threads = threads, .isa = isa};
    nib_request request = {
        .dtype = strcmp(c->scheme, "f32") == 0 ? "f32" : NULL, /* and nothing is rounded */
        .recipe = c->scheme,
        .cache = c->cache,
        .allow = {accepted, 1},
        .device = device,
        .sequences = 2,
        .strict = true};
    nib_status status = nib_engine_open(&o->engine, &options, &err);
    if (status == NIB_OK) {
        o->engine->measured = true; /* rates order nothing that could change a bit */
        status = nib_model_open(&o->model, o->engine, path, NULL, &err);
    }
    if (status == NIB_OK && device != NULL && o->model->net.config.conv_layers != NULL) {
        request.allow.count = COUNT(accepted);
        request.strict = false;
    }
    if (status == NIB_OK)
        status = nib_plan_open(&o->plan, o->model, &request, &err);
    if (status == NIB_OK)
        status = nib_session_open(&o->session, o->model, o->plan, 2, &err);
    if (status != NIB_OK)
        return fail_cell(c, "%s", err.text);
    const nib_config *config = &o->model->net.config;
    out->vocab = nib_session_vocab(o->session);
    out->count = nib__min(config->window > 0 ? LONG_PROMPT : PROMPT, o->plan->context);
    return 0;
}

static int32_t token_at(const opened_cell *o, int64_t sequence, int64_t i)
{
    return (int32_t)((i * 7 + i / 50 + 31 * sequence) % nib__min(o->vocab, 97));
}

/* Tokens [from, to) of both sequences, as far as `beside` of the first go; logits of the last token
 * of the second into rows[to - 1]. */
static int run_piece(const opened_cell *o, const cell *c, int64_t from, int64_t to, bool beside,
                     float *rows)
{
    nib_slot slots[2 * LONG_PROMPT];
    const float *logits;
    nib_err err;
    size_t count = 0;
    for (int s = beside ? 0 : 1; s < 2; s++)
        for (int64_t i = from; i < to; i++)
            slots[count++] = (nib_slot){.sequence = s,
                                        .position = (int32_t)i,
                                        .token = token_at(o, s, i),
                                        .outputs = s == 1 && i + 1 == to ? NIB_SLOT_LOGITS : 0};
    if (nib_session_step(o->o.session, slots, count, &logits, &err) != NIB_OK)
        return fail_cell(c, "%s", err.text);
    memcpy(rows + (to - 1) * o->vocab, logits, (size_t)o->vocab * sizeof *rows);
    return 0;
}

/* The positions that all ways of running give logits of. */
static const int64_t ends[] = {1, 2, 3, 37, 64, 65, 98, 99, 100, 500, 577, 638, 639, 640};

static float *run_cell(const opened_cell *o, const cell *c, bool beside)
{
    float *rows = calloc((size_t)(o->count * o->vocab), sizeof *rows);
    int64_t from = 0;
    int failed = rows == NULL;
    for (size_t i = 0; i < COUNT(ends) && ends[i] <= o->count && !failed; from = ends[i++])
        failed = run_piece(o, c, from, ends[i], beside, rows);
    return failed ? NULL : rows;
}

/* Adds the squares of a - b, and of b. */
static void add_squares(const float *a, const float *b, int64_t count, double *off, double *all)
{
    for (int64_t i = 0; i < count; i++) {
        const double d = (double)a[i] - (double)b[i];
        *off += d * d, *all += (double)b[i] * (double)b[i];
    }
}

/* Where both have logits: the largest distance of a row, as a share of its length; below 0: all
 * bits are the same. */
static double distance_of(const opened_cell *o, const float *a, const float *b)
{
    double most = 0;
    if (memcmp(a, b, (size_t)(o->count * o->vocab) * sizeof *a) == 0)
        return -1;
    for (int64_t i = 0; i < o->count; i++) {
        double off = 0, all = 0;
        add_squares(a + i * o->vocab, b + i * o->vocab, o->vocab, &off, &all);
        const double share = all != 0 ? sqrt(off / all) : 0;
        if (!(share <= most)) /* fmax would drop a NaN */
            most = share;
        if (isnan(most))
            return NAN;
    }
    return most;
}

static int run_here(const cell *c)
{
    opened_cell plain = {0}, best = {0};
    if (open_cell(&plain, c, "ref", 1, NULL) || open_cell(&best, c, NULL, 2, NULL))
        return 1;
    float *want = run_cell(&plain, c, false), *got = run_cell(&best, c, true);
    if (want == NULL || got == NULL)
        return 1;
    for (int64_t i = 0; i < plain.count * plain.vocab; i++)
        if (!isfinite(want[i]))
            return fail_cell(c, "logits are not finite");
    const double off = distance_of(&plain, got, want);
    free(want), free(got);
    close_opened(&plain.o), close_opened(&best.o);
    return off < 0 ? 0 : fail_cell(c, "other bits than plain C, by up to %g", off);
}

/* Logits of the cell's model in f32 are this far from those of its scheme; below 0: it failed. */
static double rounding_of(const cell *c, const float *rounded)
{
    opened_cell exact = {0};
    cell in_f32 = *c;
    in_f32.scheme = "f32", in_f32.cache = NULL;
    if (open_cell(&exact, &in_f32, NULL, 2, NULL))
        return -1;
    float *rows = run_cell(&exact, c, false);
    const double off = rows != NULL ? distance_of(&exact, rounded, rows) : -1;
    free(rows);
    close_opened(&exact.o);
    return off;
}

/* Layers of the cell's plan multiply codes of activations. */
static bool acts_have_codes(const opened_cell *c)
{
    const nib_assignment *plan = &c->o.plan->assignment;
    for (size_t i = 0; i < plan->count; i++)
        if (plan->layers[i].done.act != NIB_ACT_FLOAT)
            return true;
    return false;
}

/* ---- what routers say on a device ---- */

/* The logits of routers in the order of a run, [count][experts]. */
typedef struct router_logits {
    float *rows;
    size_t count, capacity, used;
    int64_t experts;
    double off, all; /* sums of squares: distances to the logits here, and the device's logits */
} router_logits;

static void keep_logits(void *ctx, float *logits, int64_t ld, int64_t m)
{
    router_logits *all = ctx;
    const size_t width = (size_t)all->experts;
    if (all->count + (size_t)m > all->capacity) {
        all->capacity = 2 * (all->count + (size_t)m);
        all->rows = realloc(all->rows, all->capacity * width * sizeof *all->rows);
        if (all->rows == NULL)
            abort();
    }
    for (int64_t i = 0; i < m; i++)
        memcpy(all->rows + width * all->count++, logits + i * ld, width * sizeof *all->rows);
}

static void use_logits(void *ctx, float *logits, int64_t ld, int64_t m)
{
    router_logits *all = ctx;
    const size_t width = (size_t)all->experts;
    for (int64_t i = 0; i < m && all->used < all->count; i++) {
        const float *kept = all->rows + width * all->used++;
        add_squares(logits + i * ld, kept, all->experts, &all->off, &all->all);
        memcpy(logits + i * ld, kept, width * sizeof *logits);
    }
}

/* ---- on a device ---- */

typedef struct comparison {
    double off, limit; /* of logits */
} comparison;

/* The cell here and on the device. routers: takes the logits of the device's routers here, too;
 * NULL: does not.
 *
 * A sum in another order can change a code of an activation: one of 4 bits moves a value by a
 * seventh of its row's largest, one of e4m3 by a sixteenth of itself, and a network of random
 * weights can make that larger in every layer (gemma4_shared in int8dq is 0.59 off from itself in
 * f32). So logits of schemes with such codes may be off by half of what their rounding costs. */
static int compare(const cell *c, router_logits *routers, comparison *out)
{
    opened_cell here = {0}, there = {0};
    const bool floats = strcmp(c->scheme, "f32") == 0 && c->cache == NULL;
    if (open_cell(&here, c, NULL, 2, NULL) || open_cell(&there, c, NULL, 2, "opencl"))
        return 1;
    if (routers != NULL) {
        routers->experts = here.o.model->net.config.moe.experts;
        there.o.session->runner.observer = (nib_observer){.routes = keep_logits, .ctx = routers};
        here.o.session->runner.observer = (nib_observer){.routes = use_logits, .ctx = routers};
    }
    float *got = run_cell(&there, c, false), *want = run_cell(&here, c, false);
    if (want == NULL || got == NULL)
        return 1;
    out->off = distance_of(&here, got, want);
    out->limit = floats ? 1e-4 : 0.1;
    if (acts_have_codes(&here) && !(out->off < out->limit))
        out->limit = fmax(out->limit, rounding_of(c, want) / 2);
    free(want), free(got);
    close_opened(&here.o), close_opened(&there.o);
    return 0;
}

/* Another code of an activation can turn a router's choice between two experts that are nearly as
 * good, and a token of other experts has other logits. So if logits are too far off, routers here
 * get the device's logits: these have to be near those here, and must choose experts that give the
 * device's logits. In f32 there are no codes, and no second try. */
static int run_there(const cell *c)
{
    router_logits routers = {0};
    comparison is;
    if (compare(c, NULL, &is))
        return 1;
    if (!(is.off < is.limit) && strcmp(c->scheme, "f32") != 0 && compare(c, &routers, &is))
        return 1;
    free(routers.rows);
    if (routers.used != routers.count)
        return fail_cell(c, "routers ran %zu times, and on the device %zu times", routers.used,
                         routers.count);
    const double off = routers.used > 0 ? sqrt(routers.off / routers.all) : 0;
    if (!(off < is.limit))
        return fail_cell(c, "the routers' logits are off by %g, more than %g", off, is.limit);
    return is.off < is.limit ? 0
                             : fail_cell(c, "logits are off by %g, more than %g", is.off, is.limit);
}

/* Nothing is refused without words, and what is done otherwise is counted. */
static int plan_absent(const cell *c)
{
    char path[128];
    nib_err err;
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
    snprintf(path, sizeof path, "tests/golden/models/%s", c->model);
    const nib_request request = {.recipe = c->scheme, .cache = c->cache, .device = c->machine};
    if (nib_engine_open(&engine, &(nib_engine_options){.threads = 1}, &err) != NIB_OK)
        return fail_cell(c, "%s", err.text);
    engine->measured = true; /* the host of a GPU that is not here, which takes 0.3 s */
    if (nib_model_open(&model, engine, path, NULL, &err) != NIB_OK ||
        nib_plan_open(&plan, model, &request, &err) != NIB_OK)
        return fail_cell(c, "%s", err.text);
    const nib_status status = nib_plan_status(plan, &err);
    for (size_t i = 0; i < plan->assignment.count; i++) {
        const nib_layer_plan *l = &plan->assignment.layers[i];
        const bool other = !nib__scheme_equal(&l->done, &plan->layers[i].asked);
        if (status == NIB_OK && other && l->rung == NIB_RUNG_NONE)
            return fail_cell(c, "%s is done otherwise, and not said", plan->layers[i].name);
    }
    if (status != NIB_OK && strchr(err.text, ':') == NULL)
        return fail_cell(c, "refused with no reason: %s", err.text);
    nib_plan_close(plan);
    nib_model_close(model);
    nib_engine_close(engine);
    return 0;
}

/* Whether the config.json in the folder has this text. */
static bool mentions(const char *folder, const char *model, const char *what)
{
    char path[128];
    char *json;
    size_t size;
    nib_err err;
    const nib_allocator a = nib__allocator_default();
    snprintf(path, sizeof path, "tests/golden/%s/%s/config.json", folder, model);
    if (nib__file_read(&json, &size, path, 1 << 20, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    const bool found = strstr(json, what) != NULL;
    nib__release(&a, json);
    return found;
}

static bool is_mixture(const char *model)
{
    return mentions("train", model, "experts_per_tok") || mentions("train", model, "top_k_experts");
}

static int train_cell(const cell *c)
{
    const bool exact = strcmp(c->kind, "train") == 0, qat = strncmp(c->scheme, "qat ", 4) == 0;
    char recipe[64];
    fixture a, b;
    setting s = {.name = c->model, .dtype = "bf16", .recipe = recipe, .isa = "ref"};
    /* a router would stay f32, as it is stored, beside activations in bf16 */
    snprintf(recipe, sizeof recipe, "%s%s", c->scheme + (qat ? 4 : 0),
             is_mixture(c->model) ? "+router" : "");
    if (strcmp(c->scheme, "f32") == 0)
        s.dtype = "f32", s.recipe = NULL;
    if (qat)
        s.qat = "qat_8da4w";
    if (!exact)
        s.isa = NULL;
    open_fixture(&a, &s);
    if (exact)
        s.isa = NULL, s.threads = 3, s.checkpointing = NIB_AC_FULL;
    else
        s.device = "opencl";
    open_fixture(&b, &s);
    const double want = run(&a, a.gradients), got = run(&b, b.gradients);
    const size_t bytes = a.params.total * sizeof(float);
    if (exact && (want != got || memcmp(a.gradients, b.gradients, bytes) != 0))
        return fail_cell(c, "other bits than plain C; loss %.9g and %.9g", got, want);
    const double off = distance(b.gradients, a.gradients, a.params.total);
    if (!isfinite(want) || !(fabs(got - want) < 0.02 * want) || !(off < 0.2))
        return fail_cell(c, "loss %.9g, not %.9g; gradients are off by %g", got, want, off);
    close_fixture(&a), close_fixture(&b);
    return 0;
}

/* Super-blocks need inputs in multiples of 256, and no model here has them in every layer: such a
 * cell passes if the plan is refused with that number. tests/cli/super_blocks.sh runs one. */
static int refuse_super_blocks(const cell *c)
{
    char path[128];
    nib_err err = {NIB_OK, ""};
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
    snprintf(path, sizeof path, "tests/golden/models/%s", c->model);
    const nib_request request = {.recipe = c->scheme, .device = c->machine};
    if (nib_engine_open(&engine, &(nib_engine_options){.threads = 1}, &err) != NIB_OK ||
        nib_model_open(&model, engine, path, NULL, &err) != NIB_OK)
        return fail_cell(c, "%s", err.text);
    const nib_status status = nib_plan_open(&plan, model, &request, &err);
    if (status != NIB_UNSUPPORTED || strstr(err.text, "super-blocks of 256 inputs") == NULL)
        return fail_cell(c, "status %d, not refused for its widths: %s", (int)status, err.text);
    nib_model_close(model);
    nib_engine_close(engine);
    return 0;
}

static bool has_super_blocks(const char *scheme)
{
    nib_scheme s;
    return nib__recipe_is_mix(scheme) ||
           (nib__scheme_parse(&s, scheme, strlen(scheme), NULL) == NIB_OK &&
            s.formula == NIB_FORMULA_SUPER);
}

static int run_one(const cell *c)
{
    alarm(CELL_SECONDS);
    if (has_super_blocks(c->scheme))
        return refuse_super_blocks(c);
    if (strcmp(c->kind, "run") == 0)
        return run_here(c);
    if (strcmp(c->kind, "opencl") == 0)
        return run_there(c);
    if (strcmp(c->kind, "plan") == 0)
        return plan_absent(c);
    return train_cell(c);
}

/* ---- all cells ---- */

enum { JOBS_MAX = 64 };

typedef struct matrix {
    long every, jobs, running;
    pid_t pids[JOBS_MAX];
    char names[JOBS_MAX][CELL_NAME]; /* of the cells that run */
    char **words;
    int word_count;
    long seen, passed, failed;
    bool has_device;
} matrix;

static void wait_for_one(matrix *m)
{
    int status;
    long at = 0;
    const pid_t ended = wait(&status);
    while (at < m->running && m->pids[at] != ended)
        at++;
    if (at == m->running)
        abort();
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        m->passed++;
    } else {
        m->failed++;
        printf("FAIL %s, %s %d\n", m->names[at], WIFSIGNALED(status) ? "by signal" : "status",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
    m->running--;
    m->pids[at] = m->pids[m->running];
    memcpy(m->names[at], m->names[m->running], sizeof m->names[at]);
}

static void start(matrix *m, cell c)
{
    snprintf(c.name, sizeof c.name, "%s %s %s%s%s%s%s", c.kind, c.model, c.scheme,
             c.cache ? " cache " : "", c.cache ? c.cache : "", c.machine ? " " : "",
             c.machine ? c.machine : "");
    for (int i = 0; i < m->word_count; i++)
        if (strstr(c.name, m->words[i]) == NULL)
            return;
    if (m->seen++ % m->every != 0)
        return;
    while (m->running >= m->jobs)
        wait_for_one(m);
    fflush(stdout);
    const pid_t child = fork();
    if (child < 0)
        abort();
    if (child == 0) {
        const int failed = run_one(&c);
        fflush(stdout);
        _exit(failed);
    }
    m->pids[m->running] = child;
    memcpy(m->names[m->running++], c.name, sizeof c.name);
}

static bool has_device(void)
{
    nib_engine *engine;
    bool found = false;
    nib_err err;
    if (nib_engine_open(&engine, &(nib_engine_options){.threads = 1}, &err) != NIB_OK)
        abort();
    if (nib__engine_find_gpus(engine, &err) == NIB_OK)
        for (size_t i = 0; i < engine->gpu_count; i++)
            found =
                found || engine->gpus[i].machine.facts.fact[NIB_FACT_DEVICE] == NIB_DEVICE_OPENCL;
    nib_engine_close(engine);
    return found;
}

/* Integers of other widths than 4 and 8 have no rows on a device: cells of plans see that said. */
static bool has_device_rows(const char *name)
{
    nib_scheme scheme;
    return nib__scheme_parse(&scheme, name, strlen(name), NULL) != NIB_OK ||
           !nib__code_is_odd_int(scheme.code);
}

static void start_runs(matrix *m, const names *schemes)
{
    static const char *const caches[] = {NULL, "int8", "int8:int4-hadamard"};
    const names models =
                    find("tests/golden/models/*/logits.safetensors", strlen("/logits.safetensors")),
                machines = find("machines/*.json", strlen(".json"));
    for (size_t f = 0; f < models.count; f++)
        for (size_t s = 0; s < schemes->count; s++) {
            cell c = {.model = models.at[f], .scheme = schemes->at[s]};
            if (mentions("models", c.model, "quantization_config"))
                continue; /* codes are not quantized again */
            for (size_t i = 0; i < COUNT(caches); i++) {
                c.cache = caches[i];
                c.kind = "run";
                start(m, c);
                c.kind = "opencl"; /* whose rows keep keys and values as floats */
                if (m->has_device && c.cache == NULL && has_device_rows(c.scheme))
                    start(m, c);
            }
            c.cache = NULL, c.kind = "plan";
            for (size_t i = 0; i < machines.count; i++) {
                c.machine = machines.at[i];
                start(m, c);
            }
        }
}

static void start_trainings(matrix *m)
{
    static const char *const recipes[] = {"f32",
                                          "bf16+head",
                                          "mxfp8+head",
                                          "mxfp8-floor+head",
                                          "fp8dq+head",
                                          "fp8dq-tensor+head",
                                          "qat 8da4w-g8+head",
                                          "qat int4wo-g8+head",
                                          "qat int8wo+head"};
    const names models = find("tests/golden/train/*/config.json", strlen("/config.json"));
    for (size_t f = 0; f < models.count; f++)
        for (size_t r = 0; r < COUNT(recipes); r++) {
            start(m, (cell){.kind = "train", .model = models.at[f], .scheme = recipes[r]});
            if (m->has_device && !is_mixture(models.at[f])) /* mixtures train on the CPU alone */
                start(m,
                      (cell){.kind = "train-opencl", .model = models.at[f], .scheme = recipes[r]});
        }
}

/* Asked in a process of its own: what a driver began does not survive a fork. */
static bool find_device(void)
{
    int status;
    const pid_t child = fork();
    if (child == 0)
        _exit(has_device() ? 0 : 1);
    if (child < 0 || waitpid(child, &status, 0) != child)
        abort();
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int count, char **words)
{
    matrix m = {.every = 1, .jobs = sysconf(_SC_NPROCESSORS_ONLN), .has_device = find_device()};
    const names schemes = find_schemes();
    while (count > 2 && words[1][0] == '-') {
        long *to = strcmp(words[1], "--every") == 0  ? &m.every
                   : strcmp(words[1], "--jobs") == 0 ? &m.jobs
                                                     : NULL;
        if (to == NULL || (*to = strtol(words[2], NULL, 10)) < 1 || m.jobs > JOBS_MAX) {
            fprintf(stderr, "usage: matrix [--every N] [--jobs N] [WORD...]\n");
            return 2;
        }
        count -= 2, words += 2;
    }
    m.words = words + 1, m.word_count = count - 1;
    if (!m.has_device)
        printf("skipped: cells on a device: %s\n", SKIP_OPENCL);
    start_runs(&m, &schemes);
    start_trainings(&m);
    while (m.running > 0)
        wait_for_one(&m);
    printf("%ld passed, %ld failed\n", m.passed, m.failed);
    return m.failed > 0 || m.passed == 0;
}

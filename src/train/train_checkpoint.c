/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists the checkpoints of a folder, chooses one to read, decides when to write, and removes old
 * ones.
 */
#include "train_checkpoint.h"

#include "train_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char stem[] = "step-", part_end[] = ".part";

static void log_line(const nib_trainer *t, const char *line)
{
    if (t->engine->callbacks.log)
        t->engine->callbacks.log(t->engine->callbacks.ctx, line);
}

/* ---- names ---- */

/* The path FOLDER/step-00000010END, in the arena. */
static nib_status directory_of(const char **out, const nib_saves *s, int64_t step, const char *end,
                               nib_arena *arena, nib_err *err)
{
    char name[64];
    snprintf(name, sizeof name, "%s%08" PRId64 "%s", stem, step, end);
    *out = nib__path_join(arena, s->folder, name);
    return *out ? NIB_OK : nib__fail_memory(err, strlen(s->folder), "a path");
}

/* The step of a name made by directory_of with this end, or 0. */
static int64_t step_of(const char *name, const char *end)
{
    char same[64];
    if (strncmp(name, stem, sizeof stem - 1) != 0)
        return 0;
    const char *digits = name + sizeof stem - 1;
    const size_t count = strspn(digits, "0123456789");
    if (count < 8 || count > 18)
        return 0;
    const int64_t step = strtoll(digits, NULL, 10);
    snprintf(same, sizeof same, "%s%08" PRId64 "%s", stem, step, end);
    return strcmp(same, name) == 0 ? step : 0;
}

/* The steps of a folder's directories, in ascending order. */
typedef struct steps {
    const nib_allocator *allocator;
    const char *end; /* of the names to list */
    int64_t *items;
    size_t count, capacity;
    bool failed;
} steps;

static void add_step(void *ctx, const char *name)
{
    steps *s = ctx;
    void *items = s->items;
    const int64_t step = step_of(name, s->end);
    if (step == 0 || s->failed)
        return;
    s->failed = !nib__reserve(s->allocator, &items, &s->capacity, s->count + 1, sizeof step);
    s->items = items;
    if (!s->failed)
        s->items[s->count++] = step;
}

static int by_value(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The caller releases *out, also on failure. */
static nib_status list_steps(steps *out, const nib_saves *s, const char *end, nib_err *err)
{
    *out = (steps){.allocator = &s->trainer->engine->allocator, .end = end};
    NIB_TRY(nib__directory_each(s->folder, add_step, out, err));
    if (out->failed)
        return nib__fail_memory(err, out->count * sizeof *out->items, "the list of checkpoints");
    if (out->count > 1)
        qsort(out->items, out->count, sizeof *out->items, by_value);
    return NIB_OK;
}

static nib_status is_whole(bool *out, const nib_saves *s, int64_t step, nib_arena *arena,
                           nib_err *err)
{
    const char *directory;
    NIB_TRY(directory_of(&directory, s, step, "", arena, err));
    const char *manifest = nib__path_join(arena, directory, "nibble.json");
    if (!manifest)
        return nib__fail_memory(err, strlen(directory), "a path");
    *out = nib__path_kind(manifest) == NIB_PATH_FILE;
    return NIB_OK;
}

/* ---- choosing the one to read ---- */

/* Finds the newest complete one; 0: none. */
static nib_status find_newest(int64_t *out, const nib_saves *s, const steps *have, nib_arena *arena,
                              nib_err *err)
{
    char line[NIB_SHOWN + 128], shown[NIB_SHOWN];
    *out = 0;
    for (size_t i = have->count; i-- > 0 && *out == 0;) {
        bool whole;
        NIB_TRY(is_whole(&whole, s, have->items[i], arena, err));
        if (whole) {
            *out = have->items[i];
            continue;
        }
        snprintf(line, sizeof line, "%s/step-%08" PRId64 " has no nibble.json: skipped",
                 nib__escape_string(shown, s->folder), have->items[i]);
        log_line(s->trainer, line);
    }
    return NIB_OK;
}

/* Finds the one that the config names. If this run saves, none may be newer: a later resume would
 * take the newer ones for this run's. */
static nib_status find_named(int64_t *out, const nib_saves *s, const steps *have, nib_arena *arena,
                             nib_err *err)
{
    const nib_train_config *c = s->trainer->config;
    const int64_t wanted = c->load_step;
    bool whole = false;
    NIB_TRY(is_whole(&whole, s, wanted, arena, err));
    if (!whole) {
        char known[96] = "none exists";
        if (have->count > 0)
            snprintf(known, sizeof known, "there are %zu, from step %" PRId64 " to %" PRId64,
                     have->count, have->items[0], have->items[have->count - 1]);
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: checkpoint.load_step %" PRId64 " names no checkpoint; %s", s->folder,
                         wanted, known);
    }
    if (c->save && have->count > 0 && have->items[have->count - 1] > wanted)
        return nib__fail(err, NIB_EXISTS,
                         "%s: checkpoint.load_step is %" PRId64 ", but there are checkpoints up to "
                         "step %" PRId64 ", which a later resume would take for this run's; remove "
                         "the newer ones, or copy the one to load into another checkpoint.folder",
                         s->folder, wanted, have->items[have->count - 1]);
    *out = wanted;
    return NIB_OK;
}

static nib_status choose_step(int64_t *out, const nib_saves *s, nib_arena *arena, nib_err *err)
{
    steps have;
    nib_status status = list_steps(&have, s, "", err);
    if (status == NIB_OK)
        status = s->trainer->config->load_step < 0 ? find_newest(out, s, &have, arena, err)
                                                   : find_named(out, s, &have, arena, err);
    nib__release(have.allocator, have.items);
    return status;
}

/* ---- removing ---- */

/* Removes the manifest first: if this is interrupted, the rest is not a checkpoint. But a directory
 * with content that must not be removed stays complete. */
static nib_status remove_step(const nib_saves *s, int64_t step, const char *end, nib_arena *arena,
                              nib_err *err)
{
    const char *directory;
    NIB_TRY(directory_of(&directory, s, step, end, arena, err));
    const char *manifest = nib__path_join(arena, directory, "nibble.json");
    if (!manifest)
        return nib__fail_memory(err, strlen(directory), "a path");
    NIB_TRY(nib__path_removable(directory, err));
    if (nib__path_kind(manifest) == NIB_PATH_FILE)
        NIB_TRY(nib__path_remove(manifest, err));
    return nib__path_remove(directory, err);
}

/* Removes a checkpoint. If that fails, logs why, unless a newer or equal one was logged before
 * (said); *stays becomes the newest that stays. */
static void remove_or_log(const nib_saves *s, int64_t step, const char *end, int64_t logged,
                          int64_t *stays, nib_arena *arena)
{
    nib_err why;
    if (remove_step(s, step, end, arena, &why) == NIB_OK)
        return;
    if (step > logged)
        log_line(s->trainer, why.text);
    *stays = nib__max(*stays, step);
}

/* Removes what killed runs left half written. */
static nib_status remove_parts(nib_saves *s, nib_arena *arena, nib_err *err)
{
    const int64_t step = s->trainer->optimizer.steps, logged = s->part_stays;
    steps parts;
    nib_status status = list_steps(&parts, s, part_end, err);
    for (size_t i = 0; i < parts.count && status == NIB_OK; i++) {
        if (parts.items[i] == step) /* its path is needed now */
            status = remove_step(s, step, part_end, arena, err);
        else
            remove_or_log(s, parts.items[i], part_end, logged, &s->part_stays, arena);
    }
    nib__release(parts.allocator, parts.items);
    return status;
}

/* Removes all but the last `keep`, and all incomplete ones. */
static nib_status remove_old(nib_saves *s, nib_arena *arena, nib_err *err)
{
    const int64_t keep = s->trainer->config->keep, logged = s->stays;
    steps have;
    int64_t kept = 0;
    nib_status status = list_steps(&have, s, "", err);
    for (size_t i = have.count; i-- > 0 && status == NIB_OK;) {
        bool whole = false;
        status = is_whole(&whole, s, have.items[i], arena, err);
        if (status == NIB_OK && whole && (keep <= 0 || kept < keep))
            kept++;
        else if (status == NIB_OK)
            remove_or_log(s, have.items[i], "", logged, &s->stays, arena);
    }
    nib__release(have.allocator, have.items);
    return status;
}

/* ---- opening ---- */

/* Resumes from a checkpoint. Rank 0 chooses it, so that all ranks read the same one even if the
 * folder changes meanwhile. */
static nib_status resume(nib_saves *s, nib_arena *arena, nib_err *err)
{
    nib_trainer *t = s->trainer;
    const char *directory;
    char line[NIB_SHOWN + 64], shown[NIB_SHOWN];
    int64_t step = 0;
    nib_status status = nib_ranks_rank(t->ranks) == 0 ? choose_step(&step, s, arena, err) : NIB_OK;
    NIB_TRY(nib_ranks_agree(t->ranks, status, err));
    NIB_TRY(nib__ranks_share(t->ranks, &step, sizeof step, "the step to resume from", err));
    if (step == 0)
        return NIB_OK;
    status = directory_of(&directory, s, step, "", arena, err);
    if (status == NIB_OK)
        status = nib__state_read(t, directory, err);
    if (status == NIB_OK && t->optimizer.steps != step)
        status = nib__fail(err, NIB_BAD_INPUT,
                           "%s: nibble.json says step %" PRId64
                           "; give the directory its old name, or remove it",
                           directory, t->optimizer.steps);
    NIB_TRY(nib_ranks_agree(t->ranks, status, err));
    s->saved = step;
    /* a run that was killed right after its last checkpoint left the oldest */
    if (t->config->save && nib_ranks_rank(t->ranks) == 0)
        status = remove_old(s, arena, err);
    NIB_TRY(nib_ranks_agree(t->ranks, status, err));
    snprintf(line, sizeof line, "resuming from %s%s", nib__escape_string(shown, directory),
             step >= t->config->steps ? ": all training.steps are done" : "");
    if (nib_ranks_rank(t->ranks) == 0)
        log_line(t, line);
    return NIB_OK;
}

nib_status nib__saves_folder(const char **out, nib_trainer *t, nib_err *err)
{
    const nib_train_config *c = t->config;
    *out = *c->folder == '/' ? c->folder : nib__path_join(&t->arena, c->dump_folder, c->folder);
    return *out ? NIB_OK : nib__fail_memory(err, strlen(c->folder), "a path");
}

static nib_status lock_folder(nib_saves *s, nib_err *err)
{
    s->lock_path = nib__path_join(&s->trainer->arena, s->folder, "training.lock");
    if (!s->lock_path)
        return nib__fail_memory(err, strlen(s->folder), "a path");
    NIB_TRY(nib__directories_make(s->folder, err));
    return nib__lock_take(&s->lock, s->lock_path, err);
}

static nib_status open_saves(nib_saves *s, nib_arena *arena, nib_err *err)
{
    const nib_train_config *c = s->trainer->config;
    const bool mine = c->save && nib_ranks_rank(s->trainer->ranks) == 0;
    nib_status status = nib__saves_folder(&s->folder, s->trainer, err);
    if (status == NIB_OK && mine)
        status = lock_folder(s, err);
    NIB_TRY(nib_ranks_agree(s->trainer->ranks, status, err));
    return c->save || c->load_step >= 0 ? resume(s, arena, err) : NIB_OK;
}

nib_status nib__saves_open(nib_saves *out, nib_trainer *trainer, nib_err *err)
{
    nib_arena arena;
    *out = (nib_saves){.trainer = trainer, .lock = -1};
    nib__arena_init(&arena, &trainer->engine->allocator, 0);
    const nib_status status = open_saves(out, &arena, err);
    nib__arena_free(&arena);
    if (status != NIB_OK)
        nib__saves_close(out);
    return status;
}

void nib__saves_close(nib_saves *s)
{
    if (!s->trainer)
        return;
    nib__lock_release(s->lock, s->lock_path);
    *s = (nib_saves){.lock = -1};
}

/* ---- writing ---- */

static nib_status write_step(nib_saves *s, nib_arena *arena, nib_err *err)
{
    const int64_t step = s->trainer->optimizer.steps;
    const char *part, *directory;
    NIB_TRY(directory_of(&part, s, step, part_end, arena, err));
    NIB_TRY(directory_of(&directory, s, step, "", arena, err));
    NIB_TRY(remove_parts(s, arena, err));
    NIB_TRY(nib__directory_make(part, err));
    nib_status status = nib__state_write(s->trainer, part, err);
    if (status ==
        NIB_OK) /* replaces an unusable directory of that name: a usable one would have been read */
        status = nib__publish(part, directory, true, err);
    if (status != NIB_OK)
        (void)remove_step(s, step, part_end, arena, NULL);
    return status;
}

nib_status nib__saves_now(nib_saves *s, nib_err *err)
{
    const int64_t step = s->trainer->optimizer.steps;
    if (!s->trainer->config->save || step == 0 || s->saved == step)
        return NIB_OK;
    nib_arena arena;
    char what[160];
    nib__arena_init(&arena, &s->trainer->engine->allocator, 0);
    nib_status status = write_step(s, &arena, err);
    if (status != NIB_OK) {
        if (s->saved > 0)
            snprintf(what, sizeof what,
                     "cannot write the checkpoint of step %" PRId64 " (that of step %" PRId64
                     " is intact)",
                     step, s->saved);
        else
            snprintf(what, sizeof what, "cannot write the checkpoint of step %" PRId64, step);
        nib__fail_in(err, status, what);
    } else {
        s->saved = step;
        status = remove_old(s, &arena, err);
    }
    nib__arena_free(&arena);
    return status;
}

bool nib__saves_due(const nib_saves *s)
{
    const nib_train_config *c = s->trainer->config;
    const int64_t step = s->trainer->optimizer.steps;
    return c->save && (step >= c->steps || (c->interval > 0 && step % c->interval == 0));
}

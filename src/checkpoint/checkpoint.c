/* SPDX-License-Identifier: Apache-2.0
 *
 * An open checkpoint: its config files, its modules, and look-ups by name. checkpoint_open.c opens
 * the files; weight.c and the dialects interpret the tensors of a weight.
 */
#include "checkpoint_inside.h"
#include "dialect_table.h"
#include "experts.h"
#include "fused.h"
#include "gguf.h"
#include "head_norms.h"
#include "latent.h"
#include "rotary.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum {
    CONFIG_MAX = 16 << 20,  /* bytes of a config.json */
    MEMORY_FREE = 64 << 20, /* bytes of metadata allowed for a checkpoint of any size */
};

nib_status nib__checkpoint_no_memory(nib_err *err, const char *path)
{
    char a[NIB_SHOWN];
    return nib__fail(err, NIB_NO_MEMORY,
                     "%s: out of memory, or the header asks for more than twice the file",
                     nib__escape_string(a, path));
}

nib_status nib__checkpoint_add_note(nib_checkpoint *cp, const char *note, nib_err *err)
{
    nib__ledger_add_note(&cp->ledger, "checkpoint", "%s", note);
    return cp->ledger.failed ? nib__fail_memory(err, strlen(note), "a note") : NIB_OK;
}

nib_status nib__checkpoint_add_view(nib_checkpoint *cp, const nib_tensor *t, nib_err *err)
{
    char a[NIB_SHOWN];
    if (t == NULL)
        return nib__checkpoint_no_memory(err, cp->path);
    cp->tensors[cp->count] = t;
    if (nib__name_index_add(&cp->by_name, (const void *const *)cp->tensors, cp->count) != NULL)
        return nib__fail(err, NIB_BAD_INPUT,
                         "tensor \"%s\" is stored twice, separately and as part of another tensor",
                         nib__escape_string(a, t->name));
    cp->count++;
    return NIB_OK;
}

nib_status nib__checkpoint_clear_tensors(nib_checkpoint *cp, size_t count, nib_err *err)
{
    cp->tensors = nib__arena_take(&cp->arena, count, sizeof *cp->tensors);
    cp->count = 0;
    return cp->tensors != NULL && nib__name_index_init(&cp->by_name, &cp->arena, count)
               ? NIB_OK
               : nib__checkpoint_no_memory(err, cp->path);
}

nib_status nib__checkpoint_clear_metas(nib_checkpoint *cp, size_t count, nib_err *err)
{
    cp->metas = nib__arena_take(&cp->arena, count, sizeof *cp->metas);
    cp->meta_count = 0;
    return cp->metas != NULL && nib__name_index_init(&cp->by_key, &cp->arena, count)
               ? NIB_OK
               : nib__checkpoint_no_memory(err, cp->path);
}

nib_status nib__checkpoint_add_meta(nib_checkpoint *cp, const nib_meta *meta, const char *key,
                                    nib_err *err)
{
    nib_meta *own = nib__arena_take(&cp->arena, 1, sizeof *own);
    if (own == NULL)
        return nib__checkpoint_no_memory(err, cp->path);
    *own = (nib_meta){nib__arena_copy(&cp->arena, key, strlen(key)), meta->value};
    if (own->key == NULL)
        return nib__checkpoint_no_memory(err, cp->path);
    cp->metas[cp->meta_count] = own;
    if (nib__name_index_add(&cp->by_key, (const void *const *)cp->metas, cp->meta_count) == NULL)
        cp->meta_count++;
    return NIB_OK;
}

/* ---- modules ---- */

static nib_status list_modules(nib_checkpoint *cp, nib_err *err)
{
    size_t count = 0;
    cp->module_count = 0;
    for (size_t i = 0; i < cp->count; i++)
        count += nib__module_size(cp->tensors[i]) != 0;
    cp->modules = nib__arena_take(&cp->arena, count, sizeof *cp->modules);
    if (cp->modules == NULL)
        return nib__checkpoint_no_memory(err, cp->path);
    for (size_t i = 0; i < cp->count; i++) {
        const size_t size = nib__module_size(cp->tensors[i]);
        if (size == 0)
            continue;
        cp->modules[cp->module_count] = nib__arena_copy(&cp->arena, cp->tensors[i]->name, size);
        if (cp->modules[cp->module_count++] == NULL)
            return nib__checkpoint_no_memory(err, cp->path);
    }
    return NIB_OK;
}

nib_status nib__checkpoint_index(nib_checkpoint *cp, nib_err *err)
{
    cp->copies = nib__arena_take(&cp->arena, cp->count, sizeof *cp->copies);
    cp->copy_sizes = nib__arena_take(&cp->arena, cp->count, sizeof *cp->copy_sizes);
    cp->copy_arena = &cp->arena;
    cp->owners = nib__arena_take(&cp->arena, cp->count, sizeof *cp->owners);
    if (cp->copies == NULL || cp->copy_sizes == NULL || cp->owners == NULL)
        return nib__checkpoint_no_memory(err, cp->path);
    return list_modules(cp, err);
}

static nib_status check_version(nib_checkpoint *cp, nib_err *err)
{
    char a[NIB_SHOWN], b[NIB_SHOWN];
    const size_t i = nib__name_index_find(&cp->by_key, (const void *const *)cp->metas, "nibble");
    if (i == SIZE_MAX)
        return NIB_OK;
    cp->nibble = true;
    if (strcmp(cp->metas[i]->value, "1") == 0)
        return NIB_OK;
    return nib__fail(err, NIB_UNSUPPORTED,
                     "%s: written in version \"%s\" of the nibble dialect; this program reads "
                     "version 1",
                     nib__escape_string(a, cp->path), nib__escape_string(b, cp->metas[i]->value));
}

/* ---- config.json ---- */

static nib_status read_quantization(nib_checkpoint *cp, const char *name, const char *text,
                                    size_t size, nib_err *err)
{
    NIB_TRY(nib__quantization_find(&cp->quantization, name, text, size, &cp->arena, err));
    if (cp->quantization == NULL)
        return NIB_OK;
    NIB_TRY(nib__quantization_parse(&cp->coding, name, cp->quantization, strlen(cp->quantization),
                                    NULL, &cp->arena, &cp->allocator, &cp->ledger, err));
    cp->method = cp->coding->method_name;
    return NIB_OK;
}

/* Reads a small file of a directory; *text stays NULL if it does not exist. */
static nib_status read_beside(nib_checkpoint *cp, const char *directory, const char *name,
                              const char **path, char **text, size_t *size, nib_err *err)
{
    *text = NULL;
    *path = directory == NULL ? "" : nib__path_join(&cp->arena, directory, name);
    if (*path == NULL)
        return nib__checkpoint_no_memory(err, directory);
    if (nib__path_kind(*path) != NIB_PATH_FILE)
        return NIB_OK;
    NIB_TRY(nib__file_read(text, size, *path, CONFIG_MAX, &cp->allocator, err));
    cp->arena.limit += 2 * *size;
    return NIB_OK;
}

/* Reads ModelOpt's hf_quant_config.json, unless config.json has a quantization_config. */
static nib_status read_modelopt(nib_checkpoint *cp, nib_err *err)
{
    char *text, a[NIB_SHOWN];
    size_t size = 0;
    const char *path;
    if (cp->coding != NULL)
        return NIB_OK;
    NIB_TRY(read_beside(cp, cp->directory, "hf_quant_config.json", &path, &text, &size, err));
    if (text == NULL)
        return NIB_OK;
    cp->quantization = nib__arena_copy(&cp->arena, text, size);
    const nib_status status =
        cp->quantization == NULL
            ? nib__checkpoint_no_memory(err, path)
            : nib__quantization_parse(&cp->coding, nib__escape_string(a, path), text, size,
                                      "modelopt", &cp->arena, &cp->allocator, &cp->ledger, err);
    nib__release(&cp->allocator, text);
    if (status == NIB_OK)
        cp->method = cp->coding->method_name;
    return status;
}

static nib_status read_config(nib_checkpoint *cp, nib_err *err)
{
    char *text, a[NIB_SHOWN];
    size_t size = 0;
    const char *path;
    NIB_TRY(read_beside(cp, cp->directory, "config.json", &path, &text, &size, err));
    if (text == NULL)
        return NIB_OK;
    cp->has_config = true;
    nib_status status = read_quantization(cp, nib__escape_string(a, path), text, size, err);
    if (status == NIB_OK)
        status = nib__fused_heads(cp, nib__escape_string(a, path), text, size, err);
    if (status == NIB_OK)
        status = nib__experts_family(cp, nib__escape_string(a, path), text, size, err);
    if (status == NIB_OK)
        status = nib__latent_sizes(cp, nib__escape_string(a, path), text, size, err);
    if (status == NIB_OK && cp->meta_names)
        status = nib__rotary_find(cp, nib__escape_string(a, path), text, size, err);
    nib__release(&cp->allocator, text);
    return status;
}

/* Reads params.json next to a file with Meta's names, unless config.json gave the head width. */
static nib_status read_params(nib_checkpoint *cp, nib_err *err)
{
    char *text, a[NIB_SHOWN];
    size_t size = 0;
    const char *path;
    if (!cp->meta_names || cp->paired >= 0)
        return NIB_OK;
    if (cp->params != NULL)
        return nib__rotary_find(cp, nib__escape_string(a, cp->path), cp->params, strlen(cp->params),
                                err);
    NIB_TRY(read_beside(cp, cp->beside, "params.json", &path, &text, &size, err));
    if (text == NULL)
        return NIB_OK;
    cp->params = nib__arena_copy(&cp->arena, text, size);
    const nib_status status =
        cp->params == NULL ? nib__checkpoint_no_memory(err, path)
                           : nib__rotary_find(cp, nib__escape_string(a, path), text, size, err);
    nib__release(&cp->allocator, text);
    return status;
}

/* Sets used[g] for each config group that matches a module. used: [group_count] zeroed. Tries every
 * expression on every module, as reading the weights does. */
static nib_status find_used(const nib_checkpoint *cp, bool *used, nib_err *err)
{
    enum { TRIES_MAX = 1 << 26 };
    const nib_quantization *coding = cp->coding;
    const nib_coding_group *group;
    char a[NIB_SHOWN];
    if (coding->expressions.count != 0 && cp->module_count > TRIES_MAX / coding->expressions.count)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: quantization_config has %zu regular expressions for %zu weights, "
                         "over the limit of %d matches to try; list the modules by name instead",
                         nib__escape_string(a, cp->path), coding->expressions.count,
                         cp->module_count, TRIES_MAX);
    for (size_t i = 0; i < cp->module_count; i++) {
        const nib_status status = nib__quantization_group(&group, coding, cp->modules[i], err);
        if (status != NIB_OK)
            return nib__fail_in(err, status, "config.json: quantization_config");
        if (group != NULL)
            used[group - coding->groups] = true;
    }
    return NIB_OK;
}

static void add_mismatch(nib_checkpoint *cp, const char *first, const char *asked, const char *done,
                         size_t count)
{
    char a[NIB_SHOWN];
    if (count != 0)
        nib__ledger_add_overruled(&cp->ledger, "quantization-config", nib__escape_string(a, first),
                                  asked, done,
                                  "%zu weights are stored as %s and run as such, although "
                                  "quantization_config says %s",
                                  count, done, asked);
}

/* Whether a dialect holds unquantized floats. */
static bool is_plain_dialect(const char *name)
{
    return strcmp(name, "safetensors") == 0 || strcmp(name, "meta") == 0 ||
           strcmp(name, "stacked") == 0;
}

/* Whether the module is a linear layer of a decoder layer under one of the usual names, or a
 * router. */
static bool is_known_linear(const char *module, bool *router)
{
    static const char *const ends[] = {"_proj", ".w1", ".w2", ".w3"};
    *router = nib__ends_with(module, ".gate");
    bool found = *router;
    for (size_t i = 0; i < COUNT(ends); i++)
        found = found || nib__ends_with(module, ends[i]);
    return found && strncmp(module, "model.layers.", 13) == 0;
}

/* Reports linear layers stored as codes where the config says floats, and vice versa. Configs that
 * do not mention a router leave it alone all the same. */
static nib_status check_kept(nib_checkpoint *cp, nib_err *err)
{
    const nib_quantization *coding = cp->coding;
    const char *coded_first = NULL, *plain_first = NULL;
    size_t coded = 0, plain = 0;
    if (coding->method == NIB_METHOD_NONE)
        return NIB_OK;
    for (size_t i = 0; i < cp->module_count; i++) {
        const char *module = cp->modules[i];
        bool kept, router;
        if (!is_known_linear(module, &router))
            continue;
        const nib_status status = nib__quantization_keeps(&kept, coding, module, err);
        if (status != NIB_OK)
            return nib__fail_in(err, status, "config.json: quantization_config");
        const char *dialect = nib__checkpoint_dialect(cp, module);
        if (dialect == NULL)
            continue;
        const bool is_plain = is_plain_dialect(dialect);
        if (kept && !is_plain)
            coded_first = coded++ == 0 ? module : coded_first;
        else if (!kept && is_plain && !router && !coding->kept_unknown)
            plain_first = plain++ == 0 ? module : plain_first;
    }
    add_mismatch(cp, coded_first, "floats", "codes", coded);
    add_mismatch(cp, plain_first, "codes", "floats", plain);
    return NIB_OK;
}

/* Reports codes of a tool other than quant_method: the tensors themselves show their format. */
static void check_method(nib_checkpoint *cp)
{
    const char *method = cp->method, *first = NULL, *stored = NULL;
    char a[NIB_SHOWN], b[NIB_SHOWN];
    size_t count = 0;
    if (method == NULL)
        return;
    if (cp->coding->method == NIB_METHOD_COMPRESSED)
        method = "compressed-tensors"; /* older files have another spelling */
    if (cp->coding->method == NIB_METHOD_FP8)
        method = "fp8"; /* also of "fbgemm_fp8" */
    for (size_t i = 0; i < cp->module_count; i++) {
        const char *dialect = nib__checkpoint_dialect(cp, cp->modules[i]);
        if (dialect == NULL || is_plain_dialect(dialect) || strcmp(dialect, method) == 0)
            continue;
        if (count++ == 0)
            first = cp->modules[i], stored = dialect;
    }
    if (count != 0)
        nib__ledger_add_overruled(&cp->ledger, "quantization-config", "quant_method",
                                  nib__escape_string(a, method), stored,
                                  "%zu weights are stored in the format of %s and run as such; the "
                                  "first is %s",
                                  count, stored, nib__escape_string(b, first));
}

nib_status nib__checkpoint_note_unmatched(nib_ledger *to, const nib_quantization *q,
                                          const char *const *modules, size_t count,
                                          nib_arena *arena, nib_err *err)
{
    nib_unmatched found[2]; /* kept, coded */
    char a[NIB_SHOWN];
    const nib_status status =
        nib__quantization_unmatched(&found[0], &found[1], q, modules, count, arena, err);
    if (status != NIB_OK)
        return nib__fail_in(err, status, "config.json: quantization_config");
    for (int i = 0; i < 2; i++)
        if (found[i].count != 0)
            nib__ledger_add_note(to, "checkpoint",
                                 "%zu entr%s of quantization_config's list of modules %s match%s "
                                 "no weight here; the first is %s",
                                 found[i].count, found[i].count == 1 ? "y" : "ies",
                                 i == 0 ? "to leave unquantized" : "that are quantized",
                                 found[i].count == 1 ? "es" : "",
                                 nib__escape_string(a, found[i].first));
    return NIB_OK;
}

/* Reports config groups that match no weight, and requests for quantized outputs or KV cache. */
static nib_status report_coding(nib_checkpoint *cp, nib_err *err)
{
    nib_quantization *coding = cp->coding;
    char a[NIB_SHOWN];
    if (coding == NULL)
        return NIB_OK;
    bool *used = nib__arena_take(&cp->arena, coding->group_count, sizeof *used);
    if (used == NULL)
        return nib__checkpoint_no_memory(err, cp->path);
    coding->family = cp->family;
    NIB_TRY(find_used(cp, used, err));
    NIB_TRY(nib__checkpoint_note_unmatched(&cp->ledger, coding, cp->modules, cp->module_count,
                                           &cp->arena, err));
    NIB_TRY(check_kept(cp, err));
    check_method(cp);
    for (size_t g = 0; g < coding->group_count; g++) {
        if (used[g] && coding->groups[g].outputs.given)
            nib__ledger_add_setting(
                &cp->ledger,
                &(nib_ledger_setting){.code = "activations",
                                      .name = nib__escape_string(a, coding->groups[g].name),
                                      .asked = "output_activations",
                                      .done = "float",
                                      .by = NIB_BY_CONFIG,
                                      .relation = NIB_SETTING_OTHER},
                "this config group asks for quantized outputs of its layers; they stay floats");
        if (used[g])
            continue;
        nib__ledger_add_overruled(&cp->ledger, "quantization-config",
                                  nib__escape_string(a, coding->groups[g].name), NULL, NULL,
                                  "this config group of quantization_config matches no weight");
    }
    if (coding->has_kv_cache)
        nib__ledger_add_setting(&cp->ledger,
                                &(nib_ledger_setting){.code = "cache-type",
                                                      .name = "kv_cache_scheme",
                                                      .by = NIB_BY_CONFIG,
                                                      .relation = NIB_SETTING_OTHER},
                                "config.json asks for quantized keys and values; they are kept as "
                                "--cache-type or --dtype says");
    return cp->ledger.failed ? nib__checkpoint_no_memory(err, cp->path) : NIB_OK;
}

/* ---- public functions ---- */

static nib_status open_all(nib_checkpoint *cp, const char *path, nib_err *err)
{
    cp->path = nib__arena_copy(&cp->arena, path, strlen(path));
    if (cp->path == NULL)
        return nib__checkpoint_no_memory(err, path);
    NIB_TRY(nib__checkpoint_open_path(cp, err));
    NIB_TRY(read_config(cp, err));
    NIB_TRY(nib__experts_split(cp, err));
    NIB_TRY(nib__fused_split(cp, err));
    NIB_TRY(nib__latent_split(cp, err));
    NIB_TRY(nib__head_norms_join(cp, err));
    NIB_TRY(nib__checkpoint_index(cp, err));
    NIB_TRY(check_version(cp, err));
    cp->grouped_scales = nib__checkpoint_has_groups(cp);
    NIB_TRY(read_params(cp, err));
    NIB_TRY(read_modelopt(cp, err));
    return report_coding(cp, err);
}

static nib_status open_for(nib_checkpoint **out, const char *path, bool draft,
                           const nib_allocator *a, nib_err *err)
{
    nib_checkpoint *cp = nib__calloc(a, 1, sizeof *cp);
    if (cp == NULL)
        return nib__fail_memory(err, sizeof *cp, "a checkpoint");
    cp->allocator = *a;
    cp->for_draft = draft;
    nib__arena_init(&cp->arena, &cp->allocator, MEMORY_FREE);
    nib__ledger_init(&cp->ledger, &cp->allocator);
    nib_status status = open_all(cp, path, err);
    if (status != NIB_OK)
        status = nib__checkpoint_check_files(cp, status, err);
    if (status == NIB_OK)
        *out = cp;
    else
        nib__checkpoint_close(cp);
    return status;
}

nib_status nib__checkpoint_open(nib_checkpoint **out, const char *path, const nib_allocator *a,
                                nib_err *err)
{
    return open_for(out, path, false, a, err);
}

nib_status nib__checkpoint_open_draft(nib_checkpoint **out, const char *path,
                                      const nib_allocator *a, nib_err *err)
{
    return open_for(out, path, true, a, err);
}

void nib__checkpoint_use_pool(nib_checkpoint *cp, nib_pool *pool) { cp->pool = pool; }

nib_status nib__checkpoint_check_files(const nib_checkpoint *cp, nib_status status, nib_err *err)
{
    for (int i = 0; i < cp->file_count; i++)
        status = nib__map_read(&cp->maps[i], cp->files[i], status, err);
    return status;
}

void nib__checkpoint_close(nib_checkpoint *cp)
{
    if (cp == NULL)
        return;
    const nib_allocator allocator = cp->allocator;
    for (int i = 0; i < cp->file_count; i++)
        nib__map_close(&cp->maps[i]);
    nib__quantization_free(cp->coding);
    nib__ledger_free(&cp->ledger);
    nib__arena_free(&cp->arena);
    nib__release(&allocator, cp);
}

const char *nib__checkpoint_path(const nib_checkpoint *cp) { return cp->path; }

const char *nib__checkpoint_directory(const nib_checkpoint *cp) { return cp->directory; }

size_t nib__checkpoint_file_count(const nib_checkpoint *cp) { return (size_t)cp->file_count; }

const nib_map *nib__checkpoint_file(const nib_checkpoint *cp, size_t i) { return &cp->maps[i]; }

uint64_t nib__checkpoint_bytes(const nib_checkpoint *cp) { return cp->bytes; }

size_t nib__checkpoint_count(const nib_checkpoint *cp) { return cp->count; }

const nib_tensor *nib__checkpoint_at(const nib_checkpoint *cp, size_t i) { return cp->tensors[i]; }

size_t nib__checkpoint_owner(const nib_checkpoint *cp, size_t i) { return cp->owners[i]; }

static const nib_tensor *find_stored(const nib_checkpoint *cp, const char *name)
{
    const size_t i = nib__name_index_find(&cp->by_name, (const void *const *)cp->tensors, name);
    return i == SIZE_MAX ? NULL : cp->tensors[i];
}

const nib_meta *nib__checkpoint_alias(const nib_checkpoint *cp, const char *name)
{
    const size_t i = nib__name_index_find(&cp->by_key, (const void *const *)cp->metas, name);
    if (i == SIZE_MAX || find_stored(cp, name) != NULL ||
        find_stored(cp, cp->metas[i]->value) == NULL)
        return NULL;
    return cp->metas[i];
}

const nib_tensor *nib__checkpoint_find(const nib_checkpoint *cp, const char *name)
{
    const nib_tensor *tensor = find_stored(cp, name);
    if (tensor != NULL)
        return tensor;
    const nib_meta *alias = nib__checkpoint_alias(cp, name);
    return alias == NULL ? NULL : find_stored(cp, alias->value);
}

size_t nib__checkpoint_meta_count(const nib_checkpoint *cp) { return cp->meta_count; }

const nib_meta *nib__checkpoint_meta_at(const nib_checkpoint *cp, size_t i) { return cp->metas[i]; }

size_t nib__checkpoint_module_count(const nib_checkpoint *cp) { return cp->module_count; }

const char *nib__checkpoint_module(const nib_checkpoint *cp, size_t i) { return cp->modules[i]; }

unsigned nib__checkpoint_fused(const nib_checkpoint *cp) { return cp->fused; }

bool nib__checkpoint_prefixed(const nib_checkpoint *cp) { return cp->prefixed; }

size_t nib__checkpoint_stacks(const nib_checkpoint *cp) { return cp->stacks; }

const nib_quantization *nib__checkpoint_coding(const nib_checkpoint *cp) { return cp->coding; }

const nib_ledger *nib__checkpoint_ledger(const nib_checkpoint *cp) { return &cp->ledger; }

const char *nib__checkpoint_params(const nib_checkpoint *cp) { return cp->params; }

const char *nib__checkpoint_container(const nib_checkpoint *cp) { return cp->container; }

const nib_gguf *nib__checkpoint_gguf(const nib_checkpoint *cp)
{
    return cp != NULL ? cp->gguf : NULL;
}

const char *nib__checkpoint_config_name(const nib_checkpoint *cp)
{
    return cp->gguf != NULL                        ? "its metadata"
           : cp->params != NULL && !cp->has_config ? "params.json"
                                                   : "config.json";
}

const char *nib__checkpoint_quantization(const nib_checkpoint *cp) { return cp->quantization; }

void nib__checkpoint_release(const nib_checkpoint *cp, const void *at, uint64_t size)
{
    const uintptr_t from = (uintptr_t)at;
    for (int f = 0; f < cp->file_count; f++) {
        const uintptr_t start = (uintptr_t)cp->maps[f].at;
        if (from >= start && from - start <= cp->maps[f].size &&
            size <= cp->maps[f].size - (from - start))
            nib__map_release(at, size);
    }
}

void nib__checkpoint_release_rows(const nib_checkpoint *cp, const nib_weight *w, int64_t first,
                                  int64_t count)
{
    const uint64_t row = w->rows == NULL ? nib__weight_row_bytes(w) : 0;
    if (row != 0)
        nib__checkpoint_release(cp, (const uint8_t *)w->codes + (uint64_t)first * row,
                                (uint64_t)count * row);
    else if (first + count == w->n)
        nib__checkpoint_release(cp, w->codes, nib__weight_code_bytes(w));
}

void nib__checkpoint_release_values(const nib_checkpoint *cp, const nib_weight *w)
{
    if (w->scales != NULL)
        nib__checkpoint_release(cp, w->scales,
                                nib__weight_value_bytes(w, w->scales, w->scale_type));
    if (w->zeros != NULL)
        nib__checkpoint_release(cp, w->zeros, nib__weight_value_bytes(w, w->zeros, w->zero_type));
}

double nib__checkpoint_f64_change(const nib_checkpoint *cp, const void *values, int64_t count)
{
    enum { BLOCK = 1 << 20, SIZE = 8 };
    double worst = 0;
    for (int64_t at = 0; at < count; at += BLOCK) {
        const int64_t some = nib__min(BLOCK, count - at);
        const uint8_t *block = (const uint8_t *)values + at * SIZE;
        worst = fmax(worst, nib__measure_f64_to_f32_error(block, some));
        nib__checkpoint_release(cp, block, (uint64_t)some * SIZE);
    }
    return worst;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists the files that a signature covers, and writes, reads and compares the statement on them.
 */
#include "signed_files.h"

#include "json.h"

#include <stdio.h>

enum { DEPTH_MAX = 16, FILES_MAX = 1 << 20 };

static const char statement_type[] = "https://in-toto.io/Statement/v1",
                  predicate_type[] = "https://model_signing/signature/v1.0";

/* Of tools that move checkpoints: no reader of a model opens them. model-signing leaves the first
 * four out, too. */
static const char *const never_signed[] = {".git", ".gitattributes", ".github", ".gitignore",
                                           ".cache"};

/* ---- the place ---- */

/* "model-00001-of-00003.gguf" and "model.safetensors.index.json" are a part of a checkpoint. */
static bool is_part(const char *file)
{
    const char *of = strstr(file, "-of-");
    return nib__ends_with(file, ".json") || (of != NULL && of[4] >= '0' && of[4] <= '9');
}

nib_status nib__signed_place(nib_signed_place *out, const char *path, nib_arena *arena,
                             nib_err *err)
{
    char name[NIB_PART_PATH], shown[NIB_SHOWN];
    static const char *const ends[] = {".intoto.json", ".intoto.json.sig", ".sig"};
    const char *paths[COUNT(ends)];
    nib_path_kind kind;
    *out = (nib_signed_place){.directory = path};
    NIB_TRY(nib__path_look(&kind, path, err));
    if (kind == NIB_PATH_NONE)
        return nib__fail(err, NIB_IO, "%s: does not exist", nib__escape_string(shown, path));
    if (kind != NIB_PATH_DIRECTORY) {
        out->file = nib__path_name(path);
        out->directory = nib__path_directory(arena, path);
    }
    if (out->file != NULL && is_part(out->file))
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: is one of several files of a checkpoint, which are signed together: "
                         "give their directory",
                         nib__escape_string(shown, path));
    for (size_t i = 0; i < COUNT(ends) && out->directory != NULL; i++) {
        if (snprintf(name, sizeof name, "%s%s", out->file != NULL ? out->file : "model", ends[i]) >=
            (int)sizeof name)
            return nib__fail(err, NIB_IO, "%s: the path is too long",
                             nib__escape_string(shown, path));
        out->names[i] = nib__arena_copy(arena, name, strlen(name));
        if (out->names[i] == NULL)
            return nib__fail_memory(err, strlen(path), "a path");
        /* beside a file, however its directory is spelled */
        const bool bare = out->file == path;
        paths[i] = bare ? out->names[i] : nib__path_join(arena, out->directory, out->names[i]);
        if (paths[i] == NULL)
            return nib__fail_memory(err, strlen(path), "a path");
    }
    if (out->directory == NULL)
        return nib__fail_memory(err, strlen(path), "a path");
    out->statement = paths[0];
    out->signature = paths[1];
    out->bundle = paths[2];
    return NIB_OK;
}

/* ---- the files ---- */

typedef struct lister {
    const nib_signed_place *place;
    const nib_strings *ignored; /* NULL: only what is never signed */
    nib_digests *out;           /* digests are not computed yet */
    const char *below;          /* the directory that is being listed, relative; "": the place */
    nib_digests directories;    /* found in it; their digests mean nothing */
    bool links;
    nib_arena *arena;
    const nib_allocator *allocator;
    nib_status status;
    nib_err *err;
} lister;

static bool is_listed(const lister *l, const char *name)
{
    for (size_t i = 0; i < COUNT(l->place->names); i++)
        if (strcmp(name, l->place->names[i]) == 0)
            return false;
    for (size_t i = 0; i < COUNT(never_signed); i++)
        if (strcmp(name, never_signed[i]) == 0)
            return false;
    return l->ignored == NULL || !nib__strings_hold(l->ignored, name);
}

static nib_status add_entry(lister *l, const char *entry)
{
    const nib_digest none = {.bytes = {0}};
    char shown[NIB_SHOWN];
    nib_path_kind kind;
    const char *name = l->below[0] == 0 ? nib__arena_copy(l->arena, entry, strlen(entry))
                                        : nib__path_join(l->arena, l->below, entry);
    const char *path = name == NULL ? NULL : nib__path_join(l->arena, l->place->directory, name);
    if (path == NULL)
        return nib__fail_memory(l->err, strlen(entry), "a path");
    if (!is_listed(l, name))
        return NIB_OK;
    NIB_TRY(nib__path_look(&kind, path, l->err));
    const bool link = nib__path_is_link(path);
    l->links = l->links || link;
    nib__escape_string(shown, path);
    if (nib__utf8_check(name, strlen(name)) != strlen(name))
        return nib__fail(l->err, NIB_BAD_INPUT, "%s: the name is not UTF-8, as a signature needs",
                         shown);
    if (kind == NIB_PATH_DIRECTORY && link)
        return nib__fail(l->err, NIB_BAD_INPUT,
                         "%s: is a link to a directory, whose files a signature cannot cover",
                         shown);
    if (kind == NIB_PATH_DIRECTORY)
        return nib__digests_add(&l->directories, name, &none, l->allocator, l->err);
    if (kind != NIB_PATH_FILE)
        return nib__fail(l->err, NIB_BAD_INPUT, "%s: is neither a file nor a directory", shown);
    if (l->out->count == FILES_MAX)
        return nib__fail(l->err, NIB_BAD_INPUT, "%s: there are more than %d files",
                         nib__escape_string(shown, l->place->directory), FILES_MAX);
    return nib__digests_add(l->out, name, &none, l->allocator, l->err);
}

static void each_entry(void *ctx, const char *entry)
{
    lister *l = ctx;
    if (l->status == NIB_OK)
        l->status = add_entry(l, entry);
}

/* Breadth first: directories are a list that grows while it is walked. */
static nib_status list_directory(lister *l)
{
    char shown[NIB_SHOWN];
    size_t next = 0;
    NIB_TRY(nib__directory_each(l->place->directory, each_entry, l, l->err));
    while (l->status == NIB_OK && next < l->directories.count) {
        l->below = l->directories.items[next++].name;
        const char *path = nib__path_join(l->arena, l->place->directory, l->below);
        int depth = 0;
        for (const char *c = l->below; *c != 0; c++)
            depth += *c == '/';
        if (path == NULL)
            return nib__fail_memory(l->err, strlen(l->below), "a path");
        if (depth >= DEPTH_MAX)
            return nib__fail(l->err, NIB_BAD_INPUT, "%s: is more than %d directories deep",
                             nib__escape_string(shown, path), DEPTH_MAX);
        NIB_TRY(nib__directory_each(path, each_entry, l, l->err));
    }
    return l->status;
}

static nib_status list_single(lister *l)
{
    char name[NIB_PART_PATH];
    NIB_TRY(add_entry(l, l->place->file));
    if (snprintf(name, sizeof name, "%s.nibble.json", l->place->file) >= (int)sizeof name)
        return NIB_OK; /* too long for a file */
    const char *path = nib__path_join(l->arena, l->place->directory, name);
    if (path == NULL)
        return nib__fail_memory(l->err, sizeof name, "a path");
    return nib__path_kind(path) == NIB_PATH_NONE ? NIB_OK : add_entry(l, name);
}

/* Lists the names of the files of a place, sorted, without their hashes. */
static nib_status list_files(nib_digests *out, bool *links, const nib_signed_place *place,
                             const nib_strings *ignored, nib_arena *arena, const nib_allocator *a,
                             nib_err *err)
{
    lister l = {.place = place,
                .ignored = ignored,
                .out = out,
                .below = "",
                .arena = arena,
                .allocator = a,
                .err = err};
    const nib_status status = place->file != NULL ? list_single(&l) : list_directory(&l);
    nib__digests_free(&l.directories, a);
    nib__digests_sort(out);
    *links = l.links;
    return status;
}

static nib_status report_progress(const nib_callbacks *c, const char *what, size_t done,
                                  size_t total, nib_err *err)
{
    if (c == NULL || c->progress == NULL || c->progress(c->ctx, what, done, total))
        return NIB_OK;
    return nib__fail(err, NIB_CANCELLED, "cancelled");
}

static nib_status hash_file(nib_named_digest *file, const nib_signed_place *place, nib_arena *arena,
                            nib_err *err)
{
    uint64_t size;
    const char *path = nib__path_join(arena, place->directory, file->name);
    if (path == NULL)
        return nib__fail_memory(err, strlen(file->name), "a path");
    return nib__digest_file(&file->digest, &size, path, err);
}

nib_status nib__signed_files_hash(nib_digests *out, bool *links, const nib_signed_place *place,
                                  const nib_callbacks *callbacks, nib_arena *arena,
                                  const nib_allocator *a, nib_err *err)
{
    char shown[NIB_SHOWN];
    *out = (nib_digests){.count = 0};
    NIB_TRY(list_files(out, links, place, NULL, arena, a, err));
    for (size_t i = 0; i < out->count; i++) {
        NIB_TRY(report_progress(callbacks, "sign", i, out->count, err));
        NIB_TRY(hash_file(&out->items[i], place, arena, err));
    }
    return out->count != 0 ? NIB_OK
                           : nib__fail(err, NIB_BAD_INPUT, "%s: there is no file to sign",
                                       nib__escape_string(shown, place->directory));
}

/* ---- writing ---- */

/* The digest of all digests, in order, by which the statement names the model. */
static nib_digest root_of(const nib_digests *files)
{
    nib_sha256 hash;
    nib__sha256_init(&hash);
    for (size_t i = 0; i < files->count; i++)
        nib__sha256_add(&hash, files->items[i].digest.bytes, sizeof files->items[i].digest.bytes);
    return nib__sha256_finish(&hash);
}

static void put_subject(nib_jsonw *w, const nib_signed_place *place, const nib_digest *root)
{
    char text[NIB_DIGEST_TEXT], name[NIB_PART_PATH];
    const size_t size = strlen(place->directory), begin = nib__path_parent(place->directory);
    snprintf(name, sizeof name, "%.*s", (int)(size - begin), place->directory + begin);
    for (size_t end = strlen(name); end > 1 && name[end - 1] == '/'; end--)
        name[end - 1] = 0;
    const char *model = place->file != NULL ? place->file : name[0] == '/' ? name + 1 : name;
    nib__jsonw_key(w, "subject");
    nib__jsonw_array(w);
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "name", model[0] == 0 || model[0] == '.' ? "model" : model);
    nib__jsonw_key(w, "digest");
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "sha256", nib__digest_text(text, root));
    nib__jsonw_object_end(w);
    nib__jsonw_object_end(w);
    nib__jsonw_array_end(w);
}

static void put_serialization(nib_jsonw *w, const nib_signed_place *place, bool links)
{
    nib__jsonw_key(w, "serialization");
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "method", "files");
    nib__jsonw_pair_string(w, "hash_type", "sha256");
    nib__jsonw_pair_bool(w, "allow_symlinks", links);
    nib__jsonw_key(w, "ignore_paths");
    nib__jsonw_array(w);
    for (size_t i = 0; i < COUNT(place->names); i++)
        nib__jsonw_string(w, place->names[i]);
    for (size_t i = 0; i < COUNT(never_signed); i++)
        nib__jsonw_string(w, never_signed[i]);
    nib__jsonw_array_end(w);
    nib__jsonw_object_end(w);
}

void nib__signed_statement_put(nib_text *out, const nib_signed_place *place,
                               const nib_digests *files, bool links)
{
    char text[NIB_DIGEST_TEXT];
    const nib_digest root = root_of(files);
    nib_jsonw w;
    nib__jsonw_init(&w, out, 1);
    nib__jsonw_object(&w);
    nib__jsonw_pair_string(&w, "_type", statement_type);
    put_subject(&w, place, &root);
    nib__jsonw_pair_string(&w, "predicateType", predicate_type);
    nib__jsonw_key(&w, "predicate");
    nib__jsonw_object(&w);
    put_serialization(&w, place, links);
    nib__jsonw_key(&w, "resources");
    nib__jsonw_array(&w);
    for (size_t i = 0; i < files->count; i++) {
        nib__jsonw_object(&w);
        nib__jsonw_pair_string(&w, "name", files->items[i].name);
        nib__jsonw_pair_string(&w, "algorithm", "sha256");
        nib__jsonw_pair_string(&w, "digest", nib__digest_text(text, &files->items[i].digest));
        nib__jsonw_object_end(&w);
    }
    nib__jsonw_array_end(&w);
    nib__jsonw_object_end(&w);
    nib__jsonw_object_end(&w);
    nib__text_str(out, "\n");
}

/* ---- reading ---- */

typedef struct reader {
    nib_json json;
    const nib_signed_place *place;
    nib_signed_statement *out;
    nib_digest root;
    const char *type, *predicate, *method, *hash;
    const char **ignored; /* NULL: none are read yet */
    size_t subjects;
    nib_arena *arena;
    const nib_allocator *allocator;
} reader;

static bool is_known(reader *r, const char *key) { return nib__json_is(&r->json, key); }

static bool read_digest(reader *r, nib_digest *to)
{
    if (!nib__json_expect(&r->json, NIB_JSON_STRING))
        return false;
    if (nib__digest_parse(to, r->json.token, r->json.token_size))
        return true;
    nib__json_fail(&r->json, "a SHA-256 must have 64 hexadecimal digits, in small letters");
    return false;
}

static bool read_string(reader *r, const char **to)
{
    return (*to = nib__json_read_string(&r->json, r->arena, NULL)) != NULL;
}

static bool read_subject_digest(void *ctx)
{
    reader *r = ctx;
    return is_known(r, "sha256") ? read_digest(r, &r->root) : nib__json_skip(&r->json);
}

static bool read_subject(void *ctx)
{
    reader *r = ctx;
    return is_known(r, "digest") ? nib__json_read_object(&r->json, read_subject_digest, r)
                                 : nib__json_skip(&r->json);
}

/* A path that stays in the directory, as a statement must have it. */
static bool is_inside(const char *name)
{
    for (const char *at = name; *at != 0;) {
        const char *slash = strchr(at, '/');
        const size_t size = slash == NULL ? strlen(at) : (size_t)(slash - at);
        if (size == 0 || (size == 1 && at[0] == '.') || (size == 2 && memcmp(at, "..", 2) == 0))
            return false;
        at += size + (slash != NULL);
    }
    return name[0] != 0 && name[strlen(name) - 1] != '/';
}

static bool read_resource(reader *r)
{
    nib_named_digest file = {.name = NULL};
    const char *algorithm = NULL;
    bool hashed = false;
    char shown[NIB_SHOWN];
    while (nib__json_next(&r->json) == NIB_JSON_KEY) {
        if (is_known(r, "digest"))
            hashed = true;
        if (!(is_known(r, "name")        ? read_string(r, &file.name)
              : is_known(r, "algorithm") ? read_string(r, &algorithm)
              : is_known(r, "digest")    ? read_digest(r, &file.digest)
                                         : nib__json_skip(&r->json)))
            return false;
    }
    if (r->json.event != NIB_JSON_OBJECT_END)
        return false;
    if (file.name != NULL && strcmp(file.name, ".") == 0 && r->place->file != NULL)
        file.name = r->place->file; /* as model-signing names a single file */
    if (file.name == NULL || algorithm == NULL || !hashed)
        nib__json_fail(&r->json, "a resource needs \"name\", \"algorithm\" and \"digest\"");
    else if (strcmp(algorithm, "sha256") != 0)
        nib__json_fail(&r->json, "the algorithm is \"%s\", but only sha256 is read",
                       nib__escape_string(shown, algorithm));
    else if (!is_inside(file.name))
        nib__json_fail(&r->json, "\"%s\" is not the path of a file inside of the checkpoint",
                       nib__escape_string(shown, file.name));
    else if (r->out->files.count == FILES_MAX ||
             nib__digests_add(&r->out->files, file.name, &file.digest, r->allocator, NULL) !=
                 NIB_OK)
        nib__json_fail_memory(&r->json, r->out->files.count * sizeof file);
    return r->json.event != NIB_JSON_ERROR;
}

static bool read_resources(reader *r)
{
    if (!nib__json_expect(&r->json, NIB_JSON_ARRAY))
        return false;
    while (nib__json_next(&r->json) == NIB_JSON_OBJECT)
        if (!read_resource(r))
            return false;
    return r->json.event == NIB_JSON_ARRAY_END;
}

static bool read_ignored(reader *r)
{
    enum { IGNORED_MAX = 1000 };
    /* once, however often the member comes */
    const char **items =
        r->ignored != NULL ? r->ignored : nib__arena_take(r->arena, IGNORED_MAX, sizeof *items);
    size_t count = 0;
    r->ignored = items;
    if (items == NULL) {
        nib__json_fail_memory(&r->json, IGNORED_MAX * sizeof *items);
        return false;
    }
    if (!nib__json_expect(&r->json, NIB_JSON_ARRAY))
        return false;
    while (count < IGNORED_MAX && nib__json_next(&r->json) == NIB_JSON_STRING)
        if ((items[count++] = nib__json_string(&r->json, r->arena, NULL)) == NULL)
            return false;
    if (count == IGNORED_MAX)
        nib__json_fail(&r->json, "more than %d paths are left out", IGNORED_MAX - 1);
    r->out->ignored = (nib_strings){.items = items, .count = count};
    return r->json.event == NIB_JSON_ARRAY_END;
}

static bool read_serialization(void *ctx)
{
    reader *r = ctx;
    return is_known(r, "method")         ? read_string(r, &r->method)
           : is_known(r, "hash_type")    ? read_string(r, &r->hash)
           : is_known(r, "ignore_paths") ? read_ignored(r)
                                         : nib__json_skip(&r->json);
}

static bool read_predicate(void *ctx)
{
    reader *r = ctx;
    return is_known(r, "serialization") ? nib__json_read_object(&r->json, read_serialization, r)
           : is_known(r, "resources")   ? read_resources(r)
                                        : nib__json_skip(&r->json);
}

static bool read_statement(void *ctx)
{
    reader *r = ctx;
    nib_json *json = &r->json;
    return is_known(r, "_type")     ? read_string(r, &r->type)
           : is_known(r, "subject") ? nib__json_read_objects(json, read_subject, r, &r->subjects)
           : is_known(r, "predicateType") ? read_string(r, &r->predicate)
           : is_known(r, "predicate")     ? nib__json_read_object(json, read_predicate, r)
                                          : nib__json_skip(json);
}

/* Refuses a member that is missing or has another value. */
static nib_status need(const reader *r, const char *member, const char *value, const char *wanted,
                       nib_err *err)
{
    char shown[NIB_SHOWN];
    if (value == NULL)
        return nib__fail(err, NIB_BAD_INPUT, "%s: has no \"%s\"", r->json.name, member);
    if (strcmp(value, wanted) == 0)
        return NIB_OK;
    return nib__fail(err, NIB_UNSUPPORTED, "%s: its %s is \"%s\", but only \"%s\" is read",
                     r->json.name, member, nib__escape_string(shown, value), wanted);
}

static nib_status check_statement(reader *r, nib_err *err)
{
    char shown[NIB_SHOWN];
    nib_digests *files = &r->out->files;
    NIB_TRY(need(r, "_type", r->type, statement_type, err));
    NIB_TRY(need(r, "predicateType", r->predicate, predicate_type, err));
    NIB_TRY(need(r, "method", r->method, "files", err));
    NIB_TRY(need(r, "hash_type", r->hash, "sha256", err));
    const nib_digest root = root_of(files);
    if (r->subjects != 1 || files->count == 0 || !nib__digest_equal(&root, &r->root))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: contradicts itself: its subject's digest is not that of the digests "
                         "of its %zu files",
                         r->json.name, files->count);
    nib__digests_sort(files);
    for (size_t i = 1; i < files->count; i++)
        if (strcmp(files->items[i - 1].name, files->items[i].name) == 0)
            return nib__fail(err, NIB_BAD_INPUT, "%s: names %s twice", r->json.name,
                             nib__escape_string(shown, files->items[i].name));
    return NIB_OK;
}

nib_status nib__signed_statement_read(nib_signed_statement *out, const nib_signed_place *place,
                                      const char *name, const char *text, size_t size,
                                      nib_arena *arena, const nib_allocator *a, nib_err *err)
{
    reader r = {.place = place, .out = out, .arena = arena, .allocator = a};
    *out = (nib_signed_statement){.ignored = {.count = 0}};
    nib__json_init(&r.json, name, text, size, NULL);
    if (nib__json_read_object(&r.json, read_statement, &r))
        nib__json_next(&r.json);
    const nib_status status = nib__json_status(&r.json, err);
    return status == NIB_OK ? check_statement(&r, err) : status;
}

/* ---- comparing ---- */

static nib_status compare_file(const nib_named_digest *signed_file, const nib_signed_place *place,
                               const nib_signed_report *report, nib_arena *arena)
{
    char text[400], a[NIB_DIGEST_TEXT], b[NIB_DIGEST_TEXT];
    nib_named_digest found = {.name = signed_file->name};
    const char *path = nib__path_join(arena, place->directory, found.name);
    nib_err why = {NIB_OK, ""};
    if (path != NULL && nib__path_kind(path) == NIB_PATH_NONE)
        return report->add(report->ctx, "signed-file", found.name,
                           "was signed, but is not there any more");
    if (hash_file(&found, place, arena, &why) != NIB_OK)
        return report->add(report->ctx, "signed-file", found.name, why.text);
    if (nib__digest_equal(&found.digest, &signed_file->digest))
        return NIB_OK;
    const bool receipt = nib__ends_with(found.name, "nibble.json");
    snprintf(text, sizeof text, "has SHA-256 %s, but %s was signed: the %s was changed afterwards",
             nib__digest_text(a, &found.digest), nib__digest_text(b, &signed_file->digest),
             receipt ? "receipt" : "file");
    return report->add(report->ctx, "signed-file", found.name, text);
}

nib_status nib__signed_files_compare(const nib_signed_statement *statement,
                                     const nib_signed_place *place, const nib_signed_report *report,
                                     const nib_callbacks *callbacks, nib_arena *arena,
                                     const nib_allocator *a, nib_err *err)
{
    const nib_digests *files = &statement->files;
    nib_digests found = {.count = 0};
    bool links;
    for (size_t i = 0; i < files->count; i++) {
        NIB_TRY(report_progress(callbacks, "verify", i, files->count, err));
        NIB_TRY(compare_file(&files->items[i], place, report, arena));
    }
    nib_status status = list_files(&found, &links, place, &statement->ignored, arena, a, err);
    for (size_t i = 0; i < found.count && status == NIB_OK; i++)
        if (nib__digests_find(files, found.items[i].name) == NULL)
            status = report->add(report->ctx, "not-signed", found.items[i].name,
                                 "is not among the signed files: it was added afterwards");
    nib__digests_free(&found, a);
    return status;
}

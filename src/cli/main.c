/* SPDX-License-Identifier: Apache-2.0
 *
 * Selects the command (table in cli_commands.c), and opens engines and models for the commands.
 */
#include "cli.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *model_path(const settings *s)
{
    return s->model ? s->model : s->arguments.count > 0 ? s->arguments.items[0] : NULL;
}

nib_form form_of(const settings *s)
{
    return s->json ? NIB_FORM_JSON : s->markdown ? NIB_FORM_MARKDOWN : NIB_FORM_TEXT;
}

static nib_strings strings_of(const list *l)
{
    return (nib_strings){.items = l->items, .count = l->count};
}

nib_request request_of(const settings *s)
{
    return (nib_request){
        .recipe = s->recipe,
        .skip = strings_of(&s->skip),
        .only = strings_of(&s->only),
        .device = s->device,
        .dtype = s->dtype,
        .cache = s->cache_type,
        .allow = strings_of(&s->allow),
        .kernel = strings_of(&s->kernel),
        .place = strings_of(&s->place),
        .without = strings_of(&s->without),
        .strict = s->strict,
        .engine = s->engine,
        .layer = s->layer,
        .bias = s->bias,
        .context = s->context,
        .memory = s->memory,
        /* not given: the library's default; 0: off */
        .lookup = s->lookup < 0    ? 0
                  : s->lookup == 0 ? -1
                                   : s->lookup,
        .snapshots = s->snapshots < 0    ? 0
                     : s->snapshots == 0 ? -1
                                         : s->snapshots,
        .draft_recipe = s->draft_recipe,
    };
}

void sync_parent(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    const int length = slash == NULL || slash == path ? 1 : (int)(slash - path);
    snprintf(folder, sizeof folder, "%.*s", length, slash == NULL ? "." : path);
    const int parent = open(folder, O_RDONLY | O_CLOEXEC);
    if (parent >= 0) {
        (void)fsync(parent);
        close(parent);
    }
}

/* Makes a folder for this user alone. Its name is synced: what is kept in it must survive a power
 * cut. */
static void make_folder(const char *path)
{
    if (mkdir(path, 0700) == 0)
        sync_parent(path);
}

/* $XDG_CACHE_HOME/nibble/machine.json, else ~/.cache/nibble/machine.json; NULL without a home. */
static const char *cache_path(char *out, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length;
    if (cache && *cache == '/') /* the standard ignores relative ones */
        length = snprintf(out, size, "%s/nibble", cache);
    else if (home && *home)
        length = snprintf(out, size, "%s/.cache/nibble", home);
    else
        return NULL;
    if (length < 0 || (size_t)length + sizeof "/machine.json" > size)
        return NULL;
    /* A fresh account has neither level. If they cannot be made, measurements are not kept. */
    char *slash = strrchr(out, '/');
    *slash = '\0';
    make_folder(out);
    *slash = '/';
    make_folder(out);
    memcpy(out + length, "/machine.json", sizeof "/machine.json");
    return out;
}

/* Only `nibble serve` and `nibble verify` enter it. */
static nib_status sandbox_of(nib_sandbox *out, const settings *s, nib_err *err)
{
    static const char *const modes[] = {
        [NIB_SANDBOX_OFF] = "off", [NIB_SANDBOX_AUTO] = "auto", [NIB_SANDBOX_ON] = "on"};
    const char *asked = s->sandbox != NULL ? s->sandbox : "auto";
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(asked, modes[i]) == 0) {
            *out = (nib_sandbox)i;
            return NIB_OK;
        }
    err->status = NIB_USAGE;
    snprintf(err->text, sizeof err->text, "--sandbox: \"%s\" is not auto, on or off", asked);
    return err->status;
}

nib_status start_engine(nib_engine **out, const settings *s, const nib_ranks *ranks, nib_err *err)
{
    char cache[4096];
    nib_engine_options options = {.threads = (int)(s->threads < INT_MAX ? s->threads : INT_MAX),
                                  .isa = s->isa,
                                  .callbacks = terminal_callbacks(s),
                                  .cache_path = cache_path(cache, sizeof cache)};
    if (sandbox_of(&options.sandbox, s, err) != NIB_OK)
        return err->status;
    nib_ranks_slice(ranks, &options.slice, &options.slices);
    if (nib_ranks_rank(ranks) > 0)
        options.callbacks.log = NULL;
    return nib_engine_open(out, &options, err);
}

nib_model_options model_options_of(const settings *s, nib_model_options options)
{
    options.tokenizer = s->tokenizer;
    options.overrides = strings_of(&s->overrides);
    options.cache_dir = s->cache_dir ? s->cache_dir : getenv("NIBBLE_CACHE_DIR");
    if (options.cache_dir && !*options.cache_dir)
        options.cache_dir = NULL;
    return options;
}

int open_engine(nib_engine **out, const settings *s)
{
    nib_err err;
    return start_engine(out, s, NULL, &err) == NIB_OK ? 0 : fail(&err);
}

int open_model(nib_model **out, nib_engine *engine, const settings *s, const char *path,
               nib_model_options options)
{
    nib_err err;
    options = model_options_of(s, options);
    return nib_model_open(out, engine, path, &options, &err) == NIB_OK ? 0 : fail(&err);
}

int with_model(const settings *s, const char *usage, nib_model_options options,
               int (*use)(nib_model *model, nib_engine *engine, const settings *s))
{
    const char *path = model_path(s);
    if (!path)
        return fail_usage("%s", usage);
    nib_engine *engine;
    int status = open_engine(&engine, s);
    if (status)
        return status;
    nib_model *model = NULL;
    status = open_model(&model, engine, s, path, options);
    if (status == 0)
        status = use(model, engine, s);
    nib_model_close(model);
    nib_engine_close(engine);
    return status;
}

int run_manual(const settings *s)
{
    if (s->markdown && s->arguments.count > 0)
        return fail_usage("--markdown prints all commands; leave out \"%s\"",
                          s->arguments.items[0]);
    return s->markdown ? print_markdown()
                       : print_manual(s->arguments.count > 0 ? s->arguments.items[0] : NULL);
}
int run_completion(const settings *s) { return print_completion(s->arguments.items[0]); }

static int fail_unknown_command(const char *word)
{
    const char *names[COMMANDS_MAX];
    for (size_t i = 0; i < command_count; i++)
        names[i] = commands[i].name;
    char near[128];
    if (word[0] == '-')
        return fail_usage("\"%s\" is not a command; a command comes first, as in `nibble generate "
                          "MODEL -p PROMPT`; `nibble --help` lists the commands",
                          word);
    did_you_mean(near, word, "", names, command_count);
    return fail_usage("unknown command \"%s\"%s `nibble --help` lists the commands", word,
                      *near ? near : ";");
}

static int run_command(const command *c, int argc, char **argv)
{
    settings s;
    int status = parse_options(&s, c, argc, argv);
    const int given = (int)s.arguments.count + (s.model && c->most > 0);
    if (status == 0 && s.help) {
        print_help(stdout, c);
        status = finish_stdout(0);
    } else if (status == 0 && given > c->most) {
        status = fail_usage("`nibble %s` takes at most %d argument%s (%s); \"%s\" is one too many",
                            c->name, c->most, c->most == 1 ? "" : "s", c->arguments,
                            s.arguments.items[s.arguments.count - 1]);
    } else if (status == 0 && given < c->least) {
        status = fail_usage("`nibble %s` needs %s", c->name, c->arguments);
    } else if (status == 0) {
        watch_interrupts();
        watch_files();
        status = c->run(&s);
    }
    free_settings(&s);
    return status;
}

int main(int argc, char **argv)
{
    record_start();
    open_standard_files();
    if (argc < 2) {
        print_help(stderr, NULL);
        return nib_status_exit(NIB_USAGE);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("nibble %s\n", nib_version());
        return finish_stdout(0);
    }
    const bool help = strcmp(argv[1], "help") == 0;
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || (help && argc == 2)) {
        print_help(stdout, NULL);
        return finish_stdout(0);
    }
    const char *name = help ? argv[2] : argv[1];
    for (size_t i = 0; i < command_count; i++) {
        if (strcmp(commands[i].name, name) != 0)
            continue;
        if (!help)
            return run_command(&commands[i], argc - 2, argv + 2);
        print_help(stdout, &commands[i]);
        return finish_stdout(0);
    }
    return fail_unknown_command(name);
}

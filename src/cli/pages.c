/* SPDX-License-Identifier: Apache-2.0
 *
 * Manual pages, docs/commands.md and shell completions, generated from the option table.
 */
#include "cli_options.h"

#include <string.h>

/* Escapes text for troff: a leading dot or quote is a request, a backslash an escape. */
static void put_troff(const char *text)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", stdout);
    for (; *text; text++) {
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-')
            fputs("\\-", stdout);
        else
            fputc(*text, stdout);
    }
}

static void put_line(const char *before, const char *text)
{
    fputs(before, stdout);
    put_troff(text);
    fputc('\n', stdout);
}

static void print_exit_status(void) { printf(".SH EXIT STATUS\n%s\n", exit_status_text); }

static void print_program_page(void)
{
    printf(".TH NIBBLE 1 \"\" \"nibble %s\"\n.SH NAME\nnibble \\- quantize, check, run, serve "
           "and train low\\-bit language models\n",
           nib_version());
    printf(".SH SYNOPSIS\n.B nibble\n.I COMMAND\n[arguments] [options]\n.SH COMMANDS\n");
    for (size_t i = 0; i < command_count; i++) {
        printf(".TP\n.BR nibble\\-%s (1)\n", commands[i].name);
        put_line("", commands[i].summary);
    }
    print_exit_status();
}

static void print_command_page(const command *c)
{
    printf(".TH \"NIBBLE\\-");
    for (const char *p = c->name; *p; p++)
        putchar(*p - 'a' + 'A'); /* command names are lower case */
    printf("\" 1 \"\" \"nibble %s\"\n.SH NAME\nnibble\\-%s \\- ", nib_version(), c->name);
    put_line("", c->summary);
    printf(".SH SYNOPSIS\n.B nibble %s\n", c->name);
    put_line(".I ", *c->arguments ? c->arguments : " ");
    puts("[options]\n.SH DESCRIPTION");
    put_line("", c->description);
    puts(".SH OPTIONS");
    for (size_t i = 0; i < option_count; i++) {
        const option *o = &option_table[i];
        if (!(o->on & command_bit(c)))
            continue;
        printf(".TP\n.B ");
        if (o->letter)
            printf("\\-%c, ", o->letter);
        fputs("\\-\\-", stdout);
        put_troff(o->name);
        if (o->value)
            printf(" \\fI%s\\fR", o->value);
        put_line("\n", o->help);
    }
    fputs(".SH EXAMPLES\n.nf\n", stdout);
    put_troff(c->examples);
    puts("\n.fi");
    print_exit_status();
    puts(".SH SEE ALSO\n.BR nibble (1)");
}

int print_manual(const char *name)
{
    if (!name || strcmp(name, "nibble") == 0) {
        print_program_page();
        return finish_stdout(0);
    }
    for (size_t i = 0; i < command_count; i++) {
        if (strcmp(commands[i].name, name) == 0) {
            print_command_page(&commands[i]);
            return finish_stdout(0);
        }
    }
    return fail_usage("no manual page for \"%s\"; give the name of a command, or nibble", name);
}

/* ---- docs/commands.md ---- */

/* Escapes text for a table cell, where a bar ends the cell even in code. */
static void put_cell(const char *text)
{
    for (; *text; text++)
        printf("%s%c", *text == '|' ? "\\" : "", *text);
}

static void print_markdown_options(const command *c)
{
    puts("| option | |\n|---|---|");
    for (size_t i = 0; i < option_count; i++) {
        const option *o = &option_table[i];
        if (!(o->on & command_bit(c)))
            continue;
        fputs("| ", stdout);
        if (o->letter)
            printf("`-%c`, ", o->letter);
        printf("`--%s%s", o->name, o->value ? " " : "");
        put_cell(o->value ? o->value : "");
        printf("` | %s |\n", o->help);
    }
}

int print_markdown(void)
{
    printf(
        "# Commands\n\nPrinted by `nibble manual --markdown`. `nibble COMMAND --help` and the "
        "manual page, `nibble manual COMMAND`, say the same.\n\nResults go to stdout, everything "
        "else to stderr. Exit status: %s\n",
        exit_status_text);
    for (size_t i = 0; i < command_count; i++) {
        const command *c = &commands[i];
        printf("\n## nibble %s%s%s\n\n%s\n\n", c->name, *c->arguments ? " " : "", c->arguments,
               c->description);
        for (const char *at = c->examples; *at; at += *at == '\n') {
            const int size = (int)strcspn(at, "\n");
            printf("    %.*s\n", size, at);
            at += size;
        }
        putchar('\n');
        print_markdown_options(c);
    }
    return finish_stdout(0);
}

/* ---- completions ---- */

static void print_option_names(const command *c)
{
    for (size_t i = 0; i < option_count; i++)
        if (option_table[i].on & command_bit(c))
            printf(" --%s", option_table[i].name);
}

static void print_bash(void)
{
    puts("_nibble()\n{\n    local current=${COMP_WORDS[COMP_CWORD]} words=\n    case "
         "${COMP_WORDS[1]} in");
    for (size_t i = 0; i < command_count; i++) {
        printf("    %s) words=\"", commands[i].name);
        print_option_names(&commands[i]);
        puts("\" ;;");
    }
    fputs("    esac\n    [ \"$COMP_CWORD\" = 1 ] && words=\"", stdout);
    for (size_t i = 0; i < command_count; i++)
        printf("%s ", commands[i].name);
    puts("\"\n    if [[ $current == -* || $COMP_CWORD == 1 ]]; then\n        COMPREPLY=($(compgen "
         "-W \"$words\" -- \"$current\"))\n"
         "    else\n        COMPREPLY=($(compgen -f -- \"$current\"))\n    fi\n}\ncomplete -o "
         "filenames -F _nibble nibble");
}

static void print_zsh(void)
{
    puts("#compdef nibble\nautoload -U bashcompinit && bashcompinit");
    print_bash();
}

/* Prints text in single quotes, where fish has only the escapes \' and \\. */
static void put_fish(const char *text)
{
    putchar('\'');
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\')
            putchar('\\');
        putchar(*text);
    }
    putchar('\'');
}

static void print_fish(void)
{
    for (size_t i = 0; i < command_count; i++) {
        const command *c = &commands[i];
        printf("complete -c nibble -n __fish_use_subcommand -a %s -d ", c->name);
        put_fish(c->summary);
        putchar('\n');
        for (size_t j = 0; j < option_count; j++) {
            const option *o = &option_table[j];
            if (!(o->on & command_bit(c)))
                continue;
            printf("complete -c nibble -n '__fish_seen_subcommand_from %s' -l %s%s", c->name,
                   o->name, o->value ? " -r" : "");
            if (o->letter)
                printf(" -s %c", o->letter);
            fputs(" -d ", stdout);
            put_fish(o->help);
            putchar('\n');
        }
    }
}

int print_completion(const char *shell)
{
    if (strcmp(shell, "bash") == 0)
        print_bash();
    else if (strcmp(shell, "zsh") == 0)
        print_zsh();
    else if (strcmp(shell, "fish") == 0)
        print_fish();
    else
        return fail_usage("no completions for \"%s\"; choose bash, zsh or fish", shell);
    return finish_stdout(0);
}

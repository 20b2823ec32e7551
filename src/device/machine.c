/* SPDX-License-Identifier: Apache-2.0
 *
 * The machines known by name: parses all files of machines/ and links their hosts.
 */
#include "machine.h"

static size_t file_count(void)
{
    size_t count = 0;
    while (nib__machine_files[count].name != NULL)
        count++;
    return count;
}

static nib_status parse_all(nib_machines *m, nib_err *err)
{
    const char **hosts = nib__arena_take(&m->arena, file_count(), sizeof *hosts);
    m->items = nib__arena_take(&m->arena, file_count(), sizeof *m->items);
    if (hosts == NULL || m->items == NULL)
        return nib__fail_memory(err, file_count() * sizeof *m->items, "the known machines");
    for (const nib_machine_file *f = nib__machine_files; f->name != NULL; f++) {
        NIB_TRY(nib__machine_parse(&m->items[m->count], &hosts[m->count], f->name, f->name,
                                   (const char *)f->text, f->size, &m->arena, err));
        m->count++;
    }
    for (size_t i = 0; i < m->count; i++)
        if (hosts[i] != NULL)
            m->items[i].host = nib__machines_find(m, hosts[i]);
    return NIB_OK;
}

nib_status nib__machines_open(nib_machines *out, const nib_allocator *a, nib_err *err)
{
    *out = (nib_machines){.items = NULL};
    nib__arena_init(&out->arena, a, 0);
    const nib_status status = parse_all(out, err);
    if (status != NIB_OK)
        nib__machines_close(out);
    return status;
}

void nib__machines_close(nib_machines *machines)
{
    nib__arena_free(&machines->arena);
    *machines = (nib_machines){.items = NULL};
}

const nib_machine *nib__machines_find(const nib_machines *machines, const char *name)
{
    for (size_t i = 0; i < machines->count; i++)
        if (strcmp(machines->items[i].name, name) == 0)
            return &machines->items[i];
    return NULL;
}

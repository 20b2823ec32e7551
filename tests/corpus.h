/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests that read the files of tests/fuzz/corpus.
 */
#ifndef NIB_CORPUS_H
#define NIB_CORPUS_H

#include <dirent.h>
#include <stdio.h>
#include <string.h>

/* Calls `use` with the path of each file that people named, not those that a fuzzer found, whose
 * names are hashes. Returns their number, or 0 if the folder cannot be read. */
static int each_named_file(const char *folder, void (*use)(void *context, const char *path),
                           void *context)
{
    enum { HASH = 40 };
    DIR *directory = opendir(folder);
    int files = 0;
    if (directory == NULL)
        return 0;
    for (const struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        char path[300];
        if (entry->d_name[0] == '.' || strlen(entry->d_name) == HASH)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        use(context, path);
        files++;
    }
    closedir(directory);
    return files;
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Suggests what a user may have meant by an unknown name. Stateless and without allocation; names
 * longer than LONGEST are skipped, so a hostile file cannot make a message expensive.
 */
#include "text.h"

enum {
    LONGEST = 256,
    MOST = 3, /* suggestions */
    FAR = 1 << 20,
    /* Ranks: a small edit of the whole name, then of its last component, then shared words. */
    OF_LAST = 100,
    OF_PART = 200,
};

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

bool nib__same_start_ignoring_case(const char *a, const char *b, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (lower(a[i]) != lower(b[i]))
            return false;
        if (a[i] == 0)
            break;
    }
    return true;
}

bool nib__same_ignoring_case(const char *a, const char *b)
{
    return nib__same_start_ignoring_case(a, b, SIZE_MAX);
}

static int least(int a, int b) { return a < b ? a : b; }

/* The most edits that count as a typo in a name of this length. */
static int cap_of(size_t length) { return length < 3 ? 0 : length < 6 ? 1 : length < 12 ? 2 : 3; }

/* Edit distance: insertions, deletions, substitutions and swaps of neighbours that turn a into b,
 * ignoring case; FAR if more than `cap`. Computes only the band of cells that can stay within the
 * cap. */
static int distance(const char *a, size_t a_size, const char *b, size_t b_size, int cap)
{
    const int n = (int)a_size, m = (int)b_size;
    if (n - m > cap || m - n > cap)
        return FAR;
    int rows[3][LONGEST + 2];
    for (int j = 0; j <= m; j++)
        rows[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *row = rows[i % 3];
        const int *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        const int first = i - cap > 1 ? i - cap : 1, last = least(m, i + cap);
        int best = first == 1 ? i : FAR;
        row[first - 1] = first == 1 ? i : FAR;
        for (int j = first; j <= last; j++) {
            const bool same = lower(a[i - 1]) == lower(b[j - 1]);
            int d = above[j - 1] + !same;
            d = least(d, row[j - 1] + 1);
            if (j < i + cap)
                d = least(d, above[j] + 1);
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                lower(a[i - 2]) == lower(b[j - 1]))
                d = least(d, above2[j - 2] + 1);
            row[j] = d;
            best = least(best, d);
        }
        if (best > cap)
            return FAR;
    }
    return rows[n % 3][m] <= cap ? rows[n % 3][m] : FAR;
}

static const char *last_component(const char *name, size_t size)
{
    while (size > 0 && name[size - 1] != '.')
        size--;
    return name + size;
}

static bool is_letter(char c) { return lower(c) >= 'a' && lower(c) <= 'z'; }

/* Does a word of a name begin at i? proj of q_proj, Only of WeightOnly, not version of
 * conversion. */
static bool begins_word(const char *text, size_t i)
{
    return i == 0 || !is_letter(text[i - 1]) || !is_letter(text[i]) ||
           (lower(text[i - 1]) == text[i - 1] && lower(text[i]) != text[i]);
}

static bool contains(const char *text, size_t size, const char *part, size_t part_size)
{
    for (size_t i = 0; i + part_size <= size; i++) {
        size_t same = 0;
        while (same < part_size && lower(text[i + same]) == lower(part[same]))
            same++;
        if (same == part_size && begins_word(text, i))
            return true;
    }
    return false;
}

/* Lower is nearer. */
static int score(const char *wanted, size_t wanted_size, const char *name, size_t size)
{
    const int whole = distance(wanted, wanted_size, name, size, cap_of(wanted_size));
    if (whole < FAR)
        return whole;
    const char *wanted_last = last_component(wanted, wanted_size),
               *last = last_component(name, size);
    const size_t wanted_last_size = wanted_size - (size_t)(wanted_last - wanted);
    const size_t last_size = size - (size_t)(last - name);
    const int of_last =
        distance(wanted_last, wanted_last_size, last, last_size, cap_of(wanted_last_size));
    if (of_last < FAR && last_size != 0)
        return OF_LAST + of_last;
    const size_t shorter = wanted_size < size ? wanted_size : size;
    if (shorter >= 3 &&
        (contains(name, size, wanted, wanted_size) || contains(wanted, wanted_size, name, size)))
        return OF_PART + (int)(wanted_size + size - 2 * shorter);
    return FAR;
}

void nib__near_names(nib_text *out, const char *wanted, const char *const *names, size_t count)
{
    size_t best[MOST];
    int scores[MOST], found = 0;
    const size_t wanted_size = strlen(wanted);
    if (wanted_size == 0 || wanted_size > LONGEST)
        return;
    for (size_t i = 0; i < count; i++) {
        const size_t size = strlen(names[i]);
        if (size == 0 || size > LONGEST)
            continue;
        const int s = score(wanted, wanted_size, names[i], size);
        int place = found;
        while (place > 0 && s < scores[place - 1])
            place--;
        if (s == FAR || place == MOST)
            continue;
        found = least(found + 1, MOST);
        for (int k = found - 1; k > place; k--) {
            scores[k] = scores[k - 1];
            best[k] = best[k - 1];
        }
        scores[place] = s;
        best[place] = i;
    }
    /* Drop weaker kinds of similarity if there is a stronger one. */
    while (found > 1 && scores[found - 1] / OF_LAST > scores[0] / OF_LAST)
        found--;
    for (int k = 0; k < found; k++) {
        char safe[LONGEST + 1];
        if (k > 0)
            nib__text_str(out, k + 1 == found ? " or " : ", ");
        nib__text_str(out,
                      nib__escape_name(safe, sizeof safe, names[best[k]], strlen(names[best[k]])));
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks a schema as a whole: resolves references, lists the alternatives of each node, checks that
 * those of oneOf are disjoint and that some value ends. Nothing here recurses.
 */
#include "schema.h"

#include <stdlib.h>

typedef struct checker {
    nib_schema *s;
    size_t count;            /* nodes that were read; merged ones follow */
    uint32_t *marks;         /* [count] the last search that visited each node */
    uint16_t *stack, *found; /* [count] */
    size_t compared;         /* texts compared for oneOf */
    size_t merged;           /* texts of merged literals */
    nib_err *err;
} checker;

/* ---- references ---- */

static int by_name(const void *key, const void *definition)
{
    const nib_schema_definition *d = definition;
    return nib__schema_by_text(key, &d->name);
}

static nib_status resolve_references(nib_schema *s, const nib_schema_definition *definitions,
                                     size_t count, nib_err *err)
{
    for (size_t i = 0; i < s->count; i++) {
        nib_schema_node *node = &s->nodes[i];
        char shown[NIB_SHOWN];
        if (node->kind != NIB_SCHEMA_REF)
            continue;
        node->count = 1;
        node->members = s->nodes[s->root].members;
        if (node->texts->size == 1)
            continue;
        const nib_schema_definition *found =
            count == 0 ? NULL
                       : bsearch(node->texts, definitions, count, sizeof *definitions, by_name);
        uint16_t *target = nib__arena_take(&s->arena, 1, sizeof *target);
        if (target == NULL)
            return nib__fail_memory(err, sizeof *target, "the schema");
        if (found == NULL)
            return nib__fail(err, NIB_BAD_INPUT, "%s: there is no \"%s\" in the schema", node->path,
                             nib__escape_string(shown, node->texts->at));
        *target = found->node;
        node->members = target;
    }
    return NIB_OK;
}

/* ---- alternatives ---- */

static nib_status fail_too_many(const checker *c)
{
    return nib__fail(c->err, NIB_BAD_INPUT,
                     "%s: it has more than %d alternatives, the limit; make it smaller", c->s->name,
                     NIB_SCHEMA_LEAVES);
}

static nib_status put_leaves(checker *c, size_t node, const uint16_t *leaves, size_t count)
{
    nib_schema *s = c->s;
    if (s->leaf_count + count + c->merged > NIB_SCHEMA_LEAVES)
        return fail_too_many(c);
    if (!nib__reserve(s->allocator, (void **)&s->leaves, &s->leaf_capacity, s->leaf_count + count,
                      sizeof *s->leaves))
        return nib__fail_memory(c->err, 2 * s->leaf_count * sizeof *s->leaves, "the schema");
    s->nodes[node].leaf = (uint32_t)s->leaf_count;
    s->nodes[node].leaf_count = (uint32_t)count;
    memcpy(s->leaves + s->leaf_count, leaves, count * sizeof *leaves);
    s->leaf_count += count;
    return NIB_OK;
}

/* Merges nodes of literals into one. */
static nib_status merge_literals(checker *c, const uint16_t *nodes, size_t count, uint16_t *out)
{
    nib_schema *s = c->s;
    nib_schema_node node = {.kind = NIB_SCHEMA_LITERALS};
    size_t total = 0, kept = 0;
    for (size_t i = 0; i < count; i++)
        total += s->nodes[nodes[i]].count;
    c->merged += total;
    if (c->merged > NIB_SCHEMA_LEAVES)
        return fail_too_many(c);
    nib_schema_text *texts = nib__arena_take(&s->arena, total, sizeof *texts);
    if (texts == NULL)
        return nib__fail_memory(c->err, total * sizeof *texts, "the schema");
    total = 0;
    for (size_t i = 0; i < count; i++) {
        const nib_schema_node *from = &s->nodes[nodes[i]];
        memcpy(texts + total, from->texts, from->count * sizeof *texts);
        total += from->count;
    }
    qsort(texts, total, sizeof *texts, nib__schema_by_text);
    for (size_t i = 0; i < total; i++)
        if (i == 0 || nib__schema_by_text(&texts[kept - 1], &texts[i]) != 0)
            texts[kept++] = texts[i];
    node.texts = texts;
    node.count = (uint16_t)kept;
    NIB_TRY(nib__schema_add(s, &node, out, c->err));
    return put_leaves(c, *out, out, 1);
}

/* Finds the nodes that references and alternatives lead to, in order, each once, so cycles end. */
static size_t find_alternatives(checker *c, uint16_t from)
{
    const uint32_t mark = (uint32_t)from + 1;
    size_t depth = 0, count = 0;
    c->marks[from] = mark;
    c->stack[depth++] = from;
    while (depth != 0) {
        const uint16_t at = c->stack[--depth];
        const nib_schema_node *node = &c->s->nodes[at];
        if (node->kind < NIB_SCHEMA_ANY_OF) {
            c->found[count++] = at;
            continue;
        }
        for (size_t i = node->count; i-- > 0;) {
            const uint16_t member = node->members[i];
            if (c->marks[member] == mark)
                continue;
            c->marks[member] = mark;
            c->stack[depth++] = member;
        }
    }
    return count;
}

static nib_status list_alternatives(checker *c, uint16_t at)
{
    nib_schema *s = c->s;
    if (s->nodes[at].kind < NIB_SCHEMA_ANY_OF)
        return put_leaves(c, at, &at, 1);
    const size_t found = find_alternatives(c, at);
    size_t kept = 0, literals = 0, kinds[NIB_SCHEMA_LITERALS + 1] = {0};
    uint16_t merged;
    for (size_t i = 0; i < found; i++) {
        const uint16_t leaf = c->found[i];
        kinds[s->nodes[leaf].kind]++;
        if (s->nodes[leaf].kind == NIB_SCHEMA_LITERALS)
            c->stack[literals++] = leaf;
        else
            c->found[kept++] = leaf;
    }
    if (found == 0)
        return nib__fail(c->err, NIB_BAD_INPUT, "%s: the reference leads only to itself",
                         s->nodes[at].path);
    for (int k = 0; k < NIB_SCHEMA_LITERALS; k++)
        if (kinds[k] >= NIB_SCHEMA_SAME_KIND)
            return nib__fail(c->err, NIB_UNSUPPORTED,
                             "%s: %zu alternatives have the same type, over the limit of %d",
                             s->nodes[at].path, kinds[k], NIB_SCHEMA_SAME_KIND - 1);
    if (literals == 1)
        c->found[kept++] = c->stack[0];
    if (literals > 1) {
        NIB_TRY(merge_literals(c, c->stack, literals, &merged));
        c->found[kept++] = merged;
    }
    return put_leaves(c, at, c->found, kept);
}

/* ---- oneOf ---- */

/* Bits of kinds without common values. */
enum { KIND_OBJECT = 1, KIND_ARRAY = 2, KIND_STRING = 4, KIND_NUMBER = 8, KIND_WORD = 16 };

static bool is_whole(const nib_schema_text *text)
{
    for (uint32_t i = 0; i < text->size; i++)
        if (text->at[i] == '.' || (text->at[i] | 0x20) == 'e')
            return false;
    return text->size != 2 || memcmp(text->at, "-0", 2) != 0;
}

static unsigned kind_of(const nib_schema_text *text)
{
    switch (text->at[0]) {
    case '"': return KIND_STRING;
    case 't':
    case 'f':
    case 'n': return KIND_WORD;
    default: return KIND_NUMBER;
    }
}

static unsigned kinds_of(const nib_schema_node *node)
{
    static const unsigned kinds[] = {KIND_OBJECT, KIND_ARRAY, KIND_STRING, KIND_NUMBER};
    unsigned found = 0;
    if (node->kind != NIB_SCHEMA_LITERALS)
        return kinds[node->kind];
    for (size_t i = 0; i < node->count; i++)
        found |= kind_of(&node->texts[i]);
    return found;
}

/* Numbers are compared by their digits, so only integers can be told apart. */
static bool literals_differ(const nib_schema_node *a, const nib_schema_node *b)
{
    const bool numbers = kinds_of(a) & kinds_of(b) & KIND_NUMBER;
    for (size_t i = 0; i < a->count; i++) {
        if (numbers && kind_of(&a->texts[i]) == KIND_NUMBER && !is_whole(&a->texts[i]))
            return false;
        if (bsearch(&a->texts[i], b->texts, b->count, sizeof *b->texts, nib__schema_by_text))
            return false;
    }
    for (size_t i = 0; i < b->count; i++)
        if (numbers && kind_of(&b->texts[i]) == KIND_NUMBER && !is_whole(&b->texts[i]))
            return false;
    return true;
}

/* Does a property that at least one of them requires have different values in the other? */
static bool objects_differ(const nib_schema *s, const nib_schema_node *a, const nib_schema_node *b)
{
    for (size_t i = 0; i < a->count; i++) {
        const nib_schema_text *found =
            b->count == 0
                ? NULL
                : bsearch(&a->texts[i], b->texts, b->count, sizeof *b->texts, nib__schema_by_text);
        if (found == NULL)
            continue;
        const nib_schema_property *left = &a->properties[a->texts[i].index];
        const nib_schema_property *right = &b->properties[found->index];
        const nib_schema_node *x = &s->nodes[left->node], *y = &s->nodes[right->node];
        if ((!left->required && !right->required) || x->leaf_count != 1 || y->leaf_count != 1)
            continue;
        x = &s->nodes[s->leaves[x->leaf]];
        y = &s->nodes[s->leaves[y->leaf]];
        if (x->kind == NIB_SCHEMA_LITERALS && y->kind == NIB_SCHEMA_LITERALS &&
            literals_differ(x, y))
            return true;
    }
    return false;
}

static bool are_disjoint(const nib_schema *s, const nib_schema_node *a, const nib_schema_node *b)
{
    if ((kinds_of(a) & kinds_of(b)) == 0)
        return true;
    if (a->kind != b->kind)
        return false;
    return a->kind == NIB_SCHEMA_LITERALS ? literals_differ(a, b)
           : a->kind == NIB_SCHEMA_OBJECT ? objects_differ(s, a, b)
                                          : false;
}

static bool members_differ(checker *c, const nib_schema_node *a, const nib_schema_node *b)
{
    const nib_schema *s = c->s;
    for (size_t i = 0; i < a->leaf_count; i++) {
        for (size_t j = 0; j < b->leaf_count; j++) {
            const nib_schema_node *left = &s->nodes[s->leaves[a->leaf + i]];
            const nib_schema_node *right = &s->nodes[s->leaves[b->leaf + j]];
            c->compared += left->count + right->count + 1u;
            if (c->compared > NIB_SCHEMA_COMPARED || !are_disjoint(s, left, right))
                return false;
        }
    }
    return true;
}

static nib_status check_one_of(checker *c, const nib_schema_node *node)
{
    const nib_schema *s = c->s;
    for (size_t j = 1; j < node->count; j++)
        for (size_t i = 0; i < j; i++)
            if (!members_differ(c, &s->nodes[node->members[i]], &s->nodes[node->members[j]]))
                return c->compared > NIB_SCHEMA_COMPARED
                           ? nib__fail(c->err, NIB_UNSUPPORTED,
                                       "%s: telling the oneOf schemas apart needs more than %d "
                                       "comparisons, the limit; use anyOf",
                                       node->path, NIB_SCHEMA_COMPARED)
                           : nib__fail(
                                 c->err, NIB_UNSUPPORTED,
                                 "%s: oneOf schemas %zu and %zu (from 0) cannot be told apart: "
                                 "neither their types nor a required property's values "
                                 "differ; use anyOf",
                                 node->path, i, j);
    return NIB_OK;
}

/* ---- heights ---- */

static uint8_t taller(uint8_t a, uint8_t b) { return a > b ? a : b; }

/* The nesting of the flattest value, from the heights of its parts so far. */
static uint8_t value_height(const nib_schema *s, const nib_schema_node *node)
{
    uint8_t most = 0, least = NIB_SCHEMA_ENDLESS;
    switch (node->kind) {
    case NIB_SCHEMA_OBJECT:
        for (size_t i = 0; i < node->count; i++)
            if (node->properties[i].required)
                most = taller(most, s->nodes[node->properties[i].node].height);
        break;
    case NIB_SCHEMA_ARRAY:
        for (size_t i = 0; i < node->count && i < node->min; i++)
            most = taller(most, s->nodes[node->members[i]].height);
        if (node->min > node->count)
            most = taller(most, s->nodes[node->items].height);
        break;
    case NIB_SCHEMA_ANY_OF:
    case NIB_SCHEMA_REF:
        for (size_t i = 0; i < node->leaf_count; i++) {
            const uint8_t leaf = s->nodes[s->leaves[node->leaf + i]].height;
            least = leaf < least ? leaf : least;
        }
        return least;
    default: return 0;
    }
    return (uint8_t)(most < NIB_SCHEMA_ENDLESS ? most + 1 : NIB_SCHEMA_ENDLESS);
}

static nib_status fail_endless(const nib_schema *s, nib_err *err)
{
    return nib__fail(err, NIB_BAD_INPUT,
                     "%s: no value of the schema ends within %d levels; make a property on the way "
                     "optional, or allow an array to be empty",
                     s->nodes[s->root].path, NIB_SCHEMA_DEPTH);
}

/* Each round fixes the nodes of the next height. */
static nib_status find_heights(const checker *c)
{
    nib_schema *s = c->s;
    for (size_t i = 0; i < s->count; i++)
        s->nodes[i].height = NIB_SCHEMA_ENDLESS;
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t pass = 0; pass < 2; pass++) {
            for (size_t i = 0; i < s->count; i++) {
                nib_schema_node *node = &s->nodes[i];
                if ((node->kind >= NIB_SCHEMA_ANY_OF) != (pass == 1))
                    continue;
                const uint8_t now = value_height(s, node);
                changed |= now != node->height;
                node->height = now;
            }
        }
    }
    const nib_schema_node *root = &s->nodes[s->root];
    if (s->nodes[root->members[0]].height >= NIB_SCHEMA_ENDLESS)
        return fail_endless(s, c->err);
    return NIB_OK;
}

static nib_status check_all(checker *c)
{
    nib_schema *s = c->s;
    for (size_t i = 0; i < c->count; i++)
        NIB_TRY(list_alternatives(c, (uint16_t)i));
    for (size_t i = 0; i < c->count; i++)
        if (s->nodes[i].one_of)
            NIB_TRY(check_one_of(c, &s->nodes[i]));
    return find_heights(c);
}

nib_status nib__schema_check(nib_schema *s, const nib_schema_definition *definitions, size_t count,
                             nib_err *err)
{
    const nib_allocator *a = s->allocator;
    checker c = {.s = s, .count = s->count, .err = err};
    NIB_TRY(resolve_references(s, definitions, count, err));
    c.marks = nib__calloc(a, c.count, sizeof *c.marks);
    c.stack = nib__calloc(a, c.count, sizeof *c.stack);
    c.found = nib__calloc(a, c.count, sizeof *c.found);
    const nib_status status = c.marks == NULL || c.stack == NULL || c.found == NULL
                                  ? nib__fail_memory(err, c.count * sizeof *c.marks, "the schema")
                                  : check_all(&c);
    nib__release(a, c.marks);
    nib__release(a, c.stack);
    nib__release(a, c.found);
    return status;
}

nib_status nib__schema_only_objects(nib_schema *s, nib_err *err)
{
    const nib_schema_node *value = &s->nodes[s->nodes[s->root].members[0]];
    const uint16_t *leaves = s->leaves + value->leaf;
    nib_schema_node node = {.kind = NIB_SCHEMA_ANY_OF, .height = NIB_SCHEMA_ENDLESS};
    uint16_t kept[NIB_SCHEMA_SAME_KIND]; /* fewer have the same kind */
    for (uint32_t i = 0; i < value->leaf_count; i++) {
        const nib_schema_node *leaf = &s->nodes[leaves[i]];
        if (leaf->kind != NIB_SCHEMA_OBJECT)
            continue;
        kept[node.leaf_count++] = leaves[i];
        node.height = leaf->height < node.height ? leaf->height : node.height;
    }
    if (node.leaf_count == value->leaf_count)
        return NIB_OK;
    if (node.leaf_count == 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: it has to be an object, because the arguments of a tool call are "
                         "one; set \"type\": \"object\"",
                         s->nodes[s->root].path);
    if (node.height >= NIB_SCHEMA_ENDLESS)
        return fail_endless(s, err);
    /* A new node, because references may lead to the old one. */
    uint16_t *member = nib__arena_take(&s->arena, 1, sizeof *member);
    if (member == NULL || !nib__reserve(s->allocator, (void **)&s->leaves, &s->leaf_capacity,
                                        s->leaf_count + node.leaf_count, sizeof *s->leaves))
        return nib__fail_memory(err, node.leaf_count * sizeof *s->leaves, "the schema");
    node.leaf = (uint32_t)s->leaf_count;
    memcpy(s->leaves + s->leaf_count, kept, node.leaf_count * sizeof *kept);
    s->leaf_count += node.leaf_count;
    NIB_TRY(nib__schema_add(s, &node, member, err));
    s->nodes[s->root].members = member;
    return NIB_OK;
}

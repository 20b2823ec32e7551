/* SPDX-License-Identifier: Apache-2.0
 *
 * The automaton of a constraint, byte by byte, and the masks of its states.
 *
 * The bytes alone determine the position in JSON's grammar (mode and sub), which all alternatives
 * of the schema share. Each alternative is an item. Items are grouped in levels, one for each open
 * object or array and one for an open scalar. The bits of `parents` say which items of the
 * enclosing level an item may be a value of. When a value ends, its level is removed, and the
 * enclosing level keeps the items that it can belong to. Numbers are in number_bounds.c.
 *
 * Every item can be completed within the limits: alternatives that cannot (a value too deep, a
 * number that no further digit brings within its bounds) are never added. So there is no dead end.
 *
 * A mask is made by walking the trie of tokens; a subtree is skipped as soon as its bytes are not
 * allowed. Inside a string, where almost all tokens are, it takes the mask of plain tokens as a
 * whole and walks only the tokens that close the string or escape. If the string may also be one of
 * some given texts, it also walks the few tokens that match their beginnings.
 */
#include "constraint_parts.h"

#include <stddef.h>

enum {
    /* In a string, after nib_content: */
    ESCAPE = NIB_CONTENT_BAD + 1, /* after a backslash */
    HEX,                          /* HEX + digits read of \uXXXX */
    LOW_SLASH = HEX + 4,          /* after a high surrogate: a second escape must follow */
    LOW_U,
    LOW_HEX,
    /* White space so far: */
    NO_SPACE = 0,
    ONE_SPACE,
    NEW_LINE,
    BLANKS_PER_LEVEL = 4,
};

static const nib_schema_node *node_of(const nib_constraint_state *s,
                                      const nib_constraint_item *item)
{
    return &s->constraint->schema.nodes[item->node];
}

static nib_constraint_item *top_of(nib_constraint_state *s, int *count)
{
    const int first = s->start[s->levels - 1];
    *count = s->used - first;
    return &s->items[first];
}

/* The number of open objects and arrays, if the top level is one of them. */
static int depth_of(const nib_constraint_state *s) { return s->levels - 1; }

static bool fits(const nib_constraint_state *s, uint16_t node)
{
    return node != NIB_SCHEMA_NONE &&
           depth_of(s) + s->constraint->schema.nodes[node].height <= NIB_CONSTRAINT_DEPTH;
}

/* ---- texts with a common prefix ---- */

void nib__texts_narrow(const nib_schema_text *texts, nib_constraint_item *item, uint8_t byte)
{
    const uint32_t k = item->size;
    uint16_t bounds[2];
    for (int side = 0; side < 2; side++) {
        uint16_t low = item->low, high = item->high;
        while (low < high) {
            const uint16_t middle = (uint16_t)((low + high) / 2);
            const nib_schema_text *text = &texts[middle];
            const int next = text->size <= k ? -1 : (uint8_t)text->at[k];
            if (next < byte + side)
                low = (uint16_t)(middle + 1);
            else
                high = middle;
        }
        bounds[side] = low;
    }
    item->low = bounds[0];
    item->high = bounds[1];
    item->size++;
}

static bool is_spelled(const nib_schema_text *texts, const nib_constraint_item *item)
{
    return item->low < item->high && texts[item->low].size == item->size;
}

/* ---- objects and arrays ---- */

static uint32_t next_required(const nib_schema_node *object, uint32_t at)
{
    return at < object->count ? object->properties[at].next_required : object->count;
}

static bool may_be_free(const nib_constraint_state *s, const nib_schema_node *object, uint32_t at)
{
    return next_required(object, at) == object->count && fits(s, object->other);
}

static bool may_be_property(const nib_constraint_state *s, const nib_schema_node *object,
                            uint32_t at, uint32_t property)
{
    return property >= at && property <= next_required(object, at) &&
           fits(s, object->properties[property].node);
}

static bool may_be_key(const nib_constraint_state *s, const nib_constraint_item *item)
{
    const nib_schema_node *object = node_of(s, item);
    const uint32_t last = next_required(object, item->at);
    for (uint32_t p = item->at; p <= last && p < object->count; p++)
        if (fits(s, object->properties[p].node))
            return true;
    return may_be_free(s, object, item->at);
}

/* The schema of the next value. */
static uint16_t value_of(const nib_schema_node *node, uint32_t at)
{
    if (node->kind == NIB_SCHEMA_OBJECT)
        return at < node->count ? node->properties[at].node : node->other;
    if (at >= node->max)
        return NIB_SCHEMA_NONE;
    return at < node->count ? node->members[at] : node->items;
}

static bool may_go_on(const nib_constraint_state *s, const nib_constraint_item *item)
{
    const nib_schema_node *node = node_of(s, item);
    return node->kind == NIB_SCHEMA_OBJECT ? may_be_key(s, item)
                                           : fits(s, value_of(node, item->at));
}

static bool may_close(const nib_constraint_state *s, const nib_constraint_item *item)
{
    const nib_schema_node *node = node_of(s, item);
    return node->kind == NIB_SCHEMA_OBJECT ? next_required(node, item->at) == node->count
                                           : item->at >= node->min;
}

/* Advances past a value. Equivalent positions get the same `at`, so that equal states have equal
 * bytes. */
static void advance(const nib_schema_node *node, nib_constraint_item *item)
{
    uint32_t most = node->count;
    if (node->kind == NIB_SCHEMA_ARRAY)
        most = node->max != UINT32_MAX   ? node->max
               : node->min > node->count ? node->min
                                         : node->count;
    if (item->at < most)
        item->at++;
    item->low = item->high = 0;
    item->size = 0;
}

/* ---- items of scalars: advancing by a byte ---- */

int64_t nib__constraint_room(const nib_constraint_state *s, const nib_constraint_item *item)
{
    const nib_schema_node *node = node_of(s, item);
    if (s->key)
        return item->low == item->high ? (int64_t)UINT32_MAX : -1;
    if (node->kind != NIB_SCHEMA_STRING || node->format != NIB_FORMAT_NONE)
        return -1;
    return node->max == UINT32_MAX ? UINT32_MAX : node->max - item->at;
}

bool nib__constraint_settled(const nib_constraint_state *s, const nib_constraint_item *item)
{
    const nib_schema_node *node = node_of(s, item);
    return nib__constraint_room(s, item) == UINT32_MAX && (s->key || item->at >= node->min);
}

static bool step_key_item(const nib_constraint_state *s, nib_constraint_item *item, uint8_t byte,
                          int was)
{
    const nib_schema_node *object = node_of(s, item);
    const bool free = may_be_free(s, object, item->at);
    if (item->low < item->high) {
        nib__texts_narrow(object->texts, item, byte);
        for (uint16_t i = item->low; i < item->high; i++)
            if (free || may_be_property(s, object, item->at, object->texts[i].index))
                return true;
        item->low = item->high = 0;
        item->size = 0;
        /* Inside \u it could still become a character that has another spelling. */
        if (was >= HEX)
            return false;
    }
    /* A name must have only one spelling, so that it differs from a property if its bytes do. */
    return free && !(was == ESCAPE && (byte == 'u' || byte == '/'));
}

static bool step_string_item(const nib_constraint_state *s, nib_constraint_item *item, uint8_t byte,
                             int was)
{
    const nib_schema_node *node = node_of(s, item);
    if (s->key)
        return step_key_item(s, item, byte, was);
    if (node->kind == NIB_SCHEMA_LITERALS) {
        nib__texts_narrow(node->texts, item, byte);
        return item->low < item->high;
    }
    if (node->format != NIB_FORMAT_NONE)
        return nib__format_step((nib_schema_format)node->format, item, byte);
    if (was != NIB_CONTENT_START) /* in the middle of a character */
        return true;
    if (item->at >= node->max)
        return false;
    if (node->max != UINT32_MAX || item->at < node->min)
        item->at++;
    return true;
}

static bool is_complete(const nib_constraint_state *s, const nib_constraint_item *item)
{
    const nib_schema_node *node = node_of(s, item);
    switch (node->kind) {
    case NIB_SCHEMA_LITERALS: return is_spelled(node->texts, item);
    case NIB_SCHEMA_STRING:
        return node->format == NIB_FORMAT_NONE
                   ? item->at >= node->min
                   : nib__format_complete((nib_schema_format)node->format, item);
    case NIB_SCHEMA_NUMBER: return !node->bounded || nib__number_within(s, node, true);
    default: return may_close(s, item);
    }
}

/* ---- levels ---- */

typedef bool keep_item(const nib_constraint_state *s, const nib_constraint_item *item);

/* Keeps the items of the top level that pass; false: none is left. */
static bool keep_items(nib_constraint_state *s, keep_item *passes)
{
    int count, kept = 0;
    nib_constraint_item *items = top_of(s, &count);
    for (int i = 0; i < count; i++)
        if (passes(s, &items[i]))
            items[kept++] = items[i];
    s->used = (uint8_t)(s->used - (count - kept));
    return kept != 0;
}

/* Ends the value of the top level, for the items that are complete; false: none is left. */
static bool end_value(nib_constraint_state *s)
{
    int count, kept = 0;
    unsigned parents = 0;
    const nib_constraint_item *ended = top_of(s, &count);
    for (int i = 0; i < count; i++)
        if (is_complete(s, &ended[i]))
            parents |= ended[i].parents;
    s->used = (uint8_t)(s->used - count);
    s->start[--s->levels] = 0;
    nib_constraint_item *items = top_of(s, &count);
    for (int i = 0; i < count; i++) {
        if (!(parents >> i & 1))
            continue;
        items[kept] = items[i];
        advance(node_of(s, &items[kept]), &items[kept]);
        kept++;
    }
    s->used = (uint8_t)(s->used - (count - kept));
    s->mode = s->levels == 1 ? NIB_AT_END : NIB_AFTER;
    s->sub = s->digits = s->negative = s->spaces = 0;
    s->magnitude = 0;
    s->unit = s->blanks = 0;
    return kept != 0;
}

static nib_schema_kind kind_of(uint8_t byte)
{
    switch (byte) {
    case '{': return NIB_SCHEMA_OBJECT;
    case '[': return NIB_SCHEMA_ARRAY;
    case '"': return NIB_SCHEMA_STRING;
    case '-': return NIB_SCHEMA_NUMBER;
    default: return byte >= '0' && byte <= '9' ? NIB_SCHEMA_NUMBER : NIB_SCHEMA_LITERALS;
    }
}

/* Adds an alternative to the new level if it can begin with the byte. No two items of a level have
 * the same node. */
static void add_item(nib_constraint_state *s, uint16_t leaf, int parent, uint8_t byte, int room)
{
    nib_constraint_item item = {.node = leaf, .parents = (uint16_t)(1u << parent)};
    const nib_schema_node *node = &s->constraint->schema.nodes[leaf];
    int count;
    nib_constraint_item *items = top_of(s, &count);
    if (node->kind == NIB_SCHEMA_LITERALS) {
        item.high = node->count;
        nib__texts_narrow(node->texts, &item, byte);
        if (item.low == item.high)
            return;
    } else if (node->kind != kind_of(byte) ||
               (node->kind == NIB_SCHEMA_NUMBER && !nib__number_can_continue(s, node))) {
        return;
    }
    for (int i = 0; i < count; i++) {
        if (items[i].node == leaf) {
            items[i].parents |= item.parents;
            return;
        }
    }
    if (count < room) {
        items[count] = item;
        s->used++;
    }
}

static void begin_number(nib_constraint_state *s, uint8_t byte)
{
    s->negative = byte == '-';
    s->sub = byte == '-' ? NIB_NUMBER_MINUS : byte == '0' ? NIB_NUMBER_ZERO : NIB_NUMBER_WHOLE;
    s->digits = byte != '-';
    s->magnitude = byte == '-' ? 0 : (uint64_t)(byte - '0');
}

/* The first byte of a value, when every item of the top level expects one. */
static bool begin_value(nib_constraint_state *s, uint8_t byte)
{
    static const uint8_t modes[] = {NIB_AT_KEY_OR_END, NIB_AT_ITEM_OR_END, NIB_IN_STRING,
                                    NIB_IN_NUMBER, NIB_IN_WORD};
    const nib_schema *schema = &s->constraint->schema;
    const nib_schema_kind kind = kind_of(byte);
    const int depth = depth_of(s), first = s->start[s->levels - 1], end = s->used;
    int room = NIB_CONSTRAINT_ITEMS - end - (NIB_CONSTRAINT_LEVELS - 1 - s->levels);
    if (room > NIB_SCHEMA_SAME_KIND)
        room = NIB_SCHEMA_SAME_KIND;
    if (s->levels == NIB_CONSTRAINT_LEVELS)
        return false;
    if (kind == NIB_SCHEMA_NUMBER)
        begin_number(s, byte);
    s->start[s->levels++] = (uint16_t)end;
    for (int i = first; i < end; i++) {
        const nib_schema_node *outer = node_of(s, &s->items[i]);
        const uint16_t value = value_of(outer, s->items[i].at);
        if (value == NIB_SCHEMA_NONE)
            continue;
        const nib_schema_node *node = &schema->nodes[value];
        for (uint32_t l = 0; l < node->leaf_count; l++) {
            const uint16_t leaf = schema->leaves[node->leaf + l];
            if (depth + schema->nodes[leaf].height <= NIB_CONSTRAINT_DEPTH)
                add_item(s, leaf, i - first, byte, room);
        }
    }
    s->mode = modes[kind];
    s->spaces = 0;
    s->blanks = 0;
    s->key = 0;
    if (kind == NIB_SCHEMA_STRING)
        s->sub = NIB_CONTENT_START;
    return s->used > end;
}

/* ---- advancing by a byte ---- */

static bool begin_key(nib_constraint_state *s)
{
    int count;
    if (!keep_items(s, may_be_key))
        return false;
    nib_constraint_item *items = top_of(s, &count);
    for (int i = 0; i < count; i++)
        items[i].high = node_of(s, &items[i])->count;
    s->mode = NIB_IN_STRING;
    s->sub = NIB_CONTENT_START;
    s->key = 1;
    s->spaces = 0;
    s->blanks = 0;
    return true;
}

/* The closing quote of a key: finds its property. */
static bool end_key(nib_constraint_state *s)
{
    int count, kept = 0;
    nib_constraint_item *items = top_of(s, &count);
    for (int i = 0; i < count; i++) {
        const nib_schema_node *object = node_of(s, &items[i]);
        nib_constraint_item item = items[i];
        if (is_spelled(object->texts, &item)) {
            const uint32_t property = object->texts[item.low].index;
            if (!may_be_property(s, object, item.at, property))
                continue;
            item.at = property;
        } else if (may_be_free(s, object, item.at)) {
            item.at = object->count;
        } else {
            continue;
        }
        item.low = item.high = 0;
        item.size = 0;
        items[kept++] = item;
    }
    s->used = (uint8_t)(s->used - (count - kept));
    s->mode = NIB_AT_COLON;
    s->key = 0;
    return kept != 0;
}

/* Reads a digit of \uXXXX; false: not a digit, or a misplaced surrogate. */
static bool step_hex(nib_constraint_state *s, uint8_t byte)
{
    const bool low = s->sub >= LOW_HEX;
    const uint8_t letter = byte | 0x20;
    const bool digit = byte >= '0' && byte <= '9';
    if (!digit && (letter < 'a' || letter > 'f'))
        return false;
    const unsigned value = digit ? byte - (unsigned)'0' : letter - (unsigned)'a' + 10;
    s->unit = (uint16_t)((unsigned)s->unit << 4 | value);
    const int count = s->sub - (low ? LOW_HEX : HEX) + 1;
    if (low && ((count == 1 && s->unit != 0xd) || (count == 2 && s->unit < 0xdc)))
        return false;
    if (!low && count == 2 && s->unit >= 0xdc && s->unit <= 0xdf)
        return false;
    s->sub++;
    if (count == 4) {
        s->sub = !low && s->unit >= 0xd800 && s->unit <= 0xdbff ? LOW_SLASH : NIB_CONTENT_START;
        s->unit = 0;
    }
    return true;
}

/* Advances in JSON's grammar by a byte that does not close the string. */
static bool step_string_grammar(nib_constraint_state *s, uint8_t byte)
{
    if (s->sub <= NIB_CONTENT_BAD) {
        if (byte == '\\' && s->sub == NIB_CONTENT_START) {
            s->sub = ESCAPE;
            return true;
        }
        s->sub = (uint8_t)nib__content_step((nib_content)s->sub, byte);
        return s->sub != NIB_CONTENT_BAD;
    }
    if (s->sub == ESCAPE) {
        s->sub = byte == 'u' ? HEX : NIB_CONTENT_START;
        return byte != 0 && strchr("\"\\/bfnrtu", byte) != NULL;
    }
    if (s->sub == LOW_SLASH || s->sub == LOW_U)
        return byte == (s->sub++ == LOW_SLASH ? '\\' : 'u');
    return step_hex(s, byte);
}

static bool step_string(nib_constraint_state *s, uint8_t byte)
{
    const int was = s->sub;
    const bool closes = byte == '"' && was == NIB_CONTENT_START;
    int count, kept = 0;
    if (closes && s->key)
        return end_key(s);
    if (!closes && !step_string_grammar(s, byte))
        return false;
    nib_constraint_item *items = top_of(s, &count);
    for (int i = 0; i < count; i++) {
        const bool literal = node_of(s, &items[i])->kind == NIB_SCHEMA_LITERALS;
        if ((closes && !literal) || step_string_item(s, &items[i], byte, was))
            items[kept++] = items[i];
    }
    s->used = (uint8_t)(s->used - (count - kept));
    return kept != 0 && (!closes || (keep_items(s, is_complete) && end_value(s)));
}

static bool step_number_item(const nib_constraint_state *s, nib_constraint_item *item, uint8_t byte)
{
    const nib_schema_node *node = node_of(s, item);
    if (node->kind == NIB_SCHEMA_NUMBER)
        return nib__number_can_continue(s, node);
    nib__texts_narrow(node->texts, item, byte);
    return item->low < item->high;
}

static bool step_number(nib_constraint_state *s, uint8_t byte)
{
    const int sub = nib__number_next(s, byte);
    int count, kept = 0;
    if (sub < 0)
        return nib__number_is_whole(s) && keep_items(s, is_complete) && end_value(s) &&
               nib__constraint_step(s, byte);
    if (byte >= '0' && byte <= '9')
        nib__number_count(s, sub, byte);
    else
        s->digits = 0;
    s->sub = (uint8_t)sub;
    nib_constraint_item *items = top_of(s, &count);
    for (int i = 0; i < count; i++)
        if (step_number_item(s, &items[i], byte))
            items[kept++] = items[i];
    s->used = (uint8_t)(s->used - (count - kept));
    return kept != 0;
}

/* true, false or null; none of them is a prefix of another. */
static bool step_word(nib_constraint_state *s, uint8_t byte)
{
    int count, kept = 0;
    nib_constraint_item *items = top_of(s, &count);
    for (int i = 0; i < count; i++) {
        nib__texts_narrow(node_of(s, &items[i])->texts, &items[i], byte);
        if (items[i].low < items[i].high)
            items[kept++] = items[i];
    }
    s->used = (uint8_t)(s->used - (count - kept));
    if (kept == 0)
        return false;
    return !is_spelled(node_of(s, items)->texts, items) || end_value(s);
}

/* One space, or a line break and its indentation. */
static bool step_space(nib_constraint_state *s, uint8_t byte)
{
    if (s->mode == NIB_AT_COLON)
        return false;
    if (s->constraint->calls != NULL && s->levels == 1)
        return false; /* the text around arguments has its own white space */
    if (s->mode == NIB_AFTER && s->spaces == NO_SPACE && !keep_items(s, may_close))
        return false; /* only the end of the object or array may follow */
    if (s->spaces == NEW_LINE)
        return byte != '\n' && ++s->blanks <= BLANKS_PER_LEVEL * depth_of(s);
    if (s->spaces != NO_SPACE || byte == '\t' || (byte == '\n' && s->mode == NIB_AT_MEMBER))
        return false;
    s->spaces = byte == ' ' ? ONE_SPACE : NEW_LINE;
    return true;
}

/* A comma, or the end of an object or array. */
static bool step_after_value(nib_constraint_state *s, uint8_t byte)
{
    int count;
    const bool object = node_of(s, top_of(s, &count))->kind == NIB_SCHEMA_OBJECT;
    if (byte == ',' && s->mode == NIB_AFTER) {
        if (s->spaces != NO_SPACE || !keep_items(s, may_go_on))
            return false;
        s->mode = object ? NIB_AT_KEY : NIB_AT_VALUE;
        return true;
    }
    return byte == (object ? '}' : ']') && keep_items(s, may_close) && end_value(s);
}

bool nib__constraint_step(nib_constraint_state *s, uint8_t byte)
{
    if (s->mode == NIB_IN_STRING)
        return step_string(s, byte);
    if (s->mode == NIB_IN_NUMBER)
        return step_number(s, byte);
    if (s->mode == NIB_IN_WORD)
        return step_word(s, byte);
    if (s->mode == NIB_IN_CALLS || s->mode == NIB_AT_END)
        return s->constraint->calls != NULL && nib__calls_step(s, byte);
    if (byte == ' ' || byte == '\n' || byte == '\t')
        return step_space(s, byte);
    switch (s->mode) {
    case NIB_AT_ITEM_OR_END:
        if (byte == ']')
            return step_after_value(s, byte);
        return begin_value(s, byte);
    case NIB_AT_VALUE:
    case NIB_AT_MEMBER: return begin_value(s, byte);
    case NIB_AT_KEY_OR_END:
        if (byte == '}')
            return step_after_value(s, byte);
        return byte == '"' && begin_key(s);
    case NIB_AT_KEY: return byte == '"' && begin_key(s);
    case NIB_AT_COLON: s->mode = NIB_AT_MEMBER; return byte == ':';
    case NIB_AFTER: return step_after_value(s, byte);
    default: return false;
    }
}

/* ---- a sequence ---- */

void nib__constraint_start(nib_constraint_state *state, const nib_constraint *c)
{
    memset(state, 0, sizeof *state);
    state->constraint = c;
    state->levels = state->used = 1;
    state->mode = NIB_AT_VALUE;
    state->items[0].node = c->schema.root;
    if (c->schema.nodes == NULL) /* the outer constraint of calls */
        nib__calls_start(state);
}

void nib__constraint_copy(nib_constraint_state *to, const nib_constraint_state *from)
{
    memcpy(to, from, offsetof(nib_constraint_state, items) + from->used * sizeof from->items[0]);
}

bool nib__constraint_accept(nib_constraint_state *state, int32_t id)
{
    size_t size;
    const uint8_t *bytes = nib__token_spelling(state->constraint->trie, id, &size);
    nib_constraint_state next;
    if (size == 0)
        return state->constraint->calls != NULL && nib__calls_accept_special(state, id);
    nib__constraint_copy(&next, state);
    for (size_t i = 0; i < size; i++)
        if (!nib__constraint_step(&next, bytes[i]))
            return false;
    nib__constraint_copy(state, &next);
    return true;
}

bool nib__constraint_complete(const nib_constraint_state *state)
{
    if (state->constraint->calls != NULL)
        return nib__calls_complete(state);
    if (state->mode == NIB_AT_END)
        return true;
    if (state->mode != NIB_IN_NUMBER || state->levels != 2 || !nib__number_is_whole(state))
        return false;
    for (int i = state->start[1]; i < state->used; i++)
        if (is_complete(state, &state->items[i]))
            return true;
    return false;
}

bool nib__constraint_ended(const nib_constraint_state *state)
{
    /* A number has not ended while another byte can continue it. */
    bool longer = false;
    if (state->constraint->calls != NULL)
        return nib__calls_ended(state);
    if (state->mode == NIB_AT_END || !nib__constraint_complete(state))
        return state->mode == NIB_AT_END;
    for (const char *c = "0123456789.eE"; *c != 0 && !longer; c++) {
        nib_constraint_state next;
        nib__constraint_copy(&next, state);
        longer = nib__constraint_step(&next, (uint8_t)*c);
    }
    return !longer;
}

/* ---- opening and closing ---- */

/* If every needed byte has a token of its own, any required text can be written. */
static nib_status check_spelling(const nib_constraint *c, const char *name, nib_err *err)
{
    for (int byte = 0x20; byte < 0x100; byte++) {
        const bool needed = byte < 0x7f || c->schema.literal_bytes[byte];
        if (needed && !c->trie->spelled[byte])
            return nib__fail(err, NIB_UNSUPPORTED,
                             "%s: the tokenizer has no token for the single byte 0x%02x, so JSON "
                             "cannot be enforced with it",
                             name, (unsigned)byte);
    }
    return NIB_OK;
}

nib_status nib__constraint_open(nib_constraint **out, const nib_token_trie *trie,
                                const nib_named_text *schema, const nib_allocator *a, nib_err *err)
{
    nib_constraint *c = nib__calloc(a, 1, sizeof *c);
    if (c == NULL)
        return nib__fail_memory(err, sizeof *c, "a constraint");
    c->allocator = *a;
    c->trie = trie;
    nib_status status = nib__schema_read(&c->schema, schema, &c->allocator, err);
    if (status == NIB_OK)
        status = check_spelling(c, schema->name, err);
    if (status != NIB_OK)
        nib__constraint_close(c);
    else
        *out = c;
    return status;
}

void nib__constraint_close(nib_constraint *c)
{
    if (c == NULL)
        return;
    const nib_allocator a = c->allocator;
    nib__calls_close(c);
    nib__schema_close(&c->schema);
    nib__release(&a, c);
}

/* ---- masks ---- */

enum { CACHED_MASKS = 8 }; /* for strings at several depths, and the states around them */

typedef struct cached_mask {
    nib_constraint_state state;
    uint32_t *mask; /* [words] */
    bool set;
} cached_mask;

struct nib_masks {
    nib_allocator allocator;
    const nib_constraint *constraint;
    nib_constraint_state *states; /* [longest + 2] by depth in the trie */
    nib_constraint_state free;    /* with only the items of a string that accept any characters */
    uint32_t *words;              /* [CACHED_MASKS][words] */
    cached_mask cache[CACHED_MASKS];
    size_t next; /* the entry to replace */
};

nib_status nib__masks_open(nib_masks **out, const nib_constraint *c, const nib_allocator *a,
                           nib_err *err)
{
    const nib_token_trie *trie = c->trie;
    const size_t states = (size_t)trie->longest + 2;
    nib_masks *m = nib__calloc(a, 1, sizeof *m);
    if (m == NULL)
        return nib__fail_memory(err, sizeof *m, "masks of tokens");
    m->allocator = *a;
    m->constraint = c;
    m->states = nib__calloc(a, states, sizeof *m->states);
    m->words = nib__calloc(a, trie->words * CACHED_MASKS, sizeof *m->words);
    if (m->states == NULL || m->words == NULL) {
        nib__masks_close(m);
        return nib__fail_memory(err, states * sizeof *m->states, "masks of tokens");
    }
    for (size_t i = 0; i < CACHED_MASKS; i++)
        m->cache[i].mask = m->words + i * trie->words;
    *out = m;
    return NIB_OK;
}

void nib__masks_close(nib_masks *masks)
{
    if (masks == NULL)
        return;
    const nib_allocator a = masks->allocator;
    nib__release(&a, masks->states);
    nib__release(&a, masks->words);
    nib__release(&a, masks);
}

/* The most characters that some item accepts, whatever they are; -1: none does. */
static int64_t room_of(const nib_constraint_state *s)
{
    int64_t most = -1;
    for (int i = s->start[s->levels - 1]; i < s->used; i++)
        most = nib__max(most, nib__constraint_room(s, &s->items[i]));
    return most;
}

static void allow(const int32_t *ids, size_t from, size_t to, uint32_t *allowed)
{
    for (size_t i = from; i < to; i++)
        allowed[ids[i] / 32] |= UINT32_C(1) << (ids[i] % 32);
}

static void forbid(const int32_t *ids, size_t from, size_t to, uint32_t *allowed)
{
    for (size_t i = from; i < to; i++)
        allowed[ids[i] / 32] &= ~(UINT32_C(1) << (ids[i] % 32));
}

/* Allows the tokens below node `group`; m->states[its depth] is its state. */
static void walk(nib_masks *m, const nib_token_tree *tree, size_t group, uint32_t *allowed)
{
    const nib_token_node *nodes = tree->nodes;
    for (size_t i = group + 1; i < nodes[group].skip;) {
        const nib_token_node *node = &nodes[i];
        nib_constraint_state *s = &m->states[node->depth];
        nib__constraint_copy(s, s - 1);
        if (!nib__constraint_step(s, node->byte)) {
            i = node->skip;
        } else if (s->mode == NIB_IN_STRING && s->sub < NIB_CONTENT_BAD &&
                   node->plain >> s->sub & 1 && room_of(s) >= node->chars) {
            allow(tree->ids, node->first, nodes[node->skip].first, allowed);
            i = node->skip;
        } else {
            allow(tree->ids, node->first, nodes[i + 1].first, allowed);
            i++;
        }
    }
}

/* Between two characters of a string in state m->free, which accepts any `room` characters: allows
 * the plain tokens and those that end the string. */
static void allow_in_content(nib_masks *m, int64_t room, uint32_t *allowed)
{
    const nib_token_trie *trie = m->constraint->trie;
    const nib_token_tree *ends = &trie->counted;
    const nib_constraint_state *state = &m->free;
    bool settled = true;
    for (int i = state->start[state->levels - 1]; i < state->used; i++)
        settled &= nib__constraint_settled(state, &state->items[i]);
    if (room >= trie->plain_longest)
        memcpy(allowed, trie->plain, trie->words * sizeof *allowed);
    else
        allow(trie->plain_ids, 0, trie->plain_from[room + 1], allowed);
    if (settled) {
        nib__constraint_copy(&m->states[1], state);
        if (trie->ends.count != 0)
            walk(m, &trie->ends, 0, allowed);
        return;
    }
    for (size_t group = 0; group < ends->count; group = ends->nodes[group].skip) {
        nib_constraint_state *s = &m->states[1];
        bool possible = true;
        nib__constraint_copy(s, state);
        for (int n = 0; n < ends->nodes[group].byte && possible; n++)
            possible = nib__constraint_step(s, 'a');
        if (possible)
            walk(m, ends, group, allowed);
    }
}

/* Keeps the items of the open string that accept any characters; true: all do. */
static bool keep_free(nib_constraint_state *s)
{
    const int first = s->start[s->levels - 1];
    int kept = first;
    for (int i = first; i < s->used; i++)
        if (nib__constraint_room(s, &s->items[i]) >= 0)
            s->items[kept++] = s->items[i];
    const bool all = kept == s->used;
    s->used = (uint8_t)kept;
    return all;
}

static bool all_free(const nib_constraint_state *s)
{
    for (int i = s->start[s->levels - 1]; i < s->used; i++)
        if (nib__constraint_room(s, &s->items[i]) < 0)
            return false;
    return true;
}

/* For the string of states[1]: `allowed` has the tokens that the free items accept alone. Adds
 * those that the other items accept, by checking every token along their texts; elsewhere these
 * items are gone. */
static void allow_beside_free(nib_masks *m, uint32_t *allowed)
{
    const nib_token_tree *tree = &m->constraint->trie->all;
    const nib_token_node *nodes = tree->nodes;
    for (size_t i = 1; i < nodes[0].skip;) {
        const nib_token_node *node = &nodes[i];
        nib_constraint_state *s = &m->states[node->depth];
        nib__constraint_copy(s, s - 1);
        const bool may = nib__constraint_step(s, node->byte), inside = s->mode == NIB_IN_STRING;
        if (may && inside && all_free(s)) {
            i = node->skip;
            continue;
        }
        const bool goes_on = may && inside;
        forbid(tree->ids, node->first, nodes[goes_on ? i + 1 : node->skip].first, allowed);
        if (may)
            allow(tree->ids, node->first, nodes[i + 1].first, allowed);
        if (may && !inside) /* the string has ended */
            walk(m, tree, i, allowed);
        i = goes_on ? i + 1 : node->skip;
    }
}

static void make_mask(nib_masks *m, const nib_constraint_state *state, uint32_t *allowed)
{
    const nib_token_trie *trie = m->constraint->trie;
    memset(allowed, 0, trie->words * sizeof *allowed);
    if (state->constraint->calls != NULL && !nib__calls_mask(state, allowed))
        return;
    if ((state->mode == NIB_AT_END && state->constraint->calls == NULL) || trie->all.count == 0)
        return;
    const bool content = state->mode == NIB_IN_STRING && state->sub == NIB_CONTENT_START;
    const int64_t room = content ? room_of(state) : -1;
    if (room < 0) {
        nib__constraint_copy(&m->states[1], state);
        walk(m, &trie->all, 0, allowed);
        return;
    }
    nib__constraint_copy(&m->free, state);
    const bool all = keep_free(&m->free);
    allow_in_content(m, room, allowed);
    if (!all) {
        nib__constraint_copy(&m->states[1], state);
        allow_beside_free(m, allowed);
    }
}

static bool states_equal(const nib_constraint_state *a, const nib_constraint_state *b)
{
    return memcmp(a, b, offsetof(nib_constraint_state, items)) == 0 &&
           memcmp(a->items, b->items, a->used * sizeof a->items[0]) == 0;
}

void nib__constraint_mask(nib_masks *masks, const nib_constraint_state *state, uint32_t *allowed)
{
    const size_t bytes = masks->constraint->trie->words * sizeof *allowed;
    for (size_t i = 0; i < CACHED_MASKS; i++) {
        if (masks->cache[i].set && states_equal(&masks->cache[i].state, state)) {
            memcpy(allowed, masks->cache[i].mask, bytes);
            return;
        }
    }
    cached_mask *entry = &masks->cache[masks->next++ % CACHED_MASKS];
    make_mask(masks, state, allowed);
    nib__constraint_copy(&entry->state, state);
    memcpy(entry->mask, allowed, bytes);
    entry->set = true;
}

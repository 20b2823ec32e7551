/* SPDX-License-Identifier: Apache-2.0
 *
 * The automaton of a constraint, byte by byte. The bytes alone decide what JSON's grammar is in the
 * middle of (mode and sub), the same for all alternatives that a schema leaves open; what each of
 * them makes of the bytes is an item. Items lie in levels, one for each open object or array and
 * one for an open scalar, and an item knows by a bit each which items of the level outside it may
 * be a value of. A value that ends gives back its level and keeps of the one outside what it was
 * meant by.
 * What a number may still become is number_bounds.c.
 *
 * Every item can always be completed within the limits: what cannot (a value too deep, a number
 * whose bounds no further digit reaches) is not taken up. So there is no dead end.
 */
#include "constraint_parts.h"

#include <stddef.h>

enum {
    /* In a string, after nib_content: */
    ESCAPE = NIB_CONTENT_BAD + 1, /* after a backslash */
    HEX,                          /* HEX + digits read of \uXXXX */
    LOW_SLASH = HEX + 4,          /* half of a pair: its second escape must come */
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

/* Open objects and arrays while the top level is one of them. */
static int depth_of(const nib_constraint_state *s) { return s->levels - 1; }

static bool fits(const nib_constraint_state *s, uint16_t node)
{
    return node != NIB_SCHEMA_NONE &&
           depth_of(s) + s->constraint->schema.nodes[node].height <= NIB_CONSTRAINT_DEPTH;
}

/* ---- texts that begin alike ---- */

void nib__texts_narrow(const nib_schema_text *texts, nib_constraint_item *item, uint8_t byte)
{
    const uint32_t k = item->size;
    uint16_t bounds[2];
    for (int side = 0; side < 2; side++) {
        uint16_t low = item->low, high = item->high;
        while (low < high) {
            const uint16_t middle = (uint16_t)((low + high) / 2);
            const nib_schema_text *text = &texts[middle];
            const int here = text->size <= k ? -1 : (uint8_t)text->at[k];
            if (here < byte + side)
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

/* The schema of the value that comes. */
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

/* Past a value. Places that mean the same are one, so that equal states have equal bytes. */
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

/* ---- scalars: one byte more for an item ---- */

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

static bool key_step(const nib_constraint_state *s, nib_constraint_item *item, uint8_t byte,
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
        /* Inside \u it could yet become a character that has another spelling. */
        if (was >= HEX)
            return false;
    }
    /* So that a name has one spelling, and differs from a property's if its bytes do. */
    return free && !(was == ESCAPE && (byte == 'u' || byte == '/'));
}

static bool string_step(const nib_constraint_state *s, nib_constraint_item *item, uint8_t byte,
                        int was)
{
    const nib_schema_node *node = node_of(s, item);
    if (s->key)
        return key_step(s, item, byte, was);
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

/* Keeps the items of the top level that pass; false: none does. */
static bool keep(nib_constraint_state *s, keep_item *passes)
{
    int count, kept = 0;
    nib_constraint_item *items = top_of(s, &count);
    for (int i = 0; i < count; i++)
        if (passes(s, &items[i]))
            items[kept++] = items[i];
    s->used = (uint8_t)(s->used - (count - kept));
    return kept != 0;
}

/* Ends the value of the top level, of the items that are complete. */
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

/* Puts the value into the new level, unless it cannot begin so. No two items of a level are of one
 * node. */
static void put_item(nib_constraint_state *s, uint16_t leaf, int parent, uint8_t byte, int room)
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
               (node->kind == NIB_SCHEMA_NUMBER && !nib__number_goes_on(s, node))) {
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

/* The first byte of a value, which every item of the top level expects. */
static bool begin_value(nib_constraint_state *s, uint8_t byte)
{
    static const uint8_t modes[] = {NIB_AT_KEY_OR_END, NIB_AT_ITEM_OR_END, NIB_IN_STRING,
                                    NIB_IN_NUMBER, NIB_IN_WORD};
    const nib_schema *schema = &s->constraint->schema;
    const nib_schema_kind kind = kind_of(byte);
    const int depth = depth_of(s), first = s->start[s->levels - 1], end = s->used;
    int room = NIB_CONSTRAINT_ITEMS - end - (NIB_CONSTRAINT_LEVELS - 1 - s->levels);
    if (room > NIB_SCHEMA_ABREAST)
        room = NIB_SCHEMA_ABREAST;
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
                put_item(s, leaf, i - first, byte, room);
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

/* ---- what a byte does ---- */

static bool begin_key(nib_constraint_state *s)
{
    int count;
    if (!keep(s, may_be_key))
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

/* The closing quote of a key: which property it is. */
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

/* Reads a digit of \uXXXX; false: it is none, or half of a pair in the wrong place. */
static bool hex_step(nib_constraint_state *s, uint8_t byte)
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

/* What of JSON's grammar comes after the byte, which does not close the string. */
static bool step_in_string(nib_constraint_state *s, uint8_t byte)
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
    return hex_step(s, byte);
}

static bool in_string(nib_constraint_state *s, uint8_t byte)
{
    const int was = s->sub;
    const bool closes = byte == '"' && was == NIB_CONTENT_START;
    int count, kept = 0;
    if (closes && s->key)
        return end_key(s);
    if (!closes && !step_in_string(s, byte))
        return false;
    nib_constraint_item *items = top_of(s, &count);
    for (int i = 0; i < count; i++) {
        const bool literal = node_of(s, &items[i])->kind == NIB_SCHEMA_LITERALS;
        if ((closes && !literal) || string_step(s, &items[i], byte, was))
            items[kept++] = items[i];
    }
    s->used = (uint8_t)(s->used - (count - kept));
    return kept != 0 && (!closes || (keep(s, is_complete) && end_value(s)));
}

static bool number_item(const nib_constraint_state *s, nib_constraint_item *item, uint8_t byte)
{
    const nib_schema_node *node = node_of(s, item);
    if (node->kind == NIB_SCHEMA_NUMBER)
        return nib__number_goes_on(s, node);
    nib__texts_narrow(node->texts, item, byte);
    return item->low < item->high;
}

static bool in_number(nib_constraint_state *s, uint8_t byte)
{
    const int sub = nib__number_next(s, byte);
    int count, kept = 0;
    if (sub < 0)
        return nib__number_is_whole(s) && keep(s, is_complete) && end_value(s) &&
               nib__constraint_step(s, byte);
    if (byte >= '0' && byte <= '9')
        nib__number_count(s, sub, byte);
    else
        s->digits = 0;
    s->sub = (uint8_t)sub;
    nib_constraint_item *items = top_of(s, &count);
    for (int i = 0; i < count; i++)
        if (number_item(s, &items[i], byte))
            items[kept++] = items[i];
    s->used = (uint8_t)(s->used - (count - kept));
    return kept != 0;
}

/* true, false or null: no one of them begins another. */
static bool in_word(nib_constraint_state *s, uint8_t byte)
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
static bool in_space(nib_constraint_state *s, uint8_t byte)
{
    if (s->mode == NIB_AT_COLON)
        return false;
    if (s->constraint->calls != NULL && s->levels == 1)
        return false; /* what is around arguments has its own */
    if (s->mode == NIB_AFTER && s->spaces == NO_SPACE && !keep(s, may_close))
        return false; /* only the end may follow */
    if (s->spaces == NEW_LINE)
        return byte != '\n' && ++s->blanks <= BLANKS_PER_LEVEL * depth_of(s);
    if (s->spaces != NO_SPACE || byte == '\t' || (byte == '\n' && s->mode == NIB_AT_MEMBER))
        return false;
    s->spaces = byte == ' ' ? ONE_SPACE : NEW_LINE;
    return true;
}

/* A comma, or the end of an object or array. */
static bool after_value(nib_constraint_state *s, uint8_t byte)
{
    int count;
    const bool object = node_of(s, top_of(s, &count))->kind == NIB_SCHEMA_OBJECT;
    if (byte == ',' && s->mode == NIB_AFTER) {
        if (s->spaces != NO_SPACE || !keep(s, may_go_on))
            return false;
        s->mode = object ? NIB_AT_KEY : NIB_AT_VALUE;
        return true;
    }
    return byte == (object ? '}' : ']') && keep(s, may_close) && end_value(s);
}

bool nib__constraint_step(nib_constraint_state *s, uint8_t byte)
{
    if (s->mode == NIB_IN_STRING)
        return in_string(s, byte);
    if (s->mode == NIB_IN_NUMBER)
        return in_number(s, byte);
    if (s->mode == NIB_IN_WORD)
        return in_word(s, byte);
    if (s->mode == NIB_IN_CALLS || s->mode == NIB_AT_END)
        return s->constraint->calls != NULL && nib__calls_step(s, byte);
    if (byte == ' ' || byte == '\n' || byte == '\t')
        return in_space(s, byte);
    switch (s->mode) {
    case NIB_AT_ITEM_OR_END:
        if (byte == ']')
            return after_value(s, byte);
        return begin_value(s, byte);
    case NIB_AT_VALUE:
    case NIB_AT_MEMBER: return begin_value(s, byte);
    case NIB_AT_KEY_OR_END:
        if (byte == '}')
            return after_value(s, byte);
        return byte == '"' && begin_key(s);
    case NIB_AT_KEY: return byte == '"' && begin_key(s);
    case NIB_AT_COLON: s->mode = NIB_AT_MEMBER; return byte == ':';
    case NIB_AFTER: return after_value(s, byte);
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
    if (c->schema.nodes == NULL) /* it is nothing but what is around values */
        nib__calls_start(state);
}

void nib__constraint_copy(nib_constraint_state *to, const nib_constraint_state *from)
{
    memcpy(to, from, offsetof(nib_constraint_state, items) + from->used * sizeof from->items[0]);
}

bool nib__constraint_take(nib_constraint_state *state, int32_t id)
{
    size_t size;
    const uint8_t *bytes = nib__token_spelling(state->constraint->trie, id, &size);
    nib_constraint_state next;
    if (size == 0)
        return state->constraint->calls != NULL && nib__calls_take_special(state, id);
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
    /* A number is not over before something else comes, unless nothing can make it longer. */
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

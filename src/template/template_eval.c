/* SPDX-License-Identifier: Apache-2.0
 *
 * Evaluates the expressions of a template, node by node. Operators are in template_operators.c,
 * attributes and subscripts in template_members.c.
 */
#include "template_parts.h"

static nib_status eval_compare(nib_render *r, const nib_template_node *node, nib_value *out)
{
    nib_value left, right;
    bool holds = true;
    NIB_TRY(nib__eval(r, node->a, &left));
    for (const nib_template_node *n = node->b; n != NULL && holds; n = n->next) {
        NIB_TRY(nib__eval(r, n->a, &right));
        NIB_TRY(nib__run_compare(r, n->op, left, right, &holds));
        left = right;
    }
    *out = nib__v_bool(holds);
    return NIB_OK;
}

static nib_status eval_list(nib_render *r, const nib_template_node *node, nib_value *out)
{
    nib_value item;
    size_t count = 0;
    for (const nib_template_node *n = node->a; n != NULL; n = n->next)
        count++;
    NIB_TRY(nib__v_items(r, out, node->kind == NIB_N_LIST ? NIB_V_LIST : NIB_V_TUPLE, count));
    for (const nib_template_node *n = node->a; n != NULL; n = n->next) {
        NIB_TRY(nib__eval(r, n, &item));
        NIB_TRY(nib__items_push(r, out, item));
    }
    return NIB_OK;
}

static nib_status eval_dict(nib_render *r, const nib_template_node *node, nib_value *out)
{
    nib_value key, value;
    NIB_TRY(nib__v_dict(r, out, NIB_V_DICT));
    for (const nib_template_node *n = node->a; n != NULL; n = n->next->next) {
        NIB_TRY(nib__eval(r, n, &key));
        NIB_TRY(nib__eval(r, n->next, &value));
        NIB_TRY(nib__dict_put(r, out->as.dict, key, value));
    }
    return NIB_OK;
}

static nib_status eval_concat(nib_render *r, const nib_template_node *node, nib_value *out)
{
    nib_builder b = {.size = 0};
    nib_value part;
    for (const nib_template_node *n = node->a; n != NULL; n = n->next) {
        NIB_TRY(nib__eval(r, n, &part));
        NIB_TRY(nib__put_value(r, &b, part));
    }
    return nib__finish_string(r, &b, out);
}

static nib_status eval_sign(nib_render *r, const nib_template_node *node, nib_value *out)
{
    const bool minus = node->kind == NIB_N_NEGATIVE;
    nib_value v;
    int64_t i;
    NIB_TRY(nib__eval(r, node->a, &v));
    if (nib__integer(v, &i)) {
        if (i == INT64_MIN)
            return nib__run_fail(r, NIB_UNSUPPORTED, "integer overflow: more than 64 bits");
        *out = nib__v_int(minus ? -i : i);
    } else if (v.kind == NIB_V_FLOAT) {
        *out = nib__v_real(minus ? -v.as.real : v.as.real);
    } else {
        return nib__run_type_error(r, "a sign", v, (nib_value){.kind = NIB_V_UNDEFINED});
    }
    out->user = v.user;
    return NIB_OK;
}

static nib_status eval_arguments(nib_render *r, const nib_template_node *first, nib_arguments *args)
{
    size_t count = 0, named = 0;
    *args = (nib_arguments){.at = NULL};
    for (const nib_template_node *n = first; n != NULL; n = n->next) {
        count += n->kind != NIB_N_KEYWORD;
        named += n->kind == NIB_N_KEYWORD;
    }
    args->at = count == 0 ? NULL : nib__run_alloc(r, count, sizeof *args->at);
    args->named = named == 0 ? NULL : nib__run_alloc(r, named, sizeof *args->named);
    if ((count != 0 && args->at == NULL) || (named != 0 && args->named == NULL))
        return NIB_NO_MEMORY;
    for (const nib_template_node *n = first; n != NULL; n = n->next) {
        if (n->kind != NIB_N_KEYWORD) {
            NIB_TRY(nib__eval(r, n, &args->at[args->count++]));
            continue;
        }
        nib_named_value *named_value = &args->named[args->named_count];
        named_value->name = n->value.as.string;
        NIB_TRY(nib__run_steps(r, args->named_count / 8));
        for (size_t i = 0; i < args->named_count; i++) {
            const nib_string *other = args->named[i].name;
            if (other->size == named_value->name->size &&
                memcmp(other->at, named_value->name->at, other->size) == 0)
                return nib__run_fail(r, NIB_BAD_INPUT, "the argument %.60s is given twice",
                                     other->at);
        }
        NIB_TRY(nib__eval(r, n->a, &named_value->value));
        args->named_count++;
    }
    return NIB_OK;
}

static nib_status eval_call(nib_render *r, const nib_template_node *node, nib_value *out)
{
    nib_value callee;
    nib_arguments args;
    const nib_value caller = r->caller; /* set if this is the call of a call block */
    r->caller = nib__v_none();
    NIB_TRY(nib__eval(r, node->a, &callee));
    NIB_TRY(eval_arguments(r, node->b, &args));
    r->line = node->line;
    if (caller.kind == NIB_V_MACRO) {
        nib_named_value *named = nib__run_alloc(r, args.named_count + 1, sizeof *named);
        nib_value name;
        if (named == NULL)
            return NIB_NO_MEMORY;
        NIB_TRY(nib__v_text(r, &name, "caller", 6, false));
        for (size_t i = 0; i < args.named_count; i++) {
            named[i] = args.named[i];
            if (nib__is_text((nib_value){.kind = NIB_V_STRING, .as.string = named[i].name},
                             "caller"))
                return nib__run_fail(r, NIB_BAD_INPUT, "the argument caller is given twice");
        }
        named[args.named_count++] = (nib_named_value){name.as.string, caller};
        args.named = named;
    }
    return nib__call_value(r, callee, &args, out);
}

static nib_status eval_filter(nib_render *r, const nib_template_node *node, bool is_filter,
                              nib_value *out)
{
    nib_value self = r->block_output;
    nib_arguments args;
    char name[80];
    if (node->a != NULL)
        NIB_TRY(nib__eval(r, node->a, &self));
    NIB_TRY(eval_arguments(r, node->b, &args));
    r->line = node->line;
    if (node->row == NULL)
        return nib__run_fail(r, NIB_UNSUPPORTED,
                             "unknown %s \"%s\"; docs/templates.md lists what is supported",
                             is_filter ? "filter" : "test",
                             nib__escape_name(name, sizeof name, node->value.as.string->at,
                                              node->value.as.string->size));
    return nib__call_row(r, node->row, is_filter ? "the filter" : "the test", self, &args, out);
}

static nib_status eval_name(nib_render *r, const nib_template_node *node, nib_value *out)
{
    if (nib__run_lookup(r, node->name, out))
        return NIB_OK;
    *out = (nib_value){.kind = NIB_V_UNDEFINED, .as.string = &r->t->symbols[node->name]};
    return NIB_OK;
}

static nib_status eval_member(nib_render *r, const nib_template_node *node, nib_value *out)
{
    nib_value of, index;
    NIB_TRY(nib__eval(r, node->a, &of));
    r->line = node->line;
    if (node->kind == NIB_N_ATTR)
        return nib__run_attribute(r, of, node->value, out);
    if (node->b->kind == NIB_N_SLICE)
        return nib__run_slice(r, of, node->b, out);
    NIB_TRY(nib__eval(r, node->b, &index));
    r->line = node->line;
    return nib__run_item(r, of, index, out);
}

static nib_status eval_logic(nib_render *r, const nib_template_node *node, nib_value *out)
{
    nib_value v;
    NIB_TRY(nib__eval(r, node->a, &v));
    switch (node->kind) {
    case NIB_N_NOT: *out = nib__v_bool(!nib__truth(v)); return NIB_OK;
    case NIB_N_IF_ELSE:
        if (nib__truth(v))
            return nib__eval(r, node->b, out);
        return node->c != NULL ? nib__eval(r, node->c, out)
                               : nib__v_undefined(r, out, "the value of an if without else");
    default:
        *out = v;
        return nib__truth(v) == (node->kind == NIB_N_AND) ? nib__eval(r, node->b, out) : NIB_OK;
    }
}

static nib_status eval_binary(nib_render *r, const nib_template_node *node, nib_value *out)
{
    nib_value a, b;
    NIB_TRY(nib__eval(r, node->a, &a));
    NIB_TRY(nib__eval(r, node->b, &b));
    r->line = node->line;
    return nib__run_binary(r, node->op, a, b, out);
}

static nib_status eval_node(nib_render *r, const nib_template_node *node, nib_value *out)
{
    switch (node->kind) {
    case NIB_N_CONST: *out = node->value; return NIB_OK;
    case NIB_N_NAME: return eval_name(r, node, out);
    case NIB_N_LIST:
    case NIB_N_TUPLE: return eval_list(r, node, out);
    case NIB_N_DICT: return eval_dict(r, node, out);
    case NIB_N_ATTR:
    case NIB_N_ITEM: return eval_member(r, node, out);
    case NIB_N_SLICE:
        return nib__run_fail(r, NIB_UNSUPPORTED, "a slice among several indices is not supported");
    case NIB_N_CALL: return eval_call(r, node, out);
    case NIB_N_FILTER: return eval_filter(r, node, true, out);
    case NIB_N_TEST:
        NIB_TRY(eval_filter(r, node, false, out));
        *out = nib__v_bool(nib__truth(*out) != node->flag);
        return NIB_OK;
    case NIB_N_NEGATIVE:
    case NIB_N_POSITIVE: return eval_sign(r, node, out);
    case NIB_N_BINARY: return eval_binary(r, node, out);
    case NIB_N_COMPARE: return eval_compare(r, node, out);
    case NIB_N_CONCAT: return eval_concat(r, node, out);
    default: return eval_logic(r, node, out);
    }
}

nib_status nib__eval(nib_render *r, const nib_template_node *node, nib_value *out)
{
    r->line = node->line;
    NIB_TRY(nib__run_steps(r, 1));
    NIB_TRY(nib__run_enter(r));
    NIB_TRY(eval_node(r, node, out));
    r->depth--;
    return NIB_OK;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the statements of a template, and renders an input to an output. Scopes are Jinja's: each
 * iteration of a loop has a new one, so variables set in it are gone afterwards; an if has none; a
 * macro sees the scope that encloses its definition.
 */
#include "template_parts.h"

/* ---- variables ---- */

bool nib__run_lookup(nib_render *r, uint32_t name, nib_value *out)
{
    uint64_t passed = 0;
    for (const nib_scope *s = r->scope; s != NULL; s = s->parent, passed++) {
        for (const nib_variable *v = s->first; v != NULL; v = v->next, passed++) {
            if (v->name == name) {
                r->steps += passed / 16; /* the next step checks the limit */
                *out = v->value;
                return true;
            }
        }
    }
    r->steps += passed / 16;
    *out = r->globals[name];
    return nib__is_given(out);
}

nib_status nib__run_assign(nib_render *r, uint32_t name, nib_value value)
{
    if (r->scope == NULL) {
        r->globals[name] = value;
        return NIB_OK;
    }
    nib_variable *v = r->scope->first;
    uint64_t passed = 0;
    for (; v != NULL && v->name != name; passed++)
        v = v->next;
    NIB_TRY(nib__run_steps(r, passed / 16));
    if (v == NULL) {
        v = r->scope->spare;
        if (v != NULL)
            r->scope->spare = v->next;
        else if ((v = nib__run_alloc(r, 1, sizeof *v)) == NULL)
            return NIB_NO_MEMORY;
        *v = (nib_variable){.name = name, .next = r->scope->first};
        r->scope->first = v;
    }
    v->value = value;
    return NIB_OK;
}

/* Opens a scope within `parent` and makes it the current one. */
static nib_status open_scope(nib_render *r, nib_scope *parent)
{
    nib_scope *scope = nib__run_alloc(r, 1, sizeof *scope);
    if (scope == NULL)
        return NIB_NO_MEMORY;
    scope->parent = parent;
    r->scope = scope;
    return NIB_OK;
}

static nib_status assign(nib_render *r, const nib_template_node *target, nib_value value)
{
    const nib_value *items;
    size_t count, wanted = 0;
    char name[80];
    r->line = target->line;
    if (target->kind == NIB_N_NAME)
        return nib__run_assign(r, target->name, value);
    if (target->kind == NIB_N_NAMESPACE_PLACE) {
        nib_value namespace;
        if (!nib__run_lookup(r, target->name, &namespace) || namespace.kind != NIB_V_NAMESPACE)
            return nib__run_fail(r, NIB_BAD_INPUT,
                                 "cannot set an attribute of \"%s\": it is not a namespace",
                                 nib__escape_name(name, sizeof name, r->t->symbols[target->name].at,
                                                  r->t->symbols[target->name].size));
        return nib__dict_put(r, namespace.as.dict, target->value, value);
    }
    NIB_TRY(nib__iterate(r, value, &items, &count));
    for (const nib_template_node *n = target->a; n != NULL; n = n->next)
        wanted++;
    if (wanted != count)
        return nib__run_fail(r, NIB_BAD_INPUT, "cannot unpack %zu values into %zu names", count,
                             wanted);
    for (const nib_template_node *n = target->a; n != NULL; n = n->next)
        NIB_TRY(assign(r, n, *items++));
    return NIB_OK;
}

/* ---- statements ---- */

/* Runs a body in its own scope; *out: its output. Callers must ignore it if the body left an
 * enclosing loop (r->flow). */
static nib_status capture_body(nib_render *r, const nib_template_node *body, nib_value *out)
{
    nib_builder b = {.size = 0}, *const before = r->out;
    nib_scope *const scope = r->scope;
    NIB_TRY(open_scope(r, scope));
    r->out = &b;
    NIB_TRY(nib__run_body(r, body));
    r->out = before;
    r->scope = scope;
    return nib__finish_string(r, &b, out);
}

static nib_status apply_filters(nib_render *r, const nib_template_node *filters, nib_value *value)
{
    const nib_value before = r->block_output;
    if (filters == NULL)
        return NIB_OK;
    r->block_output = *value;
    NIB_TRY(nib__eval(r, filters, value));
    r->block_output = before;
    return NIB_OK;
}

/* Evaluates the condition of a loop only when an element is needed, because it may depend on what
 * the body has set in a namespace. */
nib_status nib__run_loop_fill(nib_render *r, nib_loop *loop, size_t wanted)
{
    const nib_template_node *node = loop->node;
    nib_scope *const scope = r->scope;
    const int line = r->line;
    nib_value item, holds = nib__v_bool(true);
    while (loop->source != NULL && loop->seen.as.items->count < wanted &&
           nib__pull(loop->source, &item)) {
        if (node->e != NULL) {
            NIB_TRY(open_scope(r, loop->scope));
            NIB_TRY(assign(r, node->a, item));
            NIB_TRY(nib__eval(r, node->e, &holds));
            r->scope = scope;
        }
        if (nib__truth(holds))
            NIB_TRY(nib__items_push(r, &loop->seen, item));
    }
    r->line = line;
    return NIB_OK;
}

/* Fetches all elements at once, unless the loop has a condition or goes over a stream, which others
 * may consume. */
static nib_status open_loop(nib_render *r, nib_loop *loop, nib_value over)
{
    const bool stream = over.kind == NIB_V_STREAM;
    if (!stream)
        NIB_TRY(nib__iterate(r, over, &loop->own.at, &loop->own.count));
    if (stream || loop->node->e != NULL) {
        loop->source = stream ? over.as.items : &loop->own;
        return nib__v_items(r, &loop->seen, NIB_V_LIST, 4);
    }
    loop->seen = (nib_value){.kind = NIB_V_LIST, .as.items = &loop->own};
    return NIB_OK;
}

/* Opens a scope for the next iteration. If no macro can keep the last one, empties and reuses it,
 * so that a loop allocates nothing by itself. */
static nib_status next_scope(nib_render *r, const nib_loop *loop, nib_scope *parent)
{
    nib_scope *last = r->scope;
    if (loop->at == 0 || loop->node->op != 0)
        return open_scope(r, parent);
    while (last->first != NULL) {
        nib_variable *v = last->first;
        last->first = v->next;
        v->next = last->spare;
        last->spare = v;
    }
    return NIB_OK;
}

/* Runs a loop; the current scope is the enclosing one. */
static nib_status run_loop(nib_render *r, const nib_template_node *node, nib_value over, int depth)
{
    nib_scope *const scope = r->scope;
    nib_loop *loop = nib__run_alloc(r, 1, sizeof *loop);
    uint32_t name = r->t->loop_symbol;
    if (loop == NULL)
        return NIB_NO_MEMORY;
    *loop = (nib_loop){.node = node, .scope = scope, .depth = depth};
    NIB_TRY(open_loop(r, loop, over));
    const nib_value self = {.kind = NIB_V_LOOP, .as.loop = loop};
    bool ended = false; /* some iteration ended without a break or continue */
    for (;; loop->at++) {
        r->flow = NIB_FLOW_NEXT;
        NIB_TRY(nib__run_loop_fill(r, loop, loop->at + 1));
        if (loop->at >= loop->seen.as.items->count)
            break;
        NIB_TRY(nib__run_steps(r, 1));
        NIB_TRY(next_scope(r, loop, scope));
        NIB_TRY(nib__run_assign(r, name, self));
        NIB_TRY(assign(r, node->a, loop->seen.as.items->at[loop->at]));
        NIB_TRY(nib__run_body(r, node->c));
        ended |= r->flow == NIB_FLOW_NEXT;
        if (r->flow == NIB_FLOW_BREAK)
            break;
    }
    /* The loop object may outlive the loop: keep its index valid. */
    loop->at -= loop->at != 0 && loop->at == loop->seen.as.items->count;
    r->flow = NIB_FLOW_NEXT;
    r->scope = scope;
    if (ended || node->d == NULL)
        return NIB_OK;
    NIB_TRY(open_scope(r, scope));
    NIB_TRY(nib__run_body(r, node->d));
    r->scope = scope;
    return NIB_OK;
}

nib_status nib__run_loop_recursive(nib_render *r, const nib_loop *loop, nib_value items,
                                   nib_value *out)
{
    nib_builder b = {.size = 0}, *const before = r->out;
    nib_scope *const scope = r->scope;
    if (!loop->node->flag)
        return nib__run_fail(r, NIB_BAD_INPUT, "the loop is called, but it is not recursive");
    NIB_TRY(nib__run_enter(r));
    r->out = &b;
    r->scope = loop->scope;
    NIB_TRY(run_loop(r, loop->node, items, loop->depth + 1));
    r->out = before;
    r->scope = scope;
    r->depth--;
    return nib__finish_string(r, &b, out);
}

static nib_status make_macro(nib_render *r, const nib_template_node *node, nib_value *out)
{
    nib_macro *macro = nib__run_alloc(r, 1, sizeof *macro);
    if (macro == NULL)
        return NIB_NO_MEMORY;
    *macro = (nib_macro){node, r->scope};
    *out = (nib_value){.kind = NIB_V_MACRO, .as.macro = macro};
    return NIB_OK;
}

static nib_status run_with(nib_render *r, const nib_template_node *node)
{
    nib_scope *const outer = r->scope;
    NIB_TRY(open_scope(r, outer));
    nib_scope *const inner = r->scope;
    for (const nib_template_node *n = node->a; n != NULL; n = n->next) {
        nib_value value;
        r->scope = outer; /* values do not see the other names of the with */
        NIB_TRY(nib__eval(r, n->b, &value));
        r->scope = inner;
        NIB_TRY(assign(r, n->a, value));
    }
    NIB_TRY(nib__run_body(r, node->c));
    r->scope = outer;
    return NIB_OK;
}

static nib_status run_if(nib_render *r, const nib_template_node *node)
{
    for (nib_value holds;; node = node->d) {
        NIB_TRY(nib__eval(r, node->a, &holds));
        if (nib__truth(holds))
            return nib__run_body(r, node->c);
        if (node->d == NULL || node->d->kind != NIB_N_IF || node->d->next != NULL)
            return nib__run_body(r, node->d);
    }
}

static nib_status run_set(nib_render *r, const nib_template_node *node)
{
    nib_value value;
    if (node->kind == NIB_N_SET) {
        NIB_TRY(nib__eval(r, node->b, &value));
    } else {
        NIB_TRY(capture_body(r, node->c, &value));
        if (r->flow != NIB_FLOW_NEXT)
            return NIB_OK;
        NIB_TRY(apply_filters(r, node->b, &value));
    }
    return assign(r, node->a, value);
}

/* Statements that print a value: {{ }}, call and filter blocks. */
static nib_status run_output(nib_render *r, const nib_template_node *node)
{
    nib_value value;
    if (node->kind == NIB_N_FILTER_BLOCK) {
        NIB_TRY(capture_body(r, node->c, &value));
        if (r->flow != NIB_FLOW_NEXT)
            return NIB_OK;
        NIB_TRY(apply_filters(r, node->b, &value));
    } else {
        if (node->kind == NIB_N_CALL_BLOCK)
            NIB_TRY(make_macro(r, node->b, &r->caller));
        NIB_TRY(nib__eval(r, node->a, &value));
    }
    return nib__put_value(r, r->out, value);
}

static nib_status run_statement(nib_render *r, const nib_template_node *node)
{
    nib_value value;
    nib_scope *const scope = r->scope;
    switch (node->kind) {
    case NIB_N_DATA: return nib__put_string(r, r->out, node->value.as.string);
    case NIB_N_PRINT:
    case NIB_N_CALL_BLOCK:
    case NIB_N_FILTER_BLOCK: return run_output(r, node);
    case NIB_N_FOR: NIB_TRY(nib__eval(r, node->b, &value)); return run_loop(r, node, value, 0);
    case NIB_N_IF: return run_if(r, node);
    case NIB_N_SET:
    case NIB_N_SET_BLOCK: return run_set(r, node);
    case NIB_N_MACRO:
        NIB_TRY(make_macro(r, node, &value));
        return nib__run_assign(r, node->name, value);
    case NIB_N_WITH: return run_with(r, node);
    case NIB_N_SCOPE:
        NIB_TRY(open_scope(r, scope));
        NIB_TRY(nib__run_body(r, node->c));
        r->scope = scope;
        return NIB_OK;
    default:
        r->flow = node->kind == NIB_N_BREAK ? NIB_FLOW_BREAK : NIB_FLOW_CONTINUE;
        return NIB_OK;
    }
}

nib_status nib__run_body(nib_render *r, const nib_template_node *first)
{
    NIB_TRY(nib__run_enter(r));
    for (const nib_template_node *n = first; n != NULL && r->flow == NIB_FLOW_NEXT; n = n->next) {
        r->line = n->line;
        NIB_TRY(nib__run_steps(r, 1));
        NIB_TRY(run_statement(r, n));
    }
    r->depth--;
    return NIB_OK;
}

/* ---- calls ---- */

static bool same_name(const nib_string *a, const nib_string *b)
{
    return a->size == b->size && memcmp(a->at, b->at, a->size) == 0;
}

/* Binds each parameter: positional arguments first, then named ones, which are marked in taken[].
 * Defaults see all parameters. */
static nib_status bind_parameters(nib_render *r, const nib_macro *macro, const nib_arguments *args,
                                  bool *taken)
{
    size_t at = 0;
    for (const nib_template_node *p = macro->node->a; p != NULL; p = p->next, at++) {
        nib_value value = {.kind = NIB_V_UNDEFINED, .as.string = &r->t->symbols[p->name]};
        if (at < args->count)
            value = args->at[at];
        else
            NIB_TRY(nib__run_steps(r, args->named_count / 8));
        for (size_t i = 0; at >= args->count && i < args->named_count; i++) {
            if (!same_name(args->named[i].name, &r->t->symbols[p->name]))
                continue;
            value = args->named[i].value;
            taken[i] = true;
        }
        NIB_TRY(nib__run_assign(r, p->name, value));
    }
    at = 0;
    for (const nib_template_node *p = macro->node->a; p != NULL; p = p->next, at++) {
        bool given = at < args->count || p->a == NULL;
        nib_value value;
        for (size_t i = 0; !given && i < args->named_count; i++)
            given = same_name(args->named[i].name, &r->t->symbols[p->name]);
        if (given)
            continue;
        NIB_TRY(nib__eval(r, p->a, &value));
        NIB_TRY(nib__run_assign(r, p->name, value));
    }
    return NIB_OK;
}

/* Binds caller, varargs and kwargs if the body uses them; otherwise surplus arguments are an error.
 */
static nib_status bind_rest(nib_render *r, const nib_macro *macro, const nib_arguments *args,
                            const bool *taken)
{
    const nib_template_node *node = macro->node;
    const char *name = node->value.as.string->at;
    nib_value rest, named,
        caller = {.kind = NIB_V_UNDEFINED, .as.string = &r->t->symbols[r->t->caller_symbol]};
    size_t count = 0;
    bool takes_caller = node->op & NIB_USES_CALLER, twice = false;
    for (const nib_template_node *p = node->a; p != NULL; p = p->next, count++) {
        const bool is_caller = p->name == r->t->caller_symbol;
        takes_caller &= !is_caller;
        twice |= is_caller && count < args->count; /* unless all parameters are bound */
    }
    if (twice && (node->op & NIB_USES_CALLER) && args->count < count)
        return nib__run_fail(r, NIB_BAD_INPUT, "the argument caller is given twice");
    if (args->count > count && !(node->op & NIB_USES_VARARGS))
        return nib__run_fail(r, NIB_BAD_INPUT, "%.60s takes at most %zu arguments, not %zu", name,
                             count, args->count);
    NIB_TRY(nib__v_items(r, &rest, NIB_V_TUPLE, args->count));
    for (size_t i = count; i < args->count; i++)
        NIB_TRY(nib__items_push(r, &rest, args->at[i]));
    NIB_TRY(nib__v_dict(r, &named, NIB_V_DICT));
    for (size_t i = 0; i < args->named_count; i++) {
        const nib_value key = {.kind = NIB_V_STRING, .as.string = args->named[i].name};
        if (taken[i])
            continue;
        if (nib__is_text(key, "caller") && takes_caller)
            caller = args->named[i].value;
        else if (node->op & NIB_USES_KWARGS)
            NIB_TRY(nib__dict_put(r, named.as.dict, key, args->named[i].value));
        else
            return nib__run_fail(r, NIB_BAD_INPUT,
                                 "%.60s has no parameter \"%.60s\", or it is given twice", name,
                                 args->named[i].name->at);
    }
    if (caller.kind == NIB_V_NONE)
        caller =
            (nib_value){.kind = NIB_V_UNDEFINED, .as.string = &r->t->symbols[r->t->caller_symbol]};
    if (takes_caller)
        NIB_TRY(nib__run_assign(r, r->t->caller_symbol, caller));
    if (node->op & NIB_USES_VARARGS)
        NIB_TRY(nib__run_assign(r, r->t->varargs_symbol, rest));
    return node->op & NIB_USES_KWARGS ? nib__run_assign(r, r->t->kwargs_symbol, named) : NIB_OK;
}

nib_status nib__run_macro(nib_render *r, const nib_macro *macro, const nib_arguments *args,
                          nib_value *out)
{
    nib_builder b = {.size = 0}, *const before = r->out;
    nib_scope *const scope = r->scope;
    bool *taken = nib__run_alloc(r, args->named_count + 1, sizeof *taken);
    if (taken == NULL)
        return NIB_NO_MEMORY;
    NIB_TRY(nib__run_enter(r));
    NIB_TRY(open_scope(r, macro->scope));
    NIB_TRY(bind_parameters(r, macro, args, taken));
    NIB_TRY(bind_rest(r, macro, args, taken));
    r->out = &b;
    NIB_TRY(nib__run_body(r, macro->node->c));
    r->out = before;
    r->scope = scope;
    r->depth--;
    return nib__finish_string(r, &b, out);
}

/* Is it the i-th of the comma-separated names? */
static bool is_parameter(const char *names, int i, const nib_string *name)
{
    for (; i > 0 && *names != 0; i--) {
        names += strcspn(names, ",");
        names += *names == ',';
    }
    return strcspn(names, ",") == name->size && memcmp(names, name->at, name->size) == 0;
}

static int parameter_count(const char *names)
{
    int count = *names != 0;
    for (; *names != 0; names++)
        count += *names == ',';
    return count;
}

nib_status nib__call_row(nib_render *r, const nib_call_row *row, const char *what, nib_value self,
                         const nib_arguments *args, nib_value *out)
{
    nib_value bound[NIB_PARAMETERS] = {{.kind = NIB_V_UNDEFINED}};
    if (row->call != NULL && row->parameters == NULL)
        return row->call(r, self, args, bound, out);
    const int count = parameter_count(row->parameters);
    if (args->count > (size_t)count)
        return nib__run_fail(r, NIB_BAD_INPUT, "%s %s takes at most %d arguments, not %zu", what,
                             row->name, count, args->count);
    for (size_t i = 0; i < args->count; i++)
        bound[i] = args->at[i];
    bool given[NIB_PARAMETERS] = {false};
    for (int i = 0; i < count; i++) {
        given[i] = (size_t)i < args->count;
        for (size_t k = 0; k < args->named_count; k++) {
            if (!is_parameter(row->parameters, i, args->named[k].name))
                continue;
            if (given[i])
                return nib__run_fail(r, NIB_BAD_INPUT, "%s %s: the argument %.60s is given twice",
                                     what, row->name, args->named[k].name->at);
            bound[i] = args->named[k].value;
            given[i] = true;
        }
    }
    for (size_t k = 0; k < args->named_count; k++) {
        int i = 0;
        while (i < count && !is_parameter(row->parameters, i, args->named[k].name))
            i++;
        if (i == count)
            return nib__run_fail(r, NIB_BAD_INPUT, "%s %s has no argument \"%.60s\"", what,
                                 row->name, args->named[k].name->at);
    }
    for (int i = 0; i < row->required; i++) {
        if (!given[i])
            return nib__run_fail(r, NIB_BAD_INPUT, "%s %s needs at least %d arguments", what,
                                 row->name, row->required);
    }
    if (row->call != NULL)
        return row->call(r, self, args, bound, out);
    *out = nib__v_bool(row->kinds >> self.kind & 1);
    return NIB_OK;
}

nib_status nib__call_value(nib_render *r, nib_value callee, const nib_arguments *args,
                           nib_value *out)
{
    char name[80];
    switch (callee.kind) {
    case NIB_V_MACRO: return nib__run_macro(r, callee.as.macro, args, out);
    case NIB_V_METHOD:
        return nib__call_row(r, &callee.as.method->row->call, "the method", callee.as.method->self,
                             args, out);
    case NIB_V_GLOBAL:
        return nib__call_row(r, nib__global_at(callee.as.global), "the function", callee, args,
                             out);
    case NIB_V_LOOP:
        if (args->count != 1 || args->named_count != 0)
            return nib__run_fail(r, NIB_BAD_INPUT,
                                 "a recursive loop takes one argument, the items to loop over");
        return nib__run_loop_recursive(r, callee.as.loop, args->at[0], out);
    case NIB_V_UNDEFINED:
        return nib__run_fail(
            r, NIB_BAD_INPUT, "\"%s\" is called, but it is undefined",
            nib__escape_name(name, sizeof name, callee.as.string->at, callee.as.string->size));
    default:
        return nib__run_fail(r, NIB_BAD_INPUT, "a %s cannot be called", nib__kind_name(callee));
    }
}

/* ---- rendering ---- */

void nib__template_output_init(nib_template_output *out, const nib_allocator *a)
{
    *out = (nib_template_output){.user = NULL};
    nib__text_init(&out->text, a);
}

void nib__template_output_free(nib_template_output *out)
{
    nib__release(out->text.allocator, out->user);
    nib__text_free(&out->text);
    nib__template_output_init(out, out->text.allocator);
}

static nib_status put_range(nib_template_output *out, size_t start, size_t end, nib_err *err)
{
    if (!nib__reserve(out->text.allocator, (void **)&out->user, &out->user_capacity,
                      out->user_count + 1, sizeof *out->user))
        return nib__fail_memory(err, out->user_count * sizeof *out->user,
                                "the user ranges of a prompt");
    out->user[out->user_count++] = (nib_byte_range){start, end};
    return NIB_OK;
}

static nib_status copy_output(const nib_builder *b, nib_template_output *out, nib_err *err)
{
    nib__text_put(&out->text, b->at == NULL ? "" : b->at, b->size);
    if (out->text.failed)
        return nib__fail_memory(err, b->size, "a prompt");
    if (b->marks == NULL)
        return b->size != 0 && b->user ? put_range(out, 0, b->size, err) : NIB_OK;
    for (size_t i = 0; i < b->size;) {
        size_t end = i + 1;
        while (end < b->size && b->marks[end] == b->marks[i])
            end++;
        if (b->marks[i])
            NIB_TRY(put_range(out, i, end, err));
        i = end;
    }
    return NIB_OK;
}

/* Sets the global variables: Jinja's functions first, which the input may replace. */
static nib_status open_globals(nib_render *r)
{
    r->globals = nib__run_alloc(r, r->t->symbol_count, sizeof *r->globals);
    if (r->globals == NULL)
        return NIB_NO_MEMORY;
    for (int i = 0; nib__global_at(i) != NULL; i++) {
        const char *name = nib__global_at(i)->name;
        size_t slot;
        if (nib__symbol_find(r->t, name, strlen(name), &slot))
            r->globals[r->t->symbol_slots[slot] - 1] =
                (nib_value){.kind = NIB_V_GLOBAL, .as.global = i};
    }
    return nib__run_input(r);
}

nib_status nib__template_render(const nib_template *t, const nib_template_input *input,
                                nib_template_output *out, nib_err *err)
{
    const nib_template_limits *limits = &input->limits;
    nib_builder b = {.size = 0};
    nib_render r = {
        .t = t,
        .input = input,
        .err = err,
        .steps_limit = limits->steps != 0 ? limits->steps : NIB_TEMPLATE_STEPS,
        .depth_limit = limits->depth != 0 ? limits->depth : NIB_TEMPLATE_DEPTH,
        .line = 1,
        .out = &b,
    };
    r.caller = nib__v_none();
    nib__arena_init(&r.arena, out->text.allocator,
                    limits->bytes != 0 ? limits->bytes : NIB_TEMPLATE_BYTES);
    nib_status status = open_globals(&r);
    if (status == NIB_OK)
        status = nib__run_body(&r, t->body);
    if (status == NIB_OK)
        status = copy_output(&b, out, err);
    nib__arena_free(&r.arena);
    return status;
}

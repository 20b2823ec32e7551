/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of this folder: tokens, the syntax tree of a template, values, and the state
 * of one rendering. Trees are allocated in the template's arena, values in the rendering's; nothing
 * is freed before the arena. Lists and strings are immutable once a template can see them, so they
 * share memory.
 */
#ifndef NIB_TEMPLATE_PARTS_H
#define NIB_TEMPLATE_PARTS_H

#include "json.h"
#include "template.h"

/* ---- values ---- */

typedef enum nib_value_kind {
    NIB_V_UNDEFINED,
    NIB_V_NONE,
    NIB_V_BOOL,
    NIB_V_INT,
    NIB_V_BIG, /* an input integer beyond 64 bits: its digits; it can only be written */
    NIB_V_FLOAT,
    NIB_V_STRING,
    NIB_V_LIST,
    NIB_V_TUPLE,
    NIB_V_RANGE,
    NIB_V_KEYS, /* views of a dict */
    NIB_V_VALUES,
    NIB_V_ITEMS,
    NIB_V_STREAM, /* a generator: can be iterated once */
    NIB_V_DICT,
    NIB_V_NAMESPACE,
    NIB_V_LOOP,
    NIB_V_MACRO,
    NIB_V_METHOD,
    NIB_V_GLOBAL /* a built-in function */
} nib_value_kind;

/* A growing string. marks: 1 for each byte of user text; NULL: `user` holds for all bytes. */
typedef struct nib_builder {
    char *at;
    uint8_t *marks;
    size_t size, capacity;
    bool user;
} nib_builder;

typedef struct nib_string {
    const char *at;
    const uint8_t *marks;
    size_t size;
    nib_builder *builder; /* to append in place while it holds just this string; may be NULL */
    bool user;
} nib_string;

typedef struct nib_value {
    uint8_t kind;
    bool user;   /* numbers and collections: came from a user */
    bool markup; /* strings: marked safe; what is joined to it is escaped */
    union {
        bool boolean;
        int64_t integer;
        double real;
        const nib_string *string; /* UNDEFINED: its name, or NULL */
        struct nib_items *items;  /* LIST to STREAM */
        struct nib_dict *dict;    /* DICT, NAMESPACE */
        struct nib_loop *loop;
        struct nib_macro *macro;
        struct nib_template_method *method;
        int global;
    } as;
} nib_value;

/* Storage of list elements; a list that ends at `used` can be extended in place. */
typedef struct nib_item_buffer {
    nib_value *at;
    size_t used, capacity;
} nib_item_buffer;

typedef struct nib_items {
    const nib_value *at;
    size_t count;
    nib_item_buffer *buffer;   /* NULL: cannot be extended in place */
    bool group;                /* TUPLE of groupby: has .grouper and .list */
    int64_t start, stop, step; /* RANGE: for printing */
} nib_items;

typedef struct nib_pair {
    nib_value key, value;
} nib_pair;

typedef struct nib_dict {
    nib_pair *pairs; /* [count] in order */
    size_t count, capacity;
    uint32_t *slots;   /* [slot_count] index + 1, by hash of the key; NULL: few pairs */
    size_t slot_count; /* a power of two */
} nib_dict;

typedef struct nib_template_method {
    nib_value self;
    const struct nib_method_row *row;
} nib_template_method;

/* ---- the tree ---- */

typedef enum nib_token_kind {
    NIB_T_END,
    NIB_T_DATA,
    NIB_T_PRINT,
    NIB_T_PRINT_END,
    NIB_T_BLOCK,
    NIB_T_BLOCK_END,
    NIB_T_NAME,
    NIB_T_STRING,
    NIB_T_INT,
    NIB_T_FLOAT,
    NIB_T_OPERATOR,
} nib_token_kind;

typedef enum nib_operator {
    NIB_OPERATOR_NONE,
    NIB_OPERATOR_ADD,
    NIB_OPERATOR_SUB,
    NIB_OPERATOR_MUL,
    NIB_OPERATOR_DIV,
    NIB_OPERATOR_FLOORDIV,
    NIB_OPERATOR_MOD,
    NIB_OPERATOR_POW,
    NIB_OPERATOR_TILDE,
    NIB_OPERATOR_EQ,
    NIB_OPERATOR_NE,
    NIB_OPERATOR_GT,
    NIB_OPERATOR_GE,
    NIB_OPERATOR_LT,
    NIB_OPERATOR_LE,
    NIB_OPERATOR_IN,
    NIB_OPERATOR_NOT_IN,
    NIB_OPERATOR_ASSIGN,
    NIB_OPERATOR_DOT,
    NIB_OPERATOR_COLON,
    NIB_OPERATOR_PIPE,
    NIB_OPERATOR_COMMA,
    NIB_OPERATOR_SEMICOLON,
    NIB_OPERATOR_LPAREN,
    NIB_OPERATOR_RPAREN,
    NIB_OPERATOR_LBRACKET,
    NIB_OPERATOR_RBRACKET,
    NIB_OPERATOR_LBRACE,
    NIB_OPERATOR_RBRACE,
} nib_operator;

typedef struct nib_lexeme {
    const char *at;
    uint32_t size;
    int line;
    uint8_t kind, op;
} nib_lexeme;

typedef enum nib_node_kind {
    /* expressions */
    NIB_N_CONST,    /* value */
    NIB_N_NAME,     /* name */
    NIB_N_LIST,     /* a: elements, linked by `next` like all lists of nodes */
    NIB_N_TUPLE,    /* a: elements */
    NIB_N_DICT,     /* a: key, value, key, value */
    NIB_N_ATTR,     /* a.value */
    NIB_N_ITEM,     /* a[b] */
    NIB_N_SLICE,    /* b of an ITEM: a:b:c, NULL if left out */
    NIB_N_CALL,     /* a(b) */
    NIB_N_KEYWORD,  /* an argument value=a */
    NIB_N_FILTER,   /* a|row(b); a NULL: the output of a block */
    NIB_N_TEST,     /* a is row(b) */
    NIB_N_NEGATIVE, /* -a */
    NIB_N_POSITIVE,
    NIB_N_BINARY,  /* a op b */
    NIB_N_COMPARE, /* a, then b: OPERANDs */
    NIB_N_OPERAND, /* op a */
    NIB_N_AND,
    NIB_N_OR,
    NIB_N_NOT,
    NIB_N_CONCAT,          /* a: parts */
    NIB_N_IF_ELSE,         /* b if a else c; c may be NULL */
    NIB_N_NAMESPACE_PLACE, /* name.value as a target of set */
    /* statements */
    NIB_N_DATA,         /* value */
    NIB_N_PRINT,        /* a */
    NIB_N_FOR,          /* for a in b if e: c, else d; flag: recursive; op: contains macros */
    NIB_N_IF,           /* if a: c, else d */
    NIB_N_SET,          /* a = b */
    NIB_N_SET_BLOCK,    /* a = output of c through the filters b (may be NULL) */
    NIB_N_MACRO,        /* name(a): c; op: NIB_USES; a: NAMEs, defaults in their a; flag: no name */
    NIB_N_CALL_BLOCK,   /* calls a with the macro b as `caller` */
    NIB_N_FILTER_BLOCK, /* prints the output of c through the filters b */
    NIB_N_WITH,         /* a: SETs, c */
    NIB_N_SCOPE,        /* c in its own scope: generation */
    NIB_N_BREAK,
    NIB_N_CONTINUE,
} nib_node_kind;

/* Which special names the body of a macro uses. */
enum { NIB_USES_CALLER = 1, NIB_USES_VARARGS = 2, NIB_USES_KWARGS = 4 };

typedef struct nib_template_node nib_template_node;
struct nib_template_node {
    uint8_t kind, op;
    bool flag;
    int line;
    uint32_t name; /* a symbol */
    nib_value value;
    const struct nib_call_row *row; /* FILTER, TEST; NULL: unknown */
    nib_template_node *next, *a, *b, *c, *d, *e;
};

struct nib_template {
    nib_allocator allocator;
    nib_arena arena;
    char *name; /* of the file, for messages */
    nib_template_node *body;
    nib_string *symbols; /* [symbol_count] names of variables */
    size_t symbol_count, symbol_capacity;
    uint32_t *symbol_slots; /* [symbol_slot_count] index + 1, by hash */
    size_t symbol_slot_count;
    uint32_t loop_symbol, caller_symbol, varargs_symbol, kwargs_symbol;
};

/* ---- reading (template_lex.c, template_parse.c, template_expression.c) ---- */

typedef struct nib_template_reader {
    nib_template *t;
    nib_err *err;
    const char *text; /* newlines normalized */
    size_t size;
    nib_lexeme *lexemes; /* [count], END last */
    size_t count, capacity, next;
    int nesting;           /* open brackets and statements */
    int loops;             /* enclosing for loops, up to the enclosing macro */
    int if_depth;          /* enclosing ifs: inside, an unknown filter fails only when it runs */
    int macros;            /* macros so far */
    int fors;              /* enclosing for loops, also outside macros */
    unsigned uses, stored; /* NIB_USES read before they are assigned, and assigned, in the macro */
    bool storing;          /* names are assignment targets */
} nib_template_reader;

nib_status nib__template_fail(const nib_template_reader *r, nib_status status, int line,
                              const char *format, ...) NIB_PRINTF(4, 5);
nib_status nib__template_lex(nib_template_reader *r);
bool nib__template_space(uint32_t point); /* white space as in Python's str.isspace() */

NIB_INLINE const nib_lexeme *nib__reader_now(const nib_template_reader *r)
{
    return &r->lexemes[r->next];
}
bool nib__reader_is_name(const nib_template_reader *r, const char *name);
NIB_INLINE bool nib__reader_is(const nib_template_reader *r, nib_operator op)
{
    return nib__reader_now(r)->kind == NIB_T_OPERATOR && nib__reader_now(r)->op == op;
}
bool nib__reader_skip(nib_template_reader *r, nib_operator op);
bool nib__reader_skip_name(nib_template_reader *r, const char *name);
nib_status nib__reader_expect(nib_template_reader *r, nib_operator op);
nib_status nib__reader_expect_name(nib_template_reader *r, const char *name);
/* Fails with "unexpected TOKEN; WANTED". */
nib_status nib__reader_unexpected(const nib_template_reader *r, const char *wanted);
nib_status nib__reader_node(nib_template_reader *r, nib_template_node **out, nib_node_kind kind,
                            int line);
nib_status nib__reader_symbol(nib_template_reader *r, uint32_t *out, const char *name, size_t size);
/* NIB_USES_CALLER etc. if the name is special, else 0. */
NIB_INLINE unsigned nib__reader_special(const nib_template_reader *r, uint32_t name)
{
    return name == r->t->caller_symbol    ? NIB_USES_CALLER
           : name == r->t->varargs_symbol ? NIB_USES_VARARGS
           : name == r->t->kwargs_symbol  ? NIB_USES_KWARGS
                                          : 0;
}
nib_status nib__reader_string(nib_template_reader *r, nib_value *out, const char *at, size_t size);
nib_status nib__reader_enter(nib_template_reader *r);

/* Looks a name up. *slot: its slot, or the empty slot for it; SIZE_MAX: the probe is too long. */
bool nib__symbol_find(const nib_template *t, const char *name, size_t size, size_t *slot);
NIB_INLINE uint32_t nib__name_hash(const char *at, size_t size)
{
    uint32_t hash = 2166136261u; /* FNV-1a; steps bound the cost of hostile names */
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ (unsigned char)at[i]) * 16777619u;
    return hash ^ hash >> 15;
}

nib_status nib__parse_expression(nib_template_reader *r, nib_template_node **out);
nib_status nib__parse_condition_free(nib_template_reader *r,
                                     nib_template_node **out); /* no a if b else c */
nib_status nib__parse_primary(nib_template_reader *r, nib_template_node **out);
/* ends_in: the tuple also ends before the word `in`. simple: names and literals only. */
nib_status nib__parse_tuple(nib_template_reader *r, nib_template_node **out, bool simple,
                            bool with_condition, bool parentheses, bool ends_in);
nib_status nib__parse_arguments(nib_template_reader *r, nib_template_node **out);
/* Filters after a value: |a|b. first: the first name has no |. */
nib_status nib__parse_filters(nib_template_reader *r, nib_template_node **value, bool first);
nib_status nib__parse_postfix(nib_template_reader *r, nib_template_node **value);

/* ---- running ---- */

typedef struct nib_variable {
    uint32_t name;
    nib_value value;
    struct nib_variable *next;
} nib_variable;

typedef struct nib_scope {
    struct nib_scope *parent;
    nib_variable *first;
    nib_variable *spare; /* variables of earlier iterations, for reuse */
} nib_scope;

typedef struct nib_macro {
    const nib_template_node *node;
    nib_scope *scope;
} nib_macro;

typedef struct nib_loop {
    const nib_template_node *node;
    nib_scope *scope;  /* the enclosing scope */
    nib_value seen;    /* LIST: elements fetched so far */
    size_t at;         /* index of the current element in `seen` */
    nib_items *source; /* the remaining elements: a stream, or &own; NULL: all are in `seen` */
    nib_items own;
    int depth;
    nib_value changed;
} nib_loop;

typedef struct nib_render {
    const nib_template *t;
    const nib_template_input *input;
    nib_err *err;
    nib_arena arena;
    uint64_t steps, steps_limit;
    int depth, depth_limit, line;
    nib_value *globals; /* [symbol_count] global variables */
    nib_scope *scope;   /* NULL: global */
    nib_builder *out;
    nib_value block_output; /* input of the filters of a block */
    nib_value caller;       /* the body of a call block, for the next call; else NONE */
    enum { NIB_FLOW_NEXT, NIB_FLOW_BREAK, NIB_FLOW_CONTINUE } flow;
} nib_render;

/* The arguments of a call. */
typedef struct nib_named_value {
    const nib_string *name;
    nib_value value;
} nib_named_value;

typedef struct nib_arguments {
    nib_value *at; /* [count] */
    size_t count;
    nib_named_value *named; /* [named_count] */
    size_t named_count;
} nib_arguments;

/* Fails with "NAME: line N: text". */
nib_status nib__run_fail(nib_render *r, nib_status status, const char *format, ...)
    NIB_PRINTF(3, 4);
nib_status nib__run_steps(nib_render *r, uint64_t steps);
nib_status nib__run_enter(nib_render *r); /* checks and increments r->depth */
/* Allocates zeroed memory of the rendering. NULL: r->err says why; return NIB_NO_MEMORY. */
void *nib__run_alloc(nib_render *r, size_t count, size_t size);

/* template_eval.c, template_members.c, template_operators.c */
nib_status nib__eval(nib_render *r, const nib_template_node *node, nib_value *out);
/* Fails: `op` does not support these types, or one value is undefined. */
nib_status nib__run_type_error(nib_render *r, const char *op, nib_value a, nib_value b);
nib_status nib__run_slice(nib_render *r, nib_value of, const nib_template_node *slice,
                          nib_value *out);
nib_status nib__run_binary(nib_render *r, nib_operator op, nib_value a, nib_value b,
                           nib_value *out);
nib_status nib__run_attribute(nib_render *r, nib_value of, nib_value name, nib_value *out);
nib_status nib__run_item(nib_render *r, nib_value of, nib_value index, nib_value *out);
nib_status nib__run_compare(nib_render *r, nib_operator op, nib_value a, nib_value b, bool *out);
nib_status nib__run_contains(nib_render *r, nib_value in, nib_value item, bool *out);

/* template_run.c */
nib_status nib__run_body(nib_render *r, const nib_template_node *first);
nib_status nib__run_macro(nib_render *r, const nib_macro *macro, const nib_arguments *args,
                          nib_value *out);
/* Fetches elements until `seen` has so many, or none are left. */
nib_status nib__run_loop_fill(nib_render *r, nib_loop *loop, size_t wanted);
nib_status nib__run_loop_recursive(nib_render *r, const nib_loop *loop, nib_value items,
                                   nib_value *out);
bool nib__run_lookup(nib_render *r, uint32_t name, nib_value *out);
nib_status nib__run_assign(nib_render *r, uint32_t name, nib_value value);

/* ---- calls ---- */

enum { NIB_PARAMETERS = 5 };

/* A filter, test, method or function. self: the value it applies to. bound[i]: the i-th parameter,
 * UNDEFINED with a NULL name if not given. */
typedef nib_status nib_callable(nib_render *r, nib_value self, const nib_arguments *args,
                                const nib_value *bound, nib_value *out);

typedef struct nib_call_row {
    const char *name;
    nib_callable *call;
    const char *parameters; /* comma-separated names, required ones first; NULL: any, not bound */
    int required;
    unsigned kinds; /* call NULL: a test that is true for these kinds, one bit per nib_value_kind */
} nib_call_row;

typedef struct nib_method_row {
    unsigned kinds; /* one bit per nib_value_kind */
    nib_call_row call;
} nib_method_row;

#define NIB_BUILTIN(name)                                                                          \
    nib_status name(nib_render *r, nib_value self, const nib_arguments *args,                      \
                    const nib_value *bound, nib_value *out)

/* Filters of collections (template_lists.c). */
NIB_BUILTIN(nib__filter_batch);
NIB_BUILTIN(nib__filter_dictsort);
NIB_BUILTIN(nib__filter_first);
NIB_BUILTIN(nib__filter_groupby);
NIB_BUILTIN(nib__filter_items);
NIB_BUILTIN(nib__filter_join);
NIB_BUILTIN(nib__filter_last);
NIB_BUILTIN(nib__filter_list);
NIB_BUILTIN(nib__filter_map);
NIB_BUILTIN(nib__filter_max);
NIB_BUILTIN(nib__filter_min);
NIB_BUILTIN(nib__filter_reject);
NIB_BUILTIN(nib__filter_rejectattr);
NIB_BUILTIN(nib__filter_reverse);
NIB_BUILTIN(nib__filter_select);
NIB_BUILTIN(nib__filter_selectattr);
NIB_BUILTIN(nib__filter_slice);
NIB_BUILTIN(nib__filter_sort);
NIB_BUILTIN(nib__filter_sum);
NIB_BUILTIN(nib__filter_unique);

/* Has letters of that case and none of the other (template_builtins.c). */
NIB_BUILTIN(nib__is_upper);
NIB_BUILTIN(nib__is_lower);
/* Python's "...".format(...) (template_format.c). */
NIB_BUILTIN(nib__str_format);
/* A view of a dict: KEYS, VALUES, ITEMS, or a STREAM of its items. */
nib_status nib__dict_view(nib_render *r, nib_value dict, nib_value_kind kind, nib_value *out);

const nib_call_row *nib__filter_find(const char *name, size_t size);
const nib_call_row *nib__test_find(const char *name, size_t size);
const nib_call_row *nib__global_at(int i); /* NULL after the last */
/* NULL: no such method. *unsafe: it would change a value, which the sandbox forbids. */
const nib_method_row *nib__method_find(nib_value_kind kind, const nib_string *name, bool *unsafe);

/* Binds the arguments and calls; what: "the filter" etc., for messages. */
nib_status nib__call_row(nib_render *r, const nib_call_row *row, const char *what, nib_value self,
                         const nib_arguments *args, nib_value *out);
nib_status nib__call_value(nib_render *r, nib_value callee, const nib_arguments *args,
                           nib_value *out);

/* ---- making and reading values (template_values.c) ---- */

NIB_INLINE bool nib__is_given(const nib_value *v)
{
    return v->kind != NIB_V_UNDEFINED || v->as.string != NULL;
}
NIB_INLINE bool nib__is_items(nib_value v)
{
    return v.kind >= NIB_V_LIST && v.kind <= NIB_V_STREAM;
}
/* Appends a digit to a number of this base; false: the result is over INT64_MAX. */
NIB_INLINE bool nib__append_digit(uint64_t *value, int base, int digit)
{
    if (*value > ((uint64_t)INT64_MAX - (uint64_t)digit) / (uint64_t)base)
        return false;
    *value = *value * (uint64_t)base + (uint64_t)digit;
    return true;
}

NIB_INLINE nib_value nib__v_none(void) { return (nib_value){.kind = NIB_V_NONE}; }
NIB_INLINE nib_value nib__v_bool(bool b)
{
    return (nib_value){.kind = NIB_V_BOOL, .as.boolean = b};
}
NIB_INLINE nib_value nib__v_int(int64_t i)
{
    return (nib_value){.kind = NIB_V_INT, .as.integer = i};
}
NIB_INLINE nib_value nib__v_real(double d)
{
    return (nib_value){.kind = NIB_V_FLOAT, .as.real = d};
}
/* A string that points to `at`, without a copy. */
nib_status nib__v_text(nib_render *r, nib_value *out, const char *at, size_t size, bool user);
nib_status nib__v_undefined(nib_render *r, nib_value *out, const char *name);
nib_status nib__v_items(nib_render *r, nib_value *out, nib_value_kind kind, size_t capacity);
nib_status nib__items_push(nib_render *r, nib_value *list, nib_value item);
nib_status nib__v_dict(nib_render *r, nib_value *out, nib_value_kind kind);
nib_status nib__dict_put(nib_render *r, nib_dict *dict, nib_value key, nib_value value);
nib_status nib__dict_get(nib_render *r, const nib_dict *dict, nib_value key, nib_value **out);
nib_status nib__slice_string(nib_render *r, nib_value *out, nib_value of, size_t from, size_t to);

bool nib__is_text(nib_value v, const char *text);
bool nib__truth(nib_value v);
const char *nib__kind_name(nib_value v); /* Python's: "str" */
/* The value of a number; bool counts as one. */
bool nib__number(nib_value v, double *out);
bool nib__integer(nib_value v, int64_t *out);
nib_status nib__equal(nib_render *r, nib_value a, nib_value b, bool *out);
nib_status nib__less(nib_render *r, nib_value a, nib_value b, bool *out);
/* A stable sort by key. */
nib_status nib__sort_pairs(nib_render *r, nib_pair *pairs, size_t count, bool reverse);
nib_status nib__hashable(nib_render *r, nib_value v);
/* The elements of an iterable value: *out [*count]. Empties a stream. */
nib_status nib__iterate(nib_render *r, nib_value v, const nib_value **out, size_t *count);
/* Removes and returns the first element; false: none is left. */
NIB_INLINE bool nib__pull(nib_items *items, nib_value *out)
{
    if (items->count == 0)
        return false;
    *out = *items->at++;
    items->count--;
    return true;
}
size_t nib__count_points(const char *at, size_t size); /* characters of valid UTF-8 */

/* ---- values to text (template_to_text.c) ---- */

nib_status nib__put(nib_render *r, nib_builder *b, const char *at, size_t size, bool user);
nib_status nib__put_text(nib_render *r, nib_builder *b, const char *text, bool user);
nib_status nib__put_part(nib_render *r, nib_builder *b, const nib_string *s, size_t from,
                         size_t to);
nib_status nib__put_string(nib_render *r, nib_builder *b, const nib_string *s);
nib_status nib__put_value(nib_render *r, nib_builder *b, nib_value v); /* str(v) */
nib_status nib__put_repr(nib_render *r, nib_builder *b, nib_value v);
nib_status nib__put_escaped(nib_render *r, nib_builder *b, nib_value v); /* for HTML */
nib_status nib__finish_string(nib_render *r, const nib_builder *b, nib_value *out);
/* str(v) as a value; returns a string unchanged. */
nib_status nib__to_string(nib_render *r, nib_value v, nib_value *out);
void nib__real_text(char out[40], double value); /* Python's repr of a float */

typedef struct nib_dump {
    bool ascii, sorted, lines;
    const nib_string *indent, *item, *key; /* item and key: separators */
} nib_dump;
nib_status nib__put_json(nib_render *r, nib_builder *b, nib_value v, const nib_dump *dump);

/* ---- parts of filters and methods (template_text.c, template_case.c, template_time.c) ---- */

typedef enum nib_case {
    NIB_UPPER,
    NIB_LOWER,
    NIB_STR_TITLE,
    NIB_CAPITALIZE,
    NIB_JINJA_TITLE
} nib_case;
nib_status nib__put_case(nib_render *r, nib_builder *b, const nib_string *s, nib_case as);
/* Python's str.isdigit(), islower(), isupper() and istitle() of one character. */
bool nib__point_is_digit(uint32_t point);
bool nib__point_is_lower(uint32_t point);
bool nib__point_is_upper(uint32_t point);
bool nib__point_is_title(uint32_t point);
/* chars NULL: white space */
nib_status nib__strip(nib_render *r, nib_value *out, nib_value s, const nib_string *chars,
                      bool left, bool right);
nib_status nib__replace(nib_render *r, nib_value *out, nib_value s, const nib_string *from,
                        const nib_string *to, int64_t most);
/* Splits a string into lines, with or without their ends. trailing: as if a \n followed. */
nib_status nib__split_lines(nib_render *r, nib_value s, bool keep_ends, bool trailing,
                            const nib_value **out, size_t *count);
/* Python's "..." % args */
nib_status nib__format_percent(nib_render *r, nib_value *out, nib_value format, nib_value args);
nib_status nib__put_time(nib_render *r, nib_builder *b, const nib_string *format, int64_t now);

/* Sets the global variables from the input (template_input.c). */
nib_status nib__run_input(nib_render *r);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of templates share: tokens, the tree that a template becomes, values, and the
 * state of one rendering. Trees lie in the template's arena, values in the rendering's; nothing is
 * freed before its end. Lists and strings never change once they can be seen, so they share memory.
 */
#ifndef NIB_TEMPLATE_PARTS_H
#define NIB_TEMPLATE_PARTS_H

#include "json.h"
#include "template.h"

/* ---- values ---- */

typedef enum nib_kind {
    NIB_V_UNDEFINED,
    NIB_V_NONE,
    NIB_V_BOOL,
    NIB_V_INT,
    NIB_V_BIG, /* an integer of the input past 64 bits: its digits, which can only be written */
    NIB_V_FLOAT,
    NIB_V_STRING,
    NIB_V_LIST,
    NIB_V_TUPLE,
    NIB_V_RANGE,
    NIB_V_KEYS, /* views of a dict */
    NIB_V_VALUES,
    NIB_V_ITEMS,
    NIB_V_STREAM, /* a generator: it can be walked over once */
    NIB_V_DICT,
    NIB_V_NAMESPACE,
    NIB_V_LOOP,
    NIB_V_MACRO,
    NIB_V_METHOD,
    NIB_V_GLOBAL /* a function that every template has */
} nib_kind;

/* Bytes that grow at their end. marks: 1 for each byte that came from a user; NULL: all are as
 * `user` says. */
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
    nib_builder *home; /* where more can be put behind it; NULL: nowhere */
    bool user;
} nib_string;

typedef struct nib_value {
    uint8_t kind;
    bool user;   /* of numbers and collections: it came from a user */
    bool markup; /* of strings: what is joined to it is escaped */
    union {
        bool boolean;
        int64_t integer;
        double real;
        const nib_string *string; /* UNDEFINED: the name, or NULL */
        struct nib_items *items;  /* LIST to STREAM */
        struct nib_dict *dict;    /* DICT, NAMESPACE */
        struct nib_loop *loop;
        struct nib_macro *macro;
        struct nib_method *method;
        int global;
    } as;
} nib_value;

/* Where lists grow: one of them may go on where it ends. */
typedef struct nib_row {
    nib_value *at;
    size_t used, capacity;
} nib_row;

typedef struct nib_items {
    const nib_value *at;
    size_t count;
    nib_row *home;             /* LIST; NULL: nothing can be put behind it */
    bool group;                /* TUPLE of groupby: it has .grouper and .list */
    int64_t start, stop, step; /* RANGE, to be written */
} nib_items;

typedef struct nib_pair {
    nib_value key, value;
} nib_pair;

typedef struct nib_dict {
    nib_pair *pairs; /* [count] in order */
    size_t count, capacity;
    uint32_t
        *slots; /* [slot_count], a power of two: index + 1 by the key's hash; NULL: few pairs */
    size_t slot_count;
} nib_dict;

typedef struct nib_method {
    nib_value self;
    const struct nib_method_row *row;
} nib_method;

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
    NIB_OP_NONE,
    NIB_OP_ADD,
    NIB_OP_SUB,
    NIB_OP_MUL,
    NIB_OP_DIV,
    NIB_OP_FLOORDIV,
    NIB_OP_MOD,
    NIB_OP_POW,
    NIB_OP_TILDE,
    NIB_OP_EQ,
    NIB_OP_NE,
    NIB_OP_GT,
    NIB_OP_GE,
    NIB_OP_LT,
    NIB_OP_LE,
    NIB_OP_IN,
    NIB_OP_NOT_IN,
    NIB_OP_ASSIGN,
    NIB_OP_DOT,
    NIB_OP_COLON,
    NIB_OP_PIPE,
    NIB_OP_COMMA,
    NIB_OP_SEMICOLON,
    NIB_OP_LPAREN,
    NIB_OP_RPAREN,
    NIB_OP_LBRACKET,
    NIB_OP_RBRACKET,
    NIB_OP_LBRACE,
    NIB_OP_RBRACE,
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
    NIB_N_LIST,     /* a: elements, by next; so are all lists of nodes */
    NIB_N_TUPLE,    /* a: elements */
    NIB_N_DICT,     /* a: key, value, key, value */
    NIB_N_ATTR,     /* a.value */
    NIB_N_ITEM,     /* a[b] */
    NIB_N_SLICE,    /* as b of ITEM: a:b:c, NULL where left out */
    NIB_N_CALL,     /* a(b) */
    NIB_N_KEYWORD,  /* an argument value=a */
    NIB_N_FILTER,   /* a|row(b); a NULL: of what a block wrote */
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
    NIB_N_NAMESPACE_PLACE, /* name.value, as a target of set */
    /* statements */
    NIB_N_DATA,         /* value */
    NIB_N_PRINT,        /* a */
    NIB_N_FOR,          /* for a in b if e: c, else d; flag: recursive; op: it has macros */
    NIB_N_IF,           /* if a: c, else d */
    NIB_N_SET,          /* a = b */
    NIB_N_SET_BLOCK,    /* a = what c writes, through the filters b, which may be NULL */
    NIB_N_MACRO,        /* name(a): c; op: uses; a: NAMEs with defaults in a; flag: no name */
    NIB_N_CALL_BLOCK,   /* a is called with the macro b as `caller` */
    NIB_N_FILTER_BLOCK, /* what c writes through the filters b */
    NIB_N_WITH,         /* a: SETs, c */
    NIB_N_SCOPE,        /* c, in a scope of its own: generation */
    NIB_N_BREAK,
    NIB_N_CONTINUE,
} nib_node_kind;

/* What a macro's body names. */
enum { NIB_USES_CALLER = 1, NIB_USES_VARARGS = 2, NIB_USES_KWARGS = 4 };

typedef struct nib_node nib_node;
struct nib_node {
    uint8_t kind, op;
    bool flag;
    int line;
    uint32_t name; /* a symbol */
    nib_value value;
    const struct nib_call_row *row; /* FILTER, TEST; NULL: not known */
    nib_node *next, *a, *b, *c, *d, *e;
};

struct nib_template {
    nib_allocator allocator;
    nib_arena arena;
    char *name; /* of the file, for messages */
    nib_node *body;
    nib_string *symbols; /* [symbol_count] names of variables */
    size_t symbol_count, symbol_capacity;
    uint32_t *symbol_slots; /* [symbol_slot_count] index + 1, by hash */
    size_t symbol_slot_count;
    uint32_t loop_symbol, caller_symbol, varargs_symbol, kwargs_symbol;
};

/* ---- reading (template_lex.c, template_parse.c, template_expression.c) ---- */

typedef struct nib_reader {
    nib_template *t;
    nib_err *err;
    const char *text; /* with newlines as Jinja makes them */
    size_t size;
    nib_lexeme *lexemes; /* [count], END last */
    size_t count, capacity, next;
    int nesting;           /* brackets and statements that are open */
    int loops;             /* for loops around, within the macro */
    int soft;              /* ifs around: unknown filters wait until they run */
    int macros;            /* so far */
    int fors;              /* for loops around, through macros, too */
    unsigned uses, stored; /* of caller, varargs and kwargs in the macro, before it stored them */
    bool storing;          /* names are targets */
} nib_reader;

nib_status nib__template_fail(const nib_reader *r, nib_status status, int line, const char *format,
                              ...) NIB_PRINTF(4, 5);
nib_status nib__template_lex(nib_reader *r);
bool nib__template_space(uint32_t point); /* what Python's str.isspace() holds for white space */

NIB_INLINE const nib_lexeme *nib__reader_now(const nib_reader *r) { return &r->lexemes[r->next]; }
bool nib__reader_is_name(const nib_reader *r, const char *name);
NIB_INLINE bool nib__reader_is(const nib_reader *r, nib_operator op)
{
    return nib__reader_now(r)->kind == NIB_T_OPERATOR && nib__reader_now(r)->op == op;
}
bool nib__reader_skip(nib_reader *r, nib_operator op);
bool nib__reader_skip_name(nib_reader *r, const char *name);
nib_status nib__reader_expect(nib_reader *r, nib_operator op);
nib_status nib__reader_expect_name(nib_reader *r, const char *name);
/* "unexpected THIS; WANTED" */
nib_status nib__reader_unexpected(const nib_reader *r, const char *wanted);
nib_status nib__reader_node(nib_reader *r, nib_node **out, nib_node_kind kind, int line);
nib_status nib__reader_symbol(nib_reader *r, uint32_t *out, const char *name, size_t size);
/* A bit of NIB_USES_CALLER and so on, if it is such a name. */
NIB_INLINE unsigned nib__reader_special(const nib_reader *r, uint32_t name)
{
    return name == r->t->caller_symbol    ? NIB_USES_CALLER
           : name == r->t->varargs_symbol ? NIB_USES_VARARGS
           : name == r->t->kwargs_symbol  ? NIB_USES_KWARGS
                                          : 0;
}
nib_status nib__reader_string(nib_reader *r, nib_value *out, const char *at, size_t size);
nib_status nib__reader_enter(nib_reader *r);

/* By the name: its slot, or the empty one where it would be; SIZE_MAX: there is no such one. */
bool nib__symbol_find(const nib_template *t, const char *name, size_t size, size_t *slot);
NIB_INLINE uint32_t nib__name_hash(const char *at, size_t size)
{
    uint32_t hash = 2166136261u; /* FNV-1a; steps count what a hostile choice of names costs */
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ (unsigned char)at[i]) * 16777619u;
    return hash ^ hash >> 15;
}

nib_status nib__parse_expression(nib_reader *r, nib_node **out);
nib_status nib__parse_condition_free(nib_reader *r, nib_node **out); /* no a if b else c */
nib_status nib__parse_primary(nib_reader *r, nib_node **out);
/* ends_in: the tuple ends before the word `in`, too. simple: names and literals only. */
nib_status nib__parse_tuple(nib_reader *r, nib_node **out, bool simple, bool with_condition,
                            bool parentheses, bool ends_in);
nib_status nib__parse_arguments(nib_reader *r, nib_node **out);
/* Filters behind a value: |a|b. first: the name comes without its |. */
nib_status nib__parse_filters(nib_reader *r, nib_node **value, bool first);
nib_status nib__parse_postfix(nib_reader *r, nib_node **value);

/* ---- running ---- */

typedef struct nib_variable {
    uint32_t name;
    nib_value value;
    struct nib_variable *next;
} nib_variable;

typedef struct nib_scope {
    struct nib_scope *parent;
    nib_variable *first;
    nib_variable *spare; /* of the times around before, to be used again */
} nib_scope;

typedef struct nib_macro {
    const nib_node *node;
    nib_scope *scope;
} nib_macro;

typedef struct nib_loop {
    const nib_node *node;
    nib_scope *scope; /* around the loop */
    nib_value seen;   /* LIST: elements that came so far; those before `at` are done */
    size_t at;
    nib_items *source; /* of what others come: a stream, or own; NULL: all are seen */
    nib_items own;
    int depth;
    nib_value changed;
} nib_loop;

typedef struct nib_run {
    const nib_template *t;
    const nib_template_input *input;
    nib_err *err;
    nib_arena arena;
    uint64_t steps, steps_limit;
    int depth, depth_limit, line;
    nib_value *globals; /* [symbol_count] variables outside of every scope */
    nib_scope *scope;   /* NULL: outside */
    nib_builder *out;
    nib_value hole;   /* what a block wrote, for its filters */
    nib_value caller; /* for the next call: the body of a call block; NONE: none */
    enum { NIB_GOES_ON, NIB_BREAKS, NIB_CONTINUES } flow;
} nib_run;

/* What a call is given. */
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

/* "NAME: line N: sentence" */
nib_status nib__run_fail(nib_run *r, nib_status status, const char *format, ...) NIB_PRINTF(3, 4);
nib_status nib__run_steps(nib_run *r, uint64_t steps);
nib_status nib__run_enter(nib_run *r); /* one deeper; r->depth-- leaves */
/* Zeroed; NULL: err says why, and the status is NIB_NO_MEMORY. */
void *nib__run_take(nib_run *r, size_t count, size_t size);

/* template_eval.c, template_members.c, template_operators.c */
nib_status nib__eval(nib_run *r, const nib_node *node, nib_value *out);
/* op cannot be done with these, or one is undefined. */
nib_status nib__run_type_error(nib_run *r, const char *op, nib_value a, nib_value b);
nib_status nib__run_slice(nib_run *r, nib_value of, const nib_node *slice, nib_value *out);
nib_status nib__run_binary(nib_run *r, nib_operator op, nib_value a, nib_value b, nib_value *out);
nib_status nib__run_attribute(nib_run *r, nib_value of, nib_value name, nib_value *out);
nib_status nib__run_item(nib_run *r, nib_value of, nib_value index, nib_value *out);
nib_status nib__run_compare(nib_run *r, nib_operator op, nib_value a, nib_value b, bool *out);
nib_status nib__run_contains(nib_run *r, nib_value in, nib_value item, bool *out);

/* template_run.c */
nib_status nib__run_body(nib_run *r, const nib_node *first);
nib_status nib__run_macro(nib_run *r, const nib_macro *macro, const nib_arguments *args,
                          nib_value *out);
/* Takes elements until so many have come, as far as there are. */
nib_status nib__run_loop_fill(nib_run *r, nib_loop *loop, size_t wanted);
nib_status nib__run_loop_again(nib_run *r, const nib_loop *loop, nib_value items, nib_value *out);
bool nib__run_lookup(nib_run *r, uint32_t name, nib_value *out);
nib_status nib__run_assign(nib_run *r, uint32_t name, nib_value value);

/* ---- calls ---- */

enum { NIB_PARAMETERS = 5 };

/* A filter, a test, a method or a function. self is what stands before it. */
typedef nib_status nib_callable(nib_run *r, nib_value self, const nib_arguments *args,
                                const nib_value *bound, nib_value *out);

typedef struct nib_call_row {
    const char *name;
    nib_callable *call;
    /* Names in order, those that must be given first; NULL: any arguments, not bound. */
    const char *parameters;
    int required;
    unsigned kinds; /* call NULL: a test that holds for these, a bit for each nib_kind */
} nib_call_row;

typedef struct nib_method_row {
    unsigned kinds; /* a bit for each nib_kind */
    nib_call_row call;
} nib_method_row;

#define NIB_FILTER(name)                                                                           \
    nib_status name(nib_run *r, nib_value self, const nib_arguments *args, const nib_value *bound, \
                    nib_value *out)

/* Filters of collections (template_lists.c). */
NIB_FILTER(nib__filter_batch);
NIB_FILTER(nib__filter_dictsort);
NIB_FILTER(nib__filter_first);
NIB_FILTER(nib__filter_groupby);
NIB_FILTER(nib__filter_items);
NIB_FILTER(nib__filter_join);
NIB_FILTER(nib__filter_last);
NIB_FILTER(nib__filter_list);
NIB_FILTER(nib__filter_map);
NIB_FILTER(nib__filter_max);
NIB_FILTER(nib__filter_min);
NIB_FILTER(nib__filter_reject);
NIB_FILTER(nib__filter_rejectattr);
NIB_FILTER(nib__filter_reverse);
NIB_FILTER(nib__filter_select);
NIB_FILTER(nib__filter_selectattr);
NIB_FILTER(nib__filter_slice);
NIB_FILTER(nib__filter_sort);
NIB_FILTER(nib__filter_sum);
NIB_FILTER(nib__filter_unique);

/* A letter of that case, and none of the other (template_tests.c). */
NIB_FILTER(nib__is_upper);
NIB_FILTER(nib__is_lower);
/* A dict as KEYS, VALUES, ITEMS, or a STREAM of its items. */
nib_status nib__dict_view(nib_run *r, nib_value dict, nib_kind kind, nib_value *out);

const nib_call_row *nib__filter_find(const char *name, size_t size);
const nib_call_row *nib__test_find(const char *name, size_t size);
const nib_call_row *nib__global_at(int i); /* NULL after the last */
/* *unsafe: the method would change a value, which the sandbox forbids. NULL: none. */
const nib_method_row *nib__method_find(nib_kind kind, const nib_string *name, bool *unsafe);

/* bound[i] is UNDEFINED with a NULL name where nothing was given. */
nib_status nib__call_row(nib_run *r, const nib_call_row *row, const char *what, nib_value self,
                         const nib_arguments *args, nib_value *out);
nib_status nib__call_value(nib_run *r, nib_value callee, const nib_arguments *args, nib_value *out);

/* ---- making and reading values (template_values.c) ---- */

NIB_INLINE bool nib__given(const nib_value *v)
{
    return v->kind != NIB_V_UNDEFINED || v->as.string != NULL;
}
NIB_INLINE bool nib__is_items(nib_value v)
{
    return v.kind >= NIB_V_LIST && v.kind <= NIB_V_STREAM;
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
/* A view, not copied. */
nib_status nib__v_text(nib_run *r, nib_value *out, const char *at, size_t size, bool user);
nib_status nib__v_undefined(nib_run *r, nib_value *out, const char *name);
nib_status nib__v_items(nib_run *r, nib_value *out, nib_kind kind, size_t capacity);
nib_status nib__items_push(nib_run *r, nib_value *list, nib_value item);
nib_status nib__v_dict(nib_run *r, nib_value *out, nib_kind kind);
nib_status nib__dict_put(nib_run *r, nib_dict *dict, nib_value key, nib_value value);
nib_status nib__dict_get(nib_run *r, const nib_dict *dict, nib_value key, nib_value **out);
nib_status nib__slice_string(nib_run *r, nib_value *out, nib_value of, size_t from, size_t to);

bool nib__is_text(nib_value v, const char *text);
bool nib__truth(nib_value v);
const char *nib__kind_name(nib_value v); /* Python's: "str" */
/* Numbers, bool among them. */
bool nib__number(nib_value v, double *out);
bool nib__integer(nib_value v, int64_t *out);
nib_status nib__equal(nib_run *r, nib_value a, nib_value b, bool *out);
nib_status nib__less(nib_run *r, nib_value a, nib_value b, bool *out);
/* By key; equal ones stay in order. */
nib_status nib__sort_pairs(nib_run *r, nib_pair *pairs, size_t count, bool reverse);
nib_status nib__hashable(nib_run *r, nib_value v);
/* Elements of whatever can be walked over, in *out [*count]; a stream is empty after it. */
nib_status nib__iterate(nib_run *r, nib_value v, const nib_value **out, size_t *count);
/* The next element, which is no longer in it then. */
NIB_INLINE bool nib__pull(nib_items *items, nib_value *out)
{
    if (items->count == 0)
        return false;
    *out = *items->at++;
    items->count--;
    return true;
}
size_t nib__count_points(const char *at, size_t size); /* characters of valid UTF-8 */

/* ---- text out of values (template_say.c) ---- */

nib_status nib__put(nib_run *r, nib_builder *b, const char *at, size_t size, bool user);
nib_status nib__put_text(nib_run *r, nib_builder *b, const char *text, bool user);
nib_status nib__put_part(nib_run *r, nib_builder *b, const nib_string *s, size_t from, size_t to);
nib_status nib__put_string(nib_run *r, nib_builder *b, const nib_string *s);
nib_status nib__put_value(nib_run *r, nib_builder *b, nib_value v); /* str(v) */
nib_status nib__put_repr(nib_run *r, nib_builder *b, nib_value v);
nib_status nib__put_escaped(nib_run *r, nib_builder *b, nib_value v); /* for HTML */
nib_status nib__built(nib_run *r, const nib_builder *b, nib_value *out);
/* str(v) as a value: itself if it is a string. */
nib_status nib__to_string(nib_run *r, nib_value v, nib_value *out);
void nib__real_text(char out[40], double value); /* as Python's repr */

typedef struct nib_dump {
    bool ascii, sorted, lines;
    const nib_string *indent, *item, *key; /* item and key: separators */
} nib_dump;
nib_status nib__put_json(nib_run *r, nib_builder *b, nib_value v, const nib_dump *dump);

/* ---- parts of filters and methods (template_text.c, template_case.c, template_time.c) ---- */

typedef enum nib_case { NIB_UPPER, NIB_LOWER, NIB_TITLE, NIB_CAPITAL, NIB_WORDS } nib_case;
nib_status nib__put_case(nib_run *r, nib_builder *b, const nib_string *s, nib_case as);
/* As Python's str.isdigit(), islower(), isupper() and istitle() hold one character. */
bool nib__point_is_digit(uint32_t point);
bool nib__point_is_lower(uint32_t point);
bool nib__point_is_upper(uint32_t point);
bool nib__point_is_title(uint32_t point);
/* chars NULL: white space */
nib_status nib__strip(nib_run *r, nib_value *out, nib_value s, const nib_string *chars, bool left,
                      bool right);
nib_status nib__replace(nib_run *r, nib_value *out, nib_value s, const nib_string *from,
                        const nib_string *to, int64_t most);
/* Lines of a string, with or without what ends them; trailing: those of the string with \\n behind
 * it. */
nib_status nib__split_lines(nib_run *r, nib_value s, bool keep_ends, bool trailing,
                            const nib_value **out, size_t *count);
/* Python's "..." % args */
nib_status nib__format_percent(nib_run *r, nib_value *out, nib_value format, nib_value args);
nib_status nib__put_time(nib_run *r, nib_builder *b, const nib_string *format, int64_t now);

/* The variables from outside (template_input.c). */
nib_status nib__run_input(nib_run *r);

#endif

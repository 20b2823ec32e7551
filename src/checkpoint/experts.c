/* SPDX-License-Identifier: Apache-2.0
 *
 * Names and stacks of experts. The form of a stack follows from the shapes of gate_up_proj and
 * down_proj where they decide it, else from model_type; what neither decides is refused.
 */
#include "experts.h"

#include "gguf.h"

#include <inttypes.h>
#include <stdio.h>

enum { EXPERTS_MAX = 1 << 16 };

/* ---- families ---- */

/* Families that publish stacks. */
static const nib_experts_form forms[] = {{"gpt_oss", true, true, false},
                                         {"llama4", true, false, false},
                                         {"gemma4", false, false, false},
                                         {"qwen3_5_moe", false, false, false},
                                         {"granitemoe", false, false, true}};

/* What a family calls the modules of a layer, and their names here. */
static const struct name_row {
    const char *family, *theirs, *ours;
    bool unpublished; /* only transformers 5 has it, and loads ours, too */
} names[] = {
    {"mixtral", "mlp.experts.down_proj", "block_sparse_moe.experts.w2", true},
    {"mixtral", "mlp.experts", "block_sparse_moe.experts", true},
    {"mixtral", "mlp.gate", "block_sparse_moe.gate", true},
    {"granitemoe", "block_sparse_moe.input_linear", "mlp.experts.gate_up_proj", false},
    {"granitemoe", "block_sparse_moe.output_linear", "mlp.experts.down_proj", false},
    {"granitemoe", "block_sparse_moe.router.layer", "mlp.gate", false},
    {"granitemoe", "shared_mlp.input_linear", "mlp.shared_expert.gate_up_proj", false},
    {"granitemoe", "shared_mlp.output_linear", "mlp.shared_expert.down_proj", false},
    {"gpt_oss", "mlp.router", "mlp.gate", false},
    {"llama4", "feed_forward.router", "mlp.gate", false},
    {"llama4", "feed_forward", "mlp", false},
};

/* How the names of a text model begin where a family has models with images, and here. */
static const struct name_row prefixes[] = {
    {"gemma4", "model.language_model.", "model.", false},
    {"qwen3_5", "model.language_model.", "model.", false},
    {"qwen3_5_moe", "model.language_model.", "model.", false},
    {"llama4", "language_model.", "", false},
};

/* Whether the model is of this family: that of a text model adds _text to its name, Granite's with
 * shared experts or Mamba layers shared or hybrid. */
static bool is_family(const char *model_type, const char *family)
{
    static const char *const ends[] = {"", "_text", "shared", "hybrid"};
    const size_t size = strlen(family);
    bool found = false;
    if (model_type == NULL || strncmp(model_type, family, size) != 0)
        return false;
    for (size_t i = 0; i < COUNT(ends); i++)
        found = found || strcmp(model_type + size, ends[i]) == 0;
    return found;
}

const nib_experts_form *nib__experts_form(const char *family)
{
    for (size_t i = 0; i < COUNT(forms); i++)
        if (is_family(family, forms[i].family))
            return &forms[i];
    return NULL;
}

nib_status nib__experts_family(nib_checkpoint *cp, const char *name, const char *text, size_t size,
                               nib_err *err)
{
    nib_json json;
    const nib_json_limits limits = {.literals = true};
    nib__json_init(&json, name, text, size, &limits);
    nib__json_expect(&json, NIB_JSON_OBJECT);
    for (int depth = 1; depth > 0 && nib__json_next(&json) != NIB_JSON_ERROR;) {
        if (json.event == NIB_JSON_OBJECT_END) {
            depth--;
            continue;
        }
        const bool text_model = depth == 1 && nib__json_is(&json, "text_config");
        const bool type = nib__json_is(&json, "model_type") && (depth == 2 || cp->family == NULL);
        if (!text_model && !type) {
            nib__json_skip(&json);
            continue;
        }
        nib__json_next(&json);
        if (text_model && json.event == NIB_JSON_OBJECT)
            depth++;
        else if (type && json.event == NIB_JSON_STRING)
            cp->family = nib__json_string(&json, &cp->arena, NULL);
        else
            nib__json_skip(&json);
    }
    return nib__json_status(&json, err);
}

/* ---- names ---- */

/* If the module of the name is, or is in, `from`: the name with `to` instead. */
static bool replace_module(char out[NIB_FUSED_NAME], const char *name, const char *from,
                           const char *to)
{
    const size_t at = nib__skip_layer(name), size = strlen(from);
    if (at == 0 || strncmp(name + at, from, size) != 0 ||
        (name[at + size] != 0 && name[at + size] != '.'))
        return false;
    const int used = snprintf(out, NIB_FUSED_NAME, "%.*s%s%s", (int)at, name, to, name + at + size);
    return used < NIB_FUSED_NAME;
}

/* If the name begins with `from`: the name with `to` instead. */
static bool replace_start(char out[NIB_FUSED_NAME], const char *name, const char *from,
                          const char *to)
{
    const size_t size = strlen(from);
    return strncmp(name, from, size) == 0 &&
           snprintf(out, NIB_FUSED_NAME, "%s%s", to, name + size) < NIB_FUSED_NAME;
}

/* The prefix of the text model's names in a model with images; NULL: none. */
static const struct name_row *prefix_of(const char *family)
{
    for (size_t i = 0; i < COUNT(prefixes); i++)
        if (is_family(family, prefixes[i].family))
            return &prefixes[i];
    return NULL;
}

/* nib__experts_other_name, without prefixes. *number counts down. */
static bool other_module(char out[NIB_FUSED_NAME], const char *family, const char *module,
                         size_t *number)
{
    for (size_t i = 0; i < COUNT(names); i++)
        if (is_family(family, names[i].family) &&
            replace_module(out, module, names[i].ours, names[i].theirs) && (*number)-- == 0)
            return true;
    return false;
}

bool nib__experts_other_name(char out[NIB_FUSED_NAME], const char *family, const char *module,
                             size_t number)
{
    const struct name_row *prefix = prefix_of(family);
    char inner[NIB_FUSED_NAME];
    if (other_module(out, family, module, &number))
        return true;
    if (prefix == NULL)
        return false;
    if (number-- != 0) {
        if (!other_module(inner, family, module, &number))
            return false;
        module = inner;
    }
    return replace_start(out, module, prefix->ours, prefix->theirs);
}

/* Whether a name is of the text model, in a checkpoint of others, too. */
static bool is_of_text(const char *name)
{
    static const char *const starts[] = {"model.layers.", "model.embed_tokens", "model.norm.",
                                         "lm_head."};
    bool found = false;
    for (size_t i = 0; i < COUNT(starts); i++)
        found = found || strncmp(name, starts[i], strlen(starts[i])) == 0;
    return found;
}

bool nib__experts_written_name(char out[NIB_FUSED_NAME], const char *family, bool prefixed,
                               const char *name)
{
    const struct name_row *prefix = prefixed ? prefix_of(family) : NULL;
    char inner[NIB_FUSED_NAME];
    bool other = false;
    for (size_t i = 0; i < COUNT(names) && !other; i++)
        other = !names[i].unpublished && is_family(family, names[i].family) &&
                replace_module(inner, name, names[i].ours, names[i].theirs);
    if (prefix != NULL && is_of_text(name) &&
        replace_start(out, other ? inner : name, prefix->ours, prefix->theirs))
        return true;
    if (other)
        memcpy(out, inner, sizeof inner);
    return other;
}

/* Our name of a tensor, or its own. */
static const char *our_name(char out[NIB_FUSED_NAME], const nib_checkpoint *cp, const char *name)
{
    const struct name_row *prefix = prefix_of(cp->family);
    char inner[NIB_FUSED_NAME];
    const char *own =
        prefix != NULL && replace_start(inner, name, prefix->theirs, prefix->ours) ? inner : name;
    for (size_t i = 0; i < COUNT(names); i++)
        if (is_family(cp->family, names[i].family) &&
            replace_module(out, own, names[i].theirs, names[i].ours))
            return out;
    if (own == name)
        return name;
    memcpy(out, inner, sizeof inner);
    return out;
}

/* A copy of the tensor under another name; NULL: out of memory. */
static nib_tensor *copy_view(nib_checkpoint *cp, const nib_tensor *t, const char *name)
{
    nib_tensor *out = nib__arena_take(&cp->arena, 1, sizeof *out);
    if (out == NULL)
        return NULL;
    *out = *t;
    out->name = nib__arena_copy(&cp->arena, name, strlen(name));
    return out->name != NULL ? out : NULL;
}

static nib_status rename_tensors(nib_checkpoint *cp, nib_err *err)
{
    const nib_checkpoint before = *cp;
    const struct name_row *prefix = prefix_of(cp->family);
    char out[NIB_FUSED_NAME], a[NIB_SHOWN], b[NIB_SHOWN];
    size_t count = 0;
    for (size_t i = 0; i < before.count; i++)
        cp->prefixed = cp->prefixed ||
                       (prefix != NULL &&
                        replace_start(out, before.tensors[i]->name, prefix->theirs, prefix->ours));
    for (size_t i = 0; i < before.count; i++)
        count += our_name(out, cp, before.tensors[i]->name) == out;
    if (count == 0)
        return NIB_OK;
    NIB_TRY(nib__checkpoint_clear_tensors(cp, before.count, err));
    for (size_t i = 0; i < before.count; i++) {
        const nib_tensor *t = before.tensors[i];
        const char *name = our_name(out, cp, t->name);
        if (name == out &&
            nib__name_index_find(&before.by_name, (const void *const *)before.tensors, out) !=
                SIZE_MAX)
            return nib__fail(err, NIB_BAD_INPUT, "tensor \"%s\" is stored twice, also as \"%s\"",
                             nib__escape_string(a, t->name), nib__escape_string(b, out));
        NIB_TRY(nib__checkpoint_add_view(cp, name == out ? copy_view(cp, t, name) : t, err));
    }
    NIB_TRY(nib__checkpoint_clear_metas(cp, before.meta_count, err));
    for (size_t i = 0; i < before.meta_count; i++)
        NIB_TRY(nib__checkpoint_add_meta(cp, before.metas[i],
                                         our_name(out, cp, before.metas[i]->key), err));
    return NIB_OK;
}

/* ---- stacks ---- */

/* A tensor of a stack, by the end of its name. */
typedef struct stack_part {
    const char *end, *suffix; /* suffix: of an expert's tensor */
    int rank;                 /* as stored */
    bool grid; /* scales of rows or blocks, which the dialect compares with the matrices */
} stack_part;

/* LEADS: holds the matrices. The other tensors only count beside one that does. */
enum { LEADS = 3 };
static const stack_part stack_parts[] = {
    {"_blocks", ".weight_blocks", 4, false},
    {".weight", ".weight", 3, false},
    {"", ".weight", 3, false},
    {"_scales", ".weight_scales", 3, false},
    {"_scale_inv", ".weight_scale_inv", 3, true},
    {"_scale", ".weight_scale", 3, true},
    {"_bias", ".bias", 2, false},
    {".bias", ".bias", 2, false},
};

static const char *const leaves[] = {"gate_up_proj", "gate_proj", "up_proj", "down_proj",
                                     "w1",           "w2",        "w3"};

/* A tensor, and the stack that it belongs to. */
typedef struct stacked {
    const nib_tensor *lead; /* the stack's matrices */
    const stack_part *part;
    size_t base, leaf; /* length of the stack's name; offset of its last component */
    bool expert;       /* it is P.experts.NAME with a known NAME */
    bool across;       /* transposed matrices */
    bool across_lead;  /* the matrices beside this tensor are */
} stacked;

static const nib_tensor *find(const nib_checkpoint *cp, const char *name)
{
    const size_t at = nib__name_index_find(&cp->by_name, (const void *const *)cp->tensors, name);
    return at == SIZE_MAX ? NULL : cp->tensors[at];
}

/* Offset of the last component of a stack's name, and whether it is P.experts.NAME. */
static size_t find_leaf(const char *name, size_t base, bool *expert)
{
    static const char parent[] = "experts.";
    const size_t before = sizeof parent - 1;
    size_t leaf = base;
    while (leaf > 0 && name[leaf - 1] != '.')
        leaf--;
    *expert = false;
    if (leaf < before || memcmp(name + leaf - before, parent, before) != 0 ||
        (leaf > before && name[leaf - before - 1] != '.'))
        return leaf;
    for (size_t i = 0; i < COUNT(leaves); i++)
        *expert = *expert || (strlen(leaves[i]) == base - leaf &&
                              memcmp(leaves[i], name + leaf, base - leaf) == 0);
    return leaf;
}

/* Whether t, which ends like part number i, holds the matrices of a stack. Blocks are one whatever
 * their name. */
static bool is_lead(const nib_tensor *t, size_t i, bool expert)
{
    return expert || (i == 0 && t->type == NIB_TYPE_U8 && t->rank == 4 && t->shape[3] == 16 &&
                      t->bytes > 0 && t->shape[0] <= EXPERTS_MAX);
}

/* The stack that t belongs to. False: none. */
static bool find_stack(stacked *out, const nib_checkpoint *cp, const nib_tensor *t)
{
    const size_t size = strlen(t->name);
    char name[512];
    for (size_t i = 0; i < COUNT(stack_parts) && size < sizeof name; i++) {
        const size_t end = strlen(stack_parts[i].end);
        if (size <= end || strcmp(t->name + size - end, stack_parts[i].end) != 0)
            continue;
        *out = (stacked){.part = &stack_parts[i], .base = size - end};
        out->leaf = find_leaf(t->name, out->base, &out->expert);
        if (i < LEADS && is_lead(t, i, out->expert)) {
            out->lead = t;
            return true;
        }
        for (size_t j = 0; j < LEADS && i >= LEADS; j++) {
            const int used =
                snprintf(name, sizeof name, "%.*s%s", (int)out->base, t->name, stack_parts[j].end);
            out->lead = used < (int)sizeof name ? find(cp, name) : NULL;
            if (out->lead != NULL && is_lead(out->lead, j, out->expert))
                return true;
        }
    }
    return false;
}

/* The matrices of another stack of the same experts; NULL: none. */
static const nib_tensor *find_sibling(const nib_checkpoint *cp, const nib_tensor *t,
                                      const stacked *s, const char *leaf)
{
    char name[512];
    for (size_t j = 0; j < LEADS; j++) {
        const int used = snprintf(name, sizeof name, "%.*s%s%s", (int)s->leaf, t->name, leaf,
                                  stack_parts[j].end);
        const nib_tensor *found = used < (int)sizeof name ? find(cp, name) : NULL;
        if (found != NULL)
            return found;
    }
    return NULL;
}

/* ---- checks ---- */

/* Fails with "NAME: sentence". */
static nib_status fail_stack(const nib_tensor *t, nib_status status, nib_err *err,
                             const char *format, ...) NIB_PRINTF(4, 5);
static nib_status fail_stack(const nib_tensor *t, nib_status status, nib_err *err,
                             const char *format, ...)
{
    char shown[NIB_SHOWN], sentence[600];
    va_list args;
    va_start(args, format);
    nib__vformat(sentence, sizeof sentence, format, args);
    va_end(args);
    return nib__fail(err, status, "%s: %s",
                     nib__escape_name(shown, sizeof shown, t->name, strlen(t->name)), sentence);
}

static bool has_leaf(const nib_tensor *t, const stacked *s, const char *leaf)
{
    return s->expert && strlen(leaf) == s->base - s->leaf &&
           memcmp(t->name + s->leaf, leaf, s->base - s->leaf) == 0;
}

/* The family's form, if its matrices are transposed; NULL: they are those of a linear layer. */
static const nib_experts_form *find_transposed(const nib_checkpoint *cp)
{
    const nib_experts_form *form = nib__experts_form(cp->family);
    return form != NULL && form->across ? form : NULL;
}

/* Finds out whether the matrices of a stack without .weight are transposed. Of gate_up_proj and
 * down_proj the shapes decide: one of [E, 2I, D], [E, D, I] and [E, D, 2I], [E, I, D] at most. */
static nib_status find_form(bool *across, nib_checkpoint *cp, const nib_tensor *t, const stacked *s,
                            nib_err *err)
{
    const bool down = has_leaf(t, s, "down_proj");
    const nib_tensor *other = find_sibling(cp, t, s, down ? "gate_up_proj" : "down_proj"),
                     *up = down ? other : t, *dn = down ? t : other;
    const nib_experts_form *family = find_transposed(cp);
    char a[NIB_SHAPE_SHOWN], b[NIB_SHAPE_SHOWN], c[NIB_SHOWN];
    *across = family != NULL;
    if (other == NULL && cp->family == NULL)
        return fail_stack(t, NIB_BAD_INPUT, err,
                          "whether its matrices are transposed cannot be told without %s or the "
                          "model_type of a config.json",
                          down ? "gate_up_proj" : "down_proj");
    if (other != NULL && other->rank == 3) {
        const bool rows = up->shape[1] / 2 == dn->shape[2] && up->shape[2] == dn->shape[1];
        *across = up->shape[2] / 2 == dn->shape[1] && up->shape[1] == dn->shape[2];
        if (!rows && !*across)
            return fail_stack(up, NIB_BAD_INPUT, err,
                              "its shape %s does not fit that of down_proj, %s; [experts, 2 * I, "
                              "D] and [experts, D, I] are expected, or both transposed",
                              nib__format_shape(a, up->shape, up->rank),
                              nib__format_shape(b, dn->shape, dn->rank));
    }
    if (*across ? family == NULL : family != NULL && family->alternate) {
        snprintf(b, sizeof b, "%s%s%s", cp->family != NULL ? "model_type \"" : "no model_type",
                 cp->family != NULL ? nib__escape_string(c, cp->family) : "",
                 cp->family != NULL ? "\" does not tell" : " tells");
        return fail_stack(t, NIB_BAD_INPUT, err,
                          "its shape %s is that of %s matrices, and %s in which order they hold "
                          "gate and up; those of gpt_oss and llama4 are transposed, those of other "
                          "families are not",
                          nib__format_shape(a, t->shape, t->rank), *across ? "transposed" : "plain",
                          b);
    }
    if (*across && t->type != NIB_TYPE_F32 && t->type != NIB_TYPE_F16 && t->type != NIB_TYPE_BF16 &&
        t->type != NIB_TYPE_E4M3)
        return fail_stack(t, NIB_UNSUPPORTED, err,
                          "its matrices are transposed and %s; transposed ones are read as F32, "
                          "F16, BF16 or F8_E4M3",
                          nib__type_stored_name(t->type));
    return NIB_OK;
}

/* Checks the matrices of a stack, and that stacks beside it have as many experts. */
static nib_status check_lead(nib_checkpoint *cp, const nib_tensor *t, stacked *s, nib_err *err)
{
    char a[NIB_SHAPE_SHOWN], shown[NIB_SHOWN];
    const bool gate_up = has_leaf(t, s, "gate_up_proj");
    if (t->rank != s->part->rank || t->shape[1] < 1 || t->shape[2] < 1 ||
        (t->rank == 4 && t->shape[3] != 16))
        return fail_stack(t, NIB_BAD_INPUT, err, "has shape %s; a stack of experts has %s",
                          nib__format_shape(a, t->shape, t->rank),
                          s->part->rank == 4 ? "four dimensions, the last of 16"
                                             : "three dimensions, none of them 0");
    if (t->shape[0] < 1 || t->shape[0] > EXPERTS_MAX)
        return fail_stack(t, NIB_BAD_INPUT, err, "holds %" PRId64 " experts; 1 to %d are expected",
                          t->shape[0], EXPERTS_MAX);
    if (t->bytes % (uint64_t)t->shape[0] != 0)
        return fail_stack(t, NIB_BAD_INPUT, err,
                          "its %" PRIu64 " bytes are not those of %" PRId64 " equal experts",
                          t->bytes, t->shape[0]);
    for (size_t i = 0; s->expert && i < COUNT(leaves); i++) {
        const nib_tensor *other = find_sibling(cp, t, s, leaves[i]);
        if (other != NULL && other->rank >= 3 && other->shape[0] != t->shape[0])
            return fail_stack(
                t, NIB_BAD_INPUT, err, "holds %" PRId64 " experts, but %s holds %" PRId64,
                t->shape[0],
                nib__escape_name(shown, sizeof shown, other->name, strlen(other->name)),
                other->shape[0]);
    }
    if (s->part->rank == 4)
        cp->alternate = cp->alternate || gate_up;
    if (s->part->end[0] == 0)
        NIB_TRY(find_form(&s->across, cp, t, s, err));
    const int64_t n = t->shape[s->across ? 2 : 1];
    if (gate_up && n % 2 != 0)
        return fail_stack(t, NIB_BAD_INPUT, err,
                          "an expert has %" PRId64
                          " rows, an odd number; half are expected for gate and half for up",
                          n);
    return NIB_OK;
}

/* Checks a tensor beside the matrices: its experts and rows must be theirs. */
static nib_status check_beside(const nib_tensor *t, const stacked *s, bool across, nib_err *err)
{
    const nib_tensor *lead = s->lead;
    char a[NIB_SHAPE_SHOWN], b[NIB_SHAPE_SHOWN];
    bool fits = t->rank == s->part->rank && lead->rank >= 3 && t->shape[0] == lead->shape[0];
    if (fits && s->part->grid)
        return t->shape[1] > 0 && t->shape[2] > 0
                   ? NIB_OK
                   : fail_stack(t, NIB_BAD_INPUT, err, "has shape %s, which holds no scales",
                                nib__format_shape(a, t->shape, t->rank));
    fits = fits && t->shape[1] == lead->shape[across ? 2 : 1];
    if (fits && t->rank == 3)
        fits = t->shape[2] == lead->shape[2];
    return fits ? NIB_OK
                : fail_stack(t, NIB_BAD_INPUT, err,
                             "its shape %s does not match its %s, which are %s",
                             nib__format_shape(a, t->shape, t->rank),
                             lead->rank == 4 ? "blocks" : "matrices",
                             nib__format_shape(b, lead->shape, lead->rank));
}

/* ---- views ---- */

/* Finds the stack of t, if any, and checks both. *is: whether there is one. */
static nib_status check_stack(stacked *s, bool *is, nib_checkpoint *cp, const nib_tensor *t,
                              nib_err *err)
{
    stacked lead;
    *is = find_stack(s, cp, t);
    if (!*is)
        return NIB_OK;
    if (s->lead == t)
        return check_lead(cp, t, s, err);
    (void)find_stack(&lead, cp, s->lead);
    NIB_TRY(check_lead(cp, s->lead, &lead, err));
    s->across_lead = lead.across;
    return check_beside(t, s, lead.across, err);
}

/* Adds a view of every expert of a stacked tensor. */
static nib_status add_views(nib_checkpoint *cp, const nib_tensor *t, const stacked *s, nib_err *err)
{
    char name[600]; /* fits: longer names are not stacks */
    nib_tensor expert = *t;
    expert.bytes = t->bytes / (uint64_t)t->shape[0];
    expert.rank = s->part->rank == 2 ? 1 : 2;
    memset(expert.shape, 0, sizeof expert.shape); /* other code compares all entries */
    expert.shape[0] = t->shape[s->across ? 2 : 1];
    if (s->part->grid && s->across_lead && nib__min(t->shape[1], t->shape[2]) == 1) {
        expert.rank = 1; /* [1, n] or [n, 1]: one for each row */
        expert.shape[0] = t->shape[1] * t->shape[2];
    }
    if (expert.rank == 2)
        expert.shape[1] = s->across ? t->shape[1] : t->rank == 4 ? 16 * t->shape[2] : t->shape[2];
    expert.stored_n = s->across ? t->shape[2] : 0;
    for (int64_t e = 0; e < t->shape[0]; e++) {
        snprintf(name, sizeof name, "%.*s%" PRId64 ".%.*s%s", (int)s->leaf, t->name, e,
                 (int)(s->base - s->leaf), t->name + s->leaf, s->part->suffix);
        expert.data = t->data + (uint64_t)e * expert.bytes;
        NIB_TRY(nib__checkpoint_add_view(cp, copy_view(cp, &expert, name), err));
    }
    return NIB_OK;
}

/* Whether Hugging Face's checkpoints of the model have stacks, too. All GGUF files have. */
static bool expects_stacks(const nib_checkpoint *cp)
{
    static const char *const archs[] = {"gpt-oss", "llama4", "granitemoe"};
    bool found = cp->gguf == NULL;
    for (size_t i = 0; !found && cp->gguf->arch != NULL && i < COUNT(archs); i++)
        found = strcmp(archs[i], cp->gguf->arch) == 0;
    return found;
}

nib_status nib__experts_split(nib_checkpoint *cp, nib_err *err)
{
    const nib_experts_form *family = find_transposed(cp);
    cp->alternate = family != NULL && family->alternate; /* also in gate_up_proj of one expert */
    NIB_TRY(rename_tensors(cp, err));
    const nib_checkpoint before = *cp;
    size_t count = before.count, stacks = 0;
    bool is, across = false;
    stacked s;
    for (size_t i = 0; i < before.count; i++) {
        NIB_TRY(check_stack(&s, &is, cp, before.tensors[i], err));
        if (!is)
            continue;
        count += (size_t)before.tensors[i]->shape[0];
        stacks += s.lead == before.tensors[i];
        across = across || s.across;
    }
    if (stacks == 0)
        return NIB_OK;
    nib_checkpoint whole = *cp; /* alternate may be set now */
    NIB_TRY(nib__checkpoint_clear_tensors(cp, count, err));
    for (size_t i = 0; i < whole.count; i++) {
        const nib_tensor *t = whole.tensors[i];
        NIB_TRY(check_stack(&s, &is, &whole, t, err));
        NIB_TRY(is ? add_views(cp, t, &s, err) : nib__checkpoint_add_view(cp, t, err));
    }
    cp->stacks = expects_stacks(cp) ? stacks : 0;
    char note[200];
    snprintf(note, sizeof note, "%zu stacks of experts are read expert by expert%s%s", stacks,
             across ? ", transposed in the file" : "",
             cp->alternate ? ", with rows of gate and up in turn" : "");
    return nib__checkpoint_add_note(cp, note, err);
}

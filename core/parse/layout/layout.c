/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a layout, gives it another mesh, reports its ranks, and frees it. */
#include "core/parse/layout/layout.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/hash.h"
#include "core/model/tensor.h"
#include "core/parse/json.h"

/* Hugging Face's tp_plan: a flat JSON object of strings without escapes. Messages name its
 * lines. */

struct entry {
	const char *name, *value;
	size_t n, nvalue, components;
	unsigned line;
};

struct plan {
	struct layout_parse *ps;
	struct entry *entry;
	size_t n, cap;
};

/* @over: the mesh dimension that cuts; NULL: none. */
static const struct {
	const char *style, *place, *over;
} styles[] = {
	{ "colwise", "colwise", "@tp" },
	{ "colwise_gather_output", "colwise", "@tp" },
	{ "colwise_rep", "colwise", "@tp" },
	{ "local_colwise", "colwise", "@tp" },
	{ "rowwise", "rowwise", "@tp" },
	{ "rowwise_rep", "rowwise", "@tp" },
	{ "rowwise_split_input", "rowwise", "@tp" },
	{ "local_rowwise", "rowwise", "@tp" },
	{ "packed_colwise", "colwise(groups=[1,1])", "@tp" },
	{ "local_packed_colwise", "colwise(groups=[1,1])", "@tp" },
	{ "packed_rowwise", "rowwise(groups=[1,1])", "@tp" },
	{ "local_packed_rowwise", "rowwise(groups=[1,1])", "@tp" },
	{ "embedding_rowwise", "shard(0, optional)", "@tp" },
	{ "embedding_colwise", "shard(1, optional)", "@tp" },
	{ "grouped_gemm", "shard(0, even, optional)", "@ep" },
	{ "replicate", "replicate", NULL },
	{ "local", "replicate", NULL },
	{ "local_params", "replicate", NULL },
	{ "gather", "replicate", NULL },
	{ "all_reduce", "replicate", NULL },
	{ "sequence_parallel", "replicate", NULL },
	{ "ep_router", "replicate", NULL },
	{ "ep_dispatch_experts", "replicate", NULL },
	{ "moe_tp_experts", "replicate", NULL },
	{ "moe_identity_expert", "replicate", NULL },
	{ "mla_kv_a_proj", "replicate", NULL },
	{ "replicated_with_grad_allreduce", "replicate", NULL },
};

/* Count the lines from @from, which is on line ps->line, to @to. */
static void count_lines(struct layout_parse *ps, const char *from, const char *to)
{
	while ((from = memchr(from, '\n', (size_t)(to - from)))) {
		ps->line++;
		from++;
	}
}

/* The text of @quoted, without its quotes. */
static int take_string(struct layout_parse *ps, struct dcp_bytes quoted, const char **out,
		       size_t *n)
{
	if (quoted.n < 2 || quoted.p[quoted.n - 1] != '"')
		return bad(ps, "a string without an end");
	*out = (const char *)quoted.p + 1;
	*n = quoted.n - 2;
	for (size_t i = 0; i < *n; i++)
		if ((*out)[i] == '\\' || (unsigned char)(*out)[i] < ' ')
			return bad(ps, "strings hold neither backslashes nor control bytes");
	return 0;
}

/* Parse a string, or a list with its brackets. */
static int take_value(struct layout_parse *ps, struct dcp_bytes text, struct entry *e)
{
	if (text.p[0] == '"')
		return take_string(ps, text, &e->value, &e->nvalue);
	if (text.p[0] != '[')
		return bad(ps, "expected a string or a list of numbers, found %.*s",
			   (int)DCP_MIN(text.n, (size_t)20), (const char *)text.p);
	if (memchr(text.p, '\n', text.n))
		return bad(ps, "a list ends on its line");
	e->value = (const char *)text.p;
	e->nvalue = text.n;
	return 0;
}

static int take_member(struct plan *plan, struct dcp_bytes name, struct dcp_bytes text)
{
	struct entry e = { .components = 1, .line = plan->ps->line };
	int rc = take_string(plan->ps, name, &e.name, &e.n);

	if (rc == 0)
		rc = take_value(plan->ps, text, &e);
	if (rc < 0)
		return rc;
	if (e.n == 4 && memcmp(e.name, "mesh", 4) == 0)
		return dcp_layout_mesh_words(plan->ps, e.value, e.nvalue);
	if (e.n == 0)
		return bad(plan->ps, "a name without letters");
	for (size_t i = 0; i < e.n; i++)
		e.components += e.name[i] == '.';
	rc = DCP_GROW(plan->entry, plan->cap, plan->n);
	if (rc == 0)
		plan->entry[plan->n++] = e;
	return rc;
}

static int take_members(struct plan *plan, const char *text, size_t n)
{
	struct dcp_json_walk walk = { .text = text, .n = n };
	struct dcp_bytes name, value;
	const char *at = text;
	struct dcp_err err;
	int rc;

	while ((rc = dcp_json_walk(&walk, &name, &value, &err)) > 0) {
		count_lines(plan->ps, at, (const char *)name.p);
		at = (const char *)name.p;
		rc = take_member(plan, name, value);
		if (rc < 0)
			return rc;
	}
	if (rc == 0)
		return 0;
	count_lines(plan->ps, at, text + walk.at);
	return bad(plan->ps, "%s", err.msg);
}

/* Most components first, then the longest name: a parameter comes before its module. */
static int by_length(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	return DCP_CMP(y->components, x->components) ?: DCP_CMP(y->n, x->n) ?:
	       memcmp(x->name, y->name, x->n) ?: DCP_CMP(x->line, y->line);
}

/* Write "layers.*.q_proj" to @out as the body of a glob, "layers.{*}.q_proj": 3 bytes for each
 * *. */
static size_t write_body(const struct entry *e, char *out)
{
	size_t n = 0;

	if (dcp_layout_is_word(e->name, e->n))
		out[n++] = '\\';
	for (size_t i = 0; i < e->n; i++) {
		if (e->name[i] == '*') {
			memcpy(out + n, "{*}", 3);
			n += 3;
			continue;
		}
		if (strchr("?{()[]@#", e->name[i]))
			out[n++] = '\\';
		out[n++] = e->name[i];
	}
	return n;
}

/* Add globs for the module or parameter, for its contents, and for both after any prefix. */
static int add_globs(struct layout_parse *ps, const struct entry *e)
{
	char text[DCP_LAYOUT_MAX_GLOB + 8] = "*.";
	size_t n;
	int rc;

	if (e->n > DCP_LAYOUT_MAX_GLOB / 3)
		return dcp_layout_bad(ps, -E2BIG, "a name of %zu bytes; the limit is %d", e->n,
				      DCP_LAYOUT_MAX_GLOB / 3);
	for (size_t i = 0; i < e->n; i++)
		if (e->name[i] == ' ' || e->name[i] == '\t')
			return bad(ps, "blank in the name \"%.*s\"", (int)e->n, e->name);
	n = write_body(e, text + 2);
	memcpy(text + 2 + n, ".*", 2);
	rc = dcp_layout_rule_glob(ps, text + 2, n);
	if (rc == 0)
		rc = dcp_layout_rule_glob(ps, text + 2, n + 2);
	if (rc == 0)
		rc = dcp_layout_rule_glob(ps, text, n + 2);
	if (rc == 0)
		rc = dcp_layout_rule_glob(ps, text, n + 4);
	return rc;
}

/* The dimension that a style cuts: @dim if the mesh has it, else "@tp", else the only dimension. */
static const char *find_dim(const struct dcp_mesh *mesh, const char *dim)
{
	const char *at = "";

	for (uint32_t d = 0; d < mesh->ndim; d++) {
		if (strcmp(mesh->dim[d], dim + 1) == 0)
			return dim;
		if (strcmp(mesh->dim[d], "tp") == 0)
			at = "@tp";
	}
	return at;
}

static int add_places(struct layout_parse *ps, const char *s, size_t n)
{
	const char *end = s + n, *known[DCP_LEN(styles) + 1] = { 0 };
	char text[64], near[64];
	size_t w;
	int rc = 0;

	for (size_t i = 0; i < DCP_LEN(styles); i++) {
		known[i] = styles[i].style;
		if (strlen(known[i]) == n && memcmp(known[i], s, n) == 0) {
			snprintf(text, sizeof(text), "%s%s", styles[i].place,
				 styles[i].over ? find_dim(&ps->l->mesh, styles[i].over) : "");
			return dcp_layout_place(ps, text, strlen(text));
		}
	}
	if (!dcp_layout_is_place(s, dcp_layout_next_word(&s, end))) {
		snprintf(text, sizeof(text), "%.*s", (int)DCP_MIN(end - s, 60), s);
		dcp_layout_nearest(near, sizeof(near), text, known);
		return bad(ps, "\"%s\" is neither a style nor a placement%s", text, near);
	}
	while (rc == 0 && (w = dcp_layout_next_word(&s, end)) > 0) {
		rc = dcp_layout_place(ps, s, w);
		s += w;
	}
	return rc;
}

static int add_rules(struct plan *plan)
{
	struct layout_parse *ps = plan->ps;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < plan->n; i++) {
		const struct entry *e = &plan->entry[i];

		ps->line = e->line;
		if (i > 0 && e->n == e[-1].n && memcmp(e->name, e[-1].name, e->n) == 0)
			return bad(ps, "\"%.*s\" stands on line %u too",
				   (int)DCP_MIN(e->n, (size_t)100), e->name, e[-1].line);
		rc = dcp_layout_rule_begin(ps);
		if (rc == 0)
			rc = add_globs(ps, e);
		if (rc == 0)
			rc = add_places(ps, e->value, e->nvalue);
		if (rc == 0)
			rc = dcp_layout_rule_end(ps);
	}
	if (rc == 0)
		rc = dcp_layout_rule_begin(ps);
	if (rc == 0)
		rc = dcp_layout_rule_glob(ps, "*", 1);
	return rc;
}

static int dcp_layout_json(struct layout_parse *ps, const char *text, size_t n)
{
	struct plan plan = { .ps = ps };
	int rc;

	ps->line = 1;
	rc = take_members(&plan, text, n);
	if (rc == 0 && ps->l->mesh.ndim == 0)
		rc = dcp_layout_mesh_words(ps, "tp=1", 4);
	if (rc == 0)
		DCP_SORT(plan.entry, plan.n, by_length);
	if (rc == 0)
		rc = add_rules(&plan);
	free(plan.entry);
	return rc;
}

static struct dcp_layout *layout_new(const char *name)
{
	struct dcp_layout *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	dcp_arena_init(&l->arena, LAYOUT_MAX_ARENA);
	l->nranks = 1;
	l->name = dcp_arena_strdup(&l->arena, name);
	if (!l->name) {
		dcp_layout_free(l);
		return NULL;
	}
	return l;
}

/* Return the parsed layout in *@out, or free it. */
static int finish_parse(struct layout_parse *ps, int rc, struct dcp_layout **out)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_layout *l = ps->l;

	if (rc == 0 && l->nrule == 0) {
		ps->line = 0;
		rc = bad(ps, "no rules; \"* replicate\" is the simplest");
	}
	if (rc == 0)
		rc = dcp_layout_print(l, &text);
	if (rc == -ENOMEM)
		dcp_fail(ps->err, rc, "%.160s: out of memory", l->name);
	if (rc < 0) {
		dcp_layout_free(l);
		return rc;
	}
	l->hash = dcp_hash64(text.p, text.n);
	*out = l;
	return 0;
}

static bool is_json(const char *text, size_t n)
{
	size_t i = 0;

	while (i < n &&
	       (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n'))
		i++;
	return i < n && text[i] == '{';
}

int dcp_layout_parse(const char *name, const char *text, size_t n, struct dcp_layout **out,
		     struct dcp_err *err)
{
	struct layout_parse ps = { .l = layout_new(name), .err = err };
	int rc;

	if (!ps.l)
		return -ENOMEM;
	if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
		text += 3; /* the byte order mark that some editors put before UTF-8 */
		n -= 3;
	}
	if (n > DCP_LAYOUT_MAX_TEXT)
		rc = dcp_layout_bad(&ps, -E2BIG, "%zu bytes; a layout has at most %u", n,
				    DCP_LAYOUT_MAX_TEXT);
	else if (is_json(text, n))
		rc = dcp_layout_json(&ps, text, n);
	else
		rc = dcp_layout_lines(&ps, text, n);
	return finish_parse(&ps, rc, out);
}

int dcp_layout_on_mesh(const struct dcp_layout *l, const char *mesh, struct dcp_layout **out,
		       struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT, rules = DCP_BUF_INIT;
	struct layout_parse ps = { .mesh_given = true, .err = err };
	unsigned *lines = calloc(l->nrule, sizeof(*lines));
	int rc;

	dcp_buf_printf(&name, "mesh:%s:%s", mesh, l->name);
	dcp_layout_print_rules(l, &rules);
	ps.l = dcp_buf_error(&name) || dcp_buf_error(&rules) ? NULL : layout_new(name.p);
	if (!lines || !ps.l) {
		free(lines);
		dcp_layout_free(ps.l);
		return -ENOMEM;
	}
	for (size_t i = 0; i < l->nrule; i++)
		lines[i] = l->rule[i].line;
	ps.lines = lines;
	rc = dcp_layout_mesh_words(&ps, mesh, strlen(mesh));
	if (rc == 0)
		rc = dcp_layout_lines(&ps, rules.p, rules.n);
	free(lines);
	return finish_parse(&ps, rc, out);
}

/*
 * Built-in layouts. Presets are texts in the grammar, over module names of the models in Hugging
 * Face. A name may have any prefix. The state that an optimizer keeps for a parameter (".exp_avg"
 * after it) is cut like the parameter.
 */

/* A parameter, and the optimizer's state for it. */
#define PARAM(p) p " " p ".* "
#define LINEAR(m) PARAM("*." m ".weight") PARAM("*." m ".bias")
#define COLWISE(m) LINEAR(m) "colwise\n"
#define ROWWISE(m) LINEAR(m) "rowwise\n"
/* An embedding or output layer: by vocabulary. */
#define TABLE(m) PARAM("*" m ".weight") PARAM("*" m ".bias") "shard(0, optional)\n"
#define ATTENTION COLWISE("q_proj") COLWISE("k_proj") COLWISE("v_proj") ROWWISE("o_proj")
/* All experts in one tensor: [experts, 2 * inner, outer] and [experts, outer, inner]. */
#define EXPERTS                                                                                \
	PARAM("*.experts.gate_up_proj")                                                        \
	"colwise(groups=[1,1])\n" PARAM("*.experts.down_proj") "rowwise\n"
#define QWEN                                                                                   \
	ATTENTION EXPERTS COLWISE("gate_proj") COLWISE("up_proj") ROWWISE("down_proj")         \
		TABLE("embed_tokens") TABLE("lm_head")
#define REST "* replicate\n"

/* clang-format off */
static const struct {
	const char *name, *rules;
} presets[] = {
	{ "llama",
	  ATTENTION COLWISE("gate_proj") COLWISE("up_proj") ROWWISE("down_proj")
	  LINEAR("gate_up_proj") "colwise(groups=[1,1])\n"
	  COLWISE("wq") COLWISE("wk") COLWISE("wv") ROWWISE("wo")
	  COLWISE("w1") ROWWISE("w2") COLWISE("w3")
	  TABLE("embed_tokens") TABLE("lm_head") TABLE("tok_embeddings") TABLE("output") REST },
	{ "qwen", "*.shared_expert.* replicate\n" QWEN REST },
	{ "qwen3-next",
	  COLWISE("linear_attn.in_proj_*") COLWISE("linear_attn.out_proj") QWEN REST },
	{ "mixtral",
	  ATTENTION EXPERTS COLWISE("w1") ROWWISE("w2") COLWISE("w3")
	  TABLE("embed_tokens") TABLE("lm_head") REST },
	/* Rows of query_key_value are (heads, 3, head size), so parts consist of whole heads. */
	{ "gpt-neox",
	  COLWISE("query_key_value") ROWWISE("attention.dense")
	  COLWISE("dense_h_to_4h") ROWWISE("dense_4h_to_h")
	  TABLE("lm_head") TABLE("embed_out") REST },
	/* Conv1D keeps its weights as [in, out]. */
	{ "gpt2",
	  PARAM("*.crossattention.c_attn.weight") "shard(1, groups=[1,1], optional)\n"
	  PARAM("*.crossattention.c_attn.bias") "shard(0, groups=[1,1], optional)\n"
	  PARAM("*.c_attn.weight") "shard(1, groups=[1,1,1], optional)\n"
	  PARAM("*.c_attn.bias") "shard(0, groups=[1,1,1], optional)\n"
	  PARAM("*.q_attn.weight") PARAM("*.c_fc.weight") "shard(1, optional)\n"
	  PARAM("*.q_attn.bias") PARAM("*.c_fc.bias") "shard(0, optional)\n"
	  PARAM("*.c_proj.weight") "shard(0, optional)\n"
	  TABLE("wte") TABLE("lm_head") REST },
};
/* clang-format on */

const char *dcp_layout_preset(size_t i)
{
	return i < DCP_LEN(presets) ? presets[i].name : NULL;
}

#define PRESETS "llama, qwen, qwen3-next, mixtral, gpt-neox and gpt2"

static const char *const stems[] = { "fsdp", "dim", "tp", NULL };
static const char *const forms[] = { "fsdp<N>", "dim<k>x<N>", "tp<N>:<preset>" };

/* Read a number without leading zeros, at most @most, at *@s. */
static bool take_number(const char **s, int64_t most, int64_t *out)
{
	const char *start = *s;

	return dcp_layout_int(s, start + strlen(start), out) && *start != '-' && *out <= most &&
	       (*start != '0' || *s == start + 1);
}

static bool take_ranks(const char **s, int64_t *out)
{
	return take_number(s, DCP_LAYOUT_MAX_RANKS, out) && *out >= 1;
}

static int fail_bad_name(const char *name, const char *form, struct dcp_err *err)
{
	bool tp = form == forms[2];

	return dcp_fail(err, -EINVAL, "layout \"%.80s\" should read %s, with 1 to %u ranks%s%s",
			name, form, DCP_LAYOUT_MAX_RANKS, tp ? "; presets are " : "",
			tp ? PRESETS : "");
}

static int fail_no_preset(const char *name, const char *preset, struct dcp_err *err)
{
	const char *known[DCP_LEN(presets) + 1] = { 0 };
	char near[64];

	for (size_t i = 0; i < DCP_LEN(presets); i++)
		known[i] = presets[i].name;
	dcp_layout_nearest(near, sizeof(near), preset, known);
	return dcp_fail(err, -EINVAL,
			"layout \"%.80s\": no preset \"%.40s\"%s; there are " PRESETS, name,
			preset, near);
}

static int fail_no_name(const char *name, struct dcp_err *err)
{
	char stem[16] = "", near[64] = "";

	for (size_t i = 0; isalpha((unsigned char)name[i]) && i < sizeof(stem) - 1; i++)
		stem[i] = (char)tolower((unsigned char)name[i]);
	dcp_layout_nearest(near, sizeof(near), stem, stems);
	for (size_t i = 0; stems[i]; i++) {
		char quoted[24];

		snprintf(quoted, sizeof(quoted), "\"%s\"", stems[i]);
		if (strstr(near, quoted))
			snprintf(near, sizeof(near), ", nearest is %s", forms[i]);
	}
	return dcp_fail(err, -ENOENT, "no built-in layout \"%.80s\"%s; there are %s, %s and %s",
			name, near, forms[0], forms[1], forms[2]);
}

static int text_of(const char *name, struct dcp_buf *out, struct dcp_err *err)
{
	size_t letters = strspn(name, "abcdefghijklmnopqrstuvwxyz");
	const char *s = name + letters;
	int64_t n, k;

	if (letters == 4 && memcmp(name, "fsdp", 4) == 0) {
		if (!take_ranks(&s, &n) || *s)
			return fail_bad_name(name, forms[0], err);
		dcp_buf_printf(out, "mesh fsdp=%jd\n* shard(0, optional)\n", (intmax_t)n);
		return 0;
	}
	if (letters == 3 && memcmp(name, "dim", 3) == 0) {
		if (!take_number(&s, DCP_MAX_NDIM - 1, &k) || *s++ != 'x' ||
		    !take_ranks(&s, &n) || *s)
			return fail_bad_name(name, forms[1], err);
		dcp_buf_printf(out, "mesh dim=%jd\n* shard(%jd, optional)\n", (intmax_t)n,
			       (intmax_t)k);
		return 0;
	}
	if (letters != 2 || memcmp(name, "tp", 2) != 0)
		return fail_no_name(name, err);
	if (!take_ranks(&s, &n) || *s++ != ':')
		return fail_bad_name(name, forms[2], err);
	for (size_t i = 0; i < DCP_LEN(presets); i++)
		if (strcmp(presets[i].name, s) == 0) {
			dcp_buf_printf(out, "mesh tp=%jd\n%s", (intmax_t)n, presets[i].rules);
			return 0;
		}
	return fail_no_preset(name, s, err);
}

int dcp_layout_named(const char *name, struct dcp_layout **out, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	int rc = text_of(name, &text, err);

	if (rc == 0)
		rc = dcp_buf_error(&text);
	if (rc == 0)
		rc = dcp_layout_parse(name, text.p, text.n, out, err);
	for (size_t i = 0; rc == 0 && i < (*out)->nrule; i++)
		(*out)->rule[i].line = 0;
	return rc;
}

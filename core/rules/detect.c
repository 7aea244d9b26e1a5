/* SPDX-License-Identifier: Apache-2.0 */
/*
 * detect: which preset the keys of a checkpoint need (each preset says which keys it is known
 * by), which groups of keys a rule joins, and whether linear weights are stored
 * [outputs, inputs] or [inputs, outputs].
 */
#include "core/rules/rules_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/text.h"
#include "core/rules/rules.h"

enum dcp_lora dcp_rules_lora(const char *key)
{
	static const char *const parts[] = { ".lora_",  ".lora.",      "_lora.",
					     "_lora1.", "_lora2.",     ".hada_",
					     ".lokr_",  ".oft_blocks", ".oft_diag" };
	static const char *const tops[] = { "lora_", "lycoris_" };
	static const char *const beside[] = { ".alpha",  ".dora_scale", ".diff",
					      ".diff_b", ".rescale",    ".scalar",
					      ".w_norm", ".b_norm",     ".on_input" };
	static const char *const apart[] = { "optimizer", "scheduler." };
	size_t n = strlen(key);

	for (size_t i = 0; i < DCP_LEN(apart); i++)
		if (strncmp(key, apart[i], strlen(apart[i])) == 0)
			return DCP_LORA_BESIDE;
	for (size_t i = 0; i < DCP_LEN(parts); i++)
		if (strstr(key, parts[i]))
			return DCP_LORA_YES;
	for (size_t i = 0; i < DCP_LEN(tops); i++)
		if (strncmp(key, tops[i], strlen(tops[i])) == 0)
			return DCP_LORA_YES;
	for (size_t i = 0; i < DCP_LEN(beside); i++)
		if (dcp_ends_with(key, n, beside[i]))
			return DCP_LORA_BESIDE;
	return DCP_LORA_NO;
}

/* Groups of keys: are they complete, what is made from them, and under which keys? */

void dcp_rules_say(const struct map *m, enum dcp_rules_what what, const char *key,
		   unsigned line, const char *text)
{
	if (m->report->say)
		m->report->say(m->report->ctx, what, key, line, text);
}

/* How many bytes at @s, the start of a part of a key, are erased? */
static size_t count_erased(const struct dcp_rules *r, const char *s)
{
	for (size_t i = 0; i < r->nerase; i++)
		if (strncmp(s, r->erase[i].text, r->erase[i].n) == 0)
			return r->erase[i].n;
	return 0;
}

/* Most keys have nothing to erase and are not copied. */
const char *dcp_rules_without_parts(const struct dcp_rules *r, const char *key,
				    struct dcp_buf *text)
{
	const char *from = key; /* bytes of the key before it are copied */
	size_t n;

	dcp_buf_reset(text);
	for (const char *s = key, *dot; s && *s && r->nerase;) {
		n = count_erased(r, s);
		if (n) {
			dcp_buf_add(text, from, (size_t)(s - from));
			from = s += n;
			if (s[-1] == '.')
				continue;
		}
		dot = strchr(s, '.');
		s = dot ? dot + 1 : NULL;
	}
	if (from == key)
		return key;
	dcp_buf_str(text, from);
	return text->p ? text->p : "";
}

const char *dcp_rules_bare_key(const struct dcp_rules *r, const char *key, struct dcp_buf *text)
{
	bool again = true;

	key = dcp_rules_without_parts(r, key, text);
	while (again) {
		again = false;
		for (size_t i = 0; i < r->nstrip; i++)
			if (strncmp(key, r->strip[i].text, r->strip[i].n) == 0) {
				key += r->strip[i].n;
				again = true;
			}
	}
	return key;
}

const char *dcp_rules_key_of(const struct map *m, const struct hit *h)
{
	return dcp_intern_text(&m->keys, h->key);
}

/* Is every member of every list present exactly once? If not, @why says which is missing or
 * doubled. */
static bool is_complete(const struct map *m, const struct group *g, char *why, size_t size)
{
	const struct rule *rule = &m->r->rule[g->rule];
	const struct hit *h = &m->hit[g->hit];
	uint32_t each = 1, i;

	while (rule->join != RULES_NO_SLOT && each < g->nhit && h[each].src == 0)
		each++;
	for (i = 0; i < g->nhit; i++) {
		if (i && h[i].src == h[i - 1].src && h[i].member == h[i - 1].member) {
			snprintf(why, size, "both %.160s and %.160s are its part",
				 dcp_rules_key_of(m, &h[i - 1]), dcp_rules_key_of(m, &h[i]));
			return false;
		}
		if (h[i].src != i / each ||
		    (rule->join != RULES_NO_SLOT && h[i].member != i % each))
			break;
	}
	if (i == g->nhit && i == rule->nsrc * each)
		return true;
	if (rule->join == RULES_NO_SLOT)
		snprintf(why, size, "line %u: there is %.160s, but no %.100s", rule->line,
			 dcp_rules_key_of(m, h),
			 rule->src[DCP_MIN(i / each, rule->nsrc - 1)].text);
	else
		snprintf(why, size, "line %u: there is %.160s, but not number %u of %.100s",
			 rule->line, dcp_rules_key_of(m, h), i % each,
			 rule->src[DCP_MIN(i / each, rule->nsrc - 1)].text);
	return false;
}

int dcp_rules_make(struct map *m, const struct group *g, struct flow *f,
		   struct dcp_tensor *first, struct dcp_err *why)
{
	const struct rule *rule = &m->r->rule[g->rule];
	char lacks[400];
	bool complete;

	f->w = dcp_arena_calloc(&m->arena, g->nhit, sizeof(*f->w));
	f->k = rule->nsrc;
	f->e = g->nhit / rule->nsrc;
	f->naxis = rule->join != RULES_NO_SLOT;
	f->axis[0] = (struct flow_axis){ rule->join, f->e };
	if (!f->w)
		return dcp_fail(why, -ENOMEM, "it needs too much memory");
	complete = is_complete(m, g, lacks, sizeof(lacks));
	for (uint32_t i = 0; i < g->nhit; i++) {
		struct dcp_tensor *t = dcp_arena_calloc(&m->arena, 1, sizeof(*t));
		int rc = t ? m->from->tensor(m->from->ctx, m->hit[g->hit + i].number, &m->arena,
					     t, why)
			   : -ENOMEM;

		if (rc < 0)
			return dcp_err_say(why, rc);
		if (i == 0)
			*first = *t;
		if (!complete)
			return dcp_fail(why, -ENODATA, "%s", lacks);
		if (t->error && !t->partly)
			return dcp_fail(why, -EIO, "%s", t->error);
		if (rule->nop == 0)
			return 0;
		rc = dcp_work_from(t, &m->arena, &f->w[i], why);
		if (rc < 0)
			return dcp_err_where(why, rc, "%.160s",
					     dcp_rules_key_of(m, &m->hit[g->hit + i]));
	}
	return dcp_rules_flow(rule, m->from, f, &m->arena, why);
}

uint64_t dcp_rules_members(const struct map *m, const struct group *g, const struct flow *f)
{
	uint64_t n = 1;

	for (uint32_t i = 0; i < f->naxis; i++)
		if (m->r->rule[g->rule].each >> f->axis[i].slot & 1)
			n *= f->axis[i].n;
	return n;
}

int dcp_rules_key_made(struct map *m, const struct group *g, const struct flow *f, uint32_t dst,
		       uint64_t member, const char **out)
{
	const struct rule *rule = &m->r->rule[g->rule];
	const struct hit *h = &m->hit[g->hit];
	struct slot_value value[DCP_RULES_MAX_SLOTS];
	const char *bare = dcp_rules_bare_key(m->r, dcp_rules_key_of(m, h), &m->text);
	char digits[DCP_RULES_MAX_SLOTS][24];
	int rc;

	dcp_buf_reset(&m->made_text);
	if (dcp_buf_error(&m->text) ||
	    !dcp_rules_match(&rule->src[h->src], bare, strlen(bare), value))
		return -ENOMEM;
	for (uint32_t i = 0; i < rule->nslot; i++)
		if (rule->each >> i & 1)
			value[i] = (struct slot_value){ "0", 1, 0 };
	for (uint32_t i = f ? f->naxis : 0; i-- > 0;) {
		const struct flow_axis *a = &f->axis[i];
		unsigned long long number = member % a->n;
		int n;

		if (!(rule->each >> a->slot & 1))
			continue;
		n = snprintf(digits[i], sizeof(digits[i]), "%llu", number);
		value[a->slot] = (struct slot_value){ digits[i], (size_t)n, number };
		member /= a->n;
	}
	rc = dcp_rules_expand(&rule->dst[dst], value, m->from->config, &m->made_text);
	if (rc < 0)
		return rc;
	dcp_buf_add(&m->made_text, "", 0);
	*out = m->made_text.n ? m->made_text.p : "";
	return dcp_buf_error(&m->made_text);
}

/*
 * Are linear weights [outputs, inputs], as torch has them, or [inputs, outputs], as Paddle has? Not
 * every file names its writer, but shapes tell: a bias is as long as there are outputs, and the
 * names of some linear layers tell that their inputs, or outputs, are as wide as the norms of the
 * same block. Only the first block is examined: keys whose first number is the lowest of all (0,
 * except in a part of a model) and whose other numbers are 0. The majority of its weights decides.
 */

enum { MOST = 512, TENSOR_MEMORY = 512 << 20 };

static const char from_width[] =
	" q_proj k_proj v_proj qkv_proj query_key_value wq wk wv gate_proj up_proj "
	"up_gate_proj "
	"gate_up_proj gate_up_fused_proj w1 w3 linear1 fc1 dense_h_to_4h in_proj ";
static const char to_width[] =
	" o_proj out_proj wo down_proj w2 linear2 fc2 dense_4h_to_h output_proj ";

/* A key "BLOCK.0.PARTS.NAME.weight" or ".bias"; BLOCK includes the number. */
struct seen {
	const char *key;
	size_t block, name,
		/* offsets in the key: end of block, begin of name, end of stem; block is 0 if the
		 * key has none */
		stem;
	uint64_t number, shape[2];
	uint32_t ndim; /* 0: the shape cannot be used */
	bool lost;     /* the shape may not be known */
};

struct look {
	struct dcp_arena arena;
	struct seen *seen;
	size_t n, cap;
	uint64_t lowest; /* lowest first number so far */
};

/* A lower block begins: of the keys so far keep only those without a number. */
static void begin_lower(struct look *l, uint64_t number)
{
	size_t n = 0;

	for (size_t i = 0; i < l->n; i++)
		if (!l->seen[i].block)
			l->seen[n++] = l->seen[i];
	l->n = n;
	l->lowest = number;
}

/* Take the key apart. Does it belong to the lowest block so far? */
static bool take_apart(struct look *l, struct seen *s)
{
	uint64_t number, first = 0;

	for (size_t at = 0, n; at < s->stem; at += n + 1) {
		const char *part = s->key + at, *end = part;

		n = strcspn(part, ".");
		s->name = at;
		if (strspn(part, "0123456789") < n || n == 0)
			continue;
		if (!dcp_take_number(&end, part + n, DCP_ANY_DIGITS, &number) ||
		    number > (s->block ? 0 : l->lowest))
			return false;
		if (!s->block) {
			first = number;
			s->block = at + n + 1;
		}
	}
	if (s->block && first < l->lowest)
		begin_lower(l, first);
	return true;
}

static int on_key(void *ctx, uint64_t number, const char *key)
{
	struct look *l = ctx;
	size_t n = strlen(key);
	bool weight = dcp_ends_with(key, n, ".weight");
	struct seen s = { .key = key, .number = number, .stem = n - (weight ? 7 : 5) };

	if ((!weight && !dcp_ends_with(key, n, ".bias")) || !take_apart(l, &s) || l->n >= MOST)
		return 0;
	s.key = dcp_arena_strndup(&l->arena, key, n);
	if (!s.key || DCP_GROW(l->seen, l->cap, l->n) < 0)
		return -ENOMEM;
	l->seen[l->n++] = s;
	return 0;
}

static int read_shapes(const struct dcp_rules_source *from, const struct look *l,
		       struct dcp_err *err)
{
	for (size_t i = 0; i < l->n; i++) {
		struct seen *s = &l->seen[i];
		dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(TENSOR_MEMORY);
		struct dcp_tensor t;
		int rc = from->tensor(from->ctx, s->number, &arena, &t, err);

		if (rc < 0)
			return rc;
		s->lost = t.error;
		if (t.ndim > 2 || !dcp_dtype_can_negate(t.dtype))
			continue; /* packed integers have other shapes */
		s->ndim = t.ndim;
		memcpy(s->shape, t.shape, t.ndim * sizeof(*t.shape));
	}
	return 0;
}

static bool is_called(const struct seen *s, const char *names)
{
	size_t n = s->stem - s->name;

	for (const char *at = names + 1;
	     n && (at = memmem(at, strlen(at), s->key + s->name, n)); at++)
		if (at[-1] == ' ' && at[n] == ' ')
			return true;
	return false;
}

/*
 * Is it the weight of a linear layer whose order tells torch from Paddle? An embedding, and an
 * lm_head tied to it, have the same order in both; transformers' Conv1D is [inputs, outputs] in
 * torch, too.
 */
static bool is_linear(const struct seen *s)
{
	return s->ndim == 2 && strcmp(s->key + s->stem, ".weight") == 0 &&
	       !memmem(s->key + s->name, s->stem - s->name, "emb", 3) &&
	       strncmp(s->key + s->name, "c_", 2) != 0 &&
	       !is_called(s, " wte wpe shared lm_head ");
}

static bool is_bias_of(const struct seen *s, const struct seen *w)
{
	return s->ndim == 1 && s->stem == w->stem && strcmp(s->key + s->stem, ".bias") == 0 &&
	       memcmp(s->key, w->key, w->stem) == 0;
}

/* Is @s a norm in the block of @w itself, not in a part of the block? */
static bool is_norm_of(const struct seen *s, const struct seen *w)
{
	return s->ndim == 1 && w->block && s->block == w->block && s->name == s->block &&
	       memcmp(s->key, w->key, w->block) == 0 &&
	       memmem(s->key + s->name, s->stem - s->name, "orm", 3);
}

/* Which dimension of @w are the outputs? -1: not known. */
static int find_outputs(const struct look *l, const struct seen *w,
			const struct dcp_rules_config *config)
{
	uint64_t out = 0, width = config ? config->hidden : 0;
	bool in = is_called(w, from_width);

	if (w->shape[0] == w->shape[1])
		return -1;
	for (size_t i = 0; i < l->n; i++) {
		const struct seen *s = &l->seen[i];

		if (is_bias_of(s, w))
			out = s->shape[0];
		else if (is_norm_of(s, w))
			width = s->shape[0];
	}
	if (!out && (in || is_called(w, to_width))) {
		out = width;
		if (in && (w->shape[0] == width || w->shape[1] == width))
			out = w->shape[w->shape[0] == width];
	}
	return out == w->shape[0] ? 0 : out == w->shape[1] ? 1 : -1;
}

/* Find out how linear weights are stored. A negative return comes from the source. */
static int dcp_rules_linear(const struct dcp_rules_source *from, enum linear *out,
			    struct dcp_err *err)
{
	struct look l = { .arena = DCP_ARENA_INIT(RULES_MAX_ARENA), .lowest = UINT64_MAX };
	int rc = from->list(from->ctx, on_key, &l, err), n[2] = { 0 };
	bool any = false;

	if (rc == 0)
		rc = read_shapes(from, &l, err);
	for (size_t i = 0; rc == 0 && i < l.n; i++) {
		int d = is_linear(&l.seen[i]) ? find_outputs(&l, &l.seen[i], from->config) : -1;

		any |= is_linear(&l.seen[i]) || l.seen[i].lost;
		if (d >= 0)
			n[d]++;
	}
	*out = n[0] > n[1]   ? LINEAR_OUT_IN
	       : n[1] > n[0] ? LINEAR_IN_OUT
	       : any         ? LINEAR_UNKNOWN
			     : LINEAR_NONE;
	dcp_arena_finish(&l.arena);
	free(l.seen);
	return rc;
}

bool dcp_rules_preset_at(size_t i, struct dcp_rules_preset *out)
{
	if (i >= dcp_rules_npresets)
		return false;
	*out = dcp_rules_presets[i];
	return true;
}

bool dcp_rules_preset_named(const char *name, struct dcp_rules_preset *out)
{
	for (size_t i = 0; dcp_rules_preset_at(i, out); i++)
		if (strcmp(out->name, name) == 0)
			return true;
	return false;
}

/* Is one of the two names part of the other? "llama", "megatron-llama". */
static bool is_overlapping(const char *name, const char *preset)
{
	return strlen(name) > 2 && (strstr(preset, name) || strstr(name, preset));
}

int dcp_rules_preset(const char *name, struct dcp_rules **out, struct dcp_err *err)
{
	struct dcp_near nearness = dcp_near_to(name);
	const char *nearest = NULL;
	struct dcp_rules_preset p;
	char near[256] = "";

	if (dcp_rules_preset_named(name, &p))
		return dcp_rules_parse(p.text, strlen(p.text), name, out, err);
	for (size_t i = 0; dcp_rules_preset_at(i, &p); i++) {
		size_t n = strlen(near);

		if (dcp_near_take(&nearness, p.name))
			nearest = p.name;
		if (is_overlapping(name, p.name) && n + strlen(p.name) + 2 < sizeof(near))
			snprintf(near + n, sizeof(near) - n, "%s%s", n ? ", " : "", p.name);
	}
	if (*near && (!nearest || nearness.best > 2))
		return dcp_fail(err, -ENOENT, "no preset %.60s, near are %s", name, near);
	return dcp_fail(err, -ENOENT, "no preset %.60s%s%s%s", name,
			nearest ? ", nearest is \"" : "", nearest ? nearest : "",
			nearest ? "\"" : "");
}

static const char last_resort[] = "hf";

struct candidate {
	struct dcp_rules *r;
	/* Number of keys that match, by mark and pattern; for "has" and "lacks" not above 1. */
	uint64_t seen[DCP_RULES_MAX_MARKS][DCP_RULES_MAX_SOURCES];
};

struct detection {
	struct candidate *c;
	size_t n;
	struct dcp_buf text;
	bool lora, others; /* keys of low-rank weights; keys of other weights */
};

static bool is_of_model(const struct dcp_rules *r, const struct dcp_rules_config *config)
{
	if (!r->nmodel || !config || !config->model_type[0])
		return true;
	for (size_t i = 0; i < r->nmodel; i++)
		if (strcmp(r->model[i].text, config->model_type) == 0)
			return true;
	return false;
}

static int look_at_key(void *ctx, uint64_t number, const char *key)
{
	struct detection *d = ctx;
	enum dcp_lora lora = dcp_rules_lora(key);

	d->lora |= lora == DCP_LORA_YES;
	d->others |= lora == DCP_LORA_NO;
	for (size_t i = 0; i < d->n; i++) {
		struct candidate *c = &d->c[i];
		const char *bare = c->r ? dcp_rules_bare_key(c->r, key, &d->text) : NULL;
		size_t n = bare ? strlen(bare) : 0;

		for (size_t k = 0; bare && k < c->r->nmark; k++)
			for (uint32_t j = 0; j < c->r->mark[k].n; j++) {
				struct slot_value value[DCP_RULES_MAX_SLOTS];

				if (!c->seen[k][j] || c->r->mark[k].kind == MARK_FEWER)
					c->seen[k][j] += dcp_rules_match(
						&c->r->mark[k].pattern[j], bare, n, value);
			}
	}
	return dcp_buf_error(&d->text);
}

/*
 * Does the candidate fit? Every pattern of at least one "has" line was seen, no pattern of a
 * "lacks" line was, and in every "fewer" line the second pattern was seen more often than the
 * first.
 */
static bool is_it(const struct candidate *c)
{
	bool has = false;

	for (size_t k = 0; c->r && k < c->r->nmark; k++) {
		const struct mark *m = &c->r->mark[k];
		uint32_t seen = 0;

		for (uint32_t j = 0; j < m->n; j++)
			seen += c->seen[k][j] > 0;
		if (m->kind == MARK_LACKS && seen)
			return false;
		if (m->kind == MARK_FEWER && c->seen[k][0] >= c->seen[k][1])
			return false;
		has |= m->kind == MARK_HAS && seen == m->n;
	}
	return has;
}

/* Is the source in a format that only torch and programs based on torch write? */
static bool is_by_torch(const char *by)
{
	static const char *const all[] = { "torch", "megatron", "deepspeed", "composer",
					   "nanotron" };
	bool is = false;

	for (size_t i = 0; by && i < DCP_LEN(all); i++)
		is |= strncmp(by, all[i], strlen(all[i])) == 0;
	return is;
}

/*
 * "@paddle": linear weights are [inputs, outputs]; "@unknown": it is not known whether they are. If
 * shapes decide, the writer does not matter, because Paddle also exports weights in the order of
 * transformers. Weights written by torch are never turned: torch uses a weight in the order in
 * which it is stored.
 */
static int look_at_linear(const struct dcp_rules_source *from, struct detection *d,
			  struct dcp_err *err)
{
	const char *by = from->framework;
	enum linear order = LINEAR_OUT_IN;
	int rc = is_by_torch(by) ? 0 : dcp_rules_linear(from, &order, err);

	if (rc < 0 || order == LINEAR_OUT_IN)
		return rc;
	if (order == LINEAR_IN_OUT || (by && strcmp(by, "paddle") == 0))
		return look_at_key(d, 0, "@paddle");
	return order == LINEAR_UNKNOWN && !by ? look_at_key(d, 0, "@unknown") : 0;
}

int dcp_rules_detect(const struct dcp_rules_source *from, struct dcp_rules_preset *out,
		     struct dcp_err *err)
{
	struct detection d = { .n = dcp_rules_npresets };
	dcp_auto_buf struct dcp_buf by = DCP_BUF_INIT;
	size_t found = SIZE_MAX;
	int rc = 0;

	d.c = calloc(d.n, sizeof(*d.c));
	if (!d.c)
		return dcp_err_say(err, -ENOMEM);
	for (size_t i = 0; rc == 0 && i < d.n; i++) {
		rc = dcp_rules_preset(dcp_rules_presets[i].name, &d.c[i].r, err);
		if (rc == 0 && !is_of_model(d.c[i].r, from->config)) {
			dcp_rules_free(d.c[i].r);
			d.c[i].r = NULL;
		}
	}
	if (rc == 0)
		rc = from->list(from->ctx, look_at_key, &d, err);
	if (rc == 0 && d.lora && !d.others)
		rc = look_at_key(&d, 0, "@lora");
	if (rc == 0 && from->framework) {
		dcp_buf_printf(&by, "@by-%s", from->framework);
		rc = dcp_buf_error(&by) ? -ENOMEM : look_at_key(&d, 0, by.p);
	}
	if (rc == 0)
		rc = look_at_linear(from, &d, err);
	if (rc == 0 && from->placed)
		rc = look_at_key(&d, 0, "@placed");
	for (size_t i = 0; rc == 0 && i < d.n && found == SIZE_MAX; i++)
		if (is_it(&d.c[i]) || strcmp(dcp_rules_presets[i].name, last_resort) == 0)
			found = i;
	if (rc == 0)
		*out = dcp_rules_presets[found];
	for (size_t i = 0; i < d.n; i++)
		dcp_rules_free(d.c[i].r);
	dcp_buf_finish(&d.text);
	free(d.c);
	return dcp_err_say(err, rc);
}

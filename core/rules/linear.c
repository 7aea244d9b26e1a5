/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Are linear weights [outputs, inputs], as torch has them, or [inputs, outputs], as Paddle has?
 * Not every file names its writer, but shapes tell: a bias is as long as there are outputs; and
 * of some linear layers the name says that their inputs, or their outputs, are as wide as the
 * norms of the same block. The first of many blocks is enough, so only keys are looked at in
 * which the first number is the lowest that any key has there, 0 but for a part of a model, and
 * every other one is 0. The weights that say the one are counted against those that say the
 * other.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/number.h"
#include "core/base/text.h"
#include "core/rules/map.h"

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
		stem; /* where these end, begin, end; block is 0 where there is none */
	uint64_t number, shape[2];
	uint32_t ndim; /* 0: of no use */
	bool lost;     /* its shape may not be known */
};

struct look {
	struct dcp_arena arena;
	struct seen *seen;
	size_t n, cap;
	uint64_t lowest; /* of first numbers, so far */
};

/* Of the keys so far, those without a number are of use to a lower block, too. */
static void begin_lower(struct look *l, uint64_t number)
{
	size_t n = 0;

	for (size_t i = 0; i < l->n; i++)
		if (!l->seen[i].block)
			l->seen[n++] = l->seen[i];
	l->n = n;
	l->lowest = number;
}

/* Is it of the lowest block so far? */
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
 * A matrix that is not an embedding, which is the same in both, as is an lm_head that is tied
 * to it; nor transformers' Conv1D, which is [inputs, outputs] in torch, too.
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

/* It stands in the same block, not in a part of that. */
static bool is_norm_of(const struct seen *s, const struct seen *w)
{
	return s->ndim == 1 && w->block && s->block == w->block && s->name == s->block &&
	       memcmp(s->key, w->key, w->block) == 0 &&
	       memmem(s->key + s->name, s->stem - s->name, "orm", 3);
}

/* Which dimension of it are the outputs? -1: nothing says. */
static int outputs(const struct look *l, const struct seen *w,
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

int dcp_rules_linear(const struct dcp_rules_source *from, enum linear *out, struct dcp_err *err)
{
	struct look l = { .arena = DCP_ARENA_INIT(RULES_MAX_ARENA), .lowest = UINT64_MAX };
	int rc = from->list(from->ctx, on_key, &l, err), n[2] = { 0 };
	bool any = false;

	if (rc == 0)
		rc = read_shapes(from, &l, err);
	for (size_t i = 0; rc == 0 && i < l.n; i++) {
		int d = is_linear(&l.seen[i]) ? outputs(&l, &l.seen[i], from->config) : -1;

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

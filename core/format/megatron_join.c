/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One tensor of the whole model from what tensor-parallel ranks hold of it. How they do is a
 * matter of rules (megatron_rules.h); what a rule says is checked against the shapes, and
 * against the arguments of the run where they tell.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/ckd.h"
#include "core/base/err.h"
#include "core/format/megatron_int.h"

/* What is being put together. */
struct joining {
	struct dcp_mlegacy *m;
	struct dcp_mplace place;
	const char *key;              /* in the whole model */
	const struct dcp_copy **copy; /* by tensor-parallel rank */
	struct dcp_mrule rule;
	struct dcp_tensor t;
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_err why;
};

static bool alike(const struct dcp_tensor *a, const struct dcp_tensor *b, uint32_t but)
{
	if (a->ndim != b->ndim || strcmp(a->dtype_name, b->dtype_name) != 0)
		return false;
	for (uint32_t k = 0; k < a->ndim; k++)
		if (k != but && a->shape[k] != b->shape[k])
			return false;
	return true;
}

static int fail_missing(struct joining *j, uint32_t tp)
{
	const struct dcp_mlegacy *m = j->m;
	const struct dcp_mrank *r = dcp_mlegacy_rank(m, tp, j->place.stage, j->place.ep);
	const struct dcp_copy *c = j->copy[tp];
	char dir[DCP_MEGATRON_DIR];

	if (c)
		return dcp_fail(&j->why, -EBADMSG, DCP_ERR_NO_OFFSET,
				"%s/" DCP_MEGATRON_FILE ": %s", m->rank[c->who].dir,
				c->t.error);
	if (r && r->error)
		return dcp_fail(&j->why, -EBADMSG, DCP_ERR_NO_OFFSET, "%s", r->error);
	if (r)
		return dcp_fail(&j->why, -EBADMSG, DCP_ERR_NO_OFFSET,
				"%s/" DCP_MEGATRON_FILE " does not hold it", r->dir);
	dcp_mlegacy_dir(m, tp, j->place.stage, j->place.ep, dir);
	return dcp_fail(&j->why, -EBADMSG, DCP_ERR_NO_OFFSET,
			"%s/" DCP_MEGATRON_FILE " is missing, which holds one of its %u parts",
			dir, m->tp);
}

/* One copy as it is: all ranks hold the same, or there is one rank. */
static void take_one(struct joining *j)
{
	const struct dcp_copy *first = NULL;

	for (uint32_t t = 0; t < j->m->tp; t++) {
		const struct dcp_copy *c = j->copy[t];

		if (!c || c->t.error)
			continue;
		if (first && !alike(&first->t, &c->t, DCP_MAX_NDIM)) {
			dcp_fail(&j->why, -EBADMSG, DCP_ERR_NO_OFFSET,
				 "%s and %s hold it in different shapes, and all ranks should "
				 "hold "
				 "the same: say how it is cut in " DCP_MEGATRON_RULES,
				 j->m->rank[first->who].dir, j->m->rank[c->who].dir);
			return;
		}
		first = first ? first : c;
	}
	if (!first) {
		for (uint32_t t = 0; t < j->m->tp && !j->why.code; t++)
			if (j->copy[t])
				fail_missing(j, t);
		return;
	}
	j->t = first->t;
	memcpy(j->shape, first->t.shape, first->t.ndim * sizeof(*j->shape));
}

/* One half or two? The second layer's inputs are as many as the first one's outputs, of a gated
 * one half as many. */
static void see_gate(struct joining *j)
{
	static const char *const pairs[][2] = { { "linear_fc1.", "linear_fc2." },
						{ "dense_h_to_4h.", "dense_4h_to_h." } };
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	uint32_t number = DCP_INTERN_NONE;
	uint64_t rows, inputs;

	for (size_t i = 0; i < DCP_LEN(pairs) && number == DCP_INTERN_NONE; i++) {
		const char *at = strstr(j->place.key, pairs[i][0]);
		const char *index = at ? strstr(at, ".weight") : NULL;

		if (!at)
			continue;
		dcp_buf_reset(&name);
		dcp_buf_printf(&name, "%u/%u/%u/%.*s%sweight%s", j->place.chunk, j->place.stage,
			       j->place.ep, (int)(at - j->place.key), j->place.key, pairs[i][1],
			       index ? index + 7 : "");
		if (!dcp_buf_error(&name))
			number = dcp_intern_find(&j->m->model.names, name.p, name.n);
	}
	if (number == DCP_INTERN_NONE || j->copy[0]->t.ndim == 0) {
		dcp_fail(&j->why, -EBADMSG, DCP_ERR_NO_OFFSET,
			 "whether it is two halves (SwiGLU) cannot be seen, its second layer "
			 "is not "
			 "there: say shard(0) or shard(0, groups=2) in " DCP_MEGATRON_RULES);
		return;
	}
	rows = j->copy[0]->t.shape[0];
	inputs = dcp_copies_at(&j->m->model, number)->first->t.ndim == 2
			 ? dcp_copies_at(&j->m->model, number)->first->t.shape[1]
			 : 0;
	if (inputs == 0 || (rows != inputs && rows / 2 != inputs)) {
		dcp_fail(&j->why, -EBADMSG, DCP_ERR_NO_OFFSET,
			 "a rank holds %" PRIu64
			 " of its rows, and its second layer has %" PRIu64
			 " inputs there: expected as many or half as many; say how it is cut "
			 "in " DCP_MEGATRON_RULES,
			 rows, inputs);
		return;
	}
	j->rule.groups = rows == inputs ? 1 : 2;
}

/* Sizes that the arguments of the run tell. */
static void check_args(struct joining *j)
{
	const struct dcp_margs *a = &j->m->args;
	uint64_t want = 0, is = j->shape[j->rule.dim];
	const char *key = j->key;

	if (j->rule.line || dcp_mplace_is_expert(key))
		return;
	if (strstr(key, "word_embeddings") || strstr(key, "output_layer.") ||
	    strstr(key, "lm_head."))
		want = a->vocab;
	else if (strstr(key, "linear_fc") || strstr(key, "dense_h_to_4h") ||
		 strstr(key, "dense_4h_to_h"))
		want = strstr(key, "shared_experts") ? 0 : a->ffn * j->rule.groups;
	else if (strstr(key, "linear_proj.") || strstr(key, "attention.dense."))
		want = a->kv_channels * a->heads;
	if (want && want != is)
		dcp_fail(&j->why, -EBADMSG, DCP_ERR_NO_OFFSET,
			 "the parts of %u tensor-parallel ranks make %" PRIu64
			 " along dimension %u, the arguments of the run say %" PRIu64
			 ": say how it is cut in " DCP_MEGATRON_RULES,
			 j->m->tp, is, j->rule.dim, want);
}

/* The whole's size along the cut, and that the parts fit. */
static bool add_up(struct joining *j)
{
	const struct dcp_tensor *first = &j->copy[0]->t;
	uint32_t d = j->rule.dim;

	j->t = *first;
	memcpy(j->shape, first->shape, first->ndim * sizeof(*j->shape));
	if (d >= first->ndim) {
		dcp_fail(&j->why, -EBADMSG, DCP_ERR_NO_OFFSET,
			 "it has %u dimensions and should be cut along dimension %u: say how "
			 "it is "
			 "cut in " DCP_MEGATRON_RULES,
			 first->ndim, d);
		return false;
	}
	j->shape[d] = 0;
	for (uint32_t t = 0; t < j->m->tp; t++) {
		const struct dcp_tensor *part = &j->copy[t]->t;
		bool fits = alike(first, part, d) && part->shape[d] % j->rule.groups == 0 &&
			    (j->rule.groups == 1 || part->shape[d] == first->shape[d]);

		if (!fits || dcp_ckd_add(&j->shape[d], j->shape[d], part->shape[d])) {
			dcp_fail(&j->why, -EBADMSG, DCP_ERR_NO_OFFSET,
				 "the parts of %s and %s do not fit together along dimension "
				 "%u: "
				 "say how it is cut in " DCP_MEGATRON_RULES,
				 j->m->rank[j->copy[0]->who].dir,
				 j->m->rank[j->copy[t]->who].dir, d);
			return false;
		}
	}
	return true;
}

/* Piece @p is [at, at + len) along the cut of the part @c, and begins at @to of the whole. */
static bool cut_piece(struct joining *j, const struct dcp_copy *c, uint64_t at, uint64_t len,
		      uint64_t to, struct dcp_piece *p)
{
	const struct dcp_tensor *part = &c->t;
	uint32_t n = part->ndim, d = j->rule.dim;
	uint64_t *dims = dcp_arena_calloc(&j->m->model.arena, 3 * (size_t)n, sizeof(*dims));
	uint64_t *lo = dims, *side = dims + n, *stride = dims + 2 * (size_t)n;
	uint64_t step = 1, last = 0, off;

	if (!dims) {
		dcp_fail(&j->why, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory for its pieces");
		return false;
	}
	*p = part->pieces[0];
	for (uint32_t k = n; k-- > 0; step *= part->shape[k])
		stride[k] = p->stride ? p->stride[k] : step;
	for (uint32_t k = 0; k < n; k++) {
		lo[k] = k == d ? to : 0;
		side[k] = k == d ? len : part->shape[k];
		last += (side[k] - 1) * stride[k]; /* inside the part, which was checked */
	}
	off = at * stride[d] * part->itemsize;
	p->off += off;
	p->nbytes = (last + 1) * part->itemsize;
	p->lo = lo;
	p->len = side;
	p->stride = p->stride || j->rule.groups > 1 ? stride : NULL;
	return dcp_shape_volume(side, n, &p->run_n);
}

static void cut_all(struct joining *j)
{
	size_t n = (size_t)j->m->tp * j->rule.groups;
	struct dcp_piece *p =
		n < 1u << 24 ? dcp_arena_calloc(&j->m->model.arena, n, sizeof(*p)) : NULL;
	uint64_t to = 0;

	if (!p) {
		dcp_fail(&j->why, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory for its pieces");
		return;
	}
	j->t.pieces = p;
	j->t.npieces = 0;
	for (uint32_t g = 0; g < j->rule.groups; g++)
		for (uint32_t t = 0; t < j->m->tp; t++) {
			const struct dcp_copy *c = j->copy[t];
			uint64_t len = c->t.shape[j->rule.dim] / j->rule.groups;

			if (c->t.npieces == 0)
				continue; /* no elements */
			if (!cut_piece(j, c, g * len, len, to, &p[j->t.npieces]))
				return;
			j->t.npieces += len > 0;
			to += len;
		}
}

static void join(struct joining *j)
{
	struct dcp_mlegacy *m = j->m;

	if (m->tp == 1) {
		take_one(j);
		return;
	}
	if (!dcp_mrules_find(&m->rules, j->key, &j->rule)) {
		dcp_fail(&j->why, -ENOTSUP, DCP_ERR_NO_OFFSET,
			 "the files do not say how %u tensor-parallel ranks hold it, and its "
			 "name "
			 "does not tell: put a line \"%.120s shard(0)\" (or replicate) "
			 "into " DCP_MEGATRON_RULES " beside %s",
			 m->tp, j->key, m->rank[0].dir);
		return;
	}
	m->ninferred += !j->rule.line;
	if (j->rule.replicate) {
		take_one(j);
		return;
	}
	for (uint32_t t = 0; t < m->tp; t++)
		if (!j->copy[t] || j->copy[t]->t.error) {
			fail_missing(j, t);
			return;
		}
	if (j->rule.gated)
		see_gate(j);
	if (j->why.code || !add_up(j))
		return;
	check_args(j);
	if (!j->why.code)
		cut_all(j);
}

static void sort_copies(struct joining *j, const struct dcp_copies_key *k)
{
	memset(j->copy, 0, j->m->tp * sizeof(*j->copy));
	for (const struct dcp_copy *c = k->first; c; c = c->next) {
		const struct dcp_copy **slot = &j->copy[j->m->rank[c->who].tp];

		if (!*slot || ((*slot)->t.error && !c->t.error))
			*slot = c;
	}
}

int dcp_mlegacy_join(struct dcp_mlegacy *m, uint32_t number, const struct dcp_mplace *place,
		     const char *key, const struct dcp_copy **copy)
{
	const struct dcp_copies_key *k = dcp_copies_at(&m->model, number);
	struct joining joining = { .m = m, .place = *place, .copy = copy }, *j = &joining;
	const struct dcp_sink *sink = m->in->sink;

	j->key = key;
	j->t = k->first->t;
	memcpy(j->shape, j->t.shape, j->t.ndim * sizeof(*j->shape));
	sort_copies(j, k);
	join(j);
	if (j->why.code == -ENOMEM)
		return -ENOMEM;
	j->t.key = key;
	j->t.path = &j->key;
	j->t.npath = 1;
	j->t.shape = j->shape;
	j->t.alias_of = NULL;
	j->t.error = j->why.code ? j->why.msg : NULL;
	if (j->t.error)
		j->t.npieces = 0;
	return sink->tensor(sink->ctx, &j->t);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joins one tensor of the whole model from the parts of all ranks. Rules (megatron_int.h) tell how
 * the tensor is cut. A rule is checked against the shapes of the parts, the next layer, and the
 * arguments of the run.
 */
#include "core/format/megatron/megatron_int.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/text.h"
#include "core/format/torch/torch.h"

/*
 * The pieces of a tensor that is cut over ranks.
 *
 * The cut dimension may consist of several sections, each of which is cut over all ranks: the
 * two halves of a gated layer, or query, key and value in checkpoint_version 0. Then rank r of R
 * holds [a_r b_r], and the whole is [a_0 .. a_R-1 b_0 .. b_R-1], as a single rank would hold it.
 */

int dcp_megatron_view_is_stacked(const char *key)
{
	size_t n = strlen(key);

	if (n < 16 || strncmp(key + n - 16, ".experts.weight", 15) != 0)
		return 0;
	return key[n - 1] == '1' ? 1 : key[n - 1] == '2' ? 2 : 0;
}

static bool is_row_major(const struct dcp_tensor *t)
{
	const uint64_t *stride = t->npieces ? t->pieces[0].stride : NULL;
	uint64_t step = 1;

	for (uint32_t k = t->ndim; stride && k-- > 0; step *= t->shape[k])
		if (stride[k] != step && t->shape[k] != 1)
			return false;
	return true;
}

/* The view of a matrix of several experts. First layers have the shape [inputs, experts * outputs],
 * but their memory is [experts, inputs, outputs]. Second layers have the shape [experts * inputs,
 * outputs], which agrees with their memory. */
static bool view_stacked(struct dcp_megatron_join *j, const struct dcp_tensor *part,
			 struct dcp_megatron_view *v)
{
	const struct dcp_megatron_legacy *m = j->m;
	uint64_t n = m->args.experts % m->ep == 0 ? m->args.experts / m->ep : 0;
	bool first = dcp_megatron_view_is_stacked(j->place.key) == 1;

	if (!n || part->ndim != 2 || !is_row_major(part) || part->shape[first] % n != 0) {
		dcp_fail(&j->why, -EBADMSG,
			 "it is a matrix of several experts: expected num_experts in the "
			 "arguments of the run (found %llu) to divide by %u expert parallel "
			 "ranks and to divide its %s, which lie row by row",
			 (unsigned long long)m->args.experts, m->ep,
			 first ? "columns" : "rows");
		return false;
	}
	v->ndim = 3;
	v->dim[0] = n;
	v->dim[1] = part->shape[0] / (first ? 1 : n);
	v->dim[2] = part->shape[1] / (first ? n : 1);
	return true;
}

/* Make @v the view of @part; false, with the reason in j->why, if that is not possible. */
static bool dcp_megatron_join_view(struct dcp_megatron_join *j, const struct dcp_tensor *part,
				   struct dcp_megatron_view *v)
{
	const uint64_t *stride = part->npieces ? part->pieces[0].stride : NULL;
	uint64_t step = 1;

	v->ndim = part->ndim;
	memcpy(v->dim, part->shape, part->ndim * sizeof(*v->dim));
	if (j->place.holder == DCP_MHOLD_STACK && dcp_megatron_view_is_stacked(j->place.key)) {
		if (!view_stacked(j, part, v))
			return false;
		stride = NULL;
	}
	for (uint32_t k = v->ndim; k-- > 0; step *= v->dim[k])
		v->stride[k] = stride ? stride[k] : step;
	return true;
}

/* ---- the whole ---- */

static uint32_t count_sections(const struct dcp_megatron_rule *r)
{
	return r->nsizes ? r->nsizes : r->groups;
}

/* Elements of section @i if all sections together have @n; 0: @n cannot be divided like this. */
static uint64_t divide_section(const struct dcp_megatron_rule *r, uint32_t i, uint64_t n)
{
	uint64_t sum = r->groups;

	if (r->nsizes) {
		sum = 0;
		for (uint32_t k = 0; k < r->nsizes; k++)
			sum += r->size[k];
	}
	if (n % sum != 0)
		return 0;
	return n / sum * (r->nsizes ? r->size[i] : 1);
}

/* Do the views @a and @b agree, except in the cut dimension? */
static bool fits_view(const struct dcp_megatron_join *j, const struct dcp_megatron_view *a,
		      const struct dcp_megatron_view *b)
{
	uint32_t d = j->rule.dim;

	if (a->ndim != b->ndim)
		return false;
	for (uint32_t k = 0; k < a->ndim; k++)
		if (k != d && a->dim[k] != b->dim[k])
			return false;
	if (b->dim[d] && !divide_section(&j->rule, 0, b->dim[d]))
		return false;
	return count_sections(&j->rule) == 1 || a->dim[d] == b->dim[d];
}

/* Check part number @i, and add its length to the shape of the whole. */
static bool add_part(struct dcp_megatron_join *j, size_t i,
		     const struct dcp_megatron_view *first)
{
	const struct dcp_tensor *part = &j->copy[i]->t;
	uint32_t d = j->rule.dim, stack = (uint32_t)(i / j->nparts);
	struct dcp_megatron_view v;

	if (!dcp_megatron_join_view(j, part, &v))
		return false;
	/* The parts of other stacks must have the same lengths as those of the first. */
	if (strcmp(part->dtype_name, j->t.dtype_name) != 0 || !fits_view(j, first, &v) ||
	    (stack > 0 && v.dim[d] != first->dim[d]) ||
	    (stack == 0 && dcp_ckd_add(&j->shape[d], j->shape[d], v.dim[d])) ||
	    (stack > 0 && i % j->nparts == 0 &&
	     dcp_ckd_add(&j->shape[0], j->shape[0], v.dim[0]))) {
		dcp_fail(&j->why, -EBADMSG,
			 "the parts of %s and %s do not fit together along dimension %u: say "
			 "how it is cut in " DCP_MEGATRON_RULES,
			 j->copy[0]->file, j->copy[i]->file, d);
		return false;
	}
	return true;
}

/* The shape of the whole, then its pieces, by the rule. */
static void dcp_megatron_join_add_up(struct dcp_megatron_join *j)
{
	struct dcp_megatron_view first;
	uint32_t d = j->rule.dim;

	j->t = j->copy[0]->t;
	if (!dcp_megatron_join_view(j, &j->t, &first))
		return;
	j->t.ndim = first.ndim;
	memcpy(j->shape, first.dim, first.ndim * sizeof(*j->shape));
	if (d >= first.ndim || (j->nstacks > 1 && d == 0)) {
		dcp_fail(&j->why, -EBADMSG,
			 "it has %u dimension%s and should be cut along dimension %u: say how "
			 "it is cut in " DCP_MEGATRON_RULES,
			 first.ndim, dcp_s(first.ndim), d);
		return;
	}
	j->shape[d] = 0;
	for (size_t i = 0; i < (size_t)j->nstacks * j->nparts; i++)
		if (!add_part(j, i, &first))
			return;
}

/* ---- its pieces ---- */

/* Elements [at, at + len) along the cut of @part, which begin at element @to of the whole. */
struct cut {
	const struct dcp_tensor *part;
	uint32_t stack;
	uint64_t at, len, to;
};

static bool cut_piece(struct dcp_megatron_join *j, const struct cut *c, struct dcp_piece *p)
{
	const struct dcp_tensor *part = c->part;
	uint32_t n = j->t.ndim, d = j->rule.dim;
	uint64_t *lo = dcp_arena_calloc(&j->m->model.arena, 2 * (size_t)n, sizeof(*lo));
	uint64_t *len = lo + n, at[DCP_MAX_NDIM] = { 0 };
	struct dcp_megatron_view v;

	if (!dcp_megatron_join_view(j, part, &v))
		return false;
	for (uint32_t k = 0; lo && k < n; k++) {
		lo[k] = k == d ? c->to : k == 0 ? c->stack * v.dim[0] : 0;
		len[k] = k == d ? c->len : v.dim[k];
	}
	at[d] = c->at;
	*p = part->pieces[0];
	/* this fails only without memory: the cut lies inside the part, which was checked */
	if (lo && dcp_torch_placement_piece(&(struct dcp_torch_placement_box){ lo, at, len }, n,
					    v.dim, p->stride ? v.stride : NULL, part->itemsize,
					    &j->m->model.arena, p) == 0)
		return true;
	dcp_fail(&j->why, -ENOMEM, "out of memory for its pieces");
	return false;
}

/* Make the pieces of all sections for one stack (the experts of one expert-parallel rank), or for
 * a tensor that is not an expert's. */
static bool cut_stack(struct dcp_megatron_join *j, uint32_t stack, struct dcp_piece *p)
{
	uint64_t to = 0;

	for (uint32_t g = 0; g < count_sections(&j->rule); g++)
		for (uint32_t i = 0; i < j->nparts; i++) {
			const struct dcp_tensor *part =
				&j->copy[(size_t)stack * j->nparts + i]->t;
			struct cut c = { .part = part, .stack = stack, .to = to };
			struct dcp_megatron_view v;

			if (part->npieces == 0)
				continue; /* no elements */
			if (!dcp_megatron_join_view(j, part, &v))
				return false;
			for (uint32_t k = 0; k < g; k++)
				c.at += divide_section(&j->rule, k, v.dim[j->rule.dim]);
			c.len = divide_section(&j->rule, g, v.dim[j->rule.dim]);
			if (c.len && !cut_piece(j, &c, &p[j->t.npieces++]))
				return false;
			to += c.len;
		}
	return true;
}

static void dcp_megatron_join_cut(struct dcp_megatron_join *j)
{
	size_t n = (size_t)j->nstacks * j->nparts * count_sections(&j->rule);
	struct dcp_piece *p =
		n < 1u << 24 ? dcp_arena_calloc(&j->m->model.arena, n, sizeof(*p)) : NULL;

	if (!p) {
		dcp_fail(&j->why, -ENOMEM, "out of memory for its pieces");
		return;
	}
	j->t.pieces = p;
	j->t.npieces = 0;
	for (uint32_t s = 0; s < j->nstacks; s++)
		if (!cut_stack(j, s, p))
			return;
}

/* The size of a tensor as it follows from other parts of the checkpoint: from the next layer, or
 * from the arguments of the run. */

/* ---- gates ---- */

/* Names of first layers, and of the weight of the second layer. */
static const char *const pairs[][2] = { { "linear_fc1.", "linear_fc2.weight" },
					{ "dense_h_to_4h.", "dense_4h_to_h.weight" },
					{ ".weight1", ".weight2" } };

/* The second layer of the same rank, or NULL. */
static const struct dcp_tensor *find_second(const struct dcp_megatron_join *j)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT, name = DCP_BUF_INIT;
	struct dcp_megatron_place place = j->place;
	uint32_t number = DCP_INTERN_NONE;

	for (size_t i = 0; i < DCP_LEN(pairs) && number == DCP_INTERN_NONE; i++) {
		const char *at = strstr(place.key, pairs[i][0]);
		const char *end = place.key + strlen(place.key);

		if (!at)
			continue;
		/* An expert's number is at the end of "weight3" and "bias3". */
		if (dcp_buf_printf(&key, "%.*s%s%s", (int)(at - j->place.key), j->place.key,
				   pairs[i][1],
				   at[0] == '.' ? "" : dcp_digits_before(at, end)) < 0)
			return NULL;
		place.key = key.p;
		if (dcp_megatron_place_print(&place, &name) == 0)
			number = dcp_intern_find(&j->m->model.names, name.p, name.n);
		break;
	}
	if (number == DCP_INTERN_NONE)
		return NULL;
	for (const struct dcp_copy *c = dcp_copies_at(&j->m->model, number)->first; c;
	     c = c->next)
		if (!c->t.error && c->t.ndim == 2)
			return &c->t;
	return NULL;
}

/* Decide whether the first layer is one half or two. The second layer has as many inputs as the
 * first has outputs, or half as many if the first layer is gated. */
static void dcp_megatron_join_see_gate(struct dcp_megatron_join *j)
{
	const struct dcp_tensor *second = find_second(j);
	struct dcp_megatron_view v;
	uint64_t rows, inputs;

	if (!dcp_megatron_join_view(j, &j->copy[0]->t, &v))
		return;
	if (!second || j->rule.dim >= v.ndim) {
		dcp_fail(&j->why, -EBADMSG,
			 "whether it is two halves (SwiGLU) cannot be seen, its second layer "
			 "is not there: say shard(%u) or shard(%u, groups=2) "
			 "in " DCP_MEGATRON_RULES,
			 j->rule.dim, j->rule.dim);
		return;
	}
	rows = v.dim[j->rule.dim];
	inputs = v.ndim == 3 ? second->shape[0] / v.dim[0] : second->shape[1];
	if (inputs == 0 || (rows != inputs && (rows % 2 || rows / 2 != inputs))) {
		dcp_fail(&j->why, -EBADMSG,
			 "a rank holds %" PRIu64
			 " of its rows, and its second layer has %" PRIu64
			 " inputs there: expected as many or half as many; say how it is cut "
			 "in " DCP_MEGATRON_RULES,
			 rows, inputs);
		return;
	}
	j->rule.groups = rows == inputs ? 1 : 2;
}

/* ---- arguments ---- */

static bool begins_with(const char *key, const char *with)
{
	return strncmp(key, with, strlen(with)) == 0;
}

/* Does @key belong to the layers that the arguments describe? Layers of vision towers do not. */
static bool is_layer(const char *key)
{
	return begins_with(key, "encoder.layers.") || begins_with(key, "decoder.layers.") ||
	       begins_with(key, "transformer.layers.") || begins_with(key, "layers.");
}

/* The size of the cut dimension that follows from the arguments; 0: unknown. */
static uint64_t expected_size(const struct dcp_megatron_join *j)
{
	const struct dcp_margs *a = &j->m->args;
	const char *key = j->key;

	if (begins_with(key, "embedding.word_embeddings") ||
	    begins_with(key, "word_embeddings") || begins_with(key, "output_layer.") ||
	    begins_with(key, "lm_head."))
		return a->vocab;
	if (!is_layer(key) || a->varied || j->place.holder != DCP_MHOLD_ALL ||
	    strstr(key, "shared_experts"))
		return 0;
	if (strstr(key, "linear_fc") || strstr(key, "dense_h_to_4h") ||
	    strstr(key, "dense_4h_to_h"))
		return a->ffn * j->rule.groups;
	if (strstr(key, "linear_q_down_proj."))
		return a->q_rank;
	if (strstr(key, "linear_kv_down_proj."))
		return a->kv_rank;
	if (strstr(key, "linear_qkv_down_proj."))
		return a->q_rank + a->kv_rank;
	if (strstr(key, "linear_proj.") || strstr(key, "attention.dense."))
		return a->value_channels * a->heads;
	if (strstr(key, "linear_qkv.") || strstr(key, ".query_key_value."))
		return a->kv_channels * a->qkv_heads;
	return 0;
}

void dcp_megatron_join_see_latent(struct dcp_megatron_join *j)
{
	uint64_t want = expected_size(j);

	for (uint32_t i = 0; i < j->nparts && want; i++) {
		const struct dcp_copy *c = j->copy[i];

		if (!c || c->t.error || !c->t.ndim)
			continue;
		if (c->t.shape[0] != want)
			j->rule = (struct dcp_megatron_rule){ .dim = 0, .groups = 1 };
		return;
	}
}

/* Check the size of the cut dimension against the arguments of the run. */
static void dcp_megatron_join_check_args(struct dcp_megatron_join *j)
{
	uint64_t want = expected_size(j), is = j->shape[j->rule.dim];

	if (j->rule.line || !want || want == is)
		return;
	dcp_fail(&j->why, -EBADMSG,
		 "the parts of %u tensor-parallel ranks make %" PRIu64
		 " along dimension %u, the arguments of the run say %" PRIu64
		 ": say how it is cut in " DCP_MEGATRON_RULES,
		 j->nparts, is, j->rule.dim, want);
}

/* The rank that should hold part number @i of the tensor, or NULL: then @dir is the name of the
 * missing directory. */
static const struct dcp_megatron_rank *home_of(const struct dcp_megatron_join *j, size_t i,
					       char dir[DCP_MEGATRON_DIR])
{
	const struct dcp_megatron_legacy *m = j->m;
	uint32_t part = (uint32_t)(i % j->nparts), stack = (uint32_t)(i / j->nparts);
	uint32_t ep = j->place.holder == DCP_MHOLD_STACK ? stack : j->place.ep;
	uint32_t first, step;
	const struct dcp_megatron_rank *r;

	if (j->place.holder == DCP_MHOLD_ALL) {
		r = dcp_megatron_legacy_rank(m, part, j->place.stage, DCP_MEGATRON_ANY,
					     DCP_MEGATRON_ANY);
		dcp_megatron_legacy_expected(m, part, &first, &step);
		dcp_megatron_legacy_dir(m, part, j->place.stage, first, dir);
		return r;
	}
	r = dcp_megatron_legacy_rank(m, DCP_MEGATRON_ANY, j->place.stage, ep, part);
	for (uint32_t t = part; t < m->tp; t += m->etp) {
		dcp_megatron_legacy_expected(m, t, &first, &step);
		if (ep < first || (ep - first) % step)
			continue;
		dcp_megatron_legacy_dir(m, t, j->place.stage, ep, dir);
		break;
	}
	return r;
}

static void fail_missing(struct dcp_megatron_join *j, size_t i)
{
	const struct dcp_copy *c = j->copy[i];
	char dir[DCP_MEGATRON_DIR] = "";
	const struct dcp_megatron_rank *r = home_of(j, i, dir);

	if (c)
		dcp_fail(&j->why, -EBADMSG, "%s/%s: %s", j->m->rank[c->who].dir,
			 j->m->rank[c->who].file, c->t.error);
	else if (r && r->error)
		dcp_fail(&j->why, -EBADMSG, "%s", r->error);
	else if (r)
		dcp_fail(&j->why, -EBADMSG, "%s/%s does not hold it", r->dir, r->file);
	else
		dcp_fail(&j->why, -EBADMSG, "%s/%s is missing, which holds one of its %u parts",
			 dir, j->m->file, j->nstacks * j->nparts);
}

/* Take one copy unchanged, because all ranks hold the same, or because there is only one rank. */
static void take_one(struct dcp_megatron_join *j)
{
	const struct dcp_copy *first = NULL;

	for (uint32_t i = 0; i < j->nparts; i++) {
		const struct dcp_copy *c = j->copy[i];

		if (!c || c->t.error)
			continue;
		if (first && !dcp_copies_alike(&first->t, &c->t)) {
			dcp_fail(&j->why, -EBADMSG,
				 "%s and %s hold it in different shapes, and all ranks should "
				 "hold the same: say how it is cut in " DCP_MEGATRON_RULES,
				 first->file, c->file);
			return;
		}
		first = first ? first : c;
	}
	if (!first) {
		for (uint32_t i = 0; i < j->nparts && !j->why.code; i++)
			if (j->copy[i])
				fail_missing(j, i);
		return;
	}
	j->t = first->t;
	memcpy(j->shape, first->t.shape, first->t.ndim * sizeof(*j->shape));
}

static void find_rule(struct dcp_megatron_join *j)
{
	struct dcp_megatron_legacy *m = j->m;

	if (!dcp_megatron_rules_find(&m->rules, j->key, &j->rule)) {
		dcp_fail(&j->why, -ENOTSUP,
			 "the files do not say how %u tensor-parallel ranks hold it, and its "
			 "name does not show it: put a line \"%.120s shard(0)\" (or replicate) "
			 "into " DCP_MEGATRON_RULES " beside %s",
			 j->nparts, j->key, m->rank[0].dir);
		return;
	}
	m->ninferred += !j->rule.line;
	if (j->rule.old && m->version < 1)
		j->rule.groups = j->rule.old;
}

/* Is the tensor, by its name, of a kind that dcpfs cannot join? The reason is in j->why. */
static bool is_refused(struct dcp_megatron_join *j)
{
	const struct dcp_megatron_legacy *m = j->m;

	if (j->place.holder == DCP_MHOLD_ALL)
		return false;
	if (dcp_megatron_legacy_lost_experts(m)) {
		dcp_fail(&j->why, -ENOTSUP,
			 "experts are cut by %u tensor-parallel ranks and everything else by "
			 "%u: several ranks wrote to the same mp_rank file, and only one of "
			 "their parts is left; save with --ckpt-format torch_dist",
			 m->etp, m->tp);
		return true;
	}
	if (j->nstacks > 1 && !dcp_megatron_view_is_stacked(j->place.key)) {
		dcp_fail(&j->why, -ENOTSUP,
			 "each of %u expert-parallel ranks has its own under this name, and "
			 "how they follow one another is not known; save with --ckpt-format "
			 "torch_dist",
			 j->nstacks);
		return true;
	}
	return false;
}

static void join_parts(struct dcp_megatron_join *j)
{
	size_t n = (size_t)j->nstacks * j->nparts;

	if (is_refused(j))
		return;
	if (n == 1) {
		take_one(j);
		return;
	}
	find_rule(j);
	if (j->why.code)
		return;
	if (j->rule.replicate && !j->rule.line && strstr(j->key, "_down_proj."))
		dcp_megatron_join_see_latent(j);
	if (j->rule.replicate && j->nstacks == 1) {
		take_one(j);
		return;
	}
	for (size_t i = 0; i < n; i++)
		if (!j->copy[i] || j->copy[i]->t.error) {
			fail_missing(j, i);
			return;
		}
	if (j->rule.gated)
		dcp_megatron_join_see_gate(j);
	if (!j->why.code)
		dcp_megatron_join_add_up(j);
	if (!j->why.code)
		dcp_megatron_join_check_args(j);
	if (!j->why.code)
		dcp_megatron_join_cut(j);
}

/* ---- copies ---- */

size_t dcp_megatron_legacy_max_copies(const struct dcp_megatron_legacy *m)
{
	return DCP_MAX(m->tp, DCP_MIN(m->ep * m->etp, (uint32_t)DCP_MEGATRON_MAX_PARTS));
}

static void sort_copies(struct dcp_megatron_join *j, const struct dcp_copies_key *k)
{
	const struct dcp_megatron_legacy *m = j->m;

	j->nstacks = j->place.holder == DCP_MHOLD_STACK ? m->ep : 1;
	j->nparts = j->place.holder == DCP_MHOLD_ALL ? m->tp : m->etp;
	if ((size_t)j->nstacks * j->nparts > dcp_megatron_legacy_max_copies(m)) {
		dcp_fail(&j->why, -E2BIG,
			 "%u expert and %u tensor parallel ranks: at most %d parts of one "
			 "tensor are joined",
			 j->nstacks, j->nparts, DCP_MEGATRON_MAX_PARTS);
		return;
	}
	memset(j->copy, 0, (size_t)j->nstacks * j->nparts * sizeof(*j->copy));
	for (const struct dcp_copy *c = k->first; c; c = c->next) {
		const struct dcp_megatron_rank *r = &m->rank[c->who];
		size_t stack = j->nstacks > 1 ? r->ep : 0;
		const struct dcp_copy **slot = &j->copy[stack * j->nparts + r->tp % j->nparts];

		if (!*slot || ((*slot)->t.error && !c->t.error))
			*slot = c;
	}
}

int dcp_megatron_legacy_join(struct dcp_megatron_legacy *m, uint32_t number,
			     const struct dcp_megatron_place *place, const char *key,
			     const struct dcp_copy **copy)
{
	const struct dcp_copies_key *k = dcp_copies_at(&m->model, number);
	struct dcp_megatron_join joining = { .m = m, .place = *place, .copy = copy },
				 *j = &joining;

	j->key = key;
	j->t = k->first->t;
	memcpy(j->shape, j->t.shape, j->t.ndim * sizeof(*j->shape));
	sort_copies(j, k);
	if (!j->why.code)
		join_parts(j);
	if (j->why.code == -ENOMEM)
		return -ENOMEM;
	m->old_order |= m->version < 2 && strstr(key, "key_value.");
	j->t.key = key;
	j->t.path = &j->key;
	j->t.npath = 1;
	j->t.shape = j->shape;
	j->t.alias_of = NULL;
	j->t.error = j->why.code ? j->why.msg : NULL;
	return dcp_emit_tensor(m->in->sink, &j->t);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_for_auto_inference: each rank wrote its part of every parameter as
 * {prefix}_dist{rank}.pdparams, and in the .pdattr beside it how it was cut:
 *
 *	process_shape  the mesh: [data parallel, model parallel]
 *	process_group  the ranks in it, row-major
 *	dims_mapping   for each dimension of the tensor that of the mesh which cuts it into
 *	               equal pieces, or -1
 *
 * Ranks at the same place of all meshes that cut have copies; the lowest rank's is emitted.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/format/paddle/plain/auto_int.h"

enum { MEMORY = 1 << 30 }; /* ten thousand parameters on a thousand ranks */

static struct dcp_pdentry *find_entry(struct dcp_pdjoin *j, const char *key)
{
	struct dcp_pdentry fresh = { 0 };
	uint32_t number;
	int rc = dcp_intern_add(&j->keys, key, strlen(key), DCP_INTERN_NONE, &number);

	if (rc == 1)
		dcp_buf_add(&j->entries, &fresh, sizeof(fresh));
	return rc < 0 || dcp_buf_error(&j->entries)
		       ? NULL
		       : DCP_ITEMS(j->entries, struct dcp_pdentry) + number;
}

/* ---- reading ---- */

static const uint64_t *keep_dims(struct dcp_pdjoin *j, const uint64_t *dims, uint32_t n)
{
	uint64_t *copy = dcp_arena_calloc(&j->arena, (size_t)n + 1, sizeof(*copy));

	if (copy && n)
		memcpy(copy, dims, n * sizeof(*copy));
	return copy;
}

static const char *keep_text(struct dcp_pdjoin *j, const char *s)
{
	return dcp_arena_strndup(&j->arena, s, strlen(s));
}

static bool keep_pieces(struct dcp_pdjoin *j, struct dcp_tensor *to, const struct dcp_tensor *t)
{
	struct dcp_piece *p = dcp_arena_calloc(&j->arena, t->npieces + 1, sizeof(*p));

	to->pieces = p;
	for (size_t i = 0; p && i < t->npieces; i++) {
		const struct dcp_piece *from = &t->pieces[i];

		p[i] = *from;
		p[i].lo = keep_dims(j, from->lo, t->ndim);
		p[i].len = keep_dims(j, from->len, t->ndim);
		if (from->stride)
			p[i].stride = keep_dims(j, from->stride, t->ndim);
		if (!p[i].lo || !p[i].len || (from->stride && !p[i].stride))
			return false;
	}
	return p;
}

/* Tied parameters share their bytes in one file only: what is joined is no alias. */
static bool keep_tensor(struct dcp_pdjoin *j, struct dcp_tensor *to, const struct dcp_tensor *t)
{
	const char **path = dcp_arena_calloc(&j->arena, t->npath + 1, sizeof(*path));

	*to = *t;
	to->alias_of = NULL;
	to->key = keep_text(j, t->key);
	to->dtype_name = keep_text(j, t->dtype_name);
	if (t->error)
		to->error = keep_text(j, t->error);
	to->shape = keep_dims(j, t->shape, t->ndim);
	to->path = path;
	for (size_t i = 0; path && i < t->npath; i++) {
		path[i] = keep_text(j, t->path[i]);
		if (!path[i])
			return false;
	}
	return path && to->key && to->dtype_name && to->shape && (!t->error || to->error) &&
	       keep_pieces(j, to, t);
}

static int on_tensor(void *ctx, const struct dcp_tensor *t)
{
	struct dcp_pdjoin *j = ctx;
	struct dcp_pdheld *h = dcp_arena_calloc(&j->arena, 1, sizeof(*h));
	struct dcp_pdentry *e = find_entry(j, t->key);

	if (!h || !e || !keep_tensor(j, &h->t, t))
		return dcp_pdjoin_no_memory(j);
	h->rank = j->at;
	if (e->last_held)
		e->last_held->next = h;
	else
		e->held = h;
	e->last_held = h;
	return 0;
}

static int always_labelled(void *ctx, const char *key)
{
	(void)ctx;
	(void)key;
	return 1;
}

/* Parameters are all that Paddle saves this way; what else there may be is emitted by rank. */
static int on_object(void *ctx, const struct dcp_object *o)
{
	struct dcp_pdjoin *j = ctx;
	struct dcp_pdpart part = *j->ranks[j->at].part;
	struct dcp_object labelled = *o;
	struct dcp_pdkey k;
	int rc;

	part.choose = always_labelled;
	rc = dcp_pdkey_init(&k, &part, o->key, o->path, o->npath);
	if (rc == 1) {
		labelled.key = k.key;
		labelled.path = k.path;
		labelled.npath = k.npath;
		rc = j->in->sink->object(j->in->sink->ctx, &labelled);
	}
	dcp_pdkey_finish(&k);
	return rc;
}

static int on_file(void *ctx, const char *name, uint32_t *number)
{
	struct dcp_pdjoin *j = ctx;

	return j->in->sink->file(j->in->sink->ctx, name, number);
}

static int on_meta(void *ctx, const char *name, const char *value)
{
	struct dcp_pdjoin *j = ctx;

	return j->in->sink->meta(j->in->sink->ctx, name, value);
}

static int read_params(struct dcp_pdjoin *j)
{
	struct dcp_pdrank *r = &j->ranks[j->at];
	struct dcp_sink sink = {
		.file = on_file,
		.tensor = on_tensor,
		.object = on_object,
		.meta = on_meta,
		.ctx = j,
	};
	struct dcp_pdpart part = *r->part;
	struct dcp_err why = { 0 };
	int rc;

	part.sink = &sink;
	rc = dcp_pdpart_emit(j->in->dir, &part, &why);
	if (rc == 0 || rc == -ENOMEM || rc == -ENOSPC || !why.code)
		return rc == -ENOMEM ? dcp_pdjoin_no_memory(j) : rc;
	r->why = keep_text(j, why.msg);
	return r->why ? dcp_pdpart_broken(r->part, why.msg) : dcp_pdjoin_no_memory(j);
}

/* "w_dist1.pdparams" -> "w_dist1.pdattr" */
static void attr_file(char out[DCP_GROUP_MAX + 8], const char *params)
{
	const char *dot = strrchr(params, '.');
	size_t n = dot ? (size_t)(dot - params) : strlen(params);

	memcpy(out, params, n);
	strcpy(out + n, ".pdattr");
}

static int add_said(struct dcp_pdjoin *j, struct dcp_pv root)
{
	size_t n = 0;
	const struct dcp_pv *kv = dcp_pv_pairs(root, &n);

	for (size_t i = 0; i < n; i++) {
		const char *key = dcp_pv_str(kv[2 * i]);
		struct dcp_pdsaid *s = dcp_arena_calloc(&j->arena, 1, sizeof(*s));
		struct dcp_pdentry *e = key ? find_entry(j, key) : NULL;

		if (!key)
			continue;
		if (!s || !e)
			return dcp_pdjoin_no_memory(j);
		s->rank = j->at;
		s->v = kv[2 * i + 1];
		if (e->last_said)
			e->last_said->next = s;
		else
			e->said = s;
		e->last_said = s;
	}
	return 0;
}

/* Each rank's attributes say the same of a key that it shares: one may be missing. */
static int read_attr(struct dcp_pdjoin *j)
{
	struct dcp_pdrank *r = &j->ranks[j->at];
	char file[DCP_GROUP_MAX + 8];
	dcp_auto_input struct dcp_input input = { .fd = -1 };
	struct dcp_err why = { 0 };
	uint32_t number;
	int rc;

	attr_file(file, r->part->file);
	if (!dcp_dir_find(j->in->dir, file))
		return 0;
	rc = j->in->sink->file(j->in->sink->ctx, file, &number);
	if (rc < 0)
		return rc;
	rc = dcp_dir_input(j->in->dir, file, &input, &why);
	if (rc == 0)
		rc = dcp_pickle_read(&input.src, NULL, &r->attr, NULL, &why);
	if (rc == -ENOMEM)
		return dcp_pdjoin_no_memory(j);
	if (rc == 0)
		return add_said(j, dcp_pickle_root(r->attr));
	dcp_err_where(&why, rc, "%s", file);
	return dcp_pdpart_broken(&(struct dcp_pdpart){ .label = file, .sink = j->in->sink },
				 why.msg);
}

static int by_number(const void *a, const void *b)
{
	const struct dcp_pdrank *x = a, *y = b;

	return (x->number > y->number) - (x->number < y->number);
}

/* Files of no rank are in no process_group: they get numbers that no rank has. */
static uint64_t rank_number(const struct dcp_pdname *name, size_t i, size_t n)
{
	if (name->one_rank && strcmp(name->extension, "pdparams") == 0)
		return name->rank;
	return n == 1 ? 0 : UINT64_MAX - i;
}

/* Every rank's files; what is wrong with one is noted there. */
static int read_ranks(struct dcp_pdjoin *j, const struct dcp_pdpart *parts,
		      const struct dcp_pdname *names, size_t n)
{
	size_t nbroken = 0;
	int rc = 0;

	j->nranks = n;
	j->ranks = dcp_arena_calloc(&j->arena, n, sizeof(*j->ranks));
	if (!j->ranks)
		return dcp_pdjoin_no_memory(j);
	for (size_t i = 0; i < n; i++) {
		j->ranks[i].part = &parts[i];
		j->ranks[i].number = rank_number(&names[i], i, n);
	}
	qsort(j->ranks, n, sizeof(*j->ranks), by_number);
	for (j->at = 0; rc == 0 && j->at < n; j->at++) {
		rc = read_params(j);
		if (rc == 0)
			rc = read_attr(j);
		nbroken += j->ranks[j->at].why != NULL;
	}
	if (rc == 0 && nbroken == n)
		return dcp_fail(j->err, -EBADMSG, DCP_ERR_NO_OFFSET, "%s", j->ranks[0].why);
	return rc;
}

int dcp_pdauto(const struct dcp_load *in, const struct dcp_pdpart *parts,
	       const struct dcp_pdname *names, size_t n, struct dcp_err *err)
{
	struct dcp_pdjoin j = { .in = in, .err = err };
	int rc;

	dcp_arena_init(&j.arena, MEMORY);
	rc = read_ranks(&j, parts, names, n);
	if (rc == 0)
		rc = dcp_pdjoin_emit(&j);
	for (size_t i = 0; j.ranks && i < j.nranks; i++)
		dcp_pickle_free(j.ranks[i].attr);
	dcp_intern_finish(&j.keys);
	dcp_buf_finish(&j.entries);
	dcp_arena_finish(&j.arena);
	return rc;
}

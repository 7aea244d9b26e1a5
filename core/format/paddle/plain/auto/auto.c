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
#include "core/base/sort.h"
#include "core/format/paddle/plain/auto/auto_int.h"

/* ---- reading ---- */

static int on_tensor(void *ctx, const struct dcp_tensor *t)
{
	struct dcp_pdjoin *j = ctx;

	const char *file = j->ranks[j->at].part->file;

	return dcp_copies_add(&j->copies, t, j->at, file) < 0 ? -ENOMEM : 0;
}

static int always_labelled(void *ctx, const char *key)
{
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
		rc = dcp_emit_object(j->in->sink, &labelled);
	}
	dcp_pdkey_finish(&k);
	return rc;
}

static int read_params(struct dcp_pdjoin *j)
{
	struct dcp_pdrank *r = &j->ranks[j->at];
	struct dcp_sink sink = {
		.tensor = on_tensor, .object = on_object, .ctx = j, .next = j->in->sink
	};
	struct dcp_pdpart part = *r->part;
	struct dcp_err why = { 0 };
	int rc;

	part.sink = &sink;
	rc = dcp_pdpart_emit(j->in->dir, &part, &why);
	if (rc == 0 || rc == -ENOMEM || rc == -ENOSPC || !why.code)
		return rc;
	r->why = dcp_arena_strdup(&j->copies.arena, why.msg);
	return r->why ? dcp_pdpart_broken(r->part, why.msg) : -ENOMEM;
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
		struct dcp_pdsaid *s = dcp_arena_calloc(&j->copies.arena, 1, sizeof(*s));
		struct dcp_pdentry *e = NULL;
		uint32_t number;

		if (!key)
			continue;
		if (dcp_copies_number(&j->copies, key, &number) == 0)
			e = dcp_buf_at(&j->entries, number, sizeof(*e));
		if (!s || !e)
			return -ENOMEM;
		s->rank = j->at;
		s->v = kv[2 * i + 1];
		if (e->last)
			e->last->next = s;
		else
			e->said = s;
		e->last = s;
	}
	return 0;
}

/* Each rank's attributes say the same of a key that it shares: one may be missing. */
static int read_attr(struct dcp_pdjoin *j)
{
	struct dcp_pdrank *r = &j->ranks[j->at];
	char file[DCP_GROUP_MAX + 8];
	dcp_auto_input struct dcp_input input = { 0 };
	struct dcp_err why = { 0 };
	uint32_t number;
	int rc;

	attr_file(file, r->part->file);
	if (!dcp_dir_find(j->in->dir, file))
		return 0;
	rc = dcp_emit_file(j->in->sink, file, &number);
	if (rc < 0)
		return rc;
	rc = dcp_dir_input(j->in->dir, file, &input, &why);
	if (rc == 0)
		rc = dcp_pickle_read(&input.src, NULL, &r->attr, NULL, &why);
	if (rc == -ENOMEM)
		return -ENOMEM;
	if (rc == 0)
		return add_said(j, dcp_pickle_root(r->attr));
	dcp_err_where(&why, rc, "%s", file);
	return dcp_pdpart_broken(&(struct dcp_pdpart){ .label = file, .sink = j->in->sink },
				 why.msg);
}

static int by_number(const void *a, const void *b)
{
	const struct dcp_pdrank *x = a, *y = b;

	return DCP_CMP(x->number, y->number);
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
	j->ranks = dcp_arena_calloc(&j->copies.arena, n, sizeof(*j->ranks));
	if (!j->ranks)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		j->ranks[i].part = &parts[i];
		j->ranks[i].number = rank_number(&names[i], i, n);
	}
	DCP_SORT(j->ranks, n, by_number);
	for (j->at = 0; rc == 0 && j->at < n; j->at++) {
		rc = read_params(j);
		if (rc == 0)
			rc = read_attr(j);
		nbroken += j->ranks[j->at].why != NULL;
	}
	if (rc == 0 && nbroken == n)
		return dcp_fail(j->err, -EBADMSG, "%s", j->ranks[0].why);
	return rc;
}

int dcp_pdauto(const struct dcp_load *in, const struct dcp_pdpart *parts,
	       const struct dcp_pdname *names, size_t n, struct dcp_err *err)
{
	struct dcp_pdjoin j = { .in = in, .err = err };
	int rc;

	dcp_copies_init(&j.copies);
	rc = read_ranks(&j, parts, names, n);
	if (rc == 0)
		rc = dcp_pdjoin_emit(&j);
	for (size_t i = 0; j.ranks && i < j.nranks; i++)
		dcp_pickle_free(j.ranks[i].attr);
	dcp_buf_finish(&j.entries);
	dcp_copies_finish(&j.copies);
	return rc;
}

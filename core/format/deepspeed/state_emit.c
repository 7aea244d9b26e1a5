/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_emit: states of one name to the sink: pieces, errors, what a group has in common.
 */
#include <errno.h>

#include "core/base/sort.h"
#include "core/format/deepspeed/emit.h"

/* @rank: NULL, or what is put in front. */
static int emit(struct dcp_ds_emitter *t, const char *rank, const char *name,
		const struct dcp_tensor *x)
{
	const char *role = dcp_intern_text(&t->ds->states, t->state);

	return dcp_ds_emit_tensor(t->ds, rank, role, name, x);
}

int dcp_ds_emit_error(struct dcp_ds_emitter *t, const char *rank, const char *name,
		      uint32_t ndim, const uint64_t *shape, uint8_t dtype, const char *why)
{
	struct dcp_tensor x = {
		.dtype = (enum dcp_dtype)dtype,
		.ndim = ndim,
		.shape = shape ? shape : dcp_origin,
		.error = why,
	};

	return emit(t, rank, name, &x);
}

int dcp_ds_emit_pieces(struct dcp_ds_emitter *t, const char *rank, const char *name,
		       uint32_t ndim, const uint64_t *shape, uint8_t dtype)
{
	struct dcp_tensor x = {
		.dtype = (enum dcp_dtype)dtype,
		.ndim = ndim,
		.shape = shape,
		.pieces = DCP_ITEMS(t->pieces, struct dcp_piece),
		.npieces = DCP_NITEMS(t->pieces, struct dcp_piece),
	};

	return emit(t, rank, name, &x);
}

static struct dcp_ds_common *common_of(struct dcp_ds_emitter *t, const struct dcp_ds_part *part,
				       const struct dcp_ds_param *p)
{
	struct dcp_ds_common *c = DCP_ITEMS(part->common, struct dcp_ds_common);
	size_t n = part->common.n / sizeof(*c);

	for (size_t i = 0; i < n; i++) {
		size_t at = (t->hint + i) % n;

		if (c[at].state == t->state && c[at].flat == part->group[p->group].flat) {
			t->hint = at;
			return &c[at];
		}
	}
	return NULL;
}

int dcp_ds_emit_common(struct dcp_ds_emitter *t, const char *rank,
		       const struct dcp_ds_part *part, const struct dcp_ds_param *p)
{
	struct dcp_ds_common *c = common_of(t, part, p);
	static const uint64_t one[DCP_MAX_NDIM] = { 1 };
	struct dcp_piece piece = { .lo = dcp_origin, .len = one, .run_n = 1 };
	struct dcp_tensor x = { .shape = one, .pieces = &piece, .npieces = 1 };
	const char *role = dcp_intern_text(&t->ds->states, t->state);

	if (!c)
		return 0;
	if (c->json)
		return dcp_ds_emit_object(t->ds, rank, role, p->name, c->type, c->json);
	x.dtype = (enum dcp_dtype)c->place.dtype;
	x.ndim = c->ndim == 0 ? 0 : 1;
	x.alias_of = c->first;
	piece.off = c->place.off;
	piece.nbytes = dcp_dtype_info(x.dtype)->size;
	piece.file = c->place.file;
	piece.swap = c->place.swap && piece.nbytes > 1;
	if (!c->first) {
		c->first = dcp_ds_text(t->ds, "%s%s%s.%s", rank ? rank : "", rank ? "." : "",
				       role, p->name);
		if (!c->first)
			return -ENOMEM;
	}
	return emit(t, rank, p->name, &x);
}

/* The first run that ends after element @first. */
static size_t find_run(const struct dcp_ds_run *run, size_t n, uint64_t first)
{
	size_t i;

	DCP_BISECT(i, 0, n, run[i].first + run[i].n <= first);
	return i;
}

int dcp_ds_add_pieces(struct dcp_ds_emitter *t, const struct dcp_ds_box *box, uint8_t dtype)
{
	const struct dcp_ds_run *run = DCP_ITEMS(t->runs, struct dcp_ds_run);
	size_t n = t->runs.n / sizeof(*run);
	uint32_t size = dcp_dtype_info((enum dcp_dtype)dtype)->size;
	uint64_t end = box->first + box->n;

	for (size_t i = find_run(run, n, box->first); i < n && run[i].first < end; i++) {
		uint64_t lo = DCP_MAX(run[i].first, box->first);
		uint64_t hi = DCP_MIN(run[i].first + run[i].n, end);
		struct dcp_piece p = {
			.lo = box->lo,
			.len = box->len,
			.run_lo = lo - box->first,
			.run_n = hi - lo,
			.off = run[i].off + (lo - run[i].first) * size,
			.nbytes = (hi - lo) * size,
			.file = run[i].file,
			.enc = DCP_ENC_PLAIN,
			.swap = run[i].swap && size > 1,
		};

		if (lo < hi)
			dcp_buf_add(&t->pieces, &p, sizeof(p));
	}
	return dcp_buf_error(&t->pieces);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/plan/pack.h"

bool load_is_packed(const struct dcp_strided *s)
{
	uint64_t bytes = dcp_strided_bytes(s);

	return dcp_strided_extent(s) > bytes + bytes / 8;
}

static void swap(uint32_t *a, uint32_t *b)
{
	uint32_t c = *a;

	*a = *b;
	*b = c;
}

/*
 * The dimensions of @s as they are sent, outermost first: as in the file, but that of most runs goes right before those that
 * continue each other there, which are one run (*run). The number of the others.
 */
static uint32_t order(const struct dcp_strided *s, uint32_t *dim, uint64_t *run)
{
	uint32_t n = s->ndim, most = 0;

	for (uint32_t i = 0; i < n; i++) {
		dim[i] = i;
		for (uint32_t k = i; k && s->file_stride[dim[k - 1]] < s->file_stride[dim[k]];
		     k--)
			swap(&dim[k - 1], &dim[k]);
	}
	*run = s->run;
	while (n && s->file_stride[dim[n - 1]] == *run)
		*run *= s->count[dim[--n]];
	for (uint32_t k = 1; k < n; k++)
		if (s->count[dim[k]] >= s->count[dim[most]])
			most = k;
	if (n)
		swap(&dim[most], &dim[n - 1]);
	return n;
}

struct packing {
	const struct dcp_strided *s;
	uint32_t dim[DCP_STRIDED_DIMS], n;
	uint64_t run;
	load_series_fn fn;
	void *ctx;
};

static int pack_dims(const struct packing *p, uint32_t k, uint64_t off)
{
	uint32_t d = p->dim[k];
	struct load_series series = { off, p->run, 0, 1 };
	int rc = 0;

	if (k + 1 < p->n) {
		for (uint64_t i = 0; i < p->s->count[d] && rc == 0; i++)
			rc = pack_dims(p, k + 1, off + i * p->s->file_stride[d]);
		return rc;
	}
	if (p->n) {
		series.step = p->s->file_stride[d];
		series.count = p->s->count[d];
	}
	return p->fn(p->ctx, &series);
}

int load_pack(const struct dcp_strided *s, load_series_fn fn, void *ctx)
{
	struct packing p = { .s = s, .fn = fn, .ctx = ctx };

	p.n = order(s, p.dim, &p.run);
	return pack_dims(&p, 0, s->off);
}

struct dcp_strided load_packed(const struct dcp_strided *s)
{
	struct dcp_strided sent = *s;
	uint32_t dim[DCP_STRIDED_DIMS];
	uint64_t at = s->run, run;

	order(s, dim, &run);
	for (uint32_t k = s->ndim; k-- > 0; at *= s->count[dim[k]])
		sent.file_stride[dim[k]] = at;
	return sent;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stretches of files that a group of ranks needs, and in which order they are read.
 *
 * Every rank says which ranges of which files it needs, in whole blocks; the union of them,
 * in order of file and offset, is cut into chunks that fit a slot of the staging memory.
 * Chunk c is read by member c mod n of the group. All members compute the same list.
 */
#include "core/model/job/chunk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"

bool dcp_chunk_is_packed(const struct dcp_strided *s)
{
	return dcp_strided_extent(s) > dcp_strided_bytes(s);
}

static void swap_dims(uint32_t *a, uint32_t *b)
{
	uint32_t c = *a;

	*a = *b;
	*b = c;
}

/*
 * The dimensions of @s in sending order, outermost first. The last dimensions, which continue each
 * other in the file, form one run (*run). Right before these comes the dimension with the most
 * runs; all others are as in the file. Returns the number of dimensions outside of the run.
 */
static uint32_t order_dims(const struct dcp_strided *s, uint32_t *dim, uint64_t *run)
{
	uint32_t n = s->ndim, most = 0;

	for (uint32_t i = 0; i < n; i++) {
		dim[i] = i;
		for (uint32_t k = i; k && s->file_stride[dim[k - 1]] < s->file_stride[dim[k]];
		     k--)
			swap_dims(&dim[k - 1], &dim[k]);
	}
	*run = s->run;
	while (n && s->file_stride[dim[n - 1]] == *run)
		*run *= s->count[dim[--n]];
	for (uint32_t k = 1; k < n; k++)
		if (s->count[dim[k]] >= s->count[dim[most]])
			most = k;
	if (n)
		swap_dims(&dim[most], &dim[n - 1]);
	return n;
}

struct packing {
	const struct dcp_strided *s;
	uint32_t dim[DCP_STRIDED_DIMS], n;
	uint64_t run;
	dcp_chunk_series_fn fn;
	void *ctx;
};

static int pack_dims(const struct packing *p, uint32_t k, uint64_t off)
{
	uint32_t d = p->dim[k];
	struct dcp_chunk_series series = { off, p->run, 0, 1 };
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

int dcp_chunk_pack(const struct dcp_strided *s, dcp_chunk_series_fn fn, void *ctx)
{
	struct packing p = { .s = s, .fn = fn, .ctx = ctx };

	p.n = order_dims(s, p.dim, &p.run);
	return pack_dims(&p, 0, s->off);
}

struct dcp_strided dcp_chunk_packed(const struct dcp_strided *s)
{
	struct dcp_strided sent = *s;
	uint32_t dim[DCP_STRIDED_DIMS];
	uint64_t at = s->run, run;

	order_dims(s, dim, &run);
	for (uint32_t k = s->ndim; k-- > 0; at *= s->count[dim[k]])
		sent.file_stride[dim[k]] = at;
	return sent;
}

enum {
	APART = 50, /* two members may both need one byte in this many */
	EVEN = 4,   /* a member may need more than the mean by one part in this many */
};

/* ---- what one rank needs ---- */

struct ranges {
	struct dcp_chunk_range *v;
	size_t n, cap;
	bool exact;
};

static int add_range(struct ranges *r, uint32_t file, uint64_t lo, uint64_t hi)
{
	struct dcp_chunk_range *last = r->n ? &r->v[r->n - 1] : NULL;

	if (!r->exact) {
		lo -= lo % DCP_CHUNK_BLOCK;
		hi += (DCP_CHUNK_BLOCK - hi % DCP_CHUNK_BLOCK) % DCP_CHUNK_BLOCK;
	}
	if (last && last->file == file && lo >= last->lo && lo <= last->hi) {
		last->hi = DCP_MAX(last->hi, hi);
		return 0;
	}
	if (DCP_GROW(r->v, r->cap, r->n) < 0)
		return -ENOMEM;
	r->v[r->n++] = (struct dcp_chunk_range){ file, 0, lo, hi };
	return 0;
}

/* Add the ranges of dimensions @k and up. Runs that are close together become one range. */
static int add_each(struct ranges *r, uint32_t file, const struct dcp_strided *s, uint32_t k,
		    uint64_t off, uint64_t extent)
{
	int rc = 0;

	while (k < s->ndim && s->file_stride[k] <= DCP_STRIDED_NEAR)
		k++;
	if (k == s->ndim)
		return add_range(r, file, off, off + extent);
	for (uint64_t i = 0; i < s->count[k] && rc == 0; i++)
		rc = add_each(r, file, s, k + 1, off + i * s->file_stride[k], extent);
	return rc;
}

static int by_place(const void *a, const void *b)
{
	const struct dcp_chunk_range *x = a, *y = b;

	return x->file != y->file ? DCP_CMP(x->file, y->file) : DCP_CMP(x->lo, y->lo);
}

static size_t merge_ranges(struct dcp_chunk_range *v, size_t n)
{
	size_t out = 0;

	DCP_SORT(v, n, by_place);
	for (size_t i = 0; i < n; i++) {
		struct dcp_chunk_range *last = out ? &v[out - 1] : NULL;

		if (last && last->file == v[i].file && v[i].lo <= last->hi)
			last->hi = DCP_MAX(last->hi, v[i].hi);
		else
			v[out++] = v[i];
	}
	return out;
}

int dcp_chunk_ranges(const struct dcp_chunk_need *need, size_t n, bool exact,
		     struct dcp_chunk_range **out, size_t *nout)
{
	struct ranges r = { .exact = exact };
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++) {
		const struct dcp_strided *s = &need[i].s;
		uint64_t extent = s->run;

		if (exact) { /* a need that is not packed has no gaps */
			if (!dcp_chunk_is_packed(s))
				rc = add_range(&r, need[i].file, s->off,
					       s->off + dcp_strided_extent(s));
			continue;
		}
		for (uint32_t k = 0; k < s->ndim; k++)
			if (s->file_stride[k] <= DCP_STRIDED_NEAR)
				extent += (s->count[k] - 1) * s->file_stride[k];
		rc = add_each(&r, need[i].file, s, 0, s->off, extent);
	}
	if (rc < 0) {
		free(r.v);
		return rc;
	}
	*nout = r.n ? merge_ranges(r.v, r.n) : 0;
	*out = r.v;
	return 0;
}

/* ---- the needs of all ranks of a group ---- */

static int add_stretch(struct dcp_chunks *c, uint32_t file, uint64_t lo, uint64_t hi,
		       uint64_t more, uint64_t at)
{
	struct dcp_chunk_stretch *s;

	if (DCP_GROW(c->stretch, c->cap_stretch, c->nstretch) < 0)
		return -ENOMEM;
	s = &c->stretch[c->nstretch++];
	*s = (struct dcp_chunk_stretch){ file, (uint32_t)(hi + more - lo), lo, hi, at };
	return 0;
}

/* Begin a chunk with the stretch that is added next. */
static int begin_chunk(struct dcp_chunks *c)
{
	if (DCP_GROW(c->first, c->cap_chunk, c->n + 1) < 0)
		return -ENOMEM;
	c->first[c->n++] = c->nstretch;
	return 0;
}

/* Cut the union into chunks. With @slack (elements are converted) a stretch that is continued in
 * the next chunk is read one block further, because its last element may end there. */
static int cut_ranges(struct dcp_chunks *c, const struct dcp_chunk_range *v, size_t n,
		      uint64_t slack)
{
	uint64_t used = c->slot; /* full, so that the first stretch begins a chunk */
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++) {
		uint64_t lo = v[i].lo;

		while (lo < v[i].hi && rc == 0) {
			uint64_t left = v[i].hi - lo, now;

			if (c->slot - used < DCP_MIN(left, (uint64_t)DCP_CHUNK_BLOCK) + slack) {
				rc = begin_chunk(c);
				used = 0;
				if (rc < 0)
					break;
			}
			now = DCP_MIN(left, c->slot - used - slack);
			rc = add_stretch(c, v[i].file, lo, lo + now, now < left ? slack : 0,
					 used);
			used += now + slack;
			c->unique += now;
			lo += now;
		}
	}
	if (rc == 0 && DCP_GROW(c->first, c->cap_chunk, c->n) < 0)
		rc = -ENOMEM;
	if (rc == 0)
		c->first[c->n] = c->nstretch;
	return rc;
}

/* If each member read for itself, would all together read hardly more than @unique, and none much
 * more than the others? */
static bool is_apart(const struct dcp_chunk_range *const *of, const size_t *n, uint32_t members,
		     uint64_t unique)
{
	uint64_t all = 0, most = 0;

	for (uint32_t m = 0; m < members; m++) {
		uint64_t own = 0;

		for (size_t i = 0; i < n[m]; i++)
			own += of[m][i].hi - of[m][i].lo;
		all += own;
		most = DCP_MAX(most, own);
	}
	return all - unique <= unique / APART && most * members <= all + all / EVEN;
}

int dcp_chunks_create(const struct dcp_chunk_range *const *of, const size_t *n,
		      uint32_t members, uint64_t slot, bool slack, struct dcp_chunks **out)
{
	struct dcp_chunks *c = calloc(1, sizeof(*c));
	struct dcp_chunk_range *all;
	size_t total = 0;
	int rc;

	for (uint32_t m = 0; m < members; m++)
		total += n[m];
	all = malloc((total + 1) * sizeof(*all));
	if (!c || !all) {
		free(c);
		free(all);
		return -ENOMEM;
	}
	total = 0;
	for (uint32_t m = 0; m < members; m++) {
		if (n[m])
			memcpy(all + total, of[m], n[m] * sizeof(*all));
		total += n[m];
	}
	total = total ? merge_ranges(all, total) : 0;
	c->members = members;
	c->slot = slot;
	rc = cut_ranges(c, all, total, slack ? DCP_CHUNK_BLOCK : 0);
	c->apart = is_apart(of, n, members, c->unique);
	free(all);
	if (rc < 0) {
		dcp_chunks_free(c);
		return rc;
	}
	*out = c;
	return 0;
}

void dcp_chunks_trim(struct dcp_chunks *c, const struct dcp_file_id *files, size_t n)
{
	for (size_t i = 0; i < c->nstretch; i++) {
		const struct dcp_chunk_stretch *s = &c->stretch[i];
		const struct dcp_file_id *f = s->file < n ? &files[s->file] : NULL;
		uint64_t size = !f ? UINT64_MAX : f->unpacked ? f->unpacked : f->size;

		if (s->hi > size)
			c->unique -= s->hi - DCP_MAX(size, s->lo);
	}
}

void dcp_chunks_free(struct dcp_chunks *c)
{
	if (!c)
		return;
	free(c->stretch);
	free(c->first);
	free(c);
}

enum {
	STRIPE_MOST = 4 << 20,
	SLOT_LEAST = 64 << 10,
};

int dcp_stripes_number(struct dcp_stripes *s, const struct dcp_file_id *files, size_t n)
{
	uint64_t all = 0;

	s->nfiles = n;
	s->base = calloc(n + 1, sizeof(*s->base));
	if (!s->base)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		s->base[i] = all;
		all += files[i].size / s->size + (files[i].size % s->size != 0);
	}
	s->base[n] = all;
	return 0;
}

uint64_t dcp_stripe_size(uint64_t staging, uint32_t ranks, uint64_t slack, uint64_t tried,
			 uint64_t most)
{
	/* Two slots, the window's head, and in the worst case @ranks stripes in each
	 * message buffer. */
	uint64_t room = DCP_MIN(staging - DCP_CHUNK_BLOCK, (uint64_t)1 << 40),
		 share = room / (2 * (uint64_t)ranks + 2), least = slack + DCP_CHUNK_BLOCK,
		 worst = DCP_MIN(DCP_MAX(share, least) - slack, (uint64_t)STRIPE_MOST),
		 used = 2 * (tried + slack) + most, next;

	worst -= worst % DCP_CHUNK_BLOCK;
	if (tried && (tried <= worst || used <= room))
		return tried;
	next = tried ? DCP_MIN(tried / 2, tried * room / used)
		     : DCP_MIN(room / 4 - slack, (uint64_t)STRIPE_MOST);
	return DCP_MAX(next - next % DCP_CHUNK_BLOCK, worst);
}

uint64_t dcp_slot_size(uint64_t staging, uint32_t n, uint64_t most)
{
	uint64_t size =
		DCP_MIN(DCP_MAX((staging - DCP_CHUNK_BLOCK) / n, (uint64_t)SLOT_LEAST), most);

	return size - size % DCP_CHUNK_BLOCK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The union of what is needed, in order of file and offset, and its cut into one part a rank.
 *
 * Everything here is a sweep over the items in that order. Items may overlap (two tensors with
 * one storage, a damaged source): extents are merged, so a byte is in one of them.
 */
#include "core/model/job/job_int.h"

#include <errno.h>
#include <stdlib.h>

#include "core/base/sort.h"

/*
 * memory: what a job takes of the memory it was given, and what all its files ask of a piece.
 */

int dcp_job_no_memory(const struct dcp_job *job, struct dcp_err *err)
{
	return dcp_fail(err, -ENOMEM,
			"the plan of the job needs more than its %zu MiB of memory",
			job->opts.memory >> 20);
}

static int count_memory(struct dcp_job *job, size_t n)
{
	if (n > job->opts.memory - job->used)
		return -ENOMEM;
	job->used += n;
	return 0;
}

int dcp_job_room(struct dcp_job *job, struct job_vec *v, size_t n, size_t size)
{
	size_t cap = v->cap;
	void *p;

	if (n <= cap - v->n)
		return 0;
	while (cap - v->n < n)
		cap += DCP_MAX(cap / 2, (size_t)64);
	if (count_memory(job, (cap - v->cap) * size) < 0)
		return -ENOMEM;
	p = realloc(v->p, cap * size);
	if (!p) {
		job->used -= (cap - v->cap) * size;
		return -ENOMEM;
	}
	v->p = p;
	v->cap = cap;
	return 0;
}

static void dcp_job_shrink(struct dcp_job *job, struct job_vec *v, size_t size)
{
	void *p = v->n ? realloc(v->p, v->n * size) : NULL;

	if (!p)
		return;
	job->used -= (v->cap - v->n) * size;
	v->p = p;
	v->cap = v->n;
}

void *dcp_job_array(struct dcp_job *job, size_t n, size_t size)
{
	void *p;

	if (n > SIZE_MAX / 2 / size || count_memory(job, n * size) < 0)
		return NULL;
	p = calloc(n ? n : 1, size);
	if (!p)
		job->used -= n * size;
	return p;
}

uint64_t dcp_job_file_size(const struct dcp_job *job, uint32_t file)
{
	const struct dcp_file_id *f = &job->opts.files[file];

	return f->unpacked ? f->unpacked : f->size;
}

bool dcp_job_is_opaque(const struct dcp_piece *p)
{
	return p->enc != DCP_ENC_PLAIN || dcp_filter_encodes(p->filter);
}

bool dcp_job_is_atom(const struct dcp_piece *p)
{
	return dcp_job_is_opaque(p) || p->stride;
}

/* Items in order of file and offset. */

enum { DIGIT = 11, BUCKETS = 1 << DIGIT };

static uint32_t digit_of(const struct job_item *item, uint32_t pass, uint32_t off_passes)
{
	uint64_t v = pass < off_passes ? item->off >> (pass * DIGIT)
				       : item->file >> ((pass - off_passes) * DIGIT);

	return (uint32_t)(v % BUCKETS);
}

static uint32_t digits(uint64_t v)
{
	uint32_t n = 0;

	for (; v; v >>= DIGIT)
		n++;
	return n;
}

/* Among items that begin at the same byte the longest comes first, and of those the one with
 * the largest elements, whatever their order was. */
static int compare_equals(const void *x, const void *y, void *ctx)
{
	const struct dcp_job *job = ctx;
	const struct job_item *a = JOB_AT(job->item, struct job_item, *(const uint32_t *)x);
	const struct job_item *b = JOB_AT(job->item, struct job_item, *(const uint32_t *)y);
	uint32_t p = dcp_job_kind_of(job, a)->t.itemsize;
	uint32_t q = dcp_job_kind_of(job, b)->t.itemsize;

	return DCP_CMP(b->n, a->n) ?: DCP_CMP(q, p);
}

static void order_equals(struct dcp_job *job)
{
	const struct job_item *items = job->item.p;
	size_t next;

	for (size_t i = 0; i < job->item.n; i = next) {
		const struct job_item *a = &items[job->order[i]];

		for (next = i + 1; next < job->item.n; next++) {
			const struct job_item *b = &items[job->order[next]];

			if (a->file != b->file || a->off != b->off)
				break;
		}
		if (next - i > 1)
			qsort_r(&job->order[i], next - i, sizeof(*job->order), compare_equals,
				job);
	}
}

/* Radix sort, the least digit first. */
static int dcp_job_sort(struct dcp_job *job)
{
	const struct job_item *items = job->item.p;
	size_t n = job->item.n;
	uint32_t *from = dcp_job_array(job, n, sizeof(*from)), *to, *swap;
	uint64_t most_off = 0, most_file = 0;
	uint32_t off_passes, passes;

	job->order = dcp_job_array(job, n, sizeof(*job->order));
	to = job->order;
	if (!from || !to) {
		free(from);
		return -ENOMEM;
	}
	for (size_t i = 0; i < n; i++) {
		from[i] = (uint32_t)i;
		most_off |= items[i].off;
		most_file |= items[i].file;
	}
	off_passes = digits(most_off);
	passes = off_passes + digits(most_file);
	for (uint32_t pass = 0; pass < passes; pass++) {
		uint32_t count[BUCKETS + 1] = { 0 };

		for (size_t i = 0; i < n; i++)
			count[digit_of(&items[i], pass, off_passes) + 1]++;
		for (uint32_t b = 0; b < BUCKETS; b++)
			count[b + 1] += count[b];
		for (size_t i = 0; i < n; i++)
			to[count[digit_of(&items[from[i]], pass, off_passes)]++] = from[i];
		swap = from;
		from = to;
		to = swap;
	}
	job->order = from;
	job->used -= n * sizeof(*to);
	free(to);
	order_equals(job);
	return 0;
}

/* ---- the union ---- */

static int add_extent(struct dcp_job *job, struct job_vec *v, uint32_t file, uint64_t off,
		      uint64_t n)
{
	struct job_extent *last = v->n ? JOB_AT(*v, struct job_extent, v->n - 1) : NULL;

	if (n == 0)
		return 0;
	if (last && last->file == file && off >= last->off && off - last->off <= last->n) {
		last->n = DCP_MAX(last->n, off - last->off + n);
		return 0;
	}
	if (dcp_job_room(job, v, 1, sizeof(*last)) < 0)
		return -ENOMEM;
	*JOB_AT(*v, struct job_extent, v->n++) =
		(struct job_extent){ .off = off, .n = n, .file = file };
	return 0;
}

/* The pieces that cannot be cut: items that touch stay apart, items that overlap become one. */
static int add_atom(struct dcp_job *job, const struct job_item *item)
{
	struct job_vec *v = &job->atom;
	struct job_extent *last = v->n ? JOB_AT(*v, struct job_extent, v->n - 1) : NULL;

	if (last && last->file == item->file && item->off - last->off < last->n) {
		last->n = DCP_MAX(last->n, item->off - last->off + item->n);
	} else {
		if (dcp_job_room(job, v, 1, sizeof(*last)) < 0)
			return -ENOMEM;
		last = JOB_AT(*v, struct job_extent, v->n++);
		*last = (struct job_extent){ .off = item->off,
					     .n = item->n,
					     .file = item->file };
	}
	job->largest = DCP_MAX(job->largest, last->n);
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct job_extent *x = a, *y = b;

	return DCP_CMP(x->file, y->file) ?: DCP_CMP(x->off, y->off);
}

/* Runs of items that overlap come out of order: sort, merge again. Then sum up. */
static void finish_extents(struct dcp_job *job)
{
	struct job_extent *e = job->extent.p;
	size_t n = 0;

	for (size_t i = 1; i < job->extent.n; i++)
		if (by_place(&e[i - 1], &e[i]) > 0) {
			DCP_SORT(e, job->extent.n, by_place);
			break;
		}
	for (size_t i = 1; i < job->extent.n; i++) {
		if (e[i].file == e[n].file && e[i].off - e[n].off <= e[n].n)
			e[n].n = DCP_MAX(e[n].n, e[i].off - e[n].off + e[i].n);
		else
			e[++n] = e[i];
	}
	job->extent.n = job->extent.n ? n + 1 : 0;
	for (size_t i = 0; i < job->extent.n; i++) {
		e[i].at = job->unique;
		job->unique += e[i].n;
	}
}

static int add_wanted(struct dcp_job *job, const struct job_item *item,
		      const struct job_kind *k, bool atom)
{
	const struct job_runs *runs = k->runs ? &k->runs[item->pattern - k->first] : NULL;
	int rc = 0;

	if (k->wanted == JOB_NOTHING || (runs && runs->n == 0))
		return 0;
	if (atom)
		rc = add_atom(job, item);
	if (atom || !runs)
		return rc ? rc : add_extent(job, &job->extent, item->file, item->off, item->n);
	for (size_t i = 0; rc == 0 && i < runs->n; i++)
		rc = add_extent(job, &job->extent, item->file, item->off + runs->v[i].off,
				runs->v[i].n);
	return rc;
}

static bool same_bytes(const struct job_item *a, const struct job_item *b)
{
	return a->file == b->file && a->off == b->off && a->n == b->n;
}

static int find_union(struct dcp_job *job)
{
	const struct job_item *items = job->item.p, *last = NULL;
	uint64_t frames = 0;

	for (size_t i = 0; i < job->item.n; i++) {
		const struct job_item *item = &items[job->order[i]];
		const struct job_kind *k = dcp_job_kind_of(job, item);
		const struct dcp_piece *p = &k->t.pieces[item->pattern - k->first];
		bool atom = dcp_job_is_atom(p);

		if (add_wanted(job, item, k, atom) < 0)
			return -ENOMEM;
		if (atom && k->wanted == JOB_ALL && !(last && same_bytes(last, item)))
			frames += item->n - DCP_MIN(item->n, p->run_n * k->t.itemsize);
		last = item;
	}
	finish_extents(job);
	job->payload = job->unique - DCP_MIN(frames, job->unique);
	dcp_job_shrink(job, &job->extent, sizeof(struct job_extent));
	dcp_job_shrink(job, &job->atom, sizeof(struct job_extent));
	return 0;
}

/* ---- parts ---- */

/* How many of @v begin at or before the place. */
static size_t begun(const struct job_vec *v, uint32_t file, uint64_t off)
{
	const struct job_extent *e = v->p;
	size_t i;

	DCP_BISECT(i, 0, v->n, e[i].file < file || (e[i].file == file && e[i].off <= off));
	return i;
}

/* To the front of the element that byte @off lies in, as far as one item can say. */
static uint64_t to_element(const struct dcp_job *job, uint32_t file, uint64_t off)
{
	const struct job_item *items = job->item.p, *item;
	const struct job_kind *k;
	size_t i;

	DCP_BISECT(i, 0, job->item.n,
		   (item = &items[job->order[i]])->file < file ||
			   (item->file == file && item->off <= off));
	if (!i)
		return off;
	item = &items[job->order[i - 1]];
	k = dcp_job_kind_of(job, item);
	if (item->file != file || off - item->off >= item->n ||
	    dcp_job_is_atom(&k->t.pieces[item->pattern - k->first]))
		return off;
	return off - (off - item->off) % k->t.itemsize;
}

/* Where a part may begin: at byte @at of the union, or not far before. */
static struct job_cut boundary(const struct dcp_job *job, uint64_t at)
{
	const struct job_extent *e = job->extent.p, *atom = NULL;
	size_t next, natom;
	uint64_t off, aligned;

	DCP_BISECT(next, 1, job->extent.n, e[next].at <= at);
	e += next - 1;
	off = e->off + (at - e->at);
	aligned = DCP_MAX(off - off % job->opts.align, e->off);
	natom = begun(&job->atom, e->file, off);
	if (natom && JOB_AT(job->atom, struct job_extent, natom - 1)->file == e->file)
		atom = JOB_AT(job->atom, struct job_extent, natom - 1);
	if (atom && off - atom->off < atom->n) {
		off -= atom->off;
		off = atom->off + (off > atom->n / 2 ? atom->n : 0);
	} else {
		off = to_element(job, e->file, aligned);
		if (atom) /* what is before it is an item that stays whole */
			off = DCP_MAX(off, atom->off + atom->n);
	}
	return (struct job_cut){ off, e->file };
}

static bool reached(const struct job_cut *cut, uint32_t file, uint64_t off)
{
	return cut->file < file || (cut->file == file && cut->off <= off);
}

static int find_cuts(struct dcp_job *job)
{
	uint32_t ranks = job->ranks;

	job->cut = dcp_job_array(job, ranks + 1, sizeof(*job->cut));
	if (!job->cut)
		return -ENOMEM;
	job->cut[ranks].file = JOB_NONE;
	for (uint32_t r = 1; r < ranks; r++) {
		if (!job->unique)
			job->cut[r] = job->cut[ranks];
		else
			job->cut[r] = boundary(
				job, (uint64_t)((unsigned __int128)job->unique * r / ranks));
		if (reached(&job->cut[r], job->cut[r - 1].file, job->cut[r - 1].off))
			job->cut[r] = job->cut[r - 1];
	}
	return 0;
}

static int find_owners(struct dcp_job *job)
{
	const struct job_item *items = job->item.p;
	size_t patterns = job->owner_of_pattern.n;
	uint32_t rank = 0;

	job->owner = dcp_job_array(job, job->item.n, sizeof(*job->owner));
	job->by_pattern = dcp_job_array(job, job->item.n, sizeof(*job->by_pattern));
	job->start = dcp_job_array(job, patterns + 2, sizeof(*job->start));
	if (!job->owner || !job->by_pattern || !job->start)
		return -ENOMEM;
	for (size_t i = 0; i < job->item.n; i++)
		job->start[items[i].pattern + 2]++;
	for (size_t p = 0; p < patterns; p++)
		job->start[p + 2] += job->start[p + 1];
	for (size_t i = 0; i < job->item.n; i++) {
		const struct job_item *item = &items[job->order[i]];

		while (rank + 1 < job->ranks &&
		       reached(&job->cut[rank + 1], item->file, item->off))
			rank++;
		job->owner[job->order[i]] = rank;
		job->by_pattern[job->start[item->pattern + 1]++] = job->order[i];
	}
	return 0;
}

uint64_t dcp_job_part_end(const struct dcp_job *job, const struct job_item *item,
			  uint32_t owner)
{
	const struct job_cut *end = &job->cut[owner + 1];

	return end->file == item->file && end->off < item->off + item->n ? end->off - item->off
									 : item->n;
}

int dcp_job_find_parts(struct dcp_job *job, struct dcp_err *err)
{
	int rc = dcp_job_sort(job);

	if (rc == 0)
		rc = find_union(job);
	if (rc == 0)
		rc = find_cuts(job);
	if (rc == 0)
		rc = find_owners(job);
	return rc < 0 ? dcp_job_no_memory(job, err) : 0;
}

int dcp_job_reads(const struct dcp_job *job, uint32_t rank, dcp_job_read_fn fn, void *ctx)
{
	const struct job_extent *e, *end;
	const struct job_cut *from, *to;
	size_t first;
	int rc = 0;

	if (!job->cut || !job->extent.n)
		return 0;
	from = &job->cut[rank];
	to = &job->cut[rank + 1];
	first = begun(&job->extent, from->file, from->off);
	e = JOB_AT(job->extent, struct job_extent, first ? first - 1 : 0);
	end = JOB_AT(job->extent, struct job_extent, job->extent.n);
	if (first && e->file < from->file)
		e++;
	for (; rc >= 0 && e < end && !reached(to, e->file, e->off); e++) {
		uint64_t lo = e->off, hi = e->off + e->n;

		if (e->file == from->file)
			lo = DCP_MAX(lo, from->off);
		if (e->file == to->file)
			hi = DCP_MIN(hi, to->off);
		if (lo < hi)
			rc = fn(ctx, e->file, lo, hi - lo);
	}
	return rc < 0 ? rc : 0;
}

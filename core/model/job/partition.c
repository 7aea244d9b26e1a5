/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The union of what is needed, in order of file and offset.
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

int dcp_job_extent(struct dcp_job *job, struct job_vec *v, uint32_t file, uint64_t off,
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

static int by_place(const void *a, const void *b)
{
	const struct job_extent *x = a, *y = b;

	return DCP_CMP(x->file, y->file) ?: DCP_CMP(x->off, y->off);
}

/* Runs of items that overlap come out of order: sort, merge again. Then sum up. */
void dcp_job_merge(struct dcp_job *job)
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
	job->unique = 0;
	for (size_t i = 0; i < job->extent.n; i++)
		job->unique += e[i].n;
}

/* Does the item lie apart from @last, and so that each run of its elements is one of bytes? */
static bool is_plain(const struct job_item *last, const struct job_item *item,
		     const struct job_kind *k)
{
	const struct dcp_piece *p = &k->t.pieces[item->pattern - k->first];
	bool meets = last && last->file == item->file && last->off + last->n > item->off;

	return !meets && !p->stride && !p->swap && !k->casts && !k->mixed;
}

static int find_union(struct dcp_job *job)
{
	const struct job_item *items = job->item.p, *last = NULL;
	int rc = 0;

	job->plain = true;
	job->converts = job->casts;
	for (size_t i = 0; i < job->item.n && rc == 0; i++) {
		const struct job_item *item = &items[job->order[i]];
		const struct job_kind *k = dcp_job_kind_of(job, item);
		const struct job_runs *runs =
			k->runs ? &k->runs[item->pattern - k->first] : NULL;

		if (!item->n || k->wanted == JOB_NOTHING)
			continue;
		job->converts |= k->t.pieces[item->pattern - k->first].swap;
		job->plain &= is_plain(last, item, k);
		if (!last || last->file != item->file ||
		    last->off + last->n < item->off + item->n)
			last = item;
		if (!runs)
			rc = dcp_job_extent(job, &job->extent, item->file, item->off, item->n);
		for (size_t r = 0; runs && rc == 0 && r < runs->n; r++)
			rc = dcp_job_extent(job, &job->extent, item->file,
					    item->off + runs->v[r].off, runs->v[r].n);
	}
	if (rc < 0)
		return rc;
	dcp_job_merge(job);
	dcp_job_shrink(job, &job->extent, sizeof(struct job_extent));
	return 0;
}

int dcp_job_find_union(struct dcp_job *job, struct dcp_err *err)
{
	int rc = dcp_job_sort(job);

	if (rc == 0)
		rc = find_union(job);
	return rc < 0 ? dcp_job_no_memory(job, err) : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Items in order of file and offset. */
#include <errno.h>
#include <stdlib.h>

#include "core/base/sort.h"
#include "core/model/job/job_int.h"

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
int dcp_job_sort(struct dcp_job *job)
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

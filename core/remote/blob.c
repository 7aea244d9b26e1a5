/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads of a batch that lie close are one request, a long one is several. What comes is written
 * where it is wanted as it comes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/base/err.h"
#include "core/remote/remote.h"

enum {
	GAP = 1 << 20,     /* bytes nobody asked for that cost less than a request */
	REQUEST = 8 << 20, /* the longest range of one */
	DIRECT = 4 << 20,  /* a batch of more is not kept */
	MOST = 4096,       /* ranges at a time */
};

/* ---- into place ---- */

/* A range, and the reads that it answers, in order. */
struct part {
	const struct dcp_read *const *reads, *const *all;
	size_t n, nall;
	uint64_t done; /* all bytes before came: reads of these are not looked at again */
};

static int put(void *ctx, uint64_t at, const char *p, size_t n)
{
	struct part *part = ctx;

	if (at < part->done) { /* what came was wrong, and comes again from the beginning */
		part->reads = part->all;
		part->n = part->nall;
		part->done = at;
	}
	for (size_t i = 0; i < part->n && part->reads[i]->off < at + n; i++) {
		const struct dcp_read *r = part->reads[i];
		uint64_t lo = DCP_MAX(r->off, at), hi = DCP_MIN(r->off + r->n, at + n);

		if (lo < hi)
			memcpy((char *)r->to + (lo - r->off), p + (lo - at), hi - lo);
	}
	if (at <= part->done)
		part->done = DCP_MAX(part->done, at + n);
	while (part->n && part->reads[0]->off + part->reads[0]->n <= part->done) {
		part->reads++;
		part->n--;
	}
	return 0;
}

/* Get what all of @reads want; they are in order. */
static int get_direct(struct dcp_remote_file *o, const struct dcp_read *const *reads, size_t n)
{
	dcp_auto_buf struct dcp_buf ranges = DCP_BUF_INIT, parts = DCP_BUF_INIT;
	struct dcp_range *range;
	size_t nranges, i = 0;

	while (i < n) {
		uint64_t lo = reads[i]->off, hi = lo + reads[i]->n;
		size_t first = i++;

		while (i < n && reads[i]->off <= hi + GAP &&
		       DCP_MAX(hi, reads[i]->off + reads[i]->n) - lo <= REQUEST) {
			hi = DCP_MAX(hi, reads[i]->off + reads[i]->n);
			i++;
		}
		for (; lo < hi; lo += REQUEST) {
			struct dcp_range one = { lo, DCP_MIN(hi - lo, (uint64_t)REQUEST), put };
			struct part part = { .reads = reads + first,
					     .all = reads + first,
					     .n = i - first,
					     .nall = i - first,
					     .done = lo };

			dcp_buf_add(&ranges, &one, sizeof(one));
			dcp_buf_add(&parts, &part, sizeof(part));
		}
	}
	if (dcp_buf_error(&ranges) || dcp_buf_error(&parts))
		return -ENOMEM;
	range = DCP_ITEMS(ranges, struct dcp_range);
	nranges = DCP_NITEMS(ranges, struct dcp_range);
	for (i = 0; i < nranges; i++)
		range[i].ctx = DCP_ITEMS(parts, struct part) + i;
	return dcp_remote_get(o, range, nranges);
}

static int by_off(const void *a, const void *b)
{
	const struct dcp_read *x = *(const struct dcp_read *const *)a;
	const struct dcp_read *y = *(const struct dcp_read *const *)b;

	return (x->off > y->off) - (x->off < y->off);
}

static int read_some(struct dcp_remote_file *o, const struct dcp_read *reads, size_t n)
{
	const struct dcp_read **order = calloc(n, sizeof(*order));
	uint64_t bytes = 0;
	size_t m = 0;
	int rc = order ? 0 : -ENOMEM;

	for (size_t i = 0; i < n && rc == 0; i++) {
		if (!dcp_range_ok(reads[i].off, reads[i].n, o->size))
			rc = -EIO;
		if (reads[i].n)
			order[m++] = &reads[i];
		bytes += reads[i].n;
	}
	if (rc == 0 && m) {
		qsort(order, m, sizeof(*order), by_off);
		rc = (reads->planned ||
		      (bytes >= DIRECT && (m > 1 || !dcp_blocks_follow(o, order[0])))) &&
				     reads->to && !dcp_blocks_have(o, order, m)
			     ? get_direct(o, order, m)
			     : dcp_blocks_read(o, order, m);
	}
	free(order);
	return rc;
}

static int read_all(const struct dcp_read *reads, size_t n)
{
	int rc = 0;

	for (size_t i = 0, k; i < n && rc == 0; i = k) {
		for (k = i + 1;
		     k < n && reads[k].blob->own == reads[i].blob->own && k - i < MOST;)
			k++;
		rc = read_some(reads[i].blob->own, reads + i, k - i);
	}
	return rc;
}

static void want(const struct dcp_read *reads, size_t n)
{
	read_all(reads, n);
	dcp_err_note(0, NULL); /* whoever reads these asks again, and is told then */
}

static int check(const struct dcp_blob *b, const struct dcp_file_id *id, bool named)
{
	const struct dcp_remote_file *o = b->own;

	return o->changed ? -ESTALE : 0;
}

static void close_object(struct dcp_blob *b)
{
	struct dcp_remote_file *o = b->own;

	dcp_blocks_leave(o);
	free(o->name);
	free(o->url);
	free(o->tag);
	free(o->modified);
	free(o);
}

static const struct dcp_blob_ops ops = {
	.read = read_all, .want = want, .check = check, .close = close_object
};

int dcp_remote_open(struct dcp_remote *r, const char *name, const struct dcp_item *item,
		    const struct dcp_file_id *id, struct dcp_blob *out)
{
	struct dcp_remote_file *o = calloc(1, sizeof(*o));
	struct dcp_buf url = DCP_BUF_INIT;
	int rc;

	*out = (struct dcp_blob){ .ops = &ops, .own = o, .fd = -1, .size = item->size };
	if (!o)
		return -ENOMEM;
	o->remote = r;
	o->size = item->size;
	o->id[0] = id->dev;
	o->id[1] = id->ino;
	o->name = strdup(name);
	o->tag = item->tag ? strdup(item->tag) : NULL;
	o->lasts = o->tag && *o->tag && strncmp(o->tag, "W/", 2) != 0 &&
		   id->dev; /* 0: for want of memory, its name is no hash */
	o->modified = item->modified ? strdup(item->modified) : NULL;
	rc = r->ops->url(r, name, &url);
	o->url = dcp_buf_take(&url);
	if (rc < 0 || !o->name || !o->url || (item->tag && !o->tag) ||
	    (item->modified && !o->modified)) {
		dcp_blob_close(out);
		return rc < 0 ? rc : -ENOMEM;
	}
	return 0;
}

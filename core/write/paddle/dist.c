/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paddle.distributed.save_state_dict: {rank}_0.distcp, a state dict of each rank's boxes, and
 * 0.metadata, with the place of each box. A file has one array for each key, so further boxes that
 * a rank has of a tensor are in files numbered after the last rank.
 *
 * The metadata's classes moved in 3.2 and got fields; Paddle up to 3.1 knows only the old classes,
 * Paddle from 3.2 on only the new.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/write/pickle.h"
#include "core/write/write.h"

#define OLD_MODULE "paddle.distributed.checkpoint.metadata"
#define MODULE "paddle.distributed.flex_checkpoint.dcp.metadata"
#define NAMES "StructuredToParameterName@@"

enum { PROTOCOL = 4, NAME = 48 };

struct box {
	uint32_t file;
	size_t tensor, part;
};

struct saving {
	const struct dcp_write_set *set;
	struct dcp_buf boxes; /* by tensor */
	uint32_t nfiles;
	bool old;
	struct dcp_err *err;
};

static const char *refuses_tensor(const struct dcp_write_tensor *t)
{
	return dcp_ndarray_can(t->dtype) ? NULL : "Paddle has no such type: give --dtype";
}

/* ---- which box is in which file ---- */

static bool is_empty(const struct dcp_write_tensor *t, const struct dcp_write_part *p)
{
	return dcp_write_part_bytes(t, p) == 0 && !dcp_write_is_whole(t, p);
}

static int place_tensor(struct saving *s, size_t tensor, uint32_t *of_rank)
{
	const struct dcp_write_tensor *t = &s->set->tensors[tensor];

	for (size_t i = 0; i < t->nparts; i++)
		of_rank[t->parts[i].rank] = 0;
	for (size_t i = 0; i < t->nparts; i++) {
		uint32_t rank = t->parts[i].rank;
		struct box b = { .tensor = tensor, .part = i };

		if (is_empty(t, &t->parts[i]))
			continue;
		b.file = rank + s->set->ranks * of_rank[rank]++;
		if (b.file >= s->nfiles)
			s->nfiles = b.file + 1;
		dcp_buf_add(&s->boxes, &b, sizeof(b));
	}
	return dcp_buf_error(&s->boxes);
}

static int place_tensors(struct saving *s)
{
	uint32_t *of_rank = calloc(s->set->ranks, sizeof(*of_rank));
	int rc = of_rank ? 0 : -ENOMEM;

	s->nfiles = s->set->ranks;
	for (size_t i = 0; rc == 0 && i < s->set->ntensors; i++)
		rc = place_tensor(s, i, of_rank);
	free(of_rank);
	return rc;
}

static int by_file(const void *a, const void *b)
{
	const struct box *x = a, *y = b;

	return DCP_CMP(x->file, y->file) ?: DCP_CMP(x->tensor, y->tensor);
}

/* ---- {rank}_0.distcp ---- */

static void name_file(uint32_t file, char name[NAME])
{
	snprintf(name, NAME, "%" PRIu32 "_0.distcp", file);
}

static int put_file(const struct saving *s, const struct box *b, size_t n, struct dcp_writer *w)
{
	dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT;
	uint32_t *memo = calloc(n + 1, sizeof(*memo));
	struct dcp_pickler p;
	struct dcp_ndarrays arrays = { .p = &p, .w = w };
	int rc = memo ? 0 : -ENOMEM;

	dcp_pickler_init(&p, &pickle, PROTOCOL);
	dcp_pickler_open(&p, DCP_PICKLE_DICT, n + 1);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		dcp_pickler_str(&p, s->set->tensors[b[i].tensor].key);
		memo[i] = dcp_pickler_last(&p);
		rc = dcp_ndarray_put_part(&arrays, b[i].tensor, b[i].part, s->err);
	}
	if (rc == 0) { /* Paddle makes tensors of the keys in it */
		dcp_pickler_put(&p, "s {*", NAMES, (uint64_t)n);
		for (size_t i = 0; i < n; i++)
			dcp_pickler_put(&p, "g g", memo[i], memo[i]);
		rc = dcp_pickler_end(&p);
	}
	dcp_writer_bytes(w, pickle.p, pickle.n);
	free(memo);
	return rc;
}

static int put_files(struct saving *s, struct dcp_writer *w)
{
	struct box *b = DCP_ITEMS(s->boxes, struct box);
	size_t n = DCP_NITEMS(s->boxes, struct box), at = 0, end;
	char name[NAME];
	int rc = 0;

	DCP_SORT(b, n, by_file);
	for (uint32_t i = 0; rc == 0 && i < s->nfiles; i++, at = end) {
		for (end = at; end < n && b[end].file == i;)
			end++;
		name_file(i, name);
		dcp_writer_file(w, name, false);
		rc = put_file(s, b + at, end - at, w);
	}
	return rc;
}

/* ---- 0.metadata ---- */

/* An instance whose @n fields follow. */
static void open_class(const struct saving *s, struct dcp_pickler *p, const char *class,
		       uint64_t n)
{
	dcp_pickler_put(p, "B O c (0 {*", s->old ? OLD_MODULE : MODULE, class, n);
}

static void put_local(const struct saving *s, struct dcp_pickler *p, const struct box *b)
{
	const struct dcp_write_tensor *t = &s->set->tensors[b->tensor];
	const struct dcp_write_part *part = &t->parts[b->part];

	open_class(s, p, "LocalTensorMetadata", s->old ? 3 : 6);
	dcp_pickler_put(p, "w v w v w w", "global_offset", t->ndim, part->lo, "local_shape",
			t->ndim, part->shape, "dtype", dcp_dtype_info(t->dtype)->torch);
	if (!s->old)
		dcp_pickler_put(p, "w v w 0 w N", "global_shape", t->ndim, t->shape,
				"is_flattened", "flattened_range");
}

static void put_index(const struct saving *s, struct dcp_pickler *p, const struct box *b,
		      uint32_t key)
{
	const struct dcp_write_tensor *t = &s->set->tensors[b->tensor];
	const struct dcp_write_part *part = &t->parts[b->part];
	char name[NAME];

	open_class(s, p, "LocalTensorIndex", s->old ? 2 : 6);
	dcp_pickler_put(p, "w g w v", "tensor_key", key, "global_offset", t->ndim, part->lo);
	if (!s->old)
		dcp_pickler_put(p, "w 0 w N w N w v", "is_flattened", "flattened_range",
				"replica_id", "local_shape", t->ndim, part->shape);
	name_file(b->file, name);
	dcp_pickler_str(p, name);
}

/* Boxes of tensor @t begin at number @at; returns where they end. */
static size_t boxes_end(const struct saving *s, size_t at, size_t t)
{
	const struct box *b = DCP_ITEMS(s->boxes, struct box);

	while (at < DCP_NITEMS(s->boxes, struct box) && b[at].tensor == t)
		at++;
	return at;
}

static void put_tensors(const struct saving *s, struct dcp_pickler *p, uint32_t *memo,
			struct dcp_writer *w)
{
	const struct box *b = DCP_ITEMS(s->boxes, struct box);
	size_t at = 0;

	dcp_pickler_put(p, "w {*", "state_dict_metadata", (uint64_t)s->set->ntensors);
	for (size_t i = 0; i < s->set->ntensors; i++) {
		size_t end = boxes_end(s, at, i);

		dcp_pickler_str(p, s->set->tensors[i].key);
		memo[i] = dcp_pickler_last(p);
		dcp_pickler_open(p, DCP_PICKLE_LIST, end - at);
		for (; at < end; at++)
			put_local(s, p, &b[at]);
		dcp_pickler_flush(p, w);
	}
	dcp_pickler_put(p, "w {*", "storage_metadata",
			(uint64_t)DCP_NITEMS(s->boxes, struct box));
	for (at = 0; at < DCP_NITEMS(s->boxes, struct box); at++) {
		put_index(s, p, &b[at], memo[b[at].tensor]);
		dcp_pickler_flush(p, w);
	}
}

static int put_metadata(const struct saving *s, struct dcp_writer *w)
{
	dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT;
	uint32_t *memo = calloc(s->set->ntensors + 1, sizeof(*memo));
	struct dcp_pickler p;
	int rc;

	if (!memo)
		return -ENOMEM;
	dcp_writer_file(w, "0.metadata", true);
	dcp_pickler_init(&p, &pickle, PROTOCOL);
	open_class(s, &p, "Metadata", 3);
	put_tensors(s, &p, memo, w);
	dcp_pickler_put(&p, "w {*", "flat_mapping", (uint64_t)s->set->ntensors);
	for (size_t i = 0; i < s->set->ntensors; i++) {
		const struct dcp_write_tensor *t = &s->set->tensors[i];

		dcp_pickler_put(&p, "g (*", memo[i], (uint64_t)(t->npath ? t->npath : 1));
		for (size_t k = 0; k < t->npath; k++)
			dcp_pickler_str(&p, t->path[k]);
		if (!t->npath)
			dcp_pickler_get(&p, memo[i]);
	}
	rc = dcp_pickler_end(&p);
	dcp_writer_bytes(w, pickle.p, pickle.n);
	free(memo);
	return rc;
}

/* ---- all of it ---- */

static int by_tensor(const void *a, const void *b)
{
	const struct box *x = a, *y = b;

	return DCP_CMP(x->tensor, y->tensor) ?: DCP_CMP(x->part, y->part);
}

static int plan_as(const struct dcp_write_set *set, bool old, struct dcp_writer *w,
		   struct dcp_err *err)
{
	struct saving s = { .set = set, .old = old, .err = err };
	int rc = place_tensors(&s);

	if (rc == 0)
		rc = put_files(&s, w);
	DCP_SORT(DCP_ITEMS(s.boxes, struct box), DCP_NITEMS(s.boxes, struct box), by_tensor);
	if (rc == 0)
		rc = put_metadata(&s, w);
	dcp_buf_finish(&s.boxes);
	return rc;
}

static int plan_files(const struct dcp_write_set *set, const struct dcp_write_opts *opts,
		      struct dcp_writer *w, struct dcp_err *err)
{
	return plan_as(set, false, w, err);
}

static int plan_old(const struct dcp_write_set *set, const struct dcp_write_opts *opts,
		    struct dcp_writer *w, struct dcp_err *err)
{
	return plan_as(set, true, w, err);
}

const struct dcp_write_format dcp_write_paddle_dist = {
	.name = "paddle-dist",
	.what = "paddle.distributed.save_state_dict, for Paddle from 3.2 on",
	.takes = DCP_WRITE_LAYOUT | DCP_WRITE_BOXES,
	.refuses = refuses_tensor,
	.plan = plan_files,
};

const struct dcp_write_format dcp_write_paddle_dist_31 = {
	.name = "paddle-dist-3.1",
	.what = "the same for Paddle 2.6 to 3.1",
	.takes = DCP_WRITE_LAYOUT | DCP_WRITE_BOXES,
	.refuses = refuses_tensor,
	.plan = plan_old,
};

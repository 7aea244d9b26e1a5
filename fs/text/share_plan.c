/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "core/base/err.h"
#include "core/model/geometry/strided.h"
#include "core/store/io/files.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "fs/fs.h"
#include "fs/text/share.h"
#include "fs/text/share_int.h"
#include "fs/text/spool.h"
#include "fs/versions/ranks.h"

enum {
	PAGE = 4096 /* block size of storage, fixed, so that plans are the same on every machine */
};

/* What one file has to give. */
struct need {
	uint64_t bytes, touched, reads;
};

struct planning {
	struct dcpfs_writing x;
	struct dcpfs_spool *s;
	struct dcp_buf needs; /* struct need, by file number */
	struct need all;
	const struct dcp_view *view;
	struct dcp_stored stored; /* the bytes decoded last; without a codec: none */
};

/* One counted dimension of the runs. */
struct step {
	uint64_t n, stride;
};

/*
 * Bytes of the pages under all runs of @step[0..@k), from @at on: a run's own alone where @k is
 * 0. Where a run begins on its page repeats; for all but the closest runs sixteen places are
 * enough.
 */
static uint64_t pages_under(const struct step *step, uint32_t k, uint64_t at, uint64_t run)
{
	uint64_t places, bytes = 0;

	if (k == 0)
		return (at % PAGE + run + PAGE - 1) / PAGE * PAGE;
	k--;
	places = DCP_MIN(step[k].n, (uint64_t)(k == 0 ? PAGE : 16));
	for (uint64_t i = 0; i < places; i++)
		bytes += pages_under(step, k, at + i * step[k].stride, run) *
			 (step[k].n / places + (i < step[k].n % places));
	return bytes;
}

/*
 * Bytes of the distinct pages that the runs lie on. As long as no whole page fits between two
 * runs, what lies there counts as one run.
 */
static uint64_t pages_of(const struct dcp_strided *s)
{
	struct step step[DCP_STRIDED_DIMS];
	uint64_t run = s->run;
	uint32_t n = 0;

	for (uint32_t d = 0; d < s->ndim; d++) { /* the closest first */
		uint32_t at = d;

		for (; at > 0 && step[at - 1].stride > s->file_stride[d]; at--)
			step[at] = step[at - 1];
		step[at] = (struct step){ s->count[d], s->file_stride[d] };
	}
	while (n < s->ndim && step[n].stride < run + PAGE) {
		run += (step[n].n - 1) * step[n].stride;
		n++;
	}
	return pages_under(step + n, s->ndim - n, s->off, run);
}

static int add_need(struct planning *p, uint32_t file, uint64_t bytes, uint64_t touched)
{
	struct need *n = dcp_buf_at(&p->needs, file, sizeof(*n));

	if (!n)
		return -ENOMEM;
	n->bytes += bytes;
	n->touched += touched;
	return 0;
}

/*
 * Write the stored bytes that a read decodes. They are read whole, once for consecutive reads
 * of the same bytes.
 */
static int put_stored(struct planning *p, const struct dcp_stored *now)
{
	uint64_t touched = 0;

	if (!p->stored.codec || p->stored.file != now->file || p->stored.off != now->off)
		touched = pages_under(NULL, 0, now->off, now->n);
	p->stored = *now;
	p->all.touched += touched;
	dcp_jsonw_put_object(&p->x.w, "decoded");
	dcp_jsonw_put_str(&p->x.w, "codec", now->codec);
	dcp_jsonw_put_u64(&p->x.w, "offset", now->off);
	dcp_jsonw_put_u64(&p->x.w, "nbytes", now->n);
	dcp_jsonw_end(&p->x.w);
	return add_need(p, now->file, 0, touched);
}

static int put_read(void *ctx, const struct dcp_strided *s, uint32_t file)
{
	struct planning *p = ctx;
	struct dcp_jsonw *w = &p->x.w;
	struct dcp_stored stored = { .file = file };
	bool decoded = file == DCP_VIEW_NO_FILE;
	uint64_t bytes = dcp_strided_bytes(s), touched = decoded ? 0 : pages_of(s);
	int rc = decoded ? dcp_view_stored(p->view, s, &stored, NULL) : 0;

	if (rc < 0)
		return rc;
	dcp_jsonw_object(w);
	dcp_jsonw_put_str(
		w, "file",
		dcp_files_name(dcp_version_files(dcpfs_opened(p->x.ver)), stored.file));
	dcp_jsonw_put_u64(w, "offset", s->off);
	dcp_jsonw_put_u64(w, "run", s->run);
	if (s->ndim) {
		dcp_jsonw_put_u64s(w, "count", s->count, s->ndim);
		dcp_jsonw_put_u64s(w, "stride", s->file_stride, s->ndim);
		dcp_jsonw_put_u64s(w, "to_stride", s->dst_stride, s->ndim);
	}
	dcp_jsonw_put_u64(w, "to", s->dst);
	if (decoded)
		rc = put_stored(p, &stored);
	dcp_jsonw_end(w);
	p->all.bytes += bytes;
	p->all.touched += touched;
	p->all.reads++;
	if (rc == 0)
		rc = add_need(p, stored.file, bytes, touched);
	if (rc == 0)
		DCP_ITEMS(p->needs, struct need)[stored.file].reads++;
	return rc;
}

static int put_reads(void *ctx, struct dcp_row *row)
{
	struct planning *p = ctx;
	struct dcp_err why = { .msg = "" };
	struct dcp_view *view = NULL;
	struct dcp_cut cut;
	int rc;

	dcp_arena_reset(&p->x.arena);
	rc = dcpfs_rank_cut(p->x.ver, row, &p->x.arena, &cut, &why);
	if (rc == 0 || rc == -ENOMEM)
		return rc;
	dcp_jsonw_object(&p->x.w);
	dcp_jsonw_put_str(&p->x.w, "key", row->key);
	dcp_jsonw_put_u64(&p->x.w, "nbytes", row->nbytes);
	if (rc > 0)
		rc = dcp_view_open(dcpfs_opened(p->x.ver), row->id, DCP_AS_RAW, &cut, &view,
				   &why);
	p->view = view;
	dcp_jsonw_put_array(&p->x.w, "reads");
	if (rc == 0)
		rc = dcp_view_strided(view, put_read, p);
	if (rc == -ENOTSUP && !*why.msg)
		dcp_fail(&why, rc, "its numbers are not stored as they are shown");
	dcp_jsonw_end(&p->x.w);
	dcp_jsonw_put_str_or_null(&p->x.w, "error", *why.msg ? why.msg : NULL);
	dcp_jsonw_end(&p->x.w);
	dcp_view_close(view);
	return rc == -ENOMEM ? rc : 0;
}

static void put_needs(struct planning *p)
{
	const struct need *n = DCP_ITEMS(p->needs, struct need);
	struct dcp_jsonw *w = &p->x.w;

	dcp_jsonw_put_array(w, "files");
	for (uint32_t i = 0; i < p->needs.n / sizeof(*n); i++) {
		if (!n[i].reads)
			continue;
		dcp_jsonw_object(w);
		dcp_jsonw_put_str(w, "file",
				  dcp_files_name(dcp_version_files(dcpfs_opened(p->x.ver)), i));
		dcp_jsonw_put_u64(w, "nbytes", n[i].bytes);
		dcp_jsonw_put_u64(w, "touched", n[i].touched);
		dcp_jsonw_put_u64(w, "reads", n[i].reads);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
	dcp_jsonw_put_u64(w, "nbytes", p->all.bytes);
	dcp_jsonw_put_u64(w, "touched", p->all.touched);
	dcp_jsonw_put_u64(w, "reads", p->all.reads);
	dcp_jsonw_put_f64(w, "amplification",
			  p->all.bytes ? (double)p->all.touched / (double)p->all.bytes : 1);
}

int dcpfs_share_plan(struct dcpfs_version *ver, struct dcpfs_spool *s)
{
	struct planning p = { .x = { .ver = ver, .layout = ver->layout }, .s = s };
	int rc;

	dcp_arena_init(&p.x.arena, DCPFS_ROW_MEMORY);
	dcp_jsonw_init(&p.x.w, &s->buf, false);
	dcpfs_share_begin(&p.x);
	dcp_jsonw_put_array(&p.x.w, "tensors");
	rc = dcpfs_spool_rows(s, dcpfs_index(ver), DCP_ROW_TENSOR, put_reads, &p);
	dcp_jsonw_end(&p.x.w);
	put_needs(&p);
	dcp_jsonw_end(&p.x.w);
	dcp_buf_str(&s->buf, "\n");
	dcp_arena_finish(&p.x.arena);
	dcp_buf_finish(&p.needs);
	return rc < 0 ? rc : dcp_jsonw_error(&p.x.w);
}

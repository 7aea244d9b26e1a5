/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "core/base/err.h"
#include "core/model/geometry/strided.h"
#include "core/model/layout/layout.h"
#include "core/store/io/files.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "fs/fs.h"
#include "fs/ranks.h"
#include "fs/share.h"
#include "fs/share_int.h"
#include "fs/spool.h"

enum { PAGE = 4096 /* that of storage; a plan does not depend on where it is made */ };

/* What one file has to give. */
struct need {
	uint64_t bytes, touched, reads;
};

struct planning {
	struct dcpfs_writing x;
	struct dcpfs_spool *s;
	struct dcp_buf needs; /* struct need, by file number */
	struct need all;
	const struct dcp_tensor *t;
};

/* Bytes of the distinct pages that the runs lie on. */
static uint64_t pages_of(const struct dcp_strided *s)
{
	uint64_t runs = 1, extent = dcp_strided_extent(s), alone;

	for (uint32_t d = 0; d < s->ndim; d++)
		runs *= s->count[d];
	alone = runs * ((s->off % PAGE + s->run + PAGE - 1) / PAGE * PAGE);
	return DCP_MIN(alone, (s->off % PAGE + extent + PAGE - 1) / PAGE * PAGE);
}

static int add_need(struct planning *p, uint32_t file, uint64_t bytes, uint64_t touched)
{
	struct need *n;

	while (p->needs.n <= file * sizeof(*n)) {
		void *more = dcp_buf_grow(&p->needs, sizeof(*n));

		if (!more)
			return -ENOMEM;
		memset(more, 0, sizeof(*n));
	}
	n = (struct need *)(void *)p->needs.p + file;
	n->bytes += bytes;
	n->touched += touched;
	n->reads++;
	return 0;
}

static int put_read(void *ctx, const struct dcp_strided *s, uint32_t file)
{
	struct planning *p = ctx;
	struct dcp_jsonw *w = &p->x.w;
	uint64_t bytes = dcp_strided_bytes(s), touched = pages_of(s);
	bool decoded = file == DCP_VIEW_NO_FILE;
	uint32_t stored = decoded ? s->piece->file : file;

	p->all.bytes += bytes;
	p->all.touched += touched;
	p->all.reads++;
	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "file",
			  dcp_files_name(dcp_version_files(dcpfs_opened(p->x.ver)), stored));
	dcp_jsonw_put_u64(w, "offset", s->off);
	dcp_jsonw_put_u64(w, "run", s->run);
	if (s->ndim) {
		dcpfs_share_dims(w, "count", s->count, s->ndim);
		dcpfs_share_dims(w, "stride", s->file_stride, s->ndim);
		dcpfs_share_dims(w, "to_stride", s->dst_stride, s->ndim);
	}
	dcp_jsonw_put_u64(w, "to", s->dst);
	if (decoded)
		dcp_jsonw_put_bool(w, "decompressed", true);
	dcp_jsonw_end(w);
	return add_need(p, stored, bytes, touched);
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
	dcp_jsonw_key(&p->x.w, "reads");
	dcp_jsonw_array(&p->x.w);
	if (rc == 0)
		rc = dcp_view_strided(view, put_read, p);
	dcp_jsonw_end(&p->x.w);
	dcp_jsonw_put_str_or_null(&p->x.w, "error", *why.msg ? why.msg : NULL);
	dcp_jsonw_end(&p->x.w);
	dcp_view_close(view);
	return rc == -ENOMEM ? rc : 0;
}

static void put_needs(struct planning *p)
{
	const struct need *n = (const struct need *)(const void *)p->needs.p;
	struct dcp_jsonw *w = &p->x.w;

	dcp_jsonw_key(w, "files");
	dcp_jsonw_array(w);
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
	dcp_jsonw_key(w, "amplification");
	dcp_jsonw_f64(w, p->all.bytes ? (double)p->all.touched / (double)p->all.bytes : 1);
}

int dcpfs_share_plan(struct dcpfs_version *ver, struct dcpfs_spool *s, struct dcp_err *err)
{
	struct planning p = { .x = { .ver = ver, .layout = ver->layout }, .s = s };
	int rc;

	(void)err;
	dcp_arena_init(&p.x.arena, DCPFS_ROW_MEMORY);
	dcp_jsonw_init(&p.x.w, &s->buf, false);
	dcpfs_share_begin(&p.x);
	dcp_jsonw_key(&p.x.w, "tensors");
	dcp_jsonw_array(&p.x.w);
	rc = dcpfs_share_rows(ver, DCP_ROW_TENSOR, s, put_reads, &p);
	dcp_jsonw_end(&p.x.w);
	put_needs(&p);
	dcp_jsonw_end(&p.x.w);
	dcp_buf_str(&s->buf, "\n");
	dcp_arena_finish(&p.x.arena);
	dcp_buf_finish(&p.needs);
	return rc < 0 ? rc : dcp_jsonw_error(&p.x.w);
}

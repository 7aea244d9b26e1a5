/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/text/text.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/jsonw.h"
#include "core/model/geometry/strided.h"
#include "core/model/layout/layout.h"
#include "core/store/index/index.h"
#include "core/store/io/files.h"
#include "core/store/layouts/layouts.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "fs/fs.h"
#include "fs/tree/tree.h"
#include "fs/versions/versions.h"

struct dcp_named_layout;
struct dcpfs_spool;
struct dcpfs_version;

enum { DCPFS_ROW_MEMORY = 16 << 20 }; /* for the cut of one row */

struct dcpfs_writing {
	struct dcpfs_version *ver;
	const struct dcp_named_layout *layout;
	struct dcp_jsonw w;
	struct dcp_buf text;
	struct dcp_arena arena;
};

static void put_mesh(struct dcp_jsonw *w, const struct dcp_mesh *mesh)
{
	dcp_jsonw_put_object(w, "mesh");
	for (uint32_t i = 0; i < mesh->ndim; i++)
		dcp_jsonw_put_u64(w, mesh->dim[i], mesh->size[i]);
	dcp_jsonw_end(w);
}

/* ---- layout.json ---- */

static int put_placement(void *ctx, struct dcp_row *row)
{
	struct dcpfs_writing *x = ctx;
	unsigned line = 0;
	int rc;

	dcp_buf_reset(&x->text);
	rc = dcp_layout_explain(x->layout->l, row->key, &x->text, &line);
	if (dcp_buf_add(&x->text, "", 1) < 0)
		return -ENOMEM;
	dcp_jsonw_put_object(&x->w, row->key);
	dcp_jsonw_put_str_or_null(&x->w, "placement", rc == 0 ? x->text.p : NULL);
	dcp_jsonw_put_u64(&x->w, "line", line);
	dcp_jsonw_end(&x->w);
	return 0;
}

static void put_rules(struct dcpfs_writing *x)
{
	char *save = NULL;

	dcp_jsonw_put_array(&x->w, "rules");
	dcp_layout_print(x->layout->l, &x->text);
	dcp_buf_add(&x->text, "", 1);
	if (!dcp_buf_error(&x->text))
		for (char *p = strtok_r(x->text.p, "\n", &save); p;
		     p = strtok_r(NULL, "\n", &save))
			dcp_jsonw_str(&x->w, p);
	dcp_jsonw_end(&x->w);
}

int dcpfs_share_layout(struct dcpfs *fs, struct dcpfs_version *ver, uint64_t id,
		       struct dcpfs_spool *s, struct dcp_err *err)
{
	struct dcpfs_writing x = { .ver = ver, .layout = dcp_layouts_by_id(fs->layouts, id) };
	int rc;

	if (!x.layout)
		return dcp_fail(err, -ENOENT, "no such layout");
	dcp_jsonw_init(&x.w, &s->buf, false);
	dcp_jsonw_object(&x.w);
	dcp_jsonw_put_u64(&x.w, "dcpfs", 1);
	dcp_jsonw_put_str(&x.w, "version", ver->name);
	dcp_jsonw_put_str(&x.w, "layout", x.layout->name);
	dcp_jsonw_put_u64(&x.w, "ranks", dcp_layout_ranks(x.layout->l));
	put_mesh(&x.w, dcp_layout_mesh(x.layout->l));
	put_rules(&x);
	dcp_jsonw_put_object(&x.w, "keys");
	rc = dcpfs_spool_rows(s, dcpfs_index(ver), DCP_ROW_TENSOR, put_placement, &x);
	dcp_jsonw_end(&x.w);
	dcp_jsonw_end(&x.w);
	dcp_buf_str(&s->buf, "\n");
	dcp_buf_finish(&x.text);
	return rc < 0 ? rc : dcp_jsonw_error(&x.w);
}

/* ---- a rank's index.json ---- */

/* "spans": for each dimension the [lo, hi) of the whole tensor laid end to end; "flat": the run
 * of their flattening. */
static void put_cut(struct dcp_jsonw *w, const struct dcp_cut *cut)
{
	dcp_jsonw_put_array(w, "spans");
	for (uint32_t d = 0; d < cut->ndim; d++) {
		dcp_jsonw_array(w);
		for (size_t i = 0; i < cut->axis[d].n; i++) {
			const struct dcp_span *span = &cut->axis[d].span[i];

			dcp_jsonw_array(w);
			dcp_jsonw_u64(w, span->lo);
			dcp_jsonw_u64(w, span->lo + span->n);
			dcp_jsonw_end(w);
		}
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
	if (cut->flat) {
		uint64_t ends[2] = { cut->flat_lo, cut->flat_lo + cut->flat_n };

		dcp_jsonw_put_u64s(w, "flat", ends, 2);
		dcp_jsonw_put_u64(w, "padding", cut->pad);
	}
}

static int put_share(void *ctx, struct dcp_row *row)
{
	struct dcpfs_writing *x = ctx;
	struct dcp_err why = { .msg = "" };
	uint64_t whole[DCP_MAX_NDIM];
	uint32_t ndim = row->ndim;
	struct dcp_cut cut;
	int rc;

	memcpy(whole, row->shape, sizeof(whole[0]) * ndim);
	dcp_arena_reset(&x->arena);
	rc = dcpfs_rank_cut(x->ver, row, &x->arena, &cut, &why);
	if (rc == 0 || rc == -ENOMEM)
		return rc;
	dcp_jsonw_object(&x->w);
	dcp_jsonw_put_str(&x->w, "key", row->key);
	dcp_jsonw_put_str(&x->w, "dtype", dcp_dtype_info(row->dtype)->name);
	dcp_jsonw_put_u64s(&x->w, "shape", row->shape, row->ndim);
	dcp_jsonw_put_u64(&x->w, "nbytes", row->nbytes);
	dcp_jsonw_put_u64s(&x->w, "global_shape", whole, ndim);
	if (rc > 0) {
		put_cut(&x->w, &cut);
		rc = dcpfs_rank_can_read(x->ver, row, &cut, &why);
	}
	dcpfs_describe_files(row, row->dtype, &x->w);
	dcp_jsonw_put_str_or_null(&x->w, "error", rc < 0 ? why.msg : NULL);
	dcp_jsonw_end(&x->w);
	return 0;
}

static int put_object(void *ctx, struct dcp_row *row)
{
	struct dcpfs_writing *x = ctx;
	char name[NAME_MAX + 32];

	if (!dcpfs_rank_has_object(x->ver, row->key))
		return 0;
	snprintf(name, sizeof(name), "objects/%s.json", row->name);
	dcp_jsonw_object(&x->w);
	dcp_jsonw_put_str(&x->w, "key", row->key);
	dcp_jsonw_put_str(&x->w, "file", name);
	dcp_jsonw_end(&x->w);
	return 0;
}

static void begin_rank(struct dcpfs_writing *x)
{
	uint32_t at[DCP_LAYOUT_MAX_DIMS];
	const struct dcp_mesh *mesh = dcp_layout_mesh(x->layout->l);

	dcp_jsonw_object(&x->w);
	dcp_jsonw_put_u64(&x->w, "dcpfs", 1);
	dcp_jsonw_put_str(&x->w, "version", x->ver->of->name);
	dcp_jsonw_put_str(&x->w, "layout", x->layout->name);
	dcp_jsonw_put_u64(&x->w, "rank", x->ver->rank);
	dcp_layout_coords(x->layout->l, x->ver->rank, at);
	dcp_jsonw_put_object(&x->w, "coordinates");
	for (uint32_t i = 0; i < mesh->ndim; i++)
		dcp_jsonw_put_u64(&x->w, mesh->dim[i], at[i]);
	dcp_jsonw_end(&x->w);
	put_mesh(&x->w, mesh);
}

int dcpfs_share_index(struct dcpfs_version *ver, struct dcpfs_spool *s)
{
	struct dcpfs_writing x = { .ver = ver, .layout = ver->layout };
	int rc;

	dcp_arena_init(&x.arena, DCPFS_ROW_MEMORY);
	dcp_jsonw_init(&x.w, &s->buf, false);
	begin_rank(&x);
	dcp_jsonw_put_array(&x.w, "tensors");
	rc = dcpfs_spool_rows(s, dcpfs_index(ver), DCP_ROW_TENSOR, put_share, &x);
	dcp_jsonw_end(&x.w);
	dcp_jsonw_put_array(&x.w, "objects");
	if (rc >= 0)
		rc = dcpfs_spool_rows(s, dcpfs_index(ver), DCP_ROW_OBJECT, put_object, &x);
	dcp_jsonw_end(&x.w);
	dcp_jsonw_end(&x.w);
	dcp_buf_str(&s->buf, "\n");
	dcp_arena_finish(&x.arena);
	return rc < 0 ? rc : dcp_jsonw_error(&x.w);
}

enum {
	PAGE = 4096 /* block size of storage, fixed, so that plans are the same on every machine */
};

/* The need for one file. */
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

/* Bytes of the pages under all runs of @step[0..@k), from @at on; with @k 0 under a single run.
 * Places of runs in their pages repeat, so few are examined: PAGE of the closest runs, else 16. */
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

/* Bytes of the distinct pages that the runs lie on. Runs between which no whole page fits count as
 * one run. */
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

/* Write the stored bytes that a read decodes. They are read whole, once for consecutive reads of
 * the same bytes. */
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
	begin_rank(&p.x);
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

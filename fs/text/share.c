/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/text/share.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/base/err.h"
#include "core/model/layout/layout.h"
#include "core/store/layouts/layouts.h"
#include "core/store/view/view.h"
#include "fs/fs.h"
#include "fs/text/describe.h"
#include "fs/text/share_int.h"
#include "fs/text/spool.h"
#include "fs/tree/tree.h"
#include "fs/versions/ranks.h"

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

void dcpfs_share_begin(struct dcpfs_writing *x)
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
	dcpfs_share_begin(&x);
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/text/describe.h"

#include <limits.h>
#include <stdio.h>

#include "core/base/arena.h"
#include "core/base/err.h"
#include "core/base/jsonw.h"
#include "core/format/format.h"
#include "core/store/index/index.h"
#include "core/store/io/files.h"
#include "core/store/version/quantized.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "fs/text/text.h"
#include "fs/tree/tree.h"

/* "npy/<stem>.npy", as seen from the version's directory. */
static void put_file(struct dcp_jsonw *w, const struct dcpfs_rows *r, const char *stem)
{
	char name[NAME_MAX + 32];

	snprintf(name, sizeof(name), "%s/%s%s", r->name, stem, r->extension);
	dcp_jsonw_str(w, name);
}

void dcpfs_describe_files(const struct dcp_row *row, enum dcp_dtype dtype, struct dcp_jsonw *w)
{
	static const enum dcpfs_kind dirs[] = { DCPFS_NPY_DIR, DCPFS_RAW_DIR,
						DCPFS_SAFETENSORS_DIR };

	dcp_jsonw_put_object(w, "files");
	for (size_t i = 0; i < DCP_LEN(dirs); i++) {
		const struct dcpfs_rows *r = dcpfs_rows_in(dirs[i]);

		dcp_jsonw_key(w, dcp_as_name(r->as));
		if (dcp_view_can_show(row->key, dtype, r->as))
			put_file(w, r, row->name);
		else
			dcp_jsonw_null(w);
	}
	dcp_jsonw_end(w);
}

static void put_piece(struct dcp_jsonw *w, const struct dcp_files *files,
		      const struct dcp_piece *p, uint32_t ndim, uint32_t itemsize)
{
	uint64_t nbytes = p->enc == DCP_ENC_PLAIN && !p->stride && p->filter == DCP_FILTER_NONE
				  ? p->run_n * itemsize
				  : p->nbytes;
	uint64_t volume;

	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "file", dcp_files_name(files, p->file));
	dcp_jsonw_put_u64(w, "offset", p->off);
	dcp_jsonw_put_u64(w, "nbytes", nbytes);
	dcp_jsonw_put_array(w, "region");
	for (uint32_t d = 0; d < ndim; d++) {
		dcp_jsonw_array(w);
		dcp_jsonw_u64(w, p->lo[d]);
		dcp_jsonw_u64(w, p->lo[d] + p->len[d]);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
	if (p->run_lo || !dcp_shape_volume(p->len, ndim, &volume) || p->run_n != volume) {
		uint64_t run[2] = { p->run_lo, p->run_lo + p->run_n };

		dcp_jsonw_put_u64s(w, "run", run, 2);
	}
	if (p->stride)
		dcp_jsonw_put_u64s(w, "strides", p->stride, ndim);
	if (p->item_n) {
		uint64_t item[2] = { p->item_lo, p->item_n };

		dcp_jsonw_put_u64s(w, "item", item, 2);
	}
	if (p->swap)
		dcp_jsonw_put_str(w, "byteorder", "big");
	if (dcp_files_unpacked(files, p->file))
		dcp_jsonw_put_bool(w, "unpacked", true);
	if (p->filter != DCP_FILTER_NONE)
		dcp_jsonw_put_str(w, "filter", p->mean ? "mean" : dcp_filter_name(p->filter));
	if (p->nmore)
		dcp_jsonw_put_array(w, "terms");
	for (uint32_t i = 0; i < p->nmore; i++) {
		dcp_jsonw_object(w);
		dcp_jsonw_put_str(w, "file", dcp_files_name(files, p->more[i].file));
		dcp_jsonw_put_u64(w, "offset", p->more[i].off);
		dcp_jsonw_end(w);
	}
	if (p->nmore)
		dcp_jsonw_end(w);
	dcp_jsonw_end(w);
}

static void put_tensor(struct dcp_version *v, const struct dcp_row *row,
		       const struct dcp_tensor *t, const char *error,
		       const struct dcp_measured *m, struct dcp_jsonw *w)
{
	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "key", t->key);
	dcp_jsonw_put_strs(w, "path", t->path, t->npath);
	dcp_jsonw_put_str(w, "dtype", t->dtype_name);
	dcp_jsonw_put_u64s(w, "shape", t->shape, t->ndim);
	dcp_jsonw_put_u64(w, "nbytes", row->nbytes);
	if (t->cast)
		dcp_jsonw_put_str(w, "stored_dtype", dcp_dtype_info(t->dtype)->name);
	dcpfs_describe_files(row, dcp_tensor_shown(t), w);
	dcp_jsonw_put_str_or_null(w, "alias_of", t->alias_of);
	dcp_jsonw_put_array(w, "pieces");
	for (size_t i = 0; i < t->npieces; i++)
		put_piece(w, dcp_version_files(v), &t->pieces[i], t->ndim, t->itemsize);
	dcp_jsonw_end(w);
	dcp_jsonw_put_str_or_null(w, "error", error);
	if (m) {
		dcp_jsonw_put_object(w, "stats");
		dcpfs_measured_put(m, row, w);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
}

int dcpfs_describe_tensor(struct dcp_version *v, const struct dcp_row *row,
			  const struct dcp_measured *m, struct dcp_jsonw *w,
			  struct dcp_err *err)
{
	struct dcp_err why = { .msg = "" };
	dcp_auto_view struct dcp_view *view = NULL;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(512 << 20);
	struct dcp_tensor t;
	int rc;

	if (dcp_view_open(v, row->id, DCP_AS_RAW, NULL, &view, &why) == 0) {
		put_tensor(v, row, dcp_view_tensor(view), NULL, m, w);
		return 0;
	}
	rc = dcp_index_tensor(dcp_version_index(v), row->id, &arena, &t, err);
	if (rc == 0)
		put_tensor(v, row, &t, t.error ? t.error : why.msg, m, w);
	return rc;
}

int dcpfs_describe_object(struct dcp_version *v, const struct dcp_row *row, bool value,
			  struct dcp_jsonw *w, struct dcp_err *err)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(512 << 20);
	struct dcp_object o;
	int rc = dcp_index_object(dcp_version_index(v), row->id, &arena, &o, err);

	if (rc == 0) {
		dcp_jsonw_object(w);
		dcp_jsonw_put_str(w, "key", o.key);
		dcp_jsonw_put_strs(w, "path", o.path, o.npath);
		dcp_jsonw_put_str(w, "type", o.type);
		dcp_jsonw_key(w, "file");
		put_file(w, dcpfs_rows_in(DCPFS_OBJECTS_DIR), row->name);
		if (o.error)
			dcp_jsonw_put_str(w, "error", o.error);
		if (value && o.json) {
			dcp_jsonw_key(w, "value");
			dcp_jsonw_raw(w, o.json, o.json_len);
		}
		dcp_jsonw_end(w);
	}
	return rc;
}

int dcpfs_describe_broken(const struct dcp_version *v, enum dcp_row_kind kind,
			  dcpfs_broken_fn *fn, void *ctx)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(512 << 20);
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_index *ix = dcp_version_index(v);
	struct dcp_row row;
	int rc = dcp_index_scan(ix, kind, 0, false, &scan);

	while (rc == 0 && (rc = dcp_index_scan_next(scan, &row)) > 0) {
		struct dcp_tensor t = { 0 };
		struct dcp_object o = { 0 };

		rc = 0;
		if (!row.broken)
			continue;
		dcp_arena_reset(&arena);
		rc = kind == DCP_ROW_TENSOR ? dcp_index_tensor(ix, row.id, &arena, &t, NULL)
					    : dcp_index_object(ix, row.id, &arena, &o, NULL);
		if (rc == 0)
			rc = fn(ctx, &row, kind == DCP_ROW_TENSOR ? t.error : o.error);
	}
	return rc;
}

void dcpfs_describe_version(const struct dcp_version *v, struct dcp_jsonw *w)
{
	const struct dcp_index *ix = dcp_version_index(v);
	static const char *const said[] = { "metadata", "metadata_lost" };
	struct dcp_quantized *q = NULL;
	const char *framework = dcp_index_meta(ix, "framework");
	const char *variant = dcp_index_meta(ix, "variant");

	dcp_jsonw_put_u64(w, "dcpfs", 1);
	dcp_jsonw_put_str(w, "version", dcp_version_name(v));
	dcp_jsonw_put_str(w, "format", dcp_version_format(v)->name);
	dcp_jsonw_put_bool(w, "complete", true);
	dcp_jsonw_put_array(w, "frameworks");
	if (framework)
		dcp_jsonw_str(w, framework);
	dcp_jsonw_end(w);
	if (variant)
		dcp_jsonw_put_str(w, "variant", variant);
	if (dcp_quantized_find(v, NULL, &q, NULL) == 0 && q)
		dcp_jsonw_put_str(w, "quantized", dcp_quantized_by(q));
	dcp_quantized_free(q);
	for (size_t i = 0; i < DCP_LEN(said); i++) {
		const char *json = dcp_index_meta(ix, said[i]);

		if (!json)
			continue;
		dcp_jsonw_key(w, said[i]);
		dcp_jsonw_raw(w, json, strlen(json));
	}
}

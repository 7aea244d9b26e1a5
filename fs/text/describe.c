/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/text/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/jsonw.h"
#include "core/format/format.h"
#include "core/hf/hf.h"
#include "core/model/measure/stats.h"
#include "core/remote/http.h"
#include "core/store/index/index.h"
#include "core/store/io/files.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "fs/fs.h"
#include "fs/tree/tree.h"

enum { SPOOL_BYTES = 1 << 20 };

int dcpfs_text_from_buf(struct dcpfs_text *t, struct dcp_buf *b)
{
	size_t n = b->n;
	char *p = dcp_buf_take(b);

	if (!p)
		return -ENOMEM;
	*t = (struct dcpfs_text){ .p = p, .n = n, .heap = p };
	return 0;
}

void dcpfs_text_finish(struct dcpfs_text *t)
{
	if (t->p && !t->heap)
		munmap((void *)(uintptr_t)t->p, t->n);
	free(t->heap);
	*t = (struct dcpfs_text){ 0 };
}

int dcpfs_nameless(const char *dir, const char *what)
{
	int fd = dir ? open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : -1;

	return fd >= 0 ? fd : memfd_create(what, MFD_CLOEXEC);
}

int dcpfs_spool_flush(struct dcpfs_spool *s, bool now)
{
	size_t done = 0;

	if (s->buf.failed)
		return -ENOMEM;
	if (!now && s->buf.n < SPOOL_BYTES)
		return 0;
	if (s->fd < 0)
		s->fd = dcpfs_nameless(s->dir, "dcpfs-text");
	if (s->fd < 0)
		return -errno;
	while (done < s->buf.n) {
		ssize_t n = write(s->fd, s->buf.p + done, s->buf.n - done);

		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0)
			done += (size_t)n;
	}
	s->written += done;
	dcp_buf_reset(&s->buf);
	return 0;
}

int dcpfs_spool_rows(struct dcpfs_spool *s, struct dcp_index *ix, enum dcp_row_kind kind,
		     int (*fn)(void *ctx, struct dcp_row *row), void *ctx)
{
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	int rc = dcp_index_scan(ix, kind, 0, false, &scan);

	while (rc == 0 && (rc = dcp_index_scan_next(scan, &row)) > 0) {
		rc = fn(ctx, &row);
		rc = rc < 0 ? rc : dcpfs_spool_flush(s, false);
	}
	return rc;
}

int dcpfs_spool_patch(struct dcpfs_spool *s, size_t off, const void *p, size_t n)
{
	if (off >= s->written) {
		memcpy(s->buf.p + (off - s->written), p, n);
		return 0;
	}
	return pwrite(s->fd, p, n, (off_t)off) == (ssize_t)n ? 0 : -EIO;
}

int dcpfs_spool_drop(struct dcpfs_spool *s, int rc)
{
	dcp_buf_finish(&s->buf);
	dcp_close_fd(&s->fd);
	return rc;
}

int dcpfs_spool_finish(struct dcpfs_spool *s, struct dcpfs_text *out)
{
	void *map;
	int rc;

	if (s->fd < 0)
		return dcpfs_text_from_buf(out, &s->buf);
	rc = dcpfs_spool_flush(s, true);
	if (rc < 0)
		return dcpfs_spool_drop(s, rc);
	map = mmap(NULL, s->written, PROT_READ, MAP_SHARED, s->fd, 0);
	rc = map == MAP_FAILED ? -errno : 0;
	if (rc == 0)
		*out = (struct dcpfs_text){ .p = map, .n = s->written };
	return dcpfs_spool_drop(s, rc);
}

enum {
	DTYPE_MOST = 128, /* bytes of a dtype's name; a longer name is null */
	ESCAPED = 6,      /* bytes of an escaped byte, at most */
	NUMBER_MOST = 26, /* a number, and the text between two numbers */
	BLOCK = 512,
};

struct dcp_measures *dcpfs_measures(struct dcpfs_version *ver)
{
	struct dcp_measures *m = __atomic_load_n(&ver->measures, __ATOMIC_ACQUIRE),
			    *before = NULL;

	if (m || dcp_measures_open(dcpfs_opened(ver), &m) < 0)
		return m;
	if (__atomic_compare_exchange_n(&ver->measures, &before, m, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return m;
	dcp_measures_close(m);
	return before;
}

/* Write the members of an object. */
static void dcpfs_measured_put(const struct dcp_measured *m, const struct dcp_row *row,
			       struct dcp_jsonw *w)
{
	struct dcp_stats_of of = { .s = &m->s,
				   .dtype = row->dtype,
				   .unwritten = m->unwritten,
				   .ndim = row->ndim,
				   .shape = row->shape };
	struct dcp_stats_fields all;

	dcp_stats_fields(&of, &all);
	dcp_stats_fields_json(&all, w);
}

uint64_t dcpfs_measured_size(const struct dcp_row *row)
{
	uint64_t most = ESCAPED * (strlen(row->key) + DTYPE_MOST) +
			(DCP_STATS_FIELDS + 2 * row->ndim) * NUMBER_MOST +
			strlen(DCP_STATS_FIELD_NAMES) + 2 * BLOCK;

	return (most + BLOCK - 1) / BLOCK * BLOCK;
}

bool dcpfs_measured_is_known(struct dcpfs_version *ver, int64_t id)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 20);
	struct dcp_measures *known = dcpfs_opened(ver) ? dcpfs_measures(ver) : NULL;
	struct dcp_measured m;
	struct dcp_row row;

	return known &&
	       dcp_index_by_id(dcpfs_index(ver), DCP_ROW_TENSOR, id, &arena, &row) == 0 &&
	       dcp_measures_know(known, &row, &m);
}

/* Has the program that opens the file been interrupted, or does the mount end? */
static bool is_over(void *ctx, uint64_t done, uint64_t all)
{
	const struct dcpfs_kernel *k = ((const struct dcpfs *)ctx)->opts.kernel;

	return dcp_http_stopped() || (k && k->ended(k->ctx));
}

int dcpfs_measured_make(struct dcpfs *fs, struct dcpfs_version *ver, int64_t id,
			struct dcpfs_text *out, struct dcp_err *err)
{
	const struct dcp_measure_stop stop = { is_over, fs };

	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	struct dcp_measures *known = dcpfs_measures(ver);
	struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_measured m;
	struct dcp_jsonw w;
	struct dcp_tensor t;
	struct dcp_row row;
	uint64_t size;
	int rc = known ? dcp_index_by_id(dcpfs_index(ver), DCP_ROW_TENSOR, id, &arena, &row)
		       : -ENOMEM;

	if (rc == 0)
		rc = dcp_index_tensor(dcpfs_index(ver), id, &arena, &t, err);
	if (rc == 0)
		rc = dcp_measures_get(known, &row, NULL, &stop, &m, err);
	if (rc < 0)
		return dcp_err_say(err, rc);
	dcp_jsonw_init(&w, &b, true);
	dcp_jsonw_object(&w);
	dcp_jsonw_put_str(&w, "name", row.key);
	dcp_jsonw_put_u64(&w, "tensors", 1);
	dcp_jsonw_put_str_or_null(&w, "dtype",
				  strlen(t.dtype_name) <= DTYPE_MOST ? t.dtype_name : NULL);
	dcpfs_measured_put(&m, &row, &w);
	dcp_jsonw_end(&w);
	size = dcpfs_measured_size(&row);
	while (b.n + 1 < size && dcp_buf_error(&b) == 0)
		dcp_buf_str(&b, " ");
	dcp_buf_str(&b, "\n");
	return dcpfs_text_from_buf(out, &b);
}

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

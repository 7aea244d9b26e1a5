/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/file/file_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/store/index/index.h"
#include "core/store/view/view.h"
#include "fs/errors.h"
#include "fs/file/blob.h"
#include "fs/file/hot.h"
#include "fs/file/model.h"
#include "fs/fs.h"
#include "fs/ino.h"
#include "fs/text/text.h"
#include "fs/tree/tree.h"
#include "fs/versions/opener.h"
#include "fs/versions/ranks.h"
#include "fs/versions/versions.h"

void dcpfs_file_destroy(struct dcpfs *fs, struct dcpfs_file *f)
{
	dcpfs_hot_drop(fs->hot, &f->hot);
	if (f->opens) { /* at the end of the session */
		f->opens = 1;
		dcpfs_file_closed(f);
	}
	pthread_mutex_destroy(&f->opening);
	dcp_view_close(f->view);
	dcpfs_model_finish(&f->model);
	dcpfs_text_finish(&f->text);
	dcpfs_version_put(f->ver);
	free(f);
}

bool dcpfs_file_is_gone(const struct dcpfs_file *f)
{
	return f->ver && __atomic_load_n(&f->ver->gone, __ATOMIC_ACQUIRE);
}

static int open_object(struct dcpfs_file *f, int64_t id, struct dcp_err *err)
{
	struct dcp_object o = { 0 };
	struct dcp_arena arena;
	int rc;

	dcp_arena_init(&arena, 512 << 20);
	rc = dcp_index_object(dcpfs_index(f->ver), id, &arena, &o, err);
	if (rc == 0 && (o.error || !o.json))
		rc = dcp_fail(err, -EIO, DCP_ERR_NO_OFFSET, "%s: %s: %s", f->ver->name, o.key,
			      o.error ? o.error : "no value");
	if (rc == 0) {
		struct dcp_buf b = DCP_BUF_INIT;

		dcp_buf_add(&b, o.json, o.json_len);
		dcp_buf_str(&b, "\n");
		rc = dcpfs_text_from_buf(&f->text, &b);
	}
	dcp_arena_finish(&arena);
	return rc;
}

/* What a rank holds of a tensor. */
static int open_share(struct dcpfs_file *f, int64_t id, enum dcp_as as, struct dcp_err *err)
{
	struct dcp_arena arena;
	struct dcp_cut cut;
	struct dcp_row row;
	int rc;

	dcp_arena_init(&arena, 64 << 20);
	rc = dcp_index_by_id(dcpfs_index(f->ver), DCP_ROW_TENSOR, id, &arena, &row);
	if (rc == 0)
		rc = dcpfs_rank_cut(f->ver, &row, &arena, &cut, err);
	if (rc == 0)
		rc = -ENOENT;
	if (rc > 0)
		rc = dcp_view_open(dcpfs_opened(f->ver), id, as, &cut, &f->view, err);
	dcp_arena_finish(&arena);
	return rc;
}

static int fill(struct dcpfs *fs, struct dcpfs_file *f, struct dcp_err *err)
{
	struct dcpfs_ino i = dcpfs_ino_unpack(f->ino);
	const struct dcpfs_rows *r = dcpfs_rows_of(i.kind);
	int rc;

	if (f->ver) {
		rc = dcpfs_version_open(fs, f->ver, err);
		if (rc < 0 && i.kind != DCPFS_README)
			return rc;
	}
	if (dcpfs_node(i.kind)->parent == DCPFS_BLOB_DIR && f->ver)
		return dcpfs_blob_make(fs, f->ver, i, &f->text, err);
	if (i.kind == DCPFS_SIDECAR && f->ver && dcpfs_is_hf(f->ver))
		return dcp_view_open_asset(dcpfs_opened(f->ver), i.row - 1, &f->view, err);
	if (i.kind == DCPFS_SIDECAR && f->ver)
		return dcp_view_open_file(dcpfs_opened(f->ver), (uint32_t)i.row - 1, &f->view,
					  err);
	if (i.kind == DCPFS_MODEL && f->ver)
		return dcpfs_model_make(fs, f->ver, i.row, &f->model, err);
	if (!r)
		return dcpfs_text_make(fs, f->ver, i, &f->text, err);
	if (!f->ver)
		return -ENOENT;
	if (r->rows == DCP_ROW_OBJECT)
		return open_object(f, (int64_t)i.row, err);
	if (dcpfs_is_rank(f->ver))
		return open_share(f, (int64_t)i.row, r->as, err);
	return dcp_view_open(dcpfs_opened(f->ver), (int64_t)i.row, r->as, NULL, &f->view, err);
}

/* The key of the row behind @f; NULL: of another file of its version. -ENOENT: it has none. */
static int key_of(const struct dcpfs_file *f, struct dcp_arena *arena, const char **key)
{
	struct dcpfs_ino i = dcpfs_ino_unpack(f->ino);
	const struct dcpfs_rows *r = dcpfs_rows_of(i.kind);
	struct dcp_row row;
	int rc = -ENOENT;

	*key = NULL;
	if (!f->ver || !dcpfs_opened(f->ver) || dcpfs_file_is_gone(f))
		return -ENOENT;
	if (r)
		rc = dcp_index_by_id(dcpfs_index(f->ver), r->rows, (int64_t)i.row, arena, &row);
	if (rc == 0)
		*key = row.key;
	return rc == -ENOENT && r ? rc : 0;
}

void dcpfs_file_note(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off,
		     const char *message)
{
	struct dcpfs_fault at = { f->ino, off };
	struct dcp_arena arena;
	const char *key;

	dcpfs_count(&fs->stats, DCPFS_STAT_ERRORS, 1);
	dcp_arena_init(&arena, 1 << 20);
	if (key_of(f, &arena, &key) == 0)
		dcpfs_errors_add(fs->errors, f->ver->name, key, &at, message);
	dcp_arena_finish(&arena);
	if (f->ver && dcpfs_opened(f->ver) && dcp_index_is_damaged(dcpfs_index(f->ver)))
		dcpfs_versions_suspect(fs);
	__atomic_store_n((uint64_t *)(uintptr_t)&f->failed_at, off, __ATOMIC_RELAXED);
}

void dcpfs_file_healed(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, size_t n)
{
	uint64_t now = DCPFS_FINE;
	struct dcpfs_fault at;
	struct dcp_arena arena;
	const char *key;

	dcp_arena_init(&arena, 1 << 20);
	if (key_of(f, &arena, &key) == 0 && key &&
	    dcpfs_errors_find(fs->errors, f->ver->name, key, &at)) {
		bool here = at.off == DCPFS_NO_OFFSET
				    ? !f->view || dcp_view_check(f->view) == 0
				    : at.ino == f->ino && at.off >= off && at.off - off < n;

		if (here)
			dcpfs_errors_forget(fs->errors, f->ver->name, key);
		else if (at.ino == f->ino && at.off != DCPFS_NO_OFFSET)
			now = at.off;
	}
	dcp_arena_finish(&arena);
	__atomic_store_n((uint64_t *)(uintptr_t)&f->failed_at, now, __ATOMIC_RELAXED);
}

/* @ver: which it belongs to; NULL: the one that has its slot now. */
static int make_file(struct dcpfs *fs, struct dcpfs_version *ver, uint64_t ino,
		     struct dcpfs_file **out, struct dcp_err *err)
{
	struct dcpfs_ino i = dcpfs_ino_unpack(ino);
	const struct dcpfs_node *node = dcpfs_node(i.kind);
	struct dcp_err why = { .msg = "" };
	struct dcpfs_file *f;
	int rc;

	if (!node || node->type != DCPFS_FILE)
		return node ? -EISDIR : -ENOENT;
	f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	f->ino = ino;
	f->refs = 1;
	pthread_mutex_init(&f->opening, NULL);
	f->failed_at = dcpfs_errors_any(fs->errors) ? DCPFS_NO_OFFSET : DCPFS_FINE;
	clock_gettime(CLOCK_REALTIME, &f->made);
	f->ver = ver      ? dcpfs_version_hold(ver)
		 : i.slot ? dcpfs_version_by_slot(fs, i.slot)
			  : NULL;
	rc = i.slot && !f->ver ? -ESTALE : fill(fs, f, &why);
	if (rc < 0) {
		dcpfs_file_note(fs, f, DCPFS_NO_OFFSET, *why.msg ? why.msg : strerror(-rc));
		if (f->ver && rc == -ESTALE)
			dcpfs_versions_suspect(fs);
		if (err)
			*err = why;
		dcpfs_file_destroy(fs, f);
		return rc;
	}
	dcpfs_count(&fs->stats, DCPFS_STAT_FILES_OPENED, 1);
	*out = f;
	return 0;
}

int dcpfs_file_get(struct dcpfs *fs, uint64_t ino, struct dcpfs_file **out, struct dcp_err *err)
{
	const struct dcpfs_node *node = dcpfs_node(dcpfs_ino_unpack(ino).kind);
	bool shared = node && node->live && node->type == DCPFS_FILE && fs->opts.no_open;
	struct dcpfs_file *f = shared ? dcpfs_cache_find_live(fs, node->kind) : NULL;
	int rc;

	if (node && !node->live)
		f = dcpfs_cache_find(fs, ino);
	if (!f) {
		rc = make_file(fs, NULL, ino, &f, err);
		if (rc < 0)
			return rc;
		if (!node->live)
			f = dcpfs_cache_insert(fs, f);
		else if (shared)
			dcpfs_cache_keep_live(fs, node->kind, f);
	}
	*out = f;
	return 0;
}

int dcpfs_file_of(struct dcpfs *fs, struct dcpfs_version *ver, uint64_t ino,
		  struct dcpfs_file **out)
{
	int rc;

	*out = dcpfs_cache_find(fs, ino);
	if (*out)
		return 0;
	rc = make_file(fs, ver, ino, out, NULL);
	if (rc == 0)
		*out = dcpfs_cache_insert(fs, *out);
	return rc;
}

void dcpfs_file_opened(struct dcpfs_file *f)
{
	pthread_mutex_lock(&f->opening);
	if (f->opens++ == 0) {
		if (f->view)
			dcp_view_keep(f->view, &f->kept);
		else if (f->model.size)
			dcp_files_keep_all(dcp_version_files(dcpfs_opened(f->ver)), &f->kept);
	}
	pthread_mutex_unlock(&f->opening);
}

void dcpfs_file_closed(struct dcpfs_file *f)
{
	struct dcp_files *files;

	pthread_mutex_lock(&f->opening);
	if (--f->opens == 0 && f->kept.n) {
		files = f->view ? dcp_view_files(f->view)
				: dcp_version_files(dcpfs_opened(f->ver));
		dcp_files_unkeep(files, &f->kept);
		if (dcpfs_file_is_gone(f))
			dcp_files_drop(files);
	}
	pthread_mutex_unlock(&f->opening);
}

void dcpfs_file_hold(struct dcpfs_file *f)
{
	__atomic_fetch_add(&f->refs, 1, __ATOMIC_RELAXED);
}

int dcpfs_file_backing(struct dcpfs *fs, struct dcpfs_file *f)
{
	return f->ver ? dcpfs_hot_backing(fs->hot, fs, f, &f->hot) : 0;
}

struct timespec dcpfs_file_made(const struct dcpfs_file *f)
{
	return f->made;
}

uint64_t dcpfs_file_size(const struct dcpfs_file *f)
{
	return f->view ? dcp_view_size(f->view) : f->model.size ? f->model.size : f->text.n;
}

const struct dcp_view *dcpfs_file_view(const struct dcpfs_file *f)
{
	return f->view;
}

size_t dcpfs_file_header(const struct dcpfs_file *f)
{
	return f->model.header.n;
}

int dcpfs_file_check(struct dcpfs *fs, const struct dcpfs_file *f)
{
	int rc = f->view ? dcp_view_check(f->view) : 0;

	if (dcpfs_file_is_gone(f))
		return -ESTALE;
	return rc < 0 ? dcpfs_file_failed(fs, f, DCPFS_NO_OFFSET, rc) : 0;
}

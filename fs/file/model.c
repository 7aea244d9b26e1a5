/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/file/file_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/jsonw.h"
#include "core/parse/safetensors/safetensors.h"
#include "core/store/index/index.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "core/write/write.h"
#include "fs/errors.h"
#include "fs/fs.h"
#include "fs/ino.h"
#include "fs/versions/versions.h"

enum { ALIGN = 64, ROW_MEMORY = 16 << 20 };

struct making {
	struct dcpfs_version *ver;
	struct dcpfs_spool spool;
	struct dcp_buf parts;
	struct dcp_safetensors_left left;
	struct dcp_jsonw w;
	struct dcp_arena arena;
	struct dcp_said *said;
	uint64_t end;
};

static int add_row(void *ctx, struct dcp_row *row)
{
	struct making *m = ctx;
	struct dcpfs_model_part part = { .row = row->id };
	uint64_t start = m->end;
	struct dcp_cut cut;
	int rc;

	dcp_arena_reset(&m->arena);
	rc = dcpfs_rank_cut(m->ver, row, &m->arena, &cut, NULL);
	if (rc == 0 || rc == -ENOMEM)
		return rc;
	if (rc < 0 || dcpfs_rank_can_read(m->ver, row, &cut, NULL) < 0 ||
	    !dcp_view_can_show(row->key, row->dtype, DCP_AS_SAFETENSORS)) {
		/* the stem of the tensor's own file stands for a key that JSON cannot represent */
		dcp_safetensors_leave_out(&m->left, row->key, row->name);
		return 0;
	}
	if (dcp_ckd_add(&m->end, m->end, row->nbytes) || m->end > INT64_MAX / 2)
		return -EFBIG;
	part.end = m->end;
	dcp_buf_add(&m->parts, &part, sizeof(part));
	dcp_safetensors_put(&m->w, row->key, row->dtype, row->ndim, row->shape, start, m->end);
	rc = dcp_said_add(m->said, row->id);
	if (rc == 0)
		rc = dcp_buf_error(&m->parts);
	return rc < 0 ? rc : dcpfs_spool_flush(&m->spool, false);
}

/* All known readers accept metadata at any place of the header. */
static int put_metadata(struct making *m)
{
	const char *object;
	int rc = dcp_said_take(m->said, &object);

	if (rc < 0)
		return rc;
	dcp_jsonw_key(&m->w, "__metadata__");
	dcp_safetensors_begin_meta(&m->w, NULL, object);
	rc = dcp_safetensors_put_left(&m->left, &m->w);
	dcp_jsonw_end(&m->w);
	return rc;
}

static int write_header(struct making *m, uint64_t n)
{
	uint8_t length[8];
	int rc;

	dcp_safetensors_begin(&m->w, &m->spool.buf); /* the length is written at the end */
	rc = m->ver->hf ? dcp_hf_weights_rows(dcpfs_opened(m->ver), &m->ver->hf->weights, n,
					      add_row, m)
			: dcpfs_spool_rows(&m->spool, dcpfs_index(m->ver), DCP_ROW_TENSOR,
					   add_row, m);
	if (rc == 0)
		rc = put_metadata(m);
	if (rc == 0)
		rc = dcp_safetensors_end_after(&m->w, m->spool.written, ALIGN, length);
	return rc < 0 ? rc : dcpfs_spool_patch(&m->spool, 0, length, sizeof(length));
}

static void dcpfs_model_finish(struct dcpfs_model *m);

int dcpfs_model_make(struct dcpfs *fs, struct dcpfs_version *ver, uint64_t n,
		     struct dcpfs_model *out, struct dcp_err *err)
{
	struct making m = { .ver = ver, .spool = DCPFS_SPOOL_INIT(fs->opts.store.cache_dir) };
	struct dcpfs_model made = { 0 };
	int rc;

	dcp_arena_init(&m.arena, ROW_MEMORY);
	rc = dcp_said_create(dcpfs_index(ver), &m.said);
	if (rc == 0)
		rc = write_header(&m, n);
	dcp_said_free(m.said);
	rc = rc == 0 ? dcpfs_spool_finish(&m.spool, &made.header)
		     : dcpfs_spool_drop(&m.spool, rc);
	dcp_arena_finish(&m.arena);
	dcp_buf_finish(&m.left.names);
	if (rc < 0) {
		dcp_buf_finish(&m.parts);
		return dcp_fail(err, rc, "%s: model.safetensors: %s", ver->name, strerror(-rc));
	}
	made.parts = m.parts;
	made.size = made.header.n + m.end;
	made.nkept = DCP_MIN(DCP_NITEMS(m.parts, struct dcpfs_model_part), DCPFS_MODEL_KEPT);
	made.kept = calloc(made.nkept + 1, sizeof(struct dcpfs_file *));
	*out = made;
	pthread_mutex_init(&out->lock, NULL);
	if (!made.kept) {
		dcpfs_model_finish(out);
		*out = (struct dcpfs_model){ 0 };
		return -ENOMEM;
	}
	return 0;
}

/* Call after @m's kept files were given back. */
static void dcpfs_model_finish(struct dcpfs_model *m)
{
	free(m->kept);
	pthread_mutex_destroy(&m->lock);
	dcpfs_text_finish(&m->header);
	dcp_buf_finish(&m->parts);
}

const struct dcpfs_model_part *dcpfs_model_at(const struct dcpfs_model *m, uint64_t off,
					      uint64_t *inside, uint64_t *left)
{
	const struct dcpfs_model_part *p = DCP_ITEMS(m->parts, struct dcpfs_model_part);
	size_t i;

	if (off < m->header.n) {
		*inside = off;
		*left = m->header.n - off;
		return NULL;
	}
	off -= m->header.n;
	/* Find the first part that ends after @off: parts may be empty. */
	DCP_BISECT(i, 0, DCP_NITEMS(m->parts, struct dcpfs_model_part), p[i].end <= off);
	*inside = off - (i ? p[i - 1].end : 0);
	*left = p[i].end - off;
	return &p[i];
}

static void drop_parts(struct dcpfs *fs, const struct dcpfs_model *m)
{
	for (size_t i = 0; i < m->nkept; i++)
		if (m->kept[i])
			dcpfs_part_put(fs, m->kept[i]);
}

void dcpfs_file_destroy(struct dcpfs *fs, struct dcpfs_file *f)
{
	dcpfs_hot_drop(fs->hot, &f->hot);
	if (f->opens) { /* at the end of the session */
		f->opens = 1;
		dcpfs_file_closed(f);
	}
	pthread_mutex_destroy(&f->opening);
	if (f->content == DCPFS_VIEW)
		dcp_view_close(f->view);
	else if (f->content == DCPFS_PARTS) {
		drop_parts(fs, &f->model);
		dcpfs_model_finish(&f->model);
	} else
		dcpfs_text_finish(&f->text);
	dcpfs_version_put(f->ver);
	free(f);
}

void dcpfs_part_put(struct dcpfs *fs, struct dcpfs_file *f)
{
	if (__atomic_sub_fetch(&f->refs, 1, __ATOMIC_ACQ_REL) == 0)
		dcpfs_file_destroy(fs, f);
}

bool dcpfs_file_is_gone(const struct dcpfs_file *f)
{
	return f->ver && __atomic_load_n(&f->ver->gone, __ATOMIC_ACQUIRE);
}

/* The key of the row behind @f; NULL: @f is another file of its version. -ENOENT: it has none. */
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
				    ? f->content != DCPFS_VIEW || dcp_view_check(f->view) == 0
				    : at.ino == f->ino && at.off >= off && at.off - off < n;

		if (here)
			dcpfs_errors_forget(fs->errors, f->ver->name, key);
		else if (at.ino == f->ino && at.off != DCPFS_NO_OFFSET)
			now = at.off;
	}
	dcp_arena_finish(&arena);
	__atomic_store_n((uint64_t *)(uintptr_t)&f->failed_at, now, __ATOMIC_RELAXED);
}

void dcpfs_file_opened(struct dcpfs_file *f)
{
	pthread_mutex_lock(&f->opening);
	if (f->opens++ == 0) {
		if (f->content == DCPFS_VIEW)
			dcp_view_keep(f->view, &f->kept);
		else if (f->content == DCPFS_PARTS)
			dcp_files_keep_all(dcp_version_files(dcpfs_opened(f->ver)), &f->kept);
	}
	pthread_mutex_unlock(&f->opening);
}

void dcpfs_file_closed(struct dcpfs_file *f)
{
	struct dcp_files *files;

	pthread_mutex_lock(&f->opening);
	if (--f->opens == 0 && f->kept.n) {
		files = f->content == DCPFS_VIEW ? dcp_view_files(f->view)
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

struct timespec dcpfs_file_made(const struct dcpfs_file *f)
{
	return f->made;
}

uint64_t dcpfs_file_size(const struct dcpfs_file *f)
{
	return f->content == DCPFS_VIEW    ? dcp_view_size(f->view)
	       : f->content == DCPFS_PARTS ? f->model.size
					   : f->text.n;
}

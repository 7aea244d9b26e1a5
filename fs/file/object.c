/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/file/file_int.h"

#include <errno.h>
#include <stdlib.h>

#include "core/base/err.h"
#include "core/store/index/index.h"
#include "fs/errors.h"
#include "fs/fs.h"
#include "fs/ino.h"
#include "fs/versions/versions.h"

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

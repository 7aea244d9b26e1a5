/* SPDX-License-Identifier: Apache-2.0 */
/* Where the bytes of virtual files are stored, for other programs (fs/ABI.md). */
#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/hash.h"
#include "core/checkpoint/dcpfs_abi.h"
#include "core/model/geometry/strided.h"
#include "core/store/index/index.h"
#include "core/store/view/view.h"
#include "fs/file/file_int.h"
#include "fs/fs.h"
#include "fs/versions/ranks.h"

_Static_assert(sizeof(struct dcpfs_info) == 256, "the size is part of the ioctl's number");
_Static_assert(sizeof(struct dcpfs_blob) == 128, "fs/ABI.md");
_Static_assert(sizeof(struct dcpfs_blob_file) == 56, "fs/ABI.md");
_Static_assert(sizeof(struct dcpfs_blob_desc) == 136, "fs/ABI.md");
_Static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "blobs are little-endian");

struct writing {
	struct dcpfs_spool spool;
	const struct dcpfs_file *f; /* about it */
	struct dcpfs_blob head;
	uint32_t crc;
	uint64_t base;         /* of the current part, in the virtual file */
	uint32_t unit;         /* bytes to be reversed, should its file be big-endian */
	struct dcp_buf number; /* uint32_t by file of the version: 1 + its number here */
	struct dcp_buf used;   /* uint32_t: files of the version, in order of use */
};

static int put(struct writing *w, const void *p, size_t n)
{
	dcp_buf_add(&w->spool.buf, p, n);
	w->crc = dcp_crc32(w->crc, p, n);
	return dcpfs_spool_flush(&w->spool, false);
}

/* Numbers are aligned to 8. */
static int pad(struct writing *w)
{
	static const char zeros[8];

	return put(w, zeros, -dcpfs_spool_size(&w->spool) & 7);
}

static int number_file(struct writing *w, uint32_t file, uint32_t *out)
{
	uint32_t *number = dcp_buf_at(&w->number, file, sizeof(*number));

	if (!number)
		return -ENOMEM;
	if (!*number) {
		dcp_buf_add(&w->used, &file, sizeof(file));
		*number = ++w->head.nfiles;
	}
	*out = *number - 1;
	return dcp_buf_error(&w->used);
}

static int put_desc(void *ctx, const struct dcp_strided *s, uint32_t file)
{
	struct writing *w = ctx;
	struct dcpfs_blob_desc d = { .src = s->off,
				     .dst = w->base + s->dst,
				     .run = s->run,
				     .ndim = s->ndim,
				     .swap = s->piece->swap ? w->unit : 0 };
	int rc;

	if (file == DCP_VIEW_NO_FILE)
		return -ENOTSUP;
	rc = number_file(w, file, &d.file);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < s->ndim; i++) {
		d.count[i] = s->count[i];
		d.src_stride[i] = s->file_stride[i];
		d.dst_stride[i] = s->dst_stride[i];
	}
	w->head.ndesc++;
	return put(w, &d, sizeof(d));
}

static int put_view(struct writing *w, const struct dcp_view *view, uint64_t base)
{
	const struct dcp_tensor *t = dcp_view_tensor(view);

	w->base = base;
	w->unit = dcp_dtype_swap_unit(t->dtype, t->itemsize);
	return dcp_view_strided(view, put_desc, w);
}

/* Every tensor of the slot, at its place in the file of all. */
static int put_model(struct writing *w, const struct dcpfs_model *m, struct dcp_err *err)
{
	const struct dcpfs_model_part *p = DCP_ITEMS(m->parts, struct dcpfs_model_part);
	uint64_t begin = m->header.n;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < DCP_NITEMS(m->parts, struct dcpfs_model_part); i++) {
		struct dcp_view *view = NULL;

		rc = dcpfs_rank_view(w->f->ver, p[i].row, DCP_AS_RAW, &view, err);
		if (rc == 0)
			rc = put_view(w, view, begin);
		dcp_view_close(view);
		begin = m->header.n + p[i].end;
	}
	return rc;
}

static int put_files(struct writing *w)
{
	size_t n;
	const struct dcp_file_id *ids = dcp_index_files(dcpfs_index(w->f->ver), &n);
	const uint32_t *used = DCP_ITEMS(w->used, uint32_t);
	char dir[PATH_MAX], link[64];
	ssize_t len;
	uint64_t at;
	int rc = pad(w);

	snprintf(link, sizeof(link), "/proc/self/fd/%d",
		 dcp_version_dirfd(dcpfs_opened(w->f->ver)));
	len = readlink(link, dir, sizeof(dir));
	if (len < 0 || (size_t)len == sizeof(dir))
		return -EIO;
	w->head.file_off = dcpfs_spool_size(&w->spool);
	at = w->head.file_off + w->head.nfiles * sizeof(struct dcpfs_blob_file);
	for (uint32_t i = 0; rc == 0 && i < w->head.nfiles; i++) {
		const struct dcp_file_id *id = &ids[used[i]];
		struct dcpfs_blob_file f = { .dev = id->dev,
					     .ino = id->ino,
					     .size = id->size,
					     .mtime_ns = id->mtime_ns,
					     .ctime_ns = id->ctime_ns,
					     .name_off = at,
					     .name_bytes = (uint32_t)strlen(id->name) };

		at += f.name_bytes;
		rc = put(w, &f, sizeof(f));
	}
	for (uint32_t i = 0; rc == 0 && i < w->head.nfiles; i++)
		rc = put(w, ids[used[i]].name, strlen(ids[used[i]].name));
	w->head.dir_off = at;
	w->head.dir_bytes = (uint32_t)len;
	return rc < 0 ? rc : put(w, dir, (size_t)len);
}

static int begin(struct writing *w, const void *header, size_t n)
{
	int rc;

	dcp_buf_add(&w->spool.buf, &w->head, sizeof(w->head)); /* known at the end */
	w->head.inline_off = sizeof(w->head);
	w->head.inline_bytes = n;
	rc = put(w, header, n);
	if (rc == 0)
		rc = pad(w);
	w->head.desc_off = dcpfs_spool_size(&w->spool);
	return rc;
}

static int finish(struct writing *w)
{
	memcpy(w->head.magic, DCPFS_BLOB_MAGIC, sizeof(w->head.magic));
	w->head.abi = DCPFS_ABI_VERSION;
	w->head.header_bytes = sizeof(w->head);
	w->head.bytes = dcpfs_spool_size(&w->spool);
	w->head.generation = dcp_version_generation(dcpfs_opened(w->f->ver));
	w->head.body_crc = w->crc;
	w->head.header_crc = dcp_crc32(0, &w->head, offsetof(struct dcpfs_blob, header_crc));
	return dcpfs_spool_patch(&w->spool, 0, &w->head, sizeof(w->head));
}

/* What is inline, and what is stored. */
static int write_all(struct writing *w, struct dcp_err *err)
{
	bool all = w->f->content == DCPFS_PARTS;
	size_t n = all ? w->f->model.header.n : 0;
	const void *header = all ? w->f->model.header.p : dcp_view_header(w->f->view, &n);
	int rc = begin(w, header, n);

	if (rc < 0)
		return rc;
	return all ? put_model(w, &w->f->model, err) : put_view(w, w->f->view, n);
}

int dcpfs_blob_make(struct dcpfs *fs, const struct dcpfs_file *f, struct dcpfs_text *out,
		    struct dcp_err *err)
{
	struct writing w = { .spool = DCPFS_SPOOL_INIT(fs->opts.store.cache_dir),
			     .f = f,
			     .head = { .ino = f->ino, .size = dcpfs_file_size(f) } };
	int rc = write_all(&w, err);

	if (rc == 0)
		rc = put_files(&w);
	if (rc == 0)
		rc = finish(&w);
	dcp_buf_finish(&w.number);
	dcp_buf_finish(&w.used);
	return rc == 0 ? dcpfs_spool_finish(&w.spool, out) : dcpfs_spool_drop(&w.spool, rc);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/file/file_int.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/checkpoint/dcpfs_abi.h"
#include "core/model/geometry/strided.h"
#include "core/store/index/index.h"
#include "core/store/view/view.h"
#include "fs/errors.h"
#include "fs/fs.h"
#include "fs/ino.h"
#include "fs/text/text.h"
#include "fs/tree/tree.h"
#include "fs/versions/versions.h"

/* Where the bytes of virtual files are stored, for other programs (fs/ABI.md). */

_Static_assert(sizeof(struct dcpfs_info) == 256, "the size is part of the ioctl's number");
_Static_assert(sizeof(struct dcpfs_blob) == 128, "fs/ABI.md");
_Static_assert(sizeof(struct dcpfs_blob_file) == 56, "fs/ABI.md");
_Static_assert(sizeof(struct dcpfs_blob_desc) == 136, "fs/ABI.md");
_Static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "blobs are little-endian");

struct writing {
	struct dcpfs_spool spool;
	const struct dcpfs_file *f; /* the file that the blob is about */
	struct dcpfs_blob head;
	uint32_t crc;
	uint64_t base;         /* offset of the current part in the virtual file */
	uint32_t unit;         /* size of the units to be reversed if the file is big-endian */
	struct dcp_buf number; /* uint32_t by file of the version: 1 + its number here */
	struct dcp_buf used;   /* uint32_t: files of the version, in order of use */
};

static int put_bytes(struct writing *w, const void *p, size_t n)
{
	dcp_buf_add(&w->spool.buf, p, n);
	w->crc = dcp_crc32(w->crc, p, n);
	return dcpfs_spool_flush(&w->spool, false);
}

/* Numbers are aligned to 8. */
static int pad_spool(struct writing *w)
{
	static const char zeros[8];

	return put_bytes(w, zeros, -dcpfs_spool_size(&w->spool) & 7);
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
	return put_bytes(w, &d, sizeof(d));
}

static int put_view(struct writing *w, const struct dcp_view *view, uint64_t base)
{
	const struct dcp_tensor *t = dcp_view_tensor(view);

	w->base = base;
	w->unit = dcp_dtype_swap_unit(t->dtype, t->itemsize);
	return dcp_view_strided(view, put_desc, w);
}

/* Describe every tensor of the slot, at its place in the file of all tensors. */
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
	char dir[PATH_MAX];
	uint64_t at;
	int rc = pad_spool(w);

	if (dcp_site_path(dcp_version_place(dcpfs_opened(w->f->ver)), ".", dir) < 0)
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
		rc = put_bytes(w, &f, sizeof(f));
	}
	for (uint32_t i = 0; rc == 0 && i < w->head.nfiles; i++)
		rc = put_bytes(w, ids[used[i]].name, strlen(ids[used[i]].name));
	w->head.dir_off = at;
	w->head.dir_bytes = (uint32_t)strlen(dir);
	return rc < 0 ? rc : put_bytes(w, dir, strlen(dir));
}

static int begin_blob(struct writing *w, const void *header, size_t n)
{
	int rc;

	dcp_buf_add(&w->spool.buf, &w->head, sizeof(w->head)); /* overwritten at the end */
	w->head.inline_off = sizeof(w->head);
	w->head.inline_bytes = n;
	rc = put_bytes(w, header, n);
	if (rc == 0)
		rc = pad_spool(w);
	w->head.desc_off = dcpfs_spool_size(&w->spool);
	return rc;
}

static int finish_blob(struct writing *w)
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

/* Write the inline bytes, and descriptors of the stored bytes. */
static int write_all(struct writing *w, struct dcp_err *err)
{
	bool all = w->f->content == DCPFS_PARTS;
	size_t n = all ? w->f->model.header.n : 0;
	const void *header = all ? w->f->model.header.p : dcp_view_header(w->f->view, &n);
	int rc = begin_blob(w, header, n);

	if (rc < 0)
		return rc;
	return all ? put_model(w, &w->f->model, err) : put_view(w, w->f->view, n);
}

/* The blob about @f. -ENOTSUP: its bytes are not stored as they are shown. */
static int dcpfs_blob_make(struct dcpfs *fs, const struct dcpfs_file *f, struct dcpfs_text *out,
			   struct dcp_err *err)
{
	struct writing w = { .spool = DCPFS_SPOOL_INIT(fs->opts.store.cache_dir),
			     .f = f,
			     .head = { .ino = f->ino, .size = dcpfs_file_size(f) } };
	int rc = write_all(&w, err);

	if (rc == 0)
		rc = put_files(&w);
	if (rc == 0)
		rc = finish_blob(&w);
	dcp_buf_finish(&w.number);
	dcp_buf_finish(&w.used);
	return rc == 0 ? dcpfs_spool_finish(&w.spool, out) : dcpfs_spool_drop(&w.spool, rc);
}

static int open_object(struct dcpfs_file *f, int64_t id, struct dcp_err *err)
{
	struct dcp_object o = { 0 };
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(512 << 20);
	int rc = dcp_index_object(dcpfs_index(f->ver), id, &arena, &o, err);

	if (rc == 0 && (o.error || !o.json))
		rc = dcp_fail(err, -EIO, "%s: %s: %s", f->ver->name, o.key,
			      o.error ? o.error : "no value");
	if (rc == 0) {
		struct dcp_buf b = DCP_BUF_INIT;

		dcp_buf_add(&b, o.json, o.json_len);
		dcp_buf_str(&b, "\n");
		rc = dcpfs_text_from_buf(&f->text, &b);
	}
	return rc;
}

static int make_blob(struct dcpfs *fs, struct dcpfs_file *f, struct dcpfs_ino i,
		     struct dcp_err *err)
{
	struct dcpfs_ino about = dcpfs_blob_about(i);
	struct dcpfs_file *of;
	int rc =
		dcpfs_file_get(fs, dcpfs_ino_pack(about.slot, about.kind, about.row), &of, err);

	if (rc < 0)
		return rc;
	rc = dcpfs_blob_make(fs, of, &f->text, err);
	dcpfs_file_put(fs, of);
	return rc;
}

static int fill_file(struct dcpfs *fs, struct dcpfs_file *f, struct dcp_err *err)
{
	struct dcpfs_ino i = dcpfs_ino_unpack(f->ino);
	const struct dcpfs_rows *r = dcpfs_rows_of(i.kind);
	int rc;

	if (f->ver) {
		rc = dcpfs_version_open(fs, f->ver, err);
		if (rc < 0 && i.kind != DCPFS_README)
			return rc;
	}
	if (dcpfs_is_blob(i.kind))
		return make_blob(fs, f, i, err);
	if (r && r->rows == DCP_ROW_OBJECT)
		return open_object(f, (int64_t)i.row, err);
	if (i.kind == DCPFS_MEASURED)
		return dcpfs_measured_make(fs, f->ver, (int64_t)i.row, &f->text, err);
	if (i.kind == DCPFS_MODEL) {
		f->content = DCPFS_PARTS;
		return dcpfs_model_make(fs, f->ver, i.row, &f->model, err);
	}
	if (!r && i.kind != DCPFS_SIDECAR)
		return dcpfs_text_make(fs, f->ver, i, &f->text, err);
	f->content = DCPFS_VIEW;
	if (r)
		return dcpfs_rank_view(f->ver, (int64_t)i.row, r->as, &f->view, err);
	return dcpfs_is_hf(f->ver)
		       ? dcp_hf_open_asset(dcpfs_opened(f->ver), i.row - 1, &f->view, err)
		       : dcp_view_open_file(dcpfs_opened(f->ver), (uint32_t)i.row - 1, &f->view,
					    err);
}

/* Make the file of inode @ino. @ver: its version; NULL: the version that has its slot now. */
static int make_file(struct dcpfs *fs, struct dcpfs_version *ver, uint64_t ino,
		     struct dcpfs_file **out, struct dcp_err *err)
{
	struct dcpfs_ino i = dcpfs_ino_unpack(ino);
	const struct dcpfs_node *node = dcpfs_node(fs, i.kind);
	struct dcp_err why = { .msg = "" };
	struct dcpfs_file *f;
	int rc;

	if (!node || node->type != DCPFS_FILE)
		return node ? -EISDIR : -ENOENT;
	if (!i.slot && (dcpfs_is_of_version(fs, node) || dcpfs_is_blob(i.kind)))
		return -ENOENT;
	f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	f->ino = ino;
	f->refs = 1;
	pthread_mutex_init(&f->opening, NULL);
	f->failed_at = dcpfs_errors_count(fs->errors) ? DCPFS_NO_OFFSET : DCPFS_FINE;
	clock_gettime(CLOCK_REALTIME, &f->made);
	f->ver = ver      ? dcpfs_version_hold(ver)
		 : i.slot ? dcpfs_version_by_slot(fs, i.slot)
			  : NULL;
	rc = i.slot && !f->ver ? -ESTALE : fill_file(fs, f, &why);
	if (rc < 0) {
		dcp_err_say(&why, rc);
		if (rc != -EINTR)
			dcpfs_file_note(fs, f, DCPFS_NO_OFFSET, why.msg);
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

bool dcpfs_file_takes_long(struct dcpfs *fs, uint64_t ino)
{
	struct dcpfs_ino i = dcpfs_ino_unpack(ino);
	struct dcpfs_file *f = i.kind == DCPFS_MEASURED ? dcpfs_cache_find(fs, ino) : NULL;
	struct dcpfs_version *ver;
	bool known;

	if (f)
		dcpfs_file_put(fs, f);
	if (f || i.kind != DCPFS_MEASURED)
		return false;
	ver = i.slot ? dcpfs_version_by_slot(fs, i.slot) : NULL;
	known = !ver || dcpfs_measured_is_known(ver, (int64_t)i.row);
	dcpfs_version_put(ver);
	return !known;
}

int dcpfs_file_get(struct dcpfs *fs, uint64_t ino, struct dcpfs_file **out, struct dcp_err *err)
{
	const struct dcpfs_node *node = dcpfs_node(fs, dcpfs_ino_unpack(ino).kind);
	bool shared = node && node->live && node->type == DCPFS_FILE && fs->opts.no_open;
	struct dcpfs_file *f = shared ? dcpfs_cache_find_live(fs, node->kind) : NULL;
	int rc;

	if (node && !node->live)
		f = dcpfs_cache_find(fs, ino);
	if (f)
		dcpfs_count(&fs->stats, DCPFS_STAT_FILES_FOUND, 1);
	if (!f) {
		rc = make_file(fs, NULL, ino, &f, err);
		if (rc < 0)
			return rc;
		dcpfs_cache_begin(fs, f);
		if (!node->live)
			f = dcpfs_cache_insert(fs, f);
		else if (shared)
			dcpfs_cache_keep_live(fs, node->kind, f);
	}
	*out = f;
	return 0;
}

/* The file of inode @ino if it is kept at @at, referenced; else NULL. */
static struct dcpfs_file *kept_part(struct dcpfs_model *m, struct dcpfs_file **at, uint64_t ino)
{
	struct dcpfs_file *part;

	pthread_mutex_lock(&m->lock);
	part = *at && (*at)->ino == ino ? *at : NULL;
	if (part)
		dcpfs_file_hold(part);
	pthread_mutex_unlock(&m->lock);
	return part;
}

/* A reference to the file of part @p of the model @f, which keeps another reference. */
static int dcpfs_file_part(struct dcpfs *fs, struct dcpfs_file *f,
			   const struct dcpfs_model_part *p, struct dcpfs_file **out)
{
	struct dcpfs_model *m = &f->model;
	size_t i = (size_t)(p - DCP_ITEMS(m->parts, struct dcpfs_model_part));
	uint64_t ino =
		dcpfs_ino_pack(dcpfs_ino_unpack(f->ino).slot, DCPFS_RAW, (uint64_t)p->row);
	struct dcpfs_file **at = &m->kept[i % m->nkept], *other;
	int rc;

	*out = kept_part(m, at, ino);
	if (*out)
		return 0;
	rc = make_file(fs, f->ver, ino, out, NULL);
	if (rc < 0)
		return rc;
	dcpfs_file_hold(*out);
	pthread_mutex_lock(&m->lock);
	other = *at; /* a different part, or the same part opened by another thread */
	*at = *out;
	pthread_mutex_unlock(&m->lock);
	if (other)
		dcpfs_part_put(fs, other);
	return 0;
}

/* ---- DCPFS_IOC_INFO ---- */

/* Fill in the size and header of the file, or why a program cannot read it without the mount. */
static int describe_file(struct dcpfs *fs, uint64_t ino, struct dcpfs_info *out)
{
	struct dcpfs_file *f;
	size_t n;
	int rc = dcpfs_file_get(fs, ino, &f, NULL);

	if (rc < 0) {
		out->flags |= DCPFS_INFO_BROKEN;
		return rc == -ESTALE || rc == -ENOENT ? rc : 0;
	}
	n = f->content == DCPFS_PARTS ? f->model.header.n : 0;
	if (f->content == DCPFS_VIEW)
		dcp_view_header(f->view, &n);
	out->size = dcpfs_file_size(f);
	out->data_offset = n;
	dcpfs_file_put(fs, f);
	return 0;
}

int dcpfs_file_info(struct dcpfs *fs, uint64_t ino, struct dcpfs_info *out)
{
	struct dcpfs_ino i = dcpfs_ino_unpack(ino);
	struct dcpfs_version *ver;
	struct dcpfs_file *f;
	uint64_t blob;
	int rc = dcpfs_blob_ino(i, &blob);

	if (rc < 0)
		return -ENOTTY;
	memset(out, 0, sizeof(*out));
	ver = dcpfs_version_by_slot(fs, i.slot);
	rc = ver ? dcpfs_version_open(fs, ver, NULL) : -ESTALE;
	if (rc == 0 && i.kind == DCPFS_VERSION && ver->hf && ver->hf->weights.nfiles > 1)
		rc = -ENOTTY; /* its tensors are in several files */
	if (rc == 0) {
		memcpy(out->magic, DCPFS_INFO_MAGIC, sizeof(out->magic));
		memcpy(out->mount, fs->id, sizeof(out->mount));
		out->abi = DCPFS_ABI_VERSION;
		out->ino = ino;
		out->generation = dcp_version_generation(dcpfs_opened(ver));
		out->flags = i.kind == DCPFS_VERSION ? DCPFS_INFO_DIRECTORY : 0;
		if (i.kind == DCPFS_VERSION)
			ino = dcpfs_ino_pack(i.slot, DCPFS_MODEL, 0);
		rc = describe_file(fs, ino, out);
	}
	dcpfs_version_put(ver);
	if (rc < 0 || out->flags & DCPFS_INFO_BROKEN)
		return rc;
	rc = dcpfs_file_get(fs, blob, &f, NULL);
	if (rc == 0) {
		snprintf(out->blob, sizeof(out->blob), ".dcpfs/blob/%016" PRIx64, out->ino);
		dcpfs_file_put(fs, f);
	} else if (rc == -ENOTSUP) {
		out->flags |= DCPFS_INFO_CONVERTED;
	} else {
		out->flags |= DCPFS_INFO_BROKEN;
	}
	return 0;
}

/* Note in errors.json that reading @f at @off gave @rc; returns @rc. */
static int dcpfs_file_failed(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, int rc)
{
	struct dcp_err err = { 0 };
	const char *why = dcp_err_noted(rc);

	if (rc == -EINTR) /* the program itself was interrupted */
		return rc;
	if (f->ver && dcpfs_opened(f->ver))
		dcp_version_check(dcpfs_opened(f->ver), &err);
	if (!*err.msg && off != DCPFS_NO_OFFSET)
		dcp_fail_at(&err, rc, off, "reading at byte %llu failed: %s",
			    (unsigned long long)off, why);
	dcpfs_file_note(fs, f, off, *err.msg ? err.msg : why);
	if (!dcpfs_file_is_gone(f))
		dcpfs_versions_suspect(fs);
	return rc;
}

/* Note the result @rc of reading [off, off + n). */
static int judge_read(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, size_t n,
		      int rc)
{
	uint64_t at = __atomic_load_n(&f->failed_at, __ATOMIC_RELAXED);

	if (rc < 0)
		return dcpfs_file_failed(fs, f, off, rc);
	if (DCP_UNLIKELY(at != DCPFS_FINE) &&
	    (at == DCPFS_NO_OFFSET || (at >= off && at - off < n)))
		dcpfs_file_healed(fs, f, off, n);
	return rc;
}

/* Did the version leave the list because its files were written over? */
static bool is_rewritten(const struct dcpfs_file *f)
{
	return f->ver && __atomic_load_n(&f->ver->rewritten, __ATOMIC_ACQUIRE);
}

/* Answer from a file that is not a model. 1: the reply points into the file; 0: the reply does not
 * need the file any more. */
static int answer_file(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, size_t n,
		       struct dcp_reply *r)
{
	int rc = f->content == DCPFS_VIEW ? dcp_view_answer(f->view, off, n, r)
					  : dcp_reply_point(r, f->text.p + off, n);

	return judge_read(fs, f, off, n, rc);
}

static int answer_part(struct dcpfs *fs, struct dcpfs_file *f, const struct dcpfs_model_part *p,
		       uint64_t off, size_t n, struct dcpfs_reply *r)
{
	struct dcpfs_file *part;
	int rc = dcpfs_file_part(fs, f, p, &part);

	if (rc < 0)
		return rc;
	rc = answer_file(fs, part, off, n, &r->bytes);
	if (rc > 0)
		r->part[r->nparts++] = part;
	else
		dcpfs_part_put(fs, part);
	return DCP_MIN(rc, 0);
}

static int answer_model(struct dcpfs *fs, struct dcpfs_file *f, uint64_t off, size_t n,
			struct dcpfs_reply *r)
{
	int rc = 0;

	while (n && rc == 0) {
		uint64_t inside, left;
		const struct dcpfs_model_part *part =
			dcpfs_model_at(&f->model, off, &inside, &left);
		size_t now = DCP_MIN(n, left);

		r->bytes.copy = r->nparts == DCP_LEN(r->part);
		if (part)
			rc = answer_part(fs, f, part, inside, now, r);
		else
			rc = dcp_reply_point(&r->bytes, f->model.header.p + off, now);
		off += now;
		n -= now;
	}
	return rc;
}

int dcpfs_file_answer(struct dcpfs *fs, struct dcpfs_file *f, uint64_t off, size_t n,
		      struct dcpfs_reply *r)
{
	r->nparts = 0;
	if (is_rewritten(f))
		return -ESTALE;
	if (f->content == DCPFS_PARTS)
		return answer_model(fs, f, off, n, r); /* failures are noted by the parts */
	return DCP_MIN(answer_file(fs, f, off, n, &r->bytes), 0);
}

void dcpfs_reply_failed(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off,
			const struct dcpfs_reply *r)
{
	if (f->content != DCPFS_PARTS)
		dcpfs_file_failed(fs, f, off, -EIO);
	for (uint32_t i = 0; i < r->nparts; i++)
		if (dcp_view_check(r->part[i]->view) < 0)
			dcpfs_file_failed(fs, r->part[i], DCPFS_NO_OFFSET, -EIO);
}

void dcpfs_reply_finish(struct dcpfs *fs, struct dcpfs_reply *r)
{
	dcp_reply_finish(&r->bytes);
	while (r->nparts)
		dcpfs_part_put(fs, r->part[--r->nparts]);
}

static void *give_buffer(void *buf, size_t size)
{
	(void)size;
	return buf;
}

/* Read the file for a copy of all of it (hot, fs/file/file.h). */
static int read_bytes(struct dcpfs *fs, struct dcpfs_file *f, uint64_t off, void *buf, size_t n)
{
	struct dcpfs_reply r;
	int rc;

	dcp_reply_begin(&r.bytes, n, give_buffer, buf);
	r.bytes.copy = true;
	rc = dcpfs_file_answer(fs, f, off, n, &r);
	dcpfs_reply_finish(fs, &r);
	return rc;
}

int dcpfs_file_check(struct dcpfs *fs, const struct dcpfs_file *f)
{
	int rc = f->content == DCPFS_VIEW ? dcp_view_check(f->view) : 0;

	if (dcpfs_file_is_gone(f))
		return -ESTALE;
	return rc < 0 ? dcpfs_file_failed(fs, f, DCPFS_NO_OFFSET, rc) : 0;
}
int dcpfs_file_backing(struct dcpfs *fs, struct dcpfs_file *f)
{
	return f->ver ? dcpfs_hot_backing(fs->hot, fs, f, dcpfs_file_size(f), read_bytes,
					  &f->hot)
		      : 0;
}

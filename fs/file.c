/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/file.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/store/index.h"
#include "core/store/view.h"
#include "fs/blob.h"
#include "fs/errors.h"
#include "fs/fs.h"
#include "fs/hot.h"
#include "fs/ino.h"
#include "fs/model.h"
#include "fs/opener.h"
#include "fs/ranks.h"
#include "fs/text.h"
#include "fs/tree.h"
#include "fs/versions.h"

enum { BUCKETS = 2048 };

struct dcpfs_file {
	uint64_t ino;
	struct dcpfs_version *ver; /* counted; NULL for live files */
	struct dcp_view *view;     /* a tensor, or ... */
	struct dcpfs_model model;  /* ... all of a rank's, or ... */
	struct dcpfs_text text;    /* ... text */
	struct dcpfs_hot_copy hot; /* its copy in the hands of the kernel, if any */
	struct timespec made;      /* CLOCK_REALTIME */

	uint32_t refs; /* atomic; the cache holds one. The cache lock guards the rest: */
	struct dcpfs_file *next;          /* in the bucket */
	struct dcpfs_file *older, *newer; /* in the order of last use */
};

struct dcpfs_cache {
	pthread_mutex_t lock; /* everything below; never held while a file is made or read */
	struct dcpfs_file *bucket[BUCKETS];
	struct dcpfs_file *oldest, *newest;
	unsigned n;
	size_t text; /* bytes */
	/* Without OPEN a live file belongs to nobody: one of each is kept for a second. */
	struct dcpfs_file *live[DCPFS_KIND_COUNT];
};

struct dcpfs_cache *dcpfs_cache_create(void)
{
	struct dcpfs_cache *c = calloc(1, sizeof(*c));

	if (c)
		pthread_mutex_init(&c->lock, NULL);
	return c;
}

static void destroy_file(struct dcpfs *fs, struct dcpfs_file *f)
{
	dcpfs_hot_drop(fs->hot, &f->hot);
	dcp_view_close(f->view);
	dcpfs_model_finish(&f->model);
	dcpfs_text_finish(&f->text);
	dcpfs_version_put(f->ver);
	free(f);
}

void dcpfs_cache_destroy(struct dcpfs *fs)
{
	struct dcpfs_cache *c = fs->files;

	if (!c)
		return;
	while (c->oldest) {
		struct dcpfs_file *f = c->oldest;

		c->oldest = f->newer;
		destroy_file(fs, f); /* also what is open: no RELEASE comes any more */
	}
	for (size_t i = 0; i < DCPFS_KIND_COUNT; i++)
		if (c->live[i])
			dcpfs_file_put(fs, c->live[i]);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static struct dcpfs_file **bucket_of(struct dcpfs_cache *c, uint64_t ino)
{
	return &c->bucket[(ino * 0x9e3779b97f4a7c15ull) >> 53];
}

static void unlink_use(struct dcpfs_cache *c, struct dcpfs_file *f)
{
	*(f->older ? &f->older->newer : &c->oldest) = f->newer;
	*(f->newer ? &f->newer->older : &c->newest) = f->older;
}

static void link_newest(struct dcpfs_cache *c, struct dcpfs_file *f)
{
	f->older = c->newest;
	f->newer = NULL;
	*(c->newest ? &c->newest->newer : &c->oldest) = f;
	c->newest = f;
}

static void remove_file(struct dcpfs_cache *c, struct dcpfs_file *f)
{
	struct dcpfs_file **at = bucket_of(c, f->ino);

	while (*at != f)
		at = &(*at)->next;
	*at = f->next;
	unlink_use(c, f);
	c->n--;
	c->text -= f->text.n;
}

/* Files over the limit that nobody else uses, taken out; the caller puts the chain (by next).
 */
static struct dcpfs_file *evict(struct dcpfs_cache *c)
{
	struct dcpfs_file *out = NULL, *f = c->oldest;

	while (f && (c->n > DCPFS_CACHE_FILES || c->text > DCPFS_CACHE_TEXT)) {
		struct dcpfs_file *newer = f->newer;
		bool helps = c->n > DCPFS_CACHE_FILES || f->text.n;

		/* a second count comes from find(), under the lock, or from a second count */
		if (helps && __atomic_load_n(&f->refs, __ATOMIC_ACQUIRE) == 1) {
			remove_file(c, f);
			f->next = out;
			out = f;
		}
		f = newer;
	}
	return out;
}

static void put_chain(struct dcpfs *fs, struct dcpfs_file *f)
{
	while (f) {
		struct dcpfs_file *next = f->next;

		dcpfs_file_put(fs, f);
		f = next;
	}
}

/* The directories of a version, whose listings the kernel keeps. */
static void drop_dirs(const struct dcpfs_kernel *k, uint32_t slot)
{
	for (unsigned i = 0; i < DCPFS_KIND_COUNT; i++) {
		const struct dcpfs_node *node = dcpfs_node((enum dcpfs_kind)i);

		if (node->type == DCPFS_DIR &&
		    (node->kind == DCPFS_VERSION || node->parent == DCPFS_VERSION))
			k->drop(k->ctx, dcpfs_ino_pack(slot, node->kind, 0));
	}
}

void dcpfs_cache_forget(struct dcpfs *fs, struct dcpfs_version *ver)
{
	const struct dcpfs_kernel *k = fs->opts.kernel;
	struct dcpfs_cache *c = fs->files;
	struct dcpfs_file *out = NULL, *newer;

	pthread_mutex_lock(&c->lock);
	__atomic_store_n(&ver->gone, true, __ATOMIC_RELEASE);
	for (struct dcpfs_file *f = c->oldest; f; f = newer) {
		newer = f->newer;
		if (f->ver != ver)
			continue;
		remove_file(c, f);
		f->next = out;
		out = f;
	}
	pthread_mutex_unlock(&c->lock);
	for (struct dcpfs_file *f = out; f && k; f = f->next)
		k->drop(k->ctx, f->ino);
	if (k)
		drop_dirs(k, ver->slot);
	put_chain(fs, out);
}

/* Did the version leave the list? What is still open of it answers no more. */
static bool is_gone(const struct dcpfs_file *f)
{
	return f->ver && __atomic_load_n(&f->ver->gone, __ATOMIC_ACQUIRE);
}

static struct dcpfs_file *find(struct dcpfs_cache *c, uint64_t ino)
{
	struct dcpfs_file *f = *bucket_of(c, ino);

	while (f && f->ino != ino)
		f = f->next;
	if (f) {
		dcpfs_file_hold(f);
		if (f != c->newest) {
			unlink_use(c, f);
			link_newest(c, f);
		}
	}
	return f;
}

/* Put a new file into the cache; if another thread was faster, take its file instead. */
static struct dcpfs_file *insert(struct dcpfs *fs, struct dcpfs_file *f)
{
	struct dcpfs_cache *c = fs->files;
	struct dcpfs_file *out = NULL, *other;

	pthread_mutex_lock(&c->lock);
	other = find(c, f->ino);
	if (other) {
		f->next = NULL;
		out = f;
		f = other;
	} else if (!is_gone(f)) {
		struct dcpfs_file **b = bucket_of(c, f->ino);

		f->next = *b;
		*b = f;
		dcpfs_file_hold(f);
		link_newest(c, f);
		c->n++;
		c->text += f->text.n;
		out = evict(c);
	}
	pthread_mutex_unlock(&c->lock);
	put_chain(fs, out);
	return f;
}

static int open_object(struct dcpfs_file *f, int64_t id, struct dcp_err *err)
{
	struct dcp_object o = { 0 };
	struct dcp_arena arena;
	int rc;

	dcp_arena_init(&arena, 512 << 20);
	rc = dcp_index_object(dcp_version_index(f->ver->v), id, &arena, &o, err);
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
	rc = dcp_index_by_id(dcp_version_index(f->ver->v), DCP_ROW_TENSOR, id, &arena, &row);
	if (rc == 0)
		rc = dcpfs_rank_cut(f->ver, &row, &arena, &cut, err);
	if (rc == 0)
		rc = -ENOENT;
	if (rc > 0)
		rc = dcp_view_open(f->ver->v, id, as, &cut, &f->view, err);
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
	if (i.kind == DCPFS_SIDECAR && f->ver)
		return dcp_view_open_file(f->ver->v, (uint32_t)i.row - 1, &f->view, err);
	if (i.kind == DCPFS_MODEL && f->ver)
		return dcpfs_model_make(fs, f->ver, &f->model, err);
	if (!r)
		return dcpfs_text_make(fs, f->ver, i, &f->text, err);
	if (!f->ver)
		return -ENOENT;
	if (r->rows == DCP_ROW_OBJECT)
		return open_object(f, (int64_t)i.row, err);
	if (f->ver->of)
		return open_share(f, (int64_t)i.row, r->as, err);
	return dcp_view_open(f->ver->v, (int64_t)i.row, r->as, NULL, &f->view, err);
}

/* Key of the row behind a file, for errors.json. */
static void note_error(struct dcpfs *fs, const struct dcpfs_file *f, const char *message)
{
	struct dcpfs_ino i = dcpfs_ino_unpack(f->ino);
	const struct dcpfs_rows *r = dcpfs_rows_of(i.kind);
	struct dcp_arena arena;
	struct dcp_row row;

	dcpfs_count(&fs->stats, DCPFS_STAT_ERRORS, 1);
	if (!f->ver || !f->ver->v || !r)
		return;
	dcp_arena_init(&arena, 1 << 20);
	if (dcp_index_by_id(dcp_version_index(f->ver->v), r->rows, (int64_t)i.row, &arena,
			    &row) == 0)
		dcpfs_errors_add(fs->errors, f->ver->name, row.key, message);
	dcp_arena_finish(&arena);
}

static int make_file(struct dcpfs *fs, uint64_t ino, struct dcpfs_file **out,
		     struct dcp_err *err)
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
	clock_gettime(CLOCK_REALTIME, &f->made);
	f->ver = i.slot ? dcpfs_version_by_slot(fs, i.slot) : NULL;
	rc = i.slot && !f->ver ? -ESTALE : fill(fs, f, &why);
	if (rc < 0) {
		note_error(fs, f, *why.msg ? why.msg : strerror(-rc));
		if (err)
			*err = why;
		destroy_file(fs, f);
		return rc;
	}
	dcpfs_count(&fs->stats, DCPFS_STAT_FILES_OPENED, 1);
	*out = f;
	return 0;
}

static struct dcpfs_file *find_live(struct dcpfs_cache *c, enum dcpfs_kind kind)
{
	struct dcpfs_file *f;
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	pthread_mutex_lock(&c->lock);
	f = c->live[kind];
	if (f && f->made.tv_sec == now.tv_sec)
		dcpfs_file_hold(f);
	else
		f = NULL;
	pthread_mutex_unlock(&c->lock);
	return f;
}

static void keep_live(struct dcpfs *fs, enum dcpfs_kind kind, struct dcpfs_file *f)
{
	struct dcpfs_cache *c = fs->files;
	struct dcpfs_file *old;

	dcpfs_file_hold(f);
	pthread_mutex_lock(&c->lock);
	old = c->live[kind];
	c->live[kind] = f;
	pthread_mutex_unlock(&c->lock);
	if (old)
		dcpfs_file_put(fs, old);
}

int dcpfs_file_get(struct dcpfs *fs, uint64_t ino, struct dcpfs_file **out, struct dcp_err *err)
{
	const struct dcpfs_node *node = dcpfs_node(dcpfs_ino_unpack(ino).kind);
	bool shared = node && node->live && node->type == DCPFS_FILE && fs->opts.no_open;
	struct dcpfs_file *f = shared ? find_live(fs->files, node->kind) : NULL;
	int rc;

	if (node && !node->live) {
		pthread_mutex_lock(&fs->files->lock);
		f = find(fs->files, ino);
		pthread_mutex_unlock(&fs->files->lock);
	}
	if (!f) {
		rc = make_file(fs, ino, &f, err);
		if (rc < 0)
			return rc;
		if (!node->live)
			f = insert(fs, f);
		else if (shared)
			keep_live(fs, node->kind, f);
	}
	*out = f;
	return 0;
}

void dcpfs_file_hold(struct dcpfs_file *f)
{
	__atomic_fetch_add(&f->refs, 1, __ATOMIC_RELAXED);
}

void dcpfs_file_put(struct dcpfs *fs, struct dcpfs_file *f)
{
	if (__atomic_sub_fetch(&f->refs, 1, __ATOMIC_ACQ_REL) == 0)
		destroy_file(fs, f);
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

	if (is_gone(f))
		return -ESTALE;
	return rc < 0 ? dcpfs_file_failed(fs, f, 0, rc) : 0;
}

int dcpfs_file_failed(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, int rc)
{
	struct dcp_err err = { 0 };

	if (f->ver && f->ver->v)
		dcp_version_check(f->ver->v, &err);
	if (!*err.msg)
		dcp_fail(&err, rc, off, "reading at byte %llu failed: %s",
			 (unsigned long long)off, strerror(-rc));
	note_error(fs, f, err.msg);
	return rc;
}

/* The file of one part of a model, counted. */
static int part_file(struct dcpfs *fs, const struct dcpfs_file *f,
		     const struct dcpfs_model_part *part, struct dcpfs_file **out)
{
	uint64_t ino =
		dcpfs_ino_pack(dcpfs_ino_unpack(f->ino).slot, DCPFS_RAW, (uint64_t)part->row);

	return dcpfs_file_get(fs, ino, out, NULL);
}

/* Pointers when all that is asked for lies in one part. */
static int model_iov(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, size_t n,
		     struct iovec *iov, int max, struct dcpfs_file **lent)
{
	uint64_t inside, left;
	const struct dcpfs_model_part *part = dcpfs_model_at(&f->model, off, &inside, &left);
	int rc;

	if (n > left || max < 1)
		return 0;
	if (!part) {
		iov[0] = (struct iovec){ (void *)(uintptr_t)(f->model.header.p + off), n };
		return 1;
	}
	rc = part_file(fs, f, part, lent);
	return rc < 0 ? rc : dcpfs_file_iov(fs, *lent, inside, n, iov, max, NULL);
}

static int model_read(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, char *buf,
		      size_t n)
{
	while (n) {
		uint64_t inside, left;
		const struct dcpfs_model_part *part =
			dcpfs_model_at(&f->model, off, &inside, &left);
		size_t now = DCP_MIN(n, left);
		struct dcpfs_file *of = NULL;
		int rc = 0;

		if (!part)
			memcpy(buf, f->model.header.p + off, now);
		else
			rc = part_file(fs, f, part, &of);
		if (of) {
			rc = dcpfs_file_read(fs, of, inside, buf, now);
			dcpfs_file_put(fs, of);
		}
		if (rc < 0)
			return rc;
		buf += now;
		off += now;
		n -= now;
	}
	return 0;
}

int dcpfs_file_iov(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, size_t n,
		   struct iovec *iov, int max, struct dcpfs_file **lent)
{
	int rc = 0;

	if (is_gone(f))
		return -ESTALE;
	if (f->view) {
		rc = dcp_view_iov(f->view, off, n, iov, max);
	} else if (f->model.size) {
		return lent ? model_iov(fs, f, off, n, iov, max, lent) : 0;
	} else if (max > 0 && f->text.p) {
		iov[0] = (struct iovec){ (void *)(uintptr_t)(f->text.p + off), n };
		rc = 1;
	}
	return rc < 0 ? dcpfs_file_failed(fs, f, off, rc) : rc;
}

int dcpfs_file_read(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, void *buf,
		    size_t n)
{
	int rc = 0;

	if (is_gone(f))
		return -ESTALE;
	if (f->model.size)
		return model_read(fs, f, off, buf, n); /* its parts note what fails */
	if (f->view)
		rc = dcp_view_read(f->view, off, buf, n);
	else
		memcpy(buf, f->text.p + off, n);
	return rc < 0 ? dcpfs_file_failed(fs, f, off, rc) : rc;
}

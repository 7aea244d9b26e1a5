/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/ops.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/base/buf.h"
#include "core/checkpoint/dcpfs_abi.h"
#include "core/remote/http.h"
#include "core/store/index/index.h"
#include "fs/file/file.h"
#include "fs/fs.h"
#include "fs/text/text.h"
#include "fs/tree/tree.h"
#include "fs/versions/versions.h"

/* ---- slabs ---- */

enum { HUGE_PAGE = 2 << 20 /* size of a huge page on x86-64, and on arm64 with 4 KiB pages */ };

/* A free slab's first bytes link it to the next. */
struct dcpfs_slabs {
	size_t most;
	pthread_mutex_t lock;         /* free */
	void *free_short, *free_long; /* lists */
};

struct dcpfs_slabs *dcpfs_slabs_create(size_t most)
{
	struct dcpfs_slabs *s = calloc(1, sizeof(*s));

	if (s) {
		s->most = (most + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
		pthread_mutex_init(&s->lock, NULL);
	}
	return s;
}

static void **list_of(struct dcpfs_slabs *s, size_t n)
{
	return n <= DCPFS_SLAB_SHORT ? &s->free_short : &s->free_long;
}

static void *pop_slab(void **list)
{
	void *slab = *list;

	if (slab)
		*list = *(void **)slab;
	return slab;
}

void dcpfs_slabs_destroy(struct dcpfs_slabs *s)
{
	void *slab;

	if (!s)
		return;
	while ((slab = pop_slab(&s->free_short)) || (slab = pop_slab(&s->free_long)))
		free(slab);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

static void *make_slab(const struct dcpfs_slabs *s, size_t n)
{
	void *slab;

	if (n <= DCPFS_SLAB_SHORT)
		return aligned_alloc((size_t)sysconf(_SC_PAGESIZE), DCPFS_SLAB_SHORT);
	slab = aligned_alloc(HUGE_PAGE, s->most);
	if (slab)
		madvise(slab, s->most, MADV_HUGEPAGE);
	return slab;
}

void *dcpfs_slab_take(struct dcpfs_slabs *s, size_t n)
{
	void *slab;

	pthread_mutex_lock(&s->lock);
	slab = pop_slab(list_of(s, n));
	pthread_mutex_unlock(&s->lock);
	return slab ? slab : make_slab(s, n);
}

void dcpfs_slab_give(struct dcpfs_slabs *s, void *slab, size_t n)
{
	void **list = list_of(s, n);

	pthread_mutex_lock(&s->lock);
	*(void **)slab = *list;
	*list = slab;
	pthread_mutex_unlock(&s->lock);
}

/* ---- operations ---- */

/* Inside a version nothing changes; elsewhere a second of delay is acceptable. */
static const double FOREVER = 1e9, SOON = 1.0;

static struct dcpfs *fs_of(fuse_req_t req)
{
	return ((struct dcpfs_server *)fuse_req_userdata(req))->fs;
}

/*
 * The only place that turns a return code into a reply: known errnos unchanged, the rest EIO.
 * -ENOTSUP (the family cannot decode a value) also becomes EIO, because programs know ENOTSUP only
 * as an answer about extended attributes.
 */
static void reply_code(fuse_req_t req, int rc)
{
	fuse_reply_err(req, rc == 0 ? 0 : dcpfs_answer(&fs_of(req)->stats, rc));
}

static bool is_interrupted(void *req)
{
	return fuse_req_interrupted(req);
}

static void end_watch(const bool *watched)
{
	dcp_http_watch(NULL, NULL);
}

/* Until the end of the scope, requests to servers are abandoned if the program is interrupted. The
 * reply must be the last statement of the scope. */
#define INTERRUPTIBLE(req)                                                                     \
	__attribute__((cleanup(end_watch), unused)) const bool watched = true;                 \
	dcp_http_watch(is_interrupted, req)

static bool is_live(const struct dcpfs *fs, uint64_t ino)
{
	const struct dcpfs_node *node = dcpfs_node(fs, dcpfs_ino_unpack(ino).kind);

	return node && node->live && node->type == DCPFS_FILE;
}

/* Two rights change: to list keys, with the versions that are open; and to see a layout's rules,
 * with a file outside of the versions (fs/versions/versions.h). */
static bool has_foreign_rights(uint64_t ino)
{
	enum dcpfs_kind kind = dcpfs_ino_unpack(ino).kind;

	return kind == DCPFS_BY_KEY_DIR || kind == DCPFS_BY_KEY || kind == DCPFS_LAYOUT_JSON;
}

static double attr_timeout(const struct dcpfs *fs, uint64_t ino)
{
	if (is_live(fs, ino) || (has_foreign_rights(ino) && fs->opts.allow_other))
		return 0;
	return dcpfs_is_settled(ino) ? FOREVER : SOON;
}

/* A version's name may be given to another directory later; names below a version may not. */
static double entry_timeout(uint64_t parent)
{
	return dcpfs_is_settled(parent) ? FOREVER : SOON;
}

static struct fuse_entry_param entry_of(const struct dcpfs *fs, uint64_t parent,
					const struct stat *st)
{
	uint32_t slot = dcpfs_ino_unpack(st->st_ino).slot;

	return (struct fuse_entry_param){ .ino = st->st_ino,
					  .generation = dcpfs_slot_generation(fs, slot),
					  .attr = *st,
					  .attr_timeout = attr_timeout(fs, st->st_ino),
					  .entry_timeout = entry_timeout(parent) };
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	const unsigned off = FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE |
			     FUSE_CAP_SPLICE_MOVE | FUSE_CAP_AUTO_INVAL_DATA |
			     FUSE_CAP_ATOMIC_O_TRUNC | FUSE_CAP_WRITEBACK_CACHE;
	const unsigned on = FUSE_CAP_EXPLICIT_INVAL_DATA | FUSE_CAP_PARALLEL_DIROPS |
			    FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO |
			    FUSE_CAP_ASYNC_READ | FUSE_CAP_ASYNC_DIO | FUSE_CAP_CACHE_SYMLINKS |
			    FUSE_CAP_EXPORT_SUPPORT | FUSE_CAP_IOCTL_DIR;

	const struct dcpfs_opts *opts = &((struct dcpfs_server *)userdata)->fs->opts;

	conn->want &= ~off;
	conn->want |= on & conn->capable;
	/* Without OPEN only the mtime of a live file makes the kernel drop its pages. */
	if (opts->no_open) {
		conn->want &= ~(unsigned)FUSE_CAP_EXPLICIT_INVAL_DATA;
		conn->want |= FUSE_CAP_AUTO_INVAL_DATA & conn->capable;
	}
	conn->max_write = DCPFS_MAX_READ; /* limits the pages of a READ, too */
	conn->max_read = DCPFS_MAX_READ;
	if (opts->readahead_kib) /* else the kernel caps the mount's read-ahead */
		conn->max_readahead = DCP_MIN(opts->readahead_kib, UINT32_MAX >> 10) << 10;
	conn->max_background = 64;
	conn->congestion_threshold = 48;
	conn->time_gran = 1;
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct dcpfs *fs = fs_of(req);
	struct fuse_entry_param e;
	struct stat st;
	uint64_t ino;
	int rc;

	DCPFS_TIMED(&fs->stats, DCPFS_STAT_LOOKUP);
	INTERRUPTIBLE(req);
	rc = dcpfs_lookup(fs, parent, name, &ino, &st);
	if (rc == -ENOENT && dcpfs_is_settled(parent)) {
		e = (struct fuse_entry_param){ .entry_timeout = FOREVER };
		fuse_reply_entry(req, &e); /* remembered as absent */
	} else if (rc < 0) {
		reply_code(req, rc);
	} else {
		e = entry_of(fs, parent, &st);
		fuse_reply_entry(req, &e);
	}
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n)
{
	fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct dcpfs *fs = fs_of(req);
	struct stat st;
	int rc;

	DCPFS_TIMED(&fs->stats, DCPFS_STAT_GETATTR);
	INTERRUPTIBLE(req);
	rc = dcpfs_getattr(fs, ino, &st);
	if (rc < 0)
		reply_code(req, rc);
	else
		fuse_reply_attr(req, &st, attr_timeout(fs, ino));
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	char to[PATH_MAX];
	int rc = dcpfs_readlink(fs_of(req), ino, to, sizeof(to));

	if (rc < 0)
		reply_code(req, rc);
	else
		fuse_reply_readlink(req, to);
}

/* ---- files ---- */

/* libfuse 3.14 does not support backing ids, so this open is answered in the form of the kernel. */
static int reply_open_passthrough(fuse_req_t req, const struct dcpfs_file *f, int backing_id)
{
	struct {
		uint64_t fh;
		uint32_t flags;
		int32_t backing_id;
	} out = { (uintptr_t)f, 1u << 7 /* FOPEN_PASSTHROUGH */, backing_id };

	return fuse_reply_buf(req, (const char *)&out, sizeof(out));
}

/* Leave the request to another thread if it reads a tensor. False: nothing was done. */
static bool is_left(const struct dcpfs_late_call *call)
{
	struct dcpfs_late *late = ((struct dcpfs_server *)fuse_req_userdata(call->req))->late;
	bool left = late && dcpfs_file_takes_long(fs_of(call->req), call->ino);

	if (left)
		dcpfs_late_add(late, call);
	return left;
}

static void answer_open(const struct dcpfs_late_call *call)
{
	fuse_req_t req = call->req;
	fuse_ino_t ino = call->ino;
	struct fuse_file_info out = call->fi, *fi = &out;
	struct dcpfs *fs = fs_of(req);
	struct dcpfs_file *f;
	int rc, backing_id;

	DCPFS_TIMED(&fs->stats, DCPFS_STAT_OPEN);
	INTERRUPTIBLE(req);
	rc = dcpfs_file_get(fs, ino, &f, NULL);
	if (rc == 0) {
		rc = dcpfs_file_check(fs, f);
		if (rc < 0)
			dcpfs_file_put(fs, f);
	}
	if (rc < 0) {
		reply_code(req, rc);
		return;
	}
	dcpfs_file_opened(f);
	backing_id = dcpfs_file_backing(fs, f);
	fi->fh = (uintptr_t)f;
	fi->keep_cache = !is_live(fs, ino);
	fi->direct_io = is_live(fs, ino);
	fi->noflush = 1;
	rc = backing_id ? reply_open_passthrough(req, f, backing_id) : fuse_reply_open(req, fi);
	if (rc < 0) { /* interrupted: no RELEASE will come */
		dcpfs_file_closed(f);
		dcpfs_file_put(fs, f);
	}
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	const struct dcpfs_late_call call = { answer_open, req, ino, .fi = *fi };

	if (fs_of(req)->opts.no_open)
		fuse_reply_err(req, ENOSYS);
	else if (!is_left(&call))
		answer_open(&call);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct dcpfs_file *f = (struct dcpfs_file *)(uintptr_t)fi->fh;

	dcpfs_file_closed(f);
	dcpfs_file_put(fs_of(req), f);
	fuse_reply_err(req, 0);
}

static void *take_slab(void *slabs, size_t n)
{
	return n <= DCPFS_MAX_READ ? dcpfs_slab_take(slabs, n) : NULL;
}

/* All @n bytes or an error, never fewer. */
static void reply_bytes(fuse_req_t req, struct dcpfs *fs, struct dcpfs_file *f, uint64_t off,
			size_t n)
{
	struct dcpfs_slabs *slabs = ((struct dcpfs_server *)fuse_req_userdata(req))->slabs;
	struct dcpfs_reply r;
	struct dcp_reply *b = &r.bytes;
	int rc;

	dcp_reply_begin(b, n, take_slab, slabs);
	rc = dcpfs_file_answer(fs, f, off, n, &r);
	/* after the reply the FUSE request must not be asked any more */
	dcp_http_watch(NULL, NULL);
	if (rc < 0) {
		reply_code(req, rc);
	} else {
		dcpfs_count(&fs->stats,
			    b->buf ? DCPFS_STAT_REPLY_COPIED : DCPFS_STAT_REPLY_MAPPED, 1);
		rc = b->n == 1 ? fuse_reply_buf(req, b->entry[0].iov_base, b->entry[0].iov_len)
			       : fuse_reply_iov(req, b->entry, (int)b->n);
		if (rc == -EFAULT) /* the kernel answers EIO itself */
			dcpfs_reply_failed(fs, f, off, &r);
	}
	dcpfs_reply_finish(fs, &r);
	if (b->buf)
		dcpfs_slab_give(slabs, b->buf, n);
}

static void answer_read(const struct dcpfs_late_call *call)
{
	fuse_req_t req = call->req;
	fuse_ino_t ino = call->ino;
	size_t size = call->size;
	off_t off = call->off;
	struct dcpfs *fs = fs_of(req);
	struct dcpfs_file *f = (struct dcpfs_file *)(uintptr_t)call->fi.fh;
	uint64_t end;
	int rc = 0;

	DCPFS_TIMED(&fs->stats, DCPFS_STAT_READ);
	INTERRUPTIBLE(req);
	if (off < 0)
		rc = -EINVAL;
	else if (fs->opts.no_open)
		rc = dcpfs_file_get(fs, ino, &f, NULL);
	else
		dcpfs_file_hold(f);
	if (rc < 0) {
		reply_code(req, rc);
		return;
	}
	end = dcpfs_file_size(f);
	if ((uint64_t)off >= end) {
		fuse_reply_buf(req, NULL, 0);
	} else {
		size = DCP_MIN(size, end - (uint64_t)off);
		dcpfs_count(&fs->stats, DCPFS_STAT_READ_BYTES, size);
		reply_bytes(req, fs, f, (uint64_t)off, size);
	}
	dcpfs_file_put(fs, f);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	const struct dcpfs_late_call call = { answer_read, req, ino, size, off, *fi };

	if (!fs_of(req)->opts.no_open || !is_left(&call))
		answer_read(&call);
}

/* ---- directories ---- */

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	const struct dcpfs_node *node = dcpfs_node(fs_of(req), dcpfs_ino_unpack(ino).kind);

	if (!node || node->type != DCPFS_DIR) {
		reply_code(req, -ENOTDIR);
		return;
	}
	fi->cache_readdir = dcpfs_is_settled(ino);
	fi->keep_cache = dcpfs_is_settled(ino);
	fuse_reply_open(req, fi);
}

struct dirbuf {
	fuse_req_t req;
	uint64_t parent;
	char *p;
	size_t n, size;
	bool plus;
};

static bool add_entry(void *ctx, const char *name, const struct stat *st, uint64_t position)
{
	struct dirbuf *b = ctx;
	struct fuse_entry_param e;
	size_t need;

	if (b->plus) {
		e = entry_of(fs_of(b->req), b->parent, st);
		if (st->st_size < 0)
			e.ino = 0; /* name and type only: the kernel asks when a program needs
				      more */
		need = fuse_add_direntry_plus(b->req, b->p + b->n, b->size - b->n, name, &e,
					      (off_t)position);
	} else {
		need = fuse_add_direntry(b->req, b->p + b->n, b->size - b->n, name, st,
					 (off_t)position);
	}
	if (need > b->size - b->n)
		return false;
	b->n += need;
	return true;
}

static void list_dir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus)
{
	struct dcpfs *fs = fs_of(req);
	struct dcpfs_slabs *slabs = ((struct dcpfs_server *)fuse_req_userdata(req))->slabs;
	struct dirbuf b = {
		.req = req, .parent = ino, .plus = plus, .size = DCP_MIN(size, DCPFS_MAX_READ)
	};
	int rc;

	DCPFS_TIMED(&fs->stats, DCPFS_STAT_READDIR);
	INTERRUPTIBLE(req);
	b.p = dcpfs_slab_take(slabs, b.size);
	rc = b.p ? dcpfs_readdir(fs, ino, (uint64_t)off, plus, add_entry, &b) : -ENOMEM;
	if (rc < 0 && b.n == 0)
		reply_code(req, rc);
	else
		fuse_reply_buf(req, b.p, b.n);
	if (b.p)
		dcpfs_slab_give(slabs, b.p, b.size);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	list_dir(req, ino, size, off, false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
			   struct fuse_file_info *fi)
{
	list_dir(req, ino, size, off, true);
}

/* ---- the rest ---- */

static void reply_xattr(fuse_req_t req, struct dcp_buf *value, size_t size, int rc)
{
	if (rc == -ENOTSUP)
		fuse_reply_err(req, ENOTSUP);
	else if (rc < 0)
		reply_code(req, rc);
	else if (size == 0)
		fuse_reply_xattr(req, value->n);
	else if (value->n > size)
		fuse_reply_err(req, ERANGE);
	else
		fuse_reply_buf(req, value->p, value->n);
	dcp_buf_finish(value);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct dcp_buf value = DCP_BUF_INIT;
	int rc;

	INTERRUPTIBLE(req);
	rc = dcpfs_xattr_get(fs_of(req), ino, name, &value);
	reply_xattr(req, &value, size, rc);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct dcp_buf names = DCP_BUF_INIT;
	int rc;

	INTERRUPTIBLE(req);
	rc = dcpfs_xattr_list(fs_of(req), ino, &names);
	reply_xattr(req, &names, size, rc);
}

static void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned int cmd, void *arg,
		     struct fuse_file_info *fi, unsigned int flags, const void *in_buf,
		     size_t in_size, size_t out_size)
{
	struct dcpfs_info info;
	int rc;

	if (cmd != DCPFS_IOC_INFO || flags & FUSE_IOCTL_COMPAT || out_size < sizeof(info)) {
		fuse_reply_err(req, ENOTTY);
		return;
	}
	INTERRUPTIBLE(req);
	rc = dcpfs_file_info(fs_of(req), ino, &info);
	if (rc == -ENOTTY)
		fuse_reply_err(req, ENOTTY);
	else if (rc < 0)
		reply_code(req, rc);
	else
		fuse_reply_ioctl(req, 0, &info, sizeof(info));
}

/* For df: a full, read-only file system of the size of the tensors shown. */
static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct dcpfs *fs = fs_of(req);
	struct statvfs s = {
		.f_bsize = 4096, .f_frsize = 4096, .f_namemax = NAME_MAX, .f_flag = ST_RDONLY
	};
	struct dcpfs_version *ver;

	for (uint64_t place = 0; (ver = dcpfs_version_behind(fs, place));) {
		struct dcp_version *v = dcpfs_opened(ver);

		place = ver->place;
		if (v) {
			const struct dcp_index_counts *n =
				dcp_index_counts(dcp_version_index(v));

			s.f_blocks += (n->bytes + 4095) / 4096;
			s.f_files += n->tensors + n->objects;
		}
		dcpfs_version_put(ver);
	}
	fuse_reply_statfs(req, &s);
}

const struct fuse_lowlevel_ops dcpfs_ops = {
	.init = op_init,
	.lookup = op_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = op_getattr,
	.readlink = op_readlink,
	.open = op_open,
	.read = op_read,
	.release = op_release,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.readdirplus = op_readdirplus,
	.getxattr = op_getxattr,
	.listxattr = op_listxattr,
	.statfs = op_statfs,
	.ioctl = op_ioctl,
};
const size_t dcpfs_ops_size = sizeof(dcpfs_ops);

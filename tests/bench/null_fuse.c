/* SPDX-License-Identifier: Apache-2.0 */
/*
 * null_fuse: a FUSE server that does nothing but answer, as fast as FUSE can be answered: the
 * limit that dcpfs is measured against. Same session settings as dcpfs.
 *
 *   null_fuse [-t THREADS] [-o] [-n FILES] MNT FILE:OFFSET:BYTES...
 *
 *   MNT/data        these pieces, consecutive, out of mappings, as iovecs
 *   MNT/names/N     FILES files of 4 KiB, N = 000000, 000001, ... (the start of the first
 * piece)
 *
 * Pieces of the same files at the same places as dcpfs reads them, because where bytes lie in
 * a page, and in which pages, decides what a copy costs. -t 1 serves by the single-threaded
 * loop; -o tells the kernel to skip OPEN.
 */
#define FUSE_USE_VERSION 312
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	DATA = 2,
	NAMES = 3,
	FIRST = 16,
	SMALL = 4096,
	MAX_READ = 1 << 20,
	NAME_LEN = 6,
	MAX_PIECES = 256
};

static const double FOREVER = 1e9;

struct piece {
	const char *map;
	uint64_t at, n; /* in MNT/data */
};

static struct {
	struct piece pieces[MAX_PIECES];
	unsigned npieces;
	uint64_t size;
	unsigned long files;
	unsigned threads;
	bool no_open;
} srv = { .threads = 1, .files = 10000 };

static struct stat attr_of(fuse_ino_t ino)
{
	struct stat st = { .st_ino = ino, .st_nlink = 1, .st_mode = S_IFREG | 0444 };

	if (ino == FUSE_ROOT_ID || ino == NAMES)
		st.st_mode = S_IFDIR | 0555;
	else
		st.st_size = ino == DATA ? (off_t)srv.size : SMALL;
	st.st_blocks = (st.st_size + 511) / 512;
	return st;
}

static struct fuse_entry_param entry_of(fuse_ino_t ino)
{
	return (struct fuse_entry_param){ .ino = ino,
					  .attr = attr_of(ino),
					  .attr_timeout = FOREVER,
					  .entry_timeout = FOREVER };
}

static void init_session(void *userdata, struct fuse_conn_info *conn)
{
	const unsigned off = FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE |
			     FUSE_CAP_SPLICE_MOVE | FUSE_CAP_AUTO_INVAL_DATA |
			     FUSE_CAP_WRITEBACK_CACHE;
	const unsigned on = FUSE_CAP_EXPLICIT_INVAL_DATA | FUSE_CAP_PARALLEL_DIROPS |
			    FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO |
			    FUSE_CAP_ASYNC_READ | FUSE_CAP_ASYNC_DIO;

	(void)userdata;
	conn->want &= ~off;
	conn->want |= on & conn->capable;
	conn->max_write = MAX_READ;
	conn->max_read = MAX_READ;
	conn->max_background = 64;
	conn->congestion_threshold = 48;
}

/* The inode of names/NAME, or 0. */
static fuse_ino_t small_file(const char *name)
{
	char *end;
	unsigned long n = strtoul(name, &end, 10);

	return end == name + NAME_LEN && !*end && n < srv.files ? FIRST + n : 0;
}

static void look_up(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e;
	fuse_ino_t ino = 0;

	if (parent == NAMES)
		ino = small_file(name);
	else if (parent == FUSE_ROOT_ID && !strcmp(name, "data"))
		ino = DATA;
	else if (parent == FUSE_ROOT_ID && !strcmp(name, "names"))
		ino = NAMES;
	if (!ino) {
		fuse_reply_err(req, ENOENT);
		return;
	}
	e = entry_of(ino);
	fuse_reply_entry(req, &e);
}

static void get_attr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st = attr_of(ino);

	(void)fi;
	fuse_reply_attr(req, &st, FOREVER);
}

static void open_file(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	if (srv.no_open) {
		fuse_reply_err(req, ENOSYS);
		return;
	}
	fi->keep_cache = 1;
	fi->noflush = 1;
	fuse_reply_open(req, fi);
}

static void open_dir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	fi->cache_readdir = 1;
	fi->keep_cache = 1;
	fuse_reply_open(req, fi);
}

static void read_file(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		      struct fuse_file_info *fi)
{
	uint64_t at = (uint64_t)off, end = ino == DATA ? srv.size : SMALL;
	struct iovec iov[MAX_PIECES];
	int n = 0;

	(void)fi;
	if (at >= end)
		size = 0;
	else if (size > end - at)
		size = end - at;
	for (unsigned i = 0; i < srv.npieces && size > 0; i++) {
		const struct piece *p = &srv.pieces[i];
		uint64_t take;

		if (at >= p->at + p->n)
			continue;
		take = p->at + p->n - at;
		if (take > size)
			take = size;
		iov[n++] = (struct iovec){ (void *)(uintptr_t)(p->map + (at - p->at)), take };
		at += take;
		size -= take;
	}
	fuse_reply_iov(req, iov, n);
}

/* Append one entry; false when the buffer has no room for it. */
static bool add_entry(fuse_req_t req, char *buf, size_t size, size_t *n, bool plus,
		      const char *name, fuse_ino_t ino, off_t next)
{
	struct fuse_entry_param e = entry_of(ino);
	size_t need = plus ? fuse_add_direntry_plus(req, buf + *n, size - *n, name, &e, next)
			   : fuse_add_direntry(req, buf + *n, size - *n, name, &e.attr, next);

	if (need > size - *n)
		return false;
	*n += need;
	return true;
}

static void list_dir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus)
{
	static _Thread_local char buf[MAX_READ];
	off_t end = ino == NAMES ? (off_t)srv.files : 2;
	char name[24];
	size_t n = 0;

	if (size > sizeof(buf))
		size = sizeof(buf);
	for (off_t i = off; i < end; i++) {
		fuse_ino_t child = ino == NAMES ? FIRST + (fuse_ino_t)i : DATA + (fuse_ino_t)i;

		if (ino == NAMES)
			snprintf(name, sizeof(name), "%06lu", (unsigned long)i);
		else
			snprintf(name, sizeof(name), "%s", child == DATA ? "data" : "names");
		if (!add_entry(req, buf, size, &n, plus, name, child, i + 1))
			break;
	}
	fuse_reply_buf(req, buf, n);
}

static void readdir_plain(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
			  struct fuse_file_info *fi)
{
	(void)fi;
	list_dir(req, ino, size, off, false);
}

static void readdir_plus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
			 struct fuse_file_info *fi)
{
	(void)fi;
	list_dir(req, ino, size, off, true);
}

static const struct fuse_lowlevel_ops ops = {
	.init = init_session,
	.lookup = look_up,
	.getattr = get_attr,
	.open = open_file,
	.opendir = open_dir,
	.read = read_file,
	.readdir = readdir_plain,
	.readdirplus = readdir_plus,
};

static void add_piece(char *word)
{
	struct piece *p = &srv.pieces[srv.npieces];
	char *bytes = strrchr(word, ':'), *offset;
	struct stat st;
	uint64_t from;
	void *map;
	int fd;

	if (bytes)
		*bytes++ = 0;
	offset = strrchr(word, ':');
	if (!bytes || !offset || srv.npieces == MAX_PIECES)
		errx(2, "a piece is FILE:OFFSET:BYTES, and %d are the most", MAX_PIECES);
	*offset++ = 0;
	from = strtoull(offset, NULL, 10);
	p->n = strtoull(bytes, NULL, 10);
	fd = open(word, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		err(1, "%s", word);
	if (p->n < SMALL || from > (uint64_t)st.st_size || p->n > (uint64_t)st.st_size - from)
		errx(1, "%s: too short", word);
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		err(1, "%s", word);
	close(fd);
	p->map = (const char *)map + from;
	p->at = srv.size;
	srv.size += p->n;
	srv.npieces++;
}

static int serve_mount(struct fuse_session *se)
{
	struct fuse_loop_config *config;
	int rc;

	if (srv.threads == 1)
		return fuse_session_loop(se);
	config = fuse_loop_cfg_create();
	if (!config)
		err(1, "loop");
	fuse_loop_cfg_set_max_threads(config, srv.threads);
	fuse_loop_cfg_set_idle_threads(config, srv.threads);
	rc = fuse_session_loop_mt(se, config);
	fuse_loop_cfg_destroy(config);
	return rc;
}

int main(int argc, char **argv)
{
	char options[] =
		"-oro,nosuid,nodev,default_permissions,fsname=null_fuse,max_read=1048576";
	char *words[] = { argv[0], options, NULL };
	struct fuse_args args = FUSE_ARGS_INIT(2, words);
	struct fuse_session *se;
	int o, rc;

	while ((o = getopt(argc, argv, "t:on:")) >= 0) {
		if (o == 't')
			srv.threads = (unsigned)strtoul(optarg, NULL, 10);
		else if (o == 'o')
			srv.no_open = true;
		else if (o == 'n')
			srv.files = strtoul(optarg, NULL, 10);
		else
			return 2;
	}
	if (argc - optind < 2 || !srv.threads || srv.files > 1000000)
		errx(2,
		     "usage: null_fuse [-t THREADS] [-o] [-n FILES] MNT FILE:OFFSET:BYTES...");
	for (int i = optind + 1; i < argc; i++)
		add_piece(argv[i]);
	se = fuse_session_new(&args, &ops, sizeof(ops), NULL);
	if (!se || fuse_set_signal_handlers(se) || fuse_session_mount(se, argv[optind]))
		errx(1, "cannot mount on %s", argv[optind]);
	rc = serve_mount(se);
	fuse_remove_signal_handlers(se);
	fuse_session_unmount(se);
	fuse_session_destroy(se);
	return rc < 0;
}

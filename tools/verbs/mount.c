/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/jsonw.h"
#include "core/checkpoint/mounts.h"
#include "core/origin/origin.h"
#include "core/rules/rules.h"
#include "fs/fs.h"
#include "fs/session.h"
#include "fs/versions/versions.h"
#include "tools/cmd.h"
#include "tools/load/error.h"
#include "tools/out.h"
#include "tools/pick.h"

#define NOT_GIVEN UINT64_MAX

/*
 * In KiB. The kernel's default of 128 would make READs of 128 KiB, and each READ checks the files
 * that it touches; a READ has at most 1 MiB. More helps sequential readers little, and makes each
 * page fault read as much.
 */
enum { READAHEAD = 1024 };

enum io { IO_AUTO, IO_MMAP, IO_PREAD };

struct mount_opts {
	struct dcpfs_opts o; /* rows of the tables write it themselves */
	bool nonempty;
	int io;
	struct pick_opts pick;
	struct opt_texts layouts;
	struct hf_opts hf;
	const char *log_file, *metrics_at;
	bool log_json;
};

static const char *const ios[] = { "auto", "mmap", "pread", NULL };

#define AT(field)                                                                              \
	.off = offsetof(struct mount_opts, field),                                             \
	.bytes = sizeof(((struct mount_opts *)NULL)->field)

#define PASS(word)                                                                             \
	{                                                                                      \
		0, word, NULL, "of mount(8): nothing to do", OPT_PASS                          \
	}

/* Options that mount(8) hands on from fstab, beside those of dcpfs. */
static const struct opt mount_words[] = {
	{ 0, "allow_other", NULL, "let other users read what the source lets them", OPT_FLAG,
	  AT(o.allow_other) },
	{ 0, "uid", "N", "owner of everything, who may read it; default: the source's",
	  OPT_UINT, AT(o.uid), .max = UINT32_MAX - 1, .def = NOT_GIVEN },
	{ 0, "gid", "N", "group of everything, which may read it; default: the source's",
	  OPT_UINT, AT(o.gid), .max = UINT32_MAX - 1, .def = NOT_GIVEN },
	{ 0, "umask", "OCTAL", "permission bits to take away", OPT_OCTAL, AT(o.umask),
	  .max = 0777, .def = NOT_GIVEN },
	{ 0, "nonempty", NULL, "as --nonempty", OPT_FLAG, AT(nonempty) },
	{ 0, "fsname", "NAME", "what mount(8) shows as the device; default: SOURCE", OPT_TEXT,
	  AT(o.fsname) },
	{ 0, "ro", NULL, "as it is anyhow", OPT_PASS },
	{ 0, "rw", NULL, "a checkpoint is never written to; say ro (in fstab, too)",
	  OPT_REFUSE },
	/* clang-format off */
	PASS("defaults"), PASS("auto"), PASS("noauto"), PASS("user"), PASS("nouser"),
	PASS("users"), PASS("nofail"), PASS("_netdev"), PASS("dev"), PASS("nodev"),
	PASS("suid"), PASS("nosuid"), PASS("exec"), PASS("noexec"), PASS("atime"),
	PASS("noatime"), PASS("diratime"), PASS("nodiratime"), PASS("relatime"),
	PASS("norelatime"), PASS("strictatime"), PASS("sync"), PASS("async"),
	PASS("group"), PASS("owner"), PASS("comment"), PASS("X-*"),
	/* clang-format on */
	{ 0, "x-*", NULL, "of mount(8) and systemd: nothing to do", OPT_PASS },
	{ 0, "remount", NULL, "unmount it and mount it again", OPT_REFUSE },
	OPT_END
};

static const struct opt opts[] = {
	{ 'f', "foreground", NULL, "stay in the foreground and log there", OPT_FLAG,
	  AT(o.foreground) },
	{ 'o', "options", "LIST", "allow_other, ro, uid=N, gid=N, umask=OCTAL, fsname=NAME",
	  OPT_LIST, .sub = mount_words },
	PICK_OPTS(struct mount_opts),
	{ 0, "log-file", "FILE", "append the log to FILE; default: syslog", OPT_TEXT, OPT_FILE,
	  AT(log_file) },
	{ 0, "log-json", NULL, "write each line of the log as a JSON object", OPT_FLAG,
	  AT(log_json) },
	{ 0, "metrics-listen", "WHERE", "metrics also at unix:PATH or 127.0.0.1:PORT (HTTP)",
	  OPT_TEXT, AT(metrics_at) },
	{ 0, "layout", "FILE", "show shard/<stem of FILE>; may be repeated", OPT_TEXTS,
	  OPT_DCPL, AT(layouts) },
	{ HF_OPT_RULES(struct mount_opts, hf) },
	{ HF_OPT_ASSETS(struct mount_opts, hf) },
	{ HF_OPT_FROM(struct mount_opts, hf), .hidden = true },
	{ HF_OPT_DTYPE(struct mount_opts, hf) },
	{ 0, "hf-shard-size", "N", "bytes of one of its model files at most; default 5GB",
	  OPT_SIZE, AT(o.hf_shard_size), .def = DCPFS_HF_SHARD_SIZE, .hidden = true },
	{ 0, "rebuild", NULL, "rebuild indexes", OPT_FLAG, AT(o.store.rebuild) },
	{ 0, "readahead", "KIB", "kernel readahead; default 1024; 0: the kernel's default",
	  OPT_UINT, AT(o.readahead_kib), .max = 1 << 20, .def = READAHEAD },
	{ 0, "io", "HOW", "auto, mmap or pread: how shards are read", OPT_CHOICE, AT(io),
	  .choices = ios },
	{ 0, "threads", "N", "requests served at once; 0: by number of CPUs", OPT_UINT,
	  AT(o.threads), .max = 1024, .hidden = true },
	{ 0, "passthrough", "MIB", "room for files that the kernel serves itself; 0: none",
	  OPT_UINT, AT(o.passthrough_mib), .max = 1 << 20 },
	{ 0, "no-open", NULL, "let the kernel skip open requests: faster walks", OPT_FLAG,
	  AT(o.no_open) },
	{ 0, "nonempty", NULL, "hide what lies in MNT", OPT_FLAG, AT(nonempty),
	  .hidden = true },
	{ 0, "wait", NULL, "also mount a SOURCE that is empty or not there yet", OPT_FLAG,
	  AT(o.wait) },
	{ 'd', "debug", NULL, "log every request; implies --foreground", OPT_FLAG,
	  AT(o.debug) },
	OPT_END
};

static const struct opt_operand operands[] = { { "SOURCE", false, OPT_SOURCE },
					       { "MNT", true, OPT_DIR },
					       { 0 } };

static bool is_empty(const char *path)
{
	DIR *dir = opendir(path);
	const struct dirent *e = NULL;

	while (dir && (e = readdir(dir)) &&
	       (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")))
		;
	if (dir)
		closedir(dir);
	return !e;
}

/* The mount point must be a directory, not mounted by us, empty, and apart from the source. */
static enum cmd_exit check_mountpoint(const char *given, const char *mnt, const char *source,
				      bool nonempty)
{
	struct dcp_mount m;
	struct stat st;
	bool found = dcp_mounts_find(mnt, &m) > 0;
	bool ours = found && strcmp(m.fstype, DCPFS_FSTYPE) == 0;
	struct statvfs fs;

	/* The kernel may have cached the attributes of a dead mount, but not those of its file
	 * system. */
	if (found && statvfs(mnt, &fs) < 0 && (errno == ENOTCONN || errno == ECONNABORTED))
		return cmd_fail(CMD_ENV,
				"%s holds a dead mount of %s%s: the process that served it has "
				"ended (see its log, syslog by default); remove it with: %s %s",
				mnt, m.source, ours ? "" : ", not of dcpfs",
				ours ? "dcpfs umount" : "fusermount3 -u", given);
	if (ours)
		return cmd_fail(CMD_ENV,
				"%s is a mount of dcpfs already, of %s; end it with: "
				"dcpfs umount %s",
				mnt, m.source, given);
	if (stat(mnt, &st) < 0)
		return cmd_fail(CMD_ENV, "mount point %s: %s", given, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return cmd_fail(CMD_USAGE, "mount point %s is not a directory", given);
	if (strcmp(mnt, source) == 0)
		return cmd_fail(CMD_USAGE,
				"mounting over the source %s would hide it; make an "
				"empty directory elsewhere",
				source);
	if (cmd_is_within(mnt, source))
		return cmd_fail(CMD_USAGE,
				"mount point %s lies inside the source %s; make an empty "
				"directory elsewhere",
				mnt, source);
	if (cmd_is_within(source, mnt))
		return cmd_fail(CMD_USAGE,
				"mount point %s would hide the source %s below it; make "
				"an empty directory elsewhere",
				mnt, source);
	if (!nonempty && !is_empty(mnt))
		return cmd_fail(CMD_USAGE,
				"mount point %s is not empty, and what lies in it would be "
				"hidden; make an empty directory, or add --nonempty",
				given);
	return CMD_OK;
}

/* A /dev/fuse that was opened, and mounted, by another program, which hands on the descriptor:
 * libfuse serves it. */
static bool is_descriptor(const char *mnt)
{
	uint64_t fd;

	return strncmp(mnt, "/dev/fd/", 8) == 0 && opt_number(mnt + 8, 10, &fd);
}

/* Make a directory below TMPDIR for a mount of @source without a mount point; to be freed. NULL:
 * errno. */
static char *make_mountpoint(const char *source)
{
	const char *tmp = getenv("TMPDIR"), *slash = strrchr(source, '/');
	const char *name = slash && slash[1] ? slash + 1 : "source";
	char *path = NULL;

	if (asprintf(&path, "%s/dcpfs-%.100s.XXXXXX", tmp && tmp[0] == '/' ? tmp : "/tmp",
		     name) < 0)
		return NULL;
	if (!mkdtemp(path)) {
		free(path);
		return NULL;
	}
	return path;
}

struct paths {
	char *source, *mnt, *index, *cache, *layout_dir, *hf_assets, *log_file, *metrics_at;
	struct dcp_rules *hf_rules;
	bool made; /* mnt, by this program */
};

static void finish_paths(struct paths *p)
{
	free(p->source);
	free(p->mnt);
	free(p->index);
	free(p->cache);
	free(p->layout_dir);
	free(p->hf_assets);
	free(p->log_file);
	free(p->metrics_at);
	dcp_rules_free(p->hf_rules);
}

/* ---- the log: to stderr as long as there is one, and to a file, or in the background to syslog
 * ---- */

struct mount_log {
	const char *file; /* NULL: none */
	bool foreground, json;
};

static const struct {
	int priority;
	const char *name;
} levels[] = {
	[DCP_LOG_ERROR] = { LOG_ERR, "error" },
	[DCP_LOG_WARN] = { LOG_WARNING, "warning" },
	[DCP_LOG_INFO] = { LOG_INFO, "info" },
	[DCP_LOG_DEBUG] = { LOG_DEBUG, "debug" },
};

static int open_log(const char *path)
{
	return open(path,
		    O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY |
			    O_CLOEXEC,
		    0600);
}

/* "2026-11-28T12:00:00Z" */
static const char *put_time(char out[32])
{
	time_t now = time(NULL);
	struct tm tm;

	gmtime_r(&now, &tm);
	strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
	return out;
}

/* The file is opened for each line, so that it can be moved away or removed. */
static void append_line(const char *path, const char *line, size_t n)
{
	dcp_auto_fd int fd = open_log(path);

	if (fd >= 0 && write(fd, line, n) < (ssize_t)n) /* a full disk: .dcpfs/log has it */
		return;
}

/* A line is one object, in a file and on stderr alike. A line that lacks memory is left out;
 * .dcpfs/log has it. */
static void log_json(const struct mount_log *l, enum dcp_log_level level, const char *line)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_jsonw w;
	char when[32];

	dcp_jsonw_init(&w, &text, false);
	dcp_jsonw_object(&w);
	dcp_jsonw_put_str(&w, "time", put_time(when));
	dcp_jsonw_put_str(&w, "level", levels[level].name);
	dcp_jsonw_put_u64(&w, "pid", (uint64_t)getpid());
	dcp_jsonw_put_str(&w, "message", line);
	dcp_jsonw_end(&w);
	dcp_buf_str(&text, "\n");
	if (dcp_buf_error(&text))
		return;
	fwrite(text.p, 1, text.n, stderr);
	if (l->file)
		append_line(l->file, text.p, text.n);
	else if (!l->foreground)
		syslog(LOG_DAEMON | levels[level].priority, "%.*s", (int)text.n - 1, text.p);
}

static void log_line(void *ctx, enum dcp_log_level level, const char *line)
{
	const struct mount_log *l = ctx;
	char text[1200], when[32];

	if (l->json) {
		log_json(l, level, line);
		return;
	}
	dcp_log(&cmd_log, level, "%s", line);
	if (l->file)
		append_line(
			l->file, text,
			(size_t)snprintf(text, sizeof(text), "%s %s\n", put_time(when), line));
	else if (!l->foreground)
		syslog(LOG_DAEMON | levels[level].priority, "%s", line);
}

/* @given must be outside of the source, which is never written, and of the mount, which would wait
 * for itself. */
static enum cmd_exit check_outside(const char *option, const char *given, const char *path,
				   const struct paths *p)
{
	if (!cmd_is_within(path, p->source) && !cmd_is_within(path, p->mnt))
		return CMD_OK;
	return cmd_fail(CMD_USAGE, "%s %s lies inside %s; name a file elsewhere", option, given,
			cmd_is_within(path, p->source) ? p->source : p->mnt);
}

/* Make the path absolute: the serving process has another working directory. */
static enum cmd_exit resolve_metrics(const char *given, struct paths *p)
{
	bool local = strncmp(given, "unix:", 5) == 0;
	dcp_auto_free char *path = local ? cmd_resolve(given + 5) : NULL;
	struct dcp_err err = { 0 };

	if (local && !path)
		return cmd_fail(CMD_ENV, "--metrics-listen %s: %s", given, strerror(errno));
	if (path && check_outside("--metrics-listen", given, path, p) != CMD_OK)
		return CMD_USAGE;
	if (asprintf(&p->metrics_at, "%s%s", local ? "unix:" : "", path ? path : given) < 0)
		p->metrics_at = NULL;
	if (!p->metrics_at)
		return cmd_fail(CMD_ENV, "out of memory");
	return dcpfs_listen_check(p->metrics_at, &err) < 0
		       ? cmd_fail(CMD_USAGE, "--metrics-listen %s", err.msg)
		       : CMD_OK;
}

static enum cmd_exit resolve_log(const char *given, struct paths *p)
{
	dcp_auto_fd int fd = -1;

	p->log_file = realpath(given, NULL);
	if (!p->log_file)
		p->log_file = cmd_resolve(given);
	if (p->log_file && check_outside("--log-file", given, p->log_file, p) != CMD_OK)
		return CMD_USAGE;
	if (p->log_file)
		fd = open_log(p->log_file);
	return fd < 0 ? cmd_fail(CMD_ENV, "--log-file %s: %s", given, strerror(errno)) : CMD_OK;
}

/* Without @given, make a mount point. */
static enum cmd_exit resolve_mountpoint(const char *given, struct paths *p)
{
	char *real = NULL;

	p->made = !given;
	if (!given)
		p->mnt = make_mountpoint(p->source);
	else
		p->mnt = is_descriptor(given) ? strdup(given) : cmd_resolve(given);
	if (!p->mnt)
		return cmd_fail(CMD_ENV, "mount point %s: %s", given ? given : "in TMPDIR",
				strerror(errno));
	/* A mount point may be a link to a directory; a dead mount cannot be resolved. */
	if (!is_descriptor(p->mnt))
		real = realpath(p->mnt, NULL);
	if (real) {
		free(p->mnt);
		p->mnt = real;
	}
	return CMD_OK;
}

/* Make all paths absolute: the daemon leaves the working directory. */
static enum cmd_exit resolve_paths(const struct mount_opts *m, const struct opt_args *args,
				   struct paths *p)
{
	enum cmd_exit code;

	p->source = dcp_origin_of(args->operand[0]) == &dcp_origin_local
			    ? realpath(args->operand[0], NULL)
			    : strdup(args->operand[0]);
	if (!p->source && m->o.wait && errno == ENOENT)
		p->source = cmd_resolve(args->operand[0]);
	if (!p->source)
		return cmd_fail(CMD_ENV, "%s: %s%s", args->operand[0], strerror(errno),
				errno == ENOENT ? "; --wait mounts it empty until it is there"
						: "");
	code = resolve_mountpoint(args->operand[1], p);
	if (code != CMD_OK)
		return code;
	if (m->pick.index) {
		p->index = cmd_resolve(m->pick.index);
		if (!p->index)
			return cmd_fail(CMD_ENV, "index %s: %s", m->pick.index,
					strerror(errno));
	} else {
		p->cache = cmd_open_cache();
	}
	pick_keep(p->cache, &m->pick);
	p->layout_dir = load_config_dir();
	if (m->hf.assets) {
		p->hf_assets = realpath(m->hf.assets, NULL);
		if (!p->hf_assets)
			return cmd_fail(CMD_ENV, "--hf-assets %s: %s", m->hf.assets,
					strerror(errno));
	}
	code = hf_rules(m->hf.rules, &p->hf_rules);
	if (code == CMD_OK && !is_descriptor(p->mnt))
		code = check_mountpoint(args->operand[1] ? args->operand[1] : p->mnt, p->mnt,
					p->source, m->nonempty);
	if (code == CMD_OK && m->metrics_at)
		code = resolve_metrics(m->metrics_at, p);
	return code == CMD_OK && m->log_file ? resolve_log(m->log_file, p) : code;
}

static enum cmd_exit mount_it(struct mount_opts *m, const struct paths *p,
			      const struct dcp_log *log, struct progress *progress)
{
	struct dcpfs_opts *o = &m->o;
	enum dcpfs_stage stage = DCPFS_STAGE_SOURCE;
	struct dcp_err err = { 0 };
	int rc;

	o->source = p->source;
	o->mountpoint = p->mnt;
	o->ready = notify_ready;
	o->metrics_at = p->metrics_at;
	o->store.cache_dir = p->cache;
	o->store.index_file = p->index;
	o->store.cache_limit = DCP_MAX(m->pick.cache_limit, 1);
	o->store.no_map = m->io == IO_PREAD;
	o->store.progress = &progress->report;
	openlog("dcpfs", LOG_PID, LOG_DAEMON);
	o->store.log = o->log = log;
	o->log_to = p->log_file ? p->log_file : o->foreground || o->debug ? "stderr" : "syslog";
	o->foreground |= o->debug;
	o->layouts = m->layouts.v;
	o->nlayouts = m->layouts.n;
	o->layout_dir = p->layout_dir;
	o->hf_rules = p->hf_rules;
	o->hf_assets = p->hf_assets;
	o->hf_part = m->hf.part;
	o->hf_dtype = hf_dtype(&m->hf);
	rc = dcpfs_session_run(o, &stage, &err);
	progress_finish(progress);
	if (rc == 0)
		return CMD_OK;
	if (stage == DCPFS_STAGE_SOURCE) {
		enum cmd_exit code = cmd_fail(cmd_exit_of(rc), "%s", err.msg);

		pick_hint_mount(p->source);
		if (rc == -EINVAL && strstr(err.msg, "it is empty"))
			cmd_hint("of a run that has not begun: --wait mounts it empty, and "
				 "versions appear as they complete");
		return code;
	}
	cmd_fail(CMD_ENV, "%s", err.msg[0] ? err.msg : strerror(-rc));
	if (stage == DCPFS_STAGE_MOUNT)
		cmd_hint("the line above has the reason; \"dcpfs doctor\" says what to do");
	return CMD_ENV;
}

/* One index file cannot hold several versions. */
static enum cmd_exit check_index(const struct mount_opts *m, const char *source)
{
	struct dcp_scan scan;
	bool single;

	/* Errors of the source are printed when it is mounted. */
	if (!m->pick.index || dcp_scan(source, &scan, NULL) < 0)
		return CMD_OK;
	single = scan.single;
	dcp_scan_finish(&scan);
	return single ? CMD_OK : pick_one_index(source);
}

/* Print the mount point alone on stdout, for mnt=$(dcpfs mount SOURCE); the hint how to end the
 * mount goes to stderr. */
static void say_where(const struct paths *p)
{
	printf("%s\n", p->mnt);
	fflush(stdout);
	if (isatty(STDERR_FILENO))
		cmd_hint("end it with: dcpfs umount %s", p->mnt);
}

static enum cmd_exit run_mount(const void *opts_in, const struct opt_args *args)
{
	struct mount_opts m = *(const struct mount_opts *)opts_in;
	struct paths p = { 0 };
	struct progress progress;
	/* the file of the log is known only once the paths are, and takes the place of syslog */
	struct mount_log to = { NULL, true, m.log_json };
	struct dcp_log log = { DCP_LOG_INFO, log_line, &to };
	enum cmd_exit code;

	if (m.log_json)
		cmd_say_to(&log);
	if (m.o.passthrough_mib && m.o.no_open)
		code = cmd_fail(CMD_USAGE,
				"mount: --passthrough happens when a file is opened, --no-open "
				"skips that; leave one of them out");
	else
		code = resolve_paths(&m, args, &p);
	to.file = p.log_file;
	to.foreground = m.o.foreground || m.o.debug;
	if (code == CMD_OK)
		code = check_index(&m, p.source);
	if (code == CMD_OK) {
		progress_init(&progress, false);
		if (p.made && m.o.foreground)
			say_where(&p);
		code = mount_it(&m, &p, &log, &progress);
		if (p.made && code == CMD_OK && !m.o.foreground)
			say_where(&p);
	}
	if (p.made && p.mnt && (code != CMD_OK || m.o.foreground))
		rmdir(p.mnt);
	cmd_say_to(NULL);
	finish_paths(&p);
	return code;
}

const struct cmd cmd_mount = {
	.name = "mount",
	.what = "show checkpoints as directories of tensor files",
	.about = "Mount SOURCE at the empty directory MNT, read-only, and return when it "
		 "answers. Without MNT, make a directory and print its name.",
	.operands = operands,
	.opts = opts,
	.reports = true,
	.size = sizeof(struct mount_opts),
	.run = run_mount,
	.examples = { "dcpfs mount /data/run1 /mnt/run1" },
};

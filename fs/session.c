/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order matters. Fork first: threads, SQLite connections and mappings must not cross a
 * fork. Then open the source: until the mount answers, the child stays in the caller's process
 * group, so the user at the terminal sees the progress and the refusal, and can end it with
 * Ctrl-C. Then install the signal handlers, so that no mount is left behind; mount; serve. The
 * parent waits for the child's report through a pipe and then asks the mount once itself, so
 * that the mount answers when the command returns. At the end, unmount first: the watcher may
 * still be at work, and no program should wait in a mount that does not answer any more.
 */
#define FUSE_USE_VERSION 312
#include "fs/session.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_log.h>
#include <fuse_lowlevel.h>
#include <malloc.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/checkpoint/mounts.h"
#include "core/store/io/files.h"
#include "fs/file/file.h"
#include "fs/fs.h"
#include "fs/ops.h"
#include "fs/text/text.h"
#include "fs/versions/versions.h"

/* The child's report to the parent, sent once. */
struct word {
	int rc;
	enum dcpfs_stage stage;
	struct dcp_err err;
};

/* Each shard keeps a descriptor open, so raise the limit as far as allowed. */
static void raise_file_limit(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
		r.rlim_cur = r.rlim_max;
		setrlimit(RLIMIT_NOFILE, &r);
	}
}

/* Otherwise each of a few dozen threads keeps freed memory in its own heap. */
static void share_heap(void)
{
#ifdef M_ARENA_MAX
	mallopt(M_ARENA_MAX, 2);
#endif
}

/*
 * Arguments for libfuse. The source's name is escaped, since it may contain a comma.
 * default_permissions makes the kernel check modes for other users; without allow_other it is
 * left out, because the user who mounts may also read by an access control list or a group that
 * no mode shows.
 */
static int add_fuse_options(const struct dcpfs_opts *o, struct fuse_args *args)
{
	dcp_auto_free char *fsname = NULL, *options = NULL, *fixed = NULL;
	int bad;

	if (asprintf(&fsname, "fsname=%s", o->fsname ? o->fsname : o->source) < 0 ||
	    asprintf(&fixed, "ro,nosuid,nodev,subtype=dcpfs,max_read=%u%s", DCPFS_MAX_READ,
		     o->allow_other ? ",allow_other,default_permissions" : "") < 0)
		return -ENOMEM;
	bad = fuse_opt_add_opt(&options, fixed) || fuse_opt_add_opt_escaped(&options, fsname) ||
	      fuse_opt_add_arg(args, "dcpfs") || fuse_opt_add_arg(args, "-o") ||
	      fuse_opt_add_arg(args, options) || (o->debug && fuse_opt_add_arg(args, "-d"));
	return bad ? -ENOMEM : 0;
}

/* Kernel read-ahead of the mount: 128 KiB by default, which starves sequential readers. */
static void set_readahead(const struct dcpfs_opts *o)
{
	dcp_auto_file FILE *f = NULL;
	struct dcp_mount m;
	char path[64];

	if (!o->readahead_kib || dcp_mounts_find(o->mountpoint, &m) <= 0)
		return;
	snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", major(m.dev),
		 minor(m.dev));
	f = fopen(path, "we");
	if (f) /* only root may write it; otherwise the kernel's default stays */
		fprintf(f, "%u", o->readahead_kib);
}

/* ---- messages ---- */

static const struct dcp_log *libfuse_log; /* libfuse passes no context */

static void log_libfuse(enum fuse_log_level level, const char *fmt, va_list ap)
	DCP_PRINTF(2, 0);
static void log_libfuse(enum fuse_log_level level, const char *fmt, va_list ap)
{
	char line[512];

	vsnprintf(line, sizeof(line), fmt, ap);
	line[strcspn(line, "\n")] = '\0';
	if (*line)
		dcp_log(libfuse_log,
			level <= FUSE_LOG_ERR       ? DCP_LOG_ERROR
			: level <= FUSE_LOG_WARNING ? DCP_LOG_WARN
						    : DCP_LOG_INFO,
			"%s", line);
}

/* @rc: as returned by run_loop(). */
static void log_end(const struct dcpfs *fs, int rc)
{
	if (rc < 0)
		dcp_log(fs->opts.log, DCP_LOG_ERROR, "%s: the mount ends, as requests fail: %s",
			fs->opts.mountpoint, strerror(-rc));
	else
		dcp_log(fs->opts.log, DCP_LOG_INFO, "%s: the mount ends, %s%s",
			fs->opts.mountpoint, rc ? "by signal: " : "unmounted",
			rc ? strsignal(rc) : "");
}

/* ---- passthrough: libfuse 3.14 cannot ask for it, so the INIT reply is completed on its way
 * ---- */

static ssize_t plain_read(int fd, void *buf, size_t n, void *userdata)
{
	return read(fd, buf, n);
}

/* The first reply of a session answers INIT: header of 16 bytes, then 64 of struct
 * fuse_init_out. */
static ssize_t patched_writev(int fd, struct iovec *iov, int n, void *userdata)
{
	enum { HEADER = 16, INIT_OUT = 64, FLAGS = 12, FLAGS2 = 32, STACK_DEPTH = 36 };
	struct dcpfs_server *server = userdata;
	uint32_t flags;
	char *init;

	if (DCP_UNLIKELY(!__atomic_load_n(&server->greeted, __ATOMIC_RELAXED))) {
		__atomic_store_n(&server->greeted, true, __ATOMIC_RELAXED);
		if (n == 2 && iov[0].iov_len == HEADER && iov[1].iov_len == INIT_OUT) {
			init = iov[1].iov_base;
			flags = dcp_load_le32(init + FLAGS) | 1u << 30; /* FUSE_INIT_EXT */
			dcp_store_le32(init + FLAGS, flags);
			flags = dcp_load_le32(init + FLAGS2) |
				1u << (37 - 32); /* FUSE_PASSTHROUGH */
			dcp_store_le32(init + FLAGS2, flags);
			dcp_store_le32(init + STACK_DEPTH, 1);
			dcpfs_hot_start(server->fs->hot, fd);
		}
	}
	return writev(fd, iov, n);
}

static const struct fuse_custom_io patched_io = { .read = plain_read,
						  .writev = patched_writev };

/* ---- functions of the session for the rest of fs ---- */

static void make_metrics(void *ctx, struct dcp_buf *out)
{
	dcpfs_text_metrics(ctx, out);
}

/* If metrics are not served by HTTP, *out stays NULL. */
static int open_metrics(const struct dcpfs *fs, struct dcpfs_listen **out, struct dcp_err *err)
{
	dcp_auto_free char *at = NULL;
	int rc;

	if (!fs->opts.metrics_at)
		return 0;
	rc = dcpfs_listen_open(fs->opts.metrics_at, out, &at, err);
	if (rc == 0)
		dcp_log(fs->opts.log, DCP_LOG_INFO, "%s: metrics at %s", fs->opts.mountpoint,
			at);
	return rc;
}

struct link {
	struct fuse_session *se;
	int dropping; /* atomic: number of threads inside link_drop() */
	bool closing; /* atomic: the descriptor is about to be closed and may be reused */
};

static void link_drop(void *ctx, uint64_t ino)
{
	struct link *l = ctx;

	__atomic_add_fetch(&l->dropping, 1, __ATOMIC_SEQ_CST);
	if (!__atomic_load_n(&l->closing, __ATOMIC_SEQ_CST))
		fuse_lowlevel_notify_inval_inode(l->se, ino, 0, 0);
	__atomic_sub_fetch(&l->dropping, 1, __ATOMIC_SEQ_CST);
}

static bool link_ended(void *ctx)
{
	const struct link *l = ctx;

	return fuse_session_exited(l->se);
}

/* Wait up to 100 ms for threads in link_drop(). A thread that stays longer waits for a page inside
 * the kernel, which then holds the descriptor. */
static void link_close(struct link *l)
{
	__atomic_store_n(&l->closing, true, __ATOMIC_SEQ_CST);
	for (int i = 0; i < 20 && __atomic_load_n(&l->dropping, __ATOMIC_SEQ_CST); i++)
		nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
}

/* Many, so that requests are answered while others wait for an index that is being built. */
enum { WORKERS = 64, IDLE_WORKERS = 10, LAST_WORK_MS = 500 };

/* A read may convert in stack buffers of some hundred kilobytes. The stack of the first thread
 * grows on demand, which faults when address space has become short, so let it grow now. */
static void grow_stack(void)
{
	volatile char room[512 << 10];

	room[0] = 0;
	(void)room[0];
}

/* Serve requests until the mount ends: 0, the number of the signal that asked for it, or a negative
 * errno. */
static int run_loop(struct fuse_session *se, unsigned threads)
{
	struct fuse_loop_config *config;
	int rc;

	if (threads == 1) {
		grow_stack();
		return fuse_session_loop(se);
	}
	config = fuse_loop_cfg_create();
	if (!config)
		return -ENOMEM;
	fuse_loop_cfg_set_max_threads(config, threads ? threads : WORKERS);
	fuse_loop_cfg_set_idle_threads(config, threads ? threads : IDLE_WORKERS);
	rc = fuse_session_loop_mt(se, config);
	fuse_loop_cfg_destroy(config);
	return rc;
}

/* Detach from the parent's terminal, session and working directory. */
static void detach_process(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	for (int fd = 0; fd <= 2 && null >= 0; fd++)
		dup2(null, fd);
	if (null > 2)
		close(null);
	setsid();
	if (chdir("/") < 0) /* the parent's directory stays busy, which is no reason to end */
		return;
}

/* Report to the parent. -EPIPE: the parent is gone, so the mount is not wanted any more. */
static int report_to_parent(int pipe_fd, const struct word *w)
{
	if (pipe_fd < 0)
		return 0;
	if (w->rc == 0)
		detach_process();
	if (write(pipe_fd, w, sizeof(*w)) != sizeof(*w))
		return -EPIPE;
	close(pipe_fd);
	return 0;
}

/* The mount that SIGHUP is about; set while requests are served. */
static struct dcpfs *hung_up;

static void look_again(int number)
{
	int saved = errno;

	dcpfs_versions_suspect(hung_up);
	errno = saved;
}

/*
 * SIGHUP of a process that has a terminal means that the terminal is gone, which libfuse takes as
 * the end. For a process without a terminal (in the background, or started by systemd) it means, as
 * for other services: look at the source again.
 */
static void take_hangups(struct dcpfs *fs)
{
	struct sigaction look = { .sa_handler = look_again, .sa_flags = SA_RESTART };
	dcp_auto_fd int terminal = open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);

	if (terminal >= 0)
		return;
	hung_up = fs;
	sigaction(SIGHUP, &look, NULL);
}

/* Half of the processors, so that the other requests have the rest. */
static unsigned count_late(void)
{
	long half = sysconf(_SC_NPROCESSORS_ONLN) / 2;

	return (unsigned)DCP_MIN(DCP_MAX(half, 1L), (long)DCPFS_LATE_MOST);
}

/*
 * A hanging thread may still answer through the descriptor, so its number must not be reused by
 * another file. Therefore a child process, which has no such thread, unmounts and closes its own
 * copy.
 */
static void unmount_in_child(struct fuse_session *se)
{
	pid_t child = fork();

	if (child <= 0)
		fuse_session_unmount(se);
	if (child == 0)
		_exit(0);
	if (child > 0)
		waitpid(child, NULL, 0);
}

/* Helper of serve_mount(): mount, serve, unmount. */
static int serve_mounted(struct link *link, struct dcpfs_server *server, int pipe_fd,
			 struct word *w)
{
	struct dcpfs *fs = server->fs;
	struct fuse_session *se = link->se;
	struct dcpfs_listen *metrics = NULL;
	struct dcpfs_watch *watch = NULL;
	bool ended;
	int rc = open_metrics(fs, &metrics, &w->err);

	if (rc < 0)
		return rc;
	if (fuse_session_mount(se, fs->opts.mountpoint) < 0)
		rc = dcp_fail(&w->err, -ENODEV, "cannot mount on %s", fs->opts.mountpoint);
	if (rc < 0) {
		dcpfs_listen_close(metrics);
		return rc;
	}
	if (fs->hot && fuse_session_custom_io(se, &patched_io, fuse_session_fd(se)) < 0)
		dcp_log(fs->opts.log, DCP_LOG_WARN,
			"no passthrough: this libfuse takes no custom i/o");
	set_readahead(&fs->opts);
	rc = dcpfs_watch_start(fs, &watch);
	if (rc == 0 && metrics)
		rc = dcpfs_listen_start(metrics, make_metrics, fs);
	if (rc == 0)
		rc = dcpfs_late_start(count_late(), &server->late);
	if (rc < 0) {
		rc = dcp_fail(&w->err, rc, "cannot start a thread: %s", strerror(-rc));
	} else {
		rc = report_to_parent(pipe_fd, w);
		w->stage = DCPFS_STAGE_SERVE;
	}
	if (rc == 0) {
		dcp_log(fs->opts.log, DCP_LOG_INFO,
			"%s: mounted at %s by process %d (dcpfs %s)", fs->opts.source,
			fs->opts.mountpoint, (int)getpid(), DCP_RELEASE);
		take_hangups(fs);
		if (fs->opts.ready)
			fs->opts.ready(fs->opts.mountpoint);
		rc = run_loop(se, fs->opts.threads);
		if (hung_up)
			signal(SIGHUP, SIG_IGN);
		log_end(fs, rc);
		rc = DCP_MIN(rc, 0);
	}
	if (fs->hot)
		dcpfs_hot_start(fs->hot, -1);
	ended = dcpfs_late_stop(server->late, LAST_WORK_MS);
	link_close(link);
	if (!ended)
		unmount_in_child(se);
	else
		fuse_session_unmount(se);
	dcpfs_listen_close(metrics);
	ended &= dcpfs_opener_stop(fs, LAST_WORK_MS);
	dcpfs_watch_stop(watch);
	if (!ended)
		_exit(rc < 0); /* no cleanup: a detached thread uses the memory */
	return rc;
}

/* The whole life of the mount in this process. */
static void serve_mount(const struct dcpfs_opts *opts, int pipe_fd, struct word *w)
{
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	struct dcpfs_server server = { 0 };
	struct link link = { 0 };
	struct dcpfs_kernel kernel = { link_drop, link_ended, &link };
	struct dcpfs_opts ours = *opts;

	w->stage = DCPFS_STAGE_MOUNT;
	ours.kernel = &kernel;
	server.slabs = dcpfs_slabs_create(DCPFS_MAX_READ);
	w->rc = server.slabs ? add_fuse_options(opts, &args) : -ENOMEM;
	if (w->rc < 0)
		goto out;
	link.se = fuse_session_new(&args, &dcpfs_ops, dcpfs_ops_size, &server);
	if (!link.se) {
		w->rc = dcp_fail(&w->err, -EINVAL, "cannot start a session");
		goto out;
	}
	w->stage = DCPFS_STAGE_SOURCE;
	w->rc = dcpfs_fault_install();
	if (w->rc == 0)
		w->rc = dcpfs_create(&ours, &server.fs, &w->err);
	if (w->rc < 0)
		goto out;
	libfuse_log = server.fs->opts.log;
	if (!opts->debug)
		fuse_set_log_func(log_libfuse);
	w->stage = DCPFS_STAGE_MOUNT;
	w->rc = fuse_set_signal_handlers(link.se) < 0
			? dcp_fail(&w->err, -EINVAL, "cannot install signal handlers")
			: serve_mounted(&link, &server, pipe_fd, w);
	fuse_remove_signal_handlers(link.se);
out:
	if (w->rc < 0 && w->stage != DCPFS_STAGE_SERVE)
		report_to_parent(pipe_fd, w);
	libfuse_log = opts->log; /* the log of the mount is freed with the mount */
	dcpfs_destroy(server.fs);
	if (link.se)
		fuse_session_destroy(link.se);
	fuse_opt_free_args(&args);
	dcpfs_slabs_destroy(server.slabs);
}

/* How the serving process ended: "was killed by signal 9 (Killed)". */
static const char *describe_ending(pid_t child, char *out, size_t size)
{
	int status = 0;

	waitpid(child, &status, 0);
	if (WIFSIGNALED(status))
		snprintf(out, size, "was killed by signal %d (%s)", WTERMSIG(status),
			 strsignal(WTERMSIG(status)));
	else
		snprintf(out, size, "ended with exit code %d", WEXITSTATUS(status));
	return out;
}

/* Wait for the child's report, then ask the mount itself. If the mount does not answer, end the
 * child. */
static int await_report(int fd, pid_t child, const struct dcpfs_opts *opts, struct word *w)
{
	struct stat st;
	char how[80];
	ssize_t n;

	do
		n = read(fd, w, sizeof(*w));
	while (n < 0 && errno == EINTR);
	if (n != sizeof(*w))
		return dcp_fail(&w->err, -EIO,
				"the serving process %s before the mount answered",
				describe_ending(child, how, sizeof(how)));
	if (w->rc == 0 && (stat(opts->mountpoint, &st) == 0 || errno == EACCES))
		return 0;
	if (w->rc == 0) {
		w->rc = dcp_fail(&w->err, -errno, "%s: %m", opts->mountpoint);
		kill(child, SIGTERM);
	}
	waitpid(child, NULL, 0);
	return w->rc;
}

int dcpfs_session_run(const struct dcpfs_opts *opts, enum dcpfs_stage *stage,
		      struct dcp_err *err)
{
	struct word w = { .stage = DCPFS_STAGE_MOUNT };
	int fds[2] = { -1, -1 };
	pid_t child = 0;

	raise_file_limit();
	share_heap();
	if (!opts->foreground) {
		if (pipe2(fds, O_CLOEXEC) < 0 || (child = fork()) < 0)
			return dcp_fail(err, -errno, "cannot start the serving process: %m");
		close(fds[child ? 1 : 0]);
	}
	if (child) {
		w.rc = await_report(fds[0], child, opts, &w);
		close(fds[0]);
	} else {
		serve_mount(opts, fds[1], &w);
		if (!opts->foreground)
			_exit(w.rc < 0);
	}
	*stage = w.stage;
	dcp_err_say(&w.err, w.rc);
	if (err)
		*err = w.err;
	return w.rc;
}

const char *dcpfs_fuse_version(void)
{
	return fuse_pkgversion();
}

/* ---- fault ---- */

/* A jump out of the handler does not restore the signal mask as a return would, so restore it
 * here. */
static void on_sigbus(int sig, siginfo_t *info, void *context)
{
	const ucontext_t *before = context;

	pthread_sigmask(SIG_SETMASK, &before->uc_sigmask, NULL);
	dcp_guard_fault();
	signal(sig, SIG_DFL); /* the access faults again, which ends the process */
}

int dcpfs_fault_install(void)
{
	struct sigaction sa = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO };

	if (sigaction(SIGBUS, &sa, NULL) < 0)
		return -errno;
	dcp_guard_enable();
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/cmd.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "tools/load/error.h"

static const struct dcp_log *taker;

void cmd_say_to(const struct dcp_log *log)
{
	taker = log;
}

__attribute__((format(printf, 3, 0))) static void
say(enum dcp_log_level level, const char *lead, const char *fmt, va_list ap)
{
	static const int priorities[] = { LOG_ERR, LOG_WARNING, LOG_INFO };
	dcp_auto_buf struct dcp_buf safe = DCP_BUF_INIT;
	char text[1024], level_text[8] = "";

	vsnprintf(text, sizeof(text), fmt, ap);
	dcp_buf_shown(&safe, text, strlen(text), "");
	if (dcp_buf_error(&safe)) /* a message about a lack of memory must need none */
		dcp_printable(text, sizeof(text));
	if (taker) {
		dcp_log(taker, level, "%s", dcp_buf_error(&safe) || !safe.p ? text : safe.p);
		return;
	}
	if (notify_is_journal()) /* one write: other threads cannot part level and line */
		snprintf(level_text, sizeof(level_text), "<%d>", priorities[level]);
	fprintf(stderr, "%s%s%s\n", level_text, lead,
		dcp_buf_error(&safe) || !safe.p ? text : safe.p);
}

static bool quiet, no_report;

void cmd_be_quiet(bool report)
{
	quiet = true;
	no_report = report;
}

bool cmd_is_quiet(void)
{
	return quiet;
}

bool cmd_hides_report(void)
{
	return no_report;
}

enum cmd_exit cmd_fail(enum cmd_exit code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(DCP_LOG_ERROR, "dcpfs: ", fmt, ap);
	va_end(ap);
	return code;
}

void cmd_warn(const char *fmt, ...)
{
	va_list ap;

	if (quiet)
		return;
	va_start(ap, fmt);
	say(DCP_LOG_WARN, "dcpfs: ", fmt, ap);
	va_end(ap);
}

void cmd_hint(const char *fmt, ...)
{
	va_list ap;

	if (quiet)
		return;
	va_start(ap, fmt);
	say(DCP_LOG_INFO, "  ", fmt, ap);
	va_end(ap);
}

/* ---- stopped ---- */

static struct {
	char part[2 * PATH_MAX], left[2 * PATH_MAX], nothing[64];
	volatile int signal;
} stop;

static void on_stop(int sig)
{
	const char *line = access(stop.part, F_OK) == 0 ? stop.left : stop.nothing;
	ssize_t n = write(STDERR_FILENO, line, strlen(line));

	(void)n;
	raise(sig); /* its action is the default one again */
}

/* Signals that are ignored stay so, as for a command in the background. */
static void set_action(const struct sigaction *how)
{
	static const int signals[] = { SIGINT, SIGTERM };
	struct sigaction was;

	for (size_t i = 0; i < DCP_LEN(signals); i++)
		if (sigaction(signals[i], NULL, &was) == 0 && was.sa_handler != SIG_IGN)
			sigaction(signals[i], how, NULL);
}

void cmd_on_stop(const char *verb, const char *part, const char *then, bool leads)
{
	const struct sigaction how = { .sa_handler = part ? on_stop : SIG_DFL,
				       .sa_flags = (int)SA_RESETHAND };
	const char *over = isatty(STDERR_FILENO) ? "\r\033[K" : ""; /* the bar */
	dcp_auto_buf struct dcp_buf safe = DCP_BUF_INIT;

	if (part) {
		snprintf(stop.part, sizeof(stop.part), "%s", part);
		dcp_buf_shown(&safe, part, strlen(part), "");
		snprintf(stop.left, sizeof(stop.left),
			 "%sdcpfs: %s: stopped: %.4000s is left; %s\n", over, verb,
			 safe.p ? safe.p : "?", then);
		if (leads)
			snprintf(stop.nothing, sizeof(stop.nothing),
				 "%sdcpfs: %s: stopped: nothing is left\n", over, verb);
	}
	set_action(&how);
}

static void note_stop(int sig)
{
	ssize_t n = write(STDERR_FILENO, stop.left, strlen(stop.left));

	(void)n;
	stop.signal = sig;
}

const volatile int *cmd_on_stop_undo(const char *verb)
{
	const struct sigaction how = { .sa_handler = note_stop, .sa_flags = (int)SA_RESETHAND };

	snprintf(stop.left, sizeof(stop.left),
		 "\ndcpfs: %s: stopping: uploads that are not complete are taken back\n", verb);
	set_action(&how);
	return &stop.signal;
}

void cmd_stop(void)
{
	if (stop.signal)
		raise(stop.signal); /* its action is the default one again */
}

/* An error of the machine is CMD_ENV, an error in the bytes of a checkpoint CMD_BAD. */
enum cmd_exit cmd_exit_of(int rc)
{
	switch (-rc) {
	case 0:
		return CMD_OK;
	case ENOKEY: /* --hf-from, --hf-rules */
		return CMD_NO;
	case EEXIST: /* --index names a file that is no index */
		return CMD_USAGE;
	case EINVAL:
	case ENOTDIR: /* a SOURCE that is a file */
	case EBADMSG:
	case ENOTSUP:
	case E2BIG:
	case ESTALE:
	case EXDEV:
	case ELOOP: /* links in a SOURCE */
	case EIO:
	case EILSEQ:
	case ENODATA:
	case ERANGE:
	case EOVERFLOW:
		return CMD_BAD;
	default:
		return CMD_ENV;
	}
}

static void emit_line(void *ctx, enum dcp_log_level level, const char *line)
{
	if (level == DCP_LOG_ERROR)
		cmd_fail(CMD_ENV, "%s", line);
	else
		cmd_warn("%s", line);
}

const struct dcp_log cmd_log = { DCP_LOG_WARN, emit_line, NULL };

char *cmd_open_cache(void)
{
	char *dir = load_cache_dir();
	int rc = dir ? load_cache_make(dir) : 0;

	if (rc == 0)
		return dir;
	cmd_warn("%s: %s; indexes stay in memory (DCPFS_CACHE=DIR names another)", dir,
		 strerror(-rc));
	free(dir);
	return NULL;
}

char *cmd_resolve(const char *path)
{
	dcp_auto_free char *copy = strdup(path), *parent = NULL;
	char *last, *whole;
	size_t n;

	if (!copy)
		return NULL;
	n = strlen(copy);
	while (n > 1 && copy[n - 1] == '/')
		copy[--n] = '\0';
	last = strrchr(copy, '/');
	last = last ? last + 1 : copy;
	if (!*last || strcmp(last, ".") == 0 || strcmp(last, "..") == 0)
		return realpath(copy, NULL);
	/* "a/b" is looked up as "a", "/b" as "/", "b" as "." */
	if (last == copy) {
		parent = realpath(".", NULL);
	} else {
		char first = *last;

		*last = '\0';
		parent = realpath(copy, NULL);
		*last = first;
	}
	if (!parent)
		return NULL;
	if (asprintf(&whole, "%s/%s", strcmp(parent, "/") == 0 ? "" : parent, last) < 0)
		return NULL;
	return whole;
}

enum cmd_exit cmd_find_mount(const char *given, char **path, struct dcp_mount *m)
{
	int rc;

	*path = cmd_resolve(given);
	if (!*path)
		return cmd_fail(CMD_ENV, "%s: %s", given, strerror(errno));
	rc = dcp_mounts_find(*path, m);
	if (rc == 0) {
		/* Follow a link to a mount point, as mounting does. */
		char *real = realpath(*path, NULL);

		if (real) {
			free(*path);
			*path = real;
			rc = dcp_mounts_find(real, m);
		}
	}
	if (rc < 0)
		return cmd_fail(CMD_ENV, "/proc/self/mountinfo: %s", strerror(-rc));
	if (rc == 0 && access(*path, F_OK) < 0)
		return cmd_fail(CMD_ENV, "%s: %s", *path, strerror(errno));
	if (rc == 0)
		return cmd_fail(CMD_USAGE,
				"%s is not a mount point; \"findmnt -t %s\" lists those "
				"of dcpfs",
				*path, DCPFS_FSTYPE);
	if (strcmp(m->fstype, DCPFS_FSTYPE) != 0)
		return cmd_fail(CMD_USAGE, "%s is a mount of type %s, not of dcpfs", *path,
				m->fstype);
	return CMD_OK;
}

bool cmd_is_within(const char *path, const char *dir)
{
	size_t n = strlen(dir);

	return strncmp(path, dir, n) == 0 && (path[n] == '/' || path[n] == '\0' || n == 1);
}

void notify_ready(const char *mnt)
{
	const char *name = getenv("NOTIFY_SOCKET");
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	size_t n = name ? strlen(name) : 0;
	dcp_auto_fd int fd = -1;
	char text[512];
	int len;

	if (!n || n >= sizeof(to.sun_path) || (name[0] != '/' && name[0] != '@'))
		return;
	memcpy(to.sun_path, name, n);
	if (name[0] == '@') /* of the abstract name space */
		to.sun_path[0] = '\0';
	len = snprintf(text, sizeof(text), "READY=1\nMAINPID=%d\nSTATUS=mounted at %.400s",
		       (int)getpid(), mnt);
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && sendto(fd, text, (size_t)len, MSG_NOSIGNAL, (struct sockaddr *)&to,
			      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) < 0)
		return; /* the manager's time for a start runs out, and it says so */
}

bool notify_is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	char own[64];
	struct stat st;

	if (!stream || fstat(STDERR_FILENO, &st) < 0)
		return false;
	snprintf(own, sizeof(own), "%llu:%llu", (unsigned long long)st.st_dev,
		 (unsigned long long)st.st_ino);
	return strcmp(own, stream) == 0;
}

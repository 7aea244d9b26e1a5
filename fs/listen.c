/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/session.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/system.h"
#include "core/base/text.h"

enum {
	CLIENTS = 8,        /* at a time */
	QUEUE = 16,         /* that wait */
	REQUEST = 4096,     /* bytes of a request at most */
	PATIENCE_MS = 5000, /* for a request and its answer */
	PAUSE_MS = 200,     /* where there is no descriptor for the next client */
};

struct client {
	int fd; /* -1: none */
	int64_t until;
	size_t n, sent;
	char request[REQUEST + 1];
	struct dcp_buf answer; /* empty: the request is not complete */
};

union address {
	struct sockaddr any;
	struct sockaddr_un local;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

struct dcpfs_listen {
	int fd, stop;
	char *path; /* of the socket, to be removed; NULL: a port */
	struct stat made;
	bool running;
	pthread_t thread;
	dcpfs_listen_fn make;
	void *ctx;
	struct client clients[CLIENTS];
};

/* ---- where ---- */

static int read_address(const char *where, union address *a, socklen_t *n, struct dcp_err *err)
{
	const char *port = NULL;
	uint64_t number = 0;

	*a = (union address){ 0 };
	if (strncmp(where, "unix:", 5) == 0) {
		where += 5;
		if (*where != '/')
			return dcp_fail(err, -EINVAL,
					"unix:%s: the path of a socket begins with /", where);
		if (strlen(where) >= sizeof(a->local.sun_path))
			return dcp_fail(
				err, -EINVAL,
				"unix:%s: the path of a socket has at most %zu bytes, this "
				"has %zu",
				where, sizeof(a->local.sun_path) - 1, strlen(where));
		a->local.sun_family = AF_UNIX;
		strcpy(a->local.sun_path, where);
		*n = (socklen_t)sizeof(a->local);
		return 0;
	}
	if (strncmp(where, "127.0.0.1:", 10) == 0)
		port = where + 10;
	else if (strncmp(where, "[::1]:", 6) == 0)
		port = where + 6;
	if (!port || !dcp_take_number(&port, NULL, 5, &number) || *port || number > 65535)
		return dcp_fail(
			err, -EINVAL,
			"\"%s\" is not unix:/PATH, 127.0.0.1:PORT or [::1]:PORT: metrics "
			"are shown on this machine alone",
			where);
	if (*where == '[') {
		a->v6.sin6_family = AF_INET6;
		a->v6.sin6_addr = in6addr_loopback;
		a->v6.sin6_port = htons((uint16_t)number);
		*n = (socklen_t)sizeof(a->v6);
	} else {
		a->v4.sin_family = AF_INET;
		a->v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		a->v4.sin_port = htons((uint16_t)number);
		*n = (socklen_t)sizeof(a->v4);
	}
	return 0;
}

int dcpfs_listen_check(const char *where, struct dcp_err *err)
{
	union address a;
	socklen_t n;

	return read_address(where, &a, &n, err);
}

/* Is there a socket at this path that nobody listens on? Its process was killed. */
static bool is_left_over(const union address *a, socklen_t n)
{
	dcp_auto_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct stat st;

	return fd >= 0 && lstat(a->local.sun_path, &st) == 0 && S_ISSOCK(st.st_mode) &&
	       connect(fd, &a->any, n) < 0 && errno == ECONNREFUSED;
}

/* The socket file gets the mode of the descriptor, so no other user can connect even for a
 * moment. */
static int bind_to(int fd, const union address *a, socklen_t n)
{
	bool local = a->any.sa_family == AF_UNIX;

	if (local && fchmod(fd, 0600) < 0)
		return -errno;
	if (!local)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
	if (bind(fd, &a->any, n) == 0)
		return 0;
	if (errno != EADDRINUSE || !local)
		return -errno;
	if (!is_left_over(a, n) || unlink(a->local.sun_path) < 0)
		return -EADDRINUSE;
	return bind(fd, &a->any, n) < 0 ? -errno : 0;
}

/* "127.0.0.1:9100", with the port that the kernel chose. */
static char *spell_address(int fd, const char *where)
{
	union address a = { 0 };
	socklen_t n = sizeof(a);
	char *at;

	if (strncmp(where, "unix:", 5) == 0 || getsockname(fd, &a.any, &n) < 0)
		return strdup(where);
	/* IPv4 and IPv6 addresses have the port at the same place. */
	if (asprintf(&at, "%s:%u", *where == '[' ? "[::1]" : "127.0.0.1",
		     (unsigned)ntohs(a.v4.sin_port)) < 0)
		return NULL;
	return at;
}

int dcpfs_listen_open(const char *where, struct dcpfs_listen **out, char **at,
		      struct dcp_err *err)
{
	struct dcpfs_listen *l;
	union address a;
	socklen_t n;
	int rc = read_address(where, &a, &n, err);

	if (rc < 0)
		return rc;
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	for (size_t i = 0; i < CLIENTS; i++)
		l->clients[i].fd = -1;
	l->stop = eventfd(0, EFD_CLOEXEC);
	l->fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	rc = l->fd < 0 || l->stop < 0 ? -errno : bind_to(l->fd, &a, n);
	if (rc == 0 && a.any.sa_family == AF_UNIX) {
		l->path = strdup(a.local.sun_path);
		rc = l->path && lstat(l->path, &l->made) == 0 ? 0 : -ENOMEM;
	}
	if (rc == 0 && listen(l->fd, QUEUE) < 0)
		rc = -errno;
	*at = rc == 0 ? spell_address(l->fd, where) : NULL;
	if (rc == 0 && !*at)
		rc = -ENOMEM;
	if (rc < 0) {
		dcp_fail(err, rc, "metrics at %s: %s", where, strerror(-rc));
		dcpfs_listen_close(l);
		return rc;
	}
	*out = l;
	return 0;
}

/* ---- answers ---- */

static void put_answer(struct dcp_buf *out, const char *status, const char *type,
		       const struct dcp_buf *body, bool head)
{
	dcp_buf_printf(out,
		       "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
		       "Cache-Control: no-store\r\nConnection: close\r\n\r\n",
		       status, type, body->n);
	if (!head)
		dcp_buf_add(out, body->p, body->n);
}

static void refuse_request(struct dcp_buf *out, const char *status)
{
	dcp_auto_buf struct dcp_buf body = DCP_BUF_INIT;

	dcp_buf_printf(&body, "%s; GET /metrics has the metrics\n", status);
	put_answer(out, status, "text/plain; charset=utf-8", &body, false);
}

/* The request is complete, or too long. Only its first line is read. */
static void answer_request(struct dcpfs_listen *l, struct client *c, bool whole)
{
	dcp_auto_buf struct dcp_buf body = DCP_BUF_INIT;
	bool head = strncmp(c->request, "HEAD ", 5) == 0;
	const char *target = strchr(c->request, ' ');
	size_t line = strcspn(c->request, "\r\n"), n;

	if (!whole) {
		refuse_request(&c->answer, "431 Request Header Fields Too Large");
		return;
	}
	if (!target || (size_t)(target - c->request) > line || target[1] != '/' ||
	    !memmem(target, line - (size_t)(target - c->request), " HTTP/1.", 8)) {
		refuse_request(&c->answer, "400 Bad Request");
		return;
	}
	n = strcspn(++target, " ?");
	if (!head && strncmp(c->request, "GET ", 4) != 0) {
		refuse_request(&c->answer, "405 Method Not Allowed");
	} else if (!(n == 1 || (n == 8 && strncmp(target, "/metrics", 8) == 0))) {
		refuse_request(&c->answer, "404 Not Found");
	} else {
		l->make(l->ctx, &body);
		put_answer(&c->answer, "200 OK",
			   "application/openmetrics-text; version=1.0.0; charset=utf-8", &body,
			   head);
	}
}

/* ---- clients ---- */

static void end_client(struct client *c)
{
	dcp_close_fd(&c->fd);
	dcp_buf_finish(&c->answer);
	c->n = c->sent = 0;
}

/* True: there is more to do. */
static bool serve_client(struct dcpfs_listen *l, struct client *c)
{
	ssize_t n;

	if (!c->answer.n) {
		n = recv(c->fd, c->request + c->n, REQUEST - c->n, MSG_DONTWAIT);
		if (n <= 0)
			return n < 0 && (errno == EAGAIN || errno == EINTR);
		c->n += (size_t)n;
		c->request[c->n] = '\0';
		if (memmem(c->request, c->n, "\r\n\r\n", 4) ||
		    memmem(c->request, c->n, "\n\n", 2))
			answer_request(l, c, true);
		else if (c->n == REQUEST)
			answer_request(l, c, false);
		else
			return true;
		if (dcp_buf_error(&c->answer))
			return false;
	}
	n = send(c->fd, c->answer.p + c->sent, c->answer.n - c->sent,
		 MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	c->sent += (size_t)n;
	return c->sent < c->answer.n;
}

static struct client *place_for_one(struct dcpfs_listen *l)
{
	for (size_t i = 0; i < CLIENTS; i++)
		if (l->clients[i].fd < 0)
			return &l->clients[i];
	return NULL;
}

/* False: no client waits, or there is no descriptor for it. */
static bool take_client(struct dcpfs_listen *l)
{
	struct client *c = place_for_one(l);
	int fd = c ? accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;

	if (fd < 0)
		return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
	c->fd = fd;
	c->until = dcp_now_ms() + PATIENCE_MS;
	return true;
}

static void *run_listener(void *listener)
{
	struct dcpfs_listen *l = listener;
	struct pollfd p[CLIENTS + 2];
	int64_t again = 0; /* no client is taken before */

	for (;;) {
		int64_t now = dcp_now_ms(), until = INT64_MAX;

		p[0] = (struct pollfd){ .fd = l->stop, .events = POLLIN };
		p[1] = (struct pollfd){ .fd = place_for_one(l) && now >= again ? l->fd : -1,
					.events = POLLIN };
		if (now < again)
			until = again;
		for (size_t i = 0; i < CLIENTS; i++) {
			struct client *c = &l->clients[i];

			p[i + 2] = (struct pollfd){ .fd = c->fd,
						    .events = c->answer.n ? POLLOUT : POLLIN };
			if (c->fd >= 0)
				until = DCP_MIN(until, c->until);
		}
		poll(p, DCP_LEN(p),
		     until == INT64_MAX ? -1 : (int)DCP_MAX(until - now, (int64_t)0));
		if (p[0].revents)
			return NULL;
		now = dcp_now_ms();
		for (size_t i = 0; i < CLIENTS; i++) {
			struct client *c = &l->clients[i];

			if (c->fd >= 0 &&
			    ((p[i + 2].revents && !serve_client(l, c)) || now >= c->until))
				end_client(c);
		}
		if (p[1].revents && !take_client(l))
			again = now + PAUSE_MS;
	}
}

int dcpfs_listen_start(struct dcpfs_listen *l, dcpfs_listen_fn make, void *ctx)
{
	sigset_t all, before;
	int rc;

	l->make = make;
	l->ctx = ctx;
	sigfillset(&all);
	sigdelset(&all, SIGBUS); /* raised by the thread itself */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = -pthread_create(&l->thread, NULL, run_listener, l);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	l->running = rc == 0;
	return rc;
}

void dcpfs_listen_close(struct dcpfs_listen *l)
{
	struct stat st;

	if (!l)
		return;
	if (l->running && eventfd_write(l->stop, 1) == 0)
		pthread_join(l->thread, NULL);
	for (size_t i = 0; i < CLIENTS; i++)
		end_client(&l->clients[i]);
	/* Another mount may have replaced the socket by its own. */
	if (l->path && lstat(l->path, &st) == 0 && st.st_ino == l->made.st_ino &&
	    st.st_dev == l->made.st_dev)
		unlink(l->path);
	dcp_close_fd(&l->fd);
	dcp_close_fd(&l->stop);
	free(l->path);
	free(l);
}

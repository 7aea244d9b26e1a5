/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/comm/meet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/system.h"
#include "tools/load/error.h"

void load_digest(const void *key, size_t nkey, const void *p, size_t n, uint8_t out[32])
{
	struct hmac_sha256_ctx h;

	hmac_sha256_set_key(&h, nkey, key);
	hmac_sha256_update(&h, n, p);
	hmac_sha256_digest(&h, 32, out);
}

void load_proof(const struct load_meeting *m, const char *side, const struct shake *s,
		uint8_t out[32])
{
	struct hmac_sha256_ctx h;

	hmac_sha256_set_key(&h, sizeof(m->key), m->key);
	hmac_sha256_update(&h, strlen(side) + 1, (const uint8_t *)side);
	hmac_sha256_update(&h, sizeof(s->hello), (const uint8_t *)&s->hello);
	hmac_sha256_update(&h, sizeof(s->challenge), (const uint8_t *)&s->challenge);
	hmac_sha256_digest(&h, 32, out);
}

bool load_proof_is(const struct load_meeting *m, const char *side, const struct shake *s,
		   const uint8_t got[32])
{
	uint8_t want[32];

	load_proof(m, side, s, want);
	return memeql_sec(want, got, sizeof(want));
}

int load_random(void *p, size_t n)
{
	ssize_t got;

	do
		got = getrandom(p, n, 0);
	while (got < 0 && errno == EINTR);
	return got == (ssize_t)n ? 0 : -EIO;
}

int load_shake_read(struct shake *s, size_t n)
{
	ssize_t got = recv(s->fd, s->in.bytes + s->got, n - s->got, 0);

	if (got < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	if (got == 0)
		return -ECONNRESET;
	s->got += (size_t)got;
	if (s->got < n)
		return 0;
	s->got = 0;
	return 1;
}

int load_shake_send(const struct shake *s, const void *p, size_t n)
{
	ssize_t put = send(s->fd, p, n, MSG_NOSIGNAL);

	return put == (ssize_t)n ? 0 : put < 0 ? -errno : -EAGAIN;
}

void load_shake_end(struct shake *s)
{
	dcp_close_fd(&s->fd);
	s->got = 0;
	s->step = 0;
}

void load_address_text(const struct load_address *a, char *out, size_t size)
{
	char text[64] = "an unknown address";

	if (a->at.ss_family == AF_UNIX && a->n) {
		snprintf(out, size, "this node");
		return;
	}
	getnameinfo((const void *)&a->at, a->n, text, sizeof(text), NULL, 0, NI_NUMERICHOST);
	snprintf(out, size, "%s", strncmp(text, "::ffff:", 7) == 0 ? text + 7 : text);
}

bool load_address_is_loopback(const struct load_address *a)
{
	const struct sockaddr_in6 *six = (const void *)&a->at;
	const struct sockaddr_in *four = (const void *)&a->at;

	if (a->at.ss_family == AF_UNIX)
		return true;
	if (a->at.ss_family == AF_INET)
		return ntohl(four->sin_addr.s_addr) >> 24 == 127;
	return a->at.ss_family == AF_INET6 &&
	       (IN6_IS_ADDR_LOOPBACK(&six->sin6_addr) ||
		(IN6_IS_ADDR_V4MAPPED(&six->sin6_addr) && six->sin6_addr.s6_addr[12] == 127));
}

/* The name of the Unix socket is abstract, not a file: it disappears with the process. */
static void set_number(struct load_address *a, uint16_t number)
{
	struct sockaddr_un *un = (void *)&a->at;
	int n = snprintf(un->sun_path + 1, sizeof(un->sun_path) - 1, "dcpload-%u", number);

	un->sun_path[0] = 0;
	a->n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

void load_address_set_port(struct load_address *a, uint16_t port)
{
	if (a->at.ss_family == AF_UNIX && port)
		set_number(a, port);
	if (a->at.ss_family == AF_UNIX)
		return;
	if (a->at.ss_family == AF_INET)
		((struct sockaddr_in *)(void *)&a->at)->sin_port = htons(port);
	else
		((struct sockaddr_in6 *)(void *)&a->at)->sin6_port = htons(port);
}

uint16_t load_address_port(const struct load_address *a)
{
	return a->at.ss_family == AF_UNIX ? 0
	       : a->at.ss_family == AF_INET
		       ? ntohs(((const struct sockaddr_in *)(const void *)&a->at)->sin_port)
		       : ntohs(((const struct sockaddr_in6 *)(const void *)&a->at)->sin6_port);
}

bool load_address_same_host(const struct load_address *a, const struct load_address *b)
{
	char one[64], other[64];

	load_address_text(a, one, sizeof(one));
	load_address_text(b, other, sizeof(other));
	return a->n && b->n && strcmp(one, other) == 0;
}

bool load_peer_may_join(const struct load_meeting *m, int fd)
{
	struct ucred who = { .uid = (uid_t)-1 };
	socklen_t n = sizeof(who);

	return !m->node || m->any_user ||
	       (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && who.uid == geteuid());
}

static int listen_at(struct load_address *a, uint16_t port)
{
	dcp_auto_fd int fd =
		socket(a->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int on = 1, off = 0;

	if (fd < 0)
		return -errno;
	load_address_set_port(a, port);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (a->at.ss_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	if (bind(fd, (const void *)&a->at, a->n) < 0 || listen(fd, SOMAXCONN) < 0)
		return -errno;
	return dcp_take_fd(&fd);
}

int load_listen(const struct load_address *only, uint16_t port, uint16_t nports)
{
	/* IPv6 sockets also take IPv4 connections, but not every machine has IPv6. */
	struct load_address a[2] = { { { .ss_family = AF_INET6 }, sizeof(struct sockaddr_in6) },
				     { { .ss_family = AF_INET }, sizeof(struct sockaddr_in) } };
	int fd = -EADDRINUSE;

	if (only)
		a[0] = *only;
	for (uint16_t i = 0; i < DCP_MAX(nports, 1); i++) {
		uint16_t at = nports ? (uint16_t)(port + i) : 0;

		fd = listen_at(&a[0], at);
		if (fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL)
			fd = only ? fd : listen_at(&a[1], at);
		if (fd != -EADDRINUSE && fd != -EACCES)
			break;
	}
	return fd;
}

int load_poll(struct pollfd *p, size_t n, struct pollfd *room, int ms)
{
	nfds_t live = 0;
	int rc;

	for (size_t i = 0; i < n; i++)
		if (p[i].fd >= 0)
			room[live++] = p[i];
	rc = poll(room, live, ms);
	if (rc < 0)
		return errno == EINTR ? 0 : -errno;
	live = 0;
	for (size_t i = 0; i < n; i++)
		p[i].revents = p[i].fd >= 0 ? room[live++].revents : 0;
	return rc;
}

int load_raise_limit(uint32_t ranks, struct dcpload_error *err)
{
	/* descriptors for the rest of the process: normally, and at least */
	enum { OTHERS = 512, FEW = 32 };
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return load_fail(err, -errno, "the limit of open files: %s", strerror(errno));
	if (limit.rlim_cur < (rlim_t)ranks + OTHERS && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = DCP_MIN((rlim_t)ranks + OTHERS, limit.rlim_max);
		setrlimit(RLIMIT_NOFILE, &limit);
		getrlimit(RLIMIT_NOFILE, &limit);
	}
	if (limit.rlim_cur >= (rlim_t)ranks + FEW)
		return 0;
	return load_fail(err, -EMFILE,
			 "rank 0 needs a connection to each of %u ranks, but may open %llu "
			 "files (ulimit -n); MPI needs none",
			 ranks, (unsigned long long)limit.rlim_cur);
}

int load_resolve(const struct load_meeting *m, int64_t deadline, struct load_address *out,
		 size_t most, struct dcpload_error *err)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
	struct addrinfo *list = NULL;
	int rc, n = 0;

	if (m->at.n || m->node) {
		out[0] = m->at.n ? m->at : (struct load_address)LOAD_THIS_NODE;
		return 1;
	}
	/* The resolver has its own time limits. A name may appear a little later, so try again. */
	for (;;) {
		rc = getaddrinfo(m->host, NULL, &hints, &list);
		if ((rc != EAI_AGAIN && rc != EAI_NONAME) || dcp_now_ms() + 500 > deadline)
			break;
		poll(NULL, 0, 500);
	}
	if (rc != 0)
		return load_fail(err, -EHOSTUNREACH, "%s, where rank 0 should be: %s", m->host,
				 rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
	for (const struct addrinfo *a = list; a && n < (int)most; a = a->ai_next) {
		if (a->ai_addrlen > sizeof(out->at))
			continue;
		memset(&out[n], 0, sizeof(out[n]));
		memcpy(&out[n].at, a->ai_addr, a->ai_addrlen);
		out[n++].n = a->ai_addrlen;
	}
	freeaddrinfo(list);
	return n ? n : load_fail(err, -EHOSTUNREACH, "%s has no address", m->host);
}

void load_line_open(struct load_line *l, int fd)
{
	struct load_address a = { .n = sizeof(a.at) };

	l->fd = fd;
	if (fd < 0)
		return;
	if (getpeername(fd, (void *)&a.at, &a.n) < 0)
		a.n = 0;
	load_address_text(&a, l->peer, sizeof(l->peer));
}

void load_line_put(struct load_line *l, const void *body)
{
	uint64_t whole = sizeof(l->out) + l->out.n;

	while (l->put < whole && !l->deaf) {
		bool head = l->put < sizeof(l->out);
		const char *p = head ? (const char *)&l->out + l->put
				     : (const char *)body + (l->put - sizeof(l->out));
		size_t n = head ? sizeof(l->out) - l->put : whole - l->put;
		ssize_t put =
			send(l->fd, p, n, MSG_NOSIGNAL | (head && l->out.n ? MSG_MORE : 0));

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0 && errno == EAGAIN)
			return;
		l->deaf = put < 0;
		l->put += put < 0 ? 0 : (uint64_t)put;
	}
}

bool load_line_has_put(const struct load_line *l)
{
	return l->put == sizeof(l->out) + l->out.n;
}

void load_line_say_here(struct load_line *l)
{
	const struct load_frame here = { .kind = LOAD_FRAME_HERE };

	ssize_t put;

	if (l->deaf || l->put)
		return;
	put = send(l->fd, &here, sizeof(here), MSG_NOSIGNAL);
	/* If the socket is full, the other end has enough to read, so the frame is not needed. */
	if (put != sizeof(here) && (put >= 0 || errno != EAGAIN))
		l->deaf = true;
}

int load_line_get(struct load_line *l, uint32_t call, void *body, uint64_t n)
{
	for (;;) {
		bool head = l->got < sizeof(l->in), failed = l->in.kind == LOAD_FRAME_FAILED;
		uint64_t whole, at = head ? l->got : l->got - sizeof(l->in);
		char *p = head ? (char *)&l->in : failed ? (char *)&l->why : body;
		ssize_t got;

		if (!head && l->in.kind == LOAD_FRAME_HERE && l->in.n == 0 && !l->here) {
			l->here = true;
			l->got = 0;
			continue;
		}
		if (!head && failed && l->in.n != sizeof(l->why))
			return -EPROTO;
		if (!head && !failed &&
		    (l->in.kind != LOAD_FRAME_DATA || l->in.call != call || l->in.n != n))
			return -EPROTO;
		whole = head ? sizeof(l->in) : l->in.n;
		if (at == whole) {
			l->why.text[sizeof(l->why.text) - 1] = 0;
			return failed ? -ECANCELED : 1;
		}
		got = recv(l->fd, p + at, whole - at, 0);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN)
			return 0;
		if (got <= 0)
			return -ECONNRESET;
		l->got += (uint64_t)got;
	}
}

void load_line_begin(struct load_line *l, uint32_t call, uint64_t n)
{
	l->out = (struct load_frame){ LOAD_FRAME_DATA, call, n };
	l->in = (struct load_frame){ 0 };
	l->put = l->got = 0;
	l->here = false;
}

#define NAME "secret"
#define TRIES                                                                                  \
	20 /* to read what another node has just made: its name may appear here a little later */
#define AGAIN_MS 100

/* -ENOENT: there is none. */
static int read_secret(int dir, const char *path, char out[LOAD_SECRET_BYTES + 1],
		       struct dcpload_error *err)
{
	dcp_auto_fd int fd = openat(dir, NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return load_fail(err, -errno, "%s/" NAME ": %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077))
		return load_fail(err, -EPERM,
				 "%s/" NAME
				 " is not a file that this user alone can read (mode "
				 "0600)",
				 path);
	if (read(fd, out, LOAD_SECRET_BYTES) != LOAD_SECRET_BYTES)
		return load_fail(err, -EBADMSG, "%s/" NAME " has less than %d bytes: remove it",
				 path, LOAD_SECRET_BYTES);
	out[LOAD_SECRET_BYTES] = 0;
	return 0;
}

static int write_secret(int fd)
{
	uint8_t random[LOAD_SECRET_BYTES / 2];
	char text[LOAD_SECRET_BYTES + 1];
	int rc = load_random(random, sizeof(random));

	for (size_t i = 0; i < sizeof(random); i++)
		snprintf(text + 2 * i, 3, "%02x", random[i]);
	if (rc == 0 && fchmod(fd, 0600) < 0)
		rc = -errno;
	if (rc == 0 && write(fd, text, LOAD_SECRET_BYTES) != LOAD_SECRET_BYTES)
		rc = -ENOSPC;
	return rc < 0 || fsync(fd) == 0 ? rc : -errno;
}

/* The file gets its name when it is complete; the file of another process may exist by then. */
static int make_secret(int dir, const char *path, struct dcpload_error *err)
{
	uint64_t number = 0;
	char temp[32];
	int rc = load_random(&number, sizeof(number)), fd;

	snprintf(temp, sizeof(temp), NAME ".%016llx", (unsigned long long)number);
	fd = rc < 0 ? -1
		    : openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
			     0600);
	if (rc == 0)
		rc = fd < 0 ? -errno : write_secret(fd);
	if (rc == 0 && linkat(dir, temp, dir, NAME, 0) < 0 && errno != EEXIST)
		rc = -errno;
	if (fd >= 0) {
		close(fd);
		unlinkat(dir, temp, 0);
	}
	return rc < 0 ? load_fail(err, rc, "%s/" NAME ": %s", path, strerror(-rc)) : 0;
}

int load_secret_of_user(const char *dir, char out[LOAD_SECRET_BYTES + 1],
			struct dcpload_error *err)
{
	dcp_auto_fd int fd = -1;
	struct stat st;
	int rc = load_cache_make(dir);

	if (rc == 0) {
		fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		rc = fd < 0 || fstat(fd, &st) < 0 ? -errno : 0;
	}
	if (rc < 0)
		return load_fail(err, rc, "%s: %s", dir, strerror(-rc));
	if (st.st_uid != geteuid() || (st.st_mode & 022))
		return load_fail(err, -EPERM,
				 "%s is not a directory that this user alone can "
				 "write to",
				 dir);
	rc = read_secret(fd, dir, out, err);
	if (rc != -ENOENT)
		return rc;
	rc = make_secret(fd, dir, err);
	for (int i = 0; rc == 0 && i < TRIES; i++) {
		int got = read_secret(fd, dir, out, err);

		if ((got != -ENOENT && got != -ESTALE) || i == TRIES - 1)
			return got;
		poll(NULL, 0, AGAIN_MS);
	}
	return rc;
}

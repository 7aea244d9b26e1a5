/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/comm/line.h"

#include <errno.h>
#include <sys/socket.h>

#include "tools/load/comm/meet.h"

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
	/* With no room for it the other end has enough to read. */
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

		if (!head && l->in.kind == LOAD_FRAME_HERE && l->in.n == 0) {
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
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The other ranks of a meeting: try all addresses and ports where rank 0 may listen, at the same
 * time, until one proves to be rank 0.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/system.h"
#include "tools/load/comm/meet.h"

#define AGAIN_MS 20 /* before a place is tried again; doubles */
#define AGAIN_MOST_MS 500

enum step {
	GUEST_CONNECT,
	GUEST_CHALLENGE,
	GUEST_WELCOME,
};

/* One address and port. */
struct place {
	struct shake s;
	struct load_address at;
	int64_t again; /* when it may be tried next */
	int wait_ms;
	const char *seen; /* what was found there, for the error message */
	int error;        /* errno, when there is no @seen */
};

static void leave_place(struct place *p, int64_t now, const char *seen, int error)
{
	load_shake_end(&p->s);
	p->wait_ms = DCP_MIN(DCP_MAX(2 * p->wait_ms, AGAIN_MS), AGAIN_MOST_MS);
	p->again = now + p->wait_ms;
	if (seen || !p->seen) {
		p->seen = seen;
		p->error = error;
	}
}

/*
 * Where this rank has shown that it is one, rank 0 may count it, and would take its leaving for its
 * death: it stays, however busy the machines are.
 */
static void lose_patience(struct place *p, int64_t now)
{
	const char *seen = p->s.step == GUEST_CONNECT ? NULL : "something that does not answer";

	if (p->s.step == GUEST_WELCOME)
		p->seen = seen;
	else
		leave_place(p, now, seen, ETIMEDOUT);
}

static void try_place(struct place *p, int64_t now)
{
	int on = 1,
	    fd = socket(p->at.at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	p->s.fd = fd;
	p->s.since = now;
	if (fd < 0) {
		leave_place(p, now, NULL, errno);
		return;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (connect(fd, (const void *)&p->at.at, p->at.n) < 0 && errno != EINPROGRESS)
		leave_place(p, now, NULL, errno);
}

static void on_challenge(const struct load_meeting *m, struct place *p, int64_t now)
{
	static const char *const refused[REFUSED_COUNT] = {
		[REFUSED_ABI] = "another version of dcpload",
		[REFUSED_JOB] = "another job's rank 0",
	};
	const struct challenge *c = &p->s.in.challenge;
	uint8_t proof[32];

	/* A connection to itself returns this rank's own hello. */
	if (memcmp(c->magic, LOAD_CHALLENGE_MAGIC, sizeof(c->magic)) != 0) {
		leave_place(p, now, "something else than dcpload", 0);
		return;
	}
	if (c->refused) {
		leave_place(p, now, c->refused < REFUSED_COUNT ? refused[c->refused] : NULL,
			    EPROTO);
		return;
	}
	p->s.challenge = *c;
	p->s.step = GUEST_WELCOME;
	load_proof(m, "rank r", &p->s, proof);
	if (load_shake_send(&p->s, proof, sizeof(proof)) < 0)
		leave_place(p, now, NULL, ECONNRESET);
}

/* 1: it has proved to be rank 0 and accepts this rank. */
static int on_welcome(const struct load_meeting *m, struct place *p, int64_t now,
		      struct dcpload_error *err)
{
	struct welcome *w = &p->s.in.welcome;

	if (!load_proof_is(m, "rank 0", &p->s, w->proof)) {
		leave_place(
			p, now,
			"a rank 0 with another secret; DCPLOAD_SECRET can give all ranks the "
			"same",
			0);
		return 0;
	}
	w->text[sizeof(w->text) - 1] = 0;
	if (w->code >= 0)
		return 1;
	load_fail(err, w->code, "%s", w->text);
	if (err)
		err->rank = w->rank;
	return w->code;
}

static int on_event(const struct load_meeting *m, const struct hello *hello, struct place *p,
		    int64_t now, struct dcpload_error *err)
{
	socklen_t n = sizeof(int);
	int got, error = 0;

	if (p->s.step == GUEST_CONNECT) {
		getsockopt(p->s.fd, SOL_SOCKET, SO_ERROR, &error, &n);
		if (!error && !load_peer_may_join(m, p->s.fd)) {
			leave_place(p, now, "a process of another user", 0);
			return 0;
		}
		p->s.hello = *hello;
		p->s.step = GUEST_CHALLENGE;
		if (error || load_shake_send(&p->s, hello, sizeof(*hello)) < 0)
			leave_place(p, now, NULL, error ? error : ECONNRESET);
		return 0;
	}
	got = load_shake_read(&p->s, p->s.step == GUEST_CHALLENGE ? sizeof(struct challenge)
								  : sizeof(struct welcome));
	if (got < 0)
		leave_place(p, now, NULL, -got);
	else if (got > 0 && p->s.step == GUEST_CHALLENGE)
		on_challenge(m, p, now);
	else if (got > 0)
		return on_welcome(m, p, now, err);
	return 0;
}

static int report_late(const struct load_meeting *m, const struct place *places, size_t n,
		       struct dcpload_error *err)
{
	const struct place *best = places;
	char at[64];

	/*
	 * Report the most useful finding: an answer, otherwise an error that is not ECONNREFUSED.
	 */
	for (size_t i = 0; i < n; i++) {
		const struct place *p = &places[i];

		if ((p->seen && !best->seen) ||
		    (!p->seen && !best->seen && best->error == ECONNREFUSED && p->error))
			best = p;
	}
	load_address_text(&best->at, at, sizeof(at));
	return load_fail(
		err, -ETIMEDOUT,
		"rank %u did not find rank 0 at %s (%s), ports %u to %u, within %d s: %s%s",
		m->rank, m->host, at, m->port, m->port + m->nports - 1, m->timeout_ms / 1000,
		best->seen    ? "found "
		: best->error ? strerror(best->error)
			      : "no answer",
		best->seen ? best->seen : "");
}

static int guest_loop(const struct load_meeting *m, const struct hello *hello,
		      struct place *places, size_t n, struct pollfd *polls, int64_t deadline,
		      struct dcpload_error *err)
{
	for (;;) {
		int64_t now = dcp_now_ms(), next = now + AGAIN_MOST_MS;

		if (now >= deadline)
			return report_late(m, places, n, err);
		for (size_t i = 0; i < n; i++) {
			struct place *p = &places[i];

			if (p->s.fd >= 0 && now - p->s.since > LOAD_PATIENCE_MS)
				lose_patience(p, now);
			if (p->s.fd < 0 && now >= p->again)
				try_place(p, now);
			if (p->s.fd < 0)
				next = DCP_MIN(next, p->again);
			polls[i] = (struct pollfd){
				p->s.fd, p->s.step == GUEST_CONNECT ? POLLOUT : POLLIN, 0
			};
		}
		if (poll(polls, n, (int)DCP_MAX(DCP_MIN(next, deadline) - now, 1)) <= 0)
			continue;
		now = dcp_now_ms();
		for (size_t i = 0; i < n; i++) {
			int rc = places[i].s.fd >= 0 && polls[i].revents
					 ? on_event(m, hello, &places[i], now, err)
					 : 0;

			if (rc < 0)
				return rc;
			if (rc > 0)
				return dcp_take_fd(&places[i].s.fd);
		}
	}
}

size_t load_meet_guest_room(const struct load_meeting *m)
{
	return (size_t)LOAD_MAX_ADDRESSES * m->nports *
	       (sizeof(struct place) + sizeof(struct pollfd));
}

int load_meet_guest(const struct load_meeting *m, int64_t deadline, int *fd,
		    struct dcpload_error *err)
{
	struct load_address at[LOAD_MAX_ADDRESSES];
	struct place *places = m->room;
	struct pollfd *polls;
	struct hello hello = { .abi = DCPLOAD_ABI, .rank = m->rank, .ranks = m->ranks };
	int rc;
	size_t n;

	fd[0] = -1;
	memcpy(hello.magic, LOAD_HELLO_MAGIC, sizeof(hello.magic));
	memcpy(hello.id, m->id, sizeof(hello.id));
	rc = load_random(hello.nonce, sizeof(hello.nonce));
	if (rc < 0)
		return load_fail(err, rc, "cannot get random numbers: %s", strerror(-rc));
	rc = load_resolve(m, deadline, at, DCP_LEN(at), err);
	if (rc < 0)
		return rc;
	n = (size_t)rc * m->nports;
	polls = (void *)(places + n);
	for (size_t i = 0; i < n; i++) {
		places[i].s.fd = -1;
		places[i].at = at[i / m->nports];
		load_address_set_port(&places[i].at, (uint16_t)(m->port + i % m->nports));
	}
	rc = guest_loop(m, &hello, places, n, polls, deadline, err);
	if (rc >= 0)
		fd[0] = rc;
	for (size_t i = 0; i < n; i++)
		load_shake_end(&places[i].s);
	return rc < 0 ? rc : 0;
}

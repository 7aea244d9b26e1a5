/* SPDX-License-Identifier: Apache-2.0 */
/* The two sides of a meeting. Rank 0 takes connections until every rank is there; each other rank
 * tries all places where rank 0 may listen (below). */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/system.h"
#include "tools/load/comm/meet.h"

#define PENDING 128    /* connections that have not proved their identity yet */
#define CROWDED_MS 500 /* time that each of them has if all places are taken */
#define TELL_MS 10000  /* time in which ranks that come after a failure still learn of it */
#define STRANGERS_TEXT 240
#define RANKS (LOAD_MAX_ADDRESSES + PENDING) /* index of the first rank in the poll array */

#define HOST_NONE -1
#define HOST_TOLD -2 /* the rank was told that the meeting has failed */

enum host_step {
	HOST_HELLO,
	HOST_PROOF,
};

struct host {
	const struct load_meeting *m;
	int *fd;              /* by rank; or HOST_NONE, HOST_TOLD */
	uint8_t (*nonce)[32]; /* by rank: nonce of its process */
	uint32_t missing;
	int listener[LOAD_MAX_ADDRESSES];
	size_t nlisteners;
	struct shake pending[PENDING];
	uint64_t refused[REFUSED_COUNT]; /* REFUSED_NOT: did not speak the protocol */
	struct pollfd *poll;             /* listeners, those pending, ranks */
	struct dcpload_error failed;
	int64_t deadline, until; /* @until: end of the meeting */
};

/*
 * Listen only on the addresses of m->host. If none of them belongs to this machine (behind a
 * router, or for a service that forwards connections), or if only this node can reach them while
 * ranks are on other nodes (as with 127.0.1.1 in /etc/hosts), listen on all addresses, unless other
 * users may know the key.
 */
static int host_listen(struct host *h, int64_t deadline, struct dcpload_error *err)
{
	const struct load_meeting *m = h->m;
	struct load_address at[LOAD_MAX_ADDRESSES];
	int n = load_resolve(m, deadline, at, DCP_LEN(at), err), rc = -EADDRNOTAVAIL;
	bool reached = false, none = true;

	if (n < 0)
		return n;
	for (int i = 0; i < n; i++)
		reached |= !load_address_is_loopback(&at[i]);
	for (int i = 0; i < n && (reached || !m->apart); i++) {
		int fd = load_listen(&at[i], m->port, m->nports);

		if (fd >= 0)
			h->listener[h->nlisteners++] = fd;
		if (fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL)
			continue;
		none = false;
		rc = fd;
	}
	if (none && !m->open) {
		rc = load_listen(NULL, m->port, m->nports);
		if (rc >= 0)
			h->listener[h->nlisteners++] = rc;
	}
	if (h->nlisteners)
		return 0;
	if (m->nports == 1)
		return load_fail(err, rc,
				 "port %u of %s, where ranks meet: %s; DCPLOAD_PORT can name "
				 "another",
				 m->port, m->host, strerror(-rc));
	return load_fail(err, rc,
			 "ports %u to %u of %s, where ranks meet: %s; DCPLOAD_PORT can name "
			 "another",
			 m->port, m->port + m->nports - 1, m->host, strerror(-rc));
}

/* The ranks that are missing: "1, 3-5". */
static void list_missing(const struct host *h, char *out, size_t size)
{
	size_t n = 0;

	out[0] = 0;
	for (uint32_t r = 1; r < h->m->ranks && n < size - 32; r++) {
		uint32_t first = r;

		if (h->fd[r] >= 0)
			continue;
		while (r + 1 < h->m->ranks && h->fd[r + 1] < 0)
			r++;
		n += (size_t)snprintf(out + n, size - n, first < r ? "%s%u-%u" : "%s%u",
				      n ? ", " : "", first, r);
		if (n >= size - 32 && r + 1 < h->m->ranks)
			snprintf(out + n, size - n, ", ...");
	}
}

static int host_is_late(const struct host *h, struct dcpload_error *err)
{
	static const char *const why[REFUSED_COUNT] = {
		[REFUSED_NOT] = "of strangers",
		[REFUSED_ABI] = "of another version of dcpload",
		[REFUSED_JOB] = "of another job",
		[REFUSED_KEY] = ("with another secret (DCPLOAD_SECRET can give all ranks the "
				 "same)"),
		[REFUSED_USER] = "of another user",
	};
	char ranks[200], others[STRANGERS_TEXT] = "";
	size_t n = 0;

	list_missing(h, ranks, sizeof(ranks));
	for (size_t i = 0; i < REFUSED_COUNT; i++)
		if (h->refused[i] && n < sizeof(others))
			n += (size_t)snprintf(others + n, sizeof(others) - n,
					      "; %llu connection%s %s refused",
					      (unsigned long long)h->refused[i],
					      h->refused[i] > 1 ? "s" : "", why[i]);
	return load_fail(
		err, -ETIMEDOUT, "rank%s %s of %u did not connect to rank 0 within %d s%s",
		h->missing > 1 ? "s" : "", ranks, h->m->ranks, h->m->timeout_ms / 1000, others);
}

static void refuse_guest(struct host *h, struct shake *s, enum refusal why)
{
	h->refused[why]++;
	load_shake_end(s);
}

static void on_hello(struct host *h, struct shake *s)
{
	const struct hello *hello = &s->in.hello;
	struct challenge c = { .magic = "", .abi = DCPLOAD_ABI };

	memcpy(c.magic, LOAD_CHALLENGE_MAGIC, sizeof(c.magic));
	if (memcmp(hello->magic, LOAD_HELLO_MAGIC, sizeof(hello->magic)) != 0) {
		refuse_guest(h, s, REFUSED_NOT);
		return;
	}
	c.refused = hello->abi != DCPLOAD_ABI                            ? REFUSED_ABI
		    : memcmp(hello->id, h->m->id, sizeof(h->m->id)) != 0 ? REFUSED_JOB
									 : REFUSED_NOT;
	s->hello = *hello;
	if (load_random(c.nonce, sizeof(c.nonce)) < 0) {
		load_shake_end(s);
		return;
	}
	s->challenge = c;
	s->step = HOST_PROOF;
	if (load_shake_send(s, &c, sizeof(c)) < 0)
		load_shake_end(s);
	else if (c.refused)
		refuse_guest(h, s, c.refused);
}

/* The meeting has failed. Inform ranks that still come, for a while. */
static void fail_meeting(struct host *h, int code, uint32_t rank)
{
	h->failed.code = code;
	h->failed.rank = (int32_t)rank;
	h->until = DCP_MIN(h->deadline, dcp_now_ms() + TELL_MS);
}

/* A rank of this job with wrong numbers makes the meeting fail. */
static void judge_hello(struct host *h, const struct hello *hello)
{
	uint32_t rank = hello->rank, ranks = h->m->ranks;

	if (hello->ranks != ranks)
		load_fail(&h->failed, -EPROTO,
			  "rank %u was started as one of %u ranks, rank 0 as one of %u", rank,
			  hello->ranks, ranks);
	else if (rank == 0 || rank >= ranks || h->fd[rank] >= 0)
		load_fail(&h->failed, -EPROTO, "two processes were started as rank %u of %u",
			  rank, ranks);
	else
		return;
	fail_meeting(h, -EPROTO, rank);
}

static void on_proof(struct host *h, struct shake *s)
{
	uint32_t rank = s->hello.rank;
	struct welcome w = { .code = -EACCES };
	bool member = rank > 0 && rank < h->m->ranks;

	if (!load_proof_is(h->m, "rank r", s, s->in.proof)) {
		load_shake_send(s, &w, sizeof(w));
		refuse_guest(h, s, REFUSED_KEY);
		return;
	}
	if (member && h->fd[rank] >= 0 && memcmp(h->nonce[rank], s->hello.nonce, 32) == 0) {
		load_shake_end(s); /* the same process by a second address */
		return;
	}
	if (!h->failed.code)
		judge_hello(h, &s->hello);
	load_proof(h->m, "rank 0", s, w.proof);
	w.code = h->failed.code;
	w.rank = h->failed.rank;
	memcpy(w.text, h->failed.text, sizeof(w.text) - 1);
	if (load_shake_send(s, &w, sizeof(w)) < 0) {
		load_shake_end(s);
		return;
	}
	if (member && h->fd[rank] == HOST_NONE) {
		h->missing--;
		if (w.code)
			h->until = DCP_MIN(h->deadline, dcp_now_ms() + TELL_MS);
		h->fd[rank] = w.code ? HOST_TOLD : dcp_take_fd(&s->fd);
		memcpy(h->nonce[rank], s->hello.nonce, 32);
	}
	load_shake_end(s);
}

/* Find a place for another connection: a free place, or the place of a connection whose time is
 * over. */
static struct shake *find_place(struct host *h, int64_t now)
{
	struct shake *oldest = &h->pending[0];

	for (size_t i = 0; i < PENDING && oldest->fd >= 0; i++)
		if (h->pending[i].fd < 0 || h->pending[i].since < oldest->since)
			oldest = &h->pending[i];
	return oldest->fd < 0 || now - oldest->since >= CROWDED_MS ? oldest : NULL;
}

static void accept_guests(struct host *h, int listener, int64_t now)
{
	struct shake *s;
	int on = 1;

	while ((s = find_place(h, now))) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0 &&
		    (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS))
			fail_meeting(
				h,
				load_fail(&h->failed, -errno,
					  "rank 0 needs a connection to each of %u ranks: %s",
					  h->m->ranks, strerror(errno)),
				0);
		if (fd < 0)
			return; /* no connection is waiting, or it has gone again */
		if (s->fd >= 0)
			refuse_guest(h, s, REFUSED_NOT);
		*s = (struct shake){ .fd = fd, .since = now };
		if (load_peer_may_join(h->m, fd))
			setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		else
			refuse_guest(h, s, REFUSED_USER);
	}
}

static void serve_guest(struct host *h, struct shake *s, int64_t now)
{
	bool hello = s->step == HOST_HELLO;
	int got = load_shake_read(s, hello ? sizeof(s->in.hello) : sizeof(s->in.proof));

	if (got < 0 || (got == 0 && now - s->since > LOAD_PATIENCE_MS))
		refuse_guest(h, s, REFUSED_NOT);
	else if (got > 0 && hello)
		on_hello(h, s);
	else if (got > 0)
		on_proof(h, s);
}

/* Handle what poll() reports: pending connections, and ranks that have gone. */
static void serve_all(struct host *h)
{
	int64_t now = dcp_now_ms();

	for (size_t i = 0; i < PENDING; i++)
		if (h->pending[i].fd >= 0)
			serve_guest(h, &h->pending[i], now);
	for (uint32_t r = 1; r < h->m->ranks && !h->failed.code; r++)
		if (h->fd[r] >= 0 && h->poll[RANKS + r].fd == h->fd[r] &&
		    h->poll[RANKS + r].revents)
			fail_meeting(
				h,
				load_fail(&h->failed, -ECONNRESET,
					  "rank %u has ended or died before all ranks were "
					  "connected",
					  r),
				r);
	for (size_t i = 0; i < h->nlisteners; i++)
		if (h->poll[i].revents)
			accept_guests(h, h->listener[i], now);
}

static int host_loop(struct host *h, struct dcpload_error *err)
{
	int rc = load_raise_limit(h->m->ranks, &h->failed);

	if (rc < 0)
		fail_meeting(h, rc, 0);
	while (h->missing) {
		int64_t now = dcp_now_ms();

		if (now >= h->until)
			break;
		for (size_t i = 0; i < LOAD_MAX_ADDRESSES; i++)
			h->poll[i] = (struct pollfd){ i < h->nlisteners && find_place(h, now)
							      ? h->listener[i]
							      : -1,
						      POLLIN, 0 };
		for (size_t i = 0; i < PENDING; i++)
			h->poll[LOAD_MAX_ADDRESSES + i] =
				(struct pollfd){ h->pending[i].fd, POLLIN, 0 };
		/* Ranks are not watched once the meeting has failed. */
		for (uint32_t r = 1; r < h->m->ranks; r++)
			h->poll[RANKS + r] =
				(struct pollfd){ h->failed.code ? -1 : h->fd[r], POLLRDHUP, 0 };
		rc = load_poll(h->poll, RANKS + h->m->ranks, h->poll + RANKS + h->m->ranks,
			       (int)DCP_MIN(h->until - now, 100));
		if (rc < 0)
			return load_fail(err, rc, "rank 0 waits for others: poll: %s",
					 strerror(-rc));
		serve_all(h);
	}
	if (h->failed.code && err)
		*err = h->failed;
	if (h->failed.code || !h->missing)
		return h->failed.code;
	return host_is_late(h, err);
}

static size_t host_room(const struct load_meeting *m)
{
	return sizeof(struct host) + 2 * (RANKS + (size_t)m->ranks) * sizeof(struct pollfd) +
	       (size_t)m->ranks * 32;
}

static int host_meeting(const struct load_meeting *m, int64_t deadline, int *fd,
			struct dcpload_error *err)
{
	struct host *h = m->room;
	struct pollfd *polls = (void *)(h + 1);
	int rc = 0;

	for (uint32_t r = 0; r < m->ranks; r++)
		fd[r] = HOST_NONE;
	*h = (struct host){ .m = m,
			    .fd = fd,
			    .missing = m->ranks - 1,
			    .poll = polls,
			    .deadline = deadline,
			    .until = deadline };
	h->nonce = (uint8_t(*)[32])(void *)(polls + 2 * (RANKS + m->ranks));
	for (size_t i = 0; i < PENDING; i++)
		h->pending[i].fd = -1;
	if (m->listener >= 0)
		h->listener[h->nlisteners++] = m->listener;
	else
		rc = host_listen(h, deadline, err);
	if (rc == 0)
		rc = host_loop(h, err);
	for (size_t i = 0; i < h->nlisteners; i++)
		dcp_close_fd(&h->listener[i]);
	for (uint32_t r = 0; r < m->ranks; r++)
		fd[r] = DCP_MAX(fd[r], -1);
	for (size_t i = 0; i < PENDING; i++)
		load_shake_end(&h->pending[i]);
	return rc;
}

size_t load_meet_room(const struct load_meeting *m)
{
	return m->rank ? load_meet_guest_room(m) : host_room(m);
}

int load_meet(const struct load_meeting *m, int *fd, struct dcpload_error *err)
{
	int64_t deadline = dcp_now_ms() + m->timeout_ms;

	return m->rank ? load_meet_guest(m, deadline, fd, err)
		       : host_meeting(m, deadline, fd, err);
}

/* The other ranks of a meeting: try all addresses and ports where rank 0 may listen, at the same
 * time, until one proves to be rank 0. */

#define AGAIN_MS 20 /* pause before a place is tried again; doubles */
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
	const char *seen; /* the answer from there, for the error message */
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
 * Drop a handshake that takes too long. If this rank has already proved its identity, rank 0 may
 * count it, and would take a closed connection for its death; so it stays, however busy the
 * machines are.
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

/* 1: the other end has proved to be rank 0 and accepts this rank. */
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

	/* Report the most useful finding: an answer, otherwise an error that is not
	 * ECONNREFUSED. */
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

static int run_guest(const struct load_meeting *m, const struct hello *hello,
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
	rc = run_guest(m, &hello, places, n, polls, deadline, err);
	if (rc >= 0)
		fd[0] = rc;
	for (size_t i = 0; i < n; i++)
		load_shake_end(&places[i].s);
	return rc < 0 ? rc : 0;
}

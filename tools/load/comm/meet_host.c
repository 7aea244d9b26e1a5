/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0 of a meeting: takes connections until every rank is there.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/system.h"
#include "tools/load/comm/meet.h"

#define PENDING 128    /* connections that have not proved yet who they are */
#define CROWDED_MS 500 /* time that each of them has when all places are taken */
#define TELL_MS 10000  /* after the meeting has failed, for another rank to come and be told */
#define STRANGERS_TEXT 240
#define RANKS (LOAD_MAX_ADDRESSES + PENDING) /* the first rank's place in what is polled */

#define HOST_NONE -1
#define HOST_TOLD -2 /* it has been told that the meeting has failed */

enum host_step {
	HOST_HELLO,
	HOST_PROOF,
};

struct host {
	const struct load_meeting *m;
	int *fd;              /* by rank; or HOST_NONE, HOST_TOLD */
	uint8_t (*nonce)[32]; /* of the processes that are there */
	uint32_t missing;
	int listener[LOAD_MAX_ADDRESSES];
	size_t nlisteners;
	struct shake pending[PENDING];
	uint64_t refused[REFUSED_COUNT]; /* REFUSED_NOT: did not speak our language */
	struct pollfd *poll;             /* listeners, those pending, ranks */
	struct dcpload_error failed;
	int64_t deadline, until; /* then the meeting is over */
};

/*
 * Listen on the addresses of m->host alone. If none of them is this machine's (behind a router, or
 * for a service that passes connections on), or if they are reached from this node alone while
 * ranks are on others, as where /etc/hosts has 127.0.1.1, then on all addresses, unless others may
 * know the key.
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

/* The meeting has failed. For a while ranks that still come are told. */
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

/* A place for another connection: a free one, or that of a connection whose time is over. */
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
			return; /* none is waiting, or it has gone again */
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

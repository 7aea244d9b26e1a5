/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport over TCP, for control messages: every other rank has one connection to rank 0
 * (meet.h). In a call each rank sends one frame to rank 0, which sends them all back as a frame. A
 * rank that cannot go on sends a frame with the reason instead; rank 0 passes it on to all.
 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/system.h"
#include "tools/load/comm/comm.h"
#include "tools/load/comm/meet.h"
#include "tools/load/error.h"

/*
 * Other ranks wait this much longer than rank 0, so that its message about who is late reaches
 * them, also on a busy machine. Rank 0 may have come later than they did: after waiting for a
 * quarter of the timeout it says that it waits, too, and their time begins again.
 */
#define GRACE_MS(timeout_ms) DCP_MIN((timeout_ms) / 4 + 50, 10000)
#define HERE_MS(timeout_ms) ((timeout_ms) / 4)
#define LINGER_MS 200 /* time for the others to read the last frame */

struct tcp {
	struct dcpload_comm comm;
	struct load_meeting m; /* how the ranks met: for sub-groups */
	uint32_t nlines;       /* rank 0: one per rank, line[0] unused; others: 1 */
	struct load_line *line;
	struct pollfd *poll;
	int *fd;    /* for load_meet() */
	char *room; /* for load_meet(), and after it a byte of each rank */
	bool near;  /* every rank is connected by the loopback device, or a Unix socket */
	uint32_t call;
	struct dcpload_error failed; /* the last failure */
	bool broken;                 /* after a failure: every call fails */
};

/* ---- failures ---- */

/* Address or host of @rank, for messages. */
static const char *name_peer(const struct tcp *t, uint32_t rank)
{
	return rank && !t->m.node ? t->line[rank].peer : t->m.host;
}

/* End the communicator, and send the reason to the ranks that can still be reached. Returns
 * @code. */
static int tcp_break(struct tcp *t, int code, int32_t rank)
{
	t->failed.code = code;
	t->failed.rank = rank;
	if (t->broken)
		return code;
	t->broken = true;
	for (uint32_t i = 0; i < t->nlines; i++) {
		struct load_line *l = &t->line[i];

		/* Not in the middle of another frame. */
		if (l->fd < 0 || l->deaf || (l->put && !load_line_has_put(l)))
			continue;
		l->out = (struct load_frame){ LOAD_FRAME_FAILED, t->call, sizeof(t->failed) };
		l->put = 0;
		load_line_put(l, &t->failed);
	}
	return code;
}

/* load_line_get() from @rank failed with @rc: describe it, end the communicator. */
static int tcp_lost(struct tcp *t, uint32_t rank, int rc, uint64_t n)
{
	struct load_line *l = &t->line[rank];

	if (rc == -ECANCELED) {
		/* The code comes from another process; if it were not negative, it would look like
		 * success. */
		load_fail(&t->failed, l->why.code < 0 ? l->why.code : -EPROTO, "%s",
			  l->why.text);
		return tcp_break(t, t->failed.code,
				 l->why.rank < (int32_t)t->comm.ranks ? DCP_MAX(l->why.rank, -1)
								      : (int32_t)rank);
	}
	if (rc == -EPROTO)
		load_fail(&t->failed, rc,
			  "rank %u and rank %u do not call the same functions: %llu bytes in "
			  "call %u, and %llu in call %u",
			  rank, t->comm.rank, (unsigned long long)l->in.n, l->in.call,
			  (unsigned long long)n, t->call);
	else
		load_fail(&t->failed, rc,
			  "rank %u at %s has ended or died (its connection is closed)", rank,
			  name_peer(t, rank));
	return tcp_break(t, rc, (int32_t)rank);
}

static int tcp_late(struct tcp *t, uint32_t rank, uint32_t more, int timeout_ms)
{
	char others[32] = "";

	if (more)
		snprintf(others, sizeof(others), " and %u other ranks", more);
	load_fail(&t->failed, -ETIMEDOUT, "rank %u at %s%s did not answer within %.1f s", rank,
		  name_peer(t, rank), others, timeout_ms / 1000.0);
	return tcp_break(t, -ETIMEDOUT, (int32_t)rank);
}

/* Wait for the events of t->poll. 1; 0: the deadline has passed; a negative errno, after which the
 * communicator is broken. */
static int tcp_poll(struct tcp *t, int64_t deadline)
{
	int64_t left = deadline - dcp_now_ms();
	int rc;

	if (left <= 0)
		return 0;
	rc = load_poll(t->poll, t->nlines, t->poll + t->nlines, (int)DCP_MIN(left, 200));
	if (rc >= 0)
		return 1;
	load_fail(&t->failed, rc, "rank %u waits for others: poll: %s", t->comm.rank,
		  strerror(-rc));
	return tcp_break(t, rc, (int32_t)t->comm.rank);
}

/* ---- calls ---- */

/* Rank 0: called when @rank closed its connection before the call was over, to read the reason if
 * it sent one. */
static int centre_left(struct tcp *t, uint32_t rank, size_t n)
{
	char none;
	int rc;

	load_line_begin(&t->line[rank], t->call, 0);
	rc = load_line_get(&t->line[rank], t->call, &none, 0);
	return tcp_lost(t, rank, rc == -ECANCELED ? rc : -ECONNRESET, n);
}

/* Rank 0: receive the frame of every rank into its place in @all. */
static int centre_collect(struct tcp *t, size_t n, char *all, int64_t deadline, int timeout_ms)
{
	uint32_t missing = t->nlines - 1, first;
	int rc;
	int64_t say_here = deadline - timeout_ms + HERE_MS(timeout_ms);

	while (missing) {
		if (dcp_now_ms() >= say_here) {
			for (uint32_t r = 1; r < t->nlines; r++)
				load_line_say_here(&t->line[r]);
			say_here = INT64_MAX;
		}
		missing = first = 0;
		for (uint32_t r = t->nlines - 1; r > 0; r--) {
			struct load_line *l = &t->line[r];

			rc = load_line_get(l, t->call, all + r * n, n);
			if (rc < 0)
				return tcp_lost(t, r, rc, n);
			/* Ranks that are done are watched, too: they may go away. */
			t->poll[r] = (struct pollfd){ l->fd, rc ? POLLRDHUP : POLLIN, 0 };
			missing += rc == 0;
			first = rc == 0 ? r : first;
		}
		rc = missing ? tcp_poll(t, deadline) : 1;
		if (rc <= 0)
			return rc < 0 ? rc : tcp_late(t, first, missing - 1, timeout_ms);
		for (uint32_t r = 1; missing && r < t->nlines; r++)
			if (t->poll[r].events == POLLRDHUP && t->poll[r].revents)
				return centre_left(t, r, n);
	}
	return 0;
}

/* Rank 0: send @all to every rank. When a rank proves to be gone, others may have received it
 * already: so this call succeeds and the next one fails. */
static void centre_spread(struct tcp *t, const char *all, int64_t deadline, int timeout_ms)
{
	uint32_t missing = t->nlines - 1, first;
	int rc;

	while (missing) {
		missing = first = 0;
		for (uint32_t r = t->nlines - 1; r > 0; r--) {
			struct load_line *l = &t->line[r];

			load_line_put(l, all);
			t->poll[r] = (struct pollfd){ l->fd, POLLOUT, 0 };
			if (l->deaf || load_line_has_put(l)) {
				t->poll[r].fd = -1;
				continue;
			}
			missing++;
			first = r;
		}
		rc = missing ? tcp_poll(t, deadline) : 1;
		if (rc == 0)
			tcp_late(t, first, missing - 1, timeout_ms);
		if (rc <= 0)
			return;
	}
	for (uint32_t r = 1; r < t->nlines; r++)
		if (t->line[r].deaf) {
			tcp_lost(t, r, -ECONNRESET, 0);
			return;
		}
}

static int centre_allgather(struct tcp *t, const void *mine, size_t n, char *all,
			    int timeout_ms)
{
	int64_t deadline = dcp_now_ms() + timeout_ms;
	int rc;

	memmove(all, mine, n);
	for (uint32_t r = 1; r < t->nlines; r++)
		load_line_begin(&t->line[r], t->call, (uint64_t)n * t->comm.ranks);
	rc = centre_collect(t, n, all, deadline, timeout_ms);
	if (rc == 0)
		centre_spread(t, all, deadline, timeout_ms);
	return rc;
}

static int edge_allgather(struct tcp *t, const void *mine, size_t n, char *all, int timeout_ms)
{
	int64_t deadline = dcp_now_ms() + timeout_ms + GRACE_MS(timeout_ms);
	struct load_line *l = t->line;
	bool heard = false;

	load_line_begin(l, t->call, n);
	for (;;) {
		int rc;

		load_line_put(l, mine);
		rc = load_line_get(l, t->call, all, (uint64_t)n * t->comm.ranks);
		if (rc > 0)
			return 0;
		if (rc < 0)
			return tcp_lost(t, 0, rc, n);
		if (l->here && !heard)
			deadline = dcp_now_ms() + timeout_ms - HERE_MS(timeout_ms) +
				   GRACE_MS(timeout_ms);
		heard = l->here;
		t->poll[0] = (struct pollfd){ l->fd, POLLIN, 0 };
		if (!load_line_has_put(l) && !l->deaf)
			t->poll[0].events = POLLIN | POLLOUT;
		rc = tcp_poll(t, deadline);
		if (rc <= 0)
			return rc < 0 ? rc : tcp_late(t, 0, 0, timeout_ms);
	}
}

static int tcp_allgather(void *ctx, const void *mine, size_t n, void *all, int timeout_ms)
{
	struct tcp *t = ctx;

	if (t->broken)
		return t->failed.code;
	t->call++;
	if (n == 0)
		mine = all = t; /* any pointer but NULL */
	return t->comm.rank ? edge_allgather(t, mine, n, all, timeout_ms)
			    : centre_allgather(t, mine, n, all, timeout_ms);
}

static void tcp_explain(void *ctx, struct dcpload_error *err)
{
	const struct tcp *t = ctx;

	if (t->failed.code)
		*err = t->failed;
}

/* ---- life ---- */

/* Wait until the others have closed, at most LINGER_MS: closing with unread bytes would reset the
 * connections, and they would lose the last frame. */
static void await_closing(struct tcp *t)
{
	int64_t deadline = dcp_now_ms() + LINGER_MS;
	uint32_t left = t->nlines;
	char drain[4096];

	for (uint32_t i = 0; i < t->nlines; i++)
		if (t->line[i].fd >= 0)
			shutdown(t->line[i].fd, SHUT_WR);
	while (left && tcp_poll(t, deadline) > 0) {
		left = 0;
		for (uint32_t i = 0; i < t->nlines; i++) {
			struct load_line *l = &t->line[i];
			ssize_t n = -1;

			while (l->fd >= 0 && (n = recv(l->fd, drain, sizeof(drain), 0)) > 0)
				;
			if (l->fd >= 0 && n < 0 && (errno == EAGAIN || errno == EINTR))
				left++;
			else
				dcp_close_fd(&l->fd);
			t->poll[i] = (struct pollfd){ l->fd, POLLIN, 0 };
		}
	}
}

static void tcp_close(void *ctx)
{
	struct tcp *t = ctx;

	if (t->broken && t->comm.rank == 0)
		await_closing(t);
	for (uint32_t i = 0; t->line && i < t->nlines; i++)
		dcp_close_fd(&t->line[i].fd);
	free(t->line);
	free(t->poll);
	free(t->fd);
	free(t->room);
	memset(&t->m, 0, sizeof(t->m)); /* the key */
	free(t);
}

static int tcp_split(void *ctx, uint32_t color, uint32_t key, struct dcpload_comm **out,
		     int timeout_ms);

/* Allocate all memory of a communicator of m->ranks ranks; NULL: out of memory. */
static struct tcp *tcp_alloc(const struct load_meeting *m)
{
	struct tcp *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->nlines = m->rank ? 1 : m->ranks;
	t->line = calloc(t->nlines, sizeof(*t->line));
	t->poll = calloc(t->nlines, 2 * sizeof(*t->poll));
	t->fd = calloc(m->ranks, sizeof(*t->fd));
	t->room = calloc(1, DCP_MAX(load_meet_room(m), m->ranks));
	for (uint32_t i = 0; t->line && i < t->nlines; i++)
		t->line[i].fd = -1;
	for (uint32_t i = 0; t->poll && i < t->nlines; i++)
		t->poll[i].fd = -1;
	if (t->line && t->poll && t->fd && t->room)
		return t;
	tcp_close(t);
	return NULL;
}

/* Are all connections of this rank to itself or its own node? */
static bool is_near(const struct tcp *t)
{
	struct load_address a = { .n = sizeof(a.at) };

	return t->comm.rank == 0 || (getpeername(t->line[0].fd, (void *)&a.at, &a.n) == 0 &&
				     load_address_is_loopback(&a));
}

/* Turn @t into a communicator of the ranks that meet as @m says. Closes the listener of @m, and on
 * failure @t. */
static int tcp_meet(struct tcp *t, struct load_meeting *m, struct dcpload_comm **out,
		    struct dcpload_error *err)
{
	char near;
	int rc;

	t->comm = (struct dcpload_comm){
		.size = sizeof(t->comm),
		.rank = m->rank,
		.ranks = m->ranks,
		.name = "tcp",
		.ctx = t,
		.allgather = tcp_allgather,
		.split = tcp_split,
		.close = tcp_close,
		.explain = tcp_explain,
	};
	m->room = t->room;
	t->m = *m;
	rc = m->ranks > 1 ? load_meet(m, t->fd, &t->failed) : 0;
	for (uint32_t i = 0; m->ranks > 1 && i < t->nlines; i++)
		load_line_open(&t->line[i], t->fd[i]);
	/* Only rank 0 knows that all ranks are there, so it tells the others. */
	if (rc < 0)
		tcp_break(t, rc, t->failed.rank);
	else
		near = (char)is_near(t);
	if (rc == 0)
		rc = tcp_allgather(t, &near, 1, t->room, m->timeout_ms);
	if (rc == 0) {
		t->near = memchr(t->room, 0, m->ranks) == NULL;
		*out = &t->comm;
		return 0;
	}
	if (err)
		*err = t->failed;
	tcp_close(t);
	return rc;
}

/* Find the key of the job: the secret of the caller, that of the launcher, or that of the user's
 * file. On one node no key is needed. */
static int find_key(const struct dcpload_comm_config *config, const struct load_launch *job,
		    struct load_meeting *m, struct dcpload_error *err)
{
	const char *own = config->secret && *config->secret ? config->secret : job->secret,
		   *secret = *own ? own : job->key;
	char file[LOAD_SECRET_BYTES + 1];
	struct dcpload_error why = { 0 };
	dcp_auto_free char *dir = NULL;
	int rc = 0;

	m->any_user = *own != 0;
	if (!*secret && !m->node && job->ranks > 1) {
		dir = load_config_dir();
		rc = dir ? load_secret_of_user(dir, file, &why)
			 : load_fail(&why, -ENOENT, "this user has no home directory");
		secret = rc == 0 ? file : "";
		m->open = rc < 0;
	}
	load_digest(secret, strlen(secret), "dcpload", 7, m->key);
	explicit_bzero(file, sizeof(file));
	if (rc == 0 || config->flags & DCPLOAD_COMM_INSECURE)
		return 0;
	return load_fail(err, -EPERM,
			 "%s can be reached from other nodes, and the ranks have no secret to "
			 "know each other by (%s): set DCPLOAD_SECRET to a text that is the "
			 "same on all ranks, or allow any process to take part (--insecure)",
			 job->host, why.text);
}

int load_tcp_open(const struct dcpload_comm_config *config, struct dcpload_comm **out,
		  struct dcpload_error *err)
{
	struct load_launch job;
	struct load_meeting m = { .listener = -1 };
	struct tcp *t;
	char id[512];
	int rc = load_job_find(&job, err);

	if (rc == 0)
		rc = load_job_timeout(config->timeout_ms, &m.timeout_ms, err);
	if (rc < 0)
		return rc;
	m.rank = job.rank;
	m.ranks = job.ranks;
	m.port = job.port;
	m.nports = job.nports;
	m.node = job.spread == LOAD_SPREAD_NODE;
	m.apart = job.spread == LOAD_SPREAD_NODES;
	memcpy(m.host, job.host, sizeof(m.host));
	snprintf(id, sizeof(id), "%s %s %u", job.launcher, job.id, job.port);
	load_digest("job", 3, id, strlen(id), m.id);
	rc = find_key(config, &job, &m, err);
	if (rc == 0) {
		t = tcp_alloc(&m);
		rc = t ? tcp_meet(t, &m, out, err) : load_say(err, -ENOMEM);
	}
	explicit_bzero(&m, sizeof(m));
	return rc;
}

/* ---- sub-groups ---- */

/* How to connect: sent by the leader of a sub-group to its members. */
struct invitation {
	int32_t code;
	uint32_t port;
	uint8_t key[32];
	struct load_address at;
};

/* The address at which the others reach this rank: that of its connections, if it is the same for
 * all; otherwise .n is 0. */
static struct load_address own_address(const struct tcp *t)
{
	struct load_address own = { .n = 0 };

	for (uint32_t i = 0; i < t->nlines; i++) {
		struct load_address a = { .n = sizeof(a.at) };

		if (t->line[i].fd < 0 || getsockname(t->line[i].fd, (void *)&a.at, &a.n) < 0)
			continue;
		if (own.n && !load_address_same_host(&own, &a))
			return (struct load_address){ .n = 0 };
		own = a;
	}
	return own;
}

/* A leader listens on the address of its connections; on all addresses if it is connected only
 * within its node while other ranks are not. */
static void invite_followers(const struct tcp *t, struct load_meeting *m, struct invitation *in)
{
	const struct load_address this_node = LOAD_THIS_NODE, own = own_address(t);
	bool all = !own.n || (!t->near && load_address_is_loopback(&own));
	struct load_address got = { .n = sizeof(got.at) };

	in->at = own;
	in->code = load_random(in->key, sizeof(in->key));
	if (in->code < 0)
		return;
	m->listener = load_listen(t->m.node ? &this_node : all ? NULL : &own, 0, 0);
	if (m->listener < 0 || getsockname(m->listener, (void *)&got.at, &got.n) < 0)
		in->code = m->listener < 0 ? m->listener : -errno;
	else
		in->port = load_address_port(&got);
	if (t->m.node)
		in->at = got;
}

/* Find the address of @leader. A leader that reaches rank 0 through the loopback device is on the
 * machine of rank 0. */
static int accept_invitation(const struct tcp *t, uint32_t leader, const struct invitation *in,
			     struct load_meeting *m)
{
	m->at = in->at;
	if (t->comm.rank && !t->m.node &&
	    (leader == 0 || (!t->near && load_address_is_loopback(&in->at)))) {
		m->at.n = sizeof(m->at.at);
		if (getpeername(t->line[0].fd, (void *)&m->at.at, &m->at.n) < 0)
			return -errno;
	}
	m->port = (uint16_t)in->port;
	if (t->m.node)
		memcpy(m->host, t->m.host, sizeof(m->host));
	else
		load_address_text(&m->at, m->host, sizeof(m->host));
	return 0;
}

static int tcp_no_memory(struct tcp *t)
{
	load_fail(&t->failed, -ENOMEM,
		  "rank %u has no memory for the connections of a sub-group", t->comm.rank);
	return tcp_break(t, -ENOMEM, (int32_t)t->comm.rank);
}

static int tcp_split(void *ctx, uint32_t color, uint32_t key, struct dcpload_comm **out,
		     int timeout_ms)
{
	struct tcp *t = ctx;
	struct load_meeting m = { .listener = -1, .nports = 1, .timeout_ms = timeout_ms };
	struct load_wish wish = { color, key };
	struct invitation in = { 0 };
	dcp_auto_free struct load_wish *wishes = calloc(t->comm.ranks, sizeof(*wishes));
	dcp_auto_free struct invitation *all = calloc(t->comm.ranks, sizeof(*all));
	struct tcp *sub;
	uint32_t leader;
	int rc;

	if (!wishes ||
	    !all) /* the others wait for this rank's wish: they get the failure in its place */
		return tcp_no_memory(t);
	rc = tcp_allgather(t, &wish, sizeof(wish), wishes, timeout_ms);
	if (rc < 0)
		return rc;
	leader = load_group(wishes, t->comm.ranks, t->comm.rank, &m.ranks, &m.rank);
	/* Checked before the ranks meet, because after that a failing rank could not notify the
	 * others. */
	sub = tcp_alloc(&m);
	in.code = sub ? 0 : -ENOMEM;
	if (sub && leader == t->comm.rank && m.ranks > 1)
		invite_followers(t, &m, &in);
	rc = tcp_allgather(t, &in, sizeof(in), all, timeout_ms);
	for (uint32_t r = 0; r < t->comm.ranks && rc == 0; r++)
		if (all[r].code < 0) {
			rc = load_fail(&t->failed, all[r].code,
				       "rank %u cannot connect to its sub-group: %s", r,
				       strerror(-all[r].code));
			t->failed.rank = (int32_t)r;
		}
	if (rc == 0 && m.rank)
		rc = accept_invitation(t, leader, &all[leader], &m);
	if (rc < 0) {
		if (m.listener >= 0)
			close(m.listener);
		if (sub)
			tcp_close(sub);
		return rc;
	}
	m.node = t->m.node;
	m.any_user = t->m.any_user;
	load_digest(t->m.id, sizeof(t->m.id), all[leader].key, sizeof(all[leader].key), m.id);
	load_digest(t->m.key, sizeof(t->m.key), all[leader].key, sizeof(all[leader].key),
		    m.key);
	return tcp_meet(sub, &m, out, &t->failed);
}

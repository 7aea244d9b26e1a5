/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last rank of a node that comes to a call does the work of all, while the others wait: so what
 * is copied from and to is there until it is done, and sockets have one user.
 */
#include "tests/unit/t/comm.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/system.h"
#include "tests/unit/t.h"

/* Of a rank: exchange_all(), or gather_all() where @send is NULL. */
struct call {
	const void *const *send;
	const uint64_t *nsend;
	void *const *recv;
	const uint64_t *nrecv;
	const void *mine;
	size_t n;
	char *all;
};

struct node {
	pthread_mutex_t lock;
	pthread_cond_t turned;
	uint32_t self, nodes, each;
	uint32_t here, gone;
	uint64_t turn; /* how often all have met */
	int rc;        /* of the last time */
	const struct call *call[T_COMM_RANKS];
	int fd[T_COMM_RANKS]; /* to each node, but itself */
	struct t_comm_node got;
	t_comm_rank_fn rank;
	void *arg;
};

struct member {
	struct node *node;
	uint32_t number; /* in its node */
	struct dcpload_comm comm;
	pthread_t thread;
	int got;
};

/* ---- between nodes ---- */

/* Before the bytes of a message. */
struct head {
	uint32_t from, to;
	uint64_t n;
};

/* To or from one node: messages in the order in which both sides know that they come. */
struct queue {
	struct message {
		struct head head;
		char *data;
	} * v;
	size_t n, next;
	size_t done;      /* bytes of the next, with its head */
	struct head head; /* that arrived */
};

static void put_message(struct queue *q, uint32_t from, uint32_t to, const void *data,
			uint64_t n)
{
	if (n)
		q->v[q->n++] = (struct message){ { from, to, n }, (char *)(uintptr_t)data };
}

/* As much as goes without waiting. */
static int move_bytes(int fd, struct queue *q, bool in)
{
	while (q->next < q->n) {
		struct message *m = &q->v[q->next];
		size_t at = DCP_MIN(q->done, sizeof(m->head)), of = q->done - at;
		struct iovec io[2] = { { (char *)(in ? &q->head : &m->head) + at,
					 sizeof(m->head) - at },
				       { m->data + of, m->head.n - of } };
		struct msghdr msg = { .msg_iov = io, .msg_iovlen = 2 };
		ssize_t n = in ? recvmsg(fd, &msg, MSG_DONTWAIT)
			       : sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return 0;
		if (n <= 0)
			return -ECONNRESET;
		q->done += (size_t)n;
		if (in && q->done >= sizeof(m->head) &&
		    memcmp(&q->head, &m->head, sizeof(m->head)))
			return -EPROTO;
		if (q->done == sizeof(m->head) + m->head.n) {
			q->next++;
			q->done = 0;
		}
	}
	return 0;
}

/* All queues, @in[node] and @out[node]. */
static int carry_queues(struct node *nd, struct queue *out, struct queue *in, int timeout_ms)
{
	int64_t until = dcp_now_ms() + timeout_ms;

	for (;;) {
		struct pollfd p[T_COMM_RANKS] = { 0 };
		int64_t now = dcp_now_ms();
		bool left = false;
		int rc = 0;

		for (uint32_t r = 0; r < nd->nodes; r++) {
			p[r].events = (short)((in[r].next < in[r].n ? POLLIN : 0) |
					      (out[r].next < out[r].n ? POLLOUT : 0));
			p[r].fd = p[r].events ? nd->fd[r] : -1;
			left |= p[r].events;
		}
		if (!left)
			return 0;
		if (now >= until || poll(p, nd->nodes, (int)(until - now)) == 0)
			return -ETIMEDOUT;
		for (uint32_t r = 0; r < nd->nodes && rc == 0; r++) {
			if (p[r].revents && p[r].events & POLLIN)
				rc = move_bytes(nd->fd[r], &in[r], true);
			if (rc == 0 && p[r].revents && p[r].events & POLLOUT)
				rc = move_bytes(nd->fd[r], &out[r], false);
		}
		if (rc < 0)
			return rc;
	}
}

/* Messages of the ranks of this node to and from those of @other. */
static void queue_messages(const struct node *nd, uint32_t other, struct queue *out,
			   struct queue *in)
{
	uint32_t us = nd->self * nd->each, them = other * nd->each;

	for (uint32_t i = 0; i < nd->each; i++)
		for (uint32_t k = 0; k < nd->each; k++) {
			const struct call *from = nd->call[i], *to = nd->call[k];

			put_message(out, us + i, them + k, from->send[them + k],
				    from->nsend[them + k]);
			put_message(in, them + i, us + k, to->recv[them + i],
				    to->nrecv[them + i]);
		}
}

/* A call of all ranks of this node. */
static int serve_call(struct node *nd, int timeout_ms)
{
	size_t first = nd->self * nd->each, most = (size_t)nd->each * nd->each;
	const struct call *one = nd->call[0];
	struct queue *q = NULL, *in;
	int rc = 0;

	for (uint32_t i = 0; i < nd->each; i++)
		for (uint32_t k = 0; k < nd->each && one->send; k++) {
			const struct call *from = nd->call[i], *to = nd->call[k];

			if (from->nsend[first + k] != to->nrecv[first + i])
				return -EPROTO;
			if (to->nrecv[first + i])
				memcpy(to->recv[first + i], from->send[first + k],
				       to->nrecv[first + i]);
		}
	for (uint32_t i = 0; i < nd->each && !one->send; i++)
		memcpy(one->all + (first + i) * one->n, nd->call[i]->mine, one->n);

	if (nd->nodes > 1) {
		q = calloc(nd->nodes * 2, sizeof(*q) + most * sizeof(*q->v));
		in = q + nd->nodes;
		for (uint32_t r = 0; r < nd->nodes; r++) {
			struct message *v = (struct message *)(in + nd->nodes) + 2 * most * r;

			q[r].v = v;
			in[r].v = v + most;
			if (r == nd->self)
				continue;
			if (one->send)
				queue_messages(nd, r, &q[r], &in[r]);
			else {
				uint64_t n = nd->each * one->n;

				put_message(&q[r], nd->self, r, one->all + nd->self * n, n);
				put_message(&in[r], r, nd->self, one->all + r * n, n);
			}
		}
		rc = carry_queues(nd, q, in, timeout_ms);
		for (uint32_t r = 0; r < nd->nodes && one->send; r++)
			for (size_t i = 0; i < in[r].next; i++) {
				nd->got.messages++;
				nd->got.bytes += in[r].v[i].head.n;
			}
		free(q);
	}
	for (uint32_t i = 1; i < nd->each && !one->send; i++)
		memcpy(nd->call[i]->all, one->all, (size_t)nd->nodes * nd->each * one->n);
	return rc;
}

/* ---- ranks ---- */

/* With its lock: a rank does not come any more. */
static void leave_node(struct node *nd)
{
	nd->gone++;
	for (uint32_t r = 0; r < nd->nodes; r++)
		if (r != nd->self)
			shutdown(nd->fd[r], SHUT_RDWR);
	pthread_cond_broadcast(&nd->turned);
}

/* All ranks of the node meet; -ECONNRESET when they cannot any more, -ETIMEDOUT. */
static int meet_ranks(const struct member *m, const struct call *call, int timeout_ms)
{
	struct node *nd = m->node;
	struct timespec until;
	uint64_t turn;
	int rc = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += timeout_ms / 1000;
	until.tv_nsec += timeout_ms % 1000 * 1000000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;

	pthread_mutex_lock(&nd->lock);
	turn = nd->turn;
	nd->call[m->number] = call;
	if (!nd->gone && ++nd->here == nd->each) {
		nd->rc = serve_call(nd, timeout_ms);
		nd->here = 0;
		nd->turn++;
		pthread_cond_broadcast(&nd->turned);
	}
	while (nd->turn == turn && !nd->gone && rc == 0)
		rc = -pthread_cond_timedwait(&nd->turned, &nd->lock, &until);
	if (nd->turn != turn)
		rc = nd->rc;
	else if (nd->gone)
		rc = -ECONNRESET;
	if (rc)
		leave_node(nd); /* what others would copy may be gone with it */
	pthread_mutex_unlock(&nd->lock);
	return rc;
}

static int gather_all(void *ctx, const void *mine, size_t n, void *all, int timeout_ms)
{
	const struct call call = { .mine = mine, .n = n, .all = all };

	return meet_ranks(ctx, &call, timeout_ms);
}

static int exchange_all(void *ctx, const void *const *send, const uint64_t *nsend,
			void *const *recv, const uint64_t *nrecv, int timeout_ms)
{
	const struct call call = { send, nsend, recv, nrecv, NULL, 0, NULL };

	return meet_ranks(ctx, &call, timeout_ms);
}

void t_comm_node(const struct dcpload_comm *comm, struct t_comm_node *out)
{
	*out = ((const struct member *)comm->ctx)->node->got;
}

static void *run_member(void *arg)
{
	struct member *m = arg;
	struct node *nd = m->node;

	m->got = nd->rank(&m->comm, nd->arg);
	pthread_mutex_lock(&nd->lock);
	leave_node(nd);
	pthread_mutex_unlock(&nd->lock);
	return NULL;
}

static int run_node(struct node *nd)
{
	struct member m[T_COMM_RANKS] = { 0 };
	int sum = 0;

	pthread_mutex_init(&nd->lock, NULL);
	pthread_cond_init(&nd->turned, NULL);
	for (uint32_t r = 0; r < nd->each; r++) {
		m[r].node = nd;
		m[r].number = r;
		m[r].comm = (struct dcpload_comm){
			.size = sizeof(m[r].comm),
			.rank = nd->self * nd->each + r,
			.ranks = nd->nodes * nd->each,
			.flags = DCPLOAD_COMM_THREADS,
			.name = "threads",
			.ctx = &m[r],
			.allgather = gather_all,
			.alltoallv = exchange_all,
		};
		if (pthread_create(&m[r].thread, NULL, run_member, &m[r]))
			abort();
	}
	for (uint32_t r = 0; r < nd->each; r++) {
		pthread_join(m[r].thread, NULL);
		sum += m[r].got;
	}
	pthread_cond_destroy(&nd->turned);
	pthread_mutex_destroy(&nd->lock);
	return sum;
}

int t_comm_run(uint32_t ranks, t_comm_rank_fn rank, void *arg)
{
	struct node nd = { .nodes = 1, .each = ranks, .rank = rank, .arg = arg };

	assert_true(ranks <= T_COMM_RANKS);
	return run_node(&nd);
}

/* ---- processes ---- */

/* The child of @nd->self. */
_Noreturn static void be_node(struct node *nd, int (*pair)[T_COMM_RANKS])
{
	char name[16];
	int sum;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (uint32_t a = 0; a < nd->nodes; a++)
		for (uint32_t b = 0; b < nd->nodes; b++)
			if (a == nd->self)
				nd->fd[b] = pair[a][b];
			else if (a != b)
				close(pair[a][b]);
	snprintf(name, sizeof(name), "node%u", nd->self);
	nd->got.nodes = unshare(CLONE_NEWUTS) == 0 && sethostname(name, strlen(name)) == 0
				? nd->nodes
				: 1;
	sum = run_node(nd);
	exit(DCP_MIN(sum, 100));
}

int t_comm_run_nodes(uint32_t nodes, uint32_t each, int patience_ms, t_comm_rank_fn rank,
		     void *arg)
{
	int pair[T_COMM_RANKS][T_COMM_RANKS], two[2], alive[2], sum = 0;
	struct pollfd ended = { .events = POLLIN };
	pid_t pid[T_COMM_RANKS];

	assert_true(nodes <= T_COMM_RANKS && each <= T_COMM_RANKS);
	assert_int_equal(pipe(alive), 0);
	for (uint32_t a = 0; a < nodes; a++)
		for (uint32_t b = 0; b < a; b++) {
			assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, two), 0);
			pair[a][b] = two[0];
			pair[b][a] = two[1];
		}
	fflush(NULL);
	for (uint32_t a = 0; a < nodes; a++) {
		struct node nd = {
			.self = a, .nodes = nodes, .each = each, .rank = rank, .arg = arg
		};

		pid[a] = fork();
		assert_true(pid[a] >= 0);
		if (pid[a] == 0)
			be_node(&nd, pair);
	}
	for (uint32_t a = 0; a < nodes; a++)
		for (uint32_t b = 0; b < nodes; b++)
			if (a != b)
				close(pair[a][b]);
	close(alive[1]); /* the end of it is that of all */
	ended.fd = alive[0];
	if (poll(&ended, 1, patience_ms) == 0)
		for (uint32_t a = 0; a < nodes; a++)
			kill(pid[a], SIGKILL);
	close(alive[0]);
	for (uint32_t a = 0; a < nodes; a++) {
		int status = 0;

		waitpid(pid[a], &status, 0);
		sum += WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	}
	return sum;
}

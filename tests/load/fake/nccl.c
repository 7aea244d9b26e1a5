/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libnccl.so.2 between processes of this machine, for the memory of the fake libcuda.so.1 beside
 * it. Bytes go through a file in /dev/shm: a mailbox for each pair of ranks. As NCCL does, it only
 * begins what it is told, queues it when it is asked how far it is, and refuses memory of the host,
 * lengths that differ between the two ends, and two ranks on one device (unless
 * NCCL_MULTI_RANK_GPU_ENABLE is set).
 *
 * FAKE_CUDA_FAIL names its calls, too. "hang": what it begins never ends. A code of
 * ncclCommGetAsyncError is what it answers: the communicator failed. FAKE_NCCL_VERSION: 22809 by
 * default. FAKE_NCCL_SLOW: milliseconds until a rank begins to meet the others.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/load/fake/fake.h"
#include "tools/load/memory/nccl_abi.h"

#define DECLARE(result, name, arguments)                                                       \
	__attribute__((visibility("default"))) result name arguments;
LOAD_NCCL_CALLS(DECLARE)

enum {
	UNHANDLED = 1,
	WRONG_ARGUMENT = 4,
	WRONG_USAGE = 5,
	MOST_RANKS = 16,
	BOX = 64 << 10,
	MOST_MESSAGES = 64,
	SLOW = 2, /* questions until it has begun */
};

/* From one rank to another: bytes written and read so far. Each message begins with its length. */
struct box {
	_Atomic uint64_t in, out;
	char data[BOX];
};

struct shared {
	_Atomic unsigned joined;
	_Atomic int device[MOST_RANKS]; /* plus 1 */
	struct box box[MOST_RANKS][MOST_RANKS];
};

struct message {
	struct box *box;
	char *p;
	uint64_t n, at;
	bool out, begun;
};

struct ncclComm {
	struct ncclComm *next;
	char *file; /* of rank 0, until all have joined */
	struct shared *shared;
	unsigned ranks, self, slow;
	_Atomic unsigned state;
	_Atomic bool hangs, ends;
};

struct group {
	struct ncclComm *comm;
	struct CUstream_st *stream;
	struct message message[MOST_MESSAGES];
	unsigned n;
};

static struct load_nccl_id
	left; /* by rank 0, which did not begin: others may wait there for it */
static struct ncclComm *_Atomic all; /* never freed: what is queued may look at them */
static __thread struct group *group, *begun;
static __thread unsigned depth;

#define MAY_FAIL(name)                                                                         \
	do {                                                                                   \
		int code_ = fake_fails(name);                                                  \
		if (code_ > 0)                                                                 \
			return (unsigned)code_;                                                \
	} while (0)

/* ---- meeting ---- */

unsigned ncclGetVersion(int *version)
{
	MAY_FAIL("ncclGetVersion");
	*version = fake_number("FAKE_NCCL_VERSION", 22809);
	return 0;
}

const char *ncclGetErrorString(unsigned code)
{
	return code == WRONG_ARGUMENT ? "invalid argument"
	       : code == WRONG_USAGE  ? "invalid usage"
				      : "some error";
}

const char *ncclGetLastError(struct ncclComm *comm)
{
	return comm && comm->state == WRONG_USAGE ? "Duplicate GPU detected, or lengths differ"
						  : "";
}

unsigned ncclGetUniqueId(struct load_nccl_id *id)
{
	int fd;

	MAY_FAIL("ncclGetUniqueId");
	strcpy(id->bytes, "/dev/shm/fake-nccl-XXXXXX");
	fd = mkostemp(id->bytes, O_CLOEXEC);
	if (fd < 0 || fchmod(fd, 0666) < 0 || ftruncate(fd, sizeof(struct shared)) < 0)
		return UNHANDLED; /* ranks may be of different users */
	close(fd);
	return 0;
}

static void __attribute__((destructor)) remove_left(void)
{
	if (left.bytes[0])
		unlink(left.bytes);
}

unsigned ncclCommInitRankConfig(struct ncclComm **out, int ranks, struct load_nccl_id id,
				int rank, struct load_nccl_config *config)
{
	struct ncclComm *c;
	int fd, code = fake_fails("ncclCommInitRankConfig");

	if (code > 0 && rank == 0)
		left = id;
	if (code > 0)
		return (unsigned)code;
	if (config->size != sizeof(*config) || config->magic != LOAD_NCCL_MAGIC ||
	    config->version != LOAD_NCCL_LEAST || config->blocking || rank < 0 ||
	    rank >= ranks || ranks > MOST_RANKS || fake_context_device() < 0)
		return WRONG_ARGUMENT;
	usleep((unsigned)fake_number("FAKE_NCCL_SLOW", 0) * 1000);
	c = calloc(1, sizeof(*c));
	fd = open(id.bytes, O_RDWR | O_CLOEXEC);
	if (!c || fd < 0) {
		free(c);
		return UNHANDLED;
	}
	c->shared = mmap(NULL, sizeof(*c->shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (c->shared == MAP_FAILED)
		return UNHANDLED;
	c->file = rank == 0 ? strdup(id.bytes) : NULL;
	c->next = atomic_exchange(&all, c);
	c->ranks = (unsigned)ranks;
	c->self = (unsigned)rank;
	c->hangs = code < 0;
	c->shared->device[rank] = fake_context_device() + 1;
	if (!c->hangs)
		c->shared->joined++;
	c->state = LOAD_NCCL_IN_PROGRESS;
	*out = c;
	return LOAD_NCCL_IN_PROGRESS;
}

static bool is_duplicate(const struct ncclComm *c)
{
	for (unsigned r = 0; r < c->ranks; r++)
		for (unsigned q = 0; q < r; q++)
			if (c->shared->device[q] == c->shared->device[r])
				return !fake_number("NCCL_MULTI_RANK_GPU_ENABLE", 0);
	return false;
}

static void forget_file(struct ncclComm *c)
{
	if (c->file)
		unlink(c->file);
	free(c->file);
	c->file = NULL;
}

unsigned ncclCommAbort(struct ncclComm *c)
{
	forget_file(c);
	fake_tell("nccl abort\n");
	if (fake_fails("ncclCommAbort") > 0)
		return UNHANDLED;
	c->ends = true;
	if (begun && begun->comm == c) {
		free(begun);
		begun = NULL;
	}
	return 0;
}

/* ---- on the stream ---- */

/* Move what can be moved. */
static void move_bytes(struct message *m)
{
	uint64_t have = m->box->in - m->box->out, n = m->out ? BOX - have : have, first;
	uint64_t at = (m->out ? m->box->in : m->box->out) % BOX;

	if (n > m->n - m->at)
		n = m->n - m->at;
	first = n < BOX - at ? n : BOX - at;
	if (m->out) {
		memcpy(m->box->data + at, m->p + m->at, first);
		memcpy(m->box->data, m->p + m->at + first, n - first);
		m->box->in += n;
	} else {
		memcpy(m->p + m->at, m->box->data + at, first);
		memcpy(m->p + m->at + first, m->box->data, n - first);
		m->box->out += n;
	}
	m->at += n;
}

/* The length of a message goes before it. */
static bool begin_message(struct ncclComm *c, struct message *m)
{
	uint64_t n = m->n;
	struct message length = {
		.box = m->box, .p = (char *)&n, .n = sizeof(n), .out = m->out
	};

	if (m->out ? BOX - (m->box->in - m->box->out) < sizeof(n)
		   : m->box->in - m->box->out < sizeof(n))
		return false;
	move_bytes(&length);
	if (n != m->n)
		c->state = WRONG_USAGE;
	return n == m->n;
}

/* A step of all messages of a group. false: they are not done. */
static bool step_group(void *arg)
{
	struct group *g = arg;
	bool done = true;

	if (g->comm->ends)
		return true;
	if (g->comm->hangs || g->comm->state == WRONG_USAGE)
		return false;
	for (unsigned i = 0; i < g->n; i++) {
		struct message *m = &g->message[i];

		m->begun = m->begun || begin_message(g->comm, m);
		if (m->begun)
			move_bytes(m);
		done = done && m->begun && m->at == m->n;
	}
	return done;
}

/* Does it use of these bytes? */
static bool uses_bytes(const void *arg, const char *p, size_t n)
{
	const struct group *g = arg;
	bool found = false;

	for (unsigned i = 0; i < g->n && !g->comm->ends; i++)
		found |= g->message[i].p >= p && g->message[i].p < p + n;
	return found;
}

unsigned ncclCommGetAsyncError(struct ncclComm *c, unsigned *state)
{
	int code = fake_fails("ncclCommGetAsyncError");

	if (code > 0)
		c->state = (unsigned)code;
	if (c->state == LOAD_NCCL_IN_PROGRESS && !c->hangs && c->slow++ >= SLOW) {
		if (begun && begun->comm == c) {
			c->state =
				fake_queue_steps(begun->stream, step_group, uses_bytes, begun);
			begun = NULL;
		} else if (c->shared->joined == c->ranks) {
			c->state = is_duplicate(c) ? WRONG_USAGE : 0;
			forget_file(c);
		}
	}
	*state = c->state;
	return 0;
}

/* ---- groups ---- */

unsigned ncclGroupStart(void)
{
	MAY_FAIL("ncclGroupStart");
	if (depth++ == 0)
		group = calloc(1, sizeof(*group));
	return group ? 0 : UNHANDLED;
}

unsigned ncclGroupEnd(void)
{
	struct group *g = group;
	int code = fake_fails("ncclGroupEnd");

	if (!depth || --depth)
		return depth ? 0 : WRONG_USAGE;
	group = NULL;
	if (!g->comm || code > 0) {
		free(g);
		return code > 0 ? (unsigned)code : 0;
	}
	fake_tell("nccl %u messages\n", g->n);
	g->comm->hangs = code < 0;
	g->comm->state = LOAD_NCCL_IN_PROGRESS;
	g->comm->slow = 0;
	free(begun);
	begun = g;
	return LOAD_NCCL_IN_PROGRESS;
}

static unsigned add_message(struct ncclComm *c, struct CUstream_st *stream, unsigned peer,
			    char *p, uint64_t n, bool out)
{
	struct shared *s = c->shared;

	if (!group || group->n == MOST_MESSAGES || peer >= c->ranks || c->ends || c->state ||
	    fake_device_of(p) < 0 || fake_device_of(p + n - 1) < 0)
		return WRONG_ARGUMENT;
	group->comm = c;
	group->stream = stream;
	group->message[group->n++] =
		(struct message){ .box = out ? &s->box[c->self][peer] : &s->box[peer][c->self],
				  .p = p,
				  .n = n,
				  .out = out };
	return 0;
}

unsigned ncclSend(const void *p, size_t n, unsigned type, int to, struct ncclComm *c,
		  struct CUstream_st *stream)
{
	MAY_FAIL("ncclSend");
	return type == LOAD_NCCL_UINT8
		       ? add_message(c, stream, (unsigned)to, (char *)(uintptr_t)p, n, true)
		       : WRONG_ARGUMENT;
}

unsigned ncclRecv(void *p, size_t n, unsigned type, int from, struct ncclComm *c,
		  struct CUstream_st *stream)
{
	MAY_FAIL("ncclRecv");
	return type == LOAD_NCCL_UINT8 ? add_message(c, stream, (unsigned)from, p, n, false)
				       : WRONG_ARGUMENT;
}

unsigned ncclAllGather(const void *mine, void *whole, size_t n, unsigned type,
		       struct ncclComm *c, struct CUstream_st *stream)
{
	unsigned code;

	MAY_FAIL("ncclAllGather");
	if (mine != (char *)whole + c->self * n || type != LOAD_NCCL_UINT8)
		return WRONG_ARGUMENT;
	code = ncclGroupStart();
	for (unsigned r = 0; r < c->ranks && code == 0; r++) {
		if (r == c->self)
			continue;
		code = add_message(c, stream, r, (char *)(uintptr_t)mine, n, true);
		if (code == 0)
			code = add_message(c, stream, r, (char *)whole + r * n, n, false);
	}
	return code ? code : ncclGroupEnd();
}

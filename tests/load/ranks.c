/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a job that talks: ranks HOW STEP...
 *
 * HOW is given to dcpload_comm_open(). Steps, in which R is a rank:
 *	timeout=MS    of the steps that follow
 *	agree, agree=R    all is well; rank R failed
 *	gather=N      N + rank bytes of every rank, compared
 *	nodes         how many there are
 *	split=K       go on in groups of the ranks that are equal modulo K, in reverse order
 *	back          go on in the group that was left
 *	die=R, hang=R, late=R    rank R ends without a word; sleeps for ever; sleeps half a second
 *	forge-KIND=R  rank R, which has shown the secret, sends frames of its own making and ends: "here" many of the frame
 *	              that asks for patience, "long" a length of 2^60, "code" a failure that is none, "noise" random bytes
 *	memory=N, memory=0    the N-th allocation from now on fails on rank 1, and all after it; none does
 *	bulk=N        N + sender bytes from each to each
 *	load          the group loads LOAD_SOURCE, each byte read once, and checks it
 *		of version LOAD_VERSION, if that is set
 *	coordinator=R    of what is loaded from now on
 *	objects       the same; what the hooks give of objects goes to LOAD_OBJECTS/RANK: a line with the length
 *	              of the bytes, of the JSON, and the key; then these (-1: NULL)
 * ranks N HOW STEP... is all N ranks, each a process; of these only rank 0 and those that fail
 * print a line.
 * LOAD_BUSY: a rank that is welcomed reads that after 6 s only. LOAD_INSECURE: as --insecure.
 * Prints a line of JSON: {"rank", "ranks", "comm", "nodes", "step", "code", "error_rank",
 * "text"}.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/t/fault.h"
#include "tools/load/comm/comm.h"
#include "tools/load/comm/meet.h"

static int timeout_ms = 500000;
static uint32_t nodes_seen, coordinator, exchange = DCPLOAD_EXCHANGE_ALL, plan_flags;
static int wants_wrongly = -1; /* the rank that wants what is not there; -1: none */
static char version[64];

/* In place of libc's. */
ssize_t recv(int fd, void *p, size_t n, int flags)
{
	static bool was_late;

	if (n == sizeof(struct welcome) && !was_late && getenv("LOAD_BUSY")) {
		was_late = true;
		sleep(6);
		errno = EAGAIN;
		return -1;
	}
	return recvfrom(fd, p, n, flags, NULL, NULL);
}

static int try_gather(const struct dcpload_comm *c, uint64_t n, struct dcpload_error *err)
{
	uint64_t mine = n + c->rank;
	unsigned char *p = malloc(mine + 1);
	struct load_blobs all;
	int rc;

	memset(p, (int)c->rank + 1, mine);
	rc = load_gather(c, p, mine, &all, err, timeout_ms);
	free(p);
	for (uint32_t r = 0; rc == 0 && r < c->ranks; r++) {
		const unsigned char *q = all.at[r];

		for (uint64_t i = 0; i < all.n[r]; i++)
			if (all.n[r] != n + r || q[i] != (unsigned char)(r + 1))
				rc = load_fail(err, -EBADMSG, "byte %llu of rank %u is %u",
					       (unsigned long long)i, r, q[i]);
	}
	if (rc == 0)
		load_blobs_free(&all);
	return rc;
}

static int try_bulk(const struct dcpload_comm *c, uint64_t n, struct dcpload_error *err)
{
	const void **send = calloc(c->ranks, sizeof(*send));
	void **recv = calloc(c->ranks, sizeof(*recv));
	uint64_t *nsend = calloc(c->ranks, sizeof(*nsend)),
		 *nrecv = calloc(c->ranks, sizeof(*nrecv));
	char *mine = malloc(n + c->rank + 1);
	int rc;

	if (!c->alltoallv)
		return load_fail(err, -ENOTSUP, "no alltoallv");
	memset(mine, (int)c->rank + 1, n + c->rank);
	for (uint32_t r = 0; r < c->ranks; r++) {
		send[r] = mine;
		nsend[r] = n + c->rank;
		nrecv[r] = n + r;
		recv[r] = malloc(nrecv[r] + 1);
	}
	rc = c->alltoallv(c->ctx, send, nsend, recv, nrecv, timeout_ms);
	rc = load_comm_say(c, rc, err);
	for (uint32_t r = 0; rc == 0 && r < c->ranks; r++)
		for (uint64_t i = 0; i < nrecv[r]; i++)
			if (((char *)recv[r])[i] != (char)(r + 1))
				rc = load_fail(err, -EBADMSG, "byte %llu of rank %u",
					       (unsigned long long)i, r);
	for (uint32_t r = 0; r < c->ranks; r++)
		free(recv[r]);
	free(send);
	free(recv);
	free(nsend);
	free(nrecv);
	free(mine);
	return rc;
}

/* The object that is being told. */
struct told {
	FILE *f;
	char *bytes;
	uint64_t n;
	int none;
};

static int on_bytes(void *ctx, const char *key, const void *bytes, uint64_t n, uint64_t at,
		    uint64_t total)
{
	struct told *t = ctx;

	(void)key;
	if (at == 0) {
		free(t->bytes);
		t->bytes = malloc(total + 1);
		t->n = 0;
	}
	t->none = !bytes;
	if (at != t->n || n > total - at || n > 64 << 10)
		return -EPROTO;
	if (n)
		memcpy(t->bytes + at, bytes, n);
	t->n += n;
	return 0;
}

static int on_object(void *ctx, const char *key, const char *type, const char *json, uint64_t n)
{
	struct told *t = ctx;

	(void)type;
	fprintf(t->f, "%lld %lld %s\n", t->none ? -1LL : (long long)t->n,
		json ? (long long)n : -1LL, key);
	fwrite(t->bytes, 1, t->n, t->f);
	if (json)
		fwrite(json, 1, n, t->f);
	return 0;
}

static int load_version(const struct dcpload_comm *c, struct told *told,
			struct dcpload_error *err)
{
	const struct dcpload_hooks hooks = {
		.size = sizeof(hooks), .ctx = told, .object = on_object, .bytes = on_bytes
	};
	const struct dcpload_config config = { .size = sizeof(config),
					       .exchange = exchange,
					       .timeout_ms = (uint32_t)timeout_ms,
					       .cache = "",
					       .version = getenv("LOAD_VERSION"),
					       .coordinator = coordinator };
	struct dcpload_plan *plan = NULL;
	struct dcpload *ck = NULL;
	char layout[16];
	int rc = dcpload_open(c, getenv("LOAD_SOURCE"), &config, &ck, err);

	snprintf(layout, sizeof(layout), "fsdp%u", c->ranks);
	if (rc == 0)
		rc = dcpload_plan_create(ck, plan_flags, &plan, err);
	if (rc == 0)
		rc = dcpload_want_layout(plan, layout, c->rank, NULL, err);
	if (rc == 0 && wants_wrongly == (int)c->rank &&
	    dcpload_want(plan,
			 &(struct dcpload_want){ .size = sizeof(struct dcpload_want),
						 .key = "nothing" },
			 err) < 0)
		dcpload_plan_give_up(plan, err);
	if (rc == 0)
		rc = dcpload_plan_finish(plan, err);
	if (rc == 0 && told)
		dcpload_plan_hooks(plan, &hooks);
	if (rc == 0)
		rc = dcpload_execute(plan, err);
	if (rc == 0)
		rc = dcpload_check(plan, err);
	if (rc == 0)
		snprintf(version, sizeof(version), "%s", dcpload_version(ck));
	dcpload_plan_free(plan);
	dcpload_close(ck);
	return rc;
}

static int load_objects(const struct dcpload_comm *c, struct dcpload_error *err)
{
	struct told told = { 0 };
	char path[512];
	int rc;

	snprintf(path, sizeof(path), "%s/%u", getenv("LOAD_OBJECTS"), c->rank);
	told.f = fopen(path, "wb");
	rc = told.f ? load_version(c, &told, err) : load_fail(err, -errno, "%s", path);
	if (told.f)
		fclose(told.f);
	free(told.bytes);
	return rc;
}

/* Through every socket of this process. */
static void forge_frame(const char *kind)
{
	struct {
		struct load_frame head;
		struct dcpload_error error;
	} f = { { LOAD_FRAME_DATA, 2, 1ull << 60 }, { 0 } };
	size_t n = sizeof(f.head), times = 1;

	if (strcmp(kind, "here") == 0) {
		f.head = (struct load_frame){ LOAD_FRAME_HERE, 0, 0 };
		times = 200000;
	} else if (strcmp(kind, "code") == 0) {
		f.head = (struct load_frame){ LOAD_FRAME_FAILED, 2, sizeof(f.error) };
		memset(&f.error, 0x41,
		       sizeof(f.error)); /* a positive code, a rank of no job, a text without an end */
		n = sizeof(f);
	} else if (strcmp(kind, "noise") == 0) {
		for (n = 0; n < sizeof(f); n++)
			((unsigned char *)&f)[n] = (unsigned char)(n * 151 + 7);
	}
	for (size_t i = 0; i < times; i++)
		for (int fd = 3; fd < 64; fd++)
			if (send(fd, &f, n, MSG_NOSIGNAL) < 0 &&
			    (errno == EPIPE || errno == ECONNRESET))
				times = 0;
	kill(getpid(), SIGKILL);
}

static int take_step(const struct dcpload_comm *c, const char *name, uint64_t value, int given,
		     struct dcpload_error *err)
{
	int me = given && value == c->rank;
	uint32_t *node;
	int rc = 0;

	if (strcmp(name, "timeout") == 0)
		timeout_ms = (int)value;
	else if (strcmp(name, "exchange") == 0)
		exchange = (uint32_t)value;
	else if (strcmp(name, "flags") == 0)
		plan_flags = (uint32_t)value;
	else if (strcmp(name, "wrong") == 0)
		wants_wrongly = (int)value;
	else if (strcmp(name, "coordinator") == 0)
		coordinator = (uint32_t)value;
	else if (strcmp(name, "agree") == 0)
		rc = load_agree(
			c, me ? load_fail(err, -EIO, "rank %u was told to fail", c->rank) : 0,
			err, timeout_ms);
	else if (strcmp(name, "gather") == 0)
		rc = try_gather(c, value, err);
	else if (strcmp(name, "memory") == 0) {
		t_fault_memory = c->rank == 1 ? (long)value : 0;
		t_fault_for_good = value != 0;
	} else if (strcmp(name, "bulk") == 0)
		rc = try_bulk(c, value, err);
	else if (strcmp(name, "load") == 0)
		rc = load_version(c, NULL, err);
	else if (strcmp(name, "objects") == 0)
		rc = load_objects(c, err);
	else if (strcmp(name, "nodes") == 0) {
		node = calloc(c->ranks, sizeof(*node));
		rc = load_nodes(c, node, &nodes_seen, err, timeout_ms);
		free(node);
	} else if (strcmp(name, "die") == 0 && me)
		kill(getpid(), SIGKILL);
	else if (strcmp(name, "hang") == 0 && me)
		for (;;)
			pause();
	else if (strncmp(name, "forge-", 6) == 0 && me)
		forge_frame(name + 6);
	else if (strcmp(name, "late") == 0 && me)
		usleep(500000);
	return rc;
}

/*
 * Become each of @n ranks. Returns the number of a rank; -1: it was all of them, of which *@failed
 * failed.
 */
static int fork_ranks(int n, int *failed)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", n);
	setenv("WORLD_SIZE", text, 1);
	for (int r = 0; r < n; r++) {
		pid_t pid = fork();

		if (pid < 0)
			exit(2);
		if (pid == 0) {
			snprintf(text, sizeof(text), "%d", r);
			setenv("RANK", text, 1);
			return r;
		}
	}
	for (int status; wait(&status) > 0;)
		*failed += status != 0;
	return -1;
}

static void print_line(const struct dcpload_comm *c, const char *at, int rc,
		       const struct dcpload_error *err)
{
	printf("{\"rank\": %d, \"ranks\": %d, \"comm\": \"%s\", \"nodes\": %u, \"version\": "
	       "\"%s\", "
	       "\"step\": \"%s\", "
	       "\"code\": %d, \"error_rank\": %d, \"text\": \"",
	       c ? (int)c->rank : -1, c ? (int)c->ranks : -1, c ? c->name : "", nodes_seen,
	       version, at, rc, err->rank);
	for (const char *p = rc < 0 ? err->text : ""; *p; p++)
		printf(strchr("\"\\", *p) ? "\\%c" : "%c", *p);
	printf("\"}\n");
}

static int be_rank(int argc, char **argv, int quiet)
{
	struct dcpload_comm *comm[2] = { NULL, NULL };
	struct dcpload_error err = { 0 };
	const struct dcpload_comm_config config = { .size = sizeof(config),
						    .flags = getenv("LOAD_INSECURE")
								     ? DCPLOAD_COMM_INSECURE
								     : 0 };
	int depth = 0,
	    rc = argc > 1 ? dcpload_comm_open_as(argv[1], &config, &comm[0], &err) : -EINVAL,
	    i = 2;
	const char *at = "open";

	for (; rc == 0 && i < argc; i++) {
		char name[32];
		unsigned long long value = 0;
		int given = sscanf(argv[i], "%31[^=]=%llu", name, &value) == 2;
		struct dcpload_comm *c = comm[depth];

		at = argv[i];
		if (strcmp(name, "split") == 0) {
			rc = c->split(c->ctx, c->rank % (uint32_t)value, c->ranks - c->rank,
				      &comm[1], timeout_ms);
			rc = load_comm_say(c, rc, &err);
			depth = rc == 0;
		} else if (strcmp(name, "back") == 0) {
			dcpload_comm_close(comm[1]);
			comm[1] = NULL;
			depth = 0;
		} else
			rc = take_step(c, name, value, given, &err);
	}
	if (rc < 0 || !quiet)
		print_line(comm[depth], at, rc, &err);
	fflush(stdout);
	dcpload_comm_close(comm[1]);
	dcpload_comm_close(comm[0]);
	return rc < 0;
}

int main(int argc, char **argv)
{
	int n = argc > 2 ? atoi(argv[1]) : 0, failed = 0, rank = n ? fork_ranks(n, &failed) : 0;

	if (rank < 0)
		return failed != 0;
	return be_rank(argc - !!n, argv + !!n, rank > 0);
}

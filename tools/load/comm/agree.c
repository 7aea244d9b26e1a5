/* SPDX-License-Identifier: Apache-2.0 */
/* Collective steps over any transport: agreeing on a failure, gathering messages, finding nodes. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/hash.h"
#include "core/base/system.h"
#include "tools/load/comm/comm.h"

#define AGREE_ROOM (64u << 10)  /* bytes on the stack for messages of all ranks */
#define GATHER_ROOM (16u << 20) /* bytes of all ranks per round */
#define GATHER_MOST (64ull << 30)
#define MAX_RANKS (1u << 20)

int load_comm_check(const struct dcpload_comm *comm, struct dcpload_error *err)
{
	if (comm->size < sizeof(*comm))
		return load_fail(err, -EINVAL, "the communicator's size is %u, expected %zu",
				 comm->size, sizeof(*comm));
	if (comm->ranks == 0 || comm->ranks > MAX_RANKS || comm->rank >= comm->ranks)
		return load_fail(err, -EINVAL, "the communicator's rank is %u of %u",
				 comm->rank, comm->ranks);
	if (!comm->allgather || !comm->name)
		return load_fail(err, -EINVAL, "the communicator has no %s",
				 comm->name ? "allgather" : "name");
	return 0;
}

int load_comm_say(const struct dcpload_comm *comm, int rc, struct dcpload_error *err)
{
	if (rc >= 0 || !err)
		return rc;
	load_fail(err, rc, "%s: %s", comm->name,
		  rc == -ETIMEDOUT    ? "another rank does not answer"
		  : rc == -ECONNRESET ? "another rank has ended"
				      : strerror(-rc));
	if (comm->explain)
		comm->explain(comm->ctx, err);
	return rc;
}

struct verdict {
	int32_t code, rank; /* @rank -1: the sender */
	uint32_t len;       /* of the text */
};

/* Send @n bytes of rank @from's @text to all ranks. @room: AGREE_ROOM bytes of scratch. */
static int share_text(const struct dcpload_comm *comm, uint32_t from, char *text, size_t n,
		      char *room, int timeout_ms)
{
	size_t step = AGREE_ROOM / comm->ranks;
	int rc = 0;

	for (size_t at = 0; at < n && rc == 0; at += step) {
		size_t now = DCP_MIN(step, n - at);

		rc = comm->allgather(comm->ctx, text + at, now, room, timeout_ms);
		if (rc == 0)
			memcpy(text + at, room + from * now, now);
	}
	return rc;
}

/* Distance of an error from the cause: a rank with -ECANCELED only stopped because another rank
 * failed, and a rank with -ETIMEDOUT may have waited for that rank. */
static int measure_distance(int code)
{
	return code == 0 ? 3 : code == -ECANCELED ? 2 : code == -ETIMEDOUT;
}

int load_agree(const struct dcpload_comm *comm, int rc, struct dcpload_error *err,
	       int timeout_ms)
{
	struct verdict small[AGREE_ROOM / sizeof(struct verdict)], *all = small;
	dcp_auto_free struct verdict *big = NULL;
	char text[sizeof(err->text)] = "";
	struct verdict mine = { DCP_MIN(rc, 0), -1, 0 };
	uint32_t from = 0;
	int failed;

	if (comm->ranks == 1)
		return load_say(err, mine.code);
	if (rc < 0) {
		struct dcpload_error unsaid = { 0 };

		memcpy(text, (err && err->code == rc ? err : &unsaid)->text, sizeof(text));
		if (!text[0])
			snprintf(text, sizeof(text), "%s", strerror(-rc));
		text[sizeof(text) - 1] = 0;
		mine.len = (uint32_t)strlen(text);
		mine.rank = err && err->code == rc && err->text[0] ? err->rank : -1;
	}
	if (comm->ranks > DCP_LEN(small))
		all = big = malloc(comm->ranks * sizeof(*big));
	if (!all)
		return load_say(err, -ENOMEM);
	failed = comm->allgather(comm->ctx, &mine, sizeof(mine), all, timeout_ms);
	if (failed < 0)
		return load_comm_say(comm, failed, err);
	for (uint32_t r = 0; r < comm->ranks; r++) /* a positive code would look like success */
		all[r].code = all[r].code > 0 ? -EPROTO : all[r].code;
	for (uint32_t r = 1; r < comm->ranks; r++)
		if (measure_distance(all[r].code) < measure_distance(all[from].code))
			from = r;
	if (all[from].code == 0)
		return 0;
	mine = all[from];
	mine.len = DCP_MIN(mine.len, (uint32_t)sizeof(text) - 1);
	failed = share_text(comm, from, text, mine.len, (char *)all, timeout_ms);
	if (failed < 0)
		return load_comm_say(comm, failed, err);
	text[mine.len] = 0;
	load_fail(err, mine.code, "%s", text);
	if (err)
		err->rank = mine.rank < 0 ? (int32_t)from : mine.rank;
	return mine.code;
}

void load_blobs_free(struct load_blobs *b)
{
	free(b->at);
	free(b->n);
	free(b->memory);
	memset(b, 0, sizeof(*b));
}

/* Allocate blobs of b->n bytes, if this rank keeps them (@kept), and *round for @step bytes per
 * rank. */
static int alloc_blobs(struct load_blobs *b, uint32_t ranks, bool kept, uint64_t step,
		       void **round)
{
	uint64_t total = 0, n;

	for (uint32_t r = 0; r < ranks; r++)
		if (dcp_ckd_align(&n, b->n[r], 16) || dcp_ckd_add(&total, total, n) ||
		    total > GATHER_MOST)
			return -EOVERFLOW;
	b->memory = kept ? aligned_alloc(16, DCP_MAX(total, 16)) : NULL;
	*round = malloc(DCP_MAX(step * ranks, 1));
	if ((kept && !b->memory) || !*round)
		return -ENOMEM;
	total = 0;
	for (uint32_t r = 0; r < ranks && kept; r++) {
		b->at[r] = (char *)b->memory + total;
		total += (b->n[r] + 15) & ~15ull;
	}
	return 0;
}

/* In each round every rank sends the same number of bytes; shorter messages are padded. */
static int gather_rounds(const struct dcpload_comm *comm, const void *mine, uint64_t n,
			 struct load_blobs *b, uint64_t most, uint64_t step, char *round,
			 char *pad, int timeout_ms)
{
	for (uint64_t at = 0; at < most; at += step) {
		uint64_t now = DCP_MIN(step, most - at),
			 own = at < n ? DCP_MIN(now, n - at) : 0;
		int rc;

		memset(pad + own, 0, now - own);
		if (own)
			memcpy(pad, (const char *)mine + at, own);
		rc = comm->allgather(comm->ctx, pad, now, round, timeout_ms);
		if (rc < 0)
			return rc;
		for (uint32_t r = 0; r < comm->ranks; r++)
			if (b->at[r] && at < b->n[r])
				memcpy((char *)b->at[r] + at, round + r * now,
				       DCP_MIN(now, b->n[r] - at));
	}
	return 0;
}

static int gather_blobs(const struct dcpload_comm *comm, const void *mine, uint64_t n,
			bool kept, struct load_blobs *out, struct dcpload_error *err,
			int timeout_ms)
{
	uint64_t step, most = 0;
	dcp_auto_free void *round = NULL;
	dcp_auto_free char *pad = NULL;
	int rc;

	memset(out, 0, sizeof(*out));
	out->at = calloc(comm->ranks, sizeof(*out->at));
	out->n = calloc(comm->ranks, sizeof(*out->n));
	rc = load_agree(comm, out->at && out->n ? 0 : -ENOMEM, err, timeout_ms);
	if (rc == 0)
		rc = load_comm_say(
			comm, comm->allgather(comm->ctx, &n, sizeof(n), out->n, timeout_ms),
			err);
	if (rc < 0)
		goto failed;
	for (uint32_t r = 0; r < comm->ranks; r++)
		most = DCP_MAX(most, out->n[r]);
	step = DCP_MIN(most, DCP_MAX(GATHER_ROOM / comm->ranks, 4096));
	rc = alloc_blobs(out, comm->ranks, kept, step, &round);
	pad = malloc(DCP_MAX(step, 1));
	if (rc == 0 && !pad)
		rc = -ENOMEM;
	rc = load_agree(comm, rc, err, timeout_ms);
	if (rc == 0)
		rc = load_comm_say(
			comm,
			gather_rounds(comm, mine, n, out, most, step, round, pad, timeout_ms),
			err);
	if (rc == 0)
		return 0;
failed:
	load_blobs_free(out);
	return rc;
}

int load_gather(const struct dcpload_comm *comm, const void *mine, uint64_t n,
		struct load_blobs *out, struct dcpload_error *err, int timeout_ms)
{
	return gather_blobs(comm, mine, n, true, out, err, timeout_ms);
}

int load_gather_first(const struct dcpload_comm *comm, const void *mine, uint64_t n,
		      struct load_blobs *out, struct dcpload_error *err, int timeout_ms)
{
	return gather_blobs(comm, mine, n, comm->rank == 0, out, err, timeout_ms);
}

static int fail_other_release(struct dcpload_error *err, uint32_t r)
{
	return load_fail(err, -EPROTO, "ranks 0 and %u run different releases of dcpfs", r);
}

int load_gather_same(const struct dcpload_comm *comm, const void *mine, uint64_t n,
		     struct load_blobs *out, struct dcpload_error *err, int timeout_ms)
{
	int rc = load_gather(comm, mine, n, out, err, timeout_ms);

	for (uint32_t r = 0; r < comm->ranks && rc == 0; r++)
		if (out->n[r] != out->n[0] || (r == comm->rank && out->n[r] != n))
			rc = fail_other_release(err, r);
	if (rc < 0)
		load_blobs_free(out);
	return rc;
}

/* Copy the intersection of two stretches of a message: @n bytes from its byte @at on, and @m bytes
 * from byte @from on. */
static void copy_common(char *to, uint64_t at, uint64_t n, const char *src, uint64_t from,
			uint64_t m)
{
	uint64_t lo = DCP_MAX(at, from), hi = DCP_MIN(at + n, from + m);

	if (lo < hi)
		memcpy(to + (lo - at), src + (lo - from), hi - lo);
}

/* Name the first of @own in which rank @r and rank 0 differ; each value ends in a NUL. */
static int name_difference(const struct load_alike *own, size_t n, const struct load_blobs *all,
			   uint32_t r, struct dcpload_error *err)
{
	const char *a = all->at[0], *b = all->at[r];
	const char *a_end = a + all->n[0], *b_end = b + all->n[r];

	for (size_t i = 0; i < n; i++) {
		size_t an = strnlen(a, (size_t)(a_end - a)),
		       bn = strnlen(b, (size_t)(b_end - b));

		if (a + an == a_end || b + bn == b_end)
			break;
		if (strcmp(a, b) != 0)
			return load_fail(
				err, -EINVAL,
				"%s is \"%.100s\" on rank 0 and \"%.100s\" on rank %u: "
				"all ranks need the same",
				own[i].name, a, b, r);
		a += an + 1;
		b += bn + 1;
	}
	return fail_other_release(err, r);
}

int load_compare(const struct dcpload_comm *comm, const struct load_alike *own, size_t n,
		 struct dcpload_error *err, int timeout_ms)
{
	dcp_auto_buf struct dcp_buf mine = DCP_BUF_INIT;
	struct load_blobs all = { 0 };
	int rc;

	for (size_t i = 0; i < n; i++)
		dcp_buf_add(&mine, own[i].value, strlen(own[i].value) + 1);
	rc = load_agree(comm, load_say(err, dcp_buf_error(&mine) ? -ENOMEM : 0), err,
			timeout_ms);
	if (rc < 0 || comm->ranks == 1)
		return rc;
	rc = load_gather(comm, mine.p, mine.n, &all, err, timeout_ms);
	for (uint32_t r = 1; rc == 0 && r < comm->ranks; r++)
		if (all.n[r] != all.n[0] || memcmp(all.at[r], all.at[0], all.n[0]) != 0)
			rc = name_difference(own, n, &all, r, err);
	load_blobs_free(&all);
	return rc;
}

/* Find where the bytes for this rank begin in the message of each rank, which consists of its
 * messages to all ranks; *@most: the longest message. */
static int find_mine(const struct dcpload_comm *comm, const uint64_t *bytes,
		     const uint64_t *nrecv, uint64_t *at, uint64_t *most,
		     struct dcpload_error *err)
{
	*most = 0;
	for (uint32_t r = 0; r < comm->ranks; r++) {
		const uint64_t *theirs = bytes + (size_t)r * comm->ranks;
		uint64_t n = 0;

		for (uint32_t d = 0; d < comm->ranks; d++) {
			if (d == comm->rank)
				at[r] = n;
			if (dcp_ckd_add(&n, n, theirs[d]) || n > GATHER_MOST)
				return load_fail(
					err, -EOVERFLOW,
					"rank %u sends more bytes than can be gathered", r);
		}
		if (theirs[comm->rank] != nrecv[r])
			return load_fail(
				err, -EPROTO,
				"rank %u sends a message of another length than it announced",
				r);
		*most = DCP_MAX(*most, n);
	}
	return 0;
}

int load_gather_mine(const struct dcpload_comm *comm, const void *const *send,
		     const uint64_t *nsend, void *const *recv, const uint64_t *nrecv,
		     struct dcpload_error *err, int timeout_ms)
{
	size_t ranks = comm->ranks;
	uint64_t most = 0, step, now;
	dcp_auto_free uint64_t *bytes = calloc(ranks * ranks, sizeof(*bytes)),
			       *at = calloc(ranks, sizeof(*at));
	dcp_auto_free char *mine = NULL, *all = NULL;
	int rc = load_agree(comm, bytes && at ? 0 : -ENOMEM, err, timeout_ms);

	if (rc == 0)
		rc = load_comm_say(comm,
				   comm->allgather(comm->ctx, nsend, ranks * sizeof(*nsend),
						   bytes, timeout_ms),
				   err);
	if (rc < 0)
		return rc;
	rc = find_mine(comm, bytes, nrecv, at, &most, err);
	step = DCP_MIN(most, DCP_MAX(GATHER_ROOM / ranks, 4096));
	mine = rc < 0 ? NULL : malloc(step + 1);
	all = rc < 0 ? NULL : malloc(step * ranks + 1);
	if (rc == 0 && (!mine || !all))
		rc = load_fail(err, -ENOMEM, "out of memory");
	rc = load_agree(comm, rc, err, timeout_ms);
	for (uint64_t done = 0; done < most && rc == 0; done += now) {
		uint64_t from = 0;

		now = DCP_MIN(step, most - done);
		memset(mine, 0, now);
		for (uint32_t d = 0; d < ranks; from += nsend[d++])
			copy_common(mine, done, now, send[d], from, nsend[d]);
		rc = load_comm_say(comm, comm->allgather(comm->ctx, mine, now, all, timeout_ms),
				   err);
		for (uint32_t r = 0; r < ranks && rc == 0; r++)
			copy_common(recv[r], at[r], nrecv[r], all + r * now, done, now);
	}
	return rc;
}

/* A hash that identifies the node of this process. Properties that are not available are left
 * out. */
static int hash_machine(uint64_t out[2])
{
	dcp_auto_file FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
	struct dcp_hash128 *h = dcp_hash128_new();
	struct utsname name;
	struct stat ns;
	char boot[64] = "";
	uid_t user = geteuid();

	if (!h)
		return -ENOMEM;
	if (f)
		dcp_hash128_add(h, boot, fread(boot, 1, sizeof(boot), f));
	if (uname(&name) == 0)
		dcp_hash128_add(h, name.nodename, strlen(name.nodename) + 1);
	if (stat("/proc/self/ns/pid", &ns) == 0)
		dcp_hash128_add(h, &ns.st_ino, sizeof(ns.st_ino));
	dcp_hash128_add(h, &user, sizeof(user));
	dcp_hash128_end(h, out);
	return 0;
}

int load_nodes(const struct dcpload_comm *comm, uint32_t *node, uint32_t *nnodes,
	       struct dcpload_error *err, int timeout_ms)
{
	struct id {
		uint64_t u[2];
	} mine = { { 0, 0 } };
	dcp_auto_free struct id *all = calloc(comm->ranks, sizeof(*all));
	dcp_auto_free uint32_t *first = calloc(comm->ranks, sizeof(*first));
	uint32_t n = 0, k;
	int rc = all && first ? hash_machine(mine.u) : -ENOMEM;

	rc = load_agree(comm, rc, err, timeout_ms);
	if (rc == 0)
		rc = load_comm_say(
			comm, comm->allgather(comm->ctx, &mine, sizeof(mine), all, timeout_ms),
			err);
	if (rc < 0)
		return rc;
	for (uint32_t r = 0; r < comm->ranks; r++) {
		for (k = 0; k < n; k++)
			if (memcmp(&all[first[k]], &all[r], sizeof(*all)) == 0)
				break;
		if (k == n)
			first[n++] = r;
		node[r] = k;
	}
	*nnodes = n;
	return 0;
}

void load_step_init(struct load_step *s)
{
	pthread_mutex_init(&s->lock, NULL);
	dcp_cond_init(&s->ended);
}

static void *run_step(void *arg)
{
	struct load_step *s = arg;
	int rc = s->fn(s->ctx);

	pthread_mutex_lock(&s->lock);
	s->rc = rc;
	s->done = true;
	pthread_cond_signal(&s->ended);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

void load_step_start(struct load_step *s, int (*fn)(void *ctx), void *ctx)
{
	sigset_t all, before;
	int rc;

	s->fn = fn;
	s->ctx = ctx;
	s->rc = 0;
	s->done = false;
	/* Signals belong to the program, so the thread blocks them; SIGXFSZ too, so that exceeding
	 * a limit of file sizes is an error. */
	sigfillset(&all);
	/* raised in the thread that reads a mapped file that was truncated */
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&s->thread, NULL, run_step, s);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	s->running = rc == 0;
	if (rc) {
		s->rc = -rc;
		s->done = true;
	}
}

/* Has the work of this rank ended? Waits at most @ms for it. */
static bool has_ended(struct load_step *s, int ms)
{
	int64_t end = dcp_now_ns(CLOCK_MONOTONIC) + ms * DCP_NS_PER_MS;
	struct timespec until = { end / DCP_NS_PER_S, end % DCP_NS_PER_S };
	bool done;

	pthread_mutex_lock(&s->lock);
	while (!s->done && pthread_cond_timedwait(&s->ended, &s->lock, &until) != ETIMEDOUT)
		;
	done = s->done;
	pthread_mutex_unlock(&s->lock);
	return done;
}

int load_step_wait(struct load_step *s, const struct dcpload_comm *comm, bool hasty,
		   int timeout_ms, struct dcpload_error *err)
{
	enum { WORKING, ENDED, FAILED };
	int pause = 1, most = DCP_MIN(timeout_ms / 4 + 1, 1000);
	uint8_t *all = malloc(comm->ranks);
	bool going = true;
	int rc = load_agree(comm, all ? 0 : -ENOMEM, err, timeout_ms);

	while (rc == 0 && going) {
		uint8_t mine = !has_ended(s, pause) ? WORKING : s->rc == 0 ? ENDED : FAILED;

		/* Pauses begin short, so that short work is not waited for long. */
		pause = DCP_MIN(2 * pause, most);
		rc = load_comm_say(comm, comm->allgather(comm->ctx, &mine, 1, all, timeout_ms),
				   err);
		going = false;
		for (uint32_t r = 0; rc == 0 && r < comm->ranks; r++) {
			if (all[r] == FAILED && hasty) {
				going = false;
				break;
			}
			going |= all[r] == WORKING;
		}
	}
	free(all);
	return rc;
}

int load_step_join(struct load_step *s)
{
	if (s->running)
		pthread_join(s->thread, NULL);
	s->running = false;
	return s->rc;
}

int load_step_run(const struct dcpload_comm *comm, int (*fn)(void *ctx),
		  void (*stop)(void *ctx), void *ctx, int *done, int timeout_ms,
		  struct dcpload_error *err)
{
	struct load_step s = { 0 };
	int rc;

	if (comm->ranks == 1) {
		*done = fn(ctx);
		return 0;
	}
	load_step_init(&s);
	load_step_start(&s, fn, ctx);
	if (!s.running && stop) /* the others may wait for the work of this rank */
		stop(ctx);
	rc = load_step_wait(&s, comm, false, timeout_ms, err);
	if (rc < 0 && stop)
		stop(ctx);
	*done = load_step_join(&s);
	return rc;
}

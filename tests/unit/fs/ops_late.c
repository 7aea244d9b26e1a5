/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that take long, answered by threads of their own. What they call of libfuse is here,
 * with its locks: a request's own is held while its interrupt function is called.
 */
#define FUSE_USE_VERSION 312
#include "tests/unit/t.h"

#include <errno.h>
#include <pthread.h>

#include "core/base/system.h"
#include "fs/ops.h"

enum { NOT_YET = -1, PATIENCE_MS = 60000 };

struct fuse_req {
	pthread_mutex_t lock;
	bool interrupted;
	fuse_interrupt_func_t func;
	void *data;
	bool begun; /* like what follows, by the lock of all */
	int reply;
};

static pthread_mutex_t all = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static bool gate;

int fuse_reply_err(fuse_req_t req, int err)
{
	pthread_mutex_lock(&all);
	assert_int_equal(req->reply, NOT_YET);
	req->reply = err;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&all);
	return 0;
}

int fuse_req_interrupted(fuse_req_t req)
{
	return __atomic_load_n(&req->interrupted, __ATOMIC_SEQ_CST);
}

void fuse_req_interrupt_func(fuse_req_t req, fuse_interrupt_func_t func, void *data)
{
	pthread_mutex_lock(&req->lock);
	req->func = func;
	req->data = data;
	if (func && fuse_req_interrupted(req))
		func(req, data);
	pthread_mutex_unlock(&req->lock);
}

static void interrupt(struct fuse_req *req)
{
	pthread_mutex_lock(&req->lock);
	__atomic_store_n(&req->interrupted, true, __ATOMIC_SEQ_CST);
	if (req->func)
		req->func(req, req->data);
	pthread_mutex_unlock(&req->lock);
}

static bool wait_until(const bool *what, const int *reply)
{
	struct timespec until = dcp_in_ms(PATIENCE_MS);
	int rc = 0;
	bool is;

	pthread_mutex_lock(&all);
	while (!(is = what ? *what : *reply != NOT_YET) && rc == 0)
		rc = pthread_cond_timedwait(&changed, &all, &until);
	pthread_mutex_unlock(&all);
	return is;
}

static int reply_of(struct fuse_req *req)
{
	wait_until(NULL, &req->reply);
	return req->reply;
}

static bool has_begun(struct fuse_req *req)
{
	bool begun;

	pthread_mutex_lock(&all);
	begun = req->begun;
	pthread_mutex_unlock(&all);
	return begun;
}

static void open_gate(bool open)
{
	pthread_mutex_lock(&all);
	gate = open;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&all);
}

/* Odd inodes wait for the gate. */
static void answer(const struct dcpfs_late_call *call)
{
	pthread_mutex_lock(&all);
	call->req->begun = true;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&all);
	if (call->ino % 2)
		wait_until(&gate, NULL);
	fuse_reply_err(call->req, 0);
}

static struct dcpfs_late *start(unsigned threads, struct fuse_req *reqs, size_t n)
{
	struct dcpfs_late *l;

	dcp_cond_init(&changed);
	gate = false;
	for (size_t i = 0; i < n; i++) {
		reqs[i] = (struct fuse_req){ .reply = NOT_YET };
		pthread_mutex_init(&reqs[i].lock, NULL);
	}
	assert_int_equal(dcpfs_late_start(threads, &l), 0);
	return l;
}

static void add(struct dcpfs_late *l, struct fuse_req *req, fuse_ino_t ino)
{
	dcpfs_late_add(l,
		       &(struct dcpfs_late_call){ .answer = answer, .req = req, .ino = ino });
}

/* While it is, others are answered by the second thread, and who wants the same file waits. */
static void a_file_is_made_by_one_thread(void **state)
{
	struct fuse_req r[4];
	struct dcpfs_late *l = start(2, r, 4);

	(void)state;
	add(l, &r[0], 1);
	assert_true(wait_until(&r[0].begun, NULL));
	add(l, &r[1], 1);
	add(l, &r[2], 2);
	add(l, &r[3], 4);
	assert_int_equal(reply_of(&r[2]), 0);
	assert_int_equal(reply_of(&r[3]), 0);
	assert_false(has_begun(&r[1]));
	open_gate(true);
	assert_int_equal(reply_of(&r[0]), 0);
	assert_int_equal(reply_of(&r[1]), 0);
	assert_true(dcpfs_late_stop(l, PATIENCE_MS));
}

static void interrupted_requests_end_where_they_wait(void **state)
{
	struct fuse_req r[4];
	struct dcpfs_late *l = start(1, r, 4);

	(void)state;
	add(l, &r[0], 1);
	assert_true(wait_until(&r[0].begun, NULL));
	add(l, &r[1], 2);
	add(l, &r[2], 4);
	interrupt(&r[1]);
	assert_int_equal(reply_of(&r[1]), EINTR);
	interrupt(&r[0]); /* it asks by itself */
	interrupt(&r[3]);
	add(l, &r[3], 6);
	assert_int_equal(reply_of(&r[3]), EINTR);
	open_gate(true);
	assert_int_equal(reply_of(&r[0]), 0);
	assert_int_equal(reply_of(&r[2]), 0);
	assert_false(r[1].begun || r[3].begun);
	assert_true(dcpfs_late_stop(l, PATIENCE_MS));
}

static void *stop(void *l)
{
	return dcpfs_late_stop(l, PATIENCE_MS) ? l : NULL;
}

/* What waits is answered, and what is being answered is waited for. */
static void the_end_answers_all(void **state)
{
	struct fuse_req r[3];
	struct dcpfs_late *l = start(1, r, 3);
	pthread_t ends;
	void *ended;

	(void)state;
	add(l, &r[0], 1);
	assert_true(wait_until(&r[0].begun, NULL));
	add(l, &r[1], 1);
	add(l, &r[2], 2);
	assert_int_equal(pthread_create(&ends, NULL, stop, l), 0);
	assert_int_equal(reply_of(&r[1]), EINTR);
	assert_int_equal(reply_of(&r[2]), EINTR);
	open_gate(true);
	pthread_join(ends, &ended);
	assert_ptr_equal(ended, l);
	assert_int_equal(r[0].reply, 0);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_is_made_by_one_thread),
		cmocka_unit_test(interrupted_requests_end_where_they_wait),
		cmocka_unit_test(the_end_answers_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring here is this file's: it takes the place of core/store/ring_*.c, and fails as told.
 * Whatever it does, a batch is delivered in full, or a file cannot be read.
 */
#include "tests/unit/t.h"
#include "tests/unit/t/random.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/store/io/queue.h"

enum { FILE_BYTES = 1 << 20, THREADS = 3 * DCP_QUEUE_RINGS / 2, ROUNDS = 40 };

/* ---- the ring ---- */

static struct {
	int open_rc, register_rc, read_rc;
	void *registered;
	bool shorten; /* reads come in part, or not at all */
	int asked, open, most;
} fake;

struct dcp_ring {
	unsigned entries;
	bool busy; /* two threads at a time show */
	uint64_t seed;
};

int dcp_ring_open(unsigned entries, struct dcp_ring **out)
{
	int open;

	__atomic_fetch_add(&fake.asked, 1, __ATOMIC_RELAXED);
	if (fake.open_rc < 0)
		return fake.open_rc;
	*out = calloc(1, sizeof(**out));
	(*out)->entries = entries;
	(*out)->seed = 1;
	open = __atomic_add_fetch(&fake.open, 1, __ATOMIC_RELAXED);
	if (open > __atomic_load_n(&fake.most, __ATOMIC_RELAXED))
		__atomic_store_n(&fake.most, open, __ATOMIC_RELAXED);
	return 0;
}

int dcp_ring_register(struct dcp_ring *r, void *memory, size_t n)
{
	assert_true(r && n);
	if (fake.register_rc == 0)
		fake.registered = memory;
	return fake.register_rc;
}

void dcp_ring_close(struct dcp_ring *r)
{
	__atomic_fetch_sub(&fake.open, 1, __ATOMIC_RELAXED);
	free(r);
}

int dcp_ring_read(struct dcp_ring *r, const struct dcp_read *reads, size_t n, uint32_t *done,
		  uint64_t *calls)
{
	assert_true(n <= r->entries);
	assert_false(__atomic_exchange_n(&r->busy, true, __ATOMIC_ACQUIRE));
	++*calls;
	for (size_t i = 0; i < n; i++) {
		uint32_t most = reads[i].n;
		ssize_t got;

		if (fake.shorten && t_random(&r->seed, 2))
			most = (uint32_t)t_random(&r->seed, most);
		got = fake.read_rc < 0 && i >= n / 2
			      ? 0
			      : pread(reads[i].fd, reads[i].to, most, (off_t)reads[i].off);
		done[i] = got > 0 ? (uint32_t)got : 0;
	}
	__atomic_store_n(&r->busy, false, __ATOMIC_RELEASE);
	return fake.read_rc;
}

/* ---- what is read ---- */

struct file {
	int fd;
	uint8_t *bytes;
};

static int make_file(void **state)
{
	struct file *f = calloc(1, sizeof(*f));

	f->fd = memfd_create("queue", MFD_CLOEXEC);
	f->bytes = malloc(FILE_BYTES);
	for (size_t i = 0; i < FILE_BYTES; i++)
		f->bytes[i] = (uint8_t)(i * 7 + i / 251);
	*state = f;
	return write(f->fd, f->bytes, FILE_BYTES) == FILE_BYTES ? 0 : -1;
}

static int drop_file(void **state)
{
	struct file *f = *state;

	close(f->fd);
	free(f->bytes);
	free(f);
	return 0;
}

struct batch {
	struct dcp_read reads[DCP_QUEUE_READS];
	size_t n;
	char *to;
};

static void make_batch(struct batch *b, const struct file *f, size_t n, uint64_t seed)
{
	b->n = n;
	b->to = malloc(n * 1000 + 1);
	memset(b->to, 0xee, n * 1000);
	for (size_t i = 0; i < n; i++) {
		b->reads[i] = (struct dcp_read){ f->fd, 1 + (uint32_t)t_random(&seed, 1000),
						 t_random(&seed, FILE_BYTES - 1000),
						 b->to + i * 1000 };
	}
}

static bool is_right(const struct batch *b, const struct file *f)
{
	for (size_t i = 0; i < b->n; i++)
		if (memcmp(b->reads[i].to, f->bytes + b->reads[i].off, b->reads[i].n))
			return false;
	return true;
}

static void read_batches(struct dcp_queue *q, const struct file *f, struct dcp_io_counts *io)
{
	static const size_t sizes[] = { 0, 1, 2, 3, 31, 32, 33, 200, DCP_QUEUE_READS };

	for (size_t i = 0; i < DCP_LEN(sizes); i++) {
		struct batch b;

		make_batch(&b, f, sizes[i], i + 1);
		assert_int_equal(dcp_queue_read(q, b.reads, b.n, io), 0);
		assert_true(is_right(&b, f));
		free(b.to);
	}
}

static void failing_rings_are_survived(void **state)
{
	static const struct {
		const char *what;
		int open_rc, read_rc;
		bool shorten;
		int asked;
		bool batches;
	} rows[] = {
		{ "all is well: one ring is kept", 0, 0, false, 1, true },
		{ "reads come in part", 0, 0, true, 1, true },
		{ "a ring that fails is another's turn", 0, -EAGAIN, false, 7, true },
		{ "not allowed: not asked again", -EPERM, 0, false, 1, false },
		{ "not built in", -ENOTSUP, 0, false, 1, false },
		{ "no memory now: asked again", -ENOMEM, 0, false, 7, true },
		{ "no descriptor now: asked again", -EMFILE, 0, false, 7, true },
	};

	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_io_counts io = { 0 };
		struct dcp_queue *q;

		t_case(rows[i].what);
		memset(&fake, 0, sizeof(fake));
		fake.open_rc = rows[i].open_rc;
		fake.read_rc = rows[i].read_rc;
		fake.shorten = rows[i].shorten;
		assert_int_equal(dcp_queue_create(&q), 0);
		read_batches(q, *state, &io);
		assert_int_equal(fake.asked, rows[i].asked);
		assert_int_equal(io.ring > 0, rows[i].open_rc == 0);
		assert_true(io.fetched >= io.ring);
		assert_int_equal(dcp_queue_batches(q), rows[i].batches);
		dcp_queue_destroy(q);
		assert_int_equal(fake.open, 0);
	}
	t_case("no queue at all");
	assert_false(dcp_queue_batches(NULL));
	read_batches(NULL, *state, &(struct dcp_io_counts){ 0 });
}

static void memory_is_registered_where_possible(void **state)
{
	static const struct {
		const char *what;
		int open_rc, register_rc, refused;
	} rows[] = {
		{ "registered: a read alone goes through a ring", 0, 0, 0 },
		{ "refused: as without", 0, -ENOMEM, -ENOMEM },
		{ "no ring", -EPERM, 0, -EPERM },
		{ "no ring now", -ENOMEM, 0, -ENOMEM },
	};

	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_io_counts io = { 0 };
		struct dcp_queue *q;
		struct batch b;

		t_case(rows[i].what);
		memset(&fake, 0, sizeof(fake));
		fake.open_rc = rows[i].open_rc;
		fake.register_rc = rows[i].register_rc;
		make_batch(&b, *state, 40, 9);
		assert_int_equal(dcp_queue_create(&q), 0);
		dcp_queue_register(q, b.to, b.n * 1000);
		assert_int_equal(dcp_queue_refused(q), 0);
		for (int k = 0; k < 3; k++)
			assert_int_equal(dcp_queue_read(q, b.reads, 1, &io), 0);
		assert_int_equal(io.ring,
				 i == 0   ? 3 * b.reads[0].n
				 : i == 1 ? b.reads[0].n /* of the ring that was opened */
					  : 0);
		assert_int_equal(fake.asked, 1);
		assert_int_equal(io.fixed, i == 0 ? io.ring : 0);
		assert_ptr_equal(fake.registered, i == 0 ? b.to : NULL);
		assert_int_equal(dcp_queue_refused(q), rows[i].refused);
		assert_int_equal(dcp_queue_read(q, b.reads, b.n, &io), 0);
		assert_true(is_right(&b, *state));
		dcp_queue_destroy(q);
		assert_int_equal(fake.open, 0);
		free(b.to);
	}
}

static void unreadable_files_are_reported(void **state)
{
	int dir = open("/", O_RDONLY | O_DIRECTORY);
	const struct file *f = *state;
	struct dcp_queue *queues[2] = { NULL };
	struct dcp_io_counts io = { 0 };

	memset(&fake, 0, sizeof(fake));
	assert_int_equal(dcp_queue_create(&queues[1]), 0);
	for (size_t q = 0; q < 2; q++) {
		struct batch b;

		make_batch(&b, f, 100, 3);
		t_case("it ends early");
		b.reads[57].off = FILE_BYTES - b.reads[57].n + 1;
		assert_int_equal(dcp_queue_read(queues[q], b.reads, b.n, &io), -EIO);
		b.reads[57].off--;
		assert_int_equal(dcp_queue_read(queues[q], b.reads, b.n, &io), 0);
		assert_true(is_right(&b, f));
		t_case("it is none");
		b.reads[99].fd = dir;
		assert_int_equal(dcp_queue_read(queues[q], b.reads, b.n, &io), -EIO);
		b.reads[99].fd = -1;
		assert_int_equal(dcp_queue_read(queues[q], b.reads, b.n, &io), -EIO);
		free(b.to);
	}
	dcp_queue_destroy(queues[1]);
	close(dir);
}

/* ---- threads ---- */

struct work {
	pthread_t thread;
	struct dcp_queue *q;
	const struct file *f;
	uint64_t seed;
	bool right;
};

static void *read_much(void *arg)
{
	struct work *w = arg;

	w->right = true;
	for (uint64_t i = 0; i < ROUNDS; i++) {
		struct dcp_io_counts io = { 0 };
		struct batch b;

		make_batch(&b, w->f, 2 + (w->seed + i) % 200, w->seed * ROUNDS + i);
		w->right &= dcp_queue_read(w->q, b.reads, b.n, &io) == 0 && is_right(&b, w->f);
		free(b.to);
	}
	return NULL;
}

static void threads_share_queues(void **state)
{
	struct work work[THREADS];
	struct dcp_queue *q;

	memset(&fake, 0, sizeof(fake));
	fake.shorten = true;
	assert_int_equal(dcp_queue_create(&q), 0);
	for (size_t i = 0; i < THREADS; i++) {
		work[i] = (struct work){ .q = q, .f = *state, .seed = i };
		assert_int_equal(pthread_create(&work[i].thread, NULL, read_much, &work[i]), 0);
	}
	for (size_t i = 0; i < THREADS; i++) {
		pthread_join(work[i].thread, NULL);
		assert_true(work[i].right);
	}
	assert_in_range(fake.most, 1, DCP_QUEUE_RINGS);
	dcp_queue_destroy(q);
	assert_int_equal(fake.open, 0);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(failing_rings_are_survived),
		cmocka_unit_test(memory_is_registered_where_possible),
		cmocka_unit_test(unreadable_files_are_reported),
		cmocka_unit_test(threads_share_queues),
	};

	return cmocka_run_group_tests(tests, make_file, drop_file);
}

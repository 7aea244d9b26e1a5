/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real ring, where the kernel lets us have one: counts of bytes, files that end or cannot
 * be read, signals in between, and, through the queue, many threads.
 */
#include "tests/unit/t.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include "core/store/io/queue.h"

enum { READS = 64, READ_BYTES = 4096, FILE_BYTES = 64 * READS * READ_BYTES, THREADS = 20 };

struct file {
	int fd;
	uint8_t *bytes;
};

/* Beside the build, not in /tmp: where that is memory, nothing is waited for. */
static int make_file(void **state)
{
	char path[] = "/var/tmp/dcpfs-ring-XXXXXX";
	struct file *f = calloc(1, sizeof(*f));

	f->fd = mkstemp(path);
	unlink(path);
	f->bytes = malloc(FILE_BYTES);
	for (uint32_t i = 0; i < FILE_BYTES / 4; i++)
		memcpy(f->bytes + 4 * (size_t)i, &(uint32_t){ i * 2654435761u }, 4);
	*state = f;
	return write(f->fd, f->bytes, FILE_BYTES) == FILE_BYTES ? fsync(f->fd) : -1;
}

static int drop_file(void **state)
{
	struct file *f = *state;

	close(f->fd);
	free(f->bytes);
	free(f);
	return 0;
}

static bool have_ring(struct dcp_ring **r)
{
	int rc = dcp_ring_open(READS, r);

	if (rc == 0)
		return true;
	assert_true(rc < 0);
	assert_int_equal(dcp_queue_probe(), rc);
	print_message("           (no io_uring here: %s)\n", strerror(-rc));
	return false;
}

/* READS of every 64th page, from page @first. */
static void fill(struct dcp_read *reads, const struct file *f, size_t first, char *to)
{
	for (size_t i = 0; i < READS; i++)
		reads[i] = (struct dcp_read){ f->fd, READ_BYTES,
					      (first + 64 * i) % (FILE_BYTES / READ_BYTES) *
						      READ_BYTES,
					      to + i * READ_BYTES };
}

static bool is_right(const struct dcp_read *reads, const struct file *f)
{
	for (size_t i = 0; i < READS; i++)
		if (memcmp(reads[i].to, f->bytes + reads[i].off, READ_BYTES))
			return false;
	return true;
}

static void bytes_read_are_counted(void **state)
{
	int dir = open("/", O_RDONLY | O_DIRECTORY);
	char *to = malloc((READS + 1) * READ_BYTES);
	const struct file *f = *state;
	struct dcp_read reads[READS];
	uint32_t done[READS];
	uint64_t calls = 0;
	struct dcp_ring *r;

	if (have_ring(&r)) {
		t_case("all, of a cold file");
		posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
		fill(reads, f, 5, to);
		assert_int_equal(dcp_ring_read(r, reads, READS, done, &calls), 0);
		for (size_t i = 0; i < READS; i++)
			assert_int_equal(done[i], READ_BYTES);
		assert_true(is_right(reads, f));
		assert_in_range(calls, 1, 8);
		t_case("the end of a file, a directory, no file");
		fill(reads, f, 6, to);
		reads[3].off = FILE_BYTES - 1000;
		reads[4].off = FILE_BYTES;
		reads[5].fd = dir;
		reads[6].fd = -1;
		assert_int_equal(dcp_ring_read(r, reads, READS, done, &calls), 0);
		assert_int_equal(done[2], READ_BYTES);
		assert_int_equal(done[3], 1000);
		for (size_t i = 4; i < 7; i++)
			assert_int_equal(done[i], 0);
		assert_int_equal(done[READS - 1], READ_BYTES);
		t_case("to registered memory, from its first byte to its last, and beside it");
		posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
		assert_int_equal(
			dcp_ring_register(r, to + READ_BYTES, (READS - 2) * READ_BYTES), 0);
		fill(reads, f, 9, to);
		memset(to, 0, READS * READ_BYTES);
		assert_int_equal(dcp_ring_read(r, reads, READS, done, &calls), 0);
		assert_true(is_right(reads, f));
		t_case("over its ends");
		for (size_t i = 0; i < READS; i++)
			reads[i] =
				(struct dcp_read){ f->fd, READ_BYTES / 2, 3 * READ_BYTES * i,
						   to + READ_BYTES * i + READ_BYTES / 2 + 1 };
		assert_int_equal(dcp_ring_read(r, reads, READS, done, &calls), 0);
		for (size_t i = 0; i < READS; i++) {
			assert_int_equal(done[i], READ_BYTES / 2);
			assert_memory_equal(reads[i].to, f->bytes + reads[i].off,
					    READ_BYTES / 2);
		}
		t_case("and again");
		fill(reads, f, 7, to);
		assert_int_equal(dcp_ring_read(r, reads, READS, done, &calls), 0);
		assert_true(is_right(reads, f));
		dcp_ring_close(r);
	}
	dcp_ring_close(NULL);
	free(to);
	close(dir);
}

static void nothing(int number)
{
	(void)number;
}

/* A wait that a signal ends is taken up again: nothing may be under way afterwards. */
static void signals_do_not_stop_reads(void **state)
{
	const struct itimerval often = { { 0, 150 }, { 0, 150 } },
			       never = { { 0, 0 }, { 0, 0 } };
	struct sigaction action = { .sa_handler = nothing }, old;
	char *to = malloc(READS * READ_BYTES);
	const struct file *f = *state;
	struct dcp_read reads[READS];
	uint32_t done[READS];
	uint64_t calls = 0;
	struct dcp_ring *r;

	if (have_ring(&r)) {
		sigaction(SIGALRM, &action, &old);
		setitimer(ITIMER_REAL, &often, NULL);
		for (size_t i = 0; i < 64; i++) {
			posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
			memset(to, 0, READS * READ_BYTES);
			fill(reads, f, i, to);
			assert_int_equal(dcp_ring_read(r, reads, READS, done, &calls), 0);
			assert_true(is_right(reads, f));
		}
		setitimer(ITIMER_REAL, &never, NULL);
		sigaction(SIGALRM, &old, NULL);
		dcp_ring_close(r);
	}
	free(to);
}

struct work {
	pthread_t thread;
	struct dcp_queue *q;
	const struct file *f;
	size_t first;
	bool right;
};

static void *read_much(void *arg)
{
	char *to = malloc(READS * READ_BYTES);
	struct dcp_read reads[READS];
	struct work *w = arg;

	w->right = true;
	for (size_t i = 0; i < 30; i++) {
		struct dcp_io_counts io = { 0 };

		if (i % 10 == 0)
			posix_fadvise(w->f->fd, 0, 0, POSIX_FADV_DONTNEED);
		fill(reads, w->f, w->first + i, to);
		w->right &= dcp_queue_read(w->q, reads, READS, &io) == 0;
		w->right &= is_right(reads, w->f) && io.fetched == READS * READ_BYTES;
	}
	free(to);
	return NULL;
}

static void threads_share_rings(void **state)
{
	struct work work[THREADS];
	struct dcp_queue *q;

	assert_int_equal(dcp_queue_create(&q), 0);
	for (size_t i = 0; i < THREADS; i++) {
		work[i] = (struct work){ .q = q, .f = *state, .first = i * 50 };
		assert_int_equal(pthread_create(&work[i].thread, NULL, read_much, &work[i]), 0);
	}
	for (size_t i = 0; i < THREADS; i++) {
		pthread_join(work[i].thread, NULL);
		assert_true(work[i].right);
	}
	dcp_queue_destroy(q);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_read_are_counted),
		cmocka_unit_test(signals_do_not_stop_reads),
		cmocka_unit_test(threads_share_rings),
	};

	return cmocka_run_group_tests(tests, make_file, drop_file);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covers: ring_none, ring_uring
 *
 * Random descriptors, copied out of memory and read out of a file, give what a loop over their
 * runs gives; of a cold file exactly the pages that a descriptor needs are asked for.
 */
#include "tests/unit/t.h"
#include "tests/unit/t/random.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/model/geometry/strided.h"
#include "core/origin/dir/dir.h"
#include "core/store/io/queue.h"

enum { FILE_BYTES = 8 << 20, PAGES = FILE_BYTES / 4096 };

static uint64_t seed = 1;

static uint64_t rnd(uint64_t below)
{
	return t_random(&seed, below);
}

struct file {
	char path[64];
	int fd;
	uint8_t *map, *copy;
};

/* Beside the build, not in /tmp: where that is memory, no page is ever cold. */
static int make_file(void **state)
{
	struct file *f = calloc(1, sizeof(*f));

	strcpy(f->path, "/var/tmp/dcpfs-gather-XXXXXX");
	f->fd = mkstemp(f->path);
	f->copy = malloc(FILE_BYTES);
	if (f->fd < 0 || !f->copy)
		return -1;
	for (size_t i = 0; i < FILE_BYTES / 8; i++) {
		uint64_t v = rnd(UINT64_MAX);

		memcpy(f->copy + i * 8, &v, 8);
	}
	if (write(f->fd, f->copy, FILE_BYTES) != FILE_BYTES || fsync(f->fd) < 0)
		return -1;
	f->map = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, f->fd, 0);
	*state = f;
	return f->map == MAP_FAILED ? -1 : 0;
}

static int drop_file(void **state)
{
	struct file *f = *state;

	munmap(f->map, FILE_BYTES);
	close(f->fd);
	unlink(f->path);
	free(f->copy);
	free(f);
	return 0;
}

/* Any order of strides in the file, the destination dense, now and then far apart. */
static struct dcp_strided random_descriptor(uint64_t *dst_bytes)
{
	static const uint64_t runs[] = { 1, 2, 3, 4, 8, 16, 24, 512, 5000, 70000 };
	uint64_t run = runs[rnd(DCP_LEN(runs))], file = run, dst = run;
	struct dcp_strided s = { .run = run, .ndim = (uint32_t)rnd(DCP_STRIDED_DIMS + 1) };
	uint32_t order[DCP_STRIDED_DIMS] = { 0, 1, 2, 3 };

	for (uint32_t k = s.ndim; k > 1; k--) {
		uint32_t j = (uint32_t)rnd(k), x = order[k - 1];

		order[k - 1] = order[j];
		order[j] = x;
	}
	for (uint32_t k = 0; k < s.ndim; k++)
		s.count[k] = 2 + rnd(s.ndim > 2 ? 5 : 40);
	for (uint32_t k = s.ndim; k-- > 0; dst *= s.count[k])
		s.dst_stride[k] = dst;
	for (uint32_t i = 0; i < s.ndim; i++) {
		uint32_t k = order[i];

		file += rnd(3) ? rnd(rnd(3) ? 300 : 50000) : 0;
		if (file * s.count[k] > FILE_BYTES) {
			s.ndim = 0; /* too long: its first run alone */
			dst = run;
			break;
		}
		s.file_stride[k] = file;
		file *= s.count[k];
	}
	s.dst = rnd(100);
	s.off = rnd(FILE_BYTES - dcp_strided_extent(&s));
	*dst_bytes = s.dst + dst;
	return s;
}

/* All that is needed to read one descriptor; its state is to be anything at first. */
static int read_one(struct dcp_queue *queue, char *dst, const struct file *f,
		    const struct dcp_strided *s, struct dcp_io_counts *io)
{
	struct dcp_gather *g = malloc(sizeof(*g));
	int rc;

	memset(g, 0xa5, sizeof(*g));
	dcp_gather_begin(g, queue, io);
	rc = dcp_gather_add(g, dst, (struct dcp_from){ NULL, f->fd }, s);
	if (rc == 0)
		rc = dcp_gather_end(g);
	dcp_gather_finish(g);
	free(g);
	return rc;
}

static void copy_plainly(char *dst, const uint8_t *src, const struct dcp_strided *s)
{
	for (uint64_t e = 0; e < dcp_strided_bytes(s) / s->run; e++) {
		uint64_t rest = e, off = s->off, to = s->dst;

		for (uint32_t k = s->ndim; k-- > 0; rest /= s->count[k]) {
			off += rest % s->count[k] * s->file_stride[k];
			to += rest % s->count[k] * s->dst_stride[k];
		}
		memcpy(dst + to, src + off, s->run);
	}
}

static void descriptors_are_copied(void **state)
{
	const struct file *f = *state;
	uint64_t delivered = 0;
	struct dcp_io_counts io = { 0 };
	struct dcp_queue *queue;

	assert_int_equal(dcp_queue_create(&queue), 0);
	for (int i = 0; i < T_ROUNDS(1500); i++) {
		uint64_t n;
		struct dcp_strided s = random_descriptor(&n);
		char *want = calloc(1, n), *got = calloc(1, n);

		copy_plainly(want, f->copy, &s);
		dcp_gather_copy(got, f->map + s.off, &s);
		assert_memory_equal(got, want, n);
		memset(got, 0, n);
		assert_int_equal(read_one(i % 2 ? queue : NULL, got, f, &s, &io), 0);
		assert_memory_equal(got, want, n);
		delivered += dcp_strided_bytes(&s);
		free(want);
		free(got);
	}
	assert_int_equal(io.read, delivered);
	assert_int_equal(io.span + io.direct, delivered);
	assert_true(io.span && io.direct && io.fetched >= delivered);
	dcp_queue_destroy(queue);
}

/* Many of one request, as of a request over many pieces: what is pending when batches end. */
static void many_descriptors_are_gathered(void **state)
{
	const struct file *f = *state;
	struct dcp_gather *g = malloc(sizeof(*g));
	struct dcp_io_counts io = { 0 };
	struct dcp_queue *queue;

	assert_int_equal(dcp_queue_create(&queue), 0);
	for (int i = 0; i < T_ROUNDS(60); i++) {
		size_t count = 1 + rnd(60), at = 0;
		struct dcp_strided s[60];
		uint64_t n[60], all = 0;
		char *want, *got;

		for (size_t k = 0; k < count; k++, all += n[k - 1])
			s[k] = random_descriptor(&n[k]);
		want = calloc(1, all);
		got = calloc(1, all);
		dcp_gather_begin(g, i % 4 ? queue : NULL, &io);
		for (size_t k = 0; k < count; at += n[k++]) {
			copy_plainly(want + at, f->copy, &s[k]);
			assert_int_equal(dcp_gather_add(g, got + at,
							(struct dcp_from){ NULL, f->fd },
							&s[k]),
					 0);
			if (rnd(20) == 0)
				assert_int_equal(dcp_gather_end(g), 0);
		}
		assert_int_equal(dcp_gather_end(g), 0);
		dcp_gather_finish(g);
		assert_memory_equal(got, want, all);
		free(want);
		free(got);
	}
	dcp_queue_destroy(queue);
	free(g);
}

static void the_end_of_a_file_is_an_error(void **state)
{
	const struct file *f = *state;
	struct dcp_strided s = { .off = FILE_BYTES - 1000,
				 .run = 10,
				 .ndim = 1,
				 .count = { 9 },
				 .file_stride = { 125 },
				 .dst_stride = { 10 } };
	struct dcp_io_counts io = { 0 };
	struct dcp_queue *queues[2] = { NULL };
	char buf[90];

	assert_int_equal(dcp_queue_create(&queues[1]), 0);
	for (size_t q = 0; q < 2; q++) {
		s.off = FILE_BYTES - 1000;
		s.file_stride[0] = 125;
		s.count[0] = 9;
		assert_int_equal(read_one(queues[q], buf, f, &s, &io), -EIO);
		s.count[0] = 8;
		assert_int_equal(read_one(queues[q], buf, f, &s, &io), 0);
		s.off = FILE_BYTES - 270000;
		s.file_stride[0] = 30000;
		s.count[0] = 9;
		assert_int_equal(read_one(queues[q], buf, f, &s, &io), 0);
		s.off += 29991;
		assert_int_equal(read_one(queues[q], buf, f, &s, &io), -EIO);
	}
	dcp_queue_destroy(queues[1]);
}

static void runs_close_together_are_few_reads(void **state)
{
	const struct file *f = *state;
	const struct dcp_strided s = { .run = 512,
				       .ndim = 1,
				       .count = { 2048 },
				       .file_stride = { 4096 },
				       .dst_stride = { 512 } };
	struct dcp_io_counts io = { 0 };
	char *buf = malloc(1 << 20);

	assert_int_equal(read_one(NULL, buf, f, &s, &io), 0);
	assert_int_equal(io.span, 1 << 20);
	assert_true(io.calls <= 12);
	free(buf);
}

static void runs_far_apart_are_few_calls(void **state)
{
	const struct file *f = *state;
	const struct dcp_strided s = { .run = 4096,
				       .ndim = 1,
				       .count = { 256 },
				       .file_stride = { 32768 },
				       .dst_stride = { 4096 } };
	struct dcp_io_counts io = { 0 };
	char *buf = malloc(1 << 20);
	struct dcp_queue *queue;

	assert_int_equal(dcp_queue_create(&queue), 0);
	assert_int_equal(read_one(queue, buf, f, &s, &io), 0);
	assert_int_equal(io.direct, 1 << 20);
	assert_int_equal(io.fetched, 1 << 20);
	if (dcp_queue_probe() == 0) {
		assert_int_equal(io.ring, 1 << 20);
		assert_true(io.calls <= 2);
	} else {
		print_message("           (no io_uring here)\n");
		assert_int_equal(io.ring, 0);
	}
	dcp_queue_destroy(queue);
	free(buf);
}

/* ---- pages ---- */

static size_t pages_there(const struct file *f, unsigned char *there)
{
	size_t n = 0;

	assert_int_equal(mincore(f->map, FILE_BYTES, there), 0);
	for (size_t i = 0; i < PAGES; i++)
		n += there[i] &= 1;
	return n;
}

/* Returns false where the file system keeps files in memory. */
static bool make_cold(struct file *f, unsigned char *there)
{
	munmap(f->map, FILE_BYTES); /* mapped pages stay */
	posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
	f->map = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, f->fd, 0);
	assert_true(f->map != MAP_FAILED);
	return pages_there(f, there) == 0;
}

static void fetch_one(const struct file *f, const struct dcp_strided *s,
		      struct dcp_io_counts *io)
{
	struct dcp_fetch fetch;

	dcp_fetch_begin(&fetch, io);
	dcp_fetch_add(&fetch, f->map, s);
	dcp_fetch_end(&fetch);
}

/* Reading them makes sure that they have come. */
static void wait_for(const struct file *f, const struct dcp_strided *s)
{
	char *buf = malloc(dcp_strided_bytes(s));

	dcp_gather_copy(buf, f->map + s->off, s);
	free(buf);
}

static void only_needed_pages_come(void **state)
{
	const struct {
		const char *what;
		struct dcp_strided s;
		size_t pages, calls;
	} rows[] = {
		{ "a run", { .off = 5000, .run = 300000 }, 74, 3 },
		{ "runs far apart",
		  { .off = 4096 * 7 + 10,
		    .run = 4000,
		    .ndim = 1,
		    .count = { 100 },
		    .file_stride = { 65536 },
		    .dst_stride = { 4000 } },
		  100,
		  4 },
		{ "runs close together",
		  { .run = 512,
		    .ndim = 1,
		    .count = { 64 },
		    .file_stride = { 8192 },
		    .dst_stride = { 512 } },
		  127,
		  4 },
		{ "groups far apart",
		  { .run = 64,
		    .ndim = 2,
		    .count = { 20, 16 },
		    .file_stride = { 262144, 1024 },
		    .dst_stride = { 1024, 64 } },
		  80,
		  4 },
	};
	struct file *f = *state;
	unsigned char *there = malloc(PAGES);
	bool cold = true;

	for (size_t i = 0; i < DCP_LEN(rows) && cold; i++) {
		struct dcp_io_counts io = { 0 };

		t_case(rows[i].what);
		cold = make_cold(f, there);
		if (!cold)
			break;
		fetch_one(f, &rows[i].s, &io);
		wait_for(f, &rows[i].s);
		assert_int_equal(pages_there(f, there), rows[i].pages);
		assert_int_equal(io.fetched, rows[i].pages * 4096);
		assert_in_range(io.calls, 2, 1 + rows[i].pages);
		io = (struct dcp_io_counts){ 0 };
		fetch_one(f, &rows[i].s, &io);
		assert_int_equal(io.fetched + io.span + io.direct, 0);
		assert_int_equal(io.calls, 2);
	}
	if (!cold)
		print_message("           (files here are never cold)\n");
	free(there);
}

static void looking_reads_nothing(void **state)
{
	struct file *f = *state;
	unsigned char *there = malloc(PAGES);
	bool cold = make_cold(f, there);
	char byte;

	if (!cold)
		print_message("           (files here are never cold)\n");
	for (int i = 0; i < 2000 && cold; i++)
		if (dcp_is_cached(f->fd, FILE_BYTES / 2) || pages_there(f, there))
			fail_msg("pages have come at look %d", i);
	assert_int_equal(pread(f->fd, &byte, 1, FILE_BYTES / 2), 1);
	assert_true(dcp_is_cached(f->fd, FILE_BYTES / 2));
	free(there);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(descriptors_are_copied),
		cmocka_unit_test(many_descriptors_are_gathered),
		cmocka_unit_test(the_end_of_a_file_is_an_error),
		cmocka_unit_test(runs_close_together_are_few_reads),
		cmocka_unit_test(runs_far_apart_are_few_calls),
		cmocka_unit_test(only_needed_pages_come),
		cmocka_unit_test(looking_reads_nothing),
	};

	return cmocka_run_group_tests(tests, make_file, drop_file);
}

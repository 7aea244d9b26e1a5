/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covers: read, locate
 *
 * What comes into memory when a part of a long tensor is read: its pages, by whatever means
 * they are read, and hardly any other. One read of more files than it holds at a time.
 */
#include "tests/unit/t.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/store/io/queue.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "fs/session.h"
#include "tests/unit/t/parse/dir.h"

enum { LONG_BYTES = 56 << 20, STEP = 1 << 20, HEADER_BYTES = 4096 };

/* A checkpoint of one long tensor. Of holes it would not do: they are there at once. */
static int make_long(const char *dir, char *path, size_t size)
{
	char header[HEADER_BYTES], *step = malloc(STEP);
	int fd, n;

	snprintf(path, size, "%s/model.safetensors", dir);
	fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
	memset(header, ' ', sizeof(header));
	memcpy(header, &(uint64_t){ HEADER_BYTES - 8 }, 8);
	n = snprintf(header + 8, sizeof(header) - 8,
		     "{\"w\": {\"dtype\": \"U8\", \"shape\": [%d], \"data_offsets\": [0, %d]}}",
		     LONG_BYTES, LONG_BYTES);
	header[8 + n] = ' ';
	assert_int_equal(pwrite(fd, header, sizeof(header), 0), sizeof(header));
	for (size_t i = 0; i < LONG_BYTES / STEP; i++) {
		memset(step, (int)i + 1, STEP);
		assert_int_equal(pwrite(fd, step, STEP, (off_t)(HEADER_BYTES + i * STEP)),
				 STEP);
	}
	assert_int_equal(fsync(fd), 0);
	free(step);
	return fd;
}

static size_t pages_there(int fd)
{
	size_t n = (HEADER_BYTES + LONG_BYTES) / 4096, found = 0;
	unsigned char *there = malloc(n);
	void *map = mmap(NULL, n * 4096, PROT_READ, MAP_SHARED, fd, 0);

	assert_true(map != MAP_FAILED);
	assert_int_equal(mincore(map, n * 4096, there), 0);
	for (size_t i = 0; i < n; i++)
		found += there[i] & 1;
	munmap(map, n * 4096);
	free(there);
	return found;
}

static struct dcp_version *open_version(const char *source, bool no_map,
					struct dcp_queue *queue)
{
	const struct dcp_store_opts opts = { .no_map = no_map, .queue = queue };
	struct dcp_version *v = NULL;
	struct dcp_err err = { 0 };
	struct dcp_scan scan;

	assert_int_equal(dcp_scan(source, &scan, &err), 0);
	assert_int_equal(scan.n, 1);
	if (dcp_version_open(source, &scan.found[0], &opts, &v, &err) < 0)
		fail_msg("%s", err.msg);
	dcp_scan_finish(&scan);
	return v;
}

/* How many pages a part brings in, read from its beginning to its end. */
static size_t pages_read(const char *dir, int fd, bool no_map, uint64_t lo, uint64_t len)
{
	char *buf = malloc(STEP);
	struct dcp_queue *queue;
	struct dcp_version *v;
	struct dcp_view *view;
	struct dcp_arena arena;
	struct dcp_cut cut;
	size_t pages, stayed;

	dcp_arena_init(&arena, 1 << 20);
	assert_int_equal(dcp_queue_create(&queue), 0);
	assert_int_equal(dcp_cut_box(&cut, 1, &lo, &len, &arena), 0);
	v = open_version(dir, no_map, queue);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	stayed = pages_there(fd); /* some may be on a list of another processor */
	assert_int_equal(dcp_view_open(v, 1, DCP_AS_RAW, &cut, &view, NULL), 0);
	for (uint64_t at = 0; at < len; at += STEP) {
		assert_int_equal(dcp_view_read(view, at, buf, STEP), 0);
		for (size_t i = 0; i < STEP; i += 4095)
			assert_int_equal(buf[i], (char)((lo + at + i) / STEP + 1));
	}
	pages = pages_there(fd);
	dcp_view_close(view);
	dcp_version_close(v);
	dcp_queue_destroy(queue);
	dcp_arena_finish(&arena);
	free(buf);
	return pages - DCP_MIN(stayed, pages);
}

/* They are its own, and hardly any other. The kernel reads ahead by itself, megabytes on some
 * machines, when a page that it was asked for is not there in time; not each time. */
static void check_read_ahead(const char *dir, int fd, bool no_map, uint64_t lo, uint64_t len)
{
	size_t most = len / 4096 * 105 / 100 + 2, pages = SIZE_MAX;
	char name[64];

	snprintf(name, sizeof(name), "           %s, %" PRIu64 " to %" PRIu64 " MiB",
		 no_map ? "not mapped" : "mapped", lo >> 20, (lo + len) >> 20);
	print_message("%s\n", name);
	for (int i = 0; i < 3 && pages > most; i++)
		pages = pages_read(dir, fd, no_map, lo, len);
	assert_in_range(pages, 1, most);
}

static void read_ahead_stays_in_the_cut(void **state)
{
	/* Beside the build, not in /tmp: where that is memory, no page is ever cold. */
	char dir[] = "/var/tmp/dcpfs-view-XXXXXX", path[64];
	int fd;

	(void)state;
	assert_non_null(mkdtemp(dir));
	fd = make_long(dir, path, sizeof(path));
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	if (pages_there(fd) > 1)
		print_message("           (files here are never cold)\n");
	for (int no_map = 0; no_map < 2 && pages_there(fd) <= 1; no_map++) {
		check_read_ahead(dir, fd, no_map, 0, 28 << 20);
		check_read_ahead(dir, fd, no_map, 9 << 20, 31 << 20);
		check_read_ahead(dir, fd, no_map, 27 << 20, LONG_BYTES - (27 << 20));
		check_read_ahead(dir, fd, no_map, 3 << 20, 2 << 20);
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	}
	close(fd);
	unlink(path);
	rmdir(dir);
}

/* Row @i of a matrix of bytes, as torch.distributed.checkpoint writes safetensors. */
static void put_row(const struct t_dir *dir, unsigned i)
{
	char name[64], text[512];
	uint8_t length[8] = { 0 };
	struct dcp_buf b = DCP_BUF_INIT;

	snprintf(name, sizeof(name), "run/shard-%05u-model-00001-of-00001.safetensors", i + 1);
	dcp_store_le64(length, (uint64_t)snprintf(
				       text, sizeof(text),
				       "{\"w\":{\"dtype\":\"U8\",\"shape\":[1,4],"
				       "\"data_offsets\":[0,4]},\"__metadata__\":{"
				       "\"DCP_SHARDING_INFO\":\"{\\\"w\\\":{\\\"saved_offsets"
				       "\\\":[%u,0]}}\",\"DCP_VERSION\":\"1.0\"}}",
				       i));
	dcp_buf_add(&b, length, sizeof(length));
	dcp_buf_str(&b, text);
	for (unsigned k = 0; k < 4; k++)
		dcp_buf_add(&b, &(uint8_t){ (uint8_t)i }, 1);
	t_dir_put(dir, name, b.p, b.n);
	dcp_buf_finish(&b);
}

/* More files than one request holds: those it lets go of are compared, too. */
static void changes_of_early_files_are_noticed(void **state)
{
	enum { ROWS = DCP_REPLY_FILES + 6 };
	uint8_t got[ROWS * 4];

	(void)state;
	for (int no_map = 0; no_map < 2; no_map++) {
		struct dcp_queue *queue;
		struct dcp_version *v;
		struct dcp_view *view;
		struct t_dir dir;

		assert_int_equal(dcp_queue_create(&queue), 0);
		t_dir_make(&dir, "view");
		for (unsigned i = 0; i < ROWS; i++)
			put_row(&dir, i);
		v = open_version(t_dir_path(&dir, "run"), no_map, queue);
		assert_int_equal(dcp_view_open(v, 1, DCP_AS_RAW, NULL, &view, NULL), 0);
		assert_int_equal(dcp_view_size(view), sizeof(got));
		assert_int_equal(dcp_view_read(view, 0, got, sizeof(got)), 0);
		for (size_t i = 0; i < sizeof(got); i++)
			assert_int_equal(got[i], i / 4);
		t_dir_touch(&dir, "run/shard-00003-model-00001-of-00001.safetensors", 5);
		assert_int_equal(dcp_view_read(view, 0, got, sizeof(got)), -ESTALE);
		assert_int_equal(dcp_view_read(view, 12, got, sizeof(got) - 12), 0);
		dcp_view_close(view);
		dcp_version_close(v);
		dcp_queue_destroy(queue);
		t_dir_remove(&dir);
	}
}

static int install(void **state)
{
	(void)state;
	return dcpfs_fault_install();
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(read_ahead_stays_in_the_cut),
		cmocka_unit_test(changes_of_early_files_are_noticed),
	};

	return cmocka_run_group_tests(tests, install, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read a box of a tensor through a view, window by window, and say what it took.
 *
 *	cut [-c] [-p] [-s] [-r REPS] [-w BYTES] SOURCE KEY DIM PART PARTS
 *
 * The box is part number PART of PARTS equal ones along dimension DIM; PARTS 1: all of it.
 * -c: evict the source's files before each repetition; -p: no mappings; -s: and no
 * io_uring. One JSON line a repetition: seconds to open the view, wall and CPU seconds in all,
 * bytes delivered, bytes the device read, pages that the plan touches, and the counters of
 * core/store/io/queue.h.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "core/base/err.h"
#include "core/model/geometry/strided.h"
#include "core/store/index/index.h"
#include "core/store/io/files.h"
#include "core/store/io/queue.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "fs/session.h"

static void fail_bench(const char *what)
{
	fprintf(stderr, "cut: %s\n", what);
	exit(1);
}

static double read_seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static unsigned long long device_bytes(void)
{
	FILE *f = fopen("/proc/self/io", "r");
	unsigned long long n = 0;
	char line[128];

	while (f && fgets(line, sizeof(line), f))
		sscanf(line, "read_bytes: %llu", &n);
	if (f)
		fclose(f);
	return n;
}

static void evict_files(const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *e;

	while (d && (e = readdir(d))) {
		int fd = openat(dirfd(d), e->d_name, O_RDONLY);

		if (fd < 0)
			continue;
		fdatasync(fd);
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		close(fd);
	}
	if (d)
		closedir(d);
}

/* Distinct pages of runs that come in file order of each descriptor. */
struct pages {
	uint8_t *seen; /* a bit a page, file after file */
	uint64_t n, per_file;
};

static int count_pages(void *ctx, const struct dcp_strided *s, uint32_t file)
{
	uint64_t total = dcp_strided_bytes(s) / s->run;
	struct pages *p = ctx;

	for (uint64_t e = 0; e < total; e++) {
		uint64_t rest = e, off = s->off;

		for (uint32_t k = s->ndim; k-- > 0; rest /= s->count[k])
			off += rest % s->count[k] * s->file_stride[k];
		for (uint64_t g = off / 4096; g <= (off + s->run - 1) / 4096; g++) {
			uint64_t bit = file * p->per_file + g;

			p->n += !(p->seen[bit / 8] >> bit % 8 & 1);
			p->seen[bit / 8] |= (uint8_t)(1 << bit % 8);
		}
	}
	return 0;
}

struct job {
	const char *source, *key;
	uint32_t dim;
	uint64_t part, parts, window;
	bool cold, no_map;
	struct dcp_queue *queue;
};

static void repeat_cut(const struct job *j, const struct dcp_found *found)
{
	struct dcp_io_counts io = { 0 };
	struct dcp_store_opts opts = { .no_map = j->no_map, .counts = &io, .queue = j->queue };
	struct pages pages = { .per_file = 1 << 20 };
	uint64_t lo[DCP_MAX_NDIM] = { 0 }, len[DCP_MAX_NDIM], size;
	struct dcp_err err = { 0 };
	struct dcp_version *v;
	struct dcp_arena arena;
	struct dcp_view *view;
	struct dcp_cut cut;
	struct dcp_row row;
	unsigned long long read_before;
	double wall, cpu, open;
	size_t nfiles;
	char *buf = malloc(j->window);

	dcp_arena_init(&arena, 1 << 20);
	if (!buf || dcp_version_open(j->source, found, &opts, &v, &err) < 0)
		fail_bench(err.msg);
	if (dcp_index_by_key(dcp_version_index(v), DCP_ROW_TENSOR, j->key, &arena, &row) < 0)
		fail_bench("no such key");
	memcpy(len, row.shape, sizeof(len));
	if (j->dim >= row.ndim || row.shape[j->dim] % j->parts)
		fail_bench("cannot be cut so");
	len[j->dim] /= j->parts;
	lo[j->dim] = j->part * len[j->dim];
	dcp_cut_box(&cut, row.ndim, lo, len, &arena);
	if (j->cold)
		evict_files(j->source);
	memset(buf, 0, j->window);
	read_before = device_bytes();
	wall = read_seconds(CLOCK_MONOTONIC);
	cpu = read_seconds(CLOCK_PROCESS_CPUTIME_ID);
	if (dcp_view_open(v, row.id, DCP_AS_RAW, &cut, &view, &err) < 0)
		fail_bench(err.msg);
	open = read_seconds(CLOCK_MONOTONIC) - wall;
	size = dcp_view_size(view);
	for (uint64_t off = 0; off < size; off += j->window)
		if (dcp_view_read(view, off, buf,
				  size - off < j->window ? size - off : j->window) < 0)
			fail_bench("read failed");
	wall = read_seconds(CLOCK_MONOTONIC) - wall;
	cpu = read_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	dcp_index_files(dcp_version_index(v), &nfiles);
	pages.seen = calloc(nfiles, pages.per_file / 8);
	if (!pages.seen || dcp_view_strided(view, count_pages, &pages) < 0)
		fail_bench("cannot count pages");
	printf("{\"bytes\": %llu, \"open\": %.9f, \"wall\": %.6f, \"cpu\": %.6f, \"device\": "
	       "%llu, "
	       "\"pages\": %llu, \"mapped\": %llu, \"read\": %llu, \"span\": %llu, \"direct\": "
	       "%llu, "
	       "\"fetched\": %llu, \"runs\": %llu, \"ring\": %llu, \"calls\": %llu}\n",
	       (unsigned long long)size, open, wall, cpu, device_bytes() - read_before,
	       (unsigned long long)pages.n, (unsigned long long)io.mapped,
	       (unsigned long long)io.read, (unsigned long long)io.span,
	       (unsigned long long)io.direct, (unsigned long long)io.fetched,
	       (unsigned long long)io.runs, (unsigned long long)io.ring,
	       (unsigned long long)io.calls);
	free(pages.seen);
	free(buf);
	dcp_view_close(view);
	dcp_version_close(v);
	dcp_arena_finish(&arena);
}

int main(int argc, char **argv)
{
	struct job j = { .window = 1 << 20 };
	struct dcp_err err = { 0 };
	struct dcp_scan scan;
	bool one_by_one = false;
	int c, reps = 3;

	while ((c = getopt(argc, argv, "cpsr:w:")) != -1) {
		one_by_one |= c == 's';
		j.cold |= c == 'c';
		j.no_map |= c == 'p';
		if (c == 'r')
			reps = atoi(optarg);
		if (c == 'w')
			j.window = strtoull(optarg, NULL, 0);
	}
	if (argc - optind != 5 || j.window == 0)
		fail_bench("usage: cut [-c] [-p] [-s] [-r REPS] [-w BYTES] SOURCE KEY DIM PART "
			   "PARTS");
	j.source = argv[optind];
	j.key = argv[optind + 1];
	j.dim = (uint32_t)strtoul(argv[optind + 2], NULL, 0);
	j.part = strtoull(argv[optind + 3], NULL, 0);
	j.parts = strtoull(argv[optind + 4], NULL, 0);
	if (j.parts == 0 || j.part >= j.parts)
		fail_bench("no such part");
	dcpfs_fault_install();
	if (dcp_scan(j.source, &scan, &err) < 0)
		fail_bench(err.msg);
	if (!one_by_one && dcp_queue_create(&j.queue) < 0)
		fail_bench("out of memory");
	for (int r = 0; r < reps; r++)
		repeat_cut(&j, &scan.found[scan.n - 1]);
	dcp_queue_destroy(j.queue);
	dcp_scan_finish(&scan);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covers: store/io/files
 *
 * Every tensor of the golden checkpoints, read through mappings and with pread, whole, in
 * random windows and in random cuts, copied, as pointers and by strided descriptors: always the
 * bytes the framework itself reads.
 */
#include "tests/unit/t.h"

#include <fcntl.h>
#include <jansson.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/model/geometry/strided.h"
#include "core/parse/numpy/numpy.h"
#include "core/parse/torch/torch.h"
#include "core/store/index/index.h"
#include "core/store/io/files.h"
#include "core/store/io/queue.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "fs/session.h"
#include "tests/unit/t/golden.h"
#include "tests/unit/t/model/plan.h"
#include "tests/unit/t/random.h"
#include "tests/unit/t/sha256.h"

static const char *const goldens[] = { "dcp-plain",   "dcp-async-dedup", "dcp-sharded-tensor",
				       "dcp-hf",      "dcp-old-2.1.2",   "megatron-dist-012",
				       "torch-ranks", "torch-save" };

static uint64_t seed = 1;

static uint64_t rnd(uint64_t below)
{
	return t_random(&seed, below);
}

static struct dcp_io_counts counts;
static struct dcp_queue *queue;

static struct dcp_version *open_version(const char *source, const char *name, bool no_map)
{
	struct dcp_store_opts opts = { .no_map = no_map, .counts = &counts, .queue = queue };
	struct dcp_version *v = NULL;
	struct dcp_err err = { 0 };
	struct dcp_scan scan;

	assert_int_equal(dcp_scan(source, &scan, &err), 0);
	for (size_t i = 0; i < scan.n && !v; i++)
		if (!strcmp(scan.found[i].name, name) &&
		    dcp_version_open(source, &scan.found[i], &opts, &v, &err) < 0)
			fail_msg("%s: %s", name, err.msg);
	dcp_scan_finish(&scan);
	assert_non_null(v);
	return v;
}

static void find_row(struct dcp_version *v, const char *key, struct dcp_arena *arena,
		     struct dcp_row *row)
{
	assert_int_equal(
		dcp_index_by_key(dcp_version_index(v), DCP_ROW_TENSOR, key, arena, row), 0);
}

static int try_open(struct dcp_version *v, const char *key, enum dcp_as as,
		    const struct dcp_cut *cut, struct dcp_view **view, struct dcp_err *err)
{
	struct dcp_arena arena;
	struct dcp_row row;
	int rc;

	dcp_arena_init(&arena, 1 << 20);
	find_row(v, key, &arena, &row);
	rc = dcp_view_open(v, row.id, as, cut, view, err);
	dcp_arena_finish(&arena);
	return rc;
}

static struct dcp_view *open_view(struct dcp_version *v, const char *key, enum dcp_as as,
				  const struct dcp_cut *cut)
{
	struct dcp_err err = { 0 };
	struct dcp_view *view;

	if (try_open(v, key, as, cut, &view, &err) < 0)
		fail_msg("%s: %s", key, err.msg);
	return view;
}

static void *take(void *ctx, size_t size)
{
	return *(char **)ctx = malloc(size);
}

/* Windows by copy, by pointers and by the kernel are what the whole says. */
static void check_windows(const struct dcp_view *view, const char *whole, uint64_t size)
{
	static FILE *to; /* one for all: a file system takes long to make them */

	if (!to)
		to = tmpfile();
	assert_int_equal(ftruncate(fileno(to), 0), 0);
	for (int i = 0; i < T_ROUNDS(12); i++) {
		uint64_t off = rnd(size), n = 1 + rnd(size - off);
		char *got = malloc(n);
		struct dcp_reply r;
		char *buf = NULL;
		int pointed;

		assert_int_equal(dcp_view_read(view, off, got, n), 0);
		assert_memory_equal(got, whole + off, n);
		if (dcp_view_copy(view, off, n, fileno(to), i)) /* 0: to another file system */
			assert_int_equal(pread(fileno(to), got, n, i), n);
		assert_memory_equal(got, whole + off, n);
		dcp_reply_begin(&r, n, take, &buf);
		pointed = dcp_view_answer(view, off, n, &r);
		assert_int_equal(pointed, !buf);
		assert_int_equal(r.done, n);
		for (uint32_t k = 0; k < r.n; k++) {
			assert_memory_equal(r.entry[k].iov_base, whole + off,
					    r.entry[k].iov_len);
			off += r.entry[k].iov_len;
			n -= r.entry[k].iov_len;
		}
		assert_int_equal(n, 0);
		dcp_reply_finish(&r);
		free(buf);
		free(got);
	}
}

struct strided {
	struct dcp_files *files;
	char *body;
};

static int read_strided(void *ctx, const struct dcp_strided *d, uint32_t number)
{
	uint64_t total = dcp_strided_bytes(d) / d->run;
	const struct strided *to = ctx;
	const struct dcp_file *file;

	if (number == DCP_VIEW_NO_FILE)
		return -ENOTSUP;
	assert_int_equal(dcp_files_hold(to->files, number, false, &file, NULL), 0);
	for (uint64_t e = 0; e < total; e++) {
		uint64_t rest = e, off = d->off, dst = d->dst;

		for (uint32_t k = d->ndim; k-- > 0; rest /= d->count[k]) {
			off += rest % d->count[k] * d->file_stride[k];
			dst += rest % d->count[k] * d->dst_stride[k];
		}
		if (d->piece->swap) /* the caller compares only what is not */
			continue;
		assert_int_equal(pread(file->fd, to->body + dst, d->run, (off_t)off), d->run);
	}
	dcp_files_release(to->files, number);
	return 0;
}

static bool any_swapped(const struct dcp_tensor *t)
{
	for (size_t i = 0; i < t->npieces; i++)
		if (t->pieces[i].swap)
			return true;
	return false;
}

/* The cut's array, header and all, out of the whole tensor's elements by definition. */
static char *expect_cut(const struct dcp_tensor *t, enum dcp_as as, const struct dcp_cut *cut,
			const char *whole, const struct dcp_view *view, uint32_t unit)
{
	char *out = calloc(1, dcp_view_size(view) + 1), *to = out;
	const char zeros[16] = { 0 };
	uint64_t at[T_PLAN_DIMS], n, shape[DCP_MAX_NDIM];
	size_t header;
	const void *first = dcp_view_header(view, &header);

	if (header)
		memcpy(out, first, header);
	to += header;
	if (as == DCP_AS_NPY) {
		dcp_auto_buf struct dcp_buf npy = DCP_BUF_INIT;
		uint32_t ndim = dcp_cut_shape(cut, shape);

		dcp_npy_header(&npy, t->dtype, ndim, shape);
		assert_int_equal(npy.n, header);
		assert_memory_equal(npy.p, out, header);
	}
	assert_true(dcp_cut_volume(cut, &n));
	for (uint64_t e = 0; e < n; e++, to += unit) {
		uint64_t from = 0;

		if (t_cut_at(cut, e, at)) {
			for (uint32_t d = 0; d < t->ndim; d++)
				from = from * t->shape[d] + at[d];
			memcpy(to, whole + from * unit, unit);
		} else if (as == DCP_AS_NPY) {
			dcp_dtype_widen(t->dtype, to, zeros, 1);
		}
	}
	assert_int_equal(to - out, dcp_view_size(view));
	return out;
}

static bool any_decoded(const struct dcp_tensor *t)
{
	for (size_t i = 0; i < t->npieces; i++)
		if (dcp_filter_encodes(t->pieces[i].filter))
			return true;
	return false;
}

static bool any_flipped(const struct dcp_tensor *t)
{
	for (size_t i = 0; i < t->npieces; i++)
		if (t->pieces[i].filter == DCP_FILTER_NEG ||
		    t->pieces[i].filter == DCP_FILTER_CONJ)
			return true;
	return false;
}

static void check_cut(struct dcp_version *v, const struct dcp_row *row, enum dcp_as as,
		      const struct dcp_cut *cut, const char *whole, uint32_t unit)
{
	struct dcp_view *view = open_view(v, row->key, as, cut);
	const struct dcp_tensor *t = dcp_view_tensor(view);
	uint64_t size = dcp_view_size(view);
	char *got = calloc(1, size + 1), *want = expect_cut(t, as, cut, whole, view, unit);
	struct strided to = { dcp_version_files(v), NULL };
	size_t header;
	int rc;

	assert_int_equal(dcp_view_check(view), 0);
	assert_int_equal(dcp_view_read(view, 0, got, size), 0);
	assert_memory_equal(got, want, size);
	if (size)
		check_windows(view, want, size);
	dcp_view_header(view, &header);
	memset(got, 0, size);
	memcpy(got, want, header);
	to.body = got + header;
	rc = dcp_view_strided(view, read_strided, &to);
	if (rc == -ENOTSUP) /* a cut may need none of the pieces */
		assert_true(any_flipped(t) || any_decoded(t) ||
			    (as == DCP_AS_NPY && dcp_dtype_info(t->dtype)->widened));
	else if (!any_swapped(t))
		assert_memory_equal(got, want, size);
	assert_true(rc == 0 || rc == -ENOTSUP);
	free(got);
	free(want);
	dcp_view_close(view);
}

static void check_cuts(struct dcp_version *v, const struct dcp_row *row, enum dcp_as as,
		       const char *whole, uint32_t unit)
{
	struct dcp_span span[T_PLAN_DIMS][T_PLAN_SPANS];
	struct dcp_axis axis[T_PLAN_DIMS];
	struct t_choice c = { .seed = seed };
	struct dcp_cut cut;

	if (row->ndim > T_PLAN_DIMS) /* one tensor, 7 x size 1 */
		return;
	for (int i = 0; i < T_ROUNDS(6); i++) {
		t_random_cut(&cut, row->ndim, row->shape, axis, span, &c);
		check_cut(v, row, as, &cut, whole, unit);
	}
	seed = c.seed;
}

static void check_tensor(struct dcp_version *v, const char *key, const char *sha)
{
	struct dcp_arena arena;
	struct dcp_row row;

	dcp_arena_init(&arena, 1 << 20);
	find_row(v, key, &arena, &row);
	for (int i = 0; i < DCP_AS_COUNT; i++) {
		const struct dcp_dtype_info *info = dcp_dtype_info(row.dtype);
		enum dcp_as as = (enum dcp_as)i;
		struct dcp_view *view;
		uint64_t size;
		size_t header;
		char *whole, hex[65];

		if (!dcp_view_can_show(row.key, row.dtype, as))
			continue;
		view = open_view(v, key, as, NULL);
		assert_int_equal(dcp_view_size_of(dcp_version_index(v), &row, as, &size), 0);
		assert_int_equal(size, dcp_view_size(view));
		whole = malloc(size + 1);
		assert_int_equal(dcp_view_read(view, 0, whole, size), 0);
		if (as == DCP_AS_RAW) {
			t_sha256(whole, size, hex);
			assert_string_equal(hex, sha);
		}
		if (size)
			check_windows(view, whole, size);
		dcp_view_header(view, &header);
		check_cuts(v, &row, as, whole + header,
			   as == DCP_AS_NPY ? info->npy_size : dcp_view_tensor(view)->itemsize);
		free(whole);
		dcp_view_close(view);
	}
	dcp_arena_finish(&arena);
}

static void check_golden(const char *folder, bool no_map)
{
	json_t *manifest = t_golden_manifest(folder), *version, *tensor;
	char source[256];
	size_t i, k;

	snprintf(source, sizeof(source), "tests/golden/%s/ckpt", folder);
	json_array_foreach(json_object_get(manifest, "versions"), i, version)
	{
		const char *name = json_string_value(json_object_get(version, "name"));
		const char *expect = json_string_value(json_object_get(version, "expect"));
		struct dcp_version *v;

		t_case(name);
		if (expect && strncmp(expect, "refuse", 6) == 0)
			continue;
		v = open_version(source, name, no_map);
		json_array_foreach(json_object_get(version, "tensors"), k, tensor)
		{
			/* Megatron's flattened tensors: as they are, beside how they are stored
			 */
			const json_t *own = json_object_get(tensor, "megatron");

			check_tensor(v, json_string_value(json_object_get(tensor, "key")),
				     json_string_value(
					     json_object_get(own ? own : tensor, "sha256")));
		}
		dcp_version_close(v);
	}
	json_decref(manifest);
}

static void golden_tensors_are_read(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(goldens); i++) {
		check_golden(goldens[i], false);
		check_golden(goldens[i], true);
	}
}

/* ---- a shard that changes under an open view ---- */

static void copy_file(const char *from, const char *to)
{
	char buf[1 << 16];
	int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	ssize_t n;

	assert_true(in >= 0 && out >= 0);
	while ((n = read(in, buf, sizeof(buf))) > 0)
		assert_int_equal(write(out, buf, (size_t)n), n);
	close(in);
	close(out);
}

struct copied {
	char dir[64], shard[128], meta[128];
	struct dcp_version *v;
	struct dcp_view *view;
};

static void open_copy(struct copied *c, bool no_map)
{
	strcpy(c->dir, "/tmp/dcpfs-view-XXXXXX");
	assert_non_null(mkdtemp(c->dir));
	snprintf(c->shard, sizeof(c->shard), "%s/__0_0.distcp", c->dir);
	snprintf(c->meta, sizeof(c->meta), "%s/.metadata", c->dir);
	copy_file("tests/golden/hostile/base/.metadata", c->meta);
	copy_file("tests/golden/hostile/base/__0_0.distcp", c->shard);
	snprintf(c->meta, sizeof(c->meta), "%s/__1_0.distcp", c->dir);
	copy_file("tests/golden/hostile/base/__1_0.distcp", c->meta);
	snprintf(c->meta, sizeof(c->meta), "%s/.metadata", c->dir);
	c->v = open_version(c->dir, strrchr(c->dir, '/') + 1, no_map);
	c->view = open_view(c->v, "ids", DCP_AS_RAW, NULL);
}

/* Look at one column of a tensor of two shards instead: many runs of both. */
static void open_column(struct copied *c)
{
	struct dcp_row row;
	struct dcp_arena arena;
	struct dcp_cut cut;

	dcp_arena_init(&arena, 1 << 20);
	find_row(c->v, "layer.weight", &arena, &row);
	assert_int_equal(row.ndim, 2);
	assert_true(row.shape[0] > 2 && row.shape[1] > 2);
	assert_int_equal(dcp_cut_box(&cut, 2, (uint64_t[]){ 0, 1 },
				     (uint64_t[]){ row.shape[0], 1 }, &arena),
			 0);
	dcp_view_close(c->view);
	c->view = open_view(c->v, "layer.weight", DCP_AS_RAW, &cut);
	dcp_arena_finish(&arena);
}

static void close_copy(struct copied *c)
{
	char other[128];

	dcp_view_close(c->view);
	dcp_version_close(c->v);
	snprintf(other, sizeof(other), "%s/__1_0.distcp", c->dir);
	unlink(other);
	unlink(c->shard);
	unlink(c->meta);
	rmdir(c->dir);
}

static int try_read(const struct copied *c)
{
	char buf[4096];
	uint64_t n = dcp_view_size(c->view);

	assert_true(n <= sizeof(buf));
	return dcp_view_read(c->view, 0, buf, n);
}

/* Through mappings or not, all of one shard or a column of two. */
static void check_changes(bool no_map, bool column)
{
	struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_sec = 1 } };
	struct dcp_reply r;
	struct copied c;
	char other[160];
	FILE *to = tmpfile();

	t_case("untouched");
	open_copy(&c, no_map);
	if (column)
		open_column(&c);
	assert_int_equal(try_read(&c), 0);
	if (!no_map && !column) {
		dcp_reply_begin(&r, 1, NULL, NULL);
		assert_int_equal(dcp_view_answer(c.view, 0, 1, &r), 1);
		dcp_reply_finish(&r);
	}
	t_case("mode changed: no byte did");
	assert_int_equal(chmod(c.shard, 0400), 0);
	assert_int_equal(try_read(&c), 0);
	t_case("written to");
	assert_int_equal(utimensat(AT_FDCWD, c.shard, times, 0), 0);
	assert_int_equal(try_read(&c), -ESTALE);
	assert_int_equal(dcp_view_check(c.view), -ESTALE);
	if (!no_map && !column) {
		dcp_reply_begin(&r, 1, NULL, NULL);
		assert_int_equal(dcp_view_answer(c.view, 0, 1, &r), -ESTALE);
		assert_int_equal(r.nheld + r.n, 0);
		assert_int_not_equal(dcp_view_copy(c.view, 0, 1, fileno(to), 0), 1);
	}
	close_copy(&c);
	t_case("cut");
	open_copy(&c, no_map);
	if (column)
		open_column(&c);
	assert_int_equal(truncate(c.shard, 100), 0);
	assert_int_equal(try_read(&c), -EIO);
	close_copy(&c);
	t_case("replaced by rename");
	open_copy(&c, no_map);
	if (column)
		open_column(&c);
	snprintf(other, sizeof(other), "%s.new", c.shard);
	copy_file(c.shard, other);
	assert_int_equal(rename(other, c.shard), 0);
	assert_int_equal(try_read(&c), 0);
	assert_int_equal(dcp_view_check(c.view), -ESTALE);
	t_case("and closed: it cannot be opened again");
	dcp_files_drop(dcp_version_files(c.v));
	assert_int_equal(try_read(&c), -ESTALE);
	close_copy(&c);
	fclose(to);
}

static void not_every_dtype_has_every_form(void **state)
{
	(void)state;
	assert_true(dcp_view_can_show("a", DCP_DTYPE_F32, DCP_AS_NPY));
	assert_false(dcp_view_can_show("a", DCP_DTYPE_F6_E2M3, DCP_AS_NPY));
	assert_true(dcp_view_can_show("a", DCP_DTYPE_F6_E2M3, DCP_AS_SAFETENSORS));
	assert_false(dcp_view_can_show("__metadata__", DCP_DTYPE_F32, DCP_AS_SAFETENSORS));
}

static void a_changed_shard_is_refused(void **state)
{
	(void)state;
	for (int i = 0; i < 4; i++)
		check_changes(i & 1, i & 2);
}

/* ---- cuts ---- */

static void a_cut_needs_only_its_own_shards(void **state)
{
	struct dcp_span row = { 0, 0, 1 };
	struct dcp_axis axis[2];
	const struct dcp_cut cut = { .ndim = 2, .axis = axis };
	const struct dcp_tensor *t;
	struct dcp_view *view, *whole;
	struct dcp_err err = { 0 };
	struct copied c;
	uint64_t last;

	(void)state;
	open_copy(&c, false);
	whole = open_view(c.v, "layer.weight", DCP_AS_RAW, NULL);
	t = dcp_view_tensor(whole);
	assert_int_equal(t->ndim, 2);
	last = t->shape[0] - 1;
	axis[0] = (struct dcp_axis){ &row, 1, 1 };
	axis[1] = (struct dcp_axis){ &(struct dcp_span){ 0, 0, t->shape[1] }, 1, t->shape[1] };
	dcp_view_close(whole);
	close_copy(&c);
	open_copy(&c, false);
	assert_int_equal(truncate(c.shard, 100), 0);
	t_case("the whole needs the shard that was cut");
	assert_int_equal(try_open(c.v, "layer.weight", DCP_AS_RAW, NULL, &view, &err), -EIO);
	t_assert_says(&err, "__0_0.distcp");
	t_case("so does its first row");
	assert_int_equal(try_open(c.v, "layer.weight", DCP_AS_RAW, &cut, &view, &err), -EIO);
	t_case("the last row lies elsewhere");
	row.lo = last;
	view = open_view(c.v, "layer.weight", DCP_AS_RAW, &cut);
	assert_int_equal(dcp_view_check(view), 0);
	dcp_view_close(view);
	t_case("a row that is not there");
	row.lo = last + 1;
	assert_int_equal(try_open(c.v, "layer.weight", DCP_AS_RAW, &cut, &view, &err), -EINVAL);
	t_assert_says(&err, "layer.weight: what is asked for is not a part of this shape");
	close_copy(&c);
}

/* The head of an item that was parsed before is compared in the mapping, which may end early. */
static void cut_shards_of_known_items_are_noticed(void **state)
{
	struct dcp_err err = { 0 };
	struct dcp_view *view;
	struct copied c;
	uint64_t hits;

	(void)state;
	assert_int_equal(dcpfs_fault_install(), 0); /* cmocka has its own handler */
	for (int no_map = 0; no_map < 2; no_map++) {
		open_copy(&c, no_map);
		hits = dcp_torch_frames_hits(dcp_version_frames(c.v));
		view = open_view(c.v, "ids", DCP_AS_RAW, NULL);
		assert_int_equal(dcp_torch_frames_hits(dcp_version_frames(c.v)), hits + 1);
		assert_int_equal(dcp_view_size(view), dcp_view_size(c.view));
		dcp_view_close(view);
		assert_int_equal(truncate(c.shard, 0), 0);
		assert_int_equal(try_open(c.v, "ids", DCP_AS_RAW, NULL, &view, &err), -EIO);
		t_assert_says(&err, "the file ends at 0");
		assert_int_equal(dcp_torch_frames_hits(dcp_version_frames(c.v)), hits + 1);
		close_copy(&c);
	}
}

static void reads_are_counted(void **state)
{
	struct dcp_version *v;
	struct dcp_view *view;
	char buf[4096];
	uint64_t n;

	(void)state;
	for (int no_map = 0; no_map < 2; no_map++) {
		v = open_version("tests/golden/hostile/base", "base", no_map);
		view = open_view(v, "layer.weight", DCP_AS_RAW, NULL);
		n = dcp_view_size(view);
		assert_true(n <= sizeof(buf));
		counts = (struct dcp_io_counts){ 0 };
		assert_int_equal(dcp_view_read(view, 0, buf, n), 0);
		assert_int_equal(counts.mapped, no_map ? 0 : n);
		assert_int_equal(counts.read, no_map ? n : 0);
		assert_int_equal(counts.runs, 2);
		/* two checks, and a call for all reads, or one each and a look */
		assert_in_range(counts.calls, no_map ? 3 : 2, no_map ? 5 : 2);
		dcp_view_close(view);
		dcp_version_close(v);
	}
}

/* ---- the guard ---- */

static int touch(void *arg)
{
	return *(volatile char *)arg;
}

static void a_cut_mapping_does_not_kill(void **state)
{
	int fd = memfd_create("guard", 0);
	char *p;

	(void)state;
	assert_int_equal(dcpfs_fault_install(), 0); /* cmocka has its own handler */
	assert_int_equal(ftruncate(fd, 4096), 0);
	p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	*p = 7;
	assert_int_equal(dcp_guard_run(touch, p), 7);
	assert_int_equal(ftruncate(fd, 0), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(dcp_guard_run(touch, p), -EIO);
	munmap(p, 4096);
	close(fd);
}

static int install(void **state)
{
	(void)state;
	return dcpfs_fault_install() < 0 ? -1 : dcp_queue_create(&queue);
}

static int uninstall(void **state)
{
	(void)state;
	dcp_queue_destroy(queue);
	return 0;
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_tensors_are_read),
		cmocka_unit_test(not_every_dtype_has_every_form),
		cmocka_unit_test(a_changed_shard_is_refused),
		cmocka_unit_test(a_cut_needs_only_its_own_shards),
		cmocka_unit_test(cut_shards_of_known_items_are_noticed),
		cmocka_unit_test(reads_are_counted),
		cmocka_unit_test(a_cut_mapping_does_not_kill),
	};

	return cmocka_run_group_tests(tests, install, uninstall);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What compressed files decode to: kept, found again, distrusted, and swept away.
 */
#include "tests/unit/t.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/origin/dir/dir.h"
#include "core/store/cache/cache.h"
#include "core/store/version/version.h"
#include "tests/unit/t/model/pack.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/source.h"

enum { N = 200000 };

struct place {
	struct t_dir dir; /* ckpt/x.pt.gz and the like; cache/ */
	char cache[128];
	int ckpt; /* of ckpt */
	struct dcp_site at;
	char *want;
	struct dcp_log log;
	unsigned decoded, warnings; /* lines that say so */
	char said[512];             /* the last warning */
	pthread_mutex_t lock;
	uint64_t told; /* progress */
	struct dcp_progress progress;
};

static void hear(void *ctx, enum dcp_log_level level, const char *line)
{
	struct place *p = ctx;

	pthread_mutex_lock(&p->lock);
	p->decoded += strstr(line, "decompressing") && strstr(line, "once");
	if (level <= DCP_LOG_WARN) {
		p->warnings++;
		snprintf(p->said, sizeof(p->said), "%s", line);
	}
	pthread_mutex_unlock(&p->lock);
}

static void count(void *ctx, uint64_t done, uint64_t total, const char *what)
{
	struct place *p = ctx;

	assert_true(done <= total);
	assert_string_equal(what, "decompressing x.pt.gz");
	__atomic_store_n(&p->told, done, __ATOMIC_RELAXED); /* several decode at once */
}

static void put_packed(struct place *p, const char *name, enum dcp_codec codec)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

	t_pack(&b, codec, p->want, N);
	t_dir_put(&p->dir, name, b.p, b.n);
}

static int setup(void **state)
{
	struct place *p = calloc(1, sizeof(*p));

	t_dir_make(&p->dir, "unpack");
	snprintf(p->cache, sizeof(p->cache), "%s/cache/deep", p->dir.root);
	p->want = malloc(N);
	for (size_t i = 0; i < N; i++)
		p->want[i] = (char)(i * i >> 7);
	put_packed(p, "ckpt/x.pt.gz", DCP_CODEC_GZIP);
	p->ckpt = open(t_dir_path(&p->dir, "ckpt"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	p->at = dcp_site_at(p->ckpt);
	p->log = (struct dcp_log){ DCP_LOG_DEBUG, hear, p };
	p->progress = (struct dcp_progress){ count, p };
	pthread_mutex_init(&p->lock, NULL);
	*state = p;
	return 0;
}

static int teardown(void **state)
{
	struct place *p = *state;

	close(p->ckpt);
	free(p->want);
	t_dir_remove(&p->dir);
	free(p);
	return 0;
}

static struct dcp_unpack *make(struct place *p, const char *cache)
{
	struct dcp_store_opts opts = { .cache_dir = cache,
				       .log = &p->log,
				       .progress = &p->progress };
	struct dcp_unpack *u;

	assert_int_equal(dcp_unpack_create(&opts, &u), 0);
	return u;
}

static void check_content(struct place *p, struct dcp_unpack *u, const char *name)
{
	struct dcp_err err = { 0 };
	dcp_auto_free char *got = malloc(N);
	dcp_auto_blob struct dcp_blob blob = { 0 };
	struct dcp_file_id id = { .name = "kept" }, now = { 0 };
	uint64_t size = 0;
	struct stat st;

	if (dcp_unpack_open(u, &p->at, name, &blob, &size, &id, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(size, N);
	assert_int_equal(dcp_blob_read(&blob, 0, got, N), 0);
	assert_memory_equal(got, p->want, N);
	assert_string_equal(id.name, "kept");
	assert_int_equal(id.unpacked, N);
	assert_int_equal(fstatat(p->ckpt, name, &st, 0), 0);
	dcp_file_id_from_stat(&st, &now);
	assert_true(dcp_file_id_same(&now, &id));
}

/* Opened as a new process would, so many files were decoded in all. */
static void check_fresh(struct place *p, const char *name, unsigned decoded)
{
	struct dcp_unpack *u = make(p, p->cache);

	check_content(p, u, name);
	dcp_unpack_destroy(u);
	assert_int_equal(p->decoded, decoded);
}

/* The one decoded file; how many entries there are beside it is checked. */
static const char *kept_path(struct place *p)
{
	struct dcp_dir d;
	static char path[512];
	char name[64];

	snprintf(name, sizeof(name), "cache/deep/unpacked");
	assert_int_equal(dcp_dir_open(t_dir_path(&p->dir, name), &d, NULL), 0);
	assert_int_equal(d.n, 1);
	snprintf(path, sizeof(path), "%s/%s", d.path, d.entries[0].name);
	dcp_dir_close(&d);
	return path;
}

/* As if it had been decoded so long after the compressed file was written. */
static void made_after(struct place *p, int seconds)
{
	struct dcp_file_id id = { 0 };
	struct stat st;
	dcp_auto_fd int fd = open(kept_path(p), O_RDWR | O_CLOEXEC);

	assert_int_equal(fstatat(p->ckpt, "x.pt.gz", &st, 0), 0);
	dcp_file_id_from_stat(&st, &id);
	assert_int_equal(dcp_unpack_seal(fd, &id, N, id.ctime_ns + seconds * 1000000000ll), 0);
}

static void copies_are_kept_and_found(void **state)
{
	struct place *p = *state;
	struct dcp_unpack *u = make(p, p->cache);

	check_content(p, u, "x.pt.gz");
	check_content(p, u, "x.pt.gz"); /* the same version asks no disk */
	dcp_unpack_settle(u);
	check_content(p, u, "x.pt.gz");
	dcp_unpack_destroy(u);
	assert_int_equal(p->decoded, 1);
	assert_true(p->told > 0);
	assert_int_equal(p->warnings, 0);

	t_case("made while the file was new: not trusted");
	made_after(p, 1);
	check_fresh(p, "x.pt.gz", 2);
	t_case("made later: used");
	made_after(p, 10);
	check_fresh(p, "x.pt.gz", 2);
	assert_int_equal(p->warnings, 0);
}

static void every_codec_is_unpacked(void **state)
{
	static const struct {
		const char *name;
		enum dcp_codec codec;
	} files[] = {
		{ "b.pt.bz2", DCP_CODEC_BZIP2 }, { "b.tar.lzma", DCP_CODEC_XZ },
		{ "b.pt.lzma", DCP_CODEC_LZMA }, { "b.pt.zst", DCP_CODEC_ZSTD },
		{ "b.pt.lz4", DCP_CODEC_LZ4 },
	};
	struct place *p = *state;
	struct dcp_unpack *u = make(p, p->cache);
	char name[64];

	p->progress.report = NULL;
	dcp_unpack_settle(u);
	for (size_t i = 0; i < DCP_LEN(files); i++) {
		t_case(files[i].name);
		snprintf(name, sizeof(name), "ckpt/%s", files[i].name);
		put_packed(p, name, files[i].codec);
		check_content(p, u, files[i].name);
	}
	dcp_unpack_destroy(u);
	assert_int_equal(t_dir_count(&p->dir, "cache/deep/unpacked"), DCP_LEN(files));
}

static void damaged_copies_are_made_again(void **state)
{
	static const struct {
		const char *what;
		off_t at; /* byte changed; from the end where negative */
		bool cut;
	} cases[] = {
		{ "content", 5, false },
		{ "the middle of the content", N / 2, false },
		{ "the magic", -DCP_UNPACK_RECORD, false },
		{ "the size", -DCP_UNPACK_RECORD + 16, false },
		{ "the hash of the content", -16, false },
		{ "the hash of the record", -1, false },
		{ "cut in the content", 100, true },
		{ "cut in the record", -3, true },
		{ "empty", 0, true },
	};
	struct place *p = *state;
	unsigned decoded = 0;

	check_fresh(p, "x.pt.gz", ++decoded);
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		off_t at = cases[i].at < 0 ? N + DCP_UNPACK_RECORD + cases[i].at : cases[i].at;
		dcp_auto_fd int fd = -1;
		char byte;

		t_case(cases[i].what);
		made_after(p, 10);
		fd = open(kept_path(p), O_RDWR | O_CLOEXEC);
		assert_int_equal(pread(fd, &byte, 1, at), 1);
		byte ^= 1;
		assert_int_equal(
			cases[i].cut ? ftruncate(fd, at) : pwrite(fd, &byte, 1, at) - 1, 0);
		p->warnings = 0;
		check_fresh(p, "x.pt.gz", ++decoded);
		assert_int_equal(p->warnings, 1);
		assert_non_null(strstr(p->said, "damaged: decompressing again"));
	}

	t_case("a settled version reads no content to compare it");
	made_after(p, 10);
	{
		struct dcp_unpack *u = make(p, p->cache);
		dcp_auto_fd int fd = open(kept_path(p), O_WRONLY | O_CLOEXEC);
		struct dcp_blob got;
		uint64_t size;

		assert_int_equal(pwrite(fd, "?", 1, 0), 1);
		dcp_unpack_settle(u);
		assert_int_equal(dcp_unpack_open(u, &p->at, "x.pt.gz", &got, &size, NULL, NULL),
				 0);
		assert_int_equal(p->decoded, decoded);
		dcp_blob_close(&got);
		dcp_unpack_destroy(u);
	}
}

static void changed_files_are_decoded_again(void **state)
{
	struct place *p = *state;
	struct dcp_unpack *u = make(p, p->cache);

	check_content(p, u, "x.pt.gz");
	p->want[0] ^= 1;
	t_dir_delete(&p->dir, "ckpt/x.pt.gz");
	put_packed(p, "ckpt/x.pt.gz", DCP_CODEC_GZIP);
	t_dir_touch(&p->dir, "ckpt/x.pt.gz", 5); /* a clock may not have moved */
	check_content(p, u, "x.pt.gz");          /* also by who has the old one open */
	dcp_unpack_destroy(u);
	assert_int_equal(p->decoded, 2);
}

static void files_are_decoded_without_a_cache(void **state)
{
	struct place *p = *state;
	struct dcp_unpack *u = make(p, NULL);
	char path[160];

	check_content(p, u, "x.pt.gz");
	check_content(p, u, "x.pt.gz");
	assert_int_equal(p->decoded, 1);
	dcp_unpack_destroy(u);

	t_case("where none can be");
	t_dir_put(&p->dir, "file", "x", 1);
	snprintf(path, sizeof(path), "%s/file/cache", p->dir.root);
	u = make(p, path);
	check_content(p, u, "x.pt.gz");
	dcp_unpack_destroy(u);
	assert_int_equal(p->decoded, 2);
	assert_int_equal(p->warnings, 1);
	assert_non_null(strstr(p->said, "decoded in memory"));
}

/* RFC 8878, runs: 128 KiB of zeros in four bytes. */
static void bomb(struct dcp_buf *b, unsigned blocks)
{
	dcp_buf_add(b, "\x28\xb5\x2f\xfd\x00\x50", 6);
	for (unsigned i = 0; i < blocks; i++) {
		uint32_t head = (uint32_t)(i + 1 == blocks) | 1u << 1 | (1u << 17) << 3;

		dcp_buf_add(b, &head, 3);
		dcp_buf_add(b, "", 1);
	}
}

static void unusable_files_are_refused(void **state)
{
	struct place *p = *state;
	dcp_auto_buf struct dcp_buf bytes = DCP_BUF_INIT, packed = DCP_BUF_INIT;
	const struct {
		const char *what, *name;
		int code;
		const char *says;
	} cases[] = {
		{ "nothing there", "none.gz", -ENOENT, "none.gz: No such file" },
		{ "outside", "../outside.gz", -EXDEV, "are not followed" },
		{ "not compressed", "plain.gz", -EBADMSG,
		  "plain.gz: not compressed in a way known here" },
		{ "empty", "empty.gz", -EBADMSG, "empty.gz: not compressed" },
		{ "cut", "cut.gz", -EBADMSG, "cut.gz: damaged gzip stream" },
		{ "a bomb", "bomb.zst", -E2BIG, "bomb.zst: zstd stream decodes to more than" },
	};

	bomb(&bytes, 1200); /* 150 MiB from 4800 bytes */
	t_dir_put(&p->dir, "ckpt/bomb.zst", bytes.p, bytes.n);
	t_dir_put(&p->dir, "ckpt/plain.gz", "PK\3\4", 4);
	t_dir_put(&p->dir, "ckpt/empty.gz", "", 0);
	t_pack(&packed, DCP_CODEC_GZIP, p->want, N);
	t_dir_put(&p->dir, "ckpt/cut.gz", packed.p, packed.n / 2);
	t_dir_put(&p->dir, "outside.gz", packed.p, packed.n);
	p->progress.report = NULL;
	for (int cached = 0; cached < 2; cached++)
		for (size_t i = 0; i < DCP_LEN(cases); i++) {
			struct dcp_unpack *u = make(p, cached ? p->cache : NULL);
			struct dcp_err err = { 0 };
			struct dcp_blob blob = { 0 };
			uint64_t size;

			t_case(cases[i].what);
			dcp_unpack_settle(u);
			assert_int_equal(dcp_unpack_open(u, &p->at, cases[i].name, &blob, &size,
							 NULL, &err),
					 cases[i].code);
			assert_int_equal(err.code, cases[i].code);
			t_assert_says(&err, cases[i].says);
			assert_null(blob.ops);
			dcp_unpack_destroy(u);
		}
	assert_int_equal(t_dir_count(&p->dir, "cache/deep/unpacked"), 0); /* nothing is left */
}

static void *open_it(void *arg)
{
	struct place *p = arg;
	struct dcp_unpack *u = make(p, p->cache);

	check_content(p, u, "x.pt.gz");
	dcp_unpack_destroy(u);
	return NULL;
}

static void threads_leave_one_copy(void **state)
{
	struct place *p = *state;
	pthread_t threads[4];

	for (size_t i = 0; i < DCP_LEN(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, open_it, p), 0);
	for (size_t i = 0; i < DCP_LEN(threads); i++)
		pthread_join(threads[i], NULL);
	kept_path(p); /* one file, no lock, nothing half-done */
	assert_true(p->decoded >= 1);
}

/* ---- limits and locks of one version ---- */

static void the_oldest_copy_makes_room(void **state)
{
	struct place *p = *state;
	struct dcp_store_opts opts = { .cache_dir = p->cache,
				       .cache_limit = N + N / 2,
				       .log = &p->log };
	struct dcp_unpack *u;

	assert_int_equal(dcp_unpack_create(&opts, &u), 0);
	dcp_unpack_settle(u);
	put_packed(p, "ckpt/b.pt.zst", DCP_CODEC_ZSTD);
	check_content(p, u, "x.pt.gz");
	check_content(p, u, "x.pt.gz");
	assert_int_equal(p->decoded, 1);
	check_content(p, u, "b.pt.zst");
	assert_int_equal(p->decoded, 2);
	kept_path(p); /* one */
	t_case("what went is decoded again");
	check_content(p, u, "b.pt.zst");
	check_content(p, u, "x.pt.gz");
	assert_int_equal(p->decoded, 3);
	assert_int_equal(p->warnings, 0);
	dcp_unpack_destroy(u);
}

struct waiting {
	struct place *p;
	struct dcp_unpack *u;
	bool asked, stop; /* atomic */
	int rc;
};

static bool is_stopped(void *ctx)
{
	struct waiting *w = ctx;

	__atomic_store_n(&w->asked, true, __ATOMIC_RELEASE);
	return __atomic_load_n(&w->stop, __ATOMIC_ACQUIRE);
}

static void *open_locked(void *arg)
{
	struct waiting *w = arg;
	struct dcp_blob blob = { 0 };
	uint64_t size;

	w->rc = dcp_unpack_open(w->u, &w->p->at, "x.pt.gz", &blob, &size, NULL, NULL);
	dcp_blob_close(&blob);
	return NULL;
}

/* Another process decodes one of two files. */
static void threads_wait_for_no_other_file(void **state)
{
	struct place *p = *state;
	struct waiting w = { .p = p };
	struct dcp_store_opts opts = {
		.cache_dir = p->cache, .log = &p->log, .stop = is_stopped, .stop_ctx = &w
	};
	char path[512], lock[520];
	pthread_t thread;
	dcp_auto_fd int fd = -1;

	put_packed(p, "ckpt/b.pt.zst", DCP_CODEC_ZSTD);
	check_fresh(p, "x.pt.gz", 1);
	snprintf(path, sizeof(path), "%s", kept_path(p));
	unlink(path);
	snprintf(lock, sizeof(lock), "%s.lock", path);
	fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_int_equal(dcp_unpack_create(&opts, &w.u), 0);
	assert_int_equal(pthread_create(&thread, NULL, open_locked, &w), 0);
	while (!__atomic_load_n(&w.asked, __ATOMIC_ACQUIRE))
		sched_yield();
	t_case("the other one");
	check_content(p, w.u, "b.pt.zst");
	t_case("called off");
	__atomic_store_n(&w.stop, true, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	assert_int_equal(w.rc, -ECANCELED);
	dcp_unpack_destroy(w.u);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		T(copies_are_kept_and_found),
		T(every_codec_is_unpacked),
		T(damaged_copies_are_made_again),
		T(changed_files_are_decoded_again),
		T(files_are_decoded_without_a_cache),
		T(unusable_files_are_refused),
		T(threads_leave_one_copy),
		T(the_oldest_copy_makes_room),
		T(threads_wait_for_no_other_file),
	};

	return cmocka_run_group_tests_name("unpack", tests, NULL, NULL);
}

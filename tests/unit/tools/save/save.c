/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process that writes a plan: what is refused, what is missing, and what a process that died
 * has left.
 * covers: tools/save/save, tools/save/data, files, tools/save/planned
 * covers: tools/save/files
 */
#include "tests/unit/t.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/arena.h"
#include "core/base/hash.h"
#include "core/origin/archive/archive.h"
#include "core/origin/origin.h"
#include "core/write/write.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/write.h"
#include "tools/save/save.h"

#define PIECE ((uint64_t)SAVE_PIECE)

static const struct dcp_write_tensor tensors[] = {
	T_WRITE_WHOLE("a", DCP_DTYPE_U8, 1, 1000, 0),
	T_WRITE_WHOLE("b", DCP_DTYPE_U8, 1, PIECE + 2000, 0),
	T_WRITE_WHOLE("c", DCP_DTYPE_U8, 1, 0, 0),
	T_WRITE_WHOLE("d", DCP_DTYPE_U8, 1, 3000, 0),
};

static const struct dcp_write_set set = { .tensors = tensors, .ntensors = 4, .ranks = 1 };
/* Of the same sizes. */
static const struct dcp_write_tensor others[] = {
	T_WRITE_WHOLE("a", DCP_DTYPE_U8, 1, 1000, 0),
	T_WRITE_WHOLE("b", DCP_DTYPE_U8, 1, PIECE + 2000, 0),
	T_WRITE_WHOLE("c", DCP_DTYPE_U8, 1, 0, 0),
	T_WRITE_WHOLE("e", DCP_DTYPE_U8, 1, 3000, 0),
};
static const struct dcp_write_set renamed = { .tensors = others, .ntensors = 4, .ranks = 1 };
static const struct dcp_write_set fewer = { .tensors = tensors, .ntensors = 3, .ranks = 1 };

static int read_bytes(void *ctx, unsigned job, size_t tensor, size_t part, uint64_t off,
		      void *buf, size_t n, struct dcp_err *err)
{
	(void)ctx, (void)job, (void)err;
	for (size_t i = 0; i < n; i++)
		((unsigned char *)buf)[i] = t_write_byte(tensor, part, off + i);
	return 0;
}

/* As the kernel would. */
static int copy_bytes(void *ctx, unsigned job, size_t tensor, size_t part, uint64_t off,
		      uint64_t n, int fd, uint64_t to, struct dcp_err *err)
{
	char *p = malloc(n);
	int rc = read_bytes(ctx, job, tensor, part, off, p, n, err);

	assert_int_equal(pwrite(fd, p, n, (off_t)to), n);
	free(p);
	return rc < 0 ? rc : 1;
}

static const struct save_source source = { .read = read_bytes },
				copied = { .read = read_bytes, .copy = copy_bytes };

/* OUT is w.safetensors or w.npz in @d. */
static struct save *begin(const struct t_dir *d, const char *format,
			  const struct dcp_write_set *of, bool resume)
{
	static char path[200], name[32];
	const struct save_opts how = { .out = path, .file = true, .resume = resume };
	const struct dcp_write_opts opts = { .name = name };
	struct dcp_err err = { 0 };
	struct save *s;

	snprintf(name, sizeof(name), "w.%s", format);
	snprintf(path, sizeof(path), "%s/%s", d->root, name);
	if (save_create(&how, &s, &err) < 0 ||
	    save_plan(s, dcp_write_format(format), of, &opts, &err) < 0)
		fail_msg("%s", err.msg);
	return s;
}

/* A process that wrote everything, and died. */
static void die(const struct t_dir *d, const struct save_source *from)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(save_data(begin(d, "safetensors", &set, false), from, NULL) != 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void saves_are_resumed(void **state)
{
	static const struct {
		const char *what;
		const struct dcp_write_set *of;
		off_t damaged; /* bytes from the end; 0: none */
		uint64_t kept;
		bool resume;
		const struct save_source *from;
	} rows[] = {
		{ "all of it", &set, 0, PIECE + 6000, true, &source },
		{ "the second piece of b was changed", &set, 4000, PIECE + 4000, true,
		  &source },
		{ "all that the kernel copied", &set, 0, PIECE + 6000, true, &copied },
		{ "the same piece of it", &set, 4000, PIECE + 4000, true, &copied },
		{ "other tensors", &fewer, 0, 0, true, &source },
		{ "one with another name", &renamed, 0, 0, true, &source },
		{ "not asked for", &set, 0, 0, false, &source },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct save_counts c;
		struct dcp_err err = { 0 };
		struct t_dir d;
		struct save *s;
		char byte;
		int fd;

		t_case(rows[i].what);
		t_dir_make(&d, "save");
		die(&d, rows[i].from);
		fd = open(t_dir_path(&d, ".w.safetensors.dcpfs-part/.dcpfs-last"),
			  O_RDWR | O_CLOEXEC);
		assert_true(fd >= 0);
		if (rows[i].damaged)
			assert_int_equal(
				pwrite(fd, "", 1, lseek(fd, 0, SEEK_END) - rows[i].damaged), 1);
		close(fd);
		s = begin(&d, "safetensors", rows[i].of, rows[i].resume);
		assert_int_equal(save_data(s, &source, &err), 0);
		save_count(s, &c);
		assert_int_equal(c.kept, rows[i].kept);
		assert_int_equal(c.kept + c.written, c.data);
		if (save_seal(s, &err) < 0 || save_publish(s, &err) < 0)
			fail_msg("%s", err.msg);
		save_destroy(s);
		assert_int_equal(t_dir_count(&d, "."), 2); /* and the list */
		fd = open(t_dir_path(&d, "w.safetensors"), O_RDONLY | O_CLOEXEC);
		for (uint64_t k = 0; rows[i].of == &set && k < 3000; k++) {
			assert_int_equal(
				pread(fd, &byte, 1, lseek(fd, 0, SEEK_END) - 3000 + (off_t)k),
				1);
			assert_int_equal((unsigned char)byte, t_write_byte(3, 0, k));
		}
		close(fd);
		t_dir_remove(&d);
	}
}

static bool only_b(void *ctx, size_t tensor, size_t part)
{
	(void)ctx, (void)part;
	return tensor == 1;
}

/* Nothing is completed of which pieces are missing. */
static void incomplete_saves_are_not_published(void **state)
{
	const struct save_source some = { .read = read_bytes, .has = only_b };
	struct dcp_err err = { 0 };
	struct t_dir d;
	struct save *s;

	(void)state;
	t_dir_make(&d, "save");
	s = begin(&d, "safetensors", &set, false);
	assert_int_equal(save_data(s, &some, &err), 0);
	assert_int_equal(save_seal(s, &err), -ENODATA);
	t_assert_says(&err, "piece 0 of 4 was not written");
	save_destroy(s);
	assert_int_equal(t_dir_count(&d, "."), 0);
	t_dir_remove(&d);
}

/* What no save has made is not touched, nor what another is at. */
static void foreign_files_are_kept(void **state)
{
	struct save_opts how = { .out = "out" };
	struct dcp_err err = { 0 };
	struct save *s, *other;
	struct t_dir d;
	int was = open(".", O_RDONLY | O_CLOEXEC);

	(void)state;
	t_dir_make(&d, "save");
	t_dir_text(&d, ".out.dcpfs-part/mine", "mine");
	assert_int_equal(fchdir(d.fd), 0);
	assert_int_equal(save_create(&how, &s, &err), -ENOTEMPTY);
	t_assert_says(&err, "was not left by dcpfs");
	assert_int_equal(t_dir_count(&d, ".out.dcpfs-part"), 1);
	how.out = "full";
	how.force = true;
	t_dir_sub(&d, "full/below");
	assert_int_equal(save_create(&how, &s, &err), -EEXIST);
	t_assert_says(&err, "full/below/ was not written by dcpfs");
	how.out = "two";
	assert_int_equal(save_create(&how, &s, &err), 0);
	assert_int_equal(save_create(&how, &other, &err), -EBUSY);
	save_destroy(s);
	assert_int_equal(fchdir(was), 0);
	assert_int_equal(t_dir_count(&d, "."), 2);
	close(was);
	t_dir_remove(&d);
}

static const char *made_of_a_key;

static int plan_named(const struct dcp_write_set *of, const struct dcp_write_opts *opts,
		      struct dcp_writer *w, struct dcp_err *err)
{
	(void)of, (void)opts, (void)err;
	dcp_writer_file(w, made_of_a_key, true);
	return 0;
}

/* Whatever key a format makes the name of a file of, the file is in the directory. */
static void names_are_checked(void **state)
{
	static const struct {
		const char *name;
		int rc;
	} rows[] = { { "..", -EINVAL },   { ".", -EINVAL },
		     { "../x", -EINVAL }, { "a/../../x", -EINVAL },
		     { "a/..", -EINVAL }, { "/x", -EINVAL },
		     { "a//x", -EINVAL }, { "", -EINVAL },
		     { "a/", -EINVAL },   { "..a", 0 },
		     { "a/...", 0 } };
	const struct dcp_write_format f = { .name = "named", .plan = plan_named };
	const struct dcp_write_opts opts = { 0 };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		char path[200];
		const struct save_opts how = { .out = path };
		struct dcp_err err = { 0 };
		struct t_dir d;
		struct save *s;

		t_case(rows[i].name);
		made_of_a_key = rows[i].name;
		t_dir_make(&d, "save");
		snprintf(path, sizeof(path), "%s/out", d.root);
		assert_int_equal(save_create(&how, &s, &err), 0);
		assert_int_equal(save_plan(s, &f, &set, &opts, &err), rows[i].rc);
		save_destroy(s);
		assert_int_equal(t_dir_count(&d, "."), 0);
		t_dir_remove(&d);
	}
}

/* Two files, one of them in a directory. */
static int plan_two(const struct dcp_write_set *of, const struct dcp_write_opts *opts,
		    struct dcp_writer *w, struct dcp_err *err)
{
	(void)of, (void)opts, (void)err;
	dcp_writer_file(w, "sub/x", false);
	dcp_writer_part(w, 0, 0);
	dcp_writer_file(w, "y", false);
	dcp_writer_part(w, 3, 0);
	return 0;
}

/* What another user plants in the directory that is written into leads nowhere. */
static void planted_files_are_refused(void **state)
{
	static const struct dcp_write_format two = { .name = "two", .plan = plan_two };
	static const struct dcp_write_opts opts = { 0 };
	static const struct {
		const char *what, *name;
		bool later; /* when all is planned */
		int rc;
	} rows[] = {
		{ "a directory, before", "sub", false, -ENOTDIR },
		{ "a directory, later", "sub", true, -ENOTDIR },
		{ "a file, before", "y", false, -EEXIST },
		{ "a file, later", "y", true, -ELOOP },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_err err = { 0 };
		char path[200], at[64];
		const struct save_opts how = { .out = path };
		struct stat st;
		struct t_dir d;
		struct save *s;
		int rc;

		t_case(rows[i].what);
		t_dir_make(&d, "save");
		t_dir_text(&d, "mine/x", "mine");
		snprintf(path, sizeof(path), "%s/out", d.root);
		snprintf(at, sizeof(at), ".out.dcpfs-part/%s", rows[i].name);
		assert_int_equal(save_create(&how, &s, &err), 0);
		if (rows[i].later) {
			assert_int_equal(save_plan(s, &two, &set, &opts, &err), 0);
			renameat(d.fd, at, d.fd, "gone");
		}
		assert_int_equal(symlinkat(strcmp(rows[i].name, "y") ? "../mine" : "../mine/x",
					   d.fd, at),
				 0);
		rc = rows[i].later ? save_data(s, &source, &err)
				   : save_plan(s, &two, &set, &opts, &err);
		assert_int_equal(rc, rows[i].rc);
		save_destroy(s);
		assert_int_equal(t_dir_count(&d, "mine"), 1);
		assert_int_equal(stat(t_dir_path(&d, "mine/x"), &st), 0);
		assert_int_equal(st.st_size, 4);
		t_dir_remove(&d);
	}
}

static unsigned char all_are;

static int read_same(void *ctx, unsigned job, size_t tensor, size_t part, uint64_t off,
		     void *buf, size_t n, struct dcp_err *err)
{
	(void)ctx, (void)job, (void)tensor, (void)part, (void)off, (void)err;
	memset(buf, all_are, n);
	return 0;
}

/* Text is as long as the bytes are high; they were counted before. */
static void text_is_as_long_as_counted(void **state)
{
	const struct dcp_write_set counted = {
		.tensors = tensors, .ntensors = 1, .ranks = 1, .high = t_write_high
	};
	const struct dcp_write_opts opts = { .name = "w.pdparams", .protocol = 2 };
	const struct save_source changed = { .read = read_same };

	(void)state;
	for (int high = 0; high < 2; high++) {
		char path[200];
		const struct save_opts how = { .out = path, .file = true };
		struct dcp_err err = { 0 };
		struct t_dir d;
		struct save *s;

		all_are = high ? 0xff : 0;
		t_dir_make(&d, "save");
		snprintf(path, sizeof(path), "%s/w.pdparams", d.root);
		assert_int_equal(save_create(&how, &s, &err), 0);
		if (save_plan(s, dcp_write_format("paddle"), &counted, &opts, &err) < 0)
			fail_msg("%s", err.msg);
		assert_int_equal(save_data(s, &changed, &err), -ESTALE);
		save_destroy(s);
		t_dir_remove(&d);
	}
}

/* A file system that wants larger pages for O_DIRECT than we have. */
static bool large_pages;

ssize_t pwrite(int fd, const void *p, size_t n, off_t off)
{
	if (large_pages && (fcntl(fd, F_GETFL) & O_DIRECT)) {
		errno = EINVAL;
		return -1;
	}
	return syscall(SYS_pwrite64, fd, p, n, off);
}

static void direct_writes_are_whole(void **state)
{
	char path[200], byte;
	const struct save_opts how = { .out = path, .file = true, .direct = true };
	const struct dcp_write_opts opts = { .name = "w.safetensors" };
	struct save_counts c;
	struct dcp_err err = { 0 };
	struct t_dir d;
	struct save *s;
	int fd;

	(void)state;
	large_pages = true;
	t_dir_make(&d, "save");
	snprintf(path, sizeof(path), "%s/w.safetensors", d.root);
	assert_int_equal(save_create(&how, &s, &err), 0);
	assert_int_equal(save_plan(s, dcp_write_format("safetensors"), &set, &opts, &err), 0);
	if (save_data(s, &source, &err) < 0 || save_seal(s, &err) < 0 ||
	    save_publish(s, &err) < 0)
		fail_msg("%s", err.msg);
	save_count(s, &c);
	assert_int_equal(c.direct, 0);
	save_destroy(s);
	large_pages = false;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_int_equal(pread(fd, &byte, 1, lseek(fd, 0, SEEK_END) - 3000 - 1), 1);
	assert_int_equal((unsigned char)byte, t_write_byte(1, 0, PIECE + 1999));
	close(fd);
	t_dir_remove(&d);
}

/* Checksums of an archive, over several pieces. */
static void checksums_are_written(void **state)
{
	struct dcp_zip_member *m;
	struct dcp_arena arena;
	struct dcp_source src;
	struct dcp_err err = { 0 };
	struct t_dir d;
	struct save *s;
	uint64_t off;
	size_t n;
	char *p;
	int fd;

	(void)state;
	t_dir_make(&d, "save");
	s = begin(&d, "npz", &set, false);
	assert_int_equal(save_data(s, &source, &err), 0);
	assert_int_equal(save_seal(s, &err), 0);
	assert_int_equal(save_publish(s, &err), 0);
	save_destroy(s);
	fd = open(t_dir_path(&d, "w.npz"), O_RDONLY | O_CLOEXEC);
	n = (size_t)lseek(fd, 0, SEEK_END);
	p = malloc(n);
	assert_int_equal(pread(fd, p, n, 0), n);
	close(fd);
	src = dcp_source_mem(p, n);
	dcp_arena_init(&arena, 1 << 20);
	if (dcp_zip_list(&src, &arena, &m, &n, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(n, 4);
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(dcp_zip_data(&src, &m[i], &off, &err), 0);
		assert_int_equal(m[i].crc32, dcp_crc32(0, p + off, m[i].size));
	}
	dcp_arena_finish(&arena);
	free(p);
	t_dir_remove(&d);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(saves_are_resumed),
		cmocka_unit_test(incomplete_saves_are_not_published),
		cmocka_unit_test(foreign_files_are_kept),
		cmocka_unit_test(names_are_checked),
		cmocka_unit_test(text_is_as_long_as_counted),
		cmocka_unit_test(direct_writes_are_whole),
		cmocka_unit_test(planted_files_are_refused),
		cmocka_unit_test(checksums_are_written),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

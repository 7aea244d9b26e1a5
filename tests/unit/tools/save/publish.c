/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint gets its name, or takes that of another, on file systems that can do more or less,
 * and in processes that end at any step of it.
 * covers: tools/save/save, tools/save/files, files
 */
#include "tests/unit/t.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/t/parse/dir.h"
#include "tools/load/dcpload.h"
#include "tools/save/dcpsave.h"

/*
 * What the file system cannot do, the change of names at which the process ends, and what others do
 * meanwhile.
 */
static struct {
	bool no_flags, no_links;
	int calls, last;
	int stuck; /* 1: the new directory cannot take a free name; 2: nor can the old one */
	bool busy; /* whoever asks for a lock next does not get it */
	const char *
		/* what another process removes, makes and locks before the next lock is taken */
		gone;
	int held;
	bool other_user;
} fault;

static void step(void)
{
	/* all threads of this program come here */
	if (__atomic_add_fetch(&fault.calls, 1, __ATOMIC_RELAXED) == fault.last)
		_exit(9);
}

int renameat2(int from, const char *a, int to, const char *b, unsigned flags)
{
	step();
	errno = EINVAL;
	return flags && fault.no_flags ? -1
				       : (int)syscall(SYS_renameat2, from, a, to, b, flags);
}

int renameat(int from, const char *a, int to, const char *b)
{
	step();
	if (fault.stuck && strcmp(b, "out") == 0 && (fault.stuck > 1 || strstr(a, "-part")) &&
	    syscall(SYS_faccessat, to, b, F_OK) < 0) {
		errno = EIO;
		return -1;
	}
	return (int)syscall(SYS_renameat2, from, a, to, b, 0);
}

int flock(int fd, int how)
{
	/* The ranks of other tests are threads. */
	bool busy = __atomic_exchange_n(&fault.busy, false, __ATOMIC_RELAXED);

	if (fault.gone && !busy) {
		assert_int_equal(unlink(fault.gone), 0);
		fault.held = open(fault.gone, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
		assert_int_equal(syscall(SYS_flock, fault.held, LOCK_EX), 0);
		fault.gone = NULL;
	}
	errno = EWOULDBLOCK;
	return busy ? -1 : (int)syscall(SYS_flock, fd, how);
}

uid_t geteuid(void)
{
	return (uid_t)syscall(SYS_geteuid) + fault.other_user;
}

int linkat(int from, const char *a, int to, const char *b, int flags)
{
	step();
	errno = EPERM;
	return fault.no_links ? -1 : (int)syscall(SYS_linkat, from, a, to, b, flags);
}

int unlinkat(int dir, const char *name, int flags)
{
	step();
	return (int)syscall(SYS_unlinkat, dir, name, flags);
}

/*
 * Save one byte; @meanwhile: a file or, with a slash at the end, a directory that another process
 * makes before it is complete.
 */
static int save(const char *path, char byte, uint32_t flags, const char *meanwhile)
{
	const struct dcpsave_config config = { .size = sizeof(config),
					       .flags = flags,
					       .format = "safetensors" };
	const uint64_t shape[] = { 1 };
	const struct dcpsave_tensor t = { .size = sizeof(t),
					  .ndim = 1,
					  .key = "w",
					  .dtype = "U8",
					  .shape = shape,
					  .data = &byte };
	struct dcpload_error err = { 0 };
	struct dcpsave *s = NULL;
	int rc = dcpsave_open(NULL, path, &config, &s, &err);

	if (rc == 0)
		rc = dcpsave_add(s, &t, &err);
	if (rc == 0)
		rc = dcpsave_plan(s, &err);
	if (rc == 0 && meanwhile && meanwhile[strlen(meanwhile) - 1] == '/')
		assert_int_equal(mkdir(meanwhile, 0777), 0);
	else if (rc == 0 && meanwhile)
		close(open(meanwhile, O_WRONLY | O_CREAT, 0666));
	if (rc == 0)
		rc = dcpsave_write(s, &err);
	dcpsave_close(s);
	return rc;
}

/* The byte of a checkpoint, a directory or a file. -1: there is none; -2: it is not complete. */
static int saved(const char *path)
{
	char file[200];
	struct stat st;
	char byte = 0;
	int fd;

	if (stat(path, &st) < 0)
		return -1;
	snprintf(file, sizeof(file), "%s%s", path,
		 S_ISDIR(st.st_mode) ? "/model.safetensors" : "");
	fd = open(file, O_RDONLY);
	if (fd < 0 || lseek(fd, -1, SEEK_END) <= 8 || read(fd, &byte, 1) != 1)
		byte = -2;
	close(fd);
	return byte;
}

/* Is the save that ends at that call? */
static bool ends(const char *path, int last, bool no_flags)
{
	pid_t child = fork();
	int status;

	if (child == 0) {
		fault.calls = 0;
		fault.last = last;
		fault.no_flags = no_flags;
		_exit(save(path, 2, DCPSAVE_REPLACE, NULL) == 0 ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 1);
	return WEXITSTATUS(status) == 9;
}

/*
 * One directory in place of another: one of them is there, or both are kept and the old one comes
 * back.
 */
static void old_checkpoints_are_replaced(void **state)
{
	char path[128], old[128];
	struct t_dir d;

	(void)state;
	for (int way = 0; way < 3; way++)
		for (int last = 1, ended = 1; ended; last++) {
			int got;

			t_dir_make(&d, "publish");
			snprintf(path, sizeof(path), "%s/out", d.root);
			snprintf(old, sizeof(old), "%s/.out.dcpfs-old", d.root);
			assert_int_equal(save(path, 1, 0, NULL), 0);
			ended = ends(path, last, way > 0);
			got = saved(path);
			assert_true(ended ? got == 1 || got == 2 || got == -1 : got == 2);
			if (got == -1) {
				assert_true(way > 0);
				assert_int_equal(saved(old), 1);
				got = 1;
				fault.busy = way > 1; /* it ends only after it was looked for */
			}
			assert_int_equal(save(path, 3, 0, NULL), -EEXIST);
			assert_int_equal(saved(path), got);
			assert_int_equal(save(path, 3, DCPSAVE_REPLACE, NULL), 0);
			assert_int_equal(saved(path), 3);
			assert_int_equal(t_dir_count(&d, "."), 1);
			t_dir_remove(&d);
		}
}

/* The name cannot be taken: the old one has it again, now or at the next save. */
static void a_failed_rename_is_undone(void **state)
{
	char path[128];
	struct t_dir d;

	(void)state;
	t_dir_make(&d, "publish");
	snprintf(path, sizeof(path), "%s/out", d.root);
	assert_int_equal(save(path, 1, 0, NULL), 0);
	fault.no_flags = true;
	fault.stuck = 1;
	assert_int_equal(save(path, 2, DCPSAVE_REPLACE, NULL), -EIO);
	assert_int_equal(saved(path), 1);
	assert_int_equal(t_dir_count(&d, "."), 1);
	fault.stuck = 2;
	assert_int_equal(save(path, 2, DCPSAVE_REPLACE, NULL), -EIO);
	assert_int_equal(saved(path), -1);
	fault.stuck = 0;
	assert_int_equal(save(path, 3, 0, NULL), -EEXIST);
	assert_int_equal(saved(path), 1);
	fault.no_flags = false;
	t_dir_remove(&d);
}

/*
 * What a process of another user has left stays, and a journal that is removed before it is locked
 * is not a journal.
 */
static void leftovers_of_others_stay(void **state)
{
	char path[128], journal[160];
	struct t_dir d;

	(void)state;
	t_dir_make(&d, "publish");
	snprintf(path, sizeof(path), "%s/out", d.root);
	snprintf(journal, sizeof(journal), "%s/.out.dcpfs-journal", d.root);
	assert_true(ends(path, 1, false));
	assert_int_equal(t_dir_count(&d, ".out.dcpfs-part"), 2);
	fault.other_user = true;
	assert_int_equal(save(path, 3, 0, NULL), -ENOTEMPTY);
	fault.other_user = false;
	assert_int_equal(t_dir_count(&d, ".out.dcpfs-part"), 2);
	assert_int_equal(save(path, 3, 0, NULL), 0);
	t_dir_delete(&d, "out/model.safetensors");
	t_dir_delete(&d, "out/.dcpfs-written");
	fault.gone = journal;
	assert_int_equal(save(path, 3, 0, NULL), -EBUSY);
	assert_null(fault.gone);
	close(fault.held);
	assert_int_equal(save(path, 3, 0, NULL), 0);
	assert_int_equal(saved(path), 3);
	assert_int_equal(t_dir_count(&d, "."), 1);
	t_dir_remove(&d);
}

/* What another process makes meanwhile stays, whatever the file system can do. */
static void files_made_meanwhile_stay(void **state)
{
	char file[128], dir[128], in[160], sub[160];
	struct t_dir d;

	(void)state;
	t_dir_make(&d, "publish");
	snprintf(file, sizeof(file), "%s/w.safetensors", d.root);
	snprintf(dir, sizeof(dir), "%s/out", d.root);
	snprintf(in, sizeof(in), "%s/mine", dir);
	snprintf(sub, sizeof(sub), "%s/sub/", dir);
	for (int i = 0; i < 3; i++) {
		fault.no_flags = i > 0;
		fault.no_links = i > 1;
		assert_int_equal(save(file, 1, 0, file), -EEXIST);
		assert_int_equal(saved(file), -2);
		assert_int_equal(unlink(file), 0);
		assert_int_equal(save(file, 1, 0, NULL), 0);
		assert_int_equal(saved(file), 1);
		assert_int_equal(save(file, 2, DCPSAVE_REPLACE, NULL), 0);
		assert_int_equal(saved(file), 2);
		assert_int_equal(unlink(file), 0);
		assert_int_equal(mkdir(dir, 0777), 0);
		assert_int_equal(save(dir, 1, 0, in), -EEXIST);
		assert_int_equal(unlink(in), 0);
		assert_int_equal(save(dir, 1, 0, NULL), 0); /* an empty one gives way */
		assert_int_equal(saved(dir), 1);
		assert_int_equal(save(dir, 2, DCPSAVE_REPLACE, sub), -EEXIST);
		assert_int_equal(saved(dir), 1);
		assert_int_equal(rmdir(sub), 0);
		t_dir_delete(&d, "out/model.safetensors");
		t_dir_delete(&d, "out/.dcpfs-written");
		assert_int_equal(rmdir(dir), 0);
	}
	fault.no_flags = fault.no_links = false;
	t_dir_delete(&d, ".dcpfs-written");
	assert_int_equal(t_dir_count(&d, "."), 0);
	t_dir_remove(&d);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(old_checkpoints_are_replaced),
		cmocka_unit_test(a_failed_rename_is_undone),
		cmocka_unit_test(leftovers_of_others_stay),
		cmocka_unit_test(files_made_meanwhile_stay),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

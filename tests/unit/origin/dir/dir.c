/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each test makes a directory beside a file that must stay out of reach:
 *
 *	outside           "outside"
 *	ckpt/             what is opened
 *	ckpt/file         "inside"
 *	ckpt/sub/deep     "deep"
 */
#include "tests/unit/t.h"

#include <fcntl.h>
#include <ftw.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/origin/dir/dir.h"
#include "core/origin/dir/dir_int.h"
#include "tests/unit/t/fault.h"

struct place {
	char root[64];
	char ckpt[80];
	int fd; /* of ckpt */
};

static void put_file(int dirfd, const char *name, const char *text)
{
	dcp_auto_fd int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static int setup(void **state)
{
	struct place *p = calloc(1, sizeof(*p));
	const char *tmp = getenv("TMPDIR");
	dcp_auto_fd int root = -1;

	snprintf(p->root, sizeof(p->root), "%.40s/test_dir.XXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(p->root));
	root = open(p->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	snprintf(p->ckpt, sizeof(p->ckpt), "%s/ckpt", p->root);
	put_file(root, "outside", "outside");
	assert_int_equal(mkdirat(root, "ckpt", 0755), 0);
	p->fd = openat(root, "ckpt", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	put_file(p->fd, "file", "inside");
	assert_int_equal(mkdirat(p->fd, "sub", 0755), 0);
	put_file(p->fd, "sub/deep", "deep");
	assert_int_equal(symlinkat("../outside", p->fd, "link-out"), 0);
	assert_int_equal(symlinkat("/etc/passwd", p->fd, "link-absolute"), 0);
	assert_int_equal(symlinkat("..", p->fd, "link-up"), 0);
	assert_int_equal(symlinkat("file", p->fd, "link-in"), 0);
	assert_int_equal(symlinkat("sub", p->fd, "link-sub"), 0);
	assert_int_equal(symlinkat("../file", p->fd, "sub/link-back"), 0);
	assert_int_equal(symlinkat("nowhere", p->fd, "link-dangling"), 0);
	assert_int_equal(symlinkat("link-round", p->fd, "link-round"), 0);
	assert_int_equal(symlinkat("/proc/self/fd/0", p->fd, "link-magic"), 0);
	assert_int_equal(mkfifoat(p->fd, "fifo", 0644), 0);
	*state = p;
	return 0;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st;
	(void)flag;
	(void)ftw;
	return remove(path);
}

static int teardown(void **state)
{
	struct place *p = *state;

	close(p->fd);
	nftw(p->root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
	free(p);
	return 0;
}

/* clang-format off */
static const struct {
	const char *what, *name;
	const char *text;  /* the first bytes of the file, or NULL: refused */
	int code;          /* with openat2 */
	bool link;         /* refused with -EXDEV where there is no openat2 */
	const char *says;
} opens[] = {
	{ "a file", "file", "inside", 0, false, "" },
	{ "a file further down", "sub/deep", "deep", 0, false, "" },
	{ "spare slashes and dots", "./sub//./deep", "deep", 0, false, "" },
	{ "a link that stays inside", "link-in", "inside", 0, true, "" },
	{ "a link to a directory inside", "link-sub/deep", "deep", 0, true, "" },
	{ "a link up that stays inside", "sub/link-back", "inside", 0, true, "" },
	{ "a link out", "link-out", NULL, -EXDEV, true, "leads outside the directory" },
	{ "an absolute link", "link-absolute", NULL, -EXDEV, true, "leads outside the directory" },
	{ "a file behind a link out", "link-up/outside", NULL, -EXDEV, true, "leads outside the directory" },
	{ "in again behind a link out", "link-up/ckpt/file", NULL, -EXDEV, true, "leads outside the directory" },
	{ "a magic link", "link-magic", NULL, -EXDEV, true, "leads outside" },
	{ "a dangling link", "link-dangling", NULL, -ENOENT, true, "No such file" },
	{ "a link to itself", "link-round", NULL, -ELOOP, true, "" },
	{ "climbing out", "../outside", NULL, -EXDEV, false, "names with \"..\" are not followed" },
	{ "climbing, but staying inside", "sub/../file", NULL, -EXDEV, false, "names with \"..\"" },
	{ "climbing at the end", "sub/..", NULL, -EXDEV, false, "names with \"..\"" },
	{ "only climbing", "..", NULL, -EXDEV, false, "names with \"..\"" },
	{ "dots that are a name", "..file", NULL, -ENOENT, false, "No such file" },
	{ "an absolute name", "/etc/passwd", NULL, -EXDEV, false, "an absolute name" },
	{ "the root", "/", NULL, -EXDEV, false, "an absolute name" },
	{ "an empty name", "", NULL, -EINVAL, false, "an empty file name" },
	{ "a directory", "sub", NULL, -EISDIR, false, "sub: a directory, not a regular file" },
	{ "a directory, with a slash", "sub/", NULL, -EISDIR, false, "a directory" },
	{ "the directory itself", ".", NULL, -EISDIR, false, "a directory" },
	{ "a file taken for a directory", "file/x", NULL, -ENOTDIR, false, "Not a directory" },
	{ "a file with a slash behind", "file/", NULL, -ENOTDIR, false, "Not a directory" },
	{ "a FIFO without a writer", "fifo", NULL, -EINVAL, false, "fifo: a FIFO, not a regular file" },
	{ "nothing of that name", "none", NULL, -ENOENT, false, "none: No such file or directory" },
	{ "nothing below either", "none/file", NULL, -ENOENT, false, "No such file" },
};
/* clang-format on */

static void check_text(int fd, const char *text)
{
	char got[16] = { 0 };

	assert_int_equal(read(fd, got, sizeof(got) - 1), strlen(text));
	assert_string_equal(got, text);
}

static void opens_stay_inside(void **state)
{
	const struct place *p = *state;

	for (size_t i = 0; i < DCP_LEN(opens); i++) {
		dcp_auto_fd int fd = -1;
		struct dcp_err err = { 0 };
		struct stat st;

		t_case(opens[i].what);
		assert_int_equal(dcp_open_beneath(p->fd, opens[i].name, &fd, &st, &err),
				 opens[i].code);
		t_assert_says(&err, opens[i].says);
		if (!opens[i].text) {
			assert_int_equal(fd, -1);
			assert_int_equal(
				dcp_open_beneath(p->fd, opens[i].name, &fd, NULL, NULL),
				opens[i].code);
			continue;
		}
		check_text(fd, opens[i].text);
		assert_int_equal(st.st_size, strlen(opens[i].text));
		assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
		assert_false(fcntl(fd, F_GETFL) & O_NONBLOCK);
	}
}

/* The way of kernels without openat2: the same answers, links aside. */
static void walks_stay_inside_and_follow_no_link(void **state)
{
	const struct place *p = *state;

	for (size_t i = 0; i < DCP_LEN(opens); i++) {
		dcp_auto_fd int fd = -1;

		if (!*opens[i].name)
			continue;
		t_case(opens[i].what);
		fd = dcp_open_walk(p->fd, opens[i].name, O_RDONLY | O_NONBLOCK);
		if (opens[i].link)
			assert_int_equal(fd, -EXDEV);
		else if (opens[i].text)
			check_text(fd, opens[i].text);
		else if (opens[i].code == -EISDIR || strcmp(opens[i].name, "fifo") == 0)
			assert_true(fd >= 0); /* dcp_open_beneath() looks at what it got */
		else
			assert_int_equal(fd, opens[i].code);
		dcp_close_fd(&fd);
		if (opens[i].link) {
			fd = dcp_open_walk(p->fd, opens[i].name, O_PATH);
			assert_int_equal(fd, -EXDEV);
		}
	}
}

static void without_openat2_files_are_walked_to(void **state)
{
	static const int codes[] = { ENOSYS, EPERM };
	const struct place *p = *state;

	for (size_t i = 0; i < DCP_LEN(codes); i++) {
		dcp_auto_fd int fd = -1;

		t_case(strerror(codes[i]));
		t_fault_openat2 = codes[i];
		assert_int_equal(dcp_open_beneath(p->fd, "sub/deep", &fd, NULL, NULL), 0);
		check_text(fd, "deep");
		dcp_close_fd(&fd);
		assert_int_equal(dcp_open_beneath(p->fd, "link-in", &fd, NULL, NULL), -EXDEV);
		t_fault_openat2 = 0;
	}
}

static void walks_follow_no_swapped_directory(void **state)
{
	const struct place *p = *state;

	assert_int_equal(renameat(p->fd, "sub", p->fd, "sub-was"), 0);
	assert_int_equal(symlinkat("..", p->fd, "sub"), 0);
	assert_int_equal(dcp_open_walk(p->fd, "sub/outside", O_RDONLY), -EXDEV);
	assert_int_equal(dcp_open_walk(p->fd, "sub/", O_RDONLY), -EXDEV);
}

static void a_socket_is_not_a_file(void **state)
{
	const struct place *p = *state;
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	dcp_auto_fd int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct dcp_err err = { 0 };
	int fd;

	snprintf(to.sun_path, sizeof(to.sun_path), "%s/sock", p->ckpt);
	assert_int_equal(bind(sock, (struct sockaddr *)&to, sizeof(to)), 0);
	assert_int_equal(dcp_open_beneath(p->fd, "sock", &fd, NULL, &err), -EINVAL);
	t_assert_says(&err, "sock: a socket or device, not a regular file");
}

static void unreadable_files_are_reported(void **state)
{
	const struct place *p = *state;
	struct dcp_err err = { 0 };
	bool root = geteuid() == 0;
	int fd, code;

	assert_int_equal(fchmodat(p->fd, "file", 0, 0), 0);
	if (root) { /* nothing is closed to root: be another user for one call */
		assert_int_equal(fchmod(p->fd, 0755), 0);
		assert_int_equal(seteuid(65534), 0);
	}
	code = dcp_open_beneath(p->fd, "file", &fd, NULL, &err);
	if (root)
		assert_int_equal(seteuid(0), 0);
	assert_int_equal(code, -EACCES);
	t_assert_says(&err, "file: Permission denied");
}

static void names_of_255_bytes_are_opened(void **state)
{
	const struct place *p = *state;
	char name[300], path[600];
	struct dcp_dir d;
	int fd;

	memset(name, 'n', sizeof(name));
	name[255] = '\0';
	put_file(p->fd, name, "long");
	assert_int_equal(dcp_open_beneath(p->fd, name, &fd, NULL, NULL), 0);
	close(fd);
	fd = dcp_open_walk(p->fd, name, O_RDONLY);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(dcp_dir_open(p->ckpt, &d, NULL), 0);
	assert_int_equal(dcp_dir_find(&d, name)->size, 4);
	dcp_dir_close(&d);
	name[255] = 'n';
	name[256] = '\0';
	assert_int_equal(dcp_open_beneath(p->fd, name, &fd, NULL, NULL), -ENAMETOOLONG);
	assert_int_equal(dcp_open_walk(p->fd, name, O_RDONLY), -ENAMETOOLONG);
	snprintf(path, sizeof(path), "sub/%s", name);
	assert_int_equal(dcp_open_walk(p->fd, path, O_RDONLY), -ENAMETOOLONG);
}

/* clang-format off */
static const struct {
	const char *name;
	uint64_t size;
	bool is_dir;
} listed[] = {
	{ "fifo", 0, false },
	{ "file", 6, false },
	{ "link-absolute", 0, false },
	{ "link-dangling", 0, false },
	{ "link-in", 6, false },
	{ "link-magic", 0, false },
	{ "link-out", 0, false },
	{ "link-round", 0, false },
	{ "link-sub", 0, true },
	{ "link-up", 0, false },
	{ "sub", 0, true },
};
/* clang-format on */

static void a_listing_is_sorted_and_knows_links(void **state)
{
	const struct place *p = *state;
	struct dcp_dir d;

	assert_int_equal(dcp_dir_open(p->ckpt, &d, NULL), 0);
	assert_string_equal(d.path, p->ckpt);
	assert_int_equal(d.n, DCP_LEN(listed));
	for (size_t i = 0; i < d.n; i++) {
		t_case(listed[i].name);
		assert_string_equal(d.entries[i].name, listed[i].name);
		assert_int_equal(d.entries[i].size, listed[i].size);
		assert_int_equal(d.entries[i].is_dir, listed[i].is_dir);
		assert_ptr_equal(dcp_dir_find(&d, listed[i].name), &d.entries[i]);
	}
	assert_null(dcp_dir_find(&d, "fil"));
	assert_null(dcp_dir_find(&d, "filee"));
	assert_null(dcp_dir_find(&d, ""));
	dcp_dir_close(&d);
	assert_null(d.at.row);
	dcp_dir_close(&d);
}

static void directories_below_are_opened(void **state)
{
	static const struct {
		const char *what, *name;
		int code;
	} rows[] = {
		{ "a directory", "sub", 0 },
		{ "through a link inside", "link-sub", 0 },
		{ "through a link out", "link-up", -EXDEV },
		{ "climbing", "..", -EXDEV },
		{ "absolute", "/etc", -EXDEV },
		{ "a file", "file", -ENOTDIR },
		{ "a FIFO", "fifo", -ENOTDIR },
		{ "nothing", "none", -ENOENT },
		{ "an empty name", "", -EINVAL },
	};
	const struct place *p = *state;
	struct dcp_dir d, sub;

	assert_int_equal(dcp_dir_open(p->ckpt, &d, NULL), 0);
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_err err = { 0 };

		t_case(rows[i].what);
		assert_int_equal(dcp_dir_open_at(&d, rows[i].name, &sub, &err), rows[i].code);
		assert_int_equal(err.code, rows[i].code);
		if (rows[i].code)
			continue;
		assert_int_equal(sub.n, 2);
		assert_string_equal(sub.entries[0].name, "deep");
		assert_string_equal(sub.entries[1].name, "link-back");
		/* It leads out of sub, although not out of the directory above. */
		assert_int_equal(sub.entries[1].size, 0);
		assert_non_null(strstr(sub.path, rows[i].name));
		dcp_dir_close(&sub);
	}
	dcp_dir_close(&d);
}

static void unlistable_paths_are_reported(void **state)
{
	const struct place *p = *state;
	struct dcp_err err = { 0 };
	struct dcp_dir d;
	char path[120];

	snprintf(path, sizeof(path), "%s/none", p->ckpt);
	assert_int_equal(dcp_dir_open(path, &d, &err), -ENOENT);
	t_assert_says(&err, "/none: No such file or directory");
	snprintf(path, sizeof(path), "%s/fifo", p->ckpt);
	assert_int_equal(dcp_dir_open(path, &d, &err), -ENOTDIR);
}

static void a_file_is_a_directory_of_itself(void **state)
{
	const struct place *p = *state;
	struct dcp_input in;
	struct dcp_dir d;
	char path[120];

	snprintf(path, sizeof(path), "%s/file", p->ckpt);
	assert_int_equal(dcp_dir_open(path, &d, NULL), 0);
	assert_int_equal(d.n, 1);
	assert_string_equal(d.entries[0].name, "file");
	assert_false(d.entries[0].is_dir);
	assert_int_equal(dcp_dir_input(&d, "file", &in, NULL), 0);
	assert_int_equal(in.src.size, d.entries[0].size);
	dcp_input_close(&in);
	assert_int_equal(dcp_dir_input(&d, "../else", &in, NULL), -EXDEV);
	dcp_dir_close(&d);
}

static bool begins_with_f(void *ctx, const struct dcp_dirent *e)
{
	++*(int *)ctx;
	return *e->name == 'f';
}

static void chosen_entries_make_a_directory(void **state)
{
	const struct place *p = *state;
	struct dcp_dir d, some;
	int asked = 0;

	assert_int_equal(dcp_dir_open(p->ckpt, &d, NULL), 0);
	assert_int_equal(dcp_dir_only(&d, begins_with_f, &asked, &some), 0);
	assert_int_equal(asked, d.n);
	assert_true(some.n > 0 && some.n < d.n);
	for (size_t i = 0; i < some.n; i++) {
		assert_int_equal(*some.entries[i].name, 'f');
		assert_non_null(dcp_dir_find(&some, some.entries[i].name));
	}
	assert_string_equal(some.path, d.path);
	dcp_dir_close(&d);
	dcp_dir_close(&some);
}

static void empty_directories_have_no_entries(void **state)
{
	const struct place *p = *state;
	struct dcp_dir d, empty;

	assert_int_equal(mkdirat(p->fd, "empty", 0755), 0);
	assert_int_equal(dcp_dir_open(p->ckpt, &d, NULL), 0);
	assert_int_equal(dcp_dir_open_at(&d, "empty", &empty, NULL), 0);
	assert_int_equal(empty.n, 0);
	assert_null(dcp_dir_find(&empty, "a"));
	dcp_dir_close(&empty);
	dcp_dir_close(&d);
}

static void identity_changes_with_the_file(void **state)
{
	const struct place *p = *state;
	struct dcp_file_id a = { .name = "a" }, b = { .name = "b" };
	struct timespec far[2] = { { .tv_sec = INT64_MAX / 2 }, { .tv_sec = INT64_MAX / 2 } };
	struct stat st;

	assert_int_equal(fstatat(p->fd, "file", &st, 0), 0);
	dcp_file_id_from_stat(&st, &a);
	dcp_file_id_from_stat(&st, &b);
	assert_string_equal(b.name, "b");
	assert_true(dcp_file_id_same(&a, &b));
	assert_int_equal(a.size, 6);
	assert_int_equal(a.mtime_ns, st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec);
	b.size++;
	assert_false(dcp_file_id_same(&a, &b));
	b = a;
	b.ino++;
	assert_false(dcp_file_id_same(&a, &b));
	b = a;
	b.dev++;
	assert_false(dcp_file_id_same(&a, &b));
	b = a;
	b.mtime_ns++;
	assert_false(dcp_file_id_same(&a, &b));
	b = a;
	b.ctime_ns++;
	assert_false(dcp_file_id_same(&a, &b));
	st.st_mtim = far[0];
	dcp_file_id_from_stat(&st, &b);
	assert_int_equal(b.mtime_ns, INT64_MAX);
	st.st_mtim.tv_sec = INT64_MIN / 2;
	dcp_file_id_from_stat(&st, &b);
	assert_int_equal(b.mtime_ns, INT64_MIN);
}

/* Hugging Face's download cache: every file of a snapshot is a link to a blob beside it. */
static const struct {
	const char *in, *name, *link;
	bool followed;
} hub_links[] = {
	{ "snapshots/r1", "model.safetensors", "../../blobs/ab12", true },
	{ "snapshots/r1/unet", "w.safetensors", "../../../blobs/ab12", true },
	{ "snapshots/r1", "vae/w.safetensors", "../../../blobs/ab12", true },
	{ "snapshots/r1", "vae/wrong-level", "../../blobs/ab12", false },
	{ "snapshots/r1", "linked/w.safetensors", "../../../blobs/ab12", false },
	{ "snapshots/r1", "not-a-hash", "../../blobs/../secret", false },
	{ "snapshots/r1", "behind-a-hash", "../../blobs/dd/../../secret", false },
	{ "snapshots/r1", "elsewhere", "../../secret", false },
	{ "snapshots/r1", "other-name", "../../blob/ab12", false },
	{ "snapshots/r1", "too-low", "../blobs/ab12", false },
	{ "snapshots/r1", "through-a-link", "../../blobs/out", false },
	{ "snapshots/r1", "absolute", "/etc/hostname", false },
	{ "snapshots/r1/unet", "wrong-level", "../../blobs/ab12", false },
	{ "elsewhere/r1", "model.safetensors", "../../blobs/ab12", false },
};

static void put_hub(const struct place *p)
{
	static const char *const dirs[] = { "blobs",        "snapshots",
					    "snapshots/r1", "snapshots/r1/unet",
					    "elsewhere",    "elsewhere/r1",
					    "blob",         "snapshots/r1/vae",
					    "else",         "blobs/dd" };

	for (size_t i = 0; i < DCP_LEN(dirs); i++)
		assert_int_equal(mkdirat(p->fd, dirs[i], 0755), 0);
	put_file(p->fd, "blobs/ab12", "blob");
	put_file(p->fd, "blob/ab12", "blob");
	put_file(p->fd, "secret", "secret");
	assert_int_equal(symlinkat("../secret", p->fd, "blobs/out"), 0);
	assert_int_equal(symlinkat("../../else", p->fd, "snapshots/r1/linked"), 0);
	for (size_t i = 0; i < DCP_LEN(hub_links); i++) {
		char path[256];

		snprintf(path, sizeof(path), "%s/%s", hub_links[i].in, hub_links[i].name);
		assert_int_equal(symlinkat(hub_links[i].link, p->fd, path), 0);
	}
}

static void links_of_the_hub_are_followed(void **state)
{
	const struct place *p = *state;

	put_hub(p);
	for (size_t i = 0; i < DCP_LEN(hub_links); i++) {
		bool followed = hub_links[i].followed;
		struct dcp_err err = { 0 };
		dcp_auto_fd int fd = -1;
		struct dcp_dir dir;
		char path[512];

		t_case(hub_links[i].link);
		snprintf(path, sizeof(path), "%s/%s", p->ckpt, hub_links[i].in);
		assert_int_equal(dcp_dir_open(path, &dir, &err), 0);
		assert_int_equal(
			dcp_open_beneath(dir.at.fd, hub_links[i].name, &fd, NULL, &err),
			followed ? 0 : -EXDEV);
		if (!strchr(hub_links[i].name, '/'))
			assert_int_equal(dcp_dir_find(&dir, hub_links[i].name)->size,
					 followed ? 4 : 0);
		dcp_dir_close(&dir);
		if (!followed)
			continue;
		snprintf(path, sizeof(path), "%s/%s/%s", p->ckpt, hub_links[i].in,
			 hub_links[i].name);
		assert_int_equal(dcp_dir_open(path, &dir, &err), 0);
		assert_true(dir.is_file);
		assert_string_equal(dir.entries->name, /* not the blob's */
				    strrchr(path, '/') + 1);
		dcp_dir_close(&dir);
	}
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		T(opens_stay_inside),
		T(walks_stay_inside_and_follow_no_link),
		T(without_openat2_files_are_walked_to),
		T(walks_follow_no_swapped_directory),
		T(a_socket_is_not_a_file),
		T(unreadable_files_are_reported),
		T(names_of_255_bytes_are_opened),
		T(a_listing_is_sorted_and_knows_links),
		T(directories_below_are_opened),
		T(links_of_the_hub_are_followed),
		T(unlistable_paths_are_reported),
		T(a_file_is_a_directory_of_itself),
		T(chosen_entries_make_a_directory),
		T(empty_directories_have_no_entries),
		T(identity_changes_with_the_file),
	};
	return cmocka_run_group_tests_name("dir", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A secret of the user: made once, the same for all, and refused where others could read or set it.
 */
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "tests/unit/t.h"
#include "tools/load/comm/meet.h"

enum { THREADS = 8 };

struct maker {
	const char *dir;
	char text[LOAD_SECRET_BYTES + 1];
	int rc;
};

static void *make(void *arg)
{
	struct maker *m = arg;

	m->rc = load_secret_of_user(m->dir, m->text, NULL);
	return NULL;
}

static void secrets_are_made_once(void **state)
{
	struct maker m[THREADS];
	pthread_t thread[THREADS];
	char dir[64] = "/tmp/secret-XXXXXX", path[128];
	struct stat st;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/a/b", dir);
	for (int i = 0; i < THREADS; i++) {
		m[i] = (struct maker){ .dir = path };
		assert_int_equal(pthread_create(&thread[i], NULL, make, &m[i]), 0);
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(thread[i], NULL);
		assert_int_equal(m[i].rc, 0);
		assert_string_equal(m[i].text, m[0].text);
	}
	assert_int_equal(strspn(m[0].text, "0123456789abcdef"), LOAD_SECRET_BYTES);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	snprintf(path, sizeof(path), "%s/a/b/secret", dir);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(st.st_nlink, 1);
	unlink(path);
	snprintf(path, sizeof(path), "%s/a/b", dir);
	rmdir(path); /* fails if something else were in it */
	snprintf(path, sizeof(path), "%s/a", dir);
	assert_int_equal(rmdir(path), 0);
	rmdir(dir);
}

static void unsafe_secrets_are_refused(void **state)
{
	char dir[64] = "/tmp/secret-XXXXXX", path[128], text[LOAD_SECRET_BYTES + 1];
	struct dcpload_error err;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/secret", dir);
	assert_int_equal(load_secret_of_user(dir, text, &err), 0);
	chmod(path, 0640);
	assert_int_equal(load_secret_of_user(dir, text, &err), -EPERM);
	assert_non_null(strstr(err.text, "this user alone can read"));
	chmod(path, 0600);
	chmod(dir, 0770);
	assert_int_equal(load_secret_of_user(dir, text, &err), -EPERM);
	assert_non_null(strstr(err.text, "this user alone can write to"));
	chmod(dir, 0700);
	assert_int_equal(truncate(path, LOAD_SECRET_BYTES - 1), 0);
	assert_int_equal(load_secret_of_user(dir, text, &err), -EBADMSG);
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0); /* is not waited for */
	assert_int_equal(load_secret_of_user(dir, text, &err), -EPERM);
	unlink(path);
	assert_int_equal(load_secret_of_user("/proc/none", text, &err), -ENOENT);
	rmdir(dir);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(secrets_are_made_once),
		cmocka_unit_test(unsafe_secrets_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

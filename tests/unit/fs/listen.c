/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics on a socket: where they may be, and what clients of all kinds are answered. */
#include "tests/unit/t.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "fs/session.h"

#define PATH "/tmp/dcpfs-unit-listen.XXXXXX"

static void make(void *ctx, struct dcp_buf *out)
{
	dcp_buf_printf(out, "made %d\n", ++*(int *)ctx);
}

static void only_this_machine_is_listened_at(void **state)
{
	static const char *const good[] = { "unix:/run/x", "127.0.0.1:0", "127.0.0.1:65535",
					    "[::1]:9100" };
	static const char *const bad[] = {
		"",
		"9100",
		"0.0.0.0:9100",
		"127.0.0.1",
		"127.0.0.1:",
		"[::]:9100",
		"::1:9100",
		"127.0.0.1:65536",
		"localhost:1",
		"127.0.0.1:1x",
		"127.0.0.1:+1",
		"127.0.0.2:1",
		"unix:",
		"unix:rel",
		"127.0.0.1:000001",
		"10.0.0.1:1",
	};
	struct dcp_err err;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(good); i++)
		assert_int_equal(dcpfs_listen_check(good[i], &err), 0);
	for (size_t i = 0; i < DCP_LEN(bad); i++) {
		err = (struct dcp_err){ 0 };
		assert_int_equal(dcpfs_listen_check(bad[i], &err), -EINVAL);
		assert_true(err.msg[0]);
	}
}

static void too_long_paths_are_refused(void **state)
{
	struct dcp_err err = { 0 };
	char where[300] = "unix:/";

	(void)state;
	memset(where + 6, 'x', 107);
	assert_int_equal(dcpfs_listen_check(where, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "at most 107 bytes, this has 108"));
	where[6 + 106] = '\0';
	assert_int_equal(dcpfs_listen_check(where, &err), 0);
}

/* What the socket answers to @request; "" if it closes. */
static void ask(const char *path, const char *request, char out[4096])
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	dcp_auto_fd int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	size_t n = 0;
	ssize_t k;

	strcpy(a.sun_path, path);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
	while (n < 4095 && (k = recv(fd, out + n, 4095 - n, 0)) > 0)
		n += (size_t)k;
	out[n] = '\0';
}

static void requests_are_answered(void **state)
{
	static const struct {
		const char *request, *status;
	} cases[] = {
		{ "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK\r\n" },
		{ "GET / HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK\r\n" },
		{ "GET /metrics?x=y HTTP/1.1\n\n", "HTTP/1.1 200 OK\r\n" },
		{ "HEAD /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK\r\n" },
		{ "GET /metricsx HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found\r\n" },
		{ "GET /../etc HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found\r\n" },
		{ "POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed\r\n" },
		{ "GET\r\n /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n" },
		{ "\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n" },
		{ "\x16\x03\x01 /\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n" },
	};
	struct dcpfs_listen *l = NULL;
	dcp_auto_free char *at = NULL;
	struct dcp_err err = { 0 };
	char dir[] = PATH, where[80], got[4096];
	struct stat st;
	int calls = 0;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(where, sizeof(where), "unix:%s/s", dir);
	assert_int_equal(dcpfs_listen_open(where, &l, &at, &err), 0);
	assert_string_equal(at, where);
	assert_int_equal(stat(where + 5, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(dcpfs_listen_start(l, make, &calls), 0);
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		bool ok = strstr(cases[i].status, " 200 ");
		int before = calls;

		ask(where + 5, cases[i].request, got);
		assert_memory_equal(got, cases[i].status, strlen(cases[i].status));
		assert_int_equal(calls, before + ok);
		assert_int_equal(strstr(got, "\r\n\r\nmade ") != NULL,
				 ok && strncmp(cases[i].request, "HEAD", 4) != 0);
	}
	dcpfs_listen_close(l);
	assert_int_equal(access(where + 5, F_OK), -1);
	rmdir(dir);
}

/*
 * A request without an end is cut at its limit, and clients that say nothing are not waited for for
 * ever.
 */
static void slow_clients_do_not_stop_others(void **state)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct dcpfs_listen *l = NULL;
	dcp_auto_free char *at = NULL;
	struct dcp_err err = { 0 };
	char dir[] = PATH, where[80], got[4096], long_one[8192];
	int calls = 0, silent[12];

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(where, sizeof(where), "unix:%s/s", dir);
	assert_int_equal(dcpfs_listen_open(where, &l, &at, &err), 0);
	assert_int_equal(dcpfs_listen_start(l, make, &calls), 0);
	strcpy(a.sun_path, where + 5);
	memset(long_one, 'x', sizeof(long_one));
	memcpy(long_one, "GET / HTTP/1.1\r\nA: ", 19);
	long_one[4096] = '\0';
	ask(where + 5, long_one, got);
	assert_memory_equal(got, "HTTP/1.1 431 ", 13);
	for (size_t i = 0; i < DCP_LEN(silent); i++) { /* more than are served at a time */
		silent[i] = socket(AF_UNIX, SOCK_STREAM, 0);
		assert_int_equal(connect(silent[i], (struct sockaddr *)&a, sizeof(a)), 0);
	}
	ask(where + 5, "GET /metrics HTTP/1.1\r\n\r\n", got);
	assert_memory_equal(got, "HTTP/1.1 200 OK\r\n", 17);
	for (size_t i = 0; i < DCP_LEN(silent); i++)
		close(silent[i]);
	dcpfs_listen_close(l);
	rmdir(dir);
}

static void only_a_leftover_socket_is_replaced(void **state)
{
	struct dcpfs_listen *l = NULL, *other = NULL;
	dcp_auto_free char *at = NULL, *none = NULL;
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct dcp_err err = { 0 };
	char dir[] = PATH, where[80];
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	FILE *f;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(where, sizeof(where), "unix:%s/s", dir);
	strcpy(a.sun_path, where + 5);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	close(fd);
	assert_int_equal(dcpfs_listen_open(where, &l, &at, &err), 0);
	assert_int_equal(dcpfs_listen_open(where, &other, &none, &err), -EADDRINUSE);
	assert_null(other);
	assert_non_null(strstr(err.msg, "in use"));
	dcpfs_listen_close(l);
	f = fopen(where + 5, "w");
	assert_non_null(f);
	fclose(f);
	assert_int_equal(dcpfs_listen_open(where, &other, &none, &err), -EADDRINUSE);
	assert_int_equal(access(where + 5, F_OK), 0);
	unlink(where + 5);
	rmdir(dir);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_this_machine_is_listened_at),
		cmocka_unit_test(too_long_paths_are_refused),
		cmocka_unit_test(requests_are_answered),
		cmocka_unit_test(slow_clients_do_not_stop_others),
		cmocka_unit_test(only_a_leftover_socket_is_replaced),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

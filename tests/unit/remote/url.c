/* SPDX-License-Identifier: Apache-2.0 */
/*
 * URLs, and which names of a server may be names of files.
 */
#include "core/remote/http.h"

#include "core/base/buf.h"
#include "tests/unit/t.h"

/* clang-format off */
static const struct {
	const char *text, *host, *path; /* host NULL: refused */
} urls[] = {
	{ "https://example.org/a/b", "example.org", "/a/b" },
	{ "http://127.0.0.1:80", "127.0.0.1:80", "" },
	{ "https://[::1]:9000/x", "[::1]:9000", "/x" },
	{ "https://", NULL, NULL },
	{ "https:///x", NULL, NULL },
	{ "https://h:0/", NULL, NULL },
	{ "https://h:65535/", "h:65535", "/" },
	{ "https://h:65536/", NULL, NULL },
	{ "https://h:8x/", NULL, NULL },
	{ "https://h:/", NULL, NULL },
	{ "https://:80/", NULL, NULL },
	{ "https://[::1/", NULL, NULL },
	{ "https://[::1]80/", NULL, NULL },
	{ "://x/", NULL, NULL },
	{ "/a/path", NULL, NULL },
	{ "https://user@example.org/", NULL, NULL },
	{ "https://example.org/?x", NULL, NULL },
	{ "https://example.org/#x", NULL, NULL },
	{ "https://example.org/a\nb", NULL, NULL },
};
static const struct {
	const char *name;
	bool safe;
} names[] = {
	{ "model.safetensors", true },
	{ "a/b/.metadata", true },
	{ "..a/b..", true },
	{ "", false },
	{ "/a", false },
	{ "a/", false },
	{ "a//b", false },
	{ "..", false },
	{ "a/../b", false },
	{ "./a", false },
	{ "a\nb", false },
	{ "a\x7f", false },
};
/* clang-format on */

static void urls_are_split(void **state)
{
	for (size_t i = 0; i < DCP_LEN(urls); i++) {
		struct dcp_url u;

		t_case(urls[i].text);
		assert_int_equal(dcp_url_split(urls[i].text, &u), urls[i].host != NULL);
		if (!urls[i].host)
			continue;
		assert_int_equal(u.nhost, strlen(urls[i].host));
		assert_memory_equal(u.host, urls[i].host, u.nhost);
		assert_string_equal(u.path, urls[i].path);
	}
}

static void names_of_servers_are_checked(void **state)
{
	char longest[300];

	for (size_t i = 0; i < DCP_LEN(names); i++) {
		t_case(names[i].name);
		assert_int_equal(dcp_url_safe_name(names[i].name, strlen(names[i].name)),
				 names[i].safe);
	}
	memset(longest, 'x', sizeof(longest));
	assert_true(dcp_url_safe_name(longest, 255));
	assert_false(dcp_url_safe_name(longest, 256));
}

static void ends_of_signed_urls_are_read(void **state)
{
	static const struct {
		const char *url;
		int64_t until;
	} cases[] = {
		{ "https://h/x?X-Amz-Date=20260130T235959Z&X-Amz-Expires=3600&s=1",
		  1769817599 + 3600 },
		{ "https://h/x?s=1&x-goog-expires=60&x-goog-date=20260130T235959Z",
		  1769817599 + 60 },
		{ "https://h/x?Expires=1769817599&Signature=x", 1769817599 },
		{ "https://h/x?X-Amz-Date=2026&X-Amz-Expires=3600", 0 },
		{ "https://h/x?X-Amz-Date=20260130T235959Z", 0 },
		{ "https://h/x?X-Amz-Expires=3600", 0 },
		{ "https://h/x?NotExpires=3600", 0 },
		{ "https://h/Expires=3600", 0 },
		{ "https://h/x?", 0 },
		{ "https://h/x?X-Amz-Date=&X-Amz-Expires=", 0 },
	};

	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		t_case(cases[i].url);
		assert_int_equal(dcp_url_until(cases[i].url), cases[i].until);
	}
}

static void encoding_is_undone(void **state)
{
	static const char text[] = "a b/\xc3\xa4+%~_-.=&?\n";
	dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT, back = DCP_BUF_INIT;

	dcp_url_encode(&out, text, strlen(text), true);
	assert_string_equal(out.p, "a%20b/%C3%A4%2B%25~_-.%3D%26%3F%0A");
	assert_true(dcp_url_decode(&back, out.p, out.n));
	assert_string_equal(back.p, text);
	dcp_buf_reset(&out);
	dcp_url_encode(&out, "a/b", 3, false);
	assert_string_equal(out.p, "a%2Fb");
}

static void bad_escapes_are_refused(void **state)
{
	static const char *const bad[] = { "%", "a%2", "%zz", "%00", "a%" };

	for (size_t i = 0; i < DCP_LEN(bad); i++) {
		dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;

		t_case(bad[i]);
		assert_false(dcp_url_decode(&out, bad[i], strlen(bad[i])));
	}
}

static void loopback_is_known(void **state)
{
	static const char *const yes[] = { "localhost", "127.0.0.1:8080", "[::1]", "[::1]:80" };
	static const char *const no[] = { "localhost.evil.org", "127.0.0.1.evil.org",
					  "example.org", "[::2]", "169.254.169.254" };

	for (size_t i = 0; i < DCP_LEN(yes); i++)
		assert_true(dcp_url_is_loopback(yes[i], strlen(yes[i])));
	for (size_t i = 0; i < DCP_LEN(no); i++)
		assert_false(dcp_url_is_loopback(no[i], strlen(no[i])));
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(urls_are_split),
		cmocka_unit_test(names_of_servers_are_checked),
		cmocka_unit_test(ends_of_signed_urls_are_read),
		cmocka_unit_test(encoding_is_undone),
		cmocka_unit_test(bad_escapes_are_refused),
		cmocka_unit_test(loopback_is_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What servers say, read: lists, pages, times, XML; whose requests are made; which addresses are
 * not connected to. Answers to requests are tests/cli/remote.py's.
 *
 * covers: remote, http, curl, xml, credentials
 */
#include "core/remote/remote.h"

#include "core/remote/s3.h"
#include "tests/unit/t.h"

/* ---- lists ---- */

static void add(struct dcp_listing *l, const char *name)
{
	assert_int_equal(
		dcp_listing_add(l, &(struct dcp_item){ .name = name, .size = 1 }, strlen(name)),
		0);
}

static void lists_are_sorted_and_searched(void **state)
{
	struct dcp_listing *l = dcp_listing_new("run/");
	size_t at;

	add(l, "b/2");
	add(l, "a");
	add(l, "b/1");
	add(l, "b.txt");
	add(l, "b/1");
	add(l, "../out"); /* left out */
	add(l, "c//d");
	dcp_listing_settle(l);
	assert_int_equal(dcp_listing_below(l, "", &at), 4);
	assert_int_equal(dcp_listing_below(l, "b/", &at), 2);
	assert_string_equal(dcp_listing_at(l, at)->name, "b/1");
	assert_int_equal(dcp_listing_below(l, "z/", &at), 0);
	assert_non_null(dcp_listing_find(l, "b.txt"));
	assert_null(dcp_listing_find(l, "b"));
	assert_null(dcp_listing_find(l, "../out"));
	dcp_listing_free(l);
}

static void times_of_servers_are_read(void **state)
{
	static const int64_t want = 1255369830ll * 1000000000;

	assert_int_equal(dcp_listing_time("Mon, 12 Oct 2009 17:50:30 GMT"), want);
	assert_int_equal(dcp_listing_time("2009-10-12T17:50:30.000Z"), want);
	assert_int_equal(dcp_listing_time("yesterday"), 0);
	assert_int_equal(dcp_listing_time("9999-12-31T23:59:59Z"),
			 INT64_MAX / 1000000000 * 1000000000);
	assert_int_equal(dcp_listing_time("0000-01-01T00:00:00Z"), 0);
	assert_int_equal(dcp_listing_time(""), 0);
	assert_int_equal(dcp_listing_time("Mon, 12 Xxx 2009 17:50:30 GMT"), 0);
}

/* clang-format off */
static const struct {
	const char *what, *text;
	int rc;
	const char *names; /* that it lists, each with a blank */
} pages[] = {
	{ "nginx", "<a href=\"../\">../</a> <a href=\"step-1/\">x</a> <a href='model%20a.bin'>y</a>", 0, "model a.bin step-1/ " },
	{ "sorting links, anchors and other hosts", "<a href=\"?C=N\">n</a><a href=\"#x\"></a><a href=\"https://x.org/y\"></a><a href=\"a\">", 0, "a " },
	{ "links from the top", "<a href=\"/dir/a\"></a><a href=\"/other/b\"></a><a href=\"/\"></a>", 0, "a " },
	{ "climbing", "<a href=\"..%2fx\"></a><a href=\"%2e%2e/\"></a><a href=\"a%00\"></a>", 0, "" },
	{ "not closed", "<a href=\"abc", 0, "" },
	{ "nginx as JSON", "[{\"name\":\"a\",\"type\":\"file\",\"size\":3},{\"name\":\"b\",\"type\":\"directory\"}]", 0, "a b/ " },
	{ "an index of names", "{\"files\": [\"x/a\", \"y\", \"../z\"]}", 0, "x/a y " },
	{ "JSON of something else", "{\"a\": 1}", -EBADMSG, "" },
	{ "broken JSON", "[\"a\"", -EBADMSG, "" },
	{ "nothing", "", 0, "" },
};
/* clang-format on */

static void pages_of_web_servers_are_read(void **state)
{
	for (size_t i = 0; i < DCP_LEN(pages); i++) {
		struct dcp_listing *l = dcp_listing_new("dir/");
		dcp_auto_buf struct dcp_buf got = DCP_BUF_INIT;

		t_case(pages[i].what);
		assert_int_equal(dcp_listing_read_page(l, pages[i].text, strlen(pages[i].text),
						       "/dir/", NULL),
				 pages[i].rc);
		dcp_listing_settle(l);
		for (size_t k = 0; k < DCP_NITEMS(l->items, struct dcp_item); k++)
			dcp_buf_printf(&got, "%s ", dcp_listing_at(l, k)->name);
		assert_string_equal(got.p ? got.p : "", pages[i].names);
		dcp_listing_free(l);
	}
}

/* ---- XML ---- */

static int note(void *ctx, const char *path, const char *text, size_t n)
{
	return dcp_buf_printf(ctx, "%s=%s;", path, text);
}

static const struct {
	const char *what, *text;
	int rc;
	const char *says;
} documents[] = {
	{ "a list", "<a><b>1&amp;2</b><c/></a>", 0, "a/b=1&2;a/c=;a=;" },
	{ "cut off", "<a><b>1</b>", -EBADMSG, NULL },
	{ "an entity", "<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>", -EBADMSG, NULL },
	{ "a document type", "<!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>", -EBADMSG, NULL },
	{ "text", "no XML", -EBADMSG, NULL },
	{ "nothing", "", -EBADMSG, NULL },
	{ "depth",
	  "<a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a/></a></a></a></a></a></a></a>"
	  "</a></a></a></a></a></a></a></a></a>",
	  -E2BIG, NULL },
};

static void xml_is_read_and_bombs_are_refused(void **state)
{
	for (size_t i = 0; i < DCP_LEN(documents); i++) {
		dcp_auto_buf struct dcp_buf got = DCP_BUF_INIT;
		const char *text = documents[i].text;

		t_case(documents[i].what);
		if (!dcp_xml_expat_version()) { /* a build without libcurl */
			assert_int_equal(dcp_xml_each(text, strlen(text), note, &got, NULL),
					 -ENOSYS);
			continue;
		}
		assert_int_equal(dcp_xml_each(text, strlen(text), note, &got, NULL),
				 documents[i].rc);
		if (documents[i].says)
			assert_string_equal(got.p, documents[i].says);
	}
}

/* ---- requests ---- */

static const char *variables[8][2];

static const char *variable(const char *name)
{
	for (size_t i = 0; i < DCP_LEN(variables) && variables[i][0]; i++)
		if (strcmp(variables[i][0], name) == 0)
			return variables[i][1];
	return NULL;
}

static void set(const char *a, const char *b, const char *c, const char *d)
{
	memset(variables, 0, sizeof(variables));
	variables[0][0] = "AWS_EC2_METADATA_DISABLED";
	variables[0][1] = "true";
	variables[1][0] = a;
	variables[1][1] = b;
	variables[2][0] = c;
	variables[2][1] = d;
	dcp_http_configure(&(struct dcp_http_config){ .env = variable, .timeout_s = 2 });
}

static void credentials_come_from_the_environment(void **state)
{
	struct dcp_credentials c = { 0 };

	set("AWS_ACCESS_KEY_ID", "key", "AWS_SECRET_ACCESS_KEY", "secret");
	assert_int_equal(dcp_credentials_renew(&c, DCP_AMAZON, false, NULL), 0);
	assert_string_equal(c.kind, "environment");
	assert_string_equal(c.key, "key");
	assert_string_equal(c.secret, "secret");
	assert_null(c.token);
	set("AWS_ACCESS_KEY_ID", "key", "AWS_SECRET_ACCESS_KEY", "a\r\nheader: x");
	assert_int_equal(dcp_credentials_renew(&c, DCP_AMAZON, true, NULL), 0);
	assert_string_equal(c.kind, "none");
	set(NULL, NULL, NULL, NULL);
	assert_int_equal(dcp_credentials_renew(&c, DCP_AMAZON, true, NULL), 0);
	assert_string_equal(c.kind, "none");
	set("AWS_PROFILE", "nobody", NULL, NULL);
	assert_int_equal(dcp_credentials_renew(&c, DCP_AMAZON, true, NULL), -EACCES);
	dcp_credentials_finish(&c);
}

static const struct {
	const char *what, *url, *says;
	int rc;
} unreachable[] = {
	{ "nothing listens", "http://127.0.0.1:9/", "onnect", -EHOSTUNREACH },
	{ "where clouds keep credentials", "http://169.254.169.254/", "link-local",
	  -EHOSTUNREACH },
	{ "the same by TLS", "https://169.254.169.254/", "link-local", -EHOSTUNREACH },
	{ "the same in IPv6's form", "https://[::ffff:169.254.169.254]/", "link-local",
	  -EHOSTUNREACH },
	{ "plain HTTP to another machine", "http://192.0.2.1/", "https://", -EHOSTUNREACH },
	{ "a file", "file:///etc/passwd", "rotocol", -EIO },
};

static void unusable_addresses_are_refused(void **state)
{
	const char *why;

	set(NULL, NULL, NULL, NULL);
	if (!dcp_http_library(&why)) {
		dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
		struct dcp_http r = { .url = "http://127.0.0.1:9/" };
		struct dcp_err err = { 0 };

		assert_int_equal(dcp_http_get(&r, 100, &out, &err), -ENOSYS);
		assert_string_equal(err.msg, why);
		return;
	}
	for (size_t i = 0; i < DCP_LEN(unreachable); i++) {
		dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
		struct dcp_http r = { .url = unreachable[i].url, .tries = 1 };
		struct dcp_err err = { 0 };

		t_case(unreachable[i].what);
		assert_int_equal(dcp_http_get(&r, 100, &out, &err), unreachable[i].rc);
		if (!strstr(err.msg, unreachable[i].says))
			fail_msg("%s", err.msg);
		dcp_http_finish(&r);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lists_are_sorted_and_searched),
		cmocka_unit_test(times_of_servers_are_read),
		cmocka_unit_test(pages_of_web_servers_are_read),
		cmocka_unit_test(xml_is_read_and_bombs_are_refused),
		cmocka_unit_test(credentials_come_from_the_environment),
		cmocka_unit_test(unusable_addresses_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

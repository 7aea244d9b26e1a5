/* SPDX-License-Identifier: Apache-2.0 */
/* libcurl is loaded at the first request, because with TLS, HTTP/2, Kerberos and LDAP it would take
 * longer to start than most verbs run. */
#include "core/remote/curl.h"

#include <arpa/inet.h>
#define CURL_DISABLE_TYPECHECK /* its macros prevent pointers to functions */
#include <curl/curl.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/system.h"

enum { CONNECT_S = 10, BUFFER = 512 << 10 };

static struct {
	__typeof__(&curl_global_init) curl_global_init;
	__typeof__(&curl_version_info) curl_version_info;
	CURL *(*curl_easy_init)(void);
	CURLcode (*curl_easy_setopt)(CURL *, CURLoption, ...);
	CURLcode (*curl_easy_getinfo)(CURL *, CURLINFO, ...);
	void (*curl_easy_cleanup)(CURL *);
	const char *(*curl_easy_strerror)(CURLcode);
	__typeof__(&curl_slist_append) curl_slist_append;
	__typeof__(&curl_slist_free_all) curl_slist_free_all;
	CURLM *(*curl_multi_init)(void);
	CURLMcode (*curl_multi_setopt)(CURLM *, CURLMoption, ...);
	CURLMcode (*curl_multi_add_handle)(CURLM *, CURL *);
	CURLMcode (*curl_multi_remove_handle)(CURLM *, CURL *);
	CURLMcode (*curl_multi_perform)(CURLM *, int *);
	CURLMcode (*curl_multi_poll)(CURLM *, struct curl_waitfd[], unsigned, int, int *);
	CURLMsg *(*curl_multi_info_read)(CURLM *, int *);
	CURLMcode (*curl_multi_cleanup)(CURLM *);
} lib;

static const char *const functions[] = {
	/* in the order of struct lib */
	"curl_global_init",         "curl_version_info",  "curl_easy_init",
	"curl_easy_setopt",         "curl_easy_getinfo",  "curl_easy_cleanup",
	"curl_easy_strerror",       "curl_slist_append",  "curl_slist_free_all",
	"curl_multi_init",          "curl_multi_setopt",  "curl_multi_add_handle",
	"curl_multi_remove_handle", "curl_multi_perform", "curl_multi_poll",
	"curl_multi_info_read",     "curl_multi_cleanup",
};

static bool is_loaded;

/* Try the library built with OpenSSL before the one built with GnuTLS. */
static void load_library(void)
{
	static const char *const names[] = { "libcurl.so.4", "libcurl-gnutls.so.4" };
	char why[128];

	for (size_t i = 0; !is_loaded && i < DCP_LEN(names); i++)
		is_loaded = dcp_library_open(names[i], functions, DCP_LEN(functions),
					     (void **)&lib, why, sizeof(why)) == 0;
	is_loaded = is_loaded && lib.curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
}

static bool is_there(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load_library);
	return is_loaded;
}

const char *dcp_transfers_library(const char **why)
{
	if (is_there())
		return lib.curl_version_info(CURLVERSION_NOW)->version;
	*why = "libcurl.so.4 (7.68 or later) cannot be loaded; install libcurl4";
	return NULL;
}

struct dcp_transfers {
	CURLM *multi;
};

struct dcp_transfer {
	struct dcp_transfer_opts o;
	CURL *easy;
	struct curl_slist *heads;
	bool is_barred; /* connecting to the address was refused */
	char why[CURL_ERROR_SIZE];
};

int dcp_transfers_create(struct dcp_transfers **out, const char **why)
{
	struct dcp_transfers *t;

	if (!dcp_transfers_library(why))
		return -ENOSYS;
	t = calloc(1, sizeof(*t));
	if (t)
		t->multi = lib.curl_multi_init();
	if (!t || !t->multi) {
		free(t);
		return -ENOMEM;
	}
	lib.curl_multi_setopt(t->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
	*out = t;
	return 0;
}

void dcp_transfers_destroy(struct dcp_transfers *t)
{
	if (!t)
		return;
	lib.curl_multi_cleanup(t->multi);
	free(t);
}

/* ---- what libcurl calls ---- */

static size_t on_line(char *p, size_t size, size_t n, void *ctx)
{
	struct dcp_transfer *one = ctx;

	one->o.line(one->o.ctx, p, size * n);
	return size * n;
}

static size_t on_bytes(char *p, size_t size, size_t n, void *ctx)
{
	struct dcp_transfer *one = ctx;

	return one->o.bytes(one->o.ctx, p, size * n) ? size * n : 0;
}

static bool is_link_local4(uint32_t at)
{
	return at >> 16 == 0xa9fe; /* 169.254.0.0/16 */
}

static bool may_connect(const struct dcp_transfer_opts *o, const struct sockaddr *at)
{
	uint32_t four = 0;
	bool link_local, loopback;

	if (at->sa_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const void *)at;
		const uint8_t *b = in6->sin6_addr.s6_addr;

		if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
			four = dcp_load_be32(b + 12);
		} else {
			link_local =
				IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr) ||
				(b[0] == 0xfd && b[1] == 0 && b[2] == 0x0e && b[3] == 0xc2);
			loopback = IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
			return link_local ? o->link_local : loopback || !o->loopback;
		}
	} else if (at->sa_family == AF_INET) {
		four = ntohl(((const struct sockaddr_in *)(const void *)at)->sin_addr.s_addr);
	} else {
		return false;
	}
	return is_link_local4(four) ? o->link_local : four >> 24 == 127 || !o->loopback;
}

static curl_socket_t open_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *at)
{
	struct dcp_transfer *one = ctx;

	if (!may_connect(&one->o, &at->addr)) {
		one->is_barred = true;
		return CURL_SOCKET_BAD;
	}
	return socket(at->family, at->socktype | SOCK_CLOEXEC, at->protocol);
}

/* ---- one transfer ---- */

static void free_one(struct dcp_transfer *one)
{
	if (one->easy)
		lib.curl_easy_cleanup(one->easy);
	lib.curl_slist_free_all(one->heads);
	free(one);
}

static bool add_head(struct dcp_transfer *one, const char *line)
{
	struct curl_slist *more = lib.curl_slist_append(one->heads, line);

	one->heads = more ? more : one->heads;
	return more;
}

static bool add_heads(struct dcp_transfer *one)
{
	char line[8192];

	for (const char *p = one->o.heads; p && *p;) {
		size_t n = strcspn(p, "\n");

		if (n >= sizeof(line))
			return false;
		memcpy(line, p, n);
		line[n] = '\0';
		if (!add_head(one, line))
			return false;
		p += n + (p[n] == '\n');
	}
	return add_head(one, "Accept-Encoding: identity") && add_head(one, "Expect:");
}

static void set_options(struct dcp_transfer *one)
{
	const struct dcp_transfer_opts *o = &one->o;
	CURL *e = one->easy;

#define SET(option, value) lib.curl_easy_setopt(e, option, value)
	SET(CURLOPT_URL, o->url);
	SET(CURLOPT_PRIVATE, one);
	SET(CURLOPT_ERRORBUFFER, one->why);
	SET(CURLOPT_NOSIGNAL, 1L);
	SET(CURLOPT_HTTPHEADER, one->heads);
	SET(CURLOPT_USERAGENT, "dcpfs/" DCP_RELEASE);
	SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
#if LIBCURL_VERSION_NUM >= 0x075500
	SET(CURLOPT_PROTOCOLS_STR, "http,https");
#else
	SET(CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
	SET(CURLOPT_FOLLOWLOCATION, 0L);
	SET(CURLOPT_PATH_AS_IS, 1L);
	SET(CURLOPT_CONNECTTIMEOUT, (long)(o->connect_s ? o->connect_s : CONNECT_S));
	SET(CURLOPT_LOW_SPEED_LIMIT, 1L);
	SET(CURLOPT_LOW_SPEED_TIME, (long)o->stall_s);
	SET(CURLOPT_BUFFERSIZE, (long)BUFFER);
	SET(CURLOPT_UPLOAD_BUFFERSIZE, (long)BUFFER);
	SET(CURLOPT_TCP_KEEPALIVE, 1L);
	SET(CURLOPT_FRESH_CONNECT, (long)o->alone);
	SET(CURLOPT_HEADERFUNCTION, on_line);
	SET(CURLOPT_HEADERDATA, one);
	SET(CURLOPT_WRITEFUNCTION, on_bytes);
	SET(CURLOPT_WRITEDATA, one);
	SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
	SET(CURLOPT_OPENSOCKETDATA, one);
	SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
	if (o->authorities)
		SET(CURLOPT_CAINFO, o->authorities);
	if (o->logins) {
		SET(CURLOPT_NETRC, (long)CURL_NETRC_OPTIONAL);
		SET(CURLOPT_NETRC_FILE, o->logins);
	}
	if (o->body) {
		SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)o->nbody);
		SET(CURLOPT_POSTFIELDS, o->body);
	}
	if (o->method && strcmp(o->method, "HEAD") == 0)
		SET(CURLOPT_NOBODY, 1L);
	else if (o->method)
		SET(CURLOPT_CUSTOMREQUEST, o->method);
#undef SET
}

int dcp_transfers_add(struct dcp_transfers *t, const struct dcp_transfer_opts *o,
		      struct dcp_transfer **out)
{
	struct dcp_transfer *one = calloc(1, sizeof(*one));

	if (!one)
		return -ENOMEM;
	one->o = *o;
	one->easy = lib.curl_easy_init();
	if (!one->easy || !add_heads(one)) {
		free_one(one);
		return -ENOMEM;
	}
	set_options(one);
	if (lib.curl_multi_add_handle(t->multi, one->easy) != CURLM_OK) {
		free_one(one);
		return -ENOMEM;
	}
	*out = one;
	return 0;
}

void dcp_transfers_remove(struct dcp_transfers *t, struct dcp_transfer *one)
{
	lib.curl_multi_remove_handle(t->multi, one->easy);
	free_one(one);
}

long dcp_transfer_status(const struct dcp_transfer *one)
{
	long status = 0;

	lib.curl_easy_getinfo(one->easy, CURLINFO_RESPONSE_CODE, &status);
	return status;
}

/* Would another try fail the same way? */
static bool is_final(CURLcode code)
{
	switch ((int)code) {
	case CURLE_URL_MALFORMAT:
	case CURLE_UNSUPPORTED_PROTOCOL:
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CACERT_BADFILE:
	case CURLE_SSL_ISSUER_ERROR:
	case CURLE_OUT_OF_MEMORY:
		return true;
	default:
		return false;
	}
}

static void describe_end(struct dcp_transfer *one, CURLcode code, struct dcp_transfer_end *out)
{
	*out = (struct dcp_transfer_end){
		.ctx = one->o.ctx,
		.ok = code == CURLE_OK,
		.passes = !one->is_barred && !is_final(code),
		.found = code != CURLE_COULDNT_RESOLVE_HOST && code != CURLE_COULDNT_CONNECT,
	};
	if (one->is_barred)
		snprintf(out->why, sizeof(out->why),
			 "it leads to an address that dcpfs does not connect to: link-local "
			 "ones, "
			 "and by http:// all but this machine's; use https://");
	else if (code != CURLE_OK)
		snprintf(out->why, sizeof(out->why), "%.180s",
			 one->why[0] ? one->why : lib.curl_easy_strerror(code));
}

size_t dcp_transfers_run(struct dcp_transfers *t, int ms, struct dcp_transfer_end *ends,
			 size_t n)
{
	size_t ended = 0;
	int left = 0;
	CURLMsg *m;

	lib.curl_multi_perform(t->multi, &left);
	while (ended < n && (m = lib.curl_multi_info_read(t->multi, &left)) != NULL) {
		char *one = NULL;

		if (m->msg != CURLMSG_DONE)
			continue;
		lib.curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &one);
		describe_end((struct dcp_transfer *)(void *)one, m->data.result,
			     &ends[ended++]);
	}
	if (!ended && ms > 0)
		lib.curl_multi_poll(t->multi, NULL, 0, ms, NULL);
	return ended;
}

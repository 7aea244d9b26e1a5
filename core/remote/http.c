/* SPDX-License-Identifier: Apache-2.0 */
#include "core/remote/http.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "core/remote/curl.h"

enum {
	IDLE = 16,     /* sets of connections that are kept */
	WAIT_MS = 200, /* longest wait between two looks at the clock */
	WATCHED_MS = 100,
	PAUSE_MS = 100, /* before the second try; doubled for each later try */
	PAUSE_MAX_MS = 10000,
	TRIES_BLIND = 4,       /* for a host that never answered */
	MAX_HOPS = 5,          /* redirects in a row */
	MAX_HEADS = 64 << 10,  /* of an answer */
	MAX_REFUSAL = 1 << 20, /* bytes of the body of a refusal */
	/* bytes of a file that a server may send whole when a part was requested */
	MAX_WHOLE = 8 << 20,
	ENDS = 16,
};

/* ---- state of the process ---- */

static struct {
	pthread_mutex_t lock;
	struct dcp_transfers *idle[IDLE];
	size_t n;
	_Atomic unsigned flying;
	_Atomic bool answered; /* some server has answered once */
	_Atomic uint64_t requests, retries, bytes;
} all = { .lock = PTHREAD_MUTEX_INITIALIZER };

struct dcp_http_counts dcp_http_counted(void)
{
	return (struct dcp_http_counts){ all.requests, all.retries, all.bytes };
}

const char *dcp_http_library(const char **why)
{
	return dcp_transfers_library(why);
}

/* The child must not use connections of the parent. */
static void after_fork(void)
{
	pthread_mutex_init(&all.lock, NULL);
	all.n = 0;
	all.flying = 0;
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, after_fork);
}

static int take_transfers(struct dcp_transfers **out, struct dcp_err *err)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const char *why = "";
	int rc = 0;

	pthread_once(&once, watch_forks);
	*out = NULL;
	pthread_mutex_lock(&all.lock);
	if (all.n)
		*out = all.idle[--all.n];
	pthread_mutex_unlock(&all.lock);
	if (!*out)
		rc = dcp_transfers_create(out, &why);
	return rc == -ENOSYS ? dcp_fail(err, rc, "%s", why) : dcp_err_say(err, rc);
}

static void give_transfers(struct dcp_transfers *t)
{
	pthread_mutex_lock(&all.lock);
	if (all.n < IDLE) {
		all.idle[all.n++] = t;
		t = NULL;
	}
	pthread_mutex_unlock(&all.lock);
	dcp_transfers_destroy(t);
}

/* ---- one request ---- */

struct job {
	struct dcp_http *r;
	struct dcp_transfer *transfer; /* NULL: the request is waiting */
	char *url;                     /* target of a redirect; NULL: r->url */
	unsigned tries, hops;
	int64_t due_ms;  /* not before */
	int64_t last_ms; /* when bytes last came */
	int64_t began_ms;
	uint64_t got;  /* bytes that were passed to take() */
	uint64_t skip; /* bytes of the answer to skip before them */
	uint64_t refusal;
	bool checked, enough, asked_again, ended;
	bool led; /* @url is where another request was led */
	int rc;   /* judgement of the answer before it ended */
};

static const char *url_of(const struct job *j)
{
	return j->url ? j->url : j->r->url;
}

/* Record why @j failed, with its URL without the query. Returns @rc. */
static int say_why(struct job *j, int rc, const char *fmt, ...) DCP_PRINTF(3, 4);
static int say_why(struct job *j, int rc, const char *fmt, ...)
{
	struct dcp_http *r = j->r;
	char text[280];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	snprintf(r->why, sizeof(r->why), "%.*s: %s", (int)DCP_MIN(strcspn(r->url, "?"), 100u),
		 r->url, text);
	dcp_printable(r->why, sizeof(r->why));
	return rc;
}

const char *dcp_http_header(const struct dcp_http *r, const char *name, size_t *n)
{
	size_t len = strlen(name);

	for (const char *p = r->heads.p; p && *p; p += strcspn(p, "\n"), p += *p == '\n')
		if (strncmp(p, name, len) == 0 && p[len] == ':') {
			p += len + 1;
			p += strspn(p, " \t");
			*n = strcspn(p, "\n");
			return p;
		}
	return NULL;
}

char *dcp_http_header_copy(const struct dcp_http *r, const char *name)
{
	size_t n;
	const char *v = dcp_http_header(r, name, &n);

	return v ? strndup(v, n) : NULL;
}

static bool header_is(const struct dcp_http *r, const char *name, const char *value)
{
	size_t n;
	const char *v = dcp_http_header(r, name, &n);

	return v && strlen(value) == n && memcmp(v, value, n) == 0;
}

static bool header_differs(const struct dcp_http *r, const char *name, const char *value)
{
	size_t n;

	return value && dcp_http_header(r, name, &n) && !header_is(r, name, value);
}

static bool header_number(const struct dcp_http *r, const char *name, uint64_t *out)
{
	size_t n;
	const char *v = dcp_http_header(r, name, &n), *p = v;

	return v && dcp_take_number(&p, v + n, DCP_ANY_DIGITS, out) && p == v + n;
}

static void on_line(void *ctx, const char *p, size_t n)
{
	struct job *j = ctx;
	struct dcp_buf *heads = &j->r->heads;
	size_t colon = 0;

	while (n && (p[n - 1] == '\r' || p[n - 1] == '\n' || p[n - 1] == ' '))
		n--;
	if (n > 5 && strncmp(p, "HTTP/", 5) == 0)
		dcp_buf_reset(heads); /* drop headers of 100 Continue, or of a proxy */
	while (colon < n && p[colon] != ':')
		colon++;
	if (colon == n || heads->n + n > MAX_HEADS || memchr(p, '\n', n) || memchr(p, '\0', n))
		return;
	dcp_buf_add(heads, p, n);
	dcp_buf_add(heads, "\n", 1);
	for (size_t i = 0; heads->p && !heads->failed && i < colon; i++)
		heads->p[heads->n - 1 - n + i] =
			(char)tolower((unsigned char)heads->p[heads->n - 1 - n + i]);
}

/* Is the Content-Range exactly the requested range? */
static bool range_is_asked(const struct job *j)
{
	const struct dcp_http *r = j->r;
	char want[96];

	snprintf(want, sizeof(want), "bytes %llu-%llu/%llu",
		 (unsigned long long)(r->off + j->got), (unsigned long long)(r->off + r->n - 1),
		 (unsigned long long)r->size);
	return header_is(r, "content-range", want);
}

static int check_range(struct job *j)
{
	const struct dcp_http *r = j->r;
	uint64_t length;
	size_t n;
	const char *range = dcp_http_header(r, "content-range", &n);

	if (range && header_number(r, "content-length", &length) && length != r->n - j->got)
		return say_why(j, -EIO, "%llu bytes came as a part of %llu",
			       (unsigned long long)length, (unsigned long long)(r->n - j->got));
	if (range)
		return range_is_asked(j)
			       ? 0
			       : say_why(j, -EIO,
					 "it answered bytes %llu to %llu with \"%.*s\"",
					 (unsigned long long)(r->off + j->got),
					 (unsigned long long)(r->off + r->n - 1),
					 (int)DCP_MIN(n, 60u), range);
	if (r->status != 200)
		return say_why(j, -EIO, "HTTP %ld without a Content-Range", r->status);
	if (!header_number(r, "content-length", &length))
		length = r->size;
	if (length != r->size)
		return say_why(j, -ESTALE, "it has %llu bytes, and had %llu",
			       (unsigned long long)length, (unsigned long long)r->size);
	if (r->n != r->size && r->size > MAX_WHOLE)
		return say_why(j, -ENOTSUP,
			       "the server sends the whole file where a part is asked "
			       "(no byte ranges); download it first");
	j->skip = r->off + j->got;
	return 0;
}

static int check_answer(struct job *j)
{
	const struct dcp_http *r = j->r;
	uint64_t length;
	size_t n;

	j->checked = true;
	if (dcp_http_header(r, "content-encoding", &n) &&
	    !header_is(r, "content-encoding", "identity"))
		return say_why(j, -ENOTSUP, "it is sent compressed (Content-Encoding)");
	if ((r->match && header_differs(r, "etag", r->match)) ||
	    header_differs(r, "last-modified", r->since))
		return say_why(j, -ESTALE, "it changed since it was listed");
	if (r->n != DCP_HTTP_ALL)
		return check_range(j);
	if (r->status == 206)
		return say_why(j, -EIO, "a part came where all was asked");
	if (header_number(r, "content-length", &length) && length > r->size)
		return say_why(j, -E2BIG, "%llu bytes; the limit is %llu",
			       (unsigned long long)length, (unsigned long long)r->size);
	return 0;
}

/* The answer has more or fewer bytes than it announced, so none of them can be trusted. */
static void begin_again(struct job *j)
{
	j->got = 0;
	j->r->unsure = true;
}

static bool on_bytes(void *ctx, const char *p, size_t n)
{
	struct job *j = ctx;
	struct dcp_http *r = j->r;
	uint64_t left;
	size_t used;

	r->status = dcp_transfer_status(j->transfer);
	all.bytes += n;
	if (r->status / 100 != 2) {
		used = strlen(r->said);
		snprintf(r->said + used, sizeof(r->said) - used, "%.*s",
			 (int)DCP_MIN(n, sizeof(r->said)), p);
		j->refusal += n;
		return j->refusal <= MAX_REFUSAL;
	}
	if (!j->checked && (j->rc = check_answer(j)) < 0)
		return false;
	j->last_ms = dcp_now_ms();
	used = (size_t)DCP_MIN((uint64_t)n, j->skip);
	j->skip -= used;
	p += used;
	n -= used;
	left = (r->n == DCP_HTTP_ALL ? r->size : r->n) - j->got;
	if (n > left) {
		if (r->n == DCP_HTTP_ALL) {
			j->rc = say_why(j, -E2BIG, "more than %llu bytes",
					(unsigned long long)r->size);
			return false;
		}
		if (r->status == 206) {
			j->rc = say_why(j, -EIO, "more bytes came than its Content-Range says");
			begin_again(j);
			return false;
		}
		/* a whole file was sent; the bytes that follow were not requested */
		j->enough = true;
		n = (size_t)left;
	}
	j->rc = n && r->take ? r->take(r->ctx, r->off + j->got, p, n) : 0;
	j->got += n;
	return j->rc == 0 && !j->enough;
}

/* ---- trying ---- */

static bool host_is_that_of(const char *a, const char *b)
{
	struct dcp_url x, y;
	size_t na = strcspn(a, "?#"), nb = strcspn(b, "?#");
	char one[2048], other[2048];

	if (na >= sizeof(one) || nb >= sizeof(other))
		return false;
	snprintf(one, sizeof(one), "%.*s", (int)na, a);
	snprintf(other, sizeof(other), "%.*s", (int)nb, b);
	return dcp_url_split(one, &x) && dcp_url_split(other, &y) && x.nhost == y.nhost &&
	       strncasecmp(x.host, y.host, x.nhost) == 0 && x.nscheme == y.nscheme;
}

static int add_heads(const struct job *j, struct dcp_buf *heads, struct dcp_err *err)
{
	const struct dcp_http *r = j->r;
	int rc = 0;

	if (r->head && (!j->url || host_is_that_of(j->url, r->url)))
		rc = r->head(r->ctx, r, heads, err);
	if (rc == 0 && r->n != DCP_HTTP_ALL)
		dcp_buf_printf(heads, "Range: bytes=%llu-%llu\n",
			       (unsigned long long)(r->off + j->got),
			       (unsigned long long)(r->off + r->n - 1));
	/* By the rules of HTTP If-Match never matches a weak tag, so weak tags are compared
	 * here. */
	if (rc == 0 && r->match && strncmp(r->match, "W/", 2) != 0)
		dcp_buf_printf(heads, "If-Match: %s\n", r->match);
	else if (rc == 0 && r->since)
		dcp_buf_printf(heads, "If-Unmodified-Since: %s\n", r->since);
	return rc ? rc : dcp_buf_error(heads);
}

/* The user's file of names and passwords for hosts, malloc'ed; NULL: no password is sent to this
 * host. */
static char *logins_for(const struct job *j)
{
	const char *own = dcp_http_env("NETRC"), *home = dcp_http_configured()->home;
	char *path = NULL;

	if (!j->r->login || (j->url && !host_is_that_of(j->url, j->r->url)))
		return NULL;
	if (own)
		return strdup(own);
	return home && asprintf(&path, "%s/.netrc", home) >= 0 ? path : NULL;
}

static int start_transfer(struct job *j, struct dcp_transfers *t)
{
	dcp_auto_buf struct dcp_buf heads = DCP_BUF_INIT;
	dcp_auto_free char *logins = logins_for(j);
	const struct dcp_http_config *c = dcp_http_configured();
	struct dcp_http *r = j->r;
	struct dcp_err err = { .msg = "" };
	struct dcp_transfer_opts o = {
		.method = r->method,
		.url = url_of(j),
		.body = r->body,
		.nbody = r->nbody,
		.logins = logins,
		.authorities = dcp_http_env("AWS_CA_BUNDLE") ?: dcp_http_env("SSL_CERT_FILE"),
		.stall_s = c->stall_s ? c->stall_s : 20,
		.link_local = r->link_local && !j->url,
		.loopback = strncasecmp(url_of(j), "http:", 5) == 0 && !(r->plain && !j->url) &&
			    !dcp_http_env("DCPFS_PLAIN_HTTP"),
		.connect_s = r->connect_s,
		.alone = j->tries > 1, /* the connection may be the reason for the slowness */
		.line = on_line,
		.bytes = on_bytes,
		.ctx = j,
	};
	int rc = add_heads(j, &heads, &err);

	if (rc < 0)
		return say_why(j, rc, "%.270s", err.msg[0] ? err.msg : strerror(-rc));
	o.heads = heads.p ? heads.p : "";
	dcp_buf_reset(&r->heads);
	r->status = 0;
	r->said[0] = '\0';
	j->refusal = j->skip = 0;
	j->checked = j->enough = false;
	j->rc = 0;
	j->got = r->n == DCP_HTTP_ALL ? 0 : j->got;
	j->tries++;
	j->began_ms = dcp_now_ms();
	all.requests++;
	all.retries += j->tries > 1;
	rc = dcp_transfers_add(t, &o, &j->transfer);
	all.flying += rc == 0;
	return rc;
}

static void stop_transfer(struct job *j, struct dcp_transfers *t)
{
	if (j->transfer) {
		dcp_transfers_remove(t, j->transfer);
		all.flying--;
	}
	j->transfer = NULL;
}

static int64_t pause_ms(const struct job *j)
{
	uint64_t longest = DCP_MIN((uint64_t)PAUSE_MS << DCP_MIN(j->tries, 16u), PAUSE_MAX_MS);
	uint64_t asked, now = 0;

	if (getrandom(&now, sizeof(now), GRND_NONBLOCK) < 0)
		now = (uint64_t)dcp_now_ns(CLOCK_MONOTONIC);
	now = now % longest + 1;
	if (header_number(j->r, "retry-after", &asked))
		now += DCP_MIN(asked, 3600u) * 1000;
	return (int64_t)now;
}

/* Schedule another try after a pause. 0, or @rc if there is no other try. */
static int schedule_try(struct job *j, int rc, bool found)
{
	int64_t timeout = 1000 * (int64_t)(dcp_http_configured()->timeout_s ?: 60);
	int64_t now = dcp_now_ms(), due = now + pause_ms(j);
	bool lost = !found && !all.answered && j->tries >= TRIES_BLIND;

	if (lost || (j->r->tries && j->tries >= j->r->tries) || due - j->last_ms > timeout)
		return rc;
	j->due_ms = due;
	return 0;
}

/* The error code and the message in the refusal of an object store. */
static void read_refusal(const struct dcp_http *r, char *out, size_t size)
{
	const char *code = strstr(r->said, "<Code>"), *text = strstr(r->said, "<Message>");

	if (code && text)
		snprintf(out, size, ": %.*s: %.*s", (int)strcspn(code + 6, "<"), code + 6,
			 (int)DCP_MIN(strcspn(text + 9, "<"), 120u), text + 9);
	else if (code)
		snprintf(out, size, ": %.*s", (int)strcspn(code + 6, "<"), code + 6);
	else if (r->said[0] && r->said[0] != '<')
		snprintf(out, size, ": %.*s", (int)DCP_MIN(strcspn(r->said, "\r\n"), 120u),
			 r->said);
	else
		out[0] = '\0';
}

static int code_of(long status)
{
	switch (status) {
	case 401:
	case 403:
		return -EACCES;
	case 404:
	case 410:
		return -ENOENT;
	case 412:
		return -ESTALE;
	default:
		return -EIO;
	}
}

/* If a remembered redirect failed, go back to r->url. True: the request is repeated there. */
static bool leave_led(struct job *j)
{
	if (!j->led)
		return false;
	j->led = false;
	free(j->url);
	j->url = NULL;
	j->tries = 0;
	j->due_ms = 0;
	return true;
}

static int judge_refusal(struct job *j)
{
	struct dcp_http *r = j->r;
	char text[180];
	int rc = code_of(r->status);
	bool passes =
		r->status == 408 || r->status == 425 || r->status == 429 ||
		(r->status >= 500 && r->status != 501 && r->status != 505 && r->status != 507);

	read_refusal(r, text, sizeof(text));
	say_why(j, rc, "HTTP %ld%s%s%s", r->status, r->status == 412 ? " (it changed)" : "",
		text,
		r->status == 401 && r->login ? " (names and passwords are taken from ~/.netrc)"
					     : "");
	if (r->nbody) /* the time to send the body does not count as waiting for an answer */
		j->last_ms += dcp_now_ms() - j->began_ms;
	if (passes)
		return schedule_try(j, rc, true);
	if (leave_led(j))
		return 0;
	if (!j->asked_again && r->refused && r->refused(r->ctx, r)) {
		j->asked_again = true;
		j->due_ms = 0;
		return 0;
	}
	return rc;
}

static int follow_redirect(struct job *j)
{
	dcp_auto_buf struct dcp_buf to = DCP_BUF_INIT;
	size_t n = 0, host;
	const char *at = dcp_http_header(j->r, "location", &n), *from = url_of(j);

	if (!at || !n || ++j->hops > MAX_HOPS)
		return say_why(j, -EIO, "HTTP %ld leads %s", j->r->status,
			       at ? "in circles" : "nowhere");
	if (*at == '/' && (n < 2 || at[1] != '/')) { /* on the same host */
		host = (size_t)(strstr(from, "://") - from) + 3;
		dcp_buf_add(&to, from, host + strcspn(from + host, "/?#"));
	}
	dcp_buf_add(&to, at, n);
	if (dcp_buf_error(&to))
		return -ENOMEM;
	if (strncasecmp(to.p, "https://", 8) != 0 &&
	    (strncasecmp(to.p, "http://", 7) != 0 || strncasecmp(from, "https:", 6) == 0))
		return say_why(j, -EACCES, "it leads to %.60s, which is not followed", to.p);
	free(j->url);
	j->url = dcp_buf_take(&to);
	j->led = false;
	j->tries = 0;
	j->due_ms = 0;
	return j->url ? 0 : -ENOMEM;
}

/* Judge the end of a try. 0: done (j->ended is set), or tried again; else a negative errno. */
static int judge_try(struct job *j, const struct dcp_transfer_end *e)
{
	struct dcp_http *r = j->r;
	int rc = j->rc;

	r->status = dcp_transfer_status(j->transfer);
	all.answered = all.answered || r->status;
	if (rc == 0 && e->ok && r->status / 100 == 2 && !j->checked)
		rc = check_answer(j); /* the body is empty */
	if (rc == -EIO)
		return schedule_try(j, rc, true);
	if (rc < 0)
		return rc;
	if (!e->ok && !j->enough) {
		rc = say_why(j, e->found ? -EIO : -EHOSTUNREACH, "%s", e->why);
		if (!e->found && leave_led(j))
			return 0;
		return e->passes ? schedule_try(j, rc, e->found) : rc;
	}
	if (r->status / 100 == 3 && !r->direct && r->status != 304)
		return follow_redirect(j);
	if (r->status / 100 != 2 && !(r->direct && r->status / 100 == 3))
		return judge_refusal(j);
	if (r->n != DCP_HTTP_ALL && j->got < r->n) {
		say_why(j, -EIO, "the answer ended after %llu of %llu bytes",
			(unsigned long long)j->got, (unsigned long long)r->n);
		begin_again(j);
		return schedule_try(j, -EIO, true);
	}
	j->ended = true;
	return 0;
}

/* ---- the batch ---- */

static unsigned get_limit(void)
{
	return dcp_http_configured()->parallel ?: 64;
}

/* Begin requests that are due, as far as there is room. Returns the number of running requests;
 * *wait_ms: time until the next is due. */
static int start_due(struct job *j, size_t n, struct dcp_transfers *t, int64_t *wait_ms)
{
	int64_t now = dcp_now_ms();
	int flying = 0, rc = 0;

	*wait_ms = dcp_http_watched() ? WATCHED_MS : WAIT_MS;
	for (size_t i = 0; i < n; i++)
		flying += j[i].transfer != NULL;
	for (size_t i = 0; i < n && rc == 0; i++) {
		if (j[i].transfer || j[i].ended)
			continue;
		if (j[i].due_ms > now) {
			*wait_ms = DCP_MIN(*wait_ms, j[i].due_ms - now);
			continue;
		}
		if (flying && all.flying >= get_limit())
			break;
		rc = start_transfer(&j[i], t);
		j[i].r->rc = rc;
		flying++;
		j[i].ended = rc < 0;
		if (j[i].r->may_fail)
			rc = 0;
	}
	return rc;
}

static int run_jobs(struct job *j, size_t n, struct dcp_transfers *t)
{
	size_t left = n;
	int rc = 0;

	for (size_t i = 0; i < n; i++)
		j[i].last_ms = dcp_now_ms();
	while (left && rc == 0) {
		struct dcp_transfer_end ends[ENDS];
		int64_t wait_ms;
		size_t ended;

		rc = dcp_http_stopped() ? -EINTR : start_due(j, n, t, &wait_ms);
		ended = rc < 0 ? 0 : dcp_transfers_run(t, (int)wait_ms, ends, ENDS);
		for (size_t i = 0; i < ended; i++) {
			struct job *one = ends[i].ctx;
			int got = judge_try(one, &ends[i]);

			stop_transfer(one, t);
			one->r->rc = got;
			one->ended |= got < 0;
			if (got < 0 && !one->r->may_fail && rc == 0)
				rc = got;
		}
		left = 0;
		for (size_t i = 0; i < n; i++)
			left += !j[i].ended;
	}
	for (size_t i = 0; i < n; i++) {
		stop_transfer(&j[i], t);
		if (!j[i].ended)
			j[i].r->rc = -ECANCELED; /* the bytes that it took may be wrong */
		free(j[i].r->leads);
		j[i].r->leads = j[i].url;
	}
	return rc;
}

int dcp_http_run(struct dcp_http *r, size_t n, struct dcp_err *err)
{
	struct job *jobs = calloc(n ? n : 1, sizeof(*jobs));
	struct dcp_transfers *t = NULL;
	int rc = jobs ? take_transfers(&t, err) : dcp_err_say(err, -ENOMEM);

	for (size_t i = 0; i < n; i++) {
		r[i].rc = rc;
		r[i].why[0] = '\0';
		if (!jobs)
			continue;
		jobs[i].r = &r[i];
		jobs[i].url = rc == 0 && r[i].led ? strdup(r[i].led) : NULL;
		jobs[i].led = jobs[i].url;
	}
	if (rc == 0) {
		rc = run_jobs(jobs, n, t);
		give_transfers(t);
		for (size_t i = 0; i < n && rc < 0; i++)
			if (r[i].rc == rc && !r[i].may_fail && r[i].why[0]) {
				dcp_fail(err, rc, "%s", r[i].why);
				break;
			}
		dcp_err_say(err, rc);
	}
	free(jobs);
	return rc;
}

void dcp_http_finish(struct dcp_http *r)
{
	dcp_buf_finish(&r->heads);
	free(r->leads);
	r->leads = NULL;
}

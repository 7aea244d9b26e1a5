/* SPDX-License-Identifier: Apache-2.0 */
#include "core/remote/remote.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "core/parse/json.h"
#include "core/remote/http.h"

/* ---- lists of a server ---- */

struct dcp_listing *dcp_listing_new(const char *prefix)
{
	struct dcp_listing *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->prefix = strdup(prefix);
	l->refs = 1;
	dcp_arena_init(&l->arena, (size_t)1 << 30);
	if (!l->prefix) {
		dcp_listing_free(l);
		return NULL;
	}
	return l;
}

void dcp_listing_free(struct dcp_listing *l)
{
	if (!l)
		return;
	dcp_arena_finish(&l->arena);
	dcp_buf_finish(&l->items);
	free(l->prefix);
	free(l);
}

static size_t count_items(const struct dcp_listing *l)
{
	return DCP_NITEMS(l->items, struct dcp_item);
}

int dcp_listing_add(struct dcp_listing *l, const struct dcp_item *item, size_t n)
{
	struct dcp_item mine = *item;
	size_t plain = n && item->name[n - 1] == '/' ? n - 1 : n;

	if (!l->single && !dcp_url_safe_name(item->name, plain))
		return 0;
	if (count_items(l) == DCP_LISTING_MAX)
		return -E2BIG;
	mine.name = dcp_arena_strndup(&l->arena, item->name, n);
	mine.tag = item->tag ? dcp_arena_strdup(&l->arena, item->tag) : NULL;
	mine.modified = item->modified ? dcp_arena_strdup(&l->arena, item->modified) : NULL;
	if (!mine.name || (item->tag && !mine.tag) || (item->modified && !mine.modified))
		return -ENOMEM;
	return dcp_buf_add(&l->items, &mine, sizeof(mine));
}

void dcp_listing_settle(struct dcp_listing *l)
{
	struct dcp_item *items = DCP_ITEMS(l->items, struct dcp_item);
	size_t n = count_items(l), kept = 0;

	DCP_SORT(items, n, dcp_by_text);
	for (size_t i = 0; i < n; i++)
		if (i == 0 || strcmp(items[i].name, items[kept - 1].name) != 0)
			items[kept++] = items[i];
	l->items.n = kept * sizeof(*items);
	l->made_ms = dcp_now_ms();
}

size_t dcp_listing_below(const struct dcp_listing *l, const char *within, size_t *at)
{
	size_t n = count_items(l), len = strlen(within), end;

	DCP_BISECT(*at, 0, n, strcmp(dcp_listing_at(l, *at)->name, within) < 0);
	DCP_BISECT(end, *at, n, strncmp(dcp_listing_at(l, end)->name, within, len) <= 0);
	return end - *at;
}

const struct dcp_item *dcp_listing_find(const struct dcp_listing *l, const char *name)
{
	return DCP_FIND(&name, DCP_ITEMS(l->items, struct dcp_item), count_items(l),
			dcp_by_text);
}

/* ---- times ---- */

static bool take_two(const char **p, int *out)
{
	uint64_t v;

	if (!dcp_take_number(p, NULL, 4, &v))
		return false;
	*out = (int)v;
	return true;
}

/* "17:50:30" */
static bool take_clock(const char **p, struct tm *t)
{
	return take_two(p, &t->tm_hour) && dcp_take_text(p, ":") && take_two(p, &t->tm_min) &&
	       dcp_take_text(p, ":") && take_two(p, &t->tm_sec);
}

static bool take_month(const char **p, struct tm *t)
{
	static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
	const char *at = strlen(*p) > 3
				 ? strstr(months, (char[]){ (*p)[0], (*p)[1], (*p)[2], 0 })
				 : NULL;

	if (!at || (at - months) % 3)
		return false;
	t->tm_mon = (int)(at - months) / 3;
	*p += 3;
	return true;
}

static bool take_http_date(const char *p, struct tm *t)
{
	p += DCP_MIN(strcspn(p, ",") + 2, strlen(p));
	return take_two(&p, &t->tm_mday) && dcp_take_text(&p, " ") && take_month(&p, t) &&
	       dcp_take_text(&p, " ") && take_two(&p, &t->tm_year) && dcp_take_text(&p, " ") &&
	       take_clock(&p, t);
}

static bool take_iso_date(const char *p, struct tm *t)
{
	if (!take_two(&p, &t->tm_year) || !dcp_take_text(&p, "-") || !take_two(&p, &t->tm_mon))
		return false;
	t->tm_mon--;
	return dcp_take_text(&p, "-") && take_two(&p, &t->tm_mday) && dcp_take_text(&p, "T") &&
	       take_clock(&p, t);
}

int64_t dcp_listing_time(const char *text)
{
	struct tm t = { 0 };
	int64_t seconds;

	if (!take_http_date(text, &t)) {
		t = (struct tm){ 0 };
		if (!take_iso_date(text, &t))
			return 0;
	}
	t.tm_year -= 1900;
	seconds = timegm(&t);
	return DCP_MAX(DCP_MIN(seconds, INT64_MAX / DCP_NS_PER_S), 0) * DCP_NS_PER_S;
}

/* ---- pages of web servers ---- */

static int add_name(struct dcp_listing *l, const char *name, const struct dcp_json *v)
{
	const struct dcp_json *size = dcp_json_get(v, "size");
	const char *type = dcp_json_str(dcp_json_get(v, "type"));
	const char *tag = dcp_json_str(dcp_json_get(v, "etag"));
	dcp_auto_buf struct dcp_buf full = DCP_BUF_INIT;
	struct dcp_item item = { .size = UINT64_MAX, .tag = tag };

	dcp_json_u64(size, &item.size);
	dcp_buf_printf(&full, "%s%s", name, type && strcmp(type, "directory") == 0 ? "/" : "");
	item.name = full.p;
	l->deep |= strchr(name, '/') != NULL;
	return dcp_buf_error(&full) ? -ENOMEM : dcp_listing_add(l, &item, full.n);
}

static int add_names(struct dcp_listing *l, const struct dcp_json *root)
{
	const struct dcp_json *list =
		dcp_json_is_array(root) ? root : dcp_json_get(root, "files");
	int rc = dcp_json_is_array(list) ? 0 : -EBADMSG;

	for (size_t i = 0; rc == 0 && i < dcp_json_len(list); i++) {
		const struct dcp_json *v = dcp_json_at(list, i);
		const char *name = dcp_json_str(v) ?: dcp_json_str(dcp_json_get(v, "name"));

		if (name)
			rc = add_name(l, name, v);
	}
	return rc;
}

/* Add the name of the target of a link, if it is an entry of the directory @path. */
static int add_link(struct dcp_listing *l, const char *to, size_t n, const char *path)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	size_t skip = strlen(path), plain;

	if (n > skip && strncmp(to, path, skip) == 0) {
		to += skip;
		n -= skip;
	}
	if (n > 2 && to[0] == '.' && to[1] == '/') {
		to += 2;
		n -= 2;
	}
	if (memchr(to, '?', n) || memchr(to, '#', n) || memchr(to, ':', n) || !n)
		return 0;
	if (!dcp_url_decode(&name, to, n) || !name.n)
		return dcp_buf_error(&name);
	plain = name.p[name.n - 1] == '/' ? name.n - 1 : name.n;
	if (memchr(name.p, '/', plain))
		return 0;
	return dcp_listing_add(l, &(struct dcp_item){ .name = name.p, .size = UINT64_MAX },
			       name.n);
}

static int read_links(struct dcp_listing *l, const char *text, size_t n, const char *path)
{
	int rc = 0;

	for (const char *p = text, *end = text + n; rc == 0 && p < end; p++) {
		const char *close;

		if (end - p < 7 || strncasecmp(p, "href=", 5) != 0 ||
		    (p[5] != '"' && p[5] != '\''))
			continue;
		close = memchr(p + 6, p[5], (size_t)(end - p - 6));
		if (!close)
			break;
		rc = add_link(l, p + 6, (size_t)(close - p - 6), path);
		p = close;
	}
	return rc;
}

int dcp_listing_read_page(struct dcp_listing *l, const char *text, size_t n, const char *path,
			  struct dcp_err *err)
{
	dcp_auto_json struct dcp_json *root = NULL;
	size_t blank = n ? strspn(text, " \t\r\n") : 0;
	int rc;

	if (blank < n && (text[blank] == '[' || text[blank] == '{')) {
		rc = dcp_json_parse(text, n, &root, err);
		return rc < 0 ? rc : dcp_err_say(err, add_names(l, root) == 0 ? 0 : -EBADMSG);
	}
	return dcp_err_say(err, read_links(l, text, n, path));
}

/* ---- servers in use, and their lists ---- */

enum {
	/*
	 * Time for which a list is trusted. If the list took long to get, it is trusted for longer,
	 * so that the lists of a bucket with a hundred pages remain a small part of all requests.
	 */
	FRESH_MS = 5000,
	FRESH_MOST_MS = 25000, /* less than the time after which a mount looks again */
	FRESH_TIMES = 20,      /* multiple of the time that the list took */
	MOST_LISTS = 256,
};

static struct {
	pthread_mutex_t lock;
	struct dcp_remote *first;
} all = { .lock = PTHREAD_MUTEX_INITIALIZER };

static struct dcp_remote *find_known(const struct dcp_remote_ops *ops, const char *base)
{
	struct dcp_remote *r = all.first;

	while (r && (r->ops != ops || strcmp(r->base, base) != 0))
		r = r->next;
	return r;
}

int dcp_remote_find(const struct dcp_remote_ops *ops, const char *base,
		    int (*make)(struct dcp_remote *r, struct dcp_err *err),
		    struct dcp_remote **out, struct dcp_err *err)
{
	struct dcp_remote *r;
	int rc = 0;

	pthread_mutex_lock(&all.lock);
	r = find_known(ops, base);
	if (!r) {
		r = calloc(1, sizeof(*r));
		if (r) {
			r->ops = ops;
			r->base = strdup(base);
			pthread_mutex_init(&r->lock, NULL);
		}
		rc = !r || !r->base ? dcp_err_say(err, -ENOMEM) : make ? make(r, err) : 0;
		if (rc == 0) {
			r->next = all.first;
			all.first = r;
		} else if (r) {
			free(r->base);
			free(r);
		}
	}
	pthread_mutex_unlock(&all.lock);
	if (rc == 0)
		*out = r;
	return rc;
}

static struct dcp_listing **lists_of(const struct dcp_remote *r)
{
	return DCP_ITEMS(r->listings, struct dcp_listing *);
}

/* Does @l show the directory @prefix? */
static bool shows_dir(const struct dcp_listing *l, const char *prefix, bool single)
{
	size_t n = strlen(l->prefix);

	if (single || l->single)
		return single && l->single && strcmp(l->prefix, prefix) == 0;
	return l->deep ? strncmp(prefix, l->prefix, n) == 0 : strcmp(prefix, l->prefix) == 0;
}

static void drop_listing(struct dcp_listing *l)
{
	if (l && --l->refs == 0)
		dcp_listing_free(l);
}

/* Find the newest list that shows the directory or file and is trusted at @ms, and add a reference
 * to it. */
static struct dcp_listing *find_list(struct dcp_remote *r, const char *prefix, bool single,
				     int64_t ms)
{
	struct dcp_listing *found = NULL;

	for (size_t i = 0; i < DCP_NITEMS(r->listings, struct dcp_listing *); i++) {
		struct dcp_listing *l = lists_of(r)[i];

		if (ms < l->until_ms && shows_dir(l, prefix, single) &&
		    (!found || l->made_ms > found->made_ms))
			found = l;
	}
	if (found)
		found->refs++;
	return found;
}

/* Keep @l in place of older lists of the same prefix. */
static int keep_listing(struct dcp_remote *r, struct dcp_listing *l)
{
	size_t n = DCP_NITEMS(r->listings, struct dcp_listing *), kept = 0;
	struct dcp_listing **list = lists_of(r);

	for (size_t i = 0; i < n; i++)
		if ((strcmp(list[i]->prefix, l->prefix) == 0 && list[i]->single == l->single) ||
		    (i == 0 && n >= MOST_LISTS))
			drop_listing(list[i]);
		else
			list[kept++] = list[i];
	r->listings.n = kept * sizeof(l);
	if (dcp_buf_add(&r->listings, &l, sizeof(l)) < 0)
		return -ENOMEM;
	l->refs++;
	return 0;
}

static int request_listing(struct dcp_remote *r, const char *prefix, bool single,
			   struct dcp_listing **out, struct dcp_err *err)
{
	struct dcp_listing *l = dcp_listing_new(prefix);
	int64_t began = dcp_now_ms(), took;
	int rc;

	if (!l)
		return dcp_err_say(err, -ENOMEM);
	l->single = single;
	rc = single ? r->ops->one(r, l, err) : r->ops->list(r, l, err);
	if (rc == -E2BIG)
		dcp_fail(err, rc, "%s%.200s: more than %u names", r->base, prefix,
			 DCP_LISTING_MAX);
	dcp_err_say(err, rc);
	if (rc == 0)
		dcp_listing_settle(l);
	took = DCP_MIN(dcp_now_ms() - began, (int64_t)FRESH_MOST_MS);
	l->until_ms = l->made_ms + DCP_MIN(DCP_MAX((int64_t)FRESH_MS, took * FRESH_TIMES),
					   (int64_t)FRESH_MOST_MS);
	pthread_mutex_lock(&r->lock);
	if (rc == 0)
		rc = keep_listing(r, l);
	pthread_mutex_unlock(&r->lock);
	if (rc == 0)
		*out = l;
	else
		dcp_listing_free(l);
	return rc;
}

int dcp_remote_list(struct dcp_remote *r, const char *prefix, bool single, bool fresh,
		    struct dcp_listing **out, const char **within, struct dcp_err *err)
{
	int rc = 0;

	pthread_mutex_lock(&r->lock);
	*out = find_list(r, prefix, single, fresh ? dcp_now_ms() : 0);
	pthread_mutex_unlock(&r->lock);
	if (!*out)
		rc = request_listing(r, prefix, single, out, err);
	if (rc == 0)
		*within = prefix + strlen((*out)->prefix);
	return rc;
}

void dcp_remote_give(struct dcp_remote *r, struct dcp_listing *l)
{
	if (!l)
		return;
	pthread_mutex_lock(&r->lock);
	drop_listing(l);
	pthread_mutex_unlock(&r->lock);
}

void dcp_remote_distrust(struct dcp_remote *r)
{
	pthread_mutex_lock(&r->lock);
	for (size_t i = 0; i < DCP_NITEMS(r->listings, struct dcp_listing *); i++)
		drop_listing(lists_of(r)[i]);
	r->listings.n = 0;
	pthread_mutex_unlock(&r->lock);
}

/* Configuration of all requests, and the function that stops a thread that waits for an answer. */
static struct dcp_http_config config;

void dcp_http_configure(const struct dcp_http_config *c)
{
	config = *c;
}

const struct dcp_http_config *dcp_http_configured(void)
{
	return &config;
}

const char *dcp_http_env(const char *name)
{
	const char *value = config.env ? config.env(name) : NULL;

	return value && *value ? value : NULL;
}

static _Thread_local struct {
	bool (*stop)(void *ctx);
	void *ctx;
} watch;

void dcp_http_watch(bool (*stop)(void *ctx), void *ctx)
{
	watch.stop = stop;
	watch.ctx = ctx;
}

bool dcp_http_watched(void)
{
	return watch.stop;
}

bool dcp_http_stopped(void)
{
	return watch.stop && watch.stop(watch.ctx);
}

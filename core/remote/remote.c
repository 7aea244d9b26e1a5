/* SPDX-License-Identifier: Apache-2.0 */
#include "core/remote/remote.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/err.h"

enum {
	FRESH_MS = 5000, /* for which a list is believed */
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
static bool shows(const struct dcp_listing *l, const char *prefix, bool single)
{
	size_t n = strlen(l->prefix);

	if (single || l->single)
		return single && l->single && strcmp(l->prefix, prefix) == 0;
	return l->deep ? strncmp(prefix, l->prefix, n) == 0 : strcmp(prefix, l->prefix) == 0;
}

static void drop(struct dcp_listing *l)
{
	if (l && --l->refs == 0)
		dcp_listing_free(l);
}

/* The newest that shows it, with a reference more. */
static struct dcp_listing *find_list(struct dcp_remote *r, const char *prefix, bool single,
				     int64_t since_ms)
{
	struct dcp_listing *found = NULL;

	for (size_t i = 0; i < DCP_NITEMS(r->listings, struct dcp_listing *); i++) {
		struct dcp_listing *l = lists_of(r)[i];

		if (l->made_ms >= since_ms && shows(l, prefix, single) &&
		    (!found || l->made_ms > found->made_ms))
			found = l;
	}
	if (found)
		found->refs++;
	return found;
}

/* Keep @l, in place of older lists of the same. */
static int keep(struct dcp_remote *r, struct dcp_listing *l)
{
	size_t n = DCP_NITEMS(r->listings, struct dcp_listing *), kept = 0;
	struct dcp_listing **list = lists_of(r);

	for (size_t i = 0; i < n; i++)
		if ((strcmp(list[i]->prefix, l->prefix) == 0 && list[i]->single == l->single) ||
		    (i == 0 && n >= MOST_LISTS))
			drop(list[i]);
		else
			list[kept++] = list[i];
	r->listings.n = kept * sizeof(l);
	if (dcp_buf_add(&r->listings, &l, sizeof(l)) < 0)
		return -ENOMEM;
	l->refs++;
	return 0;
}

static int ask(struct dcp_remote *r, const char *prefix, bool single, struct dcp_listing **out,
	       struct dcp_err *err)
{
	struct dcp_listing *l = dcp_listing_new(prefix);
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
	pthread_mutex_lock(&r->lock);
	if (rc == 0)
		rc = keep(r, l);
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
	int64_t since_ms = fresh ? dcp_now_ms() - FRESH_MS : 0;
	int rc = 0;

	pthread_mutex_lock(&r->lock);
	*out = find_list(r, prefix, single, since_ms);
	pthread_mutex_unlock(&r->lock);
	if (!*out)
		rc = ask(r, prefix, single, out, err);
	if (rc == 0)
		*within = prefix + strlen((*out)->prefix);
	return rc;
}

void dcp_remote_give(struct dcp_remote *r, struct dcp_listing *l)
{
	if (!l)
		return;
	pthread_mutex_lock(&r->lock);
	drop(l);
	pthread_mutex_unlock(&r->lock);
}

void dcp_remote_distrust(struct dcp_remote *r)
{
	pthread_mutex_lock(&r->lock);
	for (size_t i = 0; i < DCP_NITEMS(r->listings, struct dcp_listing *); i++)
		drop(lists_of(r)[i]);
	r->listings.n = 0;
	pthread_mutex_unlock(&r->lock);
}

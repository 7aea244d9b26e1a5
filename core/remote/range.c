/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/remote/disk.h"
#include "core/remote/http.h"
#include "core/remote/remote.h"

/* ---- redirects of a server, remembered until the signed URLs expire ---- */

enum {
	MOST = 1024,  /* files */
	EARLY_S = 10, /* a URL is not used for new requests so long before it expires */
};

struct led {
	char *name, *url;
	int64_t until_s;
};

static struct led *find_led(struct dcp_remote *r, const char *name)
{
	struct led *l = DCP_ITEMS(r->led, struct led);

	for (size_t i = 0; i < DCP_NITEMS(r->led, struct led); i++)
		if (strcmp(l[i].name, name) == 0)
			return &l[i];
	return NULL;
}

char *dcp_led_find(struct dcp_remote *r, const char *name)
{
	const struct led *l;
	char *url;

	pthread_mutex_lock(&r->lock);
	l = find_led(r, name);
	url = l && time(NULL) < l->until_s - EARLY_S ? strdup(l->url) : NULL;
	pthread_mutex_unlock(&r->lock);
	return url;
}

void dcp_led_keep(struct dcp_remote *r, const char *name, const char *url)
{
	int64_t until_s = url ? dcp_url_until(url) : 0;
	struct led new = { .until_s = until_s }, *l;

	if (!until_s)
		return;
	new.name = strdup(name);
	new.url = strdup(url);
	pthread_mutex_lock(&r->lock);
	l = find_led(r, name);
	if (!l && DCP_NITEMS(r->led, struct led) == MOST)
		l = DCP_ITEMS(r->led, struct led) + (size_t)until_s % MOST;
	if (new.name &&new.url && l) {
		struct led old = *l;

		*l = new;
		new = old;
	} else if (new.name &&new.url && dcp_buf_add(&r->led, &new, sizeof(new)) == 0) {
		new = (struct led){ 0 };
	}
	pthread_mutex_unlock(&r->lock);
	free(new.name);
	free(new.url);
}

/* ---- ranges: cached bytes from the disk, the rest from the server ---- */

enum { BLOCK = DCP_DISK_BLOCK };

/* One request. */
struct piece {
	struct dcp_range *range; /* the range that the piece is a part of */
	struct dcp_remote_file *o;
	struct dcp_disk *disk; /* NULL: bytes are not cached */
	uint64_t off, n;
	char *block; /* a block, with bytes [@from, @to) of the file; NULL: none yet */
	uint64_t from, to;
};

static int add_range_headers(void *ctx, const struct dcp_http *h, struct dcp_buf *heads,
			     struct dcp_err *err)
{
	const struct piece *p = ctx;
	struct dcp_remote *r = p->o->remote;

	return r->ops->head ? r->ops->head(r, h, heads, err) : 0;
}

static bool is_refused(void *ctx, const struct dcp_http *h)
{
	const struct piece *p = ctx;
	struct dcp_remote *r = p->o->remote;

	return r->ops->refused && r->ops->refused(r, h);
}

/* ---- onto the disk ---- */

static void keep_block(struct piece *p)
{
	if (p->block && p->from < p->to)
		dcp_disk_write(p->disk, p->from / BLOCK, (uint32_t)(p->from % BLOCK),
			       (uint32_t)(p->to - p->from / BLOCK * BLOCK), p->block);
	p->from = p->to;
}

static void keep_bytes(struct piece *p, uint64_t at, const char *bytes, size_t n)
{
	if (!p->block) {
		p->block = malloc(BLOCK);
		p->from = p->to = at;
	}
	if (at != p->to) { /* the request was repeated from another byte */
		keep_block(p);
		p->from = p->to = at;
	}
	while (p->block && n) {
		size_t in = (size_t)(p->to % BLOCK), now = DCP_MIN(n, BLOCK - in);

		memcpy(p->block + in, bytes, now);
		p->to += now;
		bytes += now;
		n -= now;
		if (p->to % BLOCK == 0)
			keep_block(p);
	}
}

static void end_piece(struct piece *p)
{
	if (p->block)
		keep_block(p);
	free(p->block);
	p->block = NULL;
}

static int take_bytes(void *ctx, uint64_t at, const char *bytes, size_t n)
{
	struct piece *p = ctx;

	if (p->disk) {
		keep_bytes(p, at, bytes, n);
		if (at + n == p->off + p->n)
			end_piece(p);
	}
	return p->range->take(p->range->ctx, at, bytes, n);
}

/* ---- from it ---- */

static int add_piece(struct dcp_buf *pieces, struct dcp_remote_file *o, struct dcp_disk *disk,
		     struct dcp_range *range, uint64_t off, uint64_t end)
{
	const struct piece p = {
		.range = range, .o = o, .disk = disk, .off = off, .n = end - off
	};

	return off < end ? dcp_buf_add(pieces, &p, sizeof(p)) : 0;
}

/* Pass on cached bytes of @range, and add requests for the rest. */
static int split_range(struct dcp_buf *pieces, struct dcp_remote_file *o, struct dcp_disk *disk,
		       struct dcp_range *range, char *block)
{
	uint64_t at = range->off, end = at + range->n, missing = at;
	int rc = 0;

	while (at < end && rc == 0) {
		const char *p;
		size_t n = dcp_disk_read(disk, at, end - at, block, &p);

		if (!n) {
			at = DCP_MIN(end, (at / BLOCK + 1) * BLOCK);
			continue;
		}
		rc = add_piece(pieces, o, disk, range, missing, at)
			     ?: range->take(range->ctx, at, p, n);
		at += n;
		missing = at;
	}
	return rc ? rc : add_piece(pieces, o, disk, range, missing, end);
}

static int split_all(struct dcp_buf *pieces, struct dcp_remote_file *o, struct dcp_disk *disk,
		     struct dcp_range *ranges, size_t n)
{
	char *block = disk->fd >= 0 ? malloc(BLOCK) : NULL;
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++)
		rc = block ? split_range(pieces, o, disk, &ranges[i], block)
			   : add_piece(pieces, o, disk, &ranges[i], ranges[i].off,
				       ranges[i].off + ranges[i].n);
	free(block);
	return rc;
}

/* ---- requests ---- */

/* The code for readers, who get no text. */
static int simplify_code(int rc)
{
	switch (rc) {
	case -ENOENT: /* the file existed when it was listed */
		return -ESTALE;
	case 0:
	case -EACCES:
	case -EINTR:
	case -ENOMEM:
	case -ENOSYS:
	case -ENOTSUP:
	case -ESTALE:
		return rc;
	default:
		return -EIO;
	}
}

/* Record why a request failed, for this reader and for readers that wait for the same bytes. */
static void note_why(struct dcp_remote_file *o, const struct dcp_http *r, size_t n, int rc)
{
	size_t i = 0;

	while (i < n && (r[i].rc != rc || !r[i].why[0]))
		i++;
	pthread_mutex_lock(&o->remote->lock);
	snprintf(o->why, sizeof(o->why), "%s", i < n ? r[i].why : strerror(-simplify_code(rc)));
	dcp_err_note(simplify_code(rc), o->why);
	pthread_mutex_unlock(&o->remote->lock);
}

/* Run the first request alone, so that only one request is redirected and the others go to its
 * target. */
static int run_led(struct dcp_remote_file *o, struct dcp_http *r, size_t n)
{
	dcp_auto_free char *led = dcp_led_find(o->remote, o->name);
	size_t first = led || n < 2 ? 0 : 1;
	int rc = first ? dcp_http_run(r, 1, NULL) : 0;

	if (first && rc == 0) {
		dcp_led_keep(o->remote, o->name, r->leads);
		led = dcp_led_find(o->remote, o->name);
	}
	for (size_t i = first; i < n; i++)
		r[i].led = led;
	if (rc == 0 && first < n)
		rc = dcp_http_run(r + first, n - first, NULL);
	if (rc == 0 && first < n)
		dcp_led_keep(o->remote, o->name, r[n - 1].leads);
	for (size_t i = 0; i < n; i++)
		r[i].led = NULL;
	return rc;
}

static int request_pieces(struct dcp_remote_file *o, struct piece *pieces, size_t n)
{
	struct dcp_http *r = calloc(n ? n : 1, sizeof(*r));
	int rc;

	if (!r)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		r[i] = (struct dcp_http){ .url = o->url,
					  .head = add_range_headers,
					  .refused = is_refused,
					  .take = take_bytes,
					  .ctx = &pieces[i],
					  .off = pieces[i].off,
					  .n = pieces[i].n,
					  .size = o->size,
					  .plain = o->remote->plain,
					  .login = o->remote->ops->login,
					  .match = o->remote->ops->pinned ? NULL : o->tag,
					  .since = o->modified };
	rc = !n ? 0 : o->remote->ops->pinned ? run_led(o, r, n) : dcp_http_run(r, n, NULL);
	if (rc < 0)
		note_why(o, r, n, rc);
	for (size_t i = 0; i < n; i++) {
		end_piece(&pieces[i]);
		if (r[i].rc < 0 && r[i].unsure && pieces[i].disk)
			dcp_disk_forget(pieces[i].disk, pieces[i].off, pieces[i].n);
		dcp_http_finish(&r[i]);
	}
	free(r);
	return rc;
}

int dcp_remote_get(struct dcp_remote_file *o, struct dcp_range *ranges, size_t n)
{
	dcp_auto_buf struct dcp_buf pieces = DCP_BUF_INIT;
	struct dcp_disk disk = { .fd = -1 };
	bool kept;
	int rc;

	dcp_err_note(0, NULL);
	if (o->changed)
		return -ESTALE;
	kept = o->lasts && dcp_disk_open(&disk, o->id, o->size);
	rc = split_all(&pieces, o, &disk, ranges, n);
	for (size_t i = 0; !kept && i < DCP_NITEMS(pieces, struct piece); i++) {
		DCP_ITEMS(pieces, struct piece)[i].disk = NULL;
		dcp_disk_refuse(DCP_ITEMS(pieces, struct piece)[i].n);
	}
	if (rc == 0)
		rc = request_pieces(o, DCP_ITEMS(pieces, struct piece),
				    DCP_NITEMS(pieces, struct piece));
	dcp_disk_close(&disk);
	rc = simplify_code(rc);
	if (rc == -ESTALE) {
		o->changed = true;
		dcp_remote_distrust(o->remote);
	}
	return rc;
}

/* A whole answer, read into memory. */
struct whole {
	struct dcp_http r;
	const struct dcp_http *asked;
	struct dcp_buf *out;
};

static int head_of_whole(void *ctx, const struct dcp_http *r, struct dcp_buf *headers,
			 struct dcp_err *err)
{
	const struct whole *w = ctx;

	return w->asked->head ? w->asked->head(w->asked->ctx, r, headers, err) : 0;
}

static bool refused_whole(void *ctx, const struct dcp_http *r)
{
	const struct whole *w = ctx;

	return w->asked->refused && w->asked->refused(w->asked->ctx, r);
}

static int take_whole(void *ctx, uint64_t at, const char *p, size_t n)
{
	const struct whole *w = ctx;

	/* an answer that was cut off begins again */
	w->out->n = at ? w->out->n : 0;
	return dcp_buf_add(w->out, p, n);
}

int dcp_http_get(struct dcp_http *r, size_t most, struct dcp_buf *out, struct dcp_err *err)
{
	struct whole w = { .r = *r, .asked = r, .out = out };
	int rc;

	w.r.head = head_of_whole;
	w.r.refused = refused_whole;
	w.r.take = take_whole;
	w.r.ctx = &w;
	w.r.off = 0;
	w.r.n = DCP_HTTP_ALL;
	w.r.size = most;
	dcp_buf_reset(out);
	rc = dcp_http_run(&w.r, 1, err);
	dcp_http_finish(r);
	w.r.head = r->head;
	w.r.refused = r->refused;
	w.r.ctx = r->ctx;
	*r = w.r;
	return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/remote/remote.h"

/* ---- files: close reads become one request, a long read becomes several ---- */

enum {
	GAP = 1 << 20,     /* a gap of unneeded bytes that costs less than another request */
	REQUEST = 8 << 20, /* longest range of a request */
	DIRECT = 4 << 20,  /* a batch of more bytes is not kept in memory */
	MOST = 4096,       /* ranges at a time */
};

/* ---- into place ---- */

/* A range, and the reads that it answers, in order. */
struct part {
	const struct dcp_read *const *reads, *const *all;
	size_t n, nall;
	uint64_t done; /* all bytes before it have come, so reads of them are skipped */
};

static int put_bytes(void *ctx, uint64_t at, const char *p, size_t n)
{
	struct part *part = ctx;

	if (at < part->done) { /* earlier bytes were wrong, and come again from the beginning */
		part->reads = part->all;
		part->n = part->nall;
		part->done = at;
	}
	for (size_t i = 0; i < part->n && part->reads[i]->off < at + n; i++) {
		const struct dcp_read *r = part->reads[i];
		uint64_t lo = DCP_MAX(r->off, at), hi = DCP_MIN(r->off + r->n, at + n);

		if (lo < hi)
			memcpy((char *)r->to + (lo - r->off), p + (lo - at), hi - lo);
	}
	if (at <= part->done)
		part->done = DCP_MAX(part->done, at + n);
	while (part->n && part->reads[0]->off + part->reads[0]->n <= part->done) {
		part->reads++;
		part->n--;
	}
	return 0;
}

/* Get the bytes of all @reads, which are in order. */
static int get_direct(struct dcp_remote_file *o, const struct dcp_read *const *reads, size_t n)
{
	dcp_auto_buf struct dcp_buf ranges = DCP_BUF_INIT, parts = DCP_BUF_INIT;
	struct dcp_range *range;
	size_t nranges, i = 0;

	while (i < n) {
		uint64_t lo = reads[i]->off, hi = lo + reads[i]->n;
		size_t first = i++;

		while (i < n && reads[i]->off <= hi + GAP &&
		       DCP_MAX(hi, reads[i]->off + reads[i]->n) - lo <= REQUEST) {
			hi = DCP_MAX(hi, reads[i]->off + reads[i]->n);
			i++;
		}
		for (; lo < hi; lo += REQUEST) {
			struct dcp_range one = { lo, DCP_MIN(hi - lo, (uint64_t)REQUEST),
						 put_bytes };
			struct part part = { .reads = reads + first,
					     .all = reads + first,
					     .n = i - first,
					     .nall = i - first,
					     .done = lo };

			dcp_buf_add(&ranges, &one, sizeof(one));
			dcp_buf_add(&parts, &part, sizeof(part));
		}
	}
	if (dcp_buf_error(&ranges) || dcp_buf_error(&parts))
		return -ENOMEM;
	range = DCP_ITEMS(ranges, struct dcp_range);
	nranges = DCP_NITEMS(ranges, struct dcp_range);
	for (i = 0; i < nranges; i++)
		range[i].ctx = DCP_ITEMS(parts, struct part) + i;
	return dcp_remote_get(o, range, nranges);
}

static int by_off(const void *a, const void *b)
{
	const struct dcp_read *x = *(const struct dcp_read *const *)a;
	const struct dcp_read *y = *(const struct dcp_read *const *)b;

	return (x->off > y->off) - (x->off < y->off);
}

static int read_some(struct dcp_remote_file *o, const struct dcp_read *reads, size_t n)
{
	const struct dcp_read **order = calloc(n, sizeof(*order));
	uint64_t bytes = 0;
	size_t m = 0;
	int rc = order ? 0 : -ENOMEM;

	for (size_t i = 0; i < n && rc == 0; i++) {
		if (!dcp_range_ok(reads[i].off, reads[i].n, o->size))
			rc = -EIO;
		if (reads[i].n)
			order[m++] = &reads[i];
		bytes += reads[i].n;
	}
	if (rc == 0 && m) {
		qsort(order, m, sizeof(*order), by_off);
		rc = (reads->planned ||
		      (bytes >= DIRECT && (m > 1 || !dcp_blocks_follow(o, order[0])))) &&
				     reads->to && !dcp_blocks_have(o, order, m)
			     ? get_direct(o, order, m)
			     : dcp_blocks_read(o, order, m);
	}
	free(order);
	return rc;
}

static int read_all(const struct dcp_read *reads, size_t n)
{
	int rc = 0;

	for (size_t i = 0, k; i < n && rc == 0; i = k) {
		for (k = i + 1;
		     k < n && reads[k].blob->own == reads[i].blob->own && k - i < MOST;)
			k++;
		rc = read_some(reads[i].blob->own, reads + i, k - i);
	}
	return rc;
}

static void want_bytes(const struct dcp_read *reads, size_t n)
{
	read_all(reads, n);
	/* a reader of these bytes makes the request again, and gets the reason then */
	dcp_err_note(0, NULL);
}

static int check_file(const struct dcp_blob *b, const struct dcp_file_id *id, bool named)
{
	const struct dcp_remote_file *o = b->own;

	return o->changed ? -ESTALE : 0;
}

static void close_object(struct dcp_blob *b)
{
	struct dcp_remote_file *o = b->own;

	dcp_blocks_leave(o);
	free(o->name);
	free(o->url);
	free(o->tag);
	free(o->modified);
	free(o);
}

static const struct dcp_blob_ops ops = {
	.read = read_all, .want = want_bytes, .check = check_file, .close = close_object
};

int dcp_remote_open(struct dcp_remote *r, const char *name, const struct dcp_item *item,
		    const struct dcp_file_id *id, struct dcp_blob *out)
{
	struct dcp_remote_file *o = calloc(1, sizeof(*o));
	struct dcp_buf url = DCP_BUF_INIT;
	int rc;

	*out = (struct dcp_blob){ .ops = &ops, .own = o, .fd = -1, .size = item->size };
	if (!o)
		return -ENOMEM;
	o->remote = r;
	o->size = item->size;
	o->id[0] = id->dev;
	o->id[1] = id->ino;
	o->name = strdup(name);
	o->tag = item->tag ? strdup(item->tag) : NULL;
	o->lasts = o->tag && *o->tag && strncmp(o->tag, "W/", 2) != 0 &&
		   id->dev; /* 0: no memory for a hash of the name */
	o->modified = item->modified ? strdup(item->modified) : NULL;
	rc = r->ops->url(r, name, &url);
	o->url = dcp_buf_take(&url);
	if (rc < 0 || !o->name || !o->url || (item->tag && !o->tag) ||
	    (item->modified && !o->modified)) {
		dcp_blob_close(out);
		return rc < 0 ? rc : -ENOMEM;
	}
	return 0;
}

/* ---- sites: names on a server are texts; a directory is all names that begin with "its/name/"
 * ---- */

/* A site is a single file if its prefix, which is then the name of the file, does not end in a
 * slash. */
static bool is_of_file(const struct dcp_site *at)
{
	size_t n = strlen(at->within);

	return n && at->within[n - 1] != '/';
}

/* The last component of a name. */
static const char *base_of(const char *name)
{
	const char *slash = strrchr(name, '/');

	return slash ? slash + 1 : name;
}

static int make_site(struct dcp_remote *r, const char *prefix, struct dcp_site *out)
{
	*out = (struct dcp_site){
		.row = r->ops->row, .own = r, .fd = -1, .within = strdup(prefix)
	};
	return out->within ? 0 : -ENOMEM;
}

static int find_file(struct dcp_remote *r, const char *source, const char *name,
		     struct dcp_site *out, char **only, struct dcp_err *err)
{
	struct dcp_listing *l = NULL;
	const char *within;
	int rc = dcp_remote_list(r, name, true, true, &l, &within, err);

	if (rc < 0)
		return rc;
	dcp_remote_give(r, l);
	*only = strdup(source);
	return dcp_err_say(err, *only ? make_site(r, name, out) : -ENOMEM);
}

static int find_dir(struct dcp_remote *r, const char *prefix, struct dcp_site *out,
		    struct dcp_err *err)
{
	struct dcp_listing *l = NULL;
	const char *within;
	size_t at;
	int rc = dcp_remote_list(r, prefix, false, true, &l, &within, err);

	if (rc == 0 && *prefix && !dcp_listing_below(l, within, &at))
		rc = -ENOENT;
	dcp_remote_give(r, l);
	return rc < 0 ? rc : dcp_err_say(err, make_site(r, prefix, out));
}

int dcp_site_remote(struct dcp_remote *r, const char *source, const char *name,
		    struct dcp_site *out, char **only, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf dir = DCP_BUF_INIT;
	size_t n = strlen(name);
	bool file_first;
	int rc;

	if (dcp_buf_printf(&dir, "%s%s", name, n && name[n - 1] != '/' ? "/" : "") < 0)
		return dcp_err_say(err, -ENOMEM);
	file_first = n && name[n - 1] != '/' && strchr(base_of(name), '.');
	rc = file_first ? find_file(r, source, name, out, only, err) : -ENOENT;
	if (rc == -ENOENT)
		rc = find_dir(r, dir.p, out, err);
	if (rc == -ENOENT && !file_first && n && name[n - 1] != '/')
		rc = find_file(r, source, name, out, only, err);
	return rc == -ENOENT ? dcp_fail(err, rc, "%.300s: nothing is there", source) : rc;
}

int dcp_remote_entries(const struct dcp_site *at, dcp_entry_fn *fn, void *ctx,
		       struct dcp_err *err)
{
	struct dcp_remote *r = at->own;
	struct dcp_listing *l = NULL;
	const char *within, *last = "";
	size_t i, n, skip, len = 0;
	int rc = dcp_remote_list(r, at->within, false, true, &l, &within, err);

	if (rc < 0)
		return rc;
	skip = strlen(within);
	n = dcp_listing_below(l, within, &i);
	for (size_t end = i + n; rc == 0 && i < end; i++) {
		const struct dcp_item *item = dcp_listing_at(l, i);
		const char *name = item->name + skip, *slash = strchr(name, '/');
		const struct dcp_dirent e = { .size = slash ? 0 : item->size, .is_dir = slash };

		if (!*name ||
		    (slash && len == (size_t)(slash - name) && strncmp(name, last, len) == 0))
			continue;
		last = slash ? name : "";
		len = slash ? (size_t)(slash - name) : 0;
		rc = fn(ctx, name, slash ? len : strlen(name), &e);
	}
	dcp_remote_give(r, l);
	return rc;
}

/* The item of the file @name below @at, and the list that holds it. -ENOENT. */
static int find_item(const struct dcp_site *at, const char *name, bool fresh,
		     struct dcp_buf *full, struct dcp_listing **l, const struct dcp_item **item,
		     struct dcp_err *err)
{
	struct dcp_remote *r = at->own;
	const char *within, *slash;
	bool single = is_of_file(at) && strcmp(base_of(at->within), name) == 0;
	size_t above = is_of_file(at) ? (size_t)(base_of(at->within) - at->within)
				      : strlen(at->within);
	dcp_auto_buf struct dcp_buf dir = DCP_BUF_INIT;
	int rc;

	*l = NULL;
	dcp_buf_printf(full, "%.*s%s", (int)above, at->within, name);
	if (dcp_buf_error(full))
		return dcp_err_say(err, -ENOMEM);
	slash = strrchr(full->p, '/');
	if (single)
		dcp_buf_str(&dir, full->p);
	else
		dcp_buf_printf(&dir, "%.*s", slash ? (int)(slash - full->p) + 1 : 0, full->p);
	if (dcp_buf_error(&dir))
		return dcp_err_say(err, -ENOMEM);
	rc = dcp_remote_list(r, dir.p, single, fresh, l, &within, err);
	if (rc < 0)
		return rc;
	*item = dcp_listing_find(*l, full->p + strlen((*l)->prefix));
	if (*item)
		return 0;
	dcp_remote_give(r, *l);
	*l = NULL;
	return dcp_fail(err, -ENOENT, "%.300s: no file of that name", name);
}

/* 128 bits of a hash that identifies the content of the file. */
static void id_of(const struct dcp_remote *r, const char *name, const struct dcp_item *item,
		  struct dcp_file_id *out)
{
	struct dcp_hash128 *h = dcp_hash128_new();
	uint64_t bits[2] = { 0, 1 };
	const char *texts[] = { r->base, r->server, name, item ? item->tag : NULL,
				item ? item->modified : NULL };

	for (size_t i = 0; h && i < DCP_LEN(texts); i++)
		dcp_hash128_add(h, texts[i] ? texts[i] : "",
				strlen(texts[i] ? texts[i] : "") + 1);
	if (h)
		dcp_hash128_end(h, bits);
	*out = (struct dcp_file_id){ .name = out->name,
				     .size = item ? item->size : 0,
				     .dev = bits[0],
				     .ino = bits[1] | 1,
				     .mtime_ns = item ? item->mtime_ns : 0 };
}

int dcp_remote_id(const struct dcp_site *at, const char *name, struct dcp_file_id *id)
{
	dcp_auto_buf struct dcp_buf full = DCP_BUF_INIT;
	const struct dcp_item *item;
	struct dcp_listing *l;
	int rc;

	if (strcmp(name, ".") == 0) {
		id_of(at->own, at->within, NULL, id);
		return 0;
	}
	rc = find_item(at, name, true, &full, &l, &item, NULL);
	if (rc < 0)
		return rc;
	id_of(at->own, full.p, item, id);
	dcp_remote_give(at->own, l);
	return 0;
}

int dcp_remote_look(const struct dcp_site *at, const char *name, struct dcp_dirent *out)
{
	dcp_auto_buf struct dcp_buf full = DCP_BUF_INIT;
	const struct dcp_item *item;
	struct dcp_listing *l;
	int rc = find_item(at, name, true, &full, &l, &item, NULL);

	if (rc < 0)
		return rc;
	*out = (struct dcp_dirent){ .name = name, .size = item->size };
	dcp_remote_give(at->own, l);
	return 0;
}

int dcp_remote_below(const struct dcp_site *at, const char *name, struct dcp_site *out)
{
	dcp_auto_buf struct dcp_buf prefix = DCP_BUF_INIT;
	struct dcp_remote *r = at->own;
	struct dcp_listing *l = NULL;
	const char *within;
	size_t i;
	int rc;

	if (is_of_file(at))
		return -ENOENT;
	dcp_buf_printf(&prefix, "%s%s%s", at->within, strcmp(name, ".") == 0 ? "" : name,
		       strcmp(name, ".") == 0 ? "" : "/");
	if (dcp_buf_error(&prefix))
		return -ENOMEM;
	rc = dcp_remote_list(r, prefix.p, false, true, &l, &within, NULL);
	if (rc == 0 && !dcp_listing_below(l, within, &i))
		rc = -ENOENT;
	dcp_remote_give(r, l);
	return rc < 0 ? rc : make_site(r, prefix.p, out);
}

int dcp_remote_open_file(const struct dcp_site *at, const char *name, struct dcp_blob *out,
			 struct dcp_file_id *id, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf full = DCP_BUF_INIT;
	const struct dcp_item *item;
	struct dcp_file_id own = { 0 };
	struct dcp_listing *l;
	int rc = find_item(at, name, false, &full, &l, &item, err);

	if (rc < 0)
		return rc;
	id_of(at->own, full.p, item, &own);
	rc = dcp_err_say(err, dcp_remote_open(at->own, full.p, item, &own, out));
	if (rc == 0 && id) {
		own.name = id->name;
		*id = own;
	}
	dcp_remote_give(at->own, l);
	return rc;
}

bool dcp_remote_about(const struct dcp_site *at, struct dcp_buf *out)
{
	struct dcp_remote *r = at->own;

	if (!at->row || at->row->list != dcp_remote_entries)
		return false;
	dcp_buf_str(out, at->row->name);
	if (r->ops->about)
		r->ops->about(r, out);
	return true;
}

int dcp_remote_again(const struct dcp_site *at, struct dcp_site *out)
{
	return make_site(at->own, at->within, out);
}

void dcp_remote_close(struct dcp_site *at)
{
	free(at->within);
}

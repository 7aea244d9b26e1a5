/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote: directories on servers: the functions that a kind of server (a row) implements, and the
 * code that all kinds share.
 *
 *	curl.c        single transfers, through libcurl
 *	http.c        requests: retries them and checks answers
 *	sign.c        signatures of object stores
 *	xml.c         parses answers of object stores, through expat
 *	credentials.c finds the user's credentials
 *	remote.c      servers in use, and lists of their directories
 *	site.c        functions of struct dcp_origin that all rows share; reads files: ranges that
 *	              lie close are one request
 *	range.c       reads ranges of a file; remembers redirects of the server; whole answers
 *	disk.c        cache of ranges on a disk
 *	blocks.c      cache of small parts of files in memory
 *	https.c s3.c  rows
 *	bucket.c      writing to buckets
 *
 * A server is asked for a list, and then for ranges of files. A list is trusted for a while. A file
 * is identified by its tag, which every request names, so that bytes of another content are never
 * returned.
 */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/origin/origin.h"
#include "core/remote/http.h"

struct dcp_err;
struct dcp_remote;

/* ---- remote.c: lists ---- */

#define DCP_LISTING_MAX 2000000u /* names in a listing */

struct dcp_item {
	/* relative to the prefix of the listing; that of a directory ends in a slash */
	const char *name;
	uint64_t size;
	int64_t mtime_ns; /* 0: not known */
	const char *tag;  /* the ETag as the server writes it; NULL: the server has none */
	/* the Last-Modified as the server writes it; NULL: identified by the tag only */
	const char *modified;
};

struct dcp_listing {
	char *prefix;              /* of names on the server: "run/step-5/", "" */
	bool deep;                 /* lists subdirectories too */
	bool single;               /* lists the single file @prefix, by the name "" */
	bool full;                 /* has more than DCP_LISTING_MAX names: hostile or huge */
	int64_t made_ms, until_ms; /* @until_ms: trusted until then */
	unsigned refs;             /* guarded by the lock of the remote */
	struct dcp_arena arena;
	struct dcp_buf items; /* struct dcp_item, sorted by name once it is settled */
};

struct dcp_listing *dcp_listing_new(const char *prefix);
void dcp_listing_free(struct dcp_listing *l);
/* Add an item; its strings are copied. Names that are invalid as file names are left out. -ENOMEM,
 * -E2BIG. */
int dcp_listing_add(struct dcp_listing *l, const struct dcp_item *item, size_t nname);
/* Sort the items, and drop duplicates. */
void dcp_listing_settle(struct dcp_listing *l);
/* The number of items whose names begin with @within; the first of them is item *at. */
size_t dcp_listing_below(const struct dcp_listing *l, const char *within, size_t *at);
/* The item of exactly that name, or NULL. */
const struct dcp_item *dcp_listing_find(const struct dcp_listing *l, const char *name);
static inline const struct dcp_item *dcp_listing_at(const struct dcp_listing *l, size_t i)
{
	return DCP_ITEMS(l->items, const struct dcp_item) + i;
}

/*
 * Add the entries of a page of a web server: JSON of nginx, or of index.json (an array of names, or
 * of objects with name, size, type, etag; or an object with such an array as "files"), or else the
 * links of HTML. -EBADMSG.
 */
int dcp_listing_read_page(struct dcp_listing *l, const char *text, size_t n, const char *path,
			  struct dcp_err *err);
/* Parse "Mon, 12 Oct 2009 17:50:30 GMT" or "2009-10-12T17:50:30.000Z"; 0: neither. */
int64_t dcp_listing_time(const char *text);

/* ---- the functions of a row ---- */

struct dcp_remote_ops {
	const struct dcp_origin *row;
	/* Fill @l with the files in l->prefix, and if it costs no more, those of all subdirectories
	 * (then l->deep). */
	int (*list)(struct dcp_remote *r, struct dcp_listing *l, struct dcp_err *err);
	/* Add the single file l->prefix, by the name "". -ENOENT. */
	int (*one)(struct dcp_remote *r, struct dcp_listing *l, struct dcp_err *err);
	/* Append the URL of the file @name. */
	int (*url)(struct dcp_remote *r, const char *name, struct dcp_buf *out);
	/* As in struct dcp_http, where ctx is the remote. NULL: not used. */
	int (*head)(struct dcp_remote *r, const struct dcp_http *h, struct dcp_buf *heads,
		    struct dcp_err *err);
	bool (*refused)(struct dcp_remote *r, const struct dcp_http *h);
	/* Append how the server is reached: ", region eu-west-1". No request is made. */
	void (*about)(struct dcp_remote *r, struct dcp_buf *out);
	bool login; /* log in by names and passwords in the user's ~/.netrc */
	/* the content of a URL never changes, even if its tag differs at a server that the URL
	 * redirects to */
	bool pinned;
};

/* A server, or a bucket on a server. Kept until the process ends. */
struct dcp_remote {
	const struct dcp_remote_ops *ops;
	char *base; /* "s3://bucket/", "https://host/": names are appended to it */
	/* the server that the user chose, filled in by the row; NULL: the default */
	char *server;
	void *own;  /* the row's */
	bool plain; /* the user chose a server by http:// */
	/* guards the members below, and parts of @own as the row says */
	pthread_mutex_t lock;
	struct dcp_buf listings; /* struct dcp_listing * */
	struct dcp_buf led;      /* range.c */
	struct dcp_remote *next;
};

/* Find the remote of @base. If there is none yet, it is created, and make() fills in own. */
int dcp_remote_find(const struct dcp_remote_ops *ops, const char *base,
		    int (*make)(struct dcp_remote *r, struct dcp_err *err),
		    struct dcp_remote **out, struct dcp_err *err);
/*
 * Get a list that contains the directory @prefix, or the single file @prefix (@single). *within is
 * @prefix relative to the prefix of the list. @fresh: a list that is still trusted; otherwise any
 * existing list. Release it by dcp_remote_give(). -ENOENT: there is no such directory or file.
 */
int dcp_remote_list(struct dcp_remote *r, const char *prefix, bool single, bool fresh,
		    struct dcp_listing **out, const char **within, struct dcp_err *err);
void dcp_remote_give(struct dcp_remote *r, struct dcp_listing *l);
/* Called when a file is not as a list says: all lists are requested again. */
void dcp_remote_distrust(struct dcp_remote *r);

/* ---- range.c ---- */

/* The URL that requests for the file @name were redirected to, malloc'ed; NULL: not known, or about
 * to expire. */
char *dcp_led_find(struct dcp_remote *r, const char *name);
/* Remember that requests for @name were redirected to @url. If @url is NULL or does not say when it
 * expires, nothing is remembered. */
void dcp_led_keep(struct dcp_remote *r, const char *name, const char *url);

/* ---- site.c: files ---- */

/* Open @item of @r, which has the name @name there and the id @id. No request is made. */
int dcp_remote_open(struct dcp_remote *r, const char *name, const struct dcp_item *item,
		    const struct dcp_file_id *id, struct dcp_blob *out);

/*
 * A program that reads a file sequentially. @next: offset of its next read (0: unused entry); @run:
 * bytes that it has read sequentially; @reach: end of the bytes read ahead; @until: end of the
 * tensor that it reads (0: not known); @passes: it has read past the end of a tensor before, so the
 * next tensor is read ahead, too.
 */
struct dcp_reader {
	uint64_t next, run, reach, until, used;
	bool passes;
};

/* A file that is open. */
struct dcp_remote_file {
	struct dcp_remote *remote;
	char *name, *url, *tag, *modified;
	/* why the last request for the file failed; guarded by the lock of the remote */
	char why[384];
	uint64_t size, id[2];
	/* the tag identifies the content for good: its bytes may be cached on a disk */
	bool lasts;
	_Atomic bool changed;         /* the content on the server has changed */
	struct dcp_reader readers[8]; /* guarded by the lock of blocks.c */
};

struct dcp_range {
	uint64_t off, n;
	int (*take)(void *ctx, uint64_t at, const char *p, size_t n);
	void *ctx;
};

/* ---- range.c ---- */

/* Get @n ranges of @o, from the disk, or in parallel from the server. The bytes of a range may come
 * in any order. -ESTALE: the file changed since it was listed. */
int dcp_remote_get(struct dcp_remote_file *o, struct dcp_range *ranges, size_t n);

/* ---- blocks.c ---- */

/* Read @o through the cache of blocks; @reads are in order of their offsets. A read to NULL only
 * fills the cache. */
int dcp_blocks_read(struct dcp_remote_file *o, const struct dcp_read *const *reads, size_t n);
/* Are all blocks of @reads in memory now? */
bool dcp_blocks_have(struct dcp_remote_file *o, const struct dcp_read *const *reads, size_t n);

/* Is @read the next read of a sequential reader? If so, it should go through blocks, which are read
 * ahead. */
bool dcp_blocks_follow(struct dcp_remote_file *o, const struct dcp_read *read);
/* Called when @o is closed: ends reading ahead. */
void dcp_blocks_leave(struct dcp_remote_file *o);

/* ---- site.c ---- */

/* Make the site of the directory or file @name of @r, whose source is @source. *only is set for a
 * file. */
int dcp_site_remote(struct dcp_remote *r, const char *source, const char *name,
		    struct dcp_site *out, char **only, struct dcp_err *err);

/* Append how @at is reached, as text for the user. False: @at is not on a server. */
bool dcp_remote_about(const struct dcp_site *at, struct dcp_buf *out);

/* The functions that all rows share: all except find(). */
int dcp_remote_entries(const struct dcp_site *at, dcp_entry_fn *fn, void *ctx,
		       struct dcp_err *err);
int dcp_remote_look(const struct dcp_site *at, const char *name, struct dcp_dirent *out);
int dcp_remote_below(const struct dcp_site *at, const char *name, struct dcp_site *out);
int dcp_remote_open_file(const struct dcp_site *at, const char *name, struct dcp_blob *out,
			 struct dcp_file_id *id, struct dcp_err *err);
int dcp_remote_id(const struct dcp_site *at, const char *name, struct dcp_file_id *id);
int dcp_remote_again(const struct dcp_site *at, struct dcp_site *out);
void dcp_remote_close(struct dcp_site *at);

/* clang-format off */
#define DCP_REMOTE_ROW                                                                         \
	.settled = true, .list = dcp_remote_entries, .look = dcp_remote_look,                  \
	.below = dcp_remote_below, .open = dcp_remote_open_file, .id = dcp_remote_id,          \
	.again = dcp_remote_again, .close = dcp_remote_close
/* clang-format on */

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote: directories on a server: what a row for a kind of server gives, and what all of them
 * share.
 *
 *	curl.c        transfers, through libcurl
 *	http.c        requests, tried again, their answers checked
 *	sign.c        signatures of object stores
 *	xml.c         their answers, through expat
 *	credentials.c whose requests they are
 *	remote.c      servers that were spoken to, and their lists: what a directory holds
 *	site.c        the functions of struct dcp_origin that all rows share; reading files: ranges that
 *	              lie close are one request
 *	range.c       parts of a file, and where a server led requests for them; whole answers
 *	disk.c        those that are kept on a disk
 *	blocks.c      small parts of files, kept in memory
 *	https.c s3.c  rows
 *	bucket.c      writing to buckets
 *
 * A server is asked for a list, and then for ranges. What a list said is believed for a while; a
 * file is known by its tag, which every request names, so that bytes of another content never come.
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

#define DCP_LISTING_MAX 2000000u /* names in one */

struct dcp_item {
	const char *name; /* after the listing's prefix; a directory's ends in a slash */
	uint64_t size;
	int64_t mtime_ns;     /* 0: not known */
	const char *tag;      /* the ETag as the server writes it; NULL: it gives none */
	const char *modified; /* the Last-Modified as it writes it; NULL: by its tag only */
};

struct dcp_listing {
	char *prefix;              /* of names on the server: "run/step-5/", "" */
	bool deep;                 /* also of what lies in directories below */
	bool single;               /* of the one file @prefix, by the name "" */
	bool full;                 /* hostile or huge: more than DCP_LISTING_MAX */
	int64_t made_ms, until_ms; /* until when it is believed */
	unsigned refs;             /* the remote's lock */
	struct dcp_arena arena;
	struct dcp_buf items; /* struct dcp_item, sorted by name once it is settled */
};

struct dcp_listing *dcp_listing_new(const char *prefix);
void dcp_listing_free(struct dcp_listing *l);
/* Texts are copied. Names that cannot be names of files are left out. -ENOMEM, -E2BIG. */
int dcp_listing_add(struct dcp_listing *l, const struct dcp_item *item, size_t nname);
/* Sort, and drop what is there twice. */
void dcp_listing_settle(struct dcp_listing *l);
/* The items from number *at on that begin with @within; how many. */
size_t dcp_listing_below(const struct dcp_listing *l, const char *within, size_t *at);
/* The item of exactly that name, or NULL. */
const struct dcp_item *dcp_listing_find(const struct dcp_listing *l, const char *name);
static inline const struct dcp_item *dcp_listing_at(const struct dcp_listing *l, size_t i)
{
	return DCP_ITEMS(l->items, const struct dcp_item) + i;
}

/*
 * What a page of a web server lists: JSON as nginx writes it or as index.json has it (an array of
 * names, or of objects with name, size, type, etag; or such an array as "files"), else the links of
 * HTML. -EBADMSG.
 */
int dcp_listing_read_page(struct dcp_listing *l, const char *text, size_t n, const char *path,
			  struct dcp_err *err);
/* "Mon, 12 Oct 2009 17:50:30 GMT", "2009-10-12T17:50:30.000Z"; 0: neither. */
int64_t dcp_listing_time(const char *text);

/* ---- what a row gives ---- */

struct dcp_remote_ops {
	const struct dcp_origin *row;
	/*
	 * Fill @l with what lies in l->prefix, and in directories below it if that costs nothing
	 * (then l->deep).
	 */
	int (*list)(struct dcp_remote *r, struct dcp_listing *l, struct dcp_err *err);
	/* Add the one file l->prefix, as "". -ENOENT. */
	int (*one)(struct dcp_remote *r, struct dcp_listing *l, struct dcp_err *err);
	/* The URL of the file of that name. */
	int (*url)(struct dcp_remote *r, const char *name, struct dcp_buf *out);
	/* As in struct dcp_http; ctx is the remote. NULL: nothing. */
	int (*head)(struct dcp_remote *r, const struct dcp_http *h, struct dcp_buf *heads,
		    struct dcp_err *err);
	bool (*refused)(struct dcp_remote *r, const struct dcp_http *h);
	/* Append what it is reached by: ", region eu-west-1". Nothing is asked. */
	void (*about)(struct dcp_remote *r, struct dcp_buf *out);
	bool login; /* names and passwords for its hosts are in the user's ~/.netrc */
	bool pinned; /* an URL is of one content, whatever tags the servers that it leads to give */
};

/* A server, or a bucket on one. Kept as long as the process. */
struct dcp_remote {
	const struct dcp_remote_ops *ops;
	char *base;   /* "s3://bucket/", "https://host/": what names of it follow */
	char *server; /* the user's choice of one, which the row fills in; NULL: the usual */
	void *own;    /* the row's */
	bool plain;   /* the user named a server by http:// */
	pthread_mutex_t lock;    /* the rest, and what @own points to where the row says so */
	struct dcp_buf listings; /* struct dcp_listing * */
	struct dcp_buf led;      /* range.c */
	struct dcp_remote *next;
};

/* The remote of that @base, made by make(), which fills in own, if there is none yet. */
int dcp_remote_find(const struct dcp_remote_ops *ops, const char *base,
		    int (*make)(struct dcp_remote *r, struct dcp_err *err),
		    struct dcp_remote **out, struct dcp_err *err);
/*
 * A list that shows what lies in the directory @prefix, or is of the one file @prefix (@single),
 * and where in it: *within is what @prefix is after the list's own. Not older than @fresh asks for;
 * else any that there is. To be given back. -ENOENT: nothing is there.
 */
int dcp_remote_list(struct dcp_remote *r, const char *prefix, bool single, bool fresh,
		    struct dcp_listing **out, const char **within, struct dcp_err *err);
void dcp_remote_give(struct dcp_remote *r, struct dcp_listing *l);
/* Something is not as the lists say: they are asked for again. */
void dcp_remote_distrust(struct dcp_remote *r);

/* ---- range.c ---- */

/*
 * Where requests for the file @name were led, malloc'ed; NULL: not known, or not for much longer.
 */
char *dcp_led_find(struct dcp_remote *r, const char *name);
/*
 * They were led to @url; NULL, or one that does not say how long it can be used: nothing is kept.
 */
void dcp_led_keep(struct dcp_remote *r, const char *name, const char *url);

/* ---- site.c: files ---- */

/* Open @item of @r, called @name there, whose id is @id. Nothing is asked. */
int dcp_remote_open(struct dcp_remote *r, const char *name, const struct dcp_item *item,
		    const struct dcp_file_id *id, struct dcp_blob *out);

/*
 * A program that reads a file in order: where it goes on (0: there is none), how many bytes it read
 * so, and up to where they are read ahead; where the tensor ends that it reads (0: not known), and
 * whether it went on past the end of another: it reads many, and the next is read ahead, too.
 */
struct dcp_reader {
	uint64_t next, run, reach, until, used;
	bool passes;
};

/* A file that is open. */
struct dcp_remote_file {
	struct dcp_remote *remote;
	char *name, *url, *tag, *modified;
	char why[384]; /* the last request for it failed; the remote's lock */
	uint64_t size, id[2];
	bool lasts; /* by its tag it is known for good: its bytes may be kept on a disk */
	_Atomic bool changed;         /* the server has other content by now */
	struct dcp_reader readers[8]; /* the lock is that of blocks.c */
};

struct dcp_range {
	uint64_t off, n;
	int (*take)(void *ctx, uint64_t at, const char *p, size_t n);
	void *ctx;
};

/* ---- range.c ---- */

/*
 * Get @n ranges of @o, from the disk, or from the server side by side. Bytes of a range are taken
 * in any order. -ESTALE: it changed since it was listed.
 */
int dcp_remote_get(struct dcp_remote_file *o, struct dcp_range *ranges, size_t n);

/* ---- blocks.c ---- */

/*
 * Read of @o by way of blocks that are kept; @reads in order of their offsets. Those to NULL only
 * bring the blocks.
 */
int dcp_blocks_read(struct dcp_remote_file *o, const struct dcp_read *const *reads, size_t n);
/* Are all blocks of them in memory now? */
bool dcp_blocks_have(struct dcp_remote_file *o, const struct dcp_read *const *reads, size_t n);

/*
 * Is this the next read of a program that reads in order? Then it is to read by way of blocks,
 * which come ahead of it.
 */
bool dcp_blocks_follow(struct dcp_remote_file *o, const struct dcp_read *read);
/* @o is closed: nothing is read ahead for it any more. */
void dcp_blocks_leave(struct dcp_remote_file *o);

/* ---- site.c ---- */

/*
 * The site of the directory or file @name of @r, whose source is @source. *only is set for a file.
 */
int dcp_site_remote(struct dcp_remote *r, const char *source, const char *name,
		    struct dcp_site *out, char **only, struct dcp_err *err);

/* What @at is reached by, in words, for people: false: it is on no server. */
bool dcp_remote_about(const struct dcp_site *at, struct dcp_buf *out);

/* The functions of all rows but find(). */
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

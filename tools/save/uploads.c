/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file is uploaded in parts of 8 MiB. A part is in memory until its last byte has come; the
 * thread that brought this byte sends the part and frees it. Pieces are taken in order, so at most
 * a few parts for each thread are in memory.
 */
#include "tools/save/save_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/remote/remote.h"
#include "core/remote/s3.h"

#define PART ((uint64_t)8 << 20)
#define MIB ((uint64_t)1 << 20)

enum {
	MOST_PARTS = 10000, /* of an upload, by the protocol */
};

/* Bytes of a file that the format generates: uploads.bytes from @at on. */
struct own {
	uint64_t off, n;
	size_t at;
	uint32_t file;
};

struct save_upload_part {
	char *buf;        /* NULL: no byte has come yet, or the part is sent */
	uint64_t missing; /* bytes */
	char *tag;        /* the tag that the server gave the part; NULL: not sent */
};

struct save_upload {
	char *key;
	char *id; /* NULL: not an upload, or the upload has ended */
	uint64_t part_size;
	/* parts; n 0: the format generates the whole file, which is sent in one request */
	size_t first, n;
	size_t own, nown; /* in own: first, number */
	bool done;        /* this save has created the object */
};

static struct own *own_uploads(const struct save_uploads *u)
{
	return DCP_ITEMS(u->own, struct own);
}

static bool is_mine(const struct save *s, size_t file)
{
	return s->opts.ranks <= 1 || s->owner[file] == s->opts.rank;
}

int save_put_all(struct save *s, struct dcp_put *puts, size_t n)
{
	struct dcp_err err = { .msg = "" };

	int rc = dcp_bucket_put(s->uploads->bucket, puts, n, &err);

	return rc < 0 ? save_keep_why(s, rc, &err) : 0;
}

/* ---- planning ---- */

int save_upload_own(struct save *s, uint64_t off, const void *p, size_t n)
{
	struct save_uploads *u = s->uploads;
	struct own o = { off, n, u->bytes.n, (uint32_t)save_nfiles(s) - 1 };

	dcp_buf_add(&u->bytes, p, n);
	dcp_buf_add(&u->own, &o, sizeof(o));
	return dcp_buf_error(&u->bytes) | dcp_buf_error(&u->own);
}

static void size_upload(struct save *s, size_t file)
{
	struct save_upload *up = &s->uploads->uploads[file];
	uint64_t size = save_files(s)[file].size;

	up->part_size = DCP_MAX(PART, dcp_div_up(dcp_div_up(size, MOST_PARTS), MIB) * MIB);
	up->n = dcp_div_up(size, up->part_size);
	up->first = s->uploads->nparts;
	s->uploads->nparts += up->n;
}

static uint64_t part_length(const struct save *s, size_t file, size_t part)
{
	const struct save_upload *up = &s->uploads->uploads[file];

	return DCP_MIN(up->part_size, save_files(s)[file].size - part * up->part_size);
}

/* Record that @n bytes at @off of the file will come. */
static void expect_bytes(struct save *s, size_t file, uint64_t off, uint64_t n)
{
	const struct save_upload *up = &s->uploads->uploads[file];

	while (n) {
		uint64_t in = off % up->part_size, now = DCP_MIN(n, up->part_size - in);

		s->uploads->parts[up->first + off / up->part_size].missing += now;
		off += now;
		n -= now;
	}
}

static int lay_out(struct save *s)
{
	struct save_uploads *u = s->uploads;
	const struct save_patch *patch = DCP_ITEMS(s->patches, struct save_patch);
	const struct save_run *r = save_runs(s);
	size_t nfiles = save_nfiles(s), nruns = save_nruns(s);
	size_t npatches = DCP_NITEMS(s->patches, struct save_patch);
	bool one = s->opts.file;

	u->uploads = calloc(nfiles + 1, sizeof(*u->uploads));
	u->left = calloc(nruns + 1, sizeof(*u->left));
	u->first = calloc(nruns + 1, sizeof(*u->first));
	u->next = calloc(npatches + 1, sizeof(*u->next));
	if (!u->uploads || !u->left || !u->first || !u->next)
		return -ENOMEM;
	for (size_t i = 0; i < nruns; i++)
		if ((r[i].n || r[i].crc32) && !u->uploads[r[i].file].n)
			size_upload(s, r[i].file);
	u->parts = calloc(u->nparts + 1, sizeof(*u->parts));
	if (!u->parts)
		return -ENOMEM;
	for (size_t i = 0; i < nfiles; i++)
		if (asprintf(&u->uploads[i].key, "%s%s%s", u->key, one ? "" : "/",
			     one ? "" : save_files(s)[i].name) < 0)
			return -ENOMEM;
	for (size_t i = DCP_NITEMS(u->own, struct own); i--;) {
		u->uploads[own_uploads(u)[i].file].own = i;
		u->uploads[own_uploads(u)[i].file].nown++;
	}
	for (size_t i = 0; i < nruns; i++) {
		expect_bytes(s, r[i].file, r[i].off, r[i].n);
		u->left[i] = (uint32_t)dcp_div_up(r[i].n, SAVE_PIECE);
	}
	for (size_t i = npatches; i--;) {
		if (u->uploads[patch[i].file].n)
			expect_bytes(s, patch[i].file, patch[i].off, 4);
		u->next[i] = u->first[patch[i].run];
		u->first[patch[i].run] = i + 1;
	}
	return 0;
}

/* Begin the uploads of this process in parallel. */
static int begin_uploads(struct save *s)
{
	struct save_uploads *u = s->uploads;
	struct dcp_put puts[SAVE_BATCH];
	struct save_upload *of[SAVE_BATCH];
	size_t n = 0;
	int rc = 0;

	for (size_t i = 0; i <= save_nfiles(s) && rc == 0; i++) {
		if (i < save_nfiles(s) && u->uploads[i].n && is_mine(s, i)) {
			of[n] = &u->uploads[i];
			puts[n++] = (struct dcp_put){ .what = DCP_PUT_BEGIN,
						      .key = u->uploads[i].key };
		}
		if (n < SAVE_BATCH && i < save_nfiles(s))
			continue;
		rc = save_put_all(s, puts, n);
		for (; n; n--)
			of[n - 1]->id = puts[n - 1].got;
	}
	return rc;
}

/* Empty runs have a checksum, too, but no piece that would fill it in. */
static int patch_empty_runs(struct save *s)
{
	const struct save_run *r = save_runs(s);
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < save_nruns(s); i++)
		if (r[i].n == 0 && r[i].crc32 && is_mine(s, r[i].file)) {
			s->uploads->left[i] = 1;
			rc = save_upload_wrote(s, &r[i]);
		}
	return rc;
}

int save_begin_uploads(struct save *s)
{
	int rc = lay_out(s);

	if (rc == 0)
		rc = begin_uploads(s);
	return rc == 0 ? patch_empty_runs(s) : rc;
}

/* ---- parts ---- */

static int send_part(struct save *s, size_t file, size_t part)
{
	struct save_uploads *u = s->uploads;
	const struct save_upload *up = &u->uploads[file];
	struct save_upload_part *p = &u->parts[up->first + part];
	struct dcp_put put = { .what = DCP_PUT_PART,
			       .key = up->key,
			       .upload = up->id,
			       .part = (uint32_t)part + 1,
			       .body = p->buf,
			       .n = part_length(s, file, part) };
	int rc = save_put_all(s, &put, 1);

	free(p->buf);
	p->buf = NULL;
	p->tag = put.got;
	return rc;
}

/* Allocate a part, and fill in the bytes that the format generates. */
static char *make_part(const struct save *s, size_t file, size_t part)
{
	const struct save_uploads *u = s->uploads;
	const struct save_upload *up = &u->uploads[file];
	const struct own *o = own_uploads(u) + up->own;
	uint64_t lo = part * up->part_size, hi = lo + part_length(s, file, part);
	char *buf = malloc(hi - lo);
	size_t i;

	DCP_BISECT(i, 0, up->nown, o[i].off + o[i].n <= lo);
	for (; buf && i < up->nown && o[i].off < hi; i++) {
		uint64_t from = DCP_MAX(o[i].off, lo), to = DCP_MIN(o[i].off + o[i].n, hi);

		memcpy(buf + (from - lo), u->bytes.p + o[i].at + (from - o[i].off), to - from);
	}
	return buf;
}

int save_upload_bytes(struct save *s, struct save_pen *pen, uint32_t file, uint64_t off,
		      const void *from, uint64_t n)
{
	struct save_uploads *u = s->uploads;
	const struct save_upload *up = &u->uploads[file];
	const char *q = from;
	int rc = 0;

	while (n && rc == 0) {
		size_t number = off / up->part_size;
		uint64_t in = off % up->part_size, now = DCP_MIN(n, up->part_size - in);
		struct save_upload_part *p = &u->parts[up->first + number];
		bool complete = false;

		pthread_mutex_lock(&u->lock);
		if (!p->buf)
			p->buf = make_part(s, file, number);
		pthread_mutex_unlock(&u->lock);
		if (!p->buf)
			return -ENOMEM;
		memcpy(p->buf + in, q, now);
		pthread_mutex_lock(&u->lock);
		p->missing -= now;
		complete = p->missing == 0;
		pthread_mutex_unlock(&u->lock);
		if (complete)
			rc = s->opts.stop && *s->opts.stop ? -ECANCELED
							   : send_part(s, file, number);
		off += now;
		q += now;
		n -= now;
	}
	return rc;
}

int save_upload_wrote(struct save *s, const struct save_run *run)
{
	struct save_uploads *u = s->uploads;
	const struct save_patch *patch = DCP_ITEMS(s->patches, struct save_patch);
	size_t number = (size_t)(run - save_runs(s));
	int rc = 0;

	if (!run->crc32 || __atomic_sub_fetch(&u->left[number], 1, __ATOMIC_ACQ_REL))
		return 0;
	for (size_t i = u->first[number]; i && rc == 0; i = u->next[i - 1]) {
		uint8_t crc[4];

		dcp_store_le32(crc, save_crc32_of(s, &patch[i - 1]));
		if (u->uploads[patch[i - 1].file].n)
			rc = save_upload_bytes(s, NULL, patch[i - 1].file, patch[i - 1].off,
					       crc, sizeof(crc));
	}
	return rc;
}

/* Send the parts that have only bytes of the format. */
int save_upload_sync(struct save *s, struct dcp_err *err)
{
	struct save_uploads *u = s->uploads;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < save_nfiles(s); i++)
		for (size_t k = 0; rc == 0 && is_mine(s, i) && k < u->uploads[i].n; k++) {
			struct save_upload_part *p = &u->parts[u->uploads[i].first + k];

			if (p->missing || p->tag)
				continue;
			p->buf = make_part(s, i, k);
			rc = p->buf ? send_part(s, i, k) : -ENOMEM;
		}
	return rc < 0 ? save_fail(s, rc, s->name, err) : 0;
}

/* ---- the end ---- */

int save_delete_all(struct save *s, char *const *keys, size_t n)
{
	struct dcp_put puts[SAVE_BATCH];
	int rc = 0;

	for (size_t i = 0, some; i < n && rc == 0; i += some) {
		some = DCP_MIN(n - i, (size_t)SAVE_BATCH);
		for (size_t k = 0; k < some; k++)
			puts[k] =
				(struct dcp_put){ .what = DCP_PUT_DELETE, .key = keys[i + k] };
		rc = save_put_all(s, puts, some);
		for (size_t k = 0; k < some; k++)
			free(puts[k].got);
	}
	return rc;
}

/* Make the XML list of the parts of an upload. */
static int list_parts(const struct save *s, const struct save_upload *up, struct dcp_buf *out)
{
	dcp_buf_str(out, DCP_BUCKET_PARTS);
	for (size_t k = 0; k < up->n; k++) {
		const char *tag = s->uploads->parts[up->first + k].tag;

		if (!tag)
			return -ENODATA;
		dcp_bucket_add_part(out, (uint32_t)k + 1, tag);
	}
	dcp_buf_str(out, DCP_BUCKET_PARTS_END);
	return dcp_buf_error(out);
}

/* Make the request that turns file @i into an object; @body is memory for the list of its parts. */
static int prepare_object(const struct save *s, size_t i, struct dcp_buf *body,
			  struct dcp_put *put)
{
	const struct save_uploads *u = s->uploads;
	const struct save_upload *up = &u->uploads[i];
	int rc = up->n ? list_parts(s, up, body) : 0;

	*put = (struct dcp_put){
		.what = up->n ? DCP_PUT_COMPLETE : DCP_PUT_OBJECT,
		.key = up->key,
		.upload = up->id,
		.size = save_files(s)[i].size,
		.fresh = !s->opts.overwrite, /* seal() has deleted what is replaced */
		.body = body->p,
		.n = body->n
	};
	if (!up->n) {
		put->body = up->nown ? u->bytes.p + own_uploads(u)[up->own].at : "";
		put->n = save_files(s)[i].size;
	}
	return rc;
}

/* Complete the files that are @last, or all other files. */
int save_complete_files(struct save *s, bool last)
{
	struct save_uploads *u = s->uploads;
	struct dcp_buf body[SAVE_BATCH] = { 0 };
	struct dcp_put puts[SAVE_BATCH];
	struct save_upload *of[SAVE_BATCH];
	size_t n = 0;
	int rc = 0;

	for (size_t i = 0; i <= save_nfiles(s) && rc == 0; i++) {
		bool made;

		if (i < save_nfiles(s) && save_files(s)[i].last == last) {
			of[n] = &u->uploads[i];
			rc = prepare_object(s, i, &body[n], &puts[n]);
			n++;
		}
		if (rc == 0 && n < SAVE_BATCH && i < save_nfiles(s))
			continue;
		made = rc == 0;
		rc = made ? save_put_all(s, puts, n) : rc;
		for (; n; n--) {
			if (made && puts[n - 1].rc == 0) {
				of[n - 1]->done = true;
				free(of[n - 1]->id);
				of[n - 1]->id = NULL;
			}
			free(puts[n - 1].got);
			dcp_buf_finish(&body[n - 1]);
		}
	}
	return rc;
}

/* Abort the uploads that were begun, and delete the objects that this save completed. */
void save_undo_uploads(struct save *s)
{
	struct save_uploads *u = s->uploads;
	struct dcp_put puts[SAVE_BATCH];
	size_t n = 0;

	for (size_t i = 0; u->uploads && i <= save_nfiles(s); i++) {
		const struct save_upload *up = i < save_nfiles(s) ? &u->uploads[i] : NULL;

		if (up && (up->id || up->done))
			puts[n++] = (struct dcp_put){ .what = up->done ? DCP_PUT_DELETE
								       : DCP_PUT_ABORT,
						      .key = up->key,
						      .upload = up->done ? NULL : up->id };
		if (n < SAVE_BATCH && up)
			continue;
		dcp_bucket_put(u->bucket, puts, n, NULL);
		for (; n; n--)
			free(puts[n - 1].got);
	}
	dcp_remote_distrust(u->bucket);
}

void save_free_uploads(struct save *s)
{
	struct save_uploads *u = s->uploads;

	for (size_t i = 0; u->uploads && i < save_nfiles(s); i++) {
		free(u->uploads[i].key);
		free(u->uploads[i].id);
	}
	for (size_t i = 0; u->parts && i < u->nparts; i++) {
		free(u->parts[i].buf);
		free(u->parts[i].tag);
	}
	free(u->uploads);
	free(u->parts);
	free(u->left);
	free(u->first);
	free(u->next);
	dcp_buf_finish(&u->own);
	dcp_buf_finish(&u->bytes);
}

/* ---- uploads of other processes, completed by the leading process ---- */

static void put_text(struct dcp_buf *out, const char *text)
{
	size_t n = text ? strlen(text) : 0;

	dcp_buf_varint(out, n);
	dcp_buf_add(out, text, n);
}

static int take_text(struct dcp_cur *in, char **out)
{
	uint64_t n = dcp_cur_varint(in);
	const uint8_t *p = dcp_cur_take(in, n);
	char *text = NULL;

	if (!p)
		return -EPROTO;
	if (n && !(text = malloc(n + 1)))
		return -ENOMEM;
	if (text) {
		memcpy(text, p, n);
		text[n] = '\0';
	}
	free(*out);
	*out = text;
	return 0;
}

void save_put_uploads(const struct save *s, struct dcp_buf *out)
{
	struct save_uploads *u = s->uploads;

	for (size_t i = 0; i < save_nfiles(s) && !save_leads(s); i++) {
		const struct save_upload *up = &u->uploads[i];

		if (!up->n || !is_mine(s, i))
			continue;
		dcp_buf_varint(out, i);
		put_text(out, up->id);
		for (size_t k = 0; k < up->n; k++)
			put_text(out, u->parts[up->first + k].tag);
	}
	u->handed = !save_leads(s);
}

int save_take_uploads(struct save *s, struct dcp_cur *in)
{
	struct save_uploads *u = s->uploads;
	int rc = 0;

	while (dcp_cur_left(in) && rc == 0) {
		uint64_t i = dcp_cur_varint(in);

		if (i >= save_nfiles(s) || is_mine(s, i))
			return -EPROTO;
		rc = take_text(in, &u->uploads[i].id);
		for (size_t k = 0; rc == 0 && k < u->uploads[i].n; k++)
			rc = take_text(in, &u->parts[u->uploads[i].first + k].tag);
	}
	return rc;
}

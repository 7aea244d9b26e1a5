/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/base/cleanup.h"
#include "core/base/clock.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/format.h"
#include "core/store/cache/cache.h"
#include "core/store/view/digest.h"
#include "core/store/view/view.h"
#include "tools/cmd.h"
#include "tools/export/export.h"
#include "tools/load/execute/record.h"
#include "tools/out.h"
#include "tools/pick.h"
#include "tools/trust/copies.h"
#include "tools/trust/kept.h"
#include "tools/trust/stored.h"
#include "tools/trust/walk.h"

#define KEEP_NS (2 * 1000000000ll)

struct verify_opts {
	int form;
	bool sha256, resume;
	int format;
	const char *record, *check;
	uint64_t jobs, rate;
	struct opt_texts keys;
	struct pick_opts pick;
};

enum { FORMAT_TEXT, FORMAT_IN_TOTO };
static const char *const formats[] = { "text", "in-toto", NULL };

static const struct opt opts[] = {
	{ 0, "record", "FILE", "write the digest of every tensor; -: to stdout", OPT_TEXT,
	  OPT_FILE, offsetof(struct verify_opts, record) },
	{ 0, "check", "FILE", "compare with what --record has written", OPT_TEXT, OPT_FILE,
	  offsetof(struct verify_opts, check) },
	{ 0, "sha256", NULL, "record digests by SHA-256, which cannot be forged", OPT_FLAG,
	  .off = offsetof(struct verify_opts, sha256) },
	{ 0, "format", "FORMAT", "of --record: text (default) or in-toto, a statement",
	  OPT_CHOICE, .off = offsetof(struct verify_opts, format), .choices = formats },
	{ 0, "resume", NULL, "go on where an interrupted call ended", OPT_FLAG,
	  .off = offsetof(struct verify_opts, resume) },
	WALK_OPT_KEYS(struct verify_opts),
	WALK_OPT_JOBS(struct verify_opts),
	{ 0, "rate", "N", "read at most N bytes a second: 200MB", OPT_SIZE,
	  .off = offsetof(struct verify_opts, rate) },
	PICK_OPT_VERSION,
	PICK_OPTS(struct verify_opts),
	PICK_OPTS_HF(struct verify_opts),
	PICK_OPT_PARTIAL(struct verify_opts),
	PICK_OPT_JSON(struct verify_opts),
	OPT_END
};

static const struct opt_operand operands[] = { PICK_OPERANDS, { 0 } };

struct tensor {
	const struct walk_key *key;
	const char *shown; /* the key as a line of the record has it */
	const char *want;  /* the digest of --check */
	char digest[DCP_DIGEST_TEXT];
};

/* What is wrong, and where; NULL and 0: it does not say. */
struct problem {
	const char *key, *file, *why;
	uint64_t off, n;
};

/* The digest of a tensor that an interrupted call has read. */
struct resumed {
	struct kept_head head;
	char text[72];
};

struct verifying {
	const struct verify_opts *o;
	struct pick p;
	struct walk_keys keys;
	struct tensor *tensors;
	size_t n;
	uint64_t wrong, unread, damaged;
	uint64_t checksums, copies; /* that are as they should be */
	struct dcp_buf problems;    /* struct problem */
	struct dcp_buf resumed;     /* struct resumed */
	int64_t kept_ns;            /* when these were written */
	struct dcp_arena arena;
	struct out out;
};

struct found {
	struct dcp_digesting *d;
	bool failed;
};

static enum dcp_digest_kind kind_of(const struct verifying *w, const struct tensor *t)
{
	bool sha256 = t->want ? strlen(t->want) == 64 : w->o->sha256;

	return sha256 ? DCP_DIGEST_SHA256 : DCP_DIGEST_XXH3;
}

static int look(void *ctx, const struct walk_item *item, void *found, uint64_t first,
		const void *a, const void *b, size_t n)
{
	const struct verifying *w = ctx;
	const struct walk_key *k = item->key[0];
	struct found *f = found;

	if (!f->d)
		f->d = dcp_digest_begin(kind_of(w, &w->tensors[item->tag]), k->dtype_name,
					k->ndim, k->shape);
	f->failed = !f->d;
	if (f->d)
		dcp_digest_add(f->d, a, n * k->itemsize);
	return f->failed;
}

/* Say what is wrong; @file NULL: nothing is known of where. */
static void say(struct verifying *w, const char *key, const char *file, uint64_t off,
		uint64_t n, const char *why)
{
	struct problem p = { .off = off, .n = n };
	char where[64] = "";

	p.key = key ? dcp_arena_strdup(&w->arena, key) : NULL;
	p.file = file ? dcp_arena_strdup(&w->arena, file) : NULL;
	p.why = dcp_arena_strdup(&w->arena, why);
	dcp_buf_add(&w->problems, &p, sizeof(p));
	if (n)
		snprintf(where, sizeof(where), ", bytes %" PRIu64 " to %" PRIu64, off,
			 off + n - 1);
	cmd_fail(CMD_BAD, "%s: %s%s%s%s%s%s", w->p.ck.name, key ? key : "", key ? ": " : "",
		 file ? file : "", where, file ? ": " : "", why);
}

static const char *file_name(const struct verifying *w, uint32_t file)
{
	size_t n;
	const struct dcp_file_id *files = dcp_index_files(dcp_version_index(w->p.ck.v), &n);

	return file < n ? files[file].name : "?";
}

/* The same of a tensor, with the first of the places where it lies. */
static void fail(struct verifying *w, struct tensor *t, const char *why)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	struct dcp_index *ix = dcp_version_index(w->p.ck.v);
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_tensor x;

	if (w->p.ck.base || dcp_index_tensor(ix, t->key->id, &arena, &x, NULL) < 0 ||
	    !x.npieces) {
		say(w, t->key->key, NULL, 0, 0, why);
		return;
	}
	dcp_buf_str(&text, why);
	if (x.npieces > 1)
		dcp_buf_printf(&text, " (that is the first of %zu pieces)", x.npieces);
	dcp_buf_add(&text, "", 1);
	say(w, t->key->key, file_name(w, x.pieces[0].file), x.pieces[0].off, x.pieces[0].nbytes,
	    text.p ? text.p : why);
}

/* Now and then, so that an interrupted call is not lost. */
static void keep_resumed(struct verifying *w, const struct tensor *t)
{
	struct resumed r = { .text = "" };
	int64_t now = dcp_now_ns(CLOCK_MONOTONIC);

	memcpy(r.text, t->digest, strlen(t->digest) + 1);
	if (kept_put(&w->resumed, sizeof(r), t->key, &r) < 0 || now - w->kept_ns < KEEP_NS)
		return;
	dcp_kept_write(w->p.ck.v, w->o->sha256 ? "verify-sha256" : "verify-xxh3", w->resumed.p,
		       w->resumed.n);
	w->kept_ns = now;
}

static void compare(struct verifying *w, struct tensor *t)
{
	if (!t->want || strcmp(t->want, t->digest) == 0)
		return;
	w->wrong++;
	fail(w, t, "its digest is not the recorded one: bytes, shape or dtype changed");
}

static void done(void *ctx, const struct walk_item *item, void *found, size_t nspans, int rc,
		 unsigned side, const struct dcp_err *err)
{
	struct verifying *w = ctx;
	struct tensor *t = &w->tensors[item->tag];
	const struct walk_key *k = t->key;
	struct found *f = found;

	if (!f->d && rc == 0 && !f->failed) /* it has no elements */
		f->d = dcp_digest_begin(kind_of(w, t), k->dtype_name, k->ndim, k->shape);
	if (f->d)
		dcp_digest_end(f->d, t->digest);
	if (rc == 0 && !t->digest[0])
		rc = -ENOMEM;
	if (rc < 0) {
		t->digest[0] = '\0';
		w->unread++;
		fail(w, t, err->msg[0] ? err->msg : strerror(-rc));
	} else {
		if (!w->o->keys.n || w->o->resume) /* else the state is that of another call */
			keep_resumed(w, t);
		compare(w, t);
	}
}

/* ---- the record ---- */

static int by_key(const void *key, const void *t)
{
	return strcmp(key, ((const struct tensor *)t)->key->key);
}

static int by_line(const void *a, const void *b)
{
	return strcmp((*(struct tensor *const *)a)->shown, (*(struct tensor *const *)b)->shown);
}

/* Never into the source, nor over something else than an earlier record. */
static enum cmd_exit check_place(const struct verifying *w)
{
	const char *path = w->o->record;
	dcp_auto_fd int fd = -1;
	char line[80] = "";
	enum cmd_exit code;

	if (!path || strcmp(path, "-") == 0)
		return CMD_OK;
	code = export_check_apart(path, w->p.ck.source);
	if (code != CMD_OK)
		return code;
	fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd >= 0 && read(fd, line, sizeof(line) - 1) > 0 && !load_record_digest(line) &&
	    !strstr(line, LOAD_STATEMENT))
		return cmd_fail(
			CMD_USAGE,
			"verify: --record %s: it is there, and no record; remove it, or "
			"give another name",
			path);
	return CMD_OK;
}

/* A key that only one side has is wrong, unless --keys leaves it out. */
static enum cmd_exit take_record(struct verifying *w, struct load_record *r)
{
	struct dcp_err err = { 0 };
	int rc = load_record_read(w->o->check, r, &err);

	if (rc < 0)
		return cmd_fail(rc == -EINVAL ? CMD_BAD : CMD_ENV, "verify: --check %s",
				err.msg[0] ? err.msg : strerror(-rc));
	for (size_t i = 0; i < DCP_NITEMS(r->lines, struct load_line); i++) {
		const struct load_line *l = &DCP_ITEMS(r->lines, struct load_line)[i];
		struct tensor *t =
			w->n ? bsearch(l->key, w->tensors, w->n, sizeof(*t), by_key) : NULL;

		if (t)
			t->want = l->digest;
		else if (!w->o->keys.n && w->wrong++ < UINT64_MAX)
			say(w, l->key, NULL, 0, 0, "recorded, and not there");
	}
	for (size_t i = 0; i < w->n; i++)
		if (!w->tensors[i].want) {
			w->wrong++;
			fail(w, &w->tensors[i], "not recorded");
		}
	return CMD_OK;
}

/* A statement of in-toto: the subjects are tensors, and the predicate says how their digests are made. */
static void put_statement(const struct verifying *w, struct dcp_jsonw *j)
{
	const char *kind = w->o->sha256 ? "dcpfsTensorSha256" : "dcpfsTensorXxh3";

	dcp_jsonw_object(j);
	dcp_jsonw_put_str(j, "_type", LOAD_STATEMENT);
	dcp_jsonw_put_array(j, "subject");
	for (size_t i = 0; i < w->n; i++) {
		dcp_jsonw_object(j);
		dcp_jsonw_put_str(j, "name", w->tensors[i].key->key);
		dcp_jsonw_put_object(j, "digest");
		dcp_jsonw_put_str(j, kind, w->tensors[i].digest);
		dcp_jsonw_end(j);
		dcp_jsonw_end(j);
	}
	dcp_jsonw_end(j);
	dcp_jsonw_put_str(j, "predicateType", "urn:dcpfs:tensors:1");
	dcp_jsonw_put_object(j, "predicate");
	dcp_jsonw_put_str(j, "version", w->p.ck.name);
	dcp_jsonw_put_str(j, "format", w->p.ck.found->format->name);
	dcp_jsonw_put_u64(j, "tensors", w->n);
	dcp_jsonw_put_u64(j, "nbytes", w->keys.nbytes);
	dcp_jsonw_put_str(j, "digestOver",
			  "dtype and NUL; dimensions and their number, 8 bytes each, "
			  "little-endian; elements, row-major, little-endian");
	dcp_jsonw_end(j);
	dcp_jsonw_end(j);
}

static void put_lines(const struct verifying *w, struct dcp_buf *out)
{
	dcp_auto_free const struct tensor **line = calloc(w->n + 1, sizeof(*line));

	out->failed |= !line;
	for (size_t i = 0; line && i < w->n; i++)
		line[i] = &w->tensors[i];
	if (line && w->n)
		qsort(line, w->n, sizeof(*line), by_line);
	for (size_t i = 0; line && i < w->n; i++)
		dcp_buf_printf(out, "%s  %s\n", line[i]->digest, line[i]->shown);
}

static enum cmd_exit write_record(struct verifying *w)
{
	bool to_stdout = strcmp(w->o->record, "-") == 0;
	dcp_auto_fd int fd = -1;
	struct out o;
	uint32_t withheld = 0;
	enum cmd_exit code;
	int rc;

	if (!to_stdout) {
		rc = export_withheld_beside(w->p.ck.v, w->p.ck.source, w->o->record, &withheld);
		fd = rc < 0 ? rc : export_create(w->o->record, withheld);
		if (fd < 0)
			return cmd_fail(CMD_ENV, "verify: --record %s: %s", w->o->record,
					strerror(-fd));
	}
	out_init(&o, w->o->format == FORMAT_IN_TOTO ? OUT_JSON : OUT_TEXT);
	if (w->o->format == FORMAT_IN_TOTO)
		put_statement(w, &o.json);
	else
		put_lines(w, &o.buf);
	code = out_flush_to(&o, to_stdout ? STDOUT_FILENO : fd, w->o->record);
	out_finish(&o);
	return code;
}

/* ---- all of it ---- */

/* The keys as lines have them: as cells of TSV. */
static int list_tensors(struct verifying *w)
{
	const struct walk_key *k = WALK_KEYS(&w->keys);

	w->n = WALK_NKEYS(&w->keys);
	w->tensors = calloc(w->n + 1, sizeof(*w->tensors));
	for (size_t i = 0; w->tensors && i < w->n; i++) {
		struct out cell = { .form = OUT_TSV };

		out_tsv(&cell, k[i].key);
		w->tensors[i].key = &k[i];
		w->tensors[i].shown = cell.buf.p ? dcp_arena_strdup(&w->arena, cell.buf.p) : "";
		dcp_buf_finish(&cell.buf);
		if (!w->tensors[i].shown)
			return -ENOMEM;
	}
	return w->tensors ? 0 : -ENOMEM;
}

static int read_all(struct verifying *w)
{
	struct walk walk = { .version = { w->p.ck.v },
			     .jobs = (unsigned)w->o->jobs,
			     .rate = w->o->rate,
			     .whole = true,
			     .found = sizeof(struct found),
			     .look = look,
			     .done = done,
			     .ctx = w,
			     .what = "verifying" };
	int rc;

	walk.items = calloc(w->n + 1, sizeof(*walk.items));
	if (!walk.items)
		return -ENOMEM;
	rc = w->o->resume ? kept_read(w->p.ck.v, w->o->sha256 ? "verify-sha256" : "verify-xxh3",
				      sizeof(struct resumed), &w->resumed)
			  : 0;
	for (size_t i = 0; i < w->n && rc == 0; i++) {
		struct tensor *t = &w->tensors[i];
		const struct resumed *r = kept_at(&w->resumed, sizeof(*r), t->key);

		if (r && strlen(r->text) == (kind_of(w, t) == DCP_DIGEST_SHA256 ? 64u : 32u)) {
			memcpy(t->digest, r->text, strlen(r->text) + 1);
			compare(w, t);
			continue;
		}
		walk.items[walk.n++] = (struct walk_item){ { t->key, NULL }, i };
	}
	if (rc == 0)
		rc = walk_run(&walk);
	free(walk.items);
	/* It is complete: nothing is left to go on with. */
	if (rc == 0 && !w->o->keys.n)
		dcp_kept_write(w->p.ck.v, w->o->sha256 ? "verify-sha256" : "verify-xxh3", "",
			       0);
	return rc;
}

/* For dcpfs diff, which then reads only tensors that differ. */
static void keep_digests(const struct verifying *w)
{
	dcp_auto_buf struct dcp_buf kept = DCP_BUF_INIT;
	int rc = kept_read(w->p.ck.v, "digests", sizeof(struct kept_digest), &kept);

	for (size_t i = 0; i < w->n && rc == 0; i++) {
		struct kept_digest d = { .text = "" };

		if (!w->tensors[i].digest[0] || strlen(w->tensors[i].digest) >= sizeof(d.text))
			continue;
		memcpy(d.text, w->tensors[i].digest, strlen(w->tensors[i].digest));
		rc = kept_put(&kept, sizeof(d), w->tensors[i].key, &d);
	}
	if (rc == 0)
		dcp_kept_write(w->p.ck.v, "digests", kept.p, kept.n);
}

/* ---- what files say of themselves ---- */

struct hit {
	struct verifying *w;
	const struct stored_bad *bad;
	bool any;
};

/* Bytes that lie in a damaged part of a file belong to this tensor: and has another file the same? */
static void find_hit(struct hit *h, const struct walk_key *k)
{
	struct verifying *w = h->w;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	const struct stored_bad *b = h->bad;
	struct dcp_tensor t;
	int rc = dcp_index_tensor(dcp_version_index(w->p.ck.v), k->id, &arena, &t, NULL);

	for (size_t i = 0; rc == 0 && i < t.npieces; i++) {
		const struct dcp_piece *p = &t.pieces[i];
		dcp_auto_buf struct dcp_buf why = DCP_BUF_INIT;
		const char *other = NULL;

		if (p->file != b->file || !b->n || p->off >= b->off + b->n ||
		    p->off + p->nbytes <= b->off)
			continue;
		for (size_t c = 0; c < t.ncopies && !other; c++)
			if (dcp_piece_compare(&t.copies[c], p, t.ndim) == 0)
				other = file_name(w, t.copies[c].file);
		h->any = true;
		dcp_buf_str(&why, b->why);
		dcp_buf_printf(&why, other ? "; %s has a copy" : "; no other file has a copy",
			       other ? other : "");
		dcp_buf_add(&why, "", 1);
		say(w, k->key, file_name(w, b->file), b->off, b->n, why.p ? why.p : b->why);
		break;
	}
}

static void take_bad(void *ctx, const struct stored_bad *b)
{
	struct hit h = { ctx, b, false };

	h.w->damaged++;
	for (size_t i = 0; i < WALK_NKEYS(&h.w->keys); i++)
		find_hit(&h, &WALK_KEYS(&h.w->keys)[i]);
	if (!h.any)
		say(h.w, NULL, file_name(h.w, b->file), b->off, b->n, b->why);
}

static struct tensor *tensor_of(struct verifying *w, const struct walk_key *k)
{
	return &w->tensors[k - WALK_KEYS(&w->keys)];
}

static void take_copy(void *ctx, const struct copies_bad *b)
{
	struct verifying *w = ctx;
	const struct tensor *t = tensor_of(w, b->key);
	dcp_auto_view struct dcp_view *view = NULL;
	char digest[DCP_DIGEST_TEXT] = "";
	dcp_auto_buf struct dcp_buf why = DCP_BUF_INIT;

	w->damaged++;
	if (b->why)
		dcp_buf_printf(&why, "its copy in %s cannot be read: %s",
			       file_name(w, b->other), b->why);
	else
		dcp_buf_printf(&why,
			       "its copy in %s differs in %" PRIu64 " of %" PRIu64
			       " bytes, first at byte %" PRIu64,
			       file_name(w, b->other), b->differ, b->bytes, b->first);
	if (t && t->want && strcmp(t->want, t->digest) == 0)
		dcp_buf_printf(&why, "; %s has the recorded bytes", file_name(w, b->file));
	else if (t && t->want && b->with &&
		 dcp_view_open(b->with, b->key->id, DCP_AS_RAW, NULL, &view, NULL) == 0 &&
		 dcp_digest(view, kind_of(w, t), NULL, digest, NULL) == 0)
		dcp_buf_printf(&why, "; %s %s the recorded bytes", file_name(w, b->other),
			       strcmp(digest, t->want) == 0 ? "has" : "has not");
	dcp_buf_add(&why, "", 1);
	say(w, b->key->key, file_name(w, b->file), b->off, b->n, why.p ? why.p : "");
}

static int check_files(struct verifying *w)
{
	struct stored s = { .p = &w->p,
			    .jobs = (unsigned)w->o->jobs,
			    .rate = w->o->rate,
			    .bad = take_bad,
			    .ctx = w };
	struct copies c = {
		.p = &w->p, .opts = &w->o->pick, .keys = &w->keys, .bad = take_copy, .ctx = w
	};
	int rc = w->o->keys.n ? 0 : stored_check(&s);

	if (rc == 0)
		rc = copies_check(&c);
	w->checksums = s.checked;
	w->copies = c.equal;
	return rc;
}

/* Objects that could not be decoded. */
static int check_object(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	struct verifying *w = ctx;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	struct dcp_object o = { 0 };
	int rc = row->broken ? dcp_index_object(dcp_version_index(w->p.ck.v), row->id, &arena,
						&o, NULL)
			     : 0;

	if (row->broken && rc == 0) {
		w->unread++;
		cmd_fail(CMD_BAD, "%s: %s: %s", w->p.ck.name, row->key,
			 o.error ? o.error : "broken");
	}
	return rc;
}

static enum cmd_exit report(struct verifying *w)
{
	struct out *o = &w->out;
	char size[OUT_SIZE], n[32];

	if (o->form == OUT_JSON) {
		dcp_jsonw_object(&o->json);
		dcp_jsonw_put_str(&o->json, "version", w->p.ck.name);
		dcp_jsonw_put_u64(&o->json, "tensors", w->n);
		dcp_jsonw_put_u64(&o->json, "nbytes", w->keys.nbytes);
		dcp_jsonw_put_u64(&o->json, "unreadable", w->unread);
		dcp_jsonw_put_u64(&o->json, "different", w->wrong);
		dcp_jsonw_put_u64(&o->json, "damaged", w->damaged);
		dcp_jsonw_put_u64(&o->json, "checksums", w->checksums);
		dcp_jsonw_put_u64(&o->json, "copies", w->copies);
		dcp_jsonw_put_array(&o->json, "problems");
		for (size_t i = 0; i < DCP_NITEMS(w->problems, struct problem); i++) {
			const struct problem *p = &DCP_ITEMS(w->problems, struct problem)[i];

			dcp_jsonw_object(&o->json);
			dcp_jsonw_put_str_or_null(&o->json, "key", p->key);
			dcp_jsonw_put_str_or_null(&o->json, "file", p->file);
			dcp_jsonw_put_u64(&o->json, "offset", p->off);
			dcp_jsonw_put_u64(&o->json, "nbytes", p->n);
			dcp_jsonw_put_str_or_null(&o->json, "why", p->why);
			dcp_jsonw_end(&o->json);
		}
		dcp_jsonw_end(&o->json);
		dcp_jsonw_end(&o->json);
	} else if (!w->o->record || strcmp(w->o->record, "-") != 0) {
		out_text(&o->buf, w->p.ck.name);
		dcp_buf_printf(&o->buf, ": %s tensor%s, %s", out_count(n, w->n), dcp_s(w->n),
			       out_size(size, w->keys.nbytes));
		if (w->unread)
			dcp_buf_printf(&o->buf, "; %s cannot be read", out_count(n, w->unread));
		if (w->wrong)
			dcp_buf_printf(&o->buf, "; %s not as recorded", out_count(n, w->wrong));
		if (w->damaged)
			dcp_buf_printf(&o->buf, "; %s damaged", out_count(n, w->damaged));
		if (w->checksums)
			dcp_buf_printf(&o->buf, "; %s checksums agree",
				       out_count(n, w->checksums));
		if (w->copies)
			dcp_buf_printf(&o->buf, "; %s copies are the same",
				       out_count(n, w->copies));
		dcp_buf_str(&o->buf, w->unread || w->wrong || w->damaged ? "\n"
				     : w->o->check                       ? ": as recorded\n"
						   : ": every byte can be read\n");
	}
	return out_flush(o);
}

static enum cmd_exit verify(struct verifying *w, struct load_record *record)
{
	struct dcp_err err = { 0 };
	enum cmd_exit code = CMD_OK;
	int rc = list_tensors(w);

	if (rc == 0 && w->o->check) {
		code = take_record(w, record);
		if (code != CMD_OK)
			return code;
	}
	if (rc == 0)
		rc = read_all(w);
	if (rc == 0 && !w->p.ck.base)
		rc = check_files(w);
	if (rc == 0 && !w->o->keys.n && !w->p.ck.base)
		rc = dcp_each_row(dcp_version_index(w->p.ck.v), DCP_ROW_OBJECT, check_object,
				  w);
	if (rc < 0)
		return cmd_fail(CMD_ENV, "verify: %s", strerror(-rc));
	/* Nothing may have changed while it was read. */
	if (dcp_version_check(w->p.ck.v, &err) < 0) {
		w->unread++;
		cmd_fail(CMD_BAD, "%s: %s", w->p.ck.name, err.msg);
	} else {
		keep_digests(w);
	}
	if (w->o->record && (w->unread || w->damaged))
		cmd_fail(CMD_BAD,
			 "verify: --record %s: not written, as not all is as it was written",
			 w->o->record);
	else if (w->o->record)
		code = write_record(w);
	if (code == CMD_OK)
		code = report(w);
	return code != CMD_OK            ? code
	       : w->unread || w->damaged ? CMD_BAD
	       : w->wrong                ? CMD_NO
					 : CMD_OK;
}

static enum cmd_exit run(const void *opts_in, const struct opt_args *args)
{
	const struct verify_opts *o = opts_in;
	struct verifying w = { .o = o, .arena = DCP_ARENA_INIT((size_t)1 << 32) };
	struct load_record record = { .text = NULL };
	enum cmd_exit code = walk_open(&w.p, args, &o->pick, "verify");

	out_init(&w.out, o->form);
	if (code == CMD_OK && o->format && !o->record)
		code = cmd_fail(CMD_USAGE, "verify: --format is that of --record");
	if (code == CMD_OK && o->record && o->check)
		code = cmd_fail(CMD_USAGE, "verify: --record and --check do not go together");
	if (code == CMD_OK && o->record && strcmp(o->record, "-") == 0 && o->form == OUT_JSON)
		code = cmd_fail(CMD_USAGE,
				"verify: --record - and --json both write to stdout");
	if (code == CMD_OK && o->resume && o->pick.no_cache)
		code = cmd_fail(CMD_USAGE, "verify: --resume goes on from what the cache has, "
					   "which --no-cache leaves out");
	if (code == CMD_OK)
		code = check_place(&w);
	if (code == CMD_OK)
		code = walk_keys(&w.p, &o->keys, &w.keys);
	if (code == CMD_OK)
		code = verify(&w, &record);
	free(w.tensors);
	load_record_finish(&record);
	dcp_buf_finish(&w.problems);
	dcp_buf_finish(&w.resumed);
	walk_keys_finish(&w.keys);
	dcp_arena_finish(&w.arena);
	out_finish(&w.out);
	pick_finish(&w.p);
	return code;
}

const struct cmd cmd_verify = {
	.name = "verify",
	.what = "read every byte, record digests of tensors, or check them",
	.about =
		"Read all tensors of a version. Their digests are the same in every format and "
		"sharding. --check exits 1 where a tensor differs, is gone or not recorded.",
	.operands = operands,
	.opts = opts,
	.reports = true,
	.size = sizeof(struct verify_opts),
	.run = run,
	.examples = { "dcpfs verify /data/run1 2000 --record run1-2000.digests",
		      "dcpfs verify /data/run1-hf --hf --check run1-2000.digests" },
};

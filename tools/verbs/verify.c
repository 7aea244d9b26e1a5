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

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "core/format/format.h"
#include "core/store/cache/cache.h"
#include "core/store/view/measure.h"
#include "core/store/view/view.h"
#include "tools/cmd.h"
#include "tools/export/export.h"
#include "tools/load/load.h"
#include "tools/out.h"
#include "tools/pick.h"
#include "tools/trust/trust.h"

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
	PICK_OPTS_READ(struct verify_opts),
	PICK_OPT_JSON(struct verify_opts),
	OPT_END
};

static const struct opt_operand operands[] = { PICK_OPERANDS, { 0 } };

struct tensor {
	const struct walk_key *key;
	const char *want; /* the digest of --check */
	char digest[DCP_DIGEST_TEXT];
};

/* A problem and its place; NULL and 0: no place is known. */
struct problem {
	const char *key, *file, *why;
	uint64_t off, n;
};

/* The digest of a tensor that an interrupted call has read. */
struct resumed {
	struct dcp_kept_head head;
	char text[72];
};

struct verifying {
	const struct verify_opts *o;
	struct pick p;
	struct walk_keys keys;
	struct tensor *tensors;
	size_t n;
	uint64_t wrong, unread, damaged;
	uint64_t checksums, copies; /* that agree */
	struct signed_files manifest;
	struct dcp_buf problems; /* struct problem */
	struct dcp_buf resumed;  /* struct resumed */
	int64_t kept_ns;         /* when they were kept last */
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

static int digest_span(void *ctx, const struct walk_item *item, void *found, uint64_t first,
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

/* Report a problem; @file NULL: its place is not known. */
static void say_problem(struct verifying *w, const char *key, const char *file, uint64_t off,
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

/* Report a problem of a tensor, with its first place. */
static void fail_tensor(struct verifying *w, struct tensor *t, const char *why)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	struct dcp_index *ix = dcp_version_index(w->p.ck.v);
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_tensor x;

	if (w->p.ck.base || dcp_index_tensor(ix, t->key->id, &arena, &x, NULL) < 0 ||
	    !x.npieces) {
		say_problem(w, t->key->key, NULL, 0, 0, why);
		return;
	}
	dcp_buf_str(&text, why);
	if (x.npieces > 1)
		dcp_buf_printf(&text, " (that is the first of %zu pieces)", x.npieces);
	dcp_buf_add(&text, "", 1);
	say_problem(w, t->key->key, file_name(w, x.pieces[0].file), x.pieces[0].off,
		    x.pieces[0].nbytes, text.p ? text.p : why);
}

static const char *state_name(const struct verifying *w)
{
	return w->o->sha256 ? "verify-sha256" : "verify-xxh3";
}

/* Keep digests from time to time, so that an interrupted call can be resumed. */
static void keep_resumed(struct verifying *w, const struct tensor *t)
{
	struct resumed r = { .text = "" };
	int64_t now = dcp_now_ns(CLOCK_MONOTONIC);

	memcpy(r.text, t->digest, strlen(t->digest) + 1);
	if (dcp_kept_put(&w->resumed, sizeof(r), t->key->id, t->key->key, &r) < 0 ||
	    now - w->kept_ns < KEEP_NS)
		return;
	dcp_kept_write(w->p.ck.v, state_name(w), w->resumed.p, w->resumed.n);
	w->kept_ns = now;
}

static void compare_digest(struct verifying *w, struct tensor *t)
{
	if (!t->want || strcmp(t->want, t->digest) == 0)
		return;
	w->wrong++;
	fail_tensor(w, t, "its digest is not the recorded one: bytes, shape or dtype changed");
}

static void end_digest(void *ctx, const struct walk_item *item, void *found, size_t nspans,
		       int rc, unsigned side, const struct dcp_err *err)
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
		fail_tensor(w, t, err->msg[0] ? err->msg : strerror(-rc));
	} else {
		if (!w->o->keys.n ||
		    w->o->resume) /* otherwise the kept state is of another call */
			keep_resumed(w, t);
		compare_digest(w, t);
	}
}

/* ---- the record ---- */

static int by_key(const void *key, const void *t)
{
	return strcmp(key, ((const struct tensor *)t)->key->key);
}

/* A key that only one side has is an error, unless --keys leaves it out. */
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
		if (t || w->o->keys.n)
			continue;
		w->wrong++;
		say_problem(w, l->key, NULL, 0, 0, "recorded, and not there");
	}
	for (size_t i = 0; i < w->n; i++)
		if (!w->tensors[i].want) {
			w->wrong++;
			fail_tensor(w, &w->tensors[i], "not recorded");
		}
	return CMD_OK;
}

/* ---- all of it ---- */

static int list_tensors(struct verifying *w)
{
	w->n = WALK_NKEYS(&w->keys);
	w->tensors = calloc(w->n + 1, sizeof(*w->tensors));
	for (size_t i = 0; w->tensors && i < w->n; i++)
		w->tensors[i].key = &WALK_KEYS(&w->keys)[i];
	return w->tensors ? 0 : -ENOMEM;
}

static enum cmd_exit write_record(const struct verifying *w)
{
	dcp_auto_free struct record_tensor *tensors = calloc(w->n + 1, sizeof(*tensors));
	const struct record r = { .p = &w->p,
				  .path = w->o->record,
				  .in_toto = w->o->format == FORMAT_IN_TOTO,
				  .sha256 = w->o->sha256,
				  .tensors = tensors,
				  .n = w->n,
				  .nbytes = w->keys.nbytes };

	if (!tensors)
		return cmd_fail(CMD_ENV, "verify: %s", strerror(ENOMEM));
	for (size_t i = 0; i < w->n; i++)
		tensors[i] =
			(struct record_tensor){ w->tensors[i].key->key, w->tensors[i].digest };
	return record_write(&r);
}

static int read_all(struct verifying *w)
{
	struct walk walk = { .version = { w->p.ck.v },
			     .jobs = (unsigned)w->o->jobs,
			     .rate = w->o->rate,
			     .whole = true,
			     .found = sizeof(struct found),
			     .look = digest_span,
			     .done = end_digest,
			     .ctx = w,
			     .what = "verifying" };
	int rc;

	walk.items = calloc(w->n + 1, sizeof(*walk.items));
	if (!walk.items)
		return -ENOMEM;
	rc = w->o->resume ? dcp_kept_records(w->p.ck.v, state_name(w), sizeof(struct resumed),
					     &w->resumed)
			  : 0;
	for (size_t i = 0; i < w->n && rc == 0; i++) {
		struct tensor *t = &w->tensors[i];
		const struct resumed *r =
			dcp_kept_at(&w->resumed, sizeof(*r), t->key->id, t->key->key);

		if (r && strlen(r->text) == (kind_of(w, t) == DCP_DIGEST_SHA256 ? 64u : 32u)) {
			memcpy(t->digest, r->text, strlen(r->text) + 1);
			compare_digest(w, t);
			continue;
		}
		walk.items[walk.n++] = (struct walk_item){ { t->key, NULL }, i };
	}
	if (rc == 0)
		rc = walk_run(&walk);
	free(walk.items);
	/* The check is complete: there is nothing to resume. */
	if (rc == 0 && !w->o->keys.n)
		dcp_kept_write(w->p.ck.v, state_name(w), "", 0);
	return rc;
}

/* Keep digests for dcpfs diff, which then reads only differing tensors. */
static void keep_digests(const struct verifying *w)
{
	dcp_auto_buf struct dcp_buf all = DCP_BUF_INIT;
	int rc = 0;

	for (size_t i = 0; i < w->n && rc == 0; i++) {
		struct record_kept d = { .text = "" };

		if (!w->tensors[i].digest[0] || strlen(w->tensors[i].digest) >= sizeof(d.text))
			continue;
		memcpy(d.text, w->tensors[i].digest, strlen(w->tensors[i].digest));
		rc = dcp_kept_put(&all, sizeof(d), w->tensors[i].key->id,
				  w->tensors[i].key->key, &d);
	}
	if (rc == 0)
		dcp_kept_share(w->p.ck.v, "digests", sizeof(struct record_kept), &all);
}

/* ---- checksums in files ---- */

static void take_bad(void *ctx, const struct stored_bad *b)
{
	struct verifying *w = ctx;

	w->damaged += b->first;
	say_problem(w, b->key, file_name(w, b->file), b->off, b->n, b->why);
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
	say_problem(w, b->key->key, file_name(w, b->file), b->off, b->n, why.p ? why.p : "");
}

static void take_unsigned(void *ctx, const struct signed_bad *b)
{
	struct verifying *w = ctx;

	w->damaged++;
	say_problem(w, NULL, b->file, b->off, b->n, b->why);
}

static int check_files(struct verifying *w)
{
	struct stored s = { .p = &w->p,
			    .keys = &w->keys,
			    .jobs = (unsigned)w->o->jobs,
			    .rate = w->o->rate,
			    .bad = take_bad,
			    .ctx = w };
	struct copies c = { .p = &w->p,
			    .opts = &w->o->pick,
			    .keys = &w->keys,
			    .jobs = (unsigned)w->o->jobs,
			    .rate = w->o->rate,
			    .bad = take_copy,
			    .ctx = w };
	int rc = w->o->keys.n ? 0 : stored_check(&s);

	w->manifest = (struct signed_files){ .p = &w->p,
					     .jobs = (unsigned)w->o->jobs,
					     .rate = w->o->rate,
					     .bad = take_unsigned,
					     .ctx = w };

	if (rc == 0)
		rc = copies_check(&c);
	if (rc == 0 && !w->o->keys.n)
		rc = signed_check(&w->manifest);
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

static int by_key_and_place(const void *a, const void *b)
{
	const struct problem *x = a, *y = b;
	int rc = strcmp(x->key ?: "", y->key ?: "") ?: strcmp(x->file ?: "", y->file ?: "");

	return rc ?: DCP_CMP(x->off, y->off) ?: strcmp(x->why ?: "", y->why ?: "");
}

static enum cmd_exit report_verify(struct verifying *w)
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
		if (w->manifest.manifests) {
			dcp_jsonw_put_object(&o->json, "model_sig");
			dcp_jsonw_put_u64(&o->json, "agree", w->manifest.agree);
			dcp_jsonw_put_u64(&o->json, "unknown", w->manifest.unknown);
			dcp_jsonw_put_bool(&o->json, "signature_checked", false);
			dcp_jsonw_end(&o->json);
		}
		/* Threads found the problems in any order. */
		DCP_SORT(DCP_ITEMS(w->problems, struct problem),
			 DCP_NITEMS(w->problems, struct problem), by_key_and_place);
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
		if (w->manifest.agree)
			dcp_buf_printf(&o->buf,
				       "; %s digests of model.sig agree (its signature was not "
				       "checked)",
				       out_count(n, w->manifest.agree));
		dcp_buf_str(&o->buf, w->unread || w->wrong || w->damaged ? "\n"
				     : w->o->check                       ? ": as recorded\n"
						   : ": every byte can be read\n");
	}
	return out_flush(o);
}

static enum cmd_exit verify_all(struct verifying *w, struct load_record *record)
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
		code = report_verify(w);
	return code != CMD_OK            ? code
	       : w->unread || w->damaged ? CMD_BAD
	       : w->wrong                ? CMD_NO
					 : CMD_OK;
}

static enum cmd_exit run_verify(const void *opts_in, const struct opt_args *args)
{
	const struct verify_opts *o = opts_in;
	struct verifying w = { .o = o, .arena = DCP_ARENA_INIT((size_t)1 << 32) };
	struct load_record record = { .text = NULL };
	enum cmd_exit code = walk_open(&w.p, args, &o->pick, "verify");

	out_init(&w.out, o->form);
	if (code == CMD_OK && o->format && !o->record)
		code = cmd_fail(CMD_USAGE, "verify: --format is for --record only");
	if (code == CMD_OK && o->record && o->check)
		code = cmd_fail(CMD_USAGE, "verify: --record and --check do not go together");
	if (code == CMD_OK && o->record && strcmp(o->record, "-") == 0 && o->form == OUT_JSON)
		code = cmd_fail(CMD_USAGE,
				"verify: --record - and --json both write to stdout");
	if (code == CMD_OK && o->resume && o->pick.no_cache)
		code = cmd_fail(CMD_USAGE, "verify: --resume goes on from what the cache has, "
					   "which --no-cache leaves out");
	if (code == CMD_OK && o->record)
		code = record_check(o->record, w.p.ck.source);
	if (code == CMD_OK)
		code = walk_keys(&w.p, &o->keys, &w.keys);
	if (code == CMD_OK)
		code = verify_all(&w, &record);
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
	.run = run_verify,
	.examples = { "dcpfs verify /data/run1 2000 --record run1-2000.digests",
		      "dcpfs verify /data/run1-hf --hf --check run1-2000.digests" },
};

/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/store/cache/kept.h"
#include "core/store/view/digest.h"
#include "tools/cmd.h"
#include "tools/export/export.h"
#include "tools/out.h"
#include "tools/pick.h"
#include "tools/trust/kept.h"
#include "tools/trust/walk.h"

enum { MOST_TEXT = 1 << 30 }; /* bytes of a record */

struct verify_opts {
	int form;
	bool sha256;
	const char *record, *check;
	uint64_t jobs, rate;
	struct opt_texts keys;
	struct pick_opts pick;
};

static const struct opt opts[] = {
	{ 0, "record", "FILE", "write the digest of every tensor, a line each; -: to stdout",
	  OPT_TEXT, OPT_FILE, offsetof(struct verify_opts, record) },
	{ 0, "check", "FILE", "compare with what --record has written; exit 1 if it differs",
	  OPT_TEXT, OPT_FILE, offsetof(struct verify_opts, check) },
	{ 0, "sha256", NULL, "record digests by SHA-256, which cannot be forged", OPT_FLAG,
	  .off = offsetof(struct verify_opts, sha256) },
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
	const char *shown;          /* the key as a line of the record has it */
	const char *want, *problem; /* the digest of --check; what is wrong */
	char digest[DCP_DIGEST_TEXT];
};

struct verifying {
	const struct verify_opts *o;
	struct pick p;
	struct walk_keys keys;
	struct tensor *tensors;
	size_t n;
	uint64_t wrong, unread;
	struct dcp_arena arena;
	struct out out;
};

/* A digest in the record: of XXH3 or of SHA-256, which its length says. */
static size_t digest_length(const char *line)
{
	size_t n = strspn(line, "0123456789abcdef");

	return (n == 32 || n == 64) && line[n] == ' ' && line[n + 1] == ' ' ? n : 0;
}

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

/* Say what is wrong with a tensor. */
static void fail(struct verifying *w, struct tensor *t, const char *why)
{
	t->problem = dcp_arena_strdup(&w->arena, why);
	cmd_fail(CMD_BAD, "%s: %s: %s", w->p.ck.name, t->key->key, why);
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
	} else if (t->want && strcmp(t->want, t->digest) != 0) {
		w->wrong++;
		fail(w, t, "its digest is not the recorded one: bytes, shape or dtype changed");
	}
}

/* ---- the record ---- */

static int by_shown(const void *key, const void *t)
{
	return strcmp(key, ((const struct tensor *)t)->shown);
}

static int by_line(const void *a, const void *b)
{
	return strcmp(((const struct tensor *)a)->shown, ((const struct tensor *)b)->shown);
}

static enum cmd_exit read_text(const char *path, struct dcp_buf *out)
{
	dcp_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	char part[65536];
	ssize_t n = fd < 0 ? -1 : 0;

	while (fd >= 0 && out->n < MOST_TEXT && (n = read(fd, part, sizeof(part))) > 0)
		dcp_buf_add(out, part, (size_t)n);
	if (n < 0)
		return cmd_fail(CMD_ENV, "verify: --check %s: %s", path, strerror(errno));
	dcp_buf_add(out, "", 1);
	if (dcp_buf_error(out) || out->n >= MOST_TEXT || strlen(out->p) + 1 != out->n)
		return cmd_fail(CMD_BAD, "verify: --check %s: not a record of dcpfs verify",
				path);
	return CMD_OK;
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
	if (fd >= 0 && read(fd, line, sizeof(line) - 1) > 0 && !digest_length(line))
		return cmd_fail(
			CMD_USAGE,
			"verify: --record %s: it is there, and no record; remove it, or "
			"give another name",
			path);
	return CMD_OK;
}

/* A key that only one side has is wrong, unless --keys leaves it out. */
static enum cmd_exit take_record(struct verifying *w, struct dcp_buf *text)
{
	char *line = text->p, *next;
	uint64_t lines = 0;

	for (; *line; line = next) {
		size_t n = strcspn(line, "\n"), digest = digest_length(line);
		struct tensor *t;

		next = line + n + (line[n] == '\n');
		line[n] = '\0';
		lines++;
		if (!digest)
			return cmd_fail(CMD_BAD,
					"verify: --check %s: line %llu is not a digest, two "
					"spaces and a key",
					w->o->check, (unsigned long long)lines);
		line[digest] = '\0';
		t = bsearch(line + digest + 2, w->tensors, w->n, sizeof(*t), by_shown);
		if (t && t->want)
			return cmd_fail(CMD_BAD,
					"verify: --check %s: line %llu: %s is there twice",
					w->o->check, (unsigned long long)lines, t->shown);
		if (t)
			t->want = line;
		else if (!w->o->keys.n && w->wrong++ < UINT64_MAX)
			cmd_fail(CMD_NO, "%s: %s: recorded, and not there", w->p.ck.name,
				 line + digest + 2);
	}
	for (size_t i = 0; i < w->n; i++)
		if (!w->tensors[i].want) {
			w->wrong++;
			fail(w, &w->tensors[i], "not recorded");
		}
	return CMD_OK;
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
	out_init(&o, OUT_TEXT);
	for (size_t i = 0; i < w->n; i++)
		dcp_buf_printf(&o.buf, "%s  %s\n", w->tensors[i].digest, w->tensors[i].shown);
	code = out_flush_to(&o, to_stdout ? STDOUT_FILENO : fd, w->o->record);
	out_finish(&o);
	return code;
}

/* ---- all of it ---- */

/* The keys as lines have them: as cells of TSV, sorted by that. */
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
	if (w->tensors && w->n)
		qsort(w->tensors, w->n, sizeof(*w->tensors), by_line);
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
	for (size_t i = 0; i < w->n; i++)
		walk.items[walk.n++] = (struct walk_item){ { w->tensors[i].key, NULL }, i };
	rc = walk_run(&walk);
	free(walk.items);
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
		dcp_jsonw_put_array(&o->json, "problems");
		for (size_t i = 0; i < w->n; i++) {
			if (!w->tensors[i].problem)
				continue;
			dcp_jsonw_object(&o->json);
			dcp_jsonw_put_str(&o->json, "key", w->tensors[i].key->key);
			dcp_jsonw_put_str(&o->json, "why", w->tensors[i].problem);
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
		dcp_buf_str(&o->buf, w->unread || w->wrong ? "\n"
				     : w->o->check         ? ": as recorded\n"
							   : ": every byte can be read\n");
	}
	return out_flush(o);
}

static enum cmd_exit verify(struct verifying *w, struct dcp_buf *text)
{
	struct dcp_err err = { 0 };
	enum cmd_exit code = CMD_OK;
	int rc = list_tensors(w);

	if (rc == 0 && w->o->check) {
		code = read_text(w->o->check, text);
		if (code == CMD_OK)
			code = take_record(w, text);
		if (code != CMD_OK)
			return code;
	}
	if (rc == 0)
		rc = read_all(w);
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
	if (w->o->record && w->unread)
		cmd_fail(CMD_BAD, "verify: --record %s: not written, as not all can be read",
			 w->o->record);
	else if (w->o->record)
		code = write_record(w);
	if (code == CMD_OK)
		code = report(w);
	return code != CMD_OK ? code : w->unread ? CMD_BAD : w->wrong ? CMD_NO : CMD_OK;
}

static enum cmd_exit run(const void *opts_in, const struct opt_args *args)
{
	const struct verify_opts *o = opts_in;
	struct verifying w = { .o = o, .arena = DCP_ARENA_INIT((size_t)1 << 32) };
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	enum cmd_exit code = walk_open(&w.p, args, &o->pick, "verify");

	out_init(&w.out, o->form);
	if (code == CMD_OK && o->record && o->check)
		code = cmd_fail(CMD_USAGE, "verify: --record and --check do not go together");
	if (code == CMD_OK)
		code = check_place(&w);
	if (code == CMD_OK)
		code = walk_keys(&w.p, &o->keys, &w.keys);
	if (code == CMD_OK)
		code = verify(&w, &text);
	free(w.tensors);
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

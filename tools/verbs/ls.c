/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "core/model/name.h"
#include "tools/cmd.h"
#include "tools/out.h"
#include "tools/pick.h"

struct ls_opts {
	bool lengthy, versions;
	int form;
	const char *keys;
	struct pick_opts pick;
};

static const struct opt opts[] = {
	{ 'l', "long", .help = "also exact bytes, pieces, and what is wrong",
	  .off = offsetof(struct ls_opts, lengthy) },
	{ '1', "names", .help = "only names, one a line", .kind = OPT_FORM,
	  .off = offsetof(struct ls_opts, form), .def = OUT_NAMES },
	{ 0, "keys", "GLOB", .help = "only keys that match; * also matches dots and slashes",
	  .kind = OPT_TEXT, .off = offsetof(struct ls_opts, keys) },
	{ 0, "versions", .help = "list versions, even if there is only one",
	  .off = offsetof(struct ls_opts, versions) },
	PICK_OPTS_READ(struct ls_opts),
	PICK_OPTS_ROWS(struct ls_opts),
	OPT_END
};

static const struct opt_operand operands[] = { PICK_OPERANDS, { 0 } };

/* ---- versions ---- */

/* What is printed of a version: its contents, or why it was not opened. */
struct opened {
	const struct dcp_found *f;
	const struct dcp_index_counts *counts; /* NULL: not opened; else @own */
	struct dcp_index_counts own;
	char *error, *left_out;
};

/* The reason without the version's name, which the row has already. */
static const char *reason_of(const struct dcp_err *err, const struct dcp_found *f)
{
	size_t n = strlen(f->name);

	return strncmp(err->msg, f->name, n) == 0 && strncmp(err->msg + n, ": ", 2) == 0
		       ? err->msg + n + 2
		       : err->msg;
}

static void put_version_json(struct dcp_jsonw *w, const struct opened *t)
{
	char when[32];

	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "name", t->f->name);
	dcp_jsonw_put_str(w, "format", t->f->format->name);
	dcp_jsonw_put_bool(w, "complete", t->f->complete);
	dcp_jsonw_put_str(w, "commit_time", out_time(when, t->f->commit_ns, true));
	dcp_jsonw_key(w, "commit_ns");
	dcp_jsonw_i64(w, t->f->commit_ns);
	dcp_jsonw_put_str_or_null(w, "why", t->f->complete ? t->error : t->f->why);
	if (t->counts) {
		dcp_jsonw_put_u64(w, "tensors", t->counts->tensors);
		dcp_jsonw_put_u64(w, "objects", t->counts->objects);
		dcp_jsonw_put_u64(w, "broken", t->counts->broken);
		dcp_jsonw_put_u64(w, "nbytes", t->counts->bytes);
		dcp_jsonw_put_u64(w, "elements", t->counts->elements);
	}
	dcp_jsonw_end(w);
}

static const char *state_of(const struct opened *t)
{
	return t->counts ? "complete" : t->f->complete ? "refused" : "incomplete";
}

static const char *why_not(const struct opened *t)
{
	return t->error ? t->error : t->f->why ? t->f->why : "incomplete";
}

/* clang-format off */
static const struct out_field version_fields[] = {
	{ "version", "VERSION", OUT_NAME }, { "format" }, { "state" },
	{ NULL, "STATE", OUT_STATE }, { "tensors", "TENSORS", OUT_COUNT, .none = "-" },
	{ "objects" }, { "broken" }, { "elements", "PARAMS", OUT_PARAMS, .none = "-" },
	{ "nbytes", "SIZE", OUT_BYTES, .none = "-" },
	{ NULL, "BYTES", OUT_COUNT, OUT_LONG, .none = "-" }, { "commit_time" },
	{ NULL, "SAVED" }, { "why" }, { NULL, "FORMAT" }, { NULL }
};
/* clang-format on */

/* A row of text or TSV; JSON has other members, in another order. */
static void put_version(struct out *o, const struct opened *t)
{
	const struct dcp_index_counts none = { 0 }, *n = t->counts ? t->counts : &none;
	char when[32], broken[48], count[32];

	snprintf(broken, sizeof(broken), "%s broken", out_count(count, n->broken));
	out_row(o);
	out_put_str(o, "version", t->f->name);
	out_put_str(o, "format", t->f->format->name);
	out_put_str(o, "state", state_of(t));
	out_put_str(o, "STATE", n->broken ? broken : state_of(t));
	if (t->counts || o->form == OUT_TSV) {
		out_put_u64(o, "tensors", n->tensors);
		out_put_u64(o, "objects", n->objects);
		out_put_u64(o, "broken", n->broken);
		out_put_u64(o, "elements", n->elements);
		out_put_u64(o, "nbytes", n->bytes);
		out_put_u64(o, "BYTES", n->bytes);
	}
	out_put_str(o, "commit_time", out_time(when, t->f->commit_ns, true));
	out_put_str(o, "SAVED", out_time(when, t->f->commit_ns, false));
	out_put_str(o, "why", t->counts ? "" : why_not(t));
	out_put_str(o, "FORMAT", t->f->format->name);
	out_row_end(o);
}

/* A line for parts of a version that dcpfs does not read. */
static void note_left_out(struct dcp_buf *notes, const struct out *o, const char *version,
			  const char *names)
{
	dcp_auto_buf struct dcp_buf line = DCP_BUF_INIT;

	if (!names)
		return;
	out_text(&line, version);
	dcp_buf_str(&line, ": left out, as dcpfs does not read it: ");
	out_text(&line, names);
	out_wrap(notes, 0, 2, o->width, line.p ? line.p : "");
	dcp_buf_str(notes, "\n");
}

/* The reason why a version is bad is printed below the table, where it has room. */
static void note_version(struct dcp_buf *notes, const struct out *o, const char *source,
			 const struct opened *t)
{
	dcp_auto_buf struct dcp_buf line = DCP_BUF_INIT;
	char n[32];

	out_text(&line, t->f->name);
	dcp_buf_str(&line, ": ");
	if (t->counts && t->counts->broken == 0)
		return;
	if (t->counts) {
		dcp_buf_printf(&line, "%s key%s cannot be read; dcpfs ls -l ",
			       out_count(n, t->counts->broken), dcp_s(t->counts->broken));
		out_text(&line, source);
		dcp_buf_str(&line, " ");
		out_text(&line, t->f->name);
		dcp_buf_str(&line, " says why");
	} else {
		out_text(&line, why_not(t));
	}
	out_wrap(notes, 0, 2, o->width, line.p ? line.p : "");
	dcp_buf_str(notes, "\n");
}

/* Versions without an index are indexed now, several at a time, since that is mostly waiting for a
 * disk or a server. */
enum { JOBS = 8 };

struct opening {
	struct pick *p;
	struct opened *all;
	size_t *next;
	struct dcp_store_opts store; /* only one shows progress */
};

static void *open_next(void *ctx)
{
	struct opening *w = ctx;

	for (;;) {
		size_t i = __atomic_fetch_add(w->next, 1, __ATOMIC_RELAXED);
		dcp_auto_version struct dcp_version *v = NULL;
		struct dcp_err err = { 0 };
		struct opened *t;
		const char *names;

		if (i >= w->p->ck.scan.n)
			return NULL;
		t = &w->all[i];
		t->f = &w->p->ck.scan.found[i];
		if (t->f->complete &&
		    dcp_version_open(w->p->ck.source, t->f, &w->store, &v, &err) < 0)
			t->error = strdup(reason_of(&err, t->f));
		if (!v)
			continue;
		t->own = *dcp_index_counts(dcp_version_index(v));
		t->counts = &t->own;
		names = dcp_index_meta(dcp_version_index(v), "left_out");
		t->left_out = names ? strdup(names) : NULL;
	}
}

static void open_all(struct pick *p, struct opened *all)
{
	struct opening jobs[JOBS];
	size_t next = 0;

	for (unsigned i = 0; i < JOBS; i++) {
		jobs[i] = (struct opening){ p, all, &next, p->ck.store };
		jobs[i].store.progress = i ? NULL : p->ck.store.progress;
	}
	dcp_team_run((unsigned)DCP_MIN((size_t)JOBS, p->ck.scan.n), open_next, jobs,
		     sizeof(*jobs));
	progress_finish(&p->progress);
}

/* Put all versions of @p->ck.scan, and the lines below the table into @notes. -ENOMEM. */
static int put_versions(struct pick *p, struct out *o, struct dcp_buf *notes)
{
	dcp_auto_free struct opened *all = calloc(p->ck.scan.n + 1, sizeof(*all));

	if (!all)
		return -ENOMEM;
	open_all(p, all);
	for (size_t i = 0; i < p->ck.scan.n; i++) {
		struct opened *t = &all[i];

		if (o->form == OUT_JSON)
			put_version_json(&o->json, t);
		else
			put_version(o, t);
		note_version(notes, o, p->ck.source, t);
		note_left_out(notes, o, t->f->name, t->left_out);
		free(t->error);
		free(t->left_out);
	}
	return 0;
}

static enum cmd_exit ls_version_names(const struct pick *p, struct out *o)
{
	for (size_t i = 0; i < p->ck.scan.n; i++) {
		out_text(&o->buf, p->ck.scan.found[i].name);
		dcp_buf_str(&o->buf, "\n");
	}
	return out_flush(o);
}

static enum cmd_exit ls_versions(struct pick *p, struct out *o)
{
	dcp_auto_buf struct dcp_buf notes = DCP_BUF_INIT;

	if (o->form == OUT_NAMES)
		return ls_version_names(p, o);
	out_list(o, NULL, version_fields);
	if (put_versions(p, o, &notes) < 0)
		return cmd_fail(CMD_ENV, "ls: %s", strerror(ENOMEM));
	out_list_end(o, true);
	if (o->form == OUT_TEXT && notes.p)
		dcp_buf_printf(&o->buf, "\n%s", notes.p);
	return out_flush(o);
}

/* ---- keys ---- */

struct keys {
	const struct ls_opts *ls;
	struct dcp_index *ix;
	struct out *o;
	struct dcp_buf notes; /* with -l: reasons below the table */
	uint64_t shown, tensors, objects, elements, bytes; /* the last two: without aliases */
	uint64_t *seen, turn; /* by file number; see count_files() */
	size_t nfiles;
};

/* Mark file number @file as seen in this turn. 1 if it was not. */
static size_t see_file(struct keys *k, uint32_t file)
{
	if (file >= k->nfiles || k->seen[file] == k->turn)
		return 0;
	k->seen[file] = k->turn;
	return 1;
}

/* Number of different files among the pieces; each call is a turn. */
static size_t count_files(struct keys *k, const struct dcp_tensor *t)
{
	size_t n = 0;

	k->turn++;
	for (size_t i = 0; i < t->npieces; i++) {
		n += see_file(k, t->pieces[i].file);
		for (uint32_t j = 0; j < t->pieces[i].nmore; j++)
			n += see_file(k, t->pieces[i].more[j].file);
	}
	return n;
}

static uint64_t elements_of(const struct dcp_tensor *t)
{
	uint64_t n;

	return dcp_shape_volume(t->shape, t->ndim, &n) ? n : UINT64_MAX;
}

static void add_up(uint64_t *sum, uint64_t n)
{
	if (dcp_ckd_add(sum, *sum, n))
		*sum = UINT64_MAX;
}

static void count_key(struct keys *k, const struct dcp_row *row, const struct dcp_tensor *t)
{
	++*(t ? &k->tensors : &k->objects);
	if (!t || row->alias_of)
		return;
	add_up(&k->elements, elements_of(t));
	add_up(&k->bytes, row->nbytes);
}

/* clang-format off */
static const struct out_field key_fields[] = {
	{ "kind", .only = OUT_ONLY_TSV }, { "key", "KEY", OUT_NAME }, { "name" },
	{ "dtype", "DTYPE", .least = 11 }, { "type", .only = OUT_ONLY_JSON },
	{ "shape", "SHAPE", .least = 14 }, { "elements" }, { "nbytes", "SIZE", OUT_BYTES },
	{ NULL, "BYTES", OUT_COUNT, OUT_LONG }, { "pieces", "PIECES", OUT_COUNT, OUT_LONG },
	{ "files", "FILES", OUT_COUNT }, { "alias_of" }, { "error" }, { NULL, "NOTE" },
	{ NULL }
};
/* clang-format on */

/* An object has no shape; in TSV its counts are empty. */
static void put_key(struct keys *k, const struct dcp_row *row, const struct dcp_tensor *t,
		    const struct dcp_object *ob)
{
	const char *error = t ? t->error : ob->error;
	struct out *o = k->o;
	const char *type = t ? t->dtype_name : ob->type;

	out_row(o);
	out_put_str(o, "kind", t ? "tensor" : "object");
	out_put_str(o, "key", row->key);
	out_put_str(o, "name", row->name);
	if (!t && !type && o->form == OUT_TEXT)
		type = "?";
	out_put_str(o, t || o->form != OUT_JSON ? "dtype" : "type", type);
	if (t)
		out_put_dims(o, "shape", t->shape, t->ndim);
	if (t || o->form == OUT_TSV) {
		out_put_u64(o, "elements", t ? elements_of(t) : 0);
		out_put_u64(o, "nbytes", row->nbytes);
		out_put_u64(o, "BYTES", row->nbytes);
		out_put_u64(o, "pieces", t ? t->npieces : 0);
		out_put_u64(o, "files", t ? count_files(k, t) : 0);
	}
	if (t)
		out_put_str(o, "alias_of", t->alias_of);
	out_put_str(o, "error", error);
	out_put_str(o, "NOTE", error ? "broken" : t && t->alias_of ? "alias" : "");
	out_row_end(o);
}

/* The reason of a key is printed below the table, where it has room. */
static void note_key(struct keys *k, const char *key, const char *error)
{
	dcp_auto_buf struct dcp_buf line = DCP_BUF_INIT;

	out_text(&line, key);
	dcp_buf_str(&line, ": ");
	out_text(&line, error);
	out_wrap(&k->notes, 0, 2, k->o->width, line.p ? line.p : "");
	dcp_buf_str(&k->notes, "\n");
}

static int put_one_key(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	struct keys *k = ctx;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	struct dcp_tensor t = { 0 };
	struct dcp_object ob = { 0 };
	int rc;

	if (k->ls->keys && !dcp_name_matches(k->ls->keys, row->key))
		return 0;
	k->shown++;
	if (k->ls->form == OUT_NAMES) {
		out_text(&k->o->buf, row->key);
		dcp_buf_str(&k->o->buf, "\n");
		return 0;
	}
	rc = kind == DCP_ROW_TENSOR ? dcp_index_tensor(k->ix, row->id, &arena, &t, NULL)
				    : dcp_index_object(k->ix, row->id, &arena, &ob, NULL);
	if (rc == 0) {
		const struct dcp_tensor *is = kind == DCP_ROW_TENSOR ? &t : NULL;
		const char *error = is ? t.error : ob.error;

		count_key(k, row, is);
		put_key(k, row, is, &ob);
		if (error && k->ls->lengthy && k->ls->form == OUT_TEXT)
			note_key(k, row->key, error);
	}
	return rc;
}

static int put_each_key(struct keys *k)
{
	bool json = k->ls->form == OUT_JSON;
	int rc;

	out_list(k->o, "tensors", key_fields);
	rc = json ? dcp_each_row(k->ix, DCP_ROW_TENSOR, put_one_key, k)
		  : dcp_all_rows(k->ix, put_one_key, k);
	out_list_end(k->o, true);
	if (!json)
		return rc;
	out_list(k->o, "objects", key_fields);
	if (rc == 0)
		rc = dcp_each_row(k->ix, DCP_ROW_OBJECT, put_one_key, k);
	out_list_end(k->o, true);
	return rc;
}

/* "77 tensors, 52.1k parameters (52,085), 62.6 kB; 70 objects" */
static void put_total(const struct keys *k)
{
	struct dcp_buf *b = &k->o->buf;
	char n[32], size[OUT_SIZE];

	dcp_buf_printf(b, "\n%s tensor%s, ", out_count(n, k->tensors), dcp_s(k->tensors));
	dcp_buf_printf(b, "%s parameter%s ", out_params(size, k->elements), dcp_s(k->elements));
	dcp_buf_printf(b, "(%s), ", out_count(n, k->elements));
	dcp_buf_printf(b, "%s; ", out_size(size, k->bytes));
	dcp_buf_printf(b, "%s object%s\n", out_count(n, k->objects), dcp_s(k->objects));
}

static enum cmd_exit ls_keys(struct pick *p, const struct ls_opts *ls, struct out *o)
{
	struct keys k = { .ls = ls, .ix = dcp_version_index(p->ck.v), .o = o };
	bool json = ls->form == OUT_JSON;
	enum cmd_exit code;
	int rc;

	dcp_index_files(k.ix, &k.nfiles);
	k.seen = calloc(k.nfiles + 1, sizeof(*k.seen));
	if (!k.seen)
		return cmd_fail(CMD_ENV, "out of memory");
	if (json) {
		dcp_jsonw_object(&o->json);
		dcp_jsonw_put_str(&o->json, "version", p->ck.name);
		dcp_jsonw_put_str(&o->json, "format", p->ck.found->format->name);
		if (dcp_index_meta(k.ix, "left_out"))
			dcp_jsonw_put_str(&o->json, "left_out",
					  dcp_index_meta(k.ix, "left_out"));
		if (p->ck.base)
			hf_put_model_json(p->ck.v, &o->json);
	}
	rc = put_each_key(&k);
	if (json) {
		dcp_jsonw_put_u64(&o->json, "elements", k.elements);
		dcp_jsonw_put_u64(&o->json, "nbytes", k.bytes);
		dcp_jsonw_end(&o->json);
	} else if (ls->form == OUT_TEXT) {
		put_total(&k);
		if (p->ck.base)
			hf_put_model(p->ck.v, &o->buf);
		note_left_out(&k.notes, o, p->ck.name, dcp_index_meta(k.ix, "left_out"));
	}
	if (k.notes.p)
		dcp_buf_printf(&o->buf, "\n%s", k.notes.p);
	dcp_buf_finish(&k.notes);
	free(k.seen);
	if (rc < 0) {
		out_finish(o);
		return pick_unreadable(p, rc);
	}
	if (ls->keys && k.shown == 0) {
		out_finish(o);
		return pick_no_match(p, ls->keys, "key");
	}
	code = out_flush(o);
	return code == CMD_OK && p->ck.base ? hf_check(p->ck.v, &ls->pick.hf, "ls", false)
					    : code;
}

static enum cmd_exit run_ls(const void *opts_in, const struct opt_args *args)
{
	const struct ls_opts *ls = opts_in;
	struct pick p;
	struct out o;
	enum cmd_exit code = pick_source(&p, args->operand[PICK_SOURCE], &ls->pick, false);
	const char *version =
		args->operand[PICK_VERSION] ? args->operand[PICK_VERSION] : p.ck.wanted;

	out_init(&o, ls->form);
	o.lengthy = ls->lengthy;
	if (code == CMD_OK && (ls->versions || (!p.ck.scan.single && !version && !ls->keys &&
						!hf_is_wanted(&ls->pick.hf)))) {
		code = ls_versions(&p, &o);
	} else if (code == CMD_OK) {
		code = pick_version(&p, version);
		if (code == CMD_OK)
			code = ls_keys(&p, ls, &o);
	}
	out_finish(&o);
	pick_finish(&p);
	return code;
}

const struct cmd cmd_ls = {
	.name = "ls",
	.what = "list versions, or the keys of one version",
	.about = "List the versions that SOURCE holds, or the keys of one of them. VERSION is "
		 "a name, the number in it, or latest. Parameters are elements of tensors, "
		 "aliases not counted again.",
	.operands = operands,
	.opts = opts,
	.size = sizeof(struct ls_opts),
	.run = run_ls,
	.examples = { "dcpfs ls /data/run1", "dcpfs ls /data/run1 2500 --keys '*.bias'",
		      "dcpfs ls /data/run1 latest --json | jq '.tensors[].key'" },
};

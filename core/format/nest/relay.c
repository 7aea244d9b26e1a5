/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/nest/relay.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/base/jsonw.h"
#include "core/format/format.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/json.h"

/* The place of file number i of the inner family. */
struct moved {
	uint64_t base;
	uint32_t number; /* at the outer sink */
};

/* Keep a failure of the outer sink: a caller that reads several parts must tell it from a failure
 * of one part. */
static int note_failure(struct dcp_relay *r, int rc)
{
	if (rc < 0)
		r->rc = rc;
	return rc;
}

static int place_file(struct dcp_relay *r, const char *name, struct dcp_place *out)
{
	int n;

	if (r->place)
		return r->place(r->ctx, name, out);
	n = snprintf(out->name, sizeof(out->name), "%s%s", r->below ?: "", name);
	return n < 0 || (size_t)n >= sizeof(out->name) ? -ENAMETOOLONG : 0;
}

static int emit_file(struct dcp_relay *r, const char *name, bool unpacked, uint32_t *number)
{
	struct moved m = { 0 }, *all = DCP_ITEMS(r->files, struct moved);
	size_t n = r->files.n / sizeof(m);
	struct dcp_place at = { 0 };
	int rc = place_file(r, name, &at);

	/* a compressed file inside an archive or another compressed file */
	if (rc == 0 && unpacked && (at.base || at.unpacked))
		rc = -ENOTSUP;
	if (rc == 0)
		rc = note_failure(r, at.unpacked || unpacked
					     ? dcp_emit_unpacked(r->to, at.name, &m.number)
					     : dcp_emit_file(r->to, at.name, &m.number));
	if (rc < 0)
		return rc;
	m.base = at.base;
	for (size_t i = 0; i < n; i++)
		if (all[i].number == m.number && all[i].base == m.base) {
			*number = (uint32_t)i;
			return 0;
		}
	dcp_buf_add(&r->files, &m, sizeof(m));
	*number = (uint32_t)n;
	return dcp_buf_error(&r->files);
}

static int on_file(void *ctx, const char *name, uint32_t *number)
{
	return emit_file(ctx, name, false, number);
}

static int on_unpacked(void *ctx, const char *name, uint32_t *number)
{
	return emit_file(ctx, name, true, number);
}

/* Put the prefix in front of a key and a path: "prefix.key" and "prefix" / ... */
static int put_prefix(struct dcp_relay *r, const char **key, const char *const **path,
		      size_t *npath)
{
	if (!r->prefix)
		return 0;
	dcp_buf_reset(&r->text);
	dcp_buf_reset(&r->path);
	dcp_buf_printf(&r->text, **key ? "%s.%s" : "%s%s", r->prefix, *key);
	dcp_buf_add(&r->path, &r->prefix, sizeof(r->prefix));
	dcp_buf_add(&r->path, *path, *npath * sizeof(**path));
	if (dcp_buf_error(&r->text) || dcp_buf_error(&r->path))
		return -ENOMEM;
	*key = r->text.p;
	*path = DCP_ITEMS(r->path, const char *);
	*npath += 1;
	return 0;
}

/* Put the prefix in front of the key of an earlier tensor, which was emitted with it, too. */
static int put_alias(struct dcp_relay *r, const char **alias)
{
	if (!*alias || !r->prefix)
		return 0;
	dcp_buf_reset(&r->alias);
	dcp_buf_printf(&r->alias, **alias ? "%s.%s" : "%s%s", r->prefix, *alias);
	*alias = r->alias.p;
	return dcp_buf_error(&r->alias);
}

/* Decode the JSON string that starts at @text[@at] ('"') into @r->alias. Returns its length in the
 * text, or 0: it is cut off, or cannot be a key. */
static size_t take_string(struct dcp_relay *r, const char *text, size_t at, size_t n)
{
	dcp_auto_json struct dcp_json *v = NULL;
	size_t end = at + 1;

	while (end < n && text[end] != '"')
		end += text[end] == '\\' ? 2 : 1;
	if (end >= n || dcp_json_parse(text + at, end + 1 - at, &v, NULL) < 0)
		return 0;
	dcp_buf_reset(&r->alias);
	dcp_buf_str(&r->alias, dcp_json_str(v) ? dcp_json_str(v) : "");
	dcp_buf_add(&r->alias, "", 0);
	return end + 1 - at;
}

/*
 * Put the prefix into references in an object, {"$tensor":"key"}. Nothing else can have this form:
 * dicts with a key that begins with '$' are written differently, and quotes in strings are escaped.
 */
static int put_references(struct dcp_relay *r, struct dcp_object *o)
{
	static const char mark[] = "{\"$tensor\":";
	const size_t skip = sizeof(mark) - 1;
	const char *text = o->json, *hit;
	size_t done = 0;

	dcp_buf_reset(&r->json);
	while (r->prefix && text &&
	       (hit = memmem(text + done, o->json_len - done, mark, skip))) {
		size_t at = (size_t)(hit - text) + skip;
		size_t len = at < o->json_len ? take_string(r, text, at, o->json_len) : 0;

		dcp_buf_add(&r->json, text + done, at - done);
		done = at;
		if (len) { /* "prefix. replaces the opening quote */
			struct dcp_jsonw w;

			dcp_jsonw_init(&w, &r->json, false);
			dcp_jsonw_str(&w, r->prefix);
			r->json.n--;
			dcp_buf_str(&r->json, *r->alias.p ? "." : "");
			done++;
		}
	}
	if (done == 0)
		return dcp_buf_error(&r->json);
	dcp_buf_add(&r->json, text + done, o->json_len - done);
	o->json = r->json.p;
	o->json_len = r->json.n;
	return dcp_buf_error(&r->json);
}

/* Translate a file and an offset of the inner checkpoint to the outer one. False: @off does not
 * fit. */
static bool move_place(const struct moved *all, uint32_t *file, uint64_t *off)
{
	const struct moved *m = &all[*file];

	*file = m->number;
	return !dcp_ckd_add(off, *off, m->base);
}

static int move_pieces(struct dcp_relay *r, struct dcp_tensor *t)
{
	const struct moved *all = DCP_ITEMS(r->files, struct moved);
	size_t nfiles = r->files.n / sizeof(*all);
	struct dcp_piece *p;
	struct dcp_term *term;
	bool fits = true;

	dcp_buf_reset(&r->pieces);
	dcp_buf_reset(&r->terms);
	dcp_buf_add(&r->pieces, t->pieces, t->npieces * sizeof(*t->pieces));
	for (size_t i = 0; i < t->npieces; i++)
		dcp_buf_add(&r->terms, t->pieces[i].more, t->pieces[i].nmore * sizeof(*term));
	if (dcp_buf_error(&r->pieces) || dcp_buf_error(&r->terms))
		return -ENOMEM;
	p = DCP_ITEMS(r->pieces, struct dcp_piece);
	term = DCP_ITEMS(r->terms, struct dcp_term);
	for (size_t i = 0; i < t->npieces; i++) {
		if (p[i].file >= nfiles)
			return -EINVAL;
		fits &= move_place(all, &p[i].file, &p[i].off);
		p[i].more = term;
		for (uint32_t k = 0; k < p[i].nmore; k++, term++) {
			if (term->file >= nfiles)
				return -EINVAL;
			fits &= move_place(all, &term->file, &term->off);
		}
	}
	t->pieces = p;
	t->ncopies = 0; /* their files have numbers of the inner checkpoint */
	if (!fits)
		t->error = "its place in the file does not fit in 64 bits";
	return 0;
}

static int on_tensor(void *ctx, const struct dcp_tensor *emitted)
{
	struct dcp_relay *r = ctx;
	struct dcp_tensor t = *emitted;
	int rc = move_pieces(r, &t);

	if (rc == 0)
		rc = put_alias(r, &t.alias_of);
	if (rc == 0)
		rc = put_prefix(r, &t.key, &t.path, &t.npath);
	return rc < 0 ? rc : note_failure(r, dcp_emit_tensor(r->to, &t));
}

/* Translate the stored bytes of an object to the outer checkpoint's files. */
static int move_stored(const struct dcp_relay *r, struct dcp_object *o, struct dcp_stretch *s)
{
	const struct moved *all = DCP_ITEMS(r->files, struct moved);

	if (!o->stored)
		return 0;
	*s = *o->stored;
	if (s->file >= r->files.n / sizeof(*all))
		return -EINVAL;
	o->stored = dcp_ckd_add(&s->off, s->off, all[s->file].base) ? NULL : s;
	s->file = all[s->file].number;
	return 0;
}

static int emit_object(struct dcp_relay *r, const struct dcp_object *emitted,
		       int (*emit)(const struct dcp_sink *s, const struct dcp_object *o))
{
	struct dcp_object o = *emitted;
	struct dcp_stretch stored;
	int rc = move_stored(r, &o, &stored);

	if (rc == 0)
		rc = put_prefix(r, &o.key, &o.path, &o.npath);

	if (rc == 0)
		rc = put_references(r, &o);
	return rc < 0 ? rc : note_failure(r, emit(r->to, &o));
}

static int on_object(void *ctx, const struct dcp_object *o)
{
	return emit_object(ctx, o, dcp_emit_object);
}

static int on_item(void *ctx, const struct dcp_object *o)
{
	return emit_object(ctx, o, dcp_emit_item);
}

static int on_meta(void *ctx, const char *name, const char *value)
{
	struct dcp_relay *r = ctx;
	dcp_auto_buf struct dcp_buf file = DCP_BUF_INIT;

	if (strcmp(name, "left_out") == 0) {
		dcp_buf_printf(&file, "%s%s", r->below ? r->below : "", value);
		if (dcp_buf_error(&file))
			return -ENOMEM;
		value = file.p;
	}
	return note_failure(r, dcp_emit_meta(r->to, name, value));
}

static int on_sidecar(void *ctx, const char *name)
{
	struct dcp_relay *r = ctx;
	struct dcp_place at = { 0 };
	int rc = place_file(r, name, &at);

	if (rc < 0 || at.base || at.unpacked)
		return rc; /* a file inside an archive cannot be passed through */
	return note_failure(r, dcp_emit_sidecar(r->to, at.name));
}

static int on_said(void *ctx, const char *file, const char *name, const char *value)
{
	struct dcp_relay *r = ctx;
	struct dcp_place at = { 0 };
	int rc = place_file(r, file, &at);

	return rc < 0 ? rc : note_failure(r, dcp_emit_said(r->to, at.name, name, value));
}

struct dcp_sink dcp_relay_sink(struct dcp_relay *r)
{
	return (struct dcp_sink){
		.file = on_file,
		.unpacked = on_unpacked,
		.tensor = on_tensor,
		.object = on_object,
		.item = on_item,
		.meta = on_meta,
		.sidecar = on_sidecar,
		.said = on_said,
		.ctx = r,
	};
}

struct dcp_load dcp_relay_load(struct dcp_relay *r, const struct dcp_load *in,
			       const struct dcp_dir *dir)
{
	struct dcp_load out = *in;

	r->sink = dcp_relay_sink(r);
	out.dir = dir;
	out.sink = &r->sink;
	out.unpack = NULL;
	return out;
}

void dcp_relay_finish(struct dcp_relay *r)
{
	dcp_buf_finish(&r->files);
	dcp_buf_finish(&r->pieces);
	dcp_buf_finish(&r->terms);
	dcp_buf_finish(&r->text);
	dcp_buf_finish(&r->path);
	dcp_buf_finish(&r->alias);
	dcp_buf_finish(&r->json);
}

enum { MAX_DEEP = 3 };

/* ---- files that are checkpoints by themselves ---- */

static int load_group(const struct dcp_load *in, const struct dcp_format *format,
		      const char *group, bool alone, struct dcp_err *err)
{
	dcp_auto_relay struct dcp_relay r = { .to = in->sink, .prefix = alone ? NULL : group };
	dcp_auto_dir struct dcp_dir part = { 0 };
	struct dcp_load sub;
	int rc = dcp_format_group(format, in->dir, group, &part);

	if (rc < 0)
		return dcp_fail(err, rc, "%.300s: %s", in->dir->path, dcp_err_noted(rc));
	sub = dcp_relay_load(&r, in, &part);
	return format->load(&sub, err);
}

static int load_groups(const struct dcp_load *in, const struct dcp_format *format,
		       struct dcp_err *err)
{
	struct dcp_intern groups = { 0 };
	char group[DCP_GROUP_MAX];
	uint32_t number;
	int rc = 0;

	for (size_t i = 0; rc >= 0 && i < in->dir->n; i++) {
		const struct dcp_dirent *e = &in->dir->entries[i];

		if (!e->is_dir && format->group(e->name, group))
			rc = dcp_intern_add(&groups, group, strlen(group) + 1, DCP_INTERN_NONE,
					    &number);
	}
	for (uint32_t i = 0; rc >= 0 && i < groups.n; i++)
		rc = load_group(in, format, dcp_intern_text(&groups, i), groups.n == 1, err);
	dcp_intern_finish(&groups);
	return rc < 0 ? rc : 0;
}

/* ---- directories ---- */

static int fail_no_checkpoint(const struct dcp_dir *dir, const char *why, struct dcp_err *err)
{
	if (why && *why)
		return dcp_fail(err, -EINVAL, "%.200s: %.200s", dir->path, why);
	return dcp_fail(err, -EINVAL, "%.200s holds no checkpoint: %s%.100s%s%s", dir->path,
			dir->n ? "only " : "it is empty", dir->n ? dir->entries[0].name : "",
			dir->n > 1 ? " and more" : "",
			dir->n > 1 && dir->entries[0].is_dir
				? "; it is read as one version, so unpack what holds several"
				: "");
}

static int load_deep(const struct dcp_load *in, int deep, struct dcp_err *err);

static int load_below(const struct dcp_load *in, const char *name, const char *prefix, int deep,
		      struct dcp_err *err)
{
	char below[NAME_MAX + 2];
	dcp_auto_relay struct dcp_relay r = { .to = in->sink,
					      .below = below,
					      .prefix = prefix };
	dcp_auto_dir struct dcp_dir dir = { 0 };
	struct dcp_load sub;
	int rc = dcp_dir_open_at(in->dir, name, &dir, err);

	if (rc < 0)
		return rc;
	snprintf(below, sizeof(below), "%s/", name);
	sub = dcp_relay_load(&r, in, &dir);
	return load_deep(&sub, deep, err);
}

static int load_deep(const struct dcp_load *in, int deep, struct dcp_err *err)
{
	char why[256] = "";
	enum dcp_match match;
	const struct dcp_format *format =
		dcp_format_probe_in(in->formats, NULL, in->dir, &match, why, sizeof(why));

	if (format && match == DCP_MATCH_YES)
		return format->load(in, err);
	if (format && match == DCP_MATCH_MANY)
		return load_groups(in, format, err);
	if (!format && deep < MAX_DEEP && in->dir->n == 1 && in->dir->entries[0].is_dir)
		return load_below(in, in->dir->entries[0].name, NULL, deep + 1, err);
	return fail_no_checkpoint(in->dir, why, err);
}

int dcp_inner_load(const struct dcp_load *in, struct dcp_err *err)
{
	return load_deep(in, 0, err);
}

int dcp_inner_load_at(const struct dcp_load *in, const char *name, const char *prefix,
		      struct dcp_err *err)
{
	return load_below(in, name, prefix, MAX_DEEP, err);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/model/name.h"
#include "core/model/tensor.h"
#include "core/origin/archive/archive.h"
#include "core/origin/dir/dir.h"
#include "core/parse/parse.h"
#include "core/parse/pickle/pickle.h"
#include "core/store/view/view.h"
#include "tools/cmd.h"
#include "tools/out.h"
#include "tools/pick.h"
#include "tools/trust/trust.h"

enum {
	MAX_DEPTH = 16, /* of directories in the version's */
	MAX_NESTED = 4, /* of archives in archives */
	LEGACY = 5,     /* pickles in a row in a file of torch before 1.6; storages follow */
	MAX_ROW = 64,   /* pickles in a row that are looked at */
	MAX_OBJECT = 1 << 26, /* bytes of a compressed object that is decoded */
	MAX_HEADER = 1 << 20, /* of .npy */
};

struct scan_opts {
	int form;
	bool all;
	struct opt_texts allow;
	struct pick_opts pick;
};

static const struct opt opts[] = {
	{ 'a', "all", NULL, "also names that torch, numpy and trainers save", OPT_FLAG,
	  .off = offsetof(struct scan_opts, all) },
	{ 0, "allow", "NAME", "that name or pattern is no danger here; again for more",
	  OPT_TEXTS, .off = offsetof(struct scan_opts, allow) },
	PICK_OPT_VERSION,
	PICK_OPTS(struct scan_opts),
	PICK_OPTS_ROWS(struct scan_opts),
	OPT_END
};

static const struct opt_operand operands[] = { PICK_OPERANDS, { 0 } };

struct found {
	enum judgement judged;
	const char *name; /* "os.system"; NULL: it is computed, or could not be looked at */
	const char *file, *key,
		*why; /* key: a key, or a member of an archive; NULL: the file itself */
	uint64_t off, count;
};

struct scanning {
	const struct scan_opts *o;
	struct pick p;
	struct dcp_buf found;   /* struct found, in the order of the streams */
	const char *file, *key; /* of the stream that is scanned */
	uint64_t base;          /* where it begins in the file */
	uint64_t streams;
	bool sure, named; /* the stream is a pickle; it has a name */
	struct dcp_arena arena;
	struct out out;
};

/* ---- one stream ---- */

static int add_found(struct scanning *w, enum judgement judged, const char *name,
		     const char *why, uint64_t off)
{
	struct found *all = DCP_ITEMS(w->found, struct found), f = { 0 };

	/* A name that a stream has several times is one row. */
	for (size_t i = DCP_NITEMS(w->found, struct found); i-- > 0 && name;) {
		if (all[i].file != w->file || all[i].key != w->key)
			break;
		if (all[i].name && strcmp(all[i].name, name) == 0) {
			all[i].count++;
			return 0;
		}
	}
	f = (struct found){ .judged = judged,
			    .file = w->file,
			    .key = w->key,
			    .off = w->base + off,
			    .count = 1 };
	f.name = name ? dcp_arena_strdup(&w->arena, name) : NULL;
	f.why = why ? dcp_arena_strdup(&w->arena, why) : NULL;
	if ((name && !f.name) || (why && !f.why))
		return -ENOMEM;
	dcp_buf_add(&w->found, &f, sizeof(f));
	return dcp_buf_error(&w->found);
}

static int leave_out(struct scanning *w, const char *why, uint64_t off)
{
	return add_found(w, JUDGED_UNKNOWN, NULL, why, off);
}

/* Identifiers with dots between them, in any language. */
static bool is_python_name(const char *s)
{
	for (const char *p = s; *p; p++)
		if (!isalnum((unsigned char)*p) && *p != '_' && *p != '.' &&
		    (unsigned char)*p < 0x80)
			return false;
	return *s;
}

/* -ENOMSG: not a pickle, but text or numbers that begin like a pickle. */
static int note_name(void *ctx, const char *module, const char *name, uint64_t off)
{
	struct scanning *w = ctx;
	char whole[2 * DCP_GLOBALS_MAX_NAME + 2];
	enum judgement judged;

	if (!w->sure && !w->named &&
	    (!module || !is_python_name(module) || !is_python_name(name)))
		return -ENOMSG;
	w->named = true;
	if (!module)
		return leave_out(w, "the name is computed", off);
	snprintf(whole, sizeof(whole), "%s.%s", module, name);
	judged = judge(module, name);
	/* A pattern for names of a module does not match attributes of these names. */
	for (size_t i = 0; i < w->o->allow.n; i++)
		if (strchr(name, '.') ? strcmp(w->o->allow.v[i], whole) == 0
				      : dcp_name_matches(w->o->allow.v[i], whole))
			judged = JUDGED_OWN;
	return add_found(w, judged, whole, NULL, off);
}

static bool ends_in(const char *s, const char *const *list)
{
	size_t n = strlen(s);

	for (size_t i = 0; list[i]; i++)
		if (n >= strlen(list[i]) && strcmp(s + n - strlen(list[i]), list[i]) == 0)
			return true;
	return false;
}

/* Names of files that readers unpickle; other files may be pickles, too. */
static const char *const pickles[] = { ".pkl",    ".pickle", ".p",      ".pt",       ".pth",
				       ".bin",    ".ckpt",   ".npy",    ".pdparams", ".pdopt",
				       ".states", ".dat",    ".joblib", ".metadata", NULL };

/* Does @head begin a pickle of protocol 2 or more? Older protocols have no mark. */
static bool is_marked(const uint8_t *head, size_t n)
{
	return n >= 2 && head[0] == 0x80 && head[1] <= 5;
}

/*
 * Scan at most @most pickles in a row from @off. @sure: the first is a pickle, so damage of it is
 * reported; otherwise damage is reported only after a name was found. Pickles before protocol 2 are
 * recognised only by such contents.
 */
static int scan_pickles(struct scanning *w, const struct dcp_source *src, uint64_t off,
			bool sure, unsigned most)
{
	bool marked = false;

	for (unsigned i = 0; i < most && off < src->size; i++) {
		size_t n = (size_t)DCP_MIN(src->size - off, (uint64_t)2);
		struct dcp_err err = { 0 };
		uint64_t end;
		uint8_t head[2];
		int rc = dcp_source_read(src, off, head, n);

		if (rc == 0) {
			marked = is_marked(head, n);
			w->sure = i ? i < LEGACY && marked : sure;
			w->named = false;
			rc = dcp_globals(src, off, &end, note_name, w, &err);
			w->streams += i == 0 && (w->sure || w->named || rc == 0);
		}
		if (rc == -EBADMSG && (w->sure || w->named))
			return leave_out(w, err.msg, end);
		if (rc < 0)
			return rc == -EBADMSG || rc == -ENOMSG ? 0
			       : rc == -ENOMEM                 ? rc
					       : leave_out(w, strerror(-rc), off);
		off = end;
	}
	return most > 1 && off < src->size && (marked || w->named)
		       ? leave_out(w, "more pickles follow", off)
		       : 0;
}

/* An array of objects is a pickle after the header. */
static int scan_npy(struct scanning *w, const struct dcp_source *src, const uint8_t *head,
		    size_t n)
{
	uint64_t header = n < 12 ? 0
			  : head[6] == 1
				  ? head[8] | (unsigned)head[9] << 8
				  : head[8] | (unsigned)head[9] << 8 |
					    (unsigned)head[10] << 16 | (unsigned)head[11] << 24;
	size_t from = n >= 12 && head[6] == 1 ? 10 : 12;
	char *text;
	bool has;
	int rc;

	if (!header || header > MAX_HEADER || from + header > src->size)
		return 0;
	text = calloc(1, header + 1);
	if (!text)
		return -ENOMEM;
	rc = dcp_source_read(src, from, text, header);
	/* numpy evaluates the header, so the O of objects may be spelt by an escape. */
	has = rc == 0 && strpbrk(text, "O\\");
	free(text);
	return has ? scan_pickles(w, src, from + header, false, 1) : rc;
}

static int scan_stream(struct scanning *w, const struct dcp_source *src, const char *name,
		       unsigned depth, bool *whole);
static int scan_items(struct scanning *w, const struct dcp_source *src);

/* Is @name a storage of torch.save, ".../data/12"? */
static bool is_storage(const char *name)
{
	const char *last = strrchr(name, '/');

	return last && last - name >= 5 && strncmp(last - 5, "/data", 5) == 0 && last[1] &&
	       last[1 + strspn(last + 1, "0123456789")] == '\0';
}

static int scan_zip(struct scanning *w, const struct dcp_source *src, unsigned depth,
		    bool *whole)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	const char *key = w->key;
	uint64_t base = w->base;
	struct dcp_zip_member *m;
	size_t n;
	int rc = dcp_zip_list(src, &arena, &m, &n, NULL);

	*whole = rc == 0;
	if (rc == -EBADMSG || rc == -ENOTSUP)
		return 0; /* several archives in a row: the index says where they are */
	for (size_t i = 0; rc == 0 && i < n; i++) {
		struct dcp_source in;
		uint64_t off;
		bool all;

		if (!key)
			w->key = dcp_arena_strdup(&w->arena, m[i].name);
		if (!m[i].stored) {
			if (ends_in(m[i].name, pickles))
				rc = leave_out(w, "compressed, and not looked at",
					       m[i].header_off);
			continue;
		}
		if (dcp_zip_data(src, &m[i], &off, NULL) < 0) {
			*whole = false;
			rc = leave_out(w, "a damaged member of an archive", m[i].header_off);
			continue;
		}
		in = dcp_source_window(src, off, m[i].size);
		w->base = base + off;
		if (is_storage(m[i].name))
			continue;
		rc = scan_stream(w, &in, m[i].name, depth + 1, &all);
		if (rc == 0 && !all)
			rc = scan_items(w, &in);
	}
	w->key = key;
	w->base = base;
	return rc;
}

/* *whole: the stream was understood, or is never unpickled. */
static int scan_stream(struct scanning *w, const struct dcp_source *src, const char *name,
		       unsigned depth, bool *whole)
{
	static const char *const sure[] = { ".pkl", ".pickle", NULL };
	uint8_t head[16] = { 0 };
	size_t n = (size_t)DCP_MIN(src->size, (uint64_t)sizeof(head));
	int rc = dcp_source_read(src, 0, head, n);

	*whole = false;
	if (rc < 0)
		return rc == -ENOMEM ? rc : leave_out(w, strerror(-rc), 0);
	if (n >= 4 && memcmp(head, "PK\3\4", 4) == 0)
		return depth < MAX_NESTED
			       ? scan_zip(w, src, depth, whole)
			       : leave_out(w, "an archive in archives, not looked at", 0);
	*whole = true;
	if (dcp_magic_is_safetensors(head, n))
		return 0;
	if (n >= 6 && memcmp(head, "\x93NUMPY", 6) == 0)
		return scan_npy(w, src, head, n);
	*whole = is_marked(head, n);
	return scan_pickles(w, src, 0, *whole || ends_in(name, sure), MAX_ROW);
}

/* ---- files ---- */

/* A member of an archive that begins at @off: a pickle? */
static int scan_member(struct scanning *w, const struct dcp_source *src, uint64_t off)
{
	static const char pkl[4] = ".pkl";
	char end[sizeof(pkl)]; /* of the name */
	uint8_t h[30];
	uint64_t data;
	size_t n;

	if (src->size - off < sizeof(h) || dcp_source_read(src, off, h, sizeof(h)) < 0)
		return 0;
	n = dcp_load_le16(h + 26);
	data = off + sizeof(h) + n + dcp_load_le16(h + 28);
	if (n < sizeof(pkl) || data >= src->size ||
	    dcp_source_read(src, off + sizeof(h) + n - sizeof(pkl), end, sizeof(pkl)) < 0 ||
	    memcmp(end, pkl, sizeof(pkl)) != 0)
		return 0;
	if (dcp_load_le16(h + 8) != 0) /* its method */
		return leave_out(w, "compressed, and not looked at", off);
	return scan_pickles(w, src, data, true, 1); /* another member follows */
}

/* Scan archives in a row, as in .distcp files, wherever they begin: the metadata may lie about
 * them. */
static int scan_items(struct scanning *w, const struct dcp_source *src)
{
	static const uint8_t magic[4] = { 'P', 'K', 3, 4 };
	enum { WINDOW = 1 << 20 };
	uint8_t *buf = malloc(WINDOW);
	uint64_t off = 0;
	int rc = buf ? 0 : -ENOMEM;

	while (rc == 0 && off + sizeof(magic) <= src->size) {
		size_t n = (size_t)DCP_MIN((uint64_t)WINDOW, src->size - off);
		const uint8_t *at = buf;

		rc = dcp_source_read(src, off, buf, n);
		while (rc == 0 &&
		       (at = memmem(at, n - (size_t)(at - buf), magic, sizeof(magic)))) {
			rc = scan_member(w, src, off + (uint64_t)(at - buf));
			at += sizeof(magic);
		}
		off += n < WINDOW ? n : n - sizeof(magic) + 1;
	}
	free(buf);
	return rc == -EIO ? leave_out(w, "it cannot be read", off) : rc;
}

static int scan_dir(struct scanning *w, const struct dcp_dir *dir, const char *within,
		    unsigned depth)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < dir->n; i++) {
		const struct dcp_dirent *e = &dir->entries[i];
		dcp_auto_input struct dcp_input in = { 0 };
		char name[4096];
		bool whole = false;

		bool fits = snprintf(name, sizeof(name), "%s%s%s", within, *within ? "/" : "",
				     e->name) < (int)sizeof(name);

		w->file = dcp_arena_strdup(&w->arena, name);
		w->key = NULL;
		w->base = 0;
		if (!w->file)
			return -ENOMEM;
		if (e->is_dir) {
			dcp_auto_dir struct dcp_dir below = { 0 };
			const char *why = e->is_link ? "a link to a directory, not followed"
					  : !fits    ? "its name is too long"
					  : depth == MAX_DEPTH
						  ? "a directory too deep, not looked at"
					  : dcp_dir_open_at(dir, e->name, &below, NULL) < 0
						  ? "it cannot be opened"
						  : NULL;

			rc = why ? leave_out(w, why, 0) : scan_dir(w, &below, name, depth + 1);
			continue;
		}
		if (!fits || dcp_dir_input(dir, e->name, &in, NULL) < 0) {
			rc = leave_out(w, fits ? "it cannot be opened" : "its name is too long",
				       0);
			continue;
		}
		rc = scan_stream(w, &in.src, e->name, 0, &whole);
		if (rc == 0 && !whole)
			rc = scan_items(w, &in.src);
	}
	return rc;
}

/* ---- items of the index ---- */

/* Place of an item that torch.distributed.checkpoint saved by itself. */
struct range {
	const char *file, *key;
	uint64_t off, end;
};

struct items {
	struct scanning *w;
	struct dcp_index *ix;
	const struct dcp_file_id *files;
	size_t nfiles;
	struct dcp_buf ranges;
};

static int add_range(struct items *it, const char *key, const struct dcp_stretch *s)
{
	struct range r = { .off = s->off, .end = s->off + s->nbytes };

	if (s->file >= it->nfiles)
		return 0;
	r.file = it->files[s->file].name;
	r.key = dcp_arena_strdup(&it->w->arena, key);
	dcp_buf_add(&it->ranges, &r, sizeof(r));
	return r.key ? dcp_buf_error(&it->ranges) : -ENOMEM;
}

static int take_tensor(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	struct items *it = ctx;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	struct dcp_tensor t;
	int rc = dcp_index_tensor(it->ix, row->id, &arena, &t, NULL);

	for (size_t i = 0; rc == 0 && i < t.npieces; i++) {
		const struct dcp_piece *p = &t.pieces[i];
		struct dcp_stretch s = { p->file, p->filter, p->off, p->nbytes, 0 };

		if (p->enc != DCP_ENC_PLAIN && p->filter == DCP_FILTER_ZSTD) {
			it->w->file = p->file < it->nfiles ? it->files[p->file].name : "";
			it->w->key = dcp_arena_strdup(&it->w->arena, row->key);
			it->w->base = p->off;
			rc = leave_out(it->w, "compressed, and not looked at", 0);
		} else if (p->enc != DCP_ENC_PLAIN) {
			rc = add_range(it, row->key, &s);
		}
	}
	return rc;
}

/* Decode a compressed object and scan it; other objects were scanned in their files. */
static int take_object(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	struct items *it = ctx;
	struct scanning *w = it->w;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	dcp_auto_view struct dcp_view *view = NULL;
	struct dcp_object o;
	struct dcp_source src;
	uint64_t n;
	void *p;
	bool whole;
	int rc = dcp_index_object(it->ix, row->id, &arena, &o, NULL);

	if (rc < 0 || !o.stored || o.stored->filter == DCP_FILTER_NONE)
		return rc < 0 || !o.stored ? rc : add_range(it, row->key, o.stored);
	w->file = o.stored->file < it->nfiles ? it->files[o.stored->file].name : "";
	w->key = dcp_arena_strdup(&w->arena, row->key);
	w->base = o.stored->off;
	rc = dcp_view_open_object(w->p.ck.v, row->id, &view, NULL);
	n = rc == 0 ? dcp_view_size(view) : 0;
	p = rc == 0 && n <= MAX_OBJECT ? malloc(n + 1) : NULL;
	if (!p || dcp_view_read(view, 0, p, n) < 0) {
		free(p);
		return leave_out(w, "compressed, and not looked at", 0);
	}
	src = dcp_source_mem(p, n);
	rc = scan_stream(w, &src, "", 0, &whole);
	free(p);
	return rc;
}

static int by_place(const void *a, const void *b)
{
	const struct range *x = a, *y = b;
	int order = strcmp(x->file, y->file);

	return order ? order : (x->off > y->off) - (x->off < y->off);
}

/* Find the key of an item in which a name was found. */
static void name_key(const struct items *it, struct found *f)
{
	const struct range *r = DCP_ITEMS(it->ranges, struct range);
	struct range at = { .file = f->file, .off = f->off };
	size_t lo = 0, hi = DCP_NITEMS(it->ranges, struct range);

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (by_place(&r[mid], &at) <= 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo && strcmp(r[lo - 1].file, f->file) == 0 && f->off < r[lo - 1].end)
		f->key = r[lo - 1].key;
}

static int take_index(struct scanning *w)
{
	struct items it = { .w = w, .ix = dcp_version_index(w->p.ck.v) };
	int rc;

	it.files = dcp_index_files(it.ix, &it.nfiles);
	rc = dcp_each_row(it.ix, DCP_ROW_TENSOR, take_tensor, &it);
	if (rc == 0)
		rc = dcp_each_row(it.ix, DCP_ROW_OBJECT, take_object, &it);
	if (it.ranges.n)
		qsort(it.ranges.p, DCP_NITEMS(it.ranges, struct range), sizeof(struct range),
		      by_place);
	for (size_t i = 0; i < DCP_NITEMS(w->found, struct found); i++)
		name_key(&it, &DCP_ITEMS(w->found, struct found)[i]);
	dcp_buf_finish(&it.ranges);
	return rc;
}

static int scan_all(struct scanning *w, struct dcp_err *err)
{
	const char *where = w->p.ck.found ? w->p.ck.found->where : "";
	dcp_auto_dir struct dcp_dir dir = { 0 };
	char path[8192];
	int rc;

	if (snprintf(path, sizeof(path), "%s%s%s", w->p.ck.source, *where ? "/" : "", where) >=
	    (int)sizeof(path))
		return -ENAMETOOLONG;
	rc = dcp_dir_open(path, &dir, err);
	if (rc == 0)
		rc = scan_dir(w, &dir, "", 0);
	if (rc == 0 && w->p.ck.v)
		rc = take_index(w);
	return rc;
}

/* Scan also a version whose metadata is refused, and a source without a complete version. */
static enum cmd_exit open_version(struct scanning *w, const struct opt_args *args)
{
	const char *name = args->operand[PICK_VERSION];
	struct dcp_err err = { 0 };
	enum cmd_exit code = pick_source(&w->p, args->operand[PICK_SOURCE], &w->o->pick, false);

	if (code != CMD_OK)
		return code;
	if (dcp_checkpoint_open(&w->p.ck, name, &err) < 0) {
		if (!w->p.ck.found && name && strcmp(name, "latest") != 0)
			return cmd_fail(CMD_NO, "%s", err.msg);
		w->p.ck.v = NULL;
		cmd_fail(CMD_BAD, "%s; what files say is listed all the same", err.msg);
	}
	progress_finish(&w->p.progress);
	return CMD_OK;
}

/* ---- printing ---- */

static int by_judgement(const void *a, const void *b)
{
	const struct found *x = a, *y = b;
	int order = (int)y->judged - (int)x->judged;

	order = order ? order : strcmp(x->name ? x->name : "", y->name ? y->name : "");
	order = order ? order : strcmp(x->file, y->file);
	order = order ? order : strcmp(x->key ? x->key : "", y->key ? y->key : "");
	return order ? order : (x->off > y->off) - (x->off < y->off);
}

static enum cmd_exit print_names(struct scanning *w)
{
	/* clang-format off */
	static const struct out_field fields[] = {
		{ "judged", "JUDGED", OUT_STATE }, { "name" }, { "why" }, { NULL, "NAME" },
		{ "file", "FILE", OUT_NAME }, { "key", "KEY" }, { "offset", "AT", OUT_NUMBER },
		{ "count", "TIMES", OUT_NUMBER }, { NULL }
	};
	/* clang-format on */
	struct found *f = DCP_ITEMS(w->found, struct found);
	size_t n = DCP_NITEMS(w->found, struct found);
	uint64_t count[JUDGED_DANGEROUS + 1] = { 0 };
	struct out *o = &w->out;
	enum cmd_exit code;

	if (n)
		qsort(f, n, sizeof(*f), by_judgement);
	out_list(o, NULL, fields);
	for (size_t i = 0; i < n; i++) {
		count[f[i].judged]++;
		if (o->form == OUT_TEXT && f[i].judged == JUDGED_OWN && !w->o->all)
			continue;
		out_row(o);
		out_put_str(o, "judged", judgements[f[i].judged]);
		out_put_str(o, "name", f[i].name);
		out_put_str(o, "why", f[i].why);
		out_put_str(o, "NAME", f[i].name ? f[i].name : f[i].why);
		out_put_str(o, "file", f[i].file);
		out_put_str(o, "key", f[i].key);
		out_put_u64(o, "offset", f[i].off);
		out_put_u64(o, "count", f[i].count);
		out_row_end(o);
	}
	out_list_end(o, false);
	if (o->form == OUT_TEXT)
		dcp_buf_printf(&o->buf,
			       "%llu pickle%s: %llu dangerous, %llu unknown, %llu known "
			       "name%s\n",
			       (unsigned long long)w->streams, dcp_s(w->streams),
			       (unsigned long long)count[JUDGED_DANGEROUS],
			       (unsigned long long)count[JUDGED_UNKNOWN],
			       (unsigned long long)count[JUDGED_OWN], dcp_s(count[JUDGED_OWN]));
	code = out_flush(o);
	return code == CMD_OK && count[JUDGED_DANGEROUS] + count[JUDGED_UNKNOWN] ? CMD_NO
										 : code;
}

static enum cmd_exit run_scan(const void *opts_in, const struct opt_args *args)
{
	const struct scan_opts *o = opts_in;
	struct scanning w = { .o = o, .arena = DCP_ARENA_INIT((size_t)1 << 30) };
	enum cmd_exit code = open_version(&w, args);
	struct dcp_err err = { 0 };
	int rc;

	out_init(&w.out, o->form);
	if (code == CMD_OK) {
		rc = scan_all(&w, &err);
		code = rc < 0 ? cmd_fail(cmd_exit_of(rc), "scan: %s: %s", w.p.ck.source,
					 err.msg[0] ? err.msg : strerror(-rc))
			      : print_names(&w);
	}
	dcp_buf_finish(&w.found);
	dcp_arena_finish(&w.arena);
	out_finish(&w.out);
	pick_finish(&w.p);
	return code;
}

const struct cmd cmd_scan = {
	.name = "scan",
	.what = "list the names that unpickling a version would import",
	.about = "List the classes and functions that the pickles of a version name, by file "
		 "and key, and judge them. Nothing is unpickled or run here. Exits 1 if there "
		 "are others than those that torch, numpy and known trainers save.",
	.operands = operands,
	.opts = opts,
	.reports = true,
	.size = sizeof(struct scan_opts),
	.run = run_scan,
	.examples = { "dcpfs scan /data/downloaded",
		      "dcpfs scan run1 --allow 'mylib.config.*'" },
};

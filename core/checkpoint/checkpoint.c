/* SPDX-License-Identifier: Apache-2.0 */
#include "core/checkpoint/checkpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/checkpoint/mounts.h"
#include "core/store/layouts/layouts.h"
#include "core/store/view/view.h"

/* ---- which source ---- */

/* Return the next component of *path and advance *path past the slash after it. NULL: no component
 * is left, or out of memory. */
static char *take_component(struct dcp_arena *arena, const char **path)
{
	size_t n = strcspn(*path, "/");
	char *s = n ? dcp_arena_strndup(arena, *path, n) : NULL;

	*path += n;
	*path += **path == '/';
	return s;
}

int dcp_checkpoint_find(struct dcp_checkpoint *ck, const char *path, struct dcp_err *err)
{
	dcp_auto_free char *real = realpath(path, NULL);
	struct dcp_mount m;
	const char *rest, *version;
	uint64_t rank;

	ck->source = dcp_arena_strdup(ck->arena, path);
	if (!ck->source)
		return dcp_err_say(err, -ENOMEM);
	if (!real || !dcp_mounts_around(real, &m, &rest))
		return 0;
	version = take_component(ck->arena, &rest);
	if (strncmp(rest, "shard/", 6) == 0) {
		rest += 6;
		ck->layout = take_component(ck->arena, &rest);
		if (!ck->layout || !dcp_take_number(&rest, NULL, 10, &rank) ||
		    rank >= UINT32_MAX)
			return dcp_fail(err, -EINVAL,
					"%s: a rank's directory is VERSION/shard/LAYOUT/RANK",
					path);
		ck->layout_rank = (uint32_t)rank;
	} else if (*rest) { /* hf/ and the like: a directory of files */
		return 0;
	}
	ck->wanted = version;
	ck->mount = dcp_arena_strdup(ck->arena, real);
	ck->source = dcp_arena_strdup(ck->arena, m.source);
	return ck->mount && ck->source ? 0 : dcp_err_say(err, -ENOMEM);
}

int dcp_checkpoint_layouts(const struct dcp_checkpoint *ck, const char *file,
			   const char *user_dir, const struct dcp_log *log,
			   struct dcp_layouts **out, struct dcp_err *err)
{
	const struct dcp_layouts_opts opts = { .files = &file,
					       .nfiles = file != NULL,
					       .source = ck->source,
					       .scan = &ck->scan,
					       .user_dir = user_dir,
					       .log = log };

	return dcp_layouts_create(&opts, out, err);
}

int dcp_checkpoint_scan(struct dcp_checkpoint *ck, struct dcp_err *err)
{
	return dcp_scan(ck->source, &ck->scan, err);
}

/* ---- which version ---- */

static void close_versions(struct dcp_checkpoint *ck)
{
	dcp_version_close(ck->v);
	dcp_version_close(ck->base);
	ck->v = ck->base = NULL;
}

void dcp_checkpoint_close(struct dcp_checkpoint *ck)
{
	close_versions(ck);
	dcp_scan_finish(&ck->scan);
	ck->found = NULL;
}

uint64_t dcp_checkpoint_generation(const struct dcp_checkpoint *ck)
{
	return dcp_version_generation(ck->base ? ck->base : ck->v);
}

/* If the checkpoint was mounted elsewhere, the path of its source may name a different checkpoint
 * here. */
static int check_mounted(const struct dcp_checkpoint *ck, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf dir = DCP_BUF_INIT;

	if (!ck->mount)
		return 0;
	if (dcp_buf_printf(&dir, "%s/%s", ck->mount, ck->found->name) < 0)
		return dcp_err_say(err, -ENOMEM);
	if (dcp_mounts_shows(dir.p, dcp_version_generation(ck->v)))
		return 0;
	return dcp_fail(err, -ESTALE, "%s: the files in %s are not those that are mounted",
			dir.p, ck->source);
}

static int map_version(struct dcp_checkpoint *ck, struct dcp_err *err)
{
	ck->map.source = ck->source;
	ck->map.where = ck->found->where;
	ck->base = ck->v;
	ck->v = NULL;
	return dcp_hf_open(ck->base, &ck->map, &ck->store, &ck->v, err);
}

static int open_found(struct dcp_checkpoint *ck, const struct dcp_found *f, struct dcp_err *err)
{
	int rc;

	ck->found = f;
	ck->name = f->name;
	rc = dcp_version_open(ck->source, f, &ck->store, &ck->v, err);
	if (rc == 0)
		rc = check_mounted(ck, err);
	if (rc == 0 && ck->mapped)
		rc = map_version(ck, err);
	if (rc < 0)
		close_versions(ck);
	return rc;
}

static int say_passed(struct dcp_checkpoint *ck, const struct dcp_found *closed,
		      const struct dcp_err *why)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;

	if (why)
		dcp_buf_str(&text, why->msg);
	else
		dcp_buf_printf(&text, "%s: %s", closed->name, closed->why);
	ck->passed = dcp_buf_error(&text) ? NULL : dcp_arena_strdup(ck->arena, text.p);
	return ck->passed ? 0 : -ENOMEM;
}

static int fail_broken(const struct dcp_checkpoint *ck, struct dcp_err *err)
{
	return dcp_fail(err, -EBADMSG,
			"%s: none of its tensors can be read: dcpfs ls -l %s %s says why",
			ck->found->name, ck->source, ck->found->name);
}

/* Try versions from the newest to the oldest; the first failure is reported. A version without any
 * readable tensor is used only if there is no better one. */
static int open_latest(struct dcp_checkpoint *ck, struct dcp_err *err)
{
	const struct dcp_found *first = NULL, *incomplete = NULL, *closed = NULL,
			       *broken = NULL;
	struct dcp_err why = { 0 };
	int code = 0, rc = 0;

	/* -ENOKEY: the request is wrong, not this version. */
	for (size_t i = ck->scan.n; i-- > 0 && rc != -ENOKEY;) {
		const struct dcp_found *f = &ck->scan.found[i];
		struct dcp_err own = { 0 };

		if (!f->complete) {
			incomplete = incomplete ? incomplete : f;
			closed = !closed && f->closed ? f : closed;
			continue;
		}
		rc = open_found(ck, f, &own);
		if (rc == 0 && dcp_version_is_broken(ck->base ? ck->base : ck->v)) {
			rc = fail_broken(ck, &own);
			close_versions(ck);
			broken = broken ? broken : f;
		}
		if (rc == 0)
			return first || closed ? say_passed(ck, closed, first ? &why : NULL)
					       : 0;
		if (!first) {
			first = f;
			why = own;
			code = rc;
		}
	}
	if (broken && rc != -ENOKEY)
		return open_found(ck, broken, err);
	ck->found = first;
	if (first)
		return dcp_err_give(err, &why, code);
	return dcp_fail(err, -EINVAL, "%s: no complete version; %s is incomplete: %s",
			ck->source, incomplete ? incomplete->name : "it",
			incomplete && incomplete->why ? incomplete->why : "empty");
}

static int fail_no_version(const struct dcp_checkpoint *ck, const char *name,
			   struct dcp_err *err)
{
	struct dcp_near near = dcp_near_to(name);
	const char *nearest = NULL;

	for (size_t i = 0; i < ck->scan.n; i++)
		if (dcp_near_take(&near, ck->scan.found[i].name))
			nearest = ck->scan.found[i].name;
	return dcp_fail(err, -ENOENT,
			"no version \"%s\" in %s.%s%s%s %zu version%s: dcpfs ls --versions %s",
			name, ck->source, nearest ? " Nearest: \"" : "", nearest ? nearest : "",
			nearest ? "\"." : "", ck->scan.n, dcp_s(ck->scan.n), ck->source);
}

int dcp_checkpoint_open(struct dcp_checkpoint *ck, const char *name, struct dcp_err *err)
{
	const struct dcp_found *f;
	size_t at;
	int rc;

	ck->found = NULL;
	ck->passed = NULL;
	name = name ? name : ck->wanted;
	if (!name)
		return open_latest(ck, err);
	rc = dcp_found_match(ck->scan.found, ck->scan.n, name, &at);
	if (rc == -ENOENT && strcmp(name, "latest") == 0)
		return open_latest(ck, err);
	if (rc == -ENOTUNIQ)
		return dcp_fail(err, rc,
				"several versions of %s have the number %s; give a whole "
				"name: dcpfs ls --versions %s",
				ck->source, name, ck->source);
	if (rc < 0)
		return fail_no_version(ck, name, err);
	f = &ck->scan.found[at];
	if (!f->complete)
		return dcp_fail(err, f->closed ? -EACCES : -EINVAL, "%s%s: %s", f->name,
				f->closed ? "" : " is incomplete",
				f->why ? f->why : "its commit mark is missing");
	return open_found(ck, f, err);
}

/* ---- keys ---- */

int dcp_each_row(struct dcp_index *ix, enum dcp_row_kind kind, dcp_row_fn *fn, void *ctx)
{
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	int rc = dcp_index_scan(ix, kind, 0, false, &scan);

	while (rc == 0 && (rc = dcp_index_scan_next(scan, &row)) > 0)
		rc = fn(ctx, kind, &row);
	return rc;
}

int dcp_all_rows(struct dcp_index *ix, dcp_row_fn *fn, void *ctx)
{
	int rc = dcp_each_row(ix, DCP_ROW_TENSOR, fn, ctx);

	return rc ? rc : dcp_each_row(ix, DCP_ROW_OBJECT, fn, ctx);
}

/* Find a row by its key or, with @stem, by the stem of its file. */
static int by_word(struct dcp_index *ix, enum dcp_key_kinds kinds, const char *word, bool stem,
		   struct dcp_arena *arena, enum dcp_row_kind *kind, struct dcp_row *row)
{
	for (*kind = kinds == DCP_OBJECT_KEY ? DCP_ROW_OBJECT : DCP_ROW_TENSOR;;
	     *kind = DCP_ROW_OBJECT) {
		int rc = stem ? dcp_index_by_name(ix, *kind, word, arena, row)
			      : dcp_index_by_key(ix, *kind, word, arena, row);

		if (rc != -ENOENT || *kind == DCP_ROW_OBJECT || kinds == DCP_TENSOR_KEY)
			return rc;
	}
}

/* @word without its extension, if a mount uses that extension; else NULL. */
static char *without_extension(struct dcp_arena *arena, const char *word)
{
	static const char json[] = ".json";

	for (int as = 0; as <= DCP_AS_COUNT; as++) {
		const char *ext = as < DCP_AS_COUNT ? dcp_as_extension((enum dcp_as)as) : json;

		if (dcp_has_extension(word, ext))
			return dcp_arena_strndup(arena, word, strlen(word) - strlen(ext));
	}
	return NULL;
}

/* How close a key is to a word that is not a key, closest first. */
enum nearness {
	NEAR_BELOW,  /* the word, a dot and more */
	NEAR_PREFIX, /* the word and more */
	NEAR_END,    /* more, a dot and the word */
	NEAR_LIKE,   /* within a small edit distance */
	NEAR_NONE,
};

struct nearest {
	const char *word;
	size_t n; /* bytes of it */
	struct dcp_arena *arena;
	const char *key;
	enum nearness how;
	size_t off;     /* bytes beside the word; NEAR_LIKE: the distance */
	uint64_t below; /* keys that are NEAR_BELOW */
};

static enum nearness compare_key(const struct nearest *near, const char *key, size_t *off)
{
	size_t n = strlen(key), limit = dcp_near_limit(near->word);

	*off = n > near->n ? n - near->n : 0;
	if (near->n && *off && memcmp(key, near->word, near->n) == 0)
		return key[near->n] == '.' ? NEAR_BELOW : NEAR_PREFIX;
	if (near->n && *off > 1 && key[*off - 1] == '.' && strcmp(key + *off, near->word) == 0)
		return NEAR_END;
	if (near->how < NEAR_LIKE) /* a nearer one is known */
		return NEAR_NONE;
	if (near->how == NEAR_LIKE)
		limit = near->off;
	*off = dcp_near_distance(near->word, key, limit);
	return *off <= limit ? NEAR_LIKE : NEAR_NONE;
}

static int compare_row(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	struct nearest *near = ctx;
	size_t off;
	enum nearness how = compare_key(near, row->key, &off);

	near->below += how == NEAR_BELOW;
	if (how > near->how || how == NEAR_NONE || (how == near->how && off >= near->off))
		return 0;
	near->key = dcp_arena_strdup(near->arena, row->key);
	near->how = how;
	near->off = off;
	return near->key ? 0 : -ENOMEM;
}

int dcp_checkpoint_no_key(struct dcp_checkpoint *ck, enum dcp_key_kinds kinds, const char *word,
			  struct dcp_err *err)
{
	static const char *const nouns[] = { "key", "tensor", "object" };
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	struct nearest near = {
		.word = word, .n = strlen(word), .arena = &arena, .how = NEAR_NONE
	};
	struct dcp_index *ix = dcp_version_index(ck->v);
	const struct dcp_index_counts *counts = dcp_index_counts(ix);
	uint64_t n = (kinds != DCP_OBJECT_KEY ? counts->tensors : 0) +
		     (kinds != DCP_TENSOR_KEY ? counts->objects : 0);
	dcp_auto_buf struct dcp_buf hint = DCP_BUF_INIT;
	size_t at;

	if (!err)
		return -ENOENT;
	if (strcmp(word, "latest") == 0 ||
	    dcp_found_match(ck->scan.found, ck->scan.n, word, &at) == 0)
		return dcp_fail(err, -ENOENT,
				"no %s \"%s\" in %s; it names a version (--version %s): "
				"which KEY of it?",
				nouns[kinds], word, ck->name, word);
	if (kinds != DCP_OBJECT_KEY)
		dcp_each_row(ix, DCP_ROW_TENSOR, compare_row, &near);
	if (kinds != DCP_TENSOR_KEY)
		dcp_each_row(ix, DCP_ROW_OBJECT, compare_row, &near);
	if (near.key)
		dcp_buf_printf(&hint, " Nearest: \"%s\".", near.key);
	if (near.below > 1)
		dcp_buf_printf(&hint, " \"%s.*\" matches %llu.", word,
			       (unsigned long long)near.below);
	return dcp_fail(err, -ENOENT, "no %s \"%s\" in %s.%s %llu %s%s: dcpfs ls %s %s",
			nouns[kinds], word, ck->name, hint.p ? hint.p : "",
			(unsigned long long)n, nouns[kinds], dcp_s(n), ck->source, ck->name);
}

int dcp_checkpoint_key(struct dcp_checkpoint *ck, enum dcp_key_kinds kinds, const char *word,
		       struct dcp_arena *arena, enum dcp_row_kind *kind, struct dcp_row *row,
		       struct dcp_err *err)
{
	struct dcp_index *ix = dcp_version_index(ck->v);
	int rc = by_word(ix, kinds, word, false, arena, kind, row);

	if (rc == -ENOENT && kinds == DCP_ANY_KEY)
		rc = by_word(ix, kinds, word, true, arena, kind, row);
	if (rc == -ENOENT && kinds == DCP_ANY_KEY) {
		char *stem = without_extension(arena, word);

		if (stem)
			rc = by_word(ix, kinds, stem, true, arena, kind, row);
	}
	return rc == -ENOENT ? dcp_checkpoint_no_key(ck, kinds, word, err) : rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/store/view/view.h"

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
	size_t off;     /* bytes more, or the distance */
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
	if (near->how == NEAR_LIKE)
		limit = near->off;
	*off = near->how < NEAR_LIKE ? limit + 1 : dcp_near_distance(near->word, key, limit);
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

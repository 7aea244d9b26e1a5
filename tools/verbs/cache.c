/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/base/trim.h"
#include "core/origin/origin.h"
#include "core/store/cache/cache.h"
#include "core/store/index/index.h"
#include "tools/cmd.h"
#include "tools/load/error.h"
#include "tools/out.h"
#include "tools/pick.h"

struct cache_opts {
	int form;
	struct pick_opts pick;
};

static const struct opt opts[] = { { PICK_CACHE_ROW(struct cache_opts) },
				   PICK_OPT_JSON(struct cache_opts),
				   OPT_END };

static const struct opt_operand operands[] = { { "dir|size|prune|clean", false, OPT_ANY },
					       { 0 } };

static const char *const cache_words[] = { "dir", "size", "prune", "clean", NULL };

enum word { DIR_OF, SIZE, PRUNE, CLEAN };

/* What the cache has: indexes and findings of full reads in its directory, decoded files and bytes
 * from servers in directories below. */
static const struct kind {
	const char *name, *dir, *ext;
	bool sparse;
} kinds[] = {
	{ "indexes", "", DCP_CACHE_INDEX_EXT, false },
	{ "found", "", DCP_CACHE_KEPT_EXT, false },
	{ "unpacked", "/unpacked", DCP_CACHE_UNPACKED_EXT, false },
	{ "remote", "/remote", DCP_CACHE_BLOCKS_EXT, true },
};

/* Is the checkpoint of the index at @path gone? An unreadable index is judged by its age alone. */
static bool is_orphan(const char *path)
{
	struct dcp_index *ix = NULL;
	struct dcp_err err;
	const char *source;
	bool gone;

	if (dcp_index_open(path, &ix, &err) < 0)
		return false;
	source = dcp_index_meta(ix, "source");
	gone = source && dcp_origin_of(source) == &dcp_origin_local &&
	       access(source, F_OK) < 0 && errno == ENOENT;
	dcp_index_close(ix);
	return gone;
}

static bool is_gone(void *ctx, int dirfd, const char *name)
{
	dcp_auto_free char *path = NULL;

	if (asprintf(&path, "%s/%s", (const char *)ctx, name) < 0)
		path = NULL;
	return path && is_orphan(path);
}

static int trim_kind(const struct cache_opts *co, const char *cache, const struct kind *k,
		     enum word word, struct dcp_trimmed *out)
{
	dcp_auto_free char *dir = NULL;
	bool indexes = k == &kinds[0];
	const struct dcp_trim how = {
		.ext = k->ext,
		.most = word == SIZE ? UINT64_MAX
			: indexes    ? DCP_CACHE_INDEXES
				     : co->pick.cache_limit,
		.days = word == PRUNE ? DCP_CACHE_DAYS : 0,
		.counts = word == SIZE,
		.all = word == CLEAN,
		.sparse = k->sparse,
		.goes = word == PRUNE && indexes ? is_gone : NULL,
		.ctx = (void *)(uintptr_t)cache,
	};
	int rc;

	if (asprintf(&dir, "%s%s", cache, k->dir) < 0) {
		dir = NULL;
		return -ENOMEM;
	}
	rc = dcp_cache_trim(dir, &how, out);
	return rc == -ENOENT ? 0 : rc;
}

static void put_kind(struct out *o, const struct kind *k, enum word word,
		     const struct dcp_trimmed *t)
{
	char size[OUT_SIZE], freed[OUT_SIZE], n[32], removed[32];

	if (o->form == OUT_JSON) {
		dcp_jsonw_put_object(&o->json, k->name);
		dcp_jsonw_put_u64(&o->json, "files", t->files);
		dcp_jsonw_put_u64(&o->json, "bytes", t->bytes);
		dcp_jsonw_put_u64(&o->json, "removed", t->removed);
		dcp_jsonw_put_u64(&o->json, "freed", t->freed);
		dcp_jsonw_end(&o->json);
		return;
	}
	dcp_buf_printf(&o->buf, "%-8s  %s in %s file%s", k->name, out_size(size, t->bytes),
		       out_count(n, t->files), dcp_s(t->files));
	if (word != SIZE)
		dcp_buf_printf(&o->buf, ", %s in %s file%s removed", out_size(freed, t->freed),
			       out_count(removed, t->removed), dcp_s(t->removed));
	dcp_buf_str(&o->buf, "\n");
}

static enum cmd_exit show_cache(const struct cache_opts *co, const char *cache, enum word word,
				struct out *o)
{
	if (o->form == OUT_JSON) {
		dcp_jsonw_object(&o->json);
		dcp_jsonw_put_str(&o->json, "dir", cache);
	} else if (word == DIR_OF) {
		out_text(&o->buf, cache);
		dcp_buf_str(&o->buf, "\n");
	}
	for (size_t i = 0; word != DIR_OF && i < DCP_LEN(kinds); i++) {
		struct dcp_trimmed t;
		int rc = trim_kind(co, cache, &kinds[i], word, &t);

		if (rc < 0)
			return cmd_fail(CMD_ENV, "cache: %s%s: %s", cache, kinds[i].dir,
					strerror(-rc));
		put_kind(o, &kinds[i], word, &t);
	}
	if (o->form == OUT_JSON)
		dcp_jsonw_end(&o->json);
	return out_flush(o);
}

static enum cmd_exit run_cache(const void *opts_in, const struct opt_args *args)
{
	const struct cache_opts *co = opts_in;
	dcp_auto_free char *cache = load_cache_dir();
	enum cmd_exit code;
	size_t word = 0;
	struct out o;

	while (cache_words[word] && strcmp(cache_words[word], args->operand[0]) != 0)
		word++;
	if (!cache_words[word])
		return cmd_fail(CMD_USAGE, "cache: \"%s\" is not dir, size, prune or clean",
				args->operand[0]);
	if (!cache)
		return cmd_fail(CMD_NO,
				"cache: there is no cache: DCPFS_CACHE is empty, or neither "
				"XDG_CACHE_HOME nor HOME is set; indexes stay in memory");
	out_init(&o, co->form);
	code = show_cache(co, cache, (enum word)word, &o);
	out_finish(&o);
	return code;
}

const struct cmd cmd_cache = {
	.name = "cache",
	.what = "show, prune or empty the cache of indexes and decoded archives",
	.about = "dir: where it is. size: what it holds. prune: remove indexes of checkpoints "
		 "that are gone, files unused for 30 days, and the least recently used beyond "
		 "the limits, as happens by itself when a file is added. clean: remove all of "
		 "it; what is needed is made again. Files that a process is writing stay, and "
		 "mounts keep what they have open.",
	.operands = operands,
	.opts = opts,
	.size = sizeof(struct cache_opts),
	.run = run_cache,
	.examples = { "dcpfs cache size", "dcpfs cache prune --cache-limit 10GiB" },
};

/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/pick.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "core/base/near.h"
#include "core/base/text.h"
#include "core/checkpoint/mounts.h"
#include "core/model/name.h"
#include "core/rules/rules.h"
#include "core/store/io/queue.h"
#include "core/store/layouts/layouts.h"
#include "core/store/version/mapped.h"
#include "core/store/view/view.h"
#include "tools/load/cache.h"
#include "tools/out.h"

/* Commands that give a URL a path: @ is its host or bucket, # the rest of it. */
static const struct {
	const char *schemes, *how;
} ways[] = {
	{ " s3 s3a s3n ", "mount-s3 --read-only @ /mnt/@    then give /mnt/@/#" },
	{ " gs gcs ", "gcsfuse -o ro @ /mnt/@    then give /mnt/@/#" },
	{ " hf ", "hf download @/#    then give the directory that it prints" },
	{ " http https ", "rclone mount --read-only --http-url https://@ :http: /mnt/@    then "
			  "give /mnt/@/#" },
	{ " ssh sftp ", "sshfs -o ro @:/ /mnt/@    then give /mnt/@/#" },
	{ " file ", "it is a path already: /#" },
	{ "", "rclone mount --read-only REMOTE:# /mnt/@    then give /mnt/@" },
};

enum cmd_exit pick_path(const char *source)
{
	size_t n = strspn(source, "abcdefghijklmnopqrstuvwxyz0123456789"), host, i = 0;
	dcp_auto_buf struct dcp_buf way = DCP_BUF_INIT;
	const char *at = source + n + 3;
	char scheme[16];

	if (n == 0 || n + 3 > sizeof(scheme) || strncmp(source + n, "://", 3) != 0 ||
	    access(source, F_OK) == 0)
		return CMD_OK;
	snprintf(scheme, sizeof(scheme), " %.*s ", (int)n, source);
	while (*ways[i].schemes && !strstr(ways[i].schemes, scheme))
		i++;
	host = strcspn(at, "/");
	for (const char *s = ways[i].how; *s; s++) {
		if (*s == '@')
			dcp_buf_add(&way, at, host);
		else if (*s == '#')
			dcp_buf_str(&way, at + host + (at[host] == '/'));
		else
			dcp_buf_add(&way, s, 1);
	}
	cmd_fail(CMD_USAGE,
		 "%s is a URL, and SOURCE is a path; mount it first, for example:", source);
	cmd_hint("%s", way.p ? way.p : "");
	return CMD_USAGE;
}

enum cmd_exit pick_one_index(const char *source)
{
	return cmd_fail(CMD_USAGE,
			"--index names one file, but %s is a directory of versions; give "
			"the directory of one of them",
			source);
}

void pick_hint_mount(const char *source)
{
	dcp_auto_free char *path = realpath(source, NULL);
	struct dcp_mount m;
	const char *rest;

	if (path && dcp_mounts_around(path, &m, &rest))
		cmd_hint("%s is a mount of dcpfs; give what is mounted there: %s", path,
			 m.source);
}

/* What is mounted where @p->source is, if it can be seen from here. */
static void look_behind(struct pick *p)
{
	dcp_auto_free char *path = realpath(p->source, NULL);
	struct dcp_mount m;
	const char *rest;

	if (!path || !dcp_mounts_around(path, &m, &rest) || strchr(rest, '/') ||
	    access(m.source, F_OK) < 0 || asprintf(&p->mount, "%s%c%s", path, 0, m.source) < 0)
		return;
	p->wanted = *rest ? strdup(rest) : NULL;
	p->source = p->mount + strlen(path) + 1;
}

enum cmd_exit pick_source(struct pick *p, const char *source, const struct pick_opts *opts,
			  bool rebuild)
{
	struct dcp_queue *queue;
	struct dcp_err err = { 0 };
	enum cmd_exit code;
	int rc;

	*p = (struct pick){ .source = source, .hf = opts->hf };
	progress_init(&p->progress, false);
	code = hf_config(&opts->hf, &p->config);
	if (code == CMD_OK)
		code = hf_rules(opts->hf.rules, &p->rules);
	if (code != CMD_OK)
		return code;
	look_behind(p);
	source = p->source;
	rc = dcp_scan(source, &p->scan, &err);
	if (rc < 0) {
		cmd_fail(CMD_OK, "%s", err.msg);
		pick_hint_mount(source);
		return cmd_exit_of(rc);
	}
	if (opts->index && !p->scan.single)
		return pick_one_index(source);
	if (!opts->index)
		p->cache = cmd_open_cache();
	if (dcp_queue_create(&queue) < 0)
		queue = NULL; /* NULL: reads are made one by one */
	p->store = (struct dcp_store_opts){
		.cache_dir = p->cache,
		.index_file = opts->index,
		.cache_limit = DCP_MAX(opts->cache_limit, 1), /* 0 is core's default */
		.rebuild = rebuild,
		.queue = queue,
		.progress = &p->progress.report,
		.log = &cmd_log,
	};
	return CMD_OK;
}

void pick_finish(struct pick *p)
{
	progress_finish(&p->progress);
	dcp_version_close(p->v);
	dcp_version_close(p->base);
	dcp_rules_free(p->rules);
	free(p->config);
	dcp_queue_destroy(p->store.queue);
	dcp_scan_finish(&p->scan);
	free(p->cache);
	free(p->mount);
	free(p->wanted);
	*p = (struct pick){ 0 };
}

static enum cmd_exit no_version(const struct pick *p, const char *name)
{
	struct dcp_near near = dcp_near_to(name);
	size_t at = p->scan.n;

	for (size_t i = 0; i < p->scan.n; i++)
		if (dcp_near_take(&near, p->scan.found[i].name))
			at = i;
	if (at < p->scan.n)
		return cmd_fail(
			CMD_NO,
			"no version \"%s\" in %s. Nearest: \"%s\". %zu version%s: dcpfs ls "
			"--versions %s",
			name, p->source, p->scan.found[at].name, p->scan.n, dcp_s(p->scan.n),
			p->source);
	return cmd_fail(CMD_NO,
			"no version \"%s\" in %s. %zu version%s: dcpfs ls --versions %s", name,
			p->source, p->scan.n, dcp_s(p->scan.n), p->source);
}

static int map(struct pick *p, const struct dcp_found *f, struct dcp_err *err)
{
	const struct dcp_map_opts how = { .rules = p->rules,
					  .part = p->hf.part,
					  .assets = p->hf.assets,
					  .config = p->config,
					  .cast = hf_dtype(&p->hf),
					  .source = p->source,
					  .where = f->where,
					  .even_none = p->hf.even_none };
	int rc;

	p->base = p->v;
	p->v = NULL;
	rc = dcp_version_map(p->base, &how, &p->store, &p->v, err);
	if (rc == 0)
		return 0;
	dcp_version_close(p->base);
	p->base = NULL;
	return rc;
}

/* Another checkpoint may be called like what is mounted, where that was done elsewhere. */
static int check_mounted(const struct pick *p, const struct dcp_found *f, struct dcp_err *err)
{
	dcp_auto_free char *dir = NULL;

	if (p->mount && asprintf(&dir, "%s/%s", p->mount, f->name) < 0)
		return dcp_err_say(err, -ENOMEM);
	return !dir || dcp_mounts_shows(dir, dcp_version_generation(p->v))
		       ? 0
		       : dcp_fail(err, -ESTALE,
				  "%s: the files in %s are not those that are mounted", dir,
				  p->source);
}

static int open_found(struct pick *p, const struct dcp_found *f, struct dcp_err *err)
{
	int rc = dcp_version_open(p->source, f, &p->store, &p->v, err);

	if (rc == 0 && (rc = check_mounted(p, f, err)) < 0) {
		dcp_version_close(p->v);
		p->v = NULL;
	}
	if (rc == 0 && hf_is_wanted(&p->hf))
		rc = map(p, f, err);
	progress_finish(&p->progress);
	if (rc == 0)
		p->found = f;
	return rc;
}

/* From the newest to the oldest; the first failure is reported. */
static enum cmd_exit pick_latest(struct pick *p)
{
	const struct dcp_found *first = NULL, *incomplete = NULL, *closed = NULL;
	struct dcp_err why = { 0 };
	int code = 0;

	for (size_t i = p->scan.n; i-- > 0;) {
		const struct dcp_found *f = &p->scan.found[i];
		struct dcp_err err = { 0 };
		int rc;

		if (!f->complete) {
			incomplete = incomplete ? incomplete : f;
			closed = !closed && f->closed ? f : closed;
			continue;
		}
		rc = open_found(p, f, &err);
		if (rc == 0) {
			if (first)
				cmd_fail(CMD_OK, "%s; taking %s", why.msg, f->name);
			else if (closed)
				cmd_fail(CMD_OK, "%s: %s; taking %s", closed->name, closed->why,
					 f->name);
			return CMD_OK;
		}
		if (!first) {
			first = f;
			why = err;
			code = rc;
		}
		if (rc == -ENOKEY) /* what was asked for is wrong, not this version */
			break;
	}
	if (first)
		return cmd_fail(cmd_exit_of(code), "%s", why.msg);
	return cmd_fail(CMD_BAD, "%s: no complete version; %s is incomplete: %s", p->source,
			incomplete ? incomplete->name : "it",
			incomplete && incomplete->why ? incomplete->why : "empty");
}

enum cmd_exit pick_version(struct pick *p, const char *name)
{
	struct dcp_err err = { 0 };
	const struct dcp_found *f;
	size_t at;
	int rc;

	name = name ? name : p->wanted;
	if (!name)
		return pick_latest(p);
	rc = dcp_found_match(p->scan.found, p->scan.n, name, &at);
	if (rc == -ENOENT && strcmp(name, "latest") == 0)
		return pick_latest(p);
	if (rc == -ENOTUNIQ)
		return cmd_fail(CMD_NO,
				"several versions of %s have the number %s; give a whole "
				"name: dcpfs ls --versions %s",
				p->source, name, p->source);
	if (rc < 0)
		return no_version(p, name);
	f = &p->scan.found[at];
	if (!f->complete)
		return cmd_fail(CMD_BAD, "%s%s: %s", f->name, f->closed ? "" : " is incomplete",
				f->why ? f->why : "its commit mark is missing");
	rc = open_found(p, f, &err);
	if (rc < 0)
		return cmd_fail(cmd_exit_of(rc), "%s", err.msg);
	return CMD_OK;
}

enum cmd_exit pick_open(struct pick *p, const struct opt_args *args,
			const struct pick_opts *opts)
{
	enum cmd_exit code = pick_source(p, args->operand[PICK_SOURCE], opts, false);

	return code == CMD_OK ? pick_version(p, args->operand[PICK_VERSION]) : code;
}

enum cmd_exit pick_layout(const struct pick *p, const char *word, struct dcp_layouts **all,
			  const struct dcp_layout **out)
{
	dcp_auto_free char *config = load_config_dir();
	const struct dcp_layouts_opts opts = {
		.source = p->source, .scan = &p->scan, .user_dir = config, .log = &cmd_log
	};
	const struct dcp_named_layout *l = NULL;
	struct dcp_err err = { 0 };
	int rc = 0;

	*out = NULL;
	if (!word)
		return CMD_OK;
	if (!*all)
		rc = dcp_layouts_create(&opts, all, &err);
	if (rc == 0)
		rc = dcp_layouts_open(*all, word, &l, &err);
	if (rc < 0)
		return cmd_fail(rc == -EINVAL ? CMD_USAGE : cmd_exit_of(rc), "%s",
				err.msg[0] ? err.msg : strerror(-rc));
	*out = l->l;
	return CMD_OK;
}

int pick_each(struct dcp_index *ix, enum dcp_row_kind kind, pick_fn *fn, void *ctx)
{
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	int rc = dcp_index_scan(ix, kind, 0, false, &scan);

	while (rc == 0 && (rc = dcp_index_scan_next(scan, &row)) > 0)
		rc = fn(ctx, kind, &row);
	return rc;
}

int pick_all(struct dcp_index *ix, pick_fn *fn, void *ctx)
{
	int rc = pick_each(ix, DCP_ROW_TENSOR, fn, ctx);

	return rc ? rc : pick_each(ix, DCP_ROW_OBJECT, fn, ctx);
}

static int by_word(struct dcp_index *ix, const char *word, bool stem, struct dcp_arena *arena,
		   enum dcp_row_kind *kind, struct dcp_row *row)
{
	for (*kind = DCP_ROW_TENSOR;; *kind = DCP_ROW_OBJECT) {
		int rc = stem ? dcp_index_by_name(ix, *kind, word, arena, row)
			      : dcp_index_by_key(ix, *kind, word, arena, row);

		if (rc != -ENOENT || *kind == DCP_ROW_OBJECT)
			return rc;
	}
}

/* The stem when @word ends in an extension that the mount gives, else NULL. */
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

static enum cmd_exit no_key(struct pick *p, const char *word, struct dcp_arena *arena)
{
	struct nearest near = {
		.word = word, .n = strlen(word), .arena = arena, .how = NEAR_NONE
	};
	struct dcp_index *ix = dcp_version_index(p->v);
	const struct dcp_index_counts *counts = dcp_index_counts(ix);
	dcp_auto_buf struct dcp_buf hint = DCP_BUF_INIT;
	uint64_t n = counts->tensors + counts->objects;
	char keys[32];
	size_t at;

	if (dcp_found_match(p->scan.found, p->scan.n, word, &at) == 0)
		return cmd_fail(CMD_NO,
				"no key \"%s\" in %s; it names a version (--version %s): "
				"which KEY of it?",
				word, p->found->name, word);
	pick_all(ix, compare_row, &near);
	if (near.key)
		dcp_buf_printf(&hint, " Nearest: \"%s\".", near.key);
	if (near.below > 1)
		dcp_buf_printf(&hint, " \"%s.*\" matches %s.", word,
			       out_count(keys, near.below));
	return cmd_fail(CMD_NO, "no key \"%s\" in %s.%s %s key%s: dcpfs ls %s %s", word,
			p->found->name, hint.p ? hint.p : "", out_count(keys, n), dcp_s(n),
			p->source, p->found->name);
}

/* A row by its key or its file's name: as index_by_key. */
static int find_key(struct pick *p, const char *word, struct dcp_arena *arena,
		    enum dcp_row_kind *kind, struct dcp_row *row)
{
	struct dcp_index *ix = dcp_version_index(p->v);
	int rc = by_word(ix, word, false, arena, kind, row);

	if (rc == -ENOENT)
		rc = by_word(ix, word, true, arena, kind, row);
	if (rc == -ENOENT) {
		char *stem = without_extension(arena, word);

		if (stem)
			rc = by_word(ix, stem, true, arena, kind, row);
	}
	return rc;
}

enum cmd_exit pick_unreadable(const struct pick *p, int rc)
{
	return cmd_fail(cmd_exit_of(rc), "%s: the index cannot be read: %s", p->found->name,
			strerror(-rc));
}

enum cmd_exit pick_key(struct pick *p, const char *word, struct dcp_arena *arena,
		       enum dcp_row_kind *kind, struct dcp_row *row)
{
	int rc = find_key(p, word, arena, kind, row);

	if (rc == -ENOENT)
		return no_key(p, word, arena);
	return rc < 0 ? pick_unreadable(p, rc) : CMD_OK;
}

/* ---- patterns ---- */

enum cmd_exit pick_no_key(struct pick *p, const char *word)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);

	return no_key(p, word, &arena);
}

enum cmd_exit pick_no_match(const struct pick *p, const char *pattern, const char *what)
{
	return cmd_fail(CMD_NO, "no %s of %s matches \"%s\"", what, p->found->name, pattern);
}

struct walk {
	const struct pick_keys *keys;
	pick_fn *fn;
	void *ctx;
};

static int walk_row(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	const struct walk *w = ctx;

	return dcp_name_matches(w->keys->pattern, row->key) ? w->fn(w->ctx, kind, row) : 0;
}

int pick_keys_each(struct pick *p, const struct pick_keys *keys, pick_fn *fn, void *ctx)
{
	struct walk w = { keys, fn, ctx };

	return keys->pattern ? pick_all(dcp_version_index(p->v), walk_row, &w)
			     : fn(ctx, keys->kind, &keys->row);
}

static int count_row(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	struct pick_keys *keys = ctx;

	++*(kind == DCP_ROW_TENSOR ? &keys->tensors : &keys->objects);
	return 0;
}

enum cmd_exit pick_keys(struct pick *p, const char *word, struct dcp_arena *arena,
			struct pick_keys *out)
{
	int rc = find_key(p, word, arena, &out->kind, &out->row);

	*out = (struct pick_keys){ .kind = out->kind, .row = out->row };
	if (rc == -ENOENT && strpbrk(word, "*?["))
		out->pattern = word;
	else if (rc == -ENOENT)
		return no_key(p, word, arena);
	if (rc == 0 || out->pattern)
		rc = pick_keys_each(p, out, count_row, out);
	if (rc < 0)
		return pick_unreadable(p, rc);
	return out->tensors + out->objects ? CMD_OK : pick_no_match(p, word, "key");
}

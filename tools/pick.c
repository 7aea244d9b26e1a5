/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/pick.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/jsonw.h"
#include "core/base/text.h"
#include "core/checkpoint/mounts.h"
#include "core/hf/hf.h"
#include "core/model/name.h"
#include "core/origin/origin.h"
#include "core/remote/disk.h"
#include "core/rules/rules.h"
#include "core/store/index/index.h"
#include "core/store/io/queue.h"
#include "core/store/layouts/layouts.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "tools/load/error.h"
#include "tools/out.h"

enum { SHOWN = 20 }; /* tensors that are named */

static int read_file(const char *path, struct dcp_buf *out, struct dcp_err *err)
{
	/* Without O_NONBLOCK, opening a FIFO would wait for a writer. */
	dcp_auto_fd int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	dcp_auto_file FILE *f = NULL;
	char part[65536];
	struct stat st;
	size_t n;

	if (fd >= 0 && fstat(fd, &st) == 0 && !S_ISREG(st.st_mode))
		return dcp_fail(err, -EINVAL, "%s: not a regular file", path);
	f = fd < 0 ? NULL : fdopen(fd, "r");
	if (!f)
		return dcp_fail(err, -errno, "%s: %s", path, strerror(errno));
	dcp_take_fd(&fd);
	while (out->n <= DCP_RULES_MAX_TEXT && (n = fread(part, 1, sizeof(part), f)) > 0)
		dcp_buf_add(out, part, n);
	if (ferror(f))
		return dcp_fail(err, -EIO, "%s cannot be read", path);
	return dcp_err_say(err, dcp_buf_error(out));
}

enum cmd_exit hf_rules(const char *text, struct dcp_rules **out)
{
	dcp_auto_buf struct dcp_buf file = DCP_BUF_INIT;
	struct dcp_err err = { 0 };
	int rc;

	*out = NULL;
	if (!text)
		return CMD_OK;
	if (strchr(text, '/') || access(text, F_OK) == 0) {
		rc = read_file(text, &file, &err);
		if (rc == 0)
			rc = dcp_rules_parse(file.p ? file.p : "", file.n, text, out, &err);
	} else {
		rc = dcp_rules_preset(text, out, &err);
		if (rc == -ENOENT)
			return cmd_fail(CMD_USAGE,
					"no file %.60s, and %s (see: dcpfs rules list)", text,
					err.msg);
	}
	if (rc == 0)
		return CMD_OK;
	return cmd_fail(cmd_exit_of(rc), "%s", err.msg);
}

/* The parsed config.json of --config, or NULL. */
static enum cmd_exit read_hf_config(const struct hf_opts *o, struct dcp_rules_config **out)
{
	dcp_auto_buf struct dcp_buf file = DCP_BUF_INIT;
	struct dcp_err err = { 0 };
	int rc;

	*out = NULL;
	if (!o->config)
		return CMD_OK;
	*out = malloc(sizeof(**out));
	rc = *out ? read_file(o->config, &file, &err) : dcp_err_say(&err, -ENOMEM);
	if (rc == 0)
		rc = dcp_rules_config_parse(file.p ? file.p : "", file.n, *out, &err);
	if (rc == 0 && !(*out)->model_type[0] && !(*out)->class_name[0])
		rc = dcp_fail(&err, -EBADMSG,
			      "no config.json of a model: it has no model_type");
	if (rc == 0)
		return CMD_OK;
	free(*out);
	*out = NULL;
	return cmd_fail(cmd_exit_of(rc), "--config %s: %s", o->config, err.msg);
}

const char *const hf_dtypes[] = { "stored", "f32", "bf16", "f16", NULL };

enum dcp_dtype hf_dtype(const struct hf_opts *o)
{
	return dcp_rules_dtype(hf_dtypes[o->dtype], strlen(hf_dtypes[o->dtype]));
}

bool hf_is_wanted(const struct hf_opts *o)
{
	return o->on || o->rules || o->assets || o->part || o->dtype;
}

void hf_put_model(struct dcp_version *v, struct dcp_buf *b)
{
	const char *prefix = dcp_index_meta(dcp_version_index(v), "prefix");
	const char *others = dcp_index_meta(dcp_version_index(v), "others");
	dcp_auto_buf struct dcp_buf why = DCP_BUF_INIT;

	if (prefix || others) {
		dcp_buf_str(b, "model: the keys ");
		dcp_buf_str(b, prefix ? "below " : "that no name stands before");
		out_text(b, prefix ? prefix : "");
		if (others) {
			dcp_buf_str(b, "; left out are others, below ");
			out_text(b, others);
			dcp_buf_str(b, " (--hf-from PART takes one of them)");
		}
		dcp_buf_str(b, "\n");
	}
	if (dcp_hf_fit(v, &why, NULL) > DCP_WHOLE) {
		dcp_buf_str(b, "warning: ");
		out_text(b, why.p);
		dcp_buf_str(b, "\n");
	}
}

void hf_put_model_json(struct dcp_version *v, struct dcp_jsonw *w)
{
	struct dcp_index *ix = dcp_version_index(v);
	dcp_auto_buf struct dcp_buf why = DCP_BUF_INIT;

	dcp_jsonw_put_str_or_null(w, "prefix", dcp_index_meta(ix, "prefix"));
	dcp_jsonw_put_str_or_null(w, "others", dcp_index_meta(ix, "others"));
	dcp_jsonw_put_str_or_null(w, "problem",
				  dcp_hf_fit(v, &why, NULL) > DCP_WHOLE ? why.p : NULL);
}

struct telling {
	uint64_t n;
};

static void tell_key(void *ctx, const char *what, const char *key, const char *text)
{
	struct telling *t = ctx;

	if (t->n++ < SHOWN)
		cmd_hint("%s: %s: %s", what, key, text);
}

enum cmd_exit hf_check(struct dcp_version *v, const struct hf_opts *o, const char *verb,
		       bool quiet)
{
	dcp_auto_buf struct dcp_buf why = DCP_BUF_INIT;
	struct dcp_err err = { 0 };
	struct telling t = { 0 };
	struct dcp_expected x = { .say = tell_key, .ctx = &t };
	int fit = dcp_hf_fit(v, &why, &err);

	if (fit < 0)
		return quiet ? cmd_exit_of(fit)
			     : cmd_fail(cmd_exit_of(fit), "%s: %s", verb, err.msg);
	if (fit < DCP_MISFIT || o->partial || (fit == DCP_OTHER_NAMES && o->rules))
		return CMD_OK;
	if (quiet)
		return CMD_NO;
	cmd_fail(CMD_NO, "%s: %s is %s; --partial goes on", verb, dcp_version_name(v), why.p);
	dcp_hf_expect(v, &x, NULL);
	if (t.n > SHOWN)
		cmd_hint("and %llu more: dcpfs rules check auto",
			 (unsigned long long)(t.n - SHOWN));
	return CMD_NO;
}

/* Commands that give a URL a path: @ is its host or bucket, # the rest of it. */
static const struct {
	const char *schemes, *how;
} ways[] = {
	{ " s3a s3n ", "dcpfs ls s3://@/#" },
	{ " gcs ", "dcpfs ls gs://@/#" },
	{ " ssh sftp ", "sshfs -o ro @:/ /mnt/@    then give /mnt/@/#" },
	{ " file ", "it is a path already: /#" },
	{ "", "rclone mount --read-only REMOTE:# /mnt/@    then give /mnt/@" },
};

enum cmd_exit pick_path(const char *source)
{
	size_t n = strspn(source, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				  "0123456789+.-"),
	       host, i = 0;
	const struct dcp_origin *origin = dcp_origin_of(source);
	struct dcp_err err = { 0 };
	dcp_auto_buf struct dcp_buf way = DCP_BUF_INIT;
	const char *at = source + n + 3;
	char scheme[16];

	if (origin != &dcp_origin_local)
		return origin->find(source, NULL, NULL, &err) < 0
			       ? cmd_fail(CMD_USAGE, "%s", err.msg)
			       : CMD_OK;
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
		 "%s is a URL, and SOURCE is a path, or s3://, gs://, https:// or hf://; for "
		 "example:",
		 source);
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

const struct pick_opts pick_plain = { .cache_limit = DCP_UNPACK_CACHE };

void pick_keep(const char *cache, const struct pick_opts *opts)
{
	dcp_disk_use(opts->no_cache ? NULL : cache, DCP_MAX(opts->cache_limit, 1));
}

enum cmd_exit pick_source(struct pick *p, const char *source, const struct pick_opts *opts,
			  bool rebuild)
{
	struct dcp_checkpoint *ck = &p->ck;
	struct dcp_queue *queue;
	struct dcp_err err = { 0 };
	enum cmd_exit code;
	int rc;

	*p = (struct pick){ .arena = DCP_ARENA_INIT((size_t)64 << 20) };
	ck->arena = &p->arena;
	ck->source = source;
	progress_init(&p->progress, false);
	code = read_hf_config(&opts->hf, &p->config);
	if (code == CMD_OK)
		code = hf_rules(opts->hf.rules, &p->rules);
	if (code != CMD_OK)
		return code;
	if (!opts->index)
		p->cache = cmd_open_cache();
	pick_keep(p->cache, opts);
	rc = dcp_checkpoint_find(ck, source, &err);
	/* Read a rank's shard, and files that this process cannot see, through the mount. */
	if (rc == -EINVAL || (ck->mount && (ck->layout || access(ck->source, F_OK) < 0))) {
		ck->source = source;
		ck->mount = ck->wanted = NULL;
		rc = 0;
	}
	if (rc == 0)
		rc = dcp_checkpoint_scan(ck, &err);
	if (rc < 0) {
		cmd_fail(cmd_exit_of(rc), "%s", err.msg);
		pick_hint_mount(ck->source);
		return cmd_exit_of(rc);
	}
	if (opts->index && !ck->scan.single)
		return pick_one_index(ck->source);
	if (dcp_queue_create(&queue) < 0)
		queue = NULL; /* NULL: reads are made one by one */
	ck->store = (struct dcp_store_opts){
		.cache_dir = p->cache,
		.index_file = opts->index,
		.cache_limit = DCP_MAX(opts->cache_limit, 1), /* 0 is core's default */
		.rebuild = rebuild,
		.queue = queue,
		.progress = &p->progress.report,
		.log = &cmd_log,
	};
	p->casts = opts->hf.dtype && !opts->hf.implied;
	ck->mapped = hf_is_wanted(&opts->hf);
	ck->map = (struct dcp_hf_opts){ .rules = p->rules,
					.part = opts->hf.part,
					.assets = opts->hf.assets,
					.config = p->config,
					.cast = hf_dtype(&opts->hf),
					.even_none = opts->hf.even_none };
	return CMD_OK;
}

void pick_finish(struct pick *p)
{
	progress_finish(&p->progress);
	dcp_checkpoint_close(&p->ck);
	dcp_rules_free(p->rules);
	free(p->config);
	dcp_queue_destroy(p->ck.store.queue);
	dcp_arena_finish(&p->arena);
	free(p->cache);
	*p = (struct pick){ 0 };
}

enum cmd_exit pick_version(struct pick *p, const char *name)
{
	struct dcp_err err = { 0 };
	const char *kept;
	int rc = dcp_checkpoint_open(&p->ck, name, &err);

	progress_finish(&p->progress);
	if (rc < 0)
		return cmd_fail(p->ck.found                        ? cmd_exit_of(rc)
				: rc == -ENOENT || rc == -ENOTUNIQ ? CMD_NO
								   : CMD_BAD,
				"%s", err.msg);
	if (p->ck.passed)
		cmd_warn("%s; taking %s", p->ck.passed, p->ck.name);
	kept = p->casts ? dcp_index_meta(dcp_version_index(p->ck.v), "kept") : NULL;
	if (kept)
		cmd_warn("%s: nothing is cast to %s: it is quantized, by %s, and codes and "
			 "scales mean numbers only together",
			 p->ck.name, kept,
			 dcp_index_meta(dcp_version_index(p->ck.v), "kept_by") ?: "its keys");
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
	const struct dcp_named_layout *l = NULL;
	struct dcp_err err = { 0 };
	int rc = 0;

	*out = NULL;
	if (!word)
		return CMD_OK;
	if (!*all)
		rc = dcp_checkpoint_layouts(&p->ck, NULL, config, &cmd_log, all, &err);
	if (rc == 0)
		rc = dcp_layouts_open(*all, word, &l, &err);
	if (rc < 0)
		return cmd_fail(rc == -EINVAL ? CMD_USAGE : cmd_exit_of(rc), "%s",
				err.msg[0] ? err.msg : strerror(-rc));
	*out = l->l;
	return CMD_OK;
}

enum cmd_exit pick_unreadable(const struct pick *p, int rc)
{
	return cmd_fail(cmd_exit_of(rc), "%s: the index cannot be read: %s", p->ck.name,
			strerror(-rc));
}

/* Print the outcome @rc of looking for @word. */
static enum cmd_exit say_key(struct pick *p, int rc, const struct dcp_err *err)
{
	if (rc == -ENOENT)
		return cmd_fail(CMD_NO, "%s", err->msg);
	return rc < 0 ? pick_unreadable(p, rc) : CMD_OK;
}

enum cmd_exit pick_key(struct pick *p, const char *word, struct dcp_arena *arena,
		       enum dcp_row_kind *kind, struct dcp_row *row)
{
	struct dcp_err err = { 0 };
	int rc = dcp_checkpoint_key(&p->ck, DCP_ANY_KEY, word, arena, kind, row, &err);

	return say_key(p, rc, &err);
}

enum cmd_exit pick_no_key(struct pick *p, const char *word)
{
	struct dcp_err err = { 0 };

	return say_key(p, dcp_checkpoint_no_key(&p->ck, DCP_ANY_KEY, word, &err), &err);
}

/* ---- patterns ---- */

enum cmd_exit pick_no_match(const struct pick *p, const char *pattern, const char *what)
{
	return cmd_fail(CMD_NO, "no %s of %s matches \"%s\"", what, p->ck.name, pattern);
}

struct walk {
	const struct pick_keys *keys;
	dcp_row_fn *fn;
	void *ctx;
};

static int walk_row(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	const struct walk *w = ctx;

	return dcp_name_matches(w->keys->pattern, row->key) ? w->fn(w->ctx, kind, row) : 0;
}

int pick_keys_each(struct pick *p, const struct pick_keys *keys, dcp_row_fn *fn, void *ctx)
{
	struct walk w = { keys, fn, ctx };

	return keys->pattern ? dcp_all_rows(dcp_version_index(p->ck.v), walk_row, &w)
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
	bool glob = strpbrk(word, "*?[");
	struct dcp_err err = { 0 };
	int rc = dcp_checkpoint_key(&p->ck, DCP_ANY_KEY, word, arena, &out->kind, &out->row,
				    glob ? NULL : &err);

	*out = (struct pick_keys){ .kind = out->kind, .row = out->row };
	if (rc == -ENOENT && glob)
		out->pattern = word;
	if (rc == 0 || out->pattern)
		rc = pick_keys_each(p, out, count_row, out);
	if (rc < 0)
		return say_key(p, rc, &err);
	return out->tensors + out->objects ? CMD_OK : pick_no_match(p, word, "key");
}

enum cmd_exit pick_check_drawing(const char *verb, const char *file)
{
	return file || !isatty(STDOUT_FILENO)
		       ? CMD_OK
		       : cmd_fail(CMD_USAGE,
				  "%s: standard output is a terminal, which does not show a "
				  "page or drawing: name a file, or > FILE",
				  verb);
}

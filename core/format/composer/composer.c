/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MosaicML Composer.
 *
 *	ep1-ba6-rank0.pt           all of a save: torch.save of {"state": .., "rng": [..]}
 *	ba6-rank0.pt ba6-rank1.pt  a file for each rank (until about 0.15): one save, with rank 0's name
 *	composer_states.pt, deepspeed/
 *	                           the contents of Composer's archives: the state, and the files
 *	                           of DeepSpeed beside it, whose keys get "deepspeed." in front
 *	composer_metadata.json, model/, optim/, resumption.pkl
 *	                           its newer interface; keys get the directory's name in front
 *
 * Sharded saves are directories of torch.distributed.checkpoint, read as such. Keys are those of
 * the nested state with its lists opened; ignore_keys matches path components joined with "/".
 */
#include "core/format/torch/torch.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/base/text.h"
#include "core/format/format.h"
#include "core/format/formats.h"
#include "core/format/gather/join.h"
#include "core/format/nest/relay.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/json.h"
#include "core/parse/pyjson/pyjson.h"
#include "core/parse/torch/torch.h"

#define METADATA "composer_metadata.json"
#define RESUMPTION "resumption.pkl"

/* A file of the save; @name is borrowed. */
struct composer_file {
	const char *name;
	uint64_t rank;
};

/* Tensors in parts (ShardedTensor) are joined from all files. All other values were the same on all
 * ranks: each is taken from the lowest rank that has it. */

struct emitter {
	const struct dcp_load *in;
	const struct composer_file *files;
	size_t n, at; /* the current file */
	struct dcp_copies shards;
	struct dcp_shard_parts parts; /* shards of tensors that consist of several tensors */
	struct dcp_intern emitted;    /* keys, when there are several files */
	struct dcp_buf containers;    /* the first file's */
};

/* Was the key emitted already? From now on it counts as emitted. */
static int was_emitted(struct emitter *w, const char *key)
{
	int rc = dcp_intern_str(&w->emitted, key, NULL);

	return rc < 0 ? rc : rc == 0;
}

static int on_take(void *ctx, const struct dcp_leaf *leaf)
{
	struct emitter *w = ctx;

	return w->n > 1 && !dcp_shard_is(leaf->value) ? was_emitted(w, leaf->key) : 0;
}

static int on_shard(void *ctx, const struct dcp_tensor *t)
{
	struct emitter *w = ctx;

	return dcp_copies_add(&w->shards, t, (uint32_t)w->at, w->files[w->at].name);
}

static int emit_version(const struct dcp_sink *sink, const struct dcp_torch *t)
{
	struct dcp_pv metadata = dcp_pv_at(dcp_pv_at(dcp_torch_root(t), "state"), "metadata");
	const char *version = dcp_pv_str(
		dcp_pv_at(dcp_pv_at(metadata, "composer_env_info"), "composer_version"));
	int rc = dcp_emit_fact(sink, 0, "framework", "composer%s%.40s", version ? " " : "",
			       version ? version : "");
	return dcp_emit_fact(sink, rc, "lists", "opened");
}

/* Emit the contents of file @at; 1: it cannot be read, with the reason in @why. */
static int emit_file(void *ctx, size_t at, struct dcp_err *why)
{
	struct emitter *w = ctx;
	const struct dcp_load *in = w->in;
	struct dcp_torch_state s = {
		.sink = in->sink,
		.lists = true,
		.take = on_take,
		.shard = on_shard,
		.parts = &w->parts,
		.who = (uint32_t)at,
		.name = w->files[at].name,
		.ctx = w,
		.containers = at ? NULL : &w->containers,
	};
	dcp_auto_torch struct dcp_torch *t = NULL;
	const char *name = w->files[at].name;
	int rc = dcp_emit_file(in->sink, name, &s.file);

	if (rc < 0)
		return rc;
	rc = dcp_torch_open_file(in->dir, name, &t, why);
	if (rc < 0)
		return rc == -ENOMEM ? rc : 1;
	w->at = at;
	s.t = t;
	if (at == 0)
		rc = emit_version(in->sink, t);
	return rc < 0 ? rc : dcp_torch_state_emit(&s);
}

/* Write to @out the name of the first rank's file that is missing. */
static void name_missing(const struct emitter *w, char *out, size_t n)
{
	const char *first = w->files[0].name, *digits = NULL;
	uint64_t rank = 0;

	for (size_t i = 0; i < w->n && w->files[i].rank <= rank; i++)
		rank = w->files[i].rank + 1;
	for (const char *p = first; (p = strstr(p, "rank")); p += 4)
		digits = p + 4;
	if (digits)
		snprintf(out, n, "%.*s%" PRIu64 "%s is not there", (int)(digits - first), first,
			 rank, digits + strspn(digits, "0123456789"));
	else
		snprintf(out, n, "another rank's file is not there");
}

static int emit_broken(void *ctx, size_t at, const char *why)
{
	const struct emitter *w = ctx;

	return dcp_emit_broken(w->in->sink, w->files[at].name, why);
}

/* Emit the files of one save, by rank. */
static int dcp_composer_emit_files(const struct dcp_load *in, const struct composer_file *files,
				   size_t n, struct dcp_err *err)
{
	struct emitter w = { .in = in, .files = files, .n = n };
	char missing[512];
	int rc;

	dcp_copies_init(&w.shards);
	dcp_shard_parts_init(&w.parts);
	name_missing(&w, missing, sizeof(missing));
	rc = dcp_copies_read(&w.shards, in, n, emit_file, emit_broken, &w, err);
	if (rc == 0)
		rc = dcp_shard_parts_join(&w.parts, &w.shards, in->sink);
	if (rc == 0)
		rc = dcp_copies_emit_all(&w.shards, in->sink, missing);
	if (n > 1)
		rc = dcp_emit_fact(in->sink, rc, "ranks", "%zu", n);
	if (rc == 0 && w.containers.n)
		rc = dcp_emit_meta(in->sink, "containers", w.containers.p);
	dcp_buf_finish(&w.containers);
	dcp_copies_finish(&w.shards);
	dcp_shard_parts_finish(&w.parts);
	dcp_intern_finish(&w.emitted);
	return rc;
}

/*
 * The directory that Composer's newer interface writes. Model and optimizer are checkpoints of
 * their own, torch.save files or sharded ones; the rest is for resuming.
 *
 *	model/model.pt {"w": tensor}         model.w, path model / w
 *	optim/.metadata optim/__0_0.distcp   optim.<key>
 *	resumption.pkl                       resumption.<key>, objects
 *	composer_metadata.json               the object composer_metadata
 */

enum { MAX_METADATA = 16 << 20 };

/* Does the failure concern this part alone? */
static bool is_damage(int rc)
{
	return rc == -EBADMSG || rc == -EINVAL || rc == -ENOTSUP || rc == -E2BIG ||
	       rc == -ENOENT || rc == -EXDEV || rc == -EACCES || rc == -EIO;
}

/* ---- composer_metadata.json ---- */

static int emit_metadata(const struct dcp_load *in)
{
	static const char *const key = "composer_metadata";
	struct dcp_object o = { .key = key, .path = &key, .npath = 1, .type = "dict" };
	const struct dcp_sink *sink = in->sink;
	dcp_auto_json struct dcp_json *root = NULL;
	dcp_auto_input struct dcp_input input = { 0 };
	dcp_auto_free char *text = NULL;
	struct dcp_err why = { 0 };
	uint32_t number;
	int rc = dcp_emit_file(sink, METADATA, &number);

	if (rc < 0)
		return rc;
	rc = dcp_dir_input(in->dir, METADATA, &input, &why);
	if (rc == 0)
		rc = dcp_json_read(&input.src, MAX_METADATA, &text, &root, &why);
	if (rc == -ENOMEM)
		return rc;
	if (rc < 0)
		return dcp_emit_broken(sink, key, why.msg);
	/* the spaces around it are not part of the value */
	o.json = text + strspn(text, " \t\r\n");
	o.json_len = (size_t)input.src.size - (size_t)(o.json - text);
	while (o.json_len && strchr(" \t\r\n", o.json[o.json_len - 1]))
		o.json_len--;
	return dcp_emit_object(sink, &o);
}

/* ---- resumption.pkl ---- */

struct resuming {
	const struct dcp_load *in;
	struct dcp_buf json;
	int rc; /* the error that ended the walk, if it came from elsewhere */
};

static int on_leaf(void *ctx, const struct dcp_leaf *leaf)
{
	struct resuming *w = ctx;
	struct dcp_object o = { .key = leaf->key, .path = leaf->path, .npath = leaf->npath };
	uint64_t left = UINT64_MAX;
	int rc = dcp_pyjson_object(&w->json, NULL, leaf->value, leaf->path, leaf->npath, &left,
				   &o);

	w->rc = rc < 0 ? rc : dcp_emit_object(w->in->sink, &o);
	return w->rc;
}

static int emit_resumption(const struct dcp_load *in)
{
	static const char *const prefix = "resumption";
	struct dcp_walk how = { .prefix = &prefix, .nprefix = 1, .how = DCP_WALK_LISTS };
	struct dcp_pickle_opts opts = { 0 };
	struct resuming w = { .in = in };
	dcp_auto_pickle struct dcp_pickle *p = NULL;
	struct dcp_err why = { 0 };
	dcp_auto_input struct dcp_input input = { 0 };
	uint32_t number;
	int rc;

	if (!dcp_dir_find(in->dir, RESUMPTION))
		return 0;
	rc = dcp_emit_file(in->sink, RESUMPTION, &number);
	if (rc < 0)
		return rc;
	rc = dcp_dir_input(in->dir, RESUMPTION, &input, &why);
	if (rc == 0) {
		rc = dcp_pickle_read(&input.src, &opts, &p, NULL, &why);
		if (rc == 0)
			rc = dcp_pyjson_walk_with(NULL, dcp_pickle_root(p), &how, on_leaf, &w);
	}
	dcp_buf_finish(&w.json);
	if (rc == 0 || w.rc < 0 || rc == -ENOMEM)
		return rc;
	return dcp_emit_broken(in->sink, prefix,
			       why.code ? why.msg : "nested too deep to be walked");
}

/* ---- all of it ---- */

/* Returns 1 if the part is damaged: it is emitted with the error @why. */
static int emit_part(const struct dcp_load *in, const char *name, struct dcp_err *why)
{
	int rc = dcp_inner_load_at(in, name, name, why);

	if (rc == 0 || !is_damage(rc) || !why->code)
		return rc;
	rc = dcp_emit_broken(in->sink, name, why->msg);
	return rc < 0 ? rc : 1;
}

static int dcp_composer_emit_parts(const struct dcp_load *in, struct dcp_err *err)
{
	static const char *const parts[] = { "model", "optim" };
	int rc = dcp_emit_fact(in->sink, 0, "framework", "composer");
	size_t there = 0, broken = 0;
	struct dcp_err why = { 0 };

	rc = dcp_emit_fact(in->sink, rc, "lists", "opened");
	for (size_t i = 0; rc >= 0 && i < DCP_LEN(parts); i++) {
		if (!dcp_dir_has_dir(in->dir, parts[i]))
			continue;
		why = (struct dcp_err){ 0 };
		rc = emit_part(in, parts[i], &why);
		there++;
		broken += rc == 1;
	}
	if (rc >= 0)
		rc = emit_metadata(in);
	if (rc >= 0)
		rc = emit_resumption(in);
	if (rc >= 0 && there && broken == there)
		rc = why.code;
	if (rc < 0 && rc == why.code && err)
		*err = why;
	return DCP_MIN(rc, 0);
}

/* name: the names and contents of Composer's files. */

/* The text after "<word><digits>", where <word> is a whole word; NULL: not found. */
static const char *behind_number(const char *name, const char *from, const char *word)
{
	for (const char *p = from; (p = strstr(p, word)); p++) {
		const char *end = p + strlen(word);

		if ((p == name || !isalnum((unsigned char)p[-1])) &&
		    isdigit((unsigned char)*end))
			return end + strspn(end, "0123456789");
	}
	return NULL;
}

bool dcp_composer_name(const char *file, char *save, uint64_t *rank)
{
	const char *batch = behind_number(file, file, "ba");
	const char *end = batch ? behind_number(file, batch, "rank") : NULL;
	const char *digits;
	int n;

	if (!end || *end != '.')
		return false;
	digits = dcp_digits_before(file, end);
	n = snprintf(save, DCP_GROUP_MAX, "%.*s0%s", (int)(digits - file), file, end);
	if (!dcp_take_number(&digits, NULL, 9, rank))
		return false;
	return n > 0 && n < DCP_GROUP_MAX;
}

static bool only_state_and_rng(struct dcp_pv root)
{
	size_t n = 0;
	const struct dcp_pv *kv = dcp_pv_pairs(root, &n);

	for (size_t i = 0; i < n; i++)
		if (!dcp_pv_is_str(kv[2 * i], "state") && !dcp_pv_is_str(kv[2 * i], "rng"))
			return false;
	return n > 0;
}

bool dcp_composer_is_state(const struct dcp_torch *t)
{
	static const char *const parts[] = { "timestamp",    "rank_zero_seed", "run_name",
					     "integrations", "metadata",       "algorithms",
					     "callbacks",    "schedulers" };
	struct dcp_pv root = dcp_torch_root(t);
	const struct dcp_pv state = dcp_pv_at(root, "state");

	if (!dcp_pv_is_mapping(root) || !only_state_and_rng(root))
		return false;
	for (size_t i = 0; dcp_pv_is_mapping(state) && i < DCP_LEN(parts); i++)
		if (dcp_pv_get(state, parts[i]))
			return true;
	return false;
}

static const char states[] = "composer_states.pt", deepspeed[] = "deepspeed";

/* ---- names ---- */

static bool is_rank_file(const char *name, uint64_t *rank)
{
	char save[DCP_GROUP_MAX];

	return dcp_has_extension(name, ".pt") && dcp_composer_name(name, save, rank);
}

static bool group_ranks(const char *file, char *version)
{
	uint64_t rank;

	return is_rank_file(file, &rank) && dcp_composer_name(file, version, &rank);
}

static enum dcp_match probe_composer(const struct dcp_dir *dir, char *why, size_t n)
{
	uint64_t rank;

	if (dcp_dir_has_file(dir, METADATA) || dcp_dir_has_file(dir, states))
		return DCP_MATCH_YES;
	if (dcp_dir_has_file(dir, RESUMPTION) && dcp_dir_has_dir(dir, "model")) {
		snprintf(why, n, "%s is missing: the save was interrupted or is still running",
			 METADATA);
		return DCP_MATCH_INCOMPLETE;
	}
	for (size_t i = 0; i < dir->n; i++)
		if (!dir->entries[i].is_dir && is_rank_file(dir->entries[i].name, &rank))
			return dir->is_file ? DCP_MATCH_YES : DCP_MATCH_MANY;
	return DCP_MATCH_NO;
}

static const char *commit_file(const struct dcp_dir *dir)
{
	return dcp_dir_has_file(dir, METADATA) ? METADATA : NULL;
}

/* ---- loading ---- */

/* Load the state of an archive, and DeepSpeed's files beside it. */
static int load_states(const struct dcp_load *in, struct dcp_err *err)
{
	struct composer_file file = { .name = states };
	struct dcp_err why = { 0 };
	int rc = dcp_composer_emit_files(in, &file, 1, err);

	if (rc < 0 || !dcp_dir_has_dir(in->dir, deepspeed))
		return rc;
	rc = dcp_inner_load_at(in, deepspeed, deepspeed, &why);
	if (rc == -EINVAL || rc == -EBADMSG || rc == -ENOTSUP)
		return dcp_emit_broken(in->sink, deepspeed, why.msg);
	if (rc < 0 && err)
		*err = why;
	return rc;
}

static int by_rank(const void *a, const void *b)
{
	const struct composer_file *x = a, *y = b;

	return DCP_CMP(x->rank, y->rank) ?: strcmp(x->name, y->name);
}

static int load_ranks(const struct dcp_load *in, struct dcp_err *err)
{
	struct composer_file *files = calloc(in->dir->n + 1, sizeof(*files));
	size_t n = 0;
	int rc;

	if (!files)
		return -ENOMEM;
	for (size_t i = 0; i < in->dir->n; i++) {
		files[n].name = in->dir->entries[i].name;
		n += !in->dir->entries[i].is_dir && is_rank_file(files[n].name, &files[n].rank);
	}
	DCP_SORT(files, n, by_rank);
	rc = dcp_composer_emit_files(in, files, n, err);
	free(files);
	return rc;
}

static int load_composer(const struct dcp_load *in, struct dcp_err *err)
{
	if (dcp_dir_has_file(in->dir, METADATA))
		return dcp_composer_emit_parts(in, err);
	if (dcp_dir_has_file(in->dir, states))
		return load_states(in, err);
	return load_ranks(in, err);
}

const struct dcp_format dcp_format_composer = {
	.name = "composer",
	.what = "MosaicML Composer",
	.probe = probe_composer,
	.group = group_ranks,
	.commit_file = commit_file,
	.load = load_composer,
};

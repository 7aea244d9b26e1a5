/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/torch/torch.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/gather/join.h"
#include "core/model/tensor.h"
#include "core/parse/torch/torch.h"

/* Leaves of a torch.save stream whose other parts are in other files. */

/*
 * FSDP's LOCAL_STATE_DICT: a rank's part of many parameters laid end to end, under a name of its
 * own. The file does not tell which parameters they are, or where. Returns the reason, or NULL for
 * other leaves.
 */
static const char *dcp_torch_state_flat(const struct dcp_leaf *leaf)
{
	const char *name = leaf->npath ? leaf->path[leaf->npath - 1] : "";
	const char *dot = strrchr(name, '.');

	name = dot ? dot + 1 : name;
	if (strcmp(name, "_flat_param") != 0 && strcmp(name, "flat_param") != 0)
		return NULL;
	return "a flat parameter of FSDP's LOCAL_STATE_DICT: which parameters lie in it is not "
	       "recorded; load it in the program that saved it, and save it with "
	       "SHARDED_STATE_DICT or FULL_STATE_DICT";
}

/* Emit piece @p as a tensor of its own beside the whole. */
static int emit_part(const struct dcp_torch_state *s, const struct dcp_tensor *whole,
		     const struct dcp_piece *piece, const char *region)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT, path = DCP_BUF_INIT;
	struct dcp_piece p = *piece;
	struct dcp_tensor t = *whole;
	const char *last;

	dcp_buf_printf(&key, "%s.@%s", whole->key, region);
	dcp_buf_add(&path, whole->path, whole->npath * sizeof(*whole->path));
	if (dcp_buf_error(&key))
		return -ENOMEM;
	last = key.p + strlen(whole->key) + 1;
	if (dcp_buf_add(&path, &last, sizeof(last)) < 0)
		return -ENOMEM;
	p.lo = dcp_origin;
	t.key = key.p;
	t.path = DCP_ITEMS(path, const char *);
	t.npath++;
	t.shape = p.len;
	t.pieces = &p;
	t.npieces = 1;
	return dcp_emit_tensor(s->sink, &t);
}

static int emit_parts(const struct dcp_torch_state *s, const struct dcp_shard *sh)
{
	struct dcp_tensor whole = sh->t;
	char shape[256], region[256] = "nothing";
	struct dcp_err why = { 0 };
	int rc;

	if (whole.npieces)
		dcp_shard_region(region, sizeof(region), &whole.pieces[0], whole.ndim);
	dcp_fail(&why, -ENOTSUP,
		 "a %s of which only [%s]%s of %s is in this file: give the directory with "
		 "the "
		 "files of all ranks%s",
		 sh->what, region, whole.npieces > 1 ? " and more" : "",
		 dcp_dims_text(shape, sizeof(shape), whole.shape, whole.ndim),
		 whole.npieces ? ", or read the part" : "");
	whole.error = why.msg;
	rc = dcp_emit_tensor(s->sink, &whole);
	for (size_t i = 0; rc == 0 && !s->sealed && i < sh->t.npieces; i++) {
		dcp_shard_region(region, sizeof(region), &sh->t.pieces[i], sh->t.ndim);
		rc = emit_part(s, &sh->t, &sh->t.pieces[i], region);
	}
	return rc;
}

/* Emit the parts of a tensor whose only shard is @x. */
static int emit_whole_parts(const struct dcp_torch_state *s, struct dcp_pv v,
			    const struct dcp_shard_parts_shard *x)
{
	struct dcp_copies copies;
	struct dcp_shard_parts parts;
	int rc;

	dcp_copies_init(&copies);
	dcp_shard_parts_init(&parts);
	rc = dcp_shard_parts_add(&parts, s->t, v, x);
	if (rc == 0)
		rc = dcp_shard_parts_join(&parts, &copies, s->sink);
	for (uint32_t k = 0; k < copies.names.n && rc == 0; k++)
		rc = dcp_copies_emit(&copies, k, s->sink, NULL);
	dcp_shard_parts_finish(&parts);
	dcp_copies_finish(&copies);
	return rc;
}

/* Join a shard of a tensor made of several tensors with those of the other files, or refuse it. */
static int emit_parted(const struct dcp_torch_state *s, struct dcp_shard *sh,
		       struct dcp_err *why)
{
	struct dcp_shard_parts_shard x = {
		.key = sh->t.key,
		.path = sh->t.path,
		.npath = sh->t.npath,
		.ndim = sh->t.ndim,
		.shape = sh->t.shape,
		.local = sh->local_shape,
		.box = sh->box,
		.nbox = sh->nbox,
		.file = s->file,
		.base = s->base,
		.who = s->who,
		.name = s->name ? s->name : "",
	};
	char shape[256];

	for (size_t i = 0; i < s->own && x.npath > 1; i++, x.path++, x.npath--)
		x.key += strlen(x.path[0]) + 1;
	if (s->parts)
		return dcp_shard_parts_add(s->parts, s->t, sh->local, &x);
	if (sh->whole && !s->shard)
		return emit_whole_parts(s, sh->local, &x);
	dcp_fail(why, -ENOTSUP,
		 "a %s of %s, which consists of several tensors, and only a part of %s is in "
		 "this "
		 "file: %s",
		 sh->what, sh->class, dcp_dims_text(shape, sizeof(shape), x.shape, x.ndim),
		 s->shard ? "in this format the parts are not put together"
			  : "give the directory with the files of all ranks");
	sh->t.error = why->msg;
	return s->shard ? s->shard(s->ctx, &sh->t) : dcp_emit_tensor(s->sink, &sh->t);
}

/* Emit a DTensor or ShardedTensor. @arena is emptied first. */
static int dcp_torch_state_shard(const struct dcp_torch_state *s, const struct dcp_leaf *leaf,
				 const char *key, struct dcp_arena *arena)
{
	struct dcp_shard sh;
	struct dcp_err why = { 0 };
	int rc;

	dcp_arena_reset(arena);
	rc = dcp_shard_read(s->t, leaf->value, s->file, s->base, arena, &sh, &why);
	if (rc == -ENOMEM)
		return -ENOMEM;
	sh.t.key = key;
	sh.t.path = leaf->path;
	sh.t.npath = leaf->npath;
	if (rc < 0)
		sh.t.error = why.msg;
	if (dcp_torch_state_flat(leaf))
		sh.t.error = dcp_torch_state_flat(leaf);
	else if (s->sealed && !sh.t.error && sh.t.npieces)
		sh.t.error = s->sealed;
	if (sh.parted && s->sealed)
		sh.t.error = s->sealed;
	if (sh.t.error)
		sh.t.npieces = 0; /* some were read before the fault */
	if (!sh.t.dtype_name) {
		sh.t.dtype = DCP_DTYPE_OTHER;
		sh.t.dtype_name = "";
	}
	if (sh.parted && !sh.t.error && !s->sealed)
		return emit_parted(s, &sh, &why);
	if (s->shard)
		return s->shard(s->ctx, &sh.t);
	return sh.t.error || sh.whole ? dcp_emit_tensor(s->sink, &sh.t) : emit_parts(s, &sh);
}

/* Bytes of JSON for each byte of the pickle; leaves that share parts repeat them. */
enum { MAX_WRITTEN = 64, SHARDS_LIMIT = 256 << 20 };

struct emitter {
	const struct dcp_torch_state *s;
	bool tensors_only;
	int rc; /* what the sink returned last, kept apart from the walk's own codes */
	struct dcp_places places; /* of all tensors emitted so far */
	struct dcp_buf scratch;
	struct dcp_arena shards; /* of the tensor at hand */
	uint64_t left;           /* bytes of JSON that may still be emitted */
};

static void finish_emitter(struct emitter *w)
{
	dcp_places_finish(&w->places);
	dcp_buf_finish(&w->scratch);
	dcp_arena_finish(&w->shards);
}

static struct dcp_pv root_of(const struct dcp_torch_state *s)
{
	return s->root ? *s->root : dcp_torch_root(s->t);
}

static uint64_t limit_written(const struct dcp_torch_state *s)
{
	return MAX_WRITTEN * (DCP_MIN(dcp_torch_pickle_size(s->t), (uint64_t)1 << 40) + 1);
}

static int emit_located(struct emitter *w, const struct dcp_leaf *leaf, const char *key,
			const struct dcp_torch_tensor *tt)
{
	const struct dcp_torch_state *s = w->s;
	struct dcp_piece p = { .file = s->file };
	struct dcp_tensor t = { .key = key, .path = leaf->path, .npath = leaf->npath };
	int rc;

	t.error = dcp_torch_one_piece(tt, s->base, &t, &p);
	if (t.npieces && s->sealed)
		t.error = s->sealed;
	rc = t.npieces && !t.error ? dcp_places_find(&w->places, &t) : 0;
	if (rc < 0)
		return rc;
	return dcp_emit_tensor(s->sink, &t);
}

static int emit_tensor(struct emitter *w, const struct dcp_leaf *leaf, const char *key)
{
	const struct dcp_torch_state *s = w->s;
	struct dcp_torch_tensor tt;
	struct dcp_err why = { 0 };
	struct dcp_tensor broken = {
		.key = key,
		.path = leaf->path,
		.npath = leaf->npath,
		.dtype = DCP_DTYPE_OTHER,
		.dtype_name = "",
		.error = why.msg,
	};

	if (s->skip && s->skip(s->ctx, key))
		return 0;
	if (dcp_shard_is(leaf->value))
		return dcp_torch_state_shard(s, leaf, key, &w->shards);
	if (dcp_torch_state_flat(leaf)) {
		broken.error = dcp_torch_state_flat(leaf);
		return dcp_emit_tensor(s->sink, &broken);
	}
	if (dcp_torch_tensor(s->t, leaf->value, &tt, &why) == 1)
		return emit_located(w, leaf, key, &tt);
	if (why.code == -ENOMEM)
		return -ENOMEM;
	if (!why.msg[0])
		dcp_fail(&why, -EBADMSG, "not a tensor that can be read");
	return dcp_emit_tensor(s->sink, &broken);
}

/* @as: the leaf as it is shown. @path: where it is stored, which names the tensors inside it. */
static int emit_object(struct emitter *w, const struct dcp_leaf *as, const char *const *path,
		       size_t npath)
{
	const struct dcp_torch_state *s = w->s;
	struct dcp_object o = { .key = as->key,
				.path = as->path,
				.npath = as->npath,
				.entry = npath == s->nprefix && s->entry,
				.stored = npath == s->nprefix ? s->stored : NULL };
	struct dcp_pystream stream;

	if (dcp_pyjson_object(&w->scratch, dcp_pyjson_torch(s->t, &stream), as->value, path,
			      npath, &w->left, &o) < 0)
		return -ENOMEM;
	return dcp_emit_object(s->sink, &o);
}

/* A value that is the whole file has only the file's name. */
static struct dcp_leaf name_leaf(const struct emitter *w, const struct dcp_leaf *leaf)
{
	struct dcp_leaf out = *leaf;

	if (leaf->npath == 0 && w->s->whole) {
		out.key = w->s->whole;
		out.path = &w->s->whole;
		out.npath = 1;
	}
	return out;
}

static int on_leaf(void *ctx, const struct dcp_leaf *leaf)
{
	struct emitter *w = ctx;
	const struct dcp_leaf as = name_leaf(w, leaf);

	if (leaf->is_tensor || dcp_shard_is(leaf->value))
		w->rc = emit_tensor(w, &as, as.key);
	else if (!w->tensors_only)
		w->rc = emit_object(w, &as, leaf->path, leaf->npath);
	return w->rc;
}

/* A part of a tensor is not opened but emitted as a part, whatever it is made of. */
static int on_take(void *ctx, const struct dcp_leaf *leaf)
{
	struct emitter *w = ctx;
	int rc = w->s->take ? w->s->take(w->s->ctx, leaf) : 0;

	if (rc == 0 && dcp_shard_is(leaf->value)) {
		const struct dcp_leaf as = name_leaf(w, leaf);

		rc = emit_tensor(w, &as, as.key);
		rc = rc < 0 ? rc : 1;
	}
	w->rc = DCP_MIN(rc, 0);
	return rc;
}

/* Emit the error of a value nested too deep; its leaves above that depth were emitted. */
static int emit_too_deep(struct emitter *w)
{
	const struct dcp_torch_state *s = w->s;
	const struct dcp_object o = {
		.path = s->prefix,
		.npath = s->nprefix,
		.type = dcp_pyjson_type(root_of(s)),
		.error = "nested too deep to be walked",
		.stored = s->stored,
		.entry = s->entry,
	};

	return dcp_emit_object(s->sink, &o);
}

static int walk_state(struct emitter *w)
{
	const struct dcp_torch_state *s = w->s;
	struct dcp_walk how = {
		.prefix = s->prefix,
		.nprefix = s->nprefix,
		.how = DCP_WALK_INSIDE | (s->tuples ? DCP_WALK_TUPLES : 0) |
		       (s->lists ? DCP_WALK_LISTS : 0),
		.take = on_take,
		.containers = w->tensors_only ? NULL : s->containers,
	};
	int rc = dcp_pyjson_walk_with(s->t, root_of(s), &how, on_leaf, w);

	if (rc == 0 || w->rc < 0 || rc == -ENOMEM)
		return rc;
	return w->tensors_only ? 0 : emit_too_deep(w);
}

/* Forms in which ranks save flattened parts, and how to join them. */
static const struct {
	const char *at[2];  /* where the file describes its parts */
	const char *has[2]; /* and the keys of that description */
	const char *by, *tool;
} flattened[] = {
	{ { "shard_metadata", NULL },
	  { "shard_info", "flatten_info" },
	  "torch_xla's FSDP",
	  "torch_xla's consolidate_sharded_model_checkpoints" },
	{ { "shard_metadata", "metadata" },
	  { "param_metadata", "buffer_names" },
	  "fairscale's FSDP",
	  "fairscale's FullyShardedDataParallel.consolidate_shard_weights" },
};

int dcp_torch_state_check(const struct dcp_torch *t, const char *name, struct dcp_err *err)
{
	for (size_t i = 0; i < 2 * DCP_LEN(flattened); i++) {
		const char *at = flattened[i / 2].at[i % 2];
		const char *const *has = flattened[i / 2].has;
		const struct dcp_pv meta = dcp_pv_at(dcp_torch_root(t), at ? at : "");

		if (at && dcp_pv_get(meta, has[0]) && dcp_pv_get(meta, has[1]))
			return dcp_fail(err, -ENOTSUP,
					"%s is what one rank of %s saved (it has %s): "
					"flattened parts of the model, which dcpfs does not "
					"put together; %s makes one file of them",
					name, flattened[i / 2].by, at, flattened[i / 2].tool);
	}
	return 0;
}

int dcp_torch_state_emit(const struct dcp_torch_state *s)
{
	struct emitter w = { .s = s, .left = limit_written(s) };
	int rc;

	dcp_arena_init(&w.shards, SHARDS_LIMIT);
	rc = walk_state(&w);

	finish_emitter(&w);
	return rc;
}

int dcp_torch_state_emit_whole(const struct dcp_torch_state *s, const char *key)
{
	struct dcp_torch_state own = *s;
	struct emitter w = { .s = s, .tensors_only = true, .left = limit_written(s) };
	struct dcp_leaf root = {
		.path = s->prefix, .npath = s->nprefix, .key = key, .value = root_of(s)
	};
	struct dcp_torch_tensor tt;
	int rc;

	dcp_arena_init(&w.shards, SHARDS_LIMIT);
	if (dcp_torch_tensor(s->t, root.value, &tt, NULL) != 0) {
		own.skip = NULL; /* it is the stored key itself */
		w.s = &own;
		rc = emit_tensor(&w, &root, key);
	} else {
		rc = walk_state(&w);
		if (rc == 0)
			rc = emit_object(&w, &root, s->prefix, s->nprefix);
	}
	finish_emitter(&w);
	return rc;
}

/* Make @o a list with the value of @o. The numbers of values grow by 1, and value 1 gets the class
 * of @o, if the name of the class is one word. */
static int put_in_list(struct dcp_buf *json, struct dcp_buf *classes, struct dcp_object *o)
{
	static const char word[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.";
	const char *p = o->classes;
	uint64_t at;

	dcp_buf_add(json, "[", 1);
	dcp_buf_add(json, o->json, o->json_len);
	dcp_buf_str(json, "]");
	if (o->type[strspn(o->type, word)] == '\0')
		dcp_buf_printf(classes, "1:%s", o->type);
	while (p && dcp_take_number(&p, NULL, 18, &at)) {
		size_t n = strcspn(p, " ");

		dcp_buf_printf(classes, " %" PRIu64 "%.*s", at + 1, (int)n, p);
		p += n + (p[n] == ' ');
	}
	if (dcp_buf_error(json) || dcp_buf_error(classes))
		return -ENOMEM;
	o->type = "list";
	o->json = json->p;
	o->json_len = json->n;
	o->classes = classes->n ? classes->p : NULL;
	return 0;
}

int dcp_torch_state_emit_item(const struct dcp_torch_state *s, const char *key,
			      const char *const *path, size_t npath, bool listed)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT, json = DCP_BUF_INIT,
				    classes = DCP_BUF_INIT;
	struct dcp_object o = { .key = key, .path = path, .npath = npath };
	struct dcp_pystream stream;
	uint64_t left = limit_written(s);
	int rc = dcp_pyjson_object(&text, dcp_pyjson_torch(s->t, &stream), root_of(s),
				   s->prefix, s->nprefix, &left, &o);

	if (rc == 0 && listed && o.json)
		rc = put_in_list(&json, &classes, &o);
	return rc < 0 ? rc : dcp_emit_item(s->sink, &o);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leaves of a torch.save stream of which other files hold the rest.
 */
#include <errno.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/format/gather/copies.h"
#include "core/format/torch/shard/parts.h"
#include "core/format/torch/shard/shard.h"
#include "core/format/torch/state_int.h"
#include "core/model/tensor.h"

const char *dcp_tstate_flat(const struct dcp_leaf *leaf)
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

/* The part that piece @p is, as a tensor of its own beside the whole. */
static int emit_part(const struct dcp_tstate *s, const struct dcp_tensor *whole,
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

static int emit_parts(const struct dcp_tstate *s, const struct dcp_tshard *sh)
{
	struct dcp_tensor whole = sh->t;
	char shape[256], region[256] = "nothing";
	struct dcp_err why = { 0 };
	int rc;

	if (whole.npieces)
		dcp_tshard_region(region, sizeof(region), &whole.pieces[0], whole.ndim);
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
		dcp_tshard_region(region, sizeof(region), &sh->t.pieces[i], sh->t.ndim);
		rc = emit_part(s, &sh->t, &sh->t.pieces[i], region);
	}
	return rc;
}

/* The one shard @x is the whole. */
static int emit_whole_parts(const struct dcp_tstate *s, struct dcp_pv v,
			    const struct dcp_tparts_shard *x)
{
	struct dcp_copies copies;
	struct dcp_tparts parts;
	int rc;

	dcp_copies_init(&copies);
	dcp_tparts_init(&parts);
	rc = dcp_tparts_add(&parts, s->t, v, x);
	if (rc == 0)
		rc = dcp_tparts_join(&parts, &copies, s->sink);
	for (uint32_t k = 0; k < copies.names.n && rc == 0; k++)
		rc = dcp_copies_emit(&copies, k, s->sink, NULL);
	dcp_tparts_finish(&parts);
	dcp_copies_finish(&copies);
	return rc;
}

/*
 * A shard of a tensor that consists of several: it is joined with those of the other files, or
 * refused.
 */
static int emit_parted(const struct dcp_tstate *s, struct dcp_tshard *sh, struct dcp_err *why)
{
	struct dcp_tparts_shard x = {
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
		return dcp_tparts_add(s->parts, s->t, sh->local, &x);
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

int dcp_tstate_shard(const struct dcp_tstate *s, const struct dcp_leaf *leaf, const char *key,
		     struct dcp_arena *arena)
{
	struct dcp_tshard sh;
	struct dcp_err why = { 0 };
	int rc;

	dcp_arena_reset(arena);
	rc = dcp_tshard_read(s->t, leaf->value, s->file, s->base, arena, &sh, &why);
	if (rc == -ENOMEM)
		return -ENOMEM;
	sh.t.key = key;
	sh.t.path = leaf->path;
	sh.t.npath = leaf->npath;
	if (rc < 0)
		sh.t.error = why.msg;
	if (dcp_tstate_flat(leaf))
		sh.t.error = dcp_tstate_flat(leaf);
	else if (s->sealed && !sh.t.error && sh.t.npieces)
		sh.t.error = s->sealed;
	if (sh.parted && s->sealed)
		sh.t.error = s->sealed;
	if (sh.t.error)
		sh.t.npieces = 0; /* some were read before what is wrong */
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

/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/store/view/view.h"
#include "tools/cmd.h"
#include "tools/out.h"
#include "tools/pick.h"

#define CAT_CHUNK ((size_t)8 << 20)

struct cat_opts {
	int as;
	struct pick_opts pick;
};

/* In the order of enum dcp_as. */
static const char *const forms[] = { "raw", "npy", "safetensors", NULL };

static const struct opt opts[] = {
	{ 0, "as", "FORM", "raw (default), npy or safetensors; objects are always JSON",
	  OPT_CHOICE, .off = offsetof(struct cat_opts, as), .choices = forms },
	PICK_OPTS_READ(struct cat_opts),
	OPT_END
};

static const struct opt_operand operands[] = { PICK_OPERANDS,
					       { "KEY", false, OPT_KEY },
					       { 0 } };

/* @writing is set before stdout is written, to tell a failing write from a failing read. */
static int copy_view(const struct dcp_view *view, bool *writing, uint64_t *done)
{
	dcp_auto_free char *chunk = malloc(CAT_CHUNK);
	uint64_t size = dcp_view_size(view);

	if (!chunk)
		return -ENOMEM;
	while (*done < size) {
		size_t n = (size_t)DCP_MIN(size - *done, CAT_CHUNK);
		int rc;

		*writing = false;
		rc = dcp_view_read(view, *done, chunk, n);
		if (rc < 0)
			return rc;
		*writing = true;
		rc = out_write(STDOUT_FILENO, chunk, n);
		if (rc < 0)
			return rc;
		*done += n;
	}
	return 0;
}

static enum cmd_exit cat_tensor(struct pick *p, const struct dcp_row *row, enum dcp_as as)
{
	dcp_auto_view struct dcp_view *view = NULL;
	struct dcp_err err = { 0 };
	bool writing = false;
	uint64_t done = 0;
	char n[32];
	int rc;

	if (isatty(STDOUT_FILENO))
		return cmd_fail(CMD_USAGE,
				"a terminal cannot show the bytes of a tensor; redirect "
				"them: > FILE, or | od -An -tf4");
	rc = dcp_view_open(p->ck.v, row->id, as, NULL, &view, &err);
	if (rc == -EIO && dcp_version_barred(p->ck.v))
		rc = -EACCES; /* the index has it as unreadable */
	if (rc < 0)
		return cmd_fail(cmd_exit_of(rc), "%s", err.msg);
	rc = copy_view(view, &writing, &done);
	if (rc == 0 || (writing && rc == -EPIPE))
		return CMD_OK;
	if (writing)
		return cmd_fail(CMD_ENV, "standard output: %s", strerror(-rc));
	return cmd_fail(cmd_exit_of(rc), "%s: %s: %s after %s byte%s", p->ck.name, row->key,
			rc == -ESTALE ? "a file of the checkpoint was changed while it was read"
				      : dcp_err_noted(rc),
			out_count(n, done), dcp_s(done));
}

static enum cmd_exit cat_object(struct pick *p, const struct dcp_row *row,
				struct dcp_arena *arena)
{
	struct dcp_object ob;
	struct dcp_err err = { 0 };
	struct out o;
	int rc = dcp_index_object(dcp_version_index(p->ck.v), row->id, arena, &ob, &err);

	if (rc < 0)
		return cmd_fail(cmd_exit_of(rc), "%s: %s: %s", p->ck.name, row->key, err.msg);
	if (!ob.json)
		return cmd_fail(CMD_BAD, "%s: %s: %s", p->ck.name, row->key,
				ob.error ? ob.error : "it has no JSON form");
	out_init(&o, OUT_TEXT);
	dcp_buf_add(&o.buf, ob.json, ob.json_len);
	dcp_buf_str(&o.buf, "\n");
	return out_flush(&o);
}

struct catting {
	struct pick *p;
	enum dcp_as as;
	enum cmd_exit code;
};

static int cat_key(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	struct catting *c = ctx;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);

	c->code = kind == DCP_ROW_TENSOR ? cat_tensor(c->p, row, c->as)
					 : cat_object(c->p, row, &arena);
	return c->code != CMD_OK;
}

/* Several tensors go into one stream only in a form that a reader can separate. */
static enum cmd_exit check_keys(const struct pick_keys *keys, enum dcp_as as)
{
	if (keys->tensors && keys->objects)
		return cmd_fail(CMD_USAGE,
				"\"%s\" matches tensors and objects, whose bytes and JSON do "
				"not go into one stream; narrow it",
				keys->pattern);
	if (keys->tensors > 1 && as == DCP_AS_SAFETENSORS)
		return cmd_fail(CMD_USAGE,
				"\"%s\" matches several tensors, and a safetensors file has "
				"one header; take --as npy, one by one, or shard/ of a mount",
				keys->pattern);
	return CMD_OK;
}

static enum cmd_exit run_cat(const void *opts_in, const struct opt_args *args)
{
	const struct cat_opts *opt = opts_in;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT((size_t)1 << 30);
	struct pick_keys keys;
	struct pick p;
	struct catting c = { .p = &p, .as = (enum dcp_as)opt->as };
	enum cmd_exit code = pick_open(&p, args, &opt->pick);
	int rc;

	if (code == CMD_OK && p.ck.base)
		code = hf_check(p.ck.v, &opt->pick.hf, "cat", false);
	if (code == CMD_OK)
		code = pick_keys(&p, args->operand[PICK_KEY], &arena, &keys);
	if (code == CMD_OK)
		code = check_keys(&keys, c.as);
	if (code == CMD_OK) {
		rc = pick_keys_each(&p, &keys, cat_key, &c);
		code = rc < 0 ? cmd_fail(cmd_exit_of(rc), "%s: %s", p.ck.name, strerror(-rc))
			      : c.code;
	}
	pick_finish(&p);
	return code;
}

const struct cmd cmd_cat = {
	.name = "cat",
	.what = "write one tensor or object to standard output",
	.about = "Write the bytes of one tensor, put together from all shards, without a "
		 "mount. A tensor that cannot be read writes nothing and ends with a message. "
		 "KEY may be a pattern: what matches is written in order.",
	.operands = operands,
	.opts = opts,
	.size = sizeof(struct cat_opts),
	.run = run_cat,
	.examples = { "dcpfs cat /data/run1 model.norm.weight --as npy > norm.npy",
		      "dcpfs cat /data/run1 'optim.param_groups.*' | jq -c .",
		      "dcpfs cat /data/run1 500 model.norm.weight | sha256sum" },
};

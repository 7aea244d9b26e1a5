/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paddle's plain files: paddle.save, save_inference_model, jit.save, group_sharded, and what
 * paddle.incubate.distributed.utils.io writes.
 *
 *	model.pdparams model.pdopt             version model
 *	opt_rank0.pdopt opt_rank1.pdopt        version opt: whole tensors, each of some rank
 *	infer.pdiparams infer.pdmodel          version infer: the second names the tensors
 *	w_dist0.pdparams w_dist0.pdattr ...    version w: pieces, see auto.c
 *	state.pdz                              version state.pdz
 *
 * What a file holds is decided by its first bytes; names only group.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/text.h"
#include "core/format/formats.h"
#include "core/format/paddle/plain/plain_int.h"

enum {
	MEMORY = 256 << 20, /* labels of a million files */
	MAX_MISSING = 1000, /* absent ranks that are named one by one */
};

static enum dcp_match probe(const struct dcp_dir *dir, char *why, size_t n)
{
	struct dcp_pdname name;

	for (size_t i = 0; i < dir->n; i++)
		if (!dir->entries[i].is_dir && dcp_pdname_read(dir->entries[i].name, &name) &&
		    name.kind != DCP_PDKIND_JSON && name.kind != DCP_PDKIND_INFO)
			return DCP_MATCH_MANY;
	return DCP_MATCH_NO;
}

static bool group(const char *file, char *version)
{
	struct dcp_pdname name;

	if (!dcp_pdname_read(file, &name))
		return false;
	memcpy(version, name.version, strlen(name.version) + 1);
	return true;
}

/* ---- the files of a version ---- */

struct version {
	struct dcp_arena arena;
	struct dcp_pdpart *parts;
	struct dcp_pdname *names; /* of the parts */
	size_t n;
	bool attrs, extensions, ranks; /* what there is; extensions: more than one */
};

/* A program is not a part; a file that is called like one and is a pickle is. */
static bool is_program(const struct dcp_dir *dir, const char *file)
{
	dcp_auto_input struct dcp_input input = { 0 };
	uint8_t first = 0;

	if (dcp_dir_input(dir, file, &input, NULL) < 0)
		return false;
	if (input.src.size > 0 && dcp_source_read(&input.src, 0, &first, 1) < 0)
		first = 0x80;
	return first != 0x80;
}

static void take_parts(struct version *v, const struct dcp_load *in, bool all)
{
	for (size_t i = 0; i < in->dir->n; i++) {
		const struct dcp_dirent *e = &in->dir->entries[i];
		struct dcp_pdname *name = &v->names[v->n];

		if (e->is_dir || !dcp_pdname_read(e->name, name) ||
		    name->kind == DCP_PDKIND_JSON || name->kind == DCP_PDKIND_INFO)
			continue;
		if (name->kind == DCP_PDKIND_ATTR && !all) {
			v->attrs = true;
			continue;
		}
		if (name->kind == DCP_PDKIND_MODEL && !all && is_program(in->dir, e->name))
			continue;
		v->extensions |= v->n && strcmp(v->names[0].extension, name->extension) != 0;
		v->ranks |= name->ranks[0];
		v->parts[v->n++] = (struct dcp_pdpart){ .file = e->name, .sink = in->sink };
	}
}

/* What distinguishes the parts: their extensions, their ranks, or both. */
static int label(struct version *v)
{
	for (size_t i = 0; i < v->n; i++) {
		const struct dcp_pdname *name = &v->names[i];
		const char *dot = name->ranks[0] && v->extensions ? "." : "";
		const char *end = !name->ranks[0] || v->extensions ? name->extension : "";
		size_t n = strlen(name->ranks) + strlen(end) + 2;
		char *text = dcp_arena_alloc(&v->arena, n);

		if (!text)
			return -ENOMEM;
		snprintf(text, n, "%s%s%s", name->ranks, dot, end);
		v->parts[i].label = text;
	}
	return 0;
}

static int take_version(struct version *v, const struct dcp_load *in, struct dcp_err *err)
{
	size_t n = in->dir->n + 1;

	dcp_arena_init(&v->arena, MEMORY + n * (sizeof(*v->parts) + sizeof(*v->names)));
	v->parts = dcp_arena_calloc(&v->arena, n, sizeof(*v->parts));
	v->names = dcp_arena_calloc(&v->arena, n, sizeof(*v->names));
	if (v->parts && v->names) {
		take_parts(v, in, false);
		if (v->n == 0) { /* whatever there is: it says itself why it is nothing */
			v->attrs = false;
			take_parts(v, in, true);
		}
		if (label(v) == 0)
			return 0;
	}
	return dcp_fail(err, -ENOMEM, "out of memory for names of files");
}

/* ---- ranks that are not there ---- */

/* @file with another number in place of its last one, as wide. */
static void other_rank(char *out, size_t n, const char *file, const char *extension,
		       uint64_t rank)
{
	const char *end = extension - 1, *start = dcp_digits_before(file, end);

	snprintf(out, n, "%.*s%0*" PRIu64 "%s", (int)(start - file), file,
		 end - start > 1 && *start == '0' ? (int)(end - start) : 1, rank, end);
}

/* Files "w_rank0", "w_rank3": report that ranks 1 and 2 are missing. */
static int emit_missing(const struct version *v, const struct dcp_load *in)
{
	const struct dcp_pdname *last = NULL;
	const char *like = "";
	size_t emitted = 0;
	int rc = 0;

	for (size_t i = 0; i < v->n; i++)
		if (v->names[i].one_rank && (!last || v->names[i].rank > last->rank)) {
			last = &v->names[i];
			like = v->parts[i].file;
		}
	for (uint64_t r = 0; rc == 0 && last && r < last->rank && emitted < MAX_MISSING; r++) {
		char file[DCP_GROUP_MAX + 32], why[DCP_GROUP_MAX + 128];
		char text[2 * DCP_GROUP_MAX];
		struct dcp_pdpart gone = { .label = text, .sink = in->sink };
		struct dcp_pdname name;

		other_rank(file, sizeof(file), like, last->extension, r);
		if (dcp_dir_find(in->dir, file) || !dcp_pdname_read(file, &name))
			continue;
		snprintf(text, sizeof(text), "%s%s%s", name.ranks, v->extensions ? "." : "",
			 v->extensions ? name.extension : "");
		snprintf(why, sizeof(why),
			 "%s is missing: there are files of ranks up to %" PRIu64, file,
			 last->rank);
		rc = dcp_pdpart_broken(&gone, why);
		emitted++;
	}
	return rc;
}

static int load(const struct dcp_load *in, struct dcp_err *err)
{
	struct version v = { 0 };
	int rc = take_version(&v, in, err);

	if (rc == 0 && v.n == 0)
		rc = dcp_fail(err, -ENOENT, "no file of Paddle's in it");
	if (rc == 0 && v.attrs)
		rc = dcp_pdauto(in, v.parts, v.names, v.n, err);
	else if (rc == 0 && v.n == 1)
		rc = dcp_pdpart_emit(in->dir, &v.parts[0], err);
	else if (rc == 0)
		rc = dcp_pdmerge(in, v.parts, v.n, err);
	if (rc == 0 && v.n > 1 && !v.attrs)
		rc = emit_missing(&v, in);
	dcp_arena_finish(&v.arena);
	return dcp_emit_fact(in->sink, rc, "framework", "paddle");
}

const struct dcp_format dcp_format_paddle_plain = {
	.name = "paddle-plain",
	.what = "paddle.save files",
	.probe = probe,
	.group = group,
	.load = load,
	.marks =
		(const struct dcp_mark[]){
			{ "*.pdparams", "a Paddle checkpoint" },
			{ 0 },
		},
};

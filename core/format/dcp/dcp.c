/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/dcp/dcp_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/formats.h"
#include "core/format/weights/name.h"
#include "core/origin/dir/dir.h"

/* ---- names ---- */

bool dcp_dcp_is_data_name(const char *name, uint64_t *rank)
{
	/* Megatron may put a hint in front, which may hold "__" itself: try each. */
	for (const char *p = strstr(name, "__"); p; p = strstr(p + 1, "__")) {
		uint64_t n;
		const char *q = p + 2;

		if (dcp_take_number(&q, NULL, 9, rank) && *q++ == '_' &&
		    dcp_take_number(&q, NULL, 9, &n) && strcmp(q, ".distcp") == 0)
			return true;
	}
	return false;
}

bool dcp_dcp_is_rank_name(const char *name, const char *suffix, uint64_t *rank)
{
	const char *p = name + 2;

	return strncmp(name, "__", 2) == 0 && dcp_take_number(&p, NULL, 9, rank) &&
	       strcmp(p, suffix) == 0;
}

static enum dcp_match probe_dcp(const struct dcp_dir *dir, char *why, size_t n)
{
	size_t data = 0, local = 0;
	bool partial = dcp_dir_find(dir, ".metadata.tmp") != NULL;
	uint64_t rank;

	if (dcp_dir_has_file(dir, ".metadata"))
		return DCP_MATCH_YES;
	for (size_t i = 0; i < dir->n; i++) {
		const char *name = dir->entries[i].name;

		data += dcp_dcp_is_data_name(name, &rank);
		local += dcp_dcp_is_rank_name(name, ".metadata", &rank);
	}
	if (local || (!data && !partial))
		return DCP_MATCH_NO;
	snprintf(why, n, ".metadata is missing%s: the save was interrupted or is still running",
		 partial ? " (.metadata.tmp is there)" : "");
	return DCP_MATCH_INCOMPLETE;
}

static const char *commit_file(const struct dcp_dir *dir)
{
	return ".metadata";
}

/* ---- emitting ---- */

/* Read the file @name as (one more) metadata file and emit it to the sink. The directory may be
 * NULL when nothing is read through it. */
static int dcp_dcp_read(struct dcp_dcp *d, const char *name, struct dcp_err *err)
{
	struct dcp_input input;
	uint32_t number;
	int rc = dcp_emit_file(d->in->sink, name, &number); /* before it is read */

	if (rc == 0)
		rc = dcp_dir_input(d->in->dir, name, &input, err);
	if (rc < 0)
		return rc;
	rc = dcp_dcp_meta_read(&d->meta, &input.src, err);
	dcp_input_close(&input);
	if (rc == -EBADMSG)
		return dcp_err_where(err, rc,
				     "%s is damaged (copy it again, or use another "
				     "version)",
				     name);
	return rc < 0 ? dcp_err_where(err, rc, "%s", name) : 0;
}

/* Count the ranks by the names of the files that hold data: i of __i_n.distcp. */
static uint64_t count_ranks(const struct dcp_dcp_meta *m)
{
	uint64_t most = 0, rank;

	for (uint32_t i = 0; i < m->files.n; i++) {
		const char *name = dcp_intern_text(&m->files, i);

		if (dcp_dcp_is_data_name(name, &rank) && rank + 1 > most)
			most = rank + 1;
	}
	return most;
}

/* Composer saves its nested state, and names parts of it as if every list had been opened. */
static bool is_composer(const struct dcp_dcp_meta *m)
{
	static const char *const keys[] = { "state.rank_zero_seed", "state.run_name",
					    "state.timestamp.Timestamp.epoch",
					    "state.metadata.torch_version" };

	for (size_t i = 0; i < DCP_LEN(keys); i++)
		if (dcp_intern_has(&m->names, keys[i]))
			return true;
	return false;
}

static int emit_facts(const struct dcp_dcp *d)
{
	const struct dcp_sink *sink = d->in->sink;
	uint64_t ranks = count_ranks(&d->meta);
	int rc = dcp_emit_fact(sink, 0, "framework", "torch");

	rc = dcp_emit_fact(sink, rc, "world_files", "%" PRIu32, d->meta.files.n);
	if (ranks)
		rc = dcp_emit_fact(sink, rc, "ranks", "%" PRIu64, ranks);
	rc = dcp_emit_fact(sink, rc, "save_id", "%s", d->meta.save_id);
	if (is_composer(&d->meta))
		rc = dcp_emit_fact(sink, rc, "lists", "opened");
	return dcp_emit_fact(sink, rc, "metadata_version", "%s", d->meta.version);
}

static int emit_containers(struct dcp_dcp_emitter *w)
{
	struct dcp_buf *b = &w->containers;

	for (uint32_t i = 0; i < w->m->containers.n; i++)
		dcp_buf_printf(b, "%s\n", dcp_intern_text(&w->m->containers, i));
	if (dcp_buf_error(b))
		return -ENOMEM;
	return b->n ? dcp_emit_meta(w->sink, "containers", b->p) : 0;
}

static int emit_key(struct dcp_dcp_emitter *w, uint32_t key)
{
	uint32_t at = w->m->keys[key].entry;

	if (!at)
		return 0; /* only storage_data or planner_data name it: torch ignores it too */
	if (dcp_dcp_meta_entry(w->m, at).kind == DCP_DCP_META_BYTES)
		return dcp_dcp_emit_bytes(w, key);
	return dcp_dcp_emit_tensor(w, key);
}

static int emit_keys(struct dcp_dcp_emitter *w)
{
	uint32_t n = w->m->names.n;
	int rc = 0;

	for (uint32_t k = 0; k < n && rc == 0; k++) {
		rc = emit_key(w, k);
		if (k % 1024 == 1023)
			dcp_load_progress(w->d->in, k + 1, n, "keys");
	}
	return rc;
}

int dcp_dcp_emit(struct dcp_dcp *d, struct dcp_err *err)
{
	struct dcp_dcp_emitter w = { .d = d, .m = &d->meta, .sink = d->in->sink };
	int rc = dcp_dcp_meta_join(&d->meta, err);

	if (rc < 0)
		return rc;
	if (d->meta.norphans)
		dcp_log(d->in->log, DCP_LOG_WARN,
			"%" PRIu64 " entr%s of storage_data without a key", d->meta.norphans,
			d->meta.norphans == 1 ? "y" : "ies");
	w.lists = is_composer(&d->meta);
	dcp_dcp_item_files_init(&w.files, d->in->dir);
	rc = emit_keys(&w);
	if (rc == 0)
		rc = dcp_dcp_emit_lost_shards(&w);
	if (rc == 0)
		rc = emit_facts(d);
	if (rc == 0)
		rc = emit_containers(&w);
	dcp_dcp_emitter_finish(&w);
	return rc;
}

/* Files of the checkpoint itself, and files that are looked for in every version. */
static bool is_shown(void *ctx, const char *name)
{
	const struct dcp_dcp *d = ctx;

	return dcp_intern_has(&d->meta.files, name) || dcp_has_extension(name, ".distcp") ||
	       dcp_has_extension(name, ".metadata") || dcp_weights_is_sidecar(name);
}

/* Emit other files of the directory that may hold tensors, below their names, or name them as left
 * out. */
static int dcp_dcp_emit_rest(struct dcp_dcp *d)
{
	return dcp_weights_emit_rest(d->in, is_shown, d);
}

static int load_dcp(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_dcp d = { .in = in };
	int rc = dcp_dcp_meta_init(&d.meta);

	if (rc < 0)
		return dcp_fail(err, rc, "out of memory for metadata");
	rc = dcp_dcp_read(&d, ".metadata", err);
	if (rc == 0)
		rc = dcp_dcp_emit(&d, err);
	if (rc == 0)
		rc = dcp_dcp_emit_rest(&d);
	dcp_dcp_meta_finish(&d.meta);
	return rc;
}

const struct dcp_format dcp_format_torch_dcp = {
	.name = "torch-dcp",
	.what = "torch.distributed.checkpoint",
	.probe = probe_dcp,
	.apart = true,
	.commit_file = commit_file,
	.load = load_dcp,
	.marks =
		(const struct dcp_mark[]){
			{ "*.distcp", "a part of a torch.distributed.checkpoint",
			  .general = true },
			{ 0 },
		},
};

/*
 * Rank-local metadata (save with use_collectives=False): each rank wrote __<rank>.metadata about
 * its own chunks, and none wrote a common .metadata. torch lets a rank load only what it wrote
 * itself; here the files are one checkpoint. Equal boxes of several ranks are one chunk: the lowest
 * rank's, or the next rank's if that is unreadable. Objects that differ between ranks: see
 * object.c.
 *
 * Nothing says how many ranks there were. A rank whose data files are there without its
 * metadata died; a rank that left nothing at all shows as missing elements.
 */

static bool has_metadata(const struct dcp_dir *dir, uint64_t rank)
{
	char name[48];

	snprintf(name, sizeof(name), "__%" PRIu64 ".metadata", rank);
	return dcp_dir_find(dir, name) != NULL;
}

static enum dcp_match probe_local(const struct dcp_dir *dir, char *why, size_t n)
{
	enum dcp_match match = DCP_MATCH_NO;
	uint64_t rank;

	if (dcp_dir_find(dir, ".metadata"))
		return DCP_MATCH_NO;
	for (size_t i = 0; i < dir->n && match == DCP_MATCH_NO; i++)
		if (dcp_dcp_is_rank_name(dir->entries[i].name, ".metadata", &rank))
			match = DCP_MATCH_YES;
	if (match == DCP_MATCH_NO)
		return match;
	for (size_t i = 0; i < dir->n; i++) {
		const char *name = dir->entries[i].name;

		if (!dcp_dcp_is_data_name(name, &rank) &&
		    !dcp_dcp_is_rank_name(name, ".metadata.tmp", &rank))
			continue;
		if (has_metadata(dir, rank))
			continue;
		snprintf(why, n,
			 "__%" PRIu64 ".metadata is missing, but %s is there: the save was "
			 "interrupted or is still running",
			 rank, name);
		return DCP_MATCH_INCOMPLETE;
	}
	return match;
}

/* "ranks 0-2, 5" */
static void say_ranks(char *buf, size_t size, const uint64_t *rank, size_t n)
{
	size_t at = (size_t)snprintf(buf, size, n == 1 ? "rank" : "ranks");

	for (size_t i = 0, j; i < n && at + 48 < size; i = j) {
		for (j = i + 1; j < n && rank[j] == rank[j - 1] + 1; j++)
			;
		at += (size_t)snprintf(buf + at, size - at, "%s%" PRIu64, i ? ", " : " ",
				       rank[i]);
		if (j - i > 1)
			at += (size_t)snprintf(buf + at, size - at, "-%" PRIu64, rank[j - 1]);
		if (j < n && at + 48 >= size)
			snprintf(buf + at, size - at, ", ...");
	}
}

static int read_ranks(struct dcp_dcp *d, const uint64_t *rank, size_t n, struct dcp_err *err)
{
	for (size_t i = 0; i < n; i++) {
		char name[48];
		int rc;

		snprintf(name, sizeof(name), "__%" PRIu64 ".metadata", rank[i]);
		rc = dcp_dcp_read(d, name, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Names of the ranks for keys of their own, all in one allocation. */
static const char **name_ranks(const uint64_t *rank, size_t n)
{
	const size_t each = 32;
	const char **names = malloc(n * (sizeof(*names) + each));
	char *text = (char *)(names + n);

	for (size_t i = 0; names && i < n; i++, text += each) {
		snprintf(text, each, "rank%" PRIu64, rank[i]);
		names[i] = text;
	}
	return names;
}

static int load_local(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_dcp d = { .in = in };
	uint64_t *rank = malloc((in->dir->n + 1) * sizeof(*rank));
	const char **names = NULL;
	char have[256] = "", missing[300];
	size_t n = 0;
	int rc = dcp_dcp_meta_init(&d.meta);

	for (size_t i = 0; rank && i < in->dir->n; i++)
		n += dcp_dcp_is_rank_name(in->dir->entries[i].name, ".metadata", &rank[n]);
	if (rank && n > 0) {
		DCP_SORT(rank, n, dcp_by_u64);
		names = name_ranks(rank, n);
		say_ranks(have, sizeof(have), rank, n);
	}
	snprintf(missing, sizeof(missing), "there is metadata of %s only", have);
	d.missing = missing;
	d.rank = names;
	if (rc == 0 && n == 0 && rank)
		rc = dcp_fail(err, -ENOENT, "no __<rank>.metadata");
	else if (rc < 0 || !names)
		rc = dcp_fail(err, -ENOMEM, "out of memory for metadata");
	if (rc == 0)
		rc = read_ranks(&d, rank, n, err);
	if (rc == 0)
		rc = dcp_dcp_emit(&d, err);
	if (rc == 0)
		rc = dcp_dcp_emit_rest(&d);
	if (rc == 0)
		rc = dcp_emit_meta(in->sink, "rank_files", have);
	dcp_dcp_meta_finish(&d.meta);
	free(names);
	free(rank);
	return rc;
}

const struct dcp_format dcp_format_torch_dcp_local = {
	.name = "torch-dcp-local",
	.what = "torch.distributed.checkpoint with rank-local metadata",
	.probe = probe_local,
	.load = load_local,
};

/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/number.h"
#include "core/base/text.h"
#include "core/format/dcp/dcp_int.h"
#include "core/format/formats.h"
#include "core/format/hf/extras.h"
#include "core/origin/dir/dir.h"

/* ---- names ---- */

bool dcp_tdcp_is_data_name(const char *name, uint64_t *rank)
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

bool dcp_tdcp_is_rank_name(const char *name, const char *suffix, uint64_t *rank)
{
	const char *p = name + 2;

	return strncmp(name, "__", 2) == 0 && dcp_take_number(&p, NULL, 9, rank) &&
	       strcmp(p, suffix) == 0;
}

static enum dcp_match probe(const struct dcp_dir *dir, char *why, size_t n)
{
	size_t data = 0, local = 0;
	bool partial = dcp_dir_find(dir, ".metadata.tmp") != NULL;
	uint64_t rank;

	if (dcp_dir_has_file(dir, ".metadata"))
		return DCP_MATCH_YES;
	for (size_t i = 0; i < dir->n; i++) {
		const char *name = dir->entries[i].name;

		data += dcp_tdcp_is_data_name(name, &rank);
		local += dcp_tdcp_is_rank_name(name, ".metadata", &rank);
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

int dcp_tdcp_read(struct dcp_tdcp *d, const char *name, struct dcp_err *err)
{
	struct dcp_input input;
	uint32_t number;
	int rc = dcp_emit_file(d->in->sink, name, &number); /* before it is read */

	if (rc == 0)
		rc = dcp_dir_input(d->in->dir, name, &input, err);
	if (rc < 0)
		return rc;
	rc = dcp_tmeta_read(&d->meta, &input.src, err);
	dcp_input_close(&input);
	if (rc == -EBADMSG)
		return dcp_err_where(err, rc,
				     "%s is damaged (copy it again, or use another "
				     "version)",
				     name);
	return rc < 0 ? dcp_err_where(err, rc, "%s", name) : 0;
}

/* Ranks are counted by the names of the files that hold something: i of __i_n.distcp. */
static uint64_t count_ranks(const struct dcp_tmeta *m)
{
	uint64_t most = 0, rank;

	for (uint32_t i = 0; i < m->files.n; i++) {
		const char *name = dcp_intern_text(&m->files, i);

		if (dcp_tdcp_is_data_name(name, &rank) && rank + 1 > most)
			most = rank + 1;
	}
	return most;
}

/* Composer saves its nested state, and names parts of it as if every list had been opened. */
static bool is_composer(const struct dcp_tmeta *m)
{
	static const char *const keys[] = { "state.rank_zero_seed", "state.run_name",
					    "state.timestamp.Timestamp.epoch",
					    "state.metadata.torch_version" };

	for (size_t i = 0; i < DCP_LEN(keys); i++)
		if (dcp_intern_has(&m->names, keys[i]))
			return true;
	return false;
}

static int emit_facts(const struct dcp_tdcp *d)
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

static int emit_containers(struct dcp_tdcp_emitter *w)
{
	struct dcp_buf *b = &w->containers;

	for (uint32_t i = 0; i < w->m->containers.n; i++)
		dcp_buf_printf(b, "%s\n", dcp_intern_text(&w->m->containers, i));
	if (dcp_buf_error(b))
		return -ENOMEM;
	return b->n ? dcp_emit_meta(w->sink, "containers", b->p) : 0;
}

static int emit_key(struct dcp_tdcp_emitter *w, uint32_t key)
{
	uint32_t at = w->m->keys[key].entry;

	if (!at)
		return 0; /* only storage_data or planner_data name it: torch ignores it too */
	if (dcp_tmeta_entry(w->m, at).kind == DCP_TMETA_BYTES)
		return dcp_tdcp_emit_bytes(w, key);
	return dcp_tdcp_emit_tensor(w, key);
}

static int emit_keys(struct dcp_tdcp_emitter *w)
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

int dcp_tdcp_emit(struct dcp_tdcp *d, struct dcp_err *err)
{
	struct dcp_tdcp_emitter w = { .d = d, .m = &d->meta, .sink = d->in->sink };
	int rc = dcp_tmeta_join(&d->meta, err);

	if (rc < 0)
		return rc;
	if (d->meta.norphans)
		dcp_log(d->in->log, DCP_LOG_WARN,
			"%" PRIu64 " entr%s of storage_data without a key", d->meta.norphans,
			d->meta.norphans == 1 ? "y" : "ies");
	w.lists = is_composer(&d->meta);
	dcp_titem_files_init(&w.files, d->in->dir);
	rc = emit_keys(&w);
	if (rc == 0)
		rc = dcp_tdcp_emit_lost_shards(&w);
	if (rc == 0)
		rc = emit_facts(d);
	if (rc == 0)
		rc = emit_containers(&w);
	dcp_tdcp_emitter_finish(&w);
	return rc;
}

/* Files of the checkpoint itself, and files that are looked for in every version. */
static bool is_shown(void *ctx, const char *name)
{
	const struct dcp_tdcp *d = ctx;

	return dcp_intern_has(&d->meta.files, name) || dcp_has_extension(name, ".distcp") ||
	       dcp_has_extension(name, ".metadata") || dcp_hf_is_sidecar(name);
}

int dcp_tdcp_emit_rest(struct dcp_tdcp *d)
{
	return dcp_hf_emit_rest(d->in, is_shown, d);
}

static int load(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_tdcp d = { .in = in };
	int rc = dcp_tmeta_init(&d.meta);

	if (rc < 0)
		return dcp_fail(err, rc, "out of memory for metadata");
	rc = dcp_tdcp_read(&d, ".metadata", err);
	if (rc == 0)
		rc = dcp_tdcp_emit(&d, err);
	if (rc == 0)
		rc = dcp_tdcp_emit_rest(&d);
	dcp_tmeta_finish(&d.meta);
	return rc;
}

const struct dcp_format dcp_format_torch_dcp = {
	.name = "torch-dcp",
	.what = "torch.distributed.checkpoint",
	.probe = probe,
	.apart = true,
	.commit_file = commit_file,
	.load = load,
	.marks =
		(const struct dcp_mark[]){
			{ "*.distcp", "a part of a torch.distributed.checkpoint",
			  .general = true },
			{ 0 },
		},
};

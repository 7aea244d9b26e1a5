/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch.distributed.checkpoint._experimental, and torch_checkpointing without layout: each
 * rank wrote its whole state as checkpoint_<rank>.pt, tensors as it held them, and nothing
 * says what they are shards of. So nothing is put together: the state of rank r is shown
 * below "rank<r>", keys and paths alike.
 *
 *	checkpoint_0.pt {"model": {"w": tensor}}    rank0.model.w, path rank0 / model / w
 *
 * A file that cannot be read is told as the object "rank<r>" with its error.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "core/format/formats.h"
#include "core/format/torch_state.h"
#include "core/model/tensor.h"
#include "core/parse/dir.h"
#include "core/parse/source.h"
#include "core/parse/torch.h"

static bool is_rank_file(const char *name, uint64_t *rank)
{
	int end = 0;

	return sscanf(name, "checkpoint_%9" SCNu64 ".pt%n", rank, &end) == 1 && end > 0 &&
	       !name[end] && name[11] >= '0' && name[11] <= '9' &&
	       (name[11] != '0' || name[12] == '.');
}

static void rank_file(char name[40], uint64_t rank)
{
	snprintf(name, 40, "checkpoint_%" PRIu64 ".pt", rank);
}

/* How many ranks the highest number stands for; 0 when there is no rank 0. */
static uint64_t count_ranks(const struct dcp_dir *dir)
{
	uint64_t rank, n = 0;

	if (!dcp_dir_find(dir, "checkpoint_0.pt"))
		return 0;
	for (size_t i = 0; i < dir->n; i++)
		if (!dir->entries[i].is_dir && is_rank_file(dir->entries[i].name, &rank) &&
		    rank + 1 > n)
			n = rank + 1;
	return n;
}

static enum dcp_match probe(const struct dcp_dir *dir, char *why, size_t n)
{
	uint64_t ranks = count_ranks(dir);
	char name[40];

	for (uint64_t r = 0; r < ranks; r++) {
		rank_file(name, r);
		if (dcp_dir_find(dir, name))
			continue;
		snprintf(why, n, "%s is missing: the save was interrupted or is still running",
			 name);
		return DCP_MATCH_INCOMPLETE;
	}
	return ranks ? DCP_MATCH_YES : DCP_MATCH_NO;
}

static const char *commit_file(const struct dcp_dir *dir)
{
	(void)dir;
	return NULL;
}

/* Returns 1 when the rank's file cannot be read: @why says it. */
static int tell_rank(const struct dcp_load *in, uint64_t rank, struct dcp_err *why,
		     struct dcp_err *err)
{
	char file[40], component[40];
	const char *prefix = component;
	struct dcp_tstate s = { .sink = in->sink, .prefix = &prefix, .nprefix = 1 };
	dcp_auto_fd int fd = -1;
	struct dcp_torch *t;
	struct dcp_source src;
	int rc;

	rank_file(file, rank);
	snprintf(component, sizeof(component), "rank%" PRIu64, rank);
	rc = in->sink->file(in->sink->ctx, file, &s.file);
	if (rc < 0)
		return rc;
	rc = dcp_open_beneath(in->dir->fd, file, &fd, NULL, why);
	if (rc == 0)
		rc = dcp_source_fd(fd, &src);
	if (rc == 0)
		rc = dcp_torch_open(&src, 0, &t, why);
	if (rc == -ENOMEM)
		return dcp_fail(err, rc, DCP_ERR_NO_OFFSET, "out of memory reading %s", file);
	if (rc < 0) {
		dcp_err_where(why, rc, "%s", file);
		return 1;
	}
	s.t = t;
	rc = dcp_tstate_tell(&s, err);
	dcp_torch_close(t);
	return rc;
}

static int tell_broken(const struct dcp_load *in, uint64_t rank, const char *why)
{
	char component[40];
	const char *path = component;
	struct dcp_object o = {
		.key = component, .path = &path, .npath = 1, .type = "", .error = why
	};

	snprintf(component, sizeof(component), "rank%" PRIu64, rank);
	return in->sink->object(in->sink->ctx, &o);
}

static int load(const struct dcp_load *in, struct dcp_err *err)
{
	uint64_t ranks = count_ranks(in->dir), nbroken = 0;
	char text[24];
	int rc = 0;

	for (uint64_t r = 0; r < ranks && rc == 0; r++) {
		struct dcp_err why = { 0 };

		rc = tell_rank(in, r, &why, err);
		if (rc != 1)
			continue;
		if (++nbroken == ranks) {
			if (err)
				*err = why;
			return why.code ? why.code : -EBADMSG;
		}
		rc = tell_broken(in, r, why.msg);
	}
	if (rc == 0)
		rc = in->sink->meta(in->sink->ctx, "framework", "torch");
	snprintf(text, sizeof(text), "%" PRIu64, ranks);
	if (rc == 0)
		rc = in->sink->meta(in->sink->ctx, "ranks", text);
	return rc;
}

const struct dcp_format dcp_format_torch_ranks = {
	.name = "torch-ranks",
	.what = "torch.distributed.checkpoint._experimental (one file a rank)",
	.probe = probe,
	.commit_file = commit_file,
	.load = load,
};

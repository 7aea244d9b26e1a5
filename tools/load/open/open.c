/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the same version on all ranks, and again when its files have changed. The coordinator opens
 * it first, which builds the index once for all ranks, and sends the others its name and
 * generation; they open the same one or fail.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/clock.h"
#include "core/remote/disk.h"
#include "core/store/io/queue.h"
#include "core/store/layouts/layouts.h"
#include "tools/load/cache.h"
#include "tools/load/comm/job.h"
#include "tools/load/comm/step.h"
#include "tools/load/load.h"
#include "tools/load/memory/ipc.h"
#include "tools/load/memory/memory.h"
#include "tools/load/memory/nccl.h"

enum { MEMORY = 64 << 20 };

/* What the coordinator sends the others; the texts follow. */
struct notice {
	uint64_t generation;
	uint32_t layout_rank;
	uint32_t through;                /* it reads through the mount */
	uint32_t version, layout, asked; /* bytes of text, NUL included */
	uint32_t barred; /* of the file that it may not read; 1: there is none */
};

static const char *barred_file(const struct dcpload *ck)
{
	return dcp_version_barred(ck->of.base ? ck->of.base : ck->of.v);
}

/* What the coordinator sends. */
static int put_notice(const struct dcpload *ck, struct dcp_buf *b, struct dcp_err *err)
{
	const char *layout = ck->of.layout ? ck->of.layout : "",
		   *asked = ck->asked ? ck->asked : "",
		   *barred = barred_file(ck) ? barred_file(ck) : "";
	struct notice notice = { .generation = dcp_checkpoint_generation(&ck->of),
				 .layout_rank = ck->of.layout_rank,
				 .through = ck->through != NULL,
				 .version = (uint32_t)strlen(ck->of.wanted) + 1,
				 .layout = (uint32_t)strlen(layout) + 1,
				 .asked = (uint32_t)strlen(asked) + 1,
				 .barred = (uint32_t)strlen(barred) + 1 };

	dcp_buf_add(b, &notice, sizeof(notice));
	dcp_buf_add(b, ck->of.wanted, notice.version);
	dcp_buf_add(b, layout, notice.layout);
	dcp_buf_add(b, asked, notice.asked);
	dcp_buf_add(b, barred, notice.barred);
	return dcp_buf_error(b) ? dcp_err_say(err, -ENOMEM) : 0;
}

/*
 * What this rank opened is not what rank @from did, which may not read the file @barred ("": may
 * read all).
 */
static int say_other(const struct dcpload *ck, uint32_t from, const char *barred,
		     struct dcp_err *err)
{
	const char *own = barred_file(ck);

	if (own)
		return dcp_fail(err, -EACCES,
				"%s: %s: Permission denied, but not on rank %u: the users of "
				"all ranks must be able to read it",
				ck->of.wanted, own, from);
	if (*barred)
		return dcp_fail(err, -EACCES,
				"%s: %s: Permission denied on rank %u, but not here: the users "
				"of all ranks must be able to read it",
				ck->of.wanted, barred, from);
	return dcp_fail(err, -ESTALE,
			"%s of %s has other content here than on rank %u: is it being written, "
			"or a copy?",
			ck->of.wanted, ck->of.source, from);
}

/* Open what the coordinator opened. -ESTALE: its content differs here. */
static int open_same(struct dcpload *ck, const struct load_blobs *blobs, struct dcp_err *err)
{
	const uint32_t from = ck->config.coordinator;
	const struct notice *notice = blobs->at[from];
	const char *name = (const char *)(notice + 1), *asked;
	int rc;

	if (blobs->n[from] < sizeof(*notice) ||
	    blobs->n[from] != sizeof(*notice) + notice->version + notice->layout +
				      notice->asked + notice->barred ||
	    !notice->version || !notice->layout || !notice->asked || !notice->barred ||
	    name[blobs->n[from] - sizeof(*notice) - 1] || name[notice->version - 1])
		return dcp_fail(
			err, -EPROTO,
			"rank %u's message is not understood: are all ranks of one release?",
			from);
	asked = name + notice->version + notice->layout;
	if (ck->asked && strcmp(ck->asked, asked) != 0 && strcmp(ck->asked, name) != 0 &&
	    (*asked || strcmp(ck->asked, "latest") != 0))
		return dcp_fail(err, -EINVAL,
				"rank %u opens version %s, this rank was asked for %s", from,
				name, ck->asked);
	ck->of.wanted = dcp_arena_strndup(&ck->arena, name, notice->version - 1);
	if (!ck->of.wanted)
		return dcp_err_say(err, -ENOMEM);
	rc = notice->through ? load_open_through(ck, "the coordinator does so", err)
			     : load_open_any(ck, err);
	if (rc == -ENOENT)
		return dcp_err_where(err, rc, "rank %u opens version %s", from, name);
	return rc < 0 || ck->through || dcp_checkpoint_generation(&ck->of) == notice->generation
		       ? rc
		       : say_other(ck, from, asked + notice->asked, err);
}

static int find_nodes(struct dcpload *ck, struct dcpload_error *err)
{
	uint32_t n = ck->comm->ranks;
	int rc;

	ck->node = dcp_arena_calloc(&ck->arena, n, sizeof(*ck->node));
	ck->local = dcp_arena_calloc(&ck->arena, n, sizeof(*ck->local));
	rc = load_agree(ck->comm,
			ck->node && ck->local ? 0 : load_fail(err, -ENOMEM, "out of memory"),
			err, (int)ck->config.timeout_ms);
	if (rc == 0)
		rc = load_nodes(ck->comm, ck->node, &ck->nnodes, err,
				(int)ck->config.timeout_ms);
	for (uint32_t r = 0; r < n && rc == 0; r++) {
		if (r == ck->comm->rank)
			ck->self = ck->nlocal;
		if (ck->node[r] == ck->node[ck->comm->rank])
			ck->local[ck->nlocal++] = r;
	}
	return rc;
}

static int open_device(struct dcpload *ck, struct dcpload_error *err)
{
	int32_t local;
	int rc = load_job_local_rank(&local, err);

	if (rc == 0)
		rc = load_device_open(ck->config.device, local < 0 ? ck->self : (uint32_t)local,
				      &ck->device, ck->device_why, sizeof(ck->device_why), err);

	if (ck->device)
		ck->device->timeout_ms = (int)ck->config.timeout_ms / 2;
	return rc;
}

/*
 * Collective. Files of a mount and what it shows are numbered otherwise: if one rank reads through
 * the mount, all do.
 */
static int open_alike(struct dcpload *ck, struct dcpload_error *err)
{
	int rc, timeout = (int)ck->config.timeout_ms;
	char through = ck->through != NULL;
	struct load_blobs all;
	struct dcp_err own = { 0 };
	bool any = false;

	rc = load_gather_same(ck->comm, &through, 1, &all, err, timeout);
	if (rc < 0)
		return rc;
	for (uint32_t r = 0; r < ck->comm->ranks; r++)
		any |= *(char *)all.at[r] != 0;
	load_blobs_free(&all);
	if (!any || ck->comm->ranks == 1)
		return 0;
	if (!through) {
		load_forget(ck);
		rc = load_fail_err(err, load_open_through(ck, "another rank does so", &own),
				   &own);
	}
	return load_agree(ck->comm, rc, err, timeout);
}

struct opening {
	struct dcpload *ck;
	struct dcp_err *err;
};

/* The index may have to be built, which takes as long as it takes. */
static int open_first(void *ctx)
{
	struct opening *o = ctx;

	return dcp_err_say(o->err, load_open_any(o->ck, o->err));
}

static int open_nothing(void *ctx)
{
	(void)ctx;
	return 0;
}

/* Collective. */
static int open_version(struct dcpload *ck, struct dcpload_error *err)
{
	int timeout = (int)ck->config.timeout_ms;
	dcp_auto_buf struct dcp_buf notice = DCP_BUF_INIT;
	struct load_blobs blobs = { 0 };
	struct dcp_err own = { 0 };
	bool first = ck->comm->rank == ck->config.coordinator;
	struct opening o = { ck, &own };
	int done;
	int rc = load_step_run(ck->comm, first ? open_first : open_nothing, NULL, &o, &done,
			       timeout, err);

	if (rc < 0)
		return rc;
	rc = done;
	if (rc == 0 && first)
		rc = put_notice(ck, &notice, &own);
	rc = load_agree(ck->comm, load_fail_err(err, rc, &own), err, timeout);
	if (rc == 0)
		rc = load_gather(ck->comm, notice.p, notice.n, &blobs, err, timeout);
	if (rc < 0)
		return rc;
	if (!first)
		rc = load_fail_err(err, open_same(ck, &blobs, &own), &own);
	load_blobs_free(&blobs);
	rc = load_agree(ck->comm, rc, err, timeout);
	return rc < 0 ? rc : open_alike(ck, err);
}

static int open_all(struct dcpload *ck, const char *path, struct dcpload_error *err)
{
	struct dcp_err own = { 0 };
	int rc = load_fail_err(err, load_find_source(ck, path, &own), &own);

	ck->asked = ck->of.wanted;
	rc = load_agree(ck->comm, rc, err, (int)ck->config.timeout_ms);
	if (rc == 0)
		rc = open_version(ck, err);
	if (rc == 0)
		rc = find_nodes(ck, err);
	return rc < 0 ? rc
		      : load_agree(ck->comm, open_device(ck, err), err,
				   (int)ck->config.timeout_ms);
}

int load_reopen(struct dcpload *ck, struct dcpload_error *err)
{
	struct dcp_checkpoint old = ck->of;
	const char *through = ck->through;
	int rc;

	ck->of.v = ck->of.base = NULL;
	ck->of.scan = (struct dcp_scan){ 0 };
	rc = open_version(ck, err);
	if (rc < 0) {
		load_forget(ck);
		ck->of = old;
		ck->through = through;
		return rc;
	}
	dcp_layouts_destroy(ck->layouts);
	ck->layouts = NULL;
	dcp_checkpoint_close(&old);
	ck->opened++;
	return 0;
}

static int take_config(struct dcpload *ck, const struct dcpload_config *config)
{
	struct dcpload_config *c = &ck->config;
	const char **const texts[] = { &c->version, &c->device, &c->rules, &c->assets,
				       &c->part };

	if (config)
		memcpy(c, config, DCP_MIN((size_t)config->size, sizeof(*c)));
	c->size = sizeof(*c);
	ck->roomy = c->staging != 0;
	c->staging = c->staging ? DCP_MAX(c->staging, (uint64_t)1 << 20) : DCP_STRIPE_STAGING;
	c->timeout_ms =
		c->timeout_ms ? DCP_MIN(c->timeout_ms, (uint32_t)INT32_MAX) : LOAD_TIMEOUT_MS;
	for (size_t i = 0; i < DCP_LEN(texts); i++)
		if (*texts[i] && !(*texts[i] = dcp_arena_strdup(&ck->arena, *texts[i])))
			return -ENOMEM;
	ck->of.wanted = c->version;
	if (c->cache && *c->cache)
		ck->cache = strdup(c->cache);
	else if (!c->cache)
		ck->cache = load_cache_dir();
	if (ck->cache && load_cache_make(ck->cache) < 0) {
		free(ck->cache);
		ck->cache = NULL;
	}
	dcp_disk_use(ck->cache, 0);
	ck->of.store = (struct dcp_store_opts){ .cache_dir = ck->cache, .counts = &ck->counts };
	if (dcp_queue_create(&ck->of.store.queue) < 0)
		ck->of.store.queue = NULL; /* reads then go one by one */
	return c->io > DCPLOAD_IO_GDS || c->exchange > DCPLOAD_EXCHANGE_ALL ? -EINVAL : 0;
}

/* Collective. What all ranks must set alike; the version is the coordinator's. */
static int compare_config(const struct dcpload *ck, struct dcpload_error *err)
{
	static const char *const exchanges[] = { "auto", "never", "node", "all" };
	const struct dcpload_config *c = &ck->config;
	char coordinator[16];
	const struct load_alike own[] = {
		{ "dcpload_config.exchange", exchanges[c->exchange] },
		{ "dcpload_config.coordinator", coordinator },
		{ "dcpload_config.rules", c->rules ? c->rules : "" },
		{ "dcpload_config.part", c->part ? c->part : "" },
	};

	snprintf(coordinator, sizeof(coordinator), "%u", c->coordinator);
	return load_compare(ck->comm, own, DCP_LEN(own), err, (int)c->timeout_ms);
}

int dcpload_open(const struct dcpload_comm *comm, const char *source,
		 const struct dcpload_config *config, struct dcpload **out,
		 struct dcpload_error *err)
{
	int64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	struct dcpload_error own = { 0 };
	struct dcpload *ck = calloc(1, sizeof(*ck));
	int rc = -ENOMEM;

	comm = comm ? comm : &load_alone;
	err = err ? err : &own;
	*err = (struct dcpload_error){ .rank = -1 };
	if (load_comm_check(comm, err) < 0) { /* no way to notify the others */
		free(ck);
		return err->code;
	}
	if (ck) {
		ck->comm = comm;
		dcp_arena_init(&ck->arena, MEMORY);
		dcp_arena_init(&ck->answer, MEMORY);
		rc = take_config(ck, config);
	}
	if (rc < 0)
		load_fail(err, rc,
			  rc == -EINVAL ? "dcpload_config: unknown io or exchange"
					: "out of memory");
	if (rc == 0 && ck->config.coordinator >= comm->ranks)
		rc = load_fail(err, -EINVAL,
			       "dcpload_config: there is no rank %u to be the coordinator, "
			       "only 0 to %u",
			       ck->config.coordinator, comm->ranks - 1);
	rc = load_agree(comm, rc, err, ck ? (int)ck->config.timeout_ms : LOAD_TIMEOUT_MS);
	if (rc == 0)
		rc = compare_config(ck, err);
	if (rc == 0)
		rc = open_all(ck, source, err);
	if (rc < 0) {
		dcpload_close(ck);
		return load_while(err, rc, "opening");
	}
	ck->open_ns = (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - start);
	*out = ck;
	return 0;
}

void dcpload_close(struct dcpload *ck)
{
	if (!ck)
		return;
	load_nccl_close(ck->nccl);
	load_ipc_close(ck->ipc);
	load_device_close(ck->device);
	dcp_layouts_destroy(ck->layouts);
	load_forget(ck);
	dcp_queue_destroy(ck->of.store.queue);
	dcp_arena_finish(&ck->answer);
	dcp_arena_finish(&ck->arena);
	free(ck->cache);
	free(ck);
}

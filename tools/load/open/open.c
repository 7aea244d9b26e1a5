/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the same version on all ranks, and again when its files have changed. The coordinator opens
 * it first, which builds the index once for all ranks, and sends the others its name and
 * generation; they open the same one or fail.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/system.h"
#include "core/hf/hf.h"
#include "core/origin/origin.h"
#include "core/parse/json.h"
#include "core/remote/disk.h"
#include "core/rules/rules.h"
#include "core/store/io/queue.h"
#include "core/store/layouts/layouts.h"
#include "tools/load/comm/comm.h"
#include "tools/load/error.h"
#include "tools/load/load.h"

/*
 * Finds the version.
 *
 * A path in a mount of dcpfs stands for what is mounted there: its files are opened, if that is
 * permitted and they hold what the mount shows. Otherwise data is read through the mount: the file
 * of all tensors in shard/fsdp1/0 is a checkpoint like any other.
 */

#define MAX_OPTIONS (16u << 20) /* of a mount, as JSON: paths of layouts */

/* ---- which version ---- */

/* Find the source that @path means: sets ck->backing and ck->mount. */
static int load_find_source(struct dcpload *ck, const char *path, struct dcp_err *err)
{
	int rc;

	load_servers();
	ck->of.arena = &ck->arena;
	rc = dcp_checkpoint_find(&ck->of, path, err);
	ck->backing = ck->of.source;
	ck->mount = ck->of.mount;
	if (ck->config.version)
		ck->of.wanted = ck->config.version;
	return rc;
}

/* Read the rules of the configuration, given as text or by the name of a preset. */
static int read_rules(const char *text, struct dcp_rules **out, struct dcp_err *err)
{
	*out = NULL;
	if (!text || strcmp(text, "auto") == 0)
		return 0;
	return strchr(text, '\n') ? dcp_rules_parse(text, strlen(text), "rules", out, err)
				  : dcp_rules_preset(text, out, err);
}

/* Close the version. */
static void load_forget(struct dcpload *ck)
{
	dcp_checkpoint_close(&ck->of);
}

static int open_files(struct dcpload *ck, struct dcp_err *err)
{
	struct dcp_rules *rules = NULL;
	int rc = dcp_checkpoint_scan(&ck->of, err);

	if (rc < 0)
		return rc;
	rc = read_rules(ck->config.rules, &rules, err);
	ck->of.mapped = ck->config.rules || ck->config.part;
	ck->of.map = (struct dcp_hf_opts){ .rules = rules,
					   .part = ck->config.part,
					   .assets = ck->config.assets,
					   .cast = DCP_DTYPE_OTHER };
	if (rc == 0)
		rc = dcp_checkpoint_open(&ck->of, NULL, err);
	dcp_rules_free(rules);
	ck->of.map.rules = NULL;
	if (rc == 0) {
		ck->of.wanted = ck->of.name = dcp_arena_strdup(&ck->arena, ck->of.name);
		rc = ck->of.name ? 0 : dcp_err_say(err, -ENOMEM);
	}
	if (rc < 0)
		load_forget(ck);
	return rc;
}

/* Open through the mount; @why goes into the report. */
static int load_open_through(struct dcpload *ck, const char *why, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf path = DCP_BUF_INIT;
	dcp_auto_free char *dir = NULL;
	const char *name;
	int rc;

	if (!ck->mount)
		return dcp_fail(err, -EINVAL, "%s is in no mount here: %s", ck->backing, why);
	if (dcp_buf_printf(&path, "%s/%s", ck->mount,
			   ck->of.wanted ? ck->of.wanted : "latest") < 0)
		return dcp_err_say(err, -ENOMEM);
	dir = realpath(path.p, NULL);
	if (!dir)
		return dcp_fail(err, -errno, "%s: %m", path.p);
	name = strrchr(dir, '/') + 1;
	name = dcp_arena_strdup(&ck->arena, name);
	dcp_buf_reset(&path);
	dcp_buf_printf(&path, "%s/shard/fsdp1/0", dir);
	ck->of.source =
		dcp_buf_error(&path) ? NULL : dcp_arena_strndup(&ck->arena, path.p, path.n);
	if (!name || !ck->of.source)
		return dcp_err_say(err, -ENOMEM);
	ck->through = why;
	ck->of.mount = ck->of.wanted = NULL;
	ck->of.store.cache_dir = NULL;
	rc = open_files(ck, err);
	ck->of.wanted = ck->of.name = name;
	return rc;
}

/* Open ck->of.wanted, or the newest version: its files, or through the mount. */
static int load_open_any(struct dcpload *ck, struct dcp_err *err)
{
	struct dcp_err own = { 0 };
	int rc, through;

	ck->of.source = ck->backing;
	ck->of.mount = ck->mount;
	ck->of.store.cache_dir = ck->cache;
	ck->through = NULL;
	if (!ck->mount)
		return open_files(ck, err);
	if (ck->config.io == DCPLOAD_IO_MOUNT)
		return load_open_through(ck, "asked for", err);
	rc = open_files(ck, &own);
	if (rc == 0)
		return 0;
	through = load_open_through(ck, dcp_arena_strdup(&ck->arena, own.msg), err);
	if (rc == -ENOENT && through == -ENOENT) /* this error is more helpful about names */
		*err = own;
	return through;
}

/* ---- what it is ---- */

uint32_t dcpload_abi(void)
{
	return DCPLOAD_ABI;
}

const char *dcpload_release(void)
{
	return DCP_RELEASE;
}

const char *dcpload_version(const struct dcpload *ck)
{
	return ck->of.name;
}

const char *dcpload_passed_over(const struct dcpload *ck)
{
	return ck->of.passed;
}

const char *dcpload_source_layout(const struct dcpload *ck, uint32_t *rank)
{
	if (rank)
		*rank = ck->of.layout_rank;
	return ck->of.layout;
}

const char *dcpload_fact(const struct dcpload *ck, const char *name)
{
	return dcp_index_meta(dcp_version_index(ck->of.v), name);
}

int dcpload_version_at(const struct dcpload *ck, uint64_t i, const char **name,
		       const char **why)
{
	const struct dcp_found *f;

	if (i >= ck->of.scan.n)
		return -ENOENT;
	f = &ck->of.scan.found[i];
	*name = ck->through ? ck->of.name
			    : f->name; /* the only version; its directory has another name */
	*why = f->complete ? NULL : f->why ? f->why : "its commit mark is missing";
	return 0;
}

/* The file of the layout @name in a mount with these @options; NULL: the layout is built in. */
static const char *file_of(const struct dcp_json *options, const char *name)
{
	const struct dcp_json *l, *all = dcp_json_get(options, "layouts");

	for (size_t i = 0; (l = dcp_json_at(all, i)); i++) {
		const char *own = dcp_json_str(dcp_json_get(l, "name"));

		if (own && strcmp(own, name) == 0)
			return dcp_json_str(dcp_json_get(l, "file"));
	}
	return NULL;
}

/* Open the layouts; if the source is the directory of a rank, include the file of its layout, if
 * the mount has one. */
static int open_layouts(struct dcpload *ck, struct dcp_err *err)
{
	dcp_auto_free char *config = load_config_dir(), *path = NULL;
	dcp_auto_json struct dcp_json *options = NULL;
	dcp_auto_fd int fd = -1;
	struct dcp_source src;
	const char *file = NULL;

	if (ck->mount && ck->of.layout &&
	    asprintf(&path, "%s/.dcpfs/config.json", ck->mount) >= 0)
		fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && dcp_source_fd(fd, &src) == 0 &&
	    dcp_json_read(&src, MAX_OPTIONS, NULL, &options, NULL) == 0)
		file = file_of(options, ck->of.layout);
	return dcp_checkpoint_layouts(&ck->of, file, config, NULL, &ck->layouts, err);
}

int load_layout(struct dcpload *ck, const char *name, const struct dcp_layout **out,
		uint32_t *ranks, struct dcp_err *err)
{
	const struct dcp_named_layout *l;
	int rc = 0;

	*out = NULL;
	if (load_is_regions(name))
		return load_regions(name, ranks, NULL, NULL, err);
	if (!ck->layouts)
		rc = open_layouts(ck, err);
	if (rc == 0)
		rc = dcp_layouts_open(ck->layouts, name, &l, err);
	if (rc < 0)
		return rc;
	*out = l->l;
	*ranks = dcp_layout_ranks(l->l);
	return 0;
}

int dcpload_layout_ranks(struct dcpload *ck, const char *layout, uint32_t *ranks,
			 struct dcpload_error *err)
{
	const struct dcp_layout *l;
	struct dcp_err own = { 0 };
	int rc = load_layout(ck, layout, &l, ranks, &own);

	return load_fail_err(err, rc, &own);
}

enum { MEMORY = 64 << 20 };

/* The message of the coordinator to the other ranks; the texts follow. */
struct notice {
	uint64_t generation;
	uint32_t layout_rank;
	uint32_t through;                /* the coordinator reads through the mount */
	uint32_t version, layout, asked; /* bytes of text, NUL included */
	/* bytes of the name of a file that it may not read; 1: there is none */
	uint32_t barred;
};

static const char *barred_file(const struct dcpload *ck)
{
	return dcp_version_barred(ck->of.base ? ck->of.base : ck->of.v);
}

/* Append the message of the coordinator. */
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

/* Fail: the content here is not that of rank @from. @barred: a file that rank @from may not read;
 * "": it may read all. */
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

/* Open the version of the coordinator. -ESTALE: its content differs here. */
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

/* Collective. Files behind a mount and files in it have different numbers, so if one rank reads
 * through the mount, all do. */
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

/* A step, because building the index may take any time. */
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
		ck->of.store.queue = NULL; /* reads are then made one by one */
	return c->io > DCPLOAD_IO_GDS || c->exchange > DCPLOAD_EXCHANGE_ALL ? -EINVAL : 0;
}

/* Collective. Compare the options that all ranks must set alike; the version is taken from the
 * coordinator. */
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
	for (size_t i = 0; i < LOAD_LINKS; i++)
		load_link_close(ck->link[i]);
	load_device_close(ck->device);
	dcp_layouts_destroy(ck->layouts);
	load_forget(ck);
	dcp_queue_destroy(ck->of.store.queue);
	dcp_arena_finish(&ck->answer);
	dcp_arena_finish(&ck->arena);
	free(ck->cache);
	free(ck);
}

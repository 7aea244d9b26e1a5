/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides which ranks read for which others, and how. Each rank examines the bytes that it needs
 * (how many, whether in the page cache, on which file system); all ranks get the findings of all
 * and so make the same decision.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/origin/dir/dir.h"
#include "core/store/io/files.h"
#include "tools/load/load.h"

enum {
	LOOKS = 64,         /* samples of the page cache */
	LONG_RUN = 1 << 20, /* bytes for which a separate request pays */
	/* bytes as which a shorter request counts, since a few in 2 MiB are fine */
	ALONE = 32 << 10,
	SLOTS_MOST = 16,       /* if copies to a device are in flight */
	ROOMY_MOST = 16 << 20, /* bytes of slots if the caller has set config.staging */
	BATCHES_MOST = 8,      /* batches of slots on their way to a device */
};

/* The findings of one rank. */
struct finding {
	uint64_t needed;       /* bytes */
	uint64_t staging;      /* as configured */
	uint32_t looked, warm; /* samples; how many of them are in the page cache */
	uint32_t remote;       /* some file is on a remote file system */
	uint32_t slack;        /* elements are converted */
	uint32_t views;        /* some bytes must be decoded */
	uint32_t device;       /* the rank has a device */
	uint32_t gds;          /* as configured */
	uint32_t roomy;        /* the caller has set config.staging */
};

/* ---- looking ---- */

static void look_at_cache(struct dcpload_plan *p, struct finding *f)
{
	struct dcp_files *files = dcp_version_files(p->ck->of.v);
	size_t step = p->nneed / LOOKS + 1;
	uint32_t served = 0;

	for (size_t i = 0; i < p->nneed; i += step) {
		const struct dcp_chunk_need *need = &p->need[i];
		const struct dcp_file *file;

		if (dcp_files_hold(files, need->file, true, &file, NULL) < 0)
			continue;
		f->looked++;
		f->warm +=
			file->fd >= 0 &&
			dcp_is_cached(file->fd, need->s.off + dcp_strided_extent(&need->s) / 2);
		f->remote |= file->fd < 0 || !dcp_is_local(file->fd);
		served += file->fd < 0;
		dcp_files_release(files, need->file);
	}
	p->straight = served && served == f->looked;
}

/*
 * Count the bytes that are better read through slots: short runs, which can share requests; bytes
 * that two wants have in common; and bytes that are converted, for which separate wants have only
 * small buffers.
 */
static uint64_t count_slotted(const struct dcpload_plan *p)
{
	uint64_t n = 0, end = 0;

	for (size_t i = 0; i < p->nneed; i++) {
		const struct dcp_chunk_need *need = &p->need[i];
		bool next = i && need->file == need[-1].file, is_short = need->s.run < LONG_RUN;

		if ((next && need->s.off < end) || (need->s.ndim && is_short) ||
		    !p->want[need->want].target.plain)
			n += dcp_strided_bytes(&need->s);
		else if (is_short)
			n += ALONE;
		end = DCP_MAX(next ? end : 0, need->s.off + dcp_strided_extent(&need->s));
	}
	return n;
}

static void find_needs(struct dcpload_plan *p, struct finding *f)
{
	for (size_t i = 0; i < p->nneed; i++)
		f->needed += dcp_strided_bytes(&p->need[i].s);
	for (size_t i = 0; i < p->nwant; i++) {
		f->slack |= !p->want[i].target.plain;
		f->needed += p->want[i].through_view ? p->want[i].stored : 0;
		f->views |= p->want[i].through_view;
	}
	f->device = p->device != NULL;
	look_at_cache(p, f);
	p->straight &= count_slotted(p) <= f->needed / 64;
}

/* ---- deciding ---- */

struct decision {
	uint32_t io, exchange;
};

static void say_why(char *why, size_t size, const char *text)
{
	snprintf(why, size, "%s", text);
}

static uint32_t decide_exchange(struct dcpload_plan *p, bool warm, bool remote, bool gds)
{
	const struct dcpload *ck = p->ck;
	uint32_t wanted = ck->config.exchange;
	bool bulk = ck->comm->alltoallv || p->link;
	char *why = p->exchange_why;
	size_t size = sizeof(p->exchange_why);

	if (wanted == DCPLOAD_EXCHANGE_ALL && !bulk && ck->nnodes > 1) {
		snprintf(why, size, "%s carries no bulk data: each node reads for itself",
			 ck->comm->name);
		return DCPLOAD_EXCHANGE_NODE;
	}
	if (wanted == DCPLOAD_EXCHANGE_ALL && !bulk) {
		snprintf(why, size, "%s carries no bulk data, and one node needs none",
			 ck->comm->name);
		return DCPLOAD_EXCHANGE_NODE;
	}
	if (wanted != DCPLOAD_EXCHANGE_AUTO) {
		say_why(why, size, "asked for");
		return wanted;
	}
	if (ck->comm->ranks == 1) {
		say_why(why, size, "there is one rank");
		return DCPLOAD_EXCHANGE_NEVER;
	}
	if (gds) {
		say_why(why, size, "each rank's GPU reads for itself");
		return DCPLOAD_EXCHANGE_NEVER;
	}
	if (warm) {
		say_why(why, size, "what is needed is in the page cache");
		return DCPLOAD_EXCHANGE_NEVER;
	}
	if (ck->nnodes > 1 && remote && bulk) {
		say_why(why, size, "cold files that all nodes see: each byte is read once");
		return DCPLOAD_EXCHANGE_ALL;
	}
	say_why(why, size, "what is needed is not in the page cache");
	return DCPLOAD_EXCHANGE_NODE;
}

static void decide_io(struct dcpload_plan *p, bool warm)
{
	const struct dcpload *ck = p->ck;
	uint32_t wanted = ck->config.io;

	p->report.io = wanted;
	if (ck->through) {
		p->report.io = DCPLOAD_IO_MOUNT;
		snprintf(p->io_why, sizeof(p->io_why), "through the mount: %s", ck->through);
	} else if (wanted == DCPLOAD_IO_MOUNT) {
		p->report.io = DCPLOAD_IO_AUTO;
		say_why(p->io_why, sizeof(p->io_why), "the source lies in no mount of dcpfs");
	} else if (wanted != DCPLOAD_IO_AUTO) {
		say_why(p->io_why, sizeof(p->io_why), "asked for");
	} else {
		say_why(p->io_why, sizeof(p->io_why),
			warm ? "what is needed is in the page cache"
			     : "direct where it is not in the page cache");
		p->report.io = warm ? DCPLOAD_IO_BUFFERED : DCPLOAD_IO_AUTO;
	}
}

static int by_place(const void *a, const void *b)
{
	const struct dcp_chunk_need *x = a, *y = b;

	return x->file != y->file ? DCP_CMP(x->file, y->file) : DCP_CMP(x->s.off, y->s.off);
}

/* ---- chunks ---- */

void load_plan_drop_chunks(struct dcpload_plan *p)
{
	bool keep;

	if (p->ship)
		load_ship_drop(p->ship);
	keep = load_device_runs(p->device);
	if (keep)
		load_device_keep(p->device, "memory that copies of a failed load may still use "
					    "is kept until the process ends");
	if (p->memory)
		p->memory->kept |= keep;
	/* first, because it has pinned the memory of the others */
	load_ship_free(p->ship, keep);
	load_gds_close(p->gds, keep);
	free(p->there);
	p->gds = NULL;
	p->there = NULL;
	load_rounds_free(p->rounds, keep);
	load_window_free(p->window, keep);
	dcp_chunks_free(p->chunks);
	p->link = NULL;
	p->ship = NULL;
	free(p->mine);
	p->rounds = NULL;
	p->window = NULL;
	p->chunks = NULL;
	p->mine = NULL;
	p->nmine = 0;
}

/* Minimum number of slots of a member. The same on all ranks, as are the functions below. */
static uint32_t slots_least(const struct dcpload_plan *p)
{
	return p->devices ? DCP_DEVICE_SLOTS : DCP_SLOTS;
}

/* The slots of a node's window and a page of its head count towards @staging of the ranks of the
 * node. */
static uint64_t slot_bytes(const struct dcpload_plan *p, uint64_t staging)
{
	return dcp_slot_size(staging, slots_least(p),
			     p->devices ? DCP_DEVICE_SLOT_MOST : DCP_SLOT_MOST);
}

/* A failure names a rank of this node by its number on the node: replace it by the number in
 * the job. */
static void name_in_job(const struct dcpload *ck, struct dcpload_error *err)
{
	const struct dcpload_error own = *err;
	const char *rest = own.text + strlen("rank ");

	if (own.rank < 0 || (uint32_t)own.rank >= ck->nlocal)
		return;
	err->rank = (int32_t)ck->local[own.rank];
	if (load_names_rank(&own))
		snprintf(err->text, sizeof(err->text), "rank %d%s", err->rank,
			 rest + strspn(rest, "0123456789"));
}

/* Collective: gather the ranges that ranks need of files, from the ranks of this node (*by_node) or
 * from all. */
static int gather_ranges(struct dcpload_plan *p, struct load_blobs *out, bool *by_node,
			 struct dcpload_error *err)
{
	const struct dcpload *ck = p->ck;
	int timeout = (int)ck->config.timeout_ms;
	struct dcpload_comm *node = NULL;
	int rc;

	*by_node = ck->nnodes > 1 && ck->comm->split;
	if (!*by_node)
		return load_gather(ck->comm, p->mine, p->nmine * sizeof(*p->mine), out, err,
				   timeout);
	rc = ck->comm->split(ck->comm->ctx, ck->node[ck->comm->rank], 0, &node, timeout);
	if (rc < 0)
		return load_comm_say(ck->comm, rc, err);
	rc = load_gather(node, p->mine, p->nmine * sizeof(*p->mine), out, err, timeout);
	if (rc < 0)
		name_in_job(ck, err);
	dcpload_comm_close(node);
	return rc;
}

static void trim_chunks(struct dcpload_plan *p)
{
	size_t n;
	const struct dcp_file_id *files = dcp_index_files(dcp_version_index(p->ck->of.v), &n);

	dcp_chunks_trim(p->chunks, files, n);
}

/* Check that the ranges that rank @rank sent are inside files and in order, so that bytes outside
 * of a file are never read. */
static int check_ranges(const struct dcpload_plan *p, uint32_t rank,
			const struct dcp_chunk_range *v, uint64_t bytes,
			struct dcpload_error *err)
{
	const struct dcp_chunk_range *last = NULL;
	size_t files, n = bytes / sizeof(*v);
	const struct dcp_file_id *file =
		dcp_index_files(dcp_version_index(p->ck->of.v), &files);
	bool good = bytes % sizeof(*v) == 0;

	for (size_t i = 0; i < n && good; last = &v[i++])
		good = v[i].file < files && v[i].lo < v[i].hi &&
		       v[i].lo <= file[v[i].file].size &&
		       v[i].hi - v[i].lo <= file[v[i].file].size - v[i].lo + LOAD_BLOCK &&
		       (!last || last->file < v[i].file ||
			(last->file == v[i].file && last->hi <= v[i].lo));
	return good ? 0
		    : load_fail(err, -EPROTO,
				"rank %u asks for bytes that are in no file of the version",
				rank);
}

/* Collective. Make the chunks of this node. */
static int share_chunks(struct dcpload_plan *p, uint64_t slot, bool slack,
			struct dcpload_error *err)
{
	struct dcpload *ck = p->ck;
	const struct dcp_chunk_range **of = calloc(ck->nlocal, sizeof(*of));
	size_t *n = calloc(ck->nlocal, sizeof(*n));
	struct load_blobs b = { 0 };
	bool by_node;
	int rc = of && n ? 0 : load_fail(err, -ENOMEM, "out of memory");

	rc = load_agree(ck->comm, rc, err, (int)ck->config.timeout_ms);
	if (rc == 0)
		rc = gather_ranges(p, &b, &by_node, err);
	for (uint32_t m = 0; m < ck->nlocal && rc == 0; m++) {
		uint32_t r = by_node ? m : ck->local[m];

		of[m] = b.at[r];
		n[m] = b.n[r] / sizeof(**of);
		rc = check_ranges(p, ck->local[m], b.at[r], b.n[r], err);
	}
	if (rc == 0 && dcp_chunks_create(of, n, ck->nlocal, slot, slack, &p->chunks) < 0)
		rc = load_fail(err, -ENOMEM, "out of memory");
	if (rc == 0)
		trim_chunks(p);
	load_blobs_free(&b);
	free(of);
	free(n);
	return load_agree(ck->comm, rc, err, (int)ck->config.timeout_ms);
}

/* Does this rank read every want by itself, directly to the destination? It does for bytes in the
 * page cache, and for servers, because slots would make requests short and few at a time. */
static bool by_wants(const struct dcpload_plan *p)
{
	uint32_t io = p->report.io;

	return p->report.exchange == DCPLOAD_EXCHANGE_NEVER && !p->device &&
	       (io == DCPLOAD_IO_BUFFERED || io == DCPLOAD_IO_MOUNT || p->straight);
}

/* Collective unless every rank reads for itself. */
static int make_chunks(struct dcpload_plan *p, uint64_t staging, bool slack,
		       struct dcpload_error *err)
{
	uint32_t exchange = p->report.exchange;
	uint64_t slot = slot_bytes(p, staging);
	const struct dcp_chunk_range *mine;
	int rc = dcp_chunk_ranges(p->need, p->nneed, exchange == DCPLOAD_EXCHANGE_ALL, &p->mine,
				  &p->nmine);

	if (rc < 0)
		load_fail(err, rc, "out of memory");
	if (exchange == DCPLOAD_EXCHANGE_NEVER) {
		mine = p->mine;
		if (rc == 0 &&
		    dcp_chunks_create(&mine, &p->nmine, 1, slot, slack, &p->chunks) < 0)
			rc = load_fail(err, -ENOMEM, "out of memory");
		if (rc == 0)
			trim_chunks(p);
		return rc;
	}
	rc = load_agree(p->ck->comm, rc, err, (int)p->ck->config.timeout_ms);
	if (rc < 0)
		return rc;
	return exchange == DCPLOAD_EXCHANGE_NODE ? share_chunks(p, slot, slack, err)
						 : load_make_rounds(p, staging, slack, err);
}

/* The slots of a member. */
static uint32_t slots_of(const struct dcpload_plan *p, uint64_t staging)
{
	uint64_t slot = slot_bytes(p, staging), least = slots_least(p),
		 most = p->devices ? SLOTS_MOST
			: p->roomy ? ROOMY_MOST / slot
				   : least;

	return (uint32_t)DCP_MIN(DCP_MAX((staging - LOAD_BLOCK) / slot, least), most);
}

static int make_window(struct dcpload_plan *p, uint64_t staging, struct dcpload_error *err)
{
	bool node = p->report.exchange == DCPLOAD_EXCHANGE_NODE;
	uint32_t slots = slots_of(p, staging) * (node ? p->ck->nlocal : 1);

	if (!p->chunks)
		return 0;
	if (p->report.exchange == DCPLOAD_EXCHANGE_ALL)
		slots = 2;
	else if (p->devices) /* all of it is pinned, whether used or not */
		slots = (uint32_t)DCP_MIN(DCP_MAX(p->chunks->n, (size_t)2), (size_t)slots);
	return load_window_create(p->ck, slots, p->chunks->slot, !node, &p->window, err);
}

/* Change the decision: every rank reads for itself. */
static int read_alone(struct dcpload_plan *p, const char *why, uint64_t staging, bool slack,
		      struct dcpload_error *err)
{
	p->report.exchange = DCPLOAD_EXCHANGE_NEVER;
	snprintf(p->exchange_why, sizeof(p->exchange_why), "%.120s", why);
	load_plan_drop_chunks(p);
	*err = (struct dcpload_error){ .rank = -1 };
	return by_wants(p) ? 0 : make_chunks(p, staging, slack, err);
}

/*
 * Collective. Drop a window that neither saves reads nor divides them better. Ranks that read for
 * themselves do not wait for each other, and old kernels have only small pages for shared memory,
 * with which O_DIRECT reads take twice as long.
 */
static int choose_again(struct dcpload_plan *p, uint64_t staging, bool slack,
			struct dcpload_error *err)
{
	const struct dcpload *ck = p->ck;
	uint32_t apart;
	struct load_blobs b = { 0 };
	int rc;

	if (p->report.exchange != DCPLOAD_EXCHANGE_NODE ||
	    ck->config.exchange != DCPLOAD_EXCHANGE_AUTO)
		return 0;
	apart = p->report.io != DCPLOAD_IO_BUFFERED && p->report.io != DCPLOAD_IO_MOUNT &&
		p->chunks->apart;
	rc = load_gather_same(ck->comm, &apart, sizeof(apart), &b, err,
			      (int)ck->config.timeout_ms);
	for (uint32_t r = 0; r < ck->comm->ranks && rc == 0; r++)
		apart &= *(const uint32_t *)b.at[r];
	load_blobs_free(&b);
	return rc == 0 && apart ? read_alone(p,
					     "ranks of a node need about as many bytes each, "
					     "and none in common",
					     staging, slack, err)
				: rc;
}

/* Called if the ranks of a node cannot share memory: every rank reads for itself, unless the caller
 * requires NODE. */
static int fall_back(struct dcpload_plan *p, uint64_t staging, bool slack,
		     struct dcpload_error *err)
{
	if (p->report.exchange != DCPLOAD_EXCHANGE_NODE || err->code == -ETIMEDOUT ||
	    err->code == -ECONNRESET || p->ck->config.exchange == DCPLOAD_EXCHANGE_NODE)
		return err->code;
	return read_alone(p, err->text, staging, slack, err) < 0 ? err->code
								 : make_window(p, staging, err);
}

/* Why bytes that GDS reads to the device could not be placed there; NULL: they can. */
static const char *not_there(const struct dcpload_plan *p)
{
	if (!p->device)
		return "destinations are in the host's memory";
	if (!p->device->scatters)
		return p->device->why;
	for (size_t i = 0; i < p->nwant; i++) {
		const struct load_want *w = &p->want[i];

		if (!w->id || !w->nbytes)
			continue;
		if (p->hooks.resolve ||
		    (w->owned ? p->device->memory
			      : p->device->kind->kind_of(p->device, w->target.base)) <
			    DCPLOAD_MEMORY_DEVICE)
			return "some destinations may be in the host's memory";
		if (!load_job_can(&w->target))
			return "a destination has too many dimensions";
	}
	return NULL;
}

/* Open GDS. If it cannot be used, the host reads, also past the page cache. -ENOMEM. */
static int open_gds(struct dcpload_plan *p)
{
	bool never = p->report.exchange == DCPLOAD_EXCHANGE_NEVER;
	const char *why = never ? not_there(p) : "ranks exchange what they read";
	char text[120];
	uint64_t bytes;

	load_window_memory(p->window, &bytes);
	if (!why && load_gds_open(p->device, bytes, p->ck->config.timeout_ms, &p->gds, text,
				  sizeof(text)) < 0)
		why = text;
	if (why) {
		p->report.io = DCPLOAD_IO_DIRECT;
		snprintf(p->io_why, sizeof(p->io_why), "not gds: %.140s", why);
		return 0;
	}
	p->there = calloc(p->chunks->nstretch + 1, sizeof(*p->there));
	return p->there ? 0 : -ENOMEM;
}

/* Make the ship that copies to the device: half the slots of this rank may be in flight at a
 * time. */
static int make_ship(struct dcpload_plan *p, uint64_t staging, uint64_t share,
		     struct dcpload_error *err)
{
	uint32_t batches = DCP_MIN(slots_of(p, staging) / 2, (uint32_t)BATCHES_MOST);
	uint64_t n, piece = DCP_MAX(p->chunks->slot, dcp_stripe_band(p->ck->config.staging));
	void *memory;
	int rc = p->report.io == DCPLOAD_IO_GDS ? open_gds(p) : 0;

	if (rc == 0)
		rc = load_ship_create(p, piece, batches, share, &p->ship, err);
	else
		load_fail(err, rc, "out of memory");
	if (rc < 0)
		return rc;
	memory = load_window_memory(p->window, &n);
	load_ship_pin(p->ship, memory, n);
	if (p->rounds)
		load_ship_pin(p->ship, p->rounds->device ? p->rounds->pack : p->rounds->in,
			      p->rounds->device ? p->rounds->npack : p->rounds->nin);
	return 0;
}

/* Collective. Link the devices of all ranks. Appends to @why which link is used, and why others are
 * not. */
static void link_devices(struct dcpload_plan *p, char *why, size_t size)
{
	static const struct load_link_kind *const links[LOAD_LINKS] = { &load_nccl, &load_ipc };
	struct dcpload *ck = p->ck;
	size_t n = 0;

	for (size_t i = 0; i < LOAD_LINKS && !p->link; i++) {
		const struct load_link_kind *kind = links[i];
		struct dcpload_error err = { .rank = -1 };
		char rank[24] = "";

		if (kind->one_node && ck->nnodes > 1)
			continue;
		if (load_link_open(kind, ck->comm, ck->device, not_there(p),
				   (int)ck->config.timeout_ms, &ck->link[i], &err) == 0) {
			p->link = ck->link[i];
			continue;
		}
		if (err.rank >= 0)
			snprintf(rank, sizeof(rank), "rank %d: ", err.rank);
		snprintf(why + n, size - n, "; not by %s: %s%.120s", kind->name, rank,
			 err.text);
		n = strlen(why);
	}
	if (!p->link)
		return;
	snprintf(why + n, size - n, "; by %s", p->link->kind->name);
	n = strlen(why);
	p->report.nccl = p->link->kind->version ? p->link->kind->version(p->link) : 0;
	if (p->report.nccl)
		snprintf(why + n, size - n, " %u.%u.%u", p->report.nccl / 10000,
			 p->report.nccl / 100 % 100, p->report.nccl % 100);
}

static int take_findings(struct dcpload_plan *p, const struct load_blobs *b,
			 struct dcpload_error *err)
{
	uint32_t exchange = p->ck->config.exchange;
	uint64_t looked = 0, warm = 0, staging = UINT64_MAX;
	bool slack = false, remote = false, views = false, gds = false, is_warm, all;
	char devices[320] = "";
	uint64_t share;
	size_t n;
	int rc;

	p->roomy = true;
	for (uint32_t r = 0; r < p->ck->comm->ranks; r++) {
		const struct finding *f = b->at[r];

		staging = DCP_MIN(staging, f->staging);
		looked += f->looked;
		warm += f->warm;
		slack |= f->slack != 0;
		remote |= f->remote != 0;
		views |= f->views != 0;
		p->devices |= f->device != 0;
		p->roomy &= f->roomy != 0;
		gds |= f->gds != 0;
	}
	share = p->devices ? dcp_stripe_share(staging) : 0;
	staging -= share + (views ? dcp_stripe_band(staging) : 0);
	is_warm = warm * 10 >= looked * 9;
	all = exchange == DCPLOAD_EXCHANGE_ALL ||
	      (exchange == DCPLOAD_EXCHANGE_AUTO && p->ck->nnodes > 1 && remote && !is_warm &&
	       !gds);
	p->report.nccl = 0;
	if (all && p->devices && p->ck->comm->ranks > 1)
		link_devices(p, devices, sizeof(devices));
	p->report.exchange = decide_exchange(p, is_warm, remote, gds);
	n = strlen(p->exchange_why);
	snprintf(p->exchange_why + n, sizeof(p->exchange_why) - n, "%s", devices);
	decide_io(p, is_warm);
	if (p->report.io == DCPLOAD_IO_GDS && !p->device) {
		p->report.io = DCPLOAD_IO_DIRECT;
		snprintf(p->io_why, sizeof(p->io_why), "not gds: %s", not_there(p));
	}
	if (by_wants(p) && p->report.io == DCPLOAD_IO_AUTO && p->straight)
		say_why(p->io_why, sizeof(p->io_why), "from a server to where it is wanted");
	rc = by_wants(p) ? 0 : make_chunks(p, staging, slack, err);
	if (rc == 0 && p->chunks)
		rc = choose_again(p, staging, slack, err);
	if (rc == 0)
		rc = make_window(p, staging, err);
	if (rc < 0)
		rc = fall_back(p, staging, slack, err);
	return rc == 0 && p->device ? make_ship(p, staging, share, err) : rc;
}

int load_decide(struct dcpload_plan *p, struct dcpload_error *err)
{
	const struct dcpload *ck = p->ck;
	int rc, timeout = (int)ck->config.timeout_ms;
	struct finding own = { 0 };
	struct load_blobs b = { 0 };

	DCP_SORT(p->need, p->nneed, by_place);
	find_needs(p, &own);
	own.staging = ck->config.staging;
	own.roomy = ck->roomy;
	own.gds = ck->config.io == DCPLOAD_IO_GDS;
	rc = load_gather_same(ck->comm, &own, sizeof(own), &b, err, timeout);
	if (rc == 0)
		rc = take_findings(p, &b, err);
	load_blobs_free(&b);
	p->report.needed = own.needed;
	p->report.ranks = ck->comm->ranks;
	p->report.local_ranks = ck->nlocal;
	p->report.nodes = ck->nnodes;
	p->report.parts = p->nwant;
	p->report.unique = p->chunks && p->report.exchange != DCPLOAD_EXCHANGE_NEVER
				   ? p->chunks->unique
				   : 0;
	return load_agree(ck->comm, rc, err, timeout);
}

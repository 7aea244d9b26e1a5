/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load: declarations that the files of libdcpload share.
 *
 *	open/     finding and opening the same version on all ranks; its keys
 *	plan/     wants, where their bytes are stored, who reads for whom
 *	window    memory that the ranks of a node share
 *	memory/   the kinds of memory that destinations are in
 *	place/    from a stretch of a file to the destinations
 *	execute/  the threads that read and place
 */
#pragma once
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/checkpoint/checkpoint.h"
#include "core/model/geometry/cut.h"
#include "core/model/geometry/strided.h"
#include "core/model/job/chunk.h"
#include "core/origin/dir/dir.h"
#include "core/store/io/queue.h"
#include "tools/load/comm/comm.h"
#include "tools/load/dcpload.h"
#include "tools/load/memory/memory.h"
#include "tools/load/memory/scatter.h"

struct dcp_layout;
struct dcp_layouts;
struct load_device;

#define LOAD_TIMEOUT_MS 60000
#define LOAD_BLOCK DCP_CHUNK_BLOCK

struct dcpload {
	const struct dcpload_comm *comm; /* borrowed from the caller, or load_alone */
	struct dcpload_config config;    /* defaults filled in */
	bool roomy; /* the caller has set config.staging: a window may take all of it */
	struct dcp_arena arena;
	/* its source is @backing, or a directory in the mount */
	struct dcp_checkpoint of;
	/* the checkpoint that the source names: the source itself, or the source of the mount */
	const char *backing;
	const char *mount; /* root of the mount that the path lies in, or NULL */
	const char *asked; /* the version that the caller or path names */
	/* why the mount is read instead of the files; NULL: the files are read */
	const char *through;
	char *cache;
	struct dcp_io_counts counts;
	/* how often the version was opened again because its files had changed */
	uint32_t opened;
	struct dcp_layouts *layouts; /* made on first use */
	struct dcp_arena answer;     /* memory of the last answer */
	uint32_t *node;              /* number of each rank's node */
	uint32_t nnodes;
	uint32_t *local;            /* ranks on this node, in order */
	uint32_t nlocal, self;      /* size of @local; this rank's place in it */
	struct load_device *device; /* NULL: the host */
	/* between the devices of all ranks; NULL: not tried, or not available */
	struct load_link *link[LOAD_LINKS];
	char device_why[160];
	uint64_t open_ns;
};

/* ---- open/open.c ---- */

/* Find the layout @name. *@out NULL: it is a file of regions. */
int load_layout(struct dcpload *ck, const char *name, const struct dcp_layout **out,
		uint32_t *ranks, struct dcp_err *err);

/* Collective. Open the version again after its files have changed. After a failure the version
 * stays open as it was. */
int load_reopen(struct dcpload *ck, struct dcpload_error *err);

/* ---- open/keys.c ---- */

void load_tensor_of(const struct dcp_row *row, struct dcpload_tensor *out);
/* Find the row of a tensor. -ENOENT: @err names the nearest key. */
int load_find(struct dcpload *ck, const char *key, struct dcp_arena *arena, struct dcp_row *row,
	      struct dcp_err *err);
struct dcp_view;
/* Open a view of the serialized bytes of an object: dcp_view_open_object(). -ENOENT as
 * load_find(). */
int load_open_object(struct dcpload *ck, const char *key, struct dcp_view **out,
		     struct dcp_err *err);
/* Does @select select the key of @row? 1, 0, or a negative errno. */
int load_selects(const struct dcp_version *v, const struct dcpload_select *select,
		 const struct dcp_row *row);

/* ---- place/ ---- */

/* The destination of an array of stored elements. */
struct load_target {
	char *base;        /* byte 0 of the destination */
	uint32_t from, to; /* bytes per element, at most 16: stored, in the destination */
	uint32_t swap;     /* unit of bytes to reverse; 0: none */
	bool plain;        /* row-major and not converted: bytes are only copied */
	enum dcp_dtype dtype, shown; /* stored, in the destination */
	uint32_t ndim;
	uint64_t inner;        /* elements that are contiguous in the destination */
	const uint64_t *shape; /* of the array */
	const int64_t *stride; /* of the destination, in elements; NULL: row-major */
	bool on_device;        /* the processor must not touch the destination */
};

/* Place the runs of @s; @src holds the file from byte s->off on. */
void load_place(const struct load_target *t, const struct dcp_strided *s, const uint8_t *src);
/* Place @n bytes, whole elements, which begin at byte @at of the row-major stored array. */
void load_place_run(const struct load_target *t, uint64_t at, const uint8_t *src, uint64_t n);

/* Address of element @e of the array in the destination. */
char *load_address(const struct load_target *t, uint64_t e);

/* ---- plan/plan.c ---- */

struct load_want {
	const char *key;
	int64_t id; /* row of the index; 0: nothing to load */
	struct dcp_cut cut;
	const char *dtype_name, *to_name; /* stored dtype, dtype in the destination */
	uint32_t ndim, global_ndim;       /* of the part, of the tensor */
	const uint64_t *shape, *global_shape;
	struct load_target target;
	uint32_t itemsize;       /* of the destination */
	uint64_t stored, nbytes; /* bytes of the part as stored and in the destination */
	bool owned;              /* the library allocates the destination */
	bool padded;             /* the part contains zeros that are not stored */
	bool through_view;       /* a view reads the part, because it must be decoded */
	bool swap;
	uint8_t memory;        /* enum dcpload_memory of the destination */
	_Atomic uint64_t left; /* stored bytes that are not in place yet */
	/* bytes of @left that are not on their way to the device either */
	uint64_t unqueued;
	_Atomic uint32_t complete;
	void *user;
	size_t first, n; /* the needs of this want, valid until needs are sorted */
};

struct load_listed {
	const char *key, *why;
};

/* Where the bytes of a stretch were read to: the first of them to the device, the rest to the
 * host. */
struct load_there {
	uint32_t device, host;
};

struct load_block;
struct load_gds;
struct load_link;
struct load_rounds;
struct load_ship;
struct load_window;

struct dcpload_plan {
	struct dcpload *ck;
	uint32_t flags;
	bool finished;
	struct dcpload_error refused; /* why this rank cannot go on; code 0: it can */
	struct dcp_arena arena;
	/* quantized tensors of the version; set once a want is converted */
	struct dcp_quantized *quantized;
	bool looked; /* whether @quantized was looked for */
	struct load_want *want;
	size_t nwant, cap_want;
	/* in order of wants; once the plan is finished, in order of file and offset */
	struct dcp_chunk_need *need;
	size_t nneed, cap_need;
	struct {
		struct load_listed *v;
		size_t n, cap;
	} list[DCPLOAD_BROKEN + 1];
	struct dcpload_hooks hooks;
	/* an execution that was begun and not waited for; NULL: none */
	struct load_running *running;
	/* memory of the destinations that the library allocates; NULL: none */
	struct load_block *memory;
	struct dcp_chunks *chunks;  /* NULL: every want is read separately */
	struct load_window *window; /* slots for the chunks */
	/* a share of the device of @ck, because @ck may be closed before the plan is freed */
	struct load_device *device;
	struct load_ship *ship;   /* copies to the device; NULL: there is no device */
	struct load_gds *gds;     /* reads into memory of the device; NULL: the host reads */
	struct load_link *link;   /* of @ck, by which messages go between devices; or NULL */
	struct load_there *there; /* by stretch of the chunks, with @gds */
	void *stream;             /* of the caller */
	bool devices;             /* some rank has a device */
	bool roomy;               /* the callers of all ranks have set config.staging */
	/* the bytes that this rank needs are on servers, in long runs, and nearly all are only
	 * copied */
	bool straight;
	struct dcp_chunk_range *mine; /* ranges of files that this rank needs, in order */
	size_t nmine;
	struct load_rounds *rounds;  /* of messages; NULL: not used */
	_Atomic uint64_t arrived;    /* bytes placed in this execution */
	pthread_mutex_t saying;      /* held while hooks.progress() is called */
	uint64_t took;               /* @arrived and the bytes on their way to the device */
	struct dcpload_event *event; /* events kept; NULL: no trace */
	uint32_t cap_event;
	_Atomic uint64_t nevent; /* events so far, kept or not */
	int64_t began;           /* when the execution began, ns */
	struct dcpload_report report;
	char io_why[160], exchange_why[400], again_why[256];
	uint32_t opened;           /* ck->opened at the time of planning */
	_Atomic uint32_t given_up; /* another rank is lost: the rest need not be read */
	_Atomic uint32_t lost,
		/* @broken: number of a file that cannot be read, plus 1; @changed: files have
		 * changed */
		changed;
};

/* ---- plan/keyset.c ---- */

/* A line of a file of regions: "3 model.embed.weight [0:64, :]". */
struct load_region {
	uint32_t rank, ndim;
	const char *text; /* the line after the rank; it begins with the key */
	size_t nkey;
	/* the line has a box; otherwise the region is the whole tensor */
	bool box;
	uint64_t lo[DCPLOAD_MAX_NDIM], hi[DCPLOAD_MAX_NDIM]; /* UINT64_MAX: to the end */
};

/* Does the name of a layout mean a file of regions? */
bool load_is_regions(const char *layout);
/* Call @add (may be NULL) for each region, until a call fails; @err describes the failure. *@ranks:
 * how many ranks the file has. */
int load_regions(const char *path, uint32_t *ranks,
		 int (*add)(void *ctx, const struct load_region *r), void *ctx,
		 struct dcp_err *err);
/* Express the region as a cut of the tensor @row. 1, or an error as dcp_layout_cut(). */
int load_cut_region(const struct load_region *r, const struct dcp_row *row,
		    struct dcp_arena *arena, struct dcp_cut *out, struct dcp_err *err);

/* Collective: compare the keys of all ranks with each other and with what is stored. */
int load_check_keys(struct dcpload_plan *plan, struct dcpload_error *err);
/* Add an entry to one of the lists of problems with keys. -ENOMEM. */
int load_list(struct dcpload_plan *plan, uint32_t list, const char *key, const char *fmt, ...)
	DCP_PRINTF(4, 5);

/* ---- plan/schedule.c ---- */

/* Find where the bytes of all wants are stored. */
int load_locate(struct dcpload_plan *plan, struct dcpload_error *err);

/* ---- plan/decide.c ---- */

int load_decide(struct dcpload_plan *plan, struct dcpload_error *err); /* collective */
void load_plan_drop_chunks(struct dcpload_plan *plan);

/* ---- plan/again.c ---- */

/* Collective. Called when all ranks have failed with *@err. Plan again if that may help: once with
 * the files as they are now (*@renewed), or without a file that cannot be read. 0: try again. */
int load_again(struct dcpload_plan *plan, bool *renewed, struct dcpload_error *err);
/* Collective. Open the files as they are now, and locate the wants in them. *@err says why. */
int load_renew(struct dcpload_plan *plan, struct dcpload_error *err);
/* Collective. Plan again if the files were opened again for another plan. */
int load_keep_up(struct dcpload_plan *plan, struct dcpload_error *err);

/* ---- execute/execute.c ---- */

/* Wait for the execution that was begun. */
void load_stop(struct dcpload_plan *plan);

/* ---- trace.c ---- */

void load_trace_begin(struct dcpload_plan *plan);
/* Record an event that began at @start and ends now. Any thread. */
void load_trace(struct dcpload_plan *plan, uint32_t kind, int64_t start, uint64_t bytes);
/* Record an event of a lane of a device. */
void load_trace_as(struct dcpload_plan *plan, uint32_t kind, uint32_t lane, int64_t start,
		   uint64_t bytes);

/* ---- place/ship.c ---- */

/* Count @n bytes of a want that are in place. After the last byte the want is complete and commit()
 * is called. 0, or the error of a hook. Any thread. */
int load_arrived(struct dcpload_plan *p, uint32_t want, uint64_t n);

/* ---- place/stretch.c ---- */

/* The needs that intersect the current stretch; stretches come in order of file and offset. */
struct load_active {
	bool rounds;    /* leave out packed needs, which load_place_need() places */
	uint32_t *need; /* the needs that intersect this stretch, or an earlier one */
	size_t n, cap, next;
};

/* Place the bytes that the needs of @p use of [@lo, @hi) of @file, which is at @src; more bytes may
 * follow there. Counts them with load_arrived(). */
int load_place_stretch(struct dcpload_plan *p, struct load_active *a, uint32_t file,
		       uint64_t lo, uint64_t hi, const uint8_t *src);
/* The same for need @number alone. @packed: the bytes of the need were sent one after the other,
 * and @src is the first of them. */
int load_place_need(struct dcpload_plan *p, uint32_t number, uint64_t lo, uint64_t hi,
		    const uint8_t *src, bool packed);

/*
 * window: slots of memory that the ranks of a node share to pass chunks.
 *
 * One member fills a slot with chunk c, and all members copy what they need from it. When all
 * members have called load_window_done(), the slot is free for chunk c + slots. Waiting ends after
 * a time without progress, when a member dies, or when any of them reports a failure.
 */

struct dcp_queue;

/*
 * Collective over all ranks of the job: each node makes a window of @slots slots of @slot bytes
 * each, a multiple of the page size. @alone: a window of this process only, not collective.
 * -ENOMEM, -EACCES, ... with the reason in @err.
 */
int load_window_create(struct dcpload *ck, uint32_t slots, uint64_t slot, bool alone,
		       struct load_window **out, struct dcpload_error *err);
/* @keep: the slots stay until the process ends, as a device may still read them. */
void load_window_free(struct load_window *w, bool keep);

/* All slots. */
void *load_window_memory(const struct load_window *w, uint64_t *n);
uint8_t *load_window_slot(struct load_window *w, size_t c);

/* The queue that reads past the page cache into @slot, which this member fills; one thread at a
 * time. */
struct dcp_queue *load_window_queue(struct load_window *w, const uint8_t *slot);
/* A negative errno: why slots are not registered with the queue. 0: they are, or no queue was
 * used. */
int load_window_refused(const struct load_window *w);

/* A negative errno: why the slots that this member fills are not huge pages. 0: they are, if the
 * kernel has huge pages, or slots are smaller than one. */
int load_window_small(const struct load_window *w);

/* Wait until the slot of chunk @c may be filled. -ETIMEDOUT, -EOWNERDEAD (a member died),
 * -ECANCELED (some member, perhaps this one, has called load_window_fail()). */
int load_window_claim(struct load_window *w, size_t c);
/* Chunk @c is in its slot. */
void load_window_publish(struct load_window *w, size_t c);
/* Wait until chunk @c is in its slot. Errors as for load_window_claim(). */
int load_window_await(struct load_window *w, size_t c);
/* This member does not need chunk @c any more. */
void load_window_done(struct load_window *w, size_t c);
/* Report a failure, which ends the waiting of all members. */
void load_window_fail(struct load_window *w);
/* After -EOWNERDEAD: the rank, in the job, of the member that died. */
uint32_t load_window_dead(const struct load_window *w);

/* Begin again with chunk 0. No member may be using the window: the caller synchronizes all members
 * before and after. */
void load_window_reset(struct load_window *w);
/* Nanoseconds that this member has waited for chunks since the window was made; and the size of the
 * window's memory in bytes. */
uint64_t load_window_waited(const struct load_window *w);
uint64_t load_window_bytes(const struct load_window *w);

/*
 * schedule: which bytes a rank sends to which ranks when each byte is read by a single rank of the
 * job, the owner of its stripe (core/model/job/chunk.h).
 *
 * When the plan is made, every rank sends each owner which bytes of the owner's stripes it needs.
 * Stripes are as large as the messages of all ranks allow. In round k, rank r reads the blocks of
 * stripe k * ranks + r that any rank needs and sends each rank its bytes, in order. A rank stores
 * only its own needs, and the needs of others in its own stripes.
 */

/*
 * Bytes that a rank needs from a stripe: @count times @run bytes, every @step bytes of the file
 * from @lo on. The last element may reach beyond the end of the stripe. Ranks send each other this
 * struct.
 */
struct load_round_part {
	uint64_t stripe, lo;
	uint32_t run, step, count, file;
	uint32_t number; /* position among the parts of a stripe, in sending order */
	uint32_t need;   /* number of the packed need, from 1; 0: bytes as in the file */
};

struct load_rounds {
	struct dcp_stripes of;
	uint32_t self;
	uint64_t slack;               /* bytes that a part may reach beyond its stripe */
	struct load_round_part *mine; /* parts that this rank needs, in order */
	size_t nmine, cap_mine;
	/* [d]: parts that rank d needs of this rank's stripes, in order */
	struct load_round_part **theirs;
	size_t *ntheirs;
	struct load_round_part *memory; /* holds all of @theirs */
	size_t *next;                   /* index in theirs[d] of the current round */
	size_t next_mine;
	const void **send;
	uint64_t *nsend, *nrecv;
	void **recv;
	uint8_t *pack, *in; /* messages of a round: sent, received */
	uint64_t npack, nin;
	/* the device that @there and @in are memory of; NULL: messages go from host to host */
	struct load_device *device;
	/* @pack is copied here before it is sent, with the bytes that this rank needs of its own
	 * stripe */
	char *there;
	/* all ranks need the same bytes, and these are most of the bytes read: devices gather whole
	 * stripes in @in */
	bool same;
	/* With CUDA IPC the other ranks read directly from @there. It and @in have two halves, used
	 * in turns, because the half of the last round may still be read. */
	uint64_t half; /* bytes of a half; 0: IPC is not used */
	char *now;     /* the half of this round, or @there */
	bool mapped;   /* other ranks may have it mapped: it must not be freed */
};

/* Collective: find which stripes of the files each rank reads, and which of their bytes it sends.
 * Sets p->rounds and p->chunks. */
int load_make_rounds(struct dcpload_plan *p, uint64_t staging, bool slack,
		     struct dcpload_error *err);
/* @keep: buffers of messages stay until the process ends, as a device may still use them. */
void load_rounds_free(struct load_rounds *r, bool keep);
/* Bytes of message buffers, in host memory and in memory of a device; NULL: 0. */
uint64_t load_rounds_bytes(const struct load_rounds *r);
uint64_t load_rounds_device_bytes(const struct load_rounds *r);

/* Number of the parts from v[next] on that are of @stripe; *bytes: their bytes. */
size_t load_round_parts(const struct load_round_part *v, size_t n, size_t next, uint64_t stripe,
			uint64_t *bytes);
/* Collective: exchange the messages that r->send and r->recv describe, in the host's memory. */
int load_rounds_send(const struct dcpload_plan *p, struct dcpload_error *err);

/*
 * ship: the way from staging memory to a device.
 *
 * A batch is the bytes in one piece of staging memory that go to destinations on the device. Long
 * runs are copied straight to their destinations. The other bytes are shipped once, as they lie in
 * the file, and a kernel places them; without the kernel the host converts them first. Batches go
 * over several lanes, several at a time. The bytes of a batch have arrived (load_arrived) when its
 * mark is passed; only then is its piece of staging memory free again.
 */

#define LOAD_SHIP_NO_CHUNK SIZE_MAX
#define LOAD_SHIP_THERE (SIZE_MAX - 1) /* no chunk, and the bytes are on the device already */

/* @piece: most bytes of a batch; @batches: most batches in flight; @share: bytes of host memory. */
int load_ship_create(struct dcpload_plan *p, uint64_t piece, uint32_t batches, uint64_t share,
		     struct load_ship **out, struct dcpload_error *err);
/* After load_ship_drop(). @keep: copies may still run, so all that they use is kept until the
 * process ends. */
void load_ship_free(struct load_ship *s, bool keep);

/* Bytes of host memory beyond the window; of device memory; and of pinned memory. */
uint64_t load_ship_bytes(const struct load_ship *s);
uint64_t load_ship_device_bytes(const struct load_ship *s);
uint64_t load_ship_pinned(const struct load_ship *s);

/* Pin staging memory until the end of @s, near the device if it is untouched. A device that cannot
 * pin it is slower: load_device.why has the reason. */
void load_ship_pin(struct load_ship *s, void *p, uint64_t n);

/* Begin an execution, after the work that is queued on p->stream now. */
int load_ship_start(struct load_ship *s);
/* Set a destination to zero before anything else. */
int load_ship_clear(struct load_ship *s, void *p, uint64_t n);

/* Begin a batch of the bytes from @src on; waits if too many batches are in flight. @chunk: the
 * chunk of the window that is free after the batch; or LOAD_SHIP_NO_CHUNK, LOAD_SHIP_THERE. */
int load_ship_begin(struct load_ship *s, const uint8_t *src, size_t chunk);
/* Copy bytes of the host to a batch whose other bytes p->gds has put on the device. */
int load_ship_send(struct load_ship *s, const uint8_t *src, uint64_t n);
/* Add the runs of @r for want @number; its first byte is at @src. */
int load_ship_add(struct load_ship *s, uint32_t number, const struct dcp_strided *r,
		  const uint8_t *src);
/* Send the batch. */
int load_ship_end(struct load_ship *s);
/* Note the batches that have arrived; @all: wait until all have. */
int load_ship_reap(struct load_ship *s, bool all);
/* After a failure: wait until no copy is under way. */
void load_ship_drop(struct load_ship *s);

/* job: strided runs in the form that the scatter kernel takes (memory/scatter.h). */

/* Make @j, except j->first: the runs of @r, which begin at @src on the device, go to @t. False: the
 * kernel cannot place them. */
bool load_job_make(struct load_job *j, const struct load_target *t, const struct dcp_strided *r,
		   uint64_t src);
/* Extend @j by @r, if @r continues its run in the source and in @t. False: it does not. */
bool load_job_extend(struct load_job *j, const struct load_target *t,
		     const struct dcp_strided *r, uint64_t src);
/* Can the kernel place all bytes that go to @t? */
bool load_job_can(const struct load_target *t);

/*
 * record: digests of tensors, as dcpfs verify --record has written them.
 *
 * Lines of a digest (32 or 64 hex digits), two spaces and the key as a cell of TSV; or a statement
 * of in-toto (LOAD_STATEMENT), whose subjects are tensors.
 */

struct dcp_err;

#define LOAD_STATEMENT "https://in-toto.io/Statement/v1"

struct load_line {
	const char *key, *digest;
};

/* Zeroed at first. */
struct load_record {
	char *text;
	struct dcp_buf lines; /* struct load_line, by key, each key once */
	struct dcp_arena arena;
};

/* The length of the digest at the beginning of @line; 0: not a line of a record. */
size_t load_record_digest(const char *line);
/* -EINVAL: not a record, with the line in @err; -errno; -ENOMEM. Call load_record_finish() in any
 * case. */
int load_record_read(const char *path, struct load_record *out, struct dcp_err *err);
void load_record_finish(struct load_record *r);

/*
 * execute: ranks read chunks to slots and hand on the bytes of each slot to the ranks that need
 * them. The group that does so is one rank, the ranks of a node, or those of the job. Where a slot
 * would only add a copy, wants are read straight to their destinations.
 */

/* Note that reading @file returned @rc, for another attempt (again.c). Any thread. */
static inline void load_trouble(struct dcpload_plan *p, uint32_t file, int rc)
{
	if (rc == -ESTALE || rc == -ENOENT)
		atomic_store(&p->changed, 1);
	else if (rc == -EIO)
		atomic_store(&p->lost, file + 1);
}

/* The same for a read by a view, whose error names the file only in its text. */
static inline void load_trouble_of_view(struct dcpload_plan *p, int rc)
{
	if (rc != -EIO)
		load_trouble(p, 0, rc);
}

/* Are the first, middle and last of @n bytes in the page cache? Then all of them count as
 * cached. */
static inline bool load_is_warm(int fd, uint64_t off, uint64_t n)
{
	return dcp_is_cached(fd, off) && dcp_is_cached(fd, off + n - 1) &&
	       dcp_is_cached(fd, off + n / 2);
}

enum { LOAD_FILLERS = 16 /* most threads that fill slots */ };

/* One pass over the chunks of a plan: slots.c. */
struct load_pass {
	struct dcpload_plan *p;
	const struct load_way *way;
	/* set by begin() */
	size_t steps;     /* calls of step() */
	uint32_t fillers; /* threads that fill slots */
	/* this rank fills the slot of every @stride-th chunk from @first on */
	size_t first, stride;

	struct load_active active;
	pthread_t thread[LOAD_FILLERS];
	uint32_t nthreads;
	_Atomic size_t next; /* of the chunks that this rank fills */
	pthread_mutex_t lock;
	_Atomic int failed; /* why this rank fails; set with @err by load_pass_fail() */
	struct dcp_err err;
};

/* How bytes get from the slots to the ranks that need them. */
struct load_way {
	/* After a failure, too, slots are published: other ranks wait for messages from them. */
	bool keeps_going;
	int (*begin)(struct load_pass *s, struct dcpload_error *err);
	/* Hand on the bytes of the next chunk. A failure ends the pass at once; @err may be left to
	 * slots.c. */
	int (*step)(struct load_pass *s, size_t k, struct dcpload_error *err);
	void (*end)(struct load_pass *s, int rc); /* NULL: nothing is left to do */
};

/* Record the first failure of this rank; but a failure with a message replaces -ECANCELED. */
int load_pass_fail(struct load_pass *s, int rc, const struct dcp_err *err);
/* The result of a pass whose steps returned @rc, described: a failure that this rank can explain is
 * preferred. */
int load_pass_tell(struct load_pass *s, int rc, struct dcpload_error *err);
/* Wait until chunk @c is in its slot. */
int load_pass_await(struct load_pass *s, size_t c);

/* The way of one rank that reads for itself or of the ranks of a node; that of all ranks of a
 * job. */
extern const struct load_way load_through_window, load_by_messages;

/* Threads of a rank, as configured; by default the CPUs of the node divided by its ranks. */
uint32_t load_threads(const struct dcpload_plan *p);

/* Load every chunk through its slot, collectively if by messages. */
int load_by_slots(struct dcpload_plan *p, const struct load_way *way,
		  struct dcpload_error *err);
/* Load every want for itself, from the page cache or from servers. */
int load_by_wants(struct dcpload_plan *p, struct dcpload_error *err);

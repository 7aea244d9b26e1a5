/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory: the kinds of memory that destinations may be in, each a table of functions.
 *
 * The host's memory is what the processor reads and writes itself; of its table only the first
 * functions are set. Every other kind belongs to a device. The processor must not touch its memory:
 * bytes reach it by copies from host memory, which are queued on lanes. Work of one lane is done in
 * order, that of different lanes at the same time. A mark is put after the work of a lane and shows
 * when all of it is done; nothing ever waits for a whole device.
 *
 * Functions return 0 or a negative errno (-EREMOTEIO: the device failed), and then
 * load_device_said() says more. One thread at a time may use a device.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/base.h"
#include "tools/load/dcpload.h"

struct dcp_strided;
struct load_device;
struct load_job;

/* By which other processes map memory. */
struct load_shared {
	char bytes[64];
};

struct load_memory {
	const char *name; /* "host", "cuda" */
	/* @n bytes for destinations. -ENOMEM. */
	int (*alloc)(struct load_device *d, uint64_t n, void **out);
	void (*free)(struct load_device *d, void *p, uint64_t n);
	/* Set bytes to zero; copy them to host memory. Done when they return. */
	int (*zero)(struct load_device *d, void *p, uint64_t n);
	int (*fetch)(struct load_device *d, void *dst, const void *src, uint64_t n);

	/* ---- devices ---- */
	void (*close)(struct load_device *d);
	/* As alloc(), of memory that moves between device and host as either touches it. */
	int (*alloc_managed)(struct load_device *d, uint64_t n, void **out);
	/*
	 * What alloc() returned, for other processes, and as one of these map it, until unmap().
	 * While any has it mapped it must not be freed.
	 */
	int (*share)(struct load_device *d, void *p, struct load_shared *out);
	/* -EPROTO: fewer than @bytes are mapped. */
	int (*map)(struct load_device *d, const struct load_shared *shared, uint64_t bytes,
		   void **out);
	int (*unmap)(struct load_device *d, void *p);
	/* Let other libraries use the device in this thread, and no longer. Any thread. */
	int (*enter)(struct load_device *d);
	void (*leave)(struct load_device *d);
	/*
	 * What the caller's address @p points into: enum dcpload_memory. -EXDEV: another device's.
	 */
	int (*kind_of)(struct load_device *d, const void *p);
	/*
	 * Let the device read host memory by itself: copies from it do not wait for the processor.
	 */
	int (*pin)(struct load_device *d, void *p, uint64_t n);
	void (*unpin)(struct load_device *d, void *p);
	int (*lane_open)(struct load_device *d, void **lane);
	void (*lane_close)(struct load_device *d, void *lane);
	/* Is all done that was ever queued on a lane? */
	bool (*ended)(struct load_device *d);
	int (*mark_open)(struct load_device *d, void **mark);
	void (*mark_close)(struct load_device *d, void *mark);
	/* Put @mark after the work of @lane; have @lane wait for it. */
	int (*mark)(struct load_device *d, void *mark, void *lane);
	int (*follow)(struct load_device *d, void *lane, void *mark);
	/* Is what was before the mark done? 1, 0, or its failure. */
	int (*passed)(struct load_device *d, void *mark);
	/* Queue the setting of @n bytes to zero. */
	int (*clear)(struct load_device *d, void *lane, void *p, uint64_t n);
	/*
	 * Queue a copy of @n bytes of host memory; of the runs of @s, which begin at @src, to @dst
	 * + s->dst and on.
	 */
	int (*copy)(struct load_device *d, void *lane, void *dst, const void *src, uint64_t n);
	int (*copy_runs)(struct load_device *d, void *lane, char *dst, const uint8_t *src,
			 const struct dcp_strided *s);
	/* Queue the placing of bytes that are on the device: @n jobs, in its memory, of @blocks in
	 * all (scatter.h). Only when d->scatters. */
	int (*scatter)(struct load_device *d, void *lane, const struct load_job *jobs,
		       uint32_t n, uint64_t blocks);
};

/* Begins the struct of every kind of device. */
struct load_device {
	const struct load_memory *kind;
	_Atomic uint32_t users;
	uint32_t number;
	/* Of zero() and fetch(): half the job's timeout, so that this rank can report before
	 * the others give up. */
	int timeout_ms;
	bool scatters; /* it has the kernel */
	bool late;     /* a wait timed out: until the next plan or execution, waits only poll */
	bool given_up; /* what is queued may still run: load_device_runs() */
	bool kept; /* memory of it is kept until the process ends, and the context with it */
	uint8_t memory; /* enum dcpload_memory: of the destinations that the library allocates */
	int node;       /* of the host's memory that is near it; -1: not known */
	char name[96];  /* "cuda:0, NVIDIA H200" */
	char why[160];  /* missing features and the reason; "": none */
	char said[200]; /* the last failure */
};

extern const struct load_memory load_host;

/* May a device be called so? It need not be there. */
bool load_device_is_name(const char *which);

/*
 * Open the device @which: "cuda" or "cuda:LOCAL_RANK", the one of place @local among the ranks of
 * this node; "cuda:0"; "auto": as "cuda", or none if there is none (0, *out NULL, and in @why, of
 * @size bytes, the reason). NULL and "host": none. ",pinned" or ",managed" after it:
 * load_device.memory.
 */
int load_device_open(const char *which, uint32_t local, struct load_device **out, char *why,
		     size_t size, struct dcpload_error *err);
/* Each user closes it; the last one for good. NULL: nothing happens. */
struct load_device *load_device_share(struct load_device *d);
void load_device_close(struct load_device *d);

/* The table for memory of @d; NULL: the host's. */
static inline const struct load_memory *load_memory_of(const struct load_device *d)
{
	return d ? d->kind : &load_host;
}

/* Memory for destinations that several users keep: plans, tensors that were given away. */
struct load_block {
	struct load_device *device; /* NULL: none */
	uint8_t kind;               /* enum dcpload_memory */
	void *p;
	uint64_t n;
	/* kept until the process ends: copies that were abandoned may still write to it */
	bool kept;
	_Atomic uint32_t users;
};
/* In memory of d->memory. -ENOMEM, or as alloc(). */
int load_block_create(struct load_device *d, uint64_t n, struct load_block **out);
struct load_block *load_block_share(struct load_block *b);
/* The last user frees it. NULL: nothing happens. Any thread. */
void load_block_drop(struct load_block *b);
/* Is @at in it? NULL: no. */
static inline bool load_block_has(const struct load_block *b, const void *at)
{
	return b && (const char *)at >= (const char *)b->p &&
	       (const char *)at < (const char *)b->p + b->n;
}

/* Bind the untouched pages of @p to the NUMA node of @d, where that is known. @d NULL: nothing
 * happens. */
void load_device_near(struct load_device *d, void *p, uint64_t n);

/*
 * Wait until @mark is passed; when d->late, only look. -ETIMEDOUT, or a failure of what was queued
 * before it.
 */
int load_device_wait(struct load_device *d, void *mark, int timeout_ms);
/* The same for all that is queued on @lane. */
int load_device_settle(struct load_device *d, void *mark, void *lane, int timeout_ms);

/* May copies and kernels that were abandoned still run? Then memory that they use must not
 * be freed. NULL: no. */
bool load_device_runs(struct load_device *d);
/* Memory of @d is kept until the process ends; the report has the first @why. */
void load_device_keep(struct load_device *d, const char *fmt, ...) DCP_PRINTF(2, 3);

/*
 * Describe @rc of a function of the table, if it is a failure, and that memory is kept, when
 * load_device_runs(). Returns it.
 */
int load_device_said(struct load_device *d, int rc, struct dcpload_error *err);

/* ---- each kind ---- */

/* Open GPU @number; -1: the one of @local. -ENODEV: there is none; -ELIBACC, -ELIBBAD: the driver's
 * library is not there, or too old. */
int load_cuda_open(int number, uint32_t local, struct load_device **out,
		   struct dcpload_error *err);
/* Describe driver and GPUs of this machine in a line, without using any: 0, or errors as above. */
int load_cuda_probe(char *found, size_t size, struct dcpload_error *err);
/*
 * The same of what several processes can do with the first: 1 if they can use it and each other's
 * memory.
 */
int load_cuda_probe_sharing(char *found, size_t size, struct dcpload_error *err);
/*
 * The version of CUDA that the driver is of, "12.4", without a look at GPUs; NULL: there is no
 * driver.
 */
const char *load_cuda_library(void);

/*
 * room: how much memory of this node can still be had?
 */

/*
 * Bytes, at most: what the kernel says is available, swap included, or what is left of the limit of
 * a cgroup that this process is in. UINT64_MAX: not known. @what: which of them it is.
 */
uint64_t load_room(char *what, size_t size);
/* The same of the files below @root: proc/meminfo, proc/self/cgroup, sys/fs/cgroup. */
uint64_t load_room_of(const char *root, char *what, size_t size);

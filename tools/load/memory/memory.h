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
#include "tools/load/comm/comm.h"
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

/*
 * gds: reads of files straight into the memory of a GPU, by NVIDIA's cuFile.
 *
 * Where it has no driver of its own for that (nvidia-fs), cuFile reads by way of the host: its
 * compatibility mode. Files that it refuses are read by the host, and the reason is kept.
 */

struct load_gds;

/*
 * Have @n bytes of @d's memory for reads, which end within @timeout_ms. -ELIBACC, -ENODEV, ... with
 * the reason in @why, of @size bytes: it cannot be used here.
 */
int load_gds_open(struct load_device *d, uint64_t n, uint32_t timeout_ms, struct load_gds **out,
		  char *why, size_t size);
/* @keep: copies on the device may still use its memory, which is kept until the process ends. */
void load_gds_close(struct load_gds *g, bool keep);
/* Describe its state on this machine in one line; 0, or an error as above. */
int load_gds_probe(char *found, size_t size);
char *load_gds_memory(const struct load_gds *g);

/* @n bytes at @off of a file to byte @at of the memory, all multiples of 4 KiB. */
struct load_gds_read {
	uint64_t off, at, n;
	bool there; /* set: they are there; otherwise the host has to read them */
};

/*
 * Make @n reads of file number @file, open as @fd with O_DIRECT (negative: it cannot be): as a
 * batch, what that leaves one by one. Any thread. -ETIMEDOUT, -EREMOTEIO: a batch was begun and its
 * end is not known; @why, of @size bytes.
 */
int load_gds_read(struct load_gds *g, uint32_t file, int fd, struct load_gds_read *r, size_t n,
		  char *why, size_t size);

/* How it works here, and what it refused and why: a line. */
const char *load_gds_why(struct load_gds *g);

/*
 * ipc: memory of devices that the ranks of a node read from each other, by CUDA IPC.
 *
 * Each rank has a window in its device's memory, which the others map for the length of an
 * execution. What goes into it is copied there first; when the ranks have met, and it has arrived,
 * each reads what it needs where it is. Memory that others have mapped must not be freed: only when
 * all ranks say that they have unmapped it, it is its owner's again.
 *
 * Functions return 0 or a negative errno. Those that take @err are collective, failures too; of the
 * others load_device_said() says more.
 */

struct load_ipc;

/*
 * Find out, by mapping and reading memory of each other, whether all ranks of @comm can. @why_not:
 * why this rank's @d cannot take part; NULL: it can. *@out is what an earlier call made, or NULL. A
 * failure leaves it as it is.
 */
int load_ipc_open(const struct dcpload_comm *comm, struct load_device *d, const char *why_not,
		  int timeout_ms, struct load_ipc **out, struct dcpload_error *err);
/* Not collective. NULL: nothing happens. */
void load_ipc_close(struct load_ipc *n);

/* Map the windows of all ranks; this one's is @bytes at @mine, as it was allocated. Call
 * load_ipc_unmap() afterwards, also after a failure. */
int load_ipc_map(struct load_ipc *n, void *mine, uint64_t bytes, struct dcpload_error *err);
/*
 * Collective. Wait until no copy is under way, and unmap the others' windows. A failure of any
 * rank, also to end its copies: this rank's window must not be freed.
 */
int load_ipc_unmap(struct load_ipc *n, struct dcpload_error *err);

/* Queue a copy of @bytes from host memory to the window. */
int load_ipc_copy(struct load_ipc *n, void *dst, const void *src, uint64_t bytes);
/*
 * Meet: when this returns, what all ranks copied has arrived. send[r]: where in this rank's
 * window the nsend[r] bytes are that rank r reads; recv[r] becomes the address of the nrecv[r]
 * bytes of rank r that this rank reads, unless that is this rank. A rank with @failed < 0 ends
 * it for all; later failures are passed to them too.
 */
int load_ipc_meet(struct load_ipc *n, const void *const *send, const uint64_t *nsend,
		  void **recv, const uint64_t *nrecv, int *failed, struct dcpload_error *err);

/*
 * nccl: messages from device to device, between the ranks of a job, by NVIDIA's NCCL.
 *
 * No call of it blocks: what was begun is waited for until a deadline, and after any failure the
 * communicator is aborted and of no use any more. A failure here is not known to the other ranks:
 * they wait for this one until their deadline, half of the job's timeout, so that all are back in
 * time for the next agreement. Functions return 0 or a negative errno, and then load_device_said()
 * says more.
 */

struct load_nccl;

/*
 * Collective: a communicator of NCCL for all ranks of @comm, or none. @why_not: why this rank's @d
 * cannot take part; NULL: it can. *@out is what an earlier call made, or NULL. A failure leaves it
 * as it is.
 */
int load_nccl_open(const struct dcpload_comm *comm, struct load_device *d, const char *why_not,
		   int timeout_ms, struct load_nccl **out, struct dcpload_error *err);
/* Can it be used, or did it fail before? */
int load_nccl_ready(struct load_nccl *n);
/* Not collective. NULL: nothing happens. */
void load_nccl_close(struct load_nccl *n);
/* 22809: NCCL 2.28.9 */
uint32_t load_nccl_version(const struct load_nccl *n);
/* What there is of it on this machine, in a line: 0, or -ELIBACC, -ELIBBAD. */
int load_nccl_probe(char *found, size_t size);
/* Its version, "2.28.9"; NULL: there is none that can be used. */
const char *load_nccl_library(void);

/* Queue a copy of @bytes from host memory, which the next message may be sent from. */
int load_nccl_copy(struct load_nccl *n, void *dst, const void *src, uint64_t bytes);
/* After a failure: wait until no copy is under way. */
void load_nccl_drop(struct load_nccl *n);

/*
 * Collective. Messages in the memory of devices, as alltoallv() of struct dcpload_comm. They have
 * arrived when it returns.
 */
int load_nccl_exchange(struct load_nccl *n, const void *const *send, const uint64_t *nsend,
		       void *const *recv, const uint64_t *nrecv);
/* Collective. All ranks give @bytes, at rank * @bytes of @all, and get those of all. */
int load_nccl_gather(struct load_nccl *n, void *all, uint64_t bytes);
/*
 * Collective, the failure too. The same as alltoallv() of @comm, for messages in the host's memory.
 */
int load_nccl_alltoallv(struct load_nccl *n, const struct dcpload_comm *comm,
			const void *const *send, const uint64_t *nsend, void *const *recv,
			const uint64_t *nrecv, int timeout_ms, struct dcpload_error *err);

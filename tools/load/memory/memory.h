/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory: the kinds of memory that destinations may be in, each a table of functions.
 *
 * The processor reads and writes host memory itself, so the table of the host has only the first
 * functions. Every other kind belongs to a device. The processor must not touch memory of a device:
 * bytes reach it by copies from host memory, which are queued on lanes. Work of one lane is done in
 * order, work of different lanes concurrently. A mark that is queued after the work of a lane shows
 * when all of this work is done; nothing ever waits for a whole device.
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

/* The handle by which other processes map memory. */
struct load_shared {
	char bytes[64];
};

struct load_memory {
	const char *name; /* "host", "cuda" */
	/* Allocate @n bytes for destinations. -ENOMEM. */
	int (*alloc)(struct load_device *d, uint64_t n, void **out);
	void (*free)(struct load_device *d, void *p, uint64_t n);
	/* Set bytes to zero; copy them to host memory. Done when they return. */
	int (*zero)(struct load_device *d, void *p, uint64_t n);
	int (*fetch)(struct load_device *d, void *dst, const void *src, uint64_t n);

	/* ---- devices ---- */
	void (*close)(struct load_device *d);
	/* As alloc(), but of memory that moves between device and host when either accesses it. */
	int (*alloc_managed)(struct load_device *d, uint64_t n, void **out);
	/*
	 * share() makes a handle of memory from alloc() for other processes; another process maps
	 * it by map() until unmap(). The memory must not be freed while any process has it mapped.
	 */
	int (*share)(struct load_device *d, void *p, struct load_shared *out);
	/* -EPROTO: fewer than @bytes are mapped. */
	int (*map)(struct load_device *d, const struct load_shared *shared, uint64_t bytes,
		   void **out);
	int (*unmap)(struct load_device *d, void *p);
	/* enter() lets other libraries use the device in this thread; leave() ends that. Any
	 * thread. */
	int (*enter)(struct load_device *d);
	void (*leave)(struct load_device *d);
	/* The kind of memory that the caller's address @p points into: enum dcpload_memory. -EXDEV:
	 * memory of another device. */
	int (*kind_of)(struct load_device *d, const void *p);
	/* Let the device read host memory by itself: copies from it do not wait for the
	 * processor. */
	int (*pin)(struct load_device *d, void *p, uint64_t n);
	void (*unpin)(struct load_device *d, void *p);
	int (*lane_open)(struct load_device *d, void **lane);
	void (*lane_close)(struct load_device *d, void *lane);
	/* Has all work that was ever queued on any lane ended? */
	bool (*ended)(struct load_device *d);
	int (*mark_open)(struct load_device *d, void **mark);
	void (*mark_close)(struct load_device *d, void *mark);
	/* Put @mark after the work of @lane; have @lane wait for it. */
	int (*mark)(struct load_device *d, void *mark, void *lane);
	int (*follow)(struct load_device *d, void *lane, void *mark);
	/* Is the work before the mark done? 1, 0, or the failure of this work. */
	int (*passed)(struct load_device *d, void *mark);
	/* Queue the setting of @n bytes to zero. */
	int (*clear)(struct load_device *d, void *lane, void *p, uint64_t n);
	/* Queue a copy of @n bytes of host memory; or a copy of the runs of @s, which begin at
	 * @src, to @dst + s->dst and on. */
	int (*copy)(struct load_device *d, void *lane, void *dst, const void *src, uint64_t n);
	int (*copy_runs)(struct load_device *d, void *lane, char *dst, const uint8_t *src,
			 const struct dcp_strided *s);
	/* Queue the kernel that places bytes that are on the device: @n jobs, which are in device
	 * memory and have @blocks blocks in all (scatter.h). Only if d->scatters. */
	int (*scatter)(struct load_device *d, void *lane, const struct load_job *jobs,
		       uint32_t n, uint64_t blocks);
};

/* The first member of the struct of every kind of device. */
struct load_device {
	const struct load_memory *kind;
	_Atomic uint32_t users;
	uint32_t number;
	/* Timeout of zero() and fetch(): half the job's timeout, so that this rank can report a
	 * failure before the other ranks give up. */
	int timeout_ms;
	bool scatters; /* the device has the kernel of scatter.h */
	bool late;     /* a wait timed out: until the next plan or execution, waits only poll */
	bool given_up; /* queued work may still run: load_device_runs() */
	/* memory of the device, and so its context, is kept until the process ends */
	bool kept;
	uint8_t memory; /* enum dcpload_memory: of the destinations that the library allocates */
	int node;       /* NUMA node of the host memory near the device; -1: not known */
	char name[96];  /* "cuda:0, NVIDIA H200" */
	char why[160];  /* missing features and the reason; "": none */
	char said[200]; /* the last failure */
};

extern const struct load_memory load_host;

/* Is @which a valid name of a device? The device need not exist. */
bool load_device_is_name(const char *which);

/*
 * Open the device @which. "cuda" or "cuda:LOCAL_RANK": the GPU for the rank that is number @local
 * on this node; "cuda:0": that GPU; "auto": as "cuda", or no device if there is no GPU (0, *out
 * NULL, and the reason in @why, of @size bytes); NULL and "host": no device. A suffix ",pinned" or
 * ",managed" sets load_device.memory.
 */
int load_device_open(const char *which, uint32_t local, struct load_device **out, char *why,
		     size_t size, struct dcpload_error *err);
/* Add a user of the device. Each user closes it; the last close frees it. NULL: nothing happens. */
struct load_device *load_device_share(struct load_device *d);
void load_device_close(struct load_device *d);

/* The table for memory of @d; NULL: the host's. */
static inline const struct load_memory *load_memory_of(const struct load_device *d)
{
	return d ? d->kind : &load_host;
}

/* Memory for destinations with several users: plans, and tensors that were handed to the caller. */
struct load_block {
	struct load_device *device; /* NULL: none */
	uint8_t kind;               /* enum dcpload_memory */
	void *p;
	uint64_t n;
	/* kept until the process ends: copies that were abandoned may still write to it */
	bool kept;
	_Atomic uint32_t users;
};
/* Allocate @n bytes of the kind d->memory. -ENOMEM, or as alloc(). */
int load_block_create(struct load_device *d, uint64_t n, struct load_block **out);
struct load_block *load_block_share(struct load_block *b);
/* Remove a user; the last user frees the block. NULL: nothing happens. Any thread. */
void load_block_drop(struct load_block *b);
/* Does @at point into the block? NULL: no. */
static inline bool load_block_has(const struct load_block *b, const void *at)
{
	return b && (const char *)at >= (const char *)b->p &&
	       (const char *)at < (const char *)b->p + b->n;
}

/* Bind the untouched pages of @p to the NUMA node of @d, where that is known. @d NULL: nothing
 * happens. */
void load_device_near(struct load_device *d, void *p, uint64_t n);

/* Wait until @mark is passed; when d->late, only poll. -ETIMEDOUT, or a failure of the work before
 * the mark. */
int load_device_wait(struct load_device *d, void *mark, int timeout_ms);
/* The same for all work that is queued on @lane. */
int load_device_settle(struct load_device *d, void *mark, void *lane, int timeout_ms);

/* May abandoned copies and kernels still run? If so, memory that they use must not be freed. NULL:
 * no. */
bool load_device_runs(struct load_device *d);
/* Record that memory of @d is kept until the process ends, and the reason; the report shows the
 * first reason. */
void load_device_keep(struct load_device *d, const char *fmt, ...) DCP_PRINTF(2, 3);

/* If @rc, which a function of the table returned, is a failure, describe it, and also say that
 * memory is kept if load_device_runs(). Returns @rc. */
int load_device_said(struct load_device *d, int rc, struct dcpload_error *err);

/* ---- each kind ---- */

/* Open GPU @number; -1: the GPU for @local. -ENODEV: there is none; -ELIBACC, -ELIBBAD: the
 * driver's library is missing, or too old. */
int load_cuda_open(int number, uint32_t local, struct load_device **out,
		   struct dcpload_error *err);
/* Describe the driver and the GPUs of this machine in one line, without using a GPU: 0, or errors
 * as above. */
int load_cuda_probe(char *found, size_t size, struct dcpload_error *err);
/* Describe whether several processes can share the first GPU: 1 if they can use it and each other's
 * memory. */
int load_cuda_probe_sharing(char *found, size_t size, struct dcpload_error *err);
/* The CUDA version of the driver, "12.4", without access to a GPU; NULL: there is no driver. */
const char *load_cuda_library(void);

/* room: how much memory of this node is still available. */

/*
 * The lower of two numbers of bytes: available memory as the kernel reports it, swap included, and
 * the rest of the limit of this process's cgroups. UINT64_MAX: not known. @what: which of the two
 * it is.
 */
uint64_t load_room(char *what, size_t size);
/* The same, read from files below @root: proc/meminfo, proc/self/cgroup, sys/fs/cgroup. */
uint64_t load_room_of(const char *root, char *what, size_t size);

/*
 * gds: reads files directly into memory of a GPU, by NVIDIA's cuFile.
 *
 * Without its kernel driver (nvidia-fs) cuFile reads through host memory: its compatibility mode.
 * The host reads files that cuFile refuses, and the reason is kept for the report.
 */

struct load_gds;

/* Allocate @n bytes of memory of @d as the target of reads; a read takes at most @timeout_ms.
 * -ELIBACC, -ENODEV, ...: cuFile cannot be used here; the reason is in @why, of @size bytes. */
int load_gds_open(struct load_device *d, uint64_t n, uint32_t timeout_ms, struct load_gds **out,
		  char *why, size_t size);
/* @keep: the memory is kept until the process ends, because copies on the device may still use
 * it. */
void load_gds_close(struct load_gds *g, bool keep);
/* Describe the state of cuFile on this machine in one line; 0, or an error as above. */
int load_gds_probe(char *found, size_t size);
char *load_gds_memory(const struct load_gds *g);

/* A read of @n bytes at @off of a file to byte @at of the memory, all multiples of 4 KiB. */
struct load_gds_read {
	uint64_t off, at, n;
	bool there; /* result: the bytes are there; otherwise the host has to read them */
};

/*
 * Make @n reads of file number @file, which is open as @fd with O_DIRECT (negative: it cannot be
 * opened so). Reads are made as a batch, and one by one where the batch fails. Any thread.
 * -ETIMEDOUT, -EREMOTEIO: a batch was begun and it is not known whether it ended; the reason is in
 * @why, of @size bytes.
 */
int load_gds_read(struct load_gds *g, uint32_t file, int fd, struct load_gds_read *r, size_t n,
		  char *why, size_t size);

/* One line: the mode of cuFile on this machine, the files that it refused, and why. */
const char *load_gds_why(struct load_gds *g);

/*
 * link: bytes from device to device between the ranks of a job, by NVIDIA's NCCL or, on one node,
 * by CUDA IPC.
 *
 * A rank copies what it sends to memory of its device, and all ranks meet. NCCL then sends the
 * bytes. By IPC each rank has the memory of the others mapped from begin() to end(), and reads it
 * in place; memory that others have mapped must not be freed.
 *
 * Functions return 0 or a negative errno. Those that take @err are collective and fail on all
 * ranks; for the others load_device_said() has details.
 */

struct load_link_kind;

/* The first member of the struct of every kind of link. */
struct load_link {
	const struct load_link_kind *kind;
	const struct dcpload_comm *comm;
	struct load_device *d;
	void *lane, *mark;
	int timeout_ms; /* of the job; a rank waits for its device half as long */
};

struct load_link_kind {
	const char *name; /* "NCCL" */
	size_t size;      /* of its struct */
	bool one_node;    /* it joins the ranks of one node only */
	bool in_place; /* ranks read each other's memory: it has no exchange() and gather() */
	/* Prepare this rank: not collective, though it takes @err. */
	int (*prepare)(struct load_link *l, struct dcpload_error *err);
	/* Join the ranks, all of which are prepared, and find out whether it works. */
	int (*join)(struct load_link *l, struct dcpload_error *err);
	/* 22809: version 2.28.9; NULL: it has none */
	uint32_t (*version)(const struct load_link *l);
	/* Can it still be used? NULL: yes. */
	int (*ready)(struct load_link *l);
	void (*finish)(struct load_link *l);

	/* Begin an execution. @mine: all @bytes of the memory from which this rank sends. */
	int (*begin)(struct load_link *l, void *mine, uint64_t bytes,
		     struct dcpload_error *err);
	/*
	 * Wait until the copies of all ranks are made. If a rank passes *failed < 0, which @err
	 * describes, the call fails on all ranks; *failed is set if this rank fails later on.
	 * send[r]: where the nsend[r] bytes for rank r are. recv[r]: if the link is in_place, set
	 * to the address of the nrecv[r] bytes from rank r, except for this rank itself.
	 */
	int (*meet)(struct load_link *l, const void *const *send, const uint64_t *nsend,
		    void **recv, const uint64_t *nrecv, int *failed, struct dcpload_error *err);
	/* Collective. Exchange the messages, as alltoallv() of struct dcpload_comm. They have
	 * arrived when it returns. */
	int (*exchange)(struct load_link *l, const void *const *send, const uint64_t *nsend,
			void *const *recv, const uint64_t *nrecv);
	/* Collective. Each rank gives @bytes, at rank * @bytes of @all, and gets the bytes of all
	 * ranks. */
	int (*gather)(struct load_link *l, void *all, uint64_t bytes);
	/* alltoallv() of messages in host memory; NULL: it has none. */
	int (*alltoallv)(struct load_link *l, const void *const *send, const uint64_t *nsend,
			 void *const *recv, const uint64_t *nrecv, struct dcpload_error *err);
	/* Collective. End an execution that had the result @rc. A failure: other ranks may still
	 * have the memory of this rank mapped. */
	int (*end)(struct load_link *l, int rc);
};

enum { LOAD_LINKS = 2 };
extern const struct load_link_kind load_nccl, load_ipc;

/*
 * Collective: link all ranks of @comm, or none. @why_not: why @d of this rank cannot take part;
 * NULL: it can. *@out is the result of an earlier call, or NULL. A failure leaves *@out unchanged.
 */
int load_link_open(const struct load_link_kind *kind, const struct dcpload_comm *comm,
		   struct load_device *d, const char *why_not, int timeout_ms,
		   struct load_link **out, struct dcpload_error *err);
/* Not collective. NULL: nothing happens. */
void load_link_close(struct load_link *l);
/* Queue a copy of @bytes from host memory to memory from which this rank sends. */
int load_link_copy(struct load_link *l, void *dst, const void *src, uint64_t bytes);
/* Wait until no copy is under way. */
int load_link_settle(struct load_link *l);

/* Describe the NCCL of this machine in one line: 0, or -ELIBACC, -ELIBBAD. */
int load_nccl_probe(char *found, size_t size);
/* The version of NCCL, "2.28.9"; NULL: there is no usable NCCL. */
const char *load_nccl_library(void);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcpload: load a checkpoint into the memory of the ranks of a job, in any layout.
 *
 *	struct dcpload_comm *comm;            who else loads: mpirun, torchrun, srun, or alone
 *	struct dcpload *ck;                   one version of a checkpoint
 *	struct dcpload_plan *plan;            what this rank wants of it
 *
 *	dcpload_comm_open("auto", &comm, &err);
 *	dcpload_open(comm, "/data/run1", NULL, &ck, &err);
 *	dcpload_plan_create(ck, 0, &plan, &err);
 *	dcpload_want_layout(plan, "tp4:llama", rank, NULL, &err);    or dcpload_want(), key by key
 *	dcpload_plan_finish(plan, &err);
 *	dcpload_execute(plan, &err);
 *	... dcpload_part(plan, i, &part) ...
 *	dcpload_plan_free(plan);  dcpload_close(ck);  dcpload_comm_close(comm);
 *
 * Every function that can fail returns 0 (or a count) or a negative errno and describes the
 * failure in @err, which may be NULL. A function marked "collective" is called by all ranks of
 * the communicator in the same order, and returns the same code and text on all of them: also
 * when only one of them failed, or died.
 *
 * The library installs no signal handlers, never prints, never exits and keeps no globals.
 * Handles may be used by one thread at a time, different handles by different threads. Structs
 * with a member @size may grow: the caller sets it to sizeof. Strings are UTF-8; those that
 * come out of a handle live as long as it does. Plain C types only: callable by ctypes and its like.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DCPLOAD_API __attribute__((visibility("default")))
#define DCPLOAD_ABI 1
#define DCPLOAD_MAX_NDIM 64

/* The ABI the library was built with. */
DCPLOAD_API uint32_t dcpload_abi(void);
/* "0.1.0" */
DCPLOAD_API const char *dcpload_release(void);

struct dcpload_error {
	int32_t code;    /* the negative errno that was returned; 0: nothing went wrong */
	int32_t rank;    /* whose failure it is; -1: the caller's own, or everybody's */
	char text[1016]; /* one line: key, file, offset, found, expected, what to do */
};

/* ---- processes ---- */

/*
 * How ranks talk. The library brings some (dcpload_comm_open); a caller may bring its own by filling
 * this. Functions return 0 or a negative errno (-ETIMEDOUT, -ECONNRESET: a rank is gone). All
 * ranks call the same function in the same order. @timeout_ms: give up after so long.
 */
struct dcpload_comm {
	uint32_t size; /* sizeof(struct dcpload_comm) */
	uint32_t rank, ranks;
	uint32_t reserved;
	const char *name; /* for reports: "alone", "mpi", "tcp", "torch" */
	void *ctx;        /* the first argument of all functions */
	/* @n bytes of every rank (the same @n on all) into @all, which has room for ranks * n. */
	int (*allgather)(void *ctx, const void *mine, size_t n, void *all, int timeout_ms);
	/* Bulk: send[r] (nsend[r] bytes) goes to rank r, recv[r] (nrecv[r] bytes) comes from it.
	 * NULL: ranks exchange no bulk data, each node reads for itself. */
	int (*alltoallv)(void *ctx, const void *const *send, const uint64_t *nsend,
			 void *const *recv, const uint64_t *nrecv, int timeout_ms);
	/* A communicator of the ranks that give the same @color, ordered by @key and rank; to be
	 * closed before this one. NULL: there are no sub-groups. */
	int (*split)(void *ctx, uint32_t color, uint32_t key, struct dcpload_comm **out,
		     int timeout_ms);
	void (*close)(void *ctx); /* NULL: nothing to be done */
	/* The last failure of one of these functions in words, and whose it was. NULL: its code
	 * says all there is to say. */
	void (*explain)(void *ctx, struct dcpload_error *err);
};

/*
 * Collective. @how: "auto", "alone", "mpi" (started by mpirun or srun with PMI), "env" (RANK, WORLD_SIZE,
 * MASTER_ADDR and MASTER_PORT as torchrun sets them, or what srun sets). "auto": the first that
 * the environment says. Close it after all that was opened with it.
 */
DCPLOAD_API int dcpload_comm_open(const char *how, struct dcpload_comm **out,
				  struct dcpload_error *err);
/* One of an MPI communicator the caller has: @mpi_comm points to an MPI_Comm, which is
 * duplicated. Collective. */
DCPLOAD_API int dcpload_comm_from_mpi(const void *mpi_comm, struct dcpload_comm **out,
				      struct dcpload_error *err);
DCPLOAD_API void dcpload_comm_close(struct dcpload_comm *comm);

/* ---- a checkpoint ---- */

struct dcpload; /* one version, opened by all ranks */

enum dcpload_io {
	DCPLOAD_IO_AUTO,     /* what is in the page cache from there, the rest direct */
	DCPLOAD_IO_BUFFERED, /* through the page cache */
	DCPLOAD_IO_DIRECT,   /* O_DIRECT, where the file system has it */
	DCPLOAD_IO_MOUNT,    /* reads of the mount, when the source lies in one */
};

/* Who reads for whom? */
enum dcpload_exchange {
	DCPLOAD_EXCHANGE_AUTO,  /* as probed; the report says why */
	DCPLOAD_EXCHANGE_NEVER, /* every rank reads what it needs */
	DCPLOAD_EXCHANGE_NODE,  /* each byte is read once a node, and shared by its ranks */
	DCPLOAD_EXCHANGE_ALL,   /* each byte is read once, and sent to the ranks that need it */
};

struct dcpload_config {
	uint32_t size;       /* sizeof(struct dcpload_config) */
	uint32_t io;         /* enum dcpload_io */
	uint32_t exchange;   /* enum dcpload_exchange */
	uint32_t threads;    /* that read and copy, a rank; 0: as many as CPUs a rank */
	uint64_t staging;    /* bytes of memory beyond the destinations, a rank; 0: 64 MiB */
	uint32_t timeout_ms; /* without progress of another rank; 0: 60 s */
	uint32_t reserved;
	const char *version; /* a name, the number in it, or NULL or "latest" */
	const char *cache;   /* where indexes are kept; NULL: as dcpfs(1) does; "": nowhere */
};

/*
 * Collective. @comm NULL: this process alone. @source: a checkpoint, a directory of them, or a path
 * in a mount of dcpfs: its root, a version, or a rank's directory shard/LAYOUT/RANK. @config
 * may be NULL. All ranks must see the same version with the same content: -ESTALE otherwise.
 */
DCPLOAD_API int dcpload_open(const struct dcpload_comm *comm, const char *source,
			     const struct dcpload_config *config, struct dcpload **out,
			     struct dcpload_error *err);
DCPLOAD_API void dcpload_close(struct dcpload *ck);

/* Of the version: "step-500". */
DCPLOAD_API const char *dcpload_version(const struct dcpload *ck);
/* The layout and rank that the source names (a rank's directory); NULL: it names none. */
DCPLOAD_API const char *dcpload_source_layout(const struct dcpload *ck, uint32_t *rank);
/* A fact about it: "format", "framework", ...; NULL: not known. */
DCPLOAD_API const char *dcpload_fact(const struct dcpload *ck, const char *name);
/* Versions of the source by age, numbered from 0; *@why: what is wrong with it, NULL: it is complete.
 * -ENOENT behind the last. Not collective. */
DCPLOAD_API int dcpload_version_at(const struct dcpload *ck, uint64_t i, const char **name,
				   const char **why);
/* Ranks of a layout; not collective. */
DCPLOAD_API int dcpload_layout_ranks(struct dcpload *ck, const char *layout, uint32_t *ranks,
				     struct dcpload_error *err);

/* One tensor as it is stored. */
struct dcpload_tensor {
	const char *key;
	const char *dtype; /* "BF16"; what the framework calls it when dcpfs has no name */
	uint32_t itemsize; /* bytes an element */
	uint32_t ndim;
	uint64_t nbytes;
	uint64_t shape[DCPLOAD_MAX_NDIM]; /* elements */
};

/* Keys, numbered from 0 in the order of the checkpoint; @next: where to begin, and afterwards
 * the number of the next. 1 and one of them, 0 behind the last. Text until the next call. */
DCPLOAD_API int dcpload_next_tensor(struct dcpload *ck, uint64_t *next,
				    struct dcpload_tensor *out, struct dcpload_error *err);
DCPLOAD_API int dcpload_next_object(struct dcpload *ck, uint64_t *next, const char **key,
				    struct dcpload_error *err);
/* -ENOENT with the nearest key, -EBADMSG: it is there and cannot be read. Text until the next call. */
DCPLOAD_API int dcpload_tensor(struct dcpload *ck, const char *key, struct dcpload_tensor *out,
			       struct dcpload_error *err);
/* Non-tensor state as JSON, NUL-terminated; @type is Python's name of its class. Until the next
 * call. */
DCPLOAD_API int dcpload_object(struct dcpload *ck, const char *key, const char **type,
			       const char **json, size_t *n, struct dcpload_error *err);
/* The components of the key of a tensor or an object, as the framework nests them. Until the next call. */
DCPLOAD_API int dcpload_path(struct dcpload *ck, const char *key, const char *const **path,
			     size_t *n, struct dcpload_error *err);

/*
 * Read a region now, alone: elements lo[d] to lo[d] + len[d], step[d] apart (@step NULL: 1; the
 * region then has ceil(len / step) elements), row-major, little-endian, into @dst of @n bytes.
 * @lo NULL: all of it. -EINVAL: not inside the tensor, or @n is not its size.
 */
DCPLOAD_API int dcpload_read(struct dcpload *ck, const char *key, const uint64_t *lo,
			     const uint64_t *len, const uint64_t *step, void *dst, uint64_t n,
			     struct dcpload_error *err);

/* ---- what a rank wants ---- */

struct dcpload_plan;

#define DCPLOAD_STRICT (1u << 0)  /* what is stored and nobody wants is an error, too */
#define DCPLOAD_PARTIAL (1u << 1) /* what is wanted and cannot be had is listed, not an error */
#define DCPLOAD_SAME_KEYS (1u << 2) /* all ranks must want the same keys */

DCPLOAD_API int dcpload_plan_create(struct dcpload *ck, uint32_t flags,
				    struct dcpload_plan **out, struct dcpload_error *err);
DCPLOAD_API void dcpload_plan_free(struct dcpload_plan *plan);

/* One region of one tensor, and where it is to go. */
struct dcpload_want {
	uint32_t size; /* sizeof(struct dcpload_want) */
	uint32_t ndim; /* of @lo, @len, @shape and @stride */
	const char *key;
	const uint64_t *shape; /* of the whole tensor, as the caller knows it; NULL: any */
	const uint64_t *lo;    /* elements; NULL: the whole tensor */
	const uint64_t *len;
	const char *dtype;     /* of @dst: what is stored is converted; NULL: as it is stored */
	void *dst;             /* NULL: the library allocates */
	const int64_t *stride; /* of @dst, in elements; NULL: row-major. None may be negative */
	void *user;            /* the caller's; comes back in struct dcpload_part */
};
DCPLOAD_API int dcpload_want(struct dcpload_plan *plan, const struct dcpload_want *want,
			     struct dcpload_error *err);

/* Which keys: those that any of @keys names and none of @skip; by name, by a prefix that ends
 * at a dot or slash, or by a glob (* ? []), in which * also matches dots and slashes. */
struct dcpload_select {
	uint32_t size; /* sizeof(struct dcpload_select) */
	uint32_t nkeys, nskip;
	uint32_t reserved;
	const char *const *keys; /* none: all */
	const char *const *skip;
	const char *dtype; /* convert floating-point tensors to this; NULL: as stored */
	/* As Composer has it: without the keys of which @ignore, globs over paths with slashes, names the
	 * path or one that leads to it ("state/optimizers", "state/model/a.*"). */
	const char *const *ignore;
	uint64_t *ignored; /* counts the keys that each names; NULL: nobody asks */
	uint32_t nignore;
	uint32_t weights_only; /* 1: only the model: no optimizer, scheduler, random state */
};

/* What rank @rank of a layout holds of every tensor that @select (NULL: all) names, in memory
 * of the library. @layout: as dcpfs(1) knows them: "fsdp8", "tp4:llama", a file. */
DCPLOAD_API int dcpload_want_layout(struct dcpload_plan *plan, const char *layout,
				    uint32_t rank, const struct dcpload_select *select,
				    struct dcpload_error *err);

/* Called around each part while a plan is executed; any may be NULL. A negative return ends the
 * execution and is its error. */
struct dcpload_part;
struct dcpload_hooks {
	uint32_t size; /* sizeof(struct dcpload_hooks) */
	uint32_t reserved;
	void *ctx;
	/* Before data moves: change part->data to where the part is to go. */
	int (*resolve)(void *ctx, uint64_t number, struct dcpload_part *part);
	/* It is complete. */
	int (*commit)(void *ctx, uint64_t number, const struct dcpload_part *part);
	/* How far this rank is, of bytes; now and then. */
	int (*progress)(void *ctx, uint64_t done, uint64_t total);
};
DCPLOAD_API int dcpload_plan_hooks(struct dcpload_plan *plan,
				   const struct dcpload_hooks *hooks);

/*
 * Collective. No more wants: who reads what is decided, and where every byte lies is known. On an
 * error no memory was touched.
 */
DCPLOAD_API int dcpload_plan_finish(struct dcpload_plan *plan, struct dcpload_error *err);

/* What was wrong with keys, of this rank: -ENOENT behind the last. */
enum dcpload_list {
	DCPLOAD_MISSING,    /* wanted, not stored */
	DCPLOAD_UNEXPECTED, /* stored, wanted by no rank */
	DCPLOAD_SHAPE,      /* stored with another shape than the caller said */
	DCPLOAD_DTYPE,      /* stored with a dtype that cannot be converted */
	DCPLOAD_BROKEN,     /* stored, and cannot be read */
};
DCPLOAD_API int dcpload_plan_list(const struct dcpload_plan *plan, uint32_t list, uint64_t i,
				  const char **key, const char **why);

/* ---- loading ---- */

/* Collective. Fill all destinations. May be called again. On an error destinations are undefined,
 * except those whose part says that it is complete. */
DCPLOAD_API int dcpload_execute(struct dcpload_plan *plan, struct dcpload_error *err);

/* Collective. For measuring: have the page cache forget the files of the plan, as far as nobody
 * has them mapped. */
DCPLOAD_API int dcpload_drop_caches(struct dcpload_plan *plan, struct dcpload_error *err);

/* Collective. Read every part again, by itself and another way, and compare. -EILSEQ: it
 * differs. */
DCPLOAD_API int dcpload_check(struct dcpload_plan *plan, struct dcpload_error *err);

/* Collective. The same wants of another version @ck, which was opened with the same
 * communicator; -EINVAL when a shape or dtype differs. The plan must be finished. */
DCPLOAD_API int dcpload_plan_rebase(struct dcpload_plan *plan, struct dcpload *ck,
				    struct dcpload_error *err);

/* One want, in the order they were added. */
struct dcpload_part {
	const char *key;
	const char *dtype;  /* of the data */
	const char *stored; /* dtype in the checkpoint */
	uint32_t itemsize;  /* of the data */
	uint32_t ndim;
	uint32_t complete;    /* 1: all bytes are there */
	uint32_t global_ndim; /* of the tensor; differs from @ndim where a part is flattened */
	void *data;           /* the destination; the library's until the plan is freed */
	uint64_t nbytes;
	uint64_t shape[DCPLOAD_MAX_NDIM];        /* of the part */
	uint64_t global_shape[DCPLOAD_MAX_NDIM]; /* of the tensor */
	void *user;
};
/* -ENOENT behind the last. */
DCPLOAD_API int dcpload_part(const struct dcpload_plan *plan, uint64_t i,
			     struct dcpload_part *out);

/* What happened on this rank, in bytes and nanoseconds. */
struct dcpload_report {
	uint32_t size;     /* sizeof(struct dcpload_report) */
	uint32_t io;       /* enum dcpload_io that was used; AUTO: more than one */
	uint32_t exchange; /* enum dcpload_exchange that was used */
	uint32_t ranks;
	uint32_t local_ranks; /* on this node */
	uint32_t nodes;
	uint64_t parts;
	uint64_t needed;   /* bytes of this rank's parts, as stored */
	uint64_t read;     /* bytes this rank asked of files, with what alignment adds */
	uint64_t sent;     /* to other ranks, by message */
	uint64_t received; /* from other ranks, by message or out of the window */
	uint64_t unique;   /* distinct bytes that all ranks need; once the plan is finished */
	uint64_t staging;  /* most memory beyond destinations */
	uint64_t calls;    /* of the kernel, to read */
	uint64_t open_ns, plan_ns, execute_ns;
	uint64_t read_ns, wait_ns, place_ns; /* of the execution, of all threads */
	const char *io_why, *exchange_why;   /* one line each */
	const char *comm;                    /* name of the transport */
	uint64_t cpu_ns; /* of the execution: what this process had of the processors */
};
DCPLOAD_API int dcpload_plan_report(const struct dcpload_plan *plan,
				    struct dcpload_report *out);

/* What one thread did; nanoseconds count from where the last execution began, on all ranks nearly at
 * once. */
enum dcpload_event_kind {
	DCPLOAD_EVENT_READ,
	DCPLOAD_EVENT_WAIT, /* for another rank or thread */
	DCPLOAD_EVENT_PLACE,
};
struct dcpload_event {
	uint32_t kind, thread;
	uint64_t start_ns, end_ns, bytes;
};
/* Keep the first @events of each execution; 0, as at first: none. -ENOMEM. */
DCPLOAD_API int dcpload_plan_trace(struct dcpload_plan *plan, uint32_t events);
/* -ENOENT behind the last. */
DCPLOAD_API int dcpload_plan_event(const struct dcpload_plan *plan, uint64_t i,
				   struct dcpload_event *out);

#ifdef __cplusplus
}
#endif

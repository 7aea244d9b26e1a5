/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcpsave: write what the ranks of a job hold in memory as one checkpoint of any format.
 *
 *	struct dcpload_comm *comm;            the ranks of the job, or this process alone
 *	struct dcpsave *s;                    the checkpoint to be
 *
 *	dcpload_comm_open("auto", &comm, &err);
 *	dcpsave_open(comm, "/data/run1/step-500", &config, &s, &err);
 *	dcpsave_add(s, &tensor, &err);        for each region of a tensor that this rank holds
 *	dcpsave_add_object(s, &object, &err);
 *	dcpsave_plan(s, &err);
 *	dcpsave_write(s, &err);
 *	dcpsave_wait(s, &err);                it is complete, or it is not there
 *	dcpsave_close(s);  dcpload_comm_close(comm);
 *
 * Every function that can fail returns 0 or a negative errno. One that takes @err, which may be NULL,
 * describes the failure there. A function marked "collective" must be called by all ranks of the
 * communicator in the same order, and returns the same code and text on all of them, even when only
 * one of them failed. When a rank is gone, the others get an error after config.timeout_ms at the latest.
 *
 * All ranks must see the directory that the checkpoint lies in. Everything is written into
 * a directory beside it, whose name begins with a dot; the checkpoint gets its name when it is complete
 * and on the disk. After a failure nothing of it is left, or, when rank 0 died, only that directory,
 * which the next save to the same path removes.
 *
 * Communicators and struct dcpload_error are those of dcpload.h. The library installs no signal
 * handlers, never prints, never exits and keeps no globals. A handle may be used by one thread at a
 * time, different handles by different threads. Structs with a member @size may grow: the caller
 * sets it to sizeof. Strings are UTF-8 and copied. The API uses plain C types only, so that ctypes
 * and the like can call it.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DCPSAVE_API __attribute__((visibility("default")))
#define DCPSAVE_ABI 1
#define DCPSAVE_MAX_NDIM 64

struct dcpload_comm;
struct dcpload_error;
struct dcpsave;

/* DCPSAVE_ABI of the library that is loaded; compare it with the header's. */
DCPSAVE_API uint32_t dcpsave_abi(void);
/* "0.1.0" */
DCPSAVE_API const char *dcpsave_release(void);
/* Format @i, and one line about it (may be NULL). -ENOENT after the last. */
DCPSAVE_API int dcpsave_format_at(uint64_t i, const char **name, const char **what);

#define DCPSAVE_REPLACE (1u << 0)   /* a checkpoint that is there is replaced by the new one */
#define DCPSAVE_ASYNC (1u << 1)     /* dcpsave_write() returns when memory may be changed */
#define DCPSAVE_PARTIAL (1u << 2)   /* what the format cannot hold is listed, not an error */
#define DCPSAVE_SAME_KEYS (1u << 3) /* all ranks must give the same tensors and objects */
#define DCPSAVE_FILE (1u << 4)      /* @path is one file, whatever its name ends with */
#define DCPSAVE_DIRECT (1u << 5)    /* O_DIRECT, where the file system has it */

/* All ranks must give the same but for @threads, @staging and @timeout_ms. */
struct dcpsave_config {
	uint32_t size;    /* sizeof(struct dcpsave_config) */
	uint32_t flags;   /* DCPSAVE_* */
	uint32_t threads; /* per rank, to copy and write; 0: CPUs / ranks, at most 8 */
	uint32_t
		timeout_ms; /* give up when another rank is not heard of for this time; 0: 60 s */
	/* Of pickles; 0: the format's own. Protocol 2 has arrays as text, whose length is known to whoever has read them: a rank
	 * that is alone. With several ranks it is -EINVAL for formats with arrays in pickles (paddle): give 3 or 4. */
	uint32_t protocol;
	uint32_t reserved;
	const char *format; /* "torch-dcp", "safetensors", ... */
	/* Bytes that DCPSAVE_ASYNC may copy, per rank; 0: all that this rank writes. What does not
	 * fit is on the disk when dcpsave_write() returns. */
	uint64_t staging;
	/* Bytes of tensors in a file, for formats of several files; 0: 5e9; UINT64_MAX: no limit. */
	uint64_t max_shard;
	/* Ranks that each write a file at their own @path, of all that the ranks gave: whole tensors,
	 * of a key that several gave that of the highest rank. NULL: all write one checkpoint. */
	const uint32_t *gather_to;
	uint64_t ngather;
	/* Bytes that one round of that gathering may bring along, from all ranks together; 0 or more
	 * than 32 MiB: 32 MiB. */
	uint64_t max_grouped;
	/* "cuda:0", or "cuda": the GPU of this rank: @data may point into its memory, too. NULL: host memory only.
	 * Need not be the same on all ranks. */
	const char *device;
};

/*
 * Collective. @comm NULL: this process alone; otherwise it must outlive *@out. @path: the checkpoint
 * to be, a directory or, when it ends like one of the format ("model.safetensors"), a file. Nothing is
 * written yet.
 */
DCPSAVE_API int dcpsave_open(const struct dcpload_comm *comm, const char *path,
			     const struct dcpsave_config *config, struct dcpsave **out,
			     struct dcpload_error *err);
/* Not collective. What was not completed is removed. Accepts NULL. */
DCPSAVE_API void dcpsave_close(struct dcpsave *s);

/* A region of a tensor, and where it is in the memory of this rank. */
struct dcpsave_tensor {
	uint32_t size; /* sizeof(struct dcpsave_tensor) */
	uint32_t ndim; /* of @shape, @lo, @len and @stride */
	const char *key;
	/* Components of the key, as the program nests them, @npath strings; 0: the key is one. */
	const char *const *path;
	uint64_t npath;
	const char *dtype;     /* "BF16" */
	const uint64_t *shape; /* of the tensor, in elements */
	const uint64_t *lo;    /* first element of the region; NULL: it is the whole tensor */
	const uint64_t *len;   /* elements of the region; ignored without @lo */
	const int64_t *stride; /* of @data, in elements; NULL: row-major */
	/* Its first element, in host memory, or row-major in that of config.device, where all work that writes it
	 * has ended; it may be freed or changed after dcpsave_wait(), with DCPSAVE_ASYNC after
	 * dcpsave_write(). */
	const void *data;
	/* Instead of @data, which is NULL: bytes [off, off + n) of the region, as it is row-major,
	 * into @to. Called until dcpsave_wait() by threads of the library, each with its own
	 * @thread, less than 12. 0 or a negative errno. */
	int (*read)(void *ctx, uint32_t thread, uint64_t off, void *to, uint64_t n,
		    struct dcpload_error *err);
	void *ctx;
};
/*
 * Not collective; a rank of which it fails has to end the job or tell the others itself. Several
 * ranks may give the same region: one of them writes it. A region without elements only says that
 * the tensor exists.
 */
DCPSAVE_API int dcpsave_add(struct dcpsave *s, const struct dcpsave_tensor *tensor,
			    struct dcpload_error *err);

/* Non-tensor state as JSON, as dcpload_object() gives it. */
struct dcpsave_object {
	uint32_t size; /* sizeof(struct dcpsave_object) */
	uint32_t reserved;
	const char *key;
	const char *const *path; /* as above */
	uint64_t npath;
	const char *type; /* Python's name of the class: "int", "dict"; NULL: not known */
	const char *json;
	const char *classes; /* as dcpload_classes() gives them, or NULL */
};
/* As dcpsave_add(). When several ranks give the same key, that of the lowest is written. */
DCPSAVE_API int dcpsave_add_object(struct dcpsave *s, const struct dcpsave_object *object,
				   struct dcpload_error *err);

/*
 * Collective. Compares what the ranks gave, decides which of them writes what, balanced by bytes, and
 * makes the files; nothing can be added afterwards. -EINVAL: ranks gave other dtypes or shapes for a
 * key, regions overlap without being equal, or leave a gap; -ENOTSUP: the format cannot hold
 * something; -EEXIST: a checkpoint is there; -ENOSPC, ...
 */
DCPSAVE_API int dcpsave_plan(struct dcpsave *s, struct dcpload_error *err);

/* What is left out (DCPSAVE_PARTIAL): entry @i. -ENOENT after the last. Call it after dcpsave_plan(). */
DCPSAVE_API int dcpsave_left(const struct dcpsave *s, uint64_t i, const char **key,
			     const char **why);

/* Collective. Write the checkpoint; with DCPSAVE_ASYNC only begin to. */
DCPSAVE_API int dcpsave_write(struct dcpsave *s, struct dcpload_error *err);

/* Collective. Wait until all ranks have written, and give the checkpoint its name. Without
 * DCPSAVE_ASYNC dcpsave_write() has done so. */
DCPSAVE_API int dcpsave_wait(struct dcpsave *s, struct dcpload_error *err);

/* Not collective. 1: dcpsave_wait() need not wait for this rank. */
DCPSAVE_API int dcpsave_poll(struct dcpsave *s);

/* What happened on this rank, in bytes and nanoseconds. */
struct dcpsave_report {
	uint32_t size; /* sizeof(struct dcpsave_report) */
	uint32_t ranks;
	uint64_t files, bytes;     /* of the checkpoint */
	uint64_t tensors, objects; /* in it */
	uint64_t given;            /* bytes of this rank's regions */
	uint64_t own;              /* of these, what it writes and no other rank does */
	uint64_t written;          /* of these, what has been written */
	uint64_t copied;           /* by DCPSAVE_ASYNC before dcpsave_write() returned */
	uint64_t plan_ns, write_ns, wait_ns; /* in these functions */
	uint64_t rounds, grouped; /* of gathering: how many, and the most bytes of one */
	uint64_t on_device;       /* of @given, in the memory of config.device */
};
DCPSAVE_API int dcpsave_report(const struct dcpsave *s, struct dcpsave_report *out);

#ifdef __cplusplus
}
#endif

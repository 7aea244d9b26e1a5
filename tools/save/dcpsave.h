/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcpsave: write the tensors that the ranks of a job hold in memory as one checkpoint of any
 * format.
 *
 *	struct dcpload_comm *comm;            the ranks of the job, or this process alone
 *	struct dcpsave *s;                    the checkpoint that is written
 *
 *	dcpload_comm_open("auto", &comm, &err);
 *	dcpsave_open(comm, "/data/run1/step-500", &config, &s, &err);
 *	dcpsave_add(s, &tensor, &err);        for each region of a tensor that this rank holds
 *	dcpsave_add_object(s, &object, &err);
 *	dcpsave_plan(s, &err);
 *	dcpsave_write(s, &err);
 *	dcpsave_wait(s, &err);                the checkpoint is complete, or does not exist
 *	dcpsave_close(s);  dcpload_comm_close(comm);
 *
 * Every function that can fail returns 0 or a negative errno. A function that takes @err, which may
 * be NULL, describes the failure there. A function marked "collective" must be called by all ranks
 * of the communicator in the same order, and returns the same code and text on all of them, even
 * when only one of them failed. When a rank dies, the other ranks get an error after
 * config.timeout_ms at the latest.
 *
 * All ranks must see the directory that will contain the checkpoint. The ranks write into a
 * temporary directory there, whose name begins with a dot; rank 0 renames it when the checkpoint is
 * complete and on the disk. A failed save leaves nothing behind, unless rank 0 died: then the
 * temporary directory stays until the next save to the same path removes it.
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
/* Name of format @i, and one line that describes it (@what may be NULL). -ENOENT after the last. */
DCPSAVE_API int dcpsave_format_at(uint64_t i, const char **name, const char **what);

#define DCPSAVE_REPLACE (1u << 0) /* replace a checkpoint that dcpfs wrote at @path */
#define DCPSAVE_ASYNC (1u << 1)   /* dcpsave_write() returns once the data is copied */
/* tensors and objects that the format cannot hold are listed, not an error */
#define DCPSAVE_PARTIAL (1u << 2)
#define DCPSAVE_SAME_KEYS (1u << 3) /* all ranks must give the same tensors and objects */
#define DCPSAVE_FILE (1u << 4)      /* @path is one file, even without the format's suffix */
#define DCPSAVE_DIRECT (1u << 5)    /* O_DIRECT, where the file system has it */
#define DCPSAVE_OVERWRITE (1u << 6) /* replace any file at @path, as open() with O_TRUNC does */

/* All ranks must give the same values, except for @threads, @staging, @timeout_ms, @withheld and
 * @device. */
struct dcpsave_config {
	uint32_t size;       /* sizeof(struct dcpsave_config) */
	uint32_t flags;      /* DCPSAVE_* */
	uint32_t threads;    /* per rank, to copy and write; 0: CPUs / ranks, at most 8 */
	uint32_t timeout_ms; /* give up when a rank does not answer for this time; 0: 60 s */
	/*
	 * Pickle protocol; 0: the format's default. Protocol 2 stores arrays as text whose length
	 * depends on the values, so several ranks cannot plan a file. With formats that store
	 * arrays in pickles (paddle) and several ranks, protocol 2 is -EINVAL; use 3 or 4.
	 */
	uint32_t protocol;
	/* Permission bits that files and directories do not get, in addition to the umask: 077 if
	 * the data comes from a private file. */
	uint32_t withheld;
	const char *format; /* "torch-dcp", "safetensors", ... */
	/* Limit of the bytes that DCPSAVE_ASYNC copies, per rank; 0: no limit. Data beyond the
	 * limit is written before dcpsave_write() returns. */
	uint64_t staging;
	/* Bytes of tensors in a file, for formats of several files; 0: 5e9; UINT64_MAX: no
	 * limit. */
	uint64_t max_shard;
	/*
	 * @ngather ranks, each of which writes one file at its own @path with the tensors of all
	 * ranks. Every tensor must be whole. If several ranks gave the same key, the tensor of the
	 * highest rank is written. NULL: all ranks write one checkpoint.
	 */
	const uint32_t *gather_to;
	uint64_t ngather;
	/* Limit of the bytes that all ranks together send in one round of gathering; 0 or more than
	 * 32 MiB means 32 MiB. */
	uint64_t max_grouped;
	/* The GPU in whose memory dcpsave_tensor.data may be: "cuda:0", or "cuda": the GPU of this
	 * rank. NULL: host memory only. */
	const char *device;
	/*
	 * The caller may set it to nonzero at any time: a save into a bucket then fails with
	 * -ECANCELED, and dcpsave_close() aborts its uploads. NULL: the save cannot be cancelled.
	 */
	const volatile int *stop;
};

/*
 * Collective. @comm NULL: this process alone; otherwise it must outlive *@out. @path, which may
 * begin with s3:// or gs://: the checkpoint to write. It is a file if it has the suffix of the
 * format ("model.safetensors"), otherwise a directory. The suffix of another format is refused,
 * unless a slash follows it. Nothing is written yet.
 */
DCPSAVE_API int dcpsave_open(const struct dcpload_comm *comm, const char *path,
			     const struct dcpsave_config *config, struct dcpsave **out,
			     struct dcpload_error *err);
/* Not collective. Removes a checkpoint that was not completed. Accepts NULL. */
DCPSAVE_API void dcpsave_close(struct dcpsave *s);

/* A region of a tensor, and its place in the memory of this rank. */
struct dcpsave_tensor {
	uint32_t size; /* sizeof(struct dcpsave_tensor) */
	uint32_t ndim; /* of @shape, @lo, @len and @stride */
	const char *key;
	/* Components of the key, as the program nests them: @npath strings; 0: the key itself is
	 * the only component. */
	const char *const *path;
	uint64_t npath;
	const char *dtype;     /* "BF16" */
	const uint64_t *shape; /* of the tensor, in elements */
	/* first element of the region; NULL: the region is the whole tensor */
	const uint64_t *lo;
	const uint64_t *len;   /* elements of the region; ignored without @lo */
	const int64_t *stride; /* of @data, in elements; NULL: row-major */
	/*
	 * First element of the region, in host memory or, if row-major, in memory of config.device;
	 * GPU work that writes the region must have ended. The caller may free or change the region
	 * after dcpsave_wait(); with DCPSAVE_ASYNC, after dcpsave_write().
	 */
	const void *data;
	/*
	 * If @data is NULL: copies bytes [off, off + n) of the region in row-major order to @to.
	 * Threads of the library call it until dcpsave_wait() returns; each thread passes its own
	 * number, below 12, as @thread. Returns 0 or a negative errno.
	 */
	int (*read)(void *ctx, uint32_t thread, uint64_t off, void *to, uint64_t n,
		    struct dcpload_error *err);
	void *ctx;
};
/*
 * Not collective: if it fails, the caller must end the job or inform the other ranks. Several ranks
 * may give the same region; one of them writes it. A region without elements only declares the
 * tensor.
 */
DCPSAVE_API int dcpsave_add(struct dcpsave *s, const struct dcpsave_tensor *tensor,
			    struct dcpload_error *err);

/* Non-tensor state as JSON in the form that dcpload_object() returns. */
struct dcpsave_object {
	uint32_t size; /* sizeof(struct dcpsave_object) */
	uint32_t reserved;
	const char *key;
	const char *const *path; /* as above */
	uint64_t npath;
	const char *type; /* Python's name of the class: "int", "dict"; NULL: not known */
	const char *json;
	const char *classes; /* in the form that dcpload_classes() returns, or NULL */
};
/* As dcpsave_add(). If several ranks give the same key, the object of the lowest rank is
 * written. */
DCPSAVE_API int dcpsave_add_object(struct dcpsave *s, const struct dcpsave_object *object,
				   struct dcpload_error *err);

/*
 * Collective. Compares the regions and objects of all ranks, decides which rank writes which of
 * them, balanced by bytes, and creates the files; nothing can be added afterwards. -EINVAL: ranks
 * gave different dtypes or shapes for a key, or regions overlap without being equal, or leave a
 * gap; -ENOTSUP: the format cannot hold a tensor or object; -EEXIST: the checkpoint exists already;
 * -ENOSPC, ...
 */
DCPSAVE_API int dcpsave_plan(struct dcpsave *s, struct dcpload_error *err);

/* Entry @i of the keys that are left out (DCPSAVE_PARTIAL). -ENOENT after the last. Call it after
 * dcpsave_plan(). */
DCPSAVE_API int dcpsave_left(const struct dcpsave *s, uint64_t i, const char **key,
			     const char **why);

/* Collective. Write the checkpoint; with DCPSAVE_ASYNC start writing. */
DCPSAVE_API int dcpsave_write(struct dcpsave *s, struct dcpload_error *err);

/* Collective. Wait until all ranks have written, and rename the checkpoint to its path. Without
 * DCPSAVE_ASYNC dcpsave_write() has done both. */
DCPSAVE_API int dcpsave_wait(struct dcpsave *s, struct dcpload_error *err);

/* Not collective. 1: this rank has not begun to write, or has finished; 0: it is writing. */
DCPSAVE_API int dcpsave_poll(struct dcpsave *s);

/* The work of this rank, in bytes and nanoseconds. */
struct dcpsave_report {
	uint32_t size; /* sizeof(struct dcpsave_report) */
	uint32_t ranks;
	uint64_t files, bytes;     /* of the checkpoint */
	uint64_t tensors, objects; /* in the checkpoint */
	uint64_t given;            /* bytes of this rank's regions */
	uint64_t own;              /* of @given, bytes that this rank was chosen to write */
	uint64_t written;          /* of @own, bytes that have been written */
	/* bytes that DCPSAVE_ASYNC copied before dcpsave_write() returned */
	uint64_t copied;
	uint64_t plan_ns, write_ns, wait_ns; /* in the functions of these names */
	uint64_t rounds, grouped; /* rounds of gathering, and the bytes of the largest one */
	uint64_t on_device;       /* of @given, in the memory of config.device */
};
DCPSAVE_API int dcpsave_report(const struct dcpsave *s, struct dcpsave_report *out);

#ifdef __cplusplus
}
#endif

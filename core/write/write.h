/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write: of which files does a checkpoint of one format consist, byte for byte?
 *
 * A format is one row of the table in formats.c. Its plan() is pure: given a set (what is to be
 * written: tensors, objects, files that go along) and options, it emits to a sink, in order,
 * every file and what stands in it: bytes that it makes itself, and parts of tensors, whose
 * bytes it never sees. So all places are known before any data is read, and several threads or
 * processes that run the same plan can each write their share. Nothing is opened, read or kept
 * here: memory is for what the sink keeps.
 *
 *   set, options --plan()--> sink: file a, bytes, part, part, bytes, file b, ...
 *
 * What is known only after the data has passed, the CRC-32 of a part, has its place kept
 * (dcp_writer_crc32) and is filled in by the executor of the plan, tools/save.
 *
 * A format that needs a file to be complete (".metadata", an index) emits it last, as last.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/tensor.h"

struct dcp_buf;
struct dcp_err;

/* ---- what is written ---- */

/* An array that goes into a file in one run: row-major, little-endian, no gaps. */
struct dcp_write_part {
	uint32_t rank; /* whose it is, of set->ranks */
	uint32_t ndim; /* of the array: the tensor's, but for flat cuts */
	/* where in the tensor this box begins; NULL: it is not a box of it */
	const uint64_t *lo;
	const uint64_t *shape; /* ndim */
};

#define DCP_WRITE_ALONE SIZE_MAX

struct dcp_write_tensor {
	const char *key;
	const char *const *path; /* components of the key, as the source nests them */
	size_t npath;
	enum dcp_dtype dtype; /* as it is written */
	uint32_t itemsize;
	uint32_t ndim;
	const uint64_t *shape;
	const struct dcp_write_part *parts; /* at least one; of a whole tensor one, of rank 0 */
	size_t nparts;
	size_t same_as; /* number of an earlier tensor that has the same bytes; DCP_WRITE_ALONE: none */
};

/* A file that goes along unchanged: config.json. */
struct dcp_write_extra {
	const char *name;
	uint64_t nbytes;
};

struct dcp_write_set {
	const struct dcp_write_tensor *tensors;
	size_t ntensors;
	const struct dcp_object *objects; /* with JSON; none with an error */
	size_t nobjects;
	const struct dcp_write_extra *extras;
	size_t nextras;
	/* What files of the source say beside @n of the tensors, as
	 * dcp_safetensors_begin_meta() takes it; valid until the next call. NULL: nothing. */
	int (*said)(void *ctx, const size_t *tensors, size_t n, const char **object);
	uint32_t ranks; /* of the layout; 1: tensors are whole */
	/* Parts are what each of several ranks holds, one of a rank at most, in their order. */
	bool arrays;
	/* Paths go through lists of plain values, too; else only through those that have
	 * tensors or dicts in them, as torch opens them. */
	bool lists;
	/* How many of the bytes [off, off + n) of a part are 0x80 or more: as text each is two.
	 * 0 or what reading gave. NULL: unknown, and no format can write data as text. */
	int (*high)(void *ctx, size_t tensor, size_t part, uint64_t off, size_t n,
		    uint64_t *count, struct dcp_err *err);
	void *ctx;
};

/* Bytes of a part. */
uint64_t dcp_write_part_bytes(const struct dcp_write_tensor *t,
			      const struct dcp_write_part *part);
/* Is it all of the tensor? */
bool dcp_write_is_whole(const struct dcp_write_tensor *t, const struct dcp_write_part *part);

/* The number of output files of a format for whole tensors (of set->arrays, else 1); and the
 * part that the file of @rank stores, or SIZE_MAX for none. */
uint32_t dcp_write_sets(const struct dcp_write_set *set);
size_t dcp_write_part_of(const struct dcp_write_set *set, size_t tensor, uint32_t rank);

/* The key of a tensor, or from ntensors on of an object. */
const char *dcp_write_key(const struct dcp_write_set *set, size_t item);

/* ---- where it goes ---- */

/* Data in one run: [off, off + n) of a part of a tensor; or, tensor >= set->ntensors, all of an
 * extra. */
struct dcp_write_run {
	size_t tensor, part;
	uint64_t off, n;
	uint64_t length; /* in the file */
	bool text; /* each byte as the character of that number, in UTF-8; n is at most DCP_WRITE_TEXT */
};
#define DCP_WRITE_TEXT ((size_t)2 << 20)

/* Functions return 0 or a negative errno, which ends the plan. */
struct dcp_write_sink {
	/* What follows stands in file @name, from its beginning; it may lie in directories
	 * ("zero/a.b/fp32.pt"). @last: without it the others are not a checkpoint. */
	int (*file)(void *ctx, const char *name, bool last);
	int (*bytes)(void *ctx, const void *p, size_t n);
	/* They are data run number 0, 1, 2, ... of the plan. */
	int (*data)(void *ctx, const struct dcp_write_run *run);
	/* Four bytes, little-endian: the CRC-32 of the bytes that @crc covers (0: none) and,
	 * after them, of data run @run, which was emitted before or will be. */
	int (*crc32)(void *ctx, uint32_t crc, size_t run);
	void *ctx;
};

/* ---- formats ---- */

/* Options; a row says which of them it takes. */
enum {
	DCP_WRITE_SHARDS = 1, /* max_shard */
	DCP_WRITE_LAYOUT = 2, /* a set of several ranks */
	DCP_WRITE_BOXES =
		4, /* but every part must be a box of its tensor, each element in one part */
	DCP_WRITE_PROTOCOL = 8, /* protocol */
	DCP_WRITE_OBJECTS = 16, /* it can hold some objects */
	DCP_WRITE_EXTRAS = 32,  /* and files that go along */
	DCP_WRITE_ARRAYS =
		64, /* instead of whole tensors a file for each of several ranks, with its own arrays */
	DCP_WRITE_METADATA = 256, /* it has a place for set->metadata */
	DCP_WRITE_RENAMES = 128,  /* keys are others, or lost, when they are read back */
};

struct dcp_write_opts {
	const char *name; /* one file of this name is wanted; NULL: a directory */
	const char *stem; /* of files of weights there; NULL: "model" */
	/* bytes of tensors in a file, unless one alone is longer; 0: no limit */
	uint64_t max_shard;
	unsigned protocol; /* of pickles; 0: the format's own */
};

struct dcp_writer;

struct dcp_write_format {
	const char *name; /* of --as; never reuse one */
	const char *what; /* one line for people */
	const char *const
		*extensions; /* of OUT when it is one file: ".safetensors"; NULL at the end */
	unsigned takes;
	/* Why this tensor or object cannot be in such a checkpoint, or NULL. Whoever plans
	 * leaves those out before, and says so. NULL: all can. */
	const char *(*refuses)(const struct dcp_write_tensor *t);
	const char *(*refuses_object)(const struct dcp_object *o);
	/* What a reader of the object has to allow, or NULL: nothing. A NULL function: nothing
	 * for any object. */
	const char *(*asks)(const struct dcp_object *o);
	/* -EINVAL (this set, these options), -E2BIG (beyond a limit of the format), -ENOMEM. */
	int (*plan)(const struct dcp_write_set *set, const struct dcp_write_opts *opts,
		    struct dcp_writer *w, struct dcp_err *err);
};

/* NULL at the end. */
extern const struct dcp_write_format *const dcp_write_formats[];
const struct dcp_write_format *dcp_write_format(const char *name); /* NULL: unknown */
/* Is @path called like a file of the format? */
bool dcp_write_is_file_of(const struct dcp_write_format *f, const char *path);
/* The first format that has files that are called like @path; NULL: there is none. */
const struct dcp_write_format *dcp_write_format_of(const char *path);

/* Run the plan of @f. Returns what plan() or the sink gave. */
int dcp_write_plan(const struct dcp_write_format *f, const struct dcp_write_set *set,
		   const struct dcp_write_opts *opts, const struct dcp_write_sink *sink,
		   struct dcp_err *err);

/* ---- for plan() ---- */

/* What has been emitted. Failures stay: after one, nothing more reaches the sink. */
struct dcp_writer {
	const struct dcp_write_sink *sink;
	const struct dcp_write_set *set;
	uint64_t at; /* in the file */
	size_t runs; /* of data */
	int rc;
};

void dcp_writer_file(struct dcp_writer *w, const char *name, bool last);
void dcp_writer_bytes(struct dcp_writer *w, const void *p, size_t n);
void dcp_writer_fill(struct dcp_writer *w, char c, size_t n);
/* They return the number of the run. */
size_t dcp_writer_part(struct dcp_writer *w, size_t tensor, size_t part);
size_t dcp_writer_slice(struct dcp_writer *w, size_t tensor, size_t part, uint64_t off,
			uint64_t n);
void dcp_writer_crc32(struct dcp_writer *w, uint32_t crc, size_t run);
/* All extras of the set, each a file. */
void dcp_writer_extras(struct dcp_writer *w);

/* A slice as text, in several runs. First ask how long each of them will be (uint64_t in
 * @lengths; in all @total): 0, -ENOTSUP (set->high is NULL), -ENOMEM, or what that gave. */
int dcp_writer_measure(const struct dcp_writer *w, size_t tensor, size_t part, uint64_t off,
		       uint64_t n, struct dcp_buf *lengths, uint64_t *total,
		       struct dcp_err *err);
void dcp_writer_text(struct dcp_writer *w, size_t tensor, size_t part, uint64_t off, uint64_t n,
		     const struct dcp_buf *lengths);

/*
 * formats: the rows of the table, each in a file of its own.
 */

extern const struct dcp_write_format dcp_write_safetensors;
extern const struct dcp_write_format dcp_write_npy;
extern const struct dcp_write_format dcp_write_npz;
extern const struct dcp_write_format dcp_write_paddle_binary;
extern const struct dcp_write_format dcp_write_paddle_vars;
extern const struct dcp_write_format dcp_write_paddle;
extern const struct dcp_write_format dcp_write_paddle_dist;
extern const struct dcp_write_format dcp_write_paddle_dist_31;
extern const struct dcp_write_format dcp_write_deepspeed_universal;
extern const struct dcp_write_format dcp_write_torch_dcp;
extern const struct dcp_write_format dcp_write_torch_save;

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write: computes the files of a checkpoint in a format, byte for byte.
 *
 * A format is one row of the table in formats.c. Its plan() is pure: given a set (the tensors,
 * objects and extra files to write) and options, it emits to a sink, in order, every file and its
 * contents: bytes that the format generates, and parts of tensors, whose bytes plan() never sees.
 * So all offsets are known before any data is read, and several threads or processes that run the
 * same plan can each write their share. No file is opened or read here, and only the sink keeps
 * data.
 *
 *   set, options --plan()--> sink: file a, bytes, part, part, bytes, file b, ...
 *
 * The CRC-32 of a part is known only after its data has been read. plan() reserves four bytes for
 * it (dcp_writer_crc32), which the executor of the plan, tools/save, fills in.
 *
 * If readers need a certain file to accept the checkpoint (".metadata", an index), the format emits
 * this file last, with @last set.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/model/tensor.h"

struct dcp_buf;
struct dcp_err;

/* ---- the set: input of a plan ---- */

/* An array that goes into a file in one run: row-major, little-endian, no gaps. */
struct dcp_write_part {
	uint32_t rank; /* rank of set->ranks that the part belongs to */
	uint32_t ndim; /* of the array; same as the tensor's, except for flat cuts */
	/* first element of the part in the tensor; NULL: the part is not a box of the tensor */
	const uint64_t *lo;
	const uint64_t *shape; /* ndim */
};

#define DCP_WRITE_ALONE SIZE_MAX

struct dcp_write_tensor {
	const char *key;
	const char *const *path; /* components of the key, as the source nests them */
	size_t npath;
	enum dcp_dtype dtype; /* dtype in the output */
	uint32_t itemsize;
	uint32_t ndim;
	const uint64_t *shape;
	/* at least one; a whole tensor has one part, of rank 0 */
	const struct dcp_write_part *parts;
	size_t nparts;
	/* number of an earlier tensor with the same bytes, or DCP_WRITE_ALONE */
	size_t same_as;
};

/* A file that is copied unchanged: config.json. */
struct dcp_write_extra {
	const char *name;
	uint64_t nbytes;
};

struct dcp_write_set {
	const struct dcp_write_tensor *tensors;
	size_t ntensors;
	const struct dcp_object *objects; /* all have JSON, none has an error */
	size_t nobjects;
	const struct dcp_write_extra *extras;
	size_t nextras;
	/* Metadata that files of the source hold beside @n of the tensors, in the form that
	 * dcp_safetensors_begin_meta() takes; valid until the next call. NULL: there is none. */
	int (*said)(void *ctx, const size_t *tensors, size_t n, const char **object);
	uint32_t ranks; /* of the layout; 1: tensors are whole */
	/* Each part is the array that one of several ranks holds; a rank has at most one part, and
	 * parts are in order of ranks. */
	bool arrays;
	/* Paths go through all lists; otherwise only through lists that contain tensors or dicts,
	 * as torch does. */
	bool lists;
	/*
	 * Count the bytes in [off, off + n) of a part that are 0x80 or more, because as text each
	 * takes two bytes. 0, or the error of reading. NULL: not available, so no format can write
	 * data as text.
	 */
	int (*high)(void *ctx, size_t tensor, size_t part, uint64_t off, size_t n,
		    uint64_t *count, struct dcp_err *err);
	void *ctx;
};

uint64_t dcp_write_part_bytes(const struct dcp_write_tensor *t,
			      const struct dcp_write_part *part);
/* Is the part the whole tensor? */
bool dcp_write_is_whole(const struct dcp_write_tensor *t, const struct dcp_write_part *part);

/* The number of sets that are written apart: one for each rank if set->arrays, else 1.
 * dcp_write_part_of(): the part in the file of @rank; SIZE_MAX: none. */
uint32_t dcp_write_sets(const struct dcp_write_set *set);
size_t dcp_write_part_of(const struct dcp_write_set *set, size_t tensor, uint32_t rank);

/* The key of tensor @item, or from ntensors on, of an object. */
const char *dcp_write_key(const struct dcp_write_set *set, size_t item);

/* ---- the sink: output of a plan ---- */

/* A run of data: bytes [off, off + n) of a part of a tensor; or if tensor >= set->ntensors, all of
 * an extra file. */
struct dcp_write_run {
	size_t tensor, part;
	uint64_t off, n;
	uint64_t length; /* in the file */
	/* each byte is written as the character of that number in UTF-8; n <= DCP_WRITE_TEXT */
	bool text;
};
#define DCP_WRITE_TEXT ((size_t)2 << 20)

/* Functions return 0 or a negative errno, which ends the plan. */
struct dcp_write_sink {
	/* Begin the file @name, whose contents follow; the name may have directories
	 * ("zero/a.b/fp32.pt"). @last: without this file the other files are not a checkpoint. */
	int (*file)(void *ctx, const char *name, bool last);
	int (*bytes)(void *ctx, const void *p, size_t n);
	/* Called for data runs number 0, 1, 2, ... of the plan. */
	int (*data)(void *ctx, const struct dcp_write_run *run);
	/* Four bytes, little-endian: the CRC-32 of some bytes, whose own CRC-32 is @crc (0: none),
	 * and data run @run after them. The run may be emitted earlier or later. */
	int (*crc32)(void *ctx, uint32_t crc, size_t run);
	void *ctx;
};

/* ---- formats ---- */

/* Features of a format. */
enum {
	DCP_WRITE_SHARDS = 1, /* max_shard */
	DCP_WRITE_LAYOUT = 2, /* takes a set of several ranks */
	/* with several ranks: every part must be a box of its tensor, each element in one part */
	DCP_WRITE_BOXES = 4,
	DCP_WRITE_PROTOCOL = 8, /* protocol */
	DCP_WRITE_OBJECTS = 16, /* can hold some objects */
	DCP_WRITE_EXTRAS = 32,  /* can hold extra files */
	/* can also write a file for each of several ranks with its own arrays */
	DCP_WRITE_ARRAYS = 64,
	DCP_WRITE_METADATA = 256, /* can hold set->metadata */
	/* keys are changed or lost when the checkpoint is read back */
	DCP_WRITE_RENAMES = 128,
};

struct dcp_write_opts {
	const char *name; /* write one file of this name; NULL: a directory */
	/* beginning of the names of weight files in the directory; NULL: "model" */
	const char *stem;
	/* limit of the bytes of tensors in a file, unless one tensor is longer; 0: no limit */
	uint64_t max_shard;
	unsigned protocol; /* protocol of pickles; 0: the default of the format */
};

struct dcp_writer;

struct dcp_write_format {
	const char *name; /* value of --as; never reuse a name */
	const char *what; /* one line that describes the format */
	/* extensions of OUT if it is one file: ".safetensors"; NULL at the end */
	const char *const *extensions;
	unsigned takes;
	/*
	 * Why the format cannot hold this tensor or object, or NULL if it can. The caller leaves
	 * such items out of the set before planning, and reports them. A NULL function: the format
	 * can hold all.
	 */
	const char *(*refuses)(const struct dcp_write_tensor *t);
	const char *(*refuses_object)(const struct dcp_object *o);
	/* The setting that a reader needs to read the object, or NULL. A NULL function: no object
	 * needs one. */
	const char *(*asks)(const struct dcp_object *o);
	/* -EINVAL (the format cannot take this set or these options), -E2BIG (beyond a limit of the
	 * format), -ENOMEM. */
	int (*plan)(const struct dcp_write_set *set, const struct dcp_write_opts *opts,
		    struct dcp_writer *w, struct dcp_err *err);
};

/* NULL at the end. */
extern const struct dcp_write_format *const dcp_write_formats[];
const struct dcp_write_format *dcp_write_format(const char *name); /* NULL: unknown */
/* Has @path an extension of the format? */
bool dcp_write_is_file_of(const struct dcp_write_format *f, const char *path);
/* The first format that has an extension of @path; NULL: there is none. */
const struct dcp_write_format *dcp_write_format_of(const char *path);

/* Run the plan of @f. Returns the result of plan() or of the sink. */
int dcp_write_plan(const struct dcp_write_format *f, const struct dcp_write_set *set,
		   const struct dcp_write_opts *opts, const struct dcp_write_sink *sink,
		   struct dcp_err *err);

/* ---- for plan() ---- */

/* State of an emitting plan. Failures are sticky: after a failure nothing more reaches the sink. */
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
/* Both return the number of the run. */
size_t dcp_writer_part(struct dcp_writer *w, size_t tensor, size_t part);
size_t dcp_writer_slice(struct dcp_writer *w, size_t tensor, size_t part, uint64_t off,
			uint64_t n);
void dcp_writer_crc32(struct dcp_writer *w, uint32_t crc, size_t run);
/* Emit all extra files of the set. */
void dcp_writer_extras(struct dcp_writer *w);

/*
 * Emit a slice as text, in several runs. First measure the length of each run (uint64_t in
 * @lengths; their sum is @total): 0, -ENOTSUP (set->high is NULL), -ENOMEM, or the error of
 * set->high.
 */
int dcp_writer_measure(const struct dcp_writer *w, size_t tensor, size_t part, uint64_t off,
		       uint64_t n, struct dcp_buf *lengths, uint64_t *total,
		       struct dcp_err *err);
void dcp_writer_text(struct dcp_writer *w, size_t tensor, size_t part, uint64_t off, uint64_t n,
		     const struct dcp_buf *lengths);

/* formats: the rows of the table, each in a file of its own. */

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

/*
 * zip: archives of stored entries, emitted to a writer.
 *
 *	for each entry   local header, name, padding; its bytes; in torch's variant a descriptor
 *	at the end       the central directory, zip64 records where they are needed
 *
 * There are two variants. Python's zipfile has sizes and checksums in local headers and no padding.
 * torch has sizes and checksums in a descriptor after the bytes, pads local headers with an extra
 * field "FB" so that data begins at a multiple of 64 from the start of the archive, and always has
 * the zip64 records at the end.
 *
 * Checksums of tensor data are filled in later (dcp_writer_crc32). Time stamps are zero: 1980.
 */

enum dcp_zip_way { DCP_ZIP_PYTHON, DCP_ZIP_TORCH };

struct dcp_zipper {
	struct dcp_writer *w;
	enum dcp_zip_way way;
	uint64_t start; /* in the writer's file */
	struct dcp_buf entries, names;
	int rc;
};

void dcp_zipper_begin(struct dcp_zipper *z, struct dcp_writer *w, enum dcp_zip_way way);
/* Add an entry of @n bytes. */
void dcp_zipper_bytes(struct dcp_zipper *z, const char *name, const void *p, size_t n);
/* Add an entry of @n bytes followed by a part of a tensor. */
void dcp_zipper_part(struct dcp_zipper *z, const char *name, const void *p, size_t n,
		     size_t tensor, size_t part);
/* Emit the central directory, and free the memory of @z. 0, -E2BIG (a name is too long),
 * -ENOMEM. */
int dcp_zipper_end(struct dcp_zipper *z);

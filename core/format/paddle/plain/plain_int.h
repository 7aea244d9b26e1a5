/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plain_int: the declarations that the sources for Paddle's plain files share; only these
 * sources include it.
 *
 *	plain.c                which files are a version, and how they are emitted together; whether files that
 *	                       have the same key hold the same values under it
 *	part.c                 one file of any kind, and the parts of its name; files of tensor streams
 *	state.c                one file of paddle.save: which values are tensors, arrays that are cut into
 *	                       parts, labels for keys that several files have
 *	auto/                  save_for_auto_inference
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/format/format.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/pickle/pickle.h"

struct dcp_paddle_program;
struct dcp_sink;
struct dcp_source;

/* ---- names ---- */

enum dcp_pdkind {
	DCP_PDKIND_STATE,  /* .pdparams, .pdopt, and files that are a version by themselves */
	DCP_PDKIND_PARAMS, /* .pdiparams */
	DCP_PDKIND_MODEL,  /* .pdmodel: a program, or a model saved by group_sharded */
	DCP_PDKIND_JSON,   /* a program, if a .pdiparams stands beside it */
	DCP_PDKIND_ATTR,   /* .pdattr */
	DCP_PDKIND_INFO,   /* .pdiparams.info */
};

/* The parts of a file's name. "opt_rank1.pdopt": version "opt", ranks "rank1", extension
 * "pdopt". */
struct dcp_plain_name {
	enum dcp_pdkind kind;
	char version[DCP_GROUP_MAX];
	char ranks[DCP_GROUP_MAX]; /* "": a file for all ranks */
	const char *extension;     /* in the name, without the dot */
	bool one_rank;             /* ranks is a word and the number @rank */
	uint64_t rank;
};

/* Take apart the name @file; false: it is not a file of this family. */
bool dcp_plain_name_read(const char *file, struct dcp_plain_name *out);

/* ---- one file ---- */

/* How the keys of one file are emitted. */
struct dcp_plain_part {
	const char *file;
	/* distinguishes the file from the version's other files: "pdopt", "rank1" */
	const char *label;
	/* How a key is emitted if the version has several files. 0: unchanged; 1: with the label in
	 * front; 2: not at all, because another file emits an equal value. NULL: all unchanged. */
	int (*choose)(void *ctx, const char *key);
	void *ctx;
	const struct dcp_sink *sink;
};

/*
 * Emit the contents of a file of paddle.save. @src is the whole file, which has number @number at
 * the sink. Returns 0, or a negative errno, with a message in @err if nothing of it can be shown.
 */
int dcp_plain_state_emit(const struct dcp_plain_part *part, const struct dcp_source *src,
			 uint32_t number, struct dcp_err *err);

/* A file of tensor streams. */
struct dcp_plain_lod {
	bool params; /* it is a .pdiparams, with any number of tensors */
	/* names the tensors; NULL: they are numbered */
	const struct dcp_paddle_program *program;
	const char *program_file;
};

/* Emit a file of any kind; for a file of tensor streams also the program that names its tensors.
 * @dir: the version's directory. */
int dcp_plain_part_emit(const struct dcp_dir *dir, const struct dcp_plain_part *part,
			struct dcp_err *err);

/* A key and its path as the part emits them, with the label in front if the part's choose() says
 * so. */
struct dcp_plain_key {
	const char *key;
	const char *const *path;
	size_t npath;
	/* memory of a key and a path with a label */
	char *text;
	const char **list;
};
/* Returns 1: emit the key; 0: do not emit it; or -ENOMEM. */
int dcp_plain_key_init(struct dcp_plain_key *k, const struct dcp_plain_part *part,
		       const char *key, const char *const *path, size_t npath);
void dcp_plain_key_finish(struct dcp_plain_key *k);

/* ---- values ---- */

/* The forms in which Paddle stores an array. */
enum dcp_pdwrap {
	DCP_PDWRAP_NONE,
	DCP_PDWRAP_PAIR, /* (name, array) */
	DCP_PDWRAP_LOD,  /* a LoDTensor */
};

#define DCP_PDBIG_TABLE "UnpackBigParamInfor@@"

/* An array in parts. The caller sets root, file and bf16, and finishes pieces. */
struct dcp_pdbig {
	struct dcp_pv root; /* the dict that holds the parts */
	uint32_t file;
	bool bf16;
	size_t nparts;       /* parts of all arrays so far */
	struct dcp_tensor t; /* dtype, shape, pieces */
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_buf pieces;
	struct dcp_err why;
};

/* ---- several files ---- */

/* Pieces of up to this many bytes are compared whole; of larger pieces samples are compared. */
#define DCP_PLAIN_SAME_WHOLE 65536

/* A hash of a tensor's dtype, shape and bytes in one file. If two hashes are equal, so are the
 * bytes that were read. */
struct dcp_plain_same {
	uint64_t sum[2];
	bool known;   /* false: the bytes could not be read, or @budget was used up */
	bool sampled; /* only samples of the bytes were read */
};

/* Hash the tensor @t, whose pieces lie in the file @src. @budget: bytes that may still be read,
 * reduced by the bytes that this call reads. 0 or -ENOMEM. */
int dcp_plain_same_read(const struct dcp_source *src, const struct dcp_tensor *t,
			uint64_t *budget, struct dcp_plain_same *out);

/* Emit a version whose .pdattr files record how each rank's parameters were cut. @names: the names
 * of the @n parts, taken apart. */
int dcp_plain_auto(const struct dcp_load *in, const struct dcp_plain_part *parts,
		   const struct dcp_plain_name *names, size_t n, struct dcp_err *err);

/* Emit @part, which cannot be shown, as a broken object with the part's label as key. */
int dcp_plain_part_broken(const struct dcp_plain_part *part, const char *why);

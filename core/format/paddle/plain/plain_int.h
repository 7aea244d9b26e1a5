/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plain_int: what the files behind the family of Paddle's plain files share; only
 * they include it.
 *
 *	plain.c                which files are a version, and how they are emitted together; several files
 *	                       whose keys may clash: do two of them hold the same under a key?
 *	part.c                 one file, whatever it is, and what its name says; one of tensor streams
 *	state.c                one file of paddle.save: which values are tensors, arrays that are cut into
 *	                       parts, keys of several files made different
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

struct dcp_ndarray;
struct dcp_paddle_program;
struct dcp_sink;
struct dcp_source;

/* ---- names ---- */

enum dcp_pdkind {
	DCP_PDKIND_STATE,  /* .pdparams, .pdopt, and what has a name of its own */
	DCP_PDKIND_PARAMS, /* .pdiparams */
	DCP_PDKIND_MODEL,  /* .pdmodel: a program, or what group_sharded saved */
	DCP_PDKIND_JSON,   /* a program, if a .pdiparams stands beside it */
	DCP_PDKIND_ATTR,   /* .pdattr */
	DCP_PDKIND_INFO,   /* .pdiparams.info */
};

/* "opt_rank1.pdopt": version "opt", ranks "rank1", extension "pdopt". */
struct dcp_pdname {
	enum dcp_pdkind kind;
	char version[DCP_GROUP_MAX];
	char ranks[DCP_GROUP_MAX]; /* "": a file for all ranks */
	const char *extension;     /* in the name, without the dot */
	bool one_rank;             /* ranks is a word and this number: */
	uint64_t rank;
};

/* False: not one of ours. */
bool dcp_pdname_read(const char *file, struct dcp_pdname *out);

/* ---- one file ---- */

/* How the keys of one file are emitted. */
struct dcp_pdpart {
	const char *file;
	const char *
		label; /* what distinguishes it from the version's other files: "pdopt", "rank1" */
	/*
	 * Several files only: 0, the key is emitted as it is; 1, with the label in front; 2, not
	 * at all, an equal object was emitted before.
	 */
	int (*choose)(void *ctx, const char *key);
	void *ctx;
	const struct dcp_sink *sink;
};

/*
 * Emit what @src, the whole of file number @number at the sink, holds. Returns 0, or why
 * nothing of it can be shown, described in @err.
 */
int dcp_pdstate_emit(const struct dcp_pdpart *part, const struct dcp_source *src,
		     uint32_t number, struct dcp_err *err);

/* The same for tensor streams. */
struct dcp_pdlod {
	bool params;                              /* of a .pdiparams: any number of tensors */
	const struct dcp_paddle_program *program; /* names them; NULL: they are numbered */
	const char *program_file;
};

/* Emit a .pdparams or LoDTensor file, and the program that names its tensors. @dir: the
 * version's directory. */
int dcp_pdpart_emit(const struct dcp_dir *dir, const struct dcp_pdpart *part,
		    struct dcp_err *err);

/*
 * A key and its path as the part emits them: NULL when it is not to be emitted, with the label
 * in front when another part has the same.
 */
struct dcp_pdkey {
	const char *key;
	const char *const *path;
	size_t npath;
	/* memory after them */
	char *text;
	const char **list;
};
/* 1: emit it, 0: do not, -ENOMEM. */
int dcp_pdkey_init(struct dcp_pdkey *k, const struct dcp_pdpart *part, const char *key,
		   const char *const *path, size_t npath);
void dcp_pdkey_finish(struct dcp_pdkey *k);

/* ---- values ---- */

/* How Paddle wraps an array. */
enum dcp_pdwrap {
	DCP_PDWRAP_NONE,
	DCP_PDWRAP_PAIR, /* (name, array) */
	DCP_PDWRAP_LOD,  /* a LoDTensor */
};

#define DCP_PDBIG_TABLE "UnpackBigParamInfor@@"

/* An array in parts: root, file and bf16 are given; pieces is the caller's to finish. */
struct dcp_pdbig {
	struct dcp_pv root; /* the dict that holds the parts */
	uint32_t file;
	bool bf16;
	size_t nparts;       /* in all arrays so far */
	struct dcp_tensor t; /* dtype, shape, pieces */
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_buf pieces;
	struct dcp_err why;
};

/* ---- several files ---- */

/* Values of up to this many bytes are compared whole, samples of larger ones. */
#define DCP_PDSAME_WHOLE 65536

/* What a file holds of a tensor: equal sums, equal bytes, as far as they were looked at. */
struct dcp_pdsame {
	uint64_t sum[2];
	bool known;   /* false: it could not be read, or @budget was used up */
	bool sampled; /* it was not looked at as a whole */
};

/* @src: the file that the pieces of @t lie in. @budget: bytes that may still be read. 0 or
 * -ENOMEM. */
int dcp_pdsame_read(const struct dcp_source *src, const struct dcp_tensor *t, uint64_t *budget,
		    struct dcp_pdsame *out);

/* The same of a version in which a .pdattr says how each rank's parameters were cut; @names are
 * those of the parts. */
int dcp_pdauto(const struct dcp_load *in, const struct dcp_pdpart *parts,
	       const struct dcp_pdname *names, size_t n, struct dcp_err *err);

/* Emit that @part cannot be shown, as an object called like its label. */
int dcp_pdpart_broken(const struct dcp_pdpart *part, const char *why);

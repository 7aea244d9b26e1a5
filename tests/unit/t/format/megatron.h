/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_megatron: mp_rank directories for tests, file by file as Megatron-LM lays them out, and
 * what the adapter tells of them. All parameters are float32.
 *
 *	t_megatron_begin(&f, args, 3.0);
 *	t_megatron_model(&f, "model");
 *	t_megatron_param(&f, "output_layer.weight", values, shape, 2);
 *	t_megatron_end(&f, &tree, "mp_rank_00/model_optim_rng.pt");
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/sink.h"

#define T_MEGATRON_PARAMS 128 /* in one file */

/* An argument of the run; lists end with a NULL name. */
struct t_megatron_arg {
	const char *name;
	int64_t v;
};

struct t_megatron_file {
	struct dcp_buf pickle, data[T_MEGATRON_PARAMS];
	size_t nparams;
	bool in_model;
};

/* @args NULL: there are none; @version negative: it is not said. */
void t_megatron_begin(struct t_megatron_file *f, const struct t_megatron_arg *args,
		      double version);
void t_megatron_object(struct t_megatron_file *f, const char *key, int64_t v);
void t_megatron_model(struct t_megatron_file *f, const char *name);
void t_megatron_param(struct t_megatron_file *f, const char *key, const float *v,
		      const int64_t *shape, size_t ndim);
void t_megatron_end(struct t_megatron_file *f, const struct t_dir *tree, const char *name);

/* "mp_rank_<tp>[_<pp>][_<ep>]": which numbers there are depends on the degrees. */
void t_megatron_dir(char name[64], int tp, int pp, int ep, int npp, int nep);

/* ---- whole jobs ---- */

#define T_MEGATRON_KEYS 10  /* parameters of a job */
#define T_MEGATRON_ELEMS 64 /* of each */

/* A parameter whose elements are their numbers in the whole. */
struct t_megatron_param {
	const char *key;   /* in the file */
	const char *whole; /* in the model */
	int64_t shape[2];
	size_t ndim;
	int cut;    /* dimension; -1: the same on all ranks */
	int groups; /* cut each by itself */
	int pp, ep; /* stage and expert rank that hold it; -1: all */
	int chunk;  /* of an interleaved pipeline */
};

/* What all ranks of a job write. */
struct t_megatron_job {
	const char *what;
	int tp, pp, ep;
	const char *dir; /* format of tp, pp, ep */
	struct t_megatron_param param[T_MEGATRON_KEYS];
	const char *skip;  /* a directory that is not there */
	const char *rules; /* dcpfs.rules */
	int64_t vocab;     /* padded_vocab_size; 0: not said */
	int chunks;        /* of an interleaved pipeline; 0: it is none */
	int etp;           /* tensor parallel ranks of experts; 0: not said */
	int experts;       /* num_experts; 0: not said */
};

void t_megatron_job(const struct t_dir *tree, const struct t_megatron_job *j);

/* The file of tensor, pipeline and expert parallel rank @t, @s, @e. */
void t_megatron_rank(const struct t_dir *tree, const struct t_megatron_job *j, int t, int s,
		     int e, const char *dir);

/* ---- what is told ---- */

/* What was told of a directory. */
struct t_megatron {
	struct dcp_dir dir;
	struct t_sink s;
	struct dcp_err err;
};

/* Load as family @family. The caller closes, whatever comes back. */
int t_megatron_load(struct t_megatron *m, const char *root, const char *family);
void t_megatron_close(struct t_megatron *m);

/* The error of the tensor or object @key; NULL: none. */
const char *t_megatron_error(const struct t_megatron *m, const char *key);

/* Fail unless the tensor @key is told with that shape and those values. */
void t_megatron_check(const struct t_megatron *m, const char *key, const float *v,
		      const int64_t *shape, size_t ndim);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_paddle_world: a random save of Paddle, and the values it was made of.
 *
 * Tensors of any dtype are cut over meshes of one or two dimensions as Paddle cuts (each gets
 * the ceiling, the last what is left, which may be nothing), into flattened runs, into boxes
 * that overlap and disagree, or not at all; replicas are stored as each generation does it.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "tests/unit/t/format/paddle.h"

struct t_dir;

enum {
	T_PW_RANKS = 6,
	T_PW_KEYS = 6,
	T_PW_PIECES = T_PW_KEYS * T_PW_RANKS * 3,
	T_PW_BYTES = 16384
};

struct t_pw_type {
	const char *paddle, *numpy, *stored; /* the last: in safetensors */
	const char *name;
	uint32_t size;
};

struct t_pw_tensor {
	char key[16];
	const struct t_pw_type *type;
	uint32_t ndim;
	int64_t shape[T_PD_NDIM];
	uint64_t n; /* elements */
	uint8_t bytes[T_PW_BYTES];
};

struct t_pw_file {
	char name[32];
	struct dcp_buf data, big; /* the pickle; pairs of the table of arrays in slices */
	struct dcp_buf header;    /* safetensors: its JSON, to be closed */
};

struct t_paddle_world {
	char generation;
	int protocol; /* 0: safetensors */
	struct t_pw_tensor t[T_PW_KEYS];
	struct t_pd_piece p[T_PW_PIECES];
	size_t np;
	struct t_pw_file file[T_PW_RANKS];
};

/* A number below @below; the same ones in every run. */
uint64_t t_pw_random(uint64_t below);

/* Make a save and write it into @dir under unique id @uid. */
void t_paddle_world(struct t_paddle_world *w, const struct t_dir *dir, unsigned uid);

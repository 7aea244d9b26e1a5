/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_plan: random tensors, pieces and cuts, and a planner that is slow and plainly right.
 *
 * The reference looks at one element after the other: its index in the array, span by span the
 * place in the tensor, piece by piece who holds it. It shares no code with core/model. Nothing
 * here knows cmocka, so that a fuzz target can use it.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/geometry/cut.h"
#include "core/model/tensor.h"

#define T_PLAN_DIMS 6
#define T_PLAN_PIECES 48
#define T_PLAN_SPANS 12
#define T_PLAN_BYTES (24 << 10)

/* Where choices come from: bytes, as long as there are any, or a seeded generator. */
struct t_choice {
	const uint8_t *p; /* NULL: the generator */
	size_t n;
	uint64_t seed;
};

/* A number below @below (0 when that is 0, or when the bytes have run out). */
uint64_t t_pick(struct t_choice *c, uint64_t below);

/* Where one byte of the destination lies; piece NULL: it is a zero. */
struct t_place {
	const struct dcp_piece *piece;
	uint64_t off;
};

struct t_plan {
	struct dcp_tensor t;
	uint64_t shape[T_PLAN_DIMS];
	struct dcp_piece pieces[T_PLAN_PIECES];
	uint64_t lo[T_PLAN_PIECES][T_PLAN_DIMS], len[T_PLAN_PIECES][T_PLAN_DIMS],
		stride[T_PLAN_PIECES][T_PLAN_DIMS];
	uint64_t used[3]; /* bytes of each file */
	struct dcp_cut cut;
	struct dcp_axis axis[T_PLAN_DIMS];
	struct dcp_span span[T_PLAN_DIMS][T_PLAN_SPANS];
	struct t_place place[T_PLAN_BYTES]; /* of every byte of the cut's array */
	uint64_t bytes;                     /* of it, padding included */
};

/* A tensor and its pieces: ranks 0 to 5, elements of 1 to 16 bytes, irregular tilings, runs,
 * strides, swapped and empty pieces in three files. */
void t_plan_tensor(struct t_plan *w, struct t_choice *c);

/* Any cut of a tensor of at most T_PLAN_DIMS dimensions; @axis and @span are its memory. */
void t_random_cut(struct dcp_cut *cut, uint32_t ndim, const uint64_t *shape,
		  struct dcp_axis *axis, struct dcp_span (*span)[T_PLAN_SPANS],
		  struct t_choice *c);
/* By the definition of a cut: where in the tensor is element @e of it? false: in its padding.
 */
bool t_cut_at(const struct dcp_cut *cut, uint64_t e, uint64_t *at);

/* A cut of the tensor of @w, and the place of each of its bytes. */
void t_plan_cut(struct t_plan *w, struct t_choice *c);

/* Make both and hold strided descriptors (of all of it, and of ranges) and meetings
 * against the reference. NULL, or what does not agree. */
const char *t_plan_check(struct t_plan *w, struct t_choice *c);

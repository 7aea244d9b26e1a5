/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scatter: the arguments of the kernel that places bytes. Read by C and by the kernel.
 *
 * A job is one strided descriptor (core/model/geometry/strided.h) whose bytes are in device memory:
 * its units are numbered, and unit i of the job is copied, or converted, by thread i. The jobs of a
 * launch share its blocks: job j has blocks [first, first of job j + 1).
 */
#pragma once
#include <stdint.h>

#define LOAD_SCATTER_THREADS 256u /* of a block */
#define LOAD_SCATTER_UNITS 2048u  /* units that a block copies */
#define LOAD_SCATTER_DIMS 4       /* DCP_STRIDED_DIMS */
#define LOAD_SCATTER_TARGET                                                                    \
	8 /* dimensions of a strided destination, merged where they can be */

/* Types of numbers that the kernel converts. */
enum load_number {
	LOAD_NUMBER_SAME, /* not converted */
	LOAD_NUMBER_F64,
	LOAD_NUMBER_F32,
	LOAD_NUMBER_F16,
	LOAD_NUMBER_BF16,
	LOAD_NUMBER_F8_E4M3,
	LOAD_NUMBER_F8_E5M2,
	LOAD_NUMBER_F8_E4M3FNUZ,
	LOAD_NUMBER_F8_E5M2FNUZ,
	LOAD_NUMBER_F8_E8M0,
};

struct load_job {
	uint64_t first;   /* block */
	uint64_t src;     /* address of the first run */
	uint64_t dst;     /* address of byte 0 of the destination */
	uint64_t at;      /* offset in bytes of the first run in the row-major stored array */
	uint64_t units;   /* of all runs */
	uint64_t per_run; /* units of one run */
	/* bytes of a unit: @from; or a power of two up to 16, to which both sides are aligned */
	uint32_t unit;
	/* 1: a unit is an element, which is converted, byte-reversed or placed by @stride */
	uint32_t elements;
	uint32_t from, to;          /* bytes of an element: stored, in the destination */
	uint32_t swap;              /* unit of bytes to reverse; 0: none */
	uint32_t was, is;           /* enum load_number: stored, in the destination */
	uint32_t ndim, target_ndim; /* of the runs; of the destination, 0: row-major */
	uint32_t zero;
	uint64_t count[LOAD_SCATTER_DIMS], src_stride[LOAD_SCATTER_DIMS];
	uint64_t dst_stride[LOAD_SCATTER_DIMS]; /* in the row-major array */
	uint64_t shape[LOAD_SCATTER_TARGET];
	int64_t stride[LOAD_SCATTER_TARGET]; /* elements */
};

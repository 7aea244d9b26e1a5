/* SPDX-License-Identifier: Apache-2.0 */
/*
 * globals: which classes and functions would a Python pickle import, without doing any of it?
 *
 * For judging pickles, also those that pickle.h refuses: opcodes are followed up to the first
 * that is damaged or unknown, as Python does what stands before it. Of values only texts are
 * followed, through the stack and the memo, since they become names. Memory is bounded by
 * DCP_GLOBALS_MAX_STACK and DCP_GLOBALS_MAX_MEMO, whatever the input.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct dcp_err;
struct dcp_source;

#define DCP_GLOBALS_MAX_STACK (1u << 22)
#define DCP_GLOBALS_MAX_MEMO (1u << 22) /* entries; later ones are taken to be no texts */
#define DCP_GLOBALS_MAX_NAME 512        /* bytes of a longer name are left out */

/*
 * A name that the opcode at @off imports. @module NULL: it is computed, or is an extension
 * code, so nothing can be said of it. Not 0 ends the walk and is returned.
 */
typedef int dcp_globals_fn(void *ctx, const char *module, const char *name, uint64_t off);

/*
 * Walk the pickle at @off of @src; *end is set past its last byte. 0; -EBADMSG: it is damaged
 * from there on, with the reason in @err, after everything before it was reported; -ENOMEM; or
 * what reading or @fn gave.
 */
int dcp_globals(const struct dcp_source *src, uint64_t off, uint64_t *end, dcp_globals_fn *fn,
		void *ctx, struct dcp_err *err);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * signed: do the files of a version have the digests that a manifest of model-signing (OMS v1)
 * lists?
 *
 * model.sig, in the version's directory or in one above it up to SOURCE, is a sigstore bundle: a
 * DSSE envelope around an in-toto statement, which lists files, or parts of files, with digests.
 * These are compared, and the digest of all of them. The signature over the statement is not
 * checked: that takes keys and certificates, and is the signer's program's to do.
 */
#pragma once
#include "tools/pick.h"

struct signed_bad {
	const char *file; /* below the source, or the manifest */
	uint64_t off, n;
	const char *why; /* as long as the call takes */
};

struct signed_files {
	struct pick *p;
	unsigned jobs;                                      /* as in struct walk */
	uint64_t rate;                                      /* bytes a second; 0: any */
	void (*bad)(void *ctx, const struct signed_bad *b); /* one thread at a time */
	void *ctx;

	uint64_t manifests, agree; /* found; digests that are as listed */
	uint64_t unknown;          /* digests by an algorithm that is not known here */
	char algorithm[32];        /* of one of these */
};

/* Read what is listed, and warn of digests that are not known. 0 or -ENOMEM. */
int signed_check(struct signed_files *w);

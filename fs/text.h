/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text: the files whose content dcpfs writes: README.txt, index.json, status.json and so on.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "fs/ino.h"

struct dcp_buf;
struct dcp_err;
struct dcpfs;
struct dcpfs_version;

/* Bytes of one such file. Small ones are on the heap; big ones are mapped from an unlinked
 * file. */
struct dcpfs_text {
	const char *p;
	size_t n;
	char *heap; /* what p points to, or NULL: p is a mapping */
};

/* Takes the buffer's memory, whatever it returns: 0 or -ENOMEM. */
int dcpfs_text_from_buf(struct dcpfs_text *t, struct dcp_buf *b);
void dcpfs_text_finish(struct dcpfs_text *t);

/* Write the file of that kind. @ver is opened, or NULL for kinds outside versions (README.txt
 * of a version that was refused says why). */
int dcpfs_text_make(struct dcpfs *fs, struct dcpfs_version *ver, enum dcpfs_kind kind,
		    struct dcpfs_text *out, struct dcp_err *err);

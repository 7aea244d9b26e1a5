/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_dir: a directory of files for one test, gone when the test is over.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/origin/origin.h"

struct t_dir {
	char root[96];
	int fd;
	struct dcp_site at; /* the same */
};

/* In TMPDIR or /tmp. @what is part of its name. */
void t_dir_make(struct t_dir *d, const char *what);
void t_dir_remove(struct t_dir *d);

/* A file of @n bytes, zeros when @p is NULL. Directories in @name are made. */
void t_dir_put(const struct t_dir *d, const char *name, const void *p, size_t n);
void t_dir_text(const struct t_dir *d, const char *name, const char *text);
void t_dir_sub(const struct t_dir *d, const char *name);
void t_dir_delete(const struct t_dir *d, const char *name);

/* Set mtime; ctime is the kernel's. */
void t_dir_touch(const struct t_dir *d, const char *name, int64_t mtime_ns);

/* Its path; a few of them stay valid. */
const char *t_dir_path(const struct t_dir *d, const char *name);

/* Names in the directory @name. */
size_t t_dir_count(const struct t_dir *d, const char *name);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * magic: what kind of file has a misleading name?
 *
 * For messages: the parser has refused the file already, and the message explains why.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* Bytes at the start of a file that are examined; fewer will do. */
#define DCP_MAGIC_HEAD 64

/* Does @head begin like a safetensors file: the length of a header, and '{'? */
bool dcp_magic_is_safetensors(const void *head, size_t n);

/*
 * What begins like @head: "a Git LFS pointer; fetch the file with: git lfs pull", or NULL when
 * it is nothing known.
 */
const char *dcp_magic(const void *head, size_t n);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * said: what stored files say beside their tensors (__metadata__ of safetensors), for a file
 * that has some of these tensors.
 *
 * A new file has what the files say from which its tensors come. Where several of those differ
 * in a value, that of the file that the version has first counts. A mapped version is in
 * torch's format, whatever the files say.
 */
#pragma once
#include <stdint.h>

struct dcp_index;
struct dcp_said;

/* @ix must outlive it. -ENOMEM, or -EBADMSG: the index is damaged. */
int dcp_said_create(struct dcp_index *ix, struct dcp_said **out);
void dcp_said_free(struct dcp_said *s);

/* The file has the tensor of row @id. -ENOENT and the like: it cannot be read. */
int dcp_said_add(struct dcp_said *s, int64_t id);

/* A JSON object for dcp_safetensors_begin_meta(), or NULL: nothing. It is valid until the next
 * call. What is added then is of another file. -ENOMEM. */
int dcp_said_take(struct dcp_said *s, const char **object);

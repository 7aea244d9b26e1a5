/* SPDX-License-Identifier: Apache-2.0 */
/*
 * made: files of a Hugging Face directory that no file is, made of what the checkpoint keeps in
 * its objects.
 */
#pragma once
#include <stddef.h>

#include "core/model/dtype.h"

struct dcp_assets;
struct dcp_buf;
struct dcp_index;
struct dcp_made;

/*
 * Append to @made (struct dcp_made) those that there are: of Composer, the config.json,
 * tokenizer and adapter of its Hugging Face model, which are that model's own; a config.json
 * that is inferred from Megatron's arguments (core/rules/infer.c), or from torchtitan's job
 * config in @a. Files in @a come first, and a tokenizer is of one origin: where any of its
 * files is in @a none is made. The text of config.json, wherever it is from, is in @a then. 0;
 * -ENOMEM, or the index cannot be read.
 */
int dcp_made_find(struct dcp_index *ix, struct dcp_assets *a, struct dcp_buf *made);
/* The config.json in @a with another dtype, unless it names none (dcp_rules_config_retype). 0,
 * -ENOMEM. */
int dcp_made_retype(struct dcp_assets *a, enum dcp_dtype to, struct dcp_buf *made);

/* ---- made.c: the list ---- */

/* @text is taken, and empty then, also on failure. @from is borrowed. 0, -ENOMEM. */
int dcp_made_add(struct dcp_buf *made, const char *name, const char *from,
		 struct dcp_buf *text);
/* NULL: there is none. */
struct dcp_made *dcp_made_named(const struct dcp_buf *made, const char *name);
void dcp_made_finish(struct dcp_buf *made);
void dcp_made_forget(struct dcp_made *m); /* what it has; it stays in the list */

/* ---- composer.c ---- */

int dcp_composer_files(struct dcp_index *ix, struct dcp_buf *made);

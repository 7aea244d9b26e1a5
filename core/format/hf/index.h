/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index: which file of a set holds which key?
 *
 *	{"metadata": {"total_size": 123}, "weight_map": {key: file}}
 */
#pragma once

struct dcp_dir;
struct dcp_err;
struct dcp_json;
struct dcp_sink;

struct dcp_hf_index {
	const char *name;           /* of the index file; NULL: there is none */
	struct dcp_json *json;      /* all of it */
	const struct dcp_json *map; /* weight_map; NULL: none */
};

/* Emit the file @name to the sink, then read it. A damaged one is a failure: -EBADMSG,
 * -E2BIG, or what opening it gave. */
int dcp_hf_index_read(const struct dcp_dir *dir, const struct dcp_sink *sink, const char *name,
		      struct dcp_hf_index *out, struct dcp_err *err);
/* The same, and nothing is emitted. */
int dcp_hf_index_open(const struct dcp_dir *dir, const char *name, struct dcp_hf_index *out,
		      struct dcp_err *err);
void dcp_hf_index_finish(struct dcp_hf_index *ix);

/* The file that holds @key as the index says it, or NULL. */
const char *dcp_hf_index_file(const struct dcp_hf_index *ix, const char *key);

/*
 * Why @key, which the index promises in @file (NULL: it names none), was not found: in @err,
 * and as the message returned. @held: the file is there and was read, @broken: why not.
 */
const char *dcp_hf_index_excuse(const struct dcp_hf_index *ix, const char *file, int held,
				const char *broken, struct dcp_err *err);

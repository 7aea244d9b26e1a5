/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mapped: a version as a Hugging Face model, its tensors under the names that rules give them.
 *
 * It is a version of its own: the same stored files, and a second index over them that the
 * rules made, kept in the cache beside the first. What cannot be mapped is in it, too: keys that
 * match no rule are objects of the type "unmapped" whose error says so, and tensors that cannot
 * be made carry their error. Its facts: "rules", the dtype that all were "cast" to, or would
 * be, were they not "kept" as codes and scales, "kept_by" a key or file that says so, and how many
 * keys of the source were "mapped", "dropped", "unmatched", "collisions" and "failed".
 */
#pragma once
#include <stdbool.h>

#include "core/model/dtype.h"
#include "core/store/version/version.h"

struct dcp_rules;
struct dcp_rules_config;

struct dcp_map_opts {
	const struct dcp_rules *rules; /* NULL: the rules that fit the family and config.json */
	/* Only keys that begin with it and a dot, both removed; where none does, those with it
	 * inside that the rules call {from}; NULL: all. */
	const char *part;
	const char
		*assets; /* a directory to look for config.json and tokenizer first, or NULL */
	const struct dcp_rules_config *config; /* instead of what assets say, or NULL */
	enum dcp_dtype cast;                   /* as dcp_rules_source */
	const char *source, *where;            /* of the version, as it was found */
	bool even_none;                        /* succeed even if the rules select no key */
};

/* 1: keys begin with @part and a dot; 0: they have it between dots; -ENOKEY: neither, and @err
 * has how they do begin. */
int dcp_version_part(struct dcp_version *v, const char *part, struct dcp_err *err);

/* Returns as dcp_version_open(); -ENOKEY: no key begins with the part, or the rules make
 * nothing of any. @base must outlive the result; @how and @opts only the call. */
int dcp_version_map(struct dcp_version *base, const struct dcp_map_opts *how,
		    const struct dcp_store_opts *opts, struct dcp_version **out,
		    struct dcp_err *err);

/*
 * 1: what loads the model, or the adapter, cannot do without a file that would neither be found
 * nor made, and @out says so, in one line without its end; 0: nothing is missing; -errno. Of
 * @how only where to look.
 */
struct dcp_buf;
int dcp_version_ask_config(struct dcp_version *base, const struct dcp_map_opts *how,
			   struct dcp_buf *out);

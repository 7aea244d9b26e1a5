/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_manifest: a golden folder, compared with what an adapter told about one of its versions.
 */
#pragma once

struct t_sink;

/*
 * Every tensor of version @name of tests/golden/@folder/manifest.json must have been told with
 * its path, dtype, shape and bytes, every object with its path, type and JSON; nothing else
 * may have been told but tensors inside objects. @prefix ("" or "rank0.") was put in front of
 * all keys; then only keys with it are looked at. Where the version says "more", more may have
 * been told. Returns how many tensors there are.
 */
unsigned t_manifest_check(const struct t_sink *s, const char *folder, const char *name,
			  const char *prefix);

/* Calls @fn for each version of the manifest. */
typedef void (*t_manifest_fn)(const char *folder, const char *name, int complete);
void t_manifest_each(const char *folder, t_manifest_fn fn);

/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "core/base/hash.h"
#include "core/origin/archive/inflate.h"
#include "core/parse/json.h"
#include "core/store/index/index.h"
#include "core/store/view/digest.h"
#include "fs/session.h"
#include "tools/cmd.h"
#include "tools/out.h"

struct version_opts {
	bool json;
};

static const struct opt opts[] = {
	{ .name = "json", .help = "print JSON", .off = offsetof(struct version_opts, json) },
	OPT_END
};

static const struct opt_operand operands[] = { { 0 } };

/* Each library is asked by the one file that includes its header. */
static const struct {
	const char *name;
	const char *(*version)(void);
} libraries[] = {
	{ "libfuse", dcpfs_fuse_version },
	{ "sqlite", dcp_index_sqlite_version },
	{ "libarchive", dcp_inflate_libarchive_version },
	{ "jansson", dcp_json_jansson_version },
	{ "xxhash", dcp_hash_xxhash_version },
	{ "nettle", dcp_digest_nettle_version },
};

static const struct {
	const char *name;
	bool built;
} features[] = {
	{ "io_uring", DCPFS_WITH_URING },
	{ "mpi", DCPFS_WITH_MPI },
	{ "cuda", DCPFS_WITH_CUDA },
};

static enum cmd_exit print_json(struct out *o)
{
	struct dcp_jsonw *w = &o->json;

	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "dcpfs", DCP_RELEASE);
	if (cmd_commit[0])
		dcp_jsonw_put_str(w, "commit", cmd_commit);
	dcp_jsonw_put_u64(w, "index_schema", DCP_INDEX_SCHEMA);
	dcp_jsonw_put_object(w, "libraries");
	for (size_t i = 0; i < DCP_LEN(libraries); i++) {
		dcp_jsonw_put_str(w, libraries[i].name, libraries[i].version());
	}
	dcp_jsonw_end(w);
	dcp_jsonw_put_object(w, "features");
	for (size_t i = 0; i < DCP_LEN(features); i++) {
		dcp_jsonw_put_bool(w, features[i].name, features[i].built);
	}
	dcp_jsonw_end(w);
	dcp_jsonw_end(w);
	return out_flush(o);
}

static enum cmd_exit run(const void *opts_in, const struct opt_args *args)
{
	const struct version_opts *v = opts_in;
	struct out o;

	out_init(&o, OUT_TEXT);
	if (v->json)
		return print_json(&o);
	dcp_buf_printf(&o.buf, "dcpfs %s\n", DCP_RELEASE);
	dcp_buf_printf(&o.buf, "commit %s\n", cmd_commit[0] ? cmd_commit : "not known");
	dcp_buf_printf(&o.buf, "index schema %d\n", DCP_INDEX_SCHEMA);
	for (size_t i = 0; i < DCP_LEN(libraries); i++)
		dcp_buf_printf(&o.buf, "%s %s\n", libraries[i].name, libraries[i].version());
	for (size_t i = 0; i < DCP_LEN(features); i++)
		dcp_buf_printf(&o.buf, "%s %s\n", features[i].name,
			       features[i].built ? "built in" : "not built in");
	return out_flush(&o);
}

const struct cmd cmd_version = {
	.name = "version",
	.what = "print the versions of dcpfs and its libraries",
	.about =
		"Print the versions of dcpfs, with the commit it was built from, of the schema "
		"of its indexes and of the libraries it runs with, and which optional ones "
		"were found when it was built.",
	.operands = operands,
	.opts = opts,
	.size = sizeof(struct version_opts),
	.run = run,
	.examples = { "dcpfs version --json" },
};

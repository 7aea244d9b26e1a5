/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "core/base/hash.h"
#include "core/origin/archive/archive.h"
#include "core/parse/json.h"
#include "core/parse/parse.h"
#include "core/remote/curl.h"
#include "core/remote/s3.h"
#include "core/store/index/index.h"
#include "core/store/view/measure.h"
#include "fs/session.h"
#include "tools/browse/screen.h"
#include "tools/cmd.h"
#include "tools/load/memory/memory.h"
#include "tools/out.h"

struct version_opts {
	bool json;
};

static const struct opt opts[] = {
	{ .name = "json", .help = "print JSON", .off = offsetof(struct version_opts, json) },
	OPT_END
};

static const struct opt_operand operands[] = { { 0 } };

static const char *curl_version(void)
{
	const char *why;

	return dcp_transfers_library(&why);
}

/* The file that includes a library's header asks for its version; NULL: the library is missing. The
 * last libraries of the list are opened when they are needed. */
static const struct {
	const char *name;
	const char *(*version)(void);
} libraries[] = {
	{ "libfuse", dcpfs_fuse_version },
	{ "sqlite", dcp_index_sqlite_version },
	{ "jansson", dcp_json_jansson_version },
	{ "xxhash", dcp_hash_xxhash_version },
	{ "nettle", dcp_digest_nettle_version },
	{ "zlib", dcp_hash_zlib_version },
	{ "pcre2", dcp_regex_pcre2_version },
	{ "libarchive", dcp_inflate_libarchive_version },
	{ "libcurl", curl_version },
	{ "expat", dcp_xml_expat_version },
	{ "ncurses", screen_library },
	{ "libcuda", load_cuda_library },
	{ "nccl", load_nccl_library },
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
	for (size_t i = 0; i < DCP_LEN(libraries); i++)
		dcp_jsonw_put_str_or_null(w, libraries[i].name, libraries[i].version());
	dcp_jsonw_end(w);
	dcp_jsonw_put_object(w, "features");
	for (size_t i = 0; i < DCP_LEN(features); i++) {
		dcp_jsonw_put_bool(w, features[i].name, features[i].built);
	}
	dcp_jsonw_end(w);
	dcp_jsonw_end(w);
	return out_flush(o);
}

static enum cmd_exit run_version(const void *opts_in, const struct opt_args *args)
{
	const struct version_opts *v = opts_in;
	struct out o;

	out_init(&o, OUT_TEXT);
	if (v->json)
		return print_json(&o);
	dcp_buf_printf(&o.buf, "dcpfs %s\n", DCP_RELEASE);
	dcp_buf_printf(&o.buf, "commit %s\n", cmd_commit[0] ? cmd_commit : "not known");
	dcp_buf_printf(&o.buf, "index schema %d\n", DCP_INDEX_SCHEMA);
	for (size_t i = 0; i < DCP_LEN(libraries); i++) {
		const char *version = libraries[i].version();

		dcp_buf_printf(&o.buf, "%s %s\n", libraries[i].name,
			       version ? version : "not found");
	}
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
		"of its indexes and of the libraries it runs with, those among them that it "
		"opens when it needs them (libcurl, say), and what was built in.",
	.operands = operands,
	.opts = opts,
	.size = sizeof(struct version_opts),
	.run = run_version,
	.examples = { "dcpfs version --json" },
};

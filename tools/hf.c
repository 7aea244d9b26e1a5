/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/jsonw.h"
#include "core/rules/rules.h"
#include "core/store/index/index.h"
#include "core/store/version/expected.h"
#include "core/store/version/version.h"
#include "tools/out.h"

enum { SHOWN = 20 }; /* tensors that are named */

static int read_file(const char *path, struct dcp_buf *out, struct dcp_err *err)
{
	/* Opening a FIFO would wait for who writes to it. */
	dcp_auto_fd int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	dcp_auto_file FILE *f = NULL;
	char part[65536];
	struct stat st;
	size_t n;

	if (fd >= 0 && fstat(fd, &st) == 0 && !S_ISREG(st.st_mode))
		return dcp_fail(err, -EINVAL, "%s: not a regular file", path);
	f = fd < 0 ? NULL : fdopen(fd, "r");
	if (!f)
		return dcp_fail(err, -errno, "%s: %s", path, strerror(errno));
	dcp_take_fd(&fd);
	while (out->n <= DCP_RULES_MAX_TEXT && (n = fread(part, 1, sizeof(part), f)) > 0)
		dcp_buf_add(out, part, n);
	if (ferror(f))
		return dcp_fail(err, -EIO, "%s cannot be read", path);
	return dcp_err_say(err, dcp_buf_error(out));
}

enum cmd_exit hf_rules(const char *text, struct dcp_rules **out)
{
	dcp_auto_buf struct dcp_buf file = DCP_BUF_INIT;
	struct dcp_err err = { 0 };
	int rc;

	*out = NULL;
	if (!text)
		return CMD_OK;
	if (strchr(text, '/') || access(text, F_OK) == 0) {
		rc = read_file(text, &file, &err);
		if (rc == 0)
			rc = dcp_rules_parse(file.p ? file.p : "", file.n, text, out, &err);
	} else {
		rc = dcp_rules_preset(text, out, &err);
		if (rc == -ENOENT)
			return cmd_fail(CMD_USAGE,
					"no file %.60s, and %s (see: dcpfs rules list)", text,
					err.msg);
	}
	if (rc == 0)
		return CMD_OK;
	return cmd_fail(cmd_exit_of(rc), "%s", err.msg);
}

enum cmd_exit hf_config(const struct hf_opts *o, struct dcp_rules_config **out)
{
	dcp_auto_buf struct dcp_buf file = DCP_BUF_INIT;
	struct dcp_err err = { 0 };
	int rc;

	*out = NULL;
	if (!o->config)
		return CMD_OK;
	*out = malloc(sizeof(**out));
	rc = *out ? read_file(o->config, &file, &err) : dcp_err_say(&err, -ENOMEM);
	if (rc == 0)
		rc = dcp_rules_config_parse(file.p ? file.p : "", file.n, *out, &err);
	if (rc == 0 && !(*out)->model_type[0] && !(*out)->class_name[0])
		rc = dcp_fail(&err, -EBADMSG,
			      "no config.json of a model: it has no model_type");
	if (rc == 0)
		return CMD_OK;
	free(*out);
	*out = NULL;
	return cmd_fail(cmd_exit_of(rc), "--config %s: %s", o->config, err.msg);
}

const char *const hf_dtypes[] = { "stored", "f32", "bf16", "f16", NULL };

enum dcp_dtype hf_dtype(const struct hf_opts *o)
{
	return dcp_rules_dtype(hf_dtypes[o->dtype], strlen(hf_dtypes[o->dtype]));
}

bool hf_is_wanted(const struct hf_opts *o)
{
	return o->on || o->rules || o->assets || o->part || o->dtype;
}

void hf_put_model(struct dcp_version *v, struct dcp_buf *b)
{
	const char *prefix = dcp_index_meta(dcp_version_index(v), "prefix");
	const char *others = dcp_index_meta(dcp_version_index(v), "others");
	dcp_auto_buf struct dcp_buf why = DCP_BUF_INIT;

	if (prefix || others) {
		dcp_buf_str(b, "model: the keys ");
		dcp_buf_str(b, prefix ? "below " : "that no name stands before");
		out_text(b, prefix ? prefix : "");
		if (others) {
			dcp_buf_str(b, "; left out are others, below ");
			out_text(b, others);
			dcp_buf_str(b, " (--hf-from PART takes one of them)");
		}
		dcp_buf_str(b, "\n");
	}
	if (dcp_version_fit(v, &why, NULL) > DCP_WHOLE) {
		dcp_buf_str(b, "warning: ");
		out_text(b, why.p);
		dcp_buf_str(b, "\n");
	}
}

void hf_put_model_json(struct dcp_version *v, struct dcp_jsonw *w)
{
	struct dcp_index *ix = dcp_version_index(v);
	dcp_auto_buf struct dcp_buf why = DCP_BUF_INIT;

	dcp_jsonw_put_str_or_null(w, "prefix", dcp_index_meta(ix, "prefix"));
	dcp_jsonw_put_str_or_null(w, "others", dcp_index_meta(ix, "others"));
	dcp_jsonw_put_str_or_null(w, "problem",
				  dcp_version_fit(v, &why, NULL) > DCP_WHOLE ? why.p : NULL);
}

struct telling {
	uint64_t n;
};

static void tell(void *ctx, const char *what, const char *key, const char *text)
{
	struct telling *t = ctx;

	if (t->n++ < SHOWN)
		cmd_hint("%s: %s: %s", what, key, text);
}

enum cmd_exit hf_check(struct dcp_version *v, const struct hf_opts *o, const char *verb,
		       bool quiet)
{
	dcp_auto_buf struct dcp_buf why = DCP_BUF_INIT;
	struct dcp_err err = { 0 };
	struct telling t = { 0 };
	struct dcp_expected x = { .say = tell, .ctx = &t };
	int fit = dcp_version_fit(v, &why, &err);

	if (fit < 0)
		return quiet ? cmd_exit_of(fit)
			     : cmd_fail(cmd_exit_of(fit), "%s: %s", verb, err.msg);
	if (fit < DCP_MISFIT || o->partial || (fit == DCP_OTHER_NAMES && o->rules))
		return CMD_OK;
	if (quiet)
		return CMD_NO;
	cmd_fail(CMD_NO, "%s: %s is %s; --partial goes on", verb, dcp_version_name(v), why.p);
	dcp_version_expect(v, &x, NULL);
	if (t.n > SHOWN)
		cmd_hint("and %llu more: dcpfs rules check auto",
			 (unsigned long long)(t.n - SHOWN));
	return CMD_NO;
}

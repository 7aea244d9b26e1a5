/* SPDX-License-Identifier: Apache-2.0 */
/* The plan as one page: what plan_text() says, and the drawings. Nothing is fetched. */

#include "tools/plan/plan.h"
#include "tools/svg.h"

static const char style[] =
	"body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:64em;padding:0 1em;"
	"color:#222;background:#fff}"
	"pre{overflow:auto;background:#f6f6f6;padding:1em;font-size:13px}"
	"svg{max-width:100%;height:auto;margin:0.5em 0 1.5em}"
	"h1{font-size:1.4em}h2{font-size:1.1em;margin-top:2em}"
	":root{color-scheme:light dark}"
	"@media(prefers-color-scheme:dark){body{color:#ddd;background:#1a1a1a}"
	"pre{background:#262626}svg{background:#fff}}"; /* drawings have colours for white */

/* Draw into a buffer of its own, so that half a drawing is never shown. */
static enum cmd_exit put(struct plan *p, struct out *o, const char *head,
			 enum cmd_exit (*draw)(struct plan *p, struct dcp_buf *out))
{
	dcp_auto_buf struct dcp_buf svg = DCP_BUF_INIT;
	enum cmd_exit code = draw(p, &svg);

	if (code != CMD_OK)
		return code;
	dcp_buf_printf(&o->buf, "<h2>%s</h2>\n", head);
	dcp_buf_add(&o->buf, svg.p ? svg.p : "", svg.n);
	return CMD_OK;
}

static enum cmd_exit put_map(struct plan *p, struct dcp_buf *out)
{
	int64_t id;
	enum cmd_exit code = plan_tensor(p, &id);

	return code == CMD_OK ? plan_map(p, id, out) : code;
}

enum cmd_exit plan_html(struct plan *p, struct out *o)
{
	struct out text = *o;
	enum cmd_exit code = CMD_OK;

	text.buf = (struct dcp_buf)DCP_BUF_INIT;
	text.width = 0; /* all ranks */
	dcp_buf_printf(&o->buf, PLAN_HTML "<style>%s</style></head>\n<body>\n<h1>", style);
	svg_escape(&o->buf, p->pick.ck.name);
	dcp_buf_str(&o->buf, " for ");
	svg_escape(&o->buf, dcp_layout_name(p->to));
	dcp_buf_str(&o->buf, "</h1>\n<pre>");
	plan_write(p, &text);
	svg_escape_lines(&o->buf, text.buf.p ? text.buf.p : "");
	dcp_buf_finish(&text.buf);
	dcp_buf_str(&o->buf, "</pre>\n");
	if (p->sum.tensors)
		code = put(p, o, p->opts->key ? "One tensor" : "The largest tensor", put_map);
	if (code == CMD_OK && !p->from)
		code = put(p, o, "Files", plan_draw_files);
	if (code == CMD_OK && p->ranks > 1 && p->ranks <= DCP_JOB_JSON_RANKS)
		code = put(p, o, "Exchange", plan_draw_exchange);
	dcp_buf_str(&o->buf, "</body></html>\n");
	return code;
}

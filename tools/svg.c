/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/svg.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tools/out.h"

#define FONT "font-family='system-ui,sans-serif'"
/* For a drawing that is a document or an image; a page has its own style for drawings in it. */
#define DARK                                                                                   \
	"<style>@media (prefers-color-scheme: dark) "                                          \
	"{ svg:root { color-scheme: dark; filter: invert(1) hue-rotate(180deg); } }</style>\n"

static void escape_text(struct dcp_buf *b, const char *s, const char *kept)
{
	dcp_auto_buf struct dcp_buf shown = DCP_BUF_INIT;

	b->failed |= dcp_buf_shown(&shown, s, strlen(s), kept) < 0;
	for (const char *p = shown.p ? shown.p : ""; *p; p++) {
		switch (*p) {
		case '&':
			dcp_buf_str(b, "&amp;");
			break;
		case '<':
			dcp_buf_str(b, "&lt;");
			break;
		case '>':
			dcp_buf_str(b, "&gt;");
			break;
		case '\'':
			dcp_buf_str(b, "&#39;");
			break;
		case '"':
			dcp_buf_str(b, "&quot;");
			break;
		default:
			dcp_buf_add(b, p, 1);
		}
	}
}

void svg_escape(struct dcp_buf *b, const char *s)
{
	escape_text(b, s, "");
}

void svg_escape_lines(struct dcp_buf *b, const char *s)
{
	escape_text(b, s, "\n");
}

void svg_begin(struct dcp_buf *b, double width, double height, const char *title)
{
	dcp_buf_printf(b,
		       SVG_HEAD "0 0 %.0f %.0f' "
				"width='%.0f' role='img'>\n<title>",
		       width, height, width);
	svg_escape(b, title);
	dcp_buf_printf(b,
		       "</title>\n" DARK "<rect width='%.0f' height='%.0f' fill='#ffffff'/>\n",
		       width, height);
}

void svg_end(struct dcp_buf *b)
{
	dcp_buf_str(b, "</svg>\n");
}

static double color_channel(double hue, double offset, double low, double high)
{
	double t = fmod(hue + offset, 1.0) * 6;
	double v = t < 1 ? t : t < 3 ? 1 : t < 4 ? 4 - t : 0;

	return low + (high - low) * v;
}

/* Hues a golden angle apart; every second one lighter. */
const char *svg_color(char out[8], uint32_t number)
{
	double hue = fmod(0.58 + number * 0.618033988749895, 1.0);
	double low = number % 2 ? 0.62 : 0.48, high = number % 2 ? 0.97 : 0.9;

	snprintf(out, 8, "#%02x%02x%02x",
		 (unsigned)(255 * color_channel(hue, 1.0 / 3, low, high)),
		 (unsigned)(255 * color_channel(hue, 0, low, high)),
		 (unsigned)(255 * color_channel(hue, 2.0 / 3, low, high)));
	return out;
}

const char *svg_shade(char out[8], double v)
{
	v = v < 0 ? 0 : v > 1 ? 1 : v;
	snprintf(out, 8, "#%02x%02x%02x", (unsigned)(255 - 235 * v), (unsigned)(255 - 180 * v),
		 (unsigned)(255 - 110 * v));
	return out;
}

void svg_box(struct dcp_buf *b, double x, double y, double w, double h, const char *fill,
	     const char *stroke, double edge)
{
	dcp_buf_printf(b,
		       "<rect x='%.2f' y='%.2f' width='%.2f' height='%.2f' fill='%s' "
		       "stroke='%s' stroke-width='%.2f'>",
		       x, y, w, h, fill, stroke, edge);
}

void svg_close(struct dcp_buf *b)
{
	dcp_buf_str(b, "</rect>\n");
}

static void put_formatted(struct dcp_buf *b, const char *fmt, va_list ap) DCP_PRINTF(2, 0);

static void put_formatted(struct dcp_buf *b, const char *fmt, va_list ap)
{
	char text[512];

	vsnprintf(text, sizeof(text), fmt, ap);
	svg_escape(b, text);
}

void svg_title(struct dcp_buf *b, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	dcp_buf_str(b, "<title>");
	put_formatted(b, fmt, ap);
	dcp_buf_str(b, "</title>");
	va_end(ap);
}

void svg_text(struct dcp_buf *b, double x, double y, enum svg_anchor anchor, double size,
	      const char *fmt, ...)
{
	static const char *const anchors[] = { "start", "middle", "end" };
	va_list ap;

	va_start(ap, fmt);
	dcp_buf_printf(b,
		       "<text x='%.2f' y='%.2f' text-anchor='%s' font-size='%.1f' " FONT
		       " fill='#222222' pointer-events='none'>",
		       x, y, anchors[anchor], size);
	put_formatted(b, fmt, ap);
	dcp_buf_str(b, "</text>\n");
	va_end(ap);
}

/* ---- pages ---- */

void html_begin(struct dcp_buf *b, const char *head, const char *heading)
{
	dcp_buf_str(b, head);
	dcp_buf_str(b,
		    "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; "
		    "style-src 'unsafe-inline'; script-src 'unsafe-inline'\"/>\n"
		    "<meta name='viewport' content='width=device-width'/>\n<style>\n");
	dcp_buf_str(b, page_parts[PAGE_STYLE]);
	dcp_buf_str(b, "</style></head>\n<body>\n<h1>");
	svg_escape(b, heading);
	dcp_buf_str(b, "</h1>\n");
}

void html_table(struct dcp_buf *b, const char *what, const char *hint)
{
	dcp_buf_printf(b,
		       "<p><input id='search' type='search' spellcheck='false' "
		       "placeholder='%s ( / )' aria-label='search'/> "
		       "<span id='count' role='status'></span></p>\n"
		       "<div class='wide' id='table'><div id='head' role='row'></div>\n"
		       "<div id='box' role='grid' tabindex='0' aria-label='%s'><div id='space'>"
		       "</div><div id='rows' role='rowgroup'></div></div></div>\n"
		       "<div id='detail' role='region' aria-label='what is selected' hidden>"
		       "</div>\n",
		       hint, what);
}

/* Spell each < in JSON as an escape, so that no text ends the script or begins a comment. */
static void put_data(struct dcp_buf *out, const struct dcp_buf *json)
{
	size_t from = 0;

	for (size_t i = 0; i < json->n; i++)
		if (json->p[i] == '<') {
			dcp_buf_add(out, json->p + from, i - from);
			dcp_buf_str(out, "\\u003c");
			from = i + 1;
		}
	dcp_buf_add(out, json->p + from, json->n - from);
}

void html_end(struct dcp_buf *b, const struct dcp_buf *json, enum page_part script)
{
	dcp_buf_str(b, "<script type='application/json' id='data'>");
	put_data(b, json);
	dcp_buf_str(b, "</script>\n<script>\n");
	dcp_buf_str(b, page_parts[PAGE_TABLE]);
	dcp_buf_str(b, page_parts[script]);
	dcp_buf_str(b, "</script>\n</body></html>\n");
}

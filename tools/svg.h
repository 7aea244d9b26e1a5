/* SPDX-License-Identifier: Apache-2.0 */
/*
 * svg: drawings and pages as text, self-contained: no style sheet, script or font from elsewhere.
 *
 * Coordinates are pixels of a drawing, which scales with its container. Foreign text is made
 * printable and escaped.
 */
#pragma once
#include <stdint.h>

#include "core/base/buf.h"

/* The first bytes of a page, and of a drawing. */
#define HTML_HEAD(title)                                                                       \
	"<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'/><title>" title "</"     \
	"title>"
#define SVG_HEAD "<svg xmlns='http://www.w3.org/2000/svg' viewBox='"

/* Open a drawing of that size; @title is for screen readers. */
void svg_begin(struct dcp_buf *b, double width, double height, const char *title);
void svg_end(struct dcp_buf *b);

/* The colour of @number as "#rrggbb": colours of neighbouring numbers differ. */
const char *svg_color(char out[8], uint32_t number);
/* A shade from white (0) to dark (1). */
const char *svg_shade(char out[8], double v);

/* A filled box, edge @stroke ("none"); svg_title() and svg_close() may follow. */
void svg_box(struct dcp_buf *b, double x, double y, double w, double h, const char *fill,
	     const char *stroke, double edge);
/* The tooltip of the open element. */
void svg_title(struct dcp_buf *b, const char *fmt, ...) DCP_PRINTF(2, 3);
void svg_close(struct dcp_buf *b);

/* Text that begins at, is centred on, or ends at (@x, @y). */
enum svg_anchor { SVG_LEFT, SVG_MIDDLE, SVG_RIGHT };
void svg_text(struct dcp_buf *b, double x, double y, enum svg_anchor anchor, double size,
	      const char *fmt, ...) DCP_PRINTF(6, 7);

/* Append @s escaped for XML, made printable first; svg_escape_lines(): @s is printable, with
 * lines. */
void svg_escape(struct dcp_buf *b, const char *s);
void svg_escape_lines(struct dcp_buf *b, const char *s);

/* The parts of pages, embedded from tools/page. */
enum page_part { PAGE_STYLE, PAGE_TABLE, PAGE_REPORT, PAGE_PLAN };
extern const char *const page_parts[];

/* Begin a page with @head (HTML_HEAD). It runs only its own scripts, and fetches nothing. @heading
 * is foreign. */
void html_begin(struct dcp_buf *b, const char *head, const char *heading);
/* A table of @what with a search, sorting and keys; the script fills it. */
void html_table(struct dcp_buf *b, const char *what, const char *hint);
/* Put the data as JSON and the script of @part, and end the page. */
void html_end(struct dcp_buf *b, const struct dcp_buf *json, enum page_part script);

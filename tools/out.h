/* SPDX-License-Identifier: Apache-2.0 */
/*
 * out: the output on stdout, for people or programs.
 *
 * Text is collected and written once, so that a broken pipe or a full disk is noticed in
 * one place. Text found in a checkpoint is made printable on its way into a table; --json
 * gives it exactly. Tables fit the terminal by leaving out empty columns and shortening
 * others in the middle; into a pipe nothing is left out or shortened.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/jsonw.h"
#include "core/format/format.h"
#include "tools/cmd.h"

/* The values of options that choose a form; see OPT_FORM. */
enum out_form { OUT_TEXT, OUT_JSON, OUT_TSV, OUT_CSV, OUT_SVG, OUT_HTML, OUT_NAMES };

struct out_col {
	const char *head; /* NULL: no row of heads */
	bool right;
	bool flex;      /* shortened when the table is too wide; at most one */
	bool state;     /* its words are coloured by out_paint() */
	unsigned least; /* not 0: shortened before the flex column, down to this width */
};

#define OUT_MAX_COLS 10

/* Cells are given row by row, from left to right. */
struct out_table {
	const struct out_col *cols;
	size_t ncols, ncells, cap;
	const char **cells;
	struct dcp_arena arena;
	bool failed; /* out of memory */
};

struct out_field;

struct out {
	enum out_form form;
	struct dcp_buf buf;
	struct dcp_jsonw json; /* writes into buf */
	unsigned width;        /* columns to fit; 0: no limit */
	bool color;            /* a terminal that is not mpirun's, and NO_COLOR is not set */
	bool utf8;             /* lines may be drawn */
	bool in_line;          /* TSV: the line has a cell already */
	bool lengthy;          /* tables have their OUT_LONG columns */
	unsigned indent;       /* of tables of lists */
	/* The open list, and the field that its row gets next. */
	const struct out_field *fields, *next;
	struct out_col cols[OUT_MAX_COLS];
	struct out_table table;
};

/* Look at stdout, COLUMNS, NO_COLOR and the locale. */
void out_init(struct out *o, enum out_form form);
void out_finish(struct out *o);

/*
 * Write the collected text, JSON with a newline at its end, and forget it. CMD_ENV after a message
 * when that fails. A reader that went away is no error and gets no message. With --quiet the text
 * of a verb that reports is dropped.
 */
enum cmd_exit out_flush(struct out *o);
/* The same into the open file @fd, which is called @file. */
enum cmd_exit out_flush_to(struct out *o, int fd, const char *file);

/*
 * From here on output that NVIDIA's libraries print goes to standard error, and cuFile leaves no
 * log in the current directory. Returns the former standard output, for out_restore(); -1: nothing
 * has changed.
 */
int out_divert(void);
void out_restore(int was);

/* All @n bytes to a file, as to stdout. 0, -EPIPE, or another negative errno. */
int out_write(int fd, const void *p, size_t n);

/* "512 B", "1.02 kB", "12.3 GB": powers of 1000, three digits. */
#define OUT_SIZE 24
const char *out_size(char buf[OUT_SIZE], uint64_t n);
/* "1,048,576" */
const char *out_count(char buf[32], uint64_t n);
/* "512", "1.02k", "6.74B": as people count parameters. */
const char *out_params(char buf[OUT_SIZE], uint64_t n);
/* "12.3 MB (12,345,678 bytes)"; below 1000 just "512 bytes" */
const char *out_size_exact(char buf[64], uint64_t n);
/* Local time "2026-01-30 11:02:09"; with @utc as RFC 3339 "2026-01-30T11:02:09Z". */
const char *out_time(char buf[32], int64_t ns, bool utc);

/*
 * The escape sequence that begins the colour of a state, such as "complete" or "refused"; "": it
 * has none, or there are no colours. OUT_PLAIN ends it. The colours are readable on white and on
 * black.
 */
const char *out_paint(const struct out *o, const char *word);
#define OUT_PLAIN "\033[0m"

/* Append @s, with bytes that are not printable (core/base/text.h) as \xNN. */
void out_text(struct dcp_buf *b, const char *s);
/* Bytes of the first character of @s, with the marks that stand on it; 0: the end. @cols: columns
 * that it takes on a terminal, 2 for those of Chinese, Japanese and Korean. */
size_t out_char(const char *s, size_t *cols);
/* Columns that @s takes. */
size_t out_width(const char *s);
/* Bytes of the beginning of @s that take at most @max columns. */
size_t out_fit(const char *s, size_t max);
/*
 * Append @s in at most @max columns. Digits stay as far as there is room, since names differ in
 * them, then more of the end than of the beginning. An ellipsis (".." without @utf8) stands for
 * each gap.
 */
void out_elide(struct dcp_buf *b, const char *s, size_t max, bool utf8);

/* A name and the columns that it may take. */
struct out_short {
	const char *whole;
	size_t max;
	const char *shown; /* the result: @whole, or text in the arena */
};

/* Shorten @n names as out_elide() does, but keep different names different: names that would look
 * the same show the part where they differ, or all of it where that does not fit. -ENOMEM. */
int out_shorten(struct dcp_arena *arena, struct out_short *names, size_t n, bool utf8);

/* Append @text at column @col, wrapped at its blanks before @width (0: never), later lines starting
 * at column @indent. No newline at the end; every run of blanks becomes one. */
void out_wrap(struct dcp_buf *b, size_t col, size_t indent, size_t width, const char *text);

/* An item missing from a result, and the reason. */
struct out_left {
	const char *what; /* "tensor", "object", "file" */
	const char *key, *why;
};

/* Print a line for each reason, tensors first: "@head 12 tensors a, b, c, ...: why". The unreadable
 * pieces of a file are one reason. */
void out_causes(struct out *o, const char *head, const struct out_left *all, size_t n);

/*
 * Append a cell of tab-separated values, in the order of the names on the first line. It is spelled
 * as by out_text(), with backslashes doubled: cells hold no tab and no newline, and undoing \xNN
 * and \\ gives the exact text.
 */
void out_tsv(struct out *o, const char *s);

/*
 * The kind of a field's values, which decides how people see them: names are shortened where a
 * table is too wide (at most one column), states are coloured by out_paint(), numbers are aligned
 * to the right.
 */
enum out_kind {
	OUT_WORD,
	OUT_NAME,
	OUT_STATE,
	OUT_NUMBER,  /* "1048576", "0.5" */
	OUT_COUNT,   /* "1,048,576" */
	OUT_SOME,    /* the same, but nothing for 0 */
	OUT_PARAMS,  /* "1.05M" */
	OUT_BYTES,   /* "1.05 MB" */
	OUT_SECONDS, /* "1.500 s" */
	OUT_COSINE,  /* "0.50000000" */
	OUT_PART,    /* of 1: "33.3%" */
};

/* The forms that have a field; OUT_EACH: every form for which the field has a name or a head. */
enum out_only { OUT_EACH, OUT_LONG, OUT_ONLY_JSON, OUT_ONLY_TSV };

/* A field of the rows of a list. An array ends with a field without names. */
struct out_field {
	const char *name; /* in JSON, TSV and CSV; NULL: only people see it */
	const char *head; /* of its column for people; NULL: people do not see it */
	enum out_kind kind;
	enum out_only only; /* OUT_LONG: people see it only with out.lengthy */
	unsigned least;     /* not 0: shortened before a name is, down to this width */
	const char *none;   /* what people see where a row has no value; NULL: nothing */
};

/*
 * Begin a list of rows of the same fields. JSON: an array with an object for each row, as the
 * member @key of the open object, or (NULL) as the whole document. TSV and CSV (RFC 4180): the
 * names, then a line for each row. For people: a table, indented by out.indent, or only names, a
 * line each. @heads: a table without rows has its heads, too.
 *
 * Put the values of a row in the order of the fields, by name, or by head if the field has no name.
 * A skipped value is no member in JSON and an empty cell elsewhere. A NULL text is null in JSON.
 * Outside of lists, values are members of JSON.
 */
void out_list(struct out *o, const char *key, const struct out_field *fields);
void out_list_end(struct out *o, bool heads);
void out_row(struct out *o);
void out_put_str(struct out *o, const char *name, const char *s);
void out_put_u64(struct out *o, const char *name, uint64_t n);
void out_put_bool(struct out *o, const char *name, bool v);
/* A number that is not finite is null in JSON and empty in TSV and CSV; people see infinities. */
void out_put_f64(struct out *o, const char *name, double v);
void out_put_seconds(struct out *o, const char *name, double s);
/* A shape: an array in JSON, "[16, 8]" elsewhere. */
void out_put_dims(struct out *o, const char *name, const uint64_t *dims, uint32_t n);
void out_row_end(struct out *o);

void out_table_init(struct out_table *t, const struct out_col *cols, size_t ncols);
void out_table_finish(struct out_table *t);
/* The text is made printable. */
void out_table_cell(struct out_table *t, const char *s);
void out_table_printf(struct out_table *t, const char *fmt, ...) DCP_PRINTF(2, 3);
/* Append the table to @o, each line after @indent spaces. Cells that are shortened stay
 * different. */
void out_table_print(struct out_table *t, struct out *o, unsigned indent);

/*
 * progress: how much is done, how fast, and how long it will take; on stderr, if that is a
 * terminal.
 *
 * Nothing is drawn in the first half second, and the line is wiped at the end: a quick command
 * shows nothing at all. Without a terminal nothing is printed, unless lines of JSON are asked for.
 */

struct progress {
	struct dcp_progress report; /* for core; its ctx is this struct */
	bool on, bytes;             /* there is a terminal; bytes are counted, not items */
	unsigned width;
	bool drawn;
	int64_t start_ns, last_ns;
	/* The current phase: a new phase begins when the total changes, or when less is done than
	 * before. */
	uint64_t phase_total, phase_done, done; /* @phase_done: when it began */
	int64_t phase_ns;
	bool counts_bytes; /* in this phase */
};

/* From here on progress is a line of JSON at most each tenth of a second, wherever stderr goes. */
void progress_as_json(bool on);

/* @bytes: counts are shown as sizes. The struct must stay where it is. */
void progress_init(struct progress *p, bool bytes);
/* Wipe the line. */
void progress_finish(struct progress *p);

/* The line for @done of @total, @rate a second, without cursor movements. Parts that do not fit in
 * @width columns are left out: the sum, the bar, the rate. */
void progress_line(char *buf, size_t size, unsigned width, bool bytes, const char *what,
		   uint64_t done, uint64_t total, double rate);

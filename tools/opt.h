/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opt: the options and operands of a command line, as tables.
 *
 * A verb describes its options and operands once, here; parsing, --help, shell completion
 * and the check of the man page all read the same rows. Values land in the verb's own
 * struct, at the offset a row names. Nothing is printed and nothing exits here.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_buf;
struct dcp_err;

enum opt_kind {
	OPT_FLAG,   /* bool: set */
	OPT_TEXT,   /* const char *: points into argv */
	OPT_TEXTS,  /* struct opt_texts: may be repeated */
	OPT_UINT,   /* uint64_t or uint32_t, decimal */
	OPT_OCTAL,  /* the same, octal: a umask */
	OPT_SIZE,   /* uint64_t, bytes: 500MB, 32GiB */
	OPT_CHOICE, /* int: position in choices */
	OPT_LIST,   /* comma-separated rows of the table sub; may be repeated */
	OPT_PASS,   /* in a sub table: accepted for mount(8)'s sake, nothing to do */
	OPT_REFUSE, /* in a sub table: known, but refused; help says why */
	OPT_FORM,   /* int: set to def; one of several output forms, which exclude each other */
	OPT_OPERAND, /* another way to give the operand that has the same enum opt_what */
};

/* What a value or an operand is, for completion. */
enum opt_what {
	OPT_ANY,
	OPT_FILE,
	OPT_DIR,
	OPT_SOURCE,  /* a checkpoint, or a directory of them */
	OPT_VERSION, /* of the first operand */
	OPT_KEY,     /* of the first operand */
	OPT_VERB,
	OPT_LAYOUT,  /* a name or a file */
	OPT_REGIONS, /* a layout, or a file of regions */
	OPT_DCPL,    /* a file of a layout */
	OPT_MOUNT,   /* a mount point of dcpfs */
	OPT_RULES,   /* a preset or a file */
	OPT_FORMAT,  /* of checkpoints that are written */
	OPT_COMMAND, /* of an operand: all words after --, in args->command */
};

/* How far the ranks of a job must agree on an option. */
enum opt_alike {
	OPT_FREE,  /* nothing */
	OPT_SAME,  /* its value */
	OPT_GIVEN, /* whether it is given */
};

struct opt {
	char letter; /* 0: none */
	const char *
		name; /* without dashes; in a sub table, "x-*" is any name with that beginning */
	const char *arg;  /* the name of the value in help; NULL: it takes none */
	const char *help; /* one line */
	enum opt_kind kind;
	enum opt_what what;
	size_t off;   /* of the value in the verb's struct */
	size_t bytes; /* OPT_UINT, OPT_OCTAL: 4 is a uint32_t, all else uint64_t */
	const char *const *choices; /* OPT_CHOICE: NULL at the end */
	const struct opt *sub;      /* OPT_LIST */
	bool hidden; /* explained elsewhere, in -o or a message: not on the page of --help */
	/* OPT_FORM that may write a file: the next word is its name if the word ends in @ext;
	 * --name=FILE takes any name. */
	const char *ext;
	size_t file;  /* where that name goes: const char * */
	uint64_t max; /* OPT_UINT, OPT_OCTAL: the greatest accepted; 0: any */
	uint64_t def; /* of numbers and OPT_CHOICE: value when it is not given */
	enum opt_alike alike;
};

/* Tables of options end with this row, tables of operands with { 0 }. */
#define OPT_END                                                                                \
	{                                                                                      \
		.name = NULL                                                                   \
	}

struct opt_operand {
	const char *name; /* "SOURCE" */
	bool optional;
	enum opt_what what;
};

/* Values of an option that was repeated, pointing into argv. */
#define OPT_MAX_TEXTS 64

struct opt_texts {
	const char *v[OPT_MAX_TEXTS];
	size_t n;
};

#define OPT_MAX_OPERANDS 4

/*
 * The operands, by their row in the table; absent operands are NULL. With fewer words than rows,
 * optional rows are left out from the left: two words for SOURCE [VERSION] KEY are SOURCE and KEY.
 */
struct opt_args {
	const char *operand[OPT_MAX_OPERANDS];
	char *const *command; /* NULL-ended, of an operand that is OPT_COMMAND; NULL: none */
	bool named;           /* an OPT_OPERAND option gave an operand */
	bool help;            /* -h or --help was given: the words after it were not checked */
	bool json_progress, quiet;
};

/*
 * Parse argv[0..argc) (no program name in it). Options and operands may be mixed; "--" ends the
 * options; letters may be bundled; "--name=value" gives a value. Every table has "-h", "--help",
 * "--json-progress", "--quiet", and "-q" unless a row has that letter. Returns 0, or -EINVAL with a
 * line that says what was found and what was expected. Strings are borrowed from argv, except those
 * of a list, which are written into.
 */
int opt_parse(const struct opt *opts, const struct opt_operand *operands, int argc, char **argv,
	      void *into, struct opt_args *args, struct dcp_err *err);

/* The row of this name, or a row "x-*" that it matches; the row of a letter. NULL: none. */
const struct opt *opt_by_name(const struct opt *opts, const char *name, size_t n);
const struct opt *opt_by_letter(const struct opt *opts, char letter);

/* Append the value of @o in @values as text: "3", "never"; of a flag and of an OPT_GIVEN option
 * "yes" or "no". */
void opt_value(const struct opt *o, const void *values, struct dcp_buf *out);

/* A decimal number and nothing else. */
bool opt_number(const char *s, unsigned base, uint64_t *out);

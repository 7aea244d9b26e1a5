/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs: one mount: its options, its versions, its open files. No FUSE types.
 *
 * Threads: everything here is used by all of FUSE's workers and by the watcher. Each field
 * names what protects it; what names nothing is set before the workers start and then read.
 */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "core/base/arena.h"
#include "core/model/dtype.h"
#include "core/model/rights.h"
#include "core/store/version/version.h"
#include "fs/stats.h"

struct dcp_grants;
struct dcp_index_pool;
struct dcp_log;
struct dcp_row;
struct dcp_rules;
struct dcpfs_cache;
struct dcpfs_errors;
struct dcpfs_hf;
struct dcpfs_hot;
struct dcpfs_keys;
struct dcpfs_log;
struct dcpfs_node;
struct dcp_named_layout;
struct dcp_layouts;
struct dcpfs_opener;
struct dcpfs_ranks;

/* What the FUSE session does for this room. */
struct dcpfs_kernel {
	void (*drop)(void *ctx, uint64_t ino); /* make the kernel drop what it cached of @ino */
	bool (*ended)(void *ctx);              /* has it ended, or is it about to? */
	void *ctx;
};

struct dcpfs_opts {
	const char *source;
	const char *mountpoint; /* absolute and without links */
	struct dcp_store_opts store;
	const struct dcp_log *log;
	const char *log_to; /* where its lines go, for config.json; NULL: nowhere */
	uid_t uid;          /* owner shown; (uid_t)-1: that of the source */
	gid_t gid;
	mode_t umask; /* taken off what the source gives; (mode_t)-1: nothing */
	bool allow_other, foreground, debug;
	bool wait;        /* for a source that is not there, or holds nothing yet */
	bool no_open;     /* have the kernel skip OPEN: cheaper for walkers, no passthrough */
	unsigned threads; /* workers; 0: chosen by the number of processors */
	unsigned readahead_kib;
	unsigned passthrough_mib;   /* room for files the kernel serves by itself; 0: none */
	const char *const *layouts; /* files of --layout */
	size_t nlayouts;
	const char *layout_dir;           /* the user's, with *.dcpl; NULL: none */
	const struct dcp_rules *hf_rules; /* of hf/; NULL: those that fit each version */
	const char *hf_assets;            /* its config.json, tokenizer, ...; NULL: found */
	const char *hf_part;     /* only keys that begin with it and a dot; NULL: all */
	enum dcp_dtype hf_dtype; /* its floating-point numbers are of; OTHER: as stored */
	uint64_t hf_shard_size;  /* bytes in one of its model files at most; 0: 5 GB */
	const struct dcpfs_kernel *kernel; /* NULL: there is none */
	const char *fsname;                /* shown by mount(8); NULL: the source */
};

#define DCPFS_REFUSAL_MAX 512

/*
 * What a slot stands for: a version as the mount knows it, its hf/ (fs/versions/hf.h), or what
 * one rank holds of either (fs/versions/ranks.h). Referenced by the list, by every open file and
 * by every slot that is part of it.
 */
struct dcpfs_version {
	uint32_t refs;  /* atomic */
	uint32_t slot;  /* its part of inode numbers; never given again in this mount */
	uint64_t place; /* in listings, from 1: the name's, as long as it is there */
	char *name;
	struct dcp_found found; /* strings in arena */
	struct dcp_arena arena;
	bool opening, unindexed; /* the opener's lock: being opened; its index must be built */
	struct dcp_version *v;   /* set once, by the opener; read with dcpfs_opened() */
	const char *refused;     /* the same: why it cannot be opened */
	char *refusal;    /* DCPFS_REFUSAL_MAX bytes in arena; with refused_code, before */
	int refused_code; /* refused is set */
	unsigned tries;   /* objects before this one that were refused alike */
	int64_t again_ns; /* CLOCK_MONOTONIC: not tried again before; the watcher's */
	bool rebuild;     /* the index in the cache is damaged */
	bool plain;       /* its files lie in its directory, none is a link; the watcher's */
	bool trusted;     /* latest may lead to it before it was opened */
	bool gone;        /* atomic: it left the list; keep nothing of it but what is open */
	bool rewritten;   /* atomic: and its files changed; serve nothing of it */
	uint32_t open;    /* atomic: its files that are in use, those of ranks among them */
	struct dcp_grants *grants; /* NULL: only the user who mounts may enter */
	struct dcp_rights
		common; /* before v: to read what shows all keys (fs/versions/rights.h) */
	bool apart;     /* before v: each tensor has rights of its own */
	struct dcpfs_version *of; /* what it is part of, a reference; NULL: it is the version */
	const struct dcp_named_layout
		*layout; /* a rank's, which has the v of what it is part of */
	uint32_t rank;
	struct dcpfs_hf *hf; /* of hf/, before v */
};

/* The version in the list. */
static inline struct dcpfs_version *dcpfs_version_whole(struct dcpfs_version *ver)
{
	while (ver && ver->of)
		ver = ver->of;
	return ver;
}

static inline bool dcpfs_is_rank(const struct dcpfs_version *ver)
{
	return ver->layout != NULL;
}

static inline bool dcpfs_is_hf(const struct dcpfs_version *ver)
{
	return ver->of && !ver->layout;
}

/* NULL until it was opened. */
static inline struct dcp_version *dcpfs_opened(const struct dcpfs_version *ver)
{
	return __atomic_load_n(&ver->v, __ATOMIC_ACQUIRE);
}

/* Why it could not be opened, or NULL; valid as long as @ver. */
static inline const char *dcpfs_version_refusal(const struct dcpfs_version *ver)
{
	return __atomic_load_n(&ver->refused, __ATOMIC_ACQUIRE);
}

/* When it was opened. */
static inline struct dcp_index *dcpfs_index(const struct dcpfs_version *ver)
{
	return dcp_version_index(dcpfs_opened(ver));
}

struct dcpfs {
	struct dcpfs_opts opts;
	const struct dcpfs_node *nodes; /* dcpfs_nodes (fs/tree/tree.h) */
	struct timespec started;
	uint8_t id[16]; /* of this mount alone */
	uid_t uid;      /* these three: shown while no other user may enter */
	gid_t gid;
	mode_t mode; /* read bits of files; directories get x beside each */
	struct dcpfs_stats stats;
	struct dcpfs_cache *files;
	struct dcpfs_log *log; /* keeps the last lines of opts.log, and stands in its place */
	struct dcpfs_errors *errors;
	struct dcpfs_hot *hot; /* NULL: no passthrough */
	struct dcp_layouts *layouts;
	struct dcpfs_ranks *ranks;
	struct dcpfs_keys *keys;
	struct dcpfs_opener *opener;
	struct dcp_index_pool *pool;
	uint64_t places; /* how many were given; the refresher's */
	bool scanned;    /* the source was looked at; the refresher's */
	int64_t due_ns; /* CLOCK_MONOTONIC: when to try a refused version again; the refresher's */
	int suspicion; /* eventfd that wakes the watcher; -1: none */

	pthread_rwlock_t lock;           /* those below */
	struct dcpfs_version **versions; /* complete ones, oldest first */
	size_t nversions;
	struct dcpfs_version *latest; /* NULL: none */
	struct dcp_scan scan;         /* the last look at the source: for incomplete.json */
	struct dcp_grants *grants;    /* of the way to it; NULL: see fs/versions/rights.h */
};

/*
 * Look at the source, and begin to open its versions in the background. -EINVAL and the like
 * with the reason when there is nothing to show: a source that is one checkpoint is opened
 * here, of others it is known when all are refused within a moment. @opts is copied, what it
 * points to is borrowed.
 */
int dcpfs_create(const struct dcpfs_opts *opts, struct dcpfs **out, struct dcp_err *err);
void dcpfs_destroy(struct dcpfs *fs);

/* Attributes of a node; -ESTALE for a version that is gone, -ENOENT, or what opening it gave.
 */
int dcpfs_getattr(struct dcpfs *fs, uint64_t ino, struct stat *st);
void dcpfs_attr_of_row(struct dcpfs *fs, const struct dcpfs_version *ver, uint64_t ino,
		       const struct dcp_row *row, struct stat *st);

/*
 * The child @name of directory @parent: its inode, and its attributes when @st is not NULL.
 * -ENOENT, -ENOTDIR, -ESTALE, or what opening a version gave.
 */
int dcpfs_lookup(struct dcpfs *fs, uint64_t parent, const char *name, uint64_t *ino,
		 struct stat *st);

/*
 * Call @fn for entries of directory @ino after position @after (0: from the start) until it
 * returns false. "." and ".." come first. With @attrs, st is complete except for generated files,
 * whose size is expensive, and ranks, which are made by entering them: those come with st_size
 * -1. Else only st_ino and st_mode are set.
 */
typedef bool (*dcpfs_dirent_fn)(void *ctx, const char *name, const struct stat *st,
				uint64_t position);
int dcpfs_readdir(struct dcpfs *fs, uint64_t ino, uint64_t after, bool attrs,
		  dcpfs_dirent_fn fn, void *ctx);

/* What asking the index of @ver gave: damage is noted in errors.json. Returns @rc. */
int dcpfs_index_asked(struct dcpfs *fs, const struct dcpfs_version *ver, int rc);

/* Where the link @ino leads. -EINVAL: it is not a link. */
int dcpfs_readlink(struct dcpfs *fs, uint64_t ino, char *buf, size_t size);

/* May the kernel keep what it learnt of this inode for good? (Inside a version: yes.) */
bool dcpfs_is_settled(uint64_t ino);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs: one mount: its options, its versions, its open files. No FUSE types.
 *
 * Threads: everything here is used by all of FUSE's workers and by the watcher. The comment of a
 * field names its protection; other fields are set before the workers start and only read
 * afterwards.
 */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "core/base/arena.h"
#include "core/model/dtype.h"
#include "core/model/rights.h"
#include "core/store/io/queue.h"
#include "core/store/version/version.h"

/* stats: counters of what the mount does, shown in .dcpfs/stats and .dcpfs/metrics. Safe from any
 * thread. */

struct dcp_buf;

enum dcpfs_stat {
	DCPFS_STAT_LOOKUP,
	DCPFS_STAT_GETATTR,
	DCPFS_STAT_READDIR,
	DCPFS_STAT_OPEN,
	DCPFS_STAT_READ,
	DCPFS_STAT_READ_BYTES,
	DCPFS_STAT_REPLY_MAPPED, /* reads answered by pointers into mappings */
	DCPFS_STAT_REPLY_COPIED, /* reads gathered into a buffer first */
	DCPFS_STAT_REPLY_TEXT,   /* reads of generated files */
	DCPFS_STAT_ERRORS,
	DCPFS_STAT_FILES_OPENED, /* files resolved because the cache of files did not have them */
	DCPFS_STAT_FILES_FOUND, /* files that the cache of files had */
	DCPFS_STAT_KEY_SCANS,   /* versions whose keys were read for by-key/ */
	DCPFS_STAT_RESCANS,     /* full looks at the source */
	DCPFS_STAT_LOOKS,       /* short looks, where inotify is not reliable */
	DCPFS_STAT_LOOK_CALLS,  /* stat calls of short looks */
	DCPFS_STAT_WATCHES,     /* inotify watches set now */
};
#define DCPFS_STAT_COUNT (DCPFS_STAT_WATCHES + 1)

/* Requests of the kinds that are timed: the first ones of enum dcpfs_stat. */
#define DCPFS_TIMED_COUNT (DCPFS_STAT_READ + 1)
#define DCPFS_TIME_STEPS 19 /* upper limits of times, from 10 us to 10 s */

struct dcpfs_times {
	/* requests by the lowest limit that they met; the last counts slower ones */
	uint64_t within[DCPFS_TIME_STEPS + 1];
	uint64_t ns; /* total time */
};

/* The errors that programs are answered with; all others become EIO. */
#define DCPFS_ERRNO_COUNT 14

struct dcpfs_stats {
	uint64_t count[DCPFS_STAT_COUNT];
	struct dcpfs_times times[DCPFS_TIMED_COUNT];
	uint64_t answers[DCPFS_ERRNO_COUNT]; /* requests that ended with this error */
	struct dcp_io_counts io;             /* counters of tensor reads; "io_..." */
};

static inline void dcpfs_count(struct dcpfs_stats *s, enum dcpfs_stat which, uint64_t n)
{
	__atomic_fetch_add(&s->count[which], n, __ATOMIC_RELAXED);
}

static inline void dcpfs_gauge(struct dcpfs_stats *s, enum dcpfs_stat which, uint64_t n)
{
	__atomic_store_n(&s->count[which], n, __ATOMIC_RELAXED);
}

/* A request that is being served. */
struct dcpfs_timer {
	struct dcpfs_stats *stats;
	enum dcpfs_stat which;
	int64_t from; /* CLOCK_MONOTONIC, ns */
};

struct dcpfs_timer dcpfs_timer_start(struct dcpfs_stats *s, enum dcpfs_stat which);
void dcpfs_timer_end(struct dcpfs_timer *t);

/* Count a request of one of the timed kinds, and take the time until the scope ends. */
#define DCPFS_TIMED(stats, which)                                                              \
	__attribute__((cleanup(dcpfs_timer_end), unused)) struct dcpfs_timer timer =           \
		dcpfs_timer_start(stats, which)

/* The errno that a program sees for the return code @rc < 0, which is counted. */
int dcpfs_answer(struct dcpfs_stats *s, int rc);

/* Facts about a mount, besides its counters, for its metrics. */
struct dcpfs_gauges {
	const char *source, *release;
	uint64_t versions, versions_open, versions_refused, versions_incomplete;
	uint64_t broken_keys; /* of versions whose index is open */
	uint64_t failures;    /* entries of errors.json about failed reads */
	uint64_t open_files, cached_files, descriptors, started;
	uint64_t memory; /* resident bytes of the process */
};

/* OpenMetrics text. */
void dcpfs_stats_metrics(const struct dcpfs_stats *s, const struct dcpfs_gauges *g,
			 struct dcp_buf *out);

/* "name value", a line for each counter. */
void dcpfs_stats_text(const struct dcpfs_stats *s, struct dcp_buf *out);

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
struct dcp_measures;
struct dcpfs_opener;
struct dcpfs_ranks;

/* Functions of the FUSE session that fs calls. */
struct dcpfs_kernel {
	void (*drop)(void *ctx, uint64_t ino); /* drop the kernel's cached pages of @ino */
	bool (*ended)(void *ctx);              /* has the session ended, or is it about to? */
	void *ctx;
};

struct dcpfs_opts {
	const char *source;
	const char *mountpoint; /* absolute and without links */
	struct dcp_store_opts store;
	const struct dcp_log *log;
	const char *log_to; /* destination of the log, for config.json; NULL: none */
	uid_t uid;          /* owner shown; (uid_t)-1: the source's */
	gid_t gid;
	mode_t umask; /* bits removed from the source's mode; (mode_t)-1: none */
	bool allow_other, foreground, debug;
	bool wait;        /* accept a source that is missing or still empty */
	bool no_open;     /* the kernel skips OPEN: faster walks, but no passthrough */
	unsigned threads; /* workers; 0: chosen by the number of processors */
	unsigned readahead_kib;
	/* limit for files that the kernel serves by itself; 0: none */
	unsigned passthrough_mib;
	const char *const *layouts; /* files of --layout */
	size_t nlayouts;
	const char *layout_dir;           /* the user's directory with *.dcpl; NULL: none */
	const struct dcp_rules *hf_rules; /* of hf/; NULL: the preset that fits */
	const char *hf_assets;   /* directory of config.json, tokenizer; NULL: searched */
	const char *hf_part;     /* only keys that begin with this and a dot; NULL: all */
	enum dcp_dtype hf_dtype; /* dtype of floats in hf/; OTHER: as stored */
	uint64_t hf_shard_size;  /* largest model file of hf/ in bytes; 0: 5 GB */
	const struct dcpfs_kernel *kernel; /* NULL: there is none */
	const char *fsname;                /* shown by mount(8); NULL: the source */
	/* address where metrics are also served, see fs/session.h; NULL: only in .dcpfs/metrics */
	const char *metrics_at;
	void (*ready)(const char *mountpoint); /* called once when it is mounted; NULL: none */
};

#define DCPFS_REFUSAL_MAX 512

/*
 * The owner of a slot: a version in the mount, its hf/, or the part of a rank in either
 * (fs/versions/versions.h). Referenced by the list, by every open file and by every slot that is
 * part of it.
 */
struct dcpfs_version {
	uint32_t refs;  /* atomic */
	uint32_t slot;  /* bits of inode numbers; not reused in this mount */
	uint64_t place; /* position in listings, from 1; kept while the name is listed */
	char *name;
	struct dcp_found found; /* strings in arena */
	struct dcp_arena arena;
	bool opening, unindexed; /* the opener's lock: being opened; no index yet */
	struct dcp_version *v;   /* set once, by the opener; read with dcpfs_opened() */
	const char *refused;     /* set once, by the opener: why the version cannot be opened */
	char *refusal;           /* DCPFS_REFUSAL_MAX bytes in arena; set before refused */
	int refused_code;        /* set before refused */
	unsigned
		tries; /* earlier objects of this version that were refused for the same reason */
	int64_t again_ns; /* CLOCK_MONOTONIC: earliest next try; the watcher's */
	bool rebuild;     /* the index in the cache is damaged */
	bool plain;       /* no file is a link or lies elsewhere; the watcher's */
	bool trusted;     /* latest may point here before the version is opened */
	bool gone;        /* atomic: no longer listed; cache nothing of it, serve open files */
	bool rewritten;   /* atomic: no longer listed, files changed; serve nothing */
	uint32_t open;    /* atomic: files in use, including those of ranks */
	struct dcp_grants *grants; /* NULL: only the user who mounts may enter */
	struct dcp_rights
		/* set before v: rights to files that show all keys (fs/versions/versions.h) */
		common;
	bool apart;               /* set before v: each tensor has its own rights */
	struct dcpfs_version *of; /* the whole, a reference; NULL: this is the whole version */
	const struct dcp_named_layout
		*layout; /* the layout of a rank, which shares v with `of`; else NULL */
	uint32_t rank;
	struct dcpfs_hf *hf;           /* of hf/; set before v */
	struct dcp_measures *measures; /* atomic; NULL until it is asked (fs/text/text.h) */
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

/* The opened version; NULL until it is opened. */
static inline struct dcp_version *dcpfs_opened(const struct dcpfs_version *ver)
{
	return __atomic_load_n(&ver->v, __ATOMIC_ACQUIRE);
}

/* The reason why @ver could not be opened, or NULL; valid as long as @ver. */
static inline const char *dcpfs_version_refusal(const struct dcpfs_version *ver)
{
	return __atomic_load_n(&ver->refused, __ATOMIC_ACQUIRE);
}

/* The index; call only after the version is opened. */
static inline struct dcp_index *dcpfs_index(const struct dcpfs_version *ver)
{
	return dcp_version_index(dcpfs_opened(ver));
}

struct dcpfs {
	struct dcpfs_opts opts;
	const struct dcpfs_node *nodes; /* dcpfs_nodes (fs/tree/tree.h) */
	struct timespec started;
	uint8_t id[16]; /* of this mount alone */
	uid_t uid;      /* uid, gid, mode: shown while no other user may enter */
	gid_t gid;
	mode_t mode; /* read bits of files; directories get x beside each */
	struct dcpfs_stats stats;
	struct dcpfs_cache *files;
	struct dcpfs_log *log; /* keeps the last lines; opts.log points into it */
	struct dcpfs_errors *errors;
	struct dcpfs_hot *hot; /* NULL: no passthrough */
	struct dcp_layouts *layouts;
	struct dcpfs_ranks *ranks;
	struct dcpfs_keys *keys;
	struct dcpfs_opener *opener;
	struct dcp_index_pool *pool;
	uint64_t places; /* places given so far; the refresher's */
	bool scanned;    /* the source was scanned; the refresher's */
	int64_t due_ns; /* CLOCK_MONOTONIC: when to try a refused version again; the refresher's */
	int suspicion; /* eventfd that wakes the watcher; -1: none */

	pthread_rwlock_t lock;           /* protects the members below */
	struct dcpfs_version **versions; /* complete ones, oldest first */
	size_t nversions;
	struct dcpfs_version *latest; /* NULL: none */
	struct dcp_scan scan;         /* the last look at the source: for incomplete.json */
	struct dcp_grants
		*grants; /* of the way to the source; or NULL (fs/versions/versions.h) */
};

/*
 * Scan the source and begin to open its versions in the background. A source that is one
 * checkpoint is opened before this returns. Returns -EINVAL or the like, with the reason, if
 * that checkpoint is refused, or if all versions are refused within a moment. @opts is copied;
 * the memory that it points to is borrowed.
 */
int dcpfs_create(const struct dcpfs_opts *opts, struct dcpfs **out, struct dcp_err *err);
void dcpfs_destroy(struct dcpfs *fs);

/* Attributes of a node. -ESTALE: its version is gone; -ENOENT; or the error of opening the
 * version. */
int dcpfs_getattr(struct dcpfs *fs, uint64_t ino, struct stat *st);
void dcpfs_attr_of_row(struct dcpfs *fs, const struct dcpfs_version *ver, uint64_t ino,
		       const struct dcp_row *row, struct stat *st);

/* Find the child @name of directory @parent: its inode, and its attributes if @st is not NULL.
 * -ENOENT, -ENOTDIR, -ESTALE, or the error of opening a version. */
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

/* Note in errors.json if @rc, which an access to the index of @ver returned, means that the index
 * is damaged. Returns @rc. */
int dcpfs_index_asked(struct dcpfs *fs, const struct dcpfs_version *ver, int rc);

/* Where the link @ino leads. -EINVAL: it is not a link. */
int dcpfs_readlink(struct dcpfs *fs, uint64_t ino, char *buf, size_t size);

/* May the kernel cache this inode without a time limit? (Inside a version: yes.) */
bool dcpfs_is_settled(uint64_t ino);

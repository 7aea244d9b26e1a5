/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcpload: load a checkpoint into the memory of the ranks of a job, in any layout.
 *
 *	struct dcpload_comm *comm;            the ranks of the job, or this process alone
 *	struct dcpload *ck;                   one version of a checkpoint
 *	struct dcpload_plan *plan;            what this rank wants from it
 *
 *	dcpload_comm_open("auto", &comm, &err);
 *	dcpload_open(comm, "/data/run1", NULL, &ck, &err);
 *	dcpload_plan_create(ck, 0, &plan, &err);
 *	dcpload_want_layout(plan, "tp4:llama", rank, NULL, &err);    or dcpload_want(), key by key
 *	dcpload_plan_finish(plan, &err);
 *	dcpload_execute(plan, &err);          or dcpload_start(), and later dcpload_wait()
 *	... dcpload_part(plan, i, &part) ...
 *	dcpload_plan_free(plan);  dcpload_close(ck);  dcpload_comm_close(comm);
 *
 * Every function that can fail returns 0 (or a count) or a negative errno. One that takes @err,
 * which may be NULL, describes the failure there. A function marked "collective" must be called by
 * all ranks of the communicator in the same order, and returns the same code and text on all of
 * them, even when only one of them failed or died.
 *
 * The library installs no signal handlers, never prints, never exits and keeps no globals. A
 * handle may be used by one thread at a time, different handles by different threads. Structs
 * with a member @size may grow: the caller sets it to sizeof. Strings are UTF-8; those that a
 * handle returns live as long as the handle unless said otherwise. The API uses plain C types
 * only, so that ctypes and the like can call it.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DCPLOAD_API __attribute__((visibility("default")))
#define DCPLOAD_ABI 1
#define DCPLOAD_MAX_NDIM 64

/* DCPLOAD_ABI of the library that is loaded; compare it with the header's. */
DCPLOAD_API uint32_t dcpload_abi(void);
/* "0.1.0" */
DCPLOAD_API const char *dcpload_release(void);

struct dcpload_error {
	int32_t code;    /* the negative errno that was returned; 0: nothing went wrong */
	int32_t rank;    /* the rank that failed; -1: the caller itself, or no single rank */
	char text[1016]; /* one line: key, file, offset, found, expected, what to do */
};

/* ---- processes ---- */

/* The functions of the communicator work only in the thread that opened it. */
#define DCPLOAD_COMM_ONE_THREAD (1u << 0)
/*
 * Ranks may be threads of one process. Otherwise a rank that says that it is in the process of
 * another is refused.
 */
#define DCPLOAD_COMM_THREADS (1u << 1)

/*
 * A communicator: how ranks communicate. The library has some (dcpload_comm_open); a caller may
 * fill in another. Its functions return 0 or a negative errno (-ETIMEDOUT, -ECONNRESET: a rank
 * is gone). All ranks call the same functions in the same order. @timeout_ms: give up after
 * this time.
 */
struct dcpload_comm {
	uint32_t size; /* sizeof(struct dcpload_comm) */
	uint32_t rank, ranks;
	uint32_t flags;   /* DCPLOAD_COMM_ONE_THREAD, DCPLOAD_COMM_THREADS */
	const char *name; /* for reports: "alone", "mpi", "tcp", "torch" */
	void *ctx;        /* the first argument of all functions */
	/*
	 * Gather @n bytes of every rank (the same @n on all), by rank, into @all: ranks * n bytes.
	 */
	int (*allgather)(void *ctx, const void *mine, size_t n, void *all, int timeout_ms);
	/*
	 * For tensor data: send[r] (nsend[r] bytes) goes to rank r, recv[r] (nrecv[r] bytes) comes
	 * from it. NULL: tensor data is exchanged by NCCL or CUDA IPC between GPUs, or not at all.
	 */
	int (*alltoallv)(void *ctx, const void *const *send, const uint64_t *nsend,
			 void *const *recv, const uint64_t *nrecv, int timeout_ms);
	/*
	 * Make a communicator of the ranks that give the same @color, ordered by @key, then by
	 * rank. It is closed before this one. NULL: not supported.
	 */
	int (*split)(void *ctx, uint32_t color, uint32_t key, struct dcpload_comm **out,
		     int timeout_ms);
	void (*close)(void *ctx); /* NULL: nothing to do */
	/* Describe the last failure of one of these functions: text and rank. NULL: failures have
	 * a code only. */
	void (*explain)(void *ctx, struct dcpload_error *err);
};

/*
 * Collective. @how is one of
 *	"alone"  this process only
 *	"mpi"    MPI: the job was started by mpirun, or by srun --mpi=pmix
 *	"env"    TCP: the rank, the number of ranks and the address come from torchrun's variables
 *	         RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or from those of mpirun or srun
 *	"auto"   one of these, by the variables that the launcher has set
 * Fails when a rank has not connected within DCPLOAD_TIMEOUT seconds (an environment variable;
 * 60 if it is not set). Close the communicator after everything that was opened with it.
 *
 * With "env", processes that do not belong to the job are refused. Ranks on one node meet by a Unix
 * socket, and are processes of one user. Others meet at MASTER_ADDR and prove that they have the
 * same secret: DCPLOAD_SECRET, or a key that mpirun gives its ranks, or the file dcpfs/secret in
 * the user's configuration directory, which is made when there is none. -EPERM: there is no secret.
 * Nothing is encrypted.
 */
DCPLOAD_API int dcpload_comm_open(const char *how, struct dcpload_comm **out,
				  struct dcpload_error *err);

/* Take part without a secret: any process that reaches the port can pose as a rank. */
#define DCPLOAD_COMM_INSECURE (1u << 0)

/* All ranks must give the same values. */
struct dcpload_comm_config {
	uint32_t size;  /* sizeof(struct dcpload_comm_config) */
	uint32_t flags; /* DCPLOAD_COMM_INSECURE */
	uint32_t
		timeout_ms; /* for all ranks to connect, unless DCPLOAD_TIMEOUT is set; 0: 60 s */
	uint32_t reserved;
	const char *
		secret; /* in place of DCPLOAD_SECRET; NULL, "": that, or another as above. With a secret of the
			     * caller's, ranks of one node may be processes of several users. */
};
/* The same as dcpload_comm_open(); @config may be NULL. */
DCPLOAD_API int dcpload_comm_open_as(const char *how, const struct dcpload_comm_config *config,
				     struct dcpload_comm **out, struct dcpload_error *err);
/* Collective. Use the caller's MPI communicator: @mpi_comm points to an MPI_Comm, which is
 * duplicated. */
DCPLOAD_API int dcpload_comm_from_mpi(const void *mpi_comm, struct dcpload_comm **out,
				      struct dcpload_error *err);
DCPLOAD_API void dcpload_comm_close(struct dcpload_comm *comm);

/* ---- a checkpoint ---- */

struct dcpload; /* one version, opened by all ranks */

enum dcpload_io {
	DCPLOAD_IO_AUTO,     /* buffered for what is in the page cache, direct for the rest */
	DCPLOAD_IO_BUFFERED, /* through the page cache */
	DCPLOAD_IO_DIRECT,   /* O_DIRECT, where the file system has it */
	DCPLOAD_IO_MOUNT,    /* read through the mount; as AUTO when the source is not in one */
	DCPLOAD_IO_GDS, /* by cuFile into the memory of a GPU; DIRECT for what cuFile refuses */
};

/* Which ranks read bytes that several ranks need? All ranks must set the same. */
enum dcpload_exchange {
	DCPLOAD_EXCHANGE_AUTO,  /* one of the others, which and why is in the report */
	DCPLOAD_EXCHANGE_NEVER, /* every rank reads what it needs */
	DCPLOAD_EXCHANGE_NODE,  /* each byte is read once per node and shared by its ranks */
	DCPLOAD_EXCHANGE_ALL, /* each byte is read once per job and sent to the ranks that need
				 * it; as NODE when none of NCCL, CUDA IPC and the communicator's
				 * alltoallv() is available */
};

struct dcpload_config {
	uint32_t size;     /* sizeof(struct dcpload_config) */
	uint32_t io;       /* enum dcpload_io */
	uint32_t exchange; /* enum dcpload_exchange */
	uint32_t threads;  /* per rank, to read and copy from the page cache; 0: CPUs / ranks */
	uint64_t staging; /* limit of memory beyond the destinations, bytes per rank; 0: 64 MiB,
			    * of which slots for reads take 6 MiB at most, elsewhere 16 MiB;
			    * the least: 1 MiB, or 1.3 MiB when every rank reads for itself */
	uint32_t
		timeout_ms; /* give up when other ranks make no progress for this time; 0: 60 s */
	uint32_t reserved;
	/*
	 * Name of the version, or the number in its name; the value of the coordinator applies to
	 * all ranks. NULL or "latest": the newest version that the coordinator finds.
	 */
	const char *version;
	const char
		*cache; /* directory of indexes; NULL: as in dcpfs(1); "": no index is kept */
	/*
	 * Where the library allocates destinations; those of the caller may be there or on the
	 * host.
	 *	NULL, "host"               host memory
	 *	"cuda:0"                   that GPU
	 *	"cuda", "cuda:LOCAL_RANK"  one GPU for each rank of a node; if there are fewer GPUs
	 *	                           than ranks, ranks share them
	 *	"auto"                     as "cuda", or as "host" if there is no GPU
	 * After the name of a GPU, ",managed" allocates memory that CUDA moves between GPU and
	 * host, and ",pinned" host memory that the GPU can read.
	 */
	const char *device;
	/* Show the checkpoint as a Hugging Face model, without optimizers, its keys renamed by
	 * rules (core/rules/README.md): "auto" (the preset that fits the keys), the name of a
	 * preset, or the text of rules, which contains a newline. NULL: keys as stored. */
	const char *rules;
	/* With rules, the directory in which config.json is looked for first; may be NULL. */
	const char *assets;
	/*
	 * Only the keys below this one: "ema" selects "ema.w", which the rules see as "w". NULL:
	 * all keys. If @rules is NULL, @part implies "auto".
	 */
	const char *part;
	/*
	 * Rank of the coordinator, which finds the version, builds its index if there is none, and
	 * sends the others the name. All ranks must set the same one. It has no other role: a
	 * failure of any rank fails all.
	 */
	uint32_t coordinator;
	uint32_t reserved2;
};

/*
 * Collective. @comm NULL: this process alone; otherwise it must outlive *@out. @source: a
 * checkpoint, a directory of them, or a path in a mount of dcpfs: its root, a version, or a rank's
 * directory shard/LAYOUT/RANK. @config may be NULL. -ESTALE: the files of the version differ
 * between ranks. -EINVAL: the coordinator is none of the ranks, or ranks name different ones. To
 * load on some of the ranks only, open the checkpoint with a communicator that split() made.
 */
DCPLOAD_API int dcpload_open(const struct dcpload_comm *comm, const char *source,
			     const struct dcpload_config *config, struct dcpload **out,
			     struct dcpload_error *err);
DCPLOAD_API void dcpload_close(struct dcpload *ck);

/* Name of the version: "step-500". */
DCPLOAD_API const char *dcpload_version(const struct dcpload *ck);
/* Why a newer version was skipped, as text for the user: it cannot be opened, or is a link out
 * of the source. Only on the coordinator. NULL: no version was skipped. */
DCPLOAD_API const char *dcpload_passed_over(const struct dcpload *ck);
/*
 * When the source is the directory of a rank, shard/LAYOUT/RANK: the layout, and the rank in
 * *@rank. Otherwise NULL.
 */
DCPLOAD_API const char *dcpload_source_layout(const struct dcpload *ck, uint32_t *rank);
/* A fact about the version: "format", "framework", ...; NULL: not known. */
DCPLOAD_API const char *dcpload_fact(const struct dcpload *ck, const char *name);
/* Version @i of the source, 0 being the oldest; *@why: what is wrong with it, NULL when it is
 * complete. -ENOENT after the last. Not collective. */
DCPLOAD_API int dcpload_version_at(const struct dcpload *ck, uint64_t i, const char **name,
				   const char **why);
/* Number of ranks of a layout. Not collective. */
DCPLOAD_API int dcpload_layout_ranks(struct dcpload *ck, const char *layout, uint32_t *ranks,
				     struct dcpload_error *err);

/* One tensor as it is stored. */
struct dcpload_tensor {
	const char *key;
	const char *dtype; /* "BF16"; the framework's name when dcpfs has none */
	uint32_t itemsize; /* bytes per element */
	uint32_t ndim;
	uint64_t nbytes;
	uint64_t shape[DCPLOAD_MAX_NDIM]; /* elements */
};

/* The functions from here to dcpload_run() are not collective. Pointers that they return are valid
 * until the next call with @ck or with a plan made from it. */

/*
 * Iterate over keys in the order of the checkpoint. Returns 1 and a key, or 0 after the last.
 * *@next is 0 at first; each call advances it to the position after the key that it returned.
 * Tensors and objects share one sequence of positions, so that the caller can merge the two
 * iterations.
 */
DCPLOAD_API int dcpload_next_tensor(struct dcpload *ck, uint64_t *next,
				    struct dcpload_tensor *out, struct dcpload_error *err);
DCPLOAD_API int dcpload_next_object(struct dcpload *ck, uint64_t *next, const char **key,
				    struct dcpload_error *err);
/* -ENOENT: no such tensor, @err names the nearest key; -EBADMSG: it exists but cannot be read. */
DCPLOAD_API int dcpload_tensor(struct dcpload *ck, const char *key, struct dcpload_tensor *out,
			       struct dcpload_error *err);
/* Non-tensor state as JSON of @n bytes, NUL-terminated; @type (may be NULL): the Python class that
 * was saved. -ENOENT, -EBADMSG as above. */
DCPLOAD_API int dcpload_object(struct dcpload *ck, const char *key, const char **type,
			       const char **json, size_t *n, struct dcpload_error *err);
/*
 * The Python classes that the JSON of an object cannot express: in "1:tuple 4 7:numpy.int64" values
 * 1 and 4 were tuples and value 7 a numpy.int64 (a number without a class has the class before it).
 * Values are numbered in the order in which they begin; the JSON as a whole is value 0, keys of
 * JSON objects are not counted. *@classes is NULL when there are none. -ENOENT as above.
 */
DCPLOAD_API int dcpload_classes(struct dcpload *ck, const char *key, const char **classes,
				struct dcpload_error *err);
/*
 * The bytes that an object was saved as, if they are its own: a stream of torch.save in a
 * checkpoint of torch.distributed.checkpoint (what its planner is given to load_bytes()), or a
 * file. They are decompressed, not decoded: what unpickles them executes what they say, unless it
 * is told not to (torch.load(weights_only=True)). *@n: how many; read copies @n of them from @at on
 * to @dst. -ENOTSUP: it is a part of something, as in one pickle of many values; -EINVAL: there are
 * not so many; -ENOENT, -EBADMSG as above; -ESTALE: the file has changed.
 */
DCPLOAD_API int dcpload_object_size(struct dcpload *ck, const char *key, uint64_t *n,
				    struct dcpload_error *err);
DCPLOAD_API int dcpload_object_read(struct dcpload *ck, const char *key, uint64_t at, void *dst,
				    uint64_t n, struct dcpload_error *err);
/* What `.metadata` of torch.distributed.checkpoint has under a key. */
struct dcpload_entry {
	const char *key;
	uint32_t
		/*
		 * a byte item; else a tensor, which dcpload_tensor() knows (or why it cannot be
		 * read)
		 */
		is_object;
	uint32_t npath;
	/*
	 * Of an object that is shown otherwise, what dcpload_path(), dcpload_object() and
	 * dcpload_classes() say of others; json is NULL, and why says why, where it cannot be
	 * decoded. Of all else NULL: those functions know the key.
	 */
	const char *const *path;
	const char *type, *json, *classes, *why;
};

/*
 * Iterate over the keys that `.metadata` of torch.distributed.checkpoint has, as torch's own reader
 * shows them: of an object also where dcpfs shows a list item by item (Composer), takes a list of
 * one away or joins a dict with the others (Megatron-Core), or shows the tensor that it is; without
 * what is inside objects or in other files. Returns 1 and an entry, or 0 after the last: at once
 * where the version has no `.metadata`. *@next is 0 at first.
 */
DCPLOAD_API int dcpload_next_entry(struct dcpload *ck, uint64_t *next,
				   struct dcpload_entry *out, struct dcpload_error *err);
/*
 * Where a part of a tensor is stored: elements of a box, maybe not all of them (ZeRO stores runs).
 * Of an object: a file.
 */
struct dcpload_piece {
	const char *file; /* its name, relative to the directory of the version */
	const uint64_t
		*lo; /* where the box begins in the tensor, and how many elements it has */
	const uint64_t *len;
};
/*
 * The @n pieces of a key in the order in which the checkpoint lists them, without replicas. What
 * cannot be read, and an object that shares its bytes with others, has none. -ENOENT as above.
 */
DCPLOAD_API int dcpload_pieces(struct dcpload *ck, const char *key,
			       const struct dcpload_piece **out, size_t *n,
			       struct dcpload_error *err);
/* Components of the key of a tensor or object, as the framework nests them: @n strings. */
DCPLOAD_API int dcpload_path(struct dcpload *ck, const char *key, const char *const **path,
			     size_t *n, struct dcpload_error *err);

/*
 * Read a region now, without other ranks, into @dst of @n bytes, row-major and little-endian. In
 * each dimension d the region has the elements lo[d], lo[d] + step[d], ... below lo[d] + len[d],
 * which are ceil(len / step); @step NULL: 1. @lo NULL: the whole tensor. -EINVAL: the region is not
 * inside the tensor, or does not have @n bytes.
 */
DCPLOAD_API int dcpload_read(struct dcpload *ck, const char *key, const uint64_t *lo,
			     const uint64_t *len, const uint64_t *step, void *dst, uint64_t n,
			     struct dcpload_error *err);

/*
 * Where to map a tensor: if one file holds the whole tensor as consecutive bytes, row-major and
 * little-endian, open it and give the descriptor, which the caller closes, and the offset of the
 * first byte. The file has been compared with the index; later changes of the file show in mappings
 * of it. -ENOTSUP: the tensor is not stored like that (several pieces, compressed, another byte
 * order or dtype); use dcpload_read().
 */
DCPLOAD_API int dcpload_run(struct dcpload *ck, const char *key, int *fd, uint64_t *offset,
			    struct dcpload_error *err);

/* ---- what a rank wants ---- */

struct dcpload_plan;

#define DCPLOAD_STRICT (1u << 0)    /* a stored tensor that no rank wants is an error */
#define DCPLOAD_PARTIAL (1u << 1)   /* wants that cannot be met are listed, not an error */
#define DCPLOAD_SAME_KEYS (1u << 2) /* all ranks must want the same keys */
#define DCPLOAD_ANY_SIZE                                                                       \
	(1u << 3) /* load what claims to be a thousand times as large as its files */

/*
 * @ck must outlive the use of the plan; @flags are the same on all ranks. This function and those
 * that add wants are not collective: a rank on which one fails tells the others by
 * dcpload_plan_give_up(), and goes on to dcpload_plan_finish(). Without a plan (-ENOMEM) it ends:
 * the others are told that it is gone.
 */
DCPLOAD_API int dcpload_plan_create(struct dcpload *ck, uint32_t flags,
				    struct dcpload_plan **out, struct dcpload_error *err);
DCPLOAD_API void dcpload_plan_free(struct dcpload_plan *plan);

/* One region of one tensor, and its destination. */
struct dcpload_want {
	uint32_t size; /* sizeof(struct dcpload_want) */
	uint32_t ndim; /* of @lo, @len, @shape and @stride */
	const char *key;
	const uint64_t *shape; /* expected of the whole tensor; NULL: any */
	const uint64_t *lo;    /* first element of the region; NULL: the whole tensor */
	const uint64_t *len;   /* elements of the region; ignored without @lo */
	const char *dtype; /* of @dst: stored elements are converted to it; NULL: as stored */
	void *dst; /* in host memory or that of dcpload_config.device, valid while the plan is in
		    * use; NULL: the library allocates it */
	const int64_t *stride; /* of @dst, in elements, not negative; NULL: row-major */
	void *user;            /* the caller's; returned in struct dcpload_part */
};
/* Everything but @dst is copied. */
DCPLOAD_API int dcpload_want(struct dcpload_plan *plan, const struct dcpload_want *want,
			     struct dcpload_error *err);

/* Selects the keys that match any of @keys and none of @skip. Each of these is a whole key, a
 * prefix of one that ends at a dot or slash, or a glob (* ? []) in which * also matches dots and
 * slashes. */
struct dcpload_select {
	uint32_t size; /* sizeof(struct dcpload_select) */
	uint32_t nkeys, nskip;
	uint32_t reserved;
	const char *const *keys; /* nkeys 0: all keys */
	const char *const *skip;
	const char *dtype; /* convert floating-point tensors to this; NULL: as stored */
	/* Composer's ignore_keys: globs matched against the path of a key, its components joined by
	 * slashes, and against each leading part of the path ("state/optimizers",
	 * "state/model/a.*"), but for tensors in a tuple, where Composer's paths end. Keys that
	 * match are left out. */
	const char *const *ignore;
	/*
	 * nignore counters: each is raised by the number of keys that its glob matches; may be NULL
	 */
	uint64_t *ignored;
	uint32_t nignore;
	uint32_t weights_only; /* 1: the model only: no optimizer, scheduler, random state */
};

/*
 * Add what rank @rank of a layout holds of every tensor that @select (NULL: all) selects; the
 * library allocates the memory. @layout: as in dcpfs(1): "fsdp8", "tp4:llama", a file. With a file
 * of regions (*.regions) a rank may hold several regions of one tensor; dcpload_part.user then
 * points to a string, the text of the region's line after the rank.
 */
DCPLOAD_API int dcpload_want_layout(struct dcpload_plan *plan, const char *layout,
				    uint32_t rank, const struct dcpload_select *select,
				    struct dcpload_error *err);

/*
 * This rank cannot add what it wants. The other ranks wait for it in dcpload_plan_finish(): it must
 * call that as well, which then fails on all ranks with the code and text of @why and this rank's
 * number, before data moves. @why: what the function said that failed, or the caller's own code and
 * text. The first call counts.
 *
 *	if (dcpload_want(plan, &want, &err) < 0)
 *		dcpload_plan_give_up(plan, &err);
 *	dcpload_plan_finish(plan, &err);
 */
DCPLOAD_API void dcpload_plan_give_up(struct dcpload_plan *plan,
				      const struct dcpload_error *why);

/* Called while a plan is executed; any may be NULL. A negative return value ends the execution
 * and becomes its error. commit() may be called by several threads at once. */
struct dcpload_part;
struct dcpload_hooks {
	uint32_t size; /* sizeof(struct dcpload_hooks) */
	uint32_t reserved;
	void *ctx;
	/* Before data moves, for each part: may set part->data to another destination. */
	int (*resolve)(void *ctx, uint64_t number, struct dcpload_part *part);
	/* The part is complete. */
	int (*commit)(void *ctx, uint64_t number, const struct dcpload_part *part);
	/* Each time that bytes have arrived: bytes of this rank that are in place, and all of them,
	 * both as stored. By several threads, but one at a time: @done never goes back. */
	int (*progress)(void *ctx, uint64_t done, uint64_t total);
	/*
	 * Before the first resolve(): the caller updates what is loaded into, as state_dict() does.
	 */
	int (*get_state)(void *ctx);
	/*
	 * For each object that is stored, once all parts of this rank are complete. @json of @n
	 * bytes is valid during the call; NULL: it cannot be decoded. @type: the Python class that
	 * was saved.
	 */
	int (*object)(void *ctx, const char *key, const char *type, const char *json,
		      uint64_t n);
	/* After everything else, and only when all ranks have succeeded; as load_state_dict(). */
	int (*set_state)(void *ctx);
	/*
	 * All copies to a part on a device are queued. Called before commit(), and only for a part
	 * of which something is stored. @event is a CUevent: a stream that waits for it
	 * (cuStreamWaitEvent(), called here) finds the part in place without waiting for the host.
	 * If the load fails later or is repeated, the contents of the part are undefined until it
	 * succeeds.
	 */
	int (*queued)(void *ctx, uint64_t number, const struct dcpload_part *part, void *event);
	/*
	 * For each object that is stored, before object(): the bytes that it was saved as
	 * (dcpload_object_read()), in order:
	 * @n of them, at most 64 KiB, from @at on, of @total. @bytes NULL: it has none of its own,
	 * or they cannot be found. Each rank reads them for itself, as torch's does.
	 */
	int (*bytes)(void *ctx, const char *key, const void *bytes, uint64_t n, uint64_t at,
		     uint64_t total);
};
/* Copies @hooks. Returns 0. */
DCPLOAD_API int dcpload_plan_hooks(struct dcpload_plan *plan,
				   const struct dcpload_hooks *hooks);

/*
 * Destinations on a device are written after the work that is queued on @stream when an execution
 * begins; when the execution ends, the writes have ended, too. @stream is a CUstream or
 * cudaStream_t of dcpload_config.device; NULL: waits for nothing. Returns 0.
 */
DCPLOAD_API int dcpload_plan_stream(struct dcpload_plan *plan, void *stream);

/*
 * Collective. Finds where every byte is stored and decides which rank reads it; no wants can be
 * added afterwards. On an error no destination was written to.
 */
DCPLOAD_API int dcpload_plan_finish(struct dcpload_plan *plan, struct dcpload_error *err);

/* Problems with the keys of this rank: entry @i of @list. -ENOENT after the last. Call it after
 * dcpload_plan_finish(). */
enum dcpload_list {
	DCPLOAD_MISSING,    /* wanted, not stored */
	DCPLOAD_UNEXPECTED, /* stored, wanted by no rank; only found in a plan with flags */
	DCPLOAD_SHAPE,      /* shape or region does not fit the stored shape */
	DCPLOAD_DTYPE,      /* the stored dtype cannot be converted to the wanted one */
	DCPLOAD_BROKEN,     /* stored, but cannot be read */
};
DCPLOAD_API int dcpload_plan_list(const struct dcpload_plan *plan, uint32_t list, uint64_t i,
				  const char **key, const char **why);

/* ---- loading ---- */

/*
 * Collective. Fill all destinations; a second call fills them again. On an error the contents of
 * destinations are undefined, except those of parts that are complete. When a GPU did not end its
 * copies in time (-ETIMEDOUT, -EREMOTEIO), they may still write there: the library keeps its own
 * memory until the process ends, and callers should keep theirs.
 *
 * When files have changed since they were opened (-ESTALE, or -ENOENT: one is missing), the version
 * is opened and planned again, once. When a file cannot be read (-EIO) and other files hold the
 * same elements, those are read instead. In both cases everything is loaded again and the hooks are
 * called again; the report says why. Strings that dcpload_fact() and the like returned are then
 * invalid.
 */
DCPLOAD_API int dcpload_execute(struct dcpload_plan *plan, struct dcpload_error *err);

/*
 * Collective. Begin what dcpload_execute() does, in a thread of the library, and return at once.
 * Until dcpload_wait() has given its result, no other function may be called with the plan, its
 * checkpoint or its communicator. Hooks are called by that thread. With DCPLOAD_COMM_ONE_THREAD
 * everything happens in dcpload_wait(). -EBUSY: already started.
 */
DCPLOAD_API int dcpload_start(struct dcpload_plan *plan, struct dcpload_error *err);
/*
 * Wait for at most @timeout_ms; negative: without limit. -EAGAIN: still running; -EINVAL: nothing
 * was started; otherwise what dcpload_execute() would have returned.
 */
DCPLOAD_API int dcpload_wait(struct dcpload_plan *plan, int32_t timeout_ms,
			     struct dcpload_error *err);

/* Collective. For benchmarks: drop the files of the plan from the page cache, except pages that
 * some process has mapped. Pages that are not on the disk yet are written first. */
DCPLOAD_API int dcpload_drop_caches(struct dcpload_plan *plan, struct dcpload_error *err);

/* Collective. Read every part again, without the other ranks and by other code, and compare.
 * -EILSEQ: it differs; -ENODATA: a part is not complete. */
DCPLOAD_API int dcpload_check(struct dcpload_plan *plan, struct dcpload_error *err);

/*
 * Collective. Compare what is in memory with the record that `dcpfs verify --record` has written,
 * before it is used. The whole of a tensor that is there as it was stored is digested where it is,
 * also on a device, from which it is copied back in pieces. Of others the parts are compared as
 * dcpload_check() does, and the whole tensors that they are of are read and digested. -EILSEQ: it
 * differs; -ENOKEY: the record does not have a key; -ENODATA: a part is not complete; -EINVAL: not
 * a record.
 */
DCPLOAD_API int dcpload_verify(struct dcpload_plan *plan, const char *record,
			       struct dcpload_error *err);

/*
 * Collective. Finish the plan again, with the same wants, for another version @ck that was opened
 * with the same communicator. -ENOENT, -EINVAL: a key is missing there, or has another shape or
 * dtype; the plan is unchanged. After any other error free the plan.
 */
DCPLOAD_API int dcpload_plan_rebase(struct dcpload_plan *plan, struct dcpload *ck,
				    struct dcpload_error *err);

/* Memory that a pointer points into. */
enum dcpload_memory {
	DCPLOAD_MEMORY_HOST,
	DCPLOAD_MEMORY_PINNED,  /* the host's, known to the device */
	DCPLOAD_MEMORY_DEVICE,  /* only the device can use it */
	DCPLOAD_MEMORY_MANAGED, /* CUDA moves it between device and host */
};

/* One want and its state. Parts are numbered in the order in which wants were added. A want that
 * dcpload_plan_list() lists may keep its number; it is never complete. */
struct dcpload_part {
	const char *key;
	const char *dtype;  /* in the destination */
	const char *stored; /* dtype in the checkpoint */
	uint32_t itemsize;  /* bytes per element in the destination */
	uint32_t ndim;
	uint32_t complete;    /* 1: all bytes are in place */
	uint32_t global_ndim; /* of the tensor; differs from @ndim if the part is flattened */
	void *data; /* the destination; what the library allocated is freed with the plan */
	uint64_t nbytes;                         /* in the destination */
	uint64_t shape[DCPLOAD_MAX_NDIM];        /* of the part */
	uint64_t global_shape[DCPLOAD_MAX_NDIM]; /* of the tensor */
	void *user;
};
/* -ENOENT after the last. */
DCPLOAD_API int dcpload_part(const struct dcpload_plan *plan, uint64_t i,
			     struct dcpload_part *out);
/*
 * enum dcpload_memory of the destination of part @i, as of the last execution; *@device (may be
 * NULL): the number of its GPU, or -1. -ENOENT after the last part.
 */
DCPLOAD_API int dcpload_part_memory(const struct dcpload_plan *plan, uint64_t i,
				    int32_t *device);
/*
 * Copy bytes [@at, @at + @n) of row-major part @i to host memory @dst, wherever the part is.
 * -EINVAL: it is not row-major, or has fewer bytes.
 */
DCPLOAD_API int dcpload_part_read(struct dcpload_plan *plan, uint64_t i, uint64_t at, void *dst,
				  uint64_t n, struct dcpload_error *err);

/*
 * *@out: part @i as a DLManagedTensor of DLPack, on the CPU or the GPU. The consumer calls its
 * deleter; until then its memory is kept, even if the plan is freed. -EINVAL: the memory was
 * allocated by the caller, not by the library; -ENOTSUP: DLPack does not have the dtype.
 */
struct DLManagedTensor;
DCPLOAD_API int dcpload_part_dlpack(const struct dcpload_plan *plan, uint64_t i,
				    struct DLManagedTensor **out, struct dcpload_error *err);

/* What happened on this rank, in bytes and nanoseconds. */
struct dcpload_report {
	uint32_t size;     /* sizeof(struct dcpload_report) */
	uint32_t io;       /* enum dcpload_io that was used; AUTO: decided for each read */
	uint32_t exchange; /* enum dcpload_exchange that was used */
	uint32_t ranks;
	uint32_t local_ranks; /* on this node */
	uint32_t nodes;
	uint64_t parts;
	uint64_t needed;   /* bytes of this rank's parts, as stored or decoded */
	uint64_t read;     /* bytes this rank read from files, alignment included */
	uint64_t sent;     /* to other ranks, in messages */
	uint64_t received; /* from other ranks, in messages or through shared memory */
	/*
	 * Bytes of the distinct 4 KiB pages, with short gaps between them, that are needed by the
	 * ranks that exchange data with this one; 0: not known.
	 */
	uint64_t unique;
	uint64_t staging; /* peak memory beyond destinations */
	uint64_t calls;   /* read system calls */
	uint64_t open_ns, plan_ns, execute_ns;
	uint64_t read_ns, wait_ns, place_ns; /* of the execution, summed over threads */
	const char *io_why, *exchange_why;   /* one line each: why it was chosen */
	const char *comm;                    /* name of the transport */
	uint64_t cpu_ns;                     /* CPU time of this process in the execution */
	const char *device;     /* "cuda:0, NVIDIA H200"; "": destinations are in host memory */
	const char *device_why; /* why this device or none, and which features it lacks */
	uint64_t pinned;        /* bytes of @staging that the device reads by itself */
	uint64_t device_staging; /* bytes of the device's memory beyond destinations */
	const char *again; /* why everything was planned and loaded again; NULL: it was not */
	uint32_t
		nccl; /* 22809: data went from GPU to GPU by NCCL 2.28.9; 0: NCCL was not used */
	uint32_t reserved;
	uint64_t
		registered; /* bytes of @read that went to memory registered with an io_uring */
};
DCPLOAD_API int dcpload_plan_report(const struct dcpload_plan *plan,
				    struct dcpload_report *out);

/* What one thread did in the last execution. Times are relative to the beginning of the execution,
 * which is nearly the same moment on all ranks. */
enum dcpload_event_kind {
	DCPLOAD_EVENT_READ,
	DCPLOAD_EVENT_WAIT, /* for another rank or thread */
	DCPLOAD_EVENT_PLACE,
	DCPLOAD_EVENT_COPY,     /* copy to a device, and place there */
	DCPLOAD_EVENT_EXCHANGE, /* exchange data between devices */
};
struct dcpload_event {
	uint32_t kind,
		thread; /* enum dcpload_event_kind, thread id of the kernel; COPY: a lane */
	uint64_t start_ns, end_ns, bytes;
};
/* Keep the first @events events of each execution; 0, the default: none. -ENOMEM. */
DCPLOAD_API int dcpload_plan_trace(struct dcpload_plan *plan, uint32_t events);
/* -ENOENT after the last. */
DCPLOAD_API int dcpload_plan_event(const struct dcpload_plan *plan, uint64_t i,
				   struct dcpload_event *out);

#ifdef __cplusplus
}
#endif

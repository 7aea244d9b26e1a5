/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcpload: load a checkpoint into the memory of the ranks of a job, in any layout.
 *
 *	struct dcpload_comm *comm;            the ranks of the job, or this process alone
 *	struct dcpload *ck;                   one version of a checkpoint
 *	struct dcpload_plan *plan;            the regions that this rank wants
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
 * Every function that can fail returns 0 (or a count) or a negative errno. A function that takes
 * @err, which may be NULL, describes the failure there. A function marked "collective" must be
 * called by all ranks of the communicator in the same order, and returns the same code and text on
 * all of them, even when only one of them failed or died.
 *
 * The library installs no signal handlers, never prints, never exits and keeps no globals. A handle
 * may be used by one thread at a time, different handles by different threads. Structs with a
 * member @size may grow: the caller sets it to sizeof. Strings are UTF-8; a string that a handle
 * returns lives as long as the handle unless its function says otherwise. The API uses plain C
 * types only, so that ctypes and the like can call it.
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
/* Ranks may be threads of one process. Without this flag a rank is refused when it reports the
 * process of another rank as its own. */
#define DCPLOAD_COMM_THREADS (1u << 1)

/*
 * How the ranks of a job communicate. dcpload_comm_open() makes a communicator; a caller may fill
 * in one of its own. The functions return 0 or a negative errno (-ETIMEDOUT, -ECONNRESET: a rank is
 * gone). All ranks call the same functions in the same order. @timeout_ms: a function gives up
 * after this time.
 */
struct dcpload_comm {
	uint32_t size; /* sizeof(struct dcpload_comm) */
	uint32_t rank, ranks;
	uint32_t flags;   /* DCPLOAD_COMM_ONE_THREAD, DCPLOAD_COMM_THREADS */
	const char *name; /* for reports: "alone", "mpi", "tcp", "torch" */
	void *ctx;        /* the first argument of all functions */
	/* Gather @n bytes of every rank (the same @n on all), by rank, into @all: ranks * n
	 * bytes. */
	int (*allgather)(void *ctx, const void *mine, size_t n, void *all, int timeout_ms);
	/*
	 * For tensor data: send[r] (nsend[r] bytes) goes to rank r, recv[r] (nrecv[r] bytes) comes
	 * from rank r. NULL: tensor data is exchanged by NCCL or CUDA IPC between GPUs, or not at
	 * all.
	 */
	int (*alltoallv)(void *ctx, const void *const *send, const uint64_t *nsend,
			 void *const *recv, const uint64_t *nrecv, int timeout_ms);
	/* Make a communicator of the ranks that give the same @color, ordered by @key, then by
	 * rank. The caller closes the new communicator before this one. NULL: not supported. */
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
 * Fails when a rank has not connected within DCPLOAD_TIMEOUT seconds (an environment variable; 60
 * if it is not set). Before the communicator, close everything that was opened with it.
 *
 * With "env", processes that do not belong to the job are refused. Ranks on one node connect by a
 * Unix socket and must be processes of one user. Ranks on different nodes connect to MASTER_ADDR
 * and prove that they have the same secret: DCPLOAD_SECRET, or a key that mpirun gives its ranks,
 * or the file dcpfs/secret in the user's configuration directory, which the library creates if it
 * does not exist. -EPERM: there is no secret. Nothing is encrypted.
 */
DCPLOAD_API int dcpload_comm_open(const char *how, struct dcpload_comm **out,
				  struct dcpload_error *err);

/* Take part without a secret: any process that reaches the port can pose as a rank. */
#define DCPLOAD_COMM_INSECURE (1u << 0)

/* All ranks must give the same values. */
struct dcpload_comm_config {
	uint32_t size;  /* sizeof(struct dcpload_comm_config) */
	uint32_t flags; /* DCPLOAD_COMM_INSECURE */
	/* time for all ranks to connect, unless DCPLOAD_TIMEOUT is set; 0: 60 s */
	uint32_t timeout_ms;
	uint32_t reserved;
	/* replaces DCPLOAD_SECRET; NULL or "": the secret is found as described above. With a
	 * secret given here, ranks of one node may be processes of several users. */
	const char *secret;
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
	/* the page cache for pages that are in it, O_DIRECT for the rest */
	DCPLOAD_IO_AUTO,
	DCPLOAD_IO_BUFFERED, /* through the page cache */
	DCPLOAD_IO_DIRECT,   /* O_DIRECT, where the file system has it */
	/* read through the mount; as AUTO when the source is not in a mount */
	DCPLOAD_IO_MOUNT,
	/* by cuFile into the memory of a GPU; as DIRECT for files that cuFile refuses */
	DCPLOAD_IO_GDS,
};

/* Which ranks read bytes that several ranks need? All ranks must set the same. */
enum dcpload_exchange {
	/* the library chooses; the report gives the choice and the reason */
	DCPLOAD_EXCHANGE_AUTO,
	DCPLOAD_EXCHANGE_NEVER, /* every rank reads the bytes that it needs */
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
	/*
	 * limit of memory beyond the destinations, bytes per rank. 0: 64 MiB, of which slots for
	 * reads take 6 MiB at most; with any other value they take 16 MiB at most. The smallest
	 * allowed value is 1 MiB, or 1.3 MiB when every rank reads for itself.
	 */
	uint64_t staging;
	/* give up when other ranks make no progress for this time; 0: 60 s */
	uint32_t timeout_ms;
	uint32_t reserved;
	/* Name of the version, or the number in its name; the value of the coordinator applies to
	 * all ranks. NULL or "latest": the newest version that the coordinator finds. */
	const char *version;
	/* directory of indexes; NULL: as in dcpfs(1); "": no index is kept */
	const char *cache;
	/*
	 * Where the library allocates destinations. Destinations that the caller allocates may be
	 * there or on the host.
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
	/* Only the keys below this one: "ema" selects "ema.w", which the rules see as "w". NULL:
	 * all keys. If @rules is NULL, @part implies "auto". */
	const char *part;
	/*
	 * Rank of the coordinator, which finds the version, builds its index if there is none, and
	 * sends the name of the version to the other ranks. All ranks must set the same one. It has
	 * no other role: a failure of any rank fails all.
	 */
	uint32_t coordinator;
	uint32_t reserved2;
};

/*
 * Collective. @comm NULL: this process alone; otherwise it must outlive *@out. @source: a
 * checkpoint, a directory of them, or a path in a mount of dcpfs: its root, a version, or a rank's
 * directory shard/LAYOUT/RANK. @config may be NULL. -ESTALE: the files of the version differ
 * between ranks. -EINVAL: the coordinator is not a rank of the job, or the ranks name different
 * coordinators. To load on some of the ranks only, open the checkpoint with a communicator that
 * split() made.
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
/* If the source is the directory of a rank, shard/LAYOUT/RANK, returns the layout and sets *@rank;
 * otherwise returns NULL. */
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
 * 1 and 4 were tuples and value 7 a numpy.int64 (a number without a class has the last class before
 * it). Values are numbered in the order in which they begin; the JSON as a whole is value 0, keys
 * of JSON objects are not counted. *@classes is NULL when there are none. -ENOENT as above.
 */
DCPLOAD_API int dcpload_classes(struct dcpload *ck, const char *key, const char **classes,
				struct dcpload_error *err);
/*
 * The serialized bytes of an object, if the object has bytes of its own: a stream of torch.save in
 * a checkpoint of torch.distributed.checkpoint (the bytes that its planner passes to load_bytes()),
 * or a file. The bytes are decompressed, not decoded. Unpickling them may run code; use
 * torch.load(weights_only=True). dcpload_object_size() sets *@n to their number;
 * dcpload_object_read() copies @n bytes that begin at byte @at to @dst. -ENOTSUP: the object is
 * part of a larger stream, such as one pickle of many values; -EINVAL: the object has fewer bytes;
 * -ENOENT, -EBADMSG as above; -ESTALE: the file has changed.
 */
DCPLOAD_API int dcpload_object_size(struct dcpload *ck, const char *key, uint64_t *n,
				    struct dcpload_error *err);
DCPLOAD_API int dcpload_object_read(struct dcpload *ck, const char *key, uint64_t at, void *dst,
				    uint64_t n, struct dcpload_error *err);
/* An entry of `.metadata` of torch.distributed.checkpoint. */
struct dcpload_entry {
	const char *key;
	/* 1: a byte item; 0: a tensor, which dcpload_tensor() describes (or says why it cannot be
	 * read) */
	uint32_t is_object;
	uint32_t npath;
	/*
	 * For an object that dcpfs shows in another form, these members hold what dcpload_path(),
	 * dcpload_object() and dcpload_classes() return for other objects. If the object cannot be
	 * decoded, json is NULL and @why is the reason. For all other entries the members are NULL,
	 * because those functions accept the key.
	 */
	const char *const *path;
	const char *type, *json, *classes, *why;
};

/*
 * Iterate over the keys of `.metadata` of torch.distributed.checkpoint as torch's own reader shows
 * them. Objects keep their stored form here. Elsewhere dcpfs shows some lists item by item
 * (Composer), lists of one item as the item, dicts joined (Megatron-Core), and some objects as
 * tensors. Values inside objects, and keys of other files, are not listed. Returns 1 and an entry,
 * or 0 after the last entry or if the version has no `.metadata`. *@next is 0 at first.
 */
DCPLOAD_API int dcpload_next_entry(struct dcpload *ck, uint64_t *next,
				   struct dcpload_entry *out, struct dcpload_error *err);
/* Where a part of a tensor is stored: a file and a box. The file may hold only some elements of the
 * box (ZeRO stores runs). An object has a file only. */
struct dcpload_piece {
	const char *file; /* relative to the directory of the version */
	/* where the box begins in the tensor, and how many elements it has */
	const uint64_t *lo;
	const uint64_t *len;
};
/*
 * The @n pieces of a key in the order in which the checkpoint lists them, without replicas. A key
 * that cannot be read has no pieces, nor has an object that shares its bytes with other objects.
 * -ENOENT as above.
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
 * For callers that map tensors. If one file holds the whole tensor as consecutive bytes, row-major
 * and little-endian, opens this file and returns the descriptor, which the caller closes, and the
 * offset of the first byte. The file has been compared with the index; later changes of the file
 * are visible in mappings of it. -ENOTSUP: the tensor is not stored like that (several pieces,
 * compressed, another byte order or dtype); use dcpload_read().
 */
DCPLOAD_API int dcpload_run(struct dcpload *ck, const char *key, int *fd, uint64_t *offset,
			    struct dcpload_error *err);

/* ---- what a rank wants ---- */

struct dcpload_plan;

#define DCPLOAD_STRICT (1u << 0)    /* a stored tensor that no rank wants is an error */
#define DCPLOAD_PARTIAL (1u << 1)   /* wants that cannot be met are listed, not an error */
#define DCPLOAD_SAME_KEYS (1u << 2) /* all ranks must want the same keys */
/* load checkpoints whose tensors claim to be a thousand times as large as their files */
#define DCPLOAD_ANY_SIZE (1u << 3)

/*
 * @ck must outlive the use of the plan; @flags must be the same on all ranks. This function and the
 * functions that add wants are not collective. If adding a want fails on a rank, the rank calls
 * dcpload_plan_give_up(), so that the other ranks learn of it, and goes on to
 * dcpload_plan_finish(). A rank that cannot create a plan (-ENOMEM) has to exit: the other ranks
 * then get an error that it is gone.
 */
DCPLOAD_API int dcpload_plan_create(struct dcpload *ck, uint32_t flags,
				    struct dcpload_plan **out, struct dcpload_error *err);
DCPLOAD_API void dcpload_plan_free(struct dcpload_plan *plan);

/* One region of one tensor, and its destination. */
struct dcpload_want {
	uint32_t size; /* sizeof(struct dcpload_want) */
	uint32_t ndim; /* of @lo, @len, @shape and @stride */
	const char *key;
	const uint64_t *shape; /* expected shape of the whole tensor; NULL: any */
	const uint64_t *lo;    /* first element of the region; NULL: the whole tensor */
	const uint64_t *len;   /* elements of the region; ignored without @lo */
	const char *dtype; /* of @dst: stored elements are converted to it; NULL: as stored */
	/* destination, in host memory or in memory of dcpload_config.device, valid while the plan
	 * is in use; NULL: the library allocates it */
	void *dst;
	const int64_t *stride; /* of @dst, in elements, not negative; NULL: row-major */
	void *user;            /* the caller's; returned in struct dcpload_part */
};
/* Everything but @dst is copied. */
DCPLOAD_API int dcpload_want(struct dcpload_plan *plan, const struct dcpload_want *want,
			     struct dcpload_error *err);

/*
 * Selects the keys that match any pattern of @keys and no pattern of @skip. A pattern is a whole
 * key, a prefix of a key that ends at a dot or slash, or a glob (* ? []) in which * also matches
 * dots and slashes.
 */
struct dcpload_select {
	uint32_t size; /* sizeof(struct dcpload_select) */
	uint32_t nkeys, nskip;
	uint32_t reserved;
	const char *const *keys; /* nkeys 0: all keys */
	const char *const *skip;
	const char *dtype; /* convert floating-point tensors to this; NULL: as stored */
	/*
	 * Composer's ignore_keys: globs matched against the path of a key, its components joined by
	 * slashes, and against each leading part of the path ("state/optimizers",
	 * "state/model/a.*"). Composer's paths end at a tuple, so tensors inside a tuple match only
	 * by the path of the tuple. Keys that match are left out.
	 */
	const char *const *ignore;
	/* @nignore counters, one for each glob; each is increased by the number of keys that its
	 * glob matches; may be NULL */
	uint64_t *ignored;
	uint32_t nignore;
	uint32_t weights_only; /* 1: the model only: no optimizer, scheduler, random state */
};

/*
 * Add the part that rank @rank of a layout holds of every tensor that @select (NULL: all) selects;
 * the library allocates the memory. @layout: as in dcpfs(1): "fsdp8", "tp4:llama", a file. With a
 * file of regions (*.regions) a rank may hold several regions of one tensor; dcpload_part.user then
 * points to a string, the text of the region's line after the rank.
 */
DCPLOAD_API int dcpload_want_layout(struct dcpload_plan *plan, const char *layout,
				    uint32_t rank, const struct dcpload_select *select,
				    struct dcpload_error *err);

/*
 * Report that this rank cannot add a want. Because the other ranks wait in dcpload_plan_finish(),
 * this rank must call that function as well; it then fails on all ranks, before data moves, with
 * the code and text of @why and the number of this rank. @why: the error of the function that
 * failed, or the caller's own code and text. Only the first call counts.
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
	/*
	 * Called each time that bytes have arrived. @done: bytes of this rank that are in place;
	 * @total: all bytes of this rank; both counted as stored. Several threads call it, one at a
	 * time; @done never decreases.
	 */
	int (*progress)(void *ctx, uint64_t done, uint64_t total);
	/* Before the first resolve(): the caller updates the state that the load fills, as
	 * state_dict() does. */
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
	 * that has stored bytes. @event is a CUevent: a stream that waits for it
	 * (cuStreamWaitEvent(), called here) finds the part in place without waiting for the host.
	 * If the load fails later or is repeated, the contents of the part are undefined until it
	 * succeeds.
	 */
	int (*queued)(void *ctx, uint64_t number, const struct dcpload_part *part, void *event);
	/*
	 * For each object that is stored, before object(): its serialized bytes
	 * (dcpload_object_read()), in order. One call passes @n bytes, at most 64 KiB, which begin
	 * at byte @at of @total. @bytes NULL: the object has no bytes of its own, or they cannot be
	 * found. Each rank reads the bytes for itself, as torch does.
	 */
	int (*bytes)(void *ctx, const char *key, const void *bytes, uint64_t n, uint64_t at,
		     uint64_t total);
};
/* Copies @hooks. Returns 0. */
DCPLOAD_API int dcpload_plan_hooks(struct dcpload_plan *plan,
				   const struct dcpload_hooks *hooks);

/*
 * An execution writes destinations on a device after the work that is queued on @stream when it
 * begins; its writes have ended when it returns. @stream is a CUstream or cudaStream_t of
 * dcpload_config.device; NULL: the execution waits for nothing. Returns 0.
 */
DCPLOAD_API int dcpload_plan_stream(struct dcpload_plan *plan, void *stream);

/* Collective. Finds where every byte is stored and decides which rank reads it; no wants can be
 * added afterwards. On an error no destination was written to. */
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
 * Collective. Fill all destinations; a second call fills them again. After an error the contents of
 * destinations are undefined, except for parts that are complete. If a GPU did not finish its
 * copies in time (-ETIMEDOUT, -EREMOTEIO), it may still write to destinations: the library keeps
 * its own memory until the process ends, and callers should keep theirs.
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
/* Wait for at most @timeout_ms; negative: without limit. -EAGAIN: still running; -EINVAL: nothing
 * was started; otherwise the result of dcpload_execute(). */
DCPLOAD_API int dcpload_wait(struct dcpload_plan *plan, int32_t timeout_ms,
			     struct dcpload_error *err);

/* Collective. For benchmarks: drop the files of the plan from the page cache, except pages that
 * some process has mapped. Pages that are not on the disk yet are written first. */
DCPLOAD_API int dcpload_drop_caches(struct dcpload_plan *plan, struct dcpload_error *err);

/* Collective. Read every part again, without the other ranks and by other code, and compare.
 * -EILSEQ: a part differs; -ENODATA: a part is not complete. */
DCPLOAD_API int dcpload_check(struct dcpload_plan *plan, struct dcpload_error *err);

/*
 * Collective. Compare the loaded parts with a record that `dcpfs verify --record` has written,
 * before the caller uses them. A part that is a whole tensor in its stored form is digested in
 * memory (on a device: copied back in pieces and digested). Other parts are compared as
 * dcpload_check() does, and their whole tensors are read from the files and digested. -EILSEQ: a
 * part or tensor differs; -ENOKEY: a key is not in the record; -ENODATA: a part is not complete;
 * -EINVAL: the file is not a record.
 */
DCPLOAD_API int dcpload_verify(struct dcpload_plan *plan, const char *record,
			       struct dcpload_error *err);

/*
 * Collective. Finish the plan again, with the same wants, for another version @ck that was opened
 * with the same communicator. -ENOENT, -EINVAL: a key is missing in that version, or has another
 * shape or dtype there; the plan is unchanged. After any other error free the plan.
 */
DCPLOAD_API int dcpload_plan_rebase(struct dcpload_plan *plan, struct dcpload *ck,
				    struct dcpload_error *err);

/* Memory that a pointer points into. */
enum dcpload_memory {
	DCPLOAD_MEMORY_HOST,
	DCPLOAD_MEMORY_PINNED,  /* host memory that the device can access */
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
	/* the destination; if the library allocated it, it is freed with the plan */
	void *data;
	uint64_t nbytes;                         /* in the destination */
	uint64_t shape[DCPLOAD_MAX_NDIM];        /* of the part */
	uint64_t global_shape[DCPLOAD_MAX_NDIM]; /* of the tensor */
	void *user;
};
/* -ENOENT after the last. */
DCPLOAD_API int dcpload_part(const struct dcpload_plan *plan, uint64_t i,
			     struct dcpload_part *out);
/* enum dcpload_memory of the destination of part @i, as of the last execution; *@device (may be
 * NULL): the number of its GPU, or -1. -ENOENT after the last part. */
DCPLOAD_API int dcpload_part_memory(const struct dcpload_plan *plan, uint64_t i,
				    int32_t *device);
/* Copy bytes [@at, @at + @n) of row-major part @i to host memory @dst, wherever the part is.
 * -EINVAL: it is not row-major, or has fewer bytes. */
DCPLOAD_API int dcpload_part_read(struct dcpload_plan *plan, uint64_t i, uint64_t at, void *dst,
				  uint64_t n, struct dcpload_error *err);

/*
 * *@out: part @i as a DLManagedTensor of DLPack, on the CPU or the GPU. The memory is kept until
 * the consumer calls the deleter of *@out, even if the plan is freed. -EINVAL: the caller, not the
 * library, allocated the memory; -ENOTSUP: DLPack does not have the dtype.
 */
struct DLManagedTensor;
DCPLOAD_API int dcpload_part_dlpack(const struct dcpload_plan *plan, uint64_t i,
				    struct DLManagedTensor **out, struct dcpload_error *err);

/* The work of this rank, in bytes and nanoseconds. */
struct dcpload_report {
	uint32_t size;     /* sizeof(struct dcpload_report) */
	uint32_t io;       /* the enum dcpload_io in use; AUTO: decided for each read */
	uint32_t exchange; /* the enum dcpload_exchange in use */
	uint32_t ranks;
	uint32_t local_ranks; /* on this node */
	uint32_t nodes;
	uint64_t parts;
	uint64_t needed;   /* bytes of this rank's parts, as stored or decoded */
	uint64_t read;     /* bytes this rank read from files, alignment included */
	uint64_t sent;     /* to other ranks, in messages */
	uint64_t received; /* from other ranks, in messages or through shared memory */
	/* Bytes of all distinct 4 KiB pages that the ranks of the exchange need, short gaps between
	 * the pages included; 0: not known. */
	uint64_t unique;
	uint64_t staging; /* peak memory beyond destinations */
	uint64_t calls;   /* read system calls */
	uint64_t open_ns, plan_ns, execute_ns;
	/* times within the execution, summed over threads */
	uint64_t read_ns, wait_ns, place_ns;
	/* why @io and @exchange were chosen, one line each */
	const char *io_why, *exchange_why;
	const char *comm;       /* name of the transport */
	uint64_t cpu_ns;        /* CPU time of this process in the execution */
	const char *device;     /* "cuda:0, NVIDIA H200"; "": destinations are in host memory */
	const char *device_why; /* why this device or none, and which features it lacks */
	uint64_t pinned;        /* bytes of @staging that the device can read directly */
	uint64_t device_staging; /* bytes of the device's memory beyond destinations */
	const char *again; /* why everything was planned and loaded again; NULL: it was not */
	/* 22809: data went from GPU to GPU by NCCL 2.28.9; 0: NCCL was not used */
	uint32_t nccl;
	uint32_t reserved;
	/* bytes of @read that went to memory registered with an io_uring */
	uint64_t registered;
};
DCPLOAD_API int dcpload_plan_report(const struct dcpload_plan *plan,
				    struct dcpload_report *out);

/* A piece of work of one thread in the last execution. Times are relative to the beginning of the
 * execution, which is nearly the same moment on all ranks. */
enum dcpload_event_kind {
	DCPLOAD_EVENT_READ,
	DCPLOAD_EVENT_WAIT, /* for another rank or thread */
	DCPLOAD_EVENT_PLACE,
	DCPLOAD_EVENT_COPY,     /* copy to a device, and place there */
	DCPLOAD_EVENT_EXCHANGE, /* exchange data between devices */
};
struct dcpload_event {
	uint32_t kind,
		/* enum dcpload_event_kind; the kernel's thread id, or for COPY the number of a
		 * lane */
		thread;
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

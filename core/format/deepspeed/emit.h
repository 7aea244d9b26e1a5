/* SPDX-License-Identifier: Apache-2.0 */
/*
 * emit: from what was read to what the sink gets.
 *
 *	emit.c              under all names that a parameter has
 *	state.c             fp32, exp_avg, ... of every parameter, of one rank or joined from several
 *	module.c            the 16-bit weights, with those of AutoEP's experts
 *	module_joined.c     those of several tensor-parallel ranks, and the sink for them
 *	extras.c            everything else
 */
#pragma once
#include "core/format/deepspeed/deepspeed_int.h"

/* ---- emit.c ---- */

/*
 * <rank>.<role>.<name>, without <rank> when that is NULL: @t with its key and path. dtype_name
 * and itemsize may be left to the dtype.
 */
int dcp_ds_emit_one(struct dcp_ds *ds, const char *rank, const char *role, const char *name,
		    const struct dcp_tensor *t);
/* The same, also under every name that is tied to @name. */
int dcp_ds_emit_tensor(struct dcp_ds *ds, const char *rank, const char *role, const char *name,
		       const struct dcp_tensor *t);
int dcp_ds_emit_object(struct dcp_ds *ds, const char *rank, const char *role, const char *name,
		       const char *type, const char *json);
/* What framework, how many ranks, and what was not joined. */
int dcp_ds_emit_facts(struct dcp_ds *ds);
/* Note that @name is emitted once for each tensor-parallel rank, and why. */
int dcp_ds_note_unjoined(struct dcp_ds *ds, const char *name, const char *why,
			 const struct dcp_ds_rule *rule);

/* ---- state.c ---- */

/* Master weights and moments. */
int dcp_ds_emit_states(struct dcp_ds *ds);

/* Those of one name while they are emitted. */
struct dcp_ds_emitter {
	struct dcp_ds *ds;
	uint32_t state;
	struct dcp_arena scratch; /* of one name */
	struct dcp_buf runs, pieces;
	size_t hint; /* the common entry that was found last: the next is near */
};
/* The ranks that hold a parameter, in the order in which they are joined. */
struct dcp_ds_shared {
	const struct dcp_ds_part **part;
	const struct dcp_ds_param **param;
	struct dcp_ds_local *local;
	size_t n;
};
int dcp_ds_room_for_shared(struct dcp_ds_emitter *t, struct dcp_ds_shared *s, size_t n);
int dcp_ds_emit_joined(struct dcp_ds_emitter *t, const char *rank,
		       const struct dcp_ds_shared *s, struct dcp_ds_whole *w);
/* A parameter of AutoEP, of all shares of its part. */
int dcp_ds_emit_shares(struct dcp_ds_emitter *t, const char *rank,
		       const struct dcp_ds_part *part, const struct dcp_ds_param *p);
/* State that all elements of a parameter share; does nothing if there is none. */
int dcp_ds_emit_common(struct dcp_ds_emitter *t, const char *rank,
		       const struct dcp_ds_part *part, const struct dcp_ds_param *p);
int dcp_ds_emit_error(struct dcp_ds_emitter *t, const char *rank, const char *name,
		      uint32_t ndim, const uint64_t *shape, uint8_t dtype, const char *why);
int dcp_ds_emit_pieces(struct dcp_ds_emitter *t, const char *rank, const char *name,
		       uint32_t ndim, const uint64_t *shape, uint8_t dtype);
/* Runs of one rank, as far as they fall into @box. */
int dcp_ds_add_pieces(struct dcp_ds_emitter *t, const struct dcp_ds_box *box, uint8_t dtype);

/* ---- join.c: are copies equal? ---- */

/* May so many bytes of each of @ranks ranks be read, to compare them? */
bool dcp_ds_may_compare(struct dcp_ds *ds, uint64_t bytes, size_t ranks);
/* Do all ranks hold the same values of the state? 1, 0 or -ENOMEM. */
int dcp_ds_all_same(struct dcp_ds_emitter *t, const struct dcp_ds_shared *s);

/* ---- module.c, module_joined.c ---- */

/* The 16-bit weights; and as fp32 the weights that the optimizer does not have. */
int dcp_ds_emit_modules(struct dcp_ds *ds);
/* Those of one model, layer or expert from the files of its tensor-parallel ranks. */
int dcp_ds_emit_unit(struct dcp_ds *ds, const struct dcp_ds_name *file, size_t n);
/* Weights of AutoEP from the files of their experts; is a file one of them? */
int dcp_ds_emit_stacks(struct dcp_ds *ds);
bool dcp_ds_is_stacked(const struct dcp_ds *ds, const struct dcp_ds_name *file);

/* The state dict in a file: all of it, or what a model file calls "module"; NULL: none. */
const struct dcp_pv *dcp_ds_state_dict(const struct dcp_ds_name *name,
				       const struct dcp_ds_input *in, struct dcp_pv *room);

/* Is a weight of such a file a frozen one or a buffer, which the optimizer therefore does
 * not have? Layers of a pipeline give tied weights other names, so of those only buffers
 * are. */
bool dcp_ds_is_fp32(const struct dcp_ds *ds, uint8_t kind, const char *name);

/* A sink for module.<name>: corrects paths, leaves out placeholders, also emits fp32. */
struct dcp_ds_front {
	struct dcp_ds *ds;
	const struct dcp_ds_name *file;
};
struct dcp_sink dcp_ds_front_sink(struct dcp_ds_front *f);

/* ---- extras.c ---- */

/* The values of a model or optimizer file that are not emitted elsewhere. */
int dcp_ds_emit_rest(struct dcp_ds *ds, const struct dcp_ds_name *name,
		     const struct dcp_ds_input *in);
/* One value of it, unless the first file of its kind said the same. */
int dcp_ds_emit_entry(struct dcp_ds *ds, const struct dcp_ds_name *name,
		      const struct dcp_ds_input *in, struct dcp_pv v, const char *const *path,
		      size_t n);
/* One value, as an object and the tensors in it; path[0] is the file and only part of the key.
 */
int dcp_ds_emit_value(struct dcp_ds *ds, const struct dcp_ds_input *in, struct dcp_pv v,
		      const char *const *path, size_t n);
/* A file of unknown content, leaf by leaf; or only the leaves that dcp_ds_emit_rest() left
 * out. */
int dcp_ds_emit_raw(struct dcp_ds *ds, const char *file, bool tensors_only);

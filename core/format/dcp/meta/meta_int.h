/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meta_int: one pair of each section of a .metadata, put into a struct dcp_tmeta.
 *
 * What is wrong with the pair's key is kept as its error; a negative return ends the reading.
 */
#pragma once
#include "core/format/dcp/meta/meta.h"
#include "core/parse/pickle/pickle.h"

/* A file of @size bytes begins. */
void dcp_tmeta_begin(struct dcp_tmeta *m, uint64_t size);

/* For struct dcp_section; @meta is the struct dcp_tmeta. */
int dcp_tmeta_add_entry(void *meta, struct dcp_pv key, struct dcp_pv v, struct dcp_err *err);
int dcp_tmeta_add_record(void *meta, struct dcp_pv index, struct dcp_pv v, struct dcp_err *err);
int dcp_tmeta_add_path(void *meta, struct dcp_pv key, struct dcp_pv v, struct dcp_err *err);
int dcp_tmeta_add_shape(void *meta, struct dcp_pv key, struct dcp_pv v, struct dcp_err *err);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * value: objects, which core holds as JSON (core/parse/pyjson/pyjson.h), as the plain Python
 * data they are.
 *
 * Numbers, text, None, lists, tuples, dicts, OrderedDict, sets, bytes, complex numbers, ranges,
 * slices, dates and times, numbers and arrays of numpy, torch.Size, torch.dtype and
 * torch.device. What is an instance of anything else has no plain form.
 */
#pragma once
#include "core/model/tensor.h"
#include "core/write/pickle.h"

/* Tensors inside objects, by their keys. */
struct dcp_value_tensors {
	/* Add one to the pickle. -ENOENT: there is no tensor of that key. */
	int (*put)(void *ctx, struct dcp_pickler *p, const char *key);
	void *ctx;
};

/* Why it cannot be pickled, or NULL. @tensors: it may have tensors in it. */
const char *dcp_value_refuses(const struct dcp_object *o, bool tensors);

/* A class in it for which torch.load wants weights_only=False, as it may execute any code then;
 * NULL: none. */
const char *dcp_value_class(const struct dcp_object *o);

/* Add the value to the pickle. @tensors NULL: there are none in it. -EBADMSG
 * (dcp_value_refuses() says why, or the text is not JSON), -ENOMEM, or what tensors->put()
 * gave. */
int dcp_value_put(struct dcp_pickler *p, const struct dcp_object *o,
		  const struct dcp_value_tensors *tensors);

/* Call tensors->put(), with a pickle that takes nothing, for every tensor in it. */
int dcp_value_tensors(const struct dcp_object *o, const struct dcp_value_tensors *tensors);

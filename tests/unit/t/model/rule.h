/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_rule: layouts at random, as text. Nothing here knows cmocka, so that a fuzz target can use
 * it.
 */
#pragma once
#include <stdint.h>

#include "tests/unit/t/model/plan.h"

enum { T_RULE_TEXT = 1024 };

/* A layout of at most @ranks ranks whose last rule takes every key. It parses; what it says may
 * be something that cannot be done with a tensor. Keys are like "a.3.w". */
void t_rule_layout(char text[T_RULE_TEXT], uint32_t ranks, struct t_choice *c);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name: the file name that stands for a key.
 *
 *   '/'                        %2F
 *   '%'                        %25
 *   characters that are not
 *   shown as they are, and
 *   bytes that are not UTF-8   %XX, each byte (core/base/text.h)
 *   the whole key "." or ".."  %2E, %2E%2E
 *   the empty key              %
 *   more than 243 bytes        a readable head, '~', 16 hex digits of the key's hash
 *
 * Only the last row is not reversible. 243 bytes leave room for the longest extension
 * (".safetensors") in the 255 that a directory entry may have. Rows whose names clash (the same key
 * twice, a tensor and an object of one key, shortened keys, a literal '~') are kept distinct by the
 * index, which uses the hashed form for the later ones.
 *
 * A NUL inside a key is held as the two bytes C0 80 (modified UTF-8) everywhere in dcpfs.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCP_NAME_MAX 243

/* Writes at most DCP_NAME_MAX bytes and a NUL. @hashed: with the hash even if the name is short. */
void dcp_name_from_key(const char *key, bool hashed, char out[DCP_NAME_MAX + 1]);

/* The key that the first @n bytes of @name stand for; a name that no key can have is copied
 * unchanged. @out has room for n + 1 bytes. */
void dcp_name_to_key(const char *name, size_t n, char *out);

/* Does @key match @pattern, a glob whose * also matches dots and slashes? */
bool dcp_name_matches(const char *pattern, const char *key);

/* Does any of the @n words of @list match @key: as the whole key, as a prefix that ends at a dot or
 * slash, or as a pattern? */
bool dcp_name_listed(const char *const *list, size_t n, const char *key);

/* Order of version names: digit runs compare as numbers, all other characters bytewise. */
int dcp_name_compare(const char *a, const char *b);

/*
 * order: which of two versions is newer, judged by their names.
 *
 * This is the only implementation of the rule. Trainers count steps, so the numbers in a name
 * decide:
 *
 *   best release pretrained 9fceb02d...    no number: oldest of all, among themselves by time
 *   step-9 step-10 step-100                numbers, the first against the first
 *   ep1-ba900 ep2-ba5                      then the second against the second, and so on;
 *                                          a name with more numbers is newer (Lightning's -v1)
 *   final last last-v1 model_final         words for the end: newest of all, by time
 *
 * Text around a number is ignored: checkpoint-500 is older than step-1000. If numbers are equal,
 * the name that sorts first by letters is the newer, so that a variant (step-10-ema,
 * global_step10_universal) never replaces the version that it was made from.
 *
 * Metrics and parameters are ignored, because a larger value is not a later one: val_loss=1.25,
 * lr=1e-4, epoch_3_loss_0.31, f1=0.9 (a fraction after "=", and any number after a word like loss
 * or acc). Digits in a hash (9fceb02d, a UUID) are ignored too.
 *
 * Times decide only if there are no numbers, because copying does not always keep them.
 */

/* Negative: @a is older. @a_ns and @b_ns: when the versions were committed. 0: the names are
 * equal. */
int dcp_order_compare(const char *a, int64_t a_ns, const char *b, int64_t b_ns);

/* Does the name say that the version is still being written ("tmp-checkpoint-500",
 * "step-5.tmp")? */
bool dcp_order_is_unfinished(const char *name);

/*
 * Is it a name that trainers give to one of several saves ("checkpoint-500", "step_10", "epoch=3",
 * "checkpoint_epoch_3")? Not global_step5, which may also be a part of a save, nor a number alone,
 * which may be the number of a rank.
 */
bool dcp_order_is_numbered(const char *name);

/* The same of a directory that holds a checkpoint: also global_step5, and a number alone. */
bool dcp_order_is_save(const char *name);

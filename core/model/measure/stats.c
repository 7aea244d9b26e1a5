/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/measure/stats.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/cast_bits.h"
#include "core/base/simd.h"
#include "core/model/measure/sums.h"

/* A long block holds only finite BF16, which are summed without conversion. */
enum { BLOCK = DCP_SUM_AHEAD, LONG_BLOCK = 4 * BLOCK, TABLES = 4 };

/* How to read the bits of a floating-point type with a sign bit on top: magnitudes in order. */
struct kind {
	uint8_t bytes;
	bool is_float, is_signed;
	uint64_t inf;    /* magnitude of infinity; larger ones are NaN */
	uint64_t normal; /* the least magnitude that is not subnormal */
	uint64_t huge;   /* the magnitude of 2^64; UINT64_MAX if the type has none */
};

static struct kind kind_of(enum dcp_dtype t)
{
	switch ((int)t) {
	case DCP_DTYPE_F64:
	case DCP_DTYPE_C128:
		return (struct kind){ 8,          true,
				      true,       0x7ffULL << 52,
				      1ULL << 52, (1023ULL + 64) << 52 };
	case DCP_DTYPE_F32:
	case DCP_DTYPE_C64:
		return (struct kind){ 4, true, true, 0x7f800000, 0x800000, (127 + 64) << 23 };
	case DCP_DTYPE_F16:
	case DCP_DTYPE_C32:
		return (struct kind){ 2, true, true, 0x7c00, 0x400, UINT64_MAX };
	case DCP_DTYPE_BF16:
		return (struct kind){ 2, true, true, 0x7f80, 0x80, (127 + 64) << 7 };
	case DCP_DTYPE_I64:
		return (struct kind){ .bytes = 8, .is_signed = true };
	case DCP_DTYPE_U64:
		return (struct kind){ .bytes = 8 };
	case DCP_DTYPE_I32:
		return (struct kind){ .bytes = 4, .is_signed = true };
	case DCP_DTYPE_U32:
		return (struct kind){ .bytes = 4 };
	case DCP_DTYPE_I16:
		return (struct kind){ .bytes = 2, .is_signed = true };
	case DCP_DTYPE_U16:
		return (struct kind){ .bytes = 2 };
	default:
		return (struct kind){ .bytes = 1, .is_signed = t == DCP_DTYPE_I8 };
	}
}

bool dcp_stats_is_opaque(enum dcp_dtype t)
{
	return t == DCP_DTYPE_OTHER || t == DCP_DTYPE_F6_E2M3 || t == DCP_DTYPE_F6_E3M2;
}

unsigned dcp_stats_values(enum dcp_dtype t)
{
	return t == DCP_DTYPE_C32 || t == DCP_DTYPE_C64 || t == DCP_DTYPE_C128 ||
			       t == DCP_DTYPE_F4
		       ? 2
		       : 1;
}

void dcp_stats_init(struct dcp_stats *s)
{
	*s = (struct dcp_stats){ .first_nan = DCP_NO_INDEX,
				 .first_inf = DCP_NO_INDEX,
				 .low = INT64_MAX,
				 .high = INT64_MIN };
}

/* ---- joining ---- */

/* Add @n finite numbers from @min to @max, with this mean and sum of squared distances from it. */
static void add_numbers(struct dcp_stats *s, uint64_t n, double min, double max, double mean,
			double m2)
{
	double all = (double)s->finite + (double)n, far = mean - s->mean;

	if (n == 0)
		return;
	if (s->finite == 0) {
		s->min = min;
		s->max = max;
		s->mean = mean;
		s->m2 = m2;
	} else {
		s->min = DCP_MIN(s->min, min);
		s->max = DCP_MAX(s->max, max);
		s->m2 += m2 + far * far * ((double)s->finite * (double)n / all);
		s->mean = isfinite(far) ? s->mean + far * ((double)n / all)
					: mean * ((double)n / all) +
						  s->mean * ((double)s->finite / all);
	}
	s->finite += n;
}

void dcp_stats_join(struct dcp_stats *s, const struct dcp_stats *later)
{
	add_numbers(s, later->finite, later->min, later->max, later->mean, later->m2);
	s->n += later->n;
	s->zeros += later->zeros;
	s->subnormals += later->subnormals;
	s->nans += later->nans;
	s->infs += later->infs;
	s->huge += later->huge;
	s->first_nan = DCP_MIN(s->first_nan, later->first_nan);
	s->first_inf = DCP_MIN(s->first_inf, later->first_inf);
	s->low = DCP_MIN(s->low, later->low);
	s->high = DCP_MAX(s->high, later->high);
}

double dcp_stats_std(const struct dcp_stats *s)
{
	return s->finite ? sqrt(s->m2 / (double)s->finite) : 0;
}

double dcp_stats_norm(const struct dcp_stats *s)
{
	return sqrt(s->m2 + (double)s->finite * s->mean * s->mean);
}

/* ---- types of one byte: count each of the 256, then look at these ---- */

static double of_byte(enum dcp_dtype t, unsigned b)
{
	switch ((int)t) {
	case DCP_DTYPE_F8_E4M3:
		return (double)dcp_bits_as_float(DCP_BITS_E4M3(b));
	case DCP_DTYPE_F8_E5M2:
		return (double)dcp_bits_as_float(DCP_BITS_E5M2(b));
	case DCP_DTYPE_F8_E4M3FNUZ:
		return (double)dcp_bits_as_float(DCP_BITS_E4M3FNUZ(b));
	case DCP_DTYPE_F8_E5M2FNUZ:
		return (double)dcp_bits_as_float(DCP_BITS_E5M2FNUZ(b));
	case DCP_DTYPE_F8_E8M0:
		return (double)dcp_bits_as_float(DCP_BITS_E8M0(b));
	case DCP_DTYPE_F4:
		return (double)dcp_bits_as_float(DCP_BITS_E2M1(b));
	case DCP_DTYPE_I8:
		return (double)(int8_t)b;
	default:
		return (double)b;
	}
}

/* The first magnitude that is not subnormal. */
static double least_normal(enum dcp_dtype t)
{
	switch ((int)t) {
	case DCP_DTYPE_F8_E4M3:
		return 0x1p-6;
	case DCP_DTYPE_F8_E5M2:
		return 0x1p-14;
	case DCP_DTYPE_F8_E4M3FNUZ:
		return 0x1p-7;
	case DCP_DTYPE_F8_E5M2FNUZ:
		return 0x1p-15;
	case DCP_DTYPE_F4:
		return 1;
	default:
		return 0;
	}
}

static void put_bin(struct dcp_stats_bins *bins, double x, uint64_t n)
{
	int at = x == 0 ? 0 : ilogb(x) - DCP_STATS_BIN_LEAST;

	if (bins && x != 0)
		bins->n[x < 0][DCP_MIN(DCP_MAX(at, 0), DCP_STATS_BINS - 1)] += n;
}

/* Add @n numbers that are all @x. */
static void take_value(struct dcp_stats *s, struct dcp_stats_bins *bins, enum dcp_dtype t,
		       unsigned bits, double x, uint64_t n)
{
	int64_t key = t == DCP_DTYPE_I8 ? (int8_t)bits : (int64_t)bits;

	s->n += n;
	s->low = DCP_MIN(s->low, key);
	s->high = DCP_MAX(s->high, key);
	if (isnan(x)) {
		s->nans += n;
	} else if (isinf(x)) {
		s->infs += n;
	} else {
		s->zeros += x == 0 ? n : 0;
		s->subnormals += x != 0 && fabs(x) < least_normal(t) ? n : 0;
		s->huge += fabs(x) >= 0x1p64 && t != DCP_DTYPE_F8_E8M0 ? n : 0;
		add_numbers(s, n, x, x, x, 0);
		put_bin(bins, x, n);
	}
}

static void find_first(struct dcp_stats *s, enum dcp_dtype t, uint64_t first, const void *p,
		       size_t n)
{
	bool nan = s->nans && s->first_nan == DCP_NO_INDEX;
	bool inf = s->infs && s->first_inf == DCP_NO_INDEX;

	for (size_t i = 0; i < n && (nan || inf); i++) {
		double x = dcp_stats_number(t, p, i);

		if (nan && isnan(x)) {
			s->first_nan = first + i;
			nan = false;
		}
		if (inf && isinf(x)) {
			s->first_inf = first + i;
			inf = false;
		}
	}
}

static void add_bytes(struct dcp_stats *s, struct dcp_stats_bins *bins, enum dcp_dtype t,
		      uint64_t first, const uint8_t *p, size_t n)
{
	uint32_t count[TABLES][256] = { 0 };
	size_t i = 0;

	/* In a single table, equal neighbours would wait for each other. */
	for (; i + 8 <= n; i += 8) {
		uint64_t w;

		memcpy(&w, p + i, sizeof(w));
		count[0][w & 255]++;
		count[1][w >> 8 & 255]++;
		count[2][w >> 16 & 255]++;
		count[3][w >> 24 & 255]++;
		count[0][w >> 32 & 255]++;
		count[1][w >> 40 & 255]++;
		count[2][w >> 48 & 255]++;
		count[3][w >> 56]++;
	}
	for (; i < n; i++)
		count[0][p[i]]++;
	for (unsigned b = 0; b < 256; b++) {
		uint64_t c = (uint64_t)count[0][b] + count[1][b] + count[2][b] + count[3][b];

		if (c && t == DCP_DTYPE_F4) {
			take_value(s, bins, t, b & 15, of_byte(t, b & 15), c);
			take_value(s, bins, t, b >> 4, of_byte(t, b >> 4), c);
		} else if (c) {
			take_value(s, bins, t, b, of_byte(t, b), c);
		}
	}
	find_first(s, t, first, p, n * dcp_stats_values(t));
}

/* ---- wider types: extremes by the bits, then sums ---- */

/* The least and greatest magnitude in a block, and the least and greatest number in the order. */
struct extremes {
	uint64_t least, most;
	int64_t low, high;
};

DCP_DEFINE_RANGE(16, INT16_MAX)
DCP_DEFINE_RANGE(32, INT32_MAX)
DCP_DEFINE_RANGE(64, INT64_MAX)

/* As integers, the bits of floats are in order among numbers of one sign. The signed ends tell
 * whether both signs occur; the least and greatest numbers follow from all four ends. */
static struct extremes order_range(const struct kind *k, const struct dcp_range *r)
{
	const uint64_t top = UINT64_MAX >> (65 - 8 * k->bytes); /* all bits but the sign */
	bool some_negative = r->low < 0, some_positive = r->high >= 0;
	struct extremes e = { .low = r->low, .high = r->high };

	if (!k->is_float && !k->is_signed) {
		e.low = (int64_t)(r->least - top - 1);
		e.high = (int64_t)(r->most - top - 1);
	}
	if (!k->is_float)
		return e;
	e.least = DCP_MIN(some_positive ? r->least : top,
			  some_negative ? (uint64_t)r->low & top : top);
	e.most = DCP_MAX(some_positive ? (uint64_t)r->high : 0,
			 some_negative ? r->most & top : 0);
	e.low = some_negative ? -(int64_t)(r->most & top) - 1 : (int64_t)r->least;
	e.high = some_positive ? r->high : -(int64_t)((uint64_t)r->low & top) - 1;
	return e;
}

static void find_range(const struct kind *k, const void *p, size_t n, struct dcp_range *out)
{
	if (k->bytes == 2)
		find_16(p, n, out);
	else if (k->bytes == 4)
		find_32(p, n, out);
	else
		find_64(p, n, out);
}

/* Count the numbers whose magnitude, by their bits, is below @edge. */
static uint64_t count_below(const struct kind *k, const void *p, size_t n, uint64_t edge)
{
	uint64_t out;

	if (k->bytes == 2)
		count_below_16(p, n, edge, &out);
	else if (k->bytes == 4)
		count_below_32(p, n, edge, &out);
	else
		count_below_64(p, n, edge, &out);
	return out;
}

static uint64_t bits_of(const struct kind *k, const void *p, size_t i)
{
	return k->bytes == 2   ? ((const uint16_t *)p)[i]
	       : k->bytes == 4 ? ((const uint32_t *)p)[i]
			       : ((const uint64_t *)p)[i];
}

static uint64_t count_zeros(const struct kind *k, const void *p, size_t n)
{
	uint64_t zeros = 0;

	for (size_t i = 0; i < n; i++)
		zeros += bits_of(k, p, i) == 0;
	return zeros;
}

typedef uint32_t __attribute__((may_alias)) bits_of_float;

DCP_SIMD_BODY void widen_bf16_body(float *out, const uint16_t *p, size_t n)
{
	bits_of_float *bits = (bits_of_float *)out;

	for (size_t i = 0; i < n; i++)
		bits[i] = (uint32_t)p[i] << 16;
}
DCP_SIMD_BOTH(widen_bf16, widen_bf16_body, (float *out, const uint16_t *p, size_t n),
	      (out, p, n))

/* The exponent's bias is less by 112; multiplying by that power of two is exact for subnormal
 * numbers, too. */
DCP_SIMD_BODY void widen_f16_body(float *out, const uint16_t *p, size_t n)
{
	bits_of_float *bits = (bits_of_float *)out;

	for (size_t i = 0; i < n; i++)
		bits[i] = (uint32_t)(p[i] & 0x7fff) << 13;
	for (size_t i = 0; i < n; i++)
		out[i] *= 0x1p112f;
	for (size_t i = 0; i < n; i++)
		bits[i] |= (uint32_t)(p[i] & 0x8000) << 16 |
			   ((p[i] & 0x7fff) >= 0x7c00 ? 0x7f800000u : 0);
}
DCP_SIMD_BOTH(widen_f16, widen_f16_body, (float *out, const uint16_t *p, size_t n), (out, p, n))

DCP_DEFINE_SUM(sum_f32, float, DCP_LANES_OF_F32, (double)x[i], true)
DCP_DEFINE_SUM(sum_f64, double, DCP_LANES_OF_F64, x[i], false)
DCP_DEFINE_SUM(sum_bf16, uint16_t, DCP_LANES_OF_BF16,
	       (double)dcp_bits_as_float(dcp_bits_widen_bf16(x[i])), true)

/* A block in the form in which it is summed. */
struct block {
	_Alignas(64) float f[BLOCK];
	_Alignas(64) double d[BLOCK];
	const float *narrow; /* if neither wide nor bf16 is set */
	const double *wide;
	const uint16_t *bf16;
};

static void widen_block(struct block *b, enum dcp_dtype t, const void *p, size_t n)
{
	b->narrow = b->f;
	b->wide = NULL;
	b->bf16 = NULL;
	switch ((int)t) {
	case DCP_DTYPE_F32:
	case DCP_DTYPE_C64:
		b->narrow = p;
		return;
	case DCP_DTYPE_BF16:
		b->narrow = NULL;
		b->bf16 = p;
		return;
	case DCP_DTYPE_F16:
	case DCP_DTYPE_C32:
		widen_f16(b->f, p, n);
		return;
	case DCP_DTYPE_I16:
		for (size_t i = 0; i < n; i++)
			b->f[i] = ((const int16_t *)p)[i];
		return;
	case DCP_DTYPE_U16:
		for (size_t i = 0; i < n; i++)
			b->f[i] = ((const uint16_t *)p)[i];
		return;
	case DCP_DTYPE_I32:
		for (size_t i = 0; i < n; i++)
			b->d[i] = ((const int32_t *)p)[i];
		break;
	case DCP_DTYPE_U32:
		for (size_t i = 0; i < n; i++)
			b->d[i] = ((const uint32_t *)p)[i];
		break;
	case DCP_DTYPE_I64:
		for (size_t i = 0; i < n; i++)
			b->d[i] = (double)((const int64_t *)p)[i];
		break;
	case DCP_DTYPE_U64:
		for (size_t i = 0; i < n; i++)
			b->d[i] = (double)((const uint64_t *)p)[i];
		break;
	default: /* F64, C128 */
		b->wide = p;
		return;
	}
	b->wide = b->d;
}

static double number_at(const struct block *b, size_t i)
{
	return b->wide   ? b->wide[i]
	       : b->bf16 ? (double)dcp_bits_as_float(dcp_bits_widen_bf16(b->bf16[i]))
			 : (double)b->narrow[i];
}

static void sum_block(const struct block *b, size_t n, double mean, double *sum, double *square)
{
	if (b->wide)
		sum_f64(b->wide, n, mean, sum, square);
	else if (b->bf16)
		sum_bf16(b->bf16, n, mean, sum, square);
	else
		sum_f32(b->narrow, n, mean, sum, square);
}

/* Keep only the finite numbers of the block, one after the other. Returns their number. */
static size_t keep_finite(struct block *b, size_t n, double *min, double *max)
{
	size_t kept = 0;

	*min = INFINITY;
	*max = -INFINITY;
	for (size_t i = 0; i < n; i++) {
		double x = number_at(b, i);

		if (!isfinite(x))
			continue;
		b->d[kept++] = x;
		*min = DCP_MIN(*min, x);
		*max = DCP_MAX(*max, x);
	}
	b->wide = b->d;
	return kept;
}

/* The mean of doubles whose sum is larger than any double. */
static double mean_of_huge(const struct block *b, size_t n)
{
	const double part = 1.0 / (double)n;
	double mean = 0;

	for (size_t i = 0; i < n; i++)
		mean += number_at(b, i) * part;
	return mean;
}

/* The number at this place in the order of its type. */
static double of_key(enum dcp_dtype t, const struct kind *k, int64_t key)
{
	int64_t top = k->bytes == 8 ? INT64_MAX : (1LL << (8 * k->bytes - 1)) - 1;
	uint64_t bits = (uint64_t)(k->is_float    ? key < 0 ? key ^ top : key
				   : k->is_signed ? key
						  : key ^ (-top - 1));
	uint16_t b2 = (uint16_t)bits;
	uint32_t b4 = (uint32_t)bits;

	return dcp_stats_number(t,
				k->bytes == 2   ? (const void *)&b2
				: k->bytes == 4 ? (const void *)&b4
						: (const void *)&bits,
				0);
}

/* Are numbers put into bins by the sign and exponent in their bits? Doubles have too many
 * exponents. */
static bool has_exponents(const struct kind *k)
{
	return k->is_float && k->bytes <= 4;
}

static void put_exponents(struct dcp_stats_bins *bins, enum dcp_dtype t, const struct kind *k,
			  const void *p, size_t n)
{
	const unsigned shift = (unsigned)__builtin_ctzll(k->normal);
	const unsigned inf = (unsigned)(k->inf >> shift); /* twice the bias, plus 1 */
	uint64_t count[2][512] = { 0 }; /* in a single table, equal neighbours would wait */

	for (size_t i = 0; i < n; i++)
		count[i & 1][bits_of(k, p, i) >> shift]++;
	for (unsigned neg = 0; neg < 2; neg++)
		for (unsigned e = 1; e < inf; e++) {
			unsigned at = neg * (inf + 1) + e;

			bins->n[neg][(int)e - (int)(inf / 2) - DCP_STATS_BIN_LEAST] +=
				count[0][at] + count[1][at];
		}
	if (count[0][0] || count[1][0] || count[0][inf + 1] || count[1][inf + 1])
		for (size_t i = 0; i < n; i++)
			if ((bits_of(k, p, i) >> shift & inf) == 0)
				put_bin(bins, dcp_stats_number(t, p, i), 1);
}

static void add_block(struct dcp_stats *s, struct dcp_stats_bins *bins, enum dcp_dtype t,
		      const struct kind *k, uint64_t first, const void *p, size_t n)
{
	struct block b;
	uint64_t below;
	double min, max, mean, total, square;
	struct dcp_range range;
	bool summed = t == DCP_DTYPE_BF16 && n % 16 == 0 && dcp_simd_is_fused();
	struct extremes e;
	size_t finite = n;

	if (!summed || !dcp_survey_bf16(p, n, &range, &total, &square))
		find_range(k, p, n, &range);
	e = order_range(k, &range);
	if (n > BLOCK && e.most >= k->inf) {
		add_block(s, bins, t, k, first, p, BLOCK);
		p = (const char *)p + (size_t)BLOCK * k->bytes;
		add_block(s, bins, t, k, first + BLOCK, p, n - BLOCK);
		return;
	}
	s->n += n;
	s->low = DCP_MIN(s->low, e.low);
	s->high = DCP_MAX(s->high, e.high);
	widen_block(&b, t, p, n);
	min = of_key(t, k, e.low);
	max = of_key(t, k, e.high);
	if (!k->is_float) {
		if (min <= 0 && max >= 0)
			s->zeros += count_zeros(k, p, n);
	} else {
		if (e.least < k->normal) {
			s->zeros += below = count_below(k, p, n, 1);
			s->subnormals += count_below(k, p, n, k->normal) - below;
		}
		if (e.most >= k->huge)
			s->huge += count_below(k, p, n, k->inf) - count_below(k, p, n, k->huge);
		if (e.most >= k->inf) {
			below = count_below(k, p, n, k->inf + 1);
			s->nans += n - below;
			s->infs += below - count_below(k, p, n, k->inf);
			find_first(s, t, first, p, n);
			finite = keep_finite(&b, n, &min, &max);
			summed = false;
		}
	}
	if (!summed)
		sum_block(&b, finite, 0, &total, &square);
	mean = !finite           ? 0
	       : isfinite(total) ? total / (double)finite
				 : mean_of_huge(&b, finite);
	square -= total * mean;
	/* The difference is too small to be exact: sum the squares again, of distances from the
	 * mean. */
	if (square < 1e-3 * total * mean || !isfinite(square)) {
		sum_block(&b, finite, mean, &total, &square);
		mean += finite && isfinite(total) ? total / (double)finite : 0;
		square = isnan(square) ? INFINITY : square;
	}
	mean = DCP_MIN(DCP_MAX(mean, min), max); /* rounding may lead beyond */
	add_numbers(s, finite, min, max, mean, square);
	for (size_t i = 0; i < finite && bins && !has_exponents(k); i++)
		put_bin(bins, number_at(&b, i), 1);
}

void dcp_stats_add(struct dcp_stats *s, struct dcp_stats_bins *bins, enum dcp_dtype t,
		   uint64_t first, const void *p, size_t n)
{
	const struct kind k = kind_of(t);
	const size_t most = t == DCP_DTYPE_BF16 ? LONG_BLOCK : BLOCK;

	if (k.bytes == 1) {
		add_bytes(s, bins, t, first, p, n);
		return;
	}
	n *= dcp_stats_values(t);
	if (bins && has_exponents(&k))
		put_exponents(bins, t, &k, p, n);
	for (size_t i = 0; i < n; i += most)
		add_block(s, bins, t, &k, first + i, (const char *)p + i * k.bytes,
			  DCP_MIN(n - i, most));
}

bool dcp_stats_squares(enum dcp_dtype t, const void *p, size_t n, double *out)
{
	double total;
	struct block b;

	*out = 0;
	if (kind_of(t).bytes == 1)
		return false;
	for (size_t i = 0; i < n && isfinite(*out); i += BLOCK) {
		size_t k = DCP_MIN(n - i, (size_t)BLOCK);
		double square;

		widen_block(&b, t, (const char *)p + i * kind_of(t).bytes, k);
		sum_block(&b, k, 0, &total, &square);
		*out += square;
	}
	return isfinite(*out);
}

DCP_SIMD_BODY void double_body(double *out, const float *p, size_t n)
{
	size_t i = 0;

	for (; i + DCP_LANES <= n; i += DCP_LANES) {
		dcp_v4f f;
		dcp_v4d d;

		memcpy(&f, p + i, sizeof(f));
		d = __builtin_convertvector(f, dcp_v4d);
		memcpy(out + i, &d, sizeof(d));
	}
	for (; i < n; i++)
		out[i] = (double)p[i];
}
DCP_SIMD_BOTH(to_double, double_body, (double *out, const float *p, size_t n), (out, p, n))

void dcp_stats_widen(enum dcp_dtype t, double *out, const void *p, size_t n)
{
	struct block b;

	for (size_t i = 0; i < n; i += BLOCK) {
		size_t k = DCP_MIN(n - i, (size_t)BLOCK);

		if (kind_of(t).bytes == 1) {
			for (size_t j = i; j < i + k; j++)
				out[j] = dcp_stats_number(t, p, j);
			continue;
		}
		widen_block(&b, t, (const char *)p + i * kind_of(t).bytes, k);
		if (b.bf16)
			widen_bf16(b.f, b.bf16, k);
		if (b.wide)
			memcpy(out + i, b.wide, k * sizeof(*out));
		else
			to_double(out + i, b.bf16 ? b.f : b.narrow, k);
	}
}

double dcp_stats_number(enum dcp_dtype t, const void *p, size_t i)
{
	const uint8_t *bytes = p;

	switch ((int)t) {
	case DCP_DTYPE_F64:
	case DCP_DTYPE_C128:
		return ((const double *)p)[i];
	case DCP_DTYPE_F32:
	case DCP_DTYPE_C64:
		return (double)((const float *)p)[i];
	case DCP_DTYPE_F16:
	case DCP_DTYPE_C32:
		return (double)dcp_bits_as_float(dcp_bits_widen_f16(((const uint16_t *)p)[i]));
	case DCP_DTYPE_BF16:
		return (double)dcp_bits_as_float(dcp_bits_widen_bf16(((const uint16_t *)p)[i]));
	case DCP_DTYPE_I64:
		return (double)((const int64_t *)p)[i];
	case DCP_DTYPE_U64:
		return (double)((const uint64_t *)p)[i];
	case DCP_DTYPE_I32:
		return ((const int32_t *)p)[i];
	case DCP_DTYPE_U32:
		return ((const uint32_t *)p)[i];
	case DCP_DTYPE_I16:
		return ((const int16_t *)p)[i];
	case DCP_DTYPE_U16:
		return ((const uint16_t *)p)[i];
	case DCP_DTYPE_F4:
		return of_byte(t, bytes[i / 2] >> 4 * (i % 2) & 15);
	default:
		return of_byte(t, bytes[i]);
	}
}

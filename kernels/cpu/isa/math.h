// exp, log, tanh over sixteen lanes and sin/cos in double: our own polynomials, so that every instruction set, compiler
// and C library gives the same bits. Included only by kernels/cpu/isa/*.cpp.
#pragma once
#include <limits>

#include "../vec.h"

namespace sf::SF_ISA {

inline f32x16 horner(f32x16 x, const float* c, int n) {  // c[0] x^(n-1) + ... + c[n-1]
  f32x16 p = splat(c[0]);
  for (int i = 1; i < n; ++i) p = fma(p, x, splat(c[i]));
  return p;
}
inline f32x16 select_less(f32x16 a, f32x16 b, f32x16 yes, f32x16 no) { return select(less(a, b), yes, no); }

// e^x for |x| below 88 within 1 ulp. x = n ln2 + r with |r| <= ln2/2; e^r by its Taylor polynomial of degree 7
// (truncation error below 2^-27).
inline f32x16 exp_inside(f32x16 x) {
  constexpr float kTaylor[] = {1.f / 5040, 1.f / 720, 1.f / 120, 1.f / 24, 1.f / 6, 1.f / 2, 1.f, 1.f};
  const f32x16 n = round_even(x * splat(1.44269504f));
  f32x16 r = fnma(n, splat(0.693359375f), x);  // ln2 in two pieces: the first has few enough bits to be exact
  r = fnma(n, splat(-2.12194440e-4f), r);
  return as_f32(add_i(as_i32(horner(r, kTaylor, 8)), shl_i<23>(to_i32(n))));
}

// e^x; below -87.33 (where results would be subnormal) 0, above 88.72 infinity, NaN stays NaN.
inline f32x16 exp(f32x16 x) {
  const uint32_t nan = is_nan(x), under = less(x, splat(-87.33f)), over = less(splat(88.72f), x);
  f32x16 y = exp_inside(select(nan | under | over, splat(0.f), x));
  y = select(under, splat(0.f), y);
  y = select(over, splat(std::numeric_limits<float>::infinity()), y);
  return select(nan, x, y);
}

// The same for x <= 0, where a softmax needs it.
inline f32x16 exp_below_1(f32x16 x) {
  const uint32_t nan = is_nan(x), under = less(x, splat(-87.33f));
  return select(nan, x, select(under, splat(0.f), exp_inside(select(nan | under, splat(0.f), x))));
}

inline float exp(float x) {
  float t[16];
  store(t, exp(splat(x)));
  return t[0];
}

// 1 / (1 + e^-x)
inline f32x16 sigmoid(f32x16 x) { return splat(1.f) / (splat(1.f) + exp(splat(0.f) - x)); }

// Small |x|: odd minimax polynomial (Cephes' tanhf, error 2 ulp); otherwise 1 - 2 / (e^2|x| + 1) with the sign put
// back.
inline f32x16 tanh(f32x16 x) {
  constexpr float kOdd[] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f,
                            -3.33332819422e-1f};
  const f32x16 zero = splat(0.f), one = splat(1.f);
  f32x16 a = max(zero - x, x);  // |x|; NaN stays
  f32x16 z = a * a;
  f32x16 small = fma(horner(z, kOdd, 5) * z, a, a);
  f32x16 big = one - splat(2.f) / (exp(a + a) + one);
  f32x16 y = select_less(a, splat(0.625f), small, big);
  return select_less(x, zero, zero - y, y);
}

// Natural logarithm within 2 ulp; 0 gives -infinity, negative and NaN give NaN. x = 2^e f with sqrt(1/2) <= f <
// sqrt(2); log f by Cephes' logf polynomial.
inline f32x16 log(f32x16 x) {
  constexpr float kPoly[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                             -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                             2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
  float in[16], out[16], exponent[16], fraction[16];
  store(in, x);
  for (int i = 0; i < 16; ++i) {  // split in integers; few callers, none of them hot
    uint32_t u = bits_of(in[i]);
    int e = int(u >> 23 & 255u) - 126;
    if ((u >> 23 & 255u) == 0) {  // subnormal
      u = bits_of(in[i] * 0x1p23f);
      e = int(u >> 23 & 255u) - 126 - 23;
    }
    float f = float_of((u & 0x007fffffu) | 0x3f000000u);  // [0.5, 1)
    if (f < 0.707106781f) {
      e -= 1;
      f = f + f;
    }
    exponent[i] = float(e);
    fraction[i] = f - 1.f;
  }
  f32x16 f = load(fraction), e = load(exponent), z = f * f;
  f32x16 y = horner(f, kPoly, 9) * f * z;
  y = fma(e, splat(-2.12194440e-4f), y);
  y = fnma(splat(0.5f), z, y);
  store(out, fma(e, splat(0.693359375f), f + y));
  for (int i = 0; i < 16; ++i) {
    if (in[i] == 0.f) out[i] = -std::numeric_limits<float>::infinity();
    if (in[i] == std::numeric_limits<float>::infinity()) out[i] = in[i];
    if (in[i] != in[i] || in[i] < 0.f) out[i] = std::numeric_limits<float>::quiet_NaN();
  }
  return load(out);
}

// sin and cos in double, good to 1e-15 for |x| below 1e8: x = n pi/2 + r, with pi/2 in three pieces.
inline void sin_cos(double x, double& s, double& c) {
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  constexpr double kPiHalf[] = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110};
  const double n = std::nearbyint(x * kTwoOverPi);
  double r = std::fma(-n, kPiHalf[0], x);
  r = std::fma(-n, kPiHalf[1], r);
  r = std::fma(-n, kPiHalf[2], r);
  const double z = r * r;
  double ps = -1. / 1307674368000., pc = 1. / 20922789888000.;  // Taylor to r^15 and r^16
  constexpr double kSin[] = {1. / 6227020800., -1. / 39916800., 1. / 362880., -1. / 5040., 1. / 120., -1. / 6., 1.};
  constexpr double kCos[] = {-1. / 87178291200., 1. / 479001600., -1. / 3628800., 1. / 40320.,
                             -1. / 720.,         1. / 24.,        -0.5,           1.};
  for (double k : kSin) ps = std::fma(ps, z, k);
  for (double k : kCos) pc = std::fma(pc, z, k);
  ps = ps * r;
  const int64_t quadrant = int64_t(n) & 3;
  const double a = (quadrant & 1) ? pc : ps, b = (quadrant & 1) ? ps : pc;
  s = (quadrant & 2) ? -a : a;
  c = ((quadrant + 1) & 2) ? -b : b;
}

}  // namespace sf::SF_ISA

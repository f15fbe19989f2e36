// Elementary functions of vectors. Errors are the largest measured against double precision.
#pragma once

#include "simd.h"

namespace ingot {

// c[0] + c[1] x + c[2] x^2 + ...
template <int Terms>
inline vf polynomial(vf x, const float (&c)[Terms]) {
  vf value = splat(c[Terms - 1]);
  for (int i = Terms - 2; i >= 0; --i) value = fma(value, x, splat(c[i]));
  return value;
}

// NaN stays NaN.
inline vf clamp(vf x, float low, float high) { return min(splat(high), max(splat(low), x)); }

// e^x, relative error 2e-7. It is exactly 0 below -87, so that a masked score has no weight, and
// e^88 above 88, so that the result is never infinite.
inline vf exp(vf x) {
  constexpr float smallest = -87.0f, largest = 88.0f;
  constexpr float log2_e = 1.44269504f;
  constexpr float ln2_high = 0.693359375f;  // nine bits: exact in products with the exponent
  constexpr float ln2_low = -2.12194440e-4f;
  constexpr float terms[] = {5.0000001201e-1f, 1.6666665459e-1f, 4.1665795894e-2f,
                             8.3334519073e-3f, 1.3981999507e-3f, 1.9875691500e-4f};
  const vf clamped = clamp(x, smallest, largest);
  const vf n = round_even(clamped * splat(log2_e));
  vf r = fma(n, splat(-ln2_high), clamped);
  r = fma(n, splat(-ln2_low), r);
  const vf value = fma(polynomial(r, terms), r * r, r) + splat(1.0f);
  return zero_below(scale2(value, n), x, smallest);
}

// 2^x for x <= 127, relative error 2e-7. Exactly 1 at 0, and exactly 0 below -126.
inline vf exp2(vf x) {
  constexpr float smallest = -126.0f;
  constexpr float terms[] = {1.0f,           6.93147004e-1f, 2.40222424e-1f,
                             5.55073358e-2f, 9.67151299e-3f, 1.32647261e-3f};
  const vf clamped = max(splat(smallest), x);
  const vf n = round_even(clamped);
  return zero_below(scale2(polynomial(clamped - n, terms), n), x, smallest);
}

// 1 / (1 + e^-x)
inline vf sigmoid(vf x) { return splat(1.0f) / (splat(1.0f) + exp(zero() - x)); }

// A ratio of polynomials in x^2, times x; relative error 3e-7.
inline vf tanh(vf x) {
  constexpr float above[] = {4.89352455891786e-03f, 6.37261928875436e-04f,
                             1.48572235717979e-05f, 5.12229709037114e-08f,
                             -8.60467152213735e-11f, 2.00018790482477e-13f,
                             -2.76076847742355e-16f};
  constexpr float below[] = {4.89352518554385e-03f, 2.26843463243900e-03f,
                             1.18534705686654e-04f, 1.19825839466702e-06f};
  const vf y = clamp(x, -7.90531110763549805f, 7.90531110763549805f);
  const vf square = y * y;
  return y * polynomial(square, above) / polynomial(square, below);
}

// The Gauss error function; absolute error 2e-7.
inline vf erf(vf x) {
  constexpr float above[] = {-1.60960333262415e-02f, -2.95459980854025e-03f,
                             -7.34990630326855e-04f, -5.69250639462346e-05f,
                             -2.10102402082508e-06f, 2.77068142495902e-08f,
                             -2.72614225801306e-10f};
  constexpr float below[] = {-1.42647390514189e-02f, -7.37332916720468e-03f,
                             -1.68282697438203e-03f, -2.13374055278905e-04f,
                             -1.45660718464996e-05f};
  const vf y = clamp(x, -4.0f, 4.0f);
  const vf square = y * y;
  return y * polynomial(square, above) / polynomial(square, below);
}

// Bounds x smoothly to (-cap, cap). A value that is not finite becomes NaN: tanh would hide it.
inline vf capped(vf x, float cap) {
  return fma(x, zero(), tanh(x * splat(1.0f / cap)) * splat(cap));
}

struct Silu {
  static vf of(vf x) { return x * sigmoid(x); }
};

struct Gelu {
  static vf of(vf x) {
    return splat(0.5f) * x * (splat(1.0f) + erf(x * splat(0.70710678118654752f)));
  }
};

// x/2 (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)
struct GeluTanh {
  static vf of(vf x) {
    constexpr float two_root = 1.5957691216057308f;
    const vf cubic = fma(splat(0.044715f) * x * x, x, x);
    return x * sigmoid(splat(two_root) * cubic);
  }
};

struct Relu {
  static vf of(vf x) { return max(zero(), x); }
};

struct Relu2 {
  static vf of(vf x) { return Relu::of(x) * Relu::of(x); }
};

// ln(1 + x) of a finite x >= 0, relative error 1e-6: 128 ln(1 + r), where 1 + r is the root of
// 1 + x seven times over. Written as x / (1 + root), r loses no digits where x is small.
inline vf log1p(vf x) {
  constexpr float terms[] = {2.0f, 2.0f / 3, 2.0f / 5, 2.0f / 7, 2.0f / 9, 2.0f / 11};
  vf r = x;
  for (int i = 0; i < 7; ++i) r = r / (splat(1.0f) + sqrt(splat(1.0f) + r));
  const vf t = r / (splat(2.0f) + r);
  return splat(128.0f) * t * polynomial(t * t, terms);
}

struct Log1pRelu {
  static vf of(vf x) { return log1p(Relu::of(x)); }
};

struct Sigmoid {
  static vf of(vf x) { return sigmoid(x); }
};

struct Tanh {
  static vf of(vf x) { return tanh(x); }
};

// ln(1 + e^x), relative error 3e-7: max(0, x) + ln(1 + t), t = e^-|x|, as 2 atanh(t / (2 + t)). It
// is exactly 0 below -87.
struct Softplus {
  static vf of(vf x) {
    constexpr float terms[] = {2.0f, 0.66666317f, 0.400249094f, 0.279606044f, 0.281783313f};
    const vf t = exp(zero() - larger_magnitude(zero(), x));
    const vf s = t / (splat(2.0f) + t);
    return fma(s, polynomial(s * s, terms), max(zero(), x));
  }
};

struct Identity {
  static vf of(vf x) { return x; }
};

// Of an integer from 1 on, in double: ln(2^n * m) = n * ln(2) + 2 * atanh((m - 1) / (m + 1)).
inline float natural_log(int number) {
  constexpr double ln_2 = 0.69314718055994530942;
  double mantissa = number, result = 0;
  for (; mantissa > 1.5; mantissa *= 0.5) result += ln_2;
  const double t = (mantissa - 1) / (mantissa + 1), s = t * t;
  const double series = 1.0 + s * (1.0 / 3 + s * (1.0 / 5 + s * (1.0 / 7 + s * (1.0 / 9
      + s * (1.0 / 11 + s * (1.0 / 13 + s / 15))))));
  return static_cast<float>(result + 2 * t * series);
}

struct Angle {
  float cosine, sine;
};

// Reduced in double: float32 arguments of up to 1e9 radians keep an absolute error of 1e-7.
inline Angle angle(float radians) {
  constexpr double two_over_pi = 0.63661977236758134308;
  constexpr double half_pi_high = 1.57079632673412561417;  // 33 bits: exact in products with n
  constexpr double half_pi_low = 6.07710050650619224932e-11;
  constexpr double shift = 6755399441055744.0;  // 1.5 * 2^52 leaves an integer
  const double x = static_cast<double>(radians);
  const double shifted = x * two_over_pi + shift;
  const double n = shifted - shift;
  const double r = (x - n * half_pi_high) - n * half_pi_low;
  const double s = r * r;
  const double sine =
      r + r * s * (-1.0 / 6 + s * (1.0 / 120 + s * (-1.0 / 5040 + s * (1.0 / 362880))));
  const double cosine =
      1.0 + s * (-0.5 + s * (1.0 / 24 + s * (-1.0 / 720 + s * (1.0 / 40320 - s / 3628800))));
  const auto quadrant = static_cast<std::int64_t>(n) & 3;
  const double turned_sine = (quadrant & 1) != 0 ? cosine : sine;
  const double turned_cosine = (quadrant & 1) != 0 ? sine : cosine;
  return {static_cast<float>(quadrant == 1 || quadrant == 2 ? -turned_cosine : turned_cosine),
          static_cast<float>(quadrant >= 2 ? -turned_sine : turned_sine)};
}

}  // namespace ingot

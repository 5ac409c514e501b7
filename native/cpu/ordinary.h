// What a graph's training step does besides recurrent layers and products, in float32 on the team: the cross entropy of
// classes, Adam's step, rows added up by number. Work is divided so that every number is made by one thread in one order.
#pragma once

#include <limits>

#include "cpu/run.h"

namespace gatewise {
namespace GATEWISE_ISA {

// Runs body(range of the parts) on as many threads as `work`, in elements, is worth.
template <class Body>
void share(int64_t parts, int64_t work, const Body& body) {
  constexpr int64_t worth_a_thread = 8192;
  Claim claim(static_cast<int>(std::min<int64_t>({threads(), 1 + work / worth_a_thread, std::max<int64_t>(parts, 1)})));
  claim.run([&](int id) { body(part(parts, claim.size(), id)); });
}

// Per row of [M, C]: loss = log of the sum of exponentials, less the logit of the row's class; and the softmax if wanted.
inline void cross_entropy(const Classes& call) {
  using V = Vec<float>;
  share(call.M, call.M * call.C * 4, [&](const Range& rows) {
    const int64_t C = call.C, whole = C / V::lanes * V::lanes;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const float* x = call.source + row * C;
      V best(-std::numeric_limits<float>::infinity());
      for (int64_t at = 0; at < whole; at += V::lanes) {
        const V value = V::load(x + at);
        best = select(best < value, value, best);
      }
      float top = -std::numeric_limits<float>::infinity();
      for (int i = 0; i < V::lanes; ++i) top = top < best.v[i] ? best.v[i] : top;
      for (int64_t at = whole; at < C; ++at) top = top < x[at] ? x[at] : top;
      V sums(0.0);
      for (int64_t at = 0; at < C; at += V::lanes) {
        const V away = load_units<float>(x, DType::float32, at, C - at) - V(top);
        V power = select(away < V(-87.3), V(0.0), exp(away));  // an impossible class stays impossible
        if (at == whole) power = only_units(power, C - at);
        sums = sums + power;
        if (call.soft_max != nullptr) store_units<float>(call.soft_max, DType::float32, row * C + at, power, C - at);
      }
      float total = 0;
      for (int i = 0; i < V::lanes; ++i) total += sums.v[i];
      call.losses[row] = std::log(total) - (x[call.labels[row]] - top);
      if (call.soft_max == nullptr) continue;
      for (int64_t at = 0; at < C; at += V::lanes) {
        const V power = load_units<float>(call.soft_max, DType::float32, row * C + at, C - at);
        store_units<float>(call.soft_max, DType::float32, row * C + at, power / V(total), C - at);
      }
    }
  });
}

inline void adam(const Adam& call) {
  using V = Vec<float>;
  const V keep1(call.beta1), take1(1.0 - call.beta1), keep2(call.beta2), take2(1.0 - call.beta2);
  const V epsilon(call.epsilon), step(call.step);
  const int64_t vectors = (call.count + V::lanes - 1) / V::lanes;
  share(vectors, call.count * 4, [&](const Range& range) {
    for (int64_t at = range.begin * V::lanes; at < std::min(range.end * V::lanes, call.count); at += V::lanes) {
      const int64_t left = call.count - at;
      const auto load = [&](const float* from) { return load_units<float>(from, DType::float32, at, left); };
      const auto store = [&](float* to, const V& value) { store_units<float>(to, DType::float32, at, value, left); };
      const V gradient = load(call.gradient);
      const V momentum = load(call.momentum) * keep1 + gradient * take1;
      const V velocity = load(call.velocity) * keep2 + gradient * gradient * take2;
      V root;
      for (int i = 0; i < V::lanes; ++i) root.v[i] = std::sqrt(velocity.v[i]);
      store(call.new_momentum, momentum);
      store(call.new_velocity, velocity);
      store(call.new_values, load(call.values) - momentum / (root + epsilon) * step);
    }
  });
}

// sums[index[m]][:] += rows[m][:] for m in ascending order; each thread has columns of its own.
inline void add_rows(const Rows& call) {
  using V = Vec<float>;
  share((call.width + 15) / 16, call.M * call.width, [&](const Range& range) {
    const int64_t begin = range.begin * 16, end = std::min(range.end * 16, call.width);
    for (int64_t m = 0; m < call.M; ++m) {
      float* to = call.sums + call.index[m] * call.width;
      const float* from = call.rows + m * call.width;
      int64_t at = begin;
      for (; at + V::lanes <= end; at += V::lanes) (V::load(to + at) + V::load(from + at)).store(to + at);
      for (; at < end; ++at) to[at] += from[at];
    }
  });
}

}  // namespace GATEWISE_ISA
}  // namespace gatewise

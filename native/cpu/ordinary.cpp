// Compiled once per instruction set, into the namespace GATEWISE_ISA.
#include "cpu/ordinary.h"

#include <limits>

#include "cpu/matrix.h"
#include "cpu/run.h"

namespace gatewise {
namespace GATEWISE_ISA {

// The sum of a vector's lanes, in a fixed order.
GATEWISE_INLINE float sum_of_lanes(const Vec<float>& v) {
  typedef float Quarter __attribute__((vector_size(16)));
  constexpr int parts = GATEWISE_VECTOR_BYTES / 16;
  Quarter part[parts];
  std::memcpy(part, &v.v, sizeof v.v);
  Quarter sum = part[0];
#pragma GCC unroll 4
  for (int i = 1; i < parts; ++i) sum += part[i];
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

// Runs body(range of the parts) on as many threads as `work` is worth: about one element's share of an exponential or a root
// each. Threads that sleep take longer to wake than some ten thousand elements to copy or add.
template <class Body>
void share(int64_t parts, int64_t work, const Body& body) {
  constexpr int64_t worth_a_thread = 8192;
  Claim claim(static_cast<int>(std::min<int64_t>({threads(), 1 + work / worth_a_thread, std::max<int64_t>(parts, 1)})));
  claim.run([&](int id) { body(part(parts, claim.size(), id)); });
}

template <class Real>
void product_of(const Product& call) {
  Arena& arena = thread_arena();
  constexpr double worth_a_thread = 1e5;  // multiplications that take as long as waking one
  const double work = static_cast<double>(call.M) * static_cast<double>(call.N) * static_cast<double>(call.K);
  Claim claim(static_cast<int>(std::min<double>(threads(), 1.0 + work / worth_a_thread)));
  MatrixRun<Real> run(call, arena);
  run.plan(claim.size());
  claim.run([&](int id) {
    if (id < run.team) run.thread(id);
  });
  arena.end();
}

void product(const Product& call) {
  call.dtype == DType::float64 ? product_of<double>(call) : product_of<float>(call);
}

// Per row of [M, C]: loss = log of the sum of exponentials, less the logit of the row's class; and the softmax if wanted.
void cross_entropy(const Classes& call) {
  using V = Vec<float>;
  share(call.M, call.M * call.C * 4, [&](const Range& rows) {
    const int64_t C = call.C, whole = C / V::lanes * V::lanes;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const float* x = call.source + row * C;
      float top = -std::numeric_limits<float>::infinity();
      if (whole > 0) {
        V best = V::load(x);
        for (int64_t at = V::lanes; at < whole; at += V::lanes) {
          const V value = V::load(x + at);
          best = select(best < value, value, best);
        }
        for (int i = 0; i < V::lanes; ++i) top = top < best.v[i] ? best.v[i] : top;
      }
      for (int64_t at = whole; at < C; ++at) top = top < x[at] ? x[at] : top;
      V sums(0.0);
      for (int64_t at = 0; at < C; at += V::lanes) {
        const V away = load_units<float>(x, DType::float32, at, C - at) - V(top);
        V power = select(away < V(-87.3), V(0.0), exp(away));  // an impossible class stays impossible
        if (at == whole) power = only_units(power, C - at);
        sums = sums + power;
        if (call.soft_max != nullptr) store_units<float>(call.soft_max, DType::float32, row * C + at, power, C - at);
      }
      const float total = sum_of_lanes(sums);
      call.losses[row] = std::log(total) - (x[call.labels[row]] - top);
      if (call.soft_max == nullptr) continue;
      const V part(1.0 / static_cast<double>(total));
      for (int64_t at = 0; at < C; at += V::lanes) {
        const V power = load_units<float>(call.soft_max, DType::float32, row * C + at, C - at);
        store_units<float>(call.soft_max, DType::float32, row * C + at, power * part, C - at);
      }
    }
  });
}

// Per row of [M, C]: the softmax less 1 at the row's class, times the gradient of the row's loss.
void cross_entropy_gradient(const ClassGradients& call) {
  using V = Vec<float>;
  share(call.M, call.M * call.C, [&](const Range& rows) {
    const int64_t C = call.C;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const float gradient = call.gradients[row * call.stride];
      for (int64_t at = 0; at < C; at += V::lanes) {
        const V y = load_units<float>(call.soft_max, DType::float32, row * C + at, C - at);
        store_units<float>(call.result, DType::float32, row * C + at, y * V(gradient), C - at);
      }
      call.result[row * C + call.labels[row]] -= gradient;
    }
  });
}

void adam(const Adam& call) {
  using V = Vec<float>;
  const V keep1(call.beta1), take1(1.0 - call.beta1), keep2(call.beta2), take2(1.0 - call.beta2);
  const V epsilon(call.epsilon), step(call.step), scale(call.scale);
  int64_t vectors = 0;
  for (const Adam::Arrays& each : call.all) vectors += (each.count + V::lanes - 1) / V::lanes;
  share(vectors, vectors * V::lanes * 2, [&](const Range& range) {
    int64_t first = 0;  // vector of all, of the arrays that follow
    for (const Adam::Arrays& each : call.all) {
      const int64_t begin = std::max(range.begin - first, int64_t(0)) * V::lanes;
      const int64_t end = std::min((range.end - first) * V::lanes, each.count);
      first += (each.count + V::lanes - 1) / V::lanes;
      for (int64_t at = begin; at < end; at += V::lanes) {
        const int64_t left = each.count - at;
        const auto load = [&](const float* from) { return load_units<float>(from, DType::float32, at, left); };
        const auto store = [&](float* to, const V& value) { store_units<float>(to, DType::float32, at, value, left); };
        const V gradient = load(each.gradient) * scale;
        const V momentum = load(each.momentum) * keep1 + gradient * take1;
        const V velocity = load(each.velocity) * keep2 + gradient * gradient * take2;
        V root;
        for (int i = 0; i < V::lanes; ++i) root.v[i] = std::sqrt(velocity.v[i]);
        store(each.new_momentum, momentum);
        store(each.new_velocity, velocity);
        store(each.new_values, load(each.values) - momentum / (root + epsilon) * step);
      }
    }
  });
}

// sums[index[m]][:] += rows[m][:] for m in ascending order; each thread has columns of its own.
void add_rows(const Rows& call) {
  using V = Vec<float>;
  share((call.width + 15) / 16, call.M * call.width / 8, [&](const Range& range) {
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

// to[m][:] = from[index[m]][:], in bytes.
void take_rows(const TakenRows& call) {
  share(call.M, call.M * call.bytes / 64, [&](const Range& range) {
    for (int64_t m = range.begin; m < range.end; ++m) {
      std::memcpy(call.to + m * call.bytes, call.from + call.index[m] * call.bytes, call.bytes);
    }
  });
}

// Of a run of numbers: its sum, or that of its squares.
template <bool SQUARES>
float sum_of(const float* from, int64_t count) {
  using V = Vec<float>;
  constexpr int many = 4;  // sums at once, for a sum takes a while
  V parts[many] = {V(0.0), V(0.0), V(0.0), V(0.0)};
  const auto add = [](V& sum, const V& x) { sum = SQUARES ? sum + x * x : sum + x; };
  int64_t at = 0;
  for (; at + many * V::lanes <= count; at += many * V::lanes) {
    for (int i = 0; i < many; ++i) add(parts[i], V::load(from + at + i * V::lanes));
  }
  for (int i = 0; at < count; at += V::lanes, ++i) add(parts[i], load_units<float>(from, DType::float32, at, count - at));
  return sum_of_lanes((parts[0] + parts[1]) + (parts[2] + parts[3]));
}

// The columns of [M, C], or for one column everything: blocks of numbers first, then the blocks' sums.
void sums(const Sums& call) {
  using V = Vec<float>;
  if (call.C == 1) {
    constexpr int64_t block = 4096;
    double total = 0;
    for (int64_t at = 0; at < call.M; at += block) {
      const int64_t count = std::min(block, call.M - at);
      total += call.squares ? sum_of<true>(call.source + at, count) : sum_of<false>(call.source + at, count);
    }
    call.sums[0] = static_cast<float>(total);
    return;
  }
  constexpr int64_t width = 64 / sizeof(float);  // a cache line of columns is the least a thread takes
  share((call.C + width - 1) / width, call.M * call.C / 8, [&](const Range& range) {
    const int64_t begin = range.begin * width, end = std::min(range.end * width, call.C);
    for (int64_t at = begin; at < end; at += V::lanes) {
      const int64_t left = end - at;
      V parts[4] = {V(0.0), V(0.0), V(0.0), V(0.0)};
      for (int64_t m = 0; m < call.M; ++m) {
        const V x = load_units<float>(call.source, DType::float32, m * call.C + at, left);
        parts[m % 4] = call.squares ? parts[m % 4] + x * x : parts[m % 4] + x;
      }
      store_units<float>(call.sums, DType::float32, at, (parts[0] + parts[1]) + (parts[2] + parts[3]), left);
    }
  });
}

}  // namespace GATEWISE_ISA
}  // namespace gatewise

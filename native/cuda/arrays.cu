// Kernels that know arrays and nothing of cells: copies, and a plain product for machines without cuBLAS.
#include "scalar.cuh"

using namespace gatewise;
using E = GATEWISE_ELEMENT;
using Result = GATEWISE_RESULT_ELEMENT;
using V = typename E::Value;

// to[i, j, k] = from[i, j, k] by strides, in [size_i, size_j, size_k]; zero where i >= lengths[j] if lengths are given.
// `to` is contiguous along k.
struct Copy {
  const void* from;
  void* to;
  i64 size_i, size_j, size_k, stride_i, stride_j, stride_k, to_i, to_j;
  const void* lengths;
  i64 lengths_type, lengths_stride;
};

// `Index` is as narrow as the size allows: divisions of 64-bit numbers would take longer than all the rest.
template <class Item, class Index>
__device__ __forceinline__ void copy_items(const Copy& c) {
  const Item* from = static_cast<const Item*>(c.from);
  Item* to = static_cast<Item*>(c.to);
  const Index size_j = c.size_j, size_k = c.size_k, total = c.size_i * c.size_j * c.size_k;
  for (Index at = Index(blockIdx.x) * blockDim.x + threadIdx.x; at < total; at += Index(gridDim.x) * blockDim.x) {
    const Index row = at / size_k, k = at - row * size_k, i = row / size_j, j = row - i * size_j;
    const bool taken = c.lengths == nullptr || i64(i) < read_integer(c.lengths, c.lengths_type, j * c.lengths_stride);
    to[i * c.to_i + j * c.to_j + k] = taken ? from[i * c.stride_i + j * c.stride_j + k * c.stride_k] : Item{};
  }
}

template <class Item>
__device__ __forceinline__ void copy_all(const Copy& c) {
  if (c.size_i * c.size_j * c.size_k < 0x7f000000) {  // and a stride more still fits
    copy_items<Item, u32>(c);
  } else {
    copy_items<Item, i64>(c);
  }
}

extern "C" __global__ void __launch_bounds__(256)
    copy(const void* from, void* to, i64 size_i, i64 size_j, i64 size_k, i64 stride_i, i64 stride_j, i64 stride_k, i64 to_i,
         i64 to_j, const void* lengths, i64 lengths_type, i64 lengths_stride) {
  Copy c{from, to, size_i, size_j, size_k, stride_i, stride_j, stride_k, to_i, to_j, lengths, lengths_type, lengths_stride};
  constexpr i64 WHOLE = 16 / sizeof(Storage<E>);  // elements in 16 bytes, taken at a time if all lie so
  const i64 places = reinterpret_cast<i64>(from) | reinterpret_cast<i64>(to);
  if (stride_k == 1 && places % 16 == 0 && (size_k | stride_i | stride_j | to_i | to_j) % WHOLE == 0) {
    c.size_k /= WHOLE, c.stride_i /= WHOLE, c.stride_j /= WHOLE, c.to_i /= WHOLE, c.to_j /= WHOLE;
    copy_all<uint4>(c);
  } else {
    copy_all<Storage<E>>(c);
  }
}

// c[i, j] = sum over k of a[i, k] b[k, j], by strides; sums in V, k in order.
extern "C" __global__ void __launch_bounds__(256)
    multiply(const Storage<E>* a, const Storage<E>* b, Storage<Result>* c, i64 rows, i64 columns, i64 length, i64 a_i, i64 a_k,
             i64 b_k, i64 b_j, i64 c_i) {
  __shared__ V left[64][17], right[16][65];
  const i64 i0 = i64(blockIdx.y) * 64, j0 = i64(blockIdx.x) * 64;
  const int ti = threadIdx.x / 16, tj = threadIdx.x % 16;
  V sums[4][4] = {};
  for (i64 start = 0; start < length; start += 16) {
    for (int q = threadIdx.x; q < 1024; q += 256) {
      // Neighbouring threads go along the contiguous side.
      const int li = a_k == 1 ? q / 16 : q % 64, lk = a_k == 1 ? q % 16 : q / 64;
      left[li][lk] = i0 + li < rows && start + lk < length ? E::load(a[(i0 + li) * a_i + (start + lk) * a_k]) : V(0);
      const int rk = b_j == 1 ? q / 64 : q % 16, rj = b_j == 1 ? q % 64 : q / 16;
      right[rk][rj] = j0 + rj < columns && start + rk < length ? E::load(b[(start + rk) * b_k + (j0 + rj) * b_j]) : V(0);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 16; ++k) {
#pragma unroll
      for (int q = 0; q < 16; ++q) sums[q / 4][q % 4] += left[ti + 16 * (q / 4)][k] * right[k][tj + 16 * (q % 4)];
    }
    __syncthreads();
  }
#pragma unroll
  for (int q = 0; q < 16; ++q) {
    const i64 i = i0 + ti + 16 * (q / 4), j = j0 + tj + 16 * (q % 4);
    if (i < rows && j < columns) c[i * c_i + j] = Result::store(sums[q / 4][q % 4]);
  }
}

// Kernels that know arrays and nothing of cells: copies, and a plain product for machines without cuBLAS.
#include "scalar.cuh"

using namespace gatewise;
using E = GATEWISE_ELEMENT;
using Result = GATEWISE_RESULT_ELEMENT;
using V = typename E::Value;

// to[i, j, k] = from[i, j, k] by strides, in [size_i, size_j, size_k]; zero where i >= lengths[j] if lengths are given.
// `to` is contiguous along k. `Index` is as narrow as the size allows: divisions of 64-bit numbers would take longer than all
// the rest.
template <class Index>
__device__ __forceinline__ void copy_all(const Storage<E>* from, Storage<E>* to, i64 size_i, Index size_j, Index size_k,
                                         i64 stride_i, i64 stride_j, i64 stride_k, i64 to_i, i64 to_j, const void* lengths,
                                         i64 lengths_type, i64 lengths_stride) {
  const Index total = size_i * size_j * size_k, stride = Index(gridDim.x) * blockDim.x;
  for (Index at = Index(blockIdx.x) * blockDim.x + threadIdx.x; at < total; at += stride) {
    const Index row = at / size_k, k = at - row * size_k, i = row / size_j, j = row - i * size_j;
    const bool taken = lengths == nullptr || i64(i) < read_integer(lengths, lengths_type, j * lengths_stride);
    to[i * to_i + j * to_j + k] = taken ? from[i * stride_i + j * stride_j + k * stride_k] : Storage<E>(0);
  }
}

extern "C" __global__ void __launch_bounds__(256)
    copy(const Storage<E>* from, Storage<E>* to, i64 size_i, i64 size_j, i64 size_k, i64 stride_i, i64 stride_j, i64 stride_k,
         i64 to_i, i64 to_j, const void* lengths, i64 lengths_type, i64 lengths_stride) {
  if (size_i * size_j * size_k < 0x7f000000) {  // and a stride more still fits
    copy_all<u32>(from, to, size_i, size_j, size_k, stride_i, stride_j, stride_k, to_i, to_j, lengths, lengths_type,
                  lengths_stride);
  } else {
    copy_all<i64>(from, to, size_i, size_j, size_k, stride_i, stride_j, stride_k, to_i, to_j, lengths, lengths_type,
                  lengths_stride);
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

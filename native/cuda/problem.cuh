// One call as the kernels see it. The engine compiles every kernel for one cell, one set of activations, one element
// type and one H, given as macros; everything else arrives in `Arguments`.
#pragma once
#include "scalar.cuh"
// The cells look the functions above up where they are declared.
#include "cells.h"

namespace gatewise {

using Cell = GATEWISE_CELL_NAME;
using Activations = FixedActivations<GATEWISE_ACTIVATIONS>;
using E = GATEWISE_ELEMENT;        // of every array the caller sees
using X = GATEWISE_INPUT_ELEMENT;  // of the projected input
using V = typename E::Value;

constexpr int H = GATEWISE_H;
constexpr int HP = GATEWISE_HP;  // units with padding, per gate and direction, in the arrays of operands and of du
constexpr int G = Cell::gates;
constexpr int PHASES = Cell::phases;
constexpr int SLOT[] = {GATEWISE_SLOTS};  // place of each gate in the caller's order

// Place of a phase's first gate in the caller's order; a phase's gates are neighbours in every order.
template <int PHASE>
constexpr int first_slot() {
  int first = G;
  for (int g = 0; g < Cell::gate_count[PHASE]; ++g) {
    const int slot = SLOT[Cell::first_gate[PHASE] + g];
    first = slot < first ? slot : first;
  }
  return first;
}

// Every field is 8 bytes wide: the engine packs them as one row of integers, in this order. Pointers are null where an
// argument was not given or a result is not wanted. Gates are in the caller's order in every array. A row is (t, n).
struct Arguments {
  i64 T, N, D;
  i64 backwards;  // bit d: direction d runs from the last step to the first
  const Storage<X>* x;  // [T, N, D, G, H]: x W^T, or the source itself
  const Storage<E>* bias;            // [D, G, H]
  const Storage<E>* peephole;        // [D, G, H]
  const Storage<E>* secondary_bias;  // [D, H]
  const Storage<E>* init_state;      // [N, D, H]
  const Storage<E>* init_cell;       // [N, D, H]
  const Storage<E>* mask;            // [T, N, D*H] by strides in elements, 0 where it is broadcast
  i64 mask_t, mask_n, mask_k;
  const void* lengths;  // [N] of integers of this type (read_integer)
  i64 lengths_type, lengths_stride;
  const unsigned char* resets;  // [T, N] by strides
  i64 resets_t, resets_n;
  const Storage<E>* recurrent_weight;  // [D, G, H, H]
  uint4* weights;                      // the same, in the order the tensor cores take them (tiles.cuh)
  i64 look_after;  // persistent kernels: cycles between handing operands on and looking for those of others (exchange.cuh)
  u32* exchange;   // persistent kernels: operands that blocks hand each other (exchange.cuh, wide.cuh)
  u32* counters;   // wide kernels: how many have handed on, and parts of sums
  uint4* parts;
  Storage<E>* state;    // [T, N, D, H]: result of the forward kernels, argument of the gradient kernels; the next two too
  Storage<E>* cell;     // [T, N, D, H]
  Storage<E>* z_state;  // [T, N, D, G, H]
  // [T, N, D, HP]: the operand of each phase's product, at the step that takes it, for the gradients: `operands` fills it, zero
  // where a row does not take part. The forward per-step kernels have only that of one step, [N, D, H].
  Storage<E>* operand0;
  Storage<E>* operand1;
  V* carry;       // per-step kernels: planes of [N, D, H] that live from launch to launch
  const V* sums;  // per-step kernels: the recurrent product, [N, D, G, H] forward and [N, D, H] for gradients
  const Storage<E>* source_gradient;         // [T, N, D, H]
  const Storage<E>* state_gradient;          // [N, D, H]
  const Storage<E>* cell_gradient;           // [N, D, H]
  const Storage<E>* cell_sequence_gradient;  // [T, N, D, H]
  const Storage<E>* z_state_gradient;        // [T, N, D, G, H]
  const Storage<E>* product;  // [T, N, D, H]: recurrent product of the last gate, where the cell needs it
  Storage<E>* du;             // [T, N, D, G, HP]: result
  Storage<E>* dx;             // [T, N, D, G, H]: result, null if du serves
  Storage<E>* init_state_gradient;  // [N, D, H]
  Storage<E>* init_cell_gradient;   // [N, D, H]
};

// In persistent kernels, a block that waits for another gives up after this many fruitless looks (half a minute and more) and
// stops the whole kernel.
constexpr u32 PATIENCE = 1u << 26;

__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// Which block of a persistent kernel this is: block p of one of the groups of `blocks`, for direction d.
struct Position {
  int p, d, group;
  int start_time, pace;  // time of the first step, and how it changes: 1 or -1

  __device__ __forceinline__ Position(const Arguments& a, int blocks) {
    p = blockIdx.x % blocks;
    d = blockIdx.x / blocks % int(a.D);
    group = blockIdx.x / blocks / int(a.D);
    const bool backwards = (int(a.backwards) >> d) & 1;
    start_time = backwards ? int(a.T) - 1 : 0;
    pace = backwards ? -1 : 1;
  }
  __device__ __forceinline__ int time(int step) const { return start_time + pace * step; }
};

// The input time of a direction's step number `step`.
__device__ __forceinline__ int time_of(const Arguments& a, int d, int step) {
  return (int(a.backwards) >> d) & 1 ? int(a.T) - 1 - step : step;
}

// Which optional arguments there are. Kernels for which speed matters are compiled for one set of them
// (GATEWISE_OPTIONS, a bit for each); the others look at the pointers.
enum Option { BIAS, MASK, LENGTHS, RESETS, GATE_GRADIENT, CELL_GRADIENT };

template <Option OPTION>
__device__ __forceinline__ bool given(const void* pointer) {
#ifdef GATEWISE_OPTIONS
  return (GATEWISE_OPTIONS >> OPTION) & 1;
#else
  return pointer != nullptr;
#endif
}

// Steps the row takes part in. Nobody checked the values, so they are kept within the sequence here.
__device__ __forceinline__ int length_of(const Arguments& a, i64 n) {
  if (!given<LENGTHS>(a.lengths)) return int(a.T);
  const i64 length = read_integer(a.lengths, a.lengths_type, n * a.lengths_stride);
  return int(length < 0 ? 0 : length < a.T ? length : a.T);
}

}  // namespace gatewise

// One call as the Python side hands it over: sizes, options and contiguous buffers. Nothing here depends on the
// instruction set. Letters: T steps, N rows, I input features, H units, D directions, G gates.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "cpu/constant.h"

namespace gatewise {

enum class DType : int { float32 = 0, float16 = 1, bfloat16 = 2, float64 = 3 };

constexpr int size_of(DType dtype) {
  return dtype == DType::float64 ? 8 : dtype == DType::float32 ? 4 : 2;
}

struct Call {
  bool gradient = false;
  int cell = 0;  // number in GATEWISE_CELLS
  int activation[5] = {0, 0, 0, 0, 0};
  int slot[4] = {0, 0, 0, 0};  // packed position of each of the cell's gates
  DType dtype = DType::float32;
  int64_t T = 0, N = 0, I = 0, H = 0;
  int D = 1;
  bool backwards[2] = {false, true};  // per direction: runs from the last step to the first

  // Inputs, row-major and contiguous; null where not given.
  const void* source = nullptr;            // [T, N, I], or [T, N, D*G*H] without input_weight
  const void* recurrent_weight = nullptr;  // [D, G*H, H]
  const void* input_weight = nullptr;      // [D, G*H, I]
  Constant* recurrent_constant = nullptr;  // where that weight is one
  Constant* input_constant = nullptr;
  const void* bias = nullptr;              // [D, G*H]
  const void* init_state = nullptr;        // [N, D*H]
  const void* init_cell = nullptr;         // [N, D*H]
  const void* mask = nullptr;              // strides below, in elements; 0 along a broadcast axis
  int64_t mask_stride[3] = {0, 0, 0};
  const void* peephole = nullptr;          // [D, G*H]
  const void* secondary_bias = nullptr;    // [D, H]
  const int64_t* lengths = nullptr;        // [N]
  const uint8_t* resets = nullptr;         // [T, N]

  // Forward results; null where not asked for.
  void* state = nullptr;    // [T, N, D*H]
  void* cell_out = nullptr; // [T, N, D*H]
  void* z_state = nullptr;  // [T, N, D*G*H]

  // Gradient inputs (z_state, cell and output as the forward call made them) and results.
  const void* source_gradient = nullptr;         // [T, N, D*H]
  const void* state_gradient = nullptr;          // [N, D*H]
  const void* cell_gradient = nullptr;           // [N, D*H]
  const void* z_given = nullptr;                 // [T, N, D*G*H]
  const void* cell_given = nullptr;              // [T, N, D*H]
  const void* output_given = nullptr;            // [T, N, D*H]
  const void* cell_sequence_gradient = nullptr;  // [T, N, D*H]
  const void* z_state_gradient = nullptr;        // [T, N, D*G*H]
  void* d_source = nullptr;
  void* d_recurrent_weight = nullptr;
  void* d_input_weight = nullptr;
  void* d_bias = nullptr;
  void* d_peephole = nullptr;
  void* d_init_state = nullptr;
  void* d_init_cell = nullptr;
  void* d_secondary_bias = nullptr;

  // Whether row n takes part in step t, and whether it starts afresh there.
  bool active(int64_t t, int64_t n) const { return lengths == nullptr || t < lengths[n]; }
  bool reset(int64_t t, int64_t n) const { return resets != nullptr && resets[t * N + n] != 0; }
};

// A matrix product C[M, N] = A[M, K] B[K, N], of float32 or float64, to which a row is added if there is one. A and B have
// any strides, in elements; C is contiguous.
struct Product {
  DType dtype = DType::float32;
  int64_t M = 0, N = 0, K = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  int64_t a_row = 0, a_column = 0, b_row = 0, b_column = 0;
  const void* row = nullptr;  // [N], or null
  void* c = nullptr;
};

// The rest of a graph's training step (ordinary.h); contiguous float32.
struct Classes {
  int64_t M = 0, C = 0;
  const float* source = nullptr;    // [M, C]
  const int64_t* labels = nullptr;  // [M], each below C
  float* losses = nullptr;          // [M]
  float* soft_max = nullptr;        // [M, C], or null
};
struct ClassGradients {
  int64_t M = 0, C = 0;
  const float* soft_max = nullptr;   // [M, C]
  const int64_t* labels = nullptr;   // [M], each below C
  const float* gradients = nullptr;  // of the losses: [M], or one for all
  int64_t stride = 0;                // of those: 1 or 0
  float* result = nullptr;           // [M, C]
};
struct Adam {
  struct Arrays {
    int64_t count = 0;
    const float *values = nullptr, *momentum = nullptr, *velocity = nullptr, *gradient = nullptr;
    float *new_values = nullptr, *new_momentum = nullptr, *new_velocity = nullptr;
  };
  double beta1 = 0, beta2 = 0, epsilon = 0, step = 0;  // step: the learning rate with both corrections
  double scale = 1;                                    // of the gradient
  std::vector<Arrays> all;
};
struct Rows {
  int64_t M = 0, width = 0;
  const float* rows = nullptr;     // [M, width]
  const int64_t* index = nullptr;  // [M], each below the rows of sums
  float* sums = nullptr;           // [..., width]
};
struct TakenRows {
  int64_t M = 0, bytes = 0;        // bytes of a row
  const char* from = nullptr;
  const int64_t* index = nullptr;  // [M], each below the rows of from
  char* to = nullptr;
};
struct Sums {
  int64_t M = 0, C = 0;
  bool squares = false;           // add up the squares
  const float* source = nullptr;  // [M, C]
  float* sums = nullptr;          // [C]
};

// What the drivers ask of the caller while they run.
struct Watch {
  std::atomic<bool> stop{false};
  bool (*interrupted)() = nullptr;  // asked now and then by the calling thread
};

}  // namespace gatewise

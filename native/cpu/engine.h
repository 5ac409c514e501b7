// The CPU engine: picks the build of the kernels that fits this machine and runs calls on it.
#pragma once

#include <string>
#include <vector>

#include "cpu/kernels.h"

namespace gatewise {

// Names of the instruction sets this machine can run, widest last, and the one in use.
std::vector<std::string> instruction_sets();
const Kernels& current_kernels();
// Chooses by name; false if this machine or this build does not have it.
bool use_instruction_set(const std::string& name);

}  // namespace gatewise

// Where NumPy arrays of the current context get their memory.
#pragma once

#include <nanobind/nanobind.h>

namespace gatewise {

// From now on, in this context, memory is kept and used again; gives what was used before.
nanobind::object use_kept_memory();
// Back to that; gives what was used before this.
nanobind::object use_memory(nanobind::object handler);

// Kept at present, for nobody yet.
size_t kept_bytes();

}  // namespace gatewise

#pragma once

#include <nanobind/nanobind.h>

void bind_tape(nanobind::module_& module);

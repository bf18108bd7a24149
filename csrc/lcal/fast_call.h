// all_reduce as a bare C function of a tensor: the general binding costs more than the collective.
#pragma once

#include <pybind11/pybind11.h>

#include "comm.h"

namespace lcal {

// A function (tensor, operation) -> whether it was done. False: the caller checks the arguments and
// says what is wrong with them. owner keeps comm alive; dtypes are torch's, numbered as DType.
pybind11::object fast_all_reduce(const pybind11::object& owner, const pybind11::list& dtypes);

// Raises the Python error of the same meaning. For use inside a catch block.
void raise_current_exception();

}  // namespace lcal

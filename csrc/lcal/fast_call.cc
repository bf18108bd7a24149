#include "fast_call.h"

#include <array>
#include <memory>

#include "error.h"

namespace py = pybind11;

namespace lcal {
namespace {

constexpr int kOps = 4;

// Strong references, for the life of the function.
struct State {
  Comm* comm;
  py::object owner;
  std::array<py::object, 8> dtypes;
  std::array<py::str, kOps> ops{py::str("sum"), py::str("max"), py::str("min"), py::str("prod")};
  py::str is_cpu{"is_cpu"};
  py::str is_contiguous{"is_contiguous"};
  py::str dtype{"dtype"};
  py::str data_ptr{"data_ptr"};
  py::str numel{"numel"};
};

py::object attribute(PyObject* object, const py::str& name) {
  return py::reinterpret_steal<py::object>(PyObject_GetAttr(object, name.ptr()));
}

py::object call(PyObject* object, const py::str& method) {
  return py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(object, method.ptr()));
}

int op_of(const State& state, PyObject* op) {
  for (int i = 0; i < kOps; ++i) {
    if (state.ops[i].ptr() == op) return i;
  }
  for (int i = 0; i < kOps && PyUnicode_Check(op); ++i) {
    if (PyUnicode_Compare(state.ops[i].ptr(), op) == 0) return i;
  }
  return -1;
}

int dtype_of(const State& state, PyObject* dtype) {
  for (int i = 0; i < static_cast<int>(state.dtypes.size()); ++i) {
    if (state.dtypes[i].ptr() == dtype) return i;
  }
  return -1;
}

PyObject* all_reduce(PyObject* capsule, PyObject* const* args, Py_ssize_t count) {
  const State& state = *static_cast<State*>(PyCapsule_GetPointer(capsule, nullptr));
  if (count != 2) Py_RETURN_FALSE;
  const int op = op_of(state, args[1]);
  const int dtype = dtype_of(state, attribute(args[0], state.dtype).ptr());
  const bool usable = op >= 0 && dtype >= 0 && attribute(args[0], state.is_cpu).ptr() == Py_True &&
                      call(args[0], state.is_contiguous).ptr() == Py_True;
  if (usable) {
    const py::object address = call(args[0], state.data_ptr);
    const py::object items = call(args[0], state.numel);
    if (!address || !items) return nullptr;
    void* x = PyLong_AsVoidPtr(address.ptr());
    const size_t length = PyLong_AsSize_t(items.ptr());
    if (PyErr_Occurred() != nullptr) return nullptr;
    try {
      const py::gil_scoped_release release;
      state.comm->all_reduce(x, length, static_cast<DType>(dtype), static_cast<Op>(op));
    } catch (...) {
      raise_current_exception();
      return nullptr;
    }
    Py_RETURN_TRUE;
  }
  PyErr_Clear();  // whatever is not a tensor is refused by the caller
  Py_RETURN_FALSE;
}

PyMethodDef definition{"all_reduce",
                       reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&all_reduce)),
                       METH_FASTCALL, "Combine a tensor over ranks -> whether it was done."};

void raise(const char* name, const std::exception& error) {
  const py::object type = py::module_::import("atb_dist.errors").attr(name);
  py::set_error(type, error.what());
}

}  // namespace

void raise_current_exception() {
  try {
    throw;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const PeerFailure& error) {
    raise("PeerFailure", error);
  } catch (const SetupError& error) {
    raise("ConfigError", error);
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

py::object fast_all_reduce(const py::object& owner, const py::list& dtypes) {
  auto state = std::make_unique<State>();
  state->comm = owner.cast<Comm*>();
  state->owner = owner;
  for (size_t i = 0; i < state->dtypes.size(); ++i) state->dtypes[i] = dtypes[i];
  const py::capsule capsule(state.release(),
                            [](void* memory) { delete static_cast<State*>(memory); });
  return py::reinterpret_steal<py::object>(PyCFunction_New(&definition, capsule.ptr()));
}

}  // namespace lcal

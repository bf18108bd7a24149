// atb_dist._lcal: addresses and sizes in, errors of the same meaning out. torch is not linked.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "comm.h"
#include "error.h"
#include "fast_call.h"

namespace py = pybind11;

namespace {

using lcal::Comm;
using lcal::DType;
using lcal::Op;
using Bytes = std::vector<uint64_t>;

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// Lets Ctrl-C end a wait. Called without the GIL.
void check_signals() {
  py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

std::unique_ptr<Comm> open_comm(const std::string& session, int rank, int size, size_t half_bytes,
                                double timeout_s, const std::vector<int>& labels,
                                const Comm* parent) {
  lcal::Options options;
  options.session = session;
  options.rank = rank;
  options.size = size;
  options.half_bytes = half_bytes;
  options.timeout_s = timeout_s;
  options.interrupt = check_signals;
  options.labels = labels;
  options.parent = parent;
  py::gil_scoped_release release;
  return std::make_unique<Comm>(options);
}

// This rank's part of a block in the segment, as a buffer; given back when Python drops it.
struct Block {
  py::object owner;  // keeps the segment mapped
  Comm* comm;
  uint64_t place;
  size_t bytes;
  Block(py::object owner, Comm* comm, uint64_t place, size_t bytes)
      : owner(std::move(owner)), comm(comm), place(place), bytes(bytes) {}
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { comm->release(place); }
};

std::unique_ptr<Block> empty(const py::object& owner, size_t bytes) {
  Comm* comm = owner.cast<Comm*>();
  uint64_t place;
  {
    py::gil_scoped_release release;
    place = comm->empty(bytes);
  }
  return std::make_unique<Block>(owner, comm, place, bytes);
}

py::buffer_info buffer_of(const Block& block) {
  return py::buffer_info(block.comm->own_block(block.place), 1, "B", 1, {block.bytes}, {1});
}

void choose(Comm& comm, size_t one_shot_bytes, size_t piece_bytes) {
  comm.choose({one_shot_bytes, piece_bytes});
}

py::tuple choice(const Comm& comm) {
  return py::make_tuple(comm.choice().one_shot_bytes, comm.choice().piece_bytes);
}

void all_reduce(Comm& comm, uint64_t x, size_t count, int dtype, int op) {
  comm.all_reduce(pointer(x), count, static_cast<DType>(dtype), static_cast<Op>(op));
}
void all_reduce_int8(Comm& comm, uint64_t x, size_t count, int dtype) {
  comm.all_reduce_int8(pointer(x), count, static_cast<DType>(dtype));
}
void reduce(Comm& comm, uint64_t x, size_t count, int dtype, int op, int dst) {
  comm.reduce(pointer(x), count, static_cast<DType>(dtype), static_cast<Op>(op), dst);
}
void reduce_scatter(Comm& comm, uint64_t x, uint64_t out, const Bytes& counts, int dtype, int op) {
  comm.reduce_scatter(pointer(x), pointer(out), counts, static_cast<DType>(dtype),
                      static_cast<Op>(op));
}
void all_gather(Comm& comm, uint64_t x, uint64_t out, const Bytes& bytes) {
  comm.all_gather(pointer(x), pointer(out), bytes);
}
void gather(Comm& comm, uint64_t x, uint64_t out, const Bytes& bytes, int dst) {
  comm.gather(pointer(x), pointer(out), bytes, dst);
}
void all_to_all(Comm& comm, uint64_t x, uint64_t out, const Bytes& send, const Bytes& recv) {
  comm.all_to_all(pointer(x), pointer(out), send, recv);
}
void broadcast(Comm& comm, uint64_t x, size_t bytes, int src) {
  comm.broadcast(pointer(x), bytes, src);
}
void scatter(Comm& comm, uint64_t x, uint64_t out, size_t bytes, int src) {
  comm.scatter(pointer(x), pointer(out), bytes, src);
}
void send(Comm& comm, uint64_t x, size_t bytes, int dst) { comm.send(pointer(x), bytes, dst); }
void recv(Comm& comm, uint64_t x, size_t bytes, int src) { comm.recv(pointer(x), bytes, src); }

py::bytes broadcast_object(Comm& comm, const py::bytes& value, int src, bool idle) {
  const std::string bytes = value;
  std::string result;
  {
    py::gil_scoped_release release;
    result = comm.broadcast_object(bytes, src, idle);
  }
  return py::bytes(result);
}

std::vector<py::bytes> all_gather_object(Comm& comm, const py::bytes& value) {
  const std::string bytes = value;
  std::vector<std::string> results;
  {
    py::gil_scoped_release release;
    results = comm.all_gather_object(bytes);
  }
  return std::vector<py::bytes>(results.begin(), results.end());
}

// The package's own errors, without a layer of Python that every call would pay for.
void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const lcal::PeerFailure&) {
    lcal::raise_current_exception();
  } catch (const lcal::SetupError&) {
    lcal::raise_current_exception();
  }
}

}  // namespace

PYBIND11_MODULE(_lcal, module) {
  module.doc() = "Collectives between the ranks of one host over shared memory.";
  py::register_exception_translator(translate);
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<Comm>(module, "Comm")
      .def(py::init(&open_comm), py::kw_only(), py::arg("session"), py::arg("rank"),
           py::arg("size"), py::arg("half_bytes"), py::arg("timeout_s"), py::arg("labels"),
           py::arg("parent").none(true))
      .def("all_reduce", &all_reduce, Release())
      .def("all_reduce_int8", &all_reduce_int8, Release())
      .def("reduce", &reduce, Release())
      .def("reduce_scatter", &reduce_scatter, Release())
      .def("all_gather", &all_gather, Release())
      .def("gather", &gather, Release())
      .def("all_to_all", &all_to_all, Release())
      .def("broadcast", &broadcast, Release())
      .def("scatter", &scatter, Release())
      .def("send", &send, Release())
      .def("recv", &recv, Release())
      .def("barrier", &Comm::barrier, Release())
      .def("barriers", &Comm::barriers, Release())
      .def("broadcast_object", &broadcast_object)
      .def("all_gather_object", &all_gather_object)
      .def("abort", &Comm::abort, Release())
      .def("close", &Comm::close, Release())
      .def("empty", &empty)
      .def("choose", &choose)
      .def_property_readonly("choice", &choice);
  py::class_<Block>(module, "Block", py::buffer_protocol()).def_buffer(&buffer_of);
  module.def("fast_all_reduce", &lcal::fast_all_reduce);
}

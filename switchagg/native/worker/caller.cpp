// All-reduces that are called again with the same arguments, in one call of native code, as Python's look at them takes longer than a
// short sum; and records of a session's last collectives. With their bindings (worker_lib/session_state.py).
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "switchagg/native/worker/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace switchagg {

namespace {

// NumPy's `__array_struct__`, as its array interface lays it down; `__array_interface__` builds a dict for the same.
struct ArrayStruct {
  int two, dimensions;
  char kind;
  int item_bytes, flags;
  Py_ssize_t *shape, *strides;
  void* data;
};

uintptr_t address_of(nb::handle array) {
  const nb::object capsule = array.attr("__array_struct__");
  const auto* fields = static_cast<const ArrayStruct*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (!fields) throw nb::python_error();
  return reinterpret_cast<uintptr_t>(fields->data);
}

// Adds an array's memory, type and shape to a key; false if it has to be looked at more closely.
bool add_array(std::string& key, PyObject* array, bool write) {
  static PyObject* const type = nb::object(nb::module_::import_("numpy").attr("ndarray")).release().ptr();
  static PyObject* const name = PyUnicode_InternFromString("__array_struct__");
  constexpr int kContiguous = 0x1, kOwnOrder = 0x200, kWriteable = 0x400;
  if (reinterpret_cast<PyObject*>(Py_TYPE(array)) != type) return false;
  const nb::object capsule = nb::steal(PyObject_GetAttr(array, name));
  const auto* fields = capsule ? static_cast<const ArrayStruct*>(PyCapsule_GetPointer(capsule.ptr(), nullptr)) : nullptr;
  if (!fields) throw nb::python_error();
  const int needed = kContiguous | kOwnOrder | (write ? kWriteable : 0);
  if ((fields->flags & needed) != needed || !std::strchr("fiu", fields->kind)) return false;
  const auto add = [&key](const auto& value) { key.append(reinterpret_cast<const char*>(&value), sizeof value); };
  add(fields->data);
  add(fields->kind);
  add(fields->item_bytes);
  add(fields->dimensions);
  for (int i = 0; i < fields->dimensions; ++i) add(fields->shape[i]);
  return true;
}

// The same for a tensor of PyTorch's.
bool add_tensor(std::string& key, nb::handle tensor) {
  const nb::object torch = nb::borrow(PyDict_GetItemString(PyImport_GetModuleDict(), "torch"));
  if (!torch || !tensor.type().is(nb::getattr(torch, "Tensor", nb::none()))) return false;  // in half imported, or None: blocked
  const auto yes = [](const nb::object& answer) { return answer.ptr() == Py_True; };
  if (!yes(tensor.attr("is_cpu")) || yes(tensor.attr("requires_grad")) || !nb::object(tensor.attr("layout")).is(torch.attr("strided")) ||
      !yes(tensor.attr("is_contiguous")()) || yes(tensor.attr("is_neg")()))
    return false;
  const auto add = [&key](const auto& value) { key.append(reinterpret_cast<const char*>(&value), sizeof value); };
  const auto address = nb::cast<uintptr_t>(tensor.attr("data_ptr")());
  if (!address) return false;
  add(address);
  key += 'T';
  add(nb::object(tensor.attr("dtype")).ptr());  // there is one object of each type
  const nb::tuple shape(tensor.attr("shape"));
  add(shape.size());
  for (const nb::handle size : shape) add(nb::cast<int64_t>(size));
  return true;
}

bool add_option(std::string& key, PyObject* option) {
  if (option == Py_None) {
    key += 'n';
    return true;
  }
  if (PyLong_CheckExact(option)) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(option, &overflow);
    key += 'i';
    key.append(reinterpret_cast<const char*>(&value), sizeof value);
    return !overflow;
  }
  if (!PyUnicode_CheckExact(option)) return false;
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(option, &size);
  if (!text) {
    PyErr_Clear();
    return false;
  }
  key += 's';
  key.append(reinterpret_cast<const char*>(&size), sizeof size);
  key.append(text, static_cast<size_t>(size));
  return true;
}

// The arguments of an all-reduce as bytes, equal where memory, types, shapes and options are; None where they have to be looked
// at more closely.
nb::object sum_key(nb::handle x, nb::handle out, std::initializer_list<nb::handle> options) {
  std::string key;
  key.reserve(256);
  const auto take = [&key](nb::handle each, bool write) { return add_array(key, each.ptr(), write) || add_tensor(key, each); };
  key += out.is_none() ? '-' : '+';
  if (!take(x, out.is_none()) || (!out.is_none() && !take(out, true))) return nb::none();
  for (const nb::handle each : options)
    if (!add_option(key, each.ptr())) return nb::none();
  return nb::bytes(key.data(), key.size());
}

// A call of the engine for the membership of one generation.
struct KnownCall {
  KnownCall(uint32_t of, nb::object made, nb::object named, nb::object name)
      : generation(of), call(std::move(made)), native(nb::cast<const Call*>(call)), label(std::move(named)), called(std::move(name)) {}

  uint32_t generation;
  nb::object call;
  const Call* native;
  nb::object label, called;
};

class Caller {
 public:
  Caller(Engine& engine, int64_t slice_ns) : engine_(engine), slice_ns_(slice_ns) {}

  bool run(nb::list begun, double seconds, const KnownCall& known) {
    if (!(seconds > 0) || getpid() != pid_) return false;
    auto work = std::make_shared<Collective>();
    work->call = *known.native;
    if (!engine_.submit_at_once(work, static_cast<int64_t>(std::min(seconds, 1e9) * 1e9), known.generation)) return false;
    note(known.called, work);
    const auto tell = [&] { begun.append(nb::make_tuple(work, nb::find(known))); };
    ++inside_;
    Status status;
    try {
      nb::gil_scoped_release release;
      status = engine_.wait(*work, slice_ns_);
    } catch (...) {
      --inside_;
      tell();
      throw;
    }
    --inside_;
    if (status == Status::done && work->generation == known.generation) return true;
    tell();
    return false;
  }

  nb::object allreduce(nb::list begun, double seconds, nb::handle x, nb::handle out, nb::handle op, nb::handle bits,
                       nb::handle min_bits, nb::handle blocks, nb::handle block_size, nb::handle accuracy) {
    nb::object key = sum_key(x, out, {op, bits, min_bits, blocks, block_size, accuracy});
    if (key.is_none()) return key;
    const nb::object known = nb::borrow(PyDict_GetItemWithError(known_.ptr(), key.ptr()));  // another thread may clear the dict
    if (known && run(std::move(begun), seconds, *nb::inst_ptr<KnownCall>(known))) return nb::bool_(true);
    return key;
  }

  void note(nb::object called, std::shared_ptr<Collective> work) {
    Record record{std::move(called), std::move(work)};
    std::swap(records_[noted_++ % records_.size()], record);  // the old one goes last: it may run Python
  }

  nb::list recent() const {
    const auto records = records_;
    const uint64_t noted = noted_;
    nb::list all;
    for (uint64_t i = noted - std::min<uint64_t>(noted, records.size()); i < noted; ++i) {
      const auto& [called, work] = records[i % records.size()];
      all.append(nb::make_tuple(called, work));
    }
    return all;
  }

  nb::dict known() const { return known_; }
  uint32_t inside() const { return inside_; }

 private:
  using Record = std::pair<nb::object, std::shared_ptr<Collective>>;

  Engine& engine_;
  const int64_t slice_ns_;
  const pid_t pid_ = getpid();
  nb::dict known_;
  std::array<Record, 32> records_;
  uint64_t noted_ = 0;
  uint32_t inside_ = 0;  // under the GIL
};

}  // namespace

void bind_caller(nb::module_& m) {
  m.def("address", &address_of, "array"_a);

  nb::class_<KnownCall>(m, "KnownCall")
      .def(nb::init<uint32_t, nb::object, nb::object, nb::object>(), "generation"_a, "call"_a, "label"_a, "called"_a)
      .def_ro("generation", &KnownCall::generation)
      .def_ro("call", &KnownCall::call)
      .def_ro("label", &KnownCall::label)
      .def_ro("called", &KnownCall::called);

  nb::class_<Caller>(m, "Caller")
      .def(nb::init<Engine&, int64_t>(), "engine"_a, "slice_ns"_a, nb::keep_alive<1, 2>())
      .def_prop_ro("known", &Caller::known)
      .def_prop_ro("inside", &Caller::inside)
      .def("run", &Caller::run, "begun"_a, "seconds"_a, "known"_a)
      .def("allreduce", &Caller::allreduce, "begun"_a, "seconds"_a, "x"_a, "out"_a.none(), "op"_a.none(), "bits"_a.none(),
           "min_bits"_a.none(), "blocks"_a.none(), "block_size"_a.none(), "accuracy"_a.none())
      .def("note", &Caller::note, "called"_a, "work"_a)
      .def("recent", &Caller::recent);
}

}  // namespace switchagg

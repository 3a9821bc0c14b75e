#include <exception>

#include "bindings/bindings.hpp"

namespace kvcached::bindings {
namespace {

// Owned for ever: exceptions may be raised until the interpreter is gone.
struct ErrorTypes {
  PyObject* base;
  PyObject* out_of_memory;
  PyObject* unavailable;
  PyObject* driver_error;
  PyObject* misuse;
  PyObject* ledger_refused;
};

ErrorTypes error_types{};

PyObject* make(py::module_& module, const char* name, const char* doc, const py::tuple& bases) {
  const std::string qualified = std::string("kvcached._core.") + name;
  PyObject* type = PyErr_NewExceptionWithDoc(qualified.c_str(), doc, bases.ptr(), nullptr);
  if (type == nullptr) throw py::error_already_set();
  module.attr(name) = py::reinterpret_borrow<py::object>(type);
  return type;
}

void translate(std::exception_ptr pointer) {
  if (!pointer) return;
  try {
    std::rethrow_exception(pointer);
  } catch (const OutOfMemory& error) {
    PyErr_SetString(error_types.out_of_memory, error.what());
  } catch (const Unavailable& error) {
    PyErr_SetString(error_types.unavailable, error.what());
  } catch (const DriverError& error) {
    PyErr_SetString(error_types.driver_error, error.what());
  } catch (const Misuse& error) {
    PyErr_SetString(error_types.misuse, error.what());
  } catch (const LedgerRefused& error) {
    PyErr_SetString(error_types.ledger_refused, error.what());
  } catch (const Error& error) {
    PyErr_SetString(error_types.base, error.what());
  }
}

}  // namespace

void bind_errors(py::module_& module) {
  const py::handle exception(PyExc_Exception);
  ErrorTypes& types = error_types;
  types.base =
      make(module, "KvcachedError", "Base of all errors of this package.", py::make_tuple(exception));
  const py::handle base(types.base);
  types.out_of_memory = make(module, "OutOfMemory",
                             "No room on the device or in the ledger. Recoverable: state is unchanged. The "
                             "message says what was needed, what is held and what limits it.",
                             py::make_tuple(base, py::handle(PyExc_MemoryError)));
  types.unavailable =
      make(module, "Unavailable", "The device or driver asked for is not usable on this machine.",
           py::make_tuple(base));
  types.driver_error = make(
      module, "DriverError",
      "A driver or system call failed. The message holds the call, its arguments, the code and its name.",
      py::make_tuple(base));
  types.misuse =
      make(module, "Misuse",
           "A precondition was broken (double free, foreign id, bad geometry, ...). State is unchanged.",
           py::make_tuple(base, py::handle(PyExc_ValueError)));
  types.ledger_refused = make(
      module, "LedgerRefused",
      "The floors of the clients do not fit the budget. The message says the smallest budget that works.",
      py::make_tuple(base));
  py::register_exception_translator(&translate);
}

}  // namespace kvcached::bindings

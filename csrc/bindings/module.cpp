#include "bindings/bindings.hpp"
#include "vmm/process.hpp"

namespace kvcached::bindings {
namespace {

py::dict build_info() {
  py::dict info;
  info["version"] = KVCACHED_VERSION;
  info["compiler"] = KVCACHED_COMPILER;
  info["build_type"] = KVCACHED_BUILD_TYPE;
  return info;
}

}  // namespace
}  // namespace kvcached::bindings

PYBIND11_MODULE(_core, module) {
  namespace bindings = kvcached::bindings;
  module.doc() = "Elastic memory for KV caches: addresses stay, physical pages follow the load.";
  bindings::bind_errors(module);
  bindings::bind_vmm(module);
  bindings::bind_ledger(module);
  bindings::bind_pool(module);
  module.def("build_info", &bindings::build_info,
             "Version, compiler and build type of this module, as strings.");
  // Registered at import, so run after the exit handlers of everybody who imports us.
  pybind11::module_::import("atexit").attr("register")(pybind11::cpp_function([] {
    kvcached::mark_process_exiting();
    bindings::GilRelease::keep_for_this_thread();
  }));
}

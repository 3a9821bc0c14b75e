#include <pybind11/stl.h>

#include "arena/geometry.hpp"
#include "bindings/bindings.hpp"
#include "vmm/cuda_driver.hpp"
#include "vmm/cuda_vmm.hpp"
#include "vmm/host_vmm.hpp"
#include "vmm/memfd_vmm.hpp"

namespace kvcached::bindings {
namespace {

const char* python_bool(bool value) { return value ? "True" : "False"; }

std::string repr(const Capabilities& c) {
  std::ostringstream out;
  out << "Capabilities(kind='" << c.kind << "', device=" << c.device
      << ", granularity_bytes=" << c.granularity_bytes << ", default_page_bytes=" << c.default_page_bytes
      << ", strict=" << python_bool(c.strict) << ", exportable=" << python_bool(c.exportable) << ")";
  return out.str();
}

std::string repr(const Geometry& g) {
  std::ostringstream out;
  out << "Geometry(rows=" << g.rows() << ", rows_per_page=" << g.rows_per_page() << ", pages=" << g.pages()
      << ", stripes=" << g.stripes() << ", page_set_bytes=" << g.page_set_bytes()
      << ", reserved_rows=" << g.reserved_rows() << ")";
  return out.str();
}

Backend make_host(bool strict, bool exportable) {
  if (exportable) return Backend{std::make_shared<MemfdVmm>(strict)};
  return Backend{std::make_shared<HostVmm>(strict)};
}

void bind_backend(py::module_& module) {
  py::class_<Capabilities>(module, "Capabilities", "What a backend can do, as data.")
      .def_readonly("kind", &Capabilities::kind, "'host' or 'cuda'.")
      .def_readonly("device", &Capabilities::device, "Device index; 0 on the host.")
      .def_readonly("granularity_bytes", &Capabilities::granularity_bytes, "Unit of every address and size.")
      .def_readonly("default_page_bytes", &Capabilities::default_page_bytes,
                    "Page size to choose without a reason.")
      .def_readonly("strict", &Capabilities::strict, "Touching an unbacked address faults.")
      .def_readonly("exportable", &Capabilities::exportable,
                    "Physical pages can be passed on as file descriptors.")
      .def("__repr__", [](const Capabilities& c) { return repr(c); });

  py::class_<Backend>(module, "Backend", "A kind of memory: host or one CUDA device.")
      .def_static(
          "host", &make_host, py::arg("strict") = false, py::arg("exportable") = false,
          "Host memory. With `strict`, touching an unbacked row faults (slower: one mprotect per change). "
          "With `exportable`, pages lie in a file without a name that other processes can map.")
      .def_static(
          "cuda",
          [](int device, bool exportable) { return Backend{std::make_shared<CudaVmm>(device, exportable)}; },
          py::arg("device"), py::arg("exportable") = false,
          "Memory of one CUDA device. With `exportable`, pages can be given to other processes. Raises "
          "Unavailable without a usable driver or device, or where the device cannot export.")
      .def_property_readonly(
          "capabilities", [](const Backend& self) { return self.vmm->capabilities(); },
          "What this backend can do.")
      .def("__repr__", [](const Backend& self) {
        const Capabilities& c = self.vmm->capabilities();
        const std::string which = c.kind == "cuda" ? "cuda(device=" + std::to_string(c.device)
                                                   : std::string("host(strict=") + python_bool(c.strict);
        return "Backend." + which + ", exportable=" + python_bool(c.exportable) + ")";
      });
}

std::unique_ptr<Geometry> make_geometry(std::int64_t rows, std::vector<std::int64_t> row_bytes,
                                        std::int64_t granularity_bytes, std::int64_t page_bytes,
                                        std::int64_t row_multiple, std::int64_t reserved_rows) {
  return std::make_unique<Geometry>(
      GeometrySpec{rows, std::move(row_bytes), granularity_bytes, page_bytes, row_multiple, reserved_rows});
}

void bind_geometry(py::module_& module) {
  py::class_<Geometry>(module, "Geometry",
                       "Where row r of stripe s lives. A stripe is one K or V tensor of one layer; a page is "
                       "the same rows_per_page rows in every stripe.")
      .def(py::init(&make_geometry), py::kw_only(), py::arg("rows"), py::arg("row_bytes"),
           py::arg("granularity_bytes"), py::arg("page_bytes"), py::arg("row_multiple") = 1,
           py::arg("reserved_rows") = 1,
           "`row_bytes` has one entry per stripe. rows_per_page becomes the largest multiple of "
           "`row_multiple` that fills whole granules in every stripe and keeps the widest within "
           "`page_bytes`. The first `reserved_rows` rows are always backed and never handed out. Raises "
           "Misuse for values that cannot work.")
      .def_property_readonly("rows", &Geometry::rows, "Rows per stripe, reserved ones included.")
      .def_property_readonly("rows_per_page", &Geometry::rows_per_page, "Rows that come and go together.")
      .def_property_readonly("pages", &Geometry::pages,
                             "Pages of the reservation; the last may be partly used.")
      .def_property_readonly("stripes", &Geometry::stripes, "Number of stripes.")
      .def_property_readonly("page_set_bytes", &Geometry::page_set_bytes,
                             "Bytes of one page over all stripes.")
      .def_property_readonly("pinned_bytes", &Geometry::pinned_bytes,
                             "Memory of the pages that hold reserved rows: always backed.")
      .def_property_readonly("reservation_bytes", &Geometry::reservation_bytes, "Address space in all.")
      .def_property_readonly("reserved_rows", &Geometry::reserved_rows,
                             "Rows at the start that are never handed out.")
      .def(
          "stripe_offset_bytes",
          [](const Geometry& self, std::int64_t stripe) {
            const std::size_t index = require_count("stripe", stripe);
            if (index < self.stripes()) return self.stripe_offset_bytes(index);
            throw Misuse("stripe " + std::to_string(stripe) + " does not exist: there are " +
                         std::to_string(self.stripes()));
          },
          py::arg("stripe"), "Distance in bytes from the base address to the stripe's row 0.")
      .def("__repr__", [](const Geometry& self) { return repr(self); });
}

}  // namespace

void bind_vmm(py::module_& module) {
  bind_backend(module);
  bind_geometry(module);
  module.def("cuda_unavailable_reason", &cuda::unavailable_reason,
             "Why no CUDA device can be used, or None. Never raises. The driver is looked for once per "
             "process; looking initialises it, which does not survive a later fork.");
  module.def("set_libcuda_path", &cuda::set_library_path, py::arg("path"),
             "Driver library to load instead of the system's libcuda.so.1 (None). Raises Misuse once another "
             "one was looked for.");
}

}  // namespace kvcached::bindings

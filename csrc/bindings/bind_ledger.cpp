#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "bindings/bindings.hpp"
#include "ledger/client.hpp"
#include "ledger/ledger.hpp"

namespace kvcached::bindings {
namespace {

// Between slices the waiter looks for signals and for holders that died.
constexpr double kWaitSliceS = 0.1;

// Names come out of a file that others write.
py::str decode(const std::string& name) {
  PyObject* text = PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), "replace");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

constexpr std::array<const char*, kClientKinds> kKindNames = {"kv", "weights", "other"};

const char* name_of(ClientKind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }

ClientKind kind_named(const std::string& name) {
  for (std::size_t i = 0; i < kKindNames.size(); ++i) {
    if (name == kKindNames[i]) return static_cast<ClientKind>(i);
  }
  throw Misuse("a client of kind '" + name + "': must be 'kv', 'weights' or 'other'");
}

std::string repr(const ClientInfo& c) {
  std::ostringstream out;
  out << "ClientInfo(slot=" << c.slot << ", pid=" << c.pid
      << ", name=" << py::cast<std::string>(py::repr(decode(c.name))) << ", kind='" << name_of(c.kind)
      << "', used_bytes=" << c.used_bytes << ", floor_bytes=" << c.floor_bytes
      << ", limit_bytes=" << (c.limit_bytes ? std::to_string(*c.limit_bytes) : "None")
      << ", priority=" << c.priority << ", rows_used=" << c.published.rows_used
      << ", rows_backed=" << c.published.rows_backed << ")";
  return out.str();
}

std::uint32_t wait(const Ledger& ledger, std::uint32_t generation, double timeout_s) {
  if (!std::isfinite(timeout_s)) throw Misuse("timeout_s must be a finite number of seconds");
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (;;) {
    const double left_s = timeout_s - std::chrono::duration<double>(Clock::now() - start).count();
    std::uint32_t current = 0;
    {
      const GilRelease release;
      current = ledger.wait(generation, std::clamp(left_s, 0.0, kWaitSliceS));
    }
    if (current != generation || left_s <= 0) return current;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

void bind_snapshot(py::module_& module) {
  py::class_<ClientInfo>(module, "ClientInfo", "One client of a ledger at one instant.")
      .def_readonly("slot", &ClientInfo::slot, "Its place in the file.")
      .def_readonly("pid", &ClientInfo::pid, "Its process id, as that process sees it.")
      .def_property_readonly(
          "name", [](const ClientInfo& self) { return decode(self.name); }, "The name it registered under.")
      .def_readonly("used_bytes", &ClientInfo::used_bytes, "Credit it holds.")
      .def_readonly("floor_bytes", &ClientInfo::floor_bytes, "Guaranteed to it, used or not.")
      .def_readonly("limit_bytes", &ClientInfo::limit_bytes, "The most it may hold; None for no limit.")
      .def_property_readonly(
          "kind", [](const ClientInfo& self) { return name_of(self.kind); },
          "What it holds: 'kv', 'weights' or 'other'.")
      .def_readonly("spare_bytes", &ClientInfo::spare_bytes,
                    "Of used_bytes, what it says it could give back without hurting running work.")
      .def_readonly("want_bytes", &ClientInfo::want_bytes,
                    "Refused to it and still wanted beyond what it holds and its floor; 0 once lapsed.")
      .def_readonly("asked_bytes", &ClientInfo::asked_bytes, "What it should give back now.")
      .def_readonly("priority", &ClientInfo::priority, "Higher is more important.")
      .def_property_readonly(
          "range_base", [](const ClientInfo& self) { return self.published.range_base; },
          "First address of its reservation in its own process; 0 before it publishes.")
      .def_property_readonly(
          "range_bytes", [](const ClientInfo& self) { return self.published.range_bytes; },
          "Size of that reservation.")
      .def_property_readonly(
          "rows_used", [](const ClientInfo& self) { return self.published.rows_used; },
          "Rows in use, as last published.")
      .def_property_readonly(
          "rows_backed", [](const ClientInfo& self) { return self.published.rows_backed; },
          "Rows with memory beneath them, as last published.")
      .def_readonly("alive", &ClientInfo::alive, "Its process held its lock at that instant.")
      .def("__repr__", [](const ClientInfo& self) { return repr(self); });

  py::class_<LedgerSnapshot>(module, "LedgerSnapshot", "A ledger at one instant.")
      .def_readonly("budget_bytes", &LedgerSnapshot::budget_bytes, "The device's budget.")
      .def_readonly("used_bytes", &LedgerSnapshot::used_bytes, "Sum of the credit held.")
      .def_readonly("generation", &LedgerSnapshot::generation, "To pass to Ledger.wait.")
      .def_readonly("clients", &LedgerSnapshot::clients, "Registered clients.")
      .def("__repr__", [](const LedgerSnapshot& self) {
        return "LedgerSnapshot(budget_bytes=" + std::to_string(self.budget_bytes) +
               ", used_bytes=" + std::to_string(self.used_bytes) +
               ", generation=" + std::to_string(self.generation) + ", clients=<" +
               std::to_string(self.clients.size()) + ">)";
      });
}

void bind_client(py::module_& module) {
  py::class_<LedgerClient, std::shared_ptr<LedgerClient>>(
      module, "LedgerClient",
      "One client's account in a ledger; made by Ledger.register. Its credit ends with it.")
      .def("try_claim", &LedgerClient::try_claim, py::arg("nbytes"),
           "Claims credit for `nbytes` more. False, with nothing claimed, when budget or limit do not allow "
           "it.")
      .def("release", &LedgerClient::release, py::arg("nbytes"),
           "Gives credit back, after the memory is gone. Raises Misuse beyond what is held.")
      .def_property_readonly("used_bytes", &LedgerClient::used_bytes, "Credit held.")
      .def_property_readonly("floor_bytes", &LedgerClient::floor_bytes, "Guaranteed, used or not.")
      .def("obtainable_bytes", &LedgerClient::obtainable_bytes,
           "How much more could be claimed this instant.")
      .def("attainable_bytes", &LedgerClient::attainable_bytes,
           "The most this client could ever hold: its limit, and the budget less the floors of the others.")
      .def("set_limit", &LedgerClient::set_limit, py::arg("limit_bytes"),
           "Sets or (None) lifts the limit. Raises LedgerRefused below the own floor.",
           py::call_guard<GilRelease>())
      .def("set_floor", &LedgerClient::set_floor, py::arg("floor_bytes"),
           "Sets the guarantee. Raises LedgerRefused if the floors stop fitting the budget.",
           py::call_guard<GilRelease>())
      .def("set_priority", &LedgerClient::set_priority, py::arg("priority"),
           "Higher is more important: asked last, served first.", py::call_guard<GilRelease>())
      .def("set_want", &LedgerClient::set_want, py::arg("nbytes"), py::arg("lapse_s") = kWantLapseS,
           "Tells the others how many bytes beyond what is held now were refused here and are still wanted. "
           "What is granted from then on counts towards it; 0 takes it back. Lapses after `lapse_s` seconds "
           "unless it is said again.")
      .def("set_spare", &LedgerClient::set_spare, py::arg("nbytes"),
           "Tells the others how much of what is held could be given back without hurting running work.")
      .def("asked_bytes", &LedgerClient::asked_bytes,
           "What should be given back now: a share of what others want, whatever is held over the limit, and "
           "what a recall asks for. Never below the floor.")
      .def_property(
          "yielding", &LedgerClient::is_yielding, &LedgerClient::set_yielding,
          "While true, claims leave free what is wanted by those whose turn comes first. For new work; "
          "running work goes on.")
      .def(
          "is_cut_off", &LedgerClient::is_cut_off,
          "Whether the ledger's file was deleted or replaced: others share another budget now. Looks at most "
          "once a second.")
      .def(
          "publish",
          [](LedgerClient& self, std::uint64_t range_base, std::uint64_t range_bytes, std::uint64_t rows_used,
             std::uint64_t rows_backed) { self.publish({range_base, range_bytes, rows_used, rows_backed}); },
          py::kw_only(), py::arg("range_base") = 0, py::arg("range_bytes") = 0, py::arg("rows_used") = 0,
          py::arg("rows_backed") = 0,
          "Tells observers where this client's memory lies and how much of it is in use.")
      .def_property_readonly("generation", &LedgerClient::generation, "To pass to Ledger.wait.")
      .def("close", &LedgerClient::close,
           "Gives up all credit and leaves the ledger. Idempotent. Raises Misuse while a pool or range pays "
           "through it: close that first.")
      .def("__repr__", [](const LedgerClient& self) {
        if (!self.is_open()) return "LedgerClient('" + self.name() + "', closed)";
        return "LedgerClient('" + self.name() + "', slot=" + std::to_string(self.slot()) +
               ", used_bytes=" + std::to_string(self.used_bytes()) + ")";
      });
}

}  // namespace

void bind_ledger(py::module_& module) {
  bind_snapshot(module);
  bind_client(module);
  py::class_<Ledger>(
      module, "Ledger",
      "One device's budget, shared by processes through a private file (0600 in a 0700 folder).")
      .def(py::init<const std::string&, std::optional<std::int64_t>>(), py::arg("path"),
           py::arg("budget_bytes") = py::none(),
           "With a budget, creates the file, or gives an existing one without living clients this budget. "
           "Without, the "
           "file must exist. Raises Misuse if it is not privately ours, is no ledger, or living clients use "
           "another "
           "budget.",
           py::call_guard<GilRelease>())
      .def_property_readonly("budget_bytes", &Ledger::budget_bytes, "The device's budget.")
      .def_property_readonly("path", &Ledger::path, "Absolute path of the file.")
      .def(
          "register",
          [](const Ledger& self, const std::string& name, std::int64_t floor_bytes,
             std::optional<std::int64_t> limit_bytes, std::int32_t priority,
             const std::string& kind) -> std::shared_ptr<LedgerClient> {
            const GilRelease release;
            return self.register_client({name, floor_bytes, limit_bytes, priority, kind_named(kind)});
          },
          py::kw_only(), py::arg("name"), py::arg("floor_bytes") = 0, py::arg("limit_bytes") = py::none(),
          py::arg("priority") = 0, py::arg("kind") = kKindNames[0],
          "Joins the ledger; `name` has at most 47 bytes of UTF-8, `kind` is 'kv', 'weights' or 'other'. "
          "Raises "
          "LedgerRefused if the floors do not fit.")
      .def("set_limit", &Ledger::set_limit, py::kw_only(), py::arg("slot"), py::arg("pid"),
           py::arg("limit_bytes"),
           "Sets or (None) lifts a client's limit, from its next claim on. Raises LedgerRefused below its "
           "floor, "
           "Misuse if that process is no longer there.",
           py::call_guard<GilRelease>())
      .def("set_floor", &Ledger::set_floor, py::kw_only(), py::arg("slot"), py::arg("pid"),
           py::arg("floor_bytes"),
           "Sets a client's guarantee. Raises LedgerRefused if the floors stop fitting, Misuse as set_limit.",
           py::call_guard<GilRelease>())
      .def("set_priority", &Ledger::set_priority, py::kw_only(), py::arg("slot"), py::arg("pid"),
           py::arg("priority"), "Sets a client's priority. Raises Misuse as set_limit.",
           py::call_guard<GilRelease>())
      .def("recall", &Ledger::recall, py::kw_only(), py::arg("slot"), py::arg("pid"), py::arg("nbytes"),
           py::arg("lapse_s"),
           "Asks a client to come down by `nbytes`, not below its floor, within `lapse_s` seconds; returns "
           "the "
           "bytes it is asked to come down to.",
           py::call_guard<GilRelease>())
      .def_static(
          "remove_unused", &LedgerFile::remove_unused, py::arg("path"), py::kw_only(),
          py::arg("even_if_blank") = false,
          "Removes a ledger of any version if no living process has it open; whether it did. Raises Misuse "
          "if it is not privately ours or does not begin as a ledger does; `even_if_blank` lets one go that "
          "is "
          "empty or was never finished.",
          py::call_guard<GilRelease>())
      .def("is_at_its_path", &Ledger::is_at_its_path,
           "False once the file was deleted or another put in its place.")
      .def("snapshot", &Ledger::snapshot, "Frees what dead clients held, then reads all lines.")
      .def("wait", &wait, py::arg("generation"), py::arg("timeout_s"),
           "Waits without the GIL until the generation differs from `generation`, at most `timeout_s` "
           "seconds; returns "
           "the present one. Notices the death of a client within 0.1 s.")
      .def("__repr__", [](const Ledger& self) {
        return "Ledger('" + self.path() + "', budget_bytes=" + std::to_string(self.budget_bytes()) + ")";
      });
}

}  // namespace kvcached::bindings

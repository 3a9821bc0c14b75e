#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "arena/kv_pool.hpp"
#include "arena/virtual_range.hpp"
#include "arena/warm_reserve.hpp"
#include "bindings/bindings.hpp"

namespace kvcached::bindings {
namespace {

using Ids = py::array_t<std::int64_t>;

PagePolicy policy_named(const std::string& name) {
  if (name == "best_fit") return PagePolicy::best_fit;
  if (name == "most_filled") return PagePolicy::most_filled;
  throw Misuse("page_policy is '" + name + "', must be 'best_fit' or 'most_filled'");
}

// A pool with the lock that makes it safe to look at from other Python threads while one of them maps, and
// with the reserve that fills itself behind that lock.
class LockedPool {
 public:
  LockedPool(const Backend& backend, const Geometry& geometry, std::shared_ptr<LedgerClient> client,
             const std::string& page_policy, std::size_t warm_bytes, bool gives_back)
      : pool_(backend.vmm, geometry, std::move(client), policy_named(page_policy)),
        warm_(pool_, mutex_, warm_bytes, gives_back) {}

  // Rows come or go: quick, and the reserve takes notice.
  template <typename Action>
  auto move_rows(std::size_t taken_rows, Action action) {
    const PatientLock lock = take_lock();
    const auto result = action(pool_);
    warm_.taken(taken_rows);
    warm_.observe();
    return result;
  }

  bool grow(std::size_t rows) {
    PatientLock lock = take_lock();
    if (has_free(rows)) return true;
    const GilRelease release(&lock.get());
    warm_.settle(lock.get());  // what is being mapped may be enough, and is paid for already
    if (has_free(rows)) return true;
    const bool has_grown = pool_.grow(rows);
    warm_.missed();
    if (has_grown) warm_.promised(rows);
    return has_grown;
  }

  std::size_t trim(std::size_t keep_rows) {
    PatientLock lock = take_lock();
    const GilRelease release(&lock.get());
    const std::size_t given_bytes = pool_.trim(keep_rows);
    warm_.trimmed(keep_rows);
    return given_bytes;
  }

  void clear() {
    PatientLock lock = take_lock();
    const GilRelease release(&lock.get());
    pool_.clear();
    warm_.trimmed(0);
  }

  void realign(const Geometry& geometry) {
    PatientLock lock = take_lock();
    const GilRelease release(&lock.get());
    warm_.settle(lock.get());
    pool_.realign(geometry);
    warm_.realigned();
  }

  void close() {
    const GilRelease release;
    warm_.stop();
    if (!owner_.is_current()) return pool_.close();  // nothing here is the child's, nor is the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    pool_.close();
  }

  std::size_t warm_pages() {
    const PatientLock lock = take_lock();
    return warm_.keep_pages();
  }

  template <typename Action>
  auto quickly(Action action) {
    const PatientLock lock = take_lock();
    return action(pool_);
  }

 private:
  bool has_free(std::size_t rows) {
    const bool is_enough = !pool_.is_closed() && pool_.rows_free_backed() >= rows;
    if (is_enough) warm_.promised(rows);
    return is_enough;
  }

  // The reserve's thread may have held the lock when this process was forked off: a child must not wait for
  // it.
  PatientLock take_lock() {
    owner_.require_current();
    return PatientLock(mutex_);
  }

  OwnerProcess owner_;
  KvPool pool_;
  std::mutex mutex_;
  WarmReserve warm_;  // ends before what it uses
};

template <typename Value>
auto reader(Value (KvPool::*method)() const) {
  return [method](LockedPool& self) {
    return self.quickly([method](KvPool& pool) { return (pool.*method)(); });
  };
}

template <typename Value>
auto reader(Value (KvPool::*method)() const noexcept) {
  return [method](LockedPool& self) {
    return self.quickly([method](KvPool& pool) { return (pool.*method)(); });
  };
}

std::optional<Ids> alloc(LockedPool& self, std::int64_t rows) {
  const std::size_t count = require_count("rows", rows);
  return self.move_rows(count, [count](KvPool& pool) -> std::optional<Ids> {
    if (count > pool.rows_free_backed() && !pool.is_closed()) return std::nullopt;
    Ids ids(static_cast<py::ssize_t>(count));
    if (!pool.alloc(count, ids.mutable_data())) return std::nullopt;
    return ids;
  });
}

void free_rows(LockedPool& self, const py::array& ids) {
  if (!py::isinstance<Ids>(ids) || ids.ndim() != 1 || (ids.flags() & py::array::c_style) == 0) {
    throw Misuse("free: ids must be a C-contiguous one-dimensional int64 array, got " +
                 py::cast<std::string>(py::str(ids.dtype())) + " with " + std::to_string(ids.ndim()) +
                 " dimensions");
  }
  self.move_rows(0, [&ids](KvPool& pool) {
    pool.free(static_cast<const std::int64_t*>(ids.data()), static_cast<std::size_t>(ids.size()));
    return true;
  });
}

std::string repr(const PoolStats& s) {
  std::ostringstream out;
  out << "PoolStats(rows_used=" << s.rows_used << ", rows_backed=" << s.rows_backed
      << ", rows_total=" << s.rows_total << ", rows_obtainable=" << s.rows_obtainable
      << ", rows_attainable=" << s.rows_attainable << ", mapped_bytes=" << s.mapped_bytes
      << ", maps=" << s.maps << ", unmaps=" << s.unmaps << ")";
  return out.str();
}

void bind_stats(py::module_& module) {
  py::class_<PoolStats>(module, "PoolStats", "A pool at one instant; counters run from its creation.")
      .def_readonly("rows_total", &PoolStats::rows_total, "Rows that can be handed out at all.")
      .def_readonly("rows_used", &PoolStats::rows_used, "Rows handed out.")
      .def_readonly("rows_free_backed", &PoolStats::rows_free_backed, "Rows that alloc could hand out now.")
      .def_readonly("rows_backed", &PoolStats::rows_backed, "rows_used + rows_free_backed.")
      .def_readonly("rows_obtainable", &PoolStats::rows_obtainable,
                    "Free rows after the largest possible grow.")
      .def_readonly("rows_attainable", &PoolStats::rows_attainable,
                    "The most rows that could ever be in use at once.")
      .def_readonly("mapped_bytes", &PoolStats::mapped_bytes, "Physical memory mapped.")
      .def_readonly("maps", &PoolStats::maps, "Pages mapped.")
      .def_readonly("unmaps", &PoolStats::unmaps, "Pages unmapped.")
      .def_readonly("allocs", &PoolStats::allocs, "Rows handed out.")
      .def_readonly("frees", &PoolStats::frees, "Rows taken back.")
      .def("__repr__", [](const PoolStats& self) { return repr(self); });
}

void bind_kv_pool_readers(py::class_<LockedPool>& pool) {
  pool.def_property_readonly(
          "geometry", [](LockedPool& self) { return self.quickly([](KvPool& p) { return p.geometry(); }); },
          "Where its rows lie.")
      .def_property_readonly("base_address", reader(&KvPool::base), "First address; never changes.")
      .def_property_readonly("rows_total", reader(&KvPool::rows_total), "Rows that can be handed out at all.")
      .def_property_readonly("rows_used", reader(&KvPool::rows_used), "Rows handed out.")
      .def_property_readonly("rows_free_backed", reader(&KvPool::rows_free_backed),
                             "Rows that alloc could hand out now.")
      .def_property_readonly("rows_backed", reader(&KvPool::rows_backed),
                             "Rows in backed pages, without the reserved ones.")
      .def_property_readonly("rows_obtainable", reader(&KvPool::rows_obtainable),
                             "rows_free_backed plus the rows of pages that could be claimed this instant.")
      .def_property_readonly(
          "rows_attainable", reader(&KvPool::rows_attainable),
          "The most rows that could ever be in use at once, by geometry, limit and others' floors.")
      .def_property_readonly("mapped_bytes", reader(&KvPool::mapped_bytes), "Physical memory mapped.")
      .def_property_readonly("pages_empty", reader(&KvPool::pages_empty),
                             "Backed pages without a row in use: the warm reserve, and what trim would give.")
      .def_property_readonly("warm_pages", &LockedPool::warm_pages,
                             "Pages worth keeping when trimming, as recent bursts were; 0 without a reserve.")
      .def("stats", reader(&KvPool::stats), "All figures of one instant.")
      .def("publish", reader(&KvPool::publish), "Passes range and row counts to the ledger for observers.")
      .def("check_invariants", reader(&KvPool::check_invariants),
           "Recounts everything; raises KvcachedError at the first disagreement. Slow: for tests.")
      .def("__repr__", [](LockedPool& self) {
        return self.quickly([](KvPool& p) {
          if (p.is_closed()) return std::string("KvPool(closed)");
          return "KvPool(rows_used=" + std::to_string(p.rows_used()) +
                 ", rows_backed=" + std::to_string(p.rows_backed()) +
                 ", rows_total=" + std::to_string(p.rows_total()) +
                 ", mapped_bytes=" + std::to_string(p.mapped_bytes()) + ")";
        });
      });
}

void bind_kv_pool(py::module_& module) {
  py::class_<LockedPool> pool(module, "KvPool",
                              "One KV cache: rows over addresses that never change, physical pages mapped "
                              "and unmapped beneath them.");
  pool.def(
          py::init<const Backend&, const Geometry&, std::shared_ptr<LedgerClient>, const std::string&,
                   std::size_t, bool>(),
          py::arg("backend"), py::arg("geometry"), py::arg("client") = py::none(), py::kw_only(),
          py::arg("page_policy") = "best_fit", py::arg("warm_bytes") = 0, py::arg("gives_back") = false,
          "Reserves the addresses and backs the reserved rows, paid for by `client` (None: no ledger). "
          "`page_policy` is 'best_fit' (a request goes to the page with the fewest free rows that holds all "
          "of it) or 'most_filled' (each row goes to the fullest page with a free one). A thread keeps at "
          "most `warm_bytes` of empty pages ready, as many as recent bursts took; with `gives_back` it also, "
          "or with no `warm_bytes` only, gives empty pages back when the ledger asks. Raises OutOfMemory if "
          "ledger or device refuse the "
          "reserved rows.")
      .def(
          "stripe_address",
          [](LockedPool& self, std::int64_t stripe) {
            const std::size_t index = require_count("stripe", stripe);
            return self.quickly([index](KvPool& p) { return p.stripe_address(index); });
          },
          py::arg("stripe"), "Address of row 0 of a stripe.")
      .def(
          "grow",
          [](LockedPool& self, std::int64_t rows) {
            const std::size_t count = require_count("rows", rows);
            return self.grow(count);
          },
          py::arg("rows"),
          "Makes at least `rows` backed rows free: credit and memory, all or nothing. False when rows, limit "
          "or ledger refuse. Raises OutOfMemory when the device does; state is unchanged.")
      .def(
          "lacking_bytes",
          [](LockedPool& self, std::int64_t rows) {
            const std::size_t count = require_count("rows", rows);
            return self.quickly([count](KvPool& p) { return p.lacking_bytes(count); });
          },
          py::arg("rows"),
          "Credit that grow(rows) would claim at this instant; 0 where the pool has not so many rows left.")
      .def(
          "explain_refusal",
          [](LockedPool& self, std::int64_t rows) {
            const std::size_t count = require_count("rows", rows);
            return self.quickly([count](KvPool& p) { return p.explain_refusal(count); });
          },
          py::arg("rows"),
          "Why grow(rows) says no at this instant: bytes needed and held, the limit, and who holds the rest.")
      .def("alloc", &alloc, py::arg("rows"),
           "Hands out `rows` distinct row ids of backed pages as a new int64 array; None when too few are "
           "free. Never maps and never asks the ledger.")
      .def("free", &free_rows, py::arg("ids"),
           "Takes rows back: a C-contiguous one-dimensional int64 array. Raises Misuse, with nothing "
           "changed, if any id is not handed out or comes twice.")
      .def(
          "trim",
          [](LockedPool& self, std::int64_t keep_rows) {
            const std::size_t count = require_count("keep_rows", keep_rows);
            return self.trim(count);
          },
          py::arg("keep_rows") = 0,
          "Gives empty pages back while at least `keep_rows` backed rows stay free; returns the bytes given "
          "back.")
      .def("clear", &LockedPool::clear,
           "Takes all rows back and gives back all pages but those of the reserved rows.")
      .def("realign", &LockedPool::realign, py::arg("geometry"),
           "Lays another geometry over the same addresses. Raises Misuse while rows are in use or where the "
           "reservation is too small, OutOfMemory where the new reserved rows cannot be backed; the old "
           "geometry then stays in force.")
      .def("close", &LockedPool::close, "Returns memory, credit and addresses. Idempotent.");
  bind_kv_pool_readers(pool);
}

// Serialised like a pool: two Python threads may map different parts of one range.
// A forked child is refused, since the lock may have been held when it was forked off.
class LockedRange {
 public:
  LockedRange(const Backend& backend, std::int64_t nbytes, std::int64_t page_bytes,
              std::shared_ptr<LedgerClient> client)
      : range_(backend.vmm, require_count("nbytes", nbytes), require_count("page_bytes", page_bytes),
               std::move(client)) {}

  template <typename Action>
  auto quickly(Action action) {
    owner_.require_current();
    const PatientLock lock(mutex_);
    return action(range_);
  }
  template <typename Action>
  auto slowly(Action action) {
    owner_.require_current();
    PatientLock lock(mutex_);
    const GilRelease release(&lock.get());
    return action(range_);
  }
  void close() {
    if (!owner_.is_current()) return range_.close();  // nothing here is the child's, nor is the lock
    slowly([](VirtualRange& range) { range.close(); });
  }

 private:
  OwnerProcess owner_;
  VirtualRange range_;
  std::mutex mutex_;
};

template <void (VirtualRange::*method)(std::size_t, std::size_t)>
void change(LockedRange& self, std::int64_t offset, std::int64_t nbytes) {
  const std::size_t first = require_count("offset", offset);
  const std::size_t bytes = require_count("nbytes", nbytes);
  self.slowly([first, bytes](VirtualRange& range) { (range.*method)(first, bytes); });
}

void bind_virtual_range(py::module_& module) {
  py::class_<LockedRange>(module, "VirtualRange",
                          "A bare reservation whose pages are mapped and unmapped by offset.")
      .def(py::init<const Backend&, std::int64_t, std::int64_t, std::shared_ptr<LedgerClient>>(),
           py::arg("backend"), py::arg("nbytes"), py::arg("page_bytes"), py::arg("client") = py::none(),
           "Reserves `nbytes`, a multiple of `page_bytes`, itself a multiple of the backend's granularity; "
           "nothing is mapped yet.")
      .def_property_readonly(
          "base_address",
          [](LockedRange& self) { return self.quickly([](VirtualRange& r) { return r.base(); }); },
          "First address; never changes.")
      .def_property_readonly(
          "nbytes", [](LockedRange& self) { return self.quickly([](VirtualRange& r) { return r.bytes(); }); },
          "Size of the reservation.")
      .def_property_readonly(
          "page_bytes",
          [](LockedRange& self) { return self.quickly([](VirtualRange& r) { return r.page_bytes(); }); },
          "Unit of map and unmap.")
      .def_property_readonly(
          "mapped_bytes",
          [](LockedRange& self) { return self.quickly([](VirtualRange& r) { return r.mapped_bytes(); }); },
          "Physical memory mapped.")
      .def("map", &change<&VirtualRange::map>, py::arg("offset"), py::arg("nbytes"),
           "Backs whole pages. Raises Misuse if one is mapped already, OutOfMemory if ledger or device "
           "refuse; either way nothing has changed.")
      .def("unmap", &change<&VirtualRange::unmap>, py::arg("offset"), py::arg("nbytes"),
           "Returns the memory of whole pages; what they held is lost. Raises Misuse if one is not mapped.")
      .def(
          "export_page",
          [](LockedRange& self, std::int64_t offset) {
            const std::size_t first = require_count("offset", offset);
            return self.quickly([first](VirtualRange& r) {
              ExportedMemory memory = r.export_page(first);
              return py::make_tuple(memory.fd.release(), memory.offset_bytes);
            });
          },
          py::arg("offset"),
          "A new file descriptor, the caller's to close, and where in it the mapped page at `offset` begins. "
          "On the host one descriptor serves the whole range: every page lies at its own offset. Raises "
          "Unavailable if the backend was not made exportable.")
      .def("close", &LockedRange::close, "Returns memory, credit and addresses. Idempotent.")
      .def("__repr__", [](LockedRange& self) {
        return self.quickly([](VirtualRange& r) {
          if (r.is_closed()) return std::string("VirtualRange(closed)");
          return "VirtualRange(nbytes=" + std::to_string(r.bytes()) +
                 ", page_bytes=" + std::to_string(r.page_bytes()) +
                 ", mapped_bytes=" + std::to_string(r.mapped_bytes()) + ")";
        });
      });
}

}  // namespace

void bind_pool(py::module_& module) {
  bind_stats(module);
  bind_kv_pool(module);
  bind_virtual_range(module);
}

}  // namespace kvcached::bindings

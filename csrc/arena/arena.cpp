#include "arena/arena.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "vmm/error.hpp"

namespace kvcached {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

bool suits_huge_pages(const Geometry& geometry) {
  return geometry.common_segment_bytes() % kHugePageBytes == 0;
}

const Geometry& suited(const Geometry& geometry, const Capabilities& backend) {
  if (geometry.granularity_bytes() % backend.granularity_bytes == 0) return geometry;
  throw Misuse("geometry was made for a granularity of " + std::to_string(geometry.granularity_bytes()) +
               " bytes, but backend " + backend.kind + " needs a multiple of " +
               std::to_string(backend.granularity_bytes));
}

}  // namespace

Arena::Arena(std::shared_ptr<Vmm> vmm, const Geometry& geometry)
    : vmm_(std::move(vmm)),
      geometry_(suited(geometry, vmm_->capabilities())),
      allows_huge_pages_(suits_huge_pages(geometry_)),
      reservation_(vmm_, geometry_.reservation_bytes(), geometry_.common_segment_bytes()),
      pool_(vmm_) {}

// What may still be mapped keeps its memory and its addresses: anything else would be a guess.
Arena::~Arena() {
  if (is_lost_) {
    for (auto& entry : backed_) {
      for (Mapping& segment : entry.second) segment.abandon();
    }
  }
  backed_.clear();
  if (pool_.held_bytes() != pool_.kept_bytes()) reservation_.abandon();
}

Arena::Staged Arena::stage(const PageRuns& runs) {
  require_usable();
  Staged staged;
  for (const PageRun& run : runs) {
    for (std::size_t page = run.first; page < run.first + run.count; ++page) {
      staged[page].reserve(geometry_.stripes());
    }
  }
  try {
    for (const PageRun& run : runs) {
      for (std::size_t stripe = 0; stripe < geometry_.stripes(); ++stripe) {
        auto pieces = pool_.take(geometry_.segment_bytes(stripe), run.count);
        auto mapped = map_run(*vmm_, segment_address(stripe, run.first), std::move(pieces));
        for (std::size_t i = 0; i < run.count; ++i) staged[run.first + i].push_back(std::move(mapped[i]));
      }
    }
  } catch (...) {
    staged.clear();
    if (pool_.abandoned_bytes() != 0) is_lost_ = true;  // something stayed mapped
    throw;
  }
  return staged;
}

void Arena::unback(const PageRuns& runs, std::size_t& done) {
  try {
    unmap(runs, done);
  } catch (...) {
    release_kept();  // of the runs that are gone
    throw;
  }
  release_kept();
}

void Arena::unmap(const PageRuns& runs, std::size_t& done) {
  done = 0;
  require_usable();
  for (; done < runs.size(); ++done) unmap_run(runs[done]);
}

void Arena::require_room_for(const Geometry& geometry) const {
  suited(geometry, vmm_->capabilities());
  if (geometry.reservation_bytes() > reservation_.bytes()) {
    throw Misuse("the new geometry needs " + std::to_string(geometry.reservation_bytes()) +
                 " bytes of addresses, the reservation has " + std::to_string(reservation_.bytes()) +
                 "; ask for fewer rows, or make a new pool");
  }
  // The kernel would back 2 MiB for every smaller page, which no budget would see.
  if (allows_huge_pages_ && !suits_huge_pages(geometry)) {
    throw Misuse("the range was reserved for huge pages, and the new geometry has pieces of " +
                 std::to_string(geometry.common_segment_bytes()) +
                 " bytes: choose a page size that makes them multiples of " + std::to_string(kHugePageBytes) +
                 ", or make a new pool");
  }
}

ExportedMemory Arena::export_segment(std::size_t page, std::size_t stripe) {
  require_usable();
  return vmm_->export_memory(segment_address(stripe, page), backed_.at(page)[stripe].handle());
}

void Arena::close() {
  if (!reservation_.owner().is_current()) return;  // a forked child: nothing here is its own
  PageRuns runs;
  std::vector<std::size_t> pages;
  for (const auto& entry : backed_) pages.push_back(entry.first);
  std::sort(pages.begin(), pages.end());
  for (const std::size_t page : pages) append_page(runs, page);
  std::size_t done = 0;
  unback(runs, done);
  if (pool_.kept_bytes() != 0) {
    throw DriverError("the driver refused to release " + std::to_string(pool_.kept_bytes()) +
                      " bytes of unmapped memory; close again");
  }
  reservation_.release();
}

void Arena::unmap_run(const PageRun& run) {
  for (std::size_t stripe = 0; stripe < geometry_.stripes(); ++stripe) {
    try {
      const std::vector<Handle> handles = handles_of(run, stripe);
      vmm_->unmap(segment_address(stripe, run.first), geometry_.segment_bytes(stripe), handles.data(),
                  run.count);
    } catch (const UndoFailed&) {
      is_lost_ = true;
      throw;
    } catch (...) {
      restore(run, stripe);
      throw;
    }
  }
  for (std::size_t page = run.first; page < run.first + run.count; ++page) {
    const auto found = backed_.find(page);
    for (Mapping& segment : found->second) segment.mark_unmapped();
    backed_.erase(found);
  }
}

// Maps the first `stripes` segments of a run again. The pages were empty, so what they held does not matter.
void Arena::restore(const PageRun& run, std::size_t stripes) {
  is_lost_ = true;
  for (std::size_t stripe = 0; stripe < stripes; ++stripe) {
    const std::size_t segment_bytes = geometry_.segment_bytes(stripe);
    const std::vector<Handle> handles = handles_of(run, stripe);
    vmm_->map(segment_address(stripe, run.first), segment_bytes, handles.data(), run.count);
    vmm_->set_access(segment_address(stripe, run.first), segment_bytes * run.count);
  }
  is_lost_ = false;
}

Address Arena::segment_address(std::size_t stripe, std::size_t page) const noexcept {
  return base() + geometry_.stripe_offset_bytes(stripe) + page * geometry_.segment_bytes(stripe);
}

std::vector<Handle> Arena::handles_of(const PageRun& run, std::size_t stripe) const {
  std::vector<Handle> handles;
  handles.reserve(run.count);
  for (std::size_t page = run.first; page < run.first + run.count; ++page) {
    handles.push_back(backed_.at(page)[stripe].handle());
  }
  return handles;
}

void Arena::require_usable() const {
  if (is_lost_) {
    throw DriverError(
        "the driver refused both an operation and its undoing earlier: what is mapped is no longer known; "
        "restart this process");
  }
  reservation_.owner().require_current();
}

}  // namespace kvcached

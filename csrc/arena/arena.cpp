#include "arena/arena.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "vmm/error.hpp"

namespace kvcached {
namespace {

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

void Arena::back(const PageRuns& runs) {
  require_usable();
  std::unordered_map<std::size_t, Segments> staged;
  for (const PageRun& run : runs) {
    for (std::size_t page = run.first; page < run.first + run.count; ++page) {
      staged[page].reserve(geometry_.stripes());
    }
  }
  backed_.reserve(backed_.size() + staged.size());  // the merge below must not throw

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
    pool_.trim(0);  // the caller takes its budget back next
    is_lost_ = pool_.held_bytes() != mapped_bytes() + pool_.kept_bytes();  // something stayed mapped
    throw;
  }
  backed_.merge(staged);
}

void Arena::unback(const PageRuns& runs, std::size_t& done) {
  require_usable();
  for (done = 0; done < runs.size(); ++done) unback_run(runs[done]);
  pool_.trim(0);
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

void Arena::unback_run(const PageRun& run) {
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
  if (reservation_.owner().is_current()) return;
  throw Misuse("this memory belongs to the process that reserved it; a forked child must make its own pool");
}

}  // namespace kvcached

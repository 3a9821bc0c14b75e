#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include "arena/geometry.hpp"
#include "arena/mapping.hpp"
#include "arena/page_run.hpp"
#include "pool/page_pool.hpp"
#include "vmm/reservation.hpp"
#include "vmm/vmm.hpp"

namespace kvcached {

// A reserved range whose pages are backed on demand. Addresses never change; only what lies beneath does.
class Arena {
 public:
  using Segments = std::vector<Mapping>;  // one per stripe

  // Pages that are mapped and not part of an arena yet. Destruction unmaps them.
  using Staged = std::unordered_map<std::size_t, Segments>;  // by page

  // Throws Misuse if the geometry does not suit the backend's granularity, OutOfMemory without address space.
  Arena(std::shared_ptr<Vmm> vmm, const Geometry& geometry);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  Address base() const noexcept { return reservation_.base(); }
  std::size_t backed_pages() const noexcept { return backed_.size(); }
  std::size_t mapped_bytes() const noexcept { return backed_.size() * geometry_.page_set_bytes(); }
  bool is_backed(std::size_t page) const noexcept { return backed_.count(page) != 0; }
  // Bytes of physical memory held: mapped, kept for the next back(), or leaked because the driver refused.
  std::size_t held_bytes() const noexcept { return pool_.held_bytes(); }
  std::size_t kept_bytes() const noexcept { return pool_.kept_bytes(); }

  // So that adopting `pages` more cannot fail.
  void make_room(std::size_t pages) { backed_.reserve(backed_.size() + pages); }
  // Maps all pages or none; then the memory made for them is kept, see unmap(). Pre: none of them is backed
  // or being staged. Takes the time that growing takes, and may run on another thread beside every other call
  // that touches other pages.
  Staged stage(const PageRuns& runs);
  // Makes staged pages part of the arena. Pre: room was made for them.
  void adopt(Staged staged) noexcept { backed_.merge(staged); }
  // All of that at once.
  void back(const PageRuns& runs) {
    make_room(count_pages(runs));
    adopt(stage(runs));
  }
  // Unmaps the pages, each run all or not at all, and returns their memory to the device; `done` counts the
  // runs that are gone, also on an exception. Pre: all of them are backed, nobody reads them.
  void unback(const PageRuns& runs, std::size_t& done);
  // The same, but the memory stays with the arena, held and paid for, until the next back() or
  // release_kept().
  void unmap(const PageRuns& runs, std::size_t& done);
  void release_kept() noexcept { pool_.trim(0); }
  // Throws Misuse unless pages of `geometry` can lie in this reservation.
  void require_room_for(const Geometry& geometry) const;
  // Another geometry over the same addresses. Pre: no page is backed, require_room_for(geometry).
  void realign(const Geometry& geometry) { geometry_ = geometry; }
  // The memory of one page in one stripe for another process. Pre: it is backed.
  ExportedMemory export_segment(std::size_t page, std::size_t stripe);
  // Returns all memory and the addresses. Where the driver refuses it throws and can be called again; the
  // destructor does the same but leaks what is refused.
  void close();

 private:
  void require_usable() const;
  Address segment_address(std::size_t stripe, std::size_t page) const noexcept;
  std::vector<Handle> handles_of(const PageRun& run, std::size_t stripe) const;
  void unmap_run(const PageRun& run);
  void restore(const PageRun& run, std::size_t stripes);

  std::shared_ptr<Vmm> vmm_;
  Geometry geometry_;
  bool allows_huge_pages_;   // the range was reserved for pages that are multiples of 2 MiB
  Reservation reservation_;  // outlives the pool and the mappings below
  PagePool pool_;
  Staged backed_;
  std::atomic<bool> is_lost_{false};  // the driver refused both an operation and its undoing
};

}  // namespace kvcached

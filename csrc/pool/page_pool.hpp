// Physical memory by the piece: take, give, trim.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "vmm/process.hpp"
#include "vmm/vmm.hpp"

namespace kvcached {

class PagePool;

// Owns one physical allocation. Goes back to its pool unless abandoned.
class PhysicalPiece {
 public:
  PhysicalPiece() = default;
  PhysicalPiece(PagePool* pool, Handle handle, std::size_t bytes) noexcept
      : pool_(pool), handle_(handle), bytes_(bytes) {}
  PhysicalPiece(PhysicalPiece&& other) noexcept;
  PhysicalPiece& operator=(PhysicalPiece&& other) noexcept;
  ~PhysicalPiece();

  Handle handle() const noexcept { return handle_; }
  std::size_t bytes() const noexcept { return bytes_; }
  // Leaks the allocation: for memory whose unmapping failed and which therefore must not be reused.
  void abandon() noexcept;

 private:
  PagePool* pool_ = nullptr;
  Handle handle_ = 0;
  std::size_t bytes_ = 0;
};

// Keeps returned handles for the next taker, because making one costs a hundred times more than mapping it.
// Kept handles still occupy the device: whoever gives back budget must trim() first. Must outlive its pieces.
// Safe from any thread.
class PagePool {
 public:
  explicit PagePool(std::shared_ptr<Vmm> vmm) : vmm_(std::move(vmm)) {}
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;
  ~PagePool() { trim(0); }

  // `count` pieces of `bytes` each, or OutOfMemory and nothing taken.
  std::vector<PhysicalPiece> take(std::size_t bytes, std::size_t count);
  void give(Handle handle, std::size_t bytes) noexcept;
  // Releases kept handles until at most `keep_bytes` are held; returns the bytes released. What the driver
  // refuses to release stays kept, and counted, for the next try.
  std::size_t trim(std::size_t keep_bytes) noexcept;

  std::size_t kept_bytes() const noexcept { return kept_bytes_; }
  // Bytes of physical memory that the device counts against us: lent, kept, or leaked because a driver
  // refused.
  std::size_t held_bytes() const noexcept { return held_bytes_; }
  // Bytes whose unmapping failed, so that they will never come back.
  std::size_t abandoned_bytes() const noexcept { return abandoned_bytes_; }

 private:
  friend class PhysicalPiece;

  // Moves up to `count` kept handles into `pieces`.
  void take_kept(std::size_t bytes, std::size_t count, std::vector<PhysicalPiece>& pieces);

  std::shared_ptr<Vmm> vmm_;
  std::mutex mutex_;                                 // guards kept_; a leaf, held while a handle is released
  std::map<std::size_t, std::vector<Handle>> kept_;  // by piece size
  std::atomic<std::size_t> kept_bytes_{0};
  std::atomic<std::size_t> held_bytes_{0};  // created and not released
  std::atomic<std::size_t> abandoned_bytes_{0};
  OwnerProcess owner_;
};

}  // namespace kvcached

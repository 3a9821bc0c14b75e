#include "pool/page_pool.hpp"

#include <utility>

#include "vmm/error.hpp"

namespace kvcached {

PhysicalPiece::PhysicalPiece(PhysicalPiece&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), handle_(other.handle_), bytes_(other.bytes_) {}

PhysicalPiece& PhysicalPiece::operator=(PhysicalPiece&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(handle_, other.handle_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PhysicalPiece::~PhysicalPiece() {
  if (pool_ != nullptr) pool_->give(handle_, bytes_);
}

void PhysicalPiece::abandon() noexcept {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->abandoned_bytes_ += bytes_;
}

std::vector<PhysicalPiece> PagePool::take(std::size_t bytes, std::size_t count) {
  std::vector<PhysicalPiece> pieces;
  pieces.reserve(count);
  take_kept(bytes, count, pieces);
  while (pieces.size() < count) {
    pieces.emplace_back(this, vmm_->create(bytes), bytes);
    held_bytes_ += bytes;
  }
  return pieces;
}

void PagePool::take_kept(std::size_t bytes, std::size_t count, std::vector<PhysicalPiece>& pieces) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Handle>& kept = kept_[bytes];
  for (; pieces.size() < count && !kept.empty(); kept.pop_back()) {
    pieces.emplace_back(this, kept.back(), bytes);
    kept_bytes_ -= bytes;
  }
}

void PagePool::give(Handle handle, std::size_t bytes) noexcept {
  if (!owner_.may_undo()) return;
  try {
    if (!vmm_->capabilities().recycles) {
      vmm_->release(handle, bytes);
      held_bytes_ -= bytes;
      return;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    kept_[bytes].push_back(handle);
    kept_bytes_ += bytes;
  } catch (...) {
    // Not kept and not released: leaked until the process ends, which is the only safe thing left.
  }
}

std::size_t PagePool::trim(std::size_t keep_bytes) noexcept {
  std::size_t released_bytes = 0;
  if (!owner_.may_undo()) return released_bytes;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [bytes, handles] : kept_) {
    while (!handles.empty() && kept_bytes_ > keep_bytes) {
      try {
        vmm_->release(handles.back(), bytes);
      } catch (const Error&) {
        return released_bytes;
      }
      handles.pop_back();
      kept_bytes_ -= bytes;
      held_bytes_ -= bytes;
      released_bytes += bytes;
    }
  }
  return released_bytes;
}

}  // namespace kvcached

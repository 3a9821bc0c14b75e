#include "vmm/tracked_vmm.hpp"

#include <algorithm>
#include <string>

#include "vmm/error.hpp"

namespace kvcached {
namespace {

[[noreturn]] void reject(const char* verb, const char* why) { throw Misuse(std::string(verb) + ": " + why); }

template <typename Pieces>
auto find_piece(Pieces& pieces, Handle handle, std::size_t bytes) {
  const auto [begin, end] = pieces.equal_range(handle);
  const auto found = std::find_if(begin, end, [bytes](const auto& piece) { return piece.second == bytes; });
  return found == end ? pieces.end() : found;
}

}  // namespace

TrackedVmm::Live TrackedVmm::live() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  Live live;
  live.reservations = reservations_.size();
  live.pieces = pieces_.size();
  live.mappings = mappings_.size();
  for (const auto& [address, mapped] : mappings_) live.mapped_bytes += mapped.bytes;
  return live;
}

Address TrackedVmm::reserve(std::size_t bytes, std::size_t page_bytes) {
  const std::lock_guard<std::mutex> guard(mutex_);
  require_granular("reserve", bytes);
  const Address base = ForwardingVmm::reserve(bytes, page_bytes);
  reservations_[base] = bytes;
  return base;
}

void TrackedVmm::free_reservation(Address base, std::size_t bytes) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = reservations_.find(base);
  if (found == reservations_.end() || found->second != bytes)
    reject("free_reservation", "not a whole reservation");
  if (!is_free(base, bytes)) reject("free_reservation", "something is still mapped");
  ForwardingVmm::free_reservation(base, bytes);
  reservations_.erase(found);
}

Handle TrackedVmm::create(std::size_t bytes) {
  const std::lock_guard<std::mutex> guard(mutex_);
  require_granular("create", bytes);
  const Handle handle = ForwardingVmm::create(bytes);
  pieces_.emplace(handle, bytes);
  return handle;
}

void TrackedVmm::release(Handle handle, std::size_t bytes) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = find_piece(pieces_, handle, bytes);
  if (found == pieces_.end()) reject("release", "no such piece, or released before");
  const bool has_handles = capabilities().recycles;
  const bool is_mapped = std::any_of(mappings_.begin(), mappings_.end(),
                                     [handle](const auto& entry) { return entry.second.handle == handle; });
  if (has_handles && is_mapped) reject("release", "the piece is still mapped");
  ForwardingVmm::release(handle, bytes);
  pieces_.erase(found);
}

void TrackedVmm::map(Address first, std::size_t piece_bytes, const Handle* handles, std::size_t count) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const std::size_t bytes = piece_bytes * count;
  require_granular("map", first);
  require_granular("map", bytes);
  auto reservation = reservations_.upper_bound(first);
  if (reservation == reservations_.begin()) reject("map", "outside every reservation");
  --reservation;
  if (first + bytes > reservation->first + reservation->second) reject("map", "beyond its reservation");
  if (!is_free(first, bytes)) reject("map", "something is mapped there already");
  for (std::size_t i = 0; i < count; ++i) {
    if (find_piece(pieces_, handles[i], piece_bytes) == pieces_.end()) reject("map", "no such piece");
  }
  ForwardingVmm::map(first, piece_bytes, handles, count);
  for (std::size_t i = 0; i < count; ++i) mappings_[first + i * piece_bytes] = {piece_bytes, handles[i]};
}

void TrackedVmm::set_access(Address first, std::size_t bytes) {
  const std::lock_guard<std::mutex> guard(mutex_);
  Address at = first;
  for (auto it = mappings_.find(first); at < first + bytes; ++it) {
    if (it == mappings_.end() || it->first != at) reject("set_access", "the range is not fully mapped");
    at += it->second.bytes;
  }
  ForwardingVmm::set_access(first, bytes);
}

void TrackedVmm::unmap(Address first, std::size_t piece_bytes, const Handle* handles, std::size_t count) {
  const std::lock_guard<std::mutex> guard(mutex_);
  for (std::size_t i = 0; i < count; ++i) {
    const auto found = mappings_.find(first + i * piece_bytes);
    if (found == mappings_.end()) reject("unmap", "not mapped");
    if (found->second.bytes != piece_bytes || found->second.handle != handles[i])
      reject("unmap", "mapped otherwise");
  }
  ForwardingVmm::unmap(first, piece_bytes, handles, count);
  for (std::size_t i = 0; i < count; ++i) mappings_.erase(first + i * piece_bytes);
}

ExportedMemory TrackedVmm::export_memory(Address first, Handle handle) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = mappings_.find(first);
  if (found == mappings_.end() || found->second.handle != handle) {
    reject("export_memory", "the piece is not mapped there");
  }
  return ForwardingVmm::export_memory(first, handle);
}

void TrackedVmm::require_granular(const char* verb, std::size_t value) const {
  if (value == 0 || value % capabilities().granularity_bytes != 0) {
    reject(verb, "address or size is not a positive multiple of the granularity");
  }
}

bool TrackedVmm::is_free(Address first, std::size_t bytes) const {
  auto above = mappings_.lower_bound(first + bytes);
  if (above == mappings_.begin()) return true;
  --above;
  return above->first + above->second.bytes <= first;
}

}  // namespace kvcached

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arena/zeroed_array.hpp"

namespace kvcached {

// A set of indices below a fixed bound as a hierarchy of bitmaps: bit i of level n + 1 says whether word i of
// level n has any bit. Every operation touches at most one word per level (4 levels for 16 million indices).
class IndexSet {
 public:
  static constexpr std::size_t kNone = SIZE_MAX;

  explicit IndexSet(std::size_t bound);

  bool contains(std::size_t index) const noexcept;
  void insert(std::size_t index) noexcept;
  void erase(std::size_t index) noexcept;
  std::size_t next(std::size_t from) const noexcept;      // least member >= from, or kNone
  std::size_t previous(std::size_t from) const noexcept;  // greatest member <= from, or kNone

 private:
  std::size_t bound_;
  std::vector<ZeroedArray<std::uint64_t>> levels_;
};

}  // namespace kvcached

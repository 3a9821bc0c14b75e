#include "arena/index_set.hpp"

#include "arena/bits.hpp"

namespace kvcached {

using bits::kWordBits;

IndexSet::IndexSet(std::size_t bound) : bound_(bound) {
  std::size_t words = bound;
  do {
    words = (words + kWordBits - 1) / kWordBits;
    levels_.emplace_back(words);
  } while (words > 1);
}

bool IndexSet::contains(std::size_t index) const noexcept {
  return (levels_[0][index / kWordBits] & bits::mask(index)) != 0;
}

void IndexSet::insert(std::size_t index) noexcept {
  for (auto& level : levels_) {
    std::uint64_t& word = level[index / kWordBits];
    const bool was_empty = word == 0;
    word |= bits::mask(index);
    if (!was_empty) return;
    index /= kWordBits;
  }
}

void IndexSet::erase(std::size_t index) noexcept {
  for (auto& level : levels_) {
    std::uint64_t& word = level[index / kWordBits];
    word &= ~bits::mask(index);
    if (word != 0) return;
    index /= kWordBits;
  }
}

std::size_t IndexSet::next(std::size_t from) const noexcept {
  std::size_t words = (bound_ + kWordBits - 1) / kWordBits;
  for (std::size_t depth = 0; depth < levels_.size(); ++depth) {
    const std::size_t at = from / kWordBits;
    if (at >= words) return kNone;
    const std::uint64_t rest = levels_[depth][at] >> (from % kWordBits);
    if (rest != 0) {
      std::size_t found = from + bits::lowest(rest);
      while (depth > 0) {
        --depth;
        found = found * kWordBits + bits::lowest(levels_[depth][found]);
      }
      return found;
    }
    from = at + 1;
    words = (words + kWordBits - 1) / kWordBits;
  }
  return kNone;
}

std::size_t IndexSet::previous(std::size_t from) const noexcept {
  if (bound_ == 0) return kNone;
  if (from >= bound_) from = bound_ - 1;
  for (std::size_t depth = 0; depth < levels_.size(); ++depth) {
    const std::size_t at = from / kWordBits;
    const std::uint64_t upto = ~std::uint64_t{0} >> (kWordBits - 1 - from % kWordBits);
    const std::uint64_t rest = levels_[depth][at] & upto;
    if (rest != 0) {
      std::size_t found = at * kWordBits + bits::highest(rest);
      while (depth > 0) {
        --depth;
        found = found * kWordBits + bits::highest(levels_[depth][found]);
      }
      return found;
    }
    if (at == 0) return kNone;
    from = at - 1;
  }
  return kNone;
}

}  // namespace kvcached

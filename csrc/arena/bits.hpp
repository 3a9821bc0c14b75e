#pragma once

#include <cstddef>
#include <cstdint>

// Sets of positions as arrays of words.
namespace kvcached::bits {

constexpr std::size_t kWordBits = 64;

constexpr std::uint64_t mask(std::size_t position) { return std::uint64_t{1} << (position % kWordBits); }

// Position within a word that is not 0.
inline std::size_t lowest(std::uint64_t word) { return static_cast<std::size_t>(__builtin_ctzll(word)); }
inline std::size_t highest(std::uint64_t word) {
  return kWordBits - 1 - static_cast<std::size_t>(__builtin_clzll(word));
}
inline std::size_t count(std::uint64_t word) { return static_cast<std::size_t>(__builtin_popcountll(word)); }

}  // namespace kvcached::bits

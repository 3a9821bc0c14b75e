// A client's name as the file holds it.
#pragma once

#include <array>
#include <cstring>
#include <string>

#include "ledger/segment.hpp"

namespace kvcached {

inline std::string read_name(const LedgerInfoLine& info) {
  std::array<std::uint64_t, kNameWords> words{};
  for (std::size_t i = 0; i < kNameWords; ++i) words[i] = info.name[i].load();
  std::array<char, kNameBytes> text{};
  std::memcpy(text.data(), words.data(), kNameBytes);
  return std::string(text.data(), ::strnlen(text.data(), kNameBytes));
}

// `name` has fewer than kNameBytes bytes.
inline void write_name(LedgerInfoLine& info, const std::string& name) {
  std::array<std::uint64_t, kNameWords> words{};
  std::memcpy(words.data(), name.data(), name.size());
  for (std::size_t i = 0; i < kNameWords; ++i) info.name[i].store(words[i]);
}

}  // namespace kvcached

#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

namespace kvcached {

// A fixed array that starts as zeros without touching them: per-page tables of a terabyte range then cost
// memory only where pages are in use.
template <typename T>
class ZeroedArray {
  static_assert(std::is_trivially_copyable_v<T>, "zero bytes must be a valid T");

 public:
  explicit ZeroedArray(std::size_t count) : data_(static_cast<T*>(std::calloc(count, sizeof(T)))) {
    if (!data_ && count != 0) throw std::bad_alloc();
  }
  T& operator[](std::size_t index) noexcept { return data_.get()[index]; }
  const T& operator[](std::size_t index) const noexcept { return data_.get()[index]; }

 private:
  struct Free {
    void operator()(T* data) const noexcept { std::free(data); }
  };
  std::unique_ptr<T, Free> data_;
};

}  // namespace kvcached

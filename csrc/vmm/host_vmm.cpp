#include "vmm/host_vmm.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <limits>
#include <string>

#include "vmm/error.hpp"
#include "vmm/system_error.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older headers lack the name
#endif

namespace kvcached {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr std::size_t kDefaultPageBytes = std::size_t{64} << 10;
constexpr const char* kTooManyAreas =
    "ENOMEM here means the kernel's limit on memory areas: raise vm.max_map_count or use larger pages";

void* pointer(Address address) { return reinterpret_cast<void*>(address); }

std::string address_space_left() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return "addresses are limited to " + std::to_string(limit.rlim_cur) + " bytes (ulimit -v)";
}

std::string memory_left() {
  std::ifstream lines("/proc/meminfo");
  for (std::string name; lines >> name;) {
    std::size_t kib = 0;
    if (name == "MemAvailable:" && lines >> kib) {
      return "the system has " + std::to_string(kib << 10) +
             " bytes available; a control group may allow less";
    }
    lines.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return "";
}

void touch_each_page(Address first, std::size_t bytes, std::size_t step) {
  for (Address at = first; at < first + bytes; at += step) *static_cast<volatile char*>(pointer(at)) = 0;
}

// Addresses with private anonymous memory to come, aligned to `alignment`, itself a multiple of a page.
Address take_addresses(std::size_t bytes, std::size_t alignment, std::size_t page) {
  const std::size_t slack = alignment - page;
  void* raw = ::mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    raise_system_error(describe_call("mmap", 0, bytes + slack), errno, address_space_left());
  }
  const Address start = reinterpret_cast<Address>(raw);
  const Address base = (start + alignment - 1) / alignment * alignment;
  if (base > start) ::munmap(raw, base - start);
  if (start + slack > base) ::munmap(pointer(base + bytes), start + slack - base);
  return base;
}

}  // namespace

HostVmm::HostVmm(bool strict) : HostVmm(strict, /*exportable=*/false, MADV_DONTNEED) {}

HostVmm::HostVmm(bool strict, bool exportable, int discard_advice) : discard_advice_(discard_advice) {
  capabilities_.kind = "host";
  capabilities_.granularity_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  capabilities_.default_page_bytes = kDefaultPageBytes;
  capabilities_.strict = strict;
  capabilities_.exportable = exportable;
}

Address HostVmm::reserve(std::size_t bytes, std::size_t page_bytes) {
  const bool huge = page_bytes % kHugePageBytes == 0;
  const std::size_t page = capabilities_.granularity_bytes;
  const Address base = take_addresses(bytes, huge ? kHugePageBytes : page, page);
  try {
    lay(base, bytes);
    // Advice only: where a kernel lacks one of these the range still works. A core dump must not fault in the
    // reservation, and a forked child must not share pages whose budget belongs to its parent.
    ::madvise(pointer(base), bytes, MADV_DONTDUMP);
    ::madvise(pointer(base), bytes, MADV_DONTFORK);
    // Under MADV_HUGEPAGE a populate of 64 KiB commits 2 MiB, which no budget would see.
    ::madvise(pointer(base), bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    if (capabilities_.strict && !capabilities_.exportable) {
      // One write while the whole range is a single area gives all later fragments the same anon_vma; without
      // it neighbours never merge again and mprotect runs into the kernel's limit on areas. Areas of a file
      // merge by their offsets.
      touch_each_page(base, 1, 1);
      discard(base, huge ? kHugePageBytes : page);
    }
    if (capabilities_.strict && ::mprotect(pointer(base), bytes, PROT_NONE) != 0) {
      raise_system_error(describe_call("mprotect", base, bytes), errno, kTooManyAreas);
    }
  } catch (...) {
    free_reservation(base, bytes);
    throw;
  }
  return base;
}

void HostVmm::lay(Address, std::size_t) {}

void HostVmm::free_reservation(Address base, std::size_t bytes) {
  if (::munmap(pointer(base), bytes) != 0) raise_system_error(describe_call("munmap", base, bytes), errno);
}

Handle HostVmm::create(std::size_t) { return 0; }

void HostVmm::release(Handle, std::size_t) {}

void HostVmm::map(Address first, std::size_t piece_bytes, const Handle*, std::size_t count) {
  const std::size_t bytes = piece_bytes * count;
  if (capabilities_.strict && ::mprotect(pointer(first), bytes, PROT_READ | PROT_WRITE) != 0) {
    const int code = errno;
    ::mprotect(pointer(first), bytes, PROT_NONE);  // at the limit on areas a part may have been changed
    raise_system_error(describe_call("mprotect", first, bytes), code, kTooManyAreas);
  }
  try {
    populate(first, bytes);
  } catch (const Error& error) {
    try {
      unmap(first, piece_bytes, nullptr, count);
    } catch (const Error& undo_error) {
      throw UndoFailed(std::string(error.what()) + "; undoing it failed too: " + undo_error.what());
    }
    throw;
  }
}

// map() had to make the range writable in order to commit it.
void HostVmm::set_access(Address, std::size_t) {}

// Memory first, protection second: at the kernel's limit on areas mprotect fails, and the memory must be
// gone all the same. A range that stays accessible then merely loses its strictness.
void HostVmm::unmap(Address first, std::size_t piece_bytes, const Handle*, std::size_t count) {
  discard(first, piece_bytes * count);
  if (capabilities_.strict) ::mprotect(pointer(first), piece_bytes * count, PROT_NONE);
}

ExportedMemory HostVmm::export_memory(Address, Handle) {
  throw Unavailable("anonymous host memory has no file descriptor: ask for exportable memory at creation");
}

void HostVmm::populate(Address first, std::size_t bytes) {
  for (;;) {
    if (::madvise(pointer(first), bytes, MADV_POPULATE_WRITE) == 0) return;
    if (errno == EINTR) continue;
    if (errno != EINVAL) {
      raise_system_error(describe_call("madvise", first, bytes) + " with MADV_POPULATE_WRITE", errno,
                         memory_left());
    }
    touch_each_page(first, bytes, capabilities_.granularity_bytes);  // kernel before 5.14
    return;
  }
}

void HostVmm::discard(Address first, std::size_t bytes) {
  if (::madvise(pointer(first), bytes, discard_advice_) == 0) return;
  // Locked pages (mlockall, say) are not given back; no budget would notice that they stay.
  if (errno == EINVAL && ::munlock(pointer(first), bytes) == 0 &&
      ::madvise(pointer(first), bytes, discard_advice_) == 0) {
    return;
  }
  raise_system_error(
      describe_call("madvise", first, bytes) + " with advice " + std::to_string(discard_advice_), errno);
}

}  // namespace kvcached

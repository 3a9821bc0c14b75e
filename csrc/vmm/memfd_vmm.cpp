#include "vmm/memfd_vmm.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <string>
#include <utility>

#include "vmm/error.hpp"
#include "vmm/range_files.hpp"
#include "vmm/system_error.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // older headers lack the name
#endif

namespace kvcached {
namespace {

// Growing a file beyond this limit raises SIGXFSZ, which ends the process.
void require_file_size(std::size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || bytes <= limit.rlim_cur) return;
  throw Unavailable("an exportable range of " + std::to_string(bytes) +
                    " bytes is a file of that size, but " + "files are limited to " +
                    std::to_string(limit.rlim_cur) + " bytes: raise ulimit -f");
}

FileDescriptor make_file(std::size_t bytes) {
  require_file_size(bytes);
  FileDescriptor file(::memfd_create("kvcached", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0) raise_system_error("memfd_create(kvcached)", errno);
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    raise_system_error("ftruncate(" + std::to_string(bytes) + ")", errno);
  }
  // Who imports the memory must not be able to cut it short: touching it would end this process (SIGBUS).
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    raise_system_error("fcntl(F_ADD_SEALS)", errno);
  }
  return file;
}

}  // namespace

// Without populate, pages of a file come at the first touch, and where memory is short that is a SIGBUS.
MemfdVmm::MemfdVmm(bool strict) : HostVmm(strict, /*exportable=*/true, MADV_REMOVE) {
  if (::madvise(nullptr, 0, MADV_POPULATE_WRITE) == 0) return;
  throw Unavailable("exportable host memory needs MADV_POPULATE_WRITE, that is Linux 5.14 or newer");
}

void MemfdVmm::lay(Address base, std::size_t bytes) {
  FileDescriptor file = make_file(bytes);
  void* const address = reinterpret_cast<void*>(base);
  if (::mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file.get(), 0) ==
      MAP_FAILED) {
    raise_system_error(describe_call("mmap", base, bytes) + " of a file", errno);
  }
  RangeFiles::instance().add(base, std::move(file));
}

// The table first: once the addresses are free another thread may be given the same base.
void MemfdVmm::free_reservation(Address base, std::size_t bytes) {
  FileDescriptor file = RangeFiles::instance().remove(base);
  try {
    HostVmm::free_reservation(base, bytes);
  } catch (...) {
    if (file.get() >= 0) RangeFiles::instance().add(base, std::move(file));
    throw;
  }
}

ExportedMemory MemfdVmm::export_memory(Address first, Handle) { return RangeFiles::instance().share(first); }

}  // namespace kvcached

// What is particular to host memory: what the kernel does and refuses.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "vmm/error.hpp"
#include "vmm/host_vmm.hpp"
#include "vmm/memfd_vmm.hpp"
#include "vmm_range.hpp"

namespace {

using namespace kvcached;
using backends::is_readable;
using backends::Range;

}  // namespace

TEST(vmm_host_populates_only_what_is_mapped) {
  HostVmm vmm(false);
  const std::size_t page = vmm.capabilities().default_page_bytes;
  const std::size_t bytes = std::size_t{16} << 20;  // room for huge pages, which must not come
  const Address base = vmm.reserve(bytes, page);
  const Handle token = vmm.create(page);
  vmm.map(base + bytes / 2, page, &token, 1);
  CHECK_EQ(backends::resident_bytes(base, bytes), page);
  vmm.free_reservation(base, bytes);
}

TEST(vmm_host_huge_ranges_are_aligned_to_huge_pages) {
  HostVmm vmm(false);
  const std::size_t huge = std::size_t{2} << 20;
  const Address base = vmm.reserve(4 * huge, huge);
  CHECK_EQ(base % huge, 0U);
  const Handle token = vmm.create(huge);
  vmm.map(base + huge, huge, &token, 1);
  CHECK_EQ(backends::resident_bytes(base, 4 * huge), huge);
  vmm.free_reservation(base, 4 * huge);
}

TEST(vmm_host_refusals_name_call_arguments_code_and_limit) {
  HostVmm vmm(false);
  CHECK_THROWS(OutOfMemory, "mmap(0x0, 1152921504606846976) failed: ENOMEM (12): Cannot allocate memory",
               vmm.reserve(std::size_t{1} << 60, 4096));
#ifndef __SANITIZE_THREAD__  // which itself has more addresses than the limit leaves
  CHECK(backends::holds_in_child([&vmm] {
    const rlimit small{std::size_t{1} << 40, std::size_t{1} << 40};
    if (::setrlimit(RLIMIT_AS, &small) != 0) return false;
    CHECK_THROWS(OutOfMemory, "addresses are limited to 1099511627776 bytes (ulimit -v)",
                 vmm.reserve(std::size_t{2} << 40, 4096));
    return testing::failures_in_test() == 0;
  }));
#endif
  CHECK_THROWS(DriverError, "munmap(0x1, 4096) failed: EINVAL (22): Invalid argument",
               vmm.free_reservation(1, 4096));
}

// Addresses over an empty file: the kernel refuses to back them, as it does when memory has run out.
class RefusingVmm : public HostVmm {
 public:
  RefusingVmm() : HostVmm(false) {}

 protected:
  void lay(Address base, std::size_t bytes) override {
    const FileDescriptor empty(::memfd_create("empty", MFD_CLOEXEC));
    void* const laid = ::mmap(reinterpret_cast<void*>(base), bytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_FIXED, empty.get(), 0);
    REQUIRE(laid != MAP_FAILED);
  }
};

TEST(vmm_host_memory_that_the_kernel_refuses_is_an_error) {
  RefusingVmm vmm;
  const Address base = vmm.reserve(1 << 20, 4096);
  const Handle token = vmm.create(4096);
  CHECK_THROWS(OutOfMemory, "with MADV_POPULATE_WRITE failed: EFAULT (14)", vmm.map(base, 4096, &token, 1));
  CHECK_THROWS(OutOfMemory, "bytes available", vmm.map(base, 4096, &token, 1));
  vmm.free_reservation(base, 1 << 20);
}

TEST(vmm_host_locked_pages_are_given_back_too) {
  for (const std::shared_ptr<Vmm>& vmm : std::vector<std::shared_ptr<Vmm>>{
           std::make_shared<HostVmm>(false), std::make_shared<MemfdVmm>(false)}) {
    Range range(vmm);
    const auto tokens = range.create(2);
    range.map(0, tokens);
    if (::mlock(range.data(0), range.piece_bytes()) != 0) throw testing::Skipped("mlock is not allowed here");
    range.unmap(0, tokens);
    CHECK_EQ(backends::resident_bytes(range.at(0), 2 * range.piece_bytes()), 0U);
  }
}

// Every second granule accessible makes each of them a memory area of its own, up to the kernel's limit.
template <typename Backend>
void run_into_the_limit_on_areas() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  throw testing::Skipped("sanitizers need memory areas of their own");
#endif
  std::size_t limit = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> limit;
  if (limit == 0 || limit > 100'000) throw testing::Skipped("the limit on memory areas is unknown or high");
  const auto vmm = std::make_shared<Backend>(/*strict=*/true);
  const std::size_t granule = vmm->capabilities().granularity_bytes;
  const std::size_t bytes = (limit + 2) * granule;
  const Address base = vmm->reserve(bytes, granule);
  const Handle token = vmm->create(granule);
  Address next = base;
  CHECK_THROWS(
      OutOfMemory, "vm.max_map_count", for (; next < base + bytes; next += 2 * granule) {
        vmm->map(next, granule, &token, 1);
        *reinterpret_cast<char*>(next) = 5;
      });
  CHECK(next > base + limit / 2 * granule);
  CHECK(!is_readable(next));
  CHECK_EQ(static_cast<int>(*reinterpret_cast<char*>(base)), 5);
  for (Address at = base; at < next; at += 2 * granule) vmm->unmap(at, granule, &token, 1);
  CHECK_EQ(backends::resident_bytes(base, bytes), 0U);
  CHECK(!is_readable(base));
  vmm->map(base, granule, &token, 1);  // the areas have merged again: there is room
  vmm->map(next, granule, &token, 1);
  vmm->free_reservation(base, bytes);
}

TEST(vmm_host_the_limit_on_areas_is_an_error_and_memory_still_goes) {
  run_into_the_limit_on_areas<HostVmm>();
}

TEST(vmm_memfd_the_limit_on_areas_is_an_error_and_memory_still_goes) {
  run_into_the_limit_on_areas<MemfdVmm>();
}

TEST(vmm_memfd_pages_lie_in_the_file_where_they_lie_in_the_range) {
  Range range(std::make_shared<MemfdVmm>(true));
  const auto tokens = range.create(3);
  range.map(4, tokens);
  CHECK_EQ(range.vmm().export_memory(range.at(6), tokens[2]).offset_bytes, 6 * range.piece_bytes());
  range.unmap(4, tokens);
}

TEST(vmm_memfd_unmapping_returns_the_memory_of_importers_too) {
  Range range(std::make_shared<MemfdVmm>(false));
  const auto tokens = range.create(2);
  range.map(0, tokens);
  const ExportedMemory shared = range.vmm().export_memory(range.at(0), tokens[0]);
  void* seen = ::mmap(nullptr, range.piece_bytes(), PROT_READ, MAP_SHARED, shared.fd.get(), 0);
  REQUIRE(seen != MAP_FAILED);
  range.data(0)[0] = 1;
  CHECK_EQ(static_cast<int>(*static_cast<char*>(seen)), 1);
  range.unmap(0, tokens);
  CHECK_EQ(backends::resident_bytes(reinterpret_cast<Address>(seen), range.piece_bytes()), 0U);
  ::munmap(seen, range.piece_bytes());
}

TEST(vmm_memfd_an_importer_can_neither_cut_nor_stretch_the_file) {
  Range range(std::make_shared<MemfdVmm>(false));
  const auto tokens = range.create(1);
  range.map(0, tokens);
  const ExportedMemory shared = range.vmm().export_memory(range.at(0), tokens[0]);
  CHECK(::ftruncate(shared.fd.get(), 0) != 0);
  CHECK(::ftruncate(shared.fd.get(), 1 << 30) != 0);
  range.unmap(0, tokens);
}

TEST(vmm_memfd_a_forked_child_does_not_keep_its_parents_memory) {
  const Range range(std::make_shared<MemfdVmm>(false));
  const auto files_of_ours = [] {
    long count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string target = std::filesystem::read_symlink(entry, gone).string();
      count += target.find("memfd:kvcached") != std::string::npos ? 1 : 0;
    }
    return count;
  };
  CHECK_EQ(files_of_ours(), 1);
  CHECK(backends::holds_in_child([&] { return files_of_ours() == 0; }));
}

TEST(vmm_memfd_a_limit_on_file_sizes_is_an_error_and_not_a_signal) {
  CHECK(backends::holds_in_child([] {
    const rlimit small{1 << 20, 1 << 20};
    if (::setrlimit(RLIMIT_FSIZE, &small) != 0) return false;
    MemfdVmm vmm(false);
    CHECK_THROWS(Unavailable, "1048576 bytes: raise ulimit -f", vmm.reserve(2 << 20, 4096));
    vmm.free_reservation(vmm.reserve(1 << 20, 4096), 1 << 20);
    return testing::failures_in_test() == 0;
  }));
}

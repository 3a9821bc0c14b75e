#include "backends.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "faulty_vmm.hpp"
#include "vmm/cuda_driver.hpp"
#include "vmm/cuda_vmm.hpp"
#include "vmm/host_vmm.hpp"
#include "vmm/limited_vmm.hpp"
#include "vmm/memfd_vmm.hpp"
#include "vmm/tracked_vmm.hpp"

namespace backends {
namespace {

using namespace kvcached;

constexpr std::size_t kRoomyBytes = std::size_t{1} << 40;

class Pipe {
 public:
  Pipe() {
    if (::pipe(ends_) != 0) throw std::runtime_error("pipe");
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  bool take_from(const void* address) const { return ::write(ends_[1], address, 1) == 1; }
  bool put_into(void* address) const { return ::read(ends_[0], address, 1) == 1; }

 private:
  int ends_[2];
};

std::shared_ptr<Vmm> make_cuda(int device, bool exportable = false) {
  standin();
  return std::make_shared<CudaVmm>(device, exportable);
}

std::vector<Kit> make_kits() {
  std::vector<Kit> kits = {
      {"host", [] { return std::make_shared<HostVmm>(false); }},
      {"memfd", [] { return std::make_shared<MemfdVmm>(false); }},
      {"cuda", [] { return make_cuda(0); }},
      {"cuda_second_device", [] { return make_cuda(1); }},
  };
  const std::vector<Kit> adapted = {
      {"host_strict", [] { return std::make_shared<HostVmm>(true); }},
      {"memfd_strict", [] { return std::make_shared<MemfdVmm>(true); }},
      {"cuda_exportable", [] { return make_cuda(0, true); }},
  };
  for (const Kit& kit : adapted) {
    const auto make = kit.make;
    kits.push_back(kit);
    kits.push_back(
        {"limited_" + kit.name, [make] { return std::make_shared<LimitedVmm>(make(), kRoomyBytes); }});
    kits.push_back({"tracked_" + kit.name, [make] { return std::make_shared<TrackedVmm>(make()); }});
    kits.push_back({"faulty_" + kit.name, [make] { return std::make_shared<FaultyVmm>(make()); }});
  }
  return kits;
}

template <typename Symbol>
Symbol find(void* library, const char* name) {
  void* found = ::dlsym(library, name);
  if (found == nullptr) throw std::runtime_error(std::string("the stand-in lacks ") + name);
  return reinterpret_cast<Symbol>(found);
}

Standin load_standin() {
  cuda::set_library_path(KVCACHED_STANDIN_PATH);
  void* library = ::dlopen(KVCACHED_STANDIN_PATH, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error("the stand-in cannot be loaded: " KVCACHED_STANDIN_PATH);
  return {find<decltype(&standin_fail)>(library, "standin_fail"),
          find<decltype(&standin_break)>(library, "standin_break"),
          find<decltype(&standin_mend)>(library, "standin_mend"),
          find<decltype(&standin_calls)>(library, "standin_calls"),
          find<decltype(&standin_state)>(library, "standin_state"),
          find<decltype(&standin_last_violation)>(library, "standin_last_violation"),
          find<decltype(&standin_set_total_bytes)>(library, "standin_set_total_bytes"),
          find<decltype(&standin_set_granularity)>(library, "standin_set_granularity"),
          find<decltype(&standin_set_attribute)>(library, "standin_set_attribute"),
          find<decltype(&standin_held_bytes)>(library, "standin_held_bytes"),
          find<decltype(&standin_forgive)>(library, "standin_forgive"),
          find<decltype(&standin_reset)>(library, "standin_reset")};
}

}  // namespace

const std::vector<Kit>& all() {
  static const std::vector<Kit> kits = make_kits();
  return kits;
}

const Standin& standin() {
  static const Standin loaded = load_standin();
  return loaded;
}

void Standin::check_clean() const {
  const StandinState now = state();
  CHECK_EQ(now.allocations, 0);
  CHECK_EQ(now.mappings, 0);
  CHECK_EQ(now.reservations, 0);
  CHECK_EQ(now.contexts, 0);
  CHECK_EQ(now.held_bytes, 0);
  if (now.violations != 0)
    testing::report(__FILE__, __LINE__, std::string("driver rule broken: ") + last_violation());
}

bool is_readable(Address address) { return Pipe().take_from(reinterpret_cast<const void*>(address)); }

bool is_writable(Address address) {
  const Pipe pipe;
  const char byte = 1;
  return pipe.take_from(&byte) && pipe.put_into(reinterpret_cast<void*>(address));
}

bool holds_in_child(const std::function<bool()>& condition) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(condition() ? 0 : 1);
  int status = -1;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::size_t resident_bytes(Address first, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> present(bytes / page);
  if (::mincore(reinterpret_cast<void*>(first), bytes, present.data()) != 0)
    throw std::runtime_error("mincore");
  std::size_t resident = 0;
  for (const unsigned char flag : present) resident += (flag & 1U) != 0 ? page : 0;
  return resident;
}

std::size_t resident_bytes() {
  std::ifstream lines("/proc/self/smaps_rollup");  // counted page by page, unlike statm
  for (std::string name; lines >> name;) {
    std::size_t kib = 0;
    if (name == "Rss:" && lines >> kib) return kib << 10;
  }
  throw std::runtime_error("/proc/self/smaps_rollup has no Rss");
}

}  // namespace backends

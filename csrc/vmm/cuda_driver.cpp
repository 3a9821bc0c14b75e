#include "vmm/cuda_driver.hpp"

#include <dlfcn.h>

#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "vmm/error.hpp"

namespace kvcached::cuda {
namespace {

constexpr const char* kSystemLibrary = "libcuda.so.1";

using GetProcAddressV2 = Result (*)(const char*, void**, int, std::uint64_t, int*);
using GetProcAddressV1 = Result (*)(const char*, void**, int, std::uint64_t);

// The whole state of loading: tried once, the outcome kept for ever.
struct Loader {
  std::mutex mutex;
  std::string path = kSystemLibrary;
  bool is_tried = false;
  std::string failure;  // empty: `driver` is usable
  Driver driver;
};

Loader& loader() {
  static Loader* const instance = new Loader;  // outlives every static destructor that may still call it
  return *instance;
}

// cuGetProcAddress gives the ABI version we were written against; plain dlsym may give an older one.
class Resolver {
 public:
  explicit Resolver(void* library)
      : library_(library),
        v2_(reinterpret_cast<GetProcAddressV2>(::dlsym(library, "cuGetProcAddress_v2"))),
        v1_(reinterpret_cast<GetProcAddressV1>(::dlsym(library, "cuGetProcAddress"))) {}

  void* find(const char* name, const char* symbol, int version) const {
    void* found = nullptr;
    int status = 0;
    if (v2_ != nullptr) {
      if (v2_(name, &found, version, 0, &status) != kSuccess) found = nullptr;
    } else if (v1_ != nullptr && v1_(name, &found, version, 0) != kSuccess) {
      found = nullptr;
    }
    return found != nullptr ? found : ::dlsym(library_, symbol);
  }

 private:
  void* library_;
  GetProcAddressV2 v2_;
  GetProcAddressV1 v1_;
};

std::string load(const std::string& path, Driver& driver) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return "no CUDA driver: " + std::string(why != nullptr ? why : path);
  }
  const Resolver resolver(library);
#define KVCACHED_CUDA_RESOLVE(member, name, symbol, version, signature)                        \
  driver.member = reinterpret_cast<Result(*) signature>(resolver.find(name, symbol, version)); \
  if (driver.member == nullptr) return "the CUDA driver " + path + " lacks " name "; update the driver";
  KVCACHED_CUDA_FUNCTIONS(KVCACHED_CUDA_RESOLVE)
#undef KVCACHED_CUDA_RESOLVE
  const Result code = driver.Init(0);
  return code == kSuccess ? "" : "cuInit(0) failed: " + driver.explain(code);
}

}  // namespace

std::string Driver::explain(Result code) const {
  const char* name = nullptr;
  const char* text = nullptr;
  GetErrorName(code, &name);
  GetErrorString(code, &text);
  return std::string(name != nullptr ? name : "unknown error") + " (" + std::to_string(code) + ")" +
         (text != nullptr ? std::string(": ") + text : "");
}

void set_library_path(std::optional<std::string> path) {
  Loader& state = loader();
  const std::lock_guard<std::mutex> guard(state.mutex);
  std::string wanted = path.value_or(kSystemLibrary);
  if (wanted == state.path) return;
  if (state.is_tried) {
    throw Misuse("the CUDA driver was already looked for at " + state.path + "; set " + wanted +
                 " before the first use of CUDA");
  }
  state.path = std::move(wanted);
}

const Driver& driver() {
  Loader& state = loader();
  const std::lock_guard<std::mutex> guard(state.mutex);
  if (!state.is_tried) {
    state.failure = load(state.path, state.driver);
    state.is_tried = true;
  }
  if (!state.failure.empty()) throw Unavailable(state.failure);
  return state.driver;
}

std::optional<std::string> unavailable_reason() noexcept {
  try {
    const Driver& cuda = driver();
    int devices = 0;
    if (const Result code = cuda.DeviceGetCount(&devices); code != kSuccess) {
      return "cuDeviceGetCount failed: " + cuda.explain(code);
    }
    for (int index = 0; index < devices; ++index) {
      Device device = 0;
      int supported = 0;
      if (cuda.DeviceGet(&device, index) == kSuccess &&
          cuda.DeviceGetAttribute(&supported, kAttributeVmmSupported, device) == kSuccess && supported != 0) {
        return std::nullopt;
      }
    }
    return "none of the " + std::to_string(devices) + " CUDA devices supports virtual memory management";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace kvcached::cuda

// Every backend and adaptor under one roof: a test written once runs over all of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libcuda_standin.hpp"
#include "testing.hpp"
#include "vmm/vmm.hpp"

namespace backends {

struct Kit {
  std::string name;
  std::function<std::shared_ptr<kvcached::Vmm>()> make;
};

const std::vector<Kit>& all();

// The stand-in's controls; loading it makes it this process's CUDA driver.
struct Standin {
  decltype(&standin_fail) fail;
  decltype(&standin_break) break_down;
  decltype(&standin_mend) mend;
  decltype(&standin_calls) calls;
  decltype(&standin_state) state_into;
  decltype(&standin_last_violation) last_violation;
  decltype(&standin_set_total_bytes) set_total_bytes;
  decltype(&standin_set_granularity) set_granularity;
  decltype(&standin_set_attribute) set_attribute;
  decltype(&standin_held_bytes) held_bytes;
  decltype(&standin_forgive) forgive;
  decltype(&standin_reset) reset;

  StandinState state() const {
    StandinState now{};
    state_into(&now);
    return now;
  }
  // Nothing left behind and no rule broken.
  void check_clean() const;
};
const Standin& standin();

// Asked of the kernel, so that a "no" is an answer and not a crash.
bool is_readable(kvcached::Address address);
bool is_writable(kvcached::Address address);
std::size_t resident_bytes(kvcached::Address first, std::size_t bytes);
std::size_t resident_bytes();  // of this process

// Whether it holds in a forked child.
bool holds_in_child(const std::function<bool()>& condition);

struct EachRegistrar {
  EachRegistrar(const std::string& name, void (*body)(const Kit&)) {
    for (const Kit& kit : all()) {
      testing::registry().push_back({name + "<" + kit.name + ">", [body, &kit] {
                                       body(kit);
                                       standin().check_clean();
                                     }});
    }
  }
};

}  // namespace backends

#define TEST_EACH_BACKEND(name)                                                \
  static void test_##name(const ::backends::Kit& kit);                         \
  static const ::backends::EachRegistrar registrar_##name(#name, test_##name); \
  static void test_##name([[maybe_unused]] const ::backends::Kit& kit)

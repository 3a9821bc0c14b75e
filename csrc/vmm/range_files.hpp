#pragma once

#include <map>
#include <mutex>

#include "vmm/file_descriptor.hpp"
#include "vmm/vmm.hpp"

namespace kvcached {

// The files beneath this process's reservations. A forked child drops them: a descriptor that it inherited
// would keep the memory of its dead parent.
class RangeFiles {
 public:
  static RangeFiles& instance();

  void add(Address base, FileDescriptor file);
  // The file beneath the range at `base`; an empty descriptor if there is none.
  FileDescriptor remove(Address base);
  // Another descriptor of the file beneath `address`, and how far into the file that is.
  // Pre: `address` lies in a range that was added.
  ExportedMemory share(Address address);

 private:
  RangeFiles();
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  std::mutex mutex_;
  std::map<Address, FileDescriptor> files_;  // by base
};

}  // namespace kvcached

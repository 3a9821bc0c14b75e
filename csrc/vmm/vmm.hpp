// The backend contract: verbs over virtual addresses and physical memory, and what differs as data.
//
//   reserve -> [create -> map -> set_access -> unmap -> release]* -> free_reservation
//
// Every address and size is a multiple of capabilities().granularity_bytes. A call that throws has no effect,
// unless it throws UndoFailed. Nothing is locked for the caller: one caller at a time per reservation, create
// and release from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "vmm/file_descriptor.hpp"

namespace kvcached {

using Address = std::uintptr_t;
using Handle = std::uint64_t;  // names one physical allocation of a backend; meaningless elsewhere

struct Capabilities {
  std::string kind;  // "host" or "cuda"
  int device = 0;
  std::size_t granularity_bytes = 0;
  std::size_t default_page_bytes = 0;
  bool strict = false;      // touching an unbacked address faults
  bool exportable = false;  // physical memory can be handed to another process as a file descriptor
  bool recycles = false;    // a released handle is worth keeping: making one is slow, or it holds memory
};

// Physical memory that another process can map: from `offset_bytes` of the descriptor on.
struct ExportedMemory {
  FileDescriptor fd;
  std::size_t offset_bytes = 0;
};

class Vmm {
 public:
  Vmm() = default;
  Vmm(const Vmm&) = delete;
  Vmm& operator=(const Vmm&) = delete;
  virtual ~Vmm() = default;

  virtual const Capabilities& capabilities() const noexcept = 0;

  // Addresses only, no memory. `page_bytes` is the largest unit in which the range will be mapped: the base
  // is aligned to it as far as the backend cares, and the host allows huge pages only where it is a multiple
  // of 2 MiB.
  virtual Address reserve(std::size_t bytes, std::size_t page_bytes) = 0;
  // Pre: a whole reservation with nothing mapped in it.
  virtual void free_reservation(Address base, std::size_t bytes) = 0;

  // Throws OutOfMemory when the device has no room. Backends that commit memory in map() return a token.
  virtual Handle create(std::size_t bytes) = 0;
  // Pre: `handle` was made with `bytes` and is not mapped.
  virtual void release(Handle handle, std::size_t bytes) = 0;

  // Maps `count` handles of `piece_bytes` each one after another from `first`: all of them or none.
  // Pre: the addresses lie inside one reservation and nothing is mapped there; no handle is mapped elsewhere.
  // Post: memory is committed, access undefined until set_access.
  virtual void map(Address first, std::size_t piece_bytes, const Handle* handles, std::size_t count) = 0;
  // Pre: [first, first + bytes) is fully mapped. Post: readable and writable.
  virtual void set_access(Address first, std::size_t bytes) = 0;
  // Pre: `handles` are mapped there, in this order and size; nobody reads the range any more.
  // Post: contents are lost; a strict backend faults on the next touch. All of them or none: a backend that
  // fails half-way maps the first pieces again.
  virtual void unmap(Address first, std::size_t piece_bytes, const Handle* handles, std::size_t count) = 0;

  // Pre: `handle` is mapped at `first`. Throws Unavailable where capabilities().exportable is false. Whoever
  // holds the descriptor of a driver's memory keeps that memory alive, whatever is unmapped or released here.
  virtual ExportedMemory export_memory(Address first, Handle handle) = 0;
};

}  // namespace kvcached

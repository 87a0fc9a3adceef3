#pragma once

#include "generated/shared_context_generated.h"
#include "program/shared_context_reader.h"

namespace etshared::runtime {

inline Failure bad(const std::string& message) {
  return Failure{
      FailureKind::kContextFormat, concat("damaged record: ", message)};
}

inline std::string text(const flatbuffers::String* string) {
  return string == nullptr ? std::string() : string->str();
}

template <typename T>
size_t count(const flatbuffers::Vector<T>* vector) {
  return vector == nullptr ? 0 : vector->size();
}

/// Reads the entry points of a record that has passed the FlatBuffers verifier.
Status read_entry_points(const SharedContext& context, ContextRecord& record);

} // namespace etshared::runtime

#include "program/shared_context_reader.h"

#include <algorithm>
#include <map>
#include <set>

#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>

#include "program/shared_context_parts.h"
#include "program/tensor_layout.h"

namespace etshared::runtime {
namespace {

Status read_buffers(const SharedContext& context, ContextRecord& record) {
  std::set<std::string> names;
  std::map<uint32_t, uint64_t> ends;
  for (size_t i = 0; i < count(context.buffers()); ++i) {
    const Buffer& source = *context.buffers()->Get(i);
    BufferRecord buffer;
    buffer.fqn = text(source.fqn());
    buffer.scalar_type = static_cast<ScalarType>(source.scalar_type());
    if (source.sizes() != nullptr) {
      buffer.sizes.assign(source.sizes()->begin(), source.sizes()->end());
    }
    if (source.dim_order() != nullptr) {
      buffer.dim_order.assign(
          source.dim_order()->begin(), source.dim_order()->end());
    }
    buffer.mem_id = source.mem_id();
    buffer.offset = source.offset();
    buffer.nbytes = source.nbytes();
    buffer.is_zero_initially = source.initial_value() == InitialValue::ZERO;

    if (buffer.fqn.empty() || !names.insert(buffer.fqn).second) {
      return bad(concat(
          "buffer ", i, " has the empty or repeated name ", quoted(buffer.fqn)));
    }
    for (size_t j = 0; j < count(source.aliases()); ++j) {
      if (!names.insert(text(source.aliases()->Get(j))).second) {
        return bad(concat(
            "two buffers are called ", quoted(text(source.aliases()->Get(j)))));
      }
    }
    if (!is_exchangeable(buffer.scalar_type)) {
      return bad(concat(
          "buffer ", quoted(buffer.fqn), " has scalar type ",
          static_cast<int>(buffer.scalar_type)));
    }
    if (dense_nbytes(buffer.sizes, buffer.scalar_type) != buffer.nbytes ||
        !is_dim_order(buffer.dim_order, buffer.sizes.size())) {
      return bad(concat(
          "buffer ", quoted(buffer.fqn),
          " has sizes, dim order and nbytes that do not fit together"));
    }
    uint64_t end = 0;
    if (buffer.mem_id == 0 ||
        __builtin_add_overflow(buffer.offset, buffer.nbytes, &end) ||
        buffer.offset % et::elementSize(buffer.scalar_type) != 0 ||
        buffer.offset < ends[buffer.mem_id]) {
      return bad(concat(
          "buffer ", quoted(buffer.fqn), " lies at offset ", buffer.offset,
          " of mem_id ", buffer.mem_id, ", which is misplaced"));
    }
    ends[buffer.mem_id] = end;
    record.buffers.push_back(std::move(buffer));
  }
  return success();
}

Status read_options(const Delegate& source, DelegateRecord& delegate) {
  for (size_t i = 0; i < count(source.options()); ++i) {
    const BackendOption& option = *source.options()->Get(i);
    const std::string key = text(option.key());
    const std::string value = text(option.value());
    if (!fits_option(delegate.backend_id, key, value)) {
      return bad(concat(
          "a delegate for ", quoted(delegate.backend_id), " has the option ",
          quoted(key), ", which is empty or too long"));
    }
    // A file must not choose what the backend writes to.
    if (delegate.backend_id == kXnnpackBackend &&
        key == kPackedCachePathOption) {
      return bad(concat(
          "a delegate for ", quoted(delegate.backend_id), " has the option ",
          quoted(key), ", which only the runtime may set"));
    }
    delegate.options.emplace_back(key, value);
  }
  return success();
}

Status read_keys(
    const SharedContext& context,
    const Delegate& source,
    DelegateRecord& delegate) {
  for (size_t i = 0; i < count(source.weights()); ++i) {
    const uint32_t weight = source.weights()->Get(i);
    if (weight >= count(context.weights())) {
      return bad(concat(
          "a delegate uses weight ", weight, " of ", count(context.weights())));
    }
    const Weight& constant = *context.weights()->Get(weight);
    for (size_t j = 0; j < count(constant.keys()); ++j) {
      const std::string key = text(constant.keys()->Get(j));
      if (constant.external()) {
        delegate.external.emplace(key, constant.nbytes());
      } else {
        delegate.keys.insert(key);
      }
    }
  }
  return success();
}

Status read_delegates(const SharedContext& context, ContextRecord& record) {
  std::set<std::pair<uint32_t, uint32_t>> places;
  for (size_t i = 0; i < count(context.delegates()); ++i) {
    const Delegate& source = *context.delegates()->Get(i);
    DelegateRecord delegate;
    delegate.backend_id = text(source.backend_id());
    delegate.entry_point = source.entry_point();
    delegate.index = source.index();
    delegate.payload_nbytes = source.payload_nbytes();
    if (delegate.entry_point >= record.entry_points.size()) {
      return bad(concat(
          "delegate ", i, " belongs to entry point ", delegate.entry_point,
          " of ", record.entry_points.size()));
    }
    if (!places.insert({delegate.entry_point, delegate.index}).second) {
      return bad(concat("delegate ", i, " is described twice"));
    }
    if (count(source.payload_digest()) != delegate.payload_digest.size()) {
      return bad(concat(
          "delegate ", i, " has a digest of ", count(source.payload_digest()),
          " bytes, expected ", delegate.payload_digest.size()));
    }
    std::copy(
        source.payload_digest()->begin(),
        source.payload_digest()->end(),
        delegate.payload_digest.begin());
    ETSHARED_RETURN_IF_FAILED(read_options(source, delegate));
    ETSHARED_RETURN_IF_FAILED(read_keys(context, source, delegate));
    record.delegates.push_back(std::move(delegate));
  }
  return success();
}

} // namespace

Outcome<ContextRecord> read_shared_context(const uint8_t* data, size_t size) {
  flatbuffers::Verifier verifier(data, size);
  if (!VerifySharedContextBuffer(verifier)) {
    return bad("its tables are inconsistent, truncated or not a record");
  }
  const SharedContext& context = *GetSharedContext(data);
  if (context.version() != kContextVersion) {
    return Failure{
        FailureKind::kContextFormat,
        concat(
            "the record has version ", context.version(), ", expected ",
            kContextVersion, "; use the release of etshared_plugin that wrote "
            "the program, or export again")};
  }
  ContextRecord record;
  ETSHARED_RETURN_IF_FAILED(read_entry_points(context, record));
  ETSHARED_RETURN_IF_FAILED(read_buffers(context, record));
  ETSHARED_RETURN_IF_FAILED(read_delegates(context, record));
  return record;
}

} // namespace etshared::runtime

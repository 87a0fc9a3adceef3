#include "session/session.h"

#include <algorithm>
#include <optional>

#include <executorch/extension/threadpool/threadpool_guard.h>

#include "program/input_checks.h"

namespace etshared::runtime {
namespace {

Failure out_of_memory(const char* what) {
  return Failure{
      FailureKind::kExecutorch,
      concat("cannot allocate memory for ", what),
      {},
      et::Error::MemoryAllocationFailed};
}

/// Puts back what a stock program's initial values overwrite at every load.
class StateGuard {
 public:
  StateGuard(const Arenas& arenas, const MethodPlan& plan)
      : arenas_(arenas), plan_(plan) {
    for (const InitialRange& range : plan_.initial_ranges) {
      const uint8_t* live = arenas_.at(range.mem_id, range.offset);
      saved_.insert(saved_.end(), live, live + range.nbytes);
    }
  }
  ~StateGuard() {
    const uint8_t* next = saved_.data();
    for (const InitialRange& range : plan_.initial_ranges) {
      std::copy_n(next, range.nbytes, arenas_.at(range.mem_id, range.offset));
      next += range.nbytes;
    }
  }
  StateGuard(const StateGuard&) = delete;
  StateGuard& operator=(const StateGuard&) = delete;

 private:
  const Arenas& arenas_;
  const MethodPlan& plan_;
  std::vector<uint8_t> saved_;
};

/// Keeps work off the thread pool. A delegate goes on as it was loaded.
class ThreadScope {
 public:
  explicit ThreadScope(SessionThreads threads) {
    if (threads == SessionThreads::kCaller) {
      guard_.emplace();
    }
  }

 private:
  std::optional<executorch::extension::threadpool::NoThreadPoolGuard> guard_;
};

} // namespace

Outcome<std::unique_ptr<Session>> Session::create(
    std::shared_ptr<MethodLoader> loader,
    SessionThreads threads) {
  auto arenas = Arenas::allocate(loader->program()->arena_nbytes());
  if (arenas == nullptr) {
    return out_of_memory("the arenas of a session");
  }
  std::unique_ptr<Session> session(
      new Session(std::move(loader), std::move(arenas), threads));
  ETSHARED_RETURN_IF_FAILED(session->reset());
  return session;
}

Status Session::check_alive() const {
  if (poison_.empty()) {
    return success();
  }
  return Failure{
      FailureKind::kSessionPoisoned,
      concat(
          "an earlier call of this session failed midway (", poison_,
          "), so its state is not to be trusted; call reset() or restore() "
          "first")};
}

Status Session::load_locked(size_t method) {
  if (methods_[method] != nullptr) {
    return success();
  }
  const StateGuard guard(*arenas_, program()->methods()[method]);
  const ThreadScope threads(threads_);
  return methods_.load(method);
}

Status Session::load(size_t method) {
  const std::lock_guard lock(mutex_);
  return load_locked(method);
}

bool Session::is_loaded(size_t method) {
  const std::lock_guard lock(mutex_);
  return methods_[method] != nullptr;
}

Outcome<std::vector<OutputValue>> Session::call(
    size_t method,
    const std::vector<InputValue>& inputs) {
  const MethodPlan& plan = program()->methods()[method];
  ETSHARED_RETURN_IF_FAILED(check_inputs(plan, inputs));

  const std::lock_guard lock(mutex_);
  ETSHARED_RETURN_IF_FAILED(check_alive());
  ETSHARED_RETURN_IF_FAILED(load_locked(method));
  LoadedMethod& loaded = *methods_[method];
  ETSHARED_RETURN_IF_FAILED(loaded.set_inputs(inputs));
  const ThreadScope threads(threads_);
  auto executed = loaded.execute();
  if (!executed.ok()) {
    poison_ = executed.failure().message;
    return std::move(executed.failure());
  }
  auto outputs = loaded.take_outputs();
  if (!outputs.ok()) {
    poison_ = outputs.failure().message;
  }
  return outputs;
}

std::vector<size_t> Session::all_buffers() const {
  std::vector<size_t> buffers;
  if (program()->context()) {
    for (size_t i = 0; i < program()->context()->buffers.size(); ++i) {
      buffers.push_back(i);
    }
  }
  return buffers;
}

Status Session::reset() {
  const std::lock_guard lock(mutex_);
  if (!program()->context()) {
    // What is state is not known: everything starts anew.
    for (const et::Span<uint8_t>& span : arenas_->spans()) {
      std::fill(span.begin(), span.end(), uint8_t{0});
    }
  }
  ETSHARED_RETURN_IF_FAILED(write_initial_data());
  ETSHARED_RETURN_IF_FAILED(write_initial_values(all_buffers()));
  poison_.clear();
  return success();
}

Status Session::reset(const std::vector<size_t>& buffers) {
  const std::lock_guard lock(mutex_);
  ETSHARED_RETURN_IF_FAILED(check_alive());
  return write_initial_values(buffers);
}

Status Session::write_initial_data() {
  for (const MethodPlan& plan : program()->methods()) {
    for (const InitialRange& range : plan.initial_ranges) {
      const uint8_t* data = program()->initial_data(range);
      if (data == nullptr) {
        return Failure{
            FailureKind::kProgramFormat,
            concat(
                "damaged program: entry point ", quoted(plan.name),
                " has state without its initial value"),
            plan.name};
      }
      std::copy_n(data, range.nbytes, arenas_->at(range.mem_id, range.offset));
    }
  }
  return success();
}

Status Session::run_generated(Arenas& scratch) const {
  const size_t method = program()->generated_method().value();
  et::HierarchicalAllocator allocator(scratch.spans());
  const ThreadScope threads(threads_);
  MethodLoader::Owner methods(loader_, &allocator);
  ETSHARED_RETURN_IF_FAILED(methods.load(method));
  ETSHARED_RETURN_IF_FAILED(methods[method]->set_inputs({}));
  return methods[method]->execute();
}

Status Session::write_initial_values(const std::vector<size_t>& buffers) {
  if (buffers.empty()) {
    return success();
  }
  const auto& records = program()->context()->buffers;
  const bool is_given = std::any_of(
      buffers.begin(), buffers.end(), [&](size_t i) {
        return !records[i].is_zero_initially;
      });
  std::shared_ptr<Arenas> scratch;
  if (is_given) {
    // Into memory of its own, so that buffers that are not to be reset, and
    // views of them, never see initial values.
    scratch = Arenas::allocate(program()->arena_nbytes());
    if (scratch == nullptr) {
      return out_of_memory("the initial values of state");
    }
    ETSHARED_RETURN_IF_FAILED(run_generated(*scratch));
  }
  for (const size_t i : buffers) {
    const BufferRecord& buffer = records[i];
    if (buffer.is_zero_initially) {
      std::fill_n(address(buffer), buffer.nbytes, uint8_t{0});
    } else {
      std::copy_n(
          scratch->at(buffer.mem_id, buffer.offset),
          buffer.nbytes,
          address(buffer));
    }
  }
  return success();
}

Outcome<std::vector<OwnedTensor>> Session::snapshot(
    const std::vector<size_t>& buffers) {
  const std::lock_guard lock(mutex_);
  ETSHARED_RETURN_IF_FAILED(check_alive());
  std::vector<OwnedTensor> tensors;
  for (const size_t i : buffers) {
    const BufferRecord& buffer = program()->context()->buffers[i];
    OwnedTensor tensor;
    tensor.memory = AlignedMemory::allocate(buffer.nbytes);
    if (!tensor.memory) {
      return out_of_memory("a snapshot");
    }
    std::copy_n(address(buffer), buffer.nbytes, tensor.memory.data());
    tensor.scalar_type = buffer.scalar_type;
    tensor.sizes.assign(buffer.sizes.begin(), buffer.sizes.end());
    tensor.strides = strides_of(tensor.sizes, buffer.dim_order);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Status Session::check_fit(size_t index, const TensorView& view) const {
  const BufferRecord& buffer = program()->context()->buffers[index];
  const std::vector<int64_t> sizes(buffer.sizes.begin(), buffer.sizes.end());
  if (view.scalar_type == buffer.scalar_type && view.sizes == sizes) {
    return success();
  }
  return Failure{
      FailureKind::kStateMismatch,
      concat(
          "state ", quoted(buffer.fqn), " is ", dtype_name(buffer.scalar_type),
          ' ', describe_sizes(sizes), ", the given value is ",
          dtype_name(view.scalar_type), ' ', describe_sizes(view.sizes))};
}

Status Session::write(size_t index, const TensorView& view) {
  const BufferRecord& buffer = program()->context()->buffers[index];
  if (!arenas_->contains(view.data)) {
    copy_to(view, buffer.dim_order, address(buffer));
    return success();
  }
  // A view of this very state, which may overlap what is written.
  const AlignedMemory staged = AlignedMemory::allocate(buffer.nbytes);
  if (!staged) {
    return out_of_memory("a copy of state");
  }
  copy_to(view, buffer.dim_order, staged.data());
  std::copy_n(staged.data(), buffer.nbytes, address(buffer));
  return success();
}

Status Session::restore(
    const std::vector<std::pair<size_t, TensorView>>& values) {
  for (const auto& [index, view] : values) {
    ETSHARED_RETURN_IF_FAILED(check_fit(index, view));
  }
  const std::lock_guard lock(mutex_);
  const bool is_all = values.size() == program()->context()->buffers.size();
  if (!is_all) {
    ETSHARED_RETURN_IF_FAILED(check_alive());
  }
  for (const auto& [index, view] : values) {
    ETSHARED_RETURN_IF_FAILED(write(index, view));
  }
  if (is_all) {
    poison_.clear();
  }
  return success();
}

Status Session::assign(size_t buffer, const TensorView& value) {
  ETSHARED_RETURN_IF_FAILED(check_fit(buffer, value));
  const std::lock_guard lock(mutex_);
  return write(buffer, value);
}

} // namespace etshared::runtime

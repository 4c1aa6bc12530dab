#include "runtime/packed.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/linear.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace dynacompile::runtime {
namespace {

using c10::IValue;

at::Tensor called(const c10::OperatorHandle& op, torch::jit::Stack stack) {
    op.callBoxed(stack);
    return std::move(stack.front()).toTensor();
}

// The tensor, and the state of it, that something was made of. The weak references keep the addresses from being taken by others.
class Seen {
public:
    Seen() = default;
    explicit Seen(const at::Tensor& tensor)
        : tensor_(tensor.getIntrusivePtr()), storage_(tensor.storage().getWeakStorageImpl()), memory_(tensor.const_data_ptr()), version_(tensor._version()) {}

    bool is(const at::Tensor& tensor) const {
        return tensor_ && tensor_->_unsafe_get_target() == tensor.unsafeGetTensorImpl() && storage_->_unsafe_get_target() == tensor.storage().unsafeGetStorageImpl() &&
               memory_ == tensor.const_data_ptr() && version_ == tensor._version();
    }

private:
    std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> tensor_;
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage_;
    const void* memory_ = nullptr;
    int64_t version_ = 0;
};

class PackedCall final : public ExternCall {
public:
    PackedCall(PyObject* args, int64_t output)
        : x_(slot(args, 0)), weight_(slot(args, 1)), bias_(slot(args, 2)), turned_(item(args, 3) == Py_True), output_(int32_t(output)) {}

    void call(Frame& frame) const override {
        const at::Tensor x(frame.tensor(x_)), weight(frame.tensor(weight_));
        const at::Tensor bias = bias_ < 0 ? at::Tensor() : at::Tensor(frame.tensor(bias_));
        at::Tensor result = product(x, weight, bias);
        if (output_ >= 0) frame.adopt(output_, std::move(result));
    }

    std::vector<int32_t> operands() const override {
        std::vector<int32_t> found = {x_, weight_};
        if (bias_ >= 0) found.push_back(bias_);
        return found;
    }

private:
    static int32_t slot(PyObject* args, Py_ssize_t i) {
        PyObject* value = item(args, i);
        return value == Py_None || value == Py_Ellipsis ? -1 : int32_t(to_int(value));
    }

    at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const {
        const auto [rows, packed] = packed_of(x, weight);
        if (!packed.defined()) return at::linear(x, turned_ ? weight.t() : weight, bias);
        const std::optional<at::Tensor> added = bias.defined() ? std::optional(bias) : std::nullopt;
        if (weight.scalar_type() == at::kFloat) {
            static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow("mkl::_mkl_linear", "");
            return called(op, {x, packed, rows, added, x.size(0)});
        }
        static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "");
        return called(op, {x, packed, added, "none", c10::impl::GenericList(op.schema().arguments()[4].type()->containedType(0)), ""});
    }

    // The weight as (n, k) rows, and packed; no tensors where packing does not pay: the weight changes from call to call, or can't tell whether it does.
    std::pair<at::Tensor, at::Tensor> packed_of(const at::Tensor& x, const at::Tensor& weight) const {
        if (weight.is_inference()) return {};
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (seen_.is(weight)) {
                spare_ = std::min(spare_ + 1, most_spare);
                return {turned_ ? rows_ : weight, packed_};
            }
            rows_ = packed_ = at::Tensor();
            if (spare_ == 0) return {};
            --spare_;
        }
        const Seen seen(weight);
        const at::Tensor rows = turned_ ? weight.t().contiguous() : weight, made = packed(rows, x.size(0));
        const std::lock_guard<std::mutex> lock(mutex_);
        seen_ = seen;
        packed_ = made;
        if (turned_ && made.scalar_type() == at::kFloat) rows_ = rows;  // the weight itself belongs to its module alone
        return {rows, made};
    }

    static at::Tensor packed(const at::Tensor& rows, int64_t count) {
        const char* name = rows.scalar_type() == at::kFloat ? "mkl::_mkl_reorder_linear_weight" : "mkldnn::_reorder_linear_weight";
        return called(c10::Dispatcher::singleton().findSchemaOrThrow(name, ""), {rows.detach(), count});
    }

    static constexpr int most_spare = 8;  // packings that may follow each other without a call between them that found the weight as it was

    const int32_t x_, weight_, bias_;
    const bool turned_;
    const int32_t output_;
    mutable std::mutex mutex_;
    mutable Seen seen_;
    mutable at::Tensor rows_, packed_;
    mutable int spare_ = most_spare;
};

}  // namespace

std::unique_ptr<ExternCall> make_packed(PyObject* args, int64_t output) { return std::make_unique<PackedCall>(args, output); }

}  // namespace dynacompile::runtime

// A tensor's metadata as the words that it consists of: what the getters of TensorImpl would tell, in few loads and without calls.
#pragma once
#include <c10/core/TensorImpl.h>

#include <cstddef>
#include <cstring>

#include "guards/members.h"

namespace dynacompile {

struct AutogradPlaces {
    size_t requires_grad, is_view, function;  // bytes from the start of an AutogradMeta; `function`: a pointer, null without one
};
AutogradPlaces autograd_places();  // autograd_meta.cpp

struct AutogradMetaMember {
    using type = std::unique_ptr<c10::AutogradMetaInterface> c10::TensorImpl::*;
    friend constexpr type member_of(AutogradMetaMember);
};
template struct Expose<AutogradMetaMember, &c10::TensorImpl::autograd_meta_>;

// Names the protected members; there is no object of it but the one of `policies`.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
class TensorWords final : public c10::TensorImpl {
  public:
    static constexpr auto sizes_and_strides = &TensorWords::sizes_and_strides_;
    static constexpr auto keys = &TensorWords::key_set_;

    // dtype, device and flags: all that lies between them and the dispatch keys. Where it is equal, they are.
    static uint64_t facts(const c10::TensorImpl* impl) {
        constexpr size_t begin = offsetof(TensorWords, data_type_), end = offsetof(TensorWords, key_set_);
        static_assert(begin < end && end - begin <= sizeof(uint64_t) && offsetof(TensorWords, device_opt_) > begin && offsetof(TensorWords, device_opt_) < end);
        uint64_t word = 0;
        std::memcpy(&word, reinterpret_cast<const char*>(impl) + begin, end - begin);
        return word;
    }

    // The bits of `facts` that say that sizes, strides or device are to be asked of a virtual function, or are symbolic.
    static uint64_t policies() {
        TensorWords sample;
        const uint64_t plain = facts(&sample);
        sample.sizes_strides_policy_ = 3;
        sample.has_symbolic_sizes_strides_ = true;
        sample.device_policy_ = true;
        return facts(&sample) ^ plain;
    }

    // The bits that are dtype and device.
    static uint64_t dtype_and_device() {
        constexpr size_t count = offsetof(TensorWords, device_opt_) + sizeof(device_opt_) - offsetof(TensorWords, data_type_);
        static_assert(count < sizeof(uint64_t));
        uint64_t bits = 0;
        std::memset(&bits, 0xff, count);
        return bits;
    }

  private:
    TensorWords() : TensorImpl(c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<float>(), c10::Device(c10::DeviceType::CPU)) {}
};
#pragma GCC diagnostic pop

inline const char* autograd_meta(const c10::TensorImpl* impl) { return reinterpret_cast<const char*>((impl->*member_of(AutogradMetaMember())).get()); }

// The word that `requires_grad` reads first; null where there is none.
inline const void* requires_grad_word(const c10::TensorImpl* impl, const AutogradPlaces& places) {
    const char* meta = autograd_meta(impl);
    return meta ? meta + places.requires_grad : nullptr;
}

// As impl->requires_grad(), which is two calls.
inline bool requires_grad(const c10::TensorImpl* impl, const AutogradPlaces& places) {
    const char* meta = autograd_meta(impl);
    if (!meta) return false;
    if (*reinterpret_cast<const bool*>(meta + places.requires_grad) || *reinterpret_cast<void* const*>(meta + places.function)) return true;
    return *reinterpret_cast<const bool*>(meta + places.is_view) && impl->requires_grad();  // of a view, that of its base counts
}

}  // namespace dynacompile

// Members of torch's classes that have no accessor, or one that costs a call: read where the headers say that they lie.
#pragma once

namespace dynacompile {

// Lets `member_of(Name())` give the pointer to a private member; explicit instantiations may name those. Use:
//     struct Name { using type = Member Class::*; friend type member_of(Name); };
//     template struct Expose<Name, &Class::member>;
template <class Name, typename Name::type member>
struct Expose {
    friend constexpr typename Name::type member_of(Name) { return member; }
};

}  // namespace dynacompile

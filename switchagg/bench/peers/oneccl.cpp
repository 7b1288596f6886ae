// A C interface to what the benchmark uses of oneCCL, whose own is C++: one communicator for each process.

#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include <oneapi/ccl.hpp>

namespace {
std::shared_ptr<ccl::kvs> store;
std::unique_ptr<ccl::communicator> communicator;
std::string problem;

// Returns nullptr, or the message of what was thrown.
template <typename Work>
const char* attempt(Work work) {
    try {
        work();
        return nullptr;
    } catch (const std::exception& error) {
        problem = error.what();
        return problem.c_str();
    }
}
}  // namespace

extern "C" {
// Rank 0 writes the 256 bytes of the store's address.
const char* oneccl_address(char* address) {
    return attempt([&] {
        ccl::init();
        store = ccl::create_main_kvs();
        std::memcpy(address, store->get_address().data(), store->get_address().size());
    });
}

const char* oneccl_join(int rank, int ranks, const char* address) {
    return attempt([&] {
        if (!store) {
            ccl::init();
            ccl::kvs::address_type bytes;
            std::memcpy(bytes.data(), address, bytes.size());
            store = ccl::create_kvs(bytes);
        }
        communicator = std::make_unique<ccl::communicator>(ccl::create_communicator(ranks, rank, store));
    });
}

// In place; `datatype` is oneCCL's number.
const char* oneccl_sum(void* elements, std::size_t count, int datatype) {
    return attempt([&] {
        ccl::allreduce(elements, elements, count, static_cast<ccl::datatype>(datatype), ccl::reduction::sum,
                       *communicator)
            .wait();
    });
}

void oneccl_leave() {
    communicator.reset();
    store.reset();
}
}

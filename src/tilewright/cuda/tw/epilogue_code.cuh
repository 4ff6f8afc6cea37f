// The plain epilogue: C is what was summed up. The text of another takes the place of this file.
namespace epilogue {
constexpr bool NONE = true;
struct Args {};
template <int N> __device__ __forceinline__ void apply(float (&)[N], const Args&, const tw::Place&) {}
}  // namespace epilogue

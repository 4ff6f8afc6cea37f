// mbarriers, TMA copies and cluster barriers, each used in a way that is a mistake. Blocks of 64 threads; a box of the
// map has 8 rows of 128 bytes, swizzled.
#include <tw/cluster.cuh>
#include <tw/fence.cuh>
#include <tw/memory.cuh>
#include <tw/tma.cuh>

using tw::u32;
constexpr int BOX = 1024;

struct Shared {
  alignas(1024) unsigned char box[2 * BOX];
  tw::Mbarrier full, other;
};

extern "C" __global__ void tw_gemm(const __grid_constant__ tw::TensorMap map, const tw::TensorMap* no_map, u32 number) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x;
  const u32 rank = tw::cluster_rank();
  if (t == 0 && (plan::CASE != 24 || rank == 0)) {
    tw::mbarrier_init(s.full, plan::CASE == 11 ? 2 : 1);
    tw::fence_mbarrier_init();
  }
  if (plan::CASE == 42 && t == 40) tw::mbarrier_wait(s.full, 0);
  tw::cluster_sync();
  if (t == 0) switch (plan::CASE) {
      case 0: tw::mbarrier_arrive(s.other); break;
      case 1:
        s.full.state = number;
        tw::mbarrier_arrive(s.full);
        break;
      case 2:
        tw::mbarrier_expect_tx(s.full, 16);
        tw::mbarrier_arrive(s.full);
        break;
      case 3:  // 16 bytes fewer than come
      case 4:  // 16 more
        tw::mbarrier_expect_tx(s.full, plan::CASE == 3 ? BOX - 16 : BOX + 16);
        tw::tma_load_2d(s.box, map, s.full, 0, 0);
        break;
      case 5: tw::mbarrier_arrive(*reinterpret_cast<tw::Mbarrier*>(s.box + 4)); break;
      case 6: {
        tw::Mbarrier local;
        tw::mbarrier_init(local, 1);
        break;
      }
      case 7: tw::mbarrier_init(s.full, 1); break;
      case 8: tw::mbarrier_init(s.other, number); break;
      case 9: tw::mbarrier_wait(s.full, 2); break;
      case 10: tw::mbarrier_arrive_remote(s.full, 2); break;
      case 12:
        for (int i = 0; i < 2; ++i) tw::mbarrier_expect_tx(s.full, 1 << 20);
        break;
      case 13:  // of bytes alone
        tw::mbarrier_init(s.other, 2);
        tw::mbarrier_expect_tx(s.other, 16);
        tw::tma_load_2d(s.box, map, s.other, 0, 0);
        tw::mbarrier_arrive(s.other);
        tw::mbarrier_wait(s.other, 0);
        break;
      case 20: tw::tma_load_2d(s.box, *no_map, s.full, 0, 0); break;
      case 21: tw::tma_load_3d(s.box, map, s.full, 0, 0, 0); break;
      case 22: tw::tma_load_2d(s.box + 128, map, s.full, 0, 0); break;
      case 23: tw::tma_load_2d(s.box + 2 * BOX + 512, map, s.full, 0, 0); break;
      case 24:
        if (rank == 0) tw::tma_load_2d_multicast(s.box, map, s.full, 0, 0, 3);
        break;
      case 25: tw::tma_load_2d_multicast(s.box, map, s.full, 0, 0, 5); break;
      case 26:
        if (rank == 1) break;
        tw::cluster_sync();  // when the other has left
        tw::tma_load_2d_multicast(s.box, map, s.full, 0, 0, 3);
        break;
      case 27:
        tw::mbarrier_expect_tx(s.full, BOX);
        tw::tma_load_2d(s.box, map, s.full, 0, 0);
        break;
      case 28:
      case 29:
        tw::tma_store_2d(map, s.box, 0, 0);
        if (plan::CASE == 28) tw::tma_store_commit();
        tw::tma_store_wait<1>();
        break;
      case 30: tw::mbarrier_expect_tx(s.full, 48); break;
      case 31:
        if (rank == 0) tw::mbarrier_arrive_remote(s.full, 1);
        break;
      case 32:
        if (rank == 1) break;
        tw::cluster_sync();
        tw::mbarrier_arrive_remote(s.full, 1);
        break;
      case 33:
        tw::mbarrier_expect_tx(s.full, BOX);
        if (rank == 0) {
          tw::tma_load_2d_multicast(s.box, map, s.full, 0, 0, 3);
          tw::mbarrier_wait(s.full, 0);
        }
        break;
      case 35:
        tw::tma_load_2d(s.box, *reinterpret_cast<const tw::TensorMap*>(s.box + 16), s.full, 0, 0);
        break;
      case 36: tw::tma_store_2d(map, s.box + 64, 0, 0); break;
      case 40: tw::cluster_arrive(); break;
      case 41: tw::cluster_wait(); break;
    }
  if (plan::CASE == 11 || plan::CASE == 4 || plan::CASE == 3) tw::mbarrier_wait(s.full, 0);
  if (plan::CASE == 34) {  // the arrival at the other block's mbarrier comes after one's own at the cluster's
    tw::cluster_arrive();
    if (t == 0) tw::mbarrier_arrive_remote(s.full, rank ^ 1);
    tw::cluster_wait();
  }
  if (plan::CASE == 40) tw::cluster_arrive();
}
